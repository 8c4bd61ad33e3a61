//! DynamoDB behind the command line. The contract is "unchanged": every script runs on a file and
//! on a table, and both must print the same. Snapshots show only what is different, or what a file
//! has no word for.

mod emulated;
mod errors;
mod migrate;
mod newcomer;
mod pages;
mod rig;
mod shards;
mod stores;
mod versions;

use crate::support::Sandbox;
use rig::{Both, STACK, Stack};

/// Who has which limits: every level, and what follows from them.
const LIMITS: &str = "
    1 system get-defaults
    0 system set-defaults -l rpm:10/day -l tpm:1000/day:2000 --on-unavailable allow
    0 system set-defaults -l rpm:10/day -l tpm:1000/day
    0 system get-defaults
    1 resource get-defaults gpt-4
    0 resource set-defaults gpt-4 -l rpm:8/day
    0 resource set-defaults embed -l tpm:50/day
    0 resource get-defaults gpt-4
    0 resource list
    0 resource list --limit 1
    0 resource list --limit 1 --cursor embed
    1 entity get-limits key-1
    0 entity set-limits key-1 -l rpm:6/day
    0 entity set-limits key-1 -r gpt-4 -l rpm:4/day -l tpm:100/day
    0 entity set-limits key-2 -r gpt-4 -l rpm:3/day
    0 entity get-limits key-1
    0 entity get-limits key-1 -r gpt-4
    0 entity list --with-custom-limits gpt-4
    0 entity list --with-custom-limits gpt-4 --limit 1
    0 entity list --with-custom-limits _default_
    0 entity list-resources
    0 entity list-resources --limit 1
    0 entity list-resources --limit 2
    0 explain key-1 gpt-4
    0 explain key-1 embed
    0 explain nobody gpt-4
    0 explain nobody else
    2 entity set-limits key-1 -l rpm:1 -l rpm:2
    2 entity delete-limits key-1 -r gpt-4
    0 entity delete-limits key-1 -r gpt-4 --yes
    0 entity delete-limits key-1 -r gpt-4 --yes
    0 entity delete-limits key-1 --yes
    0 explain key-1 gpt-4
    0 resource delete-defaults gpt-4 --yes
    0 resource delete-defaults gpt-4 --yes
    0 resource list
    0 entity list-resources
    0 explain key-1 gpt-4
    0 system delete-defaults --yes
    0 system delete-defaults --yes
    0 explain key-1 gpt-4
    0 audit list --resource gpt-4
    0 audit list --entity-id key-1
    0 audit list --entity-id nobody
    0 system set-defaults -l rpm:1
    0 system set-defaults --add -l tpm:1
    0 system set-defaults --remove rpm
    1 system set-defaults --remove rpm
    0 entity set-limits key-1 -l rps:1
    0 audit list --max 3
";

/// Who there is.
const ENTITIES: &str = "
    0 entity list
    0 entity create org --display-name Everybody
    0 entity create team --parent org --cascade --metadata tier=gold --metadata since=2020
    0 entity create key-1 --parent team --cascade
    0 entity create key-2 --parent team
    0 entity create free --cascade
    1 entity create key-1
    1 entity create key-3 --parent nobody
    0 entity show team
    1 entity show nobody
    0 entity list
    0 entity list --limit 2
    0 entity list --limit 2 --cursor key-1
    0 entity children team
    0 entity children team --limit 1
    0 entity children key-1
    0 entity children nobody
    0 entity update team --display-name Crew --metadata tier=silver --remove-metadata since
    1 entity update team --display-name Late --version 1
    0 entity update team --display-name Crew --version 2
    1 entity update nobody --display-name x
    0 entity show team
    1 entity delete team --yes
    0 audit list --entity-id team
    0 entity set-limits key-1 -l rpm:5/day
    0 acquire key-1 gpt-4 -c rpm=1
    0 entity delete key-1 --yes
    1 entity delete key-1 --yes
    2 entity delete key-2
    0 entity buckets key-1
    1 entity get-limits key-1
    0 entity delete key-2 --yes
    0 entity delete team --yes
    0 entity list
