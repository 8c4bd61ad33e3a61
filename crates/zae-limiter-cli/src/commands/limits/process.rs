//! This process, in words that another one on the same machine can check: an apply that was killed
//! is known to be gone at once, and one that runs to be at work. Only where the system shows
//! processes as files; elsewhere whoever comes next watches for signs of life.

use std::fs;
use std::path::Path;

use zae_limiter::Principal;

/// What is known of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It runs.
    Runs,
    /// It has ended.
    Gone,
    /// It is of another machine, or nothing can be known.
    Unknown,
}

/// Who applies: `ops on build-7, process 4711`.
pub(super) fn who(principal: Option<&Principal>) -> String {
    let who = principal.map_or_else(|| "somebody".to_owned(), ToString::to_string);
    let host = read("/proc/sys/kernel/hostname");
    let host = host.map(|host| format!(" on {host}")).unwrap_or_default();
    format!("{who}{host}, process {}", std::process::id())
}

/// This process.
pub(super) fn this() -> Option<String> {
    told(std::process::id())
}

/// What became of a process that told of itself.
pub(super) fn fate(of: &str) -> Fate {
    let id = |text: &str| text.rsplit(' ').nth(1).and_then(|id| id.parse::<u32>().ok());
    let Some((theirs, ours)) = id(of).zip(this()) else { return Fate::Unknown };
    // The machine since it was started, and the processes that see each other.
    let place = |text: &str| text.rsplitn(3, ' ').nth(2).map(str::to_owned);
    if place(of) != place(&ours) {
        return Fate::Unknown;
    }
    match told(theirs) {
        Some(found) if found == of => Fate::Runs,
        // Its number belongs to another one by now.
        Some(_) => Fate::Gone,
        // Its number belongs to nobody, unless this system hides the processes of others.
        None if read("/proc/1/stat").is_some() => Fate::Gone,
        None => Fate::Unknown,
    }
}

/// The boot of the machine, the room of processes, the number of the process and when it started.
fn told(process: u32) -> Option<String> {
    let boot = read("/proc/sys/kernel/random/boot_id")?;
    let room = fs::read_link("/proc/self/ns/pid").ok()?;
    let stat = read(format!("/proc/{process}/stat"))?;
    // The name of a program, in brackets, may have spaces; 19 fields later stands the start. One
    // that has ended and was not waited for does not run.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?;
    let started = fields.nth(18)?;
    (!matches!(state, "Z" | "X")).then(|| format!("{boot} {} {process} {started}", room.display()))
}

fn read(path: impl AsRef<Path>) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim_end().to_owned()).filter(|text| !text.is_empty())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_is_known_to_run_and_to_be_gone() {
        let ours = this().expect("a system that shows processes");
        assert_eq!(fate(&ours), Fate::Runs);
        let mut child = Command::new("sleep").arg("60").spawn().expect("a child");
        let theirs = told(child.id()).expect("a child that runs");
        assert_eq!(fate(&theirs), Fate::Runs);
        child.kill().expect("a kill");
        // Not waited for: its number is still in use.
        while fate(&theirs) == Fate::Runs {}
        assert_eq!(fate(&theirs), Fate::Gone);
        child.wait().expect("an end");
        assert_eq!(fate(&theirs), Fate::Gone);
    }

    #[test]
    fn what_is_of_another_machine_is_unknown() {
        let ours = this().expect("a system that shows processes");
        let rest = ours.split_once(' ').expect("words").1;
        for odd in [&*format!("another-boot {rest}"), "", "7", "a b c d", "x 1 2"] {
            assert_eq!(fate(odd), Fate::Unknown, "{odd:?}");
        }
        let (before, _) = ours.rsplit_once(' ').expect("words");
        assert_eq!(fate(&format!("{before} 1")), Fate::Gone, "another one has its number");
    }
}
