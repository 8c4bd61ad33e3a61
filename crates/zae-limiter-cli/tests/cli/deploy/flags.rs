//! What single flags of `deploy`, `delete` and `upgrade` change: an engine beside recorded replies
//! of CloudFormation and S3.

use serde_json::{Value, json};
use zae_limiter_testkit::aws::replies::Replies;
use zae_limiter_testkit::elf::CraftedElf;

use super::local;
use super::unharmed::{Here, STACK, fails, stack};
use crate::support::Sandbox;

const NOT_THERE: (&str, &str) = ("ValidationError", "Stack with id my-app does not exist");
const NOTHING: (&str, &str) = ("ValidationError", "No updates are to be performed.");
const NO_RECORD: &str = r#"{"Responses":{},"UnprocessedKeys":{}}"#;

/// Someone whose table is on the replies, too: nothing may be sent to it.
fn away(replies: &Replies) -> Sandbox {
    Sandbox::new()
        .variable("ZAEL_STORE", "")
        .variable("ZAEL_STACK", STACK)
        .variable("AWS_REGION", "eu-west-1")
        .variable("AWS_ENDPOINT_URL", replies.endpoint())
}

/// A stack with these parameters and outputs more.
fn with(status: &str, parameters: &[(&str, &str)], outputs: &[(&str, &str)]) -> String {
    let members = |of: &str, pairs: &[(&str, &str)]| -> String {
        let member = |(key, value): &(&str, &str)| {
            format!("<member><{of}Key>{key}</{of}Key><{of}Value>{value}</{of}Value></member>")
        };
        pairs.iter().map(member).collect()
    };
    let (parameters, outputs) = (members("Parameter", parameters), members("Output", outputs));
    stack(status)
        .replace("</Parameters>", &format!("{parameters}</Parameters>"))
        .replace("</member></Stacks>", &format!("<Outputs>{outputs}</Outputs></member></Stacks>"))
}

/// The events of the stack, by their numbers, the newest first.
fn events(numbers: &[u32]) -> String {
    let event = |number: &u32| {
        format!(
            "<member><EventId>{number}</EventId><StackId>arn</StackId><StackName>{STACK}</StackName>\
             <LogicalResourceId>{STACK}</LogicalResourceId>\
             <ResourceStatus>UPDATE_COMPLETE</ResourceStatus>\
             <Timestamp>2026-01-01T00:00:00Z</Timestamp></member>"
        )
    };
    format!("<StackEvents>{}</StackEvents>", numbers.iter().map(event).collect::<String>())
}

const CHANGE: &str = "<Status>CREATE_COMPLETE</Status><Changes><member><Type>Resource</Type>\
    <ResourceChange><Action>Modify</Action><LogicalResourceId>AggregatorFunction\
    </LogicalResourceId><ResourceType>AWS::Lambda::Function</ResourceType>\
    <Replacement>False</Replacement></ResourceChange></member></Changes>";

/// A stack that gets a change set which can be executed, and is whole afterwards.
fn changeable(before: &str) -> Replies {
    Replies::start()
        .on("DescribeStacks", before)
        .on("DescribeStacks", before)
        .on("DescribeStacks", before)
        .on("CreateChangeSet", "<Id>set</Id>")
        .on("DescribeChangeSet", CHANGE)
        .on("DeleteChangeSet", "")
        .on("ExecuteChangeSet", "")
        .on("DescribeStackEvents", &events(&[1]))
        .on("DescribeStackEvents", &events(&[2, 1]))
        .whole("HEAD", "404 Not Found", "")
        .whole("PUT", "200 OK", "")
}

#[test]
fn a_deploy_that_does_not_wait_begins_the_first_step_and_leaves_the_table() {
    let new = Replies::start()
        .error("DescribeStacks", NOT_THERE.0, NOT_THERE.1)
        .on("CreateStack", "<StackId>s</StackId>");
    let shown = away(&new).run("deploy --no-wait --no-aggregator");
    assert!(shown.starts_with("exit 0\n--- stdout\nstack my-app in eu-west-1: begun\n"), "{shown}");
    assert!(shown.contains("the same command line without --no-wait waits"), "{shown}");
    assert_eq!(new.actions(), ["DescribeStacks", "DescribeStacks", "CreateStack"]);
    // One that is there.
    let there = changeable(&stack("UPDATE_COMPLETE")).whole("BatchGetItem", "200 OK", NO_RECORD);
    let (exit, begun) = local(&away(&there), "deploy --no-wait --no-aggregator");
    assert_eq!((exit, &begun["outcome"]), (0, &"begun".into()), "{begun}");
    assert_eq!(there.actions().last().map(String::as_str), Some("ExecuteChangeSet"));
    // One that somebody else is at work on.
    let busy = Replies::start().on("DescribeStacks", &stack("UPDATE_IN_PROGRESS")).whole(
        "BatchGetItem",
        "200 OK",
        NO_RECORD,
    );
    let (exit, error) = fails(&away(&busy), "deploy --no-wait --no-aggregator");
    assert_eq!((exit, &error["kind"]), (1, &"stack".into()), "{error}");
    assert_eq!(error["message"], "stack my-app is still UPDATE_IN_PROGRESS");
    assert!(!busy.actions().contains(&"CreateChangeSet".to_owned()), "{:?}", busy.actions());
}

