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
    /// A later leg of a gather: consumes, and is no event.
    Leg(i8),
    /// Gives back what was not used: an ordinary refund.
    Refund(i8),
    /// Gives back what a refused chain took in that hour: never used, and no event any more.
    Undo(i8, usize),
    /// The same of a later leg.
    UndoLeg(i8, usize),
}

impl Operation {
    fn consumed(self) -> i8 {
        match self.kind {
            Kind::Take(amount) | Kind::Leg(amount) => amount,
            Kind::Refund(amount) | Kind::Undo(amount, _) | Kind::UndoLeg(amount, _) => -amount,
        }
    }

    fn events(self) -> i8 {
        match self.kind {
            Kind::Take(_) => 1,
            Kind::Leg(_) | Kind::Refund(_) | Kind::UndoLeg(..) => 0,
            Kind::Undo(..) => -1,
        }
    }

    /// The hour of the take that this undoes.
    fn undoes(self) -> Option<usize> {
        match self.kind {
            Kind::Undo(_, taken_in) | Kind::UndoLeg(_, taken_in) => Some(taken_in),
            Kind::Take(_) | Kind::Leg(_) | Kind::Refund(_) => None,
        }
    }

    /// The hour whose usage this is.
    fn true_hour(self) -> usize {
        self.undoes().unwrap_or(self.hour)
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
    /// The mark that the last undoing credit left on the bucket shard. Later writes leave it.
    mark: Option<Mark>,
    /// True when this write changed the mark.
    has_new_mark: bool,
}

/// What an undoing credit leaves on the bucket shard: when the take was, and whose it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    taken_in: usize,
    nonce: usize,
}

impl Record {
    /// The records of the operations, in the order of the stream.
    pub(crate) fn of(operations: &[Operation], off: &[Guard]) -> Vec<Record> {
        let mark_after = |last: usize, shard: usize| {
            let of_shard = operations[..last].iter().enumerate().rev();
            let mut marks = of_shard.filter(|(_, operation)| operation.shard == shard);
            marks.find_map(|(index, operation)| {
                let taken_in = operation.undoes()?;
                let nonce = if off.contains(&Guard::UndoMarkIsUnique) { 0 } else { index };
                Some(Mark { taken_in, nonce })
            })
        };
        let of = |(index, operation): (usize, &Operation)| {
            let keeps_event = operation.undoes().is_some() && off.contains(&Guard::UndoTakesEvent);
            let events = if keeps_event { 0 } else { operation.events() };
            let mark = mark_after(index + 1, operation.shard);
            Record {
                number: u8::try_from(index + 1).unwrap_or(u8::MAX),
                stream: operation.stream,
                shard: operation.shard,
                change: Sum { consumed: operation.consumed(), events },
                hour: operation.hour,
                mark,
                has_new_mark: mark != mark_after(index, operation.shard),
            }
        };
        operations.iter().enumerate().map(of).collect()
    }

    /// The hour in which the record is booked.
    fn booked_in(&self, off: &[Guard]) -> usize {
        let is_undo = if off.contains(&Guard::UndoByItsMark) {
            self.change.events < 0
        } else {
            self.has_new_mark || off.contains(&Guard::UndoMarkIsNew)
        };
        let carries = is_undo && !off.contains(&Guard::UndoInItsHour);
        self.mark.filter(|_| carries).map_or(self.hour, |mark| mark.taken_in)
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
