//! One request value, the same everywhere: acquire, availability, blocking, CLI.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use zae_limiter_core::{
    EntityId, IntoName, Limit, LimitName, Milli, ResourceName, TOKENS_MAX, check_limits,
};
use zae_limiter_store::OnUnavailable;

use super::plan::Amounts;
use crate::Invalid;

/// The end of a lease that is dropped without `commit` or `rollback`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnDrop {
    /// Give everything back, as a dropped transaction does.
    #[default]
    Rollback,
    /// Settle what was recorded. For streams: the tokens of a client that hangs up would be free
    /// otherwise. A limit without a record counts as used as estimated.
    Commit,
    /// Keep the full estimate charged.
    Keep,
}

/// A call to be admitted: an entity, a resource and amounts. Building a request never fails; a
/// mistake surfaces at `acquire`.
///
/// ```
/// use zae_limiter::Request;
/// let request = Request::new("key-1", "gpt-4").take("rpm", 1).take("tpm", 900);
/// ```
#[derive(Clone, Debug)]
#[must_use = "a request does nothing until it is acquired"]
pub struct Request {
    /// `None` when one of the names breaks its rule.
    names: Option<(EntityId, ResourceName)>,
    pub(crate) amounts: SmallVec<[(LimitName, Milli); 2]>,
    /// Boxed, because most requests have none and every request is moved.
    terms: Option<Box<Terms>>,
    pub(crate) on_drop: OnDrop,
    /// True for more of an existing lease: a declared limit without an amount is not looked at.
    pub(crate) skip_zero: bool,
    /// The first mistake made while building.
    mistake: Option<Box<Invalid>>,
}

/// What a request asks for besides amounts.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) limits: Option<Arc<[Limit]>>,
    pub(crate) fallback_limits: Option<Arc<[Limit]>>,
    pub(crate) on_unavailable: Option<OnUnavailable>,
    pub(crate) deadline: Option<Duration>,
    pub(crate) wait: Option<Duration>,
    pub(crate) is_exact: bool,
}

/// How a decision is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    /// The store decides, not local blocks.
    pub(crate) is_exact: bool,
    /// A refusal that time can cure is waited for.
    pub(crate) waits: bool,
}

impl Terms {
    const USUAL: Terms = Terms {
        limits: None,
        fallback_limits: None,
        on_unavailable: None,
        deadline: None,
        wait: None,
        is_exact: false,
    };
}

impl Request {
    /// A request of `entity` for `resource`.
    pub fn new(entity: impl IntoName<EntityId>, resource: impl IntoName<ResourceName>) -> Request {
        let (names, mistake) =
            match entity.into_name().and_then(|entity| Ok((entity, resource.into_name()?))) {
                Ok(names) => (Some(names), None),
                Err(error) => (None, Some(Box::new(Invalid::from(error)))),
            };
        Request {
            names,
            amounts: SmallVec::new(),
            terms: None,
            on_drop: OnDrop::default(),
            skip_zero: false,
            mistake,
        }
    }

    /// Takes `amount` tokens of `limit`. An amount of zero declares the limit: the limit must not
    /// be in debt, and its use can be recorded later. Amounts for the same limit add up.
    pub fn take(mut self, limit: impl IntoName<LimitName>, amount: u64) -> Request {
        match limit.into_name() {
            Err(error) => self.mistaken(error.into()),
            Ok(limit) if amount > TOKENS_MAX => {
                self.mistaken(Invalid::Amount { limit, amount, max: TOKENS_MAX })
            }
            Ok(limit) => match self.amounts.iter_mut().find(|(name, _)| *name == limit) {
                Some((_, total)) => *total = total.saturating_add(Milli::from_tokens(amount)),
                None => self.amounts.push((limit, Milli::from_tokens(amount))),
            },
        }
        self
    }

    /// Overrides the limits that are stored for the entity. All callers share one bucket: callers
    /// with different overrides are held to the smaller capacity, never to more.
    pub fn limits(mut self, limits: impl IntoIterator<Item = Limit>) -> Request {
        let limits: Arc<[Limit]> = limits.into_iter().collect();
        self.checked(&limits);
        self.terms_mut().limits = Some(limits);
        self
    }

    /// Limits for the entity when no level has limits.
    pub fn fallback_limits(mut self, limits: impl IntoIterator<Item = Limit>) -> Request {
        let limits: Arc<[Limit]> = limits.into_iter().collect();
        self.checked(&limits);
        self.terms_mut().fallback_limits = Some(limits);
        self
    }

    /// The policy while the store is down, for this call.
    pub fn on_unavailable(mut self, policy: OnUnavailable) -> Request {
        self.terms_mut().on_unavailable = Some(policy);
        self
    }

    /// How long the store may take to answer. Default: the limiter's, 1 s.
    pub fn deadline(mut self, deadline: Duration) -> Request {
        self.terms_mut().deadline = Some(deadline);
        self
    }

    /// How the lease ends if it is dropped unfinished.
    pub fn on_drop(mut self, on_drop: OnDrop) -> Request {
        self.on_drop = on_drop;
        self
    }

