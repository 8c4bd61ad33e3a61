//! The aggregator as a process: how long a function takes to start and to answer, and how much
//! memory it needs; and whether writes to the local engine stay fast while a worker counts them.
//!
//! Both measure the command line, `zae-limiter`, as others start it: a build of the same profile
//! lies beside this program unless another one is named.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use zae_limiter_testkit::aws::lambda::{Function, Said};
use zae_limiter_testkit::engine::Engine;

use crate::args::{Cold, Output, Trimmed};
use crate::cell::{now, one_thread};

const STACK: &str = "bench";
/// Buckets that the records of a batch are of.
const BUCKETS: usize = 20;
/// Batches after the first.
const WARM: usize = 20;
/// Writes that one rate is measured over.
const WINDOW: usize = 1_000;
/// Rates whose median is told.
const RATES: usize = 5;

// ---------------------------------------------------------------------------------------- function

/// One start of the function.
struct Start {
    ready: Duration,
    answered: Duration,
    /// The median of the answers after the first.
    warm: Duration,
    /// Peak memory in KiB: when it was ready, and at its end.
    peak_kib: (u64, u64),
}

/// Times and memory of the function.
pub(crate) fn cold(args: &Cold) -> Result<()> {
    let binary = beside(args.binary.as_deref())?;
    let engine = Engine::start();
    one_thread()?.block_on(engine.stack(STACK).create()).context("a table")?;
    let key = json!({"PK": {"S": "_/SYSTEM#"}, "SK": {"S": "#NAMESPACE#default"}});
    let found = engine.call("GetItem", &json!({"TableName": STACK, "Key": key})).ok();
    let namespace = found["Item"]["namespace_id"]["S"].as_str().context("a namespace")?;
    let mut starts = Vec::new();
    for round in 0..args.rounds {
        let first = usize::try_from(round)? * (WARM + 1);
        let batches: Vec<Value> =
            (first..=first + WARM).map(|number| batch(namespace, number, args.records)).collect();
        starts.push(start(&binary, engine.endpoint(), &batches)?);
    }
    let of = |part: fn(&Start) -> f64| median(starts.iter().map(part).collect());
    let ms = |time: Duration| time.as_secs_f64() * 1_000.0;
    let figures = [
        ("ready_ms", of(|start| start.ready.as_secs_f64() * 1_000.0)),
        ("first_answer_ms", of(|start| start.answered.as_secs_f64() * 1_000.0)),
        ("warm_answer_ms", of(|start| start.warm.as_secs_f64() * 1_000.0)),
        ("ready_peak_kib", of(|start| start.peak_kib.0 as f64)),
        ("peak_kib", of(|start| start.peak_kib.1 as f64)),
    ];
    let longest = starts.iter().map(|start| start.answered).max().map_or(0.0, ms);
    crate::print(&match args.output {
        Output::Json => {
            let figures: serde_json::Map<String, Value> =
                figures.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
            let told = json!({
                "rounds": args.rounds, "records": args.records, "medians": figures,
                "first_answer_longest_ms": longest,
            });
            format!("{told}\n")
        }
        Output::Table => {
            let mut text = format!(
                "{} starts of {}, batches of {} records; medians\n\n| figure | |\n|---|---|\n",
                args.rounds,
                binary.display(),
                args.records
            );
            for (name, value) in figures {
                let _ = writeln!(text, "| {name} | {value:.1} |");
            }
            text
        }
    })
}

fn start(binary: &Path, endpoint: &str, batches: &[Value]) -> Result<Start> {
    let mut command = Command::new(binary);
    command.env_clear().envs([
        ("_HANDLER", "aggregator"),
        ("AWS_ENDPOINT_URL_DYNAMODB", endpoint),
        ("TABLE_NAME", STACK),
        ("SNAPSHOT_WINDOWS", "hourly,daily,monthly"),
    ]);
    let began = now();
    let function = Function::start(&mut command);
    let said = function.says();
    let ready = began.elapsed();
    ensure!(said == Said::Next, "it cannot start: {said:?}");
    let first_peak = peak_kib(function.pid())?;
    let ask = |event: &Value| {
        let asked = now();
        let answer = function.invoke(event);
        let took = asked.elapsed();
        let body = &answer["body"];
        ensure!(body["error_count"] == 0 && body["counted"] != 0, "{answer}");
        Ok(took)
    };
    let (first, rest) = batches.split_first().context("a batch")?;
    // Between the two this process has only looked at the other's memory.
    let answered = ready + ask(first)?;
    let warm = rest.iter().map(ask).collect::<Result<Vec<Duration>>>()?;
    let warm = Duration::from_secs_f64(median(warm.iter().map(Duration::as_secs_f64).collect()));
    let last_peak = peak_kib(function.pid())?;
    function.end();
    Ok(Start { ready, answered, warm, peak_kib: (first_peak, last_peak) })
}

