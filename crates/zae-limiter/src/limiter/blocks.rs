//! Local blocks: tokens bought ahead of need. The work is that of `BlockStore` in the store crate;
//! here are the switch, the numbers and the end.

use std::sync::{Arc, PoisonError};

use zae_limiter_store::{BlockStats, BlockStore, LocalBlocks, Store, StoreError};

use super::{RateLimiter, Scope, Shared};
use crate::deadline::timeout;
use crate::metrics::BlockReport;

/// The blocks of a limiter, over all its namespaces.
pub(super) struct Blocks {
    store: BlockStore<dyn Store>,
    report: BlockReport,
}

impl Blocks {
    pub(super) fn new(store: Arc<dyn Store>, options: LocalBlocks) -> Result<Blocks, StoreError> {
        let store = BlockStore::new(store, options)?;
        Ok(Blocks { store, report: BlockReport::default() })
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
        if shared.blocks.is_none() {
            return;
        }
        let scopes: Vec<Arc<Scope>> = {
            let scopes = shared.scopes.lock().unwrap_or_else(PoisonError::into_inner);
            scopes.values().filter_map(std::sync::Weak::upgrade).collect()
        };
        let all = async {
            for scope in scopes {
                if let Err(error) = scope.store.give_back(shared.clock.now()).await {
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
