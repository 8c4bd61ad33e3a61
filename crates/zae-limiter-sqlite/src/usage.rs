//! Usage: hours that are over, added when a bucket begins another hour or is forgotten, and queries
//! of them and of the open hours.
//!
//! The answer is ordered by window, entity and resource, and so are the indexes it is read from: a
//! page goes on where the last one ended, reads its own rows and stops. A window of several hours
//! is one merge of its hours.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt::Write as _;

use rusqlite::{Connection, Row, Rows, Statement};
use zae_limiter_core::{
    ClosedHour, EntityId, LimitName, Milli, ResourceName, TimeMs, UsageSnapshot, UsageWindow,
};
use zae_limiter_store::{Adopted, COUNTED_BY_THE_HOUR, Page, UsageQuery, UsageWindows};

use crate::error::{Outcome, corrupt_value};
use crate::pack::name_at;
use crate::query;
use crate::rows::{Key, bucket_columns, bucket_from_row};

const HOUR_MS: i64 = 3_600_000;

type Used = Vec<(LimitName, Milli)>;

/// Adds an hour that is over to the usage history. An hour may come twice, when a bucket was
/// forgotten and created again within it: then the counts are added up.
pub(crate) fn spill(conn: &Connection, key: &Key<'_>, closed: &ClosedHour) -> Outcome<()> {
    const GET: &str =
        "SELECT events,used FROM usage WHERE hour=?1 AND ns=?2 AND entity=?3 AND resource=?4";
    const ADD: &str =
        "INSERT INTO usage(hour,ns,entity,resource,events,used) VALUES(?1,?2,?3,?4,?5,?6)";
    const SET: &str =
        "UPDATE usage SET events=?5,used=?6 WHERE hour=?1 AND ns=?2 AND entity=?3 AND resource=?4";
    if closed.used.is_empty() && closed.events == 0 {
        return Ok(());
    }
    let (hour, entity, resource) =
        (closed.start.0.div_euclid(HOUR_MS), key.entity.as_str(), key.resource.as_str());
    let read = |row: &Row<'_>| Ok((row.get::<_, i64>(0)?, used_at(row, 1)?));
    let before = query::first(conn, GET, (hour, key.ns, entity, resource), read)?;
    let is_new = before.is_none();
    let (events, mut used) = before.unwrap_or_default();
    for (name, amount) in &closed.used {
        match used.iter_mut().find(|(known, _)| known == name) {
            Some((_, sum)) => *sum = sum.saturating_add(*amount),
            None => used.push((name.clone(), *amount)),
        }
    }
    let events = events.saturating_add(closed.events.into());
    let params = (hour, key.ns, entity, resource, events, used_to_text(&used));
    query::change(conn, if is_new { ADD } else { SET }, params)?;
    Ok(())
}

/// Takes the usage of an hour over from another store, unless there is a row for it.
pub(crate) fn adopt(conn: &Connection, ns: i64, snapshot: &UsageSnapshot) -> Outcome<Adopted> {
    const ADD: &str = "INSERT INTO usage(hour,ns,entity,resource,events,used) \
                       VALUES(?1,?2,?3,?4,?5,?6) ON CONFLICT DO NOTHING";
    let UsageSnapshot { entity, resource, window, start, counters, events } = snapshot;
    if *window != UsageWindow::Hourly {
        return Ok(COUNTED_BY_THE_HOUR);
    }
    let hour = start.0.div_euclid(HOUR_MS);
    let events = i64::try_from(*events).unwrap_or(i64::MAX);
    let (entity, resource) = (entity.as_str(), resource.as_str());
    let params = (hour, ns, entity, resource, events, used_to_text(counters));
    Ok(match query::change(conn, ADD, params)? {
        0 => Adopted::Kept,
        _ => Adopted::Made,
    })
}

