//! Names of the metrics that a backend counts itself. The library describes them with all others.

/// Shards that were split because they took more writes than one item can.
pub const SPLITS: &str = "zae_limiter_splits_total";

/// Buckets whose shards were folded into one item.
pub const FOLDS: &str = "zae_limiter_folds_total";

/// Reads of all shards of a bucket, to take from several or to refuse.
pub const GATHERS: &str = "zae_limiter_gathers_total";

/// Shards that were made because a foreign writer had left them out.
pub const REPAIRS: &str = "zae_limiter_repairs_total";

/// Shards that belonged to no bucket and were removed.
pub const ORPHANS: &str = "zae_limiter_orphans_total";
