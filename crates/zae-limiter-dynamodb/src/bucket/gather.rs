//! Taking from a bucket with several shards (rules S8, S9, S9a).
//!
//! A take draws a shard and goes the way of every take there. A shard that is short proves nothing
//! about the bucket: the take tries others, and then reads all of them. If they have enough
//! together, one transaction takes from several; if not, the refusal is the truth about the whole
//! bucket. In between two such reads, and for a moment after a take that nobody could serve, the
//! bucket answers from memory: refused if the images say so, contended otherwise.

use std::sync::Arc;

use smallvec::SmallVec;
use zae_limiter_core::{Limit, Milli, Take, TimeMs};
use zae_limiter_store::{MemberTake, StoreError, StoreErrorKind};

use crate::DynamoStore;
use crate::bucket::cache::{Seen, ShardEvent};
use crate::bucket::debit::{Debit, Known, Step, View};
use crate::bucket::image::Image;
use crate::bucket::moves::{Whose, are_all, legs, whole};
use crate::bucket::operation::{Moment, count};
use crate::bucket::send_all::SentAll;
use crate::bucket::shard::{Leaves, Standing, donor};
use crate::bucket::take::{Asked, Granted, Held, Refusal, SecondLook, Taken, knows_more};
use crate::bucket::tree::Tree;
use crate::bucket::waits::{alone, waits};
use crate::bucket::write::{Cost, Nonce};
use crate::config::Verdict;
use crate::constants::{GATHER_READS_MAX, LEAF_TRIES_MAX, SHARDS_MAX, WCU_PER_WRITE_MILLI};
use crate::table::Key;

/// How often one take reads, plans and sends: a plan from the shards as they were read, one from
/// the images that came back with a cancelled transaction, and two turns for a change of limits and
/// a second look.
const GATHER_TURNS_MAX: u32 = 4;

/// What became of a plan to take from several shards.
enum Together {
    Answer(Taken),
    /// The caller's limits are those of the configuration: plan again.
    Proven,
    /// Others were faster: plan again by what came back.
    Lost,
    GiveUp,
}

impl DynamoStore {
    /// Takes from a bucket with several shards.
    pub(crate) async fn take_from_shards(
        &self,
        asked: &Asked<'_>,
        moment: Moment,
    ) -> Result<Taken, StoreError> {
        let tree = self.shared.caches.tree(&asked.key.pk);
        if asked.is_spared {
            return Ok(self.take_from(asked, moment).await?.0);
        }
        let debit = Debit::of(asked);
        if tree.is_resting(&debit, self.now(moment)) {
            count(&self.shared.caches.tally.contended);
            return Ok(Taken::Contended);
        }
        let mut tried: SmallVec<[u32; 4]> = SmallVec::new();
        let mut is_throttled = false;
        for _ in 0..LEAF_TRIES_MAX {
            let Some(leaf) = self.draw(asked, &tree, &tried, moment) else { break };
            let shard = leaf.standing.shard;
            tried.push(shard);
            let (taken, is_ambiguous) = match self.take_from(&leaf, moment).await {
                Ok(answer) => answer,
                // A shard that takes no more writes; others may.
                Err(error) if error.kind() == StoreErrorKind::Busy => {
                    is_throttled = true;
                    continue;
                }
                Err(error) => return Err(error),
            };
            match taken {
                // What was sent there may still land: nothing may be taken elsewhere.
                Taken::Refused(_) | Taken::Contended | Taken::Gone if is_ambiguous => {
                    return Ok(Taken::Contended);
                }
                Taken::Refused(_) | Taken::Contended => {}
                Taken::Gone => self.missing(asked, &tree, shard, moment).await?,
                answer => return Ok(answer),
            }
        }
        let taken = self.gather(asked, &tree, moment).await?;
        // Only where nobody could serve it: whoever has to read limits again comes back at once.
        match taken {
            // Shards that take no more writes are to be split: takes that rest would hide it.
            Taken::Contended if is_throttled && self.may_grow(&tree) => {}
            Taken::Refused(_) | Taken::Contended => {
                tree.rest(&debit, self.now(moment), self.shared.options.herd_pause_ms);
            }
            Taken::Granted(_) => {}
            _ => tree.let_gather(),
        }
        Ok(taken)
    }

    /// Whether a bucket can have more shards than are known of it.
    fn may_grow(&self, tree: &Tree) -> bool {
        tree.leaves().len() < self.shared.options.shards_max as usize
    }

