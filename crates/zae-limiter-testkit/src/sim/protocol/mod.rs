//! The seeded simulator over the DynamoDB protocol: the machinery of [`crate::sim`] (clients,
//! leases, cancellation, crashes, live configuration) over the real `DynamoStore` and a table in
//! memory that loses, delays and reorders.
//!
//! A chain is several writes here, so nothing is checked per call. Every write that lands on a
//! bucket is: `audit` holds it against the judges of `oracle::protocol`. At the end what landed for
//! each call must be what its caller was told, and every lease must add up as on any other store.

mod audit;
mod echo;
mod events;
mod shards;
mod stream;
mod tap;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use zae_limiter_dynamodb::constants::CLOCK_OFF_MAX_MS;
use zae_limiter_dynamodb::{CascadeWrites, DynamoOptions, DynamoStore};
use zae_limiter_store::{Clock, ManualClock, SeededEntropy, Store};

use crate::oracle::Broken;
use crate::oracle::books::Books;
use crate::oracle::history::Basis;
use crate::oracle::inspect::RESOURCES;
use crate::oracle::journal::finish;
use crate::oracle::protocol::admin::Administration;
use crate::oracle::protocol::configured::Configured;
use crate::oracle::protocol::ideal::IdealBucket;
use crate::oracle::protocol::instant::Instant;
use crate::oracle::protocol::refusals::Gathered;
use crate::oracle::protocol::slots::Slots;
use crate::oracle::protocol::whole::{Leaves, Whole};
pub use crate::oracle::protocol::{Coverage, Deeds, Shards, Stream};
use crate::rng::Rng;
use crate::sim::{Ask, ENTITIES, entity, resource};
use crate::table::{EvalOptions, EvalTable, Faults, Odds, SeededGate};
use echo::Echoes;
use shards::Upkeep;
use stream::Pipe;
use tap::{Outbox, Tap};

/// Of a hundred runs, those in which buckets are split and folded.
const SHARDED: u64 = 40;

/// Of a hundred runs, those in which somebody reads the stream: where buckets are split, and
/// elsewhere.
const STREAMED: [u64; 2] = [50, 15];

/// How far the clocks of a run may be off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Skew {
    /// Not at all.
    None,
    /// By as much as machines usually are.
    Usual,
    /// By anything.
    Wild,
}

/// What is known of the table by looking at what lands.
struct Knowledge {
    ideals: BTreeMap<String, IdealBucket>,
    /// Buckets that cannot be read, and what they were: nothing is checked there until they are
    /// repaired.
    damaged: BTreeSet<String>,
    /// What each item was like at its refill instant.
    instants: BTreeMap<String, Instant>,
    slots: Slots,
    administration: Administration,
    /// What is configured, and was.
    configured: Configured,
    coverage: Coverage,
    /// One handle per client, for its counters, and its clock.
    stores: Vec<(usize, DynamoStore, ManualClock)>,
    /// The shards of each bucket, by the key without the number of the shard; kept in runs in which
    /// buckets are split.
    leaves: BTreeMap<String, Leaves>,
    /// What buckets of several shards have together.
    wholes: BTreeMap<String, Whole>,
    /// Buckets that a foreign writer has written to.
    strange: BTreeSet<String>,
    /// What the shards had together when a call read all of them.
    gathered: Gathered,
}

/// The table of a run and everything around it.
pub(crate) struct Scene {
    table: EvalTable,
    pub(crate) faults: Faults,
    gate: Arc<SeededGate>,
    truth: ManualClock,
    outbox: Outbox,
    echoes: Echoes,
    grace_ms: i64,
    pub(crate) skew: Skew,
    /// How many requests in a hundred are about one chain.
    focus: u64,
    /// Whether somebody writes by other rules.
    has_strangers: bool,
    /// Whether items become unreadable.
    is_damaged: bool,
    /// Whether buckets are split and folded.
    is_sharded: bool,
    /// Limits of less than 32 times this are not divided.
    share_min_milli: i64,
    upkeep: Upkeep,
    /// The stream of the table, where somebody reads it.
    pipe: Option<Pipe>,
    /// When the run began.
    started_ms: i64,
    /// Whether every write is put into words, for a failure or for people.
    is_traced: bool,
    knowledge: Mutex<Knowledge>,
}

