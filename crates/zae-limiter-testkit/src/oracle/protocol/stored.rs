//! A bucket item, read by code of its own: what the product makes of the attributes is what is
//! being tested.

use std::collections::{BTreeMap, BTreeSet};

use aws_sdk_dynamodb::types::AttributeValue;
use zae_limiter_dynamodb::table::Item;

use super::share::Place;
use crate::oracle::bucket::Params;

/// The hidden limit that measures writes; nobody configures it.
const HIDDEN: &str = "wcu";

/// One limit of an item, all in millitokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoredLimit {
    /// What this shard has of the limit.
    pub(crate) params: Params,
    /// The limit of the whole bucket, as it is stored.
    pub(crate) stored: Params,
    pub(crate) balance: i128,
    pub(crate) consumed: i128,
    /// Remainder in `1/period` of a millitoken; 0 if it belongs to another `rf`.
    pub(crate) remainder: i128,
    pub(crate) gap: i128,
    /// What the shards had counted that folds have removed.
    pub(crate) folded: i128,
}

impl StoredLimit {
    /// Balance and remainder as one number, in `1/period` of a millitoken.
    pub(crate) fn fine(&self) -> i128 {
        self.balance * self.params.period + self.remainder
    }

    /// The same after `elapsed_ms` of refill.
    pub(crate) fn fine_after(&self, elapsed_ms: i128) -> i128 {
        (self.fine() + elapsed_ms.max(0) * self.params.refill).min(self.params.brim())
    }
}

/// A bucket item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) place: Place,
    pub(crate) refilled_at: i64,
    pub(crate) expires_s: Option<i64>,
    pub(crate) mark: Option<i64>,
    pub(crate) disabled: bool,
    pub(crate) nonce: Option<String>,
    pub(crate) read_at: Option<i64>,
    pub(crate) retired: BTreeSet<String>,
    /// A bucket that expires once it is folded.
    pub(crate) expires_later: bool,
    /// Takes that the item counts, in thousandths.
    pub(crate) counted: i64,
    /// Failed conditions that the item counts, in thousandths.
    pub(crate) failed: i64,
    pub(crate) limits: BTreeMap<String, StoredLimit>,
}

/// Reads an item. The error names the attribute whose value is invalid.
pub(crate) fn read(item: &Item) -> Result<Stored, String> {
    let refilled_at = needed(item, "rf")?;
    let place = place(item)?;
    let counts = number(item, "rmf")? == Some(refilled_at);
    let mut found: BTreeMap<&str, BTreeMap<&str, i128>> = BTreeMap::new();
    for (key, value) in item {
        if let Some((name, field)) = key.strip_prefix("b_").and_then(|rest| rest.rsplit_once('_'))
            && name != HIDDEN
        {
            found.entry(name).or_default().insert(field, whole(key, value)?.into());
        }
    }
    let mut limits = BTreeMap::new();
    for (name, fields) in found {
        let needed = |field: &str| {
            fields.get(field).copied().ok_or_else(|| format!("half a limit: {name} has no {field}"))
        };
        let stored =
            Params { capacity: needed("cp")?, refill: needed("ra")?, period: needed("rp")? };
        let params = place.effective(name, stored);
        // A remainder outside the period was left by a foreign writer, and does not count.
        let remainder = fields
            .get("rm")
            .copied()
            .filter(|rm| counts && (0..params.period).contains(rm))
            .unwrap_or(0);
        let gap = fields.get("gp").copied().unwrap_or(0);
        limits.insert(
            name.to_owned(),
            StoredLimit {
                params,
                stored,
                balance: needed("tk")?,
                consumed: needed("tc")?,
                remainder,
                gap,
                folded: fields.get("fu").copied().unwrap_or(0),
            },
        );
    }
    Ok(Stored {
        place,
        refilled_at,
        expires_s: number(item, "ttl")?,
        mark: number(item, "vu")?,
        disabled: matches!(item.get("disabled"), Some(AttributeValue::Bool(true))),
        nonce: item.get("lw").and_then(|value| value.as_s().ok()).cloned(),
        read_at: number(item, "ca")?,
        retired: item
            .get("ret")
            .and_then(|value| value.as_ss().ok())
            .map(|names| names.iter().cloned().collect())
            .unwrap_or_default(),
        expires_later: number(item, "tx")?.is_some(),
        counted: number(item, "b_wcu_tc")?.unwrap_or(0),
        failed: number(item, "wx")?.unwrap_or(0),
        limits,
    })
}

/// Where an item stands among the shards of its bucket.
fn place(item: &Item) -> Result<Place, String> {
    let text = |name: &str| item.get(name).and_then(|value| value.as_s().ok());
    let shard = text("PK").and_then(|pk| pk.rsplit_once('#')).and_then(|(_, it)| it.parse().ok());
    let place = Place {
        shard: shard.ok_or("no number of a shard")?,
        count: needed(item, "shard_count")?,
        era: number(item, "er")?.unwrap_or(0),
        pinned: text("pin")
            .map(|names| names.split(',').map(ToOwned::to_owned).collect())
            .unwrap_or_default(),
    };
    if place.is_possible() { Ok(place) } else { Err(format!("a shard that cannot be: {place:?}")) }
}

fn whole(name: &str, value: &AttributeValue) -> Result<i64, String> {
    match value {
        AttributeValue::N(text) => text.parse().map_err(|_| format!("{name} is {text}")),
        other => Err(format!("{name} is {other:?}")),
    }
}

fn number(item: &Item, name: &str) -> Result<Option<i64>, String> {
    item.get(name).map(|value| whole(name, value)).transpose()
}

fn needed(item: &Item, name: &str) -> Result<i64, String> {
    number(item, name)?.ok_or_else(|| format!("{name} is missing"))
}
