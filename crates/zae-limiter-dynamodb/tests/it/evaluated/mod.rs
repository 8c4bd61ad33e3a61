//! A table in memory, initialised, and clients of it whose waiting takes no time.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use zae_limiter_core::{EventId, Limit, TimeMs};
use zae_limiter_dynamodb::records::keys;
use zae_limiter_dynamodb::table::{Key, Table};
use zae_limiter_dynamodb::{DynamoOptions, DynamoStore};
use zae_limiter_store::{Change, Clock, LimitsChange, SeededEntropy};
use zae_limiter_testkit::engine::clocks::HurriedClock;
use zae_limiter_testkit::table::{EvalOptions, EvalTable};

/// A table with the namespace `default`.
pub(crate) struct Rig {
    /// The handle of nobody: nothing happens to it.
    pub(crate) table: EvalTable,
    pub(crate) clock: HurriedClock,
    /// The id of the namespace.
    pub(crate) namespace: String,
    clients: AtomicU64,
    events: AtomicU64,
}

impl Rig {
    pub(crate) async fn new(options: EvalOptions) -> Rig {
        let clock = HurriedClock::at(TimeMs(1_767_261_600_000));
        let table = EvalTable::with_options(options);
        let mut rig = Rig {
            table,
            clock,
            namespace: String::new(),
            clients: AtomicU64::new(1),
            events: AtomicU64::new(0),
        };
        rig.namespace = rig.table.initialise(&rig.options()).await.unwrap();
        rig
    }

    /// Options of one more client.
    fn options(&self) -> DynamoOptions {
        let mut options = DynamoOptions::new();
        options.clock = Arc::new(self.clock.clone());
        options.entropy =
            Arc::new(SeededEntropy::new(self.clients.fetch_add(1, Ordering::Relaxed)));
        options
    }

    /// A client that reaches the table in its own way and works as it is told.
    pub(crate) async fn client(
        &self,
        table: impl Table,
        change: impl FnOnce(&mut DynamoOptions),
    ) -> DynamoStore {
        let mut options = self.options();
        change(&mut options);
        DynamoStore::on_table(Arc::new(table), options, &"default".parse().unwrap()).await.unwrap()
    }

    /// A client to whom nothing happens.
    pub(crate) async fn store(&self) -> DynamoStore {
        self.client(self.table.clone(), |_| {}).await
    }

    /// A change with an event of its own, now.
    pub(crate) fn change(&self) -> Change {
        let at = self.clock.now();
        let event = EventId::new(at, self.events.fetch_add(1, Ordering::Relaxed).into());
        Change { principal: Some("ops".parse().unwrap()), reason: None, at, event }
    }

    /// The key of a bucket.
    pub(crate) fn bucket(&self, entity: &str, resource: &str) -> Key {
        keys::bucket_of(&self.namespace, entity, resource, 0)
    }
}

/// One limit, unconditionally.
pub(crate) fn limits(text: &str) -> LimitsChange {
    let limit: Limit = text.parse().unwrap();
    LimitsChange { limits: vec![limit], on_unavailable: None, expected_version: None }
}
