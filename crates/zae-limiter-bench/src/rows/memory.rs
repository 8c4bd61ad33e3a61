//! Rows of the in-memory store and of the limiter on it.

use std::process::Command;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, Waker};

use anyhow::{Context as _, Result, ensure};
use tokio::runtime::Runtime;
use zae_limiter::{
    Clock, EntityId, Level, LimitSource, LocalBlocks, MemoryStore, Prepared, RateLimiter, Request,
    SystemClock,
};
use zae_limiter_store::{
    AtOnce, BlockStore, BucketStore, ConsumeOutcome, ConsumeRequest, Grant, LimitsInForce,
    MemberTake,
};

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
            make: |_| prepared_row(false),
        },
        Entry {
            name: "memory-acquire",
            what: "acquire + commit on a MemoryStore",
            make: |_| acquire_row(false),
        },
        Entry {
            name: "block-store",
            what: "BlockStore::decide_at_once, prebuilt",
            make: |_| block_store_row(),
        },
        BLOCK_ACQUIRE,
        Entry {
            name: "block-prepared",
            what: "the same of a prepared request, with blocks",
            make: |_| prepared_row(true),
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

/// Beside rows of other suites as well.
pub(crate) const BLOCK_ACQUIRE: Entry = Entry {
    name: "block-acquire",
    what: "acquire + commit on a MemoryStore with blocks",
    make: |_| acquire_row(true),
};

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

fn limiter(runtime: &Runtime, with_blocks: bool) -> Result<RateLimiter> {
    runtime.block_on(async {
        let builder = RateLimiter::builder(MemoryStore::new());
        let limiter = match with_blocks {
            true => builder.local_blocks(LocalBlocks::default()).build()?,
            false => builder.build()?,
        };
        limiter.set_limits(&Level::System, keys::wide()).await?;
        Ok(limiter)
    })
}

fn prepared_row(with_blocks: bool) -> Result<Box<dyn Row>> {
    let runtime = one_thread()?;
    let limiter = limiter(&runtime, with_blocks)?;
    let prepare = |text: &String| {
        let request = Request::new(text.as_str(), RESOURCE);
        limiter.prepare(request.take("rpm", REQUESTS).take("tpm", TOKENS))
    };
    let requests = keys::texts(KEYS).iter().map(prepare).collect::<Result<_, _>>()?;
    Ok(Calls::alone(runtime, PreparedOp { requests }, 32))
}

/// What blocks decide, and now and then an order of the next one.
fn block_store_row() -> Result<Box<dyn Row>> {
    let store = BlockStore::new(Arc::new(MemoryStore::new()), LocalBlocks::default())?;
    let (entities, resource) = (keys::entities(KEYS), keys::resource());
    let limits = LimitsInForce::new(keys::wide(), LimitSource::System);
    let (takes, clock) = (super::sqlite::takes(), SystemClock::new());
    let consume = move |entity: &EntityId| {
        let member =
            MemberTake { entity, resource: &resource, limits: &limits, takes: &takes, absent: &[] };
        let members = [member];
        let request = ConsumeRequest::new(&members, clock.now());
        let mut grant = Grant::default();
        if matches!(store.decide_at_once(&request, &mut grant), AtOnce::Granted) {
            assert!(grant.is_local);
            return;
        }
        // A store in memory is ready at once.
        let mut order = store.consume(&request);
        match order.as_mut().poll(&mut TaskContext::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => assert!(matches!(outcome, Ok(ConsumeOutcome::Granted(_)))),
            Poll::Pending => panic!("nobody else orders"),
        }
    };
    entities.iter().for_each(&consume);
    Ok(Box::new(Direct::new(move |random| consume(pick(&entities, random)), 32)))
}

fn acquire_row(with_blocks: bool) -> Result<Box<dyn Row>> {
    let runtime = one_thread()?;
    let limiter = limiter(&runtime, with_blocks)?;
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
