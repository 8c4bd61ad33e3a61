//! One process, many callers: who works inline, who shares a transaction, and that the sums are
//! exact either way.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use crate::common::{START, Scratch, bucket, change, entity, gpt, limits, runtime, take, try_take};
use zae_limiter_core::{Flag, Milli, Take};
use zae_limiter_sqlite::{SqliteOptions, SqliteStore, Synchronous};
use zae_limiter_store::{
    Adjusted, BucketDelta, BucketStore, ConfigStore, ConsumeRequest, Delta, Level, ManualClock,
    MemberTake, ResetRequest, StoreError, StoreErrorKind,
};

#[expect(clippy::disallowed_methods, reason = "tests may spawn")]
fn spawn<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    tokio::spawn(work)
}

#[test]
fn a_lone_caller_works_inline() {
    let scratch = Scratch::new();
    runtime().block_on(async {
        let store = scratch.open();
        let rpm = limits("rpm:60/min");
        for left in (0..60).rev() {
            assert_eq!(take(&store, "key", &rpm, 1, START).await, Some(left));
        }
        assert_eq!(take(&store, "key", &rpm, 1, START).await, None);
        let stats = store.writer_stats();
        assert_eq!((stats.inline, stats.queued, stats.batches, stats.tasks), (61, 0, 0, 0));
        assert_eq!(stats.rows_written, 60, "a refusal writes nothing");
    });
}

#[test]
fn a_durable_commit_is_never_waited_for_inline() {
    let scratch = Scratch::new();
    runtime().block_on(async {
        let store = scratch.open_with(SqliteOptions::new().synchronous(Synchronous::Full));
        assert_eq!(take(&store, "key", &limits("rpm:60/min"), 1, START).await, Some(59));
        let stats = store.writer_stats();
        assert_eq!((stats.inline, stats.queued, stats.batches), (0, 1, 1));
    });
}

/// While another process writes, callers queue up; when it is done, they share one transaction, and
/// their bucket is read and written once.
#[test]
fn those_who_wait_share_a_transaction_and_a_row() {
    let scratch = Scratch::new();
    runtime().block_on(async {
        // A clock that stands still, so that the time a batch may take is never over.
        let store =
            scratch.open_with(SqliteOptions::new().clock(Arc::new(ManualClock::new(START))));
        let other = scratch.sqlite();
        other.execute_batch("BEGIN IMMEDIATE").expect("the lock");
        let rpm = limits("rpm:60/min");
        let mut callers: Vec<_> =
            (0..100).map(|_| Box::pin(take(&store, "hot", &rpm, 1, START))).collect();
        for caller in &mut callers {
            assert!(poll_once(caller.as_mut()).await.is_none(), "it queues");
        }
        other.execute_batch("COMMIT").expect("let go");
        let mut balances = Vec::new();
        for caller in callers {
            balances.push(caller.await);
        }
        let expected: Vec<Option<i64>> = (0..60).rev().map(Some).chain([None; 40]).collect();
        assert_eq!(balances, expected, "in the order in which they came, each token once");
        let stats = store.writer_stats();
        assert_eq!((stats.inline, stats.queued, stats.batches), (0, 100, 1));
        assert_eq!(stats.rows_written, 1);
        // In a crowd it pays to go on sharing; whoever then finds themselves alone for a while
        // works inline again.
        for alone in 1..=16 {
            take(&store, "hot", &rpm, 1, START).await;
            assert_eq!(
                (store.writer_stats().inline, store.writer_stats().queued),
                (0, 100 + alone)
            );
        }
        take(&store, "hot", &rpm, 1, START).await;
        assert_eq!((store.writer_stats().inline, store.writer_stats().queued), (1, 116));
    });
}

