//! What comes of an operation, and what it means for the lease it was about.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use zae_limiter::{AcquireError, Lease};
use zae_limiter_store::ConsumeOutcome;

use super::ops::{Ask, Done, Op, Task, Work, WorkEnd};
use super::{Held, Run};
use crate::oracle::Broken;
use crate::oracle::books::{Asked, CallId, OpId, PlannedMember, Told};
use crate::oracle::lease::LeaseModel;

impl Run {
    /// What a first poll intends: settlements are worked out when their future begins.
    pub(super) fn begin_if_new(&mut self, index: usize, now: Duration) {
        let op = &mut self.ops[index];
        if std::mem::replace(&mut op.polled, true) {
            return;
        }
        op.began = now;
        match op.task {
            Task::Flush(id) => {
                let op = op.id;
                if let Some(held) = self.held.iter_mut().find(|held| held.model.id == id) {
                    self.accounts.intend(id, held.model.flush(op));
                }
            }
            Task::Commit(id) => {
                if let Some(mut model) = self.ending.remove(&id) {
                    self.accounts.intend(id, model.settle_use());
                }
            }
            Task::Rollback(id) => {
                if let Some(mut model) = self.ending.remove(&id) {
                    self.accounts.intend(id, model.roll_back());
                }
            }
            Task::Acquire(_) | Task::With(..) | Task::Consume(..) | Task::Other => {}
        }
    }

    pub(super) fn finished(&mut self, op: Op, done: Done) -> Result<(), Broken> {
        let Op { id, client, client_id, task, began, future, .. } = op;
        // A future that has ended still holds what it was given: a lease that was flushed, for one.
        drop(future);
        match (task, done) {
            (Task::Acquire(ask), Done::Acquired(result)) => {
                self.note(format!("  op {id} -> {}", named(&result)));
                self.check_acquired(id, client, began, &ask, &result)?;
                if let Ok(lease) = result {
                    let model = self.granted(id, client_id, &ask, lease.degraded().is_some())?;
                    self.note(format!("  op {id} holds lease {}", model.id));
                    self.check_lease(id, &lease, &model)?;
                    self.held.push(Held { client, lease: Arc::new(lease), model, busy: 0 });
                }
                Ok(())
            }
            (Task::With(ask, work, progress), Done::Worked(result)) => {
                let words = match &result {
                    Ok(()) => "worked".to_owned(),
                    Err(None) => "failed by itself".to_owned(),
                    Err(Some(error)) => error.to_string(),
                };
                self.note(format!("  op {id} -> {words}"));
                match result {
                    Err(Some(error)) => self.check_acquired(id, client, began, &ask, &Err(error)),
                    Ok(()) | Err(None) => {
                        let recorded = progress.recorded.load(Ordering::Relaxed);
                        self.worked(id, client_id, (&ask, &work), recorded, Some(result.is_ok()))
                    }
                }
            }
            (Task::Consume(lease, amounts), Done::Consumed(result)) => {
                self.note(format!(
                    "  op {id} -> {}",
                    result.as_ref().map_or_else(ToString::to_string, |()| "more".to_owned())
                ));
                self.consumed(id, client_id, lease, &amounts, &result)
            }
            (Task::Flush(lease), Done::Settled(result)) => {
                self.release(lease);
                self.note(format!("  op {id} -> {result:?}"));
                if let Some(held) = self.held.iter_mut().find(|held| held.model.id == lease) {
                    held.model.flushed(id, result.is_ok());
                }
                self.check_settled(id, result.is_ok())
            }
            (Task::Commit(_) | Task::Rollback(_), Done::Settled(result)) => {
                self.note(format!("  op {id} -> {result:?}"));
                self.check_settled(id, result.is_ok())
            }
            (Task::Other, Done::Said(said)) => {
                self.note(format!("  op {id} -> {said}"));
                Ok(())
            }
            (task, _) => Err(format!("op {id}: {task:?} ended as something else")),
        }
    }

    fn release(&mut self, lease: u64) {
        if let Some(held) = self.held.iter_mut().find(|held| held.model.id == lease) {
            held.busy -= 1;
        }
    }

    /// The take an operation was granted, if it was granted one.
    pub(super) fn granted_take(&self, op: OpId) -> Option<(CallId, Vec<PlannedMember>)> {
        let state = self.books.lock();
        state.calls.iter().enumerate().rev().find_map(|(id, call)| {
            match (&call.asked, &call.told) {
                (Asked::Consume { members }, Some(Told::Decision(ConsumeOutcome::Granted(_))))
                    if call.told_to == Some(op) =>
                {
                    Some((id, members.clone()))
                }
                _ => None,
            }
        })
    }

    fn granted(
        &mut self,
        op: OpId,
        client: usize,
        ask: &Ask,
        degraded: bool,
    ) -> Result<LeaseModel, Broken> {
        self.leases_begun += 1;
        let id = self.leases_begun;
        if degraded {
            self.report.degraded += 1;
            return Ok(LeaseModel::new(id, &ask.amounts, ask.on_drop, None));
        }
        let (take, members) = self
            .granted_take(op)
            .ok_or_else(|| format!("op {op} got a lease that no take was granted for"))?;
        self.accounts.own(take, id, client);
        Ok(LeaseModel::new(id, &ask.amounts, ask.on_drop, Some(&members)))
    }

