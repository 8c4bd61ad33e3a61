//! The version record: who may open a table, how what it asks for is raised, and how long history is
//! kept.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use zae_limiter_core::AuditSubject;
use zae_limiter_dynamodb::table::{Item, Key, Table, number, text};
use zae_limiter_dynamodb::{DynamoOptions, DynamoStore, Operator, Retention, Versions};
use zae_limiter_store::{Clock, ConfigStore, Level, StoreError, StoreErrorKind};
use zae_limiter_testkit::table::{Asked, EvalOptions, EvalTable, Fate, Faults};

use super::{Meddled, Rig, keys, limits, take};

impl Rig {
    fn version_record(&self) -> Item {
        self.table.get(&keys::version()).unwrap()
    }

    /// Changes the version record, past all rules; `None` takes an attribute away.
    fn rewrite(&self, attributes: &[(&str, Option<AttributeValue>)]) {
        self.table.insert(&rewritten(self.version_record(), attributes));
    }

    pub(super) fn operator(&self, table: impl Table) -> Operator {
        let mut options = DynamoOptions::new();
        options.clock = Arc::new(self.clock.clone());
        Operator::on_table(Arc::new(table), options)
    }

    async fn versions(&self) -> Versions {
        self.operator(self.table.clone()).versions().await.unwrap().unwrap()
    }

    async fn opened(&self) -> Result<DynamoStore, StoreError> {
        self.table.open(DynamoOptions::new()).await
    }

    /// The record as the Python package makes it: nothing of ours.
    fn made_by_python(&self, client_min: &str) {
        self.rewrite(&[
            ("min_reader", None),
            ("min_reader_release", None),
            ("migrated", None),
            ("client_min_version", Some(text(client_min))),
            ("lambda_version", Some(text("0.17.0"))),
            ("template_version", Some(text("12"))),
        ]);
    }
}

fn rewritten(mut record: Item, attributes: &[(&str, Option<AttributeValue>)]) -> Item {
    for (name, value) in attributes {
        match value {
            Some(value) => record.insert((*name).to_owned(), value.clone()),
            None => record.remove(*name),
        };
    }
    record
}

#[tokio::test]
async fn a_new_table_asks_for_readers_of_shards() {
    let rig = Rig::new(EvalOptions::new()).await;
    let versions = rig.versions().await;
    assert_eq!((versions.min_reader, versions.client_min.as_str()), (2, "0.17.0"));
    assert_eq!((versions.schema.as_str(), &versions.lambda), ("0.10.0", &None));
    assert_eq!(versions.min_reader_release.as_deref(), Some("0.1.0"));
    assert_eq!(
        rig.version_record()["lambda_version"],
        AttributeValue::Null(true),
        "nobody pushes code"
    );
    assert_eq!(versions.incompatibility(), None);

    // A fleet that is being upgraded writes none, so older clients may stay.
    let table = EvalTable::new();
    let mut options = DynamoOptions::new();
    options.shards_max = 1;
    table.initialise(&options).await.unwrap();
    let operator = Operator::on_table(Arc::new(table), options);
    let versions = operator.versions().await.unwrap().unwrap();
    assert_eq!((versions.min_reader, versions.client_min.as_str()), (1, "0.0.0"));
    operator.require_shard_readers().await.unwrap();
    assert_eq!(operator.versions().await.unwrap().unwrap().min_reader, 2);
}

#[tokio::test]
async fn a_table_that_asks_for_more_is_not_opened() {
    let rig = Rig::new(EvalOptions::new()).await;
    for (name, value, needed) in [
        ("schema_version", text("1.0.0"), "\"1.0.0\""),
        ("schema_version", text("next"), "\"next\""),
        ("client_min_version", text("0.18.0"), "0.18.0"),
        ("client_min_version", text("1.0.0rc1"), "1.0.0rc1"),
        ("min_reader", number(3), "level 3"),
        ("min_reader", text("many"), "level"),
    ] {
        let record = rig.version_record();
        rig.rewrite(&[(name, Some(value.clone())), ("min_reader_release", Some(text("0.4.0")))]);
        let error = rig.opened().await.expect_err(name);
        assert_eq!(error.kind(), StoreErrorKind::Incompatible, "{name} {value:?}");
        assert!(error.message().contains(needed), "{error}");
        if name == "min_reader" {
            assert!(error.message().contains("release 0.4.0"), "{error}");
        }
        let shared: Arc<dyn Table> = Arc::new(rig.table.clone());
        let error = DynamoStore::initialise(&shared, &DynamoOptions::new()).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Incompatible, "{name} {value:?}");
        rig.table.insert(&record);
    }
    // Versions are those of the Python package, and ours, 0.1.0, is none of them.
    for minimum in ["0.0.0", "0.9.9", "0.17.0", "0.17.0rc2", "0.17", "nonsense"] {
        rig.rewrite(&[("client_min_version", Some(text(minimum)))]);
        rig.opened().await.expect(minimum);
    }
}

#[tokio::test]
async fn the_first_split_asks_for_readers_of_shards() {
    let rig = Rig::new(EvalOptions::new()).await;
    rig.made_by_python("0.16.0");
    let store = rig.store().await;
    take(&rig, &store, "key", "chat").await;
    assert_eq!(rig.versions().await.min_reader, 1);
    assert!(store.split_now(&rig.bucket("key", "chat").pk, rig.clock.now()).await.unwrap());
    let versions = rig.versions().await;
    assert_eq!((versions.min_reader, versions.client_min.as_str()), (2, "0.17.0"));
    assert_eq!(versions.lambda.as_deref(), Some("0.17.0"), "what is not ours stays");
    assert_eq!(rig.version_record()["template_version"], text("12"));
    assert_eq!(rig.version_record()["GSI4PK"], text("_"));

    // From then on nothing is read for it.
    take(&rig, &store, "other", "chat").await;
    rig.rewrite(&[("min_reader", None)]);
    assert!(store.split_now(&rig.bucket("other", "chat").pk, rig.clock.now()).await.unwrap());
    assert_eq!(rig.versions().await.min_reader, 1, "the process knows");
}

