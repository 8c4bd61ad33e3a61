//! Units as types: token amounts, instants and waits cannot be mixed up.

use std::fmt;
use std::num::NonZeroU64;
use std::time::Duration;

/// Millitokens in one token.
const MILLI_PER_TOKEN: i64 = 1000;

/// A signed amount in millitokens (1 token = 1000). A balance may be negative: that is debt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Milli(pub i64);

impl Milli {
    /// Nothing.
    pub const ZERO: Milli = Milli(0);

    /// Whole tokens as millitokens. Saturates at `i64::MAX`, far above the largest capacity a limit
    /// may have.
    #[must_use]
    pub fn from_tokens(tokens: u64) -> Milli {
        Milli(i64::try_from(tokens).unwrap_or(i64::MAX).saturating_mul(MILLI_PER_TOKEN))
    }

    /// Whole tokens, rounded towards −∞: −1 milli is −1 token, so debt is never reported as
    /// nothing.
    #[must_use]
    pub fn floor_tokens(self) -> i64 {
        self.0.div_euclid(MILLI_PER_TOKEN)
    }

    /// Sum that stays at the bounds of `i64` instead of wrapping.
    #[must_use]
    pub fn saturating_add(self, other: Milli) -> Milli {
        Milli(self.0.saturating_add(other.0))
    }

    /// Difference that stays at the bounds of `i64` instead of wrapping.
    #[must_use]
    pub fn saturating_sub(self, other: Milli) -> Milli {
        Milli(self.0.saturating_sub(other.0))
    }

    /// The same amount with the other sign.
    #[must_use]
    pub fn negated(self) -> Milli {
        Milli(self.0.saturating_neg())
    }

    /// True for an amount below zero.
    #[must_use]
    pub fn is_negative(self) -> bool {
        self.0 < 0
    }
}

impl From<Milli> for i64 {
    fn from(amount: Milli) -> i64 {
        amount.0
    }
}

impl fmt::Display for Milli {
    /// As tokens, exactly: `1.500` for 1500 millitokens, `-0.001` for −1.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let milli = self.0.unsigned_abs();
        let unit = MILLI_PER_TOKEN.unsigned_abs();
        let sign = if self.is_negative() { "-" } else { "" };
        write!(f, "{sign}{}", milli.div_euclid(unit))?;
        match milli.rem_euclid(unit) {
            0 => Ok(()),
            rest => write!(f, ".{rest:03}"),
        }
    }
}

/// An instant: milliseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimeMs(pub i64);

impl TimeMs {
    /// Milliseconds from `earlier` to `self`; negative when the clock went back.
    #[must_use]
    pub fn since(self, earlier: TimeMs) -> i64 {
        self.0.saturating_sub(earlier.0)
    }

    /// This instant moved by `ms` milliseconds.
    #[must_use]
    pub fn plus_ms(self, ms: i64) -> TimeMs {
        TimeMs(self.0.saturating_add(ms))
    }
}

/// A wait of at least one millisecond: a refusal cannot say "retry now".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaitMs(NonZeroU64);

impl WaitMs {
    /// The shortest wait.
    pub const MIN: WaitMs = WaitMs(NonZeroU64::MIN);

    /// `ms` milliseconds, at least one.
    #[must_use]
    pub fn at_least_one(ms: u64) -> WaitMs {
        WaitMs(NonZeroU64::new(ms).unwrap_or(NonZeroU64::MIN))
    }

    /// The number of milliseconds.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0.get()
    }

    /// As a standard duration.
    #[must_use]
    pub fn as_duration(self) -> Duration {
        Duration::from_millis(self.get())
    }
}

/// How long until a request could pass. A longer wait is greater, and `Never` is the greatest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Wait {
    /// The request passes now.
    None,
    /// The request passes after this wait, if no other caller takes from the bucket.
    After(WaitMs),
    /// The request can never pass: it is larger than the capacity.
    Never,
}

impl Wait {
    /// The wait in milliseconds; `None` both for "now" and for "never".
    #[must_use]
    pub fn ms(self) -> Option<u64> {
        match self {
            Wait::After(wait) => Some(wait.get()),
            Wait::None | Wait::Never => None,
        }
    }

    /// The wait as a duration; `None` both for "now" and for "never".
    #[must_use]
    pub fn duration(self) -> Option<Duration> {
        self.ms().map(Duration::from_millis)
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wait::None => f.write_str("now"),
            Wait::After(wait) => {
                let ms = wait.get();
                // Rounded up to a tenth of a second: waiting what is printed is always enough.
                let tenths = ms.div_ceil(100);
                write!(f, "{}.{}s", tenths.div_euclid(10), tenths.rem_euclid(10))
            }
            Wait::Never => f.write_str("never"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_stay_at_their_bounds() {
        assert_eq!(Milli(1_500).saturating_add(Milli(500)), Milli(2_000));
        assert_eq!(Milli(i64::MAX).saturating_add(Milli(1)), Milli(i64::MAX));
        assert_eq!(Milli(1_500).saturating_sub(Milli(2_000)), Milli(-500));
        assert_eq!(Milli(i64::MIN).saturating_sub(Milli(1)), Milli(i64::MIN));
    }

    #[test]
    fn a_wait_is_a_duration() {
        let wait = WaitMs::at_least_one(1_500);
        assert_eq!(wait.as_duration(), Duration::from_millis(1_500));
        assert_eq!(Wait::After(wait).duration(), Some(Duration::from_millis(1_500)));
        assert_eq!((Wait::None.duration(), Wait::Never.duration()), (None, None));
    }

    #[test]
    fn tokens_round_towards_minus_infinity() {
        for (milli, tokens) in [
            (0, 0),
            (999, 0),
            (1000, 1),
            (-1, -1),
            (-1000, -1),
            (-1001, -2),
            (i64::MIN, -9_223_372_036_854_776),
        ] {
            assert_eq!(Milli(milli).floor_tokens(), tokens, "{milli}");
        }
    }

    #[test]
    fn amounts_are_printed_exactly() {
        for (milli, text) in [
            (0, "0"),
            (1, "0.001"),
            (1_500, "1.500"),
            (2_000, "2"),
            (-1, "-0.001"),
            (-1_020, "-1.020"),
            (i64::MIN, "-9223372036854775.808"),
        ] {
            assert_eq!(Milli(milli).to_string(), text);
        }
    }

    #[test]
    fn amounts_saturate() {
        assert_eq!(Milli::from_tokens(u64::MAX), Milli(i64::MAX));
        assert_eq!(Milli(i64::MIN).saturating_sub(Milli(1)), Milli(i64::MIN));
        assert_eq!(Milli(i64::MIN).negated(), Milli(i64::MAX));
    }

    #[test]
    fn waits_are_ordered_and_printed_rounded_up() {
        assert!(Wait::None < Wait::After(WaitMs::MIN));
        assert!(Wait::After(WaitMs::at_least_one(u64::MAX)) < Wait::Never);
        assert_eq!(WaitMs::at_least_one(0).get(), 1);
        assert_eq!(Wait::After(WaitMs::at_least_one(1001)).to_string(), "1.1s");
        assert_eq!(Wait::After(WaitMs::MIN).to_string(), "0.1s");
        assert_eq!(Wait::Never.to_string(), "never");
    }
}
