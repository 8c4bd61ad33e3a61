//! Changing what is stored at a level: read, then one transaction that is conditional on what was
//! read. A change that loses a race reads again.

use aws_sdk_dynamodb::types::AttributeValue;
use zae_limiter_core::{AuditAction, Flag, Limit};
use zae_limiter_store::{Change, Level, LevelConfig, LimitsChange, StoreError};

use super::registry::{self, Presence};
use crate::DynamoStore;
use crate::admin::change::{Outcome, check_active, is_same_event, too_busy};
use crate::admin::entity::{check_staying, is_staying};
use crate::constants::ADMIN_ATTEMPTS_MAX;
use crate::records::attr;
use crate::records::item::config::{self as stored, CONFIG_VERSION, ON_UNAVAILABLE};
use crate::records::item::{Event, audit_item, details, stored_version, version_of};
use crate::records::keys;
use crate::table::retry::Refused;
use crate::table::{
    Action, Check, Comparison, Condition, Delete, Item, Key, Update, Write, compare_with, number,
    text,
};

/// A level as it was read, to be changed.
struct Found<'a> {
    store: &'a DynamoStore,
    level: &'a Level,
    key: Key,
    item: Option<Item>,
    registry: Option<Item>,
    /// The event of this very change: an earlier attempt of its caller has landed.
    told: Option<Item>,
}

/// What a change makes of a level.
enum Becomes {
    Changed(Vec<Action>),
    Gone,
    /// There was nothing, and there is nothing.
    Nothing,
}

impl<'a> Found<'a> {
    async fn read(
        store: &'a DynamoStore,
        level: &'a Level,
        change: &Change,
        operation: &'static str,
    ) -> Result<Found<'a>, StoreError> {
        let key = stored::key(&store.id, level);
        let told = keys::audit(&store.id, level.subject(), change.event);
        let mut wanted = vec![keys::namespace_by_id(&store.id), told, key.clone()];
        wanted.extend(registry::key(&store.id, level));
        wanted.extend(level.entity_id().map(|entity| keys::entity(&store.id, entity)));
        let mut items = store.shared.read_all(operation, &wanted).await?.into_iter();
        check_active(operation, items.next().flatten().as_ref())?;
        let told = items.next().flatten();
        if let (Some(entity), None) = (level.entity_id(), &told) {
            check_staying(operation, entity, items.next_back().flatten().as_ref())?;
        }
        Ok(Found {
            store,
            level,
            key,
            item: items.next().flatten(),
            registry: items.next().flatten(),
            told,
        })
    }

    /// 0 when nothing is stored.
    fn version(&self) -> u64 {
        self.item.as_ref().map_or(0, |item| version_of(item, CONFIG_VERSION))
    }

    /// A version later than every version this level has had, deleted ones included: versions are
    /// instants.
    fn next_version(&self) -> u64 {
        let tick = self.store.shared.caches.tick(self.store.shared.wall());
        tick.max(self.version().saturating_add(1))
    }

    /// Nobody has changed it since it was read.
    fn unchanged(&self) -> Vec<Condition> {
        let Some(item) = &self.item else { return vec![Condition::Absent(attr::PK.into())] };
        let equal = |(name, value): (&String, &AttributeValue)| {
            compare_with(name.clone(), Comparison::Eq, value.clone())
        };
        let mut conditions = vec![Condition::Exists(attr::PK.into())];
        match item.get_key_value(CONFIG_VERSION) {
            Some(version) => conditions.push(equal(version)),
            None => conditions.push(Condition::Absent(CONFIG_VERSION.into())),
        }
        if self.version() <= 1 {
            // The Python package writes 1 every time: look at the limits themselves.
            conditions.extend(stored::limit_parts(item).map(equal));
        }
        if self.level.entity_id().is_some() {
            conditions.push(registry::registered(item.contains_key(attr::GSI3PK)));
        }
        conditions
    }

    fn presence(&self, becomes: &Becomes) -> Presence {
        let registered = self.item.as_ref().is_some_and(|item| {
            self.level.entity_id().is_none() || item.contains_key(attr::GSI3PK)
        });
        match becomes {
            Becomes::Changed(_) if !registered => Presence::Appears,
            Becomes::Gone if registered => Presence::Disappears,
            _ => Presence::Stays,
        }
    }

    async fn write(
        &self,
        operation: &'static str,
        becomes: Becomes,
        recorded: (&Change, Event<'_>),
    ) -> Result<Outcome, StoreError> {
        self.write_with(operation, becomes, recorded, Vec::new()).await
    }

    /// The same with other writes in the same transaction.
    async fn write_with(
        &self,
        operation: &'static str,
        becomes: Becomes,
        recorded: (&Change, Event<'_>),
        mut writes: Vec<Write>,
    ) -> Result<Outcome, StoreError> {
        let (store, key) = (self.store, self.key.clone());
        if !matches!(becomes, Becomes::Nothing) {
            let counted = registry::update(
                &store.id,
                self.level,
                self.registry.as_ref(),
                self.presence(&becomes),
            );
            writes.extend(counted.map_err(|error| error.during(operation))?);
        }
        match becomes {
            Becomes::Changed(mut actions) => {
                actions.extend(stored::identity_actions(&store.id, self.level));
                writes.push(Write::Update(Update { key, actions, conditions: self.unchanged() }));
            }
            Becomes::Gone => {
                writes.push(Write::Delete(Delete { key, conditions: self.unchanged() }))
            }
            Becomes::Nothing => {}
        }
        writes.extend(
            self.level.entity_id().map(|entity| Write::Check(is_staying(&store.id, entity))),
        );
        store.shared.change(operation, &store.id, writes, recorded).await
    }

    /// True when this very change was made before, and its answer was lost. `details` are those it
    /// would have now, if that can be said; what was there before it does not count.
    fn is_told(
        &self,
        change: &Change,
        action: AuditAction,
        details: Option<crate::records::item::Details>,
    ) -> bool {
        let Some(told) = &self.told else { return false };
        let as_stored =
            details.or_else(|| crate::records::item::details_of(told)).unwrap_or_default();
        is_same_event(told, &audit_item(&self.store.id, change, self.event(action, as_stored), 0))
    }

    fn event(&self, action: AuditAction, details: crate::records::item::Details) -> Event<'a> {
        Event {
            subject: self.level.subject(),
            action,
            resource: stored::resource_word(self.level),
            details,
            version: None,
        }
    }
}

