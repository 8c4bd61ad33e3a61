//! How values look in a row.
//!
//! The limits of a bucket are one BLOB, because they are read and written together on every take:
//!
//! ```text
//! version 1 · number of limits · limits, or
//! version 2 · lead of a clock in ms, twice, and 1 if it set the refill instant · number of limits
//!   · limits, or
//! version 3 · lead as in version 2 · end of the last loan* · slot* · number of loans
//!   · loans: length of name · name · lent in the slot · in the slot before
//!   · number of limits · limits
//! a limit: length of name · name · capacity · refill · period · balance* · remainder · consumed*
//!   · used in the open hour* · gap
//! ```
//! Numbers are LEB128 (seven bits per byte, low bits first), those marked * zigzag-signed: two
//! usual limits take about 50 bytes. Everything else that has parts is text: limits as on the
//! command line, pairs as netstrings (`4:tier4:gold`).

use std::fmt::{Display, Write as _};
use std::str::FromStr;

use rusqlite::Row;
use rusqlite::types::ValueRef;
use smallvec::SmallVec;
use zae_limiter_core::{
    BucketState, ConfigStamp, Lent, Limit, LimitName, LimitParams, LimitState, Milli, TOKENS_MAX,
    TimeMs,
};

use crate::error::{Outcome, corrupt_value};

const BLOB_VERSION: u8 = 1;
/// The version of a bucket that remembers the lead of a clock; few buckets do.
const BLOB_VERSION_LEAD: u8 = 2;
/// The version of a bucket that has lent: only while a loan lasts, and only with local blocks.
const BLOB_VERSION_LENT: u8 = 3;

/// Milli of the largest capacity.
const CAPACITY_MILLI_MAX: u64 = TOKENS_MAX * 1_000;

/// Why stored bytes are not what [`pack_limits`], [`pairs_to_text`] or [`limits_to_text`] make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    #[error("unknown version {0}")]
    Version(u8),
    #[error("it ends too early")]
    Short,
    #[error("bytes follow its end")]
    Long,
    #[error("a number has too many bits")]
    Number,
    #[error("a name is not valid")]
    Name,
    #[error("a number is outside its bounds")]
    Bounds,
    #[error("a limit cannot be read")]
    Limit,
    #[error("a pair cannot be read")]
    Pair,
}

/// The limits of a bucket as bytes, appended to `out`.
pub(crate) fn pack_limits(bucket: &BucketState, out: &mut Vec<u8>) {
    let lead = (bucket.lead_ms().cast_unsigned() << 1) | u64::from(bucket.is_led());
    if let Some(lent) = bucket.loans() {
        out.push(BLOB_VERSION_LENT);
        put(out, lead);
        put(out, zigzag(lent.until.0));
        put(out, zigzag(lent.slot));
        put(out, lent.sums.len() as u64);
        for (name, sums) in &lent.sums {
            put_name(out, name);
            sums.iter().for_each(|sum| put(out, sum.0.max(0).cast_unsigned()));
        }
    } else if bucket.lead_ms() > 0 {
        out.push(BLOB_VERSION_LEAD);
        put(out, lead);
    } else {
        out.push(BLOB_VERSION);
    }
    put(out, bucket.all_limits().len() as u64);
    for limit in bucket.all_limits() {
        put_name(out, &limit.name);
        put(out, limit.params.capacity_milli.cast_unsigned());
        put(out, limit.params.refill_milli.cast_unsigned());
        put(out, limit.params.period_ms.cast_unsigned());
        put(out, zigzag(limit.balance.0));
        put(out, limit.remainder.cast_unsigned());
        put(out, zigzag(limit.consumed.0));
        // The difference is nearly always smaller than the number; wrapping keeps the round trip
        // exact.
        put(out, zigzag(limit.consumed.0.wrapping_sub(limit.hour_base.0)));
        put(out, bucket.gap(&limit.name).0.max(0).cast_unsigned());
    }
}

fn put_name(out: &mut Vec<u8>, name: &LimitName) {
    let name = name.as_str().as_bytes();
    put(out, name.len() as u64);
    out.extend_from_slice(name);
}

