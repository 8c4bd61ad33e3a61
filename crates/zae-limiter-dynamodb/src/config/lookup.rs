//! Looking up what is stored about members of chains, in as few reads and round trips as what is
//! remembered allows.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use zae_limiter_core::{CHAIN_MAX, ConfigStamp, EntityId, ResourceName};
use zae_limiter_store::{Ancestor, MemberKey, OnUnavailable, Resolution, StoreError};

use super::records::{Record, Wanted};
use super::{Member, resolve_member};
use crate::DynamoStore;
use crate::admin::change::check_active;
use crate::admin::entity::Owner;
use crate::constants::{CREATE_TRUST, DISABLED_TRUST, NAMESPACE_TRUST};
use crate::records::{item, keys};
use crate::table::{Item, Key};

/// How old what is remembered may be to be used again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trust {
    /// The record of the namespace.
    namespace: Duration,
    /// Everything else.
    rest: Duration,
}

impl Trust {
    /// Everything is read.
    pub(crate) const NOTHING: Trust = Trust { namespace: Duration::ZERO, rest: Duration::ZERO };
    /// For a bucket that is about to be made.
    pub(crate) const BEFORE_CREATE: Trust =
        Trust { namespace: NAMESPACE_TRUST, rest: CREATE_TRUST };
    /// For a bucket that was just made: an administrator who disables it must be seen now.
    pub(crate) const AFTER_CREATE: Trust =
        Trust { namespace: NAMESPACE_TRUST, rest: Duration::ZERO };
}

/// The answer to one configuration read.
pub(crate) struct Members {
    pub(crate) members: Vec<Member>,
    on_unavailable: Option<OnUnavailable>,
    /// A tick from before the read of the oldest part: what was stored then is in the answer.
    pub(crate) stamp: ConfigStamp,
    age: Duration,
}

impl Members {
    pub(super) fn into_resolution(self, ancestors: Vec<Ancestor>) -> Resolution {
        let Members { members, on_unavailable, stamp, age } = self;
        let members = members.into_iter().map(|member| member.config).collect();
        Resolution { members, ancestors, on_unavailable, stamp, age }
    }
}

