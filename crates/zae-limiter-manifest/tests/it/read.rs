//! What files say, and every mistake by its line.

use zae_limiter::{Flag, OnUnavailable};
use zae_limiter_manifest::{Manifest, Place};

use crate::fixture;

fn read(text: &str) -> Manifest {
    Manifest::read(text).unwrap_or_else(|error| panic!("{error}")).manifest
}

fn problems(text: &str) -> Vec<String> {
    let error = Manifest::read(text).expect_err("the file has mistakes");
    error.problems.iter().map(ToString::to_string).collect()
}

fn limits(manifest: &Manifest, place: &Place) -> String {
    let spec = manifest.levels.get(place).unwrap_or_else(|| panic!("nothing at {place}"));
    spec.limits.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

fn on(entity: &str, resource: Option<&str>) -> Place {
    let resource = resource.map(|name| name.parse().expect("a resource"));
    match entity {
        "" => Place { entity: None, resource },
        id => Place::entity(id.parse().expect("an id"), resource),
    }
}

#[test]
fn a_file_of_the_python_package_is_read_as_it_reads_it() {
    let manifest = read(&fixture("python.yaml"));
    assert_eq!(manifest.namespace, "tenant-alpha");
    assert_eq!(manifest.on_unavailable, Some(OnUnavailable::Allow));
    assert_eq!(limits(&manifest, &Place::SYSTEM), "rpm:1000/min tpm:50000/30sec:100000");
    assert_eq!(limits(&manifest, &on("", Some("gpt-4"))), "rpm:100/min:500 tpm:75000/min");
    assert_eq!(limits(&manifest, &on("", Some("gpt-3.5/turbo"))), "rpd:10000/day");
    assert_eq!(limits(&manifest, &on("user-123", Some("gpt-4"))), "rpm:2000/min");
    assert_eq!(limits(&manifest, &on("42@example.com", None)), "rpm:1/sec:10");
    let flag = |place: Place| manifest.levels[&place].flag;
    assert_eq!(flag(on("", Some("old-model"))), Some(Flag::Disabled));
    assert_eq!(flag(on("", Some("gpt-3.5/turbo"))), Some(Flag::Enabled));
    assert_eq!(flag(on("user-123", Some("old-model"))), Some(Flag::Enabled));
    assert_eq!(flag(on("42@example.com", None)), Some(Flag::Disabled));
    assert_eq!(flag(on("", Some("gpt-4"))), None);
    assert!(manifest.entities.is_empty(), "the Python package creates none");
}

#[test]
fn every_other_kind_is_named_by_its_line() {
    const KIND: &str =
        "this kind of limit is not supported: only token buckets that refill steadily are";
    const CASCADE: &str = "cascade policies of levels are not supported; an entity cascades by \
                           `cascade: true` beside its parent";
    assert_eq!(
        problems(&fixture("python-kinds.yaml")),
        [
            format!("line 8: system.limits.tpd.reset_schedule: {KIND}"),
            format!("line 12: resources.gpt-4.cascade: {CASCADE}"),
            format!("line 16: resources.gpt-4.limits.rpm.schedule: {KIND}"),
            format!("line 18: resources.gpt-4.limits.tpm.soft: {KIND}"),
            "line 20: resources.chat.disabled: bypass is not supported; use true, false, or leave \
             it out"
                .to_owned(),
            format!("line 24: resources.chat.limits.msg.reset_after_seconds: {KIND}"),
            format!("line 29: entities.user-123.resources.gpt-4.cascade: {CASCADE}"),
        ]
    );
}

#[test]
fn every_mistake_is_told_at_once() {
    let found = problems(&fixture("mistakes.yaml"));
    for (line, words) in [
        (1, "namespace: a list is no name; put it in quotes"),
        (2, "sistem: is no key here; use one of namespace, system, resources, entities"),
        (4, "system.disabled: the system level has none; give it to a resource or an entity"),
        (5, "system.on_unavailable: on_unavailable \"maybe\" is not known"),
        (7, "system.limits.rpm.capacity: 0 is no whole number above 0"),
        (8, "system.limits.tpm.capacity: \"10\" is no whole number above 0"),
        (9, "system.limits.1rpm: limit name \"1rpm\""),
        (10, "system.limits.rps: capacity is missing"),
        (11, "system.limits.rpd: "),
        (12, "system.limits.rph.per: is no key here"),
        (12, "system.limits.rph.capacity: 1.5 is no whole number above 0"),
        (14, "resources.gpt 4: resource \"gpt 4\""),
        (15, "resources.gpt-5.disabled: \"maybe\" is neither true nor false"),
        (16, "resources.gpt-6: 3 is no mapping"),
        (18, "entities.a#b: entity id \"a#b\""),
        (19, "entities.key-1: an entity cannot be its own parent"),
        (20, "entities.key-1.name: 7 is not a name; put it in quotes"),
        (22, "entities.key-1.cascade: \"sometimes\" is neither true nor false"),
        (23, "entities.key-1.metadata.since: 2020 is not a text; put it in quotes"),
        (24, "entities.key-1.limits.rpm: true is no limit"),
        (27, "entities.key-1.resources._default_: is given twice"),
    ] {
        let expected = format!("line {line}: {words}");
        assert!(found.iter().any(|told| told.starts_with(&expected)), "{expected}\n{found:#?}");
    }
    assert_eq!(found.len(), 21, "{found:#?}");
}

/// Not the keys that are refused in words of their own.
#[test]
fn the_advice_about_a_key_can_be_followed() {
    for (text, advice) in [
        ("system: {x: 1}", "line 2: system.x: is no key here; use one of on_unavailable, limits"),
        (
            "resources: {a: {x: 1}}",
            "line 2: resources.a.x: is no key here; use one of limits, disabled",
        ),
        (
            "system: {limits: {rpm: {capacity: 1, x: 1}}}",
            "line 2: system.limits.rpm.x: is no key here; use one of capacity, burst, \
             refill_amount, refill_period",
        ),
    ] {
        assert_eq!(problems(&format!("namespace: default\n{text}\n")), [advice]);
    }
}

#[test]
fn a_number_is_a_name_as_it_is_written_only() {
    assert_eq!(read("namespace: default\nentities: {a: {parent: 31}}\n").entities.len(), 1);
    let found = problems("namespace: default\nentities: {a: {parent: 0x1F}}\n");
    assert_eq!(found, ["line 2: entities.a.parent: 31 is no name; put it in quotes"]);
}

#[test]
fn a_file_that_is_no_mapping_or_has_no_namespace_is_refused() {
    for (text, words) in [
        ("", "a namespace is missing"),
        ("system: {}\n", "a namespace is missing"),
        ("- a\n", "is no mapping"),
        ("namespace: a\nnamespace: b\n", "line 2"),
        ("namespace: a/b c\n", "namespace"),
        ("namespace: [\n", "line"),
    ] {
        let found = problems(text).join("; ");
        assert!(found.contains(words), "{text:?}: {found}");
    }
}

#[test]
fn what_says_nothing_is_warned_about() {
    let text =
        "namespace: default\nresources:\n  gpt-4:\n  gpt-5: {limits: {}}\nentities:\n  a: {}\n";
    let read = Manifest::read(text).expect("a good file");
    assert!(read.manifest.levels.is_empty() && read.manifest.entities.is_empty());
    let warned: Vec<String> = read.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warned,
        [
            "line 3: resources.gpt-4: says nothing, and changes nothing",
            "line 4: resources.gpt-5: says nothing, and changes nothing",
            "line 6: entities.a: says nothing, and changes nothing; `name:` would create it",
        ]
    );
}

