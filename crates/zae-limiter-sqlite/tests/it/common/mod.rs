//! What the tests of this crate share.
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use zae_limiter_core::{
    ConfigStamp, EntityId, EventId, Limit, LimitSource, Milli, ResourceName, Take, TimeMs,
};
use zae_limiter_sqlite::{SqliteOptions, SqliteStore};
use zae_limiter_store::{
    BucketStore, BucketView, Change, ConsumeOutcome, ConsumeRequest, LimitsInForce, MemberTake,
    PageRequest, StoreError,
};

/// 2026-01-01T10:00:00Z, where every test begins.
pub(crate) const START: TimeMs = TimeMs(1_767_261_600_000);

pub(crate) fn at(ms: i64) -> TimeMs {
    START.plus_ms(ms)
}

pub(crate) fn entity(id: &str) -> EntityId {
    id.parse().expect("a valid id")
}

pub(crate) fn gpt() -> ResourceName {
    "gpt-4".parse().expect("a valid name")
}

pub(crate) fn limits(text: &str) -> LimitsInForce {
    let limits: Vec<Limit> =
        text.split_whitespace().map(|limit| limit.parse().expect("a valid limit")).collect();
    LimitsInForce::resolved(limits, LimitSource::System, ConfigStamp(0), 7)
}

pub(crate) fn change(number: u128) -> Change {
    Change { principal: None, reason: None, at: START, event: EventId::new(START, number) }
}

/// A store in a directory of its own, which goes away with it.
pub(crate) struct Scratch {
    pub(crate) directory: tempfile::TempDir,
}

impl Scratch {
    pub(crate) fn new() -> Scratch {
        Scratch { directory: tempfile::tempdir().expect("a directory") }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("limits.db")
    }

    pub(crate) fn open(&self) -> SqliteStore {
        SqliteStore::open(self.path()).expect("a store")
    }

    pub(crate) fn open_with(&self, options: SqliteOptions) -> SqliteStore {
        SqliteStore::open_with(self.path(), options).expect("a store")
    }

    /// The file, past the store.
    pub(crate) fn sqlite(&self) -> rusqlite::Connection {
        rusqlite::Connection::open(self.path()).expect("a database")
    }
}

/// Takes tokens of the first limit of an entity.
pub(crate) async fn try_take(
    store: &SqliteStore,
    id: &str,
    limits: &LimitsInForce,
    tokens: u64,
    now: TimeMs,
) -> Result<ConsumeOutcome, StoreError> {
    let (entity, resource) = (entity(id), gpt());
    let takes = [Take { limit: 0, amount: Milli::from_tokens(tokens) }];
    let member =
        MemberTake { entity: &entity, resource: &resource, limits, takes: &takes, absent: &[] };
    store.consume(&ConsumeRequest::new(&[member], now)).await
}

/// As [`try_take`], for what must succeed: `Some(balance)` in tokens when granted.
pub(crate) async fn take(
    store: &SqliteStore,
    id: &str,
    limits: &LimitsInForce,
    tokens: u64,
    now: TimeMs,
) -> Option<i64> {
    match try_take(store, id, limits, tokens, now).await.expect("a decision") {
        ConsumeOutcome::Granted(grant) => Some(grant.reports[0].balance.floor_tokens()),
        ConsumeOutcome::Refused(_) => None,
        other => panic!("{other:?}"),
    }
}

/// The bucket as stored.
pub(crate) async fn bucket(store: &SqliteStore, id: &str) -> Option<BucketView> {
    store.buckets(&entity(id), &PageRequest::default()).await.expect("a listing").items.pop()
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime")
}

/// Where a child finds what it shall do: the name of the variable.
const ROLE: &str = "ZAE_LIMITER_SQLITE_TEST_ROLE";

/// A child process that does not outlive the test.
pub(crate) struct Kid(Child);

/// Starts this very test binary again, to run only the test `child` with a role.
pub(crate) fn start_child(child: &str, role: &str, path: &Path) -> Kid {
    Kid(child_command(child, role, path).spawn().expect("a child process"))
}

impl Kid {
    /// Waits for its end; true when it had no complaints.
    pub(crate) fn ends_well(mut self) -> bool {
        self.0.wait().expect("a child process").success()
    }
}

impl Drop for Kid {
    /// As `kill -9`, if it is still alive.
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn child_command(child: &str, role: &str, path: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this binary"));
    command.args(["--exact", child, "--quiet"]).env(ROLE, format!("{role}\n{}", path.display()));
    command.stdout(Stdio::null());
    command
}

/// The role of this process and the path it shall work on; `None` in the test run itself.
#[expect(clippy::disallowed_methods, reason = "how a test tells its child what to do")]
pub(crate) fn my_role() -> Option<(String, PathBuf)> {
    let told = std::env::var(ROLE).ok()?;
    let (role, path) = told.split_once('\n').expect("a role and a path");
    Some((role.to_owned(), PathBuf::from(path)))
}