";

/// Taking and looking: grants, refusals, chains, debts, resets.
const TAKES: &str = "
    1 acquire key-1 gpt-4 -c rpm=1
    0 system set-defaults -l rpm:10/day -l tpm:1000/day
    1 acquire key-1 gpt-4 -c rps=1
    0 available key-1 gpt-4
    0 acquire key-1 gpt-4 -c rpm=1 -c tpm=100
    0 acquire key-1 gpt-4 -c rpm=1 -c tpm=100 --record tpm=400
    0 acquire key-1 gpt-4 -c rpm=1 -c tpm=100 --record tpm=20
    0 available key-1 gpt-4
    0 available key-1 gpt-4 -c rpm=7
    3 available key-1 gpt-4 -c rpm=8
    3 available key-1 gpt-4 -c rpm=11
    3 acquire key-1 gpt-4 -c rpm=8
    3 acquire key-1 gpt-4 -c rpm=8 --wait 1ms
    3 acquire key-1 gpt-4 -c rpm=11
    0 acquire key-1 gpt-4 -c rpm=1 --record rpm=20
    3 acquire key-1 gpt-4 -c rpm=0
    0 available key-1 gpt-4
    0 entity buckets key-1
    0 acquire key-1 embed -c tpm=300
    0 entity buckets key-1
    0 entity buckets key-1 --limit 1
    0 acquire key-2 gpt-4 -c rpm=2 -l rpm:5/day
    0 acquire key-2 gpt-4 -c rpm=2 -l rpm:5/day
    3 acquire key-2 gpt-4 -c rpm=2 -l rpm:5/day
    0 resource capacity gpt-4 rpm
    0 resource capacity gpt-4 rpm --limit 1
    0 resource capacity gpt-4 rpm --parents-only
    2 entity reset key-1
    0 entity reset key-1 -r gpt-4 -l tpm --yes
    0 entity reset key-1 -r gpt-4 --yes
    0 entity reset key-1 --yes
    0 entity reset nobody --yes
    0 available key-1 gpt-4
    0 acquire key-1 gpt-4 -c rpm=10 -c tpm=1000
    0 entity create org
    0 entity create user --parent org --cascade
    0 entity set-limits org -l rpm:3/day
    0 acquire user gpt-4 -c rpm=2
    3 acquire user gpt-4 -c rpm=2
    0 available user gpt-4
    0 available org gpt-4
    0 explain user gpt-4
    0 entity buckets user
    0 sweep
";

/// Switching off and on. Few: on DynamoDB each takes two seconds.
const FLAGS: &str = "
    0 system set-defaults -l rpm:10/day
    0 acquire key-1 gpt-4 -c rpm=1
    0 entity disable key-1
    4 acquire key-1 gpt-4 -c rpm=1
    4 available key-1 gpt-4
    4 acquire key-1 embed -c rpm=1
    0 explain key-1 gpt-4
    0 acquire key-2 gpt-4 -c rpm=1
    0 resource disable gpt-4
    4 acquire key-2 gpt-4 -c rpm=1
    0 entity enable key-1 -r gpt-4
    0 acquire key-1 gpt-4 -c rpm=1
    0 resource list
    0 entity get-limits key-1 -r gpt-4
    0 entity list --with-custom-limits gpt-4
    0 resource get-defaults gpt-4
    0 resource enable gpt-4
    0 resource clear-disabled gpt-4
    1 resource get-defaults gpt-4
    0 acquire key-2 gpt-4 -c rpm=1
    0 entity clear-disabled key-1
    0 entity clear-disabled key-1 -r gpt-4
    0 acquire key-1 embed -c rpm=1
    0 audit list --resource gpt-4
    0 audit list --entity-id key-1
";

