//! The writes on one shard: what the condition of each asks of the stored item, and what it leaves.

use zae_limiter_dynamodb::bucket::writers::Writer;

use crate::shard_model::guards::Guard;
use crate::shard_model::model::Shards;
use crate::shard_model::shard::{Amounts, Config, Instant, Limit, NAMES, NOTHING, Params, Shard};

/// What a client knows when it composes a write on a shard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sender<'a> {
    pub(crate) model: &'a Shards,
    /// The number of the shard.
    pub(crate) number: usize,
    pub(crate) image: Shard,
    pub(crate) config: Config,
    pub(crate) version: u8,
    pub(crate) now: i8,
}

impl Sender<'_> {
    fn on(&self, guard: Guard) -> bool {
        self.model.on(guard)
    }

    /// The parameters of this shard, as the sender believes.
    fn effective(&self, name: usize, params: Params) -> Params {
        self.model.effective(self.number, &self.image, name, params)
    }

    /// The refill since the image at its own rate.
    fn accrued(&self, name: usize, params: Params) -> i8 {
        self.effective(name, params).ra * (self.now - self.image.rf.tick).max(0)
    }

    /// A take without a bound on the last refill. `None` when the condition fails.
    pub(crate) fn take(&self, stored: &Shard, writer: Writer, amounts: &Amounts) -> Option<Shard> {
        let mut after = match writer {
            Writer::Fast => self.fast(stored, amounts),
            Writer::Refill => self.refill(stored, amounts),
            _ => None,
        }?;
        after.lw_is_lost = false;
        Some(after)
    }

    /// `ADD tk -c`, `rf` untouched.
    fn fast(&self, stored: &Shard, amounts: &Amounts) -> Option<Shard> {
        if (self.on(Guard::FastPinsN) && stored.n != self.image.n)
            || (self.on(Guard::PinsEra) && stored.era != self.image.era)
            || stored.disabled
            || stored.rf.tick < self.image.rf.tick
        {
            return None;
        }
        let mut after = *stored;
        for name in (0..NAMES).filter(|name| amounts[*name] != 0) {
            let params = self.config[name]?;
            let limit = after.limits[name].as_mut().filter(|limit| limit.params == params)?;
            let ceiling = self.effective(name, params).cp - self.accrued(name, params);
            if limit.tk < amounts[name] || limit.tk > ceiling {
                return None;
            }
            limit.tk -= amounts[name];
        }
        Some(after)
    }

    /// ADD or FILL per limit, for amounts of limits that the image shows as they are configured.
    fn refill(&self, stored: &Shard, amounts: &Amounts) -> Option<Shard> {
        let params = self.image.params();
        let is_other = |name: usize| {
            amounts[name] > 0 && (params[name].is_none() || params[name] != self.config[name])
        };
        if (0..NAMES).any(is_other) {
            return None;
        }
        self.rewrite(stored, Rewrite { amounts: *amounts, is_gated: true, is_sync: false })
    }

    /// A take that finds the shard full whatever was refilled up to `r1`.
    pub(crate) fn blind(&self, stored: &Shard, amounts: &Amounts, r1: i8) -> Option<Shard> {
        if (self.on(Guard::BlindPinsN) && stored.n != self.image.n)
            || (self.on(Guard::PinsEra) && stored.era != self.image.era)
            || stored.disabled
            || stored.rf > (Instant { tick: r1, order: u8::MAX })
            || stored.params() != self.image.params()
        {
            return None;
        }
        let mut after = *stored;
        for (name, limit) in after.limits.iter_mut().enumerate() {
            let Some(limit) = limit else { continue };
            let Params { cp, ra } = self.effective(name, limit.params);
            let is_full = limit.tk >= cp - ra * (self.now - r1).max(0);
            if !is_full || limit.gp > 0 || cp < amounts[name] {
                return None;
            }
            limit.tk = cp - amounts[name];
        }
        after.rf = after.rf.max(Instant::at(self.now));
        after.lw_is_lost = false;
        Some(after)
    }

    /// A parameter write: refill at the old rate, cut to the smaller share, new parameters.
    pub(crate) fn sync(&self, stored: &Shard) -> Option<Shard> {
        let after =
            self.rewrite(stored, Rewrite { amounts: NOTHING, is_gated: false, is_sync: true })?;
        Some(Shard { lw_is_lost: false, ..after })
    }

    /// A charge after the fact, never refused.
    pub(crate) fn charge(&self, stored: &Shard, amounts: &Amounts) -> Option<Shard> {
        let rewrite = Rewrite { amounts: *amounts, is_gated: false, is_sync: false };
        Some(Shard { lw_is_lost: false, ..self.rewrite(stored, rewrite)? })
    }

    /// ADD or FILL over every limit, with the amounts taken from it and, in a parameter write, new
    /// parameters.
    fn rewrite(&self, stored: &Shard, write: Rewrite) -> Option<Shard> {
        let image = &self.image;
        let pins_n = if write.is_sync { Guard::SyncPinsN } else { Guard::RefillPinsN };
        if stored.rf != image.rf
            || (self.on(pins_n) && stored.n != image.n)
            || (write.is_gated && stored.disabled)
            || stored.params() != image.params()
        {
            return None;
        }
        let mut after = *stored;
        let mut is_reshaped = write.is_sync && self.version != image.version;
        for name in 0..NAMES {
            let wanted = self.config[name].filter(|_| write.is_sync);
            let (Some(limit), Some(seen)) = (stored.limits[name], image.limits[name]) else {
                if let Some(params) = wanted {
                    after.limits[name] = Some(self.seeded(name, params));
                    is_reshaped = true;
                }
                continue;
            };
            let refilled = self.refilled(name, limit, seen, wanted, write)?;
            let is_removed = write.is_sync && self.config[name].is_none();
            let may_go = refilled.is_whole || !self.on(Guard::DropWhole);
            if is_removed && may_go {
                // The name stays in `pin`: absent means full, at its share.
                after.limits[name] = None;
                is_reshaped = true;
            } else {
                after.limits[name] = Some(refilled.limit);
            }
        }
        if write.is_sync {
            after.version = self.version;
        }
        if self.now > after.rf.tick {
            after.rf = Instant::at(self.now);
        } else if is_reshaped {
            after.rf = after.rf.next();
        }
        Some(after)
    }

    /// A limit that the shard did not have.
    fn seeded(&self, name: usize, params: Params) -> Limit {
        let share = self.effective(name, params).cp;
        Limit { params, tk: if self.on(Guard::SeedShare) { share } else { params.cp }, gp: 0 }
    }

    /// Rules D1 and G on one limit, with the shares in place of the capacities.
    fn refilled(
        &self,
        name: usize,
        stored: Limit,
        seen: Limit,
        wanted: Option<Params>,
        write: Rewrite,
    ) -> Option<Refilled> {
        let amount = write.amounts[name];
        let params = wanted.unwrap_or(seen.params);
        let (before, after) =
            (self.effective(name, seen.params).cp, self.effective(name, params).cp);
        let add = self.accrued(name, seen.params);
        let top = before.min(after);
        let hidden = if self.on(Guard::GapByShare) {
            before - after
        } else {
            (seen.params.cp - params.cp) / 2
        };
        let gap = (seen.gp + hidden).max(0);
        let surplus = seen.tk + add - top;
        let is_full = surplus >= 0;
        let (tk, gp) = if is_full {
            let repaid = gap.min(surplus);
            if stored.tk < top - add + repaid {
                return None;
            }
            (top, gap - repaid)
        } else {
            let is_deeper = stored.tk < seen.tk.min(0) && amount <= 0;
            if stored.tk >= top - add || is_deeper {
                return None;
            }
            (stored.tk + add, gap)
        };
        if write.is_gated && amount > 0 && tk < amount {
            return None;
        }
        let limit = Limit { params, tk: tk - amount, gp };
        Some(Refilled { limit, is_whole: is_full && gp == 0 })
    }
}

/// What an ADD or FILL over every limit is for.
#[derive(Clone, Copy, Debug)]
struct Rewrite {
    amounts: Amounts,
    /// A take: no debt, not when disabled.
    is_gated: bool,
    /// A parameter write.
    is_sync: bool,
}

/// What a refill makes of one limit.
struct Refilled {
    limit: Limit,
    /// Proven full, nothing hidden.
    is_whole: bool,
}
