//! What documents say about the code is there: tests by their names, which are also filters, and
//! pages by their links.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Crates that paths may begin with, beside those that begin with our name.
const CRATES: [&str; 2] = ["core", "store"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Every file below `folder` whose name ends so, without what cargo has built and npm installed.
fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let is_made = ["target", "node_modules"].contains(&name.as_str());
        if path.is_dir() && !is_made && !name.starts_with('.') {
            found.extend(files(&path, ending));
        } else if name.ends_with(ending) {
            found.push(path);
        }
    }
    found
}

/// The names of functions and modules, from the text of sources.
fn names_in<'a>(sources: impl IntoIterator<Item = &'a str>) -> BTreeSet<&'a str> {
    let mut names = BTreeSet::new();
    for source in sources {
        let mut words = source
            .split(|c: char| !c.is_alphanumeric() && c != '_')
            .filter(|word| !word.is_empty())
            .peekable();
        while let Some(word) = words.next() {
            if matches!(word, "fn" | "mod") {
                names.extend(words.peek());
            }
        }
    }
    names
}

/// Paths in backticks such as `calls::a_warm_take`, of lower case only. A name may be cut with `…`
/// or `*`.
fn paths_in(page: &str) -> Vec<&str> {
    let is_path = |code: &&str| {
        let is_word = |word: &str| {
            !word.is_empty()
                && word.chars().all(|c| matches!(c, 'a'..='z' | '0'..='9' | '_' | '…' | '*'))
        };
        code.contains("::") && code.trim_end_matches("::").split("::").all(is_word)
    };
    page.lines().flat_map(|line| line.split('`').skip(1).step_by(2)).filter(is_path).collect()
}

/// Paths whose parts are no function and no module.
fn unknown<'a>(page: &'a str, names: &BTreeSet<&str>) -> Vec<&'a str> {
    let is_known = |word: &str| match word.trim_end_matches(['…', '*']) {
        whole if whole == word => {
            names.contains(word) || CRATES.contains(&word) || word.starts_with("zae_limiter")
        }
        begun => names.iter().any(|name| name.starts_with(begun)),
    };
    let ours = paths_in(page).into_iter().filter(|path| !path.starts_with("std::"));
    ours.filter(|path| !path.trim_end_matches("::").split("::").all(is_known)).collect()
}

/// Whether a path such as `shards::takes::a_take` names a function of a file with these modules in
/// its own path.
fn is_in_its_file(path: &str, sources: &[(PathBuf, String)]) -> bool {
    let mut parts: Vec<&str> = path.split("::").collect();
    let Some(name) = parts.pop() else { return false };
    sources.iter().any(|(file, text)| {
        let file = file.with_extension("");
        let folders: Vec<_> = file.iter().filter_map(|part| part.to_str()).collect();
        let folders = folders.strip_suffix(&["mod"]).unwrap_or(&folders);
        folders.ends_with(&parts) && text.contains(&format!("fn {name}("))
    })
}

/// Names in backticks between square brackets that are no link: what a claim is verified by.
fn proofs_in(page: &str) -> Vec<&str> {
    let brackets = page.split('[').skip(1).filter_map(|rest| rest.split_once(']'));
    let proofs =
        brackets.filter(|(_, after)| !after.starts_with(['(', '['])).map(|(proof, _)| proof);
    let is_name = |code: &&str| {
        !code.is_empty() && code.chars().all(|c| matches!(c, 'a'..='z' | '0'..='9' | '_'))
    };
    proofs.flat_map(|proof| proof.split('`').skip(1).step_by(2)).filter(is_name).collect()
}

fn sources() -> Vec<(PathBuf, String)> {
    ["crates", "engines"]
        .iter()
        .flat_map(|folder| files(&root().join(folder), ".rs"))
        .map(|path| (path.clone(), fs::read_to_string(path).unwrap()))
        .collect()
}

/// What the headings of a page are called in links.
fn anchors(page: &str) -> BTreeSet<String> {
    let mut is_program = false;
    let mut anchors = BTreeSet::new();
    for line in page.lines() {
        is_program ^= line.trim_start().starts_with("```");
        let title = line.trim_start_matches('#');
        if !is_program && title.len() < line.len() && title.starts_with(' ') {
            let is_kept = |c: &char| c.is_alphanumeric() || " -_".contains(*c);
            let name: String = title.trim().to_lowercase().chars().filter(is_kept).collect();
            anchors.insert(name.replace(' ', "-"));
        }
    }
    anchors
}

/// Links to files of ours that are not there, and to headings that a page does not have.
fn broken_links(page: &str, folder: &Path) -> Vec<String> {
    let targets = page.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let is_ours = |target: &&str| !target.contains("://") && !target.contains(char::is_whitespace);
    let is_broken = |target: &&str| {
        let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
        if !file.is_empty() && !folder.join(file).exists() {
            return true;
        }
        let text = match file {
            "" => page.to_owned(),
            file if file.ends_with(".md") => fs::read_to_string(folder.join(file)).unwrap(),
            _ => return false,
        };
        !anchor.is_empty() && !anchors(&text).contains(anchor)
    };
    targets.filter(is_ours).filter(is_broken).map(str::to_owned).collect()
}

