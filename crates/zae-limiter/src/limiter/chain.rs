//! The chain of a request: the entity and its ancestors, each with its configuration, from the
//! cache or from the store.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use zae_limiter_core::{CHAIN_MAX, ConfigStamp, EntityId, ResourceName};
use zae_limiter_store::{Ancestor, MemberConfig, MemberKey, StoreError, StoreErrorKind};

use super::RateLimiter;
use super::cache::{CachedConfig, FreshConfig, Reading, ReadingAlong};

/// The members of a chain, the caller first.
pub(super) type Chain = SmallVec<[(EntityId, Arc<CachedConfig>); 2]>;

impl RateLimiter {
    /// The entity and its ancestors as far as takes cascade.
    pub(super) async fn chain(
        &self,
        entity: &EntityId,
        resource: &ResourceName,
    ) -> Result<Chain, StoreError> {
        let mut chain = Chain::new();
        let mut along = Vec::new();
        let mut next = Some(entity.clone());
        while let Some(entity) = next {
            if chain.len() == CHAIN_MAX {
                return Err(StoreError::new(
                    StoreErrorKind::Corrupt,
                    "resolve",
                    format!("the chain of {} has more than {CHAIN_MAX} members", chain[0].0),
                ));
            }
            let read_along = || {
                along.iter().find(|(read, _)| *read == entity).map(|(_, cached)| Arc::clone(cached))
            };
            let cached =
                match self.scope.cache.get(&entity, resource, self.clock()).or_else(read_along) {
                    Some(cached) => cached,
                    // Boxed, because its future is large: every acquire would carry and copy it.
                    None => Box::pin(self.read(&entity, resource, &mut along)).await?,
                };
            next = cached.config.cascades_to.clone();
            chain.push((entity, cached));
        }
        Ok(chain)
    }

    /// The chain as it is cached, and which of its members have just expired. `None` when a member
    /// is not cached, expired longer ago, or is being read by another caller.
    pub(super) fn cached_chain(
        &self,
        entity: &EntityId,
        resource: &ResourceName,
    ) -> Option<(Chain, Vec<EntityId>)> {
        let (mut chain, mut expired) = (Chain::new(), Vec::new());
        let mut next = Some(entity.clone());
        while let Some(entity) = next {
            if chain.len() == CHAIN_MAX {
                return None;
            }
            let (cached, is_expired) =
                self.scope.cache.get_or_borrow(&entity, resource, self.clock())?;
            if is_expired {
                expired.push(entity.clone());
            }
            next = cached.config.cascades_to.clone();
            chain.push((entity, cached));
        }
        Some((chain, expired))
    }

    /// Reads members again, all in one round trip. A failure changes nothing: the next caller that
    /// needs them reads first.
    pub(super) async fn refresh(self, members: Vec<EntityId>, resource: ResourceName) {
        let readings: Vec<Reading> =
            members.iter().map(|entity| self.scope.cache.begin(entity, self.clock())).collect();
        let keys: Vec<MemberKey<'_>> =
            members.iter().map(|entity| MemberKey { entity, resource: &resource }).collect();
        let reading_along = self.scope.cache.begin_along(self.clock());
        let resolution = match self.scope.store.resolve_within(&keys, self.scope.cache.ttl()).await
        {
            Ok(resolution) => resolution,
            Err(error) => {
                tracing::debug!(%error, "the configuration could not be read beside a take");
                return;
            }
        };
        self.scope.remember_policy(resolution.on_unavailable);
        let (stamp, age) = (resolution.stamp, resolution.age);
        for ((entity, reading), config) in members.into_iter().zip(readings).zip(resolution.members)
        {
            self.scope.cache.insert(
                (entity, resource.clone()),
                self.fresh(config, stamp, age),
                reading,
            );
        }
        self.keep_along(resolution.ancestors, &resource, reading_along);
    }

    /// Reads a member that is not cached. Ancestors that the store has read along are cached, and
    /// added to `along`.
    async fn read(
        &self,
        entity: &EntityId,
        resource: &ResourceName,
        along: &mut Vec<(EntityId, Arc<CachedConfig>)>,
    ) -> Result<Arc<CachedConfig>, StoreError> {
        let cache = &self.scope.cache;
        let read = move || async move {
            let reading_along = cache.begin_along(self.clock());
            let resolution = self
                .scope
                .store
                .resolve_within(&[MemberKey { entity, resource }], cache.ttl())
                .await?;
            self.scope.remember_policy(resolution.on_unavailable);
            let (stamp, age) = (resolution.stamp, resolution.age);
            let Some(config) = resolution.members.into_iter().next() else {
                return Err(StoreError::new(
                    StoreErrorKind::Internal,
                    "resolve",
                    "the store answered for no member",
                ));
            };
            along.extend(self.keep_along(resolution.ancestors, resource, reading_along));
            Ok(self.fresh(config, stamp, age))
        };
        cache.get_or_read(entity, resource, self.clock(), read).await
    }

    fn keep_along(
        &self,
        ancestors: Vec<Ancestor>,
        resource: &ResourceName,
        reading: ReadingAlong,
    ) -> Vec<(EntityId, Arc<CachedConfig>)> {
        let keep = |Ancestor { entity, config, stamp, age }| {
            let cached = self.scope.cache.insert_along(
                &entity,
                resource,
                self.fresh(config, stamp, age),
                reading,
            );
            (entity, cached)
        };
        ancestors.into_iter().map(keep).collect()
    }

    fn fresh(&self, config: MemberConfig, stamp: ConfigStamp, age: Duration) -> FreshConfig {
        let limits =
            config.limits.as_ref().map(|(limits, source)| self.in_force(limits, *source, stamp));
        FreshConfig { config, limits, stamp, age }
    }
}
