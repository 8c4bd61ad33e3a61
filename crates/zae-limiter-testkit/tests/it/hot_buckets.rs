//! Many processes on one bucket that is spread over shards: each item takes a thousand write units
//! a second, failed conditions included. Each test prints its row of the table in
//! `docs/benchmarks-dynamodb.md`.

#![expect(clippy::print_stdout, reason = "each test prints its row of the table")]

use std::time::Duration;

use zae_limiter_core::Limit;
use zae_limiter_testkit::sim::crowd::{Bucket, Crowd, Figures, Group};

/// A bucket of 32 shards that is asked by processes of eight callers each.
struct Hot {
    what: &'static str,
    processes: u32,
    capacity: u64,
    per_s: u64,
    asked_per_s: f64,
    /// Tokens that are gone at the start.
    spent: u64,
    measured: Duration,
}

impl Hot {
    fn crowd(&self) -> Crowd {
        let limit = Limit::custom("rps", self.capacity, self.per_s, 1).expect("a limit");
        let group = Group {
            clients: self.processes,
            callers: 8,
            chain: vec![Bucket { entity: "hot", limit }],
            tokens: 1,
            asked_per_s: self.asked_per_s,
        };
        Crowd {
            units_per_s: Some(1_000),
            shards: 32,
            spent: self.spent,
            warm_up: Duration::from_millis(400),
            measured: self.measured,
            ..Crowd::of(vec![group])
        }
    }

    fn run(&self) -> Figures {
        self.run_as(&self.crowd())
    }

    fn run_as(&self, crowd: &Crowd) -> Figures {
        let figures = crowd.run().remove(0);
        let Hot { what, processes, per_s, .. } = self;
        println!("| {what} | {processes} | {per_s}/s | {} |", figures.sharded_row());
        // What there was, what was regained, and what FAST admits early, once.
        let grace_s = 0.1;
        let regained = *per_s as f64 * (figures.whole.as_secs_f64() + grace_s);
        let most = (self.capacity - self.spent) as f64 + regained;
        let granted = figures.answers.granted_in_all;
        assert!(granted as f64 <= most, "{granted} grants, at most {most}");
        figures
    }
}

/// The limit is far away: what one item takes is all that counts.
const ENOUGH: Hot = Hot {
    what: "enough for all",
    processes: 50,
    capacity: 40_000,
    per_s: 40_000,
    asked_per_s: 21_000.0,
    spent: 0,
    measured: Duration::from_millis(600),
};

/// Twice the limit is asked, from the first instant on.
const OVERLOAD: Hot = Hot {
    what: "asked twice its rate",
    processes: 50,
    capacity: 10_000,
    per_s: 10_000,
    asked_per_s: 20_000.0,
    spent: 10_000,
    measured: Duration::from_millis(1_000),
};

/// Nearly everybody is refused.
const STORM: Hot = Hot {
    what: "refusal storm",
    processes: 50,
    capacity: 2_000,
    per_s: 10,
    asked_per_s: 5_000.0,
    spent: 2_000,
    measured: Duration::from_millis(1_600),
};

#[track_caller]
fn assert_nothing_throttled(figures: &Figures) {
    assert_eq!((figures.writes.throttled, figures.answers.busy), (0, 0), "throttled, busy");
}

#[track_caller]
fn assert_failed(figures: &Figures, at_most: f64) {
    let failed = figures.failed_per_process_and_s();
    assert!(failed <= at_most, "{failed:.1} failed units a process and second");
}

#[test]
fn thirty_two_shards_sustain_twenty_thousand_takes_a_second() {
    let figures = ENOUGH.run();
    assert!(figures.granted_per_s() >= 20_000.0, "{:.0} a second", figures.granted_per_s());
    assert_nothing_throttled(&figures);
    assert_failed(&figures, 30.0);
}

#[test]
fn twice_the_rate_is_granted_the_rate() {
    let figures = OVERLOAD.run();
    assert!(figures.granted_per_s() >= 9_500.0, "{:.0} a second", figures.granted_per_s());
    assert_nothing_throttled(&figures);
    assert_failed(&figures, 250.0);
}

#[test]
fn a_refusal_storm_costs_few_reads_and_writes() {
    // A limit below 320 is not divided: all of it is on shard 0.
    let pinned = Hot { what: "the same, pinned", capacity: 300, spent: 300, ..STORM };
    for hot in [STORM, pinned] {
        let figures = hot.run();
        let reads = figures.gather_reads_per_process_and_s();
        assert!(reads <= 4.0, "{reads:.2} gather reads a process and second");
        assert_failed(&figures, 60.0);
        assert_nothing_throttled(&figures);
    }
}

/// Reported; only the bound of what is granted is asserted.
#[test]
fn two_hundred_processes_are_granted_no_more() {
    let measured = Duration::from_millis(400);
    for hot in [ENOUGH, OVERLOAD, STORM] {
        Hot { processes: 200, measured, ..hot }.run();
    }
}

/// One item that is asked for more than it takes: its takers split it. `ZAEL_CROWD_LONG` asks for
/// more, until there are 32 shards: a minute of CPU.
#[test]
#[expect(clippy::disallowed_methods, reason = "who runs the test may ask for more")]
fn a_bucket_is_split_by_its_own_pressure() {
    let (what, asked_per_s, warm_up_s, shards) = match std::env::var_os("ZAEL_CROWD_LONG") {
        None => ("one item at first", 6_000.0, 1, 4),
        Some(_) => ("the same, for long", 30_000.0, 7, 32),
    };
    let hot = Hot { what, asked_per_s, measured: Duration::from_millis(400), ..ENOUGH };
    let warm_up = Duration::from_secs(warm_up_s);
    let figures = hot.run_as(&Crowd { shards: 1, warm_up, ..hot.crowd() });
    for shards in [2, 4, 8, 16, 32] {
        if let Some(at) = figures.splits.get(shards - 2) {
            println!("{shards} shards after {} ms", at.as_millis());
        }
    }
    assert!(figures.splits.len() + 1 >= shards, "{} splits", figures.splits.len());
    assert!(figures.granted_per_s() >= asked_per_s / 2.0, "{:.0}", figures.granted_per_s());
}
