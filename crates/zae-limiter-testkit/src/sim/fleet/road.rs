//! The way of a process to the store: every call takes a round trip, and is counted.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use zae_limiter_core::{EntityId, Report, ResourceName, TimeMs};
use zae_limiter_store::{
    Adjusted, BoxFuture, BucketDelta, BucketStore as _, Clock, ConsumeOutcome, ConsumeRequest,
    MemoryStore, Order, Provisioned, Store, StoreError, StoreFuture, StoreWrapper,
};

use super::{World, lock};
use crate::rng::Rng;

/// Half a round trip, in microseconds.
const HALF_US: (u64, u64) = (1_500, 3_500);

/// What reached the store.
#[derive(Clone, Debug, Default)]
pub(super) struct Calls {
    /// Grants, orders and returns, by process.
    pub(super) writes: Vec<u64>,
    /// Those, and refusals.
    pub(super) all: u64,
}

impl Calls {
    pub(super) fn new(processes: u32) -> Calls {
        Calls { writes: vec![0; processes as usize], all: 0 }
    }
}

pub(super) struct Road {
    pub(super) store: MemoryStore,
    pub(super) world: Arc<World>,
    pub(super) process: u32,
    pub(super) rng: Mutex<Rng>,
}

impl Road {
    async fn half(&self) {
        let half = lock(&self.rng).between(HALF_US.0, HALF_US.1);
        self.world.time.sleep(Duration::from_micros(half)).await;
    }

    fn count(&self, is_write: bool) {
        let mut calls = lock(&self.world.calls);
        calls.all += 1;
        calls.writes[self.process as usize] += u64::from(is_write);
    }
}

impl StoreWrapper for Road {
    type Inner = MemoryStore;

    fn inner(&self) -> &MemoryStore {
        &self.store
    }

    fn around<'a, T: Send + 'a>(
        &'a self,
        _: &'static str,
        call: impl FnOnce(&'a MemoryStore) -> StoreFuture<'a, T> + Send + 'a,
    ) -> StoreFuture<'a, T> {
        Box::pin(async move {
            self.half().await;
            let answer = call(&self.store).await;
            self.half().await;
            answer
        })
    }

    fn wrap(&self, scoped: Arc<dyn Store>) -> Arc<dyn Store> {
        scoped
    }

    fn consume<'a>(&'a self, request: &'a ConsumeRequest<'a>) -> StoreFuture<'a, ConsumeOutcome> {
        Box::pin(async move {
            self.half().await;
            let answer = self.store.consume(request).await;
            self.count(matches!(answer, Ok(ConsumeOutcome::Granted(_))));
            self.half().await;
            answer
        })
    }

    /// The requests of a fleet cost what they said.
    fn adjust<'a>(
        &'a self,
        deltas: &'a [BucketDelta<'a>],
        now: TimeMs,
    ) -> BoxFuture<'a, Vec<Result<Adjusted, StoreError>>> {
        self.store.adjust(deltas, now)
    }

    fn provision<'a>(&'a self, order: &'a Order<'a>, now: TimeMs) -> StoreFuture<'a, Provisioned> {
        Box::pin(async move {
            self.half().await;
            let answer = self.store.provision(order, now).await;
            self.count(matches!(answer, Ok(Provisioned::Granted(_))));
            self.half().await;
            answer
        })
    }

    fn settle<'a>(
        &'a self,
        entity: &'a EntityId,
        resource: &'a ResourceName,
        report: &'a Report,
        now: TimeMs,
    ) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            self.half().await;
            let answer = self.store.settle(entity, resource, report, now).await;
            self.count(true);
            self.half().await;
            answer
        })
    }
}
