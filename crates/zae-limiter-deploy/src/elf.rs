//! What an executable says about where it can run. Reads the program headers alone, as the kernel
//! and the loader do: section headers may be gone, and say nothing that binds.
//!
//! Every read is bounded: a damaged file is an error, never a panic.

use std::fmt;
use std::str::FromStr;

pub use crate::options::Architecture;

impl Architecture {
    /// The name that compilers have for it.
    #[must_use]
    pub fn rust_name(self) -> &'static str {
        match self {
            Architecture::X86_64 => "x86_64",
            Architecture::Arm64 => "aarch64",
        }
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Architecture {
    type Err = String;

    /// `x86_64` or `arm64`; `amd64` and `aarch64` mean the same.
    fn from_str(word: &str) -> Result<Architecture, String> {
        match word {
            "x86_64" | "amd64" => Ok(Architecture::X86_64),
            "arm64" | "aarch64" => Ok(Architecture::Arm64),
            _ => Err(format!("{word:?} is neither x86_64 nor arm64")),
        }
    }
}

/// A version of the C library of GNU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Glibc(pub u32, pub u32);

impl fmt::Display for Glibc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

impl Glibc {
    /// The version in a name such as `GLIBC_2.34` or `GLIBC_2.2.5`. `GLIBC_PRIVATE` has none.
    fn of(name: &[u8]) -> Option<Glibc> {
        let mut numbers = std::str::from_utf8(name).ok()?.strip_prefix("GLIBC_")?.split('.');
        Some(Glibc(numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    }
}

/// What an executable needs to run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Elf {
    /// The processor.
    pub architecture: Architecture,
    /// The loader, such as `/lib64/ld-linux-x86-64.so.2`; `None` for a static executable.
    pub interpreter: Option<String>,
    /// The newest version of the C library it asks for.
    pub glibc: Option<Glibc>,
    /// The shared libraries it asks for.
    pub libraries: Vec<String>,
    /// Bytes that a program header covers: the rest are symbols and debug information.
    pub loaded_bytes: usize,
    /// Bytes of the file.
    pub file_bytes: usize,
}

/// Why a file is no executable that Linux could start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ElfError {
    /// Not in the format of Linux: of another system, a script, or something else.
    #[error("it is no ELF file{}", .what.map(|what| format!(" but {what}")).unwrap_or_default())]
    NotElf {
        /// What it is, if that is known.
        what: Option<&'static str>,
    },
    /// Of a kind that does not run on Lambda.
    #[error("it is {0}")]
    Kind(String),
    /// For a processor that Lambda does not have.
    #[error("it is for the ELF machine {0}, and Lambda runs x86_64 (62) and arm64 (183)")]
    Machine(u16),
    /// Cut off, or damaged.
    #[error("it is damaged or cut off: {0}")]
    Damaged(&'static str),
}

const HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
const DYNAMIC_ENTRY: usize = 16;
const SECTION_HEADERS_AT: usize = 0x28;

const TYPE_EXECUTABLE: u16 = 2;
const TYPE_SHARED: u16 = 3;
const MACHINE_X86_64: u16 = 62;
const MACHINE_AARCH64: u16 = 183;
const ABI_SYSTEM_V: u8 = 0;
const ABI_LINUX: u8 = 3;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;

const DT_NULL: u64 = 0;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_STRSZ: u64 = 10;
const DT_VERNEED: u64 = 0x6fff_fffe;
const DT_VERNEEDNUM: u64 = 0x6fff_ffff;

/// No executable names more libraries, or more versions of one, than this.
const NAMES_MAX: usize = 10_000;

/// A little-endian file.
#[derive(Clone, Copy)]
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn slice(self, at: usize, length: usize) -> Option<&'a [u8]> {
        self.0.get(at..at.checked_add(length)?)
    }

    fn array<const N: usize>(self, at: usize) -> Option<[u8; N]> {
        self.slice(at, N)?.try_into().ok()
    }

    fn u16(self, at: usize) -> Option<u16> {
        self.array(at).map(u16::from_le_bytes)
    }

    fn u32(self, at: usize) -> Option<u32> {
        self.array(at).map(u32::from_le_bytes)
    }

    fn u64(self, at: usize) -> Option<u64> {
        self.array(at).map(u64::from_le_bytes)
    }

    /// A number that says where something is, or how much there is of it.
    fn place(self, at: usize) -> Option<usize> {
        usize::try_from(self.u64(at)?).ok()
    }

    /// A text up to its zero.
    fn text(self, at: usize) -> Option<&'a [u8]> {
        let rest = self.0.get(at..)?;
        rest.get(..rest.iter().position(|byte| *byte == 0)?)
    }
}

/// A part of the file, and where it is in memory.
#[derive(Clone, Copy)]
struct Segment {
    kind: u32,
    offset: usize,
    address: u64,
    bytes: usize,
}

