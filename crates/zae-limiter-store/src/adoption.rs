//! Taking buckets and usage over from another store.
//!
//! A store only ever makes what it does not have: a bucket that is there stays as it is, and so
//! does the usage of a window. So an adoption can be repeated, cut off anywhere and begun again,
//! and it can never give anybody more than a new bucket has.

use std::collections::BTreeSet;

use zae_limiter_core::{LimitParams, UsageSnapshot};

use crate::{BucketView, StoreError};

/// How many buckets and windows of usage one call takes over at most: with what proves them they
/// fit one transaction of DynamoDB.
pub const ADOPTED_MAX: usize = 80;

const OPERATION: &str = "adopt";

/// Buckets and usage of another store.
#[derive(Clone, Copy, Debug)]
pub struct Adoption<'a> {
    /// Buckets, their instants counted by the clock of the store that takes them over
    /// ([`crate::Store::store_time`]).
    pub buckets: &'a [BucketView],
    /// Usage of whole windows, or of the open one as far as it has come.
    pub usage: &'a [UsageSnapshot],
    /// What the audit event tells beside the numbers, such as a reason.
    pub details: &'a [(String, String)],
}

/// What became of a bucket, or of the usage of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Adopted {
    /// The store has it now.
    Made,
    /// The store had one already, which stays as it is.
    Kept,
    /// The store has no place for it, and why.
    Skipped(&'static str),
}

/// Days and months of a store that counts by the hour: they are the sums of their hours.
pub const COUNTED_BY_THE_HOUR: Adopted =
    Adopted::Skipped("the target sums days and months from hours");

impl Adoption<'_> {
    /// Refuses what no store may take over; for backends to call first.
    pub fn check(&self) -> Result<(), StoreError> {
        let invalid = |message: String| Err(StoreError::invalid(OPERATION, message));
        let count = self.buckets.len() + self.usage.len();
        if count > ADOPTED_MAX {
            return invalid(format!(
                "{count} buckets and windows of usage are taken over at once; the most is {ADOPTED_MAX}"
            ));
        }
        let mut seen = BTreeSet::new();
        for BucketView { entity, resource, state } in self.buckets {
            if !seen.insert((entity, resource)) {
                return invalid(format!("the bucket of {entity} on {resource} is named twice"));
            }
            let mut names = BTreeSet::new();
            for limit in state.all_limits() {
                let LimitParams { capacity_milli, refill_milli, period_ms } = limit.params;
                let is_sound = capacity_milli >= 0 && refill_milli > 0 && period_ms > 0;
                if !is_sound || !names.insert(&limit.name) {
                    return invalid(format!(
                        "limit {} of the bucket of {entity} on {resource} is no limit: each name is \
                         there once, with a capacity, a refill and a period above zero",
                        limit.name
                    ));
                }
            }
            if state.limits().is_empty() && names.is_empty() {
                return invalid(format!("the bucket of {entity} on {resource} has no limits"));
            }
        }
        let mut seen = BTreeSet::new();
        for snapshot in self.usage {
            let UsageSnapshot { entity, resource, window, start, .. } = snapshot;
            if window.start_of(*start) != *start {
                return invalid(format!(
                    "usage of {entity} on {resource}: no {window} window begins at {} ms",
                    start.0
                ));
            }
            if !seen.insert((entity, resource, window.as_str(), start)) {
                return invalid(format!("a window of {entity} on {resource} is named twice"));
            }
        }
        Ok(())
    }
}

impl Adopted {
    /// How many were made.
    #[must_use]
    pub fn made(answers: &[Adopted]) -> usize {
        answers.iter().filter(|answer| **answer == Adopted::Made).count()
    }
}
