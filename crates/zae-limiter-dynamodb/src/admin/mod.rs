//! What an administrator does: entities, namespaces, the registry, audit and usage.

pub(crate) mod change;
pub(crate) mod entity;
mod history;
mod namespace;
pub(crate) mod version;
