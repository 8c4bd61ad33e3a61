//! Taking from one bucket.

use zae_limiter_core::{Milli, TimeMs, Wait};

use super::fixture::{Fixture, HOUR, SECOND, after, all, ask, at, entity, limits, rpm, words};

pub(super) async fn a_store_answers_a_ping_and_has_a_name(f: Fixture) {
    f.store.ping().await.expect("a fresh store can be reached");
    assert!(!f.store.capabilities().name.is_empty(), "messages name the store");
}

pub(super) async fn a_new_bucket_starts_full(f: Fixture) {
    f.take(&rpm("key", 1), at(0)).await.granted(&[59_000]);
    assert_eq!(f.balances("key", at(0)).await, [59_000], "what is stored is what was reported");
}

pub(super) async fn a_new_bucket_starts_with_its_burst(f: Fixture) {
    let steady = limits("rpm:60/min:5 tpm:60/min:600");
    f.take(&ask("key", &steady, "rpm=5 tpm=600"), at(0)).await.granted(&[0, 0]);
    f.take(&ask("key", &steady, "rpm=1"), at(0)).await.refused(&[(0, after(1_000))]);
    f.take(&ask("key", &steady, "rpm=6"), at(HOUR)).await.refused(&[(5_000, Wait::Never)]);
}

pub(super) async fn balances_are_exact_over_several_takes(f: Fixture) {
    for (tokens, left) in [(1, 59_000), (2, 57_000), (57, 0)] {
        f.take(&rpm("key", tokens), at(0)).await.granted(&[left]);
    }
    f.take(&rpm("key", 1), at(0)).await.refused(&[(0, after(1_000))]);
}

pub(super) async fn several_limits_are_decided_together(f: Fixture) {
    let both = limits("rpm:60/min tpm:1000/min");
    f.take(&ask("key", &both, "rpm=1 tpm=900"), at(0)).await.granted(&[59_000, 100_000]);
    let short = ask("key", &both, "rpm=1 tpm=101");
    f.take(&short, at(0)).await.refused(&[(59_000, Wait::None), (100_000, after(60))]);
    let left = f.balances("key", at(0)).await;
    assert_eq!(left, [59_000, 100_000], "a refusal by one limit takes from none");
    assert_eq!(f.consumed("key").await, [1_000, 900_000], "a refusal counts as no consumption");
}

pub(super) async fn reports_follow_the_order_of_the_takes(f: Fixture) {
    let both = limits("rpm:60/min tpm:1000/min");
    let answer = f.take(&ask("key", &both, "tpm=10 rpm=1"), at(0)).await;
    answer.granted(&[990_000, 59_000]);
    let indexes: Vec<_> = answer
        .reports()
        .iter()
        .map(|report| (report.member, report.limit, report.requested))
        .collect();
    assert_eq!(
        indexes,
        [(0, 1, Milli(10_000)), (0, 0, Milli(1_000))],
        "each report names its member, its limit and its amount"
    );
}

pub(super) async fn a_zero_amount_declares_and_takes_nothing(f: Fixture) {
    f.take(&rpm("key", 0), at(0)).await.granted(&[60_000]);
    f.take(&rpm("key", 60), at(0)).await.granted(&[0]);
    f.take(&rpm("key", 0), at(0)).await.granted(&[0]);
    assert_eq!(f.consumed("key").await, [60_000], "declaring is not consuming");
}

pub(super) async fn a_limit_not_asked_for_is_not_taken_from(f: Fixture) {
    let both = limits("rpm:60/min tpm:1000/min");
    f.take(&ask("key", &both, "rpm=60"), at(0)).await.granted(&[0]);
    f.take(&ask("key", &both, "tpm=1"), at(0)).await.granted(&[999_000]);
    let left = f.balances("key", at(0)).await;
    assert_eq!(left, [0, 999_000], "an empty limit does not refuse who does not ask for it");
}

pub(super) async fn more_than_the_capacity_never_passes(f: Fixture) {
    f.take(&rpm("key", 61), at(0)).await.refused(&[(60_000, Wait::Never)]);
    f.take(&rpm("key", 60), at(0)).await.granted(&[0]);
    f.take(&rpm("key", 61), at(0)).await.refused(&[(0, Wait::Never)]);
}

