//! The archive: audit events that have expired, and records nobody could read.
//!
//! | object | what |
//! |---|---|
//! | `audit/year=Y/month=M/day=D/{stream shard}-{first}-{last}.jsonl.gz` | the events of one day, by their own time, of one batch: JSON lines in the order of the stream |
//! | `dead-letter/{stream shard}/{sequence}.json` | a record that cannot be read |
//!
//! Names and bytes depend on the records alone, so that a batch that is delivered again overwrites
//! its objects with the same bytes. A batch that is cut otherwise makes objects that overlap, never
//! a hole: `event_id` tells copies of one event.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::PathBuf;

use flate2::{Compression, GzBuilder};
use serde_json::{Map, Value, json};
use zae_limiter_core::UsageWindow;
use zae_limiter_store::BoxFuture;

use crate::fold::{Poison, Removed};
use crate::record::plain;

/// Where objects are kept.
pub trait Archive: Send + Sync {
    /// Stores an object, in the place of one of the same name.
    fn put<'a>(&'a self, object: &'a Object) -> BoxFuture<'a, Result<(), ArchiveError>>;
}

/// Something to keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Its name, parts separated by `/`.
    pub name: String,
    /// What it is.
    pub content_type: &'static str,
    /// How it is packed.
    pub content_encoding: Option<&'static str>,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// An object was not stored, as far as is known.
#[derive(Debug, thiserror::Error)]
#[error("{name} was not archived: {why}")]
pub struct ArchiveError {
    /// The name of the object.
    pub name: String,
    /// Why.
    pub why: String,
}

/// The events of one object and the object itself.
pub(crate) struct Pack<'a> {
    pub(crate) object: Object,
    pub(crate) events: Vec<&'a Removed>,
}

/// The objects of a batch's events: one per stream shard and day.
pub(crate) fn packs(removed: &[Removed]) -> std::io::Result<Vec<Pack<'_>>> {
    let mut days: BTreeMap<(&str, String), Vec<&Removed>> = BTreeMap::new();
    for event in removed {
        let day = UsageWindow::Daily.key(event.at);
        days.entry((&event.stream_shard, day)).or_default().push(event);
    }
    days.into_iter().map(|((shard, day), events)| pack(shard, &day, events)).collect()
}

fn pack<'a>(shard: &str, day: &str, events: Vec<&'a Removed>) -> std::io::Result<Pack<'a>> {
    let mut date = day.split('-');
    let mut part = || date.next().unwrap_or_default();
    let folder = format!("audit/year={}/month={}/day={}", part(), part(), part());
    let number = |event: Option<&&Removed>| event.map_or("", |event| &event.sequence).to_owned();
    let (first, last) = (number(events.first()), number(events.last()));
    // Neither the time nor the system stands in the packed bytes: they are the same every time.
    let packed = GzBuilder::new().mtime(0).operating_system(255);
    let mut packed = packed.write(Vec::new(), Compression::default());
    for event in &events {
        writeln!(packed, "{}", line(event))?;
    }
    let object = Object {
        name: format!("{folder}/{}-{first}-{last}.jsonl.gz", word(shard)),
        content_type: "application/x-ndjson",
        content_encoding: Some("gzip"),
        bytes: packed.finish()?,
    };
    Ok(Pack { object, events })
}

/// An event as one line of JSON.
fn line(removed: &Removed) -> Value {
    const TOLD: [&str; 7] =
        ["action", "details", "entity_id", "event_id", "principal", "resource", "timestamp"];
    let told = |name: &str| removed.event.get(name).map_or(Value::Null, plain);
    let mut line: Map<String, Value> =
        TOLD.iter().map(|name| ((*name).to_owned(), told(name))).collect();
    line.insert("namespace_id".to_owned(), json!(removed.namespace));
    // By name, whatever order the map keeps.
    let sorted: BTreeMap<String, Value> = line.into_iter().collect();
    Value::Object(sorted.into_iter().collect())
}

/// A record that cannot be read, as an object.
pub(crate) fn letter(poison: &Poison) -> Object {
    let body = json!({ "key": poison.key, "why": poison.why, "record": poison.body });
    Object {
        name: format!("dead-letter/{}/{}.json", word(&poison.stream_shard), word(&poison.sequence)),
        content_type: "application/json",
        content_encoding: None,
        bytes: body.to_string().into_bytes(),
    }
}

/// A word that may stand in the name of an object.
fn word(text: &str) -> String {
    let kept = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    text.chars().map(kept).collect()
}

/// An archive in a folder, for tests and local use.
#[derive(Clone, Debug)]
pub struct FolderArchive {
    folder: PathBuf,
}

impl FolderArchive {
    /// An archive in a folder, which is made when something is stored.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>) -> FolderArchive {
        FolderArchive { folder: folder.into() }
    }
}

impl Archive for FolderArchive {
    fn put<'a>(&'a self, object: &'a Object) -> BoxFuture<'a, Result<(), ArchiveError>> {
        let path = self.folder.join(&object.name);
        let stored = || {
            path.parent().map_or(Ok(()), fs::create_dir_all)?;
            // Beside it first, so that nobody sees half of an object.
            let beside = path.with_extension("part");
            fs::write(&beside, &object.bytes)?;
            fs::rename(&beside, &path)
        };
        let failed = |error: std::io::Error| ArchiveError {
            name: object.name.clone(),
            why: error.to_string(),
        };
        Box::pin(std::future::ready(stored().map_err(failed)))
    }
}
