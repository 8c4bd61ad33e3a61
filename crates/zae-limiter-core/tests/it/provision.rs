//! Stock that holders debit ahead of need: what a bucket lends, what may be spent of it and until
//! when, and what a refund may fill meanwhile. Every order of events is in `provision_model`.

use crate::support::*;
use proptest::prelude::*;
use zae_limiter_core::{
    BucketState, ConfigStamp, LENT_MAX_MS, LENT_SLOT_MS, Lent, Milli, OrderLine, Provision, Report,
    Return, Stock, TimeMs,
};

/// Asks for `tokens` of limit 0, and for stock of `want`.
fn order(bucket: &mut BucketState, tokens: i64, want: i64, now: i64) -> Provision {
    provision(bucket, line(0, tokens, want), &Report::default(), now)
}

fn line(limit: u8, tokens: i64, want: i64) -> OrderLine {
    let least = Milli(tokens * 1_000);
    OrderLine {
        limit,
        least,
        takes: least,
        want: Milli(want * 1_000),
        unit: Milli(1_000),
        ..OrderLine::default()
    }
}

fn provision(bucket: &mut BucketState, line: OrderLine, report: &Report, now: i64) -> Provision {
    bucket.provision(&[line], report, true, LENT_MAX_MS, TimeMs(now))
}

fn stock(provision: &Provision, bucket: &BucketState) -> Stock {
    Stock::new(&provision.lots[0], bucket)
}

/// The report of a holder that brings everything back.
fn back(stock: &Stock, slot: i64, elapsed_ms: i64) -> Report {
    let line = Return {
        limit: "x".parse().expect("a name"),
        back: stock.usable(elapsed_ms),
        used: Milli::ZERO,
        booked: stock.booked(),
    };
    Report { lines: [line].into_iter().collect(), slot, ..Report::default() }
}

#[test]
fn a_full_bucket_and_old_stock_admit_the_capacity_once() {
    let mut bucket = full(&["x:100/100sec"]);
    let lent = order(&mut bucket, 5, 20, 0);
    let stock = stock(&lent, &bucket);
    assert_eq!((balances(&bucket), stock.usable(0)), (vec![75_000], Milli(20_000)));
    for (elapsed_ms, usable) in [(5_000, 20_000), (6_000, 19_000), (24_000, 1_000), (25_000, 0)] {
        let mut later = bucket.clone();
        later.refill(TimeMs(elapsed_ms));
        assert_eq!(stock.usable(elapsed_ms), Milli(usable), "after {elapsed_ms} ms");
        let all = later.limits()[0].balance.0 + usable;
        assert_eq!(all, (95_000 + elapsed_ms).min(100_000), "after {elapsed_ms} ms");
        assert_eq!(stock.balance(elapsed_ms), Milli(all), "the holder knows");
    }
    // Refill that has gone beyond the layer is no room for refunds, and nothing beyond full.
    assert_eq!((stock.usable(1_000_000), stock.room(1_000_000)), (Milli(0), Milli(25_000)));
    assert_eq!(stock.balance(1_000_000), Milli(100_000));
}

#[test]
fn what_is_lent_is_a_quarter_of_the_balance_and_of_the_capacity() {
    let mut bucket = full(&["x:100/100sec"]);
    assert_eq!(order(&mut bucket, 0, 90, 0).lots[0].given, Milli(25_000), "of the capacity");
    assert!(order(&mut bucket, 1, 90, 0).lots.is_empty(), "all of it is lent");
    assert_eq!(balances(&bucket), [74_000], "and the request is served");
    let mut bucket = full(&["x:100/100sec"]);
    grant(&mut bucket, &[take(0, 60_000)], 0);
    assert_eq!(order(&mut bucket, 0, 90, 0).lots[0].given, Milli(10_000), "of the balance");
    assert_eq!(order(&mut bucket, 2, 90, 0).lots[0].given, Milli(7_000), "what the request left");
    assert_eq!(bucket.lent(&"x".parse().expect("a name")), Milli(19_000));
}

