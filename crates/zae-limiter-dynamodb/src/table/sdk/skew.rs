//! Reads the `Date` of answers for [`DateWatch`].

use aws_sdk_dynamodb::config::interceptors::{
    BeforeDeserializationInterceptorContextRef, BeforeTransmitInterceptorContextRef,
};
use aws_sdk_dynamodb::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_dynamodb::error::BoxError;
use aws_sdk_dynamodb::primitives::{DateTime, DateTimeFormat};
use aws_smithy_types::config_bag::{Storable, StoreReplace};

use crate::table::clock::{DateWatch, SentAt};

/// Tells the watch when a request was sent and what date its answer has.
#[derive(Clone, Debug)]
pub(super) struct SkewWatch(pub(super) DateWatch);

/// When the request that is on its way was sent.
#[derive(Debug)]
struct Sent(SentAt);

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
        if self.0.is_due() {
            bag.interceptor_state().store_put(Sent(self.0.sent()));
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
        let date = context
            .response()
            .headers()
            .get("date")
            .and_then(|date| DateTime::from_str(date, DateTimeFormat::HttpDate).ok());
        // An answer without a readable date is still an answer.
        match date.and_then(|date| date.to_millis().ok()) {
            Some(date_ms) => self.0.answered(*sent, date_ms),
            None => self.0.answered_without_date(),
        }
        Ok(())
    }
}
