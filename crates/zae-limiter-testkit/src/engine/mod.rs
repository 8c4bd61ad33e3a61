//! A DynamoDB-compatible server per test: `engines/zae-limiter-local`, built on first use and gone
//! with the test.
//!
//! ```no_run
//! use zae_limiter_testkit::engine::Engine;
//!
//! let engine = Engine::start();
//! // Point a client at it: any region, any credentials.
//! let endpoint = engine.endpoint();
//! // Time passes at the test's word.
//! let deleted = engine.sweep_ttl_at(1_800_000_000);
//! # let _ = (endpoint, deleted);
//! ```
//!
//! The key decision: a process, not a library. The engine links another SQLite than our own
//! backend, which no lock file allows twice; and a test that kills its server kills a real one.
//! Starting it takes milliseconds, so no two tests share one. Everything here panics when it fails,
//! and says what to run.

pub mod clocks;
pub mod proxy;
pub mod stream;

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use serde_json::{Value, json};
use zae_limiter_dynamodb::DynamoStore;
use zae_limiter_dynamodb::sdk::Builder;

/// Names a prebuilt `zae-limiter-local`; nothing is built then.
pub const BINARY_VARIABLE: &str = "ZAEL_LOCAL_ENGINE";

/// Names an endpoint that [`Engine::from_env_or_start`] uses instead of starting a server.
pub const ENDPOINT_VARIABLE: &str = "ZAEL_TEST_DYNAMODB_ENDPOINT";

/// How long an answer may take. Far more than any does: a hang becomes a failure that says so.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// How long connecting and one request may take by [`Engine::stack`].
const PATIENCE: Duration = Duration::from_secs(20);

/// A DynamoDB-compatible server, empty when it starts. Dropping it ends the process.
#[derive(Debug)]
pub struct Engine {
    endpoint: String,
    /// None when somebody else runs the server.
    child: Option<Child>,
}

/// What a server answered to [`Engine::call`].
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The body; null when it is not JSON.
    pub body: Value,
}

impl Answer {
    /// The body of a success.
    #[track_caller]
    pub fn ok(self) -> Value {
        assert_eq!(self.status, 200, "{}", self.body);
        self.body
    }

    /// The name of the error without its namespace, such as `ConditionalCheckFailedException`.
    pub fn error(&self) -> Option<&str> {
        self.body["__type"].as_str()?.rsplit('#').next()
    }
}

impl Engine {
    /// Builds the server if need be and starts one, in memory, on a free port. It expires nothing
    /// on its own.
    ///
    /// The first call on a machine compiles for a minute or two, into `engine` below the target
    /// folder; the target folder of the tests themselves is locked by the cargo that runs them.
    pub fn start() -> Engine {
        Engine::start_with(&[])
    }

    /// [`start`](Engine::start), on a file that outlives it.
    pub fn start_on(data: &Path) -> Engine {
        Engine::start_with(&[OsStr::new("--data"), data.as_os_str()])
    }

    /// [`start`](Engine::start) with further arguments; `zae-limiter-local --help` lists them.
    pub fn start_with(arguments: &[&OsStr]) -> Engine {
        let binary = binary();
        let mut command = Command::new(&binary);
        command.args(["--port", "0", "--sweep-seconds", "0", "--exit-with-stdin"]).args(arguments);
        // It stops when its standard input closes, so that it does not outlive a test that was
        // killed.
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command
            .spawn()
            .unwrap_or_else(|error| panic!("{} cannot be started: {error}", binary.display()));
        let mut line = String::new();
        let stdout = child.stdout.take().expect("standard output is piped");
        let read = BufReader::new(stdout).read_line(&mut line);
        match line.trim_end().strip_prefix("listening on ") {
            Some(endpoint) => Engine { endpoint: endpoint.into(), child: Some(child) },
            None => {
                let _ = child.kill();
                let status = child.wait();
                panic!(
                    "{} did not start ({read:?}, {status:?}, said {line:?}); its complaint is on standard error",
                    binary.display()
                );
            }
        }
    }

