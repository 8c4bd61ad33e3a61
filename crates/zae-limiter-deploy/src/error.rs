//! What can go wrong between a terminal and a running stack.

use std::fmt;

use crate::options::OptionError;
use crate::package::PackageError;
use crate::stack::{Change, Maker, StackEvent};
use zae_limiter::StoreError;

/// Why a stack was not deployed, found or deleted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeployError {
    /// An option cannot be right. Nothing was sent.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// The program cannot run as a function. Nothing was sent.
    #[error(transparent)]
    Package(#[from] PackageError),
    /// CloudFormation could not make the stack what it should be, or had given up before.
    #[error("stack {stack} is {status}{}", Causes(.reason.as_deref(), .events))]
    StackFailed {
        /// The stack.
        stack: String,
        /// What CloudFormation calls its state.
        status: String,
        /// What it says about it.
        reason: Option<String>,
        /// The events that explain it, oldest first.
        events: Vec<StackEvent>,
    },
    /// There is no such stack.
    #[error("there is no stack {stack} in {region}")]
    StackNotFound {
        /// The stack.
        stack: String,
        /// Where it was looked for.
        region: String,
    },
    /// Another process has begun to make the stack.
    #[error("stack {stack} was made by somebody else at the same time")]
    StackExists {
        /// The stack.
        stack: String,
    },
    /// The stack was deployed by the Python package, or by nobody we know.
    #[error("stack {stack} is not ours: {why}")]
    NotOurs {
        /// The stack.
        stack: String,
        /// How that was found.
        why: &'static str,
    },
    /// The change would lose data, and nobody has said that it may.
    #[error("stack {stack} stays as it is: {}", Lost(.changes))]
    LosesData {
        /// The stack.
        stack: String,
        /// What would be removed or replaced.
        changes: Vec<Change>,
    },
    /// The table is protected.
    #[error("the table of stack {stack} is protected from being deleted")]
    Protected {
        /// The stack.
        stack: String,
    },
    /// The options would take the protection of the table away without a word of it.
    #[error(
        "the table of stack {stack} is protected from being deleted, and the options are silent about that"
    )]
    Unprotects {
        /// The stack.
        stack: String,
    },
    /// The function of a newer release serves the table.
    #[error("stack {stack} has the function of release {function}, and this is release {}", env!("CARGO_PKG_VERSION"))]
    Newer {
        /// The stack.
        stack: String,
        /// The release of its function.
        function: String,
    },
    /// The table has a function, and so a stack, which is not where CloudFormation was asked for.
    #[error("the table of stack {stack} has a function, and {endpoint} has no CloudFormation")]
    Elsewhere {
        /// The stack.
        stack: String,
        /// The endpoint.
        endpoint: String,
    },
    /// The termination protection of the stack is on.
    #[error("stack {stack} is protected from being deleted")]
    Kept {
        /// The stack.
        stack: String,
    },
    /// The bucket for code holds what is no code of a function.
    #[error("the bucket {bucket} of the stack holds objects of somebody else: {}", .keys.join(", "))]
    Foreign {
        /// The bucket.
        bucket: String,
        /// Some of them.
        keys: Vec<String>,
    },
    /// The stack is deleted, and its archive, which was to go with it, could not be removed.
    #[error("stack {stack} is deleted, and its archive stays in the bucket {bucket}: {error}")]
    ArchiveStays {
        /// The stack.
        stack: String,
        /// The bucket of the archive.
        bucket: String,
        /// Why it stays.
        error: Box<DeployError>,
    },
    /// The endpoint speaks DynamoDB and no CloudFormation.
    #[error("{endpoint} has no CloudFormation")]
    NoCloudFormation {
        /// The endpoint.
        endpoint: String,
    },
    /// CloudFormation was still at work when there was no more time.
    #[error("stack {stack} is still {status}")]
    StillAtWork {
        /// The stack.
        stack: String,
        /// What it was doing.
        status: String,
    },
    /// AWS was not reached, or there was nobody to ask it as.
    #[error("{operation}: AWS cannot be reached ({message})")]
    Unreachable {
        /// What was asked.
        operation: &'static str,
        /// Why.
        message: String,
    },
    /// AWS did not do what it was asked.
    #[error("{operation}: {message}")]
    Aws {
        /// What was asked.
        operation: &'static str,
        /// The code of the error, where there is one.
        code: Option<String>,
        /// What AWS says.
        message: String,
    },
    /// The table could not be made ready.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The limiter could not be connected.
    #[error(transparent)]
    Limiter(#[from] zae_limiter::Error),
}

