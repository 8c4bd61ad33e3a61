//! Entities: users, keys, projects that are limited, and their parents.

use std::collections::BTreeMap;

use crate::name::{EntityId, shown};
use crate::units::TimeMs;

/// The most members of a chain: an entity and its ancestors.
pub const CHAIN_MAX: usize = 8;

/// The longest display name of an entity, in bytes.
pub const ENTITY_NAME_BYTES_MAX: usize = 256;

/// The most metadata pairs of an entity.
pub const METADATA_PAIRS_MAX: usize = 64;

/// The longest metadata key, in bytes.
pub const METADATA_KEY_BYTES_MAX: usize = 64;

/// The longest metadata value, in bytes.
pub const METADATA_VALUE_BYTES_MAX: usize = 1_024;

/// A user, a key or a project that is limited, as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entity {
    /// The id that requests use.
    pub id: EntityId,
    /// The name for people.
    pub name: String,
    /// The entity it belongs to. Set at creation.
    pub parent: Option<EntityId>,
    /// True when its takes go on to the parent. Set at creation.
    pub cascade: bool,
    /// Notes of its owner. The limiter never reads them.
    pub metadata: BTreeMap<String, String>,
    /// When it was created.
    pub created_at: TimeMs,
    /// Grows with every update. An update names the version it was made from, so that no other
    /// update is lost.
    pub version: u64,
}

impl Entity {
    /// True when the entity belongs to another one.
    #[must_use]
    pub fn is_child(&self) -> bool {
        self.parent.is_some()
    }

    /// The parent its takes go on to.
    #[must_use]
    pub fn cascades_to(&self) -> Option<&EntityId> {
        self.parent.as_ref().filter(|_| self.cascade)
    }

    /// Checks the free texts of an entity, so that every backend can store them and every terminal
    /// show them.
    pub fn check_text(
        name: &str,
        metadata: &BTreeMap<String, String>,
    ) -> Result<(), EntityTextError> {
        check_line("entity name", name, ENTITY_NAME_BYTES_MAX)?;
        if metadata.len() > METADATA_PAIRS_MAX {
            return Err(EntityTextError::TooManyPairs { count: metadata.len() });
        }
        for (key, value) in metadata {
            check_line("metadata key", key, METADATA_KEY_BYTES_MAX)?;
            if value.len() > METADATA_VALUE_BYTES_MAX {
                return Err(EntityTextError::ValueTooLong { key: key.clone(), bytes: value.len() });
            }
        }
        Ok(())
    }
}

fn check_line(field: &'static str, text: &str, bytes_max: usize) -> Result<(), EntityTextError> {
    if text.is_empty() {
        Err(EntityTextError::Empty { field })
    } else if text.len() > bytes_max {
        Err(EntityTextError::TooLong { field, text: shown(text), bytes: text.len(), bytes_max })
    } else if text.contains(char::is_control) {
        Err(EntityTextError::ControlCharacter { field, text: shown(text) })
    } else {
        Ok(())
    }
}

