//! The real table: [`SdkTable`] over the AWS SDK, how to reach it ([`Builder`]) and how to make it
//! ([`create_table`]).
//!
//! The SDK sends each request once. It would repeat a write whose answer was lost, and a debit
//! would count twice; the callers of the table repeat a request by what its failure proves.

mod address;
mod classify;
mod connect;
mod create;
mod credentials;
pub mod expression;
mod observe;
mod skew;
mod status;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::http::HttpResponse;
use aws_sdk_dynamodb::error::{BuildError, SdkError};
use aws_sdk_dynamodb::operation::query::builders::QueryFluentBuilder;
use aws_sdk_dynamodb::types::{
    AttributeValue, ConditionCheck, ConsumedCapacity, Delete as SdkDelete, DeleteRequest,
    KeysAndAttributes, Put as SdkPut, ReturnConsumedCapacity, ReturnValue,
    ReturnValuesOnConditionCheckFailure, TransactWriteItem, Update as SdkUpdate, WriteRequest,
};
use zae_limiter_store::BoxFuture;

#[doc(hidden)]
pub use address::stack as check_stack_name;
pub use connect::{Builder, StaticCredentials};
pub use create::{Gsi2Projection, Stream, StreamState, TableOptions, create_table, delete_table};
pub use observe::{Call, CallLog, Observer};
pub use status::{StackStatus, WorkerStatus};

use crate::bucket::render::{self, Request};
use crate::bucket::write::{BucketWrite, Purpose};
use crate::constants::{BATCH_GET_MAX, BATCH_WRITE_MAX, TRANSACTION_MAX};
use crate::table::clock::TableTime;
use crate::table::{
    BatchPage, Index, Item, Key, Put, Query, QueryPage, Sort, Table, TableError, Update, Write,
    deleted_alone,
};
use classify::{Decision, classify};
use observe::Spends;
use skew::SkewWatch;

/// Keys a take may ask for at once: the records of a chain of eight and their four levels of
/// limits. A read of more is administration and may take longer.
const HOT_KEYS_MAX: usize = 40;

/// A table of DynamoDB, or of an engine that speaks its language. A clone shares connections,
/// credentials and the observer.
///
/// Made by [`Builder::table`].
#[derive(Clone)]
pub struct SdkTable {
    name: Arc<str>,
    /// For takes and credits: a short timeout.
    hot: Client,
    /// For administration, and for everything until the first answer: names, TLS and credentials
    /// take their time once. Shares connections and credentials with `hot`.
    patient: Client,
    answered: Arc<AtomicBool>,
    skew: Option<SkewWatch>,
    observer: Option<Arc<dyn Observer>>,
}

impl SdkTable {
    /// The name of the table.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The same table, watched. Every call then asks the table what it cost.
    #[must_use]
    pub fn observed_by(mut self, observer: Arc<dyn Observer>) -> SdkTable {
        self.observer = Some(observer);
        self
    }

    /// The client for requests that are not in [`Table`]. It sends each request once, with the
    /// timeouts of administration.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.patient
    }

    fn hot(&self) -> &Client {
        // A flag that guards nothing else: no ordering needed.
        if self.answered.load(Ordering::Relaxed) { &self.hot } else { &self.patient }
    }

    fn return_capacity(&self) -> Option<ReturnConsumedCapacity> {
        self.observer.is_some().then_some(ReturnConsumedCapacity::Indexes)
    }

    /// The end of every call: classify, tell the observer.
    fn ended<O, E: Decision>(
        &self,
        (operation, spends): (&'static str, Spends),
        result: Result<O, SdkError<E, HttpResponse>>,
        capacity: impl FnOnce(&O) -> &[ConsumedCapacity],
    ) -> Result<O, TableError> {
        if !self.answered.load(Ordering::Relaxed)
            && !matches!(&result, Err(error) if error.raw_response().is_none())
        {
            self.answered.store(true, Ordering::Relaxed);
        }
        let result = result.map_err(classify);
        if let Some(observer) = &self.observer {
            observer.called(&observe::call(
                operation,
                spends,
                result.as_ref().err(),
                result.as_ref().map_or(&[], capacity),
            ));
        }
        result
    }
}

