//! Several administrators at once, in every order a seed finds: nobody's change is lost, and
//! registries stay right.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::join_all;
use zae_limiter_core::{AuditSubject, Flag, ResourceName};
use zae_limiter_dynamodb::DynamoStore;
use zae_limiter_dynamodb::table::number;
use zae_limiter_store::{ConfigStore, Level, NamespaceStore, PageRequest, StoreErrorKind};
use zae_limiter_testkit::table::{EvalOptions, Faults, Odds, Operation, Point, SeededGate};

use super::{Rig, audit_of, id, keys, limits, new_entity, on, renamed};

const SEEDS: u64 = 60;
const ADMINS: u32 = 4;

/// A table and several administrators, each of whom may have to wait anywhere. In every second run
/// calls also fail.
async fn admins(seed: u64) -> (Rig, Vec<DynamoStore>) {
    let rig = Rig::new(EvalOptions::new()).await;
    let mut stores = Vec::new();
    for admin in 1..=ADMINS {
        let of_its_own = seed * u64::from(ADMINS) + u64::from(admin);
        let mut client =
            rig.table.client(admin).with_gate(Arc::new(SeededGate::new(of_its_own, 60, 5)));
        if seed % 2 == 1 {
            client = client
                .with_faults(Faults::seeded(of_its_own, Odds { lag: 0, late: 0, ..Odds::FAIR }));
        }
        stores.push(rig.client(client, |_| {}).await);
    }
    (rig, stores)
}

/// Entities that have limits for a resource, as the registry counts them.
fn counted(rig: &Rig, resource: &str) -> Option<i64> {
    let registry = rig.table.get(&keys::entity_config_resources(&rig.namespace))?;
    registry.get(resource).map(|count| count.as_n().unwrap().parse().unwrap())
}

async fn listed(store: &DynamoStore, resource: &str) -> Vec<String> {
    let resource: ResourceName = resource.parse().unwrap();
    let page = store.entities_with_limits(Some(&resource), &PageRequest::first(100)).await.unwrap();
    page.items.iter().map(ToString::to_string).collect()
}

#[tokio::test]
async fn a_registry_counts_what_several_add_and_take_away() {
    for seed in 0..SEEDS {
        let (rig, stores) = admins(seed).await;
        let fair = rig.store().await;
        let name = |admin: usize| format!("key-{admin}");
        let added = stores.iter().enumerate().map(|(admin, store)| {
            let (level, change) = (on(&name(admin), "gpt-4"), rig.change());
            async move { store.set_limits(&level, &limits("rpm:1"), &change).await }
        });
        for result in join_all(added).await {
            result.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        }
        let expected: Vec<String> = (0..stores.len()).map(name).collect();
        assert_eq!(
            (counted(&rig, "gpt-4"), listed(&fair, "gpt-4").await),
            (Some(4), expected),
            "seed {seed}"
        );

        // Half of them take theirs away, the others change it, and all of them meet at the
        // registry.
        let changed = stores.iter().enumerate().map(|(admin, store)| {
            let (level, change) = (on(&name(admin), "gpt-4"), rig.change());
            async move {
                if admin % 2 == 0 {
                    store.delete_limits(&level, &change).await.map(|deleted| assert!(deleted))
                } else {
                    store.set_limits(&level, &limits("rpm:2"), &change).await.map(drop)
                }
            }
        });
        for result in join_all(changed).await {
            result.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        }
        assert_eq!(
            (counted(&rig, "gpt-4"), listed(&fair, "gpt-4").await),
            (Some(2), vec![name(1), name(3)]),
            "seed {seed}"
        );

        // The last two at once: both have seen two, and none may be left.
        let (one, two) = (rig.change(), rig.change());
        let (first, last) = (on(&name(1), "gpt-4"), on(&name(3), "gpt-4"));
        let (first, last) = tokio::join!(
            stores[0].delete_limits(&first, &one),
            stores[1].delete_limits(&last, &two)
        );
        assert!(first.unwrap() && last.unwrap(), "seed {seed}");
        assert_eq!(
            counted(&rig, "gpt-4"),
            None,
            "seed {seed}: a resource without entities is not listed"
        );
    }
}

