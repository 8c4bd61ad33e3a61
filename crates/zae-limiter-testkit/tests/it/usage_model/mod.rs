//! A model check of usage: records of the stream are counted into snapshots by two workers that
//! read any batches, crash and begin again, and whose writes land without a reply. With all guards
//! on every record is counted once and in its hour; with any one off it is not.
//! `docs/protocol-model.md` says what is modelled and shows the counterexamples.

mod guards;
mod model;
mod properties;
mod records;
mod setups;

use guards::Guard;
use model::{Setup, Usage};
use properties::{READ, Rule};
use setups::{ALONE, LARGE, SHARDS, STREAM, UNDO, UNDO_AT_ONCE, UNDO_TWICE};
use stateright::{Checker, HasDiscoveries, Model};

/// More states than any setup has: a setup that grows beyond is a mistake, not a long run.
const STATES_MAX: usize = 20_000_000;

/// Guards, the setup in which their absence shows, and the promise that breaks.
const NEEDED: &[(&[Guard], &Setup, Rule)] = &[
    (&[Guard::Watermark], &STREAM, Rule::Once),
    (&[Guard::PerShard], &SHARDS, Rule::Once),
    (&[Guard::PerSnapshot], &STREAM, Rule::Once),
    (&[Guard::ZeroIsWritten], &UNDO_AT_ONCE, Rule::Once),
    (&[Guard::DropRecords], &STREAM, Rule::Once),
    (&[Guard::ParentFirst], &STREAM, Rule::Once),
    (&[Guard::CheckpointAfter], &STREAM, Rule::Once),
    (&[Guard::UndoInItsHour], &UNDO, Rule::OwnHour),
    (&[Guard::UndoByItsMark], &UNDO, Rule::OwnHour),
    (&[Guard::UndoMarkIsNew], &UNDO, Rule::OwnHour),
    (&[Guard::UndoMarkIsUnique], &UNDO_TWICE, Rule::OwnHour),
    (&[Guard::UndoTakesEvent], &UNDO, Rule::Events),
];

/// Explores everything and fails with the shortest way to a broken promise.
#[expect(clippy::print_stdout, reason = "the sizes are part of the documentation")]
fn check(setup: &'static Setup) {
    let checker = Usage::new(setup, &[], None)
        .checker()
        .threads(1)
        .target_state_count(STATES_MAX)
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    let (states, unique) = (checker.state_count(), checker.unique_state_count());
    println!(
        "{}: {states} states, {unique} of them different, depth {}",
        setup.name,
        checker.max_depth()
    );
    let broken: Vec<_> = checker
        .discoveries()
        .into_iter()
        .filter(|(rule, _)| *rule != READ)
        .map(|(rule, path)| format!("{rule}: {:?}", path.into_actions()))
        .collect();
    assert!(broken.is_empty(), "{}: {broken:#?}", setup.name);
    assert!(states < STATES_MAX, "{}: not explored to the end", setup.name);
    assert!(checker.discovery(READ).is_some(), "{}: never read to its end", setup.name);
}

/// The shortest way to break `rule`, if there is one.
fn shortest(off: &'static [Guard], setup: &'static Setup, rule: Rule) -> Option<String> {
    let checker = Usage::new(setup, off, Some(rule))
        .checker()
        .threads(1)
        .target_state_count(STATES_MAX)
        .finish_when(HasDiscoveries::Any)
        .spawn_bfs()
        .join();
    let actions = checker.discovery(rule.name())?.into_actions();
    Some(actions.iter().map(|action| format!("{action:?}")).collect::<Vec<_>>().join(" > "))
}

#[test]
fn two_workers_count_every_record_once() {
    check(&STREAM);
}

#[test]
fn bucket_shards_are_counted_side_by_side() {
    check(&SHARDS);
}

#[test]
fn a_worker_that_fails_often_counts_every_record_once() {
    check(&ALONE);
}

#[test]
fn what_a_refused_chain_gave_back_is_usage_of_no_hour() {
    check(&UNDO);
    check(&UNDO_TWICE);
}

#[test]
fn records_that_sum_to_nothing_are_counted_too() {
    check(&UNDO_AT_ONCE);
}

#[test]
fn two_workers_that_fail_often_count_every_record_once() {
    check(&LARGE);
}

#[test]
fn each_guard_is_needed() {
    let mut missed = Vec::new();
    for (off, setup, rule) in NEEDED {
        match shortest(off, setup, *rule) {
            Some(path) => println!("| {off:?} | {} | {} | {path} |", setup.name, rule.name()),
            None => missed.push(format!("{off:?} in {}", setup.name)),
        }
    }
    assert!(missed.is_empty(), "no counterexample without: {missed:#?}");
}

#[test]
fn no_guard_is_left_out() {
    let switched: Vec<Guard> = NEEDED.iter().flat_map(|(off, ..)| *off).copied().collect();
    let left_out: Vec<&Guard> =
        Guard::ALL.iter().filter(|guard| !switched.contains(guard)).collect();
    assert!(left_out.is_empty(), "{left_out:?}");
}
