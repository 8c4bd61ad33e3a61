//! What files of limits manage, as rows.

use rusqlite::Connection;
use zae_limiter_store::{Change, Managed, ManagedChange, audit};

use crate::config::{as_stored, next_generation, version_at};
use crate::error::Outcome;
use crate::history;
use crate::query;

pub(crate) fn stored(conn: &Connection, ns: i64, part: u32) -> Outcome<Option<Managed>> {
    const SQL: &str = "SELECT text,version FROM managed WHERE ns=?1 AND part=?2";
    query::first(conn, SQL, (ns, part), |row| {
        Ok(Managed { text: row.get(0)?, version: version_at(row, 1)? })
    })
}

pub(crate) fn store(
    conn: &Connection,
    ns: i64,
    part: u32,
    new: &ManagedChange,
    change: &Change,
) -> Outcome<u64> {
    new.check(part)?;
    // As for a level: the generation of the last change, which never comes back.
    let version = next_generation(conn, ns)?;
    new.check_version(stored(conn, ns, part)?.map_or(0, |found| found.version))?;
    const SQL: &str = "INSERT OR REPLACE INTO managed(ns,part,text,version) VALUES(?1,?2,?3,?4)";
    query::change(conn, SQL, (ns, part, new.text.as_str(), as_stored(version)))?;
    history::record(conn, ns, &audit::limits_applied(change, new))?;
    Ok(version)
}
