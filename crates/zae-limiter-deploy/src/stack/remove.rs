//! Deleting a stack.

use super::{Cloud, Maker, Progress, Tell};
use crate::error::DeployError;
use crate::options::ArchiveOnDelete;

/// A stack that is to be deleted, with its table and everything in it.
#[derive(Clone, Debug)]
pub struct Removal<'a> {
    /// Its name.
    pub stack: &'a str,
    /// Whether the call returns only when CloudFormation is done.
    pub waits: bool,
}

impl Removal<'_> {
    /// Deletes the stack. The archive of audit events stays, unless the stack was deployed with
    /// [`ArchiveOnDelete::Empty`]; the name of a bucket that stays is returned.
    pub async fn run(&self, cloud: &Cloud, tell: Tell<'_>) -> Result<Option<String>, DeployError> {
        let state = cloud.describe(self.stack).await?;
        if state.maker() == Maker::Unknown {
            let why = "it is a stack of something else";
            return Err(DeployError::NotOurs { stack: self.stack.to_owned(), why });
        }
        let is_protected = state.parameters.get("EnableDeletionProtection");
        if is_protected.is_some_and(|value| value == "true") {
            return Err(DeployError::Protected { stack: self.stack.to_owned() });
        }
        let goes = state.output("ArchiveOnDelete") == Some(ArchiveOnDelete::Empty.as_str());
        let archive = state.output("AuditArchiveBucketName").map(str::to_owned);
        // CloudFormation does not delete a bucket that has objects.
        if let Some(bucket) = state.output("CodeBucketName") {
            tell(Progress::Doing("removing the function's code"));
            cloud.empty(bucket).await?;
        }
        let seen = cloud.newest_event(self.stack).await?;
        tell(Progress::Doing("deleting the stack"));
        cloud.delete(self.stack).await?;
        if !self.waits {
            return Ok(archive);
        }
        // A stack that is gone is known by its ARN only.
        let id = if state.id.is_empty() { self.stack } else { &state.id };
        let (left, events) = cloud.settle(id, (seen, true), tell).await?;
        if let Some(left) = left {
            return Err(cloud.broken(&left, &events));
        }
        match archive {
            Some(bucket) if goes => {
                tell(Progress::Doing("removing the archive"));
                cloud.empty(&bucket).await?;
                cloud.remove_bucket(&bucket).await?;
                Ok(None)
            }
            archive => Ok(archive),
        }
    }
}