/// Records as Lambda delivers them, numbered on from those of the batch before.
fn batch(namespace: &str, number: usize, records: usize) -> Value {
    let record = |index: usize| {
        let sequence = number * records + index;
        let bucket = index % BUCKETS;
        let takes = sequence / BUCKETS;
        let pk = format!("{namespace}/BUCKET#entity-{bucket}#gpt-4#0");
        let image = |takes: usize| {
            let mut image = json!({
                "PK": {"S": pk}, "SK": {"S": "#STATE"}, "entity_id": {"S": format!("entity-{bucket}")},
                "resource": {"S": "gpt-4"}, "rf": {"N": "1767261600000"}, "shard_count": {"N": "1"},
                "GSI2PK": {"S": format!("{namespace}/RESOURCE#gpt-4")}, "GSI2SK": {"S": pk},
                "GSI3PK": {"S": format!("{namespace}/ENTITY#entity-{bucket}")}, "GSI3SK": {"S": pk},
                "GSI4PK": {"S": namespace}, "GSI4SK": {"S": pk},
                "ttl": {"N": "1799999999"}, "lw": {"S": "0123456789abcdef"},
            });
            for limit in ["rpm", "tpm", "wcu"] {
                for (field, value) in [
                    ("cp", 1_000_000_000),
                    ("ra", 1_000_000_000),
                    ("rp", 60_000),
                    ("tk", 900_000_000 - takes * 1_000),
                    ("tc", takes * 1_000),
                ] {
                    image[format!("b_{limit}_{field}")] = json!({"N": value.to_string()});
                }
            }
            image
        };
        json!({
            "eventID": format!("{sequence:032x}"), "eventName": "MODIFY", "eventVersion": "1.1",
            "eventSource": "aws:dynamodb", "awsRegion": "us-east-1",
            "eventSourceARN":
                "arn:aws:dynamodb:us-east-1:123456789012:table/bench/stream/2026-01-01T00:00:00.000",
            "dynamodb": {
                "ApproximateCreationDateTime": 1_767_261_600.0,
                "Keys": {"PK": {"S": pk}, "SK": {"S": "#STATE"}},
                "OldImage": image(takes), "NewImage": image(takes + 1),
                "SequenceNumber": format!("1{sequence:020}"), "SizeBytes": 1_500,
                "StreamViewType": "NEW_AND_OLD_IMAGES",
            },
        })
    };
    json!({ "Records": (0..records).map(record).collect::<Vec<_>>() })
}

/// The most memory that a process has had so far.
fn peak_kib(pid: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))
        .context("memory is measured on Linux only")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("VmHWM")?;
    Ok(line.trim().trim_end_matches("kB").trim().parse()?)
}

// ------------------------------------------------------------------------------------------ worker

/// Writes a second to the engine of `local up`, at first and after many records.
pub(crate) fn trimmed(args: &Trimmed) -> Result<()> {
    ensure!(args.records >= 4 * WINDOW, "at least {} records", 4 * WINDOW);
    let local = Local::up(beside(args.binary.as_deref())?)?;
    let namespace = local.json("--name bench namespace show default")?;
    let namespace = namespace["namespace_id"].as_str().context("a namespace")?;
    let up = local.json("local status")?;
    let endpoint = up["endpoint"].as_str().context("an endpoint")?;
    let rates = write(endpoint, namespace, args.records)?;
    // The first window warms up; the first and the last rates do not overlap.
    let count = RATES.min((rates.len() - 1) / 2);
    let early = median(rates[1..=count].to_vec());
    let late = median(rates[rates.len() - count..].to_vec());
    let counted = local.counted(args.records)?;
    crate::print(&match args.output {
        Output::Json => format!(
            "{}\n",
            json!({
                "records": args.records, "writes_per_s_first": early, "writes_per_s_last": late,
                "ratio": late / early, "counted": counted, "rates": rates,
            })
        ),
        Output::Table => format!(
            "{} records; a worker counted {counted} of them\n\n\
             | writes/s after {WINDOW} | at the end | ratio |\n|---|---|---|\n\
             | {early:.0} | {late:.0} | {:.2} |\n",
            args.records,
            late / early
        ),
    })
}

