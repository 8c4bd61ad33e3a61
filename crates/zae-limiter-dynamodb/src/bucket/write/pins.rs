//! What must hold of an item for a write to land.

use smallvec::SmallVec;
use smol_str::SmolStr;
use zae_limiter_core::{LimitName, TimeMs};

use crate::bucket::image::Image;

/// What must hold of the item for a change to land, its limits aside.
#[derive(Clone, Debug, PartialEq)]
pub struct Pins {
    /// When the bucket was refilled last.
    pub refilled_at: RefilledAt,
    /// How many shards the bucket has, as this one knows it.
    pub shard_count: Option<i64>,
    /// How often the shards were folded.
    pub era: Pin,
    /// Whether the bucket is disabled.
    pub flag: FlagPin,
    /// The mark that a foreign writer of parameters leaves.
    pub mark: Pin,
    /// When the configuration behind the parameters was read: every change of ours moves it.
    pub config_read_at: Pin,
    /// When the item expires.
    pub expiry: ExpiryPin,
    /// Whether the item must have room for another write.
    pub has_room: bool,
    /// What the bucket has lent.
    pub loans: LoansPin,
    /// Limits that must not be there: the caller asks for them and does not know them here.
    pub must_be_absent: SmallVec<[LimitName; 1]>,
}

impl Pins {
    /// Only that the item is there.
    pub(crate) const THERE: Pins = Pins {
        refilled_at: RefilledAt::Any,
        shard_count: None,
        era: Pin::Any,
        flag: FlagPin::Any,
        mark: Pin::Any,
        config_read_at: Pin::Any,
        expiry: ExpiryPin::Any,
        has_room: false,
        loans: LoansPin::Any,
        must_be_absent: SmallVec::new_const(),
    };
}

/// What must hold of one number of the item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pin {
    /// Nothing.
    Any,
    /// It is not there.
    Absent,
    /// It is this.
    Is(i64),
}

impl Pin {
    /// As it was seen.
    pub(crate) fn seen(value: Option<i64>) -> Pin {
        value.map_or(Pin::Absent, Pin::Is)
    }
}

/// What must hold of the instant of the last refill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefilledAt {
    /// Nothing.
    Any,
    /// This very instant: the write is computed from it.
    Exactly(TimeMs),
    /// At `since` or later, and then no limit is above its ceiling for `since`. Alternatively
    /// `rf >= or`, with each limit at most its ceiling for `or`.
    NotBefore {
        /// The lower bound.
        since: TimeMs,
        /// The alternative bound, later than `since`.
        or: Option<TimeMs>,
    },
    /// Then or earlier.
    NotAfter(TimeMs),
    /// Later than this.
    After(TimeMs),
}

/// What must hold of the flag `disabled`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlagPin {
    /// Nothing.
    Any,
    /// The bucket is enabled.
    Enabled,
    /// As it was seen, with the count of its writes.
    Seen {
        /// Whether the bucket was disabled.
        is_set: bool,
        /// How often the flag had been written.
        count: Option<i64>,
    },
}

/// What must hold of the expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpiryPin {
    /// Nothing.
    Any,
    /// There is none.
    Absent,
    /// There is one, at this second or later.
    NotBefore(i64),
    /// There is none, or it is later than this second and no balance falls below the floor of its
    /// line ([`super::LineForm::Fast`]).
    NoneOrAfter(i64),
}

/// What must hold of what the bucket has lent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoansPin {
    /// Nothing.
    Any,
    /// Nothing is lent.
    Absent,
    /// It is this, to the letter.
    Is(SmolStr),
}

impl LoansPin {
    /// As it was seen.
    pub(crate) fn seen(image: Option<&Image>) -> LoansPin {
        match image.and_then(|image| image.loans.as_deref()) {
            Some(loans) => LoansPin::Is(loans.text.clone()),
            None => LoansPin::Absent,
        }
    }
}
