//! Records of the configuration with something wrong in them: an error that names the record and
//! the attribute, never a guess.

use std::collections::BTreeMap;
use std::time::Duration;

use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::AttributeValue;
use zae_limiter_core::{Flag, Limit};
use zae_limiter_dynamodb::DynamoStore;
use zae_limiter_dynamodb::records::keys;
use zae_limiter_dynamodb::table::{Item, Key};
use zae_limiter_store::{
    ConfigStore, Level, LimitsChange, MemberKey, NewEntity, OnUnavailable, StoreError,
    StoreErrorKind,
};
use zae_limiter_testkit::table::EvalOptions;
use zae_limiter_testkit::zae_limiter::{AcquireError, RateLimiter, Request};

use crate::evaluated::Rig;

/// A value of every type there is.
fn values() -> [AttributeValue; 9] {
    [
        AttributeValue::S("true".to_owned()),
        AttributeValue::N("7".to_owned()),
        AttributeValue::Bool(true),
        AttributeValue::Null(true),
        AttributeValue::L(Vec::new()),
        AttributeValue::M(Default::default()),
        AttributeValue::B(Blob::new("7")),
        AttributeValue::Ss(vec!["7".to_owned()]),
        AttributeValue::Ns(vec!["7".to_owned()]),
    ]
}

fn limits(texts: &[&str], on_unavailable: Option<OnUnavailable>) -> LimitsChange {
    let limits: Vec<Limit> = texts.iter().map(|text| text.parse().unwrap()).collect();
    LimitsChange { limits, on_unavailable, expected_version: None }
}

fn of_key(resource: Option<&str>) -> Level {
    let entity = "key".parse().unwrap();
    resource.map_or(Level::Entity("key".parse().unwrap()), |resource| {
        Level::EntityResource(entity, resource.parse().unwrap())
    })
}

/// `key` under `org`: `key` may take three, by a configuration at `level`, and `org` two.
async fn world(level: &Level) -> Rig {
    let rig = Rig::new(EvalOptions::new()).await;
    let store = rig.store().await;
    for (name, parent) in [("org", None), ("key", Some("org"))] {
        let parent = parent.map(|parent: &str| parent.parse().unwrap());
        let (id, cascade) = (name.parse().unwrap(), parent.is_some());
        let new =
            NewEntity { id, name: name.to_owned(), parent, cascade, metadata: BTreeMap::new() };
        store.create_entity(&new, &rig.change()).await.unwrap();
    }
    let policy = (*level == Level::System).then_some(OnUnavailable::Block);
    // Not in the order of their names, so that the order is stored as well.
    store
        .set_limits(level, &limits(&["tpm:1/hour:8", "rpm:1/hour:3"], policy), &rig.change())
        .await
        .unwrap();
    if policy.is_none() {
        store.set_flag(level, Some(Flag::Enabled), &rig.change()).await.unwrap();
    }
    store
        .set_limits(
            &Level::Entity("org".parse().unwrap()),
            &limits(&["rpm:1/hour:2"], None),
            &rig.change(),
        )
        .await
        .unwrap();
    rig
}

/// What comes of taking three times, and what the buckets are then held to.
#[derive(Debug, PartialEq)]
struct Outcome {
    granted: Vec<bool>,
    parameters: BTreeMap<String, String>,
}

