//! The JSON forms of answers, for HTTP bodies and the CLI. The types are separate from those of the
//! domain, so that the domain can change without changing what clients parse.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};
use zae_limiter_core::{
    AuditEvent, Entity, Flag, Limit, LimitStatus, RateLimitExceeded, UsageSnapshot, Wait, rfc3339,
};
use zae_limiter_store::{BucketView, LevelConfig, Namespace};

use crate::{Availability, Lease, Resolved};

/// The answer to a request: granted or refused, and the status of every limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Decision {
    /// True when the request passed.
    pub granted: bool,
    /// True when the request passed without a decision, because the store was down.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub degraded: bool,
    /// True when writers fought for the bucket, not a limit refused.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub contended: bool,
    /// How long to wait: 0 when granted, null when the request can never pass.
    pub retry_after_ms: Option<u64>,
    /// Every limit checked.
    pub limits: Vec<Status>,
}

/// One limit of one member of the chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Status {
    /// The owner of the bucket.
    pub entity_id: String,
    /// The resource of the bucket.
    pub resource: String,
    /// The name of the limit.
    pub limit_name: String,
    /// The most there can be.
    pub capacity: u64,
    /// Tokens left; negative is debt.
    pub available: i64,
    /// Tokens asked for.
    pub requested: u64,
    /// True when this limit refused.
    pub exceeded: bool,
    /// How long until the limit could pass: 0 now, null never.
    pub retry_after_ms: Option<u64>,
}

fn wait_ms(wait: Wait) -> Option<u64> {
    match wait {
        Wait::None => Some(0),
        Wait::After(wait) => Some(wait.get()),
        Wait::Never => None,
    }
}

impl From<&LimitStatus> for Status {
    fn from(status: &LimitStatus) -> Status {
        Status {
            entity_id: status.entity.to_string(),
            resource: status.resource.to_string(),
            limit_name: status.limit.name().to_string(),
            capacity: status.limit.capacity(),
            available: status.available,
            requested: status.requested,
            exceeded: status.exceeded(),
            retry_after_ms: wait_ms(status.retry_after),
        }
    }
}

impl From<&RateLimitExceeded> for Decision {
    fn from(exceeded: &RateLimitExceeded) -> Decision {
        Decision {
            granted: false,
            degraded: false,
            contended: exceeded.is_contended(),
            retry_after_ms: wait_ms(exceeded.retry_after()),
            limits: exceeded.statuses().iter().map(Status::from).collect(),
        }
    }
}

impl From<&Lease> for Decision {
    fn from(lease: &Lease) -> Decision {
        Decision {
            granted: true,
            degraded: lease.degraded().is_some(),
            contended: false,
            retry_after_ms: Some(0),
            limits: lease.statuses().iter().map(Status::from).collect(),
        }
    }
}

impl From<&Availability> for Decision {
    fn from(availability: &Availability) -> Decision {
        Decision {
            granted: availability.allowed(),
            degraded: false,
            contended: false,
            retry_after_ms: wait_ms(availability.retry_after()),
            limits: availability.statuses().iter().map(Status::from).collect(),
        }
    }
}

/// A limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LimitForm {
    /// Its name.
    pub name: String,
    /// The most there can be.
    pub capacity: u64,
    /// Tokens added per period.
    pub refill_amount: u64,
    /// The period.
    pub refill_period_seconds: u64,
    /// The same in the CLI's syntax.
    pub text: String,
}

impl From<&Limit> for LimitForm {
    fn from(limit: &Limit) -> LimitForm {
        LimitForm {
            name: limit.name().to_string(),
            capacity: limit.capacity(),
            refill_amount: limit.refill_amount(),
            refill_period_seconds: limit.refill_period_s(),
            text: limit.to_string(),
        }
    }
}

/// A flag: whether it disables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlagForm(pub Flag);

impl Serialize for FlagForm {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Flag::Enabled => serializer.serialize_bool(false),
            Flag::Disabled => serializer.serialize_bool(true),
        }
    }
}

/// The configuration stored at one level.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LevelForm {
    /// The limits.
    pub limits: Vec<LimitForm>,
    /// The flag: null inherits.
    pub disabled: Option<FlagForm>,
    /// The outage policy; system level only.
    pub on_unavailable: Option<&'static str>,
    /// The level's version.
    pub version: u64,
}

impl From<&LevelConfig> for LevelForm {
    fn from(level: &LevelConfig) -> LevelForm {
        LevelForm {
            limits: level.limits.iter().map(LimitForm::from).collect(),
            disabled: level.flag.map(FlagForm),
            on_unavailable: level.on_unavailable.map(|policy| policy.as_str()),
            version: level.version,
        }
    }
}

/// The limits in force for one member of a chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ResolvedForm {
    /// The entity.
    pub entity_id: String,
    /// The limits.
    pub limits: Vec<LimitForm>,
    /// The level that supplied them.
    pub source: Option<&'static str>,
    /// The level that has disabled the member.
    pub disabled_by: Option<String>,
}

/// One form per member of the chain.
#[must_use]
pub fn resolved(resolved: &Resolved) -> Vec<ResolvedForm> {
    let form = |member: &crate::ResolvedMember| ResolvedForm {
        entity_id: member.entity.to_string(),
        limits: member.limits.iter().map(LimitForm::from).collect(),
        source: member.source.map(|source| source.as_str()),
        disabled_by: member.blocked_by.as_ref().map(|(_, level)| level.to_string()),
    };
    resolved.members.iter().map(form).collect()
}

