//! Chains: an entity and its ancestors, all or none.

use zae_limiter_core::{CHAIN_MAX, ConfigStamp, Milli, Wait};

use super::fixture::{
    Ask, Fixture, GPT, SECOND, after, ask, at, entity, entity_level, entity_on, limits,
    resource_level, rpm,
};
use crate::LimitsInForce;
use zae_limiter_core::Flag::{Disabled, Enabled};

/// A chain of `length` members, each with its own capacity: 101 for the first, 102 for the second,
/// and so on.
fn chain(length: usize, tokens: u64) -> Vec<Ask> {
    let ask_member = |member: usize| {
        let own = limits(&format!("rpm:{}/min", 100 + member));
        ask(&format!("e{member}"), &own, &format!("rpm={tokens}"))
    };
    (1..=length).map(ask_member).collect()
}

async fn takes_from_all(f: &Fixture, length: usize) {
    let members = chain(length, 10);
    let left: Vec<i64> = (91_000..).step_by(1_000).take(length).collect();
    f.chain(&members, at(0)).await.granted(&left);
    for (Ask { entity, .. }, left) in members.iter().zip(left) {
        assert_eq!(f.balances(entity.as_str(), at(0)).await, [left], "the balance of {entity}");
    }
}

pub(super) async fn a_chain_of_two_takes_from_both(f: Fixture) {
    takes_from_all(&f, 2).await;
}

pub(super) async fn a_chain_of_four_takes_from_all(f: Fixture) {
    takes_from_all(&f, 4).await;
}

pub(super) async fn the_longest_chain_takes_from_all(f: Fixture) {
    takes_from_all(&f, CHAIN_MAX).await;
}

pub(super) async fn a_refusal_by_any_member_leaves_all_untouched(f: Fixture) {
    for short in 0..4 {
        let mut members = chain(4, 10);
        for member in &mut members {
            member.entity = entity(&format!("{}-{short}", member.entity));
        }
        f.chain(&members, at(0)).await.granted(&[91_000, 92_000, 93_000, 94_000]);
        let mut drain = members[short].clone();
        drain.takes[0].amount = Milli([91_000, 92_000, 93_000, 94_000][short]);
        f.take(&drain, at(0)).await.granted(&[0]);
        let (first, last) = (members[0].entity.as_str(), members[3].entity.as_str());
        let before = [(first, f.bucket(first).await), (last, f.bucket(last).await)];
        let answer = f.chain(&members, at(0)).await;
        assert!(!answer.is_granted(), "expected a refusal by member {short}, found {answer:?}");
        let waits = answer.reports().iter().enumerate();
        let refusing: Vec<_> = waits.filter(|(_, report)| report.wait != Wait::None).collect();
        assert_eq!(refusing.len(), 1, "only member {short} refused");
        assert_eq!(refusing[0].0, short, "only member {short} refused");
        for (id, before) in before {
            f.is_as_it_was(id, before.as_ref(), at(0)).await;
        }
    }
}

pub(super) async fn a_refused_chain_creates_no_buckets(f: Fixture) {
    let child = rpm("child", 20);
    let parent = ask("parent", &limits("rpm:10/min"), "rpm=20");
    f.chain(&[child, parent], at(0)).await.refused(&[(60_000, Wait::None), (10_000, Wait::Never)]);
    for id in ["child", "parent"] {
        f.is_as_it_was(id, None, at(0)).await;
    }
}

pub(super) async fn each_member_is_asked_for_its_own_takes(f: Fixture) {
    let child = ask("child", &limits("rpm:60/min tpm:1000/min"), "rpm=1 tpm=100");
    let parent = ask("parent", &limits("tpm:5000/min"), "tpm=100");
    let answer = f.chain(&[child, parent], at(0)).await;
    answer.granted(&[59_000, 900_000, 4_900_000]);
    let members: Vec<_> =
        answer.reports().iter().map(|report| (report.member, report.limit)).collect();
    assert_eq!(members, [(0, 0), (0, 1), (1, 0)], "reports come in the order of members and takes");
}

