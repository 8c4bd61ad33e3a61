//! `migrate`: a namespace moves to another store.

use std::process::Stdio;
use std::time::Duration;

use insta::assert_snapshot;
use serde_json::Value;
use zae_limiter::blocking::RateLimiter;
use zae_limiter::sqlite::{SqliteOptions, SqliteStore};
use zae_limiter::{CapacityScope, Clock as _, Level, ManualClock, NewEntity, Request, SystemClock};

use crate::support::Sandbox;

/// Opens the file of a sandbox as a process that works `hours` ago.
fn hours_ago(sandbox: &Sandbox, hours: u64) -> RateLimiter {
    let back_ms = i64::try_from(hours).expect("few hours") * 3_600_000;
    let clock = ManualClock::new(SystemClock::new().now().plus_ms(-back_ms));
    let store = SqliteStore::open(sandbox.path("limits.db")).expect("the file opens");
    let builder = zae_limiter::RateLimiter::builder(store).clock(clock).principal("ops");
    RateLimiter::build(builder).expect("the limiter is built")
}

/// A hierarchy with limits at several levels, a flag, a debt, and usage of two hours.
pub(crate) fn worked() -> Sandbox {
    let sandbox = Sandbox::with_store();
    let early = hours_ago(&sandbox, 30);
    let limits =
        ["rpm:100/day".parse().expect("a limit"), "tpm:1000/day".parse().expect("a limit")];
    early.set_limits(&Level::System, limits).expect("limits are stored");
    let own = ["rpm:50/day".parse().expect("a limit")];
    early.set_limits(&Level::Entity("key-2".parse().expect("an id")), own).expect("stored");
    early.create_entity(NewEntity::new("org").name("The Org")).expect("an entity");
    early.create_entity(NewEntity::new("key-1").parent("org").cascade()).expect("an entity");
    early.disable(&Level::Resource("old".parse().expect("a name"))).expect("disabled");
    take(&early, "key-1", 4);
    early.close();
    let late = hours_ago(&sandbox, 2);
    take(&late, "key-1", 2);
    let owing = Request::new("key-1", "gpt-4").take("tpm", 1);
    let lease = late.acquire(owing).expect("a grant");
    lease.record("tpm", 3_000).expect("declared");
    lease.commit().expect("committed");
    take(&late, "key-2", 9);
    take(&late, "nobody", 1);
    late.close();
    sandbox
}

fn take(limiter: &RateLimiter, entity: &str, tokens: u64) {
    let request = Request::new(entity, "gpt-4").take("rpm", tokens);
    limiter.acquire(request).expect("a grant").commit().expect("committed");
}

/// What a store shows of a namespace, as far as every store shows it: what a bucket has consumed
/// since it exists begins anew on DynamoDB.
pub(crate) struct Shown {
    text: String,
    balances_milli: Vec<i64>,
}

impl Shown {
    pub(crate) fn of(sandbox: &Sandbox, store: &str) -> Shown {
        let (mut text, mut balances_milli) = (String::new(), Vec::new());
        for entity in ["key-1", "key-2", "nobody", "org"] {
            let line = format!("--store {store} entity buckets {entity} --output json");
            let (exit, json) = sandbox.raw(&line);
            assert_eq!(exit, 0, "{line}");
            let listed: Value = serde_json::from_str(&json).expect("JSON");
            for bucket in listed["items"].as_array().expect("a list") {
                for limit in bucket["limits"].as_array().expect("a list") {
                    let [resource, disabled] = ["resource", "disabled"].map(|name| &bucket[name]);
                    let [name, capacity] = ["limit_name", "capacity_milli"].map(|of| &limit[of]);
                    text += &format!("{entity} {resource} {disabled} {name} {capacity}\n");
                    balances_milli.push(limit["available_milli"].as_i64().expect("a number"));
                }
            }
        }
        let windows = ["", " --window daily", " --window monthly"];
        let usage = windows.map(|window| format!("usage list{window}"));
        for line in usage.into_iter().chain(["limits export".to_owned()]) {
            let (exit, answer) = sandbox.raw(&format!("--store {store} --quiet {line}"));
            assert_eq!(exit, 0, "{line}");
            text += &answer;
        }
        Shown { text, balances_milli }
    }

