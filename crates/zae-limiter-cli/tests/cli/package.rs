//! `lambda-export`: the package that a Lambda function runs.

use insta::assert_snapshot;
use zae_limiter_testkit::elf::CraftedElf;

use crate::support::Sandbox;

/// A folder with an executable in it that needs this version of glibc.
fn with_binary(elf: &CraftedElf) -> Sandbox {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path("binary"), elf.bytes()).expect("it is written");
    sandbox
}

#[test]
fn a_package_is_written_once_unless_forced() {
    let sandbox =
        with_binary(&CraftedElf { symbols: 4_000, ..CraftedElf::x86_64(&["GLIBC_2.34"]) });
    assert_snapshot!(sandbox.run("lambda-export --lambda-binary binary --output a.zip"), @"");
    assert_snapshot!(sandbox.run("lambda-export --lambda-binary binary -o a.zip"), @"");
    let first = std::fs::read(sandbox.path("a.zip")).expect("the zip");
    assert_eq!(sandbox.raw("lambda-export --lambda-binary binary -o a.zip --force").0, 0);
    assert_eq!(sandbox.raw("lambda-export --lambda-binary binary").0, 0);
    for name in ["a.zip", "lambda.zip"] {
        assert_eq!(std::fs::read(sandbox.path(name)).expect("the zip"), first, "{name}");
    }
    assert!(first.starts_with(b"PK"));
}

#[test]
fn info_writes_nothing_and_tells_what_does_not_fit() {
    let sandbox = with_binary(&CraftedElf::x86_64(&["GLIBC_2.34"]));
    assert_snapshot!(sandbox.run("lambda-export --info --lambda-binary binary --output json"), @"");
    let new = with_binary(&CraftedElf::arm64(&["GLIBC_2.38"]));
    assert_snapshot!(new.run("lambda-export --info --lambda-binary binary"), @"");
    assert_snapshot!(new.run("lambda-export --lambda-binary binary"), @"");
    assert_snapshot!(new.run("lambda-export --lambda-binary binary --architecture x86_64 --output json"), @"");
    assert_snapshot!(new.run("lambda-export --lambda-binary nowhere"), @"");
    assert_snapshot!(new.run("lambda-export --architecture mips"), @"");
    for sandbox in [sandbox, new] {
        assert!(!sandbox.path("lambda.zip").exists());
    }
}

/// This very program is an executable with its symbols; the package leaves them out.
#[test]
fn this_program_packs_itself() {
    let (_, told) = Sandbox::new().raw("lambda-export --info --output json");
    let told: serde_json::Value = serde_json::from_str(&told).expect("JSON");
    assert_eq!(told["binary"], env!("CARGO_BIN_EXE_zae-limiter"));
    assert!(told["symbols_bytes"].as_u64() > Some(0), "{told}");
}
