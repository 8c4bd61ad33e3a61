//! Which writer of the registry a write came from, by what it does.

use zae_limiter_dynamodb::table::{Action, Attr, Comparison, Condition, Write};
use zae_limiter_dynamodb::write::{Field, REGISTRY, Writer};

/// The place of a writer in the registry.
pub(crate) fn place(writer: Writer) -> usize {
    REGISTRY.iter().position(|rules| rules.writer == writer).unwrap_or(0)
}

/// True for those that bring every limit to the instant they write.
pub(crate) fn refills(writer: Writer) -> bool {
    use Writer::{BlindFill, ChargeRefill, Refill, Sync, SyncOnly};
    matches!(writer, Refill | BlindFill | Sync | SyncOnly | ChargeRefill)
}

/// True for those that are let through by a gate.
pub(crate) fn takes(writer: Writer) -> bool {
    matches!(
        writer,
        Writer::Fast | Writer::Refill | Writer::BlindFill | Writer::Sync | Writer::Create
    )
}

/// True for those that take or charge.
pub(crate) fn debits(writer: Writer) -> bool {
    use Writer::{ChargeFast, ChargePlain, ChargeRefill, Recreate};
    takes(writer) || matches!(writer, ChargeFast | ChargePlain | ChargeRefill | Recreate)
}

/// Who wrote a bucket, for an operation of the store. `None` when no writer of the registry does
/// such a thing.
pub(crate) fn classify(operation: &str, write: &Write) -> Option<Writer> {
    let charges = operation == "adjust";
    let update = match write {
        Write::Put(_) if charges => return Some(Writer::Recreate),
        Write::Put(_) => return Some(Writer::Create),
        Write::Update(update) => update,
        Write::Delete(_) | Write::Check(_) => return None,
    };
    let writes =
        |field: Field| update.actions.iter().any(|action| Field::of(attr_of(action)) == field);
    let removes = |field: Field| {
        update
            .actions
            .iter()
            .any(|action| matches!(action, Action::Remove(attr) if Field::of(attr) == field))
    };
    if update
        .actions
        .iter()
        .all(|action| matches!(Field::of(attr_of(action)), Field::Disabled | Field::Fv))
    {
        return Some(Writer::Flag);
    }
    if operation == "reset" {
        return Some(Writer::Reset);
    }
    let pins_instant =
        update.conditions.iter().any(|condition| compares(condition, Field::Rf, Comparison::Eq));
    let is_blind =
        update.conditions.iter().any(|condition| compares(condition, Field::Rf, Comparison::Le));
    let reshapes =
        [Field::Cp, Field::Ra, Field::Rp, Field::Ca, Field::Ret, Field::Vu].into_iter().any(writes);
    Some(match (writes(Field::Lw), charges) {
        (false, _) if pins_instant || writes(Field::Rf) => Writer::SyncOnly,
        (false, _) => Writer::Credit,
        (true, true) if removes(Field::Ttl) => Writer::ChargePlain,
        (true, true) if pins_instant || writes(Field::Rf) => Writer::ChargeRefill,
        (true, true) => Writer::ChargeFast,
        (true, false) if !pins_instant && !is_blind => Writer::Fast,
        (true, false) if reshapes => Writer::Sync,
        (true, false) if is_blind => Writer::BlindFill,
        (true, false) => Writer::Refill,
    })
}

/// The nonce a write carries.
pub(crate) fn nonce(write: &Write) -> Option<&str> {
    let value = match write {
        Write::Put(put) => put.item.get("lw"),
        Write::Update(update) => update.actions.iter().find_map(|action| match action {
            Action::Set(attr, value) if attr == "lw" => Some(value),
            _ => None,
        }),
        Write::Delete(_) | Write::Check(_) => None,
    };
    value.and_then(|value| value.as_s().ok()).map(String::as_str)
}

/// The limits whose use a write counts.
pub(crate) fn counted(write: &Write) -> impl Iterator<Item = &str> {
    let actions = if let Write::Update(update) = write { &update.actions[..] } else { &[] };
    actions.iter().filter_map(|action| match action {
        Action::Add(attr, _) => attr.strip_prefix("b_")?.strip_suffix("_tc"),
        _ => None,
    })
}

fn compares(condition: &Condition, field: Field, by: Comparison) -> bool {
    matches!(condition, Condition::Compare(attr, comparison, _) | Condition::CompareNumber(attr, comparison, _) if Field::of(attr) == field && *comparison == by)
}

fn attr_of(action: &Action) -> &Attr {
    match action {
        Action::Set(attr, _)
        | Action::SetIfAbsent(attr, _)
        | Action::Add(attr, _)
        | Action::AddMember(attr, _)
        | Action::DeleteMember(attr, _)
        | Action::Remove(attr) => attr,
    }
}
