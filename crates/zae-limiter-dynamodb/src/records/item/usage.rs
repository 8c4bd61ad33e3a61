//! Usage snapshots, as both products write them.
//!
//! | | key of the window | counters |
//! |---|---|---|
//! | ours | `2026-01-01T14:00:00Z`, `2026-01-01`, `2026-01` | `{limit}#m`: millitokens; `{limit}`: whole tokens, for the Python package |
//! | Python's | `…T14:00:00Z`, `…T00:00:00Z`, `…-01T00:00:00Z` and the attribute `window` | `{limit}`: whole tokens |
//!
//! Other attributes of ours must contain a `#` or begin with `_`, which no limit does. A limit that
//! is called like an attribute of the item (`ttl`) is counted under `u_ttl` and told under that
//! name: this version does not accept the name.

use std::collections::BTreeMap;

use aws_sdk_dynamodb::types::AttributeValue;
use zae_limiter_core::{
    EntityId, LimitName, Milli, ResourceName, TimeMs, UsageWindow, parse_rfc3339,
};
use zae_limiter_store::StoreError;

use super::{attr, corrupt, integer_of, name_in, required_text, text_of};
use crate::table::Item;

const WINDOW: &str = "window";
const EVENTS: &str = "total_events";
/// What follows the name of a limit in the attribute with its exact sum.
const MILLI: &str = "#m";

/// What the key of a snapshot says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// When the window began.
    pub(crate) start: TimeMs,
    /// How long it is, if the key alone says it.
    pub(crate) window: Option<UsageWindow>,
}

impl Shape {
    /// True when the window may be of this kind.
    pub(crate) fn may_be(self, window: UsageWindow) -> bool {
        match self.window {
            Some(known) => known == window,
            None => window.start_of(self.start) == self.start,
        }
    }
}

/// Reads the key of a window.
pub(crate) fn shape_of(key: &str) -> Option<Shape> {
    let (text, window) = match key.len() {
        7 => (format!("{key}-01"), Some(UsageWindow::Monthly)),
        10 => (key.to_owned(), Some(UsageWindow::Daily)),
        _ => (key.to_owned(), None),
    };
    let start = parse_rfc3339(&text).ok()?;
    // Only an hour that is not midnight can be nothing but an hour.
    let hourly = window.is_none() && UsageWindow::Daily.start_of(start) != start;
    Some(Shape { start, window: if hourly { Some(UsageWindow::Hourly) } else { window } })
}

/// A snapshot as stored.
pub(crate) struct UsageItem {
    pub(crate) entity: EntityId,
    pub(crate) resource: ResourceName,
    pub(crate) window: UsageWindow,
    pub(crate) counters: BTreeMap<LimitName, Milli>,
    pub(crate) events: u64,
}

/// Reads a snapshot.
pub(crate) fn usage_item(item: &Item, shape: Shape) -> Result<UsageItem, StoreError> {
    let window = match text_of(item, WINDOW) {
        Some(word) => word.parse().map_err(|error| corrupt(item, WINDOW, error))?,
        None => shape.window.unwrap_or(UsageWindow::Hourly),
    };
    let mut counters = BTreeMap::new();
    for (attribute, value) in item {
        let AttributeValue::N(digits) = value else { continue };
        let (name, exact) = match attribute.strip_suffix(MILLI) {
            Some(name) => (name, true),
            None => (attribute.as_str(), false),
        };
        // Whatever else is there counts something else: events, expiry, marks of the aggregator.
        let Ok(limit) = name.parse::<LimitName>() else { continue };
        let amount = if exact { super::whole_number(digits).map(Milli) } else { milli_of(digits) };
        let amount = amount.ok_or_else(|| {
            corrupt(item, attribute, format_args!("says {digits}, which is no amount"))
        })?;
        if exact || !item.contains_key(&format!("{name}{MILLI}")) {
            counters.insert(limit, amount);
        }
    }
    Ok(UsageItem {
        entity: name_in(item, attr::ENTITY_ID, required_text(item, attr::ENTITY_ID)?)?,
        resource: name_in(item, attr::RESOURCE, required_text(item, attr::RESOURCE)?)?,
        window,
        counters,
        events: integer_of(item, EVENTS).and_then(|events| u64::try_from(events).ok()).unwrap_or(0),
    })
}

/// Tokens as text, up to three decimals, in millitokens.
fn milli_of(digits: &str) -> Option<Milli> {
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let fraction = fraction.trim_end_matches('0');
    if fraction.len() > 3 || !fraction.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let negative = whole.starts_with('-');
    let thousandths: i64 = format!("{fraction:0<3}").parse().ok()?;
    let whole: i64 = if matches!(whole, "" | "-") { 0 } else { whole.parse().ok()? };
    let milli = whole.checked_mul(1_000)?;
    Some(Milli(if negative {
        milli.checked_sub(thousandths)?
    } else {
        milli.checked_add(thousandths)?
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_both_products_are_read() {
        let start = |text| parse_rfc3339(text).expect("a valid time");
        for (key, at, windows) in [
            ("2026-01-01T14:00:00Z", "2026-01-01T14:00:00Z", vec![UsageWindow::Hourly]),
            ("2026-01-02T00:00:00Z", "2026-01-02", vec![UsageWindow::Hourly, UsageWindow::Daily]),
            ("2026-01-01T00:00:00Z", "2026-01-01", UsageWindow::ALL.to_vec()),
            ("2026-01-01", "2026-01-01", vec![UsageWindow::Daily]),
            ("2026-01", "2026-01-01", vec![UsageWindow::Monthly]),
        ] {
            let shape = shape_of(key).expect(key);
            assert_eq!(shape.start, start(at), "{key}");
            assert_eq!(
                UsageWindow::ALL
                    .into_iter()
                    .filter(|window| shape.may_be(*window))
                    .collect::<Vec<_>>(),
                windows,
                "{key}"
            );
        }
        for key in ["", "2026", "2026-13", "x", "2026-01-01T", "##"] {
            assert_eq!(shape_of(key), None, "{key}");
        }
        for window in UsageWindow::ALL {
            let at = window.start_of(start("2026-07-14T15:16:17Z"));
            assert_eq!(shape_of(&window.key(at)), Some(Shape { start: at, window: Some(window) }));
        }
    }

    #[test]
    fn amounts_are_read_to_the_millitoken() {
        for (digits, milli) in [
            ("5", 5_000),
            ("-5", -5_000),
            ("0.5", 500),
            ("-0.5", -500),
            ("12.345", 12_345),
            ("7.000", 7_000),
            ("-.25", -250),
            ("1.10", 1_100),
        ] {
            assert_eq!(milli_of(digits), Some(Milli(milli)), "{digits}");
        }
        for digits in ["0.0001", "x", "1.x", "9223372036854775807"] {
            assert_eq!(milli_of(digits), None, "{digits}");
        }
    }
}
