//! Buckets: the hot path of the contract, over chains.

use std::sync::Arc;

use futures_util::future::{join, join_all};
use smallvec::SmallVec;
use zae_limiter_core::{
    BucketState, EntityId, LimitReport, LimitSource, Reports, ResourceName, TimeMs, Wait, WaitMs,
    assess,
};
use zae_limiter_store::{
    Adjusted, BoxFuture, BucketDelta, BucketStore, BucketView, Change, ConsumeOutcome,
    ConsumeRequest, MemberTake, Page, PageRequest, ResetRequest, Restored, StoreError,
};

use crate::DynamoStore;
use crate::cache::Seen;
use crate::config::Trust;
use crate::debit::Debit;
use crate::image::Image;
use crate::item::{key_of, text_of};
use crate::keys;
use crate::options::CascadeWrites;
use crate::page::Listing;
use crate::table::{Index, Item, Key};
use crate::take::{Asked, Moment, SecondLook, Taken, amounts_of, count};

impl BucketStore for DynamoStore {
    fn consume<'a>(
        &'a self,
        request: &'a ConsumeRequest<'a>,
    ) -> BoxFuture<'a, Result<ConsumeOutcome, StoreError>> {
        let Some(caller) = request.members.first().map(|member| member.entity) else {
            return Box::pin(async {
                request.check("consume").map(|()| ConsumeOutcome::Granted(Reports::new()))
            });
        };
        if request.members.iter().any(MemberTake::is_unlimited) {
            return Box::pin(self.with_limited_members(request, DynamoStore::consume_limited));
        }
        self.consume_limited(request, caller)
    }

    fn peek<'a>(
        &'a self,
        request: &'a ConsumeRequest<'a>,
    ) -> BoxFuture<'a, Result<ConsumeOutcome, StoreError>> {
        if request.members.iter().any(MemberTake::is_unlimited) {
            return Box::pin(
                self.with_limited_members(request, |store, limited, _| store.peek(limited)),
            );
        }
        Box::pin(async move {
            request.check("peek")?;
            self.peek_chain(request).await
        })
    }

    fn adjust<'a>(
        &'a self,
        deltas: &'a [BucketDelta<'a>],
        now: TimeMs,
    ) -> BoxFuture<'a, Vec<Result<Adjusted, StoreError>>> {
        Box::pin(async move {
            let moment = self.moment(now);
            if let Err(error) = self.shared.ask_the_time().await {
                // What was used is charged all the same, at the time that was last heard of.
                tracing::debug!(%error, "the table did not tell its time");
            }
            join_all(deltas.iter().map(|delta| self.settle(delta, moment))).await
        })
    }

    fn reset<'a>(
        &'a self,
        request: &'a ResetRequest<'a>,
        change: &'a Change,
    ) -> BoxFuture<'a, Result<Option<Restored>, StoreError>> {
        Box::pin(self.reset_bucket(request, change))
    }

    fn buckets<'a>(
        &'a self,
        entity: &'a EntityId,
        page: &'a PageRequest,
    ) -> BoxFuture<'a, Result<Page<BucketView>, StoreError>> {
        let partition = keys::index::entity(&self.id, entity);
        Box::pin(self.list_buckets(
            "buckets",
            Listing { index: Some(Index::Gsi3), partition, prefix: "BUCKET#".to_owned() },
            page,
        ))
    }

    fn resource_buckets<'a>(
        &'a self,
        resource: &'a ResourceName,
        page: &'a PageRequest,
    ) -> BoxFuture<'a, Result<Page<BucketView>, StoreError>> {
        let partition = keys::index::resource(&self.id, resource);
        Box::pin(self.list_buckets(
            "resource_buckets",
            Listing { index: Some(Index::Gsi2), partition, prefix: "BUCKET#".to_owned() },
            page,
        ))
    }
}

/// What became of each bucket of a chain; `None` for one that was not asked.
type ChainTaken = SmallVec<[Option<Result<Taken, StoreError>>; 1]>;

fn is_granted(taken: &Option<Result<Taken, StoreError>>) -> bool {
    matches!(taken, Some(Ok(Taken::Granted(_))))
}

fn is_refused(taken: &Option<Result<Taken, StoreError>>) -> bool {
    matches!(taken, Some(Ok(Taken::Refused(_))))
}

