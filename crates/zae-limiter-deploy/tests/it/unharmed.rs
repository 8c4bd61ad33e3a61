//! What must not be touched is looked at before anything is sent: tables of other releases, the
//! code of a function that stays. Recorded replies.

use zae_limiter::StoreErrorKind;
use zae_limiter_deploy::stack::{Deployment, Kind, Progress, Removal, StackBuilder};
use zae_limiter_deploy::{DeployError, LAMBDA_CODE_KEY, Stack};
use zae_limiter_testkit::aws::replies::Replies;

use crate::stack::{
    NAME, change, change_set, cloud, deploy, event, events, ours, stack, without_function,
};

/// The version record of a table, with some attributes more.
fn record(more: &str) -> String {
    format!(
        r##"{{"Responses":{{"{NAME}":[{{"PK":{{"S":"_/SYSTEM#"}},"SK":{{"S":"#VERSION"}}{more}}}]}},
            "UnprocessedKeys":{{}}}}"##
    )
}

/// A stack that is there, whose table has this record, and a change that would be made.
fn changeable(record: &str) -> Replies {
    Replies::start()
        .on("DescribeStacks", &ours("UPDATE_COMPLETE"))
        .whole("BatchGetItem", "200 OK", record)
        .on("CreateChangeSet", "<Id>set</Id>")
        .on(
            "DescribeChangeSet",
            &change_set(&[change(
                "Modify",
                "AggregatorFunction",
                "AWS::Lambda::Function",
                "False",
            )]),
        )
        .error("ExecuteChangeSet", "AccessDenied", "not authorized to perform")
        .on("DescribeStackEvents", &events(&[event("1", NAME, "UPDATE_COMPLETE", "")]))
}

fn builder(replies: &Replies) -> StackBuilder {
    Stack::builder(NAME, "eu-west-1").endpoint_url(replies.endpoint()).enable_aggregator(false)
}

