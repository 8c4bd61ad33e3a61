//! `docs/cost.md`: what every path costs, measured on a table that counts units as DynamoDB bills
//! them, and multiplied by the price of a unit.

use std::cell::Cell;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use zae_limiter_dynamodb::stream::{BucketName, Upkeep};
use zae_limiter_store::{Level, SeededEntropy};
use zae_limiter_testkit::table::Counters;
use zae_limiter_testkit::zae_limiter::{
    Builder, Limit, LocalBlocks, NewEntity, RateLimiter, Request,
};

use crate::log::{Log, at};
use crate::rig::Rig;

/// Dollars per million units on demand, us-east-1.
const WRITES: f64 = 0.625;
const READS: f64 = 0.125;

/// Records that a function gets at once, as its trigger is set up.
const BATCH: usize = 100;

/// One row of the page.
struct Row {
    what: &'static str,
    /// How often it happened while it was measured.
    times: u64,
    counted: Counters,
    /// What the Python package's documentation says of the same.
    python: &'static str,
}

impl Row {
    fn per_time(&self, counted: u64) -> f64 {
        counted as f64 / self.times as f64
    }

    fn writes(&self) -> f64 {
        self.per_time(self.counted.units.writes())
    }

    fn reads(&self) -> f64 {
        self.per_time(self.counted.units.read_halves) / 2.0
    }

    fn dollars(&self) -> f64 {
        self.writes() * WRITES + self.reads() * READS
    }

    fn line(&self) -> String {
        let failed = match self.per_time(self.counted.failed.writes()) {
            0.0 => String::new(),
            failed => format!(", {} of them failed", short(failed)),
        };
        format!(
            "| {} | {} | {}{failed} | {} | {} | {} |\n",
            self.what,
            short(self.per_time(self.counted.all_calls())),
            short(self.writes()),
            short(self.reads()),
            dollars(self.dollars()),
            self.python
        )
    }
}

