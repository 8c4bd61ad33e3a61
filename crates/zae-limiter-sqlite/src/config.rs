//! Limits and flags at the four levels.

use std::sync::Arc;

use rusqlite::{Connection, Row};
use zae_limiter_core::{
    AuditAction, ConfigStamp, Entity, EntityId, Limit, LimitSource, ResourceName, check_limits,
};
use zae_limiter_store::{
    BoxFuture, Change, ConfigStore, DeletedEntity, EntityUpdate, Level, LevelConfig, LimitsChange,
    MemberConfig, MemberKey, NewEntity, Page, PageRequest, Resolution, StoreError, StoreErrorKind,
    details,
};

use crate::SqliteStore;
use crate::entity;
use crate::error::{Failure, Outcome, corrupt_value, optional, refused};
use crate::history::{self, Event};
use crate::page::paged;
use crate::rows::{limits_from_text, limits_to_text, name_at, optional_name_at};
use crate::spread;
use crate::working::{Key, namespace_gone};

/// The columns that name a level: entity and resource, empty where the level is about none.
pub(crate) fn columns_of(level: &Level) -> (&str, &str) {
    (
        level.entity_id().map_or("", EntityId::as_str),
        level.resource_name().map_or("", ResourceName::as_str),
    )
}

/// The levels of one (entity, resource), strongest first. The order in which their rows are looked
/// at.
const SOURCES: [LimitSource; 4] =
    [LimitSource::EntityResource, LimitSource::Entity, LimitSource::Resource, LimitSource::System];

/// The configuration's generation, after it has grown by one. `NotFound` when the namespace is no
/// longer active: so no change can ever be made in one that is gone.
pub(crate) fn next_generation(conn: &Connection, ns: i64) -> Outcome<u64> {
    const SQL: &str = "UPDATE namespace SET generation=generation+1 WHERE key=?1 AND deleted_at IS NULL RETURNING generation";
    let generation: Option<i64> =
        optional(conn.prepare_cached(SQL)?.query_row([ns], |row| row.get(0)))?;
    generation.and_then(|generation| u64::try_from(generation).ok()).ok_or_else(namespace_gone)
}

/// The configuration's generation. `NotFound` when the namespace is no longer active.
pub(crate) fn generation(conn: &Connection, ns: i64) -> Outcome<u64> {
    const SQL: &str = "SELECT generation FROM namespace WHERE key=?1 AND deleted_at IS NULL";
    let generation: Option<i64> =
        optional(conn.prepare_cached(SQL)?.query_row([ns], |row| row.get(0)))?;
    generation.and_then(|generation| u64::try_from(generation).ok()).ok_or_else(namespace_gone)
}

/// Whether a bucket that is about to be created is switched off: the strongest level with a flag
/// decides.
pub(crate) fn is_disabled(conn: &Connection, key: &Key<'_>) -> Outcome<bool> {
    const SQL: &str = "SELECT disabled FROM config WHERE ns=?1 AND entity IN ('',?2) AND resource IN ('',?3) AND disabled IS NOT NULL \
                       ORDER BY entity DESC,resource DESC LIMIT 1";
    let mut statement = conn.prepare_cached(SQL)?;
    let flag = optional(
        statement.query_row((key.ns, key.entity.as_str(), key.resource.as_str()), |row| row.get(0)),
    )?;
    Ok(flag.unwrap_or(false))
}

