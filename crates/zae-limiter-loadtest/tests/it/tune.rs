//! The best number of users.

use std::time::Duration;

use zae_limiter_loadtest::report::Report;
use zae_limiter_loadtest::tune::Tuning;
use zae_limiter_loadtest::{Options, Outcome, Pacing};

use crate::rig::{MS, Rig, two_ms};

/// A report with this p95, made of a real one.
async fn report(p95_us: f64, errors: u64) -> Report {
    let rig = Rig::new().scenario("loop", Pacing::ClosedLoop, two_ms);
    let mut report = rig.report(&Options::new(1, Duration::from_millis(20))).await;
    report.total.latency_us.p95 = p95_us;
    report.total.errors = errors;
    report
}

/// Searches where `p95` says what so many users see; the users that were tried, and the best.
async fn search(max: u32, p95: impl Fn(u32) -> f64) -> (Vec<u32>, u32) {
    let mut tuning = Tuning::new(0.8);
    while let Some(users) = tuning.next(max) {
        assert!(tuning.steps.len() < 64, "it ends");
        tuning.add(users, &report(p95(users), 0).await);
    }
    let best = tuning.best_users.expect("one user is as fast as one user");
    (tuning.steps.iter().map(|step| step.users).collect(), best)
}

#[tokio::test]
async fn the_most_users_that_are_served_as_fast_as_one_are_found() {
    for knee in [1, 2, 3, 9, 16, 31, 40] {
        let (tried, best) = search(40, |users| if users <= knee { 100.0 } else { 130.0 }).await;
        assert_eq!(best, knee, "{tried:?}");
        assert!(tried.len() <= 12, "{tried:?}");
    }
    let (tried, best) = search(40, |_| 100.0).await;
    assert_eq!((tried, best), (vec![1, 2, 4, 8, 16, 32, 40], 40));
    let (tried, best) = search(1, |_| 100.0).await;
    assert_eq!((tried, best), (vec![1], 1));
}

#[tokio::test]
async fn a_step_with_errors_is_not_good() {
    let mut tuning = Tuning::new(0.8);
    tuning.add(1, &report(100.0, 0).await);
    tuning.add(2, &report(100.0, 1).await);
    assert_eq!((tuning.best_users, tuning.next(40)), (Some(1), None));
}

#[tokio::test]
async fn no_answer_at_all_is_not_fast() {
    let rig = Rig::new().scenario("fails", Pacing::Every(10 * MS), |_, _| {
        (MS, Outcome::Failed("unavailable".to_owned()))
    });
    let report = rig.report(&Options::new(1, Duration::from_millis(100))).await;
    let mut tuning = Tuning::new(0.8);
    tuning.add(1, &report);
    assert_eq!((tuning.steps[0].efficiency, tuning.next(8)), (0.0, None));
    assert_eq!(tuning.steps[0].p95_us, None, "not zero microseconds");
    assert_eq!(tuning.best_users, None, "one user alone was not served");
}

#[tokio::test]
async fn nothing_that_was_not_measured_is_the_best() {
    let mut tuning = Tuning::new(0.8);
    assert_eq!(tuning.best_users, None);
    tuning.add(1, &report(100.0, 1).await);
    assert_eq!((tuning.best_users, tuning.next(8)), (None, None), "with errors");
}
