//! `loadtest` on files and on the local engine: figures that add up, an end in the middle, bad
//! values. How fast anything is depends on the machine; that the figures agree does not.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod reports;
#[cfg(feature = "dynamodb")]
mod stacks;
#[cfg(all(unix, feature = "dynamodb"))]
mod worker;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use insta::assert_snapshot;
use serde_json::Value;

use crate::support::Sandbox;

fn json(sandbox: &Sandbox, line: &str) -> Value {
    let (exit, text) = sandbox.raw(&format!("{line} --output json"));
    assert_eq!(exit, 0, "{line}: {text}");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{line}: {error}: {text}"))
}

fn stderr(sandbox: &Sandbox, line: &str) -> (i32, String) {
    let output = sandbox.command(&words(line)).output().unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

fn sum(list: &Value, field: &str) -> u64 {
    list.as_array().unwrap().iter().map(|one| one[field].as_u64().unwrap()).sum()
}

/// The figure at a rank of the slots, by counting.
fn by_counting(slots: &Value, per_mille: u64) -> f64 {
    let slots: Vec<(u64, u64)> = serde_json::from_value(slots.clone()).unwrap();
    let all: u64 = slots.iter().map(|(_, count)| count).sum();
    let rank = (all * per_mille).div_ceil(1_000).max(1);
    let mut seen = 0;
    let found = slots.iter().find(|(_, count)| {
        seen += count;
        seen >= rank
    });
    found.map_or(0.0, |(nanos, _)| (*nanos as f64 / 100.0).round() / 10.0)
}

#[test]
fn a_run_on_a_file_tells_figures_that_add_up() {
    let sandbox = Sandbox::new();
    let line = "loadtest run --scenario max-rps --users 3 --duration 2 --spawn-rate all \
                --json-file run.json --html run.html";
    let report = json(&sandbox, line);
    let total = &report["total"];
    assert!(total["granted"].as_u64().unwrap() > 10, "{total}");
    assert_eq!((&total["refused"], &total["errors"]), (&0.into(), &0.into()), "{total}");
    assert_eq!(report["complete"], true);
    assert_eq!(report["run"]["users"], 3);
    let slots = &total["histogram_ns"];
    for (name, part) in [("p50", 500), ("p95", 950), ("p99", 990), ("p999", 999)] {
        assert_eq!(total["latency_us"][name].as_f64().unwrap(), by_counting(slots, part), "{name}");
    }
    let counted: u64 = slots.as_array().unwrap().iter().map(|it| it[1].as_u64().unwrap()).sum();
    assert_eq!(total["granted"], counted);
    // What was granted was taken: the bucket says so, after the last commit.
    let file: Value =
        serde_json::from_slice(&std::fs::read(sandbox.path("run.json")).unwrap()).unwrap();
    assert_eq!(file, report);
    let page = std::fs::read_to_string(sandbox.path("run.html")).unwrap();
    assert!(page.contains(&format!("\"granted\":{counted}")), "the page has the same figures");
}

#[test]
fn people_get_lines_while_it_runs_and_a_table_at_the_end() {
    let sandbox = Sandbox::with_store();
    let output =
        sandbox.command(&words("loadtest run -u 2 -d 2s --spawn-rate all")).output().unwrap();
    let (out, told) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(0), "{told}");
    for word in ["SCENARIO", "GRANTED/S", "P50", "P95", "P99", "simple", "no coordinated omission"]
    {
        assert!(out.contains(word), "{word}: {out}");
    }
    let lines: Vec<&str> = told.lines().filter(|line| line.contains(" users, ")).collect();
    assert_eq!(lines.len(), 2, "one line for each second: {told}");
    for word in ["/s, p50 ", " p95 ", " p99 ", " refused, ", " errors"] {
        assert!(lines[0].contains(word), "{word}: {told}");
    }
}

