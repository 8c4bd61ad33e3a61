//! Two applies at once: who goes on, who is refused, and when one is taken for gone.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{Either, join, select};
use zae_limiter::store::{
    Adjusted, BoxFuture, BucketDelta, BucketStore as _, Fault, FaultStore, SeededEntropy,
    StoreFuture, StoreWrapper,
};
use zae_limiter::{
    AuditAction, AuditQuery, AuditSubject, Capabilities, Clock, EntityId, ErrorKind, Flag, Level,
    LimitsChange, ManualClock, MemoryStore, NewEntity, RateLimiter, Store, StoreError,
    StoreErrorKind, TimeMs,
};
use zae_limiter_manifest::{
    Applied, Apply, ApplyError, BEAT, GONE_AFTER, Live, Manifest, Over, Plan, Watched, apply, watch,
};

const START: TimeMs = TimeMs(1_800_000_000_000);

/// A store that two processes share, and a clock that moves when nobody has anything to do.
struct World {
    store: Arc<MemoryStore>,
    clock: ManualClock,
}

impl World {
    fn new() -> World {
        World { store: Arc::new(MemoryStore::new()), clock: ManualClock::new(START) }
    }

    /// A process, whose calls may go wrong.
    fn process(&self, plan: impl Fn(&'static str) -> Fault + Send + Sync + 'static) -> RateLimiter {
        let store = FaultStore::new(Arc::clone(&self.store), plan);
        RateLimiter::builder(store).build().expect("a limiter")
    }

    /// One whose calls go through.
    fn sound(&self) -> RateLimiter {
        self.process(|_| Fault::None)
    }

    fn how(&self, who: &str) -> Apply<'static> {
        Apply {
            who: who.to_owned(),
            clock: Arc::new(self.clock.clone()),
            entropy: Arc::new(SeededEntropy::new(who.len() as u64)),
            ..Apply::default()
        }
    }

    /// Does some work while time passes.
    async fn passing<T>(&self, work: impl Future<Output = T>) -> T {
        let time = async {
            loop {
                // Everybody comes to wait before a second is over.
                for _ in 0..50 {
                    tokio::task::yield_now().await;
                }
                self.clock.advance(Duration::from_secs(1));
            }
        };
        match select(std::pin::pin!(work), std::pin::pin!(time)).await {
            Either::Left((done, _)) => done,
            Either::Right(((), _)) => unreachable!("time goes on"),
        }
    }
}

async fn plan(limiter: &RateLimiter, manifest: &Manifest) -> Plan {
    let live = Live::read(limiter, manifest).await.expect("a store can be read");
    Plan::new(manifest, &live, false).unwrap_or_else(|error| panic!("{error}"))
}

/// Flags on so many resources: changes that no version protects.
fn flags(count: usize, word: &str) -> Manifest {
    let lines: Vec<String> = (0..count).map(|n| format!("r{n}: {{disabled: {word}}}")).collect();
    let text = format!("{{namespace: default, resources: {{{}}}}}", lines.join(", "));
    Manifest::read(&text).expect("a good file").manifest
}

async fn is_begun(limiter: &RateLimiter) {
    while limiter.managed(0).await.expect("a read").is_none_or(|it| !it.text.contains("begun")) {
        tokio::task::yield_now().await;
    }
}

fn refused(outcome: Result<Applied, ApplyError>) -> ApplyError {
    let error = outcome.expect_err("another one is at work");
    assert_eq!(error.source.kind(), ErrorKind::Store(StoreErrorKind::Conflict), "{error}");
    assert!(error.overlaps, "{error}");
    error
}

/// A process that takes long over each change.
fn slow(operation: &'static str) -> Fault {
    if operation == "set_flag" { Fault::Yield(2_000) } else { Fault::None }
}

