//! Reading a manifest. Every mistake is told, with its line and the way out; a file with one
//! mistake is refused whole.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use zae_limiter::domain::check_limits;
use zae_limiter::{
    Entity, EntityId, Flag, Limit, LimitName, NamespaceName, OnUnavailable, ResourceName,
};

use crate::manifest::{EntitySpec, LevelSpec, Manifest, Place};
use crate::yaml::{self, Key, Node, Value};

/// The keys of each place of a file.
pub(crate) mod keys {
    /// Of the file itself.
    pub(crate) const FILE: &[&str] = &["namespace", "system", "resources", "entities"];
    /// Of `system`.
    pub(crate) const SYSTEM: &[&str] = &["on_unavailable", "limits"];
    /// Of a resource, and of a resource of an entity.
    pub(crate) const LEVEL: &[&str] = &["limits", "disabled"];
    /// Of an entity.
    pub(crate) const ENTITY: &[&str] =
        &["name", "parent", "cascade", "metadata", "limits", "disabled", "resources"];
    /// Of a limit.
    pub(crate) const LIMIT: &[&str] = &["capacity", "burst", "refill_amount", "refill_period"];
    /// Kinds of the Python package that are no token bucket of this product: refused, unless empty.
    pub(crate) const OTHER_KINDS: &[&str] =
        &["schedule", "reset_schedule", "reset_after_seconds", "soft"];
}

/// The name under which the limits of an entity for every resource stand among its resources.
pub(crate) const ALL_RESOURCES: &str = "_default_";

const PERIOD_S: u64 = 60;

/// One mistake in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The line, from 1; `None` when the mistake is in no line.
    pub line: Option<u64>,
    /// The place, such as `resources.gpt-4.limits.rpm`; empty for the file itself.
    pub path: String,
    /// What is wrong, and what to do.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)
    }
}

/// A file that is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ReadError {
    /// Every mistake that was found, by line.
    pub problems: Vec<Problem>,
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.problems.iter().map(ToString::to_string).collect();
        write!(f, "the file is refused: {}", lines.join("; "))
    }
}

/// A manifest, and what it says in vain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    /// The manifest.
    pub manifest: Manifest,
    /// Entries that change nothing and are probably not meant.
    pub warnings: Vec<Problem>,
}

impl Manifest {
    /// Reads a manifest from YAML or JSON.
    ///
    /// ```
    /// let read = zae_limiter_manifest::Manifest::read(
    ///     "namespace: default\nsystem: {limits: {rpm: {capacity: 60}}}\n",
    /// )?;
    /// assert_eq!(read.manifest.levels.len(), 1);
    /// # Ok::<_, zae_limiter_manifest::ReadError>(())
    /// ```
    pub fn read(text: &str) -> Result<Read, ReadError> {
        let mut reader = Reader { lines: text.lines().collect(), ..Reader::default() };
        let manifest = match yaml::parse(text) {
            Ok(node) => reader.manifest(&node),
            Err((line, message)) => {
                reader.problems.push(Problem { line, path: String::new(), message });
                None
            }
        };
        match manifest {
            Some(manifest) if reader.problems.is_empty() => {
                Ok(Read { manifest, warnings: reader.warnings })
            }
            _ => {
                reader.problems.sort_by_key(|problem| problem.line);
                Err(ReadError { problems: reader.problems })
            }
        }
    }
}

#[derive(Default)]
struct Reader<'t> {
    /// The file.
    lines: Vec<&'t str>,
    path: Vec<String>,
    problems: Vec<Problem>,
    warnings: Vec<Problem>,
}

type Entries<'a> = BTreeMap<&'a str, &'a (Key, Node)>;

