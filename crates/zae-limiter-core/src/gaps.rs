//! What lowering a limit hides.
//!
//! A limit of 100 that is drained lacks 100. Lowered to 1 it lacks 1, and is full soon. If it were forgotten then and came
//! back as 100 it would start full: 99 tokens out of nothing. So a limit remembers how much more it would lack at its old
//! capacity, its **gap**. Refill beyond the capacity repays it; until then neither the limit nor its bucket is forgotten.

use crate::{LimitName, Milli};

/// The gaps of a bucket; nearly always none, so they cost one pointer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(clippy::box_collection, reason = "a thin pointer in every bucket instead of a whole vector that is nearly always empty")]
pub(crate) struct Gaps(Option<Box<Vec<(LimitName, Milli)>>>);

impl Gaps {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn of(&self, limit: &LimitName) -> Milli {
        self.0.iter().flat_map(|gaps| gaps.iter()).find(|(name, _)| name == limit).map_or(Milli::ZERO, |(_, gap)| *gap)
    }

    pub(crate) fn set(&mut self, limit: &LimitName, gap: Milli) {
        if gap <= Milli::ZERO && self.is_empty() {
            return;
        }
        let gaps = self.0.get_or_insert_default();
        gaps.retain(|(name, _)| name != limit);
        if gap > Milli::ZERO {
            gaps.push((limit.clone(), gap));
        }
        if gaps.is_empty() {
            self.0 = None;
        }
    }

    pub(crate) fn repay(&mut self, limit: &LimitName, amount: Milli) {
        let gap = self.of(limit);
        if gap > Milli::ZERO {
            self.set(limit, gap.saturating_sub(amount));
        }
    }
}
