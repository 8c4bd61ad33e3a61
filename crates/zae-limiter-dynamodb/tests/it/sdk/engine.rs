//! Every method on a real engine.

use std::sync::Arc;

use zae_limiter_dynamodb::sdk::{
    CallLog, Gsi2Projection, SdkTable, Stream, TableOptions, create_table, delete_table,
};
use zae_limiter_dynamodb::table::{
    Action, Cancellation, Check, Comparison, Condition, Delete, Index, Item, Key, Put, Query,
    QueryPage, Sort, Table, TableError, Update, Write, compare, number, text,
};
use zae_limiter_store::{Clock, StoreErrorKind, SystemClock};
use zae_limiter_testkit::engine::Engine;

use crate::sdk::builder;

/// A fresh engine with a table. The engine ends with its value.
async fn fresh(options: TableOptions) -> (Engine, SdkTable, Arc<CallLog>) {
    let engine = Engine::start();
    let log = Arc::new(CallLog::new());
    let table = builder(engine.endpoint()).observer(log.clone()).table().await.unwrap();
    create_table(&table, &options, &SystemClock::new()).await.unwrap();
    (engine, table, log)
}

fn key(pk: &str, sk: &'static str) -> Key {
    Key { pk: pk.to_owned(), sk: sk.into() }
}

