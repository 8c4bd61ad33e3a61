//! The version record: whether the table is one of ours, of a schema we know, and holds nothing
//! that this release cannot read. The record also has what is set for the table as a whole.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use zae_limiter_core::{EventId, NamespaceId, NamespaceName};
use zae_limiter_store::{Change, DEFAULT_NAMESPACE, StoreError, StoreErrorKind};

use crate::admin::migrate::MIGRATIONS;
use crate::admin::namespace::id_of;
use crate::constants::{
    PYTHON_READ, RATCHET_ATTEMPTS_MAX, RATCHET_PAUSE, READER, READER_OF_SHARDS, READER_RELEASES,
    RETENTION_TRUST, SCHEMA_VERSION,
};
use crate::records::attr;
use crate::records::item::{NewVersion, integer_of, text_of, version_item};
use crate::records::keys;
use crate::table::retry::Refused;
use crate::table::{
    Action, Comparison, Condition, Item, Put, Table, TableError, Update, absent, compare_with,
    exists, number, text,
};
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
        options.check(OPERATION)?;
        let shared = Shared::new(Arc::clone(table), options.clone());
        let now = options.clock.now();
        // A bucket may be split at any time, by those who may not write this record.
        let min_reader = if options.shards_max > 1 { READER_OF_SHARDS } else { 1 };
        let item = version_item(&NewVersion {
            schema: SCHEMA_VERSION,
            client_min: if min_reader > 1 { PYTHON_READ } else { "0.0.0" },
            min_reader: i64::from(min_reader),
            min_reader_release: release_of(min_reader),
            migrated: &MIGRATIONS.map(|migration| migration.name),
            at: now,
            by: WRITER,
        });
        let put = Put { item, conditions: vec![absent()] };
        let found = match shared.persist(OPERATION, || shared.table.put(&put)).await {
            Ok(()) => Some(put.item.clone()),
            Err(Refused::Condition(Some(found))) => Some(found),
            // Some tables do not say what stood in the way.
            Err(Refused::Condition(None)) => {
                let [found] = shared.read(OPERATION, &[keys::version()]).await?;
                found
            }
            Err(refused) => return Err(refused.into_error(OPERATION)),
        };
        if let Some(found) = found {
            let versions = Versions::of(&found);
            versions.check(OPERATION)?;
            shared.remember(&versions);
        }
        let entropy =
            u128::from(options.entropy.next_u64()) << 64 | u128::from(options.entropy.next_u64());
        let change =
            Change { principal: None, reason: None, at: now, event: EventId::new(now, entropy) };
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
        let Some(version) = version else { return Err(not_initialised(OPEN)) };
        let version = Versions::of(&version);
        version.check(OPEN)?;
        self.remember(&version);
        id_of(namespace.as_ref()).map_err(|error| error.during(OPEN))
    }
}

/// The table has no version record.
pub(crate) fn not_initialised(operation: &'static str) -> StoreError {
    let message = "the table is there but has not been initialised; `zae-limiter local up --name` does so for a local one, `Builder::create` for any other";
    StoreError::new(StoreErrorKind::NotFound, operation, message)
}

/// Who writes the record.
pub(crate) const WRITER: &str = concat!("client:", env!("CARGO_PKG_VERSION"));

/// What the version record of a table says.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Versions {
    /// The schema, as the Python package counts it.
    pub schema: String,
    /// The oldest release of the Python package that may open the table.
    pub client_min: String,
    /// The Lambda code of the Python package that serves the table; `None` where there is none, as
    /// on tables with a function of ours.
    pub lambda: Option<String>,
    /// Our function that serves the table, as `upgrade` stamped it.
    pub function: Option<String>,
    /// What a client of ours must be able to read; see [`Versions::READER`].
    pub min_reader: u32,
    /// The first release of ours that can.
    pub min_reader_release: Option<String>,
    /// How long history is kept, where that is stored.
    pub retention: Retention,
    /// Migrations that were finished.
    pub migrated: Vec<String>,
    /// When the record was last written.
    pub updated_at: Option<String>,
    /// Who wrote it.
    pub updated_by: Option<String>,
}

/// For how many days history is kept. What is written from now on carries it; what was written
/// before keeps what it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// Snapshots of usage.
    pub usage_days: Option<u32>,
    /// Audit events.
    pub audit_days: Option<u32>,
}

/// The most days that history can be kept: a hundred years.
pub(crate) const RETENTION_DAYS_MAX: u32 = 36_500;

impl Versions {
    /// What this release can read: 1 is whole buckets, 2 buckets in shards that share their tokens.
    pub const READER: u32 = READER;

    /// The newest release of the Python package whose items this release reads.
    pub const PYTHON: &'static str = PYTHON_READ;

    /// The schema this release writes.
    pub const SCHEMA: &'static str = SCHEMA_VERSION;

