//! Redis on this machine, with the usual script.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use redis::aio::MultiplexedConnection;
use tokio::runtime::Runtime;
use zae_limiter::{Clock, SystemClock};

use super::Peer;
use crate::cell::{Calls, Op, Row, all_cores, one_thread};
use crate::keys::{self, KEYS, REQUESTS, TOKENS, pick};
use crate::rows::{CALLERS, Context, Entry};

/// Two limits in one hash, both or none, with an expiry: what every Redis limiter does, without
/// what some do besides.
const SCRIPT: &str = "
local now, cap = tonumber(ARGV[1]), tonumber(ARGV[2])
local rate, n1, n2 = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local h = redis.call('HMGET', KEYS[1], 'b1', 'b2', 'at')
local b1, b2, at = tonumber(h[1]) or cap, tonumber(h[2]) or cap, tonumber(h[3]) or now
local gain = math.max(0, now - at) * rate
b1, b2 = math.min(cap, b1 + gain), math.min(cap, b2 + gain)
if b1 < n1 or b2 < n2 then return {0, b1, b2} end
b1, b2 = b1 - n1, b2 - n2
redis.call('HSET', KEYS[1], 'b1', b1, 'b2', b2, 'at', now)
redis.call('PEXPIRE', KEYS[1], 420000)
return {1, b1, b2}";

/// How often a new server is asked whether it is up, and how long between.
const ATTEMPTS_MAX: u32 = 100;
const PAUSE: Duration = Duration::from_millis(20);

pub(super) fn rows() -> Vec<Peer> {
    vec![
        (
            "sqlite-acquire",
            Entry {
                name: "redis",
                what: "Redis Lua, 1 caller",
                make: |context| row(context, 1, KEYS),
            },
        ),
        (
            "sqlite-64",
            Entry {
                name: "redis-64",
                what: "Redis Lua, 64 callers, 1k keys",
                make: |context| row(context, CALLERS, KEYS),
            },
        ),
        (
            "sqlite-64-hot",
            Entry {
                name: "redis-64-hot",
                what: "Redis Lua, 64 callers, one key",
                make: |context| row(context, CALLERS, 1),
            },
        ),
    ]
}

/// A server of our own, without persistence; it ends with us.
pub(crate) struct Server {
    process: Child,
    address: String,
}

impl Server {
    fn start() -> Result<Server> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let arguments = [
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
            "--port",
            &port.to_string(),
        ];
        let started = Command::new("redis-server")
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let process = started.context(
            "redis-server cannot be started; install it (on Debian: apt-get install redis-server)",
        )?;
        Ok(Server { process, address: format!("redis://127.0.0.1:{port}/") })
    }

    async fn connect(&self) -> Result<MultiplexedConnection> {
        let client = redis::Client::open(self.address.as_str())?;
        for _ in 0..ATTEMPTS_MAX {
            if let Ok(connection) = client.get_multiplexed_async_connection().await {
                return Ok(connection);
            }
            SystemClock::new().sleep(PAUSE).await;
        }
        bail!("redis-server does not answer at {}", self.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

struct Lua {
    /// Calls of all callers share one connection, which sends them together: the fastest way there
    /// is.
    connection: MultiplexedConnection,
    script: String,
    keys: Vec<String>,
    server: u32,
}

impl Op for Lua {
    async fn call(&self, random: u64) {
        let mut command = redis::cmd("EVALSHA");
        command
            .arg(&self.script)
            .arg(1)
            .arg(pick(&self.keys, random))
            .arg(SystemClock::new().now().0);
        command.arg(1_000_000_000_000_u64).arg(16).arg(REQUESTS).arg(TOKENS);
        let (granted, left, _): (u8, i64, i64) =
            command.query_async(&mut self.connection.clone()).await.expect("an answer");
        assert!(granted == 1 && left >= 0);
    }

    fn server(&self) -> Option<u32> {
        Some(self.server)
    }
}

fn row(context: &Context, callers: usize, keys: usize) -> Result<Box<dyn Row>> {
    let server =
        context.redis.get_or_init(|| Server::start().map_err(|error| format!("{error:#}")));
    let server = server.as_ref().map_err(|error| anyhow!("{error}"))?;
    let runtime = if callers == 1 { one_thread()? } else { all_cores()? };
    let (connection, script) = load(&runtime, server)?;
    let op = Lua { connection, script, keys: keys::texts(keys), server: server.process.id() };
    Ok(if callers == 1 { Calls::alone(runtime, op, 1) } else { Calls::crowd(runtime, op, callers) })
}

fn load(runtime: &Runtime, server: &Server) -> Result<(MultiplexedConnection, String)> {
    runtime.block_on(async {
        let mut connection = server.connect().await?;
        let script =
            redis::cmd("SCRIPT").arg("LOAD").arg(SCRIPT).query_async(&mut connection).await?;
        Ok((connection, script))
    })
}
