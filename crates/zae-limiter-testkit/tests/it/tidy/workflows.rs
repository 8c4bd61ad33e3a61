//! House rules about the workflows: every stage of `.ci/run` is run by one that nobody has to
//! start, and none runs a stage that there is not.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use super::{enforce, root};

/// The stages that a workflow names: behind `.ci/run`, or in the list of a matrix.
fn named(workflow: &str) -> BTreeSet<&str> {
    let mut named = BTreeSet::new();
    for line in workflow.lines().filter(|line| !line.trim_start().starts_with('#')) {
        if let Some((_, stages)) = line.split_once(".ci/run ") {
            named.extend(stages.split_whitespace().filter(|word| !word.starts_with('"')));
        }
        if let Some((_, stages)) = line.split_once("stage: [") {
            named.extend(stages.trim_end_matches(']').split(", "));
        }
    }
    named
}

/// Stages that no workflow runs, and what is run and is no stage.
fn offenders(stages: &str, workflows: &[String]) -> Vec<String> {
    let stages: BTreeSet<&str> = stages.lines().collect();
    let run: BTreeSet<&str> = workflows.iter().flat_map(|workflow| named(workflow)).collect();
    let forgotten = stages.difference(&run).map(|stage| format!("{stage} is never run"));
    let unknown = run.difference(&stages).map(|stage| format!("{stage} is no stage"));
    forgotten.chain(unknown).collect()
}

#[test]
fn every_stage_is_run_by_a_workflow() {
    let workflows = [
        "# .ci/run book\n      - run: .ci/run fmt deny\n",
        "        stage: [seeds, deploi]\n      - run: .ci/run \"$STAGE\"\n",
    ]
    .map(str::to_owned);
    assert_eq!(
        offenders("fmt\ndeny\nbook\nseeds\n", &workflows),
        ["book is never run", "deploi is no stage"]
    );
    let told = Command::new(root().join(".ci/run")).arg("--list").output().expect("bash");
    let stages = String::from_utf8(told.stdout).expect("UTF-8");
    assert!(stages.lines().count() > 10, "{stages}");
    let workflow = |name: &str| {
        fs::read_to_string(root().join(".github/workflows").join(name)).expect("a workflow")
    };
    let workflows = ["pr.yml", "nightly.yml"].map(workflow);
    enforce("stages of .ci/run in pr.yml and nightly.yml", offenders(&stages, &workflows));
}
