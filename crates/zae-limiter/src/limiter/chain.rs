//! From a request to a plan: the chain of entities, the limits of each, the buckets to take from.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use zae_limiter_core::{
    CHAIN_MAX, ConfigStamp, EntityId, IntoName, Limit, LimitName, LimitSource, Milli, ResourceName,
};
use zae_limiter_store::{
    Ancestor, Level, LimitsInForce, MemberConfig, MemberKey, OnUnavailable, StoreError,
    StoreErrorKind,
};

use super::RateLimiter;
use crate::cache::{Answer, Known, Reading, ReadingAlong};
use crate::error::{AcquireError, Disabled, Error, Invalid, NoLimits};
use crate::inflight::within;
use crate::metrics;
use crate::plan::{Plan, PlannedMember, Share};
use crate::request::Request;

/// The members of a chain, the caller first.
pub(super) type Chain = SmallVec<[(EntityId, Arc<Known>); 2]>;

/// Which limits apply, and where they come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// The caller first, then the ancestors its takes cascade to.
    pub members: Vec<ResolvedMember>,
    /// What happens in an outage: as stored, else as built, else block.
    pub on_unavailable: OnUnavailable,
}

/// One member of a resolved chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedMember {
    /// Who.
    pub entity: EntityId,
    /// The limits it is held to; empty when no level has any.
    pub limits: Vec<Limit>,
    /// The level that supplied them.
    pub source: Option<LimitSource>,
    /// The level that has switched it off.
    pub disabled_by: Option<Level>,
}

impl RateLimiter {
    /// Which limits apply to `entity` on `resource`, for each member of its chain, and which level
    /// supplied them.
    ///
    /// Cost: none when cached, else one read per member.
    pub async fn resolve(
        &self,
        entity: impl IntoName<EntityId>,
        resource: impl IntoName<ResourceName>,
    ) -> Result<Resolved, Error> {
        let entity = entity.into_name()?;
        let resource = resource.into_name()?;
        let deadline = self.shared.settings.admin_deadline;
        let chain = within(self.clock(), deadline, self.chain(&entity, &resource)).await;
        let chain = chain.ok_or(Error::Deadline { operation: "resolve", after: deadline })??;
        let member = |(entity, known): &(EntityId, Arc<Known>)| {
            let limits = self.limits_of(known);
            ResolvedMember {
                entity: entity.clone(),
                limits: limits.as_ref().map(|limits| limits.limits.to_vec()).unwrap_or_default(),
                source: limits.map(|limits| limits.source),
                disabled_by: known.config.disabled_by.clone(),
            }
        };
        Ok(Resolved {
            members: chain.iter().map(member).collect(),
            on_unavailable: self.policy(None),
        })
    }

