//! The registry of all writers of a bucket: for each one, which attributes it may write, which it
//! must pin, and why that is enough. Every request that is rendered is held to it in debug builds:
//! to the kinds of attributes, not to comparisons, values or single limits, which the simulator and
//! the model check.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use Field::*;

use crate::records::attr;
use crate::table::{Condition, Write};

/// A writer of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Writer {
    /// Takes without refilling.
    Fast,
    /// Refills every limit and takes.
    Refill,
    /// Takes from a bucket that is full whatever its last refill was.
    BlindFill,
    /// Refills, changes parameters and takes.
    Sync,
    /// Refills and changes parameters for a request that is refused: takes nothing.
    SyncOnly,
    /// Makes a bucket that was not there.
    Create,
    /// Charges after the fact without refilling.
    ChargeFast,
    /// Charges after the fact and refills.
    ChargeRefill,
    /// Charges after the fact when every other form lost its race.
    ChargePlain,
    /// Makes a forgotten bucket again to charge it.
    Recreate,
    /// Gives back.
    Credit,
    /// Fills by order of an administrator.
    Reset,
    /// Disables or enables a bucket.
    Flag,
    /// Deletes a bucket with its entity.
    Delete,
    /// Gives a part of a shard to another one.
    Split,
    /// Makes the other one.
    SplitChild,
    /// Collects what all shards have on shard 0.
    Fold,
    /// Removes a shard whose balances are collected.
    FoldChild,
    /// Removes a shard that belongs to no tree.
    Prune,
    /// Refills every limit ahead of the takes.
    AggregatorRefill,
    /// Lends, and serves a request on the way.
    Lend,
    /// Takes back what is left of a loan, and counts what was used of it.
    Settle,
    /// Counts what was used of a loan when every other form lost its race.
    CountUse,
    /// Makes a bucket that another store had.
    Adopt,
}

/// A kind of attribute; those of limits without the limit's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "testing", expect(missing_docs, reason = "named as the attributes are"))]
pub enum Field {
    Pk,
    Tk,
    Tc,
    Cp,
    Ra,
    Rp,
    Rm,
    Gp,
    Fu,
    Rf,
    Rmf,
    Ca,
    Lw,
    Vu,
    Ttl,
    Disabled,
    Fv,
    ShardCount,
    Ret,
    WcuTk,
    WcuTc,
    Wx,
    Un,
    Pin,
    Er,
    Tx,
    Sp,
    Ln,
    /// Attributes that only a create writes: keys of the indexes, names, owner.
    Made,
}

impl Field {
    /// The kind an attribute of a bucket belongs to.
    #[must_use]
    pub fn of(name: &str) -> Field {
        match name {
            attr::PK => Field::Pk,
            attr::REFILLED_AT => Field::Rf,
            attr::REMAINDERS_AT => Field::Rmf,
            attr::CONFIG_READ_AT => Field::Ca,
            attr::LAST_NONCE => Field::Lw,
            attr::MARK => Field::Vu,
            attr::TTL => Field::Ttl,
            attr::DISABLED => Field::Disabled,
            attr::FLAG_COUNT => Field::Fv,
            attr::SHARD_COUNT => Field::ShardCount,
            attr::RETIRED => Field::Ret,
            attr::ROOM => Field::WcuTk,
            attr::TAKES => Field::WcuTc,
            attr::FAILED => Field::Wx,
            attr::UNDONE => Field::Un,
            attr::PINNED => Field::Pin,
            attr::ERA => Field::Er,
            attr::EXPIRES_LATER => Field::Tx,
            attr::SPLIT_AT => Field::Sp,
            attr::LENT => Field::Ln,
            _ => match name.strip_prefix("b_").and_then(|rest| rest.rsplit_once('_')) {
                Some((limit, _)) if limit == attr::WCU => Field::Made,
                Some((_, "tk")) => Field::Tk,
                Some((_, "tc")) => Field::Tc,
                Some((_, "cp")) => Field::Cp,
                Some((_, "ra")) => Field::Ra,
                Some((_, "rp")) => Field::Rp,
                Some((_, "rm")) => Field::Rm,
                Some((_, "gp")) => Field::Gp,
                Some((_, "fu")) => Field::Fu,
                _ => Field::Made,
            },
        }
    }
}

