//! House rules about what is written beside the code: rules of the protocol are cited by names that
//! exist, and prose fits the width of the code.

use std::collections::BTreeSet;

use super::{Source, enforce, is_rust, sample, tree};

const PROTOCOL: &str = "docs/protocol.md";
const COLUMNS_MAX: usize = 100;

/// Pages whose lines are not ours to break: other tests compare them as they are.
const GENERATED: [&str; 3] = ["docs/cli.md", "docs/cost.md", "docs/metrics.md"];

/// What is still being written by others, to be wrapped when it is next changed.
const NOT_YET: [&str; 8] = [
    "CHANGELOG.md",
    "WORK.md",
    "crates/zae-limiter-cli/",
    "crates/zae-limiter-deploy/",
    "docs/adr/0017-a-stack-is-made-in-two-steps.md",
    "docs/deploy.md",
    "docs/versions.md",
    "infra/",
];

/// The letters of the families of rules, by the headings of the page.
fn families(page: &str) -> BTreeSet<char> {
    let heading = |line: &str| match line.strip_prefix("## ")?.split_once(": ")?.0 {
        family if family.len() == 1 => family.chars().next(),
        _ => None,
    };
    page.lines().filter_map(heading).collect()
}

/// Words of a text that look like the name of a rule: `S3`, `S4b`, `U10`. Names of attributes and
/// instants do not: their neighbours say so.
fn rule_names<'a>(text: &'a str, families: &BTreeSet<char>) -> Vec<&'a str> {
    let is_inner = |character: char| character.is_alphanumeric() || "_`-#/…".contains(character);
    let mut names = Vec::new();
    let mut rest = text;
    let mut before = ' ';
    while let Some(start) = rest.find(|character| families.contains(&character)) {
        let left = rest[..start].chars().next_back().unwrap_or(before);
        let word = &rest[start..];
        let end = word.find(|character: char| !character.is_ascii_alphanumeric());
        let (word, after) = word.split_at(end.unwrap_or(word.len()));
        let number = word[1..].trim_end_matches(|letter: char| letter.is_ascii_lowercase());
        let is_number = !number.is_empty()
            && number.len() <= 2
            && !number.starts_with('0')
            && number.bytes().all(|digit| digit.is_ascii_digit());
        let is_name = is_number && word.len() <= number.len() + 2;
        if is_name && !is_inner(left) && !after.starts_with(is_inner) {
            names.push(word);
        }
        before = word.chars().next_back().unwrap_or(' ');
        rest = after;
    }
    names
}

/// Rules that the page defines: in bold, at the beginning of a sentence.
fn defined<'a>(page: &'a str, families: &BTreeSet<char>) -> BTreeSet<&'a str> {
    let bold = page.split("**").skip(1);
    let head = |text: &'a str| Some(text.split_once('.')?.0).filter(|head| head.len() <= 12);
    bold.filter_map(head).flat_map(|head| rule_names(head, families)).collect()
}

fn unknown_rules(sources: &[Source]) -> Vec<String> {
    let page = sources.iter().find(|source| source.path == PROTOCOL).expect("the protocol");
    let families = families(&page.text);
    let defined = defined(&page.text, &families);
    let mut offenders = Vec::new();
    for source in sources {
        for (number, line) in (1..).zip(source.text.lines()) {
            let prose = match is_rust(source) {
                true => line.find("//").map_or("", |comment| &line[comment..]),
                false if source.path.ends_with(".md") => line,
                false => "",
            };
            for name in rule_names(prose, &families) {
                if !defined.contains(name) {
                    offenders.push(format!("{}:{number}: {name}", source.path));
                }
            }
        }
    }
    offenders
}

/// Comments and prose beyond the width of the code. Tables and programs cannot be broken, and a
/// word without a space (an address) stays whole.
fn long_lines(sources: &[Source]) -> Vec<String> {
    let is_ours = |source: &&Source| {
        let path = source.path.as_str();
        !GENERATED.contains(&path) && !NOT_YET.iter().any(|name| path.starts_with(name))
    };
    let mut offenders = Vec::new();
    for source in sources.iter().filter(is_ours) {
        let mut is_program = false;
        for (number, line) in (1..).zip(source.text.lines()) {
            let text = line.trim_start();
            let text = match is_rust(source) {
                true if text.starts_with("//") => text.trim_start_matches(['/', '!']),
                false if source.path.ends_with(".md") => text.trim_start_matches("- "),
                _ => continue,
            };
            let text = text.trim_start();
            is_program ^= text.starts_with("```");
            let is_prose = !is_program && !text.starts_with('|') && text.contains(' ');
            if is_prose && line.chars().count() > COLUMNS_MAX {
                offenders.push(format!("{}:{number}", source.path));
            }
        }
    }
    offenders
}

#[test]
fn rules_that_are_cited_are_defined() {
    let page = "## S: shards\n\n**S1. One.** **S2, S3. Two.**\n- **S4b.** More (S1, S9).\n";
    let code = "let s = S7; // rule S4b, not S5\n/// S3c: `S6` at …S14:00, T1\n";
    let samples = [sample(PROTOCOL, page), sample("crates/a/src/x.rs", code)];
    let offenders =
        ["docs/protocol.md:4: S9", "crates/a/src/x.rs:1: S5", "crates/a/src/x.rs:2: S3c"];
    assert_eq!(unknown_rules(&samples), offenders);
    enforce("rules that docs/protocol.md does not define", unknown_rules(&tree()));
}

#[test]
fn prose_fits_the_width_of_the_code() {
    let (long, word) = ("a ".repeat(51), "a".repeat(101));
    let page = format!("{long}\n| {long}\n```\n{long}\n```\n{word}\n");
    let code = format!("// {long}\nlet x = {long};\n");
    let samples = [sample("docs/x.md", &page), sample("crates/a/src/x.rs", &code)];
    assert_eq!(long_lines(&samples), ["docs/x.md:1", "crates/a/src/x.rs:1"]);
    enforce("lines of more than 100 columns; wrap them", long_lines(&tree()));
}
