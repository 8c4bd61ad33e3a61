//! Single moments of lending: what lands, what is pinned, and what is left to a take.

mod returns;

use std::sync::Arc;

use aws_sdk_dynamodb::types::AttributeValue;
use zae_limiter_core::{
    Flag, Limit, LimitName, LimitSource, Milli, OrderLine, Report, Return, Take,
};
use zae_limiter_dynamodb::bucket::upkeep::{BucketName, Upkeep};
use zae_limiter_dynamodb::table::Item;
use zae_limiter_dynamodb::{DynamoOptions, DynamoStore};
use zae_limiter_store::{
    Adjusted, BucketDelta, BucketStore, Clock, ConfigStore, ConsumeOutcome, ConsumeRequest, Delta,
    Level, LimitsChange, LimitsInForce, MemberKey, MemberTake, Order, PageRequest, Provisioned,
    ResetRequest, Stocked,
};
use zae_limiter_testkit::table::{EvalOptions, EvalTable, Fate, Faults, Operation, Point};

use crate::evaluated::Rig;

/// A bucket of 100 that regains one a second, and a process that lends from it.
struct Bank {
    rig: Rig,
    store: DynamoStore,
    limits: LimitsInForce,
}

impl Bank {
    async fn new() -> Bank {
        Bank::with(|rig| rig.table.clone()).await
    }

    /// The process that lends reaches the table in its own way.
    async fn with(way: impl FnOnce(&Rig) -> EvalTable) -> Bank {
        let rig = Rig::new(EvalOptions::new()).await;
        let first = rig.store().await;
        let limits: Vec<Limit> = vec!["x:1/sec:100".parse().unwrap()];
        let change = LimitsChange { limits, on_unavailable: None, expected_version: None };
        first.set_limits(&Level::System, &change, &rig.change()).await.unwrap();
        let (entity, resource) = ("key".parse().unwrap(), "gpt-4".parse().unwrap());
        let key = MemberKey { entity: &entity, resource: &resource };
        let found = first.resolve(&[key]).await.unwrap();
        let (limits, source) = found.members[0].limits.clone().unwrap();
        let limits = LimitsInForce::resolved(limits, source, found.stamp, 7);
        let table = way(&rig);
        let store = rig.client(table, |options| options.fast_grace_ms = 0).await;
        let bank = Bank { rig, store, limits };
        assert!(matches!(bank.take(&first, 0).await, ConsumeOutcome::Granted(_)));
        bank
    }

    async fn other(&self) -> DynamoStore {
        self.rig.client(self.rig.table.clone(), |options| options.fast_grace_ms = 0).await
    }

    async fn take(&self, store: &DynamoStore, tokens: i64) -> ConsumeOutcome {
        let takes = [Take { limit: 0, amount: Milli(tokens * 1_000) }];
        let member = MemberTake {
            entity: &"key".parse().unwrap(),
            resource: &"gpt-4".parse().unwrap(),
            limits: &self.limits,
            takes: &takes,
            absent: &[],
        };
        store.consume(&ConsumeRequest::new(&[member], self.rig.clock.now())).await.unwrap()
    }

    async fn order(&self, least: i64, want: i64, report: &Report) -> Provisioned {
        self.order_with_room(least, want, 0, report).await
    }

    async fn order_with_room(
        &self,
        least: i64,
        want: i64,
        room: i64,
        report: &Report,
    ) -> Provisioned {
        let [least, want, room] = [least, want, room].map(|tokens| Milli(tokens * 1_000));
        let (unit, depth) = (Milli(1_000), Milli::ZERO);
        let lines = [OrderLine { limit: 0, least, takes: least, want, unit, depth, room }];
        let order = Order {
            entity: &"key".parse().unwrap(),
            resource: &"gpt-4".parse().unwrap(),
            limits: &self.limits,
            lines: &lines,
            report,
            serves: true,
            age_ms: 2_000,
        };
        self.store.provision(&order, self.rig.clock.now()).await.unwrap()
    }

    /// An order that is granted: stock of so many tokens.
    async fn buy(&self, least: i64, want: i64) -> Stocked {
        match self.order(least, want, &Report::default()).await {
            Provisioned::Granted(stocked) => *stocked,
            other => panic!("{other:?}"),
        }
    }

