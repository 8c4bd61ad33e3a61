//! The sweep: forgets expired buckets that are full and history past its retention, and gives
//! unused pages back.
//!
//! A sweep goes over the tables in steps of a few rows and remembers where it stopped. It needs no
//! index on the expiry, which every take would have to keep up to date. All processes share the
//! sweep that the store does by itself, and its place is in the file. A process that is open for a
//! moment only does a step when it closes the file.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rusqlite::{Connection, Row};
use zae_limiter_core::{BucketState, EntityId, ResourceName, SweepHorizon, TimeMs};
use zae_limiter_store::{StoreError, Swept};

use crate::SqliteStore;
use crate::error::Outcome;
use crate::job::{Job, Work};
use crate::options::SqliteOptions;
use crate::pack::name_at;
use crate::query;
use crate::rows::{self, Key, bucket_columns, bucket_from_row};
use crate::usage;
use crate::writer::lock;

/// Rows looked at in one step.
const STEP_ROWS_MAX: u32 = 200;
/// A store begins its own sweep over all tables at most this often.
const ROUND_MS: i64 = 60_000;
/// Within a round the store does a step at most this often: 10 000 rows a second, for less than a
/// fiftieth of the time. A step that found much to forget is followed by the next at once, up to a
/// third of the time.
const STEP_MS: i64 = 20;
/// Free pages that a step gives back.
const VACUUM_PAGES_MAX: u32 = 200;
/// Free pages that are kept for reuse, beside an eighth of the file: 4 MB.
const FREE_PAGES_KEPT: i64 = 1_000;

/// The names in `meta` under which sweeps store their observations of the clock.
const PROVEN: &str = "sweep_proven";
const LEAPT_TO: &str = "sweep_leapt_to";
const SET_META: &str = "INSERT OR REPLACE INTO meta(name,value) VALUES(?1,?2)";
/// The believed time in `meta` is written anew when it is older than this.
const HORIZON_WRITE_MS: i64 = 10_000;

/// Where a sweep continues. The variants are in the order of the sweep.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Position {
    Buckets { ns: i64, entity: String, resource: String },
    Usage,
    Audit { seq: i64 },
    FreePages,
}

impl Position {
    fn start() -> Position {
        Position::Buckets { ns: i64::MIN, entity: String::new(), resource: String::new() }
    }

    /// As it is stored: no name contains a space.
    fn to_text(&self) -> String {
        match self {
            Position::Buckets { ns, entity, resource } => {
                format!("buckets {ns} {entity} {resource}")
            }
            Position::Usage => "usage".to_owned(),
            Position::Audit { seq } => format!("audit {seq}"),
            Position::FreePages => "pages".to_owned(),
        }
    }

    /// The reverse of [`Position::to_text`]; a text that cannot be read is the start.
    fn from_text(text: &str) -> Position {
        let mut words = text.split(' ');
        let mut word = || words.next().unwrap_or_default();
        match word() {
            "buckets" => match word().parse() {
                Ok(ns) => {
                    Position::Buckets { ns, entity: word().to_owned(), resource: word().to_owned() }
                }
                Err(_) => Position::start(),
            },
            "usage" => Position::Usage,
            "audit" => word().parse().map_or(Position::start(), |seq| Position::Audit { seq }),
            "pages" => Position::FreePages,
            _ => Position::start(),
        }
    }
}

/// How long history is kept, and how much of it.
#[derive(Clone, Copy)]
struct Retention {
    usage_ms: i64,
    usage_rows_max: u64,
    audit_ms: i64,
}

/// When to sweep, and where.
pub(crate) struct Sweeper {
    retention: Retention,
    /// Whether the store sweeps without being asked.
    is_unasked: bool,
    /// The time of the last operation.
    last_now: AtomicI64,
    /// The next step the store does by itself; not before the first operation has told the time.
    due: Arc<AtomicI64>,
    /// The same by the monotonic clock.
    due_here: Arc<AtomicI64>,
    asked: Arc<Mutex<Position>>,
}

const NOT_YET: i64 = i64::MIN;

impl Sweeper {
    pub(crate) fn new(options: &SqliteOptions) -> Sweeper {
        Sweeper {
            retention: Retention {
                usage_ms: options.usage_retention_ms,
                usage_rows_max: options.usage_rows_max,
                audit_ms: options.audit_retention_ms,
            },
            is_unasked: options.background_sweep,
            last_now: AtomicI64::new(NOT_YET),
            due: Arc::new(AtomicI64::new(NOT_YET)),
            due_here: Arc::new(AtomicI64::new(0)),
            asked: Arc::new(Mutex::new(Position::start())),
        }
    }

