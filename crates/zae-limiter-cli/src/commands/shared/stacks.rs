//! What the commands about whole stacks share.

use zae_limiter::{NamespaceName, StoreErrorKind};
use zae_limiter_deploy::stack::{Cloud, Progress, Stack, StackBuilder};
use zae_limiter_deploy::{DeployError, OptionError};

use crate::args::Globals;
use crate::args::value::DynamoPlace;
use crate::dynamodb;
use crate::error::Failure;
use crate::patience;
use crate::printer::Printer;
use crate::settings::{Environment, Settings, StorePlace};

/// The stack that is meant when none is named, as in the Python package.
const STACK: &str = "zae-limiter";

/// Whether a stack must be named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    /// Without a name it is the usual one.
    Optional,
    /// Deleting the wrong one would be worse than typing.
    Required,
}

/// What every command about a stack gets.
pub(crate) struct Stacks<'a> {
    pub(crate) printer: &'a Printer,
    pub(crate) settings: Settings,
    pub(crate) stack: String,
    pub(crate) region: String,
    pub(crate) namespace: NamespaceName,
    pub(crate) can_ask: bool,
    endpoint_url: Option<String>,
}

impl<'a> Stacks<'a> {
    /// The stack that flags and variables name.
    pub(crate) fn new(
        printer: &'a Printer,
        mut globals: Globals,
        environment: &Environment,
        named: Named,
    ) -> Result<Stacks<'a>, Failure> {
        let is_named =
            globals.store.is_some() || globals.stack.is_some() || environment.names_store();
        match named {
            Named::Required if !is_named => {
                let failure = Failure::usage("no stack is named");
                return Err(failure.hint("name it with --name STACK"));
            }
            _ if !is_named => globals.stack = Some(STACK.to_owned()),
            _ => {}
        }
        let mut settings = Settings::new(globals, environment)?;
        dynamodb::prefer_local(&mut settings, environment, printer);
        let StorePlace::Dynamo(place) = settings.store.clone() else {
            let failure = Failure::usage(format!("{} is no stack", settings.store));
            return Err(failure.hint("name a stack with --name STACK"));
        };
        Ok(Stacks {
            printer,
            region: dynamodb::region(&place).to_owned(),
            stack: place.stack,
            namespace: settings.namespace.clone(),
            can_ask: settings.can_ask,
            endpoint_url: place.endpoint_url,
            settings,
        })
    }

    /// The stack, with the defaults of everything.
    pub(crate) fn builder(&self) -> StackBuilder {
        let builder = Stack::builder(self.stack.clone(), self.region.clone());
        match &self.endpoint_url {
            Some(url) => builder.endpoint_url(url.clone()),
            None => builder,
        }
    }

    /// A command line on the same stack, in backquotes.
    pub(crate) fn command(&self, words: &[&str]) -> String {
        self.settings.again.command(words)
    }

    /// An error in the words of the command line.
    pub(crate) fn failure(&self, error: DeployError) -> Failure {
        failure(error)
    }
}

/// An error in the words of the command line.
pub(crate) fn failure(error: DeployError) -> Failure {
    let (message, hint) = (error.to_string(), error.hint());
    let failure = match error {
        DeployError::Option(error) => return option(&error),
        DeployError::Package(error) => return Failure::package(&error),
        DeployError::StackNotFound { .. } => Failure::not_found(message),
        DeployError::StackExists { .. } => Failure::conflict(message),
        DeployError::Unreachable { .. } => Failure::of_kind(StoreErrorKind::Unavailable, message),
        DeployError::Store(error) => Failure::store(&error),
        DeployError::Limiter(error) => Failure::of_error(&error, message),
        _ => Failure::stack(message),
    };
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// What CloudFormation says of a stack.
pub(crate) struct Deployed {
    pub(crate) status: String,
    pub(crate) is_whole: bool,
    /// The state of the function, where there is one.
    pub(crate) function: Option<String>,
    /// How far the function is behind the stream, in ms, where that is known.
    pub(crate) stream_age_ms: Option<i64>,
    /// Why that is not known.
    pub(crate) no_age: Option<DeployError>,
}

/// The way to AWS of a stack.
pub(crate) async fn cloud(place: &DynamoPlace) -> Result<Cloud, DeployError> {
    let builder = Stack::builder(place.stack.clone(), dynamodb::region(place));
    let builder = match &place.endpoint_url {
        Some(url) => builder.endpoint_url(url.clone()),
        None => builder,
    };
    Cloud::connect(builder.store()).await
}

/// Asks CloudFormation for a stack; `None` where there is no such stack, or no CloudFormation.
pub(crate) async fn look(place: &DynamoPlace) -> Result<Option<Deployed>, DeployError> {
    let cloud = cloud(place).await?;
    let state = match cloud.find(&place.stack).await {
        Ok(Some(state)) => state,
        Ok(None) | Err(DeployError::NoCloudFormation { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    let resources = cloud.resources(&place.stack).await?;
    let function = resources.into_iter().find(|[name, ..]| name == "AggregatorFunction");
    let (stream_age_ms, no_age) = match &function {
        Some([_, _, id, _]) => match cloud.iterator_age_ms(id).await {
            Ok(age) => (age, None),
            Err(error) => (None, Some(error)),
        },
        None => (None, None),
    };
    Ok(Some(Deployed {
        is_whole: state.is_whole(),
        status: state.status,
        function: function.map(|[.., status]| status),
        stream_age_ms,
        no_age,
    }))
}

/// A wrong option, by the name of its flag.
fn option(error: &OptionError) -> Failure {
    let flag = error.field.replace('_', "-");
    Failure::usage(format!("--{flag} {}: {}", error.value, error.problem))
}

/// Tells what happens to a stack, one line for each thing.
pub(crate) struct Teller<'a> {
    printer: &'a Printer,
}

impl<'a> Teller<'a> {
    pub(crate) fn new(printer: &'a Printer) -> Teller<'a> {
        Teller { printer }
    }

    pub(crate) fn tell(&mut self, progress: &Progress<'_>) {
        // Every line is a sign of life.
        patience::told();
        match progress {
            Progress::Doing(what) => self.printer.note(what),
            Progress::Change(change) => {
                let replaced = match change.replacement.as_deref() {
                    Some("True") => ", replaced",
                    Some("Conditional") => ", perhaps replaced",
                    _ => "",
                };
                let (sign, resource, kind) = (change.sign(), &change.resource, &change.kind);
                self.printer.note(&format!("{sign} {resource} ({kind}){replaced}"));
            }
            // One line per resource: when it is done, or has failed.
            Progress::Event(event) if event.status.ends_with("_IN_PROGRESS") => {}
            Progress::Event(event) => {
                let reason =
                    event.reason.as_deref().map_or(String::new(), |why| format!(": {why}"));
                let line = format!("{} {}{reason}", event.status, event.resource);
                match event.is_failure() {
                    true => self.printer.warning(&line),
                    false => self.printer.note(&line),
                }
            }
            _ => {}
        }
    }
}