impl DeployError {
    /// What to do about it, where that is known.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            DeployError::Package(error) => error.hint(),
            DeployError::StackFailed { stack, status, .. } if status == "DELETE_FAILED" => format!(
                "repair what the events name; `zae-limiter delete --name {stack}` then removes what is left"
            ),
            DeployError::StackFailed { stack, status, .. } if is_dead(status) => format!(
                "CloudFormation cannot go on from there: `zae-limiter delete --name {stack}` removes what is left, then deploy again"
            ),
            DeployError::StackFailed { stack, status, .. }
                if status.ends_with("_ROLLBACK_FAILED") =>
            {
                format!(
                    "CloudFormation must first go back: repair what the events name, then `aws cloudformation continue-update-rollback --stack-name {stack}`"
                )
            }
            // Only a change without roll-back ends there.
            DeployError::StackFailed { stack, status, .. } if status == "UPDATE_FAILED" => format!(
                "CloudFormation must first go back: `aws cloudformation rollback-stack --stack-name {stack}`, then deploy again"
            ),
            DeployError::StackFailed { .. } => {
                "repair what the events name, then run the same command again".to_owned()
            }
            DeployError::StackNotFound { stack, .. } => format!(
                "`zae-limiter list` shows the stacks of a region; `zae-limiter deploy --name {stack}` makes this one"
            ),
            DeployError::StackExists { .. } | DeployError::StillAtWork { .. } => {
                "run the same command again: it waits for what is at work and goes on".to_owned()
            }
            DeployError::NotOurs { stack, why } if Some(*why) == Maker::OtherTool.why_not() => {
                format!(
                    "change and delete the stack with the tool that made it; `zae-limiter deploy --name {stack} --no-stack` makes its table ready"
                )
            }
            DeployError::NotOurs { stack, .. } => format!(
                "its table can be used as it is (`--name {stack}`), and `zae-limiter aggregate --name {stack}` counts its usage; deploy under another name to have a stack of ours"
            ),
            DeployError::LosesData { changes, .. } => {
                let is_table = changes.iter().any(|change| change.kind == "AWS::DynamoDB::Table");
                let what = if is_table { "back up the table" } else { "save what is in it" };
                format!("--allow-data-loss does it all the same; {what} first")
            }
            DeployError::Protected { stack } => format!(
                "`zae-limiter deploy --name {stack} --no-deletion-protection` takes the protection away; give the other options of the stack, too"
            ),
            DeployError::Unprotects { .. } => {
                "--enable-deletion-protection keeps the protection, --no-deletion-protection takes it away".to_owned()
            }
            DeployError::Newer { .. } => {
                "use that release or a later one; deploy --allow-downgrade and upgrade --force put the function of this release in its place".to_owned()
            }
            DeployError::Elsewhere { .. } => {
                "check --endpoint-url, AWS_ENDPOINT_URL and AWS_ENDPOINT_URL_CLOUDFORMATION: the stack is where its CloudFormation is".to_owned()
            }
            DeployError::Kept { stack } => format!(
                "`aws cloudformation update-termination-protection --no-enable-termination-protection --stack-name {stack}` takes the protection away"
            ),
            DeployError::Foreign { .. } => {
                "move them elsewhere, then run the same command again".to_owned()
            }
            DeployError::ArchiveStays { bucket, .. } => format!(
                "no command of ours finds the bucket any more: `aws s3 rb s3://{bucket} --force` removes it with what is in it"
            ),
            _ if self.lacks_credentials() => {
                "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE".to_owned()
            }
            DeployError::Unreachable { .. } => {
                "check the network, --region and --endpoint-url".to_owned()
            }
            _ if self.is_denied() => {
                "the caller lacks a permission; docs/deploy.md lists those of deploying".to_owned()
            }
            _ => return None,
        })
    }
}

