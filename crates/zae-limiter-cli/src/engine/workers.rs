//! The workers that count usage from the streams of local stacks: one process per stack
//! (`aggregate` of this program), kept alive by one supervisor.
//!
//! The supervisor is a loop over files in the folder: the order says which stacks, the lock says
//! that a supervisor lives, the report says which processes it keeps. Without an order the
//! supervisor ends. A worker ends when its standard input closes, so none outlives its supervisor,
//! however that ends.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use zae_limiter::domain::rfc3339;
use zae_limiter::{Clock, SystemClock};

use super::folder::{Folder, private};
use super::process::{LOG_BYTES_MAX, PAUSE, on_its_own};
use super::{Presence, endpoint, look};
use crate::error::Failure;

/// How often the supervisor looks at its order and its workers.
pub(crate) const TICK: Duration = Duration::from_millis(200);
/// The pause before a worker that died is started again; doubles with each death in a row.
const AGAIN_FIRST: Duration = Duration::from_millis(500);
/// The longest such pause.
const AGAIN_MAX: Duration = Duration::from_secs(30);
/// A worker that lived so long was sound: its next death is the first in a row.
const SOUND_AFTER: Duration = Duration::from_secs(60);
/// How often the supervisor asks whether the engine runs.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// A supervisor whose engine is gone for so long ends.
const ALONE_MAX: Duration = Duration::from_secs(60);
/// How long a worker may take to finish its batch.
const FINISH_MAX: Duration = Duration::from_secs(5);
/// Polls before the lock of another supervisor is believed (100 ms).
const LOCK_TRIES_MAX: u32 = 5;
/// Polls before a supervisor that was started or told to end counts as stuck (15 s).
const TRIES_MAX: u32 = 750;

/// What the supervisor is to do. Written by `local up`, removed by `local down`.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Order {
    /// Where the engine is.
    pub(crate) port: u16,
    pub(crate) region: String,
    /// The stacks whose usage is counted.
    pub(crate) stacks: Vec<String>,
}

/// What the supervisor keeps. Written by it, for `local status`.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Report {
    /// The supervisor itself.
    pub(crate) pid: u32,
    pub(crate) workers: Vec<WorkerForm>,
}

/// One worker.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct WorkerForm {
    pub(crate) stack: String,
    /// None while it is about to be started again.
    pub(crate) pid: Option<u32>,
    /// How often it was started again.
    pub(crate) restarts: u64,
}

impl Folder {
    /// Where the workers' words go.
    pub(crate) fn worker_log(&self) -> PathBuf {
        self.file("worker.log")
    }

    /// Held, and shared, by every worker as long as it lives.
    fn worker_lock(&self) -> PathBuf {
        self.file("worker.lock")
    }

    fn order_file(&self) -> PathBuf {
        self.file("workers.json")
    }

    fn report_file(&self) -> PathBuf {
        self.file("supervisor.json")
    }

    fn supervisor_lock(&self) -> PathBuf {
        self.file("supervisor.lock")
    }

    /// The stacks that were created here, one to a line.
    fn stacks_file(&self) -> PathBuf {
        self.file("stacks")
    }

    /// The stacks that `local up` has created in this folder, with this one.
    pub(crate) fn stacks_with(&self, stack: Option<&str>) -> anyhow::Result<Vec<String>> {
        let known = fs::read_to_string(self.stacks_file()).unwrap_or_default();
        let mut stacks: Vec<String> = known.lines().map(str::to_owned).collect();
        if let Some(stack) = stack.filter(|stack| !stacks.iter().any(|known| known == stack)) {
            stacks.push(stack.to_owned());
            self.write(&self.stacks_file(), (stacks.join("\n") + "\n").as_bytes())?;
        }
        Ok(stacks)
    }

    /// Whether workers were ordered, or live.
    pub(crate) fn has_workers(&self) -> bool {
        self.order_file().exists()
            || is_locked(&self.supervisor_lock())
            || is_locked(&self.worker_lock())
    }

    fn order(&self) -> Option<Order> {
        serde_json::from_slice(&fs::read(self.order_file()).ok()?).ok()
    }

    /// Whether workers were ordered and not taken back.
    pub(crate) fn wants_workers(&self) -> bool {
        self.order_file().exists()
    }

    /// What a living supervisor says it keeps.
    pub(crate) fn workers(&self) -> Option<Report> {
        if !is_locked(&self.supervisor_lock()) {
            return None;
        }
        serde_json::from_slice(&fs::read(self.report_file()).ok()?).ok()
    }
}