/// A process that would rather let everybody through than nobody.
async fn outcome(rig: &Rig) -> Result<Outcome, AcquireError> {
    let limiter = RateLimiter::builder(rig.store().await)
        .clock(rig.clock.clone())
        .config_cache_ttl(Duration::ZERO)
        .on_unavailable(OnUnavailable::Allow)
        .build()
        .unwrap();
    let mut granted = Vec::new();
    for _ in 0..3 {
        match limiter.acquire(Request::new("key", "gpt-4").take("rpm", 1)).await {
            Ok(lease) => {
                granted.push(true);
                lease.commit().await.unwrap();
            }
            Err(AcquireError::Exceeded(_)) => granted.push(false),
            Err(error) => return Err(error),
        }
    }
    let mut parameters = BTreeMap::new();
    for entity in ["key", "org"] {
        let item = rig.table.get(&rig.bucket(entity, "gpt-4")).unwrap_or_default();
        for (name, value) in item
            .iter()
            .filter(|(name, _)| ["_cp", "_ra", "_rp"].iter().any(|field| name.ends_with(field)))
        {
            parameters.insert(format!("{entity} {name}"), value.as_n().unwrap().clone());
        }
    }
    Ok(Outcome { granted, parameters })
}

async fn resolve(store: &DynamoStore) -> Result<(), StoreError> {
    let (key, org, resource) =
        ("key".parse().unwrap(), "org".parse().unwrap(), "gpt-4".parse().unwrap());
    store
        .resolve(&[
            MemberKey { entity: &key, resource: &resource },
            MemberKey { entity: &org, resource: &resource },
        ])
        .await
        .map(drop)
}

/// Puts one attribute of one record to `value`, or away, and looks at what comes of it.
struct Damage<'a> {
    level: &'a Level,
    key: Key,
    attribute: &'a str,
    value: Option<AttributeValue>,
}

impl Damage<'_> {
    async fn done(&self) -> Rig {
        let rig = world(self.level).await;
        let mut item = rig.table.get(&self.key_in(&rig)).unwrap();
        match &self.value {
            Some(value) => drop(item.insert(self.attribute.to_owned(), value.clone())),
            None => drop(item.remove(self.attribute)),
        }
        rig.table.insert(&item);
        rig
    }

    /// Namespaces have another id in every world.
    fn key_in(&self, rig: &Rig) -> Key {
        Key {
            pk: self.key.pk.replace("NAMESPACE", &rig.namespace),
            sk: self.key.sk.replace("NAMESPACE", &rig.namespace).into(),
        }
    }

    fn words(&self) -> String {
        format!("{} of {:?} is {:?}", self.attribute, self.key, self.value)
    }

    /// Nobody gets anything, and the error says where to look.
    async fn is_an_error(&self, kind: StoreErrorKind) {
        let rig = self.done().await;
        let (words, key) = (self.words(), self.key_in(&rig));
        let error = resolve(&rig.store().await).await.expect_err(&words);
        assert_eq!(error.kind(), kind, "{words}: {error}");
        for part in [format!("\"{}\"", self.attribute), format!("{} {}", key.pk, key.sk)] {
            assert!(error.message().contains(&part), "{words}: {error}");
        }
        let granted = outcome(&rig).await;
        assert!(
            matches!(granted, Err(AcquireError::Unavailable(_) | AcquireError::Incompatible(_))),
            "{words}: {granted:?}"
        );
        let buckets = rig
            .table
            .items()
            .iter()
            .filter(|item| item["PK"].as_s().unwrap().contains("/BUCKET#"))
            .count();
        assert_eq!(buckets, 0, "{words}: taken from");
    }

    /// It makes no difference to anybody.
    async fn is_harmless(&self, expected: &Outcome) {
        let found = outcome(&self.done().await).await;
        assert_eq!(found.as_ref().ok(), Some(expected), "{}: {found:?}", self.words());
    }
}

fn is_same_type(one: &AttributeValue, other: &AttributeValue) -> bool {
    std::mem::discriminant(one) == std::mem::discriminant(other)
}

/// What may be missing or null: then it is not set.
const OPTIONAL: [&str; 4] = ["disabled", "on_unavailable", "cascade", "parent_id"];

/// What decides who may take how much.
fn is_decisive(attribute: &str) -> bool {
    attribute.starts_with("l_") || OPTIONAL.contains(&attribute)
}

