//! The bucket as a whole: what its shards are worth together, and the ideal bucket beside them, one
//! item that is fed with the same landed operations.

use crate::shard_model::guards::Guard;
use crate::shard_model::model::Shards;
use crate::shard_model::properties::Rule;
use crate::shard_model::shard::{Amounts, NAMES, Params, SHARDS, Shard, donor, share};
use crate::shard_model::world::World;

const NO_PARAMS: Params = Params { cp: 0, ra: 0 };

impl World {
    /// True for a shard that the tree from shard 0 on leads to. The others are orphans, which only
    /// a stranger can leave.
    pub(crate) fn is_in_tree(&self, number: usize) -> bool {
        let is_child = || {
            let donor = donor(number);
            let announces = |shard: Shard| usize::try_from(shard.n).is_ok_and(|n| n > number);
            self.is_in_tree(donor) && self.shards[donor].is_some_and(announces)
        };
        self.shards[number].is_some() && (number == 0 || is_child())
    }

    /// The shards of the tree with their numbers.
    pub(crate) fn tree(&self) -> impl Iterator<Item = (usize, Shard)> + '_ {
        (0..SHARDS)
            .filter(|number| self.is_in_tree(*number))
            .filter_map(|number| Some((number, self.shards[number]?)))
    }

    /// True when some shard of the tree has the limit.
    pub(crate) fn has(&self, name: usize) -> bool {
        self.tree().any(|(_, shard)| shard.limits[name].is_some())
    }

    /// The shard itself, or the nearest donor that is there.
    pub(crate) fn home(&self, mut number: usize) -> usize {
        while self.shards[number].is_none() && number > 0 {
            number = donor(number);
        }
        number
    }
}

impl Shards {
    /// Rule S1: the parameters that every formula uses on a shard.
    pub(crate) fn effective(
        &self,
        number: usize,
        shard: &Shard,
        name: usize,
        params: Params,
    ) -> Params {
        let is_pinned = if self.on(Guard::PinOnce) {
            shard.is_pinned(name)
        } else {
            shard.n > 1 && params.cp / shard.n < 1 + self.setup.pin_below / 4
        };
        let cp = if self.on(Guard::SharesSum) {
            share(params.cp, number, shard.n)
        } else {
            (params.cp + shard.n - 1) / shard.n
        };
        match (is_pinned, number) {
            (true, 0) => params,
            (true, _) => NO_PARAMS,
            (false, _) => Params { cp, ra: params.ra / shard.n },
        }
    }

    /// What a limit of a shard is worth at `tick`.
    pub(crate) fn projected_on(&self, number: usize, shard: &Shard, name: usize, tick: i8) -> i8 {
        shard.limits[name].map_or(0, |limit| {
            let Params { cp, ra } = self.effective(number, shard, name, limit.params);
            cp.min(limit.tk + ra * (tick - shard.rf.tick).max(0))
        })
    }

    /// The effective parameters of a limit on a shard. A shard that lacks a limit which others have
    /// is full there, at its share (rule S4b).
    fn parameters(&self, world: &World, number: usize, shard: &Shard, name: usize) -> Params {
        let stored = shard.limits[name].map(|limit| limit.params);
        let absent = || self.versions(name).max().filter(|_| world.has(name));
        stored
            .or_else(absent)
            .map_or(NO_PARAMS, |params| self.effective(number, shard, name, params))
    }

    fn versions(&self, name: usize) -> impl Iterator<Item = Params> {
        self.setup.versions.iter().filter_map(move |config| config[name])
    }

    /// What the limit is worth over all shards.
    pub(crate) fn projected(&self, world: &World, name: usize) -> i8 {
        let of = |(number, shard): (usize, Shard)| match shard.limits[name] {
            Some(_) => self.projected_on(number, &shard, name, world.tick),
            None => self.parameters(world, number, &shard, name).cp,
        };
        world.tree().map(of).sum()
    }

    /// Capacity and refill of the whole bucket: those of its shards together. A stranger who raises
    /// the count announces shards that are not there yet, so there the configuration counts.
    pub(crate) fn whole(&self, world: &World, name: usize) -> Params {
        if self.setup.raises > 0 {
            return self.setup.versions[0][name].unwrap_or(NO_PARAMS);
        }
        let parameters =
            world.tree().map(|(number, shard)| self.parameters(world, number, &shard, name));
        parameters.fold(NO_PARAMS, |sum, of| Params { cp: sum.cp + of.cp, ra: sum.ra + of.ra })
    }

    pub(crate) fn largest_capacity(&self, name: usize) -> i8 {
        self.versions(name).map(|params| params.cp).max().unwrap_or(0)
    }

    /// A tick of the ideal bucket, with the parameters that its shards have now.
    pub(crate) fn tick(&self, world: &mut World) {
        let whole: [Params; NAMES] = std::array::from_fn(|name| self.whole(world, name));
        world.tick += 1;
        for (name, Params { cp, ra }) in whole.into_iter().enumerate() {
            world.ideal[name] = cp.min(world.ideal[name] + ra);
            let largest = self.largest_capacity(name);
            world.largest[name] = largest.min(world.largest[name] + ra);
        }
        world.meter = (world.meter - whole[0].ra).max(0);
    }

    pub(crate) fn debit_ideal(&self, world: &mut World, amounts: &Amounts) {
        for (name, amount) in amounts.iter().enumerate() {
            world.ideal[name] -= amount;
            world.largest[name] -= amount;
        }
    }

    pub(crate) fn credit_ideal(&self, world: &mut World, name: usize, amount: i8) {
        let cp = self.whole(world, name).cp;
        let ideal = world.ideal[name];
        world.ideal[name] = cp.min(ideal + amount).max(ideal.min(cp));
        let largest = self.largest_capacity(name);
        world.largest[name] = largest.min(world.largest[name] + amount);
        if name == 0 {
            world.meter = (world.meter - amount).max(0);
        }
    }

    /// Tells the ideal bucket that limits came, went or changed. `had` says which were there
    /// before. A limit that goes from every shard has to be whole at every capacity it had.
    pub(crate) fn reshaped(&self, world: &mut World, had: [bool; NAMES]) {
        for (name, had) in had.into_iter().enumerate() {
            let has = world.has(name);
            let largest = self.largest_capacity(name);
            if had && !has {
                if world.largest[name] < largest {
                    world.broken |= Rule::Forget.bit();
                }
                (world.ideal[name], world.largest[name]) = (0, largest);
            }
            if !had && has {
                world.ideal[name] = self.projected(world, name);
            }
            world.ideal[name] = world.ideal[name].min(self.whole(world, name).cp);
        }
    }

    /// The bucket goes by order or by a stranger: nothing of it is remembered.
    pub(crate) fn forgotten(&self, world: &mut World) {
        world.ideal = [0; NAMES];
        world.largest = std::array::from_fn(|name| self.largest_capacity(name));
        world.meter = 0;
    }

    pub(crate) fn had(&self, world: &World) -> [bool; NAMES] {
        std::array::from_fn(|name| world.has(name))
    }
}
