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
