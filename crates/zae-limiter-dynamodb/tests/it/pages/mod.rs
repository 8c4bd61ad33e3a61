//! Listings on pages that end when the table likes: however small its pages are, whatever it
//! withholds, a listing is everything, once, in order.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod batches;
mod cursors;
mod usage;

use std::sync::Mutex;

use zae_limiter_core::{AuditSubject, Milli, Take};
use zae_limiter_dynamodb::DynamoStore;
use zae_limiter_dynamodb::table::{
    BatchPage, Item, Key, Put, Query, QueryPage, Table, TableError, Update, Write, number,
};
use zae_limiter_store::{
    AuditQuery, BoxFuture, BucketStore, Clock, ConfigStore, ConsumeOutcome, ConsumeRequest,
    HistoryStore, Level, LimitsInForce, MemberTake, NamespaceStore, NewEntity, Page, PageRequest,
    StoreError,
};
use zae_limiter_testkit::table::{EvalOptions, EvalTable, Fate, Faults, Gsi2, Operation};

use crate::evaluated::{Rig, limits};

/// The listings there are.
const LISTINGS: [&str; 12] = [
    "entities",
    "children",
    "entities with limits",
    "entities with limits for all resources",
    "resources with defaults",
    "resources with entity limits",
    "buckets",
    "resource buckets",
    "namespaces",
    "orphans",
    "audit",
    "audit log",
];

/// How many there are of everything.
const COUNT: usize = 12;

fn name(kind: &str, index: usize) -> String {
    format!("{kind}-{index:03}")
}

/// One page of a listing, by what its items are called.
async fn page(
    store: &DynamoStore,
    listing: &str,
    request: &PageRequest,
) -> Result<Page<String>, StoreError> {
    fn named<T>(page: Page<T>, name: impl Fn(&T) -> String) -> Page<String> {
        Page { items: page.items.iter().map(name).collect(), next: page.next }
    }
    let (parent, resource) = ("org".parse().unwrap(), "gpt-4".parse().unwrap());
    Ok(match listing {
        "entities" => named(store.entities(request).await?, |entity| entity.id.to_string()),
        "children" => {
            named(store.children(&parent, request).await?, |entity| entity.id.to_string())
        }
        "entities with limits" => {
            named(store.entities_with_limits(Some(&resource), request).await?, ToString::to_string)
        }
        "entities with limits for all resources" => {
            named(store.entities_with_limits(None, request).await?, ToString::to_string)
        }
        "resources with defaults" => {
            named(store.resources_with_defaults(request).await?, ToString::to_string)
        }
        "resources with entity limits" => {
            named(store.resources_with_entity_limits(request).await?, |resource| {
                format!("{resource:?}")
            })
        }
        "buckets" => named(store.buckets(&parent, request).await?, |bucket| {
            format!("{} {}", bucket.resource, balance(&bucket.state))
        }),
        "resource buckets" => named(store.resource_buckets(&resource, request).await?, |bucket| {
            format!("{} {}", bucket.entity, balance(&bucket.state))
        }),
        "namespaces" => {
            named(store.namespaces(request).await?, |namespace| namespace.name.to_string())
        }
        "orphans" => {
            named(store.orphan_namespaces(request).await?, |namespace| namespace.id.to_string())
        }
        "audit" => {
            let query = AuditQuery { subject: AuditSubject::Entity(parent), page: request.clone() };
            named(store.audit_events(&query).await?, |event| event.id.to_string())
        }
        "audit log" => named(store.audit_log(request).await?, |event| {
            format!("{} {}", event.id, event.subject)
        }),
        other => panic!("{other} is no listing"),
    })
}

fn balance(state: &zae_limiter_core::BucketState) -> i64 {
    state.limits()[0].balance.0
}