impl Segment {
    /// Where the file has what is at this address.
    fn offset_of(&self, address: u64) -> Option<usize> {
        let distance = usize::try_from(address.checked_sub(self.address)?).ok()?;
        if distance >= self.bytes { None } else { self.offset.checked_add(distance) }
    }
}

impl Elf {
    /// Reads an executable.
    pub fn read(file: &[u8]) -> Result<Elf, ElfError> {
        let bytes = Bytes(file);
        let architecture = header(bytes)?;
        let segments = segments(bytes)?;
        let of_kind = |kind| segments.iter().find(move |segment| segment.kind == kind);
        let interpreter = match of_kind(PT_INTERP) {
            None => None,
            Some(segment) => {
                let path = bytes.slice(segment.offset, segment.bytes);
                let path =
                    path.ok_or(ElfError::Damaged("the name of its loader is outside of it"))?;
                let path = path.strip_suffix(&[0]).unwrap_or(path);
                Some(String::from_utf8_lossy(path).into_owned())
            }
        };
        let (glibc, libraries) = match of_kind(PT_DYNAMIC) {
            None => (None, Vec::new()),
            Some(dynamic) => needs(bytes, dynamic, &segments)?,
        };
        let loaded_bytes = loaded(bytes, &segments)?;
        Ok(Elf {
            architecture,
            interpreter,
            glibc,
            libraries,
            loaded_bytes,
            file_bytes: file.len(),
        })
    }

    /// Whether the file has symbols or debug information, which nothing needs to run it.
    #[must_use]
    pub fn is_stripped(&self) -> bool {
        // A table of sections without symbols is a few kilobytes.
        self.file_bytes.saturating_sub(self.loaded_bytes) <= 64 * 1_024
    }
}

/// The executable without what no program header covers: symbols, debug information and the table
/// of sections. The kernel and the loader read program headers only, and what they read stays where
/// it is.
#[must_use]
pub fn stripped(file: &[u8], elf: &Elf) -> Vec<u8> {
    let mut kept = file.get(..elf.loaded_bytes).unwrap_or(file).to_vec();
    // Offset of the table of sections, then its number of entries and which of them has names: all
    // of them none.
    if let Some(offset) = kept.get_mut(SECTION_HEADERS_AT..SECTION_HEADERS_AT + 8) {
        offset.fill(0);
    }
    if let Some(counts) = kept.get_mut(HEADER - 4..HEADER) {
        counts.fill(0);
    }
    kept
}

/// Checks the first bytes.
fn header(bytes: Bytes<'_>) -> Result<Architecture, ElfError> {
    let start = bytes.0;
    if !start.starts_with(b"\x7fELF") {
        let what = match start.get(..4) {
            Some(b"\xcf\xfa\xed\xfe" | b"\xca\xfe\xba\xbe") => Some("an executable of macOS"),
            Some([b'M', b'Z', ..]) => Some("an executable of Windows"),
            Some([b'#', b'!', ..]) => Some("a script"),
            Some(b"PK\x03\x04") => Some("a zip file"),
            _ => None,
        };
        return Err(ElfError::NotElf { what });
    }
    let cut = || ElfError::Damaged("its header is cut off");
    let &[class, order, _, abi] = start.get(4..8).ok_or_else(cut)? else { return Err(cut()) };
    if class != 2 {
        return Err(ElfError::Kind("an executable of 32 bits".to_owned()));
    }
    if order != 1 {
        return Err(ElfError::Kind("for processors that are big-endian".to_owned()));
    }
    if abi != ABI_SYSTEM_V && abi != ABI_LINUX {
        return Err(ElfError::Kind(format!("for another system than Linux (ABI {abi})")));
    }
    let kind = bytes.u16(16).ok_or_else(cut)?;
    if kind != TYPE_EXECUTABLE && kind != TYPE_SHARED {
        return Err(ElfError::Kind(format!("an object file or a core dump (type {kind})")));
    }
    let architecture = match bytes.u16(18).ok_or_else(cut)? {
        MACHINE_X86_64 => Architecture::X86_64,
        MACHINE_AARCH64 => Architecture::Arm64,
        machine => return Err(ElfError::Machine(machine)),
    };
    bytes.slice(0, HEADER).ok_or_else(cut)?;
    Ok(architecture)
}

fn segments(bytes: Bytes<'_>) -> Result<Vec<Segment>, ElfError> {
    let cut = || ElfError::Damaged("its program headers are outside of it");
    let first = bytes.place(0x20).ok_or_else(cut)?;
    let (size, count) = (bytes.u16(0x36).ok_or_else(cut)?, bytes.u16(0x38).ok_or_else(cut)?);
    let (size, count) = (usize::from(size), usize::from(count));
    if count == 0 || size < PROGRAM_HEADER {
        return Err(ElfError::Kind("a file without program headers: an object file?".to_owned()));
    }
    let segment = |number: usize| {
        let at = first.checked_add(number.checked_mul(size)?)?;
        Some(Segment {
            kind: bytes.u32(at)?,
            offset: bytes.place(at.checked_add(8)?)?,
            address: bytes.u64(at.checked_add(16)?)?,
            bytes: bytes.place(at.checked_add(32)?)?,
        })
    };
    (0..count).map(|number| segment(number).ok_or_else(cut)).collect()
}

