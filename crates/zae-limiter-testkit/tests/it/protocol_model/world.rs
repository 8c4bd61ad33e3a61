//! The world: clients with their clocks and images, one item, the configuration, time; and the
//! names of the steps.

use std::fmt;

use zae_limiter_dynamodb::bucket::write::Purpose;
use zae_limiter_dynamodb::bucket::writers::Writer;

use crate::protocol_model::ideal::Ideal;
use crate::protocol_model::item::{Item, NAMES};
use crate::protocol_model::writes::{Charge, Debit};

/// What a client last saw of the item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Seen {
    #[default]
    Unknown,
    Absent,
    Item(Item),
}

impl Seen {
    pub(crate) fn now(item: Option<Item>) -> Seen {
        item.map_or(Seen::Absent, Seen::Item)
    }

    pub(crate) fn item(&self) -> Option<&Item> {
        if let Seen::Item(item) = self { Some(item) } else { None }
    }
}

/// A debit that landed although its sender does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Lost {
    pub(crate) debit: Debit,
    pub(crate) now: i8,
}

/// A process: one operation at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    pub(crate) ops: u8,
    pub(crate) seen: Seen,
    /// The version of the configuration in its cache, and when it was read by its own clock.
    pub(crate) version: u8,
    pub(crate) read_at: i8,
    /// True when that read began after the image arrived.
    pub(crate) causal: bool,
    pub(crate) lost: Option<Lost>,
    /// What it was granted and may give back.
    pub(crate) held: i8,
    /// A refund whose reply was lost.
    pub(crate) credit_lost: i8,
    /// A leaky meter of its own grants under the limit it knows.
    pub(crate) own: i8,
}

impl Client {
    /// The reply to a write of its own arrives, with the item as it is now.
    pub(crate) fn heard(&mut self, item: Item, charge: Charge) {
        (self.seen, self.causal) = (Seen::Item(item), false);
        if charge.is_take() {
            self.held += charge.amount;
        }
    }
}

/// Everything there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) tick: i8,
    pub(crate) item: Option<Item>,
    pub(crate) clients: [Client; 3],
    /// The configuration in force.
    pub(crate) version: u8,
    /// The configuration the item's parameters came from.
    pub(crate) item_version: u8,
    pub(crate) losses: u8,
    pub(crate) foreign: u8,
    pub(crate) ideal: [Option<Ideal>; NAMES],
    /// Rules broken by a step rather than by a state, as bits.
    pub(crate) broken: u8,
}

/// Whether the sender hears of what it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Heard,
    Lost,
}

/// One step; the number is the client.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Tick,
    /// DynamoDB removes the expired item.
    Sweep,
    Admin,
    /// Another product brings the item up to the configuration in force and stamps it.
    Foreign,
    /// Takes an image: a read, or a write whose condition failed.
    Look(usize),
    ReadConfig(usize),
    Debit(usize, Debit, Reply),
    Sync(usize),
    /// Clears a foreign stamp.
    Clear(usize),
    Refund(usize, Reply),
    Resend(usize),
    CreditAgain(usize),
}

impl fmt::Debug for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Tick => write!(f, "tick"),
            Action::Sweep => write!(f, "sweep"),
            Action::Admin => write!(f, "admin"),
            Action::Foreign => write!(f, "foreign"),
            Action::Look(client) => write!(f, "{client}:look"),
            Action::ReadConfig(client) => write!(f, "{client}:config"),
            Action::Debit(client, Debit { writer, charge, r1 }, reply) => {
                let verb = if charge.purpose == Purpose::Charge { "adjust" } else { "take" };
                let form = match (writer, r1) {
                    (_, Some(r1)) => format!("blind[r1={r1}]"),
                    (Writer::Fast | Writer::ChargeFast, None) => "fast".to_owned(),
                    (Writer::Refill | Writer::ChargeRefill, None) => "refill".to_owned(),
                    (Writer::Create | Writer::Recreate, None) => "create".to_owned(),
                    (other, None) => format!("{other:?}"),
                };
                let lost = if *reply == Reply::Lost { " (reply lost)" } else { "" };
                write!(f, "{client}:{form} {verb} {}{lost}", charge.amount)
            }
            Action::Sync(client) => write!(f, "{client}:sync"),
            Action::Clear(client) => write!(f, "{client}:clear"),
            Action::Refund(client, Reply::Heard) => write!(f, "{client}:refund"),
            Action::Refund(client, Reply::Lost) => write!(f, "{client}:refund (reply lost)"),
            Action::Resend(client) => write!(f, "{client}:resend"),
            Action::CreditAgain(client) => write!(f, "{client}:refund again"),
        }
    }
}
