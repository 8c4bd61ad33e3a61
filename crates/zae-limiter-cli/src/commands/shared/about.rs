//! What an answer says about the entity and the resource of its decision: a typo is granted by
//! defaults like any other name.

use serde::Serialize;
use zae_limiter::wire::Decision;
use zae_limiter::{EntityId, LimitSource, PageRequest, RateLimiter, Request, ResourceName};

use crate::args::value::Amount;
use crate::context::Context;
use crate::exit::Exit;

/// How many resources a name is compared with.
const RESOURCES_MAX: u32 = 200;
/// How many letters a typo gets wrong at most.
const TYPO_MAX: usize = 2;

/// A decision, and where the limits it was made by come from.
#[derive(Serialize)]
pub(crate) struct Form {
    #[serde(flatten)]
    pub(crate) decision: Decision,
    /// The level that supplied the limits of the entity; null when it is not known.
    source: Option<&'static str>,
    /// Whether the entity was created; null when it is not known.
    created: Option<bool>,
}

/// The exit code that says the same as a decision.
pub(crate) fn exit(decision: &Decision) -> Exit {
    match decision {
        Decision { granted: true, .. } => Exit::Ok,
        Decision { contended: true, .. } => Exit::Busy,
        _ => Exit::Refused,
    }
}

/// Who asks, and for what.
pub(crate) struct Asker<'a> {
    pub(crate) entity: &'a EntityId,
    pub(crate) resource: &'a ResourceName,
    /// Limits were given with the call.
    pub(crate) brings_limits: bool,
}

impl Asker<'_> {
    /// What the library is asked for these amounts.
    pub(crate) fn request(&self, consume: &[Amount]) -> Request {
        let request = Request::new(self.entity.clone(), self.resource.clone());
        consume
            .iter()
            .fold(request, |request, amount| request.take(amount.limit.clone(), amount.tokens))
    }
}

impl Form {
    /// Looks up what there is to know. The decision stands, so a store that cannot tell changes
    /// nothing. Says aloud what looks like a typo.
    pub(crate) async fn new(
        context: &Context<'_>,
        limiter: &RateLimiter,
        asker: &Asker<'_>,
        decision: Decision,
    ) -> Form {
        let Asker { entity, resource, brings_limits } = *asker;
        if decision.degraded {
            return Form { decision, source: None, created: None };
        }
        let source = match brings_limits {
            true => Some(LimitSource::Call),
            false => limiter
                .resolve(entity.clone(), resource.clone())
                .await
                .ok()
                .and_then(|resolved| resolved.members.first()?.source),
        };
        let created = limiter.entity(entity.clone()).await.ok().map(|found| found.is_some());
        if created == Some(false) {
            context.printer.note(&format!(
                "{entity} is not a created entity; its limits come from {}",
                words(source, resource)
            ));
        }
        if matches!(source, Some(LimitSource::System | LimitSource::Entity))
            && let Some(meant) = meant(limiter, resource).await
        {
            context.printer.note(&format!(
                "{resource} has no limits of its own; is {meant} meant, which has?"
            ));
        }
        Form { decision, source: source.map(LimitSource::as_str), created }
    }
}

fn words(source: Option<LimitSource>, resource: &ResourceName) -> String {
    match source {
        Some(LimitSource::Call) => "this call".to_owned(),
        Some(LimitSource::Resource) => format!("resource {resource}"),
        Some(LimitSource::System) => "the system defaults".to_owned(),
        Some(LimitSource::Entity | LimitSource::EntityResource) => {
            "what is stored for this name".to_owned()
        }
        _ => "no level".to_owned(),
    }
}

/// A resource with limits of its own whose name is nearly the one that was typed.
pub(crate) async fn meant(limiter: &RateLimiter, typed: &ResourceName) -> Option<ResourceName> {
    let known =
        limiter.resources_with_defaults(&PageRequest::first(RESOURCES_MAX)).await.ok()?.items;
    if known.contains(typed) {
        return None;
    }
    known.into_iter().find(|known| is_typo(typed.as_str(), known.as_str()))
}

/// True for names that differ in few letters, most of them being the same.
fn is_typo(typed: &str, known: &str) -> bool {
    let distance = strsim::levenshtein(&typed.to_lowercase(), &known.to_lowercase());
    distance <= TYPO_MAX && distance * 3 <= known.len()
}

#[cfg(test)]
mod tests {
    use strsim::levenshtein as distance;

    use super::*;

    #[test]
    fn typos_are_near() {
        for (typed, known, near) in [
            ("gpt4", "gpt-4", true),
            ("GPT-4", "gpt-4", true),
            ("gpt-4o", "gpt-4", true),
            ("embed", "gpt-4", false),
            ("a", "b", false),
        ] {
            assert_eq!(is_typo(typed, known), near, "{typed} {known}");
        }
        assert_eq!(
            (distance("", "abc"), distance("kitten", "sitting"), distance("x", "x")),
            (3, 3, 0)
        );
    }
}
