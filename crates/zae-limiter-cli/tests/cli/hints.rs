//! Commands that are printed as hints work when they are pasted: they name the store and the
//! namespace that were named.

#[cfg(unix)]
use std::process::Command;

use crate::support::Sandbox;

/// A store that only flags name, in a path that a shell takes apart unless it is quoted.
const FLAGS: [&str; 4] = ["--store", "sqlite:my limits.db", "-N", "team"];

fn sandbox() -> Sandbox {
    let sandbox = Sandbox::new().variable("ZAEL_STORE", "");
    let (exit, said) = run(&sandbox, "namespace register team");
    assert_eq!(exit, 0, "{said}");
    sandbox
}

fn run(sandbox: &Sandbox, line: &str) -> (i32, String) {
    let words: Vec<&str> = FLAGS.into_iter().chain(line.split(' ')).collect();
    let output = sandbox.command(&words).output().expect("the binary starts");
    let said = [output.stdout, output.stderr]
        .map(|bytes| String::from_utf8(bytes).expect("UTF-8"))
        .concat();
    (output.status.code().expect("an exit code"), said)
}

/// The commands in backquotes that a command prints.
fn hinted(sandbox: &Sandbox, line: &str) -> Vec<String> {
    let (_, said) = run(sandbox, line);
    let hinted: Vec<String> = said
        .split('`')
        .filter(|part| part.starts_with("zae-limiter "))
        .map(str::to_owned)
        .collect();
    assert!(!hinted.is_empty(), "{line}: {said}");
    hinted
}

/// What a shell makes of a line.
#[cfg(unix)]
fn pasted(sandbox: &Sandbox, line: &str) -> i32 {
    let folder =
        std::path::Path::new(env!("CARGO_BIN_EXE_zae-limiter")).parent().expect("a folder");
    let mut shell = Command::new("/bin/sh");
    shell
        .args(["-c", line])
        .env_clear()
        .env("PATH", folder)
        .env("HOME", sandbox.path("."))
        .current_dir(sandbox.path("."));
    let output = shell.output().expect("the shell starts");
    output.status.code().expect("an exit code")
}

#[cfg(unix)]
#[test]
fn hints_work_when_they_are_pasted() {
    let sandbox = sandbox();
    for (line, count) in [
        ("system get-defaults", 1),
        ("system set-defaults --remove rpm", 1),
        ("entity show key-1", 1),
        ("entity get-limits key-1 -r gpt-4", 1),
        ("acquire key-2 embed -c rpm=1", 3),
        ("acquire key-2 embed -c nope=1", 1),
        ("entity reset key-2 -l nope --yes", 1),
        ("backup copy.db", 1),
        ("namespace delete team", 1),
        ("namespace show team-b", 2),
    ] {
        let hinted = hinted(&sandbox, line);
        assert_eq!(hinted.len(), count, "{line}: {hinted:?}");
        for hint in hinted {
            assert!(
                hint.starts_with("zae-limiter --store 'sqlite:my limits.db' "),
                "{line}: {hint}"
            );
            let destroys = hint.contains(" delete-defaults") || hint.contains(" restore ");
            let typed = hint.replace("'...'", "rpm:9").replace("...", "rpm:9")
                + if destroys { " --yes" } else { "" };
            assert_eq!(pasted(&sandbox, &typed), 0, "{line}: {typed}");
        }
        // Before and after it is there to take from.
        if line.starts_with("acquire key-2 embed -c rpm") {
            assert_eq!(run(&sandbox, line).0, 0);
        }
    }
}

/// The library names commands too, and knows no flags.
#[test]
fn the_words_of_the_library_name_the_store() {
    let sandbox = Sandbox::new().variable("ZAEL_STORE", "");
    std::fs::write(
        sandbox.path("my limits.db"),
        "a letter to my aunt, long enough to look like something".repeat(100),
    )
    .expect("a file");
    assert_eq!(
        hinted(&sandbox, "system get-defaults"),
        ["zae-limiter --store 'sqlite:my limits.db' restore BACKUP"]
    );
}
