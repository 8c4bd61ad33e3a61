//! What happens to a table beside the calls of our clients.

use aws_sdk_dynamodb::types::AttributeValue;
use zae_limiter_dynamodb::table::{
    Action, Comparison, Condition, Item, Key, Table, Update, compare, number,
};
use zae_limiter_store::Clock;

use super::Scene;
use crate::oracle::books::Books;
use crate::oracle::journal::finish;
use crate::oracle::protocol::{bucket_of, stored};
use crate::rng::Rng;

/// The client number of the foreign writer in the journal.
pub(crate) const FOREIGN: u32 = u32::MAX - 1;

#[derive(Clone, Copy)]
enum Kind {
    Sweep,
    Land,
    Lose,
    ForeignDebit,
    ForeignLimits,
    ForeignFeature,
    ForeignCount,
    ForeignShard,
    Press,
    Damage,
}

impl Scene {
    /// Does one event that the seed chooses, and returns it in words.
    pub(crate) fn happen(&self, rng: &mut Rng, books: &Books) -> String {
        self.look(books);
        self.keep_up(books);
        let is_strange = self.has_strangers && self.is_sharded;
        let kind = rng.weighted(&[
            (30, Kind::Sweep),
            (20, Kind::Land),
            (4, Kind::Lose),
            (if self.has_strangers { 8 } else { 0 }, Kind::ForeignDebit),
            (if self.has_strangers { 8 } else { 0 }, Kind::ForeignLimits),
            (if self.has_strangers { 6 } else { 0 }, Kind::ForeignFeature),
            (if is_strange { 14 } else { 0 }, Kind::ForeignCount),
            (if is_strange { 10 } else { 0 }, Kind::ForeignShard),
            (if self.is_sharded { 30 } else { 0 }, Kind::Press),
            (if self.is_damaged { 6 } else { 0 }, Kind::Damage),
        ]);
        let line = match kind {
            Kind::Sweep => {
                let keys = self.table.sweep(self.truth.now().0.div_euclid(1000));
                format!("{} items have expired", keys.len())
            }
            Kind::Land => {
                let late = self.table.late().len();
                let index = rng.index(late);
                format!("late write {index} of {late} lands: {}", self.table.land(index))
            }
            Kind::Lose => format!("{} late writes are lost", self.table.lose_all()),
            Kind::ForeignDebit => self.foreign_debit(rng),
            Kind::ForeignLimits => self.foreign_limits(rng),
            Kind::ForeignFeature => self.foreign_feature(rng),
            Kind::ForeignCount => self.foreign_count(rng),
            Kind::ForeignShard => self.foreign_shard(rng),
            Kind::Press => self.press(rng),
            Kind::Damage => self.damage(rng),
        };
        self.look(books);
        line
    }

    /// The late writes of the end: some runs lose them, some get them all.
    pub(crate) fn land_or_lose(&self, rng: &mut Rng, books: &Books) {
        if rng.chance(50) {
            self.table.lose_all();
        } else {
            self.echoes.arrive_all();
            self.table.land_all();
        }
        self.look(books);
    }

    fn some_bucket(&self, rng: &mut Rng) -> Option<(Key, Item)> {
        let mut items = self.table.items();
        items.retain(|item| key_of(item).is_some_and(|key| bucket_of(&key).is_some()));
        let item = items.get(rng.index(items.len()))?.clone();
        Some((key_of(&item)?, item))
    }

    /// As the Python package takes: from the balance alone, whatever has overflowed.
    fn foreign_debit(&self, rng: &mut Rng) -> String {
        let Some((key, item)) = self.some_bucket(rng) else { return "no bucket".to_owned() };
        let Ok(found) = stored::read(&item) else { return "a damaged bucket".to_owned() };
        let names: Vec<&String> = found.limits.keys().collect();
        if names.is_empty() {
            return "no limits".to_owned();
        }
        let name = *rng.pick(&names);
        let milli = i64::try_from(rng.between(1, 20)).unwrap_or(1) * 1000;
        let tk = format!("b_{name}_tk");
        let update = Update {
            actions: vec![
                Action::Add(tk.clone().into(), -milli),
                Action::Add(format!("b_{name}_tc").into(), milli),
            ],
            conditions: vec![compare(tk, Comparison::Ge, milli)],
            key,
        };
        let answer = finish(self.table.client(FOREIGN).update(&update));
        format!(
            "a stranger takes {milli} milli of {name} from {}: {}",
            update.key.pk,
            answer.is_ok()
        )
    }

