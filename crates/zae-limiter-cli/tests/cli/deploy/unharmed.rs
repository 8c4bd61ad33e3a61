//! Stacks that must not be touched, and what is said of those that nobody can ask about: an engine
//! beside recorded replies of CloudFormation.

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::process::Stdio;

use serde_json::{Value, json};
use zae_limiter_testkit::aws::replies::Replies;
use zae_limiter_testkit::engine::Engine;

use crate::support::Sandbox;

pub(super) const STACK: &str = "my-app";

/// An engine with the table of a stack, whose CloudFormation is somewhere else.
pub(super) struct Here {
    engine: Engine,
    pub(super) sandbox: Sandbox,
}

impl Here {
    fn new() -> Here {
        let engine = Engine::start();
        let sandbox = Sandbox::new()
            .variable("ZAEL_STORE", "")
            .variable("ZAEL_STACK", STACK)
            .variable("AWS_REGION", "eu-west-1")
            .variable("AWS_ENDPOINT_URL", engine.endpoint());
        assert_eq!(sandbox.raw("deploy").0, 0);
        Here { engine, sandbox }
    }

    /// The same where only the table is on the engine.
    pub(super) fn with_cloudformation(replies: &Replies) -> Here {
        let Here { engine, sandbox } = Here::new();
        let sandbox = sandbox
            .variable("AWS_ENDPOINT_URL", replies.endpoint())
            .variable("AWS_ENDPOINT_URL_DYNAMODB", engine.endpoint());
        Here { engine, sandbox }
    }

    /// Changes one attribute of the version record, past all rules.
    pub(super) fn record(&self, attribute: &str, value: &Value) {
        let request = json!({
            "TableName": STACK,
            "Key": {"PK": {"S": "_/SYSTEM#"}, "SK": {"S": "#VERSION"}},
            "UpdateExpression": "SET #a = :v",
            "ExpressionAttributeNames": {"#a": attribute},
            "ExpressionAttributeValues": {":v": value},
        });
        self.engine.call("UpdateItem", &request).ok();
    }

    fn forget_record(&self) {
        let key = json!({"PK": {"S": "_/SYSTEM#"}, "SK": {"S": "#VERSION"}});
        self.engine.call("DeleteItem", &json!({"TableName": STACK, "Key": key})).ok();
    }

    /// Runs a line that must fail; its exit code and its error.
    #[track_caller]
    pub(super) fn fails(&self, line: &str) -> (i32, Value) {
        fails(&self.sandbox, line)
    }

    #[track_caller]
    fn has_table(&self) {
        self.engine.call("DescribeTable", &json!({"TableName": STACK})).ok();
    }
}

#[track_caller]
pub(super) fn fails(sandbox: &Sandbox, line: &str) -> (i32, Value) {
    let words: Vec<&str> = line.split(' ').chain(["--output", "json"]).collect();
    let output = sandbox.command(&words).output().expect("the binary starts");
    let told = String::from_utf8(output.stderr).expect("UTF-8");
    let error = told.lines().find(|line| line.starts_with("{\"error\"")).unwrap_or("{}");
    let error: Value = serde_json::from_str(error).expect("JSON");
    assert!(error["error"].is_object(), "{line}: {told}");
    (output.status.code().expect("an exit code"), error["error"].clone())
}

/// A stack as CloudFormation tells it.
pub(super) fn stack(status: &str) -> String {
    format!(
        "<Stacks><member><StackName>{STACK}</StackName><StackId>arn</StackId>\
         <StackStatus>{status}</StackStatus><CreationTime>2026-01-01T00:00:00Z</CreationTime>\
         <Parameters><member><ParameterKey>LambdaCodeKey</ParameterKey><ParameterValue/></member>\
         </Parameters><Tags><member><Key>ManagedBy</Key><Value>zae-limiter</Value></member>\
         <member><Key>zae-limiter:version</Key><Value>0.1.0</Value></member></Tags>\
         </member></Stacks>"
    )
}

const FUNCTION: &str = "<StackResources><member><LogicalResourceId>AggregatorFunction\
    </LogicalResourceId><ResourceType>AWS::Lambda::Function</ResourceType>\
    <PhysicalResourceId>my-app-aggregator</PhysicalResourceId>\
    <ResourceStatus>UPDATE_COMPLETE</ResourceStatus><Timestamp>2026-01-01T00:00:00Z</Timestamp>\
    </member></StackResources>";

#[test]
fn a_table_that_is_not_ours_is_not_deleted() {
    let here = Here::new();
    here.forget_record();
    let (exit, error) = here.fails("delete --yes");
    assert_eq!((exit, &error["kind"]), (1, &"incompatible".into()), "{error}");
    here.has_table();
}

