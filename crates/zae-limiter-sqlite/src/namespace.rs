//! The registry of namespaces.

use std::sync::Arc;

use rusqlite::types::Value;
use rusqlite::{Connection, Row, params_from_iter};
use zae_limiter_core::{AuditAction, NamespaceId, NamespaceName, TimeMs};
use zae_limiter_store::{
    Change, Namespace, NamespaceStatus, NamespaceStore, Page, PageRequest, Purged, Store,
    StoreError, StoreFuture, audit,
};

use crate::SqliteStore;
use crate::error::{Outcome, corrupt_value};
use crate::history;
use crate::pack::name_at;
use crate::page::paged;
use crate::query;

/// Rows that one transaction of a purge removes at most.
const PURGE_ROWS_MAX: u32 = 500;

/// The tables with data of a namespace, with the columns that name a row.
const TABLES: [(&str, &str); 7] = [
    ("bucket", "ns,entity,resource"),
    ("config", "ns,entity,resource"),
    ("entity", "ns,id"),
    ("usage", "hour,ns,entity,resource"),
    ("spread", "ns,kind,entity,resource"),
    ("managed", "ns,part"),
    ("audit", "seq"),
];

/// The key of an active namespace, and its id.
pub(crate) fn find(conn: &Connection, name: &NamespaceName) -> Outcome<Option<(i64, NamespaceId)>> {
    Ok(active(conn, name)?.map(|(key, namespace)| (key, namespace.id)))
}

impl NamespaceStore for SqliteStore {
    fn register_namespace<'a>(
        &'a self,
        name: &'a NamespaceName,
        id: &'a NamespaceId,
        change: &'a Change,
    ) -> StoreFuture<'a, Namespace> {
        let (name, id, change) = (name.clone(), id.clone(), change.clone());
        Box::pin(self.write("register_namespace", move |conn| register(conn, &name, &id, &change)))
    }

    fn namespaces<'a>(&'a self, page: &'a PageRequest) -> StoreFuture<'a, Page<Namespace>> {
        const SQL: &str = "SELECT key,id,name,status,created_at,deleted_at FROM namespace \
                           WHERE deleted_at IS NULL AND name>?1 ORDER BY name LIMIT ?2";
        let page = page.clone();
        Box::pin(self.read_apart("namespaces", move |conn| {
            paged(&page, list(conn, SQL), |namespace| namespace.name.to_string())
        }))
    }

    fn namespace<'a>(&'a self, name: &'a NamespaceName) -> StoreFuture<'a, Option<Namespace>> {
        Box::pin(async move {
            self.read("namespace", |conn| Ok(active(conn, name)?.map(|(_, namespace)| namespace)))
        })
    }

    fn delete_namespace<'a>(
        &'a self,
        name: &'a NamespaceName,
        change: &'a Change,
    ) -> StoreFuture<'a, bool> {
        let (name, change) = (name.clone(), change.clone());
        Box::pin(self.write("delete_namespace", move |conn| delete(conn, &name, &change)))
    }

    fn recover_namespace<'a>(
        &'a self,
        id: &'a NamespaceId,
        change: &'a Change,
    ) -> StoreFuture<'a, Namespace> {
        let (id, change) = (id.clone(), change.clone());
        Box::pin(self.write("recover_namespace", move |conn| recover(conn, &id, &change)))
    }

    fn orphan_namespaces<'a>(&'a self, page: &'a PageRequest) -> StoreFuture<'a, Page<Namespace>> {
        const SQL: &str = "SELECT key,id,name,status,created_at,deleted_at FROM namespace \
                           WHERE deleted_at IS NOT NULL AND id>?1 ORDER BY id LIMIT ?2";
        let page = page.clone();
        Box::pin(self.read_apart("orphan_namespaces", move |conn| {
            paged(&page, list(conn, SQL), |namespace| namespace.id.to_string())
        }))
    }

    fn purge_namespace<'a>(
        &'a self,
        id: &'a NamespaceId,
        change: &'a Change,
    ) -> StoreFuture<'a, Purged> {
        Box::pin(self.purge(id.clone(), change.clone()))
    }

    fn current_namespace(&self) -> NamespaceName {
        self.name.clone()
    }

    fn current_namespace_id(&self) -> Option<NamespaceId> {
        self.id.clone()
    }

    fn scoped<'a>(&'a self, name: &'a NamespaceName) -> StoreFuture<'a, Arc<dyn Store>> {
        Box::pin(async move {
            let handle: Arc<dyn Store> = Arc::new(self.in_namespace(name)?);
            Ok(handle)
        })
    }
}

