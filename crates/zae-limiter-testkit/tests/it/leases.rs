//! Leases that the simulator found to give back what they had never taken. Each test names its bug.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::time::Duration;

use zae_limiter::{Level, NewEntity, OnDrop, Request};
use zae_limiter_testkit::sim::Backend;
use zae_limiter_testkit::sim::rig::{Polled, Rig, poll_times};

const BACKENDS: [Backend; 2] = [Backend::Memory, Backend::Sqlite];

fn set(rig: &Rig, level: &Level, limits: &[&str]) {
    let limits: Vec<_> = limits.iter().map(|text| text.parse().unwrap()).collect();
    rig.run(rig.limiter().set_limits(level, limits)).unwrap();
}

fn create(rig: &Rig, id: &str, parent: Option<&str>) {
    let parent = parent.map(|parent| parent.parse().unwrap());
    let cascade = parent.is_some();
    let new = NewEntity {
        id: id.parse().unwrap(),
        name: id.into(),
        parent,
        cascade,
        metadata: Default::default(),
    };
    rig.run(rig.limiter().create_entity(new)).unwrap();
}

/// A charge that is still on its way counted as written, so use that fell again gave back tokens
/// that nobody had paid yet, and others could take them.
#[test]
fn a_credit_never_overtakes_the_charge_it_belongs_to() {
    for backend in BACKENDS {
        let rig = Rig::new(backend);
        set(&rig, &Level::System, &["tpm:100/day"]);
        let others =
            rig.run(rig.limiter().acquire(Request::new("key", "gpt-4").take("tpm", 50))).unwrap();
        let lease = rig
            .run(
                rig.limiter()
                    .acquire(Request::new("key", "gpt-4").take("tpm", 10).on_drop(OnDrop::Keep)),
            )
            .unwrap();
        // The charge of 30 more hangs; the store is fine again when use turns out to be nothing.
        lease.record("tpm", 40).unwrap();
        rig.slow_down(1_000_000, 0);
        let Polled::Pending(flush) = poll_times(lease.flush(), 2) else {
            panic!("the store hangs")
        };
        drop(flush);
        rig.slow_down(0, 0);
        lease.record("tpm", 0).unwrap();
        let Polled::Ready(flushed, _) = poll_times(lease.flush(), 8) else {
            panic!("the store answers")
        };
        flushed.unwrap();
        let consumed = rig.consumed("key", "tpm");
        assert!(
            consumed >= 50,
            "{}: {consumed} of the 50 that others took are consumed: the rest was minted",
            backend.as_str()
        );
        rig.run(others.commit()).unwrap();
        rig.clock().advance(Duration::from_secs(60));
        drop(lease);
        rig.drain();
        assert!(rig.consumed("key", "tpm") >= 50);
    }
}

/// More of a lease, granted under other limits, was given back to the limits of the first grant.
#[test]
fn more_of_a_lease_is_given_back_to_the_limits_it_came_from() {
    for backend in BACKENDS {
        let rig = Rig::new(backend);
        create(&rig, "team", None);
        create(&rig, "key", Some("team"));
        let own = Level::Entity("key".parse().unwrap());
        set(&rig, &Level::Entity("team".parse().unwrap()), &["rpm:100/day", "tpm:100/day"]);
        set(&rig, &own, &["rpm:100/day"]);
        let lease = rig
            .run(rig.limiter().acquire(Request::new("key", "gpt-4").take("rpm", 1).take("tpm", 10)))
            .unwrap();
        set(&rig, &own, &["tpm:100/day"]);
        rig.run(lease.consume([("rpm", 2), ("tpm", 20)])).unwrap();
        rig.run(lease.rollback()).unwrap();
        rig.drain();
        for (entity, limit) in [("team", "rpm"), ("team", "tpm"), ("key", "rpm"), ("key", "tpm")] {
            assert_eq!(rig.consumed(entity, limit), 0, "{}: {limit} of {entity}", backend.as_str());
        }
    }
}