    async fn give_back(&self, store: &DynamoStore, tokens: i64) -> Adjusted {
        let deltas = [Delta { limit: 0, amount: Milli(tokens * -1_000) }];
        let delta = BucketDelta {
            entity: &"key".parse().unwrap(),
            resource: &"gpt-4".parse().unwrap(),
            limits: &self.limits,
            deltas: &deltas,
            operation: 0,
            take: 0,
            place: 0,
        };
        store.adjust(&[delta], self.rig.clock.now()).await.remove(0).unwrap()
    }

    async fn settle(&self, report: &Report) -> Result<(), zae_limiter_store::StoreError> {
        let (entity, resource) = ("key".parse().unwrap(), "gpt-4".parse().unwrap());
        self.store.settle(&entity, &resource, report, self.rig.clock.now()).await
    }

    fn item(&self) -> Item {
        self.rig.table.get(&self.rig.bucket("key", "gpt-4")).expect("the bucket is there")
    }

    fn number(&self, name: &str) -> i64 {
        self.item().get(name).map_or(0, |value| value.as_n().unwrap().parse().unwrap())
    }

    /// Balance, use and takes, in tokens and in whole takes.
    fn books(&self) -> [i64; 3] {
        [
            self.number("b_x_tk") / 1_000,
            self.number("b_x_tc") / 1_000,
            self.number("b_wcu_tc") / 1_000,
        ]
    }

    fn is_lent(&self) -> bool {
        self.item().contains_key("ln")
    }

    fn pass(&self, ms: u64) {
        self.rig.clock.advance(std::time::Duration::from_millis(ms));
    }
}

fn report(back: i64, used: i64, grants: u32, of: &Stocked) -> Report {
    let limit: LimitName = "x".parse().unwrap();
    let (back, used) = (Milli(back * 1_000), Milli(used * 1_000));
    let booked = of.provision.lots[0].span;
    let lines = [Return { limit, back, used, booked }].into_iter().collect();
    Report { lines, grants, slot: of.provision.slot, ..Report::default() }
}

#[tokio::test]
async fn an_order_is_one_write_and_so_is_its_return() {
    let bank = Bank::new().await;
    let stocked = bank.buy(2, 10).await;
    assert_eq!(stocked.provision.lots[0].given, Milli(10_000));
    assert_eq!(stocked.bucket.limits()[0].balance, Milli(88_000));
    assert_eq!((bank.books(), bank.is_lent()), ([88, 2, 2], true), "stock is no use");
    bank.rig.table.take_counters();
    // Three of ten were used, by two requests.
    bank.settle(&report(7, 3, 2, &stocked)).await.unwrap();
    assert_eq!((bank.books(), bank.is_lent()), ([95, 5, 4], false));
    assert_eq!(bank.rig.table.take_counters().calls(Operation::Update), 1);
}

#[tokio::test]
async fn an_order_brings_back_what_the_last_one_left() {
    let bank = Bank::new().await;
    let first = bank.buy(1, 10).await;
    let next = bank.order(1, 10, &report(6, 4, 4, &first)).await;
    let Provisioned::Granted(next) = next else { panic!("{next:?}") };
    // 100 less 1, 4 and 1 that were used, less the stock of now.
    assert_eq!((bank.books(), next.bucket.limits()[0].balance), ([84, 6, 7], Milli(84_000)));
    assert_eq!(next.bucket.lent(&"x".parse().unwrap()), Milli(11_000), "only the new one counts");
}

/// The example of the rule: filled up, the bucket and the block would grant 120 of 100.
#[tokio::test]
async fn a_refund_stops_below_what_is_lent_until_the_loan_has_ended() {
    let bank = Bank::new().await;
    let other = bank.other().await;
    assert!(matches!(bank.take(&other, 30).await, ConsumeOutcome::Granted(_)));
    bank.buy(0, 15).await;
    assert_eq!(bank.books(), [55, 30, 3]);
    // 15 are lent for 2.5 s, in which at most 2.501 refill: the rest of 100 may be there.
    assert_eq!(bank.give_back(&other, 29).await, Adjusted::Applied);
    assert_eq!(
        (bank.number("b_x_tk"), bank.books()[1]),
        (82_499, 1),
        "what is too much is dropped"
    );
    bank.pass(2_501);
    assert!(bank.is_lent());
    assert_eq!(bank.give_back(&other, 1).await, Adjusted::Applied);
    // As it is stored: the time that has passed is for the next refill.
    assert_eq!(
        (bank.number("b_x_tk"), bank.is_lent()),
        (83_499, false),
        "nothing is lent any more"
    );
}

