//! What agents write: splits, folds, repairs and the removal of orphans, each from images of any
//! age.

use crate::shard_model::guards::Guard;
use crate::shard_model::model::Shards;
use crate::shard_model::shard::{Instant, Limit, NAMES, Params, SHARDS, Shard, coverage, donor};
use crate::shard_model::world::{Images, Plan, Seen, World};

/// The child that a split of shard `number` makes.
pub(crate) fn child(number: usize, shard: &Shard) -> usize {
    number + usize::try_from(shard.n).unwrap_or(0)
}

impl Shards {
    /// Rule S3, one transaction: the donor gives the child half of what its image has. Writers
    /// `Split` and `SplitChild`.
    pub(crate) fn split(&self, world: &mut World, number: usize, image: &Shard) -> Option<()> {
        let stored = world.shards[number]?;
        let born = child(number, image);
        if (self.on(Guard::SplitPinsN) && stored.n != image.n)
            || (self.on(Guard::SplitPinsRf) && stored.rf != image.rf)
            || (self.on(Guard::SplitPinsParams) && stored.params() != image.params())
            || (self.on(Guard::SplitPinsOff) && stored.disabled)
            || (self.on(Guard::ChildAbsent) && world.shards[born].is_some())
        {
            return None;
        }
        let pin = if image.n == 1 {
            image.params().map(|params| params.is_some_and(|p| p.cp < self.setup.pin_below))
        } else {
            image.pin
        };
        let mut left = Shard { n: 2 * image.n, pin, ..stored };
        let mut made = Shard { n: 2 * image.n, pin, disabled: false, lw_is_lost: false, ..*image };
        if self.on(Guard::SplitMovesRf) {
            left.rf = left.rf.next();
        }
        for name in 0..NAMES {
            let (Some(seen), Some(limit)) = (image.limits[name], stored.limits[name]) else {
                continue;
            };
            let kept = self.effective(number, &left, name, limit.params).cp;
            let given = self.effective(born, &made, name, seen.params).cp;
            let is_pinned =
                left.is_pinned(name) || (given == 0 && kept > 0 && !self.on(Guard::PinOnce));
            if is_pinned {
                made.limits[name] = Some(Limit { tk: 0, gp: 0, ..seen });
                continue;
            }
            let half = seen.tk.div_euclid(2).min(given);
            let fits = (half <= 0 || limit.tk >= half) && limit.tk <= kept + half;
            if self.on(Guard::SplitPinsTk) && !fits {
                return None;
            }
            let gap = seen.gp / 2;
            let born_gap = if self.on(Guard::SplitHalvesGap) { gap } else { 0 };
            left.limits[name] = Some(Limit { tk: limit.tk - half, gp: seen.gp - gap, ..limit });
            made.limits[name] = Some(Limit { tk: half, gp: born_gap, ..seen });
        }
        (world.shards[number], world.shards[born]) = (Some(left), Some(made));
        Some(())
    }

    /// Rule S6, one transaction: all shards into shard 0. Writers `Fold` and `FoldChild`.
    pub(crate) fn fold(&self, world: &mut World, images: &Images) -> Option<()> {
        let root = *images[0].shard()?;
        let seen: Vec<(usize, Shard)> = images
            .iter()
            .enumerate()
            .filter_map(|(number, seen)| Some((number, *seen.shard()?)))
            .collect();
        let is_complete = coverage(seen.iter().map(|(_, shard)| shard)) == 4;
        let shape = |shard: &Shard| (shard.params(), shard.pin);
        let is_alike = seen.iter().all(|(_, shard)| shape(shard) == shape(&root));
        if (self.on(Guard::FoldAllLeaves) && !is_complete)
            || (self.on(Guard::FoldSameParams) && !is_alike)
        {
            return None;
        }
        for (number, image) in &seen {
            let stored = world.shards[*number]?;
            let balances = |shard: &Shard| shard.limits.map(|limit| limit.map(|limit| limit.tk));
            if stored.n != image.n
                || shape(&stored) != shape(image)
                || (self.on(Guard::FoldPinsRf) && stored.rf != image.rf)
                || (self.on(Guard::FoldPinsTk) && balances(&stored) != balances(image))
            {
                return None;
            }
        }
        let stored = world.shards[0]?;
        let mut whole = Shard { n: 1, pin: [false; NAMES], era: stored.era + 1, ..stored };
        for name in 0..NAMES {
            let Some(limit) = &mut whole.limits[name] else { continue };
            let (tk, gp) = self.summed(&seen, name, world.tick);
            limit.tk = tk;
            if self.on(Guard::FoldSumsGap) {
                limit.gp = gp;
            }
        }
        let is_later = world.tick > whole.rf.tick && self.on(Guard::FoldAligns);
        whole.rf = if is_later { Instant::at(world.tick) } else { whole.rf.next() };
        for (number, _) in seen {
            world.shards[number] = None;
        }
        world.shards[0] = Some(whole);
        Some(())
    }

