//! What a process does that a row has started.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::json;
use tokio::task::JoinSet;
use zae_limiter::store::MemoryOptions;
use zae_limiter::{Clock, LimitSource, MemoryStore, RateLimiter, Request, SystemClock};
use zae_limiter_sqlite::{SqliteOptions, SqliteStore, Synchronous};
use zae_limiter_store::{ConsumeOutcome, ConsumeRequest, LimitsInForce, MemberTake};

use crate::args::{Options, Output, Role, SuiteName};
use crate::cell::{Op, all_cores, cpu_time, nanos, now, repeat};
use crate::keys::{self, KEYS, REQUESTS, RESOURCE, TOKENS, pick};
use crate::rounds::Suite;

pub(crate) fn play(role: &Role) -> Result<()> {
    let answer = match role {
        Role::Share { path, callers, start_ms, time_ms, full } => {
            let synchronous = if *full { Synchronous::Full } else { Synchronous::Normal };
            share(path, *callers, synchronous, (*start_ms, *time_ms))?.write()
        }
        Role::Weigh { what, keys } => weigh(what, *keys)?.to_string(),
        Role::Rows { suite } => json!({ "rows": ours(*suite) }).to_string(),
        Role::Round { suite, row, quick, folder, lasting } => {
            let places = (folder.clone(), lasting.clone());
            round(*suite, row, *quick, places)?
        }
        Role::Canned => return crate::dynamodb::serve_canned(),
    };
    writeln!(std::io::stdout(), "{answer}").context("an answer")
}

fn suite_of(suite: SuiteName) -> Suite {
    match suite {
        SuiteName::Embedded => Suite::embedded(),
        SuiteName::Dynamodb => Suite::dynamodb(),
    }
}

/// The rows that are compared between builds. Those of others are the same code in both.
fn ours(suite: SuiteName) -> Vec<&'static str> {
    let is_ours = |name: &&str| match suite {
        SuiteName::Embedded => {
            ["sqlite-", "process-", "memory-"].iter().any(|word| name.starts_with(word))
        }
        SuiteName::Dynamodb => !["bare", "python"].iter().any(|word| name.starts_with(word)),
    };
    suite_of(suite).rows.iter().map(|row| row.name).filter(is_ours).collect()
}

/// Measures one row once.
fn round(
    suite: SuiteName,
    row: &str,
    quick: bool,
    (folder, lasting): (Option<PathBuf>, Option<PathBuf>),
) -> Result<String> {
    let options = Options {
        rounds: Some(1),
        quick,
        only: vec![row.to_owned()],
        list: false,
        output: Output::Json,
    };
    let results = crate::rounds::run(&options, Suite { folder, lasting, ..suite_of(suite) })?;
    Ok(crate::report::json(&results))
}

/// What one of several processes on a file got done.
pub(crate) struct Shared {
    pub(crate) ops: u64,
    pub(crate) cpu: Duration,
    /// The longest time without a grant.
    pub(crate) gap: Duration,
}

impl Shared {
    fn write(&self) -> String {
        format!("{} {} {}", self.ops, nanos(self.cpu), nanos(self.gap))
    }

    pub(crate) fn read(text: &str) -> Result<Shared> {
        let numbers = text.split_whitespace().map(str::parse).collect::<Result<Vec<u64>, _>>()?;
        let [ops, cpu, gap] = numbers[..] else { bail!("a child answered {text:?}") };
        Ok(Shared { ops, cpu: Duration::from_nanos(cpu), gap: Duration::from_nanos(gap) })
    }
}

struct ShareOp {
    limiter: RateLimiter,
    texts: Vec<String>,
    /// When the last grant was, and the longest time between two.
    last: Mutex<(Instant, Duration)>,
}

impl Op for ShareOp {
    async fn call(&self, random: u64) {
        let request = Request::new(pick(&self.texts, random).as_str(), RESOURCE)
            .take("rpm", REQUESTS)
            .take("tpm", TOKENS);
        self.limiter
            .acquire(request)
            .await
            .expect("a grant")
            .commit()
            .await
            .expect("nothing to write");
        let mut last = self.last.lock().expect("nobody panics with it");
        let time = now();
        *last = (time, last.1.max(time - last.0));
    }
}

