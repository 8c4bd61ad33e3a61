//! Guards of a cell that only two requests at once could show (`docs/guards.md`).

use zae_limiter_core::{
    BucketState, ConfigStamp, EntityId, Limit, LimitSource, Milli, Reports, ResourceName, Take,
    TimeMs, assess,
};

use std::sync::Arc;

use super::BlockStore;
use super::cell::Cell;
use super::options::LocalBlocks;
use super::order::{Ending, Next, Purchase, Terms};
use super::stats::Stats;
use crate::{
    BucketStore as _, ConsumeOutcome, ConsumeRequest, LimitsInForce, MemberTake, MemoryStore,
    SeededEntropy, Stocked,
};

/// A cell and its bucket.
struct Rig {
    cell: Cell,
    bucket: BucketState,
    limits: LimitsInForce,
    options: LocalBlocks,
    stats: Stats,
    entropy: SeededEntropy,
    epoch: u64,
    names: (EntityId, ResourceName),
}

fn tokens(amount: i64) -> [Take; 1] {
    [Take { limit: 0, amount: Milli(amount * 1_000) }]
}

impl Rig {
    fn new(limit: &str, options: LocalBlocks) -> Rig {
        let limits: Vec<Limit> = vec![limit.parse().expect("a limit")];
        Rig {
            cell: Cell::default(),
            bucket: BucketState::full(&limits, ConfigStamp(0), TimeMs(0)),
            limits: LimitsInForce::new(limits, LimitSource::System),
            options,
            stats: Stats::default(),
            entropy: SeededEntropy::new(1),
            epoch: 0,
            names: ("key".parse().expect("an id"), "gpt-4".parse().expect("a resource")),
        }
    }

    fn with<T>(
        &mut self,
        takes: &[Take],
        now_ms: i64,
        act: impl FnOnce(&mut Cell, &MemberTake<'_>, &Terms<'_>) -> T,
    ) -> T {
        let member = MemberTake {
            entity: &self.names.0,
            resource: &self.names.1,
            limits: &self.limits,
            takes,
            absent: &[],
        };
        let terms = Terms {
            options: &self.options,
            stats: &self.stats,
            entropy: &self.entropy,
            epoch: self.epoch,
            now: TimeMs(now_ms),
            moment: None,
            is_alone: true,
            may_order: true,
            is_new: true,
        };
        act(&mut self.cell, &member, &terms)
    }

    fn order(&mut self, amount: i64, now_ms: i64) -> Purchase {
        match self.with(&tokens(amount), now_ms, |cell, member, terms| cell.next(member, terms)) {
            Next::Order(purchase) => *purchase,
            _ => panic!("{amount} tokens are not ordered"),
        }
    }

    /// Makes an order.
    fn buy(&mut self, amount: i64, now_ms: i64) {
        let purchase = self.order(amount, now_ms);
        let report = &purchase.ending.report;
        let now = TimeMs(now_ms);
        let provision = self.bucket.provision(&purchase.lines, report, true, purchase.age_ms, now);
        let stocked = Stocked { provision, bucket: self.bucket.clone() };
        assert!(self.with(&[], now_ms, |cell, _, terms| cell.stocked(&purchase, &stocked, terms)));
    }

    /// An order of which nothing was written.
    fn refused(&mut self, purchase: Purchase) {
        self.cell.refused(purchase, &self.stats);
    }

    /// The same of a return.
    fn restore(&mut self, ending: Ending) {
        self.cell.restore(ending, &self.stats);
    }

    /// Takes from stock; which block it was.
    fn take(&mut self, amount: i64, now_ms: i64) -> Option<u64> {
        self.with(&tokens(amount), now_ms, |cell, member, terms| {
            cell.take((0, member), terms, &mut Reports::new())
        })
    }
}

/// What was used while a report was under way that is then not written: all of it is reported.
#[test]
fn use_beside_a_report_that_is_not_written_is_kept() {
    let mut rig = Rig::new("x:1/sec:100", LocalBlocks::eager());
    rig.buy(5, 0);
    assert!(rig.take(1, 10).is_some());
    let ending = rig.with(&[], 20, |cell, _, terms| cell.end_use(terms));
    assert!(rig.take(2, 30).is_some(), "the block is there");
    rig.restore(ending);
    let report = rig.with(&[], 40, |cell, _, terms| cell.end_use(terms)).report;
    assert_eq!(
        (report.grants, report.lines[0].used, report.used_at),
        (2, Milli(3_000), TimeMs(30))
    );
}

/// A refused chain puts back while an order is under way that is not written either.
#[test]
fn what_is_put_back_beside_an_order_is_not_reported() {
    let mut rig = Rig::new("x:1/sec:100", LocalBlocks::eager());
    rig.buy(5, 0);
    let number = rig.take(1, 10).expect("stock");
    assert!(rig.take(1, 10).is_some());
    let purchase = rig.order(50, 20);
    rig.with(&tokens(1), 30, |cell, member, terms| cell.put_back(member, number, terms));
    // Alone it would be reported by the time of nothing, and take the bucket back to that.
    rig.refused(purchase);
    let report = rig.with(&[], 40, |cell, _, terms| cell.end_use(terms)).report;
    assert_eq!((report.grants, report.lines[0].used), (1, Milli(1_000)));
    rig.cell.ended();
    rig.with(&tokens(1), 50, |cell, member, terms| cell.put_back(member, number, terms));
    let report = rig.with(&[], 60, |cell, _, terms| cell.end_use(terms)).report;
    assert_eq!((report.lines[0].used, report.used_at), (Milli(-1_000), TimeMs(50)));
}

