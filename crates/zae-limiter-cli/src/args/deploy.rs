//! Stacks on AWS: `deploy`, `delete`, `list`, `upgrade`, `cfn-template`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use zae_limiter_deploy::{
    Architecture, ArchiveOnDelete, OptionError, ResourceIndexProjection, StackOptions,
};

use super::shared::ConfirmArgs;

/// `cfn-template`.
#[derive(Args, Clone, Debug)]
pub(crate) struct CfnTemplateArgs {
    /// Write the template to this file instead of printing it
    #[arg(long, short = 'o', value_name = "PATH")]
    pub(crate) file: Option<PathBuf>,
}

/// `delete`.
#[derive(Args, Clone, Debug)]
pub(crate) struct DeleteArgs {
    #[command(flatten)]
    pub(crate) wait: WaitArgs,

    #[command(flatten)]
    pub(crate) confirm: ConfirmArgs,
}

/// Whether to wait for CloudFormation.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct WaitArgs {
    /// Wait until CloudFormation is done (the default)
    #[arg(long, overrides_with = "no_wait")]
    wait: bool,

    /// Return as soon as CloudFormation has begun
    #[arg(long, overrides_with = "wait")]
    no_wait: bool,
}

impl WaitArgs {
    pub(crate) fn waits(self) -> bool {
        !self.no_wait
    }
}

/// `upgrade`.
#[derive(Args, Clone, Debug)]
pub(crate) struct UpgradeArgs {
    /// Change the function only, not the template or the table
    #[arg(long)]
    pub(crate) lambda_only: bool,

    /// Go on although versions say that there is nothing to do
    #[arg(long)]
    pub(crate) force: bool,

    /// Show the steps and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// The program that becomes the function [default: this one]
    #[arg(long, value_name = "PATH")]
    pub(crate) lambda_binary: Option<PathBuf>,

    /// Tables, buckets and queues may be removed or replaced
    #[arg(long)]
    pub(crate) allow_data_loss: bool,
}

/// The processor of the function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Processor {
    #[value(name = "x86_64")]
    X86_64,
    Arm64,
}

/// What the index of resources keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum IndexProjection {
    #[value(name = "KEYS_ONLY", alias = "keys_only")]
    KeysOnly,
    #[value(name = "ALL", alias = "all")]
    All,
}

/// What becomes of the archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Archive {
    Retain,
    Empty,
}

/// How many days history is kept when nobody says it.
const RETENTION_DAYS: u32 = 90;

/// `deploy`.
#[derive(Args, Clone, Debug)]
pub(crate) struct DeployArgs {
    /// Windows of usage: hourly, daily, monthly
    #[arg(long, value_name = "WINDOWS", default_value = "hourly,daily")]
    snapshot_windows: String,

    /// Usage is kept for so many days [default: 90; with --no-stack what is stored]
    #[arg(long, value_name = "DAYS")]
    usage_retention_days: Option<u32>,

    /// Audit events are kept for so many days [default: 90; with --no-stack what is stored]
    #[arg(long, value_name = "DAYS")]
    audit_retention_days: Option<u32>,

    /// Count usage by a function (the default)
    #[arg(long, overrides_with = "no_aggregator")]
    enable_aggregator: bool,
    /// Make no function
    #[arg(long, overrides_with = "enable_aggregator")]
    no_aggregator: bool,

    /// Accepted for the Python package's command lines; there is no provisioner here
    #[arg(long, hide = true, overrides_with = "no_provisioner")]
    enable_provisioner: bool,
    #[arg(long, hide = true, overrides_with = "enable_provisioner")]
    no_provisioner: bool,

    /// Point-in-time recovery reaches back so many days, 1 to 35
    #[arg(long, value_name = "DAYS")]
    pitr_recovery_days: Option<u32>,

    /// Logs are kept for so many days, one of those CloudWatch knows
    #[arg(long, value_name = "DAYS", default_value_t = 30)]
    log_retention_days: u32,

