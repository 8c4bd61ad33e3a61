//! The evaluator's own tools: faults, gates, late writes, lagging reads, pages, sweeps, the
//! journal.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use zae_limiter_dynamodb::table::{
    Action, Cancellation, Comparison, Index, Item, Key, Put, Query, Sort, Table, TableError,
    Update, Write, compare, number, text,
};
use zae_limiter_testkit::table::{
    Asked, EvalOptions, EvalTable, Fate, Faults, Gate, Odds, Operation, Point, Request, SWEEPER,
    SeededGate, Told, item_size,
};

fn key(pk: &str) -> Key {
    Key { pk: pk.to_owned(), sk: "sk".into() }
}

fn add(pk: &str, amount: i64) -> Update {
    Update { key: key(pk), actions: vec![Action::Add("n".into(), amount)], conditions: vec![] }
}

fn item(pk: &str, attributes: &[(&str, &str)]) -> Item {
    let attributes = attributes.iter().map(|(name, value)| ((*name).to_owned(), text(*value)));
    attributes.chain([("PK".to_owned(), text(pk)), ("SK".to_owned(), text("sk"))]).collect()
}

fn query(index: Option<Index>, partition: &str) -> Query {
    Query {
        index,
        partition: partition.to_owned(),
        sort: Sort::All,
        start: None,
        limit: None,
        ascending: true,
        consistent: false,
    }
}

/// What `n` is; `None` without the item.
fn n(table: &EvalTable, pk: &str) -> Option<i64> {
    table
        .get(&key(pk))
        .map(|item| item["n"].as_n().expect("a number").parse().expect("a whole number"))
}

/// Polls a future that waits for nobody until it is ready; the polls it took.
fn drive<T>(future: impl Future<Output = T>) -> (T, usize) {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    for polls in 1..1_000 {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return (value, polls);
        }
    }
    panic!("it does not end");
}

fn done<T>(future: impl Future<Output = T>) -> T {
    drive(future).0
}

#[test]
fn a_fate_decides_what_lands_and_what_is_told() {
    let check = |fate: Fate, landed: Option<i64>, told: Told| {
        let table = EvalTable::with_options(EvalOptions::new().journal());
        let client = table.client(3).with_faults(Faults::scripted([fate]));
        let answer = done(client.update(&add("a", 1)));
        assert_eq!(n(&table, "a"), landed, "{fate:?}: what landed");
        let journal = table.take_journal();
        assert_eq!(journal.len(), 1);
        assert_eq!((journal[0].told, journal[0].client, journal[0].fate), (told, 3, fate));
        assert_eq!(
            journal[0].changes.len(),
            usize::from(landed.is_some()),
            "{fate:?}: what the journal says of it"
        );
        assert_eq!(answer.is_ok(), told == Told::Done, "{fate:?}: {answer:?}");
    };
    check(Fate::Pass, Some(1), Told::Done);
    check(Fate::NotApplied, None, Told::NotApplied);
    check(Fate::Unreachable, None, Told::Unreachable);
    check(Fate::LostBefore, None, Told::Unknown);
    check(Fate::LostAfter, Some(1), Told::Unknown);
    check(Fate::Conflict(1), None, Told::NotApplied);
    check(Fate::Late(3), None, Told::Unknown);
    check(Fate::Lag(3), Some(1), Told::Done);
}

#[test]
fn a_condition_that_failed_is_not_told_when_the_reply_is_lost() {
    let table = EvalTable::new();
    let client = table.client(1).with_faults(Faults::scripted([Fate::LostAfter]));
    let update = Update { conditions: vec![compare("n", Comparison::Ge, 5)], ..add("a", 1) };
    assert!(matches!(done(client.update(&update)), Err(TableError::Unknown(_))));
    assert_eq!(n(&table, "a"), None);
}

#[test]
fn a_transaction_in_the_way_names_the_leg() {
    let table = EvalTable::new();
    let client =
        table.client(1).with_faults(Faults::scripted([Fate::Conflict(4), Fate::Throttled(0)]));
    let legs = ["a", "b", "c"].map(|pk| Write::Update(add(pk, 1)));
    let reasons = |result: Result<(), TableError>| match result {
        Err(TableError::Canceled(reasons)) => reasons,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        reasons(done(client.transact(&legs, "t"))),
        [Cancellation::Innocent, Cancellation::Conflict, Cancellation::Innocent]
    );
    assert_eq!(
        reasons(done(client.transact(&legs, "t"))),
        [Cancellation::Throttled, Cancellation::Innocent, Cancellation::Innocent]
    );
    done(client.transact(&legs, "t")).expect("the third time");
    assert_eq!(["a", "b", "c"].map(|pk| n(&table, pk)), [Some(1); 3]);
}

