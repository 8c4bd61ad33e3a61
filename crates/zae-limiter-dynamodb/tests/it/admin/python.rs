//! Administration on items as the Python package writes them.

use aws_sdk_dynamodb::types::AttributeValue;
use zae_limiter_core::{EntityId, Flag, NamespaceId, NamespaceName, ResourceName};
use zae_limiter_dynamodb::table::{Item, Key, number, text};
use zae_limiter_store::{
    ConfigStore, DeletedEntity, Level, MemberKey, NamespaceStore, PageRequest, StoreErrorKind,
};
use zae_limiter_testkit::table::EvalOptions;

use super::{Rig, id, keys, limits, new_entity, on};

impl Rig {
    /// Puts an item there; keys begin with the namespace.
    fn put(&self, pk: &str, sk: &'static str, attributes: &[(&str, AttributeValue)]) -> Key {
        let key = Key { pk: format!("{}/{pk}", self.namespace), sk: sk.into() };
        let mut item: Item =
            attributes.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        item.insert("PK".to_owned(), text(key.pk.as_str()));
        item.insert("SK".to_owned(), text(sk));
        self.table.insert(&item);
        key
    }
}

/// What its provisioner writes: limits, but neither the key by which they are listed nor the count.
fn provisioned() -> Vec<(&'static str, AttributeValue)> {
    vec![
        ("entity_id", text("key")),
        ("resource", text("chat")),
        ("l_rpm_cp", number(5)),
        ("l_rpm_ra", number(5)),
        ("l_rpm_rp", number(60)),
    ]
}

/// A bug of the Python package 0.17: such limits are counted out although nobody has counted them
/// in.
#[tokio::test]
async fn limits_of_the_provisioner_are_counted_when_we_touch_them() {
    let rig = Rig::new(EvalOptions::new()).await;
    let (store, level) = (rig.store().await, on("key", "chat"));
    let registry = || {
        rig.table
            .get(&keys::entity_config_resources(&rig.namespace))
            .and_then(|item| item.get("chat").cloned())
    };
    let key = rig.put("ENTITY#key", "#CONFIG#chat", &provisioned());
    assert!(store.delete_limits(&level, &rig.change()).await.unwrap());
    assert_eq!((rig.table.get(&key), registry()), (None, None));

    rig.put(
        "ENTITY#key",
        "#CONFIG#chat",
        &[provisioned(), vec![("cascade", AttributeValue::Bool(true))]].concat(),
    );
    store.set_limits(&level, &limits("tpm:9/min"), &rig.change()).await.unwrap();
    let item = rig.table.get(&key).unwrap();
    assert!(
        item.contains_key("GSI3PK")
            && item.contains_key("cascade")
            && !item.contains_key("l_rpm_cp"),
        "{item:?}"
    );
    assert_eq!(registry(), Some(number(1)));
    assert!(store.delete_limits(&level, &rig.change()).await.unwrap());
    assert!(
        rig.table.get(&key).unwrap().contains_key("cascade"),
        "what others store at the level stays"
    );
    assert_eq!(registry(), Some(number(1)));
}

/// A level may overrule the cascade of its entities. A flag we cannot honour is an error only where
/// it decides.
#[tokio::test]
async fn a_level_has_a_cascade_of_its_own_and_bypass_is_refused() {
    let rig = Rig::new(EvalOptions::new()).await;
    let store = rig.store().await;
    for (name, parent) in [("org", None), ("key", Some("org"))] {
        let mut new = new_entity(name, parent);
        new.cascade = false;
        store.create_entity(&new, &rig.change()).await.unwrap();
    }
    let attributes = [
        ("resource", text("gpt-4")),
        ("cascade", AttributeValue::Bool(true)),
        ("disabled", text("bypass")),
    ];
    rig.put("RESOURCE#gpt-4", "#CONFIG", &attributes);
    let (key, gpt, other): (EntityId, ResourceName, ResourceName) =
        (id("key"), "gpt-4".parse().unwrap(), "other".parse().unwrap());
    let error = store.resolve(&[MemberKey { entity: &key, resource: &gpt }]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Incompatible);
    assert!(error.to_string().contains("resolve: attribute \"disabled\""), "{error}");

    store.set_flag(&Level::Entity(key.clone()), Some(Flag::Enabled), &rig.change()).await.unwrap();
    let members =
        [MemberKey { entity: &key, resource: &gpt }, MemberKey { entity: &key, resource: &other }];
    let found = store.resolve(&members).await.unwrap();
    assert_eq!(found.members[0].cascades_to, Some(id("org")));
    assert_eq!(found.members[1].cascades_to, None);
}

#[tokio::test]
async fn a_purge_finds_what_no_index_lists_and_ids_are_not_used_again() {
    const ENTITIES: usize = 260;
    let mut rig = Rig::new(EvalOptions::new()).await;
    let (store, name, namespace): (_, NamespaceName, NamespaceId) =
        (rig.store().await, "team".parse().unwrap(), "team-id".parse().unwrap());
    store.register_namespace(&name, &namespace, &rig.change()).await.unwrap();
    let home = std::mem::replace(&mut rig.namespace, namespace.to_string());
    for index in 0..ENTITIES {
        let partition = format!("ENTITY#e{index}");
        rig.put(
            &partition,
            "#META",
            &[("GSI4PK", text("team-id")), ("GSI4SK", text(format!("team-id/{partition}")))],
        );
    }
    rig.put("SYSTEM#", "#PROVISIONER", &[("GSI4PK", text("team-id"))]);
    rig.namespace = home;
    store.delete_namespace(&name, &rig.change()).await.unwrap();
    let purged = store.purge_namespace(&namespace, &rig.change()).await.unwrap();
    assert_eq!(
        purged.records,
        260 + 1 + 2,
        "entities, the provisioner's record and two audit events"
    );
    assert!(
        !rig.table.items().iter().any(|item| item["PK"].as_s().unwrap().starts_with("team-id/"))
    );
    let error = store.register_namespace(&name, &namespace, &rig.change()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::AlreadyExists, "{error}");
    let error = store.purge_namespace(&namespace, &rig.change()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::NotFound, "{error}");
}

#[tokio::test]
async fn a_deletion_takes_shards_and_recorded_operations_along() {
    let rig = Rig::new(EvalOptions::new()).await;
    let (store, entity) = (rig.store().await, id("key"));
    store.create_entity(&new_entity("key", None), &rig.change()).await.unwrap();
    for shard in 0..4 {
        let listed = [
            ("GSI3PK", text(format!("{}/ENTITY#key", rig.namespace))),
            ("GSI3SK", text(format!("BUCKET#chat#{shard}"))),
        ];
        rig.put(&format!("BUCKET#key#chat#{shard}"), "#STATE", &listed);
    }
    rig.put("BUCKET#key#chat#0", "#OP#k1", &[("operation", text("top_up"))]);
    store
        .set_limits(&Level::Entity(entity.clone()), &limits("rpm:1"), &rig.change())
        .await
        .unwrap();
    assert_eq!(
        store.delete_entity(&entity, &rig.change()).await.unwrap(),
        DeletedEntity { buckets: 1, configs: 1 }
    );
    let left = |item: &Item| {
        ["BUCKET#", "/ENTITY#"].iter().any(|part| item["PK"].as_s().unwrap().contains(part))
    };
    assert!(!rig.table.items().iter().any(left), "nothing is left");
    assert!(
        store.resources_with_entity_limits(&PageRequest::default()).await.unwrap().items.is_empty()
    );
    assert_eq!(
        store.delete_entity(&entity, &rig.change()).await.unwrap_err().kind(),
        StoreErrorKind::NotFound
    );
}