impl DeployError {
    /// Whether there was nobody to ask AWS as, or nobody that AWS knows.
    #[must_use]
    pub fn lacks_credentials(&self) -> bool {
        const UNKNOWN: [&str; 4] =
            ["InvalidClientTokenId", "UnrecognizedClient", "SignatureDoesNotMatch", "ExpiredToken"];
        match self {
            DeployError::Unreachable { message, .. } => message.contains("credentials"),
            DeployError::Aws { code: Some(code), .. } => {
                UNKNOWN.iter().any(|word| code.contains(word))
            }
            _ => false,
        }
    }

    /// Whether AWS does not let the caller do what was asked.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        const DENIED: [&str; 2] = ["AccessDenied", "UnauthorizedOperation"];
        match self {
            DeployError::ArchiveStays { error, .. } => error.is_denied(),
            DeployError::Aws { code: Some(code), .. } => {
                DENIED.iter().any(|word| code.contains(word))
            }
            _ => false,
        }
    }

    /// Whether the same request may be answered a moment later: nobody was reached, or AWS was too
    /// busy to answer.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        const BUSY: [&str; 6] = [
            "SlowDown",
            "Throttl",
            "RequestLimitExceeded",
            "TooManyRequests",
            "ServiceUnavailable",
            "Internal",
        ];
        match self {
            DeployError::Unreachable { .. } => !self.lacks_credentials(),
            DeployError::ArchiveStays { error, .. } => error.is_passing(),
            DeployError::Aws { code: Some(code), .. } => {
                BUSY.iter().any(|word| code.contains(word))
            }
            _ => false,
        }
    }

    /// Whether somebody else has begun to change the stack, so that what was planned is out of date.
    pub(crate) fn is_race(&self) -> bool {
        const GONE: [&str; 3] = ["InvalidChangeSetStatus", "ChangeSetNotFound", "AlreadyExists"];
        match self {
            DeployError::Aws { code, message, .. } => {
                message.contains("_IN_PROGRESS state")
                    || code
                        .as_deref()
                        .is_some_and(|code| GONE.iter().any(|word| code.contains(word)))
            }
            _ => false,
        }
    }
}

/// Whether CloudFormation can only delete a stack in this state.
pub(crate) fn is_dead(status: &str) -> bool {
    matches!(
        status,
        "CREATE_FAILED"
            | "ROLLBACK_COMPLETE"
            | "ROLLBACK_FAILED"
            | "DELETE_FAILED"
            | "REVIEW_IN_PROGRESS"
    )
}

struct Causes<'a>(Option<&'a str>, &'a [StackEvent]);

impl fmt::Display for Causes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The first failure is the cause; the others were cancelled because of it.
        let is_cause = |event: &&StackEvent| {
            event.is_failure() && event.reason.as_deref().is_some_and(|why| !is_echo(why))
        };
        match (self.1.iter().find(is_cause), self.0) {
            (Some(event), _) => write!(
                f,
                ": {} {} ({})",
                event.resource,
                event.status,
                event.reason.as_deref().unwrap_or_default()
            ),
            (None, Some(reason)) => write!(f, ": {reason}"),
            (None, None) => Ok(()),
        }
    }
}

fn is_echo(reason: &str) -> bool {
    reason.contains("Resource creation cancelled") || reason.contains("Resource update cancelled")
}

struct Lost<'a>(&'a [Change]);

impl fmt::Display for Lost<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, change) in self.0.iter().enumerate() {
            let separator = if place == 0 { "" } else { ", " };
            let deed = if change.is_removed() { "removed" } else { "replaced" };
            write!(f, "{separator}{} ({}) would be {deed}", change.resource, change.kind)?;
        }
        Ok(())
    }
}