/// The last one goes while another comes: the count that was to be removed is needed again.
#[tokio::test]
async fn a_count_is_not_removed_under_somebody_who_comes() {
    for seed in 0..SEEDS {
        let (rig, stores) = admins(seed).await;
        let fair = rig.store().await;
        let (old, new) = (on("old", "gpt-4"), on("new", "gpt-4"));
        fair.set_limits(&old, &limits("rpm:1"), &rig.change()).await.unwrap();
        let (one, two, change) = (rig.change(), rig.change(), limits("rpm:2"));
        let (deleted, set) = tokio::join!(
            stores[0].delete_limits(&old, &one),
            stores[1].set_limits(&new, &change, &two)
        );
        assert!(deleted.unwrap() && set.is_ok(), "seed {seed}");
        assert_eq!(
            (counted(&rig, "gpt-4"), listed(&fair, "gpt-4").await),
            (Some(1), vec!["new".to_owned()]),
            "seed {seed}"
        );
    }
}

/// One sets limits, one sets the flag, one sets limits of another resource, and one deletes what is
/// not there.
#[tokio::test]
async fn changes_of_one_level_are_all_made() {
    for seed in 0..SEEDS {
        let (rig, stores) = admins(seed).await;
        let fair = rig.store().await;
        let level = on("key", "gpt-4");
        let [first, second, third, fourth] = &stores[..] else { panic!("four administrators") };
        let (one, two, three, four) = (rig.change(), rig.change(), rig.change(), rig.change());
        let (new, other, system) = (limits("rpm:7"), on("key", "other"), limits("rpm:9"));
        let done = tokio::join!(
            first.set_limits(&level, &new, &one),
            second.set_flag(&level, Some(Flag::Enabled), &two),
            third.set_limits(&other, &new, &three),
            fourth.set_limits(&Level::System, &system, &four),
        );
        assert!(
            done.0.is_ok() && done.1.is_ok() && done.2.is_ok() && done.3.is_ok(),
            "seed {seed}: {done:?}"
        );
        let stored = fair.level(&level).await.unwrap().unwrap();
        assert_eq!(
            (stored.limits[0].capacity(), stored.flag),
            (7, Some(Flag::Enabled)),
            "seed {seed}"
        );
        assert_eq!(
            (counted(&rig, "gpt-4"), counted(&rig, "other")),
            (Some(1), Some(1)),
            "seed {seed}"
        );
        assert_eq!(audit_of(&fair, AuditSubject::Entity(id("key"))).await.len(), 3, "seed {seed}");
    }
}

