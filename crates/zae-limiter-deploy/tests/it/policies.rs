//! Each policy grants what its role asks for, and nothing else: every call that the conformance
//! suite, an operator and the aggregator make, judged by the policies of the template.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use serde_json::Value;
use zae_limiter_deploy::{PolicyName, StackOptions};
use zae_limiter_testkit::traffic::{self, Need, Sent};

use crate::cfn::{ACCOUNT, REGION, STACK, Stack, object, text};
use crate::iam::{Call, allows};

use zae_limiter_deploy::PolicyName::{
    AcquireOnly, FullAccess, NamespaceAcquire, NamespaceFullAccess, NamespaceReadOnly, ReadOnly,
    RegistryAdmin,
};

const TAG: &str = "aws:PrincipalTag/zael_namespace_id";

/// Recorded once for all tests.
fn traffic() -> &'static BTreeSet<Sent> {
    static TRAFFIC: OnceLock<BTreeSet<Sent>> = OnceLock::new();
    TRAFFIC.get_or_init(|| &traffic::of_conformance() | &traffic::of_operator())
}

fn document(policy: PolicyName) -> Value {
    let stack = Stack::whole(&StackOptions::new());
    stack.properties(policy.logical_id())["PolicyDocument"].clone()
}

fn documents() -> &'static BTreeMap<PolicyName, Value> {
    static DOCUMENTS: OnceLock<BTreeMap<PolicyName, Value>> = OnceLock::new();
    DOCUMENTS.get_or_init(|| {
        PolicyName::ALL.into_iter().map(|policy| (policy, document(policy))).collect()
    })
}

fn call(need: &Need, tag: Option<&str>) -> Call {
    let table = format!("arn:aws:dynamodb:{REGION}:{ACCOUNT}:table/{STACK}");
    let resource = need.index.map_or(table.clone(), |index| format!("{table}/index/{index}"));
    let call = Call::new(need.action, &resource);
    let call = match need.keys.is_empty() {
        true => call,
        false => call.with("dynamodb:LeadingKeys", need.keys.iter().cloned()),
    };
    tag.into_iter().fold(call, |call, tag| call.with(TAG, [tag]))
}

fn grants(policies: &[PolicyName], need: &Need, tag: Option<&str>) -> bool {
    let documents: Vec<Value> = policies.iter().map(|policy| documents()[policy].clone()).collect();
    allows(&documents, &call(need, tag))
}

/// Who does what. An operation that is not named here has no policy yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Duty {
    Takes,
    Reads,
    /// Reads what all namespaces share.
    Lists,
    Administers,
    Registers,
}

fn duty(operation: &str) -> Duty {
    match operation {
        "connect" | "ping" | "scoped" | "store_time" | "resolve" | "consume" | "peek"
        | "adjust" => Duty::Takes,
        "buckets"
        | "resource_buckets"
        | "namespace_buckets"
        | "entity"
        | "children"
        | "entities"
        | "level"
        | "resources_with_defaults"
        | "entities_with_limits"
        | "resources_with_entity_limits"
        | "audit_events"
        | "audit_log"
        | "usage"
        | "usage_summary"
        | "managed"
        | "namespace" => Duty::Reads,
        "namespaces" | "orphan_namespaces" | "versions" => Duty::Lists,
        "reset" | "create_entity" | "update_entity" | "delete_entity" | "set_limits"
        | "delete_limits" | "set_flag" | "set_managed" | "adopt" => Duty::Administers,
        "initialise"
        | "register_namespace"
        | "delete_namespace"
        | "recover_namespace"
        | "purge_namespace"
        | "set_retention"
        | "stamp_function"
        | "require_shard_readers"
        | "plan"
        | "migrate" => Duty::Registers,
        other => panic!("{other:?} calls the table: say here whose duty it is, and grant it"),
    }
}

/// The policies that are enough for a duty: in every namespace, and in one.
fn enough(duty: Duty) -> (&'static [&'static [PolicyName]], &'static [&'static [PolicyName]]) {
    match duty {
        Duty::Takes => {
            (&[&[AcquireOnly], &[FullAccess]], &[&[NamespaceAcquire], &[NamespaceFullAccess]])
        }
        Duty::Reads => (
            &[&[ReadOnly], &[AcquireOnly], &[FullAccess]],
            &[&[NamespaceReadOnly], &[NamespaceAcquire], &[NamespaceFullAccess]],
        ),
        Duty::Lists => (&[&[ReadOnly], &[AcquireOnly], &[FullAccess]], &[]),
        Duty::Administers => (&[&[FullAccess]], &[&[NamespaceFullAccess]]),
        Duty::Registers => (&[&[FullAccess, RegistryAdmin]], &[]),
    }
}