/// Use that falls below what the last grant took was given back to the buckets of the last grant,
/// more than was taken there.
#[test]
fn use_that_falls_is_given_back_where_it_was_taken() {
    for backend in BACKENDS {
        let rig = Rig::new(backend);
        set(&rig, &Level::System, &["tpm:100/day"]);
        create(&rig, "team", None);
        let lease =
            rig.run(rig.limiter().acquire(Request::new("key", "gpt-4").take("tpm", 30))).unwrap();
        // The second grant goes to a longer chain than the first.
        create(&rig, "key", Some("team"));
        rig.run(lease.consume([("tpm", 5)])).unwrap();
        lease.record("tpm", 3).unwrap();
        rig.run(lease.commit()).unwrap();
        rig.drain();
        assert_eq!(rig.consumed("key", "tpm"), 3, "{}", backend.as_str());
        assert_eq!(
            rig.consumed("team", "tpm"),
            0,
            "{}: team was asked for 5 and got them back",
            backend.as_str()
        );
    }
}

/// A difference in a limit that the last grant did not have was never written at all.
#[test]
fn a_charge_goes_to_the_grant_that_has_the_limit() {
    for backend in BACKENDS {
        let rig = Rig::new(backend);
        create(&rig, "team", None);
        create(&rig, "key", Some("team"));
        let own = Level::Entity("key".parse().unwrap());
        set(&rig, &Level::Entity("team".parse().unwrap()), &["rpm:100/day", "tpm:100/day"]);
        set(&rig, &own, &["rpm:100/day", "tpm:100/day"]);
        let lease = rig
            .run(rig.limiter().acquire(Request::new("key", "gpt-4").take("rpm", 1).take("tpm", 10)))
            .unwrap();
        set(&rig, &own, &["tpm:100/day"]);
        rig.run(lease.consume([("tpm", 20)])).unwrap();
        lease.record("rpm", 5).unwrap();
        rig.run(lease.commit()).unwrap();
        rig.drain();
        assert_eq!(rig.consumed("team", "rpm"), 5, "{}", backend.as_str());
    }
}

/// While a charge was under way, two flushes could each give the same tokens back: the charge hid
/// the first credit.
#[test]
fn flushes_that_overlap_give_nothing_back_twice() {
    for backend in BACKENDS {
        let rig = Rig::new(backend);
        set(&rig, &Level::System, &["tpm:100/day"]);
        let others =
            rig.run(rig.limiter().acquire(Request::new("key", "gpt-4").take("tpm", 50))).unwrap();
        let lease = rig
            .run(
                rig.limiter()
                    .acquire(Request::new("key", "gpt-4").take("tpm", 1).on_drop(OnDrop::Keep)),
            )
            .unwrap();
        lease.record("tpm", 29).unwrap();
        rig.slow_down(1_000_000, 0);
        let Polled::Pending(charge) = poll_times(lease.flush(), 1) else {
            panic!("the store hangs")
        };
        rig.slow_down(0, 3);
        lease.record("tpm", 0).unwrap();
        let Polled::Pending(first) = poll_times(lease.flush(), 1) else {
            panic!("the answer takes its time")
        };
        let second = poll_times(lease.flush(), 1);
        let consumed = rig.consumed("key", "tpm");
        assert!(
            consumed >= 50,
            "{}: {consumed} of the 50 that others took are consumed: the rest was minted",
            backend.as_str()
        );
        drop((charge, first, second));
        rig.run(others.commit()).unwrap();
    }
}

/// A flush was confirmed to the last grant, also when that had come while the flush was under way.
#[test]
fn a_flush_is_confirmed_to_the_grant_it_was_for() {
    for backend in BACKENDS {
        let rig = Rig::new(backend);
        set(&rig, &Level::System, &["tpm:100/day"]);
        create(&rig, "team", None);
        let lease =
            rig.run(rig.limiter().acquire(Request::new("key", "gpt-4").take("tpm", 30))).unwrap();
        lease.record("tpm", 20).unwrap();
        rig.slow_down(0, 3);
        let Polled::Pending(flush) = poll_times(lease.flush(), 1) else {
            panic!("the answer takes its time")
        };
        rig.slow_down(0, 0);
        create(&rig, "key", Some("team"));
        rig.run(lease.consume([("tpm", 5)])).unwrap();
        rig.run(flush).unwrap();
        rig.run(lease.rollback()).unwrap();
        let settled = rig.drain();
        for entity in ["key", "team"] {
            assert_eq!(
                rig.consumed(entity, "tpm"),
                0,
                "{}: {entity}, {settled:?}",
                backend.as_str()
            );
        }
    }
}