    /// The function is stopped after so many seconds, 1 to 900
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    lambda_timeout: u32,

    /// Memory of the function in MB, 128 to 3008
    #[arg(long, value_name = "MB", default_value_t = 256)]
    lambda_memory: u32,

    /// Make alarms (the default)
    #[arg(long, overrides_with = "no_alarms")]
    enable_alarms: bool,
    /// Make no alarms
    #[arg(long, overrides_with = "enable_alarms")]
    no_alarms: bool,

    /// Alarms are sent to this SNS topic
    #[arg(long, value_name = "ARN")]
    alarm_sns_topic: Option<String>,

    /// The alarm on the duration rings at so many percent of the time-out
    #[arg(long, value_name = "PERCENT", default_value_t = 80)]
    lambda_duration_threshold_pct: u32,

    #[command(flatten)]
    pub(crate) wait: WaitArgs,

    /// The permission boundary of all roles: an ARN or the name of a policy
    #[arg(long, value_name = "POLICY")]
    permission_boundary: Option<String>,

    /// The form of the names of roles, e.g. 'pb-{}-PowerUser'
    #[arg(long, value_name = "FORMAT")]
    role_name_format: Option<String>,

    /// The form of the names of policies
    #[arg(long, value_name = "FORMAT")]
    policy_name_format: Option<String>,

    /// Archive audit events that expire (the default)
    #[arg(long, overrides_with = "no_audit_archival")]
    enable_audit_archival: bool,
    /// Archive nothing
    #[arg(long, overrides_with = "enable_audit_archival")]
    no_audit_archival: bool,

    /// Archived events move to Glacier after so many days, 1 to 3650
    #[arg(long, value_name = "DAYS", default_value_t = 90)]
    audit_archive_glacier_days: u32,

    /// What becomes of the archive when the stack is deleted
    #[arg(long, value_name = "WHAT", default_value = "retain")]
    archive_on_delete: Archive,

    /// Trace the function with X-Ray
    #[arg(long, overrides_with = "no_tracing")]
    enable_tracing: bool,
    /// Do not trace (the default)
    #[arg(long, overrides_with = "enable_tracing")]
    no_tracing: bool,

    /// Make roles for applications, administrators and readers
    #[arg(long, overrides_with = "no_create_iam_roles")]
    create_iam_roles: bool,
    /// Make no such roles (the default)
    #[arg(long, overrides_with = "create_iam_roles")]
    no_create_iam_roles: bool,

    /// Make policies and the function's role (the default)
    #[arg(long, overrides_with = "no_iam")]
    iam: bool,
    /// Make no policy and no role
    #[arg(long, overrides_with = "iam")]
    no_iam: bool,

    /// A role of yours for the function
    #[arg(long, value_name = "ARN")]
    aggregator_role_arn: Option<String>,

    /// Protect the table from being deleted
    #[arg(long, overrides_with = "no_deletion_protection")]
    enable_deletion_protection: bool,
    /// Do not protect it (the default), also when it was protected
    #[arg(long, overrides_with = "enable_deletion_protection")]
    no_deletion_protection: bool,

    /// Show the hottest keys of the table with Contributor Insights
    #[arg(long)]
    contributor_insights: bool,

    /// A tag, key=value; may be repeated
    #[arg(long, short, value_name = "KEY=VALUE")]
    tag: Vec<String>,

    /// The processor of the function
    #[arg(long, value_name = "NAME", default_value = "x86_64")]
    architecture: Processor,

    /// What the index of resources keeps; ALL for fleets with Python readers
    #[arg(long, value_name = "WHAT", default_value = "KEYS_ONLY")]
    resource_index_projection: IndexProjection,

    /// A hot bucket is split into at most so many shards; 1 while older readers are about
    #[arg(long, value_name = "COUNT", default_value_t = 32)]
    shards_max: u32,

    /// Never fold shards: while Python clients write the table
    #[arg(long)]
    keep_shards: bool,

