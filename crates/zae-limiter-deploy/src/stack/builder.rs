//! Infrastructure, the namespace and a connected limiter in one call.

use std::path::PathBuf;
use std::sync::Arc;

use zae_limiter::dynamodb::sdk::{Builder, Gsi2Projection, TableOptions};
use zae_limiter::dynamodb::{DynamoStore, Operator, Retention, Versions};
use zae_limiter::{
    IntoName, NameError, NamespaceName, Principal, RateLimiter, StoreError, StoreErrorKind,
    UsageWindow,
};

use super::{Cloud, Deployment, Endpoints, Maker, Outcome, Progress, Tell};
use crate::error::DeployError;
use crate::options::{
    Architecture, ArchiveOnDelete, OptionError, ResourceIndexProjection, StackOptions,
};
use crate::package::{Bootstrap, Package};

/// The output that names the function, where there is one.
const FUNCTION_NAME: &str = "AggregatorFunctionName";

/// A stack: one table with everything around it.
#[derive(Debug)]
pub struct Stack;

impl Stack {
    /// A stack by its name, in a region. Nothing is sent before [`StackBuilder::deploy`].
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), zae_limiter_deploy::DeployError> {
    /// use zae_limiter_deploy::Stack;
    ///
    /// let limiter = Stack::builder("my-app", "eu-west-1")
    ///     .namespace("tenant-a")
    ///     .enable_alarms(false)
    ///     .deploy()
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder(stack: impl Into<String>, region: impl Into<String>) -> StackBuilder {
        let (stack, region) = (stack.into(), region.into());
        StackBuilder {
            store: DynamoStore::builder(stack.clone(), region),
            stack,
            endpoints: None,
            namespace: None,
            principal: None,
            options: StackOptions::new(),
            lambda_binary: None,
            may_lose_data: false,
            may_downgrade: false,
            leaves_stack: false,
            keeps_retention: (false, false),
            waits: true,
        }
    }
}

/// What a stack is to be, and where. Made by [`Stack::builder`].
#[derive(Clone)]
#[must_use = "nothing happens before `deploy`"]
pub struct StackBuilder {
    stack: String,
    store: Builder,
    endpoints: Option<Endpoints>,
    namespace: Option<String>,
    principal: Option<Principal>,
    options: StackOptions,
    lambda_binary: Option<PathBuf>,
    may_lose_data: bool,
    may_downgrade: bool,
    leaves_stack: bool,
    /// Of usage, and of audit events.
    keeps_retention: (bool, bool),
    waits: bool,
}

/// What deploying came to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Deployed {
    /// What became of the stack.
    pub outcome: Outcome,
    /// What the endpoint could not do: it has no CloudFormation, so there is only a table.
    pub table_only: bool,
    /// The hash of the function's code, where there is a function.
    pub code_sha256: Option<String>,
    /// The hash of the program in it.
    pub bootstrap_sha256: Option<String>,
}

/// A method for each option, as [`StackOptions`] has it.
macro_rules! options {
    ($($name:ident: $kind:ty;)*) => {$(
        #[doc = concat!("See [`StackOptions::", stringify!($name), "`].")]
        pub fn $name(mut self, $name: $kind) -> StackBuilder {
            self.options = self.options.$name($name);
            self
        }
    )*};
}

impl StackBuilder {
    options! {
        usage_retention_days: u32;
        audit_retention_days: u32;
        shards_max: u32;
        enable_folding: bool;
        resource_index_projection: ResourceIndexProjection;
        enable_aggregator: bool;
        architecture: Architecture;
        lambda_memory: u32;
        lambda_timeout: u32;
        lambda_duration_threshold_pct: u32;
        log_retention_days: u32;
        enable_tracing: bool;
        enable_deletion_protection: bool;
        contributor_insights: bool;
        enable_alarms: bool;
        enable_audit_archival: bool;
        audit_archive_glacier_days: u32;
        archive_on_delete: ArchiveOnDelete;
        create_iam: bool;
        create_iam_roles: bool;
        alarm_sns_topic: String;
        aggregator_role_arn: String;
        permission_boundary: String;
        role_name_format: String;
        policy_name_format: String;
        pitr_recovery_days: u32;
    }

