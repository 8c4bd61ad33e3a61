//! Local blocks on a file: the conformance suite, and many processes that crash and fail.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{Scratch, entity, gpt, my_role, runtime, start_child};
use zae_limiter_core::{Limit, LimitSource, Milli, Take};
use zae_limiter_sqlite::{SqliteOptions, SqliteStore};
use zae_limiter_store::conformance::block_sim::run_seeds;
use zae_limiter_store::conformance::{CASES, Harness, run};
use zae_limiter_store::{
    BlockStore, BoxFuture, BucketStore, Clock, ConsumeOutcome, ConsumeRequest, LimitsInForce,
    LocalBlocks, MemberTake, Store, SystemClock,
};

/// One file in a directory of its own, and handles with blocks.
struct OneFile {
    directory: tempfile::TempDir,
    options: LocalBlocks,
}

impl OneFile {
    fn with(options: LocalBlocks) -> OneFile {
        OneFile { directory: tempfile::tempdir().expect("a directory"), options }
    }

    fn open(&self) -> Arc<dyn Store> {
        let store = SqliteStore::open(self.directory.path().join("limits.db")).expect("a store");
        Arc::new(BlockStore::new(Arc::new(store), self.options).expect("a file lends"))
    }
}

impl Harness for OneFile {
    fn fresh(&self) -> BoxFuture<'_, Arc<dyn Store>> {
        Box::pin(async { self.open() })
    }

    fn reopen(&self) -> BoxFuture<'_, Option<Arc<dyn Store>>> {
        Box::pin(async { Some(self.open()) })
    }
}

mod usual {
    zae_limiter_store::conformance_suite!(super::OneFile::with(
        zae_limiter_store::LocalBlocks::default()
    ));
}

/// What one handle holds another cannot use, and what one has switched off the other notices within
/// two seconds; a handle that is not asked to give back loses its blocks.
const DIVIDED: [&str; 6] = [
    "durable::two_handles_share_one_bucket",
    "durable::two_handles_share_one_configuration",
    "durable::buckets_outlive_the_handle",
    "durable::configuration_outlives_the_handle",
    "durable::history_outlives_the_handle",
    "durable::namespaces_outlive_the_handle",
];

#[test]
fn eager_blocks_keep_every_promise_but_that_handles_are_undivided() {
    let cases = CASES.iter().filter(|case| !DIVIDED.contains(&case.name));
    for case in cases {
        println!("{}", case.name);
        run(case.name, Arc::new(OneFile::with(LocalBlocks::eager())));
    }
}

#[test]
fn seeds() {
    run_seeds(800, |seed| {
        // Where there is a file system in memory, the run does not wait for a disk.
        let folder = tempfile::Builder::new().prefix("zael-blocks").tempdir_in("/dev/shm");
        let folder = folder.or_else(|_| tempfile::tempdir()).expect("a folder");
        let handle = move || {
            let options = SqliteOptions::new().background_sweep(false);
            SqliteStore::open_with(folder.path().join("limits.db"), options).expect("a store")
        };
        // Opening a file costs more than a run, so in most runs the processes share a handle.
        let shared = handle();
        move || -> Arc<dyn Store> {
            Arc::new(if seed % 16 == 0 { handle() } else { shared.clone() })
        }
    });
}

// ------------------------------------------------------------------- processes that are killed

/// The test of this file that a child process runs.
const CHILD: &str = "blocks::child_process";
const KILLS: usize = 20;
const CAPACITY: u64 = 8_000;
const RATE: u64 = 1_000;

/// A byte per grant, appended by every child.
fn grants(path: &Path) -> u64 {
    fs::metadata(path.with_extension("grants")).map_or(0, |file| file.len())
}

/// Four processes with blocks take as fast as they can, and one after another is killed. What they
/// got together is at most the capacity and what has refilled since the first began.
#[test]
#[expect(clippy::disallowed_methods, reason = "the children live by the real clock")]
fn killed_processes_with_blocks_never_grant_too_much() {
    let scratch = Scratch::new();
    let path = scratch.path();
    drop(scratch.open());
    let clock = SystemClock::new();
    let begun = clock.monotonic();
    let mut children: Vec<_> = (0..4).map(|_| start_child(CHILD, "blocks", &path)).collect();
    for kill in 0..KILLS {
        std::thread::sleep(Duration::from_millis(100));
        children[kill % 4] = start_child(CHILD, "blocks", &path);
    }
    drop(children);
    let elapsed_ms = u64::try_from((clock.monotonic() - begun).as_millis()).expect("short");
    let (granted, most) = (grants(&path), CAPACITY + RATE * elapsed_ms / 1_000 + 1);
    println!("{granted} of at most {most} grants in {elapsed_ms} ms");
    assert!(granted <= most, "{granted} granted in {elapsed_ms} ms");
    assert!(granted > 100, "the children had begun to work: {granted}");
    assert_eq!(
        scratch.open().status(clock.now()).expect("a status").problems,
        Vec::<String>::new()
    );
}

#[test]
fn child_process() {
    let Some((_, path)) = my_role() else { return };
    let store = Arc::new(SqliteStore::open(&path).expect("a store"));
    let blocks = BlockStore::new(store, LocalBlocks::default()).expect("a file lends");
    let mut told = OpenOptions::new()
        .create(true)
        .append(true)
        .open(path.with_extension("grants"))
        .expect("a file");
    let limit = Limit::custom("x", CAPACITY, RATE, 1).expect("a limit");
    let limits = LimitsInForce::new([limit], LimitSource::System);
    let (entity, resource) = (entity("key"), gpt());
    let takes = [Take { limit: 0, amount: Milli(1_000) }];
    let members = [MemberTake {
        entity: &entity,
        resource: &resource,
        limits: &limits,
        takes: &takes,
        absent: &[],
    }];
    let clock = SystemClock::new();
    runtime().block_on(async {
        while clock.monotonic() < Duration::from_secs(20) {
            let request = ConsumeRequest::new(&members, clock.now());
            if let Ok(ConsumeOutcome::Granted(_)) = blocks.consume(&request).await {
                told.write_all(b".").expect("room for a byte");
            }
        }
    });
}
