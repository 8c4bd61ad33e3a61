//! Who runs this process, when no variable says it: containers, timers and services have a user and
//! often no `USER`. An audit event without a name is of little use.

#[cfg(unix)]
use std::process::{Command, Stdio};

/// The name of the user, else the number behind it.
#[cfg(unix)]
pub(crate) fn of_process() -> Option<String> {
    let uid = uid();
    let listed = || name_in(&std::fs::read_to_string("/etc/passwd").ok()?, uid?);
    // A name that is not in the file may be in a directory service, which this program knows to
    // ask.
    listed().or_else(asked).or_else(|| Some(format!("uid-{}", uid?)))
}

/// Nothing beside the variables is known here.
#[cfg(not(unix))]
pub(crate) fn of_process() -> Option<String> {
    None
}

/// The user of this process, where the system shows processes as files.
#[cfg(unix)]
fn uid() -> Option<u32> {
    std::fs::metadata("/proc/self")
        .ok()
        .map(|process| std::os::unix::fs::MetadataExt::uid(&process))
}

#[cfg(unix)]
fn asked() -> Option<String> {
    let output =
        Command::new("id").arg("-un").stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let name = String::from_utf8(output.stdout).ok()?;
    Some(name.trim_end().to_owned()).filter(|name| output.status.success() && !name.is_empty())
}

/// The name of a user in a list of lines such as `name:x:1000:…`.
#[cfg(unix)]
fn name_in(passwd: &str, uid: u32) -> Option<String> {
    let line = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let mut names =
        line.filter_map(|fields| (fields.get(2)?.parse() == Ok(uid)).then(|| fields[0].to_owned()));
    names.find(|name| !name.is_empty())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_number() {
        let passwd = "root:x:0:0:root:/:/bin/bash\n# a comment\nops-1:x:1000:1000::/srv/ops-1:/bin/sh\n:x:7::\n";
        assert_eq!(name_in(passwd, 1000).as_deref(), Some("ops-1"));
        assert_eq!(name_in(passwd, 0).as_deref(), Some("root"));
        assert_eq!((name_in(passwd, 7), name_in(passwd, 100)), (None, None));
    }

    #[test]
    fn somebody_runs_this() {
        assert!(of_process().is_some_and(|name| !name.is_empty()));
    }
}
