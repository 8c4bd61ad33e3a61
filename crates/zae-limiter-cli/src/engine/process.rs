//! The engine from its start to its end.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use zae_limiter::domain::rfc3339;
use zae_limiter::{Clock, SystemClock};

use super::control::{self, Health, Silence};
use super::folder::{self, Folder, State, private};
use super::{NAME, endpoint};
use crate::error::Failure;

/// The pause between two polls: whether the engine answers, or has ended.
pub(super) const PAUSE: Duration = Duration::from_millis(20);
/// Polls before a start counts as failed (30 s; a start takes milliseconds).
const START_TRIES_MAX: u32 = 1_500;
/// Polls before a stop counts as failed (15 s; three times what the engine gives its clients).
const STOP_TRIES_MAX: u32 = 750;
/// Polls before data count as held for good (7 s; a little more than what the engine gives its
/// clients).
const FREE_TRIES_MAX: u32 = 350;
/// A log that has grown longer is begun anew at the next start.
pub(super) const LOG_BYTES_MAX: u64 = 1 << 20;
/// How much of the log tells why it died.
const LAST_WORDS: usize = 5;

/// Whether the engine outlives the command that starts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tie {
    /// It ends with the command, however that ends: its standard input closes.
    Attached,
    /// It stays, and neither Ctrl-C nor the end of the terminal reaches it.
    Detached,
}

/// What to start.
#[derive(Debug)]
pub(crate) struct Order<'a> {
    pub(crate) binary: &'a Path,
    /// 0 for any free one.
    pub(crate) port: u16,
    /// An absolute path.
    pub(crate) data: &'a str,
    pub(crate) tie: Tie,
}

/// An engine that answers.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) child: Child,
    pub(crate) state: State,
    pub(crate) health: Health,
    /// Where its words begin in the log.
    pub(crate) log_start: u64,
}

/// Starts the engine, waits until it answers, and remembers it. The caller holds the folder's lock.
pub(crate) async fn start(folder: &Folder, order: &Order<'_>) -> anyhow::Result<Started> {
    match fs::remove_file(folder.address()) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(error).context("the address of the last engine stays");
        }
        _ => {}
    }
    let mut command = Command::new(order.binary);
    command
        .arg("--port")
        .arg(order.port.to_string())
        .arg("--data")
        .arg(order.data)
        .arg("--port-file")
        .arg(folder.address());
    match order.tie {
        Tie::Attached => command.arg("--exit-with-stdin").stdin(Stdio::piped()),
        Tie::Detached => on_its_own(command.stdin(Stdio::null())),
    };
    let log_start = begin_log(folder, &mut command, order)?;
    let mut child =
        command.spawn().with_context(|| format!("{} cannot be started", order.binary.display()))?;

    let clock = SystemClock::new();
    let mut last = Silence::Nobody;
    for _ in 0..START_TRIES_MAX {
        if let Some(status) = child.try_wait()? {
            return Err(last_words(
                folder,
                log_start,
                format!("the engine did not start ({status})"),
            ));
        }
        match listening(folder).map(|port| (port, control::health(port))) {
            Some((port, Ok(health))) => {
                let state = State { pid: health.pid, port, data: order.data.to_owned() };
                folder.remember(&state)?;
                return Ok(Started { child, state, health, log_start });
            }
            Some((_, Err(silence))) => last = silence,
            None => {}
        }
        clock.sleep(PAUSE).await;
    }
    // The engine never answered: kill it.
    let _ = child.kill().and_then(|()| child.wait());
    let why = if let Silence::Odd(why) = last { format!(": {why}") } else { String::new() };
    Err(last_words(
        folder,
        log_start,
        format!("the engine was started and did not answer in time{why}"),
    ))
}

/// The port the engine has written once it listened.
fn listening(folder: &Folder) -> Option<u16> {
    fs::read_to_string(folder.address()).ok()?.trim_end().rsplit(':').next()?.parse().ok()
}

/// Sends what the engine says to the log, below a line that says when.
fn begin_log(folder: &Folder, command: &mut Command, order: &Order<'_>) -> anyhow::Result<u64> {
    let path = folder.log();
    let mut begin = || {
        let mut log = private().append(true).create(true).open(&path)?;
        if log.metadata()?.len() > LOG_BYTES_MAX {
            log.set_len(0)?;
        }
        writeln!(
            log,
            "{} starting {NAME} --port {} --data {}",
            rfc3339(SystemClock::new().now()),
            order.port,
            order.data
        )?;
        let start = log.metadata()?.len();
        command.stdout(log.try_clone()?).stderr(log);
        std::io::Result::Ok(start)
    };
    begin().with_context(|| format!("the log {} could not be written", path.display()))
}

