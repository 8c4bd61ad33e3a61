//! From "as typed" and the environment to "ready to run". The only file that reads the environment.

use std::ffi::OsString;
use std::fmt::Display;
use std::io::IsTerminal;
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use terminal_size::{Width, terminal_size_of};
use zae_limiter::{NamespaceName, Principal};

use crate::again::Again;
use crate::args::{Color, DynamoPlace, Globals, Output, StoreUrl};
#[cfg(feature = "dynamodb")]
use crate::engine::{Folder, Search};
use crate::error::Failure;
use crate::user;

/// The namespace of commands that name none.
pub(crate) const NAMESPACE: &str = zae_limiter::store::DEFAULT_NAMESPACE;
/// Below the user's data directory.
const FILE: &str = "zae-limiter/limits.db";
/// How wide help is where no terminal says otherwise, and at most.
const HELP_WIDTH: usize = 100;

/// Variables that say who to be on AWS, or whom to ask.
const AWS_VARIABLES: [&str; 7] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_PROFILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_CONFIG_FILE",
];
/// Files below `~/.aws` that do.
const AWS_FILES: [&str; 2] = ["credentials", "config"];

/// What the process finds around it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Environment {
    store: Option<OsString>,
    stack: Option<OsString>,
    region: Option<OsString>,
    endpoint_url: Option<OsString>,
    namespace: Option<OsString>,
    file_max_mb: Option<OsString>,
    no_color: Option<OsString>,
    term: Option<OsString>,
    columns: Option<OsString>,
    /// The AWS profile that a variable names.
    profile: Option<OsString>,
    /// Whether anything on this machine says who to be on AWS: variables, or files of profiles.
    knows_aws: bool,
    /// The operating system's names for the user, best first.
    users: Vec<OsString>,
    /// Who the system says runs this process; asked only when no variable says it.
    user_of_process: Option<fn() -> Option<String>>,
    /// Where users' data goes, best first.
    data_directories: Vec<PathBuf>,
    stdin_is_terminal: bool,
    stdout_is_terminal: bool,
    stderr_is_terminal: bool,
    terminal_width: Option<usize>,
    /// Where files go that nobody keeps.
    #[cfg(feature = "sqlite")]
    temporary_directory: PathBuf,
    /// How this program was called.
    #[cfg(any(feature = "sqlite", feature = "dynamodb"))]
    program: Option<OsString>,
    /// Where the local engine may be.
    #[cfg(feature = "dynamodb")]
    engine: Search,
}

impl Environment {
    /// Looks around.
    pub(crate) fn read() -> Environment {
        Environment {
            store: variable("ZAEL_STORE"),
            stack: variable("ZAEL_STACK"),
            region: variable("AWS_REGION").or_else(|| variable("AWS_DEFAULT_REGION")),
            endpoint_url: variable("AWS_ENDPOINT_URL_DYNAMODB")
                .or_else(|| variable("AWS_ENDPOINT_URL")),
            namespace: variable("ZAEL_NAMESPACE"),
            file_max_mb: variable("ZAEL_FILE_MAX_MB"),
            no_color: variable("NO_COLOR"),
            term: variable("TERM"),
            columns: variable("COLUMNS"),
            profile: variable("AWS_PROFILE"),
            knows_aws: AWS_VARIABLES.into_iter().any(|name| variable(name).is_some())
                || std::env::home_dir().is_some_and(|home| {
                    AWS_FILES.into_iter().any(|file| home.join(".aws").join(file).exists())
                }),
            users: ["USER", "LOGNAME", "USERNAME"].into_iter().filter_map(variable).collect(),
            user_of_process: Some(user::of_process),
            data_directories: data_directories(
                variable("XDG_DATA_HOME"),
                variable("LOCALAPPDATA"),
                std::env::home_dir(),
            ),
            stdin_is_terminal: std::io::stdin().is_terminal(),
            stdout_is_terminal: std::io::stdout().is_terminal(),
            stderr_is_terminal: std::io::stderr().is_terminal(),
            terminal_width: terminal_size_of(std::io::stdout())
                .map(|(Width(columns), _)| columns.into()),
            #[cfg(feature = "sqlite")]
            temporary_directory: std::env::temp_dir(),
            #[cfg(any(feature = "sqlite", feature = "dynamodb"))]
            program: std::env::args_os().next(),
            #[cfg(feature = "dynamodb")]
            engine: Search {
                named: variable("ZAEL_LOCAL_ENGINE"),
                own: std::env::current_exe().ok(),
                path: variable("PATH"),
            },
        }
    }

    /// Where files go that nobody keeps.
    #[cfg(feature = "sqlite")]
    pub(crate) fn temporary_directory(&self) -> &Path {
        &self.temporary_directory
    }

    /// What to type to call this program again.
    #[cfg(any(feature = "sqlite", feature = "dynamodb"))]
    pub(crate) fn program(&self) -> String {
        self.program
            .as_ref()
            .map_or_else(|| "zae-limiter".into(), |program| program.to_string_lossy().into_owned())
    }

    /// Where the local engine may be.
    #[cfg(feature = "dynamodb")]
    pub(crate) fn engine(&self) -> &Search {
        &self.engine
    }