/// The whole listing, page by page. No page is larger than asked, and it comes to an end.
async fn walk(store: &DynamoStore, listing: &str, size: u32) -> Vec<String> {
    const PAGES_MAX: usize = 10 * COUNT;
    let mut request = PageRequest::first(size);
    let mut items = Vec::new();
    for _ in 0..PAGES_MAX {
        let page = page(store, listing, &request)
            .await
            .unwrap_or_else(|error| panic!("{listing}: {error}"));
        assert!(
            page.items.len() <= size as usize,
            "{listing}: {} on a page of {size}",
            page.items.len()
        );
        items.extend(page.items);
        match page.next {
            Some(cursor) => request = PageRequest::after(size, cursor),
            None => return items,
        }
    }
    panic!("{listing} does not end");
}

async fn take(rig: &Rig, store: &DynamoStore, entity: &str, resource: &str) {
    let in_force =
        LimitsInForce::new(limits("rpm:100/day").limits, zae_limiter_core::LimitSource::Builder);
    let (entity, resource) = (entity.parse().unwrap(), resource.parse().unwrap());
    let takes = [Take { limit: 0, amount: Milli(1000) }];
    let members = [MemberTake {
        entity: &entity,
        resource: &resource,
        limits: &in_force,
        takes: &takes,
        absent: &[],
    }];
    let outcome = store.consume(&ConsumeRequest::new(&members, rig.clock.now())).await.unwrap();
    assert!(matches!(outcome, ConsumeOutcome::Granted(_)), "{outcome:?}");
}

/// A table with some of everything, and things in between that are not listed.
async fn filled(options: EvalOptions) -> Rig {
    let rig = Rig::new(options).await;
    let store = rig.store().await;
    let new = |id: &str, parent: Option<&str>| {
        let (id, parent) = (id.parse().unwrap(), parent.map(|parent| parent.parse().unwrap()));
        NewEntity { id, name: "x".to_owned(), parent, cascade: false, metadata: Default::default() }
    };
    store.create_entity(&new("org", None), &rig.change()).await.unwrap();
    for index in 0..COUNT {
        let (key, resource) = (name("key", index), name("resource", index));
        store.create_entity(&new(&key, Some("org")), &rig.change()).await.unwrap();
        let on =
            |resource: &str| Level::EntityResource(key.parse().unwrap(), resource.parse().unwrap());
        for level in [
            Level::Entity(key.parse().unwrap()),
            on("gpt-4"),
            on(&resource),
            Level::Resource(resource.parse().unwrap()),
        ] {
            store.set_limits(&level, &limits("rpm:5"), &rig.change()).await.unwrap();
        }
        // Somebody nobody registered: records, but no entity.
        store
            .set_limits(
                &Level::Entity(name("kez", index).parse().unwrap()),
                &limits("rpm:5"),
                &rig.change(),
            )
            .await
            .unwrap();
        take(&rig, &store, &key, "gpt-4").await;
        take(&rig, &store, "org", &resource).await;
        for (kind, deleted) in [("team", false), ("gone", true)] {
            let team = name(kind, index);
            store
                .register_namespace(
                    &team.parse().unwrap(),
                    &format!("id-{team}").parse().unwrap(),
                    &rig.change(),
                )
                .await
                .unwrap();
            if deleted {
                store.delete_namespace(&team.parse().unwrap(), &rig.change()).await.unwrap();
            }
        }
        store
            .set_limits(&Level::Entity("org".parse().unwrap()), &limits("rpm:5"), &rig.change())
            .await
            .unwrap();
    }
    rig
}

/// What every listing is on a table without any pages.
async fn expected() -> Vec<Vec<String>> {
    let rig = filled(EvalOptions::new()).await;
    let store = rig.store().await;
    let mut listings = Vec::new();
    for listing in LISTINGS {
        let items = walk(&store, listing, 1000).await;
        assert!(items.len() >= COUNT, "{listing}: {items:?}");
        listings.push(items);
    }
    listings
}

fn withholding() -> Faults {
    let mut batches = 0_u32;
    Faults::by(move |asked| {
        if asked.operation() != Operation::BatchGet {
            return Fate::Pass;
        }
        batches += 1;
        [Fate::Withhold(2), Fate::Withhold(3), Fate::Pass][(batches % 3) as usize]
    })
}

