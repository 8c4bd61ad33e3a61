//! Requests that are wrong: refused as such, and nothing is changed by them.

use zae_limiter_core::{CHAIN_MAX, LimitSource, Milli, Take, UsageWindow};

use super::fixture::{
    Ask, Fixture, about, ask, at, entity, fails, hourly, limit_list, limits_from, resource,
    resource_level, rpm, words,
};
use crate::StoreErrorKind::Invalid;
use crate::{
    AuditQuery, Cursor, Level, LimitsChange, OnUnavailable, Page, PageRequest, StoreError,
    UsageQuery,
};
use zae_limiter_core::Flag::{Disabled, Enabled};

pub(super) async fn a_negative_amount_is_invalid(f: Fixture) {
    // It would mint: this is not how to give back.
    let mut request = rpm("key", 60);
    f.take(&request, at(0)).await.granted(&[0]);
    request.takes[0].amount = Milli(-1);
    fails(f.try_take(&request, at(0)).await, Invalid);
    assert_eq!(f.balances("key", at(0)).await, [0], "nothing was minted");
}

pub(super) async fn a_limit_that_is_not_there_is_invalid(f: Fixture) {
    let mut request = rpm("key", 1);
    request.takes[0].limit = 1;
    fails(f.try_take(&request, at(0)).await, Invalid);
    assert_eq!(f.bucket("key").await, None, "nothing was taken");
}

pub(super) async fn a_limit_asked_for_twice_is_invalid(f: Fixture) {
    // Checked one by one both would pass, and together they take more than there is.
    let mut request = rpm("key", 40);
    request.takes.push(Take { limit: 0, amount: Milli(40_000) });
    fails(f.try_take(&request, at(0)).await, Invalid);
    assert_eq!(f.bucket("key").await, None, "nothing was taken");
}

pub(super) async fn a_bucket_twice_in_one_chain_is_invalid(f: Fixture) {
    let one = rpm("key", 40);
    fails(f.try_chain(&[one.clone(), one], at(0)).await, Invalid);
    assert_eq!(f.bucket("key").await, None, "nothing was taken");
}

pub(super) async fn a_chain_that_is_too_long_is_invalid(f: Fixture) {
    let members: Vec<Ask> = (0..=CHAIN_MAX).map(|member| rpm(&format!("e{member}"), 1)).collect();
    fails(f.try_chain(&members, at(0)).await, Invalid);
    assert_eq!(f.bucket("e0").await, None, "nothing was taken");
}

pub(super) async fn a_chain_of_nobody_is_invalid(f: Fixture) {
    fails(f.try_chain(&[], at(0)).await, Invalid);
}

pub(super) async fn more_limits_than_a_bucket_carries_are_invalid(f: Fixture) {
    let seventeen = words(1..=17, |number| format!("l{number}:5/min"));
    let too_many = ask("key", &limits_from(&seventeen, LimitSource::Call), "l1=1");
    fails(f.try_take(&too_many, at(0)).await, Invalid);
    assert_eq!(f.bucket("key").await, None, "no bucket was made");
}

pub(super) async fn limits_that_do_not_belong_together_are_not_stored(f: Fixture) {
    let seventeen = words(1..=17, |number| format!("l{number}:5/min"));
    for wrong in ["", "rpm:60/min rpm:30/min", &seventeen] {
        fails(f.try_set(&Level::System, wrong, None).await, Invalid);
    }
    assert_eq!(f.level(&Level::System).await, None, "nothing was stored");
}

pub(super) async fn the_system_can_not_be_disabled(f: Fixture) {
    for flag in [Some(Disabled), Some(Enabled), None] {
        fails(f.try_flag(&Level::System, flag, at(0)).await, Invalid);
    }
    f.take(&rpm("key", 1), at(0)).await.granted(&[59_000]);
}

pub(super) async fn an_outage_policy_belongs_to_the_system_level(f: Fixture) {
    let level = resource_level("gpt-4");
    let on_unavailable = Some(OnUnavailable::Allow);
    let change = LimitsChange { on_unavailable, ..limit_list("rpm:1").into() };
    fails(f.try_change(&level, &change, at(0)).await, Invalid);
    assert_eq!(f.level(&level).await, None, "nothing was stored");
}

pub(super) async fn a_wrong_peek_is_as_invalid_as_a_wrong_take(f: Fixture) {
    let mut wrong = rpm("key", 1);
    wrong.takes[0].limit = 7;
    fails(f.try_peek(&[wrong.clone()], at(0)).await, Invalid);
    wrong.takes[0] = Take { limit: 0, amount: Milli(-1) };
    fails(f.try_peek(&[wrong.clone()], at(0)).await, Invalid);
    fails(f.try_peek(&[wrong.clone(), wrong], at(0)).await, Invalid);
}

pub(super) async fn a_cursor_of_somebody_else_does_no_harm(f: Fixture) {
    #[track_caller]
    fn harmless<T>(result: Result<Page<T>, StoreError>, listing: &str, cursor: &str) {
        if let Err(error) = result {
            assert_eq!(error.kind(), Invalid, "{listing} after {cursor:?}: {error}");
        }
    }
    f.create("a").await;
    f.take(&rpm("a", 1), at(0)).await.granted(&[59_000]);
    let (a, gpt) = (entity("a"), resource("gpt-4"));
    let numbers = ["", "0", "-1", "99999999999999999999"];
    let texts = ["a' OR 1=1 --", "\0\u{1f980}", "a|b|c", "{}", "e30=", "nowhere"];
    for text in numbers.into_iter().chain(texts) {
        let page = PageRequest::after(10, Cursor(text.to_owned()));
        harmless(f.store.entities(&page).await, "entities", text);
        harmless(f.store.children(&a, &page).await, "children", text);
        harmless(f.store.buckets(&a, &page).await, "buckets", text);
        harmless(f.store.resource_buckets(&gpt, &page).await, "resource_buckets", text);
        harmless(f.store.resources_with_defaults(&page).await, "resources_with_defaults", text);
        let owners = f.store.entities_with_limits(Some(&gpt), &page).await;
        harmless(owners, "entities_with_limits", text);
        let owned = f.store.resources_with_entity_limits(&page).await;
        harmless(owned, "resources_with_entity_limits", text);
        harmless(f.store.namespaces(&page).await, "namespaces", text);
        harmless(f.store.orphan_namespaces(&page).await, "orphan_namespaces", text);
        let audit = AuditQuery { subject: about("a"), page: page.clone() };
        harmless(f.store.audit_events(&audit).await, "audit_events", text);
        let usage = UsageQuery { page, window: UsageWindow::Daily, ..hourly(Some("a"), None) };
        harmless(f.store.usage(&usage).await, "usage", text);
    }
}
