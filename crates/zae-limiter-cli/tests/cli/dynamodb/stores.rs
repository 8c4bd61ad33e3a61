//! How a stack is named, and the few answers that are not those of a file.

use insta::assert_snapshot;
use serde_json::json;

use super::{STACK, Stack};

/// Where it is, said in every way there is: each of them reaches the same limits.
#[test]
fn every_way_to_name_a_stack() {
    let stack = Stack::new();
    assert_eq!(stack.sandbox.raw("system set-defaults -l rpm:10/day").0, 0);
    let endpoint = stack.engine.endpoint().to_owned();
    let Stack { engine: _engine, sandbox } = stack;
    let sandbox = sandbox.variable("ZAEL_STORE", "");
    for flags in [
        format!("--store dynamodb:{STACK}?region=us-east-1&endpoint={endpoint}"),
        format!("--store dynamodb:{STACK}?endpoint={endpoint}"),
        format!("--store dynamodb:{STACK} --region us-east-1 --endpoint-url {endpoint}"),
        format!(
            "--store dynamodb:{STACK}?region=nowhere-1&endpoint=http://127.0.0.1:1 --region us-east-1 --endpoint-url {endpoint}"
        ),
        format!("--name {STACK} --region us-east-1 --endpoint-url {endpoint}"),
        format!("-n {STACK} --endpoint-url {endpoint}"),
    ] {
        for line in [
            format!("{flags} available key-1 gpt-4 -c rpm=1"),
            format!("available key-1 gpt-4 -c rpm=1 {flags}"),
        ] {
            assert!(
                sandbox.run(&line).starts_with("exit 0\n--- stdout\nwould be granted\n"),
                "{line}: {}",
                sandbox.run(&line)
            );
        }
    }
    for (name, value) in
        [("ZAEL_STORE", format!("dynamodb:{STACK}")), ("ZAEL_STACK", STACK.to_owned())]
    {
        for url in ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_DYNAMODB"] {
            let mut command = sandbox.command(&["available", "key-1", "gpt-4", "-c", "rpm=1"]);
            let output = command
                .env(name, &value)
                .env(url, &endpoint)
                .env("AWS_REGION", "us-east-1")
                .output()
                .expect("the binary starts");
            assert_eq!(output.status.code(), Some(0), "{name}, {url}: {output:?}");
        }
    }
}

