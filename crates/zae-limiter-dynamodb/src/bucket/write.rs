//! Every write that a bucket can receive from us, as a value of the domain.
//!
//! Most bugs of a limiter on one item are one writer that another writer's condition did not pin.
//! So a write says what it is for, what it demands of the item ([`Pins`]: a debit, charge or credit
//! gives each field, so a forgotten pin does not compile) and what it does to each limit
//! ([`Line`]). `render.rs` alone turns that into a DynamoDB request, and `writers.rs` holds every
//! request to the registry.

use std::sync::Arc;

use smallvec::SmallVec;
use smol_str::SmolStr;
use zae_limiter_core::{EntityId, Flag, LimitName, LimitParams, Milli, ResourceName, TimeMs};
use zae_limiter_store::LimitsInForce;

use crate::admin::entity::Owner;
use crate::bucket::writers::Writer;
use crate::constants::WCU_PER_WRITE_MILLI;
use crate::table::Key;

mod shards;

pub use shards::{LeafLimit, NewLeaf, TreeChange, Whole, Withdrawn};

/// The mark of one operation, the same over all its attempts.
pub type Nonce = SmolStr;

/// One write of a bucket.
#[derive(Clone, Debug, PartialEq)]
pub struct BucketWrite {
    /// Which shard of which bucket.
    pub key: Key,
    /// What it is for.
    pub purpose: Purpose,
    /// What it does.
    pub shape: Shape,
}

/// What a write is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// Takes, if every limit that is asked for has enough.
    Take,
    /// Brings the parameters of a bucket up to date and takes nothing.
    SyncOnly,
    /// Charges after the fact, into debt if need be.
    Charge,
    /// Gives back, never above capacity.
    GiveBack,
    /// Fills by order of an administrator.
    Reset,
    /// Disables a bucket, or enables it.
    Flag,
    /// Deletes a bucket with its entity.
    Delete,
    /// Splits a shard in two, or gives a shard back that a foreign writer has left out.
    Split,
    /// Folds all shards into one item.
    Fold,
    /// Removes a shard that belongs to no tree.
    Prune,
    /// Refills ahead of the takes.
    Upkeep,
}

/// What a write does.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    /// Changes a bucket that is there.
    Change(Box<Change>),
    /// Makes a bucket that is not there.
    Make(Box<NewBucket>),
    /// Removes a bucket with everything in it. Only as a leg of a transaction that says why it may.
    Remove(Whole),
    /// Makes a shard that is not there, with what another shard gives.
    Branch(Box<NewLeaf>),
    /// Removes a shard that is as it was seen. Only as a leg of a transaction.
    Withdraw(Box<Withdrawn>),
}

/// A change of a bucket that is there.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Refuses a second landing of the same operation. `None` for a write that may land twice, or
    /// is sent once.
    pub nonce: Option<Nonce>,
    /// What must hold of the item.
    pub pins: Pins,
    /// One per limit that is looked at or changed.
    pub lines: SmallVec<[Line; 2]>,
    /// What changes of the item beside its limits.
    pub item: ItemChange,
}

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
    /// line ([`LineForm::Fast`]).
    NoneOrAfter(i64),
}

/// What changes of an item beside its limits.
#[derive(Clone, Debug, PartialEq)]
pub struct ItemChange {
    /// The instant of the refill.
    pub refilled_at: Option<TimeMs>,
    /// When the configuration behind the new parameters was read.
    pub config_read_at: Option<i64>,
    /// The refill that the remainders of the limits belong to.
    pub remainders_at: To<TimeMs>,
    /// When the item expires, in seconds.
    pub expiry: To<i64>,
    /// Takes the mark off that a foreign writer of parameters left.
    pub clears_mark: bool,
    /// The limits that are no longer configured.
    pub retired: To<Vec<String>>,
    /// Disables or enables, and counts that.
    pub flag: Option<FlagChange>,
    /// How much room for writes there is afterwards.
    pub room: Room,
    /// The takes that are counted, in thousandths: one for a take, one less for a credit that
    /// undoes one.
    pub takes_milli: i64,
    /// The failed conditions that are counted, in thousandths.
    pub failed_milli: i64,
    /// Marks a write that undoes a take, with the instant of the take in microseconds.
    pub undoes: Option<i64>,
    /// What changes of its place among the shards.
    pub tree: Option<Box<TreeChange>>,
}

