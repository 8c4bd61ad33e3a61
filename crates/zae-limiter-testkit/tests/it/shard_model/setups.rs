//! The configurations: small worlds, each aimed at a group of guards.

use crate::shard_model::shard::{Amounts, Config, Params};

/// A world to explore.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) name: &'static str,
    /// Takes, creates and parameter writes each client may land.
    pub(crate) ops: &'static [u8],
    /// Splits, folds, repairs and removals each agent may land.
    pub(crate) agents: &'static [u8],
    /// What clients ask for.
    pub(crate) amounts: &'static [Amounts],
    pub(crate) ticks: i8,
    /// The configurations in the order the administrator sets them.
    pub(crate) versions: &'static [Config],
    pub(crate) shards_first: usize,
    pub(crate) shards_max: usize,
    /// Limits below this capacity are pinned by the first split.
    pub(crate) pin_below: i8,
    pub(crate) splits: bool,
    pub(crate) folds: bool,
    pub(crate) refunds: bool,
    pub(crate) charges: bool,
    pub(crate) gathers: bool,
    pub(crate) blind: bool,
    pub(crate) syncs: bool,
    pub(crate) creates: bool,
    pub(crate) sweeps: bool,
    pub(crate) disables: bool,
    pub(crate) deletes: bool,
    /// Times a stranger doubles `shard_count` of shard 0 and moves nothing.
    pub(crate) raises: u8,
    /// Times a stranger deletes shard 0 and leaves the others.
    pub(crate) beheadings: u8,
    /// Times a stranger writes the last version of the limits into shard 0 and moves neither `rf`
    /// nor `tk`.
    pub(crate) cuts: u8,
    /// Gathers whose reply is lost.
    pub(crate) losses: u8,
}

const fn limit(cp: i8, ra: i8) -> Option<Params> {
    Some(Params { cp, ra })
}

const PLAIN: Setup = Setup {
    name: "",
    ops: &[],
    agents: &[],
    amounts: &[[1, 0]],
    ticks: 2,
    versions: &[[limit(4, 2), None]],
    shards_first: 1,
    shards_max: 2,
    pin_below: 1,
    splits: true,
    folds: true,
    refunds: true,
    charges: false,
    gathers: false,
    blind: false,
    syncs: false,
    creates: false,
    sweeps: false,
    disables: false,
    deletes: false,
    raises: 0,
    beheadings: 0,
    cuts: 0,
    losses: 0,
};

/// One limit, two agents that split and fold, refunds.
pub(crate) const CORE: Setup = Setup { name: "core", ops: &[2, 1], agents: &[1, 1], ..PLAIN };

pub(crate) const CORE_LARGE: Setup = Setup { name: "core, large", ops: &[2, 2], ..CORE };

/// The same, already split.
pub(crate) const CORE_TWO: Setup =
    Setup { name: "core of two", ops: &[2, 2], agents: &[2], shards_first: 2, ..PLAIN };

/// Two splits in a row, and the fold of any tree.
pub(crate) const TREE: Setup = Setup {
    name: "tree",
    ops: &[1, 1],
    agents: &[3],
    ticks: 1,
    versions: &[[limit(4, 4), None]],
    shards_max: 4,
    ..PLAIN
};

pub(crate) const TREE_LARGE: Setup = Setup { name: "tree, large", ops: &[2, 1], ..TREE };

/// The same with expiry.
pub(crate) const TREE_EXPIRY: Setup = Setup { name: "tree and expiry", sweeps: true, ..TREE };

/// The same with clients that look for shards that are not there.
pub(crate) const TREE_BIRTH: Setup = Setup { name: "tree and birth", creates: true, ..TREE };

/// Charges into debt.
pub(crate) const DEBT: Setup =
    Setup { name: "debt", ops: &[2, 1], agents: &[2], charges: true, ..PLAIN };

/// Capacities that no number of shards divides.
pub(crate) const ODD: Setup = Setup {
    name: "odd",
    ops: &[2, 1],
    agents: &[2],
    amounts: &[[1, 0], [2, 0]],
    versions: &[[limit(3, 2), None]],
    ..PLAIN
};

/// The same over four shards.
pub(crate) const ODD_FOUR: Setup = Setup {
    name: "odd over four",
    ops: &[1, 1],
    agents: &[3],
    ticks: 1,
    versions: &[[limit(5, 4), None]],
    shards_max: 4,
    ..PLAIN
};

