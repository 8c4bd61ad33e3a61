//! Splitting, folding and repairing: tokens move, and none is made or lost.

use super::*;
use zae_limiter_dynamodb::table::number as attribute;
use zae_limiter_store::Entropy;

#[tokio::test]
async fn two_splitters_split_once() {
    let hot = Hot::new(&["rpm:1000/hour"]).await;
    let store = hot.process().await;
    Hot::granted(hot.ask(&store, &[1]).await);
    let (first, second) = (hot.upkeep(), hot.upkeep());
    let name = hot.name();
    let (first, second) = tokio::join!(first.split(&name, 0), second.split(&name, 0));
    let splits = u32::from(first.unwrap()) + u32::from(second.unwrap());
    // One after the other they may both split; at the same moment one of them loses.
    assert_eq!(hot.shards().len(), splits as usize + 1);
    assert_eq!(hot.sum("b_rpm_tk"), 999_000);
}

#[tokio::test]
async fn a_split_copies_names_stamps_and_halves_gaps_and_debt() {
    let hot = Hot::new(&["rpd:2000/day", "rpm:1000/hour"]).await;
    let store = hot.process().await;
    Hot::granted(hot.ask(&store, &[5, 0]).await);
    let mut item = hot.shard(0);
    for (name, value) in [("b_rpd_gp", 7_001), ("b_rpm_tk", -3_001), ("pgen", 3)] {
        item.insert(name.to_owned(), attribute(value));
    }
    item.insert("ret".to_owned(), aws_sdk_dynamodb_ss(&["rpd"]));
    hot.rig.table.insert(&item);
    hot.split_into(2).await;
    let (donor, child) = (hot.shard(0), hot.shard(1));
    for name in
        ["ca", "pgen", "b_rpd_cp", "b_rpm_ra", "b_rpm_rp", "ret", "rf", "entity_id", "cascade"]
    {
        assert_eq!(child.get(name), item.get(name), "{name}");
        assert_eq!(donor.get(name), item.get(name), "{name}");
    }
    assert_eq!((number(&donor, "b_rpd_gp"), number(&child, "b_rpd_gp")), (3_501, 3_500));
    assert_eq!((number(&donor, "b_rpm_tk"), number(&child, "b_rpm_tk")), (-1_500, -1_501));
    assert_eq!((number(&donor, "b_rpd_tc"), number(&child, "b_rpd_tc")), (5_000, 0));
    assert!(!child.contains_key("lw") && !child.contains_key("ttl"));
    assert!(!donor.contains_key("ttl") && donor.contains_key("tx"), "nothing expires now");
    assert_eq!(child["GSI3SK"].as_s().unwrap(), "BUCKET#gpt-4#1");
}

fn aws_sdk_dynamodb_ss(names: &[&str]) -> aws_sdk_dynamodb::types::AttributeValue {
    aws_sdk_dynamodb::types::AttributeValue::Ss(
        names.iter().map(|name| (*name).to_owned()).collect(),
    )
}

#[tokio::test]
async fn a_fold_gives_everything_back_to_one_item() {
    let hot = Hot::new(&["rpm:1000/hour"]).await;
    let store = hot.process().await;
    Hot::granted(hot.ask(&store, &[1]).await);
    assert!(hot.shard(0).contains_key("ttl"));
    hot.split_into(8).await;
    for _ in 0..100 {
        Hot::granted(hot.ask(&store, &[5]).await);
    }
    assert_eq!(hot.sum("b_rpm_tk"), 499_000);
    let split_era = number(&hot.shard(7), "er");
    assert!(hot.fold().await);
    assert_eq!(hot.shards().len(), 1);
    let item = hot.shard(0);
    // 601 s at 1 000 an hour are 166.9; each shard rounds down.
    assert!((665_930..=665_945).contains(&number(&item, "b_rpm_tk")), "{item:?}");
    assert_eq!(number(&item, "shard_count"), 1);
    assert!(number(&item, "er") > split_era, "the fold begins another era");
    assert!(item.contains_key("ttl") && !item.contains_key("tx"), "it expires again");
    for name in ["pin", "sp"] {
        assert!(!item.contains_key(name), "{name}");
    }
    // A process that still knows eight shards finds its way back.
    for _ in 0..20 {
        Hot::granted(hot.ask(&store, &[1]).await);
    }
    assert_eq!(hot.shards().len(), 1, "nobody makes a shard");
}

#[tokio::test]
async fn a_fold_of_a_busy_or_young_bucket_does_nothing() {
    let hot = Hot::new(&["rpm:1000/hour"]).await;
    let store = hot.process().await;
    Hot::granted(hot.ask(&store, &[1]).await);
    hot.split_into(4).await;
    assert!(!hot.upkeep().fold(&hot.name()).await.unwrap(), "it was split a moment ago");
    hot.advance(601_000);
    let mut item = hot.shard(2);
    item.insert("b_wcu_tk".to_owned(), attribute(-700_000_000));
    hot.rig.table.insert(&item);
    assert!(!hot.upkeep().fold(&hot.name()).await.unwrap(), "one of its shards is busy");
    assert_eq!(hot.shards().len(), 4);
}

