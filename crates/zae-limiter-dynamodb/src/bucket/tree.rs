//! What a process remembers of a bucket with several shards: which shards there are, when all of
//! them were read last, and whether the bucket rests (rules S9, S9a).

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};

use smallvec::SmallVec;
use zae_limiter_core::{LimitName, Milli, TimeMs};

use crate::bucket::debit::Debit;
use crate::bucket::shard::{Leaves, Standing};
use crate::constants::SHARDS_MAX;

/// The shards of one bucket.
#[derive(Debug)]
pub(crate) struct Tree {
    /// The partition keys of all shards there can be: every take looks at some of them.
    pks: Vec<String>,
    known: Mutex<Known>,
    /// When all shards were read last.
    gathered_at: AtomicI64,
    rest: Mutex<Rest>,
}

/// The shards that are known, with the answer of [`Leaves::all`] kept beside them.
#[derive(Debug)]
struct Known {
    leaves: Leaves,
    all: SmallVec<[(u32, u32); 4]>,
}

impl Known {
    fn change(&mut self, change: impl FnOnce(&mut Leaves)) {
        let before = self.leaves;
        change(&mut self.leaves);
        if self.leaves != before {
            self.all = self.leaves.all();
        }
    }
}

/// A bucket that could not serve a take rests for takes of as much or more.
#[derive(Debug, Default)]
struct Rest {
    since: TimeMs,
    until: TimeMs,
    amounts: SmallVec<[(LimitName, Milli); 2]>,
}

impl Tree {
    /// By the partition key of shard 0.
    pub(crate) fn new(root: &str) -> Tree {
        let bucket = root.strip_suffix('0').unwrap_or(root);
        Tree {
            pks: (0..SHARDS_MAX).map(|shard| format!("{bucket}{shard}")).collect(),
            known: Mutex::new(Known { leaves: Leaves::NONE, all: Leaves::NONE.all() }),
            gathered_at: AtomicI64::new(i64::MIN),
            rest: Mutex::new(Rest::default()),
        }
    }

    /// The shards there are, each with the number of its slots.
    pub(crate) fn leaves(&self) -> SmallVec<[(u32, u32); 4]> {
        self.lock().all.clone()
    }

    /// The partition key of a shard.
    pub(crate) fn pk(&self, shard: u32) -> &str {
        self.pks.get(shard as usize).map_or("", String::as_str)
    }

    /// A shard was seen.
    pub(crate) fn learn(&self, standing: &Standing) {
        self.lock().change(|leaves| leaves.learn(standing));
    }

    /// A shard is not there.
    pub(crate) fn lose(&self, shard: u32) {
        self.lock().change(|leaves| leaves.lose(shard));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether all shards may be read now; who asks first reads for the others.
    pub(crate) fn may_gather(&self, now: TimeMs, pause_ms: i64) -> bool {
        let is_due = |at: i64| {
            let passed = now.0.saturating_sub(at);
            // A clock that went back must not keep the shards unread.
            (!(0..pause_ms).contains(&passed)).then_some(now.0)
        };
        self.gathered_at.fetch_update(Ordering::AcqRel, Ordering::Acquire, is_due).is_ok()
    }

    /// The next take may read all shards at once.
    pub(crate) fn let_gather(&self) {
        self.gathered_at.store(i64::MIN, Ordering::Release);
    }

    /// Lets the bucket rest (rule S9a): takes of as much or more are contended for a while.
    pub(crate) fn rest(&self, debit: &Debit<'_>, now: TimeMs, pause_ms: i64) {
        let amounts = debit.wanted().map(|(limit, amount)| (limit.name().clone(), amount));
        let mut rest = self.rest.lock().unwrap_or_else(PoisonError::into_inner);
        *rest = Rest { since: now, until: now.plus_ms(pause_ms), amounts: amounts.collect() };
    }

    /// Whether a take like this has to wait.
    pub(crate) fn is_resting(&self, debit: &Debit<'_>, now: TimeMs) -> bool {
        let rest = self.rest.lock().unwrap_or_else(PoisonError::into_inner);
        // A caller whose clock is behind, or went back, must not find the bucket at rest for
        // longer.
        (rest.since..rest.until).contains(&now)
            && rest.amounts.iter().all(|(name, least)| {
                debit.wanted().any(|(limit, amount)| limit.name() == name && amount >= *least)
            })
    }
}

/// The right to split a shard: one caller of a process has it at a time, and gives it back also
/// when its future is dropped.
pub(crate) struct Turn<'a>(&'a AtomicBool);

impl<'a> Turn<'a> {
    pub(crate) fn of(is_taken: &'a AtomicBool) -> Option<Turn<'a>> {
        (!is_taken.swap(true, Ordering::AcqRel)).then_some(Turn(is_taken))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use zae_limiter_core::{LimitSource, Take};
    use zae_limiter_store::LimitsInForce;

    use super::*;
    use crate::bucket::write::Cost;
    use crate::table::Key;

    /// Whether a take of so much has to wait at an instant, after one of five could not be served
    /// at 100.
    fn is_resting(pause_ms: i64, tokens: i64, at: i64) -> bool {
        let limit = "rpm:10/min".parse().expect("a limit");
        let limits = LimitsInForce::new(vec![limit], LimitSource::System);
        let key = Key { pk: "bucket".to_owned(), sk: "state".into() };
        let take = |tokens: i64| [Take { limit: 0, amount: Milli(tokens * 1_000) }];
        let (tree, before, now) = (Tree::new("bucket#0"), take(5), take(tokens));
        let debit = |takes| Debit {
            key: &key,
            standing: &Standing::ALONE,
            limits: &limits,
            takes,
            absent: &[],
            nonce: None,
            grace_ms: 0,
            cost: Cost::ONE,
            is_spared: false,
        };
        tree.rest(&debit(&before), TimeMs(100), pause_ms);
        tree.is_resting(&debit(&now), TimeMs(at))
    }

    #[test]
    fn a_bucket_rests_for_its_pause_and_for_takes_of_as_much() {
        assert!(is_resting(100, 5, 100));
        assert!(is_resting(100, 6, 199));
        assert!(!is_resting(100, 5, 200), "the pause is over");
        assert!(!is_resting(100, 4, 100), "less may pass");
    }

    #[test]
    fn all_shards_are_read_once_in_a_pause_and_again_after_a_clock_went_back() {
        let tree = Tree::new("bucket#0");
        assert!(tree.may_gather(TimeMs(1_000), 250));
        assert!(!tree.may_gather(TimeMs(1_249), 250));
        assert!(tree.may_gather(TimeMs(1_250), 250));
        assert!(tree.may_gather(TimeMs(7), 250), "not kept unread for a second");
    }

    #[test]
    fn one_caller_splits_and_the_next_one_after_it() {
        let is_taken = AtomicBool::new(false);
        let turn = Turn::of(&is_taken);
        assert!(turn.is_some() && Turn::of(&is_taken).is_none());
        drop(turn);
        assert!(Turn::of(&is_taken).is_some());
    }

    #[test]
    fn a_caller_whose_clock_is_behind_finds_no_rest() {
        assert!(!is_resting(100, 5, 99));
        assert!(!is_resting(0, 5, 60), "a bucket that does not rest");
    }
}
