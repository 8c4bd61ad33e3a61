//! The usage history over many pages, as both products write it.

use zae_limiter_core::{TimeMs, UsageWindow, parse_rfc3339};
use zae_limiter_dynamodb::DynamoStore;
use zae_limiter_dynamodb::table::{Item, number, text};
use zae_limiter_store::{Cursor, HistoryStore, Page, PageRequest, UsageQuery};
use zae_limiter_testkit::table::{EvalOptions, Gsi2};

use super::{Rig, withholding};

/// One record of an aggregator.
struct Record<'a> {
    entity: &'a str,
    resource: &'a str,
    /// The window as its key says it; the Python package writes a day as its first instant.
    key: &'a str,
    window: &'a str,
    tokens: i64,
    /// Ours count in millitokens beside the whole ones.
    milli: Option<i64>,
}

impl Rig {
    fn record(&self, record: &Record<'_>) {
        let Record { entity, resource, key, window, tokens, milli } = *record;
        let mut item: Item = [
            ("PK", text(format!("{}/ENTITY#{entity}", self.namespace))),
            ("SK", text(format!("#USAGE#{resource}#{key}"))),
            ("entity_id", text(entity)),
            ("resource", text(resource)),
            ("window", text(window)),
            ("tpm", number(tokens)),
            ("total_events", number(1)),
            ("GSI4PK", text(self.namespace.clone())),
            ("GSI4SK", text(format!("{}/ENTITY#{entity}", self.namespace))),
            ("GSI2PK", text(format!("{}/RESOURCE#{resource}", self.namespace))),
            ("GSI2SK", text(format!("USAGE#{key}#{entity}"))),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        item.extend(milli.map(|milli| ("tpm#m".to_owned(), number(milli))));
        self.table.insert(&item);
    }

    fn daily(&self, entity: &str, resource: &str, key: &str, tokens: i64) {
        self.record(&Record { entity, resource, key, window: "daily", tokens, milli: None });
    }
}

fn query(entity: Option<&str>, resource: Option<&str>, page: PageRequest) -> UsageQuery {
    let (entity, resource) = (
        entity.map(|entity| entity.parse().unwrap()),
        resource.map(|resource| resource.parse().unwrap()),
    );
    UsageQuery { entity, resource, window: UsageWindow::Daily, from: None, until: None, page }
}

/// Everything a query finds, page by page: day, entity, resource, millitokens.
async fn walk(
    store: &DynamoStore,
    entity: Option<&str>,
    resource: Option<&str>,
    size: u32,
) -> Vec<String> {
    const PAGES_MAX: usize = 1000;
    let mut page = PageRequest::first(size);
    let mut found = Vec::new();
    for _ in 0..PAGES_MAX {
        let answer = store.usage(&query(entity, resource, page)).await.unwrap();
        found.extend(answer.items.iter().map(|snapshot| {
            let day = UsageWindow::Daily.key(snapshot.start);
            format!("{day} {} {} {}", snapshot.entity, snapshot.resource, snapshot.counters[0].1.0)
        }));
        match answer.next {
            Some(cursor) => page = PageRequest::after(size, cursor),
            None => return found,
        }
    }
    panic!("the usage does not end");
}

/// Where the second page begins.
async fn walk_first(store: &DynamoStore) -> Cursor {
    store.usage(&query(None, Some("gpt"), PageRequest::first(1))).await.unwrap().next.unwrap()
}

#[tokio::test]
async fn both_products_count_in_one_window() {
    let rig = Rig::new(EvalOptions::new()).await;
    let record = |key, window, tokens, milli| {
        rig.record(&Record { entity: "a", resource: "gpt", key, window, tokens, milli })
    };
    record("2026-01-01T14:00:00Z", "hourly", 5, None);
    record("2026-01-01T00:00:00Z", "daily", 7, None);
    record("2026-01-01", "daily", 1, Some(1500));
    record("2026-01-03", "daily", 4, None);
    record("2026-01", "monthly", 9, None);
    rig.daily("b", "gpt", "2026-01-01", 2);
    rig.daily("a", "aaa", "2026-01-02", 3);
    let store = rig.store().await;
    let of_entity = ["2026-01-01 a gpt 8500", "2026-01-02 a aaa 3000", "2026-01-03 a gpt 4000"];
    let of_resource = ["2026-01-01 a gpt 8500", "2026-01-01 b gpt 2000", "2026-01-03 a gpt 4000"];
    let of_all = [
        "2026-01-01 a gpt 8500",
        "2026-01-01 b gpt 2000",
        "2026-01-02 a aaa 3000",
        "2026-01-03 a gpt 4000",
    ];
    let of_both = ["2026-01-01 a gpt 8500", "2026-01-03 a gpt 4000"];
    for size in [1, 2, 3, 100] {
        assert_eq!(walk(&store, Some("a"), None, size).await, of_entity);
        assert_eq!(walk(&store, None, Some("gpt"), size).await, of_resource);
        assert_eq!(walk(&store, Some("a"), Some("gpt"), size).await, of_both);
        assert_eq!(walk(&store, None, None, size).await, of_all);
    }
    let at = |text: &str| Some(parse_rfc3339(text).unwrap());
    for (from, until, windows) in [
        (at("2026-01-01"), at("2026-01-03"), 2),
        (at("2026-01-02"), None, 1),
        (Some(TimeMs(i64::MIN)), Some(TimeMs(i64::MAX)), 3),
        (at("2026-01-03"), at("2026-01-03T00:00:00.001Z"), 1),
        // Ranges without anything in them, which DynamoDB would not accept as such.
        (at("2026-01-03"), at("2026-01-03"), 0),
        (at("2026-01-03"), at("2026-01-01"), 0),
    ] {
        let of_resource =
            UsageQuery { from, until, ..query(None, Some("gpt"), PageRequest::default()) };
        assert_eq!(
            store.usage(&of_resource).await.unwrap().items.len(),
            windows,
            "{from:?} {until:?}"
        );
        let of_entity = UsageQuery { entity: Some("b".parse().unwrap()), ..of_resource };
        assert!(
            store.usage(&of_entity).await.unwrap().items.len() <= windows,
            "{from:?} {until:?}"
        );
    }
    // A cursor from behind the end.
    let after = walk_first(&store).await;
    let behind = UsageQuery {
        until: at("2026-01-01"),
        ..query(None, Some("gpt"), PageRequest::after(5, after))
    };
    assert_eq!(store.usage(&behind).await.unwrap(), Page::empty());
}

/// 9 days of 5 entities on 3 resources, on tables with pages of every size, by keys and by whole
/// items.
#[tokio::test]
async fn many_windows_over_many_pages() {
    let (entities, resources) = (["a", "b", "c", "d", "e"], ["chat", "chat-2", "embed"]);
    let mut expected = Vec::new();
    for day in 1..=9 {
        for entity in entities {
            for resource in resources {
                expected.push((format!("2026-04-{day:02}"), entity, resource, day * 1000));
            }
        }
    }
    let of = |wanted: &dyn Fn(&str, &str) -> bool| -> Vec<String> {
        let found = expected.iter().filter(|(_, entity, resource, _)| wanted(entity, resource));
        found
            .map(|(day, entity, resource, milli)| format!("{day} {entity} {resource} {milli}"))
            .collect()
    };
    for gsi2 in [Gsi2::KeysOnly, Gsi2::All] {
        for page_max in [1, 13, 1000] {
            let rig = Rig::new(EvalOptions::new().gsi2(gsi2).page_max(page_max)).await;
            for (day, entity, resource, milli) in &expected {
                rig.daily(entity, resource, day, milli / 1000);
                rig.record(&Record {
                    entity,
                    resource,
                    key: &format!("{day}T05:00:00Z"),
                    window: "hourly",
                    tokens: 1,
                    milli: None,
                });
            }
            let store = rig.client(rig.table.client(1).with_faults(withholding()), |_| {}).await;
            for size in [7, 1000] {
                let told =
                    format!("the namespace, {gsi2:?}, pages of {page_max}, asked for {size}");
                assert_eq!(walk(&store, None, None, size).await, of(&|_, _| true), "{told}");
            }
            for size in [1, 7, 1000] {
                let told = format!("{gsi2:?}, pages of {page_max}, asked for {size}");
                assert_eq!(
                    walk(&store, None, Some("chat"), size).await,
                    of(&|_, resource| resource == "chat"),
                    "{told}"
                );
                assert_eq!(
                    walk(&store, Some("c"), None, size).await,
                    of(&|entity, _| entity == "c"),
                    "{told}"
                );
                assert_eq!(
                    walk(&store, Some("c"), Some("chat"), size).await,
                    of(&|entity, resource| (entity, resource) == ("c", "chat")),
                    "{told}"
                );
            }
        }
    }
}
