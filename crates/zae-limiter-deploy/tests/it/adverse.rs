//! What goes wrong around a stack: others who work on it, failures of long ago, a CloudFormation
//! that is too busy to answer, buckets that hold what is not ours. Recorded replies.

use zae_limiter_deploy::stack::{Deployment, Kind, Maker, Outcome, Removal};
use zae_limiter_deploy::{DeployError, LAMBDA_CODE_KEY, Stack};
use zae_limiter_testkit::aws::replies::Replies;

use crate::stack::{
    NAME, NOT_THERE, change, change_set, cloud, deploy, event, events, ours, stack,
};

const NOTHING: (&str, &str) = ("ValidationError", "No updates are to be performed.");

fn page(events: &[String], next: &str) -> String {
    format!("<StackEvents>{}</StackEvents><NextToken>{next}</NextToken>", events.concat())
}

pub(crate) async fn remove(replies: &Replies, waits: bool) -> Result<Option<String>, DeployError> {
    Removal { stack: NAME, kind: Kind::Limiter, waits }
        .run(&cloud(replies).await, &mut |_| {})
        .await
}

/// A stack with outputs and whatever else stands beside them.
pub(crate) fn with_outputs(status: &str, outputs: &[(&str, &str)], more: &str) -> String {
    let output = |(key, value): &(&str, &str)| {
        format!("<member><OutputKey>{key}</OutputKey><OutputValue>{value}</OutputValue></member>")
    };
    let outputs: String = outputs.iter().map(output).collect();
    ours(status).replace(
        "</member></Stacks>",
        &format!("<Outputs>{outputs}</Outputs>{more}</member></Stacks>"),
    )
}

#[tokio::test]
async fn the_failure_of_today_is_told_and_not_that_of_a_year_ago() {
    let today = [
        event("6", "AppRole", "UPDATE_FAILED", "the cause"),
        event("5", NAME, "UPDATE_IN_PROGRESS", "User Initiated"),
    ];
    let long_ago = [
        event("4", NAME, "UPDATE_ROLLBACK_COMPLETE", ""),
        event("3", "AggregatorFunction", "UPDATE_FAILED", "long repaired"),
    ];
    let replies = Replies::start()
        .on("DescribeStacks", &ours("UPDATE_ROLLBACK_FAILED"))
        .on("DescribeStackEvents", &page(&today[..1], "two"))
        .on("DescribeStackEvents", &page(&[&today[1..], &long_ago[..]].concat(), "three"));
    let (_, outcome) = deploy(&replies, |it| it).await;
    let error = outcome.expect_err("a failure");
    assert_eq!(
        error.to_string(),
        "stack my-app is UPDATE_ROLLBACK_FAILED: AppRole UPDATE_FAILED (the cause)"
    );
    let hint = error.hint().unwrap_or_default();
    assert!(hint.contains("continue-update-rollback --stack-name my-app"), "{hint}");
    let asked = replies.asked("DescribeStackEvents");
    assert!(asked.len() == 2 && asked[1].contains("NextToken=two"), "no page too many: {asked:?}");
}

/// What is read of the stack right after a change was begun may be what was before.
#[tokio::test]
async fn a_change_is_not_over_because_the_stack_still_looks_as_before() {
    let before = event("1", NAME, "UPDATE_COMPLETE", "");
    let begun = event("2", NAME, "UPDATE_IN_PROGRESS", "User Initiated");
    let failed = event("3", "AppRole", "UPDATE_FAILED", "not allowed");
    let replies = Replies::start()
        // Found; still the same after the change has begun; then at work; then taken back.
        .on("DescribeStacks", &ours("UPDATE_COMPLETE"))
        .on("DescribeStacks", &ours("UPDATE_COMPLETE"))
        .on("DescribeStacks", &ours("UPDATE_IN_PROGRESS"))
        .on("DescribeStacks", &ours("UPDATE_ROLLBACK_COMPLETE"))
        .on("CreateChangeSet", "<Id>set</Id>")
        .on(
            "DescribeChangeSet",
            &change_set(&[change("Modify", "AppRole", "AWS::IAM::Role", "False")]),
        )
        .on("ExecuteChangeSet", "")
        .on("DescribeStackEvents", &events(std::slice::from_ref(&before)))
        .on("DescribeStackEvents", &events(&[begun.clone(), before.clone()]))
        .on("DescribeStackEvents", &events(&[failed, begun, before]));
    let (_, outcome) = deploy(&replies, |it| it).await;
    let error = outcome.expect_err("the change was taken back");
    assert!(error.to_string().contains("AppRole UPDATE_FAILED (not allowed)"), "{error}");
}

