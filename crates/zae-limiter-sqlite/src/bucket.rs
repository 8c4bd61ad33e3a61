//! Buckets: rows of the table, and the hot path of the contract.

use rusqlite::{Connection, Statement};
use smallvec::SmallVec;
use zae_limiter_core::{
    AuditAction, AuditSubject, BucketState, EntityId, Limit, LimitName, Milli, ResourceName,
    TimeMs, Wait, assess, check_limits,
};
use zae_limiter_store::{
    Adjusted, BoxFuture, BucketDelta, BucketStore, BucketView, Change, ConsumeOutcome,
    ConsumeRequest, LimitsInForce, Page, PageRequest, Readiness, ResetRequest, StoreError,
    StoreErrorKind, bring_up_to_date,
};

use crate::SqliteStore;
use crate::config;
use crate::error::{Outcome, copy_of, refused, split};
use crate::history::{self, Event};
use crate::job::{AdjustJob, ConsumeJob};
use crate::page::paged;
use crate::rows::{bucket_columns, bucket_from_row, name_at, pack_limits};
use crate::spread;
use crate::usage;
use crate::working::{Key, namespace_gone};

/// What a look at one key found: the bucket, if it exists, and whether the namespace is active.
pub(crate) struct Found {
    pub(crate) state: Option<BucketState>,
    pub(crate) open: bool,
    /// Buckets of the namespace may not have the flags of their levels yet.
    pub(crate) spreading: bool,
}

const LOAD: &str = concat!(
    "SELECT n.deleted_at IS NULL,EXISTS (SELECT 1 FROM spread s WHERE s.ns=n.key),b.ns,",
    bucket_columns!(),
    " FROM namespace n LEFT JOIN bucket b ON b.ns=n.key AND b.entity=?2 AND b.resource=?3 WHERE n.key=?1"
);

/// Reads a bucket and whether its namespace is active, in one statement.
pub(crate) fn load(conn: &Connection, key: &Key<'_>, known: &[Limit]) -> Outcome<Found> {
    let mut statement = conn.prepare_cached(LOAD)?;
    let mut rows = statement.query((key.ns, key.entity.as_str(), key.resource.as_str()))?;
    let Some(row) = rows.next()? else {
        return Ok(Found { state: None, open: false, spreading: false });
    };
    let (open, spreading) = (row.get(0)?, row.get(1)?);
    let exists = row.get::<_, Option<i64>>(2)?.is_some();
    let mut state = exists.then(|| bucket_from_row(row, 3, known)).transpose()?;
    if spreading && let Some(state) = &mut state {
        state.disabled = config::is_disabled(conn, key)?;
    }
    Ok(Found { state, open, spreading })
}

/// Reads a bucket of a namespace that has been looked at before in this transaction, and found to
/// be `spreading` or not.
pub(crate) fn find(
    conn: &Connection,
    key: &Key<'_>,
    known: &[Limit],
    spreading: bool,
) -> Outcome<Option<BucketState>> {
    const SQL: &str = concat!(
        "SELECT ",
        bucket_columns!(),
        " FROM bucket b WHERE b.ns=?1 AND b.entity=?2 AND b.resource=?3"
    );
    let mut statement = conn.prepare_cached(SQL)?;
    let mut rows = statement.query((key.ns, key.entity.as_str(), key.resource.as_str()))?;
    let mut state = rows.next()?.map(|row| bucket_from_row(row, 0, known)).transpose()?;
    if spreading && let Some(state) = &mut state {
        state.disabled = config::is_disabled(conn, key)?;
    }
    Ok(state)
}

/// A bucket that does not exist yet, switched off if the stored configuration says so.
pub(crate) fn created(
    conn: &Connection,
    key: &Key<'_>,
    limits: &LimitsInForce,
    now: TimeMs,
) -> Outcome<BucketState> {
    check_limits(&limits.limits)
        .map_err(|error| refused(StoreErrorKind::Invalid, error.to_string()))?;
    let mut state = BucketState::full(&limits.limits, limits.stamp, now);
    state.disabled = config::is_disabled(conn, key)?;
    Ok(state)
}