impl SqliteStore {
    /// A handle bound to another namespace, as [`NamespaceStore::scoped`], with its own type.
    pub fn in_namespace(&self, name: &NamespaceName) -> Result<SqliteStore, StoreError> {
        let (key, id) = self.read("scoped", |conn| {
            let missing = || StoreError::namespace_not_registered("scoped", name);
            Ok(find(conn, name)?.ok_or_else(missing)?)
        })?;
        Ok(SqliteStore { shared: Arc::clone(&self.shared), key, name: name.clone(), id: Some(id) })
    }

    /// Every step is a transaction of its own, so that no caller waits long for the lock. The audit
    /// event is written with the first step, before anything is gone. After a crash in between the
    /// namespace is `Purging`, and the next purge goes on.
    async fn purge(&self, id: NamespaceId, change: Change) -> Result<Purged, StoreError> {
        const OPERATION: &str = "purge_namespace";
        let key = {
            let (id, here) = (id.clone(), self.key);
            self.write(OPERATION, move |conn| mark_purging(conn, &id, here, &change)).await?
        };
        let mut records = 0;
        loop {
            let removed = self.write_step(OPERATION, move |conn| remove_some(conn, key)).await?;
            if removed == 0 {
                break;
            }
            records += removed;
        }
        self.write(OPERATION, move |conn| finish_purge(conn, &id)).await?;
        Ok(Purged { records })
    }
}

fn from_row(row: &Row<'_>) -> Outcome<(i64, Namespace)> {
    let status = match row.get_ref(3)?.as_str() {
        Ok("active") => NamespaceStatus::Active,
        Ok("deleted") => NamespaceStatus::Deleted,
        Ok("purging") => NamespaceStatus::Purging,
        other => return Err(corrupt_value(3, "status of a namespace", format!("{other:?}")).into()),
    };
    let (created_at, deleted_at) = (TimeMs(row.get(4)?), row.get::<_, Option<i64>>(5)?.map(TimeMs));
    Ok((
        row.get(0)?,
        Namespace { id: name_at(row, 1)?, name: name_at(row, 2)?, status, created_at, deleted_at },
    ))
}

/// Fetches a page of namespaces.
fn list(conn: &Connection, sql: &str) -> impl FnOnce(&str, u32) -> Outcome<Vec<Namespace>> {
    move |after, limit| query::all(conn, sql, (after, limit), |row| Ok(from_row(row)?.1))
}

fn active(conn: &Connection, name: &NamespaceName) -> Outcome<Option<(i64, Namespace)>> {
    const SQL: &str = "SELECT key,id,name,status,created_at,deleted_at FROM namespace WHERE name=?1 AND deleted_at IS NULL";
    query::first(conn, SQL, [name.as_str()], from_row)
}

fn by_id(conn: &Connection, id: &NamespaceId) -> Outcome<(i64, Namespace)> {
    const SQL: &str = "SELECT key,id,name,status,created_at,deleted_at FROM namespace WHERE id=?1";
    let found = query::first(conn, SQL, [id.as_str()], from_row)?;
    Ok(found.ok_or_else(|| StoreError::namespace_missing("namespace", id))?)
}

fn register(
    conn: &Connection,
    name: &NamespaceName,
    id: &NamespaceId,
    change: &Change,
) -> Outcome<Namespace> {
    if let Some((_, namespace)) = active(conn, name)? {
        return Ok(namespace);
    }
    const USED: &str = "SELECT EXISTS (SELECT 1 FROM namespace WHERE id=?1) OR EXISTS (SELECT 1 FROM namespace_purged WHERE id=?1)";
    if conn.query_row(USED, [id.as_str()], |row| row.get(0))? {
        return Err(StoreError::namespace_id_used(id).into());
    }
    const SQL: &str = "INSERT INTO namespace(id,name,status,created_at) VALUES(?1,?2,'active',?3)";
    conn.execute(SQL, (id.as_str(), name.as_str(), change.at.0))?;
    let key = conn.last_insert_rowid();
    let (id, name, status) = (id.clone(), name.clone(), NamespaceStatus::Active);
    let namespace = Namespace { id, name, status, created_at: change.at, deleted_at: None };
    record(conn, key, AuditAction::NamespaceRegistered, &namespace, change)?;
    Ok(namespace)
}