impl DynamoStore {
    /// Everything stored about these members: one consistent `BatchGetItem` for what is not
    /// remembered well enough. Their owners are remembered for the buckets they may get.
    pub(crate) async fn members(
        &self,
        keys: &[MemberKey<'_>],
        trust: Trust,
        operation: &'static str,
    ) -> Result<Members, StoreError> {
        let mut lookup = Lookup::new(self, trust, operation);
        keys.iter().for_each(|key| lookup.want_member(key));
        lookup.read().await?;
        lookup.answer(keys)
    }

    /// Everything about these members and about the ancestors their takes go on to. One round trip
    /// when this process has seen the chain before, two when it has not: the record of an entity
    /// names its ancestors. Only a chain that was changed by another product, or made by one, takes
    /// one more trip per level that nothing has named.
    pub(super) async fn chains(
        &self,
        keys: &[MemberKey<'_>],
        age_max: Duration,
    ) -> Result<Resolution, StoreError> {
        let trust = Trust { namespace: age_max, rest: age_max };
        let mut lookup = Lookup::new(self, trust, "resolve");
        for key in keys {
            lookup.want_member(key);
            lookup
                .remembered_ancestors(key.entity)
                .iter()
                .for_each(|entity| lookup.want_member(&MemberKey { entity, ..*key }));
        }
        lookup.read().await?;
        for _ in 1..CHAIN_MAX {
            let named: Vec<(EntityId, &ResourceName)> = keys
                .iter()
                .flat_map(|key| {
                    lookup.unread_ancestors(key).into_iter().map(|entity| (entity, key.resource))
                })
                .collect();
            if named.is_empty() {
                break;
            }
            named
                .iter()
                .for_each(|(entity, resource)| lookup.want_member(&MemberKey { entity, resource }));
            lookup.read().await?;
        }
        let found = lookup.answer(keys)?;
        let mut ancestors: Vec<Ancestor> = Vec::new();
        for (key, member) in keys.iter().zip(&found.members) {
            let mut next = member.cascades_to.clone();
            for _ in 1..CHAIN_MAX {
                let Some(entity) =
                    next.filter(|next| !ancestors.iter().any(|known| known.entity == *next))
                else {
                    break;
                };
                if !lookup.found.contains_key(&keys::entity(&self.id, &entity)) {
                    // The chain is longer than a chain may be: the caller that needs the rest reads
                    // it, and reports the error.
                    break;
                }
                let ancestor = lookup.answer(&[MemberKey { entity: &entity, ..*key }])?;
                let (stamp, age) = (ancestor.stamp, ancestor.age);
                let Some(config) = ancestor.members.into_iter().next().map(|member| member.config)
                else {
                    break;
                };
                next = config.cascades_to.clone();
                ancestors.push(Ancestor { entity, config, stamp, age });
            }
        }
        ancestors.retain(|ancestor| !keys.iter().any(|key| *key.entity == ancestor.entity));
        Ok(found.into_resolution(ancestors))
    }
}

/// Records of one lookup, none read twice.
struct Lookup<'a> {
    store: &'a DynamoStore,
    trust: Trust,
    operation: &'static str,
    began: Duration,
    wanted: Vec<Wanted>,
    found: HashMap<Key, Arc<Record>>,
}

impl<'a> Lookup<'a> {
    fn new(store: &'a DynamoStore, trust: Trust, operation: &'static str) -> Lookup<'a> {
        let began = store.shared.options.clock.monotonic();
        let (wanted, found) = (Vec::new(), HashMap::new());
        let mut lookup = Lookup { store, trust, operation, began, wanted, found };
        lookup.want(keys::namespace_by_id(&store.id), trust.namespace);
        lookup.want(keys::system_config(&store.id), trust.rest);
        lookup
    }

    fn want(&mut self, key: Key, age_max: Duration) {
        if !self.found.contains_key(&key) && !self.wanted.iter().any(|wanted| wanted.key == key) {
            self.wanted.push(Wanted { key, age_max });
        }
    }

    fn want_member(&mut self, key: &MemberKey<'_>) {
        let Places { entity, levels } = Places::of(&self.store.id, key);
        self.want(entity, self.trust.rest);
        levels.into_iter().for_each(|level| self.want(level, self.trust.rest));
    }

    /// Reads what is wanted and not there yet.
    async fn read(&mut self) -> Result<(), StoreError> {
        let wanted = std::mem::take(&mut self.wanted);
        let records = self.store.shared.records(self.operation, &wanted).await?;
        self.found.extend(wanted.into_iter().map(|wanted| wanted.key).zip(records));
        self.doubt_what_refuses().await
    }

    /// Reads again the remembered records that refuse every caller: another process may have taken
    /// the refusal back, and callers wait for that. A deleted namespace is read again after
    /// [`NAMESPACE_TRUST`], a disabled level after [`DISABLED_TRUST`].
    async fn doubt_what_refuses(&mut self) -> Result<(), StoreError> {
        let namespace = keys::namespace_by_id(&self.store.id);
        let refuses = |(key, record): (&Key, &Arc<Record>)| {
            let (refuses, age_max) = if *key == namespace {
                (check_active(self.operation, record.item.as_ref()).is_err(), NAMESPACE_TRUST)
            } else {
                (record.item.as_ref().is_some_and(item::config::is_switched_off), DISABLED_TRUST)
            };
            let is_old = self.began.saturating_sub(record.read_at) >= age_max;
            (refuses && is_old).then(|| Wanted { key: key.clone(), age_max })
        };
        let again: Vec<Wanted> = self.found.iter().filter_map(refuses).collect();
        if !again.is_empty() {
            let records = self.store.shared.records(self.operation, &again).await?;
            self.found.extend(again.into_iter().map(|wanted| wanted.key).zip(records));
        }
        Ok(())
    }

