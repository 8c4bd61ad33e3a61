//! Many callers at once: the sums are right in every order.

use zae_limiter_core::{Entity, Wait};

use super::fixture::{Ask, Fixture, SECOND, ask, at, fails, limits, resource_level, rpm};
use crate::Adjusted::{Dropped, Recreated};
use crate::StoreErrorKind::{AlreadyExists, Conflict, NotFound, State};
use crate::{
    Adopted, ConsumeOutcome, EntityUpdate, Level, LimitsInForce, StoreError, StoreErrorKind,
};
use zae_limiter_core::Flag::Disabled;

const TASKS: usize = 16;

/// How often a loser of a race for a version reads and tries again.
const RETRIES_MAX: usize = 100;

fn sum(counts: &[i64]) -> i64 {
    counts.iter().sum()
}

/// Asks again while the store is too busy for an answer.
async fn insist<T, F: Future<Output = Result<T, StoreError>>>(
    attempt: impl Fn() -> F,
) -> Result<T, StoreError> {
    for _ in 0..RETRIES_MAX {
        match attempt().await {
            Err(error) if error.is_retryable() => tokio::task::yield_now().await,
            answer => return answer,
        }
    }
    panic!("expected an answer within {RETRIES_MAX} attempts; the store is starving its callers");
}

/// Asks `attempts` times; how many of them were granted.
async fn grants(f: &Fixture, attempts: i64, asks: &[Ask]) -> i64 {
    let mut granted = 0;
    for _ in 0..attempts {
        granted += i64::from(f.insist(asks, at(0)).await.is_granted());
    }
    granted
}

pub(super) async fn one_bucket_admits_exactly_its_capacity(f: Fixture) {
    let granted = f.together(TASKS, |_, f| async move {
        grants(&f, 100, &[ask("key", &limits("n:1000/day"), "n=1")]).await
    });
    assert_eq!(sum(&granted.await), 1_000, "of 1600 attempts");
    assert_eq!(f.balances("key", at(0)).await, [0]);
    assert_eq!(f.consumed("key").await, [1_000_000]);
}

pub(super) async fn the_first_takes_create_one_bucket(f: Fixture) {
    for round in 0..20 {
        let id = format!("key-{round}");
        let one = ask(&id, &limits("n:10/day"), "n=1");
        let granted = f.together(TASKS, |_, f| {
            let one = [one.clone()];
            async move { grants(&f, 1, &one).await }
        });
        assert_eq!(sum(&granted.await), 10, "round {round}");
        assert_eq!(f.balances(&id, at(0)).await, [0], "round {round}");
    }
}

pub(super) async fn refill_is_credited_once(f: Fixture) {
    // All tasks want the same refill; one millisecond is one token.
    let rate = limits("n:1000/sec:100");
    f.take(&ask("key", &rate, "n=100"), at(0)).await.granted(&[0]);
    let granted = f.together(TASKS, move |_, f| async move {
        let one = [ask("key", &limits("n:1000/sec:100"), "n=1")];
        let mut granted = 0;
        for ms in 1..=50 {
            granted += i64::from(f.insist(&one, at(ms)).await.is_granted());
        }
        granted
    });
    let (granted, left) = (sum(&granted.await), f.balances("key", at(50)).await[0]);
    let found = granted * 1_000 + left;
    assert_eq!(found, 50_000, "{granted} grants and {left} millitokens left of 50 ms");
}

pub(super) async fn chains_take_the_same_from_children_and_parent(f: Fixture) {
    let granted = f.together(TASKS, |task, f| async move {
        let child = ask(&format!("child-{}", task % 4), &limits("n:200/day"), "n=1");
        grants(&f, 60, &[child, ask("parent", &limits("n:500/day"), "n=1")]).await
    });
    let granted = sum(&granted.await);
    if f.store.capabilities().atomic_chains {
        assert_eq!(granted, 500, "the parent's capacity, of 960 attempts");
    } else {
        // Where a refused chain gives its takes back, others may be refused meanwhile; but nothing
        // is lost.
        assert!((1..=500).contains(&granted), "at most the parent's capacity, found {granted}");
        let left = f.balances("parent", at(0)).await;
        assert_eq!(left, [500_000 - granted * 1_000], "what nobody was granted is still there");
    }
    let mut children = 0;
    for child in 0..4 {
        // A child whose every attempt came too late has no bucket.
        let bucket = f.bucket(&format!("child-{child}")).await;
        children += bucket.map_or(0, |state| state.all_limits()[0].consumed.0);
    }
    let (found, expected) = ((children, f.consumed("parent").await[0]), granted * 1_000);
    assert_eq!(found, (expected, expected), "what the children took, the parent gave");
}

