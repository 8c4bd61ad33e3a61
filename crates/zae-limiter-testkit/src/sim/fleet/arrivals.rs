//! The requests of a run, and an exact bucket that decides them.

use zae_limiter_core::{BucketState, ConfigStamp, Limit, Milli, TimeMs};

use super::{Fleet, millis, zipf};
use crate::rng::Rng;

/// A request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) at: TimeMs,
    pub(super) process: u32,
    pub(super) bucket: u32,
    /// Of the limit of tokens.
    pub(super) tokens: u32,
}

impl Arrival {
    /// What it takes of each limit.
    pub(super) fn amounts(&self) -> [Milli; 2] {
        [Milli::from_tokens(1), Milli::from_tokens(u64::from(self.tokens))]
    }
}

/// A number above 0 and up to 1.
fn part(rng: &mut Rng) -> f64 {
    (rng.between(0, (1 << 40) - 1) as f64 + 1.0) / (1_u64 << 40) as f64
}

/// All requests in the order of their times: of each process at random times (Poisson), to buckets
/// by their shares.
pub(super) fn draw(fleet: &Fleet, begin: TimeMs) -> Vec<Arrival> {
    let mut shares = zipf(fleet.buckets);
    for bucket in 1..shares.len() {
        shares[bucket] += shares[bucket - 1];
    }
    let until_ms = millis(fleet.warm_up + fleet.measured) as f64;
    let mut arrivals = Vec::new();
    for (process, share) in (0_u32..).zip(zipf(fleet.processes)) {
        let mut rng = Rng::new(fleet.seed, 31 + 10 * u64::from(process));
        let per_ms = fleet.asked_per_s() * share / 1_000.0;
        let mut at_ms = -part(&mut rng).ln() / per_ms;
        while at_ms < until_ms {
            let place = part(&mut rng);
            let bucket = shares.partition_point(|share| *share < place).min(shares.len() - 1);
            #[expect(clippy::cast_possible_truncation, reason = "a few minutes")]
            let at = begin.plus_ms(at_ms as i64);
            arrivals.push(Arrival {
                at,
                process,
                bucket: u32::try_from(bucket).unwrap_or(0),
                tokens: u32::try_from(rng.between(100, 900)).unwrap_or(0),
            });
            at_ms += -part(&mut rng).ln() / per_ms;
        }
    }
    arrivals.sort_by_key(|arrival| arrival.at);
    arrivals
}

/// One exact bucket per limit.
pub(super) struct Exact {
    limits: Vec<Limit>,
    buckets: Vec<Vec<BucketState>>,
    /// The most that was taken beyond what there was.
    pub(super) over: Milli,
}

impl Exact {
    pub(super) fn new(fleet: &Fleet, begin: TimeMs) -> Exact {
        let limits: Vec<Limit> = fleet.limits().limits.to_vec();
        let full = |limit: &Limit| {
            let mut bucket = BucketState::full(std::slice::from_ref(limit), ConfigStamp(0), begin);
            if fleet.begins_empty() {
                bucket.adjust(limit, limit.params().full(), begin);
            }
            bucket
        };
        let buckets = (0..fleet.buckets).map(|_| limits.iter().map(full).collect()).collect();
        Exact { limits, buckets, over: Milli::ZERO }
    }

    fn balance(&mut self, bucket: usize, limit: usize, now: TimeMs) -> Milli {
        let state = &mut self.buckets[bucket][limit];
        state.refill(now);
        state.limits()[0].balance
    }

    /// Takes what was granted, whether or not it is there.
    pub(super) fn count(&mut self, arrival: &Arrival, now: TimeMs) {
        let bucket = arrival.bucket as usize;
        for (limit, amount) in (0..self.limits.len()).zip(arrival.amounts()) {
            self.buckets[bucket][limit].adjust(&self.limits[limit], amount, now);
            let left = self.balance(bucket, limit, now);
            // Fractions of a millitoken are dropped at other moments.
            if left < Milli(-1) {
                self.over = self.over.max(left.negated());
            }
        }
    }

    /// Takes if all of it is there.
    pub(super) fn takes(&mut self, arrival: &Arrival) -> bool {
        let bucket = arrival.bucket as usize;
        let amounts = arrival.amounts();
        let has = (0..self.limits.len())
            .all(|limit| self.balance(bucket, limit, arrival.at) >= amounts[limit]);
        if has {
            self.count(arrival, arrival.at);
        }
        has
    }
}
