//! The evaluator against a real engine: the same random calls on both, and the same answers,
//! images, reasons, items and costs.

mod random;

use std::sync::Arc;

use aws_sdk_dynamodb::types::AttributeValue;
use random::{Random, Step};
use zae_limiter_dynamodb::DynamoStore;
use zae_limiter_dynamodb::sdk::{CallLog, Gsi2Projection, SdkTable, TableOptions, create_table};
use zae_limiter_dynamodb::table::{
    Action, Cancellation, Check, Comparison, Condition, Delete, Index, Item, Key, Put, Query,
    QueryPage, Sort, Table, TableError, Update, Write, compare, compare_with, number, text,
};
use zae_limiter_store::SystemClock;
use zae_limiter_testkit::engine::Engine;
use zae_limiter_testkit::table::{EvalOptions, EvalTable, Gsi2};

const SEEDS: u64 = 12;
const STEPS: usize = 120;

/// Pages a walk through a query goes before it is called endless.
const PAGES_MAX: usize = 200;

/// Both tables, empty.
struct Pair {
    real: SdkTable,
    eval: EvalTable,
    log: Arc<CallLog>,
}

impl Pair {
    async fn new(engine: &Engine, stack: &str, gsi2: Gsi2) -> Pair {
        let log = Arc::new(CallLog::new());
        let builder = DynamoStore::builder(stack, "us-east-1")
            .endpoint_url(engine.endpoint())
            .trust_local_clock();
        let real = builder.table().await.expect("an address").observed_by(log.clone());
        let projection =
            if gsi2 == Gsi2::All { Gsi2Projection::All } else { Gsi2Projection::KeysOnly };
        create_table(&real, &TableOptions::new().gsi2(projection), &SystemClock::new())
            .await
            .expect("a table");
        Pair { real, eval: EvalTable::with_options(EvalOptions::new().gsi2(gsi2)), log }
    }

    /// Makes a call on both; panics when they differ in the answer or, for a call that was carried
    /// out, in what it cost.
    async fn step(&self, step: &Step, told: &str) -> Answer {
        self.eval.take_counters();
        self.log.take();
        let (real, eval) = (answer(&self.real, step).await, answer(&self.eval, step).await);
        assert_eq!(eval, real, "{told}: the evaluator, then the engine, on {step:?}");
        let sent = self.log.take();
        if let [call] = &sent[..]
            && call.failure.is_none()
        {
            let units = self.eval.counters().units;
            let found = (units.writes() as f64, units.index as f64, units.read_halves as f64 / 2.0);
            // The engine reports the units of an index query as those of the index.
            let index = if matches!(step, Step::Query(_)) { 0.0 } else { call.index_units };
            assert_eq!(
                found,
                (call.write_units, index, call.read_units),
                "{told}: units of writes, indexes and reads of {step:?}"
            );
        }
        eval
    }

    /// Every item and every index of both.
    async fn compare_all(&self, random: &Random, told: &str) {
        self.step(&Step::BatchGet(random.keys(), true), told).await;
        for query in random.queries() {
            let (real, eval) = (walk(&self.real, &query).await, walk(&self.eval, &query).await);
            assert_eq!(eval, real, "{told}: the evaluator, then the engine, on {query:?}");
        }
    }
}

/// An answer that can be compared: sets sorted, reasons of rejections left out.
#[derive(Debug, PartialEq)]
enum Answer {
    Item(Item),
    Done,
    Items(Vec<Item>),
    Condition(Option<Item>),
    Canceled(Vec<Cancellation>),
    Rejected,
}

