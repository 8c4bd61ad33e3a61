//! The simulator of IAM against what AWS's documentation says of its own examples.

use serde_json::{Value, json};

use crate::iam::{Call, allows};

const TABLE: &str = "arn:aws:dynamodb:us-west-2:123456789012:table/GameScores";

fn policy(statement: Value) -> Vec<Value> {
    vec![json!({ "Version": "2012-10-17", "Statement": [statement] })]
}

/// DynamoDB developer guide, "Using IAM policy conditions for fine-grained access control",
/// example 1: a user of a web identity gets at items whose partition key is the user's id.
fn own_items() -> Vec<Value> {
    policy(json!({
        "Effect": "Allow",
        "Action": [
            "dynamodb:GetItem", "dynamodb:BatchGetItem", "dynamodb:Query", "dynamodb:PutItem",
            "dynamodb:UpdateItem", "dynamodb:DeleteItem", "dynamodb:BatchWriteItem",
        ],
        "Resource": [TABLE],
        "Condition": { "ForAllValues:StringEquals": {
            "dynamodb:LeadingKeys": ["${www.amazon.com:user_id}"],
        }},
    }))
}

fn of_user(action: &str) -> Call {
    Call::new(action, TABLE).with("www.amazon.com:user_id", ["u1"])
}

#[test]
fn leading_keys_are_those_of_the_request() {
    let own = own_items();
    assert!(allows(&own, &of_user("dynamodb:GetItem").with("dynamodb:LeadingKeys", ["u1"])));
    assert!(!allows(&own, &of_user("dynamodb:GetItem").with("dynamodb:LeadingKeys", ["u2"])));
    // Every key of a batch counts.
    let batch = of_user("dynamodb:BatchGetItem").with("dynamodb:LeadingKeys", ["u1", "u2"]);
    assert!(!allows(&own, &batch));
    // Another table, another action.
    let other = Call::new("dynamodb:GetItem", &TABLE.replace("Scores", "Players"));
    assert!(!allows(&own, &other.with("dynamodb:LeadingKeys", ["u1"])));
    assert!(!allows(&own, &of_user("dynamodb:DeleteTable")));
}

/// The same page: "Scan is not in the list, because Scan returns all items regardless of the leading
/// keys" - the key is absent, and `ForAllValues` is true of nothing.
#[test]
fn for_all_values_is_true_of_a_missing_key() {
    let mut with_scan = own_items();
    with_scan[0]["Statement"][0]["Action"] = json!("dynamodb:Scan");
    assert!(allows(&with_scan, &of_user("dynamodb:Scan")));
}

/// IAM user guide, "Multivalued context key examples": a `Null` condition with the value `false`
/// keeps missing keys, and keys with empty values, from being true.
#[test]
fn null_false_asks_for_the_key() {
    let mut policies = policy(json!({
        "Effect": "Deny",
        "Action": ["iam:Tag*", "iam:Untag*"],
        "Resource": ["*"],
        "Condition": {
            "Null": { "aws:TagKeys": "false" },
            "ForAllValues:StringLike": { "aws:TagKeys": ["key1*"] },
        },
    }));
    policies.extend(policy(json!({ "Effect": "Allow", "Action": "iam:*", "Resource": "*" })));
    let call = || Call::new("iam:TagUser", "arn:aws:iam::123456789012:user/a");
    // The table of the page: denied when every key begins with key1, not denied otherwise.
    assert!(!allows(&policies, &call().with("aws:TagKeys", ["key1:legal"])));
    assert!(!allows(&policies, &call().with("aws:TagKeys", ["key1:hr", "key1:personnel"])));
    assert!(allows(&policies, &call().with("aws:TagKeys", ["key2:audit"])));
    assert!(allows(&policies, &call().with("aws:TagKeys", ["key1:hr", "key2:audit"])));
    assert!(allows(&policies, &call()), "there are no keys");
    assert!(allows(&policies, &call().with::<String>("aws:TagKeys", [])), "there is no value");
}

/// The same page, with `ForAnyValue`: one value is enough, and none is not.
#[test]
fn for_any_value_is_false_of_a_missing_key() {
    let policies = policy(json!({
        "Effect": "Allow",
        "Action": "iam:TagUser",
        "Resource": "*",
        "Condition": { "ForAnyValue:StringEquals": { "aws:TagKeys": ["webserver"] } },
    }));
    let call = || Call::new("iam:TagUser", "arn:aws:iam::123456789012:user/a");
    assert!(allows(&policies, &call().with("aws:TagKeys", ["webserver", "other"])));
    assert!(!allows(&policies, &call().with("aws:TagKeys", ["other"])));
    assert!(!allows(&policies, &call()));
}

