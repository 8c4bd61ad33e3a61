//! The JSON schema of the file says what the reader says. A validator of the keywords that the
//! schema uses is here: one for all of JSON schema would be fifty crates.

use serde_json::{Map, Value};
use zae_limiter::{EntityId, LimitName, ResourceName};
use zae_limiter_manifest::{Manifest, SCHEMA};

use crate::fixture;

struct Schema(Value);

impl Schema {
    fn new() -> Schema {
        Schema(serde_json::from_str(SCHEMA).expect("the schema is JSON"))
    }

    /// The first place where a value does not fit, or nothing.
    fn mistake(&self, value: &Value) -> Option<String> {
        self.check(&self.0, value, "$")
    }

    fn check(&self, schema: &Value, value: &Value, at: &str) -> Option<String> {
        let schema = schema.as_object().expect("a schema is an object");
        schema.iter().find_map(|(keyword, rule)| self.keyword(schema, keyword, rule, value, at))
    }

    fn keyword(
        &self,
        schema: &Map<String, Value>,
        keyword: &str,
        rule: &Value,
        value: &Value,
        at: &str,
    ) -> Option<String> {
        let wrong = |is_right: bool| (!is_right).then(|| format!("{at}: {keyword}"));
        match keyword {
            "$schema" | "$id" | "$defs" | "title" | "description" => None,
            "$ref" => {
                let pointer = rule.as_str().expect("a pointer").trim_start_matches('#');
                let target = self.0.pointer(pointer).unwrap_or_else(|| panic!("no {pointer}"));
                self.check(target, value, at)
            }
            "type" => {
                let kinds = rule.as_array().cloned().unwrap_or_else(|| vec![rule.clone()]);
                wrong(kinds.iter().any(|kind| is_kind(value, kind.as_str().expect("a kind"))))
            }
            "enum" => wrong(rule.as_array().expect("a list").contains(value)),
            "const" => wrong(rule == value),
            "anyOf" => {
                let any = rule.as_array().expect("a list");
                wrong(any.iter().any(|schema| self.check(schema, value, at).is_none()))
            }
            "minimum" => {
                let bound = rule.as_i64().expect("a bound");
                wrong(value.as_i64().is_none_or(|number| number >= bound))
            }
            "maximum" => {
                let bound = rule.as_i64().expect("a bound");
                wrong(value.as_i64().is_none_or(|number| number <= bound))
            }
            "minLength" | "maxLength" | "maxProperties" => {
                let bound = rule.as_u64().expect("a bound");
                let bound = usize::try_from(bound).expect("a small bound");
                let size = value
                    .as_str()
                    .map(|text| text.chars().count())
                    .or_else(|| value.as_object().map(Map::len));
                let is_least = keyword.starts_with("min");
                wrong(size.is_none_or(|size| if is_least { size >= bound } else { size <= bound }))
            }
            "pattern" => wrong(value.as_str().is_none_or(|text| matches(rule, text))),
            "required" => {
                let names = rule.as_array().expect("a list");
                let has = |name: &Value| value.get(name.as_str().expect("a name")).is_some();
                wrong(!value.is_object() || names.iter().all(has))
            }
            "properties" => value.as_object()?.iter().find_map(|(key, value)| {
                rule.get(key).and_then(|schema| self.check(schema, value, &format!("{at}.{key}")))
            }),
            "propertyNames" => value.as_object()?.keys().find_map(|key| {
                self.check(rule, &Value::String(key.clone()), &format!("{at}.{key}"))
            }),
            "additionalProperties" => value.as_object()?.iter().find_map(|(key, value)| {
                let known = schema.get("properties").is_some_and(|known| known.get(key).is_some());
                let at = format!("{at}.{key}");
                match rule {
                    _ if known => None,
                    Value::Bool(allowed) => (!allowed).then(|| format!("{at}: {keyword}")),
                    schema => self.check(schema, value, &at),
                }
            }),
            other => panic!("the schema uses {other}, which nothing here checks"),
        }
    }
}