/// Removes the hours that began before `oldest`, and the oldest beyond `rows_max`, at most `limit`
/// of them. Returns how many.
pub(crate) fn remove_old(
    conn: &Connection,
    oldest: TimeMs,
    rows_max: u64,
    limit: u32,
) -> Outcome<u64> {
    const COUNT: &str = "SELECT value FROM meta WHERE name='usage_rows'";
    let count: Option<i64> = query::value(conn, COUNT, [])?;
    let too_many = u64::try_from(count.unwrap_or(0)).unwrap_or(0).saturating_sub(rows_max);
    // An hour is as old as its beginning: it goes when that is before the oldest moment.
    let first_kept = -(oldest.0.saturating_neg()).div_euclid(HOUR_MS);
    let removed = remove_first(conn, first_kept, limit)?;
    let room = limit.saturating_sub(u32::try_from(removed).unwrap_or(u32::MAX));
    let rest = u32::try_from(too_many.saturating_sub(removed)).unwrap_or(u32::MAX).min(room);
    Ok(removed + if rest > 0 { remove_first(conn, i64::MAX, rest)? } else { 0 })
}

/// Removes the first rows of the table, at most `limit`, as far as they are of hours before
/// `before`. The rows go as one range: for a list of keys SQLite would go over all rows of an hour.
fn remove_first(conn: &Connection, before: i64, limit: u32) -> Outcome<u64> {
    const LAST: &str = "SELECT hour,ns,entity,resource FROM usage WHERE hour<?1 ORDER BY hour,ns,entity,resource LIMIT 1 OFFSET ?2";
    const UP_TO: &str = "DELETE FROM usage WHERE (hour,ns,entity,resource)<=(?1,?2,?3,?4)";
    const BEFORE: &str = "DELETE FROM usage WHERE hour<?1";
    type LastKey = (i64, i64, String, String);
    let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?));
    let last: Option<LastKey> = query::first(conn, LAST, (before, limit.saturating_sub(1)), read)?;
    let removed = match last {
        Some(last) => query::change(conn, UP_TO, last)?,
        None => query::change(conn, BEFORE, [before])?,
    };
    Ok(removed as u64)
}

fn used_to_text(used: &Used) -> String {
    let mut text = String::new();
    for (name, amount) in used {
        let separator = if text.is_empty() { "" } else { "," };
        // Writing to a string cannot fail.
        let _ = write!(text, "{separator}{name}:{}", amount.0);
    }
    text
}

fn used_at(row: &Row<'_>, column: usize) -> Outcome<Used> {
    let text =
        row.get_ref(column)?.as_str().map_err(|error| corrupt_value(column, "usage", error))?;
    let part = |part: &str| {
        let (name, amount) = part.split_once(':')?;
        Some((name.parse().ok()?, Milli(amount.parse().ok()?)))
    };
    let used: Option<Used> = text.split(',').filter(|text| !text.is_empty()).map(part).collect();
    used.ok_or_else(|| corrupt_value(column, "usage", "it cannot be read").into())
}

/// Whose usage: which rows, by which index.
struct Scope {
    ns: i64,
    /// Of an entity, of a resource, or of all entities; at most one is set.
    entity: Option<String>,
    resource: Option<String>,
    /// Beside an entity: only this resource.
    only: Option<String>,
}

/// One page of usage.
pub(crate) fn page(conn: &Connection, ns: i64, query: &UsageQuery) -> Outcome<Page<UsageSnapshot>> {
    let mut windows = UsageWindows::new(query)?;
    let (entity, resource) = (
        query.entity.as_ref().map(ToString::to_string),
        query.resource.as_ref().map(ToString::to_string),
    );
    let scope = match entity {
        Some(entity) => Scope { ns, entity: Some(entity), resource: None, only: resource },
        None => Scope { ns, entity: None, resource, only: None },
    };
    let mut from = windows.first_start().map_or(0, |start| start.0.div_euclid(HOUR_MS));
    while let Some(hour) = scope.next_hour(conn, from)? {
        let start = query.window.start_of(TimeMs(hour.saturating_mul(HOUR_MS)));
        if query.until.is_some_and(|until| start >= until) || windows.is_closed_to(start) {
            break;
        }
        let end = query.window.next_start(start).0.div_euclid(HOUR_MS);
        let after = windows.after().filter(|(after, ..)| *after == start);
        let after = after.map_or(Default::default(), |(_, entity, resource)| {
            (entity.to_string(), resource.to_string())
        });
        if scope.add_window(conn, hour..end, &after, &mut windows)? {
            break;
        }
        from = end;
    }
    Ok(windows.into_page())
}