impl Scene {
    /// A table with nothing but its namespace.
    pub(crate) fn new(seed: u64, clock: &ManualClock, is_traced: bool) -> Result<Scene, String> {
        let mut rng = Rng::new(seed, 3);
        // In some runs the indexes are behind by more than administration waits for.
        let index_lag_ms = *Rng::new(seed, 11).pick(&[0, 0, 0, 1_000, 5_000, 60_000]);
        let mut sharding = Rng::new(seed, 12);
        let is_sharded = sharding.chance(SHARDED);
        let options = EvalOptions::new()
            .journal()
            .page_max(usize::try_from(rng.between(1, 30)).unwrap_or(1))
            .index_lag_ms(index_lag_ms);
        let mut streaming = Rng::new(seed, 14);
        let is_streamed = streaming.chance(if is_sharded { STREAMED[0] } else { STREAMED[1] });
        let mut scene = Scene {
            table: EvalTable::with_options(options),
            faults: Faults::seeded(rng.next(), Odds::CLEAR),
            gate: Arc::new(SeededGate::new(rng.next(), 25, 2)),
            truth: clock.clone(),
            outbox: Outbox::default(),
            echoes: Echoes::new(Rng::new(seed, 9), *Rng::new(seed, 10).pick(&[0, 0, 5, 30])),
            grace_ms: rng.weighted(&[(3, 0), (1, zae_limiter_dynamodb::constants::FAST_GRACE_MS)]),
            skew: rng.weighted(&[(4, Skew::None), (3, Skew::Usual), (3, Skew::Wild)]),
            focus: *rng.pick(&[0, 60, 80, 95]),
            has_strangers: rng.chance(15),
            is_damaged: rng.chance(10) && !is_sharded,
            is_sharded,
            // Nothing is divided by the usual least share: the limits of the world are small.
            share_min_milli: sharding.weighted(&[
                (5, 1),
                (2, 300),
                (2, 1_500),
                (1, zae_limiter_dynamodb::constants::SHARE_MIN_MILLI),
            ]),
            upkeep: Upkeep::new(Rng::new(seed, 13)),
            pipe: None,
            started_ms: clock.now().0,
            is_traced,
            knowledge: Mutex::new(Knowledge {
                ideals: BTreeMap::new(),
                damaged: BTreeSet::new(),
                instants: BTreeMap::new(),
                slots: Slots::default(),
                administration: Administration::default(),
                configured: Configured::default(),
                coverage: Coverage::default(),
                stores: Vec::new(),
                leaves: BTreeMap::new(),
                wholes: BTreeMap::new(),
                strange: BTreeSet::new(),
                gathered: Gathered::default(),
            }),
        };
        if is_streamed && !scene.is_damaged {
            scene.pipe = Some(Pipe::new(streaming, clock, scene.skew));
        }
        let options = scene.options(clock, rng.next());
        finish(Box::pin(scene.table.initialise(&options))).map_err(|error| error.to_string())?;
        Ok(scene)
    }

    fn options(&self, clock: &ManualClock, seed: u64) -> DynamoOptions {
        let mut options = DynamoOptions::new();
        options.fast_grace_ms = self.grace_ms;
        options.share_min_milli = self.share_min_milli;
        options.clock = Arc::new(clock.clone());
        options.entropy = Arc::new(SeededEntropy::new(seed));
        options
    }

    /// The store as one process sees it.
    pub(crate) fn open(
        &self,
        client: usize,
        clock: &ManualClock,
        books: &Books,
        rng: &mut Rng,
    ) -> Result<Arc<dyn Store>, String> {
        let mut options = self.options(clock, rng.next());
        options.speculative = rng.chance(85);
        options.cascade_writes =
            rng.weighted(&[(4, CascadeWrites::Parallel), (1, CascadeWrites::Serial)]);
        options.rejection_cache_ttl_ms =
            rng.weighted(&[(1, 0), (2, options.rejection_cache_ttl_ms)]);
        options.images_max = rng.weighted(&[(1, 1), (4, options.images_max)]);
        if self.is_sharded {
            options.gather_pause_ms = *rng.pick(&[0, 0, options.gather_pause_ms]);
            options.herd_pause_ms = *rng.pick(&[0, 0, options.herd_pause_ms]);
        }
        self.open_stream(books);
        let number = u32::try_from(client).map_err(|error| error.to_string())?;
        let gate: Arc<SeededGate> = Arc::clone(&self.gate);
        let mut table = self
            .table
            .client(number)
            .with_faults(self.faults.clone())
            .with_gate(gate)
            .with_timeout(Arc::new(clock.clone()));
        // A client that is told no time believes its own clock: only where clocks are nearly right.
        if rng.chance(80) || self.skew == Skew::Wild {
            table = table.with_dates(Arc::new(clock.clone()), Arc::new(self.truth.clone()));
        }
        let tap = Tap {
            table,
            beyond: self.table.client(number),
            echoes: self.echoes.clone(),
            books: books.clone(),
            outbox: self.outbox.clone(),
            clock: clock.clone(),
            truth: self.truth.clone(),
            firsts: Mutex::default(),
        };
        let name = "default".parse().map_err(|error| format!("{error}"))?;
        let store =
            finish(Box::pin(async { DynamoStore::on_table(Arc::new(tap), options, &name).await }));
        let store = store.map_err(|error| format!("opening failed: {error}"))?;
        self.lock().stores.push((client, store.clone(), clock.clone()));
        Ok(Arc::new(store))
    }