/// A clock that goes back a little reports by its own time: use to come would count in the hour
/// that is over.
#[test]
fn use_is_not_later_than_its_report() {
    let mut rig = Rig::new("x:1/sec:100", LocalBlocks::eager());
    rig.buy(5, 0);
    assert!(rig.take(1, 1_000).is_some());
    let report = rig.with(&[], 950, |cell, _, terms| cell.end_use(terms)).report;
    assert_eq!(report.used_at, TimeMs(950));
}

/// A bucket that was found in debt when its stock was bought is for the store to decide, also for
/// who takes nothing.
#[test]
fn stock_of_a_bucket_in_debt_serves_nobody() {
    for debt in [0, 200] {
        let mut rig = Rig::new("x:1/day:100", LocalBlocks::eager());
        let purchase = rig.order(5, 0);
        let report = &purchase.ending.report;
        let provision =
            rig.bucket.provision(&purchase.lines, report, true, purchase.age_ms, TimeMs(0));
        // Others have charged it since, and the store tells what there is now.
        let limit = rig.limits.limits[0].clone();
        rig.bucket.adjust(&limit, Milli(debt * 1_000), TimeMs(0));
        let stocked = Stocked { provision, bucket: rig.bucket.clone() };
        assert!(rig.with(&[], 0, |cell, _, terms| cell.stocked(&purchase, &stocked, terms)));
        assert_eq!(rig.take(0, 10).is_some(), debt == 0);
    }
}

/// While a return is under way the stock is with it: a refusal would not know of it.
#[test]
fn nobody_is_refused_while_a_return_is_under_way() {
    let mut rig = Rig::new("x:100/sec:6000", LocalBlocks::default());
    rig.bucket.take(&tokens(5_960), TimeMs(0));
    for number in 0..8 {
        rig.with(&tokens(1), number * 5, |cell, member, terms| {
            if number < 7 {
                assert!(!matches!(cell.next(member, terms), Next::Order(_)));
            }
        });
    }
    rig.buy(1, 40);
    let paced = rig.with(&tokens(30), 45, |cell, member, terms| cell.paced(member, terms));
    assert!(paced.is_some(), "it is scarce");
    let ending = rig.with(&[], 50, |cell, _, terms| cell.end(terms));
    let paced = rig.with(&tokens(1), 55, |cell, member, terms| cell.paced(member, terms));
    assert!(paced.is_none());
    rig.restore(ending);
}

/// Stock that is too old shortens no wait.
#[test]
fn a_pause_counts_no_stock_that_is_too_old() {
    let mut rig = Rig::new("x:100/day:6000", LocalBlocks::default());
    rig.bucket.take(&tokens(5_900), TimeMs(0));
    for number in 0..7 {
        rig.with(&tokens(1), number * 5, |cell, member, terms| drop(cell.next(member, terms)));
    }
    rig.buy(1, 40);
    for number in 0..6 {
        assert!(rig.take(1, 1_500 + number).is_some(), "{number}");
    }
    let purchase = rig.order(120, 1_600);
    let takes: Vec<Take> =
        purchase.lines.iter().map(|line| Take { limit: line.limit, amount: line.least }).collect();
    let reports = assess(std::iter::once((&rig.bucket, &takes[..])), TimeMs(1_600));
    rig.with(&[], 1_600, |cell, _, terms| cell.pace_after_refusal(&purchase, &reports, terms));
    rig.refused(purchase);
    for (now_ms, has_stock) in [(1_700, true), (2_200, false)] {
        let paced = rig.with(&tokens(120), now_ms, |cell, member, terms| cell.paced(member, terms));
        let balance = paced.expect("the next visit has not come").reports[0].balance;
        assert_eq!(balance > Milli::ZERO, has_stock, "after {now_ms} ms");
    }
}

/// What a reset overtakes on its way does not come back, although nothing was written of it: the
/// bucket that is full again would have it on top.
#[test]
fn stock_that_administration_overtakes_does_not_come_back() {
    for way in ["order", "return", "report"] {
        let mut rig = Rig::new("x:1/sec:100", LocalBlocks::eager());
        rig.buy(5, 0);
        let held = rig.cell.held();
        match way {
            "order" => {
                let purchase = rig.order(21, 1_000);
                let lost = rig.cell.forfeit();
                rig.stats.lost(lost);
                rig.refused(purchase);
            }
            _ => {
                let ending = rig.with(&[], 1_000, |cell, _, terms| match way {
                    "return" => cell.end(terms),
                    _ => cell.end_use(terms),
                });
                let lost = rig.cell.forfeit();
                rig.stats.lost(lost);
                rig.restore(ending);
            }
        }
        assert_eq!(rig.cell.held(), Milli::ZERO, "{way}");
        let gone = rig.stats.read(Milli::ZERO);
        assert_eq!(gone.lost.saturating_add(gone.faded), held, "{way}: {gone:?}");
        assert!(rig.take(1, 1_010).is_none(), "{way}");
        // What is bought afterwards, from the bucket that is full, is not meant.
        rig.bucket = Rig::new("x:1/sec:100", LocalBlocks::eager()).bucket;
        rig.buy(5, 1_020);
        let ending = rig.with(&[], 1_030, |cell, _, terms| cell.end(terms));
        rig.restore(ending);
        assert!(rig.cell.held() > Milli::ZERO, "{way}");
    }
}

