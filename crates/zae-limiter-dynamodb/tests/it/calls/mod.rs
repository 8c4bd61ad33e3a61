//! What every path costs: calls, and units as the engine counts them, indexes included. A failed
//! condition is billed by DynamoDB and reported by nobody, so refusals are counted in calls.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod rig;

use aws_sdk_dynamodb::types::AttributeValue;
use futures_util::future::join_all;
use zae_limiter_core::{EntityId, Limit, Milli, Take};
use zae_limiter_dynamodb::CascadeWrites;
use zae_limiter_dynamodb::records::keys;
use zae_limiter_dynamodb::sdk::Gsi2Projection;
use zae_limiter_dynamodb::table::{Item, Table};
use zae_limiter_store::{Adjusted, BucketStore, Clock, ConsumeRequest, Level, NewEntity};
use zae_limiter_testkit::engine::proxy::Proxy;
use zae_limiter_testkit::zae_limiter::{AcquireError, Request};

pub(crate) use rig::Rig;
use rig::{Bucket, chain, granted, refused, request};

// ------------------------------------------------------------------------------------- the library

#[tokio::test]
async fn a_warm_acquire_is_one_write_of_one_unit_and_no_read() {
    let rig = Rig::new().await;
    let process = rig.process().await;
    let limiter = process.limiter();
    chain(&limiter, 1).await;
    limiter.acquire(request()).await.unwrap().commit().await.unwrap();
    process.log.take();

    // FAST: nothing is due yet. Committing what was taken costs nothing.
    limiter.acquire(request()).await.unwrap().commit().await.unwrap();
    let cost = process.cost();
    cost.check(&["UpdateItem"], 1.0, 0.0);
    assert_eq!(cost.indexes, 0.0);

    // FILL: idle so long that it is full again, so the refill comes first.
    rig.clock.advance(50_000);
    limiter.acquire(request()).await.unwrap().commit().await.unwrap();
    process.cost().check(&["UpdateItem"], 1.0, 0.0);
}

/// The read of the configuration comes first, then the write that finds nothing, which is how a
/// process learns that there is no bucket; then the bucket, one unit for the table and one for each
/// of GSI2, GSI3 and GSI4; then one more look at the configuration, because whoever switches the
/// entity off may have looked for buckets just before there was one.
#[tokio::test]
async fn a_first_acquire_makes_the_bucket_in_four_calls() {
    let rig = Rig::new().await;
    let process = rig.process().await;
    let limiter = process.limiter();
    chain(&limiter, 1).await;
    process.log.take();
    limiter.acquire(request()).await.unwrap().commit().await.unwrap();
    let cost = process.cost();
    assert_eq!(cost.calls, ["BatchGetItem", "UpdateItem", "PutItem", "BatchGetItem"]);
    assert_eq!((cost.failed, cost.writes, cost.indexes), (1, 4.0, 3.0), "{cost:?}");
}

/// A chain this process has seen before is read in one round trip, however long it is; then the
/// writes come, all at once. One it has never seen takes two (`cold.rs`).
///
/// The read comes before the writes: `docs/adr/0009-limits-are-known-before-the-first-write.md`
/// says why.
#[tokio::test]
async fn a_config_miss_adds_one_read_for_the_whole_chain() {
    for depth in [1, 4] {
        let rig = Rig::new().await;
        let process = rig.process().await;
        let limiter = process.limiter();
        chain(&limiter, depth).await;
        limiter.acquire(request()).await.unwrap().commit().await.unwrap();
        limiter.invalidate_config_cache();
        process.log.take();
        limiter.acquire(request()).await.unwrap().commit().await.unwrap();
        let cost = process.cost();
        assert_eq!(
            (&cost.calls[..1], &cost.calls[1..]),
            (&["BatchGetItem"][..], &vec!["UpdateItem"; depth][..])
        );
        // The namespace, the system and the resource once, three records per member.
        assert_eq!(
            (cost.writes, cost.failed, cost.reads),
            (depth as f64, 0, (3 + 3 * depth) as f64)
        );
    }
}

