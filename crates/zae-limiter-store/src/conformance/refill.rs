//! What time brings back: exactly what the rate says, never more than the capacity, never twice.

use super::fixture::{DAY, Fixture, HOUR, MINUTE, SECOND, after, ask, at, limits, rpm};

const YEAR: i64 = 366 * DAY;

pub(super) async fn refills_match_the_golden_vectors(f: Fixture) {
    // Limit, millitokens to begin with (a multiple of 1000), milliseconds, millitokens then. The
    // reference computed these.
    let vectors = [
        ("x:60/min", 0, 1_000, 1_000),
        ("x:60/min", 0, 999, 999),
        ("x:10/day", 0, 1, 0),
        ("x:10/day", 0, 8_639, 0),
        ("x:10/day", 0, 8_640, 1),
        ("x:10/day", 0, 17_279, 1),
        ("x:10/day", 0, 17_280, 2),
        ("x:60/min", 59_000, 60_000, 60_000),
        ("x:60/min", -5_000, 3_000, -2_000),
        ("x:333/sec:1000", 0, 100, 33_300),
        ("x:1/3sec:9", 0, 1_000, 333),
        ("x:1/3sec:9", 0, 26_999, 8_999),
    ];
    for (index, (limit, before, elapsed, then)) in vectors.into_iter().enumerate() {
        let (id, x) = (format!("key-{index}"), limits(limit));
        f.take(&ask(&id, &x, "x=0"), at(0)).await;
        let used = (x.limits[0].params().capacity_milli - before).div_euclid(1_000);
        f.adjust(&ask(&id, &x, &format!("x={used}")), at(0)).await;
        let report = f.peek(&[ask(&id, &x, "x=0")], at(elapsed)).await.reports()[0];
        assert_eq!(report.balance.0, then, "{limit} from {before} after {elapsed} ms");
    }
}

pub(super) async fn a_bucket_never_holds_more_than_its_capacity(f: Fixture) {
    f.take(&rpm("key", 60), at(0)).await.granted(&[0]);
    f.take(&rpm("key", 1), at(30 * DAY)).await.granted(&[59_000]);
}

pub(super) async fn a_full_and_idle_bucket_grants_its_capacity_once(f: Fixture) {
    f.take(&rpm("key", 1), at(0)).await.granted(&[59_000]);
    f.take(&rpm("key", 60), at(HOUR)).await.granted(&[0]);
    f.take(&rpm("key", 1), at(HOUR)).await.refused(&[(0, after(1_000))]);
    f.take(&rpm("key", 1), at(HOUR + SECOND)).await.granted(&[0]);
}

pub(super) async fn a_clock_that_goes_back_adds_nothing_and_moves_nothing(f: Fixture) {
    f.take(&rpm("key", 50), at(10 * SECOND)).await.granted(&[10_000]);
    f.take(&rpm("key", 4), at(0)).await.granted(&[6_000]);
    f.take(&rpm("key", 6), at(9 * SECOND)).await.granted(&[0]);
    // Had the refill instant moved back, ten seconds would be credited twice.
    f.take(&rpm("key", 1), at(10 * SECOND)).await.refused(&[(0, after(1_000))]);
    f.take(&rpm("key", 1), at(11 * SECOND)).await.granted(&[0]);
}

pub(super) async fn a_clock_that_is_behind_waits_until_it_has_caught_up(f: Fixture) {
    f.take(&rpm("key", 60), at(10 * SECOND)).await.granted(&[0]);
    f.take(&rpm("key", 1), at(0)).await.refused(&[(0, after(11_000))]);
    f.take(&rpm("key", 1), at(11 * SECOND - 1)).await.refused(&[(999, after(1))]);
    f.take(&rpm("key", 1), at(11 * SECOND)).await.granted(&[0]);
}

pub(super) async fn a_reset_repairs_a_bucket_whose_time_is_ahead(f: Fixture) {
    f.take(&rpm("key", 60), at(10 * YEAR)).await.granted(&[0]);
    f.reset("key", None, at(0)).await;
    f.take(&rpm("key", 60), at(0)).await.granted(&[0]);
    f.take(&rpm("key", 1), at(0)).await.refused(&[(0, after(1_000))]);
    f.take(&rpm("key", 1), at(SECOND)).await.granted(&[0]);
}

/// For stores that go by the time they are told; one that asks a clock of its own is never told
/// such a time.
pub(super) async fn a_take_by_a_clock_that_is_years_ahead_freezes_nothing(f: Fixture) {
    f.take(&rpm("key", 60), at(10 * YEAR)).await.granted(&[0]);
    // The clock is right again: nothing is there yet, and it comes at the usual rate.
    f.take(&rpm("key", 1), at(0)).await.refused(&[(0, after(1_000))]);
    f.take(&rpm("key", 1), at(SECOND)).await.granted(&[0]);
    f.take(&rpm("key", 60), at(61 * SECOND)).await.granted(&[0]);
}

pub(super) async fn a_clock_that_comes_back_to_the_future_is_paid_once(f: Fixture) {
    let one = rpm("key", 1);
    f.take(&rpm("key", 60), at(0)).await.granted(&[0]);
    f.take(&rpm("key", 60), at(10 * YEAR)).await.granted(&[0]);
    // Two processes, one of them ten years ahead, for a minute of real time: a token a second,
    // whoever looks.
    let mut granted = 0;
    for second in 0..60 {
        for clock in [at(second * SECOND), at(10 * YEAR + second * SECOND)] {
            granted += i64::from(f.take(&one, clock).await.is_granted());
            granted += i64::from(f.take(&one, clock).await.is_granted());
        }
    }
    assert_eq!(granted, 59, "what a minute brings back");
}

