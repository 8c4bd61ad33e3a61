//! House rules that a compiler does not check. Each rule is a function from what it looks at to the
//! list of offenders, and each test shows the rule an offender before it shows it the project: a
//! rule that cannot fail is none.

mod prose;
mod workflows;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Which of our crates each of our crates may depend on. Dev-dependencies may also name the testkit
/// and the crate itself.
const ARROWS: [(&str, &[&str]); 12] = [
    ("zae-limiter-core", &[]),
    ("zae-limiter-store", &["zae-limiter-core"]),
    ("zae-limiter-sqlite", &["zae-limiter-core", "zae-limiter-store"]),
    ("zae-limiter-dynamodb", &["zae-limiter-core", "zae-limiter-store"]),
    (
        "zae-limiter",
        &["zae-limiter-core", "zae-limiter-store", "zae-limiter-sqlite", "zae-limiter-dynamodb"],
    ),
    ("zae-limiter-aggregator", &["zae-limiter-core", "zae-limiter-store", "zae-limiter-dynamodb"]),
    (
        "zae-limiter-deploy",
        &["zae-limiter", "zae-limiter-aggregator", "zae-limiter-core", "zae-limiter-dynamodb"],
    ),
    ("zae-limiter-loadtest", &["zae-limiter"]),
    ("zae-limiter-manifest", &["zae-limiter"]),
    ("zae-limiter-cli", ALL),
    ("zae-limiter-testkit", ALL),
    ("zae-limiter-bench", MEASURED),
];

/// The benchmark starts engines and functions as tests do.
const MEASURED: &[&str] =
    &["zae-limiter", "zae-limiter-dynamodb", "zae-limiter-sqlite", "zae-limiter-store", TESTKIT];

const ALL: &[&str] = &[
    "zae-limiter",
    "zae-limiter-aggregator",
    "zae-limiter-core",
    "zae-limiter-deploy",
    "zae-limiter-dynamodb",
    "zae-limiter-loadtest",
    "zae-limiter-manifest",
    "zae-limiter-sqlite",
    "zae-limiter-store",
];

const TESTKIT: &str = "zae-limiter-testkit";
const LINES_MAX: usize = 600;

/// The kinds of text files whose form is checked, and the CI scripts, which have no ending.
const TEXT: [&str; 21] = [
    "rs",
    "toml",
    "md",
    "sql",
    "lock",
    "js",
    "ts",
    "tf",
    "py",
    "run",
    "engines",
    "interop",
    "second-engine",
    "infra",
    "cdk",
    "book",
    "browser",
    "getting-started",
    "package",
    "mjs",
    "css",
];

// ------------------------------------------------------------------------------------ dependencies

#[derive(Clone, Debug)]
struct Package {
    name: String,
    published: bool,
    /// Name and whether it is for tests only.
    dependencies: Vec<(String, bool)>,
}

impl Package {
    fn new(name: &str, published: bool, dependencies: &[(&str, bool)]) -> Package {
        let dependencies =
            dependencies.iter().map(|(name, dev)| (String::from(*name), *dev)).collect();
        Package { name: name.into(), published, dependencies }
    }

    fn ours(&self) -> impl Iterator<Item = &(String, bool)> {
        self.dependencies.iter().filter(|(name, _)| is_ours(name))
    }
}

fn is_ours(name: &str) -> bool {
    name == "zae-limiter" || name.starts_with("zae-limiter-")
}

/// The workspace as cargo sees it. Neither the lock file nor a network is needed to name direct
/// dependencies.
fn packages() -> Vec<Package> {
    let cargo = option_env!("CARGO").unwrap_or("cargo");
    let arguments = ["metadata", "--format-version", "1", "--no-deps", "--offline"];
    let output = Command::new(cargo)
        .args(arguments)
        .current_dir(root())
        .output()
        .expect("cargo can be started");
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value =
        serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON");
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let package = |package: &Value| Package {
        name: text(&package["name"]),
        // Null means any registry, an empty list means none.
        published: package["publish"].is_null(),
        dependencies: list(&package["dependencies"])
            .iter()
            .map(|found| (text(&found["name"]), found["kind"] == "dev"))
            .collect(),
    };
    list(&metadata["packages"]).iter().map(package).collect()
}

