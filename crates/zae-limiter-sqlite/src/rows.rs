//! The rows of the table `bucket`: their columns, and the statements that read, write, list and
//! remove them. How the limits of a bucket become bytes is in `pack.rs`.

use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row, Statement};
use zae_limiter_core::{BucketState, ConfigStamp, EntityId, Flag, Limit, ResourceName, TimeMs};
use zae_limiter_store::{BucketView, Level};

use crate::config::{self, columns_of};
use crate::error::{Outcome, corrupt_value};
use crate::pack::{name_at, pack_limits, unpack_limits};
use crate::query;
use crate::spread;
use crate::usage;

/// Which bucket.
#[derive(Clone, Copy)]
pub(crate) struct Key<'a> {
    pub(crate) ns: i64,
    pub(crate) entity: &'a EntityId,
    pub(crate) resource: &'a ResourceName,
}

/// The columns [`bucket_from_row`] reads, in its order.
macro_rules! bucket_columns {
    () => {
        "b.refilled_at,b.stamp,b.expires_at,b.disabled,b.hour,b.events,b.active,b.limits"
    };
}
pub(crate) use bucket_columns;

/// A flag as its column has it: its number, NULL for none.
pub(crate) fn flag_at(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<Flag>> {
    let Some(number) = row.get::<_, Option<u8>>(column)? else { return Ok(None) };
    let flag = Flag::ALL.into_iter().find(|flag| flag_column(*flag) == number);
    let unknown = || corrupt_value(column, "flag", format!("{number} stands for none"));
    flag.map(Some).ok_or_else(unknown)
}

/// A flag for its column: the reverse of [`flag_at`].
pub(crate) fn flag_column(flag: Flag) -> u8 {
    flag as u8
}

/// A bucket from the columns of [`bucket_columns`], which begin at `first`.
pub(crate) fn bucket_from_row(
    row: &Row<'_>,
    first: usize,
    known: &[Limit],
) -> Outcome<BucketState> {
    let blob_at = first + 7;
    let blob = match row.get_ref(blob_at)? {
        ValueRef::Blob(blob) => blob,
        other => {
            let found = format!("{:?}", other.data_type());
            return Err(corrupt_value(blob_at, "limits of a bucket", found).into());
        }
    };
    let unpacked = unpack_limits(blob, known)
        .map_err(|error| corrupt_value(blob_at, "limits of a bucket", error))?;
    let active: u8 = row.get(first + 6)?;
    if usize::from(active) > unpacked.limits.len() {
        return Err(corrupt_value(first + 6, "limits in force", active).into());
    }
    let stamp: i64 = row.get(first + 1)?;
    let stamp = ConfigStamp(u64::try_from(stamp).unwrap_or(0));
    let mut bucket = unpacked.into_bucket(usize::from(active), TimeMs(row.get(first)?), stamp);
    bucket.set_expires_at(row.get::<_, Option<i64>>(first + 2)?.map(TimeMs));
    bucket.flag = flag_at(row, first + 3)?.unwrap_or_default();
    bucket.hour = row.get(first + 4)?;
    bucket.events = row.get(first + 5)?;
    Ok(bucket)
}

/// What a look at one key found: the bucket, if it exists, and whether the namespace is active.
pub(crate) struct Found {
    pub(crate) state: Option<BucketState>,
    pub(crate) is_active: bool,
    /// Buckets of the namespace may not have the flags of their levels yet.
    pub(crate) spreading: bool,
}

const LOAD: &str = concat!(
    "SELECT n.deleted_at IS NULL,EXISTS (SELECT 1 FROM spread s WHERE s.ns=n.key),b.ns,",
    bucket_columns!(),
    " FROM namespace n LEFT JOIN bucket b ON b.ns=n.key AND b.entity=?2 AND b.resource=?3 WHERE n.key=?1"
);

/// Reads a bucket and whether its namespace is active, in one statement.
pub(crate) fn load(conn: &Connection, key: &Key<'_>, known: &[Limit]) -> Outcome<Found> {
    let mut statement = conn.prepare_cached(LOAD)?;
    let mut rows = statement.query((key.ns, key.entity.as_str(), key.resource.as_str()))?;
    let Some(row) = rows.next()? else {
        return Ok(Found { state: None, is_active: false, spreading: false });
    };
    let (is_active, spreading) = (row.get(0)?, row.get(1)?);
    let exists = row.get::<_, Option<i64>>(2)?.is_some();
    let mut state = exists.then(|| bucket_from_row(row, 3, known)).transpose()?;
    if spreading && let Some(state) = &mut state {
        state.flag = config::flag(conn, key)?;
    }
    Ok(Found { state, is_active, spreading })
}

/// Reads a bucket of a namespace that has been looked at before in this transaction, and found to
/// be `spreading` or not.
pub(crate) fn find(
    conn: &Connection,
    key: &Key<'_>,
    known: &[Limit],
    spreading: bool,
) -> Outcome<Option<BucketState>> {
    const SQL: &str = concat!(
        "SELECT ",
        bucket_columns!(),
        " FROM bucket b WHERE b.ns=?1 AND b.entity=?2 AND b.resource=?3"
    );
    let mut statement = conn.prepare_cached(SQL)?;
    let mut rows = statement.query((key.ns, key.entity.as_str(), key.resource.as_str()))?;
    let mut state = rows.next()?.map(|row| bucket_from_row(row, 0, known)).transpose()?;
    if spreading && let Some(state) = &mut state {
        state.flag = config::flag(conn, key)?;
    }
    Ok(state)
}

/// Updates the row of a bucket, its hour included.
pub(crate) const UPDATE: &str = "UPDATE bucket SET refilled_at=?4,stamp=?5,expires_at=?6,hour=?7,events=?8,active=?9,limits=?10 \
                      WHERE ns=?1 AND entity=?2 AND resource=?3";
/// Updates the row of a bucket whose hour stays. The statement does not name `hour`: SQLite
/// rewrites the index of a named column even when its value stays.
pub(crate) const UPDATE_IN_HOUR: &str = "UPDATE bucket SET refilled_at=?4,stamp=?5,expires_at=?6,events=?8,active=?9,limits=?10 \
                      WHERE ns=?1 AND entity=?2 AND resource=?3";
/// Inserts the row of a new bucket.
const INSERT: &str = "INSERT INTO bucket(ns,entity,resource,refilled_at,stamp,expires_at,hour,events,active,limits,disabled) \
                      VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11)";

/// Writes a bucket: `stored` says whether there is a row to update. `blob` is scratch space.
pub(crate) fn save(
    conn: &Connection,
    key: &Key<'_>,
    state: &BucketState,
    stored: bool,
    blob: &mut Vec<u8>,
) -> Outcome<()> {
    let mut statement = conn.prepare_cached(if stored { UPDATE } else { INSERT })?;
    write(&mut statement, key, state, stored, blob)
}

/// As [`save`], with a statement that several rows share: `UPDATE` for those that are stored, else
/// `INSERT`.
pub(crate) fn write(
    statement: &mut Statement<'_>,
    key: &Key<'_>,
    state: &BucketState,
    stored: bool,
    blob: &mut Vec<u8>,
) -> Outcome<()> {
    blob.clear();
    pack_limits(state, blob);
    statement.raw_bind_parameter(1, key.ns)?;
    statement.raw_bind_parameter(2, key.entity.as_str())?;
    statement.raw_bind_parameter(3, key.resource.as_str())?;
    statement.raw_bind_parameter(4, state.refilled_at.0)?;
    statement.raw_bind_parameter(5, i64::try_from(state.stamp.0).unwrap_or(i64::MAX))?;
    statement.raw_bind_parameter(6, state.expires_at().map(|at| at.0))?;
    statement.raw_bind_parameter(7, state.hour)?;
    statement.raw_bind_parameter(8, state.events)?;
    statement.raw_bind_parameter(9, u8::try_from(state.active()).unwrap_or(u8::MAX))?;
    statement.raw_bind_parameter(10, blob.as_slice())?;
    if !stored {
        statement.raw_bind_parameter(11, flag_column(state.flag))?;
    }
    statement.raw_execute()?;
    Ok(())
}

/// Removes a bucket; the counts of its open hour go into the history first.
pub(crate) fn remove(conn: &Connection, key: &Key<'_>, state: &BucketState) -> Outcome<()> {
    usage::spill(conn, key, &state.open_hour())?;
    const SQL: &str = "DELETE FROM bucket WHERE ns=?1 AND entity=?2 AND resource=?3";
    query::change(conn, SQL, (key.ns, key.entity.as_str(), key.resource.as_str()))?;
    Ok(())
}

/// The buckets of one entity, by resource.
pub(crate) const OF_ENTITY: &str = concat!(
    "SELECT b.entity,b.resource,",
    bucket_columns!(),
    " FROM bucket b WHERE b.ns=?1 AND b.entity=?2 AND b.resource>?3 ORDER BY b.resource LIMIT ?4"
);
/// The buckets of one resource, by entity.
pub(crate) const OF_RESOURCE: &str = concat!(
    "SELECT b.entity,b.resource,",
    bucket_columns!(),
    " FROM bucket b WHERE b.ns=?1 AND b.resource=?2 AND b.entity>?3 ORDER BY b.entity LIMIT ?4"
);

/// All buckets, by entity and resource.
pub(crate) const OF_NAMESPACE: &str = concat!(
    "SELECT b.entity,b.resource,",
    bucket_columns!(),
    " FROM bucket b WHERE b.ns=?1 AND (b.entity,b.resource)>(?2,?3) ORDER BY b.entity,b.resource LIMIT ?4"
);

/// Lists buckets by [`OF_ENTITY`] or [`OF_RESOURCE`]: namespace, name, where to go on, how many; by
/// [`OF_NAMESPACE`] the two names are where to go on.
pub(crate) fn views(
    conn: &Connection,
    sql: &str,
    params: (i64, &str, &str, u32),
) -> Outcome<Vec<BucketView>> {
    let spreading = spread::is_spreading(conn, params.0)?;
    let mut statement = conn.prepare_cached(sql)?;
    let mut rows = statement.query(params)?;
    let mut views = Vec::new();
    while let Some(row) = rows.next()? {
        let (entity, resource) = (name_at(row, 0)?, name_at(row, 1)?);
        let mut state = bucket_from_row(row, 2, &[])?;
        if spreading {
            let key = Key { ns: params.0, entity: &entity, resource: &resource };
            state.flag = config::flag(conn, &key)?;
        }
        views.push(BucketView { entity, resource, state });
    }
    Ok(views)
}

/// How many buckets a level covers.
pub(crate) fn count_covered(conn: &Connection, ns: i64, level: &Level) -> Outcome<u64> {
    let covered = match level {
        Level::EntityResource(..) => "ns=?1 AND entity=?2 AND resource=?3",
        Level::Entity(_) => "ns=?1 AND entity=?2 AND ?3=''",
        Level::Resource(_) => "ns=?1 AND ?2='' AND resource=?3",
        Level::System => return Ok(0),
    };
    let (entity, resource) = columns_of(level);
    let sql = format!("SELECT count(*) FROM bucket WHERE {covered}");
    let count: i64 =
        conn.prepare_cached(&sql)?.query_row((ns, entity, resource), |row| row.get(0))?;
    Ok(u64::try_from(count).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use rusqlite::StatementStatus;

    use super::*;
    use crate::SqliteStore;

    /// Without a stable plan SQLite plans this join anew whenever other values are bound, at twenty
    /// times its cost.
    #[test]
    fn a_bucket_is_read_without_planning_anew() {
        let directory = tempfile::tempdir().expect("a directory");
        let store = SqliteStore::open(directory.path().join("limits.db")).expect("a store");
        let resource = "gpt-4".parse().expect("a name");
        let planned = store.read("test", |conn| {
            for id in ["a", "b", "c"] {
                let entity = id.parse().expect("an id");
                load(conn, &Key { ns: store.key, entity: &entity, resource: &resource }, &[])?;
            }
            Ok(conn.prepare_cached(LOAD)?.get_status(StatementStatus::RePrepare))
        });
        assert_eq!(planned.expect("a read"), 0);
    }
}
