//! The engine's log: its end, and what is added to it.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

/// How much of the end is looked at for lines.
const TAIL_BYTES_MAX: u64 = 4 << 20;
/// How much is read at a time.
const READ_BYTES_MAX: u64 = 1 << 20;
/// A line that is longer is broken.
const LINE_BYTES_MAX: usize = 64 << 10;

/// The last lines of a log, and one who goes on behind them.
pub(crate) fn tail(path: &Path, count: usize) -> io::Result<(Vec<String>, Follower)> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let start = length.saturating_sub(TAIL_BYTES_MAX);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    (&mut file).take(length - start).read_to_end(&mut bytes)?;
    let mut follower = Follower { file, partial: Vec::new() };
    let mut lines = follower.split(&bytes);
    let first = lines.len().saturating_sub(count);
    Ok((lines.split_off(first), follower))
}

/// Reads what is added to a log.
#[derive(Debug)]
pub(crate) struct Follower {
    file: File,
    /// The beginning of a line.
    partial: Vec<u8>,
}

impl Follower {
    /// One who begins at this byte.
    pub(crate) fn at(path: &Path, start: u64) -> io::Result<Follower> {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(start))?;
        Ok(Follower { file, partial: Vec::new() })
    }

    /// The lines that were completed since the last time.
    pub(crate) fn lines(&mut self) -> io::Result<Vec<String>> {
        // A log that became shorter was begun anew.
        if self.file.metadata()?.len() < self.file.stream_position()? {
            self.file.rewind()?;
        }
        let mut bytes = Vec::new();
        (&mut self.file).take(READ_BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(self.split(&bytes))
    }

    /// What was said last without the end of a line.
    pub(crate) fn rest(self) -> Option<String> {
        (!self.partial.is_empty()).then(|| String::from_utf8_lossy(&self.partial).into_owned())
    }

    fn split(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut lines = Vec::new();
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.partial.extend_from_slice(part);
            if part.ends_with(b"\n") || self.partial.len() > LINE_BYTES_MAX {
                lines.push(
                    String::from_utf8_lossy(&self.partial)
                        .trim_end_matches(['\r', '\n'])
                        .to_owned(),
                );
                self.partial.clear();
            }
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use super::*;

    #[test]
    fn the_last_lines_and_what_comes_after_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        fs::write(&path, "one\ntwo\nthree\nfo").unwrap();
        let (lines, mut follower) = tail(&path, 2).unwrap();
        assert_eq!(lines, ["two", "three"]);
        assert_eq!(follower.lines().unwrap(), Vec::<String>::new());
        let mut log = fs::OpenOptions::new().append(true).open(&path).unwrap();
        log.write_all(b"ur\r\nfive").unwrap();
        assert_eq!(follower.lines().unwrap(), ["four"]);
        assert_eq!(follower.rest().as_deref(), Some("five"));
    }

    #[test]
    fn a_log_begun_anew_is_read_from_its_start() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        fs::write(&path, "a long line\n").unwrap();
        let mut follower = Follower::at(&path, 2).unwrap();
        assert_eq!(follower.lines().unwrap(), ["long line"]);
        fs::write(&path, "new\n").unwrap();
        assert_eq!(follower.lines().unwrap(), ["new"]);
    }

    #[test]
    fn a_line_without_an_end_is_broken() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        fs::write(&path, vec![b'x'; LINE_BYTES_MAX + 1]).unwrap();
        let (lines, follower) = tail(&path, 1).unwrap();
        assert_eq!((lines[0].len(), follower.rest()), (LINE_BYTES_MAX + 1, None));
    }
}
