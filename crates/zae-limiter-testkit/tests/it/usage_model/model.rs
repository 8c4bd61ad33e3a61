//! Workers that read the stream, count it into snapshots, crash and begin again.

use std::fmt;

use stateright::{Model, Property};

use crate::usage_model::guards::Guard;
use crate::usage_model::properties::{self, Rule};
use crate::usage_model::records::{Operation, Record, SNAPSHOTS, Sum};

pub(crate) const WORKERS: usize = 2;
pub(crate) const STREAMS: usize = 2;
const BUCKET_SHARDS: usize = 2;

/// A world to explore.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) name: &'static str,
    pub(crate) operations: &'static [Operation],
    pub(crate) workers: usize,
    pub(crate) crashes: u8,
    /// Snapshot writes that land without a reply.
    pub(crate) losses: u8,
}

/// A setup, with some guards off.
#[derive(Clone, Debug)]
pub(crate) struct Usage {
    pub(crate) setup: &'static Setup,
    pub(crate) off: &'static [Guard],
    /// Look for this one only.
    pub(crate) only: Option<Rule>,
    pub(crate) records: Vec<Record>,
}

/// A snapshot item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Snapshot {
    pub(crate) sum: Sum,
    /// `w#j`: the last number that was counted, per bucket shard.
    watermarks: [u8; BUCKET_SHARDS],
}

/// A batch in hand: records `from..to` of a stream shard, and how many of its snapshot writes were
/// answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Batch {
    stream: usize,
    from: usize,
    to: usize,
    answered: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Worker {
    /// The next record of each stream shard.
    pub(crate) positions: [usize; STREAMS],
    pub(crate) batch: Option<Batch>,
}

/// Everything there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) snapshots: [Snapshot; SNAPSHOTS],
    pub(crate) checkpoints: [usize; STREAMS],
    pub(crate) workers: [Worker; WORKERS],
    crashes: u8,
    losses: u8,
}

/// One step; the first number is the worker.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Reads a stream shard up to this record.
    Read(usize, usize, usize),
    Write(usize),
    WriteLost(usize),
    Checkpoint(usize),
    Crash(usize),
}

impl fmt::Debug for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Read(worker, stream, to) => write!(f, "{worker}:read stream {stream} to {to}"),
            Action::Write(worker) => write!(f, "{worker}:write"),
            Action::WriteLost(worker) => write!(f, "{worker}:write (reply lost)"),
            Action::Checkpoint(worker) => write!(f, "{worker}:checkpoint"),
            Action::Crash(worker) => write!(f, "{worker}:crash"),
        }
    }
}

impl Model for Usage {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World {
            snapshots: [Snapshot::default(); SNAPSHOTS],
            checkpoints: [0; STREAMS],
            workers: [Worker::default(); WORKERS],
            crashes: self.setup.crashes,
            losses: self.setup.losses,
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        for index in 0..self.setup.workers {
            let worker = &world.workers[index];
            let Some(batch) = &worker.batch else {
                for stream in 0..STREAMS {
                    if stream > 0 && self.on(Guard::ParentFirst) && !self.has_read(worker, 0) {
                        continue;
                    }
                    let unread = worker.positions[stream] + 1..=self.of(stream).count();
                    actions.extend(unread.map(|to| Action::Read(index, stream, to)));
                }
                continue;
            };
            if batch.answered == self.targets(batch).len() {
                actions.push(Action::Checkpoint(index));
            } else {
                actions.push(Action::Write(index));
                if world.losses > 0 {
                    actions.push(Action::WriteLost(index));
                }
            }
            if world.crashes > 0 {
                actions.push(Action::Crash(index));
            }
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut next = *world;
        match action {
            Action::Read(index, stream, to) => {
                let worker = &mut next.workers[index];
                let from = worker.positions[stream];
                worker.batch = Some(Batch { stream, from, to, answered: 0 });
                if !self.on(Guard::CheckpointAfter) {
                    next.checkpoints[stream] = next.checkpoints[stream].max(to);
                }
            }
            Action::Write(index) => {
                self.count(&mut next, index)?;
                next.workers[index].batch.as_mut()?.answered += 1;
            }
            Action::WriteLost(index) => {
                self.count(&mut next, index)?;
                next.losses -= 1;
            }
            Action::Checkpoint(index) => {
                let worker = &mut next.workers[index];
                let Batch { stream, to, .. } = worker.batch.take()?;
                worker.positions[stream] = to;
                next.checkpoints[stream] = next.checkpoints[stream].max(to);
            }
            Action::Crash(index) => {
                next.crashes -= 1;
                next.workers[index] = Worker { positions: world.checkpoints, batch: None };
            }
        }
        (next != *world).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::of(self)
    }
}

impl Usage {
    pub(crate) fn new(setup: &'static Setup, off: &'static [Guard], only: Option<Rule>) -> Usage {
        Usage { setup, off, only, records: Record::of(setup.operations, off) }
    }

