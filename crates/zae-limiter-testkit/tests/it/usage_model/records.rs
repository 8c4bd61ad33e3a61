//! What happens to a bucket, the records of the stream that tell of it, and the truth about it.

use crate::usage_model::guards::Guard;

pub(crate) const HOURS: usize = 3;

/// Hours 0 and 1 are of day 0, hour 2 is of day 1.
pub(crate) const DAYS: usize = 2;

/// Hours first, then days.
pub(crate) const SNAPSHOTS: usize = HOURS + DAYS;

/// One landed write on the bucket, which is one record of the stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    /// The stream shard that tells of it: 0, or 1, its child.
    pub(crate) stream: usize,
    /// The bucket shard it was written on.
    pub(crate) shard: usize,
    pub(crate) hour: usize,
    pub(crate) kind: Kind,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// Consumes, and is an event.
    Take(i8),
    /// Gives back what was not used: an ordinary refund.
    Refund(i8),
    /// Gives back what a refused chain took in that hour: never used, no event.
    Undo(i8, usize),
}

impl Operation {
    fn consumed(self) -> i8 {
        match self.kind {
            Kind::Take(amount) => amount,
            Kind::Refund(amount) | Kind::Undo(amount, _) => -amount,
        }
    }

    fn events(self) -> i8 {
        match self.kind {
            Kind::Take(_) => 1,
            Kind::Refund(_) => 0,
            Kind::Undo(..) => -1,
        }
    }

    /// The hour whose usage this is.
    fn true_hour(self) -> usize {
        if let Kind::Undo(_, taken_in) = self.kind { taken_in } else { self.hour }
    }
}

/// What is counted in a snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Sum {
    pub(crate) consumed: i8,
    pub(crate) events: i8,
}

impl Sum {
    pub(crate) fn add(&mut self, other: Sum) {
        self.consumed += other.consumed;
        self.events += other.events;
    }

    pub(crate) fn of(sums: impl Iterator<Item = Sum>) -> Sum {
        let mut total = Sum::default();
        sums.for_each(|sum| total.add(sum));
        total
    }
}

/// A record as the aggregator sees it: differences of the two images, and the new image.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    /// Its number; an item's numbers grow.
    pub(crate) number: u8,
    pub(crate) stream: usize,
    pub(crate) shard: usize,
    pub(crate) change: Sum,
    hour: usize,
    /// The time that the last undoing credit left on the bucket shard. Later writes leave it.
    undone: Option<usize>,
}

impl Record {
    /// The records of the operations, in the order of the stream.
    pub(crate) fn of(operations: &[Operation], off: &[Guard]) -> Vec<Record> {
        let mut records = Vec::new();
        for (index, operation) in operations.iter().enumerate() {
            let undone = operations[..=index].iter().rev().find_map(|earlier| match earlier.kind {
                Kind::Undo(_, taken_in) if earlier.shard == operation.shard => Some(taken_in),
                _ => None,
            });
            let is_undo = matches!(operation.kind, Kind::Undo(..));
            let keeps_event = is_undo && off.contains(&Guard::UndoTakesEvent);
            let events = if keeps_event { 0 } else { operation.events() };
            records.push(Record {
                number: u8::try_from(index + 1).unwrap_or(u8::MAX),
                stream: operation.stream,
                shard: operation.shard,
                change: Sum { consumed: operation.consumed(), events },
                hour: operation.hour,
                undone,
            });
        }
        records
    }

    /// The hour in which the record is booked.
    fn booked_in(&self, off: &[Guard]) -> usize {
        let is_undo = if off.contains(&Guard::UndoByItsEvent) {
            self.undone.is_some()
        } else {
            self.change.events < 0
        };
        let carries = is_undo && !off.contains(&Guard::UndoInItsHour);
        self.undone.filter(|_| carries).unwrap_or(self.hour)
    }

    /// The snapshots in which the record is booked: an hour and its day.
    pub(crate) fn snapshots(&self, off: &[Guard]) -> [usize; 2] {
        with_day(self.booked_in(off))
    }
}

fn with_day(hour: usize) -> [usize; 2] {
    [hour, HOURS + hour / 2]
}

/// What a snapshot has to say in the end.
pub(crate) fn truth(operations: &[Operation], snapshot: usize) -> Sum {
    let theirs =
        operations.iter().filter(|operation| with_day(operation.true_hour()).contains(&snapshot));
    Sum::of(
        theirs.map(|operation| Sum { consumed: operation.consumed(), events: operation.events() }),
    )
}

/// What the counters of the bucket have moved by in all.
pub(crate) fn ledger(operations: &[Operation]) -> Sum {
    Sum::of((0..HOURS).map(|hour| truth(operations, hour)))
}
