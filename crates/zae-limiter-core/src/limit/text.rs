//! A limit as text: `name:rate[/period][:burst]`.

use std::fmt;
use std::str::FromStr;

use super::{Limit, LimitError, TOKENS_MAX};
use crate::name::shown;

/// The units of a period, largest first.
pub(super) const UNITS: [(&str, u64); 4] =
    [("day", 86_400), ("hour", 3_600), ("min", 60), ("sec", 1)];

/// Other words for the units, which are read and never written.
const SPELLINGS: [(&str, &[&str]); 4] = [
    ("day", &["d", "days"]),
    ("hour", &["h", "hr", "hrs", "hours"]),
    ("min", &["m", "mins", "minute", "minutes"]),
    ("sec", &["s", "secs", "second", "seconds"]),
];

/// The part of a limit's text that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SyntaxProblem {
    /// Nothing follows the name.
    #[error("the rate is missing")]
    RateMissing,
    /// The name is followed by an equals sign, as in an amount to take.
    #[error("a colon stands between name and rate, not an equals sign")]
    Equals,
    /// The rate is not a number, or has more digits than any limit.
    #[error("the rate is not a whole number up to {TOKENS_MAX}")]
    Rate,
    /// The period is not an optional number and a unit.
    #[error("the period is not sec, min, hour or day with an optional whole number before it")]
    Period,
    /// The burst is not a number, or has more digits than any limit.
    #[error("the burst is not a whole number up to {TOKENS_MAX}")]
    Burst,
}

impl FromStr for Limit {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<Limit, LimitError> {
        let fail = |problem| LimitError::Syntax { text: shown(text), problem };
        let unsplit = || {
            fail(if text.contains('=') {
                SyntaxProblem::Equals
            } else {
                SyntaxProblem::RateMissing
            })
        };
        let (name, numbers) = text.split_once(':').ok_or_else(unsplit)?;
        let (rate, burst) = match numbers.split_once(':') {
            Some((rate, burst)) => (rate, Some(burst)),
            None => (numbers, None),
        };
        let (rate, period) = rate.split_once('/').unwrap_or((rate, "min"));

        let rate = parse_tokens(rate).ok_or_else(|| fail(SyntaxProblem::Rate))?;
        let period_s = period_seconds(period).ok_or_else(|| fail(SyntaxProblem::Period))?;
        let capacity = match burst {
            Some(burst) => parse_tokens(burst).ok_or_else(|| fail(SyntaxProblem::Burst))?,
            None => rate,
        };
        Limit::custom(name, capacity, rate, period_s)
    }
}

/// Reads a number of tokens: digits, which may be grouped by `_`, and `k` for thousands or `M` for
/// millions, as in `1_000`, `10k` or `2M`. `None` for anything else and for what no `u64` holds.
#[must_use]
pub fn parse_tokens(text: &str) -> Option<u64> {
    let (digits, factor) = match text.as_bytes().last()? {
        b'k' | b'K' => (&text[..text.len() - 1], 1_000),
        b'M' => (&text[..text.len() - 1], 1_000_000),
        _ => (text, 1),
    };
    // A group separator stands between two digits.
    if digits.split('_').any(str::is_empty) {
        return None;
    }
    whole_number(&digits.replace('_', ""))?.checked_mul(factor)
}

/// A number of digits only: the standard parser would also take a leading `+`.
fn whole_number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

fn period_seconds(text: &str) -> Option<u64> {
    let (count, unit) = text.split_at(text.bytes().take_while(u8::is_ascii_digit).count());
    let spelled = SPELLINGS
        .into_iter()
        .find(|(_, others)| others.contains(&unit))
        .map_or(unit, |(name, _)| name);
    let (_, seconds) = UNITS.into_iter().find(|(name, _)| *name == spelled)?;
    let count = if count.is_empty() { 1 } else { whole_number(count)? };
    count.checked_mul(seconds)
}

/// Writes the form that [`FromStr`] reads, the period in the largest unit that fits and the burst
/// only if it differs.
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Limit { name, capacity, refill_amount, refill_period_s } = self;
        let (unit, seconds) = UNITS
            .into_iter()
            .find(|(_, seconds)| refill_period_s.is_multiple_of(*seconds))
            .unwrap_or(("sec", 1));
        write!(f, "{name}:{refill_amount}/")?;
        if *refill_period_s != seconds {
            write!(f, "{}", refill_period_s / seconds)?;
        }
        f.write_str(unit)?;
        if capacity != refill_amount {
            write!(f, ":{capacity}")?;
        }
        Ok(())
    }
}
