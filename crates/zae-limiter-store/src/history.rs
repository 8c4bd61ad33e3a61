//! The audit log and the usage history. Both are written by the operations they record, never from
//! here.

use zae_limiter_core::{
    AuditEvent, AuditSubject, EntityId, ResourceName, TimeMs, UsageSnapshot, UsageSummary,
    UsageWindow,
};

use crate::{Page, PageRequest, StoreFuture};

/// How long usage and audit events are kept by default: 90 days.
pub const RETENTION_MS: i64 = 90 * 24 * 3_600_000;

/// Which audit events, newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditQuery {
    /// Whose.
    pub subject: AuditSubject,
    /// Which page.
    pub page: PageRequest,
}

/// Which usage snapshots, oldest first, then by entity and resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageQuery {
    /// Only this entity. Without an entity and a resource the query is about the whole namespace.
    pub entity: Option<EntityId>,
    /// Only this resource.
    pub resource: Option<ResourceName>,
    /// Hours, days or months.
    pub window: UsageWindow,
    /// Windows that start at or after this instant.
    pub from: Option<TimeMs>,
    /// Windows that start before this instant.
    pub until: Option<TimeMs>,
    /// Which page.
    pub page: PageRequest,
}

/// Queries of the history.
pub trait HistoryStore: Send + Sync {
    /// Audit events of one subject, newest first.
    fn audit_events<'a>(&'a self, query: &'a AuditQuery) -> StoreFuture<'a, Page<AuditEvent>>;

    /// Audit events of every subject of the namespace, newest first.
    fn audit_log<'a>(&'a self, page: &'a PageRequest) -> StoreFuture<'a, Page<AuditEvent>>;

    /// Usage snapshots, the open hour included where usage is immediate.
    fn usage<'a>(&'a self, query: &'a UsageQuery) -> StoreFuture<'a, Page<UsageSnapshot>>;

    /// The sums over everything a query matches, on all its pages. `None` when the backend has no
    /// cheaper way than all pages one after the other.
    fn usage_summary<'a>(&'a self, query: &'a UsageQuery) -> StoreFuture<'a, Option<UsageSummary>> {
        let _ = query;
        Box::pin(async { Ok(None) })
    }
}
