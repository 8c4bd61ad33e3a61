//! Which write gives back to a bucket, given what is known of it. Pure. Never above capacity, never
//! twice.

use zae_limiter_core::LimitName;

use crate::debit::View;
use crate::image::{attr, limit_attr};
use crate::refill::{Amount, heat};
use crate::table::{Action, Comparison, Condition, Key, Update, compare, number};
use crate::write::{BucketWrite, Writer};

/// What to do next.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// Send this; when it lands the amounts are back.
    Credit(BucketWrite),
    /// The bucket, or every limit named, is gone: it was full when it went.
    Drop,
}

/// What is given back to one bucket; amounts are positive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Credit<'a> {
    pub(crate) key: &'a Key,
    pub(crate) amounts: &'a [Amount<'a>],
    /// What the write counts in `wcu`.
    pub(crate) units_milli: i64,
}

impl Credit<'_> {
    /// The next write. A failed condition proves that the one before was not applied.
    pub(crate) fn plan(&self, view: View<'_>) -> Step {
        let mut update = Update {
            key: self.key.clone(),
            actions: Vec::new(),
            conditions: vec![Condition::Exists(attr::PK.into())],
        };
        let shard_count = match view {
            View::Absent => return Step::Drop,
            View::Unknown => {
                for amount in self.amounts {
                    add(
                        amount.limit.name(),
                        amount.limit.params().capacity_milli,
                        amount.milli,
                        false,
                        &mut update,
                    );
                }
                1
            }
            View::Known { image, is_recent, .. } => {
                for amount in self.amounts {
                    // A name the item lacks must be left out, or ADD would make half a limit. But
                    // an image of before may lack one that is there by now: the condition then
                    // tells.
                    match image.limit(amount.limit.name()) {
                        Some(found) => {
                            let capacity = found.params.capacity_milli;
                            let overflows = found.tk > capacity.saturating_sub(amount.milli);
                            add(&found.name, capacity, amount.milli, overflows, &mut update);
                        }
                        None if !is_recent => {
                            add(
                                amount.limit.name(),
                                amount.limit.params().capacity_milli,
                                amount.milli,
                                false,
                                &mut update,
                            );
                        }
                        None => {}
                    }
                }
                image.shard_count
            }
        };
        if update.actions.is_empty() {
            return Step::Drop;
        }
        update.conditions.push(compare(attr::SHARD_COUNT, Comparison::Eq, shard_count));
        update.actions.extend(heat(self.units_milli));
        Step::Credit(BucketWrite::update(Writer::Credit, update))
    }
}

fn add(name: &LimitName, capacity: i64, amount: i64, overflows: bool, update: &mut Update) {
    let tk = limit_attr(name, "tk");
    let room = capacity.saturating_sub(amount);
    update.conditions.push(compare(limit_attr(name, "cp"), Comparison::Eq, capacity));
    if overflows {
        update.conditions.push(compare(tk.clone(), Comparison::Gt, room));
        update.actions.push(Action::Set(tk, number(capacity)));
    } else {
        update.conditions.push(compare(tk.clone(), Comparison::Le, room));
        update.actions.push(Action::Add(tk, amount));
    }
    update.actions.push(Action::Add(limit_attr(name, "tc"), amount.saturating_neg()));
}

#[cfg(test)]
mod tests {
    use zae_limiter_core::Limit;

    use super::*;
    use crate::image::Image;
    use crate::table::Item;

    /// Found by the simulator: an image of before the limit was added made a credit vanish,
    /// uncounted.
    #[test]
    fn a_limit_that_an_older_image_lacks_is_given_back_to() {
        let (key, limit) = (
            crate::keys::bucket_of("ns", "key", "gpt-4", 0),
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
            amounts: &[Amount { limit: &limit, milli: 7_000 }],
            units_milli: 1_000,
        };
        let view = |is_recent| View::Known {
            image: &image,
            is_recent,
            may_sync: false,
            is_crowded: false,
            is_outdated: false,
            judged_at: 0,
        };
        let plan = |is_recent| credit.plan(view(is_recent));
        assert!(matches!(plan(false), Step::Credit(_)), "the condition decides");
        assert_eq!(plan(true), Step::Drop, "it has just been seen to be gone");
    }
}