/// Says which stacks are counted, and starts a supervisor if none lives. The caller holds the
/// folder's lock.
pub(crate) async fn order(folder: &Folder, binary: &Path, order: &Order) -> anyhow::Result<Report> {
    give(folder, order)?;
    let mut child = match folder.workers() {
        Some(_) => None,
        None => Some(start(folder, binary)?),
    };
    let clock = SystemClock::new();
    for _ in 0..TRIES_MAX {
        match folder.workers() {
            Some(report) if report.has(order) => return Ok(report),
            _ => {}
        }
        if let Some(status) = child.as_mut().map(Child::try_wait).transpose()?.flatten() {
            let what = format!("the supervisor of the workers did not start ({status})");
            return Err(stuck(folder, what).into());
        }
        clock.sleep(PAUSE).await;
    }
    let what = "the supervisor of the workers was started and does not answer";
    Err(stuck(folder, what.to_owned()).into())
}

/// Starts a supervisor that outlives this command.
fn start(folder: &Folder, binary: &Path) -> anyhow::Result<Child> {
    let log = open_log(folder)?;
    let mut command = Command::new(binary);
    command.args(["local", "attend"]).stdin(Stdio::null());
    on_its_own(command.stdout(log.try_clone()?).stderr(log));
    command.spawn().with_context(|| format!("{} cannot be started", binary.display()))
}

impl Report {
    /// Whether the supervisor keeps a worker for each stack of the order.
    fn has(&self, order: &Order) -> bool {
        let is_kept = |stack: &&String| self.workers.iter().any(|worker| worker.stack == **stack);
        order.stacks.iter().filter(is_kept).count() == order.stacks.len()
    }
}

/// Gives the order that a supervisor of this process then follows.
pub(crate) fn give(folder: &Folder, order: &Order) -> anyhow::Result<()> {
    folder.write(&folder.order_file(), &serde_json::to_vec(order)?)
}

/// Takes the order back, and waits until the supervisor and every worker have ended. False when
/// none lived. The caller holds the folder's lock.
pub(crate) async fn stop(folder: &Folder) -> anyhow::Result<bool> {
    match fs::remove_file(folder.order_file()) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(error).context("the order of the workers stays");
        }
        _ => {}
    }
    let locks = [folder.supervisor_lock(), folder.worker_lock()];
    let lives = || locks.iter().any(|lock| is_locked(lock));
    let lived = lives();
    let clock = SystemClock::new();
    for _ in 0..TRIES_MAX {
        if !lives() {
            return Ok(lived);
        }
        clock.sleep(PAUSE).await;
    }
    Err(stuck(folder, "the workers were told to end and go on".to_owned()).into())
}

fn stuck(folder: &Folder, what: String) -> Failure {
    let pids: Vec<String> = folder.workers().map_or_else(Vec::new, |report| {
        let workers = report.workers.iter().filter_map(|worker| worker.pid);
        [report.pid].into_iter().chain(workers).map(|pid| pid.to_string()).collect()
    });
    let failure = Failure::engine(what);
    match pids.is_empty() {
        true => failure.hint("`zae-limiter local logs --worker` shows more"),
        false => failure.hint(format!("end the processes {}", pids.join(" "))),
    }
}

/// Whether somebody holds this lock.
fn is_locked(path: &Path) -> bool {
    File::open(path).is_ok_and(|lock| matches!(lock.try_lock(), Err(TryLockError::WouldBlock)))
}

/// Holds the lock of a worker as long as the value lives: `local down` waits for it.
pub(crate) fn worker_lock(folder: &Folder) -> anyhow::Result<File> {
    let path = folder.worker_lock();
    let file = private().write(true).create(true).truncate(false).open(&path);
    let locked = file.and_then(|file| file.lock_shared().map(|()| file));
    locked.with_context(|| format!("{} could not be locked", path.display()))
}

/// The log, begun anew when it has grown long.
fn open_log(folder: &Folder) -> anyhow::Result<File> {
    let path = folder.worker_log();
    let open = || {
        let log = private().append(true).create(true).open(&path)?;
        if log.metadata()?.len() > LOG_BYTES_MAX {
            log.set_len(0)?;
        }
        std::io::Result::Ok(log)
    };
    open().with_context(|| format!("the log {} could not be written", path.display()))
}