/// Sends a request, and looks at the date of its answer when that is due: once a second, so the
/// watch is part of those requests only; boxed, so that the others need not carry room for it.
macro_rules! send_dated {
    ($table:ident, $request:ident) => {
        match $table.skew.as_ref().filter(|skew| skew.0.is_due()) {
            None => $request.send().await,
            Some(skew) => Box::pin($request.customize().interceptor(skew.clone()).send()).await,
        }
    };
}

/// What every conditional request says beside what it writes.
macro_rules! conditional {
    ($request:expr, $rendered:ident) => {
        $request
            .set_condition_expression($rendered.condition)
            .set_expression_attribute_names($rendered.names)
            .set_expression_attribute_values($rendered.values)
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
    };
}

impl Table for SdkTable {
    fn update<'a>(&'a self, update: &'a Update) -> BoxFuture<'a, Result<Item, TableError>> {
        Box::pin(self.send_update(update.clone()))
    }

    /// Overridden to move an update instead of cloning it: this runs for every take.
    fn write_bucket(&self, write: BucketWrite) -> BoxFuture<'_, Result<Item, TableError>> {
        match render::request(write) {
            Request::Update(update) => Box::pin(self.send_update(update)),
            Request::Put(put) => Box::pin(async move { self.put(&put).await.map(|()| put.item) }),
            Request::Delete(_) => Box::pin(std::future::ready(Err(deleted_alone()))),
        }
    }

    fn put<'a>(&'a self, put: &'a Put) -> BoxFuture<'a, Result<(), TableError>> {
        Box::pin(async move {
            let rendered = expression::render(&[], &put.conditions);
            let request = self.hot().put_item().table_name(&*self.name);
            let request = conditional!(request.set_item(Some(put.item.clone())), rendered)
                .set_return_consumed_capacity(self.return_capacity());
            let result = send_dated!(self, request);
            self.ended(("PutItem", Spends::Writes), result, |output| {
                output.consumed_capacity.as_slice()
            })
            .map(drop)
        })
    }

    fn transact<'a>(
        &'a self,
        writes: &'a [Write],
        token: &'a str,
    ) -> BoxFuture<'a, Result<(), TableError>> {
        Box::pin(async move {
            bounded("legs of a transaction", writes.len(), TRANSACTION_MAX)?;
            let legs = writes
                .iter()
                .map(|write| self.leg(write))
                .collect::<Result<Vec<_>, _>>()
                .map_err(not_built)?;
            // A take is granted only for moments: it does not wait as an administrator does.
            let is_take = |write: &Write| {
                matches!(write, Write::Bucket(write) if write.purpose == Purpose::Take)
            };
            let client = if writes.iter().all(is_take) { self.hot() } else { &self.patient };
            let result = client
                .transact_write_items()
                .set_transact_items(Some(legs))
                .client_request_token(token)
                .set_return_consumed_capacity(self.return_capacity())
                .send()
                .await;
            match self.ended(("TransactWriteItems", Spends::Writes), result, |output| {
                output.consumed_capacity()
            }) {
                // Reasons stand for legs by their position; with another number of them they stand
                // for nothing.
                Err(TableError::Canceled(reasons)) if reasons.len() != writes.len() => {
                    Err(TableError::NotApplied(format!(
                        "the transaction was cancelled with {} reasons for {} legs",
                        reasons.len(),
                        writes.len()
                    )))
                }
                other => other.map(drop),
            }
        })
    }

    fn batch_get<'a>(
        &'a self,
        keys: &'a [Key],
        consistent: bool,
    ) -> BoxFuture<'a, Result<BatchPage, TableError>> {
        Box::pin(async move {
            bounded("keys of a batch", keys.len(), BATCH_GET_MAX)?;
            let client = if keys.len() <= HOT_KEYS_MAX { self.hot() } else { &self.patient };
            let wanted = KeysAndAttributes::builder()
                .set_keys(Some(keys.iter().cloned().map(key_item).collect()))
                .consistent_read(consistent)
                .build()
                .map_err(not_built)?;
            let request = client
                .batch_get_item()
                .request_items(&*self.name, wanted)
                .set_return_consumed_capacity(self.return_capacity());
            let result = send_dated!(self, request);
            let output = self.ended(("BatchGetItem", Spends::Reads), result, |output| {
                output.consumed_capacity()
            })?;
            // One table was asked, so the answer is about that table, by whichever name.
            let items =
                output.responses.into_iter().flat_map(HashMap::into_values).flatten().collect();
            let unprocessed = output
                .unprocessed_keys
                .into_iter()
                .flat_map(HashMap::into_values)
                .flat_map(|open| open.keys);
            Ok(BatchPage {
                items,
                unprocessed: unprocessed.map(into_key).collect::<Result<_, _>>()?,
            })
        })
    }

    fn query<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<QueryPage, TableError>> {
        Box::pin(async move {
            let result = self.page(query).send().await;
            let output = self.ended(("Query", Spends::Reads), result, |output| {
                output.consumed_capacity.as_slice()
            })?;
            Ok(QueryPage {
                items: output.items.unwrap_or_default(),
                last: output.last_evaluated_key.filter(|key| !key.is_empty()),
            })
        })
    }

    fn delete_batch<'a>(&'a self, keys: &'a [Key]) -> BoxFuture<'a, Result<Vec<Key>, TableError>> {
        Box::pin(async move {
            bounded("deletes of a batch", keys.len(), BATCH_WRITE_MAX)?;
            let deletes = keys
                .iter()
                .map(|key| {
                    let delete =
                        DeleteRequest::builder().set_key(Some(key_item(key.clone()))).build()?;
                    Ok(WriteRequest::builder().delete_request(delete).build())
                })
                .collect::<Result<Vec<_>, BuildError>>()
                .map_err(not_built)?;
            let result = self
                .patient
                .batch_write_item()
                .request_items(&*self.name, deletes)
                .set_return_consumed_capacity(self.return_capacity())
                .send()
                .await;
            let output = self.ended(("BatchWriteItem", Spends::Writes), result, |output| {
                output.consumed_capacity()
            })?;
            let open =
                output.unprocessed_items.into_iter().flat_map(HashMap::into_values).flatten();
            open.filter_map(|request| request.delete_request)
                .map(|delete| into_key(delete.key))
                .collect()
        })
    }

    fn scan<'a>(
        &'a self,
        prefix: &'a str,
        start: Option<Item>,
    ) -> BoxFuture<'a, Result<QueryPage, TableError>> {
        Box::pin(async move {
            let result = self
                .patient
                .scan()
                .table_name(&*self.name)
                .filter_expression("begins_with(SK,:s)")
                .expression_attribute_values(":s", AttributeValue::S(prefix.to_owned()))
                .set_exclusive_start_key(start)
                .consistent_read(true)
                .set_return_consumed_capacity(self.return_capacity())
                .send()
                .await;
            let output = self.ended(("Scan", Spends::Reads), result, |output| {
                output.consumed_capacity.as_slice()
            })?;
            Ok(QueryPage {
                items: output.items.unwrap_or_default(),
                last: output.last_evaluated_key.filter(|key| !key.is_empty()),
            })
        })
    }

    fn time(&self) -> TableTime {
        self.skew.as_ref().map_or(TableTime::Local, |skew| skew.0.time())
    }
}

