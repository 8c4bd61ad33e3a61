//! A lossy wire: a proxy on the loopback between a real client and a real server that loses,
//! repeats, delays and garbles.
//!
//! ```no_run
//! # async fn example() {
//! use zae_limiter_testkit::engine::Engine;
//! use zae_limiter_testkit::engine::proxy::{Fault, Proxy};
//!
//! let engine = Engine::start();
//! let proxy = Proxy::start(engine.endpoint()).await;
//! proxy.script([Fault::CloseAfter]);
//! // A client of `proxy.endpoint()` now loses the reply to its next write, which has landed.
//! proxy.idle().await;
//! assert_eq!(proxy.take().iter().map(|exchange| exchange.landings).sum::<u32>(), 1);
//! # }
//! ```
//!
//! The key decision: the proxy keeps the books. It knows of every request whether and how often it
//! was applied, which no client can know, so a test compares what clients believe with what is
//! true. One proxy per client: its faults then follow from the seed and the order of that client's
//! own requests, whatever others do.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::rng::Rng;

/// What happens to one request and its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    Pass,
    /// Applied; the connection is closed instead of a reply.
    CloseAfter,
    /// Not applied; the connection is closed instead of a reply.
    CloseBefore,
    /// Applied; the reply is an internal error.
    ErrorAfter,
    /// Not applied; the reply is an internal error.
    ErrorBefore,
    /// Applied; the reply is an HTTP success with a body nobody can read.
    GarbageAfter,
    /// Not applied; the reply is not even HTTP.
    GarbageBefore,
    /// Applied; the reply breaks off in the middle.
    HalfAfter,
    /// Not applied, and the reply says so: too many requests.
    Throttle,
    /// Not applied, and the reply says so: a transaction was in the way.
    Conflict,
    /// Applied after this long, then replied to.
    Late(Duration),
    /// Applied, replied to, and applied once more after this long.
    Twice(Duration),
    /// Applied, applied once more after this long, and only the second reply is passed on.
    TwiceAnswerSecond(Duration),
}

impl Fault {
    /// True when the request reaches the server.
    #[must_use]
    pub fn applies(self) -> bool {
        !matches!(
            self,
            Fault::CloseBefore
                | Fault::ErrorBefore
                | Fault::GarbageBefore
                | Fault::Throttle
                | Fault::Conflict
        )
    }

    /// True when the request reaches the server twice.
    #[must_use]
    pub fn repeats(self) -> bool {
        matches!(self, Fault::Twice(_) | Fault::TwiceAnswerSecond(_))
    }

    /// True when the reply says that nothing was applied, and that is so.
    #[must_use]
    pub fn is_refusal(self) -> bool {
        matches!(self, Fault::Throttle | Fault::Conflict)
    }
}

/// One request and what became of it.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// Such as `UpdateItem`.
    pub operation: String,
    /// The request.
    pub request: Value,
    /// What was done to it.
    pub fault: Fault,
    /// How often the server said it was done.
    pub landings: u32,
}

impl Exchange {
    /// True for a write of one item.
    #[must_use]
    pub fn is_write(&self) -> bool {
        is_write(&self.operation)
    }
}

fn is_write(operation: &str) -> bool {
    matches!(operation, "UpdateItem" | "PutItem" | "DeleteItem")
}

/// Decides about each request by its operation, in the order of arrival.
type Plan = Box<dyn FnMut(&str) -> Fault + Send>;

/// The proxy. Dropping it closes every connection, replies on their way included; see
/// [`Proxy::idle`].
#[derive(Debug)]
pub struct Proxy {
    endpoint: String,
    shared: Arc<Shared>,
    accepting: AbortHandle,
}

struct Shared {
    upstream: String,
    state: Mutex<State>,
    changed: Notify,
}

struct State {
    plan: Plan,
    exchanges: Vec<Exchange>,
    in_flight: usize,
    /// How many requests must have arrived before any goes on, and how many have.
    gate: Option<(usize, usize)>,
    connections: Vec<AbortHandle>,
    /// Clients that have not hung up.
    open: usize,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("upstream", &self.upstream).finish_non_exhaustive()
    }
}