#[test]
fn a_late_write_lands_on_what_is_there_then() {
    let table = EvalTable::with_options(EvalOptions::new().journal());
    let late = table.client(1).with_faults(Faults::scripted([Fate::Late(2)]));
    let guarded = Update { conditions: vec![compare("n", Comparison::Lt, 10)], ..add("a", 5) };
    done(table.update(&add("a", 1))).unwrap();
    assert!(matches!(done(late.update(&guarded)), Err(TableError::Unknown(_))));
    assert_eq!(table.late(), [Request::Update(guarded)]);
    done(table.update(&add("a", 1))).unwrap();
    assert_eq!(n(&table, "a"), Some(2), "one call later it is still on its way");
    done(table.update(&add("b", 1))).unwrap();
    assert_eq!(n(&table, "a"), Some(7), "before the second call after it, it is there");
    let zombies: Vec<_> =
        table.take_journal().into_iter().filter(|call| call.told == Told::Nobody).collect();
    assert_eq!((zombies.len(), zombies[0].client, zombies[0].changes.len()), (1, 1, 1));
    assert_eq!(table.counters().landed_late, 1);
}

#[test]
fn a_late_write_lands_or_is_lost_by_order() {
    let table = EvalTable::new();
    let late = table.client(1).with_faults(Faults::by(|_| Fate::Late(1_000)));
    for pk in ["a", "b", "c"] {
        assert!(done(late.update(&add(pk, 1))).is_err());
    }
    assert!(table.land(1) && !table.land(2), "one of three, and then there are two");
    assert_eq!(["a", "b", "c"].map(|pk| n(&table, pk)), [None, Some(1), None]);
    assert_eq!(table.land_all(), 2);
    assert!(done(late.put(&Put { item: item("d", &[]), conditions: vec![] })).is_err());
    assert_eq!((table.lose_all(), table.land_all()), (1, 0));
    assert_eq!(table.get(&key("d")), None);
    // The transaction of a token that landed late has landed.
    assert!(done(late.transact(&[Write::Update(add("e", 1))], "t")).is_err());
    table.land_all();
    done(table.transact(&[Write::Update(add("e", 1))], "t")).expect("the same one");
    assert_eq!(n(&table, "e"), Some(1));
}

#[test]
fn a_token_is_forgotten_after_ten_minutes() {
    let table = EvalTable::new();
    let legs = [Write::Update(add("a", 1))];
    for (now_ms, expected) in [(0, 1), (599_999, 1), (600_000, 2), (1_000_000, 2)] {
        table.set_now_ms(now_ms);
        done(table.transact(&legs, "t")).unwrap();
        assert_eq!(n(&table, "a"), Some(expected), "after {now_ms} ms");
    }
}

#[test]
fn reads_lag_when_they_may() {
    let table = EvalTable::new();
    table.insert(&item("a", &[("GSI4PK", "ns"), ("GSI4SK", "1")]));
    for _ in 0..3 {
        done(table.update(&add("a", 1))).unwrap();
    }
    table.insert(&item("b", &[("GSI4PK", "ns"), ("GSI4SK", "2")]));
    table.remove(&key("a"));
    let lagging = table.client(1).with_faults(Faults::by(|_| Fate::Lag(3)));
    let read =
        |consistent| done(lagging.batch_get(&[key("a"), key("b")], consistent)).unwrap().items;
    assert_eq!(read(true).len(), 1, "a consistent read does not lag");
    let then = read(false);
    assert_eq!(
        (then.len(), &then[0]["n"]),
        (1, &number(2)),
        "three changes ago b was not there and a was at 2"
    );
    let listed = done(lagging.query(&query(Some(Index::Gsi4), "ns"))).unwrap().items;
    assert_eq!(
        listed,
        [item("a", &[("GSI4PK", "ns"), ("GSI4SK", "1")])],
        "an index lags even when asked not to"
    );
    let consistent = Query { consistent: true, ..query(None, "b") };
    assert_eq!(done(lagging.query(&consistent)).unwrap().items.len(), 1);
    assert_eq!(done(lagging.query(&Query { consistent: false, ..consistent })).unwrap().items, []);
    let behind = EvalTable::with_options(EvalOptions::new().lag_writes(1));
    done(behind.update(&add("a", 1))).unwrap();
    assert_eq!(done(behind.batch_get(&[key("a")], false)).unwrap().items, []);
}

