//! Writes that move tokens between the shards of a bucket, and the sum of all shards. Pure.
//!
//! Tokens only ever move: what one leg of a transaction takes from a shard, another leg gives.
//! Example: shard 0 of 100 with 60 left splits; 30 go to shard 1, and each has a capacity of 50.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use aws_sdk_dynamodb::types::AttributeValue;
use smallvec::SmallVec;
use zae_limiter_core::{LimitName, Milli, TimeMs, is_fold};

use crate::bucket::expiry::{expiry_s, keep_ms};
use crate::bucket::image::{Image, ImageLimit};
use crate::bucket::shard::{Standing, is_complete};
use crate::bucket::waits::{Wanted, alone, balance, is_asked};
use crate::bucket::write::{
    BucketWrite, Change, ExpiryPin, FlagPin, ItemChange, LeafLimit, Line, LineForm, LoansPin,
    NewLeaf, Pin, Pins, Purpose, RefilledAt, Room, Shape, To, TreeChange, Withdrawn,
};
use crate::constants::{SHARDS_MAX, WCU_PER_WRITE_MILLI};
use crate::records::attr;
use crate::records::keys;
use crate::table::{Check, Comparison, Item, Key, Write, compare};

/// What a transaction costs an item, in thousandths of a write: twice what a write costs.
const UNITS_MILLI: i64 = 2 * WCU_PER_WRITE_MILLI;

/// Attributes that all shards have alike.
const COPIED: [&str; 6] =
    [attr::ENTITY_ID, attr::RESOURCE, attr::CASCADE, attr::PARENT_ID, attr::PGEN, attr::PINC];

/// Which bucket, as its keys say.
#[derive(Clone, Debug)]
pub(crate) struct Whose {
    pub(crate) namespace: Arc<str>,
    pub(crate) entity: String,
    pub(crate) resource: String,
}

impl Whose {
    /// Read from the key of a shard.
    pub(crate) fn of(namespace: &Arc<str>, key: &Key) -> Option<Whose> {
        let (entity, resource, _) = keys::parse_bucket(namespace, &key.pk)?;
        Some(Whose {
            namespace: Arc::clone(namespace),
            entity: entity.to_owned(),
            resource: resource.to_owned(),
        })
    }

    /// The key of one of its shards.
    pub(crate) fn key(&self, shard: u32) -> Key {
        keys::bucket_of(&self.namespace, &self.entity, &self.resource, shard)
    }
}

/// A shard to be split, or to give a part to one that is missing.
pub(crate) struct Parting<'a> {
    pub(crate) whose: &'a Whose,
    pub(crate) item: &'a Item,
    pub(crate) image: &'a Image,
    /// Limits with a smaller capacity are pinned when the bucket is split first, in millitokens.
    pub(crate) divided_from_milli: i64,
    pub(crate) now: TimeMs,
}

/// What goes to the other shard, of one limit.
struct Portion {
    moved: Milli,
    gap: Milli,
}

