//! Changes that concern many buckets: written down at once, done in steps.
//!
//! A flag of a level binds from the transaction that stores it: a row of the table `spread` says
//! that buckets may not have it yet, and as long as there is one in their namespace takes ask the
//! configuration instead of the bucket. Then the buckets get the flag, a bounded number per
//! transaction, by whichever process finds the row. So no caller waits for a change that reaches a
//! million buckets, and a crash in between leaves nothing undone that a caller could see.

use rusqlite::{Connection, Row};
use zae_limiter_core::{EntityId, ResourceName};
use zae_limiter_store::Level;

use crate::config::columns_of;
use crate::error::Outcome;
use crate::pack::name_at;
use crate::query;
use crate::rows::{self, Key, bucket_columns, bucket_from_row};

/// Buckets that one transaction changes at most.
pub(crate) const STEP_ROWS: u32 = 1_000;

/// The strongest level with a flag decides: (entity, resource), then (entity, ''), then ('',
/// resource).
const FLAG: &str = "coalesce(\
    (SELECT c.disabled FROM config c WHERE c.ns=bucket.ns AND c.entity=bucket.entity AND c.resource=bucket.resource),\
    (SELECT c.disabled FROM config c WHERE c.ns=bucket.ns AND c.entity=bucket.entity AND c.resource=''),\
    (SELECT c.disabled FROM config c WHERE c.ns=bucket.ns AND c.entity='' AND c.resource=bucket.resource),0)";

/// True while buckets of the namespace may have flags that their levels no longer have, or may
/// belong to a deleted entity.
pub(crate) fn is_spreading(conn: &Connection, ns: i64) -> Outcome<bool> {
    const SQL: &str = "SELECT EXISTS (SELECT 1 FROM spread WHERE ns=?1)";
    Ok(conn.prepare_cached(SQL)?.query_row([ns], |row| row.get(0))?)
}

/// The flag of a level has changed: does the first step for the buckets it covers. True when more
/// is left.
pub(crate) fn begin_flag(conn: &Connection, ns: i64, level: &Level) -> Outcome<bool> {
    let (entity, resource) = columns_of(level);
    go_on(conn, (ns, "flag", entity, resource), "")
}

/// An entity is gone: does the first step for its buckets. True when more is left.
pub(crate) fn begin_delete(conn: &Connection, ns: i64, id: &EntityId) -> Outcome<bool> {
    go_on(conn, (ns, "delete", id.as_str(), ""), "")
}

/// One more step for the buckets of an entity that is gone. True when more is left.
pub(crate) fn delete_step(conn: &Connection, ns: i64, id: &EntityId) -> Outcome<bool> {
    const SQL: &str = "SELECT after FROM spread WHERE ns=?1 AND kind='delete' AND entity=?2";
    let after: Option<String> = query::value(conn, SQL, (ns, id.as_str()))?;
    // `None`: another process has finished the deletion, or has created the entity anew.
    after.map_or(Ok(false), |after| go_on(conn, (ns, "delete", id.as_str(), ""), &after))
}

/// An entity was created again: the buckets that are left of the deleted one stay, or a bucket in
/// use would be forgotten.
pub(crate) fn stop_delete(conn: &Connection, ns: i64, id: &EntityId) -> Outcome<()> {
    const SQL: &str = "DELETE FROM spread WHERE ns=?1 AND kind='delete' AND entity=?2";
    query::change(conn, SQL, (ns, id.as_str()))?;
    Ok(())
}

/// The rows of one change: namespace, kind, entity, resource.
type Scope<'a> = (i64, &'a str, &'a str, &'a str);

/// One step behind `after`. True when more is left.
fn go_on(conn: &Connection, scope: Scope<'_>, after: &str) -> Outcome<bool> {
    let next = do_step(conn, scope, after)?;
    let is_left = next.is_some();
    note(conn, scope, next)?;
    Ok(is_left)
}

/// One step of a change that has begun. True when more is left.
pub(crate) fn step(conn: &Connection) -> Outcome<bool> {
    type Begun = (i64, String, String, String, String);
    let first = "SELECT ns,kind,entity,resource,after FROM spread LIMIT 1";
    let read =
        |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?));
    let found: Option<Begun> = query::first(conn, first, [], read)?;
    let Some((ns, kind, entity, resource, after)) = found else { return Ok(false) };
    go_on(conn, (ns, kind.as_str(), entity.as_str(), resource.as_str()), &after)?;
    Ok(query::value::<i64>(conn, "SELECT 1 FROM spread LIMIT 1", [])?.is_some())
}

