//! Buckets: the hot path of the contract, over chains.

use futures_util::future::join_all;
use smallvec::SmallVec;
use zae_limiter_core::{BucketState, EntityId, LimitReport, LimitSource, Reports, ResourceName, TimeMs, Wait, assess};
use zae_limiter_store::{
    Adjusted, BoxFuture, BucketDelta, BucketStore, BucketView, Change, ConsumeOutcome, ConsumeRequest, MemberTake, Page, PageRequest,
    ResetRequest, Restored, StoreError,
};

use crate::DynamoStore;
use crate::cache::Seen;
use crate::debit::Debit;
use crate::image::Image;
use crate::item::{key_of, text_of};
use crate::keys;
use crate::options::CascadeWrites;
use crate::page::Listing;
use crate::refill::{Amount, balance_at};
use crate::table::{Index, Item, Key};
use crate::take::{Asked, Moment, Taken, count};

impl BucketStore for DynamoStore {
    fn consume<'a>(&'a self, request: &'a ConsumeRequest<'a>) -> BoxFuture<'a, Result<ConsumeOutcome, StoreError>> {
        Box::pin(async move {
            request.check("consume")?;
            let moment = self.moment(request.now);
            let asked: SmallVec<[Asked<'_>; 1]> = request.members.iter().map(|member| self.asked(member)).collect();
            if let Some(reports) = self.refuse_from_memory(&asked, moment) {
                count(&self.shared.caches.tally.local_refusals);
                return Ok(ConsumeOutcome::Refused(reports));
            }
            let taken = match self.shared.options.cascade_writes {
                CascadeWrites::Parallel if asked.len() > 1 => join_all(asked.iter().map(|asked| self.take(asked, moment))).await,
                CascadeWrites::Parallel | CascadeWrites::Serial => {
                    let mut taken = Vec::with_capacity(asked.len());
                    for asked in &asked {
                        taken.push(self.take(asked, moment).await);
                        if !matches!(taken.last(), Some(Ok(Taken::Granted(_)))) {
                            break;
                        }
                    }
                    taken
                }
            };
            self.conclude(request.members, taken, moment).await
        })
    }

    fn peek<'a>(&'a self, request: &'a ConsumeRequest<'a>) -> BoxFuture<'a, Result<ConsumeOutcome, StoreError>> {
        Box::pin(async move {
            request.check("peek")?;
            self.peek_chain(request).await
        })
    }

    fn adjust<'a>(&'a self, deltas: &'a [BucketDelta<'a>], now: TimeMs) -> BoxFuture<'a, Vec<Result<Adjusted, StoreError>>> {
        Box::pin(async move {
            let moment = self.moment(now);
            join_all(deltas.iter().map(|delta| self.settle(delta, moment))).await
        })
    }

    fn reset<'a>(&'a self, request: &'a ResetRequest<'a>, change: &'a Change) -> BoxFuture<'a, Result<Option<Restored>, StoreError>> {
        Box::pin(self.reset_bucket(request, change))
    }

    fn buckets<'a>(&'a self, entity: &'a EntityId, page: &'a PageRequest) -> BoxFuture<'a, Result<Page<BucketView>, StoreError>> {
        let partition = keys::index::entity(&self.id, entity);
        Box::pin(self.list_buckets("buckets", Listing { index: Some(Index::Gsi3), partition, prefix: "BUCKET#".to_owned() }, page))
    }

    fn resource_buckets<'a>(
        &'a self,
        resource: &'a ResourceName,
        page: &'a PageRequest,
    ) -> BoxFuture<'a, Result<Page<BucketView>, StoreError>> {
        let partition = keys::index::resource(&self.id, resource);
        Box::pin(self.list_buckets("resource_buckets", Listing { index: Some(Index::Gsi2), partition, prefix: "BUCKET#".to_owned() }, page))
    }
}

impl DynamoStore {
    /// Refuses without a write when a bucket of the chain was seen short a moment ago. The memory may only ever refuse.
    fn refuse_from_memory<'a>(&self, asked: &'a [Asked<'_>], moment: Moment) -> Option<Reports> {
        if !self.shared.options.speculative {
            return None;
        }
        let now = self.now(moment);
        // Every member must be known, or a switched-off one would go unsaid.
        let recent = |asked: &'a Asked<'_>| {
            let look = asked.seen.as_deref().filter(|look| self.is_recent(look, now))?;
            look.image.as_ref().filter(|image| !image.disabled && image.carries(&asked.member.limits.limits))
        };
        let images: SmallVec<[&Image; 2]> = asked.iter().map_while(recent).collect();
        if images.len() < asked.len() {
            return None;
        }
        let is_short = |(Asked { member, key, .. }, image): (&Asked<'_>, &&Image)| {
            Debit { key, limits: member.limits, takes: member.takes, absent: member.absent, nonce: "", grace_ms: 0 }
                .is_refused_by(image, now)
        };
        if !asked.iter().zip(&images).any(is_short) {
            return None;
        }
        let states: Vec<BucketState> = asked.iter().zip(&images).map(|(asked, image)| state_of(asked.member, Some(image), now)).collect();
        Some(assess(states.iter().zip(asked.iter().map(|asked| asked.member.takes)), TimeMs(now)))
    }

