//! What went wrong, in the words and with the exit code of the command line.

use std::fmt;

use zae_limiter::{
    AcquireError, CommitError, EntityId, Error, ErrorKind, Invalid, OutageReason, ResourceName,
    StoreError, StoreErrorKind,
};

use crate::again::Again;
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

    /// The store does not answer.
    #[cfg(feature = "dynamodb")]
    pub(crate) fn unavailable(message: impl Into<String>) -> Failure {
        Failure { kind: "unavailable", message: message.into(), hint: None, exit: Exit::Error }
    }

    /// The store knows nobody who asks, and so allows nothing.
    #[cfg(feature = "dynamodb")]
    pub(crate) fn denied(message: impl Into<String>) -> Failure {
        Failure { kind: "denied", message: message.into(), hint: None, exit: Exit::Error }
    }

    /// The store says it already, in words for everybody.
    #[cfg(feature = "dynamodb")]
    pub(crate) fn store(error: &StoreError) -> Failure {
        Failure {
            kind: error.kind().as_str(),
            message: for_people(error.message()),
            hint: None,
            exit: Exit::Error,
        }
    }

    /// A call failed, and there is more to say about it than the library knows.
    pub(crate) fn of_error(error: &Error, message: impl Into<String>) -> Failure {
        let kind = kind_of(error);
        Failure { kind: kind.as_str(), message: message.into(), hint: None, exit: exit_of(kind) }
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
    /// What to tell about `error`; commands it names work as `again` says.
    pub(crate) fn of(error: &anyhow::Error, again: &Again) -> Report {
        let mut report =
            known(error, again).unwrap_or_else(|| Report::new("error", error.to_string()));
        // Some errors say their cause themselves; nobody wants to read it twice.
        let mut said = format!("{}\n{error}", report.message);
        for cause in error.chain().skip(1).map(|cause| for_people(&cause.to_string())) {
            // Nor what an operation was called, around words that were said.
            let inner = cause.split_once(": ").map_or(cause.as_str(), |(_, inner)| inner);
            let is_said = said.contains(&cause)
                || said.contains(inner)
                || said.lines().any(|line| !line.is_empty() && cause.contains(line));
            if !is_said {
                said.push('\n');
                said.push_str(&cause);
                report.causes.push(cause);
            }
        }
        report
    }

    /// What clap has to say: a paragraph about the mistake, others with tips and the usage.
    pub(crate) fn wrong_usage(text: &str) -> Report {
        let mut paragraphs = text
            .split("\n\n")
            .map(|part| part.lines().map(str::trim).collect::<Vec<_>>().join(" "));
        let message = paragraphs.next().unwrap_or_default();
        // Without a mistake to tell it is the help of a noun whose verb is missing.
        let message =
            message.strip_prefix("error: ").unwrap_or("a command is missing").trim().to_owned();
        let hint = paragraphs.map(|part| part.trim().to_owned()).find(|part| !part.is_empty());
        Report { hint, exit: Exit::Usage, ..Report::new("usage", message) }
    }

    /// The same with what to do about it, unless that is said already.
    pub(crate) fn or_hint(mut self, hint: impl FnOnce() -> String) -> Report {
        self.hint = self.hint.or_else(|| Some(hint()));
        self
    }

    fn new(kind: &'static str, message: String) -> Report {
        Report { kind, message, causes: Vec::new(), hint: None, exit: Exit::Error }
    }
}

/// Advice of the library that only programs can follow, and the same for people.
const ADVICE: [(&str, &str); 9] = [
    (", or open it with read_only()", ""),
    (", or open with read_only()", ""),
    ("; open it without read_only() to write", ""),
    (", or raise busy_deadline", ""),
    (", or raise take_deadline", ""),
    (", `Builder::create` for any other", ""),
    ("the namespace of this handle", "the namespace"),
    ("open a new handle", "run the command again"),
    ("restart the process, or open the store anew", "run the command again"),
];

