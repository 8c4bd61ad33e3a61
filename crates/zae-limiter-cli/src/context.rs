//! What every command gets: its settings, the printer, and the limiter on demand.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
#[cfg(feature = "sqlite")]
use zae_limiter::sqlite::{SqliteOptions, SqliteStore};
use zae_limiter::{Builder, MemoryStore, RateLimiter};

use crate::args::DynamoPlace;
use crate::error::Failure;
use crate::printer::Printer;
use crate::settings::{Settings, StorePlace};

/// How long the store may take to answer an acquire. A person at a terminal would rather wait than be told that a busy
/// disk is an outage.
const DEADLINE: Duration = Duration::from_secs(10);

/// What every command gets.
pub(crate) struct Context<'a> {
    /// What was asked for.
    pub(crate) settings: &'a Settings,
    /// Where to say something.
    pub(crate) printer: &'a Printer,
    /// The command never writes: it creates no file and needs no permission to write.
    pub(crate) only_looks: bool,
}

impl Context<'_> {
    /// Opens the store and binds to the namespace. Commands check what they can before they call this: it may create a file.
    pub(crate) async fn open(&self) -> anyhow::Result<RateLimiter> {
        Ok(self.builder().await?.build_in(&self.settings.namespace).await?)
    }

    /// Opens the store for its registry of namespaces, which needs none to exist.
    pub(crate) async fn open_registry(&self) -> anyhow::Result<RateLimiter> {
        Ok(self.builder().await?.build()?)
    }

    async fn builder(&self) -> anyhow::Result<Builder> {
        let builder = match &self.settings.store {
            StorePlace::Memory => {
                self.printer.note("memory: is forgotten when this command ends");
                RateLimiter::builder(MemoryStore::new())
            }
            StorePlace::Named(path) => self.open_file(path)?,
            StorePlace::Usual(path) => {
                if !self.only_looks
                    && let Some(folder) = path.parent()
                {
                    create_private(folder).with_context(|| format!("the folder {} could not be created", folder.display()))?;
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
        if self.only_looks {
            return Ok(RateLimiter::builder(self.look_at_file()?));
        }
        let is_new = !path.exists();
        let store = SqliteStore::open(path).map_err(zae_limiter::Error::from)?;
        if is_new {
            self.printer.note(&format!("created {}", path.display()));
        }
        Ok(RateLimiter::builder(store))
    }

    #[cfg(not(feature = "sqlite"))]
    fn open_file(&self, path: &Path) -> anyhow::Result<Builder> {
        let failure = Failure::usage(format!("{} can not be opened: SQLite is not built in", path.display()));
        Err(failure.hint("build zae-limiter-cli with the feature sqlite, or use --store memory:").into())
    }

    #[cfg(feature = "dynamodb")]
    async fn connect(&self, place: &DynamoPlace) -> anyhow::Result<Builder> {
        Ok(RateLimiter::builder(crate::dynamo::registry(place).await?))
    }

    #[cfg(not(feature = "dynamodb"))]
    async fn connect(&self, place: &DynamoPlace) -> anyhow::Result<Builder> {
        let failure = Failure::usage(format!("the stack {} can not be reached: DynamoDB is not built in", place.stack));
        Err(failure.hint("build zae-limiter-cli with the feature dynamodb").into())
    }

    /// The path of the store, for commands that work on a file.
    #[cfg(feature = "sqlite")]
    pub(crate) fn file(&self) -> Result<&Path, Failure> {
        match &self.settings.store {
            StorePlace::Named(path) | StorePlace::Usual(path) => Ok(path),
            StorePlace::Memory => Err(Failure::usage("memory: is no file").hint("name one with --store sqlite:PATH")),
            StorePlace::Dynamo(place) => {
                let failure = Failure::usage(format!("the stack {} is no file", place.stack));
                Err(failure.hint("name a file with --store sqlite:PATH"))
            }
        }
    }

    /// Opens the file to look at it, changing nothing; it must exist.
    #[cfg(feature = "sqlite")]
    pub(crate) fn look_at_file(&self) -> anyhow::Result<SqliteStore> {
        let path = self.file()?;
        if !path.exists() {
            let failure = Failure::not_found(format!("there is no file {}", path.display()));
            return Err(failure.hint("the first command that stores something creates it").into());
        }
        Ok(SqliteStore::open_with(path, SqliteOptions::new().read_only()).map_err(zae_limiter::Error::from)?)
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
