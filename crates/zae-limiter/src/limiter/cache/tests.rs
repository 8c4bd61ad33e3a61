//! The cache by itself: what is kept, trusted and lent, to the millisecond.

use std::convert::Infallible;

use super::*;
use zae_limiter_core::{ConfigStamp, TimeMs};
use zae_limiter_store::ManualClock;

fn answer(stamp: u64) -> FreshConfig {
    let config = MemberConfig { cascades_to: None, limits: None, blocked_by: None };
    FreshConfig { config, limits: None, stamp: ConfigStamp(stamp), age: Duration::ZERO }
}

/// A change that lands while a read is on its way: the answer is used once by whoever asked before
/// the change, and never again.
#[tokio::test]
async fn a_read_that_was_in_flight_during_a_change_is_not_kept() {
    let (cache, clock) =
        (ConfigCache::new(10, Duration::from_secs(60)), ManualClock::new(TimeMs(0)));
    let (key, other, gpt): (EntityId, EntityId, ResourceName) =
        ("key".parse().unwrap(), "other".parse().unwrap(), "gpt-4".parse().unwrap());
    type Evict<'a> = &'a dyn Fn(&ConfigCache);
    let evictions: [(Evict<'_>, bool); 3] = [
        (&|cache| cache.evict_entity(&"key".parse().unwrap()), false),
        (&|cache| cache.evict_all(), false),
        (&|_| {}, true),
    ];
    for (evict, kept) in evictions {
        cache.evict_all();
        let read = cache.get_or_read(&key, &gpt, &clock, || async {
            evict(&cache);
            Ok::<_, Infallible>(answer(1))
        });
        read.await.unwrap();
        assert_eq!(cache.get(&key, &gpt, &clock).is_some(), kept);
    }
    assert!(cache.get(&other, &gpt, &clock).is_none());
}

#[tokio::test]
async fn a_dropped_read_lets_the_next_caller_read() {
    let (cache, clock) =
        (ConfigCache::new(10, Duration::from_secs(60)), ManualClock::new(TimeMs(0)));
    let (key, gpt): (EntityId, ResourceName) = ("key".parse().unwrap(), "gpt-4".parse().unwrap());
    let hanging = || std::future::pending::<Result<FreshConfig, Infallible>>();
    let mut hung = Box::pin(cache.get_or_read(&key, &gpt, &clock, hanging));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(hung.as_mut().poll(&mut context).is_pending());
    drop(hung);
    let known = cache
        .get_or_read(&key, &gpt, &clock, || async { Ok::<_, Infallible>(answer(2)) })
        .await
        .unwrap();
    assert_eq!(known.stamp, ConfigStamp(2));
}

const TTL: Duration = Duration::from_secs(60);

fn names(entity: &str, resource: &str) -> (EntityId, ResourceName) {
    (entity.parse().unwrap(), resource.parse().unwrap())
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A cache that has read one key at the beginning.
async fn with_key(ttl: Duration) -> (ConfigCache, ManualClock, EntityId, ResourceName) {
    let (cache, clock) = (ConfigCache::new(10, ttl), ManualClock::new(TimeMs(0)));
    let (key, gpt) = names("key", "gpt-4");
    cache
        .get_or_read(&key, &gpt, &clock, || async { Ok::<_, Infallible>(answer(1)) })
        .await
        .unwrap();
    (cache, clock, key, gpt)
}

/// What is found at an instant: the stamp, and whether it is lent.
async fn found_after(ttl: Duration, at: Duration) -> Vec<Option<(u64, bool)>> {
    let (cache, clock, key, gpt) = with_key(ttl).await;
    clock.advance(at);
    let look = |_| {
        cache.get_or_borrow(&key, &gpt, &clock).map(|(known, is_lent)| (known.stamp.0, is_lent))
    };
    (0..2).map(look).collect()
}

#[tokio::test]
async fn an_entry_is_trusted_to_its_end_then_lent_once_and_for_five_seconds() {
    let (trusted, lent) = (Some((1, false)), Some((1, true)));
    let cases = [
        (0, [trusted, trusted]),
        (59_999, [trusted, trusted]),
        (60_000, [lent, None]),
        (64_999, [lent, None]),
        (65_000, [None, None]),
        (8 * 3_600_000, [None, None]),
    ];
    for (at, expected) in cases {
        assert_eq!(found_after(TTL, ms(at)).await, expected, "after {at} ms");
    }
    // One that is trusted for less is lent for no longer than that.
    for (at, expected) in
        [(1_999, [trusted, trusted]), (3_999, [lent, None]), (4_000, [None, None])]
    {
        assert_eq!(found_after(ms(2_000), ms(at)).await, expected, "after {at} ms of two seconds");
    }
}

#[tokio::test]
async fn what_was_evicted_is_never_lent() {
    for evict in [ConfigCache::evict_all as fn(&ConfigCache), |cache| {
        cache.evict_entity(&"key".parse().unwrap())
    }] {
        for at in [0, 60_000] {
            let (cache, clock, key, gpt) = with_key(TTL).await;
            evict(&cache);
            clock.advance(ms(at));
            assert!(cache.get_or_borrow(&key, &gpt, &clock).is_none(), "after {at} ms");
            assert!(cache.get(&key, &gpt, &clock).is_none(), "after {at} ms");
        }
    }
}

#[tokio::test]
async fn an_entry_is_trusted_until_its_last_millisecond_and_then_read_again() {
    let (cache, clock, key, gpt) = with_key(TTL).await;
    clock.advance(ms(59_999));
    assert_eq!(cache.get(&key, &gpt, &clock).unwrap().stamp, ConfigStamp(1));
    let again =
        |stamp| {
            cache.get_or_read(&key, &gpt, &clock, move || async move {
                Ok::<_, Infallible>(answer(stamp))
            })
        };
    assert_eq!(again(2).await.unwrap().stamp, ConfigStamp(1), "nobody reads what is trusted");
    clock.advance(ms(1));
    assert!(cache.get(&key, &gpt, &clock).is_none());
    assert_eq!(again(3).await.unwrap().stamp, ConfigStamp(3));
    assert_eq!(cache.get(&key, &gpt, &clock).unwrap().stamp, ConfigStamp(3));
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.misses, stats.entries, stats.ttl), (2, 2, 1, TTL));
    assert_eq!(cache.ttl(), TTL);
}

