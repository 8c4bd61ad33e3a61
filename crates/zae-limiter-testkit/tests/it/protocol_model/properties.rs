//! What must hold in every world, whatever happened.

use stateright::Property;

use crate::protocol_model::item::NAMES;
use crate::protocol_model::model::Protocol;
use crate::protocol_model::world::{Client, World};

/// A promise; the text is how it is named in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// The stored item, projected to now, is the ideal bucket.
    Exact,
    /// Granted in any window <= largest capacity in force in it + rate · length (+ rate · clock
    /// spread).
    Window,
    /// A gated debit never leaves debt.
    Gate,
    /// No balance above its capacity.
    Ceiling,
    /// What is not stored is full, and would be at every capacity it ever had.
    Forget,
    /// The stored gap is never less than the true one.
    Gap,
    /// An operation lands twice only if another write came between.
    Once,
    /// A process is granted no more than the limit it knows allows.
    OwnLimit,
    /// Parameters are never replaced by older ones.
    ConfigOrder,
    /// No half items.
    NoStub,
}

impl Rule {
    pub(crate) const ALL: [Rule; 10] = [
        Rule::Exact,
        Rule::Window,
        Rule::Gate,
        Rule::Ceiling,
        Rule::Forget,
        Rule::Gap,
        Rule::Once,
        Rule::OwnLimit,
        Rule::ConfigOrder,
        Rule::NoStub,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Rule::Exact => "exact",
            Rule::Window => "window",
            Rule::Gate => "gate",
            Rule::Ceiling => "ceiling",
            Rule::Forget => "forget",
            Rule::Gap => "gap",
            Rule::Once => "once",
            Rule::OwnLimit => "own limit",
            Rule::ConfigOrder => "config order",
            Rule::NoStub => "no stub",
        }
    }

    /// The bit in [`World::broken`] of a rule that a step breaks.
    pub(crate) fn bit(self) -> u8 {
        match self {
            Rule::Gate => 1,
            Rule::Once => 2,
            Rule::ConfigOrder => 4,
            _ => 0,
        }
    }

    fn property(self) -> Property<Protocol> {
        let holds: fn(&Protocol, &World) -> bool = match self {
            Rule::Exact => exact,
            Rule::Window => window,
            Rule::Gate => |_, world| world.broken & Rule::Gate.bit() == 0,
            Rule::Ceiling => ceiling,
            Rule::Forget => forget,
            Rule::Gap => gap,
            Rule::Once => |_, world| world.broken & Rule::Once.bit() == 0,
            Rule::OwnLimit => own_limit,
            Rule::ConfigOrder => |_, world| world.broken & Rule::ConfigOrder.bit() == 0,
            Rule::NoStub => |_, world| world.item.is_none_or(|item| !item.stub),
        };
        Property::always(self.name(), holds)
    }
}

/// The rules to check: one, or all that the world promises. With clocks that disagree nothing is
/// exact.
pub(crate) fn of(model: &Protocol) -> Vec<Property<Protocol>> {
    let promised = |rule: &Rule| match rule {
        // A foreign writer that raises a limit without refilling mints.
        Rule::Exact => spread(model) == 0 && !model.setup.foreign_mints,
        Rule::Window => !model.setup.foreign_mints,
        // Another process may give back what this one then is granted.
        Rule::OwnLimit => !model.setup.foreign_mints && !model.setup.refunds,
        // Nor does it cut a balance to the capacity it sets, or record a gap.
        Rule::Ceiling => model.setup.foreign == 0,
        Rule::Gap => spread(model) == 0 && model.setup.foreign == 0,
        _ => true,
    };
    let wanted = |rule: &Rule| model.only.map_or(promised(rule), |only| *rule == only);
    Rule::ALL.into_iter().filter(wanted).map(Rule::property).collect()
}

fn spread(model: &Protocol) -> i8 {
    let skews = || model.setup.skew[..model.setup.ops.len()].iter();
    skews().max().unwrap_or(&0) - skews().min().unwrap_or(&0)
}

/// What clocks that disagree may let through: once the spread, at the fastest rate there is.
fn slack(model: &Protocol, name: usize) -> i8 {
    let rates =
        model.setup.versions.iter().filter_map(|config| config[name]).map(|params| params.ra);
    rates.max().unwrap_or(0) * spread(model)
}

fn exact(_: &Protocol, world: &World) -> bool {
    let Some(item) = &world.item else { return true };
    (0..NAMES).all(|name| match (&item.limits[name], &world.ideal[name]) {
        (Some(limit), Some(ideal)) => {
            item.accrued(limit, world.tick).min(limit.params.cp) == ideal.tk
        }
        _ => true,
    })
}

fn window(model: &Protocol, world: &World) -> bool {
    (0..NAMES).all(|name| {
        world.ideal[name].is_none_or(|ideal| {
            let pairs = ideal.meters.iter().zip(model.caps(name));
            pairs
                .into_iter()
                .all(|(meter, cap)| ideal.params.cp > cap || *meter <= cap + slack(model, name))
        })
    })
}

fn ceiling(_: &Protocol, world: &World) -> bool {
    world
        .item
        .is_none_or(|item| item.limits.iter().flatten().all(|limit| limit.tk <= limit.params.cp))
}

fn forget(model: &Protocol, world: &World) -> bool {
    (0..NAMES).all(|name| {
        let is_stored = world.item.is_some_and(|item| item.limits[name].is_some());
        is_stored || world.ideal[name].is_none_or(|ideal| ideal.lack() <= slack(model, name))
    })
}

fn gap(_: &Protocol, world: &World) -> bool {
    let Some(item) = &world.item else { return true };
    (0..NAMES).all(|name| match (&item.limits[name], &world.ideal[name]) {
        (Some(limit), Some(ideal)) => {
            (limit.gp - (item.accrued(limit, world.tick) - limit.params.cp).max(0)).max(0)
                >= ideal.gap
        }
        _ => true,
    })
}

fn own_limit(model: &Protocol, world: &World) -> bool {
    let fits = |client: &Client| {
        model.config(client)[0]
            .is_none_or(|params| client.own <= params.cp + params.ra * spread(model))
    };
    world.clients[..model.setup.ops.len()].iter().all(fits)
}
