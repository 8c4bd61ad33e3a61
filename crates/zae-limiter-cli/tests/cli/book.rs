//! What the book names is there: commands, flags, metrics, types, variables. Its lines for the
//! shell run. Each rule sees an offender before it sees the book: a rule that cannot fail is none.

mod reader;
mod run;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use reader::{Chapter, Reference, chapters};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Pages for those who work on the sources: they name flags of cargo and of the benchmark.
const FOR_CONTRIBUTORS: [&str; 11] = [
    "accuracy.md",
    "backends.md",
    "benchmarks-dynamodb.md",
    "benchmarks.md",
    "contributing.md",
    "dependencies.md",
    "glossary.md",
    "guards.md",
    "protocol-model.md",
    "protocol-simulator.md",
    "protocol.md",
];

#[track_caller]
fn enforce(what: &str, offenders: &[String]) {
    assert!(offenders.is_empty(), "{what}:\n  {}", offenders.join("\n  "));
}

fn sample(text: &str) -> Chapter {
    Chapter { path: "sample.md".to_owned(), text: text.to_owned() }
}

/// Every file of sources below a folder, as one text.
fn sources(folder: &Path, text: &mut String) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && name != "node_modules" {
            sources(&path, text);
        } else if [".rs", ".yaml", ".toml"].iter().any(|end| name.ends_with(end))
            || folder.file_name().is_some_and(|folder| folder == ".ci")
        {
            text.push_str(&fs::read_to_string(&path).unwrap_or_default());
        }
    }
}

// ------------------------------------------------------------------------------ commands and flags

fn wrong_commands(chapter: &Chapter, reference: &Reference) -> Vec<String> {
    let mut wrong = Vec::new();
    for line in chapter.shell_lines() {
        for command in reader::commands_of(&line) {
            wrong.extend(reference.complaint(&command).map(|why| format!("`{line}`: {why}")));
        }
    }
    for code in chapter.code_spans() {
        wrong.extend(reference.complaint_in_prose(&code).map(|why| format!("`{code}`: {why}")));
    }
    wrong.into_iter().map(|why| format!("{}: {why}", chapter.path)).collect()
}

#[test]
fn commands_and_flags_are_those_of_the_command_line() {
    let reference = Reference::read(&read("docs/cli.md"));
    assert!(reference.commands() > 40, "{} commands", reference.commands());
    let page = "Use `zae-limiter entity shwo` or `entity create --perent x`, `--no-such-flag`,
        `deploy --wait`, `status --name STACK`, `cargo test --workspace`, `--output json`.\n
```sh
zae-limiter --name my-app usage list --plott | head -n 3   # bars
for call in 1 2; do zae-limiter acquire key-1 gpt-4 -c rpm=1 || echo $?; done
FOO=1 zae-limiter statuss && zae-limiter entity
```\n";
    let found = wrong_commands(&sample(page), &reference);
    let expected = [
        "--plott",
        "statuss",
        "`FOO=1 zae-limiter statuss && zae-limiter entity`: entity",
        "shwo",
        "--perent",
        "--no-such-flag",
    ];
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.contains(expected), "{found} should say {expected}");
    }
    let book = chapters().into_iter();
    let book = book.filter(|page| !FOR_CONTRIBUTORS.contains(&page.path.as_str()));
    let wrong: Vec<String> =
        book.flat_map(|page| wrong_commands(&page.without_python(), &reference)).collect();
    enforce("commands and flags that do not exist", &wrong);
}

// ----------------------------------------------------------------------------------------- metrics

fn unknown_metrics(text: &str, known: &BTreeSet<String>) -> Vec<String> {
    reader::metrics_in(text).into_iter().filter(|name| !known.contains(name)).collect()
}

/// The names in the table of the page, which a test of the library compares with the code.
fn metrics() -> BTreeSet<String> {
    let page = read("docs/metrics.md");
    let names = page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    names.map(str::to_owned).collect()
}

#[test]
fn metrics_are_those_of_the_library() {
    let known = metrics();
    assert!(known.len() > 15, "{known:?}");
    let text = "`zae_limiter_granted_total`, zae_limiter_grantd_total, zae_limiter::metrics, \
        `zae_limiter_deploy::Stack`, `zae_limiter_{splits,spilts}_total`";
    assert_eq!(
        unknown_metrics(text, &known),
        ["zae_limiter_grantd_total", "zae_limiter_spilts_total"]
    );
    for page in chapters() {
        let unknown = unknown_metrics(&page.text, &known);
        assert!(unknown.is_empty(), "{}: {unknown:?}", page.path);
    }
    for file in ["docs/operator/dashboard.json", "docs/operator/alerts.yaml"] {
        let text = read(file);
        let unknown = unknown_metrics(&text, &known);
        assert!(unknown.is_empty(), "{file}: {unknown:?}");
    }
    // A metric that no panel shows is a metric that nobody looks at.
    let dashboard = read("docs/operator/dashboard.json");
    let hidden: Vec<String> =
        known.iter().filter(|name| !dashboard.contains(name.as_str())).cloned().collect();
    enforce("metrics that the dashboard does not show", &hidden);
}

