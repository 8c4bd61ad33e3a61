//! Seeded random runs: several clients, a few buckets, every fault.
//!
//! `ZAEL_SEEDS=2000` runs more of them, `ZAEL_SEED=17` only that one. A seed fixes what each client
//! does and what befalls its n-th request; in which order clients meet at a bucket is up to the
//! machine, so a failure may need several runs to come again. It prints what the client did, what
//! it believed, and what went over the wire.

use std::fmt::Write as _;
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use zae_limiter_core::{Limit, Milli};
use zae_limiter_dynamodb::DynamoStore;
use zae_limiter_dynamodb::constants::{FAST_GRACE_MS, SEND_ATTEMPTS_MAX};
use zae_limiter_store::{Clock, SystemClock};
use zae_limiter_testkit::engine::Engine;
use zae_limiter_testkit::engine::proxy::Proxy;
use zae_limiter_testkit::zae_limiter::{AcquireError, Lease, RateLimiter, Request};

use crate::lossy::books::Entry;
use crate::lossy::client::{Client, Counted, Coverage, Kind, Step, Told};
use crate::lossy::rig::{Bucket, STACK, stored};

/// Seeds of an ordinary run: a few seconds.
const SEEDS: u64 = 40;
/// Runs at a time. They mostly wait.
const AT_ONCE: usize = 6;
/// How long clients wait for an answer.
pub(super) const ATTEMPT: Duration = Duration::from_millis(60);
/// Requests that meet a fault, in percent.
pub(super) const FAULTS_PERCENT: u64 = 35;
pub(super) const CLIENTS: u64 = 3;
pub(super) const STEPS: u64 = 14;
/// Tokens a bucket holds.
const CAPACITY: u64 = 40;
/// What the second bucket regains per second; the first and the third regain one token a day, so
/// their sums are exact.
const RATE: u64 = 20;

fn buckets(seed: u64) -> [Bucket; 3] {
    let slow = Limit::custom("rpm", CAPACITY, 1, 86_400).unwrap();
    let quick = Limit::custom("rpm", CAPACITY, RATE, 1).unwrap();
    let bucket = |name: &str, limit: &Limit| {
        Bucket::of(&format!("{name}-{seed}"), std::slice::from_ref(limit))
    };
    [bucket("child", &slow), bucket("quick", &quick), bucket("parent", &slow)]
}

/// How often the writes of one step landed on one bucket.
#[derive(Clone, Copy, Debug, Default)]
struct Landed {
    debits: i64,
    credits: i64,
    /// The wire itself repeated one of them: it may have landed more often than the client can
    /// know.
    is_repeated: bool,
    /// A credit that the table did not take, and said so, as often as it is tried.
    is_stuck: bool,
    /// It was to be made: there the last word is a read.
    is_birth: bool,
}

fn landed(entries: &[Entry], pk: &str) -> Landed {
    let of_bucket = || entries.iter().filter(|entry| entry.pk == pk);
    let landings = |is_credit| {
        of_bucket()
            .filter(|entry| entry.is_credit() == is_credit)
            .map(|entry| i64::from(entry.landings))
            .sum()
    };
    let refusals =
        of_bucket().filter(|entry| entry.is_credit() && entry.fault.is_refusal()).count();
    Landed {
        debits: landings(false),
        credits: landings(true),
        is_repeated: of_bucket().any(|entry| entry.fault.repeats()),
        is_stuck: refusals >= usize::try_from(SEND_ATTEMPTS_MAX).unwrap(),
        is_birth: of_bucket().any(|entry| entry.is_put),
    }
}

