//! From "as typed" and the environment to "ready to run".

mod environment;
mod looks;

use std::ffi::OsString;
use std::fmt::Display;
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use zae_limiter::{NamespaceName, Principal};

pub(crate) use self::environment::Environment;
use self::environment::text;
pub(crate) use self::looks::Looks;
use crate::again::Again;
use crate::args::Globals;
use crate::args::value::{DynamoPlace, StoreUrl, shards};
#[cfg(feature = "dynamodb")]
use crate::engine::Folder;
use crate::error::Failure;

/// The namespace of commands that name none.
pub(crate) const NAMESPACE: &str = zae_limiter::store::DEFAULT_NAMESPACE;
/// Below the user's data directory.
const FILE: &str = "zae-limiter/limits.db";

/// Where limits live, in the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StorePlace {
    /// A file that somebody named; its folder must exist.
    Named(PathBuf),
    /// The file nobody needs to name; its folder is created.
    Usual(PathBuf),
    /// This process.
    Memory,
    /// A DynamoDB table.
    Dynamo(DynamoPlace),
}

impl Display for StorePlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            StorePlace::Named(path) | StorePlace::Usual(path) => {
                write!(f, "the file {}", path.display())
            }
            StorePlace::Memory => f.write_str("the memory"),
            StorePlace::Dynamo(place) => write!(f, "the stack {}", place.stack),
        }
    }
}

/// What every command needs, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Where limits live.
    pub(crate) store: StorePlace,
    /// The namespace that the command works in.
    pub(crate) namespace: NamespaceName,
    /// Whether a flag or a variable says so.
    pub(crate) namespace_is_named: bool,
    /// The flags that a command on the same store needs.
    pub(crate) again: Again,
    /// The region and the endpoint of the stack, where a flag or the URL of the store says them.
    #[cfg(feature = "deploy")]
    pub(crate) said: (Option<String>, Option<String>),
    /// Where services are that are not the table; `None` where the table is.
    #[cfg(feature = "deploy")]
    pub(crate) services: Option<zae_limiter_deploy::stack::Endpoints>,
    /// Who changes are audited under.
    pub(crate) principal: Option<Principal>,
    /// How many megabytes a file may grow to.
    pub(crate) file_max_mb: Option<NonZeroU16>,
    /// Whether somebody can be asked.
    pub(crate) can_ask: bool,
    /// The AWS profile that a variable names.
    pub(crate) profile: Option<String>,
    /// Whether this machine has AWS credentials.
    pub(crate) knows_aws: bool,
    /// A local engine that may have the stack and does not answer.
    pub(crate) silent_engine: Option<Failure>,
    /// Where the local engine keeps its files.
    #[cfg(feature = "dynamodb")]
    pub(crate) engine_folder: Option<Folder>,
}

impl Settings {
    /// The flags, else the environment, else the defaults.
    pub(crate) fn new(globals: Globals, environment: &Environment) -> Result<Settings, Failure> {
        let again = Again::new(&globals);
        let url = store_url(&globals, environment)?;
        #[cfg(feature = "deploy")]
        let said = said(&globals, url.as_ref());
        let store = store_place(url, &globals, environment)?;
        let namespace = match globals.namespace {
            Some(name) => Some(name),
            None => from_variable("ZAEL_NAMESPACE", environment.namespace.as_ref())?,
        };
        let namespace_is_named = namespace.is_some();
        let namespace = namespace
            .unwrap_or_else(|| NAMESPACE.parse().expect("the word is a valid namespace name"));
        let named = || environment.users.iter().find_map(|user| user.to_str()?.parse().ok());
        let user = || named().or_else(|| environment.user_of_process?()?.parse().ok());
        // A question needs a terminal to show it and one to answer it.
        let can_ask = environment.stdin_is_terminal && environment.stderr_is_terminal;
        let file_max_mb = environment
            .file_max_mb
            .as_ref()
            .map(|value| parsed("ZAEL_FILE_MAX_MB", value, megabytes))
            .transpose()?;
        let profile = text(environment.profile.as_ref());
        let (principal, knows_aws) = (globals.principal.or_else(user), environment.knows_aws);
        Ok(Settings {
            store,
            namespace,
            namespace_is_named,
            again,
            principal,
            file_max_mb,
            can_ask,
            profile,
            knows_aws,
            silent_engine: None,
            // One endpoint that is named is that of everything.
            #[cfg(feature = "deploy")]
            services: environment.services().filter(|_| said.1.is_none()),
            #[cfg(feature = "deploy")]
            said,
            #[cfg(feature = "dynamodb")]
            engine_folder: environment.engine_folder(),
        })
    }

