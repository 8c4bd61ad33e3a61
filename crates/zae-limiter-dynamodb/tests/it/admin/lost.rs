//! Transactions that fail, and transactions whose answer gets lost.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use zae_limiter_core::EntityId;
use zae_limiter_dynamodb::table::{Item, Key};
use zae_limiter_store::StoreErrorKind;
use zae_limiter_testkit::table::{Fate, Faults, Operation, Point, Request};

use super::{ConfigStore, DEEDS, Rig, before, is_audit, perform};

/// Faults for transactions only: the first ones meet these, the others this.
fn transactions(first: Vec<Fate>, then: Fate) -> Faults {
    let mut first = first.into_iter();
    Faults::by(move |asked| match asked.operation() {
        Operation::Transact => first.next().unwrap_or(then),
        _ => Fate::Pass,
    })
}

/// Everything there is.
fn everything(rig: &Rig) -> BTreeMap<(String, String), Item> {
    rig.table.items().into_iter().map(|item| (key_of(&item), item)).collect()
}

#[tokio::test]
async fn a_transaction_that_fails_leaves_neither_change_nor_event() {
    for (fate, kind) in [
        (Fate::Conflict(1), StoreErrorKind::Busy),
        (Fate::Throttled(0), StoreErrorKind::Busy),
        (Fate::NotApplied, StoreErrorKind::Busy),
        (Fate::Unreachable, StoreErrorKind::Unavailable),
        (Fate::LostBefore, StoreErrorKind::Unavailable),
    ] {
        for deed in DEEDS {
            let rig = before(deed).await;
            let items = everything(&rig);
            let client = rig.table.client(1).with_faults(transactions(Vec::new(), fate));
            let store = rig.client(client, |_| {}).await;
            let error = perform(&store, deed, &rig.change()).await.unwrap_err();
            assert_eq!(error.kind(), kind, "{deed} with {fate:?}: {error}");
            assert_eq!(everything(&rig), items, "{deed} with {fate:?} left something behind");
        }
    }
}

fn key_of(item: &Item) -> (String, String) {
    (item["PK"].as_s().unwrap().clone(), item["SK"].as_s().unwrap().clone())
}

/// What the table is after a deed without any faults, save for what depends on the instant.
async fn undisturbed(deed: &str) -> BTreeMap<(String, String), Item> {
    let rig = before(deed).await;
    perform(&rig.store().await, deed, &rig.change()).await.unwrap();
    shape(&rig)
}

/// Everything there is without instants and drawn ids.
fn shape(rig: &Rig) -> BTreeMap<(String, String), Item> {
    let items = rig.table.items();
    let drawn = [
        "config_version",
        "pinc",
        "created_at",
        "deleted_at",
        "timestamp",
        "ttl",
        "rf",
        "rmf",
        "ca",
        "cv",
        "lw",
        "namespace_id",
    ];
    let named = |text: &str| text.replace(&rig.namespace, "ns");
    let shape = |mut item: Item| {
        let key = key_of(&item);
        let of_an_instant = |name: &str| {
            drawn.contains(&name) || ["_tk", "_rm", "_gp"].iter().any(|end| name.ends_with(end))
        };
        item.retain(|name, _| !of_an_instant(name) && !name.contains("PK") && !name.contains("SK"));
        ((named(&key.0), named(&key.1)), item)
    };
    items.into_iter().map(shape).collect()
}

#[tokio::test]
async fn a_lost_reply_is_not_written_twice() {
    for fates in [
        vec![Fate::LostAfter],
        vec![Fate::LostAfter, Fate::LostAfter, Fate::NotApplied],
        vec![Fate::LostBefore, Fate::LostAfter],
        // On its way while the next attempt is made, and landing before, or after it.
        vec![Fate::Late(1)],
        vec![Fate::Late(2)],
    ] {
        for deed in DEEDS {
            let expected = undisturbed(deed).await;
            let rig = before(deed).await;
            let client = rig.table.client(1).with_faults(transactions(fates.clone(), Fate::Pass));
            let (store, change) = (rig.client(client, |_| {}).await, rig.change());
            perform(&store, deed, &change)
                .await
                .unwrap_or_else(|error| panic!("{deed} with {fates:?}: {error}"));
            rig.table.land_all();
            assert_eq!(shape(&rig), expected, "{deed} with {fates:?}");
            let events =
                rig.table.items().into_iter().filter(|item| is_audit(Some(item), &change)).count();
            assert_eq!(events, 1, "{deed} with {fates:?}");
        }
    }
}

