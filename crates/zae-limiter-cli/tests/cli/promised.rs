//! The command lines that users of the Python package know, as its documents print them: each works
//! here as printed, on a file and on a stack of the local engine, or says what it needs.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use zae_limiter_testkit::engine;

use crate::support::Sandbox;

/// What each line ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Somebody must be reached who is not there.
    NeedsAws,
    Works,
    /// Works for minutes; ends with a report when it is told to end.
    GoesOn,
    /// The local engine makes no stacks; `.ci/deploy` runs these on an emulator that does.
    NeedsStack,
}
use End::{GoesOn, NeedsAws, NeedsStack, Works};

/// The commands on data, in the order in which they are printed. `<namespace-id>` is that of
/// tenant-alpha.
const ON_DATA: &[&str] = &[
    "system set-defaults -l tpm:100000 -l rpm:1000 --on-unavailable allow",
    "resource set-defaults gpt-4 -l tpm:50000 -l rpm:500",
    "entity set-limits user-123 --resource gpt-4 -l rpm:1000",
    "system get-defaults",
    "resource get-defaults gpt-4",
    "entity get-limits user-123 --resource gpt-4",
    "resource list",
    "entity list-resources",
    "entity list --with-custom-limits gpt-4",
    "namespace register tenant-alpha tenant-beta",
    "namespace list",
    "namespace show tenant-alpha",
    "entity set-limits user-123 --namespace tenant-alpha -l rpm:1000",
    "audit list --namespace tenant-alpha",
    "usage list --namespace tenant-alpha",
    "system set-defaults --namespace tenant-alpha -l rpm:5000",
    "namespace delete tenant-alpha",
    "namespace recover <namespace-id>",
    "namespace delete tenant-alpha",
    "namespace orphans",
    "namespace purge <namespace-id> --yes",
];

/// The commands around stacks, in the order in which they are printed.
const ON_STACKS: &[(&str, End)] = &[
    ("deploy --name limiter --region us-east-1", NeedsAws),
    ("deploy --name my-app --endpoint-url http://localhost:4566 --region us-east-1", NeedsAws),
    ("deploy --name my-app --no-aggregator", Works),
    (
        "deploy --name my-app --permission-boundary arn:aws:iam::aws:policy/PowerUserAccess --role-name-format pb-{}-PowerUser",
        Works,
    ),
    // The flags that are only named beside these lines, each in the form that it takes.
    ("deploy --name my-app --lambda-timeout 30 --lambda-memory 512 --log-retention-days 7", Works),
    ("deploy --name my-app --alarm-sns-topic arn:aws:sns:us-east-1:123456789012:ops", Works),
    ("deploy --name my-app --no-alarms --no-audit-archival --enable-tracing", Works),
    ("deploy --name my-app --create-iam-roles --policy-name-format pb-{}-PowerUser", Works),
    ("deploy --name my-app --iam", Works),
    (
        "deploy --name my-app --no-iam --aggregator-role-arn arn:aws:iam::123456789012:role/mine",
        Works,
    ),
    ("status --name my-app --region us-east-1", Works),
    ("cfn-template", Works),
    ("lambda-export --output lambda.zip", Works),
    ("list", NeedsAws),
    ("check --name my-app", Works),
    ("upgrade --name my-app", Works),
    ("local up", Works),
    ("local up --name my-app", Works),
    ("local status", Works),
    ("loadtest deploy -n my-app -C examples/locust", NeedsStack),
    ("loadtest push -n my-app -C examples/locust", NeedsStack),
    ("loadtest ui -n my-app -f locustfiles/simple.py", GoesOn),
    ("loadtest run -n my-app -f locustfiles/max_rps.py --users 20 --duration 60", GoesOn),
    ("loadtest run -n my-app -f locustfiles/max_rps.py MaxRpsCascadeUser", GoesOn),
    ("loadtest run -n my-app -f locustfiles/max_rps.py --workers 10 --users 100", NeedsStack),
    ("loadtest tune -n my-app -f locustfiles/max_rps.py", GoesOn),
    ("loadtest tune -n my-app -f locustfiles/max_rps.py MaxRpsCascadeUser", GoesOn),
    ("loadtest list", NeedsAws),
    ("loadtest delete -n my-app --yes", NeedsStack),
];