#[test]
fn each_role_is_granted_everything_that_it_asks_for() {
    let mut duties = BTreeMap::<String, usize>::new();
    for sent in traffic() {
        let duty = duty(sent.operation);
        *duties.entry(format!("{duty:?}")).or_default() += 1;
        let (everywhere, inside) = enough(duty);
        for need in &sent.needs {
            for policies in everywhere {
                assert!(grants(policies, need, None), "{policies:?} lacks {need:?} for {sent:?}");
            }
            for policies in inside {
                let tag = sent.namespace.as_deref();
                assert!(tag.is_some(), "{sent:?} is bound to a namespace");
                assert!(grants(policies, need, tag), "{policies:?} lacks {need:?} for {sent:?}");
            }
        }
    }
    assert_eq!(duties.len(), 5, "the suite has something for every duty: {duties:?}");
}

/// A look needs no permission to write, and a take none to delete.
#[test]
fn a_reader_needs_no_write() {
    for sent in traffic() {
        let reads =
            matches!(duty(sent.operation), Duty::Reads | Duty::Lists) || sent.operation == "peek";
        for need in &sent.needs {
            let is_read = matches!(need.action, "dynamodb:BatchGetItem" | "dynamodb:Query");
            assert!(!reads || is_read, "{sent:?}");
            assert!(
                duty(sent.operation) != Duty::Takes || !need.action.contains("Delete"),
                "{sent:?}"
            );
        }
    }
}

/// What a key belongs to, by the schema; written here once more, on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place<'a> {
    /// The partition that every client looks into: versions and namespaces.
    Shared,
    /// Anything else beside it.
    Registry,
    Bucket(&'a str),
    Other(&'a str),
}

fn place(key: &str) -> Place<'_> {
    match key.split_once('/') {
        Some(("_", "SYSTEM#")) => Place::Shared,
        Some(("_", _)) => Place::Registry,
        Some((namespace, rest)) if rest.starts_with("BUCKET#") => Place::Bucket(namespace),
        Some((namespace, _)) => Place::Other(namespace),
        None if key == "_" => Place::Registry,
        None => Place::Other(key),
    }
}

fn is_registry(place: Place<'_>) -> bool {
    matches!(place, Place::Shared | Place::Registry)
}

/// What a policy is meant to allow, said without IAM.
fn is_meant(policy: PolicyName, need: &Need, tag: Option<&str>) -> bool {
    let places: Vec<Place<'_>> = need.keys.iter().map(|key| place(key)).collect();
    let all = |is: &dyn Fn(Place<'_>) -> bool| {
        !places.is_empty() && places.iter().all(|place| is(*place))
    };
    let tag = tag.filter(|tag| *tag != "_");
    let own =
        |found: Place<'_>| matches!(found, Place::Bucket(ns) | Place::Other(ns) if Some(ns) == tag);
    let own_bucket = |found: Place<'_>| matches!(found, Place::Bucket(ns) if Some(ns) == tag);
    let is_bucket = |found: Place<'_>| matches!(found, Place::Bucket(_));
    let own_or_registry =
        |found: Place<'_>| tag.is_some() && (own(found) || found == Place::Shared);
    let action = need.action.trim_start_matches("dynamodb:");
    let gets = matches!(action, "GetItem" | "BatchGetItem");
    let puts = matches!(action, "PutItem" | "UpdateItem");
    let writes = puts || matches!(action, "DeleteItem" | "BatchWriteItem");
    let describes = matches!(action, "DescribeTable" | "DescribeTimeToLive");
    match policy {
        AcquireOnly => {
            gets || matches!(action, "Query" | "ConditionCheckItem") || (puts && all(&is_bucket))
        }
        ReadOnly => gets || action == "Query" || describes,
        FullAccess => {
            gets || matches!(action, "Query" | "ConditionCheckItem")
                || describes
                || (action == "Scan" && need.index.is_none())
                || (writes && all(&|found| !is_registry(found)))
        }
        RegistryAdmin => {
            (gets || puts || matches!(action, "DeleteItem" | "Query" | "ConditionCheckItem"))
                && need.index.is_none()
                && all(&|found| is_registry(found))
        }
        NamespaceAcquire => {
            (gets || action == "ConditionCheckItem") && all(&own_or_registry)
                || (action == "Query" && all(&own))
                || (puts && all(&own_bucket))
        }
        NamespaceReadOnly => (gets && all(&own_or_registry)) || (action == "Query" && all(&own)),
        NamespaceFullAccess => {
            (gets || action == "ConditionCheckItem") && all(&own_or_registry)
                || ((action == "Query" || writes) && all(&own))
        }
    }
}

