//! Where the file lives: on a network the locks between processes do not work, and SQLite would
//! corrupt the file.

use std::fs;
use std::path::{Path, PathBuf};

/// File systems that are known to be shared between machines.
const NETWORK: [&str; 10] = [
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "afs",
    "fuse.sshfs",
    "fuse.s3fs",
    "fuse.rclone",
    "fuse.gcsfuse",
];

/// The name of the network file system that `path` is on, as far as this system tells.
pub(crate) fn network_file_system(path: &Path) -> Option<&'static str> {
    let directory = fs::canonicalize(path.parent()?).ok()?;
    // Only Linux has this file. Elsewhere SQLite's documentation has to do.
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    network_mount_of(&mounts, &directory)
}

/// A line of `mounts` is `id parent device root mount-point options [tags] - type source options`.
/// The last line whose mount point is the longest above `directory` wins: later mounts hide earlier
/// ones.
fn network_mount_of(mounts: &str, directory: &Path) -> Option<&'static str> {
    let mut best: Option<(usize, &str)> = None;
    for line in mounts.lines() {
        let Some((before, after)) = line.split_once(" - ") else { continue };
        let (Some(point), Some(kind)) = (before.split(' ').nth(4), after.split(' ').next()) else {
            continue;
        };
        let point = unescaped(point);
        let depth = point.components().count();
        if directory.starts_with(&point) && best.is_none_or(|(deepest, _)| depth >= deepest) {
            best = Some((depth, kind));
        }
    }
    best.and_then(|(_, kind)| NETWORK.into_iter().find(|network| *network == kind))
}

/// Decodes a mount point, in which blanks and backslashes are octal numbers.
fn unescaped(point: &str) -> PathBuf {
    PathBuf::from(point.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
40 22 0:44 / /net rw shared:20 - nfs4 server:/net rw,vers=4.2
41 40 8:2 / /net/disk rw - xfs /dev/sdb1 rw
42 22 0:50 / /mnt/two\\040words rw - cifs //server/share rw
43 22 0:51 / /srv rw - nfs server:/srv rw
44 43 8:3 / /srv rw - ext4 /dev/sdc1 rw";

    fn check(directory: &str, expected: Option<&str>) {
        assert_eq!(network_mount_of(MOUNTS, Path::new(directory)), expected, "{directory}");
    }

    #[test]
    fn the_deepest_and_latest_mount_decides() {
        check("/", None);
        check("/var/lib", None);
        check("/net", Some("nfs4"));
        check("/net/team", Some("nfs4"));
        check("/net/disk/data", None);
        check("/network", None);
        check("/mnt/two words/x", Some("cifs"));
        check("/srv/data", None);
    }

    #[test]
    fn lines_that_can_not_be_read_are_passed_over() {
        assert_eq!(network_mount_of("nonsense\n1 2 3 - nfs\n\n", Path::new("/x")), None);
    }
}
