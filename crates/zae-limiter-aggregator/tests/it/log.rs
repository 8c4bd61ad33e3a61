//! A stream of a table that was never there: buckets that are taken from, and the books beside
//! them.

use std::collections::{BTreeMap, HashMap};

use aws_sdk_dynamodb::types::AttributeValue;
use zae_limiter_aggregator::{Item, Kind, Record};
use zae_limiter_core::{TimeMs, UsageWindow, parse_rfc3339};

/// Use by entity, resource, window and the key of the window: millitokens by limit, and takes.
pub(crate) type Ledger =
    BTreeMap<(String, String, UsageWindow, String), (BTreeMap<String, i64>, i64)>;

/// Entity, resource, shard.
pub(crate) type Bucket<'a> = (&'a str, &'a str, u32);

pub(crate) fn number(value: i64) -> AttributeValue {
    AttributeValue::N(value.to_string())
}

pub(crate) fn text(value: &str) -> AttributeValue {
    AttributeValue::S(value.to_owned())
}

/// Seconds since 1970.
pub(crate) fn at(time: &str) -> i64 {
    parse_rfc3339(time).expect("a valid time").0 / 1_000
}

pub(crate) struct Log {
    pub(crate) namespace: String,
    next: u64,
    pub(crate) records: Vec<Record>,
    buckets: HashMap<String, Item>,
    books: Ledger,
}

impl Log {
    /// Numbers begin below a hundred, so that they get longer on the way.
    pub(crate) fn new(namespace: &str) -> Log {
        Log {
            namespace: namespace.to_owned(),
            next: 90,
            records: Vec::new(),
            buckets: HashMap::new(),
            books: Ledger::new(),
        }
    }

    pub(crate) fn pk(&self, (entity, resource, shard): Bucket<'_>) -> String {
        format!("{}/BUCKET#{entity}#{resource}#{shard}", self.namespace)
    }

    /// A take; makes the bucket if it is not there.
    pub(crate) fn take(&mut self, at_s: i64, bucket: Bucket<'_>, amounts: &[(&str, i64)]) {
        self.change(at_s, bucket, amounts, 1_000, None);
        self.book(at_s, bucket, amounts, 1);
    }

    /// A charge, or below zero a credit.
    pub(crate) fn adjust(&mut self, at_s: i64, bucket: Bucket<'_>, amounts: &[(&str, i64)]) {
        self.change(at_s, bucket, amounts, 0, None);
        self.book(at_s, bucket, amounts, 0);
    }

    /// The credit that undoes a take of a chain that was refused.
    pub(crate) fn undo(
        &mut self,
        at_s: i64,
        taken_s: i64,
        bucket: Bucket<'_>,
        amounts: &[(&str, i64)],
    ) {
        let back: Vec<(&str, i64)> = amounts.iter().map(|(name, milli)| (*name, -milli)).collect();
        self.change(at_s, bucket, &back, -1_000, Some(taken_s));
        self.book(taken_s, bucket, &back, -1);
    }

    /// The same for a part of a gathered take that another shard has counted.
    pub(crate) fn undo_part(
        &mut self,
        at_s: i64,
        taken_s: i64,
        bucket: Bucket<'_>,
        amounts: &[(&str, i64)],
    ) {
        let back: Vec<(&str, i64)> = amounts.iter().map(|(name, milli)| (*name, -milli)).collect();
        self.change(at_s, bucket, &back, 0, Some(taken_s));
        self.book(taken_s, bucket, &back, 0);
    }

    /// A write that takes nothing.
    pub(crate) fn refill(&mut self, at_s: i64, bucket: Bucket<'_>) {
        self.change(at_s, bucket, &[], 0, None);
    }

