//! Every number the protocol depends on, with its reason.

use std::time::Duration;

/// Writes tried for one bucket of one operation before it is a `contended` refusal. A lost race
/// hands back the fresh image, so each further try loses only to a writer that came in between;
/// eight lost races in a row mean a key that is too hot for one item, where another try would only
/// heat it more.
pub const RACES_MAX: u32 = 8;

/// Times a write of unknown fate is sent (with its nonce), or a throttled one. At the default
/// attempt timeout the caller's deadline ends it after two; the third is for callers with more
/// time, such as the settler.
pub const SEND_ATTEMPTS_MAX: u32 = 3;

/// Days that usage is kept where the table does not say it.
pub const USAGE_RETENTION_DAYS: u32 = 90;

/// Times a read or an administrative transaction is repeated. They may take longer than a hot call.
pub const ADMIN_ATTEMPTS_MAX: u32 = 8;

/// First pause before a repeated call; doubles, full jitter.
pub const BACKOFF_FIRST: Duration = Duration::from_millis(25);

/// Longest pause before a repeated call.
pub const BACKOFF_MAX: Duration = Duration::from_millis(400);

/// Lost races after which the next attempt waits first. Two lost races are common and cheap: an
/// image that was old, and one caller that was faster. From the third on a crowd is at work, and
/// each attempt that is sent at once loses to the same crowd.
pub const RACES_AT_ONCE: u32 = 2;

/// Longest pause after the first lost race that has one; doubles, full jitter. About two round
/// trips.
pub const RACE_PAUSE_FIRST: Duration = Duration::from_millis(10);

/// How late a FAST debit may look at the ceiling: it lets hot, nearly full buckets skip refills
/// that would conflict. Costs rate times this of over-admission, once; 0 is exact.
pub const FAST_GRACE_MS: i64 = 100;

/// A cached configuration read counts as later than the one that justified a bucket's parameters
/// when it is later by this: more than clock skew between processes and the age of a read.
pub const CONFIG_MARGIN_MS: i64 = 10_000;

/// A local clock within this of what the table's can be is left alone: the clocks of machines
/// differ a little, and a jump helps no process.
pub const CLOCK_TOLERANCE_MS: i64 = 1_000;

/// No instant that is written is further from the table's own clock than this, in either direction:
/// the tolerance, the whole second a `Date` is cut to, and the longest round trip a date is taken
/// from.
pub const CLOCK_OFF_MAX_MS: i64 = 3_000;

/// A date is looked at this often while requests are sent: clocks drift slowly.
pub const CLOCK_SAMPLE_EVERY: Duration = Duration::from_secs(1);

/// A date older than this is doubtful, and asked for again before anything is written. An idle
/// process pays one read for it.
pub const CLOCK_SAMPLE_AGE_MAX: Duration = Duration::from_secs(3_600);

/// The longest round trip a date is taken from while a better one is known.
pub const CLOCK_TRIP_MAX: Duration = Duration::from_secs(1);

/// How often the table is asked for the time when its answers take longer than [`CLOCK_TRIP_MAX`].
/// After that the span that all answers have in common is used.
pub const CLOCK_ASKED_MAX: u32 = 3;

/// The wall clock and the monotonic one may go this far apart between two dates; beyond it one of
/// them was stepped, or stood still.
pub const CLOCK_DRIFT_MAX_MS: i64 = 1_000;

/// An administrator's reset sets a refill instant back that is further ahead of the table's clock
/// than this: no process that keeps [`CLOCK_OFF_MAX_MS`] has written such an instant, and the
/// bucket would not refill until then.
pub const REFILL_AHEAD_MAX_MS: i64 = 5_000;

/// An image older than this refuses no take. The time is short, because a refund by another process
/// is not seen until the image is read again.
pub const REJECTION_CACHE_TTL_MS: i64 = 1_000;

/// A crowd writes a bucket when at most this lies between two writes of others: the image of the
/// bucket is soon outdated. It is the time for which FAST takes from a bucket that was refilled,
/// however full the bucket is.
pub const CROWD_GAP_MS: i64 = FAST_GRACE_MS;

/// A remembered image of a bucket that a crowd writes is taken for outdated when it is older than
/// this: about two round trips. A write that is pinned on its refill instant would lose, and one
/// that is not may still land.
pub const OUTDATED_MS: i64 = 10;

