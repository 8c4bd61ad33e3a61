//! Tests of the crate, in one binary.

mod adverse;
mod archive;
mod builder;
mod cfn;
mod golden;
mod iam;
mod loadtest;
mod options;
mod package;
mod policies;
mod stack;
mod template;
mod unharmed;
