//! What happened: the audit log, written by the changes it records, and the usage history, written
//! by an aggregator.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use zae_limiter_core::{
    AuditEvent, EntityId, EventId, ResourceName, TimeMs, UsageSnapshot, parse_rfc3339, rfc3339,
};
use zae_limiter_store::{
    AuditQuery, HistoryStore, Page, PageRequest, StoreError, StoreErrorKind, StoreFuture,
    UsageQuery, UsageWindows,
};

use crate::DynamoStore;
use crate::records::attr;
use crate::records::item::{Shape, audit_event, key_of, shape_of, text_of, usage_item};
use crate::records::keys;
use crate::table::page::{readable, size_of};
use crate::table::{Index, Item, Key, Query, Sort};

/// Keys one listing of a whole namespace goes over: about 100 MB of the index.
const KEYS_MAX: usize = 500_000;

/// Usage items of a namespace that are read before it is asked again which are still wanted.
const KEYS_READ: usize = 300;

/// Keys of one request for the usage of a resource: their items are fetched before the next, so not
/// too many.
const KEYS_PAGE: i32 = 300;

impl HistoryStore for DynamoStore {
    fn audit_events<'a>(&'a self, query: &'a AuditQuery) -> StoreFuture<'a, Page<AuditEvent>> {
        Box::pin(self.events_of_subject(query))
    }

    fn audit_log<'a>(&'a self, page: &'a PageRequest) -> StoreFuture<'a, Page<AuditEvent>> {
        Box::pin(self.events_of_namespace(page))
    }

    fn usage<'a>(&'a self, query: &'a UsageQuery) -> StoreFuture<'a, Page<UsageSnapshot>> {
        Box::pin(async move {
            let mut windows = UsageWindows::new(query)?;
            match (&query.entity, &query.resource) {
                (Some(entity), _) => self.usage_of_entity(entity, &mut windows).await?,
                (None, Some(resource)) => self.usage_of_resource(resource, &mut windows).await?,
                (None, None) => self.usage_of_namespace(&mut windows).await?,
            }
            Ok(windows.into_page())
        })
    }
}

/// An event of the log of a whole namespace, by its keys: newest first, then by subject.
type Position = (Reverse<EventId>, String);

impl DynamoStore {
    async fn events_of_subject(&self, query: &AuditQuery) -> Result<Page<AuditEvent>, StoreError> {
        const OPERATION: &str = "audit_events";
        let AuditQuery { subject, page, .. } = query;
        let before: Option<EventId> = page
            .cursor()
            .map(|cursor| cursor.0.parse())
            .transpose()
            .map_err(|_| StoreError::foreign_cursor(OPERATION))?;
        let sort = match before {
            Some(id) => Sort::Between(keys::AUDIT.to_owned(), format!("{}{id}", keys::AUDIT)),
            None => Sort::Prefix(keys::AUDIT.to_owned()),
        };
        let mut query = Query::of(None, keys::audit_partition(&self.id, subject), sort);
        // One more for the event of the cursor itself, one more to know whether there is a next
        // page.
        query.limit = i32::try_from(size_of(page).saturating_add(2)).ok();
        query.ascending = false;
        let (mut walk, mut events) = (self.shared.walk(OPERATION, query), Vec::new());
        while let Some(items) = walk.next().await? {
            let read = |item| readable(OPERATION, "an event", audit_event(item, subject));
            let is_after = |event: &AuditEvent| before.is_none_or(|before| event.id < before);
            events.extend(items.iter().filter_map(read).filter(is_after));
            if events.len() > size_of(page) {
                break;
            }
        }
        Ok(Page::cut(events, page, |event| event.id.to_string()))
    }

