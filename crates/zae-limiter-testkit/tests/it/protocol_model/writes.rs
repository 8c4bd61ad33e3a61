//! The writes of rules D1, C3, T1-T3 and G of `docs/protocol.md`: what the condition of each writer
//! asks of the stored item, and what it leaves. Writers and purposes are those of the product's
//! registry.

use zae_limiter_dynamodb::bucket::write::Purpose;
use zae_limiter_dynamodb::bucket::writers::{REGISTRY, Writer};

use crate::protocol_model::guards::Guard;
use crate::protocol_model::item::{Config, Instant, Item, Limit, NAMES, Params, ticks};
use crate::protocol_model::model::Protocol;
use crate::protocol_model::world::Seen;

/// The name that corrections and refunds are about.
pub(crate) const LEASED: usize = 0;

/// What a write is for, and how much it debits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Charge {
    pub(crate) purpose: Purpose,
    pub(crate) amount: i8,
}

impl Charge {
    /// A parameter write debits nothing.
    pub(crate) const NOTHING: Charge = Charge { purpose: Purpose::SyncOnly, amount: 0 };

    /// What is debited from the limit of that name, if it is debited at all: a take is a gated
    /// debit of every configured limit, a charge a correction of [`LEASED`] that is never refused.
    pub(crate) fn of(self, name: usize, config: &Config) -> Option<i8> {
        match self.purpose {
            Purpose::Take => config[name].map(|_| self.amount),
            Purpose::Charge => (name == LEASED).then_some(self.amount),
            Purpose::SyncOnly
            | Purpose::GiveBack
            | Purpose::Reset
            | Purpose::Flag
            | Purpose::Delete
            | Purpose::Split
            | Purpose::Fold
            | Purpose::Prune
            | Purpose::Upkeep
            | Purpose::Lend
            | Purpose::Settle
            | Purpose::Adopt => None,
        }
    }

    pub(crate) fn is_take(self) -> bool {
        self.purpose == Purpose::Take
    }

    /// Every debit by which a client may write this, by any writer of the registry. `fills` are the
    /// instants that a blind fill may allow.
    pub(crate) fn debits(self, fills: &[i8]) -> Vec<Debit> {
        let bounds = |part: Part| match part {
            Part::Debit(purpose, _) if purpose != self.purpose => Vec::new(),
            Part::Debit(_, Bound::None) => vec![None],
            Part::Debit(_, Bound::Blind) => fills.iter().copied().map(Some).collect(),
            Part::Debit(_, Bound::Either) => {
                [None].into_iter().chain(fills.iter().copied().map(Some)).collect()
            }
            Part::Step | Part::LeftOut(_) => Vec::new(),
        };
        let by = |writer| {
            let debit = move |r1| Debit { writer, charge: self, r1 };
            bounds(part_of(writer)).into_iter().map(debit)
        };
        REGISTRY.iter().flat_map(|rules| by(rules.writer)).collect()
    }
}

