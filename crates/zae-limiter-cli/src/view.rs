//! How the library's values look to people. Their JSON forms are the library's own
//! (`zae_limiter::wire`).

use zae_limiter::wire::{Decision, Status};
use zae_limiter::{
    Entity, Flag, Level, LevelConfig, Limit, LimitSource, Resolved, ResolvedMember, ResourceName,
};

use crate::table::{Cell, Fields, Table, Text, Tone};

const TENTH_MS: u64 = 100;
const SECOND_MS: u64 = 1_000;
const MINUTE_MS: u64 = 60 * SECOND_MS;
const HOUR_MS: u64 = 60 * MINUTE_MS;
const DAY_MS: u64 = 24 * HOUR_MS;

/// A wait for people, rounded up: waiting what is printed is always enough. It is rounded before
/// the unit is chosen, so that nobody reads "60.0s".
pub(crate) fn wait(ms: u64) -> String {
    let up = |unit_ms: u64| ms.div_ceil(unit_ms).saturating_mul(unit_ms);
    let two = |rounded: u64, (large_ms, large): (u64, &str), (small_ms, small): (u64, &str)| {
        format!(
            "{}{large} {}{small}",
            rounded.div_euclid(large_ms),
            rounded.rem_euclid(large_ms).div_euclid(small_ms)
        )
    };
    if ms < SECOND_MS {
        format!("{ms}ms")
    } else if up(TENTH_MS) < MINUTE_MS {
        let tenths = ms.div_ceil(TENTH_MS);
        format!("{}.{}s", tenths.div_euclid(10), tenths.rem_euclid(10))
    } else if up(SECOND_MS) < HOUR_MS {
        two(up(SECOND_MS), (MINUTE_MS, "m"), (SECOND_MS, "s"))
    } else if up(MINUTE_MS) < DAY_MS {
        two(up(MINUTE_MS), (HOUR_MS, "h"), (MINUTE_MS, "m"))
    } else {
        two(up(HOUR_MS), (DAY_MS, "d"), (HOUR_MS, "h"))
    }
}

/// An instant for people, to the second.
pub(crate) fn second(rfc3339: &str) -> String {
    match rfc3339.split_once('.') {
        Some((second, _)) => format!("{second}Z"),
        None => rfc3339.to_owned(),
    }
}

/// Every limit that was looked at.
pub(crate) fn statuses(statuses: &[Status]) -> Table {
    let mut table =
        Table::new(["ENTITY", "LIMIT", "CAPACITY:", "AVAILABLE:", "REQUESTED:", "WAIT"]);
    for status in statuses {
        let wait = match (status.exceeded, status.retry_after_ms) {
            (false, _) => Cell::plain("-"),
            (true, Some(ms)) => Cell::toned(wait(ms), Tone::Bad),
            (true, None) => Cell::toned("never", Tone::Bad),
        };
        table.row([
            Cell::plain(&status.entity_id),
            Cell::plain(&status.limit_name),
            Cell::plain(status.capacity),
            Cell::left(status.available),
            Cell::plain(status.requested),
            wait,
        ]);
    }
    table
}

/// Why a request does not pass, and when it could: the limit that takes longest is named.
pub(crate) fn refusal(decision: &Decision) -> String {
    let longest = decision.limits.iter().filter(|status| status.exceeded);
    let longest = longest.max_by_key(|status| status.retry_after_ms.unwrap_or(u64::MAX));
    match (decision.retry_after_ms, longest) {
        (Some(ms), _) if decision.contended => {
            format!("others keep the store busy, try again in {}", wait(ms))
        }
        (Some(ms), Some(status)) => {
            format!("{} of {}, could pass in {}", status.limit_name, status.entity_id, wait(ms))
        }
        (Some(ms), None) => format!("could pass in {}", wait(ms)),
        (None, Some(Status { limit_name, entity_id, capacity, requested, .. })) => {
            format!(
                "{requested} {limit_name} exceeds the capacity of {entity_id} ({capacity}); this request can never be granted"
            )
        }
        (None, None) => "this request can never be granted".to_owned(),
    }
}

