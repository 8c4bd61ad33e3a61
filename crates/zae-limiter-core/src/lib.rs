//! The maths and the words of the zae-limiter domain.
//!
//! Everything here is pure: no clock, no I/O, no async, no serde. Time is an argument, so the same
//! inputs always give the same answer, and every backend shares one copy of the arithmetic.
//!
//! ```
//! use zae_limiter_core::{
//!     BucketState, ConfigStamp, Decision, Limit, Member, Milli, Take, TimeMs, decide,
//! };
//!
//! let limits = ["rpm:60/min".parse::<Limit>()?];
//! let mut bucket = BucketState::full(&limits, ConfigStamp(1), TimeMs(0));
//! let takes = [Take { limit: 0, amount: Milli::from_tokens(60) }];
//!
//! let granted = decide(&mut [Member { bucket: &mut bucket, takes: &takes }], TimeMs(0));
//! assert!(matches!(granted, Decision::Granted { .. }));
//! let refused = decide(&mut [Member { bucket: &mut bucket, takes: &takes }], TimeMs(0));
//! assert!(matches!(refused, Decision::Refused { .. }));
//! # Ok::<(), zae_limiter_core::LimitError>(())
//! ```
//!
//! The key decision: a limit carries the **remainder** of its last refill. Several limits of one
//! bucket share one refill instant, so without the remainder a slow limit beside a busy one would
//! never gain a token: 10 a day is a token every 144 minutes, and a refill every second pays 0.

mod audit;
mod bucket;
mod decide;
mod entity;
mod flag;
mod horizon;
mod limit;
mod name;
mod provision;
mod source;
mod status;
mod time;
mod ttl;
mod units;
mod usage;

pub use audit::{AuditAction, AuditEvent, AuditSubject, AuditTextError, EventId};
pub use bucket::{
    BucketState, CLOCK_BACK_MAX_MS, ClosedHour, CounterFull, FOLDED, LENT_MAX_MS, LENT_PART,
    LENT_SLOT_MS, Lent, LimitParams, LimitState, TooManyLimits, fold_params, is_fold,
};
pub use decide::{Decision, LimitReport, Member, Reports, Take, assess, decide, wait_for};
pub use entity::{
    CHAIN_MAX, ENTITY_NAME_BYTES_MAX, Entity, EntityTextError, METADATA_KEY_BYTES_MAX,
    METADATA_PAIRS_MAX, METADATA_VALUE_BYTES_MAX,
};
pub use flag::Flag;
pub use horizon::{
    SWEEP_LEAP_CONFIRMED_MAX_MS, SWEEP_LEAP_CONFIRMED_MS, SWEEP_STEP_MAX_MS, SweepHorizon,
};
pub use limit::{
    LIMITS_MAX, Limit, LimitError, PERIOD_S_MAX, SyntaxProblem, TOKENS_MAX, check_limits,
    parse_tokens,
};
pub use name::{
    DEFAULT_RESOURCE, EntityId, IntoName, LimitName, NameError, NameRule, NamespaceId,
    NamespaceName, Principal, ResourceName,
};
pub use provision::{Lot, OrderLine, Provision, Report, Return, Stock, StockLook};
pub use source::{ConfigStamp, LimitSource};
pub use status::{LimitStatus, RateLimitExceeded};
pub use time::{TimeTextError, parse_rfc3339, rfc3339};
pub use ttl::{BUCKET_TTL_MULTIPLIER, bucket_ttl_ms, time_to_fill_ms};
pub use units::{Milli, TimeMs, Wait, WaitMs};
pub use usage::{
    UnknownUsageWindow, UsageSnapshot, UsageSummary, UsageSums, UsageTotal, UsageWindow,
};