    /// True for one of the callers that find a step due: by the time of its operation and by the
    /// time that has passed here. The second, because an operation may tell any time, and one that
    /// is far ahead should not set the pace.
    pub(crate) fn is_due(&self, now: TimeMs, monotonic: impl FnOnce() -> Duration) -> bool {
        if !self.is_unasked {
            return false;
        }
        self.last_now.store(now.0, Ordering::Relaxed);
        let due = self.due.load(Ordering::Relaxed);
        let back = due.saturating_sub(now.0) > ROUND_MS;
        if due != NOT_YET && now.0 < due && !back {
            return false;
        }
        let here = i64::try_from(monotonic().as_millis()).unwrap_or(i64::MAX);
        let ripe = due != NOT_YET && !back && here >= self.due_here.load(Ordering::Relaxed);
        let pause_ms = if ripe { STEP_MS } else { ROUND_MS };
        if self
            .due
            .compare_exchange(
                due,
                now.0.saturating_add(pause_ms),
                Ordering::Relaxed,
                Ordering::Relaxed,
            )
            .is_err()
        {
            return false;
        }
        if ripe || due == NOT_YET {
            self.due_here.store(here.saturating_add(pause_ms), Ordering::Relaxed);
        }
        ripe
    }

    /// One step of the store's own sweep.
    pub(crate) fn background_step(&self, now: TimeMs) -> Job {
        let (retention, due, due_here) =
            (self.retention, Arc::clone(&self.due), Arc::clone(&self.due_here));
        let (job, _nobody_waits) = Work::job("sweep", move |conn| {
            let next = go_on(conn, now, retention)?;
            due.store(next, Ordering::Relaxed);
            if next <= now.0 {
                due_here.store(0, Ordering::Relaxed);
            }
            Ok(())
        });
        job
    }

    /// The time of the last operation, if there was one and the store has not been open long enough
    /// to sweep by itself.
    pub(crate) fn owed_at_close(&self, monotonic: Duration) -> Option<TimeMs> {
        let last_now = self.last_now.load(Ordering::Relaxed);
        let here = i64::try_from(monotonic.as_millis()).unwrap_or(i64::MAX);
        (last_now != NOT_YET && here < self.due_here.load(Ordering::Relaxed))
            .then_some(TimeMs(last_now))
    }

    /// What a store that was open for a moment does when it is closed.
    pub(crate) fn closing_step(&self, conn: &Connection, now: TimeMs) -> Outcome<()> {
        go_on(conn, now, self.retention).map(|_| ())
    }
}

/// True when the file says that the sweep of all processes may go on.
pub(crate) fn is_due_in_file(conn: &Connection, now: TimeMs) -> Outcome<bool> {
    let due: Option<i64> = query::value(conn, "SELECT due FROM sweep", [])?;
    Ok(due.is_none_or(|due| is_over(due, now)))
}

/// True when `due` has come. A `due` more than a round ahead was written by a clock that was ahead,
/// and counts as past.
fn is_over(due: i64, now: TimeMs) -> bool {
    now.0 >= due || due.saturating_sub(now.0) > ROUND_MS
}

/// One step of the sweep of all processes, if it is due. Returns when the next one is.
fn go_on(conn: &Connection, now: TimeMs, retention: Retention) -> Outcome<i64> {
    const GET: &str = "SELECT seen,due,position FROM sweep";
    const SET: &str = "INSERT OR REPLACE INTO sweep(id,seen,due,position) VALUES(1,?1,?2,?3)";
    type Stored = (i64, i64, String);
    let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
    let stored: Option<Stored> = query::first(conn, GET, [], read)?;
    let Some((seen, due, position)) = stored else {
        horizon(conn, now, true)?;
        query::change(conn, SET, (now.0, now.0, Position::start().to_text()))?;
        return Ok(now.0);
    };
    if !is_over(due, now) {
        return Ok(due);
    }
    let Some(proven) = horizon(conn, now, false)? else {
        return Ok(now.0.saturating_add(ROUND_MS));
    };
    let acts_on = proven.min(TimeMs(seen));
    let (swept, next) = step(conn, &Position::from_text(&position), acts_on, retention)?;
    let is_much = 2 * (swept.buckets + swept.usage + swept.audit) >= u64::from(STEP_ROWS_MAX);
    let pause_ms = match &next {
        None => ROUND_MS,
        Some(Position::FreePages) => 0,
        Some(_) if is_much => 0,
        Some(_) => STEP_MS,
    };
    let due = now.0.saturating_add(pause_ms);
    query::change(conn, SET, (now.0, due, next.unwrap_or_else(Position::start).to_text()))?;
    Ok(due)
}

