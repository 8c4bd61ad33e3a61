//! The table as this crate sees it: a handful of calls, as data, and how they can fail.
//!
//! Everything the protocol sends is a value of this module, so that tests can inspect it and the
//! simulator can replay it: the real table is [`crate::table::sdk::SdkTable`], the one of the
//! simulator evaluates the same values in memory.

pub mod clock;
pub(crate) mod error;
pub(crate) mod page;
pub(crate) mod retry;
pub mod sdk;

use std::borrow::Cow;
use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;
use zae_limiter_store::BoxFuture;

use crate::bucket::render::{self, Request};
use crate::bucket::write::BucketWrite;
use crate::records::attr;
use crate::table::clock::TableTime;

/// The attributes of one item.
pub type Item = HashMap<String, AttributeValue>;

/// The name of a top-level attribute. Short ones, which nearly all are, are not on the heap: a take
/// names dozens.
pub type Attr = smol_str::SmolStr;

/// Which item.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Partition key.
    pub pk: String,
    /// Sort key.
    pub sk: Cow<'static, str>,
}

/// One clause of an update expression.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// `SET attr = value`.
    Set(Attr, AttributeValue),
    /// `SET attr = if_not_exists(attr, value)`.
    SetIfAbsent(Attr, AttributeValue),
    /// `ADD attr n` for a number; creates the attribute when it is missing.
    Add(Attr, i64),
    /// `ADD attr {member}` for a string set.
    AddMember(Attr, String),
    /// `DELETE attr {member}` for a string set; an empty set disappears.
    DeleteMember(Attr, String),
    /// `REMOVE attr`.
    Remove(Attr),
}

impl Action {
    /// The attribute it writes.
    #[must_use]
    pub fn attr(&self) -> &Attr {
        match self {
            Action::Set(attr, _)
            | Action::SetIfAbsent(attr, _)
            | Action::Add(attr, _)
            | Action::AddMember(attr, _)
            | Action::DeleteMember(attr, _)
            | Action::Remove(attr) => attr,
        }
    }
}

/// How a condition compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// `=`
    Eq,
    /// `<>`; true also when the attribute is missing.
    Ne,
    /// `<`
    Lt,
    /// `<=`
    Le,
    /// `>`
    Gt,
    /// `>=`
    Ge,
}

/// What must hold for a write to happen.
#[derive(Clone, Debug, PartialEq)]
pub enum Condition {
    /// `attribute_exists(attr)`
    Exists(Attr),
    /// `attribute_not_exists(attr)`
    Absent(Attr),
    /// `attr op value`; false when the attribute is missing or of another type (but see
    /// [`Comparison::Ne`]).
    Compare(Attr, Comparison, Box<AttributeValue>),
    /// `attr op number`, the usual case. `Compare` boxes its value because an `AttributeValue` is
    /// large.
    CompareNumber(Attr, Comparison, i64),
    /// Every one of them.
    All(Vec<Condition>),
    /// At least one of them.
    Any(Vec<Condition>),
}

/// A conditional `UpdateItem`. Creates the item when no condition demands that it exists.
#[derive(Clone, Debug, PartialEq)]
pub struct Update {
    /// Which item.
    pub key: Key,
    /// What to change; no attribute twice.
    pub actions: Vec<Action>,
    /// All of them must hold.
    pub conditions: Vec<Condition>,
}

/// A conditional `PutItem`.
#[derive(Clone, Debug, PartialEq)]
pub struct Put {
    /// The whole item, its keys included.
    pub item: Item,
    /// All of them must hold.
    pub conditions: Vec<Condition>,
}

/// A conditional `DeleteItem`.
#[derive(Clone, Debug, PartialEq)]
pub struct Delete {
    /// Which item.
    pub key: Key,
    /// All of them must hold.
    pub conditions: Vec<Condition>,
}

/// A condition on an item a transaction does not write.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// Which item.
    pub key: Key,
    /// All of them must hold.
    pub conditions: Vec<Condition>,
}

