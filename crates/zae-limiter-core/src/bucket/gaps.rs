//! The gap that lowering a limit leaves.
//!
//! A drained limit of 100 lacks 100. Lowered to 1 it lacks 1, and is full soon. If the limit were
//! forgotten then and came back as 100 it would start full: 99 tokens out of nothing. So a limit
//! remembers how much more it would lack at its old capacity, its **gap**. Refill beyond the
//! capacity repays the gap; until then neither the limit nor its bucket is forgotten.

use super::lent::Lending;
use crate::{LimitName, Milli, TimeMs};

/// The gaps of limits, the lead of a clock, and what is lent. Most buckets have none of it, so the
/// type costs one pointer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Gaps(Option<Box<Kept>>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Kept {
    gaps: Vec<(LimitName, Milli)>,
    lead_ms: i64,
    is_led: bool,
    lending: Lending,
}

impl Gaps {
    /// True when there are no gaps, no lead and no loans.
    pub(super) fn is_nothing(&self) -> bool {
        self.0.is_none()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.as_ref().is_none_or(|kept| kept.gaps.is_empty())
    }

    pub(super) fn of(&self, limit: &LimitName) -> Milli {
        self.0
            .iter()
            .flat_map(|kept| kept.gaps.iter())
            .find(|(name, _)| name == limit)
            .map_or(Milli::ZERO, |(_, gap)| *gap)
    }

    pub(super) fn set(&mut self, limit: &LimitName, gap: Milli) {
        if gap <= Milli::ZERO && self.is_empty() {
            return;
        }
        let gaps = &mut self.0.get_or_insert_default().gaps;
        gaps.retain(|(name, _)| name != limit);
        if gap > Milli::ZERO {
            gaps.push((limit.clone(), gap));
        }
        self.tidy();
    }

    /// See [`crate::BucketState::lead_ms`].
    pub(super) fn lead_ms(&self) -> i64 {
        self.0.as_ref().map_or(0, |kept| kept.lead_ms)
    }

    /// See [`crate::BucketState::is_led`].
    pub(super) fn is_led(&self) -> bool {
        self.0.as_ref().is_some_and(|kept| kept.is_led)
    }

    pub(super) fn set_lead(&mut self, lead_ms: i64, is_led: bool) {
        if lead_ms > 0 {
            let kept = self.0.get_or_insert_default();
            (kept.lead_ms, kept.is_led) = (lead_ms, is_led);
        } else if let Some(kept) = &mut self.0 {
            (kept.lead_ms, kept.is_led) = (0, false);
            self.tidy();
        }
    }

    /// What is lent, if there was ever anything.
    pub(super) fn lending(&self) -> Option<&Lending> {
        self.0.as_ref().map(|kept| &kept.lending)
    }

    /// Changes what is lent.
    pub(super) fn lend(&mut self, change: impl FnOnce(&mut Lending)) {
        change(&mut self.0.get_or_insert_default().lending);
        self.tidy();
    }

    /// Forgets all loans once the last one has ended.
    pub(super) fn forget_ended_loans(&mut self, time: TimeMs) {
        if let Some(kept) = &mut self.0 {
            kept.lending.forget_ended(time);
            self.tidy();
        }
    }

    /// The time of the bucket was set: its loans last no longer from there than any loan.
    pub(super) fn roll_loans(&mut self, time: TimeMs) {
        if let Some(kept) = &mut self.0 {
            kept.lending.roll(time);
            self.tidy();
        }
    }

    fn tidy(&mut self) {
        let is_nothing =
            |kept: &Kept| kept.gaps.is_empty() && kept.lead_ms == 0 && kept.lending.is_none();
        if self.0.as_deref().is_some_and(is_nothing) {
            self.0 = None;
        }
    }

    pub(super) fn repay(&mut self, limit: &LimitName, amount: Milli) {
        let gap = self.of(limit);
        if gap > Milli::ZERO {
            self.set(limit, gap.saturating_sub(amount));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_repaid_takes_no_room() {
        let (x, y): (LimitName, LimitName) =
            ("x".parse().expect("a name"), "y".parse().expect("a name"));
        let mut gaps = Gaps::default();
        gaps.set(&x, Milli::ZERO);
        gaps.set_lead(0, true);
        assert_eq!(gaps, Gaps::default());
        gaps.set(&x, Milli(5));
        gaps.set_lead(7, true);
        gaps.repay(&y, Milli(9));
        gaps.repay(&x, Milli(2));
        assert_eq!((gaps.of(&x), gaps.of(&y), gaps.lead_ms()), (Milli(3), Milli::ZERO, 7));
        gaps.repay(&x, Milli(3));
        assert!(gaps.is_empty() && gaps.is_led(), "the lead stays");
        gaps.set_lead(0, false);
        assert_eq!(gaps, Gaps::default());
    }
}
