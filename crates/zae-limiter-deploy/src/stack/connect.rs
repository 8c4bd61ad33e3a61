//! The ways to CloudFormation, S3, Lambda and CloudWatch: where they are, and how long they may
//! take.

use std::sync::Arc;
use std::time::Duration;

use aws_sdk_cloudformation::config::timeout::TimeoutConfig;
use zae_limiter::dynamodb::sdk::Builder;

use super::Cloud;
use super::metrics::Metrics;
use crate::error::DeployError;

/// How long a connection may take.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// How long one request may take, and the same request with its retries.
const CALL_MAX: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(30));

/// The same for the zip of a function, from behind a slow line.
pub(super) const UPLOAD_MAX: (Duration, Duration) =
    (Duration::from_secs(600), Duration::from_secs(1_200));

/// Where services are, when not at the region's own endpoints. A service without an endpoint of its
/// own is at that of all; the table is where its builder says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endpoints {
    /// Of all services that have none of their own.
    pub all: Option<String>,
    /// Of CloudFormation.
    pub cloudformation: Option<String>,
    /// Of S3.
    pub s3: Option<String>,
    /// Of Lambda.
    pub lambda: Option<String>,
    /// Of CloudWatch.
    pub cloudwatch: Option<String>,
}

impl Cloud {
    /// By the region, the endpoint and the credentials of the builder: everything is where the
    /// table is. Nothing is sent.
    pub async fn connect(builder: &Builder) -> Result<Cloud, DeployError> {
        Cloud::connect_at(builder, None).await
    }

    /// The same with endpoints that are not the table's.
    pub async fn connect_at(
        builder: &Builder,
        endpoints: Option<&Endpoints>,
    ) -> Result<Cloud, DeployError> {
        let all = match endpoints {
            Some(endpoints) => builder.client_config_at(endpoints.all.as_deref()).await?,
            None => builder.client_config().await?,
        };
        let none = Endpoints::default();
        let endpoints = endpoints.unwrap_or(&none);
        let own = async |url: &Option<String>| match url.as_deref() {
            Some(url) if Some(url) != all.endpoint_url() => {
                builder.client_config_at(Some(url)).await
            }
            _ => Ok(all.clone()),
        };
        let cfn = own(&endpoints.cloudformation).await?;
        let endpoint = cfn.endpoint_url().map(str::to_owned);
        let cfn =
            aws_sdk_cloudformation::config::Builder::from(&cfn).timeout_config(timeouts(CALL_MAX));
        let s3 = own(&endpoints.s3).await?;
        // An endpoint that is given has one host name for all buckets.
        let s3 = aws_sdk_s3::config::Builder::from(&s3)
            .force_path_style(s3.endpoint_url().is_some())
            .timeout_config(timeouts(CALL_MAX));
        // An invocation is asked for once: the second one would be another load.
        let lambda = aws_sdk_lambda::config::Builder::from(&own(&endpoints.lambda).await?)
            .retry_config(aws_sdk_lambda::config::retry::RetryConfig::disabled())
            .timeout_config(timeouts(CALL_MAX));
        let watched = own(&endpoints.cloudwatch).await?;
        let region = all.region().map(ToString::to_string).unwrap_or_default();
        Ok(Cloud {
            metrics: Metrics {
                region: region.clone(),
                endpoint: watched.endpoint_url().map(str::to_owned),
                credentials: watched.credentials_provider(),
            },
            cfn: aws_sdk_cloudformation::Client::from_conf(cfn.build()),
            s3: aws_sdk_s3::Client::from_conf(s3.build()),
            lambda: aws_sdk_lambda::Client::from_conf(lambda.build()),
            clock: Arc::clone(&builder.options().clock),
            region,
            endpoint,
        })
    }
}

/// For one attempt, and for all attempts of a call.
pub(super) fn timeouts((attempt, call): (Duration, Duration)) -> TimeoutConfig {
    TimeoutConfig::builder()
        .connect_timeout(CONNECT_MAX)
        .operation_attempt_timeout(attempt)
        .operation_timeout(call)
        .build()
}

#[cfg(test)]
mod tests {
    use super::*;
    use zae_limiter::dynamodb::DynamoStore;

    /// An endpoint that accepts and never answers is given up.
    #[tokio::test]
    async fn every_way_has_an_end() {
        let builder =
            DynamoStore::builder("my-app", "eu-west-1").endpoint_url("http://127.0.0.1:9");
        let cloud = Cloud::connect(&builder).await.expect("nothing is sent");
        let of = [
            cloud.cfn.config().timeout_config(),
            cloud.s3.config().timeout_config(),
            cloud.lambda.config().timeout_config(),
        ];
        for timeouts in of {
            let timeouts = timeouts.expect("time-outs");
            assert!(timeouts.connect_timeout().is_some(), "{timeouts:?}");
            assert!(timeouts.operation_attempt_timeout().is_some(), "{timeouts:?}");
            assert!(timeouts.operation_timeout().is_some(), "{timeouts:?}");
        }
    }

    /// A variable that names another DynamoDB does not say where CloudFormation is.
    #[tokio::test]
    async fn each_service_is_where_it_was_named() {
        let builder =
            DynamoStore::builder("my-app", "eu-west-1").endpoint_url("http://127.0.0.1:9");
        let url = |port: u16| Some(format!("http://127.0.0.1:{port}"));
        let endpoints = Endpoints { s3: url(8), all: url(7), ..Endpoints::default() };
        let cloud = Cloud::connect_at(&builder, Some(&endpoints)).await.expect("nothing is sent");
        assert_eq!((cloud.endpoint, cloud.metrics.endpoint), (url(7), url(7)));
        let own = Endpoints { cloudformation: url(6), ..Endpoints::default() };
        let cloud = Cloud::connect_at(&builder, Some(&own)).await.expect("nothing is sent");
        assert_eq!((cloud.endpoint, cloud.metrics.endpoint), (url(6), None));
        let cloud = Cloud::connect(&builder).await.expect("nothing is sent");
        assert_eq!(cloud.endpoint, url(9), "everything is where the table is");
    }
}