#[tokio::test]
async fn a_cloudformation_that_is_too_busy_is_asked_again_while_it_is_waited_for() {
    let mut replies = Replies::start().on("DescribeStacks", &ours("CREATE_IN_PROGRESS"));
    // More often than the SDK itself asks.
    for _ in 0..5 {
        replies = replies.error("DescribeStacks", "Throttling", "Rate exceeded");
    }
    let replies = replies
        .on("DescribeStacks", &ours("CREATE_COMPLETE"))
        .on("DescribeStackEvents", &events(&[event("1", NAME, "CREATE_IN_PROGRESS", "")]))
        .error("CreateChangeSet", NOTHING.0, NOTHING.1);
    let (_, outcome) = deploy(&replies, |it| it).await;
    assert_eq!(outcome.expect("unchanged"), Outcome::Unchanged);
    // Not for ever.
    let replies = Replies::start()
        .on("DescribeStacks", &ours("CREATE_IN_PROGRESS"))
        .on("DescribeStackEvents", &events(&[]))
        .error("DescribeStacks", "AccessDenied", "not authorized to perform");
    let (_, outcome) = deploy(&replies, |it| it).await;
    assert!(outcome.expect_err("denied").to_string().contains("not authorized"));
    assert_eq!(replies.asked("DescribeStacks").len(), 2, "what is denied is not asked again");
}

/// Another deploy was faster by a moment: it goes first, and its change may be all there is to do.
#[tokio::test]
async fn of_two_deploys_at_once_one_goes_after_the_other() {
    let at_work =
        "Stack:arn:aws:cloudformation:eu-west-1:1:stack/my-app/1 is in UPDATE_IN_PROGRESS state";
    let quiet = events(&[event("1", NAME, "UPDATE_IN_PROGRESS", "")]);
    let replies = Replies::start()
        .on("DescribeStacks", &ours("UPDATE_COMPLETE"))
        .error("CreateChangeSet", "ValidationError", at_work)
        .on("DescribeStacks", &ours("UPDATE_IN_PROGRESS"))
        .on("DescribeStacks", &ours("UPDATE_COMPLETE"))
        .on("DescribeStackEvents", &quiet)
        .error("CreateChangeSet", NOTHING.0, NOTHING.1);
    let (told, outcome) = deploy(&replies, |it| it).await;
    assert_eq!(outcome.expect("unchanged"), Outcome::Unchanged);
    assert!(told.iter().any(|line| line.contains("waiting for the stack")), "{told:?}");
    // The other one executes between our planning and our executing.
    let replies = Replies::start()
        .on("DescribeStacks", &ours("UPDATE_COMPLETE"))
        .on("CreateChangeSet", "<Id>set</Id>")
        .on(
            "DescribeChangeSet",
            &change_set(&[change("Modify", "AppRole", "AWS::IAM::Role", "False")]),
        )
        .on("DescribeStackEvents", &quiet)
        .error("ExecuteChangeSet", "InvalidChangeSetStatus", "ChangeSet [set] is OBSOLETE")
        .error("CreateChangeSet", NOTHING.0, NOTHING.1);
    let (_, outcome) = deploy(&replies, |it| it).await;
    assert_eq!(outcome.expect("unchanged"), Outcome::Unchanged);
    assert_eq!(replies.asked("CreateChangeSet").len(), 2);
    // Who does not wait is told instead.
    let replies = Replies::start()
        .on("DescribeStacks", &ours("UPDATE_COMPLETE"))
        .error("CreateChangeSet", "ValidationError", at_work)
        .on("DescribeStacks", &ours("UPDATE_IN_PROGRESS"));
    let (_, outcome) = deploy(&replies, |it| it.waits(false)).await;
    let error = outcome.expect_err("at work");
    assert!(matches!(error, DeployError::StillAtWork { .. }), "{error}");
    // Somebody who is faster for ever is an error in the end.
    let replies = Replies::start().on("DescribeStacks", &ours("UPDATE_COMPLETE")).error(
        "CreateChangeSet",
        "ValidationError",
        at_work,
    );
    let (_, outcome) = deploy(&replies, |it| it).await;
    assert!(outcome.expect_err("never").to_string().contains("UPDATE_IN_PROGRESS state"));
    assert_eq!(replies.asked("CreateChangeSet").len(), 6);
}