/// An odd limit that is lowered to another odd one.
pub(crate) const ODD_GAP: Setup = Setup {
    name: "odd gap",
    ops: &[3],
    agents: &[2],
    amounts: &[[2, 0]],
    versions: &[[limit(7, 2), None], [limit(3, 2), None]],
    syncs: true,
    sweeps: true,
    refunds: false,
    ..PLAIN
};

/// A divided limit and a pinned one.
pub(crate) const PIN: Setup = Setup {
    name: "pin",
    ops: &[2, 1],
    agents: &[2],
    amounts: &[[1, 0], [1, 1]],
    versions: &[[limit(4, 2), limit(1, 1)]],
    pin_below: 2,
    ..PLAIN
};

pub(crate) const PIN_LARGE: Setup = Setup { name: "pin, large", ops: &[2, 2], ..PIN };

/// The same over four shards.
pub(crate) const PIN_FOUR: Setup = Setup {
    name: "pin over four",
    ops: &[2, 1],
    agents: &[2, 2],
    amounts: &[[1, 1]],
    ticks: 1,
    versions: &[[limit(4, 4), limit(1, 1)]],
    shards_max: 4,
    pin_below: 2,
    folds: false,
    ..PLAIN
};

/// A capacity that the count would pin late.
pub(crate) const PIN_COUNT: Setup = Setup {
    name: "pin by count",
    ops: &[2],
    agents: &[2, 2],
    ticks: 1,
    versions: &[[limit(2, 4), None]],
    shards_max: 4,
    pin_below: 0,
    folds: false,
    ..PLAIN
};

/// A limit that is added while the bucket has two shards.
pub(crate) const NAMES: Setup = Setup {
    name: "names",
    ops: &[5, 3],
    amounts: &[[0, 1]],
    ticks: 1,
    versions: &[[limit(2, 2), None], [limit(2, 2), limit(2, 2)]],
    shards_first: 2,
    splits: false,
    folds: false,
    refunds: false,
    syncs: true,
    ..PLAIN
};

/// A limit that is removed and added again while the bucket has two shards.
pub(crate) const DROP: Setup = Setup {
    name: "drop",
    ops: &[4, 4],
    versions: &[[limit(2, 2), limit(2, 2)], [limit(2, 2), None], [limit(2, 2), limit(2, 2)]],
    ..NAMES
};

/// The same with a fold.
pub(crate) const DROP_FOLD: Setup =
    Setup { name: "drop and fold", ops: &[3, 1], agents: &[1], folds: true, ..DROP };

pub(crate) const DROP_FOLD_LARGE: Setup =
    Setup { name: "drop and fold, large", ops: &[3, 2], ..DROP_FOLD };

/// The same with a pinned limit.
pub(crate) const DROP_PIN: Setup = Setup {
    name: "drop pinned",
    versions: &[[limit(2, 2), limit(1, 1)], [limit(2, 2), None], [limit(2, 2), limit(1, 1)]],
    pin_below: 2,
    ..DROP
};

/// A pinned limit that is raised, folded, and divided by the next split.
pub(crate) const ERA: Setup = Setup {
    name: "era",
    ops: &[4],
    agents: &[2],
    ticks: 4,
    versions: &[[limit(1, 1), None], [limit(4, 2), None]],
    shards_first: 2,
    pin_below: 2,
    refunds: false,
    syncs: true,
    ..PLAIN
};

/// A limit that is lowered, split, folded and forgotten.
pub(crate) const GAP: Setup = Setup {
    name: "gap",
    ops: &[3],
    agents: &[2],
    amounts: &[[4, 0]],
    versions: &[[limit(8, 2), None], [limit(2, 2), None]],
    refunds: false,
    syncs: true,
    sweeps: true,
    ..PLAIN
};

pub(crate) const GAP_LARGE: Setup =
    Setup { name: "gap, large", ops: &[3, 1], amounts: &[[4, 0], [1, 0]], ticks: 3, ..GAP };

/// The same, already split.
pub(crate) const GAP_TWO: Setup = Setup {
    name: "gap of two",
    ops: &[6],
    agents: &[1],
    amounts: &[[2, 0], [4, 0]],
    ticks: 3,
    shards_first: 2,
    ..GAP
};

/// A limit that is lowered and raised again against splits and folds.
pub(crate) const SYNC: Setup = Setup {
    name: "sync",
    ops: &[2, 1],
    agents: &[2],
    ticks: 1,
    versions: &[[limit(4, 2), None], [limit(2, 2), None], [limit(4, 2), None]],
    syncs: true,
    ..PLAIN
};

pub(crate) const SYNC_LARGE: Setup = Setup { name: "sync, large", ops: &[2, 2], ..SYNC };

