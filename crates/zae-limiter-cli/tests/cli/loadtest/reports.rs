//! Reports in files.

use crate::support::Sandbox;

/// Only the process that starts the others has a page.
#[test]
fn a_live_page_of_several_processes_has_one_port() {
    let sandbox = Sandbox::with_store();
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr();
    let port = port.expect("an address").port();
    let line = format!(
        "loadtest ui --port {port} --processes 2 -u 2 -d 1 --spawn-rate all --scenario max-rps \
         --output json"
    );
    let said = sandbox.run(&line);
    assert!(said.starts_with("exit 0") && !said.contains("in use"), "{said}");
}

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
