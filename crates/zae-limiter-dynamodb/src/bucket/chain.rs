//! Taking from the buckets of a chain: from all of them or from none.

use std::sync::Arc;

use futures_util::future::{join, join_all};
use smallvec::SmallVec;
use zae_limiter_core::{EntityId, Milli, Reports};
use zae_limiter_store::{
    Adjusted, ConsumeOutcome, ConsumeRequest, Grant, MemberKey, MemberTake, Place, Places,
    StoreError, StoreFuture,
};

use crate::DynamoStore;
use crate::bucket::cache::Seen;
use crate::bucket::credit::Undo;
use crate::bucket::debit::Debit;
use crate::bucket::operation::{Moment, amounts_of, count};
use crate::bucket::take::{Asked, Held, SecondLook, Taken};
use crate::config::Trust;
use crate::options::CascadeWrites;
use crate::records::keys;
use crate::table::Key;

/// What became of each bucket of a chain; `None` for one that was not asked.
pub(super) type ChainTaken = SmallVec<[Option<Result<Taken, StoreError>>; 1]>;

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
    pub(super) async fn with_limited_members(
        &self,
        request: &ConsumeRequest<'_>,
        ask: for<'r> fn(
            &'r DynamoStore,
            &'r ConsumeRequest<'r>,
            &'r EntityId,
        ) -> StoreFuture<'r, ConsumeOutcome>,
    ) -> Result<ConsumeOutcome, StoreError> {
        request.check("consume")?;
        let places: SmallVec<[usize; 4]> = (0..request.members.len())
            .filter(|place| !request.members[*place].is_unlimited())
            .collect();
        if places.is_empty() {
            return Ok(ConsumeOutcome::Granted(Grant::default()));
        }
        let members: SmallVec<[MemberTake<'_>; 4]> =
            places.iter().map(|place| request.members[*place]).collect();
        let member_of = |member: u8| u8::try_from(places[usize::from(member)]).unwrap_or(u8::MAX);
        let in_the_chain = |mut reports: Reports| {
            for report in &mut reports {
                report.member = member_of(report.member);
            }
            reports
        };
        Ok(
            match ask(
                self,
                &ConsumeRequest { members: &members, ..*request },
                request.members[0].entity,
            )
            .await?
            {
                ConsumeOutcome::Granted(mut grant) => {
                    grant
                        .places
                        .iter_mut()
                        .for_each(|place| place.member = member_of(place.member));
                    ConsumeOutcome::Granted(Grant { reports: in_the_chain(grant.reports), ..grant })
                }
                ConsumeOutcome::Refused(reports) => ConsumeOutcome::Refused(in_the_chain(reports)),
                ConsumeOutcome::Paced { reports, age } => {
                    ConsumeOutcome::Paced { reports: in_the_chain(reports), age }
                }
                ConsumeOutcome::Stale { member } => {
                    ConsumeOutcome::Stale { member: places[member] }
                }
                ConsumeOutcome::Blocked { member, flag } => {
                    ConsumeOutcome::Blocked { member: places[member], flag }
                }
                ConsumeOutcome::Contended { retry_after, reports } => {
                    ConsumeOutcome::Contended { retry_after, reports: in_the_chain(reports) }
                }
            },
        )
    }

    /// Takes from the buckets of members that all have limits. The buckets of `caller` are its own,
    /// all others an ancestor's, also when the caller itself has no limits and so no bucket.
    pub(super) fn consume_limited<'r>(
        &'r self,
        request: &'r ConsumeRequest<'r>,
        caller: &'r EntityId,
    ) -> StoreFuture<'r, ConsumeOutcome> {
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

    /// A bucket has refused, and the others are not asked any more. They are looked at: their
    /// balances belong to the answer, a disabled bucket is reported first, and new limits count
    /// from now on.
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
                // The refusal stands; the answer uses what is remembered of the other buckets.
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
        let items = self.shared.read_all("consume", keys).await?;
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
            // The take is refused either way: a configuration of a moment ago is good enough to say
            // why.
            let configured = self.member(asked.member, Trust::BEFORE_CREATE).await?;
            return Ok(if configured.flag().blocks() {
                Taken::Blocked(configured.flag())
            } else {
                Taken::Spared(look)
            });
        };
        image.check_supported(&asked.key.pk)?;
        if image.flag.blocks()
            || image.mark.is_some()
            || !image.carries(&asked.member.limits.limits)
        {
            // A take brings it up to date, or says why not.
            let Asked { member, is_ancestor, .. } = *asked;
            let spared = Asked {
                member,
                key: asked.key.clone(),
                seen: Some(look),
                standing: asked.standing.clone(),
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

    /// One answer for the whole chain; what landed of a refused one is given back.
    async fn conclude(
        &self,
        members: &[MemberTake<'_>],
        asked: &[Asked<'_>],
        mut taken: ChainTaken,
        moment: Moment,
    ) -> Result<ConsumeOutcome, StoreError> {
        if taken.iter().all(is_granted) {
            let reports = self.granted(members, &taken, moment);
            return Ok(ConsumeOutcome::Granted(Grant {
                reports,
                places: places_of(&taken),
                is_local: false,
            }));
        }
        let landed: Vec<(&MemberTake<'_>, &Held)> = members
            .iter()
            .zip(&taken)
            .filter_map(|(member, taken)| match taken {
                Some(Ok(Taken::Granted(granted))) => Some((member, &granted.held)),
                _ => None,
            })
            .collect();
        // At once: other callers of a bucket of this chain are short of the tokens it holds.
        let refunds =
            join_all(landed.iter().map(|(member, held)| self.give_back(member, held, moment)));
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
        let blocked = taken.iter().zip(0..).find_map(|(taken, member)| match taken {
            Some(Ok(Taken::Blocked(flag))) => Some(ConsumeOutcome::Blocked { member, flag: *flag }),
            _ => None,
        });
        if let Some(blocked) = blocked {
            return Ok(blocked);
        }
        // The refusal of one member stands, also when others failed: an outage elsewhere must not
        // let the take pass.
        let is_certain = taken.iter().all(|taken| !matches!(taken, Some(Ok(Taken::Stale))));
        if is_certain && taken.iter().any(is_refused) {
            return Ok(ConsumeOutcome::Refused(self.refused(members, &taken, moment)));
        }
        if let Some(member) = position(|taken| matches!(taken, Some(Ok(Taken::Stale)))) {
            return Ok(ConsumeOutcome::Stale { member });
        }
        let reports = self.known(members, &taken, moment);
        match taken.into_iter().flatten().find_map(Result::err) {
            Some(error) => Err(error),
            None => Ok(ConsumeOutcome::Contended { retry_after: self.short_wait(), reports }),
        }
    }

    /// Gives back what a take holds that is not granted after all.
    pub(crate) async fn give_back(
        &self,
        member: &MemberTake<'_>,
        held: &Held,
        moment: Moment,
    ) -> Result<Adjusted, StoreError> {
        let mark = self.undo_mark(moment);
        if held.is_empty() {
            // A take of nothing was counted as an event: a credit of nothing takes that back.
            let amounts = amounts_of(member, |milli| milli > Milli::ZERO);
            count(&self.shared.caches.tally.compensations);
            let key = keys::bucket(&self.id, member.entity, member.resource, 0);
            let undo = Undo { mark, is_counted: true };
            return self.credit(&key, &amounts, Some(undo), moment).await;
        }
        let mut result = Ok(Adjusted::Applied);
        for (place, (shard, takes)) in held.iter().enumerate() {
            let part = MemberTake { takes, ..*member };
            let amounts = amounts_of(&part, |milli| milli > Milli::ZERO);
            if amounts.is_empty() && place > 0 {
                continue;
            }
            count(&self.shared.caches.tally.compensations);
            // Parts whose shards are gone meet on one item: the stream tells them by their marks.
            let mark = mark.saturating_add(2 * i64::try_from(place).unwrap_or(0));
            let undo = Undo { mark, is_counted: place == 0 };
            let whose = MemberKey { entity: member.entity, resource: member.resource };
            let given = self.credit_at(whose, *shard, &amounts, Some(undo), moment).await;
            // What one shard does not take back is no reason to keep what the others gave.
            result = result.and(given);
        }
        result
    }
}

/// Where a chain was taken from: the shards of those buckets that have several.
fn places_of(taken: &ChainTaken) -> Places {
    let mut places = Places::new();
    for (taken, member) in taken.iter().zip(0..) {
        let Some(Ok(Taken::Granted(granted))) = taken else { continue };
        places.extend(granted.held.iter().map(|(shard, takes)| Place {
            member,
            shard: u8::try_from(*shard).unwrap_or(u8::MAX),
            taken: takes.clone(),
        }));
    }
    places
}
