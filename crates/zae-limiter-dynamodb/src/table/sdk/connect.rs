//! Reaching a table: address, credentials, connections, timeouts.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use aws_config::environment::EnvironmentVariableCredentialsProvider;
use aws_config::meta::credentials::CredentialsProviderChain;
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_credential_types::Credentials;
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider};
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::retry::RetryConfig;
use aws_sdk_dynamodb::config::timeout::TimeoutConfig;
use aws_sdk_dynamodb::config::{IdentityCache, SharedHttpClient, StalledStreamProtectionConfig};
use aws_smithy_http_client::tls;
use zae_limiter_core::NamespaceName;
use zae_limiter_store::{Clock, DEFAULT_NAMESPACE, Entropy, StoreError, StoreErrorKind};

use super::create::{TableOptions, create_table};
use super::credentials::{RENEW_AHEAD, Steady};
use super::skew::SkewWatch;
use super::{Observer, SdkTable, address};
use crate::constants::{ADMIN_ATTEMPT_TIMEOUT, ATTEMPT_TIMEOUT, CONNECT_TIMEOUT};
use crate::table::Table;
use crate::table::clock::{DateWatch, whole_ms};
use crate::{CascadeWrites, DynamoOptions, DynamoStore};

/// Connections kept open while idle. As many as calls are in flight are opened; more than this many
/// are not kept.
const IDLE_CONNECTIONS_MAX: usize = 256;

/// An idle connection is closed after this long, before DynamoDB or a firewall on the way does it
/// without saying so.
const IDLE_CONNECTION_MAX_AGE: Duration = Duration::from_secs(50);

impl DynamoStore {
    /// Reaches the table of a stack. Nothing is sent before [`Builder::connect`].
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), zae_limiter_store::StoreError> {
    /// use zae_limiter_dynamodb::DynamoStore;
    ///
    /// let builder = DynamoStore::builder("my-stack", "eu-west-1").namespace("tenant-a");
    /// let store = builder.connect().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder(stack: impl Into<String>, region: impl Into<String>) -> Builder {
        Builder {
            stack: stack.into(),
            region: region.into(),
            endpoint_url: None,
            namespace: DEFAULT_NAMESPACE.to_owned(),
            credentials: None,
            connect_timeout: CONNECT_TIMEOUT,
            attempt_timeout: ATTEMPT_TIMEOUT,
            trust_local_clock: false,
            observer: None,
            table_options: TableOptions::new(),
            options: DynamoOptions::new(),
        }
    }
}

/// How to reach a table and how to work on it. Made by [`DynamoStore::builder`].
#[derive(Clone)]
#[must_use = "nothing happens before `connect`, `create` or `table`"]
pub struct Builder {
    stack: String,
    region: String,
    endpoint_url: Option<String>,
    namespace: String,
    credentials: Option<SharedCredentialsProvider>,
    connect_timeout: Duration,
    attempt_timeout: Duration,
    trust_local_clock: bool,
    observer: Option<Arc<dyn Observer>>,
    table_options: TableOptions,
    options: DynamoOptions,
}

/// An access key given in code. For tests and tools; a service has its credentials from its
/// environment.
#[derive(Clone)]
pub struct StaticCredentials {
    /// The access key id.
    pub access_key_id: String,
    /// The secret access key.
    pub secret_access_key: String,
    /// The session token of temporary credentials.
    pub session_token: Option<String>,
}

impl Builder {
    /// Another endpoint than the region's own, such as `http://localhost:8000`. On this machine's
    /// loopback no credentials are needed: without any in the environment, made-up ones are sent.
    pub fn endpoint_url(mut self, url: impl Into<String>) -> Builder {
        self.endpoint_url = Some(url.into());
        self
    }

    /// The namespace to work in; `default` when not said.
    pub fn namespace(mut self, name: impl Into<String>) -> Builder {
        self.namespace = name.into();
        self
    }

    /// See [`DynamoOptions::speculative`].
    pub fn speculative(mut self, speculative: bool) -> Builder {
        self.options.speculative = speculative;
        self
    }

    /// See [`DynamoOptions::cascade_writes`].
    pub fn cascade_writes(mut self, writes: CascadeWrites) -> Builder {
        self.options.cascade_writes = writes;
        self
    }

    /// See [`DynamoOptions::shards_max`]; 1 while processes of a version before shards run.
    pub fn shards_max(mut self, shards: u32) -> Builder {
        self.options.shards_max = shards;
        self
    }

    /// How long connecting, and one request of a take, may take. Administration gets
    /// [`ADMIN_ATTEMPT_TIMEOUT`] or `attempt`, whichever is longer, and so does the first request
    /// of all.
    ///
    /// A request that meets its timeout while it still connects counts as one that may have been
    /// applied; keep `connect` below `attempt` where that matters more than slow networks do.
    pub fn timeouts(mut self, connect: Duration, attempt: Duration) -> Builder {
        self.connect_timeout = connect;
        self.attempt_timeout = attempt;
        self.options.write_age_max = attempt.saturating_mul(2);
        self
    }

