//! The calls to S3: the code of the function, and buckets that go.

use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{Delete, ObjectIdentifier};

use super::Cloud;
use super::answers::code;
use super::cloud::MISSES_MAX;
use super::connect::{UPLOAD_MAX, timeouts};
use crate::error::DeployError;
use crate::package::is_key;

/// How many objects of somebody else an error names.
const FOREIGN_MAX: usize = 3;

/// How many objects S3 deletes with one request.
const OBJECTS_MAX: i32 = 1_000;

/// How often a bucket that was emptied may turn out to hold something after all.
const REFILLS_MAX: u32 = 3;

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
                Err(error) if is_missing(&error) => return Ok(()),
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

    /// Removes all objects of a bucket. A bucket that is gone has none.
    pub(super) async fn empty(&self, bucket: &str) -> Result<(), DeployError> {
        self.clear(bucket, Held::Objects).await
    }

    /// Removes a bucket with everything in it. One that is gone is no error.
    pub(super) async fn remove_bucket(&self, bucket: &str) -> Result<(), DeployError> {
        let mut tries = 0;
        self.empty(bucket).await?;
        loop {
            match self.s3.delete_bucket().bucket(bucket).send().await {
                Ok(_) => return Ok(()),
                Err(error) if is_missing(&error) => return Ok(()),
                // Somebody has versioning on, or the last invocation of the function has just put
                // an object: nobody puts another one for ever.
                Err(error) if code(&error) == Some("BucketNotEmpty") && tries < REFILLS_MAX => {
                    tries += 1;
                    self.clear(bucket, Held::Versions).await?;
                }
                Err(error) => return Err(self.failed("DeleteBucket", error)),
            }
        }
    }

    /// Removes what a bucket holds, page by page, until a page is empty.
    async fn clear(&self, bucket: &str, held: Held) -> Result<(), DeployError> {
        let mut misses = 0;
        loop {
            let found = match held {
                Held::Objects => self.objects(bucket).await?,
                Held::Versions => self.versions(bucket).await?,
            };
            if found.is_empty() {
                return Ok(());
            }
            match self.remove(bucket, found).await {
                Ok(()) => misses = 0,
                // S3 was too busy for some of them: the next page has these again.
                Err(error) if error.is_passing() && misses < MISSES_MAX => {
                    misses += 1;
                    self.clock.sleep(self.pace() * misses).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The first objects of a bucket, as many as can be deleted at once.
    async fn objects(&self, bucket: &str) -> Result<Vec<ObjectIdentifier>, DeployError> {
        let page = self.s3.list_objects_v2().bucket(bucket).max_keys(OBJECTS_MAX);
        match page.send().await {
            Ok(page) => {
                let keys = page.contents.unwrap_or_default().into_iter();
                Ok(keys.filter_map(|object| identified(object.key?, None)).collect())
            }
            Err(error) if is_missing(&error) => Ok(Vec::new()),
            Err(error) => Err(self.failed("ListObjectsV2", error)),
        }
    }

    /// The same with versions that are not the latest, and the markers of what was deleted.
    async fn versions(&self, bucket: &str) -> Result<Vec<ObjectIdentifier>, DeployError> {
        let page = self.s3.list_object_versions().bucket(bucket).max_keys(OBJECTS_MAX);
        match page.send().await {
            Ok(page) => {
                let versions = page.versions.unwrap_or_default().into_iter();
                let versions = versions.filter_map(|it| identified(it.key?, it.version_id));
                let markers = page.delete_markers.unwrap_or_default().into_iter();
                let markers = markers.filter_map(|it| identified(it.key?, it.version_id));
                Ok(versions.chain(markers).collect())
            }
            Err(error) if is_missing(&error) => Ok(Vec::new()),
            Err(error) => Err(self.failed("ListObjectVersions", error)),
        }
    }

    /// Deletes these with one request; an error when one of them stays.
    async fn remove(&self, bucket: &str, found: Vec<ObjectIdentifier>) -> Result<(), DeployError> {
        const OPERATION: &str = "DeleteObjects";
        let delete = Delete::builder().set_objects(Some(found)).quiet(true).build();
        let delete = delete.map_err(|error| DeployError::Aws {
            operation: OPERATION,
            code: None,
            message: error.to_string(),
        })?;
        let deleted = match self.s3.delete_objects().bucket(bucket).delete(delete).send().await {
            Ok(deleted) => deleted,
            Err(error) if is_missing(&error) => return Ok(()),
            Err(error) => return Err(self.failed(OPERATION, error)),
        };
        // What is denied today is denied a moment later: it is told first.
        let refused = deleted.errors().iter().map(|error| {
            let text = |value: Option<&str>| value.unwrap_or_default().to_owned();
            DeployError::Aws {
                operation: OPERATION,
                code: error.code().map(str::to_owned),
                message: format!("{}: {}", text(error.key()), text(error.message())),
            }
        });
        refused.min_by_key(DeployError::is_passing).map_or(Ok(()), Err)
    }
}

/// What of a bucket is removed.
#[derive(Clone, Copy)]
enum Held {
    Objects,
    Versions,
}

fn identified(key: String, version: Option<String>) -> Option<ObjectIdentifier> {
    ObjectIdentifier::builder().key(key).set_version_id(version).build().ok()
}

/// Whether there is no such bucket.
fn is_missing<E: ProvideErrorMetadata>(error: &SdkError<E>) -> bool {
    code(error).is_some_and(|code| code.contains("NoSuchBucket"))
}
