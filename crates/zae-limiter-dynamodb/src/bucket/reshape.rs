//! Splitting a shard in two, making one that is missing, folding all of them, removing one that
//! belongs to nobody: each is one transaction that either moves its tokens or changes nothing
//! (rules S3 to S6). A transaction may be sent again as it is: every leg adds to what is stored, or
//! puts an amount that the transaction itself fixes, so none depends on when it lands.

use std::sync::Arc;

use zae_limiter_store::StoreError;

use crate::DynamoStore;
use crate::bucket::cache::{Seen, ShardEvent};
use crate::bucket::image::Image;
use crate::bucket::moves::{self, Parting, Whose};
use crate::bucket::operation::Moment;
use crate::bucket::shard::children;
use crate::bucket::write::BucketWrite;
use crate::constants::{READER_OF_SHARDS, SEND_ATTEMPTS_MAX, SHARDS_MAX};
use crate::table::error::failed;
use crate::table::{Cancellation, Key, TableError, Write};

/// What became of a transaction that moves tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Moved {
    /// It was made.
    Done,
    /// Nothing was moved: the shards are not as they were seen, or are too busy.
    Not,
    /// The shard to be made is there already.
    Taken,
    /// Nothing was moved: the role lacks a permission. A take goes on without it, because a role
    /// that may take need not be allowed to remove what others left.
    Denied(String),
}

/// What tokens are moved for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Aim {
    /// A shard is split: the donor, then the child that must not be there.
    Split,
    /// A shard that is missing is made: the donor, then the child that must not be there.
    Repair,
    /// A shard that belongs to nobody is removed: the donor, if there is one, then the shard.
    Prune,
    /// All shards become one: shard 0, then the others.
    Fold,
}

impl Aim {
    /// What it means that the leg in this place is not as it was seen.
    fn stands(self, place: usize) -> Moved {
        match (self, place) {
            (Aim::Split | Aim::Repair, 1) => Moved::Taken,
            (Aim::Split | Aim::Repair | Aim::Prune | Aim::Fold, _) => Moved::Not,
        }
    }

    /// What did not come about.
    fn missed(self) -> &'static str {
        match self {
            Aim::Split => "a hot bucket was not split",
            Aim::Repair => "a shard that is missing was not made",
            Aim::Prune => "a shard that belongs to no bucket was not removed",
            Aim::Fold => "the shards of a quiet bucket were not folded",
        }
    }
}

impl DynamoStore {
    /// Splits a shard, as it is now.
    pub(crate) async fn split(&self, key: &Key, moment: Moment) -> Result<Moved, StoreError> {
        let moved = self.split_or_repair(key, None, moment).await?;
        if moved == Moved::Done {
            self.shared.caches.tally.shards(ShardEvent::Split);
        }
        Ok(moved)
    }

    /// Makes a shard that should be there and is not, with what its donor has beyond its share.
    pub(crate) async fn repair(
        &self,
        donor: &Key,
        missing: u32,
        moment: Moment,
    ) -> Result<Moved, StoreError> {
        let moved = self.split_or_repair(donor, Some(missing), moment).await?;
        if moved == Moved::Done {
            self.shared.caches.tally.shards(ShardEvent::Repair);
        }
        Ok(moved)
    }

    /// Splits a shard, or makes the one that is missing beside it.
    async fn split_or_repair(
        &self,
        key: &Key,
        missing: Option<u32>,
        moment: Moment,
    ) -> Result<Moved, StoreError> {
        let Some(whose) = Whose::of(&self.id, key) else { return Ok(Moved::Not) };
        // Whoever cannot read shards must not open the table from here on.
        if !self.shared.require_reader(READER_OF_SHARDS).await {
            return Ok(Moved::Not);
        }
        let attempt = || async {
            let [item] = self.shared.read("consume", std::array::from_ref(key)).await?;
            let look = self.note(key, item.as_ref(), moment)?;
            let (Some(item), Some(image)) = (&item, &look.image) else { return Ok(Moved::Not) };
            let divided_from_milli =
                self.shared.options.share_min_milli.saturating_mul(i64::from(SHARDS_MAX));
            let parting =
                Parting { whose: &whose, item, image, divided_from_milli, now: self.now(moment) };
            let shards_max = i64::from(self.shared.options.shards_max);
            let plan = match missing {
                Some(missing) => parting.repair(missing),
                // A fleet that is being upgraded splits nothing.
                None if image.standing.count.saturating_mul(2) > shards_max => None,
                None => parting.split(),
            };
            let Some([donor, child]) = plan else { return Ok(Moved::Not) };
            let other = child.key.clone();
            let aim = if missing.is_some() { Aim::Repair } else { Aim::Split };
            let moved = self.move_tokens(aim, vec![donor, child]).await?;
            match &moved {
                Moved::Taken => return self.prune(&other, image, moment).await,
                // Both are about to be used.
                Moved::Done => {
                    let keys = [key.clone(), other];
                    let items = self.shared.read("consume", &keys).await?;
                    for (key, item) in keys.iter().zip(&items) {
                        self.note(key, item.as_ref(), moment)?;
                    }
                }
                Moved::Not | Moved::Denied(_) => self.shared.caches.forget(&key.pk),
            }
            Ok(moved)
        };
        // A second attempt, if something lay where the child belongs.
        let first = attempt().await?;
        if first == Moved::Taken { attempt().await } else { Ok(first) }
    }