/// The part of a writer in the model.
pub(crate) enum Part {
    /// A debit for this purpose: an action `Debit`.
    Debit(Purpose, Bound),
    /// An action of its own: `Sync`, `Clear` or `Refund`.
    Step,
    /// None, in the words of `docs/protocol-model.md`.
    LeftOut(&'static str),
}

/// What a refill is computed from.
pub(crate) enum Bound {
    /// The very image, or none at all.
    None,
    /// Any refill up to an instant `r1`.
    Blind,
    /// One or the other.
    Either,
}

/// What the model does of a writer. There is no wildcard: a new writer of the registry does not
/// compile before the model says what becomes of it.
pub(crate) fn part_of(writer: Writer) -> Part {
    match writer {
        Writer::Fast | Writer::Refill | Writer::Create => Part::Debit(Purpose::Take, Bound::None),
        Writer::BlindFill => Part::Debit(Purpose::Take, Bound::Blind),
        Writer::ChargeFast | Writer::Recreate => Part::Debit(Purpose::Charge, Bound::None),
        Writer::ChargeRefill => Part::Debit(Purpose::Charge, Bound::Either),
        Writer::SyncOnly | Writer::Credit => Part::Step,
        Writer::Sync => Part::LeftOut("a take inside a parameter write"),
        Writer::ChargePlain => Part::LeftOut("the plain `ADD` an adjust becomes after `RACES_MAX`"),
        Writer::Reset | Writer::Delete => Part::LeftOut("an administrator's reset or delete"),
        Writer::Flag => Part::LeftOut("`disabled`"),
        Writer::Split | Writer::SplitChild | Writer::Fold | Writer::FoldChild | Writer::Prune => {
            Part::LeftOut("Shards (their own model, below)")
        }
        Writer::AggregatorRefill => Part::LeftOut("the aggregator's refill"),
        Writer::Lend | Writer::Settle | Writer::CountUse => {
            Part::LeftOut("loans to local blocks (a model and a simulator of their own)")
        }
        // A charge on a bucket that is gone makes one with any balance below full.
        Writer::Adopt => Part::LeftOut("a bucket of another store (as `Recreate` makes it)"),
    }
}

/// A debit on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Debit {
    pub(crate) writer: Writer,
    pub(crate) charge: Charge,
    /// All FILL, whatever the refill up to this instant was.
    pub(crate) r1: Option<i8>,
}

impl Debit {
    /// Makes a bucket that is not there.
    pub(crate) fn creates(self) -> bool {
        matches!(self.writer, Writer::Create | Writer::Recreate)
    }

    /// The same charge without refilling, for a bucket that turned out to be there.
    pub(crate) fn on_existing(self) -> Debit {
        let writer = if self.charge.is_take() { Writer::Fast } else { Writer::ChargeFast };
        Debit { writer, ..self }
    }
}

/// What a client knows when it composes a write.
#[derive(Debug)]
pub(crate) struct Sender<'a> {
    pub(crate) model: &'a Protocol,
    pub(crate) now: i8,
    pub(crate) config: Config,
    pub(crate) read_at: i8,
    pub(crate) seen: Seen,
}

/// One limit of a refill write.
struct Line {
    image: Limit,
    /// The parameters after the write.
    params: Params,
    add: i8,
    /// What is debited; `None` for a limit that is only refilled.
    debit: Option<i8>,
    charge: Charge,
}

/// What a refill write makes of one limit.
struct Refilled {
    limit: Limit,
    /// The deepest debt the writer cannot rule out, for `ttl`.
    debt: i8,
    /// Proven full, nothing hidden.
    is_whole: bool,
}

