//! Errors, by what the caller should do about them.

use std::fmt;
use std::time::Duration;

use zae_limiter_core::{
    EntityId, EntityTextError, Flag, LimitError, LimitName, NameError, RateLimitExceeded,
    ResourceName, Wait,
};
use zae_limiter_store::{Level, StoreError, StoreErrorKind};

/// A call that cannot be right. Fix the call; nothing was read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Invalid {
    /// A name breaks its rule.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A limit breaks its rule.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// An entity's name or metadata breaks its rule.
    #[error(transparent)]
    Text(#[from] EntityTextError),
    /// More tokens than any limit can hold.
    #[error("amount {amount} of limit {limit} is more than any limit can hold; use at most {max}")]
    Amount {
        /// The limit.
        limit: LimitName,
        /// The tokens asked for.
        amount: u64,
        /// The most there can be.
        max: u64,
    },
    /// Amounts for a limit that no member of the chain has: a typo must not mean "unlimited".
    #[error("no limit is called {limit} for {entity} on {resource}; there is {}", listed(known))]
    UnknownLimit {
        /// The name asked for.
        limit: LimitName,
        /// The entity of the request.
        entity: EntityId,
        /// The resource of the request.
        resource: ResourceName,
        /// The names there are.
        known: Vec<LimitName>,
    },
    /// A lease was asked about a limit its request did not declare.
    #[error(transparent)]
    Undeclared(#[from] UndeclaredLimit),
    /// The namespace of this limiter was deleted.
    #[error("{0}")]
    Namespace(String),
    /// The store refused the request itself.
    #[error("{0}")]
    Refused(String),
}

fn listed(names: &[LimitName]) -> String {
    names.iter().map(LimitName::as_str).collect::<Vec<_>>().join(", ")
}

/// A lease was asked about a limit its request did not declare.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "limit {limit:?} was not declared by this request; declare it with .take({limit:?}, 0) to be able to record it later"
)]
pub struct UndeclaredLimit {
    /// The name that was used.
    pub limit: String,
}

/// No level has any limit for this call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no limits are configured for {entity} on {resource}; set some with `zae-limiter system set-defaults -l rpm:100`, \
     `zae-limiter resource set-defaults {resource} -l ...` or `zae-limiter entity set-limits {entity} -l ...`, or pass .limits(..)"
)]
pub struct NoLimits {
    /// The entity of the request.
    pub entity: EntityId,
    /// The resource of the request.
    pub resource: ResourceName,
}

/// An administrator has disabled the entity or the resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disabled {
    /// The member of the chain whose takes are blocked.
    pub entity: EntityId,
    /// The resource asked for.
    pub resource: ResourceName,
    /// The flag that blocks.
    pub flag: Flag,
    /// The level with the flag; `None` when the bucket said so and not the configuration.
    pub level: Option<Level>,
}

impl fmt::Display for Disabled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {} is {}", self.entity, self.resource, self.flag)?;
        self.level.as_ref().map_or(Ok(()), |level| write!(f, " at level: {level}"))
    }
}

impl std::error::Error for Disabled {}

/// The store could not answer, and the policy is to block.
#[derive(Debug, thiserror::Error)]
#[error("the store is unavailable ({reason})")]
pub struct Unavailable {
    /// Why.
    pub reason: OutageReason,
    /// When to try again.
    pub retry_after: Duration,
    /// The error of the store, if it answered.
    #[source]
    pub source: Option<StoreError>,
}

/// How an outage was noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OutageReason {
    /// No answer within the deadline.
    Deadline,
    /// The circuit breaker is open: the store failed repeatedly, and is left alone for a while.
    BreakerOpen,
    /// The store answered with an error.
    Failed(StoreErrorKind),
    /// This limiter was closed.
    Closed,
}

impl OutageReason {
    /// The word used in output and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            OutageReason::Deadline => "deadline",
            OutageReason::BreakerOpen => "breaker_open",
            OutageReason::Failed(kind) => kind.as_str(),
            OutageReason::Closed => "closed",
        }
    }
}

