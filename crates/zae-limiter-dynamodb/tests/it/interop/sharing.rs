//! Taking from one bucket.

use std::time::Duration;

use futures_util::future::join_all;
use zae_limiter_store::{Clock, SystemClock};
use zae_limiter_testkit::zae_limiter::{Level, NewEntity, PageRequest};

use crate::interop::on_both_tables;
use crate::interop::table::{Shared, drain, limits, of_entity, request, take, whole};

fn entity(id: &str, parent: Option<&str>) -> NewEntity {
    NewEntity {
        id: id.parse().unwrap(),
        name: id.to_owned(),
        parent: parent.map(|parent| parent.parse().unwrap()),
        cascade: parent.is_some(),
        metadata: [("plan".to_owned(), "gold".to_owned())].into(),
    }
}

on_both_tables! {
    /// Two Python processes with two threads each and eight tasks of ours empty one bucket
    /// together.
    async fn together_they_get_exactly_1000_of_1000_a_day(shared: Shared) {
        let rust = shared.rust().await;
        rust.set_limits(&Level::System, limits("rpd:1000/day")).await.unwrap();
        let mut pythons = [shared.python(), shared.python()];
        for python in &mut pythons {
            python.send("drain('hot', 'gpt-4', 'rpd', threads=2)");
        }
        let ours = drain(&rust, "hot", "rpd", 8).await;
        let theirs: Vec<u64> = pythons.iter_mut().map(|python| python.receive().as_u64().unwrap()).collect();
        assert_eq!(ours + theirs.iter().sum::<u64>(), 1000, "we {ours}, they {theirs:?}");
        assert!(ours > 0 && theirs.iter().all(|granted| *granted > 0), "all took part: we {ours}, they {theirs:?}");
        let bucket = shared.bucket("hot");
        assert_eq!(whole(&bucket["b_rpd_tc"]), 1_000_000, "all of it is counted");
        assert!((0..1000).contains(&whole(&bucket["b_rpd_tk"])), "less than a token is left: {bucket}");
        assert_eq!(whole(&bucket["shard_count"]), 1, "nobody has split it");
    }

    /// The same on a bucket that refills all the time: never more than it held at first and has
    /// gained since.
    async fn together_they_keep_to_a_rate(shared: Shared) {
        let rust = shared.rust().await;
        rust.set_limits(&Level::System, limits("rps:10/sec:20")).await.unwrap();
        let mut python = shared.python();
        let clock = SystemClock::new();
        let started = clock.now();
        python.send("drain('hot', 'gpt-4', 'rps', threads=2, seconds=3)");
        let caller = |tokens| {
            let (rust, clock) = (&rust, &clock);
            async move {
                let mut granted = 0;
                while clock.now().0 < started.0 + 3_000 {
                    granted += u64::from(take(rust, "hot", "rps", tokens).await) * tokens;
                    clock.sleep(Duration::from_millis(2)).await;
                }
                granted
            }
        };
        let ours: u64 = join_all([caller(1), caller(1), caller(3)]).await.into_iter().sum();
        let theirs = python.receive().as_u64().unwrap();
        let passed_ms = u64::try_from(clock.now().0 - started.0).unwrap();
        let granted = ours + theirs;
        assert!(granted <= 20 + 10 * passed_ms / 1000 + 1, "{granted} in {passed_ms} ms: we {ours}, they {theirs}");
        assert!(granted > 25 && ours > 0 && theirs > 0, "it refills for both: we {ours}, they {theirs}");
    }

    /// What a lease of one takes, charges or gives back, the other sees at once.
    async fn leases_of_either_count_for_both(shared: Shared) {
        let rust = shared.rust().await;
        let mut python = shared.python();
        rust.set_limits(&of_entity("key"), limits("tpd:1000/day")).await.unwrap();
        let python_sees = "limiter.available('key', 'gpt-4')['tpd']";
        let rust_sees = async || rust.availability(&request("key", "tpd", 0)).await.unwrap().available("tpd").unwrap();

        // They estimate 100 and use 250; we estimate 100 and use 30.
        assert_eq!(python.eval("take('key', 'gpt-4', {'tpd': 100}, adjust={'tpd': 150})"), true);
        assert_eq!(rust_sees().await, 750);
        let lease = rust.acquire(request("key", "tpd", 100)).await.unwrap();
        assert_eq!(python.eval(python_sees), 650);
        lease.record("tpd", 30).unwrap();
        lease.commit().await.unwrap();
        assert_eq!(python.eval(python_sees), 720);

        // Both give back when the work failed.
        assert_eq!(python.eval("take('key', 'gpt-4', {'tpd': 200}, fail=True)"), true);
        assert_eq!(rust_sees().await, 720);
        let lease = rust.acquire(request("key", "tpd", 200)).await.unwrap();
        lease.rollback().await.unwrap();
        assert_eq!(python.eval(python_sees), 720);

        // Debt of either refuses both.
        assert_eq!(python.eval("take('key', 'gpt-4', {'tpd': 700}, adjust={'tpd': 100})"), true);
        assert!(!take(&rust, "key", "tpd", 1).await);
        assert_eq!(python.eval(python_sees), -80);
        // What has been refilled meanwhile is less than a token.
        assert!([1079, 1080].contains(&rust.reset("key", "gpt-4", None).await.unwrap().unwrap()[0].1));
        let lease = rust.acquire(request("key", "tpd", 1000)).await.unwrap();
        lease.record("tpd", 1010).unwrap();
        lease.commit().await.unwrap();
        assert!(!python.take("key", "tpd", 1));
        assert_eq!(rust_sees().await, -10);

        // More than the bucket holds is given back to nobody: Python leaves a mark, and the next
        // write trims.
        let restored = python.eval("repo.reset_bucket('key', 'gpt-4', principal='python')")["amounts"]["tpd"].as_i64();
        assert!([Some(1009), Some(1010)].contains(&restored));
        assert_eq!(python.eval("take('key', 'gpt-4', {'tpd': 1}, adjust={'tpd': -500})"), true);
        assert!(!take(&rust, "key", "tpd", 1001).await);
        assert!(take(&rust, "key", "tpd", 1000).await);
        assert!(!python.take("key", "tpd", 1));
    }

    /// An entity and its parent, made by one, are charged together by the other.
    async fn a_cascade_reaches_the_parent_of_either(shared: Shared) {
        let rust = shared.rust().await;
        let mut python = shared.python();
        rust.set_limits(&Level::System, limits("rpd:1000/day")).await.unwrap();
        rust.create_entity(entity("org-r", None)).await.unwrap();
        rust.create_entity(entity("key-r", Some("org-r"))).await.unwrap();
        python.eval("limiter.create_entity('org-p', name='org-p', principal='python')");
        python.eval("limiter.create_entity('key-p', parent_id='org-p', cascade=True, principal='python')");
        for (key, org) in [("key-r", "org-r"), ("key-p", "org-p")] {
            // The second of each finds the buckets, the first makes them: once they, once we.
            if key == "key-r" {
                assert!(python.take(key, "rpd", 3));
                assert!(take(&rust, key, "rpd", 4).await);
            } else {
                assert!(take(&rust, key, "rpd", 4).await);
                assert!(python.take(key, "rpd", 3));
            }
            for owner in [key, org] {
                let bucket = shared.bucket(owner);
                assert_eq!((whole(&bucket["b_rpd_tk"]) / 1000, whole(&bucket["b_rpd_tc"])), (993, 7_000), "{owner}");
            }
            // A short parent refuses the child of both, and the child keeps its tokens.
            assert!(take(&rust, org, "rpd", 993).await);
            assert!(!python.take(key, "rpd", 1));
            assert!(!take(&rust, key, "rpd", 1).await);
            assert_eq!(shared.stored_milli(key, "rpd") / 1000, 993);
        }
    }

    /// Python charges the entity and its parent; we charge the whole chain.
    async fn a_grandparent_is_charged_by_us_only(shared: Shared) {
        let rust = shared.rust().await;
        let mut python = shared.python();
        rust.set_limits(&Level::System, limits("rpd:1000/day")).await.unwrap();
        rust.create_entity(entity("top", None)).await.unwrap();
        rust.create_entity(entity("middle", Some("top"))).await.unwrap();
        rust.create_entity(entity("leaf", Some("middle"))).await.unwrap();
        assert!(take(&rust, "leaf", "rpd", 10).await);
        assert!(python.take("leaf", "rpd", 5));
        let consumed = |owner: &str| whole(&shared.bucket(owner)["b_rpd_tc"]) / 1000;
        assert_eq!(["leaf", "middle", "top"].map(consumed), [15, 15, 10]);
    }

    /// The known weakness of the Python fast path: the idle time of a full bucket is credited once
    /// more after the burst. We refuse to do it ourselves (see `processes.rs`), and cannot undo it
    /// for them.
    async fn python_credits_the_idle_time_of_a_full_bucket_again(shared: Shared) {
        let rust = shared.rust().await;
        let mut python = shared.python();
        rust.set_limits(&of_entity("idle"), limits("rps:50/sec:100")).await.unwrap();
        assert!(take(&rust, "idle", "rps", 0).await);
        let minute_later = SystemClock::new().now().0 + 60_000;
        python.eval(&format!("set_clock({minute_later})"));
        assert_eq!(python.drain("idle", "rps"), 200, "100 by its fast path, then 100 more by its refill");
        let buckets = rust.buckets("idle", &PageRequest::default()).await.unwrap().items;
        assert_eq!(buckets.len(), 1);
    }
}
