//! Credentials that are renewed before they expire, and whose renewal outlives the request that
//! began it.
//!
//! The SDK asks for credentials within the timeout of a request. The timeout of a take is short,
//! and the provider of credentials may be slower: a renewal that every take begins anew and cuts
//! off would never end. Here the renewal is kept, and every request that asks for credentials
//! carries it on.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use aws_credential_types::Credentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::future::ProvideCredentials as Providing;
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use zae_limiter_store::Clock;

/// Credentials are renewed this long before they expire. The SDK shortens it at random, by up to a
/// half, so that a fleet does not ask all at once. AWS hands out new ones at least as early.
pub(super) const RENEW_AHEAD: Duration = Duration::from_secs(5 * 60);

/// How long after a renewal the next one may begin, while there are credentials that hold: the last
/// one may have failed, or have brought what expires soon once more.
const RENEW_PAUSE: Duration = Duration::from_secs(10);

/// A renewal that takes longer is given up, and the next request begins another: the provider may
/// never answer. The SDK's own providers give up earlier.
const RENEWAL_MAX: Duration = Duration::from_secs(60);

type Renewal = Shared<BoxFuture<'static, Result<Credentials, Arc<CredentialsError>>>>;

/// A provider that remembers what it was given last and keeps one renewal at a time.
pub(super) struct Steady {
    provider: SharedCredentialsProvider,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    known: Option<Credentials>,
    renewal: Option<Renewal>,
    /// When it began, and before when the next one does not; by the monotonic clock.
    began: Duration,
    paused_until: Duration,
}

impl Steady {
    pub(super) fn new(provider: SharedCredentialsProvider, clock: Arc<dyn Clock>) -> Steady {
        Steady { provider, clock, state: Mutex::default() }
    }

    /// The SDK asks when its credentials expire soon. Credentials that still hold are handed out
    /// while the renewal goes on; only without any is the renewal waited for.
    async fn current(&self) -> Result<Credentials, CredentialsError> {
        let valid = self.valid();
        let Some(renewal) = self.renewal(valid.is_some()) else {
            return valid.ok_or_else(CredentialsError::not_loaded_no_source);
        };
        let result = match valid {
            None => renewal.clone().await,
            Some(valid) => match renewal.clone().now_or_never() {
                Some(result) => result.or(Ok(valid)),
                None => return Ok(valid),
            },
        };
        self.ended(&renewal);
        result.map_err(again)
    }

    /// What was given last, if it has not expired.
    fn valid(&self) -> Option<Credentials> {
        let now = Duration::from_millis(self.clock.now().0.unsigned_abs());
        let holds = |known: &Credentials| {
            known.expiry().is_none_or(|expiry| {
                expiry.duration_since(UNIX_EPOCH).is_ok_and(|expiry| expiry > now)
            })
        };
        self.state().known.clone().filter(holds)
    }

    /// The renewal under way, or a new one; `None` when the last one has just ended and what is
    /// known still holds.
    fn renewal(&self, can_wait: bool) -> Option<Renewal> {
        let (mut state, now) = (self.state(), self.clock.monotonic());
        let is_stuck = now.saturating_sub(state.began) > RENEWAL_MAX;
        if let Some(renewal) = state.renewal.as_ref().filter(|_| !is_stuck) {
            return Some(renewal.clone());
        }
        if can_wait && state.renewal.is_none() && now < state.paused_until {
            return None;
        }
        let provider = self.provider.clone();
        let renewal =
            async move { provider.provide_credentials().await.map_err(Arc::new) }.boxed().shared();
        (state.began, state.renewal) = (now, Some(renewal.clone()));
        Some(renewal)
    }

    /// Keeps what a renewal has brought. Several requests may have waited for it.
    fn ended(&self, renewal: &Renewal) {
        let mut state = self.state();
        if !state.renewal.as_ref().is_some_and(|current| current.ptr_eq(renewal)) {
            return;
        }
        state.renewal = None;
        state.paused_until = self.clock.monotonic().saturating_add(RENEW_PAUSE);
        match renewal.peek() {
            Some(Ok(credentials)) => state.known = Some(credentials.clone()),
            Some(Err(error)) => tracing::warn!(
                error = &**error as &dyn std::error::Error,
                "credentials could not be renewed"
            ),
            None => {}
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ProvideCredentials for Steady {
    fn provide_credentials<'a>(&'a self) -> Providing<'a>
    where
        Self: 'a,
    {
        Providing::new(self.current())
    }

    fn fallback_on_interrupt(&self) -> Option<Credentials> {
        self.provider.fallback_on_interrupt()
    }
}

/// The same failure for one more request that waited.
fn again(error: Arc<CredentialsError>) -> CredentialsError {
    match &*error {
        CredentialsError::ProviderTimedOut(details) => {
            CredentialsError::provider_timed_out(details.timeout_duration())
        }
        CredentialsError::CredentialsNotLoaded(_) => CredentialsError::not_loaded(error),
        CredentialsError::InvalidConfiguration(_) => CredentialsError::invalid_configuration(error),
        CredentialsError::ProviderError(_) => CredentialsError::provider_error(error),
        _ => CredentialsError::unhandled(error),
    }
}

impl fmt::Debug for Steady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Steady").finish_non_exhaustive()
    }
}
