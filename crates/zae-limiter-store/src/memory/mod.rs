//! The reference backend: everything in this process, nothing on disk.
//!
//! Three kinds of locks, always taken in this order, so that nothing can deadlock and every answer
//! is exact:
//!
//! 1. **shards** (`table.rs`), each with its part of the buckets and their usage history, in
//!    ascending order;
//! 2. the **directory** (`directory.rs`): namespaces, entities, limits, flags and the audit log;
//! 3. the interned **scopes** (`table.rs`), which save memory and decide nothing.
//!
//! A take from an existing bucket needs one shard lock and no other. A new bucket reads its flags
//! from the directory while its shard is locked; a change of a flag first writes the directory and
//! then visits every shard. So either the new bucket sees the flag, or the visit sees the bucket.

mod adopt;
mod bucket;
mod config;
mod directory;
mod entity;
mod history;
mod namespace;
mod options;
mod page;
mod room;
mod table;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use foldhash::fast::SeedableRandomState;
use zae_limiter_core::{NamespaceId, NamespaceName, SweepHorizon, TimeMs};

use crate::{BoxFuture, Capabilities, Namespace, Store, StoreFuture, Swept};
use directory::Directory;
pub use options::MemoryOptions;
use table::{SHARDS, Scopes, Shard};

/// The in-memory backend, bound to one namespace (`default` at first). A clone is another handle to
/// the same state.
///
/// Exact and atomic; neither durable nor shared between processes. Nothing in it waits, so its
/// futures are ready at the first poll, and [`MemoryStore::consume_now`] does without one.
#[derive(Clone)]
pub struct MemoryStore {
    shared: Arc<Shared>,
    /// The number the namespace's data is kept under; never reused.
    number: u32,
    name: NamespaceName,
    id: NamespaceId,
}

struct Shared {
    options: MemoryOptions,
    hasher: SeedableRandomState,
    shards: Box<[Padded<Mutex<Shard>>]>,
    directory: RwLock<Directory>,
    scopes: Mutex<Scopes>,
    /// How many buckets there are, room reserved for new ones included.
    buckets: AtomicUsize,
    /// The shard where the next search for a bucket to evict begins.
    evict_from: AtomicUsize,
    sweep: Mutex<SweepProgress>,
}

/// One shard per pair of cache lines, so that neighbours do not slow each other down.
#[repr(align(128))]
struct Padded<T>(T);

#[derive(Default)]
struct SweepProgress {
    /// The step to do next.
    next: usize,
    /// Steps done since everything had last been swept.
    done: usize,
    horizon: SweepHorizon,
}

/// One step per shard, and one for the audit log.
const SWEEP_STEPS: usize = SHARDS + 1;

impl MemoryStore {
    /// An empty store with the default bounds.
    #[must_use]
    pub fn new() -> MemoryStore {
        MemoryStore::with_options(MemoryOptions::default())
    }

    /// An empty store with other bounds.
    #[must_use]
    pub fn with_options(options: MemoryOptions) -> MemoryStore {
        let (directory, number, Namespace { name, id, .. }) = Directory::with_default_namespace();
        let shared = Shared {
            options,
            hasher: if options.repeatable_layout {
                SeedableRandomState::fixed()
            } else {
                SeedableRandomState::random()
            },
            shards: (0..SHARDS).map(|_| Padded(Mutex::new(Shard::default()))).collect(),
            directory: RwLock::new(directory),
            scopes: Mutex::new(Scopes::default()),
            buckets: AtomicUsize::new(0),
            evict_from: AtomicUsize::new(0),
            sweep: Mutex::new(SweepProgress::default()),
        };
        MemoryStore { shared: Arc::new(shared), number, name, id }
    }

    /// A handle to another namespace of the same state.
    fn bound_to(&self, number: u32, namespace: &Namespace) -> MemoryStore {
        let Namespace { name, id, .. } = namespace.clone();
        MemoryStore { shared: Arc::clone(&self.shared), number, name, id }
    }

    fn sweep_now(&self, now: TimeMs, steps_max: u32) -> Swept {
        let mut progress = lock(&self.shared.sweep);
        let mut swept = Swept::default();
        for _ in 0..usize::try_from(steps_max).unwrap_or(usize::MAX).min(SWEEP_STEPS) {
            if progress.next < SHARDS {
                self.shared.sweep_shard(progress.next, now, &mut swept);
            } else {
                let oldest = now.plus_ms(self.shared.options.audit_retention_ms.saturating_neg());
                swept.audit += self.shared.write_directory().forget_audit_before(oldest);
            }
            progress.next = (progress.next + 1) % SWEEP_STEPS;
            progress.done += 1;
        }
        swept.complete = progress.done >= SWEEP_STEPS;
        if swept.complete {
            progress.done = 0;
        }
        swept
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        MemoryStore::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("namespace", &self.name)
            .field("options", &self.shared.options)
            .finish_non_exhaustive()
    }
}

impl Store for MemoryStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            exact: true,
            atomic_chains: true,
            immediate_usage: true,
            whole_buckets: true,
            sweeps: true,
            lends: true,
            ..Capabilities::minimum("memory")
        }
    }

    fn ping(&self) -> StoreFuture<'_, ()> {
        lazily(|| Ok(()))
    }

    fn sweep_horizon(&self, now: TimeMs) -> StoreFuture<'_, Option<TimeMs>> {
        let horizon = lock(&self.shared.sweep).horizon.observe(now);
        Box::pin(std::future::ready(Ok(horizon)))
    }

    fn sweep(&self, now: TimeMs, steps_max: u32) -> StoreFuture<'_, Swept> {
        lazily(move || Ok(self.sweep_now(now, steps_max)))
    }
}

impl Shared {
    fn lock_shard(&self, index: usize) -> MutexGuard<'_, Shard> {
        lock(&self.shards[index].0)
    }

    fn read_directory(&self) -> RwLockReadGuard<'_, Directory> {
        self.directory.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_directory(&self) -> RwLockWriteGuard<'_, Directory> {
        self.directory.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A lock whose holder panicked is taken all the same: every change is made whole before the lock
/// is given back.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A future that does its work when it is first polled, as a remote backend's would.
fn lazily<'a, T: 'a>(work: impl FnOnce() -> T + Send + 'a) -> BoxFuture<'a, T> {
    Box::pin(async move { work() })
}
