//! Listings that do not fit a page.

use std::fmt::Debug;

use zae_limiter_core::{AuditSubject, UsageWindow};

use super::fixture::{
    Fixture, GPT, HOUR, all, ask, at, entity, limits, namespace, namespace_id, pages, resource,
};
use crate::{AuditQuery, Level, Page, PageRequest, StoreError, UsageQuery};

const COUNT: usize = 7;

/// Reads a listing in pages of every size: always the same items, in the same order, `COUNT` of
/// them.
async fn same_in_every_size<T: Debug + PartialEq>(
    list: impl AsyncFn(PageRequest) -> Result<Page<T>, StoreError>,
) {
    let whole: Vec<T> = pages(100, &list).await.into_iter().flatten().collect();
    assert_eq!(whole.len(), COUNT, "the whole listing");
    for size in 1..=8 {
        let found: Vec<T> = pages(size, &list).await.into_iter().flatten().collect();
        assert_eq!(found, whole, "in pages of {size}");
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
    let rpm = limits("rpm:60/min");
    for id in ids() {
        f.take(&ask("key", &rpm, &[("rpm", 1)]).on(&format!("r-{id}")), at(0))
            .await
            .granted(&[59_000]);
        f.take(&ask(&id, &rpm, &[("rpm", 2)]), at(0)).await.granted(&[58_000]);
    }
    let (key, gpt) = (entity("key"), resource(GPT));
    same_in_every_size(async |page| f.store.buckets(&key, &page).await).await;
    same_in_every_size(async |page| f.store.resource_buckets(&gpt, &page).await).await;
    let listed = all(async |page| f.store.resource_buckets(&gpt, &page).await).await;
    let found: Vec<String> = listed.iter().map(|view| view.entity.to_string()).collect();
    assert_eq!(found, ids().collect::<Vec<_>>(), "ordered by entity");
    assert!(
        listed
            .iter()
            .all(|view| view.resource == gpt && view.state.limits()[0].balance.0 == 58_000),
        "{listed:?}"
    );
}

pub(super) async fn registries_are_paged(f: Fixture) {
    for id in ids() {
        f.set(&Level::Resource(resource(&id)), "rpm:1").await;
        f.set(&Level::Entity(entity(&id)), "rpm:1").await;
        f.set(&Level::EntityResource(entity(&id), resource(GPT)), "rpm:1").await;
    }
    let gpt = resource(GPT);
    same_in_every_size(async |page| f.store.resources_with_defaults(&page).await).await;
    same_in_every_size(async |page| f.store.entities_with_limits(Some(&gpt), &page).await).await;
    same_in_every_size(async |page| f.store.entities_with_limits(None, &page).await).await;
    // Beside "all resources" and gpt-4.
    for id in ids().take(COUNT - 2) {
        f.set(&Level::EntityResource(entity("key"), resource(&id)), "rpm:1").await;
    }
    same_in_every_size(async |page| f.store.resources_with_entity_limits(&page).await).await;
}

pub(super) async fn namespaces_and_orphans_are_paged(f: Fixture) {
    for id in ids().take(COUNT - 1) {
        f.store
            .register_namespace(&namespace(&id), &namespace_id(&id), &f.change(at(0)))
            .await
            .expect("a namespace can be registered");
    }
    same_in_every_size(async |page| f.store.namespaces(&page).await).await;
    let last = format!("e{}", COUNT - 1);
    f.store
        .register_namespace(&namespace(&last), &namespace_id(&last), &f.change(at(0)))
        .await
        .expect("a namespace can be registered");
    for id in ids() {
        f.store
            .delete_namespace(&namespace(&id), &f.change(at(0)))
            .await
            .expect("a namespace can be deleted");
    }
    same_in_every_size(async |page| f.store.orphan_namespaces(&page).await).await;
    assert_eq!(
        all(async |page| f.store.namespaces(&page).await).await.len(),
        1,
        "only the default namespace is left"
    );
}

pub(super) async fn audit_events_are_paged(f: Fixture) {
    for id in ids() {
        f.set(&Level::EntityResource(entity("key"), resource(&id)), "rpm:1").await;
        f.set(&Level::Entity(entity("other")), "rpm:1").await;
    }
    let subject = AuditSubject::Entity(entity("key"));
    same_in_every_size(async |page| {
        f.store.audit_events(&AuditQuery { subject: subject.clone(), page }).await
    })
    .await;
}

pub(super) async fn usage_is_paged(f: Fixture) {
    let rpm = limits("rpm:60/min");
    for hour in 0..4 {
        f.take(&ask("key", &rpm, &[("rpm", 1)]), at(hour * HOUR)).await;
        f.take(&ask("other", &rpm, &[("rpm", 1)]), at(hour * HOUR)).await;
    }
    let query = |page: PageRequest| UsageQuery {
        entity: None,
        resource: Some(resource(GPT)),
        window: UsageWindow::Hourly,
        from: Some(at(1)),
        until: None,
        page,
    };
    f.take(&ask("last", &rpm, &[("rpm", 1)]), at(4 * HOUR)).await;
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
    f.store.delete_entity(&entity("b"), &f.change(at(0))).await.expect("an entity can be deleted");
    f.create("aa").await;
    f.create("cc").await;
    let cursor = first.next.expect("there is more");
    let second = f.store.entities(&PageRequest::after(10, cursor)).await.expect("a page");
    assert_eq!(
        (names(&second), second.next),
        (vec!["c".to_owned(), "cc".to_owned(), "d".to_owned()], None)
    );
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
