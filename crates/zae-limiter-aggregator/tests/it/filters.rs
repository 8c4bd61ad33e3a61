//! The filters of the event source mapping, against what our own writers leave in a stream.

use serde_json::{Value, json};
use zae_limiter_aggregator::filters;

use crate::engine::World;

/// Whether an event matches a pattern, by the rules of event filtering: every field of the pattern
/// must be there, with one of the values of its list.
fn matches(pattern: &Value, event: &Value) -> bool {
    match (pattern, event) {
        (Value::Object(fields), Value::Object(values)) => fields
            .iter()
            .all(|(name, pattern)| values.get(name).is_some_and(|value| matches(pattern, value))),
        (Value::Array(choices), value) => choices.iter().any(|choice| match choice {
            Value::Object(rule) => {
                let prefix = rule.get("prefix").and_then(Value::as_str);
                prefix.zip(value.as_str()).is_some_and(|(prefix, text)| text.starts_with(prefix))
            }
            plain => plain == value,
        }),
        _ => false,
    }
}

/// Whether Lambda is given an event.
pub(crate) fn is_delivered(event: &Value) -> bool {
    filters().iter().any(|filter| matches(filter, event))
}

/// The pattern of the Python package: no key of a table begins like this.
#[test]
fn a_pattern_can_miss() {
    let event = json!({ "dynamodb": { "Keys": { "PK": { "S": "ns/AUDIT#a" } } } });
    let python = json!({ "dynamodb": { "Keys": { "PK": { "S": [{ "prefix": "AUDIT#" }] } } } });
    assert!(!matches(&python, &event));
    let better = json!({ "dynamodb": { "Keys": { "PK": { "S": [{ "prefix": "ns/AUDIT#" }] } } } });
    assert!(matches(&better, &event));
}

#[tokio::test]
async fn the_filter_matches_what_we_write() {
    let world = World::new().await;
    world.take("user", 5).await;
    world.take("user", 5).await;
    world.aggregate().await;
    world.sweep_all();
    let mut seen = std::collections::BTreeMap::<String, (usize, usize)>::new();
    for event in world.records() {
        let sort = event["dynamodb"]["Keys"]["SK"]["S"].as_str().unwrap();
        let kind = event["eventName"].as_str().unwrap();
        let what = sort.split('#').nth(1).unwrap();
        let (delivered, not) = seen.entry(format!("{what} {kind}")).or_default();
        if is_delivered(&event) {
            *delivered += 1;
        } else {
            *not += 1;
        }
    }
    let of = |what: &str| seen.get(what).copied().unwrap_or_default();
    assert_eq!(of("STATE INSERT"), (1, 0));
    assert_eq!(of("STATE MODIFY"), (1, 0));
    assert!(of("AUDIT REMOVE").0 > 0 && of("AUDIT REMOVE").1 == 0, "{seen:?}");
    for what in ["AUDIT INSERT", "USAGE INSERT", "USAGE MODIFY", "CONFIG INSERT"] {
        assert_eq!(of(what).0, 0, "{what}: {seen:?}");
    }
    assert!(of("USAGE INSERT").1 > 0 && of("AUDIT INSERT").1 > 0, "{seen:?}");

    // An administrator who deletes an event by hand does not archive it.
    let mut by_hand = world
        .records()
        .into_iter()
        .find(|event| event["eventName"] == "REMOVE" && event["userIdentity"].is_object())
        .unwrap();
    by_hand.as_object_mut().unwrap().remove("userIdentity");
    assert!(!is_delivered(&by_hand));
}