impl SdkTable {
    async fn send_update(&self, update: Update) -> Result<Item, TableError> {
        let rendered = expression::render_owned(update.actions, update.conditions);
        let request = self
            .hot()
            .update_item()
            .table_name(&*self.name)
            .set_key(Some(key_item(update.key)))
            .set_update_expression(rendered.update)
            .return_values(ReturnValue::AllNew)
            .set_return_consumed_capacity(self.return_capacity());
        let request = conditional!(request, rendered);
        let result = send_dated!(self, request);
        let output = self.ended(("UpdateItem", Spends::Writes), result, |output| {
            output.consumed_capacity.as_slice()
        })?;
        Ok(output.attributes.unwrap_or_default())
    }

    fn leg(&self, write: &Write) -> Result<TransactWriteItem, BuildError> {
        let rendered = expression::render_write(write);
        let (name, key) = (&*self.name, |key: &Key| Some(key_item(key.clone())));
        let leg = TransactWriteItem::builder();
        Ok(match write {
            Write::Update(update) => {
                let leg_update = SdkUpdate::builder().table_name(name).set_key(key(&update.key));
                let leg_update = leg_update.set_update_expression(rendered.update);
                leg.update(conditional!(leg_update, rendered).build()?)
            }
            Write::Put(put) => {
                let leg_put = SdkPut::builder().table_name(name).set_item(Some(put.item.clone()));
                leg.put(conditional!(leg_put, rendered).build()?)
            }
            Write::Delete(delete) => {
                let leg_delete = SdkDelete::builder().table_name(name).set_key(key(&delete.key));
                leg.delete(conditional!(leg_delete, rendered).build()?)
            }
            Write::Check(check) => {
                let leg_check = ConditionCheck::builder().table_name(name).set_key(key(&check.key));
                leg.condition_check(conditional!(leg_check, rendered).build()?)
            }
            Write::Bucket(bucket) => return self.leg(&bucket.rendered()),
        }
        .build())
    }

