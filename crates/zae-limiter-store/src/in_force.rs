//! The limits that bind a request, as resolved from the configuration.

use std::sync::{Arc, LazyLock};

use zae_limiter_core::{
    BUCKET_TTL_MULTIPLIER, ConfigStamp, Limit, LimitSource, TimeMs, bucket_ttl_ms,
};

/// The limits one member of a chain is held to, and why. Cheap to clone: resolved once, used by
/// many calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitsInForce {
    /// The limits, in the order takes refer to.
    pub limits: Arc<[Limit]>,
    /// The level that supplied them.
    pub source: LimitSource,
    /// Freshness of the read that supplied them.
    pub stamp: ConfigStamp,
    /// How long an idle bucket is kept; `None` keeps it for ever. Computed once here, not on every
    /// take.
    pub ttl_ms: Option<i64>,
}

impl LimitsInForce {
    /// Limits with the stamp of a store that has no configuration yet and the default time to live.
    pub fn new(limits: impl Into<Arc<[Limit]>>, source: LimitSource) -> LimitsInForce {
        LimitsInForce::resolved(limits, source, ConfigStamp::default(), BUCKET_TTL_MULTIPLIER)
    }

    /// No limits: for a member of a chain that has none and is only asked whether it is switched
    /// off.
    #[must_use]
    pub fn none(stamp: ConfigStamp) -> LimitsInForce {
        static NONE: LazyLock<Arc<[Limit]>> = LazyLock::new(|| Arc::from([]));
        LimitsInForce {
            limits: Arc::clone(&NONE),
            source: LimitSource::Fallback,
            stamp,
            ttl_ms: None,
        }
    }

    /// Limits as resolved from a configuration read.
    pub fn resolved(
        limits: impl Into<Arc<[Limit]>>,
        source: LimitSource,
        stamp: ConfigStamp,
        ttl_multiplier: u32,
    ) -> LimitsInForce {
        let limits = limits.into();
        let ttl_ms = if source.expires() { bucket_ttl_ms(&limits, ttl_multiplier) } else { None };
        LimitsInForce { limits, source, stamp, ttl_ms }
    }

    /// Until when a bucket that is used at `now` is kept; `None` for ever.
    #[must_use]
    pub fn expiry(&self, now: TimeMs) -> Option<TimeMs> {
        self.ttl_ms.map(|ttl_ms| now.plus_ms(ttl_ms))
    }
}