/// What is stored at a level.
pub(crate) fn level(level: &Level, config: &LevelConfig) -> Text {
    // Not its version: that is a count of all changes on a file and an instant on a table, and only
    // programs compare it.
    let mut fields = vec![("level", Cell::plain(level))];
    if let Some(policy) = config.on_unavailable {
        fields.push(("on unavailable", Cell::plain(policy)));
    }
    if let Some(flag) = config.flag {
        let cell = match flag {
            Flag::Enabled => Cell::plain("no"),
            flag => self::flag(Some(flag)),
        };
        fields.push(("disabled", cell));
    }
    let mut table = Table::new(["LIMIT", "RATE:", "BURST:"]);
    for limit in config.limits.iter() {
        table.row([
            Cell::plain(limit.name()),
            Cell::plain(rate(limit)),
            Cell::plain(limit.capacity()),
        ]);
    }
    Text::new().fields(fields).table_or(table, "no limits at this level")
}

/// `10000/min` of `tpm:10000/min:15000`.
pub(crate) fn rate(limit: &Limit) -> String {
    limit.to_string().split(':').nth(1).unwrap_or_default().to_owned()
}

/// An entity.
pub(crate) fn entity(entity: &Entity) -> Text {
    Text::new().fields(entity_fields(entity))
}

/// What there is to say about an entity, line by line.
pub(crate) fn entity_fields(entity: &Entity) -> Fields {
    let form = zae_limiter::wire::EntityForm::from(entity);
    let mut fields = vec![
        ("entity", Cell::plain(&form.entity_id)),
        ("name", Cell::plain(&form.name)),
        ("parent", Cell::plain(form.parent_id.as_deref().unwrap_or("-"))),
        ("cascade", Cell::plain(if form.cascade { "yes" } else { "no" })),
        ("created", Cell::plain(&form.created_at)),
        ("version", Cell::plain(form.version)),
    ];
    fields.extend(
        form.metadata
            .iter()
            .map(|(key, value)| ("metadata", Cell::plain(format!("{key}={value}")))),
    );
    fields
}

/// Entities, one per row, with their flags. The name comes last: only there may letters be wide.
/// Where there is no room, when an entity was created and what people call it are left out first.
pub(crate) fn entities(entities: &[(Entity, Option<Flag>)]) -> Table {
    let mut table = Table::new(["ENTITY", "PARENT", "CASCADE", "DISABLED", "CREATED", "NAME"])
        .may_lack(&["CREATED", "NAME"]);
    for (entity, of) in entities {
        let form = zae_limiter::wire::EntityForm::from(entity);
        table.row([
            Cell::plain(&form.entity_id),
            Cell::plain(form.parent_id.as_deref().unwrap_or("-")),
            Cell::plain(if form.cascade { "yes" } else { "no" }),
            flag(*of),
            Cell::plain(second(&form.created_at)),
            Cell::plain(&form.name),
        ]);
    }
    table
}

/// Commands to type next, the first one with a label.
#[cfg(any(feature = "sqlite", feature = "dynamodb"))]
pub(crate) fn next_commands(commands: &[String]) -> Fields {
    let labels = ["try next"].into_iter().chain(std::iter::repeat(""));
    labels.zip(commands.iter().map(Cell::plain)).collect()
}

/// How a flag is shown.
pub(crate) fn tone(flag: Flag) -> Tone {
    if flag.blocks() { Tone::Bad } else { Tone::Plain }
}

/// What a flag says: a level without one inherits.
pub(crate) fn flag(flag: Option<Flag>) -> Cell {
    flag.map_or_else(|| Cell::plain("-"), |flag| Cell::toned(flag_words(flag), tone(flag)))
}

/// The answer of a flag to the question whether it is disabled.
pub(crate) fn flag_words(flag: Flag) -> String {
    let answer = if flag.blocks() { "yes" } else { "no" };
    if flag == Flag::Disabled { answer.to_owned() } else { format!("{answer}, {flag}") }
}