/// Of a bucket that is nearly full refill would reach a small loan at once.
#[test]
fn a_loan_is_as_deep_as_refill_comes_in_its_time() {
    let mut bucket = full(&["x:1000/sec:60000"]);
    let deep = OrderLine { depth: Milli(1_000_000), ..line(0, 1, 10) };
    let lent = provision(&mut bucket, deep, &Report::default(), 0);
    assert_eq!(lent.lots[0].given, Milli(999_000), "one token is taken: so much more is lacking");
    assert_eq!(
        stock(&lent, &bucket).usable(990),
        Milli(10_000),
        "for the last request of its time"
    );
    // The next one need not go deeper: enough is lacking already.
    let lent = provision(&mut bucket, deep, &Report::default(), 0);
    assert_eq!(lent.lots[0].given, Milli(10_000));
    let nothing = OrderLine { want: Milli::ZERO, unit: Milli::ZERO, ..deep };
    assert!(provision(&mut bucket, nothing, &Report::default(), 0).lots.is_empty());
    let mut bucket = full(&["x:1000/sec:60000"]);
    assert!(provision(&mut bucket, nothing, &Report::default(), 0).lots.is_empty(), "nothing");
}

/// Nothing is lent of a limit in debt, or without room, although nothing of it is needed: what is
/// less than nothing would be given to the bucket.
#[test]
fn a_loan_is_never_negative() {
    let free = OrderLine { unit: Milli::ZERO, ..line(1, 0, 0) };
    for (owed, want) in [(130_000, 0), (130_000, 5), (0, 5), (0, 0)] {
        let mut bucket = full(&["x:100/100sec", "y:100/100sec"]);
        bucket.adjust(&limit("y:100/100sec"), Milli(owed), TimeMs(0));
        let mut large = OrderLine { want: Milli(want * 1_000), ..free };
        if owed == 0 {
            large.least = Milli(30_000);
        }
        let left = bucket.limits()[1].balance.saturating_sub(large.least);
        let lines = [line(0, 1, 10), large];
        let lent = bucket.provision(&lines, &Report::default(), true, LENT_MAX_MS, TimeMs(0));
        assert!(lent.lots.is_empty() && bucket.loans().is_none(), "{owed} {want}: {lent:?}");
        assert_eq!(bucket.limits()[1].balance, left, "{owed} {want}");
    }
}

/// An order behind a granted chain serves no request.
#[test]
fn an_order_that_serves_nobody_is_no_event() {
    let mut bucket = full(&["x:100/100sec"]);
    let lines = [line(0, 0, 10)];
    bucket.provision(&lines, &Report::default(), false, LENT_MAX_MS, TimeMs(0));
    assert_eq!((bucket.events, bucket.limits()[0].consumed), (0, Milli::ZERO));
}

/// A return that is made twice, or when its loan has ended, would fill a place that others have
/// filled since.
#[test]
fn what_is_not_counted_any_more_does_not_come_back() {
    let mut bucket = full(&["x:10/day:100"]);
    let lent = order(&mut bucket, 0, 20, 0);
    let stock = stock(&lent, &bucket);
    let report = back(&stock, lent.slot, 0);
    let late = &mut bucket.clone();
    late.settle(&report, TimeMs(LENT_SLOT_MS));
    assert_eq!(balances(late), [80_000], "too late");
    bucket.settle(&report, TimeMs(100));
    assert_eq!(balances(&bucket), [100_000]);
    bucket.take(&[zae_limiter_core::Take { limit: 0, amount: Milli(30_000) }], TimeMs(200));
    bucket.settle(&report, TimeMs(300));
    assert_eq!(balances(&bucket), [70_000], "twice");
    // Beside another loan: no more than is counted.
    order(&mut bucket, 0, 5, 400);
    bucket.settle(&report, TimeMs(500));
    assert_eq!(balances(&bucket), [70_000], "a third time");
    assert_eq!(bucket.loans(), None);
}

/// A loan that ends soon does not shorten one that was made before.
#[test]
fn the_last_loan_to_end_is_the_one_that_counts() {
    let mut bucket = full(&["x:100/100sec"]);
    let name = "x".parse().expect("a name");
    order(&mut bucket, 0, 15, 0);
    bucket.provision(&[line(0, 0, 5)], &Report::default(), false, 250, TimeMs(0));
    bucket.refill(TimeMs(1_000));
    assert_eq!(bucket.lent(&name), Milli(20_000));
    bucket.adjust(&limit("x:100/100sec"), Milli(-20_000), TimeMs(1_000));
    assert!(balances(&bucket)[0] <= 81_000, "{:?}", balances(&bucket));
}

