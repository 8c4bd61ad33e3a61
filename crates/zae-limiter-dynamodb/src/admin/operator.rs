//! What an operator does to a table as a whole, whether or not this release may open it.

use std::fmt;
use std::sync::Arc;

use zae_limiter_core::rfc3339;
use zae_limiter_store::{StoreError, StoreErrorKind};

use crate::admin::version::{RETENTION_DAYS_MAX, Retention, Versions, WRITER, not_initialised};
use crate::constants::READER_OF_SHARDS;
use crate::records::attr;
use crate::records::item::nothing;
use crate::records::keys;
use crate::table::error::failed;
use crate::table::retry::Refused;
use crate::table::{Action, Table, Update, exists, number, text};
use crate::{DynamoOptions, Shared};

/// Works on a table as a whole: its version record, and what is stored in older forms.
pub struct Operator {
    pub(crate) shared: Arc<Shared>,
}

impl Operator {
    /// On any table; nothing is checked.
    #[must_use]
    pub fn on_table(table: Arc<dyn Table>, options: DynamoOptions) -> Operator {
        Operator { shared: Arc::new(Shared::new(table, options)) }
    }

    /// The version record; `None` for a table that has none.
    ///
    /// Cost: one `BatchGetItem`.
    pub async fn versions(&self) -> Result<Option<Versions>, StoreError> {
        let [found] = self.shared.read("versions", &[keys::version()]).await?;
        Ok(found.as_ref().map(Versions::of))
    }

    /// Changes how long history is kept; what is `None` stays. What was written before keeps its
    /// own time. Clients and aggregators follow within minutes. `Incompatible` for a table that
    /// this release must not work on.
    ///
    /// Cost: one `BatchGetItem` and one `UpdateItem`.
    pub async fn set_retention(&self, retention: Retention) -> Result<Versions, StoreError> {
        const OPERATION: &str = "set_retention";
        let mut actions = Vec::new();
        for (name, days) in [
            (attr::USAGE_RETENTION, retention.usage_days),
            (attr::AUDIT_RETENTION, retention.audit_days),
        ] {
            let Some(days) = days else { continue };
            if !(1..=RETENTION_DAYS_MAX).contains(&days) {
                let message =
                    format!("{name}: {days} is no number of days from 1 to {RETENTION_DAYS_MAX}");
                return Err(StoreError::new(StoreErrorKind::Invalid, OPERATION, message));
            }
            actions.push(Action::Set(name.into(), number(i64::from(days))));
        }
        match self.versions().await.map_err(|error| error.during(OPERATION))? {
            Some(versions) => versions.check(OPERATION)?,
            None => return Err(not_initialised(OPERATION)),
        }
        self.write(OPERATION, actions).await
    }

    /// Says which function of ours serves the table; `None` for no function any more. No Lambda of
    /// the Python package does then, and clients of that package push none.
    ///
    /// Cost: one `UpdateItem`.
    pub async fn stamp_function(&self, version: Option<&str>) -> Result<Versions, StoreError> {
        let function = match version {
            Some(version) => Action::Set(attr::FUNCTION_VERSION.into(), text(version)),
            None => Action::Remove(attr::FUNCTION_VERSION.into()),
        };
        let lambda = Action::Set(attr::LAMBDA_VERSION.into(), nothing());
        self.write("stamp_function", vec![function, lambda]).await
    }

    /// Asks for clients that read shards, before anybody writes some. Clients that may only take
    /// cannot do that themselves, and do not split buckets before it is done.
    ///
    /// Cost: one `BatchGetItem` and, the first time, one `UpdateItem`.
    pub async fn require_shard_readers(&self) -> Result<(), StoreError> {
        const OPERATION: &str = "require_readers";
        self.shared.raise(READER_OF_SHARDS).await.map_err(|error| failed(OPERATION, error))
    }

    /// Changes the version record, which must be there; other attributes stay.
    pub(crate) async fn write(
        &self,
        operation: &'static str,
        mut actions: Vec<Action>,
    ) -> Result<Versions, StoreError> {
        let at = rfc3339(self.shared.options.clock.now());
        actions.push(Action::Set(attr::UPDATED_AT.into(), text(at)));
        actions.push(Action::Set(attr::UPDATED_BY.into(), text(WRITER)));
        let update = Update { key: keys::version(), actions, conditions: vec![exists()] };
        match self.shared.persist(operation, || self.shared.table.update(&update)).await {
            Ok(item) => Ok(Versions::of(&item)),
            Err(Refused::Condition(_)) => Err(not_initialised(operation)),
            Err(refused) => Err(refused.into_error(operation)),
        }
    }
}

impl fmt::Debug for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operator").finish_non_exhaustive()
    }
}
