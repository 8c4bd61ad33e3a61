//! What was configured when. A grant must be decided by limits, a chain and flags that were in
//! force not long before it: the time a config cache trusts an entry and, on a store that is far
//! away, the few seconds for which an expired one is lent.

use std::collections::BTreeMap;
use std::time::Duration;

use zae_limiter_core::{CHAIN_MAX, EntityId, Flag, Limit, LimitSource, ResourceName};
use zae_limiter_store::LimitsInForce;

use super::Broken;
use super::config::Config;

/// How long an expired entry of a config cache may still decide, at most.
pub(crate) const LENT_MAX: Duration = Duration::from_secs(5);

/// Every configuration there was, and since when.
#[derive(Debug, Default)]
pub(crate) struct History {
    namespaces: BTreeMap<String, Vec<(Duration, Config)>>,
}

/// The configuration that a decision was based on.
#[derive(Clone, Debug)]
pub(crate) struct Basis {
    pub(crate) client: usize,
    pub(crate) namespace: String,
    /// A configuration may decide if it was in force at this time or later.
    pub(crate) since: Duration,
    pub(crate) resource: ResourceName,
    /// The members that were asked, the caller first.
    pub(crate) members: Vec<(EntityId, LimitsInForce)>,
    /// Whether these are a whole chain, or only some of its members.
    pub(crate) is_chain: bool,
    /// Whether all levels were read at one moment. Where each is remembered by itself, changes of
    /// two levels may be seen in either order.
    pub(crate) is_one_look: bool,
}

impl History {
    /// Something was changed; `config` is what is stored now.
    pub(crate) fn note(&mut self, namespace: &str, at: Duration, config: &Config) {
        // Before the first change there was nothing.
        let versions = self
            .namespaces
            .entry(namespace.to_owned())
            .or_insert_with(|| vec![(Duration::ZERO, Config::default())]);
        if versions.last().is_none_or(|(_, last)| last.changes != config.changes) {
            versions.push((at, config.clone()));
        }
    }

    /// Changes so far.
    pub(crate) fn changes(&self) -> u64 {
        self.namespaces.values().map(|versions| versions.len() as u64 - 1).sum()
    }

    /// What was in force at some time since an instant.
    pub(crate) fn since(&self, namespace: &str, since: Duration) -> Vec<&Config> {
        let Some(versions) = self.namespaces.get(namespace) else { return Vec::new() };
        // A version that was replaced at that very instant was in force at it.
        let first = versions.iter().rposition(|(at, _)| *at < since).unwrap_or(0);
        versions[first..].iter().map(|(_, config)| config).collect()
    }

    /// Checks a decision that was made by now.
    pub(crate) fn check(&self, basis: &Basis) -> Result<(), Broken> {
        let configs = self.since(&basis.namespace, basis.since);
        if configs.is_empty() {
            // Nothing was ever configured there.
            return Ok(());
        }
        let resource = &basis.resource;
        let who = |entity: &EntityId| {
            format!("client {} was granted {}/{entity}/{resource}", basis.client, basis.namespace)
        };
        for (entity, limits) in &basis.members {
            let looks: Vec<&[&Config]> =
                if basis.is_one_look { configs.chunks(1).collect() } else { vec![&configs] };
            if !looks.iter().any(|configs| may_be_in_force(configs, (entity, resource), limits)) {
                return Err(format!(
                    "{} by limits that were replaced before {:?}: {:?}",
                    who(entity),
                    basis.since,
                    limits.limits
                ));
            }
            if !looks.iter().any(|configs| may_be_on(configs, (entity, resource))) {
                return Err(format!(
                    "{}, which has been disabled since before {:?}",
                    who(entity),
                    basis.since
                ));
            }
        }
        if !basis.is_chain {
            return Ok(());
        }
        for pair in basis.members.windows(2) {
            if !leads_to(&configs, &pair[0].0, &pair[1].0) {
                return Err(format!(
                    "{} together with {}, which it has not cascaded to since {:?}",
                    who(&pair[0].0),
                    pair[1].0,
                    basis.since
                ));
            }
        }
        match basis.members.last() {
            Some((last, _)) if !may_end(&configs, last, resource, 0) => Err(format!(
                "{}, and not its ancestors, to which it has cascaded since before {:?}",
                who(last),
                basis.since
            )),
            _ => Ok(()),
        }
    }
}

fn sorted(limits: &[Limit]) -> Vec<&Limit> {
    let mut limits: Vec<&Limit> = limits.iter().collect();
    limits.sort_by(|one, other| one.name().cmp(other.name()));
    limits
}

/// Whether a read that found each level as it was in one of these configurations came to these
/// limits.
fn may_be_in_force(
    configs: &[&Config],
    (entity, resource): (&EntityId, &ResourceName),
    limits: &LimitsInForce,
) -> bool {
    let source = match limits.source {
        LimitSource::Call => return true,
        // A member without limits is sent only to learn whether it is disabled.
        _ if limits.limits.is_empty() => None,
        LimitSource::Builder | LimitSource::Fallback => None,
        source @ (LimitSource::EntityResource
        | LimitSource::Entity
        | LimitSource::Resource
        | LimitSource::System) => Some(source),
    };
    for (level, of_level) in Config::levels_of(entity, resource) {
        if source == Some(of_level) {
            return configs
                .iter()
                .any(|config| sorted(config.limits_at(&level)) == sorted(&limits.limits));
        }
        // A stronger level that has limits hides the weaker ones.
        if !configs.iter().any(|config| config.limits_at(&level).is_empty()) {
            return false;
        }
    }
    source.is_none()
}

