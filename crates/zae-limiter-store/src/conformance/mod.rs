//! The conformance suite: the duties of every backend, as named tests.
//!
//! A backend that passes behaves like every other one, to the millitoken. It runs the suite in one
//! line, in a file of its own under `tests/`:
//!
//! ```
//! use zae_limiter_store::MemoryStore;
//!
//! zae_limiter_store::conformance_suite!(|| async { MemoryStore::new() });
//! # fn main() {}
//! ```
//!
//! The dev-dependency needs the feature: `zae-limiter-store = { .., features = ["conformance"] }`.
//!
//! The macro makes one `#[test]` per case, in a module per topic
//! (`consume::a_new_bucket_starts_full`), so a failure names the broken behaviour and hides no
//! other. Each test builds its own harness and a fresh store, and runs on a runtime the suite
//! brings along: one thread, or several for the topic `races`. No case sleeps, reads a clock or
//! rolls dice. To run it for several stores in one file, put each line in a module of its own.
//!
//! The argument is an expression that gives a [`Harness`]. A closure that makes a store is one. A
//! backend whose state outlives the process, or that several processes may use, implements the
//! trait and says how to open the store again:
//!
//! ```
//! use std::sync::Arc;
//! use zae_limiter_store::conformance::Harness;
//! use zae_limiter_store::{BoxFuture, MemoryStore, Store};
//!
//! /// For a file: the directory it is in, removed with the harness.
//! struct Kept(MemoryStore);
//!
//! impl Harness for Kept {
//!     fn fresh(&self) -> BoxFuture<'_, Arc<dyn Store>> {
//!         Box::pin(async { Arc::new(self.0.clone()) as Arc<dyn Store> })
//!     }
//!
//!     fn reopen(&self) -> BoxFuture<'_, Option<Arc<dyn Store>>> {
//!         Box::pin(async { Some(Arc::new(self.0.clone()) as Arc<dyn Store>) })
//!     }
//! }
//!
//! zae_limiter_store::conformance_suite!(Kept(MemoryStore::new()));
//! # fn main() {}
//! ```
//!
//! Some cases are about promises a backend need not make, see [`Promise`] and
//! [`crate::Capabilities`]. Where the promise is not made, the case is skipped and says so on
//! standard error; [`skipped`] lists them.
//!
//! To add a case: write an `async fn` in the file of its topic, and its name in the list of
//! `cases.rs`. The compiler complains about one without the other.

use std::io::Write;
use std::pin::Pin;
use std::sync::Arc;

use crate::{BoxFuture, Capabilities, Store};

mod adjust;
mod adopt;
mod asks;
mod audit;
pub mod block_sim;
mod cascade;
mod cases;
mod changes;
mod config;
mod consume;
mod durable;
mod entities;
mod fixture;
mod flags;
mod input;
mod namespaces;
mod paging;
mod races;
mod refill;
mod registry;
mod reset;
mod shards;
mod stored;
mod sweep;
mod usage;

use fixture::Fixture;

/// Makes the stores the cases run on. Every test builds a harness of its own.
pub trait Harness: Send + Sync {
    /// An empty store, bound to the namespace `default`.
    fn fresh(&self) -> BoxFuture<'_, Arc<dyn Store>>;

    /// Another handle on what [`Harness::fresh`] made, opened as another process would open it:
    /// after the first was closed (a durable store) or beside it (a shared one). `None` for a store
    /// that is neither.
    fn reopen(&self) -> BoxFuture<'_, Option<Arc<dyn Store>>> {
        Box::pin(async { None })
    }
}

impl<F, Made, S> Harness for F
where
    F: Fn() -> Made + Send + Sync,
    Made: Future<Output = S> + Send,
    S: Store + 'static,
{
    fn fresh(&self) -> BoxFuture<'_, Arc<dyn Store>> {
        Box::pin(async { Arc::new(self().await) as Arc<dyn Store> })
    }
}

/// A promise that a store may make. Named like the fields of [`Capabilities`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// Admission is exact to the millitoken.
    Exact,
    /// A refused chain never took anything, not even for a moment.
    AtomicChains,
    /// Usage is visible as soon as the take is.
    ImmediateUsage,
    /// State outlives the process.
    Durable,
    /// Several processes may use it at once.
    Shared,
    /// Debt blocks its whole bucket, and a grant reports its balance exactly.
    WholeBuckets,
    /// A sweep forgets, as soon as it may.
    Sweeps,
}

