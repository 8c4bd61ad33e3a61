//! What a newcomer meets on a stack: an engine that runs and is not named, credentials that are
//! missing, a table that hangs, and usage that nobody writes.

use std::net::TcpListener;
use std::time::Duration;

use insta::assert_snapshot;
use serde_json::Value;
use zae_limiter::{Clock as _, SystemClock};
use zae_limiter_testkit::engine;

use super::Stack;
use super::errors::refusing;
use crate::support::Sandbox;

/// A machine that nobody has told who to be on AWS.
fn without_credentials() -> Sandbox {
    // Off, or the test would ask the network for the role of this machine.
    Sandbox::new().variable("ZAEL_STORE", "").variable("AWS_EC2_METADATA_DISABLED", "true")
}

#[test]
fn usage_says_why_it_is_empty() {
    let stack = Stack::new();
    for line in ["system set-defaults -l rpm:10/day", "acquire key-1 gpt-4 -c rpm=1"] {
        assert_eq!(stack.sandbox.raw(line).0, 0);
    }
    assert_snapshot!(stack.run("usage list -e key-1"), @"
    exit 0
    --- stdout
    no usage
    --- stderr
    note: no worker has counted the usage of cli yet: `zae-limiter local up --name cli --port [PORT]` starts one
    ");
    assert_snapshot!(stack.run("usage list --output json"), @r#"
    exit 0
    --- stdout
    {"items":[],"next":null,"note":"no worker has counted the usage of cli yet: `zae-limiter local up --name cli --port [PORT]` starts one"}
    "#);
    assert_snapshot!(stack.run("usage list --plot -q"), @"
    exit 0
    --- stdout
    no usage
    ");
    assert_snapshot!(stack.run("usage summary -r gpt-4 --output json"), @r#"
    exit 0
    --- stdout
    {"entity_id":null,"resource":"gpt-4","window":"hourly","snapshots":0,"first_window":null,"last_window":null,"limits":[],"note":"no worker has counted the usage of cli yet: `zae-limiter local up --name cli --port [PORT]` starts one"}
    --- stderr
    {"note":"summed over all entities: with cascades a call counts for each member of its chain"}
    "#);
}

/// A role that is scoped to a namespace finds it by a tag.
#[test]
fn a_namespace_is_shown_with_its_tag() {
    let stack = Stack::new();
    let shown = stack.run("namespace show default");
    let tag = format!("Key=zael_namespace_id,Value={}\n", stack.namespace("default"));
    assert!(shown.contains(&tag), "{shown}");
}

#[test]
fn a_stack_has_a_status() {
    let stack = Stack::new();
    for line in ["resource disable gpt-4", "entity set-limits key-1 -l rpm:1"] {
        assert_eq!(stack.sandbox.raw(line).0, 0);
    }
    assert_snapshot!(stack.run("status"), @"
    exit 0
    --- stdout
    stack      cli
    region     us-east-1
    endpoint   http://127.0.0.1:[PORT]
    state      ACTIVE
    latency    [..]
    schema     0.10.0
    items      10 (counted by DynamoDB every few hours)
    size       [..]
    billing    on demand
    expiry     yes
    stream     yes
    worker     none was seen
    namespace  default
    disabled   resource gpt-4

    INDEX  STATE
    GSI1   ACTIVE
    GSI2   ACTIVE
    GSI3   ACTIVE
    GSI4   ACTIVE
    ");
    let (exit, json) = stack.sandbox.raw("status --output json");
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(
        (exit, &json["stack"], &json["sound"], &json["disabled"][0]),
        (0, &"cli".into(), &true.into(), &"resource gpt-4".into())
    );
    assert_snapshot!(Stack::missing().run("status"), @"
    exit 1
    --- stderr
    error: there is no such table (ResourceNotFoundException: Requested resource not found: Table: cli not found); check the stack name, the region and the endpoint, or create it
    hint: `zae-limiter local up --name cli --port [PORT]` starts the local engine with this stack
    ");
}

#[test]
fn credentials_that_are_missing_are_named() {
    let sandbox = without_credentials();
    assert_snapshot!(sandbox.run("--name demo acquire key-1 gpt-4 -c rpm=1"), @r#"
    exit 1
    --- stderr
    error: no AWS credentials found: not in variables, not in profiles, and no role is attached to this machine
    hint: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; or start the local engine with this stack: `zae-limiter local up --name demo`
    "#);
    assert_snapshot!(sandbox.run("--name demo namespace list --output json"), @r#"
    exit 1
    --- stderr
    {"error":{"kind":"denied","message":"no AWS credentials found: not in variables, not in profiles, and no role is attached to this machine","hint":"set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; or start the local engine with this stack: `zae-limiter local up --name demo`"}}
    "#);
    let sandbox = sandbox.variable("AWS_PROFILE", "nonexist");
    assert_snapshot!(sandbox.run("--name demo entity list"), @r#"
    exit 1
    --- stderr
    error: no AWS credentials found: the profile nonexist, which AWS_PROFILE names, has none or is not there
    hint: check ~/.aws/config and ~/.aws/credentials, or unset AWS_PROFILE; for the local engine, `eval "$(zae-limiter local env)"` sets what is needed
    "#);
}

#[test]
fn a_stack_of_the_running_engine_needs_no_endpoint() {
    let data = |sandbox: Sandbox| {
        let home = sandbox.path("data").display().to_string();
        sandbox
            .variable("XDG_DATA_HOME", &home)
            .variable("ZAEL_LOCAL_ENGINE", &engine::binary().display().to_string())
    };
    let sandbox = data(without_credentials());
    let (exit, json) = sandbox.raw("local up --port 0 --name demo --output json");
    assert_eq!(exit, 0, "{json}");
    let up: Value = serde_json::from_str(&json).expect("JSON");
    let port = up["endpoint"]
        .as_str()
        .and_then(|endpoint| endpoint.rsplit(':').next())
        .expect("a port")
        .to_owned();
    let shown = |line: &str| sandbox.run(line).replace(&port, "[PORT]");
    let granted = shown("--name demo acquire key-1 gpt-4 -c rpm=1 -l rpm:5/day");
    let another = shown("--name other acquire key-1 gpt-4 -c rpm=1 -l rpm:5/day");
    // Whoever has credentials may mean AWS: the engine is named, not taken.
    let elsewhere = sandbox.variable("AWS_PROFILE", "nonexist");
    let named = elsewhere.run("--name demo acquire key-1 gpt-4 -c rpm=1 -l rpm:5/day");
    let down = elsewhere.raw("local down");
    let env = elsewhere.raw("local env").1;
    assert_eq!(down.0, 0);
    assert_snapshot!(granted, @"
    exit 0
    --- stdout
    granted

    ENTITY  LIMIT  CAPACITY  AVAILABLE  REQUESTED  WAIT
    key-1   rpm           5          4          1  -
    --- stderr
    note: demo is a stack of the local engine at http://127.0.0.1:[PORT]; AWS credentials, or --endpoint-url, choose another
    note: key-1 is not a created entity; its limits come from this call
    ");
    assert!(another.contains("no AWS credentials found"), "{another}");
    assert!(named.contains("the profile nonexist") && named.contains("local env"), "{named}");
    // The port stays known.
    assert!(
        env.starts_with(&format!("export AWS_ENDPOINT_URL=http://127.0.0.1:{port}\n")),
        "{env}"
    );
}

/// Whoever has credentials is taken to AWS; that the stack is on this machine is said where AWS
/// does not have it.
#[test]
fn with_credentials_the_running_engine_is_named() {
    let sandbox = without_credentials();
    let home = sandbox.path("data").display().to_string();
    let sandbox = sandbox
        .variable("XDG_DATA_HOME", &home)
        .variable("ZAEL_LOCAL_ENGINE", &engine::binary().display().to_string());
    let (exit, json) = sandbox.raw("local up --port 0 --name demo --output json");
    assert_eq!(exit, 0, "{json}");
    let up: Value = serde_json::from_str(&json).expect("JSON");
    let endpoint = up["endpoint"].as_str().expect("an endpoint").to_owned();
    // AWS as this machine knows it: it has no such table, and after that does not know the caller.
    let sandbox =
        sandbox.variable("AWS_ACCESS_KEY_ID", "key").variable("AWS_SECRET_ACCESS_KEY", "secret");
    std::fs::create_dir(sandbox.path(".aws")).expect("a folder");
    let aws = |error: &str| {
        let config = format!("[default]\nendpoint_url = {}\n", refusing(error));
        std::fs::write(sandbox.path(".aws/config"), config).expect("a file");
    };
    aws("ResourceNotFoundException");
    let missing = sandbox.run("--name demo entity list").replace(&endpoint, "[ENDPOINT]");
    let status = sandbox.run("--name demo status").replace(&endpoint, "[ENDPOINT]");
    let other = sandbox.run("--name other entity list");
    aws("UnrecognizedClientException");
    let unknown = sandbox.run("--name demo entity list").replace(&endpoint, "[ENDPOINT]");
    let works = sandbox.raw(&format!("--name demo entity list --endpoint-url {endpoint}")).0;
    assert_eq!(sandbox.raw("local down").0, 0);
    assert_snapshot!(missing, @r#"
    exit 1
    --- stderr
    error: there is no such table (ResourceNotFoundException: not you); check the stack name, the region and the endpoint, or create it
    hint: AWS was asked, because this machine has AWS credentials or profiles. The local engine has a stack demo: add --endpoint-url [ENDPOINT], or run `eval "$(zae-limiter local env)"`
    "#);
    let hint = missing.lines().last().expect("a hint");
    assert!(status.contains(hint) && unknown.contains(hint), "{status}{unknown}");
    assert!(!other.contains("hint: AWS was asked"), "{other}");
    assert_eq!(works, 0, "what the hint says works");
}

/// Somebody who takes connections and never says anything.
#[test]
fn a_stack_that_hangs_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let sandbox = without_credentials();
    let run = |line: &str| {
        sandbox.run(&format!("{line} --name demo --endpoint-url http://127.0.0.1:{port}"))
    };
    let clock = SystemClock::new();
    // Whether the request or the whole command gives up first depends on the machine.
    for line in ["acquire key-1 gpt-4 -c rpm=1", "status", "namespace list --output json"] {
        let began = clock.monotonic();
        let shown = run(line);
        let took = clock.monotonic().saturating_sub(began);
        assert!(took < Duration::from_secs(12), "5 s, and what a busy machine adds: {took:?}");
        assert!(
            shown.starts_with("exit 1\n")
                && shown.contains("did not answer")
                && shown.contains("zae-limiter local "),
            "{shown}"
        );
    }
    let words =
        ["entity", "list", "--name", "demo", "--endpoint-url", &format!("http://127.0.0.1:{port}")];
    let output = sandbox.command(&words).output().expect("the binary starts");
    let said = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(said.starts_with("note: still waiting for the stack demo\nerror: "), "{said}");
}

#[cfg(unix)]
#[test]
fn an_engine_that_hangs_is_told_apart_from_one_that_does_not_run() {
    let sandbox = without_credentials();
    let home = sandbox.path("data").display().to_string();
    let sandbox = sandbox
        .variable("XDG_DATA_HOME", &home)
        .variable("ZAEL_LOCAL_ENGINE", &engine::binary().display().to_string());
    let (exit, json) = sandbox.raw("local up --port 0 --name demo --output json");
    assert_eq!(exit, 0, "{json}");
    let up: Value = serde_json::from_str(&json).expect("JSON");
    let (pid, endpoint) =
        (up["pid"].to_string(), up["endpoint"].as_str().expect("an endpoint").to_owned());
    let signal = |signal: &str| {
        std::process::Command::new("kill").args([signal, &pid]).status().expect("kill is there")
    };
    signal("-STOP");
    let shown = sandbox.run("local status").replace(&pid, "[PID]").replace(&endpoint, "[ENDPOINT]");
    // Who calls it by the name of a stack is told the same, not that credentials are missing.
    let by_name = sandbox
        .run("--name demo acquire key-1 gpt-4 -c rpm=1")
        .replace(&pid, "[PID]")
        .replace(&endpoint, "[ENDPOINT]");
    signal("-CONT");
    assert_eq!(by_name, shown);
    assert_eq!(sandbox.raw("local down").0, 0);
    assert_snapshot!(shown, @"
    exit 1
    --- stderr
    error: the engine (process [PID]) does not answer at [ENDPOINT]: it says nothing for 4s
    hint: try again, or end process [PID]; what it has answered is on the disk
    ");
}

#[test]
fn an_engine_that_dies_while_one_waits_is_told_once() {
    let Stack { engine, sandbox } = Stack::new();
    assert_eq!(sandbox.raw("system set-defaults -l rpm:1/15sec").0, 0);
    assert_eq!(sandbox.raw("acquire key-1 gpt-4 -c rpm=1").0, 0);
    let mut command =
        sandbox.command(&["acquire", "key-1", "gpt-4", "-c", "rpm=1", "--wait", "60s"]);
    let mut child = command
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("it starts");
    // It says that it waits, and then the engine is gone.
    let mut stderr = std::io::BufReader::new(child.stderr.take().expect("a pipe"));
    let mut said = String::new();
    while !said.contains("waiting: rpm of key-1") {
        assert!(std::io::BufRead::read_line(&mut stderr, &mut said).expect("a line") > 0, "{said}");
    }
    let port = engine.endpoint().rsplit(':').next().expect("a port").to_owned();
    engine.kill();
    std::io::Read::read_to_string(&mut stderr, &mut said).expect("the rest");
    assert_eq!(child.wait().expect("it ends").code(), Some(1));
    let error = said.lines().find(|line| line.starts_with("error: ")).expect("an error");
    assert!(error.contains("reached") && said.matches("Connection refused").count() == 1, "{said}");
    let hint = format!(
        "hint: `zae-limiter local up --name cli --port {port}` starts the local engine with this stack"
    );
    assert!(said.contains(&hint), "{said}");
}