async fn answer(table: &dyn Table, step: &Step) -> Answer {
    let result = match step {
        Step::Update(update) => table.update(update).await.map(|item| Answer::Item(normal(item))),
        Step::Put(put) => table.put(put).await.map(|()| Answer::Done),
        Step::Transact(writes, token) => table.transact(writes, token).await.map(|()| Answer::Done),
        Step::BatchGet(keys, consistent) => table.batch_get(keys, *consistent).await.map(|page| {
            assert_eq!(page.unprocessed, [], "nobody withholds anything here");
            Answer::Items(sorted(page.items))
        }),
        Step::Query(query) => {
            table.query(query).await.map(|page| Answer::Items(sorted(page.items)))
        }
        Step::DeleteBatch(keys) => table.delete_batch(keys).await.map(|open| {
            assert_eq!(open, [], "nobody withholds anything here");
            Answer::Done
        }),
    };
    match result {
        Ok(answer) => answer,
        Err(TableError::Condition(item)) => Answer::Condition(item.map(normal)),
        Err(TableError::Canceled(reasons)) => {
            Answer::Canceled(reasons.into_iter().map(reason).collect())
        }
        Err(TableError::Rejected(_)) => Answer::Rejected,
        Err(other) => panic!("{other} on {step:?}"),
    }
}

fn reason(reason: Cancellation) -> Cancellation {
    match reason {
        Cancellation::Condition(item) => Cancellation::Condition(item.map(normal)),
        Cancellation::Rejected(_) => Cancellation::Rejected(String::new()),
        other => other,
    }
}

fn normal(item: Item) -> Item {
    item.into_iter()
        .map(|(name, value)| match value {
            AttributeValue::Ss(mut members) => {
                members.sort();
                (name, AttributeValue::Ss(members))
            }
            AttributeValue::Ns(mut members) => {
                members.sort();
                (name, AttributeValue::Ns(members))
            }
            value => (name, value),
        })
        .collect()
}

/// Items by key: a batch has no order, and an index none among equal sort keys.
fn sorted(items: Vec<Item>) -> Vec<Item> {
    let mut items: Vec<Item> = items.into_iter().map(normal).collect();
    let place = |item: &Item| {
        [&item["PK"], &item["SK"]].map(|value| value.as_s().cloned().unwrap_or_default())
    };
    items.sort_by_key(place);
    items
}

