//! The same operations by both, item by item and attribute by attribute.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use zae_limiter_testkit::zae_limiter::{Level, LimitsChange, NewEntity, OnUnavailable};

use crate::interop::on_both_tables;
use crate::interop::table::{Made, Shared, limits, of_entity, request, text};

/// Values that differ from one run to the next: what they are is checked, not how much.
const VOLATILE: [&str; 14] = [
    "PK",
    "SK",
    "GSI1PK",
    "GSI2PK",
    "GSI3PK",
    "GSI4PK",
    "GSI4SK",
    "created_at",
    "event_id",
    "pgen",
    "pinc",
    "rf",
    "timestamp",
    "ttl",
];

/// Attributes that only we write, by the kind of item they are on.
const OURS: [(&str, &[&str]); 4] = [
    ("bucket", &["ca", "lw"]),
    // Python writes a version with limits only, not with a flag alone.
    ("config", &["lo", "config_version"]),
    ("entity", &["cv", "version", "anc"]),
    // Which change an event tells of: a change sent again is known by it.
    ("audit", &["config_version"]),
];

/// Items that only we write.
const OUR_ITEMS: [&str; 1] = ["AUDIT#$SYSTEM #AUDIT# namespace_registered"];

/// Values that differ by intent, with the reason.
const OTHERWISE: [(&str, &str); 4] = [
    ("b_wcu_tc", "we count the take that makes a bucket; Python does not"),
    ("config_version", "Python always writes 1; we count"),
    ("principal", "who did it"),
    ("details", "free text for people, compared by name only"),
];

fn kind(sort: &str) -> &'static str {
    match sort {
        "#META" => "entity",
        "#STATE" => "bucket",
        "#RESOURCES" | "#ENTITY_CONFIG_RESOURCES" => "registry",
        sort if sort.starts_with("#CONFIG") => "config",
        sort if sort.starts_with("#AUDIT#") => "audit",
        sort => panic!("an item of a kind this test does not know: {sort}"),
    }
}

/// The items of a namespace by what they are about, without the namespace and what is random.
fn items_of(shared: &Shared, namespace: &str) -> BTreeMap<String, Vec<Value>> {
    let mut found: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    let mut items = shared.items();
    items.sort_by_key(|item| text(&item["SK"]).to_owned());
    for item in items {
        let Some(subject) = text(&item["PK"]).strip_prefix(&format!("{namespace}/")) else {
            continue;
        };
        let sort = text(&item["SK"]);
        let sort = if sort.starts_with("#AUDIT#") {
            format!("#AUDIT# {}", text(&item["action"]))
        } else {
            sort.to_owned()
        };
        found.entry(format!("{subject} {sort}")).or_default().push(item);
    }
    found
}

fn type_of(value: &Value) -> &str {
    value.as_object().and_then(|value| value.keys().next()).map_or("?", String::as_str)
}

/// What an item of ours lacks, has otherwise, or has more than one of Python's.
fn differences(name: &str, theirs: &Value, ours: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let (theirs, ours) = (theirs.as_object().unwrap(), ours.as_object().unwrap());
    let sort = text(&ours["SK"]);
    for (attribute, value) in theirs {
        let Some(mine) = ours.get(attribute) else {
            found.push(format!("{name}: {attribute} is missing, theirs is {value}"));
            continue;
        };
        let is_volatile = VOLATILE.contains(&attribute.as_str())
            || OTHERWISE.iter().any(|(name, _)| name == attribute);
        if type_of(mine) != type_of(value) || (!is_volatile && mine != value) {
            found.push(format!("{name}: {attribute} is {mine}, theirs is {value}"));
        }
    }
    let known = OURS
        .iter()
        .find(|(kind_of, _)| *kind_of == kind(sort))
        .map_or(&[] as &[&str], |(_, known)| known);
    for attribute in ours.keys().filter(|attribute| {
        !theirs.contains_key(*attribute) && !known.contains(&attribute.as_str())
    }) {
        found.push(format!(
            "{name}: {attribute} is ours only, and not known to be: {}",
            ours[attribute]
        ));
    }
    found
}

