//! Applying: in which order, killed where, beside whom.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use zae_limiter::store::{BoxFuture, Fault, FaultStore};
use zae_limiter::{
    AuditAction, AuditEvent, AuditQuery, AuditSubject, Clock, ErrorKind, Level, MemoryStore,
    RateLimiter, StoreErrorKind, SystemClock, TimeMs,
};
use zae_limiter_manifest::{Apply, Live, Managed, Manifest, Over, Plan, apply, export};

use crate::fixture;

async fn plan(limiter: &RateLimiter, manifest: &Manifest, prune: bool) -> Plan {
    let live = Live::read(limiter, manifest).await.expect("a store can be read");
    Plan::new(manifest, &live, prune).unwrap_or_else(|error| panic!("{error}"))
}

/// Time passes as it does, but for what an apply waits for that takes over.
struct Hasty(SystemClock);

impl Clock for Hasty {
    fn now(&self) -> TimeMs {
        self.0.now()
    }

    fn monotonic(&self) -> Duration {
        self.0.monotonic()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        match duration <= Duration::from_secs(2) {
            true => Box::pin(std::future::ready(())),
            false => self.0.sleep(duration),
        }
    }
}

/// Somebody knows that an apply before is gone.
fn at_once() -> Apply<'static> {
    let clock = Arc::new(Hasty(SystemClock::new()));
    Apply { over: Over::Now, clock, ..Apply::default() }
}

/// Calls that a store still answers.
#[derive(Clone)]
struct Calls(Arc<AtomicI64>);

impl Calls {
    /// As many as anybody wants.
    const ALL: i64 = i64::MAX / 2;

    fn left(&self, calls: i64) {
        self.0.store(calls, Ordering::Relaxed);
    }
}

/// A limiter in the namespace of a manifest, and how many more calls its store answers.
async fn in_namespace(manifest: &Manifest) -> (RateLimiter, Calls) {
    let calls = Calls(Arc::new(AtomicI64::new(Calls::ALL)));
    let left = calls.clone();
    let store = FaultStore::new(Arc::new(MemoryStore::new()), move |_: &'static str| {
        match left.0.fetch_sub(1, Ordering::Relaxed) {
            ..1 => Fault::FailBefore(StoreErrorKind::Unavailable),
            _ => Fault::None,
        }
    });
    let limiter = RateLimiter::builder(store).principal("ops").build().expect("a limiter");
    limiter.register_namespace(manifest.namespace.clone()).await.expect("a namespace");
    (limiter.namespace(manifest.namespace.clone()).await.expect("the namespace"), calls)
}

#[tokio::test]
async fn an_export_of_what_was_applied_is_the_file() {
    for name in ["python.yaml", "ours.yaml"] {
        let manifest = Manifest::read(&fixture(name)).expect("a good file").manifest;
        let (limiter, _) = in_namespace(&manifest).await;
        apply(&limiter, &plan(&limiter, &manifest, false).await, &Apply::default())
            .await
            .expect("an apply");
        let exported = export(&limiter).await.expect("an export").to_yaml();
        let mut named = manifest.clone();
        for (id, spec) in &mut named.entities {
            // A store has a name for every entity.
            spec.name.get_or_insert_with(|| id.to_string());
        }
        assert_eq!(exported, named.to_yaml(), "{name}");
        // And the other way round: to another store.
        let again = Manifest::read(&exported).expect("an export is a file").manifest;
        let (other, _) = in_namespace(&again).await;
        let there = plan(&other, &again, true).await;
        apply(&other, &there, &Apply::default()).await.expect("an apply");
        assert_eq!(export(&other).await.expect("an export").to_yaml(), exported, "{name}");
        assert!(plan(&other, &again, true).await.is_empty(), "{name}");
    }
}

#[tokio::test]
async fn an_apply_is_told_with_its_reason_before_and_after() {
    let manifest = Manifest::read(&fixture("ours.yaml")).expect("a good file").manifest;
    let (limiter, _) = in_namespace(&manifest).await;
    let first = plan(&limiter, &manifest, false).await;
    apply(&limiter, &first, &Apply::because("OPS-1")).await.expect("an apply");
    let query = AuditQuery { subject: AuditSubject::System, page: Default::default() };
    let mut events = limiter.audit_events(&query).await.expect("events").items;
    events.retain(|event| event.action == AuditAction::LimitsApplied);
    let told: Vec<Vec<String>> = events
        .iter()
        .map(|event| event.details.iter().map(|(key, value)| format!("{key}={value}")).collect())
        .collect();
    let details = |state: &str| {
        let added = format!("added={}", first.changes.len());
        [
            added,
            format!("apply={state}"),
            "changed=0".into(),
            "reason=OPS-1".into(),
            "removed=0".into(),
        ]
    };
    assert_eq!(told, [details("done"), details("begun")]);
    assert!(events.iter().all(|event| event.principal.as_ref().is_some_and(|by| by == "ops")));
    for id in manifest.entities.keys() {
        let subject = AuditSubject::Entity(id.clone());
        let query = AuditQuery { subject, page: Default::default() };
        let events = limiter.audit_events(&query).await.expect("events").items;
        let told = |event: &AuditEvent| event.details.contains(&("reason".into(), "OPS-1".into()));
        assert!(!events.is_empty() && events.iter().all(told), "{events:?}");
    }
    let second = plan(&limiter, &manifest, false).await;
    let applied = apply(&limiter, &second, &Apply::because("again")).await.expect("an apply");
    assert_eq!(applied.changes, 0);
    let events = limiter.audit_events(&query).await.expect("events").items;
    let count = events.iter().filter(|event| event.action == AuditAction::LimitsApplied).count();
    assert_eq!(count, 2, "nothing to do is not told");
}

