//! Takes from several shards at once: what a gather is planned from, what it asks of each shard,
//! and when it may say that the bucket is short.

use zae_limiter_dynamodb::bucket::writers::Writer;

use crate::shard_model::guards::Guard;
use crate::shard_model::model::Shards;
use crate::shard_model::properties::Rule;
use crate::shard_model::shard::{Amounts, NAMES, NOTHING, SHARDS, Shard, coverage};
use crate::shard_model::world::{Fate, Images, Legs, Lost, Seen, UNSEEN, World};
use crate::shard_model::writes::Sender;

fn shards_of(images: &Images) -> impl Iterator<Item = &Shard> {
    images.iter().filter_map(Seen::shard)
}

impl Shards {
    /// Rule S8a: every shard of the tree, and all of one era.
    fn is_complete(&self, images: &Images) -> bool {
        let era = images[0].shard().map(|root| root.era);
        let is_of_one_era = shards_of(images).all(|shard| Some(shard.era) == era);
        coverage(shards_of(images)) == 4 && (is_of_one_era || !self.on(Guard::GatherEra))
    }

    /// Rule S8b: per limit, from the fullest shard on. `None` when the bucket is short.
    fn legs(&self, images: &Images, wanted: &Amounts, now: i8) -> Option<Legs> {
        let mut legs = [NOTHING; SHARDS];
        for name in (0..NAMES).filter(|name| wanted[*name] > 0) {
            let worth = |(number, seen): (usize, &Seen)| {
                let shard = seen.shard()?;
                Some((self.projected_on(number, shard, name, now).max(0), number))
            };
            let mut fullest: Vec<(i8, usize)> =
                images.iter().enumerate().filter_map(worth).collect();
            fullest.sort_by_key(|(worth, number)| (-worth, *number));
            let mut missing = wanted[name];
            for (worth, number) in fullest {
                let taken = missing.min(worth);
                legs[number][name] = taken;
                missing -= taken;
            }
            if missing > 0 {
                return None;
            }
        }
        Some(legs)
    }

    /// A client that has looked at every shard says "refused" for what they cannot give together.
    /// That is true when nobody gave back since the first look.
    pub(crate) fn judge_refusal(&self, world: &mut World, index: usize) {
        let client = &world.clients[index];
        let is_known = || client.seen[..self.setup.shards_max].iter().all(|s| *s != Seen::Unknown);
        let is_complete = if self.on(Guard::GatherComplete) {
            self.is_complete(&client.seen)
        } else {
            is_known()
        };
        if !is_complete || !client.is_quiet {
            return;
        }
        let is_there = |wanted: &Amounts| {
            (0..NAMES).all(|name| {
                let worth = |(number, shard): (usize, Shard)| {
                    self.projected_on(number, &shard, name, world.tick).max(0)
                };
                world.tree().map(worth).sum::<i8>() >= wanted[name]
            })
        };
        let is_short = |wanted: &Amounts| self.legs(&client.seen, wanted, world.tick).is_none();
        if self.setup.amounts.iter().any(|wanted| is_short(wanted) && is_there(wanted)) {
            world.broken |= Rule::TrueRefusal.bit();
        }
    }

    /// One transaction over the legs, sent at `now` from these images: what it leaves, or `None`.
    fn gathered(
        &self,
        world: &World,
        index: usize,
        legs: &Legs,
        (images, now): (&Images, i8),
    ) -> Option<[Option<Shard>; SHARDS]> {
        let client = &world.clients[index];
        let mut after = world.shards;
        for number in (0..SHARDS).filter(|number| legs[*number] != NOTHING) {
            let stored = world.shards[number]?;
            let sender = Sender {
                model: self,
                number,
                image: *images[number].shard()?,
                config: self.config(client),
                version: client.version,
                now,
            };
            let is_ours = stored.lw_is_lost && client.lost.is_some();
            if is_ours && self.on(Guard::GatherNonce) {
                return None;
            }
            let is_due = now > sender.image.rf.tick;
            let left = if self.on(Guard::GatherPins) {
                let writer = if is_due { Writer::Refill } else { Writer::Fast };
                sender.take(&stored, writer, &legs[number])?
            } else {
                let mut left = stored;
                for (limit, taken) in left.limits.iter_mut().zip(legs[number]) {
                    if let Some(limit) = limit {
                        limit.tk -= taken;
                    }
                }
                left
            };
            after[number] = Some(left);
        }
        Some(after)
    }

