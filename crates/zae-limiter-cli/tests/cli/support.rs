//! A folder of its own for each test, the binary run in it, and filters for what differs between
//! runs.

use std::fmt::{Debug, Write as _};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::str::FromStr;

use tempfile::TempDir;
use zae_limiter::ManualClock;
use zae_limiter::blocking::RateLimiter;
use zae_limiter::domain::parse_rfc3339;
use zae_limiter::sqlite::SqliteStore;
use zae_limiter::store::SeededEntropy;

/// A folder with a store file, and an environment that knows nothing else.
pub(crate) struct Sandbox {
    folder: TempDir,
    variables: Vec<(&'static str, String)>,
}

impl Sandbox {
    /// An empty folder; the store is `limits.db` in it.
    pub(crate) fn new() -> Sandbox {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let store = format!("sqlite:{}", folder.path().join("limits.db").display());
        let home = folder.path().display().to_string();
        Sandbox {
            folder,
            variables: vec![("ZAEL_STORE", store), ("HOME", home), ("USER", "tester".into())],
        }
    }

    /// A folder whose store exists, so that nobody is told that it was created.
    pub(crate) fn with_store() -> Sandbox {
        let sandbox = Sandbox::new();
        sandbox.limiter().close();
        sandbox
    }

    /// A folder whose store has these system defaults.
    pub(crate) fn with_defaults(limits: &str) -> Sandbox {
        let sandbox = Sandbox::with_store();
        let limits = limits.split(' ').map(|limit| limit.parse().expect("a limit"));
        sandbox
            .limiter()
            .set_limits(&zae_limiter::Level::System, limits)
            .expect("limits are stored");
        sandbox
    }

    /// The same folder with a variable set, or removed by an empty value.
    pub(crate) fn variable(mut self, name: &'static str, value: &str) -> Sandbox {
        self.variables.retain(|(known, _)| *known != name);
        if !value.is_empty() {
            self.variables.push((name, value.to_owned()));
        }
        self
    }

    /// Removes a variable.
    #[cfg(feature = "dynamodb")]
    pub(crate) fn forget(&mut self, name: &str) {
        self.variables.retain(|(known, _)| *known != name);
    }

    /// A path in the folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The library on the same file, as an application beside the command line.
    pub(crate) fn limiter(&self) -> RateLimiter {
        RateLimiter::open(self.path("limits.db")).expect("the file opens")
    }

    /// The same, at another time, with the same ids of audit events every time.
    pub(crate) fn limiter_at(&self, time: &str) -> RateLimiter {
        let clock = ManualClock::new(parse_rfc3339(time).expect("a time"));
        let store = SqliteStore::open(self.path("limits.db")).expect("the file opens");
        let builder = zae_limiter::RateLimiter::builder(store)
            .clock(clock)
            .entropy(SeededEntropy::new(7))
            .principal("ops");
        RateLimiter::build(builder).expect("the limiter is built")
    }

    /// The command, ready to be started.
    pub(crate) fn command<S: AsRef<str>>(&self, arguments: &[S]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_zae-limiter"));
        command
            .args(arguments.iter().map(AsRef::as_ref))
            .env_clear()
            .current_dir(self.folder.path());
        command
            .envs(self.variables.iter().map(|(name, value)| (*name, value)))
            .stdin(Stdio::null());
        command
    }

    /// Runs a line of words; what came out, filtered.
    pub(crate) fn run(&self, line: &str) -> String {
        self.run_words(&line.split_whitespace().collect::<Vec<_>>())
    }

    /// The help of a command. The options that every command has are shown as `[GLOBAL OPTIONS]`.
    pub(crate) fn help(&self, command: &str) -> String {
        without_globals(&self.run(&format!("{command} --help")))
    }

    /// Runs words that may have spaces in them.
    pub(crate) fn run_words<S: AsRef<str>>(&self, words: &[S]) -> String {
        let output = self.command(words).output().expect("the binary starts");
        self.shown(&output)
    }

    /// Exit code and stdout as they are.
    pub(crate) fn raw(&self, line: &str) -> (i32, String) {
        let output = self
            .command(&line.split_whitespace().collect::<Vec<_>>())
            .output()
            .expect("the binary starts");
        (
            output.status.code().expect("an exit code"),
            String::from_utf8(output.stdout).expect("UTF-8"),
        )
    }