impl Parting<'_> {
    /// Splits the shard (rule S3): the child has half of what there is, of every limit that is
    /// divided, debt included. `None` when it cannot be split.
    pub(crate) fn split(&self) -> Option<[BucketWrite; 2]> {
        let before = &self.image.standing;
        let count = before.count * 2;
        if !self.is_plain() || count > i64::from(SHARDS_MAX) {
            return None;
        }
        let pinned = if before.is_alone() { self.to_pin() } else { before.pinned.clone() };
        let child = before.shard + u32::try_from(before.count).ok()?;
        // A bucket that was deleted and made again begins with no era, as the one before it did. By
        // the time of its first split no image of the other passes for one of this.
        let era = match before.is_alone() {
            true => Some((before.era.unwrap_or(0) + 1).max(self.now.0)),
            false => before.era,
        };
        let at = |shard| Standing { shard, count, era, pinned: pinned.clone() };
        let (stays, goes) = (at(before.shard), at(child));
        let tree = TreeChange {
            count,
            pinned: match &pinned {
                Some(names) if before.is_alone() => To::Set(names.to_string()),
                _ => To::Keep,
            },
            era: match era {
                Some(era) if before.is_alone() => To::Set(era),
                _ => To::Keep,
            },
            expires_later: if self.image.expires_s.is_some() { To::Set(()) } else { To::Keep },
            split_at: To::Set(self.now),
        };
        let portion = |limit: &ImageLimit| {
            let half = Milli(limit.balance.0.div_euclid(2));
            Portion {
                moved: half.min(goes.effective(&limit.name, limit.stored).full()),
                gap: Milli(limit.gap.0 / 2),
            }
        };
        Some(self.writes(&stays, &goes, tree, portion))
    }

    /// Gives a part to a shard that should be there and is not, because a foreign writer has raised
    /// the count alone (rule S10): what lies above the donor's share, if no refill has cut that
    /// yet.
    pub(crate) fn repair(&self, missing: u32) -> Option<[BucketWrite; 2]> {
        let stays = &self.image.standing;
        if !self.is_plain() || stays.is_alone() {
            return None;
        }
        let goes = Standing { shard: missing, ..stays.clone() };
        let tree = TreeChange {
            count: stays.count,
            pinned: To::Keep,
            era: To::Keep,
            expires_later: if self.image.expires_s.is_some() { To::Set(()) } else { To::Keep },
            split_at: To::Set(self.now),
        };
        let portion = |limit: &ImageLimit| {
            let surplus = limit.balance.saturating_sub(limit.effective.full()).max(Milli::ZERO);
            Portion {
                moved: surplus.min(goes.effective(&limit.name, limit.stored).full()),
                gap: Milli::ZERO,
            }
        };
        Some(self.writes(stays, &goes, tree, portion))
    }

    /// Nothing that another writer has yet to say something about.
    fn is_plain(&self) -> bool {
        let Image { flag, mark, unsupported, loans, .. } = self.image;
        // What is lent counts for the whole bucket: no share could be computed from it.
        let is_lent = loans.as_ref().is_some_and(|loans| !loans.have_ended(self.now));
        !flag.blocks() && mark.is_none() && unsupported.is_none() && !is_lent
    }

    /// The limits that are too small to be divided (rule S4).
    fn to_pin(&self) -> Option<smol_str::SmolStr> {
        // What remembers folded limits speaks for every shard: a limit that comes back must not
        // start full anywhere.
        let is_small = |limit: &&ImageLimit| {
            limit.stored.capacity_milli < self.divided_from_milli && !is_fold(&limit.name)
        };
        let names: Vec<&str> =
            self.image.limits.iter().filter(is_small).map(|limit| limit.name.as_str()).collect();
        (!names.is_empty()).then(|| names.join(",").into())
    }

    /// The donor's write and the child's.
    fn writes(
        &self,
        stays: &Standing,
        goes: &Standing,
        tree: TreeChange,
        portion: impl Fn(&ImageLimit) -> Portion,
    ) -> [BucketWrite; 2] {
        let image = self.image;
        let (mut lines, mut limits) = (SmallVec::new(), SmallVec::new());
        for limit in &image.limits {
            let Portion { moved, gap } = match stays.is_pinned(&limit.name) {
                true => Portion { moved: Milli::ZERO, gap: Milli::ZERO },
                false => portion(limit),
            };
            let share = stays.effective(&limit.name, limit.stored).full();
            let form = LineForm::Part {
                stored: limit.stored,
                moved,
                at_least: (moved > Milli::ZERO).then_some(moved),
                // A balance above the share was left by a foreign writer; the next refill cuts it.
                at_most: share.saturating_add(moved).max(limit.balance),
                forgets_remainder: limit.has_remainder,
                gap: match limit.gap.saturating_sub(gap) {
                    left if left == limit.gap => To::Keep,
                    Milli::ZERO => To::Remove,
                    left => To::Set(left),
                },
            };
            lines.push(Line { name: limit.name.clone(), form });
            limits.push(LeafLimit {
                name: limit.name.clone(),
                stored: limit.stored,
                balance: moved,
                gap,
            });
        }
        let item = ItemChange {
            remainders_at: if image.has_remainders { To::Remove } else { To::Keep },
            expiry: if image.expires_s.is_some() { To::Remove } else { To::Keep },
            loans: if image.loans.is_some() { To::Remove } else { To::Keep },
            tree: Some(Box::new(tree)),
            ..ItemChange::only(Room::Full { units_milli: UNITS_MILLI })
        };
        let pins = Pins {
            refilled_at: RefilledAt::Exactly(image.refilled_at),
            shard_count: Some(image.standing.count),
            era: image.standing.era_pin(),
            flag: FlagPin::Enabled,
            mark: Pin::Absent,
            config_read_at: Pin::Any,
            // An expiry that was set meanwhile, within the same millisecond, would stay: a shard
            // that is swept alone comes back full.
            expiry: match image.expires_s {
                Some(_) => ExpiryPin::Any,
                None => ExpiryPin::Absent,
            },
            has_room: false,
            loans: LoansPin::seen(Some(image)),
            must_be_absent: SmallVec::new(),
        };
        let change = Change { nonce: None, pins, lines, item };
        let retired = image.limits.iter().filter(|limit| limit.retired);
        let leaf = NewLeaf {
            namespace: Arc::clone(&self.whose.namespace),
            entity: self.whose.entity.clone(),
            resource: self.whose.resource.clone(),
            copied: COPIED.iter().filter_map(|name| self.copy(name)).collect(),
            standing: goes.clone(),
            refilled_at: image.refilled_at,
            config_read_at: image.config_read_at,
            retired: retired.map(|limit| limit.name.to_string()).collect(),
            limits,
        };
        [
            BucketWrite::change(self.whose.key(stays.shard), Purpose::Split, change),
            BucketWrite {
                key: self.whose.key(goes.shard),
                purpose: Purpose::Split,
                shape: Shape::Branch(Box::new(leaf)),
            },
        ]
    }

    fn copy(&self, name: &'static str) -> Option<(&'static str, AttributeValue)> {
        self.item.get(name).map(|value| (name, value.clone()))
    }
}

