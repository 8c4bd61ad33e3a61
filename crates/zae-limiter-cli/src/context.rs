//! What every command gets: its settings, the printer, and the limiter on demand.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
#[cfg(feature = "sqlite")]
use zae_limiter::sqlite::{SqliteOptions, SqliteStore};
use zae_limiter::{Builder, ErrorKind, MemoryStore, RateLimiter, StoreErrorKind};

use crate::args::value::DynamoPlace;
use crate::commands::shared::namespaces;
use crate::error::Failure;
use crate::printer::Printer;
use crate::settings::{NAMESPACE, Settings, StorePlace};

/// How long the store may take to answer an acquire. A person at a terminal would rather wait than
/// be told that a busy disk is an outage.
pub(crate) const DEADLINE: Duration = Duration::from_secs(10);

/// Pages of 4 KiB.
#[cfg(feature = "sqlite")]
const PAGES_PER_MB: u32 = 256;

/// What a command does to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// It never writes: it needs no more than permission to read, and creates no file.
    Looks,
    /// It changes or deletes what is there. A file that is not there was named by mistake, and is
    /// not created.
    Changes,
    /// It stores something new, and creates the file if need be.
    SetsUp,
}

impl Access {
    /// That of a command which may need an entity: a new file has none to find.
    pub(crate) fn with_entity(is_needed: bool) -> Access {
        if is_needed { Access::Changes } else { Access::SetsUp }
    }
}

/// What every command gets.
pub(crate) struct Context<'a> {
    /// What was asked for.
    pub(crate) settings: &'a Settings,
    /// Where to say something.
    pub(crate) printer: &'a Printer,
    /// What the command does to a file.
    pub(crate) access: Access,
}