#[test]
fn a_store_can_not_be_named_twice() {
    let stack = Stack::missing();
    assert_snapshot!(stack.run("--name other --store memory: system get-defaults"), @"
    exit 2
    --- stderr
    error: the argument '--name <STACK>' cannot be used with '--store <URL>'

    Usage: zae-limiter --name <STACK> <COMMAND>

    For more information, try '--help'.
    ");
    assert_snapshot!(stack.run("--store memory: --region us-east-1 system get-defaults"), @"
    exit 2
    --- stderr
    error: --region is for DynamoDB, and another store is used
    hint: name the stack with --name STACK or --store dynamodb:STACK
    ");
    assert_snapshot!(stack.run("--store sqlite:x.db --endpoint-url http://127.0.0.1:1 system get-defaults"), @"
    exit 2
    --- stderr
    error: --endpoint-url is for DynamoDB, and another store is used
    hint: name the stack with --name STACK or --store dynamodb:STACK
    ");
}

#[test]
fn a_stack_is_no_file() {
    let stack = Stack::new();
    assert_snapshot!(stack.run("status"), @"
    exit 0
    --- stdout
    stack      cli
    region     us-east-1
    endpoint   http://127.0.0.1:[PORT]
    state      ACTIVE
    latency    [..]
    schema     0.10.0
    items      4 (counted by DynamoDB every few hours)
    size       [..]
    billing    on demand
    expiry     yes
    stream     yes
    worker     none was seen
    namespace  default
    disabled   nothing

    INDEX  STATE
    GSI1   ACTIVE
    GSI2   ACTIVE
    GSI3   ACTIVE
    GSI4   ACTIVE
    ");
    assert_snapshot!(stack.run("backup copy.db --output json"), @r#"
    exit 2
    --- stderr
    {"error":{"kind":"usage","message":"this command works on SQLite files; cli is a DynamoDB stack","hint":"name a file with --store sqlite:PATH"}}
    "#);
    assert_snapshot!(stack.run("restore copy.db --yes --output json"), @r#"
    exit 2
    --- stderr
    {"error":{"kind":"usage","message":"this command works on SQLite files; cli is a DynamoDB stack","hint":"name a file with --store sqlite:PATH"}}
    "#);
    assert!(!stack.sandbox.path("copy.db").exists());
}

/// A file counts in the transaction of the take; a table is counted by an aggregator, so what it
/// has not written is not there.
#[test]
fn usage_is_what_an_aggregator_has_written() {
    let stack = Stack::new();
    assert_eq!(stack.sandbox.raw("acquire key-1 gpt-4 -c tpm=7 -l tpm:100/day").0, 0);
    assert_snapshot!(stack.run("usage list --entity-id key-1"), @"
    exit 0
    --- stdout
    no usage
    --- stderr
    note: no worker has counted the usage of cli yet: `zae-limiter local up --name cli --port [PORT]` starts one
    ");
    assert_snapshot!(stack.run("usage summary --resource gpt-4"), @"
    exit 0
    --- stdout
    no usage
    --- stderr
    note: no worker has counted the usage of cli yet: `zae-limiter local up --name cli --port [PORT]` starts one
    note: summed over all entities: with cascades a call counts for each member of its chain
    ");
    let namespace = stack.namespace("default");
    for (entity, window, tokens) in [
        ("key-1", "2026-01-01T14:00:00Z", 5),
        ("key-1", "2026-01-01T15:00:00Z", 7),
        ("key-2", "2026-01-01T15:00:00Z", 1),
    ] {
        let item = json!({
            "PK": {"S": format!("{namespace}/ENTITY#{entity}")}, "SK": {"S": format!("#USAGE#gpt-4#{window}")},
            "entity_id": {"S": entity}, "resource": {"S": "gpt-4"}, "window": {"S": "hourly"}, "window_start": {"S": window},
            "tpm": {"N": tokens.to_string()}, "total_events": {"N": "1"},
            "GSI2PK": {"S": format!("{namespace}/RESOURCE#gpt-4")}, "GSI2SK": {"S": format!("USAGE#{window}#{entity}")},
        });
        stack.engine.call("PutItem", &json!({"TableName": STACK, "Item": item})).ok();
    }
    assert_snapshot!(stack.run("usage list --entity-id key-1"), @"
    exit 0
    --- stdout
    WINDOW                ENTITY  RESOURCE  LIMIT  USED  GRANTS
    2026-01-01T14:00:00Z  key-1   gpt-4     tpm       5       1
    2026-01-01T15:00:00Z  key-1   gpt-4     tpm       7       1
    ");
    assert_snapshot!(stack.run("usage list --resource gpt-4 --limit 1 --output json"), @r#"
    exit 0
    --- stdout
    {"items":[{"entity_id":"key-1","resource":"gpt-4","window":"hourly","window_start":"2026-01-01T14:00:00Z","counters":{"tpm":5},"total_events":1}],"next":"1767276000000#key-1#gpt-4"}
    --- stderr
    {"note":"there is more; go on with --cursor '1767276000000#key-1#gpt-4'"}
    "#);
    assert_snapshot!(stack.run("usage list --resource gpt-4 --plot"), @"
    exit 0
    --- stdout
    tpm hourly of all entities on gpt-4
    2026-01-01 14:00  ████████████████████████████████████▉  5
    2026-01-01 15:00  ███████████████████████████████████████████████████████████  8
    --- stderr
    note: summed over all entities: with cascades a call counts for each member of its chain
    ");
    assert_snapshot!(stack.run("usage summary --entity-id key-1 --resource gpt-4 --output json"), @r#"
    exit 0
    --- stdout
    {"entity_id":"key-1","resource":"gpt-4","window":"hourly","snapshots":2,"first_window":"2026-01-01T14:00:00Z","last_window":"2026-01-01T15:00:00Z","limits":[{"limit_name":"tpm","total":12,"average":6}]}
    "#);
    assert_snapshot!(stack.run("usage summary --resource gpt-4 --start 2026-01-01T15:00:00Z"), @"
    exit 0
    --- stdout
    entity    all
    resource  gpt-4
    windows   2 hourly
    first     2026-01-01T15:00:00Z
    last      2026-01-01T15:00:00Z

    LIMIT  TOTAL  AVERAGE
    tpm        8        4
    --- stderr
    note: summed over all entities: with cascades a call counts for each member of its chain
    ");
    assert_snapshot!(stack.run("usage list --entity-id key-1 --window daily"), @"
    exit 0
    --- stdout
    no usage
    --- stderr
    note: no worker has counted the usage of cli yet: `zae-limiter local up --name cli --port [PORT]` starts one
    ");
}

/// What both products record, in the words both of them read. A table is made with its namespace,
/// which a file has from the start.
#[test]
fn audit_events_that_the_python_package_reads_too() {
    let stack = Stack::new();
    for line in [
        // So slow that a reset gives back whole tokens, however long the test takes.
        "system set-defaults -l rpm:10/10000day -l tpm:1000/10000day --on-unavailable allow",
        "entity create key-1",
        "acquire key-1 gpt-4 -c rpm=4 -c tpm=100",
        "entity reset key-1 -r gpt-4 --yes",
        "entity delete key-1 --yes",
    ] {
        assert_eq!(stack.sandbox.raw(line).0, 0, "{line}");
    }
    let id = stack.namespace("default");
    assert_snapshot!(stack.run("audit list --system").replace(&id, "[ID]"), @"
    exit 0
    --- stdout
    TIME  ACTION                WHO     RESOURCE  DETAILS
    [TIME]  limits_set            tester  -         limit=rpm:10/10000day, tpm:1000/10000day on_unavailable=allow
    [TIME]  namespace_registered  -       -         id=[ID] namespace=default
    ");
    assert_snapshot!(stack.run("audit list --entity-id key-1"), @"
    exit 0
    --- stdout
    TIME  ACTION          WHO     RESOURCE  DETAILS
    [TIME]  entity_deleted  tester  -         buckets=1 complete=true configs=0 records_deleted=2
    [TIME]  bucket_reset    tester  gpt-4     amounts={rpm: 4, tpm: 100} shards=1
    [TIME]  entity_created  tester  -         cascade=false name=key-1
    ");
}

/// How many records a namespace has is a matter of the store.
#[test]
fn a_purge_leaves_nothing_behind() {
    let stack = Stack::new();
    for line in [
        "namespace register team",
        "-N team system set-defaults -l rpm:3/day",
        "-N team entity create org",
        "-N team acquire org gpt-4 -c rpm=1",
        "namespace delete team --yes",
    ] {
        assert_eq!(stack.sandbox.raw(line).0, 0, "{line}");
    }
    let id = stack.namespace("team");
    let purge = |flags: &str| {
        stack.run(&format!("namespace purge {id} --yes {flags}")).replace(&id, "[ID]")
    };
    assert_snapshot!(purge(""), @"
    exit 0
    --- stdout
    purged namespace [ID] (records: 7)
    ");
    assert_snapshot!(purge("--output json"), @r#"
    exit 1
    --- stderr
    {"error":{"kind":"not_found","message":"there is no namespace [ID]; list the orphans to see those there are"}}
    "#);
    assert_snapshot!(stack.run("namespace orphans"), @"
    exit 0
    --- stdout
    no deleted namespaces
    ");
    let scan = stack.engine.call("Scan", &json!({"TableName": STACK})).ok();
    let left = scan["Items"]
        .as_array()
        .expect("items")
        .iter()
        .filter(|item| item["PK"]["S"].as_str().is_some_and(|pk| pk.starts_with(&id)));
    assert_eq!(left.count(), 0);
}

/// An index lags: the answer says how many buckets were reached, and when the others are.
#[test]
fn a_flag_says_how_far_it_has_come() {
    let stack = Stack::new();
    for line in ["system set-defaults -l rpm:10/day", "acquire key-1 gpt-4 -c rpm=1"] {
        assert_eq!(stack.sandbox.raw(line).0, 0, "{line}");
    }
    assert_snapshot!(stack.run("entity disable key-1"), @"
    exit 0
    --- stdout
    disabled entity key-1 (1 existing bucket; any the index does not list yet follow within 65 s)
    --- stderr
    note: key-1 is not a created entity; it is remembered under this name all the same
    note: this takes 2s: buckets are looked for twice, because their index lags behind
    ");
    assert_snapshot!(stack.run("entity enable key-1 --output json"), @r#"
    exit 0
    --- stdout
    {"level":"entity_default","entity_id":"key-1","disabled":false,"buckets":1,"binds_within_seconds":65}
    --- stderr
    {"note":"key-1 is not a created entity; it is remembered under this name all the same"}
    {"note":"this takes 2s: buckets are looked for twice, because their index lags behind"}
    {"note":"running processes see this within their config-cache TTL (60s unless set otherwise) and 5s"}
    "#);
}
