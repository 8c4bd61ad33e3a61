//! The writes of a warm bucket: not a copy of them, but what the store hands to its table.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, ensure};
use zae_limiter::{RateLimiter, Request};
use zae_limiter_dynamodb::sdk::{Builder, SdkTable};
use zae_limiter_dynamodb::table::{
    BatchPage, Item, Key, Put, Query, QueryPage, Table, TableError, Update, Write,
};
use zae_limiter_dynamodb::{DynamoOptions, DynamoStore};
use zae_limiter_store::BoxFuture;

use super::limits;
use super::ours::ADJUSTMENT;
use crate::keys::{REQUESTS, RESOURCE, TOKENS};

/// What a lease on a warm bucket writes: one to take, one to charge the rest.
pub(super) struct WarmWrites {
    pub(super) debit: Update,
    pub(super) charge: Update,
}

impl WarmWrites {
    pub(super) async fn of(builder: &Builder, entity: &str) -> Result<WarmWrites> {
        let recorder =
            Arc::new(Recorder { table: builder.table().await?, updates: Mutex::default() });
        let table: Arc<dyn Table> = Arc::clone(&recorder) as _;
        let mut options = DynamoOptions::new();
        // Without it a bucket that is younger than the grace has its capacity for a ceiling, and
        // one value for both. Those of a row are older.
        options.fast_grace_ms = 0;
        let store = DynamoStore::on_table(table, options, &"default".parse()?).await?;
        let limiter = RateLimiter::builder(store).default_limits(limits()).build()?;
        // The first asks without knowing the bucket, the second knows it.
        for _ in 0..2 {
            recorder.take();
            let lease = limiter
                .acquire(Request::new(entity, RESOURCE).take("rpm", REQUESTS).take("tpm", TOKENS))
                .await?;
            lease.adjust("tpm", ADJUSTMENT)?;
            lease.commit().await?;
        }
        let writes: [Update; 2] = recorder
            .take()
            .try_into()
            .map_err(|writes| anyhow::anyhow!("not two writes: {writes:?}"))?;
        let refills = writes
            .iter()
            .flat_map(|write| &write.actions)
            .any(|action| format!("{action:?}").contains("\"rf\""));
        ensure!(!refills, "a write refills, so it is not that of a warm bucket: {writes:?}");
        let [debit, charge] = writes;
        Ok(WarmWrites { debit, charge })
    }
}

/// A table that remembers the updates.
struct Recorder {
    table: SdkTable,
    updates: Mutex<Vec<Update>>,
}

impl Recorder {
    fn take(&self) -> Vec<Update> {
        std::mem::take(&mut self.updates.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Table for Recorder {
    fn update<'a>(&'a self, update: &'a Update) -> BoxFuture<'a, Result<Item, TableError>> {
        self.updates.lock().unwrap_or_else(PoisonError::into_inner).push(update.clone());
        self.table.update(update)
    }

    fn put<'a>(&'a self, put: &'a Put) -> BoxFuture<'a, Result<(), TableError>> {
        self.table.put(put)
    }

    fn transact<'a>(
        &'a self,
        writes: &'a [Write],
        token: &'a str,
    ) -> BoxFuture<'a, Result<(), TableError>> {
        self.table.transact(writes, token)
    }

    fn batch_get<'a>(
        &'a self,
        keys: &'a [Key],
        consistent: bool,
    ) -> BoxFuture<'a, Result<BatchPage, TableError>> {
        self.table.batch_get(keys, consistent)
    }

    fn query<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<QueryPage, TableError>> {
        self.table.query(query)
    }

    fn delete_batch<'a>(&'a self, keys: &'a [Key]) -> BoxFuture<'a, Result<Vec<Key>, TableError>> {
        self.table.delete_batch(keys)
    }
}
