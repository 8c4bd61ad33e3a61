//! The lease of a blocking limiter.

use std::sync::Arc;

use zae_limiter_core::{LimitName, LimitStatus};

use super::runtime::Runtime;
use crate::{AcquireError, CommitError, Degraded, IntoName, Invalid, Source};

/// A [`crate::Lease`] whose verbs wait.
#[must_use = "a dropped lease is rolled back; call commit() when the work is done"]
#[derive(Debug)]
pub struct Lease {
    /// Shared with the runtime thread only while a verb runs, so that finishing can take it back.
    pub(super) lease: Arc<crate::Lease>,
    pub(super) runtime: Arc<Runtime>,
}

impl Lease {
    /// See [`crate::Lease::record`].
    pub fn record(&self, limit: &str, used_in_total: u64) -> Result<(), Invalid> {
        self.lease.record(limit, used_in_total)
    }

    /// See [`crate::Lease::adjust`].
    pub fn adjust(&self, limit: &str, delta: i64) -> Result<(), Invalid> {
        self.lease.adjust(limit, delta)
    }

    /// See [`crate::Lease::consume`].
    pub fn consume<L: IntoName<LimitName>>(
        &self,
        amounts: impl IntoIterator<Item = (L, u64)>,
    ) -> Result<(), AcquireError> {
        let amounts: Result<Vec<(LimitName, u64)>, _> =
            amounts.into_iter().map(|(limit, amount)| Ok((limit.into_name()?, amount))).collect();
        let amounts = amounts.map_err(Invalid::Name)?;
        let lease = Arc::clone(&self.lease);
        self.runtime.wait(async move { lease.consume(amounts).await })
    }

    /// See [`crate::Lease::flush`].
    pub fn flush(&self) -> Result<(), CommitError> {
        let lease = Arc::clone(&self.lease);
        self.runtime.wait(async move { lease.flush().await })
    }

    /// See [`crate::Lease::statuses`].
    #[must_use]
    pub fn statuses(&self) -> &[LimitStatus] {
        self.lease.statuses()
    }

    /// See [`crate::Lease::used`].
    #[must_use]
    pub fn used(&self) -> Vec<(LimitName, i64)> {
        self.lease.used()
    }

    /// See [`crate::Lease::source`].
    #[must_use]
    pub fn source(&self) -> Source {
        self.lease.source()
    }

    /// See [`crate::Lease::degraded`].
    #[must_use]
    pub fn degraded(&self) -> Option<&Degraded> {
        self.lease.degraded()
    }

    /// See [`crate::Lease::commit`].
    pub fn commit(self) -> Result<(), CommitError> {
        let Lease { lease, runtime } = self;
        // Nearly always there is nothing to write, and no reason to wake another thread.
        let Some(settlement) = lease.conclude() else { return Ok(()) };
        runtime.wait(async move { lease.write(settlement).await })
    }

    /// See [`crate::Lease::rollback`].
    pub fn rollback(self) -> Result<(), CommitError> {
        let Lease { lease, runtime } = self;
        runtime.wait(async move { lease.rollback_shared().await })
    }
}