impl Proxy {
    /// Starts a proxy for `upstream`, an `http://` address, on a free port and the current runtime.
    /// Everything passes until it is told otherwise.
    pub async fn start(upstream: &str) -> Proxy {
        let upstream = upstream
            .strip_prefix("http://")
            .unwrap_or_else(|| panic!("no TLS here: {upstream}"))
            .to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let endpoint = format!("http://{}", listener.local_addr().expect("a bound port"));
        let state = State {
            plan: passing(),
            exchanges: Vec::new(),
            in_flight: 0,
            gate: None,
            connections: Vec::new(),
            open: 0,
        };
        let shared =
            Arc::new(Shared { upstream, state: Mutex::new(state), changed: Notify::new() });
        let accepting = spawn(accept(listener, Arc::clone(&shared)));
        Proxy { endpoint, shared, accepting }
    }

    /// Where clients connect to.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// From now on the next writes meet these faults, one each; then everything passes. Reads pass.
    pub fn script(&self, faults: impl IntoIterator<Item = Fault>) {
        let mut faults = faults.into_iter().collect::<Vec<_>>().into_iter();
        self.plan(move |operation| {
            if is_write(operation) { faults.next().unwrap_or(Fault::Pass) } else { Fault::Pass }
        });
    }

    /// From now on the next requests of this operation meet these faults, one each; then everything
    /// passes.
    pub fn script_for(&self, only: &'static str, faults: impl IntoIterator<Item = Fault>) {
        let mut faults = faults.into_iter().collect::<Vec<_>>().into_iter();
        self.plan(move |operation| {
            if operation == only { faults.next().unwrap_or(Fault::Pass) } else { Fault::Pass }
        });
    }

    /// From now on faults follow from the seed: `percent` of 100 requests meet one. Delays are a
    /// little longer than `timeout`, the client's own.
    pub fn seed(&self, seed: u64, stream: u64, percent: u64, timeout: Duration) {
        let mut rng = Rng::new(seed, stream);
        self.plan(move |operation| {
            // As many draws for every request, so that the choice for one does not shift the
            // others.
            let (is_hit, kind, length) = (rng.chance(percent), rng.next(), rng.between(0, 100));
            let some = timeout.mul_f64(0.01 * length as f64);
            let fault = match kind % 13 {
                0 | 1 => Fault::CloseAfter,
                2 => Fault::CloseBefore,
                3 => Fault::ErrorAfter,
                4 => Fault::ErrorBefore,
                5 => Fault::GarbageAfter,
                6 => Fault::GarbageBefore,
                7 => Fault::HalfAfter,
                8 => Fault::Throttle,
                9 => Fault::Conflict,
                10 => Fault::Late(timeout + some),
                11 => Fault::Twice(some),
                _ => Fault::TwiceAnswerSecond(some / 4),
            };
            // Repeating a read, or a conflict on it, has no effect worth testing.
            let is_idle = !is_write(operation) && (fault.repeats() || fault == Fault::Conflict);
            if is_hit && !is_idle { fault } else { Fault::Pass }
        });
    }

    /// From now on everything passes.
    pub fn pass(&self) {
        self.shared.lock().plan = passing();
    }

    /// From now on this decides.
    pub fn plan(&self, plan: impl FnMut(&str) -> Fault + Send + 'static) {
        self.shared.lock().plan = Box::new(plan);
    }

    /// The next `count` requests wait for each other: none is passed on before all have arrived. A
    /// client that sends one request after the other waits for ever.
    pub fn gate(&self, count: usize) {
        self.shared.lock().gate = Some((count, 0));
    }

    /// What went through since the last time, in the order of arrival.
    pub fn take(&self) -> Vec<Exchange> {
        std::mem::take(&mut self.shared.lock().exchanges)
    }

    /// The number of exchanges since the last [`Proxy::take`].
    pub fn count(&self) -> usize {
        self.shared.lock().exchanges.len()
    }

    /// Waits until every request that has arrived has met its fate, late and repeated ones
    /// included.
    pub async fn idle(&self) {
        self.shared.until(|state| state.in_flight == 0).await;
    }