    /// What came out, filtered.
    pub(crate) fn shown(&self, output: &Output) -> String {
        let mut shown = format!("exit {}\n", output.status.code().expect("an exit code"));
        for (name, bytes) in [("stdout", &output.stdout), ("stderr", &output.stderr)] {
            let text = std::str::from_utf8(bytes).expect("UTF-8");
            assert!(
                text.is_empty() || text.ends_with('\n'),
                "{name} ends in the middle of a line: {text:?}"
            );
            let text = without_patience(text);
            if !text.is_empty() {
                // Writing to a String cannot fail.
                let _ = write!(shown, "--- {name}\n{}", self.filtered(&text));
            }
        }
        shown
    }

    fn filtered(&self, text: &str) -> String {
        let text = text.replace(&self.folder.path().display().to_string(), "[FOLDER]");
        let text = text.replace(env!("CARGO_PKG_VERSION"), "[VERSION]");
        without_waits(&without_times(&text))
    }
}

/// A text that is known to be right.
pub(crate) fn parsed<T: FromStr<Err: Debug>>(text: &str) -> T {
    text.parse().expect("a valid text")
}

/// `2026-01-02T03:04:05.678Z` becomes `[TIME]`, also in the one millisecond of a thousand in which
/// it has no digits after the point. Full hours stay: windows begin with them.
fn without_times(text: &str) -> String {
    const FORMS: [&[u8]; 2] = [b"0000-00-00T00:00:00.000Z", b"0000-00-00T00:00:00Z"];
    let mut text = text.to_owned();
    for form in FORMS {
        let fits =
            |(c, form): (&u8, &u8)| if *form == b'0' { c.is_ascii_digit() } else { c == form };
        let is_time =
            |window: &[u8]| window.iter().zip(form).all(fits) && !window.ends_with(b":00:00Z");
        while let Some(at) = text.as_bytes().windows(form.len()).position(is_time) {
            text.replace_range(at..at + form.len(), "[TIME]");
        }
    }
    // How wide a column of times is depends on those digits too.
    for word in ["[TIME]", "TIME", "CREATED", "DELETED"] {
        while text.contains(&format!("{word}   ")) {
            text = text.replace(&format!("{word}   "), &format!("{word}  "));
        }
    }
    text
}

/// A busy machine makes a command speak that would be done in time elsewhere.
fn without_patience(text: &str) -> String {
    let is_patience = |line: &&str| {
        line.starts_with("note: still waiting for ")
            || line.starts_with("{\"note\":\"still waiting for ")
    };
    text.split_inclusive('\n').filter(|line| !is_patience(line)).collect()
}

/// The options that every command has, from their heading to the blank line before what follows,
/// become `[GLOBAL OPTIONS]`.
fn without_globals(text: &str) -> String {
    let (before, rest) = text.split_once("Global options:\n").expect("global options");
    let is_below = |line: &&str| line.starts_with(' ') || line.trim().is_empty();
    let after: String = rest.split_inclusive('\n').skip_while(is_below).collect();
    let gap = if after.is_empty() { "" } else { "\n" };
    format!("{before}[GLOBAL OPTIONS]\n{gap}{after}")
}

/// Exact waits in JSON become `[MS]`; 0 and null stay.
fn without_waits(text: &str) -> String {
    const KEY: &str = "\"retry_after_ms\":";
    let mut parts = text.split(KEY);
    let mut filtered = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.trim_start_matches(|c: char| c.is_ascii_digit());
        let number = &part[..part.len() - rest.len()];
        let shown = if matches!(number, "" | "0") { number } else { "[MS]" };
        filtered = filtered + KEY + shown + rest;
    }
    filtered
}

#[test]
fn filters_hide_what_differs_and_nothing_else() {
    assert_eq!(without_times("a 2026-01-02T03:04:05.678Z b 2026-01-02"), "a [TIME] b 2026-01-02");
    assert_eq!(
        without_times("2026-01-02T03:04:05Z      x 2026-01-02T03:00:00Z"),
        "[TIME]  x 2026-01-02T03:00:00Z"
    );
    assert_eq!(
        without_globals("a\n\nGlobal options:\n      --x\n          y\n\n  -q\n\nb\n  c\n"),
        "a\n\n[GLOBAL OPTIONS]\n\nb\n  c\n"
    );
    assert_eq!(
        without_waits(
            "{\"retry_after_ms\":12,\"x\":12,\"retry_after_ms\":0,\"retry_after_ms\":null}"
        ),
        "{\"retry_after_ms\":[MS],\"x\":12,\"retry_after_ms\":0,\"retry_after_ms\":null}"
    );
}
