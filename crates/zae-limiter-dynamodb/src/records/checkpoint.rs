//! Checkpoints of the worker that reads the table's stream: one item per stream shard, in the
//! partition of the registry.
//!
//! | attribute | meaning |
//! |---|---|
//! | `seq` | the last stream record whose effects are all in the table; none at first |
//! | `owner`, `until` | who reads the shard, and until when nobody else does, in ms |
//! | `seen` | when the reader last gave a sign of life, in ms |
//! | `done` | the shard was read to its end; its children may be read |
//! | `late` | how far behind the reader was when it wrote this, in ms |
//! | `gaps` | how often records were gone before they were read |
//! | `ttl` | three days: longer than a stream shard lives |
//!
//! The lease saves money and decides nothing: two readers at once count once, because every
//! snapshot has a watermark.

use aws_sdk_dynamodb::types::AttributeValue;
use zae_limiter_core::TimeMs;

use crate::records::item::{integer_of, text_of};
use crate::records::{attr, keys};
use crate::table::{
    Action, Attr, Comparison, Condition, Item, Query, Sort, Update, absent, compare, compare_with,
    number, text,
};

/// How long a reader keeps a stream shard for itself without a sign of life.
pub const LEASE_MS: i64 = 15_000;

/// How long a checkpoint is kept after its last change, in s.
const KEPT_S: i64 = 3 * 24 * 60 * 60;

/// How far a stream shard was read, and who reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// The stream shard.
    pub shard: String,
    /// The last record whose effects are all in the table.
    pub sequence: Option<String>,
    /// Who reads the shard.
    pub owner: Option<String>,
    /// Until when the shard is the owner's, in ms.
    pub until_ms: i64,
    /// When the reader last gave a sign of life, in ms.
    pub seen_ms: i64,
    /// True once the shard was read to its end.
    pub is_done: bool,
    /// How far behind the reader was, in ms; 0 when it had read everything.
    pub late_ms: i64,
    /// How often records were gone before they were read.
    pub gaps: i64,
}

impl Checkpoint {
    /// The checkpoint of a shard that nobody has read.
    #[must_use]
    pub fn new(shard: &str) -> Checkpoint {
        Checkpoint { shard: shard.to_owned(), ..Checkpoint::default() }
    }

    /// A checkpoint as stored; `None` for another item.
    #[must_use]
    pub fn of(item: &Item) -> Option<Checkpoint> {
        let shard = text_of(item, attr::SK)?.strip_prefix(keys::CHECKPOINT)?.to_owned();
        let until_ms = integer_of(item, attr::UNTIL).unwrap_or(0);
        Some(Checkpoint {
            shard,
            sequence: text_of(item, attr::SEQUENCE).map(str::to_owned),
            owner: text_of(item, attr::OWNER).map(str::to_owned),
            until_ms,
            seen_ms: integer_of(item, attr::SEEN)
                .unwrap_or_else(|| until_ms.saturating_sub(LEASE_MS)),
            is_done: matches!(item.get(attr::DONE), Some(AttributeValue::Bool(true))),
            late_ms: integer_of(item, attr::LATE).unwrap_or(0),
            gaps: integer_of(item, attr::GAPS).unwrap_or(0),
        })
    }

    /// True when this reader may take the shard: nobody has it, or no longer.
    #[must_use]
    pub fn is_free_for(&self, owner: &str, now: TimeMs) -> bool {
        self.owner.as_deref().is_none_or(|found| found == owner) || self.until_ms <= now.0
    }

    /// When its reader last gave a sign of life.
    #[must_use]
    pub fn seen_at(&self) -> TimeMs {
        TimeMs(self.seen_ms)
    }

    /// The write of this checkpoint in the place of the one that was `seen` last. It fails when
    /// another reader has written since, so the position never moves back.
    #[must_use]
    pub fn update(&self, seen: Option<&Checkpoint>, now: TimeMs) -> Update {
        let actions = vec![
            set_or_remove(attr::SEQUENCE, self.sequence.as_ref()),
            set_or_remove(attr::OWNER, self.owner.as_ref()),
            Action::Set(attr::UNTIL.into(), number(self.until_ms)),
            Action::Set(attr::SEEN.into(), number(self.seen_ms)),
            Action::Set(attr::DONE.into(), AttributeValue::Bool(self.is_done)),
            Action::Set(attr::LATE.into(), number(self.late_ms)),
            Action::Set(attr::GAPS.into(), number(self.gaps)),
            Action::Set(attr::TTL.into(), number(now.0 / 1_000 + KEPT_S)),
        ];
        let conditions = match seen {
            None => vec![absent()],
            Some(seen) => vec![
                same_text(attr::SEQUENCE, seen.sequence.as_ref()),
                same_text(attr::OWNER, seen.owner.as_ref()),
                compare(attr::UNTIL, Comparison::Eq, seen.until_ms),
            ],
        };
        Update { key: keys::checkpoint(&self.shard), actions, conditions }
    }
}

fn set_or_remove(attribute: &'static str, value: Option<&String>) -> Action {
    let attribute = Attr::from(attribute);
    match value {
        Some(value) => Action::Set(attribute, text(value.as_str())),
        None => Action::Remove(attribute),
    }
}

fn same_text(attribute: &'static str, value: Option<&String>) -> Condition {
    match value {
        Some(value) => compare_with(attribute, Comparison::Eq, text(value.as_str())),
        None => Condition::Absent(attribute.into()),
    }
}

/// Every checkpoint of the table, from the first page on.
#[must_use]
pub fn checkpoints() -> Query {
    let prefix = Sort::Prefix(keys::CHECKPOINT.to_owned());
    Query::of(None, keys::system_partition(keys::REGISTRY), prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checkpoint() -> Checkpoint {
        Checkpoint {
            shard: "shardId-1".to_owned(),
            sequence: Some("5".to_owned()),
            owner: Some("a".to_owned()),
            until_ms: 20_000,
            seen_ms: 6_000,
            is_done: false,
            late_ms: 7,
            gaps: 2,
        }
    }

    #[test]
    fn a_lease_is_its_owners_until_it_ends() {
        let found = checkpoint();
        assert!(found.is_free_for("a", TimeMs(0)) && found.is_free_for("b", TimeMs(20_000)));
        assert!(!found.is_free_for("b", TimeMs(19_999)));
        assert!(Checkpoint::new("x").is_free_for("b", TimeMs(0)));
        assert_eq!(found.seen_at(), TimeMs(6_000));
    }

    #[test]
    fn what_is_written_is_read_and_pins_what_was_seen() {
        let next = checkpoint();
        let update = next.update(None, TimeMs(1_000));
        assert_eq!(update.conditions, [absent()]);
        let mut item = Item::new();
        item.insert("PK".into(), text(update.key.pk.as_str()));
        item.insert("SK".into(), text(update.key.sk.as_ref()));
        for action in update.actions {
            if let Action::Set(attribute, value) = action {
                item.insert(attribute.to_string(), value);
            }
        }
        assert_eq!(Checkpoint::of(&item), Some(next.clone()));
        item.remove("seen");
        let before = Checkpoint { seen_ms: 5_000, ..next.clone() };
        assert_eq!(Checkpoint::of(&item), Some(before), "of a version that did not store it");
        assert_eq!(item["ttl"], number(1 + KEPT_S));
        assert_eq!(next.update(Some(&next), TimeMs(0)).conditions.len(), 3);
        let fresh = Checkpoint::new("x");
        assert_eq!(
            fresh.update(Some(&fresh), TimeMs(0)).conditions[..2],
            [Condition::Absent("seq".into()), Condition::Absent("owner".into())]
        );
    }
}
