//! Where the program is.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::NAME;
use crate::error::Failure;

/// The variable that names the program.
const VARIABLE: &str = "ZAEL_LOCAL_ENGINE";

/// The places to look at, best first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Search {
    /// What the variable says.
    pub(crate) named: Option<OsString>,
    /// This program, beside which it may be.
    pub(crate) own: Option<PathBuf>,
    /// `PATH`.
    pub(crate) path: Option<OsString>,
}

impl Search {
    /// The named engine if one is named, else the first that is found.
    pub(crate) fn find(&self) -> Result<PathBuf, Failure> {
        if let Some(named) = &self.named {
            let path = PathBuf::from(named);
            let failure = || {
                Failure::not_found(format!("{VARIABLE} names {}, which is no file", path.display()))
            };
            return if path.is_file() {
                Ok(path)
            } else {
                Err(failure()
                    .hint("correct it, or unset it to look beside this program and in PATH"))
            };
        }
        let name = format!("{NAME}{}", std::env::consts::EXE_SUFFIX);
        let beside = self.own.as_deref().and_then(Path::parent).map(Path::to_owned);
        let folders = beside.into_iter().chain(self.path.iter().flat_map(std::env::split_paths));
        folders.map(|folder| folder.join(&name)).find(|path| path.is_file()).ok_or_else(|| {
            let failure = Failure::not_found(format!(
                "the engine {NAME} is neither beside this program nor in PATH"
            ));
            failure.hint(format!(
                "install it with `cargo install --locked --path engines/{NAME}`, or name it with {VARIABLE}"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_engine() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(format!("{NAME}{}", std::env::consts::EXE_SUFFIX));
        std::fs::write(&path, "").unwrap();
        (folder, path)
    }

    #[test]
    fn the_variable_beats_the_neighbour_which_beats_the_path() {
        let ((_a, named), (_b, beside), (_c, in_path)) =
            (with_engine(), with_engine(), with_engine());
        let mut search = Search {
            named: Some(named.clone().into()),
            own: Some(beside.with_file_name("zae-limiter")),
            path: Some(
                std::env::join_paths([Path::new("nowhere"), in_path.parent().unwrap()]).unwrap(),
            ),
        };
        assert_eq!(search.find(), Ok(named));
        search.named = None;
        assert_eq!(search.find(), Ok(beside.clone()));
        std::fs::remove_file(beside).unwrap();
        assert_eq!(search.find(), Ok(in_path));
    }

    #[test]
    fn nowhere_is_said() {
        let error = Search::default().find().unwrap_err().to_string();
        assert!(error.contains("PATH"), "{error}");
        let (_folder, path) = with_engine();
        let wrong = Search { named: Some("nowhere".into()), own: Some(path), path: None };
        assert_eq!(
            wrong.find().unwrap_err().to_string(),
            "ZAEL_LOCAL_ENGINE names nowhere, which is no file"
        );
    }
}
