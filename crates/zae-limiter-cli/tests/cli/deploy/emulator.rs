//! From nothing to a running stack and back, on an emulator of AWS: `.ci/deploy` starts one and
//! names it in `ZAEL_TEST_AWS_ENDPOINT`. Without that variable there is nobody to deploy to.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;

use crate::support::Sandbox;

const STACK: &str = "emulated";

/// The section of docs/json.md has the fields of the object, and no others.
#[track_caller]
fn is_documented(title: &str, object: &Value) {
    let fields: BTreeSet<&str> =
        object.as_object().expect("an object").keys().map(String::as_str).collect();
    let page = include_str!("../../../../../docs/json.md");
    let section = page.split(&format!("### {title}\n")).nth(1).expect("a section");
    let section = section.split("\n### ").next().expect("a section");
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    assert_eq!(rows.collect::<BTreeSet<&str>>(), fields, "{title}");
}

/// Someone at a terminal with a stack on the emulator; nobody where there is none.
#[expect(clippy::disallowed_methods, reason = "whoever starts the emulator names it")]
#[expect(clippy::print_stderr, reason = "a test that did not run says so")]
fn sandbox(stack: &str) -> Option<(Sandbox, String)> {
    let Ok(endpoint) = std::env::var("ZAEL_TEST_AWS_ENDPOINT") else {
        eprintln!("not run: ZAEL_TEST_AWS_ENDPOINT names no emulator; .ci/deploy starts one");
        return None;
    };
    let sandbox = Sandbox::new()
        .variable("ZAEL_STORE", "")
        .variable("ZAEL_STACK", stack)
        .variable("AWS_ENDPOINT_URL", &endpoint)
        .variable("AWS_ACCESS_KEY_ID", "test")
        .variable("AWS_SECRET_ACCESS_KEY", "test");
    Some((sandbox, endpoint))
}

/// What a line prints, as JSON; it must succeed.
#[track_caller]
fn json(sandbox: &Sandbox, line: &str) -> Value {
    let (exit, json) = sandbox.raw(&format!("{line} --output json"));
    assert_eq!(exit, 0, "{line}: {json}");
    serde_json::from_str(&json).unwrap_or_else(|error| panic!("{line}: {error}: {json}"))
}

/// Killed as it begins each step, a deploy is finished by the next one. The function is a program
/// that only ends: it is never asked here.
#[test]
fn a_deploy_that_is_killed_at_any_step_is_finished_by_the_next() {
    let deploy = ["deploy", "-N", "tenant-a", "--lambda-binary", "/bin/true", "--output", "json"];
    let steps = [
        "making the stack",
        "uploading the function",
        "planning the change",
        "changing the stack",
        "AggregatorFunction",
        "making the table ready",
    ];
    for (place, step) in steps.into_iter().enumerate() {
        let stack = format!("killed-{place}");
        let Some((sandbox, _)) = sandbox(&stack) else { return };
        let mut command = sandbox.command(&deploy);
        let mut child = command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let said: Vec<String> = lines
            .map_while(Result::ok)
            .scan(false, |ended, line| {
                (!*ended).then(|| {
                    *ended = line.contains(step);
                    line
                })
            })
            .inspect(|line| {
                if line.contains(step) {
                    child.kill().expect("it is killed");
                }
            })
            .collect();
        let status = child.wait().expect("it ends");
        assert!(!status.success(), "{step} was never said: {said:?}");
        let again = json(&sandbox, &deploy[..5].join(" "));
        let outcome = again["outcome"].as_str().unwrap_or_default();
        assert!(["created", "updated", "unchanged"].contains(&outcome), "{step}: {again}");
        let status = json(&sandbox, "status");
        assert_eq!(status["function_version"], env!("CARGO_PKG_VERSION"), "{step}: {status}");
        assert_eq!(status["sound"], true, "{step}: {status}");
        assert!(json(&sandbox, "namespace show tenant-a")["namespace_id"].is_string(), "{step}");
        let third = json(&sandbox, &deploy[..5].join(" "));
        assert_eq!(third["outcome"], "unchanged", "{step}");
        assert_eq!(json(&sandbox, "delete --yes")["deleted"], true, "{step}");
    }
}