/// Every page size of ours over every page size of the table, on an index that holds keys and on
/// one that holds items.
#[tokio::test]
async fn a_listing_is_everything_once_whatever_the_pages() {
    let expected = expected().await;
    for gsi2 in [Gsi2::KeysOnly, Gsi2::All] {
        for page_max in [1, 3, 1000] {
            let rig = filled(EvalOptions::new().gsi2(gsi2).page_max(page_max)).await;
            let store = rig.client(rig.table.client(1).with_faults(withholding()), |_| {}).await;
            for (listing, expected) in LISTINGS.iter().zip(&expected) {
                for size in [1, 5, 12, 100] {
                    let found = walk(&store, listing, size).await;
                    assert_eq!(
                        found, *expected,
                        "{listing}, {gsi2:?}, pages of {page_max}, asked for {size}"
                    );
                }
            }
        }
    }
}

/// A table that first answers every page with nothing but a key to go on from, as one that filters
/// would, and that many times: more often than a listing asks for what it finds.
struct Empty {
    table: EvalTable,
    /// What to go on from after an empty page, by the number it was given, and how many more empty
    /// ones there are.
    starts: Mutex<Vec<(Option<Item>, u32)>>,
}

const EMPTY: &str = "empty";
const EMPTY_PAGES: u32 = 40;

impl Empty {
    fn empty(&self, start: Option<Item>) -> QueryPage {
        let mut starts = self.starts.lock().unwrap();
        starts.push((start, EMPTY_PAGES - 1));
        let page = i64::try_from(starts.len()).unwrap() - 1;
        QueryPage { items: Vec::new(), last: Some([(EMPTY.to_owned(), number(page))].into()) }
    }
}

impl Table for Empty {
    fn query<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<QueryPage, TableError>> {
        Box::pin(async move {
            match query.start.as_ref().and_then(|start| start.get(EMPTY)) {
                None => Ok(self.empty(query.start.clone())),
                Some(page) => {
                    let page: usize = page.as_n().unwrap().parse().unwrap();
                    let start = {
                        let (start, left) = &mut self.starts.lock().unwrap()[page];
                        if let Some(less) = left.checked_sub(1) {
                            *left = less;
                            return Ok(QueryPage { items: Vec::new(), last: query.start.clone() });
                        }
                        start.clone()
                    };
                    self.table.query(&Query { start, ..query.clone() }).await
                }
            }
        })
    }

    fn update<'a>(&'a self, update: &'a Update) -> BoxFuture<'a, Result<Item, TableError>> {
        self.table.update(update)
    }

    fn put<'a>(&'a self, put: &'a Put) -> BoxFuture<'a, Result<(), TableError>> {
        self.table.put(put)
    }

    fn transact<'a>(
        &'a self,
        writes: &'a [Write],
        token: &'a str,
    ) -> BoxFuture<'a, Result<(), TableError>> {
        self.table.transact(writes, token)
    }

    fn batch_get<'a>(
        &'a self,
        keys: &'a [Key],
        consistent: bool,
    ) -> BoxFuture<'a, Result<BatchPage, TableError>> {
        self.table.batch_get(keys, consistent)
    }

    fn delete_batch<'a>(&'a self, keys: &'a [Key]) -> BoxFuture<'a, Result<Vec<Key>, TableError>> {
        self.table.delete_batch(keys)
    }
}

#[tokio::test]
async fn a_page_without_items_is_not_the_end() {
    let expected = expected().await;
    let rig = filled(EvalOptions::new().page_max(5)).await;
    let store =
        rig.client(Empty { table: rig.table.clone(), starts: Mutex::default() }, |_| {}).await;
    for (listing, expected) in LISTINGS.iter().zip(&expected) {
        for size in [1, 7, 100] {
            assert_eq!(walk(&store, listing, size).await, *expected, "{listing}, asked for {size}");
        }
    }
}
