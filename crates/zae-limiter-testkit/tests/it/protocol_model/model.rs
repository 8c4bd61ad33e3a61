//! What can happen next in a world, and what it leads to.

use stateright::{Model, Property};
use zae_limiter_dynamodb::bucket::write::Purpose;
use zae_limiter_dynamodb::bucket::writers::Writer;

use crate::protocol_model::guards::Guard;
use crate::protocol_model::ideal::Ideal;
use crate::protocol_model::item::{Config, Instant, Item, Limit, NAMES};
use crate::protocol_model::properties::{self, Rule};
use crate::protocol_model::setups::Setup;
use crate::protocol_model::world::{Action, Client, Lost, Reply, Seen, World};
use crate::protocol_model::writes::{Charge, Debit, LEASED, Sender};

/// A configuration to explore, with some guards off.
#[derive(Clone, Debug)]
pub(crate) struct Protocol {
    pub(crate) setup: &'static Setup,
    pub(crate) off: &'static [Guard],
    /// Look for this one only.
    pub(crate) only: Option<Rule>,
}

impl Model for Protocol {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let mut clients = [Client::default(); 3];
        for (client, ops) in clients.iter_mut().zip(self.setup.ops) {
            client.ops = *ops;
        }
        let config = self.setup.versions[0];
        let item = Item {
            rf: Instant::at(0),
            ttl: self.first_ttl(&config),
            ca: Instant::at(0),
            vu: false,
            lw_is_lost: false,
            stub: false,
            limits: config
                .map(|params| params.map(|params| Limit { params, tk: params.cp, gp: 0 })),
        };
        vec![World {
            tick: 0,
            item: self.setup.exists.then_some(item),
            clients,
            version: 0,
            item_version: 0,
            losses: self.setup.losses,
            foreign: self.setup.foreign,
            ideal: config.map(|params| params.filter(|_| self.setup.exists).map(Ideal::full)),
            broken: 0,
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        if world.tick < self.setup.ticks {
            actions.push(Action::Tick);
        }
        if world.item.is_some_and(|item| item.ttl <= world.tick) {
            actions.push(Action::Sweep);
        }
        let has_next = usize::from(world.version) + 1 < self.setup.versions.len();
        if has_next {
            actions.push(Action::Admin);
        }
        if world.foreign > 0 && world.item.is_some() && world.item_version < world.version {
            actions.push(Action::Foreign);
        }
        for client in 0..self.setup.ops.len() {
            self.client_actions(world, client, actions);
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut next = *world;
        match action {
            Action::Tick => {
                next.tick += 1;
                next.ideal.iter_mut().flatten().for_each(Ideal::tick);
                for client in &mut next.clients[..self.setup.ops.len()] {
                    let ra = self.config(client)[LEASED].map_or(0, |params| params.ra);
                    client.own = (client.own - ra).max(0);
                }
            }
            Action::Sweep => next.item = None,
            Action::Admin => next.version += 1,
            Action::Foreign => self.foreign(&mut next)?,
            Action::Look(index) => {
                let client = &mut next.clients[index];
                (client.seen, client.causal) = (Seen::now(world.item), false);
            }
            Action::ReadConfig(index) => {
                let client = &mut next.clients[index];
                if client.version != world.version {
                    client.own = 0;
                }
                client.version = world.version;
                client.read_at = world.tick + self.setup.skew[index];
                client.causal = client.seen.item().is_some();
            }
            Action::Debit(index, debit, reply) => self.debit(&mut next, index, debit, reply)?,
            Action::Sync(index) => self.sync(&mut next, index)?,
            Action::Clear(index) => self.clear(&mut next, index)?,
            Action::Refund(index, reply) => {
                let amount = std::mem::take(&mut next.clients[index].held);
                self.credit(&mut next, index, amount)?;
                next.ideal[LEASED].as_mut()?.credit(amount);
                if reply == Reply::Lost {
                    next.clients[index].credit_lost = amount;
                }
            }
            // No second refund was asked for, so the ideal bucket hears of none.
            Action::CreditAgain(index) => {
                let amount = std::mem::take(&mut next.clients[index].credit_lost);
                self.credit(&mut next, index, amount)?;
            }
            Action::Resend(index) => self.resend(&mut next, index)?,
        }
        self.forget_the_irrelevant(&mut next);
        (next != *world).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::of(self)
    }
}

impl Protocol {
    pub(crate) fn on(&self, guard: Guard) -> bool {
        !self.off.contains(&guard)
    }

    pub(crate) fn config(&self, client: &Client) -> Config {
        self.setup.versions[usize::from(client.version)]
    }

    /// The smallest and the largest capacity the limit ever has.
    pub(crate) fn caps(&self, name: usize) -> [i8; 2] {
        let caps =
            || self.setup.versions.iter().filter_map(|config| config[name]).map(|params| params.cp);
        [caps().min().unwrap_or(0), caps().max().unwrap_or(0)]
    }

    fn first_ttl(&self, config: &Config) -> i8 {
        let slowest = config.iter().flatten().map(|params| params.fill()).max().unwrap_or(0);
        if self.setup.ttl_fills == 0 { i8::MAX } else { self.setup.ttl_fills * slowest }
    }

    fn sender(&self, world: &World, index: usize) -> Sender<'_> {
        let client = &world.clients[index];
        let now = world.tick + self.setup.skew[index];
        Sender {
            model: self,
            now,
            config: self.config(client),
            read_at: client.read_at,
            seen: client.seen,
        }
    }

    fn client_actions(&self, world: &World, index: usize, actions: &mut Vec<Action>) {
        let client = &world.clients[index];
        if client.lost.is_some() {
            actions.push(Action::Resend(index));
            return;
        }
        if client.credit_lost > 0 {
            actions.push(Action::CreditAgain(index));
        }
        if client.ops == 0 && client.held == 0 {
            return;
        }
        actions.push(Action::Look(index));
        if self.setup.versions.len() > 1 {
            let image = client.seen.item();
            let is_odd =
                image.is_some_and(|image| image.vu || !self.sender(world, index).is_synced(image));
            if client.version != world.version
                || (is_odd && !client.causal)
                || self.setup.reads_by_age()
            {
                actions.push(Action::ReadConfig(index));
            }
            actions.push(Action::Sync(index));
            if image.is_some_and(|image| image.vu) {
                actions.push(Action::Clear(index));
            }
        }
        if client.held > 0 && self.setup.refunds {
            actions.push(Action::Refund(index, Reply::Heard));
            if !self.on(Guard::CreditOnce) {
                actions.push(Action::Refund(index, Reply::Lost));
            }
        }
        if client.ops == 0 {
            return;
        }
        let image = client.seen.item().filter(|_| self.setup.blind);
        let fills: Vec<i8> = image.map_or_else(Vec::new, |image| {
            (image.rf.tick..=world.tick + self.setup.skew[index]).collect()
        });
        let charges = |purpose, amounts: &'static [i8]| {
            amounts.iter().map(move |amount| Charge { purpose, amount: *amount })
        };
        let takes = charges(Purpose::Take, self.setup.takes);
        for charge in takes.chain(charges(Purpose::Charge, self.setup.adjusts)) {
            for debit in charge.debits(&fills) {
                actions.push(Action::Debit(index, debit, Reply::Heard));
                if world.losses > 0 {
                    actions.push(Action::Debit(index, debit, Reply::Lost));
                }
            }
        }
    }

