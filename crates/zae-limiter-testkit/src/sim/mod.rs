//! The seeded simulator: one seed, one run, the same every time.
//!
//! How one number determines a run:
//!
//! 1. The seed gives independent streams of numbers (`rng`), one for each concern: steps, faults,
//!    the table, its echoes. A draw from one stream does not move another, so a new kind of fault
//!    leaves the steps of old seeds as they were.
//! 2. One thread plays the run (`Run::play`). Operations are futures with a waker that does
//!    nothing: an operation proceeds when a step polls it, and at no other time (`steps`, `ops`).
//! 3. Time is manual. Every client has a clock of its own; a step lets time pass or sets a clock,
//!    and nothing sleeps.
//! 4. The library and the backends draw their random numbers from the seed (`SeededEntropy`).
//! 5. Work that a backend does on threads of its own, such as the writer of SQLite, is waited for
//!    before the next step (`finish` in `oracle::journal`).
//! 6. Faults, delays and lost answers are drawn when a call begins, in the order of the calls
//!    (`faults`; on a table also [`crate::table`]).
//! 7. The oracle redoes every write as it lands, and `Run::verdict` reads its verdict after each
//!    step: the first broken promise ends the run.
//! 8. A run comes to rest (`end`): everything is settled, and then every lease, every counter and
//!    the usage history must add up.
//! 9. The trace is hashed into [`Report::fingerprint`]. Two runs of one seed have the same
//!    fingerprint, which the tests of both simulators check.
//!
//! `world` has the entities, limits and stores of a run, `client` a process, `leases` what is done
//! with a lease. [`protocol`] is the world of a DynamoDB table, [`rig`] polls by hand, [`crowd`]
//! counts what many processes cost, and [`fleet`] what local blocks save them.

mod client;
pub mod crowd;
mod end;
mod faults;
pub mod fleet;
mod leases;
mod ops;
pub mod protocol;
pub mod rig;
mod steps;
mod time;
mod verdict;
mod world;

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use zae_limiter::Lease;
use zae_limiter_core::EventId;
use zae_limiter_store::{Change, Clock, ManualClock};

pub(crate) use ops::Ask;
pub use world::Backend;
pub(crate) use world::{ENTITIES, Ground, entity, resource, start_clock};

use crate::oracle::accounts::Accounts;
use crate::oracle::books::{Books, Freshness, OpId};
use crate::oracle::journal::finish;
use crate::oracle::lease::{LeaseId, LeaseModel};
use crate::oracle::{Broken, Coverage};
use crate::rng::Rng;
use client::Client;
use faults::{Faults, Weather};
use ops::Op;
use protocol::Scene;
use world::NAMESPACES;

/// Steps of a run, at least and at most.
const STEPS: (u64, u64) = (60, 200);
/// The same where every step is many calls.
const STEPS_ON_A_TABLE: (u64, u64) = (25, 90);
/// Lines of the trace that a failure shows.
const TRACE_SHOWN: usize = 120;

/// What a run was like.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    /// How often what happened in the store.
    pub coverage: Coverage,
    /// Steps the scheduler took.
    pub steps: u64,
    /// Calls to the store that were failed, lost or left hanging.
    pub faults: u64,
    /// Operations dropped before their end.
    pub cancelled: u64,
    /// Clients that crashed.
    pub crashes: u64,
    /// Changes the settlers gave up, and counted.
    pub lost: u64,
    /// Leases that were given without a decision.
    pub degraded: u64,
    /// How often the age of what is known mattered.
    pub freshness: Freshness,
    /// How often what happened on the table, where there is one.
    pub protocol: protocol::Coverage,
    /// The whole run as one number: the same seed gives the same.
    pub fingerprint: u64,
}

/// A broken promise, and how to see it again.
#[derive(Debug)]
pub struct Failure {
    seed: u64,
    backend: Backend,
    message: String,
    trace: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { seed, backend, message, trace } = self;
        let test = if *backend == Backend::Dynamo { "protocol_simulator" } else { "simulator" };
        let backend = backend.as_str();
        let shown = &trace[trace.len().saturating_sub(TRACE_SHOWN)..];
        writeln!(f, "seed {seed} on {backend}: {message}")?;
        writeln!(f, "the last of {} lines of its trace:", trace.len())?;
        shown.iter().try_for_each(|line| writeln!(f, "{line}"))?;
        writeln!(f, "\nreplay it with")?;
        write!(
            f,
            "  ZAEL_SIM_SEED={seed} ZAEL_SIM_STORE={backend} cargo test -p zae-limiter-testkit --test it {test}::replay -- --nocapture"
        )
    }
}