pub(crate) const SYNC_LONG: Setup = Setup { name: "sync, long", ops: &[3, 1], ..SYNC };

/// The same, already split.
pub(crate) const SYNC_TWO: Setup =
    Setup { name: "sync of two", agents: &[1], shards_first: 2, ..SYNC };

pub(crate) const SYNC_TWO_LARGE: Setup =
    Setup { name: "sync of two, large", ops: &[2, 2], ..SYNC_TWO };

/// Gathers against splits and folds.
pub(crate) const GATHER: Setup = Setup {
    name: "gather",
    ops: &[2, 1],
    agents: &[2],
    amounts: &[[2, 0], [1, 0]],
    ticks: 1,
    gathers: true,
    ..PLAIN
};

/// An amount above every share.
pub(crate) const GATHER_TWO: Setup =
    Setup { name: "gather of two", amounts: &[[3, 0], [1, 0]], shards_first: 2, ..GATHER };

/// Legs per limit, one of them pinned.
pub(crate) const GATHER_PIN: Setup = Setup {
    name: "gather pinned",
    ops: &[1, 1],
    agents: &[1],
    amounts: &[[3, 1], [1, 0]],
    versions: &[[limit(4, 2), limit(1, 1)]],
    shards_first: 2,
    pin_below: 2,
    ..GATHER
};

pub(crate) const GATHER_PIN_LARGE: Setup =
    Setup { name: "gather pinned, large", ops: &[2, 2], agents: &[2], ..GATHER_PIN };

/// A gather whose reply is lost, or which arrives late.
pub(crate) const LOSSES: Setup = Setup {
    name: "losses",
    ops: &[1, 2],
    agents: &[1],
    amounts: &[[3, 0], [1, 0]],
    ticks: 1,
    shards_first: 2,
    refunds: false,
    gathers: true,
    losses: 1,
    ..PLAIN
};

/// The same over four shards: a second plan may be for others than the first.
pub(crate) const LOSSES_FOUR: Setup = Setup {
    name: "losses over four",
    ops: &[1, 1],
    agents: &[],
    amounts: &[[2, 0], [1, 0]],
    ticks: 1,
    versions: &[[limit(4, 4), None]],
    shards_first: 4,
    shards_max: 4,
    ..LOSSES
};

/// Blind fills.
pub(crate) const BLIND: Setup =
    Setup { name: "blind", ops: &[2, 1], agents: &[2], blind: true, refunds: false, ..PLAIN };

/// Blind fills across a fold that gives the same count another meaning.
pub(crate) const BLIND_ERA: Setup = Setup { name: "blind era", blind: true, ..ERA };

/// Disabling against splits and folds.
pub(crate) const DISABLE: Setup = Setup {
    name: "disable",
    ops: &[2, 2],
    agents: &[2, 2],
    ticks: 0,
    refunds: false,
    disables: true,
    ..PLAIN
};

/// Deletion against splits, gathers and creates.
pub(crate) const DELETE: Setup = Setup {
    name: "delete",
    ops: &[2, 1],
    agents: &[2],
    ticks: 1,
    gathers: true,
    deletes: true,
    ..PLAIN
};

pub(crate) const DELETE_LARGE: Setup = Setup { name: "delete, large", ops: &[3, 2], ..DELETE };

/// A stranger raises the count and makes no shard.
pub(crate) const REPAIR: Setup = Setup {
    name: "repair",
    ops: &[2, 2],
    agents: &[1, 1],
    splits: false,
    folds: false,
    raises: 1,
    ..PLAIN
};

/// The same twice, up to four shards.
pub(crate) const REPAIR_FOUR: Setup = Setup {
    name: "repair over four",
    ops: &[2, 1],
    agents: &[3],
    ticks: 1,
    versions: &[[limit(4, 4), None]],
    shards_max: 4,
    raises: 2,
    ..REPAIR
};

/// A stranger deletes shard 0 and leaves an orphan.
pub(crate) const ORPHAN: Setup = Setup {
    name: "orphan",
    ops: &[2, 1],
    agents: &[2, 1],
    ticks: 1,
    shards_first: 2,
    folds: false,
    creates: true,
    beheadings: 1,
    ..PLAIN
};

/// A stranger lowers the limit under a split.
pub(crate) const STRANGER: Setup = Setup {
    name: "stranger",
    ops: &[2, 1],
    agents: &[2],
    ticks: 1,
    versions: &[[limit(4, 2), None], [limit(2, 2), None]],
    cuts: 1,
    ..PLAIN
};
