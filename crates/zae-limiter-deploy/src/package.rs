//! The zip that a Lambda function of the runtime `provided.al2023` runs: one file, `bootstrap`,
//! which is an executable of ours. The same executable always gives the same bytes, so that the
//! hash of the zip says whether the code has changed.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use flate2::write::DeflateEncoder;
use flate2::{Compression, Crc};

use crate::elf::{Architecture, Elf, ElfError, Glibc, stripped};

/// The C library of Amazon Linux 2023, which the runtime has.
pub const GLIBC_MAX: Glibc = Glibc(2, 34);

/// The largest zip that Lambda takes directly.
pub const ZIP_BYTES_MAX: usize = 50 * 1_024 * 1_024;

/// The most that a package may be when unpacked.
pub const UNPACKED_BYTES_MAX: usize = 250 * 1_024 * 1_024;

/// What the runtime starts.
const BOOTSTRAP: &str = "bootstrap";

/// The libraries of the runtime that an executable of Rust asks for.
const LIBRARIES: [&str; 9] = [
    "libc.so.6",
    "libm.so.6",
    "libdl.so.2",
    "libpthread.so.0",
    "librt.so.1",
    "libutil.so.1",
    "libgcc_s.so.1",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
];

/// Where the loader of glibc is, in the runtime.
const LOADERS: [&str; 2] = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"];

/// How to get an executable that fits.
const REMEDY: &str = "build one for this: `cargo build --release -p zae-limiter-cli --target TARGET`, TARGET being {arch}-unknown-linux-musl, or {arch}-unknown-linux-gnu in a container of Amazon Linux 2023; then name it with --lambda-binary";

/// Why an executable cannot be packaged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PackageError {
    /// The file cannot be read.
    #[error("{} cannot be read", .path.display())]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The path of the running program is not known.
    #[error("the path of this program is not known")]
    NoProgram {
        /// Why not.
        source: std::io::Error,
    },
    /// Not an executable of Linux.
    #[error("{} cannot run on Lambda: {source}", .path.display())]
    NotExecutable {
        /// Which file.
        path: PathBuf,
        /// Why not.
        source: ElfError,
    },
    /// For another processor than the function has.
    #[error("{} is for {found}, and the function is to run on {wanted}", .path.display())]
    Architecture {
        /// Which file.
        path: PathBuf,
        /// What it is for.
        found: Architecture,
        /// What is wanted.
        wanted: Architecture,
    },
    /// Asks for a newer C library than the runtime has.
    #[error("{} needs glibc {found}, and the runtime provided.al2023 has {GLIBC_MAX}", .path.display())]
    Glibc {
        /// Which file.
        path: PathBuf,
        /// What it asks for.
        found: Glibc,
        /// What it is for.
        architecture: Architecture,
    },
    /// Asks for a shared library that the runtime does not have: it is of another program, or was
    /// linked with libraries of the machine it was built on.
    #[error("{} needs the library {found}, which the runtime provided.al2023 does not have", .path.display())]
    Library {
        /// Which file.
        path: PathBuf,
        /// What it asks for.
        found: String,
        /// What it is for.
        architecture: Architecture,
    },
    /// Asks for a loader that the runtime does not have, such as that of a dynamic musl.
    #[error("{} needs the loader {found}, which the runtime provided.al2023 does not have", .path.display())]
    Loader {
        /// Which file.
        path: PathBuf,
        /// What it asks for.
        found: String,
        /// What it is for.
        architecture: Architecture,
    },
    /// Larger than Lambda takes.
    #[error("{} gives {what} of {bytes} bytes, and Lambda takes at most {max}", .path.display())]
    TooLarge {
        /// Which file.
        path: PathBuf,
        /// `a zip` or `an unpacked package`.
        what: &'static str,
        /// How much it is.
        bytes: usize,
        /// How much it may be.
        max: usize,
    },
}

impl PackageError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> String {
        let remedy =
            |architecture: Architecture| REMEDY.replace("{arch}", architecture.rust_name());
        match self {
            PackageError::Unreadable { .. } | PackageError::NoProgram { .. } => {
                "name an executable for Linux with --lambda-binary".to_owned()
            }
            PackageError::NotExecutable { .. } => remedy(Architecture::X86_64),
            PackageError::Architecture { found, wanted, .. } => {
                format!("choose --architecture {found}, or {}", remedy(*wanted))
            }
            PackageError::Glibc { architecture, .. }
            | PackageError::Library { architecture, .. }
            | PackageError::Loader { architecture, .. } => remedy(*architecture),
            PackageError::TooLarge { .. } => {
                "use a release build: `cargo build --release -p zae-limiter-cli`".to_owned()
            }
        }
    }
}

/// An executable that runs on Lambda.
#[derive(Clone, Debug)]
pub struct Bootstrap {
    path: PathBuf,
    bytes: Vec<u8>,
    elf: Elf,
}

impl Bootstrap {
    /// The running program.
    pub fn own() -> Result<Bootstrap, PackageError> {
        let path = std::env::current_exe().map_err(|source| PackageError::NoProgram { source })?;
        Bootstrap::read(&path)
    }

    /// An executable of a file.
    pub fn read(path: &Path) -> Result<Bootstrap, PackageError> {
        let bytes = fs::read(path)
            .map_err(|source| PackageError::Unreadable { path: path.to_owned(), source })?;
        Bootstrap::of(path, bytes)
    }

