//! `local …`, on the real engine. Each test has a data directory of its own, and so an engine of
//! its own.

mod rig;
#[cfg(unix)]
mod worker;

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Child;

use insta::assert_snapshot;
use serde_json::Value;
use zae_limiter_testkit::engine::{self, Engine};

use crate::support::Sandbox;
use rig::{Local, masked};

#[test]
fn at_first_nothing_runs_and_looking_creates_nothing() {
    let local = Local::new();
    assert_snapshot!(local.run("local status"), @"
    exit 1
    --- stdout
    running  no
    data     [FOLDER]/data/zae-limiter/local/dynamodb.db
    size     no data yet
    log      [FOLDER]/data/zae-limiter/local/engine.log
    --- stderr
    note: start it with `zae-limiter local up`
    ");
    assert_snapshot!(local.run("local status --output json"), @r#"
    exit 1
    --- stdout
    {"running":false,"endpoint":null,"pid":null,"version":null,"engine":null,"tables":[],"data":"[FOLDER]/data/zae-limiter/local/dynamodb.db","data_bytes":null,"log":"[FOLDER]/data/zae-limiter/local/engine.log","worker":null,"worker_log":"[FOLDER]/data/zae-limiter/local/worker.log"}
    --- stderr
    {"note":"start it with `zae-limiter local up`"}
    "#);
    assert_snapshot!(local.run("local down"), @"
    exit 0
    --- stderr
    note: the engine is not running
    ");
    assert_snapshot!(local.run("local down --output json"), @r#"
    exit 0
    --- stdout
    {"stopped":false,"pid":null,"data":null,"worker_stopped":false}
    --- stderr
    {"note":"the engine is not running"}
    "#);
    assert_snapshot!(local.run("local logs"), @"
    exit 1
    --- stderr
    error: there is no log [FOLDER]/data/zae-limiter/local/engine.log
    hint: the first `zae-limiter local up` begins it
    ");
    assert!(!local.0.path("data").exists());
}

#[test]
fn the_variables_are_all_that_is_on_stdout() {
    let local = Local::new();
    assert_snapshot!(local.run("local env --port 1"), @"
    exit 0
    --- stdout
    export AWS_ENDPOINT_URL=http://127.0.0.1:1
    export AWS_ACCESS_KEY_ID=local
    export AWS_SECRET_ACCESS_KEY=local
    export AWS_DEFAULT_REGION=us-east-1
    export AWS_REGION=us-east-1
    --- stderr
    note: no engine answers at http://127.0.0.1:1; start one with `zae-limiter local up`
    ");
    assert_snapshot!(local.run("local env --port 1 -f direnv --region eu-west-1 --quiet"), @"
    exit 0
    --- stdout
    export AWS_ENDPOINT_URL=http://127.0.0.1:1
    export AWS_ACCESS_KEY_ID=local
    export AWS_SECRET_ACCESS_KEY=local
    export AWS_DEFAULT_REGION=eu-west-1
    export AWS_REGION=eu-west-1
    ");
    assert_snapshot!(local.run("local env --port 1 --format powershell --quiet"), @"
    exit 0
    --- stdout
    $env:AWS_ENDPOINT_URL = 'http://127.0.0.1:1'
    $env:AWS_ACCESS_KEY_ID = 'local'
    $env:AWS_SECRET_ACCESS_KEY = 'local'
    $env:AWS_DEFAULT_REGION = 'us-east-1'
    $env:AWS_REGION = 'us-east-1'
    ");
    assert_snapshot!(local.run("local env --port 1 --output json"), @r#"
    exit 0
    --- stdout
    {"AWS_ENDPOINT_URL":"http://127.0.0.1:1","AWS_ACCESS_KEY_ID":"local","AWS_SECRET_ACCESS_KEY":"local","AWS_DEFAULT_REGION":"us-east-1","AWS_REGION":"us-east-1"}
    --- stderr
    {"note":"no engine answers at http://127.0.0.1:1; start one with `zae-limiter local up`"}
    "#);
    assert_snapshot!(local.run("local env --port 0"), @"
    exit 2
    --- stderr
    error: invalid value '0' for '--port <PORT>': write a whole number from 1 to 65535

    For more information, try '--help'.
    ");
    assert!(
        local.0.raw("local env").1.starts_with("export AWS_ENDPOINT_URL=http://127.0.0.1:8000\n")
    );
}

#[test]
fn from_up_to_down() {
    let local = Local::new();
    let first = local.0.run("local up --detach --port 0 --name first");
    let state = local.state();
    assert_snapshot!(masked(&first, Some(&state)), @r#"
    exit 0
    --- stdout
    endpoint  http://127.0.0.1:[PORT]
    process   [PID]
    stack     first
    workers   [..]
    data      [FOLDER]/data/zae-limiter/local/dynamodb.db
    log       [FOLDER]/data/zae-limiter/local/engine.log

    try next  eval "$(zae-limiter local env)"
              zae-limiter --name first system set-defaults --limit rpm:100
              zae-limiter --name first acquire key-1 gpt-4 --consume rpm=1
    "#);
    // The worker stores where it is: the number of items changes beside the test.
    let status = local.run("local status");
    let masked_items = |line: &str| match line.trim_start().strip_prefix("first ") {
        Some(_) => line[..line.find("first").unwrap_or(0)].to_owned() + "first  [..]",
        None => line.to_owned(),
    };
    let status = status.lines().map(masked_items).collect::<Vec<_>>().join("\n");
    assert_snapshot!(status, @"
    exit 0
    --- stdout
    running   yes
    endpoint  http://127.0.0.1:[PORT]
    version   [VERSION]
    engine    [..]
    process   [PID]
    workers   [..]
    data      [FOLDER]/data/zae-limiter/local/dynamodb.db
    size      [..]
    log       [FOLDER]/data/zae-limiter/local/engine.log

    TABLE  ITEMS
    first  [..]
    ");
    let status = local.json("local status");
    let keys: Vec<&String> = status.as_object().unwrap().keys().collect();
    assert_eq!(
        keys,
        [
            "data",
            "data_bytes",
            "endpoint",
            "engine",
            "log",
            "pid",
            "running",
            "tables",
            "version",
            "worker",
            "worker_log"
        ]
    );
    assert_eq!(
        (&status["running"], &status["pid"], &status["tables"][0]["name"]),
        (&true.into(), &state["pid"], &"first".into())
    );
    assert_eq!(status["endpoint"], format!("http://127.0.0.1:{}", local.port()));
    assert!(status["data_bytes"].as_u64() > Some(0));

    // It is there already: only the stack is new.
    let port = local.port();
    assert_snapshot!(local.run(&format!("local up --port {port} --name second --output json")), @r#"
    exit 0
    --- stdout
    {"endpoint":"http://127.0.0.1:[PORT]","pid":[PID],"version":"[VERSION]","started":false,"data":"[FOLDER]/data/zae-limiter/local/dynamodb.db","log":"[FOLDER]/data/zae-limiter/local/engine.log","stack":"second","worker_pid":[PID],"next_commands":["eval \"$(zae-limiter local env)\"","zae-limiter --name second system set-defaults --limit rpm:100","zae-limiter --name second acquire key-1 gpt-4 --consume rpm=1"]}
    --- stderr
    {"note":"the engine is already running (process [PID])"}
    "#);
    assert_eq!(
        (local.state(), local.tables()),
        (state.clone(), vec!["first".into(), "second".into()])
    );
    let again = local.json(&format!("local up --port {port} --name second --detach"));
    assert_eq!(
        (&again["started"], &again["pid"], local.tables().len()),
        (&false.into(), &state["pid"], 2)
    );

    assert_snapshot!(local.run("local logs"), @"
    exit 0
    --- stdout
    [TIME] starting zae-limiter-local --port 0 --data [FOLDER]/data/zae-limiter/local/dynamodb.db
    listening on http://127.0.0.1:[PORT]
    ");
    assert_snapshot!(local.run("local logs --tail 1 --output json"), @r#"
    exit 0
    --- stdout
    {"log":"[FOLDER]/data/zae-limiter/local/engine.log","lines":["listening on http://127.0.0.1:[PORT]"]}
    "#);
    assert_snapshot!(local.run("local env"), @"
    exit 0
    --- stdout
    export AWS_ENDPOINT_URL=http://127.0.0.1:[PORT]
    export AWS_ACCESS_KEY_ID=local
    export AWS_SECRET_ACCESS_KEY=local
    export AWS_DEFAULT_REGION=us-east-1
    export AWS_REGION=us-east-1
    ");

    assert_snapshot!(local.run("local down").replace(&state["pid"].to_string(), "[PID]"), @"
    exit 0
    --- stdout
    stopped (process [PID]); its data stays in [FOLDER]/data/zae-limiter/local/dynamodb.db
    ");
    assert_snapshot!(local.run("local down"), @"
    exit 0
    --- stderr
    note: the engine is not running
    ");
    assert_snapshot!(local.run("local status"), @"
    exit 1
    --- stdout
    running  no
    data     [FOLDER]/data/zae-limiter/local/dynamodb.db
    size     [..]
    log      [FOLDER]/data/zae-limiter/local/engine.log
    --- stderr
    note: start it with `zae-limiter local up`
    ");
    assert!(!local.path("state.json").exists() && !local.path("dynamodb.db-wal").exists());

    // Its data stays.
    let restarted = local.json(&format!("local up --detach --port {port}"));
    assert_eq!((&restarted["started"], restarted["stack"].is_null()), (&true.into(), true));
    assert_eq!(local.tables(), ["first", "second"]);
    let down = local.json("local down");
    assert_eq!((&down["stopped"], &down["pid"]), (&true.into(), &restarted["pid"]));
}

#[cfg(unix)]
#[test]
fn its_files_are_for_their_owner() {
    use std::os::unix::fs::PermissionsExt;

    let local = Local::up();
    let mode = |path: PathBuf| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(local.path("")), 0o700);
    for name in ["state.json", "engine.log", "dynamodb.db", "command.lock"] {
        assert_eq!(mode(local.path(name)), 0o600, "{name}");
    }
}

#[test]
fn one_that_runs_elsewhere_is_not_the_one_asked_for() {
    let local = Local::up();
    let port = local.port();
    let other = if port == 8001 { 8002 } else { 8001 };
    assert_snapshot!(local.run(&format!("local up --port {other}")).replace(&other.to_string(), "[OTHER]"), @"
    exit 1
    --- stderr
    error: the engine is already running (process [PID]), on port [PORT] and not on [OTHER]
    hint: pass --port [PORT], or stop it first with `zae-limiter local down`
    ");
    assert_snapshot!(local.run(&format!("local up --port {port} --data other.db --output json")), @r#"
    exit 1
    --- stderr
    {"error":{"kind":"conflict","message":"the engine is already running (process [PID]), on the data in [FOLDER]/data/zae-limiter/local/dynamodb.db","hint":"pass no --data, or stop it first with `zae-limiter local down`"}}
    "#);
    assert_eq!(
        local.json("local up --port 0 --data data/zae-limiter/local/dynamodb.db")["started"],
        false
    );
}

#[test]
fn data_can_be_elsewhere() {
    let local = Local::new();
    let up = local.json("local up --detach --port 0 --name elsewhere --data other.db");
    assert!(
        up["data"].as_str().unwrap().ends_with("other.db") && local.0.path("other.db").exists()
    );
    assert_eq!(local.json("local status")["data"], up["data"]);
    assert_eq!(local.0.raw("local down").0, 0);
    assert_eq!(local.0.raw("local up --detach --port 0").0, 0);
    assert_eq!(local.tables(), Vec::<String>::new());
    assert_eq!(local.0.raw("local down").0, 0);
    assert_eq!(local.0.raw("local up --detach --port 0 --data other.db").0, 0);
    assert_eq!(local.tables(), ["elsewhere"]);
}

#[test]
fn a_port_in_use() {
    let local = Local::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let mask = |text: String| text.replace(&port, "[PORT]");
    assert_snapshot!(mask(local.run(&format!("local up --port {port}"))), @"
    exit 1
    --- stderr
    error: --port [PORT] is in use by another program
    hint: choose another port, or 0 for any free one
    ");
    assert_snapshot!(mask(local.run(&format!("local up --port {port} --detach --output json"))), @r#"
    exit 1
    --- stderr
    {"error":{"kind":"conflict","message":"--port [PORT] is in use by another program","hint":"choose another port, or 0 for any free one"}}
    "#);
    drop(listener);
    let other = Engine::start();
    let port = other.endpoint().rsplit(':').next().unwrap();
    assert_snapshot!(local.run(&format!("local up --port {port}")).replace(port, "[PORT]"), @"
    exit 1
    --- stderr
    error: --port [PORT] is in use by a local engine that was not started from here
    hint: choose another port, or 0 for any free one
    ");
    assert!(!local.path("state.json").exists());
}

#[test]
fn an_engine_that_is_missing_or_dies() {
    let mut local = Local::new();
    let with = |local: &mut Local, path: &str| {
        let sandbox = std::mem::replace(&mut local.0, Sandbox::new());
        local.0 = sandbox.variable("ZAEL_LOCAL_ENGINE", path);
    };
    with(&mut local, "");
    assert_snapshot!(local.run("local up"), @"
    exit 1
    --- stderr
    error: the engine zae-limiter-local is neither beside this program nor in PATH
    hint: install it with `cargo install --locked --path engines/zae-limiter-local`, or name it with ZAEL_LOCAL_ENGINE
    ");
    assert_snapshot!(local.run("local up --output json"), @r#"
    exit 1
    --- stderr
    {"error":{"kind":"not_found","message":"the engine zae-limiter-local is neither beside this program nor in PATH","hint":"install it with `cargo install --locked --path engines/zae-limiter-local`, or name it with ZAEL_LOCAL_ENGINE"}}
    "#);
    with(&mut local, "nowhere/engine");
    assert_snapshot!(local.run("local up"), @"
    exit 1
    --- stderr
    error: ZAEL_LOCAL_ENGINE names nowhere/engine, which is no file
    hint: correct it, or unset it to look beside this program and in PATH
    ");
    // A program that does not know the engine's flags.
    with(&mut local, env!("CARGO_BIN_EXE_zae-limiter"));
    assert_snapshot!(local.run("local up --port 0"), @"
    exit 1
    --- stderr
    error: the engine did not start (exit status: 2)
      caused by: error: unexpected argument '--port' found
      caused by: Usage: zae-limiter [OPTIONS] <COMMAND>
      caused by: For more information, try '--help'.
    hint: `zae-limiter local logs` shows more of [FOLDER]/data/zae-limiter/local/engine.log
    ");
    with(&mut local, &engine::binary().display().to_string());
    std::fs::write(
        local.path("dynamodb.db"),
        "a letter to my aunt, long enough to look like something".repeat(100),
    )
    .unwrap();
    let shown = local.run("local up --port 0 --detach");
    assert!(
        shown.starts_with("exit 1\n--- stderr\nerror: the engine did not start (exit status: 1)\n  caused by: zae-limiter-local: "),
        "{shown}"
    );
    assert!(shown.contains("dynamodb.db cannot be opened as a database"), "{shown}");
    assert_eq!(local.0.raw("local status").0, 1);
}

#[test]
fn data_in_use_by_somebody_else() {
    let local = Local::new();
    let _other = Engine::start_on(&local.0.path("other.db"));
    assert_snapshot!(local.run("local up --port 0 --data other.db"), @"
    exit 1
    --- stderr
    error: [FOLDER]/other.db is in use by another zae-limiter-local
    hint: stop that one, or name another file with --data
    ");
}

#[test]
fn mistakes_are_named_before_anything_starts() {
    let local = Local::new();
    assert_snapshot!(local.run("local up --port 65536"), @"
    exit 2
    --- stderr
    error: invalid value '65536' for '--port <PORT>': write a whole number from 0 to 65535

    For more information, try '--help'.
    ");
    assert_snapshot!(local.0.run_words(&["local", "up", "--name", "my app"]), @"
    exit 2
    --- stderr
    error: invalid value 'my app' for '--name <STACK>': it is no name of a table
    hint: use 3 to 255 letters, digits and _ . -
    ");
    assert_snapshot!(local.run("local up --data nowhere/other.db"), @"
    exit 1
    --- stderr
    error: --data [FOLDER]/nowhere/other.db: there is no folder [FOLDER]/nowhere
    hint: create it first
    ");
    assert_snapshot!(local.run("local up --store dynamodb:my-app"), @"
    exit 2
    --- stderr
    error: --store is not for `local`, which is on this machine
    hint: name the stack to create with --name STACK
    ");
    assert_snapshot!(local.run("local status --endpoint-url http://127.0.0.1:8000 --output json"), @r#"
    exit 2
    --- stderr
    {"error":{"kind":"usage","message":"--endpoint-url is not for `local`, which is on this machine","hint":"choose the port of the engine with --port"}}
    "#);
    assert!(!local.path("engine.log").exists());
}

#[test]
fn a_strange_state_is_named() {
    let local = Local::up();
    let port = local.port();
    let good = std::fs::read(local.path("state.json")).unwrap();
    std::fs::write(local.path("state.json"), "{}").unwrap();
    assert_snapshot!(masked(&local.0.run("local status"), None), @"
    exit 1
    --- stderr
    error: [FOLDER]/data/zae-limiter/local/state.json is not as we wrote it
    hint: delete it
    ");
    // Somebody else's: it is not taken for ours, and nobody stops it.
    std::fs::write(
        local.path("state.json"),
        format!("{{\"pid\":1,\"port\":{port},\"data\":\"x\"}}"),
    )
    .unwrap();
    assert_eq!(local.0.raw("local status").0, 1);
    assert_eq!(local.0.raw("local down"), (0, String::new()));
    std::fs::write(local.path("state.json"), good).unwrap();
    assert_eq!(local.0.raw("local status").0, 0);
}

#[test]
fn two_at_once_start_one() {
    let local = Local::new();
    let children: Vec<Child> = (0..4)
        .map(|_| local.spawn("local up --detach --port 0 --name shared --output json"))
        .collect();
    let mut started = 0;
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        started += usize::from(answer["started"] == true);
        assert_eq!(answer["pid"], local.state()["pid"]);
    }
    assert_eq!((started, local.tables()), (1, vec!["shared".to_owned()]));
}

#[test]
fn in_the_foreground_it_passes_on_what_the_engine_says_and_ends_with_it() {
    let local = Local::new();
    let mut child = local.spawn("local up --foreground --port 0 --name front");
    // Its answer says that everything is made; a table that is there may not have its records yet.
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut answer = String::new();
    while !answer.contains("Ctrl-C") {
        assert!(stdout.read_line(&mut answer).unwrap() > 0, "it ended after {answer:?}");
    }
    assert_eq!(local.tables(), ["front"]);
    let state = local.state();
    assert_eq!(local.json("local up --port 0")["started"], false);
    assert_eq!(local.0.raw("local down").0, 0);
    let mut output = child.wait_with_output().unwrap();
    stdout.read_to_string(&mut answer).unwrap();
    output.stdout = answer.into_bytes();
    assert_snapshot!(masked(&local.0.shown(&output), Some(&state)), @r#"
    exit 0
    --- stdout
    endpoint  http://127.0.0.1:[PORT]
    process   [PID]
    stack     front
    workers   [..]
    data      [FOLDER]/data/zae-limiter/local/dynamodb.db
    log       [FOLDER]/data/zae-limiter/local/engine.log

    try next  eval "$(zae-limiter local env)"
              zae-limiter --name front system set-defaults --limit rpm:100
              zae-limiter --name front acquire key-1 gpt-4 --consume rpm=1
              in another terminal; Ctrl-C here stops the engine
    --- stderr
    engine: listening on http://127.0.0.1:[PORT]
    note: the engine has stopped
    "#);
    assert!(!local.path("state.json").exists());
}

#[test]
fn in_the_foreground_the_engine_does_not_outlive_the_command() {
    let local = Local::new();
    let mut child = local.spawn("local up --foreground --port 0 --output json");
    let mut answer = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut answer).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&answer).unwrap()["started"], true);
    assert_eq!(local.0.raw("local status").0, 0);
    // At once, as a crash would: nothing is tidied up, and nobody is misled by what is left.
    child.kill().unwrap();
    child.wait().unwrap();
    local.eventually("the end", |local| local.0.raw("local status").0 == 1);
    assert!(local.path("state.json").exists());
    assert_eq!(local.json("local up --detach --port 0")["started"], true);
}

#[cfg(unix)]
#[test]
fn an_engine_that_was_killed_is_forgotten() {
    let local = Local::up();
    let state = local.state();
    let pid = state["pid"].to_string();
    let killed = std::process::Command::new("kill").args(["-9", &pid]).status().expect("kill");
    assert!(killed.success());
    local.eventually("the end", |local| local.0.raw("local status").0 == 1);
    assert_snapshot!(masked(&local.0.run("local down"), Some(&state)), @"
    exit 0
    --- stderr
    note: the engine (process [PID]) had already gone; its data stays in [FOLDER]/data/zae-limiter/local/dynamodb.db
    ");
    assert!(!local.path("state.json").exists() && !local.path("address").exists());
    assert_snapshot!(local.0.run("local down"), @"
    exit 0
    --- stderr
    note: the engine is not running
    ");
    // The next one is where shells look for it.
    let again = local.json("local up --detach");
    assert_eq!(again["endpoint"], format!("http://127.0.0.1:{}", state["port"]));
}

#[test]
fn following_ends_with_the_engine() {
    let local = Local::up();
    let state = local.state();
    let mut child = local.spawn("local logs --follow --tail 1");
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    assert_snapshot!(masked(line.trim_end(), Some(&state)), @"listening on http://127.0.0.1:[PORT]");
    let mut log = std::fs::OpenOptions::new().append(true).open(local.path("engine.log")).unwrap();
    std::io::Write::write_all(&mut log, b"some\x1b[31mthing\n").unwrap();
    line.clear();
    stdout.read_line(&mut line).unwrap();
    assert_eq!(line, "some\\u{1b}[31mthing\n");
    assert_eq!(local.0.raw("local down").0, 0);
    let output = child.wait_with_output().unwrap();
    assert!(
        output.status.success() && output.stderr == b"note: the engine is not running\n",
        "{output:?}"
    );
    assert_snapshot!(local.run("local logs -f --tail 1 --output json"), @r#"
    exit 0
    --- stdout
    {"line":"some\u001b[31mthing"}
    --- stderr
    {"note":"the engine is not running"}
    "#);
}
