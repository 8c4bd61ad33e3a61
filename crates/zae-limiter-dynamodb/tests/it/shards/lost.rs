//! Lost answers, conflicts and throttled shards.

use super::*;
use std::sync::atomic::{AtomicU32, Ordering};
use zae_limiter_store::StoreErrorKind;
use zae_limiter_testkit::table::{Asked, Fate, Faults, Operation, Point};

fn is_bucket_write(asked: &Asked<'_>) -> bool {
    matches!(asked.operation(), Operation::Update | Operation::Put)
}

/// Conflicts at nine of ten stand for an item that a thousand others write.
#[tokio::test]
async fn a_split_of_a_hot_item_survives_conflicts() {
    let hot = Hot::new(&["rpm:1000/hour"]).await;
    Hot::granted(hot.ask(&hot.process().await, &[1]).await);
    let turns = AtomicU32::new(0);
    let faults = Faults::by(move |asked| match asked.operation() {
        Operation::Transact => match turns.fetch_add(1, Ordering::Relaxed) % 10 {
            9 => Fate::Pass,
            turn => Fate::Conflict(turn % 2),
        },
        _ => Fate::Pass,
    });
    let mut options = DynamoOptions::new();
    options.clock = Arc::new(hot.rig.clock.clone());
    let upkeep = Upkeep::new(Arc::new(hot.rig.table.client(7).with_faults(faults)), options);
    let mut tries = 0;
    while !upkeep.split(&hot.name(), 0).await.unwrap() {
        tries += 1;
        assert!(tries < 10, "three attempts each");
    }
    assert_eq!(hot.shards().len(), 2);
    assert_eq!(hot.sum("b_rpm_tk"), 999_000);
}

/// Nothing may be taken elsewhere while an attempt may still land here.
#[tokio::test]
async fn a_lost_reply_keeps_the_take_on_its_shard() {
    let hot = Hot::new(&["rpm:1000/hour"]).await;
    Hot::granted(hot.ask(&hot.process().await, &[0]).await);
    hot.split_into(4).await;
    let first = AtomicU32::new(0);
    let faults = Faults::by(move |asked| {
        let lost = is_bucket_write(asked) && first.fetch_add(1, Ordering::Relaxed) == 1;
        if lost { Fate::LostAfter } else { Fate::Pass }
    });
    let store = hot.process_on(hot.rig.table.client(3).with_faults(faults), |_| {}).await;
    // The first write fails and shows the shards; the second lands unheard.
    let grant = Hot::granted(hot.ask(&store, &[1]).await);
    assert_eq!(grant.places.len(), 1);
    assert_eq!(hot.sum("b_rpm_tc"), 1_000, "counted once");
    assert_eq!(store.counters().debits_confirmed, 1);
}

#[tokio::test]
async fn a_gather_whose_reply_is_lost_counts_once() {
    let hot = Hot::new(&["tpm:800/hour"]).await;
    Hot::granted(hot.ask(&hot.process().await, &[0]).await);
    hot.split_into(8).await;
    let first = AtomicU32::new(0);
    let faults = Faults::by(move |asked| {
        let lost =
            asked.operation() == Operation::Transact && first.fetch_add(1, Ordering::Relaxed) == 0;
        if lost { Fate::LostAfter } else { Fate::Pass }
    });
    let store = hot.process_on(hot.rig.table.client(3).with_faults(faults), |_| {}).await;
    let grant = Hot::granted(hot.ask(&store, &[480]).await);
    assert_eq!(places(&grant).iter().map(|(_, milli)| milli).sum::<i64>(), 480_000);
    assert_eq!(hot.sum("b_tpm_tk"), 320_000);
    assert_eq!(hot.sum("b_wcu_tc"), 2_000, "two takes, whatever shards the second took from");
}

/// The table has forgotten the token of a transaction that landed unheard: the second attempt fails
/// on its own nonce, and that is the answer.
#[tokio::test]
async fn a_cancelled_gather_that_shows_our_nonce_is_a_grant() {
    let hot = Hot::new(&["tpm:800/hour"]).await;
    Hot::granted(hot.ask(&hot.process().await, &[0]).await);
    hot.split_into(8).await;
    let first = AtomicU32::new(0);
    let faults = Faults::by(move |asked| {
        let lost =
            asked.operation() == Operation::Transact && first.fetch_add(1, Ordering::Relaxed) == 0;
        if lost { Fate::LostAfter } else { Fate::Pass }
    });
    let (table, later) = (hot.rig.table.clone(), hot.now().plus_ms(3_600_000));
    let sent = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&sent);
    let gate = move |_client: u32, point: Point| {
        if point == Point::Before(Operation::Transact)
            && counted.fetch_add(1, Ordering::Relaxed) == 1
        {
            table.set_now_ms(later.0);
        }
        0
    };
    let table = hot.rig.table.client(3).with_faults(faults).with_gate(Arc::new(gate));
    let store = hot.process_on(table, |_| {}).await;
    let grant = Hot::granted(hot.ask(&store, &[480]).await);
    assert_eq!(places(&grant).iter().map(|(_, milli)| milli).sum::<i64>(), 480_000);
    assert_eq!(sent.load(Ordering::Relaxed), 2);
    assert_eq!(store.counters().debits_confirmed, 1);
    assert_eq!(hot.sum("b_tpm_tk"), 320_000, "once");
}