#[tokio::test]
async fn a_fold_waits_until_all_shards_have_the_same_limits() {
    let hot = Hot::new(&["rpm:1000/hour"]).await;
    let store = hot.process().await;
    Hot::granted(hot.ask(&store, &[1]).await);
    hot.split_into(2).await;
    let mut item = hot.shard(1);
    item.insert("b_rpm_cp".to_owned(), attribute(500_000));
    hot.rig.table.insert(&item);
    assert!(!hot.fold().await);
    item.insert("b_rpm_cp".to_owned(), attribute(1_000_000));
    hot.rig.table.insert(&item);
    assert!(hot.fold().await);
}

#[tokio::test]
async fn a_refund_after_a_fold_goes_to_shard_zero() {
    let hot = Hot::new(&["rpm:1000/hour"]).await;
    let store = hot.process().await;
    Hot::granted(hot.ask(&store, &[500]).await);
    hot.split_into(8).await;
    let mut place = 0;
    while place == 0 {
        place = places(&Hot::granted(hot.ask(&store, &[10]).await))[0].0;
    }
    assert!(hot.fold().await);
    let before = hot.sum("b_rpm_tk");
    assert_eq!(hot.adjust(&store, place, -10).await.unwrap(), Adjusted::Applied);
    assert_eq!(hot.sum("b_rpm_tk"), before + 10_000);
    assert_eq!(hot.adjust(&store, place, 10).await.unwrap(), Adjusted::Applied, "a charge too");
    assert_eq!(hot.sum("b_rpm_tk"), before);
}

#[tokio::test]
async fn a_refund_after_a_split_is_cut_at_the_share() {
    let hot = Hot::new(&["rpm:1000/hour"]).await;
    let store = hot.process().await;
    Hot::granted(hot.ask(&store, &[100]).await);
    hot.split_into(4).await;
    assert_eq!(hot.adjust(&store, 0, -100).await.unwrap(), Adjusted::Applied);
    assert_eq!(number(&hot.shard(0), "b_rpm_tk"), 250_000, "its share, not more");
}

/// Somebody raised the count and made no shard: what is missing is made without tokens.
#[tokio::test]
async fn a_missing_shard_is_repaired_empty() {
    let hot = Hot::new(&["rpm:1000/hour"]).await;
    let store = hot.process().await;
    Hot::granted(hot.ask(&store, &[1]).await);
    hot.split_into(2).await;
    let mut item = hot.shard(0);
    item.insert("shard_count".to_owned(), attribute(4));
    hot.rig.table.insert(&item);
    let fresh = hot.process().await;
    for _ in 0..40 {
        Hot::granted(hot.ask(&fresh, &[1]).await);
    }
    assert_eq!(fresh.counters().repairs, 1);
    let shards = hot.shards();
    assert_eq!(shards.iter().map(shard_of).collect::<Vec<_>>(), [0, 1, 2]);
    // What shard 0 had beyond its new share is lost if a take of it came before the repair.
    let left = hot.sum("b_rpm_tk") + hot.sum("b_rpm_tc");
    assert!((750_000..=1_000_000).contains(&left), "{left}: nothing was made");
}

#[tokio::test]
async fn an_orphan_is_removed_by_the_next_split() {
    let hot = Hot::new(&["rpm:1000/hour"]).await;
    let store = hot.process().await;
    Hot::granted(hot.ask(&store, &[1]).await);
    hot.split_into(2).await;
    let orphan = hot.shard(1);
    assert!(hot.fold().await);
    let before = hot.sum("b_rpm_tk");
    hot.rig.table.insert(&orphan);
    assert!(hot.upkeep().split(&hot.name(), 0).await.unwrap());
    assert_eq!(hot.sum("b_rpm_tk"), before, "what the orphan had is gone");
}

/// Shards 0 and 2 have split once more than the others; a Python process would make shards 5 and 7.
#[tokio::test]
async fn levelling_splits_what_is_behind_shard_zero() {
    let hot = Hot::new(&["rpm:1000/hour"]).await;
    let store = hot.process().await;
    Hot::granted(hot.ask(&store, &[1]).await);
    hot.split_into(4).await;
    assert!(hot.upkeep().split(&hot.name(), 0).await.unwrap());
    assert_eq!(hot.upkeep().level(&hot.name()).await.unwrap(), 3);
    assert_eq!(hot.shards().len(), 8);
    assert!(hot.shards().iter().all(|item| number(item, "shard_count") == 8));
    assert_eq!(hot.sum("b_rpm_tk"), 999_000);
    assert_eq!(hot.upkeep().level(&hot.name()).await.unwrap(), 0);
}

