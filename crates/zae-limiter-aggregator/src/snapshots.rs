//! One snapshot of usage: written until the table has answered.

use std::sync::Arc;

use zae_limiter_dynamodb::stream::{TableError, counted_up_to};

use crate::aggregator::{Aggregator, is_passing};
use crate::fold::{Counted, Use, sum};

/// What became of the records of one snapshot.
#[derive(Debug)]
pub(crate) struct Written<'a> {
    /// Those that this write has counted.
    pub(crate) counted: usize,
    /// Those that were counted before.
    pub(crate) repeated: usize,
    /// Why the rest is not counted.
    pub(crate) left: Option<Left<'a>>,
}

/// Records that were not counted.
#[derive(Debug)]
pub(crate) struct Left<'a> {
    pub(crate) uses: Vec<&'a Arc<Use>>,
    pub(crate) error: TableError,
}

impl Aggregator {
    /// Counts records in a snapshot. After an answer that the condition failed, the image says
    /// which records were counted before; the rest is sent again. Without an answer the same is
    /// sent again.
    pub(crate) async fn count<'a>(&self, counted: &'a Counted, expires_s: i64) -> Written<'a> {
        let mut open: Vec<&Arc<Use>> = counted.uses.iter().collect();
        let mut image = None;
        let mut attempt = 0;
        loop {
            let write = sum(open.iter().map(|one| &***one), expires_s);
            let update = write.update(&counted.snapshot, image.as_ref());
            let error = match self.table.update(&update).await {
                Ok(_) => {
                    let repeated = counted.uses.len() - open.len();
                    return Written { counted: open.len(), repeated, left: None };
                }
                Err(TableError::Condition(found)) => {
                    let found = match found {
                        Some(found) => Some(found),
                        // Some tables do not say what stood in the way.
                        None => match self.read_all(vec![update.key.clone()]).await {
                            Ok(items) => items.into_iter().next(),
                            Err(error) => {
                                let repeated = counted.uses.len() - open.len();
                                let left = Some(Left { uses: open, error });
                                return Written { counted: 0, repeated, left };
                            }
                        },
                    };
                    if let Some(found) = &found {
                        open.retain(|one| {
                            counted_up_to(found, one.shard).is_none_or(|last| *one.number > *last)
                        });
                    }
                    if open.is_empty() {
                        let repeated = counted.uses.len();
                        return Written { counted: 0, repeated, left: None };
                    }
                    image = found;
                    TableError::NotApplied("others keep writing the snapshot".to_owned())
                }
                Err(error) => error,
            };
            attempt += 1;
            if !is_passing(&error) || attempt >= self.attempts_max {
                let repeated = counted.uses.len() - open.len();
                return Written { counted: 0, repeated, left: Some(Left { uses: open, error }) };
            }
            self.back_off(attempt).await;
        }
    }
}