/// Writes a bucket that has a row, in another hour than the one it is in.
pub(crate) const UPDATE: &str = "UPDATE bucket SET refilled_at=?4,stamp=?5,expires_at=?6,hour=?7,events=?8,active=?9,limits=?10 \
                      WHERE ns=?1 AND entity=?2 AND resource=?3";
/// The same within an hour. SQLite rewrites the index of a column that is named, also when its
/// value stays.
pub(crate) const UPDATE_IN_HOUR: &str = "UPDATE bucket SET refilled_at=?4,stamp=?5,expires_at=?6,events=?8,active=?9,limits=?10 \
                      WHERE ns=?1 AND entity=?2 AND resource=?3";
/// Writes one that has none.
const INSERT: &str = "INSERT INTO bucket(ns,entity,resource,refilled_at,stamp,expires_at,hour,events,active,limits,disabled) \
                      VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11)";

/// Writes a bucket: `stored` says whether there is a row to update. `blob` is scratch space.
pub(crate) fn save(
    conn: &Connection,
    key: &Key<'_>,
    state: &BucketState,
    stored: bool,
    blob: &mut Vec<u8>,
) -> Outcome<()> {
    let mut statement = conn.prepare_cached(if stored { UPDATE } else { INSERT })?;
    write(&mut statement, key, state, stored, blob)
}

/// As [`save`], with a statement that several rows share: `UPDATE` for those that are stored, else
/// `INSERT`.
pub(crate) fn write(
    statement: &mut Statement<'_>,
    key: &Key<'_>,
    state: &BucketState,
    stored: bool,
    blob: &mut Vec<u8>,
) -> Outcome<()> {
    blob.clear();
    pack_limits(state, blob);
    statement.raw_bind_parameter(1, key.ns)?;
    statement.raw_bind_parameter(2, key.entity.as_str())?;
    statement.raw_bind_parameter(3, key.resource.as_str())?;
    statement.raw_bind_parameter(4, state.refilled_at.0)?;
    statement.raw_bind_parameter(5, i64::try_from(state.stamp.0).unwrap_or(i64::MAX))?;
    statement.raw_bind_parameter(6, state.expires_at().map(|at| at.0))?;
    statement.raw_bind_parameter(7, state.hour)?;
    statement.raw_bind_parameter(8, state.events)?;
    statement.raw_bind_parameter(9, u8::try_from(state.active()).unwrap_or(u8::MAX))?;
    statement.raw_bind_parameter(10, blob.as_slice())?;
    if !stored {
        statement.raw_bind_parameter(11, state.disabled)?;
    }
    statement.raw_execute()?;
    Ok(())
}

/// Removes a bucket; what its open hour counted goes into the history first.
pub(crate) fn remove(conn: &Connection, key: &Key<'_>, state: &BucketState) -> Outcome<()> {
    usage::spill(conn, key, &state.open_hour())?;
    let mut statement =
        conn.prepare_cached("DELETE FROM bucket WHERE ns=?1 AND entity=?2 AND resource=?3")?;
    statement.execute((key.ns, key.entity.as_str(), key.resource.as_str()))?;
    Ok(())
}