pub(super) async fn every_member_reports_its_own_wait(f: Fixture) {
    let child = rpm("child", 60);
    let parent = ask("parent", &limits("rpm:120/min"), "rpm=120");
    f.chain(&[child, parent], at(0)).await.granted(&[0, 0]);
    let again = [rpm("child", 10), ask("parent", &limits("rpm:120/min"), "rpm=10")];
    f.chain(&again, at(0)).await.refused(&[(0, after(10_000)), (0, after(5_000))]);
    f.chain(&again, at(6 * SECOND)).await.refused(&[(6_000, after(4_000)), (12_000, Wait::None)]);
    f.chain(&again, at(10 * SECOND)).await.granted(&[0, 10_000]);
}

pub(super) async fn children_share_what_their_parent_has(f: Fixture) {
    let (own, shared) = (limits("rpm:60/min"), limits("rpm:100/min"));
    for (child, tokens, left) in [("a", "rpm=60", [0, 40_000]), ("b", "rpm=40", [20_000, 0])] {
        let members = [ask(child, &own, tokens), ask("parent", &shared, tokens)];
        f.chain(&members, at(0)).await.granted(&left);
    }
    let third = [ask("c", &own, "rpm=1"), ask("parent", &shared, "rpm=1")];
    f.chain(&third, at(0)).await.refused(&[(60_000, Wait::None), (0, after(600))]);
    assert_eq!(f.consumed("parent").await, [100_000], "the parent counts what its children took");
}

pub(super) async fn one_entity_may_be_asked_for_two_resources(f: Fixture) {
    let members = [rpm("key", 1), rpm("key", 2).on("gpt-5")];
    f.chain(&members, at(0)).await.granted(&[59_000, 58_000]);
}

pub(super) async fn a_chain_can_be_peeked(f: Fixture) {
    let members = chain(3, 10);
    f.peek(&members, at(0)).await.granted(&[101_000, 102_000, 103_000]);
    f.chain(&members, at(0)).await.granted(&[91_000, 92_000, 93_000]);
    f.peek(&chain(3, 92), at(0)).await.refused(&[
        (91_000, after(595)),
        (92_000, Wait::None),
        (93_000, Wait::None),
    ]);
    assert_eq!(f.consumed("e3").await, [10_000], "a peek takes from nobody");
}

pub(super) async fn a_refused_chain_still_learns_new_limits(f: Fixture) {
    let (own, of_parent) = (limits("rpm:60/min"), entity_level("parent"));
    let old = f.stored(&of_parent, "rpm:60/min").await;
    f.chain(&[ask("child", &own, "rpm=60"), ask("parent", &old, "rpm=60")], at(0))
        .await
        .granted(&[0, 0]);
    let new = f.stored_at(&of_parent, "rpm:600/min", at(10 * SECOND)).await;
    let members = [ask("child", &own, "rpm=60"), ask("parent", &new, "rpm=60")];
    f.chain(&members, at(10 * SECOND))
        .await
        .refused(&[(10_000, after(50_000)), (10_000, after(5_000))]);
    // The new rate counts from the change, although the child refused.
    f.chain(&members, at(14 * SECOND))
        .await
        .refused(&[(14_000, after(46_000)), (50_000, after(1_000))]);
    f.chain(&members, at(60 * SECOND)).await.granted(&[0, 450_000]);
}

pub(super) async fn a_granted_chain_takes_under_new_limits(f: Fixture) {
    let (own, of_parent) = (limits("rpm:60/min"), entity_level("parent"));
    let old = f.stored(&of_parent, "rpm:60/min").await;
    f.chain(&[ask("child", &own, "rpm=60"), ask("parent", &old, "rpm=60")], at(0))
        .await
        .granted(&[0, 0]);
    let later = at(40 * SECOND);
    let new = f.stored_at(&of_parent, "rpm:30/min", later).await;
    f.chain(&[ask("child", &own, "rpm=10"), ask("parent", &new, "rpm=10")], later)
        .await
        .granted(&[30_000, 20_000]);
    let left = f.balances("parent", later).await;
    assert_eq!(left, [20_000], "the grant that brought the new limits has taken as well");
    assert_eq!(f.consumed("parent").await, [70_000], "and was counted");
}