/// At most two digits behind the point.
fn short(number: f64) -> String {
    let text = format!("{number:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// At most three digits behind the point.
fn dollars(dollars: f64) -> String {
    let text = format!("{dollars:.3}");
    format!("${}", text.trim_end_matches('0').trim_end_matches('.'))
}

/// A table with limits, and those who take from it.
struct Meter {
    rig: Rig,
    seeds: Cell<u64>,
    rows: Vec<Row>,
}

impl Meter {
    async fn limiter(&self, shards: u32) -> RateLimiter {
        self.builder(shards).await.build().unwrap()
    }

    async fn builder(&self, shards: u32) -> Builder {
        let mut options = self.rig.options();
        options.born_split = shards;
        // Every process draws its own tokens.
        self.seeds.set(self.seeds.get() + 1);
        options.entropy = Arc::new(SeededEntropy::new(self.seeds.get()));
        let store = self.rig.table.open(options).await.unwrap();
        RateLimiter::builder(store)
            .clock(self.rig.clock.clone())
            .config_cache_ttl(Duration::from_secs(3_600))
    }

    /// Measures what happens `times` times.
    async fn row(
        &mut self,
        (what, python): (&'static str, &'static str),
        times: u64,
        mut work: impl AsyncFnMut(),
    ) {
        self.rig.table.take_counters();
        for _ in 0..times {
            work().await;
        }
        let counted = self.rig.table.take_counters();
        self.rows.push(Row { what, times, counted, python });
    }
}

fn request(entity: &str, tokens: u64) -> Request {
    Request::new(entity, "gpt-4").take("rpm", 1).take("tpm", tokens)
}

async fn take(limiter: &RateLimiter, entity: &str, tokens: u64) {
    limiter.acquire(request(entity, tokens)).await.unwrap().commit().await.unwrap();
}

async fn refused(limiter: &RateLimiter, entity: &str, tokens: u64) {
    limiter.acquire(request(entity, tokens)).await.unwrap_err();
}

/// Rows of buckets of one item.
async fn of_one_item(meter: &mut Meter) {
    let limiter = meter.limiter(1).await;
    let limits: Vec<Limit> =
        ["rpm:1000000/day", "tpm:1000000/day"].map(|text| text.parse().unwrap()).into();
    limiter.set_limits(&Level::System, limits).await.unwrap();
    limiter.create_entity(NewEntity::new("org")).await.unwrap();
    let key = NewEntity::new("key");
    limiter.create_entity(key.parent("org").cascade()).await.unwrap();
    for entity in ["warm-up", "key"] {
        take(&limiter, entity, 1).await;
    }
    let first = ("the first `acquire` of a bucket", "–");
    meter.row(first, 1, async || take(&limiter, "a", 1).await).await;
    let warm = ("`acquire`, warm", "$0.625; $0.75 without speculation");
    meter.row(warm, 10, async || take(&limiter, "a", 1).await).await;
    let cascade = ("`acquire` of a key and its parent, warm", "$1.25; $1.75 without speculation");
    meter.row(cascade, 10, async || take(&limiter, "key", 1).await).await;
    let adjust = async || {
        let lease = limiter.acquire(request("a", 10)).await.unwrap();
        lease.adjust("tpm", 7).unwrap();
        lease.commit().await.unwrap();
    };
    meter.row(("`acquire` and `adjust`", "–"), 10, adjust).await;
    let give_back = async || {
        limiter.acquire(request("a", 10)).await.unwrap().rollback().await.unwrap();
    };
    meter.row(("`acquire` and give back", "–"), 10, give_back).await;
    take(&limiter, "a", 500_000).await;
    meter.rig.clock.advance(Duration::from_secs(60));
    let first = ("a refusal, one minute after the last look at the bucket", "–");
    meter.row(first, 1, async || refused(&limiter, "a", 900_000).await).await;
    let again = ("a refusal within a second of that", "$0");
    meter.row(again, 10, async || refused(&limiter, "a", 900_000).await).await;
}

/// Rows of buckets of 32 items.
async fn of_shards(meter: &mut Meter) {
    let limiter = meter.limiter(32).await;
    for _ in 0..200 {
        take(&limiter, "hot", 1).await;
    }
    let warm = ("`acquire` from one of 32 shards, warm", "$0.625");
    meter.row(warm, 100, async || take(&limiter, "hot", 1).await).await;
    let gathered =
        ("`acquire` of a tenth of the capacity: more than any of 32 shards has", "refused");
    meter.row(gathered, 1, async || take(&limiter, "hot", 100_000).await).await;
    meter.rig.clock.advance(Duration::from_secs(60));
    let refusal = ("a refusal over 32 shards, a minute after the last look", "–");
    meter.row(refusal, 1, async || refused(&limiter, "hot", 1_000_000).await).await;

    let whole = meter.limiter(1).await;
    take(&whole, "split", 1).await;
    let mut options = meter.rig.options();
    options.entropy = Arc::new(SeededEntropy::new(99));
    let upkeep = Upkeep::new(Arc::new(meter.rig.table.clone()), options);
    let name = |entity: &str| BucketName {
        namespace: meter.rig.namespace.clone(),
        entity: entity.to_owned(),
        resource: "gpt-4".to_owned(),
    };
    let (split, hot) = (name("split"), name("hot"));
    let one = async || assert!(upkeep.split(&split, 0).await.unwrap());
    meter.row(("a split of one shard into two", "–"), 1, one).await;
    let none = async || assert!(!upkeep.fold(&hot).await.unwrap());
    meter.row(("an attempt to fold 32 shards that are not quiet", "–"), 1, none).await;
    meter.rig.clock.advance(Duration::from_secs(3_600));
    let all = async || assert!(upkeep.fold(&hot).await.unwrap());
    meter.row(("a fold of 32 shards into one", "–"), 1, all).await;
}

/// Rows of local blocks: one process, one key, so many calls a second, each with a refund.
async fn of_blocks(meter: &mut Meter) {
    for (what, entity, pause_ms) in [
        ("`acquire` and `adjust` with local blocks, 10 calls a second", "slow", 100),
        ("`acquire` and `adjust` with local blocks, 100 calls a second", "busy", 10),
        ("`acquire` and `adjust` with local blocks, 1 000 calls a second", "hot-key", 1),
    ] {
        let builder = meter.builder(1).await.local_blocks(LocalBlocks::default());
        let (limiter, clock) = (builder.build().unwrap(), meter.rig.clock.clone());
        let call = async || {
            let lease = limiter.acquire(request(entity, 10)).await.unwrap();
            lease.adjust("tpm", -4).unwrap();
            lease.commit().await.unwrap();
            clock.advance(Duration::from_millis(pause_ms));
        };
        for _ in 0..3_000 / pause_ms {
            call().await;
        }
        meter.row((what, "–"), 10_000 / pause_ms, call).await;
    }
}

/// Rows of the aggregator: units per take.
async fn of_the_aggregator(meter: &mut Meter) {
    let mut log = Log::new(&meter.rig.namespace);
    let now = at("2026-02-01T03:00:00Z");
    let names: Vec<String> = (0..BATCH).map(|number| format!("key-{number}")).collect();
    let amounts = [("rpm", 1_000), ("tpm", 500_000)];
    for name in &names {
        log.take(now, (name, "gpt-4", 0), &amounts);
    }
    for _ in 0..BATCH {
        log.take(now, ("hot-one", "gpt-4", 0), &amounts);
    }
    for records in log.records.chunks(BATCH) {
        meter.rig.process(records).await;
    }
    let from = log.records.len();
    for name in &names {
        log.take(now, (name, "gpt-4", 0), &amounts);
    }
    for _ in 0..BATCH {
        log.take(now, ("hot-one", "gpt-4", 0), &amounts);
    }
    let (spread, one) = log.records[from..].split_at(BATCH);
    for (what, records) in [
        ("counting a take in three windows, 100 records of 100 buckets at once", spread),
        ("counting a take in three windows, 100 records of one bucket at once", one),
    ] {
        meter.rig.table.take_counters();
        meter.rig.process(records).await;
        let counted = meter.rig.table.take_counters();
        meter.rows.push(Row { what, times: BATCH as u64, counted, python: "–" });
    }
}

fn page(rows: &[Row]) -> String {
    let mut page = String::from(HEAD);
    for row in rows {
        page += &row.line();
    }
    let of = |what: &str| {
        let row = rows.iter().find(|row| row.what == what);
        row.unwrap_or_else(|| panic!("there is no row {what}")).dollars()
    };
    let (warm, one) = (
        of("`acquire`, warm"),
        of("counting a take in three windows, 100 records of one bucket at once"),
    );
    let spread = of("counting a take in three windows, 100 records of 100 buckets at once");
    write!(
        page,
        "\nA million warm takes cost {} and counting them {} to {}, depending on\nhow many buckets \
         share a batch.\n",
        dollars(warm),
        dollars(one),
        dollars(spread)
    )
    .unwrap();
    page + TAIL
}

const HEAD: &str = "\
# What it costs

Written by a test, `cost::the_page_is_current` of the aggregator, which runs every path on a table
that counts units as DynamoDB bills them: one write unit per begun KB of an item and of every index
entry that changes, two in a transaction, failed conditions included; one read unit per 4 KB. Two
limits per bucket (`rpm`, `tpm`), short ids. `ZAEL_WRITE_COST=1 cargo test --workspace --test it
cost::` writes the page again.

Prices on demand in us-east-1: $0.625 per million write units, $0.125 per million read units. The
last column is what the documentation of the Python package says of the same path, by the same
prices; \"–\" where it says nothing.

| what | requests | write units | read units | per million | Python package |
|---|---|---|---|---|---|
";

const TAIL: &str = "\n\
What is not in the table:

- **Configuration.** A process reads the limits of a bucket that it uses once per
  `config_cache_ttl` (60 s): about six read units per entity and resource, which is $0.001 a day.
- **The function or worker itself.** A Lambda is billed by its own calls and memory, and reads the
  stream for free. A worker pays $0.02 per 100 000 reads of the stream, and 17 000 write units a day
  per shard of the stream for its lease: $0.01.
- **Crowds.** Many processes on one bucket lose races: up to 3 write units per grant above the limit
  ([benchmarks-dynamodb.md](benchmarks-dynamodb.md#crowds)).
- **Larger items.** Long ids and many limits make a bucket larger than 1 KB; every write of it is
  then two units ([dynamodb.md](dynamodb.md#what-a-call-costs)).
- **GSI2.** Tables that the Python package has made project everything into GSI2: every take is then
  written twice. Ours keeps keys only there.
- Storage, backups, and data transfer.
";

#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "who runs the test may have the page written")]
async fn the_page_is_current() {
    let mut meter = Meter { rig: Rig::new().await, seeds: Cell::new(100), rows: Vec::new() };
    of_one_item(&mut meter).await;
    of_shards(&mut meter).await;
    of_blocks(&mut meter).await;
    of_the_aggregator(&mut meter).await;
    let current = page(&meter.rows);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cost.md");
    if std::env::var_os("ZAEL_WRITE_COST").is_some() {
        std::fs::write(&path, &current).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == current,
        "docs/cost.md is not current; ZAEL_WRITE_COST=1 writes it:\n{current}"
    );
}