    /// A shard lies where a child belongs. A foreign writer has left it; it goes, as it was seen,
    /// unless the donor knows of it by now. [`Moved::Taken`] when it is gone.
    async fn prune(&self, key: &Key, donor: &Image, moment: Moment) -> Result<Moved, StoreError> {
        let look = self.look(key, moment).await?;
        let Some(image) = &look.image else { return Ok(Moved::Taken) };
        if children(donor.standing.shard, donor.standing.count)
            .any(|child| child == image.standing.shard)
        {
            return Ok(Moved::Not);
        }
        // The donor must still not know of it: another process may have removed it and split since.
        let donor = moves::unsplit(Whose::of(&self.id, key), &donor.standing);
        let prune = Write::Bucket(Box::new(moves::prune(key.clone(), image)));
        let pruned = self.move_all(Aim::Prune, donor.into_iter().chain([prune]).collect()).await?;
        self.shared.caches.forget(&key.pk);
        if pruned != Moved::Done {
            return Ok(pruned);
        }
        self.shared.caches.tally.shards(ShardEvent::Orphan);
        tracing::warn!(pk = key.pk, "a shard that belonged to no bucket was removed");
        Ok(Moved::Taken)
    }

    /// Folds all shards of a bucket, as they were just read, into one item, if nobody has written
    /// them since.
    pub(crate) async fn fold(
        &self,
        whose: &Whose,
        looks: &[Arc<Seen>],
        moment: Moment,
    ) -> Result<Moved, StoreError> {
        let images: Vec<&Image> = looks.iter().filter_map(|look| look.image.as_ref()).collect();
        let Some(writes) = moves::fold(whose, &images, self.now(moment)) else {
            return Ok(Moved::Not);
        };
        let keys: Vec<Key> = writes.iter().map(|write| write.key.clone()).collect();
        let moved = self.move_tokens(Aim::Fold, writes).await?;
        keys.iter().for_each(|key| self.shared.caches.forget(&key.pk));
        if moved == Moved::Done {
            self.shared.caches.tally.shards(ShardEvent::Fold);
        }
        Ok(moved)
    }

    /// Sends a transaction that moves tokens. The token stays the same over all attempts, so an
    /// attempt that landed unheard counts once.
    async fn move_tokens(&self, aim: Aim, writes: Vec<BucketWrite>) -> Result<Moved, StoreError> {
        let writes = writes.into_iter().map(|write| Write::Bucket(Box::new(write)));
        self.move_all(aim, writes.collect()).await
    }

    async fn move_all(&self, aim: Aim, writes: Vec<Write>) -> Result<Moved, StoreError> {
        let token = self.shared.token();
        for attempt in 1..=SEND_ATTEMPTS_MAX {
            match self.table().transact(&writes, &token).await {
                Ok(()) => return Ok(Moved::Done),
                Err(TableError::Canceled(reasons)) => {
                    let has_failed =
                        |reason: &Cancellation| matches!(reason, Cancellation::Condition(_));
                    if let Some(place) = reasons.iter().position(has_failed) {
                        return Ok(aim.stands(place));
                    }
                    if let Some(Cancellation::Rejected(why)) =
                        reasons.iter().find(|reason| matches!(reason, Cancellation::Rejected(_)))
                    {
                        return Err(failed("consume", TableError::Rejected(why.clone())));
                    }
                }
                Err(
                    TableError::NotApplied(_) | TableError::Unreachable(_) | TableError::Unknown(_),
                ) => {}
                Err(TableError::Denied(why)) => {
                    tracing::warn!(why, "{}", aim.missed());
                    return Ok(Moved::Denied(why));
                }
                Err(error) => return Err(failed("consume", error)),
            }
            self.shared.back_off(attempt).await;
        }
        Ok(Moved::Not)
    }

    /// Splits a bucket that was just made until it has as many shards as the options say. For tests
    /// of everything else on buckets with several shards.
    pub(crate) async fn split_at_birth(&self, key: &Key, moment: Moment) -> Result<(), StoreError> {
        let (Some(whose), wanted) =
            (Whose::of(&self.id, key), i64::from(self.shared.options.born_split))
        else {
            return Ok(());
        };
        let mut shards: Vec<(u32, i64)> = vec![(0, 1)];
        while let Some(place) = shards.iter().position(|(_, count)| *count < wanted) {
            let (shard, count) = shards[place];
            if self.split(&whose.key(shard), moment).await? != Moved::Done {
                break;
            }
            shards[place] = (shard, 2 * count);
            shards.push((shard + u32::try_from(count).unwrap_or(0), 2 * count));
        }
        Ok(())
    }

    /// Splits the shard with this key, whatever its pressure is. True when it was split.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub async fn split_now(
        &self,
        pk: &str,
        now: zae_limiter_core::TimeMs,
    ) -> Result<bool, StoreError> {
        let key = Key { pk: pk.to_owned(), sk: crate::records::keys::STATE.into() };
        let moment = self.moment(now);
        self.shared.ask_the_time().await?;
        Ok(self.split(&key, moment).await? == Moved::Done)
    }

    /// Folds the bucket that the shard with this key belongs to, however busy it is. True when it
    /// was folded.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub async fn fold_now(
        &self,
        pk: &str,
        now: zae_limiter_core::TimeMs,
    ) -> Result<bool, StoreError> {
        let key = Key { pk: pk.to_owned(), sk: crate::records::keys::STATE.into() };
        let Some(whose) = Whose::of(&self.id, &key) else { return Ok(false) };
        let moment = self.moment(now);
        self.shared.ask_the_time().await?;
        let Some(looks) = self.read_shards(&whose, moment).await? else { return Ok(false) };
        Ok(self.fold(&whose, &looks, moment).await? == Moved::Done)
    }

    /// The bucket that a key belongs to.
    pub(crate) fn whose(&self, entity: &str, resource: &str) -> Whose {
        Whose {
            namespace: Arc::clone(&self.id),
            entity: entity.to_owned(),
            resource: resource.to_owned(),
        }
    }
}
