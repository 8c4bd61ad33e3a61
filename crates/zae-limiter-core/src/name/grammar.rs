//! The grammar of names, and the errors of texts that break it.

/// Why a text is not a name of the wanted kind, and how to mend it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} \"{value}\" {rule}")]
#[non_exhaustive]
pub struct NameError {
    /// The kind of name that was expected, in words.
    pub field: &'static str,
    /// The refused text, escaped and cut to 50 characters: fit for a log line.
    pub value: String,
    /// The rule it breaks.
    pub rule: NameRule,
}

/// The rule a refused name breaks. The rules are checked in the order of the variants.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameRule {
    /// The text is empty.
    #[error("is empty; use {allowed}")]
    Empty {
        /// The characters this kind of name is made of.
        allowed: &'static str,
    },
    /// The text is longer than this kind of name may be.
    #[error("is {bytes} bytes long; use at most {bytes_max}")]
    TooLong {
        /// The length found.
        bytes: usize,
        /// The length allowed.
        bytes_max: usize,
    },
    /// The text contains `#`, the separator of key parts.
    #[error("contains '#', which separates key parts; use {allowed}")]
    Separator {
        /// The characters this kind of name is made of.
        allowed: &'static str,
    },
    /// The text has a meaning of its own and cannot be used as a name.
    #[error("is {why}; choose another name")]
    Reserved {
        /// The purpose the text is kept for.
        why: &'static str,
    },
    /// The first character may not begin a name.
    #[error("starts with '{}'; start with {allowed}", found.escape_debug())]
    Start {
        /// The character found.
        found: char,
        /// The characters a name of this kind may start with.
        allowed: &'static str,
    },
    /// A later character may not be part of a name.
    #[error("contains '{}'; use {allowed}", found.escape_debug())]
    Character {
        /// The first character that is not allowed.
        found: char,
        /// The characters this kind of name is made of.
        allowed: &'static str,
    },
}

/// A refused text as error messages show it: escaped, so that it cannot break a log line, and cut
/// to 50 characters.
pub(crate) fn shown(text: &str) -> String {
    const SHOWN_CHARS_MAX: usize = 50;
    let mut escaped = text.escape_debug();
    let mut shown: String = escaped.by_ref().take(SHOWN_CHARS_MAX).collect();
    if escaped.next().is_some() {
        shown.push_str("...");
    }
    shown
}

/// A set of ASCII characters. Bytes outside ASCII are in no set.
#[derive(Clone, Copy)]
pub(super) struct AsciiSet([bool; 256]);

impl AsciiSet {
    pub(super) const LETTERS: AsciiSet =
        AsciiSet([false; 256]).and(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ");
    pub(super) const LETTERS_DIGITS: AsciiSet = Self::LETTERS.and(b"0123456789");

    pub(super) const fn and(self, bytes: &[u8]) -> AsciiSet {
        let mut set = self.0;
        let mut i = 0;
        while i < bytes.len() {
            assert!(bytes[i].is_ascii() && bytes[i] != b'#', "no name has this byte");
            set[bytes[i] as usize] = true;
            i += 1;
        }
        AsciiSet(set)
    }

    const fn has(&self, byte: u8) -> bool {
        self.0[byte as usize]
    }
}

/// The grammar of one kind of name.
pub(super) struct Grammar {
    pub(super) field: &'static str,
    pub(super) bytes_max: usize,
    pub(super) first: AsciiSet,
    pub(super) first_words: &'static str,
    pub(super) rest: AsciiSet,
    pub(super) rest_words: &'static str,
    pub(super) reserved: &'static [(&'static [&'static str], &'static str)],
}

impl Grammar {
    pub(super) fn check(&self, text: &str) -> Result<(), NameError> {
        // Nearly every text is a name; which rule is broken is asked for the others.
        if self.is_met_by(text) {
            return Ok(());
        }
        self.broken_rule(text)
            .map_or(Ok(()), |rule| Err(NameError { field: self.field, value: shown(text), rule }))
    }

    fn is_met_by(&self, text: &str) -> bool {
        let Some((&first, rest)) = text.as_bytes().split_first() else { return false };
        text.len() <= self.bytes_max
            && self.first.has(first)
            // Every byte is looked at: without an early end the loop costs half as much.
            && rest.iter().fold(true, |is_met, &byte| is_met & self.rest.has(byte))
            && !self.reserved.iter().any(|(names, _)| names.contains(&text))
    }

    fn broken_rule(&self, text: &str) -> Option<NameRule> {
        let bytes = text.as_bytes();
        let Some((&first, rest)) = bytes.split_first() else {
            return Some(NameRule::Empty { allowed: self.rest_words });
        };
        if bytes.len() > self.bytes_max {
            return Some(NameRule::TooLong { bytes: bytes.len(), bytes_max: self.bytes_max });
        }
        if bytes.contains(&b'#') {
            return Some(NameRule::Separator { allowed: self.rest_words });
        }
        for (names, why) in self.reserved {
            if names.contains(&text) {
                return Some(NameRule::Reserved { why });
            }
        }
        if !self.first.has(first) {
            return Some(NameRule::Start { found: char_at(text, 0), allowed: self.first_words });
        }
        let at = 1 + rest.iter().position(|&byte| !self.rest.has(byte))?;
        Some(NameRule::Character { found: char_at(text, at), allowed: self.rest_words })
    }
}

/// The character that begins at byte `at`. The first byte outside a set of ASCII characters always
/// begins one.
fn char_at(text: &str, at: usize) -> char {
    text.get(at..).and_then(|tail| tail.chars().next()).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// A name that was parsed before is accepted wherever text is, and never fails again.
impl From<std::convert::Infallible> for NameError {
    fn from(never: std::convert::Infallible) -> NameError {
        match never {}
    }
}