    /// The same, once every client has hung up: a request may have been given up before it was read
    /// from the wire, and only the end of a connection says that there is none left. Never ends
    /// while a client keeps a connection.
    pub async fn hung_up(&self) {
        self.shared.until(|state| state.open == 0 && state.in_flight == 0).await;
    }

    /// Stops listening and closes every connection: nobody can connect any more.
    pub fn close(&self) {
        self.accepting.abort();
        self.shared.lock().connections.drain(..).for_each(|connection| connection.abort());
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.close();
    }
}

fn passing() -> Plan {
    Box::new(|_| Fault::Pass)
}

#[expect(clippy::disallowed_methods, reason = "a server is tasks; they end with the proxy")]
fn spawn(task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
    tokio::spawn(task).abort_handle()
}

#[expect(
    clippy::disallowed_methods,
    reason = "a delay on the wire is real: the clients have real timeouts"
)]
async fn pause(duration: Duration) {
    tokio::time::sleep(duration).await;
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn until(&self, is_so: impl Fn(&mut State) -> bool) {
        loop {
            let changed = self.changed.notified();
            let mut changed = std::pin::pin!(changed);
            // Registered before the look, so that a change in between is not missed.
            changed.as_mut().enable();
            if is_so(&mut self.lock()) {
                return;
            }
            changed.await;
        }
    }

    /// Decides about a request that has just arrived.
    fn arrived(self: &Arc<Self>, operation: String, request: Value) -> Ticket {
        let mut state = self.lock();
        let fault = (state.plan)(&operation);
        state.in_flight += 1;
        if let Some((_, arrived)) = &mut state.gate {
            *arrived += 1;
        }
        state.exchanges.push(Exchange { operation, request, fault, landings: 0 });
        let ticket = Ticket { shared: Arc::clone(self), index: state.exchanges.len() - 1, fault };
        drop(state);
        self.changed.notify_waiters();
        ticket
    }

    async fn pass_gate(&self) {
        self.until(|state| state.gate.is_none_or(|(wanted, arrived)| arrived >= wanted)).await;
    }
}

/// A request whose fate is open.
struct Ticket {
    shared: Arc<Shared>,
    index: usize,
    fault: Fault,
}

