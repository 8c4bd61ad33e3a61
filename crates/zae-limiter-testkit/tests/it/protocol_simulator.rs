//! The seeded simulator over the DynamoDB protocol. A failing seed prints itself, its trace and the command that replays it.
//! `docs/protocol-simulator.md` says what is simulated, what is checked, and which guard of the protocol it misses when it
//! is gone.

use zae_limiter_dynamodb::write::{REGISTRY, Writer};
use zae_limiter_testkit::sim::{Backend, Report, replay as replay_seed, simulate_all};

/// Seeds of a usual run; `ZAEL_SIM_SEEDS` asks for another number, `ZAEL_SIM_FIRST` for others.
const SEEDS: u64 = 5_000;

#[expect(clippy::disallowed_methods, reason = "the one place of the simulator that reads the environment: which seeds to run")]
fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// Runs the seeds on all cores and stops at the first broken promise.
fn run_seeds() -> Vec<Report> {
    let (count, first) = (setting("ZAEL_SIM_SEEDS").unwrap_or(SEEDS), setting("ZAEL_SIM_FIRST").unwrap_or(0));
    simulate_all(first, count, Backend::Dynamo).unwrap_or_else(|failure| panic!("{failure}"))
}

/// How often each writer has to land in a thousand runs.
fn needed(writer: Writer) -> u64 {
    match writer {
        Writer::Fast | Writer::Create | Writer::Credit => 2_000,
        Writer::Refill | Writer::BlindFill | Writer::Sync | Writer::ChargeFast => 200,
        Writer::SyncOnly | Writer::Flag | Writer::ChargeRefill => 100,
        Writer::Reset | Writer::Recreate => 6,
        Writer::ChargePlain => 1,
    }
}

/// A run that meets nothing proves nothing: every writer and every kind of event must have happened often enough.
#[test]
fn seeds() {
    let reports = run_seeds();
    let sum = |count: &dyn Fn(&Report) -> u64| reports.iter().map(count).sum::<u64>();
    let mut counts: Vec<(String, u64, u64)> = (0..)
        .zip(REGISTRY)
        .map(|(place, rules)| (format!("landed: {:?}", rules.writer), sum(&|r| r.protocol.writers[place]), needed(rules.writer)))
        .collect();
    // What, how often it happened, and how often it has to happen in a thousand runs.
    let mut event = |what: &str, count: u64, per_thousand: u64| counts.push((what.to_owned(), count, per_thousand));
    event("steps", sum(&|r| r.steps), 40_000);
    event("calls that failed, were lost or came late", sum(&|r| r.faults), 10_000);
    event("writes that landed late", sum(&|r| r.protocol.late), 300);
    event("writes that were delivered twice", sum(&|r| r.protocol.copies), 1_000);
    event("copies that landed", sum(&|r| r.protocol.copies_landed), 20);
    event("writes held to the ideal bucket exactly", sum(&|r| r.protocol.exact), 5_000);
    event("operations that landed twice, and were counted", sum(&|r| r.protocol.doubled), 1);
    event("takes that landed unheard", sum(&|r| r.protocol.unheard), 20);
    event("credits the stores gave up, and counted", sum(&|r| r.protocol.credits_lost), 20);
    event("credits that found nothing to give back to", sum(&|r| r.protocol.credits_gone), 5);
    event("chains that were refused and given back", sum(&|r| r.protocol.compensated), 300);
    event("buckets in debt", sum(&|r| r.protocol.in_debt), 100);
    event("buckets that hide a gap", sum(&|r| r.protocol.gaps), 50);
    event("expired buckets", sum(&|r| r.protocol.swept), 50);
    event("deleted buckets", sum(&|r| r.protocol.deleted), 1);
    event("foreign writes", sum(&|r| r.protocol.foreign), 100);
    event("damaged items", sum(&|r| r.protocol.damaged), 20);
    event("clocks that stepped", sum(&|r| r.protocol.stepped), 300);
    event("cancelled operations", sum(&|r| r.cancelled), 500);
    event("crashes", sum(&|r| r.crashes), 200);
    event("leases without a decision", sum(&|r| r.degraded), 100);
    event("changes the settlers gave up", sum(&|r| r.lost), 50);
    println!("{} runs", reports.len());
    counts.iter().for_each(|(what, count, _)| println!("{count:>9} {what}"));
    let thousands = reports.len() as u64 / 1_000;
    for (what, count, per_thousand) in counts {
        assert!(count >= thousands * per_thousand, "only {count} {what} in {} runs", reports.len());
    }
}

/// The same seed is the same run.
#[test]
fn one_seed_is_one_run() {
    for seed in 0..50 {
        let fingerprint = || replay_seed(seed, Backend::Dynamo).1.unwrap_or_else(|failure| panic!("{failure}")).fingerprint;
        assert_eq!(fingerprint(), fingerprint(), "seed {seed} is two different runs");
    }
}

/// Replays `ZAEL_SIM_SEED` with its whole trace.
#[test]
fn replay() {
    let seed = setting("ZAEL_SIM_SEED");
    let (trace, result) = replay_seed(seed.unwrap_or(0), Backend::Dynamo);
    if seed.is_some() {
        trace.iter().for_each(|line| println!("{line}"));
    }
    if let Err(failure) = result {
        panic!("{failure}");
    }
}
