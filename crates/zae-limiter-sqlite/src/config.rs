//! Limits and flags at the four levels.

use std::sync::Arc;

use rusqlite::{Connection, Row};
use zae_limiter_core::{ConfigStamp, Entity, EntityId, Flag, Limit, ResourceName};
use zae_limiter_store::{
    Change, ConfigStore, DeletedEntity, EntityUpdate, Level, LevelConfig, LimitsChange, Managed,
    ManagedChange, MemberConfig, MemberKey, NewEntity, Page, PageRequest, Resolution, StoreError,
    StoreFuture, audit,
};

use crate::SqliteStore;
use crate::entity;
use crate::error::{Outcome, corrupt_value, namespace_gone, optional};
use crate::history;
use crate::managed;
use crate::pack::{limits_from_text, limits_to_text, name_at, optional_name_at};
use crate::page::paged;
use crate::query;
use crate::rows::{self, Key, flag_at, flag_column};
use crate::spread;

/// The columns that name a level: entity and resource, empty where the level is about none.
pub(crate) fn columns_of(level: &Level) -> (&str, &str) {
    (
        level.entity_id().map_or("", EntityId::as_str),
        level.resource_name().map_or("", ResourceName::as_str),
    )
}

/// The configuration's generation, after it has grown by one. `NotFound` when the namespace is no
/// longer active: so no change can be made in a namespace that is gone.
pub(crate) fn next_generation(conn: &Connection, ns: i64) -> Outcome<u64> {
    const SQL: &str = "UPDATE namespace SET generation=generation+1 WHERE key=?1 AND deleted_at IS NULL RETURNING generation";
    generation_by(conn, SQL, ns)
}

/// The configuration's generation. `NotFound` when the namespace is no longer active.
pub(crate) fn generation(conn: &Connection, ns: i64) -> Outcome<u64> {
    const SQL: &str = "SELECT generation FROM namespace WHERE key=?1 AND deleted_at IS NULL";
    generation_by(conn, SQL, ns)
}

fn generation_by(conn: &Connection, sql: &str, ns: i64) -> Outcome<u64> {
    let generation: Option<i64> = query::value(conn, sql, [ns])?;
    generation.and_then(|generation| u64::try_from(generation).ok()).ok_or_else(namespace_gone)
}

/// The flag of a bucket that is about to be created: that of the strongest level with one.
pub(crate) fn flag(conn: &Connection, key: &Key<'_>) -> Outcome<Flag> {
    const SQL: &str = "SELECT disabled FROM config WHERE ns=?1 AND entity IN ('',?2) AND resource IN ('',?3) AND disabled IS NOT NULL \
                       ORDER BY entity DESC,resource DESC LIMIT 1";
    let mut statement = conn.prepare_cached(SQL)?;
    let of_key = (key.ns, key.entity.as_str(), key.resource.as_str());
    let flag = optional(statement.query_row(of_key, |row| flag_at(row, 0)))?;
    Ok(flag.flatten().unwrap_or_default())
}

