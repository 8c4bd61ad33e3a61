//! Tags of a stack, by which it is found again.

use std::collections::BTreeMap;

use crate::options::StackOptions;

/// The key of the tag that every stack of ours has, the Python package's included.
pub const MANAGED_BY: &str = "ManagedBy";
/// Its value.
pub const MANAGER: &str = "zae-limiter";
/// What all other keys of ours begin with.
pub const PREFIX: &str = "zae-limiter:";
/// The name of the limiter.
pub const NAME: &str = "zae-limiter:name";
/// What kind of stack it is.
pub const TYPE: &str = "zae-limiter:type";
/// The version of the program that deployed the stack.
pub const VERSION: &str = "zae-limiter:version";
/// The version of the function's code.
pub const LAMBDA_VERSION: &str = "zae-limiter:lambda-version";
/// The version of the table's schema.
pub const SCHEMA_VERSION: &str = "zae-limiter:schema-version";

/// The value of [`TYPE`] for a stack that limits.
pub const LIMITER: &str = "limiter";
/// The value of [`TYPE`] for the workers of a load test.
pub const LOAD_TEST: &str = "load-test";

/// The versions that the tags of a stack tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackVersions<'a> {
    /// Of the program that deploys.
    pub program: &'a str,
    /// Of the function's code; `None` as long as there is no function.
    pub lambda: Option<&'a str>,
    /// Of the table's schema.
    pub schema: &'a str,
}

/// The tags of a stack: its own, and those of its options.
#[must_use]
pub fn stack_tags(
    stack: &str,
    versions: &StackVersions<'_>,
    options: &StackOptions,
) -> BTreeMap<String, String> {
    let mut tags = options.tags.clone();
    let own = [
        (MANAGED_BY, Some(MANAGER)),
        (NAME, Some(stack)),
        (TYPE, Some(LIMITER)),
        (VERSION, Some(versions.program)),
        (LAMBDA_VERSION, versions.lambda),
        (SCHEMA_VERSION, Some(versions.schema)),
    ];
    for (key, value) in own {
        if let Some(value) = value {
            tags.insert(key.to_owned(), value.to_owned());
        }
    }
    tags
}

/// Whether a key is one that the stack sets itself.
pub(crate) fn is_reserved(key: &str) -> bool {
    key == MANAGED_BY || key.starts_with(PREFIX)
}
