//! What the tests of the maths share: short constructors, and an oracle that keeps a balance as one
//! exact fraction.

use proptest::prelude::*;
use smallvec::smallvec;
use zae_limiter_core::{
    BucketState, ConfigStamp, Decision, Limit, LimitParams, LimitState, Member, Milli, Take,
    TimeMs, Wait, decide,
};

pub(crate) const HOUR_MS: i64 = 3_600_000;
pub(crate) const DAY_MS: i64 = 24 * HOUR_MS;

/// The largest parameters a [`Limit`] can have.
pub(crate) const MILLI_MAX: i64 = 1_000_000_000_000_000_000;
pub(crate) const PERIOD_MS_MAX: i64 = 1_000_000_000_000;

pub(crate) fn limit(text: &str) -> Limit {
    text.parse().expect("a valid limit")
}

pub(crate) fn limits(texts: &[&str]) -> Vec<Limit> {
    texts.iter().map(|text| limit(text)).collect()
}

/// A full bucket, created at the epoch.
pub(crate) fn full(texts: &[&str]) -> BucketState {
    BucketState::full(&limits(texts), ConfigStamp(0), TimeMs(0))
}

/// A limit in any state, called `x`.
pub(crate) fn state(params: LimitParams, balance: i64, remainder: i64) -> LimitState {
    let name = "x".parse().expect("a valid name");
    LimitState {
        name,
        params,
        balance: Milli(balance),
        remainder,
        consumed: Milli::ZERO,
        hour_base: Milli::ZERO,
    }
}

/// A bucket with that one limit.
pub(crate) fn bucket_of(state: LimitState, refilled_at: i64) -> BucketState {
    BucketState::restore(smallvec![state], 1, TimeMs(refilled_at), ConfigStamp(0))
}

pub(crate) fn take(limit: u8, milli: i64) -> Take {
    Take { limit, amount: Milli(milli) }
}

/// Asks one bucket.
pub(crate) fn ask(bucket: &mut BucketState, takes: &[Take], now: i64) -> Decision {
    decide(&mut [Member { bucket, takes }], TimeMs(now))
}

/// Asks one bucket and expects to get it.
#[track_caller]
pub(crate) fn grant(bucket: &mut BucketState, takes: &[Take], now: i64) {
    let decision = ask(bucket, takes, now);
    assert!(matches!(decision, Decision::Granted { .. }), "{decision:?}");
}

/// The longest wait of a refusal; `None` for a grant.
pub(crate) fn wait_of(decision: &Decision) -> Option<Wait> {
    match decision {
        Decision::Granted { .. } => None,
        Decision::Refused { reports } => reports.iter().map(|report| report.wait).max(),
    }
}

/// Balances of all limits, retired ones too.
pub(crate) fn balances(bucket: &BucketState) -> Vec<i64> {
    bucket.all_limits().iter().map(|limit| limit.balance.0).collect()
}

/// One limit as a single exact fraction: the balance in 1/`period` of a millitoken. Where the
/// product keeps a whole balance and a remainder, this adds, subtracts and compares one number.
#[derive(Clone, Debug)]
pub(crate) struct Ideal {
    pub(crate) capacity: i128,
    pub(crate) refill: i128,
    pub(crate) period: i128,
    pub(crate) units: i128,
    pub(crate) at: i128,
}

impl Ideal {
    pub(crate) fn of(state: &LimitState, at: i64) -> Ideal {
        let LimitParams { capacity_milli, refill_milli, period_ms } = state.params;
        let (capacity, refill, period) =
            (i128::from(capacity_milli), i128::from(refill_milli), i128::from(period_ms));
        Ideal {
            capacity,
            refill,
            period,
            units: i128::from(state.balance.0) * period + i128::from(state.remainder),
            at: i128::from(at),
        }
    }

    pub(crate) fn advance(&mut self, now: i64) {
        let elapsed = i128::from(now) - self.at;
        if elapsed > 0 {
            self.units = (self.units + elapsed * self.refill).min(self.capacity * self.period);
            self.at = i128::from(now);
        }
    }

    /// Whole millitokens and the rest, as a bucket keeps them.
    pub(crate) fn parts(&self) -> (i64, i64) {
        let whole = i64::try_from(self.units.div_euclid(self.period)).expect("a balance fits");
        (
            whole,
            i64::try_from(self.units.rem_euclid(self.period))
                .expect("a remainder is below a period"),
        )
    }
}

/// Numbers of every size from 1 to `max`, small ones as often as large ones.
pub(crate) fn up_to(max: i64) -> impl Strategy<Value = i64> {
    let bits = i64::BITS - max.leading_zeros();
    (0..bits, any::<u64>())
        .prop_map(move |(bits, noise)| (noise >> (63 - bits)).cast_signed().clamp(1, max))
}

/// Any parameters a [`Limit`] can have, and those in between.
pub(crate) fn any_params() -> impl Strategy<Value = LimitParams> {
    (up_to(MILLI_MAX), up_to(MILLI_MAX), up_to(PERIOD_MS_MAX)).prop_map(
        |(capacity_milli, refill_milli, period_ms)| LimitParams {
            capacity_milli,
            refill_milli,
            period_ms,
        },
    )
}

/// Any state such a limit can be in: debt, part of a millitoken, nearly full.
pub(crate) fn any_state() -> impl Strategy<Value = LimitState> {
    (any_params(), up_to(MILLI_MAX), any::<bool>(), any::<u64>()).prop_map(
        |(params, distance, debt, noise)| {
            let balance = if debt { -distance } else { (params.capacity_milli - distance).max(0) };
            let remainder =
                i64::try_from(noise % params.period_ms.unsigned_abs()).expect("below a period");
            state(params, balance, remainder)
        },
    )
}
