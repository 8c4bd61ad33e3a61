//! The steps of a run: what the seed may choose from.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use zae_limiter::{Level, NewEntity};
use zae_limiter_store::Clock;

use super::faults::Weather;
use super::ops::{self, Ask, Op, OpFuture, Task, Work, WorkEnd};
use super::world::{ENTITIES, NAMESPACES, entity};
use super::{Held, Run, fresh_clock};
use crate::oracle::Broken;

/// Operations that may be under way at once.
const OPS_MAX: usize = 12;
/// Leases that may be held at once.
const HELD_MAX: usize = 10;

#[derive(Clone, Copy)]
enum Choice {
    Acquire,
    With,
    Poll,
    Cancel,
    Record,
    More,
    Flush,
    Commit,
    Rollback,
    Drop,
    Settle,
    Wait,
    Step,
    Other,
    Weather,
    Crash,
    Forget,
}

const CHOICES: [(u64, Choice); 17] = [
    (40, Choice::Acquire),
    (10, Choice::With),
    (30, Choice::Poll),
    (4, Choice::Cancel),
    (8, Choice::Record),
    (6, Choice::More),
    (4, Choice::Flush),
    (10, Choice::Commit),
    (6, Choice::Rollback),
    (6, Choice::Drop),
    (12, Choice::Settle),
    (14, Choice::Wait),
    (3, Choice::Step),
    (10, Choice::Other),
    (3, Choice::Weather),
    (1, Choice::Crash),
    (1, Choice::Forget),
];

/// The same where requests come in crowds: more of what is done with leases.
const CHOICES_ON_A_TABLE: [(u64, Choice); 17] = [
    (26, Choice::Acquire),
    (6, Choice::With),
    (26, Choice::Poll),
    (4, Choice::Cancel),
    (22, Choice::Record),
    (6, Choice::More),
    (8, Choice::Flush),
    (16, Choice::Commit),
    (5, Choice::Rollback),
    (5, Choice::Drop),
    (12, Choice::Settle),
    (14, Choice::Wait),
    (3, Choice::Step),
    (10, Choice::Other),
    (3, Choice::Weather),
    (1, Choice::Crash),
    (1, Choice::Forget),
];

impl Run {
    /// A chain of entities and some limits, in both namespaces, without faults.
    pub(super) fn set_up(&mut self) {
        for (index, namespace) in NAMESPACES.into_iter().enumerate() {
            let limiter = self.clients[0].limiters[index].clone();
            let depth = self.rng.index(4);
            for child in (0..=depth).rev() {
                let parent = (child < depth).then(|| entity(ENTITIES[child + 1]));
                let new = NewEntity {
                    id: entity(ENTITIES[child]),
                    name: "somebody".to_owned(),
                    cascade: parent.is_some(),
                    parent,
                    metadata: std::collections::BTreeMap::new(),
                };
                let created = crate::oracle::journal::finish(Box::pin(limiter.create_entity(new)));
                self.trace.push(format!(
                    "set-up of {}: {:?}",
                    namespace,
                    created.map(|created| created.entity.id)
                ));
            }
            let mut levels = vec![Level::System];
            if self.is_sparse {
                levels =
                    vec![Level::Entity(entity(ENTITIES[0])), Level::Entity(entity(ENTITIES[4]))];
            }
            for _ in 0..self.rng.index(4) {
                levels.push(self.rng.limited_level(self.is_sparse));
            }
            for level in levels {
                let limits = self.rng.limits();
                let answer =
                    crate::oracle::journal::finish(Box::pin(limiter.set_limits(&level, limits)));
                self.trace.push(format!(
                    "set-up of {}: limits of {level}: {}",
                    namespace,
                    answer.is_ok()
                ));
            }
        }
        // Sweeps believe a clock that one of them has seen before: an hour from now they act.
        let swept = crate::oracle::journal::finish(Box::pin(self.clients[0].limiters[0].sweep(1)));
        self.trace.push(format!("set-up: a first look at the clock: {}", swept.is_ok()));
    }