/// What one step must have left, given what its client was told and counted.
fn check_step(step: &Step, landed: &[Landed]) -> Result<(), String> {
    let demand = |is_so: bool, what: &str| if is_so { Ok(()) } else { Err(what.to_owned()) };
    let Counted { resent, confirmed, unknown, credits_unknown } = step.counted;
    let sends = i64::from(SEND_ATTEMPTS_MAX);
    let repeats = landed.iter().filter(|landed| landed.is_repeated).count() as u64;
    let is_sure = resent == 0 && credits_unknown == 0;
    demand(unknown <= resent, "a debit of unknown fate that was never sent again")?;
    demand(confirmed <= resent + repeats, "confirmed without a reason to ask")?;
    for (landed, is_only) in landed.iter().map(|one| (one, landed.len() == 1)) {
        let Landed { debits, credits, is_repeated, is_stuck, is_birth } = *landed;
        match step.kind {
            Kind::Credit => {
                demand(debits == 0, "a credit that takes")?;
                demand(
                    resent == 0 && unknown == 0 && confirmed == 0,
                    "a credit counted as a debit",
                )?;
                demand(
                    credits_unknown == u64::from(step.told == Told::Unknown),
                    "credits of unknown fate are counted, one by one",
                )?;
                if is_repeated {
                    continue;
                }
                match step.told {
                    Told::Done => demand(credits == 1, "a credit that is told to have landed")?,
                    Told::Unknown => {
                        demand(credits <= 1, "a credit of unknown fate that landed twice")?
                    }
                    Told::Failed | Told::Refused => demand(
                        credits == 0,
                        "a credit that landed although it is told not to have",
                    )?,
                }
            }
            Kind::Take | Kind::Charge => {
                demand(step.told != Told::Done || debits >= 1, "granted, and nothing landed")?;
                demand(step.told != Told::Done || credits == 0, "granted, and given back")?;
                if is_repeated {
                    continue;
                }
                demand(credits <= debits, "given back more often than taken")?;
                demand(
                    debits <= if resent > 0 { sends } else { 1 },
                    "landed more often than it was sent in doubt",
                )?;
                if is_sure {
                    let spent = i64::from(step.told == Told::Done);
                    demand(
                        debits - credits == spent || is_stuck,
                        "nothing was in doubt, and it is not as told",
                    )?;
                }
                let is_lost =
                    step.told != Told::Done && resent > 0 && is_only && confirmed == 0 && !is_birth;
                demand(
                    !is_lost || unknown == 1,
                    "an attempt without an answer, no grant, and nobody counts it",
                )?;
                let is_proof = step.told == Told::Failed && is_only && step.kind == Kind::Charge;
                demand(!is_proof || debits == 0, "told that nothing was applied, and it was")?;
            }
        }
    }
    Ok(())
}

/// How often a step may have landed on a bucket by what its client knows: at least, at most, of
/// debits and credits.
fn believed(step: &Step) -> ([i64; 2], [i64; 2]) {
    let sends = i64::from(SEND_ATTEMPTS_MAX);
    let Counted { resent, credits_unknown, .. } = step.counted;
    match (step.kind, step.told) {
        (Kind::Credit, Told::Done) => ([0, 0], [1, 1]),
        (Kind::Credit, Told::Unknown) => ([0, 0], [0, 1]),
        (Kind::Credit, _) => ([0, 0], [0, 0]),
        (_, Told::Done) => ([1, if resent > 0 { sends } else { 1 }], [0, 0]),
        // Not granted: what landed of it was given back, as far as that is known.
        (_, _) if resent == 0 && credits_unknown == 0 => ([0, 1], [0, 1]),
        (_, _) => ([0, if resent > 0 { sends } else { 1 }], [0, 1]),
    }
}