fn list(value: &Value) -> &Vec<Value> {
    value.as_array().expect("a list")
}

fn wrong_arrows(packages: &[Package]) -> Vec<String> {
    let mut offenders = Vec::new();
    for package in packages {
        let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| *name == package.name) else {
            offenders.push(format!("{} is not in the table of arrows", package.name));
            continue;
        };
        for (name, dev) in package.ours() {
            let by_tests = *dev && (name == TESTKIT || *name == package.name);
            if !allowed.contains(&name.as_str()) && !by_tests {
                offenders.push(format!("{} -> {name}", package.name));
            }
        }
    }
    offenders
}

fn published_on_unpublished(packages: &[Package]) -> Vec<String> {
    let unpublished: BTreeSet<&str> = packages
        .iter()
        .filter(|package| !package.published)
        .map(|package| package.name.as_str())
        .collect();
    let published = packages.iter().filter(|package| package.published);
    let normal = published.flat_map(|package| {
        package.dependencies.iter().filter(|(_, dev)| !dev).map(move |(name, _)| (package, name))
    });
    normal
        .filter(|(_, name)| unpublished.contains(name.as_str()) || *name == TESTKIT)
        .map(|(package, name)| format!("{} -> {name}", package.name))
        .collect()
}

fn serde_in_core(packages: &[Package]) -> Vec<String> {
    let core = packages.iter().filter(|package| package.name == "zae-limiter-core");
    core.flat_map(|package| &package.dependencies)
        .map(|(name, _)| name.clone())
        .filter(|name| name.starts_with("serde"))
        .collect()
}

/// Dependencies without a line in the list, and lines without a dependency.
fn unexplained(packages: &[Package], page: &str) -> Vec<String> {
    let mut used: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in packages {
        for (name, _) in package.dependencies.iter().filter(|(name, _)| !is_ours(name)) {
            used.entry(name).or_default().insert(&package.name);
        }
    }
    let reason =
        |line: &str| line.split('|').nth(3).is_some_and(|reason| !reason.trim().is_empty());
    let listed: BTreeSet<&str> = page
        .lines()
        .filter(|line| reason(line))
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .collect();
    let missing = used
        .iter()
        .filter(|(name, _)| !listed.contains(*name))
        .map(|(name, by)| format!("{name} has no reason (used by {by:?})"));
    let stale = listed
        .iter()
        .filter(|name| !used.contains_key(*name))
        .map(|name| format!("{name} is listed but not used"));
    missing.chain(stale).collect()
}

#[test]
fn dependency_arrows_point_the_right_way() {
    let sample = [
        Package::new("zae-limiter-core", true, &[("zae-limiter-store", true), ("smallvec", false)]),
        Package::new(
            "zae-limiter-sqlite",
            true,
            &[("zae-limiter-store", false), ("zae-limiter-dynamodb", false), (TESTKIT, true)],
        ),
        Package::new("zae-limiter-store", true, &[("zae-limiter-store", true), (TESTKIT, false)]),
        Package::new("zae-limiter-utils", true, &[]),
    ];
    let offenders = [
        "zae-limiter-core -> zae-limiter-store",
        "zae-limiter-sqlite -> zae-limiter-dynamodb",
        "zae-limiter-store -> zae-limiter-testkit",
        "zae-limiter-utils is not in the table of arrows",
    ];
    assert_eq!(wrong_arrows(&sample), offenders);
    enforce("dependencies that architecture does not allow", wrong_arrows(&packages()));
}

#[test]
fn what_is_published_depends_on_nothing_unpublished() {
    let sample = [
        Package::new(
            "zae-limiter",
            true,
            &[("zae-limiter-testkit", false), ("zae-limiter-bench", true)],
        ),
        Package::new(
            "zae-limiter-cli",
            true,
            &[("zae-limiter-bench", false), ("zae-limiter", false)],
        ),
        Package::new("zae-limiter-bench", false, &[("zae-limiter-testkit", false)]),
    ];
    let offenders = ["zae-limiter -> zae-limiter-testkit", "zae-limiter-cli -> zae-limiter-bench"];
    assert_eq!(published_on_unpublished(&sample), offenders);
    let packages = packages();
    assert!(
        packages.iter().any(|package| package.name == TESTKIT && !package.published),
        "the testkit is not published"
    );
    enforce(
        "published crates that depend on unpublished ones",
        published_on_unpublished(&packages),
    );
}