    /// Balance and gap of all shards at one instant.
    fn summed(&self, seen: &[(usize, Shard)], name: usize, now: i8) -> (i8, i8) {
        let of = |(number, shard): &(usize, Shard)| {
            let limit = shard.limits[name]?;
            let Params { cp, ra } = self.effective(*number, shard, name, limit.params);
            let accrued = limit.tk + ra * (now - shard.rf.tick).max(0);
            let tk = if self.on(Guard::FoldAligns) { cp.min(accrued) } else { limit.tk };
            Some((tk, (limit.gp - (accrued - cp).max(0)).max(0)))
        };
        seen.iter().filter_map(of).fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1))
    }

    /// Rule S10: a shard that a stranger announced and did not make gets what its donor has above
    /// its own share. Writers `Split` and `SplitChild`: a split that raises no count.
    pub(crate) fn repair(&self, world: &mut World, number: usize, image: &Shard) -> Option<()> {
        let from = donor(number);
        let stored = world.shards[from]?;
        if stored.n != image.n
            || (self.on(Guard::RepairPinsRf) && stored.rf != image.rf)
            || world.shards[number].is_some()
        {
            return None;
        }
        let mut left = Shard { rf: stored.rf.next(), ..stored };
        let mut made = Shard { disabled: false, lw_is_lost: false, ..*image };
        for name in 0..NAMES {
            let (Some(seen), Some(limit)) = (image.limits[name], left.limits[name].as_mut()) else {
                continue;
            };
            let own = self.effective(from, image, name, seen.params).cp;
            let given = self.effective(number, &made, name, seen.params).cp;
            let tk = if self.on(Guard::RepairEmptyOrSurplus) {
                let surplus = given.min((seen.tk - own).max(0));
                if limit.tk < surplus {
                    return None;
                }
                limit.tk -= surplus;
                surplus
            } else {
                given
            };
            made.limits[name] = Some(Limit { tk, gp: 0, ..seen });
        }
        (world.shards[from], world.shards[number]) = (Some(left), Some(made));
        Some(())
    }

    /// Rule S3c: a shard that its donor does not announce is removed before the donor is split.
    /// Writer `Prune`, beside a check of the donor.
    pub(crate) fn remove_orphan(
        &self,
        world: &mut World,
        plan: (usize, Shard, Shard),
    ) -> Option<()> {
        let (number, donor_image, image) = plan;
        let stored = world.shards[number]?;
        let donor_n = world.shards[donor(number)].map(|shard| shard.n);
        let pins = |shard: &Shard| (shard.rf, shard.n, shard.era);
        if (self.on(Guard::OrphanPinsRf) && pins(&stored) != pins(&image))
            || (self.on(Guard::OrphanPinsDonor) && donor_n != Some(donor_image.n))
        {
            return None;
        }
        world.shards[number] = None;
        Some(())
    }

    /// Rule S5: DynamoDB removes what has expired, and only a bucket of one shard does.
    pub(crate) fn sweep(&self, world: &mut World) -> Option<()> {
        let had = self.had(world);
        let swept = if self.on(Guard::NoTtlSharded) {
            let root = world.shards[0].filter(|root| root.n == 1)?;
            let is_whole = |limit: &Limit| {
                let accrued = limit.tk + limit.params.ra * (world.tick - root.rf.tick);
                accrued - limit.params.cp >= limit.gp
            };
            root.limits.iter().flatten().all(is_whole).then_some(0)
        } else {
            let is_full = |number: usize, shard: &Shard| {
                (0..NAMES).all(|name| {
                    shard.limits[name].is_none_or(|limit| {
                        self.projected_on(number, shard, name, world.tick)
                            == self.effective(number, shard, name, limit.params).cp
                    })
                })
            };
            (1..SHARDS).find(|at| world.shards[*at].is_some_and(|shard| is_full(*at, &shard)))
        }?;
        world.shards[swept] = None;
        self.reshaped(world, had);
        Some(())
    }

    /// The next image of a fold: of a shard that was not looked at yet, or a new beginning.
    pub(crate) fn looked_to_fold(&self, plan: Plan, number: usize, seen: Seen) -> Plan {
        let mut images = match plan {
            Plan::Fold(images) if images[number] == Seen::Unknown => images,
            _ => Images::default(),
        };
        images[number] = seen;
        Plan::Fold(images)
    }

    /// The shares of every limit sum to its capacity, where all shards agree on it.
    pub(crate) fn shares_sum(&self, world: &World) -> bool {
        let sums = |name: usize| {
            let params = || world.tree().map(|(_, shard)| shard.params()[name]);
            let Some(first) = params().next().flatten() else { return true };
            let shares =
                world.tree().map(|(number, shard)| self.effective(number, &shard, name, first).cp);
            params().any(|params| params != Some(first)) || shares.sum::<i8>() == first.cp
        };
        (0..NAMES).all(sums)
    }
}
