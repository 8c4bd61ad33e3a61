//! What a stack can be asked to be, checked before anything is sent.

use std::collections::BTreeMap;
use std::fmt;

use zae_limiter_core::UsageWindow;
use zae_limiter_dynamodb::stream::{SHARD_COUNTS, SHARDS_MAX, is_shard_count};

use crate::naming::{PolicyName, RoleName, check_format};

mod checks;

use checks::{bool_text, check_arn, check_range, check_tags, shown};

/// How long CloudWatch can keep logs, in days.
pub const LOG_RETENTION_DAYS: [u32; 22] = [
    1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922,
    3288, 3653,
];

/// What the name of the function ends with, after that of the stack.
const FUNCTION_SUFFIX: &str = "-aggregator";

/// The longest name of a function.
const FUNCTION_CHARS_MAX: usize = 64;

/// The longest name of a stack that has a function.
const STACK_CHARS_MAX: usize = FUNCTION_CHARS_MAX - FUNCTION_SUFFIX.len();

/// The parameter of the template that names the zip of the function in the code bucket. It is empty
/// in the first step of a deployment; [`StackOptions::parameters`] leaves it out.
pub const LAMBDA_CODE_KEY: &str = "LambdaCodeKey";

/// Tags a caller may add: CloudFormation takes 50, the stack has 6 of its own, and a resource of the
/// template at most one.
pub const TAGS_MAX: usize = 43;

/// An option that cannot be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} {value}: {problem}")]
#[non_exhaustive]
pub struct OptionError {
    /// The option, by the name of its method.
    pub field: &'static str,
    /// What was given, quoted and cut.
    pub value: String,
    /// What is wrong, and what would be right.
    pub problem: String,
}

impl OptionError {
    /// Something is wrong with the value of an option.
    pub fn new(
        field: &'static str,
        value: &(impl fmt::Display + ?Sized),
        problem: impl Into<String>,
    ) -> OptionError {
        OptionError { field, value: shown(&value.to_string()), problem: problem.into() }
    }
}

/// The processor of the function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Architecture {
    /// Intel and AMD.
    #[default]
    X86_64,
    /// AWS Graviton.
    Arm64,
}

impl Architecture {
    /// The word of Lambda.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Architecture::X86_64 => "x86_64",
            Architecture::Arm64 => "arm64",
        }
    }
}

/// What the index by resource (GSI2) keeps. Cannot be changed once the table is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResourceIndexProjection {
    /// Only keys: a take costs one write unit.
    #[default]
    KeysOnly,
    /// Everything, for fleets with readers of the Python package: every take also writes the index.
    All,
}

impl ResourceIndexProjection {
    /// The word of DynamoDB.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            ResourceIndexProjection::KeysOnly => "KEYS_ONLY",
            ResourceIndexProjection::All => "ALL",
        }
    }
}

/// What becomes of archived audit events when the stack is deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ArchiveOnDelete {
    /// The bucket stays, with everything in it.
    #[default]
    Retain,
    /// The bucket is emptied and removed.
    Empty,
}

impl ArchiveOnDelete {
    /// The word of the template.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            ArchiveOnDelete::Retain => "retain",
            ArchiveOnDelete::Empty => "empty",
        }
    }
}