/// Every attribute of a record: away, and as a value of every other type.
async fn damage_all(level: &Level, key: impl Fn(&str) -> Key) {
    let undamaged = world(level).await;
    let item: Item = undamaged.table.get(&key(&undamaged.namespace)).unwrap();
    let expected = outcome(&undamaged).await.unwrap();
    assert_eq!(expected.granted, [true, true, false], "the world is as it should be");
    let (mut errors, mut harmless) = (0, 0);
    for (attribute, stored) in &item {
        // DynamoDB itself keeps keys what they are.
        if attribute == "PK" || attribute == "SK" || attribute.starts_with("GSI") {
            continue;
        }
        let others = values().into_iter().filter(|value| !is_same_type(value, stored));
        for value in std::iter::once(None).chain(others.map(Some)) {
            let is_unset = OPTIONAL.contains(&attribute.as_str())
                && matches!(value, None | Some(AttributeValue::Null(_)));
            let damage = Damage { level, key: key("NAMESPACE"), attribute, value };
            if is_unset {
                continue;
            }
            if is_decisive(attribute) {
                // A flag that is a text is a feature of the Python package.
                let is_feature =
                    attribute == "disabled" && matches!(damage.value, Some(AttributeValue::S(_)));
                damage
                    .is_an_error(if is_feature {
                        StoreErrorKind::Incompatible
                    } else {
                        StoreErrorKind::Corrupt
                    })
                    .await;
                errors += 1;
            } else {
                damage.is_harmless(&expected).await;
                harmless += 1;
            }
        }
    }
    assert!(
        errors >= 8 && harmless >= 8,
        "{errors} errors, {harmless} harmless: nothing was tried"
    );
}

#[tokio::test]
async fn damaged_limits_of_a_level_are_an_error() {
    damage_all(&Level::System, keys::system_config).await;
    let resource = Level::Resource("gpt-4".parse().unwrap());
    damage_all(&resource, |namespace| keys::resource_config_of(namespace, "gpt-4")).await;
    damage_all(&of_key(None), |namespace| {
        keys::entity_config(namespace, &"key".parse().unwrap(), None)
    })
    .await;
    let own = |namespace: &str| {
        keys::entity_config(namespace, &"key".parse().unwrap(), Some(&"gpt-4".parse().unwrap()))
    };
    damage_all(&of_key(Some("gpt-4")), own).await;
}

/// Who goes on to whose bucket is part of what is asked: a flag that cannot be read must not end a
/// chain.
#[tokio::test]
async fn a_damaged_entity_is_an_error() {
    damage_all(&of_key(None), |namespace| keys::entity(namespace, &"key".parse().unwrap())).await;
}

/// A level may overrule the cascade of an entity.
#[tokio::test]
async fn a_damaged_cascade_of_a_level_is_an_error() {
    for value in values()
        .into_iter()
        .filter(|value| !matches!(value, AttributeValue::Bool(_) | AttributeValue::Null(_)))
    {
        let own = keys::entity_config(
            "NAMESPACE",
            &"key".parse().unwrap(),
            Some(&"gpt-4".parse().unwrap()),
        );
        let damage = Damage {
            level: &of_key(Some("gpt-4")),
            key: own,
            attribute: "cascade",
            value: Some(value),
        };
        damage.is_an_error(StoreErrorKind::Corrupt).await;
    }
}

/// Numbers that are none of ours: others may mean something by them, so they are not called damage.
#[tokio::test]
async fn numbers_no_limit_can_have_are_an_error() {
    for field in ["cp", "ra", "rp"] {
        for digits in ["-1", "0", "0.5", "1e3", &"9".repeat(38)] {
            let value = Some(AttributeValue::N(digits.to_owned()));
            let damage = Damage {
                level: &Level::System,
                key: keys::system_config("NAMESPACE"),
                attribute: &format!("l_rpm_{field}"),
                value,
            };
            let rig = damage.done().await;
            let error = resolve(&rig.store().await).await.map(|()| digits);
            // DynamoDB hands 1e3 out as 1000, and that is a number like any other.
            if let Err(error) = error {
                assert_eq!(error.kind(), StoreErrorKind::Incompatible, "{digits}: {error}");
                assert!(
                    error.message().contains("\"l_rpm_") && error.message().contains("#CONFIG"),
                    "{digits}: {error}"
                );
                assert!(outcome(&rig).await.is_err(), "{digits}");
            } else {
                assert_eq!(digits, "1e3", "read as a number: {error:?}");
            }
        }
    }
}

