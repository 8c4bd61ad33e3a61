//! The refusals that every backend gives: one text each.

use std::fmt::Display;

use zae_limiter_core::{EntityId, NamespaceId, NamespaceName};

use crate::{StoreError, StoreErrorKind};

/// How many children the refusal to delete their parent names.
pub const CHILDREN_NAMED_MAX: usize = 10;

impl StoreError {
    /// The request itself is wrong.
    pub fn invalid(operation: &'static str, message: impl Display) -> StoreError {
        StoreError::new(StoreErrorKind::Invalid, operation, message.to_string())
    }

    /// `what` has another version than the caller has read.
    pub fn conflict(
        operation: &'static str,
        what: impl Display,
        expected: u64,
        found: u64,
    ) -> StoreError {
        let message = format!(
            "{what} is at version {found}, not {expected}: somebody changed it; read it again, then decide again"
        );
        StoreError::new(StoreErrorKind::Conflict, operation, message)
    }

    /// There is no such entity.
    #[must_use]
    pub fn entity_missing(operation: &'static str, id: &EntityId) -> StoreError {
        let message = format!("entity {id} does not exist; create it first");
        StoreError::new(StoreErrorKind::NotFound, operation, message)
    }

    /// An entity to create is there.
    #[must_use]
    pub fn entity_exists(id: &EntityId) -> StoreError {
        let message = format!("entity {id} exists already; update it, or choose another id");
        StoreError::new(StoreErrorKind::AlreadyExists, "create_entity", message)
    }

    /// An entity to delete has children. The first [`CHILDREN_NAMED_MAX`] are named, so one more is
    /// enough to know.
    pub fn has_children<C: AsRef<str>>(
        id: &EntityId,
        children: impl IntoIterator<Item = C>,
    ) -> StoreError {
        let mut children = children.into_iter();
        let named: Vec<C> = children.by_ref().take(CHILDREN_NAMED_MAX).collect();
        let named: Vec<&str> = named.iter().map(AsRef::as_ref).collect();
        let more = if children.next().is_some() { " and more" } else { "" };
        let message =
            format!("entity {id} has children ({}{more}); delete them first", named.join(", "));
        StoreError::new(StoreErrorKind::State, "delete_entity", message)
    }

    /// The namespace of a handle was deleted or purged: the error of every operation that needs an
    /// active one.
    #[must_use]
    pub fn namespace_gone(operation: &'static str) -> StoreError {
        let message = "the namespace of this handle was deleted; recover it, or register it again and open a new handle";
        StoreError::new(StoreErrorKind::NotFound, operation, message)
    }

    /// There is no active namespace of that name.
    #[must_use]
    pub fn namespace_not_registered(operation: &'static str, name: &NamespaceName) -> StoreError {
        let message = format!("namespace \"{name}\" is not registered; register it first");
        StoreError::new(StoreErrorKind::NotFound, operation, message)
    }

    /// No namespace has that id: it was never registered, or was purged.
    #[must_use]
    pub fn namespace_missing(operation: &'static str, id: &NamespaceId) -> StoreError {
        let message =
            format!("there is no namespace {id}; list the orphans to see those there are");
        StoreError::new(StoreErrorKind::NotFound, operation, message)
    }

    /// An id for a new namespace was used before.
    #[must_use]
    pub fn namespace_id_used(id: &NamespaceId) -> StoreError {
        let message =
            format!("namespace id {id} has been used; ids are never used again, choose another");
        StoreError::new(StoreErrorKind::AlreadyExists, "register_namespace", message)
    }

    /// A cursor that this listing did not make.
    #[must_use]
    pub fn foreign_cursor(operation: &'static str) -> StoreError {
        let message = "the cursor is not one of this listing; begin without one";
        StoreError::new(StoreErrorKind::Invalid, operation, message)
    }
}