fn alerts(rules: &str) -> BTreeSet<&str> {
    rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect()
}

#[test]
fn every_alert_has_its_runbook() {
    assert_eq!(alerts("  - alert: One\n    expr: x\n  - alert: Two\n").len(), 2);
    let rules = read("docs/operator/alerts.yaml");
    let page = read("docs/operator/runbooks.md");
    let services = page.split("## The stack").next().expect("the first part");
    let rows: BTreeSet<&str> =
        services.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    assert_eq!(alerts(&rules), rows, "rules and rows of docs/operator/runbooks.md");
}

#[test]
fn panels_are_sound_and_those_of_the_stack_name_what_the_function_reports() {
    let dashboard: Value =
        serde_json::from_str(&read("docs/operator/dashboard.json")).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let ids: BTreeSet<_> = panels.iter().filter_map(|panel| panel["id"].as_u64()).collect();
    assert_eq!(ids.len(), panels.len(), "an id per panel");
    for target in panels.iter().flat_map(|panel| panel["targets"].as_array().expect("targets")) {
        let query = target["expr"].as_str().expect("a query");
        let open = query.matches(['(', '[', '{']).count();
        assert_eq!(open, query.matches([')', ']', '}']).count(), "{query}");
        assert!(!reader::metrics_in(query).is_empty(), "{query}");
    }

    let widgets: Value =
        serde_json::from_str(&read("docs/operator/cloudwatch.json")).expect("JSON");
    let report = read("crates/zae-limiter-aggregator/src/report.rs");
    let mut ours = 0;
    for widget in widgets["widgets"].as_array().expect("widgets") {
        for metric in widget["properties"]["metrics"].as_array().expect("metrics") {
            if metric[0] == "zae-limiter" {
                let name = metric[1].as_str().expect("a name");
                assert!(report.contains(&format!("(\"{name}\", \"")), "{name} is not reported");
                assert_eq!(metric[2], "table", "{name}");
                ours += 1;
            }
        }
    }
    assert!(ours > 5, "{ours} metrics of the function");
}

// ------------------------------------------------------------------------------------------- types

/// Members by type, from the lists of the public API and, for crates without one, from the sources.
fn members() -> BTreeMap<String, BTreeSet<String>> {
    let mut members: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for entry in fs::read_dir(root().join("docs/api")).expect("a folder") {
        let text = fs::read_to_string(entry.expect("a file").path()).expect("a text");
        for line in text.lines() {
            let (kind, item) = line.split_once(' ').expect("a kind and an item");
            if !["struct", "enum", "trait", "type", "use"].contains(&kind) {
                continue;
            }
            let (path, member) = item.split_once(": ").unwrap_or((item, ""));
            let name = path.rsplit("::").next().unwrap_or(path).to_owned();
            let member = member.split(' ').nth(1).unwrap_or_default().to_owned();
            members.entry(name).or_default().insert(member);
        }
    }
    members
}

/// Paths of two names, the first a type: `Level::entity`.
fn paths_in(code: &str) -> Vec<(String, String)> {
    let names: Vec<&str> = code.split("::").collect();
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let pair = |pair: &[&str]| {
        let before = pair[0].rsplit(|c| !is_word(c)).next().unwrap_or_default();
        let after = pair[1].split(|c| !is_word(c)).next().unwrap_or_default();
        let is_type = before.starts_with(|c: char| c.is_ascii_uppercase());
        (is_type && !after.is_empty()).then(|| (before.to_owned(), after.to_owned()))
    };
    names.windows(2).filter_map(pair).collect()
}

/// Types of other people.
const FOREIGN: [&str; 5] = ["AWS", "Fn", "IAM", "Duration", "PrometheusBuilder"];