#[tokio::test]
async fn a_stack_that_is_at_work_is_an_error_without_waiting_and_after_an_hour() {
    let replies = Replies::start().on("DescribeStacks", &ours("UPDATE_IN_PROGRESS"));
    let (_, outcome) = deploy(&replies, |it| it.waits(false)).await;
    let error = outcome.expect_err("at work");
    assert!(matches!(error, DeployError::StillAtWork { .. }), "{error}");
    assert_eq!(error.to_string(), "stack my-app is still UPDATE_IN_PROGRESS");
    assert!(error.hint().is_some_and(|hint| hint.contains("run the same command again")));
    assert_eq!(replies.actions(), ["DescribeStacks"]);
    // The clock of these tests goes by waiting alone: an hour of it.
    let replies = Replies::start()
        .on("DescribeStacks", &ours("UPDATE_IN_PROGRESS"))
        .on("DescribeStackEvents", &events(&[]));
    let hours = crate::stack::hasty(&replies, 100).await;
    let error = crate::stack::deploy_by(&hours, |it| it).await.1.expect_err("an hour");
    assert!(matches!(error, DeployError::StillAtWork { .. }), "{error}");
    assert!(replies.asked("DescribeStacks").len() > 10);
}

/// An output of a later template, say.
#[tokio::test]
async fn a_change_that_only_outputs_show_is_made() {
    let set = [event("2", NAME, "UPDATE_COMPLETE", ""), event("1", NAME, "CREATE_COMPLETE", "")];
    let replies = Replies::start()
        .on("DescribeStacks", &ours("UPDATE_COMPLETE"))
        .on("CreateChangeSet", "<Id>set</Id>")
        .on("DescribeChangeSet", &change_set(&[]))
        .on("ExecuteChangeSet", "")
        .on("DescribeStackEvents", &events(&set[1..]))
        .on("DescribeStackEvents", &events(&set));
    let (_, outcome) = deploy(&replies, |it| it).await;
    assert_eq!(outcome.expect("changed"), Outcome::Updated);
    assert_eq!(replies.asked("ExecuteChangeSet").len(), 1);
}

#[tokio::test]
async fn an_option_that_no_resource_depends_on_is_told_and_not_kept_silent() {
    let has = [(LAMBDA_CODE_KEY, ""), ("LambdaMemorySize", "512")];
    let replies = Replies::start().on("DescribeStacks", &stack("UPDATE_COMPLETE", &has)).error(
        "CreateChangeSet",
        NOTHING.0,
        NOTHING.1,
    );
    let (told, outcome) = deploy(&replies, |it| it).await;
    assert_eq!(outcome.expect("unchanged"), Outcome::Unchanged);
    let said = told.last().map(String::as_str).unwrap_or_default();
    assert!(said.starts_with("no resource of the stack depends on "), "{told:?}");
    assert!(said.contains("LambdaMemorySize"), "{told:?}");
}

#[tokio::test]
async fn what_the_index_of_resources_keeps_cannot_be_changed() {
    let has = [(LAMBDA_CODE_KEY, ""), ("ResourceIndexProjection", "ALL")];
    let replies = Replies::start().on("DescribeStacks", &stack("UPDATE_COMPLETE", &has));
    let (_, outcome) = deploy(&replies, |it| it.may_lose_data(true)).await;
    assert_eq!(
        outcome.expect_err("refused").to_string(),
        "resource_index_projection \"KEYS_ONLY\": cannot be changed; stack my-app has ALL"
    );
    assert_eq!(replies.actions(), ["DescribeStacks"]);
}