#[tokio::test]
async fn an_apply_beside_one_at_work_is_refused_and_says_whose_it_is() {
    let world = World::new();
    let (one, two) = (world.process(slow), world.sound());
    let (mine, theirs) = (flags(12, "true"), flags(12, "false"));
    let first = plan(&one, &mine).await;
    let how = world.how("ops on build-7");
    let overlapping = async {
        is_begun(&two).await;
        let second = plan(&two, &theirs).await;
        assert_eq!(second.held().expect("a mark").who, "ops on build-7");
        let began = world.clock.monotonic();
        let error = refused(apply(&two, &second, &world.how("another")).await);
        assert!(world.clock.monotonic() - began <= BEAT + Duration::from_secs(2), "soon");
        error
    };
    let (done, error) = world.passing(join(apply(&one, &first, &how), overlapping)).await;
    assert_eq!(done.expect("the first one goes on").changes, 12);
    assert_eq!(error.made, 0);
    let told = error.to_string();
    assert!(told.starts_with("another apply is at work: ops on build-7, since 2027-"), "{told}");
    assert!(told.contains("last heard of at 2027-") && told.contains("nothing was changed"));
    assert!(plan(&two, &mine).await.is_empty(), "nothing of the second file is stored");
}

/// Killed: no future is polled any more. Whatever its clock said, it is gone when nothing was heard
/// of it for as long as that takes.
#[tokio::test]
async fn one_that_is_gone_is_taken_over_whatever_the_clocks_say() {
    for minutes in [-60, 0, 60] {
        let world = World::new();
        let (one, two) = (world.process(slow), world.sound());
        let (mine, theirs) = (flags(12, "true"), flags(12, "false"));
        let first = plan(&one, &mine).await;
        {
            let (how, begun) = (world.how("first"), is_begun(&two));
            let work = apply(&one, &first, &how);
            select(std::pin::pin!(work), std::pin::pin!(begun)).await;
        }
        world.clock.step_to(START.plus_ms(minutes * 60_000));
        let second = plan(&two, &theirs).await;
        assert!(second.is_resumed() && second.held().is_some());
        let began = world.clock.monotonic();
        let how = world.how("second");
        world.passing(apply(&two, &second, &how)).await.expect("it goes on from there");
        let waited = world.clock.monotonic() - began;
        assert!(waited >= GONE_AFTER && waited < GONE_AFTER + BEAT, "{minutes}: {waited:?}");
        assert!(plan(&two, &theirs).await.is_empty());
    }
}

/// The clock of one at work is set back and forth while another one watches.
#[tokio::test]
async fn one_at_work_is_not_taken_for_gone_when_a_clock_steps() {
    for minutes in [-10, 10] {
        let world = World::new();
        let (one, two) = (world.process(slow), world.sound());
        let (mine, theirs) = (flags(40, "true"), flags(40, "false"));
        let first = plan(&one, &mine).await;
        let how = world.how("first");
        let overlapping = async {
            is_begun(&two).await;
            world.clock.step_to(START.plus_ms(minutes * 60_000));
            let second = plan(&two, &theirs).await;
            refused(apply(&two, &second, &world.how("other one")).await)
        };
        let (done, _) = world.passing(join(apply(&one, &first, &how), overlapping)).await;
        assert_eq!(done.expect("the first one goes on").changes, 40, "{minutes}");
    }
}