/// Calls that nobody of ours makes, and some that one tenant might make against another.
fn foreign() -> Vec<Need> {
    let need = |action: &'static str, index: Option<&'static str>, keys: &[&str]| Need {
        action,
        index,
        keys: keys.iter().map(|key| (*key).to_owned()).collect(),
    };
    let mut all = Vec::new();
    for action in [
        "dynamodb:Scan",
        "dynamodb:PartiQLSelect",
        "dynamodb:PartiQLDelete",
        "dynamodb:DeleteTable",
        "dynamodb:UpdateTable",
        "dynamodb:CreateBackup",
        "dynamodb:ExportTableToPointInTime",
        "dynamodb:UpdateTimeToLive",
        "dynamodb:GetRecords",
        "dynamodb:DescribeTable",
        "dynamodb:DescribeTimeToLive",
    ] {
        all.push(need(action, None, &[]));
    }
    all.push(need("dynamodb:Scan", Some("GSI4"), &[]));
    for action in [
        "dynamodb:GetItem",
        "dynamodb:BatchGetItem",
        "dynamodb:Query",
        "dynamodb:PutItem",
        "dynamodb:UpdateItem",
        "dynamodb:DeleteItem",
        "dynamodb:BatchWriteItem",
        "dynamodb:ConditionCheckItem",
    ] {
        // A request without a key is none of ours, and must not pass as one.
        for keys in [
            &["aaaaaaaaaaa/BUCKET#a#b#0"][..],
            &["bbbbbbbbbbb/BUCKET#a#b#0"],
            &["aaaaaaaaaaa/ENTITY#a"],
            &["bbbbbbbbbbb/SYSTEM#"],
            &["aaaaaaaaaaa/ENTITY#a", "bbbbbbbbbbb/ENTITY#a"],
            &["aaaaaaaaaaa/BUCKET#a#b#0", "_/SYSTEM#"],
            &["_/SYSTEM#"],
            &["_/BUCKET#a#b#0"],
        ] {
            all.push(need(action, None, keys));
        }
    }
    for key in ["aaaaaaaaaaa", "bbbbbbbbbbb", "_", "aaaaaaaaaaa/RESOURCE#gpt", "aaaaaaaaaaab"] {
        all.push(need("dynamodb:Query", Some("GSI4"), &[key]));
    }
    all
}

/// Reads and writes that have no key at all: what `Null` is there for.
fn keyless() -> Vec<Need> {
    [
        "GetItem",
        "BatchGetItem",
        "Query",
        "PutItem",
        "UpdateItem",
        "DeleteItem",
        "BatchWriteItem",
        "ConditionCheckItem",
    ]
    .map(|action| Need {
        action: match action {
            "GetItem" => "dynamodb:GetItem",
            "BatchGetItem" => "dynamodb:BatchGetItem",
            "Query" => "dynamodb:Query",
            "PutItem" => "dynamodb:PutItem",
            "UpdateItem" => "dynamodb:UpdateItem",
            "DeleteItem" => "dynamodb:DeleteItem",
            "BatchWriteItem" => "dynamodb:BatchWriteItem",
            _ => "dynamodb:ConditionCheckItem",
        },
        index: None,
        keys: BTreeSet::new(),
    })
    .into()
}

#[test]
fn each_policy_allows_what_it_is_meant_to_and_nothing_else() {
    let check = |need: &Need, tags: &[Option<&str>]| {
        for policy in PolicyName::ALL {
            for tag in tags {
                let granted = grants(&[policy], need, *tag);
                assert_eq!(granted, is_meant(policy, need, *tag), "{policy:?} {tag:?} {need:?}");
            }
        }
    };
    for sent in traffic() {
        // As themselves, as another tenant, as nobody's, and as the registry.
        let own = sent.namespace.as_deref();
        for need in &sent.needs {
            check(need, &[own, Some("bbbbbbbbbbb"), None, Some("_")]);
        }
    }
    for need in foreign().iter().chain(&keyless()) {
        check(
            need,
            &[Some("aaaaaaaaaaa"), Some("bbbbbbbbbbb"), None, Some("_"), Some("*"), Some("")],
        );
    }
}