/// Page two of a change set.
#[tokio::test]
async fn a_replacement_on_the_second_page_is_refused_too() {
    let role = change_set(&[change("Modify", "AppRole", "AWS::IAM::Role", "False")]);
    let table = change_set(&[change("Modify", "RateLimitsTable", "AWS::DynamoDB::Table", "True")]);
    let replies = Replies::start()
        .on("DescribeStacks", &ours("UPDATE_COMPLETE"))
        .on("CreateChangeSet", "<Id>set</Id>")
        .on("DescribeChangeSet", &format!("{role}<NextToken>more</NextToken>"))
        .on("DescribeChangeSet", &table)
        .on("DeleteChangeSet", "");
    let (_, outcome) = deploy(&replies, |it| it).await;
    let error = outcome.expect_err("refused");
    assert!(matches!(error, DeployError::LosesData { .. }), "{error}");
    assert!(replies.asked("DescribeChangeSet")[1].contains("NextToken=more"));
}

#[tokio::test]
async fn a_change_set_that_fails_says_why_and_is_forgotten() {
    let failed =
        "<Status>FAILED</Status><StatusReason>Parameters: [X] must have values</StatusReason>";
    let replies = Replies::start()
        .on("DescribeStacks", &ours("UPDATE_COMPLETE"))
        .on("CreateChangeSet", "<Id>set</Id>")
        .on("DescribeChangeSet", "<Status>CREATE_IN_PROGRESS</Status>")
        .on("DescribeChangeSet", failed)
        .on("DeleteChangeSet", "");
    let (_, outcome) = deploy(&replies, |it| it).await;
    assert_eq!(
        outcome.expect_err("a failure").to_string(),
        "CreateChangeSet: the change cannot be planned: Parameters: [X] must have values"
    );
    assert_eq!(replies.asked("DeleteChangeSet").len(), 1);
}

#[tokio::test]
async fn a_stack_that_is_deleted_while_it_is_waited_for_is_not_found() {
    let replies = Replies::start()
        .error("DescribeStacks", NOT_THERE.0, NOT_THERE.1)
        .on("CreateStack", "<StackId>s</StackId>")
        .on("DescribeStacks", &ours("CREATE_IN_PROGRESS"))
        .on("DescribeStackEvents", &events(&[event("1", NAME, "CREATE_IN_PROGRESS", "")]))
        .on("DescribeStacks", &ours("DELETE_IN_PROGRESS"))
        .error("DescribeStacks", NOT_THERE.0, NOT_THERE.1);
    let (_, outcome) = deploy(&replies, |it| it).await;
    let error = outcome.expect_err("gone");
    assert!(matches!(error, DeployError::StackNotFound { .. }), "{error}");
}

/// Terraform's stack has the parameters of the template, CDK's has values in their place.
#[tokio::test]
async fn a_stack_of_terraform_or_cdk_is_left_to_them() {
    for parameters in [&[(LAMBDA_CODE_KEY, "")][..], &[]] {
        let version = "<member><Key>zae-limiter:version</Key><Value>0.1.0</Value></member>";
        let found = stack("UPDATE_COMPLETE", parameters).replace(version, "");
        let replies = Replies::start().on("DescribeStacks", &found);
        let state = cloud(&replies).await.describe(NAME).await.expect("a stack");
        assert_eq!(state.maker(), Maker::OtherTool);
        let (_, outcome) = deploy(&replies, |it| it).await;
        let error = outcome.expect_err("refused");
        assert_eq!(
            error.to_string(),
            "stack my-app is not ours: Terraform or CDK has made it from our template"
        );
        assert!(error.hint().is_some_and(|hint| hint.contains("--name my-app --no-stack")));
        let error = remove(&replies, true).await.expect_err("refused");
        assert!(matches!(error, DeployError::NotOurs { .. }), "{error}");
        assert!(replies.actions().iter().all(|action| action == "DescribeStacks"));
    }
    // A stack that somebody made of the template by hand has no tags: `deploy` takes it over.
    let found = stack("UPDATE_COMPLETE", &[(LAMBDA_CODE_KEY, "")]);
    let (before, after) = found.split_once("<Tags>").expect("tags");
    let (_, after) = after.split_once("</Tags>").expect("tags");
    let replies = Replies::start().on("DescribeStacks", &format!("{before}{after}"));
    let state = cloud(&replies).await.describe(NAME).await.expect("a stack");
    assert_eq!(state.maker(), Maker::Ours);
}

