//! A manifest as text, the same for the same manifest: everything is sorted, nothing has a time or
//! a version. The form is YAML of one line per limit, or JSON, which is YAML too.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};
use zae_limiter::Limit;
use zae_limiter::wire::FlagForm;

use crate::manifest::{EntitySpec, LevelSpec, Manifest, Place};
use crate::read::ALL_RESOURCES;

impl Manifest {
    /// The manifest as YAML, which [`Manifest::read`] reads back.
    #[must_use]
    pub fn to_yaml(&self) -> String {
        let mut text = format!("namespace: {}\n", scalar(self.namespace.as_str()));
        let system = self.levels.get(&Place::SYSTEM);
        if system.is_some() || self.on_unavailable.is_some() {
            text.push_str("system:\n");
            if let Some(policy) = self.on_unavailable {
                line(&mut text, 1, &format!("on_unavailable: {policy}"));
            }
            level(&mut text, 1, system);
        }
        let mut head = "resources:\n";
        for (place, spec) in &self.levels {
            if let (None, Some(resource)) = (&place.entity, &place.resource) {
                text.push_str(std::mem::take(&mut head));
                line(&mut text, 1, &format!("{}:", scalar(resource.as_str())));
                level(&mut text, 2, Some(spec));
            }
        }
        self.entities_to_yaml(&mut text);
        text
    }

    fn entities_to_yaml(&self, text: &mut String) {
        let mut ids: Vec<_> = self.entities.keys().collect();
        ids.extend(self.levels.keys().filter_map(|place| place.entity.as_ref()));
        ids.sort();
        ids.dedup();
        if !ids.is_empty() {
            text.push_str("entities:\n");
        }
        for id in ids {
            line(text, 1, &format!("{}:", scalar(id.as_str())));
            if let Some(spec) = self.entities.get(id) {
                described(text, spec);
            }
            let mut head = Some("resources:");
            let from = Place::entity(id.clone(), None);
            let own =
                self.levels.range(from..).take_while(|(at, _)| at.entity.as_ref() == Some(id));
            for (place, spec) in own {
                if let Some(head) = head.take() {
                    line(text, 2, head);
                }
                line(text, 3, &format!("{}:", scalar(resource_word(place))));
                level(text, 4, Some(spec));
            }
        }
    }

    /// The manifest as JSON, which [`Manifest::read`] reads back as well.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut file = Map::new();
        file.insert("namespace".into(), json!(self.namespace.as_str()));
        let mut system = Map::new();
        system.extend(
            self.on_unavailable.map(|policy| ("on_unavailable".to_owned(), json!(policy.as_str()))),
        );
        let (mut resources, mut entities) = (Map::new(), Map::new());
        for (id, spec) in &self.entities {
            entities.insert(id.to_string(), described_json(spec));
        }
        for (place, spec) in &self.levels {
            let stored = level_json(spec);
            match (&place.entity, &place.resource) {
                (None, None) => system.extend(stored),
                (None, Some(resource)) => {
                    resources.insert(resource.to_string(), Value::Object(stored));
                }
                (Some(id), _) => {
                    let entity = entities.entry(id.to_string()).or_insert_with(|| json!({}));
                    let Value::Object(entity) = entity else { continue };
                    let own = entity.entry("resources").or_insert_with(|| json!({}));
                    if let Value::Object(own) = own {
                        own.insert(resource_word(place).to_owned(), Value::Object(stored));
                    }
                }
            }
        }
        for (key, part) in [("system", system), ("resources", resources), ("entities", entities)] {
            if !part.is_empty() {
                file.insert(key.into(), Value::Object(part));
            }
        }
        Value::Object(file)
    }
}

/// The resource of a level of an entity. All resources are called as the Python package calls
/// them, which reads no limits that stand in the entity itself.
fn resource_word(place: &Place) -> &str {
    place.resource.as_ref().map_or(ALL_RESOURCES, |resource| resource.as_str())
}

fn line(text: &mut String, depth: usize, words: &str) {
    // A text cannot fail to grow.
    let _ = writeln!(text, "{:1$}{words}", "", depth * 2);
}