/// The same answers for programs; the words of a deed are one form, so three deeds are enough.
const FLAGS_IN_SHORT: &str = "
    0 system set-defaults -l rpm:10/day
    0 acquire key-1 gpt-4 -c rpm=1
    0 entity disable key-1 -r gpt-4
    4 acquire key-1 gpt-4 -c rpm=1
    4 available key-1 gpt-4
    0 explain key-1 gpt-4
    0 entity get-limits key-1 -r gpt-4
    0 entity buckets key-1
    0 resource enable gpt-4
    0 resource get-defaults gpt-4
    0 entity clear-disabled key-1 -r gpt-4
    1 entity get-limits key-1 -r gpt-4
    0 acquire key-1 gpt-4 -c rpm=1
    0 audit list --resource gpt-4
    0 audit list --entity-id key-1
";

/// Tenants. `{name}` is the id of the namespace that was last called so.
const NAMESPACES: &str = "
    0 namespace list
    0 namespace register team-a team-b
    0 namespace register team-a
    0 namespace list
    0 namespace list --limit 1
    0 namespace list --limit 1 --cursor default
    0 namespace show team-a --quiet
    1 namespace show nobody
    1 -N nobody system get-defaults
    0 -N team-a system set-defaults -l rpm:3/day
    1 -N team-b system get-defaults
    1 system get-defaults
    0 -N team-a acquire key-1 gpt-4 -c rpm=3
    3 -N team-a acquire key-1 gpt-4 -c rpm=1
    0 -N team-b acquire key-1 gpt-4 -c rpm=1 -l rpm:1/day
    0 -N team-a entity create org
    0 -N team-a entity list
    0 entity list
    0 namespace orphans
    1 namespace recover {team-a}
    1 namespace purge {team-a} --yes
    2 namespace delete default
    0 namespace delete team-a
    1 namespace delete team-a --yes
    1 -N team-a system get-defaults
    0 namespace recover team-a
    2 namespace recover team-a
    0 namespace delete team-a
    1 -N team-a system get-defaults
    0 namespace list
    0 namespace orphans
    0 namespace recover {team-a}
    3 -N team-a acquire key-1 gpt-4 -c rpm=1
    0 namespace orphans
    0 namespace delete team-a --yes
    2 namespace purge {team-a}
";

/// Limits as files: those of `FILES_GIVEN` lie beside the store.
const FILES: &str = "
    0 limits plan -f one.yaml
    0 limits apply -f one.yaml --reason first
    0 limits plan -f one.yaml
    0 limits diff -f one.yaml
    0 limits export
    0 limits apply -f one.yaml
    0 limits plan -f two.yaml
    6 limits diff -f two.yaml
    0 limits apply -f two.yaml --prune --dry-run
    0 limits apply -f two.yaml --prune
    0 limits diff -f two.yaml
    0 limits export
    1 limits apply -f moved.yaml
    1 limits apply -f kinds.yaml
    0 limits export
    0 limits apply -f tenant.yaml
    0 -N tenant limits export
    0 limits schema
";

const FILES_GIVEN: [(&str, &str); 5] = [
    (
        "one.yaml",
        "{namespace: default, system: {limits: {rpm: 9/day}, on_unavailable: allow}, resources: \
         {gpt-4: {limits: {rpm: 5/day}, disabled: true}}, entities: {org: {name: Org}, key: \
         {parent: org, cascade: true, metadata: {a: b}, limits: {tpm: 7/day}, resources: {gpt-4: \
         {limits: {rpm: 2/day:4}, disabled: false}}}}}",
    ),
    (
        "two.yaml",
        "{namespace: default, system: {limits: {rpm: 8/day}, on_unavailable: block}, resources: \
         {gpt-4: {limits: {rpm: 5/day}}}, entities: {org: {name: New, metadata: {c: d}}}}",
    ),
    (
        "moved.yaml",
        "{namespace: default, resources: {x: {limits: {rpm: 1/day}}}, entities: {org: {parent: key}}}",
    ),
    (
        "kinds.yaml",
        "{namespace: default, resources: {x: {limits: {rpm: {capacity: 1, soft: true}}}}}",
    ),
    ("tenant.yaml", "{namespace: tenant, resources: {x: {limits: {rpm: 1/day}}}}"),
];

