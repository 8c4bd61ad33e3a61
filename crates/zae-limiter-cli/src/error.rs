//! What went wrong, in the words and with the exit code of the command line.

use std::fmt;

use serde::Serialize;
use zae_limiter::{
    AcquireError, CommitError, EntityId, Error, ErrorKind, Invalid, OutageReason, ResourceName,
    StoreError, StoreErrorKind,
};

use crate::again::Again;
use crate::exit::Exit;

/// An error, ready to be printed: one that the command line itself finds, or one of the library in
/// the words of the command line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Failure {
    /// A word for programs.
    pub(crate) kind: &'static str,
    /// What went wrong.
    pub(crate) message: String,
    /// Why, outermost first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) causes: Vec<String>,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hint: Option<String>,
    /// How the process ends.
    #[serde(skip)]
    pub(crate) exit: Exit,
}

impl Failure {
    /// An error of this kind. The process ends with [`Exit::Error`]. Every kind is named in this
    /// file: a test compares the kinds with docs/json.md.
    fn new(kind: &'static str, message: impl Into<String>) -> Failure {
        let message = message.into();
        Failure { kind, message, causes: Vec::new(), hint: None, exit: Exit::Error }
    }

    /// The command line, or a variable that stands for a flag, is wrong.
    pub(crate) fn usage(message: impl Into<String>) -> Failure {
        Failure { exit: Exit::Usage, ..Failure::new("usage", message) }
    }

    /// A file cannot be used; `causes` are all the reasons.
    pub(crate) fn in_file(message: impl Into<String>, causes: Vec<String>) -> Failure {
        Failure { causes, ..Failure::new("invalid", message) }
    }

    /// What was asked for is not there.
    pub(crate) fn not_found(message: impl Into<String>) -> Failure {
        Failure::new("not_found", message)
    }

    /// Somebody else was faster.
    pub(crate) fn conflict(message: impl Into<String>) -> Failure {
        Failure::new("conflict", message)
    }

    /// Somebody was asked and did not agree.
    pub(crate) fn aborted(message: impl Into<String>) -> Failure {
        Failure::new("aborted", message)
    }

    /// A signal ended it half way.
    pub(crate) fn stopped(message: impl Into<String>) -> Failure {
        Failure::new("stopped", message)
    }

    /// The local engine does not do what it should.
    #[cfg(feature = "dynamodb")]
    pub(crate) fn engine(message: impl Into<String>) -> Failure {
        Failure::new("engine", message)
    }

    /// An executable cannot be packed for Lambda.
    #[cfg(feature = "deploy")]
    pub(crate) fn package(error: &zae_limiter_deploy::package::PackageError) -> Failure {
        let causes = std::error::Error::source(error).map(ToString::to_string);
        let message = error.to_string();
        let causes = causes.filter(|cause| !message.contains(cause.as_str())).into_iter();
        Failure {
            causes: causes.collect(),
            hint: Some(error.hint()),
            ..Failure::new("package", message)
        }
    }

    /// The stream of a stack cannot be read.
    #[cfg(feature = "dynamodb")]
    pub(crate) fn stream(message: impl Into<String>) -> Failure {
        Failure::new("stream", message)
    }

    /// A stack on AWS is not what it should be.
    #[cfg(feature = "deploy")]
    pub(crate) fn stack(message: impl Into<String>) -> Failure {
        Failure::new("stack", message)
    }

    /// The store says it already, in words for everybody.
    #[cfg(feature = "dynamodb")]
    pub(crate) fn store(error: &StoreError) -> Failure {
        Failure::new(error.kind().as_str(), for_people(error.message()))
    }

    /// A call failed, and there is more to say about it than the library knows.
    pub(crate) fn of_error(error: &Error, message: impl Into<String>) -> Failure {
        Failure::of_kind(kind_of(error), message)
    }

    /// An error as a store would tell it.
    pub(crate) fn of_kind(kind: StoreErrorKind, message: impl Into<String>) -> Failure {
        let exit = if kind == StoreErrorKind::Busy { Exit::Busy } else { Exit::Error };
        Failure { exit, ..Failure::new(kind.as_str(), message) }
    }

