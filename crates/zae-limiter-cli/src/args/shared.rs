//! Arguments that several commands share.

use clap::Args;
use zae_limiter::store::PAGE_LIMIT_MAX;
use zae_limiter::{Cursor, PageRequest};

use super::value::count;

/// Which page of a listing.
#[derive(Args, Clone, Debug)]
pub(crate) struct PageArgs {
    /// At most how many, up to 1000
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = count::<PAGE_LIMIT_MAX>)]
    pub(crate) limit: u32,

    /// Go on where the page before ended: the cursor it came with
    #[arg(long, value_name = "CURSOR", allow_hyphen_values = true)]
    pub(crate) cursor: Option<String>,
}

impl PageArgs {
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
