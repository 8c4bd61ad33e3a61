//! The life of a stack: made, changed through a change set, watched, deleted, found.
//!
//! `connect.rs` finds the services, `cloud.rs` speaks to CloudFormation, `buckets.rs` to S3,
//! `metrics.rs` to CloudWatch, and `answers.rs` reads what they answer; `deploy.rs` makes and
//! changes a stack, `remove.rs` deletes it, `builder.rs` does all of it in one call and connects.

mod answers;
mod buckets;
mod builder;
mod cloud;
mod connect;
mod deploy;
mod invoke;
mod metrics;
mod remove;

use std::collections::BTreeMap;

pub use builder::{Deployed, Stack, StackBuilder};
pub use cloud::Cloud;
pub use connect::Endpoints;
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
    /// Whether CloudFormation refuses to delete it: its termination protection is on.
    pub is_kept: bool,
    /// When it was made, in seconds since 1970.
    pub created_s: Option<i64>,
    /// When it was changed last, in seconds since 1970.
    pub updated_s: Option<i64>,
}

/// What a stack is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A table with everything around it.
    Limiter,
    /// Workers of a load test.
    LoadTest,
}

impl Kind {
    /// The value of its tag.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Limiter => tags::LIMITER,
            Kind::LoadTest => tags::LOAD_TEST,
        }
    }
}

/// Whose stack it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Maker {
    /// This program's.
    Ours,
    /// The Python package's.
    Python,
    /// Made from our template by Terraform or CDK, which also changes and deletes it.
    OtherTool,
    /// Somebody else's.
    Unknown,
}

impl Maker {
    /// Why the stack of such a maker is not to be changed here; `None` for ours.
    #[must_use]
    pub fn why_not(self) -> Option<&'static str> {
        match self {
            Maker::Ours => None,
            Maker::Python => Some("the Python package has deployed it"),
            Maker::OtherTool => Some("Terraform or CDK has made it from our template"),
            Maker::Unknown => Some("it is a stack of something else"),
        }
    }
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

    /// Whose stack it is, by its parameters and tags. Only our template has a parameter for the key
    /// of the code, only the Python package's one for the schema. What we deploy has the tag of our
    /// version from the first request on; a stack that somebody made of the template by hand has no
    /// tags of ours and becomes ours with the next deploy.
    #[must_use]
    pub fn maker(&self) -> Maker {
        let is_marked =
            self.tags.get(tags::MANAGED_BY).is_some_and(|manager| manager == tags::MANAGER);
        let is_ours = self.parameters.contains_key(LAMBDA_CODE_KEY);
        let is_python = self.parameters.contains_key("SchemaVersion");
        match self.tags.contains_key(tags::VERSION) || !is_marked {
            true if is_ours => Maker::Ours,
            _ if is_python => Maker::Python,
            // CDK puts values in the place of the parameters.
            _ if is_marked => Maker::OtherTool,
            _ if self.parameters.contains_key("SnapshotRetentionDays") => Maker::Python,
            _ => Maker::Unknown,
        }
    }

    /// What the stack is for, by its tag. One without limits.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self.tags.get(tags::TYPE).map(String::as_str) {
            Some(tags::LOAD_TEST) => Kind::LoadTest,
            _ => Kind::Limiter,
        }
    }

    /// Why a command about stacks of this kind leaves the stack alone.
    pub(crate) fn misfit(&self, wanted: Kind) -> Option<&'static str> {
        match (self.kind(), wanted) {
            (Kind::LoadTest, Kind::Limiter) => {
                Some("it has the workers of a load test (`zae-limiter loadtest`), and no table")
            }
            (Kind::Limiter, Kind::LoadTest) => Some("it has no workers of a load test"),
            _ => None,
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

    /// Whether something was begun with the stack as a whole. A roll-back belongs to what was begun
    /// before it.
    #[must_use]
    pub fn begins(&self, stack: &str) -> bool {
        const BEGUN: [&str; 4] = [
            "CREATE_IN_PROGRESS",
            "UPDATE_IN_PROGRESS",
            "DELETE_IN_PROGRESS",
            "IMPORT_IN_PROGRESS",
        ];
        self.resource == stack && BEGUN.contains(&self.status.as_str())
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
    /// `+`, `-` or `~`.
    #[must_use]
    pub fn sign(&self) -> &'static str {
        match self.action.as_str() {
            "Add" => "+",
            "Remove" => "-",
            _ => "~",
        }
    }

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