/// The supervisor: keeps one worker per stack alive.
pub(crate) struct Supervisor {
    folder: Folder,
    binary: PathBuf,
    clock: SystemClock,
    kept: BTreeMap<String, Kept>,
    /// The order that the workers were started by.
    order: Option<Order>,
    /// When the engine was last asked after, and since when it is gone.
    looked_at: Option<Duration>,
    alone_since: Option<Duration>,
    said: Option<Report>,
    _lock: File,
}

/// One worker of the supervisor.
struct Kept {
    child: Option<Child>,
    /// When it was started, or is to be started.
    at: Duration,
    deaths: u32,
    restarts: u64,
}

impl Supervisor {
    /// The supervisor of the folder; `None` when there is one.
    pub(crate) fn begin(folder: &Folder, binary: &Path) -> anyhow::Result<Option<Supervisor>> {
        let path = folder.supervisor_lock();
        let file = private().write(true).create(true).truncate(false).open(&path);
        let lock = file.with_context(|| format!("{} could not be opened", path.display()))?;
        // Who looks whether somebody holds the lock holds it for a moment.
        let mut tries = 0;
        loop {
            match lock.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if tries < LOCK_TRIES_MAX => pause(),
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => {
                    return Err(error).with_context(|| format!("{} stays open", path.display()));
                }
            }
            tries += 1;
        }
        let mut supervisor = Supervisor {
            folder: folder.clone(),
            binary: binary.to_owned(),
            clock: SystemClock::new(),
            kept: BTreeMap::new(),
            order: None,
            looked_at: None,
            alone_since: None,
            said: None,
            _lock: lock,
        };
        supervisor.tell()?;
        Ok(Some(supervisor))
    }

    /// Looks once at the order, the engine and the workers. False when it is time to end.
    pub(crate) fn tick(&mut self) -> anyhow::Result<bool> {
        let Some(order) = self.folder.order() else { return Ok(false) };
        let now = self.clock.monotonic();
        if self.is_alone(now)? {
            return Ok(false);
        }
        if self.order.as_ref() != Some(&order) {
            let is_elsewhere = self
                .order
                .as_ref()
                .is_some_and(|before| (before.port, &before.region) != (order.port, &order.region));
            self.finish(|stack| is_elsewhere || !order.stacks.iter().any(|known| known == stack));
            for stack in &order.stacks {
                let kept = Kept { child: None, at: now, deaths: 0, restarts: 0 };
                self.kept.entry(stack.clone()).or_insert(kept);
            }
        }
        for (stack, kept) in &mut self.kept {
            if let Some(status) = kept.bury(now)? {
                let pause = again(kept.deaths).as_secs_f32();
                note(
                    &self.folder,
                    &format!(
                        "the worker of {stack} ended ({status}); the next starts in {pause} s"
                    ),
                );
            }
            if kept.child.is_none() && kept.at <= now {
                kept.child = Some(begin(&self.folder, &self.binary, &order, stack)?);
                kept.at = now;
            }
        }
        self.order = Some(order);
        self.tell()?;
        Ok(true)
    }

    /// Whether the engine has been gone for long: nobody will need the workers.
    fn is_alone(&mut self, now: Duration) -> anyhow::Result<bool> {
        if self.looked_at.is_some_and(|at| now.saturating_sub(at) < LOOK_EVERY) {
            return Ok(false);
        }
        self.looked_at = Some(now);
        let is_gone = matches!(look(&self.folder)?, Presence::Stopped);
        let since = *self.alone_since.get_or_insert(now);
        if !is_gone {
            self.alone_since = None;
        }
        Ok(is_gone && now.saturating_sub(since) >= ALONE_MAX)
    }

    /// Ends the workers of these stacks: each finishes its batch, and is killed if it does not.
    fn finish(&mut self, is_meant: impl Fn(&str) -> bool) {
        let meant: Vec<String> =
            self.kept.keys().filter(|stack| is_meant(stack)).cloned().collect();
        let mut ending: Vec<Child> =
            meant.iter().filter_map(|stack| self.kept.remove(stack)?.child).collect();
        ending.iter_mut().for_each(|child| drop(child.stdin.take()));
        let until = self.clock.monotonic().saturating_add(FINISH_MAX);
        while !ending.is_empty() && self.clock.monotonic() < until {
            ending.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
            pause();
        }
        for mut child in ending {
            let _ = child.kill().and_then(|()| child.wait());
        }
    }

    /// Ends all workers.
    pub(crate) fn end(&mut self) {
        self.finish(|_| true);
    }

    /// Says for `local status` what is kept, when that has changed.
    fn tell(&mut self) -> anyhow::Result<()> {
        let worker = |(stack, kept): (&String, &Kept)| WorkerForm {
            stack: stack.clone(),
            pid: kept.child.as_ref().map(Child::id),
            restarts: kept.restarts,
        };
        let report =
            Report { pid: std::process::id(), workers: self.kept.iter().map(worker).collect() };
        if self.said.as_ref() != Some(&report) {
            self.folder.write(&self.folder.report_file(), &serde_json::to_vec(&report)?)?;
            self.said = Some(report);
        }
        Ok(())
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.end();
        // Who looks next sees that nobody holds the lock.
        let _ = fs::remove_file(self.folder.report_file());
    }
}