/// Acquires from `start_ms` on for `time_ms`. All processes stop at the same moment, so nobody
/// catches up alone.
fn share(
    path: &Path,
    callers: usize,
    synchronous: Synchronous,
    (start_ms, time_ms): (u64, u64),
) -> Result<Shared> {
    let runtime = if callers == 1 { crate::cell::one_thread()? } else { all_cores()? };
    let store = SqliteStore::open_with(path, SqliteOptions::new().synchronous(synchronous))?;
    let limiter = runtime.block_on(async { RateLimiter::builder(store).build() })?;
    let op = Arc::new(ShareOp {
        limiter,
        texts: keys::texts(KEYS),
        last: Mutex::new((now(), Duration::ZERO)),
    });
    let wall_ms = u64::try_from(SystemClock::new().now().0)?;
    let start = now()
        + Duration::from_millis(
            start_ms.checked_sub(wall_ms).context("the start has passed already")?,
        );
    // Warm until shortly before the start, then wait for it.
    runtime.block_on(repeat(&*op, 1, 1, start - Duration::from_millis(50)));
    runtime.block_on(async { SystemClock::new().sleep(start - now()).await });
    *op.last.lock().expect("nobody panics with it") = (now(), Duration::ZERO);
    let (cpu, until) = (cpu_time(), start + Duration::from_millis(time_ms));
    let ops = if callers == 1 {
        runtime.block_on(repeat(&*op, 1, 1, until)).0
    } else {
        runtime.block_on(async {
            let mut tasks = JoinSet::new();
            for number in 1..=callers {
                let op = Arc::clone(&op);
                tasks.spawn(async move { repeat(&*op, number as u64, 1, until).await.0 });
            }
            tasks.join_all().await.into_iter().sum()
        })
    };
    let gap = op.last.lock().expect("nobody panics with it").1;
    Ok(Shared { ops, cpu: cpu_time() - cpu, gap })
}

/// Bytes of memory per key, as the operating system sees them.
fn weigh(what: &str, keys: usize) -> Result<f64> {
    let texts = keys::texts(keys);
    // Borrowed: a text that is given back to the allocator while the keys are counted would make
    // them look lighter.
    let mut texts = texts.iter();
    match what {
        "memory" => {
            let store = MemoryStore::with_options(MemoryOptions {
                buckets_max: 2 * keys,
                ..MemoryOptions::default()
            });
            let limits = LimitsInForce::new(keys::wide(), LimitSource::System);
            let (resource, takes) = (keys::resource(), [(0, REQUESTS), (1, TOKENS)]);
            let takes = takes.map(|(limit, tokens)| zae_limiter::domain::Take {
                limit,
                amount: zae_limiter::Milli::from_tokens(tokens),
            });
            grown(keys, || {
                let entity = texts.next().expect("a text per key").parse().expect("a valid id");
                let member = MemberTake {
                    entity: &entity,
                    resource: &resource,
                    limits: &limits,
                    takes: &takes,
                    absent: &[],
                };
                let outcome =
                    store.consume_now(&ConsumeRequest::new(&[member], SystemClock::new().now()));
                assert!(matches!(outcome, Ok(ConsumeOutcome::Granted(_))));
            })
        }
        #[cfg(feature = "peers")]
        "governor" => {
            let mut check = crate::peers::two_governors();
            grown(keys, || check(texts.next().expect("a text per key")))
        }
        other => bail!("nothing is called {other}"),
    }
}

/// How much this process grows per call. What the calls read is made before, so that only what they
/// keep counts.
fn grown(calls: usize, mut call: impl FnMut()) -> Result<f64> {
    let before = resident_bytes()?;
    (0..calls).for_each(|_| call());
    Ok((resident_bytes()? - before) / calls as f64)
}

fn resident_bytes() -> Result<f64> {
    let status =
        std::fs::read_to_string("/proc/self/status").context("memory is measured on Linux only")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
    let kib: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib * 1024.0)
}