pub(super) async fn chains_in_opposite_order_do_not_block_each_other(f: Fixture) {
    let granted = f.together(TASKS, |task, f| async move {
        let mut members: Vec<Ask> =
            ["a", "b", "c"].map(|id| ask(id, &limits("n:1000/day"), "n=1")).into();
        members.rotate_left(task % 3);
        if task % 2 == 0 {
            members.reverse();
        }
        grants(&f, 50, &members).await
    });
    assert_eq!(sum(&granted.await), 800, "all of them fit");
    for id in ["a", "b", "c"] {
        assert_eq!(f.consumed(id).await, [800_000], "{id}");
    }
}

pub(super) async fn a_refused_chain_is_never_seen(f: Fixture) {
    let (own, empty) = (limits("n:10/day"), limits("n:5/day"));
    f.take(&ask("child", &own, "n=0"), at(0)).await.granted(&[10_000]);
    f.take(&ask("parent", &empty, "n=5"), at(0)).await.granted(&[0]);
    let seen = f.together(TASKS, |task, f| async move {
        let child = ask("child", &limits("n:10/day"), "n=5");
        for _ in 0..50 {
            if task % 2 == 0 {
                let members = [child.clone(), ask("parent", &limits("n:5/day"), "n=5")];
                assert!(!f.insist(&members, at(0)).await.is_granted(), "the parent is empty");
            } else {
                // The child of a refused chain is untouched at every moment.
                f.peek(std::slice::from_ref(&child), at(0)).await.granted(&[10_000]);
            }
        }
    });
    seen.await;
}

pub(super) async fn takes_and_adjustments_add_up(f: Fixture) {
    let granted = f.together(TASKS, |task, f| async move {
        let n = limits("n:100000/day");
        let mut taken = 0;
        for step in 0..40 {
            if task % 2 == 0 {
                taken += 3 * grants(&f, 1, &[ask("key", &n, "n=3")]).await;
            } else {
                let tokens = if step % 2 == 0 { 5 } else { -2 };
                let change = ask("key", &n, &format!("n={tokens}"));
                let adjusted = insist(|| f.try_adjust(&change, at(0))).await;
                // A refund before the first take or charge has nothing to go to.
                if adjusted.expect("never refused") != Dropped {
                    taken += tokens;
                }
            }
        }
        taken
    });
    let taken = sum(&granted.await) * 1_000;
    assert_eq!(f.consumed("key").await, [taken], "takes and adjustments");
    let left = f.balances("key", at(0)).await;
    assert_eq!(left, [100_000_000 - taken], "and the balance is what they left");
}

pub(super) async fn charges_on_a_missing_bucket_create_it_once(f: Fixture) {
    let results = f.together(TASKS, |_, f| async move {
        let charge = ask("key", &limits("n:10/day"), "n=1");
        insist(|| f.try_adjust(&charge, at(0))).await.expect("never refused")
    });
    let recreated = results.await.into_iter().filter(|adjusted| *adjusted == Recreated).count();
    assert_eq!(recreated, 1, "one of them created it");
    assert_eq!(f.balances("key", at(0)).await, [-6_000], "and all of them were charged");
}