/// Every option of a stack. The methods take the names of the Python package's `StackOptions` where
/// that has the option.
///
/// ```
/// use zae_limiter_deploy::StackOptions;
///
/// let options = StackOptions::new().lambda_memory(512).enable_alarms(false);
/// let parameters = options.parameters("my-app")?;
/// assert_eq!(parameters["LambdaMemorySize"], "512");
/// let error = StackOptions::new().lambda_memory(64).parameters("my-app").unwrap_err();
/// assert_eq!(error.to_string(), "lambda_memory \"64\": use 128 to 3008 MB");
/// # Ok::<(), zae_limiter_deploy::OptionError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StackOptions {
    /// Windows that usage is counted by.
    pub snapshot_windows: Vec<UsageWindow>,
    /// Usage is kept for this many days.
    pub usage_retention_days: u32,
    /// Audit events are kept for this many days. Stored in the table, not in the template.
    pub audit_retention_days: u32,
    /// Shards that upkeep splits a bucket into.
    pub shards_max: u32,
    /// Whether shards of quiet buckets are folded.
    pub enable_folding: bool,
    /// What GSI2 keeps.
    pub resource_index_projection: ResourceIndexProjection,
    /// Whether a function counts usage.
    pub enable_aggregator: bool,
    /// The processor of the function.
    pub architecture: Architecture,
    /// Memory of the function in MB.
    pub lambda_memory: u32,
    /// Seconds until the function is stopped.
    pub lambda_timeout: u32,
    /// The alarm on the duration rings at so many percent of the time-out.
    pub lambda_duration_threshold_pct: u32,
    /// Days that logs are kept.
    pub log_retention_days: u32,
    /// Whether X-Ray traces the function.
    pub enable_tracing: bool,
    /// Days that point-in-time recovery reaches back; 35 when nothing is said.
    pub pitr_recovery_days: Option<u32>,
    /// Whether the table refuses to be deleted. When nothing is said it does not, and a stack whose
    /// table does is not changed.
    pub enable_deletion_protection: Option<bool>,
    /// Whether Contributor Insights shows the hottest keys.
    pub contributor_insights: bool,
    /// Whether alarms are made.
    pub enable_alarms: bool,
    /// The SNS topic that alarms are sent to.
    pub alarm_sns_topic: Option<String>,
    /// Whether audit events that expire are archived.
    pub enable_audit_archival: bool,
    /// Days until archived events move to Glacier Instant Retrieval.
    pub audit_archive_glacier_days: u32,
    /// What becomes of the archive when the stack is deleted.
    pub archive_on_delete: ArchiveOnDelete,
    /// Whether policies and roles are made.
    pub create_iam: bool,
    /// Whether roles for applications, administrators and readers are made.
    pub create_iam_roles: bool,
    /// A role of the caller's for the function.
    pub aggregator_role_arn: Option<String>,
    /// The permission boundary of all roles: an ARN, or the name of a policy of the account.
    pub permission_boundary: Option<String>,
    /// The form of the names of roles; `{}` stands for `STACK-COMPONENT`.
    pub role_name_format: Option<String>,
    /// The form of the names of policies.
    pub policy_name_format: Option<String>,
    /// Tags of the stack and all its resources, beside its own.
    pub tags: BTreeMap<String, String>,
}

impl Default for StackOptions {
    fn default() -> StackOptions {
        StackOptions {
            snapshot_windows: vec![UsageWindow::Hourly, UsageWindow::Daily],
            usage_retention_days: 90,
            audit_retention_days: 90,
            shards_max: SHARDS_MAX,
            enable_folding: true,
            resource_index_projection: ResourceIndexProjection::default(),
            enable_aggregator: true,
            architecture: Architecture::default(),
            lambda_memory: 256,
            lambda_timeout: 60,
            lambda_duration_threshold_pct: 80,
            log_retention_days: 30,
            enable_tracing: false,
            pitr_recovery_days: None,
            enable_deletion_protection: None,
            contributor_insights: false,
            enable_alarms: true,
            alarm_sns_topic: None,
            enable_audit_archival: true,
            audit_archive_glacier_days: 90,
            archive_on_delete: ArchiveOnDelete::default(),
            create_iam: true,
            create_iam_roles: false,
            aggregator_role_arn: None,
            permission_boundary: None,
            role_name_format: None,
            policy_name_format: None,
            tags: BTreeMap::new(),
        }
    }
}

/// A method for each option whose value is taken as it is.
macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident: $kind:ty;)*) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $name(mut self, $name: $kind) -> StackOptions {
            self.$name = $name;
            self
        }
    )*};
}

/// The same for options that may be missing.
macro_rules! optional_setters {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $name(mut self, $name: impl Into<String>) -> StackOptions {
            self.$name = Some($name.into());
            self
        }
    )*};
}

impl StackOptions {
    /// The defaults, which are those of the Python package.
    #[must_use]
    pub fn new() -> StackOptions {
        StackOptions::default()
    }

    setters! {
        /// Usage is kept for this many days, from 1 to 36500.
        usage_retention_days: u32;
        /// Audit events are kept for this many days, from 1 to 36500.
        audit_retention_days: u32;
        /// Upkeep splits a hot bucket into at most so many shards, from 1 to 32.
        shards_max: u32;
        /// Whether shards of quiet buckets are folded. False while Python clients write the table.
        enable_folding: bool;
        /// What GSI2 keeps.
        resource_index_projection: ResourceIndexProjection;
        /// Whether a function counts usage from the stream.
        enable_aggregator: bool;
        /// The processor of the function.
        architecture: Architecture;
        /// Memory of the function, from 128 to 3008 MB.
        lambda_memory: u32;
        /// The function is stopped after this many seconds, from 1 to 900.
        lambda_timeout: u32;
        /// The alarm on the duration rings at so many percent of the time-out, from 1 to 100.
        lambda_duration_threshold_pct: u32;
        /// Logs are kept for this many days: one of [`LOG_RETENTION_DAYS`].
        log_retention_days: u32;
        /// Whether X-Ray traces the function.
        enable_tracing: bool;
        /// Whether Contributor Insights shows the hottest keys of the table.
        contributor_insights: bool;
        /// Whether alarms are made.
        enable_alarms: bool;
        /// Whether audit events that expire are archived.
        enable_audit_archival: bool;
        /// Archived events move to Glacier Instant Retrieval after so many days, from 1 to 3650.
        audit_archive_glacier_days: u32;
        /// What becomes of the archive when the stack is deleted.
        archive_on_delete: ArchiveOnDelete;
        /// Whether policies and roles are made.
        create_iam: bool;
        /// Whether roles for applications, administrators and readers are made; needs `create_iam`.
        create_iam_roles: bool;
    }

