//! Namespaces that are deleted, registered again and recovered by one process while handles of
//! others live.
//!
//! Every incarnation of a name has a limit of its own capacity, so whoever takes sees in which one.
//! A handle may only ever act in the one it was made for; a handle that is made now acts in the one
//! there is now.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::sync::Arc;
use std::time::Duration;

use zae_limiter::{
    AcquireError, ErrorKind, Invalid, Level, Limit, ManualClock, MemoryStore, RateLimiter, Request,
    StoreErrorKind, TimeMs,
};
use zae_limiter_core::NamespaceId;
use zae_limiter_dynamodb::DynamoOptions;
use zae_limiter_sqlite::{SqliteOptions, SqliteStore};
use zae_limiter_store::{Entropy, Fault, FaultStore, SeededEntropy, Store};
use zae_limiter_testkit::table::EvalTable;

/// How long a remote process may remember that its namespace was deleted.
const REMEMBERED_MAX: Duration = Duration::from_secs(5);
const TTL: Duration = Duration::from_secs(60);
const NAMES: [&str; 2] = ["tenant", "default"];
const STEPS: u64 = 60;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum On {
    Memory,
    Sqlite,
    Dynamo,
}

/// What a name stood for, from one registration to its deletion.
struct Incarnation {
    name: usize,
    id: NamespaceId,
    capacity: u64,
    /// For how long it has been deleted, and by whom.
    deleted: Option<(Duration, usize)>,
    /// The same of its last recovery.
    recovered: Option<(Duration, usize)>,
}

struct Handle {
    client: usize,
    limiter: RateLimiter,
    incarnation: usize,
}

/// How often what happened.
#[derive(Clone, Copy, Debug, Default)]
struct Coverage {
    registered_again: u64,
    recovered: u64,
    /// Takes through a handle whose namespace another process had deleted, and that were told so.
    told: u64,
    entered_through_an_old_handle: u64,
    /// Handles to the new namespace made while its process held one to the old.
    entered_beside_an_old_handle: u64,
    granted: u64,
    /// Takes that were told of a deletion after somebody else had recovered the namespace.
    told_too_long: u64,
}

struct World {
    on: On,
    seed: u64,
    entropy: SeededEntropy,
    clock: ManualClock,
    since: Duration,
    roots: Vec<RateLimiter>,
    incarnations: Vec<Incarnation>,
    /// Which incarnation each name stands for.
    current: [Option<usize>; 2],
    handles: Vec<Handle>,
    coverage: Coverage,
    _folder: tempfile::TempDir,
}

fn request() -> Request {
    Request::new("key", "gpt-4").take("rpm", 1)
}