/// Whoever says which version they saw changes that version or none.
#[tokio::test]
async fn of_those_who_saw_the_same_version_one_wins() {
    for seed in 0..SEEDS {
        let (rig, stores) = admins(seed).await;
        let fair = rig.store().await;
        fair.create_entity(&new_entity("key", None), &rig.change()).await.unwrap();
        let version =
            fair.set_limits(&Level::System, &limits("rpm:1"), &rig.change()).await.unwrap();
        let changed = stores.iter().enumerate().map(|(admin, store)| {
            let (update, change, second) =
                (renamed(&format!("by {admin}")), rig.change(), rig.change());
            let mut new = limits(&format!("rpm:{}", admin + 10));
            new.expected_version = Some(version);
            async move {
                let renamed = store.update_entity(&id("key"), 1, &update, &change).await;
                (renamed, store.set_limits(&Level::System, &new, &second).await)
            }
        });
        let results = join_all(changed).await;
        let winner = |won: &dyn Fn(usize) -> Result<(), StoreErrorKind>| {
            let won: Vec<Result<(), StoreErrorKind>> = (0..results.len()).map(won).collect();
            let winners: Vec<usize> = (0..won.len()).filter(|admin| won[*admin].is_ok()).collect();
            assert!(
                won.iter().all(|won| matches!(won, Ok(()) | Err(StoreErrorKind::Conflict))),
                "seed {seed}: {won:?}"
            );
            assert_eq!(winners.len(), 1, "seed {seed}: {won:?}");
            winners[0]
        };
        let entity = fair.entity(&id("key")).await.unwrap().unwrap();
        let renamed =
            winner(&|admin| results[admin].0.as_ref().map(drop).map_err(|error| error.kind()));
        assert_eq!((entity.name, entity.version), (format!("by {renamed}"), 2), "seed {seed}");
        let limited =
            winner(&|admin| results[admin].1.as_ref().map(drop).map_err(|error| error.kind()));
        let stored = fair.level(&Level::System).await.unwrap().unwrap();
        assert_eq!(
            stored.limits[0].capacity(),
            u64::try_from(limited).unwrap() + 10,
            "seed {seed}"
        );
        assert_eq!(
            audit_of(&fair, AuditSubject::Entity(id("key"))).await.len(),
            2,
            "seed {seed}: created, and renamed once"
        );
    }
}

#[tokio::test]
async fn an_entity_and_a_name_are_given_once() {
    for seed in 0..SEEDS {
        let (rig, stores) = admins(seed).await;
        let created = stores.iter().enumerate().map(|(admin, store)| {
            let (mut new, change, second) = (new_entity("key", None), rig.change(), rig.change());
            new.name = format!("by {admin}");
            let (name, namespace) =
                ("team".parse().unwrap(), format!("team-{admin}").parse().unwrap());
            async move {
                let created = store.create_entity(&new, &change).await;
                (created, store.register_namespace(&name, &namespace, &second).await)
            }
        });
        let results = join_all(created).await;
        let fair = rig.store().await;
        let winners: Vec<String> = results
            .iter()
            .filter_map(|(created, _)| Some(created.as_ref().ok()?.name.clone()))
            .collect();
        assert_eq!(winners, [fair.entity(&id("key")).await.unwrap().unwrap().name], "seed {seed}");
        assert!(
            results
                .iter()
                .filter_map(|(created, _)| created.as_ref().err())
                .all(|error| error.kind() == StoreErrorKind::AlreadyExists)
        );
        // Whoever registers a name that is there is told whose it is.
        let registered = fair.namespace(&"team".parse().unwrap()).await.unwrap().unwrap();
        for (_, namespace) in &results {
            assert_eq!(namespace.as_ref().unwrap().id, registered.id, "seed {seed}");
        }
        let ids = rig
            .table
            .items()
            .iter()
            .filter(|item| item["SK"].as_s().unwrap().starts_with("#NSID#team"))
            .count();
        assert!(ids <= 1, "seed {seed}: {ids} records for one namespace");
    }
}

/// Begins some polls later than the others: what is short must not always be over before what is
/// long.
async fn late<T>(polls: u64, call: impl Future<Output = T>) -> T {
    const POLLS_MAX: u64 = 50;
    for _ in 0..polls % POLLS_MAX {
        tokio::task::yield_now().await;
    }
    call.await
}

