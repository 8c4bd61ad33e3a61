//! Counts what a row asks of the endpoint, and makes rows of calls.

use std::sync::{Mutex, PoisonError};

use anyhow::Result;
use tokio::runtime::Runtime;

use super::canned::{Counts, Endpoint, counts_at};
use super::{CALLERS, canned, keys_of};
use crate::cell::{Calls, Figures, Op, Row, all_cores, one_thread};
use crate::rows::Context;

/// How many updates a call sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sends {
    /// Next to none: whatever a memory of one second lets through.
    Nothing,
    One,
    Two,
    /// One for many calls: local blocks order it.
    Orders,
}

/// The requests of one row.
pub(super) struct Watch {
    url: String,
    process: u32,
    sends: Sends,
    before: Mutex<Counts>,
}

impl Watch {
    pub(super) fn new(endpoint: &Endpoint, sends: Sends) -> Watch {
        Watch {
            url: endpoint.url.clone(),
            process: endpoint.process(),
            sends,
            before: Mutex::default(),
        }
    }

    pub(super) fn begin(&self) {
        *self.before.lock().unwrap_or_else(PoisonError::into_inner) =
            counts_at(&self.url).expect("an answer");
    }

    /// Panics when a call has sent something else than it should: that is another path, not a
    /// slower one.
    pub(super) fn end(&self, ops: u64) -> Figures {
        let (before, after) = (
            *self.before.lock().unwrap_or_else(PoisonError::into_inner),
            counts_at(&self.url).expect("an answer"),
        );
        let (updates, others) = (after.updates - before.updates, after.others - before.others);
        assert_eq!(others, 0, "nothing is read by {ops} calls");
        match self.sends {
            Sends::Nothing => assert!(updates * 100 <= ops, "{ops} calls sent {updates} updates"),
            Sends::One => assert_eq!(updates, ops, "updates"),
            // How many is the figure of the row. A short run has hardly begun to buy blocks, and
            // reports the use of those of before.
            Sends::Orders => assert!(updates <= 2 * ops, "{ops} calls sent {updates} updates"),
            Sends::Two => assert_eq!(updates, 2 * ops, "updates"),
        }
        vec![("requests per op", (updates + others) as f64 / ops as f64)]
    }

    pub(super) fn server(&self) -> u32 {
        self.process
    }
}

struct Watched<O> {
    op: O,
    watch: Watch,
}

impl<O: Op> Op for Watched<O> {
    async fn call(&self, random: u64) {
        self.op.call(random).await;
    }

    fn begin(&self) {
        self.watch.begin();
    }

    fn end(&self, ops: u64) -> Figures {
        self.watch.end(ops)
    }

    fn server(&self) -> Option<u32> {
        Some(self.watch.server())
    }
}

/// Who calls, on which runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Callers {
    /// One, on the thread of a current-thread runtime.
    Alone,
    /// Many tasks on the same.
    Crowd,
    /// One task on a thread per core.
    AloneOnThreads,
    /// Many tasks on a thread per core.
    CrowdOnThreads,
}

/// What a row is made for: the address of the endpoint and the number of buckets.
pub(super) struct Place<'a> {
    pub(super) url: &'a str,
    pub(super) keys: usize,
}

/// Makes a row on its own runtime, whose connections are then its own as well.
pub(super) fn row<O: Op>(
    context: &Context,
    (callers, sends): (Callers, Sends),
    make: impl AsyncFnOnce(Place<'_>) -> Result<O>,
) -> Result<Box<dyn Row>> {
    let endpoint = canned(context)?;
    let runtime: Runtime = match callers {
        Callers::Alone | Callers::Crowd => one_thread()?,
        Callers::AloneOnThreads | Callers::CrowdOnThreads => all_cores()?,
    };
    let op = runtime.block_on(make(Place { url: &endpoint.url, keys: keys_of(context) }))?;
    let op = Watched { op, watch: Watch::new(endpoint, sends) };
    Ok(match callers {
        Callers::Alone => Calls::alone(runtime, op, 1),
        Callers::AloneOnThreads => Calls::crowd(runtime, op, 1),
        Callers::Crowd | Callers::CrowdOnThreads => Calls::crowd(runtime, op, CALLERS),
    })
}
