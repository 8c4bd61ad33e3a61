//! Buckets of several shards. We move tokens from shard to shard; Python raises a count and makes
//! the shards that it then does not find, full. What it makes so is all that a mixed fleet may
//! grant beyond capacity and refill.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};
use zae_limiter_dynamodb::DynamoOptions;
use zae_limiter_dynamodb::bucket::upkeep::{BucketName, Upkeep};
use zae_limiter_store::{Clock, SystemClock, UsageQuery};
use zae_limiter_testkit::engine::stream::record;
use zae_limiter_testkit::zae_limiter::{
    Level, NewEntity, PageRequest, RateLimiter, Request, UsageWindow,
};
use zae_limiter_testkit::zae_limiter_aggregator::{Aggregator, Item, Record, Settings};

use crate::interop::books::Books;
use crate::interop::on_both_tables;
use crate::interop::python::Python;
use crate::interop::table::{STACK, Shared, drain, limits, of_entity, take, text, whole};

/// The day of a limit `rpd`, in ms.
const DAY_MS: i64 = 86_400_000;

/// The bucket of `hot` on `gpt-4`, and what is reckoned about it.
struct Hot {
    shared: Shared,
    rust: RateLimiter,
    capacity_milli: i64,
    began_ms: i64,
    /// Records of the stream that the aggregator was given.
    fed: usize,
    aggregator: Aggregator,
}

impl Hot {
    /// A bucket that we have made, with so many tokens a day, one of them taken.
    async fn new(shared: Shared, capacity: i64) -> Hot {
        let rust = shared.rust().await;
        let texts = format!("rpd:{capacity}/day");
        rust.set_limits(&Level::System, limits(&texts)).await.unwrap();
        let table = Arc::new(shared.builder().table().await.unwrap());
        let settings = Settings::new(STACK).windows([UsageWindow::Daily]);
        let aggregator = Aggregator::new(table, settings);
        let began_ms = SystemClock::new().now().0;
        assert!(take(&rust, "hot", "rpd", 1).await);
        Hot { shared, rust, capacity_milli: capacity * 1_000, began_ms, fed: 0, aggregator }
    }

    fn shards(&self) -> Vec<Value> {
        self.shared.shards("hot")
    }

    /// Which shards there are, and how many each believes there are.
    fn tree(&self) -> Vec<(u32, i64)> {
        self.shards().iter().map(|item| (shard_of(item), whole(&item["shard_count"]))).collect()
    }

    /// What all shards have, or have counted.
    fn sum(&self, attribute: &str) -> i64 {
        self.shards().iter().map(|item| whole(&item[attribute])).sum()
    }

    fn name(&self) -> BucketName {
        let bucket = self.shared.bucket("hot");
        let (namespace, _) = text(&bucket["PK"]).split_once('/').unwrap();
        BucketName {
            namespace: namespace.to_owned(),
            entity: "hot".to_owned(),
            resource: "gpt-4".to_owned(),
        }
    }

    async fn upkeep(&self) -> Upkeep {
        let table = self.shared.builder().table().await.unwrap();
        Upkeep::new(Arc::new(table), DynamoOptions::new())
    }

    /// Splits these shards, one after the other.
    async fn split(&self, shards: &[u32]) {
        let upkeep = self.upkeep().await;
        for shard in shards {
            assert!(upkeep.split(&self.name(), *shard).await.unwrap(), "shard {shard} splits");
        }
    }

    /// The aggregator is given what is new in the stream, in one batch. How many shards it made.
    async fn aggregate(&mut self) -> u64 {
        let records: Vec<Record> = self.shared.engine.stream(STACK).iter().map(record).collect();
        let report = self.aggregator.process(&records[self.fed..]).await;
        assert!(report.is_complete() && report.poison == 0, "{report:?}");
        self.fed = records.len();
        report.kept.levelled
    }