/// A parent goes, or a child comes: never a child of nobody.
#[tokio::test]
async fn no_child_is_left_without_its_parent() {
    let mut deletions = 0;
    for seed in 0..SEEDS {
        let (rig, stores) = admins(seed).await;
        let fair = rig.store().await;
        fair.create_entity(&new_entity("org", None), &rig.change()).await.unwrap();
        let [first, second, third, fourth] = &stores[..] else { panic!("four administrators") };
        let (one, two, three, four) = (rig.change(), rig.change(), rig.change(), rig.change());
        let (organisation, child, brother) =
            (id("org"), new_entity("child", Some("org")), new_entity("brother", Some("org")));
        let level = Level::Entity(organisation.clone());
        let new = limits("rpm:1");
        let (deleted, born, also, limited) = tokio::join!(
            first.delete_entity(&organisation, &one),
            late(seed, second.create_entity(&child, &two)),
            late(2 * seed, third.create_entity(&brother, &three)),
            fourth.set_limits(&level, &new, &four),
        );
        if let Err(error) = limited {
            assert!(
                error.kind() == StoreErrorKind::State && error.message().contains("being deleted"),
                "seed {seed}: {error}"
            );
        }
        let there = fair.entity(&organisation).await.unwrap().is_some();
        assert_eq!(there, deleted.is_err(), "seed {seed}: {deleted:?}");
        for (created, name) in [(&born, "child"), (&also, "brother")] {
            assert_eq!(
                fair.entity(&id(name)).await.unwrap().is_some(),
                created.is_ok(),
                "seed {seed}"
            );
            assert!(created.is_err() || there, "seed {seed}: {name} has no parent");
        }
        if let Err(error) = &deleted {
            assert!(
                matches!(error.kind(), StoreErrorKind::State | StoreErrorKind::Busy),
                "seed {seed}: {error}"
            );
        }
        deletions += u32::from(deleted.is_ok());
        // Limits do not need an entity: they are counted whoever was first.
        let expected = fair.level(&level).await.unwrap().map(|_| 1);
        assert_eq!(counted(&rig, "_default_"), expected, "seed {seed}");
    }
    assert!(
        (1..u32::try_from(SEEDS).unwrap()).contains(&deletions),
        "{deletions} of {SEEDS} were deleted: nothing was tried"
    );
}

/// A registry that another writer has left without a count does not stop anybody.
#[tokio::test]
async fn a_count_that_is_missing_or_wrong_is_no_obstacle() {
    let rig = Rig::new(EvalOptions::new()).await;
    let store = rig.store().await;
    for stored in [None, Some(0), Some(-3)] {
        store.set_limits(&on("key", "gpt-4"), &limits("rpm:1"), &rig.change()).await.unwrap();
        let mut registry = rig.table.get(&keys::entity_config_resources(&rig.namespace)).unwrap();
        registry.remove("gpt-4");
        registry.extend(stored.map(|count| ("gpt-4".to_owned(), number(count))));
        rig.table.insert(&registry);
        assert!(store.delete_limits(&on("key", "gpt-4"), &rig.change()).await.unwrap());
        assert_eq!(counted(&rig, "gpt-4"), None);
    }
}

/// A deletion lands between the look and the write of somebody who creates the entity anew: it
/// begins behind that one's version.
#[tokio::test]
async fn an_entity_created_beside_a_deletion_begins_behind_it() {
    let rig = Rig::new(EvalOptions::new()).await;
    let fair = rig.store().await;
    fair.create_entity(&new_entity("user", None), &rig.change()).await.unwrap();
    for version in 1..3 {
        fair.update_entity(&id("user"), version, &renamed("another"), &rig.change()).await.unwrap();
    }
    let (record, versions) =
        (keys::entity(&rig.namespace, &id("user")), keys::entity_versions(&rig.namespace));
    let before = rig.table.get(&record).unwrap();
    fair.delete_entity(&id("user"), &rig.change()).await.unwrap();
    let counted = rig.table.get(&versions).unwrap();
    // As it was before the deletion.
    rig.table.insert(&before);
    rig.table.remove(&versions);
    let (has_landed, table) = (AtomicBool::new(false), rig.table.clone());
    let gate = move |_, point| {
        if point == Point::Before(Operation::Transact) && !has_landed.swap(true, Ordering::SeqCst) {
            table.remove(&record);
            table.insert(&counted);
        }
        0
    };
    let store = rig.client(rig.table.client(1).with_gate(Arc::new(gate)), |_| {}).await;
    let created = store.create_entity(&new_entity("user", None), &rig.change()).await.unwrap();
    assert!(created.version > 3, "version {} comes back", created.version);
}
