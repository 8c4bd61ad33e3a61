//! `acquire`, `available` and `explain`.

use std::time::Duration;

use clap::Args;
use zae_limiter::{EntityId, Limit, ResourceName};

use super::value::{Amount, duration};

/// `acquire`.
#[derive(Args, Clone, Debug)]
pub(crate) struct AcquireArgs {
    /// Who calls
    pub(crate) entity: EntityId,
    /// What is called
    pub(crate) resource: ResourceName,

    /// What to take: a limit and whole tokens, as in rpm=1; may be repeated, amounts for one limit
    /// add up
    #[arg(
        long = "consume",
        short,
        value_name = "NAME=AMOUNT",
        value_delimiter = ',',
        required = true
    )]
    pub(crate) consume: Vec<Amount>,

    /// A limit for this call instead of the stored ones, as in tpm:10000/min:15000; may be repeated
    #[arg(long = "limit", short, value_name = "LIMIT", value_delimiter = ',')]
    pub(crate) limits: Vec<Limit>,

    /// What was really used in total of a limit taken with -c, settled at once; may lead to debt;
    /// may be repeated
    #[arg(long, value_name = "NAME=TOTAL", value_delimiter = ',')]
    pub(crate) record: Vec<Amount>,

    /// Wait for the limits at most this long instead of being refused: 500ms, 30s, 2m, 1h
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) wait: Option<Duration>,

    /// Refuse an entity that was not created, instead of granting by the limits of its resource or
    /// the system
    #[arg(long)]
    pub(crate) must_exist: bool,
}

/// `available`.
#[derive(Args, Clone, Debug)]
pub(crate) struct AvailableArgs {
    /// Who would call
    pub(crate) entity: EntityId,
    /// What would be called
    pub(crate) resource: ResourceName,

    /// What would be taken, as in rpm=1; may be repeated; exit code 3 if it would be refused
    #[arg(long = "consume", short, value_name = "NAME=AMOUNT", value_delimiter = ',')]
    pub(crate) consume: Vec<Amount>,
}

/// `explain`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ExplainArgs {
    /// Who would call
    pub(crate) entity: EntityId,
    /// What would be called
    pub(crate) resource: ResourceName,
}
