//! What several commands need.

pub(crate) mod about;
pub(crate) mod entities;
pub(crate) mod flags;
pub(crate) mod listing;
#[cfg(feature = "dynamodb")]
pub(crate) mod local;
pub(crate) mod lost;
pub(crate) mod namespaces;
#[cfg(feature = "deploy")]
pub(crate) mod stacks;
#[cfg(any(feature = "dynamodb", feature = "loadtest"))]
pub(crate) mod stop;
pub(crate) mod usage;