    /// See [`StackOptions::snapshot_windows`].
    pub fn snapshot_windows(
        mut self,
        windows: impl IntoIterator<Item = UsageWindow>,
    ) -> StackBuilder {
        self.options = self.options.snapshot_windows(windows);
        self
    }

    /// These tags and no others.
    pub fn tags<K: Into<String>, V: Into<String>>(
        mut self,
        tags: impl IntoIterator<Item = (K, V)>,
    ) -> StackBuilder {
        self.options = self.options.tags(tags);
        self
    }

    /// One more tag.
    pub fn tag(mut self, key: impl Into<String>, value: impl Into<String>) -> StackBuilder {
        self.options = self.options.tag(key, value);
        self
    }

    /// All options at once.
    pub fn options(mut self, options: StackOptions) -> StackBuilder {
        self.options = options;
        self
    }

    /// Another endpoint than the region's own. One without CloudFormation gets the table, its
    /// version record and the namespaces only.
    pub fn endpoint_url(mut self, url: impl Into<String>) -> StackBuilder {
        self.store = self.store.endpoint_url(url);
        self
    }

    /// Endpoints for everything but the table. Without this call everything is where the table is.
    pub fn endpoints(mut self, endpoints: Endpoints) -> StackBuilder {
        self.endpoints = Some(endpoints);
        self
    }

    /// Who registers namespaces, for the audit log.
    pub fn principal(mut self, principal: Principal) -> StackBuilder {
        self.principal = Some(principal);
        self
    }

    /// The namespace to register, beside `default`, and to connect to.
    pub fn namespace(mut self, name: impl Into<String>) -> StackBuilder {
        self.namespace = Some(name.into());
        self
    }

    /// The program that becomes the function: a `zae-limiter` for Amazon Linux 2023. Without, the
    /// running program is taken, which must be `zae-limiter` itself.
    pub fn lambda_binary(mut self, path: impl Into<PathBuf>) -> StackBuilder {
        self.lambda_binary = Some(path.into());
        self
    }

    /// Tables, buckets and queues may be removed or replaced.
    pub fn allow_data_loss(mut self, allowed: bool) -> StackBuilder {
        self.may_lose_data = allowed;
        self
    }

    /// The function of a newer release may be replaced by the one of this release.
    pub fn allow_downgrade(mut self, allowed: bool) -> StackBuilder {
        self.may_downgrade = allowed;
        self
    }

    /// Whether a retention that the table has stays: that of usage, and that of audit events. It
    /// becomes that of the options otherwise.
    pub fn keep_retention(mut self, usage: bool, audit: bool) -> StackBuilder {
        self.keeps_retention = (usage, audit);
        self
    }

    /// The stack is that of Terraform, CDK or somebody else, who changes it; its table, which must
    /// be there, gets its version record, its namespaces and the retention of the options.
    pub fn leave_stack(mut self, leaves: bool) -> StackBuilder {
        self.leaves_stack = leaves;
        self
    }

    /// Whether [`StackBuilder::run`] waits for CloudFormation.
    pub fn wait(mut self, waits: bool) -> StackBuilder {
        self.waits = waits;
        self
    }

    /// The way to the table.
    pub fn store(&self) -> &Builder {
        &self.store
    }

    /// The way to CloudFormation and whatever else a stack has. Nothing is sent.
    pub async fn cloud(&self) -> Result<Cloud, DeployError> {
        Cloud::connect_at(&self.store, self.endpoints.as_ref()).await
    }

    /// Deploys the stack, registers the namespace and connects. [`RateLimiter::connect`] never
    /// provisions; this is the one call that does.
    pub async fn deploy(self) -> Result<RateLimiter, DeployError> {
        let this = self.wait(true);
        this.run(&mut |_| {}).await?;
        let store = match this.namespace.clone() {
            Some(name) => this.store.namespace(name),
            None => this.store,
        };
        Ok(RateLimiter::builder(store.connect().await?).build()?)
    }

    /// The package of the function, if the options ask for one.
    pub fn package(&self) -> Result<Option<Package>, DeployError> {
        if !self.options.has_aggregator() {
            return Ok(None);
        }
        let bootstrap = match &self.lambda_binary {
            Some(path) => Bootstrap::read(path)?,
            None => Bootstrap::own()?,
        };
        Ok(Some(bootstrap.pack(self.options.architecture)?))
    }

