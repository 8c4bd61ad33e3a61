//! Where the demo's file goes, and what to type to look at it afterwards.

use std::fs::DirBuilder;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use zae_limiter::{Clock, SystemClock};

use super::world::RESOURCE;
use crate::args::value::StoreUrl;
use crate::error::Failure;
use crate::escape::quoted;
use crate::settings::Environment;

/// How many folders are tried.
const TRIES_MAX: u32 = 100;

/// Where the demo's file goes. `ZAEL_STORE` is not asked: what is there is not for playing.
pub(crate) struct Place {
    named: Option<PathBuf>,
    temporary_directory: PathBuf,
    program: String,
}

impl Place {
    /// The file that --store names, which must not exist, or else one in a new temporary folder.
    pub(crate) fn new(
        store: Option<StoreUrl>,
        environment: &Environment,
    ) -> Result<Place, Failure> {
        let wrong = |message: String| {
            Err(Failure::usage(message).hint("leave --store away, or name a new file"))
        };
        let named = match store {
            Some(StoreUrl::Dynamo(_) | StoreUrl::Memory) => {
                return wrong("the demo needs a file".to_owned());
            }
            Some(StoreUrl::Sqlite(path)) if path.exists() => {
                let path = path.display();
                return wrong(format!("{path} exists, and the demo begins with a fresh file"));
            }
            Some(StoreUrl::Sqlite(path)) => Some(path),
            None => None,
        };
        Ok(Place {
            named,
            temporary_directory: environment.temporary_directory.clone(),
            program: environment.program(),
        })
    }

    /// The path of the file, its folder created.
    pub(super) fn prepare(&self) -> anyhow::Result<PathBuf> {
        if let Some(path) = &self.named {
            return Ok(path.clone());
        }
        let mut builder = DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        let seed = SystemClock::new().now().0;
        let mut last = None;
        for number in 0..TRIES_MAX {
            let folder = self.temporary_directory.join(format!("zae-limiter-demo-{seed}-{number}"));
            // Only a folder that did not exist is ours.
            match builder.create(&folder) {
                Ok(()) => return Ok(folder.join("limits.db")),
                Err(error) => last = Some(error),
            }
        }
        let failed = last.unwrap_or_else(|| std::io::ErrorKind::Other.into());
        Err(failed).with_context(|| {
            format!("no folder could be created in {}", self.temporary_directory.display())
        })
    }

    /// Three commands for the file.
    pub(super) fn next_commands(&self, path: &Path) -> Vec<String> {
        let start = format!(
            "{} --store {}",
            quoted(&self.program),
            quoted(&format!("sqlite:{}", path.display()))
        );
        [
            "usage list -e acme -r RESOURCE --plot",
            "explain batch-2 RESOURCE",
            "available batch-2 RESOURCE -c rpm=1 -c tpm=1000",
        ]
        .map(|command| format!("{start} {}", command.replace("RESOURCE", RESOURCE)))
        .to_vec()
    }
}
