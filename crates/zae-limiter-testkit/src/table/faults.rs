//! What becomes of a call on its way: decided per call, from a seed, a script or a rule.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::call::{Asked, Operation};
use crate::rng::Rng;

/// What becomes of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It arrives and is answered.
    Pass,
    /// The table refuses it, throttled: `NotApplied`.
    NotApplied,
    /// The table refuses it for good, by permission: `Denied`.
    Denied,
    /// No connection: `Unreachable`.
    Unreachable,
    /// Lost on the way there: not applied, `Unknown`.
    LostBefore,
    /// Carried out, the reply is lost: `Unknown`.
    LostAfter,
    /// In the way of a transaction: `NotApplied`, or for a transaction `Canceled` with a conflict
    /// at this leg (counted round).
    Conflict(u32),
    /// As [`Fate::Conflict`], throttled.
    Throttled(u32),
    /// `Unknown` now, and carried out before the call that comes this many calls later: a zombie.
    /// [`super::EvalTable::land`] brings it earlier. A read is merely lost.
    Late(u32),
    /// The batch leaves out every n-th key (at least the first).
    Withhold(u32),
    /// A read that need not be consistent sees the table as it was this many writes ago.
    Lag(u32),
}

impl Fate {
    /// True when the call is answered as if nothing had happened to it.
    #[must_use]
    pub fn is_fair(self) -> bool {
        self == Fate::Pass
    }
}

/// The weights of the fates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Odds {
    /// [`Fate::Pass`]
    pub pass: u64,
    /// [`Fate::NotApplied`]
    pub not_applied: u64,
    /// [`Fate::Unreachable`]
    pub unreachable: u64,
    /// [`Fate::LostBefore`]
    pub lost_before: u64,
    /// [`Fate::LostAfter`]
    pub lost_after: u64,
    /// [`Fate::Conflict`], writes only.
    pub conflict: u64,
    /// [`Fate::Throttled`], transactions only.
    pub throttled: u64,
    /// [`Fate::Late`], writes only.
    pub late: u64,
    /// [`Fate::Withhold`], batches only.
    pub withhold: u64,
    /// [`Fate::Lag`], reads only.
    pub lag: u64,
    /// The most calls a late write may be late by.
    pub late_calls_max: u32,
    /// The most writes a lagging read may be behind.
    pub lag_writes_max: u32,
}

impl Odds {
    /// Nothing fails.
    pub const CLEAR: Odds = Odds {
        pass: 1,
        not_applied: 0,
        unreachable: 0,
        lost_before: 0,
        lost_after: 0,
        conflict: 0,
        throttled: 0,
        late: 0,
        withhold: 0,
        lag: 0,
        late_calls_max: 20,
        lag_writes_max: 8,
    };
    /// Now and then something does.
    pub const FAIR: Odds = Odds {
        pass: 82,
        not_applied: 3,
        unreachable: 1,
        lost_before: 2,
        lost_after: 4,
        conflict: 2,
        throttled: 1,
        late: 2,
        withhold: 5,
        lag: 10,
        ..Odds::CLEAR
    };
    /// Often.
    pub const ROUGH: Odds = Odds {
        pass: 40,
        not_applied: 8,
        unreachable: 4,
        lost_before: 10,
        lost_after: 18,
        conflict: 6,
        throttled: 3,
        late: 8,
        withhold: 15,
        lag: 25,
        ..Odds::CLEAR
    };
    /// Nearly everything.
    pub const OUTAGE: Odds = Odds {
        pass: 5,
        not_applied: 10,
        unreachable: 40,
        lost_before: 20,
        lost_after: 15,
        conflict: 2,
        throttled: 2,
        late: 6,
        withhold: 5,
        lag: 5,
        ..Odds::CLEAR
    };
}

