//! What an apply would change: the desired state, held against what a store has. No I/O; every
//! reason to refuse is found here, before the first write.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use zae_limiter::domain::CHAIN_MAX;
use zae_limiter::{Entity, EntityId, Flag, LevelConfig, Limit, OnUnavailable};

use crate::live::Live;
use crate::managed::Managed;
use crate::manifest::{EntitySpec, Manifest, Place};
use crate::mark::Mark;
use crate::read::Problem;
use crate::words::{effect_of_limits, entity_words, in_words};

/// What a change does to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// `+`: something is stored where there was nothing.
    Add,
    /// `~`: something replaces something.
    Change,
    /// `-`: something is removed.
    Remove,
}

impl Sign {
    /// The mark in front of a line.
    #[must_use]
    pub fn mark(self) -> char {
        match self {
            Sign::Add => '+',
            Sign::Change => '~',
            Sign::Remove => '-',
        }
    }

    /// The word in output.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Sign::Add => "add",
            Sign::Change => "change",
            Sign::Remove => "remove",
        }
    }
}

/// One change of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Limits of a level; the outage policy is stored with those of the system.
    Limits {
        /// Which level.
        place: Place,
        /// Those there are.
        before: Vec<Limit>,
        /// Those there will be; empty when they are deleted.
        after: Vec<Limit>,
        /// The outage policy there is, and the one there will be, if it changes.
        policy: Option<(Option<OnUnavailable>, OnUnavailable)>,
        /// The version of the level when it was read.
        version: u64,
    },
    /// The flag of a level.
    Flag {
        /// Which level.
        place: Place,
        /// The flag there is.
        before: Option<Flag>,
        /// The flag there will be; `None` inherits.
        after: Option<Flag>,
    },
    /// An entity to create.
    Create {
        /// Which entity.
        id: EntityId,
        /// What it will be.
        spec: EntitySpec,
    },
    /// An entity whose name or metadata change.
    Update {
        /// The entity as it is.
        before: Entity,
        /// Its new name, if that changes.
        name: Option<String>,
        /// Its new metadata, if they change.
        metadata: Option<BTreeMap<String, String>>,
    },
    /// An entity to delete, with its buckets and all that is stored for it.
    Delete {
        /// The entity as it is.
        before: Entity,
        /// The limits and flags that go with it, also those that somebody gave it by hand.
        along: Vec<(Place, LevelConfig)>,
    },
}

impl Change {
    /// What the change does.
    #[must_use]
    pub fn sign(&self) -> Sign {
        match self {
            Change::Limits { before, .. } if before.is_empty() => Sign::Add,
            Change::Limits { after, .. } if after.is_empty() => Sign::Remove,
            Change::Flag { before: None, .. } | Change::Create { .. } => Sign::Add,
            Change::Flag { after: None, .. } | Change::Delete { .. } => Sign::Remove,
            Change::Limits { .. } | Change::Flag { .. } | Change::Update { .. } => Sign::Change,
        }
    }

