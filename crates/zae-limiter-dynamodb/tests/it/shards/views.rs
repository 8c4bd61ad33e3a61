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

/// A look passes as a take does: what one shard owes does not hold up another.
#[tokio::test]
async fn a_look_passes_where_one_shard_can_serve_it() {
    let hot = Hot::new(&["rpm:1000/hour"]).await;
    let store = hot.process().await;
    Hot::granted(hot.ask(&store, &[0]).await);
    hot.split_into(2).await;
    hot.adjust(&store, 1, 5_000).await.unwrap();
    assert!(matches!(hot.peek(&store, &[400]).await, ConsumeOutcome::Granted(_)));
    assert!(matches!(hot.peek(&store, &[501]).await, ConsumeOutcome::Refused(_)));
}

#[tokio::test]
async fn limits_that_are_no_longer_in_force_are_not_shown() {
    let hot = Hot::new(&["rpm:1000/hour", "tpm:1000/hour"]).await;
    let store = hot.process().await;
    Hot::granted(hot.ask(&store, &[1, 1]).await);
    let mut item = hot.shard(0);
    let retired = aws_sdk_dynamodb::types::AttributeValue::Ss(vec!["tpm".to_owned()]);
    item.insert("ret".to_owned(), retired);
    hot.rig.table.insert(&item);
    let shards = store.shards(&hot.entity, &hot.resource).await.unwrap();
    let names: Vec<&str> = shards[0].limits.iter().map(|limit| limit.name.as_str()).collect();
    assert_eq!(names, ["rpm"]);
}

/// A hundred buckets with shards are watched, and the answer says that there are more.
#[tokio::test]
async fn the_search_for_hot_buckets_has_a_bound_and_says_so() {
    let hot = Hot::new(&["rpm:1000000/hour"]).await;
    let store = hot.process().await;
    Hot::granted(hot.ask(&store, &[1]).await);
    hot.split_into(2).await;
    let (root, child) = (hot.shard(0), hot.shard(1));
    let copy = |item: &Item, number: u32| {
        let renamed = item.iter().map(|(name, value)| {
            let text = value.as_s().ok().filter(|text| text.contains("key"));
            let renamed = text.map(|text| text.replace("key", &format!("key-{number:03}")));
            (name.clone(), renamed.map_or_else(|| value.clone(), zae_limiter_dynamodb::table::text))
        });
        hot.rig.table.insert(&renamed.collect());
    };
    for number in 0..99 {
        copy(&root, number);
        copy(&child, number);
    }
    // What no shard of ours can be.
    let mut stray = child.clone();
    for (name, value) in &child {
        if let Ok(text) = value.as_s() {
            let text = text.replace("#gpt-4#1", "#other#32");
            stray.insert(name.clone(), zae_limiter_dynamodb::table::text(text));
        }
    }
    hot.rig.table.insert(&stray);
    let hottest = store.hottest(3).await.unwrap();
    assert_eq!((hottest.buckets.len(), hottest.is_complete), (3, true));
    assert_eq!(store.hottest(1_000).await.unwrap().buckets.len(), 100);
    for number in 99..102 {
        copy(&root, number);
        copy(&child, number);
    }
    let hottest = store.hottest(1_000).await.unwrap();
    assert_eq!((hottest.buckets.len(), hottest.is_complete), (100, false));
}

/// A shard that is made again while it is watched begins to count anew.
#[tokio::test]
async fn a_shard_that_is_made_again_does_not_cool_its_bucket() {
    let hot = Hot::new(&["rpm:1000000/hour"]).await;
    Hot::granted(hot.ask(&hot.process().await, &[1]).await);
    hot.split_into(2).await;
    let takes = |table: &EvalTable, item: &Item, milli: i64| {
        let mut item = item.clone();
        item.insert("b_wcu_tc".to_owned(), zae_limiter_dynamodb::table::number(milli));
        table.insert(&item);
    };
    let (root, child) = (hot.shard(0), hot.shard(1));
    takes(&hot.rig.table, &root, 0);
    takes(&hot.rig.table, &child, 900_000);
    let (table, is_watched) = (hot.rig.table.clone(), Arc::new(AtomicU64::new(0)));
    let watched = Arc::clone(&is_watched);
    let gate = move |_: u32, point: Point| {
        // The first look has read both; the second comes a second later.
        let is_read = point == Point::After(Operation::BatchGet);
        if is_read && watched.swap(0, Ordering::Relaxed) == 1 {
            takes(&table, &root, 50_000);
            takes(&table, &child, 0);
        }
        0
    };
    let store = hot.process_on(hot.rig.table.client(3).with_gate(Arc::new(gate)), |_| {}).await;
    is_watched.store(1, Ordering::Relaxed);
    let hottest = store.hottest(1).await.unwrap();
    assert_eq!(hottest.buckets[0].writes_per_second, 50.0);
}