pub(super) async fn a_stale_member_stops_the_chain_before_anything_is_taken(f: Fixture) {
    let child = rpm("child", 1);
    let of_parent = entity_level("parent");
    let stale = ask("parent", &f.stored(&of_parent, "rpm:100/min").await, "rpm=1");
    let fresh = ask("parent", &f.stored(&of_parent, "rpm:10/min").await, "rpm=1");
    f.chain(&[child.clone(), fresh], at(0)).await.granted(&[59_000, 9_000]);
    f.chain(&[child, stale], at(0)).await.stale(1);
    assert_eq!(f.balances("child", at(0)).await, [59_000], "the child is as it was");
    assert_eq!(f.balances("parent", at(0)).await, [9_000], "the parent is as it was");
}

pub(super) async fn a_disabled_member_stops_the_chain_before_anything_is_taken(f: Fixture) {
    let child = rpm("child", 1);
    let parent = ask("parent", &limits("rpm:100/min"), "rpm=1");
    f.flag(&entity_level("parent"), Some(Disabled)).await;
    f.chain(&[child.clone(), parent.clone()], at(0)).await.disabled(1);
    f.is_as_it_was("child", None, at(0)).await;
    f.flag(&entity_on("child", GPT), Some(Disabled)).await;
    f.chain(&[child, parent], at(0)).await.disabled(0);
}

pub(super) async fn switched_off_is_said_before_exhausted(f: Fixture) {
    f.take(&rpm("child", 60), at(0)).await.granted(&[0]);
    f.flag(&entity_level("parent"), Some(Disabled)).await;
    let members = [rpm("child", 1), rpm("parent", 1)];
    // Waiting would not help, so a wait would be the wrong answer.
    f.chain(&members, at(0)).await.disabled(1);
}

/// A member that is only asked whether it is disabled.
fn without_limits(id: &str) -> Ask {
    ask(id, &LimitsInForce::none(ConfigStamp::default()), "")
}

pub(super) async fn a_member_without_limits_has_no_bucket(f: Fixture) {
    let (child, root) = (rpm("child", 20), ask("root", &limits("rpm:50/min"), "rpm=20"));
    let members = [without_limits("guest"), child, without_limits("org"), root];
    f.peek(&members, at(0)).await.granted(&[60_000, 50_000]);
    f.chain(&members, at(0)).await.granted(&[40_000, 30_000]);
    f.chain(&members, at(0)).await.granted(&[20_000, 10_000]);
    let refused = f.chain(&members, at(0)).await;
    refused.refused(&[(20_000, Wait::None), (10_000, after(12_000))]);
    let places: Vec<u8> = refused.reports().iter().map(|report| report.member).collect();
    assert_eq!(places, [1, 3], "reports name the members as they were asked");
    for id in ["guest", "org"] {
        assert_eq!(f.bucket(id).await, None, "no bucket is made for {id}");
    }
    // One that had limits once still has a bucket; without limits nothing is taken from it.
    f.take(&rpm("org", 10), at(0)).await.granted(&[50_000]);
    let before = f.bucket("org").await;
    f.chain(&[rpm("other", 1), without_limits("org")], at(0)).await.granted(&[59_000]);
    f.is_as_it_was("org", before.as_ref(), at(0)).await;
}

pub(super) async fn a_disabled_member_without_limits_stops_the_chain(f: Fixture) {
    let members = [rpm("child", 1), without_limits("org")];
    f.chain(&members, at(0)).await.granted(&[59_000]);
    let levels = [entity_level("org"), entity_on("org", GPT)];
    for level in levels {
        f.flag(&level, Some(Disabled)).await;
        f.chain(&members, at(0)).await.disabled(1);
        f.peek(&members, at(0)).await.disabled(1);
        assert_eq!(f.balances("child", at(0)).await, [59_000], "nothing was taken from the child");
        f.flag(&level, None).await;
        f.peek(&members, at(0)).await.granted(&[59_000]);
    }
    // Disabled although it has a bucket, from the time when it had limits.
    f.take(&rpm("org", 1), at(0)).await.granted(&[59_000]);
    f.flag(&entity_level("org"), Some(Disabled)).await;
    f.chain(&members, at(0)).await.disabled(1);
    // A resource that is off, with an exception for the child: the member without limits has none.
    f.flag(&entity_level("org"), None).await;
    f.flag(&resource_level(GPT), Some(Disabled)).await;
    f.flag(&entity_level("child"), Some(Enabled)).await;
    f.chain(&members, at(0)).await.disabled(1);
    f.flag(&entity_level("org"), Some(Enabled)).await;
    f.chain(&members, at(0)).await.granted(&[58_000]);
}