    /// Events of every subject. The index knows them by subject and not by time, so all their keys
    /// are gone over, and a page of the newest is kept and read.
    async fn events_of_namespace(
        &self,
        page: &PageRequest,
    ) -> Result<Page<AuditEvent>, StoreError> {
        const OPERATION: &str = "audit_log";
        let foreign = || StoreError::foreign_cursor(OPERATION);
        let after = page.cursor().map(|cursor| position_of(&cursor.0).ok_or_else(foreign));
        let after = after.transpose()?;
        let prefix = keys::index::audit(&self.id);
        let mut newest: BTreeSet<Position> = BTreeSet::new();
        let mut walk = self.shared.walk(OPERATION, self.everything(prefix.clone()));
        let mut seen = 0;
        while let Some(items) = walk.next().await? {
            seen += items.len();
            if seen > KEYS_MAX {
                return Err(too_much(OPERATION, "name an entity, a resource or the system"));
            }
            for key in items.iter().filter_map(key_of) {
                let subject = key.pk.strip_prefix(&prefix);
                let id = key.sk.strip_prefix(keys::AUDIT).and_then(|id| id.parse().ok());
                let Some(position) = id.map(Reverse).zip(subject.map(str::to_owned)) else {
                    continue;
                };
                if after.as_ref().is_none_or(|after| position > *after) {
                    newest.insert(position);
                }
                if newest.len() > size_of(page) + 1 {
                    newest.pop_last();
                }
            }
        }
        let keys: Vec<Key> =
            newest.iter().map(|(id, subject)| keys::audit(&self.id, subject, id.0)).collect();
        let found = self.shared.read_all(OPERATION, &keys).await?;
        let cursor = |(id, subject): &Position| format!("{}/{subject}", id.0);
        let next = Page::cut(newest.iter().cloned().collect(), page, cursor).next;
        // One item more than the page was read, to know whether a next page exists.
        let read = |(item, (_, subject)): (&Option<Item>, &Position)| {
            let subject = subject.parse().ok()?;
            readable(OPERATION, "an event", audit_event(item.as_ref()?, &subject))
        };
        let items = found.iter().zip(&newest).take(size_of(page)).filter_map(read).collect();
        Ok(Page { items, next })
    }

    /// The keys of the namespace that begin with a prefix.
    fn everything(&self, prefix: String) -> Query {
        Query::of(Some(Index::Gsi4), self.id.to_string(), Sort::Prefix(prefix))
    }

    /// From the partition of the entity: ordered by resource and then by time, so that all
    /// resources are gone over.
    async fn usage_of_entity(
        &self,
        entity: &EntityId,
        windows: &mut UsageWindows<'_>,
    ) -> Result<(), StoreError> {
        let resource = windows.query().resource.as_ref();
        let prefix = keys::usage_prefix(resource);
        let sort =
            if resource.is_some() { range(windows, &prefix) } else { Some(Sort::Prefix(prefix)) };
        let Some(sort) = sort else { return Ok(()) };
        let query = Query::of(None, keys::entity_partition(&self.id, entity), sort);
        let mut walk = self.shared.walk("usage", query);
        while let Some(items) = walk.next().await? {
            for item in &items {
                let window = text_of(item, attr::SK).and_then(keys::parse_usage);
                let Some(shape) = window.and_then(|(_, window)| wanted(windows, window)) else {
                    continue;
                };
                if windows.query().resource.is_some() && windows.is_closed_to(shape.start) {
                    return Ok(());
                }
                add(windows, item, shape);
            }
        }
        Ok(())
    }

    /// From the index of the resource: ordered by time. It may hold only keys, so the items are
    /// fetched.
    async fn usage_of_resource(
        &self,
        resource: &ResourceName,
        windows: &mut UsageWindows<'_>,
    ) -> Result<(), StoreError> {
        let Some(sort) = range(windows, keys::index::USAGE) else { return Ok(()) };
        let partition = keys::index::resource(&self.id, resource);
        let mut query = Query::of(Some(Index::Gsi2), partition, sort);
        query.limit = Some(KEYS_PAGE);
        let mut walk = self.shared.walk("usage", query);
        while let Some(items) = walk.next().await? {
            let named = |item: &Item| {
                let sort = text_of(item, attr::GSI2SK)?;
                let (window, _) = keys::index::parse_resource_usage(sort)?;
                Some((key_of(item)?, wanted(windows, window)?))
            };
            let found: Vec<(Key, Shape)> = items.iter().filter_map(named).collect();
            self.read_usage(windows, &found).await?;
            if found.last().is_some_and(|(_, last)| windows.is_closed_to(last.start)) {
                break;
            }
        }
        Ok(())
    }

