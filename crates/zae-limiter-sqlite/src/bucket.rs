//! Buckets: the hot path of the contract.

use rusqlite::Connection;
use zae_limiter_core::{EntityId, LimitName, Report, ResourceName, TimeMs};
use zae_limiter_store::{
    Adjusted, Adopted, Adoption, BoxFuture, BucketDelta, BucketStore, BucketView, Change,
    ConsumeOutcome, ConsumeRequest, Order, Page, PageRequest, Provisioned, ResetRequest, Restored,
    StoreError, StoreFuture, audit,
};

use crate::SqliteStore;
use crate::config;
use crate::error::{Outcome, copy_of, lost, namespace_gone, split};
use crate::history;
use crate::job::{AdjustJob, ConsumeJob};
use crate::page::paged;
use crate::rows::{self, Key};
use crate::transaction::Transaction;
use crate::usage;

impl BucketStore for SqliteStore {
    fn consume<'a>(&'a self, request: &'a ConsumeRequest<'a>) -> StoreFuture<'a, ConsumeOutcome> {
        Box::pin(async move {
            request.check("consume")?;
            let writer = self.writer("consume")?;
            let inline = writer.inline(request.now, |conn, transaction| {
                transaction.consume(conn, self.key, request.members, request.now)
            });
            if let Some(outcome) = inline {
                return outcome.map_err(|failure| self.error(failure, "consume"));
            }
            let (job, answer) = ConsumeJob::job(self.key, request);
            writer.submit_operation(request.now, job, "consume")?;
            answer.await.ok().and_then(|job| job.result).unwrap_or_else(|| Err(lost("consume")))
        })
    }

    fn peek<'a>(&'a self, request: &'a ConsumeRequest<'a>) -> StoreFuture<'a, ConsumeOutcome> {
        Box::pin(async move {
            request.check("peek")?;
            self.read("peek", |conn| {
                Transaction::default().peek(conn, self.key, request.members, request.now)
            })
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

    fn provision<'a>(&'a self, order: &'a Order<'a>, now: TimeMs) -> StoreFuture<'a, Provisioned> {
        Box::pin(self.lend(order, now))
    }

    fn settle<'a>(
        &'a self,
        entity: &'a EntityId,
        resource: &'a ResourceName,
        report: &'a Report,
        now: TimeMs,
    ) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let ns = self.key;
            let inline = self.writer("settle")?.inline(now, |conn, transaction| {
                transaction.settle(conn, Key { ns, entity, resource }, report, now)
            });
            if let Some(settled) = inline {
                return settled.map_err(|failure| self.error(failure, "settle"));
            }
            let (entity, resource, report) = (entity.clone(), resource.clone(), report.clone());
            let settled = self.write("settle", move |conn| {
                let mut transaction = Transaction::default();
                let key = Key { ns, entity: &entity, resource: &resource };
                transaction.settle(conn, key, &report, now)?;
                transaction.flush(conn).map(|_| ())
            });
            settled.await
        })
    }

    fn reset<'a>(
        &'a self,
        request: &'a ResetRequest<'a>,
        change: &'a Change,
    ) -> StoreFuture<'a, Option<Restored>> {
        let (ns, change) = (self.key, change.clone());
        let (entity, resource) = (request.entity.clone(), request.resource.clone());
        let only: Option<Vec<LimitName>> = request.only.map(<[_]>::to_vec);
        Box::pin(self.write("reset", move |conn| {
            let only = only.as_deref();
            reset(conn, ns, &ResetRequest { entity: &entity, resource: &resource, only }, &change)
        }))
    }

    fn buckets<'a>(
        &'a self,
        entity: &'a EntityId,
        page: &'a PageRequest,
    ) -> StoreFuture<'a, Page<BucketView>> {
        let (ns, entity, page) = (self.key, entity.clone(), page.clone());
        Box::pin(self.read_apart("buckets", move |conn| {
            paged(
                &page,
                |after, limit| {
                    rows::views(conn, rows::OF_ENTITY, (ns, entity.as_str(), after, limit))
                },
                |view| view.resource.to_string(),
            )
        }))
    }

    fn namespace_buckets<'a>(&'a self, page: &'a PageRequest) -> StoreFuture<'a, Page<BucketView>> {
        let (ns, page) = (self.key, page.clone());
        Box::pin(self.read_apart("namespace_buckets", move |conn| {
            paged(
                &page,
                |after, limit| {
                    let (entity, resource) = after.split_once('#').unwrap_or((after, ""));
                    rows::views(conn, rows::OF_NAMESPACE, (ns, entity, resource, limit))
                },
                |view| format!("{}#{}", view.entity, view.resource),
            )
        }))
    }

    fn adopt<'a>(
        &'a self,
        adoption: &'a Adoption<'a>,
        change: &'a Change,
    ) -> StoreFuture<'a, Vec<Adopted>> {
        Box::pin(async move {
            adoption.check()?;
            let Adoption { buckets, usage, details } = *adoption;
            let (ns, change) = (self.key, change.clone());
            let (buckets, usage, details) = (buckets.to_vec(), usage.to_vec(), details.to_vec());
            let adopted = self.write("adopt", move |conn| {
                let adoption = Adoption { buckets: &buckets, usage: &usage, details: &details };
                adopt(conn, ns, &adoption, &change)
            });
            adopted.await
        })
    }

    fn resource_buckets<'a>(
        &'a self,
        resource: &'a ResourceName,
        page: &'a PageRequest,
    ) -> StoreFuture<'a, Page<BucketView>> {
        let (ns, resource, page) = (self.key, resource.clone(), page.clone());
        Box::pin(self.read_apart("resource_buckets", move |conn| {
            paged(
                &page,
                |after, limit| {
                    rows::views(conn, rows::OF_RESOURCE, (ns, resource.as_str(), after, limit))
                },
                |view| view.entity.to_string(),
            )
        }))
    }
}