    /// Where the local engine keeps its files; nowhere without a home directory.
    #[cfg(feature = "dynamodb")]
    pub(crate) fn engine_folder(&self) -> Option<Folder> {
        self.data_directories.first().map(|directory| Folder::in_directory(directory))
    }

    /// The AWS region that variables name.
    #[cfg(feature = "dynamodb")]
    pub(crate) fn region(&self) -> Option<String> {
        text(self.region.as_ref())
    }

    /// Whether anything on this machine says who to be on AWS.
    #[cfg(feature = "dynamodb")]
    pub(crate) fn knows_aws(&self) -> bool {
        self.knows_aws
    }

    /// How many megabytes a file may grow to, as a variable says it.
    pub(crate) fn file_bound(&self) -> Option<String> {
        text(self.file_max_mb.as_ref())
    }

    /// How wide help may be.
    pub(crate) fn help_width(&self) -> usize {
        self.width().unwrap_or(HELP_WIDTH).min(HELP_WIDTH)
    }

    /// How wide tables may be; a pipe has no width. `COLUMNS` beats the terminal.
    fn width(&self) -> Option<usize> {
        let columns = self.columns.as_ref().and_then(|columns| columns.to_str()?.parse().ok());
        columns.filter(|columns| *columns > 0).or(self.terminal_width)
    }

    /// A terminal that can only append.
    fn is_dumb(&self) -> bool {
        self.term.as_ref().is_some_and(|term| term == "dumb")
    }

    /// Whether to colour what goes to a stream.
    fn colours(&self, color: Color, is_terminal: bool) -> bool {
        let plain = self.no_color.is_some() || self.is_dumb();
        match color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => is_terminal && !plain,
        }
    }
}

/// An empty variable counts as not set.
#[expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// The places for users' data. As the XDG standard says, a relative one is no place.
fn data_directories(
    xdg: Option<OsString>,
    local_app_data: Option<OsString>,
    home: Option<PathBuf>,
) -> Vec<PathBuf> {
    let usual = if cfg!(windows) {
        local_app_data.map(PathBuf::from)
    } else if cfg!(target_os = "macos") {
        home.map(|home| home.join("Library/Application Support"))
    } else {
        home.map(|home| home.join(".local/share"))
    };
    xdg.map(PathBuf::from).into_iter().chain(usual).filter(|path| path.is_absolute()).collect()
}

/// How to print. Nothing here can be wrong, so that errors can always be printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Looks {
    /// Table or JSON.
    pub(crate) output: Output,
    /// No notes, warnings, hints.
    pub(crate) quiet: bool,
    /// Colours for answers.
    pub(crate) stdout_colours: bool,
    /// Colours for talk.
    pub(crate) stderr_colours: bool,
    /// Columns a table may take.
    pub(crate) width: Option<usize>,
    /// Whether an answer may be drawn over again: stdout is a terminal that can.
    pub(crate) live: bool,
    /// Whether somebody watches stderr who would like to know how long work goes on.
    pub(crate) progress: bool,
}

impl Looks {
    /// How these flags look in this environment.
    pub(crate) fn new(globals: &Globals, environment: &Environment) -> Looks {
        let color = globals.color.unwrap_or_default();
        let may_redraw = !environment.is_dumb()
            && !globals.quiet
            && globals.output.unwrap_or_default() == Output::Table;
        Looks {
            output: globals.output.unwrap_or_default(),
            quiet: globals.quiet,
            stdout_colours: environment.colours(color, environment.stdout_is_terminal),
            stderr_colours: environment.colours(color, environment.stderr_is_terminal),
            width: environment.width(),
            live: may_redraw && environment.stdout_is_terminal,
            progress: may_redraw && environment.stderr_is_terminal,
        }
    }
}

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
    /// The tenant.
    pub(crate) namespace: NamespaceName,
    /// The flags that a command on the same store needs.
    pub(crate) again: Again,
    /// Who changes are audited under.
    pub(crate) principal: Option<Principal>,
    /// How many megabytes a file may grow to.
    pub(crate) file_max_mb: Option<NonZeroU16>,
    /// Whether somebody can be asked.
    pub(crate) can_ask: bool,
    /// The AWS profile that a variable names.
    pub(crate) profile: Option<String>,
    /// Whether anything on this machine says who to be on AWS.
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
        let url = match (globals.store, globals.stack) {
            (Some(url), _) => Some(url),
            (None, Some(stack)) => {
                Some(StoreUrl::Dynamo(DynamoPlace { stack, ..DynamoPlace::default() }))
            }
            (None, None) => from_variables(environment)?,
        };
        if !matches!(url, Some(StoreUrl::Dynamo(_))) {
            for (flag, value) in
                [("--region", &globals.region), ("--endpoint-url", &globals.endpoint_url)]
            {
                if value.is_some() {
                    let failure = Failure::usage(format!(
                        "{flag} is for DynamoDB, and another store is used"
                    ));
                    return Err(
                        failure.hint("name the stack with --name STACK or --store dynamodb:STACK")
                    );
                }
            }
        }
        let store = match (url, environment.data_directories.first()) {
            (Some(StoreUrl::Sqlite(path)), _) => StorePlace::Named(path),
            (Some(StoreUrl::Memory), _) => StorePlace::Memory,
            (Some(StoreUrl::Dynamo(place)), _) => StorePlace::Dynamo(DynamoPlace {
                region: globals
                    .region
                    .or(place.region)
                    .or_else(|| text(environment.region.as_ref())),
                endpoint_url: globals
                    .endpoint_url
                    .or(place.endpoint_url)
                    .or_else(|| text(environment.endpoint_url.as_ref())),
                stack: place.stack,
            }),
            (None, Some(directory)) => StorePlace::Usual(file_in(directory)),
            (None, None) => {
                let failure = Failure::usage("there is no home directory to keep the limits in");
                return Err(failure.hint("name a file with --store sqlite:PATH, or set ZAEL_STORE"));
            }
        };
        let namespace = match globals.namespace {
            Some(name) => Some(name),
            None => from_variable("ZAEL_NAMESPACE", environment.namespace.as_ref())?,
        };
        let namespace = namespace
            .unwrap_or_else(|| NAMESPACE.parse().expect("the word is a valid namespace name"));
        let named = || environment.users.iter().find_map(|user| user.to_str()?.parse().ok());
        let user = || named().or_else(|| environment.user_of_process?()?.parse().ok());
        // A question nobody sees is none.
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
            again,
            principal,
            file_max_mb,
            can_ask,
            profile,
            knows_aws,
            silent_engine: None,
            #[cfg(feature = "dynamodb")]
            engine_folder: environment.engine_folder(),
        })
    }
}

