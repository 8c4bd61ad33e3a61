//! How things are stored: keys, names of attributes, items.

pub(crate) mod attr;
pub mod checkpoint;
pub(crate) mod item;
pub mod keys;
