//! Usage is the ledger, to the millitoken, however the stream is delivered: on our engine, or on
//! the one that `ZAEL_TEST_DYNAMODB_ENDPOINT` names. Here the conditions of the snapshots are
//! judged by software that is not ours.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use aws_sdk_dynamodb::types::AttributeValue;
use futures_util::future::{join, join_all};
use zae_limiter_aggregator::{Aggregator, Item, Record, Settings};
use zae_limiter_core::UsageWindow;
use zae_limiter_store::{Level, NewEntity, SeededEntropy};
use zae_limiter_testkit::engine::Engine;
use zae_limiter_testkit::engine::stream::record;
use zae_limiter_testkit::zae_limiter::Request;

use crate::engine::World;
use crate::log::{Ledger, Log};
use crate::once::deliver;
use crate::rig::below;

/// Use by entity and limit, and takes by entity: `None` stands for the takes.
type Sums = BTreeMap<(String, Option<String>), i64>;

/// Namespaces that are tried at once.
const AT_ONCE: usize = 8;

/// A table with a stream, and records whose use is known.
struct Run {
    world: World,
    /// The namespace that the records name.
    from: String,
    records: Vec<Record>,
    books: Sums,
}

impl Run {
    /// Takes by our own code: leases that used more or less, or nothing; chains that are granted
    /// and chains that are refused. Every bucket has four shards.
    async fn taken() -> Run {
        let world = World::on(Engine::from_env_or_start(), |options| {
            options.born_split = 4;
            options.share_min_milli = 1;
            options.gather_pause_ms = 0;
            options.herd_pause_ms = 0;
        })
        .await;
        let limiter = &world.limiter;
        for (id, parent) in [("org", None), ("key", Some("org"))] {
            let parent = parent.map(|parent: &str| parent.parse().unwrap());
            let entity = NewEntity {
                id: id.parse().unwrap(),
                name: id.to_owned(),
                cascade: parent.is_some(),
                parent,
                metadata: BTreeMap::new(),
            };
            limiter.create_entity(entity).await.unwrap();
        }
        let few = vec!["rpm:4/day".parse().unwrap(), "tpm:100000/day".parse().unwrap()];
        limiter.set_limits(&Level::Entity("org".parse().unwrap()), few).await.unwrap();

        let (mut books, mut refused) = (Sums::new(), 0);
        let mut book = |of: &[&str], tokens: u64, calls: i64| {
            for entity in of {
                let mut add = |limit: Option<&str>, used| {
                    let limit = limit.map(str::to_owned);
                    *books.entry(((*entity).to_owned(), limit)).or_default() += used;
                };
                add(Some("tpm"), i64::try_from(tokens).unwrap() * 1_000);
                add(Some("rpm"), calls * 1_000);
                add(None, 1);
            }
        };
        let rng = SeededEntropy::new(11);
        for _ in 0..48 {
            let of: &[&str] = [&["a"][..], &["b"], &["key", "org"]][below(&rng, 3)];
            let tokens = u64::try_from(below(&rng, 40)).unwrap() + 1;
            let request = Request::new(of[0], "gpt-4").take("rpm", 1).take("tpm", tokens);
            let Ok(lease) = limiter.acquire(request).await else {
                refused += 1;
                continue;
            };
            match below(&rng, 4) {
                0 => {
                    lease.record("tpm", tokens + 9).unwrap();
                    lease.commit().await.unwrap();
                    book(of, tokens + 9, 1);
                }
                1 => {
                    lease.record("tpm", tokens / 2).unwrap();
                    lease.commit().await.unwrap();
                    book(of, tokens / 2, 1);
                }
                2 => {
                    lease.rollback().await.unwrap();
                    book(of, 0, 0);
                }
                _ => {
                    lease.commit().await.unwrap();
                    book(of, tokens, 1);
                }
            }
        }
        assert!(refused > 3, "chains were refused: {refused}, {books:?}");
        let records: Vec<Record> = world.records().iter().map(record).collect();
        // A bucket that is split at its birth is made by a take of nothing, and taken from after.
        for record in records.iter().filter(|record| record.old.is_none()) {
            let Some(new) = record.new.as_ref().filter(|new| new.contains_key("b_wcu_tc")) else {
                continue;
            };
            let number = |name: &str| new[name].as_n().unwrap().as_str();
            if (number("b_wcu_tc"), number("b_rpm_tc")) == ("1000", "0") {
                let entity = new["entity_id"].as_s().unwrap().clone();
                *books.entry((entity, None)).or_default() += 1;
            }
        }
        books.retain(|_, sum| *sum != 0);
        let bucket = records.iter().find(|record| record.key.0.contains("/BUCKET#")).unwrap();
        let from = bucket.key.0.split('/').next().unwrap().to_owned();
        Run { world, from, records, books }
    }

