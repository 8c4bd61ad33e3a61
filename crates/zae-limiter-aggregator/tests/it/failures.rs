//! What cannot be done now is repeated; what can never be done does not stop the stream.

use std::sync::Arc;

use zae_limiter_aggregator::{FolderArchive, Kind};
use zae_limiter_core::UsageWindow;
use zae_limiter_dynamodb::stream::Snapshot;
use zae_limiter_testkit::table::{Asked, Fate, Faults};

use crate::log::{Log, at, number, text};
use crate::rig::{Rig, day};

/// Writes to one entity's snapshots are lost; the others are counted.
#[tokio::test]
async fn partial_failure_names_the_lowest_number() {
    let rig = Rig::new().await;
    let mut log = Log::new(&rig.namespace);
    let now = at("2026-01-01T10:00:00Z");
    for entity in ["a", "b", "c", "b", "a"] {
        log.take(now, (entity, "gpt", 0), &[("tpm", 1_000)]);
    }
    // Two stream shards, and numbers of different lengths: 93, 96, 99, 102, 105.
    for index in [0, 4] {
        log.records[index].stream_shard = "shardId-2".to_owned();
    }
    let faults = Faults::by(|asked| match asked {
        Asked::Update(update) if update.key.pk.ends_with("ENTITY#b") => Fate::NotApplied,
        _ => Fate::Pass,
    });
    let aggregator = rig.aggregator(rig.table.client(1).with_faults(faults));
    let report = aggregator.process(&log.records).await;
    assert_eq!(report.failures.len(), 1, "{report:?}");
    assert_eq!(report.failures["shardId-1"], "96");
    assert_eq!((report.counted, report.snapshots), (9, 6));
    assert_eq!(report.error_count, 3, "{:?}", report.errors);
    // Everything from there on comes again.
    rig.process(&log.records[1..]).await;
    assert_eq!(rig.usage().await, log.ledger());
}

#[tokio::test]
async fn a_table_that_cannot_be_reached_is_a_failure() {
    let rig = Rig::new().await;
    let log = Log::two_hundred(&rig.namespace, 1, 0);
    let faults = Faults::by(|asked| match asked {
        Asked::Update(_) => Fate::Unreachable,
        _ => Fate::Pass,
    });
    let report =
        rig.aggregator(rig.table.client(1).with_faults(faults)).process(&log.records).await;
    assert_eq!(report.failures["shardId-1"], log.records[0].sequence);
    let first = report.errors.first().unwrap();
    assert!(first.contains("not reached"), "{first}");
    assert!(
        report.errors.len() <= 10 && report.error_count > 10,
        "a few are told, all are counted"
    );
}

#[tokio::test]
async fn poison_does_not_stop_the_stream() {
    let rig = Rig::new().await;
    let folder = tempfile::tempdir().unwrap();
    let mut log = Log::new(&rig.namespace);
    let now = at("2026-01-01T10:00:00Z");
    log.take(now, ("a", "gpt", 0), &[("tpm", 1_000)]);
    log.take(now, ("a", "gpt", 0), &[("tpm", 1_000)]);
    log.take(now, ("b", "gpt", 0), &[("tpm", 1_000)]);
    log.take(now, ("a", "gpt", 0), &[("tpm", 1_000)]);
    let good = log.ledger();
    for (entity, damage) in [
        ("x", number(5)),
        ("y", text("five")),
        ("z", aws_sdk_dynamodb::types::AttributeValue::N("1".repeat(30))),
    ] {
        let bucket = (entity, "gpt", 0);
        log.take(now, bucket, &[("tpm", 1_000), ("rpm", 1_000)]);
        log.take(now, bucket, &[("tpm", 1_000), ("rpm", 1_000)]);
        if entity != "x" {
            for back in 1..=2 {
                let index = log.records.len() - back;
                let new = log.records[index].new.as_mut().unwrap();
                new.insert("b_tpm_tc".to_owned(), damage.clone());
            }
        }
    }
    // Of the last item there is no image, and of one record no number.
    let lost = log.records.len() - 1;
    log.records[lost].new = None;
    log.records[1].sequence = "12x".to_owned();
    let archive = Arc::new(FolderArchive::new(folder.path()));
    let aggregator = rig.aggregator(rig.table.client(1)).archive(archive);
    let report = aggregator.process(&log.records).await;
    assert!(report.is_complete(), "{report:?}");
    assert_eq!((report.poison, report.letters), (5, 3), "{report:?}");

    let usage = rig.usage().await;
    let of = |entity: &str| {
        let key = "2026-01-01".to_owned();
        usage[&(entity.to_owned(), "gpt".to_owned(), UsageWindow::Daily, key)].clone()
    };
    assert_eq!(
        of("b"),
        good[&("b".to_owned(), "gpt".to_owned(), UsageWindow::Daily, "2026-01-01".to_owned())]
    );
    assert_eq!(of("x").0["tpm"], 2_000);
    assert_eq!(of("a").0["tpm"], 2_000, "one of three had no number");
    // The counter that can be read is counted.
    assert_eq!((of("y").0["rpm"], of("y").0.get("tpm"), of("y").1), (2_000, None, 2));
    assert_eq!((of("z").0["rpm"], of("z").1), (1_000, 1));

    // At most one letter per item, with the record.
    let letters = folder.path().join("dead-letter/shardId-1");
    let mut names: Vec<String> = std::fs::read_dir(&letters)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["111.json", "117.json", "12x.json"]);
    let letter = std::fs::read_to_string(letters.join("111.json")).unwrap();
    let letter: serde_json::Value = serde_json::from_str(&letter).unwrap();
    assert_eq!(letter["why"], "b_tpm_tc is no number");
    assert_eq!(letter["record"]["new"]["b_rpm_tc"]["N"], "1000");
    assert_eq!(letter["record"]["pk"], log.records[6].key.0.as_str());
    assert!(report.errors.iter().any(|error| error.contains("record shardId-1 111")));
}