#[test]
fn a_batch_keeps_keys_back() {
    let table = EvalTable::new();
    let keys: Vec<Key> = ["a", "b", "c", "d"].map(key).into();
    for key in &keys {
        table.insert(&item(&key.pk, &[]));
    }
    let client = table.client(1).with_faults(Faults::scripted([
        Fate::Withhold(2),
        Fate::Withhold(1),
        Fate::Withhold(3),
    ]));
    let page = done(client.batch_get(&keys, true)).unwrap();
    assert_eq!((page.items.len(), page.unprocessed), (2, vec![key("a"), key("c")]));
    let page = done(client.batch_get(&keys, true)).unwrap();
    assert_eq!((page.items.len(), page.unprocessed), (0, keys.clone()));
    assert_eq!(done(client.delete_batch(&keys)).unwrap(), [key("a"), key("d")]);
    assert_eq!(table.items().len(), 2);
}

#[test]
fn a_query_ends_where_the_page_does() {
    let table = EvalTable::with_options(EvalOptions::new().page_max(2));
    for pk in ["a", "b", "c", "d", "e"] {
        table.insert(&item(pk, &[("GSI3PK", "p"), ("GSI3SK", "same"), ("more", "x")]));
    }
    table.insert(&item("half", &[("GSI3PK", "p")]));
    for ascending in [true, false] {
        let (mut request, mut found) =
            (Query { ascending, ..query(Some(Index::Gsi3), "p") }, Vec::new());
        for _ in 0..4 {
            let page = done(table.query(&request)).unwrap();
            assert!(page.items.iter().all(|item| item.len() == 4), "keys only: {page:?}");
            found.extend(page.items.iter().map(|item| item["PK"].as_s().unwrap().clone()));
            request.start = page.last;
            if request.start.is_none() {
                break;
            }
        }
        if !ascending {
            found.reverse();
        }
        assert_eq!(found, ["a", "b", "c", "d", "e"], "each once, and only those with both keys");
    }
    let foreign = Query { start: Some(item("a", &[])), ..query(Some(Index::Gsi3), "p") };
    assert!(
        matches!(done(table.query(&foreign)), Err(TableError::Rejected(_))),
        "not the end of a page of this query"
    );
}

#[test]
fn a_sweep_forgets_what_has_expired() {
    let table = EvalTable::with_options(EvalOptions::new().journal());
    for (pk, ttl) in
        [("past", number(99)), ("now", number(100)), ("later", number(101)), ("text", text("1"))]
    {
        let mut item = item(pk, &[]);
        item.insert("ttl".to_owned(), ttl);
        table.insert(&item);
    }
    table.insert(&item("never", &[]));
    assert_eq!(table.sweep(100), [key("now"), key("past")]);
    assert_eq!(table.items().len(), 3);
    let journal = table.take_journal();
    assert_eq!((journal.len(), journal[0].client, journal[0].changes.len()), (1, SWEEPER, 2));
    assert_eq!(table.sweep(100), []);
}

#[test]
fn gates_hold_a_call_before_and_after() {
    let table = EvalTable::new();
    let gate = |client: u32, point: Point| match point {
        Point::Before(Operation::Update) => client,
        Point::After(Operation::Update) => 2,
        _ => 0,
    };
    let client = table.client(3).with_gate(Arc::new(gate));
    let first = add("a", 1);
    let mut call = client.update(&first);
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..3 {
        assert!(call.as_mut().poll(&mut context).is_pending());
        assert_eq!(n(&table, "a"), None, "it waits before it is carried out");
    }
    assert!(call.as_mut().poll(&mut context).is_pending());
    assert_eq!(n(&table, "a"), Some(1), "it was carried out, the answer waits");
    drop(call);
    assert_eq!(n(&table, "a"), Some(1), "and stays so for somebody who does not wait for it");
    assert_eq!(drive(client.update(&first)).1, 1 + 3 + 2, "polls of a whole call");
    assert_eq!(drive(client.batch_get(&[key("a")], true)).1, 1, "other calls do not wait");
}

