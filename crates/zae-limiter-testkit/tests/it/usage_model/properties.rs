//! What must hold when everything was read, whatever happened.

use stateright::Property;

use crate::usage_model::model::{STREAMS, Snapshot, Usage, World};
use crate::usage_model::records::{HOURS, SNAPSHOTS, Sum, ledger, truth};

/// A promise; the text is how it is named in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Every record is in its snapshots once.
    Once,
    /// Hours, and days, sum to what the counters of the bucket moved by.
    Ledger,
    /// An hour, and a day, has the usage of that time and no other: a take that was undone is in
    /// none.
    OwnHour,
    /// `total_events` is the number of takes that were not undone.
    Events,
}

impl Rule {
    pub(crate) const ALL: [Rule; 4] = [Rule::Once, Rule::Ledger, Rule::OwnHour, Rule::Events];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Rule::Once => "once",
            Rule::Ledger => "ledger",
            Rule::OwnHour => "own hour",
            Rule::Events => "events",
        }
    }

    fn property(self) -> Property<Usage> {
        let holds: fn(&Usage, &World) -> bool = match self {
            Rule::Once => once,
            Rule::Ledger => sums_to_ledger,
            Rule::OwnHour => own_hour,
            Rule::Events => events,
        };
        Property::always(self.name(), holds)
    }
}

/// What has to happen at least once, or a world shows nothing.
pub(crate) const READ: &str = "everything is read";

/// The rules to check, one or all; and that a world is read to its end at all.
pub(crate) fn of(model: &Usage) -> Vec<Property<Usage>> {
    let wanted = |rule: &Rule| model.only.is_none_or(|only| *rule == only);
    let rules = Rule::ALL.into_iter().filter(wanted).map(Rule::property);
    let read = model.only.is_none().then(|| Property::sometimes(READ, is_read));
    rules.chain(read).collect()
}

fn is_read(model: &Usage, world: &World) -> bool {
    world.workers[..model.setup.workers].iter().all(|worker| {
        worker.batch.is_none() && (0..STREAMS).all(|stream| model.has_read(worker, stream))
    })
}

fn once(model: &Usage, world: &World) -> bool {
    let booked = |at: usize| {
        let theirs = model.records.iter().filter(|r| r.snapshots(model.off).contains(&at));
        Sum::of(theirs.map(|record| record.change))
    };
    !is_read(model, world) || (0..SNAPSHOTS).all(|at| world.snapshots[at].sum == booked(at))
}

fn sums_to_ledger(model: &Usage, world: &World) -> bool {
    let consumed = |snapshots: &[Snapshot]| -> i8 {
        snapshots.iter().map(|snapshot| snapshot.sum.consumed).sum()
    };
    let (hours, days) = world.snapshots.split_at(HOURS);
    let ledger = ledger(model.setup.operations).consumed;
    !is_read(model, world) || (consumed(hours) == ledger && consumed(days) == ledger)
}

fn own_hour(model: &Usage, world: &World) -> bool {
    let is_true =
        |at: usize| world.snapshots[at].sum.consumed == truth(model.setup.operations, at).consumed;
    !is_read(model, world) || (0..SNAPSHOTS).all(is_true)
}

fn events(model: &Usage, world: &World) -> bool {
    let is_true =
        |at: usize| world.snapshots[at].sum.events == truth(model.setup.operations, at).events;
    !is_read(model, world) || (0..SNAPSHOTS).all(is_true)
}
