//! Usage snapshots, as both products write them.
//!
//! | | key of the window | counters |
//! |---|---|---|
//! | ours | `2026-01-01T14:00:00Z`, `2026-01-01`, `2026-01` | `{limit}#m`: millitokens; `{limit}`: whole tokens, for the Python package |
//! | Python's | `…T14:00:00Z`, `…T00:00:00Z`, `…-01T00:00:00Z` and the attribute `window` | `{limit}`: whole tokens |
//!
//! `{limit}` is the whole tokens of `{limit}#m`, rounded down, after every write of ours: a write
//! whose millitokens do not come to whole tokens knows the sum it adds to. Where the Python package
//! has counted in the same hour, `{limit}` has its tokens on top.
//!
//! `w#{shard}` is the number of the last stream record of a bucket shard that is counted in the
//! snapshot, as text, padded so that numbers sort. A write is conditional on it, so that a record
//! counts once however often it is delivered.
//!
//! Other attributes of ours must contain a `#` or begin with `_`, which no limit does. A limit that
//! is called like an attribute of the item (`ttl`) is counted under `u_ttl` and told under that
//! name: this version does not accept the name.

use std::collections::BTreeMap;

use aws_sdk_dynamodb::types::AttributeValue;
use zae_limiter_core::{
    EntityId, LimitName, Milli, ResourceName, TimeMs, UsageWindow, parse_rfc3339, rfc3339,
};
use zae_limiter_store::StoreError;

use super::{attr, corrupt, index_actions, integer_of, name_in, required_text, text_of};
use crate::records::keys;
use crate::table::{
    Action, Attr, Comparison, Condition, Item, Key, Update, compare, compare_with, number, text,
};

const WINDOW: &str = "window";
const WINDOW_START: &str = "window_start";
const EVENTS: &str = "total_events";
/// What follows the name of a limit in the attribute with its exact sum.
const MILLI: &str = "#m";

/// What stands before the number of a bucket shard in the attribute with its last record.
const COUNTED: &str = "w#";
/// Millitokens of a token.
const TOKEN_MILLI: i64 = 1_000;

/// Which snapshot: whose usage, and of when. By the words of its bucket's key, because names that
/// other writers accept and we do not are counted too.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Snapshot {
    /// The id of the namespace.
    pub namespace: String,
    /// The entity.
    pub entity: String,
    /// The resource.
    pub resource: String,
    /// How long the window is.
    pub window: UsageWindow,
    /// When the window began.
    pub start: TimeMs,
}

impl Snapshot {
    /// Where it is stored.
    #[must_use]
    pub fn key(&self) -> Key {
        keys::usage(&self.namespace, &self.entity, &self.resource, &self.window.key(self.start))
    }
}

/// The stream records of one bucket shard that a write counts, by the numbers of the first and the
/// last of them; both padded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The number of the first.
    pub first: String,
    /// The number of the last.
    pub last: String,
}

/// What is counted in one snapshot by one write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotWrite {
    /// Millitokens by limit; below zero when more was given back than taken.
    pub used: BTreeMap<String, i64>,
    /// How many takes.
    pub takes: i64,
    /// Which records, by bucket shard.
    pub marks: BTreeMap<u32, Mark>,
    /// When a new snapshot may be forgotten, in s.
    pub expires_s: i64,
}

