//! Deleting entities and purging namespaces: recorded first, refused without a trace, resumed after
//! any interruption.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use zae_limiter_core::{AuditAction, AuditSubject, Flag, Milli, Take};
use zae_limiter_dynamodb::table::{Item, Table, number, text};
use zae_limiter_dynamodb::{DynamoOptions, DynamoStore};
use zae_limiter_store::{
    BucketStore, Change, Clock as _, ConfigStore, ConsumeOutcome, ConsumeRequest, DeletedEntity,
    Level, LimitsInForce, MemberConfig, MemberKey, MemberTake, NamespaceStore, StoreError,
    StoreErrorKind,
};
use zae_limiter_testkit::table::{EvalOptions, Fate, Faults, Operation, Point};

use super::{Rig, audit_of, id, is_audit, keys, limits, new_entity, on, renamed, take, writes};

/// An entity with strict limits of its own, on a table whose defaults are generous.
async fn strict(rig: &Rig) -> DynamoStore {
    let store = rig.store().await;
    store.set_limits(&Level::System, &limits("rpm:1000000"), &rig.change()).await.unwrap();
    store.create_entity(&new_entity("user", None), &rig.change()).await.unwrap();
    store.set_limits(&Level::Entity(id("user")), &limits("rpm:10"), &rig.change()).await.unwrap();
    store.set_limits(&on("user", "gpt-4"), &limits("rpm:5"), &rig.change()).await.unwrap();
    take(rig, &store, "user", "gpt-4").await;
    rig.table.take_journal();
    store
}

async fn resolved(store: &DynamoStore, resource: &str) -> MemberConfig {
    let (entity, resource) = (id("user"), resource.parse().unwrap());
    store
        .resolve(&[MemberKey { entity: &entity, resource: &resource }])
        .await
        .unwrap()
        .members
        .remove(0)
}

/// Whether a request of 500 tokens, far beyond the entity's own limits, is granted by what is
/// stored now.
async fn is_lifted(rig: &Rig, resource: &str) -> bool {
    let store = rig.store().await;
    let found = resolved(&store, resource).await;
    let (Some((stored, source)), None) = (found.limits, found.blocked_by) else { return false };
    let in_force = LimitsInForce::new(stored.to_vec(), source);
    let (entity, resource) = (id("user"), resource.parse().unwrap());
    let takes = [Take { limit: 0, amount: Milli(500_000) }];
    let members = [MemberTake {
        entity: &entity,
        resource: &resource,
        limits: &in_force,
        takes: &takes,
        absent: &[],
    }];
    let outcome = store.consume(&ConsumeRequest::new(&members, rig.clock.now())).await.unwrap();
    matches!(outcome, ConsumeOutcome::Granted(_))
}

fn everything(rig: &Rig) -> BTreeMap<(String, String), Item> {
    let name = |item: &Item, part: &str| item[part].as_s().unwrap().clone();
    rig.table
        .items()
        .into_iter()
        .map(|item| ((name(&item, "PK"), name(&item, "SK")), item))
        .collect()
}

/// A child that comes while its parent is being deleted: the deletion is refused, and nothing at
/// all has happened.
#[tokio::test]
async fn a_refused_deletion_has_changed_nothing() {
    let rig = Rig::new(EvalOptions::new().journal()).await;
    let store = strict(&rig).await;
    let events = audit_of(&store, AuditSubject::Entity(id("user"))).await;
    // The child comes after the record was read, before the first write.
    let (came, table, record) =
        (AtomicBool::new(false), rig.table.clone(), keys::entity(&rig.namespace, &id("user")));
    let mut child = table.get(&record).unwrap();
    for (name, value) in
        [("PK", "ENTITY#child"), ("GSI1PK", "PARENT#user"), ("GSI4SK", "ENTITY#child")]
    {
        child.insert(name.to_owned(), text(format!("{}/{value}", rig.namespace)));
    }
    for (name, value) in [("GSI1SK", "CHILD#child"), ("entity_id", "child"), ("parent_id", "user")]
    {
        child.insert(name.to_owned(), text(value));
    }
    let gate = move |_, point| {
        let is_write = matches!(point, Point::Before(Operation::Transact | Operation::DeleteBatch));
        if is_write && !came.swap(true, Ordering::SeqCst) {
            let mut parent = table.get(&record).unwrap();
            parent.insert("cv".to_owned(), number(1));
            table.insert(&parent);
            table.insert(&child);
        }
        0
    };
    let admin = rig.client(rig.table.client(1).with_gate(Arc::new(gate)), |_| {}).await;
    let before = everything(&rig);
    let error = admin.delete_entity(&id("user"), &rig.change()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::State, "{error}");
    let mut after = everything(&rig);
    after.retain(|key, item| before.get(key) != Some(item));
    let changed: Vec<_> = after.keys().map(|(pk, _)| pk.rsplit('/').next().unwrap()).collect();
    assert_eq!(
        changed,
        ["ENTITY#child", "ENTITY#user"],
        "the child that came, and the count of children: {after:#?}"
    );
    assert_eq!(everything(&rig).len(), before.len() + 1);
    assert_eq!(audit_of(&store, AuditSubject::Entity(id("user"))).await, events);
    assert!(
        !is_lifted(&rig, "gpt-4").await && !is_lifted(&rig, "other").await,
        "the limits are there"
    );
}