/// Its stack is where its CloudFormation is.
#[test]
fn a_table_with_a_function_is_not_deleted_without_its_stack() {
    let here = Here::new();
    here.record("function_version", &json!({"S": "0.1.0"}));
    for line in ["delete --yes", "deploy"] {
        let (exit, error) = here.fails(line);
        assert_eq!((exit, &error["kind"]), (1, &"stack".into()), "{line}: {error}");
        assert!(error["message"].to_string().contains("has a function"), "{line}: {error}");
    }
    here.has_table();
    let check: Value =
        serde_json::from_str(&here.sandbox.raw("check --output json").1).expect("JSON");
    assert_eq!(check["function_version"], "0.1.0", "the record stays: {check}");
}

/// The variable is for DynamoDB only.
#[test]
fn another_dynamodb_does_not_say_where_cloudformation_is() {
    let Here { engine, sandbox } = Here::new();
    let sandbox = sandbox
        .variable("AWS_ENDPOINT_URL", "")
        .variable("AWS_ENDPOINT_URL_DYNAMODB", engine.endpoint());
    for line in ["deploy", "delete --yes", "upgrade", "list"] {
        let (exit, error) = fails(&sandbox, line);
        assert_eq!((exit, &error["kind"]), (2, &"usage".into()), "{line}: {error}");
        assert!(error["hint"].to_string().contains("AWS_ENDPOINT_URL_CLOUDFORMATION"), "{error}");
    }
    let replies = Replies::start().error("DescribeStacks", "AccessDenied", "not authorized");
    let sandbox = sandbox.variable("AWS_ENDPOINT_URL_CLOUDFORMATION", replies.endpoint());
    let here = Here { engine, sandbox };
    let (exit, error) = here.fails("delete --yes");
    assert_eq!((exit, &error["kind"]), (1, &"denied".into()), "{error}");
    assert_eq!(replies.actions(), ["DescribeStacks"]);
    here.has_table();
    // An endpoint that is named is that of everything.
    let line = format!("delete --yes --endpoint-url {}", here.engine.endpoint());
    assert_eq!(here.sandbox.raw(&line).0, 0);
}

#[test]
fn a_failed_stack_is_unsound_whoever_else_is_silent() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let silent = format!("http://{}", silent.local_addr().expect("an address"));
    let replies = Replies::start()
        .on("DescribeStacks", &stack("UPDATE_ROLLBACK_FAILED"))
        .on("DescribeStackResources", FUNCTION);
    let Here { engine, sandbox } = Here::with_cloudformation(&replies);
    let sandbox = sandbox.variable("AWS_ENDPOINT_URL_CLOUDWATCH", &silent);
    let (exit, status) = super::local(&sandbox, "status");
    assert_eq!((exit, &status["sound"]), (1, &false.into()), "{status}");
    assert_eq!(status["stack_status"], "UPDATE_ROLLBACK_FAILED");
    assert_eq!(status["function_status"], "UPDATE_COMPLETE");
    drop(engine);
}

#[test]
fn a_stack_that_nobody_can_ask_about_is_not_called_sound() {
    for (code, said) in [("AccessDenied", "not authorized"), ("Throttling", "Rate exceeded")] {
        let replies = Replies::start().error("DescribeStacks", code, said);
        let here = Here::with_cloudformation(&replies);
        let (exit, status) = super::local(&here.sandbox, "status");
        assert_eq!((exit, &status["sound"]), (1, &Value::Null), "{code}: {status}");
    }
    // What is whole is sound, though its function could not be asked about.
    let replies = Replies::start().on("DescribeStacks", &stack("UPDATE_COMPLETE")).error(
        "DescribeStackResources",
        "AccessDenied",
        "not authorized",
    );
    let here = Here::with_cloudformation(&replies);
    let (exit, status) = super::local(&here.sandbox, "status");
    assert_eq!((exit, &status["sound"]), (0, &true.into()), "{status}");
    assert_eq!(status["stack_status"], "UPDATE_COMPLETE");
}

/// A stack that failed, or one whose table somebody has deleted.
#[test]
fn the_status_of_a_stack_without_its_table_is_that_of_the_stack() {
    for (state, hinted) in [
        ("ROLLBACK_COMPLETE", "delete` removes what is left of the stack"),
        ("CREATE_COMPLETE", "delete` removes what is left of the stack"),
        ("CREATE_IN_PROGRESS", "ask again when it is done"),
    ] {
        let replies = Replies::start()
            .on("DescribeStacks", &stack(state))
            .on("DescribeStackResources", "<StackResources/>");
        let here = Here::with_cloudformation(&replies);
        here.engine.call("DeleteTable", &json!({"TableName": STACK})).ok();
        let (exit, error) = here.fails("status");
        assert_eq!((exit, &error["kind"]), (1, &"not_found".into()), "{error}");
        let said = format!("stack my-app is {state}, and its table is not there");
        assert_eq!(error["message"], said.as_str());
        assert!(error["hint"].to_string().contains(hinted), "{error}");
    }
    // Nobody has such a stack.
    let replies = Replies::start().error(
        "DescribeStacks",
        "ValidationError",
        "Stack with id my-app does not exist",
    );
    let here = Here::with_cloudformation(&replies);
    here.engine.call("DeleteTable", &json!({"TableName": STACK})).ok();
    let (_, error) = here.fails("status");
    assert!(error["message"].to_string().contains("there is no such table"), "{error}");
}

