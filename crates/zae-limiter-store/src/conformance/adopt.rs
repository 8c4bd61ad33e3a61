//! Buckets and usage of another store, taken over: as they were, once, and never over what is
//! there. The other store is another namespace of the same one.

use zae_limiter_core::Flag::Disabled;
use zae_limiter_core::{AuditAction, AuditSubject, Milli, UsageSnapshot, UsageWindow};

use super::fixture::{
    DAY, Fixture, GPT, HOUR, MINUTE, SECOND, after, all, ask, at, entity, entity_level, fails,
    hourly, in_pages_of, resource, rpm,
};
use crate::StoreErrorKind::{Invalid, NotFound};
use crate::{
    ADOPTED_MAX, Adopted, Adoption, BucketView, COUNTED_BY_THE_HOUR, Level, PageRequest,
    StoreError, UsageQuery,
};

impl Fixture {
    /// Every bucket of the namespace.
    pub(super) async fn every_bucket(&self) -> Vec<BucketView> {
        all(async |page| self.store.namespace_buckets(&page).await).await
    }

    async fn try_adopt(
        &self,
        buckets: &[BucketView],
        usage: &[UsageSnapshot],
        ms: i64,
    ) -> Result<Vec<Adopted>, StoreError> {
        let details = [("reason".to_owned(), "a move".to_owned())];
        let adoption = Adoption { buckets, usage, details: &details };
        self.store.adopt(&adoption, &self.change(at(ms))).await
    }

    pub(super) async fn adopt(&self, buckets: &[BucketView], ms: i64) -> Vec<Adopted> {
        self.try_adopt(buckets, &[], ms).await.expect("buckets can be taken over")
    }

    async fn adopt_usage(&self, usage: &[UsageSnapshot]) -> Vec<Adopted> {
        self.try_adopt(&[], usage, 0).await.expect("usage can be taken over")
    }
}

pub(super) async fn balances_and_debts_go_on_where_they_were(f: Fixture) {
    let old = f.tenant("old").await;
    old.take(&rpm("key", 50), at(0)).await.granted(&[10_000]);
    old.take(&rpm("owing", 60), at(0)).await.granted(&[0]);
    old.adjust(&rpm("owing", 40), at(0)).await;
    assert_eq!(f.adopt(&old.every_bucket().await, 30 * SECOND).await, [Adopted::Made; 2]);
    assert_eq!(f.balances("key", at(30 * SECOND)).await, [40_000], "as of the last take");
    assert_eq!(f.balances("owing", at(30 * SECOND)).await, [-10_000]);
    let owing = f.take_fresh(&rpm("owing", 1), at(30 * SECOND)).await;
    owing.refused(&[(-10_000, after(11_000))]);
    f.take_fresh(&rpm("owing", 1), at(41 * SECOND)).await.granted(&[0]);
    f.take_fresh(&rpm("key", 40), at(30 * SECOND)).await.granted(&[0]);
    assert_eq!(old.balances("owing", at(30 * SECOND)).await, [-10_000], "the old ones stay");
}

pub(super) async fn an_adoption_that_is_repeated_changes_nothing(f: Fixture) {
    let old = f.tenant("old").await;
    old.take(&rpm("key", 20), at(0)).await.granted(&[40_000]);
    let buckets = old.every_bucket().await;
    assert_eq!(f.adopt(&buckets, 0).await, [Adopted::Made]);
    f.take_fresh(&rpm("key", 30), at(0)).await.granted(&[10_000]);
    assert_eq!(f.adopt(&buckets, 0).await, [Adopted::Kept]);
    assert_eq!(f.balances("key", at(0)).await, [10_000]);
}

pub(super) async fn an_adoption_that_was_cut_off_goes_on(f: Fixture) {
    let old = f.tenant("old").await;
    for id in ["a", "b", "c", "d"] {
        old.take(&rpm(id, 20), at(0)).await.granted(&[40_000]);
    }
    let buckets = old.every_bucket().await;
    assert_eq!(f.adopt(&buckets[..2], 0).await, [Adopted::Made; 2]);
    let answers = [Adopted::Kept, Adopted::Kept, Adopted::Made, Adopted::Made];
    assert_eq!(f.adopt(&buckets, 0).await, answers);
    assert_eq!(f.every_bucket().await.len(), 4);
}

