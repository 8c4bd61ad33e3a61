//! `explain`.

use insta::assert_snapshot;
use zae_limiter::Level;

use crate::support::Sandbox;

fn family() -> Sandbox {
    let sandbox = Sandbox::with_defaults("rpm:100");
    for line in [
        "entity create org",
        "entity create team --parent org --cascade",
        "entity create key-1 --parent team --cascade",
        "entity set-limits key-1 -r gpt-4 -l rpm:5 -l tpm:1000:2000",
        "entity set-limits team -l rpm:50",
        "resource set-defaults gpt-3 -l rpm:70",
    ] {
        assert_eq!(sandbox.raw(line).0, 0, "{line}");
    }
    sandbox
}

#[test]
fn each_member_of_the_chain_with_its_level() {
    let sandbox = family();
    assert_snapshot!(sandbox.run("explain key-1 gpt-4"), @"
    exit 0
    --- stdout
    ENTITY  LIMIT      RATE  BURST  FROM
    key-1   rpm       5/min      5  entity key-1 on gpt-4
    key-1   tpm    1000/min   2000  entity key-1 on gpt-4
    team    rpm      50/min     50  entity team
    org     rpm     100/min    100  system

    on unavailable  block
    ");
    assert_snapshot!(sandbox.run("explain key-1 gpt-3"), @"
    exit 0
    --- stdout
    ENTITY  LIMIT    RATE  BURST  FROM
    key-1   rpm    70/min     70  resource gpt-3
    team    rpm    50/min     50  entity team
    org     rpm    70/min     70  resource gpt-3

    on unavailable  block
    ");
    assert_snapshot!(sandbox.run("explain team gpt-4 --output json"), @r#"
    exit 0
    --- stdout
    {"entity_id":"team","resource":"gpt-4","on_unavailable":"block","members":[{"entity_id":"team","limits":[{"name":"rpm","capacity":50,"refill_amount":50,"refill_period_seconds":60,"text":"rpm:50/min"}],"source":"entity_default","disabled_by":null},{"entity_id":"org","limits":[{"name":"rpm","capacity":100,"refill_amount":100,"refill_period_seconds":60,"text":"rpm:100/min"}],"source":"system","disabled_by":null}]}
    "#);
}

#[test]
fn somebody_unknown_has_the_defaults() {
    let sandbox = family();
    assert_snapshot!(sandbox.run("explain nobody gpt-4"), @"
    exit 0
    --- stdout
    ENTITY  LIMIT     RATE  BURST  FROM
    nobody  rpm    100/min    100  system

    on unavailable  block
    ");
}

#[test]
fn no_limits_anywhere() {
    let sandbox = Sandbox::with_store();
    assert_snapshot!(sandbox.run("explain key-1 gpt-4"), @"
    exit 0
    --- stdout
    ENTITY  LIMIT  RATE  BURST  FROM
    key-1   -         -      -  no level

    on unavailable  block
    --- stderr
    warning: no level has limits for this call: an acquire without --limit is an error
    ");
    assert_snapshot!(sandbox.run("explain key-1 gpt-4 --output json"), @r#"
    exit 0
    --- stdout
    {"entity_id":"key-1","resource":"gpt-4","on_unavailable":"block","members":[{"entity_id":"key-1","limits":[],"source":null,"disabled_by":null}]}
    --- stderr
    {"warning":"no level has limits for this call: an acquire without --limit is an error"}
    "#);
}

#[test]
fn what_is_switched_off_is_said() {
    let sandbox = family();
    sandbox.limiter().disable(&Level::Entity("team".parse().unwrap())).unwrap();
    assert_snapshot!(sandbox.run("explain key-1 gpt-4"), @"
    exit 0
    --- stdout
    ENTITY  LIMIT      RATE  BURST  FROM
    key-1   rpm       5/min      5  entity key-1 on gpt-4
    key-1   tpm    1000/min   2000  entity key-1 on gpt-4
    team    rpm      50/min     50  entity team
    org     rpm     100/min    100  system

    on unavailable  block

    team is disabled at level: entity team
    ");
}
