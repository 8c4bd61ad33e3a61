//! Futures and leases dropped at every point: once the settler has drained, no token is lost and
//! none is given back twice.
//!
//! Every test runs on both stores, with calls that are pending before they are carried out, after
//! it, both or neither. The oracle of the rig compares all buckets after every write; the tests
//! look at what was consumed in the end.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::cell::Cell;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use zae_limiter::{AcquireError, Lease, Level, NewEntity, OnDrop, Request, Settled};
use zae_limiter_store::Clock;
use zae_limiter_testkit::sim::Backend;
use zae_limiter_testkit::sim::rig::{Polled, Rig, poll_times};

const BACKENDS: [Backend; 2] = [Backend::Memory, Backend::Sqlite];
/// Polls before a call is carried out, and until it is answered.
const DELAYS: [(u32, u32); 4] = [(0, 0), (2, 0), (0, 2), (2, 2)];
const DROPS: [OnDrop; 3] = [OnDrop::Rollback, OnDrop::Commit, OnDrop::Keep];
/// No future here takes this many polls.
const POLLS_MAX: u32 = 64;
const MEMBERS: [&str; 2] = ["key", "team"];

/// A limiter whose `key` cascades to `team`, with room for everything these tests take.
fn rig(backend: Backend) -> Rig {
    let rig = Rig::new(backend);
    rig.run(async {
        let limiter = rig.limiter();
        for (id, parent) in [("team", None), ("key", Some("team"))] {
            let parent = parent.map(|parent: &str| parent.parse().unwrap());
            let cascade = parent.is_some();
            let new = NewEntity {
                id: id.parse().unwrap(),
                name: id.into(),
                parent,
                cascade,
                metadata: Default::default(),
            };
            limiter.create_entity(new).await.unwrap();
        }
        limiter
            .set_limits(
                &Level::System,
                ["rpm:100000/day".parse().unwrap(), "tpm:100000/day".parse().unwrap()],
            )
            .await
            .unwrap();
    });
    rig
}

fn request() -> Request {
    Request::new("key", "gpt-4").take("rpm", 10).take("tpm", 20)
}

fn acquired(rig: &Rig, request: Request) -> Lease {
    rig.run(rig.limiter().acquire(request)).unwrap()
}

/// Nothing was given up or left behind, and both members consumed this much.
#[track_caller]
fn check_consumed(rig: &Rig, rpm: i64, tpm: i64, context: &str) {
    let settled = rig.drain();
    let nothing = (settled.lost, settled.abandoned, settled.pending);
    assert_eq!(nothing, (0, 0, 0), "{context}: {settled:?}");
    for member in MEMBERS {
        assert_eq!(
            (rig.consumed(member, "rpm"), rig.consumed(member, "tpm")),
            (rpm, tpm),
            "{context}: consumed by {member}"
        );
    }
}

/// A fresh rig, and when to drop.
struct Moment {
    rig: Rig,
    polls: u32,
    delays: (u32, u32),
    context: String,
}

impl Moment {
    /// Polls as often as this moment says, with a slow store; true when the future came to its end.
    fn comes_to_its_end<T>(&self, future: impl Future<Output = T>, check: impl FnOnce(T)) -> bool {
        self.rig.slow_down(self.delays.0, self.delays.1);
        let ended = match poll_times(future, self.polls) {
            Polled::Ready(value, _) => {
                check(value);
                true
            }
            Polled::Pending(future) => {
                drop(future);
                false
            }
        };
        self.rig.slow_down(0, 0);
        ended
    }
}

/// Runs `scenario` with 0, 1, 2, … polls until it says that its future came to its end.
fn at_every_poll(scenario: impl Fn(&Moment) -> bool) {
    for backend in BACKENDS {
        for delays in DELAYS {
            let polled_to_the_end = (0..POLLS_MAX).find(|polls| {
                let context = format!(
                    "{} with delays {delays:?}, dropped after {polls} polls",
                    backend.as_str()
                );
                scenario(&Moment { rig: rig(backend), polls: *polls, delays, context })
            });
            let polls = polled_to_the_end.unwrap_or_else(|| {
                panic!("{} with delays {delays:?}: it never ends", backend.as_str())
            });
            assert!(
                polls > delays.0 + delays.1,
                "{} with delays {delays:?}: only {polls} polls",
                backend.as_str()
            );
        }
    }
}

#[test]
fn an_acquire_dropped_at_every_poll_takes_nothing() {
    at_every_poll(|moment| {
        let rig = &moment.rig;
        let ended = moment.comes_to_its_end(rig.limiter().acquire(request()), |lease| {
            rig.slow_down(0, 0);
            rig.run(lease.unwrap().commit()).unwrap();
        });
        let (rpm, tpm) = if ended { (10, 20) } else { (0, 0) };
        check_consumed(rig, rpm, tpm, &moment.context);
        ended
    });
}

