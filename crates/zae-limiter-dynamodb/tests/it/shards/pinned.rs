//! Limits that are pinned: all of them is on shard 0, whoever asks and settles.

use super::*;
use zae_limiter_testkit::table::{Asked, Fate, Faults};

/// A limit that is pinned is all on shard 0, and so is its debt: who asks for nothing of it is
/// refused as well, and not by another shard that knows nothing of the debt.
#[tokio::test]
async fn a_debt_of_a_pinned_limit_refuses_who_asks_for_nothing_of_it() {
    let hot = Hot::new(&["img:10/hour", "rpm:100000/hour"]).await;
    let store =
        hot.process_on(hot.rig.table.clone(), |options| options.share_min_milli = 10_000).await;
    Hot::granted(hot.ask(&store, &[0, 1]).await);
    let mut options = DynamoOptions::new();
    options.clock = Arc::new(hot.rig.clock.clone());
    let upkeep = Upkeep::new(Arc::new(hot.rig.table.clone()), options);
    assert!(upkeep.split(&hot.name(), 0).await.unwrap());
    Hot::granted(hot.ask(&store, &[0, 1]).await);
    hot.adjust(&store, 0, 11).await.unwrap();
    for turn in 0..20 {
        let outcome = hot.ask(&store, &[0, 1]).await.unwrap();
        assert!(!matches!(outcome, ConsumeOutcome::Granted(_)), "turn {turn}: {outcome:?}");
        hot.advance(300);
    }
}

/// A bucket of two shards with `img` all on shard 0, and a process that has seen both.
async fn pinned() -> (Hot, DynamoStore) {
    let hot = Hot::new(&["img:10/hour", "rpm:100000/hour"]).await;
    let store =
        hot.process_on(hot.rig.table.clone(), |options| options.share_min_milli = 10_000).await;
    Hot::granted(hot.ask(&store, &[4, 100]).await);
    let mut options = DynamoOptions::new();
    options.clock = Arc::new(hot.rig.clock.clone());
    let upkeep = Upkeep::new(Arc::new(hot.rig.table.clone()), options);
    assert!(upkeep.split(&hot.name(), 0).await.unwrap());
    hot.peek(&store, &[0, 0]).await;
    (hot, store)
}

/// Changes both limits at shard 1, as a lease does that took there before `img` was pinned.
async fn adjust_both(
    hot: &Hot,
    store: &DynamoStore,
    tokens: [i64; 2],
) -> Result<Adjusted, StoreError> {
    let deltas: Vec<Delta> = (0..)
        .zip(tokens)
        .map(|(limit, tokens)| Delta { limit, amount: Milli(tokens * 1_000) })
        .collect();
    let delta = BucketDelta {
        entity: &hot.entity,
        resource: &hot.resource,
        limits: &hot.limits,
        deltas: &deltas,
        operation: 7,
        take: 0,
        place: 1,
    };
    store.adjust(&[delta], hot.now()).await.remove(0)
}

#[tokio::test]
async fn charges_and_refunds_of_a_pinned_limit_go_to_shard_zero() {
    let (hot, store) = pinned().await;
    let used = |shard: u32| {
        let item = hot.shard(shard);
        (number(&item, "b_img_tc"), number(&item, "b_rpm_tc"))
    };
    assert_eq!((used(0), used(1)), ((4_000, 100_000), (0, 0)));
    adjust_both(&hot, &store, [2, 20]).await.unwrap();
    assert_eq!((used(0), used(1)), ((6_000, 100_000), (0, 20_000)));
    adjust_both(&hot, &store, [-1, -5]).await.unwrap();
    assert_eq!((used(0), used(1)), ((5_000, 100_000), (0, 15_000)));
}

/// Shard 1 is folded, and the process does not know yet: both parts of the charge end on shard 0,
/// and none passes for the other.
#[tokio::test]
async fn both_parts_of_a_charge_that_end_on_one_item_count() {
    let (hot, store) = pinned().await;
    assert!(hot.fold().await);
    adjust_both(&hot, &store, [2, 20]).await.unwrap();
    assert_eq!((hot.sum("b_img_tc"), hot.sum("b_rpm_tc")), (6_000, 120_000));
}

/// An error would have the caller give everything back once more.
#[tokio::test]
async fn what_was_given_back_in_part_is_not_told_as_an_error() {
    let (hot, _) = pinned().await;
    let faults = Faults::by(|asked| match asked {
        Asked::Bucket(write) if write.key.pk.ends_with("#1") => Fate::LostBefore,
        _ => Fate::Pass,
    });
    let store = hot.process_on(hot.rig.table.client(3).with_faults(faults), |_| {}).await;
    hot.peek(&store, &[0, 0]).await;
    assert_eq!(adjust_both(&hot, &store, [-1, -5]).await.unwrap(), Adjusted::Applied);
    assert_eq!((hot.sum("b_img_tc"), hot.sum("b_rpm_tc")), (3_000, 100_000));
    assert_eq!(store.counters().credits_lost, 1);
}

/// Whatever is known of the shards: nothing but one, or all of them.
#[tokio::test]
async fn a_grant_by_one_shard_tells_the_balance_of_the_whole_bucket() {
    let (hot, known) = pinned().await;
    let cold = hot.process().await;
    let mut used = [4, 100];
    for store in [&cold, &known, &known, &known] {
        let grant = Hot::granted(hot.ask(store, &[1, 1]).await);
        used = used.map(|tokens| tokens + 1);
        let told: Vec<i64> = grant.reports.iter().map(|report| report.balance.0).collect();
        assert_eq!(told[0], (10 - used[0]) * 1_000, "pinned: all of it is on shard 0");
        let left = (100_000 - used[1]) * 1_000;
        assert!((left - 1_000..=left + 1_000).contains(&told[1]), "{told:?}, {left} are left");
    }
}