#[test]
fn core_does_not_know_serde() {
    assert_eq!(
        serde_in_core(&[Package::new(
            "zae-limiter-core",
            true,
            &[("serde_json", true), ("smallvec", false)]
        )]),
        ["serde_json"]
    );
    enforce("serde in core; wire forms live beside the wire", serde_in_core(&packages()));
}

/// The names of all crates that a package is built of.
fn tree_of(package: &str, features: &[&str]) -> BTreeSet<String> {
    let cargo = option_env!("CARGO").unwrap_or("cargo");
    let arguments = ["tree", "--package", package, "--edges", "normal,build", "--prefix", "none"];
    let output = Command::new(cargo)
        .args(arguments)
        .arg("--offline")
        .args(features)
        .current_dir(root())
        .output()
        .expect("cargo can be started");
    assert!(output.status.success(), "cargo tree: {}", String::from_utf8_lossy(&output.stderr));
    let words = |line: &str| line.split(' ').next().unwrap_or_default().to_owned();
    String::from_utf8_lossy(&output.stdout).lines().map(words).collect()
}

/// Whoever adds the library gets the embedded one; the AWS SDK comes only with the feature
/// `dynamodb`.
#[test]
fn the_library_brings_no_aws_crate_unless_asked() {
    let aws = |features: &[&str]| {
        tree_of("zae-limiter", features).into_iter().filter(|name| name.starts_with("aws-")).count()
    };
    assert_eq!(aws(&[]), 0, "the default library");
    assert!(aws(&["--features", "dynamodb"]) > 0, "the check looks for the right names");
}

/// The README's first command is for whoever has nothing yet: it builds no crate of stacks.
#[test]
fn the_demo_builds_nothing_for_aws() {
    let aliases = fs::read_to_string(root().join(".cargo/config.toml")).expect("the aliases");
    let demo = aliases.lines().find_map(|line| line.strip_prefix("demo = ")).expect("the alias");
    let words: Vec<&str> = demo.trim_matches('"').split_whitespace().collect();
    let features: Vec<&str> = words
        .iter()
        .enumerate()
        .filter(|(place, word)| {
            word.contains("features") || *place > 0 && words[place - 1] == "--features"
        })
        .map(|(_, word)| *word)
        .collect();
    let built = tree_of("zae-limiter-cli", &features);
    let is_for_stacks = |name: &&String| {
        name.starts_with("aws")
            || name.starts_with("lambda")
            || [
                "zae-limiter-deploy",
                "zae-limiter-dynamodb",
                "zae-limiter-aggregator",
                "flate2",
                "clap_mangen",
            ]
            .contains(&name.as_str())
    };
    let found: Vec<&String> = built.iter().filter(is_for_stacks).collect();
    assert!(found.is_empty() && built.contains("zae-limiter-sqlite"), "{features:?}: {found:?}");
    let whole = tree_of("zae-limiter-cli", &[]);
    assert!(whole.iter().any(|name| is_for_stacks(&name)), "the check looks for the right names");
}

#[test]
fn every_direct_dependency_has_a_reason() {
    let sample = [Package::new(
        "zae-limiter",
        true,
        &[("tokio", false), ("insta", true), ("serde", false), ("zae-limiter-core", false)],
    )];
    let page = "| crate | used by | why |\n|---|---|---|\n| `tokio` | us | Timers. |\n| `insta` | tests | |\n| `rand` | us | Dice. |\n";
    let offenders = [
        "insta has no reason (used by {\"zae-limiter\"})",
        "serde has no reason (used by {\"zae-limiter\"})",
        "rand is listed but not used",
    ];
    assert_eq!(unexplained(&sample, page), offenders);
    let page = fs::read_to_string(root().join("docs/dependencies.md")).expect("the list is there");
    enforce("docs/dependencies.md", unexplained(&packages(), &page));
}

// ----------------------------------------------------------------------------------------- sources

#[derive(Clone, Debug)]
struct Source {
    /// From the root of the project, with forward slashes.
    path: String,
    text: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("crates/<name> is two below the root")
        .to_owned()
}

