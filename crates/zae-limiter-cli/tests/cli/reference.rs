//! `docs/cli.md`, completion scripts, and the help of every command.

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