    /// The same, as if a crowd had written shard 0 nine hundred times within a second. How many
    /// shards were made.
    async fn aggregate_a_crowd(&mut self) -> u64 {
        let mut made = self.aggregate().await;
        let records: Vec<Record> = self.shared.engine.stream(STACK).iter().map(record).collect();
        // Of a write that refilled, the record tells of a longer time.
        let is_fast = |record: &&Record| {
            let refilled = |image: &Option<_>| image.as_ref().map(|it: &Item| it["rf"].clone());
            record.key.0.ends_with("#gpt-4#0") && refilled(&record.old) == refilled(&record.new)
        };
        let last = records.iter().rfind(is_fast).expect("shard 0 was written").clone();
        let report = self.aggregator.process(&vec![last; 900]).await;
        assert!(report.is_complete() && report.poison == 0, "{report:?}");
        made += report.kept.splits + report.kept.levelled;
        made + self.aggregate().await
    }

    /// What every record of the stream did to all shards together.
    fn books(&self) -> Books {
        Books::of(&self.shared.engine.stream(STACK), self.capacity_milli)
    }

    /// What Python has made by making shards, in millitokens, and how many shards those were.
    fn minted(&self) -> (i64, usize) {
        let books = self.books();
        (books.minted, books.made)
    }

    /// Every token that was granted, is left or was lost is one that the bucket began with, that it
    /// regained in its time, or that Python has made: a split of ours that made a single one would
    /// stand here, however much Python has made or lost beside it.
    #[track_caller]
    fn assert_only_python_mints(&self, granted: i64) -> Books {
        let books = self.books();
        assert_eq!((books.moved, books.unearned), (0, 0), "made by us: {books:?}");
        assert_eq!(books.granted, granted * 1_000, "{books:?}");
        assert_eq!(books.left(), self.sum("b_rpd_tk"), "{books:?}");
        assert_eq!(books.begun, self.capacity_milli);
        let allowed = self.allowed_milli();
        assert!(books.granted <= allowed + books.minted, "{allowed} and {books:?}");
        books
    }

    /// What one bucket may grant until now: what it began with and what it has gained, rounded up
    /// to a millitoken.
    fn allowed_milli(&self) -> i64 {
        let passed_ms = SystemClock::new().now().0 - self.began_ms;
        self.capacity_milli + self.capacity_milli * passed_ms / DAY_MS + 1
    }

    /// Every shard has taken more writes than it can, for a while; or none has.
    fn set_hot(&self, is_hot: bool) {
        let now_ms = SystemClock::new().now().0;
        for item in self.shards() {
            let spent = -(now_ms + 60_000 - whole(&item["rf"])) * 1_000;
            let room = if is_hot { spent } else { 1_000_000 };
            let update = json!({
                "TableName": STACK,
                "Key": { "PK": item["PK"], "SK": item["SK"] },
                "UpdateExpression": "SET b_wcu_tk = :room",
                "ExpressionAttributeValues": { ":room": { "N": room.to_string() } },
            });
            self.shared.engine.call("UpdateItem", &update).ok();
        }
    }

    /// Both take at the same time, so often each; how many tokens were granted.
    async fn both_take(&self, python: &mut Python, takes: u64, tokens: u64) -> i64 {
        let theirs = format!("threads=2, most={}, tokens={tokens}", takes / 2);
        python.send(&format!("drain('hot', 'gpt-4', 'rpd', {theirs})"));
        let worker = || async {
            let mut granted = 0;
            while granted < takes / 4 && take(&self.rust, "hot", "rpd", tokens).await {
                granted += 1;
            }
            granted
        };
        let ours: u64 = join_all((0..4).map(|_| worker())).await.into_iter().sum();
        let theirs = python.receive().as_u64().unwrap();
        assert!(ours > 0 && theirs > 0, "both took part: we {ours}, they {theirs}");
        i64::try_from((ours + theirs) * tokens).unwrap()
    }

    /// Both take until both are refused; how many tokens were granted.
    async fn both_drain(&self, python: &mut Python, tokens: u64) -> i64 {
        python.send(&format!("drain('hot', 'gpt-4', 'rpd', threads=2, tokens={tokens})"));
        let mut ours = 0;
        while take(&self.rust, "hot", "rpd", tokens).await {
            ours += tokens;
        }
        let theirs = tokens * python.receive().as_u64().unwrap();
        // Python gives up while other shards than the few it has asked have tokens.
        let rest = drain(&self.rust, "hot", "rpd", 1).await;
        i64::try_from(ours + theirs + rest).unwrap()
    }
}

