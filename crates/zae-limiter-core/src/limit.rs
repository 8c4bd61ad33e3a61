//! Limits: how much may be used, and how fast it comes back.

use crate::bucket::LimitParams;
use crate::name::{LimitName, NameError};

mod text;

pub use text::{SyntaxProblem, parse_tokens};

/// The largest capacity or refill amount, in tokens. A thousand times as much (millitokens) still
/// fits an `i64`.
pub const TOKENS_MAX: u64 = 1_000_000_000_000_000;

/// The longest refill period, in seconds (about 31 years).
pub const PERIOD_S_MAX: u64 = 1_000_000_000;

/// The most limits one bucket may have.
pub const LIMITS_MAX: usize = 16;

/// One limit: a bucket of `capacity` tokens that regains `refill_amount` tokens every
/// `refill_period_s` seconds.
///
/// The text form is that of the command line, `name:rate[/period][:burst]`, a minute being the
/// usual period:
///
/// ```
/// use zae_limiter_core::Limit;
///
/// let limit: Limit = "tpm:10000/min:15000".parse()?;
/// assert_eq!(limit, Limit::per_minute("tpm", 10_000)?.with_burst(15_000)?);
/// # Ok::<(), zae_limiter_core::LimitError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Limit {
    name: LimitName,
    capacity: u64,
    refill_amount: u64,
    refill_period_s: u64,
}

impl Limit {
    /// A limit from all its parts. Capacity and amount are 1 to [`TOKENS_MAX`], the period is 1 to
    /// [`PERIOD_S_MAX`]. A capacity below the amount is allowed: it makes a steadier limit.
    pub fn new(
        name: LimitName,
        capacity: u64,
        refill_amount: u64,
        refill_period_s: u64,
    ) -> Result<Limit, LimitError> {
        for (field, value, max) in [
            ("refill amount", refill_amount, TOKENS_MAX),
            ("refill period in seconds", refill_period_s, PERIOD_S_MAX),
            ("capacity", capacity, TOKENS_MAX),
        ] {
            if value == 0 || value > max {
                return Err(LimitError::OutOfRange { limit: name, field, value, max });
            }
        }
        Ok(Limit { name, capacity, refill_amount, refill_period_s })
    }

    /// `rate` tokens a second, and at most that many at once.
    pub fn per_second(name: &str, rate: u64) -> Result<Limit, LimitError> {
        Limit::custom(name, rate, rate, 1)
    }

    /// `rate` tokens a minute, and at most that many at once.
    pub fn per_minute(name: &str, rate: u64) -> Result<Limit, LimitError> {
        Limit::custom(name, rate, rate, 60)
    }

    /// `rate` tokens an hour, and at most that many at once.
    pub fn per_hour(name: &str, rate: u64) -> Result<Limit, LimitError> {
        Limit::custom(name, rate, rate, 3_600)
    }

    /// `rate` tokens a day, and at most that many at once.
    pub fn per_day(name: &str, rate: u64) -> Result<Limit, LimitError> {
        Limit::custom(name, rate, rate, 86_400)
    }

    /// As [`Limit::new`], with a name still to be checked.
    pub fn custom(
        name: &str,
        capacity: u64,
        refill_amount: u64,
        refill_period_s: u64,
    ) -> Result<Limit, LimitError> {
        Limit::new(name.parse()?, capacity, refill_amount, refill_period_s)
    }

    /// The same limit with another capacity: how much may be taken at once after a quiet time.
    pub fn with_burst(self, capacity: u64) -> Result<Limit, LimitError> {
        Limit::new(self.name, capacity, self.refill_amount, self.refill_period_s)
    }

    /// The name of the limit.
    #[must_use]
    pub fn name(&self) -> &LimitName {
        &self.name
    }

    /// The most tokens the bucket holds.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The tokens that come back every period.
    #[must_use]
    pub fn refill_amount(&self) -> u64 {
        self.refill_amount
    }