#[cfg(unix)]
pub(super) fn on_its_own(command: &mut Command) -> &mut Command {
    std::os::unix::process::CommandExt::process_group(command, 0)
}

#[cfg(windows)]
pub(super) fn on_its_own(command: &mut Command) -> &mut Command {
    const DETACHED_PROCESS: u32 = 0x8;
    const CREATE_NEW_PROCESS_GROUP: u32 = 0x200;
    std::os::windows::process::CommandExt::creation_flags(
        command,
        DETACHED_PROCESS | CREATE_NEW_PROCESS_GROUP,
    )
}

#[cfg(not(any(unix, windows)))]
pub(super) fn on_its_own(command: &mut Command) -> &mut Command {
    command
}

/// What happened, and what the engine last said as the reason.
pub(crate) fn last_words(folder: &Folder, log_start: u64, what: String) -> anyhow::Error {
    let log = folder.log();
    let said = || {
        let mut follower = super::Follower::at(&log, log_start)?;
        let mut lines = follower.lines()?;
        lines.extend(follower.rest());
        std::io::Result::Ok(lines)
    };
    let mut lines = said().unwrap_or_default();
    let last = lines.pop().unwrap_or_else(|| "it said nothing".into());
    let failure = Failure::engine(last)
        .hint(format!("`zae-limiter local logs` shows more of {}", log.display()));
    let before = lines.into_iter().rev().take(LAST_WORDS - 1);
    before.fold(anyhow::Error::from(failure), |error, line| error.context(line)).context(what)
}

/// Asks the engine to stop, waits until it has, and forgets it. The caller holds the folder's lock.
pub(crate) async fn stop(folder: &Folder, state: &State) -> anyhow::Result<()> {
    match control::shutdown(state.port) {
        Ok(()) | Err(Silence::Nobody) => {}
        Err(Silence::Odd(why)) => {
            let failure = Failure::engine(format!(
                "the engine at {} does not stop: {why}",
                endpoint(state.port)
            ));
            return Err(failure
                .hint(format!("end process {}; what it has answered is on the disk", state.pid))
                .into());
        }
    }
    let clock = SystemClock::new();
    for _ in 0..STOP_TRIES_MAX {
        let answers = || control::health(state.port).is_ok_and(|health| health.pid == state.pid);
        if !folder::in_use(state.data.as_ref()) && !answers() {
            folder.forget(state.pid);
            return Ok(());
        }
        clock.sleep(PAUSE).await;
    }
    let failure =
        Failure::engine(format!("the engine was asked to stop and still has {} open", state.data));
    Err(failure.hint(format!("try again, or end process {}", state.pid)).into())
}

/// Waits while an engine that was told to stop finishes with these data.
pub(crate) async fn wait_until_free(data: &str) -> Result<(), Failure> {
    let clock = SystemClock::new();
    for _ in 0..FREE_TRIES_MAX {
        if !folder::in_use(data.as_ref()) {
            return Ok(());
        }
        clock.sleep(PAUSE).await;
    }
    let failure = Failure::conflict(format!("{data} is in use by another {NAME}"));
    Err(failure.hint("stop that one, or name another file with --data"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_words_are_the_causes_in_order() {
        let directory = tempfile::tempdir().unwrap();
        let folder = Folder::in_directory(directory.path());
        drop(folder.lock().unwrap());
        let old = "an old line\n";
        fs::write(folder.log(), format!("{old}1\n2\n3\n4\n5\nlast")).unwrap();
        let died = last_words(&folder, old.len().try_into().unwrap(), "it died".into());
        let report = Failure::of(&died, &crate::again::Again::default());
        assert_eq!((report.kind, report.message.as_str()), ("engine", "it died"));
        assert_eq!(report.causes, ["2", "3", "4", "5", "last"]);
        assert!(report.hint.unwrap().contains("local logs"));
        fs::write(folder.log(), old).unwrap();
        let died = last_words(&folder, old.len().try_into().unwrap(), "it died".into());
        let report = Failure::of(&died, &crate::again::Again::default());
        assert_eq!(report.causes, ["it said nothing"]);
    }
}