pub(super) async fn a_fraction_of_a_token_is_enough_to_refuse(f: Fixture) {
    let mut request = rpm("key", 0);
    request.takes[0].amount = Milli(59_001);
    f.take(&request, at(0)).await.granted(&[999]);
    f.take(&rpm("key", 1), at(0)).await.refused(&[(999, after(1))]);
    // Four shards have a millitoken more each, or none.
    let (then, left) = if f.is_whole() { (1, 0) } else { (4, 3) };
    f.take(&rpm("key", 1), at(then)).await.granted(&[left]);
}

pub(super) async fn a_refusal_writes_nothing(f: Fixture) {
    f.take(&rpm("key", 60), at(0)).await.granted(&[0]);
    let before = f.bucket("key").await;
    f.take(&rpm("key", 30), at(7 * SECOND)).await.refused(&[(7_000, after(23_000))]);
    assert_eq!(f.bucket("key").await, before, "a refusal leaves the stored bucket as it was");
}

pub(super) async fn a_refusal_does_not_create_a_bucket(f: Fixture) {
    f.take(&rpm("key", 61), at(0)).await.refused(&[(60_000, Wait::Never)]);
    assert_eq!(f.bucket("key").await, None, "a refused request leaves no bucket behind");
}

pub(super) async fn a_take_does_not_create_an_entity(f: Fixture) {
    f.take(&rpm("stranger", 1), at(0)).await.granted(&[59_000]);
    assert_eq!(f.entity("stranger").await, None, "unknown entities are limited, not registered");
    let listed = all(async |page| f.store.entities(&page).await).await;
    assert_eq!(listed, [], "an unknown entity is not listed");
}

pub(super) async fn a_peek_answers_like_a_take_and_writes_nothing(f: Fixture) {
    let both = limits("rpm:60/min tpm:1000/min");
    let request = [ask("key", &both, "rpm=1 tpm=900")];
    f.peek(&request, at(0)).await.granted(&[60_000, 1_000_000]);
    assert_eq!(f.bucket("key").await, None, "a peek creates no bucket");

    f.take(&ask("key", &both, "rpm=1 tpm=1000"), at(0)).await.granted(&[59_000, 0]);
    let before = f.bucket("key").await;
    let peeked = f.peek(&request, at(30 * SECOND)).await;
    peeked.refused(&[(60_000, Wait::None), (500_000, after(24_000))]);
    assert_eq!(f.bucket("key").await, before, "a peek leaves the stored bucket as it was");
    let answer = f.take(&request[0], at(30 * SECOND)).await;
    assert_eq!(answer, peeked, "a refused take says what the peek said");
    f.peek(&request, at(54 * SECOND)).await.granted(&[60_000, 900_000]);
}

pub(super) async fn an_answer_at_once_is_the_answer_of_a_take(f: Fixture) {
    f.take(&rpm("key", 10), at(0)).await.granted(&[50_000]);
    for (tokens, granted) in [(20, true), (40, false), (30, true), (1, false)] {
        let before = (f.bucket("key").await, f.peek(&[rpm("key", tokens)], at(0)).await);
        let answer = match f.take_at_once(&rpm("key", tokens), at(0)) {
            Some(answer) => answer,
            None => {
                assert_eq!(f.bucket("key").await, before.0, "no answer has changed nothing");
                f.take(&rpm("key", tokens), at(0)).await
            }
        };
        match granted {
            true => answer.granted(&[match tokens {
                20 => 30_000,
                _ => 0,
            }]),
            false => assert_eq!(answer, before.1, "a refusal says what a peek says"),
        };
    }
    assert_eq!(f.balances("key", at(0)).await, [0], "what was granted was taken");
    assert_eq!(f.consumed("key").await, [60_000], "and counted");
}

pub(super) async fn entities_have_buckets_of_their_own(f: Fixture) {
    // Not even upper and lower case are the same.
    for (id, tokens, left) in
        [("key", 1, 59_000), ("Key", 2, 58_000), ("key.1", 3, 57_000), ("key-1", 4, 56_000)]
    {
        f.take(&rpm(id, tokens), at(0)).await.granted(&[left]);
    }
    assert_eq!(f.balances("key", at(0)).await, [59_000], "what others took is theirs");
}