fn item(pk: &str, sk: &str, more: &[(&str, aws_sdk_dynamodb::types::AttributeValue)]) -> Item {
    let keys = [("PK", text(pk)), ("SK", text(sk))];
    keys.into_iter()
        .chain(more.iter().cloned())
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

fn put(item: Item) -> Put {
    Put { item, conditions: vec![] }
}

fn bucket(tk: i64) -> Item {
    let resource = [("GSI2PK", text("n/RESOURCE#r")), ("GSI2SK", text("BUCKET#e#0"))];
    let entity = [("GSI3PK", text("n/ENTITY#e")), ("GSI3SK", text("BUCKET#r#0"))];
    let all = [
        ("GSI4PK", text("n")),
        ("GSI4SK", text("BUCKET#e#r#0")),
        ("b_rpm_tk", number(tk)),
        ("rf", number(1)),
    ];
    item("n/BUCKET#e#r#0", "#STATE", &[resource.to_vec(), entity.to_vec(), all.to_vec()].concat())
}

fn take(amount: i64) -> Update {
    Update {
        key: key("n/BUCKET#e#r#0", "#STATE"),
        actions: vec![
            Action::Add("b_rpm_tk".into(), -amount),
            Action::Add("b_rpm_tc".into(), amount),
        ],
        conditions: vec![
            Condition::Exists("PK".into()),
            compare("b_rpm_tk", Comparison::Ge, amount),
        ],
    }
}

#[tokio::test]
async fn an_update_hands_back_the_new_image_and_costs_one_unit() {
    let (_engine, table, log) = fresh(TableOptions::new()).await;
    table.put(&put(bucket(10))).await.unwrap();
    log.take();
    let image = table.update(&take(3)).await.unwrap();
    assert_eq!(
        (&image["b_rpm_tk"], &image["b_rpm_tc"], &image["rf"]),
        (&number(7), &number(3), &number(1))
    );
    let calls = log.take();
    assert_eq!(calls.len(), 1);
    assert_eq!(
        (calls[0].operation, calls[0].write_units, calls[0].read_units),
        ("UpdateItem", 1.0, 0.0)
    );
}

#[tokio::test]
async fn a_python_like_index_doubles_the_price_of_an_update() {
    let (_engine, table, log) = fresh(TableOptions::new().gsi2(Gsi2Projection::All)).await;
    table.put(&put(bucket(10))).await.unwrap();
    log.take();
    table.update(&take(3)).await.unwrap();
    assert!(log.write_units() > 1.0, "{:?}", log.take());
}

#[tokio::test]
async fn a_failed_update_hands_back_the_old_image() {
    let (_engine, table, _) = fresh(TableOptions::new()).await;
    match table.update(&take(3)).await.unwrap_err() {
        TableError::Condition(None) => {}
        other => panic!("{other:?}"),
    }
    table.put(&put(bucket(2))).await.unwrap();
    match table.update(&take(3)).await.unwrap_err() {
        TableError::Condition(Some(image)) => assert_eq!(image, bucket(2)),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn every_action_does_what_it_says() {
    let (_engine, table, _) = fresh(TableOptions::new()).await;
    let first = [
        Action::Set("a.b-c".into(), text("set")),
        Action::SetIfAbsent("kept".into(), number(1)),
        Action::Add("count".into(), 5),
        Action::AddMember("names".into(), "x".to_owned()),
        Action::AddMember("others".into(), "y".to_owned()),
        Action::Set("gone".into(), number(1)),
    ];
    let second = [
        Action::SetIfAbsent("kept".into(), number(2)),
        Action::Add("count".into(), -7),
        Action::DeleteMember("names".into(), "x".to_owned()),
        Action::AddMember("others".into(), "z".to_owned()),
        Action::Remove("gone".into()),
    ];
    let mut image = Item::new();
    for actions in [first.to_vec(), second.to_vec()] {
        image = table
            .update(&Update { key: key("p", "s"), actions, conditions: vec![] })
            .await
            .unwrap();
    }
    let mut others = image.remove("others").unwrap().as_ss().unwrap().clone();
    others.sort();
    assert_eq!(others, ["y", "z"]);
    assert_eq!(
        image,
        item("p", "s", &[("a.b-c", text("set")), ("kept", number(1)), ("count", number(-2))])
    );
}

#[tokio::test]
async fn every_condition_means_what_it_says() {
    let (_engine, table, _) = fresh(TableOptions::new()).await;
    table.put(&put(item("p", "s", &[("n", number(5)), ("t", text("x"))]))).await.unwrap();
    let n = |comparison, value| compare("n", comparison, value);
    let missing = |comparison| compare("missing", comparison, 1);
    let (never, always) = (n(Comparison::Lt, 0), n(Comparison::Gt, 0));
    for (condition, holds) in [
        (Condition::Exists("n".into()), true),
        (Condition::Exists("missing".into()), false),
        (Condition::Absent("missing".into()), true),
        (Condition::Absent("n".into()), false),
        (n(Comparison::Eq, 5), true),
        (n(Comparison::Ne, 5), false),
        (n(Comparison::Le, 5), true),
        (n(Comparison::Lt, 5), false),
        (n(Comparison::Ge, 5), true),
        (n(Comparison::Gt, 5), false),
        (missing(Comparison::Eq), false),
        (missing(Comparison::Ne), true),
        (missing(Comparison::Lt), false),
        (compare("t", Comparison::Gt, 0), false),
        (Condition::Any(vec![never.clone(), always.clone()]), true),
        (
            Condition::Any(vec![
                never.clone(),
                Condition::All(vec![always.clone(), never.clone()]),
            ]),
            false,
        ),
        (
            Condition::All(vec![
                always.clone(),
                Condition::Any(vec![never.clone(), always.clone()]),
            ]),
            true,
        ),
        (Condition::Any(vec![]), false),
        (Condition::All(vec![]), true),
    ] {
        let update = Update {
            key: key("p", "s"),
            actions: vec![Action::Set("seen".into(), number(1))],
            conditions: vec![condition.clone()],
        };
        let result = table.update(&update).await;
        assert!(
            matches!(
                (&result, holds),
                (Ok(_), true) | (Err(TableError::Condition(Some(_))), false)
            ),
            "{condition:?}: {result:?}"
        );
    }
}

#[tokio::test]
async fn a_put_that_lost_hands_back_the_winner() {
    let (_engine, table, _) = fresh(TableOptions::new()).await;
    let create = |tk| Put { item: bucket(tk), conditions: vec![Condition::Absent("PK".into())] };
    table.put(&create(1)).await.unwrap();
    match table.put(&create(2)).await.unwrap_err() {
        TableError::Condition(Some(image)) => assert_eq!(image, bucket(1)),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_transaction_applies_all_legs_once_or_none() {
    let (_engine, table, log) = fresh(TableOptions::new()).await;
    table.put(&put(bucket(10))).await.unwrap();
    table.put(&put(item("old", "s", &[]))).await.unwrap();
    table.put(&put(item("there", "s", &[]))).await.unwrap();
    let legs = |check: &str| {
        vec![
            Write::Update(take(3)),
            Write::Put(Put {
                item: item("new", "s", &[]),
                conditions: vec![Condition::Absent("PK".into())],
            }),
            Write::Delete(Delete {
                key: key("old", "s"),
                conditions: vec![Condition::Exists("PK".into())],
            }),
            Write::Check(Check {
                key: key(check, "s"),
                conditions: vec![Condition::Exists("PK".into())],
            }),
        ]
    };
    match table.transact(&legs("not there"), "token-0").await.unwrap_err() {
        TableError::Canceled(reasons) => {
            let innocent = Cancellation::Innocent;
            assert_eq!(
                reasons,
                [innocent.clone(), innocent.clone(), innocent, Cancellation::Condition(None)]
            );
        }
        other => panic!("{other:?}"),
    }
    log.take();
    table.transact(&legs("there"), "token-1").await.unwrap();
    assert!(log.write_units() > 0.0);
    // The same token again: the same answer, and nothing is taken twice.
    table.transact(&legs("there"), "token-1").await.unwrap();
    let page = table
        .batch_get(&[key("n/BUCKET#e#r#0", "#STATE"), key("old", "s"), key("new", "s")], true)
        .await
        .unwrap();
    let mut found: Vec<_> = page
        .items
        .iter()
        .map(|item| (item["PK"].as_s().unwrap().as_str(), item.get("b_rpm_tk")))
        .collect();
    found.sort_by_key(|(pk, _)| *pk);
    assert_eq!(found, [("n/BUCKET#e#r#0", Some(&number(7))), ("new", None)]);
    match table.transact(&legs("there"), "token-2").await.unwrap_err() {
        TableError::Canceled(reasons) => {
            assert!(
                matches!(&reasons[1], Cancellation::Condition(Some(image)) if image["PK"] == text("new")),
                "{reasons:?}"
            );
            assert_eq!(reasons[2], Cancellation::Condition(None));
        }
        other => panic!("{other:?}"),
    }
    // The same token for something else is a bug of ours.
    let error = table.transact(&legs("there")[..1], "token-1").await.unwrap_err();
    assert!(matches!(error, TableError::Rejected(_)), "{error:?}");
}

async fn pages(table: &SdkTable, mut query: Query) -> Vec<QueryPage> {
    let mut pages = Vec::new();
    for _ in 0..20 {
        let page = table.query(&query).await.unwrap();
        query.start = page.last.clone();
        pages.push(page);
        if query.start.is_none() {
            return pages;
        }
    }
    panic!("no end: {pages:?}");
}

fn sort_keys(pages: &[QueryPage]) -> Vec<&str> {
    pages
        .iter()
        .flat_map(|page| &page.items)
        .map(|item| item["SK"].as_s().unwrap().as_str())
        .collect()
}

fn all(partition: &str) -> Query {
    Query {
        index: None,
        partition: partition.to_owned(),
        sort: Sort::All,
        start: None,
        limit: None,
        ascending: true,
        consistent: true,
    }
}

#[tokio::test]
async fn a_query_pages_through_a_partition() {
    let (_engine, table, _) = fresh(TableOptions::new()).await;
    for sk in ["a1", "a2", "a3", "b1", "c1"] {
        table.put(&put(item("p", sk, &[]))).await.unwrap();
    }
    table.put(&put(item("q", "a1", &[]))).await.unwrap();
    let found = pages(&table, Query { limit: Some(2), ..all("p") }).await;
    assert!(found.len() >= 3);
    assert_eq!(sort_keys(&found), ["a1", "a2", "a3", "b1", "c1"]);
    let backwards = pages(&table, Query { limit: Some(2), ascending: false, ..all("p") }).await;
    assert_eq!(sort_keys(&backwards), ["c1", "b1", "a3", "a2", "a1"]);
    let prefix = pages(&table, Query { sort: Sort::Prefix("a".to_owned()), ..all("p") }).await;
    assert_eq!(sort_keys(&prefix), ["a1", "a2", "a3"]);
    let between =
        pages(&table, Query { sort: Sort::Between("a2".to_owned(), "b1".to_owned()), ..all("p") })
            .await;
    assert_eq!(sort_keys(&between), ["a2", "a3", "b1"]);
    assert_eq!(sort_keys(&pages(&table, all("empty")).await), [""; 0]);
}

#[tokio::test]
async fn the_indexes_keep_what_the_schema_says() {
    let (_engine, table, _) = fresh(TableOptions::new()).await;
    table.put(&put(bucket(10))).await.unwrap();
    let child =
        [("GSI1PK", text("n/PARENT#p")), ("GSI1SK", text("CHILD#e")), ("name", text("child"))];
    table.put(&put(item("n/ENTITY#e", "#META", &child))).await.unwrap();
    for (index, partition, full) in [
        (Index::Gsi1, "n/PARENT#p", Some("name")),
        (Index::Gsi2, "n/RESOURCE#r", None),
        (Index::Gsi3, "n/ENTITY#e", None),
        (Index::Gsi4, "n", None),
    ] {
        let found =
            pages(&table, Query { index: Some(index), consistent: false, ..all(partition) }).await;
        let items: Vec<&Item> = found.iter().flat_map(|page| &page.items).collect();
        assert_eq!(items.len(), 1, "{index:?}");
        assert!(items[0].contains_key("PK") && items[0].contains_key("SK"));
        assert_eq!(
            items[0].contains_key("name") || items[0].contains_key("b_rpm_tk"),
            full.is_some(),
            "{index:?}"
        );
    }
}

#[tokio::test]
async fn a_python_like_gsi2_keeps_everything() {
    let (_engine, table, _) =
        fresh(TableOptions::new().gsi2(Gsi2Projection::All).stream(Stream::On)).await;
    table.put(&put(bucket(10))).await.unwrap();
    let found = table
        .query(&Query { index: Some(Index::Gsi2), consistent: false, ..all("n/RESOURCE#r") })
        .await
        .unwrap();
    assert_eq!(found.items, [bucket(10)]);
    let description =
        table.client().describe_table().table_name("test").send().await.unwrap().table.unwrap();
    assert_eq!(
        description.stream_specification.unwrap().stream_view_type.unwrap().as_str(),
        "NEW_AND_OLD_IMAGES"
    );
}

#[tokio::test]
async fn batches_read_and_delete_up_to_their_bounds() {
    let (_engine, table, _) = fresh(TableOptions::new()).await;
    let keys: Vec<Key> = (0..100).map(|n| Key { pk: format!("p{n}"), sk: "s".into() }).collect();
    for key in &keys[..60] {
        table.put(&put(item(&key.pk, "s", &[]))).await.unwrap();
    }
    let page = table.batch_get(&keys, true).await.unwrap();
    assert_eq!((page.items.len(), page.unprocessed.len()), (60, 0));
    for chunk in keys.chunks(25) {
        assert_eq!(table.delete_batch(chunk).await.unwrap(), []);
    }
    assert_eq!(table.batch_get(&keys, true).await.unwrap().items, [] as [Item; 0]);
}

#[tokio::test]
async fn items_expire_by_ttl() {
    let (engine, table, _) = fresh(TableOptions::new()).await;
    table.put(&put(item("p", "early", &[("ttl", number(1_000))]))).await.unwrap();
    table.put(&put(item("p", "late", &[("ttl", number(3_000))]))).await.unwrap();
    engine.sweep_ttl_at(2_000);
    assert_eq!(sort_keys(&pages(&table, all("p")).await), ["late"]);
}

#[tokio::test]
async fn creating_and_deleting_twice_is_the_same_as_once() {
    let (_engine, table, _) = fresh(TableOptions::new()).await;
    let clock = SystemClock::new();
    table.put(&put(bucket(10))).await.unwrap();
    create_table(&table, &TableOptions::new(), &clock).await.unwrap();
    assert_eq!(
        table.batch_get(&[key("n/BUCKET#e#r#0", "#STATE")], true).await.unwrap().items.len(),
        1
    );
    assert!(delete_table(&table, &clock).await.unwrap());
    assert!(!delete_table(&table, &clock).await.unwrap());
    assert!(matches!(table.update(&take(1)).await.unwrap_err(), TableError::NoTable(_)));
}

#[tokio::test]
async fn a_table_of_somebody_else_is_left_alone() {
    use aws_sdk_dynamodb::types::{
        AttributeDefinition, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType,
    };
    let engine = Engine::start();
    let table = builder(engine.endpoint()).table().await.unwrap();
    let attribute = AttributeDefinition::builder()
        .attribute_name("id")
        .attribute_type(ScalarAttributeType::S)
        .build()
        .unwrap();
    let key =
        KeySchemaElement::builder().attribute_name("id").key_type(KeyType::Hash).build().unwrap();
    let request =
        table.client().create_table().table_name("test").billing_mode(BillingMode::PayPerRequest);
    request.attribute_definitions(attribute).key_schema(key).send().await.unwrap();
    let error = create_table(&table, &TableOptions::new(), &SystemClock::new()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Incompatible);
    assert!(error.message().contains("\"test\""), "{error}");
}

#[tokio::test]
async fn the_engines_clock_is_this_machines() {
    let (_engine, table, _) = fresh(TableOptions::new()).await;
    table.put(&put(bucket(10))).await.unwrap();
    let now = SystemClock::new().now();
    assert!(
        table.time().span().is_some_and(|span| span.correct(now) == now),
        "{:?} at {now:?}",
        table.time()
    );
}

#[tokio::test]
async fn a_store_is_created_once_and_connected_to_afterwards() {
    let engine = Engine::start();
    let missing = builder(engine.endpoint()).connect().await.unwrap_err();
    assert_eq!(missing.kind(), StoreErrorKind::NotFound, "{missing}");
    for _ in 0..2 {
        builder(engine.endpoint()).create().await.unwrap();
    }
    let log = Arc::new(CallLog::new());
    builder(engine.endpoint()).observer(log.clone()).connect().await.unwrap();
    assert_eq!(log.operations(), ["BatchGetItem"]);
    let unknown = builder(engine.endpoint()).namespace("nobody").connect().await.unwrap_err();
    assert_eq!(unknown.kind(), StoreErrorKind::NotFound, "{unknown}");
}

/// No credentials are given and none need be in the environment: a local engine just works.
#[tokio::test]
async fn a_local_engine_needs_no_credentials() {
    let engine = Engine::start();
    zae_limiter_dynamodb::DynamoStore::builder("test", "us-east-1")
        .endpoint_url(engine.endpoint())
        .create()
        .await
        .unwrap();
}