/// Every call of an apply fails once, in turn; the next apply always ends in the same state, and
/// what a smaller file no longer has is removed although the apply that made it was cut off.
#[tokio::test]
async fn wherever_an_apply_is_cut_off_the_next_one_goes_on() {
    let manifest = Manifest::read(&fixture("ours.yaml")).expect("a good file").manifest;
    let (whole, _) = in_namespace(&manifest).await;
    apply(&whole, &plan(&whole, &manifest, false).await, &Apply::default())
        .await
        .expect("an apply");
    let expected = export(&whole).await.expect("an export").to_yaml();
    let nothing = Manifest::empty(manifest.namespace.clone());
    let mut cut_off = 0;
    for call in 0..120 {
        let (limiter, calls) = in_namespace(&manifest).await;
        let first = plan(&limiter, &manifest, false).await;
        calls.left(call);
        let outcome = apply(&limiter, &first, &Apply::default()).await;
        calls.left(Calls::ALL);
        let Err(error) = outcome else {
            assert!(call > 15, "all calls were made after {call}");
            break;
        };
        cut_off += 1;
        assert_eq!(error.source.kind(), ErrorKind::Store(StoreErrorKind::Unavailable));
        let second = plan(&limiter, &manifest, false).await;
        assert_eq!(second.is_resumed(), call > 0, "cut off at call {call}");
        apply(&limiter, &second, &at_once()).await.expect("the next apply");
        assert_eq!(export(&limiter).await.expect("an export").to_yaml(), expected, "call {call}");
        assert!(plan(&limiter, &manifest, true).await.is_empty(), "call {call}");
        let emptied = plan(&limiter, &nothing, true).await;
        apply(&limiter, &emptied, &Apply::default()).await.expect("an apply of nothing");
        let left = export(&limiter).await.expect("an export").to_yaml();
        assert_eq!(left, "namespace: prod\n", "call {call}");
    }
    assert!(cut_off > 15, "{cut_off}");
}

/// What was made by an apply that was cut off is removed by a file without it.
#[tokio::test]
async fn what_an_interrupted_apply_made_is_managed() {
    let manifest = Manifest::read(&fixture("ours.yaml")).expect("a good file").manifest;
    let (limiter, calls) = in_namespace(&manifest).await;
    let first = plan(&limiter, &manifest, false).await;
    calls.left(9);
    apply(&limiter, &first, &Apply::default()).await.expect_err("it is cut off");
    calls.left(Calls::ALL);
    assert_ne!(export(&limiter).await.expect("an export").to_yaml(), "namespace: prod\n");
    let nothing = Manifest::empty(manifest.namespace.clone());
    let emptied = plan(&limiter, &nothing, true).await;
    apply(&limiter, &emptied, &at_once()).await.expect("an apply of nothing");
    assert_eq!(export(&limiter).await.expect("an export").to_yaml(), "namespace: prod\n");
}

#[tokio::test]
async fn of_two_plans_made_at_once_one_is_refused() {
    let manifest = Manifest::read(&fixture("ours.yaml")).expect("a good file").manifest;
    let (limiter, _) = in_namespace(&manifest).await;
    let (one, two) =
        (plan(&limiter, &manifest, false).await, plan(&limiter, &manifest, false).await);
    apply(&limiter, &one, &Apply::default()).await.expect("an apply");
    let error = apply(&limiter, &two, &Apply::default()).await.expect_err("the other");
    assert_eq!(error.source.kind(), ErrorKind::Store(StoreErrorKind::Conflict), "{error}");
    let told = error.to_string();
    assert!(
        told.starts_with("no change was made: what files of limits manage has version"),
        "{told}"
    );
    assert!(told.contains("another apply came in between") && !told.contains("store failed"));
    assert_eq!((error.made, error.at), (0, None));
}