async fn poll_once<T>(mut future: std::pin::Pin<&mut impl Future<Output = T>>) -> Option<T> {
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// A lone caller who queues comes back just when the thread goes to sleep, again and again, and the
/// last handle goes then too: whoever is not heard waits for ever.
#[test]
fn the_thread_sleeps_through_nothing() {
    const CALLERS: u32 = 3;
    const CALLS: u32 = 400;
    for synchronous in [Synchronous::Normal, Synchronous::Full] {
        let scratch = Scratch::new();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(4)
            .enable_time()
            .build()
            .expect("a runtime");
        let granted: u32 = runtime.block_on(async {
            let store = scratch.open_with(SqliteOptions::new().synchronous(synchronous));
            let callers: Vec<_> = (0..CALLERS)
                .map(|caller| {
                    let store = store.clone();
                    spawn(async move {
                        let (rpd, level, mut granted) =
                            (limits("rpd:10000/day"), Level::Resource(gpt()), 0);
                        for call in 0..CALLS {
                            granted += u32::from(
                                heard(take(&store, "hot", &rpd, 1, START)).await.is_some(),
                            );
                            // Tasks wake the thread too.
                            if call % 50 == caller {
                                heard(store.set_flag(&level, None, &change(call.into())))
                                    .await
                                    .expect("a change");
                            }
                        }
                        granted
                    })
                })
                .collect();
            let mut granted = 0;
            for caller in callers {
                granted += caller.await.expect("no panic");
            }
            granted
        });
        assert_eq!(granted, CALLERS * CALLS, "{synchronous:?}");
        for left in (0..50).rev() {
            // Its last handle goes while its thread goes to sleep.
            let store = scratch.open_with(SqliteOptions::new().synchronous(Synchronous::Full));
            assert_eq!(
                runtime.block_on(async {
                    heard(take(&store, "last", &limits("rpd:50/day"), 1, START)).await
                }),
                (left >= 0).then_some(left)
            );
        }
        let rows = scratch
            .sqlite()
            .execute("DELETE FROM bucket WHERE entity = 'last'", [])
            .expect("a deletion");
        assert_eq!(rows, 1);
    }
}

/// Far beyond what any of these takes.
#[expect(clippy::disallowed_methods, reason = "a call that is never heard should fail, not hang")]
async fn heard<T>(call: impl Future<Output = T>) -> T {
    tokio::time::timeout(std::time::Duration::from_secs(60), call)
        .await
        .expect("the thread heard of it")
}

/// What a store remembers of the last transaction holds only as long as nobody else writes: another
/// store, plain SQL, or the store itself by other means than a take.
#[test]
fn a_remembered_bucket_is_read_again_after_somebody_else_wrote() {
    let scratch = Scratch::new();
    runtime().block_on(async {
        let (here, there) = (scratch.open(), scratch.open());
        let rpd = limits("rpd:100/day");
        for left in (80..100).rev() {
            let store = if left % 3 == 0 { &there } else { &here };
            assert_eq!(take(store, "key", &rpd, 1, START).await, Some(left), "each token once");
        }
        // The same store without the cache in its way.
        let (key, resource) = (entity("key"), gpt());
        here.reset(&ResetRequest { entity: &key, resource: &resource, only: None }, &change(1))
            .await
            .expect("a reset");
        assert_eq!(take(&here, "key", &rpd, 1, START).await, Some(99));
        scratch.sqlite().execute("DELETE FROM bucket", []).expect("a deletion");
        assert_eq!(
            take(&here, "key", &rpd, 2, START).await,
            Some(98),
            "a bucket that is gone is full"
        );
        scratch.sqlite().execute("UPDATE bucket SET disabled = 1", []).expect("a change");
        let outcome = try_take(&here, "key", &rpd, 1, START).await.expect("a decision");
        assert_eq!(
            outcome,
            zae_limiter_store::ConsumeOutcome::Blocked { member: 0, flag: Flag::Disabled }
        );
    });
}

/// A transaction that fails leaves nothing behind in memory either.
#[test]
fn a_failed_transaction_is_not_remembered() {
    let scratch = Scratch::new();
    runtime().block_on(async {
        let store = scratch.open();
        let rpd = limits("rpd:100/day");
        assert_eq!(take(&store, "key", &rpd, 1, START).await, Some(99));
        let other = scratch.sqlite();
        other
            .execute_batch(
                "CREATE TRIGGER no BEFORE UPDATE ON bucket BEGIN SELECT RAISE(ABORT, 'no'); END",
            )
            .expect("a trigger");
        assert!(try_take(&store, "key", &rpd, 50, START).await.is_err(), "the write fails");
        assert!(try_take(&store, "key", &rpd, 50, START).await.is_err(), "and again");
        other.execute_batch("DROP TRIGGER no").expect("no trigger");
        assert_eq!(
            take(&store, "key", &rpd, 1, START).await,
            Some(98),
            "what was not written was not taken"
        );
    });
}

/// Two stores (as two processes have them) with 32 callers each, on one bucket: exactly the
/// capacity.
#[test]
fn a_hot_key_is_exact() {
    for synchronous in [Synchronous::Normal, Synchronous::Full] {
        let scratch = Scratch::new();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(4)
            .build()
            .expect("a runtime");
        let granted: usize = runtime.block_on(async {
            let stores =
                [(); 2].map(|()| scratch.open_with(SqliteOptions::new().synchronous(synchronous)));
            let callers: Vec<_> = (0..64)
                .map(|caller| {
                    let store = stores[caller % 2].clone();
                    spawn(async move {
                        let (rpd, mut granted) = (limits("rpd:1000/day"), 0);
                        for _ in 0..30 {
                            granted +=
                                usize::from(take(&store, "hot", &rpd, 1, START).await.is_some());
                        }
                        granted
                    })
                })
                .collect();
            let mut granted = 0;
            for caller in callers {
                granted += caller.await.expect("no panic");
            }
            granted
        });
        assert_eq!(granted, 1000, "{synchronous:?}");
        let state = runtime.block_on(bucket(&scratch.open(), "hot")).expect("a bucket").state;
        assert_eq!((state.limits()[0].consumed, state.events), (Milli::from_tokens(1000), 1000));
    }
}

/// A take whose future is dropped while it waits for its turn is not decided: somebody would only
/// have to give it back.
#[test]
fn a_take_that_nobody_waits_for_is_not_decided() {
    for synchronous in [Synchronous::Normal, Synchronous::Full] {
        let scratch = Scratch::new();
        runtime().block_on(async {
            let store = scratch.open_with(SqliteOptions::new().synchronous(synchronous));
            let rpm = limits("rpm:60/min");
            let other = scratch.sqlite();
            other.execute_batch("BEGIN IMMEDIATE").expect("the lock");
            let mut waits = Box::pin(take(&store, "key", &rpm, 1, START));
            {
                let mut dropped = pin!(try_take(&store, "key", &rpm, 10, START));
                assert!(poll_once(dropped.as_mut()).await.is_none(), "it waits for the writer");
            }
            assert!(poll_once(waits.as_mut()).await.is_none(), "it waits for the writer");
            other.execute_batch("COMMIT").expect("let go");
            assert_eq!(waits.await, Some(59));
            assert_eq!(store.writer_stats().dropped, 1);
            assert_eq!(take(&store, "key", &rpm, 1, START).await, Some(58), "{synchronous:?}");
        });
    }
}

/// A take whose time is over when its turn comes is told so, and not decided: whoever follows it up
/// has nothing to give back.
#[test]
fn a_take_whose_time_is_over_is_not_decided() {
    let scratch = Scratch::new();
    runtime().block_on(async {
        let clock = ManualClock::new(START);
        let store = scratch.open_with(SqliteOptions::new().clock(Arc::new(clock.clone())));
        let rpm = limits("rpm:60/min");
        let other = scratch.sqlite();
        other.execute_batch("BEGIN IMMEDIATE").expect("the lock");
        let mut late = Box::pin(try_take(&store, "key", &rpm, 10, START));
        assert!(poll_once(late.as_mut()).await.is_none(), "it waits for the writer");
        clock.advance(std::time::Duration::from_millis(801));
        other.execute_batch("COMMIT").expect("let go");
        let error = late.await.expect_err("nobody can still be waiting");
        assert_eq!(error.kind(), StoreErrorKind::Busy, "{error}");
        assert_eq!(take(&store, "key", &rpm, 1, START).await, Some(59), "nothing was taken");
    });
}

/// A future that is dropped before its first poll has not begun.
#[test]
fn a_future_that_is_never_polled_does_nothing() {
    let scratch = Scratch::new();
    runtime().block_on(async {
        let store = scratch.open();
        let rpm = limits("rpm:60/min");
        drop(try_take(&store, "key", &rpm, 10, START));
        assert_eq!(take(&store, "key", &rpm, 1, START).await, Some(59));
    });
}

/// What is queued when the last handle goes is finished first, although it takes several
/// transactions.
#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "another thread lets the lock go once this one is closing the store"
)]
fn the_last_handle_finishes_what_is_queued() {
    let scratch = Scratch::new();
    let levels: Vec<Level> = (0..5)
        .map(|number| Level::Resource(format!("r{number}").parse().expect("a name")))
        .collect();
    let other = scratch.sqlite();
    let store = scratch.open();
    other.execute_batch("BEGIN IMMEDIATE").expect("the lock");
    runtime().block_on(async {
        for (number, level) in (0..).zip(&levels) {
            let change = change(number);
            let mut dropped = pin!(store.set_flag(level, Some(Flag::Disabled), &change));
            assert!(poll_once(dropped.as_mut()).await.is_none(), "it queues");
        }
    });
    let let_go = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(50));
        other.execute_batch("COMMIT").expect("let go");
    });
    drop(store);
    let_go.join().expect("no panic");
    runtime().block_on(async {
        let store = scratch.open();
        for level in &levels {
            assert!(store.level(level).await.expect("a read").is_some(), "{level}");
        }
    });
}

