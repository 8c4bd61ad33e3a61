//! `resource list`, `delete-defaults`, `capacity`; `entity delete-limits`.

use insta::assert_snapshot;

use crate::support::Sandbox;

#[test]
fn resources_are_listed_page_by_page() {
    let sandbox = Sandbox::with_store();
    assert_snapshot!(sandbox.run("resource list"), @"
    exit 0
    --- stdout
    no resource has limits of its own
    ");
    for name in ["gpt-3", "gpt-4", "gpt-5"] {
        sandbox.run(&format!("resource set-defaults {name} -l rpm:1"));
    }
    assert_snapshot!(sandbox.run("resource list --limit 2"), @"
    exit 0
    --- stdout
    RESOURCE
    gpt-3
    gpt-4
    --- stderr
    note: there is more; go on with --cursor gpt-4
    ");
    assert_snapshot!(sandbox.run("resource list --limit 2 --output json"), @r#"
    exit 0
    --- stdout
    {"items":[{"resource":"gpt-3"},{"resource":"gpt-4"}],"next":"gpt-4"}
    --- stderr
    {"note":"there is more; go on with --cursor gpt-4"}
    "#);
    assert_snapshot!(sandbox.run("resource list --limit 2 --cursor gpt-4 --output json"), @r#"
    exit 0
    --- stdout
    {"items":[{"resource":"gpt-5"}],"next":null}
    "#);
}

#[test]
fn limits_of_a_resource_are_deleted() {
    let sandbox = Sandbox::with_store();
    sandbox.run("resource set-defaults gpt-4 -l rpm:1");
    assert_snapshot!(sandbox.run("resource delete-defaults gpt-4"), @"
    exit 2
    --- stderr
    error: this deletes the limits stored for resource gpt-4 and there is no terminal to ask on
    hint: pass --yes if that is meant
    ");
    assert_snapshot!(sandbox.run("resource delete-defaults gpt-4 --yes"), @"
    exit 0
    --- stdout
    deleted the limits stored for resource gpt-4
    --- stderr
    note: running processes see this within their config-cache TTL (60s unless set otherwise)
    ");
    assert_snapshot!(sandbox.run("resource delete-defaults gpt-4 --yes"), @"
    exit 0
    --- stdout
    nothing to delete: no limits are stored for resource gpt-4
    ");
    assert_snapshot!(sandbox.run("resource delete-defaults gpt-4 --yes --output json"), @r#"
    exit 0
    --- stdout
    {"level":"resource","resource":"gpt-4","deleted":false}
    "#);
}

#[test]
fn limits_of_an_entity_are_deleted() {
    let sandbox = Sandbox::with_store();
    sandbox.run("entity set-limits key-1 -l rpm:1");
    sandbox.run("entity set-limits key-1 -r gpt-4 -l rpm:2");
    assert_snapshot!(sandbox.run("entity delete-limits key-1 -r gpt-4"), @"
    exit 2
    --- stderr
    error: this deletes the limits stored for entity key-1 on gpt-4 and there is no terminal to ask on
    hint: pass --yes if that is meant
    ");
    assert_snapshot!(sandbox.run("entity delete-limits key-1 -r gpt-4 --yes --output json"), @r#"
    exit 0
    --- stdout
    {"level":"entity","entity_id":"key-1","resource":"gpt-4","deleted":true}
    --- stderr
    {"note":"running processes see this within their config-cache TTL (60s unless set otherwise)"}
    "#);
    assert_snapshot!(sandbox.run("entity delete-limits key-1 -r gpt-4 --yes"), @"
    exit 0
    --- stdout
    nothing to delete: no limits are stored for entity key-1 on gpt-4
    ");
    assert_snapshot!(sandbox.run("entity delete-limits key-1 --yes"), @"
    exit 0
    --- stdout
    deleted the limits stored for entity key-1
    --- stderr
    note: running processes see this within their config-cache TTL (60s unless set otherwise)
    ");
}

#[test]
fn capacity_is_summed_over_entities() {
    let sandbox = Sandbox::with_defaults("rpm:1/day:10");
    sandbox.run("entity create org");
    sandbox.run("entity create key-1 --parent org --cascade");
    sandbox.run("acquire key-1 gpt-4 -c rpm=5");
    sandbox.run("acquire key-2 gpt-4 -c rpm=1 --record rpm=12");
    assert_snapshot!(sandbox.run("resource capacity gpt-4 rpm"), @"
    exit 0
    --- stdout
    resource   gpt-4
    limit      rpm
    entities   3
    capacity   30
    available  8
    used       73.3%

    ENTITY  CAPACITY  AVAILABLE    USED
    key-2         10         -2  120.0%
    key-1         10          5   50.0%
    org           10          5   50.0%
    ");
    assert_snapshot!(sandbox.run("resource capacity gpt-4 rpm --limit 1"), @"
    exit 0
    --- stdout
    resource   gpt-4
    limit      rpm
    entities   3
    capacity   30
    available  8
    used       73.3%

    ENTITY  CAPACITY  AVAILABLE    USED
    key-2         10         -2  120.0%

    and 2 more; --max shows them
    ");
    assert_snapshot!(sandbox.run("resource capacity gpt-4 rpm --parents-only --output json"), @r#"
    exit 0
    --- stdout
    {"resource":"gpt-4","limit_name":"rpm","entity_count":2,"capacity":20,"available":3,"utilization_pct":85.0,"entities":[{"entity_id":"key-2","capacity":10,"available":-2,"utilization_pct":120.0},{"entity_id":"org","capacity":10,"available":5,"utilization_pct":50.0}]}
    "#);
    assert_snapshot!(sandbox.run("resource capacity gpt-4 tpm"), @"
    exit 0
    --- stdout
    resource   gpt-4
    limit      tpm
    entities   0
    capacity   0
    available  0
    used       0.0%
    --- stderr
    warning: no entity has taken from a limit tpm on gpt-4 yet
    ");
    assert_snapshot!(sandbox.run("resource capacity gpt-5 rpm --output json"), @r#"
    exit 0
    --- stdout
    {"resource":"gpt-5","limit_name":"rpm","entity_count":0,"capacity":0,"available":0,"utilization_pct":0.0,"entities":[]}
    --- stderr
    {"warning":"no entity has taken from a limit rpm on gpt-5 yet"}
    "#);
    assert_snapshot!(sandbox.run("resource capacity gpt-4 rpm --limit 0"), @"
    exit 2
    --- stderr
    error: invalid value '0' for '--max <COUNT>': write a whole number from 1 to 1000000

    For more information, try '--help'.
    ");
    assert_snapshot!(sandbox.run("resource capacity gpt-4"), @"
    exit 2
    --- stderr
    error: the following required arguments were not provided:
      <LIMIT>

    Usage: zae-limiter resource capacity <NAME> <LIMIT>

    For more information, try '--help'.
    ");
}
