//! The Python package as a process that is told what to do.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Once;

use serde_json::{Value, json};

/// Names a Python with the product installed.
const VARIABLE: &str = "ZAEL_TEST_PYTHON";

/// The release these tests are about.
const VERSION: &str = "0.17.0";

/// The Python to use; `None`, said aloud once, when none is named.
#[expect(
    clippy::disallowed_methods,
    reason = "which Python has the product is told by the environment"
)]
pub(crate) fn interpreter() -> Option<OsString> {
    static SAID: Once = Once::new();
    let named = std::env::var_os(VARIABLE).filter(|path| !path.is_empty());
    if named.is_none() {
        // Past the test harness, which would keep it to itself.
        SAID.call_once(|| {
            let _ = writeln!(
                std::io::stderr(),
                "SKIPPED: the live tests with the Python package. .ci/interop runs them, or set {VARIABLE} to a Python that has zae-limiter=={VERSION}."
            );
        });
    }
    named
}

/// A Python process with a connection to the table.
pub(crate) struct Python {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

/// An exception.
#[derive(Clone, Debug)]
pub(crate) struct Raised {
    /// Its class.
    pub(crate) class: String,
    /// What it says.
    pub(crate) message: String,
}

impl Python {
    /// Starts one that is not connected yet.
    pub(crate) fn start(interpreter: &OsString, stack: &str, endpoint: &str) -> Python {
        let agent = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/interop/agent.py");
        let mut command = Command::new(interpreter);
        command.arg(agent).args([stack, endpoint]).stdin(Stdio::piped()).stdout(Stdio::piped());
        // Nothing of this machine's own configuration, and nothing that leaves it.
        for variable in
            ["AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_SESSION_TOKEN", "ZAEL_STACK", "ZAEL_NAMESPACE"]
        {
            command.env_remove(variable);
        }
        for (variable, value) in [
            ("AWS_ACCESS_KEY_ID", "test"),
            ("AWS_SECRET_ACCESS_KEY", "test"),
            ("AWS_DEFAULT_REGION", "us-east-1"),
            ("AWS_EC2_METADATA_DISABLED", "true"),
            ("AWS_CONFIG_FILE", "/dev/null"),
            ("AWS_SHARED_CREDENTIALS_FILE", "/dev/null"),
            ("PYTHONDONTWRITEBYTECODE", "1"),
        ] {
            command.env(variable, value);
        }
        let mut child = command.spawn().unwrap_or_else(|error| {
            panic!("{VARIABLE} names {interpreter:?}, which cannot be started: {error}")
        });
        let stdin = child.stdin.take().expect("it is piped");
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut python = Python { child, stdin, stdout };
        let version = python.receive();
        assert_eq!(
            version, VERSION,
            "{VARIABLE} names a Python with another release of zae-limiter"
        );
        python
    }

    /// Evaluates an expression.
    #[track_caller]
    pub(crate) fn eval(&mut self, expression: &str) -> Value {
        self.try_eval(expression).unwrap_or_else(|raised| panic!("{expression}: {raised:?}"))
    }

    /// Evaluates an expression that may raise.
    #[track_caller]
    pub(crate) fn try_eval(&mut self, expression: &str) -> Result<Value, Raised> {
        self.send(expression);
        self.answer()
    }

    /// Starts to evaluate an expression; [`Python::receive`] waits for its value.
    #[track_caller]
    pub(crate) fn send(&mut self, expression: &str) {
        writeln!(self.stdin, "{}", json!(expression)).expect("the Python process is there");
    }

    /// The value of what was sent.
    #[track_caller]
    pub(crate) fn receive(&mut self) -> Value {
        self.answer().unwrap_or_else(|raised| panic!("{raised:?}"))
    }

    #[track_caller]
    fn answer(&mut self) -> Result<Value, Raised> {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("the Python process is there");
        let mut answer: Value = serde_json::from_str(&line)
            .unwrap_or_else(|error| panic!("the Python process said {line:?}: {error}"));
        match answer.get("error") {
            None => Ok(answer["ok"].take()),
            Some(class) => Err(Raised {
                class: class.as_str().unwrap_or_default().to_owned(),
                message: answer["message"].as_str().unwrap_or_default().to_owned(),
            }),
        }
    }

    /// Takes `tokens` of one limit: true when granted.
    #[track_caller]
    pub(crate) fn take(&mut self, entity: &str, limit: &str, tokens: u64) -> bool {
        self.eval(&format!("take({entity:?}, 'gpt-4', {{{limit:?}: {tokens}}})"))
            .as_bool()
            .expect("a bool")
    }

    /// Takes one token after the other until refused; how many there were.
    #[track_caller]
    pub(crate) fn drain(&mut self, entity: &str, limit: &str) -> u64 {
        self.eval(&format!("drain({entity:?}, 'gpt-4', {limit:?})")).as_u64().expect("a number")
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
