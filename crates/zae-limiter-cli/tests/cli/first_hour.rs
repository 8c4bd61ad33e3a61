//! What newcomers stumble over: limits that vanish, names that are typos, waits in silence, amounts
//! as people type them.

use std::process::Stdio;

use insta::assert_snapshot;

use crate::support::Sandbox;

#[test]
fn setting_limits_says_what_is_no_longer_limited() {
    let sandbox = Sandbox::with_defaults("rpm:60/day tpm:10000/day");
    sandbox.run("entity create key-1");
    assert_snapshot!(sandbox.run("system set-defaults -l rpm:60/5day"), @"
    exit 0
    --- stdout
    level  system

    LIMIT     RATE  BURST
    rpm    60/5day     60
    --- stderr
    note: no longer limited here: tpm (was 10000/day)
    note: calls that still name tpm fail here, unless they cascade to an entity that has it; buckets remember what was used of it until refilled
    note: running processes see this within their config-cache TTL (60s unless set otherwise)
    ");
    sandbox.run("system set-defaults -l rpm:60/day -l tpm:10000/day -q");
    assert_snapshot!(sandbox.run("entity set-limits key-1 -r gpt-4 -l rpm:5/day"), @"
    exit 0
    --- stdout
    level  entity key-1 on gpt-4

    LIMIT   RATE  BURST
    rpm    5/day      5
    --- stderr
    note: no longer limited here: tpm (10000/day at level: system is hidden by this level)
    note: calls that still name tpm fail here, unless they cascade to an entity that has it; buckets remember what was used of it until refilled
    note: running processes see this within their config-cache TTL (60s unless set otherwise)
    ");
    assert_snapshot!(sandbox.run("entity set-limits key-1 -r gpt-4 -l rpm:5/day --output json"), @r#"
    exit 0
    --- stdout
    {"level":"entity","entity_id":"key-1","resource":"gpt-4","limits":[{"name":"rpm","capacity":5,"refill_amount":5,"refill_period_seconds":86400,"text":"rpm:5/day"}],"disabled":null,"on_unavailable":null,"version":6,"no_longer_limited":[{"limit_name":"tpm","was":"10000/day","level":"system","hidden":true}]}
    --- stderr
    {"note":"no longer limited here: tpm (10000/day at level: system is hidden by this level)"}
    {"note":"calls that still name tpm fail here, unless they cascade to an entity that has it; buckets remember what was used of it until refilled"}
    {"note":"running processes see this within their config-cache TTL (60s unless set otherwise)"}
    "#);
    // Of weaker levels only the one that would bind counts.
    sandbox.run("resource set-defaults gpt-4 -l rph:7/day -q");
    assert_snapshot!(sandbox.run("entity set-limits key-1 -r gpt-4 -l rpm:6/day"), @"
    exit 0
    --- stdout
    level  entity key-1 on gpt-4

    LIMIT   RATE  BURST
    rpm    6/day      6
    --- stderr
    note: no longer limited here: rph (7/day at level: resource gpt-4 is hidden by this level)
    note: calls that still name rph fail here, unless they cascade to an entity that has it; buckets remember what was used of it until refilled
    note: running processes see this within their config-cache TTL (60s unless set otherwise)
    ");
    assert_snapshot!(sandbox.run("entity set-limits key-1 -l rpm:6/day"), @"
    exit 0
    --- stdout
    level  entity key-1

    LIMIT   RATE  BURST
    rpm    6/day      6
    --- stderr
    note: no longer limited here: rph (7/day at level: resource gpt-4 is hidden by this level)
    note: no longer limited here: tpm (10000/day at level: system is hidden by this level)
    note: calls that still name rph, tpm fail here, unless they cascade to an entity that has them; buckets remember what was used of them until refilled
    note: running processes see this within their config-cache TTL (60s unless set otherwise)
    ");
    // Nothing is lost, nothing is said about it.
    assert_snapshot!(sandbox.run("entity set-limits key-1 -r gpt-4 -l rpm:6/day -l rph:1/day -l tpm:1/day"), @"
    exit 0
    --- stdout
    level  entity key-1 on gpt-4

    LIMIT   RATE  BURST
    rpm    6/day      6
    rph    1/day      1
    tpm    1/day      1
    --- stderr
    note: running processes see this within their config-cache TTL (60s unless set otherwise)
    ");
}

/// An ancestor may still have the limit, and then calls that name it are held to it there.
#[test]
fn a_limit_that_an_ancestor_has_can_still_be_named() {
    let sandbox = Sandbox::with_defaults("rpm:60/day tpm:10/day");
    sandbox.run("entity create org-1");
    sandbox.run("entity create key-1 --parent org-1 --cascade");
    let shown = sandbox.run("entity set-limits key-1 -l rpm:5/day");
    let note = "note: calls that still name tpm fail here, unless they cascade to an entity that has it; buckets remember";
    assert!(shown.contains(note), "{shown}");
    assert_eq!(sandbox.raw("acquire key-1 gpt-4 -c tpm=1").0, 0);
    assert_eq!(sandbox.raw("acquire key-1 gpt-4 -c tpm=10").0, 3);
    sandbox.run("entity set-limits org-1 -l rpm:5/day");
    assert_eq!(sandbox.raw("acquire key-1 gpt-4 -c tpm=1").0, 1);
}

#[test]
fn limits_are_added_and_removed_one_by_one() {
    let sandbox = Sandbox::with_defaults("rpm:60/day tpm:10000/day");
    assert_snapshot!(sandbox.run("system set-defaults --add -l rpm:70/day,rph:5/hour"), @"
    exit 0
    --- stdout
    level  system

    LIMIT       RATE  BURST
    tpm    10000/day  10000
    rpm       70/day     70
    rph       5/hour      5
    --- stderr
    note: running processes see this within their config-cache TTL (60s unless set otherwise)
    ");
    assert_snapshot!(sandbox.run("system set-defaults --remove tpm"), @"
    exit 0
    --- stdout
    level  system

    LIMIT    RATE  BURST
    rpm    70/day     70
    rph    5/hour      5
    --- stderr
    note: no longer limited here: tpm (was 10000/day)
    note: calls that still name tpm fail here, unless they cascade to an entity that has it; buckets remember what was used of it until refilled
    note: running processes see this within their config-cache TTL (60s unless set otherwise)
    ");
    assert_snapshot!(sandbox.run("system set-defaults --remove tpm"), @"
    exit 1
    --- stderr
    error: no limit is called tpm at level: system; nothing was changed
    hint: the limits of this level are rpm, rph
    ");
    assert_snapshot!(sandbox.run("system set-defaults --remove rpm,rph"), @"
    exit 2
    --- stderr
    error: this would remove the last limit of the level; nothing was changed
    hint: delete the limits of the level with `zae-limiter system delete-defaults`
    ");
    assert_snapshot!(sandbox.run("system set-defaults"), @"
    exit 2
    --- stderr
    error: the following required arguments were not provided:
      <--limit <LIMIT>|--remove <NAME>|--on-unavailable <POLICY>>

    Usage: zae-limiter system set-defaults <--limit <LIMIT>|--remove <NAME>|--on-unavailable <POLICY>>

    For more information, try '--help'.
    ");
    assert_eq!(sandbox.raw("resource set-defaults gpt-4 --add -l rpm:1").0, 0);
    assert_eq!(sandbox.raw("resource set-defaults gpt-4 --remove rpm -l tpm:5").0, 0);
    assert_snapshot!(sandbox.run("resource get-defaults gpt-4"), @"
    exit 0
    --- stdout
    level  resource gpt-4

    LIMIT   RATE  BURST
    tpm    5/min      5
    ");
}

/// Each keeps what the others add, whoever reads and writes first.
#[test]
fn limits_added_at_the_same_time_are_all_kept() {
    // One more would exceed the attempts of a command that loses every race.
    const AT_ONCE: usize = 4;
    const ROUNDS: usize = 4;
    let sandbox = Sandbox::with_store();
    for round in 0..ROUNDS {
        let add = |index: usize| {
            let limit = format!("l{}:1/day", round * AT_ONCE + index);
            let mut command =
                sandbox.command(&["system", "set-defaults", "--add", "-q", "-l", &limit]);
            command.stdout(Stdio::null()).spawn().expect("the binary starts")
        };
        let running: Vec<_> = (0..AT_ONCE).map(add).collect();
        for mut child in running {
            assert!(child.wait().expect("it ends").success());
        }
    }
    let (_, stored) = sandbox.raw("system get-defaults --output json");
    let stored: serde_json::Value = serde_json::from_str(&stored).expect("JSON");
    assert_eq!(stored["limits"].as_array().map(Vec::len), Some(AT_ONCE * ROUNDS), "{stored}");
}

#[test]
fn a_name_nobody_created_is_granted_with_a_note() {
    let sandbox = Sandbox::with_defaults("rpm:60/day");
    sandbox.run("entity create key-1");
    sandbox.run("resource set-defaults gpt-4 -l rpm:9/day -q");
    assert_snapshot!(sandbox.run("acquire kye-1 gpt-4 -c rpm=1"), @"
    exit 0
    --- stdout
    granted

    ENTITY  LIMIT  CAPACITY  AVAILABLE  REQUESTED  WAIT
    kye-1   rpm           9          8          1  -
    --- stderr
    note: kye-1 is not a created entity; its limits come from resource gpt-4
    ");
    assert_snapshot!(sandbox.run("acquire kye-1 gpt-4 -c rpm=1 --output json"), @r#"
    exit 0
    --- stdout
    {"granted":true,"retry_after_ms":0,"limits":[{"entity_id":"kye-1","resource":"gpt-4","limit_name":"rpm","capacity":9,"available":7,"requested":1,"exceeded":false,"retry_after_ms":0}],"source":"resource","created":false}
    --- stderr
    {"note":"kye-1 is not a created entity; its limits come from resource gpt-4"}
    "#);
    assert_snapshot!(sandbox.run("acquire key-1 gpt4 -c rpm=1"), @"
    exit 0
    --- stdout
    granted

    ENTITY  LIMIT  CAPACITY  AVAILABLE  REQUESTED  WAIT
    key-1   rpm          60         59          1  -
    --- stderr
    note: gpt4 has no limits of its own; is gpt-4 meant, which has?
    ");
    assert_snapshot!(sandbox.run("acquire kye-1 gpt-4 -c rpm=1 --must-exist"), @"
    exit 1
    --- stderr
    error: there is no entity kye-1
    hint: create it with `zae-limiter entity create kye-1`
    ");
    assert_snapshot!(sandbox.run("acquire key-1 gpt-4 -c rpm=1 --must-exist --output json"), @r#"
    exit 0
    --- stdout
    {"granted":true,"retry_after_ms":0,"limits":[{"entity_id":"key-1","resource":"gpt-4","limit_name":"rpm","capacity":9,"available":8,"requested":1,"exceeded":false,"retry_after_ms":0}],"source":"resource","created":true}
    "#);
    assert_snapshot!(sandbox.run("acquire key-1 embed -c rpm=1 -q"), @"
    exit 0
    --- stdout
    granted

    ENTITY  LIMIT  CAPACITY  AVAILABLE  REQUESTED  WAIT
    key-1   rpm          60         59          1  -
    ");
    assert_snapshot!(sandbox.run("entity set-limits kye-1 -l rpm:1 --must-exist"), @"
    exit 1
    --- stderr
    error: there is no entity kye-1
    hint: create it with `zae-limiter entity create kye-1`
    ");
    assert_snapshot!(sandbox.run("entity disable kye-1 --must-exist --output json"), @r#"
    exit 1
    --- stderr
    {"error":{"kind":"not_found","message":"there is no entity kye-1","hint":"create it with `zae-limiter entity create kye-1`"}}
    "#);
    assert_snapshot!(sandbox.run("entity disable kye-1"), @"
    exit 0
    --- stdout
    disabled entity kye-1 (1 existing bucket)
    --- stderr
    note: kye-1 is not a created entity; it is remembered under this name all the same
    ");
}

#[test]
fn flags_are_seen_where_one_looks() {
    let sandbox = Sandbox::with_defaults("rpm:60/day");
    for line in [
        "entity create proj-1",
        "entity create key-1 --parent proj-1 --cascade",
        "entity create key-2",
    ] {
        assert_eq!(sandbox.raw(line).0, 0);
    }
    for line in [
        "entity disable key-2",
        "entity enable key-1 -r gpt-4",
        "entity disable key-1 -r embed",
        "resource disable gpt-4",
    ] {
        assert_eq!(sandbox.raw(line).0, 0);
    }
    assert_snapshot!(sandbox.run("entity list"), @"
    exit 0
    --- stdout
    ENTITY  PARENT  CASCADE  DISABLED  CREATED  NAME
    key-1   proj-1  yes      -         [TIME]  key-1
    key-2   -       no       yes       [TIME]  key-2
    proj-1  -       no       -         [TIME]  proj-1
    ");
    assert_snapshot!(sandbox.run("entity list --max 1 --output json"), @r#"
    exit 0
    --- stdout
    {"items":[{"entity_id":"key-1","name":"key-1","parent_id":"proj-1","cascade":true,"metadata":{},"created_at":"[TIME]","version":1,"disabled":null}],"next":"key-1"}
    --- stderr
    {"note":"there is more; go on with --cursor key-1"}
    "#);
    assert_snapshot!(sandbox.run("entity show key-1"), @"
    exit 0
    --- stdout
    entity    key-1
    name      key-1
    parent    proj-1
    cascade   yes
    created   [TIME]
    version   1
    disabled  -
              yes on embed
              no, enabled on gpt-4
    ");
    assert_snapshot!(sandbox.run("entity show key-1 --output json"), @r#"
    exit 0
    --- stdout
    {"entity_id":"key-1","name":"key-1","parent_id":"proj-1","cascade":true,"metadata":{},"created_at":"[TIME]","version":1,"disabled":null,"disabled_on":{"embed":true,"gpt-4":false}}
    "#);
    let status = sandbox.run("status");
    assert!(
        status.contains("\ndisabled    resource gpt-4, entity key-2, entity key-1 on embed\n"),
        "{status}"
    );
    assert!(status.contains("\nenabled     entity key-1 on gpt-4\n"), "{status}");
    // Enabled, and refused all the same: the answer says by whom.
    assert_snapshot!(sandbox.run("entity enable key-1 -r gpt-4"), @"
    exit 0
    --- stdout
    enabled entity key-1 on gpt-4 (0 existing buckets)
    --- stderr
    warning: key-1 cascades to proj-1, which is disabled at level: resource gpt-4: its calls are still refused
    note: running processes see this within their config-cache TTL (60s unless set otherwise)
    ");
    assert_snapshot!(sandbox.run("entity enable key-1 -r gpt-4 --output json -q"), @r#"
    exit 0
    --- stdout
    {"level":"entity","entity_id":"key-1","resource":"gpt-4","disabled":false,"buckets":0,"still_disabled":["key-1 cascades to proj-1, which is disabled at level: resource gpt-4"]}
    "#);
    assert_snapshot!(sandbox.run("acquire key-1 gpt-4 -c rpm=1"), @"
    exit 4
    --- stderr
    error: proj-1 on gpt-4 is disabled at level: resource gpt-4
    ");
}

#[test]
fn a_refusal_names_its_limit_and_says_why_nobody_waited() {
    let sandbox = Sandbox::with_defaults("rpm:2/2day tpm:5/2day");
    sandbox.run("entity create key-1");
    sandbox.run("acquire key-1 gpt-4 -c rpm=2");
    assert_snapshot!(sandbox.run("acquire key-1 gpt-4 -c rpm=1 --wait 20s"), @"
    exit 3
    --- stdout
    refused: rpm of key-1, could pass in 1d 0h
    did not wait: 1d 0h is longer than --wait 20.0s allows

    ENTITY  LIMIT  CAPACITY  AVAILABLE  REQUESTED  WAIT
    key-1   rpm           2          0          1  1d 0h
    ");
    assert_snapshot!(sandbox.run("acquire key-1 gpt-4 -c tpm=6"), @"
    exit 3
    --- stdout
    refused: 6 tpm exceeds the capacity of key-1 (5); this request can never be granted

    ENTITY  LIMIT  CAPACITY  AVAILABLE  REQUESTED  WAIT
    key-1   tpm           5          5          6  never
    ");
    assert_snapshot!(sandbox.run("available key-1 gpt-4 -c rpm=1"), @"
    exit 3
    --- stdout
    would be refused: rpm of key-1, could pass in 1d 0h

    ENTITY  LIMIT  CAPACITY  AVAILABLE  REQUESTED  WAIT
    key-1   rpm           2          0          1  1d 0h
    ");
}

/// The entity is deleted while somebody waits who wants it to exist.
#[test]
fn who_waits_for_an_entity_that_goes_is_granted_nothing() {
    let sandbox = Sandbox::with_defaults("rps:1/2sec");
    sandbox.run("entity create key-1");
    sandbox.run("acquire key-1 gpt-4 -c rps=1");
    let mut command = sandbox.command(&[
        "acquire",
        "key-1",
        "gpt-4",
        "-c",
        "rps=1",
        "--must-exist",
        "--wait",
        "20s",
    ]);
    let mut waiting = command.stderr(std::process::Stdio::piped()).spawn().expect("it runs");
    // The note says that the first look at the entity is over.
    let mut note = String::new();
    let mut stderr = std::io::BufReader::new(waiting.stderr.take().expect("its notes"));
    std::io::BufRead::read_line(&mut stderr, &mut note).expect("a note");
    assert!(note.contains("waiting"), "{note}");
    sandbox.run("entity delete key-1 --yes");
    assert_eq!(waiting.wait().expect("it ends").code(), Some(1), "the entity is gone");
}

#[test]
fn who_waits_is_told_for_what() {
    let sandbox = Sandbox::with_defaults("rps:1/sec");
    sandbox.run("entity create key-1");
    let mut notes = Vec::new();
    // The token may come back between two commands, so it is tried until one has to wait.
    for _ in 0..20 {
        let output = sandbox
            .command(&["acquire", "key-1", "gpt-4", "-c", "rps=1", "--wait", "20s"])
            .output()
            .expect("it runs");
        assert!(output.status.success(), "{output:?}");
        notes.extend(String::from_utf8(output.stderr).expect("UTF-8").lines().map(str::to_owned));
        if !notes.is_empty() {
            break;
        }
    }
    assert!(notes[0].starts_with("note: waiting: rps of key-1, could pass in "), "{notes:?}");
}

#[test]
fn amounts_and_periods_as_people_type_them() {
    let sandbox = Sandbox::with_store();
    assert_snapshot!(sandbox.run("system set-defaults -l rpm:1k/minute -l tpm:1_000/h:2M -q"), @"
    exit 0
    --- stdout
    level  system

    LIMIT       RATE    BURST
    rpm     1000/min     1000
    tpm    1000/hour  2000000
    ");
    assert_eq!(sandbox.raw("acquire key-1 gpt-4 -c rpm:1,tpm=1k").0, 0);
    assert_eq!(sandbox.raw("acquire key-1 gpt-4 -c rpm:1 --record rpm=2").0, 0);
    assert_snapshot!(sandbox.run("system set-defaults -l rpm=60/min"), @r#"
    exit 2
    --- stderr
    error: invalid value 'rpm=60/min' for '--limit <LIMIT>': limit "rpm=60/min": a colon stands between name and rate, not an equals sign; write name:rate[/period][:burst], as in tpm:10000/min:15000 or x:5/30sec

    For more information, try '--help'.
    "#);
    assert_snapshot!(sandbox.run("acquire key-1 gpt-4 -c rpm=1.5"), @"
    exit 2
    --- stderr
    error: invalid value 'rpm=1.5' for '--consume <NAME=AMOUNT>': the amount must be a whole number from 0 to 1000000000000000, as in rpm=1

    For more information, try '--help'.
    ");
}

#[test]
fn the_audit_log_names_the_user_without_any_variable() {
    let sandbox = Sandbox::with_store().variable("USER", "");
    assert_eq!(sandbox.raw("system set-defaults -l rpm:1").0, 0);
    let (_, log) = sandbox.raw("audit list --system --output json");
    let log: serde_json::Value = serde_json::from_str(&log).expect("JSON");
    let asked = std::process::Command::new("id").arg("-un").output().expect("id is there");
    assert_eq!(
        log["items"][0]["principal"],
        String::from_utf8_lossy(&asked.stdout).trim_end(),
        "{log}"
    );
}

#[test]
fn the_log_and_the_usage_of_a_namespace_are_listed_without_a_filter() {
    let sandbox = Sandbox::with_store();
    let limiter = sandbox.limiter_at("2026-01-31T14:00:00Z");
    limiter
        .set_limits(&zae_limiter::Level::System, ["rpm:10/day".parse().expect("a limit")])
        .expect("limits are stored");
    let (id, name) = ("key-1".parse().expect("an id"), "One".to_owned());
    let entity = zae_limiter::NewEntity {
        id,
        name,
        parent: None,
        cascade: false,
        metadata: Default::default(),
    };
    limiter.create_entity(entity).expect("an entity is created");
    limiter
        .disable(&zae_limiter::Level::Resource("gpt-4".parse().expect("a name")))
        .expect("a flag is stored");
    drop(limiter);
    assert_snapshot!(sandbox.run("audit list --max 3"), @"
    exit 0
    --- stdout
    TIME  SUBJECT          ACTION          WHO  RESOURCE  DETAILS
    2026-01-31T14:00:00Z  $RESOURCE:gpt-4  flags_set       ops  gpt-4     disabled=true was=inherited
    2026-01-31T14:00:00Z  key-1            entity_created  ops  -         cascade=false name=One
    2026-01-31T14:00:00Z  $SYSTEM          limits_set      ops  -         limit=rpm:10/day
    ");
    let (_, first) = sandbox.raw("audit list --max 1 --output json");
    let first: serde_json::Value = serde_json::from_str(&first).expect("JSON");
    let cursor = first["next"].as_str().expect("a cursor");
    assert!(!cursor.contains(' '), "{cursor}");
    let (exit, second) =
        sandbox.raw(&format!("audit list --max 1 --output json --cursor {cursor}"));
    assert!(exit == 0 && second.contains("\"entity_created\""), "{second}");
    assert_eq!(sandbox.raw("resource enable gpt-4").0, 0);
    assert_eq!(sandbox.raw("acquire key-1 gpt-4 -c rpm=1").0, 0);
    assert_eq!(sandbox.raw("acquire key-2 embed -c rpm=2").0, 0);
    let (exit, usage) = sandbox.raw("usage list --output json");
    assert!(exit == 0 && usage.contains("\"key-1\"") && usage.contains("\"key-2\""), "{usage}");
    let (_, usage) = sandbox.raw("usage list --output json --max 1");
    let usage: serde_json::Value = serde_json::from_str(&usage).expect("JSON");
    assert!(!usage["next"].as_str().expect("a cursor").contains(' '), "{usage}");
    assert_eq!(sandbox.raw("usage summary").0, 0);
}

#[test]
fn short_help_is_short_and_long_help_has_examples() {
    let sandbox = Sandbox::new();
    let (_, short) = sandbox.raw("entity set-limits -h");
    let (_, long) = sandbox.raw("entity set-limits --help");
    assert!(!short.contains("--endpoint-url") && long.contains("--endpoint-url"), "{short}");
    assert!(
        long.contains("How levels combine")
            && long.contains("\n  zae-limiter entity set-limits key-1 "),
        "{long}"
    );
    assert!(short.contains("--must-exist") && short.lines().count() < 25, "{short}");
}
