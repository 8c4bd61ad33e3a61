//! Repeating what may be repeated: reads, transactions that carry a token, and writes of flags,
//! which pin what they replace. Takes, charges and credits have rules of their own
//! (`bucket/exchange.rs`).

use std::collections::HashMap;
use std::time::Duration;

use zae_limiter_store::{BoxFuture, StoreError};

use crate::Shared;
use crate::admin::change::too_busy;
use crate::config::Changing;
use crate::constants::{
    ADMIN_ATTEMPTS_MAX, BACKOFF_FIRST, BACKOFF_MAX, BATCH_GET_MAX, BATCH_WRITE_MAX,
};
use crate::records::item::key_of;
use crate::records::keys;
use crate::table::error::failed;
use crate::table::{Cancellation, Item, Key, Query, QueryPage, TableError, Write};

impl Shared {
    /// Waits before attempt number `attempt` (1 is the first repetition): exponential, full jitter.
    pub(crate) async fn back_off(&self, attempt: u32) {
        self.pause_up_to(BACKOFF_FIRST, attempt).await;
    }

    /// The same with another first ceiling.
    pub(crate) async fn pause_up_to(&self, first: Duration, attempt: u32) {
        let ceiling = first.saturating_mul(1 << attempt.saturating_sub(1).min(10)).min(BACKOFF_MAX);
        let ceiling_us = u64::try_from(ceiling.as_micros()).unwrap_or(u64::MAX).max(1);
        let pause = Duration::from_micros(self.options.entropy.next_u64() % ceiling_us);
        self.options.clock.sleep(pause).await;
    }

