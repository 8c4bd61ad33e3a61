//! Numbers as DynamoDB has them: decimal, 38 significant digits, compared and added exactly.

use std::cmp::Ordering;
use std::fmt::{self, Write as _};

/// Significant digits a number may have.
const DIGITS_MAX: u32 = 38;

/// Where the first digit of the largest number stands: 9.99E+125.
const MAGNITUDE_MAX: i32 = 126;

/// Where the first digit of the smallest number stands: 1E-130.
const MAGNITUDE_MIN: i32 = -129;

/// `mantissa * 10^exponent`. The mantissa does not end in zero, so equal numbers are equal values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Number {
    mantissa: i128,
    exponent: i32,
}

impl Number {
    pub(super) fn parse(text: &str) -> Result<Number, String> {
        // The usual case, made cheap.
        if let Ok(whole) = text.parse::<i64>() {
            return Number::new(i128::from(whole), 0);
        }
        let wrong = || format!("{text:?} is not a number");
        let (negative, rest) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let (digits, exponent) = match rest.split_once(['e', 'E']) {
            Some((digits, exponent)) => (digits, exponent.parse::<i32>().map_err(|_| wrong())?),
            None => (rest, 0),
        };
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        if whole.len() + fraction.len() == 0
            || !whole.bytes().chain(fraction.bytes()).all(|byte| byte.is_ascii_digit())
        {
            return Err(wrong());
        }
        let all = format!("{whole}{fraction}");
        let trimmed = all.trim_start_matches('0').trim_end_matches('0');
        let zeros = all.len() - all.trim_end_matches('0').len();
        if trimmed.is_empty() {
            return Ok(Number { mantissa: 0, exponent: 0 });
        }
        if trimmed.len() > DIGITS_MAX as usize {
            return Err(format!("a number has more than {DIGITS_MAX} significant digits"));
        }
        let mantissa: i128 = trimmed.parse().map_err(|_| wrong())?;
        let shift = |length: usize| i32::try_from(length).map_err(|_| wrong());
        let exponent =
            exponent.saturating_sub(shift(fraction.len())?).saturating_add(shift(zeros)?);
        Number::new(if negative { -mantissa } else { mantissa }, exponent)
    }

    fn new(mut mantissa: i128, mut exponent: i32) -> Result<Number, String> {
        if mantissa == 0 {
            return Ok(Number { mantissa: 0, exponent: 0 });
        }
        while mantissa % 10 == 0 {
            mantissa /= 10;
            exponent = exponent.saturating_add(1);
        }
        let number = Number { mantissa, exponent };
        if number.digits() > DIGITS_MAX {
            return Err(format!("a number would have more than {DIGITS_MAX} significant digits"));
        }
        if !(MAGNITUDE_MIN..=MAGNITUDE_MAX).contains(&number.magnitude()) {
            return Err("a number is outside the range DynamoDB keeps".to_owned());
        }
        Ok(number)
    }

    pub(super) fn add(self, other: Number) -> Result<Number, String> {
        let too_long = || format!("a sum would have more than {DIGITS_MAX} significant digits");
        let exponent = match (self.mantissa, other.mantissa) {
            (0, _) => return Ok(other),
            (_, 0) => return Ok(self),
            _ => self.exponent.min(other.exponent),
        };
        let aligned = |number: Number| {
            let shift = u32::try_from(number.exponent - exponent).ok()?;
            10_i128.checked_pow(shift)?.checked_mul(number.mantissa)
        };
        let sum = aligned(self)
            .zip(aligned(other))
            .and_then(|(a, b)| a.checked_add(b))
            .ok_or_else(too_long)?;
        Number::new(sum, exponent)
    }

    /// What it counts for in the size of an item: half a byte per significant digit on either side
    /// of the point, one more, and one for the sign.
    pub(super) fn size(self) -> usize {
        let digits = i32::try_from(self.digits()).unwrap_or(0);
        let whole = self.magnitude().clamp(0, digits);
        let fraction = digits - whole;
        let halves = usize::try_from((whole + 1) / 2 + (fraction + 1) / 2).unwrap_or(0);
        if self.mantissa == 0 { 1 } else { halves + 1 + usize::from(self.mantissa < 0) }
    }