/// What one writer may write and must pin.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Whose rules.
    pub writer: Writer,
    /// All it may write.
    pub writes: &'static [Field],
    /// What its condition always looks at.
    pub pins: &'static [Field],
    /// Why that is enough.
    pub reason: &'static str,
}

const REFILLED: &[Field] =
    &[Tk, Tc, Cp, Ra, Rp, Rm, Gp, Fu, Rf, Rmf, Ca, Lw, Vu, Ttl, Ret, WcuTk, WcuTc, Wx];

const LENDING: &[Field] =
    &[Tk, Tc, Cp, Ra, Rp, Rm, Gp, Fu, Rf, Rmf, Ca, Lw, Vu, Ttl, Ret, WcuTk, WcuTc, Wx, Ln];

const MADE: &[Field] =
    &[Pk, Tk, Tc, Cp, Ra, Rp, Rf, Ca, Lw, Ttl, Disabled, Fv, ShardCount, WcuTk, WcuTc, Made];

const CHILD: &[Field] =
    &[Pk, Tk, Tc, Cp, Ra, Rp, Gp, Rf, Ca, Ret, ShardCount, Pin, Er, WcuTk, WcuTc, Made];

const ADOPTED: &[Field] = &[
    Pk, Tk, Tc, Cp, Ra, Rp, Rm, Gp, Rf, Rmf, Ca, Ttl, Disabled, Fv, ShardCount, Ret, WcuTk, WcuTc,
    Made,
];

/// What a writer looks at of each limit whose balance it changes.
const LIMIT_FIELDS: &[Field] = &[Tk, Cp, Ra, Rp];