impl SqliteStore {
    pub(crate) async fn sweep_steps(
        &self,
        now: TimeMs,
        steps_max: u32,
    ) -> Result<Swept, StoreError> {
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
            let (swept, next) = self.write_step("sweep", work).await?;
            total.buckets += swept.buckets;
            total.usage += swept.usage;
            total.audit += swept.audit;
            // A sweep that continues where an earlier one stopped ends when it reaches that place
            // again.
            let is_round = match next {
                None => {
                    std::mem::replace(&mut total.complete, true) || began_at == Position::start()
                }
                Some(position) => total.complete && position >= began_at,
            };
            if is_round {
                break;
            }
        }
        Ok(total)
    }
}

/// Observes the clock and returns the time up to which a sweep may act, by the observations of all
/// sweeps of the file. Without an earlier sweep `begins` believes the clock: the store's own sweep
/// begins so in a new file, which has nothing to forget.
pub(crate) fn horizon(conn: &Connection, now: TimeMs, begins: bool) -> Outcome<Option<TimeMs>> {
    let read = |name: &str| -> Outcome<Option<TimeMs>> {
        Ok(query::value(conn, "SELECT value FROM meta WHERE name=?1", [name])?.map(TimeMs))
    };
    let before = SweepHorizon { proven: read(PROVEN)?, leapt_to: read(LEAPT_TO)? };
    let mut horizon = before;
    if begins && before == SweepHorizon::default() {
        horizon.proven = Some(now);
    }
    let proven = horizon.observe(now);
    // Within one round the time is not needed to the millisecond.
    let is_known = before.leapt_to == horizon.leapt_to
        && before
            .proven
            .zip(proven)
            .is_some_and(|(before, now)| (0..HORIZON_WRITE_MS).contains(&now.since(before)));
    if !is_known {
        for (name, value) in [(PROVEN, horizon.proven), (LEAPT_TO, horizon.leapt_to)] {
            match value {
                Some(at) => query::change(conn, SET_META, (name, at.0))?,
                None => query::change(conn, "DELETE FROM meta WHERE name=?1", [name])?,
            };
        }
    }
    Ok(proven)
}

/// One step: the rows it removed, and the position to go on from, or `None` at the end.
fn step(
    conn: &Connection,
    position: &Position,
    now: TimeMs,
    retention: Retention,
) -> Outcome<(Swept, Option<Position>)> {
    let mut swept = Swept::default();
    let next = match position {
        Position::Buckets { ns, entity, resource } => {
            let (removed, last) = sweep_buckets(conn, (*ns, entity, resource), now)?;
            swept.buckets = removed;
            // The counts of these buckets are in the history now, which has a bound of its own.
            if removed > 0 {
                swept.usage = usage::remove_old(
                    conn,
                    TimeMs(i64::MIN),
                    retention.usage_rows_max,
                    STEP_ROWS_MAX,
                )?;
            }
            Some(last.unwrap_or(Position::Usage))
        }
        Position::Usage => {
            let oldest = now.plus_ms(retention.usage_ms.saturating_neg());
            swept.usage = usage::remove_old(conn, oldest, retention.usage_rows_max, STEP_ROWS_MAX)?;
            Some(if swept.usage == u64::from(STEP_ROWS_MAX) {
                Position::Usage
            } else {
                Position::Audit { seq: i64::MIN }
            })
        }
        Position::Audit { seq } => {
            let oldest = now.plus_ms(retention.audit_ms.saturating_neg());
            let (removed, last) = sweep_audit(conn, *seq, oldest)?;
            swept.audit = removed;
            if last.is_none() && has_too_many_free_pages(conn)? {
                Some(Position::FreePages)
            } else {
                last
            }
        }
        Position::FreePages => {
            conn.execute_batch(&format!("PRAGMA incremental_vacuum({VACUUM_PAGES_MAX})"))?;
            has_too_many_free_pages(conn)?.then_some(Position::FreePages)
        }
    };
    if next.is_none() {
        query::change(conn, SET_META, ("swept_at", now.0))?;
    }
    Ok((swept, next))
}

/// Removes the expired ones among the next buckets. `None` when there are no more.
fn sweep_buckets(
    conn: &Connection,
    after: (i64, &str, &str),
    now: TimeMs,
) -> Outcome<(u64, Option<Position>)> {
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
        last =
            Some(Position::Buckets { ns: row.get(0)?, entity: row.get(1)?, resource: row.get(2)? });
        let expires_at: Option<i64> = row.get(5)?;
        if expires_at.is_none_or(|expires_at| expires_at > now.0) {
            continue;
        }
        // A row that cannot be read is left alone: the callers of that bucket get the error.
        let (Ok(entity), Ok(resource), Ok(state)) =
            (name_at(row, 1), name_at(row, 2), bucket_from_row(row, 3, &[]))
        else {
            continue;
        };
        if state.is_expired_at(now) {
            expired.push((row.get(0)?, entity, resource, state));
        }
    }
    drop(rows);
    for (ns, entity, resource, state) in &expired {
        rows::remove(conn, &Key { ns: *ns, entity, resource }, state)?;
    }
    Ok((expired.len() as u64, last.filter(|_| seen == STEP_ROWS_MAX)))
}

