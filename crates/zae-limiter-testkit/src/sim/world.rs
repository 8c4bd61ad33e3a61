//! The world of a run: who and what there is, and the stores it lives in.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use zae_limiter_core::{EntityId, Limit, ResourceName, TimeMs};
use zae_limiter_sqlite::{SqliteOptions, SqliteStore};
use zae_limiter_store::{Level, ManualClock, MemoryOptions, MemoryStore, SeededEntropy, Store};

use super::protocol::Scene;
use crate::oracle::inspect::RESOURCES;
use crate::rng::Rng;

/// The namespaces: the same names mean different things in each.
pub(crate) const NAMESPACES: [&str; 2] = ["default", "beta"];

/// Those who take. The first four may form a chain.
pub(crate) const ENTITIES: [&str; 6] = ["leaf", "team", "org", "root", "solo", "guest"];

pub(crate) const LIMITS: [&str; 4] = ["rpm", "tpm", "daily", "burst"];

/// Periods in seconds; each divides the oracle's unit of time.
const PERIODS_S: [u64; 6] = [1, 7, 30, 60, 3_600, 86_400];

/// In most runs history is kept for ever: all of its sums are checked at the end.
const RETENTION_MS: i64 = i64::MAX / 4;
/// In the others usage is kept for one of these times.
const RETENTIONS_MS: [i64; 4] = [3_600_000, 2 * 3_600_000, 5 * 3_600_000, 86_400_000];

/// When runs begin: close to the end of an hour, a day and a month.
const START: TimeMs = TimeMs(1_772_323_199_000 - 600_000);

/// Which backend a run is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// `MemoryStore`, one for all clients.
    Memory,
    /// `SqliteStore` on a file; each client opens it for itself, as a process would.
    Sqlite,
    /// `DynamoStore` on a table in memory: see [`crate::sim::protocol`].
    Dynamo,
}

impl Backend {
    /// The word to choose it by.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Backend::Memory => "memory",
            Backend::Sqlite => "sqlite",
            Backend::Dynamo => "dynamodb",
        }
    }
}

/// Where the data of a run lives.
pub(crate) enum Ground {
    Memory(MemoryStore),
    Sqlite { _folder: tempfile::TempDir, path: PathBuf, usage_kept_ms: i64 },
    Dynamo(Box<Scene>),
}

impl Ground {
    pub(crate) fn new(backend: Backend, seed: u64, is_traced: bool) -> Result<Ground, String> {
        let usage_kept_ms = Ground::usage_kept_ms(seed).unwrap_or(RETENTION_MS);
        Ok(match backend {
            Backend::Memory => {
                let options = MemoryOptions {
                    usage_retention_ms: usage_kept_ms,
                    audit_retention_ms: RETENTION_MS,
                    repeatable_layout: true,
                    ..MemoryOptions::default()
                };
                Ground::Memory(MemoryStore::with_options(options))
            }
            Backend::Dynamo => {
                Ground::Dynamo(Box::new(Scene::new(seed, &start_clock(), is_traced)?))
            }
            Backend::Sqlite => {
                // Where there is a file system in memory, the run does not wait for a disk.
                let folder = tempfile::Builder::new()
                    .prefix("zael-sim")
                    .tempdir_in("/dev/shm")
                    .or_else(|_| tempfile::tempdir());
                let folder = folder.map_err(|error| format!("no temporary folder: {error}"))?;
                let path = folder.path().join("limits.db");
                Ground::Sqlite { _folder: folder, path, usage_kept_ms }
            }
        })
    }

    /// For how long usage is kept, where it is not for ever.
    pub(crate) fn usage_kept_ms(seed: u64) -> Option<i64> {
        let mut rng = Rng::new(seed, 5);
        rng.chance(30).then(|| *rng.pick(&RETENTIONS_MS))
    }

    /// The table, where that is what a run is about.
    pub(crate) fn scene(&self) -> Option<&Scene> {
        match self {
            Ground::Dynamo(scene) => Some(scene),
            Ground::Memory(_) | Ground::Sqlite { .. } => None,
        }
    }