fn unknown_paths(
    chapter: &Chapter,
    members: &BTreeMap<String, BTreeSet<String>>,
    other: &str,
) -> Vec<String> {
    let mut wrong = Vec::new();
    for code in chapter.code_spans() {
        for (name, member) in paths_in(&code) {
            let is_known = members.get(&name).is_some_and(|known| known.contains(&member))
                // Not in a list: a crate that has none.
                || (["struct", "enum", "trait"].iter().any(|kind| other.contains(&format!("pub {kind} {name}")))
                    && [format!("fn {member}("), format!("\n    {member}")].iter().any(|found| other.contains(found)));
            if !is_known && !FOREIGN.contains(&name.as_str()) {
                wrong.push(format!("{}: {name}::{member}", chapter.path));
            }
        }
    }
    wrong
}

#[test]
fn types_and_their_members_are_those_of_the_libraries() {
    let members = members();
    let mut other = String::new();
    for crate_name in ["deploy", "aggregator", "loadtest", "manifest", "dynamodb"] {
        sources(&root().join(format!("crates/zae-limiter-{crate_name}/src")), &mut other);
    }
    let page = sample(
        "`AcquireError::Exceeded`, `AcquireError::Exceded`, `Level::entity(\"x\")?`, `Levl::entity`,
        `zae_limiter_deploy::Stack::builder(..)`, `DeployError::LosesDate`, `std::fs::copy`",
    );
    assert_eq!(
        unknown_paths(&page, &members, &other),
        [
            "sample.md: AcquireError::Exceded",
            "sample.md: Levl::entity",
            "sample.md: DeployError::LosesDate"
        ]
    );
    let book = chapters().into_iter();
    let book = book.filter(|page| !FOR_CONTRIBUTORS.contains(&page.path.as_str()));
    let wrong: Vec<String> =
        book.flat_map(|page| unknown_paths(&page.without_python(), &members, &other)).collect();
    enforce("types or members that do not exist", &wrong);
}

/// What each reference page must have, whatever else it says.
#[test]
fn reference_pages_are_complete() {
    let members = members();
    let errors = read("docs/reference/errors.md");
    let on_errors = ["AcquireError", "Error", "StoreErrorKind", "OutageReason"];
    let api = read("docs/api/zae-limiter.txt") + &read("docs/api/zae-limiter-store.txt");
    for name in on_errors {
        let variants =
            api.lines().filter_map(|line| line.strip_prefix(&format!("enum {name}: variant ")));
        let variants: BTreeSet<&str> = variants.collect();
        assert!(!variants.is_empty(), "{name} has variants");
        for variant in variants {
            assert!(
                errors.contains(&format!("`{name}::{variant}`")),
                "errors.md: {name}::{variant}"
            );
        }
    }

    let configuration = read("docs/reference/configuration.md");
    for (name, left_out) in [
        ("Builder", ["build", "build_in", "", ""]),
        ("SqliteOptions", ["new", "clock", "entropy", ""]),
    ] {
        let list = if name == "Builder" { "zae-limiter" } else { "zae-limiter-sqlite" };
        let api = read(&format!("docs/api/{list}.txt"));
        let methods: Vec<&str> = api
            .lines()
            .filter_map(|line| line.strip_prefix(&format!("struct {name}: fn ")))
            .collect();
        assert!(methods.len() > 5, "{name}: {methods:?} of {}", members.len());
        for method in methods.into_iter().filter(|method| !left_out.contains(method)) {
            assert!(
                configuration.contains(&format!("`{name}::{method}`")),
                "configuration.md: {name}::{method}"
            );
        }
    }

    let environment = read("docs/reference/environment.md");
    let code = read("crates/zae-limiter-cli/src/settings/environment.rs");
    let code = code.split("#[cfg(test)]").next().expect("the product");
    let quoted = code.split("variable(\"").skip(1).filter_map(|rest| rest.split('"').next());
    // Lambda says these two, and Windows the third; the search for the engine has the fourth.
    let inner = ["_HANDLER", "AWS_LAMBDA_RUNTIME_API", "LOCALAPPDATA", "PATH"];
    for name in quoted.filter(|name| !inner.contains(name)) {
        assert!(environment.contains(&format!("`{name}`")), "environment.md: {name}");
    }

    let schema = read("docs/reference/schema.md");
    let keys = read("crates/zae-limiter-dynamodb/src/records/keys.rs");
    let keys = keys.split("#[cfg(test)]").next().expect("the product");
    let marks = keys.split(['"', '/', '}']).filter(|part| part.contains('#'));
    let marks: BTreeSet<&str> = marks
        .filter_map(|part| part.split('{').next())
        .filter(|part| part.trim_matches('#').chars().all(|c| c.is_ascii_uppercase() || c == '_'))
        .filter(|part| part.len() > 2)
        .collect();
    assert!(marks.len() > 12, "{marks:?}");
    for mark in marks {
        assert!(schema.contains(mark), "schema.md: {mark}");
    }
    for file in ["schema.sql", "schema_2.sql"] {
        let text = read(&format!("crates/zae-limiter-sqlite/src/{file}"));
        for table in text.lines().filter_map(|line| line.strip_prefix("CREATE TABLE ")) {
            let name = table.split([' ', '(']).next().unwrap_or_default();
            assert!(
                name == "usage_hour" || schema.contains(&format!("`{name}`")),
                "schema.md: {name}"
            );
        }
    }
}

