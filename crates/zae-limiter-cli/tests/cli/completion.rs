//! Bash completion, by a real bash that has sourced the script.

use std::process::Command;

use crate::support::Sandbox;

/// What bash would offer for the last word of a line.
fn offered(sandbox: &Sandbox, line: &str) -> Option<Vec<String>> {
    let words: Vec<&str> = line.split(' ').collect();
    let (last, before) = (words[words.len() - 1], words[words.len() - 2]);
    let script = format!(
        "source completions.bash; COMP_WORDS=({}); COMP_CWORD={}; _zae__limiter zae-limiter '{last}' '{before}'; echo \"${{COMPREPLY[@]}}\"",
        words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" "),
        words.len() - 1,
    );
    let output = Command::new("bash")
        .args(["--norc", "-c", &script])
        .current_dir(sandbox.path(""))
        .output()
        .ok()?;
    assert!(output.status.success(), "{line}: {output:?}");
    Some(String::from_utf8_lossy(&output.stdout).split_whitespace().map(str::to_owned).collect())
}

#[test]
fn bash_completes_commands_and_options_at_every_position() {
    let sandbox = Sandbox::new();
    let (exit, script) = sandbox.raw("completions bash");
    assert_eq!(exit, 0);
    std::fs::write(sandbox.path("completions.bash"), &script).expect("a file");
    for (line, expected) in [
        ("zae-limiter ent", &["entity"][..]),
        ("zae-limiter entity set", &["set-limits"]),
        (
            "zae-limiter entity ",
            &["create", "show", "list", "set-limits", "reset", "clear-disabled"],
        ),
        ("zae-limiter namespace re", &["register", "recover"]),
        ("zae-limiter local up --fore", &["--foreground"]),
        ("zae-limiter resource set-defaults --re", &["--remove", "--region"]),
        ("zae-limiter acquire key-1 gpt-4 --must", &["--must-exist"]),
        ("zae-limiter usage list --window ", &["hourly", "daily", "monthly"]),
    ] {
        let Some(found) = offered(&sandbox, line) else {
            eprintln!("there is no bash here: completion is not tested");
            return;
        };
        let missing: Vec<_> =
            expected.iter().filter(|word| !found.iter().any(|found| found == *word)).collect();
        assert!(missing.is_empty(), "{line:?}: {missing:?} are not in {found:?}");
    }
    // A name that is not offered anywhere must not be looked up anywhere.
    let stored: Vec<&str> = script
        .lines()
        .filter_map(|line| line.trim().strip_suffix(')'))
        .filter(|name| name.contains("subcmd"))
        .collect();
    for looked_up in script.lines().filter_map(|line| line.trim().strip_prefix("cmd=\"")) {
        let name = looked_up.trim_end_matches('"');
        assert!(
            !name.contains("subcmd") || stored.contains(&name),
            "{name} is looked up and not there"
        );
    }
}
