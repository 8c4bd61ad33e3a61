//! Reports in files.

use crate::support::Sandbox;

#[test]
fn a_report_that_cannot_be_written_is_found_before_the_run() {
    let sandbox = Sandbox::with_store();
    let name = "x".repeat(300);
    let said = sandbox.run(&format!("loadtest run --duration 60s --html {name}"));
    assert!(said.starts_with("exit 2") && said.contains("hint: name a file that can"), "{said}");
    std::fs::write(sandbox.path("old.html"), "kept").expect("a file");
    let said = sandbox.run(&format!("loadtest run --html old.html --json-file {name}"));
    assert!(said.starts_with("exit 2"), "{said}");
    assert_eq!(std::fs::read_to_string(sandbox.path("old.html")).expect("a file"), "kept");
}
