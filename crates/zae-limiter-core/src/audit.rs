//! The audit log: who changed what, and when.

use std::fmt;
use std::str::FromStr;

use crate::name::{EntityId, NameError, Principal, ResourceName, shown};
use crate::units::TimeMs;

/// The action of an administrator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum AuditAction {
    /// An entity was created.
    EntityCreated,
    /// The name or the metadata of an entity changed.
    EntityUpdated,
    /// An entity was deleted, with its buckets and limits.
    EntityDeleted,
    /// Limits were stored at some level.
    LimitsSet,
    /// Stored limits were deleted.
    LimitsDeleted,
    /// A file of limits is about to be applied, or was.
    LimitsApplied,
    /// An entity or a resource was disabled or enabled.
    FlagsSet,
    /// A bucket was filled up by hand.
    BucketReset,
    /// Buckets and usage were taken over from another store.
    Adopted,
    /// A namespace was registered.
    NamespaceRegistered,
    /// A namespace was deleted; it can be recovered until it is purged.
    NamespaceDeleted,
    /// A deleted namespace was recovered.
    NamespaceRecovered,
    /// The data of a deleted namespace was erased.
    NamespacePurged,
    /// An entity was moved to another parent, by the Python package.
    EntityParentChanged,
    /// A bucket was given more than it holds, by the Python package.
    BucketToppedUp,
    /// An action that this version has no word for; the details name it.
    Other,
}

impl AuditAction {
    /// Every action.
    pub const ALL: [AuditAction; 16] = [
        AuditAction::EntityCreated,
        AuditAction::EntityUpdated,
        AuditAction::EntityDeleted,
        AuditAction::LimitsSet,
        AuditAction::LimitsDeleted,
        AuditAction::LimitsApplied,
        AuditAction::FlagsSet,
        AuditAction::BucketReset,
        AuditAction::Adopted,
        AuditAction::NamespaceRegistered,
        AuditAction::NamespaceDeleted,
        AuditAction::NamespaceRecovered,
        AuditAction::NamespacePurged,
        AuditAction::EntityParentChanged,
        AuditAction::BucketToppedUp,
        AuditAction::Other,
    ];

    /// The word used in output and on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            AuditAction::EntityCreated => "entity_created",
            AuditAction::EntityUpdated => "entity_updated",
            AuditAction::EntityDeleted => "entity_deleted",
            AuditAction::LimitsSet => "limits_set",
            AuditAction::LimitsDeleted => "limits_deleted",
            AuditAction::LimitsApplied => "limits_applied",
            AuditAction::FlagsSet => "flags_set",
            AuditAction::BucketReset => "bucket_reset",
            AuditAction::Adopted => "adopted",
            AuditAction::NamespaceRegistered => "namespace_registered",
            AuditAction::NamespaceDeleted => "namespace_deleted",
            AuditAction::NamespaceRecovered => "namespace_recovered",
            AuditAction::NamespacePurged => "namespace_purged",
            AuditAction::EntityParentChanged => "entity_parent_changed",
            AuditAction::BucketToppedUp => "bucket_topped_up",
            AuditAction::Other => "other",
        }
    }
}

impl fmt::Display for AuditAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for AuditAction {
    type Err = AuditTextError;

    fn from_str(text: &str) -> Result<Self, AuditTextError> {
        let action = Self::ALL.into_iter().find(|action| action.as_str() == text);
        action.ok_or_else(|| AuditTextError::Action { text: shown(text) })
    }
}

/// The subject of a change. Events are kept and queried per subject.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AuditSubject {
    /// The namespace as a whole: `$SYSTEM`.
    System,
    /// A resource: `$RESOURCE:` and its name.
    Resource(ResourceName),
    /// An entity: its id, which cannot begin with `$`.
    Entity(EntityId),
}

const SYSTEM_SUBJECT: &str = "$SYSTEM";
const RESOURCE_SUBJECT: &str = "$RESOURCE:";

impl fmt::Display for AuditSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AuditSubject::System => f.write_str(SYSTEM_SUBJECT),
            AuditSubject::Resource(name) => write!(f, "{RESOURCE_SUBJECT}{name}"),
            AuditSubject::Entity(id) => f.write_str(id.as_str()),
        }
    }
}

impl FromStr for AuditSubject {
    type Err = AuditTextError;

