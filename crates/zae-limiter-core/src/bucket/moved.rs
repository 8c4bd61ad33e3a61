//! A bucket that moves to another store.
//!
//! The balance of a bucket means nothing without the instant it was refilled at: both travel
//! together, so neither the time on the way nor the time since the last take is lost or paid twice.
//! Say a bucket of 60 a minute had 0 at 10:00 and arrives at 10:00:30: it arrives with 0 as of
//! 10:00, and the next take finds 30. Arriving with 0 as of 10:00:30 would lose these 30, and
//! arriving with 30 as of 10:00 would pay them twice.

use super::BucketState;
use super::hours::hour_of;
use crate::{ConfigStamp, Flag, TimeMs};

impl BucketState {
    /// Counts the instants of the bucket by another clock, which shows `by_ms` more.
    pub fn change_clock(&mut self, by_ms: i64) {
        self.refilled_at = self.refilled_at.plus_ms(by_ms);
        self.set_expires_at(self.expires_at().map(|at| at.plus_ms(by_ms)));
    }

    /// The bucket as a store begins with it that takes it over at `now`, under the flag that the
    /// store has for it. Balances, debts, remainders, gaps and retired limits stay; a balance above
    /// its capacity is cut. What only the store that it comes from knew goes: the stamp, so that
    /// the configuration of the new store is newer in any case, the loans, which holders give back
    /// there, and the usage of the open hour, which belongs to the history.
    #[must_use]
    pub fn adopted(self, flag: Flag, now: TimeMs) -> BucketState {
        let (active, expires_at) = (self.active(), self.expires_at());
        let gaps: Vec<_> =
            self.limits.iter().map(|limit| (limit.name.clone(), self.gap(&limit.name))).collect();
        let (lead_ms, is_led) = (self.lead_ms(), self.is_led());
        let mut limits = self.limits;
        for limit in &mut limits {
            limit.hour_base = limit.consumed;
        }
        let stamp = ConfigStamp::default();
        let mut adopted = BucketState::restore(limits, active, self.refilled_at, stamp);
        for (name, gap) in gaps {
            adopted.restore_gap(&name, gap);
        }
        adopted.restore_lead(lead_ms, is_led);
        adopted.set_expires_at(expires_at);
        adopted.hour = hour_of(now);
        adopted.flag = flag;
        adopted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Limit, LimitName, Milli};

    const NOON: TimeMs = TimeMs(1_767_268_800_000);

    fn limit(text: &str) -> Limit {
        text.parse().expect("a limit")
    }

    fn name(text: &str) -> LimitName {
        text.parse().expect("a name")
    }

    #[test]
    fn neither_the_way_nor_the_time_before_is_lost_or_paid_twice() {
        let rpm = limit("rpm:60/min");
        let mut bucket = BucketState::full(std::slice::from_ref(&rpm), ConfigStamp(7), NOON);
        bucket.adjust(&rpm, Milli::from_tokens(100), NOON);
        let later = NOON.plus_ms(30_000);
        for by_ms in [0, 3_600_000, -3_600_000] {
            let mut moved = bucket.clone();
            moved.change_clock(by_ms);
            let mut moved = moved.adopted(Flag::Enabled, later.plus_ms(by_ms));
            let mut stayed = bucket.clone();
            stayed.refill(later);
            moved.refill(later.plus_ms(by_ms));
            assert_eq!(moved.limits[0].balance, stayed.limits[0].balance, "{by_ms}");
            assert_eq!(
                moved.limits[0].balance,
                Milli::from_tokens(10).negated(),
                "40 owed, 30 earned"
            );
        }
    }

    #[test]
    fn what_only_the_old_store_knew_stays_behind() {
        let rpm = limit("rpm:60/min");
        let mut bucket = BucketState::full(std::slice::from_ref(&rpm), ConfigStamp(7), NOON);
        bucket.adjust(&rpm, Milli::from_tokens(10), NOON);
        bucket.events = 3;
        bucket.restore_gap(&name("rpm"), Milli(5));
        bucket.restore_lead(9, false);
        bucket.set_expires_at(Some(NOON.plus_ms(1)));
        let adopted = bucket.clone().adopted(Flag::Disabled, NOON.plus_ms(3_600_000));
        assert_eq!((adopted.stamp, adopted.events), (ConfigStamp::default(), 0));
        assert_eq!(adopted.open_hour().used, []);
        assert_eq!(adopted.limits[0].consumed, Milli::from_tokens(10));
        assert_eq!(adopted.open_hour().start, NOON.plus_ms(3_600_000));
        assert_eq!((adopted.gap(&name("rpm")), adopted.lead_ms()), (Milli(5), 9));
        assert_eq!((adopted.expires_at(), adopted.flag), (bucket.expires_at(), Flag::Disabled));
    }

    #[test]
    fn a_balance_above_the_capacity_is_cut() {
        let mut bucket = BucketState::full(&[limit("rpm:60/min")], ConfigStamp(7), NOON);
        bucket.limits[0].balance = Milli::from_tokens(61);
        let adopted = bucket.adopted(Flag::Enabled, NOON);
        assert_eq!(adopted.limits[0].balance, Milli::from_tokens(60));
    }
}