impl ConfigStore for SqliteStore {
    fn create_entity<'a>(
        &'a self,
        entity: &'a NewEntity,
        change: &'a Change,
    ) -> StoreFuture<'a, Entity> {
        let (ns, new, change) = (self.key, entity.clone(), change.clone());
        Box::pin(async move {
            new.check()?;
            self.write("create_entity", move |conn| entity::create(conn, ns, &new, &change)).await
        })
    }

    fn entity<'a>(&'a self, id: &'a EntityId) -> StoreFuture<'a, Option<Entity>> {
        Box::pin(async move { self.read_active("entity", |conn| entity::find(conn, self.key, id)) })
    }

    fn update_entity<'a>(
        &'a self,
        id: &'a EntityId,
        expected_version: u64,
        update: &'a EntityUpdate,
        change: &'a Change,
    ) -> StoreFuture<'a, Entity> {
        let (ns, id, update, change) = (self.key, id.clone(), update.clone(), change.clone());
        Box::pin(self.write("update_entity", move |conn| {
            entity::update(conn, ns, (&id, expected_version), &update, &change)
        }))
    }

    fn delete_entity<'a>(
        &'a self,
        id: &'a EntityId,
        change: &'a Change,
    ) -> StoreFuture<'a, DeletedEntity> {
        Box::pin(self.delete_in_steps(id, change))
    }

    fn children<'a>(
        &'a self,
        parent: &'a EntityId,
        page: &'a PageRequest,
    ) -> StoreFuture<'a, Page<Entity>> {
        let (ns, parent, page) = (self.key, parent.clone(), page.clone());
        Box::pin(self.read_active_apart("children", move |conn| {
            let fetch = |after: &str, limit| entity::children(conn, ns, &parent, after, limit);
            paged(&page, fetch, |entity| entity.id.to_string())
        }))
    }

    fn entities<'a>(&'a self, page: &'a PageRequest) -> StoreFuture<'a, Page<Entity>> {
        let (ns, page) = (self.key, page.clone());
        Box::pin(self.read_active_apart("entities", move |conn| {
            let fetch = |after: &str, limit| entity::list(conn, ns, after, limit);
            paged(&page, fetch, |entity| entity.id.to_string())
        }))
    }

    fn set_limits<'a>(
        &'a self,
        level: &'a Level,
        limits: &'a LimitsChange,
        change: &'a Change,
    ) -> StoreFuture<'a, u64> {
        let (ns, level, limits, change) = (self.key, level.clone(), limits.clone(), change.clone());
        Box::pin(
            self.write("set_limits", move |conn| set_limits(conn, ns, &level, &limits, &change)),
        )
    }

    fn delete_limits<'a>(&'a self, level: &'a Level, change: &'a Change) -> StoreFuture<'a, bool> {
        let (ns, level, change) = (self.key, level.clone(), change.clone());
        Box::pin(self.write("delete_limits", move |conn| delete_limits(conn, ns, &level, &change)))
    }

    fn set_flag<'a>(
        &'a self,
        level: &'a Level,
        flag: Option<Flag>,
        change: &'a Change,
    ) -> StoreFuture<'a, u64> {
        Box::pin(self.flag_in_steps(level, flag, change))
    }

    fn level<'a>(&'a self, level: &'a Level) -> StoreFuture<'a, Option<LevelConfig>> {
        Box::pin(async move { self.read_active("level", |conn| stored(conn, self.key, level)) })
    }

    fn resolve<'a>(&'a self, keys: &'a [MemberKey<'a>]) -> StoreFuture<'a, Resolution> {
        Box::pin(async move { self.read("resolve", |conn| resolve(conn, self.key, keys)) })
    }

    fn resources_with_defaults<'a>(
        &'a self,
        page: &'a PageRequest,
    ) -> StoreFuture<'a, Page<ResourceName>> {
        const SQL: &str = "SELECT resource FROM config WHERE ns=?1 AND entity='' AND resource>?2 ORDER BY resource LIMIT ?3";
        let (ns, page) = (self.key, page.clone());
        Box::pin(self.read_active_apart("resources_with_defaults", move |conn| {
            let fetch = |after: &str, limit: u32| {
                query::all(conn, SQL, (ns, after, limit), |row| name_at(row, 0))
            };
            paged(&page, fetch, ToString::to_string)
        }))
    }

    fn entities_with_limits<'a>(
        &'a self,
        resource: Option<&'a ResourceName>,
        page: &'a PageRequest,
    ) -> StoreFuture<'a, Page<EntityId>> {
        const SQL: &str = "SELECT entity FROM config WHERE ns=?1 AND resource=?2 AND entity>?3 ORDER BY entity LIMIT ?4";
        let (ns, resource, page) =
            (self.key, resource.map(ToString::to_string).unwrap_or_default(), page.clone());
        Box::pin(self.read_active_apart("entities_with_limits", move |conn| {
            let fetch = |after: &str, limit: u32| {
                query::all(conn, SQL, (ns, &resource, after, limit), |row| name_at(row, 0))
            };
            paged(&page, fetch, ToString::to_string)
        }))
    }

    fn resources_with_entity_limits<'a>(
        &'a self,
        page: &'a PageRequest,
    ) -> StoreFuture<'a, Page<Option<ResourceName>>> {
        // "All resources" comes first, as the empty text; so the start of the listing is before it,
        // not after it.
        const SQL: &str = "SELECT DISTINCT nullif(resource,'') FROM config WHERE ns=?1 AND entity>'' AND (?2 IS NULL OR resource>?2) \
                           ORDER BY 1 LIMIT ?3";
        let (ns, page) = (self.key, page.clone());
        Box::pin(self.read_active_apart("resources_with_entity_limits", move |conn| {
            let after = page.cursor().map(|cursor| cursor.0.as_str());
            let params = (ns, after, page.limit() + 1);
            let items = query::all(conn, SQL, params, |row| optional_name_at(row, 0))?;
            Ok(Page::cut(items, &page, |resource: &Option<ResourceName>| {
                resource.as_ref().map_or(String::new(), ToString::to_string)
            }))
        }))
    }

    fn managed<'a>(&'a self, part: u32) -> StoreFuture<'a, Option<Managed>> {
        Box::pin(async move {
            self.read_active("managed", |conn| managed::stored(conn, self.key, part))
        })
    }

    fn set_managed<'a>(
        &'a self,
        part: u32,
        managed: &'a ManagedChange,
        change: &'a Change,
    ) -> StoreFuture<'a, u64> {
        let (ns, new, change) = (self.key, managed.clone(), change.clone());
        Box::pin(
            self.write("set_managed", move |conn| managed::store(conn, ns, part, &new, &change)),
        )
    }
}

