//! Users: when they start, what a stall costs, how they end.

use std::time::Duration;

use zae_limiter_loadtest::{Interval, Options, Outcome, Pacing, Tally, engine};

use crate::rig::{MS, Rig, two_ms};

const SECOND: Duration = Duration::from_secs(1);

fn sum(intervals: &[Interval], index: usize) -> Tally {
    let mut sum = Tally::default();
    intervals.iter().filter_map(|it| it.tallies.get(index)).for_each(|it| sum.merge(it));
    sum
}

/// Ten calls a second; the fourth one of each user takes a second and a half.
fn one_stall(_: u32, call: u64) -> (Duration, Outcome) {
    (if call == 3 { 1_500 * MS } else { 2 * MS }, Outcome::Granted)
}

#[tokio::test]
async fn a_stall_is_charged_to_every_call_that_it_delays() {
    let rig = Rig::new().scenario("paced", Pacing::Every(100 * MS), one_stall);
    let (intervals, _) = rig.run(&Options::new(1, 4 * SECOND), None).await;
    let tally = sum(&intervals, 0);
    assert_eq!((tally.granted.count(), tally.unsent), (40, 0));
    // By brute force: a call is due every 100 ms, begins when the one before is over, and is as
    // late as that makes it.
    let (mut free, mut latencies) = (Duration::ZERO, Vec::new());
    for call in 0..40_u32 {
        let due = 100 * MS * call;
        free = free.max(due) + one_stall(0, u64::from(call)).0;
        latencies.push((free - due).as_secs_f64() * 1e6);
    }
    latencies.sort_by(f64::total_cmp);
    for (part, rank) in [(0.5, 20), (0.75, 30), (0.95, 38), (1.0, 40)] {
        let (found, exact) = (tally.granted.quantile_us(part), latencies[rank - 1]);
        assert!((found - exact).abs() <= exact / 500.0, "{part}: {found} is not {exact}");
    }
    // What the calls themselves took hides it.
    assert!(tally.service.quantile_us(0.95) < 2_100.0);
    assert!(tally.granted.quantile_us(0.75) > 100_000.0);
}

#[tokio::test]
async fn a_closed_loop_measures_the_calls_it_makes_and_says_so() {
    let rig = Rig::new().scenario("loop", Pacing::ClosedLoop, one_stall);
    let report = rig.report(&Options::new(1, 4 * SECOND)).await;
    assert!(report.total.latency_us.p99 < 2_100.0, "{:?}", report.total.latency_us);
    assert!(report.measured.contains("(coordinated omission)"), "{}", report.measured);
    let rig = Rig::new().scenario("paced", Pacing::Every(100 * MS), one_stall);
    let report = rig.report(&Options::new(1, 4 * SECOND)).await;
    assert!(report.measured.contains("(no coordinated omission)"), "{}", report.measured);
    let rig = Rig::new().scenario("loop", Pacing::ClosedLoop, two_ms).scenario(
        "paced",
        Pacing::Every(100 * MS),
        two_ms,
    );
    let report = rig.report(&Options::new(2, SECOND)).await;
    assert_eq!(report.total.pacing, "mixed");
    assert_eq!(report.total.granted, report.scenarios.iter().map(|it| it.granted).sum::<u64>());
}

