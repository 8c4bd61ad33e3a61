//! The writers of the product's registry, and what the model does of each.

use zae_limiter_dynamodb::bucket::writers::Writer;

/// The part of a writer in this model.
pub(crate) enum Part {
    /// Actions of the model are its writes.
    Step,
    /// None, in the words of `docs/protocol-model.md`.
    LeftOut(&'static str),
}

/// What the model does of a writer. There is no wildcard: a new writer of the registry does not
/// compile before the model says what becomes of it.
pub(crate) fn part_of(writer: Writer) -> Part {
    match writer {
        // Takes, each on one shard; `Fast` and `Refill` are the legs of a gather too.
        Writer::Fast | Writer::Refill | Writer::BlindFill => Part::Step,
        // `Sync`, `Create`, `Charge`, `Credit`, `Flag` and `Delete`.
        Writer::SyncOnly
        | Writer::Create
        | Writer::ChargeRefill
        | Writer::Credit
        | Writer::Flag
        | Writer::Delete => Part::Step,
        // The two legs of `Split`, and of `Repair`: a split that raises no count.
        Writer::Split | Writer::SplitChild => Part::Step,
        // The legs of `Fold`, and `RemoveOrphan`.
        Writer::Fold | Writer::FoldChild | Writer::Prune => Part::Step,
        Writer::Sync => Part::LeftOut("a take inside a parameter write"),
        Writer::ChargeFast | Writer::ChargePlain | Writer::Recreate => {
            Part::LeftOut("the other forms of a charge")
        }
        Writer::Reset => Part::LeftOut("a reset"),
        Writer::AggregatorRefill => Part::LeftOut("the aggregator's refill"),
        // A bucket with shards does not lend.
        Writer::Lend | Writer::Settle | Writer::CountUse => {
            Part::LeftOut("loans to local blocks (a model and a simulator of their own)")
        }
        Writer::Adopt => Part::LeftOut("a bucket of another store (as `Recreate` makes it)"),
    }
}