/// A refusal on a bucket that a crowd drains holds for this many times as long as the bucket needs
/// for what the crowd took between the last two looks, drawn between the two: so the crowd asks
/// about three times for each token instead of twenty. Never longer than an image refuses
/// ([`REJECTION_CACHE_TTL_MS`]) or the bucket takes to fill, so that nothing overflows.
pub const QUIET_PACES: (u64, u64) = (4, 12);

/// The least number of writes by others between two looks of one process that makes a crowd. Fewer
/// writes are those of neighbours: a caller that is refused beside them is told the exact wait, and
/// is granted after it.
pub const QUIET_WRITES_MIN: i64 = 8;

/// Between two looks at an ancestor that was found short, at least and at most. A chain that is
/// refused elsewhere holds what it took from the ancestor for about two round trips; the second
/// look sees what is really there.
pub const SECOND_LOOK: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(50));

/// Images kept, for FAST's lower bound, refill-first and local refusals. About 500 bytes each.
pub const IMAGES_MAX: usize = 10_000;

/// Owners (parent and cascade of an entity) kept, for the stamp on new buckets.
pub const OWNERS_MAX: usize = 10_000;

/// Configuration records kept (of the namespace, the levels, the entities; three per entity in
/// use), about 500 bytes each.
pub const RECORDS_MAX: usize = 30_000;

/// A bucket is kept at least this long after its last refill, however fast it fills.
pub const BUCKET_TTL_MIN_MS: i64 = 3_600_000;

/// How long changed limits of an entity are brought to its buckets before that is left to the
/// takes. The change is made by then, and its caller has a deadline.
pub const SPREAD_MAX: Duration = Duration::from_secs(5);

/// Audit events are kept this long.
pub const AUDIT_RETENTION_S: i64 = zae_limiter_store::RETENTION_MS / 1_000;

/// Connecting may take this long. It counts within the attempt, so only administrative requests
/// have all of it; the first request of a process is one of those, and leaves its connection to the
/// others.
pub const CONNECT_TIMEOUT: Duration = Duration::from_millis(1_000);

/// One request may take this long. A payload older than this lands with an old `now`, which counts
/// as clock skew.
pub const ATTEMPT_TIMEOUT: Duration = Duration::from_millis(400);

/// A debit that is found to have landed counts as granted only if its first attempt was sent no
/// longer ago than this: two attempts. The decision is as old as that attempt, and rate times its
/// age may pass beyond the limit.
pub const WRITE_AGE_MAX: Duration = Duration::from_millis(800);

/// One administrative request (a page of a listing, a transaction) may take this long.
pub const ADMIN_ATTEMPT_TIMEOUT: Duration = Duration::from_millis(3_000);

/// Keys in one `BatchGetItem`.
pub const BATCH_GET_MAX: usize = 100;

/// Keys in one `BatchWriteItem`.
pub const BATCH_WRITE_MAX: usize = 25;

/// Pages of checkpoints that are read at most: some thousands of stream shards each.
pub const CHECKPOINT_PAGES_MAX: usize = 100;

/// Legs of one transaction.
pub const TRANSACTION_MAX: usize = 100;

/// What the hidden limit `wcu` holds and gains per second, in millitokens: the writes one item
/// takes.
pub const WCU_MILLI: i64 = 1_000_000;

/// What one write costs of `wcu`.
pub const WCU_PER_WRITE_MILLI: i64 = 1_000;

/// A take that does not refill needs this much of `wcu`. Below zero by a second's worth, because
/// failed conditions are added late and in lumps: one process that reports a thousand of them must
/// not close the bucket to all others.
pub const WCU_NEEDED_MILLI: i64 = WCU_PER_WRITE_MILLI - WCU_MILLI;

/// Failed conditions that one landed write adds to `wcu` at most.
pub const UNREPORTED_MAX: u32 = 1_000;

/// The period of `wcu`.
pub const WCU_PERIOD_MS: i64 = 1_000;

/// The schema this crate reads and writes, as the Python package counts it.
pub const SCHEMA_VERSION: &str = "0.10.0";

/// The newest release of the Python package whose items this crate reads: what the record asks of
/// clients of that package is compared with this, not with our own version, which has other
/// numbers.
pub const PYTHON_READ: &str = "0.17.0";