/// Taken over by force while it is at work: not one more change begins.
#[tokio::test]
async fn one_that_lost_its_mark_stops_before_its_next_write() {
    let world = World::new();
    let (taken, begun, late) =
        (Arc::new(AtomicBool::new(false)), Arc::<AtomicUsize>::default(), Arc::default());
    let one = {
        let (taken, begun, late) =
            (Arc::clone(&taken), Arc::clone(&begun), Arc::<AtomicUsize>::clone(&late));
        world.process(move |operation| {
            if operation != "set_flag" {
                return Fault::None;
            }
            begun.fetch_add(1, Ordering::Relaxed);
            late.fetch_add(usize::from(taken.load(Ordering::Relaxed)), Ordering::Relaxed);
            // Much shorter than it takes to the next sign of life, which would find out too.
            Fault::Yield(20)
        })
    };
    let two = world.sound();
    let (mine, theirs) = (flags(40, "true"), flags(40, "false"));
    let first = plan(&one, &mine).await;
    let how = world.how("first");
    let force = async {
        while begun.load(Ordering::Relaxed) < 9 {
            tokio::task::yield_now().await;
        }
        let second = plan(&two, &theirs).await;
        let over = Apply { over: Over::Now, ..world.how("by force") };
        let second = apply(&two, &second, &over);
        taken.store(true, Ordering::Relaxed);
        second.await.expect("the second one")
    };
    let (stopped, done) = world.passing(join(apply(&one, &first, &how), force)).await;
    let error = refused(stopped);
    assert!(error.made > 0 && error.made < 40, "{}", error.made);
    assert_eq!(late.load(Ordering::Relaxed), 0, "changes that began after the mark was lost");
    assert!(done.changes > 0);
    let told = error.to_string();
    assert!(
        told.contains("its work taken over") && told.contains("it has stopped after"),
        "{told}"
    );
}

/// Between the plan and the mark the one before goes on: what the plan found as in the file is not
/// so any more.
#[tokio::test]
async fn what_changed_until_the_mark_was_taken_is_compared_again() {
    let world = World::new();
    let begun = Arc::<AtomicUsize>::default();
    let one = {
        let begun = Arc::clone(&begun);
        world.process(move |operation| {
            if operation != "set_flag" {
                return Fault::None;
            }
            begun.fetch_add(1, Ordering::Relaxed);
            Fault::Yield(20)
        })
    };
    let two = world.sound();
    let (mine, theirs) = (flags(40, "true"), flags(40, "false"));
    apply(&two, &plan(&two, &theirs).await, &world.how("before")).await.expect("a first file");
    let first = plan(&one, &mine).await;
    let how = world.how("first");
    let force = async {
        let seen = async |count| {
            while begun.load(Ordering::Relaxed) < count {
                tokio::task::yield_now().await;
            }
        };
        seen(10).await;
        let second = plan(&two, &theirs).await;
        assert!(second.unchanged > 0, "most is still as in the file");
        seen(24).await;
        let over = Apply { over: Over::Now, ..world.how("by force") };
        apply(&two, &second, &over).await
    };
    let (stopped, done) = world.passing(join(apply(&one, &first, &how), force)).await;
    refused(stopped);
    done.expect("the second one");
    let left = plan(&two, &theirs).await;
    assert!(left.is_empty(), "{:?}", left.changes);
}

/// A flag that somebody sets by hand, and limits, between plan and removal.
#[tokio::test]
async fn what_somebody_sets_by_hand_is_not_removed() {
    let world = World::new();
    let limiter = world.sound();
    let both = "{namespace: default, resources: {a: {limits: {rpm: 5/min}}, b: {disabled: false}}}";
    let (both, none) = [both, "{namespace: default}"]
        .map(|text| Manifest::read(text).expect("a good file").manifest)
        .into();
    apply(&limiter, &plan(&limiter, &both).await, &world.how("first")).await.expect("a first file");
    for by_hand in ["a", "b"] {
        let live = Live::read(&limiter, &none).await.expect("a store can be read");
        let removal = Plan::new(&none, &live, true).expect("a plan");
        let level = Level::Resource(by_hand.parse().expect("a name"));
        if by_hand == "a" {
            let limits = vec!["rpm:777/min".parse().expect("a limit")];
            let change = LimitsChange { limits, on_unavailable: None, expected_version: None };
            limiter.set_limits(&level, change).await.expect("by hand");
        } else {
            limiter.disable(&level).await.expect("by hand");
        }
        let error = apply(&limiter, &removal, &world.how("later")).await.expect_err("a conflict");
        assert_eq!(error.source.kind(), ErrorKind::Store(StoreErrorKind::Conflict), "{error}");
        assert!(error.to_string().contains("somebody changed it"), "{error}");
        let found = limiter.level(&level).await.expect("a read").expect("it is there");
        assert!(found.flag == Some(Flag::Disabled) || found.limits[0].capacity() == 777);
        apply(&limiter, &plan(&limiter, &both).await, &world.how("again")).await.expect("again");
    }
}

