//! Deploys and operates zae-limiter on AWS.
//!
//! | module | what it has |
//! |---|---|
//! | `options` | what a stack can be asked to be, checked before anything is sent |
//! | `template` | the CloudFormation template |
//! | `package` | the zip that a Lambda function runs: our own executable as `bootstrap` |
//! | `stack` | create, update through a change set, wait, delete, find |

pub mod elf;
pub mod package;
