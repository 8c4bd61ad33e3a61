//! Which namespaces are there: usage of one that was purged must not rise from the dead.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use zae_limiter_dynamodb::stream::{
    Item, Key, TableError, is_namespace_there, namespace_keys, settings_key, usage_retention_days,
};

use crate::aggregator::{Aggregator, is_passing};

/// A namespace that is there is looked up again after this long.
const TRUST: Duration = Duration::from_secs(60);

/// Namespaces remembered at most; then all are looked up again.
const NAMESPACES_MAX: usize = 10_000;

/// Keys of one read.
const KEYS_MAX: usize = 100;

/// What is known of namespaces.
#[derive(Default)]
pub(crate) struct Namespaces(Mutex<HashMap<String, Known>>);

#[derive(Clone, Copy)]
enum Known {
    /// By the monotonic clock.
    ThereAt(Duration),
    /// For good: an id is never used again.
    Gone,
}

impl Namespaces {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Aggregator {
    /// Whether each of some namespaces is there. An error when the registry cannot be read.
    pub(crate) async fn are_there(
        &self,
        ids: BTreeSet<&str>,
    ) -> Result<BTreeMap<String, bool>, TableError> {
        let now = self.clock.monotonic();
        let mut answers = BTreeMap::new();
        let mut open = Vec::new();
        {
            let known = self.namespaces.lock();
            for id in ids {
                match known.get(id) {
                    Some(Known::Gone) => drop(answers.insert(id.to_owned(), false)),
                    Some(Known::ThereAt(at)) if now.saturating_sub(*at) < TRUST => {
                        answers.insert(id.to_owned(), true);
                    }
                    _ => open.push(id),
                }
            }
        }
        for chunk in open.chunks(KEYS_MAX / 2 - 1) {
            let mut keys: Vec<Key> = chunk.iter().flat_map(|id| namespace_keys(id)).collect();
            // On the way: it costs no request of its own, and is as fresh as the namespaces are.
            keys.push(settings_key());
            let found = self.read_all(keys).await?;
            self.keep_days(usage_retention_days(&found));
            let mut known = self.namespaces.lock();
            if known.len() + chunk.len() > NAMESPACES_MAX {
                known.clear();
            }
            for id in chunk {
                let is_there = is_namespace_there(id, &found);
                known.insert(
                    (*id).to_owned(),
                    if is_there { Known::ThereAt(now) } else { Known::Gone },
                );
                answers.insert((*id).to_owned(), is_there);
            }
        }
        Ok(answers)
    }

    /// Reads items by key, at most a hundred.
    pub(crate) async fn read_all(&self, mut open: Vec<Key>) -> Result<Vec<Item>, TableError> {
        let mut found = Vec::new();
        let mut attempt = 0;
        loop {
            let error = match self.table.batch_get(&open, true).await {
                Ok(page) => {
                    found.extend(page.items);
                    open = page.unprocessed;
                    if open.is_empty() {
                        return Ok(found);
                    }
                    TableError::NotApplied("the table keeps back some of the keys".to_owned())
                }
                Err(error) => error,
            };
            attempt += 1;
            if !is_passing(&error) || attempt >= self.attempts_max {
                return Err(error);
            }
            self.back_off(attempt).await;
        }
    }
}
