//! Every key has one reading, and no two records share one.

use proptest::prelude::*;
use zae_limiter_core::AuditSubject;
use zae_limiter_core::TimeMs;
use zae_limiter_core::UsageWindow;

use super::*;

/// Everything that is stored, by the names it is stored under.
#[derive(Clone, Debug, PartialEq)]
enum Record {
    Bucket(String, EntityId, ResourceName, u32),
    Entity(String, EntityId),
    EntityConfig(String, EntityId, Option<ResourceName>),
    Usage(String, EntityId, ResourceName, UsageWindow, TimeMs),
    ResourceConfig(String, ResourceName),
    SystemConfig(String),
    Resources(String),
    EntityConfigResources(String),
    Audit(String, AuditSubject, String),
    Version,
    NamespaceByName(String),
    NamespaceById(String),
    PurgedNamespace(String),
}

impl Record {
    fn key(&self) -> Key {
        match self {
            Record::Bucket(ns, id, name, shard) => bucket(ns, id, name, *shard),
            Record::Entity(ns, id) => entity(ns, id),
            Record::EntityConfig(ns, id, name) => entity_config(ns, id, name.as_ref()),
            Record::Usage(ns, id, name, window, at) => usage(ns, id, name, &window.key(*at)),
            Record::ResourceConfig(ns, name) => resource_config(ns, name),
            Record::SystemConfig(ns) => system_config(ns),
            Record::Resources(ns) => resources(ns),
            Record::EntityConfigResources(ns) => entity_config_resources(ns),
            Record::Audit(ns, subject, id) => audit(ns, subject, id),
            Record::Version => version(),
            Record::NamespaceByName(name) => namespace_by_name(name),
            Record::NamespaceById(id) => namespace_by_id(id),
            Record::PurgedNamespace(id) => purged_namespace(id),
        }
    }
}

/// Short names of few characters collide often if keys can; long ones reach the bounds of a key.
fn namespaces() -> impl Strategy<Value = String> {
    prop_oneof!["[a-b_][a-b_-]{0,2}", "[A-Za-z0-9_][A-Za-z0-9_-]{63}"]
        .prop_filter("not the registry", |id| id != REGISTRY)
}

fn entities() -> impl Strategy<Value = EntityId> {
    prop_oneof![
        "[a-b0][a-b0_.:@-]{0,3}",
        "[a-zA-Z0-9][a-zA-Z0-9_.:@-]{255}",
        "(BUCKET|ENTITY|CONFIG|META|RESOURCE:a)"
    ]
    .prop_map(|id| id.parse().expect("a valid id"))
}

fn resource_names() -> impl Strategy<Value = ResourceName> {
    let texts = prop_oneof![
        "[a-b][a-b0_./:-]{0,3}",
        "[a-zA-Z][a-zA-Z0-9_./:-]{63}",
        "(a/BUCKET|b/ENTITY|CONFIG|META|SYSTEM)"
    ];
    texts.prop_filter_map("reserved", |name| name.parse().ok())
}

fn windows() -> impl Strategy<Value = (UsageWindow, TimeMs)> {
    (proptest::sample::select(UsageWindow::ALL.to_vec()), 1_760_000_000_000..1_790_000_000_000_i64)
        .prop_map(|(window, at)| (window, window.start_of(TimeMs(at))))
}

fn subjects() -> impl Strategy<Value = AuditSubject> {
    prop_oneof![
        Just(AuditSubject::System),
        resource_names().prop_map(AuditSubject::Resource),
        entities().prop_map(AuditSubject::Entity),
    ]
}