/// The rule above speaks of policies; this one of harm. Another tenant's policy gets at nothing of a
/// namespace, and only the registry's policy writes the registry.
#[test]
fn a_tenant_gets_at_nothing_of_another_and_nobody_writes_the_registry_unasked() {
    let tenants = [NamespaceAcquire, NamespaceFullAccess, NamespaceReadOnly];
    let mut of_others = 0;
    let mut to_registry = 0;
    for sent in traffic() {
        for need in &sent.needs {
            let is_elsewhere = need.keys.iter().any(|key| !is_registry(place(key)));
            for policy in tenants {
                if is_elsewhere {
                    assert!(!grants(&[policy], need, Some("bbbbbbbbbbb")), "{policy:?} {need:?}");
                    assert!(!grants(&[policy], need, None), "{policy:?} {need:?}");
                    of_others += 1;
                }
                if need.action == "dynamodb:Query" && !is_elsewhere {
                    let tag = sent.namespace.as_deref();
                    assert!(!grants(&[policy], need, tag), "{policy:?} lists tenants: {need:?}");
                }
            }
            let writes = ["Put", "Update", "Delete", "BatchWrite"];
            let is_write = writes.iter().any(|word| need.action.contains(word));
            if is_write && need.keys.iter().any(|key| is_registry(place(key))) {
                to_registry += 1;
                assert_eq!(duty(sent.operation), Duty::Registers, "{sent:?}");
                for policy in PolicyName::ALL {
                    let granted = grants(&[policy], need, sent.namespace.as_deref());
                    assert_eq!(granted, policy == RegistryAdmin, "{policy:?} {need:?}");
                }
            }
        }
    }
    assert!(of_others > 1_000 && to_registry > 10, "{of_others} {to_registry}");
}

/// The role of the function, by its inline policies.
fn aggregator() -> Vec<Value> {
    let role = Stack::whole(&StackOptions::new()).properties("AggregatorRole");
    let policies = role["Policies"].as_array().expect("policies").iter();
    policies.map(|policy| policy["PolicyDocument"].clone()).collect()
}

#[test]
fn the_aggregator_is_granted_what_it_asks_for_and_little_else() {
    let policies = aggregator();
    let (traffic, kept) = traffic::of_aggregator();
    assert!(kept.refills > 0 && kept.splits > 0 && kept.folds > 0, "{kept:?}");
    let mut actions = BTreeSet::new();
    for sent in &traffic {
        assert_eq!(sent.operation, "aggregate");
        for need in &sent.needs {
            assert!(allows(&policies, &call(need, None)), "the aggregator lacks {need:?}");
            actions.insert(need.action);
        }
    }
    assert!(actions.contains("dynamodb:UpdateItem") && actions.contains("dynamodb:BatchGetItem"));
    let writes = ["dynamodb:PutItem", "dynamodb:UpdateItem", "dynamodb:DeleteItem"];
    for action in writes {
        for key in [
            "_/SYSTEM#",
            "_/BUCKET#a#b#0",
            "_/ENTITY#a",
            "aaaaaaaaaaa/SYSTEM#",
            "aaaaaaaaaaa/RESOURCE#gpt",
            "aaaaaaaaaaa/AUDIT#a",
        ] {
            let keys = [key.to_owned()].into();
            assert!(
                !allows(&policies, &call(&Need { action, index: None, keys }, None)),
                "{action} {key}"
            );
        }
        let keyless = Need { action, index: None, keys: BTreeSet::new() };
        assert!(!allows(&policies, &call(&keyless, None)), "{action}");
    }
    for action in ["dynamodb:Scan", "dynamodb:BatchWriteItem", "dynamodb:DeleteTable"] {
        let keys = ["aaaaaaaaaaa/BUCKET#a#b#0".to_owned()].into();
        assert!(!allows(&policies, &call(&Need { action, index: None, keys }, None)), "{action}");
    }
}

