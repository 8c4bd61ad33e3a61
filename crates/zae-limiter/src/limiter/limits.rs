//! The limits in force of the members of a chain, and where they come from.

use std::sync::Arc;

use zae_limiter_core::{ConfigStamp, EntityId, Flag, IntoName, Limit, LimitSource, ResourceName};
use zae_limiter_store::{Level, LimitsInForce, OnUnavailable};

use super::RateLimiter;
use super::cache::CachedConfig;
use crate::deadline::timeout;
use crate::error::Error;

/// Which limits are in force, and where they come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// The caller first, then the ancestors its takes cascade to.
    pub members: Vec<ResolvedMember>,
    /// The policy for an outage: as stored, else as built, else block.
    pub on_unavailable: OnUnavailable,
}

/// One member of a resolved chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedMember {
    /// The member.
    pub entity: EntityId,
    /// The limits in force; empty when no level has any.
    pub limits: Vec<Limit>,
    /// The level that supplied them.
    pub source: Option<LimitSource>,
    /// The flag that blocks its takes, and the level that has this flag.
    pub blocked_by: Option<(Flag, Level)>,
}

impl RateLimiter {
    /// Which limits are in force for `entity` on `resource`, for each member of its chain, and
    /// which level supplied them.
    ///
    /// Cost: none when cached, else one read per member.
    pub async fn resolve(
        &self,
        entity: impl IntoName<EntityId>,
        resource: impl IntoName<ResourceName>,
    ) -> Result<Resolved, Error> {
        let entity = entity.into_name()?;
        let resource = resource.into_name()?;
        let deadline = self.scope.shared.settings.admin_deadline;
        let chain = timeout(self.clock(), deadline, self.chain(&entity, &resource)).await;
        let chain = chain.ok_or(Error::Deadline { operation: "resolve", after: deadline })??;
        let member = |(entity, cached): &(EntityId, Arc<CachedConfig>)| {
            let limits = self.limits_of(cached);
            ResolvedMember {
                entity: entity.clone(),
                limits: limits.as_ref().map(|limits| limits.limits.to_vec()).unwrap_or_default(),
                source: limits.map(|limits| limits.source),
                blocked_by: cached.config.blocked_by.clone(),
            }
        };
        Ok(Resolved {
            members: chain.iter().map(member).collect(),
            on_unavailable: self.policy(None),
        })
    }

    pub(super) fn in_force(
        &self,
        limits: &Arc<[Limit]>,
        source: LimitSource,
        stamp: ConfigStamp,
    ) -> LimitsInForce {
        LimitsInForce::resolved(
            Arc::clone(limits),
            source,
            stamp,
            self.scope.shared.settings.bucket_ttl_multiplier,
        )
    }

    /// The stored limits of a member, else the limiter's own.
    pub(super) fn limits_of(&self, cached: &CachedConfig) -> Option<LimitsInForce> {
        cached.limits.clone().or_else(|| {
            let limits = self.scope.shared.settings.default_limits.as_ref()?;
            Some(self.in_force(limits, LimitSource::Builder, cached.stamp))
        })
    }
}
