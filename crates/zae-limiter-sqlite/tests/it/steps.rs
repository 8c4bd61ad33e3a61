//! Changes that concern many buckets: they bind at once, and reach the buckets in bounded steps
//! beside everybody else.

use std::task::Poll;
use std::time::Duration;

use crate::common::{START, Scratch, change, entity, gpt, limits, runtime, take, try_take};
use zae_limiter_core::{Flag, Milli};
use zae_limiter_sqlite::{SqliteOptions, SqliteStore};
use zae_limiter_store::{
    BoxFuture, BucketStore, ConfigStore, ConsumeOutcome, DeletedEntity, Level, NamespaceStore,
    NewEntity, PageRequest, Store, StoreError,
};

/// Rows that one transaction of an administrator may write.
const STEP_ROWS_MAX: u64 = 2_000;

/// More buckets than fit into a few steps; a million in the slower checks of `.ci/run`.
#[expect(clippy::disallowed_methods, reason = "how the slower checks ask for more")]
fn many() -> u64 {
    match std::env::var("ZAEL_TEST_BUCKETS") {
        Ok(number) => number.parse().expect("ZAEL_TEST_BUCKETS is a number of buckets"),
        Err(_) => 20_000,
    }
}

/// `count` copies of the bucket of `key-0`, made past the store: taking once for each would take
/// minutes.
fn fill(scratch: &Scratch, count: u64) {
    const SQL: &str = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<?1) \
                       INSERT INTO bucket SELECT ns,printf('key-%08d',i),resource,refilled_at,stamp,expires_at,disabled,hour,events,active,\
                       limits FROM n CROSS JOIN bucket WHERE entity='key-0'";
    scratch.sqlite().execute(SQL, [i64::try_from(count).expect("few")]).expect("copies");
}

fn count(scratch: &Scratch, what: &str) -> u64 {
    let count: i64 = scratch
        .sqlite()
        .query_row(&format!("SELECT count(*) FROM {what}"), [], |row| row.get(0))
        .expect("a count");
    count.try_into().expect("not negative")
}

fn last(count: u64) -> String {
    format!("key-{count:08}")
}

async fn outcome(store: &SqliteStore, id: &str) -> ConsumeOutcome {
    try_take(store, id, &limits("rpm:60/min"), 1, START).await.expect("a decision")
}

/// Waits until all buckets have been reached. Every look is a task of its own, so steps get on
/// meanwhile.
fn wait_until_spread(scratch: &Scratch, store: &SqliteStore) {
    for _ in 0..100_000 {
        if count(scratch, "spread") == 0 {
            return;
        }
        runtime().block_on(store.delete_limits(&Level::System, &change(99))).expect("a change");
    }
    panic!("{} pieces of work are left: {:?}", count(scratch, "spread"), store.writer_stats());
}

#[expect(clippy::disallowed_methods, reason = "tests may spawn")]
fn beside<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> std::thread::JoinHandle<T> {
    std::thread::spawn(work)
}

