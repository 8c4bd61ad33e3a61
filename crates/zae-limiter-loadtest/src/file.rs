//! Scenarios of TOML files.

use std::time::Duration;

use serde::Deserialize;
use zae_limiter::{Limit, ResourceName};

use crate::builtin::Plan;
use crate::scenario::{Pacing, ScenarioError};

/// The longest name of a scenario.
const NAME_BYTES_MAX: usize = 100;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    name: Option<String>,
    /// Milliseconds between two calls of a user; without, a closed loop.
    every_ms: Option<u64>,
    resource: Option<String>,
    limits: Vec<String>,
    take: toml::Table,
    cost_pct: Option<[u64; 2]>,
    hold_ms: Option<[u64; 2]>,
    #[serde(default)]
    cascade: bool,
    users_per_entity: Option<u32>,
}

/// The scenario of a file; `stem` is its name unless the file says another.
pub fn parse(text: &str, stem: &str) -> Result<Plan, ScenarioError> {
    let form: Form = toml::from_str(text).map_err(|error| ScenarioError(error.to_string()))?;
    let wrong = |field: &str, value: &dyn std::fmt::Display, fix: &str| {
        ScenarioError(format!("{field}: {value}: {fix}"))
    };
    let name = form.name.unwrap_or_else(|| stem.to_owned());
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
        return Err(wrong("name", &format!("{name:?}"), "write a word of 1 to 100 characters"));
    }
    let mut plan = Plan::new(name);
    plan.pacing = match form.every_ms {
        None => Pacing::ClosedLoop,
        Some(0) => return Err(wrong("every_ms", &0, "write 1 or more; without it: a closed loop")),
        Some(ms) => Pacing::Every(Duration::from_millis(ms)),
    };
    if let Some(resource) = form.resource {
        if let Err(error) = resource.parse::<ResourceName>() {
            return Err(wrong("resource", &resource, &error.to_string()));
        }
        plan.resource = resource;
    }
    let limit = |text: &String| -> Result<Limit, ScenarioError> {
        text.parse().map_err(|error| wrong("limits", text, &format!("{error}")))
    };
    plan.limits = form.limits.iter().map(limit).collect::<Result<_, _>>()?;
    plan.take.clear();
    for (name, tokens) in form.take {
        let tokens = tokens.as_integer().and_then(|tokens| u64::try_from(tokens).ok());
        let tokens =
            tokens.ok_or_else(|| wrong("take", &name, "write a whole number of tokens"))?;
        if !plan.limits.iter().any(|limit| limit.name() == name.as_str()) {
            return Err(wrong("take", &name, "no line of `limits` has this name"));
        }
        plan.take.push((name, tokens));
    }
    if plan.take.is_empty() {
        return Err(wrong("take", &"{}", "name at least one limit, as in { rpm = 1 }"));
    }
    let span = |field: &str, span: Option<[u64; 2]>| match span {
        Some([from, to]) if from > to => {
            Err(wrong(field, &format!("[{from}, {to}]"), "write the smaller one first"))
        }
        span => Ok(span.map(|[from, to]| (from, to))),
    };
    plan.cost_pct = span("cost_pct", form.cost_pct)?;
    if let Some((from, to)) = span("hold_ms", form.hold_ms)? {
        plan.hold = (Duration::from_millis(from), Duration::from_millis(to));
    }
    plan.cascade = form.cascade;
    match form.users_per_entity {
        Some(0) => return Err(wrong("users_per_entity", &0, "write 1 or more")),
        Some(users) => plan.users_per_entity = users,
        None => {}
    }
    Ok(plan)
}