    /// From the index of the namespace: by entity, in no order of time. Only items whose window may
    /// get onto the page are read.
    async fn usage_of_namespace(&self, windows: &mut UsageWindows<'_>) -> Result<(), StoreError> {
        const OPERATION: &str = "usage";
        let query = self.everything(keys::index::entities(&self.id));
        let (mut walk, mut seen) = (self.shared.walk(OPERATION, query), 0);
        while let Some(items) = walk.next().await? {
            seen += items.len();
            if seen > KEYS_MAX {
                return Err(too_much(OPERATION, "name an entity or a resource"));
            }
            let open = |key: Key| {
                let entity = keys::parse_entity_partition(&self.id, &key.pk)?.parse().ok()?;
                let (resource, window) = keys::parse_usage(&key.sk)?;
                let (resource, shape) = (resource.parse().ok()?, wanted(windows, window)?);
                windows.is_open_to(shape.start, &entity, &resource).then_some((key, shape))
            };
            let found: Vec<(Key, Shape)> =
                items.iter().filter_map(key_of).filter_map(open).collect();
            for chunk in found.chunks(KEYS_READ) {
                self.read_usage(windows, chunk).await?;
            }
        }
        Ok(())
    }

    /// Reads snapshots, and adds what they say.
    async fn read_usage(
        &self,
        windows: &mut UsageWindows<'_>,
        snapshots: &[(Key, Shape)],
    ) -> Result<(), StoreError> {
        let keys: Vec<Key> = snapshots.iter().map(|(key, _)| key.clone()).collect();
        let found = self.shared.read_all("usage", &keys).await?;
        for ((_, shape), item) in snapshots.iter().zip(&found) {
            item.iter().for_each(|item| add(windows, item, *shape));
        }
        Ok(())
    }
}

/// The place a cursor of the log of a namespace names.
fn position_of(cursor: &str) -> Option<Position> {
    let (id, subject) = cursor.split_once('/')?;
    Some((Reverse(id.parse().ok()?), subject.to_owned()))
}

fn too_much(operation: &'static str, instead: &str) -> StoreError {
    let message = format!(
        "the namespace has more records than one listing goes over ({KEYS_MAX}); {instead}"
    );
    StoreError::new(StoreErrorKind::Capacity, operation, message)
}

/// What the key of a window says, if the window is one that is asked for.
fn wanted(windows: &UsageWindows<'_>, key: &str) -> Option<Shape> {
    let UsageQuery { window, from, until, .. } = windows.query();
    shape_of(key).filter(|shape| {
        shape.may_be(*window)
            && from.is_none_or(|from| shape.start >= from)
            && until.is_none_or(|until| shape.start < until)
    })
}

/// Adds what an item says. Both products may have counted in one window: then it is their sum.
fn add(windows: &mut UsageWindows<'_>, item: &Item, shape: Shape) {
    let Some(usage) = readable("usage", "a snapshot", usage_item(item, shape)) else { return };
    let UsageQuery { entity, resource, window, .. } = windows.query();
    if usage.window != *window
        || entity.as_ref().is_some_and(|entity| usage.entity != *entity)
        || resource.as_ref().is_some_and(|resource| usage.resource != *resource)
    {
        return;
    }
    if let Some(totals) = windows.at(shape.start, usage.entity, usage.resource) {
        totals.count(usage.events);
        usage.counters.into_iter().for_each(|(limit, used)| totals.use_limit(limit, used));
    }
}

/// The sort keys between which the windows of the page are, behind a prefix; `None` when there can
/// be none.
fn range(windows: &UsageWindows<'_>, prefix: &str) -> Option<Sort> {
    let UsageQuery { window, until, .. } = windows.query();
    // Outside the years of four digits keys do not sort like times: then everything is looked at.
    let years = parse_rfc3339("0001-01-01").ok().zip(parse_rfc3339("9999-12-31").ok());
    let inside = |at: &TimeMs| years.is_some_and(|(first, last)| first <= *at && *at <= last);
    let from = windows.first_start().map(|from| window.start_of(from)).filter(inside);
    let last = until.map(|until| window.start_of(until.plus_ms(-1))).filter(inside);
    // The short key of a window is the beginning of its long one.
    let lower =
        from.map_or_else(|| prefix.to_owned(), |from| format!("{prefix}{}", window.key(from)));
    let upper = last.map_or_else(
        || format!("{prefix}{}", keys::END),
        |last| format!("{prefix}{}{}", rfc3339(last), keys::END),
    );
    // The table does not accept a range that ends before it begins.
    (lower <= upper).then_some(Sort::Between(lower, upper))
}