/// Every text file of ours: the root's own, and all under `.ci`, `.cargo`, `crates`, `docs`,
/// `infra`.
fn tree() -> Vec<Source> {
    let mut sources = Vec::new();
    let mut folders = vec![(root(), true)];
    while let Some((folder, is_root)) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder can be read") {
            let entry = entry.expect("an entry can be read");
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = entry.path();
            if path.is_dir() {
                let wanted = if is_root {
                    [".ci", ".cargo", "crates", "docs", "infra"].contains(&name.as_str())
                } else {
                    !["target", "node_modules", ".terraform"].contains(&name.as_str())
                };
                folders.extend(wanted.then_some((path, false)));
            // The scripts of the diagrams are not ours: .ci/book writes them.
            } else if TEXT.contains(&name.rsplit('.').next().unwrap_or_default())
                && !name.starts_with("mermaid")
            {
                let relative = path
                    .strip_prefix(root())
                    .expect("below the root")
                    .to_string_lossy()
                    .replace('\\', "/");
                sources.push(Source {
                    path: relative,
                    text: fs::read_to_string(&path).expect("a text file"),
                });
            }
        }
    }
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(sources.len() > 50, "the project was not found");
    sources
}

fn is_rust(source: &Source) -> bool {
    source.path.ends_with(".rs")
}

/// The lines of `sources` with one of `words`, as `path:line`.
fn with_words(sources: &[Source], wanted: impl Fn(&Source) -> bool, words: &[&str]) -> Vec<String> {
    let mut offenders = Vec::new();
    for source in sources.iter().filter(|source| wanted(source)) {
        for (number, line) in (1..).zip(source.text.lines()) {
            let code = line.trim();
            if words.iter().any(|word| code.contains(word)) {
                offenders.push(format!("{}:{number}: {code}", source.path));
            }
        }
    }
    offenders
}

fn long_files(sources: &[Source]) -> Vec<String> {
    let count = |source: &Source| source.text.lines().count();
    let long = sources.iter().filter(|source| is_rust(source) && count(source) > LINES_MAX);
    long.map(|source| format!("{}: {} lines", source.path, count(source))).collect()
}

fn ignored_tests(sources: &[Source]) -> Vec<String> {
    // Written in two parts here and below, so that the rules do not find themselves.
    with_words(sources, is_rust, &[concat!("#[", "ignore"), concat!("# [", "ignore")])
}

fn machine_paths(sources: &[Source]) -> Vec<String> {
    with_words(
        sources,
        |source| !source.path.ends_with(".lock"),
        &[concat!("/wo", "rk/"), concat!("/ho", "me/"), concat!("/ro", "ot/")],
    )
}

/// What a merge leaves in a file whose two sides nobody has decided between.
fn undecided_merges(sources: &[Source]) -> Vec<String> {
    let mark = |line: &str| ["<<<<<<< ", ">>>>>>> "].iter().any(|mark| line.starts_with(mark));
    let of = |source: &Source| {
        let marked = source.text.lines().zip(1..).filter(|(line, _)| mark(line));
        marked.map(|(_, number)| format!("{}:{number}", source.path)).collect::<Vec<_>>()
    };
    sources.iter().flat_map(of).collect()
}

fn split_words(sources: &[Source]) -> Vec<String> {
    with_words(
        sources,
        |source| !source.path.ends_with(".lock"),
        &[concat!("can", " not "), concat!("Can", " not ")],
    )
}

fn stray_spaces(sources: &[Source]) -> Vec<String> {
    let mut offenders = Vec::new();
    for source in sources {
        for (number, line) in (1..).zip(source.text.split('\n')) {
            if line.contains('\t') || line.contains('\r') {
                offenders.push(format!("{}:{number}: a tab or carriage return", source.path));
            } else if line.ends_with(' ') {
                offenders.push(format!("{}:{number}: a space at the end", source.path));
            }
        }
        if !source.text.is_empty() && !source.text.ends_with('\n') {
            offenders.push(format!("{}: no newline at the end", source.path));
        }
    }
    offenders
}

