//! Batches at their bounds: 100 keys to read, 25 to delete, and tables that do not get to all of
//! them.

use zae_limiter_dynamodb::bucket::writers::Writer;
use zae_limiter_dynamodb::table::Write;
use zae_limiter_store::{
    BucketStore, ConfigStore, NamespaceStore, NewEntity, PageRequest, StoreErrorKind,
};
use zae_limiter_testkit::table::{EvalOptions, Fate, Faults, Operation, Request};

use super::{Rig, name, take, withholding};

/// How many keys the batches of an operation had.
fn batches(rig: &Rig, wanted: Operation) -> Vec<usize> {
    let size = |request: &Request| match request {
        Request::BatchGet(keys, _) => Some((Operation::BatchGet, keys.len())),
        Request::DeleteBatch(keys) => Some((Operation::DeleteBatch, keys.len())),
        _ => None,
    };
    let sizes = rig.table.take_journal().into_iter().filter_map(|call| size(&call.request));
    sizes.filter(|(operation, _)| *operation == wanted).map(|(_, size)| size).collect()
}

/// A table on which this many entities have a bucket for `gpt-4`, and `org` has one for as many
/// resources.
async fn with_buckets(count: usize) -> Rig {
    let rig = Rig::new(EvalOptions::new().journal()).await;
    let store = rig.store().await;
    for index in 0..count {
        take(&rig, &store, &name("key", index), "gpt-4").await;
        take(&rig, &store, "org", &name("resource", index)).await;
    }
    rig.table.take_journal();
    rig
}

#[tokio::test]
async fn reads_are_cut_into_hundreds() {
    for (count, expected) in
        [(99, vec![99]), (100, vec![100]), (101, vec![100, 1]), (201, vec![100, 100, 1])]
    {
        let rig = with_buckets(count).await;
        let store = rig.store().await;
        rig.table.take_journal();
        let found = store
            .resource_buckets(&"gpt-4".parse().unwrap(), &PageRequest::first(1000))
            .await
            .unwrap();
        assert_eq!((found.items.len(), found.next), (count, None));
        assert_eq!(batches(&rig, Operation::BatchGet), expected, "{count} buckets");
        assert!(
            found
                .items
                .iter()
                .enumerate()
                .all(|(index, bucket)| bucket.entity == name("key", index).as_str())
        );
    }
}

/// What the table withholds is asked for again, and only that.
#[tokio::test]
async fn a_withheld_key_is_asked_for_again() {
    for count in [99, 100, 101, 201] {
        let rig = with_buckets(count).await;
        let store = rig.client(rig.table.client(1).with_faults(withholding()), |_| {}).await;
        rig.table.take_journal();
        let found = store
            .resource_buckets(&"gpt-4".parse().unwrap(), &PageRequest::first(1000))
            .await
            .unwrap();
        assert_eq!((found.items.len(), found.next), (count, None));
        let sizes = batches(&rig, Operation::BatchGet);
        assert!(
            sizes.len() > count.div_ceil(100) && sizes.iter().all(|size| *size <= 100),
            "{sizes:?}"
        );
    }
}

/// A key that is never answered for is not a missing item.
#[tokio::test]
async fn what_is_withheld_for_good_is_an_error() {
    let rig = with_buckets(3).await;
    let mut reads = 0;
    let faults = Faults::by(move |asked| {
        reads += u32::from(asked.operation() == Operation::BatchGet);
        // The first read opens the table.
        if reads > 1 { Fate::Withhold(2) } else { Fate::Pass }
    });
    let store = rig.client(rig.table.client(1).with_faults(faults), |_| {}).await;
    let error = store
        .resource_buckets(&"gpt-4".parse().unwrap(), &PageRequest::first(10))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Busy, "{error}");
    assert!(error.message().contains("keeps back"), "{error}");
}

/// The buckets of an entity go in transactions that hold while its record is marked.
#[tokio::test]
async fn deletes_are_cut_into_twenty_fives() {
    for (count, expected) in
        [(24, vec![24]), (25, vec![25]), (26, vec![25, 1]), (51, vec![25, 25, 1])]
    {
        let rig = with_buckets(count).await;
        let store = rig.store().await;
        let new = NewEntity {
            id: "org".parse().unwrap(),
            name: "org".into(),
            parent: None,
            cascade: false,
            metadata: Default::default(),
        };
        store.create_entity(&new, &rig.change()).await.unwrap();
        rig.table.take_journal();
        let deleted = store.delete_entity(&new.id, &rig.change()).await.unwrap();
        assert_eq!(deleted.buckets, u64::try_from(count).unwrap());
        let is_bucket = |write: &Write| matches!(write, Write::Bucket(bucket) if bucket.writer() == Writer::Delete);
        let sizes = rig.table.take_journal().into_iter().filter_map(|call| match call.request {
            Request::Transact(writes, _) => {
                Some(writes.iter().filter(|write| is_bucket(write)).count())
            }
            _ => None,
        });
        assert_eq!(sizes.filter(|size| *size > 0).collect::<Vec<_>>(), expected, "{count} buckets");
        for index in 0..count {
            assert_eq!(rig.table.get(&rig.bucket("org", &name("resource", index))), None);
            assert!(rig.table.get(&rig.bucket(&name("key", index), "gpt-4")).is_some());
        }
    }
}

/// A purge deletes in batches; what the table does not get to is deleted with the next.
#[tokio::test]
async fn what_a_batch_leaves_is_deleted_again() {
    for withholds in [false, true] {
        let rig = with_buckets(30).await;
        let mut batch = 0;
        let faults = Faults::by(move |asked| {
            batch += u32::from(asked.operation() == Operation::DeleteBatch);
            let withheld =
                withholds && asked.operation() == Operation::DeleteBatch && batch % 3 != 0;
            if withheld { Fate::Withhold(4) } else { Fate::Pass }
        });
        let store = rig.client(rig.table.client(1).with_faults(faults), |_| {}).await;
        let id = rig.namespace.parse().unwrap();
        store.delete_namespace(&"default".parse().unwrap(), &rig.change()).await.unwrap();
        let records = rig
            .table
            .items()
            .iter()
            .filter(|item| item["PK"].as_s().unwrap().starts_with(&rig.namespace))
            .count();
        rig.table.take_journal();
        assert_eq!(
            store.purge_namespace(&id, &rig.change()).await.unwrap().records,
            u64::try_from(records).unwrap()
        );
        let sizes = batches(&rig, Operation::DeleteBatch);
        assert!(sizes.iter().all(|size| *size <= 25), "{sizes:?}");
        assert_eq!(
            sizes.iter().sum::<usize>() > records,
            withholds,
            "{records} records: {sizes:?}"
        );
        assert!(
            !rig.table
                .items()
                .iter()
                .any(|item| item["PK"].as_s().unwrap().starts_with(&rig.namespace))
        );
    }
}
