//! A slow limit beside one that is refilled all the time: each refill keeps what it rounds off.

use super::*;

/// How long a bucket is touched, in ms: long enough for two and a half tokens of ten a day.
const SIX_HOURS_MS: u64 = 21_600_000;

/// An empty bucket of ten a day beside a limit that gets a token every five seconds.
async fn slow_beside_fast() -> (Hot, DynamoStore) {
    let hot = Hot::new(&["rpd:10/day", "rpm:12/min"]).await;
    let store = hot.process().await;
    Hot::granted(hot.ask(&store, &[10, 12]).await);
    (hot, store)
}

/// Five seconds are worth half a millitoken. The Python package rounds it off each time: nothing is
/// refilled, for good.
#[tokio::test]
async fn a_slow_limit_that_is_touched_often_is_refilled_whole() {
    let (hot, store) = slow_beside_fast().await;
    for _ in 0..SIX_HOURS_MS / 5_000 {
        hot.advance(5_000);
        Hot::granted(hot.ask_fast(&store).await);
    }
    assert_eq!(number(&hot.shard(0), "b_rpd_tk"), 2_500);
    assert_eq!(number(&hot.shard(0), "b_rpm_tk"), 0);
}

/// The early refills of an aggregator round nothing off either.
#[tokio::test]
async fn a_slow_limit_under_early_refills_is_refilled_whole() {
    let (hot, _) = slow_beside_fast().await;
    let (upkeep, name, taken) = (hot.upkeep(), hot.name(), [("rpm".to_owned(), 13_000)].into());
    let mut refills = 0;
    for _ in 0..SIX_HOURS_MS / 5_000 {
        hot.advance(5_000);
        let mut item = hot.shard(0);
        refills += u32::from(upkeep.refill(&name, 0, &item, &taken).await.unwrap());
        item = hot.shard(0);
        item.insert("b_rpm_tk".to_owned(), zae_limiter_dynamodb::table::number(0));
        hot.rig.table.insert(&item);
    }
    assert_eq!(refills, 4_320, "each wrote");
    assert_eq!(number(&hot.shard(0), "b_rpd_tk"), 2_500);
}

impl Hot {
    /// Takes one of the second limit and leaves the first alone.
    async fn ask_fast(&self, store: &DynamoStore) -> Result<ConsumeOutcome, StoreError> {
        let takes = [Take { limit: 1, amount: Milli::from_tokens(1) }];
        let member = MemberTake {
            entity: &self.entity,
            resource: &self.resource,
            limits: &self.limits,
            takes: &takes,
            absent: &[],
        };
        store.consume(&ConsumeRequest::new(&[member], self.now())).await
    }
}
