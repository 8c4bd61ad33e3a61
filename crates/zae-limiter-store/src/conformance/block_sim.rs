//! A seeded simulator of processes with local blocks on one store: one seed, one run.
//!
//! Above all processes there is one exact bucket per limit, fed with what callers got and gave
//! back. A grant that the exact bucket does not have ends the run: this is the only place from
//! which stock that is spent twice can be seen, because each store and each process for itself is
//! right. After every step the stock of every process must add up as well.
//!
//! Processes take from single buckets and chains, wait for each other's orders, settle, crash, drop
//! what they have begun, have wrong clocks and different limits; the store fails before and after
//! its work and hangs. Time stands still while a take is under way, because the meter learns of a
//! grant when the caller does.

mod seeds;
mod world;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::task::{Context, Poll, Waker};

use zae_limiter_core::{
    BucketState, ConfigStamp, EntityId, EventId, Flag, LENT_MAX_MS, Limit, LimitSource, Milli,
    ResourceName, Take, TimeMs,
};

use crate::{
    BlockStore, BucketDelta, BucketStore, Change, ConfigStore, ConsumeOutcome, ConsumeRequest,
    Delta, Entropy, FaultStore, Level, LimitsInForce, LocalBlocks, MemberTake, PageRequest,
    ResetRequest, SeededEntropy,
};

pub use seeds::run_seeds;
use world::{Ask, Begun, ENTITIES, Granted, Process, Weather, bucket, entity, resource};
pub use world::{BlockRun, Ground};

const BEGIN_MS: i64 = 4_102_480_800_000 - 20_000;
const STEPS: u64 = 150;
const LIMITS: [&str; 2] = ["rpm", "tpm"];
/// How often an operation is polled that a fault may have stopped for good.
const POLLS_MAX: u32 = 64;
/// How often an operation is polled at all, before the run is called endless.
const POLLS_EVER_MAX: u32 = 5_000_000;

/// Runs one seed.
pub fn simulate(seed: u64, ground: &dyn Ground) -> Result<BlockRun, String> {
    let mut run = Run::new(seed, ground);
    for step in 0..STEPS {
        run.step().map_err(|broken| run.failure(step, &broken))?;
        run.check_stock().map_err(|broken| run.failure(step, &broken))?;
    }
    run.rest().map_err(|broken| run.failure(STEPS, &broken))?;
    Ok(run.report)
}

struct Run<'o> {
    rng: SeededEntropy,
    ground: &'o dyn Ground,
    now_ms: i64,
    processes: Vec<Process>,
    /// The limits of all entities, by version.
    limits: Vec<LimitsInForce>,
    /// By entity, and then by limit.
    exact: Vec<Vec<BucketState>>,
    granted: Vec<Granted>,
    /// Since when the resource is disabled, and by whom.
    disabled: Option<(i64, usize)>,
    /// When it was enabled last.
    enabled_at_ms: i64,
    skew_ms: i64,
    faults_percent: u32,
    /// Nothing is lost, so use must add up in the end.
    is_calm: bool,
    used: [[i64; 2]; 3],
    trace: Vec<String>,
    report: BlockRun,
    events: u64,
}