/// Whoever goes on for one that was killed overwrites nothing either that somebody sets meanwhile.
#[tokio::test]
async fn what_somebody_sets_by_hand_ends_an_apply_that_took_over_too() {
    let world = World::new();
    let (one, two) = (world.process(slow), world.process(slow));
    let file = flags(12, "true");
    let first = plan(&one, &file).await;
    let how = world.how("first");
    let killed = async {
        let mut work = Box::pin(apply(&one, &first, &how));
        let begun = std::pin::pin!(is_begun(&two));
        match select(&mut work, begun).await {
            Either::Left(_) => panic!("it ended"),
            Either::Right(_) => drop(work),
        }
    };
    world.passing(killed).await;
    let second = plan(&two, &file).await;
    assert!(second.held().is_some());
    let made = AtomicUsize::new(0);
    let progress = |now: usize, _: usize| made.store(now, Ordering::Relaxed);
    let how = Apply { over: Over::Now, progress: Some(&progress), ..world.how("second") };
    let level = Level::Resource("r9".parse().expect("a name"));
    let hand = async {
        while made.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        world.sound().set_flag(&level, Some(Flag::Enabled)).await.expect("by hand");
    };
    let (ended, ()) = world.passing(join(apply(&two, &second, &how), hand)).await;
    let error = ended.expect_err("a conflict");
    assert!(!error.overlaps && error.to_string().contains("somebody changed it"), "{error}");
    let found = two.level(&level).await.expect("a read").expect("it is there");
    assert_eq!(found.flag, Some(Flag::Enabled));
}

/// Recreated by somebody, or given a limit by hand, since the plan was made.
#[tokio::test]
async fn an_entity_that_is_another_one_by_now_is_not_deleted() {
    for by_hand in ["anew", "limits", "gone"] {
        let world = World::new();
        let limiter = world.sound();
        let [both, none] =
            ["{namespace: default, entities: {a: {name: A}}}", "{namespace: default}"]
                .map(|text| Manifest::read(text).expect("a good file").manifest);
        let first = plan(&limiter, &both).await;
        apply(&limiter, &first, &world.how("first")).await.expect("a first file");
        let live = Live::read(&limiter, &none).await.expect("a store can be read");
        let removal = Plan::new(&none, &live, true).expect("a plan");
        let id = || "a".parse::<EntityId>().expect("a name");
        if by_hand == "limits" {
            let limits = ["rpm:777/min".parse().expect("a limit")];
            limiter.set_limits(&Level::Entity(id()), limits).await.expect("by hand");
        } else {
            limiter.delete_entity(id()).await.expect("by hand");
        }
        if by_hand == "anew" {
            limiter.create_entity(NewEntity::new("a")).await.expect("by hand");
        }
        let done = apply(&limiter, &removal, &world.how("later")).await;
        let is_there = limiter.entity(id()).await.expect("a read").is_some();
        match by_hand {
            "gone" => assert!(done.is_ok() && !is_there, "{done:?}"),
            _ => {
                let error = done.expect_err("a conflict").to_string();
                assert!(error.contains("somebody changed it") && is_there, "{error}");
            }
        }
    }
}

/// One of four fails at once: the other three are ended and counted, and no fifth begins.
#[tokio::test]
async fn changes_that_have_begun_are_ended_when_another_one_fails() {
    let world = World::new();
    let count = AtomicUsize::new(0);
    let one = world.process(move |operation| match operation {
        "set_flag" if count.fetch_add(1, Ordering::Relaxed) == 0 => {
            Fault::FailBefore(StoreErrorKind::Unavailable)
        }
        "set_flag" => Fault::Yield(100),
        _ => Fault::None,
    });
    let file = flags(12, "true");
    let first = plan(&one, &file).await;
    let how = world.how("first");
    let error = world.passing(apply(&one, &first, &how)).await.expect_err("one failed");
    assert_eq!((error.made, error.total), (3, 12), "{error}");
    let left = plan(&world.sound(), &file).await;
    assert_eq!(left.changes.len(), 9);
    assert!(left.is_resumed() && left.held().is_none());
}

