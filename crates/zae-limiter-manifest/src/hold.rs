//! Holding the mark: taking it, giving signs of life, making sure of it before every write, and
//! laying it down.

use std::time::Duration;

use zae_limiter::store::BoxFuture;
use zae_limiter::{
    Clock, Error, ErrorKind, ManagedChange, RateLimiter, StoreError, StoreErrorKind,
};

use crate::managed::Managed;
use crate::mark::{BEAT, Head, Mark};

/// What is told with a change.
pub(crate) type Details = Vec<(String, String)>;

/// Attempts at the first part. Our own sign of life may come in between, or that of an apply that
/// is taken over.
const TRIES_MAX: u32 = 5;

/// What a sign of life is told as.
const AT_WORK: &str = "at work";

/// A mark that was seen longer ago than this is looked at again before a write: this process has
/// been asleep meanwhile. More than a slow store takes, and less than anybody watches.
const FRESH: Duration = Duration::from_secs(20);

/// Looks in a row that may take longer than that.
const LOOKS_MAX: u32 = 3;

/// Why an apply ends early.
pub(crate) enum Stop {
    /// Another one is at work; nothing was written.
    Held(Mark),
    /// Another one has taken over, or everything is gone.
    Lost(Option<Mark>),
    /// The caller wants it.
    Asked,
    /// The store, or what the store says.
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Failed(error)
    }
}

/// The mark of this apply, and what is managed below it.
pub(crate) struct Hold<'a> {
    limiter: &'a RateLimiter,
    clock: &'a dyn Clock,
    mark: Mark,
    managed: Managed,
    /// Why, to be told with every write.
    reason: Option<(String, String)>,
    /// When the last sign of life was given.
    heard: Duration,
}

