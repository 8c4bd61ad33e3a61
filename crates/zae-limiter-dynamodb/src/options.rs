//! How the store works on its table. How it reaches the table is said in [`crate::table::sdk`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use zae_limiter_store::{Clock, Entropy, SystemClock, SystemEntropy};

use crate::constants;

/// How the buckets of a chain are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CascadeWrites {
    /// All at once: one round trip. A refusal by one gives back what the others took.
    #[default]
    Parallel,
    /// One after the other, the caller's own first: slower, and a refusal by the first costs the
    /// others nothing.
    Serial,
}

/// Options of a [`DynamoStore`](crate::DynamoStore).
#[derive(Clone)]
#[non_exhaustive]
pub struct DynamoOptions {
    /// Write first, and read nothing. When false, each bucket is read and then written: the slower
    /// way that the fast one is tested against.
    pub speculative: bool,
    /// How the buckets of a chain are written.
    pub cascade_writes: CascadeWrites,
    /// See [`constants::FAST_GRACE_MS`].
    pub fast_grace_ms: i64,
    /// See [`constants::REJECTION_CACHE_TTL_MS`]; 0 switches local refusals off.
    pub rejection_cache_ttl_ms: i64,
    /// See [`constants::IMAGES_MAX`].
    pub images_max: usize,
    /// See [`constants::WRITE_AGE_MAX`]; twice the timeout of an attempt.
    pub write_age_max: Duration,
    /// The most shards this process gives a bucket, a power of two up to [`constants::SHARDS_MAX`];
    /// 1 never splits. Shards that others have made are used either way.
    pub shards_max: u32,
    /// Limits of at least 32 times this are divided among shards: see
    /// [`constants::SHARE_MIN_MILLI`].
    #[doc(hidden)]
    pub share_min_milli: i64,
    /// See [`constants::GATHER_PAUSE_MS`].
    #[doc(hidden)]
    pub gather_pause_ms: i64,
    /// See [`constants::HERD_PAUSE_MS`].
    #[doc(hidden)]
    pub herd_pause_ms: i64,
    /// Every bucket is split into so many shards as soon as it is made; for tests.
    #[doc(hidden)]
    pub born_split: u32,
    /// How long audit events are kept, in seconds, where the table does not say it
    /// ([`Retention`](crate::Retention)).
    pub audit_retention_s: i64,
    /// Where time comes from.
    pub clock: Arc<dyn Clock>,
    /// Where nonces, tokens and jitter come from.
    pub entropy: Arc<dyn Entropy>,
}

impl DynamoOptions {
    /// The defaults.
    #[must_use]
    pub fn new() -> DynamoOptions {
        DynamoOptions {
            speculative: true,
            cascade_writes: CascadeWrites::Parallel,
            fast_grace_ms: constants::FAST_GRACE_MS,
            rejection_cache_ttl_ms: constants::REJECTION_CACHE_TTL_MS,
            images_max: constants::IMAGES_MAX,
            write_age_max: constants::WRITE_AGE_MAX,
            shards_max: constants::SHARDS_MAX,
            share_min_milli: constants::SHARE_MIN_MILLI,
            gather_pause_ms: constants::GATHER_PAUSE_MS,
            herd_pause_ms: constants::HERD_PAUSE_MS,
            born_split: 1,
            audit_retention_s: constants::AUDIT_RETENTION_S,
            clock: Arc::new(SystemClock::new()),
            entropy: Arc::new(SystemEntropy),
        }
    }
}

impl Default for DynamoOptions {
    fn default() -> Self {
        DynamoOptions::new()
    }
}

impl fmt::Debug for DynamoOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DynamoOptions")
            .field("speculative", &self.speculative)
            .field("cascade_writes", &self.cascade_writes)
            .field("fast_grace_ms", &self.fast_grace_ms)
            .field("rejection_cache_ttl_ms", &self.rejection_cache_ttl_ms)
            .field("images_max", &self.images_max)
            .finish_non_exhaustive()
    }
}
