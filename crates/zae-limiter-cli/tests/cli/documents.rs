//! `docs/json.md` has every field that a command prints, and no other. Programs that documents
//! print are complete.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::Sandbox;

/// Fields of a command, nested ones as `limits[].name`.
type Fields = BTreeSet<String>;

/// Objects whose keys are data.
const FREE_KEYS: [&str; 5] = ["metadata", "details", "counters", "disabled_on", "errors_by_kind"];
/// Fields that need an outage, a crowd, or what a target has no place for.
const RARE: [&str; 14] = [
    "buckets.skipped[].count",
    "buckets.skipped[].reason",
    "usage.skipped[].count",
    "usage.skipped[].reason",
    "degraded",
    "contended",
    "hottest[].entity_id",
    "hottest[].resource",
    "hottest[].shards",
    "hottest[].writes_per_second",
    // Of an apply that is at work, or was cut off.
    "held.who",
    "held.since",
    "held.heard",
    "held.runs",
];

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

/// The rows of each section of a page: the cells of field and type.
fn sections(page: &str) -> BTreeMap<&str, Vec<(&str, &str)>> {
    let mut sections: BTreeMap<&str, Vec<(&str, &str)>> = BTreeMap::new();
    let mut title = "";
    for line in page.lines() {
        if let Some(heading) = line.strip_prefix("### ") {
            title = heading;
        } else if line.starts_with("## ") {
            title = "";
        }
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        if let ([field, kind, _], false) = (cells.as_slice(), title.is_empty())
            && let Some(field) = field.strip_prefix('`').and_then(|field| field.strip_suffix('`'))
        {
            sections.entry(title).or_default().push((field, kind));
        }
    }
    sections
}

/// The fields of a section, with those of the objects that it links to.
fn expanded(sections: &BTreeMap<&str, Vec<(&str, &str)>>, title: &str, before: &str) -> Fields {
    let rows = sections.get(title).unwrap_or_else(|| panic!("no section {title}"));
    let mut fields = Fields::new();
    for (field, kind) in rows {
        let path = format!("{before}{field}");
        if let Some((_, linked)) = kind.split_once('[') {
            let linked = linked.split_once(']').expect("a link").0;
            let end = if kind.starts_with("list of ") { "[]." } else { "." };
            fields.extend(expanded(sections, linked, &format!("{path}{end}")));
        }
        fields.insert(path);
    }
    fields
}

/// What the page says about each command.
fn documented(page: &str) -> BTreeMap<String, Fields> {
    let sections = sections(page);
    let mut commands = BTreeMap::new();
    for title in sections.keys().filter(|title| title.starts_with('`')) {
        for command in title.split(", ") {
            assert!(
                commands.insert(command.replace('`', ""), expanded(&sections, title, "")).is_none(),
                "{command} is there twice"
            );
        }
    }
    commands
}

/// The fields of a value.
fn fields_of(value: &Value, before: &str, fields: &mut Fields) {
    match value {
        Value::Object(pairs) => {
            for (key, value) in pairs {
                let path = format!("{before}{key}");
                if !FREE_KEYS.contains(&key.as_str()) {
                    fields_of(value, &format!("{path}."), fields);
                }
                fields.insert(path);
            }
        }
        Value::Array(items) => {
            let before = format!("{}[].", before.trim_end_matches('.'));
            items.iter().for_each(|item| fields_of(item, &before, fields));
        }
        _ => {}
    }
}

