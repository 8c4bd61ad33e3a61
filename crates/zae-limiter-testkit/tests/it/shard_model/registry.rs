//! The writers of the model, by the names they have in the registry of the product.

/// Who writes a step of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Writer {
    /// Takes without refilling; a leg of a gather too.
    Fast,
    /// Refills every limit and takes; a leg of a gather too.
    Refill,
    /// Takes from a shard that is full whatever its last refill was.
    BlindFill,
    /// Refills and changes parameters.
    Sync,
    /// Makes shard 0.
    Create,
    /// Charges after the fact and refills.
    ChargeRefill,
    /// Gives back.
    Credit,
    /// The donor's leg of a split.
    Split,
    /// The child's leg of a split.
    SplitChild,
    /// The leg of shard 0 of a fold.
    Fold,
    /// The legs of the other shards of a fold.
    FoldChild,
    /// Makes a shard that a stranger has announced and not made.
    Repair,
    /// Disables a shard.
    Flag,
    /// Deletes a shard: with its bucket, or an orphan.
    Delete,
}

/// The part of a writer of the product in this model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Steps of the model are written by this one.
    Step(Writer),
    /// None, in the words of `docs/protocol-model.md`.
    LeftOut(&'static str),
}

/// What the model does of a writer of the product, by its name in the registry. `None` for a name
/// that nobody has thought about.
pub(crate) fn part_of(name: &str) -> Option<Part> {
    let part = match name {
        "Fast" => Part::Step(Writer::Fast),
        "Refill" => Part::Step(Writer::Refill),
        "BlindFill" => Part::Step(Writer::BlindFill),
        "SyncOnly" => Part::Step(Writer::Sync),
        "Create" => Part::Step(Writer::Create),
        "ChargeRefill" => Part::Step(Writer::ChargeRefill),
        "Credit" => Part::Step(Writer::Credit),
        "Split" => Part::Step(Writer::Split),
        "SplitChild" => Part::Step(Writer::SplitChild),
        "Fold" => Part::Step(Writer::Fold),
        "FoldChild" => Part::Step(Writer::FoldChild),
        "Repair" => Part::Step(Writer::Repair),
        "Flag" => Part::Step(Writer::Flag),
        "Delete" => Part::Step(Writer::Delete),
        "Sync" => Part::LeftOut("a take inside a parameter write"),
        "ChargeFast" | "ChargePlain" | "Recreate" => Part::LeftOut("the other forms of a charge"),
        "Reset" => Part::LeftOut("a reset"),
        "AggregatorRefill" => Part::LeftOut("the aggregator's refill"),
        _ => return None,
    };
    Some(part)
}
