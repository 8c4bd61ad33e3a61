//! A function as Lambda starts it: the variables that Lambda sets, and its runtime API.
//!
//! ```no_run
//! use std::process::Command;
//! use zae_limiter_testkit::aws::lambda::Function;
//!
//! let function = Function::start(Command::new("bootstrap").env("_HANDLER", "aggregator"));
//! let answer = function.invoke(&serde_json::json!({ "Records": [] }));
//! let ended = function.end();
//! # let _ = (answer, ended);
//! ```

use std::io::Read;
use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use serde_json::Value;

use super::{Asked, answer};

/// How long a function may take to say something. Far more than any does.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a function said to the runtime API.
#[derive(Clone, Debug, PartialEq)]
pub enum Said {
    /// It is ready for an event.
    Next,
    /// Its answer to an event.
    Response(Value),
    /// An event ended it, or made it fail.
    Error(Value),
    /// It cannot start.
    InitError(Value),
}

/// A process that Lambda has started. Dropping it ends the process.
#[derive(Debug)]
pub struct Function {
    child: Option<Child>,
    /// Read as it is written, so that nothing a function writes holds it up.
    written: Option<[JoinHandle<Vec<u8>>; 2]>,
    events: Sender<String>,
    said: Receiver<Said>,
}

impl Function {
    /// Starts a command with the variables that Lambda sets, over those it has. What they say does
    /// not matter to a function of ours, except the region.
    pub fn start(command: &mut Command) -> Function {
        let ((events, received), (saying, said)) = (channel(), channel());
        let child = command
            .envs([
                ("AWS_LAMBDA_RUNTIME_API", runtime_api(received, saying).as_str()),
                ("AWS_LAMBDA_FUNCTION_NAME", "aggregator"),
                ("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "128"),
                ("AWS_LAMBDA_FUNCTION_VERSION", "$LATEST"),
                ("AWS_LAMBDA_INITIALIZATION_TYPE", "on-demand"),
                ("AWS_LAMBDA_LOG_GROUP_NAME", "/aws/lambda/aggregator"),
                ("AWS_LAMBDA_LOG_STREAM_NAME", "2026/01/01/[$LATEST]0123456789abcdef"),
                ("AWS_EXECUTION_ENV", "AWS_Lambda_provided.al2023"),
                ("AWS_REGION", "us-east-1"),
                ("AWS_DEFAULT_REGION", "us-east-1"),
                ("AWS_ACCESS_KEY_ID", "key"),
                ("AWS_SECRET_ACCESS_KEY", "secret"),
                ("AWS_SESSION_TOKEN", "token"),
                ("TZ", ":UTC"),
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = child.expect("the function starts");
        let stdout = child.stdout.take().map(reader).expect("it is piped");
        let stderr = child.stderr.take().map(reader).expect("it is piped");
        Function { child: Some(child), written: Some([stdout, stderr]), events, said }
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// What it says next.
    #[track_caller]
    pub fn says(&self) -> Said {
        self.said.recv_timeout(PATIENCE).expect("the function says something")
    }

    /// What it says to an event.
    #[track_caller]
    pub fn ask(&self, event: &Value) -> Said {
        self.events.send(event.to_string()).expect("the runtime API runs");
        loop {
            match self.says() {
                Said::Next => {}
                said => return said,
            }
        }
    }

    /// Its answer to an event.
    #[track_caller]
    pub fn invoke(&self, event: &Value) -> Value {
        match self.ask(event) {
            Said::Response(answer) => answer,
            other => panic!("{other:?}"),
        }
    }

    /// Sends it a signal, by name, as in `TERM`.
    pub fn signal(&self, name: &str) {
        let pid = self.pid().to_string();
        let sent = Command::new("kill").args([&format!("-{name}"), &pid]).status();
        assert!(sent.expect("kill").success());
    }

    /// Waits until it ends by itself. What it wrote, and how it ended.
    pub fn wait(mut self) -> Output {
        let status = self.child.take().expect("it runs").wait().expect("it ends");
        let written = self.written.take().expect("it is read once");
        let [stdout, stderr] = written.map(|reader| reader.join().expect("it is read"));
        Output { status, stdout, stderr }
    }

    /// Ends it as Lambda does: at once.
    pub fn end(mut self) -> Output {
        self.child.as_mut().expect("it runs").kill().expect("it can be killed");
        self.wait()
    }
}

impl Drop for Function {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn reader(mut pipe: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    let read = move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        bytes
    };
    Builder::new().spawn(read).expect("a thread")
}

/// Serves the runtime API until nobody listens any more. Returns where.
fn runtime_api(events: Receiver<String>, said: Sender<Said>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address").to_string();
    let serve = move || {
        let mut count = 0;
        for stream in listener.incoming() {
            let Ok(stream) = stream else { return };
            let Some(asked) = Asked::read(&stream) else { continue };
            let body = || serde_json::from_slice(&asked.body).unwrap_or_default();
            let path = asked.start.split_once("/2018-06-01/runtime/").map_or("", |(_, path)| path);
            let heard = match path.rsplit('/').next() {
                Some("next") => Said::Next,
                Some("response") => Said::Response(body()),
                Some("error") if path == "init/error" => Said::InitError(body()),
                Some("error") => Said::Error(body()),
                _ => {
                    answer(&stream, "404 Not Found", "", "");
                    continue;
                }
            };
            let is_next = heard == Said::Next;
            if said.send(heard).is_err() {
                return;
            }
            if !is_next {
                answer(&stream, "202 Accepted", "", "{}");
                continue;
            }
            let Ok(event) = events.recv() else { return };
            count += 1;
            // The deadline is far in the future: 2100.
            let headers = format!(
                "Content-Type: application/json\r\n\
                 Lambda-Runtime-Aws-Request-Id: 00000000-0000-0000-0000-{count:012}\r\n\
                 Lambda-Runtime-Deadline-Ms: 4102444800000\r\n\
                 Lambda-Runtime-Invoked-Function-Arn: arn:aws:lambda:us-east-1:123456789012:function:aggregator\r\n\
                 Lambda-Runtime-Trace-Id: Root=1-5bef4de7-ad49b0e87f6ef6c87fc2e700;Sampled=0\r\n"
            );
            answer(&stream, "200 OK", &headers, &event);
        }
    };
    Builder::new().spawn(serve).expect("a thread");
    address
}
