//! Limits and flags at the four levels.

pub(crate) mod flags;
mod lookup;
mod managed;
mod records;
mod registry;
mod spread;
mod write;

use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use zae_limiter_core::{Entity, EntityId, Flag, LimitSource, ResourceName};
use zae_limiter_store::{
    Change, ConfigStore, DeletedEntity, EntityUpdate, Level, LevelConfig, LimitsChange, Managed,
    ManagedChange, MemberConfig, MemberKey, MemberTake, NewEntity, Page, PageRequest, Resolution,
    StoreError, StoreFuture,
};

use crate::DynamoStore;
use crate::admin::change::check_active;
use crate::admin::entity::{self, Owner};
use crate::records::attr;
use crate::records::item::{self, parent_of, text_of};
use crate::records::keys;
use crate::table::page::{Listing, position};
use crate::table::{Index, Item, Key};

pub(crate) use lookup::Trust;
pub(crate) use records::{Changing, Records};
pub(crate) use write::adopt_limits;

/// What is stored about one (entity, resource), and whose buckets it has.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    /// `None` for an entity without a record.
    pub(crate) owner: Option<Arc<Owner>>,
    pub(crate) config: MemberConfig,
}

impl Deref for Member {
    type Target = MemberConfig;

    fn deref(&self) -> &MemberConfig {
        &self.config
    }
}

/// What a configuration says about the limits of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The limits are in force.
    Same,
    /// Other limits are in force.
    Different,
    /// The member has this flag.
    Blocked(Flag),
}

impl Member {
    /// Holds the limits of a take against what is stored.
    pub(crate) fn verdict_on(&self, member: &MemberTake<'_>) -> Verdict {
        let is_same = match member.limits.source {
            LimitSource::Call => true,
            LimitSource::Builder | LimitSource::Fallback => self.limits.is_none(),
            LimitSource::EntityResource
            | LimitSource::Entity
            | LimitSource::Resource
            | LimitSource::System => self
                .limits
                .as_ref()
                .is_some_and(|(limits, _)| limits[..] == member.limits.limits[..]),
        };
        match (&self.blocked_by, is_same) {
            (Some((flag, _)), _) => Verdict::Blocked(*flag),
            (None, true) => Verdict::Same,
            (None, false) => Verdict::Different,
        }
    }
}

/// What the levels of a member come to, and what its owner adds to them.
fn resolve_member(
    key: &MemberKey<'_>,
    owner: Option<Arc<Owner>>,
    levels: [Option<&Item>; 4],
) -> Result<Member, StoreError> {
    // A level may overrule what the entity says about its cascade, strongest first as well.
    let cascade = |item: &Item| item::config::cascade(item).transpose();
    let overruled = levels[..3].iter().copied().flatten().find_map(cascade);
    let mut config = MemberConfig::resolve(
        key,
        None,
        &levels,
        |item| match item::config::has_limits(item) {
            true => Ok(Some(item::config::limits(item)?.into())),
            false => Ok(None),
        },
        |item| item::config::flag(item),
    )?;
    let overruled = overruled.transpose()?;
    let cascades = |owner: &&Arc<Owner>| overruled.unwrap_or(owner.cascade);
    config.cascades_to = owner.as_ref().filter(cascades).and_then(|owner| owner.parent.clone());
    if owner.as_ref().is_some_and(|owner| owner.is_leaving) {
        // The limits of the entity are being removed: those that are left, or the defaults behind
        // them, may be weaker.
        config.blocked_by = Some((Flag::Disabled, Level::Entity(key.entity.clone())));
    }
    Ok(Member { owner, config })
}

/// The flag of the strongest level that has one, and which level that is.
fn decisive_flag(levels: [Option<&Item>; 3]) -> Result<Option<(Flag, usize)>, StoreError> {
    zae_limiter_store::decisive_flag(levels, item::config::flag)
}

impl DynamoStore {
    /// Fails unless the namespace of this handle is active.
    pub(crate) async fn check_namespace(&self, operation: &'static str) -> Result<(), StoreError> {
        let [record] = self.shared.read(operation, &[keys::namespace_by_id(&self.id)]).await?;
        check_active(operation, record.as_ref())
    }