/// What the function does beside the table.
#[test]
fn the_aggregator_reads_its_stream_and_writes_its_queue_its_log_and_its_archive() {
    let stream = format!("arn:aws:dynamodb:{REGION}:{ACCOUNT}:table/{STACK}/stream/now");
    let queue = format!("arn:aws:sqs:{REGION}:{ACCOUNT}:{STACK}-aggregator-dlq");
    let log = format!(
        "arn:aws:logs:{REGION}:{ACCOUNT}:log-group:/aws/lambda/{STACK}-aggregator:log-stream:a"
    );
    let archived = "arn:aws:s3:::my-app-auditarchivebucket-made-up/a/b.gz";
    let allowed = [
        ("dynamodb:GetRecords", stream.as_str()),
        ("dynamodb:GetShardIterator", &stream),
        ("dynamodb:DescribeStream", &stream),
        ("dynamodb:ListStreams", "*"),
        ("sqs:SendMessage", &queue),
        ("logs:CreateLogStream", &log),
        ("logs:PutLogEvents", &log),
        ("s3:PutObject", archived),
    ];
    for (action, resource) in allowed {
        assert!(allows(&aggregator(), &Call::new(action, resource)), "{action} {resource}");
    }
    for (action, resource) in [
        ("s3:GetObject", archived),
        ("s3:PutObject", "arn:aws:s3:::my-app-codebucket-made-up/x.zip"),
        ("sqs:ReceiveMessage", &queue),
        ("xray:PutTraceSegments", "*"),
        ("logs:CreateLogGroup", &log),
    ] {
        assert!(!allows(&aggregator(), &Call::new(action, resource)), "{action} {resource}");
    }
    let traced =
        Stack::whole(&StackOptions::new().enable_tracing(true)).properties("AggregatorRole");
    let traced: Vec<Value> = traced["Policies"]
        .as_array()
        .expect("policies")
        .iter()
        .map(|policy| policy["PolicyDocument"].clone())
        .collect();
    assert!(allows(&traced, &Call::new("xray:PutTraceSegments", "*")));
}

/// Whether a document does anything else than its policy is meant to.
fn is_wrong(policy: PolicyName, document: &Value) -> bool {
    let tags = [Some("aaaaaaaaaaa"), Some("bbbbbbbbbbb"), None, Some("_")];
    let documents = std::slice::from_ref(document);
    foreign().iter().chain(&keyless()).any(|need| {
        tags.iter().any(|tag| allows(documents, &call(need, *tag)) != is_meant(policy, need, *tag))
    })
}

/// The rule above notices when an action or a part of a condition is taken out of a policy.
#[test]
fn no_line_of_a_policy_can_be_taken_out() {
    let mut unnoticed = Vec::new();
    let mut looked = 0;
    for (policy, document) in documents() {
        assert!(!is_wrong(*policy, document));
        let mut look = |what: String, changed: Value| {
            looked += 1;
            if !is_wrong(*policy, &changed) {
                unnoticed.push(format!("{} {what}", policy.component()));
            }
        };
        for (place, statement) in
            document["Statement"].as_array().expect("a list").iter().enumerate()
        {
            let sid = text(&statement["Sid"]);
            let at = |change: &dyn Fn(&mut Value)| {
                let mut changed = document.clone();
                change(&mut changed["Statement"][place]);
                changed
            };
            for (action, name) in statement["Action"].as_array().expect("a list").iter().enumerate()
            {
                let changed = at(&|statement| {
                    statement["Action"].as_array_mut().expect("a list").remove(action);
                });
                look(format!("{sid} {}", text(name)), changed);
            }
            for (operator, keys) in statement.get("Condition").map(object).into_iter().flatten() {
                for (key, values) in object(keys) {
                    let changed = at(&|statement| {
                        let keys = statement["Condition"][operator].as_object_mut();
                        keys.expect("keys").remove(key);
                    });
                    look(format!("{sid} {operator} {key}"), changed);
                    for value in 0..values.as_array().map_or(0, Vec::len) {
                        let changed = at(&|statement| {
                            let values = statement["Condition"][operator][key].as_array_mut();
                            values.expect("values").remove(value);
                        });
                        look(format!("{sid} {operator} {key} {}", values[value]), changed);
                    }
                }
            }
        }
    }
    assert!(looked > 90, "{looked}");
    // A variable without a value matches nothing, so a principal without the tag is refused either
    // way. The condition stays: documents of AWS say less about such variables than about Null.
    unnoticed.retain(|what| !(what.contains(" Own") && what.ends_with(&format!("Null {TAG}"))));
    assert!(unnoticed.is_empty(), "{unnoticed:#?}");
}
