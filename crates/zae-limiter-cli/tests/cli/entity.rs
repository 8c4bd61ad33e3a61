//! `entity create` and `entity show`.

use insta::assert_snapshot;

use crate::support::Sandbox;

#[test]
fn an_entity_with_everything() {
    let sandbox = Sandbox::with_store();
    sandbox.run("entity create org");
    let words = [
        "entity",
        "create",
        "key-1",
        "--display-name",
        "Key One",
        "--parent",
        "org",
        "--cascade",
        "--metadata",
        "tier=gold",
    ];
    assert_snapshot!(sandbox.run_words(&words), @"
    exit 0
    --- stdout
    entity    key-1
    name      Key One
    parent    org
    cascade   yes
    created   [TIME]
    version   1
    metadata  tier=gold
    ");
    assert_snapshot!(sandbox.run("entity show key-1"), @"
    exit 0
    --- stdout
    entity    key-1
    name      Key One
    parent    org
    cascade   yes
    created   [TIME]
    version   1
    metadata  tier=gold
    disabled  -
    ");
    assert_snapshot!(sandbox.run("entity show key-1 --output json"), @r#"
    exit 0
    --- stdout
    {"entity_id":"key-1","name":"Key One","parent_id":"org","cascade":true,"metadata":{"tier":"gold"},"created_at":"[TIME]","version":1,"disabled":null,"disabled_on":{}}
    "#);
}

#[test]
fn an_entity_with_nothing() {
    let sandbox = Sandbox::with_store();
    assert_snapshot!(sandbox.run("entity create org --output json"), @r#"
    exit 0
    --- stdout
    {"entity_id":"org","name":"org","parent_id":null,"cascade":false,"metadata":{},"created_at":"[TIME]","version":1}
    "#);
    assert_snapshot!(sandbox.run("entity show org"), @"
    exit 0
    --- stdout
    entity    org
    name      org
    parent    -
    cascade   no
    created   [TIME]
    version   1
    disabled  -
    ");
}

#[test]
fn what_is_probably_not_meant_is_a_warning() {
    let sandbox = Sandbox::with_store();
    assert_snapshot!(sandbox.run("entity create org --cascade"), @"
    exit 0
    --- stdout
    entity   org
    name     org
    parent   -
    cascade  yes
    created  [TIME]
    version  1
    --- stderr
    warning: the entity cascades but has no parent: there is nothing to cascade to
    ");
    assert_snapshot!(sandbox.run("entity create key-1 --parent org --output json"), @r#"
    exit 0
    --- stdout
    {"entity_id":"key-1","name":"key-1","parent_id":"org","cascade":false,"metadata":{},"created_at":"[TIME]","version":1}
    --- stderr
    {"warning":"the entity has a parent but does not cascade: the parent's limits will not be checked"}
    "#);
    assert_snapshot!(sandbox.run("entity create key-2 --parent org --quiet"), @"
    exit 0
    --- stdout
    entity   key-2
    name     key-2
    parent   org
    cascade  no
    created  [TIME]
    version  1
    ");
}

#[test]
fn what_can_not_be_created() {
    let sandbox = Sandbox::with_store();
    sandbox.run("entity create org");
    assert_snapshot!(sandbox.run("entity create org"), @"
    exit 1
    --- stderr
    error: entity org exists already; update it, or choose another id
    ");
    assert_snapshot!(sandbox.run("entity create org --output json"), @r#"
    exit 1
    --- stderr
    {"error":{"kind":"already_exists","message":"entity org exists already; update it, or choose another id"}}
    "#);
    assert_snapshot!(sandbox.run("entity create key-1 --parent nobody"), @"
    exit 1
    --- stderr
    error: entity nobody does not exist; create it first
    ");
    assert_snapshot!(sandbox.run("entity create key-1 --parent key-1"), @"
    exit 1
    --- stderr
    error: entity key-1 cannot be its own parent; name another, or none
    ");
}

#[test]
fn wrong_texts_are_wrong_usage() {
    let sandbox = Sandbox::with_store();
    assert_snapshot!(sandbox.run_words(&["entity", "create", "key-1", "--display-name", "a\u{1b}[31m"]), @r#"
    exit 2
    --- stderr
    error: entity name "a\u{1b}[31m" contains a control character; use printable characters only
    "#);
    assert_snapshot!(sandbox.run("entity create key-1 --metadata tier=gold --metadata tier=silver"), @"
    exit 2
    --- stderr
    error: --metadata gives tier twice; give each key once
    ");
    assert_snapshot!(sandbox.run("entity create key-1 --metadata tier"), @"
    exit 2
    --- stderr
    error: invalid value 'tier' for '--metadata <KEY=VALUE>': write KEY=VALUE, as in tier=gold

    For more information, try '--help'.
    ");
}

#[test]
fn an_entity_that_is_not_there() {
    let sandbox = Sandbox::with_store();
    assert_snapshot!(sandbox.run("entity show key-1"), @"
    exit 1
    --- stderr
    error: there is no entity key-1
    hint: create it with `zae-limiter entity create key-1`
    ");
    assert_snapshot!(sandbox.run("entity show key-1 --output json"), @r#"
    exit 1
    --- stderr
    {"error":{"kind":"not_found","message":"there is no entity key-1","hint":"create it with `zae-limiter entity create key-1`"}}
    "#);
}