    /// Refuses a store that cannot be one, before anything is done.
    pub(crate) fn check_place(&self, flag: &str) -> Result<(), Failure> {
        match &self.store {
            StorePlace::Named(path) if path.is_dir() => {
                let named = if self.again.names_store() { flag } else { "ZAEL_STORE" };
                let failure =
                    Failure::usage(format!("{named} names {}, which is a folder", path.display()));
                Err(failure.hint(format!(
                    "name a file in it, as in sqlite:{}",
                    path.join("limits.db").display()
                )))
            }
            _ => Ok(()),
        }
    }
}

/// The store, as it was named.
fn store_url(globals: &Globals, environment: &Environment) -> Result<Option<StoreUrl>, Failure> {
    match (&globals.store, &globals.stack) {
        (Some(url), _) => Ok(Some(url.clone())),
        (None, Some(stack)) => Ok(Some(StoreUrl::stack(stack.clone()))),
        (None, None) => from_variables(environment),
    }
}

/// The region and the endpoint, where a flag or the URL says them.
#[cfg(feature = "deploy")]
fn said(globals: &Globals, url: Option<&StoreUrl>) -> (Option<String>, Option<String>) {
    let (region, endpoint_url) = match url {
        Some(StoreUrl::Dynamo(place)) => (place.region.clone(), place.endpoint_url.clone()),
        _ => (None, None),
    };
    (globals.region.clone().or(region), globals.endpoint_url.clone().or(endpoint_url))
}

/// Where limits live.
fn store_place(
    url: Option<StoreUrl>,
    globals: &Globals,
    environment: &Environment,
) -> Result<StorePlace, Failure> {
    if !matches!(url, Some(StoreUrl::Dynamo(_))) {
        let given = [("--region", &globals.region), ("--endpoint-url", &globals.endpoint_url)];
        if let Some((flag, _)) = given.into_iter().find(|(_, value)| value.is_some()) {
            let failure =
                Failure::usage(format!("{flag} is for DynamoDB, and another store is used"));
            return Err(failure.hint("name the stack with --name STACK or --store dynamodb:STACK"));
        }
    }
    let or_variable = |flag: &Option<String>, part: Option<String>, variable: &Option<OsString>| {
        flag.clone().or(part).or_else(|| text(variable.as_ref()))
    };
    match (url, environment.data_directories.first()) {
        (Some(StoreUrl::Sqlite(path)), _) => Ok(StorePlace::Named(path)),
        (Some(StoreUrl::Memory), _) => Ok(StorePlace::Memory),
        (Some(StoreUrl::Dynamo(place)), _) => Ok(StorePlace::Dynamo(DynamoPlace {
            region: or_variable(&globals.region, place.region, &environment.region),
            endpoint_url: or_variable(
                &globals.endpoint_url,
                place.endpoint_url,
                &environment.endpoint_url,
            ),
            stack: place.stack,
            shards_max: shards_max(environment)?,
        })),
        (None, Some(directory)) => Ok(StorePlace::Usual(file_in(directory))),
        (None, None) => {
            let failure = Failure::usage("there is no home directory to keep the limits in");
            Err(failure.hint("name a file with --store sqlite:PATH, or set ZAEL_STORE"))
        }
    }
}

/// The most shards that this process gives a bucket.
pub(crate) fn shards_max(environment: &Environment) -> Result<Option<u32>, Failure> {
    let value = environment.shards_max.as_ref();
    value.map(|value| parsed("ZAEL_SHARDS_MAX", value, shards)).transpose()
}

/// The store that variables name: one variable, or two that name the same stack.
fn from_variables(environment: &Environment) -> Result<Option<StoreUrl>, Failure> {
    let url = from_variable("ZAEL_STORE", environment.store.as_ref())?;
    let stack: Option<String> = from_variable("ZAEL_STACK", environment.stack.as_ref())?;
    match (url, stack) {
        (Some(url), Some(stack)) if !matches!(&url, StoreUrl::Dynamo(place) if place.stack == stack) =>
        {
            let failure = Failure::usage(format!(
                "ZAEL_STORE is {url} and ZAEL_STACK is {stack}: each names another store"
            ));
            Err(failure
                .hint("unset one of these variables, or name the store with --store or --name"))
        }
        (Some(url), _) => Ok(Some(url)),
        (None, stack) => Ok(stack.map(StoreUrl::stack)),
    }
}

/// How many megabytes a file may grow to.
fn megabytes(text: &str) -> Result<NonZeroU16, String> {
    let megabytes =
        text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten();
    megabytes.ok_or_else(|| {
        format!("write a whole number of megabytes from 1 to {}, or unset the variable", u16::MAX)
    })
}

fn file_in(directory: &Path) -> PathBuf {
    // Joined in parts, so that Windows gets its own separators.
    FILE.split('/').fold(directory.to_owned(), |path, part| path.join(part))
}

fn from_variable<T: FromStr<Err: Display>>(
    name: &str,
    value: Option<&OsString>,
) -> Result<Option<T>, Failure> {
    value.map(|value| parsed(name, value, str::parse)).transpose()
}