pub(super) async fn changing_limits_mints_nothing(f: Fixture) {
    const ATTEMPTS_MAX: usize = 200;
    f.set(&Level::System, "n:100/day").await;
    let granted = f.together(TASKS, |task, f| async move {
        let mut granted = 0;
        for step in 0..20 {
            if task < 2 {
                let limits = if step % 2 == 0 { "n:50/day" } else { "n:100/day" };
                let set = insist(|| f.try_set(&Level::System, limits, None)).await;
                set.expect("limits can be set");
                continue;
            }
            // As a limiter does: stale means read again.
            for _ in 0..ATTEMPTS_MAX {
                let limits = f.in_force("key").await;
                let answer = f.insist(&[ask("key", &limits, "n=1")], at(0)).await;
                granted += i64::from(answer.is_granted());
                if !matches!(answer.outcome, ConsumeOutcome::Stale { .. }) {
                    break;
                }
            }
        }
        granted
    });
    let granted = sum(&granted.await);
    let is_within = (1..=100).contains(&granted);
    assert!(is_within, "at most the largest capacity there ever was, found {granted}");
    assert_eq!(f.consumed("key").await, [granted * 1_000], "and every grant is counted");
}

/// 1 for the winner; every other caller failed in this way.
fn wins<T: std::fmt::Debug>(result: Result<T, StoreError>, lost: StoreErrorKind) -> i64 {
    let is_won = result.is_ok();
    if !is_won {
        fails(result, lost);
    }
    i64::from(is_won)
}

pub(super) async fn one_of_many_creates_an_entity(f: Fixture) {
    let created = f.together(TASKS, |_, f| async move {
        wins(insist(|| f.try_create("key", None, false)).await, AlreadyExists)
    });
    assert_eq!(sum(&created.await), 1, "exactly one wins");
}

pub(super) async fn one_of_many_changes_a_version(f: Fixture) {
    let version = f.set(&Level::System, "n:1").await;
    let changed = f.together(TASKS, move |task, f| async move {
        let limits = format!("n:{}", 100 + task);
        wins(insist(|| f.try_set(&Level::System, &limits, Some(version))).await, Conflict)
    });
    let changed = changed.await;
    assert_eq!(sum(&changed), 1, "exactly one wins");
    let stored = f.level(&Level::System).await.expect("it is there").limits[0].capacity();
    let winner = changed.iter().position(|won| *won == 1).expect("one wins");
    assert_eq!(stored, 100 + winner as u64, "its limits are stored");
}

pub(super) async fn no_update_is_lost(f: Fixture) {
    f.create("key").await;
    let updates = f.together(TASKS, |task, f| async move {
        for _ in 0..RETRIES_MAX {
            let Entity { mut metadata, version, .. } = f.entity("key").await.expect("it is there");
            metadata.insert(format!("task-{task}"), "was here".to_owned());
            let update = EntityUpdate { name: None, metadata: Some(metadata) };
            match f.try_update("key", version, &update).await {
                Ok(_) => return,
                Err(error) if error.is_retryable() || error.kind() == Conflict => {
                    tokio::task::yield_now().await
                }
                Err(error) => panic!("expected a conflict at worst, found {error}"),
            }
        }
        panic!("expected to win within {RETRIES_MAX} attempts");
    });
    updates.await;
    let stored = f.entity("key").await.expect("it is there");
    assert_eq!(stored.metadata.len(), TASKS, "everybody was here: {:?}", stored.metadata);
}

pub(super) async fn nothing_is_granted_once_disabling_has_returned(f: Fixture) {
    let one = |task: usize, round: usize| {
        ask(&format!("key-{task}"), &limits("n:10/day"), "n=1").on(&format!("r{round}"))
    };
    for round in 0..10 {
        let late = f.together(TASKS, move |task, f| async move {
            if task > 0 {
                grants(&f, 5, &[one(task, round)]).await;
                return;
            }
            let level = resource_level(&format!("r{round}"));
            insist(|| f.try_flag(&level, Some(Disabled), at(0))).await.expect("a flag");
            // From here on: buckets that were there, that came meanwhile, and that were never
            // there.
            for id in 1..=TASKS {
                f.insist(&[one(id, round)], at(0)).await.disabled(0);
            }
        });
        late.await;
        for id in 1..TASKS {
            f.take(&one(id, round), at(0)).await.disabled(0);
        }
    }
}