/// The registry: every writer of a bucket.
pub const REGISTRY: &[Rules] = &[
    Rules {
        writer: Writer::Fast,
        writes: &[Tk, Tc, WcuTk, WcuTc, Wx, Lw],
        pins: &[Pk, Tk, Cp, Ra, Rp, Rf, ShardCount, Disabled, Vu, Ttl, Lw, WcuTk],
        reason: "the balance suffices, and nothing has overflowed that a later refill would credit again; rf only grows, so a lower bound does",
    },
    Rules {
        writer: Writer::Refill,
        writes: REFILLED,
        pins: &[Pk, Tk, Cp, Ra, Rp, Rf, ShardCount, Disabled, Vu, Lw],
        reason: "everything the new balance is computed from, except the balance itself: ADD and FILL are exact for every balance of their mode",
    },
    Rules {
        writer: Writer::BlindFill,
        writes: REFILLED,
        pins: &[Pk, Tk, Cp, Ra, Rp, Rf, ShardCount, Disabled, Vu, Ca, Gp, Lw],
        reason: "full at this instant whatever the last refill was, and the same limits as known (ca)",
    },
    Rules {
        writer: Writer::Sync,
        writes: REFILLED,
        pins: &[Pk, Rf, ShardCount, Disabled, Vu, Lw],
        reason: "the image it was computed from, whole; rf moves, so every writer with an older image loses",
    },
    Rules {
        writer: Writer::SyncOnly,
        writes: REFILLED,
        pins: &[Pk, Rf, ShardCount, Disabled, Vu],
        reason: "as a sync; without a nonce, because landing twice changes nothing and the take that may follow needs its own",
    },
    Rules {
        writer: Writer::Create,
        writes: MADE,
        pins: &[Pk],
        reason: "pins that the item is absent; an absent bucket counts as full",
    },
    Rules {
        writer: Writer::ChargeFast,
        writes: &[Tk, Tc, WcuTk, WcuTc, Wx, Lw],
        pins: &[Pk, Tk, Cp, Ra, Rp, Rf, ShardCount, Ttl, Lw],
        reason: "no floor, because a charge may lead into debt; the ceiling, or the charge would vanish into what overflowed",
    },
    Rules {
        writer: Writer::ChargeRefill,
        writes: REFILLED,
        pins: &[Pk, Rf, ShardCount, Vu, Lw],
        reason: "as a refill, without a floor, on a disabled bucket too: what was used was used",
    },
    Rules {
        writer: Writer::ChargePlain,
        writes: &[Tk, Tc, WcuTk, Wx, Lw, Ttl],
        pins: &[Pk, Tk, Lw],
        reason: "the last resort of a charge that must not be lost; it may be paid from overflow, which is the safe loss of the two",
    },
    Rules {
        writer: Writer::Recreate,
        writes: MADE,
        pins: &[Pk],
        reason: "what is not there was forgotten full",
    },
    Rules {
        writer: Writer::Credit,
        writes: &[Tk, Tc, WcuTk, WcuTc, Wx, Un, Ln],
        pins: &[Pk, Tk, Cp, ShardCount, Ln],
        reason: "never above the capacity of this instant, less what is lent; touches neither rf nor lw, so it is sent at most once; who finds that all loans have ended takes their count away, so that no return that was sent before lands after it",
    },
    Rules {
        writer: Writer::Reset,
        writes: &[Tk, Tc, Rf, WcuTk, Wx],
        pins: &[Pk, Cp, Rf, ShardCount],
        reason: "full is full whatever the balance was, and a refill that is still due adds nothing to it; rf only ever goes back from a future nobody may write",
    },
    Rules {
        writer: Writer::Flag,
        writes: &[Disabled, Fv],
        pins: &[Pk, Disabled, Fv],
        reason: "a flag says nothing about balances, and every debit pins it; the configuration was read after the flag it replaces, so whoever read it earlier loses",
    },
    Rules {
        writer: Writer::Delete,
        writes: &[],
        pins: &[],
        reason: "the bucket goes whatever it holds; another leg of the transaction pins the mark of the entity, from which on takes are refused",
    },
    Rules {
        writer: Writer::Split,
        writes: &[Tk, Rm, Gp, Rmf, Ttl, ShardCount, Pin, Er, Tx, Sp, WcuTk, Wx, Ln],
        pins: &[Pk, Tk, Cp, Ra, Rp, Rf, ShardCount, Vu, Disabled, Ln],
        reason: "no balance depends on the time: what goes is fixed, and what stays fits its share for every balance between the bounds; the count moves, so every writer with an older share loses",
    },
    Rules {
        writer: Writer::SplitChild,
        writes: CHILD,
        pins: &[Pk],
        reason: "pins that the item is absent; a shard is made only by the transaction that takes its part from another",
    },
    Rules {
        writer: Writer::Fold,
        writes: &[Tk, Rm, Gp, Fu, Rf, Rmf, Ca, Ttl, ShardCount, Pin, Er, Tx, Sp, WcuTk, Wx],
        pins: &[Pk, Tk, Cp, Ra, Rp, Rf, ShardCount, Vu],
        reason: "every balance of every shard exactly, because the sum is written; the era moves, so a writer who knew the shares of before loses",
    },
    Rules {
        writer: Writer::FoldChild,
        writes: &[],
        pins: &[Pk, Tk, Cp, Ra, Rp, Rf, ShardCount, Vu],
        reason: "the balances that another leg of the transaction has added up",
    },
    Rules {
        writer: Writer::Prune,
        writes: &[],
        pins: &[Pk, Rf],
        reason: "nobody of ours draws a shard that its donor does not know of; as it was seen, so that no shard of a later split goes",
    },
    Rules {
        writer: Writer::AggregatorRefill,
        writes: REFILLED,
        pins: &[Pk, Tk, Cp, Ra, Rp, Rf, ShardCount, Disabled, Vu],
        reason: "as a refill; it takes nothing and has no nonce",
    },
    Rules {
        writer: Writer::Lend,
        writes: LENDING,
        pins: &[Pk, Tk, Cp, Ra, Rp, Rf, ShardCount, Disabled, Vu, Lw, Ln],
        reason: "as a refill; the count of what is lent is pinned to the letter, so that two lenders count each other's loans and no credit is computed from another count",
    },
    Rules {
        writer: Writer::Settle,
        writes: LENDING,
        pins: &[Pk, Tk, Cp, Ra, Rp, Rf, ShardCount, Vu, Lw, Ln],
        reason: "as a loan, on a disabled bucket too: what was used was used, and what was not is the bucket's",
    },
    Rules {
        writer: Writer::CountUse,
        writes: &[Tc, WcuTk, WcuTc, Wx, Lw],
        pins: &[Pk, Lw],
        reason: "changes no balance: what is left of the loan is lost, its use is not",
    },
    Rules {
        writer: Writer::Adopt,
        writes: ADOPTED,
        pins: &[Pk],
        reason: "pins that the item is absent, which counts as full: a balance of at most the capacity, as of its own rf, is never more, wherever and however late it lands",
    },
];

