//! What went wrong, in the words and with the exit code of the command line.

use std::fmt;

#[cfg(feature = "dynamodb")]
use zae_limiter::StoreError;
use zae_limiter::{AcquireError, CommitError, Error, Invalid, OutageReason};

use crate::exit::Exit;

/// Something the command line itself finds wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    kind: &'static str,
    message: String,
    hint: Option<String>,
    exit: Exit,
}

impl Failure {
    /// The command line, or a variable that stands for a flag, is wrong.
    pub(crate) fn usage(message: impl Into<String>) -> Failure {
        Failure { kind: "usage", message: message.into(), hint: None, exit: Exit::Usage }
    }

    /// What was asked for is not there.
    pub(crate) fn not_found(message: impl Into<String>) -> Failure {
        Failure { kind: "not_found", message: message.into(), hint: None, exit: Exit::Error }
    }

    /// Somebody else was faster.
    pub(crate) fn conflict(message: impl Into<String>) -> Failure {
        Failure { kind: "conflict", message: message.into(), hint: None, exit: Exit::Error }
    }

    /// Somebody was asked and did not agree.
    pub(crate) fn aborted(message: impl Into<String>) -> Failure {
        Failure { kind: "aborted", message: message.into(), hint: None, exit: Exit::Error }
    }

    /// The local engine does not do what it should.
    #[cfg(feature = "dynamodb")]
    pub(crate) fn engine(message: impl Into<String>) -> Failure {
        Failure { kind: "engine", message: message.into(), hint: None, exit: Exit::Error }
    }

    /// The store says it already, in words for everybody.
    #[cfg(feature = "dynamodb")]
    pub(crate) fn store(error: &StoreError) -> Failure {
        Failure { kind: error.kind().as_str(), message: error.message().to_owned(), hint: None, exit: Exit::Error }
    }

    /// The same with what to do about it.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Failure {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// An error, ready to be printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Report {
    /// A word for programs.
    pub(crate) kind: &'static str,
    /// What went wrong.
    pub(crate) message: String,
    /// Why, outermost first.
    pub(crate) causes: Vec<String>,
    /// What to do.
    pub(crate) hint: Option<String>,
    /// How the process ends.
    pub(crate) exit: Exit,
}

impl Report {
    /// What to tell about `error`.
    pub(crate) fn of(error: &anyhow::Error) -> Report {
        let mut report = known(error).unwrap_or_else(|| Report::new("error", error.to_string()));
        // Some errors say their cause themselves; nobody wants to read it twice.
        let mut said = format!("{}\n{error}", report.message);
        for cause in error.chain().skip(1).map(ToString::to_string) {
            if !said.contains(&cause) {
                said.push('\n');
                said.push_str(&cause);
                report.causes.push(cause);
            }
        }
        report
    }

    /// What clap has to say: a paragraph about the mistake, others with tips and the usage.
    pub(crate) fn wrong_usage(text: &str) -> Report {
        let mut paragraphs = text.split("\n\n").map(|part| part.lines().map(str::trim).collect::<Vec<_>>().join(" "));
        let message = paragraphs.next().unwrap_or_default();
        // Without a mistake to tell it is the help of a noun whose verb is missing.
        let message = message.strip_prefix("error: ").unwrap_or("a command is missing").trim().to_owned();
        let hint = paragraphs.map(|part| part.trim().to_owned()).find(|part| !part.is_empty());
        Report { hint, exit: Exit::Usage, ..Report::new("usage", message) }
    }

    fn new(kind: &'static str, message: String) -> Report {
        Report { kind, message, causes: Vec::new(), hint: None, exit: Exit::Error }
    }
}

/// The outermost error of the chain that has words of its own. Context around it stays the message.
fn known(error: &anyhow::Error) -> Option<Report> {
    let context = error.to_string();
    let mut report = error.chain().find_map(|cause| {
        let failure = cause.downcast_ref().map(of_failure);
        let failure = failure.or_else(|| cause.downcast_ref().map(of_error));
        let failure = failure.or_else(|| cause.downcast_ref().map(of_acquire));
        let failure = failure.or_else(|| cause.downcast_ref().map(of_commit));
        failure.map(|report| (cause.to_string() == context, report))
    })?;
    if !report.0 {
        report.1.message = context;
    }
    Some(report.1)
}