impl Ticket {
    async fn send(
        &self,
        upstream: &mut Option<BufReader<TcpStream>>,
        request: &Message,
    ) -> Option<Message> {
        let reply = forward(&self.shared.upstream, upstream, request).await;
        if reply.as_ref().is_some_and(|reply| reply.status() == 200) {
            // `take` has removed the exchange of a request that lands after it: a mistake of the
            // test, see `idle`.
            if let Some(exchange) = self.shared.lock().exchanges.get_mut(self.index) {
                exchange.landings += 1;
            }
        }
        reply
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.shared.lock().in_flight -= 1;
        self.shared.changed.notify_waiters();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((stream, _)) = listener.accept().await {
        shared.lock().open += 1;
        let line = Line(Arc::clone(&shared));
        let connection = spawn(async move { serve(stream, &line.0).await });
        let mut state = shared.lock();
        state.connections.retain(|connection| !connection.is_finished());
        state.connections.push(connection);
    }
}

/// A connection of a client, open until it is dropped.
struct Line(Arc<Shared>);

impl Drop for Line {
    fn drop(&mut self) {
        self.0.lock().open -= 1;
        self.0.changed.notify_waiters();
    }
}

/// One connection of a client, with one to the server behind it.
async fn serve(stream: TcpStream, shared: &Arc<Shared>) {
    let _ = stream.set_nodelay(true);
    let mut client = BufReader::new(stream);
    let mut upstream = None;
    while let Some(request) = Message::read(&mut client).await {
        let operation = request
            .header("x-amz-target")
            .and_then(|target| target.rsplit('.').next())
            .unwrap_or_default()
            .to_owned();
        let ticket =
            shared.arrived(operation, serde_json::from_slice(&request.body).unwrap_or(Value::Null));
        shared.pass_gate().await;
        let Some(reply) = decide(ticket, request, &mut upstream).await else { return };
        if client.get_mut().write_all(&reply.bytes).await.is_err() || reply.is_last {
            return;
        }
    }
}

/// What goes back to the client.
struct Reply {
    bytes: Vec<u8>,
    /// The connection is closed after it.
    is_last: bool,
}

impl From<Vec<u8>> for Reply {
    fn from(bytes: Vec<u8>) -> Reply {
        Reply { bytes, is_last: false }
    }
}

/// Does to a request what its fault says. `None` closes the connection.
async fn decide(
    ticket: Ticket,
    request: Message,
    upstream: &mut Option<BufReader<TcpStream>>,
) -> Option<Reply> {
    let mut applied = None;
    if let Fault::Late(delay) = ticket.fault {
        pause(delay).await;
    }
    if ticket.fault.applies() {
        applied = Some(ticket.send(upstream, &request).await?);
    }
    match ticket.fault {
        Fault::Pass | Fault::Late(_) => Some(applied?.bytes().into()),
        Fault::CloseAfter | Fault::CloseBefore => None,
        Fault::ErrorAfter | Fault::ErrorBefore => Some(error(500, "InternalServerError").into()),
        Fault::GarbageAfter => Some(answer(200, "<html>all is well</html>").into()),
        Fault::GarbageBefore => {
            Some(Reply { bytes: b"220 smtp.example.com ready\r\n".to_vec(), is_last: true })
        }
        Fault::HalfAfter => {
            let mut bytes = applied?.bytes();
            bytes.truncate(bytes.len() - bytes.len() / 4);
            Some(Reply { bytes, is_last: true })
        }
        Fault::Throttle => Some(error(400, "ProvisionedThroughputExceededException").into()),
        Fault::Conflict => Some(error(400, "TransactionConflictException").into()),
        Fault::Twice(gap) => {
            spawn(async move {
                pause(gap).await;
                ticket.send(&mut None, &request).await;
            });
            Some(applied?.bytes().into())
        }
        Fault::TwiceAnswerSecond(gap) => {
            pause(gap).await;
            Some(ticket.send(upstream, &request).await?.bytes().into())
        }
    }
}

fn error(status: u16, code: &str) -> Vec<u8> {
    answer(status, &json!({"__type": format!("com.amazonaws.dynamodb.v20120810#{code}"), "message": "by the proxy"}).to_string())
}

fn answer(status: u16, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status} Word\r\ncontent-type: application/x-amz-json-1.0\r\ncontent-length: {length}\r\n\r\n{body}").into_bytes()
}

/// One request or reply with a length.
struct Message {
    head: String,
    body: Vec<u8>,
}

impl Message {
    /// `None` at the end of the connection, or for what is no message.
    async fn read(from: &mut BufReader<TcpStream>) -> Option<Message> {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if from.read_line(&mut head).await.ok()? == 0 {
                return None;
            }
        }
        let mut message = Message { head, body: Vec::new() };
        message.body.resize(
            message.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0),
            0,
        );
        from.read_exact(&mut message.body).await.ok()?;
        Some(message)
    }

    fn header(&self, wanted: &str) -> Option<&str> {
        let mut headers = self.head.lines().filter_map(|line| line.split_once(':'));
        headers.find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| value.trim())
    }

    fn status(&self) -> u16 {
        self.head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
    }

    fn bytes(&self) -> Vec<u8> {
        [self.head.as_bytes(), &self.body].concat()
    }
}

/// Sends a request to the server; opens a connection if there is none.
async fn forward(
    address: &str,
    connection: &mut Option<BufReader<TcpStream>>,
    request: &Message,
) -> Option<Message> {
    let mut open = match connection.take() {
        Some(open) => open,
        None => {
            let stream = TcpStream::connect(address)
                .await
                .unwrap_or_else(|error| panic!("{address}: {error}"));
            stream.set_nodelay(true).expect("a connected socket");
            BufReader::new(stream)
        }
    };
    open.get_mut().write_all(&request.bytes()).await.ok()?;
    let reply = Message::read(&mut open).await?;
    assert!(
        reply.header("transfer-encoding").is_none(),
        "a reply without a length: {}",
        reply.head
    );
    *connection = Some(open);
    Some(reply)
}