/// A limit that is lowered while there are shards hides its gap on each of them, and the fold adds
/// the gaps up.
#[tokio::test]
async fn a_lowered_limit_hides_its_gap_over_split_and_fold() {
    let hot = Hot::new(&["rpm:1000/day"]).await;
    let store = hot.process().await;
    Hot::granted(hot.ask(&store, &[1_000]).await);
    hot.split_into(4).await;
    let lowered = limits_of(&["rpm:100/day"]);
    let lowered = LimitsInForce { source: LimitSource::Call, ..lowered };
    hot.advance(86_400_000 / 4);
    // Each shard hears of the lower limit by a take of its own.
    for _ in 0..60 {
        hot.ask_under(&store, &lowered, &[0]).await.unwrap();
    }
    let capacities: Vec<i64> = hot.shards().iter().map(|item| number(item, "b_rpm_cp")).collect();
    assert_eq!(capacities, [100_000; 4]);
    let gap = hot.sum("b_rpm_gp");
    assert!((650_000..=900_000).contains(&gap), "{gap}");
    assert!(hot.fold().await);
    let folded = number(&hot.shard(0), "b_rpm_gp");
    assert!(folded > 0 && folded <= gap, "{folded} of {gap}");
}

/// The early refill takes nothing and credits every limit of the shard.
#[tokio::test]
async fn an_early_refill_credits_every_limit() {
    let hot = Hot::new(&["rpm:1000/hour", "tpm:2000/hour"]).await;
    let store = hot.process().await;
    Hot::granted(hot.ask(&store, &[1_000, 2_000]).await);
    hot.advance(60_000);
    let item = hot.shard(0);
    let taken = [("rpm".to_owned(), 1_000_000)].into();
    assert!(hot.upkeep().refill(&hot.name(), 0, &item, &taken).await.unwrap());
    assert_eq!((hot.sum("b_rpm_tk"), hot.sum("b_tpm_tk")), (16_666, 33_333));
    assert_eq!(number(&hot.shard(0), "b_wcu_tc"), 1_000, "no take");
    let old = hot.upkeep().refill(&hot.name(), 0, &item, &taken).await.unwrap();
    assert!(!old, "an image of before loses");
    let idle = hot.upkeep().refill(&hot.name(), 0, &hot.shard(0), &[].into()).await.unwrap();
    assert!(!idle, "nothing was taken");
}

/// Whatever a shard has, owes or hides is there again after splits and a fold: to the millitoken.
#[tokio::test]
async fn the_fold_of_a_split_is_what_there_was() {
    let random = SeededEntropy::new(11);
    let below = |bound: u64| i64::try_from(random.next_u64() % bound).unwrap();
    for round in 0..60 {
        let hot = Hot::new(&["rpd:1000/day", "tpd:333/day"]).await;
        let store = hot.process().await;
        Hot::granted(hot.ask(&store, &[0, 0]).await);
        let mut item = hot.shard(0);
        let tokens = [below(1_500_001) - 500_000, below(500_001) - 167_000];
        let gaps = [below(3) * below(100_000), below(90_000)];
        for (name, value) in ["b_rpd_tk", "b_tpd_tk", "b_rpd_gp", "b_tpd_gp"]
            .into_iter()
            .zip([tokens[0], tokens[1], gaps[0], gaps[1]])
        {
            item.insert(name.to_owned(), attribute(value));
        }
        hot.rig.table.insert(&item);
        let seen =
            |hot: &Hot| ["b_rpd_tk", "b_tpd_tk", "b_rpd_gp", "b_tpd_gp"].map(|name| hot.sum(name));
        let before = seen(&hot);
        for _ in 0..1 + below(12) {
            let shards = hot.shards();
            let shard = &shards[usize::try_from(below(shards.len() as u64)).unwrap()];
            hot.upkeep().split(&hot.name(), shard_of(shard)).await.unwrap();
            assert_eq!(seen(&hot), before, "round {round}: a split moves");
        }
        assert!(hot.shards().len() > 1);
        let root = item["PK"].as_s().unwrap();
        assert!(store.fold_now(root, hot.now()).await.unwrap());
        assert_eq!(hot.shards().len(), 1);
        assert_eq!(seen(&hot), before, "round {round}: the fold");
    }
}

/// A shard that is swept alone would come back full.
#[tokio::test]
async fn nothing_expires_while_there_are_shards() {
    let hot = Hot::new(&["rpm:1000/hour"]).await;
    let store = hot.process().await;
    Hot::granted(hot.ask(&store, &[1]).await);
    assert!(hot.shard(0).contains_key("ttl"));
    hot.split_into(4).await;
    let a_month_later = |hot: &Hot| {
        hot.advance(30 * 86_400_000);
        hot.rig.table.sweep(hot.now().0 / 1_000);
        hot.shards().len()
    };
    assert_eq!(a_month_later(&hot), 4);
    for _ in 0..20 {
        Hot::granted(hot.ask(&store, &[3]).await);
        hot.advance(60_000);
    }
    assert_eq!(a_month_later(&hot), 4, "no take sets an expiry either");
    assert!(hot.fold().await);
    assert_eq!(a_month_later(&hot), 0, "one item expires as ever");
}