    pub(super) fn step(&mut self, step: u64) -> Result<(), Broken> {
        self.note(format!("{step}:"));
        if self.ground.scene().is_some() && self.rng.chance(12) {
            if self.rng.chance(10) {
                // Long enough for buckets to expire while leases are held.
                let hours = self.rng.between(1, 12);
                self.pass(Duration::from_secs(hours * 3_600));
            }
            return self.happen();
        }
        match self.rng.weighted(if self.ground.scene().is_some() {
            &CHOICES_ON_A_TABLE
        } else {
            &CHOICES
        }) {
            Choice::Acquire if self.ground.scene().is_some() => {
                // Several at once: what they send meets on the way.
                (0..self.rng.between(1, 4)).try_for_each(|_| self.start_acquire())
            }
            Choice::Acquire => self.start_acquire(),
            Choice::With => self.start_with(),
            Choice::Poll => self.poll_some(),
            Choice::Cancel => {
                let index = self.rng.index(self.ops.len());
                self.cancel(index);
                Ok(())
            }
            Choice::Record => self.record(),
            Choice::More => self.start_more(),
            Choice::Flush => self.start_flush(),
            Choice::Commit => self.start_end(true),
            Choice::Rollback => self.start_end(false),
            Choice::Drop => {
                self.drop_lease();
                Ok(())
            }
            Choice::Settle => {
                let client = self.rng.index(self.clients.len());
                let polls = u32::try_from(self.rng.between(1, 12)).unwrap_or(1);
                self.note(format!("  the settler of client {client} runs {polls} polls"));
                self.clients[client].run_settler(polls);
                Ok(())
            }
            Choice::Wait => {
                let pause = self.rng.pause();
                self.pass(pause);
                // As a rule, time wakes the operations that wait for it.
                if self.rng.chance(60) { self.poll_all() } else { Ok(()) }
            }
            Choice::Step => {
                self.step_clock();
                Ok(())
            }
            Choice::Other => self.start_other(),
            Choice::Weather => {
                let weather = self.rng.weighted(&[
                    (3, Weather::Clear),
                    (4, Weather::Fair),
                    (2, Weather::Rough),
                    (1, Weather::Outage),
                ]);
                self.note(format!("  the weather becomes {weather:?}"));
                self.faults.become_weather(weather);
                Ok(())
            }
            Choice::Crash => self.crash(),
            Choice::Forget => {
                let client = self.rng.index(self.clients.len());
                self.note(format!("  client {client} forgets its cache"));
                self.clients[client]
                    .limiters
                    .iter()
                    .for_each(zae_limiter::RateLimiter::invalidate_config_cache);
                Ok(())
            }
        }
    }

    /// Something happens to the table.
    fn happen(&mut self) -> Result<(), Broken> {
        if let Some(scene) = self.ground.scene() {
            let line = scene.happen(&mut self.rng, &self.books);
            self.note(format!("  {line}"));
        }
        Ok(())
    }

    fn ask(&mut self) -> Ask {
        let mut ask = Ask::random(&mut self.rng);
        if let Some(scene) = self.ground.scene() {
            scene.focus(&mut ask, &mut self.rng);
        }
        if self.is_ahead && self.rng.chance(85) {
            ask.drain(&mut self.rng);
        }
        ask
    }

    /// Time passes for everybody.
    pub(super) fn pass(&mut self, pause: Duration) {
        self.note(format!("  {pause:?} pass"));
        if let Some(scene) = self.ground.scene() {
            scene.pass(pause, &self.books);
        }
        {
            let mut state = self.books.lock();
            state.elapsed += pause;
            state.oracle.pass(pause);
        }
        self.clients.iter().for_each(|client| client.clock.advance(pause));
    }

