//! The calls to S3: the code of the function, and buckets that go.

use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{Delete, ObjectIdentifier};

use super::Cloud;
use super::answers::code;
use super::connect::{UPLOAD_MAX, timeouts};
use crate::error::DeployError;
use crate::package::is_key;

/// How many objects of somebody else an error names.
const FOREIGN_MAX: usize = 3;

/// How many objects S3 deletes with one request.
const OBJECTS_MAX: i32 = 1_000;

impl Cloud {
    /// Puts an object where none of its name is. True when it was sent.
    pub(super) async fn upload(
        &self,
        bucket: &str,
        key: &str,
        bytes: &[u8],
    ) -> Result<bool, DeployError> {
        // The key is the hash of the content: what is there is the same.
        if self.s3.head_object().bucket(bucket).key(key).send().await.is_ok() {
            return Ok(false);
        }
        let body = ByteStream::from(bytes.to_vec());
        let slowly = aws_sdk_s3::config::Builder::new().timeout_config(timeouts(UPLOAD_MAX));
        let request = self.s3.put_object().bucket(bucket).key(key).body(body);
        let sent = request.customize().config_override(slowly).send().await;
        sent.map_err(|error| self.failed("PutObject", error))?;
        Ok(true)
    }

    /// Fails when a bucket for code holds anything that is not the code of a function: whoever put
    /// it there may want to keep it. A bucket that is gone holds nothing.
    pub(super) async fn holds_code_only(&self, bucket: &str) -> Result<(), DeployError> {
        let (mut foreign, mut next) = (Vec::new(), None);
        loop {
            let page = self.s3.list_objects_v2().bucket(bucket).max_keys(OBJECTS_MAX);
            let page = match page.set_continuation_token(next).send().await {
                Ok(page) => page,
                Err(error) if code(&error).is_some_and(|code| code.contains("NoSuchBucket")) => {
                    return Ok(());
                }
                Err(error) => return Err(self.failed("ListObjectsV2", error)),
            };
            let keys = page.contents.unwrap_or_default().into_iter();
            foreign.extend(keys.filter_map(|object| object.key).filter(|key| !is_key(key)));
            next = page.next_continuation_token;
            if next.is_none() || foreign.len() >= FOREIGN_MAX {
                break;
            }
        }
        foreign.truncate(FOREIGN_MAX);
        match foreign.is_empty() {
            true => Ok(()),
            false => Err(DeployError::Foreign { bucket: bucket.to_owned(), keys: foreign }),
        }
    }

    /// Removes all objects of a bucket; how many there were. A bucket that is gone has none.
    pub(super) async fn empty(&self, bucket: &str) -> Result<usize, DeployError> {
        let mut removed = 0;
        loop {
            let page = self.s3.list_objects_v2().bucket(bucket).max_keys(OBJECTS_MAX).send().await;
            let page = match page {
                Ok(page) => page,
                Err(error) if code(&error).is_some_and(|code| code.contains("NoSuchBucket")) => {
                    return Ok(removed);
                }
                Err(error) => return Err(self.failed("ListObjectsV2", error)),
            };
            let keys: Vec<ObjectIdentifier> = (page.contents.unwrap_or_default().into_iter())
                .filter_map(|object| ObjectIdentifier::builder().key(object.key?).build().ok())
                .collect();
            if keys.is_empty() {
                return Ok(removed);
            }
            let found = keys.len();
            let delete = Delete::builder().set_objects(Some(keys)).quiet(true).build();
            let delete = delete.map_err(|error| DeployError::Aws {
                operation: "DeleteObjects",
                code: None,
                message: error.to_string(),
            })?;
            let deleted = self.s3.delete_objects().bucket(bucket).delete(delete).send().await;
            let deleted = deleted.map_err(|error| self.failed("DeleteObjects", error))?;
            if let Some(error) = deleted.errors().first() {
                let text = |value: Option<&str>| value.unwrap_or_default().to_owned();
                return Err(DeployError::Aws {
                    operation: "DeleteObjects",
                    code: error.code().map(str::to_owned),
                    message: format!("{}: {}", text(error.key()), text(error.message())),
                });
            }
            removed += found;
        }
    }

    /// Removes an empty bucket. One that is gone is no error.
    pub(super) async fn remove_bucket(&self, bucket: &str) -> Result<(), DeployError> {
        match self.s3.delete_bucket().bucket(bucket).send().await {
            Ok(_) => Ok(()),
            Err(error) if code(&error).is_some_and(|code| code.contains("NoSuchBucket")) => Ok(()),
            Err(error) => Err(self.failed("DeleteBucket", error)),
        }
    }
}
