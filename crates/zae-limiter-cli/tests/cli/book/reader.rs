//! Reads the pages of the book, and the page of the command line.

use std::collections::{BTreeMap, BTreeSet};

use super::read;

/// Programs of other people: what follows them is not ours.
const FOREIGN: [&str; 14] = [
    ".ci/",
    "aws",
    "bin/",
    "cargo",
    "cdk",
    "curl",
    "git",
    "just",
    "npm",
    "pip",
    "sqlite3",
    "terraform",
    "zae-limiter-bench",
    "zcat",
];

pub(super) struct Chapter {
    /// From `docs/`.
    pub(super) path: String,
    pub(super) text: String,
}

/// The chapters of `docs/SUMMARY.md`, but for the page of the command line itself.
pub(super) fn chapters() -> Vec<Chapter> {
    let summary = read("docs/SUMMARY.md");
    let paths = summary.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    paths
        .map(|path| Chapter { path: path.to_owned(), text: read(&format!("docs/{path}")) })
        .collect()
}

impl Chapter {
    /// What stands before `Python` in a table of both is not ours.
    pub(super) fn without_python(mut self) -> Chapter {
        if self.path == "parity.md" || self.path == "python-sections.md" {
            let cut =
                |line: &str| match line.strip_prefix("| ").and_then(|row| row.split_once(" | ")) {
                    Some((_, ours)) => format!("| | {ours}"),
                    None => line.to_owned(),
                };
            self.text = self.text.lines().map(cut).collect::<Vec<_>>().join("\n");
        }
        self
    }

    /// Lines within fences of a kind, and the others.
    fn fences(&self) -> (Vec<(&str, Vec<&str>)>, Vec<&str>) {
        let (mut fences, mut prose) = (Vec::new(), Vec::new());
        let mut open: Option<(&str, Vec<&str>)> = None;
        for line in self.text.lines() {
            let mark = line.trim_start().strip_prefix("```");
            match (mark, open.take()) {
                (Some(kind), None) => open = Some((kind, Vec::new())),
                (Some(_), Some(fence)) => fences.push(fence),
                (None, Some((kind, mut lines))) => {
                    lines.push(line);
                    open = Some((kind, lines));
                }
                (None, None) => prose.push(line),
            }
        }
        (fences, prose)
    }

    /// Lines for the shell, without comments, continued ones as one.
    pub(super) fn shell_lines(&self) -> Vec<String> {
        let (fences, _) = self.fences();
        let mut lines: Vec<String> = Vec::new();
        let mut goes_on = false;
        for line in fences.iter().filter(|(kind, _)| *kind == "sh").flat_map(|(_, lines)| lines) {
            let line = line.split(" # ").next().unwrap_or_default().trim();
            let line = if line.starts_with('#') { "" } else { line };
            let text = line.trim_end_matches('\\').trim_end();
            match lines.last_mut().filter(|_| goes_on) {
                Some(last) => *last = format!("{last} {text}"),
                None => lines.push(text.to_owned()),
            }
            goes_on = line.ends_with('\\');
        }
        lines.retain(|line| !line.is_empty());
        lines
    }

    /// What stands in backticks in the prose; it may be broken over lines.
    pub(super) fn code_spans(&self) -> Vec<String> {
        let (_, prose) = self.fences();
        let mut spans = Vec::new();
        // A table's rows are paragraphs of their own.
        for paragraph in prose.join("\n").replace("\n|", "\n\n|").split("\n\n") {
            if !paragraph.contains("``") {
                let words = paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
                spans.extend(
                    words.split('`').skip(1).step_by(2).map(|code| code.replace("\\|", "|")),
                );
            }
        }
        spans
    }

    /// The first file of a kind that the page prints.
    pub(super) fn file(&self, kind: &str) -> Option<String> {
        let (fences, _) = self.fences();
        let found = fences.into_iter().find(|(found, _)| *found == kind);
        found.map(|(_, lines)| lines.join("\n") + "\n")
    }

    /// Whether there is a program that should compile.
    pub(super) fn has_programs(&self) -> bool {
        let (fences, _) = self.fences();
        fences.iter().any(|(kind, _)| kind.starts_with("rust") && !kind.contains("ignore"))
    }
}

/// Metrics that a text names, `{a,b}` as two; names of crates are none.
pub(super) fn metrics_in(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    for rest in text.split("zae_limiter_").skip(1) {
        let is_part = |c: char| c.is_ascii_lowercase() || "_{},".contains(c);
        let word = rest.split(|c| !is_part(c)).next().unwrap_or_default();
        let after = &rest[word.len()..];
        let (before, choices, end) = match word.split_once('{').and_then(|(before, rest)| {
            rest.split_once('}').map(|(choices, end)| (before, choices, end))
        }) {
            // `name{quantile="0.5"}` is a query.
            Some(parts) => parts,
            None => (word.split(['{', ',', '}']).next().unwrap_or_default(), "", ""),
        };
        let is_metric = ["_total", "_seconds", "_jobs", "_entries"]
            .iter()
            .any(|last| format!("{before}{end}").ends_with(last));
        if is_metric && !after.starts_with("::") {
            let choices = choices.split(',');
            names.extend(choices.map(|choice| format!("zae_limiter_{before}{choice}{end}")));
        }
    }
    names
}

