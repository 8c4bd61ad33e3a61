//! A limiter on a store with local blocks: what it costs, and what it does while the store is down.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use zae_limiter::store::{BlockStore, BucketStore, Clock, Fault, FaultStore, LocalBlocks};
use zae_limiter::{
    AcquireError, Level, ManualClock, MemoryStore, PageRequest, RateLimiter, Request,
    StoreErrorKind,
};

use crate::support::{START, limits};

#[tokio::test]
async fn a_limiter_decides_from_its_blocks_and_goes_on_while_the_store_is_down() {
    let (store, clock) = (MemoryStore::new(), ManualClock::new(START));
    let (writes, is_down) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
    let (counted, down) = (Arc::clone(&writes), Arc::clone(&is_down));
    let faulty = FaultStore::new(Arc::new(store.clone()), move |operation: &'static str| {
        let is_write = matches!(operation, "consume" | "provision" | "settle" | "adjust");
        counted.fetch_add(u32::from(is_write), Ordering::Relaxed);
        match down.load(Ordering::Relaxed) {
            true => Fault::FailBefore(StoreErrorKind::Unavailable),
            false => Fault::None,
        }
    });
    let blocks = BlockStore::new(Arc::new(faulty), LocalBlocks::default()).unwrap();
    let limiter = RateLimiter::builder(blocks.clone()).clock(clock.clone()).build().unwrap();
    limiter
        .set_limits(&Level::System, limits(&["rpm:120000/min", "tpm:12000000/min"]))
        .await
        .unwrap();
    let request = || Request::new("key", "gpt-4").take("rpm", 1).take("tpm", 100);
    for _ in 0..2_000 {
        let lease = limiter.acquire(request()).await.unwrap();
        lease.adjust("tpm", -40).unwrap();
        lease.commit().await.unwrap();
        clock.advance(Duration::from_millis(1));
    }
    let written = writes.load(Ordering::Relaxed);
    assert!(written < 2_000 / 5, "{written} writes for 2000 requests that settle");

    is_down.store(true, Ordering::Relaxed);
    let (mut bridged, mut ended) = (0, None);
    while ended.is_none() && bridged < 1_000 {
        match limiter.acquire(request()).await {
            Ok(lease) => {
                assert!(lease.degraded().is_none(), "the tokens are paid for");
                lease.commit().await.unwrap();
                bridged += 1;
            }
            Err(error) => ended = Some(error),
        }
    }
    assert!(bridged > 0, "from stock");
    assert!(matches!(ended, Some(AcquireError::Unavailable(_))), "{bridged}, {ended:?}");

    is_down.store(false, Ordering::Relaxed);
    limiter.drain().await;
    blocks.give_back(clock.now()).await;
    let stats = blocks.stats();
    assert_eq!((stats.held.0, stats.missing().0), (0, 0), "{stats:?}");
    let page = store.buckets(&"key".parse().unwrap(), &PageRequest::default()).await.unwrap();
    let balance = page.items[0].state.limits()[0].balance;
    assert!(balance.0 >= 120_000_000 - 2_200_000, "{balance} are left of 120000");
}