/// Without an archive the log has the key and the number.
#[tokio::test]
async fn poison_without_an_archive_is_told() {
    let rig = Rig::new().await;
    let mut log = Log::new(&rig.namespace);
    log.take(at("2026-01-01T10:00:00Z"), ("a", "gpt", 0), &[("tpm", 1_000)]);
    log.records[0].new.as_mut().unwrap().insert("b_wcu_tc".to_owned(), text("x"));
    let report = rig.aggregator(rig.table.client(1)).process(&log.records).await;
    assert!(report.is_complete());
    let told =
        format!("{} #STATE, record shardId-1 93: b_wcu_tc is no number", log.records[0].key.0);
    assert_eq!(report.errors, [told]);
}

/// A snapshot that somebody has damaged: the table will never add to it.
#[tokio::test]
async fn a_snapshot_that_cannot_be_written_does_not_stop_the_stream() {
    let rig = Rig::new().await;
    let folder = tempfile::tempdir().unwrap();
    let mut log = Log::new(&rig.namespace);
    let now = at("2026-01-01T10:00:00Z");
    log.take(now, ("a", "gpt", 0), &[("tpm", 1_000)]);
    let snapshot = Snapshot {
        namespace: rig.namespace.clone(),
        entity: "a".to_owned(),
        resource: "gpt".to_owned(),
        window: UsageWindow::Daily,
        start: day("2026-01-01"),
    };
    let key = snapshot.key();
    rig.table.insert(
        &[("PK", text(&key.pk)), ("SK", text(&key.sk)), ("tpm", text("many"))]
            .map(|(name, value)| (name.to_owned(), value))
            .into(),
    );
    let archive = Arc::new(FolderArchive::new(folder.path()));
    let report = rig.aggregator(rig.table.client(1)).archive(archive).process(&log.records).await;
    assert!(report.is_complete(), "{report:?}");
    assert_eq!((report.lost, report.snapshots, report.letters), (1, 2, 1));
    let letter = folder.path().join("dead-letter/shardId-1/93-daily.json");
    let letter = std::fs::read_to_string(letter).unwrap();
    let letter: serde_json::Value = serde_json::from_str(&letter).unwrap();
    assert_eq!(letter["record"][0]["used"]["tpm"], 1_000);
}

#[tokio::test]
async fn other_records_are_left_alone() {
    let rig = Rig::new().await;
    let mut log = Log::new(&rig.namespace);
    let now = at("2026-01-01T10:00:00Z");
    for (pk, sk) in [
        ("ns/ENTITY#a", "#META"),
        ("ns/ENTITY#a", "#USAGE#gpt#2026-01-01"),
        ("ns/ENTITY#a", "#BUCKET#gpt"),
        ("nothing", "#STATE"),
        ("ns/BUCKET#a#gpt#x", "#STATE"),
        ("ns/AUDIT#a", "#AUDIT#1"),
    ] {
        log.push(now, Kind::Insert, (pk.to_owned(), sk.to_owned()), None, Some([].into()));
    }
    let report = rig.aggregator(rig.table.client(1)).process(&log.records).await;
    assert_eq!((report.records, report.others, report.buckets, report.poison), (6, 6, 0, 0));
    let empty = rig.aggregator(rig.table.client(1)).process(&[]).await;
    assert_eq!((empty.records, empty.is_complete()), (0, true));
}

/// One line for people, and lines for metrics: for the table, and for each shard of buckets that
/// have several.
#[tokio::test]
async fn a_batch_is_told_in_a_few_lines() {
    let rig = Rig::new().await;
    let mut log = Log::new(&rig.namespace);
    let now = at("2026-01-01T10:00:00Z");
    log.take(now, ("a", "gpt", 0), &[("tpm", 1_000)]);
    log.take(now, ("b", "gpt", 7), &[("tpm", 1_000)]);
    log.take(now, ("b", "gpt", 7), &[("tpm", 1_000)]);
    let report = rig.aggregator(rig.table.client(1)).process(&log.records).await;
    let lines: Vec<serde_json::Value> = report
        .lines("stack", day("2026-01-01"))
        .iter()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 3);
    let summary = &lines[0];
    assert_eq!(
        (&summary["level"], &summary["timestamp"]),
        (&"INFO".into(), &"2026-01-01T00:00:00Z".into())
    );
    assert_eq!(
        (&summary["processed"], &summary["takes"], &summary["snapshots_updated"]),
        (&3.into(), &3.into(), &6.into())
    );
    assert_eq!(summary["hottest"][0]["records"], 2);
    let declared = |line: &serde_json::Value| line["_aws"]["CloudWatchMetrics"][0].clone();
    assert_eq!(declared(&lines[1])["Dimensions"], serde_json::json!([["table"]]));
    assert_eq!((&lines[1]["records"], &lines[1]["table"]), (&3.into(), &"stack".into()));
    assert_eq!(declared(&lines[2])["Dimensions"], serde_json::json!([["table", "bucket_shard"]]));
    assert_eq!((&lines[2]["bucket_shard"], &lines[2]["shard_writes"]), (&"7".into(), &2.into()));
    for line in &lines[1..] {
        for metric in declared(line)["Metrics"].as_array().unwrap() {
            assert!(line[metric["Name"].as_str().unwrap()].is_u64(), "{metric} has a value");
        }
    }
}