#[test]
fn what_is_written_is_read_back_the_same() {
    for name in ["python.yaml", "ours.yaml"] {
        let manifest = read(&fixture(name));
        let yaml = manifest.to_yaml();
        let mut again = read(&yaml);
        assert_eq!(again.to_yaml(), yaml, "{name}");
        for (id, spec) in &mut again.entities {
            spec.line = manifest.entities[id].line;
        }
        assert_eq!(again, manifest, "{name}:\n{yaml}");
        assert_eq!(read(&manifest.to_json().to_string()).to_yaml(), yaml, "{name} as JSON");
    }
}

#[test]
fn odd_names_and_texts_survive() {
    let text = r#"{"namespace": "default", "resources": {"true": {"disabled": true}, "a:": {"disabled": true}},
        "entities": {"1e3": {"name": "a\u2028\u202e\"\\: #x"}, "null": {"name": "~"},
                     "007": {"name": "yes", "parent": "1e3", "metadata": {"~": "", "no": "é"}}}}"#;
    let manifest = read(text);
    let yaml = manifest.to_yaml();
    let odd = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}' || c == '\u{2028}';
    assert!(!yaml.contains(odd), "nothing odd reaches a terminal: {yaml:?}");
    let again = read(&yaml);
    assert_eq!(again.to_json(), manifest.to_json(), "{yaml}");
    assert_eq!(again.levels.len(), 2);
    let ids: Vec<String> = again.entities.keys().map(ToString::to_string).collect();
    assert_eq!(ids, ["007", "1e3", "null"]);
}
