//! What a process remembers of a bucket with several shards: which shards there are, when all of
//! them were read last, and whether the bucket rests.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};

use smallvec::SmallVec;
use zae_limiter_core::{LimitName, Milli, TimeMs};

use crate::bucket::debit::Debit;
use crate::bucket::shard::{Leaves, Standing};
use crate::constants::HERD_PAUSE_MS;

/// The shards of one bucket.
#[derive(Debug)]
pub(crate) struct Tree {
    leaves: Mutex<Leaves>,
    /// When all shards were read last.
    gathered_at: AtomicI64,
    rest: Mutex<Rest>,
}

/// A bucket that could not serve a take rests for takes of as much or more.
#[derive(Debug)]
struct Rest {
    until: TimeMs,
    amounts: SmallVec<[(LimitName, Milli); 2]>,
}

impl Tree {
    pub(crate) fn new() -> Tree {
        Tree {
            leaves: Mutex::new(Leaves::NONE),
            gathered_at: AtomicI64::new(i64::MIN),
            rest: Mutex::new(Rest { until: TimeMs(i64::MIN), amounts: SmallVec::new() }),
        }
    }

    /// The shards there are, each with the number of its slots.
    pub(crate) fn leaves(&self) -> SmallVec<[(u32, u32); 4]> {
        self.lock().all()
    }

    /// A shard was seen.
    pub(crate) fn learn(&self, standing: &Standing) {
        self.lock().learn(standing);
    }

    /// A shard is not there.
    pub(crate) fn lose(&self, shard: u32) {
        self.lock().lose(shard);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Leaves> {
        self.leaves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether all shards may be read now; who asks first reads for the others.
    pub(crate) fn may_gather(&self, now: TimeMs, pause_ms: i64) -> bool {
        let is_due = |at: i64| {
            let passed = now.0.saturating_sub(at);
            // A clock that went back must not keep the shards unread.
            (!(0..pause_ms).contains(&passed)).then_some(now.0)
        };
        self.gathered_at.fetch_update(Ordering::AcqRel, Ordering::Acquire, is_due).is_ok()
    }

    /// Takes of as much or more are contended for a while.
    pub(crate) fn rest(&self, debit: &Debit<'_>, now: TimeMs, pause_ms: i64) {
        let amounts = debit.wanted().map(|(limit, amount)| (limit.name().clone(), amount));
        let mut rest = self.rest.lock().unwrap_or_else(PoisonError::into_inner);
        *rest = Rest { until: now.plus_ms(pause_ms), amounts: amounts.collect() };
    }

    /// Whether a take like this has to wait.
    pub(crate) fn is_resting(&self, debit: &Debit<'_>, now: TimeMs) -> bool {
        let rest = self.rest.lock().unwrap_or_else(PoisonError::into_inner);
        // A clock that went back must not keep the bucket at rest.
        let left = rest.until.since(now);
        (1..=HERD_PAUSE_MS).contains(&left)
            && rest.amounts.iter().all(|(name, least)| {
                debit.wanted().any(|(limit, amount)| limit.name() == name && amount >= *least)
            })
    }
}

/// The right to split a shard: one caller of a process has it at a time, and gives it back also when
/// its future is dropped.
pub(crate) struct Turn<'a>(&'a AtomicBool);

impl<'a> Turn<'a> {
    pub(crate) fn of(is_taken: &'a AtomicBool) -> Option<Turn<'a>> {
        (!is_taken.swap(true, Ordering::AcqRel)).then_some(Turn(is_taken))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