impl Scope {
    /// The first hour from `from` on with any usage.
    fn next_hour(&self, conn: &Connection, from: i64) -> Outcome<Option<i64>> {
        Ok(match (self.next_closed(conn, from)?, self.next_open(conn, from)?) {
            (Some(closed), Some(open)) => Some(closed.min(open)),
            (closed, open) => closed.or(open),
        })
    }

    fn next_closed(&self, conn: &Connection, from: i64) -> Outcome<Option<i64>> {
        const ENTITY: &str =
            "SELECT hour FROM usage WHERE ns=?1 AND entity=?2 AND hour>=?3 ORDER BY hour LIMIT 1";
        const RESOURCE: &str =
            "SELECT hour FROM usage WHERE ns=?1 AND resource=?2 AND hour>=?3 ORDER BY hour LIMIT 1";
        match (&self.entity, &self.resource) {
            (Some(entity), _) => query::value(conn, ENTITY, (self.ns, entity, from)),
            (_, Some(resource)) => query::value(conn, RESOURCE, (self.ns, resource, from)),
            _ => self.next_closed_of_all(conn, from),
        }
    }

    /// The same for a whole namespace, hour by hour: hours are few, however many namespaces there
    /// are.
    fn next_closed_of_all(&self, conn: &Connection, mut from: i64) -> Outcome<Option<i64>> {
        const NEXT: &str = "SELECT hour FROM usage WHERE hour>=?1 ORDER BY hour LIMIT 1";
        const HAS: &str = "SELECT 1 FROM usage WHERE hour=?1 AND ns=?2 LIMIT 1";
        while let Some(hour) = query::value::<i64>(conn, NEXT, [from])? {
            if query::value::<i64>(conn, HAS, (hour, self.ns))?.is_some() {
                return Ok(Some(hour));
            }
            from = hour + 1;
        }
        Ok(None)
    }

    fn next_open(&self, conn: &Connection, from: i64) -> Outcome<Option<i64>> {
        const ENTITY: &str = "SELECT min(hour) FROM bucket WHERE ns=?1 AND entity=?2 AND hour>=?3";
        const RESOURCE: &str = "SELECT hour FROM bucket INDEXED BY bucket_hour \
                                WHERE ns=?1 AND resource=?2 AND hour>=?3 ORDER BY hour LIMIT 1";
        // Resource by resource, each found by a seek: resources are few, and buckets may be a
        // million.
        const ALL: &str = "WITH RECURSIVE each(name) AS (\
                           SELECT min(resource) FROM bucket INDEXED BY bucket_hour WHERE ns=?1 UNION ALL \
                           SELECT (SELECT min(resource) FROM bucket INDEXED BY bucket_hour WHERE ns=?1 AND resource>each.name) \
                           FROM each WHERE each.name IS NOT NULL) \
                           SELECT min((SELECT min(hour) FROM bucket INDEXED BY bucket_hour \
                           WHERE ns=?1 AND resource=each.name AND hour>=?3)) FROM each WHERE each.name IS NOT NULL AND ?2 IS NULL";
        let (sql, name) = match (&self.entity, &self.resource) {
            (Some(entity), _) => (ENTITY, Some(entity)),
            (_, Some(resource)) => (RESOURCE, Some(resource)),
            _ => (ALL, None),
        };
        Ok(query::value(conn, sql, (self.ns, name, from))?.flatten())
    }

    /// Adds the usage of some hours behind `after`. True when the page is full.
    fn add_window(
        &self,
        conn: &Connection,
        hours: std::ops::Range<i64>,
        after: &(String, String),
        windows: &mut UsageWindows<'_>,
    ) -> Outcome<bool> {
        let mut statements = Vec::new();
        let mut from = hours.start;
        while let Some(hour) = self.next_closed(conn, from)?.filter(|hour| *hour < hours.end) {
            statements.push((conn.prepare(self.closed_sql())?, hour, false));
            from = hour + 1;
        }
        from = hours.start;
        while let Some(hour) = self.next_open(conn, from)?.filter(|hour| *hour < hours.end) {
            statements.push((conn.prepare(self.open_sql())?, hour, true));
            from = hour + 1;
        }
        self.merge(&mut statements, after, windows)
    }