impl ConfigStore for SqliteStore {
    fn create_entity<'a>(
        &'a self,
        entity: &'a NewEntity,
        change: &'a Change,
    ) -> BoxFuture<'a, Result<Entity, StoreError>> {
        let (ns, new, change) = (self.key, entity.clone(), change.clone());
        Box::pin(async move {
            new.check()?;
            self.write("create_entity", move |conn| entity::create(conn, ns, &new, &change)).await
        })
    }

    fn entity<'a>(&'a self, id: &'a EntityId) -> BoxFuture<'a, Result<Option<Entity>, StoreError>> {
        Box::pin(async move { self.read_active("entity", |conn| entity::find(conn, self.key, id)) })
    }

    fn update_entity<'a>(
        &'a self,
        id: &'a EntityId,
        expected_version: u64,
        update: &'a EntityUpdate,
        change: &'a Change,
    ) -> BoxFuture<'a, Result<Entity, StoreError>> {
        let (ns, id, update, change) = (self.key, id.clone(), update.clone(), change.clone());
        Box::pin(self.write("update_entity", move |conn| {
            entity::update(conn, ns, (&id, expected_version), &update, &change)
        }))
    }

    fn delete_entity<'a>(
        &'a self,
        id: &'a EntityId,
        change: &'a Change,
    ) -> BoxFuture<'a, Result<DeletedEntity, StoreError>> {
        Box::pin(self.delete_in_steps(id, change))
    }

    fn children<'a>(
        &'a self,
        parent: &'a EntityId,
        page: &'a PageRequest,
    ) -> BoxFuture<'a, Result<Page<Entity>, StoreError>> {
        let (ns, parent, page) = (self.key, parent.clone(), page.clone());
        Box::pin(self.read_active_apart("children", move |conn| {
            let fetch = |after: &str, limit| entity::children(conn, ns, &parent, after, limit);
            paged(&page, fetch, |entity| entity.id.to_string())
        }))
    }

    fn entities<'a>(
        &'a self,
        page: &'a PageRequest,
    ) -> BoxFuture<'a, Result<Page<Entity>, StoreError>> {
        let (ns, page) = (self.key, page.clone());
        Box::pin(self.read_active_apart("entities", move |conn| {
            paged(
                &page,
                |after, limit| entity::list(conn, ns, after, limit),
                |entity| entity.id.to_string(),
            )
        }))
    }

    fn set_limits<'a>(
        &'a self,
        level: &'a Level,
        limits: &'a LimitsChange,
        change: &'a Change,
    ) -> BoxFuture<'a, Result<u64, StoreError>> {
        let (ns, level, limits, change) = (self.key, level.clone(), limits.clone(), change.clone());
        Box::pin(
            self.write("set_limits", move |conn| set_limits(conn, ns, &level, &limits, &change)),
        )
    }

    fn delete_limits<'a>(
        &'a self,
        level: &'a Level,
        change: &'a Change,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        let (ns, level, change) = (self.key, level.clone(), change.clone());
        Box::pin(self.write("delete_limits", move |conn| delete_limits(conn, ns, &level, &change)))
    }

    fn set_disabled<'a>(
        &'a self,
        level: &'a Level,
        disabled: Option<bool>,
        change: &'a Change,
    ) -> BoxFuture<'a, Result<u64, StoreError>> {
        Box::pin(self.disable_in_steps(level, disabled, change))
    }

    fn level<'a>(
        &'a self,
        level: &'a Level,
    ) -> BoxFuture<'a, Result<Option<LevelConfig>, StoreError>> {
        Box::pin(async move { self.read_active("level", |conn| stored(conn, self.key, level)) })
    }

    fn resolve<'a>(
        &'a self,
        keys: &'a [MemberKey<'a>],
    ) -> BoxFuture<'a, Result<Resolution, StoreError>> {
        Box::pin(async move { self.read("resolve", |conn| resolve(conn, self.key, keys)) })
    }

    fn resources_with_defaults<'a>(
        &'a self,
        page: &'a PageRequest,
    ) -> BoxFuture<'a, Result<Page<ResourceName>, StoreError>> {
        const SQL: &str = "SELECT resource FROM config WHERE ns=?1 AND entity='' AND resource>?2 ORDER BY resource LIMIT ?3";
        let (ns, page) = (self.key, page.clone());
        Box::pin(self.read_active_apart("resources_with_defaults", move |conn| {
            let fetch = |after: &str, limit: u32| {
                let mut statement = conn.prepare_cached(SQL)?;
                names(statement.query((ns, after, limit))?, |row| name_at(row, 0))
            };
            paged(&page, fetch, ToString::to_string)
        }))
    }

    fn entities_with_limits<'a>(
        &'a self,
        resource: Option<&'a ResourceName>,
        page: &'a PageRequest,
    ) -> BoxFuture<'a, Result<Page<EntityId>, StoreError>> {
        const SQL: &str = "SELECT entity FROM config WHERE ns=?1 AND resource=?2 AND entity>?3 ORDER BY entity LIMIT ?4";
        let (ns, resource, page) =
            (self.key, resource.map(ToString::to_string).unwrap_or_default(), page.clone());
        Box::pin(self.read_active_apart("entities_with_limits", move |conn| {
            let fetch = |after: &str, limit: u32| {
                let mut statement = conn.prepare_cached(SQL)?;
                names(statement.query((ns, &resource, after, limit))?, |row| name_at(row, 0))
            };
            paged(&page, fetch, ToString::to_string)
        }))
    }

    fn resources_with_entity_limits<'a>(
        &'a self,
        page: &'a PageRequest,
    ) -> BoxFuture<'a, Result<Page<Option<ResourceName>>, StoreError>> {
        // "All resources" comes first, as the empty text; so the start of the listing is before it,
        // not after it.
        const SQL: &str = "SELECT DISTINCT nullif(resource,'') FROM config WHERE ns=?1 AND entity>'' AND (?2 IS NULL OR resource>?2) \
                           ORDER BY 1 LIMIT ?3";
        let (ns, page) = (self.key, page.clone());
        Box::pin(self.read_active_apart("resources_with_entity_limits", move |conn| {
            let mut statement = conn.prepare_cached(SQL)?;
            let after = page.cursor().map(|cursor| cursor.0.as_str());
            let items = names(statement.query((ns, after, page.limit() + 1))?, |row| {
                optional_name_at(row, 0)
            })?;
            Ok(Page::cut(items, &page, |resource: &Option<ResourceName>| {
                resource.as_ref().map_or(String::new(), ToString::to_string)
            }))
        }))
    }
}

