//! The usage history: what was really used, in the hour it was used.

use zae_limiter_core::{TimeMs, UsageSnapshot, UsageWindow};

use super::fixture::{
    DAY, Fixture, GPT, HOUR, MINUTE, SECOND, all, ask, at, hourly, in_pages_of, limits, rpm,
};
use crate::{Level, UsageQuery};

fn by_key(window: UsageWindow) -> UsageQuery {
    UsageQuery { window, ..hourly(Some("key"), None) }
}

/// All snapshots, read in pages of two.
async fn snapshots(f: &Fixture, query: &UsageQuery) -> Vec<UsageSnapshot> {
    all(async |page| f.store.usage(&UsageQuery { page, ..query.clone() }).await).await
}

/// Starts of the windows, and what was used in each: `rpm 5000, tpm 100000`.
async fn used(f: &Fixture, query: &UsageQuery) -> Vec<(TimeMs, String)> {
    let told = |snapshot: UsageSnapshot| {
        let mut counters = snapshot.counters;
        counters.retain(|(_, used)| used.0 != 0);
        counters.sort();
        let words: Vec<String> =
            counters.iter().map(|(name, used)| format!("{name} {}", used.0)).collect();
        (snapshot.start, words.join(", "))
    };
    snapshots(f, query).await.into_iter().map(told).collect()
}

/// What `key` used, hour by hour.
async fn hours(f: &Fixture) -> Vec<(TimeMs, String)> {
    used(f, &hourly(Some("key"), None)).await
}

/// How many hours after the beginning, and whose.
fn tell(snapshot: &UsageSnapshot) -> String {
    let UsageSnapshot { start, entity, resource, .. } = snapshot;
    format!("{}h {entity} {resource}", start.since(at(0)).div_euclid(HOUR))
}

fn told(windows: &[(i64, &str)]) -> Vec<(TimeMs, String)> {
    windows.iter().map(|(ms, words)| (at(*ms), (*words).to_owned())).collect()
}

/// The key takes from `rpm:60/min`, every time within its means.
async fn take(f: &Fixture, tokens: i64, ms: i64) {
    let answer = f.take(&rpm("key", tokens), at(ms)).await;
    let is_granted = answer.is_granted();
    assert!(is_granted, "{tokens} tokens at {ms} ms were meant to be granted, found {answer:?}");
}

pub(super) async fn a_take_counts_in_its_hour(f: Fixture) {
    assert_eq!(hours(&f).await, [], "nothing to begin with");
    take(&f, 2, 0).await;
    assert_eq!(hours(&f).await, told(&[(0, "rpm 2000")]), "the open hour is told");
    take(&f, 3, HOUR - 1).await;
    take(&f, 5, HOUR).await;
    take(&f, 7, 3 * HOUR + 20 * MINUTE).await;
    let expected = told(&[(0, "rpm 5000"), (HOUR, "rpm 5000"), (3 * HOUR, "rpm 7000")]);
    assert_eq!(hours(&f).await, expected, "hours without use are left out");
    let found = snapshots(&f, &hourly(Some("key"), None)).await;
    assert_eq!(found.iter().map(|snapshot| snapshot.events).collect::<Vec<_>>(), [2, 1, 1]);
    for snapshot in found {
        assert_eq!(snapshot.window, UsageWindow::Hourly);
        assert_eq!(snapshot.resource, *GPT);
    }
}

pub(super) async fn a_refusal_is_not_usage(f: Fixture) {
    take(&f, 60, 0).await;
    for _ in 0..3 {
        assert!(!f.take(&rpm("key", 60), at(SECOND)).await.is_granted(), "it is empty");
    }
    assert_eq!(hours(&f).await, told(&[(0, "rpm 60000")]));
}

pub(super) async fn adjustments_count_when_they_are_made(f: Fixture) {
    take(&f, 10, 0).await;
    f.adjust(&rpm("key", -4), at(SECOND)).await;
    assert_eq!(hours(&f).await, told(&[(0, "rpm 6000")]), "a refund lowers the hour");
    f.adjust(&rpm("key", 20), at(HOUR)).await;
    f.adjust(&rpm("key", -3), at(2 * HOUR)).await;
    let expected = told(&[(0, "rpm 6000"), (HOUR, "rpm 20000"), (2 * HOUR, "rpm -3000")]);
    assert_eq!(hours(&f).await, expected, "an hour with nothing but refunds is below zero");
    let found = used(&f, &by_key(UsageWindow::Daily)).await;
    assert_eq!(found, told(&[(-10 * HOUR, "rpm 23000")]), "and the day is right");
}