fn stored(conn: &Connection, ns: i64, level: &Level) -> Outcome<Option<LevelConfig>> {
    const SQL: &str = "SELECT limits,disabled,on_unavailable,version FROM config WHERE ns=?1 AND entity=?2 AND resource=?3";
    let (entity, resource) = columns_of(level);
    let mut statement = conn.prepare_cached(SQL)?;
    let mut rows = statement.query((ns, entity, resource))?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let text: String = row.get(0)?;
    Ok(Some(LevelConfig {
        limits: read_limits(&text, 0)?,
        flag: flag_at(row, 1)?,
        on_unavailable: optional_name_at(row, 2)?,
        cascade: None,
        version: version_at(row, 3)?,
    }))
}

fn read_limits(text: &str, column: usize) -> Outcome<Arc<[Limit]>> {
    let limits = limits_from_text(text).map_err(|error| corrupt_value(column, "limits", error))?;
    Ok(limits.into())
}

pub(crate) fn version_at(row: &Row<'_>, column: usize) -> Outcome<u64> {
    let version: i64 = row.get(column)?;
    Ok(u64::try_from(version).map_err(|error| corrupt_value(column, "version", error))?)
}

/// A version or generation as SQLite stores it. It counts changes and never exceeds `i64::MAX`.
pub(crate) fn as_stored(version: u64) -> i64 {
    i64::try_from(version).unwrap_or(i64::MAX)
}

fn store(conn: &Connection, ns: i64, level: &Level, config: &LevelConfig) -> Outcome<()> {
    let (entity, resource) = columns_of(level);
    if config.is_empty() {
        const SQL: &str = "DELETE FROM config WHERE ns=?1 AND entity=?2 AND resource=?3";
        query::change(conn, SQL, (ns, entity, resource))?;
        return Ok(());
    }
    const SQL: &str = "INSERT OR REPLACE INTO config(ns,entity,resource,limits,disabled,on_unavailable,version) VALUES(?1,?2,?3,?4,?5,?6,?7)";
    let policy = config.on_unavailable.map(|policy| policy.as_str());
    let limits = limits_to_text(&config.limits);
    conn.prepare_cached(SQL)?.execute((
        ns,
        entity,
        resource,
        limits,
        config.flag.map(flag_column),
        policy,
        as_stored(config.version),
    ))?;
    Ok(())
}

fn set_limits(
    conn: &Connection,
    ns: i64,
    level: &Level,
    new: &LimitsChange,
    change: &Change,
) -> Outcome<u64> {
    new.check(level)?;
    // The version of a level is the generation of its last change: it never comes back with another
    // meaning, not even when the level is deleted and stored anew.
    let version = next_generation(conn, ns)?;
    let mut config = stored(conn, ns, level)?.unwrap_or_default();
    new.check_version(level, config.version)?;
    let event = audit::limits_set(change, level, new, &config);
    config.replace_limits(new);
    config.version = version;
    store(conn, ns, level, &config)?;
    history::record(conn, ns, &event)?;
    Ok(version)
}

fn delete_limits(conn: &Connection, ns: i64, level: &Level, change: &Change) -> Outcome<bool> {
    generation(conn, ns)?;
    let Some(mut config) = stored(conn, ns, level)?.filter(|config| !config.limits.is_empty())
    else {
        return Ok(false);
    };
    let event = audit::limits_deleted(change, level, &config);
    config.clear_limits();
    config.version = next_generation(conn, ns)?;
    store(conn, ns, level, &config)?;
    history::record(conn, ns, &event)?;
    Ok(true)
}