    fn change(
        &mut self,
        at_s: i64,
        bucket: Bucket<'_>,
        amounts: &[(&str, i64)],
        wcu: i64,
        undone: Option<i64>,
    ) {
        let pk = self.pk(bucket);
        let old = self.buckets.get(&pk).cloned();
        let mut new = old.clone().unwrap_or_else(|| {
            Item::from([
                ("PK".to_owned(), text(&pk)),
                ("SK".to_owned(), text("#STATE")),
                ("entity_id".to_owned(), text(bucket.0)),
                ("resource".to_owned(), text(bucket.1)),
                ("shard_count".to_owned(), number(if bucket.2 == 0 { 1 } else { 32 })),
            ])
        });
        new.insert("rf".to_owned(), number(at_s * 1_000));
        let mut add = |name: String, amount: i64| {
            let before: i64 =
                new.get(&name).map_or(0, |value| value.as_n().unwrap().parse().unwrap());
            new.insert(name, number(before + amount));
        };
        add("b_wcu_tc".to_owned(), wcu);
        for (limit, milli) in amounts {
            add(format!("b_{limit}_tc"), *milli);
            add(format!("b_{limit}_tk"), -*milli);
        }
        if let Some(undone) = undone {
            // The last digits are drawn, so that no two marks are the same.
            let salt = i64::try_from(self.next % 1_000).unwrap();
            new.insert("un".to_owned(), number(undone * 1_000_000 + salt));
        }
        let kind = if old.is_some() { Kind::Modify } else { Kind::Insert };
        self.buckets.insert(pk.clone(), new.clone());
        self.push(at_s, kind, (pk, "#STATE".to_owned()), old, Some(new));
    }

    /// A bucket whose time has come.
    pub(crate) fn expire(&mut self, at_s: i64, bucket: Bucket<'_>) {
        let pk = self.pk(bucket);
        let old = self.buckets.remove(&pk);
        self.push(at_s, Kind::Remove, (pk, "#STATE".to_owned()), old, None);
        self.records.last_mut().unwrap().is_expired = true;
    }

    /// Any record.
    pub(crate) fn push(
        &mut self,
        at_s: i64,
        kind: Kind,
        key: (String, String),
        old: Option<Item>,
        new: Option<Item>,
    ) {
        self.next += 3;
        self.records.push(Record {
            stream_shard: "shardId-1".to_owned(),
            sequence: self.next.to_string(),
            kind,
            at_s,
            key,
            old,
            new,
            is_expired: false,
        });
    }

    fn book(&mut self, at_s: i64, bucket: Bucket<'_>, amounts: &[(&str, i64)], takes: i64) {
        for window in UsageWindow::ALL {
            let key = window.key(TimeMs(at_s * 1_000));
            let place = (bucket.0.to_owned(), bucket.1.to_owned(), window, key);
            let (used, events) = self.books.entry(place).or_default();
            for (limit, milli) in amounts {
                *used.entry((*limit).to_owned()).or_default() += milli;
            }
            *events += takes;
        }
    }

    /// The books as the store tells usage: without limits of which nothing is left.
    pub(crate) fn ledger(&self) -> Ledger {
        let mut ledger = self.books.clone();
        ledger.values_mut().for_each(|(used, _)| used.retain(|_, milli| *milli != 0));
        ledger.retain(|_, (used, _)| !used.is_empty());
        ledger
    }

    /// Two hundred records of four buckets, one of them with three shards, over four hours: takes,
    /// charges, credits, undone takes, refills, expiry. `fraction` is added to every amount.
    pub(crate) fn two_hundred(namespace: &str, seed: u64, fraction: i64) -> Log {
        use zae_limiter_store::{Entropy, SeededEntropy};
        let rng = SeededEntropy::new(seed);
        let mut log = Log::new(namespace);
        let mut now = at("2026-01-31T22:10:00Z");
        let buckets = [
            ("a", "gpt", 0),
            ("a", "gpt", 1),
            ("a", "gpt", 2),
            ("a", "api/v1", 0),
            ("b", "gpt", 0),
        ];
        let mut taken: Vec<(i64, Bucket<'static>, i64)> = Vec::new();
        while log.records.len() < 200 {
            let drawn = rng.next_u64();
            now += i64::try_from(drawn % 150).unwrap();
            let bucket = buckets[usize::try_from((drawn >> 8) % 5).unwrap()];
            let amount = i64::try_from((drawn >> 16) % 50).unwrap() * 1_000 + fraction;
            match (drawn >> 32) % 10 {
                0 => log.adjust(now, bucket, &[("tpm", amount)]),
                1 => log.adjust(now, bucket, &[("tpm", -amount)]),
                2 => log.refill(now, bucket),
                3 if log.buckets.contains_key(&log.pk(bucket)) => {
                    log.expire(now, bucket);
                    taken.retain(|(_, of, _)| *of != bucket);
                }
                4 | 5 => match taken.pop() {
                    Some((when, of, amount)) => {
                        log.undo(now, when, of, &[("rpm", 1_000), ("tpm", amount)]);
                    }
                    None => log.refill(now, bucket),
                },
                _ => {
                    log.take(now, bucket, &[("rpm", 1_000), ("tpm", amount)]);
                    taken.push((now, bucket, amount));
                }
            }
        }
        log
    }
}
