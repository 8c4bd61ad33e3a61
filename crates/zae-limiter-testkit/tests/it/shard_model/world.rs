//! The world: clients with their images, agents that split and fold, the shards of one bucket, the
//! configuration, time; and the names of the steps.

use std::fmt;

use zae_limiter_dynamodb::bucket::writers::Writer;

use crate::shard_model::shard::{Amounts, NAMES, NOTHING, SHARDS, Shard};

/// What somebody last saw of a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Seen {
    #[default]
    Unknown,
    Absent,
    Shard(Shard),
}

impl Seen {
    pub(crate) fn now(shard: Option<Shard>) -> Seen {
        shard.map_or(Seen::Absent, Seen::Shard)
    }

    pub(crate) fn shard(&self) -> Option<&Shard> {
        if let Seen::Shard(shard) = self { Some(shard) } else { None }
    }
}

/// Images of the shards, each of its own moment.
pub(crate) type Images = [Seen; SHARDS];

pub(crate) const UNSEEN: Images = [Seen::Unknown; SHARDS];

/// What a gather takes from each shard.
pub(crate) type Legs = [Amounts; SHARDS];

/// A gather whose reply was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Lost {
    pub(crate) legs: Legs,
    pub(crate) wanted: Amounts,
    /// What it was computed from, while the request is still on its way.
    pub(crate) on_its_way: Option<(Images, i8)>,
    /// True until the client has its answer.
    pub(crate) is_open: bool,
    /// How often it has landed.
    pub(crate) landings: u8,
}

/// A process: one operation at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Client {
    pub(crate) ops: u8,
    /// The version of the configuration in its cache.
    pub(crate) version: u8,
    pub(crate) seen: Images,
    /// What the client was granted and may give back, by place.
    pub(crate) held: [Amounts; SHARDS],
    /// `shard_count` of each place at the take; kept only for a credit that would use it.
    pub(crate) held_n: [i8; SHARDS],
    /// True when nobody gave back since the first of its images.
    pub(crate) is_quiet: bool,
    pub(crate) lost: Option<Lost>,
}

impl Client {
    pub(crate) fn is_holding(&self) -> bool {
        self.held.iter().any(|amounts| *amounts != NOTHING)
    }

    /// The reply to a write of its own arrives, with the shard as it is now.
    pub(crate) fn heard(&mut self, number: usize, shard: Option<Shard>) {
        self.seen = UNSEEN;
        self.seen[number] = Seen::now(shard);
    }
}

/// What an agent is about to write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Plan {
    #[default]
    None,
    /// Split this shard as the image shows it.
    Split(usize, Shard),
    Fold(Images),
    /// Make this missing shard from the image of its donor.
    Repair(usize, Shard),
    /// Remove this orphan; the images are those of its donor and its own.
    RemoveOrphan(usize, Shard, Shard),
}

/// A process that splits and folds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Agent {
    pub(crate) ops: u8,
    pub(crate) plan: Plan,
}

/// How far disabling has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Switch {
    On,
    /// The flag is stored, the shards are being told: the next one, and those a list made at the
    /// beginning has.
    Walking {
        next: usize,
        listed: [bool; SHARDS],
    },
    /// The call has returned.
    Off,
}

/// Everything there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) tick: i8,
    pub(crate) shards: [Option<Shard>; SHARDS],
    pub(crate) clients: [Client; 2],
    pub(crate) agents: [Agent; 2],
    /// The configuration in force.
    pub(crate) version: u8,
    /// The bucket as one item, fed with the same landed operations.
    pub(crate) ideal: [i8; NAMES],
    /// The same at the largest capacity each limit ever has.
    pub(crate) largest: [i8; NAMES],
    /// A leaky meter of the grants of limit 0.
    pub(crate) meter: i8,
    pub(crate) switch: Switch,
    pub(crate) deletes: u8,
    /// Times a stranger may still raise `shard_count` of shard 0.
    pub(crate) raises: u8,
    /// Times a stranger may still delete shard 0 alone.
    pub(crate) beheadings: u8,
    /// Times a stranger may still lower the limits of shard 0.
    pub(crate) cuts: u8,
    pub(crate) losses: u8,
    /// Rules broken by a step rather than by a state, as bits.
    pub(crate) broken: u8,
}