    /// An executable that was read from `path`, which is for messages only.
    pub fn of(path: &Path, bytes: Vec<u8>) -> Result<Bootstrap, PackageError> {
        let path = path.to_owned();
        match Elf::read(&bytes) {
            Ok(elf) => Ok(Bootstrap { path, bytes, elf }),
            Err(source) => Err(PackageError::NotExecutable { path, source }),
        }
    }

    /// Where it was.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it says about itself.
    #[must_use]
    pub fn elf(&self) -> &Elf {
        &self.elf
    }

    /// Whether a function for this processor can run it.
    pub fn check(&self, wanted: Architecture) -> Result<(), PackageError> {
        let (path, architecture) = (|| self.path.clone(), self.elf.architecture);
        if architecture != wanted {
            return Err(PackageError::Architecture { path: path(), found: architecture, wanted });
        }
        if let Some(found) = &self.elf.interpreter
            && !LOADERS.contains(&found.as_str())
        {
            return Err(PackageError::Loader { path: path(), found: found.clone(), architecture });
        }
        let is_strange = |library: &&String| !LIBRARIES.contains(&library.as_str());
        if let Some(found) = self.elf.libraries.iter().find(is_strange) {
            return Err(PackageError::Library { path: path(), found: found.clone(), architecture });
        }
        match self.elf.glibc {
            Some(found) if found > GLIBC_MAX => {
                Err(PackageError::Glibc { path: path(), found, architecture })
            }
            _ => Ok(()),
        }
    }

    /// Packs the executable, without symbols, for functions of this processor.
    pub fn pack(&self, wanted: Architecture) -> Result<Package, PackageError> {
        self.check(wanted)?;
        let unpacked = stripped(&self.bytes, &self.elf);
        self.check_size("an unpacked package", unpacked.len(), UNPACKED_BYTES_MAX)?;
        let zip = zip_of_one(BOOTSTRAP, &unpacked);
        self.check_size("a zip", zip.len(), ZIP_BYTES_MAX)?;
        let (sha256, bootstrap_sha256) = (sha256(&zip), sha256(&unpacked));
        let unpacked_bytes = unpacked.len();
        Ok(Package { architecture: wanted, zip, sha256, bootstrap_sha256, unpacked_bytes })
    }

    fn check_size(&self, what: &'static str, bytes: usize, max: usize) -> Result<(), PackageError> {
        if bytes <= max {
            return Ok(());
        }
        Err(PackageError::TooLarge { path: self.path.clone(), what, bytes, max })
    }
}

/// A package that can be uploaded.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Package {
    /// The processor.
    pub architecture: Architecture,
    /// The bytes.
    pub zip: Vec<u8>,
    /// The hash of the zip, in hexadecimal.
    pub sha256: String,
    /// The hash of `bootstrap` in it, in hexadecimal.
    pub bootstrap_sha256: String,
    /// How large `bootstrap` is.
    pub unpacked_bytes: usize,
}

impl Package {
    /// The key of the object that holds it. Another content has another key, so that a stack which
    /// goes back finds what it had.
    #[must_use]
    pub fn key(&self) -> String {
        format!("{}.zip", self.sha256)
    }
}

/// Whether an object of a bucket is named as [`Package::key`] names them.
pub(crate) fn is_key(name: &str) -> bool {
    let is_digit = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
    name.strip_suffix(".zip").is_some_and(|hash| hash.len() == 64 && hash.chars().all(is_digit))
}

fn sha256(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Midnight of the first day that a zip can tell, in the format of DOS: (0, 1 January 1980).
const LONG_AGO: [u16; 2] = [0, 1 << 5 | 1];

/// A regular file that everybody may read and run, as Unix tells it in the upper half.
const MODE: u32 = 0o100_755 << 16;

/// A zip with one file. A zip of one file is three records; a crate for all of the format would
/// have to be told not to write times and owners.
fn zip_of_one(name: &str, content: &[u8]) -> Vec<u8> {
    let mut crc = Crc::new();
    crc.update(content);
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
    let written = encoder.write_all(content).and_then(|()| encoder.finish());
    let deflated = written.expect("writing to memory does not fail");
    let length = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
    let name_length = u16::try_from(name.len()).unwrap_or(u16::MAX);
    // What both records of a file have in common, from the version that is needed to unpack it on.
    let mut common = Vec::with_capacity(26);
    for half in [20, 0, 8, LONG_AGO[0], LONG_AGO[1]] {
        common.extend(u16::to_le_bytes(half));
    }
    for word in [crc.sum(), length(deflated.len()), length(content.len())] {
        common.extend(u32::to_le_bytes(word));
    }
    common.extend(name_length.to_le_bytes());
    common.extend(0_u16.to_le_bytes());

    let mut zip = b"PK\x03\x04".to_vec();
    zip.extend(&common);
    zip.extend(name.as_bytes());
    zip.extend(&deflated);
    let directory = zip.len();
    zip.extend(b"PK\x01\x02");
    // Made by Unix, whose modes the attributes are.
    zip.extend([20, 3]);
    zip.extend(&common);
    // No comment, the first disk, no inner attributes.
    zip.extend([0; 6]);
    zip.extend(MODE.to_le_bytes());
    zip.extend(0_u32.to_le_bytes());
    zip.extend(name.as_bytes());
    let directory_bytes = length(zip.len() - directory);
    zip.extend(b"PK\x05\x06");
    for half in [0_u16, 0, 1, 1] {
        zip.extend(half.to_le_bytes());
    }
    zip.extend(directory_bytes.to_le_bytes());
    zip.extend(length(directory).to_le_bytes());
    zip.extend(0_u16.to_le_bytes());
    zip
}
