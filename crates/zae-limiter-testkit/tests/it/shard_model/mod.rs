//! A model check of buckets of several shards: every interleaving of a few clients and agents in a
//! small world, judged after each step against an ideal bucket of one item. With all guards on
//! nothing breaks; with any one off something does. `docs/protocol-model.md` says what is modelled
//! and shows the counterexamples.

mod bucket;
mod gather;
mod guards;
mod model;
mod properties;
mod registry;
mod setups;
mod shard;
mod steps;
mod upkeep;
mod world;
mod writes;

use guards::Guard;
use model::Shards;
use properties::Rule;
use registry::{Part, part_of};
use setups::{
    BLIND, BLIND_ERA, CORE, CORE_LARGE, CORE_TWO, DEBT, DELETE, DELETE_LARGE, DISABLE, DROP,
    DROP_FOLD, DROP_FOLD_LARGE, DROP_PIN, ERA, GAP, GAP_LARGE, GAP_TWO, GATHER, GATHER_PIN,
    GATHER_PIN_LARGE, GATHER_TWO, LOSSES, LOSSES_FOUR, NAMES, ODD, ODD_FOUR, ODD_GAP, ORPHAN, PIN,
    PIN_COUNT, PIN_FOUR, PIN_LARGE, REPAIR, REPAIR_FOUR, STRANGER, SYNC, SYNC_LARGE, SYNC_LONG,
    SYNC_TWO, SYNC_TWO_LARGE, Setup, TREE, TREE_BIRTH, TREE_EXPIRY, TREE_LARGE,
};
use stateright::{Checker, HasDiscoveries, Model, Property};
use zae_limiter_dynamodb::bucket::writers::REGISTRY;

/// More states than any setup has: a setup that grows beyond is a mistake, not a long run.
const STATES_MAX: usize = 20_000_000;

/// Guards, the setup in which their absence shows, and the promise that breaks.
const NEEDED: &[(&[Guard], &Setup, Rule)] = &[
    (&[Guard::SharesSum], &ODD, Rule::Window),
    (&[Guard::FastPinsN], &CORE, Rule::NoMint),
    (&[Guard::RefillPinsN, Guard::SplitMovesRf], &CORE, Rule::Ceiling),
    (&[Guard::BlindPinsN], &BLIND, Rule::Ceiling),
    (&[Guard::SyncPinsN, Guard::SplitMovesRf], &SYNC, Rule::Ceiling),
    (&[Guard::PinsEra], &ERA, Rule::NoMint),
    (&[Guard::SplitPinsN, Guard::ChildAbsent, Guard::SplitMovesRf], &CORE, Rule::NoMint),
    (&[Guard::SplitPinsRf], &CORE, Rule::NoMint),
    (&[Guard::SplitPinsTk], &CORE, Rule::Ceiling),
    (&[Guard::SplitPinsParams], &STRANGER, Rule::NoMint),
    (&[Guard::SplitPinsOff], &DISABLE, Rule::Off),
    (&[Guard::SplitHalvesGap], &GAP, Rule::Forget),
    (&[Guard::PinOnce], &PIN_COUNT, Rule::NoMint),
    (&[Guard::SeedShare], &NAMES, Rule::Ceiling),
    (&[Guard::DropWhole], &DROP, Rule::NoMint),
    (&[Guard::GapByShare], &GAP_TWO, Rule::Forget),
    (&[Guard::NoTtlSharded], &TREE_EXPIRY, Rule::Tree),
    (&[Guard::OnlyZeroIsMade], &TREE_BIRTH, Rule::Tree),
    (&[Guard::FoldPinsTk], &CORE_TWO, Rule::NoMint),
    (&[Guard::FoldAligns], &CORE_TWO, Rule::NoMint),
    (&[Guard::FoldSumsGap], &GAP_TWO, Rule::Forget),
    (&[Guard::FoldSameParams], &SYNC_TWO, Rule::Ceiling),
    (&[Guard::FoldPinsRf], &CORE_TWO, Rule::NoMint),
    (&[Guard::FoldAllLeaves], &TREE, Rule::Tree),
    (&[Guard::GatherComplete], &GATHER, Rule::TrueRefusal),
    (&[Guard::GatherEra], &GATHER_TWO, Rule::TrueRefusal),
    (&[Guard::GatherPins], &GATHER_TWO, Rule::Gate),
    (&[Guard::GatherNonce], &LOSSES_FOUR, Rule::Once),
    (&[Guard::GatherSameShards], &LOSSES_FOUR, Rule::Once),
    (&[Guard::CreditClamped], &CORE, Rule::Ceiling),
    (&[Guard::CreditShare], &CORE, Rule::Ceiling),
    (&[Guard::CreditExists], &CORE_TWO, Rule::NoStub),
    (&[Guard::WalkInOrder], &DISABLE, Rule::Off),
    (&[Guard::DeleteAll], &DELETE, Rule::Tree),
    (&[Guard::RepairEmptyOrSurplus], &REPAIR, Rule::NoMint),
    (&[Guard::OrphanPinsDonor], &ORPHAN, Rule::Tree),
];

