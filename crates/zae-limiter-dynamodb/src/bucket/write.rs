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
use zae_limiter_core::{
    BucketState, EntityId, Flag, LimitName, LimitParams, Milli, ResourceName, TimeMs,
};
use zae_limiter_store::LimitsInForce;

use crate::admin::entity::Owner;
use crate::bucket::writers::Writer;
use crate::constants::WCU_PER_WRITE_MILLI;
use crate::table::Key;

mod pins;
mod shards;

pub use pins::{ExpiryPin, FlagPin, LoansPin, Pin, Pins, RefilledAt};
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
    /// Lends to a local block, and serves a request on the way.
    Lend,
    /// Ends a loan: takes back what is left of it and counts what was used.
    Settle,
    /// Takes a bucket over from another store.
    Adopt,
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
    /// What the bucket has lent.
    pub loans: To<SmolStr>,
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
            loans: To::Keep,
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
        /// What is taken or charged; negative when a loan brings back more.
        amount: Milli,
        /// What counts as used: the amount, but for loans.
        used: Milli,
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
        /// What counts as used: the amount, but for loans.
        used: Milli,
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
        /// How far it may be lifted: to what full is, less what the bucket has lent.
        ceiling: Milli,
        /// What is given back.
        amount: Milli,
        /// How much of it there is room for.
        fits: Fits,
    },
    /// Counts use, and changes no balance.
    Count {
        /// What was used.
        used: Milli,
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
        /// What the shards had taken that this fold and those before it have removed.
        folded_used: To<Milli>,
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

/// How much of what is given back a limit has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fits {
    /// All of it.
    All,
    /// A part: the limit is at its ceiling afterwards.
    Part,
    /// The same of a limit that has lent: it must not be above its ceiling, or it would be cut.
    PartBesideLoans,
    /// Nothing: a limit that has lent is above its ceiling already. It stays as it is.
    Nothing,
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
    /// What it begins with instead of full limits: the bucket of another store.
    pub(crate) carried: Option<Box<BucketState>>,
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
            (Shape::Make(_), Purpose::Adopt) => return Writer::Adopt,
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
            (Purpose::Adopt, _) => Writer::Adopt,
            (Purpose::Upkeep, _) => Writer::AggregatorRefill,
            (Purpose::Lend, _) => Writer::Lend,
            (Purpose::Settle, RefilledAt::Any) => Writer::CountUse,
            (Purpose::Settle, _) => Writer::Settle,
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
            Shape::Make(bucket) => Some(&bucket.nonce).filter(|_| bucket.carried.is_none()),
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
            LineForm::Fast { amount, .. } | LineForm::Seed { amount, stub: Some(_), .. } => {
                *amount != Milli::ZERO
            }
            LineForm::Add { used, .. } | LineForm::Fill { used, .. } => *used != Milli::ZERO,
            LineForm::Owe { .. } | LineForm::GiveBack { .. } | LineForm::Count { .. } => true,
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
