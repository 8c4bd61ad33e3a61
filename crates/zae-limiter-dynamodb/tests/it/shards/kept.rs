//! Listings, flags and deletions of buckets with several shards.

use super::*;
use zae_limiter_store::{ConfigStore, HistoryStore, Level, NewEntity, PageRequest, ResetRequest};

#[tokio::test]
async fn listings_and_peeks_sum_the_shards() {
    let hot = Hot::new(&["rpm:1000/hour"]).await;
    let store = hot.process().await;
    Hot::granted(hot.ask(&store, &[1]).await);
    hot.split_into(8).await;
    for _ in 0..30 {
        Hot::granted(hot.ask(&store, &[3]).await);
    }
    let page = PageRequest::first(10);
    for views in [
        store.buckets(&hot.entity, &page).await.unwrap(),
        store.resource_buckets(&hot.resource, &page).await.unwrap(),
    ] {
        assert_eq!(views.items.len(), 1, "one bucket, not eight");
        let state = &views.items[0].state;
        let limits: Vec<_> = state.limits().iter().map(|limit| limit.name.as_str()).collect();
        assert_eq!(limits, ["rpm"], "the measure of writes is not shown");
        assert_eq!(state.limits()[0].params.capacity_milli, 1_000_000);
        assert_eq!(state.limits()[0].consumed, Milli(91_000));
        assert_eq!(state.limits()[0].balance, Milli(909_000));
    }
    let ConsumeOutcome::Granted(grant) = hot.peek(&hot.process().await, &[909]).await else {
        panic!("the tokens are there")
    };
    assert_eq!(grant.reports[0].balance, Milli(909_000));
    assert!(matches!(hot.peek(&store, &[910]).await, ConsumeOutcome::Refused(_)));
}

/// What the shards had taken that a fold removes is shown as consumed all the same, after any
/// number of splits and folds. The counter that use is counted by stays where it was.
#[tokio::test]
async fn a_fold_forgets_no_consumption() {
    let hot = Hot::new(&["rpm:1000000/hour", "tpm:1000000/hour"]).await;
    let store = hot.process().await;
    let mut taken = 0;
    for round in 1..=3 {
        for amount in [7, 11, 13] {
            Hot::granted(hot.ask(&store, &[amount, 1]).await);
            taken += amount;
        }
        hot.split_into(4).await;
        for _ in 0..40 {
            Hot::granted(hot.ask(&store, &[3, 0]).await);
            taken += 3;
        }
        let counted = number(&hot.shard(0), "b_rpm_tc");
        assert!(counted < i64::try_from(taken).unwrap() * 1_000, "others have taken, too");
        assert!(hot.fold().await, "round {round}");
        assert_eq!(hot.shards().len(), 1);
        assert_eq!(number(&hot.shard(0), "b_rpm_tc"), counted, "the stream tells of no use");
        let view = store.buckets(&hot.entity, &PageRequest::first(10)).await.unwrap();
        let consumed: Vec<Milli> =
            view.items[0].state.limits().iter().map(|limit| limit.consumed).collect();
        assert_eq!(consumed, [Milli(i64::try_from(taken).unwrap() * 1_000), Milli(round * 3_000)]);
    }
}

#[tokio::test]
async fn a_reset_fills_every_shard() {
    let hot = Hot::new(&["rpm:1000/hour"]).await;
    let store = hot.process().await;
    Hot::granted(hot.ask(&store, &[400]).await);
    hot.split_into(4).await;
    Hot::granted(hot.ask(&store, &[200]).await);
    let request = ResetRequest { entity: &hot.entity, resource: &hot.resource, only: None };
    let restored = store.reset(&request, &hot.rig.change()).await.unwrap().unwrap();
    assert_eq!(restored, [("rpm".parse().unwrap(), Milli(600_000))]);
    assert_eq!(hot.sum("b_rpm_tk"), 1_000_000);
    let events = store.audit_log(&PageRequest::first(5)).await.unwrap();
    let told = |event: &_| format!("{event:?}").contains("(\"shards\", \"4\")");
    assert!(events.items.iter().any(told), "{:?}", events.items);
}

/// The index lists shard 0 alone; the walk finds the others by their keys.
#[tokio::test]
async fn switching_off_reaches_shards_that_the_index_does_not_list() {
    let hot = Hot::on(EvalOptions::new().lag_writes(12), &["rpm:1000/hour"]).await;
    let store = hot.process().await;
    Hot::granted(hot.ask(&store, &[1]).await);
    for _ in 0..20 {
        Hot::granted(hot.ask(&store, &[1]).await);
    }
    hot.split_into(4).await;
    let level = Level::Resource(hot.resource.clone());
    store
        .set_flag(&level, Some(zae_limiter_core::Flag::Disabled), &hot.rig.change())
        .await
        .unwrap();
    for item in hot.shards() {
        assert!(item.contains_key("disabled"), "shard {}", shard_of(&item));
    }
    let outcome = hot.ask(&hot.process().await, &[1]).await.unwrap();
    assert!(matches!(outcome, ConsumeOutcome::Blocked { .. }), "{outcome:?}");
    assert!(!hot.upkeep().split(&hot.name(), 0).await.unwrap(), "nothing is split while disabled");
}