    pub(crate) fn of(item: &Item) -> Versions {
        let text = |name: &str| text_of(item, name).map(str::to_owned);
        let days = |name: &str| {
            let days = integer_of(item, name).and_then(|days| u32::try_from(days).ok());
            days.filter(|days| (1..=RETENTION_DAYS_MAX).contains(days))
        };
        Versions {
            schema: text(attr::SCHEMA_VERSION).unwrap_or_else(|| "missing".to_owned()),
            client_min: text(attr::CLIENT_MIN_VERSION).unwrap_or_else(|| "0.0.0".to_owned()),
            lambda: text(attr::LAMBDA_VERSION),
            function: text(attr::FUNCTION_VERSION),
            // A number that is none of ours asks for more than we know.
            min_reader: match item.get(attr::MIN_READER) {
                None => 1,
                Some(_) => integer_of(item, attr::MIN_READER)
                    .and_then(|level| u32::try_from(level).ok())
                    .unwrap_or(u32::MAX),
            },
            min_reader_release: text(attr::MIN_READER_RELEASE),
            retention: Retention {
                usage_days: days(attr::USAGE_RETENTION),
                audit_days: days(attr::AUDIT_RETENTION),
            },
            migrated: match item.get(attr::MIGRATED) {
                Some(aws_sdk_dynamodb::types::AttributeValue::Ss(names)) => {
                    let mut names = names.clone();
                    names.sort_unstable();
                    names
                }
                _ => Vec::new(),
            },
            updated_at: text(attr::UPDATED_AT),
            updated_by: text(attr::UPDATED_BY),
        }
    }

    /// Why this release must not work on the table; `None` when it may.
    #[must_use]
    pub fn incompatibility(&self) -> Option<String> {
        // Schemas of one major version read each other's items; minor ones only add attributes.
        let major = |version: &str| release(version).map(|(major, ..)| major);
        if major(&self.schema).is_none() || major(&self.schema) != major(SCHEMA_VERSION) {
            return Some(format!(
                "the schema of the table is {:?}; this version knows {SCHEMA_VERSION}: use a release that knows the other",
                self.schema
            ));
        }
        if release(&self.client_min) > release(PYTHON_READ) {
            return Some(format!(
                "the table holds what clients older than {} of the Python package cannot read, and this release reads what {PYTHON_READ} writes: use a newer release",
                self.client_min
            ));
        }
        if self.min_reader > READER {
            let needed = self.min_reader_release.as_deref().map_or_else(
                || "a newer release".to_owned(),
                |release| format!("release {release} or a later one"),
            );
            let level = match self.min_reader {
                u32::MAX => "a level that is no number we know".to_owned(),
                level => format!("level {level}"),
            };
            return Some(format!(
                "the table needs readers of {level}, and this release ({}) is one of level {READER}: use {needed}",
                env!("CARGO_PKG_VERSION"),
            ));
        }
        None
    }

    /// Whether the function that serves the table is of a later release than this program.
    #[must_use]
    pub fn is_served_by_newer(&self) -> bool {
        let program = release(env!("CARGO_PKG_VERSION"));
        self.function.as_deref().is_some_and(|function| release(function) > program)
    }

    pub(crate) fn check(&self, operation: &'static str) -> Result<(), StoreError> {
        match self.incompatibility() {
            None => Ok(()),
            Some(why) => Err(StoreError::new(StoreErrorKind::Incompatible, operation, why)),
        }
    }
}

/// Major, minor and patch of a version as the Python package spells it: `0.17.0`, `v0.17`,
/// `0.17.0rc1`, `0.17.0.dev3+gabc`. What follows the numbers does not count.
fn release(version: &str) -> Option<(u64, u64, u64)> {
    let version = version.strip_prefix('v').unwrap_or(version);
    let version = version.split('+').next().unwrap_or_default();
    let mut parts = version.split(['.', '-']);
    let leading = |part: &str| {
        let digits = part.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(part.len());
        part.get(..digits)?.parse::<u64>().ok()
    };
    let major = parts.next().and_then(leading)?;
    let minor = parts.next().and_then(leading)?;
    Some((major, minor, parts.next().and_then(leading).unwrap_or(0)))
}

/// The release that first read at this level.
fn release_of(reader: u32) -> &'static str {
    let known = READER_RELEASES.iter().rev().find(|(level, _)| *level <= reader);
    known.map_or(env!("CARGO_PKG_VERSION"), |(_, release)| release)
}

/// What was last read of the version record.
#[derive(Debug, Default)]
pub(crate) struct Remembered(Mutex<Option<Memory>>);

#[derive(Clone, Copy, Debug)]
struct Memory {
    min_reader: u32,
    audit_days: Option<u32>,
    /// By the monotonic clock.
    read_at: Duration,
    /// Before this the record is not raised again: it was denied.
    raise_from: Duration,
}

impl Remembered {
    fn get(&self) -> Option<Memory> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, memory: Memory) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(memory);
    }
}

impl Shared {
    /// Keeps what the record says.
    pub(crate) fn remember(&self, versions: &Versions) {
        let raise_from = self.version.get().map_or(Duration::ZERO, |known| known.raise_from);
        self.version.set(Memory {
            min_reader: versions.min_reader,
            audit_days: versions.retention.audit_days,
            read_at: self.options.clock.monotonic(),
            raise_from,
        });
    }

