//! HTTP headers that say what the limiter decided, without an HTTP dependency: plain name and value
//! pairs.
//!
//! `Retry-After` (RFC 9110), `RateLimit` and `RateLimit-Policy`
//! (draft-ietf-httpapi-ratelimit-headers-10), and one `x-ratelimit-*` triple per limit, as LLM
//! providers send them. Where several members of a chain have a limit of the same name, the headers
//! show the one that matters to the client: the one to wait for longest, else the one with the
//! least left.
//!
//! A handler needs two calls for a request that got no lease, [`of`] and
//! [`http_status`](crate::AcquireError::http_status); with the feature `axum`, `?` alone does both.
//!
//! ```
//! # use zae_limiter::{AcquireError, headers};
//! fn refuse(error: &AcquireError) -> (u16, Vec<headers::Header>) {
//!     (error.http_status(), headers::of(error))
//! }
//! ```
//!
//! | parameter | where | what it is |
//! |---|---|---|
//! | `q` | policy | the capacity |
//! | `w` | policy | seconds in which the whole capacity refills |
//! | `qu` | policy | the unit, for limits whose unit the draft registers: [`Fields::unit`] |
//! | `pk` | both | whose quota it is, if the server wants to say so: [`Fields::partition`] |
//! | `r` | state | what is left, 0 in debt |
//! | `t` | state | seconds until there is more: the wait of a limit that refused, else the time to the next token |
//!
//! `t` is missing when the bucket is full, and in a refusal for limits that did not refuse:
//! `Retry-After` is never earlier than any `t` beside it. `x-ratelimit-reset-*` says when the
//! bucket is *full* again, as those headers do elsewhere.

use zae_limiter_core::{LimitStatus, RateLimitExceeded, Wait};

use crate::AcquireError;

/// A header name and its value.
pub type Header = (String, String);

/// The largest integer of a structured field (RFC 9651); one less than our largest limit.
const INTEGER_MAX: u64 = 999_999_999_999_999;

/// A unit of quota that the draft registers. Limits of anything else, LLM tokens for example, have
/// none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Unit {
    /// Requests, which is also what clients assume when no unit is given.
    Requests,
    /// Bytes of content.
    ContentBytes,
    /// Requests at the same time.
    ConcurrentRequests,
}

impl Unit {
    /// The registered word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Unit::Requests => "requests",
            Unit::ContentBytes => "content-bytes",
            Unit::ConcurrentRequests => "concurrent-requests",
        }
    }
}

/// Additions to the headers that only the server knows: units and partitions. [`granted`],
/// [`refused`] and [`of`] add nothing.
///
/// ```
/// # use zae_limiter::headers::{Fields, Unit};
/// let fields = Fields::new()
///     .unit("rpm", Unit::Requests)
///     .unit("bandwidth", Unit::ContentBytes)
///     .partition("key-1");
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "fields do nothing until they are asked for headers"]
pub struct Fields {
    units: Vec<(String, Unit)>,
    partition: Option<String>,
}

impl Fields {
    /// No additions.
    pub fn new() -> Fields {
        Fields::default()
    }

    /// The unit that a limit counts.
    pub fn unit(mut self, limit: impl Into<String>, unit: Unit) -> Fields {
        self.units.push((limit.into(), unit));
        self
    }

    /// The owner of the quota. Clients see this text, and so does every machine between you and
    /// them.
    pub fn partition(mut self, key: impl Into<String>) -> Fields {
        self.partition = Some(key.into());
        self
    }

    /// See [`granted`].
    #[must_use]
    pub fn granted(&self, statuses: &[LimitStatus]) -> Vec<Header> {
        self.of_limits(statuses, |status| (!is_full(status)).then(|| next_token_s(status)))
    }

    /// See [`refused`].
    #[must_use]
    pub fn refused(&self, exceeded: &RateLimitExceeded) -> Vec<Header> {
        let mut headers = Vec::new();
        if let Wait::After(wait) = exceeded.retry_after() {
            headers.push(retry_after(wait.get()));
        }
        headers.extend(self.of_limits(exceeded.statuses(), |status| match status.retry_after {
            Wait::After(wait) => Some(wait.get().div_ceil(1000)),
            Wait::None | Wait::Never => None,
        }));
        headers
    }

    /// See [`of`].
    #[must_use]
    pub fn of(&self, error: &AcquireError) -> Vec<Header> {
        match (error.exceeded(), error.retry_after()) {
            (Some(exceeded), _) => self.refused(exceeded),
            (None, Some(wait)) => {
                vec![retry_after(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX))]
            }
            (None, None) => Vec::new(),
        }
    }

    fn of_limits(
        &self,
        statuses: &[LimitStatus],
        more_in_s: impl Fn(&LimitStatus) -> Option<u64>,
    ) -> Vec<Header> {
        let speaking = speaking(statuses);
        if speaking.is_empty() {
            return Vec::new();
        }
        let mut policy = Item::list();
        let mut state = Item::list();
        for status in &speaking {
            let name = status.limit.name().as_str();
            policy.begin(name).integer("q", status.limit.capacity()).integer("w", window_s(status));
            if let Some((_, unit)) = self.units.iter().find(|(limit, _)| limit == name) {
                policy.string("qu", unit.as_str());
            }
            state.begin(name).integer("r", left(status));
            if let Some(seconds) = more_in_s(status) {
                state.integer("t", seconds);
            }
            if let Some(partition) = &self.partition {
                policy.bytes("pk", partition.as_bytes());
                state.bytes("pk", partition.as_bytes());
            }
        }
        let mut headers = vec![
            ("RateLimit-Policy".to_owned(), policy.text),
            ("RateLimit".to_owned(), state.text),
        ];
        for status in speaking {
            let name = status.limit.name();
            headers
                .push((format!("x-ratelimit-limit-{name}"), status.limit.capacity().to_string()));
            headers.push((format!("x-ratelimit-remaining-{name}"), left(status).to_string()));
            headers.push((format!("x-ratelimit-reset-{name}"), format!("{}s", reset_s(status))));
        }
        headers
    }
}