    /// Uses the endpoint that `ZAEL_TEST_DYNAMODB_ENDPOINT` names, or else [starts](Engine::start)
    /// a server.
    ///
    /// So the same tests run against any other implementation:
    ///
    /// | what | endpoint |
    /// |---|---|
    /// | Amazon's DynamoDB Local (its licence is between you and Amazon) | `http://127.0.0.1:8000` |
    /// | ScyllaDB Alternator | `http://127.0.0.1:8000`, or its `--alternator-port` |
    /// | the service itself | `https://dynamodb.<region>.amazonaws.com`, with credentials in the environment; it costs money |
    ///
    /// Such a server is shared and lasts: tables need names of their own and are for the test to
    /// delete. It takes no orders: [`can_sweep`](Engine::can_sweep) is false, and
    /// [`sweep_ttl`](Engine::sweep_ttl) and [`trim_streams`](Engine::trim_streams) panic.
    /// [`call`](Engine::call) does not speak TLS.
    #[expect(
        clippy::disallowed_methods,
        reason = "which server to test is told by the environment"
    )]
    pub fn from_env_or_start() -> Engine {
        Engine::choose(std::env::var_os(ENDPOINT_VARIABLE))
    }

    fn choose(endpoint: Option<OsString>) -> Engine {
        match endpoint.filter(|endpoint| !endpoint.is_empty()) {
            None => Engine::start(),
            Some(endpoint) => {
                let endpoint = endpoint
                    .into_string()
                    .unwrap_or_else(|text| panic!("{ENDPOINT_VARIABLE} is not text: {text:?}"));
                let known = endpoint.starts_with("http://") || endpoint.starts_with("https://");
                assert!(
                    known,
                    "{ENDPOINT_VARIABLE} must start with http:// or https://, not {endpoint:?}"
                );
                Engine { endpoint: endpoint.trim_end_matches('/').into(), child: None }
            }
        }
    }

    /// Where it listens: `http://127.0.0.1:` and a port.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// A stack on the engine, to create or to connect to. Its timeouts are long, because machines
    /// that run tests are busy.
    pub fn stack(&self, name: &str) -> Builder {
        DynamoStore::builder(name, "us-east-1")
            .endpoint_url(&self.endpoint)
            .timeouts(PATIENCE, PATIENCE)
    }

    /// True for an engine this test started: TTLs can be swept and streams trimmed at will, and
    /// only this test writes to it.
    pub fn can_sweep(&self) -> bool {
        self.child.is_some()
    }

    /// Deletes the items that have expired by now, as the service does sooner or later. Returns how
    /// many.
    pub fn sweep_ttl(&self) -> u64 {
        self.control("/_zae/sweep-ttl", "")
    }

    /// Deletes the items that have expired by `now`, in seconds since 1970. Returns how many.
    pub fn sweep_ttl_at(&self, now: u64) -> u64 {
        self.control("/_zae/sweep-ttl", &json!({ "now": now }).to_string())
    }

    /// Forgets every stream record, as the service does after a day. Returns how many.
    pub fn trim_streams(&self) -> u64 {
        self.control("/_zae/trim-streams", "")
    }

    /// What it says about itself: version, process, tables.
    pub fn health(&self) -> Value {
        self.exchange("GET /_zae/health", &[], "").ok()
    }

    /// One DynamoDB request in the service's own JSON, for what needs no SDK. The signature is a
    /// sham.
    pub fn call(&self, operation: &str, body: &Value) -> Answer {
        let streams = ["ListStreams", "DescribeStream", "GetShardIterator", "GetRecords"]
            .contains(&operation);
        let target = format!(
            "{}_20120810.{operation}",
            if streams { "DynamoDBStreams" } else { "DynamoDB" }
        );
        let headers = [
            ("Content-Type", "application/x-amz-json-1.0"),
            ("X-Amz-Target", &target),
            ("X-Amz-Date", "20260101T000000Z"),
            (
                "Authorization",
                "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/dynamodb/aws4_request, SignedHeaders=host;x-amz-date, Signature=0",
            ),
        ];
        self.exchange("POST /", &headers, &body.to_string())
    }

    /// Ends the process at once, as a crash would.
    pub fn kill(mut self) {
        let mut child = self.child.take().expect("only a server of ours can be killed");
        child.kill().expect("it can be killed");
        child.wait().expect("it has ended");
    }

    /// Asks the process to finish what it does, and waits until it has.
    pub fn stop(mut self) -> ExitStatus {
        drop(self.child.as_mut().and_then(|child| child.stdin.take()));
        self.wait()
    }

    /// Waits until the process ends by itself, as it does after a signal.
    pub fn wait(mut self) -> ExitStatus {
        let mut child = self.child.take().expect("only a server of ours can be waited for");
        // Waiting would close its standard input, which is another order to stop.
        let _open = child.stdin.take();
        child.wait().expect("it has ended")
    }

    fn control(&self, path: &str, body: &str) -> u64 {
        let endpoint = &self.endpoint;
        assert!(
            self.can_sweep(),
            "{endpoint} is not ours and has no {path}: check can_sweep() first, or unset {ENDPOINT_VARIABLE}"
        );
        let answer = self.exchange(&format!("POST {path}"), &[], body).ok();
        answer["deleted"].as_u64().unwrap_or_else(|| panic!("{path} answered {answer}"))
    }

    /// One request on a connection of its own.
    fn exchange(&self, start: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let host = self
            .endpoint
            .strip_prefix("http://")
            .unwrap_or_else(|| panic!("no TLS here: {}", self.endpoint));
        let mut request = format!(
            "{start} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: {}\r\n",
            body.len()
        );
        for (name, value) in headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        request.push_str("\r\n");
        request.push_str(body);
        let mut answer = String::new();
        let read = TcpStream::connect(host).and_then(|mut connection| {
            connection.set_read_timeout(Some(ANSWER_MAX))?;
            connection.write_all(request.as_bytes())?;
            connection.read_to_string(&mut answer)
        });
        let parsed = answer.split_once("\r\n\r\n").and_then(|(head, body)| {
            let status = head.split(' ').nth(1)?.parse().ok()?;
            Some(Answer { status, body: serde_json::from_str(body).unwrap_or(Value::Null) })
        });
        parsed.unwrap_or_else(|| panic!("{start} at {host}: {read:?}, answered {answer:?}"))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The server's binary, built at most once per process: what `ZAEL_LOCAL_ENGINE` names, or else one
/// of our own.
#[expect(
    clippy::disallowed_methods,
    reason = "a prebuilt server is named by the environment, like cargo and its target folder"
)]
pub fn binary() -> PathBuf {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    let find = || match std::env::var_os(BINARY_VARIABLE).filter(|path| !path.is_empty()) {
        Some(path) => {
            let path = PathBuf::from(path);
            assert!(path.is_file(), "{BINARY_VARIABLE} names {}, which is no file", path.display());
            path
        }
        None => {
            let root = root();
            let target = std::env::var_os("CARGO_TARGET_DIR")
                .map_or_else(|| root.join("target"), |target| root.join(target));
            let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
            build(&cargo, &root.join("engines").join(NAME), &target.join("engine"))
        }
    };
    BINARY.get_or_init(find).clone()
}

