//! The configurations: small worlds, each aimed at a group of guards.

use crate::protocol_model::item::{Config, Params};

/// A world to explore.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) name: &'static str,
    /// Debits and corrections each client may land.
    pub(crate) ops: &'static [u8],
    /// How far each client's clock is ahead.
    pub(crate) skew: [i8; 3],
    pub(crate) takes: &'static [i8],
    pub(crate) adjusts: &'static [i8],
    pub(crate) refunds: bool,
    pub(crate) blind: bool,
    /// Landed writes whose reply is lost.
    pub(crate) losses: u8,
    pub(crate) ticks: i8,
    /// The configurations in the order the administrator sets them.
    pub(crate) versions: &'static [Config],
    /// `CONFIG_MARGIN_MS` of rule C2 (`docs/protocol.md`).
    pub(crate) margin: i8,
    /// `ttl` is this many fill times (the protocol's 7); 0: the bucket never expires.
    pub(crate) ttl_fills: i8,
    /// Limit changes written by a foreign writer that moves no `rf`.
    pub(crate) foreign: u8,
    /// True when they raise the limit, and so mint what accrued under the lower one.
    pub(crate) foreign_mints: bool,
    /// True when the bucket is there, full, at the start.
    pub(crate) exists: bool,
}

/// A margin so long that only causal reads count: the age of reads then does not matter and is not
/// kept.
const NEVER: i8 = i8::MAX;

impl Setup {
    /// True when a cached configuration may justify a parameter write by its age.
    pub(crate) fn reads_by_age(&self) -> bool {
        self.versions.len() > 1 && self.margin < NEVER
    }
}

/// A limit that is never short.
const AMPLE: Option<Params> = limit(8, 8);

const fn limit(cp: i8, ra: i8) -> Option<Params> {
    Some(Params { cp, ra })
}

const PLAIN: Setup = Setup {
    name: "",
    ops: &[],
    skew: [0; 3],
    takes: &[],
    adjusts: &[],
    refunds: false,
    blind: false,
    losses: 0,
    ticks: 0,
    versions: &[],
    margin: NEVER,
    ttl_fills: 0,
    foreign: 0,
    foreign_mints: false,
    exists: true,
};

/// Every form of debit against every other, with refunds.
pub(crate) const DEBITS: Setup = Setup {
    name: "debits",
    ops: &[2, 2, 1],
    takes: &[1],
    adjusts: &[3],
    refunds: true,
    blind: true,
    ticks: 3,
    versions: &[[limit(2, 1), None]],
    ..PLAIN
};

/// A reply is lost, and the write goes out again.
pub(crate) const LOSSES: Setup = Setup {
    name: "losses",
    ops: &[2, 2],
    takes: &[1],
    adjusts: &[2],
    refunds: true,
    blind: true,
    losses: 1,
    ticks: 3,
    versions: &[[limit(2, 1), None]],
    exists: false,
    ..PLAIN
};

/// Clocks that disagree by one tick.
pub(crate) const SKEW: Setup = Setup {
    name: "skew",
    ops: &[3, 3],
    skew: [0, 1, 0],
    takes: &[1, 2],
    refunds: true,
    blind: true,
    ticks: 4,
    versions: &[[limit(2, 1), None]],
    ..PLAIN
};

/// A limit that is changed twice, read by processes with different clocks.
pub(crate) const CONFIG: Setup = Setup {
    name: "config",
    ops: &[2, 2],
    skew: [1, 0, 0],
    takes: &[1],
    ticks: 2,
    versions: &[[limit(3, 2), None], [limit(1, 1), None], [limit(2, 1), None]],
    margin: 1,
    ..PLAIN
};

/// One process knows that the limit was cut, the other does not.
pub(crate) const CUT: Setup = Setup {
    name: "cut",
    ops: &[2, 2],
    takes: &[1, 2],
    blind: true,
    ticks: 2,
    versions: &[[limit(4, 4), None], [limit(2, 1), None]],
    margin: 0,
    ..PLAIN
};

/// A second limit that is lowered, removed and added again.
pub(crate) const NAMES: Setup = Setup {
    name: "names",
    ops: &[3, 1],
    takes: &[1, 2],
    blind: true,
    ticks: 3,
    versions: &[[AMPLE, limit(2, 1)], [AMPLE, limit(1, 1)], [AMPLE, None], [AMPLE, limit(2, 1)]],
    ..PLAIN
};

/// Corrections, debt and expiry.
pub(crate) const DEBT: Setup = Setup {
    name: "debt",
    ops: &[2, 2],
    takes: &[1],
    adjusts: &[1, 2, 4],
    refunds: true,
    blind: true,
    ticks: 6,
    versions: &[[limit(1, 1), None]],
    ttl_fills: 2,
    exists: false,
    ..PLAIN
};

/// A limit that is lowered, used, forgotten and raised again.
pub(crate) const GAP: Setup = Setup {
    name: "gap",
    ops: &[3, 1],
    takes: &[1, 3],
    blind: true,
    ticks: 5,
    versions: &[[limit(3, 3), None], [limit(1, 1), None], [limit(3, 3), None]],
    ttl_fills: 2,
    ..PLAIN
};

/// The same with corrections that go deep into debt.
pub(crate) const GAP_DEBT: Setup = Setup {
    name: "gap and debt",
    ops: &[2, 1],
    takes: &[1],
    adjusts: &[2, 5],
    refunds: true,
    blind: true,
    ticks: 5,
    versions: &[[limit(4, 2), None], [limit(1, 1), None]],
    ttl_fills: 2,
    ..PLAIN
};

/// A foreign writer lowers the limit and stamps the item.
pub(crate) const FOREIGN: Setup = Setup {
    name: "foreign",
    ops: &[2, 2],
    takes: &[1],
    ticks: 2,
    versions: &[[limit(3, 1), None], [limit(1, 1), None]],
    foreign: 1,
    margin: 0,
    ..PLAIN
};

/// A foreign writer and ours change the limit to and fro.
pub(crate) const STAMPS: Setup = Setup {
    name: "stamps",
    ops: &[1, 1],
    takes: &[1],
    ticks: 1,
    versions: &[[limit(3, 1), None], [limit(2, 1), None], [limit(3, 1), None], [limit(2, 1), None]],
    foreign: 2,
    margin: 0,
    foreign_mints: true,
    ..PLAIN
};
