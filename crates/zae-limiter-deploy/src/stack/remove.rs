//! Deleting a stack.

use super::deploy::PROTECTION;
use super::{CODE, Cloud, Kind, Maker, Progress, Tell};
use crate::error::DeployError;
use crate::options::ArchiveOnDelete;

/// A stack that is to be deleted, with its table and everything in it.
#[derive(Clone, Debug)]
pub struct Removal<'a> {
    /// Its name.
    pub stack: &'a str,
    /// What it is for; a stack for something else stays.
    pub kind: Kind,
    /// Whether the call returns only when CloudFormation is done.
    pub waits: bool,
}

impl Removal<'_> {
    /// Deletes the stack. The archive of audit events stays, unless the stack was deployed with
    /// [`ArchiveOnDelete::Empty`]; the name of a bucket that stays is returned.
    pub async fn run(&self, cloud: &Cloud, tell: Tell<'_>) -> Result<Option<String>, DeployError> {
        let mut state = cloud.describe(self.stack).await?;
        if let (Maker::Unknown | Maker::OtherTool, Some(why)) =
            (state.maker(), state.maker().why_not())
        {
            return Err(DeployError::NotOurs { stack: self.stack.to_owned(), why });
        }
        if let Some(why) = state.misfit(self.kind) {
            return Err(DeployError::NotOurs { stack: self.stack.to_owned(), why });
        }
        // Who changes the stack at this moment needs the code that would be removed.
        if state.is_at_work() && !can_be_deleted(&state.status) {
            let settled = cloud.rested(self.stack, self.waits, tell).await?;
            let (stack, region) = (self.stack.to_owned(), cloud.region().to_owned());
            state = settled.ok_or(DeployError::StackNotFound { stack, region })?;
        }
        let is_protected = state.parameters.get(PROTECTION);
        if is_protected.is_some_and(|value| value == "true") {
            return Err(DeployError::Protected { stack: self.stack.to_owned() });
        }
        if state.is_kept {
            return Err(DeployError::Kept { stack: self.stack.to_owned() });
        }
        let goes = state.output("ArchiveOnDelete") == Some(ArchiveOnDelete::Empty.as_str());
        let archive = state.output("AuditArchiveBucketName").map(str::to_owned);
        let code = state.output("CodeBucketName");
        if let Some(bucket) = code {
            cloud.holds_code_only(bucket).await?;
        }
        let seen = cloud.newest_event(self.stack).await?;
        tell(Progress::Doing("deleting the stack"));
        cloud.delete(self.stack).await?;
        // Only now: a stack that may not be deleted needs its code. CloudFormation does not delete
        // a bucket that has objects, and comes to it after the function.
        let emptied = self.empty(cloud, code, tell).await;
        if !self.waits {
            emptied?;
            return Ok(archive);
        }
        // A stack that is gone is known by its ARN only.
        let id = if state.id.is_empty() { self.stack } else { &state.id };
        let (mut left, mut events) = cloud.settle(id, (seen, true), tell).await?;
        if left.as_ref().is_some_and(|left| left.status == "DELETE_FAILED") {
            emptied?;
            // It came to the bucket sooner.
            if code.is_some() && events.iter().any(|it| it.is_failure() && it.resource == CODE) {
                self.empty(cloud, code, tell).await?;
                let seen = cloud.newest_event(id).await?;
                tell(Progress::Doing("deleting what is left of the stack"));
                cloud.delete(self.stack).await?;
                (left, events) = cloud.settle(id, (seen, true), tell).await?;
            }
        }
        if let Some(left) = left {
            return Err(cloud.broken(&left, &events));
        }
        match archive {
            Some(bucket) if goes => {
                tell(Progress::Doing(&format!("removing the archive, the bucket {bucket}")));
                match cloud.remove_bucket(&bucket).await {
                    Ok(()) => Ok(None),
                    // Nobody finds the bucket by the stack any more.
                    Err(error) => {
                        let (stack, error) = (self.stack.to_owned(), Box::new(error));
                        Err(DeployError::ArchiveStays { stack, bucket, error })
                    }
                }
            }
            archive => Ok(archive),
        }
    }

    /// Empties the bucket of the function's code, where there is one.
    async fn empty(
        &self,
        cloud: &Cloud,
        bucket: Option<&str>,
        tell: Tell<'_>,
    ) -> Result<(), DeployError> {
        let Some(bucket) = bucket else { return Ok(()) };
        tell(Progress::Doing("removing the function's code"));
        cloud.empty(bucket).await
    }
}

/// Whether CloudFormation takes an order to delete a stack that it is at work on.
fn can_be_deleted(status: &str) -> bool {
    matches!(status, "CREATE_IN_PROGRESS" | "ROLLBACK_IN_PROGRESS" | "DELETE_IN_PROGRESS")
}
