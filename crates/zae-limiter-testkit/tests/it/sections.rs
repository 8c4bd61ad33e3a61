//! `docs/python-sections.md` has every section of the documents of the Python package, says of each
//! whether it is here, and names places that exist.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Pages (`# cli.md`) and the titles of their sections, taken from the package's own documents,
/// version 0.17.0. Sections that only link on are left out.
const TITLES: &str = include_str!("python_sections.txt");

const STATES: [&str; 3] = ["built", "replaced", "not built"];

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

/// Titles by page, from the list.
fn wanted(list: &str) -> BTreeMap<&str, Vec<&str>> {
    let mut pages: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut page = "";
    for line in list.lines() {
        match line.strip_prefix("# ") {
            Some(name) => page = name,
            None => pages.entry(page).or_default().push(line),
        }
    }
    pages
}

/// Titles, state, place.
type Row<'a> = (Vec<&'a str>, &'a str, &'a str);

/// The rows of each page.
fn rows(text: &str) -> BTreeMap<&str, Vec<Row<'_>>> {
    let mut pages: BTreeMap<&str, Vec<Row<'_>>> = BTreeMap::new();
    let mut page = "";
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('`').and_then(|rest| rest.strip_suffix('`')) {
            page = name;
        }
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        if let [titles, state, place] = cells[..]
            && line.starts_with("| ")
            && titles != "section"
        {
            let row = (titles.split("; ").collect(), state, place);
            pages.entry(page).or_default().push(row);
        }
    }
    pages
}

fn faults(list: &str, text: &str, folder: &Path) -> Vec<String> {
    let (wanted, found) = (wanted(list), rows(text));
    let mut faults = Vec::new();
    for (page, titles) in &wanted {
        let said: Vec<&str> =
            found.get(page).into_iter().flatten().flat_map(|(titles, ..)| titles.clone()).collect();
        let missing = titles.iter().filter(|title| !said.contains(title));
        faults.extend(missing.map(|title| format!("{page}: {title} is missing")));
        let extra = said.iter().filter(|title| !titles.contains(title));
        faults.extend(extra.map(|title| format!("{page}: there is no section {title}")));
    }
    for (page, rows) in &found {
        for (titles, state, place) in rows {
            let what = format!("{page}: {}", titles[0]);
            if !STATES.contains(state) {
                faults.push(format!("{what}: {state} is no state"));
            }
            let links: Vec<&str> =
                place.split("](").skip(1).filter_map(|rest| rest.split(')').next()).collect();
            if *state == "built" && links.is_empty() {
                faults.push(format!("{what}: where?"));
            }
            // A command that is named as a place is a place once it is there.
            let gone = links.iter().filter(|link| !folder.join(link).exists());
            faults.extend(gone.map(|link| format!("{what}: {link} is not there")));
        }
    }
    faults
}

#[test]
fn every_section_of_the_python_documents_has_its_place() {
    let list = "# a.md\nOne\nTwo\n# b.md\nThree\n";
    let text = "`a.md`\n\n| section | | where |\n|---|---|---|\n| One; Four | built | [x](gone.md) |\n\n\
        `b.md`\n\n| Three | bilt | there |\n";
    assert_eq!(
        faults(list, text, &docs()),
        [
            "a.md: Two is missing",
            "a.md: there is no section Four",
            "a.md: One: gone.md is not there",
            "b.md: Three: bilt is no state"
        ]
    );
    let page = fs::read_to_string(docs().join("python-sections.md")).unwrap();
    let faults = faults(TITLES, &page, &docs());
    assert!(faults.is_empty(), "{}", faults.join("\n"));

    let count = |state: &str| -> usize {
        let rows = rows(&page);
        let rows = rows.values().flatten().filter(|(_, found, _)| *found == state);
        rows.map(|(titles, ..)| titles.len()).sum()
    };
    let said = format!(
        "{} are built, {} are replaced by something else, and {} are not built",
        count("built"),
        count("replaced"),
        count("not built")
    );
    let words = page.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains(&said), "the first paragraph should say: {said}");
}

/// Whoever reads `limits` or `loadtest` as a place finds the command.
#[test]
fn commands_that_are_named_as_places_exist() {
    let page = fs::read_to_string(docs().join("python-sections.md")).unwrap();
    let reference = fs::read_to_string(docs().join("cli.md")).unwrap();
    for (titles, state, place) in rows(&page).values().flatten() {
        for command in ["limits", "loadtest", "entity reset"] {
            if *state != "not built" && place.contains(&format!("`{command}`")) {
                let heading = format!("# zae-limiter {command}\n");
                assert!(reference.contains(&heading), "{}: there is no {command}", titles[0]);
            }
        }
    }
}