/// Guards that another one makes redundant, and where that was looked at. They stay as a second
/// line of defence.
const DEFENCE: &[(&[Guard], &Setup)] = &[
    (&[Guard::RefillPinsN], &CORE),
    (&[Guard::SyncPinsN], &SYNC),
    // The product's split keeps `rf`: the pins of the count must be enough everywhere.
    (&[Guard::SplitMovesRf], &CORE),
    (&[Guard::SplitMovesRf], &TREE),
    (&[Guard::SplitMovesRf], &ERA),
    (&[Guard::SplitMovesRf], &GAP),
    (&[Guard::SplitMovesRf], &SYNC),
    (&[Guard::SplitMovesRf], &GATHER),
    (&[Guard::SplitMovesRf], &BLIND),
    (&[Guard::SplitPinsN], &CORE),
    (&[Guard::ChildAbsent], &CORE),
    (&[Guard::ChildAbsent], &ORPHAN),
    (&[Guard::SplitPinsParams], &SYNC),
    (&[Guard::PinnedAtZero], &PIN),
    (&[Guard::CreditWalks], &CORE_TWO),
    (&[Guard::RepairPinsRf], &REPAIR),
    (&[Guard::OrphanPinsRf], &ORPHAN),
];

/// Larger worlds, for whoever has minutes.
const LARGE: &[&Setup] = &[
    &CORE_LARGE,
    &TREE_LARGE,
    &PIN_LARGE,
    &DROP_FOLD_LARGE,
    &GAP_LARGE,
    &SYNC_LARGE,
    &SYNC_LONG,
    &SYNC_TWO_LARGE,
    &GATHER_PIN_LARGE,
    &DELETE_LARGE,
];

/// Explores everything and fails with the shortest way to a broken promise.
#[expect(clippy::print_stdout, reason = "the sizes are part of the documentation")]
fn check(setup: &'static Setup, off: &'static [Guard]) {
    let model = Shards { setup, off, only: None, merges_twins: true };
    let reached = properties::reached(&model);
    let checker = model
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
        .filter(|(rule, _)| reached.iter().all(|reached| reached.name != *rule))
        .map(|(rule, path)| format!("{rule}: {:?}", path.into_actions()))
        .collect();
    assert!(broken.is_empty(), "{} without {off:?}: {broken:#?}", setup.name);
    assert!(states < STATES_MAX, "{}: not explored to the end", setup.name);
    for Property { name, .. } in reached {
        assert!(checker.discovery(name).is_some(), "{}: the bucket never {name}", setup.name);
    }
}

