//! `limits …`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::value::reason;
use crate::commands::limits::{apply, diff, export, plan, schema};
use crate::context::{Access, Context};
use crate::exit::Exit;

/// What to do with files of limits.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum LimitsCommand {
    /// Show what `limits apply` would change, and what that does to existing buckets
    ///
    /// `+` adds, `~` changes, `-` removes. Nothing is written.
    #[command(after_long_help = super::examples::LIMITS_PLAN)]
    Plan(LimitsPlanArgs),
    /// Make limits, flags and entities of a namespace what a file says
    ///
    /// A namespace that is not there is registered. What the file does not mention stays as it is;
    /// what an earlier file had and this one has no more is removed with --prune only. Applying
    /// twice changes nothing the second time, and an apply that was cut off is finished by the next
    /// one. One that is at work is not disturbed: the next one is refused, kind `conflict`. A file
    /// with a mistake is refused whole, before the first change.
    #[command(after_long_help = super::examples::LIMITS_APPLY)]
    Apply(LimitsApplyArgs),
    /// Compare a file with the store, value by value; exit code 6 if they differ
    #[command(after_long_help = super::examples::LIMITS_DIFF)]
    Diff(LimitsFileArgs),
    /// Print limits, flags and entities of the namespace as a file that `limits apply` reads
    ///
    /// YAML, or JSON with --output json. The same limits give the same bytes on every store.
    #[command(after_long_help = super::examples::LIMITS_EXPORT)]
    Export,
    /// Print the JSON schema of the file, for editors
    #[command(after_long_help = super::examples::LIMITS_SCHEMA)]
    Schema,
}

impl LimitsCommand {
    pub(super) async fn run(self, context: &Context<'_>) -> anyhow::Result<Exit> {
        match self {
            LimitsCommand::Plan(args) => plan::run(context, &args).await,
            LimitsCommand::Apply(args) => apply::run(context, &args).await,
            LimitsCommand::Diff(args) => diff::run(context, &args).await,
            LimitsCommand::Export => export::run(context).await,
            LimitsCommand::Schema => schema::run(context),
        }
    }

    pub(super) fn access(&self) -> Access {
        match self {
            LimitsCommand::Apply(args) if !args.dry_run => Access::SetsUp,
            _ => Access::Looks,
        }
    }
}

/// Which file.
#[derive(Args, Clone, Debug)]
pub(crate) struct LimitsFileArgs {
    /// The file, YAML or JSON; - for standard input
    #[arg(long, short, value_name = "PATH")]
    pub(crate) file: PathBuf,
}

/// `limits plan`.
#[derive(Args, Clone, Debug)]
pub(crate) struct LimitsPlanArgs {
    #[command(flatten)]
    pub(crate) file: LimitsFileArgs,

    /// Count in what --prune would remove
    #[arg(long)]
    pub(crate) prune: bool,
}

/// `limits apply`.
#[derive(Args, Clone, Debug)]
pub(crate) struct LimitsApplyArgs {
    #[command(flatten)]
    pub(crate) file: LimitsFileArgs,

    /// Remove what an earlier file had and this one has no more; entities go with their buckets
    #[arg(long)]
    pub(crate) prune: bool,

    /// Show the changes and make none
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Stop an apply that has begun and not ended, and go on from there without watching whether it
    /// is still at work
    #[arg(long)]
    pub(crate) take_over: bool,

    /// Why, for the audit log; at most 1024 bytes
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    pub(crate) reason: Option<String>,
}