/// Every attempt of a transaction carries its token; two transactions never share one.
#[tokio::test]
async fn a_token_stays_with_its_transaction() {
    let rig = before("update").await;
    let client = rig.table.client(1).with_faults(transactions(
        vec![Fate::LostBefore, Fate::Conflict(0), Fate::LostAfter],
        Fate::Pass,
    ));
    let store = rig.client(client, |_| {}).await;
    perform(&store, "update", &rig.change()).await.unwrap();
    perform(&store, "set system", &rig.change()).await.unwrap();
    let transactions = rig.table.take_journal().into_iter().filter_map(|call| match call.request {
        Request::Transact(writes, token) => Some((writes, token)),
        _ => None,
    });
    let transactions: Vec<_> = transactions.collect();
    assert_eq!(transactions.len(), 4 + 1);
    assert!(
        transactions[..4].windows(2).all(|pair| pair[0] == pair[1]),
        "the same legs, the same token: {transactions:#?}"
    );
    assert_ne!(transactions[3].1, transactions[4].1);
}

/// The table remembers a token for ten minutes. Whoever comes back later finds its own event, and
/// knows.
#[tokio::test]
async fn a_token_that_was_forgotten_is_replaced_by_the_event() {
    const LATER_MS: i64 = 11 * 60_000;
    for deed in DEEDS {
        let expected = undisturbed(deed).await;
        let rig = before(deed).await;
        let (seen, table) = (AtomicU32::new(0), rig.table.clone());
        let gate = move |_, point| {
            if point == Point::Before(Operation::Transact)
                && seen.fetch_add(1, Ordering::SeqCst) > 0
            {
                table.set_now_ms(LATER_MS);
            }
            0
        };
        let client = rig
            .table
            .client(1)
            .with_faults(transactions(vec![Fate::LostAfter], Fate::Pass))
            .with_gate(Arc::new(gate));
        let (store, change) = (rig.client(client, |_| {}).await, rig.change());
        perform(&store, deed, &change).await.unwrap_or_else(|error| panic!("{deed}: {error}"));
        assert_eq!(shape(&rig), expected, "{deed}");
    }
}

/// After a crash halfway the entity is still there, and deleting it again goes on where it stopped.
#[tokio::test]
async fn a_deletion_that_was_interrupted_can_be_repeated() {
    let organisation: EntityId = "org".parse().unwrap();
    for calls in 0..40 {
        let rig = before("delete").await;
        let mut left = calls;
        let faults = Faults::by(move |asked| {
            // Everything before it is a read, which changes nothing.
            left -= i32::from(asked.operation().writes());
            if left < 0 { Fate::Unreachable } else { Fate::Pass }
        });
        let store = rig.client(rig.table.client(1).with_faults(faults), |_| {}).await;
        let interrupted = store.delete_entity(&organisation, &rig.change()).await;
        let fair = rig.store().await;
        if interrupted.is_ok() {
            assert!(calls > 1, "buckets, configurations and the record are several writes");
            assert_eq!(fair.entity(&organisation).await.unwrap(), None);
            return;
        }
        assert!(fair.entity(&organisation).await.unwrap().is_some(), "the record goes last");
        fair.delete_entity(&organisation, &rig.change()).await.unwrap();
        let left = |key: &Key| rig.table.get(key).is_some();
        assert!(!left(&rig.bucket("org", "gpt-4")));
        let partition = format!("{}/ENTITY#org", rig.namespace);
        assert!(!rig.table.items().iter().any(|item| item["PK"].as_s().unwrap() == &partition));
        assert!(
            fair.resources_with_entity_limits(&Default::default()).await.unwrap().items.is_empty(),
            "after {calls} writes"
        );
    }
    panic!("the deletion never came to an end");
}
