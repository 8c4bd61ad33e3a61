//! Forgetting what may be forgotten: expired buckets that are full, and history past its retention.
//!
//! A sweep goes over the tables in steps of a few rows and remembers where it stopped. It needs no index on the expiry,
//! which every take would have to keep up to date.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::Connection;
use zae_limiter_core::{BucketState, EntityId, ResourceName, TimeMs};
use zae_limiter_store::{StoreError, Swept};

use crate::SqliteStore;
use crate::bucket;
use crate::error::Outcome;
use crate::job::{Job, Work};
use crate::options::SqliteOptions;
use crate::rows::{bucket_columns, bucket_from_row, name_at};
use crate::working::Key;

/// Rows looked at in one step.
const STEP_ROWS_MAX: u32 = 200;
/// By itself the store begins to go over everything at most this often.
const ROUND_MS: i64 = 60_000;
/// And within a round it does a step at most this often: 2000 rows a second, for less than a hundredth of the time.
const STEP_MS: i64 = 100;

const HOUR_MS: i64 = 3_600_000;

/// Where a sweep goes on. In the order in which it goes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Position {
    Buckets { ns: i64, entity: String, resource: String },
    Usage { ns: i64, entity: String, hour: i64, resource: String, counter: String },
    Audit { seq: i64 },
}

impl Position {
    fn start() -> Position {
        Position::Buckets { ns: i64::MIN, entity: String::new(), resource: String::new() }
    }
}

/// How long history is kept.
#[derive(Clone, Copy)]
struct Retention {
    usage_ms: i64,
    audit_ms: i64,
}

/// When to sweep, and where.
pub(crate) struct Sweeper {
    retention: Retention,
    /// The next step the store does by itself; not before the first operation has told the time.
    due: Arc<AtomicI64>,
    /// The same by the monotonic clock.
    due_here: AtomicI64,
    background: Arc<Mutex<Position>>,
    asked: Arc<Mutex<Position>>,
}

const NOT_YET: i64 = i64::MIN;

impl Sweeper {
    pub(crate) fn new(options: &SqliteOptions) -> Sweeper {
        Sweeper {
            retention: Retention { usage_ms: options.usage_retention_ms, audit_ms: options.audit_retention_ms },
            due: Arc::new(AtomicI64::new(NOT_YET)),
            due_here: AtomicI64::new(0),
            background: Arc::new(Mutex::new(Position::start())),
            asked: Arc::new(Mutex::new(Position::start())),
        }
    }

    /// True for one of the callers that find a step due: by the time of its operation and by the time that has passed here.
    /// The second, because an operation may tell any time, and one that is far ahead should not set the pace.
    pub(crate) fn is_due(&self, now: TimeMs, monotonic: impl FnOnce() -> Duration) -> bool {
        let due = self.due.load(Ordering::Relaxed);
        let back = due.saturating_sub(now.0) > ROUND_MS;
        if due != NOT_YET && now.0 < due && !back {
            return false;
        }
        let here = i64::try_from(monotonic().as_millis()).unwrap_or(i64::MAX);
        let ripe = due != NOT_YET && !back && here >= self.due_here.load(Ordering::Relaxed);
        let pause_ms = if ripe { STEP_MS } else { ROUND_MS };
        if self.due.compare_exchange(due, now.0.saturating_add(pause_ms), Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return false;
        }
        if ripe || due == NOT_YET {
            self.due_here.store(here.saturating_add(pause_ms), Ordering::Relaxed);
        }
        ripe
    }

    /// One step of the store's own sweep.
    pub(crate) fn background_step(&self, now: TimeMs) -> Job {
        let (retention, due, position) = (self.retention, Arc::clone(&self.due), Arc::clone(&self.background));
        let (job, _nobody_waits) = Work::job("sweep", move |conn| {
            let mut position = lock(&position);
            let (swept, next) = step(conn, &position, now, retention)?;
            if next.is_none() {
                due.store(now.0.saturating_add(ROUND_MS), Ordering::Relaxed);
            }
            *position = next.unwrap_or_else(Position::start);
            Ok(swept)
        });
        job
    }
}

impl SqliteStore {
    pub(crate) async fn sweep_steps(&self, now: TimeMs, steps_max: u32) -> Result<Swept, StoreError> {
        let sweeper = self.writer("sweep")?.sweeper();
        let began_at = lock(&sweeper.asked).clone();
        let mut total = Swept::default();
        for _ in 0..steps_max {
            let (retention, asked) = (sweeper.retention, Arc::clone(&sweeper.asked));
            let work = move |conn: &Connection| {
                let mut position = lock(&asked);
                let (swept, next) = step(conn, &position, now, retention)?;
                *position = next.clone().unwrap_or_else(Position::start);
                Ok((swept, next))
            };
            let (swept, next) = self.write("sweep", work).await?;
            total.buckets += swept.buckets;
            total.usage += swept.usage;
            total.audit += swept.audit;
            // A sweep that goes on where an earlier one had stopped goes round until it is there again.
            let is_round = match next {
                None => std::mem::replace(&mut total.complete, true) || began_at == Position::start(),
                Some(position) => total.complete && position >= began_at,
            };
            if is_round {
                break;
            }
        }
        Ok(total)
    }
}

