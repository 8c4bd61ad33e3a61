//! Switching entities and resources off and on.

use super::fixture::{Ask, Fixture, GPT, ask, at, correction, entity, limits, resource};
use crate::{Adjusted, Level, LevelConfig};
use zae_limiter_core::Flag;

fn on_gpt() -> Level {
    Level::Resource(resource(GPT))
}

fn key() -> Level {
    Level::Entity(entity("key"))
}

fn key_on_gpt() -> Level {
    Level::EntityResource(entity("key"), resource(GPT))
}

fn one(id: &str, name: &str) -> Ask {
    ask(id, &limits("rpm:60/min"), &[("rpm", 1)]).on(name)
}

/// Takes one by `key` and by `other`, on gpt-4 and on gpt-5: which of the four were granted? The
/// rest must be disabled.
async fn open(f: &Fixture) -> [bool; 4] {
    let mut open = [false; 4];
    for (index, (id, name)) in
        [("key", GPT), ("key", "gpt-5"), ("other", GPT), ("other", "gpt-5")].into_iter().enumerate()
    {
        let answer = f.take(&one(id, name), at(0)).await;
        open[index] = answer.is_granted();
        if !open[index] {
            answer.disabled(0);
        }
        // The same is said to those who only ask, and written down for those who resolve.
        assert_eq!(
            f.peek(&[one(id, name)], at(0)).await.is_granted(),
            open[index],
            "a peek of {id} on {name}"
        );
        assert_eq!(
            f.resolve(id, name).await.blocked_by.is_none(),
            open[index],
            "what is resolved for {id} on {name}"
        );
    }
    open
}

pub(super) async fn a_disabled_resource_refuses_everybody(f: Fixture) {
    assert_eq!(open(&f).await, [true; 4], "to begin with");
    f.flag(&on_gpt(), Some(true)).await;
    assert_eq!(
        open(&f).await,
        [false, true, false, true],
        "existing buckets of the resource are switched off at once"
    );
    f.take(&one("new", GPT), at(0)).await.disabled(0);
    assert_eq!(f.bucket("new").await, None, "new ones are not even made");
    f.flag(&on_gpt(), None).await;
    assert_eq!(open(&f).await, [true; 4], "the flag is gone");
}

pub(super) async fn a_disabled_entity_is_refused_everywhere(f: Fixture) {
    assert_eq!(open(&f).await, [true; 4], "to begin with");
    f.flag(&key(), Some(true)).await;
    assert_eq!(
        open(&f).await,
        [false, false, true, true],
        "existing buckets of the entity are switched off at once"
    );
    f.take(&one("key", "new"), at(0)).await.disabled(0);
    f.flag(&key(), Some(false)).await;
    assert_eq!(open(&f).await, [true; 4], "enabled again");
}

pub(super) async fn an_entity_can_be_disabled_on_one_resource(f: Fixture) {
    f.flag(&key_on_gpt(), Some(true)).await;
    assert_eq!(open(&f).await, [false, true, true, true], "before there was any bucket");
    f.flag(&key_on_gpt(), None).await;
    assert_eq!(open(&f).await, [true; 4], "the flag is gone");
    f.flag(&key_on_gpt(), Some(true)).await;
    assert_eq!(open(&f).await, [false, true, true, true], "after there were");
}

pub(super) async fn an_entity_can_be_excepted_from_a_disabled_resource(f: Fixture) {
    f.flag(&key(), Some(false)).await;
    assert_eq!(open(&f).await, [true; 4], "to begin with");
    f.flag(&on_gpt(), Some(true)).await;
    assert_eq!(
        open(&f).await,
        [true, true, false, true],
        "the entity is explicitly enabled, and the stronger level decides"
    );
    f.flag(&key(), None).await;
    assert_eq!(open(&f).await, [false, true, false, true], "without its flag it inherits");
    f.flag(&key_on_gpt(), Some(false)).await;
    assert_eq!(open(&f).await, [true, true, false, true], "excepted on one resource");
}

pub(super) async fn a_resource_can_be_excepted_from_a_disabled_entity(f: Fixture) {
    assert_eq!(open(&f).await, [true; 4], "to begin with");
    f.flag(&key(), Some(true)).await;
    f.flag(&key_on_gpt(), Some(false)).await;
    assert_eq!(open(&f).await, [true, false, true, true], "excepted after it was disabled");
    f.flag(&on_gpt(), Some(true)).await;
    f.flag(&key(), None).await;
    assert_eq!(open(&f).await, [true, true, false, true], "and a weaker flag does not undo it");
}

