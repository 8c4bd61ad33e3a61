//! The table itself: items, tokens, writes on their way. One lock around all of it, so calls are
//! carried out one by one.

use std::collections::{BTreeMap, HashMap, VecDeque};

use aws_sdk_dynamodb::types::AttributeValue;
use zae_limiter_dynamodb::constants::{BATCH_GET_MAX, BATCH_WRITE_MAX, TRANSACTION_MAX};
use zae_limiter_dynamodb::table::{
    BatchPage, Cancellation, Condition, Item, Key, Query, QueryPage, TableError, Write,
};

use super::EvalOptions;
use super::call::{Asked, Call, Change, Operation, Request, Told, Units};
use super::expression::{check, check_item, check_key, hold, put, says_nothing, updated};
use super::faults::{Fate, Faults};
use super::index::{page, read_halves, units_of, write_units};
use super::number::Number;
use super::value::{item_size, key_of};

/// How long the same token counts as the same transaction.
const TOKEN_WINDOW_MS: i64 = 600_000;

/// The longest token.
const TOKEN_CHARS_MAX: usize = 36;

/// Changes that reads can lag behind.
const UNDO_MAX: usize = 256;

/// An index that is further behind than this is behind by more than administration waits for.
const FAR_BEHIND_MS: i64 = 2_000;

/// What a transaction costs more than single writes.
const TRANSACTION_FACTOR: u64 = 2;

/// The client number of the sweep in the journal.
pub const SWEEPER: u32 = u32::MAX;

/// Counts of calls, and what they cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    calls: [u64; Operation::ALL.len()],
    /// What everything cost, failed conditions included.
    pub units: Units,
    /// The part of it that failed conditions cost.
    pub failed: Units,
    /// Items changed.
    pub changes: u64,
    /// Writes that landed after their caller had been told nothing.
    pub landed_late: u64,
    /// Queries of an index that lacked a change of more than two seconds ago.
    pub far_behind: u64,
}

impl Counters {
    /// Calls of one operation, those that failed included.
    #[must_use]
    pub fn calls(&self, operation: Operation) -> u64 {
        self.calls[operation as usize]
    }

    /// All calls.
    #[must_use]
    pub fn all_calls(&self) -> u64 {
        self.calls.iter().sum()
    }
}

/// A good answer.
pub(super) enum Answer {
    Item(Item),
    Done,
    Batch(BatchPage),
    Page(QueryPage),
    Open(Vec<Key>),
}

/// What became of a call in the table.
struct Landed {
    result: Result<Answer, TableError>,
    changes: Vec<Change>,
    units: Units,
}

impl Landed {
    fn nowhere(error: TableError) -> Landed {
        Landed { result: Err(error), changes: Vec::new(), units: Units::default() }
    }

    fn rejected(why: impl Into<String>) -> Landed {
        Landed::nowhere(TableError::Rejected(why.into()))
    }
}

/// A write on its way whose caller has given up.
struct Zombie {
    due: u64,
    caller: Caller,
    request: Request,
}

/// Who calls, as the journal writes it down.
#[derive(Clone, Copy)]
pub(super) struct Caller {
    pub(super) client: u32,
    pub(super) tag: u64,
}

/// Why a write does not happen.
enum Refusal {
    /// Its condition failed; the item as it is.
    Condition(Option<Item>),
    /// The write does not fit the item.
    Item(String),
}

pub(super) struct State {
    pub(super) options: EvalOptions,
    items: BTreeMap<Key, Item>,
    /// The last changes, newest last: when, and what an item was before.
    undo: VecDeque<(i64, Key, Option<Item>)>,
    tokens: HashMap<String, (i64, Vec<Write>)>,
    zombies: Vec<Zombie>,
    calls: u64,
    pub(super) counters: Counters,
    pub(super) journal: Vec<Call>,
    pub(super) now_ms: i64,
}

impl State {
    pub(super) fn new(options: EvalOptions) -> State {
        State {
            options,
            items: BTreeMap::new(),
            undo: VecDeque::new(),
            tokens: HashMap::new(),
            zombies: Vec::new(),
            calls: 0,
            counters: Counters::default(),
            journal: Vec::new(),
            now_ms: 0,
        }
    }

