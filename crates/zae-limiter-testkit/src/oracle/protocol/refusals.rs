//! A refusal after all shards of a bucket were read is the truth about the whole bucket: at some
//! moment from the read to the end of the call its shards had less together than was asked.

use std::collections::BTreeMap;

use zae_limiter_core::Wait;
use zae_limiter_store::ConsumeOutcome;

use super::ledger::Amounts;
use crate::oracle::Broken;
use crate::oracle::books::{Asked, Call as StoreCall, CallId, State, Told};

/// What a bucket had when a call read all of its shards.
#[derive(Debug, Default)]
struct Reads {
    /// All shards together, in whole millitokens: once per read, and after each write that landed
    /// meanwhile.
    sums: Vec<Amounts>,
    /// Some shards were seen at another moment than the others: the table kept keys back, or a
    /// transaction that was cancelled has brought newer images.
    is_torn: bool,
}

/// The reads of all calls, by call and entity.
#[derive(Debug, Default)]
pub(crate) struct Gathered(BTreeMap<(CallId, String), Reads>);

/// How often what was seen.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Verified {
    /// Refusals after a read of all shards.
    pub(crate) refusals: u64,
    /// Limits held to what the shards had.
    pub(crate) proven: u64,
}

impl Gathered {
    /// A call has read all shards of a bucket, which had so much together.
    pub(crate) fn read(&mut self, id: CallId, entity: &str, sum: Amounts, is_torn: bool) {
        let reads = self.0.entry((id, entity.to_owned())).or_default();
        reads.sums.push(sum);
        reads.is_torn |= is_torn;
    }

    /// A bucket has so much now: calls that have read all of its shards, and are not over, may be
    /// refused because of that.
    pub(crate) fn landed(&mut self, state: &State, entity: &str, sum: impl Fn() -> Amounts) {
        let open = self.0.iter_mut().filter(|((id, of), reads)| {
            of == entity && state.calls[*id].told.is_none() && !reads.is_torn
        });
        open.for_each(|(_, reads)| reads.sums.push(sum()));
    }

    /// A call has seen some shards again.
    pub(crate) fn tear(&mut self, id: CallId, entity: &str) {
        if let Some(reads) = self.0.get_mut(&(id, entity.to_owned())) {
            reads.is_torn = true;
        }
    }

    /// Holds every refusal to what was there.
    pub(crate) fn check(&self, state: &State) -> Result<Verified, Broken> {
        let mut verified = Verified::default();
        let mut last = None;
        for ((id, entity), reads) in &self.0 {
            let call = &state.calls[*id];
            let Some(short) = refused(call, entity) else { continue };
            verified.refusals += u64::from(last.replace(*id) != Some(*id));
            if reads.is_torn {
                continue;
            }
            for (name, milli) in short {
                let is_short = |sum: &Amounts| sum.get(&name).is_none_or(|had| *had < milli);
                if !reads.sums.iter().any(is_short) {
                    return Err(format!(
                        "call {id} of client {} was refused {milli} milli of {name} by {entity}, which had {:?}",
                        call.client, reads.sums
                    ));
                }
                verified.proven += 1;
            }
        }
        Ok(verified)
    }
}

/// What a call was refused by a bucket: limits that were short, with the amounts asked. `None` when
/// it was not refused at all.
fn refused(call: &StoreCall, entity: &str) -> Option<Vec<(String, i128)>> {
    let (Asked::Consume { members }, Some(Told::Decision(ConsumeOutcome::Refused(reports)))) =
        (&call.asked, &call.told)
    else {
        return None;
    };
    // More than the caller's capacity never passes, whatever is there.
    let short = reports.iter().filter(|report| matches!(report.wait, Wait::After(_)));
    let short = short.filter_map(|report| {
        let member = members.get(usize::from(report.member))?;
        let name = member.limits.get(usize::from(report.limit))?;
        let is_ours = member.entity.as_str() == entity;
        is_ours.then(|| (name.clone(), i128::from(report.requested.0)))
    });
    Some(short.collect())
}