/// A store moves to another one through a pipe, and a stack that an apply was killed on is finished
/// by the next apply.
#[test]
fn files_move_between_stores_and_survive_kill_9() {
    use crate::files::{killed, many, piped};
    let (file, stack) = (Sandbox::with_store(), Stack::new());
    for sandbox in [&file, &stack.sandbox] {
        std::fs::write(sandbox.path("many.yaml"), many(250)).expect("a file");
    }
    assert_eq!(file.raw("limits apply -f many.yaml --quiet").0, 0);
    let (_, exported) = file.raw("limits export");
    let there = killed(&stack.sandbox, 1);
    assert!(there < 250, "killed too late: {there}");
    assert_eq!(piped(&stack.sandbox, &exported), 0);
    assert!(stack.sandbox.raw("limits export").1 == exported, "the exports differ");
    let (exit, plan) = stack.sandbox.raw("limits plan -f many.yaml --prune");
    let line = "0 to add, 0 to change, 0 to remove, 501 as in the file\n";
    assert_eq!((exit, plan.as_str()), (0, line));
}

/// Every word of every answer, on both stores.
mod tables {
    use super::{Both, ENTITIES, FILES, FILES_GIVEN, FLAGS, LIMITS, NAMESPACES, TAKES};

    #[test]
    fn files() {
        let both = Both::new("");
        both.give(&FILES_GIVEN);
        both.script(FILES);
    }

    #[test]
    fn limits() {
        Both::new("").script(LIMITS);
    }

    #[test]
    fn entities() {
        Both::new("").script(ENTITIES);
    }

    #[test]
    fn takes() {
        Both::new("").script(TAKES);
    }

    #[test]
    fn flags() {
        Both::new("").script(FLAGS);
    }

    #[test]
    fn namespaces() {
        Both::new("").script(NAMESPACES);
    }
}

/// The same for programs.
mod json {
    use super::{Both, ENTITIES, FLAGS_IN_SHORT, LIMITS, NAMESPACES, TAKES};

    #[test]
    fn limits() {
        Both::new("--output json").script(LIMITS);
    }

    #[test]
    fn entities() {
        Both::new("--output json").script(ENTITIES);
    }

    #[test]
    fn takes() {
        Both::new("--output json").script(TAKES);
    }

    #[test]
    fn flags() {
        Both::new("--output json").script(FLAGS_IN_SHORT);
    }

    #[test]
    fn namespaces() {
        Both::new("--output json").script(NAMESPACES);
    }
}

/// Commands that have nothing to do with where limits live.
const ELSEWHERE: [&str; 15] = [
    "aggregate",
    "cfn-template",
    "check",
    "completions",
    "delete",
    "demo",
    "deploy",
    "lambda-export",
    "list",
    "loadtest",
    "local",
    "man",
    "reference",
    "upgrade",
    "version",
];
/// Commands whose answers differ, by design: `stores.rs` shows how.
const DIFFERENT: [&str; 8] = [
    "migrate",
    "usage list",
    "usage summary",
    "status",
    "backup",
    "restore",
    "namespace purge",
    "system set-retention",
];

#[test]
fn no_command_is_left_out() {
    let (_, reference) = Sandbox::new().raw("reference");
    let headings = reference
        .lines()
        .filter(|line| line.starts_with('#'))
        .filter_map(|line| line.split_once("zae-limiter "));
    let commands: Vec<&str> = headings.map(|(_, command)| command).collect();
    assert!(commands.len() > 40, "{commands:?}");
    let is_group =
        |command: &str| commands.iter().any(|other| other.starts_with(&format!("{command} ")));
    let scripts = [LIMITS, ENTITIES, TAKES, FLAGS, FILES, NAMESPACES].concat();
    for command in commands.iter().filter(|command| !is_group(command)) {
        let is_elsewhere = ELSEWHERE.contains(&command.split(' ').next().unwrap_or_default());
        let is_tried = scripts
            .lines()
            .filter_map(|line| line.trim_start().get(2..)?.strip_prefix(command))
            .any(|rest| rest.is_empty() || rest.starts_with(' '));
        assert!(
            is_elsewhere || is_tried || DIFFERENT.contains(command),
            "{command} is not tried on DynamoDB"
        );
    }
}
