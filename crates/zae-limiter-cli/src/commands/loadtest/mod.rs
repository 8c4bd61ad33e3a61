//! `loadtest`: the scenarios that a command line means, and runs of them.

pub(crate) mod compare;
#[cfg(feature = "deploy")]
mod fleet;
pub(crate) mod page;
mod processes;
pub(crate) mod run;
mod scenarios;
pub(crate) mod tune;
#[cfg(feature = "deploy")]
pub(crate) mod workers;