    fn merge(
        &self,
        statements: &mut [(Statement<'_>, i64, bool)],
        after: &(String, String),
        windows: &mut UsageWindows<'_>,
    ) -> Outcome<bool> {
        let name = self.entity.as_ref().or(self.resource.as_ref());
        let mut streams: Vec<(Rows<'_>, i64, bool)> = Vec::with_capacity(statements.len());
        for (statement, hour, is_open) in statements {
            let only = self.only.as_ref().or(self.resource.as_ref());
            streams.push((
                statement.query((self.ns, name, *hour, &after.0, &after.1, only))?,
                *hour,
                *is_open,
            ));
        }
        let mut heap = BinaryHeap::new();
        for (index, (rows, hour, is_open)) in streams.iter_mut().enumerate() {
            heap.extend(next_entry(rows, *hour, *is_open, index)?.map(Reverse));
        }
        while let Some(Reverse(Entry { entity, resource, index, hour })) = heap.pop() {
            if windows.is_full_before(hour.start, &entity, &resource) {
                return Ok(true);
            }
            if let Some(totals) = windows.at(hour.start, entity, resource) {
                totals.count(hour.events);
                hour.used.into_iter().for_each(|(name, used)| totals.use_limit(name, used));
            }
            let (rows, hour, is_open) = &mut streams[index];
            heap.extend(next_entry(rows, *hour, *is_open, index)?.map(Reverse));
        }
        Ok(false)
    }

    fn closed_sql(&self) -> &'static str {
        match (&self.entity, &self.resource) {
            (Some(_), _) => {
                "SELECT entity,resource,events,used FROM usage INDEXED BY usage_entity \
                 WHERE ns=?1 AND entity=?2 AND hour=?3 AND resource>?5 AND ?4 IS NOT NULL AND (?6 IS NULL OR resource=?6) ORDER BY resource"
            }
            (_, Some(_)) => {
                "SELECT entity,resource,events,used FROM usage INDEXED BY usage_resource \
                 WHERE ns=?1 AND resource=?2 AND hour=?3 AND entity>?4 AND ?5 IS NOT NULL AND ?6 IS NOT NULL ORDER BY entity"
            }
            _ => {
                "SELECT entity,resource,events,used FROM usage \
                 WHERE hour=?3 AND ns=?1 AND (entity,resource)>(?4,?5) AND ?2 IS NULL AND ?6 IS NULL ORDER BY entity,resource"
            }
        }
    }

    fn open_sql(&self) -> &'static str {
        match (&self.entity, &self.resource) {
            (Some(_), _) => {
                concat!(
                    "SELECT b.entity,b.resource,",
                    bucket_columns!(),
                    " FROM bucket b WHERE b.ns=?1 AND b.entity=?2 AND b.hour=?3 AND b.resource>?5 AND ?4 IS NOT NULL \
                     AND (?6 IS NULL OR b.resource=?6) ORDER BY b.resource"
                )
            }
            (_, Some(_)) => {
                concat!(
                    "SELECT b.entity,b.resource,",
                    bucket_columns!(),
                    " FROM bucket b INDEXED BY bucket_hour WHERE b.ns=?1 AND b.resource=?2 AND b.hour=?3 AND b.entity>?4 \
                     AND ?5 IS NOT NULL AND ?6 IS NOT NULL ORDER BY b.entity"
                )
            }
            _ => {
                concat!(
                    "SELECT b.entity,b.resource,",
                    bucket_columns!(),
                    " FROM bucket b WHERE b.ns=?1 AND b.hour=?3 AND (b.entity,b.resource)>(?4,?5) \
                     AND ?2 IS NULL AND ?6 IS NULL ORDER BY b.entity,b.resource"
                )
            }
        }
    }
}

/// One hour of one bucket.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Hour {
    start: TimeMs,
    events: u64,
    used: Used,
}

/// The next row of one stream of the merge. Rows are ordered by entity and resource; each stream
/// has one at a time.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    entity: EntityId,
    resource: ResourceName,
    index: usize,
    hour: Hour,
}

