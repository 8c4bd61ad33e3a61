//! What a batch comes to.

use zae_limiter_aggregator::{Kind, Record, fold, padded, sum};
use zae_limiter_core::UsageWindow;

use crate::log::{Log, at, number};
use crate::rig::Rig;

const BUCKET: crate::log::Bucket<'static> = ("a", "gpt", 0);

/// What one limit came to: `window key milli takes`, for the windows in question.
fn folded(records: &[Record], windows: &[UsageWindow], limit: &str) -> Vec<String> {
    let told = |counted: &zae_limiter_aggregator::Counted| {
        let write = sum(counted.uses.iter().map(|one| &**one), 0);
        let key = counted.snapshot.window.key(counted.snapshot.start);
        format!("{key} {} {}", write.used.get(limit).copied().unwrap_or(0), write.takes)
    };
    fold(records, windows).snapshots.iter().map(told).collect()
}

#[test]
fn the_first_take_counts() {
    let mut log = Log::new("ns");
    log.take(at("2026-01-01T10:00:00Z"), BUCKET, &[("rpm", 5_000)]);
    assert_eq!(log.records[0].kind, Kind::Insert);
    assert_eq!(
        folded(&log.records, &UsageWindow::ALL, "rpm"),
        ["2026-01-01T10:00:00Z 5000 1", "2026-01-01 5000 1", "2026-01 5000 1"]
    );
}

#[test]
fn a_seeded_limit_counts_from_nothing() {
    let mut log = Log::new("ns");
    let now = at("2026-01-01T10:00:00Z");
    log.take(now, BUCKET, &[("rpm", 5_000)]);
    log.take(now, BUCKET, &[("rpm", 1_000), ("tpm", 700)]);
    assert!(!log.records[1].old.as_ref().unwrap().contains_key("b_tpm_tc"));
    assert_eq!(folded(&log.records[1..], &[UsageWindow::Daily], "tpm"), ["2026-01-01 700 1"]);
}

/// By the time of the event; by the refill instant both would be in the first hour, and the key of
/// the day would be that of its first hour.
#[tokio::test]
async fn a_hundred_at_ten_past_midnight_and_at_five() {
    let rig = Rig::new().await;
    let mut log = Log::new(&rig.namespace);
    log.take(at("2026-01-01T00:10:00Z"), BUCKET, &[("tpm", 100_000)]);
    log.take(at("2026-01-01T05:10:00Z"), BUCKET, &[("tpm", 100_000)]);
    let refilled = log.records[0].new.as_ref().unwrap()["rf"].clone();
    log.records[1].new.as_mut().unwrap().insert("rf".to_owned(), refilled);
    rig.process(&log.records).await;
    let usage = rig.usage().await;
    let told: Vec<String> = usage
        .iter()
        .map(|((_, _, window, key), (used, takes))| {
            format!("{window} {key} {} {takes}", used["tpm"])
        })
        .collect();
    assert_eq!(
        told,
        [
            "hourly 2026-01-01T00:00:00Z 100000 1",
            "hourly 2026-01-01T05:00:00Z 100000 1",
            "daily 2026-01-01 200000 2",
            "monthly 2026-01 200000 2",
        ]
    );
}

#[test]
fn refunds_count_negative_in_their_hour() {
    let mut log = Log::new("ns");
    log.take(at("2026-01-01T10:50:00Z"), BUCKET, &[("tpm", 9_000)]);
    log.adjust(at("2026-01-01T11:01:00Z"), BUCKET, &[("tpm", -4_000)]);
    assert_eq!(
        folded(&log.records, &[UsageWindow::Hourly, UsageWindow::Daily], "tpm"),
        ["2026-01-01T10:00:00Z 9000 1", "2026-01-01T11:00:00Z -4000 0", "2026-01-01 5000 1"]
    );
}