/// All pages of a query: the sort keys in order, the sizes of pages that have items, and the items.
async fn walk(table: &dyn Table, query: &Query) -> (Vec<String>, Vec<usize>, Vec<Item>) {
    let sort = query
        .index
        .map_or("SK".to_owned(), |index| format!("{}SK", format!("{index:?}").to_uppercase()));
    let (mut query, mut order, mut sizes, mut items) =
        (query.clone(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..PAGES_MAX {
        let QueryPage { items: page, last } = table.query(&query).await.expect("a page");
        // The service may say that there is more when there is not; an engine need not.
        if !page.is_empty() {
            sizes.push(page.len());
        }
        order.extend(page.iter().map(|item| item[&sort].as_s().expect("a text").clone()));
        items.extend(page);
        match last {
            Some(_) => query.start = last,
            None => return (order, sizes, sorted(items)),
        }
    }
    panic!("{query:?} does not end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_calls_have_the_same_answers_on_a_real_engine() {
    let engine = Engine::start();
    let mut tally = std::collections::BTreeMap::new();
    for seed in 0..SEEDS {
        let gsi2 = if seed % 3 == 0 { Gsi2::All } else { Gsi2::KeysOnly };
        let pair = Pair::new(&engine, &format!("seed-{seed}"), gsi2).await;
        let mut random = Random::new(seed);
        for number in 0..STEPS {
            let told = format!("seed {seed}, step {number}");
            let step = random.step();
            let answer = pair.step(&step, &told).await;
            *tally.entry(format!("{} {}", step.name(), outcome(&answer))).or_insert(0_usize) += 1;
            if number % 30 == 29 {
                pair.compare_all(&random, &told).await;
            }
        }
    }
    // A generator that never succeeds, or never fails, compares nothing.
    let often = [
        "Update Item",
        "Update Condition",
        "Update Rejected",
        "Put Done",
        "Put Condition",
        "Transact Done",
        "Transact Canceled",
        "Query Items",
    ];
    for what in often {
        assert!(
            tally.get(what).is_some_and(|count| *count >= 20),
            "{what} hardly ever happened: {tally:?}"
        );
    }
}

fn outcome(answer: &Answer) -> &'static str {
    match answer {
        Answer::Item(_) => "Item",
        Answer::Done => "Done",
        Answer::Items(_) => "Items",
        Answer::Condition(_) => "Condition",
        Answer::Canceled(_) => "Canceled",
        Answer::Rejected => "Rejected",
    }
}

fn key(pk: &str, sk: &str) -> Key {
    Key { pk: pk.to_owned(), sk: sk.to_owned().into() }
}

/// A bucket as the product writes it: four indexes, three limits.
fn bucket(entity: &str) -> Item {
    let (entity, resource) = (entity.to_owned(), "gpt-4".to_owned());
    let mut item: Item = [
        ("PK", format!("ns000000/BUCKET#{entity}#{resource}#0")),
        ("SK", "#STATE".to_owned()),
        ("GSI2PK", format!("ns000000/RESOURCE#{resource}")),
        ("GSI2SK", format!("BUCKET#{entity}#0")),
        ("GSI3PK", format!("ns000000/ENTITY#{entity}")),
        ("GSI3SK", format!("BUCKET#{resource}#0")),
        ("GSI4PK", "ns000000".to_owned()),
        ("GSI4SK", format!("BUCKET#{entity}#{resource}#0")),
        ("entity_id", entity),
        ("resource", resource),
        ("lw", "0123456789abcdef".to_owned()),
    ]
    .map(|(name, value)| (name.to_owned(), text(value)))
    .into();
    for limit in ["rpm", "tpm", "wcu"] {
        for (field, value) in
            [("tk", -59_000), ("cp", 60_000), ("ra", 60_000), ("rp", 60_000), ("tc", 1_000)]
        {
            item.insert(format!("b_{limit}_{field}"), number(value));
        }
    }
    item.insert("rf".to_owned(), number(1_767_261_600_000));
    item.insert("cascade".to_owned(), AttributeValue::Bool(false));
    item
}

fn on(key: &Key, actions: Vec<Action>, conditions: Vec<Condition>) -> Update {
    Update { key: key.clone(), actions, conditions }
}

/// What the product sends all day costs the same on both; the figures themselves are what the
/// README promises.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn typical_writes_cost_the_same() {
    let engine = Engine::start();
    for (gsi2, warm) in [(Gsi2::KeysOnly, 1), (Gsi2::All, 2)] {
        let pair = Pair::new(&engine, if warm == 1 { "ours" } else { "python" }, gsi2).await;
        let item = bucket("key-1");
        let at = key(item["PK"].as_s().unwrap(), "#STATE");
        let units = async |step: Step| {
            pair.step(&step, &format!("{gsi2:?}")).await;
            pair.eval.counters().units
        };
        let absent = vec![Condition::Absent("PK".into())];
        assert_eq!(
            units(Step::Put(Put { item: item.clone(), conditions: absent })).await.writes(),
            4,
            "an item and three indexes"
        );
        let take = vec![
            Action::Add("b_rpm_tk".into(), -1_000),
            Action::Add("b_rpm_tc".into(), 1_000),
            Action::Set("lw".into(), text("n2")),
        ];
        let enough =
            vec![Condition::Exists("PK".into()), compare("b_rpm_tk", Comparison::Ge, -60_000)];
        assert_eq!(
            units(Step::Update(on(&at, take.clone(), enough))).await.writes(),
            warm,
            "a warm take"
        );
        let ttl =
            vec![Action::Set("ttl".into(), number(1_767_262_020)), Action::Remove("lw".into())];
        assert_eq!(
            units(Step::Update(on(&at, ttl, vec![]))).await.writes(),
            warm,
            "other attributes"
        );
        let grown = vec![Action::Set("note".into(), text("x".repeat(1_000)))];
        assert_eq!(
            units(Step::Update(on(&at, grown, vec![]))).await.table,
            2,
            "more than a kilobyte"
        );
        let shrunk = vec![Action::Remove("note".into())];
        assert_eq!(
            units(Step::Update(on(&at, shrunk, vec![]))).await.table,
            2,
            "the larger of both images counts"
        );
        let moved = vec![Action::Set("GSI3SK".into(), text("BUCKET#other#0"))];
        assert_eq!(
            units(Step::Update(on(&at, moved, vec![]))).await.index,
            if warm == 1 { 2 } else { 3 },
            "out and in"
        );
        let legs = vec![
            Write::Update(on(&at, take, vec![])),
            Write::Put(Put { item: bucket("key-2"), conditions: vec![] }),
            Write::Check(Check {
                key: key("none", "none"),
                conditions: vec![Condition::Absent("PK".into())],
            }),
        ];
        let paid = units(Step::Transact(legs, format!("{gsi2:?}-1"))).await;
        assert_eq!(
            (paid.table, paid.index),
            (2 * 3, warm - 1 + 3),
            "twice the price, except for indexes"
        );
        let second = key(bucket("key-2")["PK"].as_s().unwrap(), "#STATE");
        let gone = vec![Write::Delete(Delete { key: second, conditions: vec![] })];
        assert_eq!(
            units(Step::Transact(gone, format!("{gsi2:?}-2"))).await.writes(),
            2 + 3,
            "out of three indexes"
        );
        assert_eq!(
            units(Step::BatchGet(vec![at.clone(), key("none", "none")], false)).await.read_halves,
            2
        );
        let listed = Query {
            index: Some(Index::Gsi2),
            partition: "ns000000/RESOURCE#gpt-4".to_owned(),
            sort: Sort::Prefix("BUCKET#".to_owned()),
            start: None,
            limit: None,
            ascending: true,
            consistent: false,
        };
        assert_eq!(units(Step::Query(listed)).await.read_halves, 1);
        assert_eq!(units(Step::DeleteBatch(vec![at, key("none", "none")])).await.writes(), 5);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_counts_once_on_both() {
    let engine = Engine::start();
    let pair = Pair::new(&engine, "tokens", Gsi2::KeysOnly).await;
    let add = |amount| {
        vec![Write::Update(on(&key("a", "b"), vec![Action::Add("n".into(), amount)], vec![]))]
    };
    let count = async || match pair.step(&Step::BatchGet(vec![key("a", "b")], true), "read").await {
        Answer::Items(items) => items[0]["n"].clone(),
        other => panic!("{other:?}"),
    };
    pair.step(&Step::Transact(add(1), "t1".to_owned()), "first").await;
    pair.step(&Step::Transact(add(1), "t1".to_owned()), "again").await;
    assert_eq!(count().await, number(1));
    assert_eq!(
        pair.step(&Step::Transact(add(2), "t1".to_owned()), "another under the same token").await,
        Answer::Rejected
    );
    pair.step(&Step::Transact(add(1), "t2".to_owned()), "another token").await;
    assert_eq!(count().await, number(2));
    // A transaction that was cancelled has used up nothing.
    let refused = |pass: i64| {
        let enough = vec![compare("n", Comparison::Ge, pass)];
        vec![Write::Update(on(&key("a", "b"), vec![Action::Add("n".into(), 1)], enough))]
    };
    assert!(matches!(
        pair.step(&Step::Transact(refused(3), "t3".to_owned()), "refused").await,
        Answer::Canceled(_)
    ));
    pair.step(
        &Step::Update(on(&key("a", "b"), vec![Action::Add("n".into(), 1)], vec![])),
        "meanwhile",
    )
    .await;
    assert_eq!(
        pair.step(&Step::Transact(refused(3), "t3".to_owned()), "the same, later").await,
        Answer::Done
    );
}

/// Each rule of DynamoDB that the protocol leans on, one by one: a random run may miss a corner.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_corners_are_the_same() {
    let engine = Engine::start();
    let pair = Pair::new(&engine, "corners", Gsi2::KeysOnly).await;
    let at = key("a", "b");
    let update = async |actions: Vec<Action>, conditions: Vec<Condition>| {
        let told = format!("{actions:?} if {conditions:?}");
        pair.step(&Step::Update(on(&at, actions, conditions)), &told).await
    };
    let whether = async |condition: Condition| match update(vec![], vec![condition]).await {
        Answer::Item(_) => Some(true),
        Answer::Condition(_) => Some(false),
        _ => None,
    };
    use Comparison::{Eq, Ge, Gt, Le, Lt, Ne};
    assert_eq!(
        update(vec![Action::Remove("x".into())], vec![Condition::Exists("PK".into())]).await,
        Answer::Condition(None)
    );
    let set = vec![
        Action::Set("n".into(), number(10)),
        Action::Set("s".into(), text("10")),
        Action::Set("yes".into(), AttributeValue::Bool(true)),
        Action::AddMember("ss".into(), "b".to_owned()),
        Action::Add("new".into(), -5),
        Action::SetIfAbsent("kept".into(), number(1)),
    ];
    assert!(matches!(update(set, vec![Condition::Absent("PK".into())]).await, Answer::Item(_)));
    for comparison in [Eq, Ne, Lt, Le, Gt, Ge] {
        let missing = whether(compare_with("missing", comparison, number(1))).await;
        assert_eq!(missing, Some(comparison == Ne), "{comparison:?} of what is missing");
        let of_another_type = whether(compare_with("s", comparison, number(10))).await;
        assert_eq!(of_another_type, Some(comparison == Ne), "{comparison:?} of another type");
        let flag = compare_with("yes", comparison, AttributeValue::Bool(true));
        if matches!(comparison, Eq | Ne) {
            assert_eq!(whether(flag).await, Some(comparison == Eq), "{comparison:?} of a flag");
        } else {
            // DynamoDB does not accept it, the engine does; whoever sends it has a bug.
            let step = Step::Update(on(&at, vec![], vec![flag]));
            assert_eq!(
                answer(&pair.eval, &step).await,
                Answer::Rejected,
                "{comparison:?} of a flag"
            );
        }
    }
    for (wanted, value) in
        [(true, "9"), (false, "10"), (false, "1e1"), (true, "9.999"), (true, "-11"), (false, "100")]
    {
        let found = whether(compare_with("n", Gt, AttributeValue::N(value.to_owned()))).await;
        assert_eq!(found, Some(wanted), "10 > {value}");
    }
    assert_eq!(
        whether(compare_with("n", Eq, AttributeValue::N("10.0".to_owned()))).await,
        Some(true)
    );
    let members = |members: &[&str]| {
        AttributeValue::Ss(members.iter().map(|member| (*member).to_owned()).collect())
    };
    update(vec![Action::AddMember("ss".into(), "a".to_owned())], vec![]).await;
    assert_eq!(
        whether(compare_with("ss", Eq, members(&["b", "a"]))).await,
        Some(true),
        "sets have no order"
    );
    assert_eq!(whether(Condition::Any(vec![])).await, Some(false));
    assert_eq!(whether(Condition::All(vec![])).await, Some(true));
    for member in ["a", "b", "c"] {
        update(vec![Action::DeleteMember("ss".into(), member.to_owned())], vec![]).await;
    }
    assert_eq!(whether(Condition::Absent("ss".into())).await, Some(true), "no set is empty");
    for wrong in [
        vec![Action::Add("s".into(), 1)],
        vec![Action::AddMember("n".into(), "x".to_owned())],
        vec![Action::DeleteMember("n".into(), "x".to_owned())],
        vec![Action::Set("n".into(), number(1)), Action::Add("n".into(), 1)],
        vec![Action::Remove("n".into()), Action::Remove("n".into())],
        vec![Action::Set("PK".into(), text("other"))],
        vec![Action::Set("GSI1PK".into(), number(1))],
        vec![Action::Set("GSI1PK".into(), text(""))],
        vec![Action::Set("ss".into(), members(&[]))],
        vec![Action::Set("n".into(), AttributeValue::N("ten".to_owned()))],
        vec![Action::Set("n".into(), AttributeValue::N("1".repeat(39)))],
    ] {
        assert_eq!(update(wrong.clone(), vec![]).await, Answer::Rejected, "{wrong:?}");
        // A condition that fails is said first when what is wrong depends on the item. (About keys,
        // too, says the engine.)
        if wrong[0] != Action::Set("PK".into(), text("other")) {
            update(wrong, vec![Condition::Absent("PK".into())]).await;
        }
    }
    for _ in 0..3 {
        update(
            vec![Action::Add("new".into(), i64::MIN), Action::Add("n".into(), i64::MAX)],
            vec![],
        )
        .await;
    }
    pair.step(&Step::BatchGet(vec![at.clone(), at.clone()], true), "a key twice").await;
    pair.step(&Step::DeleteBatch(vec![at.clone(), at.clone()]), "a key twice").await;
}