impl Settings {
    /// Refuses a store that cannot be one, before anything is done.
    pub(crate) fn check_place(&self) -> Result<(), Failure> {
        match &self.store {
            StorePlace::Named(path) if path.is_dir() => {
                let named = if self.again.names_store() { "--store" } else { "ZAEL_STORE" };
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
        (None, stack) => {
            Ok(stack.map(|stack| StoreUrl::Dynamo(DynamoPlace { stack, ..DynamoPlace::default() })))
        }
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

/// A variable of another product: what it cannot read, it does not count.
fn text(value: Option<&OsString>) -> Option<String> {
    value?.to_str().map(str::to_owned)
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
    fn root() -> PathBuf {
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

    #[test]
    fn data_goes_where_xdg_says_else_to_the_usual_place() {
        let (xdg, home) = (root().join("xdg"), root().join("someone"));
        let local = Some(root().join("local").into_os_string());
        let found =
            data_directories(Some(xdg.clone().into_os_string()), local.clone(), Some(home.clone()));
        assert_eq!(found.first(), Some(&xdg));
        let found = data_directories(Some("relative".into()), local, Some(home.clone()));
        assert!(found.len() == 1 && found[0].is_absolute(), "{found:?}");
        if cfg!(target_os = "linux") {
            assert_eq!(found, [home.join(".local/share")]);
        }
        assert!(data_directories(None, None, None).is_empty());
    }

    #[test]
    fn colours_are_for_terminals_unless_told_otherwise() {
        let coloured = |color, terminal, no_color: &str, term: &str| {
            let set = |value: &str| (!value.is_empty()).then(|| OsString::from(value));
            let environment = Environment {
                stdout_is_terminal: terminal,
                no_color: set(no_color),
                term: set(term),
                ..Environment::default()
            };
            Looks::new(&Globals { color, ..Globals::default() }, &environment).stdout_colours
        };
        assert!(coloured(None, true, "", "xterm"));
        assert!(!coloured(None, false, "", "xterm"));
        assert!(!coloured(None, true, "1", "xterm"));
        assert!(!coloured(None, true, "", "dumb"));
        assert!(coloured(Some(Color::Always), false, "1", "dumb"));
        assert!(!coloured(Some(Color::Never), true, "", "xterm"));
    }

    #[test]
    fn only_a_terminal_that_can_is_drawn_over() {
        let looks = |term: &str, output, quiet| {
            let environment = Environment {
                stdout_is_terminal: true,
                term: Some(term.into()),
                ..Environment::default()
            };
            let looks = Looks::new(
                &Globals { output: Some(output), quiet, ..Globals::default() },
                &environment,
            );
            assert!(!looks.progress, "stderr is no terminal");
            looks.live
        };
        assert!(looks("xterm", Output::Table, false));
        assert!(
            !looks("dumb", Output::Table, false)
                && !looks("xterm", Output::Json, false)
                && !looks("xterm", Output::Table, true)
        );
    }

    #[test]
    fn columns_beat_the_terminal() {
        let width = |columns: &str, terminal| {
            let environment = Environment {
                columns: Some(columns.into()),
                terminal_width: terminal,
                ..Environment::default()
            };
            (Looks::new(&Globals::default(), &environment).width, environment.help_width())
        };
        assert_eq!(width("40", Some(120)), (Some(40), 40));
        assert_eq!(width("x", Some(120)), (Some(120), 100));
        assert_eq!(width("0", None), (None, 100));
    }
}