#[test]
fn a_run_with_blocks_asks_the_store_less_often() {
    let sandbox = Sandbox::with_store();
    let line = "loadtest run --scenario max-rps -u 1 -d 2 --spawn-rate all --local-blocks";
    let (exit, told) = stderr(&sandbox, line);
    assert_eq!(exit, 0, "{told}");
    let said = told.lines().find(|line| line.contains("calls came from blocks, by ")).expect(&told);
    let numbers: Vec<u64> =
        said.split(|c: char| !c.is_ascii_digit()).filter_map(|it| it.parse().ok()).collect();
    assert!(numbers[0] > 10 * numbers[1] && numbers[1] > 0, "{said}");
    let report =
        json(&sandbox, "loadtest run -u 2 -d 1 --spawn-rate all --local-blocks --processes 2");
    assert_eq!((&report["run"]["local_blocks"], &report["complete"]), (&true.into(), &true.into()));
}

#[test]
fn processes_have_different_users_and_one_report() {
    let sandbox = Sandbox::new();
    let line = "loadtest run --scenario simple-cascade --users 5 --duration 2 --spawn-rate all --processes 2";
    let report = json(&sandbox, line);
    assert_eq!((&report["run"]["processes"], &report["lost"]), (&2.into(), &0.into()));
    assert_eq!(report["complete"], true, "{report}");
    let last = report["series"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(last["users"], 5, "{report}");
    // Ten calls a second of each user, of both processes, for two seconds.
    let told = ["granted", "errors", "unsent"].map(|it| report["total"][it].as_u64().unwrap());
    assert_eq!((told.iter().sum::<u64>(), told[1]), (100, 0), "{report}");
    let listed = json(&sandbox, "entity children loadtest-parent");
    assert_eq!(listed["items"].as_array().unwrap().len(), 5, "{listed}");
}

#[test]
fn refusals_are_counted_and_are_no_errors() {
    let sandbox = Sandbox::new();
    std::fs::write(
        sandbox.path("tight.toml"),
        "limits = [\"rpd:7/day\"]\ntake = { rpd = 1 }\nevery_ms = 20\n",
    )
    .unwrap();
    let report = json(&sandbox, "loadtest run --scenario tight.toml -u 1 -d 1 --spawn-rate all");
    let total = &report["total"];
    assert_eq!((&total["granted"], &total["errors"]), (&7.into(), &0.into()), "{total}");
    assert!(total["refused"].as_u64().unwrap() > 10, "{total}");
    assert_eq!(total["scenario"], "total");
    assert_eq!(report["scenarios"][0]["scenario"], "tight");
}

#[test]
fn the_lines_of_the_python_package_mean_what_is_built_in() {
    let sandbox = Sandbox::with_store();
    let line = "loadtest run -f locustfiles/max_rps.py -d 1 -u 4 --spawn-rate all";
    let (exit, told) = stderr(&sandbox, line);
    assert_eq!(exit, 0, "{told}");
    assert!(told.contains("locustfiles/max_rps.py is not read: its stem max_rps stands for what is built in (max-rps, max-rps-cascade)"), "{told}");
    let report = json(&sandbox, &format!("{line} MaxRpsCascadeUser"));
    assert_eq!(report["scenarios"][0]["scenario"], "max-rps-cascade");
    assert_eq!(report["scenarios"].as_array().unwrap().len(), 1);
    let report = json(&sandbox, "loadtest run SimpleUser MaxRpsUser -d 1 -u 2 --spawn-rate all");
    let names: Vec<&str> = report["scenarios"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["scenario"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["simple", "max-rps"]);
    assert_eq!(report["total"]["granted"], sum(&report["scenarios"], "granted"));
}

#[test]
fn a_file_in_a_folder_is_found_there() {
    let sandbox = Sandbox::with_store();
    std::fs::create_dir(sandbox.path("mine")).unwrap();
    let text = "name = \"own\"\nlimits = [\"rpm:1000000\"]\ntake = { rpm = 1 }\nevery_ms = 50\n";
    std::fs::write(sandbox.path("mine/own.toml"), text).unwrap();
    let report = json(&sandbox, "loadtest run -C mine -f own.toml -d 1 -u 1");
    assert_eq!(report["scenarios"][0]["scenario"], "own");
}

#[test]
fn bad_values_are_named_before_anything_is_stored() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path("bad.toml"), "limits = [\"rpm:1\"]\ntake = { tpm = 1 }\n").unwrap();
    std::fs::write(sandbox.path("no.json"), "{}").unwrap();
    let mut shown = String::new();
    for line in [
        "loadtest run --scenario max_rps",
        "loadtest run --scenario bad.toml",
        "loadtest run --scenario none.toml",
        "loadtest run -f locustfiles/other.py",
        "loadtest run -f simple.py MaxRpsUser",
        "loadtest run NoUser",
        "loadtest run -C folder",
        "loadtest run --users 0",
        "loadtest run --duration 0",
        "loadtest run --duration 25h",
        "loadtest run --spawn-rate fast",
        "loadtest run --processes 300",
        "loadtest run --store memory: --processes 2",
        "loadtest run --html nowhere/report.html",
        "loadtest run --workers 2",
        "loadtest run --workers 2 --processes 2",
        "loadtest tune --threshold 2",
        "loadtest tune --max-users 0",
        "loadtest run --max-errors 101",
        "loadtest compare none.json none.json",
        "loadtest compare no.json no.json",
    ] {
        shown.push_str(&format!("$ {line}\n{}\n", sandbox.run(line)));
    }
    assert!(!sandbox.path("limits.db").exists(), "nothing is stored");
    assert_snapshot!(shown, @"
    $ loadtest run --scenario max_rps
    exit 2
    --- stderr
    error: --scenario max_rps: there is no such scenario
    hint: write one of simple, simple-cascade, max-rps, max-rps-cascade, llm, or FILE.toml

    $ loadtest run --scenario bad.toml
    exit 2
    --- stderr
    error: the scenario bad.toml: line 2: take: tpm: no line of `limits` has this name
    hint: docs/operator/load-test.md has the fields of a scenario file

    $ loadtest run --scenario none.toml
    exit 2
    --- stderr
    error: the scenario none.toml cannot be read: No such file or directory (os error 2)

    $ loadtest run -f locustfiles/other.py
    exit 2
    --- stderr
    error: -f locustfiles/other.py: it is no scenario of this program
    hint: name a *.toml, or a path whose stem is simple or max_rps; a scenario in code is an implementation of zae_limiter_loadtest::Scenario

    $ loadtest run -f simple.py MaxRpsUser
    exit 2
    --- stderr
    error: MaxRpsUser: there is no such user class
    hint: there are SimpleUser, SimpleCascadeUser

    $ loadtest run NoUser
    exit 2
    --- stderr
    error: NoUser: there is no such user class
    hint: there are SimpleUser, SimpleCascadeUser, MaxRpsUser, MaxRpsCascadeUser

    $ loadtest run -C folder
    exit 2
    --- stderr
    error: -C names a folder, and no file of it is named
    hint: name a file with -f

    $ loadtest run --users 0
    exit 2
    --- stderr
    error: invalid value '0' for '--users <COUNT>': write a whole number from 1 to 100000

    For more information, try '--help'.

    $ loadtest run --duration 0
    exit 2
    --- stderr
    error: invalid value '0' for '--duration <TIME>': write a time from 1s to 24h

    For more information, try '--help'.

    $ loadtest run --duration 25h
    exit 2
    --- stderr
    error: invalid value '25h' for '--duration <TIME>': write a time from 1s to 24h

    For more information, try '--help'.

    $ loadtest run --spawn-rate fast
    exit 2
    --- stderr
    error: invalid value 'fast' for '--spawn-rate <RATE>': write users per second, 0.01 or more, or `all`

    For more information, try '--help'.

    $ loadtest run --processes 300
    exit 2
    --- stderr
    error: invalid value '300' for '--processes <COUNT>': write a whole number from 1 to 256

    For more information, try '--help'.

    $ loadtest run --store memory: --processes 2
    exit 2
    --- stderr
    error: --processes: each process would have a memory of its own
    hint: name a file with --store sqlite:PATH

    $ loadtest run --html nowhere/report.html
    exit 2
    --- stderr
    error: --html nowhere/report.html: its folder is not there
    hint: make the folder nowhere

    $ loadtest run --workers 2
    exit 2
    --- stderr
    error: --workers: the file [FOLDER]/limits.db is no stack, and Lambda cannot reach it
    hint: --processes N spreads the users over this machine

    $ loadtest run --workers 2 --processes 2
    exit 2
    --- stderr
    error: the argument '--workers <COUNT>' cannot be used with '--processes <COUNT>'

    Usage: zae-limiter loadtest run --workers <COUNT> [CLASS]...

    For more information, try '--help'.

    $ loadtest tune --threshold 2
    exit 2
    --- stderr
    error: invalid value '2' for '--threshold <PART>': write a number above 0, up to 1, as in 0.8

    For more information, try '--help'.

    $ loadtest tune --max-users 0
    exit 2
    --- stderr
    error: invalid value '0' for '--max-users <COUNT>': write a whole number from 1 to 100000

    For more information, try '--help'.

    $ loadtest run --max-errors 101
    exit 2
    --- stderr
    error: invalid value '101' for '--max-errors <PERCENT>': write a number from 0 to 100, as in 0.5

    For more information, try '--help'.

    $ loadtest compare none.json none.json
    exit 2
    --- stderr
    error: the report none.json cannot be read: No such file or directory (os error 2)

    $ loadtest compare no.json no.json
    exit 2
    --- stderr
    error: no.json is no report: missing field `format` at line 1 column 2
    hint: `zae-limiter loadtest run --json-file FILE` writes one
    ");
}

/// A run that goes on, and the lines of its stderr.
struct Running {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStderr>>,
    /// Read from the beginning: a report that is longer than a pipe would hold up the program, which
    /// then never ends what it says on standard error.
    stdout: JoinHandle<Vec<u8>>,
    /// Ends the watch over the run when it is dropped.
    _watched: Sender<()>,
}

/// No run of these tests takes nearly as long: one that does hangs, and is killed, so that its test
/// fails with what it said until then.
const HANGS: Duration = Duration::from_secs(180);

impl Running {
    #[expect(
        clippy::disallowed_methods,
        reason = "a test reads beside the run, and watches over it"
    )]
    fn start(sandbox: &Sandbox, line: &str) -> Running {
        let mut command = sandbox.command(&words(line));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut pipe = child.stdout.take().unwrap();
        let stdout = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            pipe.read_to_end(&mut bytes).unwrap();
            bytes
        });
        let (watched, ended) = mpsc::channel::<()>();
        let id = child.id();
        std::thread::spawn(move || {
            if ended.recv_timeout(HANGS) == Err(RecvTimeoutError::Timeout) {
                signal(id, "KILL");
            }
        });
        Running { child, lines, stdout, _watched: watched }
    }

    /// The next line that has these words.
    fn hears(&mut self, words: &str) -> String {
        self.lines.by_ref().map(Result::unwrap).find(|line| line.contains(words)).expect(words)
    }

    fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    /// What it wrote from now on, and how it ended.
    fn ends(self) -> Output {
        let Running { mut child, lines, stdout, _watched } = self;
        let told: Vec<String> = lines.map(Result::unwrap).collect();
        let (stdout, stderr) = (stdout.join().unwrap(), told.join("\n").into_bytes());
        Output { status: child.wait().unwrap(), stdout, stderr }
    }
}