impl Promise {
    /// Whether a store with these capabilities makes the promise.
    #[must_use]
    pub fn made_by(self, capabilities: &Capabilities) -> bool {
        match self {
            Promise::Exact => capabilities.exact,
            Promise::AtomicChains => capabilities.atomic_chains,
            Promise::ImmediateUsage => capabilities.immediate_usage,
            Promise::Durable => capabilities.durable,
            Promise::Shared => capabilities.shared,
            Promise::WholeBuckets => capabilities.whole_buckets,
            Promise::Sweeps => capabilities.sweeps,
        }
    }
}

/// A case at work. It stays on the thread it began on; a race spawns the tasks that need several
/// threads.
type LocalFuture = Pin<Box<dyn Future<Output = ()>>>;

/// One case of the suite.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Its name with its topic: `consume::a_new_bucket_starts_full`.
    pub name: &'static str,
    /// The promises it is about; a store that does not make all of them is not asked.
    pub requires: &'static [Promise],
    run: fn(Fixture) -> LocalFuture,
}

impl Case {
    /// The promise that `capabilities` lack for this case.
    #[must_use]
    pub fn lacking(&self, capabilities: &Capabilities) -> Option<Promise> {
        self.requires.iter().copied().find(|promise| !promise.made_by(capabilities))
    }

    /// Only races need several threads.
    fn is_race(&self) -> bool {
        self.name.starts_with("races::")
    }
}

/// The cases that a store with these capabilities is not asked.
pub fn skipped(capabilities: &Capabilities) -> impl Iterator<Item = &'static Case> {
    CASES.iter().filter(move |case| case.lacking(capabilities).is_some())
}

/// Runs one case on a fresh store; panics when the store fails it. The tests of
/// `conformance_suite!` call it.
pub fn run(name: &str, harness: Arc<dyn Harness>) {
    const THREADS: usize = 4;
    let case = CASES
        .iter()
        .find(|case| case.name == name)
        .expect("conformance_suite! only names cases of the list");
    let mut builder = if case.is_race() {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(THREADS);
        builder
    } else {
        tokio::runtime::Builder::new_current_thread()
    };
    let runtime = builder.enable_all().build().expect("the system has threads for a test runtime");
    runtime.block_on(async {
        let store = harness.fresh().await;
        let capabilities = store.capabilities();
        match case.lacking(&capabilities) {
            None => (case.run)(Fixture::new(store, harness).await).await,
            Some(promise) => announce(&format!(
                "SKIPPED {name}: store {} does not promise {promise:?}\n",
                capabilities.name
            )),
        }
    });
}

/// Writes past the test runner, which would swallow what a passing test prints.
fn announce(line: &str) {
    // A skip that cannot be announced is still a skip.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Makes the table of cases of the list.
macro_rules! case_table {
    ($($topic:ident { $($case:ident $([$($promise:ident),+])?,)+ })+) => {
        /// Every case, in the order of the list.
        pub const CASES: &[Case] = &[$($(Case {
            name: concat!(stringify!($topic), "::", stringify!($case)),
            requires: &[$($(Promise::$promise),+)?],
            run: |fixture| Box::pin($topic::$case(fixture)),
        },)+)+];
    };
}

crate::conformance_cases!(case_table);

/// Runs the conformance suite: one `#[test]` per case, in one module per topic. Takes an expression
/// that gives a [`Harness`](crate::conformance::Harness), such as
/// `|| async { MemoryStore::new() }`.
#[macro_export]
macro_rules! conformance_suite {
    ($harness:expr) => {
        fn conformance_harness() -> ::std::sync::Arc<dyn $crate::conformance::Harness> {
            ::std::sync::Arc::new($harness)
        }

        $crate::conformance_cases!($crate::conformance_tests);
    };
}

/// Makes the tests of the list.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_tests {
    ($($topic:ident { $($case:ident $([$($promise:ident),+])?,)+ })+) => {
        $(mod $topic {
            $(#[test]
            fn $case() {
                $crate::conformance::run(concat!(stringify!($topic), "::", stringify!($case)), super::conformance_harness());
            })+
        })+
    };
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_suite_has_its_cases_once_each() {
        let names: BTreeSet<_> = CASES.iter().map(|case| case.name).collect();
        assert_eq!(names.len(), CASES.len(), "a case is listed twice");
        assert!(CASES.len() >= 80, "the suite shrank to {} cases", CASES.len());
    }

    #[test]
    fn a_store_that_promises_nothing_skips_exactly_the_cases_that_need_a_promise() {
        let skipped: Vec<_> =
            skipped(&Capabilities::minimum("none")).map(|case| case.name).collect();
        let needing: Vec<_> =
            CASES.iter().filter(|case| !case.requires.is_empty()).map(|case| case.name).collect();
        assert_eq!(skipped, needing);
    }
}