impl BucketStore for SqliteStore {
    fn consume<'a>(
        &'a self,
        request: &'a ConsumeRequest<'a>,
    ) -> BoxFuture<'a, Result<ConsumeOutcome, StoreError>> {
        Box::pin(async move {
            request.check("consume")?;
            let writer = self.writer("consume")?;
            let inline = writer.inline(request.now, |conn, working| {
                working.consume(conn, self.key, request.members, request.now)
            });
            if let Some(outcome) = inline {
                return outcome.map_err(|failure| self.error(failure, "consume"));
            }
            let (job, answer) = ConsumeJob::job(self.key, request);
            writer.submit_operation(request.now, job, "consume")?;
            answer
                .await
                .ok()
                .and_then(|job| job.result)
                .unwrap_or_else(|| Err(self.lost("consume")))
        })
    }

    fn peek<'a>(
        &'a self,
        request: &'a ConsumeRequest<'a>,
    ) -> BoxFuture<'a, Result<ConsumeOutcome, StoreError>> {
        Box::pin(async move {
            request.check("peek")?;
            self.read("peek", |conn| peek(conn, self.key, request))
        })
    }

    fn adjust<'a>(
        &'a self,
        deltas: &'a [BucketDelta<'a>],
        now: TimeMs,
    ) -> BoxFuture<'a, Vec<Result<Adjusted, StoreError>>> {
        Box::pin(async move {
            match self.adjust_all(deltas, now).await {
                Ok(results) => results,
                Err(error) => deltas.iter().map(|_| Err(copy_of(&error))).collect(),
            }
        })
    }

    fn reset<'a>(
        &'a self,
        request: &'a ResetRequest<'a>,
        change: &'a Change,
    ) -> BoxFuture<'a, Result<Option<Vec<(LimitName, Milli)>>, StoreError>> {
        let (ns, change) = (self.key, change.clone());
        let (entity, resource) = (request.entity.clone(), request.resource.clone());
        let only: Option<Vec<LimitName>> = request.only.map(<[_]>::to_vec);
        Box::pin(self.write("reset", move |conn| {
            reset(conn, ns, (&entity, &resource), only.as_deref(), &change)
        }))
    }

    fn buckets<'a>(
        &'a self,
        entity: &'a EntityId,
        page: &'a PageRequest,
    ) -> BoxFuture<'a, Result<Page<BucketView>, StoreError>> {
        const SQL: &str = concat!(
            "SELECT b.entity,b.resource,",
            bucket_columns!(),
            " FROM bucket b WHERE b.ns=?1 AND b.entity=?2 AND b.resource>?3 ORDER BY b.resource LIMIT ?4"
        );
        let (ns, entity, page) = (self.key, entity.clone(), page.clone());
        Box::pin(self.read_apart("buckets", move |conn| {
            paged(
                &page,
                |after, limit| views(conn, SQL, (ns, entity.as_str(), after, limit)),
                |view| view.resource.to_string(),
            )
        }))
    }

    fn resource_buckets<'a>(
        &'a self,
        resource: &'a ResourceName,
        page: &'a PageRequest,
    ) -> BoxFuture<'a, Result<Page<BucketView>, StoreError>> {
        const SQL: &str = concat!(
            "SELECT b.entity,b.resource,",
            bucket_columns!(),
            " FROM bucket b WHERE b.ns=?1 AND b.resource=?2 AND b.entity>?3 ORDER BY b.entity LIMIT ?4"
        );
        let (ns, resource, page) = (self.key, resource.clone(), page.clone());
        Box::pin(self.read_apart("resource_buckets", move |conn| {
            paged(
                &page,
                |after, limit| views(conn, SQL, (ns, resource.as_str(), after, limit)),
                |view| view.entity.to_string(),
            )
        }))
    }
}

