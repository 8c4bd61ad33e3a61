//! The prepared request of a blocking limiter.

use std::sync::Arc;

use super::Lease;
use super::runtime::Runtime;
use crate::{AcquireError, Request};

/// A [`crate::Prepared`] whose verbs wait.
#[derive(Clone, Debug)]
pub struct Prepared {
    pub(super) prepared: crate::Prepared,
    pub(super) runtime: Arc<Runtime>,
}

impl Prepared {
    /// See [`crate::Prepared::acquire`].
    pub fn acquire(&self) -> Result<Lease, AcquireError> {
        let prepared = self.prepared.clone();
        let lease = self.runtime.wait(async move { prepared.acquire().await })?;
        Ok(Lease { lease: Arc::new(lease), runtime: Arc::clone(&self.runtime) })
    }

    /// See [`crate::Prepared::acquire_with`].
    pub fn acquire_with(
        &self,
        amounts: impl IntoIterator<Item = (impl AsRef<str>, u64)>,
    ) -> Result<Lease, AcquireError> {
        let prepared = self.prepared.clone();
        let amounts: Vec<(String, u64)> = amounts
            .into_iter()
            .map(|(limit, amount)| (limit.as_ref().to_owned(), amount))
            .collect();
        let lease = self.runtime.wait(async move { prepared.acquire_with(amounts).await })?;
        Ok(Lease { lease: Arc::new(lease), runtime: Arc::clone(&self.runtime) })
    }

    /// See [`crate::Prepared::request`].
    pub fn request(&self) -> &Request {
        self.prepared.request()
    }
}