fn of_failure(failure: &Failure) -> Report {
    Report { hint: failure.hint.clone(), exit: failure.exit, ..Report::new(failure.kind, failure.message.clone()) }
}

fn of_error(error: &Error) -> Report {
    let message = match error {
        // The name of the operation is for programmers.
        Error::Store(error) => error.message().to_owned(),
        other => other.to_string(),
    };
    Report::new(error.kind().as_str(), message)
}

fn of_acquire(error: &AcquireError) -> Report {
    let message = error.to_string();
    match error {
        AcquireError::Invalid(invalid) => Report { hint: hint_for(invalid), ..Report::new("invalid", invalid.to_string()) },
        AcquireError::NoLimits(none) => {
            let (entity, resource) = (&none.entity, &none.resource);
            let hint = format!(
                "set some with `zae-limiter system set-defaults -l rpm:100`, `zae-limiter resource set-defaults {resource} -l ...` \
                 or `zae-limiter entity set-limits {entity} -l ...`, or pass --limit to acquire"
            );
            Report { hint: Some(hint), ..Report::new("no_limits", format!("no limits are configured for {entity} on {resource}")) }
        }
        AcquireError::Disabled(disabled) => {
            let look = || format!("`zae-limiter explain {} {}` shows which level says so", disabled.entity, disabled.resource);
            Report { hint: disabled.level.is_none().then(look), ..Report::new("disabled", message) }
        }
        AcquireError::Unavailable(unavailable) => match unavailable.reason {
            OutageReason::Failed(kind) => Report::new(kind.as_str(), message),
            _ => Report::new("unavailable", message),
        },
        AcquireError::Denied(_) => Report::new("denied", message),
        AcquireError::Incompatible(_) => Report::new("incompatible", message),
        AcquireError::Exceeded(_) => Report { exit: Exit::Refused, ..Report::new("refused", message) },
        _ => Report::new("error", message),
    }
}

fn hint_for(invalid: &Invalid) -> Option<String> {
    match invalid {
        Invalid::UnknownLimit { entity, resource, .. } => {
            Some(format!("`zae-limiter explain {entity} {resource}` shows the limits and where they come from"))
        }
        _ => None,
    }
}

fn of_commit(error: &CommitError) -> Report {
    Report::new(error.source.kind().as_str(), error.to_string())
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;
    use zae_limiter::{StoreError, StoreErrorKind};

    use super::*;

    #[test]
    fn a_failure_keeps_its_words_hint_and_exit() {
        let report = Report::of(&Failure::usage("wrong").hint("right").into());
        assert_eq!((report.kind, report.message.as_str(), report.exit), ("usage", "wrong", Exit::Usage));
        assert_eq!((report.hint.as_deref(), report.causes.len()), (Some("right"), 0));
    }

    #[test]
    fn a_store_error_loses_its_operation_and_keeps_its_cause() {
        let source = std::io::Error::other("no space");
        let error = Error::from(StoreError::new(StoreErrorKind::Full, "set_limits", "the disk is full").with_source(source));
        let report = Report::of(&error.into());
        assert_eq!((report.kind, report.message.as_str(), report.exit), ("full", "the disk is full", Exit::Error));
        assert_eq!(report.causes, ["no space"]);
    }

    #[test]
    fn context_is_the_message_and_the_error_its_cause() {
        let error = Error::from(StoreError::new(StoreErrorKind::Denied, "open", "no permission"));
        let report = Report::of(&Err::<(), _>(error).context("it did not open").unwrap_err());
        assert_eq!((report.kind, report.message.as_str()), ("denied", "it did not open"));
        assert_eq!(report.causes, ["open: no permission"]);
    }

    #[test]
    fn nothing_is_said_twice() {
        let error = AcquireError::from(Invalid::Refused("too odd".into()));
        let report = Report::of(&error.into());
        assert_eq!((report.message.as_str(), report.causes.len()), ("too odd", 0));
    }

    #[test]
    fn an_unknown_error_is_still_told() {
        let report = Report::of(&anyhow::anyhow!("cause").context("what"));
        assert_eq!((report.kind, report.message.as_str(), report.exit), ("error", "what", Exit::Error));
        assert_eq!(report.causes, ["cause"]);
    }
}
