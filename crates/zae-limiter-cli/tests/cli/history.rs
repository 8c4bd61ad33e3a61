//! `audit list`, `usage list`, `usage summary`.

use insta::assert_snapshot;
use zae_limiter::{Level, NewEntity, Request};

use crate::support::{Sandbox, parsed};

fn changed() -> Sandbox {
    let sandbox = Sandbox::with_store();
    let limiter = sandbox.limiter_at("2026-01-31T14:30:00.250Z");
    let metadata = [("note".to_owned(), "a\u{1b}[31m".to_owned())].into();
    let entity = NewEntity {
        id: parsed("key-1"),
        name: "One".into(),
        parent: None,
        cascade: false,
        metadata,
    };
    limiter.create_entity(entity).expect("it is created");
    let (key, resource) = (Level::Entity(parsed("key-1")), Level::Resource(parsed("gpt-4")));
    limiter.set_limits(&key, [parsed("rpm:5")]).expect("limits are stored");
    limiter
        .disable(&Level::EntityResource(parsed("key-1"), parsed("gpt-4")))
        .expect("it is disabled");
    limiter.set_limits(&resource, [parsed("rpm:5")]).expect("limits are stored");
    limiter.set_limits(&Level::System, [parsed("rpm:5")]).expect("limits are stored");
    limiter.close();
    sandbox
}

