//! What administration may do to a table, write by write: flags of buckets follow the
//! configuration, and nothing of an entity disappears that was not recorded first.

use std::collections::{BTreeMap, BTreeSet};

use aws_sdk_dynamodb::types::AttributeValue;
use zae_limiter_dynamodb::bucket::writers::Writer;
use zae_limiter_dynamodb::table::{Item, Key};

use super::bucket_of;
use crate::oracle::Broken;
use crate::table::{Call, Change};

/// How often what happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deeds {
    /// Deletions that were ordered: the record is marked, the event is stored.
    pub deletions_ordered: u64,
    /// Orders for an entity that an earlier order had left half deleted.
    pub deletions_resumed: u64,
    /// Deletions that came to their end.
    pub deletions_finished: u64,
    /// Flags written to buckets after the configuration had said both values since the last flag.
    pub flags_after_a_change: u64,
}

/// What the configuration says, as far as flags and deletions go, and has said since each bucket
/// got its flag.
#[derive(Debug, Default)]
pub(crate) struct Administration {
    /// The flag of each level, by key.
    flags: BTreeMap<(String, String), bool>,
    /// Entities whose record is marked, by partition key.
    marked: BTreeSet<String>,
    /// What the configuration may have said of each bucket since its flag was last written:
    /// enabled, disabled.
    said: BTreeMap<String, [bool; 2]>,
    pub(crate) deeds: Deeds,
}

impl Administration {
    /// Checks everything that one call has changed beside buckets.
    pub(crate) fn look(&mut self, call: &Call) -> Result<(), Broken> {
        let is_told = call
            .changes
            .iter()
            .any(|change| change.key.pk.contains("/AUDIT#") && change.after.is_some());
        let was_marked: BTreeSet<String> = self.marked.clone();
        let mut is_changed = false;
        for change in &call.changes {
            if change.key.sk == "#META" {
                self.record(change, is_told)?;
                is_changed = true;
            } else if change.key.sk == "#CONFIG" || change.key.sk.starts_with("#CONFIG#") {
                let is_of_entity = change.key.sk.starts_with("#CONFIG#");
                if is_of_entity
                    && change.after.is_none()
                    && !is_told
                    && !was_marked.contains(&change.key.pk)
                {
                    return Err(format!(
                        "the configuration {:?} is gone, and nobody has recorded why",
                        change.key
                    ));
                }
                let place = (change.key.pk.clone(), change.key.sk.to_string());
                match change.after.as_ref().and_then(|item| item.get("disabled")) {
                    Some(AttributeValue::Bool(flag)) => drop(self.flags.insert(place, *flag)),
                    _ => drop(self.flags.remove(&place)),
                }
                is_changed = true;
            }
        }
        if is_changed {
            let pks: Vec<String> = self.said.keys().cloned().collect();
            for pk in pks {
                let says = self.says(&pk);
                if let Some(said) = self.said.get_mut(&pk) {
                    *said = [said[0] || says[0], said[1] || says[1]];
                }
            }
        }
        Ok(())
    }

    /// The record of an entity.
    fn record(&mut self, change: &Change, is_told: bool) -> Result<(), Broken> {
        let mark =
            |item: &Option<Item>| item.as_ref().and_then(|item| item.get("deleting")).cloned();
        let (before, after) = (mark(&change.before), mark(&change.after));
        let pk = change.key.pk.clone();
        if change.after.is_none() {
            if change.before.is_some() && before.is_none() {
                return Err(format!("the entity {pk} is gone, and nobody has ordered that"));
            }
            self.deeds.deletions_finished += u64::from(change.before.is_some());
            self.marked.remove(&pk);
            return Ok(());
        }
        if after.is_some() && after != before {
            if !is_told {
                return Err(format!("the entity {pk} is marked, and that is not recorded"));
            }
            self.deeds.deletions_ordered += 1;
            self.deeds.deletions_resumed += u64::from(before.is_some());
        }
        if after.is_some() {
            self.marked.insert(pk)
        } else {
            self.marked.remove(&pk)
        };
        Ok(())
    }

    /// What the configuration says of a bucket now: whether it may be told to be on, and to be off.
    fn says(&self, pk: &str) -> [bool; 2] {
        let key = Key { pk: pk.to_owned(), sk: "#STATE".into() };
        let (Some((entity, resource)), Some((namespace, _))) =
            (bucket_of(&key), pk.split_once('/'))
        else {
            return [true; 2];
        };
        let owner = format!("{namespace}/ENTITY#{entity}");
        let places = [
            (owner.clone(), format!("#CONFIG#{resource}")),
            (owner.clone(), "#CONFIG#_default_".to_owned()),
            (format!("{namespace}/RESOURCE#{resource}"), "#CONFIG".to_owned()),
        ];
        let is_off =
            places.iter().find_map(|place| self.flags.get(place)).copied().unwrap_or(false);
        // While an entity is deleted it is refused, whatever its flags say.
        [!is_off, is_off || self.marked.contains(&owner)]
    }

    /// Checks a write of our own to a bucket. The configuration behind a flag is read after the
    /// last flag was written, so it must have said the new flag at some moment since.
    pub(crate) fn landed(
        &mut self,
        change: &Change,
        writer: Writer,
        is_off: bool,
    ) -> Result<(), Broken> {
        let pk = &change.key.pk;
        let says = self.says(pk);
        if change.before.is_none() {
            self.said.insert(pk.clone(), says);
            return Ok(());
        }
        if writer != Writer::Flag {
            return Ok(());
        }
        let said = self.said.insert(pk.clone(), says).unwrap_or([true; 2]);
        self.deeds.flags_after_a_change += u64::from(said == [true; 2]);
        if said[usize::from(is_off)] {
            Ok(())
        } else {
            Err(format!(
                "a flag is written (off: {is_off}) that the configuration has not said since the flag before it"
            ))
        }
    }

    /// A shard has made another one, which has its flag.
    pub(crate) fn parted(&mut self, donor: &str, child: &str) {
        let said = self.said.get(donor).copied().unwrap_or([true; 2]);
        self.said.insert(child.to_owned(), said);
    }

    /// A bucket is gone.
    pub(crate) fn gone(&mut self, pk: &str) {
        self.said.remove(pk);
    }
}
