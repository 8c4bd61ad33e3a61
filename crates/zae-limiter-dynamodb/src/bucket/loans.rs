//! What a bucket has lent to local blocks, as one attribute of its item.
//!
//! The text is written and pinned as a whole: `until;slot;name=a,b;…` is a [`Lent`] with its sums
//! per limit. Whoever lends, takes a loan back or gives back to the bucket has read it, and loses
//! against whoever has changed it since.

use std::fmt::Write as _;

use aws_sdk_dynamodb::types::AttributeValue;
use smol_str::SmolStr;
use zae_limiter_core::{Lent, LimitName, Milli, TimeMs};
use zae_limiter_store::StoreError;

use crate::bucket::image::{Image, ImageLimit};
use crate::records::attr;
use crate::records::item::{corrupt, shown};
use crate::table::Item;

/// The loans of a bucket, as they were read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Loans {
    /// To the letter.
    pub(crate) text: SmolStr,
    pub(crate) lent: Lent,
}

impl Loans {
    pub(crate) fn parse(item: &Item, value: &AttributeValue) -> Result<Loans, StoreError> {
        let text = value.as_s().ok().map(SmolStr::new);
        let parsed = text.and_then(|text| Some((lent_of(&text)?, text)));
        let (lent, text) = parsed.ok_or_else(|| {
            corrupt(item, attr::LENT, format!("is {}, which counts no loans", shown(value)))
        })?;
        Ok(Loans { text, lent })
    }

    /// Whether nobody spends or brings back any of them at `now`.
    pub(crate) fn have_ended(&self, now: TimeMs) -> bool {
        self.lent.until <= now
    }
}

fn lent_of(text: &str) -> Option<Lent> {
    let mut parts = text.split(';');
    let until = TimeMs(parts.next()?.parse().ok()?);
    let slot = parts.next()?.parse().ok()?;
    let sum = |part: &str| {
        let (name, sums) = part.split_once('=')?;
        let (newer, older) = sums.split_once(',')?;
        let sums = [Milli(newer.parse().ok()?), Milli(older.parse().ok()?)];
        Some((name.parse::<LimitName>().ok()?, sums))
    };
    let sums = parts.map(sum).collect::<Option<Vec<_>>>()?;
    Some(Lent { until, slot, sums })
}

/// The text of the attribute.
pub(crate) fn text_of(lent: &Lent) -> SmolStr {
    let mut text = format!("{};{}", lent.until.0, lent.slot);
    for (name, [newer, older]) in &lent.sums {
        // Writing to a string does not fail.
        let _ = write!(text, ";{name}={},{}", newer.0, older.0);
    }
    text.into()
}

/// How far a credit may lift the balance of a limit, as it is stored, at `now`; `None` where
/// nothing is lent, and full is full.
///
/// Example: a bucket of 100 has lent 20 for two more seconds in which it regains 2. A refund stops
/// at 78: filled to 100, the bucket and the block would grant 120.
pub(crate) fn ceiling(image: &Image, limit: &ImageLimit, now: TimeMs) -> Option<Milli> {
    let loans = image.loans.as_deref().filter(|loans| !loans.have_ended(now))?;
    let mut state = image.view();
    state.restore_loans(Some(loans.lent.clone()));
    let lent = state.lent(&limit.name);
    if lent <= Milli::ZERO {
        return None;
    }
    let lasts_ms = loans.lent.until.since(image.refilled_at).max(0);
    let refill = Milli(limit.effective.accrual_at_most(lasts_ms));
    Some(limit.effective.full().saturating_sub(lent).saturating_sub(refill))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loans_are_read_as_they_were_written() {
        let name = |name: &str| name.parse::<LimitName>().expect("a name");
        let sums = |newer, older| [Milli(newer), Milli(older)];
        let cases = [
            Vec::new(),
            vec![(name("rpm"), sums(128_000, 0))],
            vec![(name("a.b-c_d"), sums(1, i64::MAX)), (name("tpm"), sums(0, 7))],
        ];
        for sums in cases {
            let lent = Lent { until: TimeMs(1_767_261_602_500), slot: 706_904_641, sums };
            assert_eq!(lent_of(&text_of(&lent)), Some(lent));
        }
        for text in ["", "1", "1;x", "1;2;rpm", "1;2;rpm=1", "1;2;rpm=1,x", "1;2;=1,2", "a;2"] {
            assert_eq!(lent_of(text), None, "{text:?}");
        }
    }
}