    /// Whether a shard 0 that takes no more writes is one of several. A process that knows no other
    /// shard reads this one: reading is not throttled.
    pub(crate) async fn has_other_shards(
        &self,
        asked: &Asked<'_>,
        error: &StoreError,
        moment: Moment,
    ) -> bool {
        if error.kind() != StoreErrorKind::Busy {
            return false;
        }
        self.look(&asked.key, moment).await.is_ok_and(|look| is_of_several(&look))
    }

    /// Draws one of the shards that are not known to be short, in proportion to their shares. Takes
    /// of a pinned limit go to shard 0.
    fn draw<'a>(
        &self,
        asked: &Asked<'a>,
        tree: &Tree,
        tried: &[u32],
        moment: Moment,
    ) -> Option<Asked<'a>> {
        let (now, debit) = (self.now(moment), Debit::of(asked));
        let root = self.recall(&asked.key);
        let standing =
            root.as_deref().and_then(|look| look.image.as_ref()).map(|image| &image.standing);
        let is_pinned = |limit: &Limit| standing.is_some_and(|root| root.is_pinned(limit.name()));
        if debit.wanted().any(|(limit, _)| is_pinned(limit)) {
            return (!tried.contains(&0)).then(|| self.leaf(asked, 0, standing));
        }
        let is_short = |shard: u32| {
            let look = self.shared.caches.image(tree.pk(shard));
            let image = look.as_ref().and_then(|look| look.image.as_ref());
            let guess = Standing { shard, ..standing.cloned().unwrap_or_default() };
            let standing = image.map_or(&guess, |image| &image.standing);
            let is_too_much = |(limit, amount): (&Limit, Milli)| {
                amount > standing.effective(limit.name(), limit.params()).full()
            };
            let was_short = |look: &Arc<Seen>| {
                self.is_recent(look, now)
                    && image.is_some_and(|image| debit.is_refused_by(image, now))
            };
            debit.wanted().any(is_too_much) || look.as_ref().is_some_and(was_short)
        };
        let mut open: SmallVec<[(u32, u32); 4]> = tree.leaves();
        open.retain(|(shard, _)| !tried.contains(shard));
        // Drawn first and looked at then: most shards of most buckets are not short.
        while !open.is_empty() {
            let slots: u32 = open.iter().map(|(_, slots)| slots).sum();
            let mut drawn = self.shared.options.entropy.next_u64() % u64::from(slots).max(1);
            let is_drawn = |(_, slots): &(u32, u32)| {
                let is_here = drawn < u64::from(*slots);
                drawn = drawn.saturating_sub(u64::from(*slots));
                is_here
            };
            let (shard, _) = open.swap_remove(open.iter().position(is_drawn)?);
            if !is_short(shard) {
                return Some(self.leaf(asked, shard, standing));
            }
        }
        None
    }

    /// One shard of what is asked. A shard that was not seen is taken for one like shard 0.
    fn leaf<'a>(&self, asked: &Asked<'a>, shard: u32, root: Option<&Standing>) -> Asked<'a> {
        let key = self.shard_key(asked.member, shard);
        let guess = Standing { shard, ..root.cloned().unwrap_or_default() };
        Asked {
            member: asked.member,
            seen: self.recall(&key),
            key,
            standing: guess,
            // Another shard may have what this one lacks: nobody waits for a second look here.
            is_ancestor: false,
            is_spared: asked.is_spared,
        }
    }

    pub(crate) fn shard_key(&self, member: &MemberTake<'_>, shard: u32) -> Key {
        crate::records::keys::bucket(&self.id, member.entity, member.resource, shard)
    }

    /// A shard is not there. Usually the shards were folded, and the next draw finds the donor. A
    /// donor that should have split it was changed by a foreign writer: the shard is made.
    async fn missing(
        &self,
        asked: &Asked<'_>,
        tree: &Tree,
        shard: u32,
        moment: Moment,
    ) -> Result<(), StoreError> {
        tree.lose(shard);
        let key = self.shard_key(asked.member, donor(shard));
        let look = self.look(&key, moment).await?;
        let Some(image) = &look.image else {
            tree.lose(donor(shard));
            return Ok(());
        };
        tree.learn(&image.standing);
        if image.standing.count > i64::from(shard) {
            self.repair(&key, shard, moment).await?;
        }
        Ok(())
    }

    /// Reads all shards and takes from several of them, or refuses.
    async fn gather(
        &self,
        asked: &Asked<'_>,
        tree: &Tree,
        moment: Moment,
    ) -> Result<Taken, StoreError> {
        let debit = Debit::of(asked);
        let now = self.now(moment);
        if !tree.may_gather(now, self.shared.options.gather_pause_ms) {
            let refusal =
                self.recalled(asked, now).and_then(|looks| self.refused_by(&debit, &looks, now));
            return Ok(match refusal {
                Some(refusal) => {
                    count(&self.shared.caches.tally.local_refusals);
                    Taken::Refused(refusal)
                }
                None => {
                    count(&self.shared.caches.tally.contended);
                    Taken::Contended
                }
            });
        }
        let whose = self.whose(asked.member.entity.as_str(), asked.member.resource.as_str());
        let mut second_look = self.second_look(asked, now);
        let nonce = self.nonce();
        let (mut is_proven, mut looks) = (false, None);
        for _ in 0..GATHER_TURNS_MAX {
            let all = match looks.take() {
                Some(looks) => looks,
                None => {
                    self.shared.caches.tally.shards(ShardEvent::Gather);
                    is_proven = false;
                    match self.read_shards(&whose, moment).await? {
                        // Gone with all its shards: it is made anew.
                        Some(all) if all.is_empty() => {
                            let seen = Some(self.note(&asked.key, None, moment)?);
                            let key = asked.key.clone();
                            let anew = Asked { key, seen, standing: Standing::ALONE, ..*asked };
                            return Ok(self.take_from(&anew, moment).await?.0);
                        }
                        Some(all) => all,
                        None => break,
                    }
                }
            };
            match self.bring_shards_up_to_date(asked, &all, moment).await? {
                None => {}
                Some(Taken::Spared(_)) => continue,
                Some(answer) => return Ok(answer),
            }
            if let Some(refusal) = self.refused_by(&debit, &all, self.now(moment)) {
                if second_look == SecondLook::Needed {
                    second_look = SecondLook::Done;
                    self.wait_for_second_look(moment).await;
                    continue;
                }
                if let Some(root) = self.recall(&asked.key) {
                    root.refuse(asked.is_ancestor);
                }
                return Ok(Taken::Refused(refusal));
            }
            match self.take_together(asked, &all, (&nonce, is_proven), moment).await? {
                Together::Answer(taken) => return Ok(taken),
                Together::Proven => (is_proven, looks) = (true, Some(all)),
                // The proof was about the images before.
                Together::Lost => (is_proven, looks) = (false, self.seen_again(asked, all)),
                Together::GiveUp => break,
            }
        }
        count(&self.shared.caches.tally.contended);
        Ok(Taken::Contended)
    }

    /// All shards of a bucket, of one moment or as good as; `None` when splits and folds do not let
    /// that be seen. One read of all keys that a shard can have.
    pub(crate) async fn read_shards(
        &self,
        whose: &Whose,
        moment: Moment,
    ) -> Result<Option<Vec<Arc<Seen>>>, StoreError> {
        let keys: Vec<Key> = (0..SHARDS_MAX).map(|shard| whose.key(shard)).collect();
        let tree = self.shared.caches.tree(&keys[0].pk);
        for _ in 0..GATHER_READS_MAX {
            let items = self.shared.read_all("consume", &keys).await?;
            let mut looks = Vec::new();
            for ((key, item), shard) in keys.iter().zip(&items).zip(0..) {
                match item {
                    Some(item) => looks.push(self.note(key, Some(item), moment)?),
                    None => tree.lose(shard),
                }
            }
            let standings = || looks.iter().filter_map(|look| Some(&look.image.as_ref()?.standing));
            standings().for_each(|standing| tree.learn(standing));
            if looks.is_empty() {
                return Ok(Some(looks));
            }
            // Shards that their donor does not know of belong to nobody: a foreign writer made
            // them, or their donor was read before it split and has what they have.
            let mut found = Leaves::NONE;
            standings().for_each(|standing| found.learn(standing));
            let belonging = found.all();
            let belongs = |look: &Arc<Seen>| {
                let shard = look.image.as_ref().map(|image| image.standing.shard);
                belonging.iter().any(|(known, _)| shard == Some(*known))
            };
            looks.retain(belongs);
            let images: Vec<&Image> = looks.iter().filter_map(|look| look.image.as_ref()).collect();
            if are_all(&images) {
                return Ok(Some(looks));
            }
        }
        Ok(None)
    }

    /// Shards whose limits are not the caller's, or that are disabled, say so themselves: each gets
    /// a take that takes nothing. `Spared` when something has changed and the shards are to be read
    /// again.
    async fn bring_shards_up_to_date(
        &self,
        asked: &Asked<'_>,
        looks: &[Arc<Seen>],
        moment: Moment,
    ) -> Result<Option<Taken>, StoreError> {
        let mut answer = None;
        for look in looks {
            let Some(image) = &look.image else { continue };
            image.check_supported(&asked.key.pk)?;
            let is_ready = !image.flag.blocks()
                && image.mark.is_none()
                && image.carries(&asked.member.limits.limits);
            if is_ready {
                continue;
            }
            let leaf = Asked {
                is_spared: true,
                seen: Some(Arc::clone(look)),
                ..self.leaf(asked, image.standing.shard, Some(&image.standing))
            };
            match self.take_from(&leaf, moment).await?.0 {
                Taken::Spared(look) => answer = Some(Taken::Spared(look)),
                Taken::Gone => answer = Some(Taken::Spared(Arc::clone(look))),
                other => return Ok(Some(other)),
            }
        }
        Ok(answer)
    }

    /// Brings limits that were new to one shard to the others, so that they count for the whole
    /// bucket from now on: a charge on a shard that is cut later would be lost with what is cut. A
    /// take finds them there otherwise, shard by shard, so a failure here is nobody's.
    pub(crate) async fn bring_limits_to_shards(&self, asked: &Asked<'_>, moment: Moment) {
        let tree = self.shared.caches.tree(&asked.key.pk);
        // Callers with different limits would write all shards all the time.
        if !tree.may_gather(self.now(moment), self.shared.options.gather_pause_ms) {
            return;
        }
        let whose = self.whose(asked.member.entity.as_str(), asked.member.resource.as_str());
        let brought = async {
            if let Some(looks) = self.read_shards(&whose, moment).await? {
                self.bring_shards_up_to_date(asked, &looks, moment).await?;
            }
            Ok::<(), StoreError>(())
        };
        if let Err(error) = brought.await {
            tracing::debug!(%error, pk = asked.key.pk, "new limits did not reach all shards");
        }
    }

    /// The images of all shards, if every one of them is remembered from a moment ago.
    pub(crate) fn recalled(&self, asked: &Asked<'_>, now: TimeMs) -> Option<Vec<Arc<Seen>>> {
        let tree = self.shared.caches.tree(&asked.key.pk);
        let recent = |(shard, _): &(u32, u32)| {
            let look = self.shared.caches.image(tree.pk(*shard))?;
            let image = look.image.as_ref();
            let carries = image.is_some_and(|image| image.carries(&asked.member.limits.limits));
            (carries && self.is_recent(&look, now)).then_some(look)
        };
        let looks: Vec<Arc<Seen>> = tree.leaves().iter().map(recent).collect::<Option<_>>()?;
        let images: Vec<&Image> = looks.iter().filter_map(|look| look.image.as_ref()).collect();
        are_all(&images).then_some(looks)
    }

    /// The refusal of the whole bucket, if its shards do not have enough together.
    pub(crate) fn refused_by(
        &self,
        debit: &Debit<'_>,
        looks: &[Arc<Seen>],
        now: TimeMs,
    ) -> Option<Refusal> {
        let images: Vec<&Image> = looks.iter().filter_map(|look| look.image.as_ref()).collect();
        let whole = whole(&images, now)?;
        let asked = debit.asked();
        if !debit.is_refused_by(&whole, now) || alone(&images, &asked, now).is_some() {
            return None;
        }
        let at = looks.iter().map(|look| look.at).min().unwrap_or(now);
        let look = self.shared.caches.together(whole, at, self.shared.wall());
        Some(Refusal { look, at: now, waits: waits(&images, &asked, now) })
    }

    /// The shards as they are remembered by now; `None` if a split or a fold has changed which
    /// shards there are: a part of the bucket would be taken for all of it.
    fn seen_again(&self, asked: &Asked<'_>, looks: Vec<Arc<Seen>>) -> Option<Vec<Arc<Seen>>> {
        let again = |look: Arc<Seen>| {
            let shard = look.image.as_ref().map_or(0, |image| image.standing.shard);
            self.recall(&self.shard_key(asked.member, shard)).unwrap_or(look)
        };
        let looks: Vec<Arc<Seen>> = looks.into_iter().map(again).collect();
        let images: Vec<&Image> = looks.iter().filter_map(|look| look.image.as_ref()).collect();
        are_all(&images).then_some(looks)
    }

    /// Takes from several shards in one transaction.
    async fn take_together(
        &self,
        asked: &Asked<'_>,
        looks: &[Arc<Seen>],
        (nonce, is_proven): (&Nonce, bool),
        moment: Moment,
    ) -> Result<Together, StoreError> {
        let now = self.now(moment);
        let images: Vec<&Image> = looks.iter().filter_map(|look| look.image.as_ref()).collect();
        let debit = Debit::of(asked);
        let Some(legs) = legs(&images, &debit.asked(), now) else { return Ok(Together::GiveUp) };
        let (mut writes, mut held) = (Vec::new(), Held::new());
        for ((look, image), leg) in looks.iter().zip(&images).zip(legs) {
            if leg.is_empty() {
                continue;
            }
            let limits = &asked.member.limits.limits;
            let take = |(name, amount): &(_, Milli)| {
                let limit = limits.iter().position(|limit| limit.name() == *name)?;
                Some(Take { limit: u8::try_from(limit).ok()?, amount: *amount })
            };
            let takes: SmallVec<[Take; 2]> = leg.iter().filter_map(take).collect();
            let leaf = self.leaf(asked, image.standing.shard, Some(&image.standing));
            let debit = Debit {
                nonce: Some(nonce),
                grace_ms: self.shared.options.fast_grace_ms,
                cost: Cost { units_milli: 2 * WCU_PER_WRITE_MILLI * image.units, failed_milli: 0 },
                takes: &takes,
                ..Debit::of(&leaf)
            };
            let known = Known {
                image,
                is_trusted: true,
                may_sync: is_proven || knows_more(asked.member, look, image),
                is_crowded: false,
                is_outdated: false,
                judged_at: now,
            };
            match debit.plan(View::Known(known), now)? {
                Step::Take(mut write) => {
                    // One take, however many shards it takes from.
                    if !writes.is_empty() {
                        write.uncount();
                    }
                    writes.push(write);
                }
                Step::Reread => {
                    return Ok(match self.reread(asked.member).await? {
                        Verdict::Same => Together::Proven,
                        Verdict::Different => Together::Answer(Taken::Stale),
                        Verdict::Blocked(flag) => Together::Answer(Taken::Blocked(flag)),
                    });
                }
                _ => return Ok(Together::GiveUp),
            }
            held.push((image.standing.shard, takes));
        }
        if writes.is_empty() {
            // A take of nothing that no shard has room for: there is nothing to gather.
            return Ok(Together::GiveUp);
        }
        Ok(match self.send_all(writes, nonce, moment).await? {
            SentAll::Landed => {
                let look = self.after_gather(asked, &images, &held, now);
                Together::Answer(Taken::Granted(Granted { look, held, brings_limits: false }))
            }
            SentAll::Lost => Together::Lost,
            SentAll::Doubtful => Together::GiveUp,
            SentAll::Overdue => {
                self.take_back(asked.member, &held, moment).await;
                Together::GiveUp
            }
        })
    }

    /// The bucket after a take from several shards, as far as it can be told: the answer of a
    /// transaction has no images, so those of before are forgotten.
    fn after_gather(
        &self,
        asked: &Asked<'_>,
        images: &[&Image],
        held: &Held,
        now: TimeMs,
    ) -> Arc<Seen> {
        for (shard, _) in held {
            self.shared.caches.forget(&self.shard_key(asked.member, *shard).pk);
        }
        let mut image = whole(images, now).unwrap_or_default();
        for (limit, amount) in Debit::of(asked).wanted() {
            if let Some(found) = image.limits.iter_mut().find(|found| found.name == *limit.name()) {
                found.balance = found.balance.saturating_sub(amount);
            }
        }
        self.shared.caches.together(image, now, self.shared.wall())
    }
}

/// Whether a look shows one of several shards.
pub(crate) fn is_of_several(look: &Seen) -> bool {
    look.image.as_ref().is_some_and(|image| !image.standing.is_alone())
}