    /// A call arrives: what was late lands first, then its own fate is decided.
    pub(super) fn enter(
        &mut self,
        caller: Caller,
        asked: &Asked<'_>,
        faults: Option<&Faults>,
    ) -> Result<Answer, TableError> {
        self.calls += 1;
        let due = self.calls;
        self.land(|zombie| zombie.due <= due);
        let fate = faults.map_or(Fate::Pass, |faults| faults.decide(asked));
        self.counters.calls[asked.operation() as usize] += 1;
        let landed = match fate {
            Fate::Pass | Fate::Withhold(_) | Fate::Lag(_) => self.carry_out(asked, fate),
            Fate::NotApplied => Landed::nowhere(TableError::NotApplied("throttled".to_owned())),
            Fate::Denied => Landed::nowhere(TableError::Denied("no permission".to_owned())),
            Fate::Unreachable => {
                Landed::nowhere(TableError::Unreachable("connection refused".to_owned()))
            }
            Fate::LostBefore => {
                Landed::nowhere(TableError::Unknown("the request was lost".to_owned()))
            }
            Fate::LostAfter => Landed {
                result: Err(TableError::Unknown("the reply was lost".to_owned())),
                ..self.carry_out(asked, fate)
            },
            Fate::Conflict(leg) => Landed::nowhere(in_the_way(asked, leg, Cancellation::Conflict)),
            Fate::Throttled(leg) => {
                Landed::nowhere(in_the_way(asked, leg, Cancellation::Throttled))
            }
            Fate::Late(calls) => {
                if asked.operation().writes() {
                    let due = self.calls + u64::from(calls.max(1));
                    self.zombies.push(Zombie { due, caller, request: asked.to_request() });
                }
                Landed::nowhere(TableError::Unknown("no answer in time".to_owned()))
            }
        };
        let told = Told::of(&landed.result);
        self.note(caller, asked, fate, &landed, told);
        landed.result
    }

    fn note(
        &mut self,
        Caller { client, tag }: Caller,
        asked: &Asked<'_>,
        fate: Fate,
        landed: &Landed,
        told: Told,
    ) {
        self.counters.units.add(landed.units);
        self.counters.changes += landed.changes.len() as u64;
        if matches!(told, Told::Condition | Told::Canceled) {
            self.counters.failed.add(landed.units);
        }
        if self.options.journal {
            let (request, changes, units) =
                (asked.to_request(), landed.changes.clone(), landed.units);
            self.journal.push(Call {
                number: self.calls,
                client,
                tag,
                request,
                fate,
                changes,
                told,
                units,
            });
        }
    }

