//! The audit log, written in the transaction of the change that it records, and queries of the log
//! and of usage.

use rusqlite::{Connection, Row};
use zae_limiter_core::{AuditEvent, AuditSubject, EventId, TimeMs, UsageSnapshot};
use zae_limiter_store::{
    AuditQuery, Cursor, HistoryStore, Page, PageRequest, StoreError, StoreFuture, UsageQuery,
};

use crate::SqliteStore;
use crate::error::{Outcome, corrupt_value};
use crate::pack::{name_at, optional_name_at, pairs_from_text, pairs_to_text};
use crate::query;
use crate::usage;

/// Appends an audit event.
pub(crate) fn record(conn: &Connection, ns: i64, event: &AuditEvent) -> Outcome<()> {
    const SQL: &str = "INSERT INTO audit(ns,subject,id,at,action,principal,resource,details) VALUES(?1,?2,?3,?4,?5,?6,?7,?8)";
    let details =
        pairs_to_text(event.details.iter().map(|(key, value)| (key.as_str(), value.as_str())));
    conn.prepare_cached(SQL)?.execute((
        ns,
        event.subject.to_string(),
        event.id.to_string(),
        event.at.0,
        event.action.as_str(),
        event.principal.as_ref().map(|principal| principal.as_str()),
        event.resource.as_ref().map(|resource| resource.as_str()),
        details,
    ))?;
    Ok(())
}

impl HistoryStore for SqliteStore {
    fn audit_events<'a>(&'a self, query: &'a AuditQuery) -> StoreFuture<'a, Page<AuditEvent>> {
        let (ns, query) = (self.key, query.clone());
        Box::pin(self.read_apart("audit_events", move |conn| {
            audit_events(conn, ns, &query.page, Some(&query.subject))
        }))
    }

    fn audit_log<'a>(&'a self, page: &'a PageRequest) -> StoreFuture<'a, Page<AuditEvent>> {
        let (ns, page) = (self.key, page.clone());
        Box::pin(self.read_apart("audit_log", move |conn| audit_events(conn, ns, &page, None)))
    }

    fn usage<'a>(&'a self, query: &'a UsageQuery) -> StoreFuture<'a, Page<UsageSnapshot>> {
        let (ns, query) = (self.key, query.clone());
        Box::pin(self.read_apart("usage", move |conn| usage::page(conn, ns, &query)))
    }
}

/// The events of one subject, or of all subjects. For all subjects SQLite goes over the events of
/// the namespace and keeps one page of them.
fn audit_events(
    conn: &Connection,
    ns: i64,
    page: &PageRequest,
    subject: Option<&AuditSubject>,
) -> Outcome<Page<AuditEvent>> {
    const OF_SUBJECT: &str = "SELECT seq,id,at,action,principal,resource,details,subject FROM audit \
                       WHERE ns=?1 AND subject=?2 AND (?3 IS NULL OR (id,seq)<(?3,?4)) ORDER BY id DESC,seq DESC LIMIT ?5";
    const OF_ALL: &str = "SELECT seq,id,at,action,principal,resource,details,subject FROM audit \
                       WHERE ns=?1 AND ?2 IS NULL AND (?3 IS NULL OR (id,seq)<(?3,?4)) ORDER BY id DESC,seq DESC LIMIT ?5";
    let before = page.cursor().map(audit_position).transpose()?;
    let (id, seq) = before.map_or((None, None), |(id, seq)| (Some(id.to_string()), Some(seq)));
    let read = |row: &Row<'_>| {
        let details: String = row.get(6)?;
        let event = AuditEvent {
            id: name_at(row, 1)?,
            at: TimeMs(row.get(2)?),
            subject: name_at(row, 7)?,
            action: name_at(row, 3)?,
            principal: optional_name_at(row, 4)?,
            resource: optional_name_at(row, 5)?,
            details: pairs_from_text(&details)
                .map_err(|error| corrupt_value(6, "details", error))?,
        };
        Ok((row.get(0)?, event))
    };
    let sql = if subject.is_some() { OF_SUBJECT } else { OF_ALL };
    let params = (ns, subject.map(ToString::to_string), id, seq, page.limit() + 1);
    let events: Vec<(i64, AuditEvent)> = query::all(conn, sql, params, read)?;
    let page = Page::cut(events, page, |(seq, event)| format!("{}/{seq}", event.id));
    Ok(Page { items: page.items.into_iter().map(|(_, event)| event).collect(), next: page.next })
}

fn audit_position(cursor: &Cursor) -> Outcome<(EventId, i64)> {
    let position =
        cursor.0.split_once('/').and_then(|(id, seq)| Some((id.parse().ok()?, seq.parse().ok()?)));
    Ok(position.ok_or_else(|| StoreError::foreign_cursor("audit_events"))?)
}