/// Runs lines, and collects what each command prints. A line begins with what the page calls the
/// command, where that is more than its words.
fn collect(sandbox: &Sandbox, script: &str, found: &mut BTreeMap<String, Fields>) {
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (title, line) = line.split_once(": ").unwrap_or((line, line));
        let output = sandbox
            .command(&format!("{line} --output json --quiet").split(' ').collect::<Vec<_>>())
            .output()
            .expect("it runs");
        let value: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{line}: {error}: {output:?}"));
        let words: Vec<&str> = title.split(' ').collect();
        let title = match words.as_slice() {
            [_, "of", ..] => title.to_owned(),
            [
                noun @ ("entity" | "resource" | "system" | "namespace" | "audit" | "usage"
                | "local" | "loadtest" | "limits"),
                verb,
                ..,
            ] => {
                let listed = words
                    .iter()
                    .find(|word| ["--with-custom-limits", "--shards"].contains(word))
                    .map_or_else(String::new, |flag| format!(" {flag}"));
                format!("{noun} {verb}{listed}")
            }
            [command, ..] => (*command).to_owned(),
            [] => String::new(),
        };
        fields_of(&value, "", found.entry(title).or_default());
    }
}

/// Commands whose answer is a script or a file; the page says so at its beginning.
const PRINTS_A_FILE: [&str; 3] = ["completions", "limits export", "limits schema"];

/// What `limits` is given.
const FILES: [(&str, &str); 2] = [
    (
        "one.yaml",
        "{namespace: default, resources: {gpt-5: {limits: {rpm: 1/day}}}, entities: {key-5: {limits: \
         {rpm: 1/day}, resources: {gpt-5: {disabled: true}}}, key-6: {name: Six, limits: {rpm: \
         1/day}, resources: {gpt-5: {disabled: true}}}}}",
    ),
    ("two.yaml", "{namespace: default, resources: {gpt-5: {limits: {rpm: 2/day}}}}"),
];

const ON_A_FILE: &str = "
    version
    cfn-template
    cfn-template -o template.yaml
    man
    man --dir pages
    system set-defaults -l rpm:10/day -l tpm:100/day
    system set-defaults -l rpm:10/day
    resource set-defaults gpt-4 -l rpm:9/day -l tpm:9/day
    resource set-defaults gpt-4 -l rpm:9/day
    entity create org
    entity create key-1 --parent org --cascade --metadata tier=gold
    entity update key-1 --display-name One
    entity set-limits key-1 -r gpt-4 -l rpm:8/day -l tpm:8/day
    entity set-limits key-1 -r gpt-4 -l rpm:8/day
    system get-defaults
    resource get-defaults gpt-4
    entity get-limits key-1 -r gpt-4
    acquire key-1 gpt-4 -c rpm=1
    available key-1 gpt-4 -c rpm=1
    explain key-1 gpt-4
    entity show key-1
    entity list
    entity list --with-custom-limits gpt-4
    entity list-resources
    entity children org
    entity buckets key-1
    entity reset key-1 --yes
    resource list
    resource capacity gpt-4 rpm
    resource disable gpt-4
    entity disable key-1 -r gpt-4
    entity enable key-1 -r gpt-4
    entity clear-disabled key-1 -r gpt-4
    status of a file: status
    resource enable gpt-4
    resource clear-disabled gpt-4
    entity delete-limits key-1 -r gpt-4 --yes
    resource delete-defaults gpt-4 --yes
    system delete-defaults --yes
    entity delete key-1 --yes
    migrate --to sqlite:moved.db
    migrate --to sqlite:moved.db --dry-run
    namespace register team-a
    namespace list
    namespace show team-a
    namespace delete team-a
    namespace orphans
    namespace recover team-a
    audit list
    usage list
    usage summary
    limits plan -f one.yaml
    limits apply -f one.yaml
    limits plan -f two.yaml
    limits plan -f two.yaml --prune
    limits diff -f two.yaml
    backup copy.db
    restore copy.db --yes
    sweep
    demo --seconds 1
    loadtest run --duration 1 --users 2 --json-file run.json
    loadtest ui --duration 1 --users 2 --port 0 --json-file ui.json
    loadtest tune --max-users 1 --baseline-duration 1
    loadtest compare run.json ui.json
";