/// So many places that they need several parts, applied, and taken away again.
#[tokio::test]
async fn a_file_of_many_places_is_remembered_in_parts() {
    let entity = |n: usize| format!("{}{n:05}: {{disabled: true}}", "x".repeat(200));
    let entities: Vec<String> = (0..3_000).map(entity).collect();
    let text = format!("{{namespace: default, entities: {{{}}}}}", entities.join(", "));
    let manifest = Manifest::read(&text).expect("a good file").manifest;
    let (limiter, calls) = in_namespace(&manifest).await;
    let first = plan(&limiter, &manifest, false).await;
    let racing = plan(&limiter, &manifest, false).await;
    calls.left(2);
    apply(&limiter, &first, &Apply::default()).await.expect_err("it is cut off between two parts");
    calls.left(Calls::ALL);
    let error = apply(&limiter, &racing, &Apply::default()).await.expect_err("the lock is taken");
    assert_eq!(error.source.kind(), ErrorKind::Store(StoreErrorKind::Conflict), "{error}");
    let second = plan(&limiter, &manifest, false).await;
    assert!(second.is_resumed());
    apply(&limiter, &second, &at_once()).await.expect("the next apply");
    assert!(plan(&limiter, &manifest, true).await.is_empty());
    assert!(limiter.managed(2).await.expect("a read").is_some(), "there are several parts");
    let nothing = Manifest::empty(manifest.namespace.clone());
    let emptied = plan(&limiter, &nothing, true).await;
    assert_eq!(emptied.changes.len(), 3_000);
    apply(&limiter, &emptied, &Apply::default()).await.expect("an apply of nothing");
    assert_eq!(export(&limiter).await.expect("an export").to_yaml(), "namespace: default\n");
    assert!(plan(&limiter, &nothing, true).await.is_empty());
}

/// Cut off at each write of the parts, before the first change and after the last one: what was
/// made is managed, and goes.
#[tokio::test]
async fn parts_that_are_half_written_lose_no_place() {
    let entity = |n: usize| format!("{}{n:05}: {{disabled: true}}", "x".repeat(200));
    let entities: Vec<String> = (0..400).map(entity).collect();
    let text = format!("{{namespace: default, entities: {{{}}}}}", entities.join(", "));
    let manifest = Manifest::read(&text).expect("a good file").manifest;
    let nothing = Manifest::empty(manifest.namespace.clone());
    // A write of each part, a look before it, and what each change needs: two looks and a write.
    let whole = 400 * 3;
    let cuts = (0..10).chain(whole..whole + 20);
    let (mut cut_off, mut ended) = (0, 0);
    for (prune, cut) in cuts.flat_map(|cut| [(false, cut), (true, cut)]) {
        let (limiter, calls) = in_namespace(&manifest).await;
        let mut wanted = plan(&limiter, &manifest, false).await;
        if prune {
            apply(&limiter, &wanted, &at_once()).await.expect("an apply");
            wanted = plan(&limiter, &nothing, true).await;
        }
        calls.left(cut);
        match apply(&limiter, &wanted, &at_once()).await {
            Ok(_) => ended += 1,
            Err(_) => cut_off += 1,
        }
        calls.left(Calls::ALL);
        let emptied = plan(&limiter, &nothing, true).await;
        apply(&limiter, &emptied, &at_once()).await.expect("an apply of nothing");
        let left = export(&limiter).await.expect("an export").to_yaml();
        assert_eq!(left, "namespace: default\n", "prune {prune}, cut {cut}");
        assert!(plan(&limiter, &nothing, true).await.is_empty());
    }
    assert!(cut_off > 20 && ended > 0, "{cut_off} {ended}");
}

#[tokio::test]
async fn a_level_that_somebody_changes_meanwhile_is_not_overwritten() {
    let manifest =
        Manifest::read("namespace: default\nsystem: {limits: {rpm: 1/min}}").unwrap().manifest;
    let limiter = RateLimiter::builder(MemoryStore::new()).build().expect("a limiter");
    let plan = plan(&limiter, &manifest, false).await;
    limiter.set_limits(&Level::System, ["rpm:7".parse().unwrap()]).await.expect("a change");
    let error = apply(&limiter, &plan, &Apply::default()).await.expect_err("a conflict");
    assert_eq!(error.source.kind(), ErrorKind::Store(StoreErrorKind::Conflict), "{error}");
    assert!(error.at.is_some_and(|at| at.contains("system")));
    let stored = limiter.level(&Level::System).await.expect("a level").expect("limits");
    assert_eq!(stored.limits[0].to_string(), "rpm:7/min");
}

/// Places that come before those that are managed already move lines from part to part.
#[tokio::test]
async fn lines_that_move_to_later_parts_are_never_lost() {
    let file = |from: usize| {
        let entity = |n: usize| format!("{}{n:05}: {{disabled: true}}", "x".repeat(200));
        let entities: Vec<String> = (from..3_000).map(entity).collect();
        let text = format!("{{namespace: default, entities: {{{}}}}}", entities.join(", "));
        Manifest::read(&text).expect("a good file").manifest
    };
    let (few, all) = (file(400), file(0));
    for cut in 0..14 {
        let (limiter, calls) = in_namespace(&few).await;
        let first = plan(&limiter, &few, false).await;
        apply(&limiter, &first, &at_once()).await.expect("an apply");
        let wanted = plan(&limiter, &all, false).await;
        calls.left(cut);
        apply(&limiter, &wanted, &at_once()).await.expect_err("it is cut off");
        calls.left(Calls::ALL);
        let found = Managed::read(&limiter).await.expect("a read").places;
        let lost = Managed::of(&few).places.into_keys().find(|place| !found.contains_key(place));
        assert_eq!(lost, None, "cut {cut}");
    }
}
