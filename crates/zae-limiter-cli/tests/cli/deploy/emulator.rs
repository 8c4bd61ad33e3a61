//! From nothing to a running stack and back, on an emulator of AWS: `.ci/deploy` starts one and
//! names it in `ZAEL_TEST_AWS_ENDPOINT`. Without that variable there is nobody to deploy to.

mod aws;
mod upgrades;

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use zae_limiter_deploy::elf;

use self::aws::Aws;
use crate::support::Sandbox;

const STACK: &str = "emulated";
const FUNCTION: &str = "emulated-aggregator";

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
fn sandbox(stack: &str) -> Option<(Sandbox, Aws)> {
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
    Some((sandbox, Aws::at(&endpoint)))
}

/// What a line prints, as JSON; it must succeed.
#[track_caller]
fn json(sandbox: &Sandbox, line: &str) -> Value {
    let words: Vec<&str> = line.split_whitespace().chain(["--output", "json"]).collect();
    let output = sandbox.command(&words).output().expect("the binary starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {said}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{line}: {error}: {said}"))
}

/// Runs words and kills the program with SIGKILL as soon as it says `step`.
#[track_caller]
fn killed(sandbox: &Sandbox, words: &[&str], step: &str) {
    let mut command = sandbox.command(words);
    let mut child =
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the binary starts");
    let lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    let mut said = Vec::new();
    for line in lines.map_while(Result::ok) {
        let is_step = line.contains(step);
        said.push(line);
        if is_step {
            child.kill().expect("it is killed");
            break;
        }
    }
    let status = child.wait().expect("it ends");
    assert!(!status.success(), "{step} was never said: {said:?}");
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
        killed(&sandbox, &deploy, step);
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

/// As Terraform makes it: the template with its parameters, and no tag of a version.
#[test]
fn a_stack_of_terraform_is_left_to_it_and_its_table_is_made_ready() {
    let Some((sandbox, aws)) = sandbox("applied") else { return };
    let form = [
        ("Action", "CreateStack"),
        ("Version", "2010-05-15"),
        ("StackName", "applied"),
        ("TemplateBody", zae_limiter_deploy::TEMPLATE),
        ("Capabilities.member.1", "CAPABILITY_NAMED_IAM"),
        ("Tags.member.1.Key", "ManagedBy"),
        ("Tags.member.1.Value", "zae-limiter"),
    ];
    let made = aws.cloudformation(&form);
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
    aws.cloudformation(&gone);
}

/// What a function of this program runs: the file of the program, without symbols.
fn this_program() -> Vec<u8> {
    let file = std::fs::read(env!("CARGO_BIN_EXE_zae-limiter")).expect("the program");
    elf::stripped(&file, &elf::Elf::read(&file).expect("an executable"))
}

/// A hash in hexadecimal as Lambda writes it.
fn base64_of(hexadecimal: &str) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits: String = hexadecimal
        .chars()
        .map(|digit| format!("{:04b}", digit.to_digit(16).expect("hexadecimal")))
        .collect();
    let digit = |six: &[u8]| {
        let six = format!("{:0<6}", String::from_utf8_lossy(six));
        char::from(DIGITS[usize::from_str_radix(&six, 2).expect("bits")])
    };
    let digits: String = bits.as_bytes().chunks(6).map(digit).collect();
    let padding = digits.len().next_multiple_of(4) - digits.len();
    digits + &"=".repeat(padding)
}

/// An archive that is to go with its stack goes with all that is in it, however it got there.
#[test]
fn an_archive_goes_with_its_stack_if_that_was_chosen() {
    let Some((sandbox, aws)) = sandbox("archived") else { return };
    let deploy = "deploy --lambda-binary /bin/true";
    assert_eq!(json(&sandbox, deploy)["outcome"], "created");
    // The emulator takes every change of a bucket for one that may replace it.
    let chosen = format!("{deploy} --archive-on-delete empty --allow-data-loss");
    assert_eq!(json(&sandbox, &chosen)["outcome"], "updated", "the choice is a change");
    let described = aws.stack("archived");
    let output = "<OutputKey>AuditArchiveBucketName</OutputKey><OutputValue>";
    let bucket = described.split(output).nth(1).and_then(|rest| rest.split('<').next());
    let bucket = bucket.expect("a bucket").to_owned();
    // More than S3 lists and deletes at once, with older versions and what was deleted before.
    let versioning = "<VersioningConfiguration xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
                      <Status>Enabled</Status></VersioningConfiguration>";
    assert_eq!(aws.s3(&format!("PUT /{bucket}?versioning"), versioning), 200);
    for number in 0..1_003 {
        assert_eq!(aws.s3(&format!("PUT /{bucket}/audit/{number}.gz"), "events"), 200);
    }
    assert_eq!(aws.s3(&format!("PUT /{bucket}/audit/7.gz"), "again"), 200);
    assert_eq!(aws.s3(&format!("DELETE /{bucket}/audit/8.gz"), ""), 204);
    assert_eq!(aws.s3(&format!("HEAD /{bucket}"), ""), 200);
    let deleted = json(&sandbox, "delete --yes");
    assert_eq!(deleted["deleted"], true);
    assert_eq!(deleted["archive_bucket"], Value::Null, "{deleted}");
    assert_eq!(aws.s3(&format!("HEAD /{bucket}"), ""), 404, "the bucket is gone");
}