/// A refund that was computed before the loan must not land beside it.
#[tokio::test]
async fn a_refund_that_has_not_seen_a_loan_is_computed_anew() {
    let bank = Bank::new().await;
    let other = bank.other().await;
    assert!(matches!(bank.take(&other, 20).await, ConsumeOutcome::Granted(_)));
    // The other process remembers the bucket as it was before this.
    bank.buy(0, 20).await;
    assert_eq!(bank.give_back(&other, 20).await, Adjusted::Applied);
    assert_eq!(bank.number("b_x_tk"), 77_499, "100 less 20 that are lent and what refills");
}

/// Room for refunds is a credit to be, so it is computed for the balance that there is.
#[tokio::test]
async fn an_order_that_has_not_seen_a_refund_makes_no_room_in_its_place() {
    for (gives_back, span) in [(0, 25_000), (40, 5_000)] {
        let bank = Bank::new().await;
        let other = bank.other().await;
        assert!(matches!(bank.take(&other, 40).await, ConsumeOutcome::Granted(_)));
        // From here on this process remembers a bucket of 60.
        assert!(matches!(bank.take(&bank.store, 0).await, ConsumeOutcome::Granted(_)));
        assert_eq!(bank.give_back(&other, gives_back).await, Adjusted::Applied);
        let lent = bank.order_with_room(0, 5, 20, &Report::default()).await;
        let Provisioned::Granted(stocked) = lent else { panic!("{lent:?}") };
        assert_eq!(stocked.provision.lots[0].span, Milli(span), "{gives_back} came back");
    }
}

#[tokio::test]
async fn a_balance_above_the_ceiling_stays_as_it_is() {
    let bank = Bank::new().await;
    let other = bank.other().await;
    bank.buy(0, 20).await;
    assert_eq!(bank.books()[0], 80);
    assert_eq!(bank.give_back(&other, 5).await, Adjusted::Applied);
    assert_eq!(bank.number("b_x_tk"), 80_000, "77.5 is as far as a refund may lift");
}

#[tokio::test]
async fn a_bucket_lends_a_quarter_and_remembers_who_has_it() {
    let bank = Bank::new().await;
    assert_eq!(bank.buy(0, 90).await.provision.lots[0].given, Milli(25_000));
    assert!(matches!(bank.order(1, 5, &Report::default()).await, Provisioned::NotNow));
    bank.pass(5_001);
    assert_eq!(bank.buy(0, 5).await.provision.lots[0].given, Milli(5_000), "it has ended");
}

/// The write has landed, and its answer was lost: sent again, it is known by its nonce.
#[tokio::test]
async fn an_order_whose_answer_is_lost_is_made_once() {
    let bank = Bank::with(|rig| {
        let mut is_lost = false;
        let faults = Faults::by(move |asked| {
            if asked.operation() == Operation::Update && !std::mem::replace(&mut is_lost, true) {
                return Fate::LostAfter;
            }
            Fate::Pass
        });
        rig.table.client(3).with_faults(faults)
    })
    .await;
    let stocked = bank.buy(2, 10).await;
    assert_eq!(stocked.provision.lots[0].given, Milli(10_000));
    assert_eq!(bank.books(), [88, 2, 2]);
}

