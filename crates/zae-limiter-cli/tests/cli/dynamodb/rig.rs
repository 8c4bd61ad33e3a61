//! A stack on an engine of its own, beside a file; the same commands on both.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use zae_limiter_testkit::engine::Engine;

use crate::support::Sandbox;

pub(super) const STACK: &str = "cli";

/// A folder whose store is a stack on an engine.
pub(super) struct Stack {
    pub(super) engine: Engine,
    pub(super) sandbox: Sandbox,
}

impl Stack {
    /// The engine with the stack in it.
    pub(super) fn new() -> Stack {
        let stack = Stack::missing();
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(stack.engine.stack(STACK).create()).expect("the stack is created");
        stack
    }

    /// The engine without any stack.
    pub(super) fn missing() -> Stack {
        let engine = Engine::start();
        let url = format!("dynamodb:{STACK}?region=us-east-1&endpoint={}", engine.endpoint());
        Stack { sandbox: Sandbox::new().variable("ZAEL_STORE", &url), engine }
    }

    /// Runs a line of words; what came out, with the engine's port masked.
    pub(super) fn run(&self, line: &str) -> String {
        let port = self.engine.endpoint().rsplit(':').next().expect("a port");
        let shown = self.sandbox.run(line).replace(port, "[PORT]");
        // Ids are drawn at random, and so is the size of what names them.
        let line = |line: &str| {
            if line.starts_with("size  ") {
                "size       [..]\n".to_owned()
            } else if line.starts_with("latency  ") {
                "latency    [..]\n".to_owned()
            } else {
                format!("{line}\n")
            }
        };
        shown.lines().map(line).collect()
    }

    /// The id of a namespace.
    pub(super) fn namespace(&self, name: &str) -> String {
        let mut namespaces = Namespaces::new();
        namespaces.look(&self.sandbox);
        namespaces.0.remove(name).unwrap_or_else(|| panic!("{name} is not in {:?}", namespaces.0))
    }

    /// Changes one attribute of an item, past all rules.
    pub(super) fn overwrite(&self, pk: &str, sk: &str, attribute: &str, value: &Value) {
        let request = json!({
            "TableName": STACK,
            "Key": {"PK": {"S": pk}, "SK": {"S": sk}},
            "UpdateExpression": "SET #a = :v",
            "ExpressionAttributeNames": {"#a": attribute},
            "ExpressionAttributeValues": {":v": value},
        });
        self.engine.call("UpdateItem", &request).ok();
    }
}

/// A stack and a file.
pub(super) struct Both {
    stack: Stack,
    file: Sandbox,
    /// What is added to every command.
    flags: &'static str,
}

impl Both {
    pub(super) fn new(flags: &'static str) -> Both {
        Both { stack: Stack::new(), file: Sandbox::with_store(), flags }
    }

    /// Writes files into the folders of both.
    pub(super) fn give(&self, files: &[(&str, &str)]) {
        for sandbox in [&self.file, &self.stack.sandbox] {
            for (name, text) in files {
                std::fs::write(sandbox.path(name), text).expect("a file");
            }
        }
    }

    /// Runs each line, an expected exit code and a command, on both, and compares what they print.
    /// Fails with all differences.
    #[track_caller]
    pub(super) fn script(&self, script: &str) {
        let (mut on_file, mut on_stack) = (Namespaces::new(), Namespaces::new());
        let mut differences = String::new();
        for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let (exit, command) = line.split_once(' ').expect("an exit code and a command");
            let expected = on_file.run(&self.file, self.flags, command);
            let found = on_stack.run(&self.stack.sandbox, self.flags, command);
            if found != expected || !expected.starts_with(&format!("exit {exit}\n")) {
                differences += &format!("\n{line}\n=== file: {expected}=== stack: {found}");
            }
        }
        assert!(differences.is_empty(), "not as expected, or not the same:{differences}");
    }
}

/// The ids of namespaces by name, as far as they are known; they are drawn at random.
struct Namespaces(BTreeMap<String, String>);

impl Namespaces {
    fn new() -> Namespaces {
        Namespaces(BTreeMap::new())
    }