fn sweep_audit(conn: &Connection, after: i64, oldest: TimeMs) -> Outcome<(u64, Option<Position>)> {
    const LAST: &str =
        "SELECT max(seq),count(*) FROM (SELECT seq FROM audit WHERE seq>?1 ORDER BY seq LIMIT ?2)";
    const DELETE: &str = "DELETE FROM audit WHERE seq>?1 AND seq<=?2 AND at<?3";
    let read = |row: &Row<'_>| Ok((row.get::<_, Option<i64>>(0)?, row.get::<_, u32>(1)?));
    let found = query::first(conn, LAST, (after, STEP_ROWS_MAX), read)?;
    let Some((Some(last), seen)) = found else { return Ok((0, None)) };
    let removed = query::change(conn, DELETE, (after, last, oldest.0))?;
    Ok((removed as u64, (seen == STEP_ROWS_MAX).then_some(Position::Audit { seq: last })))
}

/// True when the file could give pages back, and has more of them than it will soon need again.
/// Needs `auto_vacuum=INCREMENTAL`, set when this version creates a file.
fn has_too_many_free_pages(conn: &Connection) -> Outcome<bool> {
    const INCREMENTAL: i64 = 2;
    let read = |pragma| conn.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0));
    let (free, pages) = (read("freelist_count")?, read("page_count")?);
    Ok(free > FREE_PAGES_KEPT.max(pages / 8) && read("auto_vacuum")? == INCREMENTAL)
}

#[cfg(test)]
mod tests {
    use zae_limiter_core::{Limit, LimitSource, Milli, Take};
    use zae_limiter_store::{BucketStore, ConsumeRequest, LimitsInForce, MemberTake};

    use super::*;

    const NOW: TimeMs = TimeMs(1_767_261_600_000);

    #[test]
    fn a_position_survives_the_file() {
        let somewhere =
            Position::Buckets { ns: 7, entity: "key-1".to_owned(), resource: "gpt-4".to_owned() };
        for position in [
            Position::start(),
            somewhere,
            Position::Usage,
            Position::Audit { seq: -3 },
            Position::FreePages,
        ] {
            assert_eq!(Position::from_text(&position.to_text()), position);
        }
        assert_eq!(Position::from_text("what"), Position::start());
    }

    /// Against a caller who invents ids: a step that finds much to forget is followed by the next
    /// at once, however fast the ids come; one that finds nothing takes its time.
    #[test]
    fn the_pace_follows_what_there_is_to_forget() {
        const COPIES: &str = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<1000) \
                              INSERT INTO bucket SELECT ns,printf('key-%08d',i),resource,refilled_at,stamp,expires_at,disabled,hour,\
                              events,active,limits FROM n CROSS JOIN bucket WHERE entity='key'";
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("limits.db");
        let store = SqliteStore::open(&path).expect("a store");
        let (entity, resource) = ("key".parse().expect("an id"), "gpt-4".parse().expect("a name"));
        let limit = [Limit::per_minute("rpm", 60).expect("a limit")];
        let limits = LimitsInForce::resolved(
            limit,
            LimitSource::System,
            zae_limiter_core::ConfigStamp(0),
            7,
        );
        let takes = [Take { limit: 0, amount: Milli::from_tokens(1) }];
        let member = MemberTake {
            entity: &entity,
            resource: &resource,
            limits: &limits,
            takes: &takes,
            absent: &[],
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(store.consume(&ConsumeRequest::new(&[member], NOW))).expect("a decision");
        let conn = Connection::open(&path).expect("a connection");
        conn.execute(COPIES, []).expect("copies");
        let retention = store.writer("test").expect("a writer").sweeper().retention;
        let count = || {
            conn.query_row("SELECT count(*) FROM bucket", [], |row| row.get::<_, i64>(0))
                .expect("a count")
        };
        // Nothing has expired yet: a round of looks, at its own pace.
        assert_eq!(go_on(&conn, NOW, retention).expect("the first look"), NOW.0);
        assert_eq!(go_on(&conn, NOW, retention).expect("a step"), NOW.0 + STEP_MS);
        let later = NOW.plus_ms(3_600_000);
        // The first look at a later time is not acted upon.
        go_on(&conn, later, retention).expect("a look");
        assert_eq!(count(), 1_001);
        conn.execute_batch("DELETE FROM sweep; DELETE FROM meta WHERE name LIKE 'sweep_%'")
            .expect("as in a new file");
        go_on(&conn, later, retention).expect("a look");
        for left in [801, 601, 401, 201, 1] {
            assert_eq!(
                go_on(&conn, later, retention).expect("a step"),
                later.0,
                "the next at once"
            );
            assert_eq!(count(), left);
        }
    }
}