/// Whatever write the deletion ends at: its order is in the log, no limit is lifted, a disabled
/// entity stays disabled, and the next deletion comes to the end.
#[tokio::test]
async fn a_deletion_cut_off_anywhere_lifts_nothing_and_is_resumed() {
    for is_disabled in [false, true] {
        let mut cuts = 0;
        loop {
            let rig = Rig::new(EvalOptions::new().journal()).await;
            let fair = strict(&rig).await;
            if is_disabled {
                fair.set_flag(&Level::Entity(id("user")), Some(Flag::Disabled), &rig.change())
                    .await
                    .unwrap();
                rig.table.take_journal();
            }
            let mut left = cuts;
            let faults = Faults::by(move |asked| {
                left -= i32::from(asked.operation().writes());
                if left < 0 { Fate::Unreachable } else { Fate::Pass }
            });
            let (admin, change) =
                (rig.client(rig.table.client(1).with_faults(faults), |_| {}).await, rig.change());
            let interrupted = admin.delete_entity(&id("user"), &change).await;
            let calls = writes(&rig);
            let is_told = calls.first().is_some_and(|call| {
                call.changes.iter().any(|made| is_audit(made.after.as_ref(), &change))
            });
            assert!(is_told || calls.is_empty(), "the first write is the order: {calls:#?}");
            if interrupted.is_ok() {
                assert!(cuts >= 3, "ordered, buckets, finished: {cuts}");
                break;
            }
            assert!(
                !is_lifted(&rig, "gpt-4").await && !is_lifted(&rig, "other").await,
                "after {cuts} writes"
            );
            let is_refused = resolved(&fair, "gpt-4").await.blocked_by.is_some();
            assert_eq!(
                is_refused,
                is_disabled || !calls.is_empty(),
                "from the order on it is refused, after {cuts} writes"
            );
            assert!(fair.entity(&id("user")).await.unwrap().is_some(), "the record goes last");
            fair.delete_entity(&id("user"), &rig.change()).await.unwrap();
            let partition = format!("{}/ENTITY#user", rig.namespace);
            assert!(!rig.table.items().iter().any(|item| item["PK"].as_s().unwrap() == &partition));
            assert!(
                fair.resources_with_entity_limits(&Default::default())
                    .await
                    .unwrap()
                    .items
                    .is_empty(),
                "after {cuts} writes"
            );
            cuts += 1;
        }
    }
}

#[tokio::test]
async fn nobody_changes_an_entity_that_is_being_deleted() {
    let rig = Rig::new(EvalOptions::new()).await;
    let fair = strict(&rig).await;
    let mut orders = 1;
    let faults = Faults::by(move |asked| {
        orders -= i32::from(asked.operation().writes());
        if orders < 0 { Fate::Unreachable } else { Fate::Pass }
    });
    let admin = rig.client(rig.table.client(1).with_faults(faults), |_| {}).await;
    let error = admin.delete_entity(&id("user"), &rig.change()).await.unwrap_err();
    assert!(error.message().contains("delete it again"), "{error}");
    let before = everything(&rig);
    let refused = |result: Result<(), StoreError>| {
        let error = result.unwrap_err();
        assert!(
            error.kind() == StoreErrorKind::State && error.message().contains("being deleted"),
            "{error}"
        );
    };
    let (own, change) = (on("user", "gpt-4"), || rig.change());
    refused(fair.set_limits(&own, &limits("rpm:900"), &change()).await.map(drop));
    refused(fair.set_limits(&on("user", "new"), &limits("rpm:900"), &change()).await.map(drop));
    refused(fair.delete_limits(&own, &change()).await.map(drop));
    refused(fair.set_flag(&own, Some(Flag::Enabled), &change()).await.map(drop));
    refused(fair.create_entity(&new_entity("child", Some("user")), &change()).await.map(drop));
    refused(fair.create_entity(&new_entity("user", None), &change()).await.map(drop));
    refused(fair.update_entity(&id("user"), 1, &renamed("another"), &change()).await.map(drop));
    assert_eq!(everything(&rig), before);
    // Others go on.
    fair.set_limits(&on("other", "gpt-4"), &limits("rpm:900"), &change()).await.unwrap();
    fair.set_limits(&Level::System, &limits("rpm:900"), &change()).await.unwrap();
}

