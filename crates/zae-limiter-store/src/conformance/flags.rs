//! Switching entities and resources off and on.

use super::fixture::{Ask, Fixture, GPT, ask, at, entity_level, entity_on, resource_level, rpm};
use crate::Adjusted::{Applied, Recreated};
use crate::LevelConfig;
use zae_limiter_core::Flag::{Disabled, Enabled};

fn one(id: &str, name: &str) -> Ask {
    rpm(id, 1).on(name)
}

/// Takes one by `key` and by `other`, on gpt-4 and on gpt-5: which of the four were granted? The
/// rest must be disabled.
async fn open(f: &Fixture) -> [bool; 4] {
    let mut open = [false; 4];
    let members = [("key", GPT), ("key", "gpt-5"), ("other", GPT), ("other", "gpt-5")];
    for (is_open, (id, name)) in open.iter_mut().zip(members) {
        let answer = f.take(&one(id, name), at(0)).await;
        *is_open = answer.is_granted();
        if !*is_open {
            answer.disabled(0);
        }
        // A peek gets the same answer, and so does a read of the configuration.
        let peeked = f.peek(&[one(id, name)], at(0)).await.is_granted();
        assert_eq!(peeked, *is_open, "a peek of {id} on {name}");
        let resolved = f.resolve(id, name).await.blocked_by.is_none();
        assert_eq!(resolved, *is_open, "what is resolved for {id} on {name}");
    }
    open
}

pub(super) async fn a_disabled_resource_refuses_everybody(f: Fixture) {
    assert_eq!(open(&f).await, [true; 4], "to begin with");
    f.flag(&resource_level(GPT), Some(Disabled)).await;
    assert_eq!(
        open(&f).await,
        [false, true, false, true],
        "existing buckets of the resource are disabled at once"
    );
    f.take(&one("new", GPT), at(0)).await.disabled(0);
    assert_eq!(f.bucket("new").await, None, "new ones are not even made");
    f.flag(&resource_level(GPT), None).await;
    assert_eq!(open(&f).await, [true; 4], "the flag is gone");
}

pub(super) async fn a_disabled_entity_is_refused_everywhere(f: Fixture) {
    assert_eq!(open(&f).await, [true; 4], "to begin with");
    f.flag(&entity_level("key"), Some(Disabled)).await;
    assert_eq!(
        open(&f).await,
        [false, false, true, true],
        "existing buckets of the entity are disabled at once"
    );
    f.take(&one("key", "new"), at(0)).await.disabled(0);
    f.flag(&entity_level("key"), Some(Enabled)).await;
    assert_eq!(open(&f).await, [true; 4], "enabled again");
}

pub(super) async fn an_entity_can_be_disabled_on_one_resource(f: Fixture) {
    f.flag(&entity_on("key", GPT), Some(Disabled)).await;
    assert_eq!(open(&f).await, [false, true, true, true], "before there was any bucket");
    f.flag(&entity_on("key", GPT), None).await;
    assert_eq!(open(&f).await, [true; 4], "the flag is gone");
    f.flag(&entity_on("key", GPT), Some(Disabled)).await;
    assert_eq!(open(&f).await, [false, true, true, true], "after there were");
}

pub(super) async fn an_entity_can_be_excepted_from_a_disabled_resource(f: Fixture) {
    f.flag(&entity_level("key"), Some(Enabled)).await;
    assert_eq!(open(&f).await, [true; 4], "to begin with");
    f.flag(&resource_level(GPT), Some(Disabled)).await;
    assert_eq!(
        open(&f).await,
        [true, true, false, true],
        "the entity is explicitly enabled, and the stronger level decides"
    );
    f.flag(&entity_level("key"), None).await;
    assert_eq!(open(&f).await, [false, true, false, true], "without its flag it inherits");
    f.flag(&entity_on("key", GPT), Some(Enabled)).await;
    assert_eq!(open(&f).await, [true, true, false, true], "excepted on one resource");
}

pub(super) async fn a_resource_can_be_excepted_from_a_disabled_entity(f: Fixture) {
    assert_eq!(open(&f).await, [true; 4], "to begin with");
    f.flag(&entity_level("key"), Some(Disabled)).await;
    f.flag(&entity_on("key", GPT), Some(Enabled)).await;
    assert_eq!(open(&f).await, [true, false, true, true], "excepted after it was disabled");
    f.flag(&resource_level(GPT), Some(Disabled)).await;
    f.flag(&entity_level("key"), None).await;
    assert_eq!(open(&f).await, [true, true, false, true], "and a weaker flag does not undo it");
}