    /// The length of a period, in seconds.
    #[must_use]
    pub fn refill_period_s(&self) -> u64 {
        self.refill_period_s
    }

    /// The limit in the units that buckets compute with. The numbers are exact: the bounds keep a
    /// thousandfold within an `i64`.
    #[must_use]
    #[inline]
    pub fn params(&self) -> LimitParams {
        LimitParams {
            capacity_milli: thousandfold(self.capacity),
            refill_milli: thousandfold(self.refill_amount),
            period_ms: thousandfold(self.refill_period_s),
        }
    }
}

/// Tokens to millitokens, seconds to milliseconds.
fn thousandfold(value: u64) -> i64 {
    const { assert!(TOKENS_MAX <= i64::MAX as u64 / 1_000 && PERIOD_S_MAX <= TOKENS_MAX) };
    (value * 1_000).cast_signed()
}

/// Checks limits that belong together: at most [`LIMITS_MAX`], each name once.
pub fn check_limits(limits: &[Limit]) -> Result<(), LimitError> {
    if limits.len() > LIMITS_MAX {
        return Err(LimitError::TooMany { count: limits.len() });
    }
    for (i, limit) in limits.iter().enumerate() {
        if crate::is_fold(&limit.name) {
            return Err(LimitError::Reserved { limit: limit.name.clone() });
        }
        if limits[..i].iter().any(|earlier| earlier.name == limit.name) {
            return Err(LimitError::Duplicate { limit: limit.name.clone() });
        }
    }
    Ok(())
}

