//! `entity list`, `update`, `delete`, `children`, `buckets`, `reset`.

use insta::assert_snapshot;

use crate::support::Sandbox;

/// An org with three keys; the last one has a name that would like to be more than data.
fn family() -> Sandbox {
    let sandbox = Sandbox::with_store();
    sandbox.run("entity create org");
    for id in ["key-1", "key-2"] {
        sandbox.run(&format!("entity create {id} --parent org --cascade"));
    }
    sandbox.run_words(&[
        "entity",
        "create",
        "key-3",
        "--parent",
        "org",
        "--cascade",
        "--display-name",
        "漢字 \u{202e}key",
    ]);
    sandbox
}

#[test]
fn entities_are_listed_page_by_page() {
    let sandbox = family();
    assert_snapshot!(sandbox.run("entity list"), @r"
    exit 0
    --- stdout
    ENTITY  PARENT  CASCADE  DISABLED  CREATED  NAME
    key-1   org     yes      -         [TIME]  key-1
    key-2   org     yes      -         [TIME]  key-2
    key-3   org     yes      -         [TIME]  漢字 \u{202e}key
    org     -       no       -         [TIME]  org
    ");
    assert_snapshot!(sandbox.run("entity list --limit 2"), @"
    exit 0
    --- stdout
    ENTITY  PARENT  CASCADE  DISABLED  CREATED  NAME
    key-1   org     yes      -         [TIME]  key-1
    key-2   org     yes      -         [TIME]  key-2
    --- stderr
    note: there is more; go on with --cursor key-2
    ");
    assert_snapshot!(sandbox.run("entity list --limit 2 --cursor key-2 --quiet"), @r"
    exit 0
    --- stdout
    ENTITY  PARENT  CASCADE  DISABLED  CREATED  NAME
    key-3   org     yes      -         [TIME]  漢字 \u{202e}key
    org     -       no       -         [TIME]  org
    ");
    assert_snapshot!(sandbox.run("entity list --limit 2 --output json"), @r#"
    exit 0
    --- stdout
    {"items":[{"entity_id":"key-1","name":"key-1","parent_id":"org","cascade":true,"metadata":{},"created_at":"[TIME]","version":1,"disabled":null},{"entity_id":"key-2","name":"key-2","parent_id":"org","cascade":true,"metadata":{},"created_at":"[TIME]","version":1,"disabled":null}],"next":"key-2"}
    --- stderr
    {"note":"there is more; go on with --cursor key-2"}
    "#);
    assert_snapshot!(sandbox.run("entity list --limit 3 --cursor key-2 --output json"), @r#"
    exit 0
    --- stdout
    {"items":[{"entity_id":"key-3","name":"漢字 \u202ekey","parent_id":"org","cascade":true,"metadata":{},"created_at":"[TIME]","version":1,"disabled":null},{"entity_id":"org","name":"org","parent_id":null,"cascade":false,"metadata":{},"created_at":"[TIME]","version":1,"disabled":null}],"next":null}
    "#);
}

#[test]
fn nothing_to_list() {
    let sandbox = Sandbox::with_store();
    assert_snapshot!(sandbox.run("entity list"), @"
    exit 0
    --- stdout
    no entities
    ");
    assert_snapshot!(sandbox.run("entity list --output json"), @r#"
    exit 0
    --- stdout
    {"items":[],"next":null}
    "#);
    assert_snapshot!(sandbox.run("entity children org"), @"
    exit 0
    --- stdout
    no children
    ");
    assert_snapshot!(sandbox.run("entity buckets org"), @"
    exit 0
    --- stdout
    no buckets
    ");
    assert_snapshot!(sandbox.run("entity list-resources"), @"
    exit 0
    --- stdout
    no entity has limits of its own
    ");
    assert_snapshot!(sandbox.run("entity list --with-custom-limits gpt-4"), @"
    exit 0
    --- stdout
    no entities with limits of their own for this resource
    ");
}

#[test]
fn pages_that_are_none() {
    let sandbox = Sandbox::new();
    assert_snapshot!(sandbox.run("entity list --limit 0"), @"
    exit 2
    --- stderr
    error: invalid value '0' for '--max <COUNT>': write a whole number from 1 to 1000

    For more information, try '--help'.
    ");
    assert_snapshot!(sandbox.run("entity list --limit 1001"), @"
    exit 2
    --- stderr
    error: invalid value '1001' for '--max <COUNT>': write a whole number from 1 to 1000

    For more information, try '--help'.
    ");
    assert_snapshot!(sandbox.run("entity list --limit many"), @"
    exit 2
    --- stderr
    error: invalid value 'many' for '--max <COUNT>': write a whole number from 1 to 1000

    For more information, try '--help'.
    ");
}

#[test]
fn a_narrow_terminal_gets_blocks() {
    let sandbox = family().variable("COLUMNS", "40");
    assert_snapshot!(sandbox.run("entity list --limit 2 -q"), @"
    exit 0
    --- stdout
    ENTITY  PARENT  CASCADE  DISABLED  NAME
    key-1   org     yes      -         key-1
    key-2   org     yes      -         key-2
    ");
}

#[test]
fn children() {
    let sandbox = family();
    assert_snapshot!(sandbox.run("entity children org --limit 1"), @"
    exit 0
    --- stdout
    ENTITY  PARENT  CASCADE  DISABLED  CREATED  NAME
    key-1   org     yes      -         [TIME]  key-1
    --- stderr
    note: there is more; go on with --cursor key-1
    ");
    assert_snapshot!(sandbox.run("entity children org --limit 1 --cursor key-2 --output json"), @r#"
    exit 0
    --- stdout
    {"items":[{"entity_id":"key-3","name":"漢字 \u202ekey","parent_id":"org","cascade":true,"metadata":{},"created_at":"[TIME]","version":1,"disabled":null}],"next":null}
    "#);
}

#[test]
fn entities_and_resources_with_limits_of_their_own() {
    let sandbox = family();
    for line in ["key-1 -r gpt-4", "key-2 -r gpt-4", "key-2 -r gpt-3", "nobody"] {
        sandbox.run(&format!("entity set-limits {line} -l rpm:1"));
    }
    assert_snapshot!(sandbox.run("entity list --with-custom-limits gpt-4"), @"
    exit 0
    --- stdout
    ENTITY
    key-1
    key-2
    ");
    assert_snapshot!(sandbox.run("entity list --with-custom-limits gpt-4 --limit 1 --output json"), @r#"
    exit 0
    --- stdout
    {"items":[{"entity_id":"key-1"}],"next":"key-1"}
    --- stderr
    {"note":"there is more; go on with --cursor key-1"}
    "#);
    assert_snapshot!(sandbox.run("entity list --with-custom-limits gpt-4 --cursor key-1 --output json"), @r#"
    exit 0
    --- stdout
    {"items":[{"entity_id":"key-2"}],"next":null}
    "#);
    assert_snapshot!(sandbox.run("entity list --with-custom-limits _default_"), @"
    exit 0
    --- stdout
    ENTITY
    nobody
    ");
    assert_snapshot!(sandbox.run("entity list --with-custom-limits a#b"), @r#"
    exit 2
    --- stderr
    error: invalid value 'a#b' for '--with-custom-limits <RESOURCE>': resource "a#b" contains '#', which separates key parts; use letters, digits and _ . - / :

    For more information, try '--help'.
    "#);
    assert_snapshot!(sandbox.run("entity list-resources"), @"
    exit 0
    --- stdout
    RESOURCE
    _default_
    gpt-3
    gpt-4
    ");
    assert_snapshot!(sandbox.run("entity list-resources --limit 1 --output json"), @r#"
    exit 0
    --- stdout
    {"items":[{"resource":"_default_"}],"next":""}
    --- stderr
    {"note":"there is more; go on with --cursor ''"}
    "#);
    let second = sandbox.run_words(&[
        "entity",
        "list-resources",
        "--limit",
        "1",
        "--cursor",
        "",
        "--output",
        "json",
    ]);
    assert_snapshot!(second, @r#"
    exit 0
    --- stdout
    {"items":[{"resource":"gpt-3"}],"next":"gpt-3"}
    --- stderr
    {"note":"there is more; go on with --cursor gpt-3"}
    "#);
}

#[test]
fn an_update_changes_what_is_named_and_nothing_else() {
    let sandbox = Sandbox::with_store();
    sandbox.run("entity create key-1 --metadata tier=gold --metadata team=a");
    assert_snapshot!(sandbox.run("entity update key-1 --display-name One"), @"
    exit 0
    --- stdout
    entity    key-1
    name      One
    parent    -
    cascade   no
    created   [TIME]
    version   2
    metadata  team=a
    metadata  tier=gold
    ");
    let words = "entity update key-1 --metadata tier=silver --metadata region=eu --remove-metadata team --output json";
    assert_snapshot!(sandbox.run(words), @r#"
    exit 0
    --- stdout
    {"entity_id":"key-1","name":"One","parent_id":null,"cascade":false,"metadata":{"region":"eu","tier":"silver"},"created_at":"[TIME]","version":3}
    "#);
}

#[test]
fn an_update_under_a_version() {
    let sandbox = Sandbox::with_store();
    sandbox.run("entity create key-1");
    assert_eq!(sandbox.raw("entity update key-1 --display-name One --version 1").0, 0);
    assert_snapshot!(sandbox.run("entity update key-1 --display-name Two --version 1"), @"
    exit 1
    --- stderr
    error: entity key-1 has version 2, not 1; nothing was changed
    hint: look at it with `zae-limiter entity show key-1`, then decide again
    ");
    assert_snapshot!(sandbox.run("entity update key-1 --display-name Two --version 1 --output json"), @r#"
    exit 1
    --- stderr
    {"error":{"kind":"conflict","message":"entity key-1 has version 2, not 1; nothing was changed","hint":"look at it with `zae-limiter entity show key-1`, then decide again"}}
    "#);
    assert!(sandbox.raw("entity show key-1").1.contains("name      One\n"));
}

#[test]
fn updates_that_are_none() {
    let sandbox = Sandbox::with_store();
    assert_snapshot!(sandbox.run("entity update key-1"), @"
    exit 2
    --- stderr
    error: the following required arguments were not provided:
      <--display-name <TEXT>|--metadata <KEY=VALUE>|--remove-metadata <KEY>>

    Usage: zae-limiter entity update <--display-name <TEXT>|--metadata <KEY=VALUE>|--remove-metadata <KEY>> <ID>

    For more information, try '--help'.
    ");
    assert_snapshot!(sandbox.run("entity update key-1 --display-name One"), @"
    exit 1
    --- stderr
    error: there is no entity key-1
    hint: create it with `zae-limiter entity create key-1`
    ");
    assert_snapshot!(sandbox.run("entity update key-1 --display-name One --version latest"), @"
    exit 2
    --- stderr
    error: invalid value 'latest' for '--version <NUMBER>': write a whole number, as `entity show` does

    For more information, try '--help'.
    ");
    assert_snapshot!(sandbox.run("entity update key-1 --metadata a=1 --remove-metadata a"), @"
    exit 2
    --- stderr
    error: --metadata and --remove-metadata both name a; choose one
    ");
    sandbox.run("entity create key-1");
    assert_snapshot!(sandbox.run_words(&["entity", "update", "key-1", "--display-name", "a\nb"]), @r#"
    exit 2
    --- stderr
    error: entity name "a\nb" contains a control character; use printable characters only
    "#);
}

#[test]
fn deleting_asks_and_refuses_parents() {
    let sandbox = family();
    assert_snapshot!(sandbox.run("entity delete key-1"), @"
    exit 2
    --- stderr
    error: this deletes entity key-1 with its buckets and limits and there is no terminal to ask on
    hint: pass --yes if that is meant
    ");
    assert_snapshot!(sandbox.run("entity delete org --yes"), @"
    exit 1
    --- stderr
    error: entity org has children (key-1, key-2, key-3); delete them first
    ");
    sandbox.run("entity set-limits key-1 -l rpm:5/day");
    sandbox.run("acquire key-1 gpt-4 -c rpm=1");
    assert_snapshot!(sandbox.run("entity delete key-1 --yes"), @"
    exit 0
    --- stdout
    deleted entity key-1 with its buckets and limits (buckets: 1, levels with limits or flags: 1)
    ");
    assert_snapshot!(sandbox.run("entity delete key-2 -y --output json"), @r#"
    exit 0
    --- stdout
    {"entity_id":"key-2","deleted":true,"buckets":0,"configs":0}
    "#);
    assert_snapshot!(sandbox.run("entity delete key-2 -y"), @"
    exit 1
    --- stderr
    error: there is no entity key-2
    ");
}

#[test]
fn buckets_as_they_are_now() {
    let sandbox = Sandbox::with_defaults("rpm:1/day:5 tpm:1/day:100");
    sandbox.run("acquire key-1 gpt-3 -c rpm=2");
    sandbox.run("acquire key-1 gpt-4 -c rpm=1 -c tpm=10 --record tpm=150");
    sandbox.run("entity disable key-1 -r gpt-3");
    assert_snapshot!(sandbox.run("entity buckets key-1"), @"
    exit 0
    --- stdout
    RESOURCE  LIMIT  CAPACITY  AVAILABLE  CONSUMED  STATE
    gpt-3     rpm           5          3         2  disabled
    gpt-3     tpm         100        100         0  disabled
    gpt-4     rpm           5          4         1  -
    gpt-4     tpm         100        -50       150  in debt
    ");
    let (_, first) = sandbox.raw("entity buckets key-1 --limit 1 --output json");
    let first: serde_json::Value = serde_json::from_str(&first).unwrap();
    assert_eq!(
        (first["items"][0]["resource"].as_str(), first["next"].as_str()),
        (Some("gpt-3"), Some("gpt-3"))
    );
    assert_snapshot!(sandbox.run("entity buckets key-1 --limit 1 --cursor gpt-3 --output json"), @r#"
    exit 0
    --- stdout
    {"items":[{"entity_id":"key-1","resource":"gpt-4","disabled":false,"refilled_at":"[TIME]","expires_at":"[TIME]","limits":[{"limit_name":"rpm","capacity_milli":5000,"available_milli":4000,"consumed_milli":1000},{"limit_name":"tpm","capacity_milli":100000,"available_milli":-50000,"consumed_milli":150000}]}],"next":null}
    "#);
}

#[test]
fn a_reset_fills() {
    let sandbox = Sandbox::with_defaults("rpm:1/day:5 tpm:1/day:100");
    sandbox.run("acquire key-1 gpt-3 -c rpm=2");
    sandbox.run("acquire key-1 gpt-4 -c rpm=1 -c tpm=10 --record tpm=150");
    assert_snapshot!(sandbox.run("entity reset key-1"), @"
    exit 2
    --- stderr
    error: this fills every bucket of key-1 (forgiving its debt) and there is no terminal to ask on
    hint: pass --yes if that is meant
    ");
    assert_snapshot!(sandbox.run("entity reset key-1 -r gpt-4"), @"
    exit 2
    --- stderr
    error: this fills the bucket of key-1 for gpt-4 (forgiving its debt) and there is no terminal to ask on
    hint: pass --yes if that is meant
    ");
    assert_snapshot!(sandbox.run("entity reset key-1 -r gpt-4 -l rpm --yes"), @"
    exit 0
    --- stdout
    RESOURCE  LIMIT  GAINED
    gpt-4     rpm         1
    ");
    assert_snapshot!(sandbox.run("entity reset key-1 -r gpt-4 --limit-name rmp --yes"), @"
    exit 1
    --- stderr
    error: no bucket of key-1 has a limit called rmp
    hint: `zae-limiter entity buckets key-1` shows the limits there are
    ");
    assert_snapshot!(sandbox.run("entity reset key-1 --yes"), @"
    exit 0
    --- stdout
    RESOURCE  LIMIT  GAINED
    gpt-3     rpm         2
    gpt-3     tpm         0
    gpt-4     rpm         0
    gpt-4     tpm       150
    ");
    assert_snapshot!(sandbox.run("entity reset nobody --yes"), @"
    exit 0
    --- stdout
    nothing to fill: there is no such bucket
    ");
    assert_snapshot!(sandbox.run("entity reset key-1 -r gpt-5 --yes --output json"), @r#"
    exit 0
    --- stdout
    {"entity_id":"key-1","buckets":[]}
    "#);
    sandbox.run("acquire key-1 gpt-4 -c rpm=3");
    assert_snapshot!(sandbox.run("entity reset key-1 -r gpt-4 --yes --output json"), @r#"
    exit 0
    --- stdout
    {"entity_id":"key-1","buckets":[{"resource":"gpt-4","limits":[{"limit_name":"rpm","gained":3},{"limit_name":"tpm","gained":0}]}]}
    "#);
    assert_eq!(sandbox.raw("acquire key-1 gpt-4 -c rpm=5 -c tpm=100").0, 0);
}