/// The code that an update needs is not taken away from under it.
#[tokio::test]
async fn deleting_waits_for_an_update() {
    let outputs = [("CodeBucketName", "code")];
    let at_work = with_outputs("UPDATE_IN_PROGRESS", &outputs, "");
    let replies = Replies::start().on("DescribeStacks", &at_work);
    let error = remove(&replies, false).await.expect_err("at work");
    assert!(matches!(error, DeployError::StillAtWork { .. }), "{error}");
    assert!(replies.actions().iter().all(|action| action == "DescribeStacks"));
    let replies = Replies::start()
        .on("DescribeStacks", &at_work)
        .on("DescribeStacks", &at_work)
        .on("DescribeStackEvents", &events(&[event("1", NAME, "UPDATE_IN_PROGRESS", "")]))
        .on("DescribeStacks", &with_outputs("UPDATE_COMPLETE", &outputs, ""))
        .whole("GET", "200 OK", "<ListBucketResult></ListBucketResult>")
        .on("DeleteStack", "")
        .on("DescribeStackEvents", &events(&[event("2", NAME, "DELETE_IN_PROGRESS", "")]))
        .error("DescribeStacks", NOT_THERE.0, NOT_THERE.1);
    remove(&replies, true).await.expect("deleted");
    let actions = replies.actions();
    let looked = actions.iter().position(|action| action == "GET").expect("the bucket");
    assert!(
        actions[..looked].iter().filter(|it| *it == "DescribeStacks").count() >= 3,
        "{actions:?}"
    );
}

#[tokio::test]
async fn a_stack_with_termination_protection_keeps_its_code() {
    let kept = "<EnableTerminationProtection>true</EnableTerminationProtection>";
    let found = with_outputs("CREATE_COMPLETE", &[("CodeBucketName", "code")], kept);
    let replies = Replies::start().on("DescribeStacks", &found);
    let error = remove(&replies, true).await.expect_err("protected");
    assert_eq!(error.to_string(), "stack my-app is protected from being deleted");
    assert!(error.hint().is_some_and(|hint| hint.contains("--no-enable-termination-protection")));
    assert_eq!(replies.actions(), ["DescribeStacks"]);
}

/// Page two of a bucket.
#[tokio::test]
async fn objects_of_somebody_else_stay_in_the_bucket() {
    let ours = format!("<Contents><Key>{}.zip</Key></Contents>", "0a".repeat(32));
    let list =
        |objects: &str, next: &str| format!("<ListBucketResult>{objects}{next}</ListBucketResult>");
    let next = "<IsTruncated>true</IsTruncated><NextContinuationToken>two</NextContinuationToken>";
    let replies = Replies::start()
        .on("DescribeStacks", &with_outputs("CREATE_COMPLETE", &[("CodeBucketName", "code")], ""))
        .whole("GET", "200 OK", &list(&ours, next))
        .whole("GET", "200 OK", &list("<Contents><Key>books/2025.xlsx</Key></Contents>", ""));
    let error = remove(&replies, true).await.expect_err("refused");
    assert_eq!(
        error.to_string(),
        "the bucket code of the stack holds objects of somebody else: books/2025.xlsx"
    );
    assert!(error.hint().is_some_and(|hint| hint.contains("move them elsewhere")));
    assert_eq!(replies.actions(), ["DescribeStacks", "GET", "GET"], "nothing was removed");
}

#[tokio::test]
async fn a_stack_that_could_not_be_deleted_says_to_delete_it_again() {
    let replies = Replies::start()
        .on("DescribeStacks", &ours("CREATE_COMPLETE"))
        .on("DeleteStack", "")
        .on("DescribeStacks", &ours("DELETE_FAILED"))
        .on("DescribeStackEvents", &events(&[]))
        .on(
            "DescribeStackEvents",
            &events(&[event("2", "RateLimitsTable", "DELETE_FAILED", "deletion protection is on")]),
        );
    let error = remove(&replies, true).await.expect_err("a failure");
    assert!(
        error.to_string().contains("RateLimitsTable DELETE_FAILED (deletion protection"),
        "{error}"
    );
    let hint = error.hint().unwrap_or_default();
    assert!(hint.contains("`zae-limiter delete --name my-app` then removes"), "{hint}");
    assert!(!hint.contains("deploy again"), "{hint}");
}