#[test]
fn stock_that_serves_no_request_is_not_lent() {
    let mut bucket = full(&["x:100/100sec"]);
    grant(&mut bucket, &[take(0, 97_000)], 0);
    assert!(order(&mut bucket, 0, 90, 0).lots.is_empty(), "a quarter of 3 is less than 1");
    assert_eq!((balances(&bucket), bucket.loans()), (vec![3_000], None));
    let mut two = full(&["x:100/100sec", "y:100/100sec"]);
    grant(&mut two, &[take(1, 97_000)], 0);
    let lines = [line(0, 1, 10), line(1, 1, 10)];
    let lent = two.provision(&lines, &Report::default(), true, LENT_MAX_MS, TimeMs(0));
    assert!(lent.lots.is_empty(), "without the one limit the other is of no use");
    assert_eq!(balances(&two), [99_000, 2_000]);
}

#[test]
fn a_loan_lasts_two_seconds_at_most_and_less_where_refill_is_quick() {
    let mut bucket = full(&["x:100/100sec"]);
    for age_ms in [0, -1, LENT_MAX_MS + 1] {
        let lent = bucket.provision(&[line(0, 1, 10)], &Report::default(), true, age_ms, TimeMs(0));
        assert!(lent.lots.is_empty(), "{age_ms} ms");
    }
    let mut quick = full(&["x:100/sec:100"]);
    assert!(order(&mut quick, 1, 10, 0).lots.is_empty(), "a quarter refills in 250 ms");
    let lent = quick.provision(&[line(0, 1, 10)], &Report::default(), true, 250, TimeMs(0));
    assert_eq!(lent.lots[0].given, Milli(10_000));
}

#[test]
fn a_refund_does_not_fill_the_room_that_loans_made() {
    let mut bucket = full(&["x:100/100sec"]);
    grant(&mut bucket, &[take(0, 10_000)], 0);
    order(&mut bucket, 0, 20, 0);
    bucket.adjust(&limit("x:100/100sec"), Milli(-10_000), TimeMs(0));
    // 20 are lent, and 2.5 refill until the loan has ended (and a millitoken for the remainder).
    assert_eq!(balances(&bucket), [77_499]);
    bucket.adjust(&limit("x:100/100sec"), Milli(-10_000), TimeMs(1_000));
    assert_eq!(balances(&bucket), [78_499], "a credit takes nothing, and refill goes on");
    bucket.adjust(&limit("x:100/100sec"), Milli(-10_000), TimeMs(LENT_SLOT_MS));
    assert_eq!(balances(&bucket), [89_999], "the loan has ended");
}

#[test]
fn a_refund_is_whole_where_nothing_is_lent() {
    let mut bucket = full(&["x:100/100sec", "y:100/100sec"]);
    grant(&mut bucket, &[take(0, 10_000), take(1, 10_000)], 0);
    order(&mut bucket, 0, 20, 0);
    bucket.adjust(&limit("y:100/100sec"), Milli(-10_000), TimeMs(0));
    assert_eq!(balances(&bucket)[1], 100_000, "another limit");
    bucket.adjust(&limit("x:100/100sec"), Milli(30_000), TimeMs(0));
    assert_eq!(balances(&bucket)[0], 40_000, "a charge is a charge");
    bucket.adjust(&limit("x:100/100sec"), Milli(-30_000), TimeMs(0));
    assert_eq!(balances(&bucket)[0], 70_000, "far from full a refund is whole");
}

#[test]
fn what_comes_back_is_lent_no_more() {
    let mut bucket = full(&["x:100/100sec"]);
    let lent = order(&mut bucket, 10, 15, 0);
    let stock = stock(&lent, &bucket);
    bucket.settle(&back(&stock, lent.slot, 500), TimeMs(500));
    assert_eq!((balances(&bucket), bucket.loans()), (vec![90_500], None));
    bucket.adjust(&limit("x:100/100sec"), Milli(-10_000), TimeMs(500));
    assert_eq!(balances(&bucket), [100_000]);
}