pub(super) async fn a_bucket_that_is_there_stays_as_it_is(f: Fixture) {
    let old = f.tenant("old").await;
    old.take(&rpm("key", 1), at(0)).await.granted(&[59_000]);
    f.take(&rpm("key", 50), at(0)).await.granted(&[10_000]);
    assert_eq!(f.adopt(&old.every_bucket().await, 0).await, [Adopted::Kept]);
    assert_eq!(f.balances("key", at(0)).await, [10_000], "what was used here stays used");
}

/// Drained at 600 a minute there, 60 a minute here: nothing that the old rate would have brought.
pub(super) async fn the_limits_of_the_new_store_decide(f: Fixture) {
    let old = f.tenant("old").await;
    let level = Level::System;
    let there = old.stored(&level, "rpm:600/min").await;
    old.take(&ask("much", &there, "rpm=100"), at(0)).await.granted(&[500_000]);
    old.take(&ask("none", &there, "rpm=600"), at(0)).await.granted(&[0]);
    let here = f.stored(&level, "rpm:60/min").await;
    assert_eq!(f.adopt(&old.every_bucket().await, 0).await, [Adopted::Made; 2]);
    f.take_fresh(&ask("much", &here, "rpm=1"), at(SECOND)).await.granted(&[59_000]);
    let none = f.take_fresh(&ask("none", &here, "rpm=60"), at(SECOND)).await;
    none.refused(&[(10_000, after(50_000))]);
    f.take_fresh(&ask("none", &here, "rpm=11"), at(2 * SECOND)).await.granted(&[0]);
}

/// A full bucket of 60 is not one of 600.
pub(super) async fn a_larger_limit_in_the_new_store_mints_nothing(f: Fixture) {
    let old = f.tenant("old").await;
    let there = old.stored(&Level::System, "rpm:60/min").await;
    old.take(&ask("key", &there, "rpm=10"), at(0)).await.granted(&[50_000]);
    let here = f.stored(&Level::System, "rpm:600/min").await;
    assert_eq!(f.adopt(&old.every_bucket().await, 0).await, [Adopted::Made]);
    let taken = f.take_fresh(&ask("key", &here, "rpm=60"), at(SECOND)).await;
    taken.refused(&[(51_000, after(900))]);
}

pub(super) async fn a_retired_limit_is_still_remembered(f: Fixture) {
    let old = f.tenant("old").await;
    let both = old.stored(&Level::System, "rpm:60/min tpm:1000/day").await;
    old.take(&ask("key", &both, "rpm=1 tpm=1000"), at(0)).await.granted(&[59_000, 0]);
    let one = old.stored(&Level::System, "rpm:60/min").await;
    assert!(old.take(&ask("key", &one, "rpm=1"), at(SECOND)).await.is_granted());
    assert_eq!(f.adopt(&old.every_bucket().await, SECOND).await, [Adopted::Made]);
    let both = f.stored(&Level::System, "rpm:60/min tpm:1000/day").await;
    let taken = f.take_fresh(&ask("key", &both, "tpm=1000"), at(MINUTE)).await;
    let taken = taken.reports()[0];
    assert!(taken.balance < Milli::from_tokens(10), "drained a minute ago: {taken:?}");
}

/// 100 a day, drained, lowered to 1 a second, full of that after a second: adopted and set back, it
/// has not what it never earned.
pub(super) async fn a_lowered_limit_hides_its_gap_in_the_new_store(f: Fixture) {
    let old = f.tenant("old").await;
    let high = old.stored(&Level::System, "rpm:100/day").await;
    old.take(&ask("key", &high, "rpm=100"), at(0)).await.granted(&[0]);
    let low = old.stored(&Level::System, "rpm:1/sec").await;
    assert!(old.take(&ask("key", &low, "rpm=0"), at(SECOND)).await.is_granted());
    f.adopt(&old.every_bucket().await, SECOND).await;
    let (there, here) = (old.bucket("key").await, f.bucket("key").await);
    let name = "rpm".parse().expect("a name");
    let gap = |state: Option<zae_limiter_core::BucketState>| state.expect("a bucket").gap(&name);
    let (there, here) = (gap(there), gap(here));
    assert!(there > Milli::from_tokens(90) && there == here, "{there:?} there, {here:?} here");
}