    /// The program that becomes the function: a zae-limiter for Amazon Linux 2023 [default: this
    /// one]
    #[arg(long, value_name = "PATH")]
    pub(crate) lambda_binary: Option<PathBuf>,

    /// Tables, buckets and queues may be removed or replaced
    #[arg(long)]
    pub(crate) allow_data_loss: bool,

    /// The function of a newer release may be replaced by that of this one
    #[arg(long)]
    pub(crate) allow_downgrade: bool,

    /// Leave the stack to whoever made it, Terraform or CDK: only its table gets its version
    /// record, its namespaces and its retention
    #[arg(long, conflicts_with_all = ["allow_data_loss", "lambda_binary", "no_wait"])]
    pub(crate) no_stack: bool,
}

impl DeployArgs {
    /// Whether flags of the provisioner were given.
    pub(crate) fn names_provisioner(&self) -> bool {
        self.enable_provisioner
    }

    /// Whether what is stored of the retention of usage and of audit events stays.
    pub(crate) fn keeps_retention(&self) -> (bool, bool) {
        let stays = |days: Option<u32>| self.no_stack && days.is_none();
        (stays(self.usage_retention_days), stays(self.audit_retention_days))
    }

    /// The options of the stack; a wrong one is named.
    pub(crate) fn options(&self) -> Result<StackOptions, OptionError> {
        let mut options = StackOptions::new()
            .snapshot_windows_text(&self.snapshot_windows)?
            .usage_retention_days(self.usage_retention_days.unwrap_or(RETENTION_DAYS))
            .audit_retention_days(self.audit_retention_days.unwrap_or(RETENTION_DAYS))
            .enable_aggregator(!self.no_aggregator)
            .log_retention_days(self.log_retention_days)
            .lambda_timeout(self.lambda_timeout)
            .lambda_memory(self.lambda_memory)
            .enable_alarms(!self.no_alarms)
            .lambda_duration_threshold_pct(self.lambda_duration_threshold_pct)
            .enable_audit_archival(!self.no_audit_archival)
            .audit_archive_glacier_days(self.audit_archive_glacier_days)
            .archive_on_delete(match self.archive_on_delete {
                Archive::Retain => ArchiveOnDelete::Retain,
                Archive::Empty => ArchiveOnDelete::Empty,
            })
            .enable_tracing(self.enable_tracing)
            .create_iam_roles(self.create_iam_roles)
            .create_iam(!self.no_iam)
            .contributor_insights(self.contributor_insights)
            .architecture(match self.architecture {
                Processor::X86_64 => Architecture::X86_64,
                Processor::Arm64 => Architecture::Arm64,
            })
            .resource_index_projection(match self.resource_index_projection {
                IndexProjection::KeysOnly => ResourceIndexProjection::KeysOnly,
                IndexProjection::All => ResourceIndexProjection::All,
            })
            .shards_max(self.shards_max)
            .enable_folding(!self.keep_shards);
        if self.enable_deletion_protection || self.no_deletion_protection {
            options = options.enable_deletion_protection(self.enable_deletion_protection);
        }
        if let Some(days) = self.pitr_recovery_days {
            options = options.pitr_recovery_days(days);
        }
        if let Some(topic) = &self.alarm_sns_topic {
            options = options.alarm_sns_topic(topic);
        }
        if let Some(boundary) = &self.permission_boundary {
            options = options.permission_boundary(boundary);
        }
        if let Some(format) = &self.role_name_format {
            options = options.role_name_format(format);
        }
        if let Some(format) = &self.policy_name_format {
            options = options.policy_name_format(format);
        }
        if let Some(role) = &self.aggregator_role_arn {
            options = options.aggregator_role_arn(role);
        }
        for tag in &self.tag {
            let Some((key, value)) = tag.split_once('=') else {
                return Err(OptionError::new("tag", tag, "write it as key=value".to_owned()));
            };
            if options.tags.contains_key(key) {
                return Err(OptionError::new("tag", tag, "is the second value of this key"));
            }
            options = options.tag(key, value);
        }
        Ok(options)
    }
}