impl Context<'_> {
    /// Opens the store and binds to the namespace. Commands check what they can before they call
    /// this: it may create a file.
    pub(crate) async fn open(&self) -> anyhow::Result<RateLimiter> {
        self.open_by(|builder| builder).await
    }

    /// The same, with options of the limiter.
    pub(crate) async fn open_by(
        &self,
        options: impl FnOnce(Builder) -> Builder,
    ) -> anyhow::Result<RateLimiter> {
        if self.settings.namespace != NAMESPACE {
            // A new file has no other namespace.
            self.require_file()?;
        }
        let registry = options(self.builder().await?).build()?;
        match registry.namespace(self.settings.namespace.clone()).await {
            Err(error) if error.kind() == ErrorKind::Store(StoreErrorKind::NotFound) => {
                Err(namespaces::missing(self, &registry, &self.settings.namespace).await.into())
            }
            opened => Ok(opened?),
        }
    }

    /// Opens the store for its registry of namespaces, which needs none to exist.
    pub(crate) async fn open_registry(&self) -> anyhow::Result<RateLimiter> {
        Ok(self.builder().await?.build()?)
    }

    /// Refuses to go on where the store is a file that is not there.
    pub(crate) fn require_file(&self) -> Result<(), Failure> {
        let (path, check) = match &self.settings.store {
            StorePlace::Named(path) if self.settings.again.names_store() => {
                (path, "check --store; ")
            }
            StorePlace::Named(path) => (path, "check ZAEL_STORE; "),
            StorePlace::Usual(path) => (path, ""),
            StorePlace::Memory | StorePlace::Dynamo(_) => return Ok(()),
        };
        if path.exists() {
            return Ok(());
        }
        let created = match self.settings.namespace == NAMESPACE {
            true => "the first command that stores something creates it".to_owned(),
            false => format!(
                "{} creates it",
                self.command(&["namespace", "register", self.settings.namespace.as_str()])
            ),
        };
        Err(Failure::not_found(format!("there is no file {}", path.display()))
            .hint(format!("{check}{created}")))
    }

    /// The file that the store is, if it is not there.
    pub(crate) fn missing_file(&self) -> Option<&Path> {
        match &self.settings.store {
            StorePlace::Named(path) | StorePlace::Usual(path) => {
                Some(path.as_path()).filter(|path| !path.exists())
            }
            StorePlace::Memory | StorePlace::Dynamo(_) => None,
        }
    }

    /// A command line on the same store, in backquotes.
    pub(crate) fn command(&self, words: &[&str]) -> String {
        self.settings.again.command(words)
    }

    async fn builder(&self) -> anyhow::Result<Builder> {
        let builder = match &self.settings.store {
            StorePlace::Memory => {
                self.printer.note("memory: is forgotten when this command ends");
                RateLimiter::builder(MemoryStore::new())
            }
            StorePlace::Named(path) => self.open_file(path)?,
            StorePlace::Usual(path) => {
                if self.access == Access::SetsUp
                    && let Some(folder) = path.parent()
                {
                    create_private(folder).with_context(|| {
                        format!("the folder {} could not be created", folder.display())
                    })?;
                }
                self.open_file(path)?
            }
            StorePlace::Dynamo(place) => self.connect(place).await?,
        };
        let builder = builder.deadline(DEADLINE);
        Ok(match &self.settings.principal {
            Some(principal) => builder.principal(principal.clone()),
            None => builder,
        })
    }

    #[cfg(feature = "sqlite")]
    fn open_file(&self, path: &Path) -> anyhow::Result<Builder> {
        if self.access == Access::Looks {
            return Ok(RateLimiter::builder(self.look_at_file()?));
        }
        let is_new = !path.exists();
        // A person at a terminal waits as long for a busy file as for a busy disk.
        let mut options = SqliteOptions::new().take_deadline(zae_limiter::sqlite::BUSY_DEADLINE);
        if let Some(megabytes) = self.settings.file_max_mb {
            options = options.pages_max(u32::from(megabytes.get()) * PAGES_PER_MB);
        }
        let store = SqliteStore::open_with(path, options).map_err(zae_limiter::Error::from)?;
        if is_new {
            self.printer.note(&format!("created {}", path.display()));
        }
        Ok(RateLimiter::builder(store))
    }

    #[cfg(not(feature = "sqlite"))]
    fn open_file(&self, path: &Path) -> anyhow::Result<Builder> {
        let failure =
            Failure::usage(format!("{} cannot be opened: SQLite is not built in", path.display()));
        Err(failure
            .hint("build zae-limiter-cli with the feature sqlite, or use --store memory:")
            .into())
    }

    #[cfg(feature = "dynamodb")]
    async fn connect(&self, place: &DynamoPlace) -> anyhow::Result<Builder> {
        Ok(RateLimiter::builder(crate::dynamodb::registry(place, self.settings).await?))
    }

    #[cfg(not(feature = "dynamodb"))]
    async fn connect(&self, place: &DynamoPlace) -> anyhow::Result<Builder> {
        let failure = Failure::usage(format!(
            "the stack {} cannot be reached: DynamoDB is not built in",
            place.stack
        ));
        Err(failure.hint("build zae-limiter-cli with the feature dynamodb").into())
    }

    /// The path of the store, for commands that work on a file.
    #[cfg(feature = "sqlite")]
    pub(crate) fn file(&self) -> Result<&Path, Failure> {
        match &self.settings.store {
            StorePlace::Named(path) | StorePlace::Usual(path) => Ok(path),
            StorePlace::Memory => {
                Err(Failure::usage("this command works on SQLite files, and memory: is none")
                    .hint("name one with --store sqlite:PATH"))
            }
            StorePlace::Dynamo(place) => {
                let failure = Failure::usage(format!(
                    "this command works on SQLite files; {} is a DynamoDB stack",
                    place.stack
                ));
                Err(failure.hint("name a file with --store sqlite:PATH"))
            }
        }
    }

    /// Opens the file to look at it, changing nothing; it must exist.
    #[cfg(feature = "sqlite")]
    pub(crate) fn look_at_file(&self) -> anyhow::Result<SqliteStore> {
        let path = self.file()?;
        self.require_file()?;
        Ok(SqliteStore::open_with(path, SqliteOptions::new().read_only())
            .map_err(zae_limiter::Error::from)?)
    }
}

/// Creates a folder, and those above it, for its owner only where the system knows owners.
pub(crate) fn create_private(folder: &Path) -> std::io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}