#[test]
fn a_waiting_acquire_dropped_in_its_sleep_takes_nothing() {
    for backend in BACKENDS {
        let rig = rig(backend);
        let all = acquired(&rig, Request::new("key", "gpt-4").take("rpm", 100_000));
        let waiting = rig.limiter().acquire(request().wait(Duration::from_secs(86_400)));
        let Polled::Pending(waiting) = poll_times(waiting, 5) else {
            panic!("there is nothing left to take")
        };
        drop(waiting);
        rig.run(all.commit()).unwrap();
        check_consumed(&rig, 100_000, 0, backend.as_str());
    }
}

/// A lease that used more of one limit and less of the other than it took.
fn uneven(rig: &Rig, on_drop: OnDrop) -> Lease {
    let lease = acquired(rig, request().on_drop(on_drop));
    lease.record("rpm", 14).unwrap();
    lease.record("tpm", 5).unwrap();
    lease
}

/// What is consumed after `end` was dropped: before its first poll, and from then on.
fn ends_at_every_poll(
    end: impl AsyncFn(Lease) -> Result<(), zae_limiter::CommitError>,
    on_drop: OnDrop,
    unpolled: (i64, i64),
    polled: (i64, i64),
) {
    at_every_poll(|moment| {
        let lease = uneven(&moment.rig, on_drop);
        let ended = moment.comes_to_its_end(end(lease), Result::unwrap);
        let (rpm, tpm) = if moment.polls == 0 { unpolled } else { polled };
        check_consumed(&moment.rig, rpm, tpm, &moment.context);
        ended
    });
}

#[test]
fn a_commit_dropped_at_every_poll_charges_what_was_recorded() {
    // Before its first poll a commit is a lease like any other, and dropping it acts as its request
    // says.
    ends_at_every_poll(Lease::commit, OnDrop::Rollback, (0, 0), (14, 5));
    ends_at_every_poll(Lease::commit, OnDrop::Commit, (14, 5), (14, 5));
    ends_at_every_poll(Lease::commit, OnDrop::Keep, (10, 20), (14, 5));
}

#[test]
fn a_rollback_dropped_at_every_poll_gives_everything_back() {
    ends_at_every_poll(Lease::rollback, OnDrop::Rollback, (0, 0), (0, 0));
    ends_at_every_poll(Lease::rollback, OnDrop::Commit, (14, 5), (0, 0));
    ends_at_every_poll(Lease::rollback, OnDrop::Keep, (10, 20), (0, 0));
}

#[test]
fn a_flush_dropped_at_every_poll_writes_once() {
    at_every_poll(|moment| {
        let lease = uneven(&moment.rig, OnDrop::Rollback);
        let ended = moment.comes_to_its_end(lease.flush(), Result::unwrap);
        let (rpm, tpm) = if moment.polls == 0 { (10, 20) } else { (14, 5) };
        check_consumed(&moment.rig, rpm, tpm, &moment.context);
        // Nothing is buffered any more once a flush has begun.
        moment.rig.run(lease.commit()).unwrap();
        check_consumed(&moment.rig, 14, 5, &moment.context);
        ended
    });
}

#[test]
fn more_of_a_lease_dropped_at_every_poll_takes_nothing_more() {
    at_every_poll(|moment| {
        let lease = acquired(&moment.rig, request());
        let ended = moment.comes_to_its_end(lease.consume([("tpm", 7)]), Result::unwrap);
        moment.rig.run(lease.commit()).unwrap();
        check_consumed(&moment.rig, 10, if ended { 27 } else { 20 }, &moment.context);
        ended
    });
}

/// What is left of a lease that recorded 14 and 5 when it is dropped.
fn left_by(on_drop: OnDrop) -> (i64, i64) {
    match on_drop {
        OnDrop::Rollback => (0, 0),
        OnDrop::Commit => (14, 5),
        OnDrop::Keep => (10, 20),
    }
}