#[test]
fn a_delete_that_does_not_wait_says_that_it_has_begun() {
    let outputs = [
        ("CodeBucketName", "code"),
        ("AuditArchiveBucketName", "the-archive"),
        ("ArchiveOnDelete", "empty"),
    ];
    let found = with("CREATE_COMPLETE", &[], &outputs);
    let replies = || {
        Replies::start()
            .on("DescribeStacks", &found)
            .on("DescribeStacks", &found)
            .error("DescribeStacks", NOT_THERE.0, NOT_THERE.1)
            .on("DescribeStackEvents", &events(&[1]))
            .on("DescribeStackEvents", &events(&[2, 1]))
            .on("DeleteStack", "")
            .whole("GET", "200 OK", "<ListBucketResult></ListBucketResult>")
            .whole("DELETE", "204 No Content", "")
    };
    let begun = replies();
    let (exit, deleted) = local(&away(&begun), "delete --yes --no-wait");
    assert_eq!((exit, &deleted["deleted"]), (0, &false.into()), "{deleted}");
    assert_eq!(deleted["archive_bucket"], "the-archive", "its function may still archive");
    let actions = begun.actions();
    let expected =
        ["DescribeStacks", "DescribeStacks", "GET", "DescribeStackEvents", "DeleteStack", "GET"];
    assert_eq!(actions, expected, "it is not looked at again");
    let shown = away(&replies()).run("delete --yes --no-wait");
    assert!(shown.contains("stack my-app: is being deleted\n"), "{shown}");
    // With waiting, which is the default, the archive goes as chosen.
    let waited = replies();
    let (exit, deleted) = local(&away(&waited), "delete --yes");
    assert_eq!((exit, &deleted["deleted"]), (0, &true.into()), "{deleted}");
    assert_eq!(deleted["archive_bucket"], Value::Null);
    let paths = waited.paths();
    assert!(paths.last().is_some_and(|path| path.starts_with("DELETE /the-archive")), "{paths:?}");
}

#[test]
fn what_stays_of_an_archive_is_told_with_the_place() {
    let outputs = [("AuditArchiveBucketName", "the-archive"), ("ArchiveOnDelete", "empty")];
    let denied = "<Error><Code>AccessDenied</Code><Message>not yours</Message></Error>";
    let replies = Replies::start()
        .on("DescribeStacks", &with("CREATE_COMPLETE", &[], &outputs))
        .on("DescribeStacks", &with("CREATE_COMPLETE", &[], &outputs))
        .error("DescribeStacks", NOT_THERE.0, NOT_THERE.1)
        .on("DescribeStackEvents", &events(&[1]))
        .on("DeleteStack", "")
        .whole("GET", "403 Forbidden", denied);
    let (exit, error) = fails(&away(&replies), "delete --yes");
    assert_eq!((exit, &error["kind"]), (1, &"denied".into()), "{error}");
    let said = "stack my-app is deleted, and its archive stays in the bucket the-archive";
    assert!(error["message"].to_string().contains(said), "{error}");
    let place = format!("--region eu-west-1 --endpoint-url {}", replies.endpoint());
    let hint = format!("`aws s3 rb s3://the-archive --force {place}`");
    assert!(error["hint"].to_string().contains(&hint), "{error}");
}

/// The parameters of a stack with a function, whose code has this key.
fn function(key: &str) -> String {
    let parameters = [
        ("EnableAggregator", "true"),
        ("EnableIAM", "true"),
        ("Architecture", "x86_64"),
        ("LambdaMemorySize", "512"),
    ];
    with("UPDATE_COMPLETE", &parameters, &[("CodeBucketName", "code")]).replace(
        "<ParameterKey>LambdaCodeKey</ParameterKey><ParameterValue/>",
        &format!(
            "<ParameterKey>LambdaCodeKey</ParameterKey><ParameterValue>{key}</ParameterValue>"
        ),
    )
}

/// A stack with a function, its table on an engine, and a program for its function.
fn served(replies: &Replies) -> Here {
    let here = Here::with_cloudformation(replies);
    let elf = CraftedElf::x86_64(&["GLIBC_2.34"]);
    std::fs::write(here.sandbox.path("program"), elf.bytes()).expect("it is written");
    here
}

const UPGRADE: &str = "upgrade --lambda-binary program";

/// The value of a parameter in the form of a request.
fn sent<'a>(form: &'a str, name: &str) -> Option<&'a str> {
    let pairs: Vec<&str> = form.split('&').collect();
    let at = pairs.iter().position(|pair| pair.ends_with(&format!(".ParameterKey={name}")))?;
    pairs.get(at + 1)?.split_once(".ParameterValue=").map(|(_, value)| value)
}

