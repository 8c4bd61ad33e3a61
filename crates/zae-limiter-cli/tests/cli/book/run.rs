//! Lines of the book, run: those of the guide on a file, those of the operator on the engine.

use super::reader::{Chapter, chapters, commands_of};
use crate::support::Sandbox;

/// Lines of our program in a page, in order.
fn lines_of(page: &Chapter) -> Vec<Vec<String>> {
    page.shell_lines().iter().flat_map(|line| commands_of(line)).collect()
}

/// Runs a line; what it said unless it ended well. A refusal is an answer, and so is a difference.
fn fault(sandbox: &Sandbox, words: &[String]) -> Option<String> {
    let mut words = words.to_vec();
    // Nobody is there to be asked.
    if words.iter().any(|word| word.starts_with("delete") || word == "reset") {
        words.push("--yes".to_owned());
    }
    let output = sandbox.command(&words).output().expect("it starts");
    let is_fine = matches!(output.status.code(), Some(0 | 3 | 6));
    (!is_fine).then(|| format!("{}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr)))
}

#[test]
fn lines_of_the_guide_run_on_a_file() {
    let wrong = ["explain".to_owned(), "key-1".to_owned()];
    assert!(fault(&Sandbox::with_store(), &wrong).is_some(), "a line that cannot run");
    let mut count = 0;
    for page in chapters().iter().filter(|page| page.path.starts_with("guide/")) {
        let sandbox = Sandbox::with_store();
        if let Some(manifest) = page.file("yaml") {
            std::fs::write(sandbox.path("limits.yaml"), manifest).expect("a file");
        }
        // A stack is not a file.
        let is_for_a_stack = |words: &&Vec<String>| {
            words.iter().any(|word| word == "--name" || word.starts_with("dynamodb:"))
        };
        for words in lines_of(page).iter().filter(|words| !is_for_a_stack(words)) {
            count += 1;
            let fault = fault(&sandbox, words);
            assert!(fault.is_none(), "{}: {}", page.path, fault.unwrap_or_default());
        }
    }
    assert!(count > 12, "{count} lines");
}

/// Commands that a table alone answers. The others make or change stacks, or never end.
#[cfg(feature = "dynamodb")]
const ON_A_TABLE: [&str; 12] = [
    "acquire",
    "audit",
    "available",
    "check",
    "entity",
    "explain",
    "namespace",
    "resource",
    "status",
    "system",
    "usage",
    "version",
];

#[cfg(feature = "dynamodb")]
#[test]
fn lines_of_the_operator_run_on_the_engine() {
    struct Stopping(Sandbox);
    impl Drop for Stopping {
        fn drop(&mut self) {
            self.0.raw("local down");
        }
    }
    let sandbox = Sandbox::new();
    let data = sandbox.path("data").display().to_string();
    let engine = zae_limiter_testkit::engine::binary().display().to_string();
    let sandbox = sandbox
        .variable("XDG_DATA_HOME", &data)
        .variable("ZAEL_LOCAL_ENGINE", &engine)
        .variable("ZAEL_STORE", "");
    let sandbox = Stopping(sandbox);
    let ready = [
        "local up --port 0 --name my-app",
        "namespace register tenant-a --name my-app",
        "system set-defaults -l rpm:60/min --name my-app",
        "system set-defaults -l rpm:60/min --name my-app --namespace tenant-a",
        "entity create org-1 --name my-app",
    ];
    for line in ready {
        assert_eq!(sandbox.0.raw(line).0, 0, "{line}");
    }
    let is_operators = |page: &&Chapter| {
        page.path.starts_with("operator/")
            || ["versions.md", "deploy.md"].contains(&page.path.as_str())
    };
    let mut count = 0;
    for page in chapters().iter().filter(is_operators) {
        for words in lines_of(page) {
            let place =
                words.windows(2).position(|pair| pair[0] == "--name" && pair[1] == "my-app");
            let mut rest = words.clone();
            if let Some(place) = place {
                rest.drain(place..place + 2);
            }
            let elsewhere = rest.iter().any(|word| word == "--region");
            let command = rest.iter().find(|word| ON_A_TABLE.contains(&word.as_str()));
            if place.is_some()
                && command.is_some()
                && !elsewhere
                && !rest.contains(&"deploy".into())
            {
                count += 1;
                let fault = fault(&sandbox.0, &words);
                assert!(fault.is_none(), "{}: {}", page.path, fault.unwrap_or_default());
            }
        }
    }
    assert!(count > 8, "{count} lines");
}
