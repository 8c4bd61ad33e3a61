//! The archive in S3.

use std::fmt;

use aws_sdk_s3::Client;
use aws_sdk_s3::config::Builder;
use aws_sdk_s3::error::DisplayErrorContext;
use aws_sdk_s3::primitives::ByteStream;
use zae_limiter_dynamodb::stream::SdkConfig;
use zae_limiter_store::BoxFuture;

use crate::archive::{Archive, ArchiveError, Object};

/// An archive in a bucket of S3.
#[derive(Clone)]
pub struct S3Archive {
    client: Client,
    bucket: String,
}

impl S3Archive {
    /// An archive in `bucket`, reached like the table (`Builder::client_config`). `endpoint_url` is
    /// that of an engine that speaks the language of S3; the region's own when it is not given.
    #[must_use]
    pub fn new(
        config: SdkConfig,
        bucket: impl Into<String>,
        endpoint_url: Option<&str>,
    ) -> S3Archive {
        // The endpoint of the configuration is the table's.
        let mut own = config.into_builder();
        own.set_endpoint_url(endpoint_url.map(str::to_owned));
        // An engine on this machine knows its buckets by path, not by name of host.
        let client = Builder::from(&own.build()).force_path_style(endpoint_url.is_some());
        S3Archive { client: Client::from_conf(client.build()), bucket: bucket.into() }
    }
}

impl Archive for S3Archive {
    fn put<'a>(&'a self, object: &'a Object) -> BoxFuture<'a, Result<(), ArchiveError>> {
        Box::pin(async move {
            let put = self.client.put_object().bucket(&self.bucket).key(&object.name);
            let put = put
                .content_type(object.content_type)
                .set_content_encoding(object.content_encoding.map(str::to_owned))
                .body(ByteStream::from(object.bytes.clone()));
            put.send().await.map(drop).map_err(|error| ArchiveError {
                name: object.name.clone(),
                why: DisplayErrorContext(error).to_string(),
            })
        })
    }
}

impl fmt::Debug for S3Archive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("S3Archive").field("bucket", &self.bucket).finish_non_exhaustive()
    }
}