    /// Records that nobody has written, with fractions of tokens.
    async fn made_up() -> Run {
        let world = World::on(Engine::from_env_or_start(), |_| {}).await;
        let log = Log::two_hundred("somewhere", 5, 250);
        Run {
            world,
            from: log.namespace.clone(),
            books: by_day(&log.ledger()),
            records: log.records,
        }
    }

    /// A new namespace and the records as if they were of it.
    async fn again(&self, name: &str) -> Place<'_> {
        let made = self.world.limiter.register_namespace(name).await.unwrap();
        let to = made.id.to_string();
        let moved = |record: &Record| {
            let mut record = record.clone();
            record.stream_shard = "shardId-1".to_owned();
            record.key.0 = renamed(&record.key.0, &self.from, &to);
            for image in [&mut record.old, &mut record.new].into_iter().flatten() {
                rename(image, &self.from, &to);
            }
            record
        };
        let records = self.records.iter().map(moved).collect();
        Place { run: self, name: name.to_owned(), records }
    }

    async fn aggregator(&self) -> Aggregator {
        let table = self.world.engine.stack(&self.world.stack).table().await.unwrap();
        let settings = Settings::new(&self.world.stack).windows(UsageWindow::ALL);
        Aggregator::new(Arc::new(table), settings)
    }
}

struct Place<'a> {
    run: &'a Run,
    name: String,
    records: Vec<Record>,
}

impl Place<'_> {
    async fn usage(&self) -> Ledger {
        let world = &self.run.world;
        let store = world.engine.stack(&world.stack).namespace(&self.name).connect().await;
        crate::rig::usage(&store.unwrap()).await
    }

    async fn is_the_ledger(&self, why: &str) {
        let usage = self.usage().await;
        for window in UsageWindow::ALL {
            assert_eq!(sums(&usage, window), self.run.books, "{why}, {window}");
        }
    }
}

/// What the windows of a length sum up to. Nothing is left out: a limit of which nothing is left
/// does not stand in the books either.
fn sums(usage: &Ledger, of: UsageWindow) -> Sums {
    let mut sums = Sums::new();
    for ((entity, _, window, _), (used, takes)) in usage {
        if *window != of {
            continue;
        }
        for (limit, milli) in used {
            *sums.entry((entity.clone(), Some(limit.clone()))).or_default() += milli;
        }
        *sums.entry((entity.clone(), None)).or_default() += takes;
    }
    sums.retain(|_, sum| *sum != 0);
    sums
}

/// The books of a log that was made up.
fn by_day(ledger: &Ledger) -> Sums {
    sums(ledger, UsageWindow::Daily)
}

fn renamed(text: &str, from: &str, to: &str) -> String {
    match text.strip_prefix(from) {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => format!("{to}{rest}"),
        _ => text.to_owned(),
    }
}

fn rename(image: &mut Item, from: &str, to: &str) {
    for value in image.values_mut() {
        if let AttributeValue::S(text) = value {
            *text = renamed(text, from, to);
        }
    }
}

/// A future that is given up after some polls, as a process that dies gives it up.
async fn cut_off(future: impl Future<Output = ()>, polls: usize) {
    let (mut future, mut left) = (pin!(future), polls);
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(());
        }
        left -= 1;
        future.as_mut().poll(context)
    })
    .await;
}

async fn cut_at_every_record(run: &Run) {
    let cuts: Vec<usize> = (0..=run.records.len()).collect();
    for some in cuts.chunks(AT_ONCE) {
        let one = |cut: usize| async move {
            let place = run.again(&format!("cut-{cut}")).await;
            let aggregator = run.aggregator().await;
            deliver(&aggregator, &place.records[..cut]).await;
            let from = cut.saturating_sub(cut % 23);
            for batch in place.records[from..].chunks(70) {
                deliver(&aggregator, batch).await;
            }
            place.is_the_ledger(&format!("cut at {cut}")).await;
        };
        join_all(some.iter().map(|cut| one(*cut))).await;
    }
}

async fn repeated(run: &Run) {
    let place = run.again("repeated").await;
    let aggregator = run.aggregator().await;
    for batch in place.records.chunks(31) {
        deliver(&aggregator, batch).await;
        deliver(&aggregator, batch).await;
    }
    place.is_the_ledger("batches twice").await;
    let twice = [&place.records[..], &place.records].concat();
    let report = run.aggregator().await.process(&twice).await;
    assert_eq!((report.counted, report.is_complete()), (0, true), "{report:?}");
    place.is_the_ledger("the whole stream twice more").await;
}

