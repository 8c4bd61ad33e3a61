//! Usage over time: windows of the calendar (UTC), and what was used in each.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crate::name::{EntityId, LimitName, ResourceName, shown};
use crate::time::{DAY_MS, Date, HOUR_MS, SECOND_MS, Year, rfc3339};
use crate::units::{Milli, TimeMs};

/// The span of time one usage snapshot covers. Windows are those of the calendar in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UsageWindow {
    /// From one full hour to the next.
    Hourly,
    /// From midnight to midnight.
    Daily,
    /// From the first of a month to the first of the next.
    Monthly,
}

impl UsageWindow {
    /// Every window, shortest first.
    pub const ALL: [UsageWindow; 3] =
        [UsageWindow::Hourly, UsageWindow::Daily, UsageWindow::Monthly];

    /// The word used in output and on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            UsageWindow::Hourly => "hourly",
            UsageWindow::Daily => "daily",
            UsageWindow::Monthly => "monthly",
        }
    }

    /// The start of the window that contains `at`.
    #[must_use]
    pub fn start_of(self, at: TimeMs) -> TimeMs {
        self.begin(self.index(at))
    }

    /// The start of the window after the one that contains `start`.
    #[must_use]
    pub fn next_start(self, start: TimeMs) -> TimeMs {
        self.begin(self.index(start) + 1)
    }

    /// The last full second of the window that contains `start`: its end, inclusive.
    #[must_use]
    pub fn last_second(self, start: TimeMs) -> TimeMs {
        self.next_start(start).plus_ms(-SECOND_MS)
    }

    /// The text under which the window that contains `start` is stored: `2026-01-01T14:00:00Z`,
    /// `2026-01-01`, `2026-01`.
    ///
    /// The forms differ in length, so a day never shares a key with its first hour. Within the
    /// years 0000 to 9999 the keys of one kind of window sort like their times.
    #[must_use]
    pub fn key(self, start: TimeMs) -> String {
        let start = self.start_of(start);
        let date = Date::of(start);
        match self {
            UsageWindow::Hourly => rfc3339(start),
            UsageWindow::Daily => date.to_string(),
            UsageWindow::Monthly => format!("{}-{:02}", Year(date.year), date.month),
        }
    }

    /// Windows of one kind are numbered without gaps; the number of the one that contains `at`.
    fn index(self, at: TimeMs) -> i64 {
        match self {
            UsageWindow::Hourly => at.0.div_euclid(HOUR_MS),
            UsageWindow::Daily => at.0.div_euclid(DAY_MS),
            UsageWindow::Monthly => {
                let date = Date::of(at);
                date.year * 12 + date.month - 1
            }
        }
    }

    /// The first instant of a window, or the first or last instant there is if the window begins
    /// beyond them.
    fn begin(self, index: i64) -> TimeMs {
        TimeMs(match self {
            UsageWindow::Hourly => index.saturating_mul(HOUR_MS),
            UsageWindow::Daily => index.saturating_mul(DAY_MS),
            UsageWindow::Monthly => {
                let date =
                    Date { year: index.div_euclid(12), month: index.rem_euclid(12) + 1, day: 1 };
                date.days_since_epoch().saturating_mul(DAY_MS)
            }
        })
    }
}

impl fmt::Display for UsageWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for UsageWindow {
    type Err = UnknownUsageWindow;

    fn from_str(text: &str) -> Result<Self, UnknownUsageWindow> {
        let window = Self::ALL.into_iter().find(|window| window.as_str() == text);
        window.ok_or_else(|| UnknownUsageWindow { text: shown(text) })
    }
}

/// A text that names no usage window.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("usage window \"{text}\" is unknown; use hourly, daily or monthly")]
#[non_exhaustive]
pub struct UnknownUsageWindow {
    /// The refused text, escaped and cut to 50 characters.
    pub text: String,
}

/// The usage of one resource by one entity in one window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageSnapshot {
    /// The entity.
    pub entity: EntityId,
    /// The resource.
    pub resource: ResourceName,
    /// The kind of window.
    pub window: UsageWindow,
    /// When the window began.
    pub start: TimeMs,
    /// The amount used per limit. The amount is below zero when more was given back than taken
    /// within the window.
    pub counters: Vec<(LimitName, Milli)>,
    /// How many changes were counted.
    pub events: u64,
}

