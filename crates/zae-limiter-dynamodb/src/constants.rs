//! Every number the protocol depends on, with its reason.

use std::time::Duration;

/// Writes tried for one bucket of one operation before it is a `contended` refusal. A lost race hands back the fresh
/// image, so each further try loses only to a writer that came in between; eight lost races in a row mean a key that is
/// too hot for one item, where another try would only heat it more.
pub const REFILL_ATTEMPTS_MAX: u32 = 8;

/// Times a write of unknown fate is sent (with its nonce), or a throttled one. At the default attempt timeout the caller's
/// deadline ends it after two; the third is for who has more time, the settler among them.
pub const SEND_ATTEMPTS_MAX: u32 = 3;

/// Times a read or an administrative transaction is repeated. They may take longer than a hot call.
pub const ADMIN_ATTEMPTS_MAX: u32 = 8;

/// First pause before a repeated call; doubles, full jitter.
pub const BACKOFF_FIRST: Duration = Duration::from_millis(25);

/// Longest pause before a repeated call.
pub const BACKOFF_MAX: Duration = Duration::from_millis(400);

/// How late a FAST debit may look at the ceiling: it lets hot, nearly full buckets skip refills that would conflict. Costs
/// rate times this of over-admission, once; 0 is exact.
pub const FAST_GRACE_MS: i64 = 100;

/// A cached configuration read counts as later than the one that justified a bucket's parameters when it is later by this:
/// more than clock skew between processes and the age of a read.
pub const CONFIG_MARGIN_MS: i64 = 10_000;

/// `rf` is never written further ahead of the table's own clock than this: one process with a wrong clock must not stop
/// everybody's refill.
pub const CLOCK_AHEAD_MAX_MS: i64 = 5_000;

/// An image older than this refuses nobody. Short, because a refund by another process is not seen until then.
pub const REJECTION_CACHE_TTL_MS: i64 = 1_000;

/// Images kept, for FAST's lower bound, refill-first and local refusals. About 500 bytes each.
pub const IMAGES_MAX: usize = 10_000;

/// Owners (parent and cascade of an entity) kept, for the stamp on new buckets.
pub const OWNERS_MAX: usize = 10_000;

/// A bucket is kept at least this long after its last refill, however fast it fills.
pub const BUCKET_TTL_MIN_MS: i64 = 3_600_000;

/// How long changed limits of an entity are brought to its buckets before that is left to the takes. The change is made by then,
/// and its caller has a deadline.
pub const SPREAD_MAX: Duration = Duration::from_secs(5);

/// Audit events are kept this long.
pub const AUDIT_RETENTION_S: i64 = 90 * 86_400;

/// Connecting may take this long. It counts within the attempt, so only administrative requests have all of it; the first request
/// of a process is one of those, and leaves its connection to the others.
pub const CONNECT_TIMEOUT: Duration = Duration::from_millis(1_000);

/// One request may take this long. A payload older than this lands with an old `now`, which counts as clock skew.
pub const ATTEMPT_TIMEOUT: Duration = Duration::from_millis(400);

/// One administrative request (a page of a listing, a transaction) may take this long.
pub const ADMIN_ATTEMPT_TIMEOUT: Duration = Duration::from_millis(3_000);

/// Keys in one `BatchGetItem`.
pub const BATCH_GET_MAX: usize = 100;

/// Keys in one `BatchWriteItem`.
pub const BATCH_WRITE_MAX: usize = 25;

/// Legs of one transaction.
pub const TRANSACTION_MAX: usize = 100;

/// What the hidden limit `wcu` holds and gains per second, in millitokens: the writes one item takes.
pub const WCU_MILLI: i64 = 1_000_000;

/// What one write costs of `wcu`.
pub const WCU_PER_WRITE_MILLI: i64 = 1_000;

/// The period of `wcu`.
pub const WCU_PERIOD_MS: i64 = 1_000;

/// The schema this crate reads and writes, as the Python product counts it.
pub const SCHEMA_VERSION: &str = "0.10.0";

/// What a caller is told to wait when too many writers fight for a bucket, plus up to as much again.
pub const CONTENDED_WAIT_MS: u64 = 50;

/// A configuration read this recently vouches for the bucket that is made from it: that nobody has switched it off. Just long
/// enough for the read an acquire has made itself.
pub const CREATE_TRUST_MS: u64 = 200;

/// Between the two looks for buckets to switch off or on: longer than a bucket can take to be made after its maker last looked
/// ([`CREATE_TRUST_MS`], and every attempt of its put). What the first look is too early for, the second one finds.
pub const FLAG_PAUSE: Duration = Duration::from_millis(2_000);