/// Runs every line; fails with all that do not end as they should.
#[track_caller]
fn all(sandbox: &Sandbox, lines: &[(&str, End)]) {
    let (mut id, mut wrong) = (String::new(), String::new());
    for (line, end) in lines {
        let shown = match end {
            GoesOn => told_to_end(sandbox, line),
            _ => sandbox.run(&line.replace("<namespace-id>", &id)),
        };
        let as_it_should = match end {
            Works => shown.starts_with("exit 0\n"),
            GoesOn => shown.starts_with("exit 0\n") && shown.contains("stopped: "),
            NeedsAws => {
                const WHY: [&str; 2] = [": AWS cannot be reached (", "no AWS credentials found"];
                shown.starts_with("exit 1\n") && WHY.iter().any(|why| shown.contains(why))
            }
            NeedsStack => shown.starts_with("exit 1\n") && shown.contains(" has no CloudFormation"),
        };
        if !as_it_should {
            wrong += &format!("\n{line}\n{shown}");
        }
        if *line == "namespace show tenant-alpha" {
            let word = |line: &str| line.strip_prefix("id ").map(|id| id.trim().to_owned());
            id = shown.lines().find_map(word).expect("an id");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// Runs a line until it says its first figures, tells it to end, and shows what came out.
fn told_to_end(sandbox: &Sandbox, line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let mut started = sandbox.command(&words);
    let mut started =
        started.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
    let stderr = started.stderr.take().expect("a pipe");
    let mut talk = BufReader::new(stderr).lines().map(|line| line.expect("UTF-8"));
    let mut said: Vec<String> = Vec::new();
    for line in talk.by_ref() {
        let has_figures = line.contains(" users, ");
        said.push(line);
        if has_figures {
            break;
        }
    }
    let ended = Command::new("kill").arg(started.id().to_string()).status();
    // A line that has ended by itself shows it by its exit code.
    let _ = ended.expect("kill runs");
    said.extend(talk);
    let mut output = started.wait_with_output().expect("it ends");
    output.stderr = said.iter().flat_map(|line| format!("{line}\n").into_bytes()).collect();
    sandbox.shown(&output)
}

fn data() -> Vec<(&'static str, End)> {
    ON_DATA.iter().map(|line| (*line, Works)).collect()
}

#[test]
fn commands_on_data_work_as_printed_on_a_file() {
    all(&Sandbox::new(), &data());
}

/// The engine is the only thing that knows the stack: no endpoint and no credentials are named
/// anywhere.
#[test]
fn commands_work_as_printed_on_a_local_stack() {
    let sandbox = Sandbox::new();
    let data_home = sandbox.path("data");
    let sandbox = sandbox
        .variable("ZAEL_STORE", "")
        .variable("AWS_EC2_METADATA_DISABLED", "true")
        .variable("XDG_DATA_HOME", &data_home.display().to_string())
        .variable("ZAEL_LOCAL_ENGINE", &engine::binary().display().to_string());
    // Where it ran before, it runs again: so the usual port, which somebody may use, is not needed
    // here.
    let free = std::net::TcpListener::bind("127.0.0.1:0")
        .expect("a port")
        .local_addr()
        .expect("an address")
        .port();
    let folder = data_home.join("zae-limiter").join("local");
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join("last-port"), free.to_string()).expect("a file");

    let (before, after): (Vec<_>, Vec<_>) =
        ON_STACKS.iter().partition(|(line, _)| line.starts_with("local "));
    all(&sandbox, &before);
    let status = sandbox.run("local status");
    assert!(
        status.contains(&format!("http://127.0.0.1:{free}\n")),
        "on the port of the engine before, {free}: {status}"
    );
    let mut follower = sandbox.command(&["local", "logs", "--follow"]);
    let follower =
        follower.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
    all(&sandbox, &after);
    // Printed before others that need the stack.
    let last = [("delete --name my-app --yes", Works), ("local up --name my-app", Works)];
    all(&sandbox, &last);
    let sandbox = sandbox.variable("ZAEL_STACK", "my-app");
    all(&sandbox, &data());
    all(&sandbox, &[("local down", Works)]);
    let followed = follower.wait_with_output().expect("it ends with the engine");
    assert!(
        followed.status.success()
            && String::from_utf8_lossy(&followed.stdout).contains("listening on"),
        "{followed:?}"
    );
}

#[test]
fn what_is_not_built_yet_says_what_is_there_instead() {
    let sandbox = Sandbox::new();
    insta::assert_snapshot!(sandbox.run("entity set-parent key-1 org-1"), @"
    exit 2
    --- stderr
    error: `zae-limiter entity set-parent` is not built yet
    hint: an entity keeps its parent and its cascade; delete it and create it again to change them
    ");
    insta::assert_snapshot!(sandbox.run("entity update key-1 --parent org-1"), @"
    exit 2
    --- stderr
    error: `zae-limiter entity set-parent` is not built yet
    hint: an entity keeps its parent and its cascade; delete it and create it again to change them
    ");
    assert!(!sandbox.path("limits.db").exists());
}
