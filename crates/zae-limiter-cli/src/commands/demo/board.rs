//! What has happened so far, as a table and as lines.

use std::time::Duration;

use serde::Serialize;
use zae_limiter::domain::BucketState;

use super::world::{MEMBERS, RESOURCE, ancestors};
use crate::table::{Cell, Table, Text, Tone};
use crate::view;

/// What became of a call.
#[derive(Clone, Debug)]
pub(super) enum Event {
    /// It was granted, made and settled.
    Granted { estimate: u64, used: u64 },
    /// A limit of somebody in its chain refused it.
    Refused { by: String, limit: String, wait: Option<Duration> },
}

/// One member's numbers.
#[derive(Clone, Debug, Default, Serialize)]
struct Tally {
    /// Calls that took from it.
    granted: u64,
    /// Calls that its limits refused.
    refused: u64,
    tokens_estimated: u64,
    tokens_used: u64,
    /// What is left of its limits; negative is debt.
    #[serde(skip)]
    rpm: Option<i64>,
    #[serde(skip)]
    tpm: Option<i64>,
    /// The last limit that refused, and the wait it told.
    #[serde(skip)]
    last: String,
}

/// One member as JSON.
#[derive(Clone, Debug, Serialize)]
pub(super) struct MemberForm {
    entity_id: &'static str,
    parent_id: Option<&'static str>,
    #[serde(flatten)]
    tally: Tally,
}

/// Everything that is shown.
#[derive(Clone, Debug)]
pub(super) struct Board {
    seconds: u32,
    pub(super) elapsed: Duration,
    tallies: Vec<Tally>,
    news: Vec<Cell>,
}

impl Board {
    /// An empty board for a demo of so many seconds.
    pub(super) fn new(seconds: u32) -> Board {
        Board {
            seconds,
            elapsed: Duration::ZERO,
            tallies: vec![Tally::default(); MEMBERS.len()],
            news: Vec::new(),
        }
    }

    /// Adds what became of a call of `key`.
    pub(super) fn record(&mut self, now: Duration, key: &'static str, event: Event) {
        let at = format!("{:6.2}s  {key:<8}", now.as_secs_f64());
        let news = match event {
            Event::Granted { estimate, used } => {
                for id in std::iter::once(key).chain(ancestors(key)) {
                    let tally = self.tally(id);
                    tally.granted += 1;
                    tally.tokens_estimated += estimate;
                    tally.tokens_used += used;
                }
                Cell::plain(format!("{at} granted: {estimate} tokens estimated, {used} used"))
            }
            Event::Refused { by, limit, wait } => {
                let wait = wait.map_or("never".to_owned(), |wait| {
                    view::wait(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX))
                });
                let tally = self.tally(&by);
                tally.refused += 1;
                tally.last = format!("{limit} {wait}");
                Cell::toned(format!("{at} refused: {limit} of {by}, wait {wait}"), Tone::Warning)
            }
        };
        self.news.push(news);
    }

    /// Takes over what is left in a bucket.
    pub(super) fn balances(&mut self, id: &str, state: &BucketState) {
        let left = |limit: &str| {
            state
                .limits()
                .iter()
                .find(|found| found.name == limit)
                .map(|found| found.balance.floor_tokens())
        };
        let tally = self.tally(id);
        (tally.rpm, tally.tpm) = (left("rpm"), left("tpm"));
    }

    fn tally(&mut self, id: &str) -> &mut Tally {
        let index = MEMBERS.iter().position(|member| member.id == id).unwrap_or(0);
        &mut self.tallies[index]
    }

    /// What has happened since this was last asked.
    pub(super) fn take_news(&mut self) -> Vec<Cell> {
        std::mem::take(&mut self.news)
    }

    /// The numbers for programs.
    pub(super) fn forms(&self) -> Vec<MemberForm> {
        let form = |(member, tally): (&super::world::Member, &Tally)| MemberForm {
            entity_id: member.id,
            parent_id: member.parent,
            tally: tally.clone(),
        };
        MEMBERS.iter().zip(&self.tallies).map(form).collect()
    }

    /// The board for people.
    pub(super) fn text(&self) -> Text {
        let mut table = Table::new([
            "ENTITY",
            "GRANTED:",
            "REFUSED:",
            "USED:",
            "RPM LEFT:",
            "TPM LEFT:",
            "LAST WAIT",
        ]);
        let left = |left: Option<i64>| left.map_or_else(|| Cell::plain("-"), Cell::left);
        for (member, tally) in MEMBERS.iter().zip(&self.tallies) {
            table.row([
                Cell::plain(member.label()),
                Cell::toned(tally.granted, Tone::Good),
                Cell::toned(tally.refused, if tally.refused > 0 { Tone::Bad } else { Tone::Plain }),
                Cell::plain(tally.tokens_used),
                left(tally.rpm),
                left(tally.tpm),
                Cell::plain(if tally.last.is_empty() { "-" } else { &tally.last }),
            ]);
        }
        let elapsed = self.elapsed.as_secs().min(self.seconds.into());
        Text::new()
            .line(Cell::toned(
                format!("a gateway for {RESOURCE}: {elapsed} of {} s", self.seconds),
                Tone::Strong,
            ))
            .table(table)
    }
}
