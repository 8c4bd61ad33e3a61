//! HTTP headers that say what the limiter decided, without an HTTP dependency: plain name and value pairs.
//!
//! `Retry-After` (RFC 9110), `RateLimit` and `RateLimit-Policy` (IETF draft *RateLimit header fields for HTTP*), and one
//! `x-ratelimit-*` triple per limit, as LLM providers send them. Where several members of a chain have a limit of the same
//! name, the one with the least left speaks: it is the one the client will meet.

use zae_limiter_core::{LimitStatus, RateLimitExceeded, Wait};

use crate::AcquireError;

/// A header name and its value.
pub type Header = (String, String);

/// The headers of a granted request: what is left of each limit.
#[must_use]
pub fn granted(statuses: &[LimitStatus]) -> Vec<Header> {
    let tightest = tightest(statuses);
    if tightest.is_empty() {
        return Vec::new();
    }
    let policy = joined(&tightest, |status| format!("\"{}\";q={};w={}", status.limit.name(), status.limit.capacity(), window_s(status)));
    let state = joined(&tightest, |status| format!("\"{}\";r={};t={}", status.limit.name(), left(status), reset_s(status)));
    let mut headers = vec![("RateLimit-Policy".to_owned(), policy), ("RateLimit".to_owned(), state)];
    for status in tightest {
        let name = status.limit.name();
        headers.push((format!("x-ratelimit-limit-{name}"), status.limit.capacity().to_string()));
        headers.push((format!("x-ratelimit-remaining-{name}"), left(status).to_string()));
        headers.push((format!("x-ratelimit-reset-{name}"), format!("{}s", reset_s(status))));
    }
    headers
}

/// The headers of a refused request: the same, and when to come back. A request that can never pass gets no `Retry-After`.
#[must_use]
pub fn refused(exceeded: &RateLimitExceeded) -> Vec<Header> {
    let mut headers = Vec::new();
    if let Wait::After(wait) = exceeded.retry_after() {
        headers.push(("Retry-After".to_owned(), wait.get().div_ceil(1000).to_string()));
    }
    headers.extend(granted(exceeded.statuses()));
    headers
}

/// The headers of a request that got no lease, whatever the reason: a refusal's, or `Retry-After` alone when the store is
/// down. Goes with [`AcquireError::http_status`].
#[must_use]
pub fn of(error: &AcquireError) -> Vec<Header> {
    match (error.exceeded(), error.retry_after()) {
        (Some(exceeded), _) => refused(exceeded),
        (None, Some(wait)) => vec![("Retry-After".to_owned(), wait.as_millis().div_ceil(1000).to_string())],
        (None, None) => Vec::new(),
    }
}

/// One status per limit name, in order of first appearance: the one with the least left.
fn tightest(statuses: &[LimitStatus]) -> Vec<&LimitStatus> {
    let mut tightest: Vec<&LimitStatus> = Vec::new();
    for status in statuses {
        match tightest.iter_mut().find(|seen| seen.limit.name() == status.limit.name()) {
            Some(seen) if status.available < seen.available => *seen = status,
            Some(_) => {}
            None => tightest.push(status),
        }
    }
    tightest
}

fn joined(statuses: &[&LimitStatus], item: impl Fn(&LimitStatus) -> String) -> String {
    statuses.iter().map(|status| item(status)).collect::<Vec<_>>().join(", ")
}

/// Debt is shown as nothing left: the draft has no negative numbers.
fn left(status: &LimitStatus) -> u64 {
    u64::try_from(status.available).unwrap_or(0)
}

/// Seconds in which the whole capacity refills.
fn window_s(status: &LimitStatus) -> u64 {
    seconds_for(status, u128::from(status.limit.capacity()))
}

/// Seconds until the bucket is full again.
fn reset_s(status: &LimitStatus) -> u64 {
    let missing = i128::from(status.limit.capacity()) - i128::from(status.available);
    seconds_for(status, u128::try_from(missing).unwrap_or(0))
}

fn seconds_for(status: &LimitStatus, tokens: u128) -> u64 {
    let seconds = (tokens * u128::from(status.limit.refill_period_s())).div_ceil(u128::from(status.limit.refill_amount()));
    u64::try_from(seconds).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
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

    fn check(headers: &[Header], expected: &[(&str, &str)]) {
        let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(headers, expected);
    }

    #[test]
    fn a_grant_shows_the_tightest_member_of_the_chain() {
        let statuses = [status("key", "rpm:100/min", 99, Wait::None), status("org", "rpm:60/min", 9, Wait::None)];
        check(
            &granted(&statuses),
            &[
                ("RateLimit-Policy", "\"rpm\";q=60;w=60"),
                ("RateLimit", "\"rpm\";r=9;t=51"),
                ("x-ratelimit-limit-rpm", "60"),
                ("x-ratelimit-remaining-rpm", "9"),
                ("x-ratelimit-reset-rpm", "51s"),
            ],
        );
        check(&granted(&[]), &[]);
    }

    #[test]
    fn a_refusal_says_when_to_come_back_rounded_up() {
        let wait = Wait::After(WaitMs::at_least_one(1001));
        let exceeded = RateLimitExceeded::new(vec![status("key", "rpm:60/min", -3, wait)]);
        let headers = refused(&exceeded);
        assert_eq!(headers[0], ("Retry-After".into(), "2".into()));
        assert!(headers.contains(&("x-ratelimit-remaining-rpm".into(), "0".into())), "{headers:?}");
        assert!(headers.contains(&("x-ratelimit-reset-rpm".into(), "63s".into())), "{headers:?}");
    }

    #[test]
    fn what_can_never_pass_gets_no_retry_after() {
        let exceeded = RateLimitExceeded::new(vec![status("key", "rpm:60/min", 60, Wait::Never)]);
        assert!(refused(&exceeded).iter().all(|(name, _)| name != "Retry-After"));
    }

    #[test]
    fn every_error_has_its_headers() {
        let wait = Wait::After(WaitMs::at_least_one(500));
        let refusal = AcquireError::from(RateLimitExceeded::new(vec![status("key", "rpm:60/min", 0, wait)]));
        assert_eq!(of(&refusal)[0], ("Retry-After".into(), "1".into()));
        let unavailable = crate::Unavailable {
            reason: crate::OutageReason::BreakerOpen,
            retry_after: std::time::Duration::from_millis(1001),
            source: None,
        };
        check(&of(&AcquireError::Unavailable(unavailable)), &[("Retry-After", "2")]);
    }
}