/// The age of an entry counts from before its read, however long that takes, and from when the
/// store read it.
#[tokio::test]
async fn a_slow_read_and_an_old_answer_do_not_make_an_entry_younger() {
    let (cache, clock) = (ConfigCache::new(10, TTL), ManualClock::new(TimeMs(0)));
    let (key, gpt) = names("key", "gpt-4");
    let slow = || async {
        clock.advance(ms(10_000));
        Ok::<_, Infallible>(FreshConfig { age: ms(30_000), ..answer(1) })
    };
    cache.get_or_read(&key, &gpt, &clock, slow).await.unwrap();
    clock.advance(ms(19_999));
    assert!(cache.get(&key, &gpt, &clock).is_some());
    clock.advance(ms(1));
    assert!(cache.get(&key, &gpt, &clock).is_none());

    let reading = cache.begin(&key, &clock);
    clock.advance(ms(10_000));
    cache.insert((key.clone(), gpt.clone()), FreshConfig { age: ms(30_000), ..answer(2) }, reading);
    clock.advance(ms(19_999));
    assert_eq!(cache.get(&key, &gpt, &clock).unwrap().stamp, ConfigStamp(2));
    clock.advance(ms(1));
    assert!(cache.get(&key, &gpt, &clock).is_none());
}

#[test]
fn what_comes_along_is_kept_unless_something_was_evicted_meanwhile() {
    let clock = ManualClock::new(TimeMs(0));
    let (org, gpt) = names("org", "gpt-4");
    type Evict<'a> = &'a dyn Fn(&ConfigCache);
    let evictions: [(Evict<'_>, bool); 4] = [
        (&|_| {}, true),
        (&|cache| cache.evict_entity(&"org".parse().unwrap()), false),
        (&|cache| cache.evict_entity(&"other".parse().unwrap()), false),
        (&|cache| cache.evict_all(), false),
    ];
    for (evict, kept) in evictions {
        let cache = ConfigCache::new(10, TTL);
        let reading = cache.begin_along(&clock);
        evict(&cache);
        let known = cache.insert_along(&org, &gpt, answer(7), reading);
        assert_eq!(known.stamp, ConfigStamp(7), "whoever read it may use it");
        assert_eq!(
            (cache.get(&org, &gpt, &clock).is_some(), cache.stats().entries),
            (kept, usize::from(kept))
        );
    }
    // Where nothing is trusted nothing is kept.
    let cache = ConfigCache::new(10, Duration::ZERO);
    cache.insert_along(&org, &gpt, answer(7), cache.begin_along(&clock));
    assert_eq!(cache.stats().entries, 0);
}

/// Entities that share a resource, and resources that share an entity.
#[test]
fn every_key_finds_its_own_entry() {
    let (cache, clock) = (ConfigCache::new(100_000, TTL), ManualClock::new(TimeMs(0)));
    let keys: Vec<(EntityId, ResourceName)> = (0..2_000)
        .map(|index| names(&format!("key-{index}"), "gpt-4"))
        .chain((0..2_000).map(|index| names("key", &format!("model-{index}"))))
        .collect();
    for (stamp, key) in (1..).zip(&keys) {
        cache.insert(key.clone(), answer(stamp), cache.begin(&key.0, &clock));
    }
    for (stamp, (entity, resource)) in (1..).zip(&keys) {
        let known = cache.get(entity, resource, &clock).map(|known| known.stamp);
        assert_eq!(known, Some(ConfigStamp(stamp)), "{entity} {resource}");
    }
    let (nobody, gpt) = names("nobody", "gpt-4");
    assert!(cache.get(&nobody, &gpt, &clock).is_none());
}

/// FNV-1a, the same in every build: a seed of the simulator replays exactly.
#[test]
fn entities_are_spread_over_the_epochs_by_their_name() {
    for (entity, slot) in
        [("key", 236), ("other", 85), ("user-1", 212), ("user-2", 237), ("org", 89)]
    {
        assert_eq!(slot_of(&entity.parse().unwrap()), slot, "{entity}");
    }
    let used: std::collections::BTreeSet<usize> =
        (0..10_000).map(|index| slot_of(&format!("user-{index}").parse().unwrap())).collect();
    assert_eq!(used.len(), ENTITY_EPOCHS);
}

/// A read that takes longer than an entry is trusted, or during which somebody changed the
/// configuration, is for who asked for it; whoever came later and waited reads again.
#[tokio::test]
async fn a_caller_who_waited_for_a_read_that_is_not_to_be_trusted_reads_again() {
    type Meanwhile<'a> = &'a dyn Fn(&ConfigCache, &ManualClock);
    let cases: [(Meanwhile<'_>, u64); 3] = [
        (&|_, clock| clock.advance(TTL), 2),
        (&|cache, _| cache.evict_all(), 2),
        (&|_, clock| clock.advance(ms(59_999)), 1),
    ];
    for (meanwhile, expected) in cases {
        let (cache, clock) = (ConfigCache::new(10, TTL), ManualClock::new(TimeMs(0)));
        let (key, gpt) = names("key", "gpt-4");
        let (sender, receiver) = tokio::sync::oneshot::channel::<u64>();
        let slow = || async move { Ok::<_, Infallible>(answer(receiver.await.unwrap())) };
        let mut first = Box::pin(cache.get_or_read(&key, &gpt, &clock, slow));
        let mut later = Box::pin(
            cache.get_or_read(&key, &gpt, &clock, || async { Ok::<_, Infallible>(answer(2)) }),
        );
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(first.as_mut().poll(&mut context).is_pending());
        assert!(later.as_mut().poll(&mut context).is_pending(), "it waits for the first");
        meanwhile(&cache, &clock);
        sender.send(1).unwrap();
        assert_eq!(first.await.unwrap().stamp, ConfigStamp(1));
        assert_eq!(later.await.unwrap().stamp, ConfigStamp(expected));
    }
}

/// Where nothing is trusted, nobody waits for a read that began before his call: it may have been
/// answered before a change that he knows of.
#[tokio::test]
async fn where_nothing_is_trusted_everybody_reads_for_himself() {
    let (cache, clock) = (ConfigCache::new(10, Duration::ZERO), ManualClock::new(TimeMs(0)));
    let (key, gpt) = names("key", "gpt-4");
    let (sender, receiver) = tokio::sync::oneshot::channel::<u64>();
    let slow = || async move { Ok::<_, Infallible>(answer(receiver.await.unwrap())) };
    let mut first = Box::pin(cache.get_or_read(&key, &gpt, &clock, slow));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(first.as_mut().poll(&mut context).is_pending());
    let later = cache.get_or_read(&key, &gpt, &clock, || async { Ok::<_, Infallible>(answer(2)) });
    let mut later = Box::pin(later);
    match later.as_mut().poll(&mut context) {
        std::task::Poll::Ready(Ok(known)) => assert_eq!(known.stamp, ConfigStamp(2)),
        std::task::Poll::Pending => panic!("it waits for the first"),
    }
    sender.send(1).unwrap();
    assert_eq!(first.await.unwrap().stamp, ConfigStamp(1));
    assert_eq!(cache.stats().entries, 0, "and nothing is kept");
}

/// Hearing "off" about a key again and again costs one read a second, and nothing of anybody
/// else's.
#[tokio::test]
async fn one_key_is_forgotten_and_not_before_its_time() {
    const AGE: Duration = Duration::from_secs(1);
    let (cache, clock) =
        (ConfigCache::new(10, Duration::from_secs(60)), ManualClock::new(TimeMs(0)));
    let gpt: ResourceName = "gpt-4".parse().unwrap();
    let (key, other): (EntityId, EntityId) = ("key".parse().unwrap(), "other".parse().unwrap());
    for entity in [&key, &other] {
        cache
            .get_or_read(entity, &gpt, &clock, || async { Ok::<_, Infallible>(answer(1)) })
            .await
            .unwrap();
    }
    clock.advance(AGE - Duration::from_millis(1));
    cache.evict_older(&key, &gpt, AGE, &clock);
    assert!(cache.get(&key, &gpt, &clock).is_some(), "read just now");
    clock.advance(Duration::from_millis(1));
    cache.evict_older(&key, &gpt, AGE, &clock);
    assert!(cache.get(&key, &gpt, &clock).is_none());
    assert!(cache.get(&other, &gpt, &clock).is_some());
}