pub(super) async fn resources_have_buckets_of_their_own(f: Fixture) {
    for (name, tokens, left) in [
        ("gpt-4", 1, 59_000),
        ("GPT-4", 2, 58_000),
        ("gpt-4/v1", 3, 57_000),
        ("gpt-4:v1", 4, 56_000),
    ] {
        f.take(&rpm("key", tokens).on(name), at(0)).await.granted(&[left]);
    }
    let key = entity("key");
    let listed = all(async |page| f.store.buckets(&key, &page).await).await;
    let found: Vec<_> = listed.iter().map(|view| view.resource.as_str()).collect();
    assert_eq!(found, ["GPT-4", "gpt-4", "gpt-4/v1", "gpt-4:v1"], "ordered by resource");
}

pub(super) async fn limit_names_know_case_and_punctuation(f: Fixture) {
    let names = limits("a.b:10/min a-b:20/min A.b:30/min a_b:40/min");
    let request = ask("key", &names, "a.b=1 a-b=1 A.b=1 a_b=1");
    f.take(&request, at(0)).await.granted(&[9_000, 19_000, 29_000, 39_000]);
    f.take(&request, at(0)).await.granted(&[8_000, 18_000, 28_000, 38_000]);
}

pub(super) async fn sixteen_limits_fit_one_bucket(f: Fixture) {
    let sixteen = limits(&words(1..=16, |number| format!("l{number:02}:{number}/min")));
    let one_each = ask("key", &sixteen, &words(1..=16, |number| format!("l{number:02}=1")));
    let left: Vec<i64> = (0..16).map(|number| number * 1_000).collect();
    f.take(&one_each, at(0)).await.granted(&left);
    assert_eq!(f.balances("key", at(0)).await, left, "all sixteen are stored");
    let answer = f.take(&one_each, at(0)).await;
    assert!(!answer.is_granted(), "expected a refusal by l01, found {answer:?}");
    assert_eq!(f.balances("key", at(0)).await, left, "one empty limit of sixteen refuses for all");
}

pub(super) async fn the_largest_limit_does_not_overflow(f: Fixture) {
    const TOKENS: u64 = 1_000_000_000_000_000;
    let big = limits(&format!("big:{TOKENS}/1000000000sec:{TOKENS}"));
    let all = ask("key", &big, &format!("big={TOKENS}"));
    f.take(&all, at(0)).await.granted(&[0]);
    // A million millitokens come back every millisecond.
    f.take(&all, at(0)).await.refused(&[(0, after(1_000_000_000_000))]);
    f.take(&ask("key", &big, "big=1000"), at(1)).await.granted(&[0]);
    f.take(&all, at(1_000_000_000_001)).await.granted(&[0]);
}

pub(super) async fn the_slowest_limit_does_not_overflow(f: Fixture) {
    const TOKENS: u64 = 1_000_000_000_000_000;
    let slow = limits(&format!("slow:1/1000000000sec:{TOKENS}"));
    let (all, one) = (ask("key", &slow, &format!("slow={TOKENS}")), ask("key", &slow, "slow=1"));
    f.take(&all, at(0)).await.granted(&[0]);
    f.take(&one, at(0)).await.refused(&[(0, after(1_000_000_000_000))]);
    // It would take 10²⁷ milliseconds: the wait stays at the largest there is.
    f.take(&all, at(0)).await.refused(&[(0, after(u64::MAX))]);
    f.take(&one, at(1_000_000_000_000)).await.granted(&[0]);
}

pub(super) async fn amounts_beyond_every_capacity_do_not_overflow(f: Fixture) {
    let mut request = rpm("key", 1);
    f.take(&request, at(0)).await.granted(&[59_000]);
    request.takes[0].amount = Milli(i64::MAX);
    f.take(&request, at(0)).await.refused(&[(59_000, Wait::Never)]);
    assert_eq!(f.balances("key", at(0)).await, [59_000], "nothing was taken");
}

pub(super) async fn the_ends_of_time_do_not_overflow(f: Fixture) {
    let all = rpm("key", 60);
    f.take(&all, TimeMs(i64::MIN)).await.granted(&[0]);
    f.take(&all, TimeMs(0)).await.granted(&[0]);
    f.take(&all, TimeMs(i64::MAX)).await.granted(&[0]);
    let answer = f.take(&all, TimeMs(0)).await;
    assert!(!answer.is_granted(), "the bucket was emptied at the end of time, found {answer:?}");
}