impl std::error::Error for Failure {}

/// Runs one seed on one backend.
pub fn simulate(seed: u64, backend: Backend) -> Result<Report, Box<Failure>> {
    // A trace in words costs more than the run, and only a failure needs it.
    match run(seed, backend, false) {
        Ok((report, _)) => Ok(report),
        Err(failure) if backend == Backend::Dynamo => {
            Err(run(seed, backend, true).err().unwrap_or(failure))
        }
        Err(failure) => Err(failure),
    }
}

/// Runs `count` seeds from `first` on, on all cores, and stops at the first broken promise.
pub fn simulate_all(first: u64, count: u64, backend: Backend) -> Result<Vec<Report>, Box<Failure>> {
    let (next, reports, failure) = (AtomicU64::new(0), Mutex::new(Vec::new()), Mutex::new(None));
    let threads = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while failure.lock().expect("no panic").is_none() {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count {
                        break;
                    }
                    match simulate(first + index, backend) {
                        Ok(report) => reports.lock().expect("no panic").push(report),
                        Err(found) => *failure.lock().expect("no panic") = Some(found),
                    }
                }
            });
        }
    });
    match failure.into_inner().expect("no panic") {
        Some(failure) => Err(failure),
        None => Ok(reports.into_inner().expect("no panic")),
    }
}

/// As [`simulate`], with the whole trace.
pub fn replay(seed: u64, backend: Backend) -> (Vec<String>, Result<Report, Box<Failure>>) {
    match run(seed, backend, true) {
        Ok((report, trace)) => (trace, Ok(report)),
        Err(failure) => (failure.trace.clone(), Err(failure)),
    }
}

fn run(
    seed: u64,
    backend: Backend,
    is_traced: bool,
) -> Result<(Report, Vec<String>), Box<Failure>> {
    let failed = |message: Broken, trace| Box::new(Failure { seed, backend, message, trace });
    let mut run =
        Run::new(seed, backend, is_traced).map_err(|message| failed(message, Vec::new()))?;
    match run.play() {
        Ok(report) => Ok((report, run.trace)),
        Err(message) => Err(failed(message, run.trace)),
    }
}

/// A lease somebody holds.
struct Held {
    client: usize,
    lease: Arc<Lease>,
    model: LeaseModel,
    /// Operations on it that are under way.
    busy: usize,
}

struct Run {
    rng: Rng,
    books: Books,
    faults: Faults,
    ground: Ground,
    clients: Vec<Client>,
    clients_started: usize,
    ops: Vec<Op>,
    ops_started: OpId,
    held: Vec<Held>,
    /// Leases whose commit or rollback was made and has not begun.
    ending: BTreeMap<LeaseId, LeaseModel>,
    leases_begun: u64,
    accounts: Accounts,
    /// Most members of a chain have no limits.
    is_sparse: bool,
    /// One clock is ahead, and most takes are from one bucket, which is drained again and again.
    is_ahead: bool,
    trace: Vec<String>,
    report: Report,
}

impl Run {
    fn new(seed: u64, backend: Backend, is_traced: bool) -> Result<Run, Broken> {
        let mut rng = Rng::new(seed, 1);
        let books = Books::default();
        let ground = Ground::new(backend, seed, is_traced)?;
        if let Some(kept_ms) = Ground::usage_kept_ms(seed) {
            books.lock().oracle.keep_usage_for(kept_ms);
        }
        let table = ground.scene().map(|scene| scene.faults.clone());
        let mut run = Run {
            faults: Faults::new(Rng::new(seed, 2), table),
            clients: Vec::new(),
            clients_started: 0,
            ops: Vec::new(),
            ops_started: 0,
            held: Vec::new(),
            ending: BTreeMap::new(),
            leases_begun: 0,
            accounts: Accounts::default(),
            is_sparse: Rng::new(seed, 4).chance(30),
            is_ahead: false,
            trace: Vec::new(),
            report: Report::default(),
            books,
            ground,
            rng: rng.clone(),
        };
        if run.ground.scene().is_none() {
            run.watch()?;
        }
        for _ in 0..rng.between(2, 5) {
            let clock = run.clients.first().map_or_else(start_clock, fresh_clock);
            let client = run.new_client(&clock)?;
            run.clients.push(client);
        }
        if run.ground.scene().is_none() {
            run.set_ahead(&mut Rng::new(seed, 6));
        }
        run.set_up();
        Ok(run)
    }