/// Two holders: what one brings back stops below what the other has.
#[test]
fn a_return_does_not_fill_the_room_of_another_holder() {
    let mut bucket = full(&["x:100/100sec"]);
    let first = order(&mut bucket, 0, 12, 0);
    let first_stock = stock(&first, &bucket);
    order(&mut bucket, 0, 12, 0);
    bucket.settle(&back(&first_stock, first.slot, 0), TimeMs(0));
    assert_eq!(balances(&bucket), [85_499], "12 are lent, 2.5 refill until they are dead");
}

#[test]
fn a_loan_of_a_holder_that_is_gone_counts_for_at_most_two_slots() {
    let mut bucket = full(&["x:100/100sec"]);
    let name = "x".parse().expect("a name");
    order(&mut bucket, 0, 20, LENT_SLOT_MS - 1);
    for (now, lent) in [(LENT_SLOT_MS, 20_000), (2 * LENT_SLOT_MS - 2, 20_000)] {
        bucket.refill(TimeMs(now));
        assert_eq!(bucket.lent(&name), Milli(lent), "at {now}");
    }
    // Another loan keeps the bucket lending; the first one does not count for ever.
    order(&mut bucket, 0, 1, 2 * LENT_SLOT_MS - 2);
    bucket.refill(TimeMs(2 * LENT_SLOT_MS - 1));
    assert_eq!(bucket.lent(&name), Milli(21_000), "the end of its slot");
    bucket.refill(TimeMs(2 * LENT_SLOT_MS));
    assert_eq!(bucket.lent(&name), Milli(1_000));
    bucket.refill(TimeMs(3 * LENT_SLOT_MS - 2));
    assert_eq!((bucket.lent(&name), bucket.loans()), (Milli::ZERO, None));
}

#[test]
fn a_loan_is_released_once_and_only_in_its_slot() {
    let mut bucket = full(&["x:100/100sec"]);
    let name = "x".parse().expect("a name");
    let lent = order(&mut bucket, 0, 10, LENT_SLOT_MS - 1);
    let report = back(&stock(&lent, &bucket), lent.slot, 0);
    order(&mut bucket, 0, 5, LENT_SLOT_MS);
    let other = Report { slot: lent.slot - 1, ..report.clone() };
    bucket.settle(&other, TimeMs(LENT_SLOT_MS));
    assert_eq!(bucket.lent(&name), Milli(15_000), "no such slot");
    bucket.settle(&Report { slot: lent.slot + 5, ..report.clone() }, TimeMs(LENT_SLOT_MS));
    assert_eq!(bucket.lent(&name), Milli(15_000), "no slot of the future");
    bucket.settle(&report, TimeMs(LENT_SLOT_MS));
    assert_eq!(bucket.lent(&name), Milli(5_000));
}

#[test]
fn a_time_that_went_back_keeps_its_loans_and_not_for_longer() {
    let mut bucket = full(&["x:100/100sec"]);
    let name = "x".parse().expect("a name");
    order(&mut bucket, 0, 20, 100_000);
    bucket.refill(TimeMs(0));
    assert_eq!((bucket.refilled_at, bucket.lent(&name)), (TimeMs(0), Milli(20_000)));
    let mut refunded = bucket.clone();
    refunded.adjust(&limit("x:100/100sec"), Milli(-20_000), TimeMs(0));
    assert_eq!(balances(&refunded), [80_000], "77.5 is as far as it may lift: not lower");
    order(&mut bucket, 0, 1, 0);
    assert_eq!(bucket.lent(&name), Milli(21_000));
    bucket.refill(TimeMs(LENT_SLOT_MS));
    assert_eq!(bucket.lent(&name), Milli::ZERO);
}

