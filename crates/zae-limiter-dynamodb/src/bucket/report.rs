//! What a caller is told of the buckets: balances and waits of a grant and of a refusal, a refusal
//! from memory, and a look that takes nothing.

use std::sync::Arc;

use smallvec::SmallVec;
use zae_limiter_core::{
    BucketState, LimitReport, LimitSource, Milli, Reports, TimeMs, Wait, WaitMs, assess,
};
use zae_limiter_store::{ConsumeOutcome, ConsumeRequest, MemberTake, StoreError};

use crate::DynamoStore;
use crate::bucket::cache::Seen;
use crate::bucket::debit::Debit;
use crate::bucket::gather::is_of_several;
use crate::bucket::image::Image;
use crate::bucket::moves::whole;
use crate::bucket::operation::Moment;
use crate::bucket::take::{Asked, Granted, Taken};
use crate::bucket::waits::{Waits, Wanted, alone, waits};
use crate::constants::SHARDS_MAX;
use crate::records::keys;
use crate::table::Key;

impl DynamoStore {
    /// Refuses without a write when a bucket of the chain was seen short a moment ago. The memory
    /// may only ever refuse.
    pub(super) fn refuse_from_memory<'a>(
        &self,
        asked: &'a [Asked<'_>],
        now: TimeMs,
    ) -> Option<Reports> {
        if !self.shared.options.speculative {
            return None;
        }
        if asked.iter().any(|asked| asked.seen.as_deref().is_some_and(is_of_several)) {
            return self.refuse_from_memory_of_shards(asked, now);
        }
        // Every member must be known, or the answer would not say that one is disabled.
        let recent = |asked: &'a Asked<'_>| {
            let look = asked.seen.as_deref().filter(|look| self.is_recent(look, now))?;
            let image = look.image.as_ref().filter(|image| {
                !image.flag.blocks() && image.carries(&asked.member.limits.limits)
            })?;
            Some((look, image))
        };
        let known: SmallVec<[(&Seen, &Image); 2]> = asked.iter().map_while(recent).collect();
        if known.len() < asked.len() {
            return None;
        }
        let refuses = |(asked, (look, image)): (&Asked<'_>, &(&Seen, &Image))| {
            let debit = Debit::of(asked);
            asked.may_refuse(look)
                && (debit.is_refused_by(image, now) || look.is_quiet(&debit, now))
        };
        // Tokens that a refused chain held for a moment do not count as a wait either.
        let is_doubted = |(asked, (look, image)): (&Asked<'_>, &(&Seen, &Image))| {
            !asked.may_refuse(look) && Debit::of(asked).is_refused_by(image, now)
        };
        if !asked.iter().zip(&known).any(refuses) || asked.iter().zip(&known).any(is_doubted) {
            return None;
        }
        let states: Vec<BucketState> = asked
            .iter()
            .zip(&known)
            .map(|(asked, (_, image))| state_of(asked.member, Some(image), now))
            .collect();
        let mut reports =
            assess(states.iter().zip(asked.iter().map(|asked| asked.member.takes)), now);
        for (index, (asked, (look, _))) in (0u8..).zip(asked.iter().zip(&known)) {
            hold(&mut reports, index, asked.member, look, now);
        }
        Some(reports)
    }

    /// The same where a bucket has several shards: every one of them must be known from a moment
    /// ago, because one short shard proves nothing.
    fn refuse_from_memory_of_shards(&self, asked: &[Asked<'_>], now: TimeMs) -> Option<Reports> {
        if asked.len() == 1 && self.may_pass_on_a_shard(&asked[0], now) {
            return None;
        }
        let mut wholes: Vec<Image> = Vec::with_capacity(asked.len());
        let mut waited: Vec<Waits> = Vec::with_capacity(asked.len());
        for asked in asked {
            let looks = match asked.seen.as_ref().filter(|look| self.is_recent(look, now))? {
                look if is_of_several(look) => self.recalled(asked, now)?,
                look => vec![Arc::clone(look)],
            };
            let images: Vec<&Image> =
                looks.iter().map(|look| look.image.as_ref()).collect::<Option<_>>()?;
            let is_plain =
                |image: &&Image| !image.flag.blocks() && image.carries(&asked.member.limits.limits);
            if !images.iter().all(is_plain) {
                return None;
            }
            let wanted = Debit::of(asked).asked();
            waited.push(match alone(&images, &wanted, now) {
                Some(_) => Waits::new(),
                None => waits(&images, &wanted, now),
            });
            wholes.push(whole(&images, now)?);
        }
        let mut is_refused = false;
        for ((asked, whole), waits) in asked.iter().zip(&wholes).zip(&waited) {
            // Without a wait one shard has it all, whatever another owes.
            if !waits.is_empty() && Debit::of(asked).is_refused_by(whole, now) {
                let may_refuse = asked.seen.as_deref().is_some_and(|look| asked.may_refuse(look));
                // Tokens that a refused chain held for a moment do not count as a wait either.
                if !may_refuse {
                    return None;
                }
                is_refused = true;
            }
        }
        if !is_refused {
            return None;
        }
        let states: Vec<BucketState> = asked
            .iter()
            .zip(&wholes)
            .map(|(asked, whole)| state_of(asked.member, Some(whole), now))
            .collect();
        let mut reports =
            assess(states.iter().zip(asked.iter().map(|asked| asked.member.takes)), now);
        for (index, (asked, waits)) in (0u8..).zip(asked.iter().zip(&waited)) {
            tell(&mut reports, index, asked.member, waits);
        }
        Some(reports)
    }

    /// Whether a shard may have what is asked, or is not known well enough: nothing needs to be
    /// added up to see that memory does not refuse.
    fn may_pass_on_a_shard(&self, asked: &Asked<'_>, now: TimeMs) -> bool {
        let (tree, debit) = (self.shared.caches.tree(&asked.key.pk), Debit::of(asked));
        tree.leaves().iter().any(|(shard, _)| {
            let look = self.shared.caches.image(tree.pk(*shard));
            let is_short = look.filter(|look| self.is_recent(look, now)).is_some_and(|look| {
                look.image.as_ref().is_some_and(|image| debit.is_refused_by(image, now))
            });
            !is_short
        })
    }

    /// A bucket of several shards as far as it is remembered, in the measure of all of it: a shard
    /// that is not known is taken for one like the others.
    fn estimate(&self, member: &MemberTake<'_>, look: &Seen, now: TimeMs) -> Option<Image> {
        let seen = look.image.as_ref()?;
        if seen.standing.is_alone() {
            return Some(seen.clone());
        }
        let root = keys::bucket(&self.id, member.entity, member.resource, 0);
        let tree = self.shared.caches.tree(&root.pk);
        let recall = |(shard, _): &(u32, u32)| self.shared.caches.image(tree.pk(*shard));
        let looks: Vec<Arc<Seen>> = tree.leaves().iter().filter_map(recall).collect();
        let images = looks.iter().filter_map(|look| look.image.as_ref());
        let mut images: Vec<&Image> =
            images.filter(|image| image.standing.shard != seen.standing.shard).collect();
        images.push(seen);
        let slots: u32 = images.iter().map(|image| image.standing.slots()).sum();
        let mut image = whole(&images, now)?;
        for limit in &mut image.limits {
            let scaled = i128::from(limit.balance.0) * i128::from(SHARDS_MAX)
                / i128::from(slots.clamp(1, SHARDS_MAX));
            if !seen.standing.is_pinned(&limit.name) {
                limit.balance = Milli(i64::try_from(scaled).unwrap_or(i64::MAX));
            }
        }
        Some(image)
    }

    pub(super) fn granted(
        &self,
        members: &[MemberTake<'_>],
        taken: &[Option<Result<Taken, StoreError>>],
        moment: Moment,
    ) -> Reports {
        let now = self.now(moment);
        let mut reports = Reports::new();
        for (index, (member, taken)) in (0u8..).zip(members.iter().zip(taken)) {
            let Some(Ok(Taken::Granted(Granted { look, .. }))) = taken else { continue };
            let estimate = match is_of_several(look) {
                true => self.estimate(member, look, now),
                false => None,
            };
            for take in member.takes {
                let limit = &member.limits.limits[usize::from(take.limit)];
                let balance = estimate
                    .as_ref()
                    .or(look.image.as_ref())
                    .and_then(|image| image.balance_at(limit.name(), now))
                    .unwrap_or_default();
                reports.push(LimitReport {
                    member: index,
                    limit: take.limit,
                    balance,
                    requested: take.amount,
                    wait: Wait::None,
                });
            }
        }
        reports
    }

    /// The balances of the buckets that were ever seen, for a chain that was not decided.
    pub(super) fn known(
        &self,
        members: &[MemberTake<'_>],
        taken: &[Option<Result<Taken, StoreError>>],
        moment: Moment,
    ) -> Reports {
        let is_known = |member: &MemberTake<'_>| {
            let key = keys::bucket(&self.id, member.entity, member.resource, 0);
            self.recall(&key).is_some_and(|look| look.image.is_some())
        };
        let known: SmallVec<[bool; 4]> = members.iter().map(is_known).collect();
        let mut reports = self.refused(members, taken, moment);
        reports.retain(|report| known[usize::from(report.member)]);
        reports
    }

    /// The balances there are, those that were taken from and given back included, as of the
    /// refusal: while the others were waited for and given back, time has passed, and by now the
    /// amounts might pass.
    pub(super) fn refused(
        &self,
        members: &[MemberTake<'_>],
        taken: &[Option<Result<Taken, StoreError>>],
        moment: Moment,
    ) -> Reports {
        let refusal = |taken: &'_ Option<Result<Taken, StoreError>>| match taken {
            Some(Ok(Taken::Refused(refusal))) => Some(refusal.at),
            _ => None,
        };
        let now = taken.iter().filter_map(refusal).min().unwrap_or_else(|| self.now(moment));
        let state = |(index, member): (usize, &MemberTake<'_>)| {
            let look = match taken.get(index) {
                Some(Some(Ok(Taken::Granted(Granted { look, .. })))) => {
                    let image = self.estimate(member, look, now);
                    let before = image.map(|image| untaken(&image, member));
                    return state_of(member, before.as_ref(), now);
                }
                Some(Some(Ok(Taken::Refused(refusal)))) => Some(Arc::clone(&refusal.look)),
                Some(Some(Ok(Taken::Spared(look)))) => Some(Arc::clone(look)),
                _ => self.recall(&keys::bucket(&self.id, member.entity, member.resource, 0)),
            };
            let image = look.as_deref().and_then(|look| self.estimate(member, look, now));
            state_of(member, image.as_ref(), now)
        };
        let states: Vec<BucketState> = members.iter().enumerate().map(state).collect();
        let mut reports = assess(states.iter().zip(members.iter().map(|member| member.takes)), now);
        for (index, (member, taken)) in (0u8..).zip(members.iter().zip(taken)) {
            if let Some(Ok(Taken::Refused(refusal))) = taken {
                hold(&mut reports, index, member, &refusal.look, now);
                tell(&mut reports, index, member, &refusal.waits);
            }
        }
        reports
    }

    pub(super) async fn peek_chain(
        &self,
        request: &ConsumeRequest<'_>,
    ) -> Result<ConsumeOutcome, StoreError> {
        let moment = self.moment(request.now);
        self.shared.ask_the_time().await.map_err(|error| error.during("peek"))?;
        let keys: Vec<Key> = request
            .members
            .iter()
            .map(|member| keys::bucket(&self.id, member.entity, member.resource, 0))
            .collect();
        let items = self.shared.read_all("peek", &keys).await?;
        let now = self.now(moment);
        let mut states = Vec::with_capacity(items.len());
        let mut shards: Vec<(usize, Vec<Arc<Seen>>)> = Vec::new();
        for (index, ((member, key), item)) in
            request.members.iter().zip(&keys).zip(&items).enumerate()
        {
            let mut look = self.note(key, item.as_ref(), moment)?;
            if is_of_several(&look) {
                match self.look_at_all(member, moment).await? {
                    Some((all, looks)) => {
                        look = all;
                        shards.push((index, looks));
                    }
                    None => {
                        let reports = self.known(request.members, &[], moment);
                        let retry_after = self.short_wait();
                        return Ok(ConsumeOutcome::Contended { retry_after, reports });
                    }
                }
            }
            let Some(image) = &look.image else {
                let flag = self.configured_flag(member).await?;
                if flag.blocks() {
                    return Ok(ConsumeOutcome::Blocked { member: index, flag });
                }
                states.push(state_of(member, None, now));
                continue;
            };
            image.check_supported(&key.pk)?;
            if image.flag.blocks() {
                let flag = self.configured_flag(member).await?;
                if flag.blocks() {
                    return Ok(ConsumeOutcome::Blocked { member: index, flag });
                }
                // As for a take, a flag that was left behind does not count. The image is
                // forgotten, or the next take would be refused by it.
                self.shared.caches.forget(&key.pk);
            }
            if !image.carries(&member.limits.limits)
                && member.limits.source != LimitSource::Call
                && !self.is_up_to_date(member, &look, image).await?
            {
                return Ok(ConsumeOutcome::Stale { member: index });
            }
            states.push(state_of(member, Some(image), now));
        }
        let mut reports =
            assess(states.iter().zip(request.members.iter().map(|member| member.takes)), now);
        for (index, looks) in &shards {
            let member = &request.members[*index];
            let images: Vec<&Image> = looks.iter().filter_map(|look| look.image.as_ref()).collect();
            pass(&mut reports, u8::try_from(*index).unwrap_or(u8::MAX), member, &images, now);
        }
        let is_short = reports.iter().any(|report| report.wait != Wait::None);
        Ok(if is_short {
            ConsumeOutcome::Refused(reports)
        } else {
            ConsumeOutcome::Granted(reports.into())
        })
    }
}

impl DynamoStore {
    /// All shards of a bucket, together and one by one, as they are now; `None` when others change
    /// them too fast.
    pub(crate) async fn look_at_all(
        &self,
        member: &MemberTake<'_>,
        moment: Moment,
    ) -> Result<Option<(Arc<Seen>, Vec<Arc<Seen>>)>, StoreError> {
        let whose = self.whose(member.entity.as_str(), member.resource.as_str());
        let Some(looks) = self.read_shards(&whose, moment).await? else { return Ok(None) };
        let images: Vec<&Image> = looks.iter().filter_map(|look| look.image.as_ref()).collect();
        let (now, wall) = (self.now(moment), self.shared.wall());
        let all = whole(&images, now).map(|image| self.shared.caches.together(image, now, wall));
        let all = all.unwrap_or_else(|| self.shared.caches.unread(now, wall));
        Ok(Some((all, looks)))
    }
}

/// A bucket in the words of the core, under the limits of a member: as it is, as the change of
/// parameters would leave it, or as a new one would start.
fn state_of(member: &MemberTake<'_>, image: Option<&Image>, now: TimeMs) -> BucketState {
    let limits = &member.limits.limits;
    let Some(image) = image else {
        return BucketState::full(limits, member.limits.stamp, now);
    };
    let mut state = image.state(limits);
    if !state.matches(limits) {
        // Too many limits is an error of the write; the balances are the same.
        let _ = state.sync(limits, member.limits.stamp, now);
    }
    if state.active() < limits.len() {
        BucketState::full(limits, member.limits.stamp, now)
    } else {
        state
    }
}

/// Raises the wait of every limit in `Quiet` to the end of the quiet time, if at least the amount
/// in `Quiet` is requested.
fn hold(reports: &mut Reports, index: u8, member: &MemberTake<'_>, look: &Seen, now: TimeMs) {
    let Some(quiet) = look.quiet(now) else { return };
    let held =
        Wait::After(WaitMs::at_least_one(u64::try_from(quiet.until.since(now)).unwrap_or(0)));
    for report in reports.iter_mut().filter(|report| report.member == index) {
        let name = member.limits.limits[usize::from(report.limit)].name();
        if quiet.short.iter().any(|(short, least)| short == name && report.requested >= *least) {
            report.wait = report.wait.max(held);
        }
    }
}

/// What shards say of a look at all of them: a take that one shard can serve passes, whatever
/// another owes.
fn pass(reports: &mut Reports, index: u8, member: &MemberTake<'_>, images: &[&Image], now: TimeMs) {
    let limit = |take: &zae_limiter_core::Take| &member.limits.limits[usize::from(take.limit)];
    let wanted: Wanted<'_> = member
        .takes
        .iter()
        .map(|take| (limit(take).name(), limit(take).params(), take.amount))
        .collect();
    if alone(images, &wanted, now).is_none() {
        return tell(reports, index, member, &waits(images, &wanted, now));
    }
    let of_member = reports.iter_mut().filter(|report| report.member == index);
    of_member.for_each(|report| report.wait = Wait::None);
}

/// Tells the waits of a bucket with several shards, which are not those of one with their sum.
fn tell(reports: &mut Reports, index: u8, member: &MemberTake<'_>, waits: &Waits) {
    for report in reports.iter_mut().filter(|report| report.member == index) {
        let name = member.limits.limits[usize::from(report.limit)].name();
        let told = waits.iter().find(|(short, _)| short == name);
        if let (Some((_, ms)), Wait::After(_)) = (told, report.wait) {
            report.wait = Wait::After(WaitMs::at_least_one(u64::try_from(*ms).unwrap_or(0)));
        }
    }
}

/// The image as it was before the member's amounts were taken.
fn untaken(image: &Image, member: &MemberTake<'_>) -> Image {
    let mut image = image.clone();
    for take in member.takes {
        let name = member.limits.limits[usize::from(take.limit)].name();
        if let Some(limit) = image.limits.iter_mut().find(|limit| limit.name == *name) {
            limit.balance = limit.balance.saturating_add(take.amount);
        }
    }
    image
}
