//! Stacks on AWS: `cfn-template`.

use serde_json::Value;

use crate::support::Sandbox;

#[test]
fn the_template_is_printed_as_it_is() {
    let sandbox = Sandbox::new();
    let (exit, printed) = sandbox.raw("cfn-template");
    assert_eq!(exit, 0);
    assert!(printed.starts_with("AWSTemplateFormatVersion: '2010-09-09'\n"));
    assert!(printed.contains("\n  RateLimitsTable:\n") && printed.ends_with('\n'));
    let (exit, json) = sandbox.raw("cfn-template --output json");
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((exit, json["template"].as_str()), (0, Some(&*printed)));
    assert!(!sandbox.path("limits.db").exists());
}

#[test]
fn the_template_is_written_to_a_file() {
    let sandbox = Sandbox::new();
    let (_, printed) = sandbox.raw("cfn-template");
    let path = sandbox.path("template.yaml");
    let words = ["cfn-template", "-o", path.to_str().expect("a path")];
    let shown = sandbox.run_words(&words);
    assert!(shown.starts_with("exit 0\n--- stdout\nwrote "), "{shown}");
    assert_eq!(std::fs::read_to_string(&path).expect("the file"), printed);
    let nowhere = sandbox.path("missing/template.yaml");
    let shown = sandbox.run_words(&["cfn-template", "-o", nowhere.to_str().expect("a path")]);
    assert!(shown.starts_with("exit 1\n") && shown.contains("could not be written"), "{shown}");
}
