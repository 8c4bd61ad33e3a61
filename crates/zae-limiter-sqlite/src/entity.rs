//! Entities: rows of the table.

use std::collections::BTreeMap;

use rusqlite::{Connection, Row};
use zae_limiter_core::{Entity, EntityId, TimeMs};
use zae_limiter_store::{
    CHILDREN_NAMED_MAX, Change, DeletedEntity, EntityUpdate, Lineage, NewEntity, StoreError, audit,
};

use crate::config::{as_stored, next_generation, version_at};
use crate::error::{Outcome, corrupt_value};
use crate::history;
use crate::pack::{name_at, optional_name_at, pairs_from_text, pairs_to_text};
use crate::query;
use crate::spread;

pub(crate) fn create(
    conn: &Connection,
    ns: i64,
    new: &NewEntity,
    change: &Change,
) -> Outcome<Entity> {
    next_generation(conn, ns)?;
    if find(conn, ns, &new.id)?.is_some() {
        return Err(StoreError::entity_exists(&new.id).into());
    }
    let mut lineage = Lineage::of(new);
    while let Some(id) = lineage.wanted() {
        let found = find(conn, ns, id)?;
        lineage.found(found.map(|entity| entity.cascades_to().cloned()))?;
    }
    spread::stop_delete(conn, ns, &new.id)?;
    let entity = new.created_at(change.at, versions_gone(conn)? + 1);
    store(conn, ns, &entity)?;
    history::record(conn, ns, &audit::entity_created(change, &entity))?;
    Ok(entity)
}

pub(crate) fn update(
    conn: &Connection,
    ns: i64,
    (id, expected_version): (&EntityId, u64),
    update: &EntityUpdate,
    change: &Change,
) -> Outcome<Entity> {
    next_generation(conn, ns)?;
    let missing = || StoreError::entity_missing("update_entity", id);
    let before = find(conn, ns, id)?.ok_or_else(missing)?;
    let entity = update.apply(&before, expected_version)?;
    store(conn, ns, &entity)?;
    history::record(conn, ns, &audit::entity_updated(change, &entity, &before))?;
    Ok(entity)
}

/// Deletes an entity, its limits and the first of its buckets; true when more of them are left.
/// `buckets` is how many it had.
pub(crate) fn delete(
    conn: &Connection,
    ns: i64,
    id: &EntityId,
    buckets: u64,
    change: &Change,
) -> Outcome<(DeletedEntity, bool)> {
    next_generation(conn, ns)?;
    let missing = || StoreError::entity_missing("delete_entity", id);
    let entity = find(conn, ns, id)?.ok_or_else(missing)?;
    let enough = u32::try_from(CHILDREN_NAMED_MAX + 1).unwrap_or(u32::MAX);
    let named = children(conn, ns, id, "", enough)?;
    if !named.is_empty() {
        return Err(StoreError::has_children(id, named.iter().map(|child| &child.id)).into());
    }
    let configs =
        conn.execute("DELETE FROM config WHERE ns=?1 AND entity=?2", (ns, id.as_str()))?;
    conn.execute("DELETE FROM entity WHERE ns=?1 AND id=?2", (ns, id.as_str()))?;
    note_version_gone(conn, entity.version)?;
    let deleted = DeletedEntity { buckets, configs: configs as u64 };
    let removed = [("configs", deleted.configs), ("buckets", deleted.buckets)];
    history::record(conn, ns, &audit::entity_deleted(change, id, &removed))?;
    Ok((deleted, spread::begin_delete(conn, ns, id)?))
}

/// The highest version of any entity that was deleted from this file. An entity that is created
/// anew begins with a higher one.
fn versions_gone(conn: &Connection) -> Outcome<u64> {
    const SQL: &str = "SELECT value FROM meta WHERE name='entity_versions_gone'";
    let gone: Option<i64> = query::value(conn, SQL, [])?;
    Ok(gone.and_then(|gone| u64::try_from(gone).ok()).unwrap_or(0))
}

fn note_version_gone(conn: &Connection, version: u64) -> Outcome<()> {
    const SQL: &str = "INSERT INTO meta(name,value) VALUES('entity_versions_gone',?1) \
                       ON CONFLICT(name) DO UPDATE SET value=max(value,excluded.value)";
    conn.prepare_cached(SQL)?.execute([as_stored(version)])?;
    Ok(())
}

pub(crate) fn find(conn: &Connection, ns: i64, id: &EntityId) -> Outcome<Option<Entity>> {
    const SQL: &str = "SELECT id,name,parent,cascade,metadata,created_at,version FROM entity WHERE ns=?1 AND id=?2";
    query::first(conn, SQL, (ns, id.as_str()), from_row)
}

pub(crate) fn list(conn: &Connection, ns: i64, after: &str, limit: u32) -> Outcome<Vec<Entity>> {
    const SQL: &str = "SELECT id,name,parent,cascade,metadata,created_at,version FROM entity WHERE ns=?1 AND id>?2 ORDER BY id LIMIT ?3";
    query::all(conn, SQL, (ns, after, limit), from_row)
}

pub(crate) fn children(
    conn: &Connection,
    ns: i64,
    parent: &EntityId,
    after: &str,
    limit: u32,
) -> Outcome<Vec<Entity>> {
    const SQL: &str = "SELECT id,name,parent,cascade,metadata,created_at,version FROM entity \
                       WHERE ns=?1 AND parent=?2 AND id>?3 ORDER BY id LIMIT ?4";
    query::all(conn, SQL, (ns, parent.as_str(), after, limit), from_row)
}

/// The parent that takes of this entity cascade to.
pub(crate) fn cascades_to(conn: &Connection, ns: i64, id: &EntityId) -> Outcome<Option<EntityId>> {
    const SQL: &str = "SELECT parent FROM entity WHERE ns=?1 AND id=?2 AND cascade=1";
    Ok(query::first(conn, SQL, (ns, id.as_str()), |row| optional_name_at(row, 0))?.flatten())
}

fn from_row(row: &Row<'_>) -> Outcome<Entity> {
    let pairs: String = row.get(4)?;
    let pairs = pairs_from_text(&pairs).map_err(|error| corrupt_value(4, "metadata", error))?;
    Ok(Entity {
        id: name_at(row, 0)?,
        name: row.get(1)?,
        parent: optional_name_at(row, 2)?,
        cascade: row.get(3)?,
        metadata: pairs.into_iter().collect::<BTreeMap<_, _>>(),
        created_at: TimeMs(row.get(5)?),
        version: version_at(row, 6)?,
    })
}

fn store(conn: &Connection, ns: i64, entity: &Entity) -> Outcome<()> {
    const SQL: &str = "INSERT OR REPLACE INTO entity(ns,id,name,parent,cascade,metadata,created_at,version) VALUES(?1,?2,?3,?4,?5,?6,?7,?8)";
    let metadata =
        pairs_to_text(entity.metadata.iter().map(|(key, value)| (key.as_str(), value.as_str())));
    let parent = entity.parent.as_ref().map(EntityId::as_str);
    conn.prepare_cached(SQL)?.execute((
        ns,
        entity.id.as_str(),
        &entity.name,
        parent,
        entity.cascade,
        metadata,
        entity.created_at.0,
        as_stored(entity.version),
    ))?;
    Ok(())
}