/// What of the registry a request breaks, in words: what `writer` writes beyond it, and what it
/// does not pin.
pub(crate) fn breaches(writer: Writer, write: &Write) -> Vec<String> {
    let Some(rules) = REGISTRY.iter().find(|rules| rules.writer == writer) else {
        return vec![format!("{writer:?} is not in the registry")];
    };
    let (writes, conditions): (BTreeSet<Field>, &[Condition]) = match write {
        Write::Update(update) => {
            let written = update.actions.iter().map(|action| Field::of(action.attr()));
            (written.collect(), &update.conditions)
        }
        Write::Put(put) => (put.item.keys().map(|name| Field::of(name)).collect(), &put.conditions),
        Write::Delete(delete) => (BTreeSet::new(), &delete.conditions),
        Write::Check(_) | Write::Bucket(_) => (BTreeSet::new(), &[]),
    };
    let mut pins = BTreeSet::new();
    conditions.iter().for_each(|condition| collect(condition, &mut pins));
    let stray = writes
        .iter()
        .filter(|field| !rules.writes.contains(field))
        .map(|field| format!("{writer:?} writes {field:?}"));
    // A member of a chain may have none of the limits asked for: a write that changes no balance
    // has none to look at.
    let is_needed = |field: &Field| !LIMIT_FIELDS.contains(field) || writes.contains(&Tk);
    let missing = rules.pins.iter().filter(|field| !pins.contains(field) && is_needed(field));
    let loose = missing.map(|field| format!("{writer:?} does not pin {field:?}"));
    // Between two folds the same count and parameters mean the same share, and only then.
    let is_sharded = conditions.iter().any(|condition| {
        matches!(condition, Condition::CompareNumber(attr, _, count) if attr == attr::SHARD_COUNT && *count > 1)
    });
    let timeless = (is_sharded && !pins.contains(&Er))
        .then(|| format!("{writer:?} writes one of several shards and does not pin Er"));
    stray.chain(loose).chain(timeless).collect()
}

/// The kinds of attributes a condition looks at.
fn collect(condition: &Condition, fields: &mut BTreeSet<Field>) {
    match condition {
        Condition::Exists(attr)
        | Condition::Absent(attr)
        | Condition::Compare(attr, ..)
        | Condition::CompareNumber(attr, ..) => drop(fields.insert(Field::of(attr))),
        Condition::All(parts) | Condition::Any(parts) => {
            parts.iter().for_each(|part| collect(part, fields))
        }
    }
}
