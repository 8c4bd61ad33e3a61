//! The decision: may these amounts be taken from these buckets, all or none?
//!
//! One pure function decides for every backend. The condition expressions of DynamoDB are a
//! translation of it.

use smallvec::SmallVec;

use crate::{BucketState, ClosedHour, LimitState, Milli, TimeMs, Wait, WaitMs};

/// An amount asked of one limit. An amount of zero declares the limit: the limit must not be in
/// debt, and it can be adjusted later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Take {
    /// Index into the limits in force of the bucket.
    pub limit: u8,
    /// The amount; never negative.
    pub amount: Milli,
}

/// One bucket of a chain and the amounts asked of it. A limit that is not named is refilled, not
/// checked.
#[derive(Debug)]
pub struct Member<'a> {
    /// The bucket; changed only by a grant.
    pub bucket: &'a mut BucketState,
    /// At most one per limit.
    pub takes: &'a [Take],
}

/// The result of one decision for one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitReport {
    /// Which bucket of the chain.
    pub member: u8,
    /// Which of its limits.
    pub limit: u8,
    /// The balance: after the take on a grant, as refilled to now on a refusal.
    pub balance: Milli,
    /// The amount asked.
    pub requested: Milli,
    /// When the limit could pass.
    pub wait: Wait,
}

/// One report per take, in the order asked. Inline for the usual two limits on two levels.
pub type Reports = SmallVec<[LimitReport; 4]>;

/// All or nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Every take was made.
    Granted {
        /// The balances left.
        reports: Reports,
        /// Usage hours that ended with this take, by member: history for the backend to keep.
        closed: Vec<(u8, ClosedHour)>,
    },
    /// No bucket was changed.
    Refused {
        /// Every take, with its wait if it was short.
        reports: Reports,
    },
}

/// Decides and, on a grant, takes.
pub fn decide(members: &mut [Member<'_>], now: TimeMs) -> Decision {
    if let [member] = members {
        let mut reports = Reports::new();
        if member.bucket.take_at_once(member.takes, now, &mut reports) {
            return Decision::Granted { reports, closed: Vec::new() };
        }
    }
    let mut reports = assess(members.iter().map(|member| (&*member.bucket, member.takes)), now);
    if reports.iter().any(|report| report.wait != Wait::None) {
        return Decision::Refused { reports };
    }
    let mut closed = Vec::new();
    for (index, member) in (0u8..).zip(members.iter_mut()) {
        closed.extend(member.bucket.take(member.takes, now).map(|hour| (index, hour)));
    }
    for report in &mut reports {
        report.balance = report.balance.saturating_sub(report.requested);
    }
    Decision::Granted { reports, closed }
}

/// The reports of [`decide`] without a take: balances as refilled to `now`, and the waits.
pub fn assess<'a>(
    members: impl Iterator<Item = (&'a BucketState, &'a [Take])>,
    now: TimeMs,
) -> Reports {
    let mut reports = Reports::new();
    for (member, (bucket, takes)) in (0u8..).zip(members) {
        let elapsed_ms = bucket.elapsed_at(now);
        for take in takes {
            debug_assert!(
                !take.amount.is_negative(),
                "amounts are never negative: that would mint"
            );
            let limit = &bucket.limits()[usize::from(take.limit)];
            let (balance, remainder) = limit.accrued(elapsed_ms);
            let wait = if balance >= take.amount {
                // An hour counts at most 9.2 · 10^15 tokens and refuses more until the next hour.
                bucket.wait_to_count(limit, take.amount, now).map_or(Wait::None, Wait::After)
            } else {
                // Nothing accrues until a clock behind the refill instant has caught up with it.
                let behind_ms = elapsed_ms.saturating_neg().max(0);
                wait_for(limit, balance, remainder, take.amount, behind_ms)
            };
            reports.push(LimitReport {
                member,
                limit: take.limit,
                balance,
                requested: take.amount,
                wait,
            });
        }
    }
    reports
}

/// The exact wait until `amount` fits, rounded up to the millisecond: a request one millisecond
/// earlier is refused.
#[must_use]
pub fn wait_for(
    limit: &LimitState,
    balance: Milli,
    remainder: i64,
    amount: Milli,
    behind_ms: i64,
) -> Wait {
    let params = limit.params;
    // Only a damaged row has a limit that does not refill.
    if amount.0 > params.capacity_milli || params.refill_milli <= 0 || params.period_ms <= 0 {
        return Wait::Never;
    }
    let deficit = i128::from(amount.0) - i128::from(balance.0);
    let ms = params.time_for_ms(deficit, remainder) + i128::from(behind_ms);
    Wait::After(WaitMs::at_least_one(u64::try_from(ms.max(1)).unwrap_or(u64::MAX)))
}
