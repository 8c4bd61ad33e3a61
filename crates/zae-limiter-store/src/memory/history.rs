//! Queries of the audit log and of usage.

use std::collections::BTreeMap;

use zae_limiter_core::{AuditEvent, EntityId, EventId, ResourceName, TimeMs, UsageSnapshot};

use super::config::paged;
use super::table::{Entry, UsageKey, UsageRow};
use super::{MemoryStore, invalid, lazily};
use crate::{AuditQuery, BoxFuture, Cursor, HistoryStore, Page, StoreError, UsageQuery};

impl HistoryStore for MemoryStore {
    fn audit_events<'a>(&'a self, query: &'a AuditQuery) -> BoxFuture<'a, Result<Page<AuditEvent>, StoreError>> {
        lazily(move || self.audit_events_now(query))
    }

    fn usage<'a>(&'a self, query: &'a UsageQuery) -> BoxFuture<'a, Result<Page<UsageSnapshot>, StoreError>> {
        lazily(move || self.usage_now(query))
    }
}

impl MemoryStore {
    fn audit_events_now(&self, query: &AuditQuery) -> Result<Page<AuditEvent>, StoreError> {
        let before = query.page.cursor().map(audit_position).transpose()?;
        let directory = self.shared.read_directory();
        let events = &directory.tenant(self.number).audit.events;
        let earlier = events.iter().rev().filter(|(position, _)| before.is_none_or(|before| **position < before));
        let page =
            paged(earlier.filter(|(_, event)| event.subject == query.subject), &query.page, |((id, number), _)| format!("{id}/{number}"));
        Ok(Page { items: page.items.into_iter().map(|(_, event)| event.clone()).collect(), next: page.next })
    }

    fn usage_now(&self, query: &UsageQuery) -> Result<Page<UsageSnapshot>, StoreError> {
        if query.entity.is_none() && query.resource.is_none() {
            return Err(invalid("usage", "neither an entity nor a resource is given; give at least one"));
        }
        let after = query.page.cursor().map(usage_position).transpose()?;
        let mut windows: BTreeMap<UsagePosition, UsageRow> = BTreeMap::new();
        // History and open hour of a bucket are in one shard, under one lock: no hour is missed or counted twice.
        self.shared.each_shard(|shard| {
            for (key, row) in shard.usage.rows.iter().filter(|(key, _)| self.is_asked_for(key, query)) {
                let position = UsagePosition::of(query, key.start, &key.entity, &key.resource);
                windows.entry(position).or_default().add(&row.used, row.events);
            }
            for entry in shard.table.iter().filter(|entry| self.is_bucket_asked_for(entry, query)) {
                let open = entry.state.open_hour();
                let position = UsagePosition::of(query, open.start, &entry.entity_id(), &entry.scope.resource);
                windows.entry(position).or_default().add(&open.used, open.events.into());
            }
        });
        let in_range = |position: &UsagePosition| {
            query.from.is_none_or(|from| position.start >= from) && query.until.is_none_or(|until| position.start < until)
        };
        let wanted = windows.into_iter().filter(|(position, row)| in_range(position) && !row.is_nothing());
        let rest = wanted.filter(|(position, _)| after.as_ref().is_none_or(|after| *position > *after));
        let page = paged(rest, &query.page, |(position, _)| position.cursor());
        let snapshot = |(position, row): (UsagePosition, UsageRow)| position.snapshot(query, row);
        Ok(Page { items: page.items.into_iter().map(snapshot).collect(), next: page.next })
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

impl UsageRow {
    /// True for windows that do not appear: all that was taken was given back, or nothing was ever taken.
    fn is_nothing(&self) -> bool {
        self.events == 0 && self.used.iter().all(|(_, amount)| amount.0 == 0)
    }
}

/// One window of one bucket, in the order of the answer.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct UsagePosition {
    start: TimeMs,
    entity: EntityId,
    resource: ResourceName,
}

impl UsagePosition {
    fn of(query: &UsageQuery, at: TimeMs, entity: &EntityId, resource: &ResourceName) -> UsagePosition {
        UsagePosition { start: query.window.start_of(at), entity: entity.clone(), resource: resource.clone() }
    }

    /// No name contains a space.
    fn cursor(&self) -> String {
        format!("{} {} {}", self.start.0, self.entity, self.resource)
    }

    fn snapshot(self, query: &UsageQuery, row: UsageRow) -> UsageSnapshot {
        let mut counters: Vec<_> = row.used.into_iter().filter(|(_, amount)| amount.0 != 0).collect();
        counters.sort();
        let UsagePosition { start, entity, resource } = self;
        UsageSnapshot { entity, resource, window: query.window, start, counters, events: row.events }
    }
}

fn usage_position(cursor: &Cursor) -> Result<UsagePosition, StoreError> {
    let mut parts = cursor.0.splitn(3, ' ');
    let mut part = || parts.next().unwrap_or_default();
    let position = (part().parse().ok(), part().parse().ok(), part().parse().ok());
    match position {
        (Some(start), Some(entity), Some(resource)) => Ok(UsagePosition { start: TimeMs(start), entity, resource }),
        _ => Err(foreign_cursor("usage")),
    }
}

fn audit_position(cursor: &Cursor) -> Result<(EventId, u64), StoreError> {
    let position = cursor.0.split_once('/').and_then(|(id, number)| Some((id.parse().ok()?, number.parse().ok()?)));
    position.ok_or_else(|| foreign_cursor("audit_events"))
}

fn foreign_cursor(operation: &'static str) -> StoreError {
    invalid(operation, "the cursor is not one of this listing; use the one its last page ended with")
}
