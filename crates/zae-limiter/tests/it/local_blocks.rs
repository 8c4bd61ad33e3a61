//! A limiter on a store with local blocks: what it costs, and what it does while the store is down.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use zae_limiter::store::{BlockStore, BucketStore, Clock, Fault, FaultStore, NamespaceStore};
use zae_limiter::{
    AcquireError, Error, Level, LocalBlocks, ManualClock, MemoryStore, NewEntity, OnUnavailable,
    PageRequest, RateLimiter, Request, Source, Store, StoreErrorKind,
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
    assert!(written < 2_000 / 40, "{written} writes for 2000 requests that settle");

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

/// A limiter with the usual blocks on a store whose takes are counted.
fn counted(store: &MemoryStore, clock: &ManualClock) -> (RateLimiter, Arc<AtomicU32>) {
    let calls = Arc::new(AtomicU32::new(0));
    let seen = Arc::clone(&calls);
    let counting = FaultStore::new(Arc::new(store.clone()), move |operation: &'static str| {
        seen.fetch_add(u32::from(matches!(operation, "consume" | "provision")), Ordering::Relaxed);
        Fault::None
    });
    let builder = RateLimiter::builder(counting).clock(clock.clone());
    (builder.local_blocks(LocalBlocks::default()).build().unwrap(), calls)
}

/// Takes one token every millisecond, until a lease comes from a block.
async fn warm_up(limiter: &RateLimiter, clock: &ManualClock, entity: &str) {
    for _ in 0..200 {
        let lease = limiter.acquire(Request::new(entity, "gpt-4").take("rpm", 1)).await.unwrap();
        let source = lease.source();
        lease.commit().await.unwrap();
        clock.advance(Duration::from_millis(1));
        if source == Source::Local {
            return;
        }
    }
    panic!("no request of {entity} was served from a block");
}

async fn balance(store: &dyn Store, entity: &str) -> i64 {
    let page = store.buckets(&entity.parse().unwrap(), &PageRequest::default()).await.unwrap();
    page.items[0].state.limits()[0].balance.0
}

#[tokio::test]
async fn the_builder_switches_blocks_on_and_a_lease_says_where_it_comes_from() {
    let (store, clock) = (MemoryStore::new(), ManualClock::new(START));
    let (limiter, calls) = counted(&store, &clock);
    limiter.set_limits(&Level::System, limits(&["rpm:60000/min"])).await.unwrap();
    let request = || Request::new("key", "gpt-4").take("rpm", 1);
    assert_eq!(limiter.acquire(request()).await.unwrap().source(), Source::Store);
    warm_up(&limiter, &clock, "key").await;

    let asked = calls.load(Ordering::Relaxed);
    let lease = limiter.acquire(request()).await.unwrap();
    assert_eq!((lease.source(), calls.load(Ordering::Relaxed)), (Source::Local, asked));
    lease.commit().await.unwrap();
    let prepared = limiter.prepare(request()).unwrap();
    assert_eq!(prepared.acquire().await.unwrap().source(), Source::Local);
    assert_eq!(calls.load(Ordering::Relaxed), asked, "prepared requests use blocks as well");

    let lease = limiter.acquire(request().exact()).await.unwrap();
    assert_eq!((lease.source(), calls.load(Ordering::Relaxed)), (Source::Store, asked + 1));
    lease.commit().await.unwrap();
    let stats = limiter.blocks().unwrap();
    assert_eq!(stats.held.0, 0, "what the process held went back before the store was asked");
    assert!(stats.grants >= 3 && stats.orders >= 1 && stats.missing().0 == 0, "{stats:?}");
}

/// With default options, as a gateway has them.
#[tokio::test]
async fn a_refusal_in_a_pause_says_how_old_it_is_and_costs_no_call() {
    let (store, clock) = (MemoryStore::new(), ManualClock::new(START));
    let (limiter, calls) = counted(&store, &clock);
    limiter.set_limits(&Level::System, limits(&["rpm:6000/min"])).await.unwrap();
    let request = || Request::new("key", "gpt-4").take("rpm", 50);
    let (mut fresh, mut paced) = (0, 0);
    for _ in 0..1_000 {
        let asked = calls.load(Ordering::Relaxed);
        match limiter.acquire(request()).await {
            Ok(lease) => lease.commit().await.unwrap(),
            Err(AcquireError::Exceeded(refusal)) => {
                assert!(refusal.retry_after().ms().is_some_and(|ms| ms > 0), "{refusal:?}");
                let calls = calls.load(Ordering::Relaxed) - asked;
                match refusal.as_of() {
                    Some(age) => {
                        assert!(calls == 0 && age <= Duration::from_millis(1_250), "{age:?}");
                        paced += 1;
                    }
                    None => fresh += calls,
                }
            }
            Err(error) => panic!("{error}"),
        }
        clock.advance(Duration::from_millis(1));
    }
    assert!(paced > 500 && (1..=20).contains(&fresh), "{paced} paced, {fresh} by the store");
    assert_eq!(limiter.blocks().unwrap().paced, paced);
    let refusal = limiter.acquire(Request::new("key", "gpt-4").take("rpm", 5_000).exact()).await;
    let Err(AcquireError::Exceeded(refusal)) = refusal else { panic!("there is too little") };
    assert_eq!(refusal.as_of(), None, "an exact request asks the store");
}

