//! Executables that say what a test wants them to say. None of them runs.

/// Bytes of the header.
const HEADER: usize = 64;
/// Bytes of a program header.
const PROGRAM_HEADER: usize = 56;
/// Where the file is in memory.
const BASE: u64 = 0x40_0000;

/// What an executable says about itself.
#[derive(Clone, Debug)]
pub struct CraftedElf {
    /// The number of the processor: 62 for x86_64, 183 for arm64.
    pub machine: u16,
    /// The loader; `None` for a static executable.
    pub interpreter: Option<&'static str>,
    /// The shared library that it needs.
    pub library: &'static str,
    /// Versions that it needs of that.
    pub versions: Vec<&'static str>,
    /// Bytes behind everything that is loaded, as symbols are.
    pub symbols: usize,
}

impl CraftedElf {
    /// A dynamic executable for x86_64 that needs these versions.
    #[must_use]
    pub fn x86_64(versions: &[&'static str]) -> CraftedElf {
        CraftedElf {
            machine: 62,
            interpreter: Some("/lib64/ld-linux-x86-64.so.2"),
            library: "libc.so.6",
            versions: versions.to_vec(),
            symbols: 0,
        }
    }

    /// The same for arm64.
    #[must_use]
    pub fn arm64(versions: &[&'static str]) -> CraftedElf {
        let interpreter = Some("/lib/ld-linux-aarch64.so.1");
        CraftedElf { machine: 183, interpreter, ..CraftedElf::x86_64(versions) }
    }

    /// The file.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut names = vec![0];
        let mut name = |text: &str| {
            let at = names.len() as u64;
            names.extend(text.as_bytes());
            names.push(0);
            at
        };
        let library = name(self.library);
        let versions: Vec<u64> = self.versions.iter().map(|version| name(version)).collect();
        let interpreter: Vec<u8> =
            self.interpreter.map(|path| [path.as_bytes(), &[0]].concat()).unwrap_or_default();
        let segments = if interpreter.is_empty() { 2 } else { 3 };
        let interpreter_at = HEADER + segments * PROGRAM_HEADER;
        let names_at = interpreter_at + interpreter.len();
        let needs_at = (names_at + names.len()).next_multiple_of(8);
        let needs = needs(library, &versions);
        let dynamic_at = (needs_at + needs.len()).next_multiple_of(8);
        let mut dynamic = vec![(5, BASE + names_at as u64), (10, names.len() as u64)];
        if !versions.is_empty() {
            let needed = [(1, library), (0x6fff_fffe, BASE + needs_at as u64), (0x6fff_ffff, 1)];
            dynamic.extend(needed);
        }
        dynamic.push((0, 0));
        let dynamic: Vec<u8> = dynamic
            .into_iter()
            .flat_map(|(tag, value): (u64, u64)| [tag.to_le_bytes(), value.to_le_bytes()].concat())
            .collect();
        let end = dynamic_at + dynamic.len();

        let mut file = b"\x7fELF\x02\x01\x01\x00".to_vec();
        file.resize(16, 0);
        for half in [3, self.machine] {
            file.extend(u16::to_le_bytes(half));
        }
        file.extend(1_u32.to_le_bytes());
        // Entry, program headers, sections.
        for word in [BASE, HEADER as u64, (end + self.symbols) as u64] {
            file.extend(word.to_le_bytes());
        }
        file.extend(0_u32.to_le_bytes());
        for half in [HEADER, PROGRAM_HEADER, segments, 64, 7, 6] {
            file.extend(u16::try_from(half).expect("a small number").to_le_bytes());
        }
        let mut segment = |kind: u32, at: usize, bytes: usize| {
            file.extend(kind.to_le_bytes());
            file.extend(5_u32.to_le_bytes());
            let (at, bytes) = (at as u64, bytes as u64);
            for word in [at, BASE + at, BASE + at, bytes, bytes, 8] {
                file.extend(word.to_le_bytes());
            }
        };
        segment(1, 0, end);
        segment(2, dynamic_at, dynamic.len());
        if segments == 3 {
            segment(3, interpreter_at, interpreter.len());
        }
        for (at, part) in [
            (interpreter_at, interpreter),
            (names_at, names),
            (needs_at, needs),
            (dynamic_at, dynamic),
        ] {
            file.resize(at, 0);
            file.extend(part);
        }
        file.resize(end + self.symbols, b's');
        file
    }
}

/// `.gnu.version_r` for one library.
fn needs(library: u64, versions: &[u64]) -> Vec<u8> {
    let word = |number: usize| u32::try_from(number).expect("a small number").to_le_bytes();
    let mut needs = 1_u16.to_le_bytes().to_vec();
    needs.extend(u16::try_from(versions.len()).expect("a small number").to_le_bytes());
    needs.extend(word(usize::try_from(library).expect("a small number")));
    needs.extend(word(16));
    needs.extend(word(0));
    for (number, version) in versions.iter().enumerate() {
        let is_last = number + 1 == versions.len();
        needs.extend(word(0));
        needs.extend(word(0));
        needs.extend(word(usize::try_from(*version).expect("a small number")));
        needs.extend(word(if is_last { 0 } else { 16 }));
    }
    needs
}
