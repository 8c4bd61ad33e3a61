//! Which write gives back to a bucket, given what is known of it. Pure. Never above capacity, never
//! twice.

use smallvec::SmallVec;
use zae_limiter_core::{LimitName, LimitParams, Milli, TimeMs};

use crate::bucket::debit::View;
use crate::bucket::image::ImageLimit;
use crate::bucket::loans::ceiling;
use crate::bucket::refill::Amount;
use crate::bucket::write::{
    BucketWrite, Change, Cost, ExpiryPin, Fits, FlagPin, ItemChange, Line, LineForm, LoansPin, Pin,
    Pins, Purpose, RefilledAt, To,
};
use crate::constants::WCU_PER_WRITE_MILLI;
use crate::table::Key;

/// What to do next.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// Send this; when it lands the amounts are back.
    Credit(BucketWrite),
    /// The bucket, or every limit named, is gone: it was full when it was forgotten.
    Drop,
}

/// A take that a credit undoes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Undo {
    /// See [`ItemChange::undoes`].
    pub(crate) mark: i64,
    /// Whether the take was counted on this item: one of several shards counts it.
    pub(crate) is_counted: bool,
}

/// What is given back to one bucket; amounts are positive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Credit<'a> {
    pub(crate) key: &'a Key,
    pub(crate) amounts: &'a [Amount<'a>],
    /// What the write counts of the hidden limit.
    pub(crate) cost: Cost,
    /// The mark of a credit that undoes a take ([`ItemChange::undoes`]), and whether the take was
    /// counted here; `None` for a refund of what was granted.
    pub(crate) undoes: Option<Undo>,
    /// By which the end of loans is judged.
    pub(crate) now: TimeMs,
}

impl Credit<'_> {
    /// The next write. A failed condition proves that the one before was not applied.
    pub(crate) fn plan(&self, view: View<'_>) -> Step {
        let (image, is_recent) = match view {
            View::Absent => return Step::Drop,
            View::Unknown => (None, false),
            View::Known(known) => (Some(known.image), known.is_trusted),
        };
        let line = |amount: &Amount<'_>| {
            let name = amount.limit.name();
            match image.and_then(|image| image.limit(name)) {
                Some(found) => {
                    let lent = image.and_then(|image| ceiling(image, found, self.now));
                    Some(give_back(found, amount.milli, lent))
                }
                // A limit that the item lacks must be left out, or ADD would make half a limit. But
                // an older image may lack a limit that is there by now: the condition then decides.
                None if is_recent => None,
                None => {
                    let params = amount.limit.params();
                    Some(credited(name, params, (params.full(), amount.milli, Fits::All)))
                }
            }
        };
        let lines: SmallVec<[Line; 2]> = self.amounts.iter().filter_map(line).collect();
        let is_event = self.undoes.is_some_and(|undo| undo.is_counted);
        if lines.is_empty() && !(self.amounts.is_empty() && is_event) {
            return Step::Drop;
        }
        let pins = Pins {
            refilled_at: RefilledAt::Any,
            shard_count: Some(image.map_or(1, |image| image.standing.count)),
            era: image.map_or(Pin::Any, |image| image.standing.era_pin()),
            flag: FlagPin::Any,
            mark: Pin::Any,
            config_read_at: Pin::Any,
            expiry: ExpiryPin::Any,
            has_room: false,
            loans: LoansPin::seen(image),
            must_be_absent: SmallVec::new(),
        };
        let mut item = ItemChange::spending(self.cost);
        if image.and_then(|image| image.loans.as_ref()).is_some_and(|it| it.have_ended(self.now)) {
            // A return that was sent while they lasted must not land after this credit.
            item.loans = To::Remove;
        }
        if let Some(Undo { mark, is_counted }) = self.undoes {
            // A take that was undone is no event, and was no use of the hour in which it is undone.
            item.takes_milli = if is_counted { -WCU_PER_WRITE_MILLI } else { 0 };
            item.undoes = Some(mark);
        }
        let change = Change { nonce: None, pins, lines, item };
        Step::Credit(BucketWrite::change(self.key.clone(), Purpose::GiveBack, change))
    }
}

/// `lent` is the ceiling of a limit that has lent.
fn give_back(found: &ImageLimit, amount: Milli, lent: Option<Milli>) -> Line {
    let ceiling = lent.unwrap_or_else(|| found.effective.full());
    let fits = match lent {
        _ if found.balance <= ceiling.saturating_sub(amount) => Fits::All,
        None => Fits::Part,
        Some(ceiling) if found.balance <= ceiling => Fits::PartBesideLoans,
        Some(_) => Fits::Nothing,
    };
    credited(&found.name, found.stored, (ceiling, amount, fits))
}

fn credited(
    name: &LimitName,
    stored: LimitParams,
    (ceiling, amount, fits): (Milli, Milli, Fits),
) -> Line {
    let form = LineForm::GiveBack { stored_capacity: stored.full(), ceiling, amount, fits };
    Line { name: name.clone(), form }
}

#[cfg(test)]
mod tests {
    use zae_limiter_core::Limit;

    use super::*;
    use crate::bucket::debit::Known;
    use crate::bucket::image::Image;
    use crate::table::{Item, number};

    /// Found by the simulator: an image of before the limit was added made a credit vanish,
    /// uncounted.
    #[test]
    fn a_limit_that_an_older_image_lacks_is_given_back_to() {
        let (key, limit) = (
            crate::records::keys::bucket_of("ns", "key", "gpt-4", 0),
            Limit::per_minute("tpm", 10).expect("a limit"),
        );
        let item: Item = [
            ("rf", 1),
            ("shard_count", 1),
            ("b_rpm_tk", 5),
            ("b_rpm_cp", 5),
            ("b_rpm_ra", 5),
            ("b_rpm_rp", 5),
        ]
        .map(|(name, value)| (name.to_owned(), number(value)))
        .into();
        let image = Image::parse(&item).expect("a bucket");
        let credit = Credit {
            key: &key,
            amounts: &[Amount { limit: &limit, milli: Milli(7_000) }],
            cost: Cost::ONE,
            undoes: None,
            now: TimeMs(1),
        };
        let view = |is_trusted| {
            View::Known(Known {
                image: &image,
                is_trusted,
                may_sync: false,
                is_crowded: false,
                is_outdated: false,
                judged_at: TimeMs(0),
            })
        };
        let plan = |is_recent| credit.plan(view(is_recent));
        assert!(matches!(plan(false), Step::Credit(_)), "the condition decides");
        assert_eq!(plan(true), Step::Drop, "it has just been seen to be gone");
    }
}