impl World {
    async fn new(on: On, seed: u64) -> World {
        let folder = tempfile::Builder::new()
            .tempdir_in("/dev/shm")
            .or_else(|_| tempfile::tempdir())
            .unwrap();
        let clock = ManualClock::new(TimeMs(1_772_300_000_000));
        let (memory, table) = (MemoryStore::new(), EvalTable::new());
        let options = |client: u64| {
            let mut options = DynamoOptions::new();
            options.clock = Arc::new(clock.clone());
            options.entropy = Arc::new(SeededEntropy::new(seed * 100 + 50 + client));
            options
        };
        if on == On::Dynamo {
            table.initialise(&options(9)).await.unwrap();
        }
        let mut roots = Vec::new();
        for client in 0..3 {
            let store: Arc<dyn Store> = match on {
                On::Memory => Arc::new(memory.clone()),
                On::Sqlite => {
                    let options = SqliteOptions::new()
                        .clock(Arc::new(clock.clone()))
                        .entropy(Arc::new(SeededEntropy::new(seed + client)));
                    Arc::new(
                        SqliteStore::open_with(folder.path().join("limits.db"), options).unwrap(),
                    )
                }
                On::Dynamo => Arc::new(table.open(options(client)).await.unwrap()),
            };
            let entropy = SeededEntropy::new(seed * 100 + client);
            let store = FaultStore::new(store, |_: &'static str| Fault::None);
            roots.push(
                RateLimiter::builder(store)
                    .clock(clock.clone())
                    .entropy(entropy)
                    .config_cache_ttl(TTL)
                    .build()
                    .unwrap(),
            );
        }
        let mut world = World {
            on,
            seed,
            entropy: SeededEntropy::new(seed),
            clock,
            since: Duration::ZERO,
            roots,
            incarnations: Vec::new(),
            current: [None; 2],
            handles: Vec::new(),
            coverage: Coverage::default(),
            _folder: folder,
        };
        world.furnish(1, 0).await;
        for client in 0..3 {
            world.handles.push(Handle {
                client,
                limiter: world.roots[client].clone(),
                incarnation: 0,
            });
        }
        world
    }

    fn below(&self, bound: usize) -> usize {
        usize::try_from(self.entropy.next_u64() % bound as u64).unwrap()
    }

    /// A handle of a client to ask for others with: its first one or any other, deleted or not.
    fn some_handle_of(&self, client: usize) -> (RateLimiter, bool) {
        let own: Vec<&Handle> =
            self.handles.iter().filter(|handle| handle.client == client).collect();
        let handle = own[self.below(own.len())];
        let is_old = self.incarnations[handle.incarnation].deleted.is_some();
        (handle.limiter.clone(), is_old)
    }

    /// Writes down the namespace that now has this name, and gives it limits of its own.
    async fn furnish(&mut self, name: usize, client: usize) {
        let limiter = self.some_root(client).namespace(NAMES[name]).await.unwrap();
        let id = limiter.namespace_info(NAMES[name]).await.unwrap().unwrap().id;
        let capacity = 10 + 7 * self.incarnations.len() as u64;
        let limit: Limit = format!("rpm:{capacity}/day").parse().unwrap();
        limiter.set_limits(&Level::System, [limit]).await.unwrap();
        self.current[name] = Some(self.incarnations.len());
        self.incarnations.push(Incarnation { name, id, capacity, deleted: None, recovered: None });
    }

    fn some_root(&self, client: usize) -> RateLimiter {
        if self.handles.iter().any(|handle| handle.client == client) {
            self.some_handle_of(client).0
        } else {
            self.roots[client].clone()
        }
    }

    async fn step(&mut self) {
        let (client, name) = (self.below(3), self.below(2));
        match self.below(12) {
            0 => {
                let deleted = self.some_root(client).delete_namespace(NAMES[name]).await.unwrap();
                assert_eq!(deleted, self.current[name].is_some(), "seed {}", self.seed);
                if let Some(incarnation) = self.current[name].take() {
                    self.incarnations[incarnation].deleted = Some((self.since, client));
                }
            }
            1 | 2 if self.current[name].is_none() => {
                self.some_root(client).register_namespace(NAMES[name]).await.unwrap();
                self.coverage.registered_again +=
                    u64::from(self.incarnations.iter().any(|gone| gone.name == name));
                self.furnish(name, client).await;
            }
            3 if self.current[name].is_none() => {
                let gone: Vec<usize> = (0..self.incarnations.len())
                    .filter(|index| self.incarnations[*index].name == name)
                    .collect();
                if gone.is_empty() {
                    return;
                }
                let incarnation = gone[self.below(gone.len())];
                let id = self.incarnations[incarnation].id.clone();
                self.some_root(client).recover_namespace(id).await.unwrap();
                self.incarnations[incarnation].deleted = None;
                self.incarnations[incarnation].recovered = Some((self.since, client));
                self.current[name] = Some(incarnation);
                self.coverage.recovered += 1;
            }
            4 | 5 => {
                let (through, is_old) = self.some_handle_of(client);
                self.enter(client, name, &through, is_old).await;
            }
            6 => {
                let pause = Duration::from_secs(20 * (1 + self.below(5) as u64));
                self.clock.advance(pause);
                self.since += pause;
            }
            _ => {
                let handle = self.below(self.handles.len());
                self.take(handle).await;
            }
        }
    }

    /// Makes a handle, which must be one to the namespace that has the name now.
    async fn enter(&mut self, client: usize, name: usize, through: &RateLimiter, is_old: bool) {
        let entered = through.namespace(NAMES[name]).await;
        let Some(incarnation) = self.current[name] else {
            assert_eq!(
                entered.unwrap_err().kind(),
                ErrorKind::Store(StoreErrorKind::NotFound),
                "seed {}: nobody has that name",
                self.seed
            );
            return;
        };
        let beside = |handle: &Handle| {
            handle.client == client
                && self.incarnations[handle.incarnation].name == name
                && handle.incarnation != incarnation
        };
        self.coverage.entered_beside_an_old_handle += u64::from(self.handles.iter().any(beside));
        self.coverage.entered_through_an_old_handle += u64::from(is_old);
        self.handles.push(Handle { client, limiter: entered.unwrap(), incarnation });
        self.take(self.handles.len() - 1).await;
    }

    async fn take(&mut self, index: usize) {
        let Handle { client, limiter, incarnation } = &self.handles[index];
        let (client, incarnation) = (*client, *incarnation);
        let Incarnation { capacity, deleted, recovered, name, .. } = self.incarnations[incarnation];
        let context = format!(
            "seed {} on {:?}, incarnation {incarnation} of {}",
            self.seed, self.on, NAMES[name]
        );
        let seen = match limiter.acquire(request()).await {
            Ok(lease) => {
                let seen = lease.statuses()[0].limit.capacity();
                lease.commit().await.unwrap();
                self.coverage.granted += 1;
                seen
            }
            Err(AcquireError::Exceeded(refused)) => refused.statuses()[0].limit.capacity(),
            Err(AcquireError::Invalid(Invalid::Namespace(message))) => {
                // A process that has read of the deletion does not look again at once; whoever
                // recovers knows.
                let is_just_back = |(at, by): (Duration, usize)| {
                    by != client && self.since.saturating_sub(at) < REMEMBERED_MAX
                };
                let is_remembered = self.on == On::Dynamo && recovered.is_some_and(is_just_back);
                assert!(deleted.is_some() || is_remembered, "{context}: it is there, {message}");
                self.coverage.told_too_long += u64::from(deleted.is_none());
                assert!(
                    message.contains("register it again and open a new handle"),
                    "{context}: {message}"
                );
                self.coverage.told += u64::from(deleted.is_some_and(|(_, by)| by != client));
                return;
            }
            Err(error) => panic!("{context}: {error}"),
        };
        assert_eq!(seen, capacity, "{context}: held to the limits of another");
        // Reads of a remote store may be used a moment longer; that bound has tests of its own.
        if let (Some((at, _)), false) = (deleted, self.on == On::Dynamo) {
            assert!(
                self.since.saturating_sub(at) <= TTL,
                "{context}: admitted long after it was deleted"
            );
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "which seeds to run, as for the simulator")]
fn seeds(usual: u64) -> u64 {
    std::env::var("ZAEL_SIM_SEEDS").map_or(usual, |text| text.parse().unwrap())
}

#[expect(clippy::print_stdout, reason = "what a run has met, for who asks with --nocapture")]
fn run(on: On, usual: u64) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let count = seeds(usual);
    let mut sum = Coverage::default();
    for seed in 0..count {
        let coverage = runtime.block_on(async {
            let mut world = World::new(on, seed).await;
            for _ in 0..STEPS {
                world.step().await;
            }
            world.coverage
        });
        sum.registered_again += coverage.registered_again;
        sum.recovered += coverage.recovered;
        sum.told += coverage.told;
        sum.entered_through_an_old_handle += coverage.entered_through_an_old_handle;
        sum.entered_beside_an_old_handle += coverage.entered_beside_an_old_handle;
        sum.granted += coverage.granted;
        sum.told_too_long += coverage.told_too_long;
    }
    println!("{count} runs on {on:?}: {sum:?}");
    // How often it happened, and how often it has to happen in a hundred runs.
    let counts = [
        (sum.registered_again, 100),
        (sum.recovered, 50),
        (sum.told, 300),
        (sum.entered_through_an_old_handle, 130),
        (sum.entered_beside_an_old_handle, 90),
        (sum.granted, 900),
        (sum.told_too_long, if on == On::Dynamo { 5 } else { 0 }),
    ];
    let enough = |(happened, per_hundred): &(u64, u64)| happened * 100 >= count * per_hundred;
    assert!(counts.iter().all(enough), "too little happened in {count} runs: {sum:?}");
}

#[test]
fn handles_stay_in_their_namespace_in_memory() {
    run(On::Memory, 300);
}

#[test]
fn handles_stay_in_their_namespace_on_sqlite() {
    run(On::Sqlite, 40);
}

#[test]
fn handles_stay_in_their_namespace_on_dynamodb() {
    run(On::Dynamo, 100);
}
