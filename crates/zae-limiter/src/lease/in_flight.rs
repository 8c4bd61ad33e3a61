//! Writes and reads that outlive their caller.

use std::pin::Pin;
use std::task::{Context, Poll};

use zae_limiter_store::BoxFuture;

use super::settler::{Job, Settler};

/// A write that was started. When it is dropped before its end it moves to the settler, which polls
/// it to its end: the fate of every started write is learned.
pub(crate) struct InFlight<'a, T, A>
where
    A: FnOnce(BoxFuture<'static, T>) -> Job + Unpin,
{
    write: Option<BoxFuture<'static, T>>,
    /// A write that was never polled has not begun, and leaves nothing to settle.
    polled: bool,
    settler: &'a Settler,
    adopt: Option<A>,
}

impl<'a, T, A> InFlight<'a, T, A>
where
    A: FnOnce(BoxFuture<'static, T>) -> Job + Unpin,
{
    pub(crate) fn new(write: BoxFuture<'static, T>, settler: &'a Settler, adopt: A) -> Self {
        InFlight { write: Some(write), polled: false, settler, adopt: Some(adopt) }
    }
}

impl<T, A> Future for InFlight<'_, T, A>
where
    A: FnOnce(BoxFuture<'static, T>) -> Job + Unpin,
{
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        self.polled = true;
        let write = self.write.as_mut().expect("a finished write is not polled again");
        let poll = write.as_mut().poll(context);
        if poll.is_ready() {
            self.write = None;
        }
        poll
    }
}

impl<T, A> Drop for InFlight<'_, T, A>
where
    A: FnOnce(BoxFuture<'static, T>) -> Job + Unpin,
{
    fn drop(&mut self) {
        if let (Some(write), Some(adopt), true) =
            (self.write.take(), self.adopt.take(), self.polled)
        {
            self.settler.submit(adopt(write));
        }
    }
}

/// Waits for `write` and polls `read` alongside. A read that takes longer than the write goes on
/// with the settler.
pub(crate) async fn with_read_alongside<T>(
    write: impl Future<Output = T>,
    read: BoxFuture<'static, ()>,
    settler: &Settler,
) -> T {
    let mut write = std::pin::pin!(write);
    let mut read = Some(read);
    let answer = std::future::poll_fn(|context| {
        if let Poll::Ready(answer) = write.as_mut().poll(context) {
            return Poll::Ready(answer);
        }
        if read.as_mut().is_some_and(|read| read.as_mut().poll(context).is_ready()) {
            read = None;
        }
        Poll::Pending
    })
    .await;
    if let Some(read) = read {
        settler.submit(Job::Read(read));
    }
    answer
}
