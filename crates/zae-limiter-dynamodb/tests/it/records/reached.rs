//! How many buckets a flag has reached, wherever the pages of an index end.

use aws_sdk_dynamodb::types::AttributeValue;
use zae_limiter_core::{Flag, ResourceName};
use zae_limiter_dynamodb::table::{Item, Key, number, text};
use zae_limiter_store::{ConfigStore, Level};
use zae_limiter_testkit::table::EvalOptions;

use crate::evaluated::Rig;

/// Who has buckets, and of how many shards. The last name is one of another writer: an index lists
/// it before `a`, though it is the longer one.
const BUCKETS: [(&str, u32); 5] = [("a", 2), ("b", 3), ("c", 11), ("d", 1), ("a!", 3)];

fn resource() -> ResourceName {
    "gpt-4".parse().unwrap()
}

async fn sharded(page_max: usize) -> Rig {
    let rig = Rig::new(EvalOptions::new().page_max(page_max)).await;
    for (entity, shards) in BUCKETS {
        for shard in 0..shards {
            let namespace = &rig.namespace;
            let keys = [
                ("PK", format!("{namespace}/BUCKET#{entity}#gpt-4#{shard}")),
                ("SK", "#STATE".to_owned()),
                ("GSI2PK", format!("{namespace}/RESOURCE#gpt-4")),
                ("GSI2SK", format!("BUCKET#{entity}#{shard}")),
                ("GSI3PK", format!("{namespace}/ENTITY#{entity}")),
                ("GSI3SK", format!("BUCKET#gpt-4#{shard}")),
            ];
            let mut item: Item =
                keys.into_iter().map(|(name, value)| (name.to_owned(), text(value))).collect();
            item.insert("shard_count".to_owned(), number(i64::from(shards)));
            rig.table.insert(&item);
        }
    }
    rig
}

/// Shards that are disabled, by whose they are.
fn off(rig: &Rig, entity: &str) -> usize {
    let is_off = |item: &Item| item.get("disabled") == Some(&AttributeValue::Bool(true));
    let is_of = |item: &Item| item["PK"].as_s().unwrap().contains(&format!("/BUCKET#{entity}#"));
    rig.table.items().iter().filter(|item| is_of(item) && is_off(item)).count()
}

#[tokio::test]
async fn a_bucket_of_several_shards_is_one_wherever_a_page_ends() {
    for page_max in 1..=21 {
        let rig = sharded(page_max).await;
        let store = rig.store().await;
        let everybody = Level::Resource(resource());
        let reached =
            store.set_flag(&everybody, Some(Flag::Disabled), &rig.change()).await.unwrap();
        assert_eq!(reached, 5, "pages of {page_max}");
        for (entity, shards) in BUCKETS {
            assert_eq!(off(&rig, entity), shards as usize, "{entity}, pages of {page_max}");
        }
        for (entity, shards) in BUCKETS.into_iter().filter(|(entity, _)| *entity != "a!") {
            let own = Level::EntityResource(entity.parse().unwrap(), resource());
            assert_eq!(
                store.set_flag(&own, Some(Flag::Enabled), &rig.change()).await.unwrap(),
                1,
                "{entity}, pages of {page_max}"
            );
            assert_eq!(off(&rig, entity), 0, "{entity} has {shards} shards, pages of {page_max}");
        }
        assert_eq!(
            store.set_flag(&everybody, None, &rig.change()).await.unwrap(),
            5,
            "pages of {page_max}"
        );
    }
}

/// What an index still lists and is gone is not there; the shards that are left are one bucket.
#[tokio::test]
async fn a_shard_that_is_gone_is_not_counted() {
    for page_max in [1, 2, 3, 21] {
        let rig = sharded(page_max).await;
        let store = rig.store().await;
        let state = |pk: String| Key { pk, sk: "#STATE".into() };
        for (entity, shard) in [("d", 0), ("b", 0), ("a", 1)] {
            assert!(
                rig.table
                    .remove(&state(format!("{}/BUCKET#{entity}#gpt-4#{shard}", rig.namespace)))
            );
        }
        assert_eq!(
            store
                .set_flag(&Level::Resource(resource()), Some(Flag::Disabled), &rig.change())
                .await
                .unwrap(),
            4
        );
    }
}
