//! The calendar (UTC), and times as text (RFC 3339). Written here because the core depends on no
//! crate that reads clocks.

use std::fmt;

use crate::name::shown;
use crate::units::TimeMs;

pub(crate) const SECOND_MS: i64 = 1_000;
const MINUTE_MS: i64 = 60 * SECOND_MS;
pub(crate) const HOUR_MS: i64 = 60 * MINUTE_MS;
pub(crate) const DAY_MS: i64 = 24 * HOUR_MS;

/// A day of the Gregorian calendar, carried backwards before its invention. The year 0 is the one
/// before year 1.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Date {
    pub(crate) year: i64,
    pub(crate) month: i64,
    pub(crate) day: i64,
}

/// Days from 0000-03-01 to 1970-01-01. Years that begin in March have their leap day last, which
/// keeps the sums simple.
const EPOCH_DAYS: i64 = 719_468;
/// Days in 400 years, after which the calendar repeats.
const ERA_DAYS: i64 = 146_097;

impl Date {
    pub(crate) fn of(at: TimeMs) -> Date {
        let days = at.0.div_euclid(DAY_MS) + EPOCH_DAYS;
        let (era, day_of_era) = (days.div_euclid(ERA_DAYS), days.rem_euclid(ERA_DAYS));
        // Take out the leap days (every 4 years, not every 100, but every 400) to find the year.
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        // From March on, five months have 153 days, in the same pattern over and over.
        let march_month = (5 * day_of_year + 2) / 153;
        let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
        Date {
            year: 400 * era + year_of_era + i64::from(month <= 2),
            month,
            day: day_of_year - (153 * march_month + 2) / 5 + 1,
        }
    }

    /// The reverse of [`Date::of`]. A day beyond the month's end counts on into the next month.
    pub(crate) fn days_since_epoch(self) -> i64 {
        let year = self.year - i64::from(self.month <= 2);
        let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
        let march_month = (self.month + 9) % 12;
        let day_of_year = (153 * march_month + 2) / 5 + self.day - 1;
        let day_of_era = 365 * year_of_era + year_of_era / 4 - year_of_era / 100 + day_of_year;
        era * ERA_DAYS + day_of_era - EPOCH_DAYS
    }
}

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:02}-{:02}", Year(self.year), self.month, self.day)
    }
}

/// A year as text: four digits, or with a sign outside 0000 to 9999 (ISO 8601), so that no two
/// years look the same.
pub(crate) struct Year(pub(crate) i64);

impl fmt::Display for Year {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0..=9_999 => write!(f, "{:04}", self.0),
            _ => write!(f, "{:+05}", self.0),
        }
    }
}

/// An instant as `YYYY-MM-DDTHH:MM:SS.mmmZ`, without the milliseconds when there are none.
#[must_use]
pub fn rfc3339(at: TimeMs) -> String {
    let of_day = at.0.rem_euclid(DAY_MS);
    let (hour, minute) = (of_day / HOUR_MS, of_day / MINUTE_MS % 60);
    let (second, milli) = (of_day / SECOND_MS % 60, of_day % SECOND_MS);
    let date = Date::of(at);
    match milli {
        0 => format!("{date}T{hour:02}:{minute:02}:{second:02}Z"),
        _ => format!("{date}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z"),
    }
}

/// Reads `YYYY-MM-DD` (midnight, UTC) or `YYYY-MM-DDTHH:MM:SS[.fff]` followed by `Z` or an offset
/// such as `+02:00`. Up to nine digits of a second are read; what is finer than a millisecond is
/// dropped.
pub fn parse_rfc3339(text: &str) -> Result<TimeMs, TimeTextError> {
    let mut reader = Reader(text.as_bytes());
    let written = reader.time().filter(|_| reader.0.is_empty());
    let written = written.ok_or_else(|| TimeTextError::Form { text: shown(text) })?;
    let Written { date, hour, minute, second, milli, offset_sign, offset_hour, offset_minute } =
        written;
    for (field, value, max) in [
        ("hour", hour, 23),
        ("minute", minute, 59),
        ("second", second, 59),
        ("hour of the offset", offset_hour, 23),
        ("minute of the offset", offset_minute, 59),
    ] {
        if value > max {
            return Err(TimeTextError::NoSuchTime { text: shown(text), field, value });
        }
    }
    let midnight_ms = date.days_since_epoch() * DAY_MS;
    if Date::of(TimeMs(midnight_ms)) != date {
        let month_exists = (1..=12).contains(&date.month);
        let (field, value) = if month_exists { ("day", date.day) } else { ("month", date.month) };
        return Err(TimeTextError::NoSuchTime { text: shown(text), field, value });
    }
    let offset_ms = offset_sign * (offset_hour * HOUR_MS + offset_minute * MINUTE_MS);
    let of_day_ms = hour * HOUR_MS + minute * MINUTE_MS + second * SECOND_MS + milli;
    Ok(TimeMs(midnight_ms + of_day_ms - offset_ms))
}