/// Removes a shard that the count of its donor says cannot be there (rule S3c).
pub(crate) fn prune(key: Key, image: &Image) -> BucketWrite {
    let pins = Pins {
        refilled_at: RefilledAt::Exactly(image.refilled_at),
        shard_count: Some(image.standing.count),
        era: Pin::seen(image.standing.era),
        ..Pins::THERE
    };
    let withdrawn = Withdrawn { pins, balances: SmallVec::new() };
    BucketWrite { key, purpose: Purpose::Prune, shape: Shape::Withdraw(Box::new(withdrawn)) }
}

/// The condition that a shard has not split since.
pub(crate) fn unsplit(whose: Option<Whose>, standing: &Standing) -> Option<Write> {
    let count = compare(attr::SHARD_COUNT, Comparison::Eq, standing.count);
    let check = Check { key: whose?.key(standing.shard), conditions: vec![count] };
    Some(Write::Check(check))
}

/// Whether images are those of all shards of a bucket, in one era (rule S8a).
pub(crate) fn are_all(images: &[&Image]) -> bool {
    is_complete(images.iter().map(|image| &image.standing))
}

/// A bucket as if it had one item: what its shards have together at an instant. Of shards with
/// different parameters those count that were read last; a limit that a shard lacks is full there.
pub(crate) fn whole(images: &[&Image], at: TimeMs) -> Option<Image> {
    // A change of parameters moves the refill instant.
    let latest =
        images.iter().copied().max_by_key(|image| (image.config_read_at, image.refilled_at))?;
    let root = images.iter().copied().find(|image| image.standing.shard == 0).unwrap_or(latest);
    let sum = |limit: &ImageLimit| {
        let (mut balance, mut gap) = (Milli::ZERO, Milli::ZERO);
        let (mut used, mut folded_used) = (Milli::ZERO, Milli::ZERO);
        for image in images {
            let share = image.effective(&limit.name, limit.stored).full();
            let Some(found) = image.limit(&limit.name) else {
                balance = balance.saturating_add(share);
                continue;
            };
            let accrued = image.accrued(found, at);
            let surplus = accrued.saturating_sub(found.effective.full()).max(Milli::ZERO);
            balance = balance.saturating_add(accrued.min(found.effective.full()).min(share));
            used = used.saturating_add(found.used);
            folded_used = folded_used.saturating_add(found.folded_used);
            gap = gap.saturating_add(found.gap.saturating_sub(surplus).max(Milli::ZERO));
        }
        ImageLimit {
            effective: limit.stored,
            balance,
            used,
            gap,
            folded_used,
            remainder: 0,
            has_remainder: limit.has_remainder,
            ..limit.clone()
        }
    };
    let blocked = images.iter().find(|image| image.flag.blocks());
    Some(Image {
        // A shard whose refill lies in the future gains nothing until then.
        refilled_at: images.iter().map(|image| image.refilled_at).fold(at, TimeMs::max),
        standing: Standing { era: root.standing.era, ..Standing::ALONE },
        flag: blocked.map_or(root.flag, |image| image.flag),
        mark: images.iter().find_map(|image| image.mark),
        config_read_at: latest.config_read_at,
        limits: latest.limits.iter().map(sum).collect(),
        unsupported: images.iter().find_map(|image| image.unsupported.clone()),
        ..root.clone()
    })
}