#[tokio::test]
async fn users_start_at_their_rate() {
    let rig = Rig::new().scenario("paced", Pacing::Every(10 * MS), two_ms);
    let mut options = Options::new(6, 5 * SECOND);
    options.spawn_rate = Some(2.0);
    let (intervals, _) = rig.run(&options, None).await;
    assert_eq!(intervals.iter().map(|it| it.users).collect::<Vec<_>>(), [2, 4, 6, 6, 6]);
    assert_eq!(intervals.iter().map(|it| it.number).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    assert!(intervals.iter().all(|it| it.ms == 1_000), "{intervals:?}");
}

#[tokio::test]
async fn users_of_several_processes_have_different_numbers_and_every_scenario_its_share() {
    let mut all = Vec::new();
    let mut calls = [0, 0];
    for number in 0..4 {
        let rig = Rig::new().scenario("one", Pacing::Every(100 * MS), two_ms).scenario(
            "two",
            Pacing::Every(100 * MS),
            two_ms,
        );
        let mut options = Options::new(1, SECOND);
        options.numbers = (number, 4);
        let (intervals, _) = rig.run(&options, None).await;
        all.extend(rig.seen.lock().expect("no panic").iter().copied());
        calls[0] += sum(&intervals, 0).calls();
        calls[1] += sum(&intervals, 1).calls();
    }
    all.sort_unstable();
    all.dedup();
    assert_eq!(all, [0, 1, 2, 3]);
    assert_eq!(calls, [20, 20]);
}

/// Never answers, from the third call on.
fn hangs(_: u32, call: u64) -> (Duration, Outcome) {
    (if call < 2 { 2 * MS } else { Duration::MAX / 4 }, Outcome::Granted)
}

#[tokio::test]
async fn calls_that_never_end_are_told_and_those_behind_them_too() {
    let rig = Rig::new().scenario("well", Pacing::Every(100 * MS), two_ms).scenario(
        "hangs",
        Pacing::Every(100 * MS),
        hangs,
    );
    let (intervals, took) = rig.run(&Options::new(4, 2 * SECOND), None).await;
    assert!(took >= 2 * SECOND + engine::GRACE && took < 3 * SECOND + engine::GRACE, "{took:?}");
    let (well, bad) = (sum(&intervals, 0), sum(&intervals, 1));
    assert_eq!((well.granted.count(), well.failed.count(), well.unsent), (40, 0, 0));
    // Two users: two calls each were granted, the third hangs, seventeen were never sent.
    assert_eq!((bad.granted.count(), bad.errors["abandoned"], bad.unsent), (4, 2, 34));
    // It was due 200 ms after the start, and was given up 11 s after the end.
    assert!(bad.failed.max_us() > 12_500_000.0, "{}", bad.failed.max_us());
}

#[tokio::test]
async fn a_run_that_is_stopped_tells_what_there_was() {
    let rig = Rig::new().scenario("paced", Pacing::Every(100 * MS), two_ms).scenario(
        "hangs",
        Pacing::Every(100 * MS),
        hangs,
    );
    let (intervals, took) = rig.run(&Options::new(2, 60 * SECOND), Some(2_450 * MS)).await;
    assert!(took < 3 * SECOND, "{took:?}");
    assert_eq!(intervals.iter().map(|it| it.ms).sum::<u64>(), 2_450);
    let (well, bad) = (sum(&intervals, 0), sum(&intervals, 1));
    assert_eq!((well.granted.count(), well.unsent), (25, 0));
    // Nobody waited for the call, so that nobody can say it failed.
    assert_eq!((bad.granted.count(), bad.failed.count()), (2, 0));
}

#[tokio::test]
async fn intervals_are_numbered_by_time_also_where_nobody_looked() {
    let rig = Rig::new().scenario("paced", Pacing::Every(100 * MS), two_ms);
    let options = Options::new(1, 5 * SECOND);
    let clock = rig.clock.clone();
    // The process stands still for two seconds in the middle of the second interval.
    let held = async {
        use zae_limiter::Clock as _;
        clock.sleep(1_500 * MS).await;
        clock.advance(2 * SECOND);
        std::future::pending::<()>().await;
    };
    let mut held = std::pin::pin!(held);
    let mut run = std::pin::pin!(rig.run(&options, None));
    let (intervals, _) = std::future::poll_fn(|context| {
        let _ = held.as_mut().poll(context);
        run.as_mut().poll(context)
    })
    .await;
    let told: Vec<(u64, u64)> = intervals.iter().map(|it| (it.number, it.ms)).collect();
    assert_eq!(told, [(0, 1_000), (1, 2_500), (3, 500), (4, 1_000)]);
    assert_eq!(intervals.iter().map(|it| it.from_ms).collect::<Vec<_>>(), [0, 1_000, 3_500, 4_000]);
    let tally = sum(&intervals, 0);
    assert_eq!((tally.granted.count() + tally.unsent, tally.unsent), (50, 0), "all were sent");
    assert!(tally.granted.max_us() > 1_900_000.0, "and late: {}", tally.granted.max_us());
}