/// One leg of a transaction.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// See [`Update`].
    Update(Update),
    /// See [`Put`].
    Put(Put),
    /// See [`Delete`].
    Delete(Delete),
    /// See [`Check`].
    Check(Check),
    /// A write of a bucket.
    Bucket(Box<BucketWrite>),
}

impl Write {
    /// A leg that makes an item, if it is not there.
    pub(crate) fn create(item: Item) -> Write {
        Write::Put(Put { item, conditions: vec![absent()] })
    }

    /// The same without words of the domain: the write of a bucket as an update, a put or a delete.
    #[must_use]
    pub fn rendered(&self) -> Cow<'_, Write> {
        match self {
            Write::Bucket(bucket) => Cow::Owned(bucket.rendered()),
            plain => Cow::Borrowed(plain),
        }
    }
}

/// The indexes of the schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Index {
    /// Children of a parent; all attributes.
    Gsi1,
    /// Buckets and usage of a resource; only keys on tables of ours, all attributes on those of the
    /// Python package.
    Gsi2,
    /// Buckets of an entity, entities with a configuration of their own; only keys.
    Gsi3,
    /// Everything in a namespace; only keys.
    Gsi4,
}

/// Which sort keys a query wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sort {
    /// All of the partition.
    All,
    /// Those that begin with this.
    Prefix(String),
    /// From the first to the second, both included.
    Between(String, String),
}

/// One page of a `Query`.
#[derive(Clone, Debug, PartialEq)]
pub struct Query {
    /// An index, or the table itself.
    pub index: Option<Index>,
    /// The partition.
    pub partition: String,
    /// Which part of it.
    pub sort: Sort,
    /// Where the page before ended.
    pub start: Option<Item>,
    /// At most this many items are looked at.
    pub limit: Option<i32>,
    /// Ascending order of the sort key.
    pub ascending: bool,
    /// Reads what was written before, on the table itself only.
    pub consistent: bool,
}

impl Query {
    /// A query for a part of the table or of an index, from its beginning: ascending, and
    /// consistent where that can be had.
    pub(crate) fn of(index: Option<Index>, partition: String, sort: Sort) -> Query {
        let consistent = index.is_none();
        Query { index, partition, sort, start: None, limit: None, ascending: true, consistent }
    }
}

/// What a page of a query found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QueryPage {
    /// The items; only their keys where the index keeps no more. May be empty although it is not
    /// the last page.
    pub items: Vec<Item>,
    /// Where the next page begins; `None` on the last.
    pub last: Option<Item>,
}

/// What a `BatchGetItem` found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BatchPage {
    /// The items that exist, in any order.
    pub items: Vec<Item>,
    /// Keys the table did not get to: neither there nor missing. Ask again.
    pub unprocessed: Vec<Key>,
}

/// Why one leg of a transaction stood in the way, or did not.
#[derive(Clone, Debug, PartialEq)]
pub enum Cancellation {
    /// The leg would have passed.
    Innocent,
    /// Its condition failed; the item as it is, `None` when there is none.
    Condition(Option<Item>),
    /// Somebody else was writing the item.
    Conflict,
    /// Too many writes.
    Throttled,
    /// Anything else: a bug of ours, or a bound of the table.
    Rejected(String),
}

/// How a call failed, by what it proves.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// The condition of a single write failed. Nothing was applied. The item as it is, `None` when
    /// there is none.
    #[error("the condition failed")]
    Condition(Option<Item>),
    /// A transaction was cancelled. Nothing was applied. One reason per leg.
    #[error("the transaction was cancelled: {0:?}")]
    Canceled(Vec<Cancellation>),
    /// Proven not to have been applied, and may pass later: throttled, or in conflict with a
    /// transaction.
    #[error("not applied: {0}")]
    NotApplied(String),
    /// Proven not to have been sent: the connection could not be made.
    #[error("not reached: {0}")]
    Unreachable(String),
    /// It may or may not have been applied: no answer in time, connection lost, an answer of the
    /// 500 kind.
    #[error("no answer: {0}")]
    Unknown(String),
    /// Missing permission. Nothing was applied.
    #[error("denied: {0}")]
    Denied(String),
    /// There is no such table. Nothing was applied.
    #[error("no such table: {0}")]
    NoTable(String),
    /// The table does not accept the request: a bug of ours. Nothing was applied.
    #[error("not accepted: {0}")]
    Rejected(String),
}