/// True if such a read may have found the bucket enabled.
fn may_be_on(configs: &[&Config], (entity, resource): (&EntityId, &ResourceName)) -> bool {
    for (level, _) in Config::levels_of(entity, resource) {
        let flags = || configs.iter().map(|config| config.flag_at(&level));
        if flags().any(|flag| flag == Some(Flag::Enabled)) {
            return true;
        }
        if !flags().any(|flag| flag.is_none()) {
            return false;
        }
    }
    true
}

/// Whether takes of one went on to the other, over links each of which was there at some time.
fn leads_to(configs: &[&Config], from: &EntityId, to: &EntityId) -> bool {
    let (mut seen, mut open) = (vec![from.clone()], vec![from.clone()]);
    while let Some(entity) = open.pop() {
        for next in configs.iter().filter_map(|config| config.cascades_to(&entity)) {
            if next == *to {
                return true;
            }
            if !seen.contains(&next) {
                seen.push(next.clone());
                open.push(next);
            }
        }
    }
    false
}

/// Whether a chain may have ended here: no ancestor at some time, or only such that had no limits
/// at some time. Links of different times may lead in a circle, so a chain is followed as far as
/// one may be long.
fn may_end(configs: &[&Config], entity: &EntityId, resource: &ResourceName, depth: usize) -> bool {
    let is_asked = depth == 0;
    let passes =
        is_asked || configs.iter().any(|config| config.member(entity, resource).limits.is_none());
    let goes_on =
        |next: EntityId| depth < CHAIN_MAX && may_end(configs, &next, resource, depth + 1);
    passes && configs.iter().any(|config| config.cascades_to(entity).is_none_or(goes_on))
}

#[cfg(test)]
mod tests {
    use super::*;
    use zae_limiter_core::ConfigStamp;
    use zae_limiter_store::Level;

    fn basis(limits: &[Limit], source: LimitSource, since_ms: u64, is_one_look: bool) -> Basis {
        let in_force = LimitsInForce::resolved(limits.to_vec(), source, ConfigStamp(1), 0);
        Basis {
            client: 1,
            namespace: "default".to_owned(),
            since: Duration::from_millis(since_ms),
            resource: "gpt-4".parse().unwrap(),
            members: vec![("leaf".parse().unwrap(), in_force)],
            is_chain: false,
            is_one_look,
        }
    }

    /// The resource is limited at 10 ms, the system's limits are raised at 20 ms. Nobody ever had
    /// the raised ones on this resource, but a process that remembers each level by itself may have
    /// seen the second change first.
    #[test]
    fn changes_of_two_levels_are_seen_in_order_by_one_look_only() {
        let limit = |capacity| vec![Limit::per_minute("rpm", capacity).unwrap()];
        let (mut config, mut history) = (Config::default(), History::default());
        let resource = Level::Resource("gpt-4".parse().unwrap());
        for (at, level, capacity) in
            [(5, Level::System, 100), (10, resource.clone(), 1), (20, Level::System, 1_000)]
        {
            config.set_limits(&level, &limit(capacity));
            history.note("default", Duration::from_millis(at), &config);
        }
        let seen = |capacity, source, since, is_one_look| {
            history.check(&basis(&limit(capacity), source, since, is_one_look)).is_ok()
        };
        assert!(seen(100, LimitSource::System, 0, true) && seen(1, LimitSource::Resource, 0, true));
        assert!(
            !seen(1_000, LimitSource::System, 0, true),
            "it was hidden from its first moment on"
        );
        assert!(seen(1_000, LimitSource::System, 0, false));
        assert!(
            !seen(1_000, LimitSource::System, 11, false),
            "not once the limits of the resource must have been seen"
        );
        assert!(!seen(100, LimitSource::Resource, 0, false), "nor as those of another level");
        assert!(
            !seen(100, LimitSource::System, 21, true) && !seen(100, LimitSource::System, 21, false)
        );
    }

    #[test]
    fn a_flag_is_seen_level_by_level_too() {
        let (mut config, mut history) = (Config::default(), History::default());
        let (entity, resource) =
            (Level::Entity("leaf".parse().unwrap()), Level::Resource("gpt-4".parse().unwrap()));
        let limits = vec![Limit::per_minute("rpm", 1).unwrap()];
        config.set_limits(&Level::System, &limits);
        history.note("default", Duration::from_millis(1), &config);
        for (at, level, flag) in [
            (10, &resource, Some(Flag::Disabled)),
            (20, &entity, Some(Flag::Enabled)),
            (30, &entity, None),
        ] {
            config.set_flag(level, flag);
            history.note("default", Duration::from_millis(at), &config);
        }
        let seen = |since, is_one_look| {
            history.check(&basis(&limits, LimitSource::System, since, is_one_look)).is_ok()
        };
        assert!(seen(0, true) && seen(25, true), "on before, and while the entity was enabled");
        assert!(!seen(31, true) && !seen(31, false), "off since");
    }
}