impl<'a> Hold<'a> {
    /// Not yet taken.
    pub(crate) fn new(
        limiter: &'a RateLimiter,
        clock: &'a dyn Clock,
        mark: Mark,
        managed: Managed,
        reason: Option<(String, String)>,
    ) -> Hold<'a> {
        Hold { limiter, clock, mark, managed, reason, heard: clock.monotonic() }
    }

    /// Takes the mark, and stores all places.
    pub(crate) async fn begin(&mut self, details: &Details) -> Result<(), Stop> {
        let parts = self.managed.parts()?;
        let there = self.managed.versions.len();
        self.managed.versions.resize(parts.len().max(there), 0);
        // The first part is the lock: whoever has read it before this write is refused.
        let lines = if parts.len() > 1 { self.managed.first.clone() } else { parts[0].clone() };
        self.take(lines, details).await?;
        if parts.len() == 1 {
            return Ok(());
        }
        for part in there.max(1)..parts.len() {
            // An apply that was killed may have left a part behind a gap.
            let found = self.limiter.managed(number(part)).await?;
            self.managed.versions[part] = found.map_or(0, |found| found.version);
        }
        // Lines that are added move others to later parts only.
        for (part, text) in parts.iter().enumerate().skip(1).rev() {
            self.write(part, text.clone()).await?;
        }
        self.write_first(self.begun(), parts[0].clone(), details).await
    }

    /// Stores what is managed now, and lays the mark down.
    pub(crate) async fn end(&mut self, after: &Managed, details: &Details) -> Result<(), Stop> {
        self.managed.places.clone_from(&after.places);
        let mut parts = self.managed.parts()?;
        let there = self.managed.versions.len();
        parts.resize(parts.len().max(there), String::new());
        self.managed.versions.resize(parts.len(), 0);
        if parts.len() > 1 {
            // Lines that are left move to earlier parts only.
            self.write_first(self.begun(), parts[0].clone(), details).await?;
            for (part, text) in parts.iter().enumerate().skip(1) {
                self.write(part, text.clone()).await?;
            }
        }
        self.still().await?;
        self.write_first(Head::Done, parts.swap_remove(0), details).await
    }

    /// Says that nobody is at work any more, if the mark is still ours; the next apply need not
    /// watch then. Best effort.
    pub(crate) async fn lay_down(&mut self) {
        let Ok(Some((version, head, lines))) = self.found().await else { return };
        if head.mark().is_some_and(|mark| mark.id == self.mark.id) {
            self.managed.versions[0] = version;
            let details = self.told("apply", "stopped");
            let _ = self.write_first(Head::Begun(None), lines, &details).await;
        }
    }

    /// A sign of life, when it is time for one; which version the first part has then.
    pub(crate) fn beat(&self) -> BoxFuture<'a, Result<u64, Stop>> {
        let details = self.told("apply", AT_WORK);
        let (limiter, clock, mark) = (self.limiter, self.clock, self.mark.clone());
        let (version, lines) = (self.managed.versions[0], self.managed.first.clone());
        let wait = BEAT.saturating_sub(clock.monotonic().saturating_sub(self.heard));
        Box::pin(async move {
            clock.sleep(wait).await;
            let text = Head::Begun(Some(mark.heard_at(clock.now()))).line() + &lines;
            let change = ManagedChange { text, expected_version: version, details };
            match limiter.set_managed(0, &change).await {
                Ok(version) => Ok(version),
                Err(error) if is_conflict(&error) => match found(limiter).await? {
                    // An answer that was lost.
                    Some((version, Head::Begun(Some(found)), _)) if found.id == mark.id => {
                        Ok(version)
                    }
                    other => Err(Stop::Lost(other.and_then(|(_, head, _)| head.mark()))),
                },
                // There is time for another one, and no change is made without a look.
                Err(_) => Ok(version),
            }
        })
    }

    /// Takes note of a sign of life.
    pub(crate) fn has_beaten(&mut self, version: u64) {
        self.managed.versions[0] = version;
        self.heard = self.clock.monotonic();
    }

    /// Makes sure of the mark: for the last moment before a write.
    pub(crate) fn look(&self) -> Look<'a> {
        Look { limiter: self.limiter, clock: self.clock, id: self.mark.id.clone() }
    }

    async fn still(&self) -> Result<(), Stop> {
        self.look().still().await
    }

    fn begun(&self) -> Head {
        Head::Begun(Some(self.mark.heard_at(self.clock.now())))
    }

    async fn found(&self) -> Result<Option<(u64, Head, String)>, Error> {
        found(self.limiter).await
    }

    /// The first write of all: only over what was read.
    async fn take(&mut self, lines: String, details: &Details) -> Result<(), Stop> {
        let text = self.begun().line() + &lines;
        if let Err(error) = self.store(0, text, details).await {
            if !is_conflict(&error) {
                return Err(error.into());
            }
            match self.found().await? {
                // An answer that was lost.
                Some((version, Head::Begun(Some(mark)), _)) if mark.id == self.mark.id => {
                    self.managed.versions[0] = version;
                }
                Some((_, Head::Begun(Some(mark)), _)) => return Err(Stop::Held(mark)),
                _ => return Err(error.into()),
            }
        }
        self.managed.first = lines;
        self.heard = self.clock.monotonic();
        Ok(())
    }

    /// The first part, over whatever sign of life of ours it has.
    async fn write_first(
        &mut self,
        head: Head,
        lines: String,
        details: &Details,
    ) -> Result<(), Stop> {
        let text = head.line() + &lines;
        let mut tries = 0;
        loop {
            tries += 1;
            match self.store(0, text.clone(), details).await {
                Ok(()) => break,
                Err(error) if is_conflict(&error) && tries < TRIES_MAX => {
                    self.managed.versions[0] = self.ours().await?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.managed.first = lines;
        self.heard = self.clock.monotonic();
        Ok(())
    }

    /// Another part than the first.
    async fn write(&mut self, part: usize, text: String) -> Result<(), Stop> {
        self.still().await?;
        if self.clock.monotonic().saturating_sub(self.heard) >= BEAT {
            let details = self.told("apply", AT_WORK);
            self.write_first(self.begun(), self.managed.first.clone(), &details).await?;
        }
        let details = self.told("part", &part.to_string());
        Ok(self.store(part, text, &details).await?)
    }

    /// What is told with a write that is not the first and not the last.
    fn told(&self, name: &str, value: &str) -> Details {
        let mut details = vec![(name.to_owned(), value.to_owned())];
        details.extend(self.reason.clone());
        details
    }

    async fn store(&mut self, part: usize, text: String, details: &Details) -> Result<(), Error> {
        let expected_version = self.managed.versions[part];
        let change = ManagedChange { text, expected_version, details: details.clone() };
        self.managed.versions[part] = self.limiter.set_managed(number(part), &change).await?;
        Ok(())
    }

    /// The version of the first part, if its mark is ours.
    async fn ours(&self) -> Result<u64, Stop> {
        match self.found().await? {
            Some((version, Head::Begun(Some(mark)), _)) if mark.id == self.mark.id => Ok(version),
            other => Err(Stop::Lost(other.and_then(|(_, head, _)| head.mark()))),
        }
    }
}

/// A look at the mark.
#[derive(Clone)]
pub(crate) struct Look<'a> {
    limiter: &'a RateLimiter,
    clock: &'a dyn Clock,
    id: String,
}

impl Look<'_> {
    /// Fails unless the mark is still ours, a moment ago. Cost: one read.
    pub(crate) async fn still(&self) -> Result<(), Stop> {
        let mut looks = 0;
        loop {
            let (passed, wall) = (self.clock.monotonic(), self.clock.now());
            let head = found(self.limiter).await?.map(|(_, head, _)| head);
            let mark = head.and_then(Head::mark);
            if mark.as_ref().is_none_or(|mark| mark.id != self.id) {
                return Err(Stop::Lost(mark));
            }
            // By both clocks: one of them stands still while a machine sleeps, the other is set.
            let passed = self.clock.monotonic().saturating_sub(passed);
            let wall = Duration::from_millis(self.clock.now().since(wall).unsigned_abs());
            looks += 1;
            if passed.max(wall) <= FRESH {
                return Ok(());
            }
            if looks >= LOOKS_MAX {
                let message = "the store takes too long to say who applies";
                let kind = StoreErrorKind::Unavailable;
                return Err(Error::from(StoreError::new(kind, "managed", message)).into());
            }
        }
    }
}

async fn found(limiter: &RateLimiter) -> Result<Option<(u64, Head, String)>, Error> {
    let Some(found) = limiter.managed(0).await? else { return Ok(None) };
    let (head, lines) = Head::parse(&found.text)?;
    Ok(Some((found.version, head, lines.to_owned())))
}

pub(crate) fn is_conflict(error: &Error) -> bool {
    error.kind() == ErrorKind::Store(StoreErrorKind::Conflict)
}

fn number(part: usize) -> u32 {
    u32::try_from(part).unwrap_or(u32::MAX)
}
