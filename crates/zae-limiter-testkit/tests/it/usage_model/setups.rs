//! The worlds: short histories of a bucket, and who reads them.

use crate::usage_model::model::Setup;
use crate::usage_model::records::{Kind, Operation};

const fn on(stream: usize, shard: usize, hour: usize, kind: Kind) -> Operation {
    Operation { stream, shard, hour, kind }
}

const PLAIN: Setup = Setup { name: "", operations: &[], workers: 2, crashes: 1, losses: 1 };

/// The stream shard splits; two bucket shards, two hours, a refund in the hour it happens.
pub(crate) const STREAM: Setup = Setup {
    name: "stream",
    operations: &[
        on(0, 0, 0, Kind::Take(3)),
        on(0, 1, 0, Kind::Take(2)),
        on(0, 0, 1, Kind::Refund(1)),
        on(1, 0, 1, Kind::Take(4)),
    ],
    ..PLAIN
};

/// Two bucket shards in one stream shard.
pub(crate) const SHARDS: Setup = Setup {
    name: "shards",
    operations: &[
        on(0, 0, 0, Kind::Take(3)),
        on(0, 0, 0, Kind::Take(2)),
        on(0, 1, 0, Kind::Take(1)),
        on(0, 0, 1, Kind::Take(4)),
    ],
    ..PLAIN
};

/// One worker that fails often.
pub(crate) const ALONE: Setup =
    Setup { name: "alone", workers: 1, crashes: 2, losses: 2, ..STREAM };

/// A refused chain gives back what it gathered from two shards in the next hour; then ordinary use,
/// and a refund on the next day.
pub(crate) const UNDO: Setup = Setup {
    name: "undo",
    operations: &[
        on(0, 1, 0, Kind::Take(3)),
        on(0, 0, 0, Kind::Leg(2)),
        on(0, 1, 1, Kind::Undo(3, 0)),
        on(0, 0, 1, Kind::UndoLeg(2, 0)),
        on(1, 0, 1, Kind::Take(2)),
        on(1, 0, 2, Kind::Refund(1)),
    ],
    ..PLAIN
};

/// Two chains took at one instant; one gives back in the next hour, the other on the next day, to
/// the shard that its own was folded into.
pub(crate) const UNDO_TWICE: Setup = Setup {
    name: "undo twice",
    operations: &[
        on(0, 0, 0, Kind::Take(3)),
        on(0, 1, 0, Kind::Take(1)),
        on(0, 0, 1, Kind::Undo(3, 0)),
        on(1, 0, 2, Kind::Undo(1, 0)),
    ],
    ..PLAIN
};

/// A take that is undone at once: together the records are nothing.
pub(crate) const UNDO_AT_ONCE: Setup = Setup {
    name: "undo at once",
    operations: &[
        on(0, 0, 0, Kind::Take(3)),
        on(0, 0, 0, Kind::Undo(3, 0)),
        on(0, 0, 0, Kind::Take(2)),
        on(1, 0, 2, Kind::Undo(2, 0)),
    ],
    ..PLAIN
};

/// More of everything.
pub(crate) const LARGE: Setup = Setup {
    name: "large",
    operations: &[
        on(0, 0, 0, Kind::Take(3)),
        on(0, 1, 0, Kind::Take(2)),
        on(0, 0, 0, Kind::Take(1)),
        on(0, 1, 1, Kind::Undo(2, 0)),
        on(1, 0, 1, Kind::Undo(1, 0)),
        on(1, 0, 2, Kind::Refund(2)),
    ],
    workers: 2,
    crashes: 2,
    losses: 2,
};