#[tokio::test]
async fn what_is_asked_for_is_raised_under_a_condition_and_never_lowered() {
    let rig = Rig::new(EvalOptions::new()).await;
    rig.made_by_python("0.0.0");
    // Another writer is faster, as often as it takes.
    for (times, splits) in [(1, true), (2, true), (9, false)] {
        rig.made_by_python("0.0.0");
        let (other, writes) = (rig.table.clone(), Arc::new(AtomicU32::new(0)));
        let count = Arc::clone(&writes);
        let before = move |keys: &[Key]| {
            if keys == [keys::version()] {
                let n = count.fetch_add(1, Ordering::Relaxed);
                if n < times {
                    let minimum = Some(text(format!("0.1{n}.0")));
                    let record = other.get(&keys::version()).unwrap();
                    other.insert(&rewritten(record, &[("client_min_version", minimum)]));
                }
            }
        };
        let store = rig.client(Meddled { table: rig.table.client(7), before }, |_| {}).await;
        let entity = format!("key-{times}");
        take(&rig, &store, &entity, "chat").await;
        let pk = rig.bucket(&entity, "chat").pk;
        assert_eq!(store.split_now(&pk, rig.clock.now()).await.unwrap(), splits, "{times}");
        assert_eq!(rig.versions().await.min_reader, if splits { 2 } else { 1 });
        assert_eq!(writes.load(Ordering::Relaxed), 3.min(times + 1), "at most three attempts");
        if splits {
            assert_eq!(rig.versions().await.client_min, "0.17.0");
        }
    }
    // Nothing is lowered.
    rig.made_by_python("0.17.5");
    rig.operator(rig.table.clone()).require_shard_readers().await.unwrap();
    assert_eq!(rig.versions().await.client_min, "0.17.5");
}

/// A role that may only take cannot write the record: then no bucket is split.
#[tokio::test]
async fn without_the_record_no_bucket_is_split() {
    let rig = Rig::new(EvalOptions::new()).await;
    rig.made_by_python("0.0.0");
    let refused = Faults::by(|asked| match asked {
        Asked::Update(update) if update.key == keys::version() => Fate::NotApplied,
        _ => Fate::Pass,
    });
    let store = rig.client(rig.table.client(7).with_faults(refused), |_| {}).await;
    take(&rig, &store, "key", "chat").await;
    assert!(!store.split_now(&rig.bucket("key", "chat").pk, rig.clock.now()).await.unwrap());
    let bucket = rig.table.get(&rig.bucket("key", "chat")).unwrap();
    assert_eq!(bucket["shard_count"], number(1));
}

/// The days from now on that the last audit event of the system is kept.
async fn kept_days(rig: &Rig, store: &DynamoStore) -> i64 {
    rig.clock.advance(Duration::from_secs(1));
    store.set_limits(&Level::System, &limits("rpm:7"), &rig.change()).await.unwrap();
    let events = super::audit_of(store, AuditSubject::System).await;
    let newest = events.iter().map(|event| event.id).max().unwrap();
    let key = keys::audit(&rig.namespace, AuditSubject::System, newest);
    let ttl: i64 = rig.table.get(&key).unwrap()["ttl"].as_n().unwrap().parse().unwrap();
    (ttl - rig.clock.now().0 / 1_000 + 43_200) / 86_400
}

#[tokio::test]
async fn a_changed_retention_reaches_every_process_within_minutes() {
    let rig = Rig::new(EvalOptions::new()).await;
    let (store, operator) = (rig.store().await, rig.operator(rig.table.clone()));
    assert_eq!(kept_days(&rig, &store).await, 90);
    let days = |usage_days, audit_days| Retention { usage_days, audit_days };
    let stored = operator.set_retention(days(Some(400), Some(30))).await.unwrap().retention;
    assert_eq!(stored, days(Some(400), Some(30)));
    assert_eq!(
        operator.set_retention(days(None, Some(365))).await.unwrap().retention.usage_days,
        Some(400)
    );
    assert_eq!(kept_days(&rig, &store).await, 90, "not looked at yet");
    assert_eq!(kept_days(&rig, &rig.store().await).await, 365, "one that was opened since");
    rig.clock.advance(Duration::from_secs(300));
    assert_eq!(kept_days(&rig, &store).await, 365);
    for wrong in [days(Some(0), None), days(None, Some(36_501))] {
        let error = operator.set_retention(wrong).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Invalid);
    }
    let empty = rig.operator(EvalTable::new()).set_retention(days(Some(1), None)).await;
    assert_eq!(empty.unwrap_err().kind(), StoreErrorKind::NotFound, "a record is not made of it");
}

#[tokio::test]
async fn a_function_of_ours_is_none_of_the_python_package() {
    let rig = Rig::new(EvalOptions::new()).await;
    rig.made_by_python("0.17.0");
    let operator = rig.operator(rig.table.clone());
    let versions = operator.stamp_function(Some("0.1.0")).await.unwrap();
    assert_eq!((versions.function.as_deref(), versions.lambda), (Some("0.1.0"), None));
    assert_eq!(rig.version_record()["lambda_version"], AttributeValue::Null(true));
    assert_eq!(rig.version_record()["template_version"], text("12"));
    assert_eq!(operator.stamp_function(None).await.unwrap().function, None);
}