/// The check that the entity stays is part of the write, not only of the read before it.
#[tokio::test]
async fn a_change_that_was_read_before_the_mark_is_not_made_after_it() {
    for deed in ["set", "child", "rename"] {
        let rig = Rig::new(EvalOptions::new()).await;
        strict(&rig).await;
        let (marked, table, record) =
            (AtomicBool::new(false), rig.table.clone(), keys::entity(&rig.namespace, &id("user")));
        let gate = move |_, point| {
            if point == Point::Before(Operation::Transact) && !marked.swap(true, Ordering::SeqCst) {
                let mut item = table.get(&record).unwrap();
                item.insert("deleting".to_owned(), text("event"));
                table.insert(&item);
            }
            0
        };
        let store = rig.client(rig.table.client(1).with_gate(Arc::new(gate)), |_| {}).await;
        let error = match deed {
            "set" => store
                .set_limits(&on("user", "new"), &limits("rpm:900"), &rig.change())
                .await
                .map(drop),
            "child" => store
                .create_entity(&new_entity("child", Some("user")), &rig.change())
                .await
                .map(drop),
            _ => store
                .update_entity(&id("user"), 1, &renamed("another"), &rig.change())
                .await
                .map(drop),
        };
        let error = error.unwrap_err();
        assert!(
            error.kind() == StoreErrorKind::State && error.message().contains("being deleted"),
            "{deed}: {error}"
        );
    }
}

/// What is there when a deletion of before comes late.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Anew {
    Ours,
    /// Its own deletion has begun as well.
    Leaving,
    /// The Python package makes records without a mark of their own.
    Python,
}

/// Deleted by one, created again by another: whoever comes late with the first deletion touches
/// nothing of the new entity.
#[tokio::test]
async fn a_late_deletion_spares_the_entity_created_anew() {
    for anew in [Anew::Ours, Anew::Leaving, Anew::Python] {
        late_deletions(anew).await;
    }
}

/// A record as the Python package would have made it.
fn as_by_python(rig: &Rig) {
    let key = keys::entity(&rig.namespace, &id("user"));
    let mut record = rig.table.get(&key).unwrap();
    record.remove("pinc");
    rig.table.insert(&record);
}

async fn late_deletions(anew: Anew) {
    for late_at in 1..6 {
        let rig = Rig::new(EvalOptions::new().journal()).await;
        let fair = strict(&rig).await;
        if anew == Anew::Python {
            as_by_python(&rig);
        }
        let mut left = late_at;
        let faults = Faults::by(move |asked| {
            left -= i32::from(asked.operation().writes());
            // Still on its way when its sender has given up.
            if left == 0 {
                Fate::Late(u32::MAX)
            } else if left < 0 {
                Fate::Unreachable
            } else {
                Fate::Pass
            }
        });
        let slow = rig.client(rig.table.client(1).with_faults(faults), |_| {}).await;
        let first = slow.delete_entity(&id("user"), &rig.change()).await;
        if first.is_ok() {
            assert!(late_at > 3, "ordered, buckets, finished");
            return;
        }
        fair.delete_entity(&id("user"), &rig.change()).await.unwrap();
        fair.create_entity(&new_entity("user", None), &rig.change()).await.unwrap();
        fair.set_limits(&on("user", "gpt-4"), &limits("rpm:5"), &rig.change()).await.unwrap();
        take(&rig, &fair, "user", "gpt-4").await;
        if anew == Anew::Python {
            as_by_python(&rig);
        } else if anew == Anew::Leaving {
            let mut orders = 1;
            let faults = Faults::by(move |asked| {
                orders -= i32::from(asked.operation().writes());
                if orders < 0 { Fate::Unreachable } else { Fate::Pass }
            });
            let admin = rig.client(rig.table.client(2).with_faults(faults), |_| {}).await;
            admin.delete_entity(&id("user"), &rig.change()).await.unwrap_err();
        }
        let before = everything(&rig);
        assert!(rig.table.land_all() > 0, "something was on its way");
        let now = everything(&rig);
        let lost: Vec<_> = before.keys().filter(|key| !now.contains_key(*key)).collect();
        assert!(lost.is_empty(), "{anew:?}, late at write {late_at}: {lost:?}");
        assert!(!is_lifted(&rig, "gpt-4").await);
        let is_refused = resolved(&fair, "gpt-4").await.blocked_by.is_some();
        assert_eq!(
            is_refused,
            anew == Anew::Leaving,
            "{anew:?}, late at write {late_at}: it is not marked"
        );
    }
    panic!("the deletion never came to an end");
}

