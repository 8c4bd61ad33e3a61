//! What can happen next in a world, and what it leads to.

use stateright::{Model, Property};
use zae_limiter_dynamodb::bucket::writers::Writer;

use crate::shard_model::guards::Guard;
use crate::shard_model::properties::{self, Rule};
use crate::shard_model::setups::Setup;
use crate::shard_model::shard::{
    Config, Instant, Limit, NAMES, NOTHING, Params, SHARDS, Shard, donor,
};
use crate::shard_model::upkeep::child;
use crate::shard_model::world::{Action, Agent, Client, Fate, Plan, Seen, Switch, World};
use crate::shard_model::writes::Sender;

/// A configuration to explore, with some guards off.
#[derive(Clone, Debug)]
pub(crate) struct Shards {
    pub(crate) setup: &'static Setup,
    pub(crate) off: &'static [Guard],
    /// Look for this one only.
    pub(crate) only: Option<Rule>,
    /// Worlds that differ only in which client or agent is which are one. Traces then name any of
    /// them.
    pub(crate) merges_twins: bool,
}

impl Model for Shards {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let mut clients = [Client::default(); 2];
        for (client, ops) in clients.iter_mut().zip(self.setup.ops) {
            client.ops = *ops;
        }
        let mut agents = [Agent::default(); 2];
        for (agent, ops) in agents.iter_mut().zip(self.setup.agents) {
            agent.ops = *ops;
        }
        let config = self.setup.versions[0];
        let mut shards = [None; SHARDS];
        for (number, shard) in shards.iter_mut().take(self.setup.shards_first).enumerate() {
            *shard = Some(self.first(number, &config));
        }
        vec![World {
            tick: 0,
            shards,
            clients,
            agents,
            version: 0,
            ideal: config.map(|params| params.map_or(0, |params| params.cp)),
            largest: std::array::from_fn(|name| self.largest_capacity(name)),
            meter: 0,
            switch: Switch::On,
            deletes: u8::from(self.setup.deletes),
            raises: self.setup.raises,
            beheadings: self.setup.beheadings,
            cuts: self.setup.cuts,
            losses: self.setup.losses,
            broken: 0,
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        if world.broken != 0 {
            return;
        }
        if world.tick < self.setup.ticks {
            actions.push(Action::Tick);
        }
        if usize::from(world.version) + 1 < self.setup.versions.len() {
            actions.push(Action::Admin);
        }
        for client in 0..world.clients.len() {
            self.client_actions(world, client, actions);
        }
        for agent in 0..world.agents.len() {
            self.agent_actions(world, agent, actions);
        }
        if self.setup.sweeps {
            actions.push(Action::Sweep);
        }
        match world.switch {
            Switch::On if self.setup.disables => actions.push(Action::Disable),
            Switch::Walking { .. } => actions.push(Action::Flag),
            Switch::On | Switch::Off => {}
        }
        let root = world.shards[0];
        if world.deletes > 0 && root.is_some() {
            actions.push(Action::Delete);
        }
        if world.raises > 0 && root.is_some_and(|root| self.may_grow(&root)) {
            actions.push(Action::Raise);
        }
        if world.beheadings > 0 && root.is_some_and(|root| root.n > 1) {
            actions.push(Action::Behead);
        }
        if world.cuts > 0 && root.is_some() {
            actions.push(Action::Cut);
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut next = *world;
        match action {
            Action::Tick => self.tick(&mut next),
            Action::Admin => next.version += 1,
            Action::ReadConfig(index) => next.clients[index].version = world.version,
            Action::Look(index, number) => self.look(&mut next, index, number),
            Action::Take(index, number, writer, amounts, fate) => {
                let sender = self.sender(world, index, number)?;
                let after = sender.take(&world.shards[number]?, writer, &amounts)?;
                self.taken(&mut next, (index, number), after, &amounts, fate);
            }
            Action::BlindTake(index, number, r1, amounts, fate) => {
                let sender = self.sender(world, index, number)?;
                let after = sender.blind(&world.shards[number]?, &amounts, r1)?;
                self.taken(&mut next, (index, number), after, &amounts, fate);
            }
            Action::Sync(index, number) => self.sync(&mut next, index, number)?,
            Action::Create(index, number) => self.create(&mut next, index, number)?,
            Action::Gather(index, amounts, fate) => {
                self.gather(&mut next, index, &amounts, fate)?;
            }
            Action::GatherAgain(index) => self.gather_again(&mut next, index)?,
            Action::Arrive(index) => self.arrive(&mut next, index)?,
            Action::Credit(index, number) => self.credit(&mut next, index, number),
            Action::Charge(index, number) => self.charge(&mut next, index, number)?,
            Action::Sweep => self.sweep(&mut next)?,
            Action::Disable => {
                let listed = world.shards.map(|shard| shard.is_some());
                next.switch = Switch::Walking { next: 0, listed };
            }
            Action::Flag => self.flag(&mut next)?,
            Action::Delete => {
                next.deletes -= 1;
                let last = if self.on(Guard::DeleteAll) { SHARDS } else { 1 };
                next.shards[..last].fill(None);
                self.forgotten(&mut next);
            }
            Action::Raise => {
                next.raises -= 1;
                next.shards[0].as_mut()?.n *= 2;
            }
            Action::Behead => {
                next.beheadings -= 1;
                next.shards[0] = None;
                self.forgotten(&mut next);
            }
            Action::Cut => {
                next.cuts -= 1;
                let last = self.setup.versions[self.setup.versions.len() - 1];
                for (limit, params) in next.shards[0].as_mut()?.limits.iter_mut().zip(last) {
                    if let (Some(limit), Some(params)) = (limit, params) {
                        limit.params = params;
                    }
                }
                self.reshaped(&mut next, self.had(world));
            }
            upkeep => self.keep_up(&mut next, upkeep)?,
        }
        self.forget_the_irrelevant(&mut next);
        (next != *world).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::of(self)
    }
}

impl Shards {
    pub(crate) fn on(&self, guard: Guard) -> bool {
        !self.off.contains(&guard)
    }

    pub(crate) fn config(&self, client: &Client) -> Config {
        self.setup.versions[usize::from(client.version)]
    }

    /// A full shard of the bucket the world begins with.
    fn first(&self, number: usize, config: &Config) -> Shard {
        let n = i8::try_from(self.setup.shards_first).unwrap_or(1);
        let is_small = |params: Params| n > 1 && params.cp < self.setup.pin_below;
        let mut shard = Shard {
            n,
            era: 0,
            rf: Instant::at(0),
            pin: config.map(|params| params.is_some_and(is_small)),
            disabled: false,
            version: 0,
            lw_is_lost: false,
            limits: [None; NAMES],
        };
        shard.limits = std::array::from_fn(|name| {
            let params = config[name]?;
            let tk = self.effective(number, &shard, name, params).cp;
            Some(Limit { params, tk, gp: 0 })
        });
        shard
    }

    fn may_grow(&self, shard: &Shard) -> bool {
        usize::try_from(shard.n).is_ok_and(|n| n < self.setup.shards_max)
    }

    pub(crate) fn sender(&self, world: &World, index: usize, number: usize) -> Option<Sender<'_>> {
        let client = &world.clients[index];
        let image = *client.seen[number].shard()?;
        let config = self.config(client);
        Some(Sender {
            model: self,
            number,
            image,
            config,
            version: client.version,
            now: world.tick,
        })
    }

    fn client_actions(&self, world: &World, index: usize, actions: &mut Vec<Action>) {
        let client = &world.clients[index];
        if let Some(lost) = client.lost {
            if lost.on_its_way.is_some() {
                actions.push(Action::Arrive(index));
            }
            if lost.is_open {
                self.looks(world, index, actions);
                actions.push(Action::GatherAgain(index));
                return;
            }
        }
        if client.is_holding() {
            for number in (0..SHARDS).filter(|number| client.held[*number] != NOTHING) {
                if self.setup.refunds {
                    actions.push(Action::Credit(index, number));
                }
                if self.setup.charges {
                    actions.push(Action::Charge(index, number));
                }
            }
            return;
        }
        if client.ops == 0 {
            return;
        }
        if client.version != world.version {
            actions.push(Action::ReadConfig(index));
        }
        self.looks(world, index, actions);
        for number in 0..self.setup.shards_max {
            self.writes(world, index, number, actions);
        }
        if self.setup.gathers {
            for amounts in self.setup.amounts {
                self.fates(world, |fate| actions.push(Action::Gather(index, *amounts, fate)), true);
            }
        }
    }

    fn looks(&self, world: &World, index: usize, actions: &mut Vec<Action>) {
        for number in 0..self.setup.shards_max {
            let stored = world.shards[number];
            let is_news = world.clients[index].seen[number] != Seen::now(stored);
            if is_news && (stored.is_some() || self.setup.gathers || self.setup.creates) {
                actions.push(Action::Look(index, number));
            }
        }
    }

    fn writes(&self, world: &World, index: usize, number: usize, actions: &mut Vec<Action>) {
        let client = &world.clients[index];
        let image = match client.seen[number] {
            Seen::Shard(image) => image,
            Seen::Absent if number == 0 || !self.on(Guard::OnlyZeroIsMade) => {
                actions.push(Action::Create(index, number));
                return;
            }
            Seen::Absent | Seen::Unknown => return,
        };
        for amounts in self.setup.amounts {
            let is_elsewhere = |name: usize| {
                amounts[name] > 0
                    && number > 0
                    && image.is_pinned(name)
                    && self.on(Guard::PinnedAtZero)
            };
            if (0..NAMES).any(is_elsewhere) {
                continue;
            }
            let take = |fate| {
                for writer in [Writer::Fast, Writer::Refill] {
                    actions.push(Action::Take(index, number, writer, *amounts, fate));
                }
                if self.setup.blind {
                    for r1 in image.rf.tick..=world.tick {
                        actions.push(Action::BlindTake(index, number, r1, *amounts, fate));
                    }
                }
            };
            self.fates(world, take, false);
        }
        if self.setup.syncs && image.version < client.version {
            actions.push(Action::Sync(index, number));
        }
    }

    /// What may become of a take.
    fn fates(&self, world: &World, mut with: impl FnMut(Fate), is_gather: bool) {
        with(Fate::Kept);
        if self.setup.refunds || self.setup.charges {
            with(Fate::Held);
        }
        if is_gather && world.losses > 0 {
            with(Fate::ReplyLost);
            with(Fate::Late);
        }
    }

    fn agent_actions(&self, world: &World, index: usize, actions: &mut Vec<Action>) {
        let Agent { ops, plan } = world.agents[index];
        if ops == 0 {
            return;
        }
        match plan {
            Plan::None => {}
            Plan::Split(..) => actions.push(Action::Split(index)),
            Plan::Fold(..) => actions.push(Action::Fold(index)),
            Plan::Repair(..) => actions.push(Action::Repair(index)),
            Plan::RemoveOrphan(..) => actions.push(Action::RemoveOrphan(index)),
        }
        for (number, shard) in world.tree() {
            if self.setup.splits && self.may_grow(&shard) {
                if world.shards[child(number, &shard)].is_none() {
                    actions.push(Action::PlanSplit(index, number));
                } else {
                    actions.push(Action::PlanRemoval(index, child(number, &shard)));
                }
            }
        }
        if self.setup.folds && world.shards[0].is_some_and(|root| root.n > 1) {
            for number in 0..self.setup.shards_max {
                actions.push(Action::PlanFold(index, number));
            }
        }
        let announces =
            |number: usize, shard: Shard| usize::try_from(shard.n).is_ok_and(|n| n > number);
        for number in 1..self.setup.shards_max {
            let is_missing = world.shards[number].is_none()
                && world.shards[donor(number)].is_some_and(|shard| announces(number, shard));
            if self.setup.raises > 0 && is_missing {
                actions.push(Action::PlanRepair(index, number));
            }
        }
    }

    /// The steps of agents.
    fn keep_up(&self, next: &mut World, action: Action) -> Option<()> {
        let planned = |next: &mut World, index: usize, plan: Plan| {
            next.agents[index].plan = plan;
            Some(())
        };
        let (index, done) = match action {
            Action::PlanSplit(index, number) => {
                let plan = Plan::Split(number, next.shards[number]?);
                return planned(next, index, plan);
            }
            Action::PlanFold(index, number) => {
                let seen = Seen::now(next.shards[number]);
                let plan = self.looked_to_fold(next.agents[index].plan, number, seen);
                return planned(next, index, plan);
            }
            Action::PlanRepair(index, number) => {
                let plan = Plan::Repair(number, next.shards[donor(number)]?);
                return planned(next, index, plan);
            }
            Action::PlanRemoval(index, number) => {
                let plan =
                    Plan::RemoveOrphan(number, next.shards[donor(number)]?, next.shards[number]?);
                return planned(next, index, plan);
            }
            Action::Split(index) | Action::Fold(index) | Action::Repair(index) => {
                match next.agents[index].plan {
                    Plan::Split(number, image) => (index, self.split(next, number, &image)),
                    Plan::Fold(images) => (index, self.fold(next, &images)),
                    Plan::Repair(number, image) => (index, self.repair(next, number, &image)),
                    Plan::None | Plan::RemoveOrphan(..) => return None,
                }
            }
            Action::RemoveOrphan(index) => match next.agents[index].plan {
                Plan::RemoveOrphan(number, donor_image, image) => {
                    (index, self.remove_orphan(next, (number, donor_image, image)))
                }
                _ => return None,
            },
            _ => return None,
        };
        done?;
        next.agents[index] = Agent { ops: next.agents[index].ops - 1, plan: Plan::None };
        Some(())
    }

    /// Two worlds that differ only in what can no longer matter are one.
    fn forget_the_irrelevant(&self, next: &mut World) {
        for client in &mut next.clients {
            if let Some(lost) = &mut client.lost {
                lost.on_its_way = lost.on_its_way.filter(|(_, sent)| *sent == next.tick);
            }
            let is_waiting =
                client.lost.is_some_and(|lost| lost.is_open || lost.on_its_way.is_some());
            if !is_waiting {
                client.lost = None;
            }
            if client.ops == 0 && !client.is_holding() && !is_waiting {
                *client = Client::default();
            }
        }
        for agent in &mut next.agents {
            if agent.ops == 0 {
                *agent = Agent::default();
            }
        }
        if next.clients.iter().all(|client| client.lost.is_none()) {
            for shard in next.shards.iter_mut().flatten() {
                shard.lw_is_lost = false;
            }
        }
        if let (Switch::Walking { listed, .. }, true) =
            (&mut next.switch, self.on(Guard::WalkInOrder))
        {
            *listed = [false; SHARDS];
        }
        if self.merges_twins {
            next.clients.sort_unstable();
            next.agents.sort_unstable();
        }
    }
}