impl SqliteStore {
    async fn lend(&self, order: &Order<'_>, now: TimeMs) -> Result<Provisioned, StoreError> {
        order.check()?;
        let inline = self
            .writer("provision")?
            .inline(now, |conn, transaction| transaction.provision(conn, self.key, order, now));
        if let Some(answer) = inline {
            return answer.map_err(|failure| self.error(failure, "provision"));
        }
        let (ns, entity, resource) = (self.key, order.entity.clone(), order.resource.clone());
        let (limits, lines) = (order.limits.clone(), order.lines.to_vec());
        let (report, serves, age_ms) = (order.report.clone(), order.serves, order.age_ms);
        let lent = self.write("provision", move |conn| {
            let order = Order {
                entity: &entity,
                resource: &resource,
                limits: &limits,
                lines: &lines,
                report: &report,
                serves,
                age_ms,
            };
            let mut transaction = Transaction::default();
            let answer = transaction.provision(conn, ns, &order, now)?;
            transaction.flush(conn)?;
            Ok(answer)
        });
        lent.await
    }

    async fn adjust_all(
        &self,
        deltas: &[BucketDelta<'_>],
        now: TimeMs,
    ) -> Result<Vec<Result<Adjusted, StoreError>>, StoreError> {
        let writer = self.writer("adjust")?;
        let inline = writer.inline(now, |conn, transaction| {
            let mut results = Vec::with_capacity(deltas.len());
            for delta in deltas {
                results.push(split(
                    transaction.adjust(conn, self.key, delta, now),
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
        answer.await.unwrap_or_else(|_| Err(lost("adjust")))
    }
}

fn reset(
    conn: &Connection,
    ns: i64,
    request: &ResetRequest<'_>,
    change: &Change,
) -> Outcome<Option<Restored>> {
    let key = Key { ns, entity: request.entity, resource: request.resource };
    let found = rows::load(conn, &key, &[])?;
    if !found.is_active {
        return Err(namespace_gone());
    }
    let Some(mut state) = found.state else { return Ok(None) };
    let restored = state.reset(request.only, change.at);
    rows::save(conn, &key, &state, true, &mut Vec::new())?;
    history::record(conn, ns, &audit::bucket_reset(change, request, &restored))?;
    Ok(Some(restored))
}

fn adopt(
    conn: &Connection,
    ns: i64,
    adoption: &Adoption<'_>,
    change: &Change,
) -> Outcome<Vec<Adopted>> {
    // Refuses a namespace that is gone, also where nothing is to be made.
    config::generation(conn, ns)?;
    let mut answers = Vec::with_capacity(adoption.buckets.len() + adoption.usage.len());
    let mut blob = Vec::new();
    for BucketView { entity, resource, state } in adoption.buckets {
        let key = Key { ns, entity, resource };
        answers.push(match rows::load(conn, &key, &[])?.state {
            Some(_) => Adopted::Kept,
            None => {
                let state = state.clone().adopted(config::flag(conn, &key)?, change.at);
                rows::save(conn, &key, &state, false, &mut blob)?;
                Adopted::Made
            }
        });
    }
    let buckets = Adopted::made(&answers);
    for snapshot in adoption.usage {
        answers.push(usage::adopt(conn, ns, snapshot)?);
    }
    let usage = Adopted::made(&answers) - buckets;
    if buckets + usage > 0 {
        history::record(conn, ns, &audit::adopted(change, buckets, usage, adoption.details))?;
    }
    Ok(answers)
}
