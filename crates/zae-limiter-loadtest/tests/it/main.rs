//! Tests of the load test. Time is told to pass: a run of seconds takes none.

mod compare;
mod engine;
mod file;
mod report;
mod rig;
mod tally;
mod tune;
mod worker;
