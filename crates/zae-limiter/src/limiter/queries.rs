//! Queries: buckets, capacity, usage, audit, health.

use tracing::Instrument;
use zae_limiter_core::{
    AuditEvent, EntityId, IntoName, LimitName, ResourceName, UsageSnapshot, UsageSummary, UsageSums,
};
use zae_limiter_store::{
    AuditQuery, BucketView, Page, PageRequest, StoreError, StoreErrorKind, Swept, UsageQuery,
};

use super::RateLimiter;
use super::admin::admin_span;
use crate::deadline::timeout;
use crate::error::Error;

/// Pages a query that has to see everything may read: a hundred million windows or buckets.
const PAGES_MAX: usize = 100_000;

/// The capacity and the rest of a limit over all entities of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceCapacity {
    /// The resource.
    pub resource: ResourceName,
    /// The limit.
    pub limit: LimitName,
    /// Sum of the capacities, in tokens.
    pub capacity: u64,
    /// Sum of the tokens left; debts count negative.
    pub available: i64,
    /// Each entity with a bucket.
    pub entities: Vec<EntityCapacity>,
}

/// One entity's part of a [`ResourceCapacity`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntityCapacity {
    /// The entity.
    pub entity: EntityId,
    /// Capacity in tokens.
    pub capacity: u64,
    /// Tokens left.
    pub available: i64,
}

impl ResourceCapacity {
    /// Used share of the capacity in percent; above 100 with debts.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a percentage for people")]
    pub fn utilization_pct(&self) -> f64 {
        if self.capacity == 0 {
            0.0
        } else {
            (self.capacity as f64 - self.available as f64) / self.capacity as f64 * 100.0
        }
    }
}

impl RateLimiter {
    /// The buckets of an entity, refilled to now, by resource.
    pub async fn buckets(
        &self,
        entity: impl IntoName<EntityId>,
        page: &PageRequest,
    ) -> Result<Page<BucketView>, Error> {
        let entity = entity.into_name()?;
        let mut page = self.admin("buckets", self.store().buckets(&entity, page)).await?;
        let now = self.clock().now();
        page.items.iter_mut().for_each(|bucket| bucket.state.refill(now));
        Ok(page)
    }

    /// The capacity and the rest of `limit` over all entities that have a bucket for `resource`, or
    /// over those of them that have no parent.
    ///
    /// Cost: reads every bucket of the resource.
    pub async fn resource_capacity(
        &self,
        resource: impl IntoName<ResourceName>,
        limit: impl IntoName<LimitName>,
        scope: CapacityScope,
    ) -> Result<ResourceCapacity, Error> {
        let resource = resource.into_name()?;
        let limit = limit.into_name()?;
        let mut total = ResourceCapacity {
            resource: resource.clone(),
            limit: limit.clone(),
            capacity: 0,
            available: 0,
            entities: Vec::new(),
        };
        let mut request = PageRequest::first(zae_limiter_store::PAGE_LIMIT_MAX);
        for _ in 0..PAGES_MAX {
            let page = self
                .admin("resource_capacity", self.store().resource_buckets(&resource, &request))
                .await?;
            for mut bucket in page.items {
                if scope == CapacityScope::ParentsOnly && self.has_parent(&bucket.entity).await? {
                    continue;
                }
                bucket.state.refill(self.clock().now());
                if let Some(state) = bucket.state.limits().iter().find(|state| state.name == limit)
                {
                    let capacity =
                        u64::try_from(state.params.capacity_milli.div_euclid(1000)).unwrap_or(0);
                    let available = state.balance.floor_tokens();
                    total.capacity = total.capacity.saturating_add(capacity);
                    total.available = total.available.saturating_add(available);
                    total.entities.push(EntityCapacity {
                        entity: bucket.entity,
                        capacity,
                        available,
                    });
                }
            }
            match page.next {
                Some(cursor) => {
                    request = PageRequest::after(zae_limiter_store::PAGE_LIMIT_MAX, cursor)
                }
                None => return Ok(total),
            }
        }
        Err(too_many("resource_capacity", "buckets; look at them page by page"))
    }

