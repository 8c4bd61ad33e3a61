//! The stored items: one per shard of the bucket, in whole tokens and ticks; and the shares.

/// At most two limits per bucket.
pub(crate) const NAMES: usize = 2;

/// At most four shards per bucket.
pub(crate) const SHARDS: usize = 4;

/// What is asked of each limit, or held of it.
pub(crate) type Amounts = [i8; NAMES];

pub(crate) const NOTHING: Amounts = [0; NAMES];

/// Capacity and refill of a limit; the refill is per tick and divisible by the number of shards, so
/// no remainder is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Params {
    pub(crate) cp: i8,
    pub(crate) ra: i8,
}

/// The limits of one version of the configuration.
pub(crate) type Config = [Option<Params>; NAMES];

/// A refill instant. A tick is long beside a millisecond: writes that must move `rf` by at least 1
/// ms move `order`, which accrues nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Instant {
    pub(crate) tick: i8,
    pub(crate) order: u8,
}

impl Instant {
    pub(crate) fn at(tick: i8) -> Instant {
        Instant { tick, order: 0 }
    }

    /// 1 ms later.
    pub(crate) fn next(self) -> Instant {
        Instant { order: self.order + 1, ..self }
    }
}

/// The attributes of one limit on one shard: `cp` and `ra` of the whole bucket, `tk` and `gp` of
/// this shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Limit {
    pub(crate) params: Params,
    pub(crate) tk: i8,
    pub(crate) gp: i8,
}

/// The attributes of one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Shard {
    /// `shard_count`: this shard covers the slots `s` with `s mod n` = its number.
    pub(crate) n: i8,
    /// `er`: how often the bucket was folded.
    pub(crate) era: u8,
    pub(crate) rf: Instant,
    /// The limits that are pinned to shard 0.
    pub(crate) pin: [bool; NAMES],
    pub(crate) disabled: bool,
    /// The version of the configuration that the parameters came from.
    pub(crate) version: u8,
    /// True while `lw` is the nonce of the one gather whose reply was lost.
    pub(crate) lw_is_lost: bool,
    pub(crate) limits: [Option<Limit>; NAMES],
}

impl Shard {
    /// Names and parameters.
    pub(crate) fn params(&self) -> Config {
        self.limits.map(|limit| limit.map(|limit| limit.params))
    }

    pub(crate) fn is_pinned(&self, name: usize) -> bool {
        self.n > 1 && self.pin[name]
    }
}

/// Rule S1: the share of shard `number` of `n`, for each bit of the number from bit 0: the larger
/// half for a 0, the smaller for a 1.
pub(crate) fn share(capacity: i8, number: usize, n: i8) -> i8 {
    let (mut share, mut bits, mut left) = (capacity, number, n);
    while left > 1 {
        share = if bits & 1 == 0 { share - share / 2 } else { share / 2 };
        (bits, left) = (bits >> 1, left / 2);
    }
    share
}

/// The shard that shard `number` was split from: the number without its highest bit.
pub(crate) fn donor(number: usize) -> usize {
    if number == 0 { 0 } else { number - (1 << number.ilog2()) }
}

/// How much of the bucket the shards cover, in quarters.
pub(crate) fn coverage<'a>(shards: impl IntoIterator<Item = &'a Shard>) -> i8 {
    shards.into_iter().map(|shard| 4 / shard.n).sum()
}