    fn page(&self, query: &Query) -> QueryFluentBuilder {
        let (partition, sort) = key_names(query.index);
        let request = self
            .patient
            .query()
            .table_name(&*self.name)
            .set_index_name(query.index.map(|index| index_name(index).to_owned()))
            .expression_attribute_values(":p", AttributeValue::S(query.partition.clone()))
            .set_exclusive_start_key(query.start.clone())
            .set_limit(query.limit)
            .scan_index_forward(query.ascending)
            // An index cannot be read consistently; asking for it is an error.
            .set_consistent_read(query.index.is_none().then_some(query.consistent))
            .set_return_consumed_capacity(self.return_capacity());
        // None of the key names is a reserved word.
        match &query.sort {
            Sort::All => request.key_condition_expression(format!("{partition}=:p")),
            Sort::Prefix(prefix) => request
                .key_condition_expression(format!("{partition}=:p AND begins_with({sort},:s)"))
                .expression_attribute_values(":s", AttributeValue::S(prefix.clone())),
            Sort::Between(first, last) => request
                .key_condition_expression(format!("{partition}=:p AND {sort} BETWEEN :s AND :t"))
                .expression_attribute_values(":s", AttributeValue::S(first.clone()))
                .expression_attribute_values(":t", AttributeValue::S(last.clone())),
        }
    }
}

impl fmt::Debug for SdkTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SdkTable")
            .field("name", &self.name)
            .field("observed", &self.observer.is_some())
            .finish_non_exhaustive()
    }
}

/// What an index is called in the schema.
const fn index_name(index: Index) -> &'static str {
    match index {
        Index::Gsi1 => "GSI1",
        Index::Gsi2 => "GSI2",
        Index::Gsi3 => "GSI3",
        Index::Gsi4 => "GSI4",
    }
}

/// What the partition and sort key of the table or an index are called in the schema.
const fn key_names(index: Option<Index>) -> (&'static str, &'static str) {
    match index {
        None => ("PK", "SK"),
        Some(Index::Gsi1) => ("GSI1PK", "GSI1SK"),
        Some(Index::Gsi2) => ("GSI2PK", "GSI2SK"),
        Some(Index::Gsi3) => ("GSI3PK", "GSI3SK"),
        Some(Index::Gsi4) => ("GSI4PK", "GSI4SK"),
    }
}

fn key_item(key: Key) -> Item {
    HashMap::from([
        ("PK".to_owned(), AttributeValue::S(key.pk)),
        ("SK".to_owned(), AttributeValue::S(key.sk.into_owned())),
    ])
}

fn into_key(mut item: Item) -> Result<Key, TableError> {
    match (item.remove("PK"), item.remove("SK")) {
        (Some(AttributeValue::S(pk)), Some(AttributeValue::S(sk))) => Ok(Key { pk, sk: sk.into() }),
        _ => {
            Err(TableError::Unknown("the table handed back a key that is none of ours".to_owned()))
        }
    }
}

fn bounded(what: &str, count: usize, max: usize) -> Result<(), TableError> {
    if (1..=max).contains(&count) {
        Ok(())
    } else {
        Err(TableError::Rejected(format!("{count} {what}: DynamoDB takes 1 to {max}")))
    }
}

fn not_built(error: BuildError) -> TableError {
    TableError::Rejected(format!("the request is incomplete: {error}"))
}
