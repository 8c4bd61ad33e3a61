//! Bringing the changed limits of an entity to the buckets it has. Our next take would find them;
//! the Python package takes by the parameters of the bucket and would not, so both products write
//! them to the buckets.

use std::sync::Arc;

use futures_util::future::{Either, join_all, select};
use zae_limiter_core::{BUCKET_TTL_MULTIPLIER, EntityId, Milli, ResourceName, Take};
use zae_limiter_store::{Level, LimitsInForce, MemberKey, MemberTake, StoreError};

use super::Trust;
use super::flags::{PARALLEL_MAX, covered_by};
use crate::DynamoStore;
use crate::bucket::operation::Moment;
use crate::bucket::take::{Asked, Taken};
use crate::constants::SPREAD_MAX;
use crate::records::item::key_of;
use crate::records::keys;

impl DynamoStore {
    /// A failure only warns: the limits are stored, and bind every take of ours.
    pub(super) async fn spread_limits(&self, level: &Level, moment: Moment) {
        if level.entity_id().is_none() {
            // As in the Python package: a change for all entities must not write the buckets of all
            // entities.
            return;
        }
        let reaching = Box::pin(self.spread_to_buckets(level, moment));
        let patience = Box::pin(async { self.shared.options.clock.sleep(SPREAD_MAX).await });
        match select(reaching, patience).await {
            Either::Left((Ok(()), _)) => {}
            Either::Left((Err(error), _)) => {
                tracing::warn!(%error, %level, "the limits are stored, but buckets may keep the old ones until our next take");
            }
            Either::Right(_) => {
                tracing::warn!(%level, "the limits are stored; not all buckets were reached in time, our next takes do")
            }
        }
    }

    async fn spread_to_buckets(&self, level: &Level, moment: Moment) -> Result<(), StoreError> {
        const OPERATION: &str = "set_limits";
        let mut walk = self.shared.walk(OPERATION, covered_by(self, level).after(None));
        while let Some(items) = walk.next().await? {
            // Names that only others accept are theirs to keep.
            let named = |(entity, resource, shard): (&str, &str, u32)| {
                let (entity, resource): (EntityId, ResourceName) =
                    (entity.parse().ok()?, resource.parse().ok()?);
                Some((entity, resource, shard))
            };
            let keys = items.iter().filter_map(key_of);
            let buckets: Vec<_> = keys
                .filter_map(|key| keys::parse_bucket(&self.id, &key.pk).and_then(named))
                .collect();
            for chunk in buckets.chunks(PARALLEL_MAX) {
                let told = join_all(chunk.iter().map(|(entity, resource, shard)| {
                    self.spread_to(entity, resource, *shard, moment)
                }))
                .await;
                for ((entity, resource, _), told) in chunk.iter().zip(told) {
                    // One bucket that cannot be read is no reason to leave the others behind.
                    if let Err(error) = told {
                        tracing::warn!(%error, %entity, %resource, "the limits are stored, but this bucket keeps the old ones until our next take");
                    }
                }
            }
        }
        Ok(())
    }

    /// A take of nothing: every take brings the limits along, by the rules that keep an older
    /// reader from undoing a newer one.
    async fn spread_to(
        &self,
        entity: &EntityId,
        resource: &ResourceName,
        shard: u32,
        moment: Moment,
    ) -> Result<(), StoreError> {
        let bucket = keys::bucket(&self.id, entity, resource, shard);
        let attempt = || async {
            let look = self.look(&bucket, moment).await?;
            let key = MemberKey { entity, resource };
            let found = self.members(&[key], Trust::NOTHING, "set_limits").await?;
            let stamp = found.stamp;
            let limits = found.members.into_iter().next().and_then(|member| member.config.limits);
            let (Some(image), Some((limits, source))) = (&look.image, limits) else {
                return Ok(Some(()));
            };
            let limits = LimitsInForce::resolved(limits, source, stamp, BUCKET_TTL_MULTIPLIER);
            let is_up_to_date = image.is_in_force(&limits.limits) && image.expires_as(&limits);
            if image.flag.blocks() || is_up_to_date {
                return Ok(Some(()));
            }
            let takes: Vec<Take> = (0..)
                .zip(limits.limits.iter())
                .map(|(limit, _)| Take { limit, amount: Milli::ZERO })
                .collect();
            let member =
                MemberTake { entity, resource, limits: &limits, takes: &takes, absent: &[] };
            let asked = Asked {
                key: bucket.clone(),
                seen: Some(Arc::clone(&look)),
                standing: image.standing.clone(),
                ..self.asked(&member)
            };
            let (taken, _) = self.take_from(&asked, moment).await?;
            // Changed again, or others were faster.
            Ok((!matches!(taken, Taken::Stale | Taken::Contended)).then_some(()))
        };
        self.shared.until_made("set_limits", attempt).await
    }
}
