//! Names of things, one type per kind.
//!
//! A name is checked once, where it enters, and is then carried as its type: code that holds an
//! [`EntityId`] never has to ask whether it may be put into a key. The checks go byte by byte (no
//! regular expressions), so a trailing newline, a control character or a look-alike letter outside
//! ASCII is refused like any other stray byte.

use std::borrow::Borrow;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;
use std::sync::Arc;

mod grammar;
mod parse;

pub(crate) use grammar::shown;
use grammar::{AsciiSet, Grammar};
pub use grammar::{NameError, NameRule};

/// Anything that is, or parses to, a name of kind `N`: `&str`, `String`, or the parsed name itself.
pub trait IntoName<N> {
    /// The name, or what is wrong with the text.
    fn into_name(self) -> Result<N, NameError>;
}

impl<T, N> IntoName<N> for T
where
    T: TryInto<N>,
    NameError: From<T::Error>,
{
    fn into_name(self) -> Result<N, NameError> {
        Ok(self.try_into()?)
    }
}

/// The word that stands for "every resource of this entity" where limits are stored. No resource
/// can have this name.
pub const DEFAULT_RESOURCE: &str = "_default_";

/// Words that no limit and no resource may be called, because stored items name them by an
/// attribute of the same name: a limit called `PK` would overwrite the key of a usage snapshot.
/// They are refused on every backend, so that a move to another one never fails on a name.
const KEY_WORDS: &[&str] = &[
    "PK", "SK", "GSI1PK", "GSI1SK", "GSI2PK", "GSI2SK", "GSI3PK", "GSI3SK", "GSI4PK", "GSI4SK",
    "LSI1SK", "LSI2SK", "LSI3SK", "LSI4SK", "LSI5SK",
];

/// Words that no limit may be called either: the other attributes of a usage snapshot.
const USAGE_WORDS: &[&str] =
    &["ttl", "entity_id", "resource", "window", "window_start", "total_events"];

/// The word that expires an item. A resource of this name would put a date of expiry on the list of
/// resources.
const EXPIRY_WORDS: &[&str] = &["ttl"];

const IS_ATTRIBUTE: &str = "reserved: stored items have an attribute of this name";

