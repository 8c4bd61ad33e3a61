//! The conformance suite with local blocks: unchanged with the usual sizes, because a standing
//! clock buys no block; and with blocks at every request.

use std::sync::Arc;

use zae_limiter_store::{BlockStore, LocalBlocks, MemoryStore};

fn store(options: LocalBlocks) -> BlockStore<MemoryStore> {
    BlockStore::new(Arc::new(MemoryStore::new()), options).expect("memory lends")
}

mod usual {
    zae_limiter_store::conformance_suite!(|| async {
        super::store(zae_limiter_store::LocalBlocks::default())
    });
}

mod eager {
    zae_limiter_store::conformance_suite!(|| async {
        super::store(zae_limiter_store::LocalBlocks::eager())
    });
}