/// Remembers how far the change has come; `None` is the end.
fn note(
    conn: &Connection,
    (ns, kind, entity, resource): Scope<'_>,
    next: Option<String>,
) -> Outcome<()> {
    match next {
        Some(after) => {
            const SQL: &str = "INSERT OR REPLACE INTO spread(ns,kind,entity,resource,after) VALUES(?1,?2,?3,?4,?5)";
            query::change(conn, SQL, (ns, kind, entity, resource, after))?;
        }
        None => {
            const SQL: &str =
                "DELETE FROM spread WHERE ns=?1 AND kind=?2 AND entity=?3 AND resource=?4";
            query::change(conn, SQL, (ns, kind, entity, resource))?;
        }
    }
    Ok(())
}

/// One step behind `after`. Returns where it ended, or `None` at the end of its rows.
fn do_step(
    conn: &Connection,
    (ns, kind, entity, resource): Scope<'_>,
    after: &str,
) -> Outcome<Option<String>> {
    match (kind, entity, resource) {
        ("delete", entity, _) => remove_buckets(conn, ns, entity, after),
        (_, "", resource) => {
            const LAST: &str = "SELECT entity FROM bucket INDEXED BY bucket_resource \
                                WHERE ns=?1 AND resource=?2 AND entity>?3 ORDER BY entity LIMIT 1 OFFSET ?4";
            let update = format!(
                "UPDATE bucket INDEXED BY bucket_resource SET disabled={FLAG} \
                 WHERE ns=?1 AND resource=?2 AND entity>?3 AND entity<=coalesce(?4,x'') AND disabled<>{FLAG}"
            );
            flag_some(conn, (LAST, &update), (ns, resource, after))
        }
        (_, entity, "") => {
            const LAST: &str = "SELECT resource FROM bucket WHERE ns=?1 AND entity=?2 AND resource>?3 ORDER BY resource LIMIT 1 OFFSET ?4";
            let update = format!(
                "UPDATE bucket SET disabled={FLAG} \
                 WHERE ns=?1 AND entity=?2 AND resource>?3 AND resource<=coalesce(?4,x'') AND disabled<>{FLAG}"
            );
            flag_some(conn, (LAST, &update), (ns, entity, after))
        }
        (_, entity, resource) => {
            let update = format!(
                "UPDATE bucket SET disabled={FLAG} WHERE ns=?1 AND entity=?2 AND resource=?3"
            );
            conn.prepare_cached(&update)?.execute((ns, entity, resource))?;
            Ok(None)
        }
    }
}

/// Brings the flags of the next buckets up to date. `last` finds the last bucket of the step, if
/// there are more. Without one the upper bound is an empty blob, which is greater than every text.
fn flag_some(
    conn: &Connection,
    (last, update): (&str, &str),
    (ns, name, after): (i64, &str, &str),
) -> Outcome<Option<String>> {
    let last: Option<String> = query::value(conn, last, (ns, name, after, STEP_ROWS - 1))?;
    query::change(conn, update, (ns, name, after, &last))?;
    Ok(last)
}

/// Removes some buckets of an entity; the counts of their open hours go into the history first.
/// Each bucket is removed once: a bucket that was made since, by a caller that goes on using the
/// name, lies behind `after` and stays.
fn remove_buckets(
    conn: &Connection,
    ns: i64,
    entity: &str,
    after: &str,
) -> Outcome<Option<String>> {
    const SQL: &str = concat!(
        "SELECT b.entity,b.resource,",
        bucket_columns!(),
        " FROM bucket b WHERE b.ns=?1 AND b.entity=?2 AND b.resource>?3 ORDER BY b.resource LIMIT ?4"
    );
    let read = |row: &Row<'_>| {
        let (id, resource): (EntityId, ResourceName) = (name_at(row, 0)?, name_at(row, 1)?);
        Ok((id, resource, bucket_from_row(row, 2, &[])?))
    };
    let mut doomed = query::all(conn, SQL, (ns, entity, after, STEP_ROWS / 2), read)?;
    for (entity, resource, state) in &doomed {
        rows::remove(conn, &Key { ns, entity, resource }, state)?;
    }
    let is_end = doomed.len() < usize::try_from(STEP_ROWS / 2).unwrap_or(usize::MAX);
    Ok(doomed.pop().filter(|_| !is_end).map(|(_, resource, _)| resource.to_string()))
}