    /// What is changed: `limits`, `flag` or `entity`.
    #[must_use]
    pub fn what(&self) -> &'static str {
        match self {
            Change::Limits { .. } => "limits",
            Change::Flag { .. } => "flag",
            Change::Create { .. } | Change::Update { .. } | Change::Delete { .. } => "entity",
        }
    }

    /// The place that is changed.
    #[must_use]
    pub fn place(&self) -> Place {
        match self {
            Change::Limits { place, .. } | Change::Flag { place, .. } => place.clone(),
            Change::Create { id, .. } => Place::entity(id.clone(), None),
            Change::Update { before, .. } | Change::Delete { before, .. } => {
                Place::entity(before.id.clone(), None)
            }
        }
    }

    /// What there is and what there will be, in words; `None` for nothing.
    #[must_use]
    pub fn values(&self) -> (Option<String>, Option<String>) {
        match self {
            Change::Limits { before, after, policy, .. } => {
                let (old, new) = match policy {
                    Some((old, new)) => (*old, Some(*new)),
                    None => (None, None),
                };
                (in_words(before, old), in_words(after, new))
            }
            Change::Flag { before, after, .. } => {
                let word = |flag: &Option<Flag>| flag.map(|flag| flag.as_str().to_owned());
                (word(before), word(after))
            }
            Change::Create { id, spec } => {
                let name = spec.name.clone().unwrap_or_else(|| id.to_string());
                let metadata = spec.metadata.clone().unwrap_or_default();
                let parent = spec.parent.as_ref();
                (None, Some(entity_words(&name, parent, spec.cascade, &metadata)))
            }
            Change::Update { before, name, metadata } => {
                let Entity { name: old, parent, cascade, metadata: pairs, .. } = before;
                let words = |name, pairs| entity_words(name, parent.as_ref(), *cascade, pairs);
                let new = words(name.as_ref().unwrap_or(old), metadata.as_ref().unwrap_or(pairs));
                (Some(words(old, pairs)), Some(new))
            }
            Change::Delete { before, .. } => {
                let Entity { name, parent, cascade, metadata, .. } = before;
                (Some(entity_words(name, parent.as_ref(), *cascade, metadata)), None)
            }
        }
    }

    /// What goes along with a deleted entity, in words: limits and flags, also those that somebody
    /// gave it by hand.
    #[must_use]
    pub fn along(&self) -> Vec<String> {
        let Change::Delete { along, .. } = self else { return Vec::new() };
        let lines = along.iter().flat_map(|(place, level)| {
            let limits = in_words(&sorted(&level.limits), None);
            let limits = limits.map(|limits| format!("{place}: {limits}"));
            let flag = level.flag.map(|flag| format!("{place} flag: {}", flag.as_str()));
            limits.into_iter().chain(flag)
        });
        lines.collect()
    }

    /// What the change does to buckets that are there.
    #[must_use]
    pub fn effect(&self) -> String {
        match self {
            Change::Limits { place, before, after, .. } if after.is_empty() => {
                let names: Vec<&str> = before.iter().map(|limit| limit.name().as_str()).collect();
                let next = if *place == Place::SYSTEM {
                    "nothing is behind it: calls without other limits fail"
                } else {
                    "the next weaker level decides"
                };
                format!(
                    "{next}; {} of existing buckets are remembered for a while",
                    names.join(", ")
                )
            }
            Change::Limits { before, after, .. } => effect_of_limits(before, after),
            Change::Flag { after, .. } => match after {
                Some(flag) if flag.blocks() => "every call is refused; balances are kept",
                Some(_) => "calls are admitted, whatever weaker levels say",
                None => "weaker levels decide",
            }
            .to_owned(),
            Change::Create { spec, .. } if spec.cascade && spec.parent.is_some() => {
                "its calls also take from its parent from now on".to_owned()
            }
            Change::Create { .. } | Change::Update { .. } => "no bucket changes".to_owned(),
            Change::Delete { .. } => {
                "its buckets, limits and flags go with it, debts too".to_owned()
            }
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (place, what) = (self.place(), self.what());
        write!(f, "{} {place}", self.sign().mark())?;
        if what == "flag" {
            f.write_str(" flag")?;
        }
        match self.values() {
            (Some(before), Some(after)) => write!(f, ": {before} -> {after}"),
            (Some(value), None) | (None, Some(value)) => write!(f, ": {value}"),
            (None, None) => Ok(()),
        }
    }
}

/// Why a manifest cannot be applied to a store. Nothing was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct PlanError {
    /// Every reason.
    pub problems: Vec<Problem>,
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.problems.iter().map(ToString::to_string).collect();
        write!(f, "the file does not fit the store: {}", lines.join("; "))
    }
}

/// What an apply will do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The changes, in the order of their places.
    pub changes: Vec<Change>,
    /// Removals that are left out because pruning was not asked for.
    pub kept: Vec<Change>,
    /// How many places and entities are as the file says.
    pub unchanged: usize,
    /// What was managed before.
    pub(crate) before: Managed,
    /// What is managed afterwards.
    pub(crate) after: Managed,
    pub(crate) asked: Arc<Asked>,
}

/// What a plan was made from, to make it again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) manifest: Manifest,
    prune: bool,
    /// For a copy that overwrites nothing: what the source has managed.
    beside: Option<Managed>,
}

