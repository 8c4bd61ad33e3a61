//! Limits and flags set by one and honoured by the other.

use std::time::Duration;

use zae_limiter_store::SystemClock;
use zae_limiter_testkit::zae_limiter::{
    AcquireError, Clock, Level, LimitsChange, OnUnavailable, RateLimiter,
};

use crate::interop::on_both_tables;
use crate::interop::python::Python;
use crate::interop::table::{Shared, drain, limits, of_entity, request, take, whole};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Rust,
    Python,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    System,
    Resource,
    Entity,
    EntityResource,
}

const BOTH: [Who; 2] = [Who::Rust, Who::Python];
const LEVELS: [At; 4] = [At::System, At::Resource, At::Entity, At::EntityResource];

/// Both products, side by side.
struct Pair {
    rust: RateLimiter,
    python: Python,
}

impl Pair {
    async fn set(&mut self, who: Who, at: At, entity: &str, rate: u64) {
        let level = match at {
            At::System => Level::System,
            At::Resource => Level::Resource("gpt-4".parse().unwrap()),
            At::Entity => Level::Entity(entity.parse().unwrap()),
            At::EntityResource => of_entity(entity),
        };
        if who == Who::Rust {
            self.rust.set_limits(&level, limits(&format!("rpd:{rate}/day"))).await.unwrap();
            return;
        }
        let limits = format!("[Limit.per_day('rpd', {rate})]");
        self.python.eval(&match at {
            At::System => format!("limiter.set_system_defaults({limits}, principal='python')"),
            At::Resource => {
                format!("limiter.set_resource_defaults('gpt-4', {limits}, principal='python')")
            }
            At::Entity => format!("limiter.set_limits({entity:?}, {limits}, principal='python')"),
            At::EntityResource => format!(
                "limiter.set_limits({entity:?}, {limits}, resource='gpt-4', principal='python')"
            ),
        });
    }

    async fn take(&mut self, who: Who, entity: &str, tokens: u64) -> bool {
        match who {
            Who::Rust => take(&self.rust, entity, "rpd", tokens).await,
            Who::Python => self.python.take(entity, "rpd", tokens),
        }
    }

    async fn drain(&mut self, who: Who, entity: &str) -> u64 {
        match who {
            Who::Rust => drain(&self.rust, entity, "rpd", 1).await,
            Who::Python => self.python.drain(entity, "rpd"),
        }
    }

    async fn fill(&mut self, entity: &str) {
        self.rust.reset(entity, "gpt-4", None).await.unwrap();
    }
}

/// Whether `taker`, alone, holds a bucket that is there already to limits that somebody has
/// changed. Whoever changes the limits of an entity writes them into its buckets, never those of a
/// resource or of the system; we also write them when we next take from the bucket, whoever changed
/// them.
fn reaches(at: At, taker: Who) -> bool {
    taker == Who::Rust || matches!(at, At::Entity | At::EntityResource)
}