impl Run<'_> {
    fn new(seed: u64, ground: &dyn Ground) -> Run<'_> {
        let rng = SeededEntropy::new(seed);
        let mut run = Run {
            rng,
            ground,
            now_ms: BEGIN_MS,
            processes: Vec::new(),
            limits: Vec::new(),
            exact: Vec::new(),
            granted: Vec::new(),
            disabled: None,
            enabled_at_ms: 0,
            skew_ms: 0,
            faults_percent: 0,
            is_calm: true,
            used: [[0; 2]; 3],
            trace: Vec::new(),
            report: BlockRun::default(),
            events: 0,
        };
        if run.chance(35) {
            run.skew_ms = 500;
        }
        if run.chance(60) {
            run.faults_percent = [3, 10, 30][run.below(3)];
            run.is_calm = false;
        }
        ground.set_time(run.now_ms);
        ground.set_weather(false);
        run.is_calm &= !ground.fails();
        run.new_limits();
        ground.set_weather(true);
        for _ in 0..2 + run.below(3) {
            let process = run.process();
            run.processes.push(process);
        }
        run.forget_exact();
        run
    }

    fn below(&self, bound: usize) -> usize {
        usize::try_from(self.rng.next_u64() % bound as u64).unwrap_or(0)
    }

    fn chance(&self, percent: u64) -> bool {
        self.rng.next_u64() % 100 < percent
    }

    fn note(&mut self, line: String) {
        self.trace.push(line);
    }

    fn failure(&self, step: u64, broken: &str) -> String {
        let shown = &self.trace[self.trace.len().saturating_sub(60)..];
        format!("step {step}: {broken}\n{}", shown.join("\n"))
    }

    fn new_limits(&mut self) {
        let limit = |name: &str| {
            let capacity = 20 + self.below(200) as u64;
            let per_s = [1, 1, 5, 20][self.below(4)];
            let period_s = [1, 1, 10][self.below(3)];
            Limit::custom(name, capacity, per_s, period_s).expect("within bounds")
        };
        let limits = vec![limit(LIMITS[0]), limit(LIMITS[1])];
        self.note(format!("limits {limits:?}"));
        let before = ConfigStamp(1 + self.limits.len() as u64);
        let stamp = self.ground.store_limits(&limits).unwrap_or(before);
        self.limits.push(LimitsInForce::resolved(limits, LimitSource::System, stamp, 7));
    }

    /// Exact buckets for the limits of now, full. A change, a reset and what was lent before may
    /// give so much more.
    fn forget_exact(&mut self) {
        let versions = self.limits.len();
        let most = |index: usize, of: &dyn Fn(&Limit) -> u64| {
            self.limits.iter().map(|limits| of(&limits.limits[index])).max().unwrap_or(0)
        };
        let exact = |index: usize| {
            let params = |limit: &Limit| limit.params();
            let capacity =
                most(index, &|limit| params(limit).capacity_milli.unsigned_abs() / 1_000);
            let per_10s = most(index, &|limit| {
                let params = params(limit);
                (params.refill_milli * 10 / params.period_ms).unsigned_abs()
            });
            let skew = (per_10s * self.skew_ms.unsigned_abs()).div_ceil(10_000) + 1;
            let mut burst = if self.skew_ms > 0 { skew } else { 0 };
            if versions > 1 || self.events > 0 {
                burst += capacity / 2;
            }
            Limit::custom(LIMITS[index], capacity + burst, per_10s.max(1), 10).expect("bounds")
        };
        let now = TimeMs(self.now_ms);
        let limits = [exact(0), exact(1)];
        let full =
            |limit: &Limit| BucketState::full(std::slice::from_ref(limit), ConfigStamp(0), now);
        self.exact = ENTITIES.iter().map(|_| limits.iter().map(full).collect()).collect();
    }

    fn process(&mut self) -> Process {
        let weather = Arc::new(Weather {
            entropy: SeededEntropy::new(self.rng.next_u64()),
            percent: AtomicU32::new(self.faults_percent),
            drawn: AtomicU32::new(0),
            is_hung: AtomicBool::new(false),
        });
        let plan = Arc::clone(&weather);
        let faults = FaultStore::new(self.ground.open(), move |_: &'static str| plan.fault());
        let options = if self.chance(70) { LocalBlocks::eager() } else { LocalBlocks::default() };
        let store = BlockStore::new(Arc::new(faults), options).expect("the store lends");
        let ahead_ms = if self.skew_ms > 0 { self.below(500) as i64 } else { 0 };
        let version = self.limits.len() - 1;
        Process { store: Arc::new(store), ahead_ms, weather, version, takes: Vec::new() }
    }

    fn now_of(&self, process: usize) -> TimeMs {
        TimeMs(self.now_ms + self.processes[process].ahead_ms)
    }

    fn step(&mut self) -> Result<(), String> {
        match self.rng.next_u64() % 100 {
            0..50 => self.begin(),
            50..62 => self.poll_some(),
            62..78 => {
                self.finish_all()?;
                let pauses = [(1, 30), (30, 600), (600, 2_600), (2_000, 30_000)];
                let (least, most) = pauses[self.below(4)];
                self.now_ms += least + self.below(most) as i64;
                self.ground.set_time(self.now_ms);
                Ok(())
            }
            78..92 => self.adjust(),
            92..94 => self.drop_one(),
            94..96 => self.look(),
            96 => self.crash(),
            97 => self.change_clock(),
            98 if self.faults_percent != 10 => self.administer(),
            _ => self.give_back(),
        }
    }

    fn begin(&mut self) -> Result<(), String> {
        let index = self.below(self.processes.len());
        if self.processes[index].takes.len() > 4 {
            return self.poll_some();
        }
        let chain: &[usize] = [&[2][..], &[2], &[0, 1], &[1]][self.below(4)];
        let limits = self.limits[self.processes[index].version].clone();
        let both = self.chance(60);
        let amounts = [1 + self.below(3) as i64, self.below(12) as i64];
        let asks: Vec<Ask> = chain
            .iter()
            .map(|entity| {
                let take =
                    |limit: u8| Take { limit, amount: Milli(amounts[usize::from(limit)] * 1_000) };
                let takes = if both { vec![take(0), take(1)] } else { vec![take(0)] };
                Ask { entity: *entity, takes, limits: limits.clone() }
            })
            .collect();
        let (store, now) = (Arc::clone(&self.processes[index].store), self.now_of(index));
        let sent = asks.clone();
        let future = Box::pin(async move {
            let names: Vec<(EntityId, ResourceName)> =
                sent.iter().map(|ask| (entity(ask.entity), resource())).collect();
            let members: Vec<MemberTake<'_>> = sent
                .iter()
                .zip(&names)
                .map(|(ask, (entity, resource))| MemberTake {
                    entity,
                    resource,
                    limits: &ask.limits,
                    takes: &ask.takes,
                    absent: &[],
                })
                .collect();
            store.consume(&ConsumeRequest::new(&members, now)).await
        });
        self.note(format!("process {index} takes {amounts:?} of {chain:?} at {}", now.0));
        self.processes[index].takes.push(Begun { future, asks });
        let last = self.processes[index].takes.len() - 1;
        self.poll(index, last).map(|_| ())
    }

    /// Polls a take; true when it is over.
    fn poll(&mut self, process: usize, place: usize) -> Result<bool, String> {
        let mut context = Context::from_waker(Waker::noop());
        let begun = &mut self.processes[process].takes[place];
        let Poll::Ready(outcome) = begun.future.as_mut().poll(&mut context) else {
            return Ok(false);
        };
        let begun = self.processes[process].takes.remove(place);
        match outcome {
            Ok(ConsumeOutcome::Granted(_)) => self.count(process, begun.asks)?,
            Ok(ConsumeOutcome::Refused(_) | ConsumeOutcome::Paced { .. }) => {
                self.report.refused += 1
            }
            Ok(ConsumeOutcome::Stale { .. }) => {
                let version = &mut self.processes[process].version;
                *version = (*version + 1).min(self.limits.len() - 1);
            }
            Ok(ConsumeOutcome::Blocked { .. })
                if self.disabled.is_none()
                    && self.now_ms - self.enabled_at_ms > self.ground.reads_last_ms() =>
            {
                return Err("blocked although nothing is disabled".to_owned());
            }
            Ok(ConsumeOutcome::Blocked { .. } | ConsumeOutcome::Contended { .. }) | Err(_) => {}
        }
        Ok(true)
    }

    /// A caller got its tokens.
    fn count(&mut self, process: usize, asks: Vec<Ask>) -> Result<(), String> {
        let longest_ms = LENT_MAX_MS + self.skew_ms;
        if let Some((since, by)) = self.disabled
            && (by == process || self.now_ms - since > longest_ms)
        {
            return Err(format!("process {process} was granted {} ms after", self.now_ms - since));
        }
        self.report.granted += 1;
        self.note(format!("  granted to process {process}"));
        for ask in asks {
            for take in &ask.takes {
                let limit = usize::from(take.limit);
                self.exact[ask.entity][limit].refill(TimeMs(self.now_ms));
                let balance = self.exact[ask.entity][limit].limits()[0].balance;
                // Fractions of a millitoken are dropped at other moments.
                let left = balance.saturating_sub(take.amount);
                // Stock that was paid for before somebody charged its bucket into debt is spent.
                if left < Milli(-1) && left < self.stored(ask.entity, limit)? {
                    return Err(format!(
                        "{} of {} was granted, and an exact bucket has {balance}",
                        take.amount, ENTITIES[ask.entity]
                    ));
                }
                let receipt = ask.limits.limits[limit].clone();
                let exact = &mut self.exact[ask.entity][limit];
                exact.adjust(&receipt, take.amount, TimeMs(self.now_ms));
                self.used[ask.entity][limit] += take.amount.0;
            }
            self.granted.push(Granted { process, ask });
        }
        Ok(())
    }

    fn poll_some(&mut self) -> Result<(), String> {
        for _ in 0..3 {
            let process = self.below(self.processes.len());
            let takes = self.processes[process].takes.len();
            if takes > 0 {
                let place = self.below(takes);
                self.poll(process, place)?;
            }
        }
        Ok(())
    }

    /// Ends every take that was begun; one that hangs is dropped.
    fn finish_all(&mut self) -> Result<(), String> {
        for process in 0..self.processes.len() {
            let mut polls = 0_u32;
            while !self.processes[process].takes.is_empty() {
                if polls > POLLS_EVER_MAX {
                    return Err("a take never ends".to_owned());
                }
                let takes = self.processes[process].takes.len();
                let place = polls as usize % takes;
                self.poll(process, place)?;
                polls += 1;
                if polls > POLLS_MAX && self.processes[process].weather.is_hung.load(SeqCst) {
                    self.processes[process].takes.clear();
                    self.is_calm = false;
                }
                std::thread::yield_now();
            }
            self.processes[process].weather.is_hung.store(false, SeqCst);
        }
        Ok(())
    }

    fn drop_one(&mut self) -> Result<(), String> {
        let process = self.below(self.processes.len());
        if self.processes[process].takes.pop().is_some() {
            self.is_calm = false;
            self.note(format!("process {process} drops a take"));
        }
        Ok(())
    }

    /// Polls to the end, or until a fault has stopped it for good.
    fn run<T>(&self, process: usize, future: impl Future<Output = T>) -> Option<T> {
        let mut future = std::pin::pin!(future);
        let mut context = Context::from_waker(Waker::noop());
        let weather = &self.processes[process].weather;
        let mut polls = 0_u32;
        let done = loop {
            if let Poll::Ready(done) = future.as_mut().poll(&mut context) {
                break Some(done);
            }
            polls += 1;
            if polls > POLLS_MAX && weather.is_hung.load(SeqCst) || polls > POLLS_EVER_MAX {
                break None;
            }
            std::thread::yield_now();
        };
        if self.processes[process].takes.is_empty() {
            weather.is_hung.store(false, SeqCst);
        }
        done
    }

    fn adjust(&mut self) -> Result<(), String> {
        if self.granted.is_empty() {
            return Ok(());
        }
        self.finish_all()?;
        let place = self.below(self.granted.len());
        let Granted { process, ask } = self.granted.swap_remove(place);
        let charges = self.chance(25);
        let part = 1 + self.below(4) as i64;
        let change = |take: &Take| {
            let milli = if charges { take.amount.0 * part } else { -take.amount.0 / part };
            Delta { limit: take.limit, amount: Milli(milli) }
        };
        let deltas: Vec<Delta> = ask.takes.iter().map(change).collect();
        let (entity, resource, now) = (entity(ask.entity), resource(), self.now_of(process));
        let delta = BucketDelta {
            entity: &entity,
            resource: &resource,
            limits: &ask.limits,
            deltas: &deltas,
            operation: 0,
            take: 0,
            place: 0,
        };
        self.note(format!("process {process} settles {deltas:?} of {entity}"));
        let store = Arc::clone(&self.processes[process].store);
        let list = [delta];
        let answer = self.run(process, store.adjust(&list, now));
        let is_sure = matches!(answer.as_deref(), Some([Ok(_)]));
        self.is_calm &= is_sure;
        self.report.adjusted += 1;
        for delta in &deltas {
            // What may have been given back counts as given back; what may have been charged does
            // not count as charged.
            if is_sure || delta.amount.is_negative() {
                let limit = usize::from(delta.limit);
                let exact = &mut self.exact[ask.entity][limit];
                let receipt = ask.limits.limits[limit].clone();
                exact.adjust(&receipt, delta.amount, TimeMs(self.now_ms));
                self.used[ask.entity][limit] += delta.amount.0;
            }
        }
        Ok(())
    }

    fn look(&mut self) -> Result<(), String> {
        if self.ground.reads_last_ms() > 0 {
            self.finish_all()?;
        }
        let process = self.below(self.processes.len());
        let (store, entity) =
            (Arc::clone(&self.processes[process].store), entity(self.below(ENTITIES.len())));
        self.note(format!("process {process} looks at {entity}"));
        let page = PageRequest::default();
        let seen = self.run(process, store.buckets(&entity, &page));
        self.is_calm &= matches!(seen, Some(Ok(_)));
        Ok(())
    }

    fn crash(&mut self) -> Result<(), String> {
        let process = self.below(self.processes.len());
        self.note(format!("process {process} crashes"));
        let next = self.process();
        let old = std::mem::replace(&mut self.processes[process], next);
        self.gone(&old);
        self.report.crashes += 1;
        self.is_calm = false;
        if self.disabled.is_some_and(|(_, by)| by == process) {
            self.disabled = self.disabled.map(|(since, _)| (since, usize::MAX));
        }
        Ok(())
    }

    fn gone(&mut self, process: &Process) {
        let stats = process.store.stats();
        self.report.local += stats.grants;
        self.report.orders += stats.orders;
        self.report.faults += u64::from(process.weather.drawn.load(SeqCst));
    }

    fn change_clock(&mut self) -> Result<(), String> {
        self.finish_all()?;
        if self.skew_ms > 0 {
            let process = self.below(self.processes.len());
            self.processes[process].ahead_ms = self.below(500) as i64;
            self.note(format!("the clock of process {process} is set"));
        }
        Ok(())
    }

    fn give_back(&mut self) -> Result<(), String> {
        self.finish_all()?;
        let process = self.below(self.processes.len());
        self.note(format!("process {process} gives back"));
        let (store, now) = (Arc::clone(&self.processes[process].store), self.now_of(process));
        self.is_calm &= self.run(process, store.give_back(now)).is_some();
        Ok(())
    }

    /// Changes limits, resets or disables.
    fn administer(&mut self) -> Result<(), String> {
        self.finish_all()?;
        let process = self.below(self.processes.len());
        let (store, at) = (Arc::clone(&self.processes[process].store), self.now_of(process));
        self.events += 1;
        let change = Change {
            principal: None,
            reason: None,
            at,
            event: EventId::new(at, u128::from(self.events)),
        };
        // Only a change that is known to be made is judged.
        self.processes[process].weather.percent.store(0, SeqCst);
        self.ground.set_weather(false);
        match self.below(3) {
            0 => {
                self.new_limits();
                self.processes[process].version = self.limits.len() - 1;
                self.is_calm = false;
                self.forget_exact();
            }
            1 => {
                let (entity, resource) = (entity(self.below(ENTITIES.len())), resource());
                self.note(format!("process {process} resets {entity}"));
                let request = ResetRequest { entity: &entity, resource: &resource, only: None };
                let reset = self.run(process, store.reset(&request, &change));
                reset.ok_or("a reset hangs")?.map_err(|error| error.to_string())?;
                self.forget_exact();
            }
            _ => {
                let level = Level::Resource(resource());
                let flag = if self.disabled.is_some() { Flag::Enabled } else { Flag::Disabled };
                self.note(format!("process {process} sets {flag:?}"));
                let set = self.run(process, store.set_flag(&level, Some(flag), &change));
                set.ok_or("a flag hangs")?.map_err(|error| error.to_string())?;
                if self.disabled.take().is_some() {
                    self.enabled_at_ms = self.now_ms;
                } else {
                    self.disabled = Some((self.now_ms, process));
                }
                self.forget_exact();
            }
        }
        self.processes[process].weather.percent.store(self.faults_percent, SeqCst);
        self.ground.set_weather(true);
        Ok(())
    }

    fn check_stock(&self) -> Result<(), String> {
        for (number, process) in self.processes.iter().enumerate() {
            let stats = process.store.stats();
            if stats.missing() != Milli::ZERO {
                return Err(format!("stock of process {number} does not add up: {stats:?}"));
            }
        }
        Ok(())
    }

    /// Everything is given back: nothing is held, and the store knows all use.
    fn rest(&mut self) -> Result<(), String> {
        self.finish_all()?;
        self.ground.set_weather(false);
        for process in 0..self.processes.len() {
            self.processes[process].weather.percent.store(0, SeqCst);
            let (store, now) = (Arc::clone(&self.processes[process].store), self.now_of(process));
            self.run(process, store.give_back(now)).ok_or("the store hangs without a fault")?;
            let held = store.stats().held;
            if held != Milli::ZERO {
                return Err(format!("process {process} still holds {held}"));
            }
        }
        self.check_stock()?;
        for process in std::mem::take(&mut self.processes) {
            self.gone(&process);
        }
        if self.is_calm { self.check_use() } else { Ok(()) }
    }

    fn check_use(&self) -> Result<(), String> {
        for (number, used) in self.used.iter().enumerate() {
            let state = bucket(self.ground.inspect().as_ref(), number)?;
            let of = |name: &str| {
                let limits = state.iter().flat_map(|state| state.all_limits());
                let mut limits = limits.filter(|limit| limit.name.as_str() == name);
                limits.next().map_or(0, |limit| limit.consumed.0)
            };
            let counted = LIMITS.map(of);
            if counted != *used {
                let name = ENTITIES[number];
                return Err(format!("{name} has used {used:?}, and {counted:?} is counted"));
            }
        }
        Ok(())
    }

    /// The balance in the store itself.
    fn stored(&self, entity: usize, limit: usize) -> Result<Milli, String> {
        let Some(mut state) = bucket(self.ground.inspect().as_ref(), entity)? else {
            return Ok(Milli(i64::MAX));
        };
        state.refill(TimeMs(self.now_ms));
        let limits = state.all_limits();
        let limit = limits.iter().find(|state| state.name.as_str() == LIMITS[limit]);
        Ok(limit.map_or(Milli(i64::MAX), |limit| limit.balance))
    }
}