/// Several snapshots in a few numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UsageSummary {
    /// How many snapshots were summed.
    pub snapshots: u64,
    /// One sum per limit, in the order of their names.
    pub limits: Vec<UsageTotal>,
    /// The start of the earliest window.
    pub first: Option<TimeMs>,
    /// The start of the latest window.
    pub last: Option<TimeMs>,
}

/// The usage of one limit over several snapshots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageTotal {
    /// The limit.
    pub limit: LimitName,
    /// The sum. It stays at the bounds of `i64` instead of wrapping.
    pub total: Milli,
    /// The sum divided by the number of snapshots, with or without this limit, and rounded towards
    /// −∞.
    pub average: Milli,
}

impl UsageSummary {
    /// Sums up snapshots of one kind of window; with several kinds the same use would be counted
    /// several times.
    #[must_use]
    pub fn of<'a>(snapshots: impl IntoIterator<Item = &'a UsageSnapshot>) -> UsageSummary {
        let mut sums = UsageSums::default();
        snapshots.into_iter().for_each(|snapshot| sums.add(snapshot));
        sums.summary()
    }
}

/// The sums of a [`UsageSummary`] in the making: snapshots are added one by one and need not be
/// kept.
#[derive(Debug, Clone, Default)]
pub struct UsageSums {
    snapshots: u64,
    sums: BTreeMap<LimitName, i128>,
    first: Option<TimeMs>,
    last: Option<TimeMs>,
}

impl UsageSums {
    /// Adds a snapshot.
    pub fn add(&mut self, snapshot: &UsageSnapshot) {
        self.snapshots += 1;
        self.first = Some(self.first.map_or(snapshot.start, |first| first.min(snapshot.start)));
        self.last = self.last.max(Some(snapshot.start));
        for (limit, used) in &snapshot.counters {
            match self.sums.get_mut(limit) {
                Some(sum) => *sum += i128::from(used.0),
                None => drop(self.sums.insert(limit.clone(), i128::from(used.0))),
            }
        }
    }

    /// The summary of the snapshots added.
    #[must_use]
    pub fn summary(self) -> UsageSummary {
        let count = i128::from(self.snapshots.max(1));
        let total = |(limit, sum): (LimitName, i128)| UsageTotal {
            limit,
            total: saturated(sum),
            average: saturated(sum.div_euclid(count)),
        };
        let limits = self.sums.into_iter().map(total).collect();
        UsageSummary { snapshots: self.snapshots, limits, first: self.first, last: self.last }
    }
}