    /// Somebody sets the wall clock: of one machine, or of all.
    fn step_clock(&mut self) {
        if let Some(scene) = self.ground.scene() {
            let client = self.rng.index(self.clients.len());
            let line = scene.step_clock(&self.clients[client].clock, &mut self.rng);
            self.note(format!("  client {client}: {line}"));
            return;
        }
        let by_ms = self.rng.weighted(&[(3, 200_i64), (2, 5_000), (1, 400_000), (1, 5_000_000)]);
        let by_ms = if self.rng.chance(50) { -by_ms } else { by_ms };
        let only = self.rng.chance(50).then(|| self.rng.index(self.clients.len()));
        self.note(format!(
            "  the wall clock of {} steps by {by_ms} ms",
            only.map_or("all".to_owned(), |client| format!("client {client}"))
        ));
        for (index, client) in self.clients.iter().enumerate() {
            if only.is_none_or(|only| only == index) {
                client.clock.step_to(client.clock.now().plus_ms(by_ms));
            }
        }
    }

    fn start(
        &mut self,
        client: usize,
        task: Task,
        name: String,
        future: OpFuture,
    ) -> Result<(), Broken> {
        self.ops_started += 1;
        let id = self.ops_started;
        self.note(format!("  op {id} of client {client}: {name}"));
        let began = self.clients[client].clock.monotonic();
        self.ops.push(Op {
            id,
            client,
            client_id: self.clients[client].id,
            task,
            polled: false,
            began,
            future,
        });
        let at_once = self.rng.weighted(&[(1, 0), (2, 1), (6, 2)]);
        for _ in 0..at_once {
            if let Some(index) = self.ops.iter().position(|op| op.id == id) {
                self.poll(index)?;
            }
        }
        Ok(())
    }

    fn start_acquire(&mut self) -> Result<(), Broken> {
        if self.ops.len() >= OPS_MAX || self.held.len() >= HELD_MAX {
            return self.poll_some();
        }
        let (client, namespace) = (self.rng.index(self.clients.len()), self.namespace());
        let ask = self.ask();
        let future = ops::acquire(self.clients[client].limiters[namespace].clone(), ask.request());
        let name = format!("acquire in {} {ask:?}", NAMESPACES[namespace]);
        self.start(client, Task::Acquire(ask), name, future)
    }

    fn start_with(&mut self) -> Result<(), Broken> {
        if self.ops.len() >= OPS_MAX {
            return self.poll_some();
        }
        let (client, namespace) = (self.rng.index(self.clients.len()), self.namespace());
        let ask = self.ask();
        let records = (0..self.rng.index(3))
            .map(|_| (self.rng.index(ask.amounts.len()), self.rng.amount()))
            .collect();
        let end = self.rng.weighted(&[(5, WorkEnd::Ok), (2, WorkEnd::Err), (1, WorkEnd::Panic)]);
        let work =
            Work { records, pauses: u32::try_from(self.rng.between(0, 3)).unwrap_or(0), end };
        let progress = Arc::default();
        let future = ops::with_lease(
            self.clients[client].limiters[namespace].clone(),
            &ask,
            work.clone(),
            Arc::clone(&progress),
        );
        let name = format!("with_lease in {} {ask:?}, {work:?}", NAMESPACES[namespace]);
        self.start(client, Task::With(ask, work, progress), name, future)
    }

    fn start_other(&mut self) -> Result<(), Broken> {
        if self.ops.len() >= OPS_MAX {
            return self.poll_some();
        }
        let (client, namespace) = (self.rng.index(self.clients.len()), self.namespace());
        let (name, future) = ops::other(
            self.clients[client].limiters[namespace].clone(),
            self.is_sparse,
            &mut self.rng,
        );
        self.start(client, Task::Other, format!("in {} {name}", NAMESPACES[namespace]), future)
    }

    fn namespace(&mut self) -> usize {
        if self.is_ahead {
            return 0;
        }
        if self.ground.scene().is_some() {
            self.rng.weighted(&[(15, 0), (1, 1)])
        } else {
            self.rng.weighted(&[(4, 0), (1, 1)])
        }
    }

    fn start_more(&mut self) -> Result<(), Broken> {
        let Some(index) = self.some_lease(false) else { return Ok(()) };
        let Held { client, lease, model, .. } = &self.held[index];
        let (client, lease, id) = (*client, Arc::clone(lease), model.id);
        let mut amounts: Vec<(String, u64)> =
            model.declared.iter().map(|name| (name.clone(), 0)).collect();
        for (_, tokens) in &mut amounts {
            *tokens = if self.rng.chance(30) { 0 } else { self.rng.amount() };
        }
        if amounts.len() > 1 && self.rng.chance(40) {
            amounts.remove(0);
        }
        self.held[index].busy += 1;
        let future = ops::consume(lease, amounts.clone());
        self.start(
            client,
            Task::Consume(id, amounts.clone()),
            format!("lease {id} consumes more: {amounts:?}"),
            future,
        )
    }

