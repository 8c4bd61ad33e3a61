//! The stored item: what DynamoDB keeps of one bucket, in whole tokens and ticks.

/// At most two limits per item: one that is always configured, one that comes and goes.
pub(crate) const NAMES: usize = 2;

/// Capacity and refill of a limit; the refill is per tick, so no remainder is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Params {
    pub(crate) cp: i8,
    pub(crate) ra: i8,
}

impl Params {
    /// Ticks from empty to full.
    pub(crate) fn fill(self) -> i8 {
        ticks(self.cp, self.ra)
    }
}

/// Ticks until `tokens` have come in, rounded up.
pub(crate) fn ticks(tokens: i8, ra: i8) -> i8 {
    (tokens + ra - 1) / ra
}

/// The limits of one version of the configuration.
pub(crate) type Config = [Option<Params>; NAMES];

/// A refill instant. A tick is long beside a millisecond: writes that must move `rf` by at least 1
/// ms move `order`, which accrues nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Instant {
    pub(crate) tick: i8,
    pub(crate) order: u8,
}

impl Instant {
    pub(crate) fn at(tick: i8) -> Instant {
        Instant { tick, order: 0 }
    }
}

/// The attributes of one limit: `cp` and `ra`, `tk`, `gp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Limit {
    pub(crate) params: Params,
    pub(crate) tk: i8,
    pub(crate) gp: i8,
}

/// The attributes of the item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Item {
    pub(crate) rf: Instant,
    pub(crate) ttl: i8,
    pub(crate) ca: Instant,
    /// True while `vu` is 0: "look at the configuration again", set by a foreign writer.
    pub(crate) vu: bool,
    /// True while `lw` is the nonce of the one write whose reply was lost; all other nonces are
    /// alike.
    pub(crate) lw_is_lost: bool,
    /// True for an item that a credit made out of nothing.
    pub(crate) stub: bool,
    pub(crate) limits: [Option<Limit>; NAMES],
}

impl Item {
    /// The balance of a limit at `tick` before it is cut to its capacity.
    pub(crate) fn accrued(&self, limit: &Limit, tick: i8) -> i8 {
        limit.tk + limit.params.ra * (tick - self.rf.tick).max(0)
    }
}
