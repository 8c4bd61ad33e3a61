//! A disk whose sync takes seconds: the log is written back beside the takes, so nobody waits for
//! it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use zae_limiter::sqlite::SqliteStore;
use zae_limiter::store::{Entropy, SeededEntropy};
use zae_limiter::{AcquireError, Level, OnUnavailable, RateLimiter, Request};

const CALLERS: u64 = 8;
const KEYS: u64 = 200_000;
/// Takes within which the log gets long enough to be written back.
const TAKES_MAX: u64 = 1_000_000;
/// Within so many write-backs one is still at work when the log gets longer, and a writer is asked
/// to help; mostly the first.
const CHECKPOINTS_MAX: u64 = 4;

/// Where the child finds its file: the name of the variable.
const FILE: &str = "ZAE_LIMITER_SLOW_DISK_FILE";

/// With a sync of 2.7 s, more than twice the deadline of a request, and everything else as it is by
/// default.
#[test]
fn a_checkpoint_on_a_slow_disk_refuses_and_degrades_nothing() {
    if !cfg!(target_os = "linux") {
        eprintln!(
            "skipped: a slow disk is made with a preload, which this test knows for Linux only"
        );
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let library = slow_sync(folder.path());
    let (file, log) = (folder.path().join("limits.db"), folder.path().join("syncs"));
    let output = Command::new(std::env::current_exe().expect("this binary"))
        .args(["--exact", "slow_disk::child_process", "--nocapture"])
        .env("LD_PRELOAD", library)
        .env("SLOW_SYNC_LOG", &log)
        .env(FILE, &file)
        .stdin(Stdio::null())
        .output()
        .expect("a child process");
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    let syncs = fs::metadata(&log).map_or(0, |file| file.len());
    assert!(syncs >= 2, "the disk was not slow: {syncs} slow syncs\n{said}");
}

/// The preload, built here.
fn slow_sync(folder: &Path) -> PathBuf {
    let (source, library) = (folder.join("slow_sync.c"), folder.join("slow_sync.so"));
    fs::write(&source, include_str!("slow_sync.c")).expect("a file");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(&library)
        .arg(&source)
        .status();
    assert!(
        built.expect("a C compiler, as for SQLite itself").success(),
        "the preload does not compile"
    );
    library
}

#[derive(Default)]
struct Counts {
    asked: AtomicU64,
    granted: AtomicU64,
    degraded: AtomicU64,
    refused: AtomicU64,
    unavailable: AtomicU64,
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "how a test tells its child what to do; tests may spawn"
)]
fn child_process() {
    let Some(file) = std::env::var_os(FILE) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let store = SqliteStore::open(PathBuf::from(file)).expect("a store");
        let limiter = RateLimiter::builder(store.clone())
            .on_unavailable(OnUnavailable::Allow)
            .build()
            .expect("a limiter");
        let limits = ["rpm:1000000/min".parse().expect("a limit")];
        limiter.set_limits(&Level::System, limits).await.expect("limits");
        let counts = Arc::new(Counts::default());
        let callers = (0..CALLERS).map(|caller| {
            let (store, limiter, counts) = (store.clone(), limiter.clone(), Arc::clone(&counts));
            tokio::spawn(async move {
                let entropy = SeededEntropy::new(caller);
                let goes_on = || {
                    let stats = store.writer_stats();
                    stats.checkpoints < 1 || stats.holds < 1 && stats.checkpoints < CHECKPOINTS_MAX
                };
                while goes_on() && counts.asked.fetch_add(1, Ordering::Relaxed) < TAKES_MAX {
                    take(&limiter, entropy.next_u64() % KEYS, &counts).await;
                }
            })
        });
        for caller in callers.collect::<Vec<_>>() {
            caller.await.expect("no panic");
        }
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let stats = store.writer_stats();
        println!("{} granted, {stats:?}", read(&counts.granted));
        assert!(stats.checkpoints >= 1, "the log was never written back: {stats:?}");
        assert!(stats.holds >= 1, "no writer was asked to help: {stats:?}");
        let others = [&counts.degraded, &counts.refused, &counts.unavailable].map(read);
        assert_eq!(
            others,
            [0, 0, 0],
            "degraded, refused, unavailable beside {} granted; {stats:?}",
            read(&counts.granted)
        );
        limiter.close().await;
    });
}

async fn take(limiter: &RateLimiter, key: u64, counts: &Counts) {
    let counter =
        match limiter.acquire(Request::new(format!("key-{key}"), "gpt-4").take("rpm", 1)).await {
            Ok(lease) => {
                let counter =
                    if lease.degraded().is_some() { &counts.degraded } else { &counts.granted };
                lease.commit().await.expect("nothing is left to write");
                counter
            }
            Err(AcquireError::Exceeded(_)) => &counts.refused,
            Err(_) => &counts.unavailable,
        };
    counter.fetch_add(1, Ordering::Relaxed);
}