/// An entity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EntityForm {
    /// Its id.
    pub entity_id: String,
    /// Its display name.
    pub name: String,
    /// Its parent.
    pub parent_id: Option<String>,
    /// Whether takes go on to the parent.
    pub cascade: bool,
    /// Free text pairs.
    pub metadata: BTreeMap<String, String>,
    /// When it was created.
    pub created_at: String,
    /// For updates.
    pub version: u64,
}

impl From<&Entity> for EntityForm {
    fn from(entity: &Entity) -> EntityForm {
        EntityForm {
            entity_id: entity.id.to_string(),
            name: entity.name.clone(),
            parent_id: entity.parent.as_ref().map(ToString::to_string),
            cascade: entity.cascade,
            metadata: entity.metadata.clone(),
            created_at: rfc3339(entity.created_at),
            version: entity.version,
        }
    }
}

/// A bucket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BucketForm {
    /// The owner of the bucket.
    pub entity_id: String,
    /// The resource of the bucket.
    pub resource: String,
    /// True while the bucket is disabled.
    pub disabled: FlagForm,
    /// The instant of the balances below.
    pub refilled_at: String,
    /// From when on the bucket may be forgotten once it is full.
    pub expires_at: Option<String>,
    /// Its limits in force.
    pub limits: Vec<BucketLimitForm>,
}

/// One limit of a bucket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BucketLimitForm {
    /// The name of the limit.
    pub limit_name: String,
    /// The most there can be, in millitokens.
    pub capacity_milli: i64,
    /// Millitokens left.
    pub available_milli: i64,
    /// Net consumption since the bucket exists, in millitokens.
    pub consumed_milli: i64,
}

impl From<&BucketView> for BucketForm {
    fn from(bucket: &BucketView) -> BucketForm {
        let limit = |limit: &zae_limiter_core::LimitState| BucketLimitForm {
            limit_name: limit.name.to_string(),
            capacity_milli: limit.params.capacity_milli,
            available_milli: limit.balance.0,
            consumed_milli: limit.consumed.0,
        };
        BucketForm {
            entity_id: bucket.entity.to_string(),
            resource: bucket.resource.to_string(),
            disabled: FlagForm(bucket.state.flag),
            refilled_at: rfc3339(bucket.state.refilled_at),
            expires_at: bucket.state.expires_at().map(rfc3339),
            limits: bucket.state.limits().iter().map(limit).collect(),
        }
    }
}

/// A namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NamespaceForm {
    /// The name people use.
    pub name: String,
    /// The opaque id.
    pub namespace_id: String,
    /// Its status.
    pub status: &'static str,
    /// When it was registered.
    pub created_at: String,
    /// When it was deleted.
    pub deleted_at: Option<String>,
}

impl From<&Namespace> for NamespaceForm {
    fn from(namespace: &Namespace) -> NamespaceForm {
        NamespaceForm {
            name: namespace.name.to_string(),
            namespace_id: namespace.id.to_string(),
            status: namespace.status.as_str(),
            created_at: rfc3339(namespace.created_at),
            deleted_at: namespace.deleted_at.map(rfc3339),
        }
    }
}

/// An audit event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AuditForm {
    /// Its id; ids sort by time.
    pub event_id: String,
    /// When it happened.
    pub timestamp: String,
    /// The subject: an entity, a resource or the system.
    pub entity_id: String,
    /// The action.
    pub action: &'static str,
    /// The author of the change.
    pub principal: Option<String>,
    /// The resource concerned.
    pub resource: Option<String>,
    /// The details of the action. Several values of one name, such as limits that were set
    /// together, are joined by commas.
    pub details: BTreeMap<String, String>,
}

impl From<&AuditEvent> for AuditForm {
    fn from(event: &AuditEvent) -> AuditForm {
        AuditForm {
            event_id: event.id.to_string(),
            timestamp: rfc3339(event.at),
            entity_id: event.subject.to_string(),
            action: event.action.as_str(),
            principal: event.principal.as_ref().map(ToString::to_string),
            resource: event.resource.as_ref().map(ToString::to_string),
            details: joined(&event.details),
        }
    }
}

fn joined(details: &[(String, String)]) -> BTreeMap<String, String> {
    let mut joined: BTreeMap<String, String> = BTreeMap::new();
    for (name, value) in details {
        let values = joined.entry(name.clone()).or_default();
        if !values.is_empty() {
            values.push_str(", ");
        }
        values.push_str(value);
    }
    joined
}

/// Usage in one window, in whole tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UsageForm {
    /// The entity.
    pub entity_id: String,
    /// The resource.
    pub resource: String,
    /// Hourly, daily or monthly.
    pub window: &'static str,
    /// The window, as a key that sorts by time.
    pub window_start: String,
    /// Tokens per limit, rounded towards −∞.
    pub counters: BTreeMap<String, i64>,
    /// Grants.
    pub total_events: u64,
}

impl From<&UsageSnapshot> for UsageForm {
    fn from(snapshot: &UsageSnapshot) -> UsageForm {
        UsageForm {
            entity_id: snapshot.entity.to_string(),
            resource: snapshot.resource.to_string(),
            window: snapshot.window.as_str(),
            window_start: snapshot.window.key(snapshot.start),
            counters: snapshot
                .counters
                .iter()
                .map(|(name, used)| (name.to_string(), used.floor_tokens()))
                .collect(),
            total_events: snapshot.events,
        }
    }
}
