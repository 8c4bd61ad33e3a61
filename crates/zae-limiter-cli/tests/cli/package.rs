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
    assert_snapshot!(sandbox.run("lambda-export --lambda-binary binary --output a.zip"), @"
    exit 0
    --- stdout
    written       a.zip
    binary        binary
    architecture  x86_64
    glibc         2.34 (the runtime has 2.34)
    symbols       4.0 KiB, left out
    bootstrap     416 bytes
    zip           288 bytes
    sha256        7cc3d4e6bc34e820be2018244000f4472ee59901c6bea56ef006759687e6182b
    fits          yes
    ");
    assert_snapshot!(sandbox.run("lambda-export --lambda-binary binary -o a.zip"), @"
    exit 1
    --- stderr
    error: a.zip exists already
    hint: --force replaces it
    ");
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
    assert_snapshot!(sandbox.run("lambda-export --info --lambda-binary binary --output json"), @r#"
    exit 0
    --- stdout
    {"file":null,"binary":"binary","architecture":"x86_64","fits":true,"problem":null,"glibc":"2.34","glibc_max":"2.34","libraries":["libc.so.6"],"symbols_bytes":0,"bootstrap_bytes":416,"bootstrap_sha256":"338af1243f7cc2573add45d4d19ce69dc70cd108c463edf8ad3231844162d89d","zip_bytes":288,"zip_sha256":"7cc3d4e6bc34e820be2018244000f4472ee59901c6bea56ef006759687e6182b"}
    "#);
    let new = with_binary(&CraftedElf::arm64(&["GLIBC_2.38"]));
    assert_snapshot!(new.run("lambda-export --info --lambda-binary binary"), @"
    exit 1
    --- stdout
    binary        binary
    architecture  arm64
    glibc         2.38 (the runtime has 2.34)
    symbols       0 bytes, left out
    fits          no: binary needs glibc 2.38, and the runtime provided.al2023 has 2.34
    --- stderr
    note: build one for this: `cargo build --release -p zae-limiter-cli --target TARGET`, TARGET being aarch64-unknown-linux-musl, or aarch64-unknown-linux-gnu in a container of Amazon Linux 2023; then name it with --lambda-binary
    ");
    assert_snapshot!(new.run("lambda-export --lambda-binary binary"), @"
    exit 1
    --- stderr
    error: binary needs glibc 2.38, and the runtime provided.al2023 has 2.34
    hint: build one for this: `cargo build --release -p zae-limiter-cli --target TARGET`, TARGET being aarch64-unknown-linux-musl, or aarch64-unknown-linux-gnu in a container of Amazon Linux 2023; then name it with --lambda-binary
    ");
    assert_snapshot!(new.run("lambda-export --lambda-binary binary --architecture x86_64 --output json"), @r#"
    exit 1
    --- stderr
    {"error":{"kind":"package","message":"binary is for arm64, and the function is to run on x86_64","hint":"choose --architecture arm64, or build one for this: `cargo build --release -p zae-limiter-cli --target TARGET`, TARGET being x86_64-unknown-linux-musl, or x86_64-unknown-linux-gnu in a container of Amazon Linux 2023; then name it with --lambda-binary"}}
    "#);
    assert_snapshot!(new.run("lambda-export --lambda-binary nowhere"), @"
    exit 1
    --- stderr
    error: nowhere cannot be read
      caused by: No such file or directory (os error 2)
    hint: name an executable for Linux with --lambda-binary
    ");
    assert_snapshot!(new.run("lambda-export --architecture mips"), @r#"
    exit 2
    --- stderr
    error: invalid value 'mips' for '--architecture <NAME>': "mips" is neither x86_64 nor arm64

    For more information, try '--help'.
    "#);
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
