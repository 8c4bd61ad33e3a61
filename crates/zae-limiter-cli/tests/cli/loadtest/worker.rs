//! The program as Lambda starts it, with `_HANDLER=loadtest`.

use serde_json::json;
use zae_limiter_loadtest::Run;
use zae_limiter_loadtest::report::{Collector, paces};
use zae_limiter_loadtest::worker::{Answer, Source, Task};
use zae_limiter_testkit::aws::lambda::{Function, Said};
use zae_limiter_testkit::engine::Engine;

use super::*;

fn start(engine: &Engine, variables: &[(&str, &str)]) -> Function {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zae-limiter"));
    command.env_clear().envs([
        ("_HANDLER", "loadtest"),
        ("AWS_ENDPOINT_URL_DYNAMODB", engine.endpoint()),
        ("TABLE_NAME", "loaded"),
    ]);
    Function::start(command.envs(variables.iter().copied()))
}

fn tasks(users: u32, workers: u32) -> Vec<Task> {
    let sources = [Source::Builtin("simple".to_owned()), Source::Builtin("max-rps".to_owned())];
    let second = std::time::Duration::from_secs(1);
    Task::split(("default", &sources), (users, workers), second, None)
}

#[test]
fn what_workers_answer_adds_up_to_what_the_table_has() {
    let (engine, sandbox) = stacks::stack();
    // What the scenarios need is stored by who starts the run.
    json(&sandbox, "loadtest run SimpleUser MaxRpsUser -u 2 -d 1 --spawn-rate all");
    let before = used(&sandbox);
    let functions = [start(&engine, &[]), start(&engine, &[])];
    let mut collector = Collector::default();
    let mut names = Vec::new();
    for (function, task) in functions.iter().zip(tasks(3, 2)) {
        names = paces(&task.check().unwrap());
        let answer = function.invoke(&serde_json::to_value(&task).unwrap());
        let answer: Answer = serde_json::from_value(answer).unwrap();
        answer.intervals.into_iter().for_each(|it| collector.add(it));
    }
    let asked = Run { users: 3, workers: 2, duration_s: 1.0, ..Run::default() };
    let report = collector.report(asked, &names, 0);
    assert!(report.complete && report.total.errors == 0, "{:?}", report.total);
    assert!(report.scenarios.iter().all(|part| part.granted > 5), "{:?}", report.scenarios);
    assert_eq!(used(&sandbox) - before, report.total.granted, "each grant took a token");
    // A function serves one task after the other.
    let again = functions[0].invoke(&serde_json::to_value(&tasks(3, 2)[0]).unwrap());
    assert!(again["intervals"].as_array().is_some_and(|all| !all.is_empty()), "{again}");
}

/// Tokens that the users' buckets have counted.
fn used(sandbox: &Sandbox) -> u64 {
    (0..3)
        .map(|user| {
            let line = format!("entity buckets loadtest-user-{user}");
            let (exit, text) = sandbox.raw(&format!("{line} --output json"));
            if exit != 0 {
                return 0;
            }
            let buckets: Value = serde_json::from_str(&text).unwrap();
            let all = buckets["items"].as_array().cloned().unwrap_or_default();
            all.iter()
                .flat_map(|bucket| bucket["limits"].as_array().cloned().unwrap_or_default())
                .filter_map(|limit| limit["consumed_milli"].as_u64())
                .map(|milli| milli / 1_000)
                .sum()
        })
        .sum()
}

#[test]
fn a_task_that_cannot_be_done_is_an_error_of_that_invocation_only() {
    let (engine, sandbox) = stacks::stack();
    json(&sandbox, "loadtest run -u 1 -d 1");
    let function = start(&engine, &[]);
    let mut wrong = serde_json::to_value(&tasks(1, 1)[0]).unwrap();
    wrong["format"] = "other/9".into();
    for (task, why) in [
        (json!({}), "the task cannot be read"),
        (wrong, "push the workers again"),
        (
            {
                let mut task = serde_json::to_value(&tasks(1, 1)[0]).unwrap();
                task["namespace"] = "nobody".into();
                task
            },
            "nobody",
        ),
    ] {
        let Said::Error(told) = function.ask(&task) else { panic!("{why} is not told") };
        assert!(told["errorMessage"].as_str().unwrap().contains(why), "{told}");
    }
    let good = function.invoke(&serde_json::to_value(&tasks(1, 1)[0]).unwrap());
    assert!(good["intervals"].is_array(), "{good}");
}

#[test]
fn what_cannot_start_tells_lambda_why() {
    let engine = Engine::start();
    let function = start(&engine, &[("TABLE_NAME", "")]);
    let Said::InitError(told) = function.says() else { panic!("it is not told") };
    assert_eq!(told["errorType"], "LoadTest.CannotStart");
    assert_eq!(told["errorMessage"], "TABLE_NAME: is missing; it names the table that is loaded");
    let ended = function.wait();
    assert_eq!((ended.status.code(), ended.stdout.len()), (Some(1), 0), "{ended:?}");
}
