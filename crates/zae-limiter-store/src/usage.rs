//! The sums of one page of usage, for backends that keep usage in hours or items and answer in windows.

use std::collections::BTreeMap;

use zae_limiter_core::{EntityId, LimitName, Milli, ResourceName, TimeMs, UsageSnapshot};

use crate::{Cursor, Page, StoreError, StoreErrorKind, UsageQuery};

/// One window of one bucket, in the order of the answer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Position {
    start: TimeMs,
    entity: EntityId,
    resource: ResourceName,
}

impl Position {
    fn parse(cursor: &Cursor) -> Option<Position> {
        let mut parts = cursor.0.splitn(3, ' ');
        let mut part = || parts.next().unwrap_or_default();
        let start = TimeMs(part().parse().ok()?);
        Some(Position { start, entity: part().parse().ok()?, resource: part().parse().ok()? })
    }

    fn of(snapshot: &UsageSnapshot) -> Position {
        Position { start: snapshot.start, entity: snapshot.entity.clone(), resource: snapshot.resource.clone() }
    }

    /// No name contains a space.
    fn cursor(&self) -> String {
        format!("{} {} {}", self.start.0, self.entity, self.resource)
    }
}

/// What was used in one window.
#[derive(Debug, Default)]
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

/// The windows of one page: the first ones after a cursor, however many there are in all. It holds one more than the page,
/// so that an answer of any size needs little memory. A window that is pushed out has that many before it, and so never
/// comes back with a part of its usage missing.
#[derive(Debug)]
pub struct UsageWindows<'a> {
    query: &'a UsageQuery,
    after: Option<Position>,
    size: usize,
    totals: BTreeMap<Position, UsageTotals>,
}

impl<'a> UsageWindows<'a> {
    /// Nothing added yet. Refuses a query that names neither an entity nor a resource, and a cursor that is not one of its own.
    pub fn new(query: &'a UsageQuery) -> Result<UsageWindows<'a>, StoreError> {
        let invalid = |message| StoreError::new(StoreErrorKind::Invalid, "usage", message);
        if query.entity.is_none() && query.resource.is_none() {
            return Err(invalid("neither an entity nor a resource is given; give at least one"));
        }
        let after = match query.page.cursor() {
            Some(cursor) => {
                Some(Position::parse(cursor).ok_or_else(|| invalid("the cursor is not one of this listing; begin without one"))?)
            }
            None => None,
        };
        let size = usize::try_from(query.page.limit()).unwrap_or(usize::MAX);
        Ok(UsageWindows { query, after, size, totals: BTreeMap::new() })
    }

    /// What is asked.
    #[must_use]
    pub fn query(&self) -> &'a UsageQuery {
        self.query
    }

    /// Windows that start earlier are not on this page.
    #[must_use]
    pub fn first_start(&self) -> Option<TimeMs> {
        self.after.as_ref().map(|after| after.start).max(self.query.from)
    }

    /// True when no window that starts at `start` or later could get in.
    #[must_use]
    pub fn is_closed_to(&self, start: TimeMs) -> bool {
        self.totals.len() > self.size && self.totals.last_key_value().is_some_and(|(last, _)| last.start < start)
    }

    /// Where to add what was used at an instant; `None` when that window is not on this page.
    pub fn at(&mut self, at: TimeMs, entity: EntityId, resource: ResourceName) -> Option<&mut UsageTotals> {
        let start = self.query.window.start_of(at);
        if self.query.from.is_some_and(|from| start < from) || self.query.until.is_some_and(|until| start >= until) {
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
        let window = self.query.window;
        let snapshot = |(position, totals): (Position, UsageTotals)| {
            let Position { start, entity, resource } = position;
            let counters = totals.used.into_iter().filter(|(_, used)| *used != Milli::ZERO).collect();
            UsageSnapshot { entity, resource, window, start, counters, events: totals.events }
        };
        let snapshots = self.totals.into_iter().map(snapshot).collect();
        let mut page = Page::cut(snapshots, &self.query.page, |last| Position::of(last).cursor());
        // Only corrections that cancel each other out: nothing to show.
        page.items.retain(|snapshot| snapshot.events > 0 || !snapshot.counters.is_empty());
        page
    }
}