    /// Lands the late writes that are `due`, in the order they were sent. Returns how many.
    fn land(&mut self, due: impl Fn(&Zombie) -> bool) -> usize {
        if self.zombies.is_empty() {
            return 0;
        }
        let (landing, waiting): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.zombies).into_iter().partition(due);
        self.zombies = waiting;
        for Zombie { caller, request, .. } in &landing {
            let asked = request.as_asked();
            let landed = self.carry_out(&asked, Fate::Pass);
            self.counters.landed_late += 1;
            self.note(*caller, &asked, Fate::Late(0), &landed, Told::Nobody);
        }
        landing.len()
    }

    /// Lands the late write number `index`, as sent; false when there is none.
    pub(super) fn land_one(&mut self, index: usize) -> bool {
        let Some(zombie) = self.zombies.get_mut(index) else { return false };
        zombie.due = 0;
        self.land(|zombie| zombie.due == 0) > 0
    }

    pub(super) fn land_all(&mut self) -> usize {
        self.land(|_| true)
    }

    /// Forgets the late writes: they never arrive.
    pub(super) fn lose_all(&mut self) -> usize {
        std::mem::take(&mut self.zombies).len()
    }

    pub(super) fn late(&self) -> Vec<Request> {
        self.zombies.iter().map(|zombie| zombie.request.clone()).collect()
    }

    fn carry_out(&mut self, asked: &Asked<'_>, fate: Fate) -> Landed {
        match *asked {
            Asked::Bucket(write) => self.single(&write.rendered()),
            Asked::Update(update) => self.single(&Write::Update(update.clone())),
            Asked::Put(put) => self.single(&Write::Put(put.clone())),
            Asked::Transact(writes, token) => self.transact(writes, token),
            Asked::BatchGet(keys, consistent) => self.batch_get(keys, consistent, fate),
            Asked::Query(query) => self.query(query, fate),
            Asked::DeleteBatch(keys) => self.delete_batch(keys, fate),
        }
    }

    /// The item after a write, and its key; nothing is changed yet. A check gives the item as it
    /// is.
    fn decided(&self, key: &Key, write: &Write) -> Result<Option<Item>, Refusal> {
        let before = self.items.get(key);
        if let Write::Put(wanted) = write {
            // All of the item is known before the condition is looked at.
            check_item(&wanted.item).map_err(Refusal::Item)?;
        }
        if !hold(conditions_of(&write.rendered()), before) {
            return Err(Refusal::Condition(before.cloned()));
        }
        match write {
            Write::Update(update) => {
                updated(&update.actions, key, before).map(Some).map_err(Refusal::Item)
            }
            Write::Put(wanted) => put(&wanted.item).map(Some).map_err(Refusal::Item),
            Write::Delete(_) => Ok(None),
            Write::Check(_) => Ok(before.cloned()),
            Write::Bucket(bucket) => self.decided(key, &bucket.rendered()),
        }
    }

    fn single(&mut self, write: &Write) -> Landed {
        let key = match key_and_check(write) {
            Ok(key) => key,
            Err(why) => return Landed::rejected(why),
        };
        match self.decided(&key, write) {
            Ok(after) => {
                let change = self.change(key, after);
                let units =
                    write_units(change.before.as_ref(), change.after.as_ref(), self.options.gsi2);
                let answer = match (write, &change.after) {
                    (Write::Update(_), Some(item)) => Answer::Item(item.clone()),
                    _ => Answer::Done,
                };
                Landed { result: Ok(answer), changes: vec![change], units }
            }
            Err(Refusal::Condition(item)) => {
                // A condition that fails is billed as the write it was meant to be.
                let units = Units {
                    table: units_of(item.as_ref().map_or(0, item_size)),
                    ..Units::default()
                };
                Landed { result: Err(TableError::Condition(item)), changes: Vec::new(), units }
            }
            Err(Refusal::Item(why)) => Landed::rejected(why),
        }
    }

    fn transact(&mut self, writes: &[Write], token: &str) -> Landed {
        if !(1..=TRANSACTION_MAX).contains(&writes.len())
            || token.is_empty()
            || token.len() > TOKEN_CHARS_MAX
        {
            return Landed::rejected(format!(
                "a transaction of {} legs with the token {token:?}",
                writes.len()
            ));
        }
        let mut keys: Vec<Key> = Vec::with_capacity(writes.len());
        for write in writes {
            match key_and_check(write) {
                Ok(key) if matches!(&*write.rendered(), Write::Update(update) if update.actions.is_empty()) =>
                {
                    return Landed::rejected(format!("a leg that updates nothing of {key:?}"));
                }
                Ok(key) if keys.contains(&key) => {
                    return Landed::rejected(format!("two legs are about {key:?}"));
                }
                Ok(key) => keys.push(key),
                Err(why) => return Landed::rejected(why),
            }
        }
        let now_ms = self.now_ms;
        self.tokens.retain(|_, (at, _)| now_ms.saturating_sub(*at) < TOKEN_WINDOW_MS);
        match self.tokens.get(token) {
            Some((_, known)) if known == writes => {
                let bytes = keys.iter().map(|key| self.items.get(key).map_or(0, item_size));
                let read_halves =
                    bytes.map(|bytes| TRANSACTION_FACTOR * read_halves(bytes, true)).sum();
                return Landed {
                    result: Ok(Answer::Done),
                    changes: Vec::new(),
                    units: Units { read_halves, ..Units::default() },
                };
            }
            Some(_) => {
                return Landed::rejected(format!(
                    "the token {token:?} belongs to another transaction"
                ));
            }
            None => {}
        }
        let decided: Vec<_> =
            keys.iter().zip(writes).map(|(key, write)| self.decided(key, write)).collect();
        if decided.iter().any(Result::is_err) {
            let bytes = |key: &Key| self.items.get(key).map_or(0, item_size);
            let table = keys.iter().map(|key| TRANSACTION_FACTOR * units_of(bytes(key))).sum();
            let reasons = decided.into_iter().map(|leg| match leg {
                Ok(_) => Cancellation::Innocent,
                Err(Refusal::Condition(item)) => Cancellation::Condition(item),
                Err(Refusal::Item(why)) => Cancellation::Rejected(why),
            });
            let result = Err(TableError::Canceled(reasons.collect()));
            return Landed {
                result,
                changes: Vec::new(),
                units: Units { table, ..Units::default() },
            };
        }
        let (mut units, mut changes) = (Units::default(), Vec::new());
        for ((key, write), after) in keys.into_iter().zip(writes).zip(decided) {
            let after = after.unwrap_or_default();
            if matches!(write, Write::Check(_)) {
                units.table += TRANSACTION_FACTOR * units_of(after.as_ref().map_or(0, item_size));
                continue;
            }
            let change = self.change(key, after);
            let Units { table, index, .. } =
                write_units(change.before.as_ref(), change.after.as_ref(), self.options.gsi2);
            // Indexes follow later, outside of the transaction, at their usual price.
            units.add(Units { table: TRANSACTION_FACTOR * table, index, read_halves: 0 });
            changes.push(change);
        }
        self.tokens.insert(token.to_owned(), (now_ms, writes.to_vec()));
        Landed { result: Ok(Answer::Done), changes, units }
    }

    fn batch_get(&self, keys: &[Key], consistent: bool, fate: Fate) -> Landed {
        if let Err(why) = check_batch(keys, BATCH_GET_MAX) {
            return Landed::rejected(why);
        }
        let then = self.as_of(if consistent { 0 } else { self.lag(fate) });
        let mut found = BatchPage::default();
        let mut units = Units::default();
        for (index, key) in keys.iter().enumerate() {
            if withholds(fate, index) {
                found.unprocessed.push(key.clone());
                continue;
            }
            let item = then.get(key).copied().unwrap_or_else(|| self.items.get(key));
            units.read_halves += read_halves(item.map_or(0, item_size), consistent);
            found.items.extend(item.cloned());
        }
        Landed { result: Ok(Answer::Batch(found)), changes: Vec::new(), units }
    }

    fn query(&mut self, query: &Query, fate: Fate) -> Landed {
        // An index cannot be read consistently.
        let lag = match query.index {
            None if query.consistent => 0,
            None => self.lag(fate),
            Some(_) => self.lag(fate).max(self.changes_within(self.options.index_lag_ms)),
        };
        let is_far_behind =
            query.index.is_some() && lag.min(self.undo.len()) > self.changes_within(FAR_BEHIND_MS);
        self.counters.far_behind += u64::from(is_far_behind);
        let then = self.as_of(lag);
        let now = self.items.iter().filter(|(key, _)| !then.contains_key(*key));
        let items = now.chain(then.iter().filter_map(|(key, item)| Some((*key, (*item)?))));
        match page(items, query, self.options.gsi2, self.options.page_max) {
            Ok((page, units)) => {
                Landed { result: Ok(Answer::Page(page)), changes: Vec::new(), units }
            }
            Err(why) => Landed::rejected(why),
        }
    }

    fn delete_batch(&mut self, keys: &[Key], fate: Fate) -> Landed {
        if let Err(why) = check_batch(keys, BATCH_WRITE_MAX) {
            return Landed::rejected(why);
        }
        let (mut open, mut changes, mut units) = (Vec::new(), Vec::new(), Units::default());
        for (index, key) in keys.iter().enumerate() {
            if withholds(fate, index) {
                open.push(key.clone());
                continue;
            }
            let change = self.change(key.clone(), None);
            units.add(write_units(change.before.as_ref(), None, self.options.gsi2));
            if change.before.is_some() {
                changes.push(change);
            }
        }
        Landed { result: Ok(Answer::Open(open)), changes, units }
    }

    /// Deletes what has expired by `now_s`, in seconds. Returns the keys.
    pub(super) fn sweep(&mut self, now_s: i64) -> Vec<Key> {
        let Ok(now) = Number::parse(&now_s.to_string()) else { return Vec::new() };
        let expired = |item: &Item| match item.get("ttl") {
            Some(AttributeValue::N(ttl)) => Number::parse(ttl).is_ok_and(|ttl| ttl <= now),
            _ => false,
        };
        let keys: Vec<Key> = self
            .items
            .iter()
            .filter(|(_, item)| expired(item))
            .map(|(key, _)| key.clone())
            .collect();
        let changes: Vec<Change> = keys.iter().map(|key| self.change(key.clone(), None)).collect();
        if !changes.is_empty() {
            // The service does not bill what it forgets.
            let landed = Landed { result: Ok(Answer::Done), changes, units: Units::default() };
            self.note(
                Caller { client: SWEEPER, tag: 0 },
                &Asked::DeleteBatch(&keys),
                Fate::Pass,
                &landed,
                Told::Nobody,
            );
        }
        keys
    }

    /// Sets or removes an item whatever it is, and remembers what it was.
    pub(super) fn change(&mut self, key: Key, after: Option<Item>) -> Change {
        let before = match &after {
            Some(item) => self.items.insert(key.clone(), item.clone()),
            None => self.items.remove(&key),
        };
        if self.undo.len() == UNDO_MAX {
            self.undo.pop_front();
        }
        self.undo.push_back((self.now_ms, key.clone(), before.clone()));
        Change { key, before, after }
    }

    /// Changes of the last milliseconds.
    fn changes_within(&self, ms: i64) -> usize {
        if ms == 0 {
            0
        } else {
            self.undo
                .iter()
                .rev()
                .take_while(|(at, ..)| self.now_ms.saturating_sub(*at) < ms)
                .count()
        }
    }

    fn lag(&self, fate: Fate) -> usize {
        let drawn = if let Fate::Lag(writes) = fate { writes } else { 0 };
        drawn.max(self.options.lag_writes) as usize
    }

    /// The items that were something else this many changes ago, as they were.
    fn as_of(&self, changes: usize) -> BTreeMap<&Key, Option<&Item>> {
        let mut then = BTreeMap::new();
        for (_, key, before) in self.undo.iter().skip(self.undo.len().saturating_sub(changes)) {
            then.entry(key).or_insert(before.as_ref());
        }
        then
    }

    pub(super) fn get(&self, key: &Key) -> Option<&Item> {
        self.items.get(key)
    }

    pub(super) fn items(&self) -> impl Iterator<Item = &Item> {
        self.items.values()
    }
}