/// A DynamoDB table. Each call is one request: no retries, a timeout of its own.
pub trait Table: Send + Sync + 'static {
    /// `UpdateItem` with `ALL_NEW`; on a failed condition `ALL_OLD`.
    fn update<'a>(&'a self, update: &'a Update) -> BoxFuture<'a, Result<Item, TableError>>;

    /// A write of a bucket, as an `UpdateItem` or a `PutItem`. Every take is one; nothing else
    /// writes a bucket outside of a transaction, and no bucket is deleted outside of one.
    fn write_bucket(&self, write: BucketWrite) -> BoxFuture<'_, Result<Item, TableError>> {
        match render::request(write) {
            Request::Update(update) => Box::pin(async move { self.update(&update).await }),
            Request::Put(put) => Box::pin(async move { self.put(&put).await.map(|()| put.item) }),
            Request::Delete(_) => Box::pin(std::future::ready(Err(deleted_alone()))),
        }
    }

    /// `PutItem`; on a failed condition `ALL_OLD`.
    fn put<'a>(&'a self, put: &'a Put) -> BoxFuture<'a, Result<(), TableError>>;

    /// `TransactWriteItems`: at most 100 legs on different items. The same `token` with the same
    /// legs counts once.
    fn transact<'a>(
        &'a self,
        writes: &'a [Write],
        token: &'a str,
    ) -> BoxFuture<'a, Result<(), TableError>>;

    /// `BatchGetItem`: at most 100 keys, none twice.
    fn batch_get<'a>(
        &'a self,
        keys: &'a [Key],
        consistent: bool,
    ) -> BoxFuture<'a, Result<BatchPage, TableError>>;

    /// `Query`: one page.
    fn query<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<QueryPage, TableError>>;

    /// `BatchWriteItem` of deletes: at most 25 keys, none twice. Returns those it did not get to.
    fn delete_batch<'a>(&'a self, keys: &'a [Key]) -> BoxFuture<'a, Result<Vec<Key>, TableError>>;

    /// `Scan`: one page of the items whose sort key begins with `prefix`, in all partitions. Reads
    /// the whole table, page by page; only a migration does that.
    fn scan<'a>(
        &'a self,
        prefix: &'a str,
        start: Option<Item>,
    ) -> BoxFuture<'a, Result<QueryPage, TableError>> {
        let _ = (prefix, start);
        Box::pin(std::future::ready(Err(TableError::Rejected("cannot be scanned".to_owned()))))
    }

    /// What time the table has now, as far as its answers have told.
    fn time(&self) -> TableTime {
        TableTime::Local
    }
}

/// Why a bucket cannot be deleted by a request of its own.
pub(crate) fn deleted_alone() -> TableError {
    TableError::Rejected("a bucket is deleted in a transaction that says why it may".to_owned())
}

/// A number attribute.
#[must_use]
pub fn number(value: i64) -> AttributeValue {
    AttributeValue::N(value.to_string())
}

/// A text attribute.
#[must_use]
pub fn text(value: impl Into<String>) -> AttributeValue {
    AttributeValue::S(value.into())
}

/// The item is there.
pub(crate) fn exists() -> Condition {
    Condition::Exists(attr::PK.into())
}

/// The item is not there.
pub(crate) fn absent() -> Condition {
    Condition::Absent(attr::PK.into())
}

/// `attr op value`.
#[must_use]
pub fn compare_with(
    attr: impl Into<Attr>,
    comparison: Comparison,
    value: AttributeValue,
) -> Condition {
    Condition::Compare(attr.into(), comparison, Box::new(value))
}

/// `attr op number`.
#[must_use]
pub fn compare(attr: impl Into<Attr>, comparison: Comparison, value: i64) -> Condition {
    Condition::CompareNumber(attr.into(), comparison, value)
}
