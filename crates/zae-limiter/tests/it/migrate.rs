//! Moving buckets and usage to another store.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use zae_limiter::store::{
    Adjusted, BoxFuture, BucketDelta, BucketStore as _, StoreFuture, StoreWrapper,
};
use zae_limiter::{
    AuditQuery, AuditSubject, Clock, Copied, Level, ManualClock, MemoryStore, Migrated, Migration,
    PageRequest, RateLimiter, Request, Store, StoreError, TimeMs, UsageQuery, UsageWindow,
    blocking,
};

const NOON: TimeMs = TimeMs(1_767_268_800_000);

fn limiter(store: impl Store + 'static, clock: &ManualClock) -> RateLimiter {
    RateLimiter::builder(store).clock(clock.clone()).build().unwrap()
}

async fn take(limiter: &RateLimiter, entity: &str, tokens: u64) {
    let request = Request::new(entity, "gpt-4").take("rpm", tokens);
    limiter.acquire(request).await.unwrap().commit().await.unwrap();
}

/// Whole tokens of a bucket as they are now.
async fn left(limiter: &RateLimiter, entity: &str) -> i64 {
    let page = limiter.buckets(entity, &PageRequest::default()).await.unwrap();
    page.items[0].state.limits()[0].balance.floor_tokens()
}

fn copied(copied: u64, kept: u64) -> Copied {
    Copied { copied, kept, ..Copied::default() }
}

async fn worked(clock: &ManualClock, entities: u64) -> RateLimiter {
    let source = limiter(MemoryStore::new(), clock);
    source.set_limits(&Level::System, ["rpm:600/min".parse().unwrap()]).await.unwrap();
    for number in 0..entities {
        take(&source, &format!("key-{number:03}"), number + 1).await;
    }
    source
}

#[tokio::test]
async fn every_bucket_and_hour_is_copied_once_and_told() {
    let clock = ManualClock::new(NOON);
    let source = worked(&clock, 200).await;
    clock.advance(Duration::from_secs(3_600));
    take(&source, "key-000", 5).await;
    let target = limiter(MemoryStore::new(), &clock);
    let (steps, last) = (Arc::new(AtomicU64::new(0)), Arc::new(Mutex::new(Migrated::default())));
    let (counted, seen) = (Arc::clone(&steps), Arc::clone(&last));
    let progress = move |so_far: &Migrated| {
        counted.fetch_add(1, Ordering::SeqCst);
        *seen.lock().unwrap() = so_far.clone();
    };
    let how = Migration {
        reason: Some("a move".to_owned()),
        progress: Some(Arc::new(progress)),
        ..Migration::default()
    };
    let dry = Migration { dry_run: true, ..Migration::default() };
    let expected = Migrated { buckets: copied(200, 0), usage: copied(201, 0) };
    assert_eq!(source.migrate_to(&target, &dry).await.unwrap(), expected);
    assert_eq!(source.migrate_to(&target, &how).await.unwrap(), expected);
    // 200 are three times eighty, 201 hours too.
    assert_eq!((steps.load(Ordering::SeqCst), last.lock().unwrap().clone()), (6, expected));
    assert_eq!(left(&target, "key-000").await, 595);
    let usage = |window| UsageQuery {
        entity: None,
        resource: None,
        window,
        from: None,
        until: None,
        page: PageRequest::first(1_000),
    };
    for window in UsageWindow::ALL {
        let (there, here) =
            (target.usage(&usage(window)).await, source.usage(&usage(window)).await);
        assert_eq!(there.unwrap(), here.unwrap(), "{window}");
    }
    let kept = Migrated { buckets: copied(0, 200), usage: copied(0, 201) };
    assert_eq!(source.migrate_to(&target, &dry).await.unwrap(), kept);
    assert_eq!(source.migrate_to(&target, &how).await.unwrap(), kept);
    let query = AuditQuery { subject: AuditSubject::System, page: PageRequest::default() };
    let events = target.audit_events(&query).await.unwrap().items;
    assert_eq!(events.len(), 6, "one for each transaction that made something");
    assert!(events.iter().all(|event| {
        event.details.iter().any(|(name, value)| name == "reason" && value == "a move")
    }));
}

/// A store whose refill instants are by a clock an hour ahead of its callers'.
struct Ahead(MemoryStore);

const HOUR_MS: i64 = 3_600_000;

impl StoreWrapper for Ahead {
    type Inner = MemoryStore;

    fn inner(&self) -> &MemoryStore {
        &self.0
    }

    fn around<'a, T: Send + 'a>(
        &'a self,
        _: &'static str,
        call: impl FnOnce(&'a MemoryStore) -> StoreFuture<'a, T> + Send + 'a,
    ) -> StoreFuture<'a, T> {
        call(&self.0)
    }

    fn adjust<'a>(
        &'a self,
        deltas: &'a [BucketDelta<'a>],
        now: TimeMs,
    ) -> BoxFuture<'a, Vec<Result<Adjusted, StoreError>>> {
        self.0.adjust(deltas, now)
    }

    fn store_time(&self, now: TimeMs) -> StoreFuture<'_, TimeMs> {
        Box::pin(std::future::ready(Ok(now.plus_ms(HOUR_MS))))
    }

    fn wrap(&self, _: Arc<dyn Store>) -> Arc<dyn Store> {
        unreachable!("one namespace")
    }
}

/// 600 taken half a minute ago by a clock that is an hour ahead: 300 are back by every clock.
#[tokio::test]
async fn instants_are_counted_by_the_clock_of_the_store_that_has_them() {
    let clock = ManualClock::new(NOON);
    let ahead = ManualClock::new(NOON.plus_ms(HOUR_MS));
    let store = MemoryStore::new();
    let inside = limiter(store.clone(), &ahead);
    inside.set_limits(&Level::System, ["rpm:600/min".parse().unwrap()]).await.unwrap();
    take(&inside, "key", 600).await;
    clock.advance(Duration::from_secs(30));
    let source = limiter(Ahead(store), &clock);
    let target = limiter(MemoryStore::new(), &clock);
    source.migrate_to(&target, &Migration::default()).await.unwrap();
    assert_eq!(left(&target, "key").await, 300);
    // And to a store that is ahead, of which the callers' clock sees an hour less.
    let there = MemoryStore::new();
    target.migrate_to(&limiter(Ahead(there.clone()), &clock), &Migration::default()).await.unwrap();
    ahead.advance(Duration::from_secs(30));
    assert_eq!(left(&limiter(there, &ahead), "key").await, 300);
    assert_eq!(ahead.now().since(clock.now()), HOUR_MS);
}

#[test]
fn the_blocking_limiter_migrates_too() {
    let open = || {
        let builder = RateLimiter::builder(MemoryStore::new());
        blocking::RateLimiter::build(builder).unwrap()
    };
    let (source, target) = (open(), open());
    source.set_limits(&Level::System, ["rpm:600/day".parse().unwrap()]).unwrap();
    source.acquire(Request::new("key", "gpt-4").take("rpm", 1)).unwrap().commit().unwrap();
    let migrated = source.migrate_to(&target, &Migration::default()).unwrap();
    assert_eq!(migrated, Migrated { buckets: copied(1, 0), usage: copied(1, 0) });
    let page = target.buckets("key", &PageRequest::default()).unwrap();
    assert_eq!(page.items[0].state.limits()[0].balance.floor_tokens(), 599);
}