/// Where the last byte ends that a program header covers, the program headers included.
fn loaded(bytes: Bytes<'_>, segments: &[Segment]) -> Result<usize, ElfError> {
    let cut = || ElfError::Damaged("a segment reaches beyond its end");
    let size = usize::from(bytes.u16(0x36).ok_or_else(cut)?);
    let headers = bytes.place(0x20).ok_or_else(cut)?;
    let headers = headers.checked_add(size.saturating_mul(segments.len())).ok_or_else(cut)?;
    let mut end = headers.max(HEADER);
    for segment in segments {
        if segment.bytes > 0 {
            end = end.max(segment.offset.checked_add(segment.bytes).ok_or_else(cut)?);
        }
    }
    if end > bytes.0.len() { Err(cut()) } else { Ok(end) }
}

/// The newest version of the C library, and the libraries.
fn needs(
    bytes: Bytes<'_>,
    dynamic: &Segment,
    segments: &[Segment],
) -> Result<(Option<Glibc>, Vec<String>), ElfError> {
    let cut = || ElfError::Damaged("what it needs of libraries is outside of it");
    let entries = bytes.slice(dynamic.offset, dynamic.bytes).ok_or_else(cut)?;
    let (mut names, mut names_bytes, mut versions, mut needed) = (None, None, None, Vec::new());
    let mut libraries_max = 0;
    for entry in entries.chunks_exact(DYNAMIC_ENTRY) {
        let entry = Bytes(entry);
        let (tag, value) = (entry.u64(0).ok_or_else(cut)?, entry.u64(8).ok_or_else(cut)?);
        match tag {
            DT_NULL => break,
            DT_NEEDED => needed.push(value),
            DT_STRTAB => names = Some(value),
            DT_STRSZ => names_bytes = Some(value),
            DT_VERNEED => versions = Some(value),
            DT_VERNEEDNUM => libraries_max = usize::try_from(value).unwrap_or(usize::MAX),
            _ => {}
        }
    }
    let offset_of = |address: u64| {
        let loads = segments.iter().filter(|segment| segment.kind == PT_LOAD);
        loads.filter_map(|segment| segment.offset_of(address)).next()
    };
    let Some(names) = names.and_then(offset_of) else {
        let is_static = needed.is_empty() && versions.is_none();
        return if is_static { Ok((None, Vec::new())) } else { Err(cut()) };
    };
    let names_bytes = names_bytes.and_then(|bytes| usize::try_from(bytes).ok()).ok_or_else(cut)?;
    let names = Bytes(bytes.slice(names, names_bytes).ok_or_else(cut)?);
    let name = |at: u64| names.text(usize::try_from(at).ok()?);
    let libraries = needed.iter().take(NAMES_MAX).map(|at| name(*at));
    let libraries = libraries
        .map(|name| name.map(|name| String::from_utf8_lossy(name).into_owned()))
        .collect::<Option<Vec<_>>>();
    let libraries = libraries.ok_or_else(cut)?;
    let mut newest = None;
    if let Some(versions) = versions {
        let first = offset_of(versions).ok_or_else(cut)?;
        newest = newest_glibc(bytes, first, libraries_max, &name).ok_or_else(cut)?;
    }
    Ok((newest, libraries))
}

/// Walks the versions that are needed of each library (`.gnu.version_r`).
fn newest_glibc<'a>(
    bytes: Bytes<'_>,
    first: usize,
    libraries_max: usize,
    name: &impl Fn(u64) -> Option<&'a [u8]>,
) -> Option<Option<Glibc>> {
    let (mut newest, mut library) = (None, first);
    for _ in 0..libraries_max.min(NAMES_MAX) {
        let versions = usize::from(bytes.u16(library.checked_add(2)?)?);
        let mut version = library.checked_add(step(bytes, library, 8)?)?;
        for _ in 0..versions.min(NAMES_MAX) {
            let label = u64::from(bytes.u32(version.checked_add(8)?)?);
            newest = newest.max(Glibc::of(name(label)?));
            match step(bytes, version, 12)? {
                0 => break,
                next => version = version.checked_add(next)?,
            }
        }
        match step(bytes, library, 12)? {
            0 => break,
            next => library = library.checked_add(next)?,
        }
    }
    Some(newest)
}

/// How far the next entry is, as a field of this one says.
fn step(bytes: Bytes<'_>, entry: usize, field: usize) -> Option<usize> {
    usize::try_from(bytes.u32(entry.checked_add(field)?)?).ok()
}
