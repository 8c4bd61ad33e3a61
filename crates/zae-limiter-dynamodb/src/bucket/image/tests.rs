//! What is read of an item, and what is refused.

use super::*;

/// A bucket with one limit, and these attributes set on top.
fn item<'a>(more: impl IntoIterator<Item = (&'a str, AttributeValue)>) -> Item {
    let number = |text: &str| AttributeValue::N(text.to_owned());
    let mut item: Item = [("rf", "1000"), ("shard_count", "1"), ("b_wcu_tk", "1000000")]
        .into_iter()
        .chain([
            ("b_rpm_tk", "7000"),
            ("b_rpm_tc", "3000"),
            ("b_rpm_cp", "10000"),
            ("b_rpm_ra", "10000"),
            ("b_rpm_rp", "60000"),
        ])
        .map(|(name, value)| (name.to_owned(), number(value)))
        .collect();
    item.extend(more.into_iter().map(|(name, value)| (name.to_owned(), value)));
    item
}

fn n(text: &str) -> AttributeValue {
    AttributeValue::N(text.to_owned())
}

fn s(text: &str) -> AttributeValue {
    AttributeValue::S(text.to_owned())
}

#[test]
fn what_can_not_be_honoured_is_refused_by_its_name() {
    let fields = UNSUPPORTED_FIELDS.map(|(field, _)| format!("b_rpm_{field}"));
    for name in
        UNSUPPORTED.map(|(name, _)| name).into_iter().chain(fields.iter().map(String::as_str))
    {
        let error = Image::parse(&item([(name, s("1m0-59h9-17"))]))
            .unwrap()
            .check_supported("pk")
            .unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Incompatible);
        assert!(error.to_string().contains(&format!("{name:?}")), "{error}");
    }
    for count in ["3", "64"] {
        let image = Image::parse(&item([("shard_count", n(count))])).unwrap();
        let shards = image.check_supported("pk").unwrap_err();
        assert!(shards.to_string().contains("another number of shards"), "{shards}");
    }
    let quota =
        Image::parse(&item([("b_rpm_ra", n("0"))])).unwrap().check_supported("pk").unwrap_err();
    assert!(quota.to_string().contains("quotas"), "{quota}");
}

/// The Python package says so of every limit it adds to a bucket.
#[test]
fn a_limit_that_says_it_has_no_schedule_has_none() {
    let marks = [("b_rpm_sched", s("-")), ("b_rpm_rsched", s("-"))];
    Image::parse(&item(marks)).unwrap().check_supported("pk").unwrap();
}

/// Whoever moves the refill instant without knowing of remainders makes them worthless.
#[test]
fn remainders_count_only_at_their_own_refill_instant() {
    for (rmf, rm, counts) in
        [("1000", "59999", 59_999), ("999", "59999", 0), ("1000", "60000", 0), ("1000", "-1", 0)]
    {
        let image = Image::parse(&item([("rmf", n(rmf)), ("b_rpm_rm", n(rm))])).unwrap();
        assert_eq!(
            (image.limits[0].remainder, image.limits[0].has_remainder),
            (counts, true),
            "{rm} of {rmf}"
        );
    }
}

#[test]
fn numbers_of_any_size_are_read_or_refused() {
    let balance = |text| {
        Image::parse(&item([("b_rpm_tk", n(text))]))
            .map(|image| image.limits[0].balance.0)
            .map_err(|error| error.kind())
    };
    assert_eq!(balance("-12"), Ok(-12));
    assert_eq!(balance("1.5e4"), Ok(15_000));
    assert_eq!(balance("99999999999999999999999999999999999999"), Ok(i64::MAX));
    assert_eq!(balance("-99999999999999999999999999999999999999"), Ok(i64::MIN));
    for damage in ["1.5", "1e300", "NaN", "", "many"] {
        assert_eq!(balance(damage), Err(StoreErrorKind::Corrupt), "{damage:?}");
    }
}

#[test]
fn an_item_with_a_part_missing_is_damaged_and_says_which() {
    for name in ["rf", "shard_count", "b_rpm_cp", "b_rpm_ra", "b_rpm_rp"] {
        let mut damaged = item([]);
        damaged.remove(name);
        let error = Image::parse(&damaged).unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Corrupt);
        assert!(error.to_string().contains(&format!("{name:?}")), "{error}");
        let error = Image::parse(&item([(name, s("12"))])).unwrap_err();
        assert!(error.to_string().contains("not a number"), "{error}");
    }
}

/// Found by review: every write pins these, so a bucket that breaks them refused for ever as
/// contended.
#[test]
fn what_no_write_could_pin_is_damaged_and_says_what_to_do() {
    let error = |name, value| {
        let mut item = item([(name, value)]);
        item.extend([
            ("PK".to_owned(), s("ns/BUCKET#key#gpt-4#0")),
            ("SK".to_owned(), s("#STATE")),
        ]);
        Image::parse(&item).unwrap_err().to_string()
    };
    let off = error("disabled", AttributeValue::Bool(false));
    assert!(
        off.contains("\"disabled\" of item ns/BUCKET#key#gpt-4#0 #STATE is false")
            && off.contains("enable"),
        "{off}"
    );
    assert!(error("disabled", s("bypass")).contains("is bypass, not true"));
    assert!(error("shard_count", n("0")).contains("\"shard_count\""));
}

/// A measure, not a limit: without it the bucket is refilled first, which brings it back.
#[test]
fn a_bucket_without_its_measure_of_writes_has_none_left() {
    let mut item = item([]);
    item.remove("b_wcu_tk");
    assert!(
        Image::parse(&item).unwrap().room_milli < WCU_NEEDED_MILLI,
        "FAST would fail on it for ever"
    );
}

/// What is left of a limit that is gone counts by its balance alone: damage beside it harms nobody.
#[test]
fn damage_beside_a_balance_without_parameters_is_passed_over() {
    let image = Image::parse(&item([("b_old_tk", n("-500")), ("b_old_tc", s("many"))])).unwrap();
    assert_eq!(image.stubs, [Stub { name: "old".parse().unwrap(), balance: Milli(-500) }]);
    assert!(Image::parse(&item([("b_old_tk", s("many"))])).is_err());
}
