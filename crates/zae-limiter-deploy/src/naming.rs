//! Names of roles and policies.

use crate::options::OptionError;

/// What stands for `STACK-COMPONENT` in a format.
const PLACE: &str = "{}";

/// A role of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RoleName {
    /// The aggregator.
    Aggregator,
    /// Applications.
    App,
    /// Administrators.
    Admin,
    /// Readers.
    ReadOnly,
}

/// A managed policy of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PolicyName {
    /// Takes, in every namespace.
    AcquireOnly,
    /// Administers every namespace.
    FullAccess,
    /// Reads every namespace.
    ReadOnly,
    /// Writes the registry of namespaces.
    RegistryAdmin,
    /// Takes, in one namespace.
    NamespaceAcquire,
    /// Administers one namespace.
    NamespaceFullAccess,
    /// Reads one namespace.
    NamespaceReadOnly,
}

/// What roles and policies have in common.
pub(crate) trait Named: Copy + 'static {
    /// The longest format.
    const FORMAT_CHARS_MAX: usize;
    /// The longest name that IAM takes.
    const NAME_CHARS_MAX: usize;

    fn all() -> &'static [Self];
    fn in_format(self, format: &str, stack: &str) -> String;
}

macro_rules! named {
    ($kind:ident: $format_max:literal, $name_max:literal, $suffix:literal;
     $($variant:ident => $component:literal,)*) => {
        impl $kind {
            /// Every one, in the order of the template.
            pub const ALL: [$kind; [$($component),*].len()] = [$($kind::$variant),*];

            /// What the name ends with, after the stack.
            #[must_use]
            pub fn component(self) -> &'static str {
                match self {
                    $($kind::$variant => $component,)*
                }
            }

            /// The parameter of the template that names it.
            #[must_use]
            pub fn parameter(self) -> &'static str {
                match self {
                    $($kind::$variant => concat!(stringify!($variant), $suffix, "Name"),)*
                }
            }

            /// The logical id in the template.
            #[must_use]
            pub fn logical_id(self) -> &'static str {
                match self {
                    $($kind::$variant => concat!(stringify!($variant), $suffix),)*
                }
            }

            /// The name in a stack, by a format in which `{}` stands for `STACK-COMPONENT`.
            #[must_use]
            pub fn name(self, format: &str, stack: &str) -> String {
                format.replacen(PLACE, &format!("{stack}-{}", self.component()), 1)
            }
        }

        impl Named for $kind {
            const FORMAT_CHARS_MAX: usize = $format_max;
            const NAME_CHARS_MAX: usize = $name_max;

            fn all() -> &'static [$kind] {
                &$kind::ALL
            }

            fn in_format(self, format: &str, stack: &str) -> String {
                self.name(format, stack)
            }
        }
    };
}

named! { RoleName: 55, 64, "Role";
    Aggregator => "aggr",
    App => "app",
    Admin => "admin",
    ReadOnly => "read",
}

named! { PolicyName: 120, 128, "Policy";
    AcquireOnly => "acq",
    FullAccess => "full",
    ReadOnly => "read",
    RegistryAdmin => "reg",
    NamespaceAcquire => "ns-acq",
    NamespaceFullAccess => "ns-full",
    NamespaceReadOnly => "ns-read",
}

/// A format has `{}` once, characters that IAM takes, and gives no name that is too long.
pub(crate) fn check_format<N: Named>(
    field: &'static str,
    format: &str,
    stack: &str,
) -> Result<(), OptionError> {
    let wrong = |problem: String| Err(OptionError::new(field, format, problem));
    let places = format.matches(PLACE).count();
    if places != 1 {
        return wrong(format!("has {{}} {places} times; use it once, for STACK-COMPONENT"));
    }
    let length = format.chars().count();
    if length > N::FORMAT_CHARS_MAX {
        return wrong(format!("is {length} characters long; use at most {}", N::FORMAT_CHARS_MAX));
    }
    let is_word = |c: char| c.is_ascii_alphanumeric() || "+=,.@_-".contains(c);
    if let Some(found) = format.replacen(PLACE, "", 1).chars().find(|c| !is_word(*c)) {
        return wrong(format!("contains {found:?}; use letters, digits and +=,.@_-"));
    }
    for name in N::all().iter().map(|named| named.in_format(format, stack)) {
        if name.len() > N::NAME_CHARS_MAX {
            return wrong(format!(
                "makes {name:?}, which has {} characters; IAM takes {}: use a shorter format or a \
                 shorter stack name",
                name.len(),
                N::NAME_CHARS_MAX
            ));
        }
    }
    Ok(())
}
