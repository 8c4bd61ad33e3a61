//! From a request to a plan: the chain of entities, the limits of each, the buckets to take from.

use std::sync::Arc;

use smallvec::SmallVec;
use zae_limiter_core::{CHAIN_MAX, EntityId, IntoName, Limit, LimitName, LimitSource, Milli, ResourceName};
use zae_limiter_store::{Level, LimitsInForce, MemberKey, OnUnavailable, StoreError, StoreErrorKind};

use super::RateLimiter;
use crate::cache::Known;
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
    /// Which limits apply to `entity` on `resource`, for each member of its chain, and which level supplied them.
    ///
    /// Cost: none when cached, else one read per member.
    pub async fn resolve(&self, entity: impl IntoName<EntityId>, resource: impl IntoName<ResourceName>) -> Result<Resolved, Error> {
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
        Ok(Resolved { members: chain.iter().map(member).collect(), on_unavailable: self.policy(None) })
    }

    /// What to do in an outage: the call's word, else the stored one if it was ever read, else the limiter's, else block.
    pub(super) fn policy(&self, per_call: Option<OnUnavailable>) -> OnUnavailable {
        per_call.or_else(|| self.scope.stored_policy()).or(self.shared.settings.on_unavailable).unwrap_or(OnUnavailable::Block)
    }

    /// The entity and its ancestors as far as takes cascade.
    pub(super) async fn chain(&self, entity: &EntityId, resource: &ResourceName) -> Result<Chain, StoreError> {
        let mut chain = Chain::new();
        let mut next = Some(entity.clone());
        while let Some(entity) = next {
            if chain.len() == CHAIN_MAX {
                return Err(StoreError::new(
                    StoreErrorKind::Corrupt,
                    "resolve",
                    format!("the chain of {} has more than {CHAIN_MAX} members", chain[0].0),
                ));
            }
            let known = match self.scope.cache.get(&entity, resource, self.clock()) {
                Some(known) => known,
                // Boxed, because its future is large: on the stack it would be carried, and copied, by every acquire.
                None => Box::pin(self.read(&entity, resource)).await?,
            };
            next = known.config.cascades_to.clone();
            chain.push((entity, known));
        }
        Ok(chain)
    }

    /// The chain as it is remembered, and which of its members are remembered for too long. `None` when some are not
    /// remembered at all, or somebody else is reading them.
    pub(super) fn remembered_chain(&self, entity: &EntityId, resource: &ResourceName) -> Option<(Chain, Vec<EntityId>)> {
        let (mut chain, mut expired) = (Chain::new(), Vec::new());
        let mut next = Some(entity.clone());
        while let Some(entity) = next {
            if chain.len() == CHAIN_MAX {
                return None;
            }
            let (known, is_expired) = self.scope.cache.get_or_borrow(&entity, resource, self.clock())?;
            if is_expired {
                expired.push(entity.clone());
            }
            next = known.config.cascades_to.clone();
            chain.push((entity, known));
        }
        Some((chain, expired))
    }

    /// Reads members again, all in one round trip. A failure changes nothing: whoever needs them next reads first.
    pub(super) async fn refresh(self, members: Vec<EntityId>, resource: ResourceName) {
        let epochs: Vec<(u64, u64)> = members.iter().map(|entity| self.scope.cache.epochs_of(entity)).collect();
        let keys: Vec<MemberKey<'_>> = members.iter().map(|entity| MemberKey { entity, resource: &resource }).collect();
        let resolution = match self.scope.store.resolve(&keys).await {
            Ok(resolution) => resolution,
            Err(error) => {
                tracing::debug!(%error, "the configuration could not be read beside a take");
                return;
            }
        };
        self.scope.remember_policy(resolution.on_unavailable);
        let stamp = resolution.stamp;
        for ((entity, epochs), config) in members.into_iter().zip(epochs).zip(resolution.members) {
            let limits = config.limits.as_ref().map(|(limits, source)| self.in_force(limits, *source, stamp));
            self.scope.cache.insert((entity, resource.clone()), (config, limits, stamp), epochs, self.clock());
        }
    }

    fn in_force(&self, limits: &Arc<[Limit]>, source: LimitSource, stamp: zae_limiter_core::ConfigStamp) -> LimitsInForce {
        LimitsInForce::resolved(Arc::clone(limits), source, stamp, self.shared.settings.bucket_ttl_multiplier)
    }

    /// What is not cached.
    async fn read(&self, entity: &EntityId, resource: &ResourceName) -> Result<Arc<Known>, StoreError> {
        self.scope
            .cache
            .get_or_read(entity, resource, self.clock(), || async {
                let resolution = self.scope.store.resolve(&[MemberKey { entity, resource }]).await?;
                self.scope.remember_policy(resolution.on_unavailable);
                let stamp = resolution.stamp;
                let Some(config) = resolution.members.into_iter().next() else {
                    return Err(StoreError::new(StoreErrorKind::Internal, "resolve", "the store answered for no member"));
                };
                let limits = config.limits.as_ref().map(|(limits, source)| self.in_force(limits, *source, stamp));
                Ok((config, limits, stamp))
            })
            .await
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
    pub(super) fn plan(&self, request: &Request, resource: &ResourceName, chain: &Chain) -> Result<Arc<Plan>, AcquireError> {
        if let Some((entity, known)) = chain.iter().find(|(_, known)| known.config.disabled_by.is_some()) {
            let level = known.config.disabled_by.clone();
            return Err(Disabled { entity: entity.clone(), resource: resource.clone(), level }.into());
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
                None => self.limits_of(known).or_else(|| fallback.map(|limits| self.unstored(limits, LimitSource::Fallback, known))),
            };
            let Some(limits) = limits else { continue };
            let (shares, absent) = shares(&request.amounts, &limits.limits);
            members.push(PlannedMember { entity: entity.clone(), limits, shares, absent });
        }
        let plan = Plan { resource: resource.clone(), skip_zero: request.skip_zero, members };
        check_names(&plan, &request.amounts, &chain[0].0)?;
        Ok(Arc::new(plan))
    }
}

/// The declared limits that are among `limits`, and those that are not.
fn shares(declared: &[(LimitName, Milli)], limits: &[Limit]) -> (SmallVec<[Share; 2]>, SmallVec<[LimitName; 1]>) {
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
fn check_names(plan: &Plan, declared: &[(LimitName, Milli)], entity: &EntityId) -> Result<(), AcquireError> {
    if plan.members.is_empty() {
        return Err(NoLimits { entity: entity.clone(), resource: plan.resource.clone() }.into());
    }
    for (index, (limit, _)) in (0u8..).zip(declared) {
        if !plan.members.iter().any(|member| member.shares.iter().any(|share| share.declared == index)) {
            let mut known: Vec<LimitName> =
                plan.members.iter().flat_map(|member| member.limits.limits.iter()).map(|limit| limit.name().clone()).collect();
            known.sort();
            known.dedup();
            let unknown = Invalid::UnknownLimit { limit: limit.clone(), entity: entity.clone(), resource: plan.resource.clone(), known };
            return Err(unknown.into());
        }
    }
    Ok(())
}
