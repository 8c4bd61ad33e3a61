//! What a user of a load test does.

use std::sync::Arc;
use std::time::Duration;

use zae_limiter::store::BoxFuture;
use zae_limiter::{AcquireError, Clock, RateLimiter};

/// Why a scenario cannot be prepared, or is not one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ScenarioError(pub String);

impl ScenarioError {
    /// By its text.
    pub fn new(text: impl Into<String>) -> ScenarioError {
        ScenarioError(text.into())
    }
}

impl From<zae_limiter::Error> for ScenarioError {
    fn from(error: zae_limiter::Error) -> ScenarioError {
        ScenarioError(error.to_string())
    }
}

/// When a user calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pacing {
    /// The next call begins when the one before has ended: the load is as much as the store takes.
    ClosedLoop,
    /// A call is due at every multiple of this, whatever the calls before took.
    Every(Duration),
}

/// What a call came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The limiter let it pass.
    Granted,
    /// A limit refused it: an answer, not an error.
    Refused,
    /// There was no answer; a word says why.
    Failed(String),
}

impl Outcome {
    /// The outcome of an acquire that gave no lease.
    #[must_use]
    pub fn of(error: &AcquireError) -> Outcome {
        match error {
            AcquireError::Exceeded(_) => Outcome::Refused,
            AcquireError::Invalid(_) => Outcome::Failed("invalid".to_owned()),
            AcquireError::NoLimits(_) => Outcome::Failed("no_limits".to_owned()),
            AcquireError::Disabled(_) => Outcome::Failed("disabled".to_owned()),
            AcquireError::Unavailable(_) => Outcome::Failed("unavailable".to_owned()),
            AcquireError::Denied(_) => Outcome::Failed("denied".to_owned()),
            AcquireError::Incompatible(_) => Outcome::Failed("incompatible".to_owned()),
            _ => Outcome::Failed("error".to_owned()),
        }
    }
}

/// What a call is given: one user, for the time of a run.
pub struct Session {
    pub(crate) limiter: RateLimiter,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) user: u32,
    pub(crate) call: u64,
    pub(crate) paused: Duration,
}

impl Session {
    /// The limiter under test.
    #[must_use]
    pub fn limiter(&self) -> &RateLimiter {
        &self.limiter
    }

    /// The number of the user, from 0; no two users of a run have the same, whatever process or
    /// function they are in.
    #[must_use]
    pub fn user(&self) -> u32 {
        self.user
    }

    /// The number of the call of this user, from 0.
    #[must_use]
    pub fn call(&self) -> u64 {
        self.call
    }

    /// Waits, as for a model that answers. The time is not part of the latency.
    pub async fn pause(&mut self, time: Duration) {
        let before = self.clock.monotonic();
        self.clock.sleep(time).await;
        self.paused += self.clock.monotonic().saturating_sub(before);
    }
}

/// What a user of a load test does, again and again.
pub trait Scenario: Send + Sync {
    /// One word for reports.
    fn name(&self) -> &str;

    /// When a user calls.
    fn pacing(&self) -> Pacing;

    /// Stores the limits and entities that `users` users need. Called once, before the first call,
    /// also where they are stored already.
    fn prepare<'a>(
        &'a self,
        limiter: &'a RateLimiter,
        users: u32,
    ) -> BoxFuture<'a, Result<(), ScenarioError>>;

    /// One call. A scenario that fails tells it as [`Outcome::Failed`]; the user goes on.
    fn call<'a>(&'a self, session: &'a mut Session) -> BoxFuture<'a, Outcome>;
}
