//! What files of limits manage in a namespace: a text in parts, which `limits apply` writes before
//! and after its changes. A store keeps the parts beside the configuration and does not look into
//! them.

use crate::{StoreError, StoreErrorKind};

/// The longest text of one part, in bytes: it fits an item of DynamoDB with room to spare.
pub const MANAGED_BYTES_MAX: usize = 256 * 1024;

/// The most parts there may be: 64 MiB of text.
pub const MANAGED_PARTS_MAX: u32 = 256;

/// One part as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Managed {
    /// The text, as it was stored.
    pub text: String,
    /// Grows with every change of the part.
    pub version: u64,
}

/// A new text for one part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagedChange {
    /// The text; at most [`MANAGED_BYTES_MAX`].
    pub text: String,
    /// Only if the part still has this version (0: does not exist); otherwise `Conflict`.
    pub expected_version: u64,
    /// What the audit event tells, such as a reason.
    pub details: Vec<(String, String)>,
}

impl ManagedChange {
    /// Refuses what no backend may store; for backends to call first.
    pub fn check(&self, part: u32) -> Result<(), StoreError> {
        const OPERATION: &str = "set_managed";
        if part >= MANAGED_PARTS_MAX {
            let message = format!(
                "part {part} of what is managed is out of range; there are {MANAGED_PARTS_MAX}, from 0"
            );
            return Err(StoreError::invalid(OPERATION, message));
        }
        if self.text.len() > MANAGED_BYTES_MAX {
            let message = format!(
                "part {part} of what is managed has {} bytes; at most {MANAGED_BYTES_MAX} are stored, \
                 split it",
                self.text.len()
            );
            return Err(StoreError::invalid(OPERATION, message));
        }
        Ok(())
    }

    /// `Conflict` unless `found` is the version the caller expects.
    pub fn check_version(&self, found: u64) -> Result<(), StoreError> {
        if self.expected_version == found {
            return Ok(());
        }
        let message = format!(
            "what files of limits manage has version {found}, not {}: another apply came in between; \
             nothing was changed by this call",
            self.expected_version
        );
        Err(StoreError::new(StoreErrorKind::Conflict, "set_managed", message))
    }
}