    /// Stores a gather that landed.
    fn land_gather(
        &self,
        world: &mut World,
        index: usize,
        after: [Option<Shard>; SHARDS],
        (legs, fate): (&Legs, Fate),
    ) -> Option<()> {
        for number in (0..SHARDS).filter(|number| legs[*number] != NOTHING) {
            self.land(world, (index, number), after[number]?, &legs[number], fate);
        }
        Some(())
    }

    /// A gather, from images that make a whole.
    pub(crate) fn gather(
        &self,
        world: &mut World,
        index: usize,
        wanted: &Amounts,
        fate: Fate,
    ) -> Option<()> {
        let images = world.clients[index].seen;
        let legs = self.plan(&images, wanted, world.tick)?;
        let client = &mut world.clients[index];
        client.ops -= 1;
        client.is_quiet = false;
        if matches!(fate, Fate::Late | Fate::ReplyLost) {
            world.losses -= 1;
            let on_its_way = (fate == Fate::Late).then_some((images, world.tick));
            client.seen = UNSEEN;
            let wanted = *wanted;
            client.lost = Some(Lost { legs, wanted, on_its_way, is_open: true, landings: 0 });
        }
        if fate != Fate::Late {
            let after = self.gathered(world, index, &legs, (&images, world.tick))?;
            self.land_gather(world, index, after, (&legs, fate))?;
            world.clients[index].seen = UNSEEN;
            if fate == Fate::ReplyLost {
                self.mark(world, index, &legs);
            }
        }
        Some(())
    }

    fn plan(&self, images: &Images, wanted: &Amounts, now: i8) -> Option<Legs> {
        if !self.is_complete(images) {
            return None;
        }
        let legs = self.legs(images, wanted, now)?;
        // What one shard can give is a take on that shard.
        (legs.iter().filter(|leg| **leg != NOTHING).count() >= 2).then_some(legs)
    }

    /// Every leg of the one gather with a lost reply leaves its nonce.
    fn mark(&self, world: &mut World, index: usize, legs: &Legs) {
        for (shard, leg) in world.shards.iter_mut().zip(legs) {
            if let (Some(shard), true) = (shard, *leg != NOTHING) {
                shard.lw_is_lost = true;
            }
        }
        if let Some(lost) = &mut world.clients[index].lost {
            lost.landings += 1;
        }
    }

    /// Lands an attempt of the gather that nobody heard of.
    fn land_attempt(
        &self,
        world: &mut World,
        index: usize,
        legs: &Legs,
        (images, now): (&Images, i8),
    ) -> Option<()> {
        let bears_nonce = world.shards.iter().flatten().any(|shard| shard.lw_is_lost);
        let has_landed = world.clients[index].lost.is_some_and(|lost| lost.landings > 0);
        let after = self.gathered(world, index, legs, (images, now))?;
        self.land_gather(world, index, after, (legs, Fate::Kept))?;
        if bears_nonce && has_landed {
            world.broken |= Rule::Once.bit();
        }
        self.mark(world, index, legs);
        Some(())
    }

    /// Rule S8d: the client has read all shards again. Its own nonce among them is the answer;
    /// without it a new plan goes out, with the same nonce.
    pub(crate) fn gather_again(&self, world: &mut World, index: usize) -> Option<()> {
        let images = world.clients[index].seen;
        let lost = world.clients[index].lost.filter(|lost| lost.is_open)?;
        if !self.is_complete(&images) {
            return None;
        }
        if !shards_of(&images).any(|shard| shard.lw_is_lost) {
            let legs = self.plan(&images, &lost.wanted, world.tick)?;
            let is_same = (0..SHARDS)
                .all(|number| (legs[number] == NOTHING) == (lost.legs[number] == NOTHING));
            if self.on(Guard::GatherSameShards) && !is_same {
                return None;
            }
            self.land_attempt(world, index, &legs, (&images, world.tick))?;
        }
        let client = &mut world.clients[index];
        client.seen = UNSEEN;
        if let Some(lost) = &mut client.lost {
            lost.is_open = false;
        }
        Some(())
    }

    /// The first attempt arrives, perhaps after the second, but in its own tick: a request is short
    /// beside a refill.
    pub(crate) fn arrive(&self, world: &mut World, index: usize) -> Option<()> {
        let lost = world.clients[index].lost?;
        let (images, now) = lost.on_its_way.filter(|(_, now)| *now == world.tick)?;
        self.land_attempt(world, index, &lost.legs, (&images, now))?;
        world.clients[index].lost.as_mut()?.on_its_way = None;
        Some(())
    }
}
