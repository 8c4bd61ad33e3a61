//! The sums of one page of usage, for backends that keep usage in hours or items and answer in
//! windows.

use std::collections::BTreeMap;

use zae_limiter_core::{EntityId, LimitName, Milli, ResourceName, TimeMs, UsageSnapshot};

use crate::{Cursor, Page, StoreError, UsageQuery};

/// Between the parts of a cursor: no name contains it, and a shell takes it as a part of a word.
const SEPARATOR: char = '#';

/// One window of one bucket, in the order of the answer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Position {
    start: TimeMs,
    entity: EntityId,
    resource: ResourceName,
}

impl Position {
    fn parse(cursor: &Cursor) -> Option<Position> {
        let mut parts = cursor.0.splitn(3, SEPARATOR);
        let mut part = || parts.next().unwrap_or_default();
        let start = TimeMs(part().parse().ok()?);
        Some(Position { start, entity: part().parse().ok()?, resource: part().parse().ok()? })
    }

    fn of(snapshot: &UsageSnapshot) -> Position {
        Position {
            start: snapshot.start,
            entity: snapshot.entity.clone(),
            resource: snapshot.resource.clone(),
        }
    }

    fn cursor(&self) -> String {
        format!("{}{SEPARATOR}{}{SEPARATOR}{}", self.start.0, self.entity, self.resource)
    }
}

/// The usage of one window.
#[derive(Clone, Debug, Default)]
pub struct UsageTotals {
    used: BTreeMap<LimitName, Milli>,
    events: u64,
}

impl UsageTotals {
    /// Adds to a limit.
    pub fn use_limit(&mut self, limit: LimitName, amount: Milli) {
        let sum = self.used.entry(limit).or_default();
        *sum = sum.saturating_add(amount);
    }

    /// Adds events.
    pub fn count(&mut self, events: u64) {
        self.events = self.events.saturating_add(events);
    }
}

/// The windows of one page: the first ones after a cursor, however many there are in all. It holds
/// one more than the page, so that an answer of any size needs little memory. A window that is
/// pushed out has that many before it, and so never comes back with a part of its usage missing.
#[derive(Clone, Debug)]
pub struct UsageWindows<'a> {
    query: &'a UsageQuery,
    after: Option<Position>,
    size: usize,
    totals: BTreeMap<Position, UsageTotals>,
}

impl<'a> UsageWindows<'a> {
    /// No windows yet. Refuses a cursor that this listing did not make.
    pub fn new(query: &'a UsageQuery) -> Result<UsageWindows<'a>, StoreError> {
        let position =
            |cursor| Position::parse(cursor).ok_or_else(|| StoreError::foreign_cursor("usage"));
        let after = query.page.cursor().map(position).transpose()?;
        let size = usize::try_from(query.page.limit()).unwrap_or(usize::MAX);
        Ok(UsageWindows { query, after, size, totals: BTreeMap::new() })
    }

    /// The same without a page: every window has room.
    #[must_use]
    pub(crate) fn unbounded(self) -> UsageWindows<'a> {
        UsageWindows { after: None, size: usize::MAX, ..self }
    }

    /// The query.
    #[must_use]
    pub fn query(&self) -> &'a UsageQuery {
        self.query
    }

    /// Windows that start earlier are not on this page.
    #[must_use]
    pub fn first_start(&self) -> Option<TimeMs> {
        self.after.as_ref().map(|after| after.start).max(self.query.from)
    }

    /// The last window of the page before this one.
    #[must_use]
    pub fn after(&self) -> Option<(TimeMs, &EntityId, &ResourceName)> {
        self.after.as_ref().map(|after| (after.start, &after.entity, &after.resource))
    }

    /// True when the page is full and usage at this instant comes behind it. A backend that adds in
    /// the order of the answer has then added enough.
    #[must_use]
    pub fn is_full_before(&self, at: TimeMs, entity: &EntityId, resource: &ResourceName) -> bool {
        let start = self.query.window.start_of(at);
        let is_behind = |last: &Position| {
            (last.start, &last.entity, &last.resource) < (start, entity, resource)
        };
        self.totals.len() > self.size
            && self.totals.last_key_value().is_some_and(|(last, _)| is_behind(last))
    }

    /// True when no window that starts at `start` or later could get in.
    #[must_use]
    pub fn is_closed_to(&self, start: TimeMs) -> bool {
        self.totals.len() > self.size
            && self.totals.last_key_value().is_some_and(|(last, _)| last.start < start)
    }

    /// True when the window of a bucket could still get onto the page, so that its usage is worth
    /// reading.
    #[must_use]
    pub fn is_open_to(&self, at: TimeMs, entity: &EntityId, resource: &ResourceName) -> bool {
        let start = self.query.window.start_of(at);
        let position = Position { start, entity: entity.clone(), resource: resource.clone() };
        let is_after = self.after.as_ref().is_none_or(|after| position > *after);
        let is_early = || self.totals.last_key_value().is_none_or(|(last, _)| position <= *last);
        is_after && (self.totals.len() <= self.size || is_early())
    }

    /// The totals to add usage at an instant to; `None` when that window is not on this page.
    pub fn at(
        &mut self,
        at: TimeMs,
        entity: EntityId,
        resource: ResourceName,
    ) -> Option<&mut UsageTotals> {
        let start = self.query.window.start_of(at);
        if self.query.from.is_some_and(|from| start < from)
            || self.query.until.is_some_and(|until| start >= until)
        {
            return None;
        }
        let position = Position { start, entity, resource };
        if self.after.as_ref().is_some_and(|after| position <= *after) {
            return None;
        }
        if self.totals.len() > self.size && !self.totals.contains_key(&position) {
            if self.totals.last_key_value().is_some_and(|(last, _)| *last < position) {
                return None;
            }
            self.totals.pop_last();
        }
        Some(self.totals.entry(position).or_default())
    }

    /// The answer.
    #[must_use]
    pub fn into_page(self) -> Page<UsageSnapshot> {
        let request = &self.query.page;
        let mut page = Page::cut(self.all(), request, |last| Position::of(last).cursor());
        page.items.retain(shows_something);
        page
    }

    /// Everything that was added.
    #[must_use]
    pub(crate) fn snapshots(self) -> Vec<UsageSnapshot> {
        let mut snapshots = self.all();
        snapshots.retain(shows_something);
        snapshots
    }

    fn all(self) -> Vec<UsageSnapshot> {
        let window = self.query.window;
        let snapshot = |(position, totals): (Position, UsageTotals)| {
            let Position { start, entity, resource } = position;
            let counters =
                totals.used.into_iter().filter(|(_, used)| *used != Milli::ZERO).collect();
            UsageSnapshot { entity, resource, window, start, counters, events: totals.events }
        };
        self.totals.into_iter().map(snapshot).collect()
    }
}

/// A limit whose corrections cancel each other out is not shown.
fn shows_something(snapshot: &UsageSnapshot) -> bool {
    snapshot.events > 0 || !snapshot.counters.is_empty()
}
