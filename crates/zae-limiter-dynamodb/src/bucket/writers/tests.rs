//! The registry is complete, and a write that breaks it is told.

use zae_limiter_core::{Limit, LimitSource, TimeMs};
use zae_limiter_store::LimitsInForce;

use super::*;
use crate::bucket::debit::{Debit, Step, View};
use crate::bucket::shard::Standing;
use crate::bucket::write::Cost;
use crate::table::{Action, Comparison, Key, Update, compare};

const ALL: [Writer; 24] = [
    Writer::Fast,
    Writer::Refill,
    Writer::BlindFill,
    Writer::Sync,
    Writer::SyncOnly,
    Writer::Create,
    Writer::ChargeFast,
    Writer::ChargeRefill,
    Writer::ChargePlain,
    Writer::Recreate,
    Writer::Credit,
    Writer::Reset,
    Writer::Flag,
    Writer::Delete,
    Writer::Split,
    Writer::SplitChild,
    Writer::Fold,
    Writer::FoldChild,
    Writer::Prune,
    Writer::AggregatorRefill,
    Writer::Lend,
    Writer::Settle,
    Writer::CountUse,
    Writer::Adopt,
];

#[test]
fn every_writer_is_in_the_registry_once() {
    for writer in ALL {
        assert_eq!(REGISTRY.iter().filter(|rules| rules.writer == writer).count(), 1, "{writer:?}");
    }
    assert_eq!(REGISTRY.len(), ALL.len(), "a writer that the list above does not know");
}

/// A deletion leaves nothing behind, so it alone needs no such pin.
#[test]
fn every_writer_pins_that_the_item_exists_or_does_not() {
    let mut leaving = REGISTRY.iter().filter(|rules| rules.writer != Writer::Delete);
    assert!(
        leaving.all(|rules| rules.pins.contains(&Field::Pk)),
        "a stub would refuse its entity for ever"
    );
}

/// Whoever moves the refill instant pins it, or looks at the balance: otherwise time would be
/// credited twice.
#[test]
fn every_writer_of_the_refill_instant_pins_it() {
    for rules in REGISTRY
        .iter()
        .filter(|rules| rules.writes.contains(&Field::Rf) && !rules.writes.contains(&Field::Pk))
    {
        assert!(rules.pins.contains(&Field::Rf), "{:?}", rules.writer);
    }
}

#[test]
fn a_write_that_strays_or_does_not_pin_is_told() {
    let key =
        Key { pk: "ns/BUCKET#key#gpt-4#0".to_owned(), sk: crate::records::keys::STATE.into() };
    let actions = vec![
        Action::Add("b_rpm_tk".into(), 5),
        Action::Set(attr::REFILLED_AT.into(), crate::table::number(1)),
    ];
    let conditions = vec![
        Condition::Exists(attr::PK.into()),
        compare("b_rpm_tk", Comparison::Le, 1),
        compare("b_rpm_cp", Comparison::Eq, 9),
    ];
    let write = Write::Update(Update { key, actions, conditions });
    let told = ["Credit writes Rf", "Credit does not pin ShardCount", "Credit does not pin Ln"];
    assert_eq!(breaches(Writer::Credit, &write), told);
}

/// Found by the simulator: a take of names that an ancestor does not have panicked in debug builds.
#[test]
fn a_take_of_no_limit_breaks_no_rule() {
    let limits =
        LimitsInForce::new([Limit::per_minute("rpm", 10).expect("a limit")], LimitSource::System);
    let key =
        Key { pk: "ns/BUCKET#key#gpt-4#0".to_owned(), sk: crate::records::keys::STATE.into() };
    let debit = Debit {
        standing: &Standing::ALONE,
        key: &key,
        limits: &limits,
        takes: &[],
        absent: &[],
        nonce: Some(&"n".into()),
        grace_ms: 0,
        cost: Cost::ONE,
        is_spared: false,
    };
    let Ok(Step::Take(write)) = debit.plan(View::Unknown, TimeMs(1)) else {
        panic!("a write that looks whether it is disabled")
    };
    assert_eq!(write.writer(), Writer::Fast);
    assert_eq!(breaches(Writer::Fast, &write.rendered()), [""; 0]);
}

#[test]
fn attributes_are_known_by_their_kind() {
    for (name, field) in [
        ("b_a_b_tk", Field::Tk),
        ("b_wcu_tk", Field::WcuTk),
        ("b_wcu_cp", Field::Made),
        ("GSI4PK", Field::Made),
        ("gp", Field::Made),
        ("ln", Field::Ln),
    ] {
        assert_eq!(Field::of(name), field, "{name}");
    }
}