/// A process whose clock is a day ahead lends all that may be lent, and is set right. Nobody else
/// lends meanwhile, so nobody counts anew: the bucket has to do that when its time goes back.
#[test]
fn loans_of_a_clock_that_was_ahead_end_as_soon_as_any() {
    const DAY: i64 = 86_400_000;
    for way in ["refill", "reset"] {
        let mut bucket = full(&["x:100/100sec"]);
        let name = "x".parse().expect("a name");
        let ahead = if way == "refill" { DAY } else { 50_000 };
        order(&mut bucket, 0, 25, ahead);
        if way == "refill" {
            bucket.refill(TimeMs(0));
        } else {
            bucket.reset(None, TimeMs(0));
        }
        assert_eq!((bucket.refilled_at, bucket.lent(&name)), (TimeMs(0), Milli(25_000)), "{way}");
        bucket.adjust(&limit("x:100/100sec"), Milli(25_000), TimeMs(2 * LENT_SLOT_MS));
        assert_eq!((bucket.lent(&name), bucket.loans()), (Milli::ZERO, None), "{way}");
        bucket.adjust(&limit("x:100/100sec"), Milli(-25_000), TimeMs(2 * LENT_SLOT_MS));
        assert!(balances(&bucket)[0] >= 79_999, "{way}: {:?}", balances(&bucket));
        let again = order(&mut bucket, 1, 10, 2 * LENT_SLOT_MS);
        assert_eq!(again.lots.len(), 1, "{way}: it lends again");
    }
}

#[test]
fn use_is_counted_not_stock_and_in_its_own_hour() {
    const HOUR: i64 = 3_600_000;
    let mut bucket = full(&["x:100/100sec"]);
    order(&mut bucket, 3, 20, HOUR - 1_000);
    assert_eq!((bucket.limits()[0].consumed, bucket.events), (Milli(3_000), 1));
    let used = |used, used_at| {
        let line = Return {
            limit: "x".parse().expect("a name"),
            back: Milli::ZERO,
            used: Milli(used),
            booked: Milli::ZERO,
        };
        let lines = [line].into_iter().collect();
        Report { lines, grants: 2, used_at: TimeMs(used_at), slot: 0 }
    };
    let line = line(0, 1, 0);
    let lent = provision(&mut bucket, line, &used(5_000, HOUR - 500), HOUR + 10);
    assert_eq!(lent.closed.len(), 1);
    assert_eq!((lent.closed[0].used[0].1, lent.closed[0].events), (Milli(8_000), 3));
    assert_eq!(bucket.open_hour().used[0].1, Milli(1_000));
    // The hour is closed: late use counts in the open one, and opens none again.
    let closed = bucket.settle(&used(-500, HOUR - 400), TimeMs(HOUR + 20));
    assert!(closed.is_empty());
    assert_eq!((bucket.open_hour().used[0].1, bucket.open_hour().events), (Milli(500), 3));
}

#[test]
fn a_report_opens_no_hour_that_is_over_or_to_come() {
    const HOUR: i64 = 3_600_000;
    let mut bucket = full(&["x:100/100sec"]);
    order(&mut bucket, 3, 20, 10 * HOUR);
    for hour in [-1, 0, 7, 8, 9, 10, 11, 12, 99] {
        let report = Report { grants: 1, used_at: TimeMs(hour * HOUR), ..Report::default() };
        let mut bucket = bucket.clone();
        assert!(bucket.settle(&report, TimeMs(10 * HOUR)).is_empty(), "of hour {hour}");
        let open = bucket.open_hour();
        assert_eq!((open.start, open.events), (TimeMs(10 * HOUR), 2), "of hour {hour}");
    }
}

#[test]
fn a_refund_never_makes_more_stock_than_was_bought() {
    let mut bucket = full(&["x:100/100sec"]);
    let lent = order(&mut bucket, 4, 10, 0);
    let mut stock = stock(&lent, &bucket);
    assert!(!stock.change(Milli(10_001), 0), "more than there is");
    assert!(stock.change(Milli(10_000), 0));
    assert!(!stock.change(Milli(-14_001), 0), "more than was bought");
    assert_eq!(stock.room(0), Milli(14_000));
    assert!(stock.change(Milli(-14_000), 6_000), "refill has reached a part, which fades");
    assert_eq!((stock.usable(6_000), stock.room(6_000)), (Milli(8_000), Milli(6_000)));
    assert!(!stock.change(Milli(-6_001), 6_000), "more than was bought");
    assert_eq!((stock.usable(10_000), stock.held()), (Milli(4_000), Milli(8_000)));
    assert!(!stock.change(Milli(4_001), 10_000));
    assert!(stock.change(Milli(1_000), 10_000));
    assert_eq!(stock.held(), Milli(3_000), "what decayed is gone for good");
}

