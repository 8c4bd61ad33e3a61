//! The Python package against the same endpoint, in a process that it is told to measure itself.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::canned::counts_at;
use super::{CALLERS, REGION, STACK, canned, keys_of};
use crate::cell::{Cell, Row, Sample};
use crate::histogram::histogram;
use crate::keys::{self, REQUESTS, RESOURCE, TOKENS};
use crate::rows::{Context, Entry};

/// Names a Python interpreter that has the product; the same variable that the tests with it use.
const PYTHON_VARIABLE: &str = "ZAEL_TEST_PYTHON";
const VERSION: &str = "0.17.0";
const SCRIPT: &str = include_str!("python.py");

pub(super) const ASYNC: Entry = Entry {
    name: "python",
    what: "zae-limiter 0.17.0, RateLimiter (asyncio)",
    make: |context| row(context, ("async", 1)),
};

pub(super) const SYNC: Entry = Entry {
    name: "python-sync",
    what: "zae-limiter 0.17.0, SyncRateLimiter",
    make: |context| row(context, ("sync", 1)),
};

pub(super) const CROWD: Entry = Entry {
    name: "python-64",
    what: "zae-limiter 0.17.0, asyncio, 64 tasks",
    make: |context| row(context, ("async", CALLERS)),
};

struct Python {
    process: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    url: String,
}

#[expect(
    clippy::disallowed_methods,
    reason = "whether there is a Python to measure is told by the environment"
)]
fn row(context: &Context, (flavour, tasks): (&str, usize)) -> Result<Box<dyn Row>> {
    let why = || {
        format!(
            "not installed: skipped; name a Python that has zae-limiter {VERSION} in {PYTHON_VARIABLE}"
        )
    };
    let python =
        std::env::var_os(PYTHON_VARIABLE).filter(|path| !path.is_empty()).with_context(why)?;
    let endpoint = canned(context)?;
    let mut command = Command::new(python);
    command.args(["-c", SCRIPT]).stdin(Stdio::piped()).stdout(Stdio::piped());
    // Nothing of this machine's own configuration, and made-up credentials: nobody checks them.
    for variable in
        ["AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_SESSION_TOKEN", "ZAEL_STACK", "ZAEL_NAMESPACE"]
    {
        command.env_remove(variable);
    }
    command
        .env("AWS_ACCESS_KEY_ID", "local")
        .env("AWS_SECRET_ACCESS_KEY", "local")
        .env("AWS_EC2_METADATA_DISABLED", "true");
    let mut process = command.spawn().with_context(why)?;
    let orders = process.stdin.take().context("its input")?;
    let answers = BufReader::new(process.stdout.take().context("its output")?);
    let mut python = Python { process, orders, answers, url: endpoint.url.clone() };
    let amounts = json!({ "rpm": REQUESTS, "tpm": TOKENS });
    let what = json!({
        "flavour": flavour, "tasks": tasks, "stack": STACK, "region": REGION, "endpoint": endpoint.url,
        "keys": keys::texts(keys_of(context)), "resource": RESOURCE, "amounts": amounts,
    });
    let ready = python.ask(&what).with_context(why)?;
    ensure!(
        ready["version"] == VERSION,
        "{} is of version {}; {}",
        PYTHON_VARIABLE,
        ready["version"],
        why()
    );
    Ok(Box::new(python))
}

impl Python {
    fn ask(&mut self, order: &Value) -> Result<Value> {
        writeln!(self.orders, "{order}")?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        serde_json::from_str(&answer)
            .context("Python has ended; its complaint is on standard error")
    }
}

impl Row for Python {
    fn run(&mut self, cell: Cell) -> Result<Sample> {
        self.ask(&json!(cell.warm_up.as_secs_f64()))?;
        let before = counts_at(&self.url)?;
        let answer = self.ask(&json!(cell.time.as_secs_f64()))?;
        let after = counts_at(&self.url)?;
        let number =
            |name: &str| answer[name].as_u64().with_context(|| format!("no {name} in the answer"));
        let mut latency = histogram();
        answer["latencies_ns"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_u64)
            .for_each(|nanos| latency.saturating_record(nanos));
        let (ops, wall, cpu) = (
            number("ops")?,
            Duration::from_nanos(number("wall_ns")?),
            Duration::from_nanos(number("cpu_ns")?),
        );
        let requests = (after.updates - before.updates) + (after.others - before.others);
        let figures = vec![("requests per op", requests as f64 / ops as f64)];
        Ok(Sample { ops, wall, cpu, server_cpu: None, latency, figures })
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
