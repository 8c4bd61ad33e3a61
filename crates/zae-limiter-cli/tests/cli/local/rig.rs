//! A sandbox with an engine of its own.

use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::Value;
use zae_limiter_testkit::engine;

use crate::support::Sandbox;

/// How often is looked whether something has happened that takes a moment.
pub(super) const TRIES_MAX: u32 = 600;
pub(super) const PAUSE: Duration = Duration::from_millis(50);

/// A sandbox whose engine does not outlive it.
pub(super) struct Local(pub(super) Sandbox);

impl Local {
    pub(super) fn new() -> Local {
        let sandbox = Sandbox::new();
        let data = sandbox.path("data").display().to_string();
        Local(
            sandbox
                .variable("XDG_DATA_HOME", &data)
                .variable("ZAEL_LOCAL_ENGINE", &engine::binary().display().to_string()),
        )
    }

    /// With a running engine on some free port.
    pub(super) fn up() -> Local {
        let local = Local::new();
        let (exit, text) = local.0.raw("local up --detach --port 0");
        assert_eq!(exit, 0, "{text}");
        local
    }

    /// A file in the folder of the engine.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.path("data").join("zae-limiter").join("local").join(name)
    }

    pub(super) fn state(&self) -> Value {
        let text = std::fs::read(self.path("state.json")).expect("a state");
        serde_json::from_slice(&text).expect("a state in JSON")
    }

    pub(super) fn port(&self) -> u64 {
        self.state()["port"].as_u64().expect("a port")
    }

    pub(super) fn json(&self, line: &str) -> Value {
        let (exit, json) = self.0.raw(&format!("{line} --output json"));
        assert_eq!(exit, 0, "{line}: {json}");
        serde_json::from_str(&json).expect("JSON")
    }

    pub(super) fn tables(&self) -> Vec<String> {
        let status = self.json("local status");
        let tables = status["tables"].as_array().expect("a list");
        tables.iter().map(|table| table["name"].as_str().expect("a name").to_owned()).collect()
    }

    /// Runs a command; what differs between runs is masked.
    pub(super) fn run(&self, line: &str) -> String {
        let state = self.path("state.json").exists().then(|| self.state());
        masked(&self.0.run(line), state.as_ref())
    }

    pub(super) fn spawn(&self, line: &str) -> Child {
        let mut command = self.0.command(&line.split_whitespace().collect::<Vec<_>>());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts")
    }

    /// Waits for what takes a moment.
    #[track_caller]
    pub(super) fn eventually(&self, what: &str, happened: impl Fn(&Local) -> bool) {
        for _ in 0..TRIES_MAX {
            if happened(self) {
                return;
            }
            wait(PAUSE);
        }
        panic!("{what} did not happen; status: {}", self.0.run("local status"));
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        let _ = self.0.command(&["local", "down"]).output();
    }
}

#[expect(clippy::disallowed_methods, reason = "another process takes its time")]
pub(super) fn wait(time: Duration) {
    std::thread::sleep(time);
}

/// The text with the engine's process, port and sizes masked, and the program called by its name.
pub(super) fn masked(text: &str, state: Option<&Value>) -> String {
    let mut masks = Vec::new();
    for (key, mask) in [("pid", "[PID]"), ("port", "[PORT]")] {
        masks.extend(state.map(|state| (state[key].to_string(), mask)));
    }
    let text = text.replace(env!("CARGO_BIN_EXE_zae-limiter"), "zae-limiter");
    let mut masked = String::new();
    for piece in text.split_inclusive(|character: char| !character.is_ascii_alphanumeric()) {
        let word = piece.trim_end_matches(|character: char| !character.is_ascii_alphanumeric());
        let mask = masks.iter().find(|(known, _)| known == word).map_or(word, |(_, mask)| mask);
        masked = masked + mask + &piece[word.len()..];
    }
    let masked = without_worker(&masked);
    let line = |line: &str| match line.split_once("  ") {
        Some((label @ ("size" | "engine" | "workers"), value)) if !value.contains("no data") => {
            let spaces = value.len() - value.trim_start().len() + 2;
            format!("{label}{}[..]\n", " ".repeat(spaces))
        }
        _ => format!("{line}\n"),
    };
    masked.lines().map(line).collect()
}

/// The process that keeps workers alive, in JSON.
fn without_worker(text: &str) -> String {
    const KEY: &str = "\"worker_pid\":";
    let Some((before, rest)) = text.split_once(KEY) else { return text.to_owned() };
    let end = rest.trim_start_matches(|digit: char| digit.is_ascii_digit());
    let mask = if end.len() < rest.len() { "[PID]" } else { "" };
    format!("{before}{KEY}{mask}{end}")
}