impl SqliteStore {
    async fn adjust_all(
        &self,
        deltas: &[BucketDelta<'_>],
        now: TimeMs,
    ) -> Result<Vec<Result<Adjusted, StoreError>>, StoreError> {
        let writer = self.writer("adjust")?;
        let inline = writer.inline(now, |conn, working| {
            let mut results = Vec::with_capacity(deltas.len());
            for delta in deltas {
                results.push(split(
                    working.adjust(conn, self.key, delta, now),
                    "adjust",
                    self.path(),
                )?);
            }
            Ok(results)
        });
        if let Some(results) = inline {
            return results.map_err(|failure| self.error(failure, "adjust"));
        }
        let (job, answer) = AdjustJob::job(self.key, deltas, now);
        writer.submit_operation(now, job, "adjust")?;
        answer.await.unwrap_or_else(|_| Err(self.lost("adjust")))
    }
}

fn peek(conn: &Connection, ns: i64, request: &ConsumeRequest<'_>) -> Outcome<ConsumeOutcome> {
    let mut states: SmallVec<[BucketState; 4]> = SmallVec::new();
    for (member, take) in request.members.iter().enumerate() {
        let key = Key { ns, entity: take.entity, resource: take.resource };
        let found = load(conn, &key, &take.limits.limits)?;
        if !found.open {
            return Err(namespace_gone());
        }
        let state = match found.state {
            _ if take.is_unlimited() => {
                if config::is_disabled(conn, &key)? {
                    return Ok(ConsumeOutcome::Disabled { member });
                }
                BucketState::full(&[], take.limits.stamp, request.now)
            }
            None => {
                let state = created(conn, &key, take.limits, request.now)?;
                if state.disabled {
                    return Ok(ConsumeOutcome::Disabled { member });
                }
                state
            }
            Some(mut state) => {
                match bring_up_to_date(&mut state, take, request.now).map_err(StoreError::from)? {
                    Readiness::Ready | Readiness::Synced => state,
                    Readiness::Stale => return Ok(ConsumeOutcome::Stale { member }),
                    Readiness::Disabled => return Ok(ConsumeOutcome::Disabled { member }),
                }
            }
        };
        states.push(state);
    }
    let reports = assess(
        states.iter().zip(request.members).map(|(state, take)| (state, take.takes)),
        request.now,
    );
    let passes = reports.iter().all(|report| report.wait == Wait::None);
    Ok(if passes { ConsumeOutcome::Granted(reports) } else { ConsumeOutcome::Refused(reports) })
}

fn reset(
    conn: &Connection,
    ns: i64,
    (entity, resource): (&EntityId, &ResourceName),
    only: Option<&[LimitName]>,
    change: &Change,
) -> Outcome<Option<Vec<(LimitName, Milli)>>> {
    let key = Key { ns, entity, resource };
    let found = load(conn, &key, &[])?;
    if !found.open {
        return Err(namespace_gone());
    }
    let Some(mut state) = found.state else { return Ok(None) };
    let restored = state.reset(only, change.at);
    save(conn, &key, &state, true, &mut Vec::new())?;
    let details =
        restored.iter().map(|(name, gained)| (name.to_string(), tokens(*gained))).collect();
    let event = Event {
        subject: AuditSubject::Entity(entity.clone()),
        action: AuditAction::BucketReset,
        resource: Some(resource),
        details,
    };
    history::record(conn, ns, change, event)?;
    Ok(Some(restored))
}

/// Millitokens as tokens, exactly.
fn tokens(amount: Milli) -> String {
    let sign = if amount.is_negative() { "-" } else { "" };
    let milli = amount.0.unsigned_abs();
    match milli.rem_euclid(1000) {
        0 => format!("{sign}{}", milli.div_euclid(1000)),
        rest => format!("{sign}{}.{rest:03}", milli.div_euclid(1000)),
    }
}

fn views(conn: &Connection, sql: &str, params: (i64, &str, &str, u32)) -> Outcome<Vec<BucketView>> {
    let spreading = spread::is_spreading(conn, params.0)?;
    let mut statement = conn.prepare_cached(sql)?;
    let mut rows = statement.query(params)?;
    let mut views = Vec::new();
    while let Some(row) = rows.next()? {
        let (entity, resource) = (name_at(row, 0)?, name_at(row, 1)?);
        let mut state = bucket_from_row(row, 2, &[])?;
        if spreading {
            state.disabled = config::is_disabled(
                conn,
                &Key { ns: params.0, entity: &entity, resource: &resource },
            )?;
        }
        views.push(BucketView { entity, resource, state });
    }
    Ok(views)
}

#[cfg(test)]
mod tests {
    use rusqlite::StatementStatus;

    use super::*;
    use crate::SqliteStore;

    /// Without a stable plan SQLite plans this join anew whenever other values are bound, at twenty
    /// times its cost.
    #[test]
    fn a_bucket_is_read_without_planning_anew() {
        let directory = tempfile::tempdir().expect("a directory");
        let store = SqliteStore::open(directory.path().join("limits.db")).expect("a store");
        let resource = "gpt-4".parse().expect("a name");
        let planned = store.read("test", |conn| {
            for id in ["a", "b", "c"] {
                let entity = id.parse().expect("an id");
                load(conn, &Key { ns: store.key, entity: &entity, resource: &resource }, &[])?;
            }
            Ok(conn.prepare_cached(LOAD)?.get_status(StatementStatus::RePrepare))
        });
        assert_eq!(planned.expect("a read"), 0);
    }
}
