//! Deadlines, by the clock of the limiter.

use std::task::Poll;
use std::time::Duration;

use zae_limiter_store::{BoxFuture, Clock};

/// Waits for `future`, at most `deadline`. A future that took too long is dropped, and the answer
/// is `None`; a write that it had started goes on with the settler.
pub(crate) async fn timeout<T>(
    clock: &dyn Clock,
    deadline: Duration,
    future: impl Future<Output = T>,
) -> Option<T> {
    let mut future = std::pin::pin!(future);
    let mut timer: Option<BoxFuture<'static, ()>> = None;
    std::future::poll_fn(|context| {
        if let Poll::Ready(value) = future.as_mut().poll(context) {
            return Poll::Ready(Some(value));
        }
        // The timer is made only when the first poll gave no answer: an embedded store usually
        // answers at once.
        let timer = timer.get_or_insert_with(|| clock.sleep(deadline));
        timer.as_mut().poll(context).map(|()| None)
    })
    .await
}