/// What was taken before an order comes back to the stock of that order, as far as the bucket lacks
/// more than is lent and what refills until the last loan has ended.
#[test]
fn an_order_has_room_for_refunds_of_before() {
    let mut bucket = full(&["x:100/100sec"]);
    let roomy = |room: i64| OrderLine { room: Milli(room), ..line(0, 2, 10) };
    let lent = provision(&mut bucket.clone(), roomy(9_000), &Report::default(), 0);
    assert_eq!((lent.lots[0].given, lent.lots[0].span), (Milli(10_000), Milli(12_000)), "full");
    grant(&mut bucket, &[take(0, 20_000)], 0);
    for (room, span) in [(0, 12_000), (2_000, 12_000), (9_000, 19_000), (90_000, 25_000)] {
        let lent = provision(&mut bucket.clone(), roomy(room), &Report::default(), 0);
        assert_eq!((lent.lots[0].given, lent.lots[0].span), (Milli(10_000), Milli(span)), "{room}");
    }
    let lent = provision(&mut bucket, roomy(3_000), &Report::default(), 0);
    assert_eq!((balances(&bucket), lent.lots[0].span), (vec![68_000], Milli(13_000)));
    assert_eq!(bucket.lent(&"x".parse().expect("a name")), Milli(13_000));
    let mut stock = stock(&lent, &bucket);
    assert!(!stock.change(Milli(-3_001), 0) && stock.change(Milli(-3_000), 0));
    assert_eq!(stock.usable(0), Milli(13_000));
    bucket.settle(&back(&stock, lent.slot, 0), TimeMs(0));
    assert_eq!(balances(&bucket), [81_000], "what was refunded comes back as well");
    // Of 15 that are lacking 3 are lent, and 2.5 refill meanwhile (and a millitoken).
    let mut bucket = full(&["x:100/100sec"]);
    grant(&mut bucket, &[take(0, 12_000)], 0);
    order(&mut bucket, 0, 3, 0);
    let lent = provision(&mut bucket, roomy(90_000), &Report::default(), 0);
    assert_eq!(lent.lots[0].span, Milli(12_000 + 15_000 - 3_000 - 2_501));
    // The first loan lasts as long as any; one before it may last longer.
    let mut bucket = full(&["x:100/100sec"]);
    grant(&mut bucket, &[take(0, 12_000)], 0);
    let lent = provision(&mut bucket.clone(), roomy(90_000), &Report::default(), 0);
    assert_eq!(lent.lots[0].span, Milli(12_000 + 12_000 - 2_501));
    order(&mut bucket, 0, 3, 0);
    let short = bucket.provision(&[roomy(90_000)], &Report::default(), true, 250, TimeMs(0));
    assert_eq!(short.lots[0].span, Milli(12_000 + 15_000 - 3_000 - 2_501));
}

#[test]
fn loans_come_back_from_storage() {
    let mut bucket = full(&["x:100/100sec"]);
    order(&mut bucket, 1, 10, 5_000);
    let loans = bucket.loans().cloned();
    let mut again = full(&["x:100/100sec"]);
    again.restore_loans(loans.clone());
    assert_eq!(again.loans(), loans.as_ref());
    again.restore_loans(None);
    assert_eq!(again.loans(), None);
}