/// Why a display name or metadata was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EntityTextError {
    /// A name or a key is empty.
    #[error("{field} is empty; use at least one character")]
    Empty {
        /// Which text, in words.
        field: &'static str,
    },
    /// A name or a key is too long.
    #[error("{field} \"{text}\" is {bytes} bytes long; use at most {bytes_max}")]
    TooLong {
        /// Which text, in words.
        field: &'static str,
        /// The refused text, escaped and cut to 50 characters.
        text: String,
        /// The length found.
        bytes: usize,
        /// The length allowed.
        bytes_max: usize,
    },
    /// A name or a key has a control character, such as a newline.
    #[error("{field} \"{text}\" contains a control character; use printable characters only")]
    ControlCharacter {
        /// Which text, in words.
        field: &'static str,
        /// The refused text, escaped and cut to 50 characters.
        text: String,
    },
    /// There are more metadata pairs than allowed.
    #[error("metadata has {count} pairs; use at most {METADATA_PAIRS_MAX}")]
    TooManyPairs {
        /// How many there are.
        count: usize,
    },
    /// A metadata value is too long.
    #[error(
        "metadata value of \"{key}\" is {bytes} bytes long; use at most {METADATA_VALUE_BYTES_MAX}"
    )]
    ValueTooLong {
        /// The key of the value.
        key: String,
        /// The length found.
        bytes: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, pairs: &[(&str, &str)], expected: Result<(), &str>) {
        let metadata =
            pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        let found = Entity::check_text(name, &metadata).map_err(|error| error.to_string());
        assert_eq!(found, expected.map_err(str::to_owned), "{name:?} {pairs:?}");
    }

    #[test]
    fn takes_go_on_to_the_parent_of_an_entity_that_cascades() {
        let mut entity = Entity {
            id: "key".parse().expect("an id"),
            name: "key".to_owned(),
            parent: Some("org".parse().expect("an id")),
            cascade: true,
            metadata: BTreeMap::new(),
            created_at: crate::TimeMs(0),
            version: 1,
        };
        assert_eq!(entity.cascades_to().map(EntityId::as_str), Some("org"));
        entity.cascade = false;
        assert_eq!(entity.cascades_to(), None);
        assert!(entity.is_child());
    }

    #[test]
    fn names_are_one_printable_line() {
        let xs = |count: usize| "x".repeat(count);
        let shown = xs(50);
        check("Ünïcode ist gut", &[], Ok(()));
        check("x", &[], Ok(()));
        check(&xs(255), &[], Ok(()));
        check(&xs(256), &[], Ok(()));
        check(
            &xs(257),
            &[],
            Err(&format!("entity name \"{shown}...\" is 257 bytes long; use at most 256")),
        );
        check(&"é".repeat(128), &[], Ok(()));
        check("", &[], Err("entity name is empty; use at least one character"));
        for (text, escaped) in
            [("a\n", "a\\n"), ("\0", "\\0"), ("a\u{7f}", "a\\u{7f}"), ("\u{85}", "\\u{85}")]
        {
            let message = format!(
                "entity name \"{escaped}\" contains a control character; use printable characters only"
            );
            check(text, &[], Err(&message));
        }
    }

    #[test]
    fn metadata_is_bounded() {
        let xs = |count: usize| "x".repeat(count);
        check("x", &[("tier", "gold"), ("empty", ""), ("lines", "a\nb")], Ok(()));
        check("x", &[(&xs(63), &xs(1_023)), (&xs(64), &xs(1_024))], Ok(()));
        check(
            "x",
            &[("k", &xs(1_025))],
            Err("metadata value of \"k\" is 1025 bytes long; use at most 1024"),
        );
        let message = format!("metadata key \"{}...\" is 65 bytes long; use at most 64", xs(50));
        check("x", &[(&xs(65), "v")], Err(&message));
        check("x", &[("", "v")], Err("metadata key is empty; use at least one character"));
        check(
            "x",
            &[("a\tb", "v")],
            Err(
                "metadata key \"a\\tb\" contains a control character; use printable characters only",
            ),
        );

        let keys: Vec<String> = (0..65).map(|i| format!("k{i}")).collect();
        let pairs: Vec<(&str, &str)> = keys.iter().map(|key| (key.as_str(), "v")).collect();
        check("x", &pairs[..63], Ok(()));
        check("x", &pairs[..64], Ok(()));
        check("x", &pairs, Err("metadata has 65 pairs; use at most 64"));
    }

    #[test]
    fn a_child_has_a_parent() {
        let id: EntityId = "org".parse().expect("a valid id");
        let root = Entity {
            id: id.clone(),
            name: "Org".into(),
            parent: None,
            cascade: false,
            metadata: BTreeMap::new(),
            created_at: TimeMs(0),
            version: 1,
        };
        assert!(!root.is_child());
        assert!(Entity { parent: Some(id), ..root }.is_child());
    }
}