fn parsed<T, Why: Display>(
    name: &str,
    value: &OsString,
    parse: impl Fn(&str) -> Result<T, Why>,
) -> Result<T, Failure> {
    let shown = value.to_string_lossy();
    let invalid = |why: &dyn Display| {
        Failure::usage(format!("invalid value '{shown}' for the variable {name}: {why}"))
    };
    let text = value.to_str().ok_or_else(|| invalid(&"not valid UTF-8"))?;
    parse(text).map_err(|why| invalid(&why))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The root of some absolute path, on any system.
    pub(super) fn root() -> PathBuf {
        PathBuf::from(if cfg!(windows) { "C:\\" } else { "/" })
    }

    fn environment() -> Environment {
        Environment { data_directories: vec![root().join("data")], ..Environment::default() }
    }

    fn settings(globals: Globals, environment: &Environment) -> Result<Settings, String> {
        Settings::new(globals, environment).map_err(|failure| failure.to_string())
    }

    #[test]
    fn without_anything_said_the_defaults_hold() {
        let settings = settings(Globals::default(), &environment()).unwrap();
        assert_eq!(
            settings.store,
            StorePlace::Usual(root().join("data").join("zae-limiter").join("limits.db"))
        );
        assert_eq!(settings.namespace, "default");
        assert_eq!((settings.principal, settings.can_ask), (None, false));
    }

    #[test]
    fn flags_beat_variables() {
        let environment = Environment {
            store: Some("sqlite:from-variable.db".into()),
            namespace: Some("from-variable".into()),
            users: vec!["from-variable".into()],
            ..environment()
        };
        let found = settings(Globals::default(), &environment).unwrap();
        assert_eq!(found.store, StorePlace::Named("from-variable.db".into()));
        assert_eq!(
            (found.namespace.as_str(), found.principal.unwrap().as_str()),
            ("from-variable", "from-variable")
        );
        let globals = Globals {
            store: Some(StoreUrl::Memory),
            namespace: Some("flag".parse().unwrap()),
            principal: Some("flag".parse().unwrap()),
            ..Globals::default()
        };
        let found = settings(globals, &environment).unwrap();
        assert_eq!(found.store, StorePlace::Memory);
        assert_eq!((found.namespace.as_str(), found.principal.unwrap().as_str()), ("flag", "flag"));
    }

    #[test]
    fn a_wrong_variable_is_named() {
        let wrong = Environment { store: Some("postgres:x".into()), ..environment() };
        let error = settings(Globals::default(), &wrong).unwrap_err();
        assert_eq!(
            error,
            "invalid value 'postgres:x' for the variable ZAEL_STORE: use sqlite:PATH, dynamodb:STACK or memory:"
        );
        let wrong = Environment { namespace: Some("a b".into()), ..environment() };
        let error = settings(Globals::default(), &wrong).unwrap_err();
        assert!(error.contains("ZAEL_NAMESPACE") && error.contains("letters, digits"), "{error}");
    }

    #[test]
    fn a_wrong_variable_does_not_matter_when_a_flag_is_given() {
        let wrong = Environment { store: Some("postgres:x".into()), ..environment() };
        let globals = Globals { store: Some(StoreUrl::Memory), ..Globals::default() };
        assert!(settings(globals, &wrong).is_ok());
    }

    #[test]
    fn the_first_user_that_is_a_valid_principal_is_taken() {
        let users = |users: &[&str]| Environment {
            users: users.iter().map(OsString::from).collect(),
            ..environment()
        };
        let principal = |environment| settings(Globals::default(), &environment).unwrap().principal;
        assert_eq!(principal(users(&["ops-1", "ops-2"])).unwrap(), "ops-1");
        assert_eq!(principal(users(&["ops 1", "ops-2"])).unwrap(), "ops-2");
        assert_eq!(principal(users(&["ops 1"])), None);
        let asked = |users| Environment { user_of_process: Some(|| Some("ops-3".into())), ..users };
        assert_eq!(principal(asked(users(&["ops-1"]))).unwrap(), "ops-1");
        assert_eq!(principal(asked(users(&["ops 1"]))).unwrap(), "ops-3");
    }

    #[test]
    fn somebody_can_be_asked_who_sees_the_question() {
        for (stdin_is_terminal, stderr_is_terminal, expected) in
            [(true, true, true), (true, false, false), (false, true, false)]
        {
            let environment =
                Environment { stdin_is_terminal, stderr_is_terminal, ..environment() };
            assert_eq!(settings(Globals::default(), &environment).unwrap().can_ask, expected);
        }
    }

    #[test]
    fn without_a_home_a_store_must_be_named() {
        let homeless = Environment::default();
        assert!(settings(Globals::default(), &homeless).unwrap_err().contains("home directory"));
        let globals = Globals { store: Some(StoreUrl::Memory), ..Globals::default() };
        assert!(settings(globals, &homeless).is_ok());
    }
}