    fn from_str(text: &str) -> Result<Self, AuditTextError> {
        if text == SYSTEM_SUBJECT {
            return Ok(AuditSubject::System);
        }
        if let Some(name) = text.strip_prefix(RESOURCE_SUBJECT) {
            return Ok(AuditSubject::Resource(name.parse()?));
        }
        if text.starts_with('$') {
            return Err(AuditTextError::Subject { text: shown(text) });
        }
        Ok(AuditSubject::Entity(text.parse()?))
    }
}

/// The id of an audit event: a [ULID](https://github.com/ulid/spec), so that ids sort like the
/// times they were made at, both as values and as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId(u128);

/// Crockford's base 32: no I, L, O and U, and in the order of ASCII.
const BASE32: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
const ID_CHARS: usize = 26;
const ENTROPY_BITS: u32 = 80;
/// The last time an id can hold, in the year 10889.
const ID_TIME_MAX: i64 = (1 << 48) - 1;

impl EventId {
    /// The id for an event at a time, made unique by the low 80 bits of `entropy`. A time before
    /// 1970 counts as 1970 and one after the year 10889 as the last one an id can hold.
    #[must_use]
    pub fn new(at: TimeMs, entropy: u128) -> EventId {
        let time = u128::from(at.0.clamp(0, ID_TIME_MAX).cast_unsigned());
        EventId(time << ENTROPY_BITS | entropy & ((1 << ENTROPY_BITS) - 1))
    }

    /// When the id was made, to the millisecond.
    #[must_use]
    pub fn time(self) -> TimeMs {
        TimeMs(i64::try_from(self.0 >> ENTROPY_BITS).expect("48 bits fit an i64"))
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::with_capacity(ID_CHARS);
        for digit in (0..ID_CHARS).rev() {
            text.push(char::from(BASE32[((self.0 >> (5 * digit)) & 31) as usize]));
        }
        f.pad(&text)
    }
}

impl FromStr for EventId {
    type Err = AuditTextError;

    /// Reads the 26 characters in upper or lower case.
    fn from_str(text: &str) -> Result<Self, AuditTextError> {
        let fail = || AuditTextError::EventId { text: shown(text) };
        // 26 digits hold 130 bits: the first may only use three of its five.
        if text.len() != ID_CHARS || !matches!(text.as_bytes(), [b'0'..=b'7', ..]) {
            return Err(fail());
        }
        let value = text.bytes().try_fold(0_u128, |value, byte| {
            let digit = BASE32.iter().position(|&symbol| symbol == byte.to_ascii_uppercase())?;
            Some(value << 5 | digit as u128)
        });
        value.map(EventId).ok_or_else(fail)
    }
}

/// One entry of the audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEvent {
    /// Its id; events of one subject are listed in the order of their ids.
    pub id: EventId,
    /// When it happened.
    pub at: TimeMs,
    /// The subject of the change.
    pub subject: AuditSubject,
    /// The action.
    pub action: AuditAction,
    /// The author, if known.
    pub principal: Option<Principal>,
    /// The resource concerned, if any.
    pub resource: Option<ResourceName>,
    /// Details such as the new limits; the keys depend on the action.
    pub details: Vec<(String, String)>,
}

