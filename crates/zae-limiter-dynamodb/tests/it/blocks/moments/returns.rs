//! Orders and returns that may have landed, and returns that bring little.

use super::*;

/// The write has landed, its answer was lost, and others have changed the bucket since: made once
/// more, the order would debit twice, and lend once.
#[tokio::test]
async fn an_order_of_unknown_fate_is_not_made_again() {
    let bank = Bank::with(|rig| {
        let mut is_lost = false;
        let faults = Faults::by(move |asked| {
            let is_first = asked.operation() == Operation::Update && !is_lost;
            is_lost |= is_first;
            if is_first { Fate::LostAfter } else { Fate::Pass }
        });
        let (table, key) = (rig.table.clone(), rig.bucket("key", "gpt-4"));
        let updates = std::sync::atomic::AtomicU32::new(0);
        let gate = move |_: u32, point: Point| {
            let nth = u32::from(point == Point::Before(Operation::Update));
            if updates.fetch_add(nth, std::sync::atomic::Ordering::Relaxed) + nth == 2 && nth == 1 {
                // Another process takes nothing, and leaves its nonce.
                let mut item = table.get(&key).unwrap();
                item.insert("lw".to_owned(), AttributeValue::S("another".to_owned()));
                let refilled_at: i64 = item["rf"].as_n().unwrap().parse().unwrap();
                item.insert("rf".to_owned(), AttributeValue::N((refilled_at + 1).to_string()));
                table.insert(&item);
            }
            0
        };
        rig.table.client(3).with_faults(faults).with_gate(Arc::new(gate))
    })
    .await;
    let lines =
        [OrderLine { limit: 0, want: Milli(10_000), unit: Milli(1_000), ..OrderLine::default() }];
    let order = Order {
        entity: &"key".parse().unwrap(),
        resource: &"gpt-4".parse().unwrap(),
        limits: &bank.limits,
        lines: &lines,
        report: &Report::default(),
        serves: false,
        age_ms: 2_000,
    };
    let error = bank.store.provision(&order, bank.rig.clock.now()).await.unwrap_err();
    assert!(error.fate_unknown(), "{error}");
    assert_eq!(bank.books()[0], 90, "it was debited once");
}

/// A loan of which nothing is left and nothing was used is counted no more.
#[tokio::test]
async fn a_return_of_nothing_ends_the_count() {
    let bank = Bank::new().await;
    let stocked = bank.buy(0, 10).await;
    bank.settle(&report(0, 0, 0, &stocked)).await.unwrap();
    assert_eq!((bank.books()[0], bank.is_lent()), (90, false));
}

/// What a process remembers to be absent may have been made since.
#[tokio::test]
async fn a_return_looks_for_a_bucket_that_was_not_there() {
    let bank = Bank::new().await;
    let (item, key) = (bank.item(), bank.rig.bucket("key", "gpt-4"));
    bank.rig.table.remove(&key);
    let fresh = Bank { store: bank.other().await, ..bank };
    assert!(matches!(fresh.order(1, 5, &Report::default()).await, Provisioned::NotNow));
    fresh.rig.table.insert(&item);
    let used = Report { grants: 2, ..Report::default() };
    fresh.settle(&used).await.unwrap();
    assert_eq!(fresh.books()[2], 3);
}

/// What a bucket with a schedule regains is not known here: its use is counted, and no more.
#[tokio::test]
async fn a_bucket_that_is_beyond_this_version_takes_no_stock_back() {
    let bank = Bank::new().await;
    let stocked = bank.buy(0, 10).await;
    let mut item = bank.item();
    item.insert("sched".to_owned(), AttributeValue::S("weekly".to_owned()));
    bank.rig.table.insert(&item);
    let fresh = Bank { store: bank.other().await, ..bank };
    assert!(fresh.settle(&report(6, 4, 1, &stocked)).await.is_err());
    assert_eq!(fresh.books(), [90, 4, 3]);
}