/// Folds all shards into shard 0 (rule S6): one transaction over all of them, each as it was seen
/// to the millitoken. `None` when they cannot be folded: not all are there, their limits differ, or
/// somebody has yet to look at them.
pub(crate) fn fold(whose: &Whose, images: &[&Image], now: TimeMs) -> Option<Vec<BucketWrite>> {
    let root = images.iter().copied().find(|image| image.standing.shard == 0)?;
    let is_alike = |image: &&&Image| {
        let pairs = image.limits.iter().zip(&root.limits);
        let has_same = image.limits.len() == root.limits.len()
            && pairs
                .clone()
                .all(|(a, b)| a.name == b.name && a.stored == b.stored && a.retired == b.retired);
        has_same
            && image.standing.pinned == root.standing.pinned
            && image.mark.is_none()
            && image.stubs.is_empty()
            && image.unsupported.is_none()
    };
    let is_ready = !root.standing.is_alone() && are_all(images);
    if !is_ready || images.iter().filter(is_alike).count() < images.len() {
        return None;
    }
    let latest = images.iter().map(|image| image.refilled_at.plus_ms(1)).max()?;
    let at = now.max(latest);
    let sum = whole(images, at)?;
    let mut kept_ms = 0;
    let lines = root.limits.iter().zip(&sum.limits).map(|(root, sum)| {
        kept_ms = kept_ms.max(keep_ms(sum.stored, sum.balance, sum.gap));
        // Their `tc` goes with the shards. Shard 0 keeps its own: what `tc` grows by is use, and
        // would be counted once more.
        let removed = sum.used.saturating_sub(root.used);
        let form = LineForm::Collect {
            stored: root.stored,
            exactly: root.balance,
            to: sum.balance,
            forgets_remainder: root.has_remainder,
            gap: match sum.gap {
                gap if gap == root.gap => To::Keep,
                Milli::ZERO => To::Remove,
                gap => To::Set(gap),
            },
            folded_used: match removed {
                Milli::ZERO => To::Keep,
                _ => To::Set(sum.folded_used.saturating_add(removed)),
            },
        };
        Line { name: root.name.clone(), form }
    });
    let lines = lines.collect();
    let tree = TreeChange {
        count: 1,
        pinned: To::Remove,
        era: To::Set(root.standing.era.unwrap_or(0) + 1),
        expires_later: To::Remove,
        split_at: To::Remove,
    };
    let item = ItemChange {
        refilled_at: Some(at),
        config_read_at: sum.config_read_at,
        remainders_at: if root.has_remainders { To::Remove } else { To::Keep },
        expiry: match root.expires_later {
            true => To::Set(expiry_s(at, 0, kept_ms)),
            false if root.expires_s.is_some() => To::Remove,
            false => To::Keep,
        },
        tree: Some(Box::new(tree)),
        ..ItemChange::only(Room::Full { units_milli: UNITS_MILLI })
    };
    let change = Change { nonce: None, pins: as_seen(root), lines, item };
    let mut writes = vec![BucketWrite::change(whose.key(0), Purpose::Fold, change)];
    for image in images.iter().filter(|image| image.standing.shard > 0) {
        let balance = |limit: &ImageLimit| (limit.name.clone(), limit.stored, limit.balance);
        let withdrawn = Withdrawn {
            pins: as_seen(image),
            balances: image.limits.iter().map(balance).collect(),
        };
        writes.push(BucketWrite {
            key: whose.key(image.standing.shard),
            purpose: Purpose::Fold,
            shape: Shape::Withdraw(Box::new(withdrawn)),
        });
    }
    Some(writes)
}

