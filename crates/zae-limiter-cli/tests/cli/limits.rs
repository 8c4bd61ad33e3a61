//! Limits at the four levels.

use insta::assert_snapshot;
use zae_limiter::{AuditQuery, AuditSubject, Level, PageRequest};

use crate::support::Sandbox;

#[test]
fn system_defaults() {
    let sandbox = Sandbox::with_store();
    assert_snapshot!(sandbox.run("system set-defaults -l rpm:100/day -l tpm:10000/min:15000 --on-unavailable allow"), @"
    exit 0
    --- stdout
    level           system
    on unavailable  allow

    LIMIT       RATE  BURST
    rpm      100/day    100
    tpm    10000/min  15000
    --- stderr
    note: running processes see this within their config-cache TTL (60s unless set otherwise)
    ");
    assert_snapshot!(sandbox.run("system get-defaults"), @"
    exit 0
    --- stdout
    level           system
    on unavailable  allow

    LIMIT       RATE  BURST
    rpm      100/day    100
    tpm    10000/min  15000
    ");
    assert_snapshot!(sandbox.run("system get-defaults --output json"), @r#"
    exit 0
    --- stdout
    {"level":"system","limits":[{"name":"rpm","capacity":100,"refill_amount":100,"refill_period_seconds":86400,"text":"rpm:100/day"},{"name":"tpm","capacity":15000,"refill_amount":10000,"refill_period_seconds":60,"text":"tpm:10000/min:15000"}],"disabled":null,"on_unavailable":"allow","version":1}
    "#);
}

#[test]
fn setting_replaces_the_limits_and_keeps_the_policy() {
    let sandbox = Sandbox::with_store();
    sandbox.run("system set-defaults -l rpm:100 -l tpm:10 --on-unavailable allow");
    assert_snapshot!(sandbox.run("system set-defaults -l rpm:200 --output json"), @r#"
    exit 0
    --- stdout
    {"level":"system","limits":[{"name":"rpm","capacity":200,"refill_amount":200,"refill_period_seconds":60,"text":"rpm:200/min"}],"disabled":null,"on_unavailable":"allow","version":2,"no_longer_limited":[{"limit_name":"tpm","was":"10/min","level":"system","hidden":false}]}
    --- stderr
    {"note":"no longer limited here: tpm (was 10/min)"}
    {"note":"calls that still name tpm fail here, unless they cascade to an entity that has it; buckets remember what was used of it until refilled"}
    {"note":"running processes see this within their config-cache TTL (60s unless set otherwise)"}
    "#);
    assert_snapshot!(sandbox.run("system set-defaults -l rpm:200 --on-unavailable block"), @"
    exit 0
    --- stdout
    level           system
    on unavailable  block

    LIMIT     RATE  BURST
    rpm    200/min    200
    --- stderr
    note: running processes see this within their config-cache TTL (60s unless set otherwise)
    ");
}

#[test]
fn deleting_system_defaults_needs_a_yes_without_a_terminal() {
    let sandbox = Sandbox::with_defaults("rpm:100");
    assert_snapshot!(sandbox.run("system delete-defaults"), @"
    exit 2
    --- stderr
    error: this deletes the system defaults of namespace default and there is no terminal to ask on
    hint: pass --yes if that is meant
    ");
    assert_snapshot!(sandbox.run("system delete-defaults --output json"), @r#"
    exit 2
    --- stderr
    {"error":{"kind":"usage","message":"this deletes the system defaults of namespace default and there is no terminal to ask on","hint":"pass --yes if that is meant"}}
    "#);
    assert_eq!(sandbox.raw("system get-defaults").0, 0);
    assert_snapshot!(sandbox.run("system delete-defaults --yes"), @"
    exit 0
    --- stdout
    deleted the system defaults of namespace default
    --- stderr
    note: running processes see this within their config-cache TTL (60s unless set otherwise)
    ");
    assert_snapshot!(sandbox.run("system delete-defaults -y"), @"
    exit 0
    --- stdout
    nothing to delete: the system defaults of namespace default are not set
    ");
    assert_snapshot!(sandbox.run("system delete-defaults --yes --output json"), @r#"
    exit 0
    --- stdout
    {"deleted":false}
    "#);
    assert_snapshot!(sandbox.run("system get-defaults"), @"
    exit 1
    --- stderr
    error: nothing is stored at level: system
    hint: store limits with `zae-limiter system set-defaults -l rpm:100`
    ");
}

#[test]
fn deleting_as_json() {
    let sandbox = Sandbox::with_defaults("rpm:100");
    assert_snapshot!(sandbox.run("--output json system delete-defaults --yes"), @r#"
    exit 0
    --- stdout
    {"deleted":true}
    --- stderr
    {"note":"running processes see this within their config-cache TTL (60s unless set otherwise)"}
    "#);
}

#[test]
fn resource_defaults() {
    let sandbox = Sandbox::with_store();
    assert_snapshot!(sandbox.run("resource set-defaults gpt-4 -l rpm:100 -l x:5/30sec"), @"
    exit 0
    --- stdout
    level  resource gpt-4

    LIMIT     RATE  BURST
    rpm    100/min    100
    x      5/30sec      5
    --- stderr
    note: running processes see this within their config-cache TTL (60s unless set otherwise)
    ");
    assert_snapshot!(sandbox.run("resource get-defaults gpt-4 --output json"), @r#"
    exit 0
    --- stdout
    {"level":"resource","resource":"gpt-4","limits":[{"name":"rpm","capacity":100,"refill_amount":100,"refill_period_seconds":60,"text":"rpm:100/min"},{"name":"x","capacity":5,"refill_amount":5,"refill_period_seconds":30,"text":"x:5/30sec"}],"disabled":null,"on_unavailable":null,"version":1}
    "#);
    assert_snapshot!(sandbox.run("resource set-defaults gpt-4 -l rpm:50 --output json"), @r#"
    exit 0
    --- stdout
    {"level":"resource","resource":"gpt-4","limits":[{"name":"rpm","capacity":50,"refill_amount":50,"refill_period_seconds":60,"text":"rpm:50/min"}],"disabled":null,"on_unavailable":null,"version":2,"no_longer_limited":[{"limit_name":"x","was":"5/30sec","level":"resource gpt-4","hidden":false}]}
    --- stderr
    {"note":"no longer limited here: x (was 5/30sec)"}
    {"note":"calls that still name x fail here, unless they cascade to an entity that has it; buckets remember what was used of it until refilled"}
    {"note":"running processes see this within their config-cache TTL (60s unless set otherwise)"}
    "#);
    assert_snapshot!(sandbox.run("resource get-defaults gpt-4"), @"
    exit 0
    --- stdout
    level  resource gpt-4

    LIMIT    RATE  BURST
    rpm    50/min     50
    ");
}

#[test]
fn entity_limits_for_all_resources_and_for_one() {
    let sandbox = Sandbox::with_store();
    assert_snapshot!(sandbox.run("entity set-limits key-1 -l rpm:100"), @"
    exit 0
    --- stdout
    level  entity key-1

    LIMIT     RATE  BURST
    rpm    100/min    100
    --- stderr
    note: key-1 is not a created entity; it is remembered under this name all the same
    note: running processes see this within their config-cache TTL (60s unless set otherwise)
    ");
    assert_snapshot!(sandbox.run("entity set-limits key-1 --resource gpt-4 --limit rpm:10 --output json"), @r#"
    exit 0
    --- stdout
    {"level":"entity","entity_id":"key-1","resource":"gpt-4","limits":[{"name":"rpm","capacity":10,"refill_amount":10,"refill_period_seconds":60,"text":"rpm:10/min"}],"disabled":null,"on_unavailable":null,"version":2}
    --- stderr
    {"note":"key-1 is not a created entity; it is remembered under this name all the same"}
    {"note":"running processes see this within their config-cache TTL (60s unless set otherwise)"}
    "#);
    assert_snapshot!(sandbox.run("entity get-limits key-1 --output json"), @r#"
    exit 0
    --- stdout
    {"level":"entity_default","entity_id":"key-1","limits":[{"name":"rpm","capacity":100,"refill_amount":100,"refill_period_seconds":60,"text":"rpm:100/min"}],"disabled":null,"on_unavailable":null,"version":1}
    "#);
    assert_snapshot!(sandbox.run("entity get-limits key-1 -r gpt-4"), @"
    exit 0
    --- stdout
    level  entity key-1 on gpt-4

    LIMIT    RATE  BURST
    rpm    10/min     10
    ");
}

#[test]
fn nothing_stored_is_an_error_that_says_how_to_store() {
    let sandbox = Sandbox::with_store();
    assert_snapshot!(sandbox.run("system get-defaults"), @"
    exit 1
    --- stderr
    error: nothing is stored at level: system
    hint: store limits with `zae-limiter system set-defaults -l rpm:100`
    ");
    assert_snapshot!(sandbox.run("resource get-defaults gpt-4"), @"
    exit 1
    --- stderr
    error: nothing is stored at level: resource gpt-4
    hint: store limits with `zae-limiter resource set-defaults gpt-4 -l rpm:100`
    ");
    assert_snapshot!(sandbox.run("entity get-limits key-1"), @"
    exit 1
    --- stderr
    error: nothing is stored at level: entity key-1
    hint: store limits with `zae-limiter entity set-limits key-1 -l rpm:100`
    ");
    assert_snapshot!(sandbox.run("entity get-limits key-1 -r gpt-4 --output json"), @r#"
    exit 1
    --- stderr
    {"error":{"kind":"not_found","message":"nothing is stored at level: entity key-1 on gpt-4","hint":"store limits with `zae-limiter entity set-limits key-1 -r gpt-4 -l rpm:100`"}}
    "#);
}

#[test]
fn a_level_with_a_flag_only() {
    let sandbox = Sandbox::with_store();
    sandbox.limiter().disable(&Level::Resource("gpt-4".parse().unwrap())).unwrap();
    assert_snapshot!(sandbox.run("resource get-defaults gpt-4"), @"
    exit 0
    --- stdout
    level     resource gpt-4
    disabled  yes

    no limits at this level
    ");
}

#[test]
fn a_limit_given_twice_is_wrong_usage() {
    let sandbox = Sandbox::with_store();
    assert_snapshot!(sandbox.run("system set-defaults -l rpm:1 -l rpm:2"), @r#"
    exit 2
    --- stderr
    error: invalid values for --limit: limit "rpm" is given twice; give each limit once
    "#);
    assert_snapshot!(sandbox.run("acquire key-1 gpt-4 -c rpm=1 -l rpm:1 -l rpm:2"), @r#"
    exit 2
    --- stderr
    error: invalid values for --limit: limit "rpm" is given twice; give each limit once
    "#);
}

#[test]
fn changes_are_audited_under_the_user_or_the_principal() {
    let sandbox = Sandbox::with_store();
    sandbox.run("system set-defaults -l rpm:1");
    sandbox.run("system set-defaults -l rpm:2 --principal ops@example.com");
    let sandbox = sandbox.variable("USER", "not a principal");
    sandbox.run("system set-defaults -l rpm:3");
    let query = AuditQuery { subject: AuditSubject::System, page: PageRequest::first(10) };
    let events = sandbox.limiter().audit_events(&query).unwrap();
    let who: Vec<Option<String>> = events
        .items
        .iter()
        .map(|event| event.principal.as_ref().map(ToString::to_string))
        .collect();
    // A variable that cannot be a principal is passed over: the system knows who it is.
    let asked = std::process::Command::new("id").arg("-un").output().expect("id is there");
    let user = String::from_utf8(asked.stdout).expect("UTF-8").trim_end().to_owned();
    assert_eq!(who, [Some(user), Some("ops@example.com".into()), Some("tester".into())]);
}
