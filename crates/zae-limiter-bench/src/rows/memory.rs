//! Rows of the in-memory store and of the limiter on it.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use tokio::runtime::Runtime;
use zae_limiter::{
    Clock, EntityId, Level, LimitSource, MemoryStore, Prepared, RateLimiter, Request, SystemClock,
};
use zae_limiter_store::{ConsumeOutcome, ConsumeRequest, LimitsInForce, MemberTake};

use super::{Context, Entry};
use crate::cell::{Calls, Cell, Direct, Figures, Op, Row, Sample, one_thread};
use crate::histogram::histogram;
use crate::keys::{self, KEYS, REQUESTS, RESOURCE, TOKENS, pick};

pub(super) fn rows() -> Vec<Entry> {
    vec![
        Entry {
            name: "memory-store",
            what: "MemoryStore::consume_now, prebuilt",
            make: |_| store_row(KEYS),
        },
        Entry {
            name: "memory-prepared",
            what: "acquire + commit of a prepared request",
            make: |_| prepared_row(),
        },
        Entry {
            name: "memory-acquire",
            what: "acquire + commit on a MemoryStore",
            make: |_| acquire_row(),
        },
        Entry {
            name: "memory-store-1m",
            what: "consume_now, a million keys",
            make: |context| store_row(context.million()),
        },
        Entry {
            name: "memory-weight",
            what: "memory of a million keys",
            make: |context| Ok(Weight::row("memory", context)),
        },
    ]
}

fn store_row(keys: usize) -> Result<Box<dyn Row>> {
    let (store, entities, resource) = (MemoryStore::new(), keys::entities(keys), keys::resource());
    let limits = LimitsInForce::new(keys::wide(), LimitSource::System);
    let (takes, clock) = (super::sqlite::takes(), SystemClock::new());
    let consume = move |entity: &EntityId| {
        let member =
            MemberTake { entity, resource: &resource, limits: &limits, takes: &takes, absent: &[] };
        let outcome = store.consume_now(&ConsumeRequest::new(&[member], clock.now()));
        assert!(matches!(outcome, Ok(ConsumeOutcome::Granted(_))));
    };
    entities.iter().for_each(&consume);
    Ok(Box::new(Direct::new(move |random| consume(pick(&entities, random)), 32)))
}

struct AcquireOp {
    limiter: RateLimiter,
    texts: Vec<String>,
}

impl Op for AcquireOp {
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
    }
}

struct PreparedOp {
    requests: Vec<Prepared>,
}

impl Op for PreparedOp {
    async fn call(&self, random: u64) {
        let lease = pick(&self.requests, random).acquire().await.expect("a grant");
        lease.commit().await.expect("nothing to write");
    }
}

fn limiter(runtime: &Runtime) -> Result<RateLimiter> {
    runtime.block_on(async {
        let limiter = RateLimiter::builder(MemoryStore::new()).build()?;
        limiter.set_limits(&Level::System, keys::wide()).await?;
        Ok(limiter)
    })
}

fn prepared_row() -> Result<Box<dyn Row>> {
    let runtime = one_thread()?;
    let limiter = limiter(&runtime)?;
    let prepare = |text: &String| {
        let request = Request::new(text.as_str(), RESOURCE);
        limiter.prepare(request.take("rpm", REQUESTS).take("tpm", TOKENS))
    };
    let requests = keys::texts(KEYS).iter().map(prepare).collect::<Result<_, _>>()?;
    Ok(Calls::alone(runtime, PreparedOp { requests }, 32))
}

fn acquire_row() -> Result<Box<dyn Row>> {
    let runtime = one_thread()?;
    let limiter = limiter(&runtime)?;
    Ok(Calls::alone(runtime, AcquireOp { limiter, texts: keys::texts(KEYS) }, 32))
}

/// Weighs keys in a process of their own: nothing else there grows meanwhile.
pub(crate) struct Weight {
    what: &'static str,
    keys: usize,
}

impl Weight {
    pub(crate) fn row(what: &'static str, context: &Context) -> Box<dyn Row> {
        Box::new(Weight { what, keys: context.million() })
    }
}

impl Row for Weight {
    fn run(&mut self, _: Cell) -> Result<Sample> {
        let started = crate::cell::now();
        let program = std::env::current_exe().context("this program")?;
        let output = Command::new(program)
            .args(["child", "weigh", self.what, &self.keys.to_string()])
            .output()?;
        ensure!(
            output.status.success(),
            "a child failed: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let bytes: f64 =
            String::from_utf8(output.stdout)?.trim().parse().context("the child's answer")?;
        Ok(Sample {
            ops: self.keys as u64,
            wall: started.elapsed(),
            cpu: std::time::Duration::ZERO,
            server_cpu: None,
            latency: histogram(),
            figures: Figures::from([("bytes per key", bytes)]),
        })
    }
}
