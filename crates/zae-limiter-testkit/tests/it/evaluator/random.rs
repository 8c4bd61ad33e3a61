//! Random calls on a small table: few keys and few attributes, so that calls meet.

use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::AttributeValue;
use zae_limiter_dynamodb::table::{
    Action, Check, Comparison, Condition, Delete, Index, Item, Key, Put, Query, Sort, Update,
    Write, compare_with, number, text,
};
use zae_limiter_store::{Entropy, SeededEntropy};

const PARTITIONS: [&str; 3] = ["p1", "p2", "ns/ENTITY#é"];
const SORTS: [&str; 3] = ["#STATE", "#CONFIG#a", "#CONFIG#b"];
const ATTRS: [&str; 9] = ["n", "m", "b_a.b-c_tk", "s", "flag", "set", "any", "GSI1PK", "GSI1SK"];
const INDEX_ATTRS: [&str; 8] =
    ["GSI1PK", "GSI1SK", "GSI2PK", "GSI2SK", "GSI3PK", "GSI3SK", "GSI4PK", "GSI4SK"];
const INDEX_TEXTS: [&str; 4] = ["x", "y", "xx", "ns"];
const TEXTS: [&str; 5] = ["a", "b", "ab", "", "z"];
const NUMBERS: [&str; 14] = [
    "0",
    "1",
    "-1",
    "2",
    "10",
    "-10",
    "1.50",
    "1e3",
    "-0.25",
    "9223372036854775807",
    "-9223372036854775808",
    "00012",
    "99999999999999999999999999999999999999",
    "1767261600000",
];
const INDEXES: [Option<Index>; 5] =
    [None, Some(Index::Gsi1), Some(Index::Gsi2), Some(Index::Gsi3), Some(Index::Gsi4)];

/// One call.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Update(Update),
    Put(Put),
    Transact(Vec<Write>, String),
    BatchGet(Vec<Key>, bool),
    Query(Query),
    DeleteBatch(Vec<Key>),
}

impl Step {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Step::Update(_) => "Update",
            Step::Put(_) => "Put",
            Step::Transact(..) => "Transact",
            Step::BatchGet(..) => "BatchGet",
            Step::Query(_) => "Query",
            Step::DeleteBatch(_) => "DeleteBatch",
        }
    }
}