    fn item(&self, key: &Key) -> Option<&Item> {
        self.found.get(key).and_then(|record| record.item.as_ref())
    }

    /// The ancestors of an entity as far as this process remembers them: what is probably needed,
    /// never what is believed.
    fn remembered_ancestors(&self, entity: &EntityId) -> Vec<EntityId> {
        let mut ancestors: Vec<EntityId> = Vec::new();
        while ancestors.len() + 1 < CHAIN_MAX {
            let owner =
                self.store.shared.caches.owner(&self.store.id, ancestors.last().unwrap_or(entity));
            let Some(parent) =
                owner.filter(|owner| owner.cascade).and_then(|owner| owner.parent.clone())
            else {
                break;
            };
            ancestors.push(parent);
        }
        ancestors
    }

    /// The next ancestor of a member that has not been read, and those that the records read so far
    /// name beyond it. Empty when the chain is complete, or cannot be read; `answer` says why.
    fn unread_ancestors(&self, key: &MemberKey<'_>) -> Vec<EntityId> {
        let (mut entity, mut hints) = (key.entity.clone(), Vec::new());
        for _ in 1..CHAIN_MAX {
            let Ok(member) = self.member(&MemberKey { entity: &entity, ..*key }) else {
                return Vec::new();
            };
            let Some(parent) = member.config.cascades_to else { return Vec::new() };
            if let Some(owner) = member.owner.filter(|owner| !owner.ancestors.is_empty()) {
                hints.clone_from(&owner.ancestors);
            }
            if !self.found.contains_key(&keys::entity(&self.store.id, &parent)) {
                let beyond = hints.iter().skip_while(|hint| **hint != parent).skip(1).cloned();
                return std::iter::once(parent.clone()).chain(beyond).collect();
            }
            entity = parent;
        }
        Vec::new()
    }

    fn member(&self, key: &MemberKey<'_>) -> Result<Member, StoreError> {
        let told = |error: StoreError| error.during(self.operation);
        let Places { entity, levels } = Places::of(&self.store.id, key);
        let owner = self.item(&entity).map(Owner::read).transpose().map_err(told)?.map(Arc::new);
        let levels = levels.each_ref().map(|level| self.item(level));
        resolve_member(key, owner, levels).map_err(told)
    }

    /// The configuration of these members, by the records that were read.
    fn answer(&self, keys: &[MemberKey<'_>]) -> Result<Members, StoreError> {
        let told = |error: StoreError| error.during(self.operation);
        let (record, system) =
            (keys::namespace_by_id(&self.store.id), keys::system_config(&self.store.id));
        check_active(self.operation, self.item(&record))?;
        let on_unavailable = self
            .item(&system)
            .map(item::config::on_unavailable)
            .transpose()
            .map_err(told)?
            .flatten();
        let mut used = vec![record, system];
        let mut members = Vec::with_capacity(keys.len());
        for key in keys {
            let member = self.member(key)?;
            let owner = member.owner.clone().unwrap_or_default();
            self.store.shared.caches.remember_owner(&self.store.id, key.entity, owner);
            members.push(member);
            let Places { entity, levels } = Places::of(&self.store.id, key);
            used.push(entity);
            used.extend(levels);
        }
        let used = || used.iter().filter_map(|key| self.found.get(key));
        let stamp = ConfigStamp(used().map(|record| record.tick).min().unwrap_or(0));
        let oldest = used().map(|record| record.read_at).min().unwrap_or(self.began);
        Ok(Members { members, on_unavailable, stamp, age: self.began.saturating_sub(oldest) })
    }
}

/// The records of one member.
struct Places {
    entity: Key,
    /// Strongest first.
    levels: [Key; 4],
}

impl Places {
    fn of(namespace: &str, key: &MemberKey<'_>) -> Places {
        Places {
            entity: keys::entity(namespace, key.entity),
            levels: key.levels().map(|level| item::config::key(namespace, &level)),
        }
    }
}
