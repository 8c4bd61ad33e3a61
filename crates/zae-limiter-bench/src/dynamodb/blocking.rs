//! The blocking interface, and the SDK called in the same way: a thread asks, another one sends.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use zae_limiter::blocking::RateLimiter;

use super::bare::Bare;
use super::ours::{builder, request};
use super::watch::{Place, Sends, Watch};
use super::{canned, keys_of, reach};
use crate::cell::{Cell, Direct, Readings, Row, Sample, one_thread};
use crate::keys::{self, RESOURCE, pick};
use crate::rows::{Context, Entry};

pub(super) const BARE: Entry =
    Entry { name: "bare-blocking", what: "send() on a runtime thread, waited for", make: bare };
pub(super) const ACQUIRE: Entry =
    Entry { name: "blocking", what: "blocking::RateLimiter: acquire + commit", make: acquire };

/// Calls that are functions and send one update each.
struct Blocking<F> {
    calls: Direct<F>,
    watch: Watch,
}

impl<F: FnMut(u64)> Row for Blocking<F> {
    fn run(&mut self, cell: Cell) -> Result<Sample> {
        self.calls.lap(cell.warm_up);
        self.watch.begin();
        let server = Some(self.watch.server());
        let before = Readings::take(server);
        let lap = self.calls.lap(cell.time);
        let after = Readings::take(server);
        let figures = self.watch.end(lap.0);
        Ok(after.since(&before, lap, figures))
    }
}

fn acquire(context: &Context) -> Result<Box<dyn Row>> {
    let endpoint = canned(context)?;
    // Connected elsewhere, because the builder's own thread has no way to be told another endpoint
    // than the region's.
    let store = one_thread()?.block_on(reach(&endpoint.url).connect())?;
    let limiter = RateLimiter::build(builder(store))?;
    let texts = keys::texts(keys_of(context));
    let acquire = move |text: &String| {
        let lease = limiter.acquire(request(text, RESOURCE)).expect("a grant");
        assert!(lease.degraded().is_none());
        lease.commit().expect("nothing to write");
    };
    texts.iter().for_each(&acquire);
    let calls = Direct::new(move |random| acquire(pick(&texts, random)), 1);
    Ok(Box::new(Blocking { calls, watch: Watch::new(endpoint, Sends::One) }))
}

fn bare(context: &Context) -> Result<Box<dyn Row>> {
    let endpoint = canned(context)?;
    let thread = Thread::start()?;
    let bare = Arc::new(
        one_thread()?.block_on(Bare::new(Place { url: &endpoint.url, keys: keys_of(context) }))?,
    );
    let calls = Direct::new(
        move |random| {
            let bare = Arc::clone(&bare);
            thread.wait(async move { bare.debit(random).await });
        },
        1,
    );
    Ok(Box::new(Blocking { calls, watch: Watch::new(endpoint, Sends::One) }))
}

/// A thread with a current-thread runtime, as the blocking limiter has one. It ends when this is
/// dropped.
struct Thread {
    handle: Handle,
    _stop: oneshot::Sender<()>,
}

impl Thread {
    fn start() -> Result<Thread> {
        let runtime = one_thread()?;
        let handle = runtime.handle().clone();
        let (_stop, stopped) = oneshot::channel();
        // Ends with an error when the sender is gone, which is how it is told.
        let run = move || runtime.block_on(stopped).unwrap_or_default();
        std::thread::Builder::new().name("bare".to_owned()).spawn(run).context("a thread")?;
        Ok(Thread { handle, _stop })
    }

    fn wait(&self, work: impl Future<Output = ()> + Send + 'static) {
        let (reply, answer) = oneshot::channel();
        let work = async move {
            work.await;
            reply.send(()).expect("somebody waits");
        };
        self.handle.spawn(work);
        answer.blocking_recv().expect("the thread lives as long as this handle");
    }
}
