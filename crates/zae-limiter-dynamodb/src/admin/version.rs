//! The version record: whether the table is one of ours, and of a schema we know.

use std::sync::Arc;

use zae_limiter_core::{EventId, NamespaceId, NamespaceName};
use zae_limiter_store::{Change, DEFAULT_NAMESPACE, StoreError, StoreErrorKind};

use crate::admin::namespace::id_of;
use crate::constants::SCHEMA_VERSION;
use crate::records::attr;
use crate::records::item::{text_of, version_item};
use crate::records::keys;
use crate::table::retry::Refused;
use crate::table::{Item, Put, Table, absent};
use crate::{DynamoOptions, DynamoStore, Shared};

impl DynamoStore {
    /// Makes an empty table ready: writes the version record and registers the namespace `default`.
    /// A table that is ready is left as it is. `Incompatible` for a schema of another major
    /// version.
    ///
    /// Cost: one `PutItem`, one `BatchGetItem` and, the first time, one transaction.
    pub async fn initialise(
        table: &Arc<dyn Table>,
        options: &DynamoOptions,
    ) -> Result<(), StoreError> {
        const OPERATION: &str = "initialise";
        let shared = Shared::new(Arc::clone(table), options.clone());
        let now = options.clock.now();
        let item = version_item(SCHEMA_VERSION, now, concat!("client:", env!("CARGO_PKG_VERSION")));
        let put = Put { item, conditions: vec![absent()] };
        match shared.persist(OPERATION, || shared.table.put(&put)).await {
            Ok(()) => {}
            Err(Refused::Condition(Some(found))) => check_schema(OPERATION, &found)?,
            // Some tables do not say what stood in the way.
            Err(Refused::Condition(None)) => {
                let [found] = shared.read(OPERATION, &[keys::version()]).await?;
                found.map_or(Ok(()), |found| check_schema(OPERATION, &found))?;
            }
            Err(refused) => return Err(refused.into_error(OPERATION)),
        }
        let entropy =
            u128::from(options.entropy.next_u64()) << 64 | u128::from(options.entropy.next_u64());
        let change = Change { principal: None, at: now, event: EventId::new(now, entropy) };
        let id = NamespaceId::from_entropy(options.entropy.next_u64());
        let registered = shared.register(&default_namespace(), &id, &change).await;
        registered.map(drop).map_err(|error| error.during(OPERATION))
    }
}

/// The namespace that is there from the beginning.
pub(crate) fn default_namespace() -> NamespaceName {
    DEFAULT_NAMESPACE.parse().expect("the word is a valid namespace name")
}

/// What is being done, for messages.
const OPEN: &str = "open";

impl Shared {
    /// Checks that the table is one this version can work on, and finds the id of a namespace.
    pub(crate) async fn check_and_find(
        &self,
        name: &NamespaceName,
    ) -> Result<Arc<str>, StoreError> {
        let found = self.check_and_look_for(name).await?;
        found.ok_or_else(|| StoreError::namespace_not_registered(OPEN, name))
    }

    /// The same for a namespace that need not be there.
    pub(crate) async fn check_and_look_for(
        &self,
        name: &NamespaceName,
    ) -> Result<Option<Arc<str>>, StoreError> {
        let keys = [keys::version(), keys::namespace_by_name(name.as_str())];
        let [version, namespace] = self.read(OPEN, &keys).await?;
        check_version(OPEN, version.as_ref())?;
        id_of(namespace.as_ref()).map_err(|error| error.during(OPEN))
    }
}

fn check_version(operation: &'static str, version: Option<&Item>) -> Result<(), StoreError> {
    let Some(version) = version else {
        let message = "the table is there but has not been initialised; `zae-limiter local up --name` does so for a local one, `Builder::create` for any other";
        return Err(StoreError::new(StoreErrorKind::NotFound, operation, message));
    };
    check_schema(operation, version)
}

/// Schemas of one major version read each other's items; minor ones only add attributes.
fn check_schema(operation: &'static str, version: &Item) -> Result<(), StoreError> {
    let found = text_of(version, attr::SCHEMA_VERSION).unwrap_or("missing");
    let major = |text: &str| text.split('.').next().and_then(|major| major.parse::<u32>().ok());
    if major(found).is_some() && major(found) == major(SCHEMA_VERSION) {
        return Ok(());
    }
    let message = format!(
        "the schema of the table is {found:?}; this version knows {SCHEMA_VERSION}: use a release that knows the other"
    );
    Err(StoreError::new(StoreErrorKind::Incompatible, operation, message))
}
