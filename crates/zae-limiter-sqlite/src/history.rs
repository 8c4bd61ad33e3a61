//! What happened: the audit log and the usage history. Written in the transaction of what they record.

use rusqlite::Connection;
use zae_limiter_core::{AuditAction, AuditEvent, AuditSubject, ClosedHour, EntityId, EventId, Milli, ResourceName, TimeMs, UsageSnapshot};
use zae_limiter_store::{AuditQuery, BoxFuture, Change, Cursor, HistoryStore, Page, StoreError, StoreErrorKind, UsageQuery, UsageWindows};

use crate::SqliteStore;
use crate::error::{Outcome, corrupt_value, optional, refused};
use crate::rows::{bucket_columns, bucket_from_row, name_at, optional_name_at, pairs_from_text, pairs_to_text};
use crate::working::Key;

const HOUR_MS: i64 = 3_600_000;

/// What an audit event says beside who and when.
pub(crate) struct Event<'a> {
    pub(crate) subject: AuditSubject,
    pub(crate) action: AuditAction,
    pub(crate) resource: Option<&'a ResourceName>,
    pub(crate) details: Vec<(String, String)>,
}

/// Appends an audit event.
pub(crate) fn record(conn: &Connection, ns: i64, change: &Change, event: Event<'_>) -> Outcome<()> {
    const SQL: &str = "INSERT INTO audit(ns,subject,id,at,action,principal,resource,details) VALUES(?1,?2,?3,?4,?5,?6,?7,?8)";
    let details = pairs_to_text(event.details.iter().map(|(key, value)| (key.as_str(), value.as_str())));
    conn.prepare_cached(SQL)?.execute((
        ns,
        event.subject.to_string(),
        change.event.to_string(),
        change.at.0,
        event.action.as_str(),
        change.principal.as_ref().map(|principal| principal.as_str()),
        event.resource.map(ResourceName::as_str),
        details,
    ))?;
    Ok(())
}

/// Adds an hour that is over to the usage history. An hour may come twice, when a bucket was forgotten and created again
/// within it: then it is added to what is there.
pub(crate) fn spill(conn: &Connection, key: &Key<'_>, hour: &ClosedHour) -> Outcome<()> {
    // The counter without a name counts the grants.
    let events = (hour.events > 0).then_some(("", i64::from(hour.events)));
    let used = hour.used.iter().map(|(name, used)| (name.as_str(), used.0));
    for (counter, amount) in used.chain(events) {
        add(conn, key, hour.start.0.div_euclid(HOUR_MS), counter, amount)?;
    }
    Ok(())
}

fn add(conn: &Connection, key: &Key<'_>, hour: i64, counter: &str, amount: i64) -> Outcome<()> {
    const GET: &str = "SELECT amount FROM usage WHERE ns=?1 AND entity=?2 AND hour=?3 AND resource=?4 AND counter=?5";
    const PUT: &str = "INSERT OR REPLACE INTO usage(ns,entity,hour,resource,counter,amount) VALUES(?1,?2,?3,?4,?5,?6)";
    let (entity, resource) = (key.entity.as_str(), key.resource.as_str());
    let before: Option<i64> = optional(conn.prepare_cached(GET)?.query_row((key.ns, entity, hour, resource, counter), |row| row.get(0)))?;
    // Summed here: SQLite would turn an overflow into a floating-point number.
    let sum = before.unwrap_or(0).saturating_add(amount);
    conn.prepare_cached(PUT)?.execute((key.ns, entity, hour, resource, counter, sum))?;
    Ok(())
}

impl HistoryStore for SqliteStore {
    fn audit_events<'a>(&'a self, query: &'a AuditQuery) -> BoxFuture<'a, Result<Page<AuditEvent>, StoreError>> {
        Box::pin(async move { self.read("audit_events", |conn| audit_events(conn, self.key, query)) })
    }

    fn usage<'a>(&'a self, query: &'a UsageQuery) -> BoxFuture<'a, Result<Page<UsageSnapshot>, StoreError>> {
        Box::pin(async move {
            let windows = UsageWindows::new(query)?;
            self.read("usage", |conn| usage(conn, self.key, windows))
        })
    }
}

