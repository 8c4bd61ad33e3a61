//! The only file that writes: answers to stdout, talk to stderr, both as JSON lines when asked for.
//! Whatever is printed is escaped first.

use std::collections::BTreeMap;
use std::io::{self, Write as _};

use anyhow::Context as _;
use clap::error::ErrorKind;
use serde::Serialize;

use crate::again::Again;
use crate::args::Output;
use crate::error::Failure;
use crate::escape::{escaped, json_line};
use crate::exit::Exit;
use crate::settings::Looks;
use crate::table::{Paint, Text, Tone};

/// Decides what is printed, where and how.
pub(crate) struct Printer {
    looks: Looks,
}

impl Printer {
    /// A printer with these looks.
    pub(crate) fn new(looks: Looks) -> Printer {
        Printer { looks }
    }

    /// Prints the answer of a command, which has done its work: `text` for people, `json` for
    /// programs.
    pub(crate) fn answer(&self, json: &impl Serialize, text: &Text) -> anyhow::Result<Exit> {
        let answer = match self.looks.output {
            Output::Json => json_line(json)?,
            Output::Table => text.render(self.looks.width, Paint(self.looks.stdout_colours)),
        };
        self.page(&answer)
    }

    /// Prints a text of our own as it is: a script, a page.
    pub(crate) fn page(&self, text: &str) -> anyhow::Result<Exit> {
        to_stdout(text).map(|()| Exit::Ok)
    }

    /// How answers look.
    pub(crate) fn looks(&self) -> Looks {
        self.looks
    }

    /// Prints a part of an answer that goes on: over the part printed before, as many lines as that
    /// had.
    #[cfg(feature = "sqlite")]
    pub(crate) fn redraw(&self, lines_before: usize, text: &Text) -> anyhow::Result<usize> {
        let drawn = text.render(self.looks.width, Paint(self.looks.stdout_colours));
        let up = if lines_before > 0 {
            format!("\u{1b}[{lines_before}A\u{1b}[J")
        } else {
            String::new()
        };
        to_stdout(&(up + &drawn))?;
        Ok(drawn.lines().count())
    }

    /// Prints lines of an answer that goes on. False once nobody reads them any more.
    #[cfg(feature = "dynamodb")]
    pub(crate) fn lines(&self, lines: &[String]) -> anyhow::Result<bool> {
        let mut text = String::new();
        for line in lines {
            match self.looks.output {
                Output::Json => text.push_str(&json_line(&BTreeMap::from([("line", line)]))?),
                Output::Table => text.extend([escaped(line).as_ref(), "\n"]),
            }
        }
        try_to_stdout(&text)
    }

    /// Something the local engine says.
    #[cfg(feature = "dynamodb")]
    pub(crate) fn engine(&self, line: &str) {
        self.talk(Tone::Dim, "engine", line);
    }

    /// Something worth knowing.
    pub(crate) fn note(&self, text: &str) {
        self.talk(Tone::Dim, "note", text);
    }

    /// A note on an answer that has it too, as JSON.
    pub(crate) fn note_beside(&self, text: Option<&str>) {
        if let (Some(text), Output::Table) = (text, self.looks.output) {
            self.note(text);
        }
    }

    /// Something that is probably not meant.
    pub(crate) fn warning(&self, text: &str) {
        self.talk(Tone::Warning, "warning", text);
    }

    /// Asks; the answer is expected on the same line.
    pub(crate) fn ask(&self, question: &str) {
        to_stderr(&format!("{} ", escaped(question)));
    }

    /// Prints an error and says how the process ends.
    pub(crate) fn error(&self, mut failure: Failure) -> Exit {
        failure.hint = failure.hint.filter(|_| !self.looks.quiet);
        let text = match self.looks.output {
            Output::Json => json_line(&BTreeMap::from([("error", &failure)])).unwrap_or_default(),
            Output::Table => self.error_text(&failure),
        };
        to_stderr(&text);
        failure.exit
    }

    fn error_text(&self, failure: &Failure) -> String {
        let paint = Paint(self.looks.stderr_colours);
        let line = |label, tone| {
            move |text: &String| format!("{} {}\n", paint.apply(tone, label), escaped(text))
        };
        let causes = failure.causes.iter().map(line("  caused by:", Tone::Dim));
        let hint = failure.hint.iter().map(line("hint:", Tone::Strong));
        let error = line("error:", Tone::Bad)(&failure.message);
        [error].into_iter().chain(causes).chain(hint).collect()
    }

    /// Prints what clap has to say instead of a command line: help, the version, or what is wrong
    /// with it.
    pub(crate) fn parsing(&self, error: &clap::Error) -> Exit {
        let rendered = error.render();
        match error.kind() {
            // All of it is our own text, so it may carry colours.
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
                let is_coloured = self.looks.stdout_colours;
                let text =
                    if is_coloured { rendered.ansi().to_string() } else { rendered.to_string() };
                // clap separates paragraphs within an option by a line of spaces.
                let text: String =
                    text.lines().flat_map(|line| [line.trim_end_matches(' '), "\n"]).collect();
                self.page(&text)
                    .unwrap_or_else(|error| self.error(Failure::of(&error, &Again::default())))
            }
            _ if self.looks.output == Output::Json => {
                self.error(Failure::wrong_usage(&rendered.to_string()))
            }
            // It quotes what was typed.
            _ => {
                let lines: Vec<String> = rendered
                    .to_string()
                    .lines()
                    .map(|line| format!("{}\n", escaped(line)))
                    .collect();
                let (label, text) = ("error:", lines.concat());
                let painted = Paint(self.looks.stderr_colours).apply(Tone::Bad, label);
                let is_labelled = text.starts_with(label);
                to_stderr(&if is_labelled { text.replacen(label, &painted, 1) } else { text });
                Exit::Usage
            }
        }
    }

    fn talk(&self, tone: Tone, label: &str, text: &str) {
        if self.looks.quiet {
            return;
        }
        let line = match self.looks.output {
            Output::Json => json_line(&BTreeMap::from([(label, text)])).unwrap_or_default(),
            Output::Table => {
                let label = Paint(self.looks.stderr_colours).apply(tone, &format!("{label}:"));
                format!("{label} {}\n", escaped(text))
            }
        };
        to_stderr(&line);
    }
}

/// Writes over the present line of stderr, which must be a terminal.
pub(crate) fn progress(text: &str) {
    to_stderr(&format!("\r\u{1b}[2K{}", escaped(text)));
}

/// A reader that went away (`| head`) is no error: what was asked for is done.
fn to_stdout(text: &str) -> anyhow::Result<()> {
    try_to_stdout(text).map(drop)
}

/// False if the reader went away.
fn try_to_stdout(text: &str) -> anyhow::Result<bool> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error).context("the answer could not be written to stdout"),
    }
}

/// A failure here is not reported: there is nowhere left to report it.
fn to_stderr(text: &str) {
    let mut stderr = io::stderr().lock();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}
