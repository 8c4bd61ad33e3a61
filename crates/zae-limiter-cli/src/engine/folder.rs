//! The folder of the engine: its data, its log, and what is known about the one that was started
//! last.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use crate::context::create_private;
use crate::error::Failure;

/// What is known about the engine that was started last. Only the engine can say whether it still
/// runs.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct State {
    /// Its process.
    pub(crate) pid: u32,
    /// Its port, on this machine.
    pub(crate) port: u16,
    /// The file with its data; the engine takes only paths that are valid UTF-8.
    pub(crate) data: String,
}

/// The folder of the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// The folder in the user's data directory. It need not exist.
    pub(crate) fn in_directory(directory: &Path) -> Folder {
        Folder(directory.join("zae-limiter").join("local"))
    }

    /// Where the data is unless another place is named.
    pub(crate) fn data(&self) -> PathBuf {
        self.0.join("dynamodb.db")
    }

    /// Where the engine's words go.
    pub(crate) fn log(&self) -> PathBuf {
        self.0.join("engine.log")
    }

    /// Where the engine writes its address once it listens.
    pub(super) fn address(&self) -> PathBuf {
        self.0.join("address")
    }

    fn port_file(&self) -> PathBuf {
        self.0.join("last-port")
    }

    fn state_file(&self) -> PathBuf {
        self.0.join("state.json")
    }

    /// A file of the folder.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Creates the folder and waits until no other command starts or stops the engine. Each does so
    /// in bounded time.
    pub(crate) fn lock(&self) -> anyhow::Result<File> {
        create_private(&self.0)
            .with_context(|| format!("the folder {} could not be created", self.0.display()))?;
        let path = self.0.join("command.lock");
        let file = private().write(true).create(true).truncate(false).open(&path);
        let locked = file.and_then(|file| file.lock().map(|()| file));
        locked.with_context(|| format!("{} could not be locked", path.display()))
    }

    /// What is known.
    pub(crate) fn state(&self) -> anyhow::Result<Option<State>> {
        let path = self.state_file();
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(error).with_context(|| format!("{} could not be read", path.display()));
            }
        };
        let wrong = |_| {
            Failure::engine(format!("{} is not as we wrote it", path.display())).hint("delete it")
        };
        Ok(Some(serde_json::from_slice(&text).map_err(wrong)?))
    }

    /// Remembers an engine.
    pub(super) fn remember(&self, state: &State) -> anyhow::Result<()> {
        self.write(&self.state_file(), &serde_json::to_vec(state)?)
    }

    /// Writes a file of the folder. The file gets its name once it is complete, so no reader sees
    /// a part of it.
    pub(super) fn write(&self, path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
        let mut partial = path.as_os_str().to_owned();
        partial.push(format!(".{}", std::process::id()));
        let write = || -> anyhow::Result<()> {
            let mut file = begin(partial.as_ref())?;
            file.write_all(bytes)?;
            file.sync_all()?;
            Ok(fs::rename(&partial, path)?)
        };
        write().with_context(|| format!("{} could not be written", path.display()))
    }

    /// The port of the engine that was started last, whether it still runs or not.
    pub(crate) fn last_port(&self) -> Option<u16> {
        if let Ok(Some(state)) = self.state() {
            return Some(state.port);
        }
        fs::read_to_string(self.port_file()).ok()?.trim_end().parse().ok()
    }

    /// Forgets the engine of this process, unless another one was remembered since. Its port stays
    /// known: a shell that was pointed at it finds the next one there.
    pub(crate) fn forget(&self, pid: u32) {
        if let Ok(Some(state)) = self.state()
            && state.pid == pid
        {
            // Without it the next engine is on the usual port again.
            let _ = begin(&self.port_file()).and_then(|mut file| writeln!(file, "{}", state.port));
            // A file that stays does no harm: the engine that it names does not answer.
            let _ =
                fs::remove_file(self.state_file()).and_then(|()| fs::remove_file(self.address()));
        }
    }
}

/// A file for its owner only, if it is new.
pub(super) fn private() -> OpenOptions {
    #[cfg_attr(not(unix), expect(unused_mut, reason = "only here do files have modes"))]
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// An empty file for its owner only.
fn begin(path: &Path) -> std::io::Result<File> {
    private().write(true).create(true).truncate(true).open(path)
}

/// Whether an engine has these data open: it holds a lock beside them as long as it lives.
pub(super) fn in_use(data: &Path) -> bool {
    let mut name = data.as_os_str().to_owned();
    name.push(".lock");
    File::open(name).is_ok_and(|lock| matches!(lock.try_lock(), Err(TryLockError::WouldBlock)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> (tempfile::TempDir, Folder) {
        let directory = tempfile::tempdir().unwrap();
        let folder = Folder::in_directory(directory.path());
        drop(folder.lock().unwrap());
        (directory, folder)
    }

    fn names(folder: &Folder) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(&folder.0)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn what_is_remembered_is_known_and_nothing_else_is_left() {
        let (_directory, folder) = folder();
        assert_eq!(folder.state().unwrap(), None);
        let state = State { pid: 7, port: 8000, data: "d".into() };
        folder.remember(&state).unwrap();
        let state = State { port: 8001, ..state };
        folder.remember(&state).unwrap();
        assert_eq!(folder.state().unwrap(), Some(state));
        assert_eq!(names(&folder), ["command.lock", "state.json"]);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(
                fs::metadata(folder.state_file()).unwrap().permissions().mode() & 0o777,
                0o600
            );
            assert_eq!(fs::metadata(&folder.0).unwrap().permissions().mode() & 0o777, 0o700);
        }
    }

    #[test]
    fn only_the_own_engine_is_forgotten() {
        let (_directory, folder) = folder();
        folder.remember(&State { pid: 7, port: 8000, data: "d".into() }).unwrap();
        folder.forget(8);
        assert!(folder.state().unwrap().is_some());
        assert_eq!(folder.last_port(), Some(8000));
        folder.forget(7);
        assert_eq!((folder.state().unwrap(), folder.last_port()), (None, Some(8000)));
    }

    #[test]
    fn a_strange_state_is_named() {
        let (_directory, folder) = folder();
        fs::write(folder.state_file(), "{\"pid\":-1}").unwrap();
        let error = folder.state().unwrap_err().to_string();
        assert!(error.ends_with("state.json is not as we wrote it"), "{error}");
    }

    #[test]
    fn data_are_in_use_while_somebody_holds_their_lock() {
        let (_directory, folder) = folder();
        assert!(!in_use(&folder.data()));
        let lock = File::create(folder.data().with_extension("db.lock")).unwrap();
        assert!(!in_use(&folder.data()));
        lock.lock().unwrap();
        assert!(in_use(&folder.data()));
        drop(lock);
        assert!(!in_use(&folder.data()));
    }
}
