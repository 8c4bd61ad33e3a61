//! The life of a stack: made, changed through a change set, watched, deleted, found.
//!
//! `cloud.rs` speaks to AWS, `deploy.rs` makes and changes a stack, `remove.rs` deletes it,
//! `builder.rs` does all of it in one call and connects.

mod builder;
mod cloud;
mod deploy;
mod remove;

use std::collections::BTreeMap;

pub use builder::{Deployed, Stack, StackBuilder};
pub use cloud::Cloud;
pub use deploy::{Deployment, Outcome};
pub use remove::Removal;

use crate::error::is_dead;
use crate::options::LAMBDA_CODE_KEY;
use crate::tags;

/// A stack as CloudFormation describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StackState {
    /// The name, which is also that of its table.
    pub name: String,
    /// The ARN.
    pub id: String,
    /// What CloudFormation calls its state: `CREATE_COMPLETE`.
    pub status: String,
    /// What CloudFormation says about the state.
    pub reason: Option<String>,
    /// What it was made with.
    pub parameters: BTreeMap<String, String>,
    /// What it tells others.
    pub outputs: BTreeMap<String, String>,
    /// Its tags.
    pub tags: BTreeMap<String, String>,
    /// When it was made, in seconds since 1970.
    pub created_s: Option<i64>,
    /// When it was changed last, in seconds since 1970.
    pub updated_s: Option<i64>,
}

/// Whose stack it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Maker {
    /// This program's.
    Ours,
    /// The Python package's.
    Python,
    /// Somebody else's.
    Unknown,
}

impl StackState {
    /// Whether CloudFormation is at work on the stack.
    #[must_use]
    pub fn is_at_work(&self) -> bool {
        // A stack under review has nothing but a change set that nobody executed.
        self.status.ends_with("_IN_PROGRESS") && self.status != "REVIEW_IN_PROGRESS"
    }

    /// Whether the stack serves and can be changed. A stack whose last change was taken back does
    /// and can.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        const WHOLE: [&str; 5] = [
            "CREATE_COMPLETE",
            "UPDATE_COMPLETE",
            "UPDATE_ROLLBACK_COMPLETE",
            "IMPORT_COMPLETE",
            "IMPORT_ROLLBACK_COMPLETE",
        ];
        WHOLE.contains(&self.status.as_str())
    }

    /// Whether CloudFormation has given up, so that the stack can only be deleted.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        is_dead(&self.status)
    }

    /// Whose stack it is, by its parameters: only ours has one for the key of the code.
    #[must_use]
    pub fn maker(&self) -> Maker {
        let is_marked =
            self.tags.get(tags::MANAGED_BY).is_some_and(|manager| manager == tags::MANAGER);
        if self.parameters.contains_key(LAMBDA_CODE_KEY) {
            Maker::Ours
        } else if is_marked || self.parameters.contains_key("SnapshotRetentionDays") {
            Maker::Python
        } else {
            Maker::Unknown
        }
    }

    /// An output that is not empty.
    #[must_use]
    pub fn output(&self, name: &str) -> Option<&str> {
        self.outputs.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }
}

/// One line of the history of a stack.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StackEvent {
    /// The number CloudFormation gives it.
    pub id: String,
    /// The resource, by its name in the template.
    pub resource: String,
    /// The type of the resource.
    pub kind: String,
    /// What it is doing: `CREATE_IN_PROGRESS`.
    pub status: String,
    /// Why.
    pub reason: Option<String>,
    /// When, in seconds since 1970.
    pub at_s: i64,
}

impl StackEvent {
    /// Whether something failed.
    #[must_use]
    pub fn is_failure(&self) -> bool {
        self.status.ends_with("_FAILED")
    }
}

/// One line of a change set.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Change {
    /// `Add`, `Modify`, `Remove`, …
    pub action: String,
    /// The resource, by its name in the template.
    pub resource: String,
    /// The type of the resource.
    pub kind: String,
    /// `True`, `False` or `Conditional`: whether another one takes its place.
    pub replacement: Option<String>,
}

/// Types that hold what nobody can make again.
const DATA: [&str; 3] = ["AWS::DynamoDB::Table", "AWS::S3::Bucket", "AWS::SQS::Queue"];

/// The bucket that CloudFormation keeps, whatever becomes of the stack.
const KEPT: &str = "AuditArchiveBucket";

/// What is in this bucket can be uploaded again.
const CODE: &str = "CodeBucket";

impl Change {
    /// Whether the resource goes.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        self.action == "Remove"
    }

    /// Whether data may be lost: a table, bucket or queue is removed, or may be replaced.
    #[must_use]
    pub fn loses_data(&self) -> bool {
        let is_replaced = matches!(self.replacement.as_deref(), Some("True" | "Conditional"));
        let holds_data = DATA.contains(&self.kind.as_str()) && self.resource != CODE;
        holds_data && (is_replaced || self.is_removed() && self.resource != KEPT)
    }
}

/// What is told while a stack is at work.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress<'a> {
    /// The next thing to do.
    Doing(&'a str),
    /// What will change, before anything does.
    Change(&'a Change),
    /// Something happened to a resource.
    Event(&'a StackEvent),
}

/// Who is told.
pub type Tell<'a> = &'a mut (dyn FnMut(Progress<'_>) + Send);

#[cfg(test)]
mod tests {
    use super::*;

    fn change(action: &str, resource: &str, kind: &str, replacement: Option<&str>) -> Change {
        Change {
            action: action.to_owned(),
            resource: resource.to_owned(),
            kind: kind.to_owned(),
            replacement: replacement.map(str::to_owned),
        }
    }

    #[test]
    fn data_is_lost_where_a_table_bucket_or_queue_goes_or_may_be_replaced() {
        let table = "AWS::DynamoDB::Table";
        assert!(change("Remove", "RateLimitsTable", table, None).loses_data());
        assert!(change("Modify", "RateLimitsTable", table, Some("True")).loses_data());
        assert!(change("Modify", "RateLimitsTable", table, Some("Conditional")).loses_data());
        assert!(!change("Modify", "RateLimitsTable", table, Some("False")).loses_data());
        assert!(!change("Add", "RateLimitsTable", table, None).loses_data());
        assert!(change("Remove", "AggregatorDLQ", "AWS::SQS::Queue", None).loses_data());
        // CloudFormation keeps the archive, and code can be uploaded again.
        assert!(!change("Remove", "AuditArchiveBucket", "AWS::S3::Bucket", None).loses_data());
        assert!(
            change("Modify", "AuditArchiveBucket", "AWS::S3::Bucket", Some("True")).loses_data()
        );
        assert!(!change("Remove", "CodeBucket", "AWS::S3::Bucket", None).loses_data());
        assert!(!change("Remove", "AppRole", "AWS::IAM::Role", Some("True")).loses_data());
    }

    #[test]
    fn a_state_is_one_of_at_work_whole_or_given_up() {
        let state =
            |status: &str| StackState { status: status.to_owned(), ..StackState::default() };
        for status in ["CREATE_IN_PROGRESS", "UPDATE_COMPLETE_CLEANUP_IN_PROGRESS"] {
            assert!(state(status).is_at_work(), "{status}");
            assert!(!state(status).is_whole(), "{status}");
        }
        for status in ["CREATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE"] {
            assert!(state(status).is_whole() && !state(status).is_dead(), "{status}");
        }
        for status in ["ROLLBACK_COMPLETE", "DELETE_FAILED", "REVIEW_IN_PROGRESS"] {
            assert!(state(status).is_dead() && !state(status).is_at_work(), "{status}");
        }
    }
}
