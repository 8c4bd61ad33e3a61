//! What an administrator does: entities, namespaces, the registry, audit and usage.

pub(crate) mod change;
pub(crate) mod entity;
mod history;
pub(crate) mod migrate;
mod namespace;
pub(crate) mod operator;
pub(crate) mod version;
