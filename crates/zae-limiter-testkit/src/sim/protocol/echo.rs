//! A network that delivers a request twice: the copy arrives whenever the seed says, within the
//! time an attempt may take.
//!
//! In scope is every write of one bucket but a credit. A copy of a debit is refused by its nonce,
//! or, when another debit has come between, lands once more: the safe direction, which its sender
//! cannot know of. A copy of a refill, a change of limits or a create meets another refill instant,
//! or an item. A credit has nothing that would tell it from its copy: it is given back at most once
//! because it is sent once, over a transport that does not repeat what it has delivered, so no
//! copies are made. Transactions carry a token.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use zae_limiter_dynamodb::bucket::write::BucketWrite;
use zae_limiter_dynamodb::constants::ATTEMPT_TIMEOUT;
use zae_limiter_dynamodb::table::Table;

use crate::oracle::journal::finish;
use crate::rng::Rng;
use crate::table::EvalTable;

/// Of a hundred copies on their way, those that arrive before the next request of anybody.
const ARRIVES: u64 = 20;

/// One copy on its way.
struct Copy {
    /// The handle that marks it; nothing happens to a copy but that it is late.
    table: EvalTable,
    write: BucketWrite,
    /// When the request was sent, truly.
    sent_ms: i64,
}

struct State {
    rng: Rng,
    /// Of a hundred requests, those that are delivered twice.
    percent: u64,
    waiting: Vec<Copy>,
}

/// The copies of a run.
#[derive(Clone)]
pub(crate) struct Echoes(Arc<Mutex<State>>);

impl Echoes {
    pub(crate) fn new(rng: Rng, percent: u64) -> Echoes {
        Echoes(Arc::new(Mutex::new(State { rng, percent, waiting: Vec::new() })))
    }

    /// Whether a request is to be delivered twice.
    pub(crate) fn wants(&self) -> bool {
        let mut state = self.lock();
        let percent = state.percent;
        state.rng.chance(percent)
    }

    /// A request is sent, and will be delivered once more.
    pub(crate) fn add(&self, table: EvalTable, write: BucketWrite, sent_ms: i64) {
        self.lock().waiting.push(Copy { table, write, sent_ms });
    }

    /// Some of those on their way arrive.
    pub(crate) fn arrive(&self) {
        self.deliver(|rng| rng.chance(ARRIVES));
    }

    /// It is later now: what has been on its way for too long never arrives.
    pub(crate) fn expire(&self, truth_ms: i64) {
        let oldest =
            truth_ms.saturating_sub(i64::try_from(ATTEMPT_TIMEOUT.as_millis()).unwrap_or(0));
        self.lock().waiting.retain(|copy| copy.sent_ms >= oldest);
    }

    /// Everything on its way arrives.
    pub(crate) fn arrive_all(&self) {
        self.deliver(|_| true);
    }

    fn deliver(&self, mut chosen: impl FnMut(&mut Rng) -> bool) {
        let mut arrived = Vec::new();
        {
            let State { rng, waiting, .. } = &mut *self.lock();
            for copy in std::mem::take(waiting) {
                if chosen(rng) { arrived.push(copy) } else { waiting.push(copy) }
            }
        }
        for Copy { table, write, .. } in arrived {
            // Nobody is there to be told.
            drop(finish(table.write_bucket(write)));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