impl Kept {
    /// Notes a death, and when the worker is started again. Returns how it died.
    fn bury(&mut self, now: Duration) -> anyhow::Result<Option<ExitStatus>> {
        let Some(child) = &mut self.child else { return Ok(None) };
        let Some(status) = child.try_wait()? else { return Ok(None) };
        let lived = now.saturating_sub(self.at);
        self.deaths = if lived >= SOUND_AFTER { 1 } else { self.deaths.saturating_add(1) };
        self.restarts += 1;
        self.child = None;
        self.at = now.saturating_add(again(self.deaths));
        Ok(Some(status))
    }
}

/// The pause after so many deaths in a row.
fn again(deaths: u32) -> Duration {
    AGAIN_FIRST.saturating_mul(1 << deaths.saturating_sub(1).min(10)).min(AGAIN_MAX)
}

/// Starts the worker of a stack.
fn begin(folder: &Folder, binary: &Path, order: &Order, stack: &str) -> anyhow::Result<Child> {
    note(folder, &format!("starting the worker of {stack}"));
    let log = open_log(folder)?;
    let mut command = Command::new(binary);
    command
        .args(["aggregate", "--name", stack, "--region", &order.region, "--endpoint-url"])
        .arg(endpoint(order.port))
        .arg("--with-supervisor")
        .env_remove("ZAEL_STORE")
        .env_remove("ZAEL_STACK")
        .stdin(Stdio::piped())
        .stdout(log.try_clone()?)
        .stderr(log);
    command.spawn().with_context(|| format!("{} cannot be started", binary.display()))
}

/// Writes a line to the workers' log, with the time. A line that cannot be written says nothing;
/// the workers are what matters.
fn note(folder: &Folder, line: &str) {
    let now = rfc3339(SystemClock::new().now());
    let _ = open_log(folder).map(|mut log| writeln!(log, "{now} {line}"));
}

/// The supervisor has nothing else to do.
#[expect(clippy::disallowed_methods, reason = "it waits for a process that ends")]
fn pause() {
    std::thread::sleep(PAUSE);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deaths_in_a_row_are_answered_ever_later() {
        let pauses: Vec<u64> = [1, 2, 3, 7, 100].map(|deaths| again(deaths).as_secs()).into();
        assert_eq!(pauses, [0, 1, 2, 30, 30]);
        assert_eq!(again(1), AGAIN_FIRST);
    }

    #[test]
    fn stacks_are_known_from_one_start_to_the_next() {
        let directory = tempfile::tempdir().unwrap();
        let folder = Folder::in_directory(directory.path());
        drop(folder.lock().unwrap());
        assert!(folder.stacks_with(None).unwrap().is_empty());
        assert_eq!(folder.stacks_with(Some("one")).unwrap(), ["one"]);
        assert_eq!(folder.stacks_with(Some("two")).unwrap(), ["one", "two"]);
        assert_eq!(folder.stacks_with(Some("one")).unwrap(), ["one", "two"]);
        assert_eq!(folder.stacks_with(None).unwrap(), ["one", "two"]);
    }

    #[test]
    fn a_folder_has_one_supervisor_and_without_an_order_it_ends() {
        let directory = tempfile::tempdir().unwrap();
        let folder = Folder::in_directory(directory.path());
        drop(folder.lock().unwrap());
        let binary = Path::new("nothing");
        let mut first = Supervisor::begin(&folder, binary).unwrap().unwrap();
        assert!(Supervisor::begin(&folder, binary).unwrap().is_none());
        let report = folder.workers().unwrap();
        assert_eq!((report.pid, report.workers), (std::process::id(), Vec::new()));
        assert!(!first.tick().unwrap());
        give(&folder, &Order { port: 1, region: "r".into(), stacks: Vec::new() }).unwrap();
        assert!(first.tick().unwrap());
        drop(first);
        assert!(folder.workers().is_none());
        assert!(Supervisor::begin(&folder, binary).unwrap().is_some());
    }
}