fn audit_events(conn: &Connection, ns: i64, query: &AuditQuery) -> Outcome<Page<AuditEvent>> {
    const SQL: &str = "SELECT seq,id,at,action,principal,resource,details FROM audit \
                       WHERE ns=?1 AND subject=?2 AND (?3 IS NULL OR (id,seq)<(?3,?4)) ORDER BY id DESC,seq DESC LIMIT ?5";
    let before = query.page.cursor().map(audit_position).transpose()?;
    let (id, seq) = before.map_or((None, None), |(id, seq)| (Some(id.to_string()), Some(seq)));
    let mut statement = conn.prepare_cached(SQL)?;
    let mut rows = statement.query((ns, query.subject.to_string(), id, seq, query.page.limit() + 1))?;
    let mut events: Vec<(i64, AuditEvent)> = Vec::new();
    while let Some(row) = rows.next()? {
        let details: String = row.get(6)?;
        let event = AuditEvent {
            id: name_at(row, 1)?,
            at: TimeMs(row.get(2)?),
            subject: query.subject.clone(),
            action: name_at(row, 3)?,
            principal: optional_name_at(row, 4)?,
            resource: optional_name_at(row, 5)?,
            details: pairs_from_text(&details).map_err(|error| corrupt_value(6, "details", error))?,
        };
        events.push((row.get(0)?, event));
    }
    let page = Page::cut(events, &query.page, |(seq, event)| format!("{} {seq}", event.id));
    Ok(Page { items: page.items.into_iter().map(|(_, event)| event).collect(), next: page.next })
}

fn audit_position(cursor: &Cursor) -> Outcome<(EventId, i64)> {
    let position = cursor.0.split_once(' ').and_then(|(id, seq)| Some((id.parse().ok()?, seq.parse().ok()?)));
    position.ok_or_else(foreign_cursor)
}

fn foreign_cursor() -> crate::error::Failure {
    refused(StoreErrorKind::Invalid, "the cursor is not one of this listing; begin without one")
}

fn usage(conn: &Connection, ns: i64, mut windows: UsageWindows<'_>) -> Outcome<Page<UsageSnapshot>> {
    add_closed_hours(conn, ns, &mut windows)?;
    add_open_hours(conn, ns, &mut windows)?;
    Ok(windows.into_page())
}

fn add_closed_hours(conn: &Connection, ns: i64, windows: &mut UsageWindows<'_>) -> Outcome<()> {
    const BY_ENTITY: &str = "SELECT entity,resource,hour,counter,amount FROM usage \
                             WHERE ns=?1 AND entity=?2 AND hour>=?4 AND (?3 IS NULL OR resource=?3) ORDER BY hour";
    const BY_RESOURCE: &str = "SELECT entity,resource,hour,counter,amount FROM usage \
                               WHERE ns=?1 AND resource=?3 AND hour>=?4 AND ?2 IS NULL ORDER BY hour";
    let query = windows.query();
    let first = windows.first_start().map_or(i64::MIN, |from| from.0.div_euclid(HOUR_MS));
    let (entity, resource) = (query.entity.as_ref().map(EntityId::as_str), query.resource.as_ref().map(ResourceName::as_str));
    let mut statement = conn.prepare_cached(if query.entity.is_some() { BY_ENTITY } else { BY_RESOURCE })?;
    let mut rows = statement.query((ns, entity, resource, first))?;
    while let Some(row) = rows.next()? {
        let hour: i64 = row.get(2)?;
        if windows.is_closed_to(query.window.start_of(TimeMs(hour.saturating_mul(HOUR_MS)))) {
            break;
        }
        let Some(totals) = windows.at(TimeMs(hour.saturating_mul(HOUR_MS)), name_at(row, 0)?, name_at(row, 1)?) else { continue };
        let amount: i64 = row.get(4)?;
        if row.get_ref(3)?.as_str() == Ok("") {
            totals.count(u64::try_from(amount).unwrap_or(0));
        } else {
            totals.use_limit(name_at(row, 3)?, Milli(amount));
        }
    }
    Ok(())
}

fn add_open_hours(conn: &Connection, ns: i64, windows: &mut UsageWindows<'_>) -> Outcome<()> {
    const BY_ENTITY: &str = concat!(
        "SELECT b.entity,b.resource,",
        bucket_columns!(),
        " FROM bucket b WHERE b.ns=?1 AND b.entity=?2 AND (?3 IS NULL OR b.resource=?3)"
    );
    const BY_RESOURCE: &str =
        concat!("SELECT b.entity,b.resource,", bucket_columns!(), " FROM bucket b WHERE b.ns=?1 AND b.resource=?3 AND ?2 IS NULL");
    let query = windows.query();
    let (entity, resource) = (query.entity.as_ref().map(EntityId::as_str), query.resource.as_ref().map(ResourceName::as_str));
    let mut statement = conn.prepare_cached(if query.entity.is_some() { BY_ENTITY } else { BY_RESOURCE })?;
    let mut rows = statement.query((ns, entity, resource))?;
    while let Some(row) = rows.next()? {
        let open = bucket_from_row(row, 2, &[])?.open_hour();
        if open.events == 0 && open.used.is_empty() {
            continue;
        }
        let Some(totals) = windows.at(open.start, name_at(row, 0)?, name_at(row, 1)?) else { continue };
        totals.count(open.events.into());
        open.used.into_iter().for_each(|(name, used)| totals.use_limit(name, used));
    }
    Ok(())
}