/// Takes, corrections and administration from many callers at once: the ledger balances.
#[test]
fn everything_at_once_balances() {
    let scratch = Scratch::new();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(4).build().expect("a runtime");
    let (taken, given_back) = runtime.block_on(async {
        let store = scratch.open();
        let callers: Vec<_> = (0..16_u64)
            .map(|caller| {
                let store = store.clone();
                spawn(async move {
                    let (rpd, key, resource) = (limits("rpd:1000/day"), entity("hot"), gpt());
                    let (mut taken, mut given_back) = (0, 0);
                    for round in 0..20 {
                        if take(&store, "hot", &rpd, 3, START).await.is_some() {
                            taken += 3;
                            let deltas = [Delta { limit: 0, amount: Milli(-1000) }];
                            let delta = BucketDelta {
                                entity: &key,
                                resource: &resource,
                                limits: &rpd,
                                deltas: &deltas,
                                operation: 0,
                                take: 0,
                                place: 0,
                            };
                            assert_eq!(
                                store.adjust(&[delta], START).await[0].as_ref().ok(),
                                Some(&Adjusted::Applied)
                            );
                            given_back += 1;
                        }
                        if round == 10 {
                            let level = Level::Resource(resource.clone());
                            store
                                .set_flag(&level, None, &change(caller.into()))
                                .await
                                .expect("a change");
                        }
                    }
                    (taken, given_back)
                })
            })
            .collect();
        let mut sums = (0, 0);
        for caller in callers {
            let (taken, given_back) = caller.await.expect("no panic");
            sums = (sums.0 + taken, sums.1 + given_back);
        }
        sums
    });
    let state = runtime.block_on(bucket(&scratch.open(), "hot")).expect("a bucket").state;
    let limit = &state.limits()[0];
    assert_eq!(limit.consumed, Milli((taken - given_back) * 1000));
    assert_eq!(limit.balance.0 + limit.consumed.0, 1_000_000);
}

