//! Arguments that several commands share.

use std::str::FromStr;

use clap::Args;
use zae_limiter::store::PAGE_LIMIT_MAX;
use zae_limiter::{Cursor, PageRequest};

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
            Some(cursor) if cursor.parse::<Name>().is_err() => Err(no_such_cursor(cursor)),
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

/// A cursor that no page of the listing ends with.
pub(crate) fn no_such_cursor(cursor: &str) -> Failure {
    let failure = Failure::usage(format!(
        "invalid value '{cursor}' for '--cursor <CURSOR>': this listing prints no such cursor"
    ));
    failure.hint("give the cursor that the page before printed, or begin without --cursor")
}

/// Whether to ask before something is destroyed.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct ConfirmArgs {
    /// Do not ask
    #[arg(long, short)]
    pub(crate) yes: bool,
}

/// What a command destroys, and whether to ask first.
#[derive(Args, Clone, Debug)]
pub(crate) struct Confirmed<What: Args> {
    #[command(flatten)]
    pub(crate) what: What,

    #[command(flatten)]
    pub(crate) confirm: ConfirmArgs,
}