/// The words of the library as somebody at a terminal can follow them: nobody calls methods there.
fn for_people(message: &str) -> String {
    ADVICE
        .iter()
        .fold(message.to_owned(), |message, (program, person)| message.replace(program, person))
}

/// The outermost error of the chain that has words of its own. Context around it stays the message.
fn known(error: &anyhow::Error, again: &Again) -> Option<Report> {
    let context = error.to_string();
    let mut report = error.chain().find_map(|cause| {
        let failure = cause.downcast_ref().map(of_failure);
        let failure = failure.or_else(|| cause.downcast_ref().map(|error| of_error(error, again)));
        let failure =
            failure.or_else(|| cause.downcast_ref().map(|error| of_acquire(error, again)));
        let failure = failure.or_else(|| cause.downcast_ref().map(of_commit));
        failure.map(|report| (cause.to_string() == context, report))
    })?;
    if !report.0 {
        report.1.message = context;
    }
    Some(report.1)
}

fn of_failure(failure: &Failure) -> Report {
    Report {
        hint: failure.hint.clone(),
        exit: failure.exit,
        ..Report::new(failure.kind, failure.message.clone())
    }
}

fn of_error(error: &Error, again: &Again) -> Report {
    let report = match error {
        Error::Store(error) => of_store(error),
        other => Report {
            exit: exit_of(kind_of(other)),
            ..Report::new(kind_of(other).as_str(), other.to_string())
        },
    };
    Report { message: again.completed(&report.message), ..report }
}

/// What the store says of a file that was replaced, as `restore` does it.
const REPLACED: &str = "the file was deleted or replaced while this process had it open";

/// What the store says. The name of the operation is for programmers.
fn of_store(error: &StoreError) -> Report {
    // Nothing was decided, and the next command opens the new file: others are in the way.
    let kind = if error.message().contains(REPLACED) { StoreErrorKind::Busy } else { error.kind() };
    Report { exit: exit_of(kind), ..Report::new(kind.as_str(), for_people(error.message())) }
}

/// The kind that output names: an error that no store made is named like those of a store.
fn kind_of(error: &Error) -> StoreErrorKind {
    match error.kind() {
        ErrorKind::Store(kind) => kind,
        ErrorKind::Invalid => StoreErrorKind::Invalid,
        ErrorKind::Deadline => StoreErrorKind::Unavailable,
        _ => StoreErrorKind::State,
    }
}

fn exit_of(kind: StoreErrorKind) -> Exit {
    if kind == StoreErrorKind::Busy { Exit::Busy } else { Exit::Error }
}

fn of_acquire(error: &AcquireError, again: &Again) -> Report {
    let report = told(error, again);
    Report { message: again.completed(&for_people(&report.message)), ..report }
}

fn told(error: &AcquireError, again: &Again) -> Report {
    let message = error.to_string();
    match error {
        AcquireError::Invalid(invalid) => {
            Report { hint: hint_for(invalid, again), ..Report::new("invalid", invalid.to_string()) }
        }
        AcquireError::NoLimits(none) => {
            let (entity, resource) = (&none.entity, &none.resource);
            let hint = format!(
                "set some with {}, {} or {}, or pass --limit to acquire",
                again.command(&["system", "set-defaults", "-l", "rpm:100"]),
                again.command(&["resource", "set-defaults", resource.as_str(), "-l", "rpm:100"]),
                again.command(&["entity", "set-limits", entity.as_str(), "-l", "rpm:100"]),
            );
            let message = format!("no limits are configured for {entity} on {resource}");
            Report { hint: Some(hint), ..Report::new("no_limits", message) }
        }
        AcquireError::Disabled(disabled) => {
            let look = || {
                format!(
                    "{} shows which level says so",
                    explain(again, &disabled.entity, &disabled.resource)
                )
            };
            Report {
                hint: disabled.level.is_none().then(look),
                exit: Exit::Disabled,
                ..Report::new("disabled", message)
            }
        }
        AcquireError::Unavailable(unavailable) => match (unavailable.reason, &unavailable.source) {
            // What the store says is the news, not that it said it.
            (OutageReason::Failed(_), Some(error)) => of_store(error),
            (OutageReason::Failed(kind), None) => Report::new(kind.as_str(), message),
            (OutageReason::Deadline, _) => {
                Report::new("unavailable", "the store did not answer in time".to_owned())
            }
            _ => Report::new("unavailable", message),
        },
        AcquireError::Denied(error) | AcquireError::Incompatible(error) => of_store(error),
        AcquireError::Exceeded(_) => {
            Report { exit: Exit::Refused, ..Report::new("refused", message) }
        }
        _ => Report::new("error", message),
    }
}