/// What this crate can read, counted by itself: see `docs/adr/0018`.
pub const READER: u32 = READER_OF_SHARDS;

/// Who reads buckets in shards that share their tokens. Who reads less would take the tokens of
/// shard 0 for all there are, and give it the whole capacity.
pub const READER_OF_SHARDS: u32 = 2;

/// Levels of reading and the first release that had each.
pub const READER_RELEASES: [(u32, &str); 2] = [(1, "0.1.0"), (READER_OF_SHARDS, "0.1.0")];

/// Times the version record is written to ask for better readers, before that is left to another
/// time.
pub const RATCHET_ATTEMPTS_MAX: u32 = 3;

/// After a denial the version record is left alone for this long: a role that may only take would
/// ask at every pressure of a hot bucket.
pub const RATCHET_PAUSE: Duration = Duration::from_secs(300);

/// The days that history is kept are read again after this long, by a change that writes some.
pub const RETENTION_TRUST: Duration = Duration::from_secs(300);

/// The wait that a caller is told when too many writers fight for a bucket; up to as much again is
/// added.
pub const CONTENDED_WAIT_MS: u64 = 50;

/// A configuration read this recently vouches for the bucket that is made from it: the bucket is
/// enabled, and its limits are in force. Just long enough for the read that the acquire itself has
/// made.
pub const CREATE_TRUST: Duration = Duration::from_millis(200);

/// A record of the namespace read this recently vouches for a new bucket: the namespace has not
/// been deleted. Longer than [`CREATE_TRUST`], because every process that makes a bucket in the
/// namespace reads that one record.
pub const NAMESPACE_TRUST: Duration = Duration::from_secs(5);

/// A level that is remembered as disabled is read again after this, as a bucket is whose image
/// refuses: its callers wait for an administrator elsewhere to enable it.
pub const DISABLED_TRUST: Duration = Duration::from_secs(1);

/// The time between the two looks for buckets to disable or enable: longer than a bucket can take
/// to be made after its maker last looked ([`CREATE_TRUST`], and every attempt of its put). The
/// second look finds the buckets for which the first one was too early.
pub const FLAG_PAUSE: Duration = Duration::from_millis(2_000);

/// The most shards a bucket has: 32 000 writes a second, and one transaction still holds a write to
/// each of them.
pub const SHARDS_MAX: u32 = 32;

/// A limit is divided among shards if every one of [`SHARDS_MAX`] shares has at least this, in
/// millitokens. A smaller limit stays on shard 0 as a whole: shares of less than a few tokens would
/// refuse what the bucket has.
pub const SHARE_MIN_MILLI: i64 = 10_000;

/// Shards that one take tries before it looks at all of them.
pub const LEAF_TRIES_MAX: u32 = 3;

/// Lost races after which a take leaves one of several shards for another: a write by an old image,
/// and one by the image that came back. With eight of them a crowd that asks for twice its limit
/// loses a quarter more writes, and waits between them.
pub const LEAF_RACES_MAX: u32 = 2;

/// Between two reads of all shards of a bucket by one process. Who comes in between decides by the
/// images of the last one. Without it a crowd reads all shards for every refusal.
pub const GATHER_PAUSE_MS: i64 = 250;

/// How often all shards are read again because the look was torn by a split or a fold.
pub const GATHER_READS_MAX: u32 = 3;

/// After a take that no shard could serve, a sharded bucket rests for this long in its process:
/// takes of as much or more are contended at once. Failed writes of a crowd are the larger part of
/// its bill.
pub const HERD_PAUSE_MS: i64 = 100;

/// Sharded buckets whose shards are remembered.
pub const TREES_MAX: usize = 1_000;

/// Shards are folded when none of them was split for this long.
pub const FOLD_AFTER_MS: i64 = 600_000;

/// Shards are folded when all of them together take fewer writes a second than this: a quarter of
/// what one item takes, so that a bucket is not split again at once.
pub const FOLD_RATE: i64 = 250;

/// A shard that takes this many writes a second is split before it is too late.
pub const HOT_RATE: i64 = 800;

/// The least number of stream records of one item that say something about its rate.
pub const HOT_RECORDS_MIN: i64 = 200;
