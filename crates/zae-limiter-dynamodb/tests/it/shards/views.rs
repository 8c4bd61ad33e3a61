//! What an operator sees of shards.

use super::*;
use zae_limiter_testkit::table::{Operation, Point};

#[tokio::test]
async fn the_shards_of_a_bucket_are_shown_with_their_shares() {
    let hot = Hot::new(&["rpm:1000/hour", "img:1/hour"]).await;
    let store = hot.process().await;
    assert!(store.shards(&hot.entity, &hot.resource).await.unwrap().is_empty());
    Hot::granted(hot.ask(&store, &[100, 1]).await);
    let alone = store.shards(&hot.entity, &hot.resource).await.unwrap();
    assert_eq!((alone.len(), alone[0].count), (1, 1));
    hot.split_into(4).await;
    let shards = store.shards(&hot.entity, &hot.resource).await.unwrap();
    let of = |name: &str| -> Vec<(i64, i64, i64)> {
        let limits = shards.iter().flat_map(|shard| &shard.limits);
        limits
            .filter(|limit| limit.name.as_str() == name)
            .map(|limit| (limit.capacity.0, limit.balance.0, limit.consumed.0))
            .collect()
    };
    assert_eq!(shards.iter().map(|shard| shard.shard).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!(
        of("rpm"),
        [
            (250_000, 225_000, 100_000),
            (250_000, 225_000, 0),
            (250_000, 225_000, 0),
            (250_000, 225_000, 0)
        ]
    );
    assert_eq!(of("wcu"), [], "the measure of writes is not shown");
}

/// A shard is shown as a take would find it, not as it was last written.
#[tokio::test]
async fn a_shard_is_shown_with_what_has_accrued() {
    let hot = Hot::new(&["rpm:1000/hour"]).await;
    let store = hot.process().await;
    Hot::granted(hot.ask(&store, &[100]).await);
    hot.split_into(4).await;
    let balances = async || -> Vec<i64> {
        let shards = store.shards(&hot.entity, &hot.resource).await.unwrap();
        shards.iter().map(|shard| shard.limits[0].balance.0).collect()
    };
    assert_eq!(balances().await, [225_000; 4]);
    hot.advance(36_000);
    assert_eq!(balances().await, [227_500; 4]);
    hot.advance(3_600_000);
    assert_eq!(balances().await, [250_000; 4], "and no more than its share");
}

#[tokio::test]
async fn the_hottest_bucket_is_first() {
    // Three keys on a page: the second page of the index counts too.
    let mut hot = Hot::on(EvalOptions::new().page_max(3), &["rpm:1000000/hour"]).await;
    let store = hot.process().await;
    assert!(store.hottest(10).await.unwrap().buckets.is_empty());
    Hot::granted(hot.ask(&store, &[1]).await);
    assert!(store.hottest(10).await.unwrap().buckets.is_empty(), "one item is not hot");
    let split = hot.process_on(hot.rig.table.clone(), |options| options.born_split = 4).await;
    for resource in ["a-calm-one", "hot"] {
        hot.resource = resource.parse().unwrap();
        Hot::granted(hot.ask(&split, &[1]).await);
    }
    // Fifty takes between the two looks, which are a second apart.
    let (table, namespace) = (hot.rig.table.clone(), hot.rig.namespace.clone());
    let (reads, is_watched) = (AtomicU64::new(0), Arc::new(AtomicU64::new(0)));
    let watched = Arc::clone(&is_watched);
    let gate = move |_: u32, point: Point| {
        let is_read = point == Point::Before(Operation::BatchGet);
        if is_read
            && watched.load(Ordering::Relaxed) == 1
            && reads.fetch_add(1, Ordering::Relaxed) == 1
        {
            let key = keys::bucket_of(&namespace, "key", "hot", 1);
            let mut shard = table.get(&key).unwrap();
            let taken = number(&shard, "b_wcu_tc") + 50_000;
            shard.insert("b_wcu_tc".to_owned(), zae_limiter_dynamodb::table::number(taken));
            table.insert(&shard);
        }
        0
    };
    let store = hot.process_on(hot.rig.table.client(3).with_gate(Arc::new(gate)), |_| {}).await;
    is_watched.store(1, Ordering::Relaxed);
    let hottest = store.hottest(10).await.unwrap();
    assert!(hottest.is_complete);
    let found: Vec<_> = hottest
        .buckets
        .iter()
        .map(|bucket| (bucket.resource.as_str(), bucket.shards, bucket.writes_per_second))
        .collect();
    assert_eq!(found, [("hot", 4, 50.0), ("a-calm-one", 4, 0.0)]);
}