    /// What to do in an outage: the call's word, else the stored one if it was ever read, else the
    /// limiter's, else block.
    pub(super) fn policy(&self, per_call: Option<OnUnavailable>) -> OnUnavailable {
        per_call
            .or_else(|| self.scope.stored_policy())
            .or(self.shared.settings.on_unavailable)
            .unwrap_or(OnUnavailable::Block)
    }

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
                along.iter().find(|(read, _)| *read == entity).map(|(_, known)| Arc::clone(known))
            };
            let known =
                match self.scope.cache.get(&entity, resource, self.clock()).or_else(read_along) {
                    Some(known) => known,
                    // Boxed, because its future is large: on the stack it would be carried, and
                    // copied, by every acquire.
                    None => Box::pin(self.read(&entity, resource, &mut along)).await?,
                };
            next = known.config.cascades_to.clone();
            chain.push((entity, known));
        }
        Ok(chain)
    }

    /// The chain as it is remembered, and which of its members have just expired. `None` when some
    /// are not remembered at all, expired longer ago, or somebody else is reading them.
    pub(super) fn remembered_chain(
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
            let (known, is_expired) =
                self.scope.cache.get_or_borrow(&entity, resource, self.clock())?;
            if is_expired {
                expired.push(entity.clone());
            }
            next = known.config.cascades_to.clone();
            chain.push((entity, known));
        }
        Some((chain, expired))
    }

    /// Reads members again, all in one round trip. A failure changes nothing: whoever needs them
    /// next reads first.
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
                self.answer_of(config, stamp, age),
                reading,
            );
        }
        self.keep_along(resolution.ancestors, &resource, reading_along);
    }

    fn in_force(
        &self,
        limits: &Arc<[Limit]>,
        source: LimitSource,
        stamp: ConfigStamp,
    ) -> LimitsInForce {
        LimitsInForce::resolved(
            Arc::clone(limits),
            source,
            stamp,
            self.shared.settings.bucket_ttl_multiplier,
        )
    }

    /// What is not cached. Ancestors that the store has read along are cached, and added to
    /// `along`.
    async fn read(
        &self,
        entity: &EntityId,
        resource: &ResourceName,
        along: &mut Vec<(EntityId, Arc<Known>)>,
    ) -> Result<Arc<Known>, StoreError> {
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
            Ok(self.answer_of(config, stamp, age))
        };
        cache.get_or_read(entity, resource, self.clock(), read).await
    }

    fn keep_along(
        &self,
        ancestors: Vec<Ancestor>,
        resource: &ResourceName,
        reading: ReadingAlong,
    ) -> Vec<(EntityId, Arc<Known>)> {
        let keep = |Ancestor { entity, config, stamp, age }| {
            let known = self.scope.cache.insert_along(
                &entity,
                resource,
                self.answer_of(config, stamp, age),
                reading,
            );
            (entity, known)
        };
        ancestors.into_iter().map(keep).collect()
    }

    fn answer_of(&self, config: MemberConfig, stamp: ConfigStamp, age: Duration) -> Answer {
        let limits =
            config.limits.as_ref().map(|(limits, source)| self.in_force(limits, *source, stamp));
        Answer { config, limits, stamp, age }
    }

    /// The stored limits of a member, else the limiter's own.
    fn limits_of(&self, known: &Known) -> Option<LimitsInForce> {
        known.limits.clone().or_else(|| {
            let limits = self.shared.settings.default_limits.as_ref()?;
            Some(self.unstored(limits, LimitSource::Builder, known))
        })
    }

    fn unstored(&self, limits: &Arc<[Limit]>, source: LimitSource, known: &Known) -> LimitsInForce {
        self.in_force(limits, source, known.stamp)
    }

    /// Which buckets `request` takes from.
    pub(super) fn plan(
        &self,
        request: &Request,
        resource: &ResourceName,
        chain: &Chain,
    ) -> Result<Arc<Plan>, AcquireError> {
        if let Some((entity, known)) =
            chain.iter().find(|(_, known)| known.config.disabled_by.is_some())
        {
            let level = known.config.disabled_by.clone();
            return Err(
                Disabled { entity: entity.clone(), resource: resource.clone(), level }.into()
            );
        }
        let mut members: SmallVec<[PlannedMember; 1]> = SmallVec::new();
        for (index, (entity, known)) in chain.iter().enumerate() {
            let call = if index == 0 { request.limits.as_ref() } else { None };
            let fallback = if index == 0 { request.fallback_limits.as_ref() } else { None };
            let limits = match call {
                Some(limits) => {
                    metrics::overrides();
                    Some(self.unstored(limits, LimitSource::Call, known))
                }
                None => self.limits_of(known).or_else(|| {
                    fallback.map(|limits| self.unstored(limits, LimitSource::Fallback, known))
                }),
            };
            // A member without limits goes with the others: the store looks whether it is switched
            // off.
            let (limits, (shares, absent)) = match limits {
                Some(limits) => {
                    let parts = shares(&request.amounts, &limits.limits);
                    (limits, parts)
                }
                None => (LimitsInForce::none(known.stamp), Default::default()),
            };
            members.push(PlannedMember { entity: entity.clone(), limits, shares, absent });
        }
        let plan = Plan { resource: resource.clone(), skip_zero: request.skip_zero, members };
        check_names(&plan, &request.amounts, &chain[0].0)?;
        Ok(Arc::new(plan))
    }
}

/// The declared limits that are among `limits`, and those that are not.
fn shares(
    declared: &[(LimitName, Milli)],
    limits: &[Limit],
) -> (SmallVec<[Share; 2]>, SmallVec<[LimitName; 1]>) {
    let (mut shares, mut absent) = (SmallVec::new(), SmallVec::new());
    for (declared, (name, _)) in (0u8..).zip(declared) {
        match (0u8..).zip(limits).find(|(_, limit)| limit.name() == name) {
            Some((limit, _)) => shares.push(Share { declared, limit }),
            None => absent.push(name.clone()),
        }
    }
    (shares, absent)
}

/// Every declared name must be known to somebody: a typo must not mean "unlimited".
fn check_names(
    plan: &Plan,
    declared: &[(LimitName, Milli)],
    entity: &EntityId,
) -> Result<(), AcquireError> {
    if plan.members.iter().all(|member| member.limits.limits.is_empty()) {
        return Err(NoLimits { entity: entity.clone(), resource: plan.resource.clone() }.into());
    }
    for (index, (limit, _)) in (0u8..).zip(declared) {
        if !plan
            .members
            .iter()
            .any(|member| member.shares.iter().any(|share| share.declared == index))
        {
            let mut known: Vec<LimitName> = plan
                .members
                .iter()
                .flat_map(|member| member.limits.limits.iter())
                .map(|limit| limit.name().clone())
                .collect();
            known.sort();
            known.dedup();
            let unknown = Invalid::UnknownLimit {
                limit: limit.clone(),
                entity: entity.clone(),
                resource: plan.resource.clone(),
                known,
            };
            return Err(unknown.into());
        }
    }
    Ok(())
}