    /// The end of a `with_lease` whose work had begun. `ok` is `None` when it did not come to its
    /// end.
    fn worked(
        &mut self,
        op: OpId,
        client: usize,
        (ask, work): (&Ask, &Work),
        recorded: bool,
        ok: Option<bool>,
    ) -> Result<(), Broken> {
        let degraded = self.granted_take(op).is_none();
        let mut model = self.granted(op, client, ask, degraded)?;
        if recorded {
            work.records.iter().for_each(|(index, tokens)| model.record(*index, *tokens));
        }
        let changes = match ok {
            Some(true) => model.settle_use(),
            Some(false) => model.roll_back(),
            None => model.dropped(),
        };
        self.accounts.intend(model.id, changes);
        Ok(())
    }

    fn consumed(
        &mut self,
        op: OpId,
        client: usize,
        lease: u64,
        amounts: &[(String, u64)],
        result: &Result<(), AcquireError>,
    ) -> Result<(), Broken> {
        self.release(lease);
        let take = self.granted_take(op);
        let Some(held) = self.held.iter_mut().find(|held| held.model.id == lease) else {
            return Ok(());
        };
        match (result, take) {
            (Ok(()), Some((take, members))) => {
                self.accounts.own(take, lease, client);
                held.model.absorb(amounts, &members);
            }
            // Given without a decision, or more of a lease that was.
            (Ok(()), None) => {}
            (Err(_), None) => {}
            (Err(error), Some(_)) => {
                return Err(format!("op {op} was granted a take and said {error}"));
            }
        }
        let held =
            self.held.iter().find(|held| held.model.id == lease).ok_or("the lease is held")?;
        check_used(&held.lease, &held.model)
    }

    pub(super) fn record(&mut self) -> Result<(), Broken> {
        let Some(index) = self.some_lease(false) else { return Ok(()) };
        let limit = self.rng.index(self.held[index].model.declared.len());
        let tokens = self.rng.amount();
        let (by_total, down) = (self.rng.chance(60), self.rng.chance(40));
        let Held { lease, model, .. } = &mut self.held[index];
        let name = model.declared[limit].clone();
        let line = if by_total {
            lease.record(&name, tokens).map_err(|error| error.to_string())?;
            model.record(limit, tokens);
            format!("  lease {} records {tokens} of {name}", model.id)
        } else {
            let delta = i64::try_from(tokens).unwrap_or(0) * if down { -1 } else { 1 };
            lease.adjust(&name, delta).map_err(|error| error.to_string())?;
            model.adjust(limit, delta);
            format!("  lease {} adjusts {name} by {delta}", model.id)
        };
        check_used(lease, model)?;
        self.note(line);
        Ok(())
    }

    pub(super) fn drop_lease(&mut self) {
        let Some(index) = self.some_lease(true) else { return };
        let Held { lease, mut model, .. } = self.held.remove(index);
        self.note(format!("  lease {} is dropped: {:?}", model.id, model.on_drop));
        self.accounts.intend(model.id, model.dropped());
        drop(lease);
    }

    /// Drops an operation wherever it is.
    pub(super) fn cancel(&mut self, index: usize) {
        if index >= self.ops.len() {
            return;
        }
        let Op { id, client_id, task, polled, future, .. } = self.ops.remove(index);
        self.note(format!("  op {id} is dropped"));
        self.report.cancelled += 1;
        drop(future);
        match task {
            Task::Flush(lease) | Task::Consume(lease, _) => self.release(lease),
            // A commit that never began is a lease that is dropped.
            Task::Commit(lease) | Task::Rollback(lease) if !polled => {
                if let Some(mut model) = self.ending.remove(&lease) {
                    self.accounts.intend(lease, model.dropped());
                }
            }
            Task::With(ask, work, progress) => {
                let recorded = progress.recorded.load(Ordering::Relaxed);
                let ended =
                    progress.ended.load(Ordering::Relaxed).then_some(work.end == WorkEnd::Ok);
                if self.granted_take(id).is_some() {
                    let verdict = self.worked(id, client_id, (&ask, &work), recorded, ended);
                    self.books.check(verdict);
                }
            }
            Task::Commit(_) | Task::Rollback(_) | Task::Acquire(_) | Task::Other => {}
        }
    }

    pub(super) fn panicked(&mut self, op: Op, panic: Box<dyn Any + Send>) -> Result<(), Broken> {
        let Op { id, client_id, task, future, .. } = op;
        drop(future);
        match task {
            Task::With(ask, work, _) if work.end == WorkEnd::Panic => {
                self.note(format!("  op {id} -> panicked, as it should"));
                self.worked(id, client_id, (&ask, &work), true, None)
            }
            task => {
                let words = panic.downcast_ref::<String>().cloned();
                let words = words
                    .or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string))
                    .unwrap_or_default();
                Err(format!("op {id} ({task:?}) panicked: {words}"))
            }
        }
    }
}

fn named(result: &Result<Lease, AcquireError>) -> String {
    match result {
        Ok(lease) => match lease.degraded() {
            Some(degraded) => format!("degraded ({})", degraded.reason),
            None => "granted".to_owned(),
        },
        Err(error) => error.to_string(),
    }
}

/// What a lease says was used is what was recorded.
pub(super) fn check_used(lease: &Lease, model: &LeaseModel) -> Result<(), Broken> {
    let used: Vec<(String, i128)> = lease
        .used()
        .into_iter()
        .map(|(name, tokens)| (name.to_string(), i128::from(tokens) * 1000))
        .collect();
    let expected: Vec<(String, i128)> =
        model.declared.iter().cloned().zip(model.used.iter().copied()).collect();
    if used == expected {
        Ok(())
    } else {
        Err(format!("lease {} says it used {used:?}, expected {expected:?}", model.id))
    }
}
