//! `entity` and `resource` `disable`, `enable`, `clear-disabled`.

use insta::assert_snapshot;

use crate::support::Sandbox;

#[test]
fn an_entity_is_switched_off_and_on() {
    let sandbox = Sandbox::with_defaults("rpm:10/day");
    sandbox.run("acquire key-1 gpt-4 -c rpm=1");
    assert_snapshot!(sandbox.run("entity disable key-1"), @"
    exit 0
    --- stdout
    disabled entity key-1 (1 existing bucket)
    --- stderr
    note: key-1 is not a created entity; it is remembered under this name all the same
    ");
    assert_snapshot!(sandbox.run("acquire key-1 gpt-4 -c rpm=1"), @"
    exit 4
    --- stderr
    error: key-1 on gpt-4 is disabled at level: entity key-1
    ");
    assert_snapshot!(sandbox.run("available key-1 gpt-4 --output json"), @r#"
    exit 4
    --- stderr
    {"error":{"kind":"disabled","message":"key-1 on gpt-4 is disabled at level: entity key-1"}}
    "#);
    assert_snapshot!(sandbox.run("entity enable key-1 --output json"), @r#"
    exit 0
    --- stdout
    {"level":"entity_default","entity_id":"key-1","disabled":false,"buckets":1}
    --- stderr
    {"note":"key-1 is not a created entity; it is remembered under this name all the same"}
    {"note":"running processes see this within their config-cache TTL (60s unless set otherwise)"}
    "#);
    assert_eq!(sandbox.raw("acquire key-1 gpt-4 -c rpm=1").0, 0);
    assert_snapshot!(sandbox.run("entity enable key-1"), @"
    exit 0
    --- stdout
    enabled entity key-1 (1 existing bucket)
    --- stderr
    note: key-1 is not a created entity; it is remembered under this name all the same
    note: running processes see this within their config-cache TTL (60s unless set otherwise)
    ");
    assert_snapshot!(sandbox.run("entity clear-disabled key-1"), @"
    exit 0
    --- stdout
    cleared the flag of entity key-1 (1 existing bucket)
    --- stderr
    note: key-1 is not a created entity; it is remembered under this name all the same
    note: running processes see this within their config-cache TTL (60s unless set otherwise)
    ");
}

#[test]
fn an_entity_on_one_resource() {
    let sandbox = Sandbox::with_defaults("rpm:10/day");
    assert_snapshot!(sandbox.run("entity disable key-1 -r gpt-4 --output json"), @r#"
    exit 0
    --- stdout
    {"level":"entity","entity_id":"key-1","resource":"gpt-4","disabled":true,"buckets":0}
    --- stderr
    {"note":"key-1 is not a created entity; it is remembered under this name all the same"}
    "#);
    assert_eq!(sandbox.raw("acquire key-1 gpt-4 -c rpm=1").0, 4);
    assert_eq!(sandbox.raw("acquire key-1 gpt-3 -c rpm=1").0, 0);
    assert_snapshot!(sandbox.run("entity get-limits key-1 -r gpt-4"), @"
    exit 0
    --- stdout
    level     entity key-1 on gpt-4
    disabled  yes

    no limits at this level
    ");
    assert_snapshot!(sandbox.run("explain key-1 gpt-4"), @"
    exit 0
    --- stdout
    ENTITY  LIMIT    RATE  BURST  FROM
    key-1   rpm    10/day     10  system

    on unavailable  block

    key-1 is disabled at level: entity key-1 on gpt-4
    ");
    assert_snapshot!(sandbox.run("entity clear-disabled key-1 -r gpt-4 --output json"), @r#"
    exit 0
    --- stdout
    {"level":"entity","entity_id":"key-1","resource":"gpt-4","disabled":null,"buckets":0}
    --- stderr
    {"note":"key-1 is not a created entity; it is remembered under this name all the same"}
    {"note":"running processes see this within their config-cache TTL (60s unless set otherwise)"}
    "#);
    assert_eq!(sandbox.raw("acquire key-1 gpt-4 -c rpm=1").0, 0);
}

#[test]
fn a_resource_is_switched_off_and_on() {
    let sandbox = Sandbox::with_defaults("rpm:10/day");
    for key in ["key-1", "key-2"] {
        sandbox.run(&format!("acquire {key} gpt-4 -c rpm=1"));
    }
    assert_snapshot!(sandbox.run("resource disable gpt-4"), @"
    exit 0
    --- stdout
    disabled resource gpt-4 (2 existing buckets)
    ");
    assert_snapshot!(sandbox.run("acquire key-1 gpt-4 -c rpm=1"), @"
    exit 4
    --- stderr
    error: key-1 on gpt-4 is disabled at level: resource gpt-4
    ");
    assert_snapshot!(sandbox.run("resource disable gpt-4 --output json"), @r#"
    exit 0
    --- stdout
    {"level":"resource","resource":"gpt-4","disabled":true,"buckets":2}
    "#);
    // An explicit yes of a stronger level holds.
    sandbox.run("entity enable key-1 -r gpt-4");
    assert_eq!(sandbox.raw("acquire key-1 gpt-4 -c rpm=1").0, 0);
    assert_snapshot!(sandbox.run("resource enable gpt-4 --output json"), @r#"
    exit 0
    --- stdout
    {"level":"resource","resource":"gpt-4","disabled":false,"buckets":2}
    --- stderr
    {"note":"running processes see this within their config-cache TTL (60s unless set otherwise)"}
    "#);
    assert_snapshot!(sandbox.run("resource enable gpt-4"), @"
    exit 0
    --- stdout
    enabled resource gpt-4 (2 existing buckets)
    --- stderr
    note: running processes see this within their config-cache TTL (60s unless set otherwise)
    ");
    assert_snapshot!(sandbox.run("resource clear-disabled gpt-4 --output json"), @r#"
    exit 0
    --- stdout
    {"level":"resource","resource":"gpt-4","disabled":null,"buckets":2}
    --- stderr
    {"note":"running processes see this within their config-cache TTL (60s unless set otherwise)"}
    "#);
    assert_snapshot!(sandbox.run("resource clear-disabled gpt-4"), @"
    exit 0
    --- stdout
    cleared the flag of resource gpt-4 (2 existing buckets)
    --- stderr
    note: running processes see this within their config-cache TTL (60s unless set otherwise)
    ");
    assert_eq!(sandbox.raw("acquire key-2 gpt-4 -c rpm=1").0, 0);
}