pub(super) async fn the_wait_is_exact(f: Fixture) {
    // Rates that divide nothing evenly: refused one millisecond before the wait is over, granted
    // when it is.
    for (index, limit, tokens, wait) in [
        (0, "x:60/min", 1, 1_000),
        (1, "x:7/3sec:50", 5, 2_143),
        (2, "x:3/sec", 1, 334),
        (3, "x:10/day", 1, 8_640_000),
        (4, "x:100000/sec:7", 1, 1),
    ] {
        let (id, x) = (format!("key-{index}"), limits(limit));
        let all = format!("x={}", x.limits[0].capacity());
        f.take(&ask(&id, &x, &all), at(0)).await.granted(&[0]);
        let request = ask(&id, &x, &format!("x={tokens}"));
        f.take(&request, at(0)).await.refused(&[(0, after(wait))]);
        let wait = i64::try_from(wait).expect("a short wait");
        let early = f.take(&request, at(wait - 1)).await;
        assert!(!early.is_granted(), "{limit}: the wait of {wait} is not over, found {early:?}");
        let then = f.take(&request, at(wait)).await;
        assert!(then.is_granted(), "{limit}: the wait of {wait} is over, found {then:?}");
    }
}

pub(super) async fn the_wait_counts_what_the_last_refill_left_over(f: Fixture) {
    // A third of a millitoken a millisecond: after 500 ms 166 millitokens and two thirds.
    let x = limits("x:1/3sec:2");
    f.take(&ask("key", &x, "x=2"), at(0)).await.granted(&[0]);
    f.take(&ask("key", &x, "x=0"), at(500)).await.granted(&[166]);
    f.take(&ask("key", &x, "x=1"), at(500)).await.refused(&[(166, after(2_500))]);
    f.take(&ask("key", &x, "x=1"), at(2_999)).await.refused(&[(999, after(1))]);
    f.take(&ask("key", &x, "x=1"), at(3_000)).await.granted(&[0]);
}

pub(super) async fn limits_not_asked_for_are_refilled(f: Fixture) {
    let both = limits("rpm:60/min tpm:1000/min");
    f.take(&ask("key", &both, "rpm=60 tpm=1000"), at(0)).await.granted(&[0, 0]);
    // Whoever moves the shared refill instant credits every limit of the bucket.
    f.take(&ask("key", &both, "tpm=1"), at(30 * SECOND)).await.granted(&[499_000]);
    f.take(&ask("key", &both, "rpm=40"), at(40 * SECOND)).await.granted(&[0]);
}

pub(super) async fn a_slow_limit_beside_a_busy_one_loses_nothing(f: Fixture) {
    // Ten a day is one millitoken every 8.64 seconds: each touch is too early for it, and only the
    // remainder keeps it.
    let both = limits("fast:100/sec slow:10/day");
    f.take(&ask("key", &both, "fast=100 slow=10"), at(0)).await.granted(&[0, 0]);
    let touch = ask("key", &both, "fast=100");
    for second in 1..=3_600 {
        f.take(&touch, at(second * SECOND)).await.granted(&[0]);
    }
    assert_eq!(f.balances("key", at(HOUR)).await, [0, 416], "after an hour, touched every second");
    for step in 1..=720 {
        f.take(&touch, at(HOUR + step * 10 * SECOND)).await.granted(&[0]);
    }
    let left = f.balances("key", at(3 * HOUR)).await;
    assert_eq!(left, [0, 1_250], "after three hours to the millitoken");
    f.take(&ask("key", &both, "slow=1"), at(3 * HOUR)).await.granted(&[250]);
}

pub(super) async fn takes_at_odd_instants_lose_nothing(f: Fixture) {
    // 7 tokens in 3 seconds, touched at irregular instants: in the end what the rate says, whatever
    // came between.
    let x = limits("x:7/3sec:1000");
    f.take(&ask("key", &x, "x=1000"), at(0)).await.granted(&[0]);
    let mut now = 0;
    for step in 0..300_i64 {
        now += 1 + (step * step).rem_euclid(97);
        f.take(&ask("key", &x, "x=0"), at(now)).await;
    }
    assert_eq!(f.balances("key", at(now)).await, [(now * 7).div_euclid(3)], "after {now} ms");
}

pub(super) async fn takes_are_bounded_by_capacity_plus_rate(f: Fixture) {
    // As many as will pass for ten minutes: the burst, and one a second. Not one more.
    let rpm = limits("rpm:60/min:20");
    let one = ask("key", &rpm, "rpm=1");
    let mut granted = 0;
    for step in 0..=(10 * MINUTE / 400) {
        granted += i64::from(f.take(&one, at(step * 400)).await.is_granted());
        granted += i64::from(f.take(&one, at(step * 400)).await.is_granted());
    }
    assert_eq!(granted, 20 + 600, "the capacity and what ten minutes bring back");
}

pub(super) async fn a_full_bucket_keeps_no_remainder(f: Fixture) {
    let x = limits("x:1/3sec:2");
    f.take(&ask("key", &x, "x=1"), at(0)).await.granted(&[1_000]);
    // Full after 3000 ms; the 500 ms above it are gone, not saved for later.
    f.take(&ask("key", &x, "x=2"), at(3_500)).await.granted(&[0]);
    f.take(&ask("key", &x, "x=1"), at(6_499)).await.refused(&[(999, after(1))]);
    f.take(&ask("key", &x, "x=1"), at(6_500)).await.granted(&[0]);
}
