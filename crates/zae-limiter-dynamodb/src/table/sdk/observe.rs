//! Watching the calls: what was sent and what it cost. For tests, benchmarks and bills; without an
//! observer nothing is asked for or computed.

use std::sync::{Mutex, MutexGuard, PoisonError};

use aws_sdk_dynamodb::types::ConsumedCapacity;

use crate::table::TableError;

/// Told about every call once it has ended.
pub trait Observer: Send + Sync {
    /// A call has ended.
    fn called(&self, call: &Call);
}

/// One call that has ended.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Call {
    /// The operation as DynamoDB calls it, such as `UpdateItem`.
    pub operation: &'static str,
    /// The word for how it failed; `None` when it did not.
    pub failure: Option<&'static str>,
    /// Read units, as the answer says; a failed call says nothing.
    pub read_units: f64,
    /// Write units including those of the indexes, as the answer says; a failed call says nothing
    /// although a failed condition is billed.
    pub write_units: f64,
    /// The part of the units above that was spent on indexes.
    pub index_units: f64,
}

/// An [`Observer`] that remembers everything.
#[derive(Debug, Default)]
pub struct CallLog {
    calls: Mutex<Vec<Call>>,
}

impl CallLog {
    /// An empty log.
    #[must_use]
    pub fn new() -> CallLog {
        CallLog::default()
    }

    fn calls(&self) -> MutexGuard<'_, Vec<Call>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was called since the last time, in the order the calls ended.
    pub fn take(&self) -> Vec<Call> {
        std::mem::take(&mut *self.calls())
    }

    /// The operations called since the log was last taken, in the order they ended.
    #[must_use]
    pub fn operations(&self) -> Vec<&'static str> {
        self.calls().iter().map(|call| call.operation).collect()
    }

    /// The write units of the calls since the log was last taken.
    #[must_use]
    pub fn write_units(&self) -> f64 {
        self.calls().iter().map(|call| call.write_units).sum()
    }

    /// The read units of the calls since the log was last taken.
    #[must_use]
    pub fn read_units(&self) -> f64 {
        self.calls().iter().map(|call| call.read_units).sum()
    }
}

impl Observer for CallLog {
    fn called(&self, call: &Call) {
        self.calls().push(call.clone());
    }
}

/// Which units an operation spends where the answer does not tell them apart.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Spends {
    Reads,
    Writes,
}

pub(super) fn call(
    operation: &'static str,
    spends: Spends,
    error: Option<&TableError>,
    capacity: &[ConsumedCapacity],
) -> Call {
    let mut call = Call {
        operation,
        failure: error.map(word),
        read_units: 0.0,
        write_units: 0.0,
        index_units: 0.0,
    };
    for consumed in capacity {
        // Only transactions tell reads from writes.
        match (consumed.read_capacity_units, consumed.write_capacity_units) {
            (None, None) if spends == Spends::Reads => {
                call.read_units += consumed.capacity_units.unwrap_or_default()
            }
            (None, None) => call.write_units += consumed.capacity_units.unwrap_or_default(),
            (reads, writes) => {
                call.read_units += reads.unwrap_or_default();
                call.write_units += writes.unwrap_or_default();
            }
        }
        let indexes = consumed
            .global_secondary_indexes
            .iter()
            .chain(&consumed.local_secondary_indexes)
            .flat_map(|indexes| indexes.values());
        call.index_units += indexes.filter_map(|capacity| capacity.capacity_units).sum::<f64>();
    }
    call
}

fn word(error: &TableError) -> &'static str {
    match error {
        TableError::Condition(_) => "condition",
        TableError::Canceled(_) => "canceled",
        TableError::NotApplied(_) => "not_applied",
        TableError::Unreachable(_) => "unreachable",
        TableError::Unknown(_) => "unknown",
        TableError::Denied(_) => "denied",
        TableError::NoTable(_) => "no_table",
        TableError::Rejected(_) => "rejected",
    }
}