    /// One item beside the record of the namespace, which must be active.
    pub(crate) async fn read_active(
        &self,
        operation: &'static str,
        key: Key,
    ) -> Result<Option<Item>, StoreError> {
        let keys = [keys::namespace_by_id(&self.id), key];
        let [record, item] = self.shared.read(operation, &keys).await?;
        check_active(operation, record.as_ref())?;
        Ok(item)
    }
}

impl ConfigStore for DynamoStore {
    fn create_entity<'a>(
        &'a self,
        entity: &'a NewEntity,
        change: &'a Change,
    ) -> StoreFuture<'a, Entity> {
        Box::pin(self.make_entity(entity, change))
    }

    fn entity<'a>(&'a self, id: &'a EntityId) -> StoreFuture<'a, Option<Entity>> {
        Box::pin(async move {
            let item = self.read_active("entity", keys::entity(&self.id, id)).await?;
            item.as_ref().map(item::entity).transpose().map_err(|error| error.during("entity"))
        })
    }

    fn update_entity<'a>(
        &'a self,
        id: &'a EntityId,
        expected_version: u64,
        update: &'a EntityUpdate,
        change: &'a Change,
    ) -> StoreFuture<'a, Entity> {
        Box::pin(self.change_entity((id, expected_version), update, change))
    }

    fn delete_entity<'a>(
        &'a self,
        id: &'a EntityId,
        change: &'a Change,
    ) -> StoreFuture<'a, DeletedEntity> {
        Box::pin(self.remove_entity(id, change))
    }

    fn children<'a>(
        &'a self,
        parent: &'a EntityId,
        page: &'a PageRequest,
    ) -> StoreFuture<'a, Page<Entity>> {
        Box::pin(self.list_children(parent, page))
    }

    fn entities<'a>(&'a self, page: &'a PageRequest) -> StoreFuture<'a, Page<Entity>> {
        Box::pin(self.list_entities(page))
    }

    fn set_limits<'a>(
        &'a self,
        level: &'a Level,
        limits: &'a LimitsChange,
        change: &'a Change,
    ) -> StoreFuture<'a, u64> {
        Box::pin(async move {
            let moment = self.moment(change.at);
            let version = write::set_limits(self, level, limits, change).await?;
            self.spread_limits(level, moment).await;
            Ok(version)
        })
    }

    fn delete_limits<'a>(&'a self, level: &'a Level, change: &'a Change) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let moment = self.moment(change.at);
            let was_there = write::delete_limits(self, level, change).await?;
            if was_there {
                self.spread_limits(level, moment).await;
            }
            Ok(was_there)
        })
    }

    fn set_flag<'a>(
        &'a self,
        level: &'a Level,
        flag: Option<Flag>,
        change: &'a Change,
    ) -> StoreFuture<'a, u64> {
        Box::pin(async move {
            write::set_flag(self, level, flag, change).await?;
            flags::reach_buckets(self, level).await
        })
    }

    fn level<'a>(&'a self, level: &'a Level) -> StoreFuture<'a, Option<LevelConfig>> {
        Box::pin(async move {
            let item = self.read_active("level", item::config::key(&self.id, level)).await?;
            item.as_ref()
                .map(item::config::level_config)
                .transpose()
                .map_err(|error| error.during("level"))
        })
    }

    fn resolve<'a>(&'a self, keys: &'a [MemberKey<'a>]) -> StoreFuture<'a, Resolution> {
        Box::pin(async move {
            let found = self.members(keys, Trust::NOTHING, "resolve").await?;
            Ok(found.into_resolution(Vec::new()))
        })
    }

    fn resolve_within<'a>(
        &'a self,
        keys: &'a [MemberKey<'a>],
        age_max: Duration,
    ) -> StoreFuture<'a, Resolution> {
        Box::pin(self.chains(keys, age_max))
    }

    fn forget_config(&self) {
        self.shared.caches.records.forget();
    }

    fn resources_with_defaults<'a>(
        &'a self,
        page: &'a PageRequest,
    ) -> StoreFuture<'a, Page<ResourceName>> {
        const OPERATION: &str = "resources_with_defaults";
        Box::pin(async move {
            let after = position(page, OPERATION)?;
            let item = self.read_active(OPERATION, keys::resources(&self.id)).await?;
            let names: BTreeSet<&String> =
                match item.as_ref().and_then(|item| item.get(attr::RESOURCES)) {
                    Some(AttributeValue::Ss(names)) => names.iter().collect(),
                    _ => BTreeSet::new(),
                };
            let names =
                names.into_iter().filter(|name| after.is_none_or(|after| name.as_str() > after));
            let resources =
                names.filter_map(|name| accepted::<ResourceName>(OPERATION, name)).collect();
            Ok(Page::cut(resources, page, ToString::to_string))
        })
    }

    fn entities_with_limits<'a>(
        &'a self,
        resource: Option<&'a ResourceName>,
        page: &'a PageRequest,
    ) -> StoreFuture<'a, Page<EntityId>> {
        const OPERATION: &str = "entities_with_limits";
        Box::pin(async move {
            self.check_namespace(OPERATION).await?;
            let partition = keys::index::entity_configs(&self.id, resource);
            let listing = Listing { index: Some(Index::Gsi3), partition, prefix: String::new() };
            let read = |item: &Item| {
                let name = text_of(item, attr::GSI3SK).unwrap_or_default();
                Ok((name.to_owned(), accepted(OPERATION, name)))
            };
            self.shared.list(OPERATION, &listing, page, read).await
        })
    }

    fn resources_with_entity_limits<'a>(
        &'a self,
        page: &'a PageRequest,
    ) -> StoreFuture<'a, Page<Option<ResourceName>>> {
        const OPERATION: &str = "resources_with_entity_limits";
        Box::pin(async move {
            let after = position(page, OPERATION)?;
            let item = self.read_active(OPERATION, keys::entity_config_resources(&self.id)).await?;
            let names: BTreeSet<&str> =
                item.as_ref().map(registry::counted).into_iter().flatten().collect();
            let names = names.into_iter().filter(|name| after.is_none_or(|after| *name > after));
            let resource = |name| {
                if name == keys::ALL_RESOURCES {
                    Some(None)
                } else {
                    accepted(OPERATION, name).map(Some)
                }
            };
            let resources = names.filter_map(resource).collect();
            let word = |resource: &Option<ResourceName>| {
                resource.as_ref().map_or(keys::ALL_RESOURCES, ResourceName::as_str).to_owned()
            };
            Ok(Page::cut(resources, page, word))
        })
    }

    fn managed<'a>(&'a self, part: u32) -> StoreFuture<'a, Option<Managed>> {
        Box::pin(self.read_managed(part))
    }

    fn set_managed<'a>(
        &'a self,
        part: u32,
        managed: &'a ManagedChange,
        change: &'a Change,
    ) -> StoreFuture<'a, u64> {
        Box::pin(self.write_managed(part, managed, change))
    }
}

/// A name of a listing; `None`, with a warning, for one that another writer accepts and this
/// version does not.
pub(crate) fn accepted<N: std::str::FromStr>(operation: &'static str, name: &str) -> Option<N> {
    let parsed = name.parse().ok();
    if parsed.is_none() {
        tracing::warn!(
            operation,
            name,
            "left out of the listing: this version does not accept the name"
        );
    }
    parsed
}

impl Owner {
    /// Reads the record of an entity.
    pub(crate) fn read(item: &Item) -> Result<Owner, StoreError> {
        Ok(Owner {
            parent: parent_of(item)?,
            cascade: item::flag_of(item, attr::CASCADE)?.unwrap_or(false),
            pgen: item::integer_of(item, attr::PGEN),
            pinc: text_of(item, attr::PINC).map(ToOwned::to_owned),
            is_leaving: entity::is_leaving(item),
            ancestors: item::ancestors_of(item),
        })
    }
}