    /// One answer for the whole chain; what landed of a refused one is given back.
    async fn conclude(
        &self,
        members: &[MemberTake<'_>],
        taken: Vec<Result<Taken, StoreError>>,
        moment: Moment,
    ) -> Result<ConsumeOutcome, StoreError> {
        let all = taken.len() == members.len();
        if all && taken.iter().all(|taken| matches!(taken, Ok(Taken::Granted(_)))) {
            return Ok(ConsumeOutcome::Granted(self.granted(members, &taken, moment)));
        }
        let landed: Vec<&MemberTake<'_>> =
            members.iter().zip(&taken).filter(|(_, taken)| matches!(taken, Ok(Taken::Granted(_)))).map(|(member, _)| member).collect();
        let refunds = Box::pin(join_all(landed.iter().map(|member| self.give_back(member, moment)))).await;
        for error in refunds.into_iter().filter_map(Result::err) {
            // The tokens stay taken until they refill: the safe side of all or nothing.
            count(&self.shared.caches.tally.credits_lost);
            tracing::warn!(%error, "what a refused chain had taken could not be given back");
        }
        let position = |of: fn(&Result<Taken, StoreError>) -> bool| taken.iter().position(of);
        if let Some(member) = position(|taken| matches!(taken, Ok(Taken::Disabled))) {
            return Ok(ConsumeOutcome::Disabled { member });
        }
        // What one member has decided stands, whatever became of the others: an outage elsewhere must not let it pass.
        let is_certain = taken.iter().all(|taken| !matches!(taken, Ok(Taken::Stale)));
        if is_certain && taken.iter().any(|taken| matches!(taken, Ok(Taken::Refused(_)))) {
            return Ok(ConsumeOutcome::Refused(self.refused(members, &taken, moment)));
        }
        if let Some(member) = position(|taken| matches!(taken, Ok(Taken::Stale))) {
            return Ok(ConsumeOutcome::Stale { member });
        }
        match taken.into_iter().find_map(Result::err) {
            Some(error) => Err(error),
            None => Ok(ConsumeOutcome::Contended { retry_after: self.short_wait() }),
        }
    }

    async fn give_back(&self, member: &MemberTake<'_>, moment: Moment) -> Result<Adjusted, StoreError> {
        let key = keys::bucket(&self.id, member.entity, member.resource, 0);
        let limits = &member.limits.limits;
        let taken = member.takes.iter().filter(|take| take.amount.0 > 0);
        let amounts: SmallVec<[Amount<'_>; 2]> =
            taken.map(|take| Amount { limit: &limits[usize::from(take.limit)], milli: take.amount.0 }).collect();
        if amounts.is_empty() {
            return Ok(Adjusted::Applied);
        }
        count(&self.shared.caches.tally.compensations);
        self.credit(&key, &amounts, moment).await
    }

    fn granted(&self, members: &[MemberTake<'_>], taken: &[Result<Taken, StoreError>], moment: Moment) -> Reports {
        let now = self.now(moment);
        let mut reports = Reports::new();
        for (index, (member, taken)) in (0u8..).zip(members.iter().zip(taken)) {
            let Ok(Taken::Granted(look)) = taken else { continue };
            for take in member.takes {
                let limit = &member.limits.limits[usize::from(take.limit)];
                let balance = look.image.as_ref().and_then(|image| balance_at(image, limit.name(), now)).unwrap_or(0);
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

    /// The balances there are, those that were taken from and given back included, as of the refusal: while the others were
    /// waited for and given back, time has passed, and by now the amounts might pass.
    fn refused(&self, members: &[MemberTake<'_>], taken: &[Result<Taken, StoreError>], moment: Moment) -> Reports {
        let refused_at =
            taken.iter().filter_map(|taken| if let Ok(Taken::Refused(refusal)) = taken { Some(refusal.at) } else { None }).min();
        let now = refused_at.unwrap_or_else(|| self.now(moment));
        let states: Vec<BucketState> = members
            .iter()
            .enumerate()
            .map(|(index, member)| match taken.get(index) {
                Some(Ok(Taken::Granted(look))) => state_of(member, look.image.as_ref().map(|image| untaken(image, member)).as_ref(), now),
                Some(Ok(Taken::Refused(refusal))) => state_of(member, refusal.look.image.as_ref(), now),
                _ => {
                    let key = keys::bucket(&self.id, member.entity, member.resource, 0);
                    state_of(member, self.recall(&key).as_deref().and_then(|look: &Seen| look.image.as_ref()), now)
                }
            })
            .collect();
        assess(states.iter().zip(members.iter().map(|member| member.takes)), TimeMs(now))
    }

    async fn peek_chain(&self, request: &ConsumeRequest<'_>) -> Result<ConsumeOutcome, StoreError> {
        let moment = self.moment(request.now);
        let keys: Vec<Key> = request.members.iter().map(|member| keys::bucket(&self.id, member.entity, member.resource, 0)).collect();
        let items = self.shared.read_all("peek", &keys, true).await?;
        let now = self.now(moment);
        let mut states = Vec::with_capacity(items.len());
        for (index, ((member, key), item)) in request.members.iter().zip(&keys).zip(&items).enumerate() {
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
                return Ok(ConsumeOutcome::Disabled { member: index });
            }
            if !image.carries(&member.limits.limits)
                && member.limits.source != LimitSource::Call
                && !self.is_up_to_date(member, &look, image).await?
            {
                return Ok(ConsumeOutcome::Stale { member: index });
            }
            states.push(state_of(member, Some(image), now));
        }
        let reports = assess(states.iter().zip(request.members.iter().map(|member| member.takes)), TimeMs(now));
        let is_short = reports.iter().any(|report| report.wait != Wait::None);
        Ok(if is_short { ConsumeOutcome::Refused(reports) } else { ConsumeOutcome::Granted(reports) })
    }

    /// One page of buckets: keys from an index, then the items themselves, because indexes lag and may hold only keys.
    async fn list_buckets(&self, operation: &'static str, listing: Listing, page: &PageRequest) -> Result<Page<BucketView>, StoreError> {
        let sort_key = if listing.index == Some(Index::Gsi2) { "GSI2SK" } else { "GSI3SK" };
        let named = |item: &Item| {
            let name = text_of(item, sort_key).and_then(|sort| sort.strip_prefix("BUCKET#")).unwrap_or_default();
            Ok((name.to_owned(), key_of(item).filter(|_| name.ends_with("#0"))))
        };
        let found = self.shared.list(operation, &listing, page, named).await?;
        let items = self.shared.read_all(operation, &found.items, true).await?;
        let mut views = Vec::with_capacity(items.len());
        for (key, item) in found.items.iter().zip(&items) {
            let view = item.as_ref().map(|item| self.bucket_view(key, item)).transpose().map_err(|error| error.during(operation))?;
            views.extend(view.flatten());
        }
        Ok(Page { items: views, next: found.next })
    }

    /// `None` for a bucket whose names this version does not accept.
    fn bucket_view(&self, key: &Key, item: &Item) -> Result<Option<BucketView>, StoreError> {
        let Some((entity, resource, _)) = keys::parse_bucket(&self.id, &key.pk) else { return Ok(None) };
        let (Ok(entity), Ok(resource)) = (entity.parse(), resource.parse()) else {
            tracing::warn!(pk = %key.pk, "a bucket with names this version does not accept is left out");
            return Ok(None);
        };
        Ok(Some(BucketView { entity, resource, state: Image::parse(item)?.view() }))
    }
}

/// A bucket in the words of the core, under the limits of a member: as it is, as the change of parameters would leave it, or
/// as a new one would start.
fn state_of(member: &MemberTake<'_>, image: Option<&Image>, now: i64) -> BucketState {
    let limits = &member.limits.limits;
    let Some(image) = image else { return BucketState::full(limits, member.limits.stamp, TimeMs(now)) };
    let mut state = image.state(limits);
    if !state.matches(limits) {
        // Too many limits is an error of the write; the balances are the same.
        let _ = state.sync(limits, member.limits.stamp, TimeMs(now));
    }
    if state.active() < limits.len() { BucketState::full(limits, member.limits.stamp, TimeMs(now)) } else { state }
}

/// The image as it was before the member's amounts were taken.
fn untaken(image: &Image, member: &MemberTake<'_>) -> Image {
    let mut image = image.clone();
    for take in member.takes {
        let name = member.limits.limits[usize::from(take.limit)].name();
        if let Some(limit) = image.limits.iter_mut().find(|limit| limit.name == *name) {
            limit.tk = limit.tk.saturating_add(take.amount.0);
        }
    }
    image
}
