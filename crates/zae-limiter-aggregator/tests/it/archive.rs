//! The archive of audit events.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::sync::{Arc, Mutex};

use aws_sdk_dynamodb::types::AttributeValue;
use serde_json::Value;
use zae_limiter_aggregator::{
    Aggregator, Archive, ArchiveError, FolderArchive, Item, Kind, Object, Record,
};
use zae_limiter_store::BoxFuture;

use crate::log::{Log, at, number, text};
use crate::rig::Rig;

fn event(id: &str, when: &str) -> Item {
    let details = [
        ("limits".to_owned(), AttributeValue::L(vec![text("rpm"), number(5)])),
        ("a".to_owned(), AttributeValue::Bool(true)),
        ("z".to_owned(), AttributeValue::Null(true)),
        ("big".to_owned(), AttributeValue::N("1".repeat(30))),
    ];
    [
        ("PK", text("ns/AUDIT#user")),
        ("SK", text(&format!("#AUDIT#{id}"))),
        ("entity_id", text("user")),
        ("event_id", text(id)),
        ("timestamp", text(when)),
        ("action", text("limits_set")),
        ("principal", AttributeValue::Null(true)),
        ("resource", text("gpt")),
        ("details", AttributeValue::M(details.into())),
        ("ttl", number(1)),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

/// Removals of four events of two days, in the middle of other records.
pub(crate) fn log(namespace: &str) -> Vec<Record> {
    let mut log = Log::new(namespace);
    let now = at("2026-04-01T10:00:00Z");
    for (id, when) in [
        ("01A", "2026-01-01T10:00:00Z"),
        ("01B", "2026-01-02T23:59:59Z"),
        ("01C", "2026-01-01T00:00:00Z"),
        ("01D", "2026-01-02T00:00:00Z"),
    ] {
        let key = ("ns/AUDIT#user".to_owned(), format!("#AUDIT#{id}"));
        log.push(now, Kind::Remove, key, Some(event(id, when)), None);
        log.records.last_mut().unwrap().is_expired = true;
        log.take(now, ("a", "gpt", 0), &[("tpm", 1_000)]);
    }
    log.records
}

/// Every object below a folder, by name.
fn objects(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut open = vec![folder.to_owned()];
    while let Some(next) = open.pop() {
        for entry in std::fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else {
                let name = path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
                found.insert(name, std::fs::read(&path).unwrap());
            }
        }
    }
    found
}

pub(crate) fn lines(packed: &[u8]) -> Vec<Value> {
    let mut text = String::new();
    flate2::read::GzDecoder::new(packed).read_to_string(&mut text).unwrap();
    assert!(text.ends_with('\n'));
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn archiving(rig: &Rig, folder: &Path) -> Aggregator {
    rig.aggregator(rig.table.client(1)).archive(Arc::new(FolderArchive::new(folder)))
}

#[tokio::test]
async fn expired_events_are_archived_by_their_own_day() {
    let rig = Rig::new().await;
    let folder = tempfile::tempdir().unwrap();
    let report = archiving(&rig, folder.path()).process(&log(&rig.namespace)).await;
    assert_eq!((report.expired, report.archived, report.objects), (4, 4, 2));
    let objects = objects(folder.path());
    let names: Vec<&str> = objects.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "audit/year=2026/month=01/day=01/shardId-1-93-105.jsonl.gz",
            "audit/year=2026/month=01/day=02/shardId-1-99-111.jsonl.gz",
        ]
    );
    let day = lines(&objects[names[0]]);
    let ids: Vec<&str> = day.iter().map(|line| line["event_id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["01A", "01C"], "in the order of the stream");
    let text = day[0].to_string();
    assert_eq!(
        text,
        format!(
            r#"{{"action":"limits_set","details":{{"a":true,"big":"{}","limits":["rpm",5],"z":null}},"entity_id":"user","event_id":"01A","namespace_id":"ns","principal":null,"resource":"gpt","timestamp":"2026-01-01T10:00:00Z"}}"#,
            "1".repeat(30)
        )
    );
}

#[tokio::test]
async fn archive_only_what_expired() {
    let rig = Rig::new().await;
    let folder = tempfile::tempdir().unwrap();
    let mut records = log(&rig.namespace);
    // Deleted by hand, by a purge; or not removed at all; or something else that expired.
    records[0].is_expired = false;
    records[2].kind = Kind::Modify;
    records[4].key.1 = "#META".to_owned();
    let report = archiving(&rig, folder.path()).process(&records).await;
    assert_eq!((report.expired, report.archived), (1, 1));
    let kept = objects(folder.path());
    assert_eq!(kept.len(), 1);
    assert_eq!(lines(kept.values().next().unwrap())[0]["event_id"], "01D");
}

#[tokio::test]
async fn a_retry_overwrites_the_same_object() {
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for folder in [&first, &second] {
        let rig = Rig::new().await;
        let mut records = log(&rig.namespace);
        for record in &mut records {
            record.key.0 = record.key.0.replace(&rig.namespace, "ns");
        }
        archiving(&rig, folder.path()).process(&records).await;
        let once = objects(folder.path());
        rig.clock.advance(std::time::Duration::from_secs(100_000));
        archiving(&rig, folder.path()).process(&records).await;
        assert_eq!(objects(folder.path()), once);
    }
    assert_eq!(objects(first.path()), objects(second.path()), "whoever writes it, and when");
}

/// Cut otherwise, objects overlap and nothing is missing.
#[tokio::test]
async fn other_cuts_leave_no_hole() {
    for cut in 0..8 {
        let rig = Rig::new().await;
        let folder = tempfile::tempdir().unwrap();
        let records = log(&rig.namespace);
        let aggregator = archiving(&rig, folder.path());
        aggregator.process(&records[..cut]).await;
        aggregator.process(&records[cut / 2..]).await;
        let mut ids: Vec<String> = objects(folder.path())
            .values()
            .flat_map(|packed| lines(packed))
            .map(|line| line["event_id"].as_str().unwrap().to_owned())
            .collect();
        ids.sort();
        ids.dedup();
        assert_eq!(ids, ["01A", "01B", "01C", "01D"], "cut at {cut}");
    }
}

/// Refuses what is told to.
struct Failing(Mutex<Vec<String>>, &'static str);

impl Archive for Failing {
    fn put<'a>(&'a self, object: &'a Object) -> BoxFuture<'a, Result<(), ArchiveError>> {
        let answer = if object.name.contains(self.1) {
            Err(ArchiveError { name: object.name.clone(), why: "down".to_owned() })
        } else {
            self.0.lock().unwrap().push(object.name.clone());
            Ok(())
        };
        Box::pin(std::future::ready(answer))
    }
}

#[tokio::test]
async fn an_archive_that_fails_is_asked_again() {
    let rig = Rig::new().await;
    let records = log(&rig.namespace);
    let failing = Arc::new(Failing(Mutex::default(), "day=02"));
    let aggregator = rig.aggregator(rig.table.client(1)).archive(Arc::<Failing>::clone(&failing));
    let report = aggregator.process(&records).await;
    assert_eq!(report.failures["shardId-1"], records[2].sequence, "the first of that day");
    assert_eq!((report.archived, report.counted), (2, 12), "the rest is done");
    assert_eq!(failing.0.lock().unwrap().len(), 1);

    // A letter that cannot be kept is no reason to stop the stream.
    let mut poison = records[1..2].to_vec();
    poison[0].new = None;
    let aggregator = rig
        .aggregator(rig.table.client(1))
        .archive(Arc::new(Failing(Mutex::default(), "dead-letter")));
    let report = aggregator.process(&poison).await;
    assert!(report.is_complete() && report.poison == 1 && report.letters == 0, "{report:?}");
    assert_eq!(report.error_count, 2);
}

/// An event without a readable time has that of its id, and without both it is kept as it is.
#[tokio::test]
async fn an_event_that_cannot_be_dated_is_poison() {
    let rig = Rig::new().await;
    let folder = tempfile::tempdir().unwrap();
    let mut records = log(&rig.namespace);
    for index in [0, 2] {
        let event = records[index].old.as_mut().unwrap();
        event.insert("timestamp".to_owned(), text("yesterday"));
    }
    let id = zae_limiter_core::EventId::new(crate::rig::day("2026-01-05"), 7).to_string();
    records[2].old.as_mut().unwrap().insert("event_id".to_owned(), text(&id));
    let report = archiving(&rig, folder.path()).process(&records).await;
    assert_eq!((report.archived, report.poison, report.letters), (3, 1, 1), "{report:?}");
    let names: Vec<String> = objects(folder.path()).into_keys().collect();
    assert!(
        names.iter().any(|name| name.starts_with("audit/year=2026/month=01/day=05/")),
        "{names:?}"
    );
}
