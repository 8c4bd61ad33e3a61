//! The status of each limit that a caller is told, on a grant and on a refusal.

use std::fmt;
use std::time::Duration;

use crate::{EntityId, Limit, ResourceName, Wait};

/// One limit of one bucket, as seen by one decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitStatus {
    /// The entity whose bucket this is: the caller itself or one of its ancestors.
    pub entity: EntityId,
    /// The resource asked for.
    pub resource: ResourceName,
    /// The limit in force for that entity.
    pub limit: Limit,
    /// Whole tokens left, rounded towards −∞; negative is debt. After the take on a grant, before
    /// it on a refusal.
    pub available: i64,
    /// Tokens asked for.
    pub requested: u64,
    /// When this limit could pass: `Wait::None` unless it refused.
    pub retry_after: Wait,
}

impl LimitStatus {
    /// True when this limit is one of those that refused.
    #[must_use]
    pub fn exceeded(&self) -> bool {
        self.retry_after != Wait::None
    }
}

/// A refusal: the status of every limit that was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimitExceeded {
    statuses: Vec<LimitStatus>,
    contended: Option<Wait>,
    as_of: Option<Duration>,
}

impl RateLimitExceeded {
    /// A refusal by limits. `statuses` are those of every limit checked, the caller's own first.
    #[must_use]
    pub fn new(statuses: Vec<LimitStatus>) -> RateLimitExceeded {
        debug_assert!(
            statuses.iter().any(LimitStatus::exceeded),
            "a refusal has at least one violation"
        );
        RateLimitExceeded { statuses, contended: None, as_of: None }
    }

    /// A refusal because too many writers fought for the bucket, not because a limit was reached.
    #[must_use]
    pub fn contended(statuses: Vec<LimitStatus>, retry_after: Wait) -> RateLimitExceeded {
        RateLimitExceeded { statuses, contended: Some(retry_after), as_of: None }
    }

    /// The same, decided by what the store said `age` ago.
    #[must_use]
    pub fn aged(self, age: Duration) -> RateLimitExceeded {
        RateLimitExceeded { as_of: Some(age), ..self }
    }

    /// How old the knowledge is that refused; `None` when the store has just said so. Local blocks
    /// refuse from memory while a limit is scarce, for 1.25 seconds at most.
    #[must_use]
    pub fn as_of(&self) -> Option<Duration> {
        self.as_of
    }

    /// Every limit checked.
    #[must_use]
    pub fn statuses(&self) -> &[LimitStatus] {
        &self.statuses
    }

    /// The limits that refused.
    pub fn violations(&self) -> impl Iterator<Item = &LimitStatus> {
        self.statuses.iter().filter(|status| status.exceeded())
    }

    /// The limits that would have let the call pass.
    pub fn passed(&self) -> impl Iterator<Item = &LimitStatus> {
        self.statuses.iter().filter(|status| !status.exceeded())
    }

    /// The bottleneck: the violation that takes longest to clear.
    #[must_use]
    pub fn primary(&self) -> Option<&LimitStatus> {
        // `max_by_key` would prefer the last of equals; the caller's own limit, which comes first,
        // explains more.
        self.violations().fold(None, |best: Option<&LimitStatus>, status| match best {
            Some(best) if best.retry_after >= status.retry_after => Some(best),
            _ => Some(status),
        })
    }

    /// When the whole request could pass.
    #[must_use]
    pub fn retry_after(&self) -> Wait {
        self.primary().map(|status| status.retry_after).max(self.contended).unwrap_or(Wait::Never)
    }

    /// True when contention, not a limit, refused.
    #[must_use]
    pub fn is_contended(&self) -> bool {
        self.contended.is_some()
    }
}

impl fmt::Display for RateLimitExceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(primary) = self.primary() else {
            return write!(f, "too many writers on one bucket; retry after {}", self.retry_after());
        };
        write!(f, "rate limit exceeded for {}/{}: [", primary.entity, primary.resource)?;
        for (index, status) in self.violations().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{}", status.limit.name())?;
        }
        match primary.retry_after {
            Wait::Never => {
                write!(
                    f,
                    "]; it can never pass: {} tokens requested, the capacity is {}",
                    primary.requested,
                    primary.limit.capacity()
                )
            }
            wait => write!(f, "]; retry after {wait}"),
        }
    }
}

impl std::error::Error for RateLimitExceeded {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WaitMs;

    fn status(entity: &str, limit: &str, retry_after: Wait) -> LimitStatus {
        LimitStatus {
            entity: entity.parse().expect("entity"),
            resource: "gpt-4".parse().expect("resource"),
            limit: limit.parse().expect("limit"),
            available: 0,
            requested: 70,
            retry_after,
        }
    }

    #[test]
    fn the_bottleneck_is_the_longest_wait() {
        let short = status("key", "rpm:60", Wait::After(WaitMs::at_least_one(10)));
        let long = status("org", "tpm:60", Wait::After(WaitMs::at_least_one(1500)));
        let exceeded = RateLimitExceeded::new(vec![status("key", "ok:1", Wait::None), short, long]);
        assert_eq!(exceeded.primary().map(|s| s.entity.as_str()), Some("org"));
        assert_eq!(exceeded.retry_after().ms(), Some(1500));
        assert_eq!((exceeded.violations().count(), exceeded.passed().count()), (2, 1));
        assert_eq!(exceeded.statuses().len(), 3);
        assert!(!exceeded.is_contended());
        assert_eq!(
            exceeded.to_string(),
            "rate limit exceeded for org/gpt-4: [rpm, tpm]; retry after 1.5s"
        );
    }

    #[test]
    fn never_beats_every_wait_and_says_why() {
        let exceeded = RateLimitExceeded::new(vec![
            status("key", "rpm:60", Wait::Never),
            status("key", "tpm:60", Wait::After(WaitMs::at_least_one(1500))),
        ]);
        assert_eq!(exceeded.retry_after(), Wait::Never);
        assert_eq!(
            exceeded.to_string(),
            "rate limit exceeded for key/gpt-4: [rpm, tpm]; it can never pass: 70 tokens requested, the capacity is 60"
        );
    }

    #[test]
    fn contention_has_its_own_words() {
        let exceeded = RateLimitExceeded::contended(vec![], Wait::After(WaitMs::at_least_one(80)));
        assert!(exceeded.is_contended());
        assert_eq!(exceeded.to_string(), "too many writers on one bucket; retry after 0.1s");
    }
}
