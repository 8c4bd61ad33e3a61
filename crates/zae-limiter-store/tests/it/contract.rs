//! The values of the contract: what a request and a change know without a backend.

use std::borrow::Cow;
use std::sync::Arc;

use zae_limiter_core::{ConfigStamp, EntityId, Limit, LimitSource, Milli, ResourceName, TimeMs};
use zae_limiter_store::{BucketDelta, ConsumeRequest, Delta, LimitsInForce};

const STAMP: ConfigStamp = ConfigStamp(9);

/// Of the slowest limit: a minute to fill, times 7.
const SEVEN_MINUTES: Option<i64> = Some(420_000);

fn limits(text: &str) -> Arc<[Limit]> {
    text.split_whitespace().map(|limit| limit.parse().expect("a valid limit")).collect()
}

fn receipt(text: &str, source: LimitSource) -> LimitsInForce {
    LimitsInForce::new(limits(text), source)
}

/// The limits that the bucket of a receipt is made again from: `amounts` are the changes, in the
/// order of the receipt's limits, and `now` are the limits in force.
fn made_again<'a>(
    receipt: &'a LimitsInForce,
    amounts: &[i64],
    now: Option<(&str, LimitSource)>,
) -> Cow<'a, LimitsInForce> {
    let deltas: Vec<Delta> =
        (0..).zip(amounts).map(|(limit, amount)| Delta { limit, amount: Milli(*amount) }).collect();
    let entity: EntityId = "key".parse().expect("a valid id");
    let resource: ResourceName = "gpt-4".parse().expect("a valid resource");
    let deltas = BucketDelta {
        entity: &entity,
        resource: &resource,
        limits: receipt,
        deltas: &deltas,
        operation: 0,
        take: 0,
        place: 0,
    };
    let now = now.map(|(text, source)| (limits(text), source));
    // The answer may borrow the receipt, not the change.
    match deltas.made_again(now.as_ref(), STAMP) {
        Cow::Borrowed(_) => Cow::Borrowed(receipt),
        Cow::Owned(limits) => Cow::Owned(limits),
    }
}

#[test]
fn a_request_carries_its_number() {
    let request = ConsumeRequest::new(&[], TimeMs(5));
    assert_eq!((request.operation, request.numbered(7).operation), (0, 7));
    assert_eq!(request.numbered(7).now, TimeMs(5));
}

/// Only limits that are charged must be among those in force: a receipt also names limits that
/// nothing is owed to.
#[test]
fn a_limit_with_nothing_charged_does_not_bring_the_receipt_back() {
    let old = receipt("rpm:60/min tpm:60/min", LimitSource::System);
    for tpm in [0, -5_000] {
        let found = made_again(&old, &[500_000, tpm], Some(("rpm:10/min", LimitSource::System)));
        assert_eq!(found.limits, limits("rpm:10/min"), "tpm was given {tpm}");
        assert_eq!((found.source, found.stamp), (LimitSource::System, STAMP));
    }
    let found = made_again(&old, &[500_000, 1], Some(("rpm:10/min", LimitSource::System)));
    assert_eq!(*found, old, "a millitoken of tpm was charged, and tpm is gone");
}

/// A bucket that is made again lives as long as the limits in force say. Only a process that keeps
/// every bucket for good keeps this one too.
#[test]
fn a_bucket_made_again_expires_by_the_limits_in_force() {
    let (system, own) = (LimitSource::System, LimitSource::Entity);
    let usual = receipt("rpm:60/min", system);
    let kept = LimitsInForce { ttl_ms: None, ..usual.clone() };
    let of_entity = receipt("rpm:60/min", own);
    let cases = [
        (&usual, system, SEVEN_MINUTES),
        (&usual, own, None),
        (&kept, system, None),
        (&kept, own, None),
        (&of_entity, system, SEVEN_MINUTES),
        (&of_entity, own, None),
    ];
    for (receipt, now, expected) in cases {
        let found = made_again(receipt, &[1_000], Some(("rpm:10/min", now)));
        assert_eq!(found.limits, limits("rpm:10/min"));
        assert_eq!(found.ttl_ms, expected, "{receipt:?}, now from {now:?}");
    }
}

/// Where the limits of the receipt count, so does what the receipt says of the expiry, but for a
/// bucket that was kept for an entity that has no limits of its own any more: nobody would look at
/// the bucket.
#[test]
fn a_bucket_made_again_by_its_receipt_is_kept_only_for_an_entity_with_limits() {
    let (system, own) = (LimitSource::System, LimitSource::Entity);
    let usual = receipt("rpm:60/min", system);
    let kept = LimitsInForce { ttl_ms: None, ..usual.clone() };
    let longer = LimitsInForce { ttl_ms: Some(1), ..usual.clone() };
    let of_entity = receipt("rpm:60/min", own);
    let called = receipt("rpm:60/min", LimitSource::Call);
    // Other limits are in force, none of which is charged.
    let other = |source| Some(("tpm:5/min", source));
    let cases = [
        (&usual, None, SEVEN_MINUTES),
        (&usual, other(system), SEVEN_MINUTES),
        (&kept, None, None),
        (&kept, other(system), None),
        (&longer, other(system), Some(1)),
        (&of_entity, other(own), None),
        (&of_entity, other(system), SEVEN_MINUTES),
        (&of_entity, None, SEVEN_MINUTES),
        (&called, other(own), SEVEN_MINUTES),
    ];
    for (receipt, now, expected) in cases {
        let found = made_again(receipt, &[1_000], now);
        assert_eq!(*found, LimitsInForce { ttl_ms: expected, ..receipt.clone() }, "now {now:?}");
    }
}