/// Why a limit, or a list of limits, was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LimitError {
    /// The name is not one a limit may have.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A number is zero or too large.
    #[error(
        "limit \"{limit}\": {field} {value} is out of range; use a whole number from 1 to {max}"
    )]
    OutOfRange {
        /// The limit that was to be made.
        limit: LimitName,
        /// Which of its numbers, in words.
        field: &'static str,
        /// The number given.
        value: u64,
        /// The largest number allowed.
        max: u64,
    },
    /// A text does not have the form `name:rate[/period][:burst]`.
    #[error(
        "limit \"{text}\": {problem}; write name:rate[/period][:burst], as in tpm:10000/min:15000 or x:5/30sec"
    )]
    Syntax {
        /// The refused text, escaped and cut to 50 characters.
        text: String,
        /// The part that cannot be read.
        problem: SyntaxProblem,
    },
    /// Two limits of one list have the same name.
    #[error("limit \"{limit}\" is given twice; give each limit once")]
    Duplicate {
        /// The name they share.
        limit: LimitName,
    },
    /// The name is kept for buckets themselves.
    #[error(
        "limit \"{limit}\" has a name that is kept for what buckets remember of renamed limits; choose another name"
    )]
    Reserved {
        /// Which limit.
        limit: LimitName,
    },
    /// A list has more limits than a bucket may have.
    #[error("{count} limits are given; use at most {LIMITS_MAX}")]
    TooMany {
        /// How many there are.
        count: usize,
    },
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::text::UNITS;
    use super::*;

    /// A text and the parts it stands for: capacity, amount, period.
    fn check(text: &str, expected: Result<(u64, u64, u64), &str>) {
        let parts = |l: Limit| (l.capacity(), l.refill_amount(), l.refill_period_s());
        let found = text.parse::<Limit>().map(parts);
        assert_eq!(
            found.map_err(|error| error.to_string()),
            expected.map_err(str::to_owned),
            "{text:?}"
        );
    }

    #[test]
    fn texts_that_are_limits() {
        check("tpm:10000/min:15000", Ok((15_000, 10_000, 60)));
        check("rpm:100", Ok((100, 100, 60)));
        check("rpm:100:20", Ok((20, 100, 60)));
        check("x:5/30sec", Ok((5, 5, 30)));
        check("x:5/1hour", Ok((5, 5, 3_600)));
        check("x:5/day", Ok((5, 5, 86_400)));
        check("x:007/02min", Ok((7, 7, 120)));
        check("x:1000000000000000/1000000000sec", Ok((TOKENS_MAX, TOKENS_MAX, PERIOD_S_MAX)));
    }

    #[test]
    fn periods_and_amounts_as_people_type_them() {
        for (unit, seconds) in [
            ("s", 1),
            ("seconds", 1),
            ("m", 60),
            ("minute", 60),
            ("h", 3_600),
            ("hr", 3_600),
            ("d", 86_400),
            ("days", 86_400),
        ] {
            check(&format!("x:5/{unit}"), Ok((5, 5, seconds)));
            check(&format!("x:5/2{unit}"), Ok((5, 5, 2 * seconds)));
        }
        check("x:1k/min:1_500", Ok((1_500, 1_000, 60)));
        check("x:2M/5h", Ok((2_000_000, 2_000_000, 18_000)));
        for (text, tokens) in [
            ("7", Some(7)),
            ("1_0", Some(10)),
            ("10K", Some(10_000)),
            ("18446744073709551615", Some(u64::MAX)),
        ] {
            assert_eq!(parse_tokens(text), tokens, "{text}");
        }
        for text in [
            "",
            "k",
            "M",
            "_1",
            "1_",
            "1__0",
            "1m",
            "1kk",
            "1.5k",
            "+1k",
            "18446744073709551615k",
            "1é",
        ] {
            assert_eq!(parse_tokens(text), None, "{text}");
        }
    }

    #[test]
    fn texts_that_are_not() {
        let syntax = |text: &str, problem: SyntaxProblem| {
            let error = LimitError::Syntax { text: text.into(), problem };
            assert_eq!(text.parse::<Limit>(), Err(error), "{text:?}");
        };
        syntax("", SyntaxProblem::RateMissing);
        syntax("rpm", SyntaxProblem::RateMissing);
        syntax("rpm=60/min", SyntaxProblem::Equals);
        for text in [
            "rpm:",
            "rpm:x",
            "rpm:+1",
            "rpm:-1",
            "rpm:1.5",
            "rpm: 1",
            "rpm:1 ",
            "rpm:99999999999999999999",
            "rpm:١",
        ] {
            syntax(text, SyntaxProblem::Rate);
        }
        for text in [
            "rpm:1/",
            "rpm:1/5",
            "rpm:1/week",
            "rpm:1/MIN",
            "rpm:1/min/min",
            "rpm:1/-1min",
            "rpm:1/9999999999999999999day",
        ] {
            syntax(text, SyntaxProblem::Period);
        }
        for text in ["rpm:1:", "rpm:1/min:x", "rpm:1:2:3", "rpm:1:99999999999999999999"] {
            syntax(text, SyntaxProblem::Burst);
        }
    }

    #[test]
    fn messages_name_the_field_the_value_and_the_fix() {
        check(
            "rpm:0",
            Err(
                "limit \"rpm\": refill amount 0 is out of range; use a whole number from 1 to 1000000000000000",
            ),
        );
        check(
            "rpm:1:0",
            Err(
                "limit \"rpm\": capacity 0 is out of range; use a whole number from 1 to 1000000000000000",
            ),
        );
        check(
            "rpm:1/0sec",
            Err(
                "limit \"rpm\": refill period in seconds 0 is out of range; use a whole number from 1 to 1000000000",
            ),
        );
        check(
            "wcu:1",
            Err(
                "limit name \"wcu\" is reserved for the hidden limit that measures write pressure; choose another name",
            ),
        );
        check(
            "rpm",
            Err(
                "limit \"rpm\": the rate is missing; write name:rate[/period][:burst], as in tpm:10000/min:15000 or x:5/30sec",
            ),
        );
    }

    #[test]
    fn every_number_has_both_bounds() {
        let field =
            |capacity, amount, period_s| match Limit::custom("rpm", capacity, amount, period_s) {
                Ok(_) => None,
                Err(LimitError::OutOfRange { field, .. }) => Some(field),
                Err(other) => panic!("{other}"),
            };
        for (value, ok) in [
            (0, false),
            (1, true),
            (2, true),
            (TOKENS_MAX - 1, true),
            (TOKENS_MAX, true),
            (TOKENS_MAX + 1, false),
            (u64::MAX, false),
        ] {
            assert_eq!(field(value, 1, 1), (!ok).then_some("capacity"), "{value}");
            assert_eq!(field(1, value, 1), (!ok).then_some("refill amount"), "{value}");
        }
        for (value, ok) in [
            (0, false),
            (1, true),
            (PERIOD_S_MAX - 1, true),
            (PERIOD_S_MAX, true),
            (PERIOD_S_MAX + 1, false),
        ] {
            assert_eq!(field(1, 1, value), (!ok).then_some("refill period in seconds"), "{value}");
        }
    }

    #[test]
    fn constructors_differ_by_their_period() {
        for (limit, text) in [
            (Limit::per_second("x", 5), "x:5/sec"),
            (Limit::per_minute("x", 5), "x:5/min"),
            (Limit::per_hour("x", 5), "x:5/hour"),
            (Limit::per_day("x", 5), "x:5/day"),
            (Limit::per_minute("x", 5).and_then(|l| l.with_burst(9)), "x:5/min:9"),
            (Limit::custom("x", 2, 5, 90), "x:5/90sec:2"),
            (Limit::custom("x", 5, 5, 7_200), "x:5/2hour"),
        ] {
            assert_eq!(limit.map(|l| l.to_string()), Ok(text.to_owned()));
        }
        assert!(Limit::per_minute("x", 5).and_then(|l| l.with_burst(0)).is_err());
    }

    #[test]
    fn params_are_exact_at_the_bounds() {
        let limit = Limit::custom("x", TOKENS_MAX, 1, PERIOD_S_MAX).expect("within bounds");
        let LimitParams { capacity_milli, refill_milli, period_ms } = limit.params();
        assert_eq!(
            (capacity_milli, refill_milli, period_ms),
            (1_000_000_000_000_000_000, 1_000, 1_000_000_000_000)
        );
    }

    #[test]
    fn lists_are_bounded_and_without_duplicates() {
        let limits = |count| -> Vec<Limit> {
            (0..count)
                .map(|i| Limit::per_minute(&format!("l{i}"), 1).expect("a valid limit"))
                .collect()
        };
        assert_eq!(check_limits(&[]), Ok(()));
        assert_eq!(check_limits(&limits(LIMITS_MAX - 1)), Ok(()));
        assert_eq!(check_limits(&limits(LIMITS_MAX)), Ok(()));
        assert_eq!(check_limits(&limits(LIMITS_MAX + 1)), Err(LimitError::TooMany { count: 17 }));
        let twice = [limits(3), limits(1)].concat();
        let error = check_limits(&twice).expect_err("l0 is there twice");
        assert_eq!(error.to_string(), "limit \"l0\" is given twice; give each limit once");
    }

    fn any_limit() -> impl Strategy<Value = Limit> {
        let tokens = || prop_oneof![1..=TOKENS_MAX, 1..=100_u64];
        let period = prop_oneof![
            1..=PERIOD_S_MAX,
            (1..=11_000_u64, 0..4_usize).prop_map(|(n, unit)| n * UNITS[unit].1)
        ];
        ("[a-zA-Z][a-zA-Z0-9_.-]{0,63}", tokens(), tokens(), period, any::<bool>()).prop_filter_map(
            "a reserved name",
            |(name, capacity, amount, period, burst)| {
                Limit::custom(&name, if burst { capacity } else { amount }, amount, period).ok()
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_displayed_parses_back(limit in any_limit()) {
            prop_assert_eq!(limit.to_string().parse::<Limit>(), Ok(limit));
        }

        #[test]
        fn any_text_parses_or_is_refused(text in "[a-z:/0-9#é]{0,24}") {
            if let Ok(limit) = text.parse::<Limit>() {
                prop_assert_eq!(limit.to_string().parse::<Limit>(), Ok(limit));
            }
        }
    }
}