fn hint_for(invalid: &Invalid, again: &Again) -> Option<String> {
    match invalid {
        Invalid::UnknownLimit { entity, resource, .. } => Some(format!(
            "{} shows the limits and where they come from",
            explain(again, entity, resource)
        )),
        _ => None,
    }
}

fn explain(again: &Again, entity: &EntityId, resource: &ResourceName) -> String {
    again.command(&["explain", entity.as_str(), resource.as_str()])
}

fn of_commit(error: &CommitError) -> Report {
    Report::new(error.source.kind().as_str(), error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context as _;

    fn of(error: &anyhow::Error) -> Report {
        Report::of(error, &Again::default())
    }

    #[test]
    fn a_failure_keeps_its_words_hint_and_exit() {
        let report = of(&Failure::usage("wrong").hint("right").into());
        assert_eq!(
            (report.kind, report.message.as_str(), report.exit),
            ("usage", "wrong", Exit::Usage)
        );
        assert_eq!((report.hint.as_deref(), report.causes.len()), (Some("right"), 0));
    }

    #[test]
    fn a_store_error_loses_its_operation_and_keeps_its_cause() {
        let source = std::io::Error::other("no space");
        let error = Error::from(
            StoreError::new(StoreErrorKind::Full, "set_limits", "the disk is full")
                .with_source(source),
        );
        let report = of(&error.into());
        assert_eq!(
            (report.kind, report.message.as_str(), report.exit),
            ("full", "the disk is full", Exit::Error)
        );
        assert_eq!(report.causes, ["no space"]);
    }

    /// Nobody holds a handle at a terminal.
    #[test]
    fn advice_to_programs_is_advice_to_people() {
        const GONE: &str = "the namespace of this handle was deleted; recover it, or register it again and open a new handle";
        let store = || StoreError::new(StoreErrorKind::NotFound, "set_limits", GONE);
        for error in [
            anyhow::Error::from(Error::from(store())),
            AcquireError::from(Invalid::Namespace(GONE.into())).into(),
        ] {
            let report = of(&error);
            assert_eq!(
                report.message,
                "the namespace was deleted; recover it, or register it again and run the command again"
            );
            assert_eq!((report.causes.as_slice(), report.exit), (&[][..], Exit::Error));
        }
    }

    #[test]
    fn context_is_the_message_and_the_error_its_cause() {
        let error = Error::from(StoreError::new(StoreErrorKind::Denied, "open", "no permission"));
        let report = of(&Err::<(), _>(error).context("it did not open").unwrap_err());
        assert_eq!((report.kind, report.message.as_str()), ("denied", "it did not open"));
        assert_eq!(report.causes, ["open: no permission"]);
    }

    #[test]
    fn nothing_is_said_twice() {
        let error = AcquireError::from(Invalid::Refused("too odd".into()));
        let report = of(&error.into());
        assert_eq!((report.message.as_str(), report.causes.len()), ("too odd", 0));
    }

    #[test]
    fn an_unknown_error_is_still_told() {
        let report = of(&anyhow::anyhow!("cause").context("what"));
        assert_eq!(
            (report.kind, report.message.as_str(), report.exit),
            ("error", "what", Exit::Error)
        );
        assert_eq!(report.causes, ["cause"]);
    }
}
