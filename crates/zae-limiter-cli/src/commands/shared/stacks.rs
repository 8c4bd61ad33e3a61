//! What the commands about whole stacks share.

use zae_limiter::{NamespaceName, StoreErrorKind};
use zae_limiter_deploy::stack::{Cloud, Endpoints, Progress, Stack, StackBuilder};
use zae_limiter_deploy::{DeployError, OptionError};

use crate::again::Again;
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
    place: DynamoPlace,
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
        let namespace = globals.namespace.clone();
        let mut settings = Settings::new(globals, environment)?;
        dynamodb::prefer_local(&mut settings, environment, printer);
        let StorePlace::Dynamo(place) = settings.store.clone() else {
            let failure = Failure::usage(format!("{} is no stack", settings.store));
            return Err(failure.hint("name a stack with --name STACK"));
        };
        if is_torn(&place, &settings) {
            let failure = Failure::usage(
                "AWS_ENDPOINT_URL_DYNAMODB names this machine, and CloudFormation would be that of AWS",
            );
            return Err(failure.hint(
                "--endpoint-url and AWS_ENDPOINT_URL name one endpoint for everything, \
                 AWS_ENDPOINT_URL_CLOUDFORMATION another one for CloudFormation",
            ));
        }
        // Whoever pastes a hint means this stack, in this place.
        let (region, endpoint_url) = settings.said.clone();
        settings.again = Again::new(&Globals {
            stack: Some(place.stack.clone()),
            region,
            endpoint_url,
            namespace,
            ..Globals::default()
        });
        Ok(Stacks {
            printer,
            region: dynamodb::region(&place).to_owned(),
            stack: place.stack.clone(),
            namespace: settings.namespace.clone(),
            can_ask: settings.can_ask,
            place,
            settings,
        })
    }

    /// The stack, with the defaults of everything.
    pub(crate) fn builder(&self) -> StackBuilder {
        let builder = builder(&self.place, &self.settings);
        match &self.settings.principal {
            Some(principal) => builder.principal(principal.clone()),
            None => builder,
        }
    }

    /// The way to CloudFormation. Nothing is sent.
    pub(crate) async fn cloud(&self) -> Result<Cloud, Failure> {
        self.builder().cloud().await.map_err(|error| self.failure(error))
    }

    /// Where the stack is, in words.
    pub(crate) fn whereabouts(&self) -> String {
        match &self.place.endpoint_url {
            Some(url) => format!("{} at {url}", self.region),
            None => self.region.clone(),
        }
    }

    /// A command line on the same stack, in backquotes.
    pub(crate) fn command(&self, words: &[&str]) -> String {
        self.settings.again.command(words)
    }

    /// An error in the words of the command line.
    pub(crate) fn failure(&self, error: DeployError) -> Failure {
        let is_nobody = matches!(&error, DeployError::Unreachable { .. });
        if is_nobody && error.lacks_credentials() {
            return dynamodb::no_credentials(&self.place, &self.settings);
        }
        let failure = failure(error);
        Failure { hint: failure.hint.map(|hint| self.placed(&hint)), ..failure }
    }

    /// A hint of the library, which knows neither flags nor regions.
    fn placed(&self, hint: &str) -> String {
        const OTHERS: &str = "`aws ";
        let hint = self.settings.again.completed(hint);
        let mut parts = hint.split(OTHERS);
        let mut placed = parts.next().unwrap_or_default().to_owned();
        let endpoint = self.place.endpoint_url.as_ref();
        let endpoint = endpoint.map_or(String::new(), |url| format!(" --endpoint-url {url}"));
        for part in parts {
            let (line, rest) = part.split_once('`').unwrap_or((part, ""));
            placed.push_str(&format!("{OTHERS}{line} --region {}{endpoint}`{rest}", self.region));
        }
        placed
    }
}

/// Whether the table is on this machine and its stack would be looked for in AWS, which nobody
/// means.
fn is_torn(place: &DynamoPlace, settings: &Settings) -> bool {
    let is_named = |at: &Endpoints| at.all.is_some() || at.cloudformation.is_some();
    place.endpoint_url.as_deref().is_some_and(dynamodb::is_local)
        && settings.services.as_ref().is_some_and(|services| !is_named(services))
}

