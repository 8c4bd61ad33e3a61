//! Limiters that keep everything in this process.

use std::num::NonZeroU32;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::Result;
use governor::{Quota, RateLimiter};
use hashbrown::{DefaultHashBuilder, HashMap};
use limitador::limit::{Context as LimitContext, Limit};
use std::hash::BuildHasher;
use zae_limiter::{Clock, SystemClock};

use super::Peer;
use crate::cell::{Direct, Row};
use crate::keys::{self, KEYS, REQUESTS, TOKENS, pick};
use crate::rows::{Entry, Weight};

/// Calls between two looks at the clock.
const LOOK_EVERY: u32 = 32;

pub(super) fn rows() -> Vec<Peer> {
    vec![
        (
            "memory-store",
            Entry {
                name: "governor",
                what: "governor, two keyed limiters, no roll-back",
                make: |_| governor(KEYS),
            },
        ),
        (
            "governor",
            Entry {
                name: "map",
                what: "64 mutexes, a map and two buckets in each: the floor",
                make: |_| map(),
            },
        ),
        (
            "memory-acquire",
            Entry {
                name: "limitador",
                what: "limitador in memory, context built per call",
                make: |_| limitador(),
            },
        ),
        (
            "memory-store-1m",
            Entry {
                name: "governor-1m",
                what: "governor, two keyed limiters, a million keys",
                make: |context| governor(context.million()),
            },
        ),
        (
            "memory-weight",
            Entry {
                name: "governor-weight",
                what: "memory of a million keys in two governors",
                make: |context| Ok(Weight::row("governor", context)),
            },
        ),
    ]
}

/// Takes from both or panics. There is no way back when only the first grants.
pub(crate) fn two_governors() -> impl FnMut(&String) {
    let wide = || {
        Quota::with_period(Duration::from_nanos(1)).expect("not zero").allow_burst(NonZeroU32::MAX)
    };
    let (requests, tokens) = (RateLimiter::keyed(wide()), RateLimiter::keyed(wide()));
    let amount = |tokens: u64| {
        NonZeroU32::new(u32::try_from(tokens).expect("a small number")).expect("not zero")
    };
    let (one, many) = (amount(REQUESTS), amount(TOKENS));
    move |key| {
        assert!(matches!(requests.check_key_n(key, one), Ok(Ok(()))));
        assert!(matches!(tokens.check_key_n(key, many), Ok(Ok(()))));
    }
}

fn governor(keys: usize) -> Result<Box<dyn Row>> {
    let (mut check, texts) = (two_governors(), keys::texts(keys));
    texts.iter().for_each(&mut check);
    Ok(Box::new(Direct::new(move |random| check(pick(&texts, random)), LOOK_EVERY)))
}

/// limitador has fixed windows and takes one amount from all limits.
fn limitador() -> Result<Box<dyn Row>> {
    let limiter = limitador::RateLimiter::new(10_000);
    for seconds in [60, 3_600] {
        limiter.add_limit(Limit::new(
            "bench",
            u64::MAX / 2,
            seconds,
            vec![],
            vec!["key".try_into()?],
        ));
    }
    let (namespace, texts) = ("bench".into(), keys::texts(KEYS));
    let check = move |random| {
        let values =
            std::collections::HashMap::from([("key".to_owned(), pick(&texts, random).clone())]);
        let answer = limiter.check_rate_limited_and_update(
            &namespace,
            &LimitContext::from(values),
            REQUESTS,
        );
        let answer = answer.expect("an answer");
        assert!(!answer.limited && answer.counters.len() == 2);
    };
    Ok(Box::new(Direct::new(check, LOOK_EVERY)))
}

/// What a limiter cannot do without: find the key under a lock, refill, compare, take.
struct Pair {
    at_ms: i64,
    balances: [i64; 2],
}

const SHARDS: u64 = 64;
const CAPACITY: i64 = 1_000_000_000_000_000_000;
const REFILL_PER_MS: i64 = 16_666;

fn map() -> Result<Box<dyn Row>> {
    let hasher = DefaultHashBuilder::default();
    let shards: Vec<Mutex<HashMap<String, Pair>>> =
        (0..SHARDS).map(|_| Mutex::new(HashMap::with_hasher(hasher.clone()))).collect();
    let shard = move |key: &String| {
        usize::try_from(hasher.hash_one(key) >> 40 & (SHARDS - 1)).expect("a small number")
    };
    let (texts, clock) = (keys::texts(KEYS), SystemClock::new());
    for text in &texts {
        let full = Pair { at_ms: clock.now().0, balances: [CAPACITY; 2] };
        shards[shard(text)].lock().expect("nobody panics with it").insert(text.clone(), full);
    }
    let take = move |random| {
        let key = pick(&texts, random);
        let mut table = shards[shard(key)].lock().expect("nobody panics with it");
        let pair = table.get_mut(key).expect("every key is there");
        let now_ms = clock.now().0;
        let refill = (now_ms - pair.at_ms) * REFILL_PER_MS;
        let [requests, tokens] = pair.balances.map(|balance| (balance + refill).min(CAPACITY));
        assert!(requests >= 1_000 && tokens >= 500_000);
        *pair = Pair { at_ms: now_ms, balances: [requests - 1_000, tokens - 500_000] };
    };
    Ok(Box::new(Direct::new(take, LOOK_EVERY)))
}
