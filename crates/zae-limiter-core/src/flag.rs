//! Whether an entity or a resource may take: the switch in an administrator's hands.

use std::fmt;

/// The positions of the switch. A level has one of them or none, and the strongest level that has
/// one decides for a bucket. The number of a position is what stands for it where numbers are
/// stored, and stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Flag {
    /// Takes go on. At a level: although a weaker level says otherwise.
    #[default]
    Enabled = 0,
    /// Nothing is granted.
    Disabled = 1,
}

impl Flag {
    /// Every position, in the order that answers list them.
    pub const ALL: [Flag; 2] = [Flag::Disabled, Flag::Enabled];

    /// The flag that a yes or a no to the question `disabled` stands for.
    #[must_use]
    pub const fn from_disabled(is_disabled: bool) -> Flag {
        if is_disabled { Flag::Disabled } else { Flag::Enabled }
    }

    /// Whether a bucket under this flag refuses every take.
    #[must_use]
    pub const fn blocks(self) -> bool {
        match self {
            Flag::Enabled => false,
            Flag::Disabled => true,
        }
    }

    /// The word for it: `enabled` or `disabled`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Flag::Enabled => "enabled",
            Flag::Disabled => "disabled",
        }
    }

    /// The answer to the question `disabled`, as audit events and files of limits have it.
    #[must_use]
    pub const fn answer(self) -> &'static str {
        match self {
            Flag::Enabled => "false",
            Flag::Disabled => "true",
        }
    }
}

impl fmt::Display for Flag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is stored in files and tables that are there.
    #[test]
    fn numbers_words_and_answers_stay() {
        let stored = Flag::ALL.map(|flag| (flag as u8, flag.as_str(), flag.answer()));
        assert_eq!(stored, [(1, "disabled", "true"), (0, "enabled", "false")]);
    }
}
