//! The stream of a table as the worker sees it: a handful of calls, and how they can fail. The real
//! one is `sdk.rs`; tests simulate several stream shards, and shards that split.

use std::time::Duration;

use zae_limiter_store::BoxFuture;

use crate::fold::Poison;
use crate::record::Record;

/// One shard of a stream. Unlike a bucket shard it is the service's own: it ends after some hours,
/// and its children go on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamShard {
    /// What it is called.
    pub id: String,
    /// The shard before it; the parent's records of an item come before the child's.
    pub parent: Option<String>,
    /// The number of its first record that is there, where the stream says so.
    pub first: Option<String>,
}

/// One page of the list of shards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardPage {
    /// The shards.
    pub shards: Vec<StreamShard>,
    /// The last shard of the page, behind which the next one begins; `None` on the last page.
    pub last: Option<String>,
}

/// What was read from a shard.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// The records, in the order of the stream.
    pub records: Vec<Record>,
    /// Records that cannot be read.
    pub poison: Vec<Poison>,
    /// Where to read on; `None` at the end of a shard that is closed.
    pub next: Option<String>,
}

impl Batch {
    /// The number of the last record.
    pub(super) fn last(&self) -> Option<&str> {
        let records = self.records.iter().map(|record| record.sequence.as_str());
        let poison = self.poison.iter().map(|poison| poison.sequence.as_str());
        records.chain(poison).max_by_key(|sequence| crate::record::padded(sequence))
    }
}

/// Why the stream gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// What was to be read next is gone: it is older than a day.
    #[error("the records are gone")]
    Trimmed,
    /// The place to read on is too old. The same place can be found by its number.
    #[error("the iterator has expired")]
    Expired,
    /// There is no such shard, or no such stream.
    #[error("not there: {0}")]
    Missing(String),
    /// It may pass: throttled, or no answer.
    #[error("no answer: {0}")]
    Passing(String),
    /// It will not pass: no permission, or a request that is not accepted.
    #[error("refused: {0}")]
    Refused(String),
}

/// The stream of a table.
pub trait Streams: Send + Sync + 'static {
    /// One page of the list of shards, behind the shard that the last page ended with.
    fn shards<'a>(
        &'a self,
        after: Option<&'a str>,
    ) -> BoxFuture<'a, Result<ShardPage, StreamError>>;

    /// A place to read on in a shard: behind this number, or at the first record that is there.
    fn iterator<'a>(
        &'a self,
        shard: &'a str,
        after: Option<&'a str>,
    ) -> BoxFuture<'a, Result<String, StreamError>>;

    /// Reads on.
    fn read<'a>(
        &'a self,
        shard: &'a str,
        iterator: &'a str,
    ) -> BoxFuture<'a, Result<Batch, StreamError>>;

    /// The time between two reads of a shard that has more records, by what the stream allows.
    fn pace(&self) -> Duration {
        Duration::ZERO
    }

    /// Forgets the records of a shard before this one, where the stream can: they are counted.
    /// Returns how many. The service forgets by itself.
    fn trim<'a>(
        &'a self,
        _shard: &'a str,
        _below: &'a str,
    ) -> BoxFuture<'a, Result<u64, StreamError>> {
        Box::pin(std::future::ready(Ok(0)))
    }
}