fn as_seen(image: &Image) -> Pins {
    Pins {
        refilled_at: RefilledAt::Exactly(image.refilled_at),
        shard_count: Some(image.standing.count),
        era: image.standing.era_pin(),
        flag: FlagPin::Any,
        mark: Pin::Absent,
        config_read_at: Pin::Any,
        expiry: ExpiryPin::Any,
        has_room: false,
        loans: LoansPin::Any,
        must_be_absent: SmallVec::new(),
    }
}

/// What is asked of one shard: limits and amounts.
pub(crate) type Leg<'a> = SmallVec<[(&'a LimitName, Milli); 2]>;

/// Spreads amounts over shards: all of them to a shard that has enough, else to the fullest first;
/// those of pinned limits are all asked of shard 0. An amount of nothing is asked of the fullest
/// shard, which must not owe. `None` when the shards do not have enough together.
pub(crate) fn legs<'a>(
    images: &[&Image],
    wanted: &Wanted<'a>,
    now: TimeMs,
) -> Option<Vec<Leg<'a>>> {
    let mut legs: Vec<Leg<'a>> = images.iter().map(|_| Leg::new()).collect();
    if let Some(server) = alone(images, wanted, now) {
        let root = images.iter().position(|image| image.standing.shard == 0)?;
        for (name, _, amount) in wanted {
            let place = if is_asked(images[server], name) { server } else { root };
            legs[place].push((*name, *amount));
        }
        return Some(legs);
    }
    for (name, params, amount) in wanted {
        let mut order: SmallVec<[(Milli, usize); 4]> = (images.iter().enumerate())
            .filter(|(_, image)| is_asked(image, name))
            .map(|(place, image)| (balance(image, name, *params, now), place))
            .collect();
        order.sort_by_key(|(balance, place)| (std::cmp::Reverse(*balance), *place));
        let total =
            order.iter().fold(Milli::ZERO, |sum, (balance, _)| sum.saturating_add(*balance));
        if total < *amount {
            return None;
        }
        let mut left = *amount;
        for (at, (balance, place)) in order.into_iter().enumerate() {
            let part = left.min(balance.max(Milli::ZERO));
            if part > Milli::ZERO || at == 0 {
                legs[place].push((*name, part));
                left = left.saturating_sub(part);
            }
            if left == Milli::ZERO {
                break;
            }
        }
        // Those that owe nothing have at least what all have together.
        debug_assert_eq!(left, Milli::ZERO);
    }
    Some(legs)
}