fn shard_of(item: &Value) -> u32 {
    text(&item["PK"]).rsplit_once('#').unwrap().1.parse().unwrap()
}

on_both_tables! {
    /// We split a bucket; Python learns the count from the first shard it meets, draws all of them
    /// and takes what is there, no more.
    async fn python_takes_from_our_shards(shared: Shared) {
        let mut python = shared.python();
        let hot = Hot::new(shared, 1_000).await;
        hot.split(&[0, 0, 1]).await;
        assert_eq!(hot.tree(), [(0, 4), (1, 4), (2, 4), (3, 4)]);
        for _ in 0..60 {
            assert!(python.take("hot", "rpd", 1));
        }
        assert_eq!(python.eval("repo.select_shard('hot', 'gpt-4')[1]"), 4, "it knows the count");
        let taken: Vec<i64> = hot.shards().iter().map(|item| whole(&item["b_rpd_tc"])).collect();
        assert!(taken.iter().all(|taken| *taken > 0), "from every shard: {taken:?}");
        assert_eq!(taken.iter().sum::<i64>(), 61_000);
        assert_eq!(hot.sum("b_rpd_tk") + 61_000, 1_000_000, "nothing was made or lost");
        // What is left is the same number for both.
        // Python rounds down on every shard, we once.
        let theirs = python.eval("limiter.available('hot', 'gpt-4')['rpd']").as_i64().unwrap();
        assert!((936..=939).contains(&theirs), "{theirs}");
        let ours = hot.rust.availability(&Request::new("hot", "gpt-4").take("rpd", 0)).await.unwrap();
        assert_eq!(ours.available("rpd"), Some(939));
        // A lease that fails gives back to the shard it took from.
        let before: Vec<i64> = hot.shards().iter().map(|item| whole(&item["b_rpd_tk"])).collect();
        assert_eq!(python.eval("take('hot', 'gpt-4', {'rpd': 10}, fail=True)"), true);
        let after: Vec<i64> = hot.shards().iter().map(|item| whole(&item["b_rpd_tk"])).collect();
        assert_eq!(before, after);
        // More than a share never passes there, and passes here.
        assert!(!python.take("hot", "rpd", 251));
        assert!(take(&hot.rust, "hot", "rpd", 251).await);
        let granted = hot.both_drain(&mut python, 5).await;
        assert_eq!(61 + 251 + granted, 1_000, "together exactly what there was");
        assert_eq!(hot.tree(), [(0, 4), (1, 4), (2, 4), (3, 4)], "Python has made none");
        assert_eq!(hot.minted(), (0, 0));
    }

    /// Python raises the count and makes no shard: ours make it, with what its donor has beyond its
    /// share or with nothing.
    async fn python_raises_the_count_and_we_repair(shared: Shared) {
        let mut python = shared.python();
        let hot = Hot::new(shared, 1_000).await;
        assert_eq!(python.eval("repo.bump_shard_count('hot', 'gpt-4', 1)"), 2);
        let mut granted = 1;
        for _ in 0..200 {
            granted += i64::from(take(&hot.rust, "hot", "rpd", 10).await) * 10;
        }
        assert_eq!(hot.tree(), [(0, 2), (1, 2)]);
        assert_eq!(hot.minted(), (0, 0), "it was ours");
        assert!(granted * 1_000 <= hot.allowed_milli(), "{granted} of 1000");
        // What shard 0 had beyond its share is lost if it was asked before shard 1 was missed.
        assert!(granted >= 490, "{granted} of 1000");
    }

    /// What a mixed fleet grants beyond one bucket is what Python has made, to the millitoken: it
    /// doubles a bucket without room for writes, and makes every shard that it draws and does not
    /// find. Ours split such a bucket, and make nothing.
    async fn a_mixed_fleet_grants_what_there_is_and_what_python_makes(shared: Shared) {
        let mut python = shared.python();
        let hot = Hot::new(shared, 16_000).await;
        let mut granted = 1;
        for round in 0..4 {
            hot.set_hot(true);
            if round % 2 == 0 {
                let before = hot.tree();
                while hot.tree()[0].1 == before[0].1 {
                    assert!(python.take("hot", "rpd", 10), "by a shard that it makes");
                    granted += 10;
                }
            } else {
                // By a split, or from several shards.
                granted += 10 * i64::from(take(&hot.rust, "hot", "rpd", 10).await);
            }
            if round == 0 {
                assert_eq!(hot.tree(), [(0, 2), (1, 2)]);
                assert_eq!(hot.minted(), (8_000_000, 1), "half of the capacity");
            }
            hot.set_hot(false);
            granted += hot.both_take(&mut python, 100, 20).await;
        }
        granted += hot.both_drain(&mut python, 20).await;
        hot.assert_only_python_mints(granted);
        assert!(granted > 16_000, "{granted}: what Python has made was granted too");
    }

    /// The aggregator doubles a bucket at 800 writes a second, before its shards are out of room at
    /// 1 000, and levels it: Python finds every shard that it draws, and makes nothing.
    async fn python_makes_nothing_of_a_bucket_that_is_doubled_ahead(shared: Shared) {
        let mut python = shared.python();
        let mut hot = Hot::new(shared, 16_000).await;
        let mut granted = 1;
        for shards in [2, 4, 8] {
            granted += hot.both_take(&mut python, 40, 5).await;
            assert_eq!(hot.aggregate_a_crowd().await, u64::from(shards / 2));
            let level: Vec<(u32, i64)> = (0..shards).map(|shard| (shard, shards.into())).collect();
            assert_eq!(hot.tree(), level);
            // A shard that has just split is not split again.
            SystemClock::new().sleep(Duration::from_secs(1)).await;
        }
        granted += hot.both_take(&mut python, 200, 20).await;
        granted += hot.both_drain(&mut python, 20).await;
        let books = hot.assert_only_python_mints(granted);
        assert_eq!((books.minted, books.made), (0, 0), "{books:?}");
        assert_eq!(hot.tree().len(), 8);
    }

    /// The gap that levelling cannot close: a Python client without room for its write doubles the
    /// count and makes one of the new shards in the same call, full. Exactly that share is made;
    /// what is missing beside it the aggregator makes, without tokens.
    async fn a_doubling_by_python_makes_one_share_and_levelling_the_rest_without(shared: Shared) {
        let mut python = shared.python();
        let mut hot = Hot::new(shared, 16_000).await;
        hot.split(&[0, 0]).await;
        assert_eq!(hot.aggregate().await, 1);
        assert_eq!(hot.tree(), [(0, 4), (1, 4), (2, 4), (3, 4)]);
        let mut granted = 1 + hot.both_take(&mut python, 40, 5).await;
        hot.set_hot(true);
        assert!(python.take("hot", "rpd", 10), "by a shard that it makes");
        granted += 10;
        assert_eq!(hot.tree()[0].1, 8, "it has doubled the count");
        assert_eq!(hot.minted(), (2_000_000, 1), "an eighth of the capacity");
        assert_eq!(hot.aggregate().await, 3, "the other three");
        assert_eq!(hot.tree(), (0..8).map(|shard| (shard, 8)).collect::<Vec<_>>());
        hot.set_hot(false);
        granted += hot.both_take(&mut python, 200, 20).await;
        granted += hot.both_drain(&mut python, 20).await;
        let books = hot.assert_only_python_mints(granted);
        assert_eq!((books.minted, books.made), (2_000_000, 1), "no more than that: {books:?}");
    }

    /// Shard 0 is split twice, its sibling once. A Python process that hears of four shards makes
    /// the one that is missing; after the aggregator was here nothing is missing.
    async fn python_never_meets_a_missing_shard_after_levelling(shared: Shared) {
        let mut python = shared.python();
        let mut hot = Hot::new(shared, 1_000).await;
        hot.split(&[0, 0]).await;
        assert_eq!(hot.tree(), [(0, 4), (1, 2), (2, 4)]);
        assert_eq!(hot.aggregate().await, 1, "shard 1 is split");
        assert_eq!(hot.tree(), [(0, 4), (1, 4), (2, 4), (3, 4)]);
        let mut granted = 1 + hot.both_take(&mut python, 40, 2).await;
        // As the aggregator of the Python package does when it doubles early, or a client that
        // stops right then: the count alone is raised.
        assert_eq!(python.eval("repo.bump_shard_count('hot', 'gpt-4', 4)"), 8);
        assert_eq!(hot.aggregate().await, 4, "four are made");
        assert_eq!(hot.tree().len(), 8);
        granted += hot.both_take(&mut python, 40, 2).await;
        // One of ours splits under load, and the aggregator follows.
        hot.split(&[0]).await;
        assert_eq!(hot.aggregate().await, 7);
        assert_eq!(hot.tree(), (0..16).map(|shard| (shard, 16)).collect::<Vec<_>>());
        granted += hot.both_take(&mut python, 40, 2).await;
        granted += hot.both_drain(&mut python, 5).await;
        assert_eq!(hot.minted(), (0, 0), "Python has made none");
        assert!(granted * 1_000 <= hot.allowed_milli(), "{granted} of 1000");
        // The sixteenth parts that both refuse to grant are fractions of tokens.
        assert!(granted >= 984, "{granted} of 1000");
    }

    /// The same without the aggregator: the weakness that levelling is for.
    async fn python_makes_what_is_missing_before_levelling_and_levelling_removes_it(shared: Shared) {
        let mut python = shared.python();
        let mut hot = Hot::new(shared, 1_000).await;
        hot.split(&[0, 0]).await;
        for _ in 0..60 {
            assert!(python.take("hot", "rpd", 1));
        }
        assert_eq!(hot.tree(), [(0, 4), (1, 2), (2, 4), (3, 4)], "shard 3 belongs to shard 1");
        assert_eq!(hot.minted(), (250_000, 1));
        let left = hot.sum("b_rpd_tk");
        assert!(left > 1_000_000, "{left}: more than there was, and 61 were taken");
        // Shard 1 is split; what lies in the way of its child goes.
        assert_eq!(hot.aggregate().await, 1);
        assert_eq!(hot.tree(), [(0, 4), (1, 4), (2, 4), (3, 4)]);
        let left = hot.sum("b_rpd_tk");
        assert!(left <= 1_000_000, "{left}");
    }

    /// Python never forgets a count. Of a bucket that was folded it makes the shards anew, full:
    /// with Python clients on a table nothing should be folded.
    async fn python_makes_folded_shards_anew(shared: Shared) {
        let mut python = shared.python();
        let hot = Hot::new(shared, 1_000).await;
        hot.split(&[0, 0, 1]).await;
        assert!(python.take("hot", "rpd", 1));
        let store = hot.shared.builder().connect().await.unwrap();
        let root = text(&hot.shards()[0]["PK"]).to_owned();
        assert!(store.fold_now(&root, SystemClock::new().now()).await.unwrap());
        assert_eq!(hot.tree(), [(0, 1)]);
        let theirs = i64::try_from(python.drain("hot", "rpd")).unwrap();
        let ours = i64::try_from(drain(&hot.rust, "hot", "rpd", 1).await).unwrap();
        let (minted, made) = hot.minted();
        assert_eq!((minted, made), (750_000, 3));
        let granted = 2 + ours + theirs;
        assert!(granted * 1_000 <= hot.allowed_milli() + minted, "{granted}");
        assert!(granted > 1_000, "{granted}");
    }

    /// Limits, flags and deletions of either reach every shard.
    async fn changes_of_either_reach_every_shard(shared: Shared) {
        let mut python = shared.python();
        let hot = Hot::new(shared, 1_000).await;
        hot.rust.create_entity(NewEntity {
            id: "hot".parse().unwrap(), name: "hot".to_owned(), parent: None, cascade: false, metadata: Default::default()
        }).await.unwrap();
        hot.split(&[0, 0, 1]).await;
        let all = |attribute: &str| -> Vec<Value> { hot.shards().iter().map(|item| item[attribute].clone()).collect() };
        python.eval("limiter.set_limits('hot', [Limit.per_day('rpd', 2000)], resource='gpt-4', principal='python')");
        assert_eq!(all("b_rpd_cp"), vec![json!({ "N": "2000000" }); 4], "by Python");
        hot.rust.set_limits(&of_entity("hot"), limits("rpd:3000/day")).await.unwrap();
        assert_eq!(all("b_rpd_cp"), vec![json!({ "N": "3000000" }); 4], "by us");
        for _ in 0..20 {
            assert!(python.take("hot", "rpd", 1));
        }
        python.eval("repo.disable_entity('hot', 'gpt-4', principal='python')");
        assert!(all("disabled").iter().all(|flag| !flag.is_null()), "by Python");
        assert!(hot.rust.acquire(Request::new("hot", "gpt-4").take("rpd", 1)).await.is_err());
        python.eval("repo.clear_entity_disabled('hot', 'gpt-4', principal='python')");
        assert!(take(&hot.rust, "hot", "rpd", 1).await);
        hot.rust.disable(&of_entity("hot")).await.unwrap();
        assert!(all("disabled").iter().all(|flag| !flag.is_null()), "by us");
        for _ in 0..8 {
            let raised = python.try_eval("take('hot', 'gpt-4', {'rpd': 1})").unwrap_err();
            assert_eq!(raised.class, "ResourceDisabled");
        }
        hot.rust.clear_disabled(&of_entity("hot")).await.unwrap();
        assert!(python.take("hot", "rpd", 1));
        python.eval("limiter.delete_entity('hot', principal='python')");
        assert_eq!(hot.tree(), [], "deleted by Python");
    }

    /// Our aggregator counts the takes of both, on whatever shard, and both read the same.
    async fn usage_of_both_on_shards_is_counted_once_and_read_by_both(shared: Shared) {
        let mut python = shared.python();
        let mut hot = Hot::new(shared, 1_600).await;
        hot.split(&[0, 0, 1]).await;
        let mut granted = 1 + hot.both_take(&mut python, 60, 1).await;
        hot.aggregate().await;
        // A shard that Python makes begins with a take.
        assert_eq!(python.eval("repo.bump_shard_count('hot', 'gpt-4', 4)"), 8);
        for _ in 0..40 {
            assert!(python.take("hot", "rpd", 1));
            granted += 1;
        }
        assert!(hot.minted().1 > 0);
        hot.aggregate().await;
        hot.fed = 0;
        hot.aggregate().await;
        let query = UsageQuery {
            entity: Some("hot".parse().unwrap()), resource: None, window: UsageWindow::Daily, from: None, until: None, page: PageRequest::default(),
        };
        let seen = hot.rust.usage(&query).await.unwrap().items;
        let ours: i64 = seen.iter().map(|day| day.counters.iter().map(|(_, used)| used.0).sum::<i64>()).sum();
        assert_eq!(ours, granted * 1_000);
        let theirs = python.eval("sum(snapshot.counters['rpd'] for snapshot in limiter.get_usage_snapshots(entity_id='hot')[0])");
        assert_eq!(theirs, granted);
    }

    /// A limit below 320 stays whole on shard 0. Python divides it all the same: it asks any shard,
    /// finds nothing on most, and refills a part of the limit on each.
    async fn python_refills_small_limits_on_every_shard(shared: Shared) {
        let mut python = shared.python();
        let hot = Hot::new(shared, 100_000).await;
        hot.rust.set_limits(&Level::System, limits("img:12/hour rpd:100000/day")).await.unwrap();
        assert!(take(&hot.rust, "hot", "img", 0).await);
        hot.split(&[0, 0, 1]).await;
        let images: Vec<i64> = hot.shards().iter().map(|item| whole(&item["b_img_tk"])).collect();
        assert_eq!(images, [12_000, 0, 0, 0]);
        // At once: what shard 0 has, and nothing else.
        let mut now = 0;
        for _ in 0..100 {
            now += i64::from(python.take("hot", "img", 1));
        }
        assert_eq!(now, 12, "from shard 0, by luck of the draw");
        // An hour later each shard has a quarter for Python; we find 12 more on shard 0.
        let later = SystemClock::new().now().0 + 3_600_000;
        python.eval(&format!("set_clock({later})"));
        let mut theirs = 0;
        for _ in 0..100 {
            theirs += i64::from(python.take("hot", "img", 1));
        }
        assert_eq!(theirs, 12);
    }
}