impl ItemChange {
    /// Nothing but what the write costs.
    pub(crate) fn spending(cost: Cost) -> ItemChange {
        let room = Room::Less { units_milli: cost.units_milli, gained_milli: 0 };
        ItemChange { failed_milli: cost.failed_milli, ..ItemChange::only(room) }
    }

    /// Nothing but the room for writes.
    pub(crate) const fn only(room: Room) -> ItemChange {
        ItemChange {
            refilled_at: None,
            config_read_at: None,
            remainders_at: To::Keep,
            expiry: To::Keep,
            clears_mark: false,
            retired: To::Keep,
            flag: None,
            room,
            takes_milli: 0,
            failed_milli: 0,
            undoes: None,
            tree: None,
        }
    }
}

/// What an attribute changes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum To<T> {
    /// It stays as it is.
    Keep,
    /// It gets this value.
    Set(T),
    /// It goes.
    Remove,
}

/// A new value of the flag `disabled`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlagChange {
    /// The flag from now on.
    pub flag: Flag,
    /// How often the flag has been written, this write included.
    pub count: i64,
}

/// What a write costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cost {
    /// Write units in thousandths: its own, and those of failed conditions that nobody has counted
    /// yet.
    pub(crate) units_milli: i64,
    /// The failed conditions among them, a thousand each.
    pub(crate) failed_milli: i64,
}

impl Cost {
    /// One write of an item of up to one KiB.
    pub(crate) const ONE: Cost = Cost { units_milli: WCU_PER_WRITE_MILLI, failed_milli: 0 };
}

/// What a write does to the hidden limit that counts writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// Nothing: the write does not count.
    Uncounted,
    /// Takes the units of the write, and regains what time has brought.
    Less {
        /// The units of the write.
        units_milli: i64,
        /// What the item regains.
        gained_milli: i64,
    },
    /// Full, less the units of the write.
    Full {
        /// The units of the write.
        units_milli: i64,
    },
}

/// What a write does to one limit.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Which limit.
    pub name: LimitName,
    /// What.
    pub form: LineForm,
}