#[test]
fn who_changed_what() {
    let sandbox = changed();
    assert_snapshot!(sandbox.run("audit list -e key-1"), @r#"
    exit 0
    --- stdout
    TIME  ACTION          WHO  RESOURCE  DETAILS
    [TIME]  flags_set       ops  gpt-4     disabled=true was=inherited
    [TIME]  limits_set      ops  -         limit=rpm:5/min
    [TIME]  entity_created  ops  -         cascade=false metadata.note=a\u{1b}[31m name=One
    "#);
    assert_snapshot!(sandbox.run("audit list --resource gpt-4"), @"
    exit 0
    --- stdout
    TIME  ACTION      WHO  RESOURCE  DETAILS
    [TIME]  limits_set  ops  gpt-4     limit=rpm:5/min
    ");
    assert_snapshot!(sandbox.run("audit list --resource gpt-4 --output json"), @r#"
    exit 0
    --- stdout
    {"items":[{"event_id":"01KGA7BWST00RYBW7J5JCGDTWH","timestamp":"[TIME]","entity_id":"$RESOURCE:gpt-4","action":"limits_set","principal":"ops","resource":"gpt-4","details":{"limit":"rpm:5/min"}}],"next":null}
    "#);
    assert_snapshot!(sandbox.run("audit list --system --limit 1"), @"
    exit 0
    --- stdout
    TIME  ACTION      WHO  RESOURCE  DETAILS
    [TIME]  limits_set  ops  -         limit=rpm:5/min
    ");
    assert_snapshot!(sandbox.run("audit list --entity-id nobody"), @"
    exit 0
    --- stdout
    no audit events
    ");
    assert_snapshot!(sandbox.run("audit list --entity-id nobody --output json"), @r#"
    exit 0
    --- stdout
    {"items":[],"next":null}
    "#);
}

#[test]
fn the_audit_log_has_pages() {
    let sandbox = changed();
    let mut actions = Vec::new();
    let mut cursor = None;
    for _ in 0..3 {
        let mut words = vec!["audit", "list", "-e", "key-1", "--limit", "1", "--output", "json"];
        words.extend(cursor.as_deref().map(|cursor| ["--cursor", cursor]).into_iter().flatten());
        let output = sandbox.command(&words).output().unwrap();
        let page: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        actions.push(page["items"][0]["action"].as_str().unwrap().to_owned());
        cursor = page["next"].as_str().map(str::to_owned);
    }
    assert_eq!((actions.join(" ").as_str(), cursor), ("flags_set limits_set entity_created", None));
    assert_snapshot!(sandbox.run("audit list -e key-1 --cursor nonsense"), @"
    exit 1
    --- stderr
    error: the cursor is not one of this listing; begin without one
    ");
}

#[test]
fn the_principal_is_the_user_unless_named() {
    let sandbox = Sandbox::with_store();
    sandbox.run("entity create key-1");
    sandbox.run("entity update key-1 --display-name x --principal ops@example.com");
    assert_snapshot!(sandbox.run("audit list -e key-1"), @"
    exit 0
    --- stdout
    TIME  ACTION          WHO              RESOURCE  DETAILS
    [TIME]  entity_updated  ops@example.com  -         name=x was_name=key-1
    [TIME]  entity_created  tester           -         cascade=false name=key-1
    ");
}

#[test]
fn subjects_that_are_none() {
    let sandbox = Sandbox::with_store();
    assert_snapshot!(sandbox.run("audit list"), @"
    exit 0
    --- stdout
    no audit events
    ");
    assert_snapshot!(sandbox.run("audit list -e key-1 --system"), @"
    exit 2
    --- stderr
    error: the argument '--entity-id <ID>' cannot be used with '--system'

    Usage: zae-limiter audit list --entity-id <ID>

    For more information, try '--help'.
    ");
}

/// Use in three hours of two days, by two keys.
fn used() -> Sandbox {
    let sandbox = Sandbox::with_store();
    for (time, key, tpm) in [
        ("2026-01-31T14:30:00Z", "key-1", 900),
        ("2026-01-31T14:40:00Z", "key-2", 50),
        ("2026-01-31T16:00:00Z", "key-1", 450),
        ("2026-02-01T09:00:00Z", "key-1", 1800),
    ] {
        let limiter = sandbox.limiter_at(time);
        let limits = [parsed("rpm:100"), parsed("tpm:10000")];
        let request = Request::new(key, "gpt-4").take("rpm", 1).take("tpm", tpm).limits(limits);
        limiter.acquire(request).expect("it is granted").commit().expect("it is settled");
        limiter.close();
    }
    sandbox
}

#[test]
fn usage_by_window() {
    let sandbox = used();
    assert_snapshot!(sandbox.run("usage list -e key-1"), @"
    exit 0
    --- stdout
    WINDOW                ENTITY  RESOURCE  LIMIT  USED  GRANTS
    2026-01-31T14:00:00Z  key-1   gpt-4     rpm       1       1
    2026-01-31T14:00:00Z  key-1   gpt-4     tpm     900       1
    2026-01-31T16:00:00Z  key-1   gpt-4     rpm       1       1
    2026-01-31T16:00:00Z  key-1   gpt-4     tpm     450       1
    2026-02-01T09:00:00Z  key-1   gpt-4     rpm       1       1
    2026-02-01T09:00:00Z  key-1   gpt-4     tpm    1800       1
    ");
    assert_snapshot!(sandbox.run("usage list -r gpt-4 --window daily"), @"
    exit 0
    --- stdout
    WINDOW      ENTITY  RESOURCE  LIMIT  USED  GRANTS
    2026-01-31  key-1   gpt-4     rpm       2       2
    2026-01-31  key-1   gpt-4     tpm    1350       2
    2026-01-31  key-2   gpt-4     rpm       1       1
    2026-01-31  key-2   gpt-4     tpm      50       1
    2026-02-01  key-1   gpt-4     rpm       1       1
    2026-02-01  key-1   gpt-4     tpm    1800       1
    ");
    assert_snapshot!(sandbox.run("usage list -e key-1 -r gpt-4 -w monthly --output json"), @r#"
    exit 0
    --- stdout
    {"items":[{"entity_id":"key-1","resource":"gpt-4","window":"monthly","window_start":"2026-01","counters":{"rpm":2,"tpm":1350},"total_events":2},{"entity_id":"key-1","resource":"gpt-4","window":"monthly","window_start":"2026-02","counters":{"rpm":1,"tpm":1800},"total_events":1}],"next":null}
    "#);
    assert_snapshot!(sandbox.run("usage list -e nobody"), @"
    exit 0
    --- stdout
    no usage
    ");
}

#[test]
fn usage_between_two_times() {
    let sandbox = used();
    let count = |line: &str| {
        let (_, page) = sandbox.raw(&format!("usage list -e key-1 --output json {line}"));
        serde_json::from_str::<serde_json::Value>(&page).unwrap()["items"].as_array().unwrap().len()
    };
    assert_eq!(count(""), 3);
    assert_eq!(count("--start 2026-02-01"), 1);
    assert_eq!(count("--end 2026-01-31"), 2, "a date counts with its whole day");
    assert_eq!(count("--end 2026-01-31T00:00:00Z"), 0, "an instant does not");
    assert_eq!(count("--start 2026-01-31T15:00:00Z --end 2026-01-31T17:30:00+01:00"), 1);
    assert_snapshot!(sandbox.run("usage list -e key-1 --start 2026-02-01 --end 2026-01-31"), @"
    exit 2
    --- stderr
    error: --end is not after --start; there is no time in between
    ");
    assert_snapshot!(sandbox.run("usage list -e key-1 --start yesterday"), @r#"
    exit 2
    --- stderr
    error: invalid value 'yesterday' for '--start <TIME>': time "yesterday" cannot be read; write 2026-01-31, [TIME] or 2026-01-31T14:30:00.250+02:00

    For more information, try '--help'.
    "#);
    assert_snapshot!(sandbox.run("usage summary -e key-1 --end 2026-02-30"), @r#"
    exit 2
    --- stderr
    error: invalid value '2026-02-30' for '--end <TIME>': time "2026-02-30" does not exist: there is no day 30; write a day of the calendar and a time from 00:00:00 to 23:59:59

    For more information, try '--help'.
    "#);
    assert_snapshot!(sandbox.run("usage list"), @"
    exit 0
    --- stdout
    WINDOW                ENTITY  RESOURCE  LIMIT  USED  GRANTS
    2026-01-31T14:00:00Z  key-1   gpt-4     rpm       1       1
    2026-01-31T14:00:00Z  key-1   gpt-4     tpm     900       1
    2026-01-31T14:00:00Z  key-2   gpt-4     rpm       1       1
    2026-01-31T14:00:00Z  key-2   gpt-4     tpm      50       1
    2026-01-31T16:00:00Z  key-1   gpt-4     rpm       1       1
    2026-01-31T16:00:00Z  key-1   gpt-4     tpm     450       1
    2026-02-01T09:00:00Z  key-1   gpt-4     rpm       1       1
    2026-02-01T09:00:00Z  key-1   gpt-4     tpm    1800       1
    ");
    assert_snapshot!(sandbox.run("usage list -e key-1 --window weekly"), @"
    exit 2
    --- stderr
    error: invalid value 'weekly' for '--window <WINDOW>'
      [possible values: hourly, daily, monthly]

    For more information, try '--help'.
    ");
}

#[test]
fn usage_has_pages() {
    let sandbox = used();
    assert_snapshot!(sandbox.run("usage list -r gpt-4 --limit 1"), @"
    exit 0
    --- stdout
    WINDOW                ENTITY  RESOURCE  LIMIT  USED  GRANTS
    2026-01-31T14:00:00Z  key-1   gpt-4     rpm       1       1
    2026-01-31T14:00:00Z  key-1   gpt-4     tpm     900       1
    --- stderr
    note: there is more; go on with --cursor '1769868000000#key-1#gpt-4'
    ");
    let cursor = "1769868000000#key-1#gpt-4";
    assert_snapshot!(sandbox.run_words(&["usage", "list", "-r", "gpt-4", "--limit", "1", "--cursor", cursor]), @"
    exit 0
    --- stdout
    WINDOW                ENTITY  RESOURCE  LIMIT  USED  GRANTS
    2026-01-31T14:00:00Z  key-2   gpt-4     rpm       1       1
    2026-01-31T14:00:00Z  key-2   gpt-4     tpm      50       1
    --- stderr
    note: there is more; go on with --cursor '1769868000000#key-2#gpt-4'
    ");
    assert_snapshot!(sandbox.run("usage list -r gpt-4 --cursor nonsense --output json"), @r#"
    exit 1
    --- stderr
    {"error":{"kind":"invalid","message":"the cursor is not one of this listing; begin without one"}}
    "#);
}

#[test]
fn usage_as_charts() {
    let sandbox = used().variable("COLUMNS", "60");
    assert_snapshot!(sandbox.run("usage list -e key-1 -r gpt-4 --plot"), @"
    exit 0
    --- stdout
    rpm hourly of key-1 on gpt-4
    2026-01-31 14:00  ███████████████████████████████████████  1
    2026-01-31 15:00  0
    2026-01-31 16:00  ███████████████████████████████████████  1
    … nothing until 2026-02-01 09:00
    2026-02-01 09:00  ███████████████████████████████████████  1

    tpm hourly of key-1 on gpt-4
    2026-01-31 14:00  ██████████████████  900
    2026-01-31 15:00  0
    2026-01-31 16:00  █████████  450
    … nothing until 2026-02-01 09:00
    2026-02-01 09:00  ████████████████████████████████████  1800
    ");
    assert_snapshot!(sandbox.run("usage list -r gpt-4 --plot --window daily"), @"
    exit 0
    --- stdout
    rpm daily of all entities on gpt-4
    2026-01-31  █████████████████████████████████████████████  3
    2026-02-01  ███████████████  1

    tpm daily of all entities on gpt-4
    2026-01-31  ████████████████████████████████▋  1400
    2026-02-01  ██████████████████████████████████████████  1800
    --- stderr
    note: summed over all entities: with cascades a call counts for each member of its chain
    ");
    assert_snapshot!(sandbox.run("usage list -e nobody --plot"), @"
    exit 0
    --- stdout
    no usage
    ");
    assert_snapshot!(sandbox.run("usage list -e key-2 --plot --output json"), @r#"
    exit 0
    --- stdout
    {"items":[{"entity_id":"key-2","resource":"gpt-4","window":"hourly","window_start":"2026-01-31T14:00:00Z","counters":{"rpm":1,"tpm":50},"total_events":1}],"next":null}
    "#);
    assert_snapshot!(sandbox.run("usage list -e key-1 --plot --limit 5"), @"
    exit 2
    --- stderr
    error: the argument '--plot' cannot be used with '--max <COUNT>'

    Usage: zae-limiter usage list --entity-id <ID> --plot

    For more information, try '--help'.
    ");
    let sandbox = sandbox.variable("COLUMNS", "25");
    assert_snapshot!(sandbox.run("usage list -e key-1 --plot"), @"
    exit 0
    --- stdout
    rpm hourly of key-1 on all resources
    2026-01-31 14:00  1
    2026-01-31 15:00  0
    2026-01-31 16:00  1
    … nothing until 2026-02-01 09:00
    2026-02-01 09:00  1

    tpm hourly of key-1 on all resources
    2026-01-31 14:00  900
    2026-01-31 15:00  0
    2026-01-31 16:00  450
    … nothing until 2026-02-01 09:00
    2026-02-01 09:00  1800
    ");
}

#[test]
fn charts_in_colours_are_the_same_charts() {
    let sandbox = used();
    let plain = sandbox.run("usage list -e key-1 --plot");
    let mut colourful = sandbox.run("usage list -e key-1 --plot --color always");
    assert_ne!(plain, colourful);
    for code in ["\u{1b}[0m", "\u{1b}[1m", "\u{1b}[2m", "\u{1b}[32m"] {
        colourful = colourful.replace(code, "");
    }
    assert_eq!(plain, colourful);
    let sandbox = sandbox.variable("NO_COLOR", "1");
    assert_eq!(sandbox.run("usage list -e key-1 --plot"), plain);
}

#[test]
fn usage_in_a_few_numbers() {
    let sandbox = used();
    assert_snapshot!(sandbox.run("usage summary -e key-1"), @"
    exit 0
    --- stdout
    entity    key-1
    resource  all
    windows   3 hourly
    first     2026-01-31T14:00:00Z
    last      2026-02-01T09:00:00Z

    LIMIT  TOTAL  AVERAGE
    rpm        3        1
    tpm     3150     1050
    ");
    assert_snapshot!(sandbox.run("usage summary -r gpt-4 -w daily --output json"), @r#"
    exit 0
    --- stdout
    {"entity_id":null,"resource":"gpt-4","window":"daily","snapshots":3,"first_window":"2026-01-31","last_window":"2026-02-01","limits":[{"limit_name":"rpm","total":4,"average":1},{"limit_name":"tpm","total":3200,"average":1066}]}
    --- stderr
    {"note":"summed over all entities: with cascades a call counts for each member of its chain"}
    "#);
    assert_snapshot!(sandbox.run("usage summary -e nobody"), @"
    exit 0
    --- stdout
    no usage
    ");
    assert_snapshot!(sandbox.run("usage summary -e nobody --output json"), @r#"
    exit 0
    --- stdout
    {"entity_id":"nobody","resource":null,"window":"hourly","snapshots":0,"first_window":null,"last_window":null,"limits":[]}
    "#);
}