fn records() -> impl Strategy<Value = Record> {
    prop_oneof![
        (namespaces(), entities(), resource_names(), 0..33_u32)
            .prop_map(|(ns, id, name, shard)| Record::Bucket(ns, id, name, shard)),
        (namespaces(), entities()).prop_map(|(ns, id)| Record::Entity(ns, id)),
        (namespaces(), entities(), proptest::option::of(resource_names()))
            .prop_map(|(ns, id, name)| Record::EntityConfig(ns, id, name)),
        (namespaces(), entities(), resource_names(), windows())
            .prop_map(|(ns, id, name, (window, at))| Record::Usage(ns, id, name, window, at)),
        (namespaces(), resource_names()).prop_map(|(ns, name)| Record::ResourceConfig(ns, name)),
        namespaces().prop_map(Record::SystemConfig),
        namespaces().prop_map(Record::Resources),
        namespaces().prop_map(Record::EntityConfigResources),
        (namespaces(), subjects(), "[0-7][0-9A-HJKMNP-TV-Z]{25}")
            .prop_map(|(ns, subject, id)| Record::Audit(ns, subject, id)),
        Just(Record::Version),
        "[a-b0][a-b0_.-]{0,3}".prop_map(Record::NamespaceByName),
        namespaces().prop_map(Record::NamespaceById),
        namespaces().prop_map(Record::PurgedNamespace),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_two_records_share_a_key(records in proptest::collection::vec(records(), 2..12)) {
        for (index, one) in records.iter().enumerate() {
            for other in &records[..index] {
                prop_assert_eq!(one.key() == other.key(), one == other, "{:?} and {:?}", one, other);
            }
        }
    }

    #[test]
    fn keys_are_within_the_bounds_of_the_table(record in records()) {
        let key = record.key();
        prop_assert!(key.pk.len() <= 2_048 && key.sk.len() <= 1_024, "{:?}", key);
        let (namespace, _) = key.pk.split_once('/').expect("every key begins with a namespace");
        prop_assert!(namespace == REGISTRY || !namespace.contains('#'), "{:?}", key);
    }

    #[test]
    fn what_was_built_is_read(ns in namespaces(), id in entities(), name in resource_names(), shard in 0..33_u32, (window, at) in windows()) {
        let pk = bucket(&ns, &id, &name, shard).pk;
        prop_assert!(parse_bucket(&ns, &pk) == Some((id.as_str(), name.as_str(), shard)));
        prop_assert_eq!(bucket_of(&ns, id.as_str(), name.as_str(), shard), bucket(&ns, &id, &name, shard));
        prop_assert!(parse_entity_partition(&ns, &entity(&ns, &id).pk) == Some(id.as_str()));
        prop_assert!(parse_entity_config(&entity_config(&ns, &id, Some(&name)).sk) == Some(name.as_str()));
        prop_assert!(parse_entity_config(&entity_config(&ns, &id, None).sk) == Some(ALL_RESOURCES));
        prop_assert_eq!(entity_config_of(&ns, id.as_str(), name.as_str()), entity_config(&ns, &id, Some(&name)));
        prop_assert_eq!(resource_config_of(&ns, name.as_str()), resource_config(&ns, &name));
        let (word, key) = (window.key(at), usage(&ns, &id, &name, &window.key(at)));
        prop_assert!(parse_usage(&key.sk) == Some((name.as_str(), word.as_str())));
        prop_assert!(key.sk.starts_with(&usage_prefix(Some(&name))));
        prop_assert!(index::parse_child(&index::child(&id)) == Some(id.as_str()));
        prop_assert!(index::parse_resource_usage(&index::resource_usage(&word, &id)) == Some((word.as_str(), id.as_str())));
        prop_assert!(index::entity_bucket(&name, shard).starts_with(&index::entity_bucket_prefix(&name)));
        prop_assert!(entity(&ns, &id).pk.starts_with(&index::entities(&ns)));
    }

    #[test]
    fn one_namespace_is_not_the_beginning_of_another(one in namespaces(), other in namespaces(), id in entities(), name in resource_names()) {
        prop_assume!(one != other);
        prop_assert!(parse_bucket(&one, &bucket(&other, &id, &name, 0).pk).is_none());
        prop_assert!(parse_entity_partition(&one, &entity(&other, &id).pk).is_none());
    }

    /// What the end of a page and the beginning of the next rely on.
    #[test]
    fn a_cursor_is_behind_its_name_and_before_the_next(one in entities(), other in entities()) {
        let after = format!("{one}!");
        prop_assert!(after.as_str() > one.as_str());
        prop_assert_eq!(other > one, other.as_str() >= after.as_str());
        prop_assert!(END.to_string().as_str() > other.as_str());
    }
}

#[test]
fn keys_look_as_the_schema_says() {
    let (id, name): (EntityId, ResourceName) =
        ("key".parse().expect("an id"), "api/v1".parse().expect("a resource"));
    for (key, pk, sk) in [
        (bucket("ns", &id, &name, 3), "ns/BUCKET#key#api/v1#3", "#STATE"),
        (entity("ns", &id), "ns/ENTITY#key", "#META"),
        (entity_config("ns", &id, None), "ns/ENTITY#key", "#CONFIG#_default_"),
        (entity_config("ns", &id, Some(&name)), "ns/ENTITY#key", "#CONFIG#api/v1"),
        (usage("ns", &id, &name, "2026-01"), "ns/ENTITY#key", "#USAGE#api/v1#2026-01"),
        (resource_config("ns", &name), "ns/RESOURCE#api/v1", "#CONFIG"),
        (system_config("ns"), "ns/SYSTEM#", "#CONFIG"),
        (resources("ns"), "ns/SYSTEM#", "#RESOURCES"),
        (entity_config_resources("ns"), "ns/SYSTEM#", "#ENTITY_CONFIG_RESOURCES"),
        (audit("ns", AuditSubject::System, "01M7"), "ns/AUDIT#$SYSTEM", "#AUDIT#01M7"),
        (
            audit("ns", AuditSubject::Resource(name.clone()), "01M7"),
            "ns/AUDIT#$RESOURCE:api/v1",
            "#AUDIT#01M7",
        ),
        (version(), "_/SYSTEM#", "#VERSION"),
        (namespace_by_name("default"), "_/SYSTEM#", "#NAMESPACE#default"),
        (namespace_by_id("abc"), "_/SYSTEM#", "#NSID#abc"),
    ] {
        assert_eq!((key.pk.as_str(), key.sk.as_ref()), (pk, sk));
    }
    assert_eq!(index::children("ns", &id), "ns/PARENT#key");
    assert_eq!(index::child(&id), "CHILD#key");
    assert_eq!(index::resource("ns", &name), "ns/RESOURCE#api/v1");
    assert_eq!(index::resource_usage("2026-01", &id), "USAGE#2026-01#key");
    assert_eq!(index::entity_configs("ns", None), "ns/ENTITY_CONFIG#_default_");
}