fn version_action(version: u64) -> Action {
    Action::Set(CONFIG_VERSION.into(), number(stored_version(version)))
}

/// Stores limits at a level. Flags and attributes of others stay.
pub(super) async fn set_limits(
    store: &DynamoStore,
    level: &Level,
    new: &LimitsChange,
    change: &Change,
) -> Result<u64, StoreError> {
    const OPERATION: &str = "set_limits";
    new.check(level)?;
    let attempt = || async {
        let found = Found::read(store, level, change, OPERATION).await?;
        // Before the version is compared: it is the one this change has made.
        let details = details::limits(&new.limits, new.on_unavailable);
        if found.is_told(change, AuditAction::LimitsSet, Some(details))
            && let Some(told) = &found.told
        {
            return Ok(Some(version_of(told, CONFIG_VERSION)));
        }
        new.check_version(level, found.version())?;
        let version = found.next_version();
        let mut actions = stored::limit_actions(found.item.as_ref(), &new.limits);
        actions.push(version_action(version));
        actions.extend(
            new.on_unavailable
                .map(|policy| Action::Set(ON_UNAVAILABLE.into(), text(policy.as_str()))),
        );
        let before =
            found.item.as_ref().map_or_else(|| Ok(LevelConfig::default()), stored::level_config);
        let mut event = found.event(AuditAction::LimitsSet, details::limits_set(new, before));
        event.version = Some(version);
        let made = found.write(OPERATION, Becomes::Changed(actions), (change, event)).await?;
        Ok(made.then_some(version))
    };
    store.shared.until_made(OPERATION, attempt).await
}