/// Nor does an order that a reset has overtaken say how scarce the bucket is.
#[test]
fn an_order_that_administration_overtakes_begins_no_pause() {
    for is_overtaken in [false, true] {
        let mut rig = Rig::new("x:100/day:6000", LocalBlocks::default());
        rig.bucket.take(&tokens(5_990), TimeMs(0));
        for number in 0..7 {
            rig.with(&tokens(1), number * 5, |cell, member, terms| drop(cell.next(member, terms)));
        }
        let purchase = rig.order(50, 40);
        rig.epoch += u64::from(is_overtaken);
        let takes = [Take { limit: 0, amount: purchase.lines[0].least }];
        let reports = assess(std::iter::once((&rig.bucket, &takes[..])), TimeMs(40));
        rig.with(&[], 40, |cell, _, terms| cell.pace_after_refusal(&purchase, &reports, terms));
        rig.refused(purchase);
        let paced = rig.with(&tokens(50), 45, |cell, member, terms| cell.paced(member, terms));
        assert_eq!(paced.is_some(), !is_overtaken);
    }
}

/// In a pause what the process holds is served as long as it may be: nobody else gets it.
#[test]
fn stock_that_is_due_serves_while_its_bucket_is_paced() {
    let mut rig = Rig::new("x:100/day:6000", LocalBlocks::default());
    rig.bucket.take(&tokens(5_900), TimeMs(0));
    for number in 0..7 {
        rig.with(&tokens(1), number * 5, |cell, member, terms| drop(cell.next(member, terms)));
    }
    rig.buy(1, 40);
    for number in 0..6 {
        assert!(rig.take(1, 1_500 + number).is_some(), "{number}");
    }
    assert!(rig.take(1, 1_540).is_none(), "it is time for another block");
    let purchase = rig.order(120, 1_545);
    let takes: Vec<Take> =
        purchase.lines.iter().map(|line| Take { limit: line.limit, amount: line.least }).collect();
    let reports = assess(std::iter::once((&rig.bucket, &takes[..])), TimeMs(1_545));
    rig.with(&[], 1_545, |cell, _, terms| cell.pace_after_refusal(&purchase, &reports, terms));
    rig.refused(purchase);
    for (now_ms, is_served) in [(1_700, true), (2_039, true), (2_040, false)] {
        let paced = rig.with(&tokens(1), now_ms, |cell, member, terms| cell.paced(member, terms));
        assert_eq!(paced.is_none(), is_served, "after {now_ms} ms");
        assert_eq!(rig.take(1, now_ms).is_some(), is_served, "after {now_ms} ms");
    }
}

/// A request is counted once, however often it is looked at: orders are for what is counted.
#[tokio::test]
async fn a_chain_is_counted_once() {
    let store = BlockStore::new(Arc::new(MemoryStore::new()), LocalBlocks::eager()).expect("lends");
    let names = ["child", "parent"].map(|name| name.parse::<EntityId>().expect("an id"));
    let resource: ResourceName = "gpt-4".parse().expect("a resource");
    let limits =
        LimitsInForce::new(vec!["x:1/day:100".parse().expect("a limit")], LimitSource::System);
    let takes = tokens(1);
    let members = names.each_ref().map(|entity| MemberTake {
        entity,
        resource: &resource,
        limits: &limits,
        takes: &takes,
        absent: &[],
    });
    let seen = || {
        names.each_ref().map(|name| {
            store.table.find(name, &resource).map_or(0, |slot| slot.lock().watch.requests)
        })
    };
    let alone = ConsumeRequest::new(&members[..1], TimeMs(0));
    assert!(matches!(store.consume(&alone).await, Ok(ConsumeOutcome::Granted(_))));
    let both = ConsumeRequest::new(&members, TimeMs(0));
    let before = seen();
    assert_eq!(before, [0, 0], "the order has begun a new count");
    assert!(store.consume_at_once(&both).is_none());
    assert_eq!(seen(), before, "the chain comes again");
    assert!(matches!(store.consume(&both).await, Ok(ConsumeOutcome::Granted(_))));
    assert_eq!(seen(), [1, 0], "the parent has bought a block");
    assert!(matches!(store.consume_at_once(&both), Some(Ok(ConsumeOutcome::Granted(_)))));
    assert_eq!(seen(), [2, 1]);
}