type Rule = Box<dyn FnMut(&Asked<'_>) -> Fate + Send>;

enum Source {
    Seeded(Rng, Odds),
    Scripted(VecDeque<Fate>),
    Ruled(Rule),
}

struct Plan {
    source: Source,
    decided: Vec<Fate>,
}

/// A plan of faults. A clone is another hand on the same plan: clients that share it draw from one
/// sequence.
///
/// The same seed over the same calls decides the same; [`Faults::decided`] is the script that
/// replays it.
#[derive(Clone)]
pub struct Faults(Arc<Mutex<Plan>>);

impl Faults {
    /// Drawn from a seed.
    #[must_use]
    pub fn seeded(seed: u64, odds: Odds) -> Faults {
        Faults::from(Source::Seeded(Rng::new(seed, 7), odds))
    }

    /// One after the other; whatever comes after the last passes.
    #[must_use]
    pub fn scripted(fates: impl IntoIterator<Item = Fate>) -> Faults {
        Faults::from(Source::Scripted(fates.into_iter().collect()))
    }

    /// By a rule that looks at each call.
    #[must_use]
    pub fn by(rule: impl FnMut(&Asked<'_>) -> Fate + Send + 'static) -> Faults {
        Faults::from(Source::Ruled(Box::new(rule)))
    }

    fn from(source: Source) -> Faults {
        Faults(Arc::new(Mutex::new(Plan { source, decided: Vec::new() })))
    }

    /// Changes how often what happens from now on; only seeded plans have odds. Returns what they
    /// were.
    pub fn set_odds(&self, odds: Odds) -> Option<Odds> {
        match &mut self.lock().source {
            Source::Seeded(_, now) => Some(std::mem::replace(now, odds)),
            Source::Scripted(_) | Source::Ruled(_) => None,
        }
    }

    /// Everything decided so far.
    #[must_use]
    pub fn decided(&self) -> Vec<Fate> {
        self.lock().decided.clone()
    }

    /// How many calls did not simply pass.
    #[must_use]
    pub fn drawn(&self) -> usize {
        self.lock().decided.iter().filter(|fate| !fate.is_fair()).count()
    }

    pub(super) fn decide(&self, asked: &Asked<'_>) -> Fate {
        let mut plan = self.lock();
        let fate = match &mut plan.source {
            Source::Seeded(rng, odds) => draw(rng, odds, asked.operation()),
            Source::Scripted(fates) => fates.pop_front().unwrap_or(Fate::Pass),
            Source::Ruled(rule) => rule(asked),
        };
        plan.decided.push(fate);
        fate
    }

    fn lock(&self) -> MutexGuard<'_, Plan> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faults")
            .field("decided", &self.lock().decided.len())
            .finish_non_exhaustive()
    }
}

fn draw(rng: &mut Rng, odds: &Odds, operation: Operation) -> Fate {
    let only = |possible: bool, weight: u64| if possible { weight } else { 0 };
    let (writes, transacts) = (operation.writes(), operation == Operation::Transact);
    let batch = matches!(operation, Operation::BatchGet | Operation::DeleteBatch);
    // The arguments are drawn whatever the fate is: a change of the odds does not shift the rest of
    // the sequence.
    let (leg, late, nth, lag) = (rng.next(), rng.next(), rng.next(), rng.next());
    let up_to =
        |drawn: u64, max: u32| u32::try_from(1 + drawn % u64::from(max.max(1))).unwrap_or(1);
    rng.weighted(&[
        (odds.pass, Fate::Pass),
        (odds.not_applied, Fate::NotApplied),
        (odds.unreachable, Fate::Unreachable),
        (odds.lost_before, Fate::LostBefore),
        (odds.lost_after, Fate::LostAfter),
        (
            only(writes && operation != Operation::DeleteBatch, odds.conflict),
            Fate::Conflict(up_to(leg, 100)),
        ),
        (only(transacts, odds.throttled), Fate::Throttled(up_to(leg, 100))),
        (only(writes, odds.late), Fate::Late(up_to(late, odds.late_calls_max))),
        (only(batch, odds.withhold), Fate::Withhold(up_to(nth, 4))),
        (only(!writes, odds.lag), Fate::Lag(up_to(lag, odds.lag_writes_max))),
    ])
}