/// One run of two clients, as a simulator would poll them: everything it did, as text.
fn run(seed: u64, odds: Odds) -> (String, Vec<Fate>) {
    let table = EvalTable::with_options(EvalOptions::new().journal());
    let faults = Faults::seeded(seed, odds);
    let gate: Arc<dyn Gate> = Arc::new(SeededGate::new(seed, 60, 3));
    let client = |number| table.client(number).with_faults(faults.clone()).with_gate(gate.clone());
    let work = async |table: EvalTable, amount: i64| {
        for round in 0..20 {
            // What an answer says is what the next call depends on.
            let told = table.update(&add("a", amount)).await.is_ok();
            let legs = [Write::Update(add("b", i64::from(told))), Write::Update(add("c", 1))];
            let _ = table.transact(&legs, &format!("{amount}-{round}")).await;
            let _ = table.batch_get(&[key("a"), key("b"), key("c")], round % 2 == 0).await;
            let _ = table.query(&query(None, "a")).await;
        }
    };
    let (mut one, mut two) = (Box::pin(work(client(1), 1)), Box::pin(work(client(2), 100)));
    let mut context = Context::from_waker(Waker::noop());
    let (mut first, mut second) = (true, true);
    for _ in 0..10_000 {
        first = first && one.as_mut().poll(&mut context).is_pending();
        second = second && two.as_mut().poll(&mut context).is_pending();
    }
    assert!(!first && !second, "both have ended");
    table.land_all();
    (
        format!(
            "{:?} {:?}",
            table
                .take_journal()
                .iter()
                .map(|call| (call.client, call.fate, call.told))
                .collect::<Vec<_>>(),
            n(&table, "a")
        ),
        faults.decided(),
    )
}

#[test]
fn one_seed_is_one_run() {
    for (seed, odds) in [(1, Odds::FAIR), (2, Odds::ROUGH), (3, Odds::OUTAGE)] {
        let (told, decided) = run(seed, odds);
        assert_eq!(run(seed, odds), (told.clone(), decided), "the same seed, the same run");
        assert_ne!(run(seed + 100, odds).0, told, "another seed, another run");
    }
    assert!(
        run(4, Odds::CLEAR).1.iter().all(|fate| fate.is_fair()),
        "nothing happens in clear weather"
    );
}

#[test]
fn every_fate_is_drawn() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..20 {
        seen.extend(
            run(seed, Odds::ROUGH)
                .1
                .iter()
                .map(|fate| format!("{fate:?}").split('(').next().unwrap().to_owned()),
        );
    }
    let all = [
        "Conflict",
        "Lag",
        "Late",
        "LostAfter",
        "LostBefore",
        "NotApplied",
        "Pass",
        "Throttled",
        "Unreachable",
        "Withhold",
    ];
    assert_eq!(seen.iter().map(String::as_str).collect::<Vec<_>>(), all);
}

#[test]
fn a_script_replays_a_seed() {
    let calls = |faults: &Faults| {
        let table = EvalTable::new();
        let client = table.client(1).with_faults(faults.clone());
        (0..50).map(|_| done(client.update(&add("a", 1))).is_ok()).collect::<Vec<_>>()
    };
    let seeded = Faults::seeded(9, Odds::ROUGH);
    let first = calls(&seeded);
    assert_eq!(calls(&Faults::scripted(seeded.decided())), first);
    assert_eq!(seeded.drawn(), seeded.decided().iter().filter(|fate| !fate.is_fair()).count());
    assert_eq!(seeded.set_odds(Odds::CLEAR), Some(Odds::ROUGH));
    assert_eq!(calls(&seeded), [true; 50]);
}

#[test]
fn a_rule_sees_what_is_asked() {
    let table = EvalTable::new();
    let rule = |asked: &Asked<'_>| match asked {
        Asked::Update(update) if update.key.pk == "b" => Fate::LostAfter,
        _ => Fate::Pass,
    };
    let client = table.client(1).with_faults(Faults::by(rule));
    assert!(done(client.update(&add("a", 1))).is_ok());
    assert!(done(client.update(&add("b", 1))).is_err());
    assert_eq!((n(&table, "a"), n(&table, "b")), (Some(1), Some(1)));
}

#[test]
fn calls_and_units_are_counted() {
    let table = EvalTable::new();
    done(
        table
            .put(&Put { item: item("a", &[("GSI1PK", "p"), ("GSI1SK", "s")]), conditions: vec![] }),
    )
    .unwrap();
    let refused = Update { conditions: vec![compare("n", Comparison::Ge, 1)], ..add("a", 1) };
    assert!(done(table.update(&refused)).is_err());
    let counters = table.take_counters();
    assert_eq!(
        (counters.calls(Operation::Put), counters.calls(Operation::Update), counters.all_calls()),
        (1, 1, 2)
    );
    assert_eq!(
        (counters.units.writes(), counters.units.index, counters.failed.writes(), counters.changes),
        (3, 1, 1, 1)
    );
    assert_eq!(table.counters().all_calls(), 0);
    assert_eq!(item_size(&item("a", &[("n", "12")])), 2 + 1 + 2 + 2 + 1 + 2);
}