/// A store whose flags are brought to buckets one by one.
struct Remote {
    inner: MemoryStore,
    flags: Arc<AtomicUsize>,
}

impl StoreWrapper for Remote {
    type Inner = MemoryStore;

    fn inner(&self) -> &MemoryStore {
        &self.inner
    }

    fn around<'a, T: Send + 'a>(
        &'a self,
        operation: &'static str,
        call: impl FnOnce(&'a MemoryStore) -> StoreFuture<'a, T> + Send + 'a,
    ) -> StoreFuture<'a, T> {
        self.flags.fetch_add(usize::from(operation == "set_flag"), Ordering::Relaxed);
        call(&self.inner)
    }

    fn wrap(&self, scoped: Arc<dyn Store>) -> Arc<dyn Store> {
        scoped
    }

    fn adjust<'a>(
        &'a self,
        deltas: &'a [BucketDelta<'a>],
        now: TimeMs,
    ) -> BoxFuture<'a, Vec<Result<Adjusted, StoreError>>> {
        self.inner.adjust(deltas, now)
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.inner.capabilities();
        capabilities.remote = true;
        capabilities
    }
}

#[tokio::test]
async fn flags_of_an_apply_that_was_cut_off_are_brought_to_their_buckets_again() {
    let world = World::new();
    let count = Arc::<AtomicUsize>::default();
    let store = Remote { inner: MemoryStore::new(), flags: Arc::clone(&count) };
    let limiter = RateLimiter::builder(store).build().expect("a limiter");
    let file = flags(6, "true");
    let stopped = || count.load(Ordering::Relaxed) >= 2;
    let how = Apply { stopped: Some(&stopped), ..world.how("first") };
    apply(&limiter, &plan(&limiter, &file).await, &how).await.expect_err("it was stopped");
    let made = count.swap(0, Ordering::Relaxed);
    assert!((2..6).contains(&made), "{made}");
    apply(&limiter, &plan(&limiter, &file).await, &world.how("next")).await.expect("the rest");
    assert_eq!(count.load(Ordering::Relaxed), 6, "those of before, and those that were left");
    apply(&limiter, &plan(&limiter, &file).await, &world.how("next")).await.expect("nothing");
    assert_eq!(count.load(Ordering::Relaxed), 6, "it came to its end");
}

/// A machine that slept between the look at the mark and the change looks again.
#[tokio::test]
async fn a_look_that_took_too_long_is_repeated() {
    let world = World::new();
    let looks = Arc::new(Mutex::new(Vec::new()));
    let one = {
        let (looks, clock) = (Arc::clone(&looks), world.clock.clone());
        world.process(move |operation| {
            let mut looks = looks.lock().expect("a lock");
            // The third look of all is the first one before a change.
            if operation == "managed"
                && !looks.contains(&"asleep")
                && looks.contains(&"set_managed")
            {
                looks.push("asleep");
                clock.step_to(clock.now().plus_ms(600_000));
            }
            looks.push(operation);
            Fault::None
        })
    };
    let first = plan(&one, &flags(1, "true")).await;
    looks.lock().expect("a lock").clear();
    apply(&one, &first, &world.how("first")).await.expect("an apply");
    let order = looks.lock().expect("a lock").clone();
    assert_eq!(
        order[..6],
        ["set_managed", "level", "asleep", "managed", "managed", "set_flag"],
        "{order:?}"
    );
}