    /// The store as one process sees it.
    pub(crate) fn open(&self, clock: &ManualClock, seed: u64) -> Result<Arc<dyn Store>, String> {
        Ok(match self {
            Ground::Memory(store) => Arc::new(store.clone()),
            Ground::Dynamo(_) => return Err("a table is opened by its scene".to_owned()),
            Ground::Sqlite { path, usage_kept_ms, .. } => {
                let options = SqliteOptions::new()
                    .usage_retention_ms(*usage_kept_ms)
                    .audit_retention_ms(RETENTION_MS)
                    // A background sweep runs at a moment of its own, so a seed would not determine
                    // the run. Clients sweep when told to.
                    .background_sweep(false)
                    .clock(Arc::new(clock.clone()))
                    .entropy(Arc::new(SeededEntropy::new(seed)));
                Arc::new(
                    SqliteStore::open_with(path, options)
                        .map_err(|error| format!("opening failed: {error}"))?,
                )
            }
        })
    }
}

pub(crate) fn start_clock() -> ManualClock {
    ManualClock::new(START)
}

pub(crate) fn entity(name: &str) -> EntityId {
    name.parse().expect("a valid entity id")
}

pub(crate) fn resource(name: &str) -> ResourceName {
    name.parse().expect("a valid resource name")
}

/// Random pieces of a request or a configuration.
impl Rng {
    pub(crate) fn entity(&mut self) -> EntityId {
        entity(self.weighted(&[
            (8, ENTITIES[0]),
            (3, ENTITIES[1]),
            (2, ENTITIES[2]),
            (1, ENTITIES[3]),
            (4, ENTITIES[4]),
            (2, ENTITIES[5]),
        ]))
    }

    pub(crate) fn resource(&mut self) -> ResourceName {
        resource(self.weighted(&[(4, RESOURCES[0]), (1, RESOURCES[1])]))
    }

    pub(crate) fn limit(&mut self, name: &str) -> Limit {
        let capacity = if self.chance(50) { self.between(1, 12) } else { self.between(10, 150) };
        let amount = match self.index(3) {
            0 => capacity,
            1 => self.between(1, 9),
            _ => self.between(1, 120),
        };
        let period_s = *self.pick(&PERIODS_S);
        Limit::custom(name, capacity, amount, period_s).expect("within bounds")
    }

    /// One to four limits, in any order. Most configurations have the two everyday limits, so that
    /// requests fit them.
    pub(crate) fn limits(&mut self) -> Vec<Limit> {
        let mut names: Vec<&str> = Vec::new();
        for (name, percent) in LIMITS.into_iter().zip([94, 88, 25, 15]) {
            if self.chance(percent) {
                names.push(name);
            }
        }
        if names.is_empty() {
            names.push(LIMITS[0]);
        }
        for index in (1..names.len()).rev() {
            names.swap(index, self.index(index + 1));
        }
        names.into_iter().map(|name| self.limit(name)).collect()
    }

    pub(crate) fn level(&mut self) -> Level {
        match self.weighted(&[(2, 0), (2, 1), (2, 2), (3, 3)]) {
            0 => Level::System,
            1 => Level::Resource(self.resource()),
            2 => Level::Entity(self.entity()),
            _ => Level::EntityResource(self.entity(), self.resource()),
        }
    }

    /// A level that limits may be stored at. In a sparse run only the first of a chain, and one
    /// outside of any, have limits.
    pub(crate) fn limited_level(&mut self, is_sparse: bool) -> Level {
        match self.level() {
            level if !is_sparse => level,
            Level::System | Level::Entity(_) => Level::Entity(entity(ENTITIES[0])),
            Level::Resource(resource) => Level::EntityResource(entity(ENTITIES[4]), resource),
            Level::EntityResource(_, resource) => {
                Level::EntityResource(entity(ENTITIES[0]), resource)
            }
        }
    }

    /// How long time passes: from a millisecond to days.
    pub(crate) fn pause(&mut self) -> Duration {
        // The fourth and the fifth are those in which an entry of a config cache has just expired.
        let (low, high) = self.weighted(&[
            (4, (1, 50)),
            (4, (50, 1_500)),
            (3, (1_000, 70_000)),
            (1, (5_000, 10_000)),
            (1, (60_000, 66_000)),
            (2, (60_000, 4_000_000)),
            (1, (3_600_000, 200_000_000)),
        ]);
        Duration::from_millis(self.between(low, high))
    }
}
