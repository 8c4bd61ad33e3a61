//! Deploys and operates zae-limiter on AWS.
//!
//! | module | what it has |
//! |---|---|
//! | `error` | what can go wrong, and what to do about it |
//! | `options` | what a stack can be asked to be, checked before anything is sent |
//! | `naming` | names of roles and policies |
//! | `tags` | the tags by which a stack is found |
//! | `template` | the CloudFormation template |
//! | `loadtest` | a stack of workers that load the table of another stack |
//! | `package` | the zip that a Lambda function runs: our own executable as `bootstrap` |
//! | `stack` | create, update through a change set, wait, delete, find |

pub mod elf;
pub mod error;
pub mod loadtest;
pub mod naming;
pub mod options;
pub mod package;
pub mod stack;
pub mod tags;
pub mod template;

pub use error::DeployError;
pub use loadtest::LoadTestOptions;
pub use naming::{PolicyName, RoleName};
pub use options::{
    Architecture, ArchiveOnDelete, LAMBDA_CODE_KEY, OptionError, ResourceIndexProjection,
    StackOptions,
};
pub use stack::{Stack, StackBuilder};
pub use tags::{StackVersions, stack_tags};
pub use template::TEMPLATE;

/// The programs that the documents print are compiled as printed.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../../../docs/deploy.md")]
    struct Deploy;
}
