//! The seeded simulator over both stores. A failing seed prints itself, its trace and the command
//! that replays it.

use zae_limiter_testkit::sim::{Backend, Report, replay as replay_seed, simulate, simulate_all};

/// Seeds of a usual run; `ZAEL_SIM_SEEDS` asks for another number of each.
const MEMORY_SEEDS: u64 = 2_000;
const SQLITE_SEEDS: u64 = 800;

#[expect(
    clippy::disallowed_methods,
    reason = "the one place of the simulator that reads the environment: which seeds to run"
)]
fn setting(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Runs `count` seeds on all cores and stops at the first broken promise.
fn run_seeds(backend: Backend, count: u64) -> Vec<Report> {
    let count = setting("ZAEL_SIM_SEEDS")
        .map_or(count, |text| text.parse().expect("ZAEL_SIM_SEEDS is a number"));
    let first: u64 = setting("ZAEL_SIM_FIRST")
        .map_or(0, |text| text.parse().expect("ZAEL_SIM_FIRST is a number"));
    simulate_all(first, count, backend).unwrap_or_else(|failure| panic!("{failure}"))
}

/// A run that meets nothing proves nothing: every kind of event must have happened often enough.
#[expect(clippy::print_stdout, reason = "what a run has met, for who asks with --nocapture")]
fn check_coverage(reports: &[Report]) {
    let hundreds = reports.len().div_ceil(100) as u64;
    let sum = |count: fn(&Report) -> u64| reports.iter().map(count).sum::<u64>();
    // What, how often it happened, and how often it has to happen in a hundred runs.
    let counts = [
        ("steps", sum(|r| r.steps), 6_500),
        ("comparisons", sum(|r| r.coverage.compared), 4_000),
        ("grants", sum(|r| r.coverage.granted), 650),
        ("grants over a chain", sum(|r| r.coverage.granted_chains), 170),
        ("refusals", sum(|r| r.coverage.refused), 300),
        ("stale callers", sum(|r| r.coverage.stale), 7),
        ("takes of something disabled", sum(|r| r.coverage.disabled), 6),
        (
            "grants to a chain with a member without limits",
            sum(|r| r.coverage.granted_unlimited),
            40,
        ),
        (
            "takes stopped by a disabled member without limits",
            sum(|r| r.coverage.disabled_unlimited),
            1,
        ),
        ("changed limits", sum(|r| r.coverage.synced), 140),
        ("changed limits on a refusal", sum(|r| r.coverage.synced_on_refusal), 60),
        ("adjustments", sum(|r| r.coverage.adjusted), 400),
        ("buckets in debt", sum(|r| r.coverage.in_debt), 30),
        ("forgotten buckets", sum(|r| r.coverage.forgotten), 10),
        ("charges that brought a bucket back", sum(|r| r.coverage.recreated), 0),
        ("credits to a bucket that was gone", sum(|r| r.coverage.dropped), 1),
        ("resets", sum(|r| r.coverage.resets), 10),
        ("changes of the configuration", sum(|r| r.coverage.config_changes), 700),
        ("grants held against the history of the configuration", sum(|r| r.freshness.checked), 600),
        ("members read again after being idle beyond all trust", sum(|r| r.freshness.idle), 270),
        ("faults", sum(|r| r.faults), 600),
        ("cancelled operations", sum(|r| r.cancelled), 100),
        ("crashes", sum(|r| r.crashes), 38),
        ("leases without a decision", sum(|r| r.degraded), 140),
        ("changes the settlers gave up", sum(|r| r.lost), 115),
        ("takes from lowered limits that hide a gap", sum(|r| r.coverage.hidden_gaps), 44),
        ("grants held to the bound in real time", sum(|r| r.coverage.real_time.checked), 1_050),
        (
            "of those, grants for which no clocks had differed",
            sum(|r| r.coverage.real_time.exact),
            700,
        ),
        ("clocks that differed from the one before", sum(|r| r.coverage.real_time.apart), 260),
        ("clocks that differed as before", sum(|r| r.coverage.real_time.again), 75),
        ("hours of usage that were removed in time", sum(|r| r.coverage.hours_removed), 45),
    ];
    println!("{} runs", reports.len());
    counts.iter().for_each(|(what, count, _)| println!("{count:>9} {what}"));
    for (what, count, per_hundred) in counts {
        assert!(
            reports.len() < 100 || count >= (hundreds - 1) * per_hundred,
            "only {count} {what} in {} runs",
            reports.len()
        );
    }
}

/// The same seed is the same run.
fn check_determinism(backend: Backend) {
    for seed in 0..20 {
        let fingerprint =
            || simulate(seed, backend).unwrap_or_else(|failure| panic!("{failure}")).fingerprint;
        assert_eq!(
            fingerprint(),
            fingerprint(),
            "seed {seed} on {} is two different runs",
            backend.as_str()
        );
    }
}

#[test]
fn memory_seeds() {
    check_coverage(&run_seeds(Backend::Memory, MEMORY_SEEDS));
}

#[test]
fn sqlite_seeds() {
    check_coverage(&run_seeds(Backend::Sqlite, SQLITE_SEEDS));
}

#[test]
fn one_seed_is_one_run_in_memory() {
    check_determinism(Backend::Memory);
}

#[test]
fn one_seed_is_one_run_on_sqlite() {
    check_determinism(Backend::Sqlite);
}

/// Replays `ZAEL_SIM_SEED` on `ZAEL_SIM_STORE` (memory unless told otherwise) with its whole trace.
#[test]
fn replay() {
    let seed =
        setting("ZAEL_SIM_SEED").map_or(0, |text| text.parse().expect("ZAEL_SIM_SEED is a number"));
    let backend = match setting("ZAEL_SIM_STORE").as_deref() {
        Some("sqlite") => Backend::Sqlite,
        Some("memory") | None => Backend::Memory,
        Some(other) => panic!("ZAEL_SIM_STORE is {other:?}; use memory or sqlite"),
    };
    let (trace, result) = replay_seed(seed, backend);
    if setting("ZAEL_SIM_SEED").is_some() {
        trace.iter().for_each(|line| println!("{line}"));
    }
    if let Err(failure) = result {
        panic!("{failure}");
    }
}
