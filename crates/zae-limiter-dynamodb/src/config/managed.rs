//! What files of limits manage: one item per part, beside the configuration of the system.

use zae_limiter_core::{AuditAction, AuditSubject};
use zae_limiter_store::{Change, Managed, ManagedChange, StoreError};

use crate::DynamoStore;
use crate::admin::change::{check_active, is_same_event};
use crate::records::attr;
use crate::records::item::config::CONFIG_VERSION;
use crate::records::item::{
    Event, audit_item, details, index_actions, required_text, stored_version, version_of,
};
use crate::records::keys;
use crate::table::{Action, Comparison, Condition, Item, Update, Write, compare, number, text};

fn read(item: &Item) -> Result<Managed, StoreError> {
    let text = required_text(item, attr::MANAGED)?.to_owned();
    Ok(Managed { text, version: version_of(item, attr::VERSION) })
}

impl DynamoStore {
    /// Cost: one `BatchGetItem`.
    pub(super) async fn read_managed(&self, part: u32) -> Result<Option<Managed>, StoreError> {
        const OPERATION: &str = "managed";
        let item = self.read_active(OPERATION, keys::managed(&self.id, part)).await?;
        item.as_ref().map(read).transpose().map_err(|error| error.during(OPERATION))
    }

    /// Cost: one `BatchGetItem` and one transaction of three.
    pub(super) async fn write_managed(
        &self,
        part: u32,
        new: &ManagedChange,
        change: &Change,
    ) -> Result<u64, StoreError> {
        const OPERATION: &str = "set_managed";
        new.check(part)?;
        let key = keys::managed(&self.id, part);
        let event = |version| Event {
            subject: AuditSubject::System,
            action: AuditAction::LimitsApplied,
            resource: None,
            details: details::texts(&new.details),
            version: Some(version),
        };
        let attempt = || async {
            let wanted = [
                keys::namespace_by_id(&self.id),
                key.clone(),
                keys::audit(&self.id, AuditSubject::System, change.event),
            ];
            let [record, found, told] = self.shared.read(OPERATION, &wanted).await?;
            check_active(OPERATION, record.as_ref())?;
            // Before the version is compared: it is the one this change has made.
            let ours =
                |told: &&Item| is_same_event(told, &audit_item(&self.id, change, event(0), 0));
            if let Some(told) = told.as_ref().filter(ours) {
                return Ok(Some(version_of(told, CONFIG_VERSION)));
            }
            let before = found.as_ref().map_or(0, |item| version_of(item, attr::VERSION));
            new.check_version(before)?;
            let tick = self.shared.caches.tick(self.shared.wall());
            let version = tick.max(before.saturating_add(1));
            let mut actions = vec![
                Action::Set(attr::MANAGED.into(), text(new.text.as_str())),
                Action::Set(attr::VERSION.into(), number(stored_version(version))),
            ];
            actions.extend(index_actions(&self.id, &key));
            let unchanged = match &found {
                Some(_) => compare(attr::VERSION, Comparison::Eq, stored_version(before)),
                None => Condition::Absent(attr::PK.into()),
            };
            let update = Update { key: key.clone(), actions, conditions: vec![unchanged] };
            let recorded = (change, event(version));
            let made =
                self.shared.change(OPERATION, &self.id, vec![Write::Update(update)], recorded);
            Ok(made.await?.then_some(version))
        };
        self.shared.until_made(OPERATION, attempt).await
    }
}
