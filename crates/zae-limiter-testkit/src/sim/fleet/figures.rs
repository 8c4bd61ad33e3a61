//! What a run of a fleet came to.

use zae_limiter_core::{Milli, TimeMs};

use super::arrivals::{Arrival, Exact};
use super::road::Calls;
use super::{Fleet, Told};

/// A process with that many grants a second is busy: one of the usual blocks is for a second then.
pub const BUSY_PER_S: u32 = 128;

/// What a run came to, in its measured time.
#[derive(Clone, Debug)]
pub struct FleetFigures {
    /// Requests.
    pub asked: u64,
    /// Requests that were granted.
    pub granted: u64,
    /// Requests that an exact bucket would have granted.
    pub exact: u64,
    /// Granted of what an exact bucket would have granted: tokens if there is a limit of tokens,
    /// else requests.
    pub utilisation: f64,
    /// Grants, orders and returns that reached the store.
    pub writes: u64,
    /// Those, and refusals by the store.
    pub calls: u64,
    /// Jain's index of what each process was granted of its fair share (max-min); 1 is even.
    pub fairness: f64,
    /// The most that was granted beyond an exact bucket at any time.
    pub over: Milli,
    /// Answers that are neither a grant nor a refusal.
    pub other: u64,
    /// The fewest grants for one write, of the processes that are granted [`BUSY_PER_S`] and more
    /// of one bucket.
    pub busy_grants_per_write: Option<f64>,
}

impl FleetFigures {
    pub(super) fn new(
        fleet: &Fleet,
        arrivals: &[Arrival],
        warm: TimeMs,
        told: Told,
        calls: &Calls,
        over: Milli,
    ) -> FleetFigures {
        let Some(first) = arrivals.first() else { panic!("a fleet that asks nothing") };
        let mut exact = Exact::new(fleet, first.at);
        let mut asked = vec![0_u64; fleet.processes as usize];
        let (mut taken, mut tokens) = (0_u64, 0_u64);
        for arrival in arrivals {
            let is_taken = exact.takes(arrival);
            if arrival.at < warm {
                continue;
            }
            asked[arrival.process as usize] += 1;
            if is_taken {
                taken += 1;
                tokens += u64::from(arrival.tokens);
            }
        }
        let granted: u64 = told.granted.iter().sum();
        let utilisation = if fleet.tokens.is_some() {
            told.tokens.iter().sum::<u64>() as f64 / tokens.max(1) as f64
        } else {
            granted as f64 / taken.max(1) as f64
        };
        let busy = fleet.measured.as_secs_f64() * f64::from(BUSY_PER_S);
        let busy_grants_per_write = told
            .granted
            .iter()
            .zip(&calls.writes)
            .filter(|(granted, _)| fleet.buckets == 1 && **granted as f64 >= busy)
            .map(|(granted, writes)| *granted as f64 / (*writes).max(1) as f64)
            .reduce(f64::min);
        FleetFigures {
            asked: asked.iter().sum(),
            granted,
            exact: taken,
            utilisation,
            writes: calls.writes.iter().sum(),
            calls: calls.all,
            fairness: fairness(&asked, &told.granted),
            over,
            other: told.other,
            busy_grants_per_write,
        }
    }

    /// Requests that were refused although an exact bucket would have granted them, of all.
    #[must_use]
    pub fn refused_too_many(&self) -> f64 {
        self.exact.saturating_sub(self.granted) as f64 / self.asked.max(1) as f64
    }

    /// Grants for one write.
    #[must_use]
    pub fn grants_per_write(&self) -> f64 {
        self.granted as f64 / self.writes.max(1) as f64
    }

    /// Requests for one call of the store.
    #[must_use]
    pub fn requests_per_call(&self) -> f64 {
        self.asked as f64 / self.calls.max(1) as f64
    }
}

/// Jain's index of what was granted over the fair share.
fn fairness(asked: &[u64], granted: &[u64]) -> f64 {
    let shares = fair_shares(asked, granted.iter().sum());
    let parts: Vec<f64> = granted
        .iter()
        .zip(&shares)
        .filter(|(_, share)| **share >= 1.0)
        .map(|(granted, share)| *granted as f64 / share)
        .collect();
    let sum: f64 = parts.iter().sum();
    let squares: f64 = parts.iter().map(|part| part * part).sum();
    if squares == 0.0 { 1.0 } else { sum * sum / (parts.len() as f64 * squares) }
}

/// Whoever asks for little gets it; the others get the same (max-min).
fn fair_shares(asked: &[u64], whole: u64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..asked.len()).collect();
    order.sort_by_key(|process| asked[*process]);
    let (mut left, mut others) = (whole as f64, asked.len());
    let mut shares = vec![0.0; asked.len()];
    for process in order {
        let share = (left / others as f64).min(asked[process] as f64);
        shares[process] = share;
        left -= share;
        others -= 1;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_for_little_gets_it_and_the_others_share() {
        assert_eq!(fair_shares(&[10, 100, 50, 4], 104), [10.0, 45.0, 45.0, 4.0]);
        assert_eq!(fair_shares(&[10, 20], 100), [10.0, 20.0]);
        assert!((fairness(&[100, 100], &[50, 50]) - 1.0).abs() < 1e-9);
        assert!((fairness(&[100, 100], &[50, 0]) - 0.5).abs() < 1e-9);
    }
}