/// What becomes of a take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Kept,
    /// It may be given back, or charged more.
    Held,
    /// It lands, and nobody hears of it.
    ReplyLost,
    /// It lands later, or never.
    Late,
}

/// One step; the first number is the client or the agent, the second the shard.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Tick,
    Admin,
    Sweep,
    /// Takes an image: a read, or a write whose condition failed.
    Look(usize, usize),
    ReadConfig(usize),
    Take(usize, usize, Writer, Amounts, Fate),
    /// A blind fill that allows any refill up to this tick.
    BlindTake(usize, usize, i8, Amounts, Fate),
    Sync(usize, usize),
    Create(usize, usize),
    Gather(usize, Amounts, Fate),
    GatherAgain(usize),
    /// The gather that nobody heard of arrives at last.
    Arrive(usize),
    Credit(usize, usize),
    Charge(usize, usize),
    PlanSplit(usize, usize),
    Split(usize),
    PlanFold(usize, usize),
    Fold(usize),
    PlanRepair(usize, usize),
    Repair(usize),
    PlanRemoval(usize, usize),
    RemoveOrphan(usize),
    Disable,
    Flag,
    Delete,
    Raise,
    Behead,
    Cut,
}

impl fmt::Debug for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let agent = |index: &usize| if *index == 0 { 'a' } else { 'b' };
        match self {
            Action::Tick => write!(f, "tick"),
            Action::Admin => write!(f, "admin"),
            Action::Sweep => write!(f, "sweep"),
            Action::Look(client, at) => write!(f, "{client}:look #{at}"),
            Action::ReadConfig(client) => write!(f, "{client}:config"),
            Action::Take(client, at, writer, amounts, fate) => {
                let form = format!("{writer:?}").to_lowercase();
                write!(f, "{client}:{form} #{at} {}{}", Asked(*amounts), Told(*fate))
            }
            Action::BlindTake(client, at, r1, amounts, fate) => {
                write!(f, "{client}:blind[r1={r1}] #{at} {}{}", Asked(*amounts), Told(*fate))
            }
            Action::Sync(client, at) => write!(f, "{client}:sync #{at}"),
            Action::Create(client, at) => write!(f, "{client}:create #{at}"),
            Action::Gather(client, amounts, fate) => {
                write!(f, "{client}:gather {}{}", Asked(*amounts), Told(*fate))
            }
            Action::GatherAgain(client) => write!(f, "{client}:gather again"),
            Action::Arrive(client) => write!(f, "{client}:the first gather arrives"),
            Action::Credit(client, at) => write!(f, "{client}:credit #{at}"),
            Action::Charge(client, at) => write!(f, "{client}:charge #{at}"),
            Action::PlanSplit(index, at) => write!(f, "{}:look #{at} to split", agent(index)),
            Action::Split(index) => write!(f, "{}:split", agent(index)),
            Action::PlanFold(index, at) => write!(f, "{}:look #{at} to fold", agent(index)),
            Action::Fold(index) => write!(f, "{}:fold", agent(index)),
            Action::PlanRepair(index, at) => write!(f, "{}:miss #{at}", agent(index)),
            Action::Repair(index) => write!(f, "{}:repair", agent(index)),
            Action::PlanRemoval(index, at) => write!(f, "{}:see orphan #{at}", agent(index)),
            Action::RemoveOrphan(index) => write!(f, "{}:remove orphan", agent(index)),
            Action::Disable => write!(f, "disable"),
            Action::Flag => write!(f, "flag"),
            Action::Delete => write!(f, "delete"),
            Action::Raise => write!(f, "stranger raises the count"),
            Action::Behead => write!(f, "stranger deletes #0"),
            Action::Cut => write!(f, "stranger lowers #0"),
        }
    }
}

/// Amounts in a trace: `1`, or `1+1` when the second limit is asked too.
struct Asked(Amounts);

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, second] = self.0;
        if second == 0 { write!(f, "{first}") } else { write!(f, "{first}+{second}") }
    }
}

/// Fates in a trace.
struct Told(Fate);

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Fate::Kept => "",
            Fate::Held => " (held)",
            Fate::ReplyLost => " (reply lost)",
            Fate::Late => " (late)",
        })
    }
}
