//! How long snapshots are kept: as the table says, else as the aggregator was told.

use std::time::Duration;

use std::sync::Arc;

use zae_limiter_aggregator::{Aggregator, Settings};
use zae_limiter_dynamodb::{Operator, Retention};
use zae_limiter_store::Clock;

use crate::log::{Log, at};
use crate::rig::Rig;

/// The days that the newest snapshot is kept, and how many snapshots there are.
fn kept_days(rig: &Rig) -> (i64, usize) {
    let of_usage =
        |item: &&zae_limiter_aggregator::Item| item["SK"].as_s().unwrap().starts_with("#USAGE#");
    let ttl =
        |item: &zae_limiter_aggregator::Item| item["ttl"].as_n().unwrap().parse::<i64>().unwrap();
    let items = rig.table.items();
    let all: Vec<i64> = items.iter().filter(of_usage).map(ttl).collect();
    let newest = all.iter().max().copied().unwrap_or(0);
    ((newest - rig.clock.now().0 / 1_000) / 86_400, all.len())
}

#[tokio::test]
async fn a_changed_retention_reaches_the_next_snapshots() {
    let rig = Rig::new().await;
    let told = Settings::new("stack").snapshot_ttl_days(30);
    let aggregator =
        Aggregator::new(Arc::new(rig.table.client(1)), told).clock(Arc::new(rig.clock.clone()));
    let operator = Operator::on_table(Arc::new(rig.table.clone()), rig.options());
    let mut log = Log::new(&rig.namespace);
    for day in ["01", "02", "03"] {
        let when = at(&format!("2026-01-{day}T10:00:00Z"));
        log.take(when, ("a", "gpt", 0), &[("tpm", 1_000)]);
    }
    aggregator.process(&log.records[..1]).await;
    assert_eq!(kept_days(&rig), (30, 2), "as the environment says");

    let retention = Retention { usage_days: Some(400), audit_days: None };
    operator.set_retention(retention).await.unwrap();
    aggregator.process(&log.records[1..2]).await;
    assert_eq!(kept_days(&rig), (30, 4), "not looked at yet");
    rig.clock.advance(Duration::from_secs(61));
    aggregator.process(&log.records[2..]).await;
    assert_eq!(kept_days(&rig), (400, 6), "the table wins");
}
