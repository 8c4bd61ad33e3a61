//! Queries of the audit log and of usage.

use zae_limiter_core::{
    AuditEvent, AuditSubject, EntityId, EventId, LimitName, Milli, ResourceName, TimeMs,
    UsageSnapshot, UsageSummary, UsageSums,
};

use super::page::paged;
use super::table::{Entry, Shard, UsageKey};
use super::{MemoryStore, lazily};
use crate::{
    AuditQuery, Cursor, HistoryStore, Page, PageRequest, StoreError, StoreFuture, UsageQuery,
    UsageWindows,
};

impl HistoryStore for MemoryStore {
    fn audit_events<'a>(&'a self, query: &'a AuditQuery) -> StoreFuture<'a, Page<AuditEvent>> {
        lazily(move || self.audit_now(&query.page, Some(&query.subject)))
    }

    fn audit_log<'a>(&'a self, page: &'a PageRequest) -> StoreFuture<'a, Page<AuditEvent>> {
        lazily(move || self.audit_now(page, None))
    }

    fn usage<'a>(&'a self, query: &'a UsageQuery) -> StoreFuture<'a, Page<UsageSnapshot>> {
        lazily(move || self.usage_now(query))
    }

    fn usage_summary<'a>(&'a self, query: &'a UsageQuery) -> StoreFuture<'a, Option<UsageSummary>> {
        lazily(move || self.usage_summary_now(query).map(Some))
    }
}

impl MemoryStore {
    /// Events of one subject, or of all.
    fn audit_now(
        &self,
        page: &PageRequest,
        subject: Option<&AuditSubject>,
    ) -> Result<Page<AuditEvent>, StoreError> {
        let before = page.cursor().map(audit_position).transpose()?;
        let directory = self.shared.read_directory();
        let events = &directory.tenant(self.number).audit.events;
        let is_asked = |position: &(EventId, u64), event: &AuditEvent| {
            before.is_none_or(|before| *position < before)
                && subject.is_none_or(|subject| event.subject == *subject)
        };
        let asked = events.iter().rev().filter(|(position, event)| is_asked(position, event));
        let Page { items, next } = paged(asked, page, |((id, number), _)| format!("{id}/{number}"));
        Ok(Page { items: items.into_iter().map(|(_, event)| event.clone()).collect(), next })
    }

    fn usage_now(&self, query: &UsageQuery) -> Result<Page<UsageSnapshot>, StoreError> {
        let mut windows = UsageWindows::new(query)?;
        self.shared.each_shard(|shard| self.add_usage(shard, query, &mut windows));
        Ok(windows.into_page())
    }

    /// A window of a bucket is in one shard, so each shard is summed by itself, and no more than
    /// one of them is held in memory.
    fn usage_summary_now(&self, query: &UsageQuery) -> Result<UsageSummary, StoreError> {
        let all = UsageQuery { page: PageRequest::default(), ..query.clone() };
        let empty = UsageWindows::new(&all)?.unbounded();
        let mut sums = UsageSums::default();
        self.shared.each_shard(|shard| {
            let mut windows = empty.clone();
            self.add_usage(shard, &all, &mut windows);
            windows.snapshots().iter().for_each(|snapshot| sums.add(snapshot));
        });
        Ok(sums.summary())
    }

    /// History and open hour of a bucket are in one shard, under one lock: no hour is missed or
    /// counted twice.
    fn add_usage(&self, shard: &Shard, query: &UsageQuery, windows: &mut UsageWindows<'_>) {
        let mut add = |start: TimeMs,
                       entity: EntityId,
                       resource: &ResourceName,
                       used: &[(LimitName, Milli)],
                       events: u64| {
            if let Some(totals) = windows.at(start, entity, resource.clone()) {
                totals.count(events);
                used.iter().for_each(|(name, amount)| totals.use_limit(name.clone(), *amount));
            }
        };
        for (key, row) in shard.usage.rows.iter().filter(|(key, _)| self.is_asked_for(key, query)) {
            add(key.start, key.entity.clone(), &key.resource, &row.used, row.events);
        }
        for entry in shard.table.iter().filter(|entry| self.is_bucket_asked_for(entry, query)) {
            let open = entry.state.open_hour();
            if open.events > 0 || !open.used.is_empty() {
                let resource = &entry.scope.resource;
                add(open.start, entry.entity_id(), resource, &open.used, open.events.into());
            }
        }
    }

    fn is_asked_for(&self, key: &UsageKey, query: &UsageQuery) -> bool {
        key.number == self.number
            && query.entity.as_ref().is_none_or(|entity| key.entity == *entity)
            && query.resource.as_ref().is_none_or(|resource| key.resource == *resource)
    }

    fn is_bucket_asked_for(&self, entry: &Entry, query: &UsageQuery) -> bool {
        entry.scope.number == self.number
            && query.entity.as_ref().is_none_or(|entity| entry.entity() == entity.as_str())
            && query.resource.as_ref().is_none_or(|resource| entry.scope.resource == *resource)
    }
}

fn audit_position(cursor: &Cursor) -> Result<(EventId, u64), StoreError> {
    let position = cursor
        .0
        .split_once('/')
        .and_then(|(id, number)| Some((id.parse().ok()?, number.parse().ok()?)));
    position.ok_or_else(|| StoreError::foreign_cursor("audit_events"))
}