#[cfg(feature = "dynamodb")]
const ON_THE_ENGINE: &str = "
    local up --port 0 --name demo
    local status
    local env
    local logs
    aggregate --name demo --once
    lambda-export --info
    deploy --name demo
    upgrade --name demo --dry-run
    status of a stack: status --name demo
    check --name demo
    version of a stack: version --name demo
    system set-retention --usage-days 90 --audit-days 90 --name demo
    entity disable key-1 --name demo
    resource disable gpt-4 --name demo
    usage list --name demo
    usage summary --name demo
    system set-defaults -l rpm:10 --name demo
    acquire key-2 embed -c rpm=1 --name demo
    entity buckets key-2 --shards --name demo
    delete --name demo --yes
    local down
";

/// A sandbox whose engine does not outlive it, whatever fails.
#[cfg(feature = "dynamodb")]
struct Stopping(Sandbox);

#[cfg(feature = "dynamodb")]
impl Drop for Stopping {
    fn drop(&mut self) {
        self.0.raw("local down");
    }
}

/// What a section of several commands has: some print a field that others do not.
fn together(page: &str, found: &BTreeMap<String, Fields>) -> BTreeMap<String, Fields> {
    let sections = sections(page);
    let mut union = BTreeMap::new();
    for title in sections.keys().filter(|title| title.starts_with('`')) {
        let commands: Vec<String> =
            title.split(", ").map(|command| command.replace('`', "")).collect();
        let fields: Fields =
            commands.iter().filter_map(|command| found.get(command)).flatten().cloned().collect();
        union.extend(
            commands
                .into_iter()
                .filter(|command| found.contains_key(command))
                .map(|command| (command, fields.clone())),
        );
    }
    union
}

#[test]
fn every_field_is_on_the_page() {
    let page = std::fs::read_to_string(docs().join("json.md")).expect("the page");
    let documented = documented(&page);
    let mut found = BTreeMap::new();
    let sandbox = Sandbox::with_store();
    for (name, text) in FILES {
        std::fs::write(sandbox.path(name), text).expect("a file");
    }
    collect(&sandbox, ON_A_FILE, &mut found);
    let id = {
        assert_eq!(sandbox.raw("namespace delete team-a").0, 0);
        let orphans = sandbox
            .limiter()
            .orphan_namespaces(&zae_limiter::PageRequest::default())
            .expect("a page")
            .items;
        orphans.first().expect("one is deleted").id.to_string()
    };
    collect(&sandbox, &format!("namespace purge {id} --yes"), &mut found);
    #[cfg(feature = "dynamodb")]
    {
        let data = sandbox.path("data").display().to_string();
        let engine = zae_limiter_testkit::engine::binary().display().to_string();
        let local = sandbox
            .variable("XDG_DATA_HOME", &data)
            .variable("ZAEL_LOCAL_ENGINE", &engine)
            .variable("ZAEL_STORE", "");
        let local = Stopping(local);
        collect(&local.0, ON_THE_ENGINE, &mut found);
    }
    let found = together(&page, &found);
    for (command, fields) in &documented {
        // These need CloudFormation: `deploy::emulator`.
        const ON_AWS: [&str; 5] =
            ["list", "loadtest deploy", "loadtest push", "loadtest list", "loadtest delete"];
        if ON_AWS.contains(&command.as_str()) {
            continue;
        }
        if cfg!(not(feature = "dynamodb"))
            && (command.starts_with("local ")
                || [
                    "status of a stack",
                    "version of a stack",
                    "check",
                    "system set-retention",
                    "lambda-export",
                    "deploy",
                    "delete",
                    "upgrade",
                    "aggregate",
                    "entity buckets --shards",
                ]
                .contains(&command.as_str()))
        {
            continue;
        }
        let printed = found
            .get(command)
            .unwrap_or_else(|| panic!("{command} is on the page and was not run"));
        let missing: Vec<&String> = printed.difference(fields).collect();
        assert!(
            missing.is_empty(),
            "{command} prints what docs/json.md does not have: {missing:?}"
        );
        let stale: Vec<&String> =
            fields.difference(printed).filter(|field| !RARE.contains(&field.as_str())).collect();
        assert!(
            stale.is_empty(),
            "docs/json.md says of {command} what it does not print: {stale:?}"
        );
    }
    let unknown: Vec<&String> =
        found.keys().filter(|command| !documented.contains_key(*command)).collect();
    assert!(unknown.is_empty(), "docs/json.md does not have {unknown:?}");
}