    /// Repeats a call that may be repeated until it gives an answer. A failed condition is an
    /// answer too.
    pub(crate) async fn persist<'a, T>(
        &'a self,
        operation: &'static str,
        mut call: impl FnMut() -> BoxFuture<'a, Result<T, TableError>>,
    ) -> Result<T, Refused> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            let error = match call().await {
                Ok(answer) => return Ok(answer),
                Err(TableError::Condition(item)) => return Err(Refused::Condition(item)),
                Err(TableError::Canceled(reasons)) if is_decided(&reasons) => {
                    return Err(Refused::Canceled(reasons));
                }
                Err(error) => error,
            };
            let passing = matches!(
                error,
                TableError::Canceled(_)
                    | TableError::NotApplied(_)
                    | TableError::Unreachable(_)
                    | TableError::Unknown(_)
            );
            if !passing || attempt >= ADMIN_ATTEMPTS_MAX {
                return Err(Refused::Failed(failed(operation, error)));
            }
            self.back_off(attempt).await;
        }
    }

    /// Applies all writes or none, exactly once: the token stays the same over all attempts.
    pub(crate) async fn transact(
        &self,
        operation: &'static str,
        writes: &[Write],
    ) -> Result<(), Refused> {
        let token = self.token();
        let _changing = Changing::writes(&self.caches.records, writes);
        self.persist(operation, || self.table.transact(writes, &token)).await
    }

    /// The same for a call that has no condition.
    async fn ask<'a, T>(
        &'a self,
        operation: &'static str,
        call: impl FnMut() -> BoxFuture<'a, Result<T, TableError>>,
    ) -> Result<T, StoreError> {
        self.persist(operation, call).await.map_err(|refused| refused.into_error(operation))
    }

    /// Tries a change until it is made. An attempt reads, decides and writes; `None` says that
    /// another writer was faster.
    pub(crate) async fn until_made<T, F>(
        &self,
        operation: &'static str,
        attempt: impl Fn() -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = Result<Option<T>, StoreError>>,
    {
        for lost in 1..=ADMIN_ATTEMPTS_MAX {
            if let Some(made) = attempt().await? {
                return Ok(made);
            }
            self.back_off(lost).await;
        }
        Err(too_busy(operation))
    }

    /// Reads items by key, any number of them, in the order asked. A key the table withholds is
    /// asked for again; it never counts as missing.
    pub(crate) async fn read_all(
        &self,
        operation: &'static str,
        keys: &[Key],
    ) -> Result<Vec<Option<Item>>, StoreError> {
        let mut found = HashMap::with_capacity(keys.len());
        for chunk in keys.chunks(BATCH_GET_MAX) {
            let (mut open, mut turn) = (chunk.to_vec(), 0);
            while !open.is_empty() {
                self.next_turn(operation, &mut turn, "keeps back some of the keys asked for")
                    .await?;
                let page = self.ask(operation, || self.table.batch_get(&open, true)).await?;
                let keyed = |item: Item| Some((key_of(&item)?, item));
                found.extend(page.items.into_iter().filter_map(keyed));
                open = page.unprocessed;
            }
        }
        Ok(keys.iter().map(|key| found.remove(key)).collect())
    }

    /// Reads a few items by key, in the order asked.
    pub(crate) async fn read<const N: usize>(
        &self,
        operation: &'static str,
        keys: &[Key; N],
    ) -> Result<[Option<Item>; N], StoreError> {
        let found = self.read_all(operation, keys).await?;
        Ok(found.try_into().expect("every key has its answer"))
    }

    /// One page of a query.
    pub(crate) async fn query(
        &self,
        operation: &'static str,
        query: &Query,
    ) -> Result<QueryPage, StoreError> {
        self.ask(operation, || self.table.query(query)).await
    }

    /// One page of a scan of the whole table.
    pub(crate) async fn scan(
        &self,
        operation: &'static str,
        prefix: &str,
        start: Option<Item>,
    ) -> Result<QueryPage, StoreError> {
        self.ask(operation, || self.table.scan(prefix, start.clone())).await
    }

    /// Answers when the table does.
    pub(crate) async fn ping(&self) -> Result<(), StoreError> {
        let key = [keys::version()];
        self.ask("ping", || self.table.batch_get(&key, false)).await.map(drop)
    }

    /// Deletes items by key, any number of them.
    pub(crate) async fn delete_all(
        &self,
        operation: &'static str,
        keys: &[Key],
    ) -> Result<(), StoreError> {
        let _changing = Changing::deletes(&self.caches.records, keys);
        for chunk in keys.chunks(BATCH_WRITE_MAX) {
            let (mut open, mut turn) = (chunk.to_vec(), 0);
            while !open.is_empty() {
                self.next_turn(operation, &mut turn, "keeps refusing some of the deletes").await?;
                open = self.ask(operation, || self.table.delete_batch(&open)).await?;
            }
        }
        Ok(())
    }

    /// Waits before the rest of a batch is sent once more, and gives up after too many turns.
    async fn next_turn(
        &self,
        operation: &'static str,
        turn: &mut u32,
        problem: &str,
    ) -> Result<(), StoreError> {
        if *turn >= ADMIN_ATTEMPTS_MAX {
            return Err(failed(operation, TableError::NotApplied(format!("the table {problem}"))));
        }
        if *turn > 0 {
            self.back_off(*turn).await;
        }
        *turn += 1;
        Ok(())
    }

    /// A token for one transaction: 32 hexadecimal digits.
    pub(crate) fn token(&self) -> String {
        format!("{:016x}{:016x}", self.options.entropy.next_u64(), self.options.entropy.next_u64())
    }
}

/// Why a call that may be repeated gave no answer.
pub(crate) enum Refused {
    /// The condition failed; the item as it is.
    Condition(Option<Item>),
    /// A leg of the transaction stood in the way.
    Canceled(Vec<Cancellation>),
    /// Anything else, as the contract says it.
    Failed(StoreError),
}

impl Refused {
    /// For calls that have no condition, or none that can fail in a way the caller knows better.
    pub(crate) fn into_error(self, operation: &'static str) -> StoreError {
        match self {
            Refused::Condition(item) => failed(operation, TableError::Condition(item)),
            Refused::Canceled(reasons) => failed(operation, TableError::Canceled(reasons)),
            Refused::Failed(error) => error,
        }
    }
}

/// True when some leg failed for good; false when only conflicts and throttling stood in the way,
/// which pass.
pub(crate) fn is_decided(reasons: &[Cancellation]) -> bool {
    reasons
        .iter()
        .any(|reason| matches!(reason, Cancellation::Condition(_) | Cancellation::Rejected(_)))
}