    /// How old an image of a bucket may be to refuse without asking the table; `None` always asks.
    pub fn rejection_cache(mut self, ttl: Option<Duration>) -> Builder {
        self.options.rejection_cache_ttl_ms = ttl.map_or(0, whole_ms);
        self
    }

    /// See [`crate::constants::FAST_GRACE_MS`]; zero is exact.
    pub fn fast_grace(mut self, grace: Duration) -> Builder {
        self.options.fast_grace_ms = whole_ms(grace);
        self
    }

    /// Where time comes from.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Builder {
        self.options.clock = clock;
        self
    }

    /// Where nonces, tokens and jitter come from.
    pub fn entropy(mut self, entropy: Arc<dyn Entropy>) -> Builder {
        self.options.entropy = entropy;
        self
    }

    /// Leaves the clock alone: it is not compared with the table's. For tests whose clock is their
    /// own.
    pub fn trust_local_clock(mut self) -> Builder {
        self.trust_local_clock = true;
        self
    }

    /// An access key, instead of the credentials of the environment.
    pub fn credentials(mut self, credentials: StaticCredentials) -> Builder {
        self.credentials = Some(SharedCredentialsProvider::new(credentials.to_credentials()));
        self
    }

    /// A provider of credentials, instead of the one of the environment.
    pub fn credentials_provider(mut self, provider: impl ProvideCredentials + 'static) -> Builder {
        self.credentials = Some(SharedCredentialsProvider::new(provider));
        self
    }

    /// Told about every call and what it cost.
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Builder {
        self.observer = Some(observer);
        self
    }

    /// What [`Builder::create`] makes.
    pub fn table_options(mut self, options: TableOptions) -> Builder {
        self.table_options = options;
        self
    }

    /// The table itself, for tools. Sends nothing to the table; credentials are looked for when the
    /// first request is sent.
    ///
    /// `Invalid` for a stack, region or endpoint that cannot be right.
    pub async fn table(&self) -> Result<SdkTable, StoreError> {
        address::stack(&self.stack)?;
        address::region(&self.region)?;
        let endpoint = self.endpoint_url.as_deref().map(address::endpoint).transpose()?;
        if self.connect_timeout.is_zero() || self.attempt_timeout.is_zero() {
            let message =
                "timeouts: a timeout of zero lets nothing through; give at least some milliseconds";
            return Err(StoreError::new(StoreErrorKind::Invalid, "connect", message));
        }
        let loopback = endpoint.as_ref().is_some_and(|endpoint| endpoint.loopback);
        let http = http_client(loopback && !endpoint.is_some_and(|endpoint| endpoint.tls));
        let config = self.sdk_config(http, loopback, self.endpoint_url.as_deref()).await;
        let skew = (!self.trust_local_clock)
            .then(|| SkewWatch(DateWatch::new(Arc::clone(&self.options.clock))));
        let client = |attempt: Duration, skew: Option<&SkewWatch>| {
            // One timer per request. A request is one attempt, so an operation and its attempt are
            // the same time, and what is read is read within it. The same for both clients: the SDK
            // keeps one pool of connections per connect and read timeout.
            let timeouts = TimeoutConfig::builder()
                .connect_timeout(self.connect_timeout)
                .operation_attempt_timeout(attempt)
                .build();
            let mut builder = aws_sdk_dynamodb::config::Builder::from(&config)
                .timeout_config(timeouts)
                .retry_config(RetryConfig::disabled())
                // Requests and answers are small, and the timeouts above bound both.
                .stalled_stream_protection(StalledStreamProtectionConfig::disabled());
            if let Some(skew) = skew {
                builder = builder.interceptor(skew.clone());
            }
            Client::from_conf(builder.build())
        };
        Ok(SdkTable {
            name: Arc::from(self.stack.as_str()),
            // Watches on request, see `update`: an interceptor costs every request some
            // microseconds.
            hot: client(self.attempt_timeout, None),
            patient: client(self.patience(), skew.as_ref()),
            answered: Arc::new(AtomicBool::new(false)),
            skew,
            observer: self.observer.clone(),
        })
    }

    /// How other clients of AWS reach the same place: region, endpoint, credentials, connections.
    /// For the streams of the table and for the archive.
    #[cfg(feature = "stream")]
    #[doc(hidden)]
    pub async fn client_config(&self) -> Result<SdkConfig, StoreError> {
        self.client_config_at(self.endpoint_url.as_deref()).await
    }

    /// The same for clients that have another endpoint than the table, or the region's own.
    #[cfg(feature = "stream")]
    #[doc(hidden)]
    pub async fn client_config_at(&self, url: Option<&str>) -> Result<SdkConfig, StoreError> {
        address::region(&self.region)?;
        let endpoint = url.map(address::endpoint).transpose()?;
        let loopback = endpoint.as_ref().is_some_and(|endpoint| endpoint.loopback);
        let http = http_client(loopback && !endpoint.is_some_and(|endpoint| endpoint.tls));
        Ok(self.sdk_config(http, loopback, url).await)
    }

    /// Connects to a table that exists. See [`DynamoStore::on_table`] for how it can fail.
    ///
    /// Cost: one `BatchGetItem`, and whatever it takes to get credentials.
    pub async fn connect(self) -> Result<DynamoStore, StoreError> {
        let namespace = self.namespace_name()?;
        let table = self.table().await?;
        DynamoStore::on_table(Arc::new(table), self.options, &namespace).await
    }

    /// Connects for the registry of namespaces only, which needs none to exist.
    pub async fn connect_registry(self) -> Result<DynamoStore, StoreError> {
        let table = self.table().await?;
        DynamoStore::registry_on(Arc::new(table), self.options).await
    }

    /// Makes the table, its version record and the namespace `default` where they are missing, then
    /// connects; any other namespace has to be registered before it can be connected to. For
    /// engines without CloudFormation and for tests: a production table is deployed.
    pub async fn create(self) -> Result<DynamoStore, StoreError> {
        let namespace = self.namespace_name()?;
        let table = self.table().await?;
        create_table(&table, &self.table_options, &*self.options.clock).await?;
        let table: Arc<dyn Table> = Arc::new(table);
        DynamoStore::initialise(&table, &self.options).await?;
        DynamoStore::on_table(table, self.options, &namespace).await
    }

    /// For an operator: the table as a whole, whether this release may open it or not. Sends
    /// nothing.
    pub async fn operator(&self) -> Result<crate::Operator, StoreError> {
        let table = self.table().await?;
        Ok(crate::Operator::on_table(Arc::new(table), self.options.clone()))
    }

    /// How the store will work on its table.
    #[must_use]
    pub fn options(&self) -> &DynamoOptions {
        &self.options
    }

    /// Changes options that have no method of their own here.
    pub fn with_options(mut self, change: impl FnOnce(&mut DynamoOptions)) -> Builder {
        change(&mut self.options);
        self
    }

    fn namespace_name(&self) -> Result<NamespaceName, StoreError> {
        self.namespace.parse().map_err(|error: zae_limiter_core::NameError| {
            StoreError::new(StoreErrorKind::Invalid, "connect", error.to_string())
                .with_source(error)
        })
    }

    fn patience(&self) -> Duration {
        self.attempt_timeout.max(ADMIN_ATTEMPT_TIMEOUT)
    }

    async fn sdk_config(
        &self,
        http: SharedHttpClient,
        loopback: bool,
        endpoint_url: Option<&str>,
    ) -> SdkConfig {
        let region = Region::new(self.region.clone());
        // Both clients share what was once found.
        let identities = IdentityCache::lazy().buffer_time(RENEW_AHEAD).build();
        let steady = |provider| {
            SharedCredentialsProvider::new(Steady::new(provider, Arc::clone(&self.options.clock)))
        };
        let known = match &self.credentials {
            Some(given) => Some(given.clone()),
            None if loopback => {
                let made_up = Credentials::new("local", "local", None, None, "local engine");
                let chain = CredentialsProviderChain::first_try(
                    "Environment",
                    EnvironmentVariableCredentialsProvider::new(),
                );
                Some(SharedCredentialsProvider::new(chain.or_else("Local", made_up)))
            }
            None => None,
        };
        match known {
            // Nothing to look for: profiles and the like are not even read.
            Some(credentials) => {
                let mut builder = SdkConfig::builder()
                    .behavior_version(BehaviorVersion::latest())
                    .region(region)
                    .http_client(http)
                    .identity_cache(identities)
                    .credentials_provider(steady(credentials));
                builder.set_endpoint_url(endpoint_url.map(str::to_owned));
                builder.build()
            }
            None => {
                let mut loader = aws_config::defaults(BehaviorVersion::latest())
                    .region(region)
                    .http_client(http)
                    .identity_cache(identities);
                if let Some(url) = endpoint_url {
                    loader = loader.endpoint_url(url);
                }
                let config = loader.load().await;
                let Some(found) = config.credentials_provider() else { return config };
                config.into_builder().credentials_provider(steady(found)).build()
            }
        }
    }
}

/// One pool of connections. HTTP/1.1, so a connection per call in flight; their number is not
/// limited, only how many are kept.
fn http_client(plain: bool) -> SharedHttpClient {
    let builder = aws_smithy_http_client::Builder::new()
        .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
        .pool_idle_timeout(IDLE_CONNECTION_MAX_AGE);
    if plain {
        // A local engine needs no certificates, and reading the system's takes longer than all its
        // answers.
        return builder.build_http();
    }
    builder
        .tls_provider(tls::Provider::Rustls(tls::rustls_provider::CryptoMode::Ring))
        .build_https()
}

impl StaticCredentials {
    fn to_credentials(&self) -> Credentials {
        Credentials::new(
            self.access_key_id.clone(),
            self.secret_access_key.clone(),
            self.session_token.clone(),
            None,
            "given in code",
        )
    }
}

impl fmt::Debug for StaticCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StaticCredentials").finish_non_exhaustive()
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("stack", &self.stack)
            .field("region", &self.region)
            .field("namespace", &self.namespace)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