    fn start_flush(&mut self) -> Result<(), Broken> {
        let Some(index) = self.some_lease(false) else { return Ok(()) };
        self.held[index].busy += 1;
        let Held { client, lease, model, .. } = &self.held[index];
        let (client, lease, id) = (*client, Arc::clone(lease), model.id);
        self.start(client, Task::Flush(id), format!("lease {id} is flushed"), ops::flush(lease))
    }

    /// Commits, or rolls back.
    pub(super) fn start_end(&mut self, commit: bool) -> Result<(), Broken> {
        let Some(index) = self.some_lease(true) else { return Ok(()) };
        let Held { client, lease, model, .. } = self.held.remove(index);
        let id = model.id;
        let Some(lease) = Arc::into_inner(lease) else {
            return Err(format!("lease {id} is idle and still borrowed"));
        };
        self.ending.insert(id, model);
        if commit {
            self.start(
                client,
                Task::Commit(id),
                format!("lease {id} is committed"),
                ops::commit(lease),
            )
        } else {
            self.start(
                client,
                Task::Rollback(id),
                format!("lease {id} is rolled back"),
                ops::rollback(lease),
            )
        }
    }

    /// One of the leases; an idle one if it is to end.
    pub(super) fn some_lease(&mut self, idle: bool) -> Option<usize> {
        let fit: Vec<usize> =
            (0..self.held.len()).filter(|index| !idle || self.held[*index].busy == 0).collect();
        if fit.is_empty() { None } else { Some(*self.rng.pick(&fit)) }
    }

    fn poll_some(&mut self) -> Result<(), Broken> {
        for _ in 0..self.rng.between(1, 4) {
            if self.ops.is_empty() {
                break;
            }
            let index = self.rng.index(self.ops.len());
            self.poll(index)?;
        }
        Ok(())
    }

    /// Polls every operation once.
    pub(super) fn poll_all(&mut self) -> Result<(), Broken> {
        let ids: Vec<u64> = self.ops.iter().map(|op| op.id).collect();
        for id in ids {
            if let Some(index) = self.ops.iter().position(|op| op.id == id) {
                self.poll(index)?;
            }
        }
        Ok(())
    }

    /// Polls an operation once, and sees to what comes of it.
    pub(super) fn poll(&mut self, index: usize) -> Result<(), Broken> {
        let began = self.clients[self.ops[index].client].clock.monotonic();
        self.begin_if_new(index, began);
        let id = self.ops[index].id;
        {
            let mut state = self.books.lock();
            (state.op, state.op_began) = (Some(id), self.ops[index].began);
        }
        let future = &mut self.ops[index].future;
        let mut context = Context::from_waker(Waker::noop());
        let polled =
            std::panic::catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut context)));
        self.books.lock().op = None;
        match polled {
            Ok(Poll::Pending) => Ok(()),
            Ok(Poll::Ready(done)) => {
                let op = self.ops.remove(index);
                self.finished(op, done)
            }
            Err(panic) => {
                let op = self.ops.remove(index);
                self.panicked(op, panic)
            }
        }
    }

    /// A process crashes, and another takes its place.
    fn crash(&mut self) -> Result<(), Broken> {
        let place = self.rng.index(self.clients.len());
        let id = self.clients[place].id;
        self.note(format!("  client {place} crashes"));
        self.report.crashes += 1;
        let clock = fresh_clock(&self.clients[place]);
        let successor = self.new_client(&clock)?;
        std::mem::replace(&mut self.clients[place], successor).crash();
        // Whatever the process held is dropped after its settler is gone: nothing of it is settled.
        self.ops.retain(|op| op.client_id != id);
        self.held.retain(|held| held.client != place);
        Ok(())
    }
}
