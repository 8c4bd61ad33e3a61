//! The promises of a backend, as data.

/// Promises beyond the contract's minimum. Each switches on conformance cases; a case that is
/// disabled says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The backend's name, for messages.
    pub name: &'static str,
    /// Admission is exact to the millitoken, without the allowance of a distributed store.
    pub exact: bool,
    /// A refused chain never took anything, not even for a moment.
    pub atomic_chains: bool,
    /// Usage is visible as soon as the take is; otherwise an aggregator brings it later.
    pub immediate_usage: bool,
    /// State outlives the process.
    pub durable: bool,
    /// Several processes may use it at once.
    pub shared: bool,
    /// A read is a round trip: worth overlapping with the write that follows it.
    pub remote: bool,
    /// Debt blocks its whole bucket, and a grant reports its balance exactly. Otherwise a hot
    /// bucket may be spread over several shards: debt then blocks the shard it was made on, the
    /// others go on, and what a grant reports is an estimate. The long-run rate holds either way.
    pub whole_buckets: bool,
    /// [`Store::sweep`](crate::Store::sweep) forgets; otherwise the backend's own time to live
    /// does.
    pub sweeps: bool,
    /// Stock can be bought ahead of need:
    /// [`BucketStore::provision`](crate::BucketStore::provision).
    pub lends: bool,
}

impl Capabilities {
    /// The minimum, under this name.
    #[must_use]
    pub const fn minimum(name: &'static str) -> Capabilities {
        Capabilities {
            name,
            exact: false,
            atomic_chains: false,
            immediate_usage: false,
            durable: false,
            shared: false,
            remote: false,
            whole_buckets: false,
            sweeps: false,
            lends: false,
        }
    }
}