    /// What a command prints, without what is different on every store.
    fn run(&mut self, sandbox: &Sandbox, flags: &str, command: &str) -> String {
        let mut line = format!("{command} {flags}");
        for (name, id) in &self.0 {
            line = line.replace(&format!("{{{name}}}"), id);
        }
        let mut shown = sandbox.run(&line);
        if command.contains("namespace ") {
            self.look(sandbox);
        }
        for (name, id) in &self.0 {
            shown = shown.replace(id, &format!("[ID of {name}]"));
        }
        without_delays(&without_millis(&without_versions(&without_cursors(&without_events(
            &without_waiting(&shown),
        )))))
    }

    fn look(&mut self, sandbox: &Sandbox) {
        for command in ["namespace list", "namespace orphans"] {
            let (_, json) = sandbox.raw(&format!("{command} --output json"));
            let listed: Value = serde_json::from_str(&json).expect("JSON");
            for namespace in listed["items"].as_array().expect("a list") {
                let text = |key: &str| namespace[key].as_str().expect("a text").to_owned();
                self.0.insert(text("name"), text("namespace_id"));
            }
        }
    }
}

/// Only a table has other processes to wait for, and says that it does.
fn without_waiting(shown: &str) -> String {
    const NOTES: [&str; 2] = [
        "note: this takes 2s: buckets are looked for twice, because their index lags behind\n",
        "{\"note\":\"this takes 2s: buckets are looked for twice, because their index lags behind\"}\n",
    ];
    let rest = NOTES.iter().fold(shown.to_owned(), |shown, note| shown.replace(note, ""));
    rest.strip_suffix("--- stderr\n").map_or(rest.clone(), str::to_owned)
}

/// The version of a level is a count on a file and an instant on a table; both only ever grow.
fn without_versions(shown: &str) -> String {
    let line = |line: &str| match (line.strip_prefix("version  "), line.rsplit_once("\"version\":"))
    {
        (Some(_), _) => "version  [VERSION]\n".to_owned(),
        (None, Some((start, _))) => format!("{start}\"version\":[VERSION]}}\n"),
        (None, None) => format!("{line}\n"),
    };
    // Those of entities are counts on both.
    let is_level = shown.contains("\nlevel ") || shown.contains("{\"level\":");
    if is_level { shown.lines().map(line).collect() } else { shown.to_owned() }
}

/// The ids of audit events, 26 characters in capitals, are drawn at random.
fn without_events(shown: &str) -> String {
    const CHARS: usize = 26;
    let is_part = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit();
    let mut masked = String::new();
    for piece in shown.split_inclusive(|c: char| !is_part(c)) {
        let word = piece.trim_end_matches(|c: char| !is_part(c));
        masked.push_str(if word.len() == CHARS { "[EVENT]" } else { word });
        masked.push_str(&piece[word.len()..]);
    }
    masked
}

/// A cursor is a store's own business: another store says the same place in other words.
fn without_cursors(shown: &str) -> String {
    let mut masked = shown.to_owned();
    if let Some((before, rest)) = masked.split_once("\"next\":\"")
        && let Some((_, after)) = rest.split_once('"')
    {
        masked = format!("{before}\"next\":\"[CURSOR]\"{after}");
    }
    // To the end of the line, or of the JSON text it stands in.
    if let Some((before, rest)) = masked.split_once("--cursor ") {
        let end = rest.find(['"', '\n']).unwrap_or(rest.len());
        masked = format!("{before}--cursor [CURSOR]{}", &rest[end..]);
    }
    masked
}

/// A flag binds at once on a file, and within the time of the configuration cache on a table whose
/// index lags. Limits from a table are lent for a while after that time.
fn without_delays(shown: &str) -> String {
    let shown = shown.replace("(60s unless set otherwise) and 5s", "(60s unless set otherwise)");
    shown
        .replace("; any the index does not list yet follow within 65 s", "")
        .replace(",\"binds_within_seconds\":65", "")
}

/// Balances in whole tokens: less than that comes back between two commands.
fn without_millis(shown: &str) -> String {
    const KEY: &str = "\"available_milli\":";
    let mut parts = shown.split(KEY);
    let mut masked = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(',').unwrap_or(part.len());
        let milli: i64 = part[..end].parse().expect("a number");
        masked += &format!("{KEY}{}000{}", milli.div_euclid(1000), &part[end..]);
    }
    masked
}
