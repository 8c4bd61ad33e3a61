//! What the service does on its own and the engine does not: items expire, stream records age out.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use dynoxide::storage::{ScanParams, Storage, TableMetadata};
use dynoxide::{AttributeValue, Item, streams};
use serde_json::Value;

/// How long the service keeps stream records.
pub(crate) const STREAM_SECONDS: u64 = 24 * 60 * 60;

/// The service leaves items alone whose time passed longer ago than this: they are taken for
/// mistakes.
const FIVE_YEARS_SECONDS: u64 = 5 * 365 * 24 * 60 * 60;

/// Rows read at a time, and at most so many deleted in one transaction: other requests wait no
/// longer than that.
const PAGE_ROWS_MAX: usize = 100;

/// What the engine adds to a stored sequence number, so that those it shows have 21 digits.
const SEQUENCE_OFFSET: u128 = 100_000_000_000_000_000_000;

/// Who deletes expired items, in the words of a stream record.
const IDENTITY: &str = r#"{"type":"Service","principalId":"dynamodb.amazonaws.com"}"#;

pub(crate) fn now_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Deletes what had expired at `now`, with its index rows and a stream record of the service.
/// Returns how many of each table with a TTL.
///
/// Unlike the engine's own sweep it takes the time from its caller. Items are found without a lock
/// and looked at again in the transaction that deletes them, so that one whose life was prolonged
/// meanwhile stays.
pub(crate) fn sweep_ttl(storage: &Storage, now: u64) -> Result<BTreeMap<String, usize>> {
    let mut swept = BTreeMap::new();
    for table in storage.list_ttl_enabled_tables()? {
        let deleted = sweep_table(storage, &table, now)?;
        swept.insert(table.table_name, deleted);
    }
    Ok(swept)
}

fn sweep_table(storage: &Storage, table: &TableMetadata, now: u64) -> Result<usize> {
    // Rows that are written ahead of the sweep could keep it running for ever; they are left to the
    // next one.
    let mut rows_left = usize::try_from(storage.count_items(&table.table_name)?)?;
    let mut after: Option<(String, String)> = None;
    let mut deleted = 0;
    while rows_left > 0 {
        let rows = storage.scan_items(
            &table.table_name,
            &ScanParams {
                limit: Some(PAGE_ROWS_MAX.min(rows_left)),
                exclusive_start_pk: after.as_ref().map(|(pk, _)| pk.as_str()),
                exclusive_start_sk: after.as_ref().map(|(_, sk)| sk.as_str()),
                ..ScanParams::default()
            },
        )?;
        let Some((pk, sk, _)) = rows.last() else { break };
        after = Some((pk.clone(), sk.clone()));
        rows_left -= rows.len();
        let expired: Vec<(String, String)> = rows
            .into_iter()
            .filter(|(_, _, json)| expired(table, json, now).is_some())
            .map(|(pk, sk, _)| (pk, sk))
            .collect();
        if expired.is_empty() {
            continue;
        }
        storage.begin_transaction()?;
        // The table may have been dropped or made anew, or have lost its TTL, since the rows were
        // read.
        let tables = storage.list_ttl_enabled_tables()?;
        let Some(table) = tables
            .iter()
            .find(|found| found.table_name == table.table_name && found.table_id == table.table_id)
        else {
            storage.rollback()?;
            break;
        };
        for (pk, sk) in &expired {
            deleted += usize::from(delete_expired(storage, table, (pk, sk), now)?);
        }
        storage.commit()?;
    }
    Ok(deleted)
}

/// The item, if it had expired at `now`.
fn expired(table: &TableMetadata, json: &str, now: u64) -> Option<Item> {
    let item: Item = serde_json::from_str(json).ok()?;
    let AttributeValue::N(number) = item.get(table.ttl_attribute.as_deref()?)? else { return None };
    let at: u64 = number.parse().ok()?;
    (at < now && now - at <= FIVE_YEARS_SECONDS).then_some(item)
}

fn delete_expired(
    storage: &Storage,
    table: &TableMetadata,
    (pk, sk): (&str, &str),
    now: u64,
) -> Result<bool> {
    let name = &table.table_name;
    let Some(item) = storage.get_item(name, pk, sk)?.and_then(|json| expired(table, &json, now))
    else {
        return Ok(false);
    };
    storage.delete_item(name, pk, sk)?;
    for index in index_names(table.gsi_definitions.as_deref())? {
        storage.delete_gsi_item(name, &index, pk, sk)?;
    }
    for index in index_names(table.lsi_definitions.as_deref())? {
        storage.delete_lsi_item(name, &index, pk, sk)?;
    }
    for index in index_names(table.vector_index_definitions.as_deref())? {
        storage.delete_vector_item(name, &index, pk, sk)?;
    }
    if table.stream_enabled {
        let keys = serde_json::to_string(&streams::extract_keys(&item, &table.key_schema))?;
        let with_old = matches!(
            table.stream_view_type.as_deref(),
            None | Some("OLD_IMAGE" | "NEW_AND_OLD_IMAGES")
        );
        let old = with_old.then(|| serde_json::to_string(&item)).transpose()?;
        let sequence = storage.next_stream_sequence_number(name)?.to_string();
        let created = i64::try_from(now_seconds())?;
        let shard = streams::shard_id(name);
        storage.insert_stream_record_with_identity(
            name,
            "REMOVE",
            &keys,
            None,
            old.as_deref(),
            &sequence,
            &shard,
            created,
            Some(IDENTITY),
        )?;
    }
    Ok(true)
}

fn index_names(definitions: Option<&str>) -> Result<Vec<String>> {
    let definitions: Vec<Value> =
        definitions.map(serde_json::from_str).transpose()?.unwrap_or_default();
    Ok(definitions
        .iter()
        .filter_map(|index| Some(index["IndexName"].as_str()?.to_owned()))
        .collect())
}

/// Forgets the stream records made before `before`, or all of them. Returns how many.
///
/// Later records still get higher sequence numbers: the engine starts them at the microseconds of
/// its clock.
pub(crate) fn trim_streams(storage: &Storage, before: Option<u64>) -> Result<usize> {
    let before = before.map_or(i64::MAX, |before| i64::try_from(before).unwrap_or(i64::MAX));
    Ok(storage.conn().execute("DELETE FROM _stream_records WHERE created_at < ?1", [before])?)
}

/// Forgets the records of one table's stream that come before the one with this sequence number.
/// Returns how many.
pub(crate) fn trim_table(storage: &Storage, table: &str, below: &str) -> Result<usize> {
    let below = stored_sequence(below)
        .with_context(|| format!("{below:?} is no sequence number of this engine"))?;
    let sql = "DELETE FROM _stream_records
       WHERE table_name = ?1 AND CAST(sequence_number AS INTEGER) < ?2";
    Ok(storage.conn().execute(sql, (table, below))?)
}

/// The number that a table stores for the one it shows.
fn stored_sequence(shown: &str) -> Option<i64> {
    i64::try_from(shown.parse::<u128>().ok()?.checked_sub(SEQUENCE_OFFSET)?).ok()
}