pub(super) async fn un_flagging_uncovers_the_weaker_flag(f: Fixture) {
    assert_eq!(open(&f).await, [true; 4], "to begin with");
    f.flag(&resource_level(GPT), Some(Disabled)).await;
    f.flag(&entity_on("key", GPT), Some(Disabled)).await;
    f.flag(&entity_on("key", GPT), None).await;
    assert_eq!(open(&f).await, [false, true, false, true], "the resource is still disabled");
}

pub(super) async fn who_asks_is_told_which_level_disabled_it(f: Fixture) {
    let by = async || f.resolve("key", GPT).await.blocked_by;
    assert_eq!(by().await, None);
    for level in [resource_level(GPT), entity_level("key"), entity_on("key", GPT)] {
        f.flag(&level, Some(Disabled)).await;
        assert_eq!(by().await, Some((Disabled, level)), "the strongest level that says so");
    }
    f.flag(&entity_on("key", GPT), Some(Enabled)).await;
    assert_eq!(by().await, None, "explicitly enabled");
}

pub(super) async fn a_flag_tells_how_many_buckets_it_reached(f: Fixture) {
    assert_eq!(f.flag(&resource_level(GPT), Some(Disabled)).await, 0, "there are no buckets yet");
    f.flag(&resource_level(GPT), None).await;
    open(&f).await;
    assert_eq!(f.flag(&entity_on("key", GPT), Some(Disabled)).await, 1);
    assert_eq!(f.flag(&entity_level("key"), Some(Disabled)).await, 2);
    assert_eq!(f.flag(&resource_level("gpt-5"), Some(Disabled)).await, 2);
}

pub(super) async fn a_disabled_bucket_is_never_charged_by_a_take(f: Fixture) {
    f.take(&one("key", GPT), at(0)).await.granted(&[59_000]);
    f.flag(&entity_level("key"), Some(Disabled)).await;
    for _ in 0..3 {
        f.take(&one("key", GPT), at(0)).await.disabled(0);
    }
    f.flag(&entity_level("key"), None).await;
    f.take(&one("key", GPT), at(0)).await.granted(&[58_000]);
}

pub(super) async fn a_lease_can_settle_on_a_disabled_bucket(f: Fixture) {
    f.take(&rpm("key", 10), at(0)).await.granted(&[50_000]);
    f.flag(&entity_level("key"), Some(Disabled)).await;
    assert_eq!(f.adjust(&rpm("key", 5), at(0)).await, Applied, "it was used before");
    assert_eq!(f.adjust(&rpm("key", -3), at(0)).await, Applied, "and given back after");
    f.take(&one("key", GPT), at(0)).await.disabled(0);
    f.flag(&entity_level("key"), None).await;
    f.take(&one("key", GPT), at(0)).await.granted(&[47_000]);
}

pub(super) async fn a_charge_does_not_open_what_is_disabled(f: Fixture) {
    f.flag(&entity_level("key"), Some(Disabled)).await;
    let charge = rpm("key", 5);
    assert_eq!(f.adjust(&charge, at(0)).await, Recreated, "the charge is kept");
    f.take(&one("key", GPT), at(0)).await.disabled(0);
    f.flag(&entity_level("key"), None).await;
    f.take(&one("key", GPT), at(0)).await.granted(&[54_000]);
}

pub(super) async fn new_limits_do_not_open_what_is_disabled(f: Fixture) {
    f.take(&one("key", GPT), at(0)).await.granted(&[59_000]);
    f.flag(&resource_level(GPT), Some(Disabled)).await;
    f.set(&resource_level(GPT), "rpm:100").await;
    f.take(&ask("key", &f.in_force("key").await, "rpm=1"), at(0)).await.disabled(0);
    f.unset(&resource_level(GPT)).await;
    f.take(&one("key", GPT), at(0)).await.disabled(0);
}

pub(super) async fn a_flag_keeps_the_limits_beside_it(f: Fixture) {
    f.set(&resource_level(GPT), "rpm:5").await;
    f.flag(&resource_level(GPT), Some(Disabled)).await;
    f.flag(&resource_level(GPT), None).await;
    let LevelConfig { limits, flag, .. } =
        f.level(&resource_level(GPT)).await.expect("the limits are there");
    assert_eq!((limits.len(), flag), (1, None), "limits stay, the flag is gone");
    f.flag(&entity_level("key"), Some(Enabled)).await;
    let stored = f.level(&entity_level("key")).await.expect("the flag is there");
    let found = (stored.limits.len(), stored.flag);
    assert_eq!(found, (0, Some(Enabled)), "enabled is not the same as not flagged");
    f.flag(&entity_level("key"), None).await;
    assert_eq!(f.level(&entity_level("key")).await, None, "nothing is stored any more");
}