/// The same order once more, after its answer was lost, is the same order.
#[tokio::test]
async fn a_deletion_ordered_twice_is_one() {
    let rig = Rig::new(EvalOptions::new()).await;
    let (store, change) = (strict(&rig).await, rig.change());
    let deleted = store.delete_entity(&id("user"), &change).await.unwrap();
    assert_eq!(deleted, DeletedEntity { buckets: 1, configs: 2 });
    assert_eq!(
        store.delete_entity(&id("user"), &change).await.unwrap(),
        deleted,
        "as it was told before"
    );
    store.create_entity(&new_entity("user", None), &rig.change()).await.unwrap();
    assert_eq!(
        store.delete_entity(&id("user"), &change).await.unwrap(),
        deleted,
        "an entity created since is another one"
    );
    assert!(store.entity(&id("user")).await.unwrap().is_some());
    let events = audit_of(&store, AuditSubject::Entity(id("user"))).await;
    let told: Vec<_> =
        events.iter().filter(|event| event.action == AuditAction::EntityDeleted).collect();
    assert_eq!(told.len(), 1);
    let detail = |name: &str| {
        told[0].details.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    };
    assert_eq!(
        (detail("complete"), detail("buckets"), detail("configs")),
        (Some("true"), Some("1"), Some("2"))
    );
}

/// More configurations than fit into one transaction: takes are refused while some of them are
/// gone.
#[tokio::test]
async fn a_deletion_in_several_transactions_never_shows_half_of_the_limits() {
    const CONFIGS: usize = 205;
    let mut cuts = 1;
    loop {
        let rig = Rig::new(EvalOptions::new().journal()).await;
        let fair = strict(&rig).await;
        for index in 2..CONFIGS {
            fair.set_limits(&on("user", &format!("r-{index}")), &limits("rpm:5"), &rig.change())
                .await
                .unwrap();
        }
        let mut left = cuts;
        let faults = Faults::by(move |asked| {
            left -= i32::from(asked.operation().writes());
            if left < 0 { Fate::Unreachable } else { Fate::Pass }
        });
        let admin = rig.client(rig.table.client(1).with_faults(faults), |_| {}).await;
        let interrupted = admin.delete_entity(&id("user"), &rig.change()).await;
        if let Ok(deleted) = interrupted {
            assert_eq!(deleted.configs, CONFIGS as u64);
            assert_eq!(cuts, 5, "ordered, the bucket, three parts of the configuration");
            return;
        }
        for resource in ["gpt-4", "r-2", "r-150", "r-204"] {
            assert!(
                resolved(&fair, resource).await.blocked_by.is_some(),
                "{resource} after {cuts} writes"
            );
        }
        let rest = fair.delete_entity(&id("user"), &rig.change()).await.unwrap();
        assert!(rest.configs <= CONFIGS as u64);
        assert!(
            fair.resources_with_entity_limits(&Default::default()).await.unwrap().items.is_empty(),
            "after {cuts} writes"
        );
        cuts += 1;
    }
}

/// A deletion that several order at once ends once, and every order is told.
#[tokio::test]
async fn several_deletions_at_once_are_all_told() {
    let rig = Rig::new(EvalOptions::new()).await;
    let (one, two) = (strict(&rig).await, rig.store().await);
    let (first, second) = (rig.change(), rig.change());
    let user = id("user");
    let (a, b) = tokio::join!(one.delete_entity(&user, &first), two.delete_entity(&user, &second));
    for result in [&a, &b] {
        assert!(
            result.as_ref().is_ok()
                || result.as_ref().is_err_and(|error| error.kind() == StoreErrorKind::NotFound),
            "{result:?}"
        );
    }
    assert!(a.is_ok() || b.is_ok());
    assert_eq!(one.entity(&id("user")).await.unwrap(), None);
    let told = audit_of(&one, AuditSubject::Entity(id("user"))).await;
    let orders = told.iter().filter(|event| event.action == AuditAction::EntityDeleted).count();
    assert_eq!(orders, usize::from(a.is_ok()) + usize::from(b.is_ok()));
}