impl SqliteStore {
    /// The flag binds when the first transaction is committed; then the buckets get it, in steps
    /// that no caller waits for.
    async fn flag_in_steps(
        &self,
        level: &Level,
        flag: Option<Flag>,
        change: &Change,
    ) -> Result<u64, StoreError> {
        const OPERATION: &str = "set_flag";
        let ns = self.key;
        let is_left = {
            let (level, change) = (level.clone(), change.clone());
            self.write(OPERATION, move |conn| set_flag(conn, ns, &level, flag, &change)).await?
        };
        if is_left {
            self.writer(OPERATION)?.spread();
        }
        let level = level.clone();
        self.read_apart(OPERATION, move |conn| rows::count_covered(conn, ns, &level)).await
    }

    /// The entity and its limits go at once; of its buckets those that fit into the same
    /// transaction, the others in steps, before the deletion is told as done. A deletion that is
    /// given up in between, or finds the file locked for too long, is finished by the next takes of
    /// the namespace: the entity is gone already, so an error would have the caller delete it again
    /// in vain.
    async fn delete_in_steps(
        &self,
        id: &EntityId,
        change: &Change,
    ) -> Result<DeletedEntity, StoreError> {
        const OPERATION: &str = "delete_entity";
        let ns = self.key;
        let level = Level::Entity(id.clone());
        let buckets =
            self.read_apart(OPERATION, move |conn| rows::count_covered(conn, ns, &level)).await?;
        let (gone, change) = (id.clone(), change.clone());
        let (deleted, mut is_left) = self
            .write(OPERATION, move |conn| entity::delete(conn, ns, &gone, buckets, &change))
            .await?;
        while is_left {
            let gone = id.clone();
            let step =
                self.write_step(OPERATION, move |conn| spread::delete_step(conn, ns, &gone)).await;
            is_left = step.unwrap_or_else(|error| {
                tracing::warn!(%error, entity = %id, "the last buckets of a deleted entity are left to later takes");
                false
            });
        }
        Ok(deleted)
    }
}

/// True when some of the buckets that the level covers are still to get its flag.
fn set_flag(
    conn: &Connection,
    ns: i64,
    level: &Level,
    flag: Option<Flag>,
    change: &Change,
) -> Outcome<bool> {
    level.check_flag()?;
    let mut config = stored(conn, ns, level)?.unwrap_or_default();
    let event = audit::flag_set(change, level, flag, config.flag);
    config.flag = flag;
    config.version = next_generation(conn, ns)?;
    store(conn, ns, level, &config)?;
    history::record(conn, ns, &event)?;
    spread::begin_flag(conn, ns, level)
}

fn resolve(conn: &Connection, ns: i64, keys: &[MemberKey<'_>]) -> Outcome<Resolution> {
    let stamp = ConfigStamp(generation(conn, ns)?);
    let on_unavailable = stored(conn, ns, &Level::System)?.and_then(|config| config.on_unavailable);
    let members = keys.iter().map(|key| resolve_member(conn, ns, key)).collect::<Outcome<_>>()?;
    Ok(Resolution::of_now(members, on_unavailable, stamp))
}

/// The configuration of a bucket as it is now.
pub(crate) fn resolve_one(
    conn: &Connection,
    key: &Key<'_>,
) -> Outcome<(MemberConfig, ConfigStamp)> {
    let stamp = ConfigStamp(generation(conn, key.ns)?);
    Ok((
        resolve_member(conn, key.ns, &MemberKey { entity: key.entity, resource: key.resource })?,
        stamp,
    ))
}

fn resolve_member(conn: &Connection, ns: i64, key: &MemberKey<'_>) -> Outcome<MemberConfig> {
    const SQL: &str = "SELECT entity<>'',resource<>'',limits,disabled FROM config WHERE ns=?1 AND entity IN ('',?2) AND resource IN ('',?3)";
    let mut statement = conn.prepare_cached(SQL)?;
    let mut rows = statement.query((ns, key.entity.as_str(), key.resource.as_str()))?;
    let mut levels: [Option<(String, Option<Flag>)>; 4] = Default::default();
    while let Some(row) = rows.next()? {
        let place = match (row.get(0)?, row.get(1)?) {
            (true, true) => 0,
            (true, false) => 1,
            (false, true) => 2,
            (false, false) => 3,
        };
        levels[place] = Some((row.get(2)?, flag_at(row, 3)?));
    }
    let cascades_to = entity::cascades_to(conn, ns, key.entity)?;
    MemberConfig::resolve(
        key,
        cascades_to,
        &levels,
        |(text, _)| Ok(Some(read_limits(text, 2)?).filter(|limits| !limits.is_empty())),
        |(_, flag)| Ok(*flag),
    )
}
