//! What the process finds around it. The only file that reads the environment.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::PathBuf;

use terminal_size::{Width, terminal_size_of};

#[cfg(feature = "dynamodb")]
use crate::engine::{Folder, Search};
#[cfg(feature = "dynamodb")]
use crate::lambda::Function;
use crate::user;

/// How wide help is where no terminal says otherwise, and at most.
const HELP_WIDTH: usize = 100;

/// Variables that name AWS credentials, or a place to get them from.
const AWS_VARIABLES: [&str; 7] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_PROFILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_CONFIG_FILE",
];
/// Files below `~/.aws` that do the same.
const AWS_FILES: [&str; 2] = ["credentials", "config"];

/// What the process finds around it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Environment {
    pub(super) store: Option<OsString>,
    pub(super) stack: Option<OsString>,
    pub(super) region: Option<OsString>,
    /// Of DynamoDB.
    pub(super) endpoint_url: Option<OsString>,
    /// Of all services, and of each: CloudFormation, S3, Lambda, CloudWatch.
    #[cfg(feature = "deploy")]
    pub(super) services: (Option<OsString>, [Option<OsString>; 4]),
    pub(super) namespace: Option<OsString>,
    pub(super) file_max_mb: Option<OsString>,
    pub(super) shards_max: Option<OsString>,
    pub(super) no_color: Option<OsString>,
    pub(super) term: Option<OsString>,
    pub(super) columns: Option<OsString>,
    /// The AWS profile that a variable names.
    pub(super) profile: Option<OsString>,
    /// Whether this machine has AWS credentials: variables, or files of profiles.
    pub(crate) knows_aws: bool,
    /// The operating system's names for the user, best first.
    pub(super) users: Vec<OsString>,
    /// Who the system says runs this process; asked only when no variable says it.
    pub(super) user_of_process: Option<fn() -> Option<String>>,
    /// Where users' data goes, best first.
    pub(super) data_directories: Vec<PathBuf>,
    pub(super) stdin_is_terminal: bool,
    pub(super) stdout_is_terminal: bool,
    pub(super) stderr_is_terminal: bool,
    pub(super) terminal_width: Option<usize>,
    /// Where files go that nobody keeps.
    #[cfg(feature = "sqlite")]
    pub(crate) temporary_directory: PathBuf,
    /// How this program was called.
    #[cfg(any(feature = "sqlite", feature = "dynamodb"))]
    pub(super) program: Option<OsString>,
    /// Where the local engine may be.
    #[cfg(feature = "dynamodb")]
    pub(crate) engine: Search,
    /// The function that Lambda has started this process as.
    #[cfg(feature = "dynamodb")]
    pub(crate) function: Option<Function>,
    /// The table that the function works on.
    #[cfg(feature = "loadtest")]
    pub(super) table: Option<OsString>,
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
            #[cfg(feature = "deploy")]
            services: (
                variable("AWS_ENDPOINT_URL"),
                [
                    variable("AWS_ENDPOINT_URL_CLOUDFORMATION"),
                    variable("AWS_ENDPOINT_URL_S3"),
                    variable("AWS_ENDPOINT_URL_LAMBDA"),
                    variable("AWS_ENDPOINT_URL_CLOUDWATCH"),
                ],
            ),
            namespace: variable("ZAEL_NAMESPACE"),
            file_max_mb: variable("ZAEL_FILE_MAX_MB"),
            shards_max: variable("ZAEL_SHARDS_MAX"),
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
            #[cfg(feature = "dynamodb")]
            function: variable("AWS_LAMBDA_RUNTIME_API")
                .and_then(|_| Function::of(variable("_HANDLER")?.to_str()?)),
            #[cfg(feature = "loadtest")]
            table: variable("TABLE_NAME"),
        }
    }

    /// Where services are that are not the table, as variables say it; `None` where the table is.
    #[cfg(feature = "deploy")]
    pub(super) fn services(&self) -> Option<zae_limiter_deploy::stack::Endpoints> {
        let (all, own) = &self.services;
        if own.iter().all(Option::is_none) && *all == self.endpoint_url {
            return None;
        }
        let [cloudformation, s3, lambda, cloudwatch] = own.each_ref().map(|url| text(url.as_ref()));
        let all = text(all.as_ref());
        Some(zae_limiter_deploy::stack::Endpoints { all, cloudformation, s3, lambda, cloudwatch })
    }

    /// Whether a variable names a store.
    #[cfg(feature = "deploy")]
    pub(crate) fn names_store(&self) -> bool {
        self.store.is_some() || self.stack.is_some()
    }

    /// What to type to call this program again.
    #[cfg(any(feature = "sqlite", feature = "dynamodb"))]
    pub(crate) fn program(&self) -> String {
        self.program
            .as_ref()
            .map_or_else(|| "zae-limiter".into(), |program| program.to_string_lossy().into_owned())
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

    /// The table of a function, and another endpoint than the region's own.
    #[cfg(all(feature = "dynamodb", feature = "loadtest"))]
    pub(crate) fn table(&self) -> (Option<String>, Option<String>) {
        (text(self.table.as_ref()), text(self.endpoint_url.as_ref()))
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
    pub(super) fn width(&self) -> Option<usize> {
        let columns = self.columns.as_ref().and_then(|columns| columns.to_str()?.parse().ok());
        columns.filter(|columns| *columns > 0).or(self.terminal_width)
    }

    /// A terminal that can only append.
    pub(super) fn is_dumb(&self) -> bool {
        self.term.as_ref().is_some_and(|term| term == "dumb")
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

/// The text of a variable of another program; a value that is not UTF-8 counts as not set.
pub(super) fn text(value: Option<&OsString>) -> Option<String> {
    value?.to_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::super::tests::root;
    use super::*;

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
}