pub(super) async fn un_flagging_uncovers_the_weaker_flag(f: Fixture) {
    assert_eq!(open(&f).await, [true; 4], "to begin with");
    f.flag(&on_gpt(), Some(true)).await;
    f.flag(&key_on_gpt(), Some(true)).await;
    f.flag(&key_on_gpt(), None).await;
    assert_eq!(open(&f).await, [false, true, false, true], "the resource is still disabled");
}

pub(super) async fn who_asks_is_told_which_level_disabled_it(f: Fixture) {
    let by = async || f.resolve("key", GPT).await.blocked_by;
    assert_eq!(by().await, None);
    for level in [on_gpt(), key(), key_on_gpt()] {
        f.flag(&level, Some(true)).await;
        assert_eq!(by().await, Some((Flag::Disabled, level)), "the strongest level that says so");
    }
    f.flag(&key_on_gpt(), Some(false)).await;
    assert_eq!(by().await, None, "explicitly enabled");
}

pub(super) async fn a_flag_tells_how_many_buckets_it_reached(f: Fixture) {
    assert_eq!(f.flag(&on_gpt(), Some(true)).await, 0, "there are no buckets yet");
    f.flag(&on_gpt(), None).await;
    open(&f).await;
    assert_eq!(f.flag(&key_on_gpt(), Some(true)).await, 1);
    assert_eq!(f.flag(&key(), Some(true)).await, 2);
    assert_eq!(f.flag(&Level::Resource(resource("gpt-5")), Some(true)).await, 2);
}

pub(super) async fn a_disabled_bucket_is_never_charged_by_a_take(f: Fixture) {
    f.take(&one("key", GPT), at(0)).await.granted(&[59_000]);
    f.flag(&key(), Some(true)).await;
    for _ in 0..3 {
        f.take(&one("key", GPT), at(0)).await.disabled(0);
    }
    f.flag(&key(), None).await;
    f.take(&one("key", GPT), at(0)).await.granted(&[58_000]);
}

pub(super) async fn a_lease_can_settle_on_a_disabled_bucket(f: Fixture) {
    let rpm = limits("rpm:60/min");
    f.take(&ask("key", &rpm, &[("rpm", 10)]), at(0)).await.granted(&[50_000]);
    f.flag(&key(), Some(true)).await;
    assert_eq!(
        f.adjust(&correction("key", &rpm, &[("rpm", 5)]), at(0)).await,
        Adjusted::Applied,
        "it was used before"
    );
    assert_eq!(
        f.adjust(&correction("key", &rpm, &[("rpm", -3)]), at(0)).await,
        Adjusted::Applied,
        "and given back after"
    );
    f.take(&one("key", GPT), at(0)).await.disabled(0);
    f.flag(&key(), None).await;
    f.take(&one("key", GPT), at(0)).await.granted(&[47_000]);
}

pub(super) async fn a_charge_does_not_open_what_is_disabled(f: Fixture) {
    f.flag(&key(), Some(true)).await;
    let charge = correction("key", &limits("rpm:60/min"), &[("rpm", 5)]);
    assert_eq!(f.adjust(&charge, at(0)).await, Adjusted::Recreated, "the charge is kept");
    f.take(&one("key", GPT), at(0)).await.disabled(0);
    f.flag(&key(), None).await;
    f.take(&one("key", GPT), at(0)).await.granted(&[54_000]);
}

pub(super) async fn new_limits_do_not_open_what_is_disabled(f: Fixture) {
    f.take(&one("key", GPT), at(0)).await.granted(&[59_000]);
    f.flag(&on_gpt(), Some(true)).await;
    f.set(&on_gpt(), "rpm:100").await;
    f.take(&ask("key", &f.in_force("key").await, &[("rpm", 1)]), at(0)).await.disabled(0);
    f.unset(&on_gpt()).await;
    f.take(&one("key", GPT), at(0)).await.disabled(0);
}

pub(super) async fn a_flag_keeps_the_limits_beside_it(f: Fixture) {
    f.set(&on_gpt(), "rpm:5").await;
    f.flag(&on_gpt(), Some(true)).await;
    f.flag(&on_gpt(), None).await;
    let LevelConfig { limits, flag, .. } =
        f.store.level(&on_gpt()).await.expect("a read").expect("the limits are there");
    assert_eq!((limits.len(), flag), (1, None), "limits stay, the flag is gone");
    f.flag(&key(), Some(false)).await;
    let stored = f.store.level(&key()).await.expect("a read").expect("the flag is there");
    assert_eq!(
        (stored.limits.len(), stored.flag),
        (0, Some(Flag::Enabled)),
        "enabled is not the same as not flagged"
    );
    f.flag(&key(), None).await;
    assert_eq!(f.store.level(&key()).await.expect("a read"), None, "nothing is stored any more");
}
