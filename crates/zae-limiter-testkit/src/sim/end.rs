//! The end of a run: everything comes to rest, and then it must add up.

use std::collections::BTreeMap;
use std::time::Duration;

use zae_limiter_store::Clock;

use super::Run;
use super::client::Client;
use super::faults::Weather;
use crate::oracle::Broken;
use crate::oracle::inspect::{compare_all, compare_usage};
use crate::oracle::journal::finish;

/// Rounds of polling before what is left is dropped.
const ROUNDS_MAX: usize = 8;
/// Rounds of a drain: each lets seconds pass, and no job of the settler takes longer than some
/// minutes.
const DRAIN_ROUNDS_MAX: usize = 300;

impl Run {
    /// Finishes or drops everything, drains the settlers, and audits.
    pub(super) fn come_to_rest(&mut self) -> Result<(), Broken> {
        self.note("the end:".to_owned());
        self.finish_ops()?;
        for _ in 0..self.held.len() {
            match self.rng.index(4) {
                0 => self.drop_lease(),
                1 => self.start_end(false)?,
                _ => self.start_end(true)?,
            }
            self.finish_ops()?;
        }
        // Some settlers have to give up first; in the end the store is well again.
        for weather in [Weather::Outage, Weather::Fair] {
            if self.rng.chance(30) {
                self.faults.become_weather(weather);
                for _ in 0..self.rng.between(1, 20) {
                    self.drain_a_little();
                    self.verdict()?;
                }
            }
        }
        self.faults.become_weather(Weather::Clear);
        for _ in 0..DRAIN_ROUNDS_MAX {
            if self.clients.iter().all(|client| pending(client) == 0) {
                break;
            }
            self.drain_a_little();
            self.verdict()?;
        }
        self.audit()
    }

    fn finish_ops(&mut self) -> Result<(), Broken> {
        for _ in 0..ROUNDS_MAX {
            for _ in 0..3 {
                self.poll_all()?;
                self.verdict()?;
            }
            if self.ops.is_empty() {
                return Ok(());
            }
            self.pass(Duration::from_secs(3));
        }
        while !self.ops.is_empty() {
            self.cancel(0);
        }
        self.verdict()
    }

    fn drain_a_little(&mut self) {
        self.clients.iter().for_each(|client| client.run_settler(10));
        let pause = Duration::from_millis(self.rng.between(20, 6_000));
        self.pass(pause);
    }

    fn audit(&mut self) -> Result<(), Broken> {
        let mut lost = BTreeMap::new();
        for client in &self.clients {
            let settled = client.limiters[0].settled();
            if settled.pending != 0 || settled.abandoned != 0 {
                return Err(format!(
                    "the settler of client {} did not come to rest: {settled:?}",
                    client.id
                ));
            }
            lost.insert(client.id, settled.lost);
        }
        self.report.lost = lost.values().sum();
        if let Some(scene) = self.ground.scene() {
            scene.land_or_lose(&mut self.rng, &self.books);
            self.verdict()?;
            let alive = lost.keys().copied().collect();
            self.ground.scene().map_or(Ok(()), |scene| scene.settle_up(&self.books, &alive))?;
            return std::mem::take(&mut self.accounts).audit(&self.books.lock(), &lost);
        }
        let now = self.clients[0].clock.now();
        compare_all(&self.books, now);
        compare_usage(&self.books, None);
        self.verdict()?;
        if let Some((_, store)) = self.books.inspectors().first() {
            // This sweep believes `now`: all history that is too old by then goes.
            finish(store.sweep(now, u32::MAX))
                .map_err(|error| format!("the last sweep failed: {error}"))?;
            self.books.lock().oracle.sweep(now);
            compare_usage(&self.books, Some(now));
            self.verdict()?;
        }
        std::mem::take(&mut self.accounts).audit(&self.books.lock(), &lost)
    }
}

fn pending(client: &Client) -> u64 {
    client.limiters[0].settled().pending
}
