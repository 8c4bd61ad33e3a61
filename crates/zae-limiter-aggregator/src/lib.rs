//! Turns the stream of a zae-limiter table into usage by hour, day and month, counted exactly once,
//! and into an archive of the audit events that have expired. The loss of the aggregator costs
//! history and speed, never correctness.
//!
//! Parse → fold → apply. A shell (Lambda, or the worker of the command line) makes [`Record`]s of
//! what it was given; [`fold()`] is pure and says what a batch comes to; [`Aggregator::process`]
//! writes the usage, then the archive, then does upkeep, and reports what is not complete.
//!
//! The key decision: a batch may be delivered any number of times, cut anywhere, and by two workers
//! at once. Each snapshot of usage remembers, per bucket shard, the number of the last record that
//! it has counted, and a write is conditional on it (`zae_limiter_dynamodb::stream`).
//!
//! ```no_run
//! # async fn example(table: std::sync::Arc<dyn zae_limiter_aggregator::Table>, records: Vec<zae_limiter_aggregator::Record>) {
//! use zae_limiter_aggregator::{Aggregator, Settings};
//!
//! let aggregator = Aggregator::new(table, Settings::new("my-stack"));
//! let report = aggregator.process(&records).await;
//! for (stream_shard, sequence) in &report.failures {
//!     // Everything of this stream shard from this number on must be delivered again.
//!     println!("{stream_shard} {sequence}");
//! }
//! # }
//! ```

mod aggregator;
mod archive;
mod filters;
mod fold;
#[cfg(feature = "lambda")]
mod lambda;
mod namespaces;
mod record;
mod report;
#[cfg(feature = "s3")]
mod s3;
mod settings;
mod snapshots;
mod upkeep;
mod worker;

pub use aggregator::Aggregator;
pub use archive::{Archive, ArchiveError, FolderArchive, Object};
pub use filters::filters;
pub use fold::{Batch, Counted, Leaf, Poison, Removed, Use, fold, sum};
#[cfg(feature = "lambda")]
pub use lambda::{
    Event, LambdaError, cannot_start, handle, poison_of, record_of, run_lambda, serve_events,
};
pub use record::{Item, Kind, Record, SEQUENCE_DIGITS, padded};
pub use report::Report;
#[cfg(feature = "s3")]
pub use s3::S3Archive;
pub use settings::{BadSetting, Settings};
pub use upkeep::Kept;
#[cfg(feature = "streams")]
pub use worker::SdkStreams;
pub use worker::{
    ShardPage, StreamBatch, StreamError, StreamShard, Streams, Totals, Turn, Worker, WorkerError,
};
pub use zae_limiter_dynamodb::stream::{EXPIRER, Snapshot, Table};