/// The blocks that a chain buys for the next one are bought behind it.
#[tokio::test]
async fn a_chain_does_not_wait_for_the_blocks_that_it_buys() {
    let (store, clock) = (MemoryStore::new(), ManualClock::new(START));
    let hanging = FaultStore::new(Arc::new(store.clone()), |operation: &'static str| {
        if operation == "provision" { Fault::Hang } else { Fault::None }
    });
    let builder = RateLimiter::builder(hanging).clock(clock.clone());
    let limiter = builder.local_blocks(LocalBlocks::default()).build().unwrap();
    limiter.set_limits(&Level::System, limits(&["rpm:60000/min"])).await.unwrap();
    limiter.create_entity(NewEntity::new("org")).await.unwrap();
    limiter.create_entity(NewEntity::new("key").parent("org").cascade()).await.unwrap();
    let mut granted = 0;
    while limiter.blocks().unwrap().orders == 0 {
        let lease = limiter.acquire(Request::new("key", "gpt-4").take("rpm", 1)).await.unwrap();
        lease.commit().await.unwrap();
        granted += 1;
        assert!(granted < 200, "no block was bought");
        clock.advance(Duration::from_millis(1));
        tokio::task::yield_now().await;
    }
    assert!(granted > 1, "the requests go on");
    // What hangs behind them has an end, so that it does not keep the settler from other work.
    clock.advance(Duration::from_secs(31));
    assert_eq!(limiter.drain().await.pending, 0);
}

/// Stock that cannot be given back is lost, and nobody waits for it for ever.
#[tokio::test]
async fn closing_ends_although_no_stock_can_be_given_back() {
    let (store, clock) = (MemoryStore::new(), ManualClock::new(START));
    let hanging = FaultStore::new(Arc::new(store.clone()), |operation: &'static str| {
        if operation == "settle" { Fault::Hang } else { Fault::None }
    });
    let builder = RateLimiter::builder(hanging).clock(clock.clone());
    let limiter = builder.local_blocks(LocalBlocks::default()).build().unwrap();
    limiter.set_limits(&Level::System, limits(&["rpm:60000/min"])).await.unwrap();
    warm_up(&limiter, &clock, "key").await;
    assert!(limiter.blocks().unwrap().held.0 > 0);
    let mut closing = Box::pin(limiter.close());
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    while limiter.blocks().unwrap().lost.0 == 0 {
        assert!(closing.as_mut().poll(&mut context).is_pending());
        clock.advance(Duration::from_secs(60));
        if closing.as_mut().poll(&mut context).is_ready() {
            break;
        }
        tokio::task::yield_now().await;
    }
    let stats = limiter.blocks().unwrap();
    assert_eq!((stats.held.0, stats.missing().0, stats.use_lost), (0, 0, 1), "{stats:?}");
}

/// The same way back: once it has a block, a chain is served from it.
#[tokio::test]
async fn a_chain_is_served_from_the_blocks_that_were_bought_behind_it() {
    let (store, clock) = (MemoryStore::new(), ManualClock::new(START));
    let (limiter, calls) = counted(&store, &clock);
    limiter.set_limits(&Level::System, limits(&["rpm:60000/min"])).await.unwrap();
    limiter.create_entity(NewEntity::new("org")).await.unwrap();
    limiter.create_entity(NewEntity::new("key").parent("org").cascade()).await.unwrap();
    for _ in 0..1_000 {
        let lease = limiter.acquire(Request::new("key", "gpt-4").take("rpm", 1)).await.unwrap();
        lease.commit().await.unwrap();
        clock.advance(Duration::from_millis(1));
        tokio::task::yield_now().await;
    }
    let calls = calls.load(Ordering::Relaxed);
    assert!(calls < 100, "{calls} calls for 1000 chains of two");
    limiter.close().await;
    let stats = limiter.blocks().unwrap();
    assert_eq!((stats.held.0, stats.lost.0, stats.missing().0), (0, 0, 0), "{stats:?}");
}