/// Defines one kind of name: a checked text behind an [`Arc`], so that a clone costs no allocation.
macro_rules! name {
    ($(#[$doc:meta])* $name:ident = $grammar:expr) => {
        name! { $(#[$doc])* $name = $grammar, parsed by fresh }
    };
    ($(#[$doc:meta])* $name:ident = $grammar:expr, parsed by $parse:ident) => {
        $(#[$doc])*
        // `Hash`, `Eq` and `Ord` are those of `str`, as `Borrow<str>` demands.
        #[derive(Clone, Eq, PartialOrd, Ord)]
        pub struct $name(Arc<str>);

        impl PartialEq for $name {
            #[inline]
            fn eq(&self, other: &Self) -> bool {
                // Most names that are compared are clones of one.
                Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
            }
        }

        impl Hash for $name {
            fn hash<H: Hasher>(&self, state: &mut H) {
                self.0.hash(state);
            }
        }

        impl $name {
            const GRAMMAR: Grammar = $grammar;

            /// The name as text.
            #[must_use]
            #[inline]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = NameError;

            fn from_str(text: &str) -> Result<Self, NameError> {
                parse::$parse(text, || {
                    Self::GRAMMAR.check(text)?;
                    Ok(Self(Arc::from(text)))
                })
            }
        }

        impl TryFrom<&str> for $name {
            type Error = NameError;

            fn try_from(text: &str) -> Result<Self, NameError> {
                text.parse()
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameError;

            fn try_from(text: String) -> Result<Self, NameError> {
                text.parse()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(self.as_str(), f)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                self.as_str()
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                self.as_str()
            }
        }

        impl PartialEq<str> for $name {
            fn eq(&self, other: &str) -> bool {
                self.as_str() == other
            }
        }

        impl PartialEq<&str> for $name {
            fn eq(&self, other: &&str) -> bool {
                self.as_str() == *other
            }
        }
    };
}

name! {
    /// The id of an entity: a user, an API key, a project. Up to 256 bytes of
    /// `[a-zA-Z0-9][a-zA-Z0-9_.\-:@]*`.
    EntityId = Grammar {
        field: "entity id",
        bytes_max: 256,
        first: AsciiSet::LETTERS_DIGITS,
        first_words: "a letter or a digit",
        rest: AsciiSet::LETTERS_DIGITS.and(b"_.-:@"),
        rest_words: "letters, digits and _ . - : @",
        reserved: &[],
    }
}

name! {
    /// The name of a limit: `rpm`, `tpm`. Up to 64 bytes of `[a-zA-Z][a-zA-Z0-9_.\-]*`. Some words
    /// are reserved, compared exactly in upper and lower case: `wcu`, `PK`, `ttl` and other names
    /// of stored attributes.
    LimitName = Grammar {
        field: "limit name",
        bytes_max: 64,
        first: AsciiSet::LETTERS,
        first_words: "a letter",
        rest: AsciiSet::LETTERS_DIGITS.and(b"_.-"),
        rest_words: "letters, digits and _ . -",
        reserved: &[
            (&["wcu"], "reserved for the hidden limit that measures write pressure"),
            (KEY_WORDS, IS_ATTRIBUTE),
            (USAGE_WORDS, IS_ATTRIBUTE),
        ],
    }, parsed by recent_limits
}

name! {
    /// The name of a resource: `gpt-4`, `api/v1`. Up to 64 bytes of `[a-zA-Z][a-zA-Z0-9_.\-/:]*`.
    /// Some words are reserved: [`DEFAULT_RESOURCE`], `PK`, `ttl` and other names of stored
    /// attributes.
    ResourceName = Grammar {
        field: "resource",
        bytes_max: 64,
        first: AsciiSet::LETTERS,
        first_words: "a letter",
        rest: AsciiSet::LETTERS_DIGITS.and(b"_.-/:"),
        rest_words: "letters, digits and _ . - / :",
        reserved: &[
            (&[DEFAULT_RESOURCE], "reserved for limits on every resource of an entity"),
            (KEY_WORDS, IS_ATTRIBUTE),
            (EXPIRY_WORDS, IS_ATTRIBUTE),
        ],
    }, parsed by recent_resources
}

name! {
    /// The name of a namespace, for people. Up to 64 bytes of `[a-zA-Z0-9][a-zA-Z0-9_.\-]*`; `_` is
    /// kept for the system itself.
    NamespaceName = Grammar {
        field: "namespace",
        bytes_max: 64,
        first: AsciiSet::LETTERS_DIGITS,
        first_words: "a letter or a digit",
        rest: AsciiSet::LETTERS_DIGITS.and(b"_.-"),
        rest_words: "letters, digits and _ . -",
        reserved: &[(&["_"], "reserved for the system itself")],
    }
}

name! {
    /// The id of a namespace, for keys: opaque and never reused. Up to 64 bytes of
    /// `[A-Za-z0-9_][A-Za-z0-9_-]*`, not `_`.
    NamespaceId = Grammar {
        field: "namespace id",
        bytes_max: 64,
        first: AsciiSet::LETTERS_DIGITS.and(b"_"),
        first_words: "a letter, a digit or _",
        rest: AsciiSet::LETTERS_DIGITS.and(b"_-"),
        rest_words: "letters, digits and _ -",
        reserved: &[(&["_"], "reserved for the system itself")],
    }
}

impl NamespaceId {
    /// A new id from 64 random bits: 11 characters of base64url.
    ///
    /// A leading `-` becomes `A`, because command lines would take the id for an option.
    #[must_use]
    pub fn from_entropy(entropy: u64) -> Self {
        const ALPHABET: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        // Eleven digits of six bits hold 66: base64 pads 64 bits with two zeroes at the end.
        let padded = u128::from(entropy) << 2;
        let mut id = String::with_capacity(11);
        for digit in (0..11).rev() {
            let symbol = char::from(ALPHABET[((padded >> (6 * digit)) & 63) as usize]);
            id.push(if id.is_empty() && symbol == '-' { 'A' } else { symbol });
        }
        Self(Arc::from(id))
    }
}

name! {
    /// The author of a change in the audit log: a user, a service, an ARN.
    /// Up to 256 bytes of `[a-zA-Z0-9][a-zA-Z0-9_.\-:@/+=,]*`.
    Principal = Grammar {
        field: "principal",
        bytes_max: 256,
        first: AsciiSet::LETTERS_DIGITS,
        first_words: "a letter or a digit",
        rest: AsciiSet::LETTERS_DIGITS.and(b"_.-:@/+=,"),
        rest_words: "letters, digits and _ . - : @ / + = ,",
        reserved: &[],
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};

    use proptest::prelude::*;

    use super::*;

    /// Parses as one kind of name; the text of the result, or of the error.
    type Parse = fn(&str) -> Result<String, NameError>;

    fn parse<N: FromStr<Err = NameError> + fmt::Display>(text: &str) -> Result<String, NameError> {
        text.parse::<N>().map(|name| name.to_string())
    }

    /// Every kind with what its documentation promises: first characters and later ones beside
    /// letters, length.
    const KINDS: [(Parse, &str, &str, usize); 6] = [
        (parse::<EntityId>, "0123456789", "0123456789_.-:@", 256),
        (parse::<LimitName>, "", "0123456789_.-", 64),
        (parse::<ResourceName>, "", "0123456789_.-/:", 64),
        (parse::<NamespaceName>, "0123456789", "0123456789_.-", 64),
        (parse::<NamespaceId>, "0123456789_", "0123456789_-", 64),
        (parse::<Principal>, "0123456789", "0123456789_.-:@/+=,", 256),
    ];

    fn check<N: FromStr<Err = NameError> + fmt::Display>(text: &str, expected: Result<(), &str>) {
        let found = parse::<N>(text).map_err(|error| error.to_string());
        assert_eq!(found, expected.map(|()| text.to_owned()).map_err(str::to_owned), "{text:?}");
    }

    #[test]
    fn every_character_in_every_position() {
        for (parse, first, rest, _) in KINDS {
            for byte in 0..=u8::MAX {
                // Bytes from 128 on become characters of two bytes each, all of them outside ASCII.
                let c = char::from(byte);
                let letter = c.is_ascii_alphabetic();
                assert_eq!(
                    parse(&format!("{c}bc")).is_ok(),
                    letter || first.contains(c),
                    "{c:?} first"
                );
                for text in [format!("a{c}c"), format!("ab{c}")] {
                    assert_eq!(parse(&text).is_ok(), letter || rest.contains(c), "{text:?}");
                }
            }
        }
    }

    #[test]
    fn lengths_are_bounded_in_bytes() {
        for (parse, .., bytes_max) in KINDS {
            assert!(matches!(parse(""), Err(NameError { rule: NameRule::Empty { .. }, .. })));
            for length in [1, bytes_max - 1, bytes_max] {
                assert!(parse(&"a".repeat(length)).is_ok(), "{length}");
            }
            let rule = NameRule::TooLong { bytes: bytes_max + 1, bytes_max };
            assert_eq!(parse(&"a".repeat(bytes_max + 1)).map_err(|error| error.rule), Err(rule));
        }
    }

    /// The Python package lets one through.
    #[test]
    fn a_trailing_newline_is_refused() {
        for (parse, ..) in KINDS {
            let refused = parse("a\n").map_err(|error| (error.value, error.rule));
            assert!(
                matches!(refused, Err((value, NameRule::Character { found: '\n', .. })) if value == "a\\n")
            );
        }
    }

    #[test]
    fn messages_name_the_field_the_value_and_the_fix() {
        let long = "x".repeat(300);
        let cut = "x".repeat(50);
        let too_long = format!("entity id \"{cut}...\" is 300 bytes long; use at most 256");
        check::<EntityId>(
            "a#b",
            Err(
                "entity id \"a#b\" contains '#', which separates key parts; use letters, digits and _ . - : @",
            ),
        );
        check::<EntityId>("", Err("entity id \"\" is empty; use letters, digits and _ . - : @"));
        check::<EntityId>(&long, Err(&too_long));
        check::<EntityId>(
            "-a",
            Err("entity id \"-a\" starts with '-'; start with a letter or a digit"),
        );
        check::<EntityId>(
            "ä",
            Err("entity id \"ä\" starts with 'ä'; start with a letter or a digit"),
        );
        check::<EntityId>(
            "a\tb",
            Err("entity id \"a\\tb\" contains '\\t'; use letters, digits and _ . - : @"),
        );
        check::<LimitName>(
            "wcu",
            Err(
                "limit name \"wcu\" is reserved for the hidden limit that measures write pressure; choose another name",
            ),
        );
        check::<ResourceName>(
            "_default_",
            Err(
                "resource \"_default_\" is reserved for limits on every resource of an entity; choose another name",
            ),
        );
        check::<NamespaceName>(
            "_",
            Err("namespace \"_\" is reserved for the system itself; choose another name"),
        );
        check::<NamespaceId>(
            "_",
            Err("namespace id \"_\" is reserved for the system itself; choose another name"),
        );
        check::<NamespaceId>("_-", Ok(()));
        check::<Principal>(
            "arn:aws:sts::123456789012:assumed-role/ops/a+b=c,d@example.com",
            Ok(()),
        );
    }

    #[test]
    fn attribute_names_are_reserved_exactly() {
        let reserved = |parse: Parse, name: &str| {
            matches!(parse(name), Err(NameError { rule: NameRule::Reserved { .. }, .. }))
        };
        for name in KEY_WORDS {
            assert!(
                reserved(parse::<LimitName>, name) && reserved(parse::<ResourceName>, name),
                "{name}"
            );
            assert!(
                parse::<LimitName>(&name.to_lowercase()).is_ok() && parse::<EntityId>(name).is_ok(),
                "{name}"
            );
        }
        for name in USAGE_WORDS {
            assert!(reserved(parse::<LimitName>, name), "{name}");
            assert_eq!(reserved(parse::<ResourceName>, name), *name == "ttl", "{name}");
        }
    }

    #[test]
    fn ids_from_entropy_are_base64url() {
        for (entropy, expected) in [
            (0, "AAAAAAAAAAA"),
            (u64::MAX, "__________8"),
            (0x0123_4567_89ab_cdef, "ASNFZ4mrze8"),
            (0xf800_0000_0000_0000, "AAAAAAAAAAA"), // would begin with '-'
            (0x0fb0_0000_0000_0000, "D7AAAAAAAAA"),
        ] {
            assert_eq!(NamespaceId::from_entropy(entropy), expected);
        }
    }

    #[test]
    fn names_are_found_in_maps_by_their_text() {
        let id: EntityId = "key-1".parse().expect("a valid id");
        assert_eq!(HashMap::from([(id.clone(), 1)]).get("key-1"), Some(&1));
        assert_eq!(BTreeMap::from([(id.clone(), 1)]).get("key-1"), Some(&1));
        assert_eq!((id.as_ref(), &*format!("{id:?} {id:>6}")), ("key-1", "\"key-1\"  key-1"));
        assert!(
            id == "key-1" && id == *"key-1" && EntityId::try_from(String::from("key-1")) == Ok(id)
        );
    }

    proptest! {
        #[test]
        fn any_text_is_kept_as_it_is_or_refused_on_one_short_line(text in any::<String>()) {
            for (parse, ..) in KINDS {
                match parse(&text) {
                    Ok(name) => prop_assert_eq!(&name, &text),
                    Err(error) => {
                        prop_assert!(error.value.chars().count() <= 53);
                        prop_assert!(!error.to_string().contains(char::is_control));
                    }
                }
            }
        }

        #[test]
        fn ids_from_entropy_are_valid_ids(entropy in any::<u64>()) {
            let id = NamespaceId::from_entropy(entropy);
            prop_assert_eq!(NamespaceId::try_from(id.as_str()), Ok(id.clone()));
            prop_assert_eq!(id.as_str().len(), 11);
        }
    }
}