#[test]
fn of_two_deploys_at_once_both_end_well() {
    let Some((sandbox, _)) = sandbox("at-once") else { return };
    let deploy = ["deploy", "--lambda-binary", "/bin/true", "--output", "json"];
    let start = || {
        let mut command = sandbox.command(&deploy);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts")
    };
    let ended = [start(), start()].map(|child| child.wait_with_output().expect("it ends"));
    for output in &ended {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    assert_eq!(json(&sandbox, "status")["sound"], true);
    assert_eq!(json(&sandbox, "delete --yes")["deleted"], true);
}

/// A stack of an older release: its template lacks an alarm and a parameter, and its options are
/// not the defaults.
#[test]
fn an_older_stack_is_upgraded() {
    let Some((sandbox, endpoint)) = sandbox("older") else { return };
    let new = zae_limiter_deploy::TEMPLATE;
    let without = |template: &str, from: &str, to: &str| {
        let (before, rest) = template.split_once(from).expect("the beginning");
        let (_, after) = rest.split_once(to).expect("the end");
        format!("{before}{to}{after}")
    };
    let old = without(new, "  DynamoDBTakeThrottleAlarm:\n", "\nOutputs:\n");
    let old = without(&old, "  DynamoDBTakeThrottleAlarmName:\n", "  AuditArchiveBucketName:\n");
    let old = without(&old, "  EnableFolding:\n", "  ResourceIndexProjection:\n");
    let old = old.replace("          ENABLE_FOLDING: {Ref: EnableFolding}\n", "");
    let form = [
        ("Action", "CreateStack"),
        ("Version", "2010-05-15"),
        ("StackName", "older"),
        ("TemplateBody", &old),
        ("Capabilities.member.1", "CAPABILITY_NAMED_IAM"),
        ("Parameters.member.1.ParameterKey", "LambdaMemorySize"),
        ("Parameters.member.1.ParameterValue", "512"),
        ("Tags.member.1.Key", "ManagedBy"),
        ("Tags.member.1.Value", "zae-limiter"),
        ("Tags.member.2.Key", "zae-limiter:version"),
        ("Tags.member.2.Value", "0.0.9"),
        ("Tags.member.3.Key", "team"),
        ("Tags.member.3.Value", "limits"),
    ];
    let made = cloudformation(&endpoint, &form);
    assert!(made.contains("<StackId>"), "{made}");
    assert_eq!(json(&sandbox, "deploy --no-stack")["outcome"], "ready");
    let listed = json(&sandbox, "list");
    let version = |listed: &Value| {
        let stacks = listed["stacks"].as_array().cloned().unwrap_or_default();
        stacks.iter().find(|stack| stack["name"] == "older").map(|it| it["version"].clone())
    };
    assert_eq!(version(&listed), Some("0.0.9".into()), "{listed}");
    let upgrade =
        |flags: &str| json(&sandbox, &format!("upgrade --lambda-binary /bin/true {flags}"));
    let planned = upgrade("--dry-run");
    let step = &planned["steps"][1];
    assert_eq!(step["state"], "planned", "{planned}");
    let detail = step["detail"].as_str().unwrap_or_default();
    assert!(detail.contains("+ DynamoDBTakeThrottleAlarm"), "{detail}");
    assert_eq!(version(&json(&sandbox, "list")), Some("0.0.9".into()), "a dry run changes nothing");
    let done = upgrade("");
    assert_eq!(done["steps"][1]["state"], "done", "{done}");
    assert_eq!(done["steps"][3]["state"], "done", "the record says which function: {done}");
    assert_eq!(version(&json(&sandbox, "list")), Some(env!("CARGO_PKG_VERSION").into()));
    let described = cloudformation(
        &endpoint,
        &[("Action", "DescribeStacks"), ("Version", "2010-05-15"), ("StackName", "older")],
    );
    let described: String = described.split_whitespace().collect();
    assert!(
        described.contains(
            "<ParameterKey>LambdaMemorySize</ParameterKey><ParameterValue>512</ParameterValue>"
        ),
        "what it was deployed with stays: {described}"
    );
    assert!(described.contains("<Value>limits</Value>"), "its tags, too: {described}");
    assert_eq!(upgrade("")["steps"][1]["state"], "nothing to do");
    assert_eq!(json(&sandbox, "delete --yes")["deleted"], true);
}

/// As Terraform makes it: the template with its parameters, and no tag of a version.
#[test]
fn a_stack_of_terraform_is_left_to_it_and_its_table_is_made_ready() {
    let Some((sandbox, endpoint)) = sandbox("applied") else { return };
    let form = [
        ("Action", "CreateStack"),
        ("Version", "2010-05-15"),
        ("StackName", "applied"),
        ("TemplateBody", zae_limiter_deploy::TEMPLATE),
        ("Capabilities.member.1", "CAPABILITY_NAMED_IAM"),
        ("Tags.member.1.Key", "ManagedBy"),
        ("Tags.member.1.Value", "zae-limiter"),
    ];
    let made = cloudformation(&endpoint, &form);
    assert!(made.contains("<StackId>"), "{made}");
    let shown = sandbox.run("namespace list");
    assert!(shown.starts_with("exit 1\n") && shown.contains("deploy --no-stack"), "{shown}");
    let shown = sandbox.run("deploy --no-aggregator");
    assert!(shown.starts_with("exit 1\n") && shown.contains("Terraform or CDK"), "{shown}");
    assert!(shown.contains("deploy --name applied --no-stack"), "{shown}");
    let ready = json(&sandbox, "deploy --no-stack -N tenant-a --usage-retention-days 30");
    assert_eq!(ready["outcome"], "ready", "{ready}");
    assert_eq!(json(&sandbox, "check")["usage_retention_days"], 30);
    json(&sandbox, "system set-defaults -l rpm:10 -N tenant-a");
    json(&sandbox, "acquire key-1 gpt-4 -c rpm=1 -N tenant-a");
    let upgraded = json(&sandbox, "upgrade");
    assert_eq!(upgraded["steps"][1]["state"], "left out", "{upgraded}");
    assert_eq!(
        upgraded["steps"][2]["state"], "nothing to do",
        "its table is looked at: {upgraded}"
    );
    let listed = json(&sandbox, "list");
    let stacks = listed["stacks"].as_array().cloned().unwrap_or_default();
    let found = stacks.iter().find(|stack| stack["name"] == "applied");
    assert_eq!(found.map(|stack| &stack["deployed_by"]), Some(&"other".into()), "{listed}");
    let (exit, _) = sandbox.raw("delete --yes");
    assert_eq!(exit, 1, "who made it deletes it");
    let gone = [("Action", "DeleteStack"), ("Version", "2010-05-15"), ("StackName", "applied")];
    cloudformation(&endpoint, &gone);
}

/// One request to CloudFormation, by hand: our program makes no older stacks.
fn cloudformation(endpoint: &str, form: &[(&str, &str)]) -> String {
    let encoded = |text: &str| -> String {
        let byte = |byte: u8| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' => {
                char::from(byte).to_string()
            }
            other => format!("%{other:02X}"),
        };
        text.bytes().map(byte).collect()
    };
    let pairs: Vec<String> =
        form.iter().map(|(key, value)| format!("{}={}", encoded(key), encoded(value))).collect();
    let body = pairs.join("&");
    let host = endpoint.trim_start_matches("http://");
    let mut stream = TcpStream::connect(host).expect("the emulator");
    let request = format!(
        "POST / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: {}\r\n\
         Content-Type: application/x-www-form-urlencoded\r\n\
         Authorization: AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/cloudformation/aws4_request, \
         SignedHeaders=host, Signature=0\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).expect("the request is sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

#[test]
fn from_deploy_to_delete() {
    let Some((sandbox, _)) = sandbox(STACK) else { return };
    let run = |line: &str| json(&sandbox, line);

    let first = run("deploy -N tenant-a");
    assert_eq!(first["outcome"], "created");
    let info = run("lambda-export --info");
    assert_eq!(first["bootstrap_sha256"], info["bootstrap_sha256"], "this very program");
    let again = run("deploy -N tenant-a");
    assert_eq!(again["outcome"], "unchanged", "the same options change nothing");

    let listed = run("list");
    is_documented("stack", &listed["stacks"][0]);
    let names = listed["stacks"].as_array().expect("a list");
    assert!(names.iter().any(|stack| stack["name"] == STACK), "{listed}");

    run("system set-defaults -l rpm:100 -N tenant-a");
    for _ in 0..7 {
        run("acquire key-1 gpt-4 -c rpm=1 -N tenant-a");
    }
    // The function counts, which is this very program. The emulator delivers within seconds.
    let counted = || {
        let usage = run("usage list -e key-1 -N tenant-a -w hourly");
        let rows = usage["items"].as_array().cloned().unwrap_or_default();
        let sum = |of: fn(&Value) -> i64| rows.iter().map(of).sum::<i64>();
        let used = |row: &Value| row["counters"]["rpm"].as_i64().unwrap_or(0);
        (sum(used), sum(|row| row["total_events"].as_i64().unwrap_or(0)))
    };
    let is_counted = (0..120).any(|_| {
        let done = counted() == (7, 7);
        if !done {
            pause();
        }
        done
    });
    assert!(is_counted, "{:?}", counted());

    let changed = run("deploy -N tenant-a --lambda-memory 512 --tag team=limits");
    assert_eq!(changed["outcome"], "updated", "a changed option changes the stack");
    let status = run("status");
    assert_eq!(status["function_version"], env!("CARGO_PKG_VERSION"));
    assert!(status["stack_status"].as_str().is_some_and(|it| it.ends_with("_COMPLETE")));
    let upgraded = run("upgrade");
    assert_eq!(upgraded["steps"][1]["state"], "nothing to do", "{upgraded}");
    assert_eq!(run("check")["compatible"], true);

    let deleted = run("delete --yes");
    assert_eq!(deleted["deleted"], true);
    assert!(deleted["archive_bucket"].is_string(), "the archive stays: {deleted}");
    let (exit, _) = sandbox.raw("delete --yes");
    assert_eq!(exit, 1, "there is none any more");
}

/// A load test whose users are in Lambda workers: this very program, three times.
#[cfg(feature = "loadtest")]
#[test]
fn a_load_test_with_three_workers() {
    const LOADED: &str = "loaded";
    let Some((sandbox, _)) = sandbox(LOADED) else { return };
    let run = |line: &str| json(&sandbox, line);
    let (exit, _) = sandbox.raw("loadtest deploy");
    assert_eq!(exit, 1, "there is no table to load");
    run("deploy --no-aggregator --no-alarms");
    let (exit, _) = sandbox.raw("loadtest run --workers 3 --duration 2");
    assert_eq!(exit, 1, "there are no workers");

    let made = run("loadtest deploy -C examples/locust");
    assert_eq!((&made["outcome"], &made["stack"]), (&"created".into(), &"loaded-loadtest".into()));
    is_documented("`loadtest deploy`, `loadtest push`", &made);
    assert_eq!(run("loadtest deploy")["outcome"], "unchanged");
    assert_eq!(run("loadtest push -C examples/locust")["outcome"], "unchanged", "the same program");
    assert_eq!(run("loadtest deploy --lambda-timeout 2")["outcome"], "updated");
    let listed = run("loadtest list");
    assert_eq!(listed["stacks"][0]["name"], "loaded-loadtest", "{listed}");
    assert_eq!(listed["stacks"][0]["table"], LOADED);
    is_documented("`loadtest list`", &listed);
    is_documented("workers stack", &listed["stacks"][0]);
    let limiters = run("list");
    assert!(!limiters.to_string().contains("loaded-loadtest"), "{limiters}");
    let (exit, _) = sandbox.raw("deploy --name loaded-loadtest --no-aggregator");
    assert_eq!(exit, 1, "the workers do not become a limiter");
    let (exit, _) = sandbox.raw("delete --name loaded-loadtest --yes");
    assert_eq!(exit, 1, "nor are they deleted as one");
    let (exit, _) = sandbox.raw("loadtest run --workers 3 --duration 110");
    assert_eq!(exit, 2, "longer than the workers may run");

    let used = || -> u64 {
        let of = |user: u32| {
            let (exit, text) =
                sandbox.raw(&format!("entity buckets loadtest-user-{user} --output json"));
            let buckets: Value = serde_json::from_str(&text).unwrap_or_default();
            let counted = buckets.pointer("/items/0/limits/0/consumed_milli");
            if exit == 0 { counted.and_then(Value::as_u64).unwrap_or(0) / 1_000 } else { 0 }
        };
        (0..7).map(of).sum()
    };
    let before = used();
    let report =
        run("loadtest run --scenario max-rps --users 7 --duration 3 --spawn-rate all --workers 3 \
         --json-file workers.json --html workers.html");
    let total = &report["total"];
    assert_eq!((&report["run"]["workers"], &report["run"]["processes"]), (&3.into(), &0.into()));
    assert_eq!((&report["complete"], &report["lost"]), (&true.into(), &0.into()), "{report}");
    assert_eq!(total["errors"], 0, "{total}");
    let granted = total["granted"].as_u64().expect("a number");
    assert!(granted > 20, "{total}");
    assert_eq!(used() - before, granted, "each grant of each worker took one token");
    assert_eq!(report["series"][1]["users"], 7, "{report}");
    assert!(sandbox.path("workers.html").exists());

    let text = "name = \"own\"\nlimits = [\"rpd:5/day\"]\ntake = { rpd = 1 }\nevery_ms = 100\n\
                users_per_entity = 100\nresource = \"own\"\n";
    std::fs::write(sandbox.path("own.toml"), text).expect("a file");
    let report =
        run("loadtest run --scenario own.toml --users 3 --duration 1 --spawn-rate all --workers 3");
    let total = &report["total"];
    assert_eq!((&total["granted"], &total["errors"]), (&5.into(), &0.into()), "{total}");
    assert!(total["refused"].as_u64().is_some_and(|count| count > 5), "{total}");

    let deleted = run("loadtest delete --yes");
    assert_eq!(deleted["deleted"], true);
    is_documented("`loadtest delete`", &deleted);
    let (exit, _) = sandbox.raw("loadtest delete --yes");
    assert_eq!(exit, 1, "there are none any more");
    run("acquire key-1 own -c rpd=1");
    run("delete --yes");
}

#[expect(clippy::disallowed_methods, reason = "another process takes its time")]
fn pause() {
    std::thread::sleep(Duration::from_millis(250));
}