/// One run.
async fn run(
    engine: &Engine,
    direct: &DynamoStore,
    namespace: &str,
    seed: u64,
) -> Result<Coverage, String> {
    let (clock, buckets) = (SystemClock::new(), buckets(seed));
    let started = clock.monotonic();
    let clients =
        futures_util::future::join_all((0..CLIENTS).map(|index| Client::new(engine, seed, index)))
            .await;
    let work = clients.iter().map(|client| client.work(&buckets, &clock));
    let steps: Vec<Vec<Step>> = futures_util::future::join_all(work).await;
    // Without its store a client hangs up, and what it has given up meets its fate.
    let wires: Vec<(Proxy, u64)> = clients
        .into_iter()
        .map(|client| (client.proxy, client.store.counters().compensations))
        .collect();
    for (proxy, _) in &wires {
        proxy.pass();
        proxy.hung_up().await;
    }
    let elapsed = clock.monotonic().saturating_sub(started);

    let mut coverage = Coverage::default();
    let (mut told, mut true_count, mut granted) = ([[0_i64; 2]; 3], [0_i64; 3], [0_i64; 3]);
    let (mut credits, mut repeated_credits, mut trace) = ([0_i64; 3], [0_i64; 3], String::new());
    for ((proxy, compensations), steps) in wires.iter().zip(&steps) {
        let exchanges = proxy.take();
        let all: Vec<Entry> = exchanges.iter().filter_map(Entry::read).collect();
        coverage.requests += exchanges.len() as u64;
        coverage.compensations += compensations;
        for step in steps {
            let entries: Vec<Entry> =
                all.iter().filter(|entry| step.has_sent(entry)).cloned().collect();
            let pk = |index: usize| {
                zae_limiter_dynamodb::records::keys::bucket(
                    namespace,
                    &buckets[index].entity,
                    &buckets[index].resource,
                    0,
                )
                .pk
            };
            let landed: Vec<Landed> =
                step.chain.iter().map(|index| landed(&entries, &pk(*index))).collect();
            let _ = writeln!(trace, "{step:?}\n    {landed:?}");
            if let Err(what) = check_step(step, &landed) {
                return Err(format!("{what}: {step:?}, {landed:?}, {entries:#?}"));
            }
            let milli = step.milli;
            for (index, landed) in step.chain.iter().zip(&landed) {
                let ([debits_min, debits_max], [credits_min, credits_max]) = believed(step);
                // What the wire repeated by itself no client can know.
                let extra = |of: i64| if landed.is_repeated { of } else { 0 };
                let stuck = i64::from(landed.is_stuck);
                // Not granted and not in doubt: taken and given back, or neither.
                let is_even = step.told != Told::Done
                    && step.counted.resent == 0
                    && step.counted.credits_unknown == 0;
                let bounds = match is_even && step.kind == Kind::Take {
                    true => [-extra(landed.credits), stuck + extra(landed.debits)],
                    false => [
                        debits_min - credits_max - extra(landed.credits),
                        debits_max - credits_min + extra(landed.debits),
                    ],
                };
                told[*index][0] += bounds[0] * milli;
                told[*index][1] += bounds[1] * milli;
                true_count[*index] += (landed.debits - landed.credits) * milli;
                granted[*index] +=
                    if step.kind == Kind::Take && step.told == Told::Done { milli } else { 0 };
                credits[*index] += landed.credits * milli;
                repeated_credits[*index] += extra(landed.credits) * milli;
                coverage.doubled += u64::from(landed.debits > 1);
                coverage.orphans += u64::from(
                    landed.debits > landed.credits
                        && step.told != Told::Done
                        && step.kind != Kind::Credit,
                );
                coverage.credits_unheard +=
                    u64::from(landed.credits > 0 && step.counted.credits_unknown > 0);
            }
            coverage.granted += u64::from(step.told == Told::Done && step.kind == Kind::Take);
            coverage.refused += u64::from(step.told == Told::Refused);
            coverage.failed += u64::from(matches!(step.told, Told::Failed | Told::Unknown));
            coverage.resent += step.counted.resent;
            coverage.confirmed += step.counted.confirmed;
            coverage.unknown += step.counted.unknown;
            coverage.credits_unknown += step.counted.credits_unknown;
        }
    }

    let capacity = Milli::from_tokens(CAPACITY).0;
    for (index, bucket) in buckets.iter().enumerate() {
        let Some((balance, consumed)) = stored(direct, bucket, 0).await else {
            if true_count[index] == 0 && granted[index] == 0 {
                continue;
            }
            return Err(format!("{} is not there\n{trace}", bucket.entity));
        };
        let fail = |what: String| Err(format!("{}: {what}\n{trace}", bucket.entity));
        if consumed != true_count[index] {
            return fail(format!(
                "{consumed} is stored as consumed, {} went over the wire",
                true_count[index]
            ));
        }
        let [least, most] = told[index];
        if !(least..=most).contains(&consumed) {
            return fail(format!("{consumed} consumed, the clients know of {least} to {most}"));
        }
        // A payload may land as late as an attempt is waited for, or as late as the wire delays it.
        let age_ms = i64::try_from(3 * ATTEMPT.as_millis()).unwrap();
        let elapsed_ms = i64::try_from(elapsed.as_millis()).unwrap();
        let refilled = if index == 1 {
            Milli::from_tokens(RATE).0 * (elapsed_ms + FAST_GRACE_MS + age_ms) / 1000
        } else {
            0
        };
        if granted[index] > capacity + refilled + credits[index] {
            return fail(format!(
                "{} granted of {capacity} + {refilled} refilled + {} given back",
                granted[index], credits[index]
            ));
        }
        if balance > capacity || balance + consumed > capacity + refilled {
            return fail(format!(
                "{balance} left and {consumed} consumed of {capacity} + {refilled} refilled"
            ));
        }
        // Slow buckets: every token is somewhere, unless the wire repeated a credit that then had
        // no room.
        if index != 1 && repeated_credits[index] == 0 && balance + consumed != capacity {
            return fail(format!("{balance} left and {consumed} consumed of {capacity}"));
        }
    }
    Ok(coverage)
}