/// Configuration that has just expired is used once more while it is read again: one read for the
/// whole chain, in the same round trip as the writes. The proxy lets none of them through before it
/// has seen them all.
#[tokio::test]
async fn an_expired_config_adds_one_read_beside_the_writes() {
    for depth in [1, 4] {
        let rig = Rig::new().await;
        let proxy = Proxy::start(rig.engine.endpoint()).await;
        let process = rig.process_of(rig.builder().endpoint_url(proxy.endpoint())).await;
        let limiter = process.limiter();
        chain(&limiter, depth).await;
        limiter.acquire(request()).await.unwrap().commit().await.unwrap();
        process.log.take();
        rig.clock.advance(61_000);
        proxy.gate(depth + 1);
        limiter.acquire(request()).await.unwrap().commit().await.unwrap();
        limiter.drain().await;
        let mut cost = process.cost();
        cost.calls.sort_unstable();
        assert_eq!(
            (&cost.calls[..1], &cost.calls[1..]),
            (&["BatchGetItem"][..], &vec!["UpdateItem"; depth][..])
        );
        assert_eq!((cost.writes, cost.failed), (depth as f64, 0));

        // And that was it: the next one is warm.
        limiter.acquire(request()).await.unwrap().commit().await.unwrap();
        process.cost().check(&vec!["UpdateItem"; depth], depth as f64, 0.0);
    }
}

/// Each level is a write of its own, and all of them are on the way at once: the proxy lets none
/// through before it has seen them all.
#[tokio::test]
async fn a_cascade_writes_all_levels_at_once() {
    for depth in [2, 4] {
        let rig = Rig::new().await;
        let proxy = Proxy::start(rig.engine.endpoint()).await;
        let process = rig.process_of(rig.builder().endpoint_url(proxy.endpoint())).await;
        let limiter = process.limiter();
        chain(&limiter, depth).await;
        limiter.acquire(request()).await.unwrap().commit().await.unwrap();
        process.log.take();
        proxy.gate(depth);
        let lease = limiter.acquire(request()).await.unwrap();
        process.cost().check(&vec!["UpdateItem"; depth], depth as f64, 0.0);

        // Giving back is one write per member, also at once.
        proxy.gate(depth);
        lease.rollback().await.unwrap();
        process.cost().check(&vec!["UpdateItem"; depth], depth as f64, 0.0);
    }
}

#[tokio::test]
async fn settling_is_one_write_and_two_when_it_charges_and_gives_back() {
    let rig = Rig::new().await;
    let process = rig.process().await;
    let limiter = process.limiter();
    let limits =
        [Limit::custom("rpm", 100, 1, 1).unwrap(), Limit::custom("tpm", 1000, 10, 1).unwrap()];
    limiter.set_limits(&Level::System, limits).await.unwrap();
    let request = || Request::new("user", "gpt-4").take("rpm", 5).take("tpm", 100);
    limiter.acquire(request()).await.unwrap().commit().await.unwrap();
    for (rpm, tpm, writes) in
        [(5, 100, 0), (5, 150, 1), (9, 150, 1), (5, 50, 1), (2, 50, 1), (2, 150, 2)]
    {
        let lease = limiter.acquire(request()).await.unwrap();
        lease.record("rpm", rpm).unwrap();
        lease.record("tpm", tpm).unwrap();
        process.log.take();
        lease.commit().await.unwrap();
        process.cost().check(&vec!["UpdateItem"; writes], writes as f64, 0.0);
    }
}