#[test]
fn from_deploy_to_delete() {
    let Some((sandbox, aws)) = sandbox(STACK) else { return };
    let run = |line: &str| json(&sandbox, line);

    let first = run("deploy -N tenant-a");
    assert_eq!(first["outcome"], "created");
    let (function, zip) = aws.function(FUNCTION);
    let deployed = aws::program_in(&zip);
    assert_eq!(deployed.len(), this_program().len());
    assert!(deployed == this_program(), "the function is this very program");
    // The key that the stack has is the hash of what the function runs, as AWS reckoned it.
    let sha256 = first["code_sha256"].as_str().expect("a hash");
    assert_eq!(aws.parameter(STACK, "LambdaCodeKey"), format!("{sha256}.zip"));
    assert_eq!(function["CodeSha256"], base64_of(sha256).as_str());
    assert_eq!(function["MemorySize"], 256, "{function}");
    let again = run("deploy -N tenant-a");
    assert_eq!(again["outcome"], "unchanged", "the same options change nothing");

    let listed = run("list");
    is_documented("stack", &listed["stacks"][0]);
    let names = listed["stacks"].as_array().expect("a list");
    assert!(names.iter().any(|stack| stack["name"] == STACK), "{listed}");

    // A second tenant, by a command.
    assert_eq!(run("namespace register tenant-b")["items"][0]["status"], "active");
    for (tenant, takes) in [("tenant-a", 7), ("tenant-b", 3)] {
        run(&format!("system set-defaults -l rpm:100 -N {tenant}"));
        for _ in 0..takes {
            run(&format!("acquire key-1 gpt-4 -c rpm=1 -N {tenant}"));
        }
        let buckets = run(&format!("entity buckets key-1 -N {tenant}"));
        let consumed = &buckets["items"][0]["limits"][0]["consumed_milli"];
        assert_eq!(consumed, takes * 1_000, "{tenant} has its own: {buckets}");
    }
    // The function counts, which is this very program. The emulator delivers within seconds.
    let counted_in = |tenant: &str| {
        let usage = run(&format!("usage list -e key-1 -N {tenant} -w hourly"));
        let rows = usage["items"].as_array().cloned().unwrap_or_default();
        let sum = |of: fn(&Value) -> i64| rows.iter().map(of).sum::<i64>();
        let used = |row: &Value| row["counters"]["rpm"].as_i64().unwrap_or(0);
        (sum(used), sum(|row| row["total_events"].as_i64().unwrap_or(0)))
    };
    let counted = || (counted_in("tenant-a"), counted_in("tenant-b"));
    let is_counted = (0..120).any(|_| {
        let done = counted() == ((7, 7), (3, 3));
        if !done {
            pause();
        }
        done
    });
    assert!(is_counted, "{:?}", counted());

    let changed = run("deploy -N tenant-a --lambda-memory 512 --tag team=limits");
    assert_eq!(changed["outcome"], "updated", "a changed option changes the stack");
    let (function, same) = aws.function(FUNCTION);
    assert_eq!(function["MemorySize"], 512, "{function}");
    assert!(same == zip, "and nothing of the code");
    let status = run("status");
    assert_eq!(status["function_version"], env!("CARGO_PKG_VERSION"));
    assert!(status["stack_status"].as_str().is_some_and(|it| it.ends_with("_COMPLETE")));
    let upgraded = run("upgrade");
    assert_eq!(upgraded["steps"][1]["state"], "nothing to do", "{upgraded}");
    assert_eq!(run("check")["compatible"], true);

    let deleted = run("delete --yes");
    assert_eq!(deleted["deleted"], true);
    let archive = deleted["archive_bucket"].as_str().expect("the archive stays");
    assert_eq!(aws.s3(&format!("HEAD /{archive}"), ""), 200, "and is there");
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