    /// A foreign change of limits moves neither `rf` nor `tk`.
    fn foreign(&self, next: &mut World) -> Option<()> {
        next.foreign -= 1;
        let before = next.item?;
        let mut after = before;
        for (limit, params) in
            after.limits.iter_mut().zip(self.setup.versions[usize::from(next.version)])
        {
            if let (Some(limit), Some(params)) = (limit.as_mut(), params) {
                limit.params = params;
            }
        }
        after.vu = true;
        after.lw_is_lost = false;
        self.land(next, after);
        next.item_version = next.version;
        Some(())
    }

    /// Stores `after` and tells the ideal bucket which parameters changed.
    fn land(&self, next: &mut World, after: Item) {
        let before = next.item;
        for name in 0..NAMES {
            let old = before.and_then(|item| item.limits[name]).map(|limit| limit.params);
            let Some(new) = after.limits[name].map(|limit| limit.params) else { continue };
            match (&mut next.ideal[name], old) {
                (Some(ideal), Some(old)) if old != new => ideal.sync(new, self.caps(name)),
                (Some(_), Some(_)) => {}
                (Some(ideal), None) => ideal.restart(new, self.caps(name)),
                (empty, _) => *empty = Some(Ideal::full(new)),
            }
        }
        next.item = Some(after);
    }