    /// As the Python package changes limits: parameters at once, nothing refilled, and a mark that
    /// says so.
    fn foreign_limits(&self, rng: &mut Rng) -> String {
        let Some((key, item)) = self.some_bucket(rng) else { return "no bucket".to_owned() };
        let Ok(found) = stored::read(&item) else { return "a damaged bucket".to_owned() };
        let names: Vec<&String> = found.limits.keys().collect();
        if names.is_empty() {
            return "no limits".to_owned();
        }
        let name = (*rng.pick(&names)).clone();
        let limit = rng.limit(&name);
        let tokens = |tokens: u64| number(i64::try_from(tokens).unwrap_or(1) * 1000);
        let set = |field: &str, value: AttributeValue| {
            Action::Set(format!("b_{name}_{field}").into(), value)
        };
        let update = Update {
            actions: vec![
                set("cp", tokens(limit.capacity())),
                set("ra", tokens(limit.refill_amount())),
                set("rp", tokens(limit.refill_period_s())),
                Action::Set("vu".into(), number(0)),
            ],
            conditions: vec![Condition::Exists("PK".into())],
            key,
        };
        let answer = finish(self.table.client(FOREIGN).update(&update));
        format!("a stranger makes {limit} of {}: {}", update.key.pk, answer.is_ok())
    }

    /// As the Python package uses a feature that we do not have: takes are refused, charges are
    /// not.
    fn foreign_feature(&self, rng: &mut Rng) -> String {
        let Some((key, item)) = self.some_bucket(rng) else { return "no bucket".to_owned() };
        let name = "bypass";
        let action = if item.contains_key(name) {
            Action::Remove(name.into())
        } else {
            Action::Set(name.into(), number(0))
        };
        let update =
            Update { actions: vec![action], conditions: vec![Condition::Exists("PK".into())], key };
        let answer = finish(self.table.client(FOREIGN).update(&update));
        format!("a stranger switches a feature of {}: {}", update.key.pk, answer.is_ok())
    }

    /// An item that nobody can read. Later it is deleted, as somebody who looks after it would.
    fn damage(&self, rng: &mut Rng) -> String {
        let broken = self.lock().damaged.iter().next().cloned();
        if let Some(pk) = broken {
            self.lock().damaged.remove(&pk);
            self.lock().ideals.remove(&pk);
            let is_there = self.table.remove(&Key { pk: pk.clone(), sk: "#STATE".into() });
            return format!("the damaged {pk} is deleted: {is_there}");
        }
        let Some((key, mut item)) = self.some_bucket(rng) else { return "no bucket".to_owned() };
        let names: Vec<String> =
            item.keys().filter(|name| name.starts_with("b_") || *name == "rf").cloned().collect();
        let mut names = names;
        names.sort();
        if names.is_empty() {
            return "nothing to damage".to_owned();
        }
        let name = rng.pick(&names).clone();
        let value = match rng.index(4) {
            0 => AttributeValue::S("12".to_owned()),
            1 => AttributeValue::N("9".repeat(38)),
            2 => AttributeValue::N(format!("-{}", "9".repeat(38))),
            _ => AttributeValue::N("0.5".to_owned()),
        };
        item.insert(name.clone(), value.clone());
        self.table.insert(&item);
        let mut known = self.lock();
        known.coverage.damaged += 1;
        known.damaged.insert(key.pk.clone());
        known.slots.unreadable.extend(bucket_of(&key).map(|(entity, _)| entity.to_owned()));
        format!("{name} of {} becomes {value:?}", key.pk)
    }
}

fn key_of(item: &Item) -> Option<Key> {
    let text = |name: &str| item.get(name).and_then(|value| value.as_s().ok()).cloned();
    Some(Key { pk: text("PK")?, sk: text("SK")?.into() })
}