#[test]
fn every_command_is_on_the_page() {
    let page = std::fs::read_to_string(docs().join("json.md")).expect("the page");
    let documented = documented(&page);
    let (_, reference) = Sandbox::new().raw("reference");
    let commands: Vec<&str> = reference
        .lines()
        .filter_map(|line| line.trim_start_matches('#').strip_prefix(" zae-limiter "))
        .collect();
    // A noun is no command: its verbs are.
    let is_command = |command: &&&str| {
        !commands.iter().any(|other| other.starts_with(&format!("{command} ")))
            && !PRINTS_A_FILE.contains(*command)
    };
    let missing: Vec<&&str> = commands
        .iter()
        .filter(is_command)
        .filter(|command| {
            !documented
                .keys()
                .any(|title| title == **command || title.starts_with(&format!("{command} of ")))
        })
        .collect();
    assert!(commands.len() > 40 && missing.is_empty(), "docs/json.md does not have {missing:?}");
}

/// Every kind that the sources name, and what an error looks like.
#[test]
fn every_kind_of_error_is_on_the_page() {
    let page = std::fs::read_to_string(docs().join("json.md")).expect("the page");
    let sources = [
        include_str!("../../src/error.rs"),
        include_str!("../../../zae-limiter-store/src/error.rs"),
    ]
    .concat();
    let product = sources
        .split("#[cfg(test)]")
        .next()
        .into_iter()
        .chain(sources.split("pub fn as_str").nth(1));
    let product: String = product.collect::<Vec<_>>().concat();
    let quoted = |start: &str| -> Vec<String> {
        product
            .split(start)
            .skip(1)
            .filter_map(|rest| rest.split_once('"'))
            .map(|(kind, _)| kind.to_owned())
            .collect()
    };
    let kinds: BTreeSet<String> =
        [quoted("Failure::new(\""), quoted("=> \"")].concat().into_iter().collect();
    for known in ["no_limits", "read_only", "usage", "aborted", "engine"] {
        assert!(kinds.contains(known), "{known} is not in {kinds:?}");
    }
    let missing: Vec<&String> =
        kinds.iter().filter(|kind| !page.contains(&format!("\n| `{kind}` | "))).collect();
    assert!(missing.is_empty(), "docs/json.md does not have {missing:?}");

    let mut printed = Fields::new();
    let sandbox = Sandbox::new();
    std::fs::write(
        sandbox.path("letter.db"),
        "a letter to my aunt, long enough to look like something".repeat(100),
    )
    .expect("a file");
    for line in
        ["entity show key-1 --output json", "entity list --store sqlite:letter.db --output json"]
    {
        let output =
            sandbox.command(&line.split(' ').collect::<Vec<_>>()).output().expect("it runs");
        fields_of(&serde_json::from_slice(&output.stderr).expect("JSON"), "", &mut printed);
    }
    assert_eq!(printed, expanded(&sections(&page), "error", ""));
}

/// A reader copies what is printed: lines that only rustdoc hides are missing, or do not compile.
#[test]
fn programs_are_printed_as_a_whole() {
    let folders = ["", "guide", "operator", "reference"].map(|folder| docs().join(folder));
    let pages = folders.iter().flat_map(|folder| {
        std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("a file").path())
    });
    for path in pages.filter(|path| path.extension().is_some_and(|extension| extension == "md")) {
        let page = std::fs::read_to_string(&path).expect("a page");
        let mut is_rust = false;
        for line in page.lines() {
            if line.starts_with("```") {
                is_rust = line.starts_with("```rust");
            }
            assert!(
                !(is_rust && (line == "#" || line.starts_with("# "))),
                "{}: {line}",
                path.display()
            );
        }
    }
}
