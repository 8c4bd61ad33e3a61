//! Where a scheduler comes in: before a call is carried out and before its answer is given.

use std::future::poll_fn;
use std::sync::{Mutex, PoisonError};
use std::task::Poll;

use super::call::Operation;
use crate::rng::Rng;

/// A point at which a call may be made to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// Nothing has happened yet: a caller that drops the call here has not made it.
    Before(Operation),
    /// It was carried out: a caller that drops the call here never learns of it.
    After(Operation),
}

/// Makes calls wait, so that the order of polls decides in which order clients go on.
///
/// A call that waits returns `Pending` and asks to be polled again at once: an executor of its own,
/// like that of [`crate::sim`], polls it when its seed says so; any other one goes round.
pub trait Gate: Send + Sync {
    /// For how many polls a client waits here.
    fn polls(&self, client: u32, point: Point) -> u32;
}

impl<F: Fn(u32, Point) -> u32 + Send + Sync> Gate for F {
    fn polls(&self, client: u32, point: Point) -> u32 {
        self(client, point)
    }
}

/// Waits drawn from a seed.
#[derive(Debug)]
pub struct SeededGate {
    rng: Mutex<Rng>,
    percent: u64,
    polls_max: u32,
}

impl SeededGate {
    /// Waits at `percent` of 100 points, for up to `polls_max` polls.
    #[must_use]
    pub fn new(seed: u64, percent: u64, polls_max: u32) -> SeededGate {
        SeededGate { rng: Mutex::new(Rng::new(seed, 8)), percent, polls_max }
    }
}

impl Gate for SeededGate {
    fn polls(&self, _client: u32, _point: Point) -> u32 {
        let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
        if rng.chance(self.percent) {
            u32::try_from(rng.between(1, u64::from(self.polls_max.max(1)))).unwrap_or(1)
        } else {
            0
        }
    }
}

pub(super) async fn pause(mut polls: u32) {
    poll_fn(move |context| {
        if polls == 0 {
            return Poll::Ready(());
        }
        polls -= 1;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