pub(crate) struct Random {
    seed: u64,
    entropy: SeededEntropy,
    /// The engine knows tokens of all its tables.
    tokens: u64,
}

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random { seed, entropy: SeededEntropy::new(seed), tokens: 0 }
    }

    pub(crate) fn step(&mut self) -> Step {
        match self.below(20) {
            0..8 => Step::Update(self.update()),
            8..12 => Step::Put(self.put()),
            12..16 => {
                self.tokens += 1;
                Step::Transact(
                    self.some(1, 4, Random::write),
                    format!("{}-{}", self.seed, self.tokens),
                )
            }
            16 => Step::BatchGet(self.some(1, 4, Random::key), self.chance(50)),
            17 => Step::DeleteBatch(self.some(1, 2, Random::key)),
            _ => {
                let queries = self.queries();
                Step::Query(self.pick(&queries).clone())
            }
        }
    }

    /// Every key there can be.
    pub(crate) fn keys(&self) -> Vec<Key> {
        let keys = PARTITIONS
            .iter()
            .flat_map(|pk| SORTS.map(|sk| Key { pk: (*pk).to_owned(), sk: sk.into() }));
        keys.collect()
    }

    /// Queries of every kind over every partition there can be.
    pub(crate) fn queries(&self) -> Vec<Query> {
        let mut queries = Vec::new();
        for index in INDEXES {
            let partitions: &[&str] = if index.is_some() { &INDEX_TEXTS } else { &PARTITIONS };
            for (number, partition) in partitions.iter().enumerate() {
                let (low, high) =
                    if index.is_some() { ("x", "xx") } else { ("#CONFIG#a", "#CONFIG#b") };
                for sort in [
                    Sort::All,
                    Sort::Prefix(low.to_owned()),
                    Sort::Between(low.to_owned(), high.to_owned()),
                ] {
                    queries.push(Query {
                        index,
                        partition: (*partition).to_owned(),
                        sort,
                        start: None,
                        limit: [None, Some(1), Some(2), Some(5)][number],
                        ascending: queries.len() % 2 == 0,
                        consistent: index.is_none(),
                    });
                }
            }
        }
        queries
    }

    fn update(&mut self) -> Update {
        let key = self.key();
        let mut actions = self.some(0, 4, Random::action);
        if self.chance(90) {
            // Mostly without a clause too many about one attribute.
            let mut seen: Vec<String> = Vec::new();
            actions.retain(|action| {
                let attr = attr_of(action).to_owned();
                let new = !seen.contains(&attr);
                seen.push(attr);
                new
            });
        }
        Update { key, actions, conditions: self.conditions() }
    }

    fn put(&mut self) -> Put {
        let key = self.key();
        let mut item: Item = [("PK", key.pk), ("SK", key.sk.into_owned())]
            .map(|(name, value)| (name.to_owned(), text(value)))
            .into();
        for _ in 0..self.below(7) {
            let attr = self.attr();
            let value = self.value_for(&attr);
            item.insert(attr, value);
        }
        for attr in INDEX_ATTRS {
            if self.chance(60) {
                item.insert(attr.to_owned(), text(*self.pick(&INDEX_TEXTS)));
            }
        }
        Put { item, conditions: self.conditions() }
    }

    fn write(&mut self) -> Write {
        match self.below(6) {
            0..3 => {
                let mut update = self.update();
                if update.actions.is_empty() && self.chance(90) {
                    update.actions.push(Action::Add("n".into(), 1));
                }
                Write::Update(update)
            }
            3 => Write::Put(self.put()),
            4 => Write::Delete(Delete { key: self.key(), conditions: self.conditions() }),
            _ => Write::Check(Check { key: self.key(), conditions: vec![self.condition(0)] }),
        }
    }

    fn action(&mut self) -> Action {
        let attr = self.attr();
        match self.below(8) {
            0 | 1 => {
                let value = self.value_for(&attr);
                Action::Set(attr.into(), value)
            }
            2 => {
                let value = self.value_for(&attr);
                Action::SetIfAbsent(attr.into(), value)
            }
            3 | 4 => {
                let attr =
                    if self.chance(85) { *self.pick(&["n", "m", "b_a.b-c_tk"]) } else { "s" };
                Action::Add(
                    attr.into(),
                    *self.pick(&[1, -1, 0, 1_000, -59_000, i64::MAX, i64::MIN]),
                )
            }
            5 => Action::AddMember(self.set_attr(), self.pick(&["a", "b", "c"]).to_string()),
            6 => Action::DeleteMember(self.set_attr(), self.pick(&["a", "b", "c"]).to_string()),
            _ => Action::Remove(attr.into()),
        }
    }

    fn set_attr(&mut self) -> zae_limiter_dynamodb::table::Attr {
        if self.chance(85) { "set".into() } else { "n".into() }
    }

    fn conditions(&mut self) -> Vec<Condition> {
        if self.chance(40) { Vec::new() } else { self.some(1, 2, |random| random.condition(0)) }
    }

    fn condition(&mut self, depth: usize) -> Condition {
        let attr = if self.chance(15) { "PK".to_owned() } else { self.attr() };
        match self.below(if depth < 2 { 9 } else { 6 }) {
            0 => Condition::Exists(attr.into()),
            1 => Condition::Absent(attr.into()),
            2..6 => {
                let value = if self.chance(80) { self.value_for(&attr) } else { self.value() };
                compare_with(attr, self.comparison(&value), value)
            }
            6 => Condition::All(self.some(0, 3, |random| random.condition(depth + 1))),
            _ => Condition::Any(self.some(1, 3, |random| random.condition(depth + 1))),
        }
    }

    /// One the type has: DynamoDB does not accept others, the engine does.
    fn comparison(&mut self, value: &AttributeValue) -> Comparison {
        let ordered =
            matches!(value, AttributeValue::N(_) | AttributeValue::S(_) | AttributeValue::B(_));
        if !ordered {
            return *self.pick(&[Comparison::Eq, Comparison::Ne]);
        }
        *self.pick(&[
            Comparison::Eq,
            Comparison::Ne,
            Comparison::Lt,
            Comparison::Le,
            Comparison::Gt,
            Comparison::Ge,
        ])
    }

    fn value_for(&mut self, attr: &str) -> AttributeValue {
        match attr {
            _ if self.chance(4) => self.value(),
            "n" | "m" | "b_a.b-c_tk" => AttributeValue::N((*self.pick(&NUMBERS)).to_owned()),
            "s" => text(*self.pick(&TEXTS)),
            "flag" => AttributeValue::Bool(self.chance(50)),
            "set" => self.set(),
            "any" => self.value(),
            _ => text(*self.pick(&INDEX_TEXTS)),
        }
    }

    fn value(&mut self) -> AttributeValue {
        match self.below(10) {
            0 | 1 => AttributeValue::N((*self.pick(&NUMBERS)).to_owned()),
            2 => text(*self.pick(&TEXTS)),
            3 => AttributeValue::Bool(self.chance(50)),
            4 => AttributeValue::Null(true),
            5 => self.set(),
            6 => AttributeValue::B(Blob::new(self.pick(&TEXTS).as_bytes())),
            7 => AttributeValue::L(vec![number(1), text("a"), AttributeValue::L(vec![])]),
            8 => {
                AttributeValue::M([("k".to_owned(), number(1)), ("l".to_owned(), text("a"))].into())
            }
            _ => AttributeValue::Ns(vec!["10".to_owned(), "2.0".to_owned(), "-1".to_owned()]),
        }
    }

    fn set(&mut self) -> AttributeValue {
        let members: &[&[&str]] = &[&["a"], &["b", "a"], &["c", "b"], &["a", "b", "c"]];
        AttributeValue::Ss(self.pick(members).iter().map(|member| (*member).to_owned()).collect())
    }

    fn attr(&mut self) -> String {
        (*self.pick(&ATTRS)).to_owned()
    }

    fn key(&mut self) -> Key {
        Key { pk: (*self.pick(&PARTITIONS)).to_owned(), sk: (*self.pick(&SORTS)).into() }
    }

    fn some<T>(&mut self, low: u64, high: u64, mut make: impl FnMut(&mut Random) -> T) -> Vec<T> {
        let count = low + self.below(high - low + 1);
        (0..count).map(|_| make(self)).collect()
    }

    fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[usize::try_from(self.below(items.len() as u64)).expect("an index")]
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn below(&mut self, end: u64) -> u64 {
        self.entropy.next_u64() % end
    }
}

fn attr_of(action: &Action) -> &str {
    match action {
        Action::Set(attr, _)
        | Action::SetIfAbsent(attr, _)
        | Action::Add(attr, _)
        | Action::AddMember(attr, _)
        | Action::DeleteMember(attr, _)
        | Action::Remove(attr) => attr,
    }
}
