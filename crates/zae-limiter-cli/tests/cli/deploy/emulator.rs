//! From nothing to a running stack and back, on an emulator of AWS: `.ci/deploy` starts one and
//! names it in `ZAEL_TEST_AWS_ENDPOINT`. Without that variable there is nobody to deploy to.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;

use crate::support::Sandbox;

const STACK: &str = "emulated";

#[test]
#[expect(clippy::disallowed_methods, reason = "whoever starts the emulator names it")]
fn from_deploy_to_delete() {
    let Ok(endpoint) = std::env::var("ZAEL_TEST_AWS_ENDPOINT") else {
        eprintln!("not run: ZAEL_TEST_AWS_ENDPOINT names no emulator; .ci/deploy starts one");
        return;
    };
    let sandbox = Sandbox::new()
        .variable("ZAEL_STORE", "")
        .variable("ZAEL_STACK", STACK)
        .variable("AWS_ENDPOINT_URL", &endpoint)
        .variable("AWS_ACCESS_KEY_ID", "test")
        .variable("AWS_SECRET_ACCESS_KEY", "test");
    let run = |line: &str| -> Value {
        let (exit, json) = sandbox.raw(&format!("{line} --output json"));
        assert_eq!(exit, 0, "{line}: {json}");
        serde_json::from_str(&json).unwrap_or_else(|error| panic!("{line}: {error}: {json}"))
    };

    let first = run("deploy -N tenant-a");
    assert_eq!(first["outcome"], "created");
    let info = run("lambda-export --info");
    assert_eq!(first["bootstrap_sha256"], info["bootstrap_sha256"], "this very program");
    let again = run("deploy -N tenant-a");
    assert_eq!(again["outcome"], "unchanged", "the same options change nothing");

    let listed = run("list");
    let fields: BTreeSet<&str> =
        listed["stacks"][0].as_object().expect("a stack").keys().map(String::as_str).collect();
    let documented = include_str!("../../../../../docs/json.md");
    let section = documented.split("### stack\n").nth(1).expect("a section");
    let section = section.split("\n### ").next().expect("a section");
    assert!(fields.iter().all(|field| section.contains(&format!("`{field}`"))), "{fields:?}");
    assert_eq!(listed["stacks"][0]["name"], STACK);

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

#[expect(clippy::disallowed_methods, reason = "another process takes its time")]
fn pause() {
    std::thread::sleep(Duration::from_millis(250));
}
