//! The conformance suite on the in-memory store, bare and wrapped.

zae_limiter_store::conformance_suite!(|| async { zae_limiter_store::MemoryStore::new() });

/// A wrapper forwards every method. This one makes each call wait once, so that tasks meet between
/// any two of them, and is wrapped once more.
mod wrapped {
    use std::sync::Arc;

    use zae_limiter_store::{Fault, FaultStore, MemoryStore};

    zae_limiter_store::conformance_suite!(|| async {
        let slow = FaultStore::new(Arc::new(MemoryStore::new()), |_operation: &'static str| {
            Fault::Yield(1)
        });
        FaultStore::new(Arc::new(slow), |_operation: &'static str| Fault::None)
    });
}