#[test]
fn an_endpoint_that_never_answers_has_a_word() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let sandbox = Sandbox::new().variable("ZAEL_STORE", "");
    let url = format!("http://{}", silent.local_addr().expect("an address"));
    for line in ["list", "deploy", "delete --yes", "upgrade --dry-run"] {
        let words = line.split(' ').chain(["--name", STACK, "--endpoint-url", &url]);
        let mut command = sandbox.command(&words.collect::<Vec<_>>());
        let mut child = command.stderr(Stdio::piped()).spawn().expect("the binary starts");
        let mut said = String::new();
        let mut lines = BufReader::new(child.stderr.take().expect("a pipe"));
        lines.read_line(&mut said).expect("a word");
        assert!(said.starts_with("note: still waiting for the stack"), "{line}: {said}");
        child.kill().expect("it is killed");
        child.wait().expect("it ends");
    }
}

#[test]
fn kinds_are_those_of_the_page() {
    let sandbox =
        Sandbox::new().variable("ZAEL_STORE", "").variable("AWS_EC2_METADATA_DISABLED", "true");
    let (exit, error) = fails(&sandbox, "list");
    assert_eq!((exit, &error["kind"]), (1, &"denied".into()), "{error}");
    assert!(error["message"].to_string().contains("no AWS credentials found"), "{error}");
    for (code, kind) in [
        ("AccessDenied", "denied"),
        ("ExpiredToken", "denied"),
        ("Throttling", "unavailable"),
        ("ValidationError", "stack"),
    ] {
        let replies = Replies::start().error("DescribeStacks", code, "said");
        let sandbox = Sandbox::new()
            .variable("ZAEL_STORE", "")
            .variable("AWS_ENDPOINT_URL", replies.endpoint());
        let (exit, error) = fails(&sandbox, "list");
        assert_eq!((exit, &error["kind"]), (1, &kind.into()), "{code}: {error}");
    }
    for line in
        ["list --endpoint-url nowhere", "deploy --endpoint-url nowhere", "upgrade --region -"]
    {
        let (exit, error) = fails(&sandbox, line);
        assert_eq!((exit, &error["kind"]), (2, &"usage".into()), "{line}: {error}");
    }
}