    /// How long an audit event is kept that is written now, in seconds. The record is read again
    /// after some minutes, so that a change reaches every process; one that cannot be read is the
    /// one read before.
    pub(crate) async fn audit_retention_s(&self) -> i64 {
        let now = self.options.clock.monotonic();
        let is_fresh = |known: &Memory| now.saturating_sub(known.read_at) < RETENTION_TRUST;
        if !self.version.get().as_ref().is_some_and(is_fresh)
            && let Ok([Some(found)]) = self.read("change", &[keys::version()]).await
        {
            self.remember(&Versions::of(&found));
        }
        let stored = self.version.get().and_then(|known| known.audit_days);
        stored.map_or(self.options.audit_retention_s, |days| i64::from(days) * 86_400)
    }

    /// Whether every client that opens the table from now on reads at this level. Raises what the
    /// record asks for, if it asks for less: once in the life of a table. False when that failed;
    /// what needs such readers is then not written.
    pub(crate) async fn require_reader(&self, level: u32) -> bool {
        let known = self.version.get();
        if known.is_some_and(|known| known.min_reader >= level) {
            return true;
        }
        let now = self.options.clock.monotonic();
        if known.is_some_and(|known| now < known.raise_from) {
            return false;
        }
        let raised = self.raise(level).await;
        if let Err(error) = &raised {
            let is_denied = matches!(error, TableError::Denied(_));
            let memory = self.version.get().filter(|_| is_denied);
            if let Some(known) = memory {
                let raise_from = now.saturating_add(RATCHET_PAUSE);
                self.version.set(Memory { raise_from, ..known });
            }
            tracing::warn!(
                %error,
                "buckets are not split: the version record does not ask for readers of shards yet, and could not be changed; `zae-limiter upgrade` does so"
            );
        }
        raised.is_ok()
    }

    pub(crate) async fn raise(&self, level: u32) -> Result<(), TableError> {
        let key = keys::version();
        let mut found = None;
        for _ in 0..RATCHET_ATTEMPTS_MAX {
            if found.is_none() {
                let page = self.table.batch_get(std::slice::from_ref(&key), true).await?;
                found = page.items.into_iter().next();
            }
            // Nobody can open a table without a record.
            let Some(item) = found.take() else { return Ok(()) };
            let versions = Versions::of(&item);
            self.remember(&versions);
            if versions.min_reader >= level {
                return Ok(());
            }
            let update = raised(&versions, &item, level, self.options.clock.now());
            match self.table.update(&update).await {
                Ok(item) => {
                    self.remember(&Versions::of(&item));
                    return Ok(());
                }
                Err(TableError::Condition(now)) => found = now,
                Err(error) => return Err(error),
            }
        }
        Err(TableError::NotApplied("others keep writing the version record".to_owned()))
    }
}

/// A write that raises what a table asks of its readers, and lowers nothing.
fn raised(versions: &Versions, item: &Item, level: u32, now: zae_limiter_core::TimeMs) -> Update {
    let unchanged = |name: &'static str| match item.get(name) {
        Some(value) => compare_with(name, Comparison::Eq, value.clone()),
        None => Condition::Absent(name.into()),
    };
    let client_min = match release(&versions.client_min) < release(PYTHON_READ) {
        true => PYTHON_READ,
        false => versions.client_min.as_str(),
    };
    let actions = vec![
        Action::Set(attr::CLIENT_MIN_VERSION.into(), text(client_min)),
        Action::Set(attr::MIN_READER.into(), number(i64::from(level))),
        Action::Set(attr::MIN_READER_RELEASE.into(), text(release_of(level))),
        Action::Set(attr::UPDATED_AT.into(), text(zae_limiter_core::rfc3339(now))),
        Action::Set(attr::UPDATED_BY.into(), text(WRITER)),
    ];
    let conditions =
        vec![exists(), unchanged(attr::CLIENT_MIN_VERSION), unchanged(attr::MIN_READER)];
    Update { key: keys::version(), actions, conditions }
}

#[cfg(test)]
mod tests {
    use super::release;

    #[test]
    fn versions_are_compared_by_their_numbers() {
        for (text, expected) in [
            ("0.17.0", Some((0, 17, 0))),
            ("v1.2.3", Some((1, 2, 3))),
            ("0.1.dev1+ge76be3284", Some((0, 1, 0))),
            ("0.15.0rc1.dev3+gabcdef", Some((0, 15, 0))),
            ("0.15.0-rc1", Some((0, 15, 0))),
            ("0.17", Some((0, 17, 0))),
            ("1", None),
            ("missing", None),
            ("", None),
        ] {
            assert_eq!(release(text), expected, "{text}");
        }
        assert!(release("0.9.0") < release("0.17.0"));
        assert!(release("nonsense") < release("0.0.0"), "nonsense asks for nothing");
    }
}
