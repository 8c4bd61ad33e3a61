//! The mark of an apply that is at work: whose it is, and its sign of life. It stands in the first
//! line of what is managed, so that taking, keeping and losing it is a write over the version that
//! was read.
//!
//! No clock of the wall decides anything: an apply is gone when somebody has watched for long
//! enough that its sign of life does not come. The times of a mark are for people.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use zae_limiter::domain::rfc3339;
use zae_limiter::store::Entropy;
use zae_limiter::{Clock, Error, Invalid, RateLimiter, TimeMs};

use crate::plan::Plan;

/// How often an apply at work gives a sign of life.
pub const BEAT: Duration = Duration::from_secs(10);

/// An apply that has given no sign of life for so long is gone.
pub const GONE_AFTER: Duration = Duration::from_secs(45);

/// How often somebody who watches looks.
const LOOK: Duration = Duration::from_secs(1);

/// The longest name of who applies, in bytes: the mark is read before every change.
const NAME_BYTES_MAX: usize = 256;

const FORMAT: &str = "limits 1";
const BEGUN: &str = "begun";
const DONE: &str = "done";

/// What an apply leaves for others while it is at work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// Which apply.
    pub(crate) id: String,
    /// Who applies.
    pub who: String,
    /// Its process, where that was told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
    since: i64,
    heard: i64,
}

impl Mark {
    /// A mark that nobody else has.
    pub(crate) fn new(
        who: &str,
        process: Option<&str>,
        now: TimeMs,
        entropy: &dyn Entropy,
    ) -> Mark {
        Mark {
            id: format!("{:016x}{:016x}", entropy.next_u64(), entropy.next_u64()),
            who: cut(who, NAME_BYTES_MAX).to_owned(),
            process: process.map(|process| cut(process, NAME_BYTES_MAX).to_owned()),
            since: now.0,
            heard: now.0,
        }
    }

    pub(crate) fn heard_at(&self, now: TimeMs) -> Mark {
        Mark { heard: now.0, ..self.clone() }
    }

    /// When it began, by its own clock.
    #[must_use]
    pub fn since(&self) -> TimeMs {
        TimeMs(self.since)
    }

    /// When it gave its last sign of life, by its own clock.
    #[must_use]
    pub fn heard(&self) -> TimeMs {
        TimeMs(self.heard)
    }

    /// Who, since when and how long ago, in words.
    pub(crate) fn in_words(&self) -> String {
        let (since, heard) = (rfc3339(self.since()), rfc3339(self.heard()));
        format!("{}, since {since}, last heard of at {heard}", self.who)
    }
}

/// The first line of what is managed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Head {
    /// The last apply came to its end.
    Done,
    /// The last apply did not, and says with its mark that it may be at work.
    Begun(Option<Mark>),
}

impl Head {
    /// The line.
    pub(crate) fn line(&self) -> String {
        match self {
            Head::Done => format!("{FORMAT} {DONE}\n"),
            Head::Begun(None) => format!("{FORMAT} {BEGUN}\n"),
            Head::Begun(Some(mark)) => {
                // A mark is three texts and two numbers, which are JSON for sure.
                let mark = serde_json::to_string(mark).unwrap_or_default();
                format!("{FORMAT} {BEGUN} {mark}\n")
            }
        }
    }

    /// The head of the first part, and the lines below it.
    pub(crate) fn parse(text: &str) -> Result<(Head, &str), Error> {
        let (line, rest) = text.split_once('\n').unwrap_or((text, ""));
        let state = line.strip_prefix(FORMAT).map(str::trim);
        let head = match state {
            Some(DONE) => Some(Head::Done),
            Some(BEGUN) => Some(Head::Begun(None)),
            Some(state) => state
                .strip_prefix(BEGUN)
                .and_then(|mark| serde_json::from_str(mark).ok())
                .map(|mark| Head::Begun(Some(mark))),
            None => None,
        };
        Ok((head.ok_or_else(|| unreadable(line))?, rest))
    }

    /// The mark in it.
    pub(crate) fn mark(self) -> Option<Mark> {
        match self {
            Head::Begun(mark) => mark,
            Head::Done => None,
        }
    }
}

/// What came of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Watched {
    /// It gave no sign of life.
    Gone,
    /// It is at work, or another one is by now.
    AtWork(Mark),
    /// It came to its end, or said that it stopped: what was read before is old.
    Ended,
}

/// Watches whether the apply whose mark a plan has found is still at work: at most
/// [`GONE_AFTER`], and until its next sign of life, within [`BEAT`], if it is.
///
/// Cost: one read each second.
pub async fn watch(
    limiter: &RateLimiter,
    plan: &Plan,
    clock: &dyn Clock,
) -> Result<Watched, Error> {
    let seen = plan.before.versions.first().copied();
    // Counted by looks: a clock may jump, and a machine may sleep.
    for _ in 0..GONE_AFTER.as_secs() / LOOK.as_secs() {
        clock.sleep(LOOK).await;
        let Some(found) = limiter.managed(0).await? else { return Ok(Watched::Ended) };
        match Head::parse(&found.text)?.0.mark() {
            None => return Ok(Watched::Ended),
            Some(mark) if Some(found.version) != seen => return Ok(Watched::AtWork(mark)),
            Some(_) => {}
        }
    }
    Ok(Watched::Gone)
}

/// A text of at most so many bytes.
pub(crate) fn cut(text: &str, bytes_max: usize) -> &str {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

pub(crate) fn unreadable(line: &str) -> Error {
    let shown: String = line.chars().take(50).collect();
    Error::from(Invalid::Refused(format!(
        "what files manage here was written by another version: {shown:?} cannot be read; upgrade \
         this process"
    )))
}