/// A store whose other writes leave the count as it is gives loans back that have ended, and a
/// foreign writer any.
#[test]
fn loans_from_storage_that_have_ended_or_make_no_sense_do_no_harm() {
    let name: zae_limiter_core::LimitName = "x".parse().expect("a name");
    let of = |until: i64, slot: i64, sums: [i64; 2]| {
        let sums = vec![(name.clone(), sums.map(Milli))];
        Some(Lent { until: TimeMs(until), slot, sums })
    };
    let now = 10 * LENT_SLOT_MS;
    for (until, slot, sum) in [(now, 9, 20_000), (i64::MAX, 1, 20_000), (i64::MAX, 10, -20_000)] {
        let mut bucket = full(&["x:100/100sec"]);
        bucket.refill(TimeMs(now));
        bucket.take(&[zae_limiter_core::Take { limit: 0, amount: Milli(30_000) }], TimeMs(now));
        bucket.restore_loans(of(until, slot, [sum, 0]));
        assert!(bucket.lent(&name) <= Milli::ZERO, "{until} {slot}");
        let back = Return {
            limit: name.clone(),
            back: Milli(20_000),
            used: Milli(0),
            booked: Milli(20_000),
        };
        let report = Report { lines: [back].into_iter().collect(), slot, ..Report::default() };
        bucket.settle(&report, TimeMs(now));
        assert_eq!(balances(&bucket), [70_000], "{until} {slot}");
    }
    // However long it claims to last, a loan lasts no longer than any.
    let mut bucket = full(&["x:100/100sec"]);
    bucket.take(&[zae_limiter_core::Take { limit: 0, amount: Milli(50_000) }], TimeMs(now));
    bucket.restore_loans(of(i64::MAX, 10, [10_000, 0]));
    bucket.adjust(&limit("x:100/100sec"), Milli(-50_000), TimeMs(now));
    assert_eq!(balances(&bucket), [100_000 - 10_000 - 2_501]);
}

#[test]
fn stock_is_shown_up_to_a_full_bucket() {
    let mut bucket = full(&["x:100/100sec"]);
    bucket.take(&[zae_limiter_core::Take { limit: 0, amount: Milli(10_000) }], TimeMs(0));
    bucket.show_stock(&"x".parse().expect("a name"), Milli(30_000));
    assert_eq!(balances(&bucket), [100_000]);
}

proptest! {
    /// Two to five holders and direct takers, without credits: the layer rule alone.
    #[test]
    fn stock_of_many_holders_never_exceeds_what_the_bucket_lacks(
        steps in prop::collection::vec((0_usize..5, 0_i64..30, 0_i64..8, 0_i64..900), 1..60),
        rate in 1_u64..400,
    ) {
        let text = format!("x:{rate}/10sec:120");
        let mut bucket = full(&[&text]);
        let mut holders: [Option<(Stock, i64)>; 5] = [None; 5];
        let mut now = 0;
        for (holder, want, tokens, pause_ms) in steps {
            now += pause_ms;
            bucket.refill(TimeMs(now));
            let balance = bucket.limits()[0].balance.0;
            if want == 0 {
                grant(&mut bucket, &[take(0, (tokens * 1_000).min(balance))], now);
            } else if balance >= tokens * 1_000 {
                let lent = order(&mut bucket, tokens, want, now);
                holders[holder] = (!lent.lots.is_empty()).then(|| (stock(&lent, &bucket), now));
            }
            let held: i64 =
                holders.iter().flatten().map(|(stock, at)| stock.usable(now - at).0).sum();
            prop_assert!(held <= 120_000 - bucket.limits()[0].balance.0);
        }
    }

    /// Limits that change under a loan neither panic nor lend more than a quarter.
    #[test]
    fn a_changed_limit_never_lends_more_than_its_quarter(
        steps in prop::collection::vec((1_u64..200, 1_i64..50, 0_i64..3_000), 1..30),
    ) {
        let mut bucket = full(&["x:100/100sec"]);
        let mut now = 0;
        for (capacity, want, pause_ms) in steps {
            now += pause_ms;
            let changed = limit(&format!("x:1/sec:{capacity}"));
            bucket.sync(&[changed], ConfigStamp(1), TimeMs(now)).expect("one limit");
            let before = bucket.lent(&"x".parse().expect("a name"));
            let lent = order(&mut bucket, 0, want, now);
            let given: i64 = lent.lots.iter().map(|lot| lot.given.0).sum();
            let most = i64::try_from(capacity).expect("small") * 250;
            prop_assert!(given == 0 || given + before.0 <= most);
            prop_assert!(bucket.limits()[0].balance.0 >= 0);
        }
    }
}
