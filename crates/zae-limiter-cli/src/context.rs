//! What every command gets: its settings, the printer, and the limiter on demand.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use zae_limiter::sqlite::SqliteStore;
use zae_limiter::{Builder, MemoryStore, RateLimiter};

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
}

impl Context<'_> {
    /// Opens the store and binds to the namespace. Commands check what they can before they call this: it may create a file.
    pub(crate) async fn open(&self) -> anyhow::Result<RateLimiter> {
        let mut builder = match &self.settings.store {
            StorePlace::Memory => {
                self.printer.note("memory: is forgotten when this command ends");
                RateLimiter::builder(MemoryStore::new())
            }
            StorePlace::Named(path) => self.open_file(path)?,
            StorePlace::Usual(path) => {
                if let Some(folder) = path.parent() {
                    create_private(folder).with_context(|| format!("the folder {} could not be created", folder.display()))?;
                }
                self.open_file(path)?
            }
        };
        builder = builder.deadline(DEADLINE);
        if let Some(principal) = &self.settings.principal {
            builder = builder.principal(principal.clone());
        }
        Ok(builder.build_in(&self.settings.namespace).await?)
    }

    fn open_file(&self, path: &Path) -> anyhow::Result<Builder> {
        let is_new = !path.exists();
        let store = SqliteStore::open(path).map_err(zae_limiter::Error::from)?;
        if is_new {
            self.printer.note(&format!("created {}", path.display()));
        }
        Ok(RateLimiter::builder(store))
    }
}

/// Creates a folder, and those above it, for its owner only where the system knows owners.
fn create_private(folder: &Path) -> std::io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}