impl SnapshotWrite {
    /// The request. `image` is the snapshot as it was last seen, if it was: the write is then
    /// conditional on the sums that whole tokens depend on.
    #[must_use]
    pub fn update(&self, snapshot: &Snapshot, image: Option<&Item>) -> Update {
        let key = snapshot.key();
        let Snapshot { namespace, entity, resource, window, start } = snapshot;
        let window_key = window.key(*start);
        let once = |attr: &str, value| Action::SetIfAbsent(attr.into(), value);
        let mut actions = vec![
            once(attr::ENTITY_ID, text(entity.as_str())),
            once(attr::RESOURCE, text(resource.as_str())),
            once(WINDOW, text(window.as_str())),
            once(WINDOW_START, text(rfc3339(*start))),
            once(attr::GSI2PK, text(keys::index::resource(namespace, resource))),
            once(attr::GSI2SK, text(keys::index::resource_usage(&window_key, entity))),
            once(attr::TTL, number(self.expires_s)),
            Action::Add(EVENTS.into(), self.takes),
        ];
        actions.extend(index_actions(namespace, &key));
        let mut conditions = Vec::new();
        for (limit, milli) in &self.used {
            let counter = counter_of(limit);
            let exact = Attr::from(format!("{counter}{MILLI}"));
            let mut whole = milli.div_euclid(TOKEN_MILLI);
            if milli.rem_euclid(TOKEN_MILLI) != 0 {
                let sum = image.and_then(|image| integer_of(image, &exact));
                let is_there = image.is_some_and(|image| image.contains_key(exact.as_str()));
                let before = sum.unwrap_or(0);
                whole = before.saturating_add(*milli).div_euclid(TOKEN_MILLI)
                    - before.div_euclid(TOKEN_MILLI);
                match sum {
                    Some(sum) => {
                        conditions.push(compare(exact.clone(), Comparison::Eq, sum));
                    }
                    None if !is_there => conditions.push(Condition::Absent(exact.clone())),
                    // No sum of ours: the table says what it thinks of adding to it.
                    None => {}
                }
            }
            actions.push(Action::Add(exact, *milli));
            actions.push(Action::Add(counter.into(), whole));
        }
        for (shard, Mark { first, last }) in &self.marks {
            let counted = Attr::from(format!("{COUNTED}{shard}"));
            conditions.push(Condition::Any(vec![
                Condition::Absent(counted.clone()),
                compare_with(counted.clone(), Comparison::Lt, text(first.as_str())),
            ]));
            actions.push(Action::Set(counted, text(last.as_str())));
        }
        Update { key, actions, conditions }
    }
}

/// The number of the last record of a bucket shard that a snapshot has counted, padded.
#[must_use]
pub fn counted_up_to(image: &Item, shard: u32) -> Option<&str> {
    text_of(image, &format!("{COUNTED}{shard}"))
}

/// The attribute that counts a limit in whole tokens.
fn counter_of(limit: &str) -> String {
    match limit.parse::<LimitName>() {
        Ok(_) => limit.to_owned(),
        Err(_) => format!("u_{}", limit.replace('#', ".")),
    }
}

/// What the key of a snapshot says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// When the window began.
    pub(crate) start: TimeMs,
    /// How long it is, if the key alone says it.
    pub(crate) window: Option<UsageWindow>,
}

impl Shape {
    /// True when the window may be of this kind.
    pub(crate) fn may_be(self, window: UsageWindow) -> bool {
        match self.window {
            Some(known) => known == window,
            None => window.start_of(self.start) == self.start,
        }
    }
}

/// Reads the key of a window.
pub(crate) fn shape_of(key: &str) -> Option<Shape> {
    let (text, window) = match key.len() {
        7 => (format!("{key}-01"), Some(UsageWindow::Monthly)),
        10 => (key.to_owned(), Some(UsageWindow::Daily)),
        _ => (key.to_owned(), None),
    };
    let start = parse_rfc3339(&text).ok()?;
    // Only an hour that is not midnight can be nothing but an hour.
    let hourly = window.is_none() && UsageWindow::Daily.start_of(start) != start;
    Some(Shape { start, window: if hourly { Some(UsageWindow::Hourly) } else { window } })
}

/// A snapshot as stored.
pub(crate) struct UsageItem {
    pub(crate) entity: EntityId,
    pub(crate) resource: ResourceName,
    pub(crate) window: UsageWindow,
    pub(crate) counters: BTreeMap<LimitName, Milli>,
    pub(crate) events: u64,
}