fn names<T>(
    mut rows: rusqlite::Rows<'_>,
    name: impl Fn(&Row<'_>) -> Outcome<T>,
) -> Outcome<Vec<T>> {
    let mut names = Vec::new();
    while let Some(row) = rows.next()? {
        names.push(name(row)?);
    }
    Ok(names)
}

fn stored(conn: &Connection, ns: i64, level: &Level) -> Outcome<Option<LevelConfig>> {
    const SQL: &str = "SELECT limits,disabled,on_unavailable,version FROM config WHERE ns=?1 AND entity=?2 AND resource=?3";
    let (entity, resource) = columns_of(level);
    let mut statement = conn.prepare_cached(SQL)?;
    let mut rows = statement.query((ns, entity, resource))?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let limits = limits_at(row, 0)?;
    Ok(Some(LevelConfig {
        limits,
        disabled: row.get(1)?,
        on_unavailable: optional_name_at(row, 2)?,
        version: version_at(row, 3)?,
    }))
}

fn limits_at(row: &Row<'_>, column: usize) -> Outcome<Vec<Limit>> {
    let text =
        row.get_ref(column)?.as_str().map_err(|error| corrupt_value(column, "limits", error))?;
    Ok(limits_from_text(text).map_err(|error| corrupt_value(column, "limits", error))?)
}

pub(crate) fn version_at(row: &Row<'_>, column: usize) -> Outcome<u64> {
    let version: i64 = row.get(column)?;
    Ok(u64::try_from(version).map_err(|error| corrupt_value(column, "version", error))?)
}

/// A version or generation as SQLite stores it; it counts changes and cannot get that far.
pub(crate) fn as_stored(version: u64) -> i64 {
    i64::try_from(version).unwrap_or(i64::MAX)
}

fn store(conn: &Connection, ns: i64, level: &Level, config: &LevelConfig) -> Outcome<()> {
    let (entity, resource) = columns_of(level);
    if config.limits.is_empty() && config.disabled.is_none() {
        let mut statement =
            conn.prepare_cached("DELETE FROM config WHERE ns=?1 AND entity=?2 AND resource=?3")?;
        statement.execute((ns, entity, resource))?;
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
        config.disabled,
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
    if new.limits.is_empty() {
        let message = "no limits are given; give at least one, or delete the limits of the level";
        return Err(refused(StoreErrorKind::Invalid, message));
    }
    check_limits(&new.limits)
        .map_err(|error| refused(StoreErrorKind::Invalid, error.to_string()))?;
    if new.on_unavailable.is_some() && *level != Level::System {
        return Err(refused(
            StoreErrorKind::Invalid,
            format!("on_unavailable is stored at system level only, not for {level}"),
        ));
    }
    // The version of a level is the generation of its last change: it never comes back with another
    // meaning, not even when the level is deleted and stored anew.
    let version = next_generation(conn, ns)?;
    let mut config = stored(conn, ns, level)?.unwrap_or_default();
    if let Some(expected) = new.expected_version.filter(|expected| *expected != config.version) {
        return Err(conflict(&format!("the configuration of {level}"), expected, config.version));
    }
    let details = details::limits_set(new, &config);
    config.limits.clone_from(&new.limits);
    config.on_unavailable = new.on_unavailable.or(config.on_unavailable);
    config.version = version;
    store(conn, ns, level, &config)?;
    record(conn, ns, change, level, (AuditAction::LimitsSet, details))?;
    Ok(version)
}

fn delete_limits(conn: &Connection, ns: i64, level: &Level, change: &Change) -> Outcome<bool> {
    generation(conn, ns)?;
    let Some(mut config) = stored(conn, ns, level)?.filter(|config| !config.limits.is_empty())
    else {
        return Ok(false);
    };
    let details = details::limits(&config.limits);
    config.limits.clear();
    config.on_unavailable = None;
    config.version = next_generation(conn, ns)?;
    store(conn, ns, level, &config)?;
    record(conn, ns, change, level, (AuditAction::LimitsDeleted, details))?;
    Ok(true)
}

impl SqliteStore {
    /// The flag binds when the first transaction is committed; then the buckets get it, in steps
    /// that nobody waits for.
    async fn disable_in_steps(
        &self,
        level: &Level,
        disabled: Option<bool>,
        change: &Change,
    ) -> Result<u64, StoreError> {
        const OPERATION: &str = "set_disabled";
        let ns = self.key;
        let is_left = {
            let (level, change) = (level.clone(), change.clone());
            self.write(OPERATION, move |conn| set_disabled(conn, ns, &level, disabled, &change))
                .await?
        };
        if is_left {
            self.writer(OPERATION)?.spread();
        }
        let level = level.clone();
        self.read_apart(OPERATION, move |conn| count_covered(conn, ns, &level)).await
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
            self.read_apart(OPERATION, move |conn| count_covered(conn, ns, &level)).await?;
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
fn set_disabled(
    conn: &Connection,
    ns: i64,
    level: &Level,
    disabled: Option<bool>,
    change: &Change,
) -> Outcome<bool> {
    if *level == Level::System {
        return Err(refused(
            StoreErrorKind::Invalid,
            "the system level cannot be disabled; disable a resource or an entity",
        ));
    }
    let mut config = stored(conn, ns, level)?.unwrap_or_default();
    let details = details::flag(disabled, config.disabled);
    config.disabled = disabled;
    config.version = next_generation(conn, ns)?;
    store(conn, ns, level, &config)?;
    record(conn, ns, change, level, (AuditAction::FlagsSet, details))?;
    spread::begin_flag(conn, ns, level)
}

/// How many buckets a level covers.
fn count_covered(conn: &Connection, ns: i64, level: &Level) -> Outcome<u64> {
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

fn resolve(conn: &Connection, ns: i64, keys: &[MemberKey<'_>]) -> Outcome<Resolution> {
    let stamp = ConfigStamp(generation(conn, ns)?);
    let on_unavailable = stored(conn, ns, &Level::System)?.and_then(|config| config.on_unavailable);
    let members = keys.iter().map(|key| resolve_member(conn, ns, key)).collect::<Outcome<_>>()?;
    Ok(Resolution::of_now(members, on_unavailable, stamp))
}

/// What is configured for a bucket now.
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
    // Strongest first: names sort behind the empty text.
    const SQL: &str = "SELECT entity<>'',resource<>'',limits,disabled FROM config WHERE ns=?1 AND entity IN ('',?2) AND resource IN ('',?3) \
                       ORDER BY entity DESC,resource DESC";
    let mut statement = conn.prepare_cached(SQL)?;
    let mut rows = statement.query((ns, key.entity.as_str(), key.resource.as_str()))?;
    let mut limits: Option<(Arc<[Limit]>, LimitSource)> = None;
    let mut flag: Option<(bool, LimitSource)> = None;
    while let Some(row) = rows.next()? {
        let source = match (row.get(0)?, row.get(1)?) {
            (true, true) => SOURCES[0],
            (true, false) => SOURCES[1],
            (false, true) => SOURCES[2],
            (false, false) => SOURCES[3],
        };
        if limits.is_none() {
            let found = limits_at(row, 2)?;
            limits = (!found.is_empty()).then(|| (found.into(), source));
        }
        if flag.is_none() && source != LimitSource::System {
            flag = row.get::<_, Option<bool>>(3)?.map(|flag| (flag, source));
        }
    }
    let disabled_by = flag.filter(|(disabled, _)| *disabled).map(|(_, source)| match source {
        LimitSource::EntityResource => {
            Level::EntityResource(key.entity.clone(), key.resource.clone())
        }
        LimitSource::Entity => Level::Entity(key.entity.clone()),
        _ => Level::Resource(key.resource.clone()),
    });
    Ok(MemberConfig {
        cascades_to: entity::cascades_to(conn, ns, key.entity)?,
        limits,
        disabled_by,
    })
}

fn record(
    conn: &Connection,
    ns: i64,
    change: &Change,
    level: &Level,
    (action, details): (AuditAction, Vec<(String, String)>),
) -> Outcome<()> {
    history::record(
        conn,
        ns,
        change,
        Event { subject: level.subject(), action, resource: level.resource_name(), details },
    )
}

pub(crate) fn conflict(what: &str, expected: u64, found: u64) -> Failure {
    let message = format!(
        "{what} is at version {found}, not {expected}: somebody changed it; read it again, then decide again"
    );
    refused(StoreErrorKind::Conflict, message)
}