/// While a resource with many buckets is disabled, and reached, takes of another process go on.
#[test]
fn a_resource_is_switched_off_in_steps_and_at_once() {
    let scratch = Scratch::new();
    let (here, there) = (scratch.open(), scratch.open());
    let many = many();
    runtime().block_on(take(&here, "key-0", &limits("rpm:60/min"), 1, START));
    fill(&scratch, many);
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (taker, is_over) = (there.clone(), std::sync::Arc::clone(&stop));
    let takes = beside(move || {
        let (key, other, rpd) =
            (entity("else"), "other".parse().expect("a name"), limits("rpd:100000000/day"));
        let takes = [zae_limiter_core::Take { limit: 0, amount: Milli::from_tokens(1) }];
        let member = zae_limiter_store::MemberTake {
            entity: &key,
            resource: &other,
            limits: &rpd,
            takes: &takes,
            absent: &[],
        };
        let mut granted = 0_u64;
        while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
            let members = [member];
            let request = zae_limiter_store::ConsumeRequest::new(&members, START);
            let outcome =
                runtime().block_on(taker.consume(&request)).expect("nobody is kept waiting");
            assert!(matches!(outcome, ConsumeOutcome::Granted(_)), "{outcome:?}");
            granted += 1;
        }
        granted
    });
    let level = Level::Resource(gpt());
    let covered = runtime()
        .block_on(here.set_flag(&level, Some(Flag::Disabled), &change(1)))
        .expect("a change");
    assert_eq!(covered, many + 1);
    runtime().block_on(async {
        for id in ["key-0", "new", &last(1), &last(many)] {
            for store in [&here, &there] {
                assert_eq!(
                    outcome(store, id).await,
                    ConsumeOutcome::Blocked { member: 0, flag: Flag::Disabled },
                    "{id}"
                );
            }
        }
        let shown =
            here.buckets(&entity(&last(many)), &PageRequest::default()).await.expect("a listing");
        assert!(
            shown.items[0].state.flag.blocks(),
            "a bucket that was not reached yet is shown as what it is"
        );
    });
    wait_until_spread(&scratch, &here);
    assert_eq!(
        count(&scratch, "bucket WHERE resource='gpt-4' AND disabled=0"),
        0,
        "all were reached"
    );
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let granted = takes.join().expect("no take failed");
    let stats = here.writer_stats();
    assert!(stats.task_rows_max <= STEP_ROWS_MAX, "{stats:?}");
    let steps = many / 1_000;
    assert!(
        granted >= steps,
        "at least one take between two steps: {granted} takes beside {steps} steps"
    );
    runtime().block_on(async {
        assert_eq!(
            outcome(&there, &last(many)).await,
            ConsumeOutcome::Blocked { member: 0, flag: Flag::Disabled },
            "by the bucket itself now"
        );
    });
}

/// Killed half way: what was ordered binds, and whoever comes next finishes it. Both ways, off and
/// on.
#[test]
fn a_flag_that_was_half_spread_binds_and_is_finished_by_others() {
    let scratch = Scratch::new();
    let many = 5_000;
    runtime().block_on(take(&scratch.open(), "key-0", &limits("rpm:60/min"), 1, START));
    fill(&scratch, many);
    for (flag, raw) in [(Some(Flag::Disabled), 1), (None, 0)] {
        {
            let store = scratch.open();
            runtime()
                .block_on(store.set_flag(&Level::Resource(gpt()), flag, &change(1)))
                .expect("a change");
        }
        let store = scratch.open();
        let outcome = runtime().block_on(outcome(&store, &last(many)));
        assert_eq!(
            outcome == ConsumeOutcome::Blocked { member: 0, flag: Flag::Disabled },
            flag.is_some(),
            "{outcome:?}"
        );
        wait_until_spread(&scratch, &store);
        assert_eq!(count(&scratch, &format!("bucket WHERE disabled<>{raw}")), 0);
    }
}

/// Two administrators at once: the last word counts for every bucket.
#[test]
fn the_last_flag_wins_everywhere() {
    let scratch = Scratch::new();
    let (here, there) = (scratch.open(), scratch.open());
    runtime().block_on(take(&here, "key-0", &limits("rpm:60/min"), 1, START));
    fill(&scratch, 5_000);
    let level = Level::Resource(gpt());
    runtime().block_on(async {
        here.set_flag(&level, Some(Flag::Disabled), &change(1)).await.expect("a change");
        there.set_flag(&level, Some(Flag::Enabled), &change(2)).await.expect("a change");
        here.set_flag(&Level::Entity(entity(&last(5_000))), Some(Flag::Disabled), &change(3))
            .await
            .expect("a change");
        assert!(matches!(outcome(&here, &last(4_999)).await, ConsumeOutcome::Granted(_)));
        assert_eq!(
            outcome(&there, &last(5_000)).await,
            ConsumeOutcome::Blocked { member: 0, flag: Flag::Disabled }
        );
    });
    wait_until_spread(&scratch, &here);
    assert_eq!(count(&scratch, "bucket WHERE disabled=1"), 1);
}

