//! Tests of the crate, in one binary.

mod cfn;
mod golden;
mod iam;
mod options;
mod package;
mod policies;
mod stack;
mod template;
