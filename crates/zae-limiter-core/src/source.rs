//! Where the limits of a bucket came from, and how fresh that knowledge is.

use std::fmt;

/// The level that supplied a set of limits. The first level that has limits supplies all of them,
/// in the order of [`LimitSource::ORDER`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LimitSource {
    /// Given with the call by `.limits(..)`; overrides the stored limits.
    Call,
    /// Stored for this entity and this resource.
    EntityResource,
    /// Stored for this entity, all resources (`_default_`).
    Entity,
    /// Stored for the resource.
    Resource,
    /// Stored for the whole namespace.
    System,
    /// The limiter's own `default_limits`, not stored.
    Builder,
    /// Given with the call by `.fallback_limits(..)`; used when no other source has limits.
    Fallback,
}

impl LimitSource {
    /// All sources, strongest first.
    pub const ORDER: [LimitSource; 7] = [
        LimitSource::Call,
        LimitSource::EntityResource,
        LimitSource::Entity,
        LimitSource::Resource,
        LimitSource::System,
        LimitSource::Builder,
        LimitSource::Fallback,
    ];

    /// True when a bucket with limits from here may be forgotten once it is full and idle. Entities
    /// with limits of their own keep their buckets: an operator has configured them, and looks at
    /// them.
    #[must_use]
    pub fn expires(self) -> bool {
        !matches!(self, LimitSource::EntityResource | LimitSource::Entity)
    }

    /// The word used in output and on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            LimitSource::Call => "call",
            LimitSource::EntityResource => "entity",
            LimitSource::Entity => "entity_default",
            LimitSource::Resource => "resource",
            LimitSource::System => "system",
            LimitSource::Builder => "builder",
            LimitSource::Fallback => "fallback",
        }
    }
}

impl fmt::Display for LimitSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How fresh a read of the stored configuration is. Backends hand out a stamp with every read and
/// compare stamps, so that a process with an old read cannot push old limits back onto a bucket.
/// Only the order of stamps means anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConfigStamp(pub u64);

#[cfg(test)]
mod tests {
    use super::LimitSource::{Builder, Call, Entity, EntityResource, Fallback, Resource, System};
    use super::*;

    #[test]
    fn only_buckets_of_entities_with_own_limits_stay() {
        let kept: Vec<_> = LimitSource::ORDER.into_iter().filter(|from| !from.expires()).collect();
        assert_eq!(kept, [EntityResource, Entity]);
    }

    #[test]
    fn every_source_has_its_word() {
        let words = [
            (Call, "call"),
            (EntityResource, "entity"),
            (Entity, "entity_default"),
            (Resource, "resource"),
            (System, "system"),
            (Builder, "builder"),
            (Fallback, "fallback"),
        ];
        assert_eq!(words.map(|(source, _)| source), LimitSource::ORDER);
        for (source, word) in words {
            assert_eq!((source.as_str(), source.to_string().as_str()), (word, word));
        }
    }
}
