//! Stacks on AWS: `cfn-template`.

use std::path::PathBuf;

use clap::Args;

/// `cfn-template`.
#[derive(Args, Clone, Debug)]
pub(crate) struct CfnTemplateArgs {
    /// Write the template to this file instead of printing it
    #[arg(long, short = 'o', value_name = "PATH")]
    pub(crate) file: Option<PathBuf>,
}