/// What a write does to one limit. Each form is exact for every balance that meets its condition.
#[derive(Clone, Debug, PartialEq)]
pub enum LineForm {
    /// Takes or charges and leaves the refill alone.
    Fast {
        /// The parameters the limit must have.
        stored: LimitParams,
        /// What is taken.
        amount: Milli,
        /// The least balance; `None` for a charge.
        at_least: Option<Milli>,
        /// The largest balance that has not overflowed since the bound of [`RefilledAt`]; `None`
        /// when nothing is taken.
        at_most: Option<Ceiling>,
        /// The least balance on an item that expires: a deeper debt needs a later expiry.
        floor_if_expiring: Option<Milli>,
    },
    /// Refills a limit that is not full by then.
    Add {
        /// The parameters the limit must have.
        stored: LimitParams,
        /// What it regains.
        gained: Milli,
        /// What is taken or charged.
        amount: Milli,
        /// The balance must be less than this: it is not full by then.
        below: Milli,
        /// And at least this.
        at_least: Milli,
        /// What else changes.
        becomes: Becomes,
    },
    /// Fills a limit that is full by then.
    Fill {
        /// The parameters the limit must have.
        stored: LimitParams,
        /// What full is.
        full: Milli,
        /// What is taken or charged.
        amount: Milli,
        /// The balance must be at least this: it is full by then.
        at_least: Milli,
        /// Whether the limit must hide nothing.
        has_no_gap: bool,
        /// What else changes.
        becomes: Becomes,
    },
    /// Adds a limit that is not there.
    Seed {
        /// Its parameters.
        params: LimitParams,
        /// What it starts with, before the amount.
        start: Milli,
        /// What is taken or charged.
        amount: Milli,
        /// The balance that a limit of this name has left behind.
        stub: Option<Milli>,
    },
    /// Takes a limit away that may be forgotten.
    Drop {
        /// The parameters the limit must have.
        stored: LimitParams,
        /// The least balance.
        at_least: Milli,
    },
    /// Takes away the balance that a limit has left behind.
    Clear,
    /// Remembers limits that were dropped before they were full, in the place of `before`.
    Fold {
        /// Parameters and least balance of what is replaced.
        before: Option<(LimitParams, Milli)>,
        /// How long the last of them is not full, in the words of a limit.
        params: LimitParams,
    },
    /// Charges without looking at anything.
    Owe {
        /// What is charged.
        amount: Milli,
    },
    /// Gives back.
    GiveBack {
        /// The capacity the limit must have.
        stored_capacity: Milli,
        /// What full is.
        full: Milli,
        /// What is given back.
        amount: Milli,
        /// Whether the limit is full afterwards.
        overflows: bool,
    },
    /// Gives a part to another shard. Exact for every balance between the bounds.
    Part {
        /// The parameters the limit must have.
        stored: LimitParams,
        /// What goes; negative for debt.
        moved: Milli,
        /// The least balance; `None` when debt goes.
        at_least: Option<Milli>,
        /// The largest balance: what stays fits the smaller share.
        at_most: Milli,
        /// Whether the remainder is forgotten.
        forgets_remainder: bool,
        /// What a lowered capacity hides of what stays.
        gap: To<Milli>,
    },
    /// Has what all shards had together.
    Collect {
        /// The parameters the limit must have.
        stored: LimitParams,
        /// The balance it must have.
        exactly: Milli,
        /// The balance it has afterwards.
        to: Milli,
        /// Whether the remainder is forgotten.
        forgets_remainder: bool,
        /// What a lowered capacity hides.
        gap: To<Milli>,
    },
    /// Fills by order.
    Top {
        /// The capacity the limit must have.
        stored_capacity: Milli,
        /// What full is.
        full: Milli,
        /// The balance it must have, for a report to the millitoken.
        exactly: Option<Milli>,
    },
}

/// The largest balance of a FAST line, for one or two bounds of the refill instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ceiling {
    /// For `since` of [`RefilledAt::NotBefore`].
    pub since: Milli,
    /// For `or`, if there is one.
    pub or: Option<Milli>,
}

/// What a refill changes of a limit beside its balance.
#[derive(Clone, Debug, PartialEq)]
pub struct Becomes {
    /// The parameters it has afterwards.
    pub stored: LimitParams,
    /// The remainder of the refill.
    pub remainder: To<i64>,
    /// What a lowered capacity hides.
    pub gap: To<Milli>,
}

/// A bucket to make.
#[derive(Clone, Debug, PartialEq)]
pub struct NewBucket {
    pub(crate) namespace: Arc<str>,
    pub(crate) entity: EntityId,
    pub(crate) resource: ResourceName,
    /// `None` when the entity has no record.
    pub(crate) owner: Option<Arc<Owner>>,
    pub(crate) limits: LimitsInForce,
    /// Taken or charged on the way.
    pub(crate) amounts: SmallVec<[(LimitName, Milli); 2]>,
    /// The flag from its first moment on.
    pub(crate) flag: Flag,
    pub(crate) nonce: Nonce,
    pub(crate) now: TimeMs,
}

impl BucketWrite {
    pub(crate) fn change(key: Key, purpose: Purpose, change: Change) -> BucketWrite {
        BucketWrite { key, purpose, shape: Shape::Change(Box::new(change)) }
    }

    /// The deletion of a bucket, or of one of its shards.
    pub(crate) fn delete(key: Key, whole: Whole) -> BucketWrite {
        BucketWrite { key, purpose: Purpose::Delete, shape: Shape::Remove(whole) }
    }

