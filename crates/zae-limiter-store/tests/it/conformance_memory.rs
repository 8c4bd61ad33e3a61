//! The conformance suite on the in-memory store, bare and wrapped.

zae_limiter_store::conformance_suite!(|| async { zae_limiter_store::MemoryStore::new() });

/// A promise that the store stopped making would skip its cases without a word.
#[test]
fn only_cases_about_other_handles_are_skipped() {
    use zae_limiter_store::conformance::skipped;
    use zae_limiter_store::{MemoryStore, Store};

    let capabilities = MemoryStore::new().capabilities();
    let names = skipped(&capabilities).map(|case| case.name);
    let others: Vec<_> = names.filter(|name| !name.starts_with("durable::")).collect();
    assert!(others.is_empty(), "{others:?}");
}

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