/// Reads a snapshot.
pub(crate) fn usage_item(item: &Item, shape: Shape) -> Result<UsageItem, StoreError> {
    let window = match text_of(item, WINDOW) {
        Some(word) => word.parse().map_err(|error| corrupt(item, WINDOW, error))?,
        None => shape.window.unwrap_or(UsageWindow::Hourly),
    };
    let mut counters = BTreeMap::new();
    for (attribute, value) in item {
        let AttributeValue::N(digits) = value else { continue };
        let (name, exact) = match attribute.strip_suffix(MILLI) {
            Some(name) => (name, true),
            None => (attribute.as_str(), false),
        };
        // Whatever else is there counts something else: events, expiry, marks of the aggregator.
        let Ok(limit) = name.parse::<LimitName>() else { continue };
        let amount = if exact { super::whole_number(digits).map(Milli) } else { milli_of(digits) };
        let amount = amount.ok_or_else(|| {
            corrupt(item, attribute, format_args!("says {digits}, which is no amount"))
        })?;
        let other = if exact { name.to_owned() } else { format!("{name}{MILLI}") };
        match integer_of(item, &other) {
            None => drop(counters.insert(limit, amount)),
            // Tokens of the Python package are in the whole ones only.
            Some(whole) if exact => {
                let milli = whole.saturating_mul(TOKEN_MILLI);
                let thousandths = amount.0.rem_euclid(TOKEN_MILLI);
                counters.insert(limit, Milli(milli.saturating_add(thousandths)));
            }
            Some(_) => {}
        }
    }
    Ok(UsageItem {
        entity: name_in(item, attr::ENTITY_ID, required_text(item, attr::ENTITY_ID)?)?,
        resource: name_in(item, attr::RESOURCE, required_text(item, attr::RESOURCE)?)?,
        window,
        counters,
        events: integer_of(item, EVENTS).and_then(|events| u64::try_from(events).ok()).unwrap_or(0),
    })
}

/// Tokens as text, up to three decimals, in millitokens.
fn milli_of(digits: &str) -> Option<Milli> {
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let fraction = fraction.trim_end_matches('0');
    if fraction.len() > 3 || !fraction.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let negative = whole.starts_with('-');
    let thousandths: i64 = format!("{fraction:0<3}").parse().ok()?;
    let whole: i64 = if matches!(whole, "" | "-") { 0 } else { whole.parse().ok()? };
    let milli = whole.checked_mul(1_000)?;
    Some(Milli(if negative {
        milli.checked_sub(thousandths)?
    } else {
        milli.checked_add(thousandths)?
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_both_products_are_read() {
        let start = |text| parse_rfc3339(text).expect("a valid time");
        for (key, at, windows) in [
            ("2026-01-01T14:00:00Z", "2026-01-01T14:00:00Z", vec![UsageWindow::Hourly]),
            ("2026-01-02T00:00:00Z", "2026-01-02", vec![UsageWindow::Hourly, UsageWindow::Daily]),
            ("2026-01-01T00:00:00Z", "2026-01-01", UsageWindow::ALL.to_vec()),
            ("2026-01-01", "2026-01-01", vec![UsageWindow::Daily]),
            ("2026-01", "2026-01-01", vec![UsageWindow::Monthly]),
        ] {
            let shape = shape_of(key).expect(key);
            assert_eq!(shape.start, start(at), "{key}");
            assert_eq!(
                UsageWindow::ALL
                    .into_iter()
                    .filter(|window| shape.may_be(*window))
                    .collect::<Vec<_>>(),
                windows,
                "{key}"
            );
        }
        for key in ["", "2026", "2026-13", "x", "2026-01-01T", "##"] {
            assert_eq!(shape_of(key), None, "{key}");
        }
        for window in UsageWindow::ALL {
            let at = window.start_of(start("2026-07-14T15:16:17Z"));
            assert_eq!(shape_of(&window.key(at)), Some(Shape { start: at, window: Some(window) }));
        }
    }

    #[test]
    fn amounts_are_read_to_the_millitoken() {
        for (digits, milli) in [
            ("5", 5_000),
            ("-5", -5_000),
            ("0.5", 500),
            ("-0.5", -500),
            ("12.345", 12_345),
            ("7.000", 7_000),
            ("-.25", -250),
            ("1.10", 1_100),
        ] {
            assert_eq!(milli_of(digits), Some(Milli(milli)), "{digits}");
        }
        for digits in ["0.0001", "x", "1.x", "9223372036854775807"] {
            assert_eq!(milli_of(digits), None, "{digits}");
        }
    }
}
