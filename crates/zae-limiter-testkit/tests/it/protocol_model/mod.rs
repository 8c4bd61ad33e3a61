//! A model check of the DynamoDB bucket protocol, one shard: every interleaving of a few clients in
//! a small world, judged after each step against an ideal bucket. With all guards on nothing
//! breaks; with any one off something does. `docs/protocol-model.md` says what is modelled and
//! shows the counterexamples.

mod guards;
mod ideal;
mod item;
mod model;
mod properties;
mod setups;
mod world;
mod writes;

use guards::Guard;
use model::Protocol;
use properties::Rule;
use setups::{
    CONFIG, CUT, DEBITS, DEBT, FOREIGN, GAP, GAP_DEBT, LOSSES, NAMES, SKEW, STAMPS, Setup,
};
use stateright::{Checker, HasDiscoveries, Model};
use writes::{Part, part_of};
use zae_limiter_dynamodb::bucket::writers::REGISTRY;

/// More states than any setup has: a setup that grows beyond is a mistake, not a long run.
const STATES_MAX: usize = 20_000_000;

/// Guards, the setup in which their absence shows, and the promise that breaks.
const NEEDED: &[(&[Guard], &Setup, Rule)] = &[
    (&[Guard::FastCeiling], &DEBITS, Rule::Window),
    (&[Guard::AdjustCeiling], &DEBITS, Rule::Exact),
    (&[Guard::FastRfFloor], &DEBITS, Rule::Window),
    (&[Guard::FastFloor], &DEBITS, Rule::Gate),
    (&[Guard::FastPinsCp], &CUT, Rule::OwnLimit),
    (&[Guard::TwoModes], &DEBITS, Rule::Exact),
    (&[Guard::RefillPinsRf], &DEBITS, Rule::Window),
    (&[Guard::AddCeiling], &DEBITS, Rule::Exact),
    (&[Guard::FillFloor], &DEBITS, Rule::Exact),
    (&[Guard::AddFloor], &DEBITS, Rule::Gate),
    (&[Guard::RefillPinsCp, Guard::RefillPinsVu], &FOREIGN, Rule::Exact),
    (&[Guard::RfMonotone], &SKEW, Rule::Window),
    (&[Guard::BlindRf], &DEBITS, Rule::Window),
    (&[Guard::BlindCa], &NAMES, Rule::Exact),
    (&[Guard::CaMoves], &NAMES, Rule::Exact),
    (&[Guard::NonceFast], &LOSSES, Rule::Once),
    (&[Guard::NonceRefill], &LOSSES, Rule::Once),
    (&[Guard::NonceCreate], &LOSSES, Rule::Once),
    (&[Guard::FreshNow], &LOSSES, Rule::Exact),
    (&[Guard::CreditOnce], &DEBITS, Rule::Window),
    (&[Guard::CreditClamped], &DEBITS, Rule::Ceiling),
    (&[Guard::CreditPinsCp], &GAP_DEBT, Rule::Ceiling),
    (&[Guard::CreditExists], &DEBT, Rule::NoStub),
    (&[Guard::CausalRead], &CONFIG, Rule::ConfigOrder),
    (&[Guard::SyncPinned], &CONFIG, Rule::ConfigOrder),
    (&[Guard::SyncPinsVu], &STAMPS, Rule::ConfigOrder),
    (&[Guard::SyncNeedsNoVu], &STAMPS, Rule::ConfigOrder),
    (&[Guard::VuStampsCa], &STAMPS, Rule::ConfigOrder),
    (&[Guard::VuMovesRf], &STAMPS, Rule::ConfigOrder),
    (&[Guard::SyncMovesRf], &NAMES, Rule::ConfigOrder),
    (&[Guard::RemovedKept], &NAMES, Rule::Window),
    (&[Guard::TtlDebt], &DEBT, Rule::Forget),
    (&[Guard::FastDebt], &DEBT, Rule::Forget),
    (&[Guard::AddDebt], &DEBT, Rule::Forget),
    (&[Guard::AdjustCreates], &DEBT, Rule::Forget),
    (&[Guard::AdjustRevives], &DEBT, Rule::Forget),
    (&[Guard::GapRecorded], &GAP, Rule::Window),
    (&[Guard::GapProven], &GAP, Rule::Window),
    (&[Guard::GapKeptByAdd], &GAP_DEBT, Rule::Forget),
    (&[Guard::GapStopsBlind], &GAP, Rule::Window),
    (&[Guard::GapTtl], &GAP, Rule::Window),
    (&[Guard::GapKeepsRemoved], &NAMES, Rule::Window),
];

/// Guards that another one makes redundant, and where that was looked at. They stay as a second
/// line of defence.
const DEFENCE: &[(&[Guard], &Setup)] = &[
    (&[Guard::FastTtl], &DEBT),
    (&[Guard::RefillPinsCp], &FOREIGN),
    (&[Guard::RefillPinsVu], &FOREIGN),
    (&[Guard::RefillPinsVu], &STAMPS),
    (&[Guard::TtlMax], &DEBT),
    (&[Guard::TtlMax], &GAP_DEBT),
    (&[Guard::SyncRepaysGap], &GAP),
];

/// Explores everything and fails with the shortest way to a broken promise.
#[expect(clippy::print_stdout, reason = "the sizes are part of the documentation")]
fn check(setup: &'static Setup, off: &'static [Guard]) {
    let model = Protocol { setup, off, only: None };
    let checker = model
        .checker()
        .threads(2)
        .target_state_count(STATES_MAX)
        .finish_when(HasDiscoveries::Any)
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
        .map(|(rule, path)| format!("{rule}: {:?}", path.into_actions()))
        .collect();
    assert!(broken.is_empty(), "{} without {off:?}: {broken:#?}", setup.name);
    assert!(states < STATES_MAX, "{}: not explored to the end", setup.name);
}

/// The shortest way to break `rule`, if there is one.
fn shortest(off: &'static [Guard], setup: &'static Setup, rule: Rule) -> Option<String> {
    let model = Protocol { setup, off, only: Some(rule) };
    // One thread, so that breadth first is strict and the path is the same on every run.
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
fn debits_of_every_form_are_exact() {
    check(&DEBITS, &[]);
}

#[test]
fn lost_replies_cost_nothing() {
    check(&LOSSES, &[]);
}

#[test]
fn skewed_clocks_admit_no_more_than_their_spread() {
    check(&SKEW, &[]);
}

#[test]
fn changed_limits_are_exact_and_never_go_back() {
    check(&CONFIG, &[]);
}

#[test]
fn a_known_cut_holds_at_once() {
    check(&CUT, &[]);
}

#[test]
fn removed_limits_come_back_as_they_were() {
    check(&NAMES, &[]);
}

#[test]
fn expiry_forgives_no_debt() {
    check(&DEBT, &[]);
}

#[test]
fn a_lowered_limit_is_not_forgotten_too_early() {
    check(&GAP, &[]);
}

#[test]
fn a_lowered_limit_in_debt_is_not_forgotten_too_early() {
    check(&GAP_DEBT, &[]);
}

#[test]
fn a_foreign_cut_is_kept() {
    check(&FOREIGN, &[]);
}

#[test]
fn a_foreign_change_is_not_undone() {
    check(&STAMPS, &[]);
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
    let (_, left_out) = page.split_once("## Not modelled").expect("the section");
    let words: Vec<&str> = left_out.split_whitespace().collect();
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
