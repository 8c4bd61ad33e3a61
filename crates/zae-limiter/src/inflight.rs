//! Deadlines, and writes that outlive their caller.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use zae_limiter_store::{BoxFuture, Clock};

use crate::settler::{Job, Settler};

/// A write that was started. Dropped before its end, it moves to the settler, which polls it to its end: whoever starts a
/// write finds out what became of it.
pub(crate) struct InFlight<'a, T, A>
where
    A: FnOnce(BoxFuture<'static, T>) -> Job,
{
    future: Option<BoxFuture<'static, T>>,
    /// A future that was never polled has not begun: nothing to settle.
    polled: bool,
    settler: &'a Settler,
    adopt: Option<A>,
}

impl<'a, T, A> InFlight<'a, T, A>
where
    A: FnOnce(BoxFuture<'static, T>) -> Job,
{
    pub(crate) fn new(future: BoxFuture<'static, T>, settler: &'a Settler, adopt: A) -> Self {
        InFlight { future: Some(future), polled: false, settler, adopt: Some(adopt) }
    }

    /// Waits for the end, at most `deadline`. After that the write goes on without this caller.
    pub(crate) async fn finish(mut self, clock: &dyn Clock, deadline: Duration) -> Option<T> {
        let mut timer: Option<BoxFuture<'static, ()>> = None;
        std::future::poll_fn(|context| {
            if let Poll::Ready(value) = self.poll_write(context) {
                return Poll::Ready(Some(value));
            }
            // The timer is made only for a store that did not answer in the first poll: an embedded one usually has.
            let timer = timer.get_or_insert_with(|| clock.sleep(deadline));
            timer.as_mut().poll(context).map(|()| None)
        })
        .await
    }

    fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<T> {
        self.polled = true;
        let Some(future) = &mut self.future else { return Poll::Pending };
        let poll = Pin::as_mut(future).poll(context);
        if poll.is_ready() {
            self.future = None;
        }
        poll
    }
}

impl<T, A> Drop for InFlight<'_, T, A>
where
    A: FnOnce(BoxFuture<'static, T>) -> Job,
{
    fn drop(&mut self) {
        if let (Some(future), Some(adopt), true) = (self.future.take(), self.adopt.take(), self.polled) {
            self.settler.submit(adopt(future));
        }
    }
}

/// Waits for `future`, at most `deadline`. For reads and administration: nothing has to be settled when it is given up.
pub(crate) async fn within<T>(clock: &dyn Clock, deadline: Duration, future: impl Future<Output = T>) -> Option<T> {
    let mut future = std::pin::pin!(future);
    let mut timer: Option<BoxFuture<'static, ()>> = None;
    std::future::poll_fn(|context| {
        if let Poll::Ready(value) = future.as_mut().poll(context) {
            return Poll::Ready(Some(value));
        }
        let timer = timer.get_or_insert_with(|| clock.sleep(deadline));
        timer.as_mut().poll(context).map(|()| None)
    })
    .await
}
