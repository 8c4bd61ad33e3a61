//! The versions of the schema, and how a file gets from one to the next.

use std::cmp::Ordering;
use std::path::Path;

use rusqlite::Connection;
use zae_limiter_core::{NamespaceId, NamespaceName};
use zae_limiter_store::{DEFAULT_NAMESPACE, StoreErrorKind};

use crate::connection::Place;
use crate::error::{Outcome, refused};

/// "zael" in ASCII: whose file this is.
const APPLICATION_ID: i32 = i32::from_be_bytes(*b"zael");

/// Step `n` brings a file from version `n` to version `n + 1`. Steps are never changed once
/// released, only added.
const STEPS: &[&str] =
    &[include_str!("schema.sql"), include_str!("schema_2.sql"), include_str!("schema_3.sql")];

/// The version this code reads and writes.
pub(crate) fn current_version() -> u32 {
    u32::try_from(STEPS.len()).unwrap_or(u32::MAX)
}

/// The version a file has.
pub(crate) fn version(conn: &Connection) -> Outcome<u32> {
    Ok(conn.prepare_cached("PRAGMA user_version")?.query_row([], |row| row.get(0))?)
}

/// Refuses files of other products and of newer versions of this one.
pub(crate) fn check(conn: &Connection, path: &Path) -> Outcome<()> {
    // The order matters: another process may be creating the file, and each read then sees at least
    // as much of it as the read before.
    let (is_new, version) = (is_empty(conn)?, version(conn)?);
    let application: i32 = conn.pragma_query_value(None, "application_id", |row| row.get(0))?;
    if application != APPLICATION_ID && !(application == 0 && version == 0 && is_new) {
        let message = format!(
            "{}: a database of another application (id {application:#010x}, expected {APPLICATION_ID:#010x}); choose another path",
            path.display()
        );
        return Err(refused(StoreErrorKind::Incompatible, message));
    }
    let ours = current_version();
    if version > ours {
        let message = format!(
            "{}: the file has schema version {version}, this process knows versions up to {ours}; upgrade this process",
            path.display()
        );
        return Err(refused(StoreErrorKind::Incompatible, message));
    }
    Ok(())
}

/// Refuses files of other versions: those of older ones because a reader cannot migrate, those of
/// newer ones because another process has migrated the file since it was opened.
pub(crate) fn require_current(conn: &Connection, path: &Path) -> Outcome<()> {
    let (found, ours) = (version(conn)?, current_version());
    let advice = match found.cmp(&ours) {
        Ordering::Equal => return Ok(()),
        Ordering::Less => "open it once for writing to migrate it",
        Ordering::Greater => "upgrade this process",
    };
    let shown = path.display();
    let message = format!(
        "{shown}: the file has schema version {found}, this process needs version {ours}; {advice}"
    );
    Err(refused(StoreErrorKind::Incompatible, message))
}

/// Brings the file up to date. Runs inside a transaction of the caller: all steps or none.
pub(crate) fn migrate(conn: &Connection, place: &Place) -> Outcome<()> {
    // Another process may have migrated since the first look.
    check(conn, &place.path)?;
    if apply(conn, STEPS)? == 0 {
        let name: NamespaceName = DEFAULT_NAMESPACE
            .parse()
            .map_err(|_| refused(StoreErrorKind::Internal, "the default name is valid"))?;
        let id = NamespaceId::from_entropy(place.options.entropy.next_u64());
        let sql =
            "INSERT INTO namespace (id, name, status, created_at) VALUES (?1, ?2, 'active', ?3)";
        conn.execute(sql, (id.as_str(), name.as_str(), place.options.clock.now().0))?;
    }
    Ok(())
}

/// Runs the steps the file has not seen yet. Returns the version it had.
fn apply(conn: &Connection, steps: &[&str]) -> Outcome<u32> {
    let before = version(conn)?;
    let (mut after, done) = (before, usize::try_from(before).unwrap_or(usize::MAX));
    for step in steps.iter().skip(done) {
        conn.execute_batch(step)?;
        after += 1;
    }
    if after > before {
        conn.pragma_update(None, "application_id", APPLICATION_ID)?;
        conn.pragma_update(None, "user_version", after)?;
    }
    Ok(before)
}

/// True for a file without content.
pub(crate) fn is_empty(conn: &Connection) -> Outcome<bool> {
    Ok(conn.query_row("SELECT NOT EXISTS (SELECT 1 FROM sqlite_schema)", [], |row| row.get(0))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tables(conn: &Connection) -> Vec<String> {
        let mut statement = conn
            .prepare("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")
            .expect("valid");
        let rows = statement.query_map([], |row| row.get(0)).expect("readable");
        rows.map(|row| row.expect("a name")).collect()
    }

    #[test]
    fn an_older_file_gets_only_the_steps_it_lacks() {
        let conn = Connection::open_in_memory().expect("a database");
        let steps = ["CREATE TABLE one (x)", "CREATE TABLE two (x)", "INSERT INTO one VALUES (3)"];
        assert_eq!(apply(&conn, &steps[..1]).expect("a new file"), 0);
        assert_eq!(
            (tables(&conn), version(&conn).expect("a version")),
            (vec!["one".to_owned()], 1)
        );
        assert_eq!(apply(&conn, &steps).expect("version 1"), 1);
        assert_eq!(
            (tables(&conn), version(&conn).expect("a version")),
            (vec!["one".to_owned(), "two".to_owned()], 3)
        );
        assert_eq!(apply(&conn, &steps).expect("nothing to do"), 3);
        let rows: i64 =
            conn.query_row("SELECT count(*) FROM one", [], |row| row.get(0)).expect("a count");
        assert_eq!(rows, 1);
    }

    #[test]
    fn a_failed_migration_leaves_the_old_version() {
        let conn = Connection::open_in_memory().expect("a database");
        apply(&conn, &["CREATE TABLE one (x)"]).expect("a new file");
        conn.execute_batch("BEGIN IMMEDIATE").expect("begin");
        let steps = ["CREATE TABLE one (x)", "CREATE TABLE two (x)", "CREATE TABLE one (x)"];
        let result = apply(&conn, &steps);
        assert!(crate::connection::finish(&conn, result).is_err());
        assert_eq!(
            (tables(&conn), version(&conn).expect("a version")),
            (vec!["one".to_owned()], 1)
        );
    }

    #[test]
    fn sqlite_is_new_enough_for_several_writers() {
        // 3.51.3 fixes a corruption of the write-ahead log that strikes when several processes
        // write.
        assert!(rusqlite::version_number() >= 3_051_003, "{}", rusqlite::version());
    }
}