fn badly_numbered_records(sources: &[Source]) -> Vec<String> {
    let mut records: Vec<(&str, &Source)> = sources
        .iter()
        .filter_map(|source| Some((source.path.strip_prefix("docs/adr/")?, source)))
        .collect();
    records.sort_by_key(|(name, _)| *name);
    let mut offenders = Vec::new();
    for (number, (name, source)) in (1..).zip(records) {
        let expected = format!("{number:04}");
        if !name.starts_with(&format!("{expected}-")) {
            offenders.push(format!("{name}: expected number {expected}"));
        } else if !source.text.starts_with(&format!("# {expected}: ")) {
            offenders.push(format!("{name}: the title does not start with \"# {expected}: \""));
        }
    }
    offenders
}

fn sample(path: &str, text: &str) -> Source {
    Source { path: path.into(), text: text.into() }
}

#[test]
fn source_files_are_short() {
    let long = "\n".repeat(LINES_MAX + 1);
    let samples = [
        sample("crates/a/src/x.rs", &long),
        sample("crates/a/src/x.md", &long),
        sample("crates/a/src/y.rs", &long[1..]),
    ];
    assert_eq!(long_files(&samples), ["crates/a/src/x.rs: 601 lines"]);
    enforce("files longer than 600 lines; split them by what they are about", long_files(&tree()));
}

#[test]
fn no_test_is_ignored() {
    let attribute = format!("#[{}]\nfn slow() {{}}\n", "ignore = \"slow\"");
    assert_eq!(ignored_tests(&[sample("crates/a/tests/x.rs", &attribute)]).len(), 1);
    enforce("tests that never run", ignored_tests(&tree()));
}

#[test]
fn no_file_names_a_place_on_one_machine() {
    for path in ["wo rk", "ho me", "ro ot"] {
        let text = format!("cd /{}/x\n", path.replace(' ', ""));
        assert_eq!(machine_paths(&[sample("docs/x.md", &text)]).len(), 1, "{path}");
    }
    enforce("paths that exist on one machine only", machine_paths(&tree()));
}

#[test]
fn merges_are_decided() {
    let text = format!("one\n{} HEAD\ntwo\n{} other\n", "<".repeat(7), ">".repeat(7));
    assert_eq!(undecided_merges(&[sample("docs/x.md", &text)]), ["docs/x.md:2", "docs/x.md:4"]);
    enforce("merges that nobody has decided", undecided_merges(&tree()));
}

#[test]
fn cannot_is_one_word() {
    let text = format!(
        "it {} be, and one can nothing do, or {} only\n{} be\n",
        "cannot",
        "cannot",
        concat!("can", " not")
    );
    assert_eq!(
        split_words(&[sample("docs/x.md", &text)]),
        [format!("docs/x.md:2: {} be", concat!("can", " not"))]
    );
    enforce("write cannot", split_words(&tree()));
}

#[test]
fn lines_have_no_tabs_and_no_spaces_at_the_end() {
    let samples =
        [sample("a.md", "one\ntwo \n\tthree\n"), sample("b.md", "no end"), sample("c.md", "")];
    let offenders = [
        "a.md:2: a space at the end",
        "a.md:3: a tab or carriage return",
        "b.md: no newline at the end",
    ];
    assert_eq!(stray_spaces(&samples), offenders);
    enforce("stray white space", stray_spaces(&tree()));
}

#[test]
fn decision_records_are_numbered_without_gaps() {
    let record = |name: &str, title: &str| sample(&format!("docs/adr/{name}"), title);
    let samples = [
        record("0001-a.md", "# 0001: A\n"),
        record("0002-b.md", "# 2: B\n"),
        record("0004-d.md", "# 0004: D\n"),
    ];
    let offenders = [
        "0002-b.md: the title does not start with \"# 0002: \"",
        "0004-d.md: expected number 0003",
    ];
    assert_eq!(badly_numbered_records(&samples), offenders);
    let tree = tree();
    assert!(
        tree.iter().any(|source| source.path.starts_with("docs/adr/")),
        "there are decision records"
    );
    enforce("decision records", badly_numbered_records(&tree));
}

#[track_caller]
fn enforce(what: &str, offenders: Vec<String>) {
    assert!(offenders.is_empty(), "{what}:\n  {}", offenders.join("\n  "));
}