    /// The same with what to do about it.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Failure {
        self.hint = Some(hint.into());
        self
    }

    /// What to tell about `error`; commands it names work as `again` says.
    pub(crate) fn of(error: &anyhow::Error, again: &Again) -> Failure {
        let mut report =
            known(error, again).unwrap_or_else(|| Failure::new("error", error.to_string()));
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
    pub(crate) fn wrong_usage(text: &str) -> Failure {
        let mut paragraphs = text
            .split("\n\n")
            .map(|part| part.lines().map(str::trim).collect::<Vec<_>>().join(" "));
        let message = paragraphs.next().unwrap_or_default();
        // Without a mistake to tell it is the help of a noun whose verb is missing.
        let message =
            message.strip_prefix("error: ").unwrap_or("a command is missing").trim().to_owned();
        let hint = paragraphs.map(|part| part.trim().to_owned()).find(|part| !part.is_empty());
        Failure { hint, ..Failure::usage(message) }
    }

    /// The same with what to do about it, unless that is said already.
    pub(crate) fn or_hint(mut self, hint: impl FnOnce() -> String) -> Failure {
        self.hint = self.hint.or_else(|| Some(hint()));
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// Advice in library errors that only programs can follow → its replacement for the command line.
const ADVICE: [(&str, &str); 9] = [
    (", or open it with read_only()", ""),
    (", or open with read_only()", ""),
    ("; open it without read_only() to write", ""),
    (", or raise busy_deadline", ""),
    (", or raise take_deadline", ""),
    (
        ", `Builder::create` for any other",
        ", `zae-limiter deploy --no-stack --name` for one of Terraform or CDK",
    ),
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
fn known(error: &anyhow::Error, again: &Again) -> Option<Failure> {
    let context = error.to_string();
    error.chain().find_map(|cause| {
        let known = cause
            .downcast_ref::<Failure>()
            .cloned()
            .or_else(|| cause.downcast_ref().map(|error| of_error(error, again)))
            .or_else(|| cause.downcast_ref().map(|error| of_acquire(error, again)))
            .or_else(|| cause.downcast_ref().map(of_commit))?;
        let message = if cause.to_string() == context { known.message } else { context.clone() };
        Some(Failure { message, ..known })
    })
}

fn of_error(error: &Error, again: &Again) -> Failure {
    let failure = match error {
        Error::Store(error) => of_store(error),
        other => Failure::of_error(other, other.to_string()),
    };
    Failure { message: again.completed(&failure.message), ..failure }
}

/// What the store says of a file that was replaced, as `restore` does it.
const REPLACED: &str = "the file was deleted or replaced while this process had it open";

/// What the store says. The name of the operation is for programmers.
fn of_store(error: &StoreError) -> Failure {
    // Nothing was decided, and the next command opens the new file: others are in the way.
    let kind = if error.message().contains(REPLACED) { StoreErrorKind::Busy } else { error.kind() };
    Failure::of_kind(kind, for_people(error.message()))
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

fn of_acquire(error: &AcquireError, again: &Again) -> Failure {
    let failure = told(error, again);
    Failure { message: again.completed(&for_people(&failure.message)), ..failure }
}

fn told(error: &AcquireError, again: &Again) -> Failure {
    let message = error.to_string();
    match error {
        AcquireError::Invalid(invalid) => {
            let hint = match invalid {
                Invalid::UnknownLimit { entity, resource, .. } => Some(format!(
                    "{} shows the limits and where they come from",
                    explain(again, entity, resource)
                )),
                _ => None,
            };
            Failure { hint, ..Failure::new("invalid", invalid.to_string()) }
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
            Failure::new("no_limits", message).hint(hint)
        }
        AcquireError::Disabled(disabled) => {
            let explain = explain(again, &disabled.entity, &disabled.resource);
            let look = || format!("{explain} shows which level says so");
            let hint = disabled.level.is_none().then(look);
            Failure { hint, exit: Exit::Disabled, ..Failure::new("disabled", message) }
        }
        AcquireError::Unavailable(unavailable) => match (unavailable.reason, &unavailable.source) {
            // The words of the store are the news, not the fact that it failed.
            (OutageReason::Failed(_), Some(error)) => of_store(error),
            (OutageReason::Failed(kind), None) => Failure::new(kind.as_str(), message),
            (OutageReason::Deadline, _) => {
                Failure::new("unavailable", "the store did not answer in time".to_owned())
            }
            _ => Failure::new("unavailable", message),
        },
        AcquireError::Denied(error) | AcquireError::Incompatible(error) => of_store(error),
        AcquireError::Exceeded(_) => {
            Failure { exit: Exit::Refused, ..Failure::new("refused", message) }
        }
        _ => Failure::new("error", message),
    }
}

fn explain(again: &Again, entity: &EntityId, resource: &ResourceName) -> String {
    again.command(&["explain", entity.as_str(), resource.as_str()])
}

fn of_commit(error: &CommitError) -> Failure {
    Failure::new(error.source.kind().as_str(), error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context as _;

    fn of(error: &anyhow::Error) -> Failure {
        Failure::of(error, &Again::default())
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