/// What CloudWatch knows of the function.
#[tokio::test]
async fn the_age_of_the_stream_is_asked_of_cloudwatch() {
    let point =
        "<member><Timestamp>2026-01-01T10:00:00Z</Timestamp><Maximum>61000.0</Maximum></member>";
    let replies = Replies::start()
        .on("GetMetricStatistics", &format!("<Datapoints>{point}</Datapoints>"))
        .on("GetMetricStatistics", "<Datapoints/>")
        .error("GetMetricStatistics", "AccessDenied", "not authorized to perform: cloudwatch:x");
    let cloud = cloud(&replies).await;
    let age = || cloud.iterator_age_ms("my-app-aggregator");
    assert_eq!(age().await.expect("an age"), Some(61_000));
    let asked = &replies.asked("GetMetricStatistics")[0];
    assert!(asked.contains("Dimensions.member.1.Value=my-app-aggregator"), "{asked}");
    assert!(asked.contains("StartTime=2026-01-01T09%3A45%3A00"), "{asked}");
    assert_eq!(age().await.expect("no record came"), None);
    let error = age().await.expect_err("denied");
    assert!(error.to_string().contains("not authorized to perform"), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("permission")));
}

/// A stack of an older release keeps what it was deployed with; what is new has its default, what
/// is gone is not sent.
#[tokio::test]
async fn an_upgrade_keeps_options_and_a_preview_changes_nothing() {
    let has = [
        (LAMBDA_CODE_KEY, ""),
        ("LambdaMemorySize", "512"),
        ("EnableAggregator", "false"),
        ("Forgotten", "x"),
    ];
    let more = "<member><Key>team</Key><Value>limits</Value></member></Tags>";
    let found = stack("UPDATE_COMPLETE", &has).replace("</Tags>", more);
    let set = change_set(&[change("Add", "NewAlarm", "AWS::CloudWatch::Alarm", "False")]);
    let replies = Replies::start()
        .on("DescribeStacks", &found)
        .on("CreateChangeSet", "<Id>set</Id>")
        .on("DescribeChangeSet", &set)
        .on("DeleteChangeSet", "");
    let cloud = cloud(&replies).await;
    let state = cloud.describe(NAME).await.expect("a stack");
    let upgrade = Deployment::upgrade(&state, None, false).expect("its options are right");
    let changes = upgrade.preview(&cloud, &mut |_| {}).await.expect("a plan").expect("a change");
    assert_eq!((changes.len(), changes[0].sign()), (1, "+"));
    assert_eq!(replies.asked("DeleteChangeSet").len(), 1);
    assert_eq!(replies.asked("ExecuteChangeSet").len(), 0);
    let asked = &replies.asked("CreateChangeSet")[0];
    let sent = |name: &str, value: &str| {
        let names: Vec<&str> = asked.split('&').collect();
        let at = names.iter().position(|pair| pair.ends_with(&format!(".ParameterKey={name}")));
        at.is_some_and(|at| names[at + 1].ends_with(&format!(".ParameterValue={value}")))
    };
    assert!(
        sent("LambdaMemorySize", "512") && sent("EnableContributorInsights", "false"),
        "{asked}"
    );
    assert!(!asked.contains("Forgotten"), "{asked}");
    assert!(asked.contains("=team") && asked.contains("=limits"), "{asked}");
    // With the template that it has, it gets the parameters that it has.
    let only = Deployment::upgrade(&state, None, true).expect("its options are right");
    only.preview(&cloud, &mut |_| {}).await.expect("a plan");
    let asked = &replies.asked("CreateChangeSet")[1];
    assert!(asked.contains("UsePreviousTemplate=true") && asked.contains("Forgotten"), "{asked}");
    assert!(!asked.contains("EnableContributorInsights"), "{asked}");
}

/// Its function is not ours: what its version record says of functions is for Python clients.
#[tokio::test]
async fn the_table_of_a_python_stack_keeps_its_version_record() {
    let python = stack("UPDATE_COMPLETE", &[("SchemaVersion", "0.10.0")]);
    let replies = Replies::start().on("DescribeStacks", &python);
    let builder = Stack::builder(NAME, "eu-west-1").endpoint_url(replies.endpoint());
    let error = builder.leave_stack(true).run(&mut |_| {}).await.expect_err("refused");
    assert!(matches!(error, DeployError::NotOurs { .. }), "{error}");
    assert_eq!(replies.actions(), ["DescribeStacks"]);
}