    /// Makes a request one about the chain that everybody wants: few buckets, many writers.
    pub(crate) fn focus(&self, ask: &mut Ask, rng: &mut Rng) {
        if rng.chance(self.focus) {
            ask.entity = entity(ENTITIES[0]);
            ask.resource = resource(RESOURCES[0]);
        }
    }

    /// Time passes, after everything that happened before it has been looked at.
    pub(crate) fn pass(&self, pause: Duration, books: &Books) {
        self.look(books);
        self.keep_up(books);
        self.truth.advance(pause);
        self.pipe.iter().for_each(|pipe| pipe.advance(pause));
        self.table.set_now_ms(self.truth.now().0);
        self.echoes.expire(self.truth.now().0);
    }

    /// Somebody sets the clock of a client: by seconds where clocks are nearly right, else by
    /// anything up to years.
    pub(crate) fn step_clock(&self, clock: &ManualClock, rng: &mut Rng) -> String {
        let off_ms = match self.skew {
            Skew::None => return "the clock is right".to_owned(),
            Skew::Usual => i64::try_from(rng.between(0, 4_000)).unwrap_or(0) - 2_000,
            Skew::Wild => {
                let most = rng.weighted(&[
                    (1, 200),
                    (2, 20_000),
                    (3, 900_000),
                    (2, 14 * 3_600_000),
                    (1, 400 * 86_400_000),
                ]);
                let off_ms = i64::try_from(rng.between(0, most)).unwrap_or(0);
                if rng.chance(50) { -off_ms } else { off_ms }
            }
        };
        let is_far = off_ms.abs() > CLOCK_OFF_MAX_MS;
        let mut known = self.lock();
        known.coverage.stepped += 1;
        known.coverage.stepped_far += u64::from(is_far);
        drop(known);
        clock.step_to(self.truth.now().plus_ms(off_ms));
        format!("the clock is {off_ms} ms off")
    }

    /// Changes of the configuration so far.
    pub(crate) fn changes(&self) -> u64 {
        self.lock().configured.history.changes()
    }

    /// Holds a grant against the history of the configuration. On the table a namespace goes by its
    /// id.
    pub(crate) fn check_age(&self, grant: &Basis) -> Result<(), Broken> {
        let id = self.table.namespace_id(&grant.namespace).unwrap_or_default();
        self.lock().configured.history.check(&Basis { namespace: id, ..grant.clone() })
    }

    pub(crate) fn coverage(&self) -> Coverage {
        let known = self.lock();
        Coverage {
            deeds: known.administration.deeds,
            stream: self.pipe.as_ref().map(Pipe::counts).unwrap_or_default(),
            far_behind: self.table.counters().far_behind,
            ..known.coverage
        }
    }

    /// Everything has come to rest: what landed must be what was told, and counted. `alive` are the
    /// clients with a say.
    pub(crate) fn settle_up(&self, books: &Books, alive: &BTreeSet<usize>) -> Result<(), Broken> {
        self.drain_stream(books)?;
        if let Some(broken) = books.lock().broken.take() {
            return Err(broken);
        }
        let mut known = self.lock();
        let mut coverage = known.coverage;
        let due = known.slots.audit(&books.lock(), &mut coverage)?;
        known.coverage = coverage;
        let verified = known.gathered.check(&books.lock())?;
        known.coverage.shards.refusals = verified.refusals;
        known.coverage.shards.proven = verified.proven;
        let mut stores = known.stores.iter().filter(|(client, ..)| alive.contains(client));
        stores.try_for_each(|(client, store, _)| {
            let due = due.get(client).copied().unwrap_or_default();
            due.check(&store.counters()).map_err(|broken| format!("client {client} {broken}"))
        })
    }

    /// Whether buckets may have several shards: an aggregator splits them, too.
    fn may_split(&self) -> bool {
        self.is_sharded || self.pipe.is_some()
    }

    fn lock(&self) -> MutexGuard<'_, Knowledge> {
        self.knowledge.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
