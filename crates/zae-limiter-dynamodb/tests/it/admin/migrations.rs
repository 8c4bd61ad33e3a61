//! Rows of one limit each become configuration items of today.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use aws_sdk_dynamodb::types::AttributeValue;
use zae_limiter_core::{NamespaceId, NamespaceName};
use zae_limiter_dynamodb::table::{Item, Key, Put, Table, number, text};
use zae_limiter_dynamodb::{DynamoOptions, DynamoStore, Migrated, Operator, Progress};
use zae_limiter_store::{ConfigStore, Level, NamespaceStore};
use zae_limiter_testkit::engine::Engine;
use zae_limiter_testkit::table::{Asked, EvalOptions, Fate, Faults};

use super::{Meddled, Rig, id, keys, limits, on};

/// A row as clients before 0.8 wrote it.
fn row(pk: &str, sk: &str, limit: &str, burst: i64, amount: i64) -> Item {
    let mut item: Item = [
        ("PK", text(pk)),
        ("SK", text(sk)),
        ("limit_name", text(limit)),
        ("capacity", number(amount)),
        ("burst", number(burst)),
        ("refill_amount", number(amount)),
        ("refill_period_seconds", number(60)),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect();
    if let Some(entity) = pk.split_once("ENTITY#").map(|(_, entity)| entity) {
        item.insert("entity_id".to_owned(), text(entity));
    }
    item
}

/// Rows at all four levels of a namespace.
fn rows(namespace: &str) -> Vec<Item> {
    let at = |place: &str| format!("{namespace}/{place}");
    vec![
        row(&at("SYSTEM#"), "#LIMIT#rpm", "rpm", 60, 50),
        row(&at("SYSTEM#"), "#LIMIT#tpm", "tpm", 9_000, 8_000),
        row(&at("RESOURCE#gpt-4"), "#LIMIT#rpm", "rpm", 30, 30),
        row(&at("ENTITY#key"), "#LIMIT#gpt-4#rpm", "rpm", 5, 5),
        row(&at("ENTITY#key"), "#LIMIT#gpt-4#tpm", "tpm", 500, 400),
        row(&at("ENTITY#key"), "#LIMIT#_default_#rpm", "rpm", 7, 7),
        row(&at("ENTITY#other"), "#LIMIT#gpt-4#rpm", "rpm", 8, 8),
    ]
}

fn levels() -> [(Level, &'static str); 5] {
    [
        (Level::System, "rpm:50/min:60 tpm:8k/min:9k"),
        (Level::Resource("gpt-4".parse().unwrap()), "rpm:30/min"),
        (on("key", "gpt-4"), "rpm:5/min tpm:400/min:500"),
        (Level::Entity(id("key")), "rpm:7/min"),
        (on("other", "gpt-4"), "rpm:8/min"),
    ]
}

async fn stored(store: &DynamoStore, level: &Level) -> String {
    let Some(config) = store.level(level).await.unwrap() else { return String::new() };
    config.limits.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

#[track_caller]
fn same(found: &str, expected: &str) {
    let parsed = |text: &str| {
        let limits = text.split(' ').map(|limit| limit.parse::<zae_limiter_core::Limit>().unwrap());
        limits.collect::<Vec<_>>()
    };
    assert_eq!(parsed(found), parsed(expected));
}

/// A table on which nothing was migrated, with rows in `default` and in another namespace.
async fn old_table() -> (Rig, DynamoStore) {
    let rig = Rig::new(EvalOptions::new()).await;
    let store = rig.store().await;
    let (name, other): (NamespaceName, _) = ("team".parse().unwrap(), NamespaceId::from_entropy(9));
    store.register_namespace(&name, &other, &rig.change()).await.unwrap();
    let mut record = rig.table.get(&keys::version()).unwrap();
    record.remove("migrated");
    record.insert("schema_version".to_owned(), text("0.7.0"));
    rig.table.insert(&record);
    for item in rows(&rig.namespace).into_iter().chain(rows(other.as_str())) {
        rig.table.insert(&item);
    }
    let mut options = DynamoOptions::new();
    options.clock = Arc::new(rig.clock.clone());
    let team = DynamoStore::on_table(Arc::new(rig.table.clone()), options, &name).await.unwrap();
    (rig, team)
}

fn rows_left(rig: &Rig) -> usize {
    let is_row = |item: &&Item| item["SK"].as_s().unwrap().starts_with("#LIMIT#");
    rig.table.items().iter().filter(is_row).count()
}

async fn run(operator: &Operator) -> (Migrated, Vec<Progress>) {
    let mut told = Vec::new();
    let done = operator.migrate(|progress| told.push(progress.clone())).await.unwrap();
    (done, told)
}

#[tokio::test]
async fn rows_of_every_level_and_namespace_become_configuration() {
    let (rig, team) = old_table().await;
    let operator = rig.operator(rig.table.clone());
    let before = rig.table.items().len();
    let plan = operator.plan().await.unwrap();
    assert_eq!((plan.len(), plan.iter().map(|step| step.rows).sum::<usize>()), (10, 14));
    assert_eq!((rig.table.items().len(), rows_left(&rig)), (before, 14), "a plan changes nothing");

    let (done, told) = run(&operator).await;
    assert_eq!((done.made, done.superseded, done.left, done.complete), (10, 0, 0, true));
    assert_eq!(told.len(), 20, "each step begins and ends");
    assert_eq!(rows_left(&rig), 0);
    for store in [&rig.store().await, &team] {
        for (level, expected) in levels() {
            same(&stored(store, &level).await, expected);
        }
    }
    // Listed as those that were set: by resource, and by entity.
    let registry = rig.table.get(&keys::entity_config_resources(&rig.namespace)).unwrap();
    assert_eq!((&registry["gpt-4"], &registry["_default_"]), (&number(2), &number(1)));
    let record = rig.table.get(&keys::version()).unwrap();
    assert_eq!(record["schema_version"], text("0.10.0"));
    assert_eq!(operator.migrations().await.unwrap(), []);
    assert_eq!(operator.plan().await.unwrap(), []);
    assert!(run(&operator).await.0.complete);
}

/// Every request that writes is the last one once, lost or unheard; another run ends what was begun.
#[tokio::test]
async fn a_migration_that_is_cut_off_anywhere_is_finished_by_the_next() {
    for fate in [Fate::LostBefore, Fate::LostAfter] {
        let mut cut = 0;
        for at in 0..12 {
            let (rig, team) = old_table().await;
            let writes = AtomicU32::new(0);
            let faults = Faults::by(move |asked| {
                let is_write = matches!(asked, Asked::Transact(..) | Asked::Update(_));
                let n = if is_write { writes.fetch_add(1, Ordering::Relaxed) } else { 0 };
                match (is_write, n.cmp(&at)) {
                    (false, _) | (true, std::cmp::Ordering::Less) => Fate::Pass,
                    (true, std::cmp::Ordering::Equal) => fate,
                    (true, std::cmp::Ordering::Greater) => Fate::Unreachable,
                }
            });
            let dying = rig.operator(rig.table.client(5).with_faults(faults));
            cut += u32::from(dying.migrate(|_| {}).await.is_err());
            let (done, _) = run(&rig.operator(rig.table.clone())).await;
            assert!(done.complete, "{fate:?} {at}: {done:?}");
            assert_eq!(rows_left(&rig), 0, "{fate:?} {at}");
            for store in [&rig.store().await, &team] {
                for (level, expected) in levels() {
                    same(&stored(store, &level).await, expected);
                }
            }
            let registry = rig.table.get(&keys::entity_config_resources(&rig.namespace)).unwrap();
            assert_eq!(registry["gpt-4"], number(2), "{fate:?} {at}: counted once");
        }
        assert!(cut >= 9, "{fate:?}: {cut} runs were cut off");
    }
}

/// What an administrator stores while the migration runs is what counts.
#[tokio::test]
async fn a_change_beside_the_migration_is_not_lost() {
    let (rig, _) = old_table().await;
    let key = keys::resource_config_of(&rig.namespace, "gpt-4");
    let (table, config) = (rig.table.clone(), key.clone());
    let before = move |keys: &[Key]| {
        // As the Python package stores limits: whole, with a version of 1.
        if keys.contains(&config) && table.get(&config).is_none() {
            let mut item = row(&config.pk, &config.sk, "none", 1, 1);
            item.retain(|name, _| name == "PK" || name == "SK");
            for (name, value) in [("l_rpm_cp", 99), ("l_rpm_ra", 99), ("l_rpm_rp", 60)] {
                item.insert(name.to_owned(), number(value));
            }
            item.insert("config_version".to_owned(), number(1));
            table.insert(&item);
        }
    };
    let (done, _) = run(&rig.operator(Meddled { table: rig.table.client(5), before })).await;
    assert_eq!((done.made, done.superseded, done.complete), (9, 1, true));
    let level = Level::Resource("gpt-4".parse().unwrap());
    same(&stored(&rig.store().await, &level).await, "rpm:99/min");
    assert_eq!(rows_left(&rig), 0);
}

/// A level that only has a flag keeps it and gets its limits; one that has limits keeps those.
#[tokio::test]
async fn flags_and_newer_limits_stay() {
    let (rig, _) = old_table().await;
    let store = rig.store().await;
    store.set_limits(&on("key", "gpt-4"), &limits("rps:3/sec"), &rig.change()).await.unwrap();
    let flagged = keys::resource_config_of(&rig.namespace, "gpt-4");
    let mut stub = row(&flagged.pk, &flagged.sk, "none", 1, 1);
    stub.retain(|name, _| name == "PK" || name == "SK");
    stub.insert("disabled".to_owned(), AttributeValue::Bool(true));
    rig.table.insert(&stub);
    let (done, _) = run(&rig.operator(rig.table.clone())).await;
    assert_eq!((done.made, done.superseded, done.complete), (9, 1, true));
    let store = rig.store().await;
    same(&stored(&store, &on("key", "gpt-4")).await, "rps:3/sec");
    same(&stored(&store, &Level::Resource("gpt-4".parse().unwrap())).await, "rpm:30/min");
    assert_eq!(rig.table.get(&flagged).unwrap()["disabled"], AttributeValue::Bool(true));
}

#[tokio::test]
async fn rows_that_cannot_be_read_stay_and_are_told() {
    let (rig, _) = old_table().await;
    let mut damaged = row(&format!("{}/RESOURCE#embed", rig.namespace), "#LIMIT#rpm", "rpm", 5, 5);
    damaged.remove("refill_amount");
    rig.table.insert(&damaged);
    rig.table.insert(&row("default/SYSTEM#", "#LIMIT#rpm", "rpm", 5, 5));
    let operator = rig.operator(rig.table.clone());
    let (done, told) = run(&operator).await;
    assert_eq!((done.made, done.left, done.orphans, done.complete), (10, 1, 1, false));
    let problems: Vec<String> = told
        .into_iter()
        .filter_map(|progress| match progress {
            Progress::Left(step) => Some(format!("{} {}", step.partition, step.problem?)),
            _ => None,
        })
        .collect();
    assert!(problems[0].contains("/RESOURCE#embed refill_amount is missing"), "{problems:?}");
    assert!(
        problems.contains(&"default/SYSTEM# no namespace has this id".to_owned()),
        "{problems:?}"
    );
    assert_eq!((rows_left(&rig), operator.migrations().await.unwrap().len()), (2, 1));
    // Repaired, the rest is done; rows of nobody do not hold it up.
    damaged.insert("refill_amount".to_owned(), number(5));
    rig.table.insert(&damaged);
    let (done, _) = run(&operator).await;
    assert_eq!((done.made, done.orphans, done.complete), (1, 1, true));
}

/// The same on an engine, whose scan has pages and a filter.
#[tokio::test]
async fn rows_are_migrated_on_an_engine() {
    let engine = Engine::start();
    let store = engine.stack("old").create().await.unwrap();
    let table = engine.stack("old").table().await.unwrap();
    let namespace = store.namespace(&"default".parse().unwrap()).await.unwrap().unwrap();
    for item in rows(namespace.id.as_str()) {
        table.put(&Put { item, conditions: Vec::new() }).await.unwrap();
    }
    let read = table.batch_get(&[keys::version()], true).await.unwrap();
    let mut record = read.items.into_iter().next().unwrap();
    record.remove("migrated");
    table.put(&Put { item: record, conditions: Vec::new() }).await.unwrap();
    let operator = engine.stack("old").operator().await.unwrap();
    assert_eq!(operator.plan().await.unwrap().len(), 5);
    let (done, _) = run(&operator).await;
    assert_eq!((done.made, done.complete), (5, true));
    for (level, expected) in levels() {
        same(&stored(&store, &level).await, expected);
    }
    assert_eq!(operator.plan().await.unwrap(), []);
}
