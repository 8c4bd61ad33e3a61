//! What a cell is asked for, and what it asks for: terms, answers, returns and orders.

use std::time::Duration;

use smallvec::SmallVec;
use zae_limiter_core::{Milli, OrderLine, Report, Reports, TimeMs};

use super::layer::Block;
use super::options::LocalBlocks;
use super::pace::Paced;
use super::stats::Stats;
use super::tally::{Amounts, Unreported, sum};
use crate::{Entropy, LimitsInForce};

/// What a request has got from stock.
pub(super) struct Taken {
    pub(super) reports: Reports,
    /// Which block it is from.
    pub(super) number: u64,
}

/// How a request goes on.
pub(super) enum Next {
    /// Served from stock.
    Taken(Taken),
    /// A limit is scarce, and the next visit has not come.
    Refused(Paced),
    /// Another order is under way.
    Busy,
    /// The request asks the store as if there were no blocks.
    Exact,
    /// The block ends first.
    Settle(Box<Ending>),
    /// The request goes to the store with an order.
    Order(Box<Purchase>),
}

/// A block that is on its way back.
#[derive(Default)]
pub(super) struct Ending {
    pub(super) report: Report,
    /// Of it: stock that goes back.
    pub(super) back: Milli,
    /// As it was, in case that nothing is written.
    pub(super) before: Option<Block>,
    pub(super) unreported: Unreported,
}

/// An order that is under way.
pub(super) struct Purchase {
    pub(super) limits: LimitsInForce,
    pub(super) lines: SmallVec<[OrderLine; 4]>,
    pub(super) ending: Ending,
    pub(super) age_ms: i64,
    pub(super) serves: bool,
    /// What the request takes from stock, by line.
    pub(super) own: Amounts,
    /// The block as it was, in case that nothing is written.
    pub(super) before: Option<Block>,
    pub(super) unreported: Unreported,
    pub(super) epoch: u64,
    /// When it was made, by a clock that is never set.
    pub(super) ordered: Option<Duration>,
}

impl Purchase {
    pub(super) fn own_sum(&self) -> Milli {
        sum(&self.own)
    }
}

/// How a request may be served.
#[derive(Clone, Copy)]
pub(super) struct Terms<'a> {
    pub(super) options: &'a LocalBlocks,
    pub(super) stats: &'a Stats,
    pub(super) entropy: &'a dyn Entropy,
    pub(super) epoch: u64,
    pub(super) now: TimeMs,
    /// The same by a clock that is never set, if there is one.
    pub(super) moment: Option<Duration>,
    /// The request is the only member of its chain, so an order can serve it.
    pub(super) is_alone: bool,
    /// An order may be made.
    pub(super) may_order: bool,
    /// The request was not seen before.
    pub(super) is_new: bool,
}