fn is_kind(value: &Value, kind: &str) -> bool {
    match kind {
        "object" => value.is_object(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("{other} is no kind that is checked here"),
    }
}

/// The patterns of the schema are the rules of names, told once more.
fn matches(pattern: &Value, text: &str) -> bool {
    match pattern.as_str().expect("a pattern") {
        r"^[a-zA-Z][a-zA-Z0-9_.\-/:]*$" => text.parse::<ResourceName>().is_ok(),
        r"^[a-zA-Z0-9][a-zA-Z0-9_.\-:@]*$" => text.parse::<EntityId>().is_ok(),
        r"^[a-zA-Z][a-zA-Z0-9_.\-]*$" => text.parse::<LimitName>().is_ok(),
        "^[0-9]" => text.starts_with(|first: char| first.is_ascii_digit()),
        other => panic!("the pattern {other} is checked by nothing here"),
    }
}

/// YAML as JSON, by the reader that the manifest is read with.
fn value(text: &str) -> Value {
    serde_saphyr::from_str(text).expect("YAML")
}

#[test]
fn files_that_are_read_fit_the_schema() {
    let schema = Schema::new();
    for name in ["python.yaml", "ours.yaml"] {
        let text = fixture(name);
        assert_eq!(schema.mistake(&value(&text)), None, "{name}");
        let manifest = Manifest::read(&text).expect("a good file").manifest;
        assert_eq!(schema.mistake(&manifest.to_json()), None, "{name} as it is exported");
        assert_eq!(schema.mistake(&value(&manifest.to_yaml())), None, "{name} as it is exported");
    }
}

/// Small files, each accepted or refused by both.
#[test]
fn reader_and_schema_agree() {
    const FILES: &[(&str, bool)] = &[
        ("{}", false),
        ("namespace: a", true),
        ("namespace: a\nother: 1", false),
        ("namespace: a\nsystem:\nresources:\nentities:", true),
        ("namespace: a\nsystem: {limits: {rpm: {capacity: 1}}, on_unavailable: block}", true),
        ("namespace: a\nsystem: {on_unavailable: perhaps}", false),
        ("namespace: a\nsystem: {disabled: true}", false),
        ("namespace: a\nresources: {r: {limits: {rpm: 5/min}, disabled: false}}", true),
        ("namespace: a\nresources: {r: {cascade: true}}", false),
        ("namespace: a\nresources: {r: {disabled: bypass}}", false),
        ("namespace: a\nresources: {1r: {disabled: true}}", false),
        ("namespace: a\nresources: {_default_: {disabled: true}}", false),
        ("namespace: a\nresources: {r: {limits: {rpm: {capacity: 0}}}}", false),
        ("namespace: a\nresources: {r: {limits: {rpm: {capacity: 1.5}}}}", false),
        ("namespace: a\nresources: {r: {limits: {rpm: {burst: 5}}}}", false),
        ("namespace: a\nresources: {r: {limits: {rpm: {capacity: 1, refill_period: 0}}}}", false),
        ("namespace: a\nresources: {r: {limits: {rpm: {capacity: 1, rate: 2}}}}", false),
        ("namespace: a\nresources: {r: {limits: {rpm: {capacity: 1, soft: true}}}}", false),
        ("namespace: a\nresources: {r: {limits: {rpm: {capacity: 1, soft: false}}}}", true),
        ("namespace: a\nresources: {r: {limits: {rpm: {capacity: 1, schedule: []}}}}", true),
        ("namespace: a\nresources: {r: {limits: {rpm: {capacity: 1, schedule: [1]}}}}", false),
        ("namespace: a\nresources: {r: {limits: {rpm: [1]}}}", false),
        ("namespace: a\nresources: {r: {limits: {rpm: 5}}}", false),
        (
            "namespace: a\nentities: {e: {name: E, parent: f, cascade: true, metadata: {a: b}}}",
            true,
        ),
        ("namespace: a\nentities: {e: {name: 5}}", false),
        ("namespace: a\nentities: {e: {parent: ''}}", false),
        ("namespace: a\nentities: {e: {cascade: maybe}}", false),
        ("namespace: a\nentities: {e: {metadata: {a: 1}}}", false),
        ("namespace: a\nentities: {e: {resources: {_default_: {disabled: true}}}}", true),
        ("namespace: a\nentities: {e: {resources: {r: {parent: x}}}}", false),
        ("namespace: a\nentities: {'': {}}", false),
        ("namespace: a\nentities: [e]", false),
    ];
    let schema = Schema::new();
    for (text, is_good) in FILES {
        assert_eq!(Manifest::read(text).is_ok(), *is_good, "the reader: {text}");
        let mistake = schema.mistake(&value(text));
        assert_eq!(mistake.is_none(), *is_good, "the schema: {text}: {mistake:?}");
    }
}