fn delete(conn: &Connection, name: &NamespaceName, change: &Change) -> Outcome<bool> {
    let Some((key, namespace)) = active(conn, name)? else { return Ok(false) };
    const SQL: &str =
        "UPDATE namespace SET status='deleted',deleted_at=?2,generation=generation+1 WHERE key=?1";
    conn.execute(SQL, (key, change.at.0))?;
    record(conn, key, AuditAction::NamespaceDeleted, &namespace, change)?;
    Ok(true)
}

fn recover(conn: &Connection, id: &NamespaceId, change: &Change) -> Outcome<Namespace> {
    let (key, namespace) = by_id(conn, id)?;
    namespace.check_recoverable(find(conn, &namespace.name)?.is_some())?;
    const SQL: &str =
        "UPDATE namespace SET status='active',deleted_at=NULL,generation=generation+1 WHERE key=?1";
    conn.execute(SQL, [key])?;
    let namespace = Namespace { status: NamespaceStatus::Active, deleted_at: None, ..namespace };
    record(conn, key, AuditAction::NamespaceRecovered, &namespace, change)?;
    Ok(namespace)
}

fn mark_purging(conn: &Connection, id: &NamespaceId, here: i64, change: &Change) -> Outcome<i64> {
    let (key, namespace) = by_id(conn, id)?;
    namespace.check_purgeable()?;
    conn.execute("UPDATE namespace SET status='purging' WHERE key=?1", [key])?;
    // The log of the purged namespace goes with it, so the event is recorded in the namespace of
    // the caller.
    const ACTIVE: &str = "SELECT 1 FROM namespace WHERE key=?1 AND deleted_at IS NULL";
    if query::value::<i64>(conn, ACTIVE, [here])?.is_some() {
        record(conn, here, AuditAction::NamespacePurged, &namespace, change)?;
    }
    Ok(key)
}

/// Removes some rows of the first table that has any, and returns how many. The rows go one by one,
/// by their keys: for a list of keys SQLite would go over all rows of the namespace.
fn remove_some(conn: &Connection, key: i64) -> Outcome<u64> {
    for (table, columns) in TABLES {
        let width = columns.split(',').count();
        let read = |row: &Row<'_>| {
            let values: Result<Vec<Value>, _> = (0..width).map(|column| row.get(column)).collect();
            Ok(values?)
        };
        let some = format!("SELECT {columns} FROM {table} WHERE ns=?1 LIMIT ?2");
        let doomed = query::all(conn, &some, (key, PURGE_ROWS_MAX), read)?;
        if doomed.is_empty() {
            continue;
        }
        let is_it = columns.split(',').zip(1..).map(|(column, at)| format!("{column}=?{at}"));
        let is_it = is_it.collect::<Vec<_>>().join(" AND ");
        let delete = format!("DELETE FROM {table} WHERE {is_it}");
        for row in &doomed {
            query::change(conn, &delete, params_from_iter(row))?;
        }
        return Ok(doomed.len() as u64);
    }
    Ok(0)
}

fn finish_purge(conn: &Connection, id: &NamespaceId) -> Outcome<()> {
    // The foreign keys refuse this if any row is left. Another process may have finished the purge.
    conn.execute("DELETE FROM namespace WHERE id=?1 AND status='purging'", [id.as_str()])?;
    conn.execute("INSERT OR IGNORE INTO namespace_purged(id) VALUES(?1)", [id.as_str()])?;
    Ok(())
}

fn record(
    conn: &Connection,
    ns: i64,
    action: AuditAction,
    namespace: &Namespace,
    change: &Change,
) -> Outcome<()> {
    history::record(conn, ns, &audit::of_namespace(change, action, namespace))
}