    /// Makes the stack what it should be, and its table ready; tells what happens meanwhile.
    pub async fn run(&self, tell: Tell<'_>) -> Result<Deployed, DeployError> {
        self.options.check(&self.stack)?;
        // A name that is refused afterwards leaves a stack without its namespace.
        if let Some(name) = &self.namespace {
            let named: Result<NamespaceName, NameError> = name.as_str().into_name();
            named.map_err(zae_limiter::Error::from)?;
        }
        let cloud = self.cloud().await?;
        check_topic(&self.options, cloud.region())?;
        let mut deployed = Deployed {
            outcome: Outcome::Unchanged,
            table_only: false,
            code_sha256: None,
            bootstrap_sha256: None,
        };
        if self.leaves_stack {
            let has_function = self.has_function(&cloud, tell).await?;
            // A table that is missing is an error, not an order to make one.
            self.store.status().await?;
            let versions = self.judged().await?;
            // Nobody could be asked about a stack of the Python package.
            if has_function.is_none() && versions.is_some_and(|it| it.lambda.is_some()) {
                return Err(self.not_ours(Maker::Python));
            }
            self.ready(has_function, tell).await?;
            deployed.outcome = Outcome::Ready;
            return Ok(deployed);
        }
        // The endpoint is asked before the program is packed: one without CloudFormation has no use
        // for a package.
        match cloud.find(&self.stack).await {
            Ok(found) => {
                let package = self.package()?;
                // A refusal that comes after the change is no refusal.
                if found.is_some() {
                    self.judged().await?;
                }
                let deployment = Deployment::new(&self.stack, &self.options, package.as_ref())?
                    .may_lose_data(self.may_lose_data)
                    .waits(self.waits);
                deployed.outcome = deployment.run(&cloud, tell).await?.0;
                if let Some(package) = package {
                    deployed.code_sha256 = Some(package.sha256);
                    deployed.bootstrap_sha256 = Some(package.bootstrap_sha256);
                }
            }
            Err(DeployError::NoCloudFormation { endpoint }) => {
                self.without_function(&endpoint).await?;
                deployed.table_only = true;
                deployed.outcome = self.table_only(tell).await?;
            }
            Err(error) => return Err(error),
        }
        if deployed.outcome == Outcome::Begun {
            return Ok(deployed);
        }
        self.ready(Some(deployed.code_sha256.is_some()), tell).await?;
        Ok(deployed)
    }

    fn not_ours(&self, maker: Maker) -> DeployError {
        let why = maker.why_not().unwrap_or_default();
        DeployError::NotOurs { stack: self.stack.clone(), why }
    }

