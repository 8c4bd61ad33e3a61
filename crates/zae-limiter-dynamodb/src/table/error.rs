//! What a failed call means in the words of the contract. One exhaustive match.

use zae_limiter_store::{StoreError, StoreErrorKind};

use crate::table::TableError;
use crate::table::retry::is_decided;

/// A failed call, seen from the operation it was part of.
pub(crate) fn failed(operation: &'static str, error: TableError) -> StoreError {
    let (kind, message) = match &error {
        // A condition that was not expected to fail: another writer changed the item first.
        TableError::Condition(_) => (StoreErrorKind::Conflict, "somebody changed it first; read it again, then decide again".to_owned()),
        // No leg was refused; the transaction never got its turn.
        TableError::Canceled(reasons) if !is_decided(reasons) => {
            (StoreErrorKind::Busy, "others keep writing the same records, or too many; nothing was changed, try again later".to_owned())
        }
        TableError::Canceled(reasons) => {
            (StoreErrorKind::Conflict, format!("somebody changed it first ({reasons:?}); read it again, then decide again"))
        }
        TableError::NotApplied(why) => (StoreErrorKind::Busy, format!("the table did not take it ({why}); try again later")),
        TableError::Unreachable(why) => (StoreErrorKind::Unavailable, format!("the table cannot be reached ({why})")),
        TableError::Unknown(why) => (StoreErrorKind::Unavailable, format!("the table did not answer ({why})")),
        TableError::Denied(why) => (StoreErrorKind::Denied, why.clone()),
        TableError::NoTable(why) => (
            StoreErrorKind::NotFound,
            format!("there is no such table ({why}); check the stack name, the region and the endpoint, or create it"),
        ),
        TableError::Rejected(why) if has_other_keys(why) => (
            StoreErrorKind::Incompatible,
            format!("the table is not one of zae-limiter: its keys are others ({why})"),
        ),
        TableError::Rejected(why) => (StoreErrorKind::Internal, format!("the table did not accept the request, please report it: {why}")),
    };
    StoreError::new(kind, operation, message).with_source(error)
}

/// Whether a table does not know the keys of ours.
fn has_other_keys(why: &str) -> bool {
    ["does not match the schema", "missed key schema element"].iter().any(|said| why.contains(said))
}