/// An entity with buckets for more resources than one transaction may touch.
#[test]
fn an_entity_with_many_buckets_is_deleted_in_steps() {
    const RESOURCES: &str = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<5000) \
                             INSERT INTO bucket SELECT ns,entity,printf('r-%08d',i),refilled_at,stamp,expires_at,disabled,hour,events,active,\
                             limits FROM n CROSS JOIN bucket WHERE entity='org'";
    let scratch = Scratch::new();
    let store = scratch.open();
    let org = NewEntity {
        id: entity("org"),
        name: "org".into(),
        parent: None,
        cascade: false,
        metadata: Default::default(),
    };
    runtime().block_on(async {
        store.create_entity(&org, &change(1)).await.expect("an entity");
        take(&store, "org", &limits("rpm:60/min"), 1, START).await;
    });
    scratch.sqlite().execute(RESOURCES, []).expect("copies");
    let deleted =
        runtime().block_on(store.delete_entity(&entity("org"), &change(2))).expect("a deletion");
    assert_eq!(deleted.buckets, 5_001);
    assert_eq!(
        count(&scratch, "bucket"),
        0,
        "all of them are gone when the deletion is told as done"
    );
    assert_eq!(count(&scratch, "usage"), 5_001, "what they used is in the history");
    let stats = store.writer_stats();
    assert!(stats.task_rows_max <= STEP_ROWS_MAX, "{stats:?}");
}

/// Purging and sweeping go in steps that others get in between.
#[test]
fn a_purge_and_a_sweep_go_in_steps() {
    let scratch = Scratch::new();
    let store = scratch.open();
    runtime().block_on(async {
        take(&store, "key-0", &limits("rpm:60/min"), 1, START).await;
        fill(&scratch, 3_000);
        let swept = store.sweep(crate::common::at(3_600_000), 1_000).await.expect("a sweep");
        assert_eq!((swept.buckets, swept.complete), (3_001, true));
        take(&store, "key-0", &limits("rpm:60/min"), 1, START).await;
        fill(&scratch, 3_000);
        let name = "default".parse().expect("a name");
        let id = store.namespace(&name).await.expect("a read").expect("it is there").id;
        store.delete_namespace(&name, &change(1)).await.expect("a deletion");
        let purged = store.purge_namespace(&id, &change(2)).await.expect("a purge");
        assert!(purged.records > 6_000, "{purged:?}");
    });
    let stats = store.writer_stats();
    assert!(stats.task_rows_max <= STEP_ROWS_MAX, "{stats:?}");
}

/// With the options as they are by default a lock that somebody keeps is told as what it is, before
/// the limiter takes the store for one that is down.
#[test]
fn a_kept_lock_is_told_before_the_deadline_of_the_limiter() {
    assert!(
        zae_limiter_sqlite::TAKE_DEADLINE < std::time::Duration::from_secs(1),
        "the deadline of a limiter"
    );
    let scratch = Scratch::new();
    let store = scratch.open();
    let other = scratch.sqlite();
    other.execute_batch("BEGIN IMMEDIATE").expect("the lock");
    let result: Result<ConsumeOutcome, StoreError> =
        runtime().block_on(try_take(&store, "key", &limits("rpm:60/min"), 1, START));
    let error = result.expect_err("the lock is kept");
    assert!(error.to_string().contains("800 ms"), "{error}");
    other.execute_batch("COMMIT").expect("let go");
}

/// `count` buckets of `org` on as many resources, made past the store.
fn fill_resources(scratch: &Scratch, count: u64) {
    const SQL: &str = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<?1) \
                       INSERT INTO bucket SELECT ns,entity,printf('r-%08d',i),refilled_at,stamp,expires_at,disabled,hour,events,active,\
                       limits FROM n CROSS JOIN bucket WHERE entity='org' AND resource='gpt-4'";
    scratch.sqlite().execute(SQL, [i64::try_from(count).expect("few")]).expect("copies");
}

