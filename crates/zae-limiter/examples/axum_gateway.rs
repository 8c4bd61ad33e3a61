//! An LLM gateway on axum: 200 with what is left, 429 with when to come back, 503 while the store
//! is down, and a stream whose client hangs up is charged what it had produced.
//!
//! It serves itself on a free loopback port: `cargo run -p zae-limiter --example axum_gateway`

use std::error::Error;
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, atomic::AtomicBool, atomic::Ordering};

use axum::http::HeaderMap;
use axum::response::{AppendHeaders, IntoResponse};
use axum::{Router, body::Body, extract::State, routing::post};
use futures_util::{Stream, stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};
use zae_limiter::sqlite::SqliteStore;
use zae_limiter::store::{Fault, FaultStore};
use zae_limiter::{
    AcquireError, Clock, Lease, Level, OnDrop, RateLimiter, Request, StoreErrorKind, SystemClock,
    headers,
};

/// What a call is expected to use, and what it does use: the prompt, then one word after the other.
const ESTIMATE: u64 = 100;
const PROMPT: u64 = 10;
const WORD: u64 = 20;
const WORDS: u64 = 8;

pub(crate) type Failure = Box<dyn Error + Send + Sync>;

/// What the handlers share.
#[derive(Clone)]
pub(crate) struct Gateway {
    pub(crate) limiter: RateLimiter,
    /// Stands for the model: each permit lets it say one more word.
    pub(crate) model: Arc<Semaphore>,
    /// Stands for an outage: while it is set, the store fails.
    pub(crate) store_down: Arc<AtomicBool>,
}

/// `?` answers 429, 503 and so on, with their headers: feature `axum`.
async fn chat(
    State(gateway): State<Gateway>,
    headers: HeaderMap,
) -> Result<impl IntoResponse, AcquireError> {
    let key = headers.get("x-api-key").and_then(|key| key.to_str().ok()).unwrap_or("anonymous");
    // By default a dropped lease gives everything back: a client that hung up just before the end
    // would pay nothing.
    let request =
        Request::new(key, "gpt-4").take("rpm", 1).take("tpm", ESTIMATE).on_drop(OnDrop::Commit);
    let lease = gateway.limiter.acquire(request).await?;
    Ok((
        AppendHeaders(headers::granted(lease.statuses())),
        Body::from_stream(answer(gateway.model, lease)),
    ))
}

/// The answer owns the lease: when the client hangs up, axum drops the answer, and the lease with
/// it.
fn answer(
    model: Arc<Semaphore>,
    lease: Lease,
) -> impl Stream<Item = Result<&'static str, Failure>> {
    // Until something is recorded, the estimate counts as used.
    lease.record("tpm", PROMPT).expect("chat declares tpm");
    stream::try_unfold((model, lease, 0), async |(model, lease, said)| {
        if said == WORDS {
            drop(lease.commit().await); // what fails is settled in the background: news for the log, not for the client
            return Ok(None);
        }
        model.acquire().await?.forget();
        lease.record("tpm", PROMPT + (said + 1) * WORD)?; // no I/O: fit for every word
        Ok(Some(("word ", (model, lease, said + 1))))
    })
}

impl Gateway {
    pub(crate) async fn open(path: &Path, clock: impl Clock + 'static) -> Result<Gateway, Failure> {
        let store_down = Arc::new(AtomicBool::new(false));
        let down = Arc::clone(&store_down);
        let outage = Fault::FailBefore(StoreErrorKind::Unavailable);
        let fault = move |_operation: &'static str| {
            if down.load(Ordering::Acquire) { outage } else { Fault::None }
        };
        let store = FaultStore::new(Arc::new(SqliteStore::open(path)?), fault);
        let limiter = RateLimiter::builder(store).clock(clock).build()?;
        limiter.set_limits(&Level::System, ["rpm:60/min".parse()?, "tpm:300/min".parse()?]).await?;
        Ok(Gateway { limiter, model: Arc::new(Semaphore::new(0)), store_down })
    }

    /// Serves while `client` runs. The order of the end matters: no more connections first, the
    /// limiter last.
    pub(crate) async fn serve<T>(
        &self,
        client: impl AsyncFnOnce(SocketAddr) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let router = Router::new().route("/chat", post(chat)).with_state(self.clone());
        let server = axum::serve(listener, router)
            .with_graceful_shutdown(async { stopped.await.unwrap_or_default() });
        let (served, seen) = tokio::join!(server.into_future(), async {
            let seen = client(address).await;
            drop(stop);
            seen
        });
        served?;
        self.limiter.close().await;
        seen
    }
}

/// A small client, in HTTP/1.0: the answer ends with the connection. It may hang up after so many
/// words.
pub(crate) async fn ask(
    server: SocketAddr,
    key: &str,
    hang_up_after: Option<usize>,
) -> Result<String, Failure> {
    let mut connection = TcpStream::connect(server).await?;
    connection
        .write_all(format!("POST /chat HTTP/1.0\r\nx-api-key: {key}\r\n\r\n").as_bytes())
        .await?;
    let mut seen = Vec::new();
    loop {
        let ended = connection.read_buf(&mut seen).await? == 0;
        let text = String::from_utf8_lossy(&seen);
        if ended || hang_up_after.is_some_and(|words| text.matches("word ").count() >= words) {
            return Ok(text.into_owned());
        }
    }
}

pub(crate) async fn run(
    path: &Path,
    clock: impl Clock + 'static,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let gateway = Gateway::open(path, clock).await?;
    // Key, words the model says, and after how many of them the client hangs up.
    let calls = [
        ("key-1", 8, None),
        ("key-1", 8, None),
        ("key-1", 0, None),
        ("key-2", 0, None),
        ("key-3", 3, Some(3)),
    ];
    let drive = async |server| {
        for (key, words, hang_up_after) in calls {
            gateway.store_down.store(key == "key-2", Ordering::Release);
            gateway.model.add_permits(words);
            let seen = ask(server, key, hang_up_after).await?;
            let told = |line: &&str| {
                ["HTTP", "retry", "x-ratelimit-remaining"]
                    .iter()
                    .any(|start| line.starts_with(start))
            };
            let told = seen.lines().filter(told).collect::<Vec<_>>().join(" | ");
            writeln!(out, "{key}: {told} | {} words", seen.matches("word ").count())?;
        }
        Ok(())
    };
    gateway.serve(drive).await?;
    for bucket in gateway.limiter.buckets("key-3", &Default::default()).await?.items {
        let used = bucket
            .state
            .limits()
            .iter()
            .map(|limit| format!("{} {}", limit.consumed.floor_tokens(), limit.name));
        writeln!(out, "key-3 hung up and is charged {}", used.collect::<Vec<_>>().join(", "))?;
    }
    Ok(())
}

// One thread: axum tells that a connection has ended just before it drops its lease, and here
// nobody can look in between.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    run(&folder.path().join("limits.db"), SystemClock::new(), &mut std::io::stdout()).await
}
