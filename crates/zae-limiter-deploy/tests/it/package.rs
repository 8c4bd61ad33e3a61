//! The Lambda package: what an executable says about itself, and the zip made of it.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use zae_limiter_deploy::elf::{Architecture, Elf, ElfError, Glibc, stripped};
use zae_limiter_deploy::package::{Bootstrap, GLIBC_MAX, PackageError};
use zae_limiter_testkit::elf::CraftedElf;

fn bootstrap(elf: &CraftedElf) -> Bootstrap {
    Bootstrap::of(Path::new("a-binary"), elf.bytes()).expect("an executable")
}

/// The one file of a zip, found as a reader of zips finds it, from the end: name, mode, time, method
/// and system, and the content.
fn unzipped(zip: &[u8]) -> (String, Vec<u8>) {
    let half = |at: usize| usize::from(u16::from_le_bytes([zip[at], zip[at + 1]]));
    let word = |at: usize| half(at) | half(at + 2) << 16;
    let end = zip.len() - 22;
    assert_eq!(&zip[end..end + 4], b"PK\x05\x06");
    assert_eq!([half(end + 8), half(end + 10), half(end + 20)], [1, 1, 0], "one file");
    let entry = word(end + 16);
    assert_eq!(&zip[entry..entry + 4], b"PK\x01\x02");
    assert_eq!(entry + word(end + 12), end);
    let name = &zip[entry + 46..entry + 46 + half(entry + 28)];
    let file = word(entry + 42);
    assert_eq!(&zip[file..file + 4], b"PK\x03\x04");
    assert_eq!(&zip[file + 4..file + 30], &zip[entry + 6..entry + 32], "both say the same");
    assert_eq!(&zip[file + 30..file + 30 + name.len()], name);
    let start = file + 30 + name.len() + half(file + 28);
    let deflated = &zip[start..start + word(entry + 20)];
    let mut content = Vec::new();
    flate2::read::DeflateDecoder::new(deflated).read_to_end(&mut content).expect("deflated");
    let mut crc = flate2::Crc::new();
    crc.update(&content);
    assert_eq!((crc.sum() as usize, content.len()), (word(entry + 16), word(entry + 24)));
    let name = String::from_utf8_lossy(name);
    let (mode, at) = (word(entry + 38) >> 16, (half(entry + 14), half(entry + 12)));
    (format!("{name} {mode:o} {at:?} {} {}", half(entry + 10), half(entry + 4) >> 8), content)
}

#[test]
fn a_fitting_executable_says_what_it_needs() {
    let elf = Elf::read(
        &CraftedElf::x86_64(&["GLIBC_2.2.5", "GLIBC_2.34", "GLIBC_2.9", "GLIBC_PRIVATE"]).bytes(),
    );
    let elf = elf.expect("an executable");
    assert_eq!(elf.architecture, Architecture::X86_64);
    assert_eq!(elf.glibc, Some(Glibc(2, 34)), "numbers, not texts, are compared");
    assert_eq!(elf.interpreter.as_deref(), Some("/lib64/ld-linux-x86-64.so.2"));
    assert_eq!(elf.libraries, ["libc.so.6"]);
    assert!(elf.is_stripped());
}

#[test]
fn a_newer_c_library_than_that_of_the_runtime_is_refused_with_a_hint() {
    bootstrap(&CraftedElf::x86_64(&["GLIBC_2.34"])).check(Architecture::X86_64).expect("it fits");
    let error = bootstrap(&CraftedElf::x86_64(&["GLIBC_2.34", "GLIBC_2.35"]))
        .pack(Architecture::X86_64)
        .expect_err("too new");
    assert!(matches!(&error, PackageError::Glibc { found: Glibc(2, 35), .. }), "{error:?}");
    assert_eq!(
        error.to_string(),
        format!("a-binary needs glibc 2.35, and the runtime provided.al2023 has {GLIBC_MAX}")
    );
    let hint = error.hint();
    for word in ["x86_64-unknown-linux-musl", "Amazon Linux 2023", "--lambda-binary"] {
        assert!(hint.contains(word), "{hint}");
    }
}

#[test]
fn another_processor_is_refused() {
    let arm = bootstrap(&CraftedElf::arm64(&["GLIBC_2.17"]));
    assert_eq!(arm.elf().architecture, Architecture::Arm64);
    arm.pack(Architecture::Arm64).expect("it fits");
    let error = arm.pack(Architecture::X86_64).expect_err("of another kind");
    assert_eq!(error.to_string(), "a-binary is for arm64, and the function is to run on x86_64");
    assert!(error.hint().contains("--architecture arm64"), "{}", error.hint());
    let odd = CraftedElf { machine: 243, ..CraftedElf::x86_64(&[]) };
    let error = Bootstrap::of(Path::new("a-binary"), odd.bytes()).expect_err("RISC-V");
    let is_machine = |error: &PackageError| {
        matches!(error, PackageError::NotExecutable { source: ElfError::Machine(243), .. })
    };
    assert!(is_machine(&error), "{error:?}");
}

#[test]
fn a_static_executable_fits_and_a_dynamic_one_of_musl_does_not() {
    let alone = CraftedElf { interpreter: None, ..CraftedElf::x86_64(&[]) };
    let alone = bootstrap(&alone);
    assert_eq!((alone.elf().glibc, &alone.elf().interpreter), (None, &None));
    alone.pack(Architecture::X86_64).expect("it fits");
    let musl =
        CraftedElf { interpreter: Some("/lib/ld-musl-x86_64.so.1"), ..CraftedElf::x86_64(&[]) };
    let error = bootstrap(&musl).pack(Architecture::X86_64).expect_err("no loader");
    assert!(matches!(error, PackageError::Loader { .. }), "{error:?}");
}