/// What [`pack_limits`] packs.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Unpacked {
    pub(crate) limits: SmallVec<[LimitState; 2]>,
    /// What lowered limits hide; nearly always nothing.
    gaps: Vec<(LimitName, Milli)>,
    /// See [`BucketState::lead_ms`].
    lead_ms: i64,
    /// See [`BucketState::is_led`].
    is_led: bool,
    /// See [`BucketState::loans`].
    lent: Option<Lent>,
}

impl Unpacked {
    /// The bucket these limits belong to, the first `active` of them in force.
    pub(crate) fn into_bucket(
        self,
        active: usize,
        refilled_at: TimeMs,
        stamp: ConfigStamp,
    ) -> BucketState {
        let mut bucket = BucketState::restore(self.limits, active, refilled_at, stamp);
        for (limit, gap) in self.gaps {
            bucket.restore_gap(&limit, gap);
        }
        bucket.restore_lead(self.lead_ms, self.is_led);
        bucket.restore_loans(self.lent);
        bucket
    }
}

/// The reverse of [`pack_limits`]. Names that are also in `known`, at the same place, are shared
/// with it instead of being checked and allocated anew.
pub(crate) fn unpack_limits(bytes: &[u8], known: &[Limit]) -> Result<Unpacked, Malformed> {
    let mut reader = Reader(bytes);
    let (lead, lent) = match reader.byte()? {
        BLOB_VERSION => (0, None),
        BLOB_VERSION_LEAD => (reader.number()?, None),
        BLOB_VERSION_LENT => (reader.number()?, Some(reader.lent()?)),
        other => return Err(Malformed::Version(other)),
    };
    let (lead_ms, is_led) = ((lead >> 1).cast_signed(), lead & 1 == 1);
    let count = reader.number()?;
    let mut unpacked = Unpacked { lead_ms, is_led, lent, ..Unpacked::default() };
    for index in 0..count {
        let known = usize::try_from(index).ok().and_then(|index| known.get(index));
        let limit = reader.limit(known)?;
        let gap = reader.bounded(0, i64::MAX.cast_unsigned())?;
        if gap > 0 {
            unpacked.gaps.push((limit.name.clone(), Milli(gap)));
        }
        unpacked.limits.push(limit);
    }
    if reader.0.is_empty() { Ok(unpacked) } else { Err(Malformed::Long) }
}

/// A name, or anything else that is stored as its text.
pub(crate) fn name_at<N: FromStr<Err: Display>>(row: &Row<'_>, column: usize) -> Outcome<N> {
    let text =
        row.get_ref(column)?.as_str().map_err(|error| corrupt_value(column, "text", error))?;
    Ok(text.parse().map_err(|error| corrupt_value(column, "name", error))?)
}

/// As [`name_at`], for a column that may be empty.
pub(crate) fn optional_name_at<N: FromStr<Err: Display>>(
    row: &Row<'_>,
    column: usize,
) -> Outcome<Option<N>> {
    if row.get_ref(column)? == ValueRef::Null { Ok(None) } else { name_at(row, column).map(Some) }
}

/// Limits as one text: `rpm:60/min,tpm:10000/min:15000`. Empty for none.
pub(crate) fn limits_to_text(limits: &[Limit]) -> String {
    let mut text = String::new();
    for limit in limits {
        let separator = if text.is_empty() { "" } else { "," };
        // Writing to a string cannot fail.
        let _ = write!(text, "{separator}{limit}");
    }
    text
}

/// The reverse of [`limits_to_text`].
pub(crate) fn limits_from_text(text: &str) -> Result<Vec<Limit>, Malformed> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    text.split(',').map(|limit| limit.parse().map_err(|_| Malformed::Limit)).collect()
}

/// Pairs of any text as one text, each part as a netstring: `4:tier4:gold`.
pub(crate) fn pairs_to_text<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let mut text = String::new();
    for part in pairs.flat_map(|(key, value)| [key, value]) {
        let _ = write!(text, "{}:{part}", part.len());
    }
    text
}

/// The reverse of [`pairs_to_text`].
pub(crate) fn pairs_from_text(mut text: &str) -> Result<Vec<(String, String)>, Malformed> {
    let mut pairs = Vec::new();
    while !text.is_empty() {
        let key = netstring(&mut text)?;
        let value = netstring(&mut text)?;
        pairs.push((key.to_owned(), value.to_owned()));
    }
    Ok(pairs)
}