/// Shards of one bucket are in different stream shards, which are read in any order.
async fn reordered(run: &Run) {
    for seed in 0..8 {
        let place = run.again(&format!("reordered-{seed}")).await;
        let mut streams: BTreeMap<String, Vec<Record>> = BTreeMap::new();
        for record in &place.records {
            let shard = record.key.0.rsplit('#').next().unwrap_or_default().to_owned();
            streams.entry(shard).or_default().push(record.clone());
        }
        assert!(streams.len() > 2, "{:?}", streams.keys());
        let mut streams: Vec<&[Record]> = streams.values().map(Vec::as_slice).collect();
        let (aggregator, rng) = (run.aggregator().await, SeededEntropy::new(seed));
        while !streams.is_empty() {
            let drawn = below(&rng, streams.len());
            let (batch, rest) =
                streams[drawn].split_at((1 + below(&rng, 30)).min(streams[drawn].len()));
            deliver(&aggregator, batch).await;
            streams[drawn] = rest;
            streams.retain(|stream| !stream.is_empty());
        }
        place.is_the_ledger(&format!("seed {seed}")).await;
    }
}

/// Each has the whole stream, cut otherwise. Now and then one dies within a batch, its requests on
/// the way, and another begins a little before.
async fn two_workers(run: &Run) {
    let mut died = 0;
    for seed in 0..8 {
        let place = run.again(&format!("two-{seed}")).await;
        let worker = |salt: u64| {
            let (rng, records) = (SeededEntropy::new(seed * 2 + salt), &place.records);
            async move {
                let (mut from, mut deaths) = (0, 0);
                let mut aggregator = run.aggregator().await;
                while from < records.len() {
                    let until = (from + 1 + below(&rng, 60)).min(records.len());
                    let batch = &records[from..until];
                    if below(&rng, 3) == 0 {
                        cut_off(deliver(&aggregator, batch), 1 + below(&rng, 12)).await;
                        aggregator = run.aggregator().await;
                        from = from.max(10) - 10;
                        deaths += 1;
                    } else {
                        deliver(&aggregator, batch).await;
                        from = until;
                    }
                }
                deaths
            }
        };
        let (first, second) = join(worker(0), worker(1)).await;
        died += first + second;
        place.is_the_ledger(&format!("seed {seed}")).await;
    }
    assert!(died > 10, "workers died: {died}");
}

#[tokio::test]
async fn what_was_taken_is_counted_when_the_stream_is_cut_at_every_record() {
    cut_at_every_record(&Run::taken().await).await;
}

#[tokio::test]
async fn what_was_taken_is_counted_once_however_it_is_delivered() {
    let run = Run::taken().await;
    repeated(&run).await;
    reordered(&run).await;
    two_workers(&run).await;
}

#[tokio::test]
async fn fractions_are_counted_when_the_stream_is_cut_at_every_record() {
    cut_at_every_record(&Run::made_up().await).await;
}

#[tokio::test]
async fn fractions_are_counted_once_however_they_are_delivered() {
    let run = Run::made_up().await;
    repeated(&run).await;
    reordered(&run).await;
    two_workers(&run).await;
}

/// The streams API itself: two workers at once, one of which dies with its lease, and a third.
#[cfg(feature = "streams")]
#[tokio::test]
async fn workers_on_the_stream_count_what_was_taken() {
    use std::time::Duration;
    use zae_limiter_aggregator::{SdkStreams, Worker};
    use zae_limiter_store::{Clock, SystemClock};
    use zae_limiter_testkit::engine::clocks::HurriedClock;

    let run = Run::taken().await;
    let builder = run.world.engine.stack(&run.world.stack);
    // Waiting takes no time, and the lease of a worker that died ends at the test's word.
    let clock = HurriedClock::at(SystemClock::new().now());
    let worker = async || {
        let streams = SdkStreams::connect(&builder).await.unwrap();
        let table = Arc::new(builder.table().await.unwrap());
        Worker::new(Arc::new(streams), table, run.aggregator().await).clock(Arc::new(clock.clone()))
    };
    let (mut first, mut second) = (worker().await, worker().await);
    cut_off(
        async {
            let _ = join(first.turn(), second.turn()).await;
        },
        9,
    )
    .await;
    drop(first);
    second.turn().await.unwrap();
    drop(second);
    clock.advance(Duration::from_secs(60));
    let mut third = worker().await;
    third.drain(|_| {}).await.unwrap();
    let usage = run.world.usage().await;
    for window in UsageWindow::ALL {
        assert_eq!(sums(&usage, window), run.books, "{window}");
    }
    assert_eq!((third.totals().usage_gaps, third.totals().poison), (0, 0));
}