    /// Lands a debit or fails; a failed one only shows its sender the item, which is `Look`.
    fn debit(&self, next: &mut World, index: usize, debit: Debit, reply: Reply) -> Option<()> {
        let sender = self.sender(next, index);
        let client = next.clients[index];
        let charge = debit.charge;
        if charge.purpose == Purpose::Charge && next.item.is_none() {
            if !self.on(Guard::AdjustCreates) {
                next.ideal[LEASED].as_mut()?.charge(charge.amount);
                next.clients[index].ops -= 1;
                return Some(());
            }
            // Only an operation that once had a bucket corrects it.
            next.ideal[LEASED]?;
        }
        if debit.creates() && client.seen != Seen::Absent {
            return None;
        }
        let mut after = sender.send(next.item.as_ref(), debit)?;
        after.lw_is_lost = reply == Reply::Lost;
        if debit.creates() {
            next.item_version = client.version;
        }
        self.land(next, after);
        let config = self.config(&client);
        for name in 0..NAMES {
            if let (Some(amount), Some(ideal)) = (charge.of(name, &config), &mut next.ideal[name]) {
                if charge.is_take() {
                    ideal.take(amount, self.caps(name));
                } else {
                    ideal.charge(amount);
                }
                let is_in_debt = after.limits[name].is_some_and(|limit| limit.tk < 0);
                if charge.is_take() && is_in_debt {
                    next.broken |= Rule::Gate.bit();
                }
            }
        }
        let client = &mut next.clients[index];
        client.ops -= 1;
        if charge.is_take() {
            client.own += charge.amount;
        }
        if reply == Reply::Lost {
            client.lost = Some(Lost { debit, now: next.tick + self.setup.skew[index] });
            next.losses -= 1;
        } else {
            client.heard(after, charge);
        }
        Some(())
    }

    fn sync(&self, next: &mut World, index: usize) -> Option<()> {
        let client = next.clients[index];
        let image = client.seen.item()?;
        let sender = self.sender(next, index);
        let is_new = !sender.is_synced(image);
        let is_fresh = client.causal
            || if !self.on(Guard::CausalRead) {
                client.read_at >= image.ca.tick
            } else {
                client.read_at > image.ca.tick + self.setup.margin
            };
        // A limit that is no longer configured is a reason to write only for a protocol that drops
        // it at once.
        let drops = !self.on(Guard::RemovedKept)
            && (0..NAMES).any(|n| sender.config[n].is_none() && image.limits[n].is_some());
        let is_stamped = image.vu && self.on(Guard::SyncNeedsNoVu);
        if !(is_new || drops) || !is_fresh || is_stamped {
            return None;
        }
        let mut after = sender.sync(next.item.as_ref()?)?;
        after.lw_is_lost = false;
        if client.version < next.item_version {
            next.broken |= Rule::ConfigOrder.bit();
        }
        next.item_version = client.version;
        self.land(next, after);
        next.clients[index].heard(after, Charge::NOTHING);
        Some(())
    }

