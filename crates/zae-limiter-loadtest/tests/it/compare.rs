//! Two reports beside each other.

use std::time::Duration;

use zae_limiter_loadtest::compare::{differences, rows};
use zae_limiter_loadtest::{Options, Outcome, Pacing};

use crate::rig::{MS, Rig, two_ms};

fn three_ms(_: u32, _: u64) -> (Duration, Outcome) {
    (3 * MS, Outcome::Granted)
}

#[tokio::test]
async fn figures_of_the_same_scenario_are_divided() {
    let options = Options::new(2, Duration::from_secs(1));
    let before = Rig::new().scenario("loop", Pacing::ClosedLoop, two_ms).report(&options).await;
    let after = Rig::new().scenario("loop", Pacing::ClosedLoop, three_ms).report(&options).await;
    let rows = rows(&before, &after);
    let ratio = |figure: &str| {
        let row = rows.iter().find(|row| row.figure == figure).expect("a row");
        row.ratio
    };
    assert!((ratio("p50_us").unwrap() - 1.5).abs() < 0.01, "{rows:?}");
    assert!((ratio("granted_per_s").unwrap() - 0.667).abs() < 0.01, "{rows:?}");
    assert_eq!(ratio("errors"), None, "nothing is divided by nothing");
    assert!(differences(&before, &after).is_empty());
}

#[tokio::test]
async fn what_makes_two_reports_different_is_said() {
    let one = Rig::new().scenario("loop", Pacing::ClosedLoop, two_ms);
    let before = one.report(&Options::new(2, Duration::from_secs(1))).await;
    let other = Rig::new().scenario("other", Pacing::ClosedLoop, two_ms);
    let mut after = other.report(&Options::new(3, Duration::from_secs(1))).await;
    after.complete = false;
    assert_eq!(rows(&before, &after), []);
    assert_eq!(
        differences(&before, &after),
        ["users: 2 and 3", "scenarios: loop and other", "completeness: the second run was stopped"]
    );
}
