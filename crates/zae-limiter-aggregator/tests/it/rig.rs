//! A table in memory with a namespace, an aggregator on it, and what the store reads of its usage.

use std::sync::Arc;

use zae_limiter_aggregator::{Aggregator, Record, Settings, Table};
use zae_limiter_core::{TimeMs, UsageWindow, parse_rfc3339};
use zae_limiter_dynamodb::{DynamoOptions, DynamoStore};
use zae_limiter_store::{Entropy, HistoryStore, PageRequest, SeededEntropy, UsageQuery};
use zae_limiter_testkit::engine::clocks::HurriedClock;
use zae_limiter_testkit::table::EvalTable;

use crate::log::Ledger;

pub(crate) struct Rig {
    pub(crate) table: EvalTable,
    pub(crate) namespace: String,
    pub(crate) clock: HurriedClock,
}

impl Rig {
    pub(crate) async fn new() -> Rig {
        let clock = HurriedClock::at(parse_rfc3339("2026-02-01T03:00:00Z").unwrap());
        let table = EvalTable::new();
        let mut rig = Rig { table, namespace: String::new(), clock };
        rig.namespace = rig.table.initialise(&rig.options()).await.unwrap();
        rig
    }

    pub(crate) fn options(&self) -> DynamoOptions {
        let mut options = DynamoOptions::new();
        options.clock = Arc::new(self.clock.clone());
        options.entropy = Arc::new(SeededEntropy::new(7));
        options
    }

    pub(crate) async fn store(&self) -> DynamoStore {
        self.table.open(self.options()).await.unwrap()
    }

    /// An aggregator by a handle of its own, for every window.
    pub(crate) fn aggregator(&self, table: EvalTable) -> Aggregator {
        aggregator(Arc::new(table), &self.clock)
    }

    pub(crate) async fn process(&self, records: &[Record]) {
        let report = self.aggregator(self.table.client(1)).process(records).await;
        assert!(report.is_complete(), "{report:?}");
    }

    /// Everything that the store reads of the usage.
    pub(crate) async fn usage(&self) -> Ledger {
        usage(&self.store().await).await
    }

    #[track_caller]
    pub(crate) fn whole_tokens_are_those_of_the_sums(&self) {
        let mut looked = 0;
        for item in self.table.items() {
            for (name, value) in &item {
                let Some(limit) = name.strip_suffix("#m") else { continue };
                let milli: i64 = value.as_n().unwrap().parse().unwrap();
                let whole: i64 = item[limit].as_n().unwrap().parse().unwrap();
                assert_eq!(whole, milli.div_euclid(1_000), "{item:?}");
                looked += 1;
            }
        }
        assert!(looked > 0, "there is usage");
    }
}

pub(crate) fn aggregator(table: Arc<dyn Table>, clock: &HurriedClock) -> Aggregator {
    Aggregator::new(table, Settings::new("stack").windows(UsageWindow::ALL))
        .clock(Arc::new(clock.clone()))
        .entropy(Arc::new(SeededEntropy::new(3)))
}

pub(crate) async fn usage(store: &DynamoStore) -> Ledger {
    let mut ledger = Ledger::new();
    for window in UsageWindow::ALL {
        let mut page = PageRequest::first(100);
        loop {
            let query =
                UsageQuery { entity: None, resource: None, window, from: None, until: None, page };
            let answer = store.usage(&query).await.unwrap();
            for found in answer.items {
                let key = window.key(found.start);
                let place = (found.entity.to_string(), found.resource.to_string(), window, key);
                let used = found.counters.iter().map(|(name, used)| (name.to_string(), used.0));
                ledger.insert(place, (used.collect(), i64::try_from(found.events).unwrap()));
            }
            match answer.next {
                Some(cursor) => page = PageRequest::after(100, cursor),
                None => break,
            }
        }
    }
    ledger
}

/// A number below `bound`.
pub(crate) fn below(rng: &SeededEntropy, bound: usize) -> usize {
    usize::try_from(rng.next_u64() % u64::try_from(bound).unwrap()).unwrap()
}

pub(crate) fn day(text: &str) -> TimeMs {
    parse_rfc3339(text).unwrap()
}