fn signal(process: u32, name: &str) {
    let sent = Command::new("kill").args([format!("-{name}"), process.to_string()]).status();
    assert!(sent.unwrap().success());
}

fn report_of(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

#[cfg(unix)]
#[test]
fn a_run_that_is_interrupted_still_gives_its_report() {
    let sandbox = Sandbox::with_store();
    for processes in ["1", "2"] {
        let line = format!(
            "loadtest run --scenario max-rps -u 2 -d 120 --spawn-rate all --processes {processes} \
             --output json --json-file cut.json"
        );
        let mut run = Running::start(&sandbox, &line);
        run.hears(" users, ");
        run.signal("INT");
        let output = run.ends();
        let report = report_of(&output);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert_eq!((&report["complete"], &report["lost"]), (&false.into(), &0.into()), "{report}");
        assert!(report["elapsed_s"].as_f64().unwrap() < 60.0, "{report}");
        assert!(report["total"]["granted"].as_u64().unwrap() > 0, "{report}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("the run was stopped"));
        let file = std::fs::read(sandbox.path("cut.json")).unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&file).unwrap(), report);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_process_that_is_killed_is_told_and_the_others_count() {
    let sandbox = Sandbox::with_store();
    let line =
        "loadtest run --scenario max-rps -u 2 -d 3 --spawn-rate all --processes 2 --output json";
    let mut run = Running::start(&sandbox, line);
    run.hears(" users, ");
    let id = run.child.id();
    let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
    signal(children.split_whitespace().next().unwrap().parse().unwrap(), "KILL");
    let output = run.ends();
    let report = report_of(&output);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!((&report["complete"], &report["lost"]), (&false.into(), &1.into()), "{report}");
    assert!(report["elapsed_s"].as_f64().unwrap() > 2.5, "the other one went on: {report}");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("1 of 2 processes ended before their time"), "{told}");
}

#[test]
fn the_best_number_of_users_is_found_in_steps() {
    let sandbox = Sandbox::with_store();
    let line = "loadtest tune --scenario simple --max-users 2 --threshold 0.01 --step-duration 1 --baseline-duration 1";
    let tuned = json(&sandbox, line);
    let steps: Vec<u64> =
        tuned["steps"].as_array().unwrap().iter().map(|it| it["users"].as_u64().unwrap()).collect();
    assert_eq!((steps, &tuned["best_users"]), (vec![1, 2], &2.into()), "{tuned}");
    assert_eq!(tuned["steps"][0]["efficiency"], 1.0);
}

#[cfg(unix)]
#[test]
fn a_search_that_is_interrupted_names_only_what_was_measured() {
    let sandbox = Sandbox::with_store();
    let line = "loadtest tune --scenario simple --max-users 4 --threshold 0.01 --step-duration 60 \
                --baseline-duration 60 --output json";
    let mut search = Running::start(&sandbox, line);
    search.hears("1 users for 60 s");
    search.hears(" users, ");
    search.signal("INT");
    let output = search.ends();
    let tuned = report_of(&output);
    assert_eq!(
        (&tuned["best_users"], &tuned["complete"]),
        (&Value::Null, &false.into()),
        "{tuned}"
    );
    assert_eq!(tuned["steps"].as_array().unwrap().len(), 0, "{tuned}");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("stopped: nothing was measured"));
    let line = line.replace("--baseline-duration 60", "--baseline-duration 1");
    let mut search = Running::start(&sandbox, &line);
    search.hears("2 users for 60 s");
    search.hears(" users, ");
    search.signal("INT");
    let output = search.ends();
    let tuned = report_of(&output);
    assert_eq!((&tuned["best_users"], &tuned["complete"]), (&1.into(), &false.into()), "{tuned}");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

/// One of two users is disabled: half of the calls are errors.
#[test]
fn a_run_with_more_errors_than_allowed_fails() {
    let sandbox = Sandbox::with_store();
    sandbox.run("entity disable loadtest-user-0");
    let line = "loadtest run -u 2 -d 1 --spawn-rate all --output json";
    let output = sandbox.command(&words(line)).output().unwrap();
    let (report, told) = (report_of(&output), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert_eq!(report["run"]["max_errors_pct"], 1.0, "{report}");
    assert_eq!(report["too_many_errors"], true, "{report}");
    let percent = report["total"]["errors_pct"].as_f64().unwrap();
    assert!((20.0..80.0).contains(&percent), "{percent}");
    let calls = sum(&report["scenarios"], "granted") + sum(&report["scenarios"], "errors");
    let words = format!("of {calls} calls are errors, {percent}%; --max-errors allows 1%");
    assert!(told.contains(&words), "{words}: {told}");
    let report = json(&sandbox, "loadtest run -u 2 -d 1 --spawn-rate all --max-errors 80");
    assert_eq!((&report["too_many_errors"], &report["complete"]), (&false.into(), &true.into()));
    assert!(report["total"]["errors"].as_u64().unwrap() > 0, "{report}");
}

#[test]
fn two_reports_are_compared() {
    let sandbox = Sandbox::with_store();
    let mut report = json(&sandbox, "loadtest run --scenario simple -u 1 -d 1");
    let mut part = report["scenarios"][0].clone();
    part["granted_per_s"] = 10.0.into();
    for (field, value) in [("granted", 10), ("refused", 2), ("errors", 0), ("unsent", 0)] {
        part[field] = value.into();
    }
    for (field, value) in [("p50", 100.0), ("p95", 200.0), ("p99", 300.0), ("max", 400.0)] {
        part["latency_us"][field] = value.into();
    }
    report["scenarios"][0] = part.clone();
    report["run"]["store"] = "one.db".into();
    std::fs::write(sandbox.path("a.json"), report.to_string()).unwrap();
    for (field, value) in [("p50", 150.0), ("p95", 100.0), ("p99", 300.0), ("max", 4000.0)] {
        part["latency_us"][field] = value.into();
    }
    part["errors"] = 3.into();
    report["scenarios"][0] = part;
    report["run"]["users"] = 2.into();
    std::fs::write(sandbox.path("b.json"), report.to_string()).unwrap();
    assert_snapshot!(sandbox.run("loadtest compare a.json b.json"), @"
    exit 0
    --- stdout
    SCENARIO  FIGURE         BEFORE  AFTER  RATIO
    simple    granted_per_s      10     10      1
    simple    p50_us            100    150    1.5
    simple    p95_us            200    100    0.5
    simple    p99_us            300    300      1
    simple    max_us            400   4000     10
    simple    refused             2      2      1
    simple    errors              0      3      -
    simple    unsent              0      0      -
    --- stderr
    warning: the two runs differ in users: 1 and 2
    ");
    let compared = json(&sandbox, "loadtest compare a.json b.json");
    assert_eq!(compared["differences"][0], "users: 1 and 2");
    assert_eq!(compared["rows"][1]["ratio"], 1.5, "{compared}");
}

/// What the page's server answers.
fn ask(port: &str, path: &str, host: &str) -> String {
    let mut connection = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    write!(connection, "GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn the_live_page_is_for_this_machine_only() {
    let sandbox = Sandbox::with_store();
    let line =
        "loadtest ui -f locustfiles/simple.py -u 2 -d 60 --spawn-rate all --port 0 --output json";
    let mut run = Running::start(&sandbox, line);
    let told = run.hears("the page is at http://127.0.0.1:");
    let port: String =
        told.split("127.0.0.1:").nth(1).unwrap().chars().take_while(char::is_ascii_digit).collect();
    let own = format!("127.0.0.1:{port}");
    assert!(ask(&port, "/", &own).contains("zae-limiter load test"));
    run.hears(" users, ");
    let answer = ask(&port, "/report.json", &format!("localhost:{port}"));
    let live: Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    assert_eq!((&live["final"], &live["report"]["run"]["users"]), (&false.into(), &2.into()));
    for other in ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", ""] {
        assert!(ask(&port, "/report.json", other).starts_with("HTTP/1.1 403"), "{other}");
    }
    assert!(ask(&port, "/etc/passwd", &own).starts_with("HTTP/1.1 404"));
    // A visitor that says nothing does not hold up the run.
    let _silent = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    run.signal("INT");
    assert_eq!(report_of(&run.ends())["complete"], false);
}