on_both_tables! {
    /// A new bucket of either is made with the limits of either, at every level.
    async fn limits_of_either_hold_for_new_buckets(shared: Shared) {
        let mut pair = Pair { rust: shared.rust().await, python: shared.python() };
        for at in LEVELS {
            for setter in BOTH {
                for maker in BOTH {
                    let entity = format!("{at:?}-{setter:?}-{maker:?}");
                    pair.set(setter, at, &entity, 10).await;
                    assert!(pair.take(maker, &entity, 4).await);
                    let other = if maker == Who::Rust { Who::Python } else { Who::Rust };
                    assert!(!pair.take(other, &entity, 7).await, "{entity}");
                    assert_eq!(pair.drain(other, &entity).await, 6, "{entity}");
                    assert!(!pair.take(maker, &entity, 1).await, "{entity}");
                }
            }
        }
    }

    /// Limits of either, raised and cut, and whom they reach when the bucket is there already.
    async fn changed_limits_reach_buckets_as_documented(shared: Shared) {
        let mut pair = Pair { rust: shared.rust().await, python: shared.python() };
        for at in LEVELS {
            for setter in BOTH {
                for taker in BOTH {
                    let entity = format!("{at:?}-{setter:?}-{taker:?}");
                    pair.set(setter, at, &entity, 10).await;
                    assert!(pair.take(Who::Python, &entity, 1).await);
                    for rate in [30, 5] {
                        pair.set(setter, at, &entity, rate).await;
                        pair.take(taker, &entity, 1).await;
                        pair.fill(&entity).await;
                        let expected = if reaches(at, taker) { rate } else { 10 };
                        assert_eq!(pair.drain(taker, &entity).await, expected, "{entity} at {rate}");
                    }
                    // However it was before: once we have taken from the bucket, it is up to date
                    // for both.
                    pair.take(Who::Rust, &entity, 0).await;
                    pair.fill(&entity).await;
                    assert_eq!(pair.drain(Who::Python, &entity).await, 5, "{entity}");
                }
            }
        }
    }

    /// Deleted limits of an entity: it falls back to the next level, whoever deletes.
    async fn deleted_limits_of_either_fall_back(shared: Shared) {
        let mut pair = Pair { rust: shared.rust().await, python: shared.python() };
        pair.set(Who::Rust, At::System, "", 20).await;
        for deleter in BOTH {
            let entity = format!("key-{deleter:?}");
            pair.set(Who::Python, At::EntityResource, &entity, 10).await;
            assert!(pair.take(Who::Python, &entity, 1).await);
            match deleter {
                Who::Rust => assert!(pair.rust.delete_limits(&of_entity(&entity)).await.unwrap()),
                Who::Python => {
                    pair.python.eval(&format!("limiter.delete_limits({entity:?}, resource='gpt-4', principal='python')"));
                }
            }
            if deleter == Who::Python {
                pair.take(Who::Rust, &entity, 1).await;
                pair.fill(&entity).await;
                assert_eq!(pair.drain(Who::Rust, &entity).await, 20, "{entity}");
            }
            pair.fill(&entity).await;
            assert_eq!(pair.drain(Who::Python, &entity).await, 20, "{entity}");
            assert!(shared.bucket(&entity).get("ttl").is_some(), "it expires again");
        }
    }

    /// What one has stored, the other lists.
    async fn stored_limits_are_listed_by_both(shared: Shared) {
        let (rust, mut python) = (shared.rust().await, shared.python());
        let two = "rpm:100/min:150 tpm:10000/min";
        rust.set_limits(&of_entity("key-r"), limits(two)).await.unwrap();
        rust.set_limits(&Level::Resource("gpt-r".parse().unwrap()), limits(two)).await.unwrap();
        let allow = LimitsChange { on_unavailable: Some(OnUnavailable::Allow), ..limits(two).into() };
        rust.set_limits(&Level::System, allow).await.unwrap();
        let theirs = "[Limit.per_minute('rpm', 100, burst=150), Limit.per_minute('tpm', 10000)]";
        for got in ["limiter.get_limits('key-r', 'gpt-4')", "limiter.get_resource_defaults('gpt-r')", "limiter.get_system_defaults()[0]"] {
            assert_eq!(python.eval(&format!("sorted({got}, key=lambda limit: limit.name) == {theirs}")), true, "{got}");
        }
        assert_eq!(python.eval("limiter.get_system_defaults()[1]"), "allow");
        assert_eq!(python.eval("limiter.list_resources_with_defaults()"), serde_json::json!(["gpt-r"]));
        assert_eq!(python.eval("limiter.list_entities_with_custom_limits('gpt-4')[0]"), serde_json::json!(["key-r"]));
        assert_eq!(python.eval("limiter.list_resources_with_entity_configs()"), serde_json::json!(["gpt-4"]));

        python.eval(&format!("limiter.set_limits('key-p', {theirs}, resource='gpt-4', principal='python')"));
        python.eval(&format!("limiter.set_limits('key-p', {theirs}, principal='python')"));
        python.eval(&format!("limiter.set_resource_defaults('gpt-p', {theirs}, principal='python')"));
        python.eval(&format!("limiter.set_system_defaults({theirs}, on_unavailable=OnUnavailable.BLOCK, principal='python')"));
        for level in [of_entity("key-p"), Level::Entity("key-p".parse().unwrap()), Level::Resource("gpt-p".parse().unwrap()), Level::System] {
            let found = rust.level(&level).await.unwrap().unwrap();
            assert_eq!(found.limits[..], limits(two)[..], "{level}");
        }
        assert_eq!(rust.level(&Level::System).await.unwrap().unwrap().on_unavailable.map(|policy| policy.as_str()), Some("block"));
        let page = Default::default();
        let names = |page: zae_limiter_store::Page<_>| page.items.iter().map(ToString::to_string).collect::<Vec<String>>();
        assert_eq!(names(rust.resources_with_defaults(&page).await.unwrap()), ["gpt-p", "gpt-r"]);
        let entities = rust.entities_with_limits(Some(&"gpt-4".parse().unwrap()), &page).await.unwrap();
        assert_eq!(entities.items.iter().map(|id| id.as_str()).collect::<Vec<_>>(), ["key-p", "key-r"]);
    }

    /// Disabled by one, refused by both: at once where there is a bucket, and where there is
    /// none.
    async fn disabled_by_either_is_disabled_for_both(shared: Shared) {
        let (rust, mut python) = (shared.rust().await, shared.python());
        rust.set_limits(&Level::System, limits("rpd:1000/day")).await.unwrap();
        // These two have cached everything there is to cache.
        let warm = RateLimiter::builder(shared.builder().connect().await.unwrap()).build().unwrap();
        let mut warm_python = shared.unconnected_python();
        warm_python.eval("connect(config_cache_ttl=60, rejection_cache_ttl=1.0)");
        let is_off = async |limiter: &RateLimiter, key: &str| {
            matches!(limiter.acquire(request(key, "rpd", 1)).await, Err(AcquireError::Disabled(_)))
        };
        for (turn, resource) in [("resource", "gpt-4"), ("entity", "gpt-4")] {
            for who in BOTH {
                let key = format!("{turn}-{who:?}");
                assert!(take(&warm, &key, "rpd", 1).await && warm_python.take(&key, "rpd", 1));
                let level = if turn == "resource" { Level::Resource(resource.parse().unwrap()) } else { of_entity(&key) };
                let theirs = if turn == "resource" { "resource('gpt-4'".to_owned() } else { format!("entity({key:?}, 'gpt-4'") };
                match who {
                    Who::Rust => assert!(rust.disable(&level).await.unwrap().buckets >= 1),
                    Who::Python => assert!(python.eval(&format!("repo.disable_{theirs}, principal='python')")).as_u64() >= Some(1)),
                }
                assert_eq!(shared.bucket(&key)["disabled"]["BOOL"], true, "{key}");
                for limiter in [&rust, &warm] {
                    assert!(is_off(limiter, &key).await, "{key}");
                }
                for process in [&mut python, &mut warm_python] {
                    let raised = process.try_eval(&format!("take({key:?}, 'gpt-4', {{'rpd': 1}})")).unwrap_err();
                    assert_eq!(raised.class, "ResourceDisabled", "{key}: {raised:?}");
                }
                if turn == "resource" {
                    assert!(is_off(&rust, "nobody-yet").await);
                    assert_eq!(python.try_eval("take('nobody-yet', 'gpt-4', {'rpd': 1})").unwrap_err().class, "ResourceDisabled");
                }
                // And on again by the other.
                match who {
                    Who::Rust => drop(python.eval(&format!("repo.enable_{theirs}, principal='python')"))),
                    Who::Python => drop(rust.enable(&level).await.unwrap()),
                }
                assert!(take(&rust, &key, "rpd", 1).await && python.take(&key, "rpd", 1), "{key}");
                assert!(warm_python.take(&key, "rpd", 1), "{key}");
                rust.clear_disabled(&level).await.unwrap();
                // For as long a process that was told "off" goes by that.
                SystemClock::new().sleep(Duration::from_millis(1_100)).await;
            }
        }
    }

    /// What Python clients with their caches on get to see, and when: a change of ours after their
    /// config-cache TTL, or after `invalidate_config_cache()`.
    async fn python_caches_limits_for_its_ttl(shared: Shared) {
        let (rust, mut python) = (shared.rust().await, shared.unconnected_python());
        python.eval("connect(config_cache_ttl=1)");
        rust.set_limits(&Level::System, limits("rpd:10/day")).await.unwrap();
        assert!(python.take("first", "rpd", 10));
        rust.set_limits(&Level::System, limits("rpd:30/day")).await.unwrap();
        SystemClock::new().sleep(Duration::from_millis(1_100)).await;
        assert!(python.take("second", "rpd", 30), "after its TTL");
        rust.set_limits(&Level::System, limits("rpd:50/day")).await.unwrap();
        python.eval("repo.invalidate_config_cache()");
        assert!(python.take("third", "rpd", 50), "when told");
    }

    /// Python looks at attributes it does not know and leaves them alone: remainders, gaps, retired
    /// limits, nonces.
    async fn attributes_of_ours_do_not_disturb_python(shared: Shared) {
        let (rust, mut python) = (shared.rust().await, shared.python());
        // A rate that leaves a remainder, a cut that hides tokens, a limit that is retired, and an
        // order of our own.
        rust.set_limits(&of_entity("key"), limits("zpd:7/day:1000 rpd:1000/day tpd:500/day")).await.unwrap();
        let all = || request("key", "zpd", 10).take("rpd", 10);
        rust.acquire(all()).await.unwrap().commit().await.unwrap();
        rust.set_limits(&of_entity("key"), limits("zpd:7/day:1000 rpd:800/day")).await.unwrap();
        SystemClock::new().sleep(Duration::from_millis(20)).await;
        rust.acquire(all()).await.unwrap().commit().await.unwrap();
        rust.acquire(request("key", "rpd", 1)).await.unwrap().rollback().await.unwrap();
        let before = shared.bucket("key");
        let config = shared.item("/ENTITY#key", "#CONFIG#gpt-4");
        for (item, name) in [(&before, "ca"), (&before, "lw"), (&before, "rmf"), (&before, "b_zpd_rm"), (&before, "b_rpd_gp"), (&config, "lo")] {
            assert!(item.get(name).is_some(), "the case must show {name}: {item}");
        }
        assert_eq!(python.eval("sorted(bucket.limit_name for bucket in repo.get_buckets('key') if bucket.limit_name != 'wcu')").as_array().unwrap().len(), whole_limits(&before));
        assert_eq!(python.eval("take('key', 'gpt-4', {'rpd': 10, 'zpd': 1}, adjust={'rpd': 5})"), true);
        assert_eq!(python.eval("take('key', 'gpt-4', {'rpd': 10}, fail=True)"), true);
        assert_eq!(python.eval("limiter.available('key', 'gpt-4')['rpd']"), 775);
        let after = shared.bucket("key");
        for name in ["ca", "lw", "b_rpd_gp"] {
            assert_eq!(after[name], before[name], "Python has changed {name}");
        }
        // Its refill moves `rf`; the remainder is void from then on, because it belongs to another
        // instant.
        python.eval("set_clock(repo._now_ms() + 3600_000)");
        assert!(python.take("key", "rpd", 800), "an hour later, by a refill of its own");
        python.eval("set_clock(None)");
        let moved = shared.bucket("key");
        assert!(whole(&moved["rf"]) > whole(&after["rf"]));
        python.eval("limiter.set_limits('key', [Limit.per_day('rpd', 900), Limit.per_day('new', 5)], resource='gpt-4', principal='python')");
        python.eval("repo.reset_bucket('key', 'gpt-4', principal='python')");
        assert_eq!(python.drain("key", "rpd"), 900);
        rust.reset("key", "gpt-4", None).await.unwrap();
        assert_eq!(drain(&rust, "key", "rpd", 1).await, 900);
        assert!(take(&rust, "key", "new", 5).await && !python.take("key", "new", 1));
    }
}

/// How many limits an item holds, the hidden one not counted.
fn whole_limits(bucket: &serde_json::Value) -> usize {
    bucket
        .as_object()
        .unwrap()
        .keys()
        .filter(|name| name.starts_with("b_") && name.ends_with("_tk") && *name != "b_wcu_tk")
        .count()
}