/// Use of a bucket that nobody asks for any more is reported while others are asked for.
#[tokio::test]
async fn a_silent_bucket_reports_its_use_behind_the_requests_of_others() {
    let (store, clock) = (MemoryStore::new(), ManualClock::new(START));
    let (limiter, _) = counted(&store, &clock);
    limiter.set_limits(&Level::System, limits(&["rpm:60000/min"])).await.unwrap();
    warm_up(&limiter, &clock, "silent").await;
    let consumed = async || {
        let page = store.buckets(&"silent".parse().unwrap(), &PageRequest::default()).await;
        page.unwrap().items[0].state.limits()[0].consumed.0
    };
    let reported = consumed().await;
    for second in 0..13 {
        if second < 5 {
            assert_eq!(consumed().await, reported, "it may have more requests in a moment");
        }
        for _ in 0..10 {
            let request = Request::new("other", "gpt-4").take("rpm", 1).exact();
            limiter.acquire(request).await.unwrap().commit().await.unwrap();
            clock.advance(Duration::from_millis(100));
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(consumed().await, reported + 1_000, "the one that came from a block");
}

#[tokio::test]
async fn without_the_switch_there_are_no_blocks() {
    let limiter = RateLimiter::builder(MemoryStore::new()).build().unwrap();
    limiter.set_limits(&Level::System, limits(&["rpm:60000/min"])).await.unwrap();
    assert!(limiter.blocks().is_none());
    let lease = limiter.acquire(Request::new("key", "gpt-4").take("rpm", 1).exact()).await.unwrap();
    assert_eq!(lease.source(), Source::Store, "exact changes nothing");
}

#[tokio::test]
async fn a_degraded_lease_was_granted_by_nobody() {
    let down = FaultStore::new(Arc::new(MemoryStore::new()), |_: &'static str| {
        Fault::FailBefore(StoreErrorKind::Unavailable)
    });
    let builder = RateLimiter::builder(down).on_unavailable(OnUnavailable::Allow);
    let limiter = builder.local_blocks(LocalBlocks::default()).build().unwrap();
    let lease = limiter.acquire(Request::new("key", "gpt-4").take("rpm", 1)).await.unwrap();
    assert_eq!(lease.source(), Source::Nobody);
}

#[tokio::test]
async fn closing_gives_back_the_blocks_of_every_namespace() {
    let (store, clock) = (MemoryStore::new(), ManualClock::new(START));
    let (limiter, _) = counted(&store, &clock);
    limiter.register_namespace("tenant").await.unwrap();
    let tenant = limiter.namespace("tenant").await.unwrap();
    for limiter in [&limiter, &tenant] {
        limiter.set_limits(&Level::System, limits(&["rpm:60000/min"])).await.unwrap();
        warm_up(limiter, &clock, "key").await;
    }
    assert!(limiter.blocks().unwrap().held.0 > 0);
    // Its blocks outlive the handle to a namespace.
    drop(tenant);
    limiter.close().await;
    let stats = limiter.blocks().unwrap();
    assert_eq!((stats.held.0, stats.lost.0, stats.missing().0), (0, 0, 0), "{stats:?}");
    assert!(stats.returned.0 > 0);
    let scoped = store.scoped(&"tenant".parse().unwrap()).await.unwrap();
    for store in [&store as &dyn Store, &*scoped] {
        let left = balance(store, "key").await;
        assert!(left >= 60_000_000 - 200_000, "{left}: only what was used is missing");
    }
}

#[tokio::test]
async fn wrong_sizes_are_named_when_the_limiter_is_built() {
    let builder = RateLimiter::builder(MemoryStore::new());
    let refused = builder.local_blocks(LocalBlocks::default().requests(1)).build();
    let Err(Error::Store(error)) = refused else { panic!("{refused:?}") };
    assert!(error.to_string().contains("requests is 1; give 8 to 100000"), "{error}");
}

#[test]
fn the_blocking_limiter_has_blocks_as_well() {
    use zae_limiter::blocking;
    let clock = ManualClock::new(START);
    let builder = RateLimiter::builder(MemoryStore::new())
        .clock(clock.clone())
        .local_blocks(LocalBlocks::default());
    let limiter = blocking::RateLimiter::build(builder).unwrap();
    limiter.set_limits(&Level::System, limits(&["rpm:60000/min"])).unwrap();
    let mut is_local = false;
    for _ in 0..200 {
        let lease = limiter.acquire(Request::new("key", "gpt-4").take("rpm", 1)).unwrap();
        is_local |= lease.source() == Source::Local;
        lease.commit().unwrap();
        clock.advance(Duration::from_millis(1));
    }
    assert!(is_local && limiter.blocks().unwrap().grants > 0);
    limiter.close();
    assert_eq!(limiter.blocks().unwrap().held.0, 0);
}