/// An administrator's change is seen by a decision that is queued behind it, in one process and in
/// another.
#[test]
fn a_flag_binds_from_its_return_on() {
    let scratch = Scratch::new();
    runtime().block_on(async {
        let (here, there) = (scratch.open(), scratch.open());
        let rpm = limits("rpm:60/min");
        take(&here, "old", &rpm, 1, START).await;
        let level = Level::Resource(gpt());
        assert_eq!(
            here.set_flag(&level, Some(Flag::Disabled), &change(1)).await.expect("a change"),
            1
        );
        for store in [&here, &there] {
            for id in ["old", "new"] {
                let outcome = try_take(store, id, &rpm, 1, START).await.expect("a decision");
                assert_eq!(
                    outcome,
                    zae_limiter_store::ConsumeOutcome::Blocked { member: 0, flag: Flag::Disabled },
                    "{id}"
                );
            }
        }
        assert!(bucket(&here, "new").await.is_none(), "a refusal creates nothing");
    });
}

/// Mistakes of a caller are told to that caller, and the store goes on.
#[test]
fn a_wrong_request_breaks_nothing() {
    for synchronous in [Synchronous::Normal, Synchronous::Full] {
        let scratch = Scratch::new();
        runtime().block_on(async {
            let store = scratch.open_with(SqliteOptions::new().synchronous(synchronous));
            let (rpm, key, resource) = (limits("rpm:60/min"), entity("key"), gpt());
            let takes = [Take { limit: 7, amount: Milli(1) }];
            let member = MemberTake {
                entity: &key,
                resource: &resource,
                limits: &rpm,
                takes: &takes,
                absent: &[],
            };
            let error = store
                .consume(&ConsumeRequest::new(&[member], START))
                .await
                .expect_err("no such limit");
            assert_eq!(error.kind(), StoreErrorKind::Invalid);
            let deltas = [Delta { limit: 7, amount: Milli(1) }];
            let wrong = BucketDelta {
                entity: &key,
                resource: &resource,
                limits: &rpm,
                deltas: &deltas,
                operation: 0,
                take: 0,
                place: 0,
            };
            let deltas = [Delta { limit: 0, amount: Milli(1000) }];
            let right = BucketDelta { deltas: &deltas, ..wrong };
            let results = store.adjust(&[wrong, right], START).await;
            assert_eq!(results[0].as_ref().map_err(StoreError::kind), Err(StoreErrorKind::Invalid));
            assert_eq!(results[1].as_ref().ok(), Some(&Adjusted::Recreated), "each on its own");
            assert_eq!(take(&store, "key", &rpm, 1, START).await, Some(58));
        });
    }
}

