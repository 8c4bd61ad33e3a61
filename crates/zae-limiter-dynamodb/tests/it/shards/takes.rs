//! What a bucket of several shards grants and refuses.

use super::*;
use zae_limiter_core::Wait;
use zae_limiter_dynamodb::bucket::write::Shape;
use zae_limiter_dynamodb::table::{Write, number as attribute};
use zae_limiter_testkit::table::{Asked, Fate, Faults};

/// Four processes take while the bucket is split five times. The Python package makes new shards
/// full: at 32 shards a bucket of 1 000 grants several thousand.
#[tokio::test]
async fn one_to_thirty_two_under_load_admits_capacity_and_refill() {
    let hot = Hot::new(&["rpm:1000/hour"]).await;
    Hot::granted(hot.ask(&hot.process().await, &[1]).await);
    let began = hot.now();
    let worker = async |client| {
        let store = hot.process_on(hot.crowded(client, 1), |_| {}).await;
        hot.drain(&store).await.0
    };
    let splitter = async {
        let upkeep = hot.upkeep_on(hot.crowded(5, 1));
        while let Some(item) = hot.shards().iter().find(|item| number(item, "shard_count") < 32) {
            upkeep.split(&hot.name(), shard_of(item)).await.unwrap();
        }
        hot.sum("b_rpm_tk")
    };
    let (left, one, two, three, four) =
        tokio::join!(splitter, worker(1), worker(2), worker(3), worker(4));
    assert_eq!(hot.shards().len(), 32);
    assert!(left > 100_000, "{left}: the load went on until the last split");
    let granted = i64::try_from(1 + one + two + three + four).unwrap();
    let refilled_milli = hot.now().since(began) * 1_000_000 / 3_600_000;
    assert!(granted >= 1_000, "{granted}: every token is found");
    assert!(granted * 1_000 <= 1_000_000 + refilled_milli, "{granted}, {refilled_milli} refilled");
}

