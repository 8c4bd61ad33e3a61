//! What the writers of the registry do.

use zae_limiter_dynamodb::bucket::writers::{REGISTRY, Writer};

/// The place of a writer in the registry.
pub(crate) fn place(writer: Writer) -> usize {
    REGISTRY.iter().position(|rules| rules.writer == writer).unwrap_or(0)
}

/// True for writers that refill every limit up to the instant they write.
pub(crate) fn refills(writer: Writer) -> bool {
    use Writer::{AggregatorRefill, BlindFill, ChargeRefill, Refill, Sync, SyncOnly};
    matches!(writer, Refill | BlindFill | Sync | SyncOnly | ChargeRefill | AggregatorRefill)
}

/// True for writers that take, and so demand that no limit is short.
pub(crate) fn takes(writer: Writer) -> bool {
    matches!(
        writer,
        Writer::Fast | Writer::Refill | Writer::BlindFill | Writer::Sync | Writer::Create
    )
}

/// True for writers that take or charge.
pub(crate) fn debits(writer: Writer) -> bool {
    use Writer::{ChargeFast, ChargePlain, ChargeRefill, Recreate};
    takes(writer) || matches!(writer, ChargeFast | ChargePlain | ChargeRefill | Recreate)
}
