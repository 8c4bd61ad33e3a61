//! `docs/cli.md`, completion scripts, manual pages, and the help of every command.

use std::path::Path;

use insta::assert_snapshot;

use crate::support::Sandbox;

#[test]
fn the_reference_page_is_current() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cli.md");
    let written = std::fs::read_to_string(&page).unwrap_or_default();
    let (_, current) = Sandbox::new().raw("reference");
    assert!(
        written == current,
        "docs/cli.md is not current; write it with `cargo run -q -p zae-limiter-cli -- reference > docs/cli.md`"
    );
}

#[test]
fn the_reference_page_has_every_command_and_nothing_hidden() {
    let (_, page) = Sandbox::new().raw("reference");
    for command in [
        "acquire",
        "entity clear-disabled",
        "namespace purge",
        "usage list",
        "backup",
        "demo",
        "completions",
        "version",
    ] {
        assert!(page.contains(&format!("# zae-limiter {command}\n")), "{command}");
    }
    assert!(!page.contains("# zae-limiter reference") && !page.contains("# zae-limiter help"));
}

#[test]
fn completions_for_every_shell() {
    let sandbox = Sandbox::new();
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let (exit, script) = sandbox.raw(&format!("completions {shell}"));
        assert!(
            exit == 0 && script.contains("zae-limiter") && script.contains("clear-disabled"),
            "{shell}"
        );
    }
    assert_snapshot!(sandbox.run("completions tcsh"), @"
    exit 2
    --- stderr
    error: invalid value 'tcsh' for '<SHELL>'
      [possible values: bash, elvish, fish, powershell, zsh]

      tip: a similar value exists: 'zsh'

    For more information, try '--help'.
    ");
    assert!(!sandbox.path("limits.db").exists());
}

#[test]
fn every_command_has_help_that_fits() {
    let sandbox = Sandbox::new().variable("COLUMNS", "60");
    let (_, page) = sandbox.raw("reference");
    for line in
        page.lines().filter_map(|line| line.trim_start_matches('#').strip_prefix(" zae-limiter "))
    {
        let (exit, help) = sandbox.raw(&format!("{line} --help"));
        assert!(exit == 0 && help.contains("Usage: zae-limiter"), "{line}\n{help}");
        // clap does not wrap the line that shows the usage.
        assert!(
            help.lines().all(|line| line.starts_with("Usage:") || line.chars().count() <= 60),
            "{line}\n{help}"
        );
    }
}

/// A page for every command, with its options and examples; `groff` reads them without a word,
/// where there is one.
#[cfg(feature = "man")]
#[test]
fn every_command_has_a_manual_page() {
    let sandbox = Sandbox::new();
    let (_, reference) = sandbox.raw("reference");
    let (exit, json) = sandbox.raw("man --dir pages --output json");
    let form: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let files: Vec<&str> =
        form["files"].as_array().expect("files").iter().filter_map(|name| name.as_str()).collect();
    let name = |heading: &str| format!("{}.1", heading.replace(' ', "-"));
    let mut expected = vec!["zae-limiter.1".to_owned()];
    expected.extend(reference.lines().filter_map(|line| {
        line.trim_start_matches('#')
            .strip_prefix(" zae-limiter ")
            .map(|words| name(&format!("zae-limiter {words}")))
    }));
    expected.sort_unstable();
    let mut found: Vec<String> = files.iter().map(|name| (*name).to_owned()).collect();
    found.sort_unstable();
    assert_eq!((exit, found), (0, expected));
    let written = std::fs::read_dir(sandbox.path("pages")).expect("the folder").count();
    assert_eq!(written, files.len());
    for file in &files {
        let page = std::fs::read_to_string(sandbox.path("pages").join(file)).expect("a page");
        assert!(page.contains(".TH ") && page.contains(".SH NAME\n"), "{file}: {page}");
        let is_leaf = !page.contains(".SH SUBCOMMANDS\n");
        assert!(!is_leaf || page.contains("zae\\-limiter "), "{file} has no example");
    }
    if std::process::Command::new("groff").arg("--version").output().is_err() {
        eprintln!("not read by groff: it is not installed");
        return;
    }
    let read = std::process::Command::new("groff")
        .args(["-man", "-Tutf8", "-ww", "-z"])
        .args(&files)
        .current_dir(sandbox.path("pages"))
        .output()
        .expect("groff starts");
    let said = String::from_utf8_lossy(&read.stderr);
    assert!(read.status.success() && said.is_empty(), "{said}");
}

#[cfg(feature = "man")]
#[test]
fn one_page_is_printed_and_an_unknown_command_is_named() {
    let sandbox = Sandbox::new();
    let (exit, page) = sandbox.raw("man entity create");
    assert!(exit == 0 && page.contains("zae\\-limiter\\-entity\\-create"), "{page}");
    assert!(page.contains(".SH EXAMPLES\n") && page.contains("\\-\\-cascade"), "{page}");
    let shown = sandbox.run("man entity nonsense");
    assert!(shown.starts_with("exit 2\n") && shown.contains("\"entity nonsense\""), "{shown}");
    let shown = sandbox.run("man reference");
    assert!(shown.starts_with("exit 2\n"), "what is hidden has no page: {shown}");
}
