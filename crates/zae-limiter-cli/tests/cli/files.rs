//! `limits plan`, `apply`, `diff`, `export`, `schema`: limits as files.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};

use insta::assert_snapshot;
use zae_limiter::ManagedChange;

use crate::support::Sandbox;

const FILE: &str = "\
namespace: default
system:
  on_unavailable: allow
  limits: {rpm: 60/day}
resources:
  gpt-4:
    limits: {rpm: 30/day, tpm: '1000/day:2000'}
  old: {disabled: true}
entities:
  org: {name: The Org, limits: {rpm: 500/day}}
  key-1:
    parent: org
    cascade: true
    resources:
      gpt-4: {limits: {rpm: 5/day}}
";

const CHANGED: &str = "\
namespace: default
system:
  limits: {rpm: 60/day}
resources:
  gpt-4:
    limits: {rpm: 20/day, tpm: '1000/day:2000'}
entities:
  org: {name: The Organisation, limits: {rpm: 500/day}}
";

fn sandbox() -> Sandbox {
    let sandbox = Sandbox::with_store();
    std::fs::write(sandbox.path("limits.yaml"), FILE).expect("a file");
    std::fs::write(sandbox.path("changed.yaml"), CHANGED).expect("a file");
    sandbox
}

#[test]
fn a_file_is_planned_applied_and_then_no_difference() {
    let sandbox = sandbox();
    assert_snapshot!(sandbox.run("limits plan -f limits.yaml"), @r#"
    exit 0
    --- stdout
    + system: rpm:60/day on_unavailable allow
        buckets that stronger levels do not decide follow with their next call; a limit that a bucket did not have starts full
    + resource gpt-4: rpm:30/day tpm:1000/day:2000
        buckets that stronger levels do not decide follow with their next call; a limit that a bucket did not have starts full
    + resource old flag: disabled
        every call is refused; balances are kept
    + entity key-1: name "key-1", parent org, cascade
        its calls also take from its parent from now on
    + entity key-1 on gpt-4: rpm:5/day
        buckets that stronger levels do not decide follow with their next call; a limit that a bucket did not have starts full
    + entity org: rpm:500/day
        buckets that stronger levels do not decide follow with their next call; a limit that a bucket did not have starts full
    + entity org: name "The Org"
        no bucket changes
    7 to add, 0 to change, 0 to remove, 0 as in the file
    "#);
    assert_snapshot!(sandbox.run("limits apply -f limits.yaml --reason OPS-7 --quiet"), @r#"
    exit 0
    --- stdout
    + system: rpm:60/day on_unavailable allow
        buckets that stronger levels do not decide follow with their next call; a limit that a bucket did not have starts full
    + resource gpt-4: rpm:30/day tpm:1000/day:2000
        buckets that stronger levels do not decide follow with their next call; a limit that a bucket did not have starts full
    + resource old flag: disabled
        every call is refused; balances are kept
    + entity key-1: name "key-1", parent org, cascade
        its calls also take from its parent from now on
    + entity key-1 on gpt-4: rpm:5/day
        buckets that stronger levels do not decide follow with their next call; a limit that a bucket did not have starts full
    + entity org: rpm:500/day
        buckets that stronger levels do not decide follow with their next call; a limit that a bucket did not have starts full
    + entity org: name "The Org"
        no bucket changes
    7 added, 0 changed, 0 removed, 0 as in the file
    "#);
    assert_snapshot!(sandbox.run("limits plan -f limits.yaml"), @"
    exit 0
    --- stdout
    0 to add, 0 to change, 0 to remove, 7 as in the file
    ");
    assert_snapshot!(sandbox.run("limits diff -f limits.yaml"), @"
    exit 0
    --- stdout
    no difference
    ");
    assert_snapshot!(sandbox.run("limits export"), @r#"
    exit 0
    --- stdout
    namespace: default
    system:
      on_unavailable: allow
      limits:
        rpm: {capacity: 60, refill_amount: 60, refill_period: 86400}
    resources:
      gpt-4:
        limits:
          rpm: {capacity: 30, refill_amount: 30, refill_period: 86400}
          tpm: {capacity: 2000, refill_amount: 1000, refill_period: 86400}
      old:
        disabled: true
    entities:
      key-1:
        name: "key-1"
        parent: org
        cascade: true
        resources:
          gpt-4:
            limits:
              rpm: {capacity: 5, refill_amount: 5, refill_period: 86400}
      org:
        name: "The Org"
        cascade: false
        resources:
          _default_:
            limits:
              rpm: {capacity: 500, refill_amount: 500, refill_period: 86400}
    "#);
    let (_, json) = sandbox.raw("audit list --max 1 --output json");
    assert!(json.contains("\"reason\":\"OPS-7\"") && json.contains("\"limits_applied\""), "{json}");
}

#[test]
fn changes_and_removals_are_shown_with_what_they_do() {
    let sandbox = sandbox();
    sandbox.run("limits apply -f limits.yaml");
    assert_snapshot!(sandbox.run("limits plan -f changed.yaml"), @r#"
    exit 0
    --- stdout
    ~ resource gpt-4: rpm:30/day tpm:1000/day:2000 -> rpm:20/day tpm:1000/day:2000
        rpm: a balance above 20 is cut
    ~ entity org: name "The Org" -> name "The Organisation"
        no bucket changes
    0 to add, 2 to change, 0 to remove, 2 as in the file
    --- stderr
    note: no longer in the file, and kept without --prune: resource old, entity key-1
    "#);
    assert_snapshot!(sandbox.run("limits diff -f changed.yaml"), @r#"
    exit 6
    --- stdout
    ~ resource gpt-4
        store: rpm:30/day tpm:1000/day:2000
        file:  rpm:20/day tpm:1000/day:2000
    - resource old flag
        store: disabled
    - entity key-1
        store: name "key-1", parent org, cascade
        with it - entity key-1 on gpt-4: rpm:5/day
    ~ entity org
        store: name "The Org"
        file:  name "The Organisation"
    "#);
    assert_snapshot!(sandbox.run("limits apply -f changed.yaml --prune --dry-run"), @r#"
    exit 0
    --- stdout
    ~ resource gpt-4: rpm:30/day tpm:1000/day:2000 -> rpm:20/day tpm:1000/day:2000
        rpm: a balance above 20 is cut
    - resource old flag: disabled
        weaker levels decide
    - entity key-1: name "key-1", parent org, cascade
        with it - entity key-1 on gpt-4: rpm:5/day
        its buckets, limits and flags go with it, debts too
    ~ entity org: name "The Org" -> name "The Organisation"
        no bucket changes
    0 to add, 2 to change, 2 to remove, 2 as in the file
    --- stderr
    note: nothing was changed: this was a dry run
    "#);
    assert_snapshot!(sandbox.run("limits apply -f changed.yaml --prune"), @r#"
    exit 0
    --- stdout
    ~ resource gpt-4: rpm:30/day tpm:1000/day:2000 -> rpm:20/day tpm:1000/day:2000
        rpm: a balance above 20 is cut
    - resource old flag: disabled
        weaker levels decide
    - entity key-1: name "key-1", parent org, cascade
        with it - entity key-1 on gpt-4: rpm:5/day
        its buckets, limits and flags go with it, debts too
    ~ entity org: name "The Org" -> name "The Organisation"
        no bucket changes
    0 added, 2 changed, 2 removed, 2 as in the file
    --- stderr
    note: running processes see this within their config-cache TTL (60s unless set otherwise)
    "#);
    assert_eq!(sandbox.raw("limits diff -f changed.yaml"), (0, "no difference\n".into()));
}

#[test]
fn programs_get_the_same_as_json() {
    let sandbox = sandbox();
    sandbox.run("limits apply -f limits.yaml");
    assert_snapshot!(sandbox.run("limits plan -f changed.yaml --prune --output json"), @r#"
    exit 0
    --- stdout
    {"namespace":"default","registers":false,"resumes":false,"held":null,"added":0,"changed":2,"removed":2,"unchanged":2,"changes":[{"change":"change","what":"limits","level":"resource","resource":"gpt-4","before":"rpm:30/day tpm:1000/day:2000","after":"rpm:20/day tpm:1000/day:2000","effect":"rpm: a balance above 20 is cut"},{"change":"remove","what":"flag","level":"resource","resource":"old","before":"disabled","after":null,"effect":"weaker levels decide"},{"change":"remove","what":"entity","level":"entity_default","entity_id":"key-1","before":"name \"key-1\", parent org, cascade","after":null,"effect":"its buckets, limits and flags go with it, debts too","along":[{"level":"entity","resource":"gpt-4","limits":["rpm:5/day"],"disabled":null}]},{"change":"change","what":"entity","level":"entity_default","entity_id":"org","before":"name \"The Org\"","after":"name \"The Organisation\"","effect":"no bucket changes"}],"kept":[]}
    "#);
    assert_snapshot!(sandbox.run("limits export --output json"), @r#"
    exit 0
    --- stdout
    {"entities":{"key-1":{"cascade":true,"name":"key-1","parent":"org","resources":{"gpt-4":{"limits":{"rpm":{"capacity":5,"refill_amount":5,"refill_period":86400}}}}},"org":{"cascade":false,"name":"The Org","resources":{"_default_":{"limits":{"rpm":{"capacity":500,"refill_amount":500,"refill_period":86400}}}}}},"namespace":"default","resources":{"gpt-4":{"limits":{"rpm":{"capacity":30,"refill_amount":30,"refill_period":86400},"tpm":{"capacity":2000,"refill_amount":1000,"refill_period":86400}}},"old":{"disabled":true}},"system":{"limits":{"rpm":{"capacity":60,"refill_amount":60,"refill_period":86400}},"on_unavailable":"allow"}}
    "#);
}

#[test]
fn a_wrong_file_is_refused_whole() {
    let sandbox = sandbox();
    let wrong = "namespace: default\nsystem: {limits: {rpm: 1/day}}\nresources:\n  \
                 a: {limits: {rpm: {capacity: 1, soft: true}}}\n  b: {disabled: bypass}\n";
    std::fs::write(sandbox.path("wrong.yaml"), wrong).expect("a file");
    assert_snapshot!(sandbox.run("limits apply -f wrong.yaml"), @"
    exit 1
    --- stderr
    error: wrong.yaml is refused: 2 mistakes; nothing was changed
      caused by: line 4: resources.a.limits.rpm.soft: this kind of limit is not supported: only token buckets that refill steadily are
      caused by: line 5: resources.b.disabled: bypass is not supported; use true, false, or leave it out
    ");
    assert_snapshot!(sandbox.run("limits apply -f wrong.yaml --output json"), @r#"
    exit 1
    --- stderr
    {"error":{"kind":"invalid","message":"wrong.yaml is refused: 2 mistakes; nothing was changed","causes":["line 4: resources.a.limits.rpm.soft: this kind of limit is not supported: only token buckets that refill steadily are","line 5: resources.b.disabled: bypass is not supported; use true, false, or leave it out"]}}
    "#);
    sandbox.run("limits apply -f limits.yaml");
    let moved = "namespace: default\nresources: {new: {limits: {rpm: 1/day}}}\nentities:\n  \
                 key-1: {cascade: true}\n";
    std::fs::write(sandbox.path("moved.yaml"), moved).expect("a file");
    assert_snapshot!(sandbox.run("limits apply -f moved.yaml"), @"
    exit 1
    --- stderr
    error: moved.yaml does not fit the store: 1 mistake; nothing was changed
      caused by: line 4: entities.key-1: key-1 has parent org and cascade on, and the file says no parent and cascade on; neither can be changed: delete the entity first, or describe it as it is
    ");
    assert!(sandbox.run("resource get-defaults new").starts_with("exit 1\n"), "nothing written");
    assert_snapshot!(sandbox.run("limits plan -f nowhere.yaml"), @"
    exit 2
    --- stderr
    error: nowhere.yaml cannot be read: No such file or directory (os error 2)
    ");
    assert_snapshot!(sandbox.run("-N other limits plan -f limits.yaml"), @"
    exit 2
    --- stderr
    error: limits.yaml is for the namespace default, and --namespace or ZAEL_NAMESPACE names other
    hint: the file decides: leave the namespace out, or change the file
    ");
}

#[test]
fn a_namespace_that_is_missing_is_registered() {
    let sandbox = sandbox();
    let text = FILE.replace("namespace: default", "namespace: tenant-alpha");
    std::fs::write(sandbox.path("tenant.yaml"), text).expect("a file");
    let shown = sandbox.run("limits plan -f tenant.yaml");
    assert!(shown.starts_with("exit 0\n--- stdout\n+ namespace tenant-alpha\n"), "{shown}");
    assert_eq!(sandbox.raw("limits diff -f tenant.yaml --quiet").0, 6);
    assert!(sandbox.run("namespace show tenant-alpha").starts_with("exit 1\n"), "only looked at");
    assert!(sandbox.run("limits apply -f tenant.yaml").starts_with("exit 0\n"));
    assert!(sandbox.run("-N tenant-alpha limits diff -f tenant.yaml").starts_with("exit 0\n"));
    let shown = sandbox.run("limits export");
    assert_eq!(shown, "exit 0\n--- stdout\nnamespace: default\n", "the other stays empty");
}

/// As `limits export | limits apply -f -` between two stores.
#[test]
fn an_export_goes_through_a_pipe() {
    let (from, to) = (sandbox(), Sandbox::new());
    from.run("limits apply -f limits.yaml");
    let (_, exported) = from.raw("limits export");
    assert_eq!(piped(&to, &exported), 0);
    assert_eq!(to.raw("limits export"), (0, exported.clone()));
    let (_, as_json) = from.raw("limits export --output json");
    assert_eq!(piped(&to, &as_json), 0);
    assert_eq!(to.raw("limits export").1, exported);
    assert_eq!(piped(&to, "namespace: [\n"), 1);
}

/// Applies what comes through a pipe; the exit code.
pub(crate) fn piped(sandbox: &Sandbox, text: &str) -> i32 {
    let mut command = sandbox.command(&["limits", "apply", "-f", "-", "--quiet"]);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().expect("the binary starts");
    child.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("it reads");
    child.wait().expect("it ends").code().expect("an exit code")
}

/// Entities in a tree of organisations, with limits of their own.
pub(crate) fn many(entities: usize) -> String {
    let mut text =
        "namespace: default\nresources:\n  gpt-4: {limits: {rpm: 100/day}}\nentities:\n".to_owned();
    for n in 0..entities {
        // Writing to a String cannot fail.
        let _ = match n % 100 {
            0 => writeln!(text, "  org-{n:05}: {{name: Org {n}, limits: {{rpm: 1000000/day}}}}"),
            _ => writeln!(
                text,
                "  key-{n:05}: {{parent: org-{:05}, cascade: true, resources: {{gpt-4: {{limits: \
                 {{rpm: {n}/day}}}}}}}}",
                n - n % 100
            ),
        };
    }
    text
}

/// Starts an apply and kills it when the store has this many entities; how many it then has.
pub(crate) fn killed(sandbox: &Sandbox, entities: usize) -> usize {
    let mut command = sandbox.command(&["limits", "apply", "-f", "many.yaml", "--quiet"]);
    let mut child =
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the binary starts");
    let count = || {
        let (_, exported) = sandbox.raw("limits export");
        exported.lines().filter(|line| line.starts_with("    cascade: ")).count()
    };
    for _ in 0..1_000 {
        if count() >= entities || child.try_wait().expect("a child").is_some() {
            break;
        }
    }
    // SIGKILL: nothing is tidied up.
    let _ = child.kill();
    let _ = child.wait();
    count()
}

#[test]
fn an_apply_of_5000_entities_goes_on_after_kill_9() {
    let (whole, cut) = (Sandbox::with_store(), Sandbox::with_store());
    for sandbox in [&whole, &cut] {
        std::fs::write(sandbox.path("many.yaml"), many(5_000)).expect("a file");
    }
    assert_eq!(whole.raw("limits apply -f many.yaml --quiet").0, 0);
    let (_, expected) = whole.raw("limits export");
    for at in [1, 1_500] {
        let there = killed(&cut, at);
        assert!(there < 5_000, "killed too late: {there}");
        let shown = cut.run("limits plan -f many.yaml --output json");
        assert!(shown.contains("\"resumes\":true"), "{}", &shown[..200]);
    }
    assert_eq!(cut.raw("limits apply -f many.yaml --quiet").0, 0);
    let (_, exported) = cut.raw("limits export");
    assert!(exported == expected, "the exports differ");
    let (exit, plan) = cut.raw("limits plan -f many.yaml --prune");
    let line = "0 to add, 0 to change, 0 to remove, 10001 as in the file\n";
    assert_eq!((exit, plan.as_str()), (0, line));
}

/// The store is compared once more when the apply before has ended; a pipe can be read only once.
#[test]
fn an_apply_from_a_pipe_waits_for_another_one() {
    let sandbox = Sandbox::with_store();
    let limiter = sandbox.limiter();
    let mark = r#"{"id":"1","who":"ops on another machine","since":0,"heard":0}"#;
    let first = |expected_version, text: String| {
        let change = ManagedChange { text, expected_version, details: Vec::new() };
        limiter.set_managed(0, &change).expect("a write")
    };
    let version = first(0, format!("limits 1 begun {mark}\n"));
    let mut command = sandbox.command(&["limits", "apply", "-f", "-"]);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary starts");
    child.stdin.take().expect("a pipe").write_all(FILE.as_bytes()).expect("it reads");
    let mut said = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    let watches = said.by_ref().map_while(Result::ok).any(|line| line.contains("watching for up"));
    assert!(watches, "it never watched");
    first(version, "limits 1 done\n".to_owned());
    let rest: Vec<String> = said.map_while(Result::ok).collect();
    assert!(child.wait().expect("an end").success(), "{rest:?}");
    std::fs::write(sandbox.path("limits.yaml"), FILE).expect("a file");
    assert_eq!(sandbox.raw("limits diff -f limits.yaml").0, 0);
}

#[cfg(unix)]
#[test]
fn an_apply_that_is_terminated_ends_the_changes_it_has_begun_and_leaves_no_mark() {
    let sandbox = Sandbox::with_store();
    std::fs::write(sandbox.path("many.yaml"), many(5_000)).expect("a file");
    let mut command = sandbox.command(&["limits", "apply", "-f", "many.yaml"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let is_begun = || sandbox.raw("limits export").1.contains("    cascade: ");
    assert!((0..1_000).any(|_| is_begun()), "it never began");
    let sent = Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
    assert!(sent.expect("kill is there").success());
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(1), &b""[..]), "{said}");
    assert!(said.contains("error: stopped after ") && said.contains(" changes"), "{said}");
    assert!(said.contains("goes on from there"), "{said}");
    let plan = sandbox.run("limits plan -f many.yaml --output json");
    assert!(plan.contains("\"resumes\":true"), "{}", &plan[..200]);
    // Nobody is watched for.
    let again = sandbox.run("limits apply -f many.yaml");
    assert!(again.contains("exit 0") && !again.contains("watching"), "{again}");
}

/// All of it would be added; looking creates no file.
#[test]
fn a_store_file_that_is_not_there_has_nothing() {
    let sandbox = Sandbox::new();
    let file = "namespace: default\nresources: {a: {disabled: true}}\n";
    std::fs::write(sandbox.path("limits.yaml"), file).expect("a file");
    let tenant = file.replace("default", "tenant");
    std::fs::write(sandbox.path("tenant.yaml"), tenant).expect("a file");
    std::fs::write(sandbox.path("empty.yaml"), "namespace: default\n").expect("a file");
    let before = std::fs::read_dir(sandbox.path(".")).expect("a folder").count();
    assert_snapshot!(sandbox.run("limits plan -f limits.yaml"), @"
    exit 0
    --- stdout
    + resource a flag: disabled
        every call is refused; balances are kept
    1 to add, 0 to change, 0 to remove, 0 as in the file
    --- stderr
    note: there is no file [FOLDER]/limits.db; `limits apply` creates it
    ");
    assert_snapshot!(sandbox.run("limits diff -f tenant.yaml"), @"
    exit 6
    --- stdout
    + namespace tenant
    + resource a flag
        file:  disabled
    --- stderr
    note: there is no file [FOLDER]/limits.db; `limits apply` creates it
    ");
    assert!(sandbox.run("limits diff -f empty.yaml").starts_with("exit 0\n"));
    assert!(sandbox.run("limits apply -f limits.yaml --dry-run --prune").starts_with("exit 0\n"));
    let wrong = "namespace: default\nentities: {a: {name: A, parent: nobody}}\n";
    std::fs::write(sandbox.path("limits.yaml"), wrong).expect("a file");
    assert!(sandbox.run("limits plan -f limits.yaml").starts_with("exit 1\n"));
    let after = std::fs::read_dir(sandbox.path(".")).expect("a folder").count();
    assert_eq!(after, before, "nothing was created");
}

/// An apply that is at work, and one that comes in between with another file.
#[cfg(target_os = "linux")]
#[test]
fn an_apply_beside_one_at_work_is_refused() {
    let sandbox = sandbox();
    std::fs::write(sandbox.path("many.yaml"), many(2_000)).expect("a file");
    let mut command = sandbox.command(&["limits", "apply", "-f", "many.yaml", "--quiet"]);
    let mut first = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    let plan = || sandbox.raw("limits plan -f limits.yaml --output json").1;
    let shown = (0..1_000).map(|_| plan()).find(|shown| shown.contains("\"resumes\":true"));
    assert!(shown.expect("it begins").contains("\"runs\":true"));
    let refused = sandbox.run("limits apply -f limits.yaml --output json");
    assert!(first.try_wait().expect("a child").is_none(), "it ended too early for this test");
    for words in
        ["exit 1\n", "\"kind\":\"conflict\"", "at work: tester", "since [TIME]", "take-over"]
    {
        assert!(refused.contains(words), "{words}: {refused}");
    }
    assert!(first.wait().expect("an end").success());
    assert_eq!(sandbox.raw("limits diff -f many.yaml"), (0, "no difference\n".into()));
    assert_eq!(sandbox.raw("limits diff -f limits.yaml --quiet").0, 6, "nothing of it is stored");
}

/// The mark of an apply on another machine: nobody knows whether it is at work.
#[test]
fn an_apply_of_another_machine_is_taken_over_when_asked_to() {
    let sandbox = sandbox();
    let mark = "{\"id\":\"7\",\"who\":\"ops on build-7\",\"process\":\"boot pid:[1] 5 99\",\
                \"since\":1800000001000,\"heard\":1800000009000}";
    let text = format!("limits 1 begun {mark}\n- gone l\n");
    let change = zae_limiter::ManagedChange { text, expected_version: 0, details: Vec::new() };
    sandbox.limiter().set_managed(0, &change).expect("a mark");
    let shown = sandbox.run_words(&["limits", "plan", "-f", "limits.yaml", "--output", "json"]);
    assert!(
        shown.contains("\"who\":\"ops on build-7\"") && shown.contains("\"runs\":null"),
        "{shown}"
    );
    let shown = sandbox.run("limits apply -f limits.yaml --take-over");
    assert!(shown.starts_with("exit 0\n"), "{shown}");
    let note = "note: takes over from ops on build-7, who has begun at [TIME] and not ended\n";
    assert!(shown.contains(note), "{shown}");
    let shown = sandbox.run("limits plan -f limits.yaml --output json");
    assert!(shown.contains("\"resumes\":false,\"held\":null"), "{shown}");
}