fn saturated(sum: i128) -> Milli {
    Milli(i64::try_from(sum).unwrap_or(if sum < 0 { i64::MIN } else { i64::MAX }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::time::parse_rfc3339;

    fn at(text: &str) -> TimeMs {
        parse_rfc3339(text).expect("a valid time")
    }

    fn check(window: UsageWindow, instant: &str, key: &str, last_second: &str) {
        let start = window.start_of(at(instant));
        assert_eq!(window.key(start), key, "{window} {instant}");
        assert_eq!(rfc3339(window.last_second(start)), last_second, "{window} {instant}");
        assert_eq!(
            window.next_start(start),
            window.last_second(start).plus_ms(1_000),
            "{window} {instant}"
        );
    }

    #[test]
    fn windows_of_the_calendar() {
        use UsageWindow::{Daily, Hourly, Monthly};
        check(Hourly, "2026-01-01T14:59:59.999Z", "2026-01-01T14:00:00Z", "2026-01-01T14:59:59Z");
        check(Hourly, "2026-01-01", "2026-01-01T00:00:00Z", "2026-01-01T00:59:59Z");
        check(Daily, "2026-01-01", "2026-01-01", "2026-01-01T23:59:59Z");
        check(Monthly, "2026-01-01", "2026-01", "2026-01-31T23:59:59Z");
        check(Monthly, "2026-12-31T23:59:59Z", "2026-12", "2026-12-31T23:59:59Z");
        check(Monthly, "2024-02-29T12:00:00Z", "2024-02", "2024-02-29T23:59:59Z");
        check(Monthly, "1900-02-11", "1900-02", "1900-02-28T23:59:59Z");
        check(Monthly, "2000-02-11", "2000-02", "2000-02-29T23:59:59Z");
        check(Daily, "1969-12-31T23:59:59.999Z", "1969-12-31", "1969-12-31T23:59:59Z");
        check(Hourly, "1969-12-31T23:00:00Z", "1969-12-31T23:00:00Z", "1969-12-31T23:59:59Z");
        check(Monthly, "0000-02-29", "0000-02", "0000-02-29T23:59:59Z");
        check(Monthly, "9999-12-31T23:59:59Z", "9999-12", "9999-12-31T23:59:59Z");
    }

    #[test]
    fn windows_have_words() {
        for window in UsageWindow::ALL {
            assert_eq!(window.to_string().parse(), Ok(window));
        }
        let error = "weekly\n".parse::<UsageWindow>().expect_err("there is no such window");
        assert_eq!(
            error.to_string(),
            "usage window \"weekly\\n\" is unknown; use hourly, daily or monthly"
        );
    }

    fn snapshot(start: i64, counters: &[(&str, i64)]) -> UsageSnapshot {
        UsageSnapshot {
            entity: "key".parse().expect("a valid id"),
            resource: "gpt-4".parse().expect("a valid resource"),
            window: UsageWindow::Hourly,
            start: TimeMs(start),
            counters: counters
                .iter()
                .map(|(name, used)| (name.parse().expect("a valid name"), Milli(*used)))
                .collect(),
            events: 1,
        }
    }

    #[test]
    fn summaries_add_up() {
        assert_eq!(UsageSummary::of([]), UsageSummary::default());
        let snapshots = [snapshot(7, &[("tpm", 10), ("rpm", 1)]), snapshot(-5, &[("tpm", -15)])];
        let summary = UsageSummary::of(&snapshots);
        assert_eq!(
            (summary.snapshots, summary.first, summary.last),
            (2, Some(TimeMs(-5)), Some(TimeMs(7)))
        );
        let limits: Vec<_> =
            summary.limits.iter().map(|l| (l.limit.as_str(), l.total.0, l.average.0)).collect();
        assert_eq!(limits, [("rpm", 1, 0), ("tpm", -5, -3)]);
    }

    #[test]
    fn summaries_saturate_only_at_the_end() {
        let (most, least) = (snapshot(0, &[("x", i64::MAX)]), snapshot(0, &[("x", i64::MIN)]));
        let total = |snapshots: &[&UsageSnapshot]| {
            UsageSummary::of(snapshots.iter().copied())
                .limits
                .first()
                .map(|l| (l.total.0, l.average.0))
        };
        assert_eq!(total(&[&most, &most]), Some((i64::MAX, i64::MAX)));
        assert_eq!(total(&[&least, &least]), Some((i64::MIN, i64::MIN)));
        assert_eq!(total(&[&most, &most, &least, &least]), Some((-2, -1)));
    }

    /// Instants in the years that have four digits, and any instants.
    fn instants() -> (impl Strategy<Value = i64>, impl Strategy<Value = i64>) {
        (at("0000-01-01").0..at("9999-12-31").0, any::<i64>())
    }

    proptest! {
        #[test]
        fn an_instant_is_in_its_window(instant in prop_oneof![instants().0, i64::MIN / 2..i64::MAX / 2]) {
            for window in UsageWindow::ALL {
                let (start, next) = (window.start_of(TimeMs(instant)), window.next_start(TimeMs(instant)));
                prop_assert!(start.0 <= instant && instant < next.0);
                prop_assert_eq!((window.start_of(start), window.next_start(start)), (start, next));
                prop_assert_eq!((window.start_of(next), window.start_of(next.plus_ms(-1))), (next, start));
            }
        }

        #[test]
        fn no_instant_panics(instant in prop_oneof![Just(i64::MIN), Just(i64::MAX), instants().1]) {
            for window in UsageWindow::ALL {
                prop_assert!(window.start_of(TimeMs(instant)).0 <= instant);
                prop_assert!(window.next_start(TimeMs(instant)).0 >= instant);
                prop_assert!(window.last_second(TimeMs(instant)) < window.next_start(TimeMs(instant)));
                prop_assert_eq!(window.key(TimeMs(instant)), window.key(window.start_of(TimeMs(instant))));
            }
        }

        #[test]
        fn keys_are_the_same_only_for_the_same_window(a in instants().0, step in -100 * DAY_MS..100 * DAY_MS) {
            let b = TimeMs(a.saturating_add(step));
            for one in UsageWindow::ALL {
                for other in UsageWindow::ALL {
                    let same = one == other && one.start_of(TimeMs(a)) == other.start_of(b);
                    prop_assert_eq!(one.key(TimeMs(a)) == other.key(b), same);
                }
            }
        }
    }
}