/// Pending for one poll.
async fn pause() {
    let mut waited = false;
    std::future::poll_fn(move |_| {
        if std::mem::replace(&mut waited, true) {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
}

#[test]
fn a_with_lease_dropped_at_every_poll_acts_as_its_request_says() {
    for on_drop in DROPS {
        at_every_poll(|moment| {
            let (begun, ended) = (Cell::new(false), Cell::new(false));
            let work = async |lease: &Lease| {
                lease.record("rpm", 14).unwrap();
                lease.record("tpm", 5).unwrap();
                begun.set(true);
                pause().await;
                ended.set(true);
                Ok::<(), AcquireError>(())
            };
            let with_lease = moment.rig.limiter().with_lease(request().on_drop(on_drop), work);
            let finished = moment.comes_to_its_end(with_lease, Result::unwrap);
            let (rpm, tpm) = match (begun.get(), ended.get()) {
                (false, _) => (0, 0),
                (true, false) => left_by(on_drop),
                (true, true) => (14, 5),
            };
            check_consumed(&moment.rig, rpm, tpm, &format!("{on_drop:?}, {}", moment.context));
            finished
        });
    }
}

#[test]
fn a_panic_inside_with_lease_acts_as_the_request_says() {
    for backend in BACKENDS {
        for on_drop in DROPS {
            let rig = rig(backend);
            let work = async |lease: &Lease| -> Result<(), AcquireError> {
                lease.record("rpm", 14).unwrap();
                lease.record("tpm", 5).unwrap();
                // Without the message that a panic prints.
                std::panic::resume_unwind(Box::new("the work panicked"))
            };
            let worked = AssertUnwindSafe(|| {
                rig.run(rig.limiter().with_lease(request().on_drop(on_drop), work))
            });
            assert!(std::panic::catch_unwind(worked).is_err());
            let (rpm, tpm) = left_by(on_drop);
            check_consumed(&rig, rpm, tpm, &format!("{on_drop:?} on {}", backend.as_str()));
        }
    }
}

#[test]
fn work_that_fails_gives_everything_back_whatever_drop_would_do() {
    for backend in BACKENDS {
        for on_drop in DROPS {
            let rig = rig(backend);
            let failed = rig.run(rig.limiter().with_lease(
                request().on_drop(on_drop),
                async |lease: &Lease| {
                    lease.record("rpm", 14).unwrap();
                    Err::<(), AcquireError>(AcquireError::from(zae_limiter::Invalid::Refused(
                        "the work failed".into(),
                    )))
                },
            ));
            assert!(failed.is_err());
            check_consumed(&rig, 0, 0, &format!("{on_drop:?} on {}", backend.as_str()));
        }
    }
}

/// How far a lease has come when it is dropped.
const STAGES: [&str; 4] = ["fresh", "recorded", "flushed", "with more"];

#[test]
fn a_lease_dropped_anywhere_acts_as_its_request_says() {
    for backend in BACKENDS {
        for on_drop in DROPS {
            for (stage, name) in STAGES.iter().enumerate() {
                let rig = rig(backend);
                let lease = acquired(&rig, request().on_drop(on_drop));
                let (mut taken, mut used) = ((10, 20), (10, 20));
                if stage >= 1 {
                    lease.record("rpm", 14).unwrap();
                    lease.record("tpm", 5).unwrap();
                    used = (14, 5);
                }
                if stage >= 2 {
                    rig.run(lease.flush()).unwrap();
                    taken = used;
                }
                if stage >= 3 {
                    rig.run(lease.consume([("tpm", 7)])).unwrap();
                    (taken, used) = ((14, 12), (14, 12));
                    lease.adjust("rpm", -100).unwrap();
                    // Use never falls below nothing: no more can be given back than was taken.
                    used.0 = 0;
                }
                drop(lease);
                let (rpm, tpm) = match on_drop {
                    OnDrop::Rollback => (0, 0),
                    OnDrop::Commit => used,
                    OnDrop::Keep => taken,
                };
                check_consumed(
                    &rig,
                    rpm,
                    tpm,
                    &format!("{name}, {on_drop:?} on {}", backend.as_str()),
                );
            }
        }
    }
}

#[test]
fn a_commit_on_drop_charges_a_debt_exactly() {
    for backend in BACKENDS {
        let rig = rig(backend);
        let lease = acquired(&rig, request().on_drop(OnDrop::Commit));
        lease.record("tpm", 150_000).unwrap();
        drop(lease);
        check_consumed(&rig, 10, 150_000, backend.as_str());
        let tpm = rig.stored("key", "tpm").unwrap();
        assert!(tpm.balance < 0, "{tpm:?}");
    }
}

/// Jobs that may wait for the settler.
const QUEUE_MAX: u64 = 4096;

#[test]
fn what_does_not_fit_the_queue_stays_spent_and_is_counted() {
    const EXTRA: u64 = 4;
    let rig = rig(Backend::Memory);
    let leases: Vec<Lease> = (0..QUEUE_MAX + EXTRA)
        .map(|_| {
            match poll_times(rig.limiter().acquire(Request::new("team", "gpt-4").take("rpm", 1)), 1)
            {
                Polled::Ready(lease, _) => lease.unwrap(),
                Polled::Pending(_) => panic!("the memory store answers at once"),
            }
        })
        .collect();
    // Nobody runs the settler between these.
    drop(leases);
    let Settled { settled, abandoned, lost, pending } = rig.drain();
    assert_eq!((settled, abandoned, lost, pending), (QUEUE_MAX, EXTRA, 0, 0));
    assert_eq!(rig.consumed("team", "rpm"), EXTRA.cast_signed(), "what was abandoned stays spent");
}

#[test]
fn a_hung_store_costs_time_and_no_token_more_than_was_asked() {
    for backend in BACKENDS {
        let rig = rig(backend);
        // Pending for longer than any deadline; the clock decides.
        rig.slow_down(1_000_000, 0);
        let Polled::Pending(mut acquire) = poll_times(rig.limiter().acquire(request()), 3) else {
            panic!("the store hangs")
        };
        let began = rig.clock().monotonic();
        rig.clock().advance(Duration::from_secs(1));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let std::task::Poll::Ready(answer) = acquire.as_mut().poll(&mut context) else {
            panic!("the deadline is over")
        };
        assert!(matches!(answer, Err(AcquireError::Unavailable(_))), "{answer:?}");
        assert_eq!(rig.clock().monotonic() - began, Duration::from_secs(1));
        drop(acquire);
        check_consumed(&rig, 0, 0, backend.as_str());
    }
}
