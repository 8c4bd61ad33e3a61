//! Shards on a table of your own: takes, splits, gathers and refusals one by one, then a crowd on
//! 32 shards. For whoever has an AWS account: no engine on one machine shows what a hot item does.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use futures_util::future::{join_all, try_join_all};
use hdrhistogram::Histogram;
use serde_json::json;
use zae_limiter::{
    AcquireError, Clock as _, Level, Limit, NewEntity, RateLimiter, Request, SystemClock,
};
use zae_limiter_dynamodb::sdk::Builder;
use zae_limiter_dynamodb::stream::{BucketName, Upkeep};
use zae_limiter_dynamodb::{Counters, DynamoOptions, DynamoStore};

use crate::args::{Output, Shards};
use crate::cell::all_cores;
use crate::histogram::histogram;

const RESOURCE: &str = "bench-shards";
const SHARDS: u32 = 32;
const CAPACITY: u64 = 1_000_000_000;
/// More than any of 32 shards has, and so little that ten of them fit into the capacity.
const GATHERED: u64 = CAPACITY / 25;
const GATHERS: usize = 10;
/// A process reads all shards of a bucket once in 250 ms.
const BETWEEN_GATHERS: Duration = Duration::from_millis(300);
/// A process looks at all shards of a refused bucket again after a second.
const BETWEEN_REFUSALS: Duration = Duration::from_millis(1_100);
const REFUSALS: usize = 3;

/// What one kind of call took.
struct Row {
    name: &'static str,
    what: &'static str,
    times: Histogram<u64>,
}

/// What a crowd got.
struct Crowd {
    callers: usize,
    seconds: f64,
    granted: u64,
    refused: u64,
    failed: u64,
}

pub(crate) fn run(args: &Shards) -> Result<()> {
    let runtime = all_cores()?;
    let (rows, crowd, counters) = runtime.block_on(measure(args))?;
    crate::print(&match args.output {
        Output::Table => table(&rows, &crowd, counters),
        Output::Json => json(&rows, &crowd, counters),
    })
}

async fn measure(args: &Shards) -> Result<(Vec<Row>, Crowd, Counters)> {
    let builder = builder(args);
    let store = builder.clone().connect().await.context("the stack")?;
    let limiter = RateLimiter::builder(store.clone()).build()?;
    let entity = format!("bench-shards-{}", std::process::id());
    limiter.create_entity(NewEntity::new(entity.as_str())).await?;
    let namespace = args.namespace.clone();
    let bench = Bench { builder, store, limiter, namespace, entity };
    let measured = bench.measure(args).await;
    // Whatever happened, nothing is left behind.
    let deleted = bench.limiter.delete_entity(bench.entity.as_str()).await;
    let measured = measured?;
    deleted.context("what was measured on could not be deleted")?;
    Ok(measured)
}

fn builder(args: &Shards) -> Builder {
    let builder = DynamoStore::builder(&args.name, &args.region).namespace(&args.namespace);
    match &args.endpoint {
        Some(url) => builder.endpoint_url(url),
        None => builder,
    }
}

struct Bench {
    builder: Builder,
    store: DynamoStore,
    limiter: RateLimiter,
    namespace: String,
    entity: String,
}

impl Bench {
    async fn measure(&self, args: &Shards) -> Result<(Vec<Row>, Crowd, Counters)> {
        let limits: Vec<Limit> = vec![Limit::custom("rpm", CAPACITY, CAPACITY, 86_400)?];
        let level = Level::entity(self.entity.as_str())?;
        self.limiter.set_limits(&level, limits).await?;
        self.take(1).await?;
        let takes = args.takes as usize;
        let mut rows = vec![
            timed("take", "warm take, one item", takes, || self.take(1)).await?,
            self.split().await?,
        ];
        for _ in 0..4 * SHARDS {
            self.take(1).await?;
        }
        rows.push(timed("take-sharded", "warm take, 32 shards", takes, || self.take(1)).await?);
        rows.push(self.gathers().await?);
        rows.push(self.refusals().await?);
        let crowd = self.crowd(args).await?;
        Ok((rows, crowd, self.store.counters()))
    }

    async fn take(&self, tokens: u64) -> Result<()> {
        Ok(self.limiter.acquire(self.request(tokens)).await?.commit().await?)
    }

    fn request(&self, tokens: u64) -> Request {
        Request::new(self.entity.as_str(), RESOURCE).take("rpm", tokens)
    }

    /// Splits one by one until there are 32.
    async fn split(&self) -> Result<Row> {
        let table = std::sync::Arc::new(self.builder.table().await?);
        let upkeep = Upkeep::new(table, DynamoOptions::new());
        let namespace = self.limiter.namespace_info(self.namespace.as_str()).await?;
        let namespace = namespace.context("the namespace")?.id.to_string();
        let resource = RESOURCE.to_owned();
        let bucket = BucketName { namespace, entity: self.entity.clone(), resource };
        let mut times = histogram();
        let mut count = 1;
        while count < SHARDS {
            for shard in 0..count {
                let began = now();
                ensure!(upkeep.split(&bucket, shard).await?, "shard {shard} was not split");
                note(&mut times, began);
            }
            count *= 2;
        }
        Ok(Row { name: "split", what: "one shard into two", times })
    }