#[tokio::test]
async fn a_storm_of_refusals_costs_one_write_per_second() {
    let rig = Rig::new().await;
    let process = rig.process().await;
    let limiter = process.limiter();
    limiter.set_limits(&Level::System, [Limit::per_hour("rph", 100).unwrap()]).await.unwrap();
    let request = |amount| Request::new("user", "gpt-4").take("rph", amount);
    limiter.acquire(request(100)).await.unwrap().commit().await.unwrap();
    rig.clock.advance(1_500);
    process.log.take();
    for _ in 0..1000 {
        let refused = limiter.acquire(request(90)).await;
        assert!(matches!(refused, Err(AcquireError::Exceeded(_))), "{refused:?}");
        rig.clock.advance(2);
    }
    let cost = process.cost();
    // Two seconds of them: one write at the start of each, and no other call.
    assert_eq!((&cost.calls[..], cost.failed), (&["UpdateItem"; 2][..], 2));
    assert!(cost.calls.len() <= 3);
    assert_eq!(process.store.counters().local_refusals, 998);

    // All at once, and known: none. (Those that are on their way before the first answer are not
    // spared.)
    limiter.acquire(request(90)).await.unwrap_err();
    assert_eq!(process.cost().calls.len(), 1);
    let all = join_all((0..1000).map(|_| limiter.acquire(request(90)))).await;
    assert!(all.iter().all(|refused| matches!(refused, Err(AcquireError::Exceeded(_)))));
    assert_eq!(process.cost().calls.len(), 0);
}

#[tokio::test]
async fn availability_is_one_read() {
    let rig = Rig::new().await;
    let process = rig.process().await;
    let limiter = process.limiter();
    chain(&limiter, 2).await;
    limiter.acquire(request()).await.unwrap().commit().await.unwrap();
    process.log.take();
    let found = limiter.availability(&request()).await.unwrap();
    assert_eq!(found.available("rpm"), Some(99));
    // Two items, consistently.
    process.cost().check(&["BatchGetItem"], 0.0, 2.0);
}

// --------------------------------------------------------------------------------------- the store

/// A bucket with everything taken by somebody else, and time passed since: the first write says
/// what there is, the second refills and takes. Nothing is read.
#[tokio::test]
async fn depleted_by_others_then_refilled_is_two_writes() {
    let rig = Rig::new().await;
    let (bucket, other, warm, cold) =
        (Bucket::new("user"), rig.process().await, rig.process().await, rig.process().await);
    granted(other.take(&bucket, 1).await);
    granted(warm.take(&bucket, 1).await);
    granted(other.take(&bucket, 98).await);
    warm.log.take();
    // Longer than the lower bound a cold process tries, shorter than the time to fill.
    rig.clock.advance(60_000);
    granted(warm.take(&bucket, 50).await);
    let cost = warm.cost();
    cost.check(&["UpdateItem"; 2], 1.0, 0.0);
    assert_eq!(cost.failed, 1);

    granted(other.take(&bucket, 10).await);
    rig.clock.advance(60_000);
    granted(cold.take(&bucket, 30).await);
    let cost = cold.cost();
    cost.check(&["UpdateItem"; 2], 1.0, 0.0);
    assert_eq!(cost.failed, 1);
}

#[tokio::test]
async fn a_known_image_refills_first() {
    let rig = Rig::new().await;
    let (bucket, process) = (Bucket::new("user"), rig.process().await);
    granted(process.take(&bucket, 100).await);
    process.log.take();
    rig.clock.advance(30_000);
    granted(process.take(&bucket, 20).await);
    process.cost().check(&["UpdateItem"], 1.0, 0.0);
}

/// A cold process whose bucket was refilled a moment ago needs no image.
#[tokio::test]
async fn a_cold_take_of_a_hot_bucket_is_one_write() {
    let rig = Rig::new().await;
    let (bucket, other, process) = (Bucket::new("user"), rig.process().await, rig.process().await);
    granted(other.take(&bucket, 60).await);
    rig.clock.advance(5_000);
    granted(process.take(&bucket, 1).await);
    process.cost().check(&["UpdateItem"], 1.0, 0.0);
}

