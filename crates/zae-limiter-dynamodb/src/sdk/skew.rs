//! How far the local clock is from the table's, by the `Date` of its answers.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use aws_sdk_dynamodb::config::interceptors::{BeforeDeserializationInterceptorContextRef, BeforeTransmitInterceptorContextRef};
use aws_sdk_dynamodb::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_dynamodb::error::BoxError;
use aws_sdk_dynamodb::primitives::{DateTime, DateTimeFormat};
use aws_smithy_types::config_bag::{Storable, StoreReplace};
use zae_limiter_store::Clock;

/// `Date` is cut to whole seconds: the moment it means lies up to this much later.
const DATE_RESOLUTION_MS: i64 = 999;

/// Asking once in a while is enough: clocks drift slowly.
const SAMPLE_EVERY_MS: i64 = 1_000;

/// No answer has told yet.
const UNKNOWN: i64 = i64::MIN;

/// Compares the local clock with the `Date` of answers.
#[derive(Clone)]
pub(super) struct SkewWatch {
    clock: Arc<dyn Clock>,
    shared: Arc<Sampled>,
}

struct Sampled {
    ahead_ms: AtomicI64,
    at_ms: AtomicI64,
}

impl SkewWatch {
    pub(super) fn new(clock: Arc<dyn Clock>) -> SkewWatch {
        SkewWatch { clock, shared: Arc::new(Sampled { ahead_ms: AtomicI64::new(UNKNOWN), at_ms: AtomicI64::new(UNKNOWN) }) }
    }

    /// True when it is time to look at an answer again.
    pub(super) fn is_due(&self) -> bool {
        self.is_due_at(self.clock.now().0)
    }

    fn is_due_at(&self, now: i64) -> bool {
        let last = self.shared.at_ms.load(Ordering::Relaxed);
        last == UNKNOWN || now.abs_diff(last) >= SAMPLE_EVERY_MS.unsigned_abs()
    }

    /// By the latest answer that was looked at.
    pub(super) fn ahead_ms(&self) -> Option<i64> {
        // One number that guards nothing else: no ordering needed.
        let ahead = self.shared.ahead_ms.load(Ordering::Relaxed);
        (ahead != UNKNOWN).then_some(ahead)
    }
}

/// What is proven by an answer that was made at `date` (whole seconds) somewhere between `sent` and `received`: 0 when the
/// clocks may agree, else the smallest difference that explains it.
fn ahead(sent_ms: i64, received_ms: i64, date_ms: i64) -> i64 {
    let at_least = sent_ms.saturating_sub(date_ms).saturating_sub(DATE_RESOLUTION_MS);
    let at_most = received_ms.saturating_sub(date_ms);
    if at_least > 0 { at_least } else { at_most.min(0) }
}

/// When the request that is on its way was sent.
#[derive(Debug)]
struct Sent(i64);

impl Storable for Sent {
    type Storer = StoreReplace<Self>;
}

impl Intercept for SkewWatch {
    fn name(&self) -> &'static str {
        "SkewWatch"
    }

    fn read_before_transmit(
        &self,
        _context: &BeforeTransmitInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        bag: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let now = self.clock.now().0;
        if self.is_due_at(now) {
            bag.interceptor_state().store_put(Sent(now));
        }
        Ok(())
    }

    fn read_after_transmit(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        bag: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let Some(Sent(sent)) = bag.load::<Sent>() else { return Ok(()) };
        let date = context.response().headers().get("date").and_then(|date| DateTime::from_str(date, DateTimeFormat::HttpDate).ok());
        // An answer without a date, or with one nobody can read, tells nothing; the call itself is fine.
        let Some(date_ms) = date.and_then(|date| date.to_millis().ok()) else { return Ok(()) };
        let received = self.clock.now().0;
        self.shared.ahead_ms.store(ahead(*sent, received, date_ms), Ordering::Relaxed);
        self.shared.at_ms.store(received, Ordering::Relaxed);
        Ok(())
    }
}

impl fmt::Debug for SkewWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SkewWatch").field("ahead_ms", &self.ahead_ms()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::ahead;

    #[test]
    fn only_what_is_proven_counts() {
        // Sent and received at :05.200 and :05.300; the table says :05, so it may well be the same moment.
        assert_eq!(ahead(5_200, 5_300, 5_000), 0);
        // Sent at :05.990, answered in the next second.
        assert_eq!(ahead(5_990, 6_010, 6_000), 0);
        // The table says :00, at the latest :00.999, when it was at least :05.200 here.
        assert_eq!(ahead(5_200, 5_300, 0), 4_201);
        // The table says :20 when it was at most :05.300 here.
        assert_eq!(ahead(5_200, 5_300, 20_000), -14_700);
    }
}