/// The seeds to run.
#[expect(clippy::disallowed_methods, reason = "how many seeds to run is told by the environment")]
fn seeds() -> Vec<u64> {
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .map(|text| text.parse::<u64>().unwrap_or_else(|error| panic!("{name}: {error}")))
    };
    match (number("ZAEL_SEED"), number("ZAEL_SEEDS")) {
        (Some(seed), _) => vec![seed],
        (None, count) => (1..=count.unwrap_or(SEEDS)).collect(),
    }
}

async fn table() -> (Engine, DynamoStore, String) {
    let engine = Engine::start();
    let builder = DynamoStore::builder(STACK, "us-east-1").endpoint_url(engine.endpoint());
    let direct =
        builder.timeouts(Duration::from_secs(30), Duration::from_secs(30)).create().await.unwrap();
    let page = zae_limiter_store::PageRequest::first(1);
    let namespaces = zae_limiter_store::NamespaceStore::namespaces(&direct, &page).await.unwrap();
    let namespace = namespaces.items[0].id.to_string();
    (engine, direct, namespace)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_fault_admits_too_much_loses_a_debit_or_goes_uncounted() {
    let (engine, direct, namespace) = table().await;
    let seeds = seeds();
    let runs = stream::iter(seeds.iter().copied())
        .map(async |seed| (seed, run(&engine, &direct, &namespace, seed).await));
    let results: Vec<(u64, Result<Coverage, String>)> =
        runs.buffer_unordered(AT_ONCE).collect().await;
    let mut coverage = Coverage::default();
    let mut failures = Vec::new();
    for (seed, result) in &results {
        match result {
            Ok(seen) => coverage.add(seen),
            Err(what) => failures.push((seed, what)),
        }
    }
    println!("{} runs: {coverage:?}", seeds.len());
    if let Some((seed, what)) = failures.first() {
        let all: Vec<_> = failures.iter().map(|(seed, _)| **seed).collect();
        panic!("seed {seed} (ZAEL_SEED={seed} runs it alone): {what}\nfailed: {all:?}");
    }
    assert!(coverage.is_complete() || seeds.len() < 20, "something was never seen: {coverage:?}");
}

// ------------------------------------------------------------------------------------- the library

/// The same through the public library: leases that are committed with more or less than was taken,
/// rolled back or dropped; what fails goes to the settler.
async fn lease_run(engine: &Engine, direct: &DynamoStore, seed: u64) -> Result<u64, String> {
    let (clock, limit) = (SystemClock::new(), Limit::custom("rpm", CAPACITY, 1, 86_400).unwrap());
    let bucket = Bucket::of(&format!("lease-{seed}"), std::slice::from_ref(&limit));
    let clients = futures_util::future::join_all(
        (0..CLIENTS).map(|index| Client::new(engine, seed ^ 0x5EED, index)),
    )
    .await;
    let limiters: Vec<RateLimiter> = clients
        .iter()
        .map(|client| {
            RateLimiter::builder(client.store.clone())
                .clock(clock)
                .default_limits([limit.clone()])
                .build()
                .unwrap()
        })
        .collect();
    let work = clients.iter().zip(&limiters).map(async |(client, limiter)| {
        let (mut granted, mut used) = (0, 0);
        for _ in 0..STEPS {
            let tokens = 1 + client.choose(5);
            match limiter
                .acquire(Request::new(bucket.entity.clone(), "gpt-4").take("rpm", tokens))
                .await
            {
                Ok(lease) => {
                    granted += tokens;
                    used += settle(client, lease, tokens).await;
                }
                Err(AcquireError::Exceeded(_) | AcquireError::Unavailable(_)) => {}
                Err(other) => panic!("{other}"),
            }
        }
        (granted, used)
    });
    let totals = futures_util::future::join_all(work).await;
    let (granted, used) = totals.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    let mut counted = 0;
    let (mut credits, mut repeated) = (0, 0);
    for (Client { proxy, store, .. }, limiter) in clients.into_iter().zip(limiters) {
        proxy.pass();
        let settled = limiter.close().await;
        drop((limiter, store));
        proxy.hung_up().await;
        if (settled.abandoned, settled.pending) != (0, 0) {
            return Err(format!("{settled:?}"));
        }
        for entry in proxy.take().iter().filter_map(Entry::read) {
            counted += entry.counted("rpm");
            if entry.is_credit() {
                credits -= entry.counted("rpm");
                repeated -= if entry.fault.repeats() { entry.counted("rpm") } else { 0 };
            }
        }
    }
    let Some((balance, consumed)) = stored(direct, &bucket, 0).await else {
        return if granted == 0 { Ok(0) } else { Err("there is no bucket".to_owned()) };
    };
    let (granted, used) = (Milli::from_tokens(granted).0, Milli::from_tokens(used).0);
    let capacity = Milli::from_tokens(CAPACITY).0;
    let sums = format!(
        "{granted} granted, {used} used, {consumed} consumed, {balance} left, {credits} given back, {repeated} repeated"
    );
    if consumed != counted {
        return Err(format!("{counted} went over the wire: {sums}"));
    }
    if consumed + repeated < used {
        return Err(format!("used and not charged: {sums}"));
    }
    if granted > capacity + credits || balance > capacity || balance + consumed > capacity {
        return Err(format!("more than there is: {sums}"));
    }
    Ok(u64::try_from(granted).unwrap() / 1000)
}

/// Ends a lease one way or another; returns what it used.
async fn settle(client: &Client, lease: Lease, taken: u64) -> u64 {
    match client.choose(5) {
        0 => {
            drop(lease);
            0
        }
        1 => {
            // An error is news, not a task.
            let _ = lease.rollback().await;
            0
        }
        2 => {
            let _ = lease.commit().await;
            taken
        }
        _ => {
            let used = client.choose(9);
            lease.record("rpm", used).unwrap();
            let _ = lease.commit().await;
            used
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_are_charged_for_what_they_used() {
    let (engine, direct, _) = table().await;
    let seeds: Vec<u64> = seeds().into_iter().step_by(2).collect();
    let runs = stream::iter(seeds.iter().copied())
        .map(async |seed| (seed, lease_run(&engine, &direct, seed).await));
    let results: Vec<(u64, Result<u64, String>)> = runs.buffer_unordered(AT_ONCE).collect().await;
    let mut granted = 0;
    for (seed, result) in results {
        granted += result
            .unwrap_or_else(|what| panic!("seed {seed} (ZAEL_SEED={seed} runs it alone): {what}"));
    }
    println!("{} runs, {granted} tokens granted", seeds.len());
    assert!(granted > 0);
}