on_both_tables! {
    /// Every item Python writes, we write with every attribute, of the same type and where it means
    /// the same with the same value; and whatever else we write is on the list above.
    async fn items_of_ours_have_all_that_python_writes(shared: Shared) {
        let rust = shared.rust().await;
        let mut python = shared.python();
        let mine = rust.register_namespace("by-rust").await.unwrap();
        let theirs = python.eval("repo.register_namespace('by-python')");
        python.eval("connect('by-python')");
        let rust = shared.rust_in("by-rust").await;

        for (id, parent) in [("org", None), ("key", Some("org"))] {
            let parent: Option<&str> = parent;
            rust.create_entity(NewEntity {
                id: id.parse().unwrap(),
                name: format!("The {id}"),
                parent: parent.map(|parent| parent.parse().unwrap()),
                cascade: parent.is_some(),
                metadata: [("plan".to_owned(), "gold".to_owned())].into(),
            })
            .await
            .unwrap();
            let parent = parent.map_or("None".to_owned(), |parent| format!("{parent:?}"));
            python.eval(&format!(
                "limiter.create_entity({id:?}, name='The {id}', parent_id={parent}, cascade={parent} is not None, metadata={{'plan': 'gold'}}, principal='python')"
            ));
        }
        let two = limits("rpm:100/min:150 tpm:10000/min");
        let their_two = "[Limit.per_minute('rpm', 100, burst=150), Limit.per_minute('tpm', 10000)]";
        let allow = LimitsChange { on_unavailable: Some(OnUnavailable::Allow), ..two.clone().into() };
        rust.set_limits(&Level::System, allow).await.unwrap();
        python.eval(&format!("limiter.set_system_defaults({their_two}, on_unavailable=OnUnavailable.ALLOW, principal='python')"));
        rust.set_limits(&Level::Resource("gpt-4".parse().unwrap()), two.clone()).await.unwrap();
        python.eval(&format!("limiter.set_resource_defaults('gpt-4', {their_two}, principal='python')"));
        rust.set_limits(&Level::Entity("org".parse().unwrap()), two.clone()).await.unwrap();
        python.eval(&format!("limiter.set_limits('org', {their_two}, principal='python')"));
        rust.set_limits(&of_entity("vip"), two).await.unwrap();
        python.eval(&format!("limiter.set_limits('vip', {their_two}, resource='gpt-4', principal='python')"));
        for (level, their_call) in [
            (Level::Resource("dall-e".parse().unwrap()), "repo.disable_resource('dall-e', principal='python')"),
            (Level::EntityResource("bad".parse().unwrap(), "gpt-4".parse().unwrap()), "repo.disable_entity('bad', 'gpt-4', principal='python')"),
        ] {
            rust.disable(&level).await.unwrap();
            python.eval(their_call);
        }
        // Buckets: of an entity with a parent, of one with limits of its own, and of one that was
        // never created.
        for key in ["key", "vip", "unknown"] {
            rust.acquire(request(key, "rpm", 1).take("tpm", 500)).await.unwrap().commit().await.unwrap();
            assert_eq!(python.eval(&format!("take({key:?}, 'gpt-4', {{'rpm': 1, 'tpm': 500}})")), true);
        }

        let (theirs, ours) = (items_of(&shared, theirs.as_str().unwrap()), items_of(&shared, mine.id.as_str()));
        let mut found = Vec::new();
        for (name, items) in &theirs {
            // A flag has a word of its own in our audit.
            let Some(mine) = ours.get(name) else {
                found.push(format!("{name}: we write none"));
                continue;
            };
            for (theirs, ours) in items.iter().zip(mine) {
                found.extend(differences(name, theirs, ours));
            }
        }
        let more: BTreeSet<&String> = ours.keys().filter(|name| !theirs.contains_key(*name) && !OUR_ITEMS.contains(&name.as_str())).collect();
        assert!(found.is_empty() && more.is_empty(), "{}\nonly ours: {more:#?}", found.join("\n"));
        assert!(theirs.len() >= 20, "the case must show items of every kind: {:#?}", theirs.keys());
    }

    /// The records that belong to no namespace.
    async fn the_registry_of_ours_has_all_that_python_writes(shared: Shared) {
        let mut python = shared.python();
        let rust = shared.rust().await;
        rust.register_namespace("by-rust").await.unwrap();
        python.eval("repo.register_namespace('by-python')");
        let items = shared.items();
        let registry = |sort: &str| items.iter().find(|item| text(&item["PK"]) == "_/SYSTEM#" && text(&item["SK"]) == sort).cloned();
        let names = |item: &Value| item.as_object().unwrap().keys().cloned().collect::<BTreeSet<String>>();
        let (theirs, ours) = (registry("#NAMESPACE#by-python").unwrap(), registry("#NAMESPACE#by-rust").unwrap());
        assert!(names(&theirs).is_subset(&names(&ours)), "{theirs}\n{ours}");
        let reverse = |item: &Value| registry(&format!("#NSID#{}", text(&item["namespace_id"]))).unwrap();
        assert!(names(&reverse(&theirs)).is_subset(&names(&reverse(&ours))), "{}\n{}", reverse(&theirs), reverse(&ours));
        let version = registry("#VERSION").unwrap();
        for name in ["schema_version", "lambda_version", "client_min_version", "updated_at", "updated_by", "GSI4PK", "GSI4SK"] {
            assert!(version.get(name).is_some() || shared.made == Made::ByPython, "{name}: {version}");
        }
        assert_eq!(python.eval("repo.get_version_record()['schema_version']"), "0.10.0");
    }
}
