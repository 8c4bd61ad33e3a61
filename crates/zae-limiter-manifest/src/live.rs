//! What a store has: of the places a manifest or the managed set names, or all of it.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use zae_limiter::store::PAGE_LIMIT_MAX;
use zae_limiter::{Cursor, Entity, EntityId, Error, LevelConfig, Page, PageRequest, RateLimiter};

use crate::managed::Managed;
use crate::manifest::{EntitySpec, LevelSpec, Manifest, Place};
use crate::plan::sorted;

/// Reads that are under way at once.
const READS_AT_ONCE: usize = 32;

/// For so many entities each level is asked for; of more, all levels are listed.
const ASKED_MAX: usize = 100;

/// What a store has, as far as somebody asked.
#[derive(Clone, Debug, Default)]
pub struct Live {
    pub(crate) levels: BTreeMap<Place, LevelConfig>,
    pub(crate) entities: BTreeMap<EntityId, Entity>,
    /// Of entities that may be deleted.
    pub(crate) children: BTreeMap<EntityId, Vec<EntityId>>,
    pub(crate) managed: Managed,
}

impl Live {
    /// A store that has nothing, for a namespace that is not there yet.
    #[must_use]
    pub fn nothing() -> Live {
        Live::default()
    }

    /// Reads what a store has of the places that a manifest names, and of those that are managed.
    ///
    /// Cost: one read for each place and each entity, up to 32 at once. If entities may be deleted,
    /// also one for each resource of each, or the listings of all levels where they are many.
    pub async fn read(limiter: &RateLimiter, manifest: &Manifest) -> Result<Live, Error> {
        let managed = Managed::read(limiter).await?;
        let mut places: BTreeSet<Place> = manifest.levels.keys().cloned().collect();
        places.extend(managed.places.keys().cloned());
        if manifest.on_unavailable.is_some() {
            places.insert(Place::SYSTEM);
        }
        let mut ids: BTreeSet<EntityId> = manifest.entities.keys().cloned().collect();
        let entity_of = |(place, marks): (&Place, &crate::managed::Marks)| {
            marks.entity.then(|| place.entity.clone()).flatten()
        };
        ids.extend(managed.places.iter().filter_map(entity_of));
        ids.extend(manifest.entities.values().filter_map(|spec| spec.parent.clone()));
        let levels = levels(limiter, places).await?;
        let mut live = Live { levels, managed, ..Live::default() };
        live.read_entities(limiter, ids).await?;
        let doomed = live.doomed(manifest);
        live.read_children(limiter, &doomed).await?;
        live.read_levels_of(limiter, &doomed).await?;
        Ok(live)
    }

    /// Reads entities, and then their ancestors.
    async fn read_entities(
        &mut self,
        limiter: &RateLimiter,
        mut ids: BTreeSet<EntityId>,
    ) -> Result<(), Error> {
        let mut asked = BTreeSet::new();
        while !ids.is_empty() {
            asked.extend(ids.iter().cloned());
            let found: Vec<Option<Entity>> = stream::iter(ids)
                .map(|id| limiter.entity(id))
                .buffer_unordered(READS_AT_ONCE)
                .try_collect()
                .await?;
            let mut next = BTreeSet::new();
            for entity in found.into_iter().flatten() {
                next.extend(entity.parent.clone().filter(|parent| !asked.contains(parent)));
                self.entities.insert(entity.id.clone(), entity);
            }
            ids = next;
        }
        Ok(())
    }

    /// The entities that were managed and are not in the file any more.
    fn doomed(&self, manifest: &Manifest) -> BTreeSet<EntityId> {
        let places = self.managed.places.iter().filter(|(_, marks)| marks.entity);
        let ids = places.filter_map(|(place, _)| place.entity.clone());
        ids.filter(|id| !manifest.entities.contains_key(id) && self.entities.contains_key(id))
            .collect()
    }

    async fn read_children(
        &mut self,
        limiter: &RateLimiter,
        doomed: &BTreeSet<EntityId>,
    ) -> Result<(), Error> {
        let found: Vec<(EntityId, Vec<Entity>)> = stream::iter(doomed.iter().cloned())
            .map(|id| async move {
                let children = all(async |page| limiter.children(id.clone(), &page).await).await?;
                Ok::<_, Error>((id, children))
            })
            .buffer_unordered(READS_AT_ONCE)
            .try_collect()
            .await?;
        for (id, children) in found {
            self.children.insert(id, children.into_iter().map(|child| child.id).collect());
        }
        Ok(())
    }