    fn digits(self) -> u32 {
        self.mantissa.unsigned_abs().checked_ilog10().map_or(0, |log| log + 1)
    }

    /// How many digits stand before the point; negative when zeros follow it.
    fn magnitude(self) -> i32 {
        self.exponent.saturating_add(i32::try_from(self.digits()).unwrap_or(0))
    }
}

impl PartialOrd for Number {
    fn partial_cmp(&self, other: &Number) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Number {
    fn cmp(&self, other: &Number) -> Ordering {
        if self.exponent == other.exponent || self.mantissa.signum() != other.mantissa.signum() {
            return self.mantissa.cmp(&other.mantissa);
        }
        let by_size = self.magnitude().cmp(&other.magnitude()).then_with(|| {
            // As many digits before the point: the shorter one is padded to the length of the
            // longer, which is 38 at most.
            let digits = self.digits().max(other.digits());
            let padded = |number: &Number| {
                number.mantissa.unsigned_abs() * 10_u128.pow(digits - number.digits())
            };
            padded(self).cmp(&padded(other))
        });
        if self.mantissa < 0 { by_size.reverse() } else { by_size }
    }
}

/// Without exponent, as DynamoDB hands numbers out.
impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.mantissa < 0 {
            f.write_char('-')?;
        }
        let digits = self.mantissa.unsigned_abs().to_string();
        let zeros = |count: i32| "0".repeat(usize::try_from(count).unwrap_or(0));
        if self.exponent >= 0 {
            return write!(f, "{digits}{}", zeros(self.exponent));
        }
        match usize::try_from(self.magnitude()) {
            Ok(whole) if whole > 0 => write!(f, "{}.{}", &digits[..whole], &digits[whole..]),
            _ => write!(f, "0.{}{digits}", zeros(-self.magnitude())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(text: &str) -> Number {
        Number::parse(text).unwrap()
    }

    #[test]
    fn numbers_are_kept_in_one_form() {
        for (text, form) in [
            ("0", "0"),
            ("-0", "0"),
            ("+007", "7"),
            ("1.50", "1.5"),
            ("-0.0010", "-0.001"),
            ("1e3", "1000"),
            ("12.5E-1", "1.25"),
            ("1E125", &format!("1{}", "0".repeat(125))),
            ("99999999999999999999999999999999999999", "99999999999999999999999999999999999999"),
            ("-9223372036854775808", "-9223372036854775808"),
        ] {
            assert_eq!(number(text).to_string(), form, "{text}");
        }
        for wrong in [
            "",
            "-",
            ".",
            "1e",
            "e1",
            "1.2.3",
            "0x1",
            " 1",
            "NaN",
            "1E126",
            "1E-131",
            &"9".repeat(39),
        ] {
            assert!(Number::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn numbers_have_one_order() {
        let rising = [
            "-1E100", "-12", "-1.2", "-1.19", "-1E-130", "0", "1E-130", "0.5", "0.51", "9", "10",
            "10.5", "11", "1E125",
        ];
        for (at, low) in rising.iter().enumerate() {
            for (other, high) in rising.iter().enumerate() {
                assert_eq!(number(low).cmp(&number(high)), at.cmp(&other), "{low} and {high}");
            }
        }
    }

    #[test]
    fn sums_are_exact_or_refused() {
        let sum = |a: &str, b: &str| number(a).add(number(b)).map(|sum| sum.to_string());
        assert_eq!(sum("0.1", "0.2").as_deref(), Ok("0.3"));
        assert_eq!(
            sum("9223372036854775807", "9223372036854775807").as_deref(),
            Ok("18446744073709551614")
        );
        assert_eq!(sum("5", "-5").as_deref(), Ok("0"));
        assert_eq!(sum("0", "1E-130").unwrap(), number("1E-130").to_string());
        assert!(sum("1E100", "1").is_err());
        assert!(sum(&"9".repeat(38), "1").is_ok(), "a one and 38 zeros has one significant digit");
        assert!(sum(&"9".repeat(38), "2").is_err());
    }
}
