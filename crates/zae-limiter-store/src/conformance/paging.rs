//! Listings that do not fit a page.

use std::fmt::Debug;

use super::fixture::{
    Fixture, GPT, HOUR, about, all, at, entity, entity_level, entity_on, hourly, in_pages_of,
    resource, resource_level, rpm,
};
use crate::{AuditQuery, Page, PageRequest, StoreError, UsageQuery};

const COUNT: usize = 7;

/// Reads a listing in pages of every size: always the same items, in the same order, `COUNT` of
/// them.
async fn same_in_every_size<T: Debug + PartialEq>(
    list: impl AsyncFn(PageRequest) -> Result<Page<T>, StoreError>,
) {
    let whole = in_pages_of(100, &list).await;
    assert_eq!(whole.len(), COUNT, "the whole listing");
    for size in 1..=8 {
        assert_eq!(in_pages_of(size, &list).await, whole, "in pages of {size}");
    }
}

fn ids() -> impl Iterator<Item = String> {
    (0..COUNT).map(|number| format!("e{number}"))
}

pub(super) async fn entities_and_children_are_paged(f: Fixture) {
    f.create("0").await;
    for id in ids().take(COUNT - 1) {
        f.try_create(&id, Some("0"), true).await.expect("an entity can be created");
    }
    same_in_every_size(async |page| f.store.entities(&page).await).await;
    f.try_create("one-more", Some("0"), true).await.expect("an entity can be created");
    let parent = entity("0");
    same_in_every_size(async |page| f.store.children(&parent, &page).await).await;
}

pub(super) async fn buckets_are_paged(f: Fixture) {
    for id in ids() {
        f.take(&rpm("key", 1).on(&format!("r-{id}")), at(0)).await.granted(&[59_000]);
        f.take(&rpm(&id, 2), at(0)).await.granted(&[58_000]);
    }
    let (key, gpt) = (entity("key"), resource(GPT));
    same_in_every_size(async |page| f.store.buckets(&key, &page).await).await;
    same_in_every_size(async |page| f.store.resource_buckets(&gpt, &page).await).await;
    let listed = all(async |page| f.store.resource_buckets(&gpt, &page).await).await;
    let found: Vec<String> = listed.iter().map(|view| view.entity.to_string()).collect();
    assert_eq!(found, ids().collect::<Vec<_>>(), "ordered by entity");
    for view in listed {
        assert_eq!((view.resource, view.state.limits()[0].balance.0), (gpt.clone(), 58_000));
    }
}

pub(super) async fn registries_are_paged(f: Fixture) {
    for id in ids() {
        f.set(&resource_level(&id), "rpm:1").await;
        f.set(&entity_level(&id), "rpm:1").await;
        f.set(&entity_on(&id, GPT), "rpm:1").await;
    }
    let gpt = resource(GPT);
    same_in_every_size(async |page| f.store.resources_with_defaults(&page).await).await;
    same_in_every_size(async |page| f.store.entities_with_limits(Some(&gpt), &page).await).await;
    same_in_every_size(async |page| f.store.entities_with_limits(None, &page).await).await;
    // Beside "all resources" and gpt-4.
    for id in ids().take(COUNT - 2) {
        f.set(&entity_on("key", &id), "rpm:1").await;
    }
    same_in_every_size(async |page| f.store.resources_with_entity_limits(&page).await).await;
}

pub(super) async fn namespaces_and_orphans_are_paged(f: Fixture) {
    for id in ids().take(COUNT - 1) {
        f.register(&id, &id).await;
    }
    same_in_every_size(async |page| f.store.namespaces(&page).await).await;
    let last = format!("e{}", COUNT - 1);
    f.register(&last, &last).await;
    for id in ids() {
        f.delete_namespace(&id, at(0)).await;
    }
    same_in_every_size(async |page| f.store.orphan_namespaces(&page).await).await;
    let left = all(async |page| f.store.namespaces(&page).await).await;
    assert_eq!(left.len(), 1, "only the default namespace is left");
}

pub(super) async fn audit_events_are_paged(f: Fixture) {
    for id in ids() {
        f.set(&entity_on("key", &id), "rpm:1").await;
        f.set(&entity_level("other"), "rpm:1").await;
    }
    let query = |page| AuditQuery { subject: about("key"), page };
    same_in_every_size(async |page| f.store.audit_events(&query(page)).await).await;
}

pub(super) async fn usage_is_paged(f: Fixture) {
    for hour in 0..4 {
        f.take(&rpm("key", 1), at(hour * HOUR)).await;
        f.take(&rpm("other", 1), at(hour * HOUR)).await;
    }
    let query = |page| UsageQuery { from: Some(at(1)), page, ..hourly(None, Some(GPT)) };
    f.take(&rpm("last", 1), at(4 * HOUR)).await;
    // Three hours of two, and the last.
    same_in_every_size(async |page| f.store.usage(&query(page)).await).await;
}

pub(super) async fn what_changes_between_two_pages_moves_nothing(f: Fixture) {
    for id in ["a", "b", "c", "d"] {
        f.create(id).await;
    }
    let first = f.store.entities(&PageRequest::first(2)).await.expect("a page");
    let names = |page: &Page<zae_limiter_core::Entity>| {
        page.items.iter().map(|entity| entity.id.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names(&first), ["a", "b"]);
    f.delete("b").await;
    f.create("aa").await;
    f.create("cc").await;
    let cursor = first.next.expect("there is more");
    let second = f.store.entities(&PageRequest::after(10, cursor)).await.expect("a page");
    assert_eq!(names(&second), ["c", "cc", "d"]);
    assert_eq!(second.next, None);
}

pub(super) async fn the_largest_page_is_bounded(f: Fixture) {
    for number in 0..30 {
        f.create(&format!("e{number}")).await;
    }
    let page = f.store.entities(&PageRequest::first(u32::MAX)).await.expect("a page");
    assert_eq!((page.items.len(), page.next), (30, None), "all of a short listing");
    let page = f.store.entities(&PageRequest::first(0)).await.expect("a page");
    assert!(
        page.items.len() <= 1 && page.next.is_some(),
        "a page of none is a page of one, found {page:?}"
    );
}
