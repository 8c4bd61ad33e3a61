//! What a refill says about the expiry.

use zae_limiter_core::ConfigStamp;

use super::*;
use crate::bucket::write::{Cost, Shape};
use crate::records::keys::bucket_of;
use crate::table::{Item, number};

const NOW: i64 = 1_000_000;

/// An empty bucket of 60 per minute, with or without an expiry.
fn image(ttl: Option<i64>) -> Image {
    let fields = [
        ("rf", NOW),
        ("shard_count", 1),
        ("b_rpm_tk", 0),
        ("b_rpm_cp", 60_000),
        ("b_rpm_ra", 60_000),
        ("b_rpm_rp", 60_000),
    ];
    let item: Item = fields
        .into_iter()
        .chain(ttl.map(|ttl| ("ttl", ttl)))
        .map(|(name, value)| (name.to_owned(), number(value)))
        .collect();
    Image::parse(&item).expect("a bucket")
}

/// A charge of one token, by somebody whose limits come from `source`.
fn charge(image: &Image, source: LimitSource) -> Change {
    let limits = LimitsInForce::resolved(
        [Limit::per_minute("rpm", 60).expect("a limit")],
        source,
        ConfigStamp(0),
        7,
    );
    let key = bucket_of("ns", "key", "gpt-4", 0);
    let amounts = [Amount { limit: &limits.limits[0], milli: Milli(1_000) }];
    let refill = Refill {
        key: &key,
        purpose: Purpose::Charge,
        image,
        target: Some(&limits),
        amounts: &amounts,
        loan: None,
        nonce: Some(&"n".into()),
        must_be_absent: MustBeAbsent::default(),
        cost: Cost::ONE,
        now: TimeMs(NOW),
    };
    match refill.build().expect("a write").shape {
        Shape::Change(change) => *change,
        shape => panic!("a bucket that is there is changed, not {shape:?}"),
    }
}

/// Found by the simulator: an expiry that another process sets within the millisecond of the image
/// was left alone, and the debt of this charge would have been forgotten with it.
#[test]
fn an_expiry_that_is_left_alone_is_pinned() {
    let no_expiry = charge(&image(None), LimitSource::Entity);
    assert_eq!((no_expiry.item.expiry, no_expiry.pins.expiry), (To::Keep, ExpiryPin::Absent));

    let late_enough = charge(&image(Some(NOW)), LimitSource::System);
    assert_eq!(late_enough.item.expiry, To::Keep);
    assert!(matches!(late_enough.pins.expiry, ExpiryPin::NotBefore(_)), "{late_enough:?}");
}

#[test]
fn an_expiry_that_is_too_early_or_not_wanted_is_written() {
    let too_early = charge(&image(Some(1_001)), LimitSource::System);
    assert!(matches!(too_early.item.expiry, To::Set(_)), "{too_early:?}");
    assert_eq!(charge(&image(Some(1_001)), LimitSource::Entity).item.expiry, To::Remove);
}