pub(super) async fn a_charge_on_a_missing_bucket_is_usage(f: Fixture) {
    f.adjust(&rpm("key", 5), at(HOUR)).await;
    assert_eq!(hours(&f).await, told(&[(HOUR, "rpm 5000")]));
}

pub(super) async fn days_and_months_are_sums_of_hours(f: Fixture) {
    // From 2100-01-01T10:00Z: two hours of that day, the next day, and the month after.
    for (tokens, ms) in [(1, 0), (2, 5 * HOUR), (4, 14 * HOUR), (8, 31 * DAY - 10 * HOUR)] {
        take(&f, tokens, ms).await;
    }
    let days =
        [(-10 * HOUR, "rpm 3000"), (14 * HOUR, "rpm 4000"), (31 * DAY - 10 * HOUR, "rpm 8000")];
    assert_eq!(used(&f, &by_key(UsageWindow::Daily)).await, told(&days));
    let months = [(-10 * HOUR, "rpm 7000"), (31 * DAY - 10 * HOUR, "rpm 8000")];
    assert_eq!(used(&f, &by_key(UsageWindow::Monthly)).await, told(&months));
    assert_eq!(hours(&f).await.len(), 4, "one hour each");
}

pub(super) async fn bounds_are_those_of_the_windows(f: Fixture) {
    for hour in 0..5 {
        take(&f, 1, hour * HOUR + 30 * MINUTE).await;
    }
    let hours = async |from: Option<i64>, until: Option<i64>| {
        let (from, until) = (from.map(at), until.map(at));
        let used = used(&f, &UsageQuery { from, until, ..hourly(Some("key"), None) }).await;
        let hour = |(start, _): &(TimeMs, String)| start.since(at(0)).div_euclid(HOUR);
        used.iter().map(hour).collect::<Vec<_>>()
    };
    assert_eq!(hours(None, None).await, [0, 1, 2, 3, 4]);
    assert_eq!(hours(Some(HOUR), Some(3 * HOUR)).await, [1, 2], "from is within, until is not");
    let found = hours(Some(HOUR + 1), None).await;
    assert_eq!(found, [2, 3, 4], "a window that began before is not asked for");
    let found = hours(None, Some(3 * HOUR + 1)).await;
    assert_eq!(found, [0, 1, 2, 3], "one that begins before the end is");
    assert_eq!(hours(Some(3 * HOUR), Some(3 * HOUR)).await, [0; 0], "an empty span");
}

pub(super) async fn several_limits_are_counted_side_by_side(f: Fixture) {
    let both = limits("tpm:1000/min rpm:60/min");
    f.take(&ask("key", &both, "rpm=1 tpm=900"), at(0)).await.granted(&[59_000, 100_000]);
    f.take(&ask("key", &both, "tpm=100"), at(0)).await.granted(&[0]);
    assert_eq!(hours(&f).await, told(&[(0, "rpm 1000, tpm 1000000")]));
    f.adjust(&ask("key", &both, "rpm=1 tpm=-300"), at(HOUR)).await;
    assert_eq!(hours(&f).await[1], told(&[(HOUR, "rpm 1000, tpm -300000")])[0]);
}

pub(super) async fn usage_is_told_by_entity_and_by_resource(f: Fixture) {
    for (id, name, tokens) in [("b", GPT, 1), ("a", GPT, 2), ("a", "gpt-5", 3), ("b", "gpt-5", 4)] {
        f.take(&rpm(id, tokens).on(name), at(0)).await;
        f.take(&rpm(id, tokens).on(name), at(HOUR)).await;
    }
    let found = async |id: Option<&str>, name: Option<&str>| {
        snapshots(&f, &hourly(id, name)).await.iter().map(tell).collect::<Vec<_>>()
    };
    let of_a = ["0h a gpt-4", "0h a gpt-5", "1h a gpt-4", "1h a gpt-5"];
    assert_eq!(found(Some("a"), None).await, of_a);
    let on_gpt_5 = ["0h a gpt-5", "0h b gpt-5", "1h a gpt-5", "1h b gpt-5"];
    assert_eq!(found(None, Some("gpt-5")).await, on_gpt_5);
    assert_eq!(found(Some("b"), Some(GPT)).await, ["0h b gpt-4", "1h b gpt-4"]);
    assert_eq!(found(Some("nobody"), None).await, [""; 0]);
}