/// Every answer to a sign of life is lost; it is ours all the same.
#[tokio::test]
async fn a_sign_of_life_without_an_answer_is_our_own() {
    let world = World::new();
    let count = AtomicUsize::new(0);
    let one = world.process(move |operation| match operation {
        "set_managed" if (1..3).contains(&count.fetch_add(1, Ordering::Relaxed)) => {
            Fault::FailAfter(StoreErrorKind::Unavailable)
        }
        operation => slow(operation),
    });
    let first = plan(&one, &flags(12, "true")).await;
    let how = world.how("first");
    let done = world.passing(apply(&one, &first, &how)).await;
    assert_eq!(done.expect("an apply").changes, 12);
    assert!(plan(&world.sound(), &flags(12, "true")).await.is_empty());
}

/// What failed in the middle says that nobody is at work any more: nobody needs to watch.
#[tokio::test]
async fn one_that_fails_lays_its_mark_down() {
    let world = World::new();
    let limiter = world.sound();
    let manifest = Manifest::read(
        "{namespace: default, system: {limits: {rpm: 1/min}}, resources: {a: {disabled: true}}}",
    );
    let manifest = manifest.expect("a good file").manifest;
    let first = plan(&limiter, &manifest).await;
    limiter.set_limits(&Level::System, ["rpm:7".parse().unwrap()]).await.expect("a change");
    let how = Apply { reason: Some("OPS-1".into()), ..world.how("first") };
    let error = apply(&limiter, &first, &how).await.expect_err("a conflict");
    assert!(!error.overlaps && error.other.is_none(), "{error}");
    let second = plan(&limiter, &manifest).await;
    assert!(second.is_resumed() && second.held().is_none());
    apply(&limiter, &second, &world.how("second")).await.expect("no time needs to pass");
    assert!(plan(&limiter, &manifest).await.is_empty());
    let query = AuditQuery { subject: AuditSubject::System, page: Default::default() };
    let mut events = limiter.audit_events(&query).await.expect("events").items;
    events.retain(|event| event.action == AuditAction::LimitsApplied);
    let stopped = &events[2].details;
    assert_eq!(
        stopped[..],
        [("apply".into(), "stopped".into()), ("reason".to_owned(), "OPS-1".to_owned())]
    );
}

#[tokio::test]
async fn who_watches_hears_of_an_end() {
    let world = World::new();
    let short = |operation: &'static str| match operation {
        "set_flag" => Fault::Yield(100),
        _ => Fault::None,
    };
    let (one, two) = (world.process(short), world.sound());
    let manifest = flags(4, "true");
    let first = plan(&one, &manifest).await;
    let how = world.how("first");
    let watching = async {
        is_begun(&two).await;
        watch(&two, &plan(&two, &manifest).await, &world.clock).await.expect("a watch")
    };
    let (done, watched) = world.passing(join(apply(&one, &first, &how), watching)).await;
    done.expect("an apply");
    assert_eq!(watched, Watched::Ended);
}

#[tokio::test]
async fn an_apply_that_is_told_to_stop_ends_between_two_changes_and_lays_its_mark_down() {
    let world = World::new();
    let limiter = world.sound();
    let file = flags(40, "true");
    let made = AtomicUsize::new(0);
    let progress = |now: usize, _: usize| made.store(now, Ordering::Relaxed);
    let stopped = || made.load(Ordering::Relaxed) >= 3;
    let how =
        Apply { progress: Some(&progress), stopped: Some(&stopped), ..world.how("a terminal") };
    let first = plan(&limiter, &file).await;
    let error = world.passing(apply(&limiter, &first, &how)).await.expect_err("it was stopped");
    assert!(error.stopped && !error.overlaps && error.at.is_none(), "{error:?}");
    // Those that were under way ended.
    assert!((3..=6).contains(&error.made), "{error}");
    assert_eq!(error.to_string(), format!("stopped after {} of 40 changes", error.made));
    let left = plan(&limiter, &file).await;
    assert!(left.held().is_none(), "nobody has to watch");
    assert_eq!(left.changes.len(), 40 - error.made);
    let began = world.clock.monotonic();
    let done =
        world.passing(apply(&limiter, &left, &world.how("another"))).await.expect("the rest");
    assert_eq!(done.changes, 40 - error.made);
    assert!(world.clock.monotonic() - began <= Duration::from_secs(2));
}
