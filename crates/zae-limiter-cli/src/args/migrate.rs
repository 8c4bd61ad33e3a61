//! `migrate`.

use clap::Args;
use zae_limiter::NamespaceName;

use super::value::{StoreUrl, reason};

/// `migrate`.
#[derive(Args, Clone, Debug)]
pub(crate) struct MigrateArgs {
    /// Where to: sqlite:PATH, dynamodb:STACK or dynamodb:STACK?region=REGION
    #[arg(long, value_name = "URL")]
    pub(crate) to: StoreUrl,

    /// The namespace there [default: the same]
    #[arg(long, value_name = "NAME")]
    pub(crate) to_namespace: Option<NamespaceName>,

    /// Say what would be copied, and copy nothing
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Why, for the audit log of the target; at most 1024 bytes
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    pub(crate) reason: Option<String>,
}