/// A namespace that was deleted, with something in it.
async fn deleted_team(rig: &Rig) -> DynamoStore {
    let store = rig.store().await;
    store
        .register_namespace(&"team".parse().unwrap(), &"team-id".parse().unwrap(), &rig.change())
        .await
        .unwrap();
    let team = store.in_namespace(&"team".parse().unwrap()).await.unwrap();
    team.create_entity(&new_entity("user", None), &rig.change()).await.unwrap();
    team.set_limits(&on("user", "gpt-4"), &limits("rpm:5"), &rig.change()).await.unwrap();
    store.delete_namespace(&"team".parse().unwrap(), &rig.change()).await.unwrap();
    rig.table.take_journal();
    store
}

fn of_team(rig: &Rig) -> usize {
    rig.table
        .items()
        .iter()
        .filter(|item| item["PK"].as_s().unwrap().starts_with("team-id/"))
        .count()
}

async fn is_told(store: &DynamoStore, change: &Change) -> bool {
    audit_of(store, AuditSubject::System).await.iter().any(|event| event.id == change.event)
}

/// Whatever write a purge ends at: who ordered it is in the log before anything is gone, and the
/// next purge goes on.
#[tokio::test]
async fn a_purge_cut_off_anywhere_is_told_and_resumed() {
    let team = "team-id".parse().unwrap();
    for cuts in 0..40 {
        let rig = Rig::new(EvalOptions::new().journal()).await;
        let fair = deleted_team(&rig).await;
        let records = of_team(&rig);
        let mut left = cuts;
        let faults = Faults::by(move |asked| {
            left -= i32::from(asked.operation().writes());
            if left < 0 { Fate::Unreachable } else { Fate::Pass }
        });
        let (admin, change) =
            (rig.client(rig.table.client(1).with_faults(faults), |_| {}).await, rig.change());
        let purged = admin.purge_namespace(&team, &change).await;
        if let Ok(purged) = &purged {
            assert!(cuts >= 3, "ordered, records, finished");
            assert_eq!(of_team(&rig), 0);
            assert!(is_told(&fair, &change).await);
            // The answer was lost, and the caller asks again: done is done.
            assert_eq!(fair.purge_namespace(&team, &change).await.unwrap(), *purged);
            let left = rig.table.get(&keys::purged_namespace("team-id")).unwrap();
            assert_eq!(
                left["purged_by"].as_s().unwrap(),
                "ops",
                "who ordered it stays with the id"
            );
            return;
        }
        assert_eq!(is_told(&fair, &change).await, cuts > 0);
        assert!(cuts > 0 || of_team(&rig) == records, "nothing is gone that nobody has ordered");
        if cuts == 0 {
            fair.recover_namespace(&team, &rig.change()).await.unwrap();
            continue;
        }
        let error = fair.recover_namespace(&team, &rig.change()).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::State, "{error}");
        let again = rig.change();
        fair.purge_namespace(&team, &again).await.unwrap();
        assert!(is_told(&fair, &again).await && of_team(&rig) == 0, "after {cuts} writes");
    }
    panic!("the purge never came to an end");
}

/// Without a namespace to tell it in, the record itself says who ordered the purge.
#[tokio::test]
async fn a_purge_without_a_log_is_signed() {
    let rig = Rig::new(EvalOptions::new()).await;
    let store = rig.store().await;
    store.delete_namespace(&"default".parse().unwrap(), &rig.change()).await.unwrap();
    let id = rig.namespace.parse().unwrap();
    let mut left = 1;
    let faults = Faults::by(move |asked| {
        left -= i32::from(asked.operation().writes());
        if left < 0 { Fate::Unreachable } else { Fate::Pass }
    });
    let table: Arc<dyn Table> = Arc::new(rig.table.client(1).with_faults(faults));
    let registry = DynamoStore::registry_on(table, DynamoOptions::new()).await.unwrap();
    registry.purge_namespace(&id, &rig.change()).await.unwrap_err();
    let record = rig.table.get(&keys::namespace_by_id(&rig.namespace)).unwrap();
    assert_eq!(
        (record["status"].as_s().unwrap().as_str(), record["purged_by"].as_s().unwrap().as_str()),
        ("purging", "ops")
    );
}