impl Plan {
    /// Compares a manifest with what a store has. With `prune`, what was managed and is no longer
    /// in the file is removed; without, it is kept, and stays managed.
    pub fn new(manifest: &Manifest, live: &Live, prune: bool) -> Result<Plan, PlanError> {
        let mut planner =
            Planner { manifest, live, changes: Vec::new(), unchanged: 0, problems: Vec::new() };
        planner.levels();
        planner.entities();
        let wanted = Managed::of(manifest);
        let removals = planner.removals(&wanted);
        if prune {
            planner.check_deletions(&removals);
        }
        let Planner { mut changes, unchanged, mut problems, .. } = planner;
        if !problems.is_empty() {
            problems.sort_by_key(|problem| problem.line);
            return Err(PlanError { problems });
        }
        let (mut kept, after) = if prune {
            changes.extend(removals);
            (Vec::new(), wanted)
        } else {
            (removals, live.managed.with(&wanted))
        };
        changes.sort_by_key(Change::place);
        kept.sort_by_key(Change::place);
        let asked = Arc::new(Asked { manifest: manifest.clone(), prune, beside: None });
        Ok(Plan { changes, kept, unchanged, before: live.managed.clone(), after, asked })
    }

    /// For a copy that overwrites nothing: only what is missing is added. Managed is then what was
    /// managed here, and what the source has managed, but for what the store keeps otherwise.
    #[must_use]
    pub fn only_missing(mut self, managed: &Managed) -> Plan {
        let is_missing = |change: &Change| change.sign() == Sign::Add;
        (self.changes, self.kept) = self.changes.into_iter().partition(is_missing);
        let mut copied = managed.within(&Managed::of(&self.asked.manifest));
        self.kept.iter().for_each(|change| copied.forget(&change.place(), change.what()));
        self.after = self.before.with(&copied);
        Arc::make_mut(&mut self.asked).beside = Some(managed.clone());
        self
    }

    /// The same plan for what the store has by now.
    pub(crate) fn compared_again(&self, live: &Live) -> Result<Plan, PlanError> {
        let Asked { manifest, prune, beside } = &*self.asked;
        let plan = Plan::new(manifest, live, *prune)?;
        Ok(match beside {
            Some(managed) => plan.only_missing(managed),
            None => plan,
        })
    }

    /// True when there is nothing to write, not even about what is managed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.before.is_same(&self.after) && !self.before.is_interrupted
    }

    /// True when an apply before did not come to its end; this plan is what is left of it.
    #[must_use]
    pub fn is_resumed(&self) -> bool {
        self.before.is_interrupted
    }

    /// The mark of the apply before, unless it came to its end or said that it stopped: it was
    /// killed, or is at work.
    #[must_use]
    pub fn held(&self) -> Option<&Mark> {
        self.before.held.as_ref()
    }

    /// How many changes have this sign.
    #[must_use]
    pub fn count(&self, sign: Sign) -> usize {
        self.changes.iter().filter(|change| change.sign() == sign).count()
    }
}

struct Planner<'a> {
    manifest: &'a Manifest,
    live: &'a Live,
    changes: Vec<Change>,
    unchanged: usize,
    problems: Vec<Problem>,
}

