//! Bounds and retention.

use crate::RETENTION_MS;

/// Bounds and retention of a [`MemoryStore`](crate::MemoryStore).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryOptions {
    /// The most buckets there may be, over all namespaces. At the bound a new bucket takes the
    /// place of one that is full again (forgetting that one changes nothing); when none can be
    /// found the take fails with [`StoreErrorKind::Capacity`](crate::StoreErrorKind::Capacity).
    pub buckets_max: usize,
    /// How long hours of usage are kept; [`Store::sweep`](crate::Store::sweep) removes older ones.
    pub usage_retention_ms: i64,
    /// How long audit events are kept; [`Store::sweep`](crate::Store::sweep) removes older ones.
    pub audit_retention_ms: i64,
    /// About the most hours of usage kept, one per bucket and hour; beyond it the oldest go first.
    pub usage_rows_max: usize,
    /// The most audit events kept per namespace; beyond it the oldest go first.
    pub audit_events_max: usize,
    /// Spread buckets over the table the same way in every run. For simulations that must replay
    /// exactly; leave it off where callers choose the names, or they can choose ones that collide.
    pub repeatable_layout: bool,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        MemoryOptions {
            buckets_max: 1_000_000,
            usage_retention_ms: RETENTION_MS,
            audit_retention_ms: RETENTION_MS,
            usage_rows_max: 1_000_000,
            audit_events_max: 100_000,
            repeatable_layout: false,
        }
    }
}