    /// Waits for the limits, at most this long in total, before the request is refused. A request
    /// that can never pass, or not within this time, is refused at once.
    pub fn wait(mut self, at_most: Duration) -> Request {
        self.terms_mut().wait = Some(at_most);
        self
    }

    /// Has the store decide, also where local blocks could: what this limiter holds of the buckets
    /// goes back first. Without local blocks every request is exact, and nothing changes.
    pub fn exact(mut self) -> Request {
        self.terms_mut().is_exact = true;
        self
    }

    /// The amounts by themselves, in the order of their limits.
    pub(crate) fn amounts(&self) -> Amounts {
        // Pushed one by one: collecting into a small vector costs more than the few amounts there
        // are.
        let mut amounts = Amounts::new();
        self.amounts.iter().for_each(|(_, amount)| amounts.push(*amount));
        amounts
    }

    /// A request of a lease for more, with no amounts yet: `Lease::consume` adds them. `names` is
    /// `None` for a lease that was given without a decision: its request is not sent.
    pub(crate) fn more(
        names: Option<(EntityId, ResourceName)>,
        declared: &[LimitName],
        terms: Option<Box<Terms>>,
    ) -> Request {
        Request {
            names,
            amounts: declared.iter().map(|name| (name.clone(), Milli::ZERO)).collect(),
            terms,
            on_drop: OnDrop::default(),
            skip_zero: true,
            mistake: None,
        }
    }

    /// What is asked for besides amounts.
    pub(crate) fn terms(&self) -> &Terms {
        static USUAL: Terms = Terms::USUAL;
        self.terms.as_deref().unwrap_or(&USUAL)
    }

    pub(crate) fn manner(&self) -> Manner {
        let terms = self.terms();
        Manner { is_exact: terms.is_exact, waits: terms.wait.is_some() }
    }

    /// The terms, for the lease to keep.
    pub(crate) fn take_terms(&mut self) -> Option<Box<Terms>> {
        self.terms.take()
    }

    /// A copy, for one of several leases.
    pub(crate) fn boxed_terms(&self) -> Option<Box<Terms>> {
        self.terms.clone()
    }

    /// True when the limits in force are those of the configuration, whatever the request says.
    pub(crate) fn is_plain(&self) -> bool {
        let terms = self.terms();
        terms.limits.is_none() && terms.fallback_limits.is_none()
    }

    fn terms_mut(&mut self) -> &mut Terms {
        self.terms.get_or_insert_with(|| Box::new(Terms::USUAL))
    }

    /// The names, if nothing is wrong with the request.
    pub(crate) fn names(&self) -> Option<(&EntityId, &ResourceName)> {
        match (&self.names, &self.mistake) {
            (Some((entity, resource)), None) => Some((entity, resource)),
            _ => None,
        }
    }

    /// The names, or the first mistake.
    pub(crate) fn checked_names(&self) -> Result<(&EntityId, &ResourceName), Invalid> {
        match (&self.names, &self.mistake) {
            (Some((entity, resource)), None) => Ok((entity, resource)),
            (_, Some(mistake)) => Err((**mistake).clone()),
            (None, None) => {
                Err(Invalid::Refused("a request needs an entity and a resource".into()))
            }
        }
    }

    fn checked(&mut self, limits: &[Limit]) {
        if let Err(error) = check_limits(limits) {
            self.mistaken(error.into());
        }
    }

    fn mistaken(&mut self, mistake: Invalid) {
        self.mistake.get_or_insert_with(|| Box::new(mistake));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_for_one_limit_add_up() {
        let request = Request::new("key-1", "gpt-4").take("tpm", 900).take("tpm", 100);
        assert_eq!(request.amounts.as_slice(), &[("tpm".parse().unwrap(), Milli(1_000_000))]);
    }

    #[test]
    fn the_first_mistake_is_the_one_reported() {
        let request = Request::new("key-1", "gpt-4").take("a#b", 1).take("tpm", u64::MAX);
        let mistake = request.checked_names().unwrap_err().to_string();
        assert!(mistake.contains("a#b"), "{mistake}");
        let request = Request::new("key\n", "gpt-4").take("a#b", 1);
        let mistake = request.checked_names().unwrap_err().to_string();
        assert!(mistake.contains("entity"), "{mistake}");
    }

    #[test]
    fn an_amount_no_limit_can_hold_is_named() {
        let request = Request::new("key-1", "gpt-4").take("tpm", TOKENS_MAX + 1);
        let mistake = request.checked_names().unwrap_err().to_string();
        assert!(mistake.contains("tpm") && mistake.contains("1000000000000001"), "{mistake}");
        assert!(Request::new("key-1", "gpt-4").take("tpm", TOKENS_MAX).checked_names().is_ok());
    }

    #[test]
    fn parsed_names_are_accepted_as_they_are() {
        let entity: EntityId = "key-1".parse().unwrap();
        let resource: ResourceName = "gpt-4".parse().unwrap();
        let limit: LimitName = "rpm".parse().unwrap();
        assert!(Request::new(entity, resource).take(limit, 1).checked_names().is_ok());
    }

    #[test]
    fn duplicate_override_names_are_a_mistake() {
        let limit: Limit = "rpm:1".parse().unwrap();
        assert!(Request::new("k", "r").limits([limit.clone(), limit]).checked_names().is_err());
    }
}
