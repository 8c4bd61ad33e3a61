//! Stored configuration as the oracle keeps it: entities, limits and flags of one namespace.

use std::collections::BTreeMap;

use zae_limiter_core::{CHAIN_MAX, EntityId, Flag, Limit, LimitSource, ResourceName};
use zae_limiter_store::{Level, MemberConfig, NewEntity, StoreErrorKind};

/// Entity and resource of a level, empty where it is about none.
type LevelKey = (String, String);

#[derive(Clone, Debug, Default)]
struct Stored {
    limits: Vec<Limit>,
    flag: Option<Flag>,
}

#[derive(Clone, Debug)]
struct Member {
    parent: Option<EntityId>,
    cascade: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Config {
    levels: BTreeMap<LevelKey, Stored>,
    entities: BTreeMap<EntityId, Member>,
    /// Changes so far: the order in which freshness must grow.
    pub(crate) changes: u64,
}

fn key(level: &Level) -> LevelKey {
    (
        level.entity_id().map_or("", EntityId::as_str).to_owned(),
        level.resource_name().map_or("", ResourceName::as_str).to_owned(),
    )
}

impl Config {
    fn edit(&mut self, level: &Level, change: impl FnOnce(&mut Stored)) {
        self.changes += 1;
        let stored = self.levels.entry(key(level)).or_default();
        change(stored);
        if stored.limits.is_empty() && stored.flag.is_none() {
            self.levels.remove(&key(level));
        }
    }

    /// Puts what was read of a level in the place of what was there.
    pub(crate) fn replace_level(&mut self, level: &Level, limits: Vec<Limit>, flag: Option<Flag>) {
        self.edit(level, |stored| *stored = Stored { limits, flag });
    }

    /// The same for the record of an entity: its parent, and whether it cascades.
    pub(crate) fn replace_entity(&mut self, id: &EntityId, link: Option<(Option<EntityId>, bool)>) {
        self.changes += 1;
        match link {
            Some((parent, cascade)) => self.entities.insert(id.clone(), Member { parent, cascade }),
            None => self.entities.remove(id),
        };
    }

    pub(crate) fn set_limits(&mut self, level: &Level, limits: &[Limit]) {
        self.edit(level, |stored| stored.limits = limits.to_vec());
    }

    /// False when there were none.
    pub(crate) fn delete_limits(&mut self, level: &Level) -> bool {
        let there = self.levels.get(&key(level)).is_some_and(|stored| !stored.limits.is_empty());
        if there {
            self.edit(level, |stored| stored.limits.clear());
        }
        there
    }

    pub(crate) fn set_flag(&mut self, level: &Level, flag: Option<Flag>) {
        self.edit(level, |stored| stored.flag = flag);
    }

    pub(crate) fn create_entity(&mut self, new: &NewEntity) -> Result<(), StoreErrorKind> {
        if new.parent.as_ref() == Some(&new.id) {
            return Err(StoreErrorKind::Invalid);
        }
        if self.entities.contains_key(&new.id) {
            return Err(StoreErrorKind::AlreadyExists);
        }
        if new.parent.as_ref().is_some_and(|parent| !self.entities.contains_key(parent)) {
            return Err(StoreErrorKind::NotFound);
        }
        let ancestors = if new.cascade {
            new.parent.as_ref().map_or(0, |parent| self.chain_of(parent).len())
        } else {
            0
        };
        if ancestors + 1 > CHAIN_MAX {
            return Err(StoreErrorKind::Invalid);
        }
        self.entities
            .insert(new.id.clone(), Member { parent: new.parent.clone(), cascade: new.cascade });
        self.changes += 1;
        Ok(())
    }

    /// The number of configurations that went with it.
    pub(crate) fn delete_entity(&mut self, id: &EntityId) -> Result<u64, StoreErrorKind> {
        if !self.entities.contains_key(id) {
            return Err(StoreErrorKind::NotFound);
        }
        if self.entities.values().any(|member| member.parent.as_ref() == Some(id)) {
            return Err(StoreErrorKind::State);
        }
        self.entities.remove(id);
        let before = self.levels.len();
        self.levels.retain(|(entity, _), _| entity != id.as_str());
        self.changes += 1;
        Ok((before - self.levels.len()) as u64)
    }

    pub(crate) fn cascades_to(&self, entity: &EntityId) -> Option<EntityId> {
        self.entities
            .get(entity)
            .filter(|member| member.cascade)
            .and_then(|member| member.parent.clone())
    }

    /// The entity and those its takes go on to.
    pub(crate) fn chain_of(&self, entity: &EntityId) -> Vec<EntityId> {
        let mut chain = vec![entity.clone()];
        while let Some(next) =
            self.cascades_to(&chain[chain.len() - 1]).filter(|_| chain.len() <= CHAIN_MAX)
        {
            chain.push(next);
        }
        chain
    }

    /// The levels that speak about a bucket, strongest first.
    pub(crate) fn levels_of(
        entity: &EntityId,
        resource: &ResourceName,
    ) -> [(Level, LimitSource); 4] {
        [
            (Level::EntityResource(entity.clone(), resource.clone()), LimitSource::EntityResource),
            (Level::Entity(entity.clone()), LimitSource::Entity),
            (Level::Resource(resource.clone()), LimitSource::Resource),
            (Level::System, LimitSource::System),
        ]
    }

    pub(crate) fn limits_at(&self, level: &Level) -> &[Limit] {
        self.levels.get(&key(level)).map_or(&[], |stored| &stored.limits)
    }

    pub(crate) fn flag_at(&self, level: &Level) -> Option<Flag> {
        self.levels.get(&key(level)).and_then(|stored| stored.flag)
    }

    pub(crate) fn blocked_by(
        &self,
        entity: &EntityId,
        resource: &ResourceName,
    ) -> Option<(Flag, Level)> {
        let flag = |(level, _): &(Level, LimitSource)| self.flag_at(level);
        let levels = Config::levels_of(entity, resource);
        let first = levels.iter().find(|level| flag(level).is_some())?;
        flag(first).filter(|flag| *flag != Flag::Enabled).map(|flag| (flag, first.0.clone()))
    }

    /// What a read must answer.
    pub(crate) fn member(&self, entity: &EntityId, resource: &ResourceName) -> MemberConfig {
        let limits = Config::levels_of(entity, resource).into_iter().find_map(|(level, source)| {
            let stored =
                self.levels.get(&key(&level)).filter(|stored| !stored.limits.is_empty())?;
            Some((stored.limits.clone().into(), source))
        });
        MemberConfig {
            cascades_to: self.cascades_to(entity),
            limits,
            blocked_by: self.blocked_by(entity, resource),
        }
    }

    /// Whether a level speaks about this bucket.
    pub(crate) fn covers(level: &Level, entity: &EntityId, resource: &ResourceName) -> bool {
        level.entity_id().is_none_or(|covered| covered == entity)
            && level.resource_name().is_none_or(|covered| covered == resource)
    }
}