    fn clear(&self, next: &mut World, index: usize) -> Option<()> {
        let mut after = self.sender(next, index).clear(next.item.as_ref()?)?;
        after.lw_is_lost = false;
        self.land(next, after);
        next.clients[index].heard(after, Charge::NOTHING);
        Some(())
    }

    /// `ADD tk +x` below the capacity, `SET tk = C` above it; neither `rf` nor `lw`.
    fn credit(&self, next: &mut World, index: usize, amount: i8) -> Option<()> {
        let client = next.clients[index];
        let known = client
            .seen
            .item()
            .and_then(|image| image.limits[LEASED])
            .map(|limit| limit.params)
            .or(self.config(&client)[LEASED])?;
        let Some(item) = &mut next.item else {
            if !self.on(Guard::CreditExists) {
                let limits = [Some(Limit { params: known, tk: amount, gp: 0 }), None];
                let rf = Instant::at(0);
                next.item = Some(Item {
                    rf,
                    ttl: i8::MAX,
                    ca: rf,
                    vu: false,
                    lw_is_lost: false,
                    stub: true,
                    limits,
                });
            }
            return Some(());
        };
        let limit = item.limits[LEASED].as_mut()?;
        if self.on(Guard::CreditPinsCp) && limit.params.cp != known.cp {
            return None;
        }
        let ceiling = if !self.on(Guard::CreditClamped) { i8::MAX } else { known.cp };
        limit.tk = (limit.tk + amount).min(ceiling);
        Some(())
    }

    /// The lost write goes out again, with the same nonce. It landed before, so it should land no
    /// second time.
    fn resend(&self, next: &mut World, index: usize) -> Option<()> {
        let lost = next.clients[index].lost.take()?;
        let mut sender = self.sender(next, index);
        if !self.on(Guard::FreshNow) {
            sender.now = lost.now;
        }
        let Lost { debit, .. } = lost;
        let charge = debit.charge;
        let nonce = match debit.writer {
            Writer::Fast | Writer::ChargeFast => Guard::NonceFast,
            Writer::Create | Writer::Recreate => Guard::NonceCreate,
            _ => Guard::NonceRefill,
        };
        let is_last = next.item.is_some_and(|item| item.lw_is_lost);
        if let (true, Some(item)) = (is_last && self.on(nonce), next.item) {
            next.clients[index].heard(item, charge);
            return Some(());
        }
        let mut landed = sender.send(next.item.as_ref(), debit);
        if is_last && landed.is_none() && debit.creates() {
            // Taken for a lost race, so the winner's image is debited.
            sender.seen = Seen::now(next.item);
            landed = sender.send(next.item.as_ref(), debit.on_existing());
        }
        let Some(mut after) = landed else {
            let client = &mut next.clients[index];
            (client.seen, client.causal) = (Seen::now(next.item), false);
            return Some(());
        };
        if is_last {
            next.broken |= Rule::Once.bit();
        }
        after.lw_is_lost = false;
        self.land(next, after);
        let config = self.config(&next.clients[index]);
        for name in 0..NAMES {
            if let (Some(amount), Some(ideal)) = (charge.of(name, &config), &mut next.ideal[name]) {
                ideal.charge(amount);
                if charge.is_take() && after.limits[name].is_some_and(|limit| limit.tk < 0) {
                    next.broken |= Rule::Gate.bit();
                }
            }
        }
        next.clients[index].heard(after, charge);
        Some(())
    }

    /// Two worlds that differ only in what can no longer matter are one.
    fn forget_the_irrelevant(&self, next: &mut World) {
        for client in &mut next.clients {
            if client.ops == 0
                && (client.held == 0 || !self.setup.refunds)
                && client.lost.is_none()
                && client.credit_lost == 0
            {
                *client = Client { own: client.own, version: client.version, ..Client::default() };
            }
            if !self.setup.reads_by_age() {
                (client.read_at, client.own) = (0, 0);
            }
        }
        if let (true, Some(item)) =
            (next.clients.iter().all(|client| client.lost.is_none()), &mut next.item)
        {
            item.lw_is_lost = false;
        }
    }
}