/// A limit of ten beside one of 100 000: at 32 shards a share would be a third of a token. The
/// Python package never grants an image again.
#[tokio::test]
async fn a_pinned_limit_admits_exactly_its_ten() {
    let hot = Hot::new(&["img:10/min", "rpm:100000/min"]).await;
    let processes = [hot.process().await, hot.process().await];
    Hot::granted(hot.ask(&processes[0], &[0, 1]).await);
    hot.split_into(32).await;
    for item in hot.shards() {
        assert_eq!(item["pin"].as_s().unwrap(), "img");
    }
    assert_eq!(number(&hot.shard(0), "b_img_tk"), 10_000, "all of it is on shard 0");
    for minute in 0..3 {
        let mut granted = 0;
        for attempt in 0..40 {
            match hot.ask(&processes[attempt % 2], &[1, 1]).await.unwrap() {
                ConsumeOutcome::Granted(grant) => {
                    assert_eq!(places(&grant), [(0, 2_000)]);
                    granted += 1;
                }
                ConsumeOutcome::Refused(reports) => {
                    let wait = zae_limiter_core::WaitMs::at_least_one(6_000);
                    assert_eq!(reports[0].wait, Wait::After(wait), "for the next image");
                }
                ConsumeOutcome::Contended { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(granted, 10, "in minute {minute}");
        hot.advance(60_000);
    }
}

/// No shard has so much; together they do.
#[tokio::test]
async fn sixty_per_cent_pass_at_eight_shards() {
    let hot = Hot::new(&["tpm:800/hour"]).await;
    let store = hot.process().await;
    Hot::granted(hot.ask(&store, &[0]).await);
    hot.split_into(8).await;
    let grant = Hot::granted(hot.ask(&store, &[480]).await);
    assert!(grant.places.len() > 4, "{:?}", grant.places);
    assert_eq!(hot.sum("b_tpm_tk"), 320_000);
    // Not within the pause between two reads of all shards.
    hot.advance(300);
    let refused = hot.ask(&store, &[321]).await.unwrap();
    let ConsumeOutcome::Refused(reports) = refused else { panic!("{refused:?}") };
    // 300 ms bring 66 millitokens; shards that are still full gain nothing, and each rounds down.
    let (balance, wait) = (reports[0].balance.0, reports[0].wait.ms().unwrap());
    assert!((320_040..=320_066).contains(&balance), "{balance} is about the whole bucket");
    // Five shards gain: at five eighths of the rate.
    assert!((6_700..=7_000).contains(&wait), "{wait} ms for what is missing of a token");
    hot.advance(300);
    Hot::granted(hot.ask(&store, &[320]).await);
}

#[tokio::test]
async fn a_gathered_take_rolls_back_to_its_places() {
    let hot = Hot::new(&["tpm:800/hour"]).await;
    let store = hot.process().await;
    Hot::granted(hot.ask(&store, &[0]).await);
    hot.split_into(4).await;
    let before: Vec<i64> = hot.shards().iter().map(|item| number(item, "b_tpm_tk")).collect();
    let grant = Hot::granted(hot.ask(&store, &[500]).await);
    assert_eq!(places(&grant).iter().map(|(_, milli)| milli).sum::<i64>(), 500_000);
    for place in &grant.places {
        let tokens = place.taken[0].amount.0 / 1_000;
        hot.adjust(&store, place.shard, -tokens).await.unwrap();
    }
    let after: Vec<i64> = hot.shards().iter().map(|item| number(item, "b_tpm_tk")).collect();
    assert_eq!(before, after, "to the shards that it came from");
    assert_eq!(hot.sum("b_tpm_tc"), 0);
}

/// A process that knows one shard draws the others by what shard 0 says.
#[tokio::test]
async fn a_cold_client_learns_the_tree_in_two_writes() {
    let hot = Hot::on(EvalOptions::new().journal(), &["rpm:1000/hour"]).await;
    Hot::granted(hot.ask(&hot.process().await, &[1]).await);
    hot.split_into(4).await;
    let cold = hot.process().await;
    hot.rig.table.take_journal();
    Hot::granted(hot.ask(&cold, &[1]).await);
    let writes = hot.rig.table.take_journal();
    let writes = writes.iter().filter(|call| format!("{:?}", call.request).contains("BUCKET#"));
    assert_eq!(writes.count(), 2, "one that fails, one that lands");
    // From then on each take is one write, and one more for each shard that was not seen before.
    let mut drawn = std::collections::BTreeSet::new();
    for _ in 0..40 {
        drawn.insert(places(&Hot::granted(hot.ask(&cold, &[1]).await))[0].0);
    }
    assert_eq!(drawn.len(), 4, "{drawn:?}");
    let writes = hot.rig.table.take_journal();
    let writes = writes.iter().filter(|call| format!("{:?}", call.request).contains("BUCKET#"));
    let writes = writes.count();
    assert!(writes <= 43, "{writes} writes for 40 takes");
}

#[tokio::test]
async fn one_short_shard_never_refuses_from_memory() {
    let hot = Hot::new(&["rpm:1000/hour"]).await;
    let store = hot.process().await;
    Hot::granted(hot.ask(&store, &[0]).await);
    hot.split_into(2).await;
    // Shard 1 is emptied by somebody else, and this process sees it.
    hot.adjust(&store, 1, 500).await.unwrap();
    for _ in 0..100 {
        let grant = Hot::granted(hot.ask(&store, &[1]).await);
        assert_eq!(places(&grant), [(0, 1_000)]);
    }
    assert_eq!(store.counters().local_refusals, 0);
}

/// A crowd that is refused reads all shards four times a second, not once per refusal.
#[tokio::test]
async fn a_storm_of_refusals_reads_all_shards_rarely() {
    let hot = Hot::on(EvalOptions::new().journal(), &["rpm:320/hour"]).await;
    let store = hot.process().await;
    Hot::granted(hot.ask(&store, &[0]).await);
    hot.split_into(32).await;
    hot.drain(&store).await;
    hot.advance(1_000);
    hot.rig.table.take_journal();
    let (mut refused, mut contended) = (0, 0);
    for _ in 0..1_000 {
        match hot.ask(&store, &[1]).await.unwrap() {
            ConsumeOutcome::Refused(_) => refused += 1,
            ConsumeOutcome::Contended { .. } => contended += 1,
            other => panic!("{other:?}"),
        }
        hot.advance(1);
    }
    let calls = hot.rig.table.take_journal();
    let reads = calls.iter().filter(|call| format!("{:?}", call.request).starts_with("BatchGet"));
    let (reads, calls) = (reads.count(), calls.len());
    assert!(reads <= 4, "{reads} reads of all shards");
    assert!(calls - reads <= 60, "{} failed writes", calls - reads);
    assert!(refused > 500, "{refused} refused, {contended} contended");
}

/// More than the whole bucket ever has is refused for good, without a read.
#[tokio::test]
async fn more_than_the_capacity_never_passes_on_shards_either() {
    let hot = Hot::new(&["rpm:1000/hour"]).await;
    let store = hot.process().await;
    Hot::granted(hot.ask(&store, &[0]).await);
    hot.split_into(4).await;
    let refused = hot.ask(&store, &[1_001]).await.unwrap();
    let ConsumeOutcome::Refused(reports) = refused else { panic!("{refused:?}") };
    assert_eq!(reports[0].wait, Wait::Never);
}

/// The Python package asks up to three shards and refuses, or for a chain one and refuses.
#[tokio::test]
async fn tokens_on_one_of_thirty_two_shards_are_found() {
    let hot = Hot::new(&["rpm:3200/hour"]).await;
    Hot::granted(hot.ask(&hot.process().await, &[0]).await);
    hot.split_into(32).await;
    for mut item in hot.shards() {
        if shard_of(&item) != 17 {
            item.insert("b_rpm_tk".to_owned(), zae_limiter_dynamodb::table::number(0));
            hot.rig.table.insert(&item);
        }
    }
    // Each process knows nothing when it comes.
    for _ in 0..10 {
        let grant = Hot::granted(hot.ask(&hot.process().await, &[1]).await);
        assert_eq!(places(&grant), [(17, 1_000)]);
    }
    let (child, takes) = ("child".parse().unwrap(), takes(&[1]));
    for _ in 0..10 {
        let member = |entity| MemberTake {
            entity,
            resource: &hot.resource,
            limits: &hot.limits,
            takes: &takes,
            absent: &[],
        };
        let chain = [member(&child), member(&hot.entity)];
        let store = hot.process().await;
        let outcome = store.consume(&ConsumeRequest::new(&chain, hot.now())).await;
        let grant = Hot::granted(outcome);
        assert!(grant.places.iter().any(|place| place.shard == 17), "{:?}", grant.places);
    }
    assert_eq!(number(&hot.shard(17), "b_rpm_tk"), 80_000);
}

/// A shard alone would need eight times as long.
#[tokio::test]
async fn a_refusal_says_the_wait_of_the_whole_bucket() {
    let hot = Hot::new(&["rpm:3600/hour"]).await;
    let store = hot.process().await;
    Hot::granted(hot.ask(&store, &[0]).await);
    hot.split_into(8).await;
    Hot::granted(hot.ask(&store, &[3_600]).await);
    hot.advance(1_000);
    let refused = hot.ask(&store, &[9]).await.unwrap();
    let ConsumeOutcome::Refused(reports) = refused else { panic!("{refused:?}") };
    assert_eq!(reports[0].balance, Milli(1_000));
    let wait = reports[0].wait.ms().unwrap();
    assert_eq!(wait, 8_000);
    hot.advance(wait);
    Hot::granted(hot.ask(&store, &[9]).await);
}

/// A foreign writer has made shard 3 although shard 1 has not split: it belongs to nobody, and
/// neither counts nor keeps the others from being read together.
#[tokio::test]
async fn a_shard_that_its_donor_does_not_know_of_stops_no_gather() {
    let hot = Hot::new(&["tpm:800/hour"]).await;
    let store = hot.process().await;
    Hot::granted(hot.ask(&store, &[0]).await);
    for _ in 0..2 {
        assert!(hot.upkeep().split(&hot.name(), 0).await.unwrap());
    }
    let mut stray = hot.shard(2);
    let key = stray["PK"].as_s().unwrap().replace("#gpt-4#2", "#gpt-4#3");
    stray.insert("PK".to_owned(), aws_sdk_dynamodb::types::AttributeValue::S(key));
    hot.rig.table.insert(&stray);
    assert_eq!(hot.sum("b_tpm_tk"), 1_000_000, "200 more than there are");
    Hot::granted(hot.ask(&store, &[500]).await);
    hot.advance(300);
    let refused = hot.ask(&store, &[301]).await.unwrap();
    let ConsumeOutcome::Refused(reports) = refused else { panic!("{refused:?}") };
    assert!((300_000..=300_066).contains(&reports[0].balance.0), "{:?}", reports[0].balance);
    let ConsumeOutcome::Granted(left) = hot.peek(&hot.process().await, &[0]).await else {
        panic!("a look")
    };
    assert!((300_000..=300_066).contains(&left.reports[0].balance.0));
    assert_eq!(number(&hot.shard(3), "b_tpm_tk"), 200_000, "nobody has asked it");
}

/// The Python package doubles a bucket that we have split, and makes one of the new shards: full,
/// and without our stamps. That shard belongs to the bucket: takes above a share still pass, a
/// refusal is one and not a contention, and the bucket is folded.
#[tokio::test]
async fn a_shard_that_python_made_stops_no_gather() {
    let hot = Hot::new(&["rpm:1000/hour"]).await;
    let store = hot.process().await;
    Hot::granted(hot.ask(&store, &[100]).await);
    hot.split_into(2).await;
    for shard in [0, 1] {
        let mut item = hot.shard(shard);
        item.insert("shard_count".to_owned(), attribute(4));
        hot.rig.table.insert(&item);
    }
    let mut made = hot.shard(0);
    for ours in ["er", "ca", "lw", "sp", "tx", "un", "wx", "rmf", "b_rpm_rm"] {
        made.remove(ours);
    }
    let pk = made["PK"].as_s().unwrap().replace("#gpt-4#0", "#gpt-4#2");
    made.insert("PK".to_owned(), aws_sdk_dynamodb::types::AttributeValue::S(pk));
    made.insert("b_rpm_tk".to_owned(), attribute(250_000));
    made.insert("b_rpm_tc".to_owned(), attribute(0));
    hot.rig.table.insert(&made);
    assert_eq!(hot.upkeep().level(&hot.name()).await.unwrap(), 1, "shard 3, of shard 1");
    // What the shards have of their quarters: shard 3 has what shard 1 had beyond its own.
    let grant = Hot::granted(hot.ask(&store, &[600]).await);
    assert!(places(&grant).len() > 1, "no shard has so much");
    hot.advance(300);
    let refused = hot.ask(&store, &[351]).await.unwrap();
    assert!(matches!(refused, ConsumeOutcome::Refused(_)), "{refused:?}");
    let (granted, refused) = hot.drain(&store).await;
    assert!((349..=351).contains(&granted), "{granted}");
    assert!(matches!(refused, ConsumeOutcome::Refused(_)), "{refused:?}");
    assert!(hot.fold().await);
    assert_eq!(hot.shards().len(), 1);
}

/// `docs/dynamodb.md`: shards need no permission that a take does not have anyway.
#[tokio::test]
async fn takes_from_shards_need_no_permission_of_their_own() {
    let hot = Hot::new(&["rpm:100000/hour"]).await;
    let is_allowed = |asked: &Asked<'_>| match asked {
        Asked::Bucket(_) | Asked::Update(_) | Asked::Put(_) | Asked::BatchGet(..) => true,
        // The actions of a transaction are those of its legs.
        Asked::Transact(legs, _) => legs.iter().all(|leg| match leg {
            Write::Update(_) | Write::Put(_) => true,
            Write::Bucket(write) => !matches!(write.shape, Shape::Withdraw(_) | Shape::Remove(_)),
            Write::Delete(_) | Write::Check(_) => false,
        }),
        Asked::Query(_) | Asked::DeleteBatch(_) => false,
    };
    let transactions = Arc::new(AtomicU64::new(0));
    let sent = Arc::clone(&transactions);
    let faults = Faults::by(move |asked| {
        sent.fetch_add(u64::from(matches!(asked, Asked::Transact(..))), Ordering::Relaxed);
        if is_allowed(asked) { Fate::Pass } else { Fate::Denied }
    });
    let store = hot.process_on(hot.rig.table.client(3).with_faults(faults), |_| {}).await;
    Hot::granted(hot.ask(&store, &[1]).await);
    let mut item = hot.shard(0);
    item.insert("b_wcu_tk".to_owned(), zae_limiter_dynamodb::table::number(-1_100_000));
    hot.rig.table.insert(&item);
    Hot::granted(hot.ask(&store, &[1]).await);
    assert_eq!(hot.shards().len(), 2, "a take has split the bucket");
    let grant = Hot::granted(hot.ask(&store, &[60_000]).await);
    assert_eq!(places(&grant).len(), 2, "taken from both");
    // The images of a moment ago may not refuse.
    hot.advance(1_000);
    assert!(matches!(hot.ask(&store, &[60_000]).await, Ok(ConsumeOutcome::Refused(_))));
    assert!(matches!(hot.peek(&store, &[1]).await, ConsumeOutcome::Granted(_)));
    assert_eq!(transactions.load(Ordering::Relaxed), 2);
}