    async fn gathers(&self) -> Result<Row> {
        let what = "a take from two or more of 32 shards";
        let mut times = histogram();
        for _ in 0..GATHERS {
            SystemClock::new().sleep(BETWEEN_GATHERS).await;
            let began = now();
            self.take(GATHERED).await.context(what)?;
            note(&mut times, began);
        }
        Ok(Row { name: "gather", what, times })
    }

    async fn refusals(&self) -> Result<Row> {
        let mut times = histogram();
        for _ in 0..REFUSALS {
            SystemClock::new().sleep(BETWEEN_REFUSALS).await;
            let began = now();
            match self.limiter.acquire(self.request(CAPACITY)).await {
                Err(AcquireError::Exceeded(_)) => note(&mut times, began),
                Err(error) => return Err(error.into()),
                Ok(_) => bail!("more was granted than is left"),
            }
        }
        Ok(Row { name: "refusal", what: "a refusal by all of 32 shards", times })
    }

    /// Callers that take one after the other, each by one of several processes' worth of handles.
    async fn crowd(&self, args: &Shards) -> Result<Crowd> {
        let handles = (0..args.handles).map(|_| async {
            let store = self.builder.clone().connect().await?;
            anyhow::Ok(RateLimiter::builder(store).build()?)
        });
        let handles = try_join_all(handles).await?;
        let (began, lasts) = (now(), Duration::from_secs(u64::from(args.seconds)));
        let callers = handles.iter().cycle().take(args.callers as usize).map(|limiter| async {
            let mut counted = (0, 0, 0);
            while began.elapsed() < lasts {
                match limiter.acquire(self.request(1)).await {
                    Ok(lease) => {
                        lease.commit().await?;
                        counted.0 += 1;
                    }
                    Err(AcquireError::Exceeded(_)) => counted.1 += 1,
                    Err(_) => counted.2 += 1,
                }
            }
            anyhow::Ok(counted)
        });
        let counted = join_all(callers).await.into_iter().collect::<Result<Vec<_>>>()?;
        let sum = |part: fn(&(u64, u64, u64)) -> u64| counted.iter().map(part).sum();
        Ok(Crowd {
            callers: counted.len(),
            seconds: began.elapsed().as_secs_f64(),
            granted: sum(|counted| counted.0),
            refused: sum(|counted| counted.1),
            failed: sum(|counted| counted.2),
        })
    }
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn now() -> Instant {
    Instant::now()
}

fn note(times: &mut Histogram<u64>, began: Instant) {
    times.saturating_record(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX));
}

async fn timed<F: Future<Output = Result<()>>>(
    name: &'static str,
    what: &'static str,
    times: usize,
    mut call: impl FnMut() -> F,
) -> Result<Row> {
    crate::rounds::tell(&format!("{times} times: {what}"));
    let mut taken = histogram();
    for _ in 0..times {
        let began = now();
        call().await.with_context(|| what.to_owned())?;
        note(&mut taken, began);
    }
    Ok(Row { name, what, times: taken })
}

fn ms(row: &Row, quantile: f64) -> f64 {
    row.times.value_at_quantile(quantile) as f64 / 1e6
}

fn table(rows: &[Row], crowd: &Crowd, counters: Counters) -> String {
    let mut text =
        String::from("| row | what | calls | p50 ms | p99 ms |\n|---|---|---|---|---|\n");
    for row in rows {
        let (calls, p50, p99) = (row.times.len(), ms(row, 0.5), ms(row, 0.99));
        let _ = writeln!(text, "| `{}` | {} | {calls} | {p50:.2} | {p99:.2} |", row.name, row.what);
    }
    let Crowd { callers, seconds, granted, refused, failed } = crowd;
    let per_s = *granted as f64 / seconds;
    let _ = writeln!(
        text,
        "\n{callers} callers for {seconds:.1} s: {per_s:.0} takes/s, {refused} refused, {failed} failed"
    );
    let Counters { splits, gathers, contended, .. } = counters;
    let _ = writeln!(
        text,
        "the first process split {splits} times by itself, gathered {gathers} times, lost {contended} races"
    );
    text
}

fn json(rows: &[Row], crowd: &Crowd, counters: Counters) -> String {
    let rows: Vec<_> = rows
        .iter()
        .map(|row| {
            json!({
                "row": row.name, "calls": row.times.len(), "p50_ms": ms(row, 0.5), "p99_ms": ms(row, 0.99),
            })
        })
        .collect();
    let crowd = json!({
        "callers": crowd.callers, "seconds": crowd.seconds, "granted": crowd.granted,
        "refused": crowd.refused, "failed": crowd.failed,
    });
    let counters = json!({
        "splits": counters.splits, "gathers": counters.gathers, "contended": counters.contended,
    });
    format!("{}\n", json!({ "rows": rows, "crowd": crowd, "counters": counters }))
}