pub(super) async fn usage_of_a_namespace_is_that_of_all_its_entities(f: Fixture) {
    let (inside, rpm) = (f.tenant("tenant").await, limits("rpm:60/min"));
    f.take(&ask("foreign", &rpm, "rpm=1"), at(0)).await;
    for (id, name, hour) in
        [("b", GPT, 0), ("a", GPT, 1), ("a", "gpt-5", 0), ("b", "gpt-5", 2), ("c", GPT, 1)]
    {
        inside.take(&ask(id, &rpm, "rpm=1").on(name), at(hour * HOUR)).await;
        inside.take(&ask(id, &rpm, "rpm=1").on(name), at(3 * HOUR)).await;
    }
    for size in [1, 2, 3, 100] {
        let query = |page| UsageQuery { until: Some(at(3 * HOUR)), page, ..hourly(None, None) };
        let listed = in_pages_of(size, async |page| inside.store.usage(&query(page)).await).await;
        let listed: Vec<_> = listed.iter().map(tell).collect();
        let expected = ["0h a gpt-5", "0h b gpt-4", "1h a gpt-4", "1h c gpt-4", "2h b gpt-5"];
        assert_eq!(listed, expected, "in pages of {size}");
    }
}

pub(super) async fn a_chain_is_usage_of_every_member(f: Fixture) {
    let members = [rpm("key", 3), rpm("org", 3)];
    f.chain(&members, at(0)).await.granted(&[57_000, 57_000]);
    for id in ["key", "org"] {
        let found = used(&f, &hourly(Some(id), None)).await;
        assert_eq!(found, told(&[(0, "rpm 3000")]), "usage of {id}");
    }
}

pub(super) async fn usage_outlives_its_bucket(f: Fixture) {
    take(&f, 5, 0).await;
    assert_eq!(f.sweep(at(HOUR)).await, 1, "the bucket is full again and forgotten");
    assert_eq!(hours(&f).await, told(&[(0, "rpm 5000")]), "after the sweep");
    take(&f, 2, HOUR).await;
    assert_eq!(f.sweep(at(HOUR + 10 * MINUTE)).await, 1, "forgotten once more");
    take(&f, 3, HOUR + 20 * MINUTE).await;
    let expected = told(&[(0, "rpm 5000"), (HOUR, "rpm 5000")]);
    assert_eq!(hours(&f).await, expected, "two buckets of one hour are one window");
}

pub(super) async fn usage_outlives_its_entity(f: Fixture) {
    f.create("key").await;
    take(&f, 5, 0).await;
    f.delete("key").await;
    assert_eq!(hours(&f).await, told(&[(0, "rpm 5000")]));
}

pub(super) async fn usage_outlives_a_change_of_limits(f: Fixture) {
    let old = f.stored(&Level::System, "rpm:60/min").await;
    f.take(&ask("key", &old, "rpm=5"), at(0)).await.granted(&[55_000]);
    let new = f.stored(&Level::System, "tpm:60/min").await;
    f.take(&ask("key", &new, "tpm=7"), at(10 * MINUTE)).await.granted(&[53_000]);
    f.take(&ask("key", &new, "tpm=1"), at(2 * HOUR)).await.granted(&[59_000]);
    f.take(&ask("key", &new, "tpm=1"), at(4 * HOUR)).await.granted(&[59_000]);
    let expected =
        told(&[(0, "rpm 5000, tpm 7000"), (2 * HOUR, "tpm 1000"), (4 * HOUR, "tpm 1000")]);
    assert_eq!(hours(&f).await, expected, "the limit that was removed is told, too");
}

pub(super) async fn a_reset_is_not_usage(f: Fixture) {
    take(&f, 5, 0).await;
    f.reset("key", None, at(SECOND)).await;
    assert_eq!(hours(&f).await, told(&[(0, "rpm 5000")]));
}

pub(super) async fn usage_stays_in_its_namespace(f: Fixture) {
    let tenant = f.tenant("tenant").await;
    take(&tenant, 5, 0).await;
    take(&tenant, 5, HOUR).await;
    assert_eq!(hours(&f).await, []);
    let query = hourly(None, Some(GPT));
    assert_eq!((used(&f, &query).await.len(), used(&tenant, &query).await.len()), (0, 2));
}
