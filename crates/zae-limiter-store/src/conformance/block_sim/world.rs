//! What a run is made of: processes, faults, names, and its report.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::task::{Context, Poll, Waker};

use zae_limiter_core::{BucketState, ConfigStamp, EntityId, Limit, ResourceName, Take};

use crate::{
    BlockStore, ConsumeOutcome, Entropy, Fault, FaultStore, LimitsInForce, PageRequest,
    SeededEntropy, Store, StoreErrorKind,
};

type Blocks = BlockStore<FaultStore<dyn Store>>;

pub(super) const ENTITIES: [&str; 3] = ["child", "parent", "solo"];

/// What a run was like.
#[derive(Clone, Copy, Debug, Default)]
pub struct BlockRun {
    /// Requests that were granted.
    pub granted: u64,
    /// Of them, from stock.
    pub local: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Orders that processes made.
    pub orders: u64,
    /// Faults of the store.
    pub faults: u64,
    /// Processes that crashed.
    pub crashes: u64,
    /// Refunds and charges.
    pub adjusted: u64,
}

impl BlockRun {
    /// The sums of two runs.
    #[must_use]
    pub fn and(self, other: BlockRun) -> BlockRun {
        BlockRun {
            granted: self.granted + other.granted,
            local: self.local + other.local,
            refused: self.refused + other.refused,
            orders: self.orders + other.orders,
            faults: self.faults + other.faults,
            crashes: self.crashes + other.crashes,
            adjusted: self.adjusted + other.adjusted,
        }
    }
}

/// The store that a run is about.
pub trait Ground {
    /// Opens it as another process would.
    fn open(&self) -> Arc<dyn Store>;

    /// Opens it to look at, past all faults of its own.
    fn inspect(&self) -> Arc<dyn Store> {
        self.open()
    }

    /// What time it is, where the store has a clock of its own.
    fn set_time(&self, now_ms: i64) {
        let _ = now_ms;
    }

    /// For how long a configuration that was read may say "disabled", at the other end of a
    /// network: there requests of a process share their reads, and wait for each other's.
    fn reads_last_ms(&self) -> i64 {
        0
    }

    /// Whether the store itself has faults below it, which are switched on and off.
    fn fails(&self) -> bool {
        false
    }

    /// From now on the faults below the store happen, or do not.
    fn set_weather(&self, fails: bool) {
        let _ = fails;
    }

    /// Stores the limits of all, where takes are held to what is stored; their stamp.
    fn store_limits(&self, limits: &[Limit]) -> Option<ConfigStamp> {
        let _ = limits;
        None
    }
}

impl<F: Fn() -> Arc<dyn Store>> Ground for F {
    fn open(&self) -> Arc<dyn Store> {
        self()
    }
}

/// Which faults come next.
pub(super) struct Weather {
    pub(super) entropy: SeededEntropy,
    pub(super) percent: AtomicU32,
    pub(super) drawn: AtomicU32,
    pub(super) is_hung: AtomicBool,
}

impl Weather {
    pub(super) fn fault(&self) -> Fault {
        if self.entropy.next_u64() % 100 >= u64::from(self.percent.load(SeqCst)) {
            return Fault::None;
        }
        self.drawn.fetch_add(1, SeqCst);
        match self.entropy.next_u64() % 6 {
            0 => Fault::FailBefore(StoreErrorKind::Unavailable),
            1 => Fault::FailAfter(StoreErrorKind::Unavailable),
            2 => {
                self.is_hung.store(true, SeqCst);
                Fault::Hang
            }
            3 => {
                self.is_hung.store(true, SeqCst);
                Fault::HangAfter
            }
            _ => Fault::Yield(1 + u32::try_from(self.entropy.next_u64() % 3).unwrap_or(0)),
        }
    }
}

pub(super) fn entity(number: usize) -> EntityId {
    ENTITIES[number].parse().expect("a valid id")
}

pub(super) fn resource() -> ResourceName {
    "gpt-4".parse().expect("a valid resource")
}

/// A bucket as it is in the store.
pub(super) fn bucket(store: &dyn Store, number: usize) -> Result<Option<BucketState>, String> {
    let (page, name) = (PageRequest::default(), entity(number));
    let mut listing = store.buckets(&name, &page);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(page) = listing.as_mut().poll(&mut context) {
            let page = page.map_err(|error| error.to_string())?;
            return Ok(page.items.into_iter().next().map(|view| view.state));
        }
        std::thread::yield_now();
    }
}

/// One process.
pub(super) struct Process {
    pub(super) store: Arc<Blocks>,
    pub(super) ahead_ms: i64,
    pub(super) weather: Arc<Weather>,
    /// Which version of the limits it knows.
    pub(super) version: usize,
    pub(super) takes: Vec<Begun>,
}

/// A take that was begun, with everything it is about.
pub(super) struct Begun {
    pub(super) future: Pin<Box<dyn Future<Output = Result<ConsumeOutcome, crate::StoreError>>>>,
    pub(super) asks: Vec<Ask>,
}

#[derive(Clone)]
pub(super) struct Ask {
    pub(super) entity: usize,
    pub(super) takes: Vec<Take>,
    pub(super) limits: LimitsInForce,
}

/// A grant that may be settled.
pub(super) struct Granted {
    pub(super) process: usize,
    pub(super) ask: Ask,
}
