//! Load tests of zae-limiter.
//!
//! | module | what it has |
//! |---|---|
//! | `scenario` | what a user does: the trait, and what a call is given |
//! | `builtin` | `simple`, `simple-cascade`, `max-rps`, `max-rps-cascade`, `llm` |
//! | `file` | scenarios of TOML files |
//! | `tally` | counts and histograms, which can be merged and sent |
//! | `engine` | users that start one by one, call, and end |
//! | `worker` | a part of a run in another place |
//! | `report` | what a run came to, as JSON |
//! | `html` | the same as one page without any request |
//! | `tune` | the best number of users |
//! | `compare` | two reports beside each other |
//!
//! A paced scenario measures each call from the moment at which the call was due: a store that
//! stalls is charged for the calls that queue up behind the stall (no coordinated omission). A
//! scenario in a closed loop has no such moment, and its report says so.

pub mod builtin;
pub mod compare;
pub mod engine;
pub mod file;
pub mod html;
pub mod report;
pub mod scenario;
pub mod tally;
pub mod tune;
pub mod worker;

pub use engine::{Interval, Options, run};
pub use report::{Report, Run};
pub use scenario::{Outcome, Pacing, Scenario, ScenarioError, Session};
pub use tally::{Latency, Tally};