    optional_setters! {
        /// The SNS topic that alarms are sent to, by its ARN.
        alarm_sns_topic;
        /// A role of the caller's for the function, by its ARN.
        aggregator_role_arn;
        /// The permission boundary of all roles: an ARN, or the name of a policy of the account.
        permission_boundary;
        /// The form of the names of roles, such as `pb-{}-PowerUser`.
        role_name_format;
        /// The form of the names of policies.
        policy_name_format;
    }

    /// Point-in-time recovery reaches back so many days, from 1 to 35.
    #[must_use]
    pub fn pitr_recovery_days(mut self, days: u32) -> StackOptions {
        self.pitr_recovery_days = Some(days);
        self
    }

    /// Whether the table refuses to be deleted.
    #[must_use]
    pub fn enable_deletion_protection(mut self, is_protected: bool) -> StackOptions {
        self.enable_deletion_protection = Some(is_protected);
        self
    }

    /// Usage is counted by these windows.
    #[must_use]
    pub fn snapshot_windows(
        mut self,
        windows: impl IntoIterator<Item = UsageWindow>,
    ) -> StackOptions {
        self.snapshot_windows = windows.into_iter().collect();
        self.snapshot_windows.sort_unstable();
        self.snapshot_windows.dedup();
        self
    }

    /// The same as text: `hourly,daily`.
    pub fn snapshot_windows_text(self, words: &str) -> Result<StackOptions, OptionError> {
        let parsed = words.split(',').map(|word| word.trim().parse::<UsageWindow>());
        match parsed.collect::<Result<Vec<_>, _>>() {
            Ok(windows) => Ok(self.snapshot_windows(windows)),
            Err(error) => Err(OptionError::new("snapshot_windows", words, error.to_string())),
        }
    }

    /// One more tag.
    #[must_use]
    pub fn tag(mut self, key: impl Into<String>, value: impl Into<String>) -> StackOptions {
        self.tags.insert(key.into(), value.into());
        self
    }

    /// These tags and no others.
    #[must_use]
    pub fn tags<K: Into<String>, V: Into<String>>(
        mut self,
        tags: impl IntoIterator<Item = (K, V)>,
    ) -> StackOptions {
        self.tags = tags.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
        self
    }

    /// Whether the stack is to have the aggregator: it is asked for, and there is a role for it.
    #[must_use]
    pub fn has_aggregator(&self) -> bool {
        self.enable_aggregator && (self.create_iam || self.aggregator_role_arn.is_some())
    }

    /// Whether the stack is to have an archive.
    #[must_use]
    pub fn has_archive(&self) -> bool {
        self.has_aggregator() && self.enable_audit_archival
    }

    /// Checks everything, also against the name of the stack. [`StackOptions::parameters`] does so
    /// itself.
    pub fn check(&self, stack: &str) -> Result<(), OptionError> {
        zae_limiter_dynamodb::sdk::check_stack_name(stack)
            .map_err(|error| OptionError::new("name", stack, error.message()))?;
        if self.has_aggregator() && stack.len() > STACK_CHARS_MAX {
            let problem = format!(
                "has {} characters; use at most {STACK_CHARS_MAX}, since the function is called \
                 STACK{FUNCTION_SUFFIX} and Lambda takes {FUNCTION_CHARS_MAX}, or no aggregator",
                stack.len()
            );
            return Err(OptionError::new("name", stack, problem));
        }
        if self.snapshot_windows.is_empty() {
            let problem = "name at least one of hourly, daily and monthly";
            return Err(OptionError::new("snapshot_windows", "", problem));
        }
        check_range("usage_retention_days", self.usage_retention_days, 1..=36_500, "days")?;
        check_range("audit_retention_days", self.audit_retention_days, 1..=36_500, "days")?;
        check_range("shards_max", self.shards_max, 1..=SHARDS_MAX, "shards")?;
        if !is_shard_count(self.shards_max) {
            let problem = format!("use {SHARD_COUNTS} shards: a split doubles them");
            return Err(OptionError::new("shards_max", &self.shards_max, problem));
        }
        check_range("lambda_memory", self.lambda_memory, 128..=3_008, "MB")?;
        check_range("lambda_timeout", self.lambda_timeout, 1..=900, "seconds")?;
        let percent = self.lambda_duration_threshold_pct;
        check_range("lambda_duration_threshold_pct", percent, 1..=100, "percent")?;
        if !LOG_RETENTION_DAYS.contains(&self.log_retention_days) {
            let days = LOG_RETENTION_DAYS.map(|days| days.to_string()).join(", ");
            let problem = format!("CloudWatch keeps logs for one of these numbers of days: {days}");
            return Err(OptionError::new("log_retention_days", &self.log_retention_days, problem));
        }
        if let Some(days) = self.pitr_recovery_days {
            check_range("pitr_recovery_days", days, 1..=35, "days")?;
        }
        let glacier = self.audit_archive_glacier_days;
        check_range("audit_archive_glacier_days", glacier, 1..=3_650, "days")?;
        if self.create_iam_roles && !self.create_iam {
            let problem = "roles need create_iam; allow both, or neither";
            return Err(OptionError::new("create_iam_roles", "true", problem));
        }
        if let Some(topic) = &self.alarm_sns_topic {
            check_arn("alarm_sns_topic", topic, "sns", "arn:aws:sns:REGION:ACCOUNT:TOPIC")?;
        }
        if let Some(role) = &self.aggregator_role_arn {
            check_arn("aggregator_role_arn", role, "iam", "arn:aws:iam::ACCOUNT:role/NAME")?;
        }
        if let Some(boundary) = &self.permission_boundary {
            checks::check_boundary(boundary)?;
        }
        if let Some(format) = &self.role_name_format {
            check_format::<RoleName>("role_name_format", format, stack)?;
        }
        if let Some(format) = &self.policy_name_format {
            check_format::<PolicyName>("policy_name_format", format, stack)?;
        }
        check_tags(&self.tags)
    }