pub(super) async fn a_parent_is_not_deleted_under_its_new_child(f: Fixture) {
    for round in 0..20 {
        let (parent, child) = (format!("parent-{round}"), format!("child-{round}"));
        f.create(&parent).await;
        let (of, id) = (parent.clone(), child.clone());
        let race = f.together(2, move |task, f| {
            let (parent, child) = (of.clone(), id.clone());
            async move {
                if task == 0 {
                    let deleted = insist(|| f.try_delete(&parent)).await.map_err(|e| e.kind());
                    assert!(matches!(deleted, Ok(_) | Err(State)), "found {deleted:?}");
                } else {
                    let created = insist(|| f.try_create(&child, Some(&parent), true)).await;
                    // The parent is not there any more, or about to go.
                    let created = created.map_err(|e| e.kind());
                    let is_right = matches!(created, Ok(_) | Err(NotFound | State));
                    assert!(is_right, "found {created:?}");
                }
            }
        });
        race.await;
        let there = (f.entity(&parent).await.is_some(), f.entity(&child).await.is_some());
        assert_eq!(there.0, there.1, "round {round}: both, or neither (parent, child)");
    }
}

pub(super) async fn a_name_is_registered_once(f: Fixture) {
    let registered = f.together(TASKS, |task, f| async move {
        let id = format!("id-{task}");
        let registered = insist(|| f.try_register("tenant", &id)).await;
        registered.expect("registering twice is not an error").id
    });
    let ids = registered.await;
    assert!(ids.iter().all(|id| *id == ids[0]), "everybody is told the same id, found {ids:?}");
}

pub(super) async fn a_sweep_forgives_nobody(f: Fixture) {
    // Expired at once, and full as soon as a millisecond has passed: every take leaves a bucket
    // that must be kept.
    let granted = f.together(TASKS, |task, f| async move {
        let hasty = LimitsInForce { ttl_ms: Some(0), ..limits("n:100/day") };
        if task > 0 {
            return grants(&f, 20, &[ask("key", &hasty, "n=1")]).await;
        }
        for _ in 0..20 {
            insist(|| f.store.sweep(at(0), 1_000)).await.expect("a store can be swept");
        }
        0
    });
    assert_eq!(sum(&granted.await), 100, "a swept bucket would have started anew");
}

pub(super) async fn everything_at_once_keeps_the_bound(f: Fixture) {
    // Takes, refunds of what was taken, and moving time: never more than capacity and rate, and
    // nothing is lost.
    let outcome = f.together(TASKS, |task, f| async move {
        let n = limits("n:60/min:50");
        let mut net = 0;
        for step in 0..30_i64 {
            let now = at(step * SECOND);
            if f.insist(&[ask("key", &n, "n=2")], now).await.is_granted() {
                net += 2;
                if task % 3 == 0 {
                    let refund = ask("key", &n, "n=-1");
                    insist(|| f.try_adjust(&refund, now)).await.expect("never refused");
                    net -= 1;
                }
            }
        }
        net
    });
    let net = sum(&outcome.await);
    assert!(net <= 50 + 30, "{net} tokens net, of a capacity of 50 and 30 seconds at one a second");
    assert_eq!(f.consumed("key").await, [net * 1_000], "what was counted is what was taken");
    let balance = f.bucket("key").await.expect("the bucket is there").limits()[0].balance;
    assert!(balance.0 >= 0, "takes never lead into debt, found {balance:?}");
}

pub(super) async fn a_bucket_is_adopted_once(f: Fixture) {
    const COUNT: usize = 8;
    let old = f.tenant("old").await;
    old.take(&rpm("key", 60), at(0)).await.granted(&[0]);
    let buckets = old.every_bucket().await;
    let answers = f
        .together(COUNT, move |index, f| {
            let buckets = buckets.clone();
            async move {
                if index % 2 == 0 {
                    return f.adopt(&buckets, 0).await == [Adopted::Made];
                }
                // A take that is first makes a bucket that is full.
                f.insist(&[rpm("key", 1)], at(0)).await;
                false
            }
        })
        .await;
    let made = answers.into_iter().filter(|is_made| *is_made).count();
    assert!(made <= 1, "the bucket was made {made} times");
    let taken = f.insist(&[rpm("key", 61)], at(0)).await;
    taken.refused(&[(taken.reports()[0].balance.0, Wait::Never)]);
    let left = f.balances("key", at(0)).await.found[0];
    assert!(if made == 1 { left <= 0 } else { left <= 60_000 }, "{left} left, {made} made");
}
