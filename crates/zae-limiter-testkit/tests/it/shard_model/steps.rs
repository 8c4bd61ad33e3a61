//! The steps of clients, of the administrator and of the walk that disables.

use crate::shard_model::guards::Guard;
use crate::shard_model::model::Shards;
use crate::shard_model::properties::Rule;
use crate::shard_model::shard::{Amounts, Instant, Limit, NAMES, NOTHING, Shard};
use crate::shard_model::world::{Fate, Seen, Switch, UNSEEN, World};
use crate::shard_model::writes::Sender;

/// What a charge after the fact takes.
const CHARGED: i8 = 2;

impl Shards {
    pub(crate) fn look(&self, next: &mut World, index: usize, number: usize) {
        let client = &mut next.clients[index];
        if client.seen == UNSEEN {
            client.is_quiet = self.setup.gathers;
        }
        if !self.setup.gathers {
            client.seen = UNSEEN;
        }
        client.seen[number] = Seen::now(next.shards[number]);
        if self.setup.gathers {
            self.judge_refusal(next, index);
        }
    }

    /// Stores what a take leaves, and tells the ideal bucket. What is taken from an orphan was
    /// never in the bucket.
    pub(crate) fn land(
        &self,
        next: &mut World,
        (index, number): (usize, usize),
        after: Shard,
        amounts: &Amounts,
        fate: Fate,
    ) {
        let is_real = next.is_in_tree(number);
        next.shards[number] = Some(after);
        if is_real {
            if next.switch == Switch::Off {
                next.broken |= Rule::Off.bit();
            }
            let owes = |name: usize| {
                amounts[name] > 0 && after.limits[name].is_some_and(|limit| limit.tk < 0)
            };
            if (0..NAMES).any(owes) {
                next.broken |= Rule::Gate.bit();
            }
            self.debit_ideal(next, amounts);
            next.meter += amounts[0];
        }
        if fate == Fate::Held {
            let client = &mut next.clients[index];
            client.held[number] = *amounts;
            if !self.on(Guard::CreditShare) {
                client.held_n[number] = after.n;
            }
        }
    }

    /// A take on one shard has landed, and the client hears of it.
    pub(crate) fn taken(
        &self,
        next: &mut World,
        (index, number): (usize, usize),
        after: Shard,
        amounts: &Amounts,
        fate: Fate,
    ) {
        self.land(next, (index, number), after, amounts, fate);
        let client = &mut next.clients[index];
        client.ops -= 1;
        client.heard(number, Some(after));
    }

    pub(crate) fn sync(&self, next: &mut World, index: usize, number: usize) -> Option<()> {
        let had = self.had(next);
        let after = self.sender(next, index, number)?.sync(&next.shards[number]?)?;
        next.shards[number] = Some(after);
        self.reshaped(next, had);
        let client = &mut next.clients[index];
        client.ops -= 1;
        client.heard(number, Some(after));
        Some(())
    }

    /// A put on a key that is not there.
    pub(crate) fn create(&self, next: &mut World, index: usize, number: usize) -> Option<()> {
        if next.shards[number].is_some() {
            return None;
        }
        let had = self.had(next);
        let client = &next.clients[index];
        let n = if number == 0 { 1 } else { next.shards[0].map_or(1, |root| root.n) };
        let limits = self
            .config(client)
            .map(|params| params.map(|params| Limit { params, tk: params.cp / n, gp: 0 }));
        let made = Shard {
            n,
            era: 0,
            rf: Instant::at(next.tick),
            pin: [false; NAMES],
            disabled: false,
            version: client.version,
            lw_is_lost: false,
            limits,
        };
        next.shards[number] = Some(made);
        self.reshaped(next, had);
        let client = &mut next.clients[index];
        client.ops -= 1;
        client.heard(number, Some(made));
        Some(())
    }

    /// Rule S7: a credit goes to its place, or to the donor when the place is gone.
    pub(crate) fn credit(&self, next: &mut World, index: usize, place: usize) {
        let client = &mut next.clients[index];
        let held = std::mem::take(&mut client.held[place]);
        let n_then = std::mem::take(&mut client.held_n[place]);
        client.seen = UNSEEN;
        for client in &mut next.clients {
            client.is_quiet = false;
        }
        let is_gone = next.shards[place].is_none();
        if is_gone && !self.on(Guard::CreditExists) {
            next.broken |= Rule::NoStub.bit();
            return;
        }
        let number = next.home(place);
        let is_real = next.shards[number].is_none() || next.is_in_tree(number);
        for name in (0..NAMES).filter(|name| held[*name] > 0) {
            if is_real {
                self.credit_ideal(next, name, held[name]);
            }
            if is_gone && !self.on(Guard::CreditWalks) {
                continue;
            }
            let Some(mut shard) = next.shards[number] else { continue };
            let n = if self.on(Guard::CreditShare) { shard.n } else { n_then };
            let Some(limit) = shard.limits[name] else { continue };
            let share = self.effective(number, &Shard { n, ..shard }, name, limit.params).cp;
            let room = if self.on(Guard::CreditClamped) { share - limit.tk } else { i8::MAX };
            let tk = limit.tk + room.clamp(0, held[name]);
            shard.limits[name] = Some(Limit { tk, ..limit });
            next.shards[number] = Some(shard);
        }
    }

    /// Rule S7: a charge goes to its place too. It tries until it lands, so its image is the shard.
    pub(crate) fn charge(&self, next: &mut World, index: usize, place: usize) -> Option<()> {
        let held = std::mem::take(&mut next.clients[index].held[place]);
        next.clients[index].held_n[place] = 0;
        next.clients[index].seen = UNSEEN;
        let number = next.home(place);
        let stored = next.shards[number]?;
        let mut amounts = NOTHING;
        amounts[usize::from(held[0] == 0)] = CHARGED;
        let sender = Sender {
            model: self,
            number,
            image: stored,
            config: stored.params(),
            version: stored.version,
            now: next.tick,
        };
        let has_all = (0..NAMES).all(|name| amounts[name] == 0 || stored.limits[name].is_some());
        let after = has_all.then(|| sender.charge(&stored, &amounts))??;
        next.shards[number] = Some(after);
        self.debit_ideal(next, &amounts);
        Some(())
    }

    /// Rule S12: the next shard is told that it is disabled.
    pub(crate) fn flag(&self, next: &mut World) -> Option<()> {
        let Switch::Walking { next: number, listed } = next.switch else { return None };
        if let Some(shard) = &mut next.shards[number] {
            shard.disabled |= self.on(Guard::WalkInOrder) || listed[number];
        }
        next.switch = if number + 1 < self.setup.shards_max {
            Switch::Walking { next: number + 1, listed }
        } else {
            Switch::Off
        };
        Some(())
    }
}