    /// The parameters of the template, except [`LAMBDA_CODE_KEY`].
    pub fn parameters(&self, stack: &str) -> Result<BTreeMap<String, String>, OptionError> {
        self.check(stack)?;
        let windows: Vec<&str> =
            self.snapshot_windows.iter().map(|window| window.as_str()).collect();
        let threshold_ms = self.lambda_timeout * 10 * self.lambda_duration_threshold_pct;
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        let boundary = text(&self.permission_boundary);
        let (boundary_arn, boundary_name) = match boundary.starts_with("arn:") {
            true => (boundary, String::new()),
            false => (String::new(), boundary),
        };
        let mut parameters: BTreeMap<String, String> = [
            ("SnapshotWindows", windows.join(",")),
            ("SnapshotRetentionDays", self.usage_retention_days.to_string()),
            ("ShardsMax", self.shards_max.to_string()),
            ("EnableFolding", bool_text(self.enable_folding)),
            ("ResourceIndexProjection", self.resource_index_projection.as_str().to_owned()),
            ("EnableAggregator", bool_text(self.enable_aggregator)),
            ("Architecture", self.architecture.as_str().to_owned()),
            ("LambdaMemorySize", self.lambda_memory.to_string()),
            ("LambdaTimeout", self.lambda_timeout.to_string()),
            ("LambdaDurationThreshold", threshold_ms.to_string()),
            ("LogRetentionDays", self.log_retention_days.to_string()),
            ("EnableTracing", bool_text(self.enable_tracing)),
            (
                "PITRRecoveryPeriodDays",
                self.pitr_recovery_days.map_or(String::new(), |days| days.to_string()),
            ),
            (
                "EnableDeletionProtection",
                bool_text(self.enable_deletion_protection.unwrap_or(false)),
            ),
            ("EnableContributorInsights", bool_text(self.contributor_insights)),
            ("EnableAlarms", bool_text(self.enable_alarms)),
            ("AlarmSNSTopicArn", text(&self.alarm_sns_topic)),
            ("EnableAuditArchival", bool_text(self.enable_audit_archival)),
            ("AuditArchiveGlacierTransitionDays", self.audit_archive_glacier_days.to_string()),
            ("ArchiveOnDelete", self.archive_on_delete.as_str().to_owned()),
            ("EnableIAM", bool_text(self.create_iam)),
            ("EnableIAMRoles", bool_text(self.create_iam_roles)),
            ("AggregatorRoleArn", text(&self.aggregator_role_arn)),
            ("PermissionBoundary", boundary_arn),
            ("PermissionBoundaryName", boundary_name),
            ("RoleNameFormat", text(&self.role_name_format)),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        let role = |role: RoleName| {
            let format = self.role_name_format.as_deref();
            (
                role.parameter().to_owned(),
                format.map_or(String::new(), |format| role.name(format, stack)),
            )
        };
        parameters.extend(RoleName::ALL.map(role));
        let policy = |policy: PolicyName| {
            let format = self.policy_name_format.as_deref();
            (
                policy.parameter().to_owned(),
                format.map_or(String::new(), |format| policy.name(format, stack)),
            )
        };
        parameters.extend(PolicyName::ALL.map(policy));
        Ok(parameters)
    }
}