// --------------------------------------------------------------------------------------- variables

fn unknown_variables(chapter: &Chapter, ours: &str, all: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    for code in chapter.code_spans().into_iter().chain(chapter.shell_lines()) {
        for word in code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
            let is_name = word.contains('_')
                && word.starts_with(|c: char| c.is_ascii_uppercase())
                && word.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
                && word.len() > 4;
            let known = if word.starts_with("ZAEL_") { ours } else { all };
            if is_name && !known.contains(word) && word != "GLIBC_TUNABLES" {
                wrong.push(format!("{}: {word}", chapter.path));
            }
        }
    }
    wrong
}

#[test]
fn variables_are_read_by_somebody() {
    let ours = read("crates/zae-limiter-cli/src/settings/environment.rs");
    let mut all = String::new();
    for folder in ["crates", ".ci"] {
        sources(&root().join(folder), &mut all);
    }
    let page = sample("`ZAEL_STORE`, `ZAEL_STOER`, `AWS_REGION`, `SNAPSHOT_WINDOW_SIZE`");
    let known = "AWS_REGION ZAEL_STORE";
    assert_eq!(
        unknown_variables(&page, known, known),
        ["sample.md: ZAEL_STOER", "sample.md: SNAPSHOT_WINDOW_SIZE"]
    );
    let book = chapters().into_iter();
    let book = book.filter(|page| !FOR_CONTRIBUTORS.contains(&page.path.as_str()));
    let users: Vec<String> = book
        .filter(|page| page.path != "dynamodb.md" && page.path != "cost.md")
        .flat_map(|page| unknown_variables(&page.without_python(), &ours, &all))
        .collect();
    enforce("variables that nobody reads", &users);
    let rest: Vec<String> =
        chapters().iter().flat_map(|page| unknown_variables(page, &all, &all)).collect();
    enforce("variables that nobody reads", &rest);
}

// ---------------------------------------------------------------------------------------- chapters

#[test]
fn every_page_is_a_chapter() {
    fn pages(folder: &Path, below: &str, found: &mut Vec<String>) {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let name = format!("{below}{}", path.file_name().unwrap_or_default().to_string_lossy());
            if path.is_dir() {
                pages(&path, &format!("{name}/"), found);
            } else if name.ends_with(".md") {
                found.push(name);
            }
        }
    }
    let mut found = Vec::new();
    pages(&root().join("docs"), "", &mut found);
    let book: BTreeSet<String> = chapters().into_iter().map(|page| page.path).collect();
    assert!(book.len() > 30, "{book:?}");
    // Decision records are read from the pages that they explain.
    let missing: Vec<String> = found
        .into_iter()
        .filter(|page| !page.starts_with("adr/") && page != "SUMMARY.md" && !book.contains(page))
        .collect();
    enforce("pages that docs/SUMMARY.md does not have", &missing);
}

/// Programs are compiled by rustdoc, where a library includes their page.
#[test]
fn every_program_is_compiled() {
    let includes = ["zae-limiter", "zae-limiter-deploy"]
        .map(|name| read(&format!("crates/{name}/src/lib.rs")))
        .concat();
    let is_compiled = |page: &Chapter| {
        !page.has_programs()
            || includes.contains(&format!("include_str!(\"../../../docs/{}\")", page.path))
    };
    assert!(!is_compiled(&sample("```rust\nfn main() {}\n```\n")));
    assert!(is_compiled(&sample("```rust,ignore\nfn main() {}\n```\n")));
    let missing: Vec<String> =
        chapters().into_iter().filter(|page| !is_compiled(page)).map(|page| page.path).collect();
    enforce("pages whose programs nobody compiles", &missing);
    let ignored: Vec<String> = chapters()
        .into_iter()
        .filter(|page| page.text.contains("```rust,ignore"))
        // One is generated and names another crate, the other is of a crate to be written.
        .filter(|page| !["metrics.md", "backends.md"].contains(&page.path.as_str()))
        .map(|page| page.path)
        .collect();
    enforce("programs that are not compiled", &ignored);
}
