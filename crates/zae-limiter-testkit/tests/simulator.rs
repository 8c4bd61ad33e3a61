//! The seeded simulator over both stores. A failing seed prints itself, its trace and the command that replays it.

use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use zae_limiter_testkit::sim::{Backend, Report, replay as replay_seed, simulate};

/// Seeds of a usual run; `ZAEL_SIM_SEEDS` asks for another number of each.
const MEMORY_SEEDS: u64 = 1_600;
const SQLITE_SEEDS: u64 = 600;

#[expect(clippy::disallowed_methods, reason = "the one place of the simulator that reads the environment: which seeds to run")]
fn setting(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Runs `count` seeds on all cores and stops at the first broken promise.
fn run_seeds(backend: Backend, count: u64) -> Vec<Report> {
    let count = setting("ZAEL_SIM_SEEDS").map_or(count, |text| text.parse().expect("ZAEL_SIM_SEEDS is a number"));
    let first: u64 = setting("ZAEL_SIM_FIRST").map_or(0, |text| text.parse().expect("ZAEL_SIM_FIRST is a number"));
    let (next, reports, failure) = (AtomicU64::new(0), Mutex::new(Vec::new()), Mutex::new(None));
    let threads = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while failure.lock().expect("no panic").is_none() {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count {
                        break;
                    }
                    match simulate(first + index, backend) {
                        Ok(report) => reports.lock().expect("no panic").push(report),
                        Err(found) => *failure.lock().expect("no panic") = Some(found),
                    }
                }
            });
        }
    });
    if let Some(failure) = failure.into_inner().expect("no panic") {
        panic!("{failure}");
    }
    reports.into_inner().expect("no panic")
}

/// A run that meets nothing proves nothing: every kind of event must have happened often.
fn check_coverage(reports: &[Report]) {
    let sum = |count: fn(&Report) -> u64| reports.iter().map(count).sum::<u64>();
    let seeds = reports.len() as u64;
    let counts = [
        ("granted", sum(|r| r.coverage.granted), 10),
        ("granted chains", sum(|r| r.coverage.granted_chains), 2),
        ("refused", sum(|r| r.coverage.refused), 2),
    ];
    println!("{seeds} seeds");
    for (what, count, per_seed) in counts {
        println!("{what}: {count}");
        assert!(count >= seeds * per_seed, "{what}: {count} in {seeds} seeds");
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

/// Replays `ZAEL_SIM_SEED` on `ZAEL_SIM_STORE` (memory unless told otherwise) with its whole trace.
#[test]
fn replay() {
    let seed = setting("ZAEL_SIM_SEED").map_or(0, |text| text.parse().expect("ZAEL_SIM_SEED is a number"));
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
