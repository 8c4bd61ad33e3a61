//! All integration tests of this crate in one binary: one link instead of many.

mod admin;
mod calls;
mod conformance;
mod evaluated;
mod interop;
mod lossy;
mod options;
mod pages;
mod processes;
mod records;
mod sdk;
mod unseen;
mod upkeep;
mod verdicts;