    async fn has_parent(&self, entity: &EntityId) -> Result<bool, Error> {
        let entity = self.admin("entity", self.store().entity(entity)).await?;
        Ok(entity.is_some_and(|entity| entity.is_child()))
    }

    /// Audit events of one subject, newest first.
    pub async fn audit_events(&self, query: &AuditQuery) -> Result<Page<AuditEvent>, Error> {
        self.admin("audit_events", self.store().audit_events(query)).await
    }

    /// Audit events of the whole namespace, newest first.
    ///
    /// Cost on DynamoDB: the keys of every event that is kept, for each page; a log too long for
    /// that is refused.
    pub async fn audit_log(&self, page: &PageRequest) -> Result<Page<AuditEvent>, Error> {
        self.admin("audit_log", self.store().audit_log(page)).await
    }

    /// Usage per window, oldest first: of an entity, of a resource, of an entity on a resource, or
    /// of the whole namespace.
    pub async fn usage(&self, query: &UsageQuery) -> Result<Page<UsageSnapshot>, Error> {
        self.admin("usage", self.store().usage(query)).await
    }

    /// Totals and averages over every window that the query matches, on all pages.
    pub async fn usage_summary(&self, query: &UsageQuery) -> Result<UsageSummary, Error> {
        if let Some(summary) =
            self.admin("usage_summary", self.store().usage_summary(query)).await?
        {
            return Ok(summary);
        }
        let mut query = UsageQuery {
            page: PageRequest::first(zae_limiter_store::PAGE_LIMIT_MAX),
            ..query.clone()
        };
        let mut sums = UsageSums::default();
        for _ in 0..PAGES_MAX {
            let page = self.usage(&query).await?;
            page.items.iter().for_each(|snapshot| sums.add(snapshot));
            match page.next {
                Some(cursor) => {
                    query.page = PageRequest::after(zae_limiter_store::PAGE_LIMIT_MAX, cursor)
                }
                None => return Ok(sums.summary()),
            }
        }
        Err(too_many("usage_summary", "windows; ask for a shorter time"))
    }

    /// True when the store answers within the acquire deadline. Never fails.
    pub async fn is_available(&self) -> bool {
        timeout(self.clock(), self.scope.shared.settings.deadline, self.store().ping())
            .await
            .is_some_and(|answer| answer.is_ok())
    }

    /// Deletes full and idle buckets and old history, in at most `steps_max` bounded steps. The
    /// store also sweeps by itself.
    ///
    /// A sweep acts only on a time that earlier sweeps confirm, because a wrong clock would forgive
    /// debts and delete history. A sweep that comes more than two minutes after the one before
    /// holds back until another sweep confirms its time, an hour to eight days later.
    pub async fn sweep(&self, steps_max: u32) -> Result<Swept, Error> {
        let (store, now) = (self.store(), self.clock().now());
        let sweep = async {
            match store.sweep_horizon(now).await? {
                Some(horizon) => {
                    Ok(Swept { held_back: horizon < now, ..store.sweep(horizon, steps_max).await? })
                }
                None => Ok(Swept { complete: true, held_back: true, ..Swept::default() }),
            }
        };
        sweep.instrument(admin_span("sweep")).await
    }
}

/// The error of a query that would have to read too much: a sum over a part would be wrong, and the
/// caller could not tell.
fn too_many(operation: &'static str, what: &str) -> Error {
    let most = PAGES_MAX
        .saturating_mul(usize::try_from(zae_limiter_store::PAGE_LIMIT_MAX).unwrap_or(usize::MAX));
    StoreError::new(
        StoreErrorKind::Capacity,
        operation,
        format!("there are more than {most} {what}"),
    )
    .into()
}

/// The buckets that a [`ResourceCapacity`] sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CapacityScope {
    /// The buckets of every entity.
    #[default]
    All,
    /// The buckets of entities without a parent: with cascades a parent already counts the takes of
    /// its children.
    ParentsOnly,
}