    /// In some runs one clock is far ahead from the beginning, and stays so: takes by it and by the
    /// others alternate.
    fn set_ahead(&mut self, rng: &mut Rng) {
        if rng.chance(20) {
            let ahead_ms = *rng.pick(&[90_000, 400_000, 5_000_000, 90_000_000]);
            let clock = &self.clients[1].clock;
            clock.step_to(clock.now().plus_ms(ahead_ms));
            self.is_ahead = true;
            self.note(format!("the wall clock of client 1 is {ahead_ms} ms ahead"));
        }
    }

    /// Opens the handles the oracle looks through.
    fn watch(&mut self) -> Result<(), Broken> {
        let clock = start_clock();
        let store = self.ground.open(&clock, 0)?;
        let name = NAMESPACES[1].parse().map_err(|error| format!("{error}"))?;
        let id = "beta00000000".parse().map_err(|error| format!("{error}"))?;
        let change = Change {
            principal: None,
            reason: None,
            at: clock.now(),
            event: EventId::new(clock.now(), 0),
        };
        finish(store.register_namespace(&name, &id, &change))
            .map_err(|error| format!("{error}"))?;
        let beta = finish(store.scoped(&name)).map_err(|error| format!("{error}"))?;
        self.books.inspect_with(NAMESPACES[0], store);
        self.books.inspect_with(NAMESPACES[1], beta);
        Ok(())
    }

    fn new_client(&mut self, clock: &ManualClock) -> Result<Client, Broken> {
        self.clients_started += 1;
        Client::start(
            self.clients_started,
            &self.ground,
            clock,
            &self.books,
            &self.faults,
            &mut self.rng,
        )
    }

    fn play(&mut self) -> Result<Report, Broken> {
        let (least, most) = if self.ground.scene().is_some() { STEPS_ON_A_TABLE } else { STEPS };
        let steps = self.rng.between(least, most);
        self.faults.become_weather(Weather::Fair);
        for step in 0..steps {
            self.step(step)?;
            self.verdict()?;
        }
        self.come_to_rest()?;
        self.report.steps = steps;
        self.report.faults = self.faults.drawn();
        self.report.coverage = self.books.lock().oracle.coverage;
        self.report.freshness = self.books.lock().freshness;
        self.report.freshness.changes = match self.ground.scene() {
            Some(scene) => scene.changes(),
            None => self.books.lock().history.changes(),
        };
        self.report.protocol = self.ground.scene().map(Scene::coverage).unwrap_or_default();
        let mut hasher = DefaultHasher::new();
        self.trace.hash(&mut hasher);
        self.report.fingerprint = hasher.finish();
        Ok(self.report)
    }

    fn note(&mut self, line: String) {
        self.trace.push(line);
    }

    /// Takes what happened in the store into the trace; the error is the first broken promise.
    fn verdict(&mut self) -> Result<(), Broken> {
        if let Some(scene) = self.ground.scene() {
            scene.look(&self.books);
        }
        let mut state = self.books.lock();
        self.trace.append(&mut state.events);
        for grant in std::mem::take(&mut state.grants) {
            let verdict = match self.ground.scene() {
                Some(scene) => scene.check_age(&grant),
                None => state.history.check(&grant),
            };
            state.freshness.checked += 1;
            state.broken = state.broken.take().or(verdict.err());
        }
        match state.broken.take() {
            Some(broken) => Err(broken),
            None => Ok(()),
        }
    }
}

/// Another process on the same machine: the same wall clock, a monotonic one of its own.
fn fresh_clock(like: &Client) -> ManualClock {
    ManualClock::new(like.clock.now())
}