/// The shortest way to break `rule`, if there is one.
fn shortest(off: &'static [Guard], setup: &'static Setup, rule: Rule) -> Option<String> {
    let model = Shards { setup, off, only: Some(rule), merges_twins: false };
    let checker = model
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
fn a_bucket_that_splits_and_folds_is_the_bucket_it_was() {
    check(&CORE, &[]);
    check(&CORE_TWO, &[]);
}

#[test]
fn any_tree_of_shards_folds() {
    check(&TREE, &[]);
}

#[test]
fn nothing_expires_while_there_are_shards() {
    check(&TREE_EXPIRY, &[]);
}

#[test]
fn only_shard_zero_is_made_out_of_nothing() {
    check(&TREE_BIRTH, &[]);
}

#[test]
fn debt_is_split_and_folded_too() {
    check(&DEBT, &[]);
}

#[test]
fn odd_capacities_are_shared_without_a_rest() {
    check(&ODD, &[]);
    check(&ODD_FOUR, &[]);
    check(&ODD_GAP, &[]);
}

#[test]
fn pinned_limits_stay_on_shard_zero() {
    check(&PIN, &[]);
    check(&PIN_FOUR, &[]);
    check(&PIN_COUNT, &[]);
}

#[test]
fn limits_come_and_go_while_there_are_shards() {
    check(&NAMES, &[]);
    check(&DROP, &[]);
    check(&DROP_FOLD, &[]);
    check(&DROP_PIN, &[]);
}

#[test]
fn a_fold_ends_the_meaning_of_old_images() {
    check(&ERA, &[]);
    check(&BLIND_ERA, &[]);
}

#[test]
fn a_lowered_limit_is_not_forgotten_over_split_and_fold() {
    check(&GAP, &[]);
    check(&GAP_TWO, &[]);
}

#[test]
fn changed_limits_reach_shard_after_shard() {
    check(&SYNC, &[]);
    check(&SYNC_TWO, &[]);
}

#[test]
fn a_refusal_is_true_of_the_whole_bucket() {
    check(&GATHER, &[]);
    check(&GATHER_TWO, &[]);
    check(&GATHER_PIN, &[]);
}

#[test]
fn a_gather_whose_reply_is_lost_counts_once() {
    check(&LOSSES, &[]);
    check(&LOSSES_FOUR, &[]);
}

#[test]
fn a_blind_fill_fills_a_share() {
    check(&BLIND, &[]);
}

#[test]
fn disabling_reaches_shards_made_meanwhile() {
    check(&DISABLE, &[]);
}

#[test]
fn a_deletion_leaves_no_shard() {
    check(&DELETE, &[]);
}

#[test]
fn what_a_stranger_did_mints_nothing() {
    check(&REPAIR, &[]);
    check(&REPAIR_FOUR, &[]);
    check(&ORPHAN, &[]);
    check(&STRANGER, &[]);
}

#[expect(
    clippy::disallowed_methods,
    reason = "the one place of the model that reads the environment: whether there are minutes"
)]
#[test]
fn larger_worlds_hold() {
    if std::env::var_os("ZAEL_MODEL_LARGE").is_none() {
        println!("skipped: ZAEL_MODEL_LARGE is not set");
        return;
    }
    for setup in LARGE {
        check(setup, &[]);
    }
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
fn some_guards_are_defence_only() {
    for (off, setup) in DEFENCE {
        check(setup, off);
    }
}

/// A writer of the registry is in the model, or the page says that it is not.
#[test]
fn a_writer_that_is_left_out_is_on_the_page() {
    let page = include_str!("../../../../../docs/protocol-model.md");
    let (_, shards) = page.split_once("## Shards").expect("the section");
    let (shards, _) = shards.split_once("\n## ").expect("the next section");
    let words: Vec<&str> = shards.split_whitespace().collect();
    for rules in REGISTRY {
        if let Part::LeftOut(what) = part_of(rules.writer) {
            assert!(words.join(" ").contains(what), "{:?}: {what}", rules.writer);
        }
    }
}

#[test]
fn no_guard_is_left_out() {
    let switched = NEEDED.iter().map(|(off, ..)| *off).chain(DEFENCE.iter().map(|(off, _)| *off));
    let switched: Vec<Guard> = switched.flatten().copied().collect();
    let left_out: Vec<&Guard> =
        Guard::ALL.iter().filter(|guard| !switched.contains(guard)).collect();
    assert!(left_out.is_empty(), "{left_out:?}");
}