#[tokio::test]
async fn a_refusal_is_one_write_and_none_from_memory() {
    let rig = Rig::new().await;
    let (bucket, other, process) = (Bucket::new("user"), rig.process().await, rig.process().await);
    granted(other.take(&bucket, 100).await);
    refused(process.take(&bucket, 10).await);
    let cost = process.cost();
    cost.check(&["UpdateItem"], 0.0, 0.0);
    assert_eq!(cost.failed, 1);
    for _ in 0..100 {
        refused(process.take(&bucket, 10).await);
    }
    process.cost().check(&[], 0.0, 0.0);
    assert_eq!(process.store.counters().local_refusals, 100);

    // After a second the memory refuses nobody.
    rig.clock.advance(1_000);
    refused(process.take(&bucket, 10).await);
    process.cost().check(&["UpdateItem"], 0.0, 0.0);

    let asks_always = rig.process_of(rig.builder().rejection_cache(None)).await;
    for _ in 0..3 {
        refused(asks_always.take(&bucket, 10).await);
    }
    asks_always.cost().check(&["UpdateItem"; 3], 0.0, 0.0);
}

#[tokio::test]
async fn a_refused_chain_gives_back_what_landed() {
    let rig = Rig::new().await;
    let (child, parent, process) = (Bucket::new("user"), Bucket::new("team"), rig.process().await);
    let other = rig.process().await;
    granted(process.take_all(&[&child, &parent], 1).await);
    granted(other.take(&parent, 90).await);
    process.log.take();
    refused(process.take_all(&[&child, &parent], 20).await);
    let cost = process.cost();
    // Both writes, a second look at the ancestor that is short, then the refund of the one that
    // landed.
    cost.check(&["UpdateItem"; 4], 2.0, 0.0);
    assert_eq!((cost.failed, process.store.counters().compensations), (2, 1));
    refused(process.take_all(&[&child, &parent], 20).await);
    process.cost().check(&[], 0.0, 0.0);

    let serial = rig.process_of(rig.builder().cascade_writes(CascadeWrites::Serial)).await;
    refused(serial.take_all(&[&parent, &child], 20).await);
    // One write is refused; what the other bucket has is read for the answer.
    serial.cost().check(&["UpdateItem", "BatchGetItem"], 0.0, 1.0);
}

#[tokio::test]
async fn charges_and_credits_are_one_write_each() {
    let rig = Rig::new().await;
    let (bucket, process) = (Bucket::new("user"), rig.process().await);
    granted(process.take(&bucket, 50).await);
    process.log.take();
    for (changes, writes) in [
        (&[(0, 5)][..], 1),
        (&[(0, -5)], 1),
        (&[(0, 5), (1, 50)], 1),
        (&[(0, -5), (1, -50)], 1),
        // A charge is sent until it lands, a credit at most once: they cannot share a write.
        (&[(0, 5), (1, -50)], 2),
        // Nothing at all: the memory knows that there is a bucket.
        (&[(0, 0)], 0),
    ] {
        assert_eq!(process.adjust(&bucket, changes).await, Adjusted::Applied);
        process.cost().check(&vec!["UpdateItem"; writes], writes as f64, 0.0);
    }
    // A charge long after: what overflowed since must not pay for it, so it refills, in the same
    // write.
    rig.clock.advance(600_000);
    assert_eq!(process.adjust(&bucket, &[(0, 70)]).await, Adjusted::Applied);
    process.cost().check(&["UpdateItem"], 1.0, 0.0);
}

/// A process that has never seen the bucket settles in one write if the bucket is where it expects
/// it, else in two.
#[tokio::test]
async fn settling_without_memory() {
    let rig = Rig::new().await;
    let (bucket, other) = (Bucket::new("user"), rig.process().await);
    granted(other.take(&bucket, 90).await);
    let process = rig.process().await;
    assert_eq!(process.adjust(&bucket, &[(0, 5)]).await, Adjusted::Applied);
    process.cost().check(&["UpdateItem"], 1.0, 0.0);
    let process = rig.process().await;
    assert_eq!(process.adjust(&bucket, &[(0, -5)]).await, Adjusted::Applied);
    process.cost().check(&["UpdateItem"], 1.0, 0.0);
    let process = rig.process().await;
    rig.clock.advance(600_000);
    assert_eq!(process.adjust(&bucket, &[(0, 5)]).await, Adjusted::Applied);
    process.cost().check(&["UpdateItem"; 2], 1.0, 0.0);
}