/// A handle of a purged namespace finds nothing and brings nothing back.
#[test]
fn an_old_handle_resurrects_nothing() {
    use zae_limiter_store::NamespaceStore;
    let scratch = Scratch::new();
    runtime().block_on(async {
        let store = scratch.open();
        let (name, id) = ("tenant".parse().expect("a name"), "t-1".parse().expect("an id"));
        store.register_namespace(&name, &id, &change(1)).await.expect("a namespace");
        let old: SqliteStore = store.in_namespace(&name).expect("a handle");
        let rpm = limits("rpm:60/min");
        take(&old, "key", &rpm, 1, START).await;
        store.delete_namespace(&name, &change(2)).await.expect("a deletion");
        store.purge_namespace(&id, &change(3)).await.expect("a purge");
        assert_eq!(
            try_take(&old, "key", &rpm, 1, START).await.map_err(|error| error.kind()),
            Err(StoreErrorKind::NotFound)
        );
        let (key, resource) = (entity("key"), gpt());
        let charge = [Delta { limit: 0, amount: Milli(1000) }];
        let charged = old
            .adjust(
                &[BucketDelta {
                    entity: &key,
                    resource: &resource,
                    limits: &rpm,
                    deltas: &charge,
                    operation: 0,
                    take: 0,
                    place: 0,
                }],
                START,
            )
            .await;
        assert_eq!(charged[0].as_ref().map_err(StoreError::kind), Err(StoreErrorKind::NotFound));
        let reset = old
            .reset(&ResetRequest { entity: &key, resource: &resource, only: None }, &change(4))
            .await;
        assert_eq!(reset.map_err(|error| error.kind()), Err(StoreErrorKind::NotFound));
        let rows: i64 = scratch
            .sqlite()
            .query_row("SELECT count(*) FROM bucket", [], |row| row.get(0))
            .expect("a count");
        assert_eq!(rows, 0);
    });
}