const NAME: &str = "zae-limiter-local";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("crates/<name> is two below the root")
        .to_owned()
}

fn build(cargo: &OsStr, package: &Path, target: &Path) -> PathBuf {
    let binary = target.join("debug").join(format!("{NAME}{}", std::env::consts::EXE_SUFFIX));
    let manifest = package.join("Cargo.toml");
    let by_hand = format!(
        "cargo build --locked --manifest-path {} --target-dir {}",
        manifest.display(),
        target.display()
    );
    assert!(
        manifest.is_file(),
        "{} is missing; set {BINARY_VARIABLE} to a prebuilt {NAME}",
        manifest.display()
    );

    // The second of two test processes waits here, without cargo's messages about it, and then
    // finds everything built.
    let lock = fs::create_dir_all(target).and_then(|()| File::create(target.join("build.lock")));
    let lock = lock.unwrap_or_else(|error| panic!("{}: {error}", target.display()));
    lock.lock().unwrap_or_else(|error| panic!("{} cannot be locked: {error}", target.display()));
    if !binary.is_file() {
        // Written to stderr directly: the harness would hold the message back until the build ends.
        let _ = writeln!(std::io::stderr(), "building {NAME} for the tests, once: {by_hand}");
    }
    let mut command = Command::new(cargo);
    command
        .args(["build", "--locked", "--quiet", "--manifest-path"])
        .arg(&manifest)
        .arg("--target-dir")
        .arg(target);
    // `RUSTFLAGS` of the tests would rebuild the engine per set of flags, and a target of the tests
    // would build it into another folder.
    command
        .current_dir(package)
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("CARGO_BUILD_TARGET");
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{} cannot be started: {error}", cargo.display()));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{NAME} does not build. Try: {by_hand}\nor set {BINARY_VARIABLE} to a prebuilt one.\n{said}"
    );
    assert!(
        binary.is_file(),
        "{} was not built where it was expected. Try: {by_hand}",
        binary.display()
    );
    binary
}

#[cfg(test)]
mod tests {
    use super::*;

    fn external(endpoint: &str) -> Engine {
        Engine::choose(Some(endpoint.into()))
    }

    #[test]
    fn an_endpoint_of_somebody_else_is_used_as_it_is() {
        let engine = external("https://dynamodb.eu-west-1.amazonaws.com/");
        assert_eq!(engine.endpoint(), "https://dynamodb.eu-west-1.amazonaws.com");
        assert!(!engine.can_sweep());
    }

    #[test]
    #[should_panic(expected = "check can_sweep() first, or unset ZAEL_TEST_DYNAMODB_ENDPOINT")]
    fn it_takes_no_orders() {
        external("http://127.0.0.1:1").sweep_ttl();
    }

    #[test]
    #[should_panic(expected = "must start with http:// or https://")]
    fn it_needs_a_scheme() {
        external("127.0.0.1:8000");
    }

    #[test]
    #[should_panic(expected = "set ZAEL_LOCAL_ENGINE to a prebuilt zae-limiter-local")]
    fn a_missing_package_is_named() {
        build(OsStr::new("cargo"), Path::new("nowhere"), Path::new("nowhere"));
    }
}