fn version(here: &Here) -> Value {
    local(&here.sandbox, "check").1["function_version"].clone()
}

#[test]
fn lambda_only_changes_the_function_and_neither_template_nor_table() {
    let replies = changeable(&function("old.zip"));
    let here = served(&replies);
    // A table with a migration to do.
    here.record("migrated", &json!({"SS": ["another"]}));
    let (exit, done) = local(&here.sandbox, &format!("{UPGRADE} --lambda-only"));
    let states: Vec<&str> =
        (0..4).map(|at| done["steps"][at]["state"].as_str().unwrap_or_default()).collect();
    assert_eq!((exit, states), (0, vec!["done", "done", "left out", "done"]), "{done}");
    assert_eq!(version(&here), env!("CARGO_PKG_VERSION"));
    let open = local(&here.sandbox, "check").1["migrations"].clone();
    assert_eq!(open, json!(["composite-config"]), "the table was not migrated");
    let asked = replies.asked("CreateChangeSet").concat();
    assert!(asked.contains("UsePreviousTemplate=true") && !asked.contains("TemplateBody"));
    assert_eq!(sent(&asked, "LambdaMemorySize"), Some("512"));
    assert_eq!(sent(&asked, "EnableFolding"), None, "the template that is there may lack it");
    let key = sent(&asked, "LambdaCodeKey").expect("a key").to_owned();
    assert!(key.ends_with(".zip") && key != "old.zip", "{key}");
    let put = replies.paths().into_iter().find(|path| path.starts_with("PUT "));
    assert!(put.is_some_and(|path| path.starts_with(&format!("PUT /code/{key}"))));

    // The same program once more.
    let replies = changeable(&function(&key));
    let here = served(&replies);
    let (exit, done) = local(&here.sandbox, &format!("{UPGRADE} --lambda-only"));
    let step = json!({
        "step": "stack", "state": "nothing to do", "detail": "the function is this program",
    });
    assert_eq!((exit, &done["steps"][1]), (0, &step));
    assert_eq!(replies.actions(), ["DescribeStacks"], "nothing is sent");
    // Without the flag the template is this release's.
    assert_eq!(here.sandbox.raw(&format!("{UPGRADE} --dry-run")).0, 0);
    let asked = replies.asked("CreateChangeSet").concat();
    assert!(asked.contains("TemplateBody=") && sent(&asked, "EnableFolding").is_some());
}

#[test]
fn force_goes_on_where_the_versions_say_that_nothing_is_to_do() {
    let replies = changeable(&function("old.zip"));
    let here = served(&replies);
    let (_, planned) = local(&here.sandbox, &format!("{UPGRADE} --dry-run"));
    assert_eq!(planned["steps"][1]["state"], "planned", "{planned}");
    let key =
        sent(&replies.asked("CreateChangeSet")[0], "LambdaCodeKey").expect("a key").to_owned();

    // The function is this program, and CloudFormation is asked all the same.
    let replies = Replies::start()
        .on("DescribeStacks", &function(&key))
        .whole("HEAD", "200 OK", "")
        .error("CreateChangeSet", NOTHING.0, NOTHING.1);
    let here = served(&replies);
    let (exit, done) = local(&here.sandbox, &format!("{UPGRADE} --lambda-only --force"));
    assert_eq!((exit, &done["steps"][1]["state"]), (0, &"nothing to do".into()), "{done}");
    assert_eq!(replies.asked("CreateChangeSet").len(), 1);
    // So are the migrations, though none is open.
    let (_, plain) = local(&here.sandbox, UPGRADE);
    assert_eq!(plain["steps"][2]["state"], "nothing to do", "{plain}");
    let (exit, forced) = local(&here.sandbox, &format!("{UPGRADE} --force"));
    let step = json!({
        "step": "migrations", "state": "done", "detail": "none was open: 0 levels made",
    });
    assert_eq!((exit, &forced["steps"][2]), (0, &step));
}

#[test]
fn force_puts_this_release_in_the_place_of_a_newer_one() {
    let replies = changeable(&function("newer.zip"));
    let here = served(&replies);
    here.record("function_version", &json!({"S": "99.0.0"}));
    let (exit, error) = here.fails(UPGRADE);
    assert_eq!((exit, &error["kind"]), (1, &"stack".into()), "{error}");
    assert!(error["hint"].to_string().contains("upgrade --force"), "{error}");
    assert_eq!((replies.actions().len(), version(&here)), (0, "99.0.0".into()));
    let (exit, done) = local(&here.sandbox, &format!("{UPGRADE} --force"));
    assert_eq!((exit, &done["steps"][1]["state"]), (0, &"done".into()), "{done}");
    assert_eq!(replies.asked("ExecuteChangeSet").len(), 1);
    assert_eq!(version(&here), env!("CARGO_PKG_VERSION"));
}
