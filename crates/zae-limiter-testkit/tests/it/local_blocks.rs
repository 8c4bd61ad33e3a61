//! Local blocks on a real DynamoDB API, by the real clock: processes that are killed under load,
//! and an engine that goes away.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::task::JoinSet;
use zae_limiter::{AcquireError, LocalBlocks, RateLimiter, Request, Source, SystemClock};
use zae_limiter_core::Limit;
use zae_limiter_dynamodb::DynamoStore;
use zae_limiter_dynamodb::constants::FAST_GRACE_MS;
use zae_limiter_store::Clock as _;
use zae_limiter_testkit::engine::Engine;

/// Where a child finds what it shall do: the name of the variable.
const ROLE: &str = "ZAE_LIMITER_BLOCKS_TEST_ROLE";
const STACK: &str = "blocks";
const CAPACITY: u64 = 3_000;
const PER_SECOND: u64 = 1_000;
const PROCESSES: usize = 4;
const TASKS: usize = 16;
const KILLS: usize = 20;

/// A limiter as users build it, on an engine.
async fn limiter(endpoint: &str) -> RateLimiter {
    let store = DynamoStore::builder(STACK, "us-east-1")
        .endpoint_url(endpoint)
        .timeouts(Duration::from_secs(10), Duration::from_secs(10))
        .trust_local_clock()
        .connect()
        .await
        .unwrap();
    let limit = Limit::custom("rpm", CAPACITY, PER_SECOND, 1).unwrap();
    let builder = RateLimiter::builder(store).default_limits([limit]);
    builder.local_blocks(LocalBlocks::default()).build().unwrap()
}

fn request() -> Request {
    Request::new("hot", "gpt-4").take("rpm", 1)
}

/// A process that ends with this value.
struct Kid(Child);

impl Drop for Kid {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Kid {
    fn start(endpoint: &str, grants: &Path) -> Kid {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "local_blocks::child_process", "--nocapture", "--quiet"])
            .env(ROLE, format!("{endpoint} {}", grants.display()));
        Kid(command.stdout(Stdio::null()).spawn().unwrap())
    }
}

/// Four processes of 16 tasks take as fast as they can, and one after another is killed. What they
/// got together is at most the capacity and what has refilled since the first began; a fast path
/// may be late by its grace.
#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "the children live by the real clock")]
async fn killed_processes_never_grant_too_much() {
    let engine = Engine::start();
    engine.stack(STACK).create().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let grants = folder.path().join("grants");
    fs::write(&grants, "").unwrap();
    let clock = SystemClock::new();
    let begun = clock.monotonic();
    let mut children: Vec<Kid> =
        (0..PROCESSES).map(|_| Kid::start(engine.endpoint(), &grants)).collect();
    for kill in 0..KILLS {
        std::thread::sleep(Duration::from_millis(150));
        children[kill % PROCESSES] = Kid::start(engine.endpoint(), &grants);
    }
    drop(children);
    let elapsed_ms = u64::try_from((clock.monotonic() - begun).as_millis()).unwrap();
    let grace_ms = u64::try_from(FAST_GRACE_MS).unwrap();
    // One byte per grant, appended by every child.
    let granted = fs::metadata(&grants).unwrap().len();
    let most = CAPACITY + PER_SECOND * (elapsed_ms + grace_ms) / 1_000 + 1;
    println!("{granted} of at most {most} grants in {elapsed_ms} ms");
    assert!(granted <= most, "{granted} granted in {elapsed_ms} ms, {most} at most");
    assert!(granted > CAPACITY / 2, "the children had begun to work: {granted}");
}

#[test]
#[expect(clippy::disallowed_methods, reason = "how a test tells its child what to do")]
fn child_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (endpoint, grants) = role.split_once(' ').unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let limiter = limiter(endpoint).await;
        let mut tasks = JoinSet::new();
        for _ in 0..TASKS {
            let limiter = limiter.clone();
            let mut told = OpenOptions::new().append(true).open(grants).unwrap();
            tasks.spawn(async move {
                let clock = SystemClock::new();
                // Its parent kills it long before.
                while clock.monotonic() < Duration::from_secs(60) {
                    match limiter.acquire(request()).await {
                        Ok(lease) => {
                            told.write_all(b".").unwrap();
                            lease.commit().await.unwrap();
                        }
                        Err(_) => clock.sleep(Duration::from_millis(5)).await,
                    }
                }
            });
        }
        tasks.join_all().await;
    });
}

/// The engine is stopped under load: requests go on from what is paid for, then the policy decides.
#[tokio::test]
async fn an_engine_that_is_gone_is_bridged_by_stock() {
    let engine = Engine::start();
    engine.stack(STACK).create().await.unwrap();
    let limiter = limiter(engine.endpoint()).await;
    let (clock, mut is_local) = (SystemClock::new(), false);
    let until = clock.monotonic() + Duration::from_secs(20);
    while !is_local && clock.monotonic() < until {
        let lease = limiter.acquire(request()).await.unwrap();
        is_local = lease.source() == Source::Local;
        lease.commit().await.unwrap();
        clock.sleep(Duration::from_millis(1)).await;
    }
    assert!(is_local, "no block was bought");
    engine.kill();
    let (mut bridged, mut ended) = (0, None);
    while ended.is_none() && bridged < CAPACITY {
        match limiter.acquire(request()).await {
            Ok(lease) => {
                assert_eq!(lease.source(), Source::Local, "the tokens are paid for");
                assert!(lease.degraded().is_none());
                bridged += 1;
                lease.commit().await.unwrap();
            }
            Err(error) => ended = Some(error),
        }
    }
    assert!(bridged > 0, "{ended:?}");
    assert!(matches!(ended, Some(AcquireError::Unavailable(_))), "{ended:?}");
    let stats = limiter.blocks().unwrap();
    assert!(stats.grants >= bridged && stats.missing().0 == 0, "{stats:?}");
}