#[tokio::test]
async fn deleting_an_entity_leaves_no_shard_although_the_index_lags() {
    let hot = Hot::on(EvalOptions::new().lag_writes(5), &["rpm:1000/hour"]).await;
    let store = hot.process().await;
    let entity = NewEntity {
        id: hot.entity.clone(),
        name: "key".to_owned(),
        parent: None,
        cascade: false,
        metadata: Default::default(),
    };
    store.create_entity(&entity, &hot.rig.change()).await.unwrap();
    for _ in 0..10 {
        Hot::granted(hot.ask(&store, &[1]).await);
    }
    hot.split_into(4).await;
    store.delete_entity(&hot.entity, &hot.rig.change()).await.unwrap();
    assert_eq!(hot.shards().len(), 0);
}

/// A split pins that its donor is enabled, and the walk goes over the keys: whatever order their
/// writes come in, no shard is left enabled.
#[tokio::test]
async fn switching_off_reaches_a_child_made_meanwhile() {
    let mut split = 0;
    for seed in 0..40 {
        let hot = Hot::new(&["rpm:1000/hour"]).await;
        Hot::granted(hot.ask(&hot.process().await, &[1]).await);
        hot.split_into(2).await;
        let admin = hot.process_on(hot.crowded(1, seed), |_| {}).await;
        let (upkeep, name) = (hot.upkeep_on(hot.crowded(2, seed)), hot.name());
        let (level, change) = (Level::Resource(hot.resource.clone()), hot.rig.change());
        let splits = async {
            let mut done = 0;
            for shard in [1, 0, 1] {
                done += u32::from(upkeep.split(&name, shard).await.unwrap());
            }
            done
        };
        let flag = Some(zae_limiter_core::Flag::Disabled);
        let (reached, done) = tokio::join!(admin.set_flag(&level, flag, &change), splits);
        reached.unwrap();
        split += done;
        let shards = hot.shards();
        assert_eq!(shards.len(), 2 + done as usize);
        for item in shards {
            assert!(item.contains_key("disabled"), "seed {seed}, shard {}", shard_of(&item));
        }
    }
    assert!(split > 20, "{split} splits came between");
}

#[tokio::test]
async fn deleting_an_entity_while_its_bucket_splits_leaves_nothing() {
    let mut split = 0;
    for seed in 0..40 {
        let hot = Hot::on(EvalOptions::new().lag_writes(5), &["rpm:1000/hour"]).await;
        let store = hot.process().await;
        let entity = NewEntity {
            id: hot.entity.clone(),
            name: "key".to_owned(),
            parent: None,
            cascade: false,
            metadata: Default::default(),
        };
        store.create_entity(&entity, &hot.rig.change()).await.unwrap();
        for _ in 0..10 {
            Hot::granted(hot.ask(&store, &[1]).await);
        }
        let admin = hot.process_on(hot.crowded(1, seed), |_| {}).await;
        let (upkeep, name, change) =
            (hot.upkeep_on(hot.crowded(2, seed)), hot.name(), hot.rig.change());
        let splits = async {
            let mut done = 0;
            for shard in [0, 0, 1] {
                done += u32::from(upkeep.split(&name, shard).await.unwrap());
            }
            done
        };
        let (deleted, done) = tokio::join!(admin.delete_entity(&hot.entity, &change), splits);
        deleted.unwrap();
        split += done;
        assert_eq!(hot.shards().len(), 0, "seed {seed}");
    }
    assert!(split > 20, "{split} splits came between");
}

/// The measure of writes is on every shard, and in no answer.
#[tokio::test]
async fn wcu_is_invisible_everywhere() {
    let hot = Hot::new(&["rpm:1000/hour"]).await;
    let store = hot.process().await;
    Hot::granted(hot.ask(&store, &[1]).await);
    hot.split_into(4).await;
    let grant = Hot::granted(hot.ask(&store, &[600]).await);
    assert_eq!(grant.reports.len(), 1);
    let ConsumeOutcome::Granted(peek) = hot.peek(&store, &[1]).await else { panic!("a look") };
    assert_eq!(peek.reports.len(), 1);
    hot.advance(300);
    let refused = hot.ask(&store, &[900]).await.unwrap();
    let ConsumeOutcome::Refused(reports) = refused else { panic!("{refused:?}") };
    assert_eq!(reports.len(), 1);
    let page = PageRequest::first(10);
    for views in [
        store.buckets(&hot.entity, &page).await.unwrap(),
        store.resource_buckets(&hot.resource, &page).await.unwrap(),
    ] {
        assert_eq!(views.items[0].state.limits().len(), 1);
        assert!(!format!("{views:?}").contains("wcu"));
    }
    let request = ResetRequest { entity: &hot.entity, resource: &hot.resource, only: None };
    let restored = store.reset(&request, &hot.rig.change()).await.unwrap().unwrap();
    assert_eq!(restored.len(), 1);
    assert!(hot.shards().iter().all(|item| item.contains_key("b_wcu_tk")));
    assert!("wcu:1000/sec".parse::<Limit>().is_err(), "nobody can name it");
}