/// The headers of a granted request: what is left of each limit, and when there is more.
#[must_use]
pub fn granted(statuses: &[LimitStatus]) -> Vec<Header> {
    Fields::new().granted(statuses)
}

/// The headers of a refused request: what is left, and when to come back. A request that can never
/// pass gets no `Retry-After`.
#[must_use]
pub fn refused(exceeded: &RateLimitExceeded) -> Vec<Header> {
    Fields::new().refused(exceeded)
}

/// The headers of a request that got no lease, whatever the reason: a refusal's, or `Retry-After`
/// alone when the store is down. Goes with [`AcquireError::http_status`].
#[must_use]
pub fn of(error: &AcquireError) -> Vec<Header> {
    Fields::new().of(error)
}

fn retry_after(wait_ms: u64) -> Header {
    ("Retry-After".to_owned(), wait_ms.div_ceil(1000).to_string())
}

/// One status per limit name, in order of first appearance.
fn speaking(statuses: &[LimitStatus]) -> Vec<&LimitStatus> {
    let mut speaking: Vec<&LimitStatus> = Vec::new();
    for status in statuses {
        // Ordered by what the client has to wait for, then by how little is left.
        let matters_more = |seen: &LimitStatus| {
            (status.retry_after, -status.available) > (seen.retry_after, -seen.available)
        };
        match speaking.iter_mut().find(|seen| seen.limit.name() == status.limit.name()) {
            Some(seen) if matters_more(seen) => *seen = status,
            Some(_) => {}
            None => speaking.push(status),
        }
    }
    speaking
}

/// Debt is shown as nothing left: the draft has no negative numbers.
fn left(status: &LimitStatus) -> u64 {
    u64::try_from(status.available).unwrap_or(0)
}

fn is_full(status: &LimitStatus) -> bool {
    status.available >= i64::try_from(status.limit.capacity()).unwrap_or(i64::MAX)
}

/// Seconds in which the whole capacity refills.
fn window_s(status: &LimitStatus) -> u64 {
    seconds_for(status, u128::from(status.limit.capacity()))
}

/// Seconds until one more token can be taken, at most: a part of it may be there already. Debt
/// comes first.
fn next_token_s(status: &LimitStatus) -> u64 {
    let missing = 1 - i128::from(status.available.min(0));
    seconds_for(status, u128::try_from(missing).unwrap_or(1))
}

/// Seconds until the bucket is full again.
fn reset_s(status: &LimitStatus) -> u64 {
    let missing = i128::from(status.limit.capacity()) - i128::from(status.available);
    seconds_for(status, u128::try_from(missing).unwrap_or(0))
}

fn seconds_for(status: &LimitStatus, tokens: u128) -> u64 {
    let seconds = (tokens * u128::from(status.limit.refill_period_s()))
        .div_ceil(u128::from(status.limit.refill_amount()));
    u64::try_from(seconds).unwrap_or(u64::MAX)
}

/// A list of items with parameters, written as a structured field (RFC 9651).
struct Item {
    text: String,
}

impl Item {
    fn list() -> Item {
        Item { text: String::new() }
    }

    fn begin(&mut self, name: &str) -> &mut Item {
        if !self.text.is_empty() {
            self.text.push_str(", ");
        }
        self.quoted(name)
    }

    fn integer(&mut self, key: &str, value: u64) -> &mut Item {
        self.text.push_str(&format!(";{key}={}", value.min(INTEGER_MAX)));
        self
    }

    fn string(&mut self, key: &str, value: &str) -> &mut Item {
        self.text.push_str(&format!(";{key}="));
        self.quoted(value)
    }

    /// Names are letters, digits and `_ . -` already; escaped all the same, because a header must
    /// not depend on that.
    fn quoted(&mut self, text: &str) -> &mut Item {
        self.text.push('"');
        for character in text.chars().filter(|character| matches!(character, ' '..='~')) {
            if matches!(character, '"' | '\\') {
                self.text.push('\\');
            }
            self.text.push(character);
        }
        self.text.push('"');
        self
    }

    /// Base64 between colons.
    fn bytes(&mut self, key: &str, value: &[u8]) -> &mut Item {
        const ALPHABET: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        self.text.push_str(&format!(";{key}=:"));
        for three in value.chunks(3) {
            let bits = three.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte))
                << (8 * (3 - three.len()));
            for digit in 0..4 {
                let symbol = ALPHABET[(bits >> (18 - 6 * digit) & 63) as usize];
                self.text.push(if digit <= three.len() { char::from(symbol) } else { '=' });
            }
        }
        self.text.push(':');
        self
    }
}

#[cfg(test)]
mod tests;