/// A stack, with the defaults of everything.
fn builder(place: &DynamoPlace, settings: &Settings) -> StackBuilder {
    let mut builder = Stack::builder(place.stack.clone(), dynamodb::region(place));
    if let Some(url) = &place.endpoint_url {
        builder = builder.endpoint_url(url.clone());
    }
    match &settings.services {
        Some(services) => builder.endpoints(services.clone()),
        None => builder,
    }
}

/// An error in the words of the command line.
pub(crate) fn failure(error: DeployError) -> Failure {
    let (message, hint) = (error.to_string(), error.hint());
    let failure = match error {
        error if error.is_denied() || error.lacks_credentials() => {
            Failure::of_kind(StoreErrorKind::Denied, message)
        }
        error if error.is_passing() => Failure::of_kind(StoreErrorKind::Unavailable, message),
        DeployError::Option(error) => return option(&error),
        DeployError::Package(error) => return Failure::package(&error),
        DeployError::StackNotFound { .. } => Failure::not_found(message),
        DeployError::StackExists { .. } => Failure::conflict(message),
        // A place that cannot be right is wrong usage, as for every other command.
        DeployError::Store(error) if error.kind() == StoreErrorKind::Invalid => {
            Failure::usage(error.message())
        }
        DeployError::Store(error) => Failure::store(&error),
        DeployError::Limiter(error) => Failure::of_error(&error, message),
        _ => Failure::stack(message),
    };
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// What CloudFormation and CloudWatch say of a stack, each as far as it is known.
#[derive(Default)]
pub(crate) struct Deployed {
    /// The state of the stack, and whether it serves; `None` where there is no such stack, or
    /// nobody to ask.
    pub(crate) stack: Option<(String, bool)>,
    /// The state of the function, where there is one.
    pub(crate) function: Option<String>,
    /// How far the function is behind the stream, in ms, where that is known.
    pub(crate) stream_age_ms: Option<i64>,
    /// What could not be found out, and why. Without the stack nobody knows whether it serves.
    pub(crate) unknown: Vec<(&'static str, String)>,
}

/// The way to AWS of a stack.
pub(crate) async fn cloud(place: &DynamoPlace, settings: &Settings) -> Result<Cloud, DeployError> {
    builder(place, settings).cloud().await
}

/// What is not known when CloudFormation does not say it.
pub(crate) const STATE: &str = "state of the stack";

/// Asks for a stack, each question with a time of its own: an answer is kept whatever becomes of
/// the next question.
pub(crate) async fn look(place: &DynamoPlace, settings: &Settings) -> Deployed {
    let mut found = Deployed::default();
    if is_torn(place, settings) {
        return found;
    }
    let cloud = match cloud(place, settings).await {
        Ok(cloud) => cloud,
        Err(error) => {
            found.unknown.push((STATE, error.to_string()));
            return found;
        }
    };
    match asked(cloud.find(&place.stack)).await {
        Ok(Some(state)) => found.stack = Some((state.status.clone(), state.is_whole())),
        Ok(None) | Err(DeployError::NoCloudFormation { .. }) => return found,
        Err(error) => {
            found.unknown.push((STATE, error.to_string()));
            return found;
        }
    }
    let function = match asked(cloud.resources(&place.stack)).await {
        Ok(resources) => resources.into_iter().find(|[name, ..]| name == "AggregatorFunction"),
        Err(error) => {
            found.unknown.push(("state of the function", error.to_string()));
            return found;
        }
    };
    let Some([_, _, id, status]) = function else { return found };
    found.function = Some(status);
    match asked(cloud.iterator_age_ms(&id)).await {
        Ok(age) => found.stream_age_ms = age,
        Err(error) => found.unknown.push(("age of the stream", error.to_string())),
    }
    found
}

/// An answer in time, or none.
async fn asked<T>(
    question: impl Future<Output = Result<T, DeployError>>,
) -> Result<T, DeployError> {
    let message = "no answer in time".to_owned();
    let late = DeployError::Unreachable { operation: "status", message };
    dynamodb::within(question).await.unwrap_or(Err(late))
}

/// A wrong option, by the name of its flag.
fn option(error: &OptionError) -> Failure {
    let flag = match error.field {
        "tags" => "tag".to_owned(),
        field => field.replace('_', "-"),
    };
    let problem = error.problem.replace("create_iam;", "--iam;");
    Failure::usage(format!("--{flag} {}: {problem}", error.value))
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
