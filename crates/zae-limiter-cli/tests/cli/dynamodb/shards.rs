//! What an operator sees of buckets that are spread over several items.

use insta::assert_snapshot;
use serde_json::Value;
use zae_limiter::{RateLimiter, Request};

use super::{STACK, Stack};
use crate::support::Sandbox;

/// A stack with a bucket in four pieces, 30 of 1 000 tokens taken, and one in one piece.
fn stack() -> Stack {
    let stack = Stack::new();
    for line in [
        "system set-defaults -l rpm:1000/day -l img:10/day",
        "acquire calm gpt-4 -c rpm=1",
        "acquire key-1 embed -c rpm=2",
    ] {
        assert_eq!(stack.sandbox.raw(line).0, 0, "{line}");
    }
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let split = |options: &mut zae_limiter::dynamodb::DynamoOptions| options.born_split = 4;
        let store = stack.engine.stack(STACK).with_options(split).connect().await;
        let limiter = RateLimiter::builder(store.expect("the stack is there")).build();
        let limiter = limiter.expect("a limiter");
        for _ in 0..10 {
            let lease = limiter
                .acquire(Request::new("key-1", "gpt-4").take("rpm", 3))
                .await
                .expect("granted");
            lease.commit().await.expect("committed");
        }
        limiter.close().await;
    });
    stack
}

fn json(stack: &Stack, line: &str) -> Value {
    let (exit, json) = stack.sandbox.raw(line);
    assert_eq!(exit, 0, "{line}: {json}");
    serde_json::from_str(&json).expect("JSON")
}

#[test]
fn buckets_show_their_shards_on_request() {
    let stack = stack();
    // What a shard has taken depends on the draw; the sum does not.
    let shown = stack.run("entity buckets key-1 --shards");
    for row in ["gpt-4     0 of 4  img", "gpt-4     3 of 4  rpm", "embed     0 of 1  rpm"] {
        assert!(shown.contains(row), "{row}: {shown}");
    }
    assert!(!shown.contains("wcu"), "{shown}");
    let listed = json(&stack, "entity buckets key-1 --shards --output json");
    let split = &listed["items"][1];
    assert_eq!(split["resource"], "gpt-4");
    let shards = split["shards"].as_array().expect("a list");
    let sum = |limit: usize, field: &str| -> i64 {
        shards.iter().map(|shard| shard["limits"][limit][field].as_i64().expect("a number")).sum()
    };
    assert_eq!((shards.len(), &shards[2]["shard"], &shards[2]["of"]), (4, &2.into(), &4.into()));
    assert_eq!(shards[1]["limits"][1]["limit_name"], "rpm");
    assert_eq!((sum(1, "capacity_milli"), sum(1, "consumed_milli")), (1_000_000, 30_000));
    assert_eq!(sum(0, "capacity_milli"), 10_000, "a small limit is all on shard 0");
    assert_eq!(split["limits"][1]["consumed_milli"], 30_000);
    // The listing itself says nothing of shards.
    let plain = json(&stack, "entity buckets key-1 --output json");
    assert!(plain["items"][1].get("shards").is_none(), "{plain}");
    // Page two.
    let first = json(&stack, "entity buckets key-1 --shards --limit 1 --output json");
    let cursor = first["next"].as_str().expect("a second page");
    let second = json(
        &stack,
        &format!("entity buckets key-1 --shards --limit 1 --cursor {cursor} --output json"),
    );
    assert_eq!(second["items"][0]["resource"], "gpt-4");
}

#[test]
fn a_file_has_no_shards_to_show() {
    let sandbox = Sandbox::with_store();
    assert_eq!(sandbox.raw("system set-defaults -l rpm:10").0, 0);
    assert_snapshot!(sandbox.run("entity buckets key-1 --shards"), @"
    exit 2
    --- stderr
    error: --shards shows over how many items a stack spreads a bucket; the file [FOLDER]/limits.db keeps it in one piece
    hint: name a stack with --name, or leave --shards out
    ");
}

#[test]
fn a_status_names_the_buckets_with_shards() {
    let stack = stack();
    let shown = stack.run("status");
    assert!(shown.contains("HOT BUCKET OF  RESOURCE  SHARDS  TAKES+FAILED/S"), "{shown}");
    assert!(shown.contains("key-1          gpt-4          4             0.0"), "{shown}");
    assert!(!shown.contains("calm"), "{shown}");
    let status = json(&stack, "status --output json");
    assert_eq!(
        (&status["hottest"][0]["shards"], &status["hottest_complete"]),
        (&4.into(), &true.into())
    );
    assert_eq!(status["hottest"].as_array().map(Vec::len), Some(1));
}

/// A worker renews its lease every five seconds: one that was not seen for minutes does not run.
#[test]
fn a_worker_that_gives_no_sign_of_life_is_probably_down() {
    let stack = Stack::new();
    let seen = serde_json::json!({"N": "1000"});
    stack.overwrite("_/SYSTEM#", "#CHECKPOINT#shardId-1", "seen", &seen);
    let shown = stack.run("status");
    assert!(shown.contains("s ago, probably down, 0s behind"), "{shown}");
    assert!(shown.contains("s ago and has probably ended: `zae-limiter local up"), "{shown}");
    let status = json(&stack, "status --output json --quiet");
    assert_eq!(status["worker"]["silent"], true);
    let list = json(&stack, "usage list --output json --quiet");
    let note = list["note"].as_str().expect("a note");
    assert!(note.contains("has probably ended: `zae-limiter local up"), "{note}");
}

/// A fleet is upgraded with every process told to split nothing, the command line too.
#[test]
fn a_variable_says_how_many_shards_a_bucket_gets() {
    let stack = Stack::new();
    assert_snapshot!(stack.run("aggregate --once --shards-max 3"), @"
    exit 2
    --- stderr
    error: invalid value '3' for '--shards-max <NUMBER>': write 1, 2, 4, 8, 16 or 32

    For more information, try '--help'.
    ");
    for wrong in ["0", "3", "64", "x", "+4"] {
        let sandbox = Sandbox::new().variable("ZAEL_SHARDS_MAX", wrong);
        let shown = sandbox.run("--name s entity list");
        let told = "for the variable ZAEL_SHARDS_MAX: write 1, 2, 4, 8, 16 or 32";
        assert!(shown.contains(told), "{shown}");
    }
    // An item that takes no more writes for an hour is split by the next take, or is not.
    assert_eq!(stack.sandbox.raw("system set-defaults -l rpm:1000/day").0, 0);
    assert_eq!(stack.sandbox.raw("acquire key-1 gpt-4 -c rpm=1").0, 0);
    let pk = format!("{}/BUCKET#key-1#gpt-4#0", stack.namespace("default"));
    stack.overwrite(&pk, "#STATE", "b_wcu_tk", &serde_json::json!({"N": "-3600000000"}));
    let Stack { engine: _engine, sandbox } = stack;
    let sandbox = sandbox.variable("ZAEL_SHARDS_MAX", "1");
    assert_eq!(sandbox.raw("acquire key-1 gpt-4 -c rpm=1").0, 5, "busy");
    let sandbox = sandbox.variable("ZAEL_SHARDS_MAX", "2");
    assert_eq!(sandbox.raw("acquire key-1 gpt-4 -c rpm=1").0, 0);
}
