//! Calls as data: what was asked, what landed, what was told.

use zae_limiter_dynamodb::bucket::write::{BucketWrite, Shape};
use zae_limiter_dynamodb::table::{Item, Key, Put, Query, TableError, Update, Write};

use super::faults::Fate;

/// The calls of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operation {
    /// `UpdateItem`
    Update,
    /// `PutItem`
    Put,
    /// `TransactWriteItems`
    Transact,
    /// `BatchGetItem`
    BatchGet,
    /// `Query`
    Query,
    /// `BatchWriteItem` of deletes
    DeleteBatch,
}

impl Operation {
    /// Every operation.
    pub const ALL: [Operation; 6] = [
        Operation::Update,
        Operation::Put,
        Operation::Transact,
        Operation::BatchGet,
        Operation::Query,
        Operation::DeleteBatch,
    ];

    /// True when it can change the table.
    #[must_use]
    pub fn writes(self) -> bool {
        !matches!(self, Operation::BatchGet | Operation::Query)
    }
}

/// What is asked of the table, borrowed.
#[derive(Clone, Copy, Debug)]
pub enum Asked<'a> {
    /// A write of a bucket, as an update or a put.
    Bucket(&'a BucketWrite),
    /// A conditional update.
    Update(&'a Update),
    /// A conditional put.
    Put(&'a Put),
    /// A transaction and its token.
    Transact(&'a [Write], &'a str),
    /// Keys to read, and whether consistently.
    BatchGet(&'a [Key], bool),
    /// A page of a query.
    Query(&'a Query),
    /// Keys to delete.
    DeleteBatch(&'a [Key]),
}

impl Asked<'_> {
    /// Which operation it is.
    #[must_use]
    pub fn operation(&self) -> Operation {
        match self {
            Asked::Bucket(BucketWrite { shape: Shape::Make(_), .. }) => Operation::Put,
            Asked::Bucket(_) => Operation::Update,
            Asked::Update(_) => Operation::Update,
            Asked::Put(_) => Operation::Put,
            Asked::Transact(..) => Operation::Transact,
            Asked::BatchGet(..) => Operation::BatchGet,
            Asked::Query(_) => Operation::Query,
            Asked::DeleteBatch(_) => Operation::DeleteBatch,
        }
    }

    /// The same, kept.
    #[must_use]
    pub fn to_request(&self) -> Request {
        match *self {
            Asked::Bucket(write) => Request::Bucket(write.clone()),
            Asked::Update(update) => Request::Update(update.clone()),
            Asked::Put(put) => Request::Put(put.clone()),
            Asked::Transact(writes, token) => Request::Transact(writes.to_vec(), token.to_owned()),
            Asked::BatchGet(keys, consistent) => Request::BatchGet(keys.to_vec(), consistent),
            Asked::Query(query) => Request::Query(query.clone()),
            Asked::DeleteBatch(keys) => Request::DeleteBatch(keys.to_vec()),
        }
    }
}

/// What was asked of the table.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// A write of a bucket, as an update or a put.
    Bucket(BucketWrite),
    /// A conditional update.
    Update(Update),
    /// A conditional put.
    Put(Put),
    /// A transaction and its token.
    Transact(Vec<Write>, String),
    /// Keys to read, and whether consistently.
    BatchGet(Vec<Key>, bool),
    /// A page of a query.
    Query(Query),
    /// Keys to delete.
    DeleteBatch(Vec<Key>),
}

impl Request {
    /// Borrows it.
    #[must_use]
    pub fn as_asked(&self) -> Asked<'_> {
        match self {
            Request::Bucket(write) => Asked::Bucket(write),
            Request::Update(update) => Asked::Update(update),
            Request::Put(put) => Asked::Put(put),
            Request::Transact(writes, token) => Asked::Transact(writes, token),
            Request::BatchGet(keys, consistent) => Asked::BatchGet(keys, *consistent),
            Request::Query(query) => Asked::Query(query),
            Request::DeleteBatch(keys) => Asked::DeleteBatch(keys),
        }
    }
}

/// One item before and after a write that landed.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Which item.
    pub key: Key,
    /// As it was; `None` when there was none.
    pub before: Option<Item>,
    /// As it is; `None` when it is gone.
    pub after: Option<Item>,
}

/// How a call ended for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// It was done.
    Done,
    /// [`TableError::Condition`]
    Condition,
    /// [`TableError::Canceled`]
    Canceled,
    /// [`TableError::NotApplied`]
    NotApplied,
    /// [`TableError::Unreachable`]
    Unreachable,
    /// [`TableError::Unknown`]
    Unknown,
    /// [`TableError::Rejected`]: a bug of the caller.
    Rejected,
    /// Nobody was there any more: a write that landed late.
    Nobody,
}

impl Told {
    pub(super) fn of<T>(result: &Result<T, TableError>) -> Told {
        match result {
            Ok(_) => Told::Done,
            Err(TableError::Condition(_)) => Told::Condition,
            Err(TableError::Canceled(_)) => Told::Canceled,
            Err(TableError::NotApplied(_)) => Told::NotApplied,
            Err(TableError::Unreachable(_)) => Told::Unreachable,
            Err(TableError::Unknown(_)) => Told::Unknown,
            // The evaluator has neither permissions nor a missing table.
            Err(_) => Told::Rejected,
        }
    }
}

/// What a call cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Units {
    /// Write units of the table itself.
    pub table: u64,
    /// Write units of the indexes.
    pub index: u64,
    /// Read units, in halves: an inconsistent read costs half a unit.
    pub read_halves: u64,
}

impl Units {
    /// Write units, those of the indexes included.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.table + self.index
    }

    pub(super) fn add(&mut self, other: Units) {
        self.table += other.table;
        self.index += other.index;
        self.read_halves += other.read_halves;
    }
}

/// One line of the journal.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// Counts all calls of the table; a write that lands late has the number of the call before
    /// which it does.
    pub number: u64,
    /// Who called.
    pub client: u32,
    /// What the caller's handle was marked with when it called; a write that lands late keeps it.
    pub tag: u64,
    /// What was asked.
    pub request: Request,
    /// What became of it on the way.
    pub fate: Fate,
    /// What landed, in the order of the request; empty when nothing did.
    pub changes: Vec<Change>,
    /// What the caller was told.
    pub told: Told,
    /// What it cost, whatever the caller was told.
    pub units: Units,
}
