//! The sizes of blocks.

use std::time::Duration;

use zae_limiter_core::Limit;

use crate::StoreError;

/// A block is for at least this many requests; below, each request asks the store.
pub(super) const REQUESTS_MIN: i64 = 4;
/// A bucket gets its first block when that many requests come within one horizon.
pub(super) const REQUESTS_TO_BEGIN: i64 = 8;
/// Requests are watched for at least this long before a block is bought: a standing clock buys
/// none. Also the shortest time that a block is for.
pub(super) const SHORTEST_MS: i64 = 20;
/// A block is for at most this part of the time in which a limit fills.
const FILL_PART: i64 = 8;

/// Sizes of local blocks: how many requests ahead a process buys, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalBlocks {
    horizon: Duration,
    requests: u32,
    blocks_max: usize,
    is_eager: bool,
}

impl Default for LocalBlocks {
    fn default() -> Self {
        LocalBlocks {
            horizon: Duration::from_secs(1),
            requests: 128,
            blocks_max: 10_000,
            is_eager: false,
        }
    }
}

impl LocalBlocks {
    /// The longest time that a block is for, 100 ms to 1 s; 1 s by default. Stock is spent for
    /// twice as long at most: for that long a change that another process makes may go unnoticed.
    #[must_use]
    pub fn horizon(self, horizon: Duration) -> LocalBlocks {
        LocalBlocks { horizon, ..self }
    }

    /// The most requests that a block is for, unless they come within 20 ms; 128 by default.
    #[must_use]
    pub fn requests(self, requests: u32) -> LocalBlocks {
        LocalBlocks { requests, ..self }
    }

    /// The most buckets that are watched at once; the requests to others ask the store.
    #[must_use]
    pub fn blocks_max(self, blocks_max: usize) -> LocalBlocks {
        LocalBlocks { blocks_max, ..self }
    }

    /// A block of four requests at the first request, whatever the clock says: for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn eager() -> LocalBlocks {
        LocalBlocks { is_eager: true, ..LocalBlocks::default() }
    }

    /// Names the first value that is out of bounds.
    pub fn check(&self) -> Result<(), StoreError> {
        let invalid = |message: String| Err(StoreError::invalid("local_blocks", message));
        let horizon_ms = self.horizon.as_millis();
        if !(100..=1_000).contains(&horizon_ms) {
            return invalid(format!("horizon is {horizon_ms} ms; give 100 ms to 1 s"));
        }
        if !(8..=100_000).contains(&self.requests) {
            return invalid(format!("requests is {}; give 8 to 100000", self.requests));
        }
        if !(1..=1_000_000).contains(&self.blocks_max) {
            return invalid(format!("blocks_max is {}; give 1 to 1000000", self.blocks_max));
        }
        Ok(())
    }

    /// Whether processes take turns when a limit is scarce.
    pub(super) fn paces(&self) -> bool {
        !self.is_eager
    }

    pub(super) fn blocks(&self) -> usize {
        self.blocks_max
    }

    /// The time that a block under these limits is for; `None` where a limit fills so fast that a
    /// block would hardly outlive a round trip.
    pub(super) fn horizon_ms<'a>(&self, limits: impl Iterator<Item = &'a Limit>) -> Option<i64> {
        let fill_ms = limits.map(|limit| {
            let params = limit.params();
            params.time_to_gain_ms(params.capacity_milli)
        });
        let part_ms = fill_ms.min()? / FILL_PART;
        let horizon_ms = i64::try_from(self.horizon.as_millis()).unwrap_or(i64::MAX);
        Some(part_ms.min(horizon_ms)).filter(|ms| *ms >= SHORTEST_MS)
    }

    /// For how many requests to buy: `seen` requests came in `elapsed_ms`. `None` for no block.
    pub(super) fn size(
        &self,
        seen: u32,
        elapsed_ms: i64,
        horizon_ms: i64,
        has_block: bool,
    ) -> Option<i64> {
        if self.is_eager {
            return Some(REQUESTS_MIN);
        }
        if !has_block && elapsed_ms < SHORTEST_MS {
            return None;
        }
        let (seen, elapsed_ms) = (i64::from(seen), elapsed_ms.max(SHORTEST_MS));
        let within = |ms: i64| seen.saturating_mul(ms) / elapsed_ms;
        let most = i64::from(self.requests).max(within(SHORTEST_MS));
        let requests = within(horizon_ms).min(most);
        // Few requests that came close together say little about the next second.
        let requests = requests.min(seen.saturating_mul(2));
        let is_enough = if has_block {
            requests >= REQUESTS_MIN
        } else {
            requests.min(seen) >= REQUESTS_TO_BEGIN
        };
        is_enough.then_some(requests)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_for_the_next_requests_or_one_horizon() {
        let options = LocalBlocks::default();
        for (seen, elapsed_ms, has_block, size) in [
            (7, 1_000, false, None),
            (8, 1_000, false, Some(8)),
            (3, 1_000, true, None),
            (4, 1_000, true, Some(4)),
            (1_000, 1_000, true, Some(128)),
            (1_000, 10, true, Some(1_000)),
            (1_000, 19, false, None),
            (1_000, 0, false, None),
            (1_000, 0, true, Some(1_000)),
            (30, 500, true, Some(60)),
            (30, 100, true, Some(60)),
            (7, 100, false, None),
            (8, 100, false, Some(16)),
            (2, 20, true, Some(4)),
            (1, 20, true, None),
        ] {
            let found = options.size(seen, elapsed_ms, 1_000, has_block);
            assert_eq!(found, size, "{seen} in {elapsed_ms} ms, {has_block}");
        }
        assert_eq!(LocalBlocks::eager().size(1, 0, 1_000, false), Some(4));
    }

    #[test]
    fn a_limit_that_fills_fast_has_a_short_horizon_or_none() {
        let horizon = |text: &str| {
            let limits: Vec<Limit> =
                text.split(' ').map(|limit| limit.parse().expect("a limit")).collect();
            LocalBlocks::default().horizon_ms(limits.iter())
        };
        assert_eq!(horizon("rpm:60/min"), Some(1_000));
        assert_eq!(horizon("rpm:60/min rps:10/sec"), Some(125));
        assert_eq!(horizon("rps:100/sec:10"), None, "10 fill in 100 ms");
        assert_eq!(LocalBlocks::default().horizon_ms([].iter()), None);
    }

    #[test]
    fn values_out_of_bounds_are_named() {
        let message = |options: LocalBlocks| options.check().expect_err("refused").to_string();
        assert!(LocalBlocks::default().check().is_ok() && LocalBlocks::eager().check().is_ok());
        let short = LocalBlocks::default().horizon(Duration::from_millis(99));
        assert!(message(short).contains("horizon is 99 ms; give 100 ms to 1 s"));
        let long = LocalBlocks::default().horizon(Duration::from_millis(1_001));
        assert!(message(long).contains("horizon is 1001 ms"));
        assert!(message(LocalBlocks::default().requests(7)).contains("requests is 7"));
        assert!(message(LocalBlocks::default().blocks_max(0)).contains("blocks_max is 0"));
    }
}