/// The parts of a line that begin with our program, as words; what is quoted is one word.
pub(super) fn commands_of(line: &str) -> Vec<Vec<String>> {
    let line = line.replace("\"$(", " ; ").replace(")\"", " ").replace("$(", " ; ");
    let mut parts: Vec<Vec<String>> = vec![Vec::new()];
    let mut word = String::new();
    let mut quote = None;
    for c in line.chars().chain([' ']) {
        match quote {
            Some(end) if c == end => quote = None,
            None if c == '"' || c == '\'' => quote = Some(c),
            None if c.is_whitespace() || "|;&)".contains(c) => {
                if let Some(part) = parts.last_mut().filter(|_| !word.is_empty()) {
                    part.push(std::mem::take(&mut word));
                }
                if "|;&".contains(c) {
                    parts.push(Vec::new());
                }
            }
            _ => word.push(c),
        }
    }
    let ours = |part: Vec<String>| -> Option<Vec<String>> {
        let is_before = |word: &String| {
            ["do", "eval"].contains(&word.as_str())
                || (word.contains('=') && !word.starts_with('-'))
        };
        let mut words = part.into_iter().skip_while(is_before);
        let is_ours = words.next()? == "zae-limiter";
        is_ours.then(|| words.take_while(|word| !word.starts_with('>')).collect())
    };
    parts.into_iter().filter_map(ours).collect()
}

/// What the command line accepts, by its page.
pub(super) struct Reference {
    /// Flags by command, the value of a flag being whether it takes one.
    flags: BTreeMap<String, BTreeMap<String, bool>>,
    global: BTreeMap<String, bool>,
    every: BTreeSet<String>,
}

impl Reference {
    pub(super) fn read(page: &str) -> Reference {
        let mut reference =
            Reference { flags: BTreeMap::new(), global: BTreeMap::new(), every: BTreeSet::new() };
        let mut current = None;
        for line in page.lines() {
            if let Some(title) = line.strip_prefix('#') {
                let title = title.trim_start_matches('#').trim();
                current = title.strip_prefix("zae-limiter ").map(str::to_owned);
                if let Some(command) = &current {
                    reference.flags.insert(command.clone(), BTreeMap::new());
                }
            } else if let Some(entry) = line.strip_prefix("- `-") {
                let form = format!("-{}", entry.split('`').next().unwrap_or_default());
                let takes_value = form.contains('<');
                for flag in form.split(['<', ',', ' ']).filter(|word| word.starts_with('-')) {
                    reference.every.insert(flag.to_owned());
                    let flags = match &current {
                        Some(command) => reference.flags.entry(command.clone()).or_default(),
                        None => &mut reference.global,
                    };
                    flags.insert(flag.to_owned(), takes_value);
                }
            }
        }
        for flag in ["--help", "-h", "--version", "-V"] {
            reference.every.insert(flag.to_owned());
            reference.global.insert(flag.to_owned(), false);
        }
        reference
    }

    pub(super) fn commands(&self) -> usize {
        self.flags.len()
    }

    fn is_noun(&self, command: &str) -> bool {
        self.flags.keys().any(|other| other.starts_with(&format!("{command} ")))
    }

    /// What is wrong with the words of a command.
    pub(super) fn complaint(&self, words: &[String]) -> Option<String> {
        let mut command = String::new();
        let mut flags = Vec::new();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            if let Some(flag) =
                word.strip_prefix('-').map(|_| word.split('=').next().unwrap_or(word))
            {
                flags.push(flag);
                let own = self.flags.get(&command).and_then(|flags| flags.get(flag));
                let takes_value = own.or_else(|| self.global.get(flag)).copied().unwrap_or(false);
                if takes_value && !word.contains('=') {
                    words.next();
                }
                continue;
            }
            // The rest is left out.
            if word == "…" {
                break;
            }
            let longer =
                if command.is_empty() { word.clone() } else { format!("{command} {word}") };
            if self.flags.contains_key(&longer) {
                command = longer;
            } else if command.is_empty() || self.is_noun(&command) {
                return Some(format!("there is no command {longer}"));
            }
        }
        if self.is_noun(&command) && !flags.contains(&"--help") {
            return Some(format!("{command} needs a verb"));
        }
        let known = self.flags.get(&command);
        let unknown = flags.into_iter().find(|flag| {
            !self.global.contains_key(*flag)
                && !known.is_some_and(|known| known.contains_key(*flag))
        });
        unknown.map(|flag| format!("{command} has no flag {flag}"))
    }

    /// The same of code in prose, which may leave our name and much else out.
    pub(super) fn complaint_in_prose(&self, code: &str) -> Option<String> {
        let words: Vec<String> = code.split_whitespace().map(str::to_owned).collect();
        let first = words.first()?;
        if FOREIGN.iter().any(|other| first.starts_with(other)) || code.contains(" cargo ") {
            return None;
        }
        let is_plain = |word: &String| word.chars().all(|c| c.is_ascii_lowercase() || c == '-');
        let words: Vec<String> = words
            .iter()
            .map(|word| word.trim_matches(['[', ']', ',', ';', '\'']).to_owned())
            .collect();
        if first == "zae-limiter" && words.len() > 1 {
            return self.complaint(&words[1..]);
        }
        let is_command = self.flags.contains_key(first.as_str())
            && words.get(1).is_some_and(|second| {
                second.starts_with('-') || (self.is_noun(first) && is_plain(second))
            });
        if is_command {
            return self.complaint(&words);
        }
        let flag = |word: &&String| word.starts_with("--") && word.len() > 2;
        let flags = words.iter().filter(flag).map(|word| word.split('=').next().unwrap_or(word));
        let unknown = flags.into_iter().find(|flag| !self.every.contains(*flag));
        unknown.map(|flag| format!("no command has the flag {flag}"))
    }
}
