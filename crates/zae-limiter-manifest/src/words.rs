//! Limits, entities and what a change does to buckets, in words.

use std::collections::BTreeMap;

use zae_limiter::{EntityId, Limit, OnUnavailable};

pub(crate) fn in_words(limits: &[Limit], policy: Option<OnUnavailable>) -> Option<String> {
    let mut words: Vec<String> = limits.iter().map(ToString::to_string).collect();
    words.extend(policy.map(|policy| format!("on_unavailable {policy}")));
    (!words.is_empty()).then(|| words.join(" "))
}

pub(crate) fn entity_words(
    name: &str,
    parent: Option<&EntityId>,
    cascade: bool,
    metadata: &BTreeMap<String, String>,
) -> String {
    let mut words = vec![format!("name {name:?}")];
    words.extend(parent.map(|parent| format!("parent {parent}")));
    words.extend(cascade.then(|| "cascade".to_owned()));
    words.extend(metadata.iter().map(|(key, value)| format!("{key}={value:?}")));
    words.join(", ")
}

pub(crate) fn effect_of_limits(before: &[Limit], after: &[Limit]) -> String {
    if before.is_empty() {
        return "buckets that stronger levels do not decide follow with their next call; a limit \
                that a bucket did not have starts full"
            .to_owned();
    }
    let mut parts = Vec::new();
    for limit in after {
        let name = limit.name();
        match before.iter().find(|before| before.name() == name) {
            None => parts.push(format!("{name} is new and starts full")),
            Some(old) if old == limit => {}
            Some(old) if limit.capacity() < old.capacity() => {
                parts.push(format!("{name}: a balance above {} is cut", limit.capacity()));
            }
            Some(old) if limit.capacity() > old.capacity() => {
                parts.push(format!("{name}: balances stay, and refill up to {}", limit.capacity()));
            }
            Some(_) => parts.push(format!("{name}: balances stay, and refill at the new rate")),
        }
    }
    for old in before {
        if after.iter().all(|limit| limit.name() != old.name()) {
            parts.push(format!("{} no longer limits, and is remembered for a while", old.name()));
        }
    }
    if parts.is_empty() { "no bucket changes".to_owned() } else { parts.join("; ") }
}