    fn on(&self, guard: Guard) -> bool {
        !self.off.contains(&guard)
    }

    fn of(&self, stream: usize) -> impl Iterator<Item = &Record> {
        self.records.iter().filter(move |record| record.stream == stream)
    }

    pub(crate) fn has_read(&self, worker: &Worker, stream: usize) -> bool {
        worker.positions[stream] == self.of(stream).count()
    }

    fn records_of(&self, batch: &Batch) -> impl Iterator<Item = &Record> {
        self.of(batch.stream).take(batch.to).skip(batch.from)
    }

    /// Those of the batch that belong to a snapshot and a bucket shard.
    fn records_for(
        &self,
        batch: &Batch,
        (snapshot, shard): (usize, usize),
    ) -> impl Iterator<Item = &Record> {
        self.records_of(batch).filter(move |record| {
            record.shard == shard && record.snapshots(self.off).contains(&snapshot)
        })
    }

    /// Rule U4: one write per snapshot and bucket shard.
    fn targets(&self, batch: &Batch) -> Vec<(usize, usize)> {
        let of = |record: &Record| record.snapshots(self.off).map(|at| (at, record.shard));
        let mut targets: Vec<(usize, usize)> = self.records_of(batch).flat_map(of).collect();
        targets.sort_unstable();
        targets.dedup();
        let sums_to_nothing = |target: &(usize, usize)| {
            let changes = self.records_for(batch, *target).map(|record| record.change);
            Sum::of(changes) == Sum::default()
        };
        if !self.on(Guard::ZeroIsWritten) {
            targets.retain(|target| !sums_to_nothing(target));
        }
        targets
    }

    /// The next snapshot write of a batch lands: the condition, and after a failed one the write of
    /// what the image says was not counted.
    fn count(&self, next: &mut World, index: usize) -> Option<()> {
        let batch = next.workers[index].batch?;
        let (at, shard) = *self.targets(&batch).get(batch.answered)?;
        let watermark = if self.on(Guard::PerShard) { shard } else { 0 };
        let counted = next.snapshots[at].watermarks[watermark];
        let mine: Vec<&Record> = self.records_for(&batch, (at, shard)).collect();
        let is_overlapping = mine.first().is_some_and(|first| first.number <= counted);
        let is_new = |record: &&&Record| {
            if !self.on(Guard::Watermark) {
                true
            } else if self.on(Guard::DropRecords) {
                record.number > counted
            } else {
                !is_overlapping
            }
        };
        let left: Vec<&&Record> = mine.iter().filter(is_new).collect();
        let last = left.last().map_or(counted, |record| record.number);
        next.snapshots[at].sum.add(Sum::of(left.iter().map(|record| record.change)));
        next.snapshots[at].watermarks[watermark] = last;
        if !self.on(Guard::PerSnapshot) {
            for snapshot in &mut next.snapshots {
                snapshot.watermarks[watermark] = snapshot.watermarks[watermark].max(last);
            }
        }
        Some(())
    }
}