/// Pasted, a hint works on the same stack in the same place.
#[test]
fn hints_about_stacks_keep_region_and_endpoint() {
    let replies = |status: &str| {
        Replies::start()
            .on("DescribeStacks", &stack(status))
            .on("DescribeStackEvents", "<StackEvents></StackEvents>")
            .whole("BatchGetItem", "200 OK", r#"{"Responses":{},"UnprocessedKeys":{}}"#)
    };
    let hint = |replies: &Replies| {
        let sandbox = Sandbox::new().variable("ZAEL_STORE", "");
        let place = format!("--region eu-west-1 --endpoint-url {}", replies.endpoint());
        let line = format!("deploy --no-aggregator --name {STACK} {place}");
        let (_, error) = fails(&sandbox, &line);
        (place, error["hint"].as_str().unwrap_or_default().to_owned())
    };
    let (place, hinted) = hint(&replies("ROLLBACK_COMPLETE"));
    assert!(hinted.contains(&format!("`zae-limiter {place} delete --name {STACK}`")), "{hinted}");
    let (place, hinted) = hint(&replies("UPDATE_ROLLBACK_FAILED"));
    let expected = format!("continue-update-rollback --stack-name {STACK} {place}`");
    assert!(hinted.contains(&expected), "{hinted}");
}

#[test]
fn the_question_of_delete_says_where() {
    let here = Here::new();
    let (exit, error) = here.fails("delete");
    assert_eq!(exit, 2, "{error}");
    let at = format!("the stack {STACK} in eu-west-1 at {}", here.engine.endpoint());
    assert!(error["message"].to_string().contains(&at), "{error}");
}

#[test]
fn a_table_of_another_release_is_left_as_it_is() {
    let here = Here::new();
    here.record("function_version", &json!({"S": "99.0.0"}));
    for line in ["upgrade", "deploy"] {
        let (exit, error) = here.fails(line);
        assert_eq!(exit, 1, "{line}: {error}");
        assert!(error["message"].to_string().contains("release 99.0.0"), "{line}: {error}");
    }
    here.record("schema_version", &json!({"S": "1.0.0"}));
    for line in ["upgrade", "deploy", "deploy --no-stack", "system set-retention --usage-days 7"] {
        let (exit, error) = here.fails(line);
        assert_eq!((exit, &error["kind"]), (1, &"incompatible".into()), "{line}: {error}");
    }
    let (_, check) = super::local(&here.sandbox, "check");
    assert_eq!(check["usage_retention_days"], 90, "{check}");
    here.record("min_reader", &json!({"S": "many"}));
    here.record("schema_version", &json!({"S": "0.10.0"}));
    let (_, check) = super::local(&here.sandbox, "check");
    assert!(check["problem"].to_string().contains("no number we know"), "{check}");
}

/// The options of a stack are not in the version record: what makes one leaves the stack alone.
#[test]
fn a_version_record_is_made_without_a_word_to_the_stack() {
    let here = Here::new();
    here.forget_record();
    let (exit, error) = here.fails("upgrade");
    assert_eq!((exit, &error["kind"]), (1, &"not_found".into()), "{error}");
    assert_eq!(error["hint"], "`zae-limiter --name my-app deploy --no-stack` makes it");
    assert_eq!(here.sandbox.raw("deploy --no-stack").0, 0);
    assert_eq!(here.sandbox.raw("upgrade").0, 0);
}

#[test]
fn a_retention_that_was_set_stays_where_the_stack_is_left_alone() {
    let here = Here::new();
    let retention = || {
        let (_, check) = super::local(&here.sandbox, "check");
        (check["usage_retention_days"].clone(), check["audit_retention_days"].clone())
    };
    assert_eq!(here.sandbox.raw("system set-retention --usage-days 7 --audit-days 365").0, 0);
    assert_eq!(here.sandbox.raw("deploy --no-stack --usage-retention-days 30").0, 0);
    assert_eq!(retention(), (30.into(), 365.into()));
    assert_eq!(here.sandbox.raw("deploy").0, 0);
    assert_eq!(
        retention(),
        (90.into(), 90.into()),
        "an option that is not given is at its default"
    );
}

#[test]
fn options_without_effect_are_named() {
    let here = Here::new();
    let shown =
        here.sandbox.run("deploy --enable-deletion-protection --resource-index-projection ALL");
    for option in ["enable_deletion_protection", "resource_index_projection"] {
        assert!(shown.contains(&format!("{option} has no effect")), "{shown}");
    }
}

#[test]
fn who_deploys_is_in_the_audit_log() {
    let here = Here::new();
    assert_eq!(here.sandbox.raw("deploy -N tenant-a --principal bob").0, 0);
    let (_, events) = super::local(&here.sandbox, "audit list -N tenant-a");
    assert_eq!(events["items"][0]["principal"], "bob", "{events}");
}

#[test]
fn a_table_with_other_keys_is_not_one_of_ours() {
    let engine = Engine::start();
    let table = json!({
        "TableName": "others",
        "AttributeDefinitions": [{"AttributeName": "id", "AttributeType": "S"}],
        "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}],
        "BillingMode": "PAY_PER_REQUEST",
    });
    engine.call("CreateTable", &table).ok();
    let sandbox = Sandbox::new()
        .variable("ZAEL_STORE", "dynamodb:others")
        .variable("AWS_ENDPOINT_URL", engine.endpoint());
    for line in ["check", "status", "deploy", "delete --yes"] {
        let (exit, error) = fails(&sandbox, line);
        assert_eq!((exit, &error["kind"]), (1, &"incompatible".into()), "{line}: {error}");
        assert!(error["message"].to_string().contains("not one of zae-limiter"), "{error}");
    }
}

#[test]
fn mistakes_are_named_by_their_flags() {
    let sandbox = Sandbox::new()
        .variable("ZAEL_STORE", "")
        .variable("AWS_ENDPOINT_URL", "http://127.0.0.1:9");
    for (line, said) in [
        ("deploy --tag aws:x=y", "--tag \"aws:x=y\""),
        ("deploy --tag a=b;c", "has characters that tags cannot have"),
        ("deploy --tag a=b --tag a=c", "--tag \"a=c\": is the second value of this key"),
        ("deploy --no-iam --create-iam-roles", "roles need --iam"),
        ("upgrade --lambda-binary /nonexistent", "/nonexistent"),
    ] {
        let shown = sandbox.run(line);
        assert!(!shown.starts_with("exit 0\n") && shown.contains(said), "{line}: {shown}");
    }
    let shown = sandbox.run("deploy --name my.app");
    assert!(!shown.contains("connect:"), "{shown}");
}
