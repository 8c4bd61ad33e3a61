//! `acquire` and `available`.

use insta::assert_snapshot;
use zae_limiter::{Level, NewEntity};

use crate::support::Sandbox;

#[test]
fn a_grant() {
    let sandbox = Sandbox::with_defaults("rpm:100/day tpm:5000/day");
    assert_snapshot!(sandbox.run("acquire key-1 gpt-4 -c rpm=1 -c tpm=900"), @"
    exit 0
    --- stdout
    granted

    ENTITY  LIMIT  CAPACITY  AVAILABLE  REQUESTED  WAIT
    key-1   rpm         100         99          1  -
    key-1   tpm        5000       4100        900  -
    --- stderr
    note: key-1 is not a created entity; its limits come from the system defaults
    ");
}

#[test]
fn a_grant_as_json() {
    let sandbox = Sandbox::with_defaults("rpm:100/day tpm:5000/day");
    assert_snapshot!(sandbox.run("acquire key-1 gpt-4 -c rpm=1 -c tpm=900 --output json"), @r#"
    exit 0
    --- stdout
    {"granted":true,"retry_after_ms":0,"limits":[{"entity_id":"key-1","resource":"gpt-4","limit_name":"rpm","capacity":100,"available":99,"requested":1,"exceeded":false,"retry_after_ms":0},{"entity_id":"key-1","resource":"gpt-4","limit_name":"tpm","capacity":5000,"available":4100,"requested":900,"exceeded":false,"retry_after_ms":0}],"source":"system","created":false}
    --- stderr
    {"note":"key-1 is not a created entity; its limits come from the system defaults"}
    "#);
}

#[test]
fn state_persists_from_one_process_to_the_next() {
    let sandbox = Sandbox::with_defaults("rpm:10/day");
    let available = |line: &str| {
        let (code, json) = sandbox.raw(line);
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        (
            code,
            json["granted"].as_bool().expect("a decision"),
            json["limits"][0]["available"].as_i64().expect("a number"),
        )
    };
    assert_eq!(available("acquire key-1 gpt-4 -c rpm=4 --output json"), (0, true, 6));
    assert_eq!(available("acquire key-1 gpt-4 -c rpm=4 --output json"), (0, true, 2));
    assert_eq!(available("acquire key-1 gpt-4 -c rpm=4 --output json"), (3, false, 2));
    assert_eq!(available("acquire key-1 gpt-4 -c rpm=2 --output json"), (0, true, 0));
}

#[test]
fn a_refusal_shows_every_limit_and_the_wait() {
    let sandbox = Sandbox::with_defaults("rpm:10/day tpm:5000/day");
    sandbox.run("acquire key-1 gpt-4 -c rpm=9");
    assert_snapshot!(sandbox.run("acquire key-1 gpt-4 -c rpm=9 -c tpm=100"), @"
    exit 3
    --- stdout
    refused: rpm of key-1, could pass in 19h 12m

    ENTITY  LIMIT  CAPACITY  AVAILABLE  REQUESTED  WAIT
    key-1   rpm          10          1          9  19h 12m
    key-1   tpm        5000       5000        100  -
    --- stderr
    note: key-1 is not a created entity; its limits come from the system defaults
    ");
    assert_snapshot!(sandbox.run("acquire key-1 gpt-4 -c rpm=9 -c tpm=100 --output json"), @r#"
    exit 3
    --- stdout
    {"granted":false,"retry_after_ms":[MS],"limits":[{"entity_id":"key-1","resource":"gpt-4","limit_name":"rpm","capacity":10,"available":1,"requested":9,"exceeded":true,"retry_after_ms":[MS]},{"entity_id":"key-1","resource":"gpt-4","limit_name":"tpm","capacity":5000,"available":5000,"requested":100,"exceeded":false,"retry_after_ms":0}],"source":"system","created":false}
    --- stderr
    {"note":"key-1 is not a created entity; its limits come from the system defaults"}
    "#);
}

#[test]
fn a_request_that_can_never_pass() {
    let sandbox = Sandbox::with_defaults("rpm:10/day");
    assert_snapshot!(sandbox.run("acquire key-1 gpt-4 -c rpm=11"), @"
    exit 3
    --- stdout
    refused: 11 rpm exceeds the capacity of key-1 (10); this request can never be granted

    ENTITY  LIMIT  CAPACITY  AVAILABLE  REQUESTED  WAIT
    key-1   rpm          10         10         11  never
    --- stderr
    note: key-1 is not a created entity; its limits come from the system defaults
    ");
    assert_snapshot!(sandbox.run("acquire key-1 gpt-4 -c rpm=11 --output json"), @r#"
    exit 3
    --- stdout
    {"granted":false,"retry_after_ms":null,"limits":[{"entity_id":"key-1","resource":"gpt-4","limit_name":"rpm","capacity":10,"available":10,"requested":11,"exceeded":true,"retry_after_ms":null}],"source":"system","created":false}
    --- stderr
    {"note":"key-1 is not a created entity; its limits come from the system defaults"}
    "#);
}

#[test]
fn what_can_not_pass_in_time_is_refused_at_once() {
    let sandbox = Sandbox::with_defaults("rpm:10/day");
    sandbox.run("acquire key-1 gpt-4 -c rpm=10");
    assert_snapshot!(sandbox.run("acquire key-1 gpt-4 -c rpm=1 --wait 10s"), @"
    exit 3
    --- stdout
    refused: rpm of key-1, could pass in 2h 24m
    did not wait: 2h 24m is longer than --wait 10.0s allows

    ENTITY  LIMIT  CAPACITY  AVAILABLE  REQUESTED  WAIT
    key-1   rpm          10          0          1  2h 24m
    --- stderr
    note: key-1 is not a created entity; its limits come from the system defaults
    ");
}

#[test]
fn a_wait_that_ends_in_a_grant() {
    let sandbox = Sandbox::with_defaults("rps:1000/sec:1");
    // One token a millisecond: whether the second take waits or not, it is granted.
    assert_eq!(sandbox.raw("acquire key-1 gpt-4 -c rps=1 --wait 1m").0, 0);
    assert_eq!(sandbox.raw("acquire key-1 gpt-4 -c rps=1 --wait 1m").0, 0);
}

#[test]
fn what_was_really_used_is_recorded() {
    let sandbox = Sandbox::with_defaults("rpm:100/day tpm:5000/day");
    assert_snapshot!(sandbox.run("acquire key-1 gpt-4 -c rpm=1 -c tpm=900 --record tpm=100"), @"
    exit 0
    --- stdout
    granted

    ENTITY  LIMIT  CAPACITY  AVAILABLE  REQUESTED  WAIT
    key-1   rpm         100         99          1  -
    key-1   tpm        5000       4900        900  -
    --- stderr
    note: key-1 is not a created entity; its limits come from the system defaults
    ");
    assert_snapshot!(sandbox.run("acquire key-1 gpt-4 -c tpm=0 --record tpm=6000"), @"
    exit 0
    --- stdout
    granted

    ENTITY  LIMIT  CAPACITY  AVAILABLE  REQUESTED  WAIT
    key-1   tpm        5000      -1100          0  -
    --- stderr
    note: key-1 is not a created entity; its limits come from the system defaults
    ");
    assert_snapshot!(sandbox.run("available key-1 gpt-4"), @"
    exit 0
    --- stdout
    ENTITY  LIMIT  CAPACITY  AVAILABLE  REQUESTED  WAIT
    key-1   rpm         100         99          0  -
    key-1   tpm        5000      -1100          0  5h 17m
    --- stderr
    note: key-1 is not a created entity; its limits come from the system defaults
    ");
}

#[test]
fn only_what_is_taken_can_be_recorded() {
    let sandbox = Sandbox::with_defaults("rpm:100/day");
    assert_snapshot!(sandbox.run("acquire key-1 gpt-4 -c rpm=1 --record tpm=100"), @"
    exit 2
    --- stderr
    error: --record names tpm, which is not taken with -c
    hint: add -c tpm=0 to take nothing of it beforehand
    ");
}

#[test]
fn amounts_for_one_limit_add_up() {
    let sandbox = Sandbox::with_defaults("rpm:100/day");
    assert_snapshot!(sandbox.run("acquire key-1 gpt-4 -c rpm=1 -c rpm=2"), @"
    exit 0
    --- stdout
    granted

    ENTITY  LIMIT  CAPACITY  AVAILABLE  REQUESTED  WAIT
    key-1   rpm         100         97          3  -
    --- stderr
    note: key-1 is not a created entity; its limits come from the system defaults
    ");
}

#[test]
fn limits_of_the_call_override_the_stored_ones() {
    let sandbox = Sandbox::with_defaults("rpm:100/day");
    assert_snapshot!(sandbox.run("acquire key-1 gpt-4 -c rpm=1 -l rpm:5/day"), @"
    exit 0
    --- stdout
    granted

    ENTITY  LIMIT  CAPACITY  AVAILABLE  REQUESTED  WAIT
    key-1   rpm           5          4          1  -
    --- stderr
    note: key-1 is not a created entity; its limits come from this call
    ");
}

#[test]
fn a_chain_is_taken_whole_or_not_at_all() {
    let sandbox = Sandbox::with_store();
    sandbox.run("entity create org");
    sandbox.run("entity create key-1 --parent org --cascade");
    sandbox.run("entity set-limits org -l rpm:5/day");
    sandbox.run("entity set-limits key-1 -l rpm:100/day");
    assert_snapshot!(sandbox.run("acquire key-1 gpt-4 -c rpm=3"), @"
    exit 0
    --- stdout
    granted

    ENTITY  LIMIT  CAPACITY  AVAILABLE  REQUESTED  WAIT
    key-1   rpm         100         97          3  -
    org     rpm           5          2          3  -
    ");
    assert_snapshot!(sandbox.run("acquire key-1 gpt-4 -c rpm=3"), @"
    exit 3
    --- stdout
    refused: rpm of org, could pass in 4h 48m

    ENTITY  LIMIT  CAPACITY  AVAILABLE  REQUESTED  WAIT
    key-1   rpm         100         97          3  -
    org     rpm           5          2          3  4h 48m
    ");
    assert_snapshot!(sandbox.run("available key-1 gpt-4"), @"
    exit 0
    --- stdout
    ENTITY  LIMIT  CAPACITY  AVAILABLE  REQUESTED  WAIT
    key-1   rpm         100         97          0  -
    org     rpm           5          2          0  -
    ");
}

#[test]
fn an_unknown_limit_is_an_error_that_lists_the_known_ones() {
    let sandbox = Sandbox::with_defaults("rpm:100/day tpm:5000/day");
    assert_snapshot!(sandbox.run("acquire key-1 gpt-4 -c rmp=1"), @"
    exit 1
    --- stderr
    error: no limit is called rmp for key-1 on gpt-4; there is rpm, tpm
    hint: `zae-limiter explain key-1 gpt-4` shows the limits and where they come from
    ");
    assert_snapshot!(sandbox.run("acquire key-1 gpt-4 -c rmp=1 --output json"), @r#"
    exit 1
    --- stderr
    {"error":{"kind":"invalid","message":"no limit is called rmp for key-1 on gpt-4; there is rpm, tpm","hint":"`zae-limiter explain key-1 gpt-4` shows the limits and where they come from"}}
    "#);
    assert_snapshot!(sandbox.run("available key-1 gpt-4 -c rmp=1"), @"
    exit 1
    --- stderr
    error: no limit is called rmp for key-1 on gpt-4; there is rpm, tpm
    hint: `zae-limiter explain key-1 gpt-4` shows the limits and where they come from
    ");
}

#[test]
fn without_any_limits_nothing_is_granted() {
    let sandbox = Sandbox::with_store();
    assert_snapshot!(sandbox.run("acquire key-1 gpt-4 -c rpm=1"), @"
    exit 1
    --- stderr
    error: no limits are configured for key-1 on gpt-4
    hint: set some with `zae-limiter system set-defaults -l rpm:100`, `zae-limiter resource set-defaults gpt-4 -l rpm:100` or `zae-limiter entity set-limits key-1 -l rpm:100`, or pass --limit to acquire
    ");
    assert_snapshot!(sandbox.run("acquire key-1 gpt-4 -c rpm=1 --output json"), @r#"
    exit 1
    --- stderr
    {"error":{"kind":"no_limits","message":"no limits are configured for key-1 on gpt-4","hint":"set some with `zae-limiter system set-defaults -l rpm:100`, `zae-limiter resource set-defaults gpt-4 -l rpm:100` or `zae-limiter entity set-limits key-1 -l rpm:100`, or pass --limit to acquire"}}
    "#);
    assert_snapshot!(sandbox.run("available key-1 gpt-4"), @"
    exit 1
    --- stderr
    error: no limits are configured for key-1 on gpt-4
    hint: set some with `zae-limiter system set-defaults -l rpm:100`, `zae-limiter resource set-defaults gpt-4 -l rpm:100` or `zae-limiter entity set-limits key-1 -l rpm:100`, or pass --limit to acquire
    ");
}

#[test]
fn what_is_disabled_is_an_error() {
    let sandbox = Sandbox::with_defaults("rpm:100/day");
    sandbox.limiter().disable(&Level::Resource("gpt-4".parse().unwrap())).unwrap();
    assert_snapshot!(sandbox.run("acquire key-1 gpt-4 -c rpm=1"), @"
    exit 4
    --- stderr
    error: key-1 on gpt-4 is disabled at level: resource gpt-4
    ");
    assert_snapshot!(sandbox.run("acquire key-1 gpt-4 -c rpm=1 --output json"), @r#"
    exit 4
    --- stderr
    {"error":{"kind":"disabled","message":"key-1 on gpt-4 is disabled at level: resource gpt-4"}}
    "#);
    assert_eq!(sandbox.raw("acquire key-1 gpt-3 -c rpm=1").0, 0);
}

#[test]
fn a_look_takes_nothing() {
    let sandbox = Sandbox::with_defaults("rpm:10/day tpm:5000/day");
    sandbox.run("acquire key-1 gpt-4 -c rpm=4");
    let first = sandbox.run("available key-1 gpt-4");
    assert_snapshot!(first, @"
    exit 0
    --- stdout
    ENTITY  LIMIT  CAPACITY  AVAILABLE  REQUESTED  WAIT
    key-1   rpm          10          6          0  -
    key-1   tpm        5000       5000          0  -
    --- stderr
    note: key-1 is not a created entity; its limits come from the system defaults
    ");
    sandbox.run("available key-1 gpt-4 -c rpm=5");
    assert_eq!(sandbox.run("available key-1 gpt-4"), first);
}

#[test]
fn a_look_as_json() {
    let sandbox = Sandbox::with_defaults("rpm:10/day");
    assert_snapshot!(sandbox.run("available key-1 gpt-4 --output json"), @r#"
    exit 0
    --- stdout
    {"granted":true,"retry_after_ms":0,"limits":[{"entity_id":"key-1","resource":"gpt-4","limit_name":"rpm","capacity":10,"available":10,"requested":0,"exceeded":false,"retry_after_ms":0}],"source":"system","created":false}
    --- stderr
    {"note":"key-1 is not a created entity; its limits come from the system defaults"}
    "#);
}

#[test]
fn a_look_with_amounts_says_whether_it_would_pass() {
    let sandbox = Sandbox::with_defaults("rpm:10/day");
    sandbox.run("acquire key-1 gpt-4 -c rpm=9");
    assert_snapshot!(sandbox.run("available key-1 gpt-4 -c rpm=1"), @"
    exit 0
    --- stdout
    would be granted

    ENTITY  LIMIT  CAPACITY  AVAILABLE  REQUESTED  WAIT
    key-1   rpm          10          1          1  -
    --- stderr
    note: key-1 is not a created entity; its limits come from the system defaults
    ");
    assert_snapshot!(sandbox.run("available key-1 gpt-4 -c rpm=9"), @"
    exit 3
    --- stdout
    would be refused: rpm of key-1, could pass in 19h 12m

    ENTITY  LIMIT  CAPACITY  AVAILABLE  REQUESTED  WAIT
    key-1   rpm          10          1          9  19h 12m
    --- stderr
    note: key-1 is not a created entity; its limits come from the system defaults
    ");
    assert_snapshot!(sandbox.run("available key-1 gpt-4 -c rpm=9 --output json"), @r#"
    exit 3
    --- stdout
    {"granted":false,"retry_after_ms":[MS],"limits":[{"entity_id":"key-1","resource":"gpt-4","limit_name":"rpm","capacity":10,"available":1,"requested":9,"exceeded":true,"retry_after_ms":[MS]}],"source":"system","created":false}
    --- stderr
    {"note":"key-1 is not a created entity; its limits come from the system defaults"}
    "#);
    assert_snapshot!(sandbox.run("available key-1 gpt-4 -c rpm=11"), @"
    exit 3
    --- stdout
    would be refused: 11 rpm exceeds the capacity of key-1 (10); this request can never be granted

    ENTITY  LIMIT  CAPACITY  AVAILABLE  REQUESTED  WAIT
    key-1   rpm          10          1         11  never
    --- stderr
    note: key-1 is not a created entity; its limits come from the system defaults
    ");
}

#[test]
fn debt_alone_refuses_nothing_that_was_not_asked() {
    let sandbox = Sandbox::with_defaults("rpm:10/day");
    sandbox.run("acquire key-1 gpt-4 -c rpm=1 --record rpm=20");
    let (code, json) = sandbox.raw("available key-1 gpt-4 --output json");
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (code, json["limits"][0]["available"].as_i64(), json["granted"].as_bool()),
        (0, Some(-10), Some(false))
    );
    assert_eq!(sandbox.raw("available key-1 gpt-4 -c rpm=0").0, 3);
}

#[test]
fn an_application_and_the_command_line_share_the_file() {
    let sandbox = Sandbox::with_defaults("rpm:10/day");
    let application = sandbox.limiter();
    let org = NewEntity {
        id: "org".parse().unwrap(),
        name: "Org".into(),
        parent: None,
        cascade: false,
        metadata: Default::default(),
    };
    application.create_entity(org).unwrap();
    let lease =
        application.acquire(zae_limiter::Request::new("org", "gpt-4").take("rpm", 7)).unwrap();
    lease.commit().unwrap();
    assert_eq!(sandbox.raw("acquire org gpt-4 -c rpm=4").0, 3);
    assert_eq!(sandbox.raw("acquire org gpt-4 -c rpm=3").0, 0);
    assert!(application.acquire(zae_limiter::Request::new("org", "gpt-4").take("rpm", 1)).is_err());
}
