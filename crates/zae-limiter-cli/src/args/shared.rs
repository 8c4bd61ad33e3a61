//! Arguments that several commands share.

use std::str::FromStr;

use clap::Args;
use zae_limiter::store::PAGE_LIMIT_MAX;
use zae_limiter::{Cursor, Limit, LimitName, PageRequest};

use super::value::count;
use crate::error::Failure;

/// Which page of a listing.
#[derive(Args, Clone, Debug)]
pub(crate) struct PageArgs {
    // `--limit` and `-l` are what the Python package calls it; elsewhere here they are limits of
    // calls.
    /// At most how many, up to 1000
    #[arg(id = "max", long = "max", alias = "limit", short_alias = 'l', value_name = "COUNT", default_value_t = 100, value_parser = count::<PAGE_LIMIT_MAX>)]
    pub(crate) limit: u32,

    /// Continue after the previous page (the cursor it printed)
    #[arg(long, value_name = "CURSOR", allow_hyphen_values = true)]
    pub(crate) cursor: Option<String>,
}

impl PageArgs {
    /// The page of a listing that goes on after a name. Another text was never printed as a cursor
    /// of it.
    pub(crate) fn request_after<Name: FromStr>(self) -> Result<PageRequest, Failure> {
        match &self.cursor {
            Some(cursor) if cursor.parse::<Name>().is_err() => {
                let failure = Failure::usage(format!(
                    "invalid value '{cursor}' for '--cursor <CURSOR>': this listing prints no such cursor"
                ));
                Err(failure.hint(
                    "give the cursor that the page before printed, or begin without --cursor",
                ))
            }
            _ => Ok(self.request()),
        }
    }

    /// The page as the library asks for it.
    pub(crate) fn request(self) -> PageRequest {
        match self.cursor {
            Some(cursor) => PageRequest::after(self.limit, Cursor(cursor)),
            None => PageRequest::first(self.limit),
        }
    }
}

/// Whether to ask before something is destroyed.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct ConfirmArgs {
    /// Do not ask
    #[arg(long, short)]
    pub(crate) yes: bool,
}

/// Limits to store at a level.
#[derive(Args, Clone, Debug)]
pub(crate) struct LimitsArgs {
    /// A limit as name:rate[/period][:burst], as in tpm:10000/min:15000; may be repeated
    #[arg(long = "limit", short, value_name = "LIMIT", value_delimiter = ',')]
    pub(crate) limits: Vec<Limit>,

    /// Keep the other limits of the level: change or add only those given with -l
    #[arg(long)]
    pub(crate) add: bool,

    /// Remove a limit from the level and keep the others; may be repeated
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) remove: Vec<LimitName>,
}

impl LimitsArgs {
    /// True when what the level has is changed or kept, not replaced.
    pub(crate) fn edits(&self) -> bool {
        self.add || !self.remove.is_empty() || self.limits.is_empty()
    }

    /// The limits of a level after this change of those it had, or the name of one that is to be
    /// removed and not there.
    pub(crate) fn applied_to(&self, before: &[Limit]) -> Result<Vec<Limit>, LimitName> {
        if !self.edits() {
            return Ok(self.limits.clone());
        }
        if let Some(name) =
            self.remove.iter().find(|name| before.iter().all(|limit| limit.name() != *name))
        {
            return Err(name.clone());
        }
        let given = |limit: &Limit| self.limits.iter().any(|given| given.name() == limit.name());
        let kept =
            before.iter().filter(|limit| !self.remove.contains(limit.name()) && !given(limit));
        Ok(kept.chain(&self.limits).cloned().collect())
    }
}