fn netstring<'a>(text: &mut &'a str) -> Result<&'a str, Malformed> {
    let (length, rest) = text.split_once(':').ok_or(Malformed::Pair)?;
    if length.is_empty() || !length.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Malformed::Pair);
    }
    let length: usize = length.parse().map_err(|_| Malformed::Pair)?;
    let (part, rest) = rest.split_at_checked(length).ok_or(Malformed::Pair)?;
    *text = rest;
    Ok(part)
}

fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.push((number & 0x7f) as u8);
}

fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)).cast_unsigned()
}

fn unzigzag(number: u64) -> i64 {
    (number >> 1).cast_signed() ^ (number & 1).cast_signed().wrapping_neg()
}

/// The bytes that are still to be read.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn byte(&mut self) -> Result<u8, Malformed> {
        let (&first, rest) = self.0.split_first().ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(first)
    }

    fn number(&mut self) -> Result<u64, Malformed> {
        let mut number = 0_u64;
        for shift in (0..70).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(Malformed::Number);
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(Malformed::Number)
    }

    fn bounded(&mut self, min: u64, max: u64) -> Result<i64, Malformed> {
        let number = self.number()?;
        let bounded = (min..=max).contains(&number).then_some(number);
        bounded.and_then(|number| i64::try_from(number).ok()).ok_or(Malformed::Bounds)
    }

    fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let length = usize::try_from(self.number()?).map_err(|_| Malformed::Short)?;
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn lent(&mut self) -> Result<Lent, Malformed> {
        let until = TimeMs(unzigzag(self.number()?));
        let slot = unzigzag(self.number()?);
        let mut sums = Vec::new();
        for _ in 0..self.number()? {
            let name = std::str::from_utf8(self.bytes()?).ok().and_then(|name| name.parse().ok());
            let mut sum = || self.bounded(0, CAPACITY_MILLI_MAX).map(Milli);
            sums.push((name.ok_or(Malformed::Name)?, [sum()?, sum()?]));
        }
        Ok(Lent { until, slot, sums })
    }

    fn limit(&mut self, known: Option<&Limit>) -> Result<LimitState, Malformed> {
        let name = self.bytes()?;
        let name = match known {
            Some(limit) if limit.name().as_str().as_bytes() == name => limit.name().clone(),
            _ => std::str::from_utf8(name)
                .ok()
                .and_then(|name| name.parse().ok())
                .ok_or(Malformed::Name)?,
        };
        let capacity_milli = self.bounded(1, CAPACITY_MILLI_MAX)?;
        let refill_milli = self.bounded(1, CAPACITY_MILLI_MAX)?;
        let period_ms = self.bounded(1, CAPACITY_MILLI_MAX)?;
        let balance = unzigzag(self.number()?);
        if balance > capacity_milli {
            return Err(Malformed::Bounds);
        }
        let remainder = self.bounded(0, period_ms.cast_unsigned() - 1)?;
        let consumed = unzigzag(self.number()?);
        let hour_base = consumed.wrapping_sub(unzigzag(self.number()?));
        let params = LimitParams { capacity_milli, refill_milli, period_ms };
        Ok(LimitState {
            name,
            params,
            balance: Milli(balance),
            remainder,
            consumed: Milli(consumed),
            hour_base: Milli(hour_base),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zae_limiter_core::{Decision, Member, Take, decide};

    use super::*;

    fn any_state() -> impl Strategy<Value = LimitState> {
        let max = CAPACITY_MILLI_MAX.cast_signed();
        let amount = || prop_oneof![1..=max, 1..=100_000_i64, Just(max)];
        (
            "[a-zA-Z][a-zA-Z0-9_.-]{0,63}",
            amount(),
            amount(),
            amount(),
            any::<i64>(),
            any::<i64>(),
            any::<i64>(),
            any::<i64>(),
        )
            .prop_filter_map(
                "a reserved name",
                |(name, capacity_milli, refill_milli, period_ms, balance, left, consumed, base)| {
                    Some(LimitState {
                        name: name.parse().ok()?,
                        params: LimitParams { capacity_milli, refill_milli, period_ms },
                        balance: Milli(balance.min(capacity_milli)),
                        remainder: left.rem_euclid(period_ms),
                        consumed: Milli(consumed),
                        hour_base: Milli(base),
                    })
                },
            )
    }

    /// Loans, or none.
    fn any_loans() -> impl Strategy<Value = Option<(i64, i64, Vec<[Milli; 2]>)>> {
        let sum = || (0..=CAPACITY_MILLI_MAX.cast_signed()).prop_map(Milli);
        let sums = prop::collection::vec([sum(), sum()], 0..3);
        prop::option::of((any::<i64>(), any::<i64>(), sums))
    }

    /// Buckets as they can be: each name once, and a gap here and there.
    fn any_bucket(limits: std::ops::Range<usize>) -> impl Strategy<Value = BucketState> {
        let gap = prop_oneof![3 => Just(0), 1 => 1..=i64::MAX];
        let lead_ms = prop_oneof![3 => Just(0), 1 => 1..=i64::MAX];
        let states = prop::collection::vec((any_state(), gap), limits);
        (states, lead_ms, any::<bool>(), any_loans()).prop_map(
            |(states, lead_ms, is_led, loans)| {
                let mut limits: SmallVec<[LimitState; 2]> = SmallVec::new();
                let mut gaps = Vec::new();
                for (state, gap) in states {
                    if limits.iter().all(|limit| limit.name != state.name) {
                        gaps.push((state.name.clone(), Milli(gap)));
                        limits.push(state);
                    }
                }
                let active = limits.len() / 2;
                let name = |place: usize| limits.get(place).map(|limit| limit.name.clone());
                let lent = loans.map(|(until, slot, sums)| {
                    let sums = sums.into_iter().enumerate();
                    let sums = sums.filter_map(|(place, sums)| Some((name(place)?, sums)));
                    Lent { until: TimeMs(until), slot, sums: sums.collect() }
                });
                Unpacked { limits, gaps, lead_ms, is_led, lent }.into_bucket(
                    active,
                    TimeMs(7),
                    ConfigStamp(3),
                )
            },
        )
    }

    fn packed(bucket: &BucketState) -> Vec<u8> {
        let mut out = Vec::new();
        pack_limits(bucket, &mut out);
        out
    }

    fn bucket_of(limit: LimitState) -> BucketState {
        BucketState::restore(SmallVec::from_iter([limit]), 1, TimeMs(0), ConfigStamp(1))
    }

    proptest! {
        #[test]
        fn packed_limits_come_back_whole(bucket in any_bucket(0..20)) {
            let bytes = packed(&bucket);
            let again = unpack_limits(&bytes, &[]).expect("readable");
            prop_assert_eq!(again.into_bucket(bucket.active(), bucket.refilled_at, bucket.stamp), bucket);
            for end in 0..bytes.len() {
                prop_assert!(unpack_limits(&bytes[..end], &[]).is_err());
            }
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = unpack_limits(&bytes, &[]);
        }

        #[test]
        fn a_damaged_byte_never_panics(bucket in any_bucket(1..3), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let mut bytes = packed(&bucket);
            let at = at.index(bytes.len());
            bytes[at] = byte;
            if let Ok(unpacked) = unpack_limits(&bytes, &[]) {
                for limit in &unpacked.limits {
                    prop_assert!(limit.balance.0 <= limit.params.capacity_milli);
                    prop_assert!((0..limit.params.period_ms).contains(&limit.remainder));
                }
            }
        }

        #[test]
        fn pairs_come_back_whole(pairs in prop::collection::vec((".{0,12}", ".{0,12}"), 0..6)) {
            let text = pairs_to_text(pairs.iter().map(|(key, value)| (key.as_str(), value.as_str())));
            prop_assert_eq!(pairs_from_text(&text), Ok(pairs));
        }

        #[test]
        fn any_text_is_pairs_or_refused(text in "[0-9:aé]{0,16}") {
            if let Ok(pairs) = pairs_from_text(&text) {
                let again = pairs_to_text(pairs.iter().map(|(key, value)| (key.as_str(), value.as_str())));
                prop_assert_eq!(pairs_from_text(&again), Ok(pairs));
            }
        }
    }

    #[test]
    fn two_usual_limits_are_small() {
        let limits: Vec<Limit> =
            ["rpm:60/min", "tpm:10000/min:15000"].map(|text| text.parse().expect("a limit")).into();
        let bucket = BucketState::full(&limits, ConfigStamp(1), TimeMs(0));
        let bytes = packed(&bucket);
        assert!(bytes.len() <= 50, "{}", bytes.len());
        assert_eq!(
            unpack_limits(&bytes, &limits).expect("readable").limits.as_slice(),
            bucket.all_limits()
        );
    }

    #[test]
    fn what_can_not_be_right_says_why() {
        let limit: Limit = "rpm:60/min".parse().expect("a limit");
        let good = packed(&BucketState::full(&[limit], ConfigStamp(1), TimeMs(0)));
        // version, count, length, "rpm", three bytes each of capacity, refill, period and balance,
        // then one byte each.
        assert_eq!(good.len(), 6 + 4 * 3 + 4);
        let check = |at: usize, bytes: &[u8], expected: Malformed| {
            let mut damaged = good.clone();
            damaged[at..at + bytes.len()].copy_from_slice(bytes);
            assert_eq!(unpack_limits(&damaged, &[]), Err(expected), "byte {at}");
        };
        check(0, &[9], Malformed::Version(9));
        check(1, &[2], Malformed::Short);
        check(1, &[0], Malformed::Long);
        check(3, b"?", Malformed::Name);
        check(12, &[0x80, 0x80, 0x00], Malformed::Bounds); // a period of nothing
        check(15, &[0x82, 0xD3, 0x07], Malformed::Bounds); // a balance above the capacity
        let restored = unpack_limits(&good, &[]).expect("readable").limits.remove(0);
        assert_eq!(bucket_of(restored).all_limits()[0].balance, Milli(60_000));
        let beyond = LimitParams { capacity_milli: 60_000, refill_milli: 60_000, period_ms: 5 };
        let state = LimitState {
            params: beyond,
            balance: Milli(0),
            remainder: 4,
            ..LimitState::full("rpm".parse().expect("a name"), beyond)
        };
        let mut bytes = packed(&bucket_of(state));
        let at = bytes.len() - 4;
        assert_eq!(bytes[at], 4, "the remainder");
        bytes[at] = 5;
        assert_eq!(unpack_limits(&bytes, &[]), Err(Malformed::Bounds));
        assert_eq!(
            unpack_limits(&[1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02], &[]),
            Err(Malformed::Number)
        );
    }

    #[test]
    fn limits_are_kept_as_they_are_typed() {
        let limits: Vec<Limit> = ["rpm:60/min", "tpm:10000/hour:15000", "x:5/30sec"]
            .map(|text| text.parse().expect("a limit"))
            .into();
        let text = limits_to_text(&limits);
        assert_eq!(text, "rpm:60/min,tpm:10000/hour:15000,x:5/30sec");
        assert_eq!(limits_from_text(&text), Ok(limits));
        assert_eq!(limits_from_text(""), Ok(Vec::new()));
        assert_eq!(limits_from_text("rpm:60/min,"), Err(Malformed::Limit));
    }

    #[test]
    fn what_a_lowered_limit_hides_survives_a_row() {
        let limits: Vec<Limit> = vec!["rpd:100/day".parse().expect("limit")];
        let lowered: Vec<Limit> = vec!["rpd:1/sec:1".parse().expect("limit")];
        let mut bucket = BucketState::full(&limits, ConfigStamp(1), TimeMs(0));
        let takes = [Take { limit: 0, amount: Milli(100_000) }];
        let taken = decide(&mut [Member { bucket: &mut bucket, takes: &takes }], TimeMs(0));
        assert!(matches!(taken, Decision::Granted { .. }));
        bucket.sync(&lowered, ConfigStamp(2), TimeMs(0)).expect("lowered");
        let restored = unpack_limits(&packed(&bucket), &lowered).expect("readable");
        let restored = restored.into_bucket(bucket.active(), bucket.refilled_at, bucket.stamp);
        assert_eq!(restored.gap(&"rpd".parse().expect("name")), Milli(99_000));
    }
}