    /// All that is stored for entities, also by hand: it goes with them.
    async fn read_levels_of(
        &mut self,
        limiter: &RateLimiter,
        doomed: &BTreeSet<EntityId>,
    ) -> Result<(), Error> {
        if doomed.is_empty() {
            return Ok(());
        }
        let mut places: BTreeSet<Place> =
            doomed.iter().map(|id| Place::entity(id.clone(), None)).collect();
        for resource in all(async |page| limiter.resources_with_entity_limits(&page).await).await? {
            if doomed.len() <= ASKED_MAX {
                places.extend(doomed.iter().map(|id| Place::entity(id.clone(), resource.clone())));
                continue;
            }
            let of = resource.as_ref();
            let ids = all(async |page| limiter.entities_with_limits(of, &page).await).await?;
            let ids = ids.into_iter().filter(|id| doomed.contains(id));
            places.extend(ids.map(|id| Place::entity(id, resource.clone())));
        }
        places.retain(|place| !self.levels.contains_key(place));
        self.levels.extend(levels(limiter, places).await?);
        Ok(())
    }
}

/// What is stored at these places; places without anything are left out.
async fn levels(
    limiter: &RateLimiter,
    places: impl IntoIterator<Item = Place>,
) -> Result<BTreeMap<Place, LevelConfig>, Error> {
    let found: Vec<(Place, Option<LevelConfig>)> = stream::iter(places)
        .map(|place| async move {
            let stored = limiter.level(&place.level()).await?;
            Ok::<_, Error>((place, stored))
        })
        .buffer_unordered(READS_AT_ONCE)
        .try_collect()
        .await?;
    Ok(found.into_iter().filter_map(|(place, stored)| Some((place, stored?))).collect())
}

/// Every item of a listing.
async fn all<T>(
    list: impl AsyncFn(PageRequest) -> Result<Page<T>, Error>,
) -> Result<Vec<T>, Error> {
    let mut found = Vec::new();
    let mut cursor: Option<Cursor> = None;
    loop {
        let page = match cursor.take() {
            Some(cursor) => PageRequest::after(PAGE_LIMIT_MAX, cursor),
            None => PageRequest::first(PAGE_LIMIT_MAX),
        };
        let page = list(page).await?;
        found.extend(page.items);
        match page.next {
            Some(next) => cursor = Some(next),
            None => return Ok(found),
        }
    }
}

/// Everything that is stored in the namespace of a limiter, as a manifest: limits, flags, the
/// outage policy and entities. No buckets, no usage, no times.
///
/// Cost: the listings, and one read for each level.
pub async fn export(limiter: &RateLimiter) -> Result<Manifest, Error> {
    Ok(export_all(limiter).await?.manifest)
}

/// What is stored in a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Export {
    /// What a manifest can say.
    pub manifest: Manifest,
    /// The levels that have a cascade policy ([`LevelConfig::cascade`]), which no manifest can
    /// have.
    pub cascade_policies: Vec<Place>,
}

/// As [`export`], with what no manifest can say.
pub async fn export_all(limiter: &RateLimiter) -> Result<Export, Error> {
    let mut manifest = Manifest::empty(limiter.namespace_name().clone());
    let mut cascade_policies = Vec::new();
    let mut places = BTreeSet::from([Place::SYSTEM]);
    let resources = all(async |page| limiter.resources_with_defaults(&page).await).await?;
    places.extend(resources.into_iter().map(Place::resource));
    for resource in all(async |page| limiter.resources_with_entity_limits(&page).await).await? {
        let of = resource.as_ref();
        let ids = all(async |page| limiter.entities_with_limits(of, &page).await).await?;
        places.extend(ids.into_iter().map(|id| Place::entity(id, resource.clone())));
    }
    for (place, stored) in levels(limiter, places).await? {
        if place == Place::SYSTEM {
            manifest.on_unavailable = stored.on_unavailable;
        }
        if stored.cascade.is_some() {
            cascade_policies.push(place.clone());
        }
        let spec = LevelSpec { limits: sorted(&stored.limits), flag: stored.flag };
        if spec != LevelSpec::default() {
            manifest.levels.insert(place, spec);
        }
    }
    for entity in all(async |page| limiter.entities(&page).await).await? {
        let Entity { id, name, parent, cascade, metadata, .. } = entity;
        let metadata = (!metadata.is_empty()).then_some(metadata);
        let spec = EntitySpec { name: Some(name), parent, cascade, metadata, line: 0 };
        manifest.entities.insert(id, spec);
    }
    Ok(Export { manifest, cascade_policies })
}
