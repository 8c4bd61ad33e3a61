//! The thread of a blocking limiter.

use std::sync::OnceLock;
use std::time::Duration;

use tokio::sync::oneshot;
use zae_limiter_store::{StoreError, StoreErrorKind};

use crate::deadline::timeout;
use crate::{Error, RateLimiter};

/// How long the thread goes on settling after the last handle is gone.
const DRAIN_AT_END: Duration = Duration::from_secs(30);

/// The thread that runs the futures. When the last limiter and lease are gone it settles what they
/// left, then ends; a process that must be sure calls [`super::RateLimiter::close`] before it
/// exits.
#[derive(Debug)]
pub(super) struct Runtime {
    handle: tokio::runtime::Handle,
    /// Set once the limiter is built; drained at the end.
    pub(super) limiter: OnceLock<RateLimiter>,
    stop: Option<oneshot::Sender<RateLimiter>>,
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if let (Some(stop), Some(limiter)) = (self.stop.take(), self.limiter.take()) {
            drop(stop.send(limiter));
        }
    }
}

impl Runtime {
    pub(super) fn start() -> Result<Runtime, Error> {
        let failed = |error: std::io::Error| {
            let message = "could not start the limiter's thread";
            StoreError::new(StoreErrorKind::Unavailable, "start", message).with_source(error)
        };
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<RateLimiter>();
        let run = async move {
            if let Ok(limiter) = stopped.await {
                timeout(limiter.clock(), DRAIN_AT_END, limiter.drain()).await;
            }
        };
        std::thread::Builder::new()
            .name("zae-limiter".into())
            .spawn(move || runtime.block_on(run))
            .map_err(failed)?;
        Ok(Runtime { handle, limiter: OnceLock::new(), stop: Some(stop) })
    }

    /// Runs a future on the runtime thread and waits for it.
    pub(super) fn wait<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> T {
        let (reply, answer) = oneshot::channel();
        self.handle.spawn(async move { drop(reply.send(work.await)) });
        answer.blocking_recv().expect("the runtime thread lives as long as this handle")
    }
}