/// The next row of the stream `index` that counted anything.
fn next_entry(
    rows: &mut Rows<'_>,
    hour: i64,
    is_open: bool,
    index: usize,
) -> Outcome<Option<Entry>> {
    while let Some(row) = rows.next()? {
        let start = TimeMs(hour.saturating_mul(HOUR_MS));
        let hour = if is_open {
            let open = bucket_from_row(row, 2, &[])?.open_hour();
            Hour { start, events: open.events.into(), used: open.used }
        } else {
            let events = u64::try_from(row.get::<_, i64>(2)?).unwrap_or(0);
            Hour { start, events, used: used_at(row, 3)? }
        };
        if hour.events > 0 || !hour.used.is_empty() {
            let (entity, resource) = (name_at(row, 0)?, name_at(row, 1)?);
            return Ok(Some(Entry { entity, resource, index, hour }));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use zae_limiter_core::{Limit, LimitSource, Take, UsageWindow};
    use zae_limiter_store::{BucketStore, ConsumeRequest, LimitsInForce, MemberTake, PageRequest};

    use super::*;
    use crate::SqliteStore;

    /// How many hundreds of steps of SQLite's machine all pages take, of a resource or of
    /// everything, and how many windows they have.
    fn cost_of_all_pages(buckets: u32, window: UsageWindow, is_everything: bool) -> (u64, usize) {
        const COPIES: &str = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<?1) \
                              INSERT INTO bucket SELECT ns,printf('key-%08d',i),resource,refilled_at,stamp,expires_at,disabled,\
                              hour-i%3,events,active,limits FROM n CROSS JOIN bucket WHERE entity='key'";
        const HOURS: &str = "INSERT INTO usage SELECT hour-1-k%2,ns,entity,resource,1,'rpm:1000' \
                             FROM bucket CROSS JOIN (SELECT 1 AS k UNION SELECT 2)";
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("limits.db");
        let store = SqliteStore::open(&path).expect("a store");
        let (entity, resource) = ("key".parse().expect("an id"), "gpt-4".parse().expect("a name"));
        let limits =
            LimitsInForce::new([Limit::per_minute("rpm", 60).expect("a limit")], LimitSource::Call);
        let takes = [Take { limit: 0, amount: Milli::from_tokens(1) }];
        let member = MemberTake {
            entity: &entity,
            resource: &resource,
            limits: &limits,
            takes: &takes,
            absent: &[],
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let members = [member];
        let request = ConsumeRequest::new(&members, TimeMs(1_767_261_600_000));
        runtime.block_on(store.consume(&request)).expect("a decision");
        let filled = Connection::open(&path).expect("a connection");
        filled.execute(COPIES, [buckets]).expect("copies");
        filled.execute(HOURS, []).expect("closed hours");
        let mut conn = store.shared.place.open_reader().expect("a reader");
        let steps = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&steps);
        let count = move || {
            counter.fetch_add(1, Ordering::Relaxed);
            false
        };
        conn.progress_handler(100, Some(count)).expect("a handler");
        let mut query = UsageQuery {
            entity: None,
            resource: (!is_everything).then_some(resource),
            window,
            from: None,
            until: None,
            page: PageRequest::first(100),
        };
        let mut windows = 0;
        loop {
            let page = page(&conn, store.key, &query).expect("a page");
            windows += page.items.len();
            match page.next {
                Some(cursor) => query.page = PageRequest::after(100, cursor),
                None => return (steps.load(Ordering::Relaxed), windows),
            }
        }
    }

    /// Five times the buckets are five times the work, whatever the window.
    #[test]
    fn all_pages_of_usage_cost_in_proportion_to_their_rows() {
        for (window, is_everything) in
            UsageWindow::ALL.into_iter().flat_map(|window| [(window, false), (window, true)])
        {
            let (few, few_windows) = cost_of_all_pages(1_000, window, is_everything);
            let (many, many_windows) = cost_of_all_pages(5_000, window, is_everything);
            assert!(many_windows > 4 * few_windows, "{few_windows} and {many_windows} windows");
            assert!(
                many <= 6 * few,
                "{window}, of everything: {is_everything}: {few} steps for 1000 buckets, {many} for 5000"
            );
        }
    }
}