/// A size for people: a tenth of the unit, rounded up.
#[cfg(any(feature = "sqlite", feature = "dynamodb"))]
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [(&str, u64); 4] =
        [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let Some((unit, size)) = UNITS.into_iter().find(|(_, size)| bytes >= *size) else {
        return format!("{bytes} bytes");
    };
    let tenths = (u128::from(bytes) * 10).div_ceil(u128::from(size));
    format!("{}.{} {unit}", tenths.div_euclid(10), tenths.rem_euclid(10))
}

/// Which limits apply to each member of a chain, and where they come from.
pub(crate) fn resolved(resolved: &Resolved, resource: &ResourceName) -> Text {
    let mut table = Table::new(["ENTITY", "LIMIT", "RATE:", "BURST:", "FROM"]);
    for member in &resolved.members {
        if member.limits.is_empty() {
            let entity = member.entity.as_str();
            table.row([entity, "-", "-", "-", "no level"].map(Cell::plain));
        }
        for limit in &member.limits {
            table.row([
                Cell::plain(&member.entity),
                Cell::plain(limit.name()),
                Cell::plain(rate(limit)),
                Cell::plain(limit.capacity()),
                Cell::plain(supplier(member, resource)),
            ]);
        }
    }
    let policy = vec![("on unavailable", Cell::plain(resolved.on_unavailable))];
    let text = Text::new().table(table).fields(policy);
    resolved.members.iter().fold(text, |text, member| match &member.blocked_by {
        Some((flag, level)) => text
            .line(Cell::toned(format!("{} is {flag} at level: {level}", member.entity), Tone::Bad)),
        None => text,
    })
}

/// The level that supplied the limits of a member, by the name an administrator knows it under.
fn supplier(member: &ResolvedMember, resource: &ResourceName) -> String {
    let level = match member.source {
        Some(LimitSource::System) => Level::System,
        Some(LimitSource::Resource) => Level::Resource(resource.clone()),
        Some(LimitSource::Entity) => Level::Entity(member.entity.clone()),
        Some(LimitSource::EntityResource) => {
            Level::EntityResource(member.entity.clone(), resource.clone())
        }
        Some(other) => return other.to_string(),
        None => return "no level".to_owned(),
    };
    level.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_rounded_up() {
        for (ms, expected) in [
            (1, "1ms"),
            (999, "999ms"),
            (1_000, "1.0s"),
            (1_001, "1.1s"),
            (59_900, "59.9s"),
            (59_901, "1m 0s"),
            (60_000, "1m 0s"),
            (60_001, "1m 1s"),
            (3_599_000, "59m 59s"),
            (3_599_001, "1h 0m"),
            (86_340_001, "1d 0h"),
            (8_639_900, "2h 24m"),
            (86_400_000, "1d 0h"),
            (86_400_001, "1d 1h"),
            (u64::MAX, "213503982334d 14h"),
        ] {
            assert_eq!(wait(ms), expected, "{ms}");
        }
    }

    #[cfg(feature = "sqlite")]
    #[test]
    fn sizes_are_rounded_up() {
        for (size, expected) in [
            (0, "0 bytes"),
            (1023, "1023 bytes"),
            (1024, "1.0 KiB"),
            (1025, "1.1 KiB"),
            (4096 * 300, "1.2 MiB"),
            (3 << 30, "3.0 GiB"),
            (u64::MAX, "16777216.0 TiB"),
        ] {
            assert_eq!(bytes(size), expected, "{size}");
        }
    }

    #[test]
    fn a_rate_is_the_middle_of_a_limit() {
        for (text, expected) in
            [("tpm:10000/min:15000", "10000/min"), ("rpm:5", "5/min"), ("x:5/30sec", "5/30sec")]
        {
            assert_eq!(rate(&text.parse().unwrap()), expected);
        }
    }
}
