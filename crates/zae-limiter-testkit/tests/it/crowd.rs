//! Two hundred processes on one bucket, and chains beside a key that is over its own limit: what an
//! answer costs, and who is refused without need. Each test prints its row of the table in
//! `docs/benchmarks-dynamodb.md`.

#![expect(clippy::print_stdout, reason = "each test prints its row of the table")]

use std::time::Duration;

use zae_limiter_core::Limit;
use zae_limiter_testkit::sim::crowd::{Bucket, Crowd, Figures, Group};

/// Write units that one item takes in a second.
const ITEM: Option<u32> = Some(1_000);

fn run(limit_per_s: u64, asked_per_s: f64, units_per_s: Option<u32>) -> Figures {
    let crowd = Crowd { units_per_s, ..Crowd::on_one_bucket(200, limit_per_s, asked_per_s) };
    let figures = crowd.run().remove(0);
    println!(
        "| {limit_per_s}/s | {} | {figures} |",
        units_per_s.map_or_else(|| "–".to_owned(), |units| format!("{units}/s"))
    );
    figures
}

/// Never more than the limit and the tokens saved before the measurement, whatever the crowd does.
#[track_caller]
fn assert_bounded(figures: &Figures, limit_per_s: u64) {
    let grace_s = 0.1;
    let most = limit_per_s as f64 * (figures.measured.as_secs_f64() + 1.0 + grace_s);
    assert!(
        (figures.answers.granted.len() as f64) <= most,
        "{} grants, at most {most}",
        figures.answers.granted.len()
    );
}

/// Whoever could not be granted was told "short, wait", after two round trips at most.
#[track_caller]
fn assert_told_the_truth(figures: &Figures) {
    let answers = &figures.answers;
    let undecided = answers.contended + answers.busy;
    assert!(
        undecided * 100 <= answers.asked(),
        "{undecided} of {} requests were not decided",
        answers.asked()
    );
    assert!(
        figures.refusal_trips(50) <= 2,
        "a refusal takes {} round trips",
        figures.refusal_trips(50)
    );
    assert!(
        answers.waits_ms.iter().all(|wait| (1..=2_000).contains(wait)),
        "a wait that is none: {:?}",
        answers.waits_ms.iter().max()
    );
}

#[track_caller]
fn assert_units_per_grant(figures: &Figures, at_most: f64) {
    assert!(
        figures.units_per_grant() <= at_most,
        "{:.2} write units per grant, at most {at_most}",
        figures.units_per_grant()
    );
}

#[track_caller]
fn assert_granted(figures: &Figures, at_least_per_s: f64) {
    assert!(
        figures.granted_per_s() >= at_least_per_s,
        "{:.0} granted a second, at least {at_least_per_s}",
        figures.granted_per_s()
    );
}

#[test]
fn at_half_load_a_grant_is_one_write() {
    let figures = run(1_000, 492.0, None);
    assert_eq!(
        figures.answers.granted.len() as u64,
        figures.answers.asked(),
        "everybody is granted"
    );
    assert_units_per_grant(&figures, 1.3);
}

#[test]
fn above_the_limit_a_grant_costs_few_writes() {
    for (limit, asked) in [(500, 880.0), (200, 870.0)] {
        let figures = run(limit, asked, None);
        assert_bounded(&figures, limit);
        assert_granted(&figures, limit as f64 * 0.98);
        assert_units_per_grant(&figures, 3.0);
        assert_told_the_truth(&figures);
    }
}

/// Ten times the limit: most refusals must come from memory, or every one of them would be a write.
#[test]
fn far_above_the_limit_most_refusals_cost_nothing() {
    let figures = run(100, 960.0, None);
    assert_bounded(&figures, 100);
    assert_granted(&figures, 98.0);
    assert!(figures.writes.reached * 2 <= figures.answers.asked(), "{:?} writes", figures.writes);
    assert_told_the_truth(&figures);
}

#[test]
fn an_item_with_its_real_capacity_meets_the_limit() {
    let figures = run(200, 800.0, ITEM);
    assert_bounded(&figures, 200);
    assert_granted(&figures, 196.0);
    assert_told_the_truth(&figures);
    let figures = run(500, 820.0, ITEM);
    assert_bounded(&figures, 500);
    assert_granted(&figures, 475.0);
    assert_told_the_truth(&figures);
}

/// The limit is as high as the writes of one item: what is asked beyond them is turned away by the
/// table.
#[test]
fn at_the_end_of_an_items_capacity_three_of_four_writes_are_grants() {
    let figures = run(1_000, 1_370.0, ITEM);
    assert_granted(&figures, 750.0);
}

#[test]
fn a_drained_bucket_refuses_from_memory() {
    let figures = run(1, 3_955.0, ITEM);
    assert_eq!(figures.refusal_trips(50), 0);
    assert!(
        figures.writes.reached <= 210 * 5,
        "a look per process and second: {:?}",
        figures.writes
    );
}

/// Without a grace nothing is admitted early, and a hot bucket that is nearly full has a refill in
/// every take.
#[test]
fn without_grace_most_are_granted_still() {
    let crowd = Crowd {
        units_per_s: ITEM,
        fast_grace_ms: Some(0),
        ..Crowd::on_one_bucket(200, 600, 480.0)
    };
    let figures = crowd.run().remove(0);
    println!("| 600/s, no grace | 1000/s | {figures} |");
    assert_granted(&figures, 380.0);
}

#[test]
fn one_seed_is_one_crowd() {
    let row = |seed| {
        let crowd = Crowd {
            seed,
            measured: Duration::from_secs(1),
            ..Crowd::on_one_bucket(50, 200, 400.0)
        };
        crowd.run().remove(0).to_string()
    };
    assert_eq!(row(7), row(7));
    assert_ne!(row(7), row(8));
}

fn bucket(entity: &'static str, limit: Limit) -> Bucket {
    Bucket { entity, limit }
}

fn per_second(tokens: u64) -> Limit {
    Limit::per_second("rps", tokens).expect("a limit")
}

/// Requests of a third of the parent, by a sibling at half of the parent's rate, beside processes
/// in which one key over its own limit keeps asking.
fn beside(noisy: u32, own: Limit) -> Vec<Figures> {
    let parent = bucket("project", per_second(300));
    let groups = vec![
        Group {
            clients: noisy,
            callers: 1,
            chain: vec![bucket("noisy", own), parent.clone()],
            tokens: 100,
            asked_per_s: 10.0 * f64::from(noisy),
        },
        Group {
            clients: 1,
            callers: 1,
            chain: vec![bucket("sibling", per_second(10_000)), parent],
            tokens: 100,
            asked_per_s: 1.5,
        },
    ];
    let crowd = Crowd { measured: Duration::from_secs(60), ..Crowd::of(groups) };
    let figures = crowd.run();
    println!(
        "{noisy} processes beside: sibling granted {:.1} % | {} | the others | {}",
        figures[1].answers.granted_percent(),
        figures[1],
        figures[0]
    );
    figures
}

#[test]
fn a_key_over_its_own_limit_does_not_starve_its_siblings() {
    for noisy in [5, 20, 100] {
        let drained = Limit::per_day("rps", 300).expect("a limit");
        let figures = beside(noisy, drained);
        assert!(figures[1].answers.granted_percent() >= 99.0, "{:?}", figures[1].answers);
        // One that regains a request now and then: every process believes at times that it is its
        // turn.
        let figures = beside(noisy, per_second(10).with_burst(100).expect("a limit"));
        assert!(figures[1].answers.granted_percent() >= 99.0, "{:?}", figures[1].answers);
    }
}