fn level(text: &mut String, depth: usize, spec: Option<&LevelSpec>) {
    let Some(spec) = spec else { return };
    if let Some(flag) = spec.flag {
        line(text, depth, &format!("disabled: {}", flag.answer()));
    }
    if !spec.limits.is_empty() {
        line(text, depth, "limits:");
        for limit in sorted(&spec.limits) {
            let name = scalar(limit.name().as_str());
            let (capacity, refill) = (limit.capacity(), limit.refill_amount());
            let period = limit.refill_period_s();
            let parts =
                format!("capacity: {capacity}, refill_amount: {refill}, refill_period: {period}");
            line(text, depth + 1, &format!("{name}: {{{parts}}}"));
        }
    }
}

fn sorted(limits: &[Limit]) -> Vec<&Limit> {
    let mut limits: Vec<&Limit> = limits.iter().collect();
    limits.sort_by(|a, b| a.name().cmp(b.name()));
    limits
}

fn described(text: &mut String, spec: &EntitySpec) {
    // One key at least: it is what says that the entity is to exist.
    if let Some(name) = &spec.name {
        line(text, 2, &format!("name: {}", quoted(name)));
    }
    if let Some(parent) = &spec.parent {
        line(text, 2, &format!("parent: {}", scalar(parent.as_str())));
    }
    line(text, 2, &format!("cascade: {}", spec.cascade));
    if let Some(metadata) = &spec.metadata {
        if metadata.is_empty() {
            line(text, 2, "metadata: {}");
        } else {
            line(text, 2, "metadata:");
        }
        for (key, value) in metadata {
            line(text, 3, &format!("{}: {}", quoted(key), quoted(value)));
        }
    }
}

fn described_json(spec: &EntitySpec) -> Value {
    let mut entity = Map::new();
    entity.extend(spec.name.as_ref().map(|name| ("name".to_owned(), json!(name))));
    entity.extend(spec.parent.as_ref().map(|id| ("parent".to_owned(), json!(id.as_str()))));
    entity.insert("cascade".into(), json!(spec.cascade));
    entity.extend(spec.metadata.as_ref().map(|pairs| ("metadata".to_owned(), json!(pairs))));
    Value::Object(entity)
}

fn level_json(spec: &LevelSpec) -> Map<String, Value> {
    let mut stored = Map::new();
    stored.extend(spec.flag.map(|flag| ("disabled".to_owned(), json!(FlagForm(flag)))));
    if !spec.limits.is_empty() {
        let limit = |limit: &Limit| {
            let parts = json!({
                "capacity": limit.capacity(),
                "refill_amount": limit.refill_amount(),
                "refill_period": limit.refill_period_s(),
            });
            (limit.name().to_string(), parts)
        };
        let limits: Map<String, Value> = spec.limits.iter().map(limit).collect();
        stored.insert("limits".into(), Value::Object(limits));
    }
    stored
}

/// A name, in quotes where a reader of YAML could take it for something else.
fn scalar(name: &str) -> String {
    const WORDS: [&str; 9] = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    let is_plain = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-./".contains(&byte))
        && !WORDS.contains(&name.to_ascii_lowercase().as_str());
    if is_plain { name.to_owned() } else { quoted(name) }
}

/// Any text in double quotes: a text of JSON is one of YAML. What YAML does not allow as it is, and
/// what could move a cursor or reorder a line, is escaped too.
fn quoted(text: &str) -> String {
    let is_odd = |character: char| {
        character.is_control()
            || matches!(
                character,
                '\u{61c}'
                    | '\u{200e}'
                    | '\u{200f}'
                    | '\u{2028}'..='\u{202e}'
                    | '\u{2066}'..='\u{2069}'
                    | '\u{feff}'
                    | '\u{fffe}'
                    | '\u{ffff}'
            )
    };
    let shown = Value::String(text.to_owned()).to_string();
    let mut safe = String::with_capacity(shown.len());
    for character in shown.chars() {
        if is_odd(character) {
            // A text cannot fail to grow.
            let _ = write!(safe, "\\u{:04x}", u32::from(character));
        } else {
            safe.push(character);
        }
    }
    safe
}