/// Gives a level the limits that rows of an older form have for it, and takes the rows away in the
/// same transaction. A level that has limits keeps them: they are what every client goes by.
/// Returns whether it got the limits of the rows.
pub(crate) async fn adopt_limits(
    store: &DynamoStore,
    level: &Level,
    limits: &[Limit],
    rows: &[Delete],
    change: &Change,
) -> Result<bool, StoreError> {
    const OPERATION: &str = "migrate";
    LimitsChange::from(limits.to_vec()).check(level)?;
    let attempt = || async {
        let found = Found::read(store, level, change, OPERATION).await?;
        if found.told.is_some() {
            return Ok(Some(true));
        }
        // Another migration may have been faster.
        let keys: Vec<Key> = rows.iter().map(|row| row.key.clone()).collect();
        let there = store.shared.read_all(OPERATION, &keys).await?;
        let gone: Vec<Write> = rows
            .iter()
            .zip(there)
            .filter_map(|(row, item)| item.map(|_| Write::Delete(row.clone())))
            .collect();
        if gone.is_empty() {
            return Ok(Some(false));
        }
        if found.item.as_ref().is_some_and(stored::has_limits) {
            let check = Check { key: found.key.clone(), conditions: found.unchanged() };
            let writes: Vec<Write> = [Write::Check(check)].into_iter().chain(gone).collect();
            return match store.shared.transact(OPERATION, &writes).await {
                Ok(()) => Ok(Some(false)),
                Err(Refused::Canceled(_)) => Ok(None),
                Err(refused) => Err(refused.into_error(OPERATION)),
            };
        }
        // Some rows only: the others went with a change that is not ours to guess at.
        if gone.len() < rows.len() {
            return Ok(None);
        }
        let version = found.next_version();
        let mut actions = stored::limit_actions(found.item.as_ref(), limits);
        actions.push(version_action(version));
        let mut event = found.event(AuditAction::LimitsSet, details::limits(limits, None));
        event.version = Some(version);
        let recorded = (change, event);
        let made = found.write_with(OPERATION, Becomes::Changed(actions), recorded, gone).await?;
        Ok(made.then_some(true))
    };
    store.shared.until_made(OPERATION, attempt).await
}

/// Removes the limits of a level. A flag stays, and so does what others have stored there.
pub(super) async fn delete_limits(
    store: &DynamoStore,
    level: &Level,
    change: &Change,
) -> Result<bool, StoreError> {
    const OPERATION: &str = "delete_limits";
    let attempt = || async {
        let found = Found::read(store, level, change, OPERATION).await?;
        if found.is_told(change, AuditAction::LimitsDeleted, None) {
            return Ok(Some(true));
        }
        let Some(item) = found.item.as_ref().filter(|item| stored::has_limits(item)) else {
            return Ok(Some(false));
        };
        // Limits that cannot be honoured can be deleted all the same.
        let told = match stored::limits(item) {
            Ok(limits) => details::limits(&limits, None),
            Err(error) => details::unreadable(error.message()),
        };
        let becomes = if stored::says_nothing_without(item, false) {
            Becomes::Gone
        } else {
            let mut actions = stored::limit_actions(Some(item), &[]);
            actions.push(version_action(found.next_version()));
            actions.push(Action::Remove(ON_UNAVAILABLE.into()));
            Becomes::Changed(actions)
        };
        let event = found.event(AuditAction::LimitsDeleted, told);
        Ok(found.write(OPERATION, becomes, (change, event)).await?.then_some(true))
    };
    store.shared.until_made(OPERATION, attempt).await
}

/// Stores the flag of a level, or removes it.
pub(super) async fn set_flag(
    store: &DynamoStore,
    level: &Level,
    flag: Option<Flag>,
    change: &Change,
) -> Result<(), StoreError> {
    const OPERATION: &str = "set_flag";
    level.check_flag()?;
    for attempt in 1..=ADMIN_ATTEMPTS_MAX {
        let found = Found::read(store, level, change, OPERATION).await?;
        if found.is_told(change, AuditAction::FlagsSet, Some(details::flag(flag, None))) {
            return Ok(());
        }
        let version = version_action(found.next_version());
        let becomes = match (&found.item, flag) {
            (_, Some(flag)) => Becomes::Changed(vec![
                Action::Set(attr::DISABLED.into(), stored::flag_value(flag)),
                version,
            ]),
            (None, None) => Becomes::Nothing,
            (Some(item), None) if stored::says_nothing_without(item, true) => Becomes::Gone,
            (Some(_), None) => {
                Becomes::Changed(vec![Action::Remove(attr::DISABLED.into()), version])
            }
        };
        // A flag that this version cannot read is replaced all the same.
        let before = found.item.as_ref().and_then(|item| stored::flag(item).ok().flatten());
        let event = found.event(AuditAction::FlagsSet, details::flag(flag, before));
        match found.write(OPERATION, becomes, (change, event)).await? {
            Outcome::Made => return Ok(()),
            Outcome::Lost(_) => store.shared.back_off(attempt).await,
        }
    }
    Err(too_busy(OPERATION))
}
