//! Deletions in every order a seed finds, beside children that come, limits that are set and calls
//! that fail or are never answered. The oracle: as long as the record of an entity is there,
//! nothing is decided by weaker limits than it had.

use std::sync::Arc;

use zae_limiter_core::{AuditAction, AuditSubject};
use zae_limiter_dynamodb::DynamoStore;
use zae_limiter_store::{ConfigStore, Level, MemberKey, StoreErrorKind};
use zae_limiter_testkit::table::{EvalOptions, Fate, Faults, Odds, SeededGate};

use super::{Rig, audit_of, id, keys, limits, new_entity, on, take};

/// Seeds of a usual run; `ZAEL_SIM_SEEDS` asks for another number.
const SEEDS: u64 = 400;
/// Limits of the entity; those of everybody else are far above.
const STRICT: u64 = 10;

/// How often what happened.
#[derive(Debug, Default)]
struct Seen {
    refused: u32,
    unfinished: u32,
    finished: u32,
    looks_while_marked: u32,
}

fn is_marked(rig: &Rig) -> Option<bool> {
    rig.table
        .get(&keys::entity(&rig.namespace, &id("user")))
        .map(|record| record.contains_key("deleting"))
}

/// Looks again and again: while the record is there, its limits decide or it is refused.
async fn watch(rig: &Rig, store: &DynamoStore, seed: u64) -> u32 {
    let (entity, resource) = (id("user"), "gpt-4".parse().unwrap());
    let mut looks_while_marked = 0;
    for _ in 0..40 {
        let found = store
            .resolve(&[MemberKey { entity: &entity, resource: &resource }])
            .await
            .unwrap()
            .members
            .remove(0);
        let is_weaker = found.limits.is_none_or(|(limits, _)| limits[0].capacity() > STRICT)
            && found.blocked_by.is_none();
        let record = is_marked(rig);
        assert!(
            !is_weaker || record.is_none(),
            "seed {seed}: weaker limits decide, and the entity is there"
        );
        looks_while_marked += u32::from(record == Some(true));
        tokio::task::yield_now().await;
    }
    looks_while_marked
}

/// Calls that fail in turn, and from some write on none that gets through: a crash, as far as the
/// table can tell.
fn faults(seed: u64) -> Faults {
    let mut left =
        if seed.is_multiple_of(3) { i64::MAX } else { i64::try_from(seed / 3 % 7).unwrap() };
    let mut turn = seed;
    Faults::by(move |asked| {
        turn = turn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        left -= i64::from(asked.operation().writes());
        match turn >> 60 {
            _ if left < 0 => Fate::Unreachable,
            0 => Fate::NotApplied,
            1 => Fate::LostAfter,
            _ => Fate::Pass,
        }
    })
}

#[tokio::test]
async fn no_deletion_refused_or_unfinished_lets_weaker_limits_decide() {
    let mut seen = Seen::default();
    #[expect(
        clippy::disallowed_methods,
        reason = "how many seeds to run is told by the environment"
    )]
    let seeds = std::env::var("ZAEL_SIM_SEEDS").map_or(SEEDS, |text| text.parse().unwrap());
    for seed in 0..seeds {
        let rig = Rig::new(EvalOptions::new()).await;
        let fair = rig.store().await;
        fair.set_limits(&Level::System, &limits("rpm:1000000"), &rig.change()).await.unwrap();
        fair.create_entity(&new_entity("user", None), &rig.change()).await.unwrap();
        fair.set_limits(&on("user", "gpt-4"), &limits("rpm:10"), &rig.change()).await.unwrap();
        take(&rig, &fair, "user", "gpt-4").await;
        let gate = |number: u64| Arc::new(SeededGate::new(seed * 4 + number, 50, 4));
        let admin = rig
            .client(rig.table.client(1).with_faults(faults(seed)).with_gate(gate(0)), |_| {})
            .await;
        let parent = rig.client(rig.table.client(2).with_gate(gate(1)), |_| {}).await;
        let other = rig
            .table
            .client(3)
            .with_faults(Faults::seeded(seed, Odds { lag: 0, late: 0, ..Odds::FAIR }))
            .with_gate(gate(2));
        let other = rig.client(other, |_| {}).await;
        let (one, two, three) = (rig.change(), rig.change(), rig.change());
        let (user, child, level, new) =
            (id("user"), new_entity("child", Some("user")), on("user", "other"), limits("rpm:7"));
        let brings_child = seed.is_multiple_of(2);
        let (deleted, _, _, looks) = tokio::join!(
            admin.delete_entity(&user, &one),
            async {
                if brings_child {
                    drop(parent.create_entity(&child, &two).await)
                }
            },
            other.set_limits(&level, &new, &three),
            watch(&rig, &fair, seed),
        );
        seen.looks_while_marked += looks;
        let told = audit_of(&fair, AuditSubject::Entity(user.clone())).await;
        let is_ordered = told.iter().any(|event| event.action == AuditAction::EntityDeleted);
        match &deleted {
            Ok(_) => seen.finished += 1,
            Err(error) if error.kind() == StoreErrorKind::State => {
                seen.refused += 1;
                assert!(
                    !is_ordered && is_marked(&rig) == Some(false),
                    "seed {seed}: refused, and something has happened"
                );
            }
            Err(_) => {
                // It may have come to its end unheard.
                seen.unfinished += u32::from(is_marked(&rig) == Some(true));
                assert!(
                    is_ordered || is_marked(&rig) == Some(false),
                    "seed {seed}: begun, and not recorded"
                );
            }
        }
        watch(&rig, &fair, seed).await;
        if is_marked(&rig) == Some(true) {
            fair.delete_entity(&user, &rig.change()).await.unwrap();
            assert_eq!(is_marked(&rig), None, "seed {seed}: resumed");
        }
    }
    let floor = |of_each_100: u32| u64::from(of_each_100) * seeds / 100;
    for (count, least) in
        [(seen.refused, 5), (seen.unfinished, 5), (seen.finished, 5), (seen.looks_while_marked, 12)]
    {
        assert!(u64::from(count) >= floor(least), "{seen:?} in {seeds} seeds");
    }
}