/// IAM user guide, "Conditions with multiple context keys or values": several values are
/// alternatives, those of a negated operator are a NOR, and operators and keys are all needed.
#[test]
fn values_are_alternatives_and_operators_are_not() {
    let with = |condition: Value| {
        policy(
            json!({ "Effect": "Allow", "Action": "s3:*", "Resource": "*", "Condition": condition }),
        )
    };
    let call =
        |key: &str, value: &str| Call::new("s3:GetObject", "arn:aws:s3:::a/b").with(key, [value]);
    let tags = json!({ "StringEquals": { "aws:PrincipalTag/role": ["audit", "ops"] } });
    assert!(allows(&with(tags.clone()), &call("aws:PrincipalTag/role", "ops")));
    assert!(!allows(&with(tags.clone()), &call("aws:PrincipalTag/role", "dev")));
    assert!(!allows(&with(tags), &call("aws:username", "ops")), "the key is missing");
    let not = json!({ "StringNotEquals": { "aws:PrincipalTag/role": ["audit", "ops"] } });
    assert!(!allows(&with(not.clone()), &call("aws:PrincipalTag/role", "ops")));
    assert!(allows(&with(not.clone()), &call("aws:PrincipalTag/role", "dev")));
    assert!(allows(&with(not), &call("aws:username", "a")), "negated operators are true then");
    let both = json!({
        "StringLike": { "aws:PrincipalTag/role": "o*" },
        "Null": { "aws:username": "true" },
    });
    assert!(allows(&with(both.clone()), &call("aws:PrincipalTag/role", "ops")));
    let named = call("aws:PrincipalTag/role", "ops").with("aws:username", ["a"]);
    assert!(!allows(&with(both), &named));
}

/// IAM user guide, "Policy elements: variables and tags": a variable without a value matches
/// nothing, and what a variable stands for has no wildcards; `${*}` is a star.
#[test]
fn variables_are_filled_in_letter_by_letter() {
    let policies = policy(json!({
        "Effect": "Allow", "Action": "s3:GetObject", "Resource": "*",
        "Condition": { "StringLike": { "s3:prefix": ["${aws:username}/*", "${*}"] } },
    }));
    let call =
        |prefix: &str| Call::new("s3:GetObject", "arn:aws:s3:::a").with("s3:prefix", [prefix]);
    assert!(allows(&policies, &call("ann/x").with("aws:username", ["ann"])));
    assert!(!allows(&policies, &call("bob/x").with("aws:username", ["ann"])));
    assert!(!allows(&policies, &call("bob/x").with("aws:username", ["*"])));
    assert!(!allows(&policies, &call("/x")), "nobody");
    assert!(allows(&policies, &call("*")) && !allows(&policies, &call("b")));
}

/// IAM user guide, "Policy evaluation logic": nothing is allowed by default, and a denial wins.
#[test]
fn a_denial_wins() {
    let allow = json!({ "Effect": "Allow", "Action": "dynamodb:*", "Resource": TABLE });
    let deny = json!({ "Effect": "Deny", "Action": "dynamodb:Scan", "Resource": "*" });
    let both = [json!({ "Statement": [allow] }), json!({ "Statement": deny })];
    assert!(!allows(&[], &Call::new("dynamodb:Query", TABLE)));
    assert!(allows(&both, &Call::new("dynamodb:Query", TABLE)));
    assert!(allows(&both, &Call::new("dynamodb:query", TABLE)), "actions know no case");
    assert!(!allows(&both, &Call::new("dynamodb:Scan", TABLE)));
}

/// DynamoDB developer guide, "Using IAM with DynamoDB transactions", example 1: a transaction is
/// judged by the actions of its parts, and a condition check is an action of its own.
#[test]
fn a_transaction_needs_the_actions_of_its_parts() {
    let without_checks = policy(json!({
        "Effect": "Allow",
        "Action": ["dynamodb:PutItem", "dynamodb:UpdateItem", "dynamodb:DeleteItem"],
        "Resource": ["arn:aws:dynamodb:*:*:table/table04"],
    }));
    let on = "arn:aws:dynamodb:us-east-1:123456789012:table/table04";
    assert!(allows(&without_checks, &Call::new("dynamodb:PutItem", on)));
    assert!(!allows(&without_checks, &Call::new("dynamodb:ConditionCheckItem", on)));
    assert!(!allows(&without_checks, &Call::new("dynamodb:TransactWriteItems", on)));
}