fn conditions_of(write: &Write) -> &[Condition] {
    match write {
        Write::Update(update) => &update.conditions,
        Write::Put(put) => &put.conditions,
        Write::Delete(delete) => &delete.conditions,
        Write::Check(check) => &check.conditions,
        Write::Bucket(_) => &[],
    }
}

/// The key of a write that DynamoDB would look at.
fn key_and_check(write: &Write) -> Result<Key, String> {
    let actions = if let Write::Update(update) = write { &update.actions[..] } else { &[] };
    check(actions, conditions_of(write))?;
    let key = match write {
        Write::Update(update) => update.key.clone(),
        Write::Put(wanted) => {
            put(&wanted.item)?;
            key_of(&wanted.item).ok_or("an item without a key")?
        }
        Write::Delete(delete) => delete.key.clone(),
        Write::Check(check) if says_nothing(&check.conditions) => {
            return Err("a check of nothing".to_owned());
        }
        Write::Check(check) => check.key.clone(),
        Write::Bucket(bucket) => return key_and_check(&bucket.rendered()),
    };
    check_key(&key)?;
    Ok(key)
}

fn check_batch(keys: &[Key], max: usize) -> Result<(), String> {
    if !(1..=max).contains(&keys.len()) {
        return Err(format!("a batch of {} keys", keys.len()));
    }
    keys.iter().try_for_each(check_key)?;
    let twice = keys.iter().enumerate().find(|(index, key)| keys[..*index].contains(key));
    twice.map_or(Ok(()), |(_, key)| Err(format!("{key:?} is in the batch twice")))
}

fn withholds(fate: Fate, index: usize) -> bool {
    matches!(fate, Fate::Withhold(nth) if index.is_multiple_of(nth.max(1) as usize))
}

fn in_the_way(asked: &Asked<'_>, leg: u32, reason: Cancellation) -> TableError {
    match asked {
        Asked::Transact(writes, _) if !writes.is_empty() => {
            let at = leg as usize % writes.len();
            TableError::Canceled(
                (0..writes.len())
                    .map(|leg| if leg == at { reason.clone() } else { Cancellation::Innocent })
                    .collect(),
            )
        }
        _ => TableError::NotApplied(format!("{reason:?}")),
    }
}