fn pages() -> Vec<(PathBuf, String)> {
    let is_ours = |path: &PathBuf| !path.components().any(|part| part.as_os_str() == "LICENSES");
    files(&root(), ".md")
        .into_iter()
        .filter(is_ours)
        .map(|path| (path.clone(), fs::read_to_string(path).unwrap()))
        .collect()
}

#[test]
fn tests_that_documents_name_are_there() {
    let names =
        names_in(["mod calls { #[test] fn a_warm_take() {} async fn two_takes_at_once() {} }"]);
    let page = "`calls::a_warm_take`, `calls::a_cold_take`, `other::a_warm_take`, `calls::two_…`, `Level::entity`, `calls::`, `a::b c`, `std::fs::copy`";
    assert_eq!(unknown(page, &names), ["calls::a_cold_take", "other::a_warm_take"]);

    let sources = sources();
    let mut names = names_in(sources.iter().map(|(_, text)| text.as_str()));
    names.extend(sources.iter().filter_map(|(path, _)| path.file_stem()?.to_str()));
    let mut wrong = Vec::new();
    for (path, page) in pages() {
        wrong.extend(
            unknown(&page, &names).into_iter().map(|name| format!("{}: {name}", path.display())),
        );
    }
    assert!(wrong.is_empty(), "no tests or modules:\n{}", wrong.join("\n"));
}

/// A claim about the Python package is worth the test behind it.
#[test]
fn claims_about_the_python_package_have_their_tests() {
    let sample = [(PathBuf::from("it/shards/takes.rs"), "async fn a_take() {}".to_owned())];
    assert!(is_in_its_file("shards::takes::a_take", &sample));
    for wrong in ["shards::takes::a_split", "shards::moves::a_take", "other::takes::a_take"] {
        assert!(!is_in_its_file(wrong, &sample), "{wrong}");
    }
    let page = "[`one`, `two_takes`; `sdk::`], [`three`](x.md), `four`, [five]";
    assert_eq!(proofs_in(page), ["one", "two_takes"]);

    let sources = sources();
    let parity = fs::read_to_string(root().join("docs/parity.md")).unwrap();
    let (_, faults) = parity.split_once("## Known faults").expect("the table of faults");
    let rows: Vec<&str> = faults.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
    assert!(rows.len() > 10, "{} faults", rows.len());
    for row in rows {
        let tests = paths_in(row);
        assert!(!tests.is_empty(), "no test: {row}");
        for test in tests {
            assert!(is_in_its_file(test, &sources), "{test} is not there");
        }
    }
    let mut names = names_in(sources.iter().map(|(_, text)| text.as_str()));
    names.extend(sources.iter().filter_map(|(path, _)| path.file_stem()?.to_str()));
    let shared = fs::read_to_string(root().join("docs/python.md")).unwrap();
    let proofs = proofs_in(&shared);
    assert!(proofs.len() > 15, "{proofs:?}");
    for proof in proofs {
        assert!(names.contains(proof), "docs/python.md: {proof} is not there");
    }
}

#[test]
fn links_between_documents_lead_somewhere() {
    let page = "# A part, of `it`\n[here](tidy.rs), [gone](no-such-page.md#part), [part](#a-part-of-it), \
        [no part](#part), [nor here](../../../../README.md#no-such-heading), \
        [there](../../../../README.md#install), [elsewhere](https://example.com/x)";
    assert_eq!(
        broken_links(page, &root().join("crates/zae-limiter-testkit/tests/it")),
        ["no-such-page.md#part", "#part", "../../../../README.md#no-such-heading"]
    );
    for (path, page) in pages() {
        let broken = broken_links(&page, path.parent().unwrap());
        assert!(broken.is_empty(), "{}: links to {broken:?}", path.display());
    }
}

/// The first page of a newcomer: what it prints is compiled with the library's documentation tests.
#[test]
fn the_readme_prints_a_program_with_its_imports() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let programs: Vec<&str> =
        readme.split("```rust").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(
        !programs.is_empty()
            && programs
                .iter()
                .all(|program| program.contains("use zae_limiter::")
                    && program.contains("fn main()"))
    );
    let library = fs::read_to_string(root().join("crates/zae-limiter/src/lib.rs")).unwrap();
    assert!(
        library.contains("include_str!(\"../../../README.md\")"),
        "the README is no documentation test any more"
    );
}

/// Whoever runs the demo for the first time sees that it is being built: it takes minutes.
#[test]
fn the_demo_is_not_built_in_silence() {
    let aliases = fs::read_to_string(root().join(".cargo/config.toml")).unwrap();
    let demo =
        aliases.lines().find(|line| line.starts_with("demo = ")).expect("the alias of the README");
    assert!(!demo.split_whitespace().any(|word| matches!(word, "-q" | "--quiet")), "{demo}");
}

/// The repository of another project is not ours, and a page of a registry without a text helps
/// nobody.
#[test]
fn published_crates_say_what_they_are() {
    for manifest in files(&root().join("crates"), "Cargo.toml") {
        let text = fs::read_to_string(&manifest).unwrap();
        assert!(!text.contains("repository"), "{}: there is no public address", manifest.display());
        if !text.contains("publish = false") {
            assert!(text.contains("readme = \"README.md\""), "{}", manifest.display());
            assert!(fs::read_to_string(manifest.with_file_name("README.md")).unwrap().len() > 200);
        }
    }
}