/// A shard that takes no more writes is left for another one.
#[tokio::test]
async fn a_throttled_shard_zero_is_gone_around() {
    let hot = Hot::new(&["rpm:1000/hour"]).await;
    Hot::granted(hot.ask(&hot.process().await, &[0]).await);
    hot.split_into(4).await;
    let is_root = |asked: &Asked<'_>| format!("{asked:?}").contains("#gpt-4#0");
    let started = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&started);
    let faults = Faults::by(move |asked| {
        let is_late = counted.load(Ordering::Relaxed) > 0;
        let throttled = is_late && is_bucket_write(asked) && is_root(asked);
        if throttled { Fate::NotApplied } else { Fate::Pass }
    });
    let store = hot.process_on(hot.rig.table.client(3).with_faults(faults), |_| {}).await;
    Hot::granted(hot.ask(&store, &[1]).await);
    started.store(1, Ordering::Relaxed);
    for _ in 0..40 {
        let grant = Hot::granted(hot.ask(&store, &[1]).await);
        assert_ne!(places(&grant)[0].0, 0);
    }
}

/// An item that takes a second's writes more than it can is split by the next take, and the take is
/// granted.
#[tokio::test]
async fn a_bucket_whose_room_is_spent_is_split_by_its_takers() {
    let hot = Hot::new(&["rpm:100000/hour"]).await;
    let store = hot.process().await;
    Hot::granted(hot.ask(&store, &[1]).await);
    let mut item = hot.shard(0);
    item.insert("b_wcu_tk".to_owned(), zae_limiter_dynamodb::table::number(-1_100_000));
    hot.rig.table.insert(&item);
    let grant = Hot::granted(hot.ask(&store, &[1]).await);
    assert_eq!(store.counters().splits, 1);
    assert_eq!(hot.shards().len(), 2);
    assert_eq!(places(&grant), [(0, 1_000)]);
    // A process that must not split is told to come back.
    let careful = hot.process_on(hot.rig.table.clone(), |options| options.shards_max = 2).await;
    for shard in 0..2 {
        let mut item = hot.shard(shard);
        item.insert("b_wcu_tk".to_owned(), zae_limiter_dynamodb::table::number(-1_100_000));
        hot.rig.table.insert(&item);
    }
    let outcome = hot.ask(&careful, &[1]).await.unwrap();
    assert!(matches!(outcome, ConsumeOutcome::Contended { .. }), "{outcome:?}");
    assert_eq!(hot.shards().len(), 2);
}

/// Found by the simulator: all shards together were asked for nothing, by a transaction without
/// writes, which the table does not accept.
#[tokio::test]
async fn a_take_of_nothing_from_shards_without_room_is_contended() {
    let hot = Hot::new(&["rpm:1000/hour"]).await;
    Hot::granted(hot.ask(&hot.process().await, &[1]).await);
    hot.split_into(2).await;
    for shard in 0..2 {
        let mut item = hot.shard(shard);
        item.insert("b_wcu_tk".to_owned(), zae_limiter_dynamodb::table::number(-1_100_000));
        hot.rig.table.insert(&item);
    }
    let careful = hot.process_on(hot.rig.table.clone(), |options| options.shards_max = 2).await;
    let outcome = hot.ask(&careful, &[]).await.unwrap();
    assert!(matches!(outcome, ConsumeOutcome::Contended { .. }), "{outcome:?}");
}

/// A role that may take need not be allowed to do more. Upkeep has nothing else to do, and says it.
#[tokio::test]
async fn a_missing_permission_is_an_error_of_upkeep_and_of_no_take() {
    let hot = Hot::new(&["rpm:100000/hour"]).await;
    Hot::granted(hot.ask(&hot.process().await, &[1]).await);
    let denied = || {
        let faults = Faults::by(|asked| match asked {
            Asked::Transact(..) => Fate::Denied,
            _ => Fate::Pass,
        });
        hot.rig.table.client(3).with_faults(faults)
    };
    let upkeep = hot.upkeep_on(denied());
    let split = upkeep.split(&hot.name(), 0).await.unwrap_err();
    let mut item = hot.shard(0);
    item.insert("b_wcu_tk".to_owned(), zae_limiter_dynamodb::table::number(-1_100_000));
    hot.rig.table.insert(&item);
    let outcome = hot.ask(&hot.process_on(denied(), |_| {}).await, &[1]).await.unwrap();
    assert!(matches!(outcome, ConsumeOutcome::Contended { .. }), "{outcome:?}");
    hot.split_into(2).await;
    hot.advance(601_000);
    let fold = upkeep.fold(&hot.name()).await.unwrap_err();
    hot.rig.table.remove(&keys::bucket_of(&hot.rig.namespace, "key", "gpt-4", 1));
    let level = upkeep.level(&hot.name()).await.unwrap_err();
    for error in [split, fold, level] {
        assert_eq!(error.kind(), StoreErrorKind::Denied, "{error}");
    }
}
