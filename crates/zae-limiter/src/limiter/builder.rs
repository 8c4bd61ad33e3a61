//! The builder of a limiter, and its options.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use zae_limiter_core::{
    BUCKET_TTL_MULTIPLIER, IntoName, Limit, NameError, NamespaceName, Principal, check_limits,
};
use zae_limiter_store::{
    Clock, Entropy, LocalBlocks, OnUnavailable, Store, SystemClock, SystemEntropy,
};

use super::blocks::Blocks;
use super::breaker::Breaker;
use super::{Author, RateLimiter, Settings, Shared};
use crate::error::Error;
use crate::lease::Settler;

/// Options of a [`RateLimiter`]. Nothing here is stored.
#[must_use = "a builder does nothing until build() is called"]
pub struct Builder {
    store: Arc<dyn Store>,
    settings: Settings,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    principal: Option<Result<Principal, NameError>>,
    local_blocks: Option<LocalBlocks>,
}

impl Builder {
    pub(super) fn new(store: Arc<dyn Store>) -> Builder {
        Builder {
            store,
            settings: Settings {
                config_cache_ttl: Duration::from_secs(60),
                config_cache_entries_max: 10_000,
                bucket_ttl_multiplier: BUCKET_TTL_MULTIPLIER,
                default_limits: None,
                on_unavailable: None,
                deadline: Duration::from_secs(1),
                admin_deadline: Duration::from_secs(10),
                settle_deadline: Duration::from_secs(5),
                drain_deadline: Duration::from_secs(60),
            },
            clock: Arc::new(SystemClock::new()),
            entropy: Arc::new(SystemEntropy),
            principal: None,
            local_blocks: None,
        }
    }

    /// How long stored configuration, entities included, is trusted without a read. Default 60 s;
    /// zero reads every time. On a remote store an entry that has just expired decides one more
    /// take while it is read again, at most five seconds, or one more TTL, after its time.
    pub fn config_cache_ttl(mut self, ttl: Duration) -> Builder {
        self.settings.config_cache_ttl = ttl;
        self
    }

    /// How many (entity, resource) pairs are cached per namespace. Default 10 000.
    pub fn config_cache_entries_max(mut self, entries: usize) -> Builder {
        self.settings.config_cache_entries_max = entries;
        self
    }

    /// An idle bucket with default limits is forgotten after its slowest time to fill times this
    /// number. Default 7; 0 keeps buckets for ever.
    pub fn bucket_ttl_multiplier(mut self, multiplier: u32) -> Builder {
        self.settings.bucket_ttl_multiplier = multiplier;
        self
    }

    /// Limits for members without stored limits.
    pub fn default_limits(mut self, limits: impl IntoIterator<Item = Limit>) -> Builder {
        self.settings.default_limits = Some(limits.into_iter().collect());
        self
    }

    /// The policy while the store is down, unless the call or the stored system setting has
    /// another. Default: block.
    pub fn on_unavailable(mut self, policy: OnUnavailable) -> Builder {
        self.settings.on_unavailable = Some(policy);
        self
    }

    /// How long the store may take to answer an acquire. Default 1 s.
    pub fn deadline(mut self, deadline: Duration) -> Builder {
        self.settings.deadline = deadline;
        self
    }

    /// How long the store may take for administration and queries. Default 10 s; purging and
    /// sweeping are not limited.
    pub fn admin_deadline(mut self, deadline: Duration) -> Builder {
        self.settings.admin_deadline = deadline;
        self
    }

    /// How long `commit`, `flush` and `rollback` wait before they leave the write to the settler.
    /// Default 5 s.
    pub fn settle_deadline(mut self, deadline: Duration) -> Builder {
        self.settings.settle_deadline = deadline;
        self
    }

    /// How long `close` and `drain` wait for the settler. Default 60 s; jobs that are left then
    /// count as pending.
    pub fn drain_deadline(mut self, deadline: Duration) -> Builder {
        self.settings.drain_deadline = deadline;
        self
    }

    /// The source of time; tests pass a [`zae_limiter_store::ManualClock`].
    pub fn clock(mut self, clock: impl Clock + 'static) -> Builder {
        self.clock = Arc::new(clock);
        self
    }

    /// The source of randomness; tests pass a [`zae_limiter_store::SeededEntropy`].
    pub fn entropy(mut self, entropy: impl Entropy + 'static) -> Builder {
        self.entropy = Arc::new(entropy);
        self
    }

    /// The name under which administrative changes are audited.
    pub fn principal(mut self, principal: impl IntoName<Principal>) -> Builder {
        self.principal = Some(principal.into_name());
        self
    }

    /// Buys tokens ahead of need and serves requests from memory: one write for up to 128 requests,
    /// and never more granted than the limits allow. Off unless asked for: what another process
    /// disables, lowers or resets then binds here within two seconds instead of at once. See
    /// `docs/local-blocks.md`.
    ///
    /// ```
    /// use zae_limiter::{LocalBlocks, MemoryStore, RateLimiter};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = RateLimiter::builder(MemoryStore::new())
    ///     .local_blocks(LocalBlocks::default())
    ///     .build()?;
    /// assert_eq!(limiter.blocks().map(|blocks| blocks.orders), Some(0));
    /// limiter.close().await; // gives back what was not used
    /// # Ok(())
    /// # }
    /// ```
    pub fn local_blocks(mut self, blocks: LocalBlocks) -> Builder {
        self.local_blocks = Some(blocks);
        self
    }

    /// Builds the limiter and starts its settler on the current tokio runtime.
    pub fn build(self) -> Result<RateLimiter, Error> {
        if let Some(limits) = &self.settings.default_limits {
            check_limits(limits)?;
        }
        let blocks = match self.local_blocks {
            Some(options) => {
                let store = Arc::clone(&self.store);
                Some(Blocks::new(store, options, &self.clock, &self.entropy)?)
            }
            None => None,
        };
        let store = match &blocks {
            Some(blocks) => blocks.store(),
            None => self.store,
        };
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| Error::NoRuntime)?;
        let settler = Settler::start(&runtime, Arc::clone(&self.clock), Arc::clone(&self.entropy));
        if let Some(blocks) = &blocks {
            blocks.work_behind(settler.behind());
        }
        let shared = Arc::new(Shared {
            settings: self.settings,
            reads_are_slow: store.capabilities().remote,
            is_measured: store.capabilities().durable || store.capabilities().remote,
            clock: self.clock,
            entropy: self.entropy,
            breaker: Breaker::default(),
            settler,
            blocks,
            last_event: Mutex::new((i64::MIN, 0)),
            scopes: Mutex::new(HashMap::new()),
        });
        let scope = RateLimiter::scope(&shared, store);
        let principal = self.principal.transpose()?;
        let author = principal.map(|principal| Author { principal: Some(principal), reason: None });
        Ok(RateLimiter { scope, author: author.map(Arc::new) })
    }

    /// Builds the limiter bound to another namespace than the store's.
    pub async fn build_in(self, namespace: &NamespaceName) -> Result<RateLimiter, Error> {
        self.build()?.namespace(namespace.clone()).await
    }
}