/// Takes as small as they get, on one connection. Rates by window.
fn write(endpoint: &str, namespace: &str, records: usize) -> Result<Vec<f64>> {
    let host = endpoint.strip_prefix("http://").context("a plain endpoint")?;
    let stream = TcpStream::connect(host)?;
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(&stream);
    let (mut rates, mut began) = (Vec::new(), now());
    for number in 1..=records {
        let pk = format!("{namespace}/BUCKET#entity-{}#gpt-4#0", number % BUCKETS);
        let body = json!({
            "TableName": STACK,
            "Key": {"PK": {"S": pk}, "SK": {"S": "#STATE"}},
            "UpdateExpression": "ADD b_rpm_tc :n, b_wcu_tc :n",
            "ExpressionAttributeValues": {":n": {"N": "1000"}},
        })
        .to_string();
        let request = format!(
            "POST / HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/x-amz-json-1.0\r\n\
             X-Amz-Target: DynamoDB_20120810.UpdateItem\r\nX-Amz-Date: 20260101T000000Z\r\n\
             Authorization: AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/dynamodb/aws4_request, \
             SignedHeaders=host;x-amz-date, Signature=0\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        (&stream).write_all(request.as_bytes())?;
        answered(&mut reader)?;
        if number % WINDOW == 0 {
            rates.push(WINDOW as f64 / began.elapsed().as_secs_f64());
            began = now();
        }
    }
    Ok(rates)
}

/// Reads an answer that must be a success.
fn answered(reader: &mut impl BufRead) -> Result<()> {
    let (mut line, mut length, mut is_first) = (String::new(), 0, true);
    loop {
        line.clear();
        reader.read_line(&mut line)?;
        ensure!(!is_first || line.contains(" 200 "), "the engine answered {line:?}");
        is_first = false;
        let Some((name, value)) = line.trim_end().split_once(':') else {
            if line.trim_end().is_empty() {
                break;
            }
            continue;
        };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse()?;
        }
    }
    Ok(reader.read_exact(&mut vec![0; length])?)
}

/// An engine with a worker, in a folder of its own; both end with it.
struct Local {
    binary: PathBuf,
    folder: tempfile::TempDir,
}

impl Local {
    fn up(binary: PathBuf) -> Result<Local> {
        let local = Local { binary, folder: tempfile::tempdir()? };
        local.json(&format!("local up --detach --port 0 --name {STACK}"))?;
        Ok(local)
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(&self.binary);
        command.args(line.split(' ')).args(["--quiet", "--output", "json"]);
        command.env("HOME", self.folder.path()).env("XDG_DATA_HOME", self.folder.path());
        command.env_remove("ZAEL_STORE").env_remove("ZAEL_STACK").stdin(Stdio::null());
        command
    }

    fn json(&self, line: &str) -> Result<Value> {
        let output = self.command(line).output().context("the command starts")?;
        if !output.status.success() {
            bail!("{line}: {}", String::from_utf8_lossy(&output.stderr));
        }
        serde_json::from_slice(&output.stdout).context("an answer in JSON")
    }

    /// How many takes the worker has counted, once it has seen as many as there are.
    #[expect(clippy::disallowed_methods, reason = "a benchmark waits in real time")]
    fn counted(&self, takes: usize) -> Result<u64> {
        let mut counted = 0;
        for _ in 0..300 {
            let list = self.json("--name bench usage list --window monthly --limit 100")?;
            let events = list["items"].as_array().context("a list")?;
            counted = events.iter().filter_map(|item| item["total_events"].as_u64()).sum();
            if counted >= u64::try_from(takes)? {
                break;
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok(counted)
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        let _ = self.command("local down").output();
    }
}

/// The command line that is measured.
fn beside(named: Option<&Path>) -> Result<PathBuf> {
    let binary = match named {
        Some(path) => path.to_owned(),
        None => std::env::current_exe()?.with_file_name("zae-limiter"),
    };
    let hint = "build zae-limiter-cli with the same profile, or name a build with --binary";
    ensure!(binary.is_file(), "{} is no file; {hint}", binary.display());
    Ok(binary)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