pub(super) async fn flags_are_those_of_the_new_store(f: Fixture) {
    let old = f.tenant("old").await;
    for id in ["open", "shut"] {
        old.take(&rpm(id, 20), at(0)).await.granted(&[40_000]);
    }
    old.flag(&entity_level("open"), Some(Disabled)).await;
    f.flag(&entity_level("shut"), Some(Disabled)).await;
    assert_eq!(f.adopt(&old.every_bucket().await, 0).await, [Adopted::Made; 2]);
    f.take_fresh(&rpm("open", 1), at(0)).await.granted(&[39_000]);
    f.take_fresh(&rpm("shut", 1), at(0)).await.disabled(0);
    f.flag(&entity_level("shut"), None).await;
    f.take_fresh(&rpm("shut", 1), at(0)).await.granted(&[39_000]);
}

pub(super) async fn an_adoption_needs_a_namespace_that_is_there(f: Fixture) {
    let (old, new) = (f.tenant("old").await, f.tenant("new").await);
    old.take(&rpm("key", 20), at(0)).await.granted(&[40_000]);
    let (buckets, usage) = (old.every_bucket().await, [hour(0, 5)]);
    assert!(f.delete_namespace("new", at(0)).await, "an active namespace");
    // A store may believe for some seconds that a namespace is there; a change never does.
    fails(new.try_adopt(&buckets, &[], 0).await, NotFound);
    fails(new.try_adopt(&[], &usage, 0).await, NotFound);
    f.recover("id-new", at(0)).await.expect("a deleted namespace can be recovered");
    let new = f.inside("new").await;
    assert_eq!(new.every_bucket().await, [], "nothing was made");
    assert_eq!(new.adopt(&buckets, 0).await, [Adopted::Made]);
}

pub(super) async fn what_makes_no_sense_is_refused_whole(f: Fixture) {
    let old = f.tenant("old").await;
    old.take(&rpm("key", 20), at(0)).await.granted(&[40_000]);
    let mut buckets = old.every_bucket().await;
    buckets.push(buckets[0].clone());
    fails(f.try_adopt(&buckets, &[], 0).await, Invalid);
    fails(f.try_adopt(&[], &[hour(0, 5), hour(0, 6)], 0).await, Invalid);
    let odd = UsageSnapshot { start: at(1), ..hour(0, 5) };
    fails(f.try_adopt(&[], &[odd], 0).await, Invalid);
    let many: Vec<_> =
        (0..=i64::try_from(ADOPTED_MAX).expect("few")).map(|back| hour(back, 5)).collect();
    fails(f.try_adopt(&[], &many, 0).await, Invalid);
    assert_eq!(f.every_bucket().await, []);
    assert_eq!(f.adopt_usage(&many[1..]).await.len(), ADOPTED_MAX, "as many as may be");
}

pub(super) async fn an_adoption_is_recorded_with_what_it_made(f: Fixture) {
    let old = f.tenant("old").await;
    for id in ["a", "b"] {
        old.take(&rpm(id, 20), at(0)).await.granted(&[40_000]);
    }
    let buckets = old.every_bucket().await;
    f.adopt(&buckets[..1], 0).await;
    f.try_adopt(&buckets, &[hour(0, 5)], 0).await.expect("the rest can be taken over");
    f.try_adopt(&buckets, &[hour(0, 5)], 0).await.expect("nothing is left");
    let mut events = f.events(&AuditSubject::System).await;
    events.retain(|event| event.action == AuditAction::Adopted);
    let told = |event: &zae_limiter_core::AuditEvent| {
        let words = event.details.iter().map(|(name, value)| format!("{name}={value}"));
        let mut words: Vec<String> = words.collect();
        words.sort();
        words.join(" ")
    };
    let events: Vec<String> = events.iter().map(told).collect();
    let expected = ["buckets=1 reason=a move usage=1", "buckets=1 reason=a move usage=0"];
    assert_eq!(events, expected, "the newest first, and none for a call that made nothing");
}

/// What `key` used in the hour that began so many hours ago.
fn hour(hours_ago: i64, tokens: u64) -> UsageSnapshot {
    UsageSnapshot {
        entity: entity("key"),
        resource: resource(GPT),
        window: UsageWindow::Hourly,
        start: at(-hours_ago * HOUR),
        counters: vec![("rpm".parse().expect("a name"), Milli::from_tokens(tokens))],
        events: 3,
    }
}