impl Reader<'_> {
    fn problem(&mut self, line: u64, message: impl Into<String>) {
        let problem = self.at(line, message);
        self.problems.push(problem);
    }

    fn at(&self, line: u64, message: impl Into<String>) -> Problem {
        Problem { line: Some(line), path: self.path.join("."), message: message.into() }
    }

    /// Does something at a place below this one.
    fn below<T>(&mut self, key: &str, read: impl FnOnce(&mut Self) -> T) -> T {
        self.path.push(key.to_owned());
        let answer = read(self);
        self.path.pop();
        answer
    }

    /// The entries of a mapping; none for null.
    fn map<'a>(&mut self, node: &'a Node) -> &'a [(Key, Node)] {
        match &node.value {
            Value::Map(entries) => entries,
            Value::Null => &[],
            other => {
                self.problem(node.line, format!("{} is no mapping", other.shown()));
                &[]
            }
        }
    }

    /// The entries of a mapping, all of whose keys are known. Those that the caller refuses in
    /// words of its own are no advice.
    fn entries<'a>(&mut self, node: &'a Node, known: &[&str], refused: &[&str]) -> Entries<'a> {
        let mut found = Entries::new();
        for entry in self.map(node) {
            let key = entry.0.text.as_str();
            if known.contains(&key) || refused.contains(&key) {
                found.insert(key, entry);
            } else {
                let message = format!("is no key here; use one of {}", known.join(", "));
                self.below(key, |reader| reader.problem(entry.0.line, message));
            }
        }
        found
    }

    fn manifest(&mut self, node: &Node) -> Option<Manifest> {
        let entries = self.entries(node, keys::FILE, &[]);
        let namespace = match entries.get("namespace") {
            Some((_, node)) => self.below("namespace", |reader| reader.name::<NamespaceName>(node)),
            None => {
                self.problem(node.line.max(1), "a namespace is missing; add `namespace: default`");
                None
            }
        };
        let mut levels = BTreeMap::new();
        let mut entities = BTreeMap::new();
        let on_unavailable = entries
            .get("system")
            .and_then(|(_, node)| self.below("system", |reader| reader.system(node, &mut levels)));
        if let Some((_, node)) = entries.get("resources") {
            self.below("resources", |reader| {
                for (key, node) in reader.map(node) {
                    reader.below(&key.text, |reader| {
                        let resource = reader.parsed::<ResourceName>(key.line, &key.text);
                        let spec = reader.level(key.line, node);
                        if let (Some(resource), Some(spec)) = (resource, spec) {
                            levels.insert(Place::resource(resource), spec);
                        }
                    });
                }
            });
        }
        if let Some((_, node)) = entries.get("entities") {
            self.below("entities", |reader| {
                for (key, node) in reader.map(node) {
                    reader.below(&key.text, |reader| {
                        let Some(id) = reader.parsed::<EntityId>(key.line, &key.text) else {
                            return;
                        };
                        let spec = reader.entity(&id, key.line, node, &mut levels);
                        entities.extend(spec.map(|spec| (id, spec)));
                    });
                }
            });
        }
        Some(Manifest { namespace: namespace?, on_unavailable, levels, entities })
    }

    fn system(
        &mut self,
        node: &Node,
        levels: &mut BTreeMap<Place, LevelSpec>,
    ) -> Option<OnUnavailable> {
        let entries = self.entries(node, keys::SYSTEM, &["disabled", "cascade"]);
        for key in ["disabled", "cascade"] {
            if let Some((key, _)) = entries.get(key) {
                let message = "the system level has none; give it to a resource or an entity";
                self.below(&key.text, |reader| reader.problem(key.line, message));
            }
        }
        let limits = self.limits_in(&entries);
        if !limits.is_empty() {
            levels.insert(Place::SYSTEM, LevelSpec { limits, flag: None });
        }
        let (_, node) = entries.get("on_unavailable")?;
        self.below("on_unavailable", |reader| match &node.value {
            Value::Null => None,
            Value::Text(text) => reader.parsed(node.line, text),
            other => {
                let message = format!("{} is no policy; use allow or block", other.shown());
                reader.problem(node.line, message);
                None
            }
        })
    }

    /// A resource, or a resource of an entity. `None` when it says nothing.
    fn level(&mut self, line: u64, node: &Node) -> Option<LevelSpec> {
        let entries = self.entries(node, keys::LEVEL, &["cascade"]);
        if let Some((key, _)) = entries.get("cascade") {
            let message = "cascade policies of levels are not supported; an entity cascades by \
                           `cascade: true` beside its parent";
            self.below("cascade", |reader| reader.problem(key.line, message));
        }
        let before = self.problems.len();
        let spec = LevelSpec { limits: self.limits_in(&entries), flag: self.flag_in(&entries) };
        if spec != LevelSpec::default() {
            return Some(spec);
        }
        if self.problems.len() == before && !entries.contains_key("cascade") {
            let warning = self.at(line, "says nothing, and changes nothing");
            self.warnings.push(warning);
        }
        None
    }

    /// An entity; its levels are added to `levels`. `None` when only its levels are described.
    fn entity(
        &mut self,
        id: &EntityId,
        line: u64,
        node: &Node,
        levels: &mut BTreeMap<Place, LevelSpec>,
    ) -> Option<EntitySpec> {
        let entries = self.entries(node, keys::ENTITY, &[]);
        let own = LevelSpec { limits: self.limits_in(&entries), flag: self.flag_in(&entries) };
        if own != LevelSpec::default() {
            levels.insert(Place::entity(id.clone(), None), own);
        }
        if let Some((_, node)) = entries.get("resources") {
            self.below("resources", |reader| {
                for (key, node) in reader.map(node) {
                    reader.below(&key.text, |reader| {
                        let resource = match key.text == ALL_RESOURCES {
                            true => Some(None),
                            false => reader.parsed::<ResourceName>(key.line, &key.text).map(Some),
                        };
                        let (spec, Some(resource)) = (reader.level(key.line, node), resource)
                        else {
                            return;
                        };
                        let Some(spec) = spec else { return };
                        let place = Place::entity(id.clone(), resource);
                        if levels.insert(place, spec).is_some() {
                            let message = "is given twice: `_default_` is what stands in the \
                                           entity itself";
                            reader.problem(key.line, message);
                        }
                    });
                }
            });
        }
        let is_described =
            ["name", "parent", "cascade", "metadata"].iter().any(|key| entries.contains_key(key));
        if !is_described {
            if entries.is_empty() && matches!(node.value, Value::Null | Value::Map(_)) {
                let warning =
                    self.at(line, "says nothing, and changes nothing; `name:` would create it");
                self.warnings.push(warning);
            }
            return None;
        }
        self.described(id, line, &entries)
    }

    fn described(&mut self, id: &EntityId, line: u64, entries: &Entries<'_>) -> Option<EntitySpec> {
        let name = entries
            .get("name")
            .and_then(|(_, node)| self.below("name", |reader| reader.text(node, "a name")));
        let parent = entries.get("parent").and_then(|(_, node)| {
            self.below("parent", |reader| match &node.value {
                Value::Null => None,
                _ => reader.name::<EntityId>(node),
            })
        });
        let cascade = entries.get("cascade").is_some_and(|(_, node)| {
            self.below("cascade", |reader| match &node.value {
                Value::Bool(flag) => *flag,
                Value::Null => false,
                other => {
                    let message = format!("{} is neither true nor false", other.shown());
                    reader.problem(node.line, message);
                    false
                }
            })
        });
        let metadata = entries.get("metadata").map(|(_, node)| {
            self.below("metadata", |reader| {
                let mut found = BTreeMap::new();
                for (key, node) in reader.map(node) {
                    let value = reader.below(&key.text, |reader| reader.text(node, "a text"));
                    found.extend(value.map(|value| (key.text.clone(), value)));
                }
                found
            })
        });
        if parent.as_ref() == Some(id) {
            self.problem(line, "an entity cannot be its own parent; name another, or none");
        }
        let none = BTreeMap::new();
        let checked =
            Entity::check_text(name.as_deref().unwrap_or("-"), metadata.as_ref().unwrap_or(&none));
        if let Err(error) = checked {
            self.problem(line, error.to_string());
        }
        Some(EntitySpec { name, parent, cascade, metadata, line })
    }

    fn flag_in(&mut self, entries: &Entries<'_>) -> Option<Flag> {
        let (_, node) = entries.get("disabled")?;
        self.below("disabled", |reader| match &node.value {
            Value::Bool(is_disabled) => Some(Flag::from_disabled(*is_disabled)),
            Value::Null => None,
            Value::Text(text) if text == "bypass" => {
                let message = "bypass is not supported; use true, false, or leave it out";
                reader.problem(node.line, message);
                None
            }
            other => {
                let message = format!("{} is neither true nor false", other.shown());
                reader.problem(node.line, message);
                None
            }
        })
    }

    fn limits_in(&mut self, entries: &Entries<'_>) -> Vec<Limit> {
        let Some((key, node)) = entries.get("limits") else { return Vec::new() };
        self.below("limits", |reader| {
            let mut limits = Vec::new();
            for (key, node) in reader.map(node) {
                let limit = reader.below(&key.text, |reader| reader.limit(key, node));
                limits.extend(limit);
            }
            if let Err(error) = check_limits(&limits) {
                reader.problem(key.line, error.to_string());
            }
            limits.sort_by(|a, b| a.name().cmp(b.name()));
            limits
        })
    }

    fn limit(&mut self, key: &Key, node: &Node) -> Option<Limit> {
        let name = self.parsed::<LimitName>(key.line, &key.text);
        if let Value::Text(text) = &node.value {
            let limit = self.parsed::<Limit>(node.line, &format!("{}:{text}", name.as_ref()?));
            return limit;
        }
        if !matches!(node.value, Value::Map(_)) {
            let message = format!(
                "{} is no limit; write {{capacity: 100}} or a text such as 100/min",
                node.value.shown()
            );
            self.problem(node.line, message);
            return None;
        }
        let entries = self.entries(node, keys::LIMIT, keys::OTHER_KINDS);
        let before = self.problems.len();
        for kind in keys::OTHER_KINDS {
            let Some((key, node)) = entries.get(kind) else { continue };
            let is_empty = match &node.value {
                Value::Null | Value::Bool(false) => true,
                Value::List(items) => items.is_empty(),
                _ => false,
            };
            if !is_empty {
                let message = "this kind of limit is not supported: only token buckets that \
                               refill steadily are";
                self.below(kind, |reader| reader.problem(key.line, message));
            }
        }
        let is_other_kind = self.problems.len() > before;
        let capacity = self.amount(&entries, "capacity");
        let burst = self.amount(&entries, "burst");
        if capacity.is_none() && self.problems.len() == before {
            self.problem(key.line, "capacity is missing; add the most tokens there can be");
        }
        let refill = match is_other_kind {
            // What a reset brings back needs no refill; the kind itself is told already.
            true => None,
            false => self.amount(&entries, "refill_amount"),
        };
        let period = self.amount(&entries, "refill_period");
        if self.problems.len() > before {
            return None;
        }
        // A burst is another word for the capacity, and the stronger one: so the Python package.
        let capacity = burst.or(capacity)?;
        let (rate, period) = (refill.unwrap_or(capacity), period.unwrap_or(PERIOD_S));
        let limit = Limit::new(name?, capacity, rate, period);
        limit.map_err(|error| self.problem(key.line, error.to_string())).ok()
    }

    /// A whole number above zero.
    fn amount(&mut self, entries: &Entries<'_>, key: &str) -> Option<u64> {
        let (_, node) = entries.get(key)?;
        let found = match &node.value {
            Value::Null => return None,
            Value::Whole(number) => u64::try_from(*number).ok().filter(|number| *number > 0),
            _ => None,
        };
        if found.is_none() {
            let shown = node.value.shown();
            let message = match &node.value {
                // 1e6 and 1.0 are shown as digits, which would be right.
                Value::Real(number) if number.fract() == 0.0 => {
                    format!(
                        "{shown} is not written as a whole number; write digits alone, as in 60"
                    )
                }
                _ => format!("{shown} is no whole number above 0"),
            };
            self.below(key, |reader| reader.problem(node.line, message));
        }
        found
    }

    /// A text; a number or a flag is refused, because its spelling is lost.
    fn text(&mut self, node: &Node, what: &str) -> Option<String> {
        match &node.value {
            Value::Text(text) => Some(text.clone()),
            Value::Null => None,
            other => {
                let message = format!("{} is not {what}; put it in quotes", other.shown());
                self.problem(node.line, message);
                None
            }
        }
    }

    /// A name. A number is a name too where its rule allows it and its digits stand in the file:
    /// not 0x1F, which YAML takes for 31.
    fn name<N: FromStr>(&mut self, node: &Node) -> Option<N>
    where
        N::Err: fmt::Display,
    {
        match &node.value {
            Value::Text(text) => self.parsed(node.line, text),
            Value::Whole(number) if self.is_written(node.line, &number.to_string()) => {
                self.parsed(node.line, &number.to_string())
            }
            other => {
                self.problem(node.line, format!("{} is no name; put it in quotes", other.shown()));
                None
            }
        }
    }

    fn is_written(&self, line: u64, digits: &str) -> bool {
        let number = usize::try_from(line).unwrap_or(usize::MAX);
        let line = number.checked_sub(1).and_then(|above| self.lines.get(above));
        line.is_some_and(|line| {
            line.split(|sign: char| !sign.is_ascii_alphanumeric()).any(|word| word == digits)
        })
    }

    fn parsed<N: FromStr>(&mut self, line: u64, text: &str) -> Option<N>
    where
        N::Err: fmt::Display,
    {
        text.parse().map_err(|error: N::Err| self.problem(line, error.to_string())).ok()
    }
}