impl fmt::Display for OutageReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why `acquire` gave no lease.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// A limit is reached: a normal outcome, with the status of every limit. Tell the client to
    /// wait.
    #[error(transparent)]
    Exceeded(Box<RateLimitExceeded>),
    /// The call cannot be right. Fix it.
    #[error(transparent)]
    Invalid(Invalid),
    /// Nothing is configured for this call. Configure a limit.
    #[error(transparent)]
    NoLimits(#[from] NoLimits),
    /// An administrator has disabled the entity or the resource. No outage policy allows the call.
    #[error(transparent)]
    Disabled(#[from] Disabled),
    /// The store is down and the policy is to block. Retry later.
    #[error(transparent)]
    Unavailable(Unavailable),
    /// This process lacks a permission on the store. Grant it.
    #[error("permission denied by the store")]
    Denied(#[source] StoreError),
    /// The store was written by an incompatible version. Upgrade this process.
    #[error("the store has an incompatible version")]
    Incompatible(#[source] StoreError),
}

impl AcquireError {
    /// The report of a refusal.
    #[must_use]
    pub fn exceeded(&self) -> Option<&RateLimitExceeded> {
        match self {
            AcquireError::Exceeded(report) => Some(report),
            _ => None,
        }
    }

    /// The HTTP status for this error.
    #[must_use]
    pub fn http_status(&self) -> u16 {
        match self {
            AcquireError::Exceeded(_) => 429,
            AcquireError::Invalid(_) => 400,
            AcquireError::Disabled(_) => 403,
            AcquireError::Unavailable(_) => 503,
            AcquireError::NoLimits(_) | AcquireError::Denied(_) | AcquireError::Incompatible(_) => {
                500
            }
        }
    }

    /// When to try again; `None` when waiting alone will not help.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            AcquireError::Exceeded(report) => report.retry_after().duration(),
            AcquireError::Unavailable(unavailable) => Some(unavailable.retry_after),
            _ => None,
        }
    }

    /// True for a request that can never pass, however long it waits.
    #[must_use]
    pub fn never_passes(&self) -> bool {
        self.exceeded().is_some_and(|report| report.retry_after() == Wait::Never)
    }
}

impl From<Invalid> for AcquireError {
    fn from(error: Invalid) -> AcquireError {
        AcquireError::Invalid(error)
    }
}

impl From<RateLimitExceeded> for AcquireError {
    fn from(report: RateLimitExceeded) -> AcquireError {
        AcquireError::Exceeded(Box::new(report))
    }
}

/// A settlement that did not go through completely.
///
/// Charges that failed are handed to the background settler; credits of unknown fate are dropped
/// and counted, because giving back twice would mint tokens.
#[derive(Debug, thiserror::Error)]
#[error(
    "{failed} of {writes} bucket writes failed; charges are retried in the background, credits of unknown fate are dropped"
)]
pub struct CommitError {
    /// How many bucket writes there were.
    pub writes: usize,
    /// How many failed.
    pub failed: usize,
    /// The first failure.
    #[source]
    pub source: StoreError,
}

/// A failed administrative call or query.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The call cannot be right. Fix it.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The store refused or failed; `kind()` says what to do.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// No answer within the deadline; a write may have been applied.
    #[error(
        "{operation} got no answer within {after:?}; it may have been applied, look before you repeat it"
    )]
    Deadline {
        /// The operation.
        operation: &'static str,
        /// The deadline.
        after: Duration,
    },
    /// A limiter needs a tokio runtime for its background settler.
    #[error(
        "a RateLimiter must be built inside a tokio runtime (its settler runs there); use zae_limiter::blocking outside of one"
    )]
    NoRuntime,
}

/// The kind of an [`Error`], for callers that act on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The call cannot be right, and no store was asked. Fix the call.
    Invalid,
    /// The store refused or failed. Its kind says what to do.
    Store(StoreErrorKind),
    /// The store did not answer in time. A write may have been applied: look before you repeat it.
    Deadline,
    /// The limiter was built outside of a tokio runtime. Build it inside one, or use
    /// [`crate::blocking`].
    NoRuntime,
}

impl Error {
    /// The kind of error, by what to do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Invalid(_) => ErrorKind::Invalid,
            Error::Store(error) => ErrorKind::Store(error.kind()),
            Error::Deadline { .. } => ErrorKind::Deadline,
            Error::NoRuntime => ErrorKind::NoRuntime,
        }
    }
}

impl From<NameError> for Error {
    fn from(error: NameError) -> Error {
        Error::Invalid(error.into())
    }
}

impl From<LimitError> for Error {
    fn from(error: LimitError) -> Error {
        Error::Invalid(error.into())
    }
}

impl From<EntityTextError> for Error {
    fn from(error: EntityTextError) -> Error {
        Error::Invalid(error.into())
    }
}