impl DynamoStore {
    /// Asks the members that have limits. The others have no bucket that could carry a flag, and a
    /// read for each take would cost more than the take: their flags are as old as the caller's
    /// configuration.
    async fn with_limited_members(
        &self,
        request: &ConsumeRequest<'_>,
        ask: for<'r> fn(
            &'r DynamoStore,
            &'r ConsumeRequest<'r>,
            &'r EntityId,
        ) -> BoxFuture<'r, Result<ConsumeOutcome, StoreError>>,
    ) -> Result<ConsumeOutcome, StoreError> {
        request.check("consume")?;
        let places: SmallVec<[usize; 4]> = (0..request.members.len())
            .filter(|place| !request.members[*place].is_unlimited())
            .collect();
        if places.is_empty() {
            return Ok(ConsumeOutcome::Granted(Reports::new()));
        }
        let members: SmallVec<[MemberTake<'_>; 4]> =
            places.iter().map(|place| request.members[*place]).collect();
        let in_the_chain = |mut reports: Reports| {
            for report in &mut reports {
                report.member = u8::try_from(places[usize::from(report.member)]).unwrap_or(u8::MAX);
            }
            reports
        };
        Ok(
            match ask(
                self,
                &ConsumeRequest { members: &members, now: request.now },
                request.members[0].entity,
            )
            .await?
            {
                ConsumeOutcome::Granted(reports) => ConsumeOutcome::Granted(in_the_chain(reports)),
                ConsumeOutcome::Refused(reports) => ConsumeOutcome::Refused(in_the_chain(reports)),
                ConsumeOutcome::Stale { member } => {
                    ConsumeOutcome::Stale { member: places[member] }
                }
                ConsumeOutcome::Disabled { member } => {
                    ConsumeOutcome::Disabled { member: places[member] }
                }
                ConsumeOutcome::Contended { retry_after } => {
                    ConsumeOutcome::Contended { retry_after }
                }
            },
        )
    }

    /// Takes from the buckets of members that all have limits. The buckets of `caller` are its own,
    /// all others an ancestor's, also when the caller itself has no limits and so no bucket.
    fn consume_limited<'r>(
        &'r self,
        request: &'r ConsumeRequest<'r>,
        caller: &'r EntityId,
    ) -> BoxFuture<'r, Result<ConsumeOutcome, StoreError>> {
        Box::pin(async move {
            request.check("consume")?;
            let moment = self.moment(request.now);
            let time = self.shared.ask_the_time().await.map_err(|error| error.during("consume"))?;
            // A refusal from memory is a matter of a microsecond: the clocks are read once for it.
            let now = time.map_or_else(|| self.now(moment), |time| time.correct(request.now));
            let asked = |member: &'r MemberTake<'r>| Asked {
                is_ancestor: member.entity != caller,
                ..self.asked(member)
            };
            let asked: SmallVec<[Asked<'_>; 1]> = request.members.iter().map(asked).collect();
            if let Some(reports) = self.refuse_from_memory(&asked, now) {
                count(&self.shared.caches.tally.local_refusals);
                return Ok(ConsumeOutcome::Refused(reports));
            }
            let taken = match &asked[..] {
                [only] => SmallVec::from_iter([Some(self.take(only, moment).await)]),
                _ => Box::pin(self.take_chain(&asked, moment)).await,
            };
            self.conclude(request.members, &asked, taken, moment).await
        })
    }

    /// Takes from the buckets of a chain, all at once but for those that will probably refuse: they
    /// are asked first, one after the other, the caller's own before all. A refusal by them costs
    /// the others nothing; a chain that is refused after it has taken holds tokens of its ancestors
    /// for two round trips, and others are refused for it.
    async fn take_chain(&self, asked: &[Asked<'_>], moment: Moment) -> ChainTaken {
        let now = self.now(moment);
        let is_serial = self.shared.options.cascade_writes == CascadeWrites::Serial;
        let will_refuse = |asked: &Asked<'_>| {
            let refuses = |look: &Seen| {
                look.has_refused()
                    || look
                        .image
                        .as_ref()
                        .is_some_and(|image| Debit::of(asked).is_refused_by(image, now))
            };
            is_serial || asked.seen.as_deref().is_some_and(refuses)
        };
        let mut taken: ChainTaken = asked.iter().map(|_| None).collect();
        let (first, rest): (Vec<usize>, Vec<usize>) =
            (0..asked.len()).partition(|index| will_refuse(&asked[*index]));
        for index in first {
            taken[index] = Some(self.take(&asked[index], moment).await);
            if !is_granted(&taken[index]) {
                return taken;
            }
        }
        let answers = join_all(rest.iter().map(|index| self.take(&asked[*index], moment))).await;
        for (index, answer) in rest.into_iter().zip(answers) {
            taken[index] = Some(answer);
        }
        taken
    }

    /// A bucket has refused: the others are not asked any more, but what they have belongs to the
    /// answer, one that is switched off is said first, and new limits count from now on.
    async fn look_at_the_others(
        &self,
        asked: &[Asked<'_>],
        taken: &ChainTaken,
        moment: Moment,
    ) -> Vec<(usize, Result<Taken, StoreError>)> {
        let mut told = Vec::new();
        if !taken.iter().any(is_refused) {
            return told;
        }
        let others: SmallVec<[usize; 4]> =
            (0..asked.len()).filter(|index| taken[*index].is_none()).collect();
        let keys: SmallVec<[Key; 4]> =
            others.iter().map(|index| asked[*index].key.clone()).collect();
        if keys.is_empty() {
            return told;
        }
        let looks = match self.look_at_without_doubt(asked, &others, &keys, moment).await {
            Ok(looks) => looks,
            Err(error) => {
                // What has refused stands; of the others, what is remembered has to do.
                tracing::debug!(%error, "the other buckets of a refused chain could not be read");
                return told;
            }
        };
        for (index, look) in others.into_iter().zip(looks) {
            told.push((index, Box::pin(self.spare(&asked[index], look, moment)).await));
        }
        told
    }

    /// Reads the buckets, twice if an ancestor is short that was not so before.
    async fn look_at_without_doubt(
        &self,
        asked: &[Asked<'_>],
        others: &[usize],
        keys: &[Key],
        moment: Moment,
    ) -> Result<Vec<Arc<Seen>>, StoreError> {
        let looks = self.look_at(keys, moment).await?;
        let is_doubted = |(index, look): (&usize, &Arc<Seen>)| {
            let (asked, now) = (&asked[*index], self.now(moment));
            let is_short =
                look.image.as_ref().is_some_and(|image| Debit::of(asked).is_refused_by(image, now));
            is_short && self.second_look(asked, now) == SecondLook::Needed
        };
        if !others.iter().zip(&looks).any(is_doubted) {
            return Ok(looks);
        }
        self.wait_for_second_look(moment).await;
        self.look_at(keys, moment).await
    }

    async fn look_at(&self, keys: &[Key], moment: Moment) -> Result<Vec<Arc<Seen>>, StoreError> {
        let items = self.shared.read_all("consume", keys, true).await?;
        keys.iter().zip(items).map(|(key, item)| self.note(key, item.as_ref(), moment)).collect()
    }

    /// What a bucket that is not asked has to say.
    async fn spare(
        &self,
        asked: &Asked<'_>,
        look: Arc<Seen>,
        moment: Moment,
    ) -> Result<Taken, StoreError> {
        let Some(image) = &look.image else {
            // It is refused either way: what was read a moment ago is good enough to say why.
            let configured = self.member(asked.member, Trust::BEFORE_CREATE).await?;
            return Ok(if configured.disabled_by.is_some() {
                Taken::Disabled
            } else {
                Taken::Spared(look)
            });
        };
        image.check_supported(&asked.key.pk)?;
        if image.disabled || image.mark.is_some() || !image.carries(&asked.member.limits.limits) {
            // A take brings it up to date, or says why not.
            let Asked { member, is_ancestor, .. } = *asked;
            let spared = Asked {
                member,
                key: asked.key.clone(),
                seen: Some(look),
                is_ancestor,
                is_spared: true,
            };
            return self.take(&spared, moment).await;
        }
        if Debit::of(asked).is_refused_by(image, self.now(moment)) {
            look.refuse(asked.is_ancestor);
        }
        Ok(Taken::Spared(look))
    }

    /// Refuses without a write when a bucket of the chain was seen short a moment ago. The memory
    /// may only ever refuse.
    fn refuse_from_memory<'a>(&self, asked: &'a [Asked<'_>], now: TimeMs) -> Option<Reports> {
        if !self.shared.options.speculative {
            return None;
        }
        // Every member must be known, or a switched-off one would go unsaid.
        let recent = |asked: &'a Asked<'_>| {
            let look = asked.seen.as_deref().filter(|look| self.is_recent(look, now))?;
            let image = look
                .image
                .as_ref()
                .filter(|image| !image.disabled && image.carries(&asked.member.limits.limits))?;
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
        // What a refused chain held for a moment is not told as a wait either.
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

    /// One answer for the whole chain; what landed of a refused one is given back.
    async fn conclude(
        &self,
        members: &[MemberTake<'_>],
        asked: &[Asked<'_>],
        mut taken: ChainTaken,
        moment: Moment,
    ) -> Result<ConsumeOutcome, StoreError> {
        if taken.iter().all(is_granted) {
            return Ok(ConsumeOutcome::Granted(self.granted(members, &taken, moment)));
        }
        let landed: Vec<&MemberTake<'_>> = members
            .iter()
            .zip(&taken)
            .filter(|(_, taken)| is_granted(taken))
            .map(|(member, _)| member)
            .collect();
        // At once: whoever shares a bucket with this chain is short of what it holds.
        let refunds = join_all(landed.iter().map(|member| self.give_back(member, moment)));
        let (refunds, told) =
            Box::pin(join(refunds, self.look_at_the_others(asked, &taken, moment))).await;
        for (index, told) in told {
            taken[index] = Some(told);
        }
        for error in refunds.into_iter().filter_map(Result::err) {
            // The tokens stay taken until they refill: the safe side of all or nothing.
            count(&self.shared.caches.tally.credits_lost);
            tracing::warn!(%error, "what a refused chain had taken could not be given back");
        }
        let position =
            |of: fn(&Option<Result<Taken, StoreError>>) -> bool| taken.iter().position(of);
        if let Some(member) = position(|taken| matches!(taken, Some(Ok(Taken::Disabled)))) {
            return Ok(ConsumeOutcome::Disabled { member });
        }
        // What one member has decided stands, whatever became of the others: an outage elsewhere
        // must not let it pass.
        let is_certain = taken.iter().all(|taken| !matches!(taken, Some(Ok(Taken::Stale))));
        if is_certain && taken.iter().any(is_refused) {
            return Ok(ConsumeOutcome::Refused(self.refused(members, &taken, moment)));
        }
        if let Some(member) = position(|taken| matches!(taken, Some(Ok(Taken::Stale)))) {
            return Ok(ConsumeOutcome::Stale { member });
        }
        match taken.into_iter().flatten().find_map(Result::err) {
            Some(error) => Err(error),
            None => Ok(ConsumeOutcome::Contended { retry_after: self.short_wait() }),
        }
    }

    pub(crate) async fn give_back(
        &self,
        member: &MemberTake<'_>,
        moment: Moment,
    ) -> Result<Adjusted, StoreError> {
        let key = keys::bucket(&self.id, member.entity, member.resource, 0);
        let amounts = amounts_of(member, |milli| milli > 0);
        if amounts.is_empty() {
            return Ok(Adjusted::Applied);
        }
        count(&self.shared.caches.tally.compensations);
        self.credit(&key, &amounts, moment).await
    }

    fn granted(
        &self,
        members: &[MemberTake<'_>],
        taken: &[Option<Result<Taken, StoreError>>],
        moment: Moment,
    ) -> Reports {
        let now = self.now(moment);
        let mut reports = Reports::new();
        for (index, (member, taken)) in (0u8..).zip(members.iter().zip(taken)) {
            let Some(Ok(Taken::Granted(look))) = taken else { continue };
            for take in member.takes {
                let limit = &member.limits.limits[usize::from(take.limit)];
                let balance = look
                    .image
                    .as_ref()
                    .and_then(|image| image.balance_at(limit.name(), now))
                    .unwrap_or(0);
                reports.push(LimitReport {
                    member: index,
                    limit: take.limit,
                    balance: zae_limiter_core::Milli(balance),
                    requested: take.amount,
                    wait: Wait::None,
                });
            }
        }
        reports
    }

    /// The balances there are, those that were taken from and given back included, as of the
    /// refusal: while the others were waited for and given back, time has passed, and by now the
    /// amounts might pass.
    fn refused(
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
        let states: Vec<BucketState> = members
            .iter()
            .enumerate()
            .map(|(index, member)| match taken.get(index) {
                Some(Some(Ok(Taken::Granted(look)))) => state_of(
                    member,
                    look.image.as_ref().map(|image| untaken(image, member)).as_ref(),
                    now,
                ),
                Some(Some(Ok(Taken::Refused(refusal)))) => {
                    state_of(member, refusal.look.image.as_ref(), now)
                }
                Some(Some(Ok(Taken::Spared(look)))) => state_of(member, look.image.as_ref(), now),
                _ => {
                    let key = keys::bucket(&self.id, member.entity, member.resource, 0);
                    state_of(
                        member,
                        self.recall(&key).as_deref().and_then(|look: &Seen| look.image.as_ref()),
                        now,
                    )
                }
            })
            .collect();
        let mut reports = assess(states.iter().zip(members.iter().map(|member| member.takes)), now);
        for (index, (member, taken)) in (0u8..).zip(members.iter().zip(taken)) {
            if let Some(Ok(Taken::Refused(refusal))) = taken {
                hold(&mut reports, index, member, &refusal.look, now);
            }
        }
        reports
    }

    async fn peek_chain(&self, request: &ConsumeRequest<'_>) -> Result<ConsumeOutcome, StoreError> {
        let moment = self.moment(request.now);
        self.shared.ask_the_time().await.map_err(|error| error.during("peek"))?;
        let keys: Vec<Key> = request
            .members
            .iter()
            .map(|member| keys::bucket(&self.id, member.entity, member.resource, 0))
            .collect();
        let items = self.shared.read_all("peek", &keys, true).await?;
        let now = self.now(moment);
        let mut states = Vec::with_capacity(items.len());
        for (index, ((member, key), item)) in
            request.members.iter().zip(&keys).zip(&items).enumerate()
        {
            let look = self.note(key, item.as_ref(), moment)?;
            let Some(image) = &look.image else {
                if self.is_switched_off(member).await? {
                    return Ok(ConsumeOutcome::Disabled { member: index });
                }
                states.push(state_of(member, None, now));
                continue;
            };
            image.check_supported(&key.pk)?;
            if image.disabled {
                if self.is_switched_off(member).await? {
                    return Ok(ConsumeOutcome::Disabled { member: index });
                }
                // As a take does: a flag that was left behind does not count. Nor is it remembered,
                // or the next take would be told.
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
        let reports =
            assess(states.iter().zip(request.members.iter().map(|member| member.takes)), now);
        let is_short = reports.iter().any(|report| report.wait != Wait::None);
        Ok(if is_short {
            ConsumeOutcome::Refused(reports)
        } else {
            ConsumeOutcome::Granted(reports)
        })
    }

    /// One page of buckets: keys from an index, then the items themselves, because indexes lag and
    /// may hold only keys.
    async fn list_buckets(
        &self,
        operation: &'static str,
        listing: Listing,
        page: &PageRequest,
    ) -> Result<Page<BucketView>, StoreError> {
        let sort_key = if listing.index == Some(Index::Gsi2) { "GSI2SK" } else { "GSI3SK" };
        let named = |item: &Item| {
            let name = text_of(item, sort_key)
                .and_then(|sort| sort.strip_prefix("BUCKET#"))
                .unwrap_or_default();
            Ok((name.to_owned(), key_of(item).filter(|_| name.ends_with("#0"))))
        };
        let found = self.shared.list(operation, &listing, page, named).await?;
        let items = self.shared.read_all(operation, &found.items, true).await?;
        let mut views = Vec::with_capacity(items.len());
        for (key, item) in found.items.iter().zip(&items) {
            let view = item
                .as_ref()
                .map(|item| self.bucket_view(key, item))
                .transpose()
                .map_err(|error| error.during(operation))?;
            views.extend(view.flatten());
        }
        Ok(Page { items: views, next: found.next })
    }

    /// `None` for a bucket whose names this version does not accept.
    fn bucket_view(&self, key: &Key, item: &Item) -> Result<Option<BucketView>, StoreError> {
        let Some((entity, resource, _)) = keys::parse_bucket(&self.id, &key.pk) else {
            return Ok(None);
        };
        let (Ok(entity), Ok(resource)) = (entity.parse(), resource.parse()) else {
            tracing::warn!(pk = %key.pk, "a bucket with names this version does not accept is left out");
            return Ok(None);
        };
        Ok(Some(BucketView { entity, resource, state: Image::parse(item)?.view() }))
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

/// Lengthens the waits of the limits that a crowd drains to as long as the refusal holds.
fn hold(reports: &mut Reports, index: u8, member: &MemberTake<'_>, look: &Seen, now: TimeMs) {
    let Some(quiet) = look.quiet(now) else { return };
    let held =
        Wait::After(WaitMs::at_least_one(u64::try_from(quiet.until.since(now)).unwrap_or(0)));
    for report in reports.iter_mut().filter(|report| report.member == index) {
        let name = member.limits.limits[usize::from(report.limit)].name();
        if quiet.short.iter().any(|(short, least)| short == name && report.requested.0 >= *least) {
            report.wait = report.wait.max(held);
        }
    }
}

/// The image as it was before the member's amounts were taken.
fn untaken(image: &Image, member: &MemberTake<'_>) -> Image {
    let mut image = image.clone();
    for take in member.takes {
        let name = member.limits.limits[usize::from(take.limit)].name();
        if let Some(limit) = image.limits.iter_mut().find(|limit| limit.name == *name) {
            limit.balance = limit.balance.saturating_add(take.amount.0);
        }
    }
    image
}