impl Planner<'_> {
    fn problem(&mut self, line: u64, path: String, message: String) {
        self.problems.push(Problem { line: (line > 0).then_some(line), path, message });
    }

    fn levels(&mut self) {
        let has_system = self.manifest.levels.contains_key(&Place::SYSTEM);
        if let (Some(policy), false) = (self.manifest.on_unavailable, has_system) {
            self.policy_alone(policy);
        }
        for (place, spec) in &self.manifest.levels {
            let stored = self.live.levels.get(place);
            let mut is_same = true;
            if !spec.limits.is_empty() {
                let before = stored.map(|stored| sorted(&stored.limits)).unwrap_or_default();
                let wanted = self.manifest.on_unavailable.filter(|_| *place == Place::SYSTEM);
                let policy = self.policy_change(wanted);
                if before != spec.limits || policy.is_some() {
                    is_same = false;
                    self.changes.push(Change::Limits {
                        place: place.clone(),
                        before,
                        after: spec.limits.clone(),
                        policy,
                        version: stored.map_or(0, |stored| stored.version),
                    });
                }
            }
            let before = stored.and_then(|stored| stored.flag);
            if spec.flag.is_some() && spec.flag != before {
                is_same = false;
                let (place, after) = (place.clone(), spec.flag);
                self.changes.push(Change::Flag { place, before, after });
            }
            self.unchanged += usize::from(is_same);
        }
    }

    fn policy_change(
        &self,
        wanted: Option<OnUnavailable>,
    ) -> Option<(Option<OnUnavailable>, OnUnavailable)> {
        let stored = self.live.levels.get(&Place::SYSTEM).and_then(|stored| stored.on_unavailable);
        wanted.filter(|wanted| stored != Some(*wanted)).map(|wanted| (stored, wanted))
    }

    /// An outage policy without limits in the file: it is stored beside those there are.
    fn policy_alone(&mut self, policy: OnUnavailable) {
        let stored = self.live.levels.get(&Place::SYSTEM);
        let limits = stored.map(|stored| sorted(&stored.limits)).unwrap_or_default();
        if limits.is_empty() {
            let message = "the outage policy is stored beside limits, and neither the file nor the \
                           store has any for the system; add system.limits";
            self.problem(0, "system.on_unavailable".into(), message.into());
            return;
        }
        match self.policy_change(Some(policy)) {
            Some(change) => self.changes.push(Change::Limits {
                place: Place::SYSTEM,
                before: limits.clone(),
                after: limits,
                policy: Some(change),
                version: stored.map_or(0, |stored| stored.version),
            }),
            None => self.unchanged += 1,
        }
    }

    fn entities(&mut self) {
        for (id, spec) in &self.manifest.entities {
            let path = format!("entities.{id}");
            match self.live.entities.get(id) {
                Some(found) => self.existing(id, spec, found, path),
                None => {
                    let parent = spec.parent.as_ref();
                    if let Some(parent) = parent.filter(|parent| !self.will_exist(parent)) {
                        let message = format!(
                            "the parent {parent} is neither in the file nor in the store; add it to \
                             the entities of the file"
                        );
                        self.problem(spec.line, path, message);
                        continue;
                    }
                    if let Some(message) = self.lineage_problem(id, spec) {
                        self.problem(spec.line, path, message);
                    }
                    self.changes.push(Change::Create { id: id.clone(), spec: spec.clone() });
                }
            }
        }
    }

    fn existing(&mut self, id: &EntityId, spec: &EntitySpec, found: &Entity, path: String) {
        if (&found.parent, found.cascade) != (&spec.parent, spec.cascade) {
            let lineage = |parent: Option<&EntityId>, cascade: bool| {
                let parent = parent
                    .map_or_else(|| "no parent".to_owned(), |parent| format!("parent {parent}"));
                format!("{parent} and cascade {}", if cascade { "on" } else { "off" })
            };
            let message = format!(
                "{id} has {}, and the file says {}; neither can be changed: delete the entity \
                 first, or describe it as it is",
                lineage(found.parent.as_ref(), found.cascade),
                lineage(spec.parent.as_ref(), spec.cascade)
            );
            self.problem(spec.line, path, message);
            return;
        }
        let name = spec.name.clone().filter(|name| *name != found.name);
        let metadata = spec.metadata.clone().filter(|metadata| *metadata != found.metadata);
        if name.is_none() && metadata.is_none() {
            self.unchanged += 1;
        } else {
            self.changes.push(Change::Update { before: found.clone(), name, metadata });
        }
    }

    fn will_exist(&self, id: &EntityId) -> bool {
        self.manifest.entities.contains_key(id) || self.live.entities.contains_key(id)
    }

    /// The parent of an entity, as the store has it or else as the file says, and whether takes go
    /// on to it.
    fn parent_of(&self, id: &EntityId) -> Option<(&EntityId, bool)> {
        let (parent, cascade) = match (self.live.entities.get(id), self.manifest.entities.get(id)) {
            (Some(found), _) => (found.parent.as_ref(), found.cascade),
            (None, Some(spec)) => (spec.parent.as_ref(), spec.cascade),
            (None, None) => (None, false),
        };
        Some((parent?, cascade))
    }

    /// Whether an entity to create is its own ancestor, or has too many that it cascades to.
    fn lineage_problem(&self, id: &EntityId, spec: &EntitySpec) -> Option<String> {
        let mut seen = BTreeSet::from([id]);
        let (mut next, mut cascades, mut chain) = (spec.parent.as_ref(), spec.cascade, 1);
        while let Some(ancestor) = next {
            if !seen.insert(ancestor) {
                let message =
                    "its parents form a circle; one of them needs another parent, or none";
                return Some(message.to_owned());
            }
            chain += usize::from(cascades);
            if chain > CHAIN_MAX {
                return Some(format!(
                    "it would cascade to more than {} ancestors; attach it higher up",
                    CHAIN_MAX - 1
                ));
            }
            (next, cascades) = match self.parent_of(ancestor) {
                Some((parent, cascade)) => (Some(parent), cascades && cascade),
                None => (None, false),
            };
        }
        None
    }

    /// What was managed, is stored, and is no longer in the file.
    fn removals(&self, wanted: &Managed) -> Vec<Change> {
        let mut removals = Vec::new();
        let mut deleted = BTreeSet::new();
        for (place, marks) in &self.live.managed.places {
            let still = wanted.places.get(place).copied().unwrap_or_default();
            if let (true, false, Some(id)) = (marks.entity, still.entity, &place.entity)
                && let Some(before) = self.live.entities.get(id)
            {
                deleted.insert(id);
                let levels = self.live.levels.iter();
                let along = levels.filter(|(place, _)| place.entity.as_ref() == Some(id));
                let along = along.map(|(place, level)| (place.clone(), level.clone())).collect();
                removals.push(Change::Delete { before: before.clone(), along });
            }
        }
        for (place, marks) in &self.live.managed.places {
            let still = wanted.places.get(place).copied().unwrap_or_default();
            let Some(stored) = self.live.levels.get(place) else { continue };
            // What is stored for a deleted entity goes with it, unless the file wants it back.
            let goes_along = place.entity.as_ref().is_some_and(|id| deleted.contains(id));
            if goes_along && !still.limits && !still.flag {
                continue;
            }
            if marks.limits && !still.limits && !stored.limits.is_empty() {
                removals.push(Change::Limits {
                    place: place.clone(),
                    before: sorted(&stored.limits),
                    after: Vec::new(),
                    policy: None,
                    version: stored.version,
                });
            }
            if marks.flag && !still.flag && stored.flag.is_some() {
                let (place, before) = (place.clone(), stored.flag);
                removals.push(Change::Flag { place, before, after: None });
            }
        }
        removals
    }

    /// An entity is deleted only with all its children, and only when the file has no levels of it.
    fn check_deletions(&mut self, removals: &[Change]) {
        let doomed: BTreeSet<&EntityId> = removals
            .iter()
            .filter_map(|change| match change {
                Change::Delete { before, .. } => Some(&before.id),
                _ => None,
            })
            .collect();
        for id in &doomed {
            let path = format!("entities.{id}");
            let children = self.live.children.get(*id).map(Vec::as_slice).unwrap_or_default();
            if let Some(child) = children.iter().find(|child| !doomed.contains(*child)) {
                let message = format!(
                    "it is managed and no longer in the file, but its child {child} stays; put it \
                     back into the file, or delete the child first"
                );
                self.problem(0, path.clone(), message);
            }
            let is_parent = |(child, spec): (&EntityId, &EntitySpec)| {
                (spec.parent.as_ref() == Some(*id)).then(|| child.clone())
            };
            if let Some(child) = self.manifest.entities.iter().find_map(is_parent) {
                let message = format!(
                    "it is managed and no longer in the file, but {child} in the file names it as \
                     its parent; put it back into the file"
                );
                self.problem(0, path.clone(), message);
            }
            if self.manifest.levels.keys().any(|place| place.entity.as_ref() == Some(*id)) {
                let message = "it is managed and no longer described in the file, which still has \
                               limits or a flag of it; describe it again (`name:`), or remove those";
                self.problem(0, path, message.to_owned());
            }
        }
    }
}

pub(crate) fn sorted(limits: &[Limit]) -> Vec<Limit> {
    let mut limits = limits.to_vec();
    limits.sort_by(|a, b| a.name().cmp(b.name()));
    limits
}