/// The record of the namespace says whether it is in use at all.
#[tokio::test]
async fn a_damaged_namespace_is_an_error() {
    for value in [None, Some(AttributeValue::N("1".to_owned())), Some(AttributeValue::Null(true))] {
        let by_id = keys::namespace_by_id("NAMESPACE");
        let damage =
            Damage { level: &Level::System, key: by_id, attribute: "status", value: value.clone() };
        let rig = damage.done().await;
        let error = resolve(&rig.store().await).await.expect_err("a damaged namespace");
        assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{error}");
        assert!(
            error.message().contains("\"status\"") && error.message().contains("#NSID#"),
            "{error}"
        );
        assert!(outcome(&rig).await.is_err());
    }
}

/// A registry that cannot be counted in names itself; limits, flags and takes do not need it.
#[tokio::test]
async fn a_damaged_registry_is_an_error_of_those_who_count_in_it() {
    let (own, other) = (
        of_key(Some("gpt-4")),
        Level::EntityResource("other".parse().unwrap(), "gpt-4".parse().unwrap()),
    );
    let (rig, new) = (world(&own).await, limits(&["rpm:1"], None));
    let store = rig.store().await;
    // With the limits everything goes, and is counted out.
    store.set_flag(&own, None, &rig.change()).await.unwrap();
    for value in [
        AttributeValue::S("1".to_owned()),
        AttributeValue::Bool(true),
        AttributeValue::L(Vec::new()),
    ] {
        let registry =
            damage_registry(&rig, keys::entity_config_resources(&rig.namespace), "gpt-4", value);
        is_named(store.set_limits(&other, &new, &rig.change()).await, "gpt-4", &registry);
        is_named(store.delete_limits(&own, &rig.change()).await, "gpt-4", &registry);
        is_named(
            store.delete_entity(&"key".parse().unwrap(), &rig.change()).await,
            "gpt-4",
            &registry,
        );
        // What stays is not counted.
        store.set_limits(&own, &new, &rig.change()).await.unwrap();
        store
            .set_flag(
                &Level::Resource("other".parse().unwrap()),
                Some(Flag::Disabled),
                &rig.change(),
            )
            .await
            .unwrap();
    }
    let everybody = Level::Resource("gpt-4".parse().unwrap());
    let registry = damage_registry(
        &rig,
        keys::resources(&rig.namespace),
        "resources",
        AttributeValue::S("gpt-4".to_owned()),
    );
    is_named(store.set_limits(&everybody, &new, &rig.change()).await, "resources", &registry);
    is_named(
        store.set_flag(&everybody, Some(Flag::Disabled), &rig.change()).await,
        "resources",
        &registry,
    );
    assert_eq!(outcome(&rig).await.unwrap().granted, [true, false, false]);
}

fn damage_registry(rig: &Rig, key: Key, attribute: &str, value: AttributeValue) -> Key {
    let mut item = rig.table.get(&key).unwrap();
    item.insert(attribute.to_owned(), value);
    rig.table.insert(&item);
    key
}

#[track_caller]
fn is_named<T: std::fmt::Debug>(result: Result<T, StoreError>, attribute: &str, key: &Key) {
    let error = result.expect_err("there is nothing to count in");
    assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{error}");
    for part in [format!("\"{attribute}\""), format!("{} {}", key.pk, key.sk)] {
        assert!(error.message().contains(&part), "{error}");
    }
}