    /// The same, some seconds later: a thousand a day refill 12 millitokens a second.
    #[track_caller]
    pub(crate) fn is_later(&self, earlier: &Shown) {
        assert_eq!(self.text, earlier.text);
        let (found, before) = (&self.balances_milli, &earlier.balances_milli);
        let mut pairs = found.iter().zip(before);
        let is_right = pairs.all(|(found, before)| (0..=2_000).contains(&(found - before)));
        assert!(is_right && found.len() == before.len(), "{found:?} after {before:?}");
    }
}

#[test]
fn a_namespace_is_copied_with_everything_and_once() {
    let sandbox = worked();
    assert_snapshot!(sandbox.run("migrate --to sqlite:new.db --reason OPS-1"), @"
    exit 0
    --- stdout
    limits, flags and entities: 5 copied, 0 kept, 0 the same
    buckets: 4 copied, 0 kept
    windows of usage: 6 copied, 0 kept
    --- stderr
    note: created new.db
    note: calls on the file [FOLDER]/limits.db since its buckets were read are not carried; let callers use the file new.db only
    ");
    let old = Shown::of(&sandbox, "sqlite:limits.db");
    let new = Shown::of(&sandbox, "sqlite:new.db");
    new.is_later(&old);
    assert_eq!(old.balances_milli.iter().filter(|balance| **balance < 0).count(), 2, "debts");
    let consumed = |store: &str| {
        let (_, json) = sandbox.raw(&format!("--store {store} entity buckets key-1 --output json"));
        let listed: Value = serde_json::from_str(&json).expect("JSON");
        listed["items"][0]["limits"][1]["consumed_milli"].as_i64()
    };
    assert_eq!(consumed("sqlite:new.db"), Some(3_000_000));
    assert_eq!(consumed("sqlite:limits.db"), Some(3_000_000));
    assert_snapshot!(sandbox.run("migrate --to sqlite:new.db --output json --quiet"), @r#"
    exit 0
    --- stdout
    {"from":"the file [FOLDER]/limits.db","to":"the file new.db","namespace":"default","to_namespace":"default","dry_run":false,"registers":false,"limits":{"copied":0,"kept":0,"unchanged":5},"buckets":{"copied":0,"kept":4,"skipped":[]},"usage":{"copied":0,"kept":6,"skipped":[]}}
    "#);
    Shown::of(&sandbox, "sqlite:new.db").is_later(&new);
    let (_, audit) = sandbox.raw("--store sqlite:new.db audit list --output json");
    assert_eq!(audit.matches("\"action\":\"adopted\"").count(), 2, "{audit}");
    assert!(audit.contains("\"reason\":\"OPS-1\""), "{audit}");
}

#[test]
fn a_dry_run_changes_nothing() {
    let sandbox = worked();
    assert_snapshot!(sandbox.run("migrate --to sqlite:new.db --dry-run"), @"
    exit 0
    --- stdout
    namespace default: to register
    limits, flags and entities: 5 to copy, 0 kept, 0 the same
    buckets: 4 to copy, 0 kept
    windows of usage: 6 to copy, 0 kept
    --- stderr
    note: nothing was changed: this was a dry run
    ");
    assert!(!sandbox.path("new.db").exists());
    sandbox.run("--store sqlite:new.db acquire nobody gpt-4 -c rpm=1 -l rpm:5/day");
    let before = sandbox.raw("--store sqlite:new.db audit list");
    assert_snapshot!(sandbox.run("migrate --to sqlite:new.db --dry-run --quiet"), @"
    exit 0
    --- stdout
    limits, flags and entities: 5 to copy, 0 kept, 0 the same
    buckets: 3 to copy, 1 kept
    windows of usage: 6 to copy, 0 kept
    ");
    assert_eq!(sandbox.raw("--store sqlite:new.db audit list"), before);
}

#[test]
fn what_the_target_has_stays() {
    let sandbox = worked();
    sandbox.run("--store sqlite:new.db system set-defaults -l rpm:7/day");
    sandbox.run("--store sqlite:new.db entity create org --display-name Other");
    sandbox.run("--store sqlite:new.db acquire nobody gpt-4 -c rpm=2");
    assert_snapshot!(sandbox.run("migrate --to sqlite:new.db"), @"
    exit 0
    --- stdout
    limits, flags and entities: 3 copied, 2 kept, 0 the same
    buckets: 3 copied, 1 kept
    windows of usage: 6 copied, 0 kept
    --- stderr
    note: the file new.db has these otherwise, and keeps its own: system, entity org
    note: calls on the file [FOLDER]/limits.db since its buckets were read are not carried; let callers use the file new.db only
    ");
    let (_, export) = sandbox.raw("--store sqlite:new.db limits export");
    assert!(export.contains("rpm: {capacity: 7,") && export.contains("\"Other\""), "{export}");
    // The limits of the target bind a bucket that was copied with those of the source.
    assert_eq!(sandbox.raw("--store sqlite:new.db acquire org gpt-4 -c rpm=8").0, 3);
    assert_eq!(sandbox.raw("--store sqlite:new.db acquire nobody gpt-4 -c rpm=5").0, 0);
    assert_eq!(sandbox.raw("--store sqlite:new.db acquire nobody gpt-4 -c rpm=1").0, 3);
}

#[test]
fn namespaces_are_named_on_both_sides() {
    let sandbox = worked();
    assert_snapshot!(sandbox.run("migrate --to sqlite:limits.db --to-namespace copy"), @"
    exit 0
    --- stdout
    namespace copy: registered
    limits, flags and entities: 5 copied, 0 kept, 0 the same
    buckets: 4 copied, 0 kept
    windows of usage: 6 copied, 0 kept
    --- stderr
    note: calls on the file [FOLDER]/limits.db since its buckets were read are not carried; let callers use namespace copy of the file limits.db only
    ");
    let usage = |flags: &str| sandbox.raw(&format!("{flags} usage list"));
    assert_eq!(usage("-N copy"), usage("-N default"));
    assert_snapshot!(sandbox.run("-N copy migrate --to sqlite:new.db --quiet"), @"
    exit 0
    --- stdout
    namespace copy: registered
    limits, flags and entities: 5 copied, 0 kept, 0 the same
    buckets: 4 copied, 0 kept
    windows of usage: 6 copied, 0 kept
    ");
    assert_eq!(sandbox.raw("--store sqlite:new.db -N copy entity show org").0, 0);
    assert_snapshot!(sandbox.run("-N nowhere migrate --to sqlite:new.db"), @"
    exit 1
    --- stderr
    error: there is no namespace nowhere
    hint: register it with `zae-limiter namespace register nowhere`; `zae-limiter namespace list` shows those there are
    ");
}

#[test]
fn what_cannot_be_copied_is_refused_before_anything_is_changed() {
    let sandbox = worked();
    assert_snapshot!(sandbox.run("migrate --to sqlite:limits.db"), @"
    exit 2
    --- stderr
    error: --to names the file limits.db, the store that is copied from
    hint: name another store, or another --to-namespace
    ");
    assert_snapshot!(sandbox.run("migrate --to postgres:x"), @"
    exit 2
    --- stderr
    error: invalid value 'postgres:x' for '--to <URL>': use sqlite:PATH, dynamodb:STACK or memory:

    For more information, try '--help'.
    ");
    assert_snapshot!(sandbox.run("--store sqlite:missing.db migrate --to sqlite:new.db"), @"
    exit 1
    --- stderr
    error: there is no file missing.db
    hint: check --store; the first command that stores something creates it
    ");
    assert!(!sandbox.path("new.db").exists());
    // An entity keeps its parent.
    sandbox.run("--store sqlite:new.db entity create key-1");
    assert_snapshot!(sandbox.run("migrate --to sqlite:new.db"), @"
    exit 1
    --- stderr
    error: what the file [FOLDER]/limits.db has does not fit the file new.db; nothing was changed
      caused by: entities.key-1: key-1 has no parent and cascade off, and the file says parent org and cascade on; neither can be changed: delete the entity first, or describe it as it is
    hint: an entity that both have must be the same in both; a parent that is missing has to be created in the file [FOLDER]/limits.db first (`zae-limiter entity create`)
    ");
    assert_eq!(
        sandbox
            .raw("--store sqlite:new.db entity list --output json")
            .1
            .matches("entity_id")
            .count(),
        1
    );
}

/// So many entities with a bucket each, of which each has used another amount.
pub(crate) fn crowd(count: u64) -> Sandbox {
    let sandbox = Sandbox::with_defaults("rpm:100000/day");
    let limiter = hours_ago(&sandbox, 2);
    for number in 1..=count {
        take(&limiter, &format!("key-{number:05}"), number);
    }
    limiter.close();
    sandbox
}

/// How many buckets the file has, and what they have left together.
fn buckets(sandbox: &Sandbox, file: &str) -> (usize, i64) {
    let store = SqliteStore::open_with(sandbox.path(file), SqliteOptions::new().read_only());
    let Ok(store) = store else { return (0, 0) };
    let builder = zae_limiter::RateLimiter::builder(store).deadline(Duration::from_secs(10));
    let limiter = RateLimiter::build(builder).expect("the limiter is built");
    let capacity = limiter.resource_capacity("gpt-4", "rpm", CapacityScope::All);
    capacity.map_or((0, 0), |capacity| (capacity.entities.len(), capacity.available))
}

/// Starts a copy and kills it as soon as `count` says that it has made some buckets; how many.
pub(crate) fn killed(sandbox: &Sandbox, to: &str, count: impl Fn() -> usize) -> usize {
    let mut command = sandbox.command(&["migrate", "--to", to, "--quiet"]);
    let mut child =
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the binary starts");
    for _ in 0..100_000 {
        if count() > 0 || child.try_wait().expect("a child").is_some() {
            break;
        }
    }
    // SIGKILL: nothing is tidied up.
    let _ = child.kill();
    let _ = child.wait();
    count()
}

/// The numbers of the buckets: copied and kept.
pub(crate) fn copied(sandbox: &Sandbox, to: &str) -> (u64, u64) {
    let (exit, json) = sandbox.raw(&format!("migrate --to {to} --output json --quiet"));
    let form: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(exit, 0, "{json}");
    let number = |name: &str| form["buckets"][name].as_u64().expect("a number");
    (number("copied"), number("kept"))
}

#[test]
fn a_copy_of_five_thousand_entities_survives_kill_9() {
    const COUNT: u64 = 5_000;
    let sandbox = crowd(COUNT);
    let made = killed(&sandbox, "sqlite:new.db", || buckets(&sandbox, "new.db").0);
    assert!(made > 0 && made < 5_000, "killed too early or too late: {made}");
    let (rest, kept) = copied(&sandbox, "sqlite:new.db");
    assert_eq!((rest + kept, kept), (COUNT, made as u64));
    let (count, left) = buckets(&sandbox, "limits.db");
    assert_eq!(count, 5_000);
    let (count, there) = buckets(&sandbox, "new.db");
    // A day of refill is 1.2 tokens a second and bucket; the two looks are not at one moment.
    assert!(count == 5_000 && (there - left).abs() < 500_000, "{left} left, {there} there");
    assert_eq!(copied(&sandbox, "sqlite:new.db"), (0, COUNT));
    let usage = |file: &str| sandbox.raw(&format!("--store sqlite:{file} usage summary")).1;
    assert_eq!(usage("new.db"), usage("limits.db"));
    // One event for each transaction of up to 80, and none for what was there already: 63 for the
    // buckets, and 13 for each thousand windows.
    let (_, audit) = sandbox.raw("--store sqlite:new.db audit list --max 1000 --output json");
    let events = audit.matches("\"action\":\"adopted\"").count();
    assert_eq!(events, 63 + 5 * 13);
}
