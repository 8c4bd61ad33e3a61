//! What must hold in every world, whatever happened.

use stateright::Property;

use crate::shard_model::model::Shards;
use crate::shard_model::shard::{NAMES, coverage};
use crate::shard_model::world::World;

/// A promise; the text is how it is named in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// The shards cover every slot once, and their shares sum to the capacity.
    Tree,
    /// The shards together, projected to now, are worth no more than the ideal bucket.
    NoMint,
    /// Granted in any window <= largest capacity + rate · length.
    Window,
    /// No balance above its share.
    Ceiling,
    /// A gated debit never leaves debt.
    Gate,
    /// What is swept or dropped was whole at every capacity it ever had.
    Forget,
    /// Nothing is taken after disabling has returned.
    Off,
    /// A refusal after all shards were read, while nobody gave back, is true of the whole bucket.
    TrueRefusal,
    /// No shard made by a credit.
    NoStub,
    /// An operation lands twice only if every nonce of it was overwritten in between.
    Once,
}

impl Rule {
    pub(crate) const ALL: [Rule; 10] = [
        Rule::Tree,
        Rule::NoMint,
        Rule::Window,
        Rule::Ceiling,
        Rule::Gate,
        Rule::Forget,
        Rule::Off,
        Rule::TrueRefusal,
        Rule::NoStub,
        Rule::Once,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Rule::Tree => "tree",
            Rule::NoMint => "no mint",
            Rule::Window => "window",
            Rule::Ceiling => "ceiling",
            Rule::Gate => "gate",
            Rule::Forget => "forget",
            Rule::Off => "off",
            Rule::TrueRefusal => "true refusal",
            Rule::NoStub => "no stub",
            Rule::Once => "once",
        }
    }

    /// The bit in [`World::broken`] of a rule that a step breaks.
    pub(crate) fn bit(self) -> u8 {
        match self {
            Rule::Gate => 1,
            Rule::Forget => 2,
            Rule::Off => 4,
            Rule::TrueRefusal => 8,
            Rule::NoStub => 16,
            Rule::Once => 32,
            Rule::Tree | Rule::NoMint | Rule::Window | Rule::Ceiling => 0,
        }
    }

    fn property(self) -> Property<Shards> {
        let holds: fn(&Shards, &World) -> bool = match self {
            Rule::Tree => tree,
            Rule::NoMint => no_mint,
            Rule::Window => |model, world| world.meter <= model.largest_capacity(0),
            Rule::Ceiling => ceiling,
            Rule::Gate => |_, world| world.broken & Rule::Gate.bit() == 0,
            Rule::Forget => |_, world| world.broken & Rule::Forget.bit() == 0,
            Rule::Off => |_, world| world.broken & Rule::Off.bit() == 0,
            Rule::TrueRefusal => |_, world| world.broken & Rule::TrueRefusal.bit() == 0,
            Rule::NoStub => |_, world| world.broken & Rule::NoStub.bit() == 0,
            Rule::Once => |_, world| world.broken & Rule::Once.bit() == 0,
        };
        Property::always(self.name(), holds)
    }
}

/// What has to happen at least once, or a world shows nothing: the bucket has shards, and it is
/// folded where agents fold.
pub(crate) fn reached(model: &Shards) -> Vec<Property<Shards>> {
    let has_shards: fn(&Shards, &World) -> bool = |_, world| world.shards[1].is_some();
    let is_folded: fn(&Shards, &World) -> bool =
        |_, world| world.shards[0].is_some_and(|root| root.era > 0);
    let folds = model.setup.folds && !model.setup.agents.is_empty();
    let mut reached = vec![Property::sometimes("has shards", has_shards)];
    reached.extend(folds.then(|| Property::sometimes("is folded", is_folded)));
    reached
}

/// The rules to check: one, or all that the world promises.
pub(crate) fn of(model: &Shards) -> Vec<Property<Shards>> {
    let promised = |rule: &Rule| match rule {
        // A stranger cuts no balance to the share he makes of it.
        Rule::Ceiling => model.setup.raises == 0 && model.setup.cuts == 0,
        _ => true,
    };
    let wanted = |rule: &Rule| model.only.map_or(promised(rule), |only| *rule == only);
    let rules = Rule::ALL.into_iter().filter(wanted).map(Rule::property);
    let reached = if model.only.is_none() { reached(model) } else { Vec::new() };
    rules.chain(reached).collect()
}

fn tree(model: &Shards, world: &World) -> bool {
    let covered = coverage(world.tree().map(|(_, shard)| shard).collect::<Vec<_>>().iter());
    if model.setup.raises > 0 {
        return covered <= 4;
    }
    // Without shard 0 nothing may be left, unless a stranger deleted it.
    let is_empty = || model.setup.beheadings > 0 || world.shards.iter().all(Option::is_none);
    // Behind a shard 0 of one there may only be orphans.
    let is_whole = || {
        let stored = coverage(world.shards.iter().flatten());
        covered == 4 && (stored == 4 || model.setup.beheadings > 0) && model.shares_sum(world)
    };
    if world.shards[0].is_none() { is_empty() } else { is_whole() }
}

fn no_mint(model: &Shards, world: &World) -> bool {
    (0..NAMES).all(|name| model.projected(world, name) <= world.ideal[name])
}

fn ceiling(model: &Shards, world: &World) -> bool {
    world.tree().all(|(number, shard)| {
        (0..NAMES).all(|name| {
            shard.limits[name].is_none_or(|limit| {
                limit.tk <= model.effective(number, &shard, name, limit.params).cp
            })
        })
    })
}
