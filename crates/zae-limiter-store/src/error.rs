//! The one error of the contract.

use std::error::Error;
use std::fmt;

/// What went wrong, as far as a caller can act on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// The backend cannot be reached or did not answer in time. Apply the outage policy; a write
    /// may have been applied.
    Unavailable,
    /// The backend is there but others held its lock beyond the deadline. Nothing was applied;
    /// retry.
    Busy,
    /// The disk is full. Nothing was applied; make room.
    Full,
    /// The file or the table is read-only. Nothing was applied; change the mode or open it for
    /// reading.
    ReadOnly,
    /// A stored value cannot be right. Stop, and restore a backup.
    Corrupt,
    /// Written by a newer version, or by another product. Upgrade this process.
    Incompatible,
    /// Missing permission. Grant it; never treated as an outage.
    Denied,
    /// The thing named does not exist.
    NotFound,
    /// The thing named exists already.
    AlreadyExists,
    /// Another caller changed the record first: read it again, then decide again.
    Conflict,
    /// It cannot be done in the present state, and the message says what stands in the way.
    State,
    /// The request itself is wrong. Fix the call.
    Invalid,
    /// A bound of the backend was reached: no bucket can be added that would not forget another's
    /// debt.
    Capacity,
    /// A bug in the backend. Please report it; a write may have been applied.
    Internal,
}

impl StoreErrorKind {
    /// True when the backend is down, as opposed to a refusal. Only outages count for the breaker
    /// and may be turned into "allow".
    #[must_use]
    pub fn is_outage(self) -> bool {
        matches!(self, StoreErrorKind::Unavailable)
    }

    /// The word used in output and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            StoreErrorKind::Unavailable => "unavailable",
            StoreErrorKind::Busy => "busy",
            StoreErrorKind::Full => "full",
            StoreErrorKind::ReadOnly => "read_only",
            StoreErrorKind::Corrupt => "corrupt",
            StoreErrorKind::Incompatible => "incompatible",
            StoreErrorKind::Denied => "denied",
            StoreErrorKind::NotFound => "not_found",
            StoreErrorKind::AlreadyExists => "already_exists",
            StoreErrorKind::Conflict => "conflict",
            StoreErrorKind::State => "state",
            StoreErrorKind::Invalid => "invalid",
            StoreErrorKind::Capacity => "capacity",
            StoreErrorKind::Internal => "internal",
        }
    }
}

/// A failed operation of a backend.
#[derive(Debug)]
pub struct StoreError {
    kind: StoreErrorKind,
    operation: &'static str,
    message: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl StoreError {
    /// An error with a message that names the problem and the remedy.
    pub fn new(
        kind: StoreErrorKind,
        operation: &'static str,
        message: impl Into<String>,
    ) -> StoreError {
        StoreError { kind, operation, message: message.into(), source: None }
    }

    /// The same error with its cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> StoreError {
        self.source = Some(source.into());
        self
    }

    /// The same error, as seen from another operation.
    #[must_use]
    pub fn during(mut self, operation: &'static str) -> StoreError {
        self.operation = operation;
        self
    }

    /// The kind, for callers that act on it.
    #[must_use]
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// The operation that failed.
    #[must_use]
    pub fn operation(&self) -> &'static str {
        self.operation
    }

    /// The message, without the operation.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// True when a write may have been applied although it failed. Every other error proves that
    /// nothing was.
    #[must_use]
    pub fn fate_unknown(&self) -> bool {
        matches!(self.kind, StoreErrorKind::Unavailable | StoreErrorKind::Internal)
    }

    /// True when nothing was applied and the same call may succeed later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self.kind, StoreErrorKind::Busy)
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.operation, self.message)
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn Error + 'static))
    }
}

impl From<zae_limiter_core::CounterFull> for StoreError {
    fn from(error: zae_limiter_core::CounterFull) -> StoreError {
        StoreError::new(StoreErrorKind::Invalid, "adjust", error.to_string())
    }
}

impl From<zae_limiter_core::TooManyLimits> for StoreError {
    fn from(error: zae_limiter_core::TooManyLimits) -> StoreError {
        StoreError::new(StoreErrorKind::Invalid, "consume", error.to_string())
    }
}
