use super::*;
use zae_limiter_core::WaitMs;

fn status(entity: &str, limit: &str, available: i64, retry_after: Wait) -> LimitStatus {
    LimitStatus {
        entity: entity.parse().unwrap(),
        resource: "gpt-4".parse().unwrap(),
        limit: limit.parse().unwrap(),
        available,
        requested: 1,
        retry_after,
    }
}

fn after(wait_ms: u64) -> Wait {
    Wait::After(WaitMs::at_least_one(wait_ms))
}

fn check(headers: &[Header], expected: &[(&str, &str)]) {
    let headers: Vec<(&str, &str)> =
        headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(headers, expected);
}

fn value<'a>(headers: &'a [Header], name: &str) -> Option<&'a str> {
    headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
}

/// The `t` of each limit, by place.
fn waits(headers: &[Header]) -> Vec<Option<u64>> {
    let state = value(headers, "RateLimit").expect("a state");
    let wait = |item: &str| {
        item.split(';')
            .find_map(|part| part.strip_prefix("t="))
            .map(|seconds| seconds.parse().unwrap())
    };
    state.split(", ").map(wait).collect()
}

#[test]
fn a_grant_shows_the_tightest_member_of_the_chain() {
    let statuses =
        [status("key", "rpm:100/min", 99, Wait::None), status("org", "rpm:60/min", 9, Wait::None)];
    check(
        &granted(&statuses),
        &[
            ("RateLimit-Policy", "\"rpm\";q=60;w=60"),
            ("RateLimit", "\"rpm\";r=9;t=1"),
            ("x-ratelimit-limit-rpm", "60"),
            ("x-ratelimit-remaining-rpm", "9"),
            ("x-ratelimit-reset-rpm", "51s"),
        ],
    );
    check(&granted(&[]), &[]);
}

#[test]
fn a_grant_says_when_the_next_token_comes_and_nothing_when_full() {
    let state = |limit: &str, available| {
        let headers = granted(&[status("key", limit, available, Wait::None)]);
        value(&headers, "RateLimit").unwrap().to_owned()
    };
    assert_eq!(state("rpd:10/day", 3), "\"rpd\";r=3;t=8640");
    assert_eq!(state("tpm:10000/min", 0), "\"tpm\";r=0;t=1");
    assert_eq!(state("rpd:10/day", 10), "\"rpd\";r=10");
    assert_eq!(
        state("rpd:10/day", -2),
        "\"rpd\";r=0;t=25920",
        "a debt of two comes before the next token"
    );
}

#[test]
fn a_refusal_says_the_same_time_twice() {
    let exceeded = RateLimitExceeded::new(vec![status("key", "rpm:60/min", -3, after(1001))]);
    let headers = refused(&exceeded);
    assert_eq!(headers[0], ("Retry-After".into(), "2".into()));
    assert_eq!(value(&headers, "RateLimit"), Some("\"rpm\";r=0;t=2"));
    assert_eq!(value(&headers, "x-ratelimit-remaining-rpm"), Some("0"));
    assert_eq!(value(&headers, "x-ratelimit-reset-rpm"), Some("63s"));
}

#[test]
fn retry_after_is_never_earlier_than_any_t() {
    // The child has less left, but the parent is to be waited for; the daily limit passed and
    // refills last of all.
    let exceeded = RateLimitExceeded::new(vec![
        status("key", "rpm:60/min", -5, after(6_000)),
        status("key", "rpd:10/day", 9, Wait::None),
        status("org", "rpm:6/min", 0, after(9_001)),
    ]);
    let headers = refused(&exceeded);
    assert_eq!(value(&headers, "Retry-After"), Some("10"));
    assert_eq!(waits(&headers), [Some(10), None]);
}

#[test]
fn what_can_never_pass_gets_no_retry_after() {
    let exceeded = RateLimitExceeded::new(vec![status("key", "rpm:60/min", 60, Wait::Never)]);
    let headers = refused(&exceeded);
    assert_eq!(value(&headers, "Retry-After"), None);
    assert_eq!(waits(&headers), [None]);
}

#[test]
fn contention_says_when_to_come_back() {
    let headers = refused(&RateLimitExceeded::contended(
        vec![status("key", "rpm:60/min", 5, Wait::None)],
        after(150),
    ));
    assert_eq!((value(&headers, "Retry-After"), waits(&headers)), (Some("1"), vec![None]));
}

#[test]
fn integers_fit_structured_fields() {
    let largest = status("key", "big:1/day:1000000000000000", 1_000_000_000_000_000, Wait::None);
    let headers = granted(&[largest]);
    assert_eq!(
        value(&headers, "RateLimit-Policy"),
        Some("\"big\";q=999999999999999;w=999999999999999")
    );
    assert_eq!(value(&headers, "RateLimit"), Some("\"big\";r=999999999999999"));
    let exceeded = RateLimitExceeded::new(vec![status(
        "key",
        "big:1/day:1000000000000000",
        0,
        after(u64::MAX),
    )]);
    assert_eq!(waits(&refused(&exceeded)), [Some(999_999_999_999_999)]);
}

#[test]
fn units_and_partitions_are_said_when_given() {
    let fields =
        Fields::new().unit("rpm", Unit::Requests).unit("io", Unit::ContentBytes).partition("key-1");
    let statuses = [
        status("key-1", "rpm:60/min", 59, Wait::None),
        status("key-1", "tpm:60/min", 60, Wait::None),
    ];
    let headers = fields.granted(&statuses);
    assert_eq!(
        value(&headers, "RateLimit-Policy"),
        Some("\"rpm\";q=60;w=60;qu=\"requests\";pk=:a2V5LTE=:, \"tpm\";q=60;w=60;pk=:a2V5LTE=:")
    );
    assert_eq!(
        value(&headers, "RateLimit"),
        Some("\"rpm\";r=59;t=1;pk=:a2V5LTE=:, \"tpm\";r=60;pk=:a2V5LTE=:")
    );
}

#[test]
fn bytes_are_base64() {
    for (text, encoded) in [
        ("", "::"),
        ("f", ":Zg==:"),
        ("fo", ":Zm8=:"),
        ("foo", ":Zm9v:"),
        ("foob", ":Zm9vYg==:"),
        ("\u{ff}?", ":w78/:"),
    ] {
        let mut item = Item::list();
        item.bytes("pk", text.as_bytes());
        assert_eq!(item.text, format!(";pk={encoded}"));
    }
}

#[test]
fn strings_cannot_break_out_of_their_quotes() {
    let mut item = Item::list();
    item.begin("a\"b\\c\r\nd\u{e9}");
    assert_eq!(item.text, "\"a\\\"b\\\\cd\"");
}

#[test]
fn every_error_has_its_headers() {
    let refusal = AcquireError::from(RateLimitExceeded::new(vec![status(
        "key",
        "rpm:60/min",
        0,
        after(500),
    )]));
    assert_eq!(of(&refusal)[0], ("Retry-After".into(), "1".into()));
    let unavailable = crate::Unavailable {
        reason: crate::OutageReason::BreakerOpen,
        retry_after: std::time::Duration::from_millis(1001),
        source: None,
    };
    check(&of(&AcquireError::Unavailable(unavailable)), &[("Retry-After", "2")]);
}
