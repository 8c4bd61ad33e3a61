//! When a bucket, or one limit of it, may be forgotten: once a new one would start as it is.

use super::{BucketState, LimitState};
use crate::{Milli, TimeMs};

/// The expiry of a bucket that is kept for ever.
pub(super) const NEVER: TimeMs = TimeMs(i64::MAX);

impl BucketState {
    /// From when on the bucket may be forgotten, provided it is full; `None` means never.
    #[must_use]
    pub fn expires_at(&self) -> Option<TimeMs> {
        (self.expires_at != NEVER).then_some(self.expires_at)
    }

    /// Sets from when on the bucket may be forgotten.
    pub fn set_expires_at(&mut self, expires_at: Option<TimeMs>) {
        self.expires_at = expires_at.unwrap_or(NEVER);
    }

    /// True when every limit, retired ones too, is full at `now`: only then may the bucket be
    /// forgotten.
    #[must_use]
    pub fn is_full_at(&self, now: TimeMs) -> bool {
        let elapsed_ms = self.elapsed_at(now);
        let is_whole = |limit: &LimitState| {
            limit.accrued(elapsed_ms).0.0 >= limit.params.capacity_milli
                && limit.overflow(elapsed_ms) >= self.gaps.of(&limit.name)
        };
        self.limits.iter().all(is_whole)
    }

    /// True when the bucket has been idle past its expiry and is full: forgetting it changes no
    /// decision. Its [`BucketState::open_hour`] still has to go to the history.
    #[must_use]
    pub fn is_expired_at(&self, now: TimeMs) -> bool {
        self.expires_at <= now && self.expires_at != NEVER && self.is_full_at(now)
    }

    /// True when some limit owes tokens at `now`.
    #[must_use]
    pub fn in_debt_at(&self, now: TimeMs) -> bool {
        let elapsed_ms = self.elapsed_at(now);
        self.limits.iter().any(|limit| limit.accrued(elapsed_ms).0.is_negative())
    }

    pub(crate) fn forget_full_retired(&mut self) {
        if self.limits.len() > self.active() {
            let limits = std::mem::take(&mut self.limits);
            let active = self.active();
            let kept = limits
                .into_iter()
                .enumerate()
                .filter(|(index, limit)| *index < active || !self.is_forgettable(limit));
            self.limits = kept.map(|(_, limit)| limit).collect();
        }
    }

    /// True when a retired limit may go: it is full, hides no gap, and its usage is in the history.
    /// Added again it would start as it is.
    pub(super) fn is_forgettable(&self, limit: &LimitState) -> bool {
        limit.lack() <= 0
            && self.gaps.of(&limit.name) == Milli::ZERO
            && limit.consumed == limit.hour_base
    }
}