/// Why a text is not a time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TimeTextError {
    /// The text does not look like a time.
    #[error(
        "time \"{text}\" cannot be read; write 2026-01-31, 2026-01-31T14:30:00Z or 2026-01-31T14:30:00.250+02:00"
    )]
    Form {
        /// The refused text, escaped and cut to 50 characters.
        text: String,
    },
    /// The text looks like a time that no calendar or clock shows.
    #[error(
        "time \"{text}\" does not exist: there is no {field} {value}; write a day of the calendar and a time from 00:00:00 to 23:59:59"
    )]
    NoSuchTime {
        /// The refused text, escaped and cut to 50 characters.
        text: String,
        /// The part that does not exist, in words.
        field: &'static str,
        /// The number found there.
        value: i64,
    },
}

/// The parts of a time as they stand in the text, not yet checked.
#[derive(Default)]
struct Written {
    date: Date,
    hour: i64,
    minute: i64,
    second: i64,
    milli: i64,
    offset_sign: i64,
    offset_hour: i64,
    offset_minute: i64,
}

/// The text that is still to be read.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn time(&mut self) -> Option<Written> {
        let year = self.number(4)?;
        self.byte(b'-')?;
        let month = self.number(2)?;
        self.byte(b'-')?;
        let date = Date { year, month, day: self.number(2)? };
        let mut written = Written { date, offset_sign: 1, ..Written::default() };
        if self.0.is_empty() {
            return Some(written);
        }
        self.byte(b'T')?;
        written.hour = self.number(2)?;
        self.byte(b':')?;
        written.minute = self.number(2)?;
        self.byte(b':')?;
        written.second = self.number(2)?;
        if self.byte(b'.').is_some() {
            written.milli = self.fraction_milli()?;
        }
        if self.byte(b'Z').is_some() {
            return Some(written);
        }
        if self.byte(b'-').is_some() {
            written.offset_sign = -1;
        } else {
            self.byte(b'+')?;
        }
        written.offset_hour = self.number(2)?;
        self.byte(b':')?;
        written.offset_minute = self.number(2)?;
        Some(written)
    }

    fn byte(&mut self, wanted: u8) -> Option<()> {
        self.0 = self.0.strip_prefix(&[wanted])?;
        Some(())
    }

    fn digit(&mut self) -> Option<i64> {
        let (&first, rest) = self.0.split_first()?;
        first.is_ascii_digit().then(|| {
            self.0 = rest;
            i64::from(first - b'0')
        })
    }

    fn number(&mut self, digits: usize) -> Option<i64> {
        (0..digits).try_fold(0, |number, _| Some(number * 10 + self.digit()?))
    }

    /// One to nine digits after the point, of which three count.
    fn fraction_milli(&mut self) -> Option<i64> {
        let mut milli = self.digit()? * 100;
        for weight in [10, 1, 0, 0, 0, 0, 0, 0] {
            let Some(digit) = self.digit() else { break };
            milli += digit * weight;
        }
        Some(milli)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(text: &str) -> TimeMs {
        parse_rfc3339(text).expect("a valid time")
    }

    #[test]
    fn years_of_more_or_fewer_digits_carry_a_sign() {
        let last = at("9999-12-31T23:59:59.999Z");
        assert_eq!(rfc3339(last.plus_ms(1)), "+10000-01-01T00:00:00Z");
        assert_eq!(rfc3339(at("0000-01-01").plus_ms(-1)), "-0001-12-31T23:59:59.999Z");
        assert_eq!(rfc3339(TimeMs(i64::MAX)), "+292278994-08-17T07:12:55.807Z");
        assert_eq!(rfc3339(TimeMs(i64::MIN)), "-292275055-05-16T16:47:04.192Z");
    }

    #[test]
    fn texts_that_are_times() {
        for (text, ms) in [
            ("1970-01-01", 0),
            ("1970-01-01T00:00:00Z", 0),
            ("2026-01-01T10:00:00Z", 1_767_261_600_000),
            ("2026-01-01T10:00:00.5Z", 1_767_261_600_500),
            ("2026-01-01T10:00:00.25Z", 1_767_261_600_250),
            ("2026-01-01T10:00:00.123456+00:00", 1_767_261_600_123),
            ("2026-01-01T12:00:00.000000000+02:00", 1_767_261_600_000),
            ("2026-01-01T04:30:00-05:30", 1_767_261_600_000),
            ("1969-12-31T23:59:59.999Z", -1),
        ] {
            assert_eq!(parse_rfc3339(text), Ok(TimeMs(ms)), "{text}");
        }
    }

    #[test]
    fn texts_that_are_not() {
        for text in [
            "",
            "2026",
            "2026-01",
            "2026-1-01",
            "+2026-01-01",
            "2026-01-01 ",
            "2026-01-01\n",
            "2026-01-01T",
            "2026-01-01t10:00:00z",
            "2026-01-01 10:00:00Z",
            "2026-01-01T10:00Z",
            "2026-01-01T10:00:00",
            "2026-01-01T10:00:00.Z",
            "2026-01-01T10:00:00.1234567890Z",
            "2026-01-01T10:00:00+0200",
            "2026-01-01T10:00:00ZZ",
            "2026-01-01T10:00:00+02",
            "２026-01-01",
        ] {
            assert_eq!(
                parse_rfc3339(text),
                Err(TimeTextError::Form { text: shown(text) }),
                "{text:?}"
            );
        }
        for (text, field, value) in [
            ("2026-00-01", "month", 0),
            ("2026-13-01", "month", 13),
            ("2026-01-00", "day", 0),
            ("2026-02-29", "day", 29),
            ("2026-04-31", "day", 31),
            ("2026-01-01T24:00:00Z", "hour", 24),
            ("2026-01-01T10:60:00Z", "minute", 60),
            ("2026-01-01T10:00:60Z", "second", 60),
            ("2026-01-01T10:00:00+24:00", "hour of the offset", 24),
            ("2026-01-01T10:00:00-01:60", "minute of the offset", 60),
        ] {
            assert_eq!(
                parse_rfc3339(text),
                Err(TimeTextError::NoSuchTime { text: text.into(), field, value })
            );
        }
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(instant in at("0000-01-01").0..at("9999-12-31").0) {
            prop_assert_eq!(parse_rfc3339(&rfc3339(TimeMs(instant))), Ok(TimeMs(instant)));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[0-9]{4}-[01][0-9]-[0-3][0-9](T[0-2][0-9]:[0-6][0-9]:[0-6][0-9]([.][0-9]{0,10})?(Z|[+-][0-2][0-9]:[0-6][0-9]))?") {
            if let Ok(instant) = parse_rfc3339(&text) {
                let (first, last) = (at("0000-01-01").plus_ms(-DAY_MS), at("9999-12-31").plus_ms(2 * DAY_MS));
                prop_assert!(first < instant && instant < last);
            }
        }

        #[test]
        fn days_are_numbered_without_gaps(days in -2_000_000_000..2_000_000_000_i64) {
            let (today, tomorrow) = (Date::of(TimeMs(days * DAY_MS)), Date::of(TimeMs((days + 1) * DAY_MS)));
            prop_assert_eq!(today.days_since_epoch(), days);
            let in_month = tomorrow.year == today.year && tomorrow.month == today.month && tomorrow.day == today.day + 1;
            prop_assert!(in_month || (tomorrow.day == 1 && (28..=31).contains(&today.day)));
        }
    }
}