/// The undone take was never granted: it is use of no hour, neither of its own nor of the next.
#[test]
fn an_undone_take_is_use_of_no_hour() {
    let mut log = Log::new("ns");
    let (taken, undone) = (at("2026-01-01T10:59:59Z"), at("2026-01-01T11:00:01Z"));
    log.take(taken, BUCKET, &[("tpm", 9_000)]);
    log.take(undone, BUCKET, &[("tpm", 1_000)]);
    log.undo(undone, taken, BUCKET, &[("tpm", 9_000)]);
    assert_eq!(
        folded(&log.records, &[UsageWindow::Hourly], "tpm"),
        ["2026-01-01T10:00:00Z 0 0", "2026-01-01T11:00:00Z 1000 1"]
    );
}

/// A gathered take is counted by one of its shards; all of them give back to its hour. What comes
/// after has the mark too, and is no undo.
#[test]
fn parts_of_a_gathered_take_are_undone_in_its_hour() {
    let mut log = Log::new("ns");
    let (taken, undone) = (at("2026-01-01T10:59:59Z"), at("2026-01-01T11:00:01Z"));
    log.take(taken, ("a", "gpt", 0), &[("tpm", 9_000)]);
    log.adjust(taken, ("a", "gpt", 1), &[("tpm", 4_000)]);
    log.undo(undone, taken, ("a", "gpt", 0), &[("tpm", 9_000)]);
    log.undo_part(undone, taken, ("a", "gpt", 1), &[("tpm", 4_000)]);
    log.adjust(undone, ("a", "gpt", 1), &[("tpm", -500)]);
    log.take(undone, ("a", "gpt", 0), &[("tpm", 2_000)]);
    assert_eq!(
        folded(&log.records, &[UsageWindow::Hourly], "tpm"),
        ["2026-01-01T10:00:00Z 0 0", "2026-01-01T11:00:00Z 1500 1"]
    );
}

/// An instant that cannot be that of the take is not believed.
#[test]
fn an_undo_with_an_impossible_time_is_booked_at_its_own() {
    let undone = at("2026-01-02T11:30:00Z");
    for taken in [at("2026-01-02T12:30:00Z"), at("2025-12-01T00:00:00Z"), i64::MIN, i64::MAX] {
        let mut log = Log::new("ns");
        log.take(undone, BUCKET, &[("tpm", 9_000)]);
        log.undo(undone, undone, BUCKET, &[("tpm", 9_000)]);
        log.records[1]
            .new
            .as_mut()
            .unwrap()
            .insert("un".to_owned(), number(taken.saturating_mul(1_000_000)));
        assert_eq!(
            folded(&log.records, &[UsageWindow::Hourly], "tpm"),
            ["2026-01-02T11:00:00Z 0 0"],
            "{taken}"
        );
        log.records[1].new.as_mut().unwrap().remove("un");
        assert_eq!(
            folded(&log.records, &[UsageWindow::Hourly], "tpm"),
            ["2026-01-02T11:00:00Z 0 0"]
        );
    }
}

#[test]
fn a_bucket_that_expired_and_came_back() {
    let mut log = Log::new("ns");
    let now = at("2026-01-01T10:00:00Z");
    log.take(now, BUCKET, &[("tpm", 9_000)]);
    log.expire(now + 60, BUCKET);
    log.take(now + 120, BUCKET, &[("tpm", 2_000)]);
    assert_eq!(folded(&log.records, &[UsageWindow::Daily], "tpm"), ["2026-01-01 11000 2"]);
    assert_eq!(fold(&log.records, &[]).leaves.len(), 1);
    log.expire(now + 180, BUCKET);
    assert_eq!(fold(&log.records, &[]).leaves, [], "a bucket that is gone needs no upkeep");
}

/// Not limits, not charges, not refills.
#[test]
fn events_are_takes() {
    let mut log = Log::new("ns");
    let now = at("2026-01-01T10:00:00Z");
    log.take(now, BUCKET, &[("rpm", 1_000), ("tpm", 9_000), ("tpd", 9_000)]);
    log.adjust(now, BUCKET, &[("tpm", 5_000), ("tpd", 5_000)]);
    log.adjust(now, BUCKET, &[("tpm", -5_000)]);
    log.refill(now, BUCKET);
    log.take(now, BUCKET, &[("rpm", 0)]);
    assert_eq!(folded(&log.records, &[UsageWindow::Daily], "rpm"), ["2026-01-01 1000 2"]);
    assert_eq!(fold(&log.records, &[UsageWindow::Daily]).takes, 2);
}