/// The deletion of an entity with more buckets than one step removes is given up half way; its name
/// goes on being used under the defaults.
fn deleted_half(scratch: &Scratch) -> SqliteStore {
    half_deleted(scratch, scratch.open(), |deletion| drop(deletion))
}

/// As far as a deletion has come when its first step is done; `then` has the rest of it.
fn half_deleted(
    scratch: &Scratch,
    store: SqliteStore,
    then: impl FnOnce(BoxFuture<'_, Result<DeletedEntity, StoreError>>),
) -> SqliteStore {
    runtime().block_on(async {
        store
            .create_entity(
                &NewEntity {
                    id: entity("org"),
                    name: "org".into(),
                    parent: None,
                    cascade: false,
                    metadata: std::collections::BTreeMap::default(),
                },
                &change(1),
            )
            .await
            .expect("an entity");
        take(&store, "org", &limits("rpm:10/day"), 1, START).await;
    });
    fill_resources(scratch, 5_000);
    runtime().block_on(async {
        let (org, change) = (entity("org"), change(2));
        let mut deletion = store.delete_entity(&org, &change);
        std::future::poll_fn(|context| {
            assert!(deletion.as_mut().poll(context).is_pending(), "it is done already");
            context.waker().wake_by_ref();
            if count(scratch, "spread") == 1 { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        then(deletion);
    });
    store
}

/// Takes until nothing is left to do; how many were granted.
fn granted_until_done(scratch: &Scratch, store: &SqliteStore) -> u64 {
    let mut granted = 0;
    for _ in 0..100_000 {
        let outcome = runtime()
            .block_on(try_take(store, "org", &limits("rpm:10/day"), 1, START))
            .expect("a decision");
        granted += u64::from(matches!(outcome, ConsumeOutcome::Granted(_)));
        if count(scratch, "spread") == 0 {
            return granted;
        }
    }
    panic!("nobody goes on with the deletion: {:?}", store.writer_stats());
}

/// A bucket made after the deletion is not forgotten by its next steps.
#[test]
fn a_deletion_in_steps_forgives_a_bucket_once() {
    let scratch = Scratch::new();
    let store = deleted_half(&scratch);
    let granted = granted_until_done(&scratch, &store)
        + (0..20).map(|_| granted_until_done(&scratch, &store)).sum::<u64>();
    assert_eq!(granted, 10, "one full bucket");
}

/// Somebody keeps the lock while the buckets go: the entity is deleted, and the rest is done later.
#[test]
fn a_deletion_that_finds_the_file_locked_is_made_all_the_same() {
    let scratch = Scratch::new();
    let store = scratch.open_with(SqliteOptions::new().busy_deadline(Duration::from_millis(60)));
    let other = scratch.sqlite();
    half_deleted(&scratch, store, |deletion| {
        other.execute_batch("BEGIN IMMEDIATE").expect("the lock");
        let deleted = std::thread::scope(|scope| {
            scope.spawn(|| runtime().block_on(deletion)).join().expect("no panic")
        });
        assert_eq!(deleted.expect("a deletion").buckets, 5_001);
        other.execute_batch("COMMIT").expect("let go");
    });
    granted_until_done(&scratch, &scratch.open());
    assert_eq!(count(&scratch, "bucket"), 1, "the one that is in use");
}

/// The process that deletes ends half way; whoever takes in that namespace goes on with it.
#[test]
fn a_deletion_that_was_left_half_done_is_finished_by_whoever_takes() {
    let scratch = Scratch::new();
    drop(deleted_half(&scratch));
    let other = scratch.open();
    let granted = granted_until_done(&scratch, &other)
        + (0..20).map(|_| granted_until_done(&scratch, &other)).sum::<u64>();
    assert_eq!(granted, 10, "one full bucket");
    assert_eq!(count(&scratch, "bucket"), 1, "the one that is in use");
}