    /// Whether the stack of somebody else has a function; `None` where nobody may or can say so.
    async fn has_function(
        &self,
        cloud: &Cloud,
        tell: Tell<'_>,
    ) -> Result<Option<bool>, DeployError> {
        match cloud.find(&self.stack).await {
            // Its function is not ours, and its version record says what Python clients may do.
            Ok(Some(state)) if state.maker() == Maker::Python => Err(self.not_ours(Maker::Python)),
            Ok(state) => Ok(Some(state.is_some_and(|state| state.output(FUNCTION_NAME).is_some()))),
            Err(DeployError::NoCloudFormation { .. }) => Ok(None),
            Err(error) if error.is_denied() => {
                tell(Progress::Doing(
                    "CloudFormation may not be asked: what the version record says of a function \
                     stays",
                ));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// What the version record says of the table; `None` without a table or a record. An error when
    /// this release must not work on the table, or when a newer function serves it.
    async fn judged(&self) -> Result<Option<Versions>, DeployError> {
        let versions = match self.store.operator().await?.versions().await {
            Ok(Some(versions)) => versions,
            Ok(None) => return Ok(None),
            Err(error) if error.kind() == StoreErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        if let Some(why) = versions.incompatibility() {
            return Err(StoreError::new(StoreErrorKind::Incompatible, "deploy", why).into());
        }
        match &versions.function {
            Some(function) if versions.is_served_by_newer() && !self.may_downgrade => {
                let (stack, function) = (self.stack.clone(), function.clone());
                Err(DeployError::Newer { stack, function })
            }
            _ => Ok(Some(versions)),
        }
    }

    /// Fails for a table that has a function: its stack is elsewhere, where CloudFormation is. What
    /// is done to the table alone would pass that stack by.
    async fn without_function(&self, endpoint: &str) -> Result<(), DeployError> {
        match self.judged().await?.and_then(|versions| versions.function) {
            Some(_) => Err(DeployError::Elsewhere {
                stack: self.stack.clone(),
                endpoint: endpoint.to_owned(),
            }),
            None => Ok(()),
        }
    }

    /// An endpoint without CloudFormation: the table is made directly.
    async fn table_only(&self, tell: Tell<'_>) -> Result<Outcome, DeployError> {
        tell(Progress::Doing("making the table"));
        let gsi2 = match self.options.resource_index_projection {
            ResourceIndexProjection::All => Gsi2Projection::All,
            ResourceIndexProjection::KeysOnly => Gsi2Projection::KeysOnly,
        };
        let is_there = match self.store.status().await {
            Ok(status) => status.schema_version.is_some(),
            Err(error) if error.kind() == StoreErrorKind::NotFound => false,
            Err(error) => return Err(error.into()),
        };
        // Nobody protects a table that is made for tests, and indexes stay as they are.
        let ignored = [
            (self.options.enable_deletion_protection == Some(true), "enable_deletion_protection"),
            (is_there && gsi2 == Gsi2Projection::All, "resource_index_projection"),
        ];
        for (_, option) in ignored.into_iter().filter(|(is_ignored, _)| *is_ignored) {
            tell(Progress::Doing(&format!("{option} has no effect: there is no CloudFormation")));
        }
        let options = TableOptions::new().gsi2(gsi2);
        self.store.clone().table_options(options).create().await?;
        Ok(if is_there { Outcome::Unchanged } else { Outcome::Created })
    }

    /// Version record, namespaces and retention.
    async fn ready(&self, has_function: Option<bool>, tell: Tell<'_>) -> Result<(), DeployError> {
        tell(Progress::Doing("making the table ready"));
        let table: Arc<dyn zae_limiter_dynamodb::stream::Table> =
            Arc::new(self.store.table().await?);
        let options = self.store.options();
        let operator = Operator::on_table(Arc::clone(&table), options.clone());
        let before = operator.versions().await?.map(|versions| versions.retention);
        DynamoStore::initialise(&table, options).await?;
        let before = before.unwrap_or_default();
        let (keeps_usage, keeps_audit) = self.keeps_retention;
        let kept = |days: u32, was: Option<u32>, keeps: bool| was.filter(|_| keeps).or(Some(days));
        let options = &self.options;
        let retention = Retention {
            usage_days: kept(options.usage_retention_days, before.usage_days, keeps_usage),
            audit_days: kept(options.audit_retention_days, before.audit_days, keeps_audit),
        };
        // It may have been set since, by `system set-retention`.
        for (what, days, was) in [
            ("usage is", retention.usage_days, before.usage_days),
            ("audit events are", retention.audit_days, before.audit_days),
        ] {
            if let (Some(days), Some(was)) = (days, was)
                && days != was
            {
                let said = format!("{what} kept for {days} days from now on, no longer {was}");
                tell(Progress::Doing(&said));
            }
        }
        operator.set_retention(retention).await?;
        if let Some(has_function) = has_function {
            operator.stamp_function(has_function.then_some(env!("CARGO_PKG_VERSION"))).await?;
        }
        if self.options.shards_max > 1 {
            operator.require_shard_readers().await?;
        }
        let Some(namespace) = &self.namespace else { return Ok(()) };
        let mut registry = RateLimiter::builder(self.store.clone().connect_registry().await?);
        if let Some(principal) = &self.principal {
            registry = registry.principal(principal.clone());
        }
        registry.build()?.register_namespace(namespace.as_str()).await?;
        Ok(())
    }
}

/// Alarms are sent to topics of their own region only.
fn check_topic(options: &StackOptions, region: &str) -> Result<(), OptionError> {
    let Some(topic) = &options.alarm_sns_topic else { return Ok(()) };
    match topic.split(':').nth(3) {
        Some(of) if of != region => {
            let problem = format!("is in {of}, and the stack in {region}; use a topic of {region}");
            Err(OptionError::new("alarm_sns_topic", topic, problem))
        }
        _ => Ok(()),
    }
}
