//! The seeds of a test.

use super::{BlockRun, Ground, simulate};

/// Runs `usual` seeds, each on a ground of its own, on two threads; panics with the first that
/// breaks a promise. `ZAEL_SIM_SEEDS` says how many there are and `ZAEL_SIM_FIRST` where they begin.
/// A hundred and more must have seen all there is to see.
pub fn run_seeds<G: Ground>(usual: u64, ground: impl Fn(u64) -> G + Sync) -> BlockRun {
    let (first, seeds) = (asked("ZAEL_SIM_FIRST", 0), asked("ZAEL_SIM_SEEDS", usual));
    let half = |rest: u64| {
        let mut sum = BlockRun::default();
        for seed in (first..first.saturating_add(seeds)).filter(|seed| seed % 2 == rest) {
            match simulate(seed, &ground(seed)) {
                Ok(run) => sum = sum.and(run),
                Err(failure) => panic!("seed {seed}: {failure}"),
            }
        }
        sum
    };
    let all = std::thread::scope(|scope| {
        let odd = scope.spawn(|| half(1));
        half(0).and(odd.join().expect("no broken promise"))
    });
    #[expect(clippy::print_stdout, reason = "what a run was like, for who runs it by hand")]
    {
        println!("{all:?}");
    }
    let is_all = [all.local, all.orders, all.faults].iter().all(|count| *count > seeds);
    assert!(
        seeds < 100 || is_all && all.crashes > 0,
        "{seeds} seeds have seen too little: {all:?}"
    );
    all
}

fn asked(name: &str, usual: u64) -> u64 {
    #[expect(clippy::disallowed_methods, reason = "how many seeds to run is asked for by hand")]
    let asked = std::env::var(name).ok();
    asked.and_then(|text| text.parse().ok()).unwrap_or(usual)
}