async fn usage(f: &Fixture, window: UsageWindow) -> Vec<UsageSnapshot> {
    let query = UsageQuery { window, ..hourly(Some("key"), None) };
    all(async |page| f.store.usage(&UsageQuery { page, ..query.clone() }).await).await
}

pub(super) async fn usage_is_taken_over_once(f: Fixture) {
    let hours = [hour(2, 5), hour(1, 7)];
    assert_eq!(f.adopt_usage(&hours[..1]).await, [Adopted::Made]);
    assert_eq!(f.adopt_usage(&hours).await, [Adopted::Kept, Adopted::Made]);
    assert_eq!(usage(&f, UsageWindow::Hourly).await, hours);
    assert_eq!(f.adopt_usage(&[hour(1, 100)]).await, [Adopted::Kept]);
    assert_eq!(usage(&f, UsageWindow::Hourly).await, hours, "what is there stays");
}

/// A store that sums days from hours has no place for them, and needs none.
pub(super) async fn days_are_taken_over_where_they_are_kept(f: Fixture) {
    let start = UsageWindow::Daily.start_of(at(-DAY));
    let day = UsageSnapshot { window: UsageWindow::Daily, start, ..hour(0, 9) };
    let answers = f.adopt_usage(std::slice::from_ref(&day)).await;
    if f.store.capabilities().immediate_usage {
        assert_eq!(answers, [COUNTED_BY_THE_HOUR]);
        assert_eq!(usage(&f, UsageWindow::Daily).await, []);
        let hour = UsageSnapshot { window: UsageWindow::Hourly, ..day.clone() };
        f.adopt_usage(&[hour]).await;
    } else {
        assert_eq!(answers, [Adopted::Made]);
    }
    assert_eq!(usage(&f, UsageWindow::Daily).await, [day]);
}

pub(super) async fn takes_count_beside_usage_that_was_taken_over(f: Fixture) {
    f.adopt_usage(&[hour(0, 5)]).await;
    f.take(&rpm("key", 4), at(0)).await.granted(&[56_000]);
    let open = UsageSnapshot { events: 4, ..hour(0, 9) };
    assert_eq!(usage(&f, UsageWindow::Hourly).await, std::slice::from_ref(&open));
    f.take(&rpm("key", 1), at(HOUR)).await.granted(&[59_000]);
    let later = UsageSnapshot { events: 1, ..hour(-1, 1) };
    assert_eq!(usage(&f, UsageWindow::Hourly).await, [open, later]);
}

/// Its usage is in the history of the old store, and comes with that.
pub(super) async fn an_adopted_bucket_is_no_usage(f: Fixture) {
    let old = f.tenant("old").await;
    old.take(&rpm("key", 20), at(0)).await.granted(&[40_000]);
    f.adopt(&old.every_bucket().await, 0).await;
    assert_eq!(usage(&f, UsageWindow::Hourly).await, []);
    f.take(&rpm("key", 2), at(0)).await.granted(&[38_000]);
    assert_eq!(usage(&f, UsageWindow::Hourly).await, [UsageSnapshot { events: 1, ..hour(0, 2) }]);
}

pub(super) async fn every_bucket_of_a_namespace_is_listed_in_order(f: Fixture) {
    let other = f.tenant("other").await;
    other.take(&rpm("key", 1), at(0)).await.granted(&[59_000]);
    let names = [("a", GPT), ("a", "gpt-5"), ("a", "z/9"), ("a-b", GPT), ("a.b", GPT), ("b", GPT)];
    for (id, name) in names.into_iter().rev() {
        f.take(&rpm(id, 1).on(name), at(0)).await.granted(&[59_000]);
    }
    for size in [1, 2, 4, 100] {
        let listed = in_pages_of(size, async |page| f.store.namespace_buckets(&page).await).await;
        let found: Vec<(&str, &str)> =
            listed.iter().map(|view| (view.entity.as_str(), view.resource.as_str())).collect();
        assert_eq!(found, names, "in pages of {size}");
    }
    let first = f.store.namespace_buckets(&PageRequest::first(1)).await.expect("a page");
    assert_eq!(first.items[0].state.limits()[0].balance, Milli::from_tokens(59));
}
