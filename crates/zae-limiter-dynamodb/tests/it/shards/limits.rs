//! Limits that change while a bucket has several shards.

use super::*;

/// Limits given with the call, which count whatever is configured.
fn call(text: &str) -> LimitsInForce {
    LimitsInForce::new(vec![text.parse::<Limit>().unwrap()], LimitSource::Call)
}

/// How many shards have this capacity, in tokens.
fn with_capacity(hot: &Hot, tokens: i64) -> usize {
    let has = |item: &Item| number(item, "b_rpm_cp") == tokens * 1_000;
    hot.shards().iter().filter(|item| has(item)).count()
}

/// A charge on a shard that is cut later would be lost with what is cut.
#[tokio::test]
async fn new_limits_reach_every_shard_with_the_first_take() {
    let hot = Hot::new(&["rpm:1000/hour"]).await;
    let store = hot.process().await;
    Hot::granted(hot.ask(&store, &[1]).await);
    hot.split_into(4).await;
    Hot::granted(hot.ask(&store, &[1]).await);
    let grant = Hot::granted(hot.ask_under(&store, &call("rpm:100/hour"), &[1]).await);
    assert_eq!(with_capacity(&hot, 100), 4, "all of them");
    assert_eq!(hot.sum("b_rpm_tk"), 99_000);
    let other = (0..4).find(|shard| places(&grant)[0].0 != *shard).unwrap();
    hot.adjust(&store, other, 20).await.unwrap();
    assert_eq!(hot.sum("b_rpm_tk"), 79_000, "a charge on another shard counts");
}

/// A process that knows nothing of the bucket finds shard 0, and the others behind it.
#[tokio::test]
async fn new_limits_reach_every_shard_by_a_process_that_knew_none() {
    let hot = Hot::new(&["rpm:1000/hour"]).await;
    Hot::granted(hot.ask(&hot.process().await, &[1]).await);
    hot.split_into(4).await;
    Hot::granted(hot.ask_under(&hot.process().await, &call("rpm:100/hour"), &[1]).await);
    assert_eq!(with_capacity(&hot, 100), 4);
}

/// Each take of two callers with limits of their own changes the limits: not of all shards each
/// time.
#[tokio::test]
async fn callers_with_different_limits_do_not_write_all_shards_all_the_time() {
    let hot = Hot::new(&["rpm:1000/hour"]).await;
    let store = hot.process().await;
    Hot::granted(hot.ask(&store, &[1]).await);
    hot.split_into(4).await;
    Hot::granted(hot.ask_under(&store, &call("rpm:100/hour"), &[1]).await);
    Hot::granted(hot.ask_under(&store, &call("rpm:200/hour"), &[1]).await);
    assert_eq!(with_capacity(&hot, 200), 1, "all shards were written a moment ago");
    hot.advance(250);
    Hot::granted(hot.ask_under(&store, &call("rpm:300/hour"), &[1]).await);
    assert_eq!(with_capacity(&hot, 300), 4);
}

/// Takes of the second limit until a refusal; how many there were, with what it was refilled by
/// meanwhile, in millitokens.
async fn drain_second(hot: &Hot, store: &DynamoStore, limits: &LimitsInForce) -> (i64, i64) {
    let (began, mut granted) = (hot.now(), 0);
    for _ in 0..2_000 {
        match hot.ask_under(store, limits, &[0, 1]).await.unwrap() {
            ConsumeOutcome::Granted(_) => granted += 1,
            ConsumeOutcome::Contended { .. } => hot.advance(50),
            ConsumeOutcome::Refused(_) => break,
            other => panic!("{other:?}"),
        }
    }
    (granted, hot.now().since(began) * 400_000 / 3_600_000)
}

fn two_limits() -> LimitsInForce {
    let limits: [Limit; 2] = ["rpm:1000/hour".parse().unwrap(), "tpm:400/hour".parse().unwrap()];
    LimitsInForce::new(limits.to_vec(), LimitSource::Call)
}

#[tokio::test]
async fn a_limit_added_while_sharded_is_divided_and_exact() {
    let hot = Hot::new(&["rpm:1000/hour"]).await;
    let store = hot.process().await;
    Hot::granted(hot.ask(&store, &[1]).await);
    hot.split_into(4).await;
    let both = two_limits();
    Hot::granted(hot.ask_under(&store, &both, &[0, 1]).await);
    let (granted, refilled) = drain_second(&hot, &store, &both).await;
    let seeded: Vec<i64> = hot.shards().iter().map(|item| number(item, "b_tpm_cp")).collect();
    assert_eq!(seeded, [400_000; 4], "on every shard");
    let granted = 1 + granted;
    assert!(granted >= 400 && granted * 1_000 <= 400_000 + refilled, "{granted}, {refilled}");
}

#[tokio::test]
async fn a_limit_removed_and_added_while_sharded_mints_nothing() {
    let hot = Hot::new(&["rpm:1000/hour", "tpm:400/hour"]).await;
    let store = hot.process().await;
    Hot::granted(hot.ask(&store, &[0, 400]).await);
    hot.split_into(4).await;
    let (began, only) = (hot.now(), call("rpm:900/hour"));
    for _ in 0..40 {
        Hot::granted(hot.ask_under(&store, &only, &[1]).await);
        hot.advance(250);
    }
    assert_eq!(with_capacity(&hot, 900), 4, "every shard has heard of it");
    let (granted, _) = drain_second(&hot, &store, &two_limits()).await;
    let refilled = hot.now().since(began) * 400_000 / 3_600_000;
    assert!(granted * 1_000 <= refilled, "{granted}, {refilled} millitokens refilled");
}
