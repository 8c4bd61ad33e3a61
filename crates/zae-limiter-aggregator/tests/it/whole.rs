//! Whole tokens, which the Python package reads, are always those of the exact sum.

use zae_limiter_core::UsageWindow;
use zae_limiter_dynamodb::stream::Snapshot;

use crate::log::{Log, at, number, text};
use crate::rig::{Rig, day};

const BUCKET: crate::log::Bucket<'static> = ("a", "gpt", 0);

#[tokio::test]
async fn fractions_of_tokens_do_not_get_lost() {
    let rig = Rig::new().await;
    let mut log = Log::new(&rig.namespace);
    let now = at("2026-01-01T10:00:00Z");
    for milli in [500, 500, 999, -1, -2_500, 333, 333, 334, -1, 1] {
        log.adjust(now, BUCKET, &[("tpm", milli), ("rpm", 1_000)]);
        let from = log.records.len() - 1;
        rig.process(&log.records[from..]).await;
        rig.whole_tokens_are_those_of_the_sums();
    }
    assert_eq!(rig.usage().await, log.ledger());
}

/// A write of whole tokens needs to know nothing: it never loses to another one.
#[tokio::test]
async fn whole_tokens_are_counted_by_one_write() {
    let rig = Rig::new().await;
    let mut log = Log::new(&rig.namespace);
    let now = at("2026-01-01T10:00:00Z");
    for milli in [1_000, -2_000, 7_000] {
        log.adjust(now, BUCKET, &[("tpm", milli)]);
        rig.table.take_counters();
        let from = log.records.len() - 1;
        rig.process(&log.records[from..]).await;
        assert_eq!(
            rig.table.take_counters().all_calls(),
            4,
            "a look at the registry, three windows"
        );
    }
}

/// The function of the Python package had counted in the same hour before ours took over: the hour
/// has what both have counted.
#[tokio::test]
async fn an_hour_that_the_python_package_began() {
    let rig = Rig::new().await;
    let mut log = Log::new(&rig.namespace);
    let now = at("2026-01-01T10:30:00Z");
    let snapshot = Snapshot {
        namespace: rig.namespace.clone(),
        entity: "a".to_owned(),
        resource: "gpt".to_owned(),
        window: UsageWindow::Hourly,
        start: day("2026-01-01T10:00:00Z"),
    };
    let key = snapshot.key();
    let pk = key.pk.clone();
    rig.table.insert(
        &[
            ("PK", text(&pk)),
            ("SK", text(&key.sk)),
            ("entity_id", text("a")),
            ("resource", text("gpt")),
            ("window", text("hourly")),
            ("tpm", number(40)),
            ("total_events", number(4)),
            ("GSI4PK", text(&rig.namespace)),
            ("GSI4SK", text(&pk)),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into(),
    );
    log.take(now, BUCKET, &[("tpm", 1_250)]);
    log.take(now, BUCKET, &[("tpm", 1_250)]);
    rig.process(&log.records[..1]).await;
    rig.process(&log.records).await;
    let usage = rig.usage().await;
    let place =
        ("a".to_owned(), "gpt".to_owned(), UsageWindow::Hourly, "2026-01-01T10:00:00Z".to_owned());
    let (used, events) = &usage[&place];
    assert_eq!((used["tpm"], *events), (42_500, 6));
    assert_eq!(rig.table.get(&key).unwrap()["tpm"], number(42));
}
