//! How a store is opened.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use zae_limiter_store::{Clock, Entropy, RETENTION_MS, SystemClock, SystemEntropy};

/// How long an operation waits for other processes unless told otherwise.
pub const BUSY_DEADLINE: Duration = Duration::from_secs(5);

/// How long a take waits for its turn unless told otherwise. Less than the deadline of the limiter,
/// so that a store that is busy says so, and is not mistaken for one that is down.
pub const TAKE_DEADLINE: Duration = Duration::from_millis(800);

/// How many hours of usage are kept unless told otherwise, one per bucket and hour: about half a
/// gigabyte.
pub const USAGE_ROWS_MAX: u64 = 4_000_000;

/// When a commit counts as done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Synchronous {
    /// Once the operating system has it. A crash of the process loses nothing; a power cut may lose
    /// the last commits and never corrupts the file.
    #[default]
    Normal,
    /// Once the disk has it. A power cut loses nothing. Each commit waits for the disk, so callers
    /// share commits.
    Full,
}

/// Options of [`SqliteStore::open_with`](crate::SqliteStore::open_with).
///
/// ```
/// use zae_limiter_sqlite::{SqliteOptions, Synchronous};
///
/// let options = SqliteOptions::new().synchronous(Synchronous::Full);
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct SqliteOptions {
    pub(crate) synchronous: Synchronous,
    pub(crate) usage_retention_ms: i64,
    pub(crate) usage_rows_max: u64,
    pub(crate) audit_retention_ms: i64,
    pub(crate) busy_deadline: Duration,
    pub(crate) take_deadline: Duration,
    pub(crate) background_sweep: bool,
    pub(crate) read_only: bool,
    pub(crate) pages_max: Option<u32>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Arc<dyn Entropy>,
}

impl SqliteOptions {
    /// The defaults.
    #[must_use]
    pub fn new() -> SqliteOptions {
        SqliteOptions {
            synchronous: Synchronous::Normal,
            usage_retention_ms: RETENTION_MS,
            usage_rows_max: USAGE_ROWS_MAX,
            audit_retention_ms: RETENTION_MS,
            busy_deadline: BUSY_DEADLINE,
            take_deadline: TAKE_DEADLINE,
            background_sweep: true,
            read_only: false,
            pages_max: None,
            clock: Arc::new(SystemClock::new()),
            entropy: Arc::new(SystemEntropy),
        }
    }

    /// When a commit counts as done.
    #[must_use]
    pub fn synchronous(mut self, synchronous: Synchronous) -> SqliteOptions {
        self.synchronous = synchronous;
        self
    }

    /// How long usage is kept, in milliseconds.
    #[must_use]
    pub fn usage_retention_ms(mut self, retention_ms: i64) -> SqliteOptions {
        self.usage_retention_ms = retention_ms;
        self
    }

    /// About the most hours of usage kept, one per bucket and hour; beyond it the oldest go first.
    /// This bounds the rows that callers who invent ids can leave behind.
    #[must_use]
    pub fn usage_rows_max(mut self, rows: u64) -> SqliteOptions {
        self.usage_rows_max = rows;
        self
    }

    /// How long audit events are kept, in milliseconds.
    #[must_use]
    pub fn audit_retention_ms(mut self, retention_ms: i64) -> SqliteOptions {
        self.audit_retention_ms = retention_ms;
        self
    }

    /// How long an operation waits for other processes before it fails with `Busy`.
    #[must_use]
    pub fn busy_deadline(mut self, deadline: Duration) -> SqliteOptions {
        self.busy_deadline = deadline;
        self
    }

    /// How long a take waits for its turn, behind other processes and other callers, before it
    /// fails with `Busy`; never longer than the busy deadline. A take that has waited longer is not
    /// decided any more: its caller has gone.
    #[must_use]
    pub fn take_deadline(mut self, deadline: Duration) -> SqliteOptions {
        self.take_deadline = deadline;
        self
    }

    /// Whether the store sweeps by itself, a little beside operations and when it is closed.
    /// Default true; otherwise the service has to call `sweep`, or the file grows for ever.
    #[must_use]
    pub fn background_sweep(mut self, sweeps: bool) -> SqliteOptions {
        self.background_sweep = sweeps;
        self
    }

    /// Opens an existing file for inspection: nothing can be written, nothing is migrated.
    #[must_use]
    pub fn read_only(mut self) -> SqliteOptions {
        self.read_only = true;
        self
    }

    /// Lets the file grow to this many pages of 4 KiB at most; beyond that writes fail with `Full`.
    #[must_use]
    pub fn pages_max(mut self, pages: u32) -> SqliteOptions {
        self.pages_max = Some(pages);
        self
    }

    /// The clock of waits and deadlines. Bucket time is never read from it: each call has it as an
    /// argument.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> SqliteOptions {
        self.clock = clock;
        self
    }

    /// Where the id of the `default` namespace and the jitter of waits come from.
    #[must_use]
    pub fn entropy(mut self, entropy: Arc<dyn Entropy>) -> SqliteOptions {
        self.entropy = entropy;
        self
    }
}

impl Default for SqliteOptions {
    fn default() -> Self {
        SqliteOptions::new()
    }
}

impl fmt::Debug for SqliteOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteOptions")
            .field("synchronous", &self.synchronous)
            .field("usage_retention_ms", &self.usage_retention_ms)
            .field("usage_rows_max", &self.usage_rows_max)
            .field("audit_retention_ms", &self.audit_retention_ms)
            .field("busy_deadline", &self.busy_deadline)
            .field("take_deadline", &self.take_deadline)
            .field("background_sweep", &self.background_sweep)
            .field("read_only", &self.read_only)
            .field("pages_max", &self.pages_max)
            .finish_non_exhaustive()
    }
}
