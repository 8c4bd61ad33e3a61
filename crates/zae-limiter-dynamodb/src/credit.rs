//! Which write gives back to a bucket, given what is known of it. Pure. Never above capacity, never twice.

use zae_limiter_core::LimitName;

use crate::debit::View;
use crate::image::{attr, limit_attr};
use crate::refill::Amount;
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
}

impl Credit<'_> {
    /// The next write. A failed condition proves that the one before was not applied.
    pub(crate) fn plan(&self, view: View<'_>) -> Step {
        let mut update = Update { key: self.key.clone(), actions: Vec::new(), conditions: vec![Condition::Exists(attr::PK.into())] };
        let shard_count = match view {
            View::Absent => return Step::Drop,
            View::Unknown => {
                for amount in self.amounts {
                    add(amount.limit.name(), amount.limit.params().capacity_milli, amount.milli, false, &mut update);
                }
                1
            }
            View::Known { image, .. } => {
                for amount in self.amounts {
                    // A name the item lacks must be left out, or ADD would make half a limit.
                    if let Some(found) = image.limit(amount.limit.name()) {
                        let capacity = found.params.capacity_milli;
                        let overflows = found.tk > capacity.saturating_sub(amount.milli);
                        add(&found.name, capacity, amount.milli, overflows, &mut update);
                    }
                }
                image.shard_count
            }
        };
        if update.actions.is_empty() {
            return Step::Drop;
        }
        update.conditions.push(compare(attr::SHARD_COUNT, Comparison::Eq, shard_count));
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
