//! Statements that run often: prepared once per connection, their answers read to the end.

use rusqlite::types::FromSql;
use rusqlite::{Connection, Params, Row};

use crate::error::Outcome;

/// The first row of an answer, if there is one.
pub(crate) fn first<T>(
    conn: &Connection,
    sql: &str,
    params: impl Params,
    read: impl FnOnce(&Row<'_>) -> Outcome<T>,
) -> Outcome<Option<T>> {
    let mut statement = conn.prepare_cached(sql)?;
    let mut rows = statement.query(params)?;
    rows.next()?.map(read).transpose()
}

/// The first column of the first row, if there is one.
pub(crate) fn value<T: FromSql>(
    conn: &Connection,
    sql: &str,
    params: impl Params,
) -> Outcome<Option<T>> {
    first(conn, sql, params, |row| Ok(row.get(0)?))
}

/// All rows of an answer.
pub(crate) fn all<T>(
    conn: &Connection,
    sql: &str,
    params: impl Params,
    read: impl Fn(&Row<'_>) -> Outcome<T>,
) -> Outcome<Vec<T>> {
    let mut statement = conn.prepare_cached(sql)?;
    let mut rows = statement.query(params)?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        found.push(read(row)?);
    }
    Ok(found)
}

/// Changes rows and returns how many.
pub(crate) fn change(conn: &Connection, sql: &str, params: impl Params) -> Outcome<usize> {
    Ok(conn.prepare_cached(sql)?.execute(params)?)
}
