//! The conformance suite on a real DynamoDB API: the engine of `engines/`, one process per test, or
//! the endpoint named by `ZAEL_TEST_DYNAMODB_ENDPOINT`.

use std::sync::Arc;
use std::time::Duration;

use zae_limiter_dynamodb::DynamoStore;
use zae_limiter_store::conformance::Harness;
use zae_limiter_store::{BoxFuture, Entropy, Store, SystemEntropy};
use zae_limiter_testkit::engine::Engine;
use zae_limiter_testkit::engine::clocks::InstantClock;

/// An engine, and a table of its own on it.
pub(crate) struct OnEngine {
    engine: Engine,
    stack: String,
    /// How many shards a bucket has from its birth on.
    shards: u32,
}

impl OnEngine {
    pub(crate) fn new(shards: u32) -> OnEngine {
        OnEngine {
            engine: Engine::from_env_or_start(),
            stack: format!("conformance-{:016x}", SystemEntropy.next_u64()),
            shards,
        }
    }

    /// Exact: the allowance of a hot bucket is switched off, or balances would depend on it.
    /// Patient: a machine busy with other tests is no outage; what happens in one is tested
    /// elsewhere.
    fn builder(&self) -> zae_limiter_dynamodb::sdk::Builder {
        DynamoStore::builder(&self.stack, "us-east-1")
            .endpoint_url(self.engine.endpoint())
            .timeouts(Duration::from_secs(10), Duration::from_secs(30))
            .fast_grace(Duration::ZERO)
            .clock(Arc::new(InstantClock::default()))
            .trust_local_clock()
            .with_options(|options| {
                options.born_split = self.shards;
                if self.shards > 1 {
                    // The limits of the suite are small; nearly all of them are divided.
                    options.share_min_milli = 1;
                    // The time of a case stands still: a bucket that rests would rest for ever.
                    options.gather_pause_ms = 0;
                    options.herd_pause_ms = 0;
                }
            })
    }
}

impl Harness for OnEngine {
    fn fresh(&self) -> BoxFuture<'_, Arc<dyn Store>> {
        Box::pin(async {
            Arc::new(self.builder().create().await.expect("a table")) as Arc<dyn Store>
        })
    }

    fn reopen(&self) -> BoxFuture<'_, Option<Arc<dyn Store>>> {
        Box::pin(async {
            Some(Arc::new(self.builder().connect().await.expect("the table")) as Arc<dyn Store>)
        })
    }
}

zae_limiter_store::conformance_suite!(OnEngine::new(1));
