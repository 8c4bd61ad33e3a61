//! The audit events of every change, for those who implement a store: the same words, in the same
//! order, in every store. A backend appends the event in the transaction of its change.

use zae_limiter_core::{
    AuditAction, AuditEvent, AuditSubject, Entity, EntityId, Flag, Limit, ResourceName,
};

use crate::{
    Change, Level, LevelConfig, LimitsChange, ManagedChange, Namespace, ResetRequest, Restored,
};

/// Names and values, in the order in which they are told. A name may occur again.
type Details = Vec<(String, String)>;

/// An entity was created.
#[must_use]
pub fn entity_created(change: &Change, entity: &Entity) -> AuditEvent {
    let mut details = name_and_metadata(entity);
    details.extend(entity.parent.iter().map(|parent| ("parent".to_owned(), parent.to_string())));
    details.push(("cascade".to_owned(), entity.cascade.to_string()));
    of_entity(change, AuditAction::EntityCreated, &entity.id, details)
}

/// Name or metadata of an entity changed; the details include the replaced values.
#[must_use]
pub fn entity_updated(change: &Change, after: &Entity, before: &Entity) -> AuditEvent {
    let mut details = name_and_metadata(after);
    let gone =
        before.metadata.iter().filter(|(key, value)| after.metadata.get(*key) != Some(*value));
    details.extend(gone.map(|(key, value)| (format!("was_metadata.{key}"), value.clone())));
    details
        .extend((before.name != after.name).then(|| ("was_name".to_owned(), before.name.clone())));
    of_entity(change, AuditAction::EntityUpdated, &after.id, details)
}

/// An entity was deleted; `removed` names the kinds of records that went with it, with their
/// numbers.
#[must_use]
pub fn entity_deleted(change: &Change, id: &EntityId, removed: &[(&str, u64)]) -> AuditEvent {
    let details = removed.iter().map(|(what, count)| ((*what).to_owned(), count.to_string()));
    of_entity(change, AuditAction::EntityDeleted, id, details.collect())
}

/// Limits replaced those of a level.
#[must_use]
pub fn limits_set(
    change: &Change,
    level: &Level,
    new: &LimitsChange,
    before: &LevelConfig,
) -> AuditEvent {
    let mut details = named("limit", &new.limits);
    details
        .extend(new.on_unavailable.map(|policy| ("on_unavailable".to_owned(), policy.to_string())));
    details.extend(named("was", &before.limits));
    let replaced =
        before.on_unavailable.filter(|policy| new.on_unavailable.is_some_and(|new| new != *policy));
    details.extend(replaced.map(|policy| ("was_on_unavailable".to_owned(), policy.to_string())));
    of_level(change, AuditAction::LimitsSet, level, details)
}

/// The limits of a level were deleted.
#[must_use]
pub fn limits_deleted(change: &Change, level: &Level, before: &LevelConfig) -> AuditEvent {
    of_level(change, AuditAction::LimitsDeleted, level, named("limit", &before.limits))
}

/// A flag replaced that of a level.
#[must_use]
pub fn flag_set(
    change: &Change,
    level: &Level,
    flag: Option<Flag>,
    before: Option<Flag>,
) -> AuditEvent {
    let word = |flag: Option<Flag>| flag.map_or("inherited", Flag::answer).to_owned();
    let details = vec![("disabled".to_owned(), word(flag)), ("was".to_owned(), word(before))];
    of_level(change, AuditAction::FlagsSet, level, details)
}

/// A bucket was filled up; told with what each limit gained.
#[must_use]
pub fn bucket_reset(
    change: &Change,
    request: &ResetRequest<'_>,
    restored: &Restored,
) -> AuditEvent {
    let gained = restored.iter().map(|(name, gained)| (name.to_string(), gained.to_string()));
    let event = of_entity(change, AuditAction::BucketReset, request.entity, gained.collect());
    AuditEvent { resource: Some(request.resource.clone()), ..event }
}

/// A file of limits is applied, or was.
#[must_use]
pub fn limits_applied(change: &Change, managed: &ManagedChange) -> AuditEvent {
    let action = AuditAction::LimitsApplied;
    event(change, action, AuditSubject::System, None, managed.details.clone())
}

/// Buckets and usage were taken over from another store; told with how many.
#[must_use]
pub fn adopted(
    change: &Change,
    buckets: usize,
    usage: usize,
    details: &[(String, String)],
) -> AuditEvent {
    let numbers = [("buckets", buckets), ("usage", usage)];
    let numbers = numbers.map(|(what, count)| (what.to_owned(), count.to_string()));
    let details = numbers.into_iter().chain(details.iter().cloned()).collect();
    event(change, AuditAction::Adopted, AuditSubject::System, None, details)
}

/// Something became of a namespace.
#[must_use]
pub fn of_namespace(change: &Change, action: AuditAction, namespace: &Namespace) -> AuditEvent {
    let details = vec![
        ("namespace".to_owned(), namespace.name.to_string()),
        ("id".to_owned(), namespace.id.to_string()),
    ];
    event(change, action, AuditSubject::System, None, details)
}

fn of_entity(change: &Change, action: AuditAction, id: &EntityId, details: Details) -> AuditEvent {
    event(change, action, AuditSubject::Entity(id.clone()), None, details)
}

fn of_level(change: &Change, action: AuditAction, level: &Level, details: Details) -> AuditEvent {
    event(change, action, level.subject(), level.resource_name().cloned(), details)
}

fn event(
    change: &Change,
    action: AuditAction,
    subject: AuditSubject,
    resource: Option<ResourceName>,
    mut details: Details,
) -> AuditEvent {
    let Change { principal, reason, at, event } = change;
    details.extend(reason.iter().map(|reason| ("reason".to_owned(), reason.to_string())));
    let (id, at, principal) = (*event, *at, principal.clone());
    AuditEvent { id, at, subject, action, principal, resource, details }
}

fn name_and_metadata(entity: &Entity) -> Details {
    let metadata =
        entity.metadata.iter().map(|(key, value)| (format!("metadata.{key}"), value.clone()));
    std::iter::once(("name".to_owned(), entity.name.clone())).chain(metadata).collect()
}

fn named(name: &str, limits: &[Limit]) -> Details {
    limits.iter().map(|limit| (name.to_owned(), limit.to_string())).collect()
}