/// A bucket that was forgotten is made again to be charged: the charge that finds nothing, the
/// configuration (a charge must not switch on what is off), the bucket.
#[tokio::test]
async fn charging_a_forgotten_bucket_is_three_calls() {
    let rig = Rig::new().await;
    let (bucket, process) = (Bucket::new("user"), rig.process().await);
    granted(process.take(&bucket, 50).await);
    process.log.take();
    rig.clock.advance(30 * 86_400_000);
    let now_s = u64::try_from(rig.clock.now().0 / 1000).unwrap();
    assert_eq!(rig.engine.sweep_ttl_at(now_s), 1);
    assert_eq!(process.adjust(&bucket, &[(0, 5)]).await, Adjusted::Recreated);
    let cost = process.cost();
    assert_eq!(
        (&cost.calls[..], cost.writes),
        (&["UpdateItem", "BatchGetItem", "PutItem"][..], 4.0),
        "{cost:?}"
    );
}

#[tokio::test]
async fn a_peek_is_one_read() {
    let rig = Rig::new().await;
    let (bucket, process) = (Bucket::new("user"), rig.process().await);
    granted(process.take(&bucket, 50).await);
    process.log.take();
    let takes = [Take { limit: 0, amount: Milli(1000) }];
    let members = [bucket.take(&takes)];
    granted(process.store.peek(&ConsumeRequest::new(&members, rig.clock.now())).await.unwrap());
    process.cost().check(&["BatchGetItem"], 0.0, 1.0);
}

/// The oracle reads first.
#[tokio::test]
async fn without_speculation_a_take_is_a_read_and_a_write() {
    let rig = Rig::new().await;
    let (bucket, process) =
        (Bucket::new("user"), rig.process_of(rig.builder().speculative(false)).await);
    granted(process.take(&bucket, 1).await);
    process.log.take();
    granted(process.take(&bucket, 1).await);
    process.cost().check(&["BatchGetItem", "UpdateItem"], 1.0, 1.0);
}

/// On a table of the Python package GSI2 holds everything, and every take rewrites it.
#[tokio::test]
async fn a_python_table_costs_two_units_per_take() {
    let rig = Rig::with(Gsi2Projection::All).await;
    let (bucket, process) = (Bucket::new("user"), rig.process().await);
    granted(process.take(&bucket, 1).await);
    process.log.take();
    granted(process.take(&bucket, 1).await);
    let cost = process.cost();
    cost.check(&["UpdateItem"], 2.0, 0.0);
    assert_eq!(cost.indexes, 1.0);
}

// -------------------------------------------------------------------------------------------- size

/// The size of an item as AWS documents it ("DynamoDB item sizes and formats"): names and texts in
/// UTF-8 bytes; a number one byte per two significant digits and one more, and one for its sign; a
/// flag one byte; a set or list three bytes and one per member besides the members. Zeros that only
/// place the decimal point are not significant.
fn size(item: &Item) -> usize {
    item.iter().map(|(name, value)| name.len() + size_of_value(value)).sum()
}

fn size_of_value(value: &AttributeValue) -> usize {
    match value {
        AttributeValue::S(text) => text.len(),
        AttributeValue::N(number) => {
            let digits = number.trim_start_matches('-').replace('.', "");
            digits.trim_matches('0').len().div_ceil(2) + 1 + usize::from(number.starts_with('-'))
        }
        AttributeValue::Bool(_) | AttributeValue::Null(_) => 1,
        AttributeValue::Ss(texts) => 3 + texts.iter().map(|text| text.len() + 1).sum::<usize>(),
        other => panic!("a bucket has no {other:?}"),
    }
}

#[test]
fn sizes_by_the_rules() {
    for (value, bytes) in [
        (AttributeValue::S("größe".to_owned()), 7),
        (AttributeValue::N("0".to_owned()), 1),
        (AttributeValue::N("27".to_owned()), 2),
        (AttributeValue::N("-27".to_owned()), 3),
        (AttributeValue::N("1000000".to_owned()), 2),
        (AttributeValue::N("1784635200123".to_owned()), 8),
        (AttributeValue::Bool(true), 1),
        (AttributeValue::Ss(vec!["rpm".to_owned(), "tpm".to_owned()]), 11),
    ] {
        assert_eq!(size_of_value(&value), bytes, "{value:?}");
    }
}

