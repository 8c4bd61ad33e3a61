//! How the process ends.

use std::process::ExitCode;

/// What the caller of the process sees. The numbers are part of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Done; for `acquire`: granted.
    Ok = 0,
    /// It failed; stderr says why.
    Error = 1,
    /// The command line or an environment variable is wrong.
    Usage = 2,
    /// A limit refused. Waiting may help.
    Refused = 3,
    /// An administrator has disabled the entity or the resource. Waiting does not help.
    Disabled = 4,
    /// Others kept the store busy: nothing was decided and nothing was taken. Try again.
    Busy = 5,
    /// A file and the store differ.
    Differs = 6,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}