#[test]
fn a_record_that_changes_no_counter_counts_nothing() {
    let mut log = Log::new("ns");
    let now = at("2026-01-01T10:00:00Z");
    log.take(now, BUCKET, &[("rpm", 1_000)]);
    log.refill(now, BUCKET);
    assert_eq!(fold(&log.records[1..], &UsageWindow::ALL).snapshots.len(), 0);
}

#[test]
fn padded_numbers_sort() {
    // Those of the service, of the local engine, and short ones.
    let numbers = [
        "9",
        "10",
        "999",
        "100000000000000000001",
        "300000000000000499659",
        "4".repeat(40).as_str(),
    ]
    .map(|number| padded(number).unwrap());
    assert!(numbers.is_sorted(), "{numbers:?}");
    assert!(numbers.iter().all(|number| number.len() == 40));
    for nonsense in ["", "x", "1 ", "-1", "5".repeat(41).as_str()] {
        assert_eq!(padded(nonsense), None, "{nonsense}");
    }
}

/// Names that other writers accept are counted as well: under another name where the snapshot has
/// an attribute of that name.
#[tokio::test]
async fn names_that_are_not_ours_are_counted() {
    let rig = Rig::new().await;
    let mut log = Log::new(&rig.namespace);
    let now = at("2026-01-01T10:00:00Z");
    log.take(now, ("a", "gpt", 0), &[("ttl", 3_000), ("window", 1_000), ("a#m", 1_000)]);
    log.take(now, ("*", "?", 0), &[("rpm", 3_000)]);
    rig.process(&log.records).await;
    let (used, _) = rig
        .usage()
        .await
        .remove(&("a".to_owned(), "gpt".to_owned(), UsageWindow::Daily, "2026-01-01".to_owned()))
        .unwrap();
    let told: Vec<String> = used.iter().map(|(name, milli)| format!("{name} {milli}")).collect();
    assert_eq!(told, ["u_a.m 1000", "u_ttl 3000", "u_window 1000"]);
    let odd = format!("{}/ENTITY#*", rig.namespace);
    let stored = rig.table.items();
    assert!(
        stored.iter().any(|item| item["PK"].as_s().unwrap() == &odd && item.contains_key("rpm"))
    );
}

/// What upkeep is told: the last image, and how the bucket got there.
#[test]
fn leaves_tell_what_upkeep_needs() {
    let mut log = Log::new("ns");
    let now = at("2026-01-01T10:00:00Z");
    log.take(now, BUCKET, &[("rpm", 1_000), ("tpm", 9_000)]);
    log.adjust(now + 1, BUCKET, &[("tpm", -5_000)]);
    log.take(now + 2, BUCKET, &[("rpm", 1_000), ("tpm", 1_000)]);
    log.take(now + 3, ("a", "gpt", 5), &[("rpm", 1_000)]);
    log.records[2].new.as_mut().unwrap().insert("shard_count".to_owned(), number(2));
    let batch = fold(&log.records, &[]);
    let leaf = &batch.leaves[0];
    assert_eq!((leaf.shard, leaf.records, leaf.units, leaf.at_s), (0, 3, 3, (now, now + 2)));
    assert_eq!(leaf.refilled_ms, (now * 1_000, (now + 2) * 1_000));
    assert_eq!(leaf.shard_count, (1, 2));
    assert_eq!(
        leaf.taken.iter().map(|(n, m)| format!("{n} {m}")).collect::<Vec<_>>(),
        ["rpm 2000", "tpm 10000"]
    );
    assert_eq!(leaf.image, *log.records[2].new.as_ref().unwrap());
    assert_eq!((batch.leaves[1].shard, batch.leaves[1].shard_count), (5, (32, 32)));
}