/// Sizes are measured on the worst item that takes write: ids of 64 bytes, the parent's too,
/// balances with all their digits, remainders, and everything of ours.
#[tokio::test]
async fn an_item_with_long_ids_and_three_limits_is_one_unit() {
    let rig = Rig::new().await;
    let process = rig.process().await;
    let limiter = process.limiter();
    let (id, parent): (EntityId, EntityId) =
        ("u".repeat(64).parse().unwrap(), "p".repeat(64).parse().unwrap());
    let resource = "r".repeat(16);
    // Rates with remainders at nearly every millisecond, and odd capacities.
    let limits = [
        Limit::custom("rpm", 997, 991, 60).unwrap(),
        Limit::custom("tpm", 999_983, 999_979, 60).unwrap(),
        Limit::custom("rpd", 99_991, 99_989, 86_400).unwrap(),
    ];
    limiter.set_limits(&Level::System, limits).await.unwrap();
    for (id, parent) in [(&parent, None), (&id, Some(parent.clone()))] {
        let cascade = parent.is_some();
        limiter
            .create_entity(NewEntity {
                id: id.clone(),
                name: "somebody".to_owned(),
                parent,
                cascade,
                metadata: Default::default(),
            })
            .await
            .unwrap();
    }
    let request = |rpm, tpm| {
        Request::new(id.clone(), resource.as_str()).take("rpm", rpm).take("tpm", tpm).take("rpd", 7)
    };
    let namespace = {
        limiter.acquire(request(907, 777_777)).await.unwrap().commit().await.unwrap();
        let page = zae_limiter_store::PageRequest::first(10);
        limiter.namespaces(&page).await.unwrap().items[0].id.to_string()
    };
    let key = keys::bucket(&namespace, &id, &resource.parse().unwrap(), 0);
    let read = async || {
        process.table.batch_get(std::slice::from_ref(&key), true).await.unwrap().items.remove(0)
    };
    let mut largest = read().await;
    for round in 0..40 {
        rig.clock.advance(1_237 + round * 17);
        let lease = limiter.acquire(request(13, 11_113)).await.unwrap();
        lease.record("tpm", 17_333).unwrap();
        process.log.take();
        lease.commit().await.unwrap();
        assert_eq!(process.cost().writes, 2.0, "one for each of the chain");
        let item = read().await;
        largest = if size(&item) > size(&largest) { item } else { largest };
    }
    for name in ["lw", "ca", "rf", "rmf", "ttl", "b_rpm_rm", "b_tpm_rm", "b_rpd_rm", "parent_id"] {
        assert!(largest.contains_key(name), "{name} is not in {largest:?}");
    }
    // The same after five years at the full rate, in debt on every limit. (A capacity that was
    // lowered adds `gp` to a limit until it is repaid, which may well cost a second unit; as does a
    // limit with a longer name.)
    let mut worst = largest.clone();
    for (name, number) in [
        ("b_rpm_tk", "-5981123"),
        ("b_tpm_tk", "-5999898123"),
        ("b_rpd_tk", "-599946123"),
        ("b_rpm_tc", "2604348123000"),
        ("b_tpm_tc", "2627944812123000"),
        ("b_rpd_tc", "182479925000"),
        ("b_wcu_tc", "2604348123000"),
        ("b_wcu_tk", "999123"),
        ("b_rpm_rm", "59000"),
        ("b_tpm_rm", "59000"),
        ("b_rpd_rm", "86399000"),
    ] {
        worst.insert(name.to_owned(), AttributeValue::N(number.to_owned())).expect(name);
    }
    println!("largest seen {}, worst {} bytes", size(&largest), size(&worst));
    assert!(size(&largest) < 1024, "{} bytes: {largest:?}", size(&largest));
    assert!(size(&worst) < 1024, "{} bytes: {worst:?}", size(&worst));
}