impl Sender<'_> {
    fn on(&self, guard: Guard) -> bool {
        self.model.on(guard)
    }

    /// Sends a debit; `None` when the condition fails.
    pub(crate) fn send(&self, item: Option<&Item>, debit: Debit) -> Option<Item> {
        let charge = debit.charge;
        match debit.writer {
            Writer::Create | Writer::Recreate if item.is_some() => None,
            Writer::Create | Writer::Recreate => self.create(charge),
            Writer::Fast | Writer::ChargeFast => self.fast(item?, charge),
            Writer::Refill | Writer::BlindFill | Writer::ChargeRefill => match debit.r1 {
                Some(r1) => self.blind(item?, charge, r1),
                None => self.refill(item?, charge),
            },
            // No debits of the model: see `part_of`.
            Writer::Sync
            | Writer::SyncOnly
            | Writer::ChargePlain
            | Writer::Credit
            | Writer::Reset
            | Writer::Flag
            | Writer::Delete
            | Writer::Split
            | Writer::SplitChild
            | Writer::Fold
            | Writer::FoldChild
            | Writer::Prune
            | Writer::AggregatorRefill
            | Writer::Lend
            | Writer::Settle
            | Writer::CountUse
            | Writer::Adopt => None,
        }
    }

    /// `ADD tk -c`, `rf` untouched.
    fn fast(&self, item: &Item, charge: Charge) -> Option<Item> {
        let debits =
            |name: usize| Some((name, charge.of(name, &self.config)?, self.known(name, charge)?));
        let shortest = (0..NAMES).filter_map(debits).map(|(_, _, params)| params.fill()).min()?;
        let r0 = self.seen.item().map_or(self.now - shortest / 2, |image| image.rf.tick);
        if item.vu
            || (self.on(Guard::FastTtl) && item.ttl <= self.now)
            || (self.on(Guard::FastRfFloor) && item.rf.tick < r0)
        {
            return None;
        }
        let mut after = *item;
        for (name, amount, params) in (0..NAMES).filter_map(debits) {
            let limit = after.limits[name].as_mut()?;
            let up = params.ra * (self.now - r0).max(0);
            let covered = (1 - self.model.setup.ttl_fills) * params.cp;
            let (ceiling, floor) = if charge.is_take() {
                (Guard::FastCeiling, self.on(Guard::FastFloor).then_some(amount))
            } else {
                (
                    Guard::AdjustCeiling,
                    (self.model.setup.ttl_fills > 0 && self.on(Guard::FastDebt))
                        .then_some(amount + covered),
                )
            };
            let other = self.on(Guard::FastPinsCp) && limit.params != params;
            if other
                || (self.on(ceiling) && limit.tk > params.cp - up)
                || floor.is_some_and(|floor| limit.tk < floor)
            {
                return None;
            }
            limit.tk -= amount;
        }
        Some(after)
    }

    /// The parameters a debit is pinned on: takes on the resolved limits, corrections on what the
    /// item is known to carry.
    fn known(&self, name: usize, charge: Charge) -> Option<Params> {
        let image = self.seen.item().and_then(|image| image.limits[name]).map(|limit| limit.params);
        if charge.is_take() { self.config[name] } else { image.or(self.config[name]) }
    }

    /// ADD or FILL per limit, over all limits of the item.
    fn refill(&self, item: &Item, charge: Charge) -> Option<Item> {
        let image = self.seen.item()?;
        if charge.is_take() && !self.is_synced(image) {
            return None;
        }
        self.rewrite(item, charge)
    }

    /// True when the item carries the resolved limits.
    pub(crate) fn is_synced(&self, image: &Item) -> bool {
        let same = |name: usize| {
            self.config[name].is_none()
                || image.limits[name].map(|limit| limit.params) == self.config[name]
        };
        (0..NAMES).all(same)
    }

    /// A parameter write: refill at the old rate, cut to the smaller capacity, new parameters.
    pub(crate) fn sync(&self, item: &Item) -> Option<Item> {
        self.rewrite(item, Charge::NOTHING)
    }

    /// Clears a foreign stamp and leaves the parameters: a parameter write on top of what they are.
    pub(crate) fn clear(&self, item: &Item) -> Option<Item> {
        let image = self.seen.item()?;
        let config = image.limits.map(|limit| limit.map(|limit| limit.params));
        Sender { model: self.model, now: self.now, config, read_at: self.read_at, seen: self.seen }
            .sync(item)
    }

    fn rewrite(&self, item: &Item, charge: Charge) -> Option<Item> {
        let image = self.seen.item()?;
        let is_sync = charge.purpose == Purpose::SyncOnly;
        let [pins_rf, pins_cp, pins_vu] = if is_sync {
            [Guard::SyncPinned, Guard::SyncPinned, Guard::SyncPinsVu]
        } else {
            [Guard::RefillPinsRf, Guard::RefillPinsCp, Guard::RefillPinsVu]
        };
        let params = |item: &Item| item.limits.map(|limit| limit.map(|limit| limit.params));
        if (self.on(pins_rf) && item.rf != image.rf)
            || (self.on(pins_cp) && params(item) != params(image))
            || (self.on(pins_vu) && item.vu != image.vu)
        {
            return None;
        }
        let mut after = *item;
        let mut ttl = i8::MIN;
        for name in 0..NAMES {
            let wanted = self.config[name];
            match (item.limits[name], image.limits[name]) {
                (Some(stored), Some(image_limit)) => {
                    let params = wanted.filter(|_| is_sync).unwrap_or(image_limit.params);
                    let add = image_limit.params.ra * (self.now - image.rf.tick).max(0);
                    let line = Line {
                        image: image_limit,
                        params,
                        add,
                        debit: charge.of(name, &self.config),
                        charge,
                    };
                    let mut refilled = self.refill_limit(stored, &line)?;
                    // Only a parameter write names parameters in its update.
                    refilled.limit.params = if is_sync { params } else { stored.params };
                    let is_removed = wanted.is_none() && charge.purpose != Purpose::Charge;
                    let is_dropped = is_removed
                        && (refilled.is_whole || (is_sync && !self.on(Guard::RemovedKept)));
                    after.limits[name] = (!is_dropped).then_some(refilled.limit);
                    if !is_dropped {
                        ttl = ttl.max(self.ttl(params, refilled.debt, refilled.limit.gp));
                    }
                }
                (None, Some(_)) => return None,
                (None, None) if is_sync => {
                    after.limits[name] =
                        wanted.map(|params| Limit { params, tk: params.cp, gp: 0 });
                    ttl = wanted.map_or(ttl, |params| ttl.max(self.ttl(params, 0, 0)));
                }
                _ => {}
            }
        }
        after.ttl = if self.on(Guard::TtlMax) { ttl.max(image.ttl) } else { ttl };
        if charge.purpose == Purpose::Charge && !self.on(Guard::AdjustRevives) {
            after.ttl = item.ttl;
        }
        after.vu = item.vu && !is_sync && !image.vu;
        let must_move =
            (is_sync && self.on(Guard::SyncMovesRf)) || (image.vu && self.on(Guard::VuMovesRf));
        after.rf = self.moved(item.rf, must_move);
        if is_sync || (image.vu && self.on(Guard::VuStampsCa)) {
            let moved = Instant { order: item.ca.order + 1, ..item.ca };
            let read = if image.vu && self.on(Guard::VuStampsCa) { self.now } else { self.read_at };
            after.ca = Instant::at(read).max(if self.on(Guard::CaMoves) { moved } else { item.ca });
        }
        Some(after)
    }

    fn moved(&self, rf: Instant, must_move: bool) -> Instant {
        let now = Instant::at(self.now);
        let least = if must_move { Instant { order: rf.order + 1, ..rf } } else { rf };
        if self.on(Guard::RfMonotone) || must_move { now.max(least) } else { now }
    }

    fn refill_limit(&self, stored: Limit, line: &Line) -> Option<Refilled> {
        let Line { image, params, add, debit, charge } = *line;
        let amount = debit.unwrap_or(0);
        let gated = debit.filter(|_| charge.is_take());
        let target = image.params.cp.min(params.cp);
        if gated.is_some_and(|amount| amount > target) {
            return None;
        }
        if !self.on(Guard::TwoModes) {
            let lacking = (target - image.tk).min(add).max(0);
            let fails =
                stored.tk > image.tk || gated.is_some_and(|amount| stored.tk < amount - lacking);
            let limit = Limit { params, tk: stored.tk + lacking - amount, gp: stored.gp };
            return (!fails).then_some(Refilled { limit, debt: 0, is_whole: false });
        }
        let gap = if self.on(Guard::GapRecorded) {
            (image.gp + image.params.cp - params.cp).max(0)
        } else {
            0
        };
        let surplus = image.tk + add - target;
        if surplus >= 0 {
            let may_repay = charge.purpose != Purpose::SyncOnly || self.on(Guard::SyncRepaysGap);
            let repaid = if may_repay { gap.min(surplus) } else { 0 };
            let floor = target - add + if self.on(Guard::GapProven) { repaid } else { 0 };
            let fails = self.on(Guard::FillFloor) && stored.tk < floor;
            let limit = Limit { params, tk: target - amount, gp: gap - repaid };
            let is_whole = limit.gp == 0 || !self.on(Guard::GapKeepsRemoved);
            return (!fails).then_some(Refilled { limit, debt: (-limit.tk).max(0), is_whole });
        }
        let fails = (self.on(Guard::AddCeiling) && stored.tk >= target - add)
            || gated.is_some_and(|amount| self.on(Guard::AddFloor) && stored.tk < amount - add)
            || (self.on(Guard::AddDebt) && stored.tk < image.tk.min(0));
        let debt = (amount - add - image.tk).max(0);
        let gp = if self.on(Guard::GapKeptByAdd) { gap } else { (gap - add).max(0) };
        let limit = Limit { params, tk: stored.tk + add - amount, gp };
        (!fails).then_some(Refilled { limit, debt, is_whole: false })
    }

    /// Every limit to its capacity, whatever the exact `rf`, if even the accrual since `r1` fills
    /// it.
    fn blind(&self, item: &Item, charge: Charge, r1: i8) -> Option<Item> {
        let image = self.seen.item()?;
        let latest =
            if r1 == image.rf.tick { image.rf } else { Instant { tick: r1, order: u8::MAX } };
        if (charge.is_take() && !self.is_synced(image))
            || item.vu
            || (self.on(Guard::BlindRf) && item.rf > latest)
            || (self.on(Guard::BlindCa) && item.ca != image.ca)
        {
            return None;
        }
        let mut after = *item;
        let mut ttl = i8::MIN;
        for name in (0..NAMES).filter(|name| image.limits[*name].is_some()) {
            let limit = after.limits[name].as_mut()?;
            let params = image.limits[name]?.params;
            let debit = charge.of(name, &self.config);
            let too_much = charge.is_take() && debit.is_some_and(|amount| amount > params.cp);
            let floor = params.cp - params.ra * (self.now - r1).max(0);
            if too_much
                || limit.params != params
                || limit.tk < floor
                || (self.on(Guard::GapStopsBlind) && limit.gp > 0)
            {
                return None;
            }
            limit.tk = params.cp - debit.unwrap_or(0);
            ttl = ttl.max(self.ttl(params, (-limit.tk).max(0), 0));
        }
        // The stored `ttl` is not known here, so it cannot be the larger of both; this one is
        // enough by itself.
        after.ttl = ttl;
        after.rf = self.moved(item.rf, false);
        Some(after)
    }

    /// A new bucket, full but for the charge.
    fn create(&self, charge: Charge) -> Option<Item> {
        let mut limits = [None; NAMES];
        let mut ttl = i8::MIN;
        for (name, limit) in limits.iter_mut().enumerate() {
            let Some(params) = self.config[name] else { continue };
            let tk = params.cp - charge.of(name, &self.config).unwrap_or(0);
            if charge.is_take() && tk < 0 {
                return None;
            }
            *limit = Some(Limit { params, tk, gp: 0 });
            ttl = ttl.max(self.ttl(params, (-tk).max(0), 0));
        }
        let rf = Instant::at(self.now);
        Some(Item {
            rf,
            ttl,
            ca: Instant::at(self.read_at),
            vu: false,
            lw_is_lost: false,
            stub: false,
            limits,
        })
    }

    /// When the limit is full and has repaid its gap, with `ttl_fills` to spare.
    fn ttl(&self, params: Params, debt: i8, gap: i8) -> i8 {
        if self.model.setup.ttl_fills == 0 {
            return i8::MAX;
        }
        let debt = if self.on(Guard::TtlDebt) { debt } else { 0 };
        let gap = if self.on(Guard::GapTtl) { gap } else { 0 };
        self.now + self.model.setup.ttl_fills * params.fill() + ticks(debt + gap, params.ra)
    }
}