/// One step: what it removed, and where to go on, or `None` at the end.
fn step(conn: &Connection, position: &Position, now: TimeMs, retention: Retention) -> Outcome<(Swept, Option<Position>)> {
    let mut swept = Swept::default();
    let next = match position {
        Position::Buckets { ns, entity, resource } => {
            let (removed, last) = sweep_buckets(conn, (*ns, entity, resource), now)?;
            swept.buckets = removed;
            Some(last.unwrap_or_else(|| Position::Usage {
                ns: i64::MIN,
                entity: String::new(),
                hour: i64::MIN,
                resource: String::new(),
                counter: String::new(),
            }))
        }
        Position::Usage { ns, entity, hour, resource, counter } => {
            let oldest = now.plus_ms(retention.usage_ms.saturating_neg());
            let (removed, last) = sweep_usage(conn, (*ns, entity, *hour, resource, counter), oldest)?;
            swept.usage = removed;
            Some(last.unwrap_or(Position::Audit { seq: i64::MIN }))
        }
        Position::Audit { seq } => {
            let oldest = now.plus_ms(retention.audit_ms.saturating_neg());
            let (removed, last) = sweep_audit(conn, *seq, oldest)?;
            swept.audit = removed;
            last
        }
    };
    if next.is_none() {
        conn.prepare_cached("INSERT OR REPLACE INTO meta(name,value) VALUES('swept_at',?1)")?.execute([now.0])?;
    }
    Ok((swept, next))
}

/// Removes the expired ones among the next buckets. `None` when there are no more.
fn sweep_buckets(conn: &Connection, after: (i64, &str, &str), now: TimeMs) -> Outcome<(u64, Option<Position>)> {
    const SQL: &str = concat!(
        "SELECT b.ns,b.entity,b.resource,",
        bucket_columns!(),
        " FROM bucket b WHERE (b.ns,b.entity,b.resource)>(?1,?2,?3) ORDER BY b.ns,b.entity,b.resource LIMIT ?4"
    );
    let mut statement = conn.prepare_cached(SQL)?;
    let mut rows = statement.query((after.0, after.1, after.2, STEP_ROWS_MAX))?;
    let mut expired: Vec<(i64, EntityId, ResourceName, BucketState)> = Vec::new();
    let (mut last, mut seen) = (None, 0);
    while let Some(row) = rows.next()? {
        seen += 1;
        last = Some(Position::Buckets { ns: row.get(0)?, entity: row.get(1)?, resource: row.get(2)? });
        let expires_at: Option<i64> = row.get(5)?;
        if expires_at.is_none_or(|expires_at| expires_at > now.0) {
            continue;
        }
        // A row that can not be read is left alone: whoever asks for it is told.
        let (Ok(entity), Ok(resource), Ok(state)) = (name_at(row, 1), name_at(row, 2), bucket_from_row(row, 3, &[])) else { continue };
        if state.is_expired_at(now) {
            expired.push((row.get(0)?, entity, resource, state));
        }
    }
    drop(rows);
    for (ns, entity, resource, state) in &expired {
        bucket::remove(conn, &Key { ns: *ns, entity, resource }, state)?;
    }
    Ok((expired.len() as u64, last.filter(|_| seen == STEP_ROWS_MAX)))
}

fn sweep_usage(conn: &Connection, after: (i64, &str, i64, &str, &str), oldest: TimeMs) -> Outcome<(u64, Option<Position>)> {
    const SQL: &str = "SELECT ns,entity,hour,resource,counter FROM usage WHERE (ns,entity,hour,resource,counter)>(?1,?2,?3,?4,?5) \
                       ORDER BY ns,entity,hour,resource,counter LIMIT ?6";
    const DELETE: &str = "DELETE FROM usage WHERE ns=?1 AND entity=?2 AND hour=?3 AND resource=?4 AND counter=?5";
    type UsageKey = (i64, String, i64, String, String);
    let mut statement = conn.prepare_cached(SQL)?;
    let rows = statement.query_map((after.0, after.1, after.2, after.3, after.4, STEP_ROWS_MAX), |row| {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?))
    })?;
    let keys = rows.collect::<Result<Vec<UsageKey>, _>>()?;
    let (mut removed, mut previous): (u64, Option<&UsageKey>) = (0, None);
    for key in keys.iter().filter(|key| key.2.saturating_mul(HOUR_MS) < oldest.0) {
        conn.prepare_cached(DELETE)?.execute((key.0, &key.1, key.2, &key.3, &key.4))?;
        // The counters of one bucket in one hour count once.
        let same = |other: &UsageKey| (other.0, &other.1, other.2, &other.3) == (key.0, &key.1, key.2, &key.3);
        removed += u64::from(!previous.is_some_and(same));
        previous = Some(key);
    }
    let is_end = keys.len() < usize::try_from(STEP_ROWS_MAX).unwrap_or(usize::MAX);
    let last = keys.into_iter().next_back().filter(|_| !is_end);
    Ok((removed, last.map(|(ns, entity, hour, resource, counter)| Position::Usage { ns, entity, hour, resource, counter })))
}

fn sweep_audit(conn: &Connection, after: i64, oldest: TimeMs) -> Outcome<(u64, Option<Position>)> {
    const LAST: &str = "SELECT max(seq),count(*) FROM (SELECT seq FROM audit WHERE seq>?1 ORDER BY seq LIMIT ?2)";
    const DELETE: &str = "DELETE FROM audit WHERE seq>?1 AND seq<=?2 AND at<?3";
    let (last, seen): (Option<i64>, u32) =
        conn.prepare_cached(LAST)?.query_row((after, STEP_ROWS_MAX), |row| Ok((row.get(0)?, row.get(1)?)))?;
    let Some(last) = last else { return Ok((0, None)) };
    let removed = conn.prepare_cached(DELETE)?.execute((after, last, oldest.0))?;
    Ok((removed as u64, (seen == STEP_ROWS_MAX).then_some(Position::Audit { seq: last })))
}

fn lock(position: &Mutex<Position>) -> MutexGuard<'_, Position> {
    position.lock().unwrap_or_else(PoisonError::into_inner)
}