/// What is sent again is what was sent: reckoned anew, it would be more than was debited.
#[tokio::test]
async fn an_order_that_is_sent_again_lends_what_it_debited() {
    let bank = Bank::with(|rig| {
        let (clock, mut orders) = (rig.clock.clone(), 0);
        let faults = Faults::by(move |asked| {
            orders += u32::from(asked.operation() == Operation::Update);
            if asked.operation() == Operation::Update && orders == 1 {
                clock.advance(std::time::Duration::from_millis(400));
                return Fate::LostAfter;
            }
            Fate::Pass
        });
        rig.table.client(3).with_faults(faults)
    })
    .await;
    let other = bank.other().await;
    assert!(matches!(bank.take(&other, 80).await, ConsumeOutcome::Granted(_)));
    let stocked = bank.buy(0, 50).await;
    let lot = stocked.provision.lots[0];
    assert_eq!(lot.given.0, 20_000 - bank.number("b_x_tk"), "a quarter of what there was");
}

/// A return has landed, its answer was lost, and others have changed the bucket since: made once
/// more, it would come back twice.
#[tokio::test]
async fn a_return_of_unknown_fate_is_not_made_again() {
    let bank = Bank::with(|rig| {
        let mut writes = 0;
        let faults = Faults::by(move |asked| {
            writes += u32::from(asked.operation() == Operation::Update);
            let is_return = asked.operation() == Operation::Update && writes == 2;
            if is_return { Fate::LostAfter } else { Fate::Pass }
        });
        let (table, key) = (rig.table.clone(), rig.bucket("key", "gpt-4"));
        let updates = std::sync::atomic::AtomicU32::new(0);
        let gate = move |_: u32, point: Point| {
            let nth = u32::from(point == Point::Before(Operation::Update));
            if updates.fetch_add(nth, std::sync::atomic::Ordering::Relaxed) + nth == 3 && nth == 1 {
                // Another process takes 30, and leaves its nonce.
                let mut item = table.get(&key).unwrap();
                let left: i64 = item["b_x_tk"].as_n().unwrap().parse().unwrap();
                let left = AttributeValue::N((left - 30_000).to_string());
                item.insert("b_x_tk".to_owned(), left);
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
    let stocked = bank.buy(0, 20).await;
    let error = bank.settle(&report(15, 5, 5, &stocked)).await.unwrap_err();
    assert!(error.fate_unknown(), "{error}");
    assert_eq!(bank.books(), [65, 5, 7], "15 came back once, 30 were taken");
}

/// The same, heard of a minute later: what was decided then is too old to be spent.
#[tokio::test]
async fn an_order_that_is_confirmed_too_late_is_not_stock() {
    let bank = Bank::with(|rig| {
        let (clock, mut is_lost) = (rig.clock.clone(), false);
        let faults = Faults::by(move |asked| {
            if asked.operation() == Operation::Update && !std::mem::replace(&mut is_lost, true) {
                clock.advance(std::time::Duration::from_secs(60));
                return Fate::LostAfter;
            }
            Fate::Pass
        });
        rig.table.client(3).with_faults(faults)
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
    let late = bank.store.provision(&order, bank.rig.clock.now()).await.unwrap_err();
    assert!(late.fate_unknown() && late.to_string().contains("too late"), "{late}");
}

/// A return that is under way for so long that its loan has ended meanwhile, and somebody has given
/// back in its place, would lift the bucket above what an exact one has.
#[tokio::test]
async fn a_return_does_not_land_after_a_refund_that_took_its_place() {
    let bank = Bank::with(|rig| {
        let mut writes = 0;
        let faults = Faults::by(move |asked| {
            writes += u32::from(asked.operation() == Operation::Update);
            // The order passes; every attempt of the return is under way for ever.
            if asked.operation() == Operation::Update && writes > 1 {
                Fate::Late(1_000)
            } else {
                Fate::Pass
            }
        });
        rig.table.client(3).with_faults(faults)
    })
    .await;
    let other = bank.other().await;
    let stocked = bank.buy(0, 20).await;
    bank.settle(&report(20, 0, 0, &stocked)).await.unwrap_err();
    bank.pass(2_501);
    assert_eq!(bank.give_back(&other, 10).await, Adjusted::Applied);
    // The balance is again what the return was computed for.
    let now = bank.rig.clock.now();
    assert!(matches!(bank.take(&other, 10).await, ConsumeOutcome::Granted(_)), "{now:?}");
    assert!(bank.rig.table.land_all() > 0);
    assert_eq!(bank.number("b_x_tk"), 80_000, "80, the refund of 10 and the take of 10");
}

#[tokio::test]
async fn a_return_to_a_disabled_bucket_counts() {
    let bank = Bank::new().await;
    let other = bank.other().await;
    let stocked = bank.buy(0, 10).await;
    let level = Level::Resource("gpt-4".parse().unwrap());
    other.set_flag(&level, Some(Flag::Disabled), &bank.rig.change()).await.unwrap();
    bank.settle(&report(6, 4, 1, &stocked)).await.unwrap();
    assert_eq!(&bank.books()[1..], [4, 3]);
    assert!(matches!(bank.order(1, 5, &Report::default()).await, Provisioned::NotNow));
}

#[tokio::test]
async fn what_has_to_be_set_right_first_is_left_to_a_take() {
    let bank = Bank::new().await;
    let change = LimitsChange {
        limits: vec!["x:1/sec:50".parse().unwrap()],
        on_unavailable: None,
        expected_version: None,
    };
    bank.store.set_limits(&Level::System, &change, &bank.rig.change()).await.unwrap();
    let other =
        Bank { limits: LimitsInForce::new(change.limits.clone(), LimitSource::System), ..bank };
    assert!(matches!(other.order(1, 5, &Report::default()).await, Provisioned::NotNow));
    let key = other.rig.bucket("key", "gpt-4");
    other.rig.table.remove(&key);
    other.store.forget_config();
    let absent = other.order(1, 5, &Report::default()).await;
    assert!(matches!(absent, Provisioned::NotNow), "{absent:?}");
    other.settle(&Report { grants: 1, ..Report::default() }).await.unwrap();
    assert!(other.rig.table.get(&key).is_none(), "what is gone was full");
}

/// Everything that a take would look at first.
#[tokio::test]
async fn a_bucket_that_is_not_as_it_should_be_does_not_lend() {
    let number = |value: i64| AttributeValue::N(value.to_string());
    let mut bank = Bank::new().await;
    let now = bank.rig.clock.now().0;
    let whole = bank.item();
    let cases: [(&str, Option<AttributeValue>); 7] = [
        ("sched", Some(AttributeValue::S("weekly".to_owned()))),
        ("disabled", Some(AttributeValue::Bool(true))),
        ("vu", Some(number(now))),
        ("ret", Some(AttributeValue::Ss(vec!["x".to_owned()]))),
        ("ttl", None),
        ("rf", Some(number(now + 60_000))),
        ("b_wcu_tk", Some(number(-999_500))),
    ];
    for (name, value) in cases {
        let mut item = whole.clone();
        match value {
            Some(value) => drop(item.insert(name.to_owned(), value)),
            None => drop(item.remove(name)),
        }
        bank.rig.table.insert(&item);
        // Another process each time: nothing is remembered.
        bank.store = bank.other().await;
        let answer = bank.order(1, 5, &Report::default()).await;
        assert!(matches!(answer, Provisioned::NotNow), "{name}: {answer:?}");
        assert!(!bank.is_lent() && bank.books()[1] == 0, "{name}");
    }
}

/// Shares of a bucket could not be computed from what all of it has lent.
#[tokio::test]
async fn a_bucket_is_split_when_nothing_is_lent_and_lends_no_more() {
    let bank = Bank::new().await;
    let stocked = bank.buy(0, 10).await;
    let mut options = DynamoOptions::new();
    options.clock = Arc::new(bank.rig.clock.clone());
    let upkeep = Upkeep::new(Arc::new(bank.rig.table.clone()), options);
    let name = BucketName {
        namespace: bank.rig.namespace.clone(),
        entity: "key".to_owned(),
        resource: "gpt-4".to_owned(),
    };
    assert!(!upkeep.split(&name, 0).await.unwrap(), "it has lent");
    bank.pass(2_501);
    assert!(upkeep.split(&name, 0).await.unwrap());
    assert!(!bank.is_lent());
    let refused = bank.order(1, 5, &Report::default()).await;
    assert!(matches!(refused, Provisioned::NotNow), "{refused:?}");
    // Its use counts all the same; stock that a wrong clock takes for young does not come back.
    bank.settle(&report(0, 3, 2, &stocked)).await.unwrap();
    let left = bank.books()[0];
    bank.settle(&report(5, 1, 1, &stocked)).await.unwrap_err();
    assert_eq!(bank.books(), [left, 4, 5]);
}

/// A refund by another process is not known here: what is remembered must not refuse for long.
#[tokio::test]
async fn an_order_is_refused_by_what_the_bucket_has_now() {
    let bank = Bank::new().await;
    let other = bank.other().await;
    assert!(matches!(bank.take(&bank.store, 95).await, ConsumeOutcome::Granted(_)));
    assert!(matches!(bank.order(20, 5, &Report::default()).await, Provisioned::Refused(_)));
    assert_eq!(bank.give_back(&other, 60).await, Adjusted::Applied);
    bank.pass(1_500);
    let answer = bank.order(20, 5, &Report::default()).await;
    assert!(matches!(answer, Provisioned::Granted(_)), "{answer:?}");
}

#[tokio::test]
async fn a_return_to_a_bucket_in_debt_repays_it() {
    let bank = Bank::new().await;
    let other = bank.other().await;
    let stocked = bank.buy(0, 10).await;
    assert_eq!(bank.give_back(&other, -95).await, Adjusted::Applied);
    assert_eq!(bank.books()[0], -5);
    bank.settle(&report(3, 7, 7, &stocked)).await.unwrap();
    assert_eq!(bank.books()[..2], [-2, 102]);
}

/// Others refill the bucket between any two attempts: what is left is lost, what was used is not.
#[tokio::test]
async fn a_return_that_always_loses_its_race_counts_its_use() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let races = Arc::new(AtomicBool::new(false));
    let on = Arc::clone(&races);
    let bank = Bank::with(move |rig| {
        let (table, key) = (rig.table.clone(), rig.bucket("key", "gpt-4"));
        let gate = move |_: u32, point: Point| {
            if point == Point::Before(Operation::Update) && on.load(Ordering::Relaxed) {
                let mut item = table.get(&key).unwrap();
                let refilled_at: i64 = item["rf"].as_n().unwrap().parse().unwrap();
                item.insert("rf".to_owned(), AttributeValue::N((refilled_at + 1).to_string()));
                table.insert(&item);
            }
            0
        };
        rig.table.client(3).with_gate(Arc::new(gate))
    })
    .await;
    let stocked = bank.buy(0, 10).await;
    races.store(true, Ordering::Relaxed);
    let lost = bank.settle(&report(6, 4, 3, &stocked)).await.unwrap_err();
    assert!(lost.to_string().contains("could not take back"), "{lost}");
    assert_eq!(bank.books(), [90, 4, 5]);
    assert!(matches!(bank.order(1, 10, &Report::default()).await, Provisioned::NotNow));
}

#[tokio::test]
async fn a_reset_and_a_listing_know_of_loans() {
    let bank = Bank::new().await;
    bank.buy(5, 10).await;
    let (entity, resource) = ("key".parse().unwrap(), "gpt-4".parse().unwrap());
    let page = bank.store.buckets(&entity, &PageRequest::default()).await.unwrap();
    assert_eq!(page.items[0].state.lent(&"x".parse().unwrap()), Milli(15_000));
    let request = ResetRequest { entity: &entity, resource: &resource, only: None };
    bank.store.reset(&request, &bank.rig.change()).await.unwrap();
    assert_eq!(bank.books()[0], 100);
}

/// A foreign writer may have left anything in the attribute.
#[tokio::test]
async fn loans_that_cannot_be_read_are_an_error_that_names_them() {
    let bank = Bank::new().await;
    let mut item = bank.item();
    item.insert("ln".to_owned(), AttributeValue::S("soon".to_owned()));
    bank.rig.table.insert(&item);
    let takes = [Take { limit: 0, amount: Milli(200_000) }];
    let member = MemberTake {
        entity: &"key".parse().unwrap(),
        resource: &"gpt-4".parse().unwrap(),
        limits: &bank.limits,
        takes: &takes,
        absent: &[],
    };
    let request = ConsumeRequest::new(std::slice::from_ref(&member), bank.rig.clock.now());
    let error = bank.other().await.consume(&request).await.unwrap_err();
    assert!(error.to_string().contains("\"ln\""), "{error}");
}
