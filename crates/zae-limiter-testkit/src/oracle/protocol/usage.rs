//! What the usage history must say: everything that the items of buckets have counted, in the
//! windows of the moment at which it was counted. A take that was undone is taken back where it was
//! counted.

use std::collections::BTreeMap;

use aws_sdk_dynamodb::types::AttributeValue;
use zae_limiter_core::{FOLDED, TimeMs, UsageWindow};
use zae_limiter_dynamodb::constants::{CLOCK_OFF_MAX_MS, WCU_PER_WRITE_MILLI};
use zae_limiter_dynamodb::table::Item;

use super::bucket_of;
use super::ledger::Amounts;
use super::stored::{self, Stored};
use crate::oracle::Broken;
use crate::table::Change;

/// A take is undone within a day, or counted back where the credit landed.
const UNDONE_AGO_MAX_S: i64 = 86_400;

/// What one landed write counts.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    namespace: String,
    entity: String,
    resource: String,
    at_s: i64,
    used: Amounts,
    takes: i64,
}

/// A snapshot by its key: namespace, entity, resource, window. And what it says: millitokens by
/// limit, takes.
type Snapshots = BTreeMap<[String; 4], (Amounts, i64)>;

/// What a landed write counts, and where. `undone_since_ms` is when the call began whose take it
/// undoes.
pub(crate) fn entry(
    change: &Change,
    truth_ms: i64,
    undone_since_ms: Option<i64>,
) -> Result<Option<Entry>, Broken> {
    let Some((entity, resource)) = bucket_of(&change.key) else { return Ok(None) };
    let Some((namespace, _)) = change.key.pk.split_once('/') else { return Ok(None) };
    let read = |item: &Option<Item>| item.as_ref().map(stored::read).transpose();
    let (before, Some(after)) = (read(&change.before)?, read(&change.after)?) else {
        return Ok(None);
    };
    let (used, takes) = counted(before.as_ref(), &after);
    let marks = [&change.before, &change.after].map(|item| mark(item.as_ref()));
    let truth_s = truth_ms.div_euclid(1_000);
    let at_s = match undone_since_ms {
        Some(since_ms) => undone_at(marks, takes < 0, (since_ms, truth_ms))?,
        None if marks[0] != marks[1] && before.is_some() => {
            return Err(format!("marked as an undone take: {:?}", change.key));
        }
        None => truth_s,
    };
    let is_counted = !used.is_empty() || takes != 0;
    Ok(is_counted.then(|| Entry {
        namespace: namespace.to_owned(),
        entity: entity.to_owned(),
        resource: resource.to_owned(),
        at_s,
        used,
        takes,
    }))
}

fn counted(before: Option<&Stored>, after: &Stored) -> (Amounts, i64) {
    let was = |name: &String| {
        before.and_then(|before| before.limits.get(name)).map_or(0, |limit| limit.consumed)
    };
    let used = after.limits.iter().filter(|(name, _)| name.as_str() != FOLDED);
    let used = used.map(|(name, limit)| (name.clone(), limit.consumed - was(name)));
    let takes = after.counted - before.map_or(0, |before| before.counted);
    (used.filter(|(_, milli)| *milli != 0).collect(), takes / WCU_PER_WRITE_MILLI)
}

fn mark(item: Option<&Item>) -> Option<i64> {
    match item?.get("un")? {
        AttributeValue::N(digits) => digits.parse().ok(),
        _ => None,
    }
}

/// When the take was that a credit undoes, in s: within its call. A credit that takes the event off
/// is told by that, too: it may have the mark that another process drew.
fn undone_at(
    [before, after]: [Option<i64>; 2],
    is_event: bool,
    (since_ms, truth_ms): (i64, i64),
) -> Result<i64, Broken> {
    let Some(at_us) = after.filter(|_| is_event || before != after) else {
        return Err(format!("a take is undone without a mark of its own: {before:?}, {after:?}"));
    };
    let at_ms = at_us.div_euclid(1_000);
    if !(since_ms - CLOCK_OFF_MAX_MS..=truth_ms + CLOCK_OFF_MAX_MS).contains(&at_ms) {
        return Err(format!("a take of {since_ms} to {truth_ms} is undone as one of {at_ms}"));
    }
    let truth_s = truth_ms.div_euclid(1_000);
    let at_s = at_ms.div_euclid(1_000).min(truth_s);
    Ok(if truth_s - at_s > UNDONE_AGO_MAX_S { truth_s } else { at_s })
}

/// Holds the snapshots on a table to what was counted. Returns how many there are.
pub(crate) fn check<'a>(
    entries: impl Iterator<Item = &'a Entry>,
    items: &[Item],
) -> Result<u64, Broken> {
    let mut expected = Snapshots::new();
    for Entry { namespace, entity, resource, at_s, used, takes } in entries {
        for window in UsageWindow::ALL {
            let key = window.key(window.start_of(TimeMs(at_s * 1_000)));
            let place = [namespace.clone(), entity.clone(), resource.clone(), key];
            let (sums, events) = expected.entry(place).or_default();
            *events += takes;
            for (name, milli) in used {
                *sums.entry(name.clone()).or_default() += milli;
            }
        }
    }
    let mut found = Snapshots::new();
    for item in items {
        found.extend(snapshot(item)?);
    }
    for snapshots in [&mut expected, &mut found] {
        for (sums, _) in snapshots.values_mut() {
            sums.retain(|_, milli| *milli != 0);
        }
        snapshots.retain(|_, (sums, events)| !sums.is_empty() || *events != 0);
    }
    let mut places = expected.keys().chain(found.keys());
    match places.find(|place| expected.get(*place) != found.get(*place)) {
        Some(place) => Err(format!(
            "the usage of {place:?} is {:?}, counted was {:?}",
            found.get(place),
            expected.get(place)
        )),
        None => Ok(found.len() as u64),
    }
}

/// What a snapshot says, if an item is one. Whole tokens are those of the exact sum.
type Counted = ([String; 4], (Amounts, i64));

fn snapshot(item: &Item) -> Result<Option<Counted>, Broken> {
    let text = |name: &str| item.get(name).and_then(|value| value.as_s().ok());
    let number = |name: &str| match item.get(name) {
        Some(AttributeValue::N(digits)) => digits.parse::<i128>().ok(),
        _ => None,
    };
    let place = text("PK").zip(text("SK")).and_then(|(pk, sk)| {
        let (namespace, entity) = pk.split_once("/ENTITY#")?;
        let (resource, window) = sk.strip_prefix("#USAGE#")?.split_once('#')?;
        Some([namespace, entity, resource, window].map(ToOwned::to_owned))
    });
    let Some(place) = place else { return Ok(None) };
    let mut sums = Amounts::new();
    for name in item.keys().filter_map(|name| name.strip_suffix("#m")) {
        let milli = number(&format!("{name}#m")).ok_or("no sum")?;
        if number(name) != Some(milli.div_euclid(1_000)) {
            return Err(format!("{place:?} has other tokens than {milli} milli of {name}"));
        }
        sums.insert(name.to_owned(), milli);
    }
    let events = number("total_events").and_then(|events| i64::try_from(events).ok());
    Ok(Some((place, (sums, events.ok_or("no number of takes")?))))
}
