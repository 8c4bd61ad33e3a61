//! How much is allocated, in builds that count it.

use crate::cell::Figures;

/// What to know about the figures of this build.
#[cfg(feature = "allocations")]
pub(crate) const NOTE: &str = "Allocations are counted, which costs CPU: take CPU and latency from a build without `--features allocations`.";
#[cfg(not(feature = "allocations"))]
pub(crate) const NOTE: &str = "Allocations are not counted: build with `--features allocations`.";

#[cfg(feature = "allocations")]
#[global_allocator]
static COUNTING: &stats_alloc::StatsAlloc<std::alloc::System> = &stats_alloc::INSTRUMENTED_SYSTEM;

/// Allocations of this process, all threads; `None` when nobody counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allocated(Option<Count>);

#[derive(Clone, Copy, Debug)]
struct Count {
    /// New ones and those that grew.
    times: usize,
    bytes: usize,
}

impl Allocated {
    #[cfg(feature = "allocations")]
    pub(crate) fn so_far() -> Allocated {
        let stats = COUNTING.stats();
        Allocated(Some(Count {
            times: stats.allocations + stats.reallocations,
            bytes: stats.bytes_allocated,
        }))
    }

    #[cfg(not(feature = "allocations"))]
    pub(crate) fn so_far() -> Allocated {
        Allocated(None)
    }

    pub(crate) fn since(self, before: Allocated) -> Allocated {
        let counts = self.0.zip(before.0);
        Allocated(counts.map(|(after, before)| Count {
            times: after.times - before.times,
            bytes: after.bytes - before.bytes,
        }))
    }

    pub(crate) fn per_op(self, ops: u64) -> Figures {
        let Some(count) = self.0 else { return Figures::new() };
        vec![
            ("allocations per op", count.times as f64 / ops as f64),
            ("bytes allocated per op", count.bytes as f64 / ops as f64),
        ]
    }
}
