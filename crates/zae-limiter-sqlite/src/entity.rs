//! Entities: rows of the table.

use std::collections::BTreeMap;

use rusqlite::{Connection, Row};
use zae_limiter_core::{AuditAction, AuditSubject, CHAIN_MAX, Entity, EntityId, TimeMs};
use zae_limiter_store::{Change, DeletedEntity, EntityUpdate, NewEntity, StoreErrorKind, details};

use crate::config::{as_stored, conflict, next_generation, version_at};
use crate::error::{Failure, Outcome, corrupt_value, optional, refused};
use crate::history::{self, Event};
use crate::rows::{name_at, optional_name_at, pairs_from_text, pairs_to_text};
use crate::spread;

/// How many children the refusal to delete their parent names.
const CHILDREN_NAMED_MAX: u32 = 10;

pub(crate) fn create(
    conn: &Connection,
    ns: i64,
    new: &NewEntity,
    change: &Change,
) -> Outcome<Entity> {
    next_generation(conn, ns)?;
    if find(conn, ns, &new.id)?.is_some() {
        let message = format!("entity {} exists already; update it, or choose another id", new.id);
        return Err(refused(StoreErrorKind::AlreadyExists, message));
    }
    check_chain(conn, ns, new)?;
    spread::stop_delete(conn, ns, &new.id)?;
    let entity = new.created_at(change.at, versions_gone(conn)? + 1);
    store(conn, ns, &entity)?;
    let mut details = details::entity(&entity);
    details.extend(new.parent.iter().map(|parent| ("parent".to_owned(), parent.to_string())));
    details.push(("cascade".to_owned(), new.cascade.to_string()));
    record(conn, ns, change, &new.id, (AuditAction::EntityCreated, details))?;
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
    let before = find(conn, ns, id)?.ok_or_else(|| missing(id))?;
    if before.version != expected_version {
        return Err(conflict(&format!("entity {id}"), expected_version, before.version));
    }
    let mut entity = before.clone();
    entity.name = update.name.clone().unwrap_or(entity.name);
    entity.metadata = update.metadata.clone().unwrap_or(entity.metadata);
    Entity::check_text(&entity.name, &entity.metadata)
        .map_err(|error| refused(StoreErrorKind::Invalid, error.to_string()))?;
    entity.version += 1;
    store(conn, ns, &entity)?;
    record(
        conn,
        ns,
        change,
        id,
        (AuditAction::EntityUpdated, details::entity_updated(&entity, &before)),
    )?;
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
    let entity = find(conn, ns, id)?.ok_or_else(|| missing(id))?;
    let named = children(conn, ns, id, "", CHILDREN_NAMED_MAX + 1)?;
    if !named.is_empty() {
        return Err(has_children(id, &named));
    }
    let configs =
        conn.execute("DELETE FROM config WHERE ns=?1 AND entity=?2", (ns, id.as_str()))?;
    conn.execute("DELETE FROM entity WHERE ns=?1 AND id=?2", (ns, id.as_str()))?;
    note_version_gone(conn, entity.version)?;
    let deleted = DeletedEntity { buckets, configs: configs as u64 };
    let details = vec![
        ("configs".to_owned(), deleted.configs.to_string()),
        ("buckets".to_owned(), deleted.buckets.to_string()),
    ];
    record(conn, ns, change, id, (AuditAction::EntityDeleted, details))?;
    Ok((deleted, spread::begin_delete(conn, ns, id)?))
}

/// The highest version of any entity that was deleted from this file: one that is created anew
/// begins behind it.
fn versions_gone(conn: &Connection) -> Outcome<u64> {
    const SQL: &str = "SELECT value FROM meta WHERE name='entity_versions_gone'";
    let gone: Option<i64> = optional(conn.prepare_cached(SQL)?.query_row([], |row| row.get(0)))?;
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
    Ok(entities(conn.prepare_cached(SQL)?.query((ns, id.as_str()))?)?.pop())
}

pub(crate) fn list(conn: &Connection, ns: i64, after: &str, limit: u32) -> Outcome<Vec<Entity>> {
    const SQL: &str = "SELECT id,name,parent,cascade,metadata,created_at,version FROM entity WHERE ns=?1 AND id>?2 ORDER BY id LIMIT ?3";
    entities(conn.prepare_cached(SQL)?.query((ns, after, limit))?)
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
    entities(conn.prepare_cached(SQL)?.query((ns, parent.as_str(), after, limit))?)
}

/// The parent that takes go on to.
pub(crate) fn cascades_to(conn: &Connection, ns: i64, id: &EntityId) -> Outcome<Option<EntityId>> {
    const SQL: &str = "SELECT parent FROM entity WHERE ns=?1 AND id=?2 AND cascade=1";
    let mut statement = conn.prepare_cached(SQL)?;
    let mut rows = statement.query((ns, id.as_str()))?;
    match rows.next()? {
        Some(row) => optional_name_at(row, 0),
        None => Ok(None),
    }
}

fn entities(mut rows: rusqlite::Rows<'_>) -> Outcome<Vec<Entity>> {
    let mut entities = Vec::new();
    while let Some(row) = rows.next()? {
        entities.push(from_row(row)?);
    }
    Ok(entities)
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

/// The parent must exist, and a take must not go on further than a chain may be long.
fn check_chain(conn: &Connection, ns: i64, new: &NewEntity) -> Outcome<()> {
    let Some(parent) = &new.parent else { return Ok(()) };
    find(conn, ns, parent)?.ok_or_else(|| missing(parent))?;
    let mut ancestor = new.cascade.then(|| parent.clone());
    let mut length = 1;
    while let Some(id) = ancestor {
        length += 1;
        if length > CHAIN_MAX {
            let message = format!(
                "entity {} would cascade to more than {} ancestors; attach it higher up",
                new.id,
                CHAIN_MAX - 1
            );
            return Err(refused(StoreErrorKind::Invalid, message));
        }
        ancestor = cascades_to(conn, ns, &id)?;
    }
    Ok(())
}

fn missing(id: &EntityId) -> Failure {
    refused(StoreErrorKind::NotFound, format!("entity {id} does not exist; create it first"))
}

fn has_children(id: &EntityId, named: &[Entity]) -> Failure {
    let shown = usize::try_from(CHILDREN_NAMED_MAX).unwrap_or(usize::MAX);
    let names: Vec<&str> = named.iter().take(shown).map(|child| child.id.as_str()).collect();
    let more = if named.len() > shown { " and more" } else { "" };
    refused(
        StoreErrorKind::State,
        format!("entity {id} has children ({}{more}); delete them first", names.join(", ")),
    )
}

fn record(
    conn: &Connection,
    ns: i64,
    change: &Change,
    id: &EntityId,
    (action, details): (AuditAction, Vec<(String, String)>),
) -> Outcome<()> {
    history::record(
        conn,
        ns,
        change,
        Event { subject: AuditSubject::Entity(id.clone()), action, resource: None, details },
    )
}