#[test]
fn a_program_with_libraries_of_its_own_does_not_fit() {
    let other = CraftedElf { library: "libpcre2-8.so.0", ..CraftedElf::x86_64(&["GLIBC_2.34"]) };
    let error = bootstrap(&other).pack(Architecture::X86_64).expect_err("no such library");
    assert!(
        matches!(&error, PackageError::Library { found, .. } if found == "libpcre2-8.so.0"),
        "{error:?}"
    );
}

#[test]
fn other_files_are_named() {
    for (bytes, expected) in [
        (&b""[..], "it is no ELF file"),
        (b"\x7fEL", "it is no ELF file"),
        (b"#!/bin/sh\n", "it is no ELF file but a script"),
        (b"\xcf\xfa\xed\xfe\x07\0\0\x01", "it is no ELF file but an executable of macOS"),
        (b"MZ\x90\0", "it is no ELF file but an executable of Windows"),
        (b"PK\x03\x04", "it is no ELF file but a zip file"),
        (b"\x7fELF\x01\x01\x01\0", "it is an executable of 32 bits"),
        (b"\x7fELF\x02\x02\x01\0", "it is for processors that are big-endian"),
        (b"\x7fELF\x02\x01\x01\x09", "it is for another system than Linux (ABI 9)"),
        (b"\x7fELF\x02\x01\x01\0", "it is damaged or cut off: its header is cut off"),
    ] {
        assert_eq!(Elf::read(bytes).expect_err("no executable").to_string(), expected);
    }
}

#[test]
fn a_file_that_is_cut_off_or_damaged_anywhere_is_no_panic() {
    let whole = CraftedElf::x86_64(&["GLIBC_2.34", "GLIBC_2.2.5"]).bytes();
    for end in 0..whole.len() {
        Elf::read(&whole[..end]).expect_err("it is cut off");
    }
    // A segment that reaches one byte beyond the end, with everything that is read inside.
    let mut beyond = whole.clone();
    beyond[64 + 32..64 + 40].copy_from_slice(&(whole.len() as u64 + 1).to_le_bytes());
    let error = Elf::read(&beyond).expect_err("a part is missing");
    assert_eq!(error, ElfError::Damaged("a segment reaches beyond its end"));
    for at in 0..whole.len() {
        for value in [0, 1, 0x7f, 0xff] {
            let mut damaged = whole.clone();
            damaged[at] = value;
            if let Ok(elf) = Elf::read(&damaged) {
                let _ = stripped(&damaged, &elf);
            }
        }
    }
}

#[test]
fn the_zip_is_the_same_every_time_and_holds_one_file() {
    let elf = CraftedElf { symbols: 100_000, ..CraftedElf::x86_64(&["GLIBC_2.34"]) };
    let package = bootstrap(&elf).pack(Architecture::X86_64).expect("a package");
    assert_eq!(bootstrap(&elf).pack(Architecture::X86_64).expect("a package"), package);
    let (told, content) = unzipped(&package.zip);
    assert_eq!(told, "bootstrap 100755 (33, 0) 8 3");
    assert_eq!(content.len(), package.unpacked_bytes);
    assert_eq!(package.key(), format!("{}.zip", package.sha256));
    // Symbols are left out, and what is loaded is as it was but for the table of sections.
    let plain = bootstrap(&CraftedElf { symbols: 0, ..elf.clone() });
    assert_eq!(plain.pack(Architecture::X86_64).expect("a package").zip, package.zip);
    let differing = content.iter().zip(elf.bytes()).enumerate().filter(|(_, (a, b))| **a != *b);
    let places: Vec<usize> = differing.map(|(at, _)| at).collect();
    assert!(
        places.iter().all(|at| (0x28..0x30).contains(at) || (60..64).contains(at)),
        "{places:?}"
    );
    let other = CraftedElf::x86_64(&["GLIBC_2.33"]);
    let other = bootstrap(&other).pack(Architecture::X86_64).expect("a package");
    assert_ne!(other.sha256, package.sha256);
}

/// This very test, packed, unpacked and started.
#[test]
fn an_executable_without_its_symbols_runs() {
    let path = std::env::current_exe().expect("this test");
    let bytes = fs::read(path).expect("this test");
    let elf = Elf::read(&bytes).expect("an executable");
    assert!(!elf.is_stripped(), "a debug build has symbols");
    let kept = stripped(&bytes, &elf);
    assert!(kept.len() < bytes.len());
    let again = Elf::read(&kept).expect("an executable");
    assert!(again.is_stripped() && again.glibc == elf.glibc && again.libraries == elf.libraries);
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("bootstrap");
    fs::write(&program, kept).expect("it is written");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("it may run");
    let output = Command::new(program).arg("--list").output().expect("it starts");
    let listed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && listed.contains("an_executable_without_its_symbols_runs"));
}

#[test]
fn a_package_that_is_too_large_is_refused() {
    // What cannot be made smaller: a sequence without patterns, in the loaded part.
    let mut state = 1_u64;
    let mut noise = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let mut file = CraftedElf { interpreter: None, ..CraftedElf::x86_64(&[]) }.bytes();
    let before = file.len();
    while file.len() < 51 * 1_024 * 1_024 {
        file.extend(noise());
    }
    // The first program header covers all of it.
    let bytes = (file.len() as u64).to_le_bytes();
    file[64 + 32..64 + 40].copy_from_slice(&bytes);
    assert!(before < 1_000);
    let error = Bootstrap::of(Path::new("a-binary"), file)
        .expect("an executable")
        .pack(Architecture::X86_64)
        .expect_err("too large");
    assert!(matches!(error, PackageError::TooLarge { what: "a zip", .. }), "{error}");
}
