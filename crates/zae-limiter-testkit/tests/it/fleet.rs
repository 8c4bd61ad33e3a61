//! Fleets of processes with local blocks: how much of a limit is used, by whom, and what it costs.
//! The whole table is generated: `docs/local-blocks-figures.md`.

use std::time::Duration;

use zae_limiter_core::{Limit, Milli};
use zae_limiter_testkit::sim::fleet::{Fleet, FleetFigures};

fn limit(text: &str) -> Limit {
    text.parse().expect("a limit")
}

/// What blocks promise to every fleet.
fn check(name: &str, load: f64, figures: &FleetFigures) {
    let of = format!("{name}: {figures:?}");
    assert_eq!(figures.over, Milli::ZERO, "granted too much, {of}");
    assert_eq!(figures.other, 0, "neither granted nor refused, {of}");
    assert!(figures.refused_too_many() <= 0.005, "refused too many, {of}");
    if load >= 1.0 {
        assert!(figures.utilisation >= 0.99, "the limit is not used, {of}");
    }
    if figures.grants_per_write() >= 10.0 {
        assert!(figures.fairness >= 0.85, "not even, {of}");
    }
    if let Some(grants) = figures.busy_grants_per_write {
        assert!(grants >= 50.0, "too many writes, {of}");
    }
}

#[test]
fn blocks_use_the_whole_limit_and_share_it_evenly() {
    for (text, processes) in
        [("rpm:6000/min", 1), ("rpm:60000/min", 1), ("rpm:60000/min", 20), ("rpm:60000/min", 200)]
    {
        for load in [0.5, 0.95, 1.05, 1.5, 4.0] {
            let fleet = Fleet {
                warm_up: Duration::from_secs(10),
                measured: Duration::from_secs(20),
                ..Fleet::on_one_bucket(processes, &limit(text), load)
            };
            check(&format!("{text}, {processes} processes, load {load}"), load, &fleet.run());
        }
    }
}

#[test]
fn blocks_of_two_limits_and_of_many_keys_are_as_good() {
    let two = Fleet {
        tokens: Some(limit("tpm:30000000/min")),
        ..Fleet::on_one_bucket(20, &limit("rpm:60000/min"), 1.5)
    };
    let figures = two.run();
    check("two limits", two.load, &figures);
    assert!(figures.grants_per_write() >= 10.0, "{figures:?}");
    let keys = Fleet { buckets: 20, ..Fleet::on_one_bucket(5, &limit("rpm:6000/min"), 0.9) };
    check("many keys", keys.load, &keys.run());
}

/// What pacing is for: without blocks the processes that ask more often get more.
#[test]
fn without_blocks_who_asks_more_gets_more() {
    let fleet = Fleet::on_one_bucket(20, &limit("rpm:60000/min"), 4.0);
    let (with, without) = (fleet.run(), fleet.without_blocks().run());
    assert!(with.fairness > 0.95 && without.fairness < 0.5, "{with:?} {without:?}");
    assert!(with.writes * 25 < without.writes, "{with:?} {without:?}");
}
