//! The workers of a load test: their template, their options, and that nobody takes them for a
//! stack that limits.

use std::collections::BTreeMap;

use serde_json::Value;
use zae_limiter_deploy::loadtest::{FUNCTION, TEMPLATE, TIMEOUT, stack_of, table_of};
use zae_limiter_deploy::stack::{Cloud, Deployment, Kind, Removal};
use zae_limiter_deploy::template::TEMPLATE_BYTES_MAX;
use zae_limiter_deploy::{LAMBDA_CODE_KEY, LoadTestOptions, Stack as Builder, StackOptions};
use zae_limiter_testkit::aws::replies::Replies;

use crate::cfn::{CODE, Stack, object, template};

const TABLE: &str = "my-app";

fn parsed() -> Value {
    serde_saphyr::from_str(TEMPLATE).expect("the template is YAML")
}

fn stack(options: &LoadTestOptions, code: &str) -> Stack {
    let mut parameters = options.parameters(&stack_of(TABLE)).expect("options");
    parameters.insert(LAMBDA_CODE_KEY.to_owned(), code.to_owned());
    Stack::new(parsed(), &parameters)
}

#[test]
fn every_parameter_has_its_option_and_the_function_comes_with_its_code() {
    let options = LoadTestOptions::new(TABLE);
    let mut given = options.parameters(&stack_of(TABLE)).expect("options");
    given.insert(LAMBDA_CODE_KEY.to_owned(), String::new());
    let declared = parsed();
    let declared: Vec<&String> = object(&declared["Parameters"]).keys().collect();
    let mut known: Vec<&String> = given.keys().collect();
    known.sort_unstable();
    let mut sorted = declared.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, known);
    assert_eq!(given[TIMEOUT], "300");
    assert!(TEMPLATE.len() < TEMPLATE_BYTES_MAX);
    let first: Vec<String> = stack(&options, "").resources().into_iter().collect();
    assert_eq!(first, ["CodeBucket", "WorkerLogGroup", "WorkerRole"]);
    let whole = stack(&options, CODE);
    assert!(whole.resources().contains("WorkerFunction"));
    assert!(whole.outputs().contains_key(FUNCTION));
    let function = whole.properties("WorkerFunction");
    assert_eq!(function["Handler"], "loadtest");
    assert_eq!(function["Environment"]["Variables"]["TABLE_NAME"], TABLE);
    let mut own = options;
    own.role_arn = Some("arn:aws:iam::123456789012:role/mine".to_owned());
    let own = stack(&own, CODE);
    assert!(!own.resources().contains("WorkerRole"));
    assert_eq!(own.properties("WorkerFunction")["Role"], "arn:aws:iam::123456789012:role/mine");
}

/// A worker may do what an application may: the statements are those of the policy `acq`.
#[test]
fn a_worker_may_do_what_an_application_may() {
    let statements = |policy: &Value| -> BTreeMap<String, (Value, Value)> {
        let all = policy["PolicyDocument"]["Statement"].as_array().expect("statements");
        let sid = |it: &Value| it["Sid"].as_str().expect("a name").to_owned();
        all.iter().map(|it| (sid(it), (it["Action"].clone(), it["Condition"].clone()))).collect()
    };
    let application = template();
    let application = statements(&application["Resources"]["AcquireOnlyPolicy"]["Properties"]);
    let worker = stack(&LoadTestOptions::new(TABLE), CODE).properties("WorkerRole");
    assert_eq!(statements(&worker["Policies"][0]), application);
    for statement in worker["Policies"][0]["PolicyDocument"]["Statement"].as_array().expect("all") {
        assert!(statement["Resource"].to_string().contains("table/my-app"), "{statement}");
        assert!(!statement["Resource"].to_string().contains("table/*"), "{statement}");
    }
}

#[test]
fn a_wrong_option_is_named_before_anything_is_sent() {
    let wrong = |change: fn(&mut LoadTestOptions), text: &str| {
        let mut options = LoadTestOptions::new(TABLE);
        change(&mut options);
        let error = options.check(&stack_of(TABLE)).expect_err(text).to_string();
        assert!(error.contains(text), "{error}");
    };
    wrong(|it| it.memory_mb = 64, "use 128 to 10240");
    wrong(|it| it.timeout_min = 0, "use 1 to 15");
    wrong(|it| it.timeout_min = 16, "use 1 to 15");
    wrong(|it| it.role_arn = Some("mine".to_owned()), "use an ARN");
    wrong(|it| it.permission_boundary = Some("mine".to_owned()), "use an ARN");
    let long = "x".repeat(60);
    let error = LoadTestOptions::new(&long).check(&stack_of(&long)).expect_err("too long");
    assert!(error.to_string().contains("Lambda takes 64"), "{error}");
    assert_eq!(table_of(&stack_of(TABLE)), TABLE);
}

async fn cloud(replies: &Replies) -> Cloud {
    let builder = Builder::builder(TABLE, "eu-west-1").endpoint_url(replies.endpoint());
    Cloud::connect(builder.store()).await.expect("a way to AWS")
}

/// A stack of ours, of this kind.
fn described(name: &str, kind: &str) -> String {
    format!(
        "<Stacks><member><StackName>{name}</StackName><StackId>arn:{name}</StackId>\
         <StackStatus>CREATE_COMPLETE</StackStatus><CreationTime>2026-01-01T00:00:00Z</CreationTime>\
         <Parameters><member><ParameterKey>LambdaCodeKey</ParameterKey>\
         <ParameterValue></ParameterValue></member></Parameters>\
         <Tags><member><Key>ManagedBy</Key><Value>zae-limiter</Value></member>\
         <member><Key>zae-limiter:version</Key><Value>0.1.0</Value></member>\
         <member><Key>zae-limiter:type</Key><Value>{kind}</Value></member></Tags>\
         </member></Stacks>"
    )
}

/// A table may be called like the workers of another one: `loadtest delete` must not delete it.
#[tokio::test]
async fn a_stack_of_the_other_kind_is_neither_changed_nor_deleted() {
    let name = stack_of(TABLE);
    for (there, wanted) in [("limiter", Kind::LoadTest), ("load-test", Kind::Limiter)] {
        let replies = Replies::start().on("DescribeStacks", &described(&name, there));
        let removal = Removal { stack: &name, kind: wanted, waits: true };
        let error = removal.run(&cloud(&replies).await, &mut |_| {}).await.expect_err("not ours");
        assert!(error.to_string().contains("is not ours"), "{error}");
        assert_eq!(replies.actions(), ["DescribeStacks"], "nothing was deleted");
    }
    let replies = Replies::start().on("DescribeStacks", &described(&name, "load-test"));
    let options = StackOptions::new().enable_aggregator(false);
    let deployment = Deployment::new(&name, &options, None).expect("options");
    let error = deployment.run(&cloud(&replies).await, &mut |_| {}).await.expect_err("not ours");
    assert!(error.to_string().contains("workers of a load test"), "{error}");
    assert_eq!(replies.actions(), ["DescribeStacks"]);
}

#[tokio::test]
async fn each_kind_is_listed_by_itself() {
    let both = described("my-app", "limiter").replace("</Stacks>", "")
        + &described("my-app-loadtest", "load-test").replace("<Stacks>", "");
    let replies = Replies::start().on("DescribeStacks", &both);
    let cloud = cloud(&replies).await;
    for (kind, name) in [(Kind::Limiter, "my-app"), (Kind::LoadTest, "my-app-loadtest")] {
        let found = cloud.list(kind).await.expect("a list");
        assert_eq!(found.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(), [name]);
    }
}