/// A deploy that refuses the table afterwards has changed its function already.
#[tokio::test]
async fn the_stack_of_an_incompatible_table_is_not_changed() {
    let schema = |schema: &str| format!(r#","schema_version":{{"S":"{schema}"}}"#);
    let reader = format!(r#"{},"min_reader":{{"N":"3"}}"#, schema("0.10.0"));
    for more in [schema("1.0.0"), reader] {
        let replies = changeable(&record(&more));
        let error = builder(&replies).run(&mut |_| {}).await.expect_err("refused");
        assert!(
            matches!(&error, DeployError::Store(it) if it.kind() == StoreErrorKind::Incompatible),
            "{error}"
        );
        assert_eq!(replies.actions(), ["DescribeStacks", "BatchGetItem"], "nothing was sent");
    }
}

const SCHEMA: &str = r#","schema_version":{"S":"0.10.0"}"#;

/// A table with the function of a later release.
fn newer() -> String {
    record(&format!(r#"{SCHEMA},"function_version":{{"S":"99.0.0"}}"#))
}

#[tokio::test]
async fn the_function_of_a_newer_release_stays_unless_it_may_go() {
    let replies = changeable(&newer());
    let error = builder(&replies).run(&mut |_| {}).await.expect_err("refused");
    assert!(error.to_string().contains("has the function of release 99.0.0"), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("--allow-downgrade")));
    assert_eq!(replies.actions(), ["DescribeStacks", "BatchGetItem"], "nothing was sent");
    // It goes on as far as the recorded replies do.
    let replies = changeable(&newer());
    let _ = builder(&replies).allow_downgrade(true).run(&mut |_| {}).await;
    assert_eq!(replies.asked("CreateChangeSet").len(), 1, "{:?}", replies.actions());
}

/// The stack is where CloudFormation is: what is done to its table alone passes it by.
#[tokio::test]
async fn a_table_with_a_function_is_not_taken_for_one_without_a_stack() {
    let record = record(&format!(r#"{SCHEMA},"function_version":{{"S":"0.1.0"}}"#));
    let replies = Replies::start().whole("BatchGetItem", "200 OK", &record);
    let error = builder(&replies).run(&mut |_| {}).await.expect_err("refused");
    assert!(matches!(error, DeployError::Elsewhere { .. }), "{error}");
    assert_eq!(replies.actions(), ["DescribeStacks", "BatchGetItem"], "nothing was made");
}

fn protected(tags: &str) -> String {
    let parameters = [(LAMBDA_CODE_KEY, ""), ("EnableDeletionProtection", "true")];
    let parameters = [&parameters[..], &[("LambdaMemorySize", "512")]].concat();
    stack("UPDATE_COMPLETE", &parameters).replace("</Tags>", &format!("{tags}</Tags>"))
}

#[tokio::test]
async fn a_protection_is_taken_away_by_its_flag_only() {
    let replies = Replies::start().on("DescribeStacks", &protected(""));
    let (_, outcome) = deploy(&replies, |it| it).await;
    let error = outcome.expect_err("refused");
    assert!(matches!(error, DeployError::Unprotects { .. }), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("--no-deletion-protection")));
    assert_eq!(replies.actions(), ["DescribeStacks"]);
}

/// An option that is not given is at its default: that is said before it is done.
#[tokio::test]
async fn what_becomes_of_parameters_and_tags_is_told_before_it_is_done() {
    let tag = "<member><Key>team</Key><Value>limits</Value></member>";
    let replies = Replies::start()
        .on("DescribeStacks", &protected(tag))
        .on("CreateChangeSet", "<Id>set</Id>")
        .on("DescribeChangeSet", &change_set(&[]))
        .on("DescribeStackEvents", &events(&[]))
        .error("ExecuteChangeSet", "AccessDenied", "not authorized to perform");
    let options = without_function().enable_deletion_protection(false).tag("stage", "test");
    let deployment = Deployment::new(NAME, &options, None).expect("options");
    let told = std::sync::Mutex::new(Vec::new());
    let mut tell = |progress: Progress<'_>| {
        if let Progress::Doing(what) = progress {
            told.lock().expect("told").push(what.to_owned());
        }
    };
    deployment.run(&cloud(&replies).await, &mut tell).await.expect_err("denied");
    assert_eq!(
        told.into_inner().expect("told"),
        [
            "planning the change",
            "EnableDeletionProtection true -> false",
            "LambdaMemorySize 512 -> 256",
            "- tag team=limits",
            "+ tag stage=test",
            "changing the stack",
        ]
    );
}

/// Who may write the table need not be allowed to ask CloudFormation.
#[tokio::test]
async fn a_table_is_made_ready_without_a_word_from_cloudformation() {
    let python = record(&format!(r#"{SCHEMA},"lambda_version":{{"S":"0.17.0"}}"#));
    let replies = |record: &str| {
        Replies::start()
            .error("DescribeStacks", "AccessDenied", "not authorized to perform")
            .whole("DescribeTable", "200 OK", r#"{"Table":{"TableStatus":"ACTIVE"}}"#)
            .whole("DescribeTimeToLive", "200 OK", "{}")
            .whole("Query", "200 OK", r#"{"Items":[]}"#)
            .whole("BatchGetItem", "200 OK", record)
    };
    let here = replies(&record(SCHEMA));
    let _ = builder(&here).leave_stack(true).run(&mut |_| {}).await;
    assert!(here.actions().contains(&"PutItem".to_owned()), "{:?}", here.actions());
    // A table of the Python package is known by its record then.
    let here = replies(&python);
    let error = builder(&here).leave_stack(true).run(&mut |_| {}).await.expect_err("refused");
    assert!(matches!(error, DeployError::NotOurs { .. }), "{error}");
    assert!(!here.actions().contains(&"PutItem".to_owned()), "{:?}", here.actions());
}

#[tokio::test]
async fn a_gateway_that_fails_is_no_answer_of_cloudformation() {
    let replies = Replies::start().whole("DescribeStacks", "502 Bad Gateway", "<html></html>");
    let error = cloud(&replies).await.find(NAME).await.expect_err("no answer");
    assert!(error.is_passing(), "{error}");
    assert!(error.to_string().contains("HTTP status 502 from http://127.0.0.1:"), "{error}");
}

#[tokio::test]
async fn a_topic_of_another_region_is_refused_and_nothing_is_sent() {
    let replies = Replies::start();
    let topic = "arn:aws:sns:us-east-1:123456789012:ops".to_owned();
    let error = builder(&replies).alarm_sns_topic(topic).run(&mut |_| {}).await;
    let error = error.expect_err("refused").to_string();
    assert!(error.contains("is in us-east-1, and the stack in eu-west-1"), "{error}");
    assert_eq!(replies.actions().len(), 0);
}

#[tokio::test]
async fn a_change_without_a_roll_back_is_rolled_back_before_anything_else() {
    let replies = Replies::start()
        .on("DescribeStacks", &ours("UPDATE_FAILED"))
        .on("DescribeStackEvents", &events(&[]));
    let (_, outcome) = deploy(&replies, |it| it).await;
    let hint = outcome.expect_err("a failure").hint().unwrap_or_default();
    assert!(hint.contains("`aws cloudformation rollback-stack --stack-name my-app`"), "{hint}");
}

fn with_code(status: &str) -> String {
    let output = "<Outputs><member><OutputKey>CodeBucketName</OutputKey>\
                  <OutputValue>code</OutputValue></member></Outputs></member></Stacks>";
    ours(status).replace("</member></Stacks>", output)
}

fn code() -> String {
    let key = "0a".repeat(32);
    format!("<ListBucketResult><Contents><Key>{key}.zip</Key></Contents></ListBucketResult>")
}

/// A function whose code is gone cannot be changed or rolled back any more.
#[tokio::test]
async fn a_stack_that_may_not_be_deleted_keeps_its_code() {
    let denied = Replies::start()
        .on("DescribeStacks", &with_code("CREATE_COMPLETE"))
        .on("DescribeStackEvents", &events(&[]))
        .whole("GET", "200 OK", &code())
        .whole("GET", "200 OK", &code())
        .whole("GET", "200 OK", "<ListBucketResult></ListBucketResult>")
        .whole("POST", "200 OK", "<DeleteResult></DeleteResult>")
        .error("DeleteStack", "AccessDenied", "not authorized to perform");
    let busy = Replies::start()
        .on("DescribeStacks", &with_code("CREATE_COMPLETE"))
        .error("DescribeStackEvents", "ValidationError", "Rate exceeded")
        .whole("GET", "200 OK", &code())
        .whole("GET", "200 OK", &code())
        .whole("GET", "200 OK", "<ListBucketResult></ListBucketResult>")
        .whole("POST", "200 OK", "<DeleteResult></DeleteResult>");
    for replies in [denied, busy] {
        let removal = Removal { stack: NAME, kind: Kind::Limiter, waits: true };
        removal.run(&cloud(&replies).await, &mut |_| {}).await.expect_err("refused");
        assert_eq!(replies.asked("POST").len(), 0, "the code stays: {:?}", replies.actions());
    }
}

/// CloudFormation may come to the bucket before it is empty.
#[tokio::test]
async fn a_bucket_that_was_not_empty_in_time_is_deleted_by_a_second_order() {
    let failed = [
        event("2", "CodeBucket", "DELETE_FAILED", "The bucket you tried to delete is not empty"),
        event("1", NAME, "DELETE_IN_PROGRESS", ""),
    ];
    let replies = Replies::start()
        .on("DescribeStacks", &with_code("CREATE_COMPLETE"))
        .on("DescribeStacks", &with_code("DELETE_FAILED"))
        .on("DescribeStacks", &with_code("DELETE_FAILED"))
        .error("DescribeStacks", "ValidationError", "Stack with id my-app does not exist")
        .on("DescribeStackEvents", &events(&[]))
        .on("DescribeStackEvents", &events(&failed))
        .whole("GET", "200 OK", &code())
        .whole("GET", "200 OK", &code())
        .whole("GET", "200 OK", "<ListBucketResult></ListBucketResult>")
        .whole("POST", "200 OK", "<DeleteResult></DeleteResult>")
        .on("DeleteStack", "");
    let removal = Removal { stack: NAME, kind: Kind::Limiter, waits: true };
    removal.run(&cloud(&replies).await, &mut |_| {}).await.expect("deleted");
    assert_eq!(replies.asked("DeleteStack").len(), 2);
}
