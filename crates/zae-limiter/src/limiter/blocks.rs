//! Local blocks: tokens bought ahead of need. The work is that of `BlockStore` in the store crate;
//! here are the switch, the numbers and the end.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use zae_limiter_core::NamespaceId;
use zae_limiter_store::{
    BlockStats, BlockStore, BoxFuture, Clock, Entropy, LocalBlocks, Store, StoreError,
};

use super::{RateLimiter, Shared};
use crate::deadline::timeout;
use crate::metrics::BlockReport;

/// The blocks of a limiter, over all its namespaces.
pub(super) struct Blocks {
    store: BlockStore<dyn Store>,
    report: BlockReport,
    /// A handle to each namespace in use.
    opened: Mutex<HashMap<Option<NamespaceId>, Arc<dyn Store>>>,
}

impl Blocks {
    pub(super) fn new(
        store: Arc<dyn Store>,
        options: LocalBlocks,
        clock: &Arc<dyn Clock>,
        entropy: &Arc<dyn Entropy>,
    ) -> Result<Blocks, StoreError> {
        let store = BlockStore::with_clock(store, options, Arc::clone(clock), Arc::clone(entropy))?;
        Ok(Blocks { store, report: BlockReport::default(), opened: Mutex::default() })
    }

    /// Remembers the store of a namespace for the end: its blocks outlive the handles to it.
    pub(super) fn opened(&self, id: Option<NamespaceId>, store: &Arc<dyn Store>) {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        opened.entry(id).or_insert_with(|| Arc::clone(store));
    }

    /// Has the settler do what no request waits for.
    pub(super) fn work_behind(
        &self,
        behind: impl Fn(BoxFuture<'static, ()>) + Send + Sync + 'static,
    ) {
        self.store.work_behind(behind);
    }

    /// The store that serves from blocks.
    pub(super) fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.store.clone())
    }
}

impl Shared {
    /// Brings the metrics of blocks up to date: with every request that the store was asked for.
    pub(super) fn publish_blocks(&self) {
        if let Some(blocks) = &self.blocks {
            blocks.report.publish(&blocks.store.counted());
        }
    }
}

impl RateLimiter {
    /// What became of the tokens that local blocks have bought, in every namespace; `None` without
    /// [`crate::Builder::local_blocks`].
    #[must_use]
    pub fn blocks(&self) -> Option<BlockStats> {
        self.scope.shared.blocks.as_ref().map(|blocks| blocks.store.stats())
    }

    /// Gives everything back that blocks hold, within the drain deadline. Stock that cannot be
    /// given back is lost, and refilled.
    pub(super) async fn give_blocks_back(&self) {
        let shared = &self.scope.shared;
        let Some(blocks) = &shared.blocks else { return };
        let stores: Vec<Arc<dyn Store>> = {
            let opened = blocks.opened.lock().unwrap_or_else(PoisonError::into_inner);
            opened.values().cloned().collect()
        };
        let all = async {
            for store in stores {
                if let Err(error) = store.give_back(shared.clock.now()).await {
                    tracing::debug!(%error, "blocks were not given back");
                }
            }
            shared.publish_blocks();
        };
        if timeout(&*shared.clock, shared.settings.drain_deadline, all).await.is_none() {
            tracing::warn!("blocks were not given back in time; what they hold is refilled");
        }
    }
}