/// Why a text is not part of an audit event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AuditTextError {
    /// The text names no action.
    #[error("audit action \"{text}\" is unknown; use one such as entity_created or limits_set")]
    Action {
        /// The refused text, escaped and cut to 50 characters.
        text: String,
    },
    /// The text begins like a special subject and is none.
    #[error("audit subject \"{text}\" is unknown; use $SYSTEM, $RESOURCE:name or an entity id")]
    Subject {
        /// The refused text, escaped and cut to 50 characters.
        text: String,
    },
    /// The name in a subject is not valid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The text is not an event id.
    #[error(
        "event id \"{text}\" is not a ULID; use 26 digits and letters without I, L, O and U, the first from 0 to 7"
    )]
    EventId {
        /// The refused text, escaped and cut to 50 characters.
        text: String,
    },
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn actions_have_words() {
        for (i, action) in AuditAction::ALL.into_iter().enumerate() {
            assert_eq!(action.to_string().parse(), Ok(action));
            assert_eq!(
                AuditAction::ALL.iter().position(|other| other.as_str() == action.as_str()),
                Some(i)
            );
        }
        for text in ["", "LimitsSet", "limits_set\n"] {
            assert_eq!(
                text.parse::<AuditAction>(),
                Err(AuditTextError::Action { text: shown(text) })
            );
        }
    }

    fn check_subject(text: &str, expected: Result<AuditSubject, &str>) {
        let found = text.parse::<AuditSubject>();
        if let Ok(subject) = &found {
            assert_eq!(subject.to_string(), text);
        }
        assert_eq!(
            found.map_err(|error| error.to_string()),
            expected.map_err(str::to_owned),
            "{text:?}"
        );
    }

    #[test]
    fn subjects_have_texts_of_their_own() {
        let resource = "api/v1:x".parse().expect("a valid resource");
        let entity = "RESOURCE:x".parse().expect("a valid id");
        check_subject("$SYSTEM", Ok(AuditSubject::System));
        check_subject("$RESOURCE:api/v1:x", Ok(AuditSubject::Resource(resource)));
        check_subject("RESOURCE:x", Ok(AuditSubject::Entity(entity)));
        check_subject(
            "$RESOURCE:",
            Err("resource \"\" is empty; use letters, digits and _ . - / :"),
        );
        check_subject(
            "$system",
            Err(
                "audit subject \"$system\" is unknown; use $SYSTEM, $RESOURCE:name or an entity id",
            ),
        );
        check_subject(
            "$SYSTEM\n",
            Err(
                "audit subject \"$SYSTEM\\n\" is unknown; use $SYSTEM, $RESOURCE:name or an entity id",
            ),
        );
        check_subject(
            "a b",
            Err("entity id \"a b\" contains ' '; use letters, digits and _ . - : @"),
        );
    }

    #[test]
    fn ids_are_ulids() {
        const ENTROPY_MAX: u128 = (1 << 80) - 1;
        for (ms, entropy, text) in [
            (0, 0, "00000000000000000000000000"),
            (0, 31, "0000000000000000000000000Z"),
            (0, ENTROPY_MAX, "0000000000ZZZZZZZZZZZZZZZZ"),
            (1, 0, "00000000010000000000000000"),
            (1_469_918_176_385, 0, "01ARYZ6S410000000000000000"), // the time of the specification's example
            (ID_TIME_MAX, ENTROPY_MAX, "7ZZZZZZZZZZZZZZZZZZZZZZZZZ"),
        ] {
            let id = EventId::new(TimeMs(ms), entropy);
            assert_eq!(id.to_string(), text);
            assert_eq!(text.parse(), Ok(id));
            assert_eq!(text.to_lowercase().parse(), Ok(id));
            assert_eq!(id.time(), TimeMs(ms));
        }
    }

    #[test]
    fn ids_hold_the_nearest_time_they_can() {
        for (ms, held) in [
            (i64::MIN, 0),
            (-1, 0),
            (ID_TIME_MAX - 1, ID_TIME_MAX - 1),
            (ID_TIME_MAX + 1, ID_TIME_MAX),
            (i64::MAX, ID_TIME_MAX),
        ] {
            assert_eq!(EventId::new(TimeMs(ms), u128::MAX).time(), TimeMs(held));
        }
    }

    #[test]
    fn other_texts_are_not_ids() {
        for text in [
            "",
            "0000000000000000000000000",
            "000000000000000000000000000",
            "80000000000000000000000000",
            "Z0000000000000000000000000",
            "0000000000000000000000000I",
            "0000000000000000000000000L",
            "0000000000000000000000000O",
            "0000000000000000000000000U",
            "0000000000000000000000000\n",
            "+0000000000000000000000000",
            "000000000000000000000000é",
        ] {
            assert_eq!(
                text.parse::<EventId>(),
                Err(AuditTextError::EventId { text: shown(text) }),
                "{text:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn ids_sort_like_their_times(a in 0..=ID_TIME_MAX, step in 1..1_000_000_i64, x in any::<u128>(), y in any::<u128>()) {
            let b = (a + step).min(ID_TIME_MAX);
            prop_assume!(a < b);
            let (earlier, later) = (EventId::new(TimeMs(a), x), EventId::new(TimeMs(b), y));
            prop_assert!(earlier < later);
            prop_assert!(earlier.to_string() < later.to_string());
        }

        #[test]
        fn what_is_displayed_parses_back(value in any::<u128>()) {
            let id = EventId(value);
            prop_assert_eq!(id.to_string().parse(), Ok(id));
            prop_assert_eq!(EventId::new(id.time(), value), id);
        }

        #[test]
        fn subjects_parse_back(text in "(\\$SYSTEM|\\$RESOURCE:)?[a-zA-Z$][a-zA-Z0-9:/.]{0,12}") {
            if let Ok(subject) = text.parse::<AuditSubject>() {
                prop_assert_eq!(subject.to_string(), text);
            }
        }
    }
}