    /// The same write as part of a take that another write counts.
    pub(crate) fn uncount(&mut self) {
        if let Shape::Change(change) = &mut self.shape {
            change.item.takes_milli = 0;
        }
    }

    /// The writer of the registry.
    #[must_use]
    pub fn writer(&self) -> Writer {
        let change = match (&self.shape, self.purpose) {
            (Shape::Make(_), Purpose::Charge) => return Writer::Recreate,
            (Shape::Make(_), _) => return Writer::Create,
            (Shape::Remove(_), _) => return Writer::Delete,
            (Shape::Branch(_), _) => return Writer::SplitChild,
            (Shape::Withdraw(_), Purpose::Prune) => return Writer::Prune,
            (Shape::Withdraw(_), _) => return Writer::FoldChild,
            (Shape::Change(change), _) => change,
        };
        match (self.purpose, change.pins.refilled_at) {
            (Purpose::SyncOnly, _) => Writer::SyncOnly,
            (Purpose::GiveBack, _) => Writer::Credit,
            (Purpose::Reset, _) => Writer::Reset,
            (Purpose::Flag, _) => Writer::Flag,
            (Purpose::Delete, _) => Writer::Delete,
            (Purpose::Split, _) => Writer::Split,
            (Purpose::Fold, _) => Writer::Fold,
            (Purpose::Prune, _) => Writer::Prune,
            (Purpose::Upkeep, _) => Writer::AggregatorRefill,
            (Purpose::Take, RefilledAt::NotBefore { .. }) => Writer::Fast,
            (Purpose::Take, RefilledAt::NotAfter(_)) => Writer::BlindFill,
            (Purpose::Take, _) if change.item.config_read_at.is_some() => Writer::Sync,
            (Purpose::Take, _) => Writer::Refill,
            (Purpose::Charge, RefilledAt::NotBefore { .. }) => Writer::ChargeFast,
            (Purpose::Charge, RefilledAt::Any) => Writer::ChargePlain,
            (Purpose::Charge, _) => Writer::ChargeRefill,
        }
    }

    /// The takes it counts, in thousandths.
    pub(crate) fn takes_milli(&self) -> i64 {
        match &self.shape {
            Shape::Change(change) => change.item.takes_milli,
            Shape::Make(_) if self.purpose == Purpose::Take => WCU_PER_WRITE_MILLI,
            _ => 0,
        }
    }

    /// The nonce it carries.
    #[must_use]
    pub fn nonce(&self) -> Option<&Nonce> {
        match &self.shape {
            Shape::Change(change) => change.nonce.as_ref(),
            Shape::Make(bucket) => Some(&bucket.nonce),
            Shape::Remove(_) | Shape::Branch(_) | Shape::Withdraw(_) => None,
        }
    }

    /// The limits of a change whose use it counts.
    pub fn counted(&self) -> impl Iterator<Item = &LimitName> {
        let lines = match &self.shape {
            Shape::Change(change) => &change.lines[..],
            Shape::Make(_) | Shape::Remove(_) | Shape::Branch(_) | Shape::Withdraw(_) => &[],
        };
        lines.iter().filter(|line| line.form.counts()).map(|line| &line.name)
    }
}

impl LineForm {
    /// Whether what was used of the limit changes.
    fn counts(&self) -> bool {
        match self {
            LineForm::Fast { amount, .. }
            | LineForm::Add { amount, .. }
            | LineForm::Fill { amount, .. }
            | LineForm::Seed { amount, stub: Some(_), .. } => *amount != Milli::ZERO,
            LineForm::Owe { .. } | LineForm::GiveBack { .. } => true,
            LineForm::Seed { stub: None, .. }
            | LineForm::Drop { .. }
            | LineForm::Clear
            | LineForm::Fold { .. }
            | LineForm::Part { .. }
            | LineForm::Collect { .. }
            | LineForm::Top { .. } => false,
        }
    }
}
