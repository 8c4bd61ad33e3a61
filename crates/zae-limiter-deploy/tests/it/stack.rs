//! The life of a stack, against recorded replies of CloudFormation.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use zae_limiter::dynamodb::DynamoStore;
use zae_limiter::{Clock, TimeMs};
use zae_limiter_deploy::stack::{Cloud, Deployment, Kind, Maker, Outcome, Progress, Removal};
use zae_limiter_deploy::{DeployError, Stack, StackOptions};
use zae_limiter_testkit::aws::replies::Replies;
use zae_limiter_testkit::engine::clocks::HurriedClock;

pub(crate) const NAME: &str = "my-app";

pub(crate) async fn cloud(replies: &Replies) -> Cloud {
    // Waiting takes no time.
    let clock = Arc::new(HurriedClock::at(TimeMs(1_767_261_600_000)));
    let builder =
        DynamoStore::builder(NAME, "eu-west-1").endpoint_url(replies.endpoint()).clock(clock);
    Cloud::connect(&builder).await.expect("a way to AWS")
}

/// The same with a clock on which every wait takes so many times as long.
pub(crate) async fn hasty(replies: &Replies, times: u32) -> Cloud {
    #[derive(Debug)]
    struct Hasty(HurriedClock, u32);
    impl Clock for Hasty {
        fn now(&self) -> TimeMs {
            self.0.now()
        }
        fn monotonic(&self) -> Duration {
            self.0.monotonic()
        }
        fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
            self.0.sleep(duration * self.1)
        }
    }
    let clock = Arc::new(Hasty(HurriedClock::at(TimeMs(1_767_261_600_000)), times));
    let builder =
        DynamoStore::builder(NAME, "eu-west-1").endpoint_url(replies.endpoint()).clock(clock);
    Cloud::connect(&builder).await.expect("a way to AWS")
}

/// A stack as DescribeStacks tells it.
pub(crate) fn stack(status: &str, parameters: &[(&str, &str)]) -> String {
    let parameter = |(key, value): &(&str, &str)| {
        format!(
            "<member><ParameterKey>{key}</ParameterKey><ParameterValue>{value}</ParameterValue>\
             </member>"
        )
    };
    let parameters: String = parameters.iter().map(parameter).collect();
    format!(
        "<Stacks><member><StackName>{NAME}</StackName>\
         <StackId>arn:aws:cloudformation:eu-west-1:1:stack/{NAME}/1</StackId>\
         <StackStatus>{status}</StackStatus><CreationTime>2026-01-01T00:00:00Z</CreationTime>\
         <Parameters>{parameters}</Parameters>\
         <Tags><member><Key>ManagedBy</Key><Value>zae-limiter</Value></member>\
         <member><Key>zae-limiter:version</Key><Value>0.1.0</Value></member></Tags>\
         </member></Stacks>"
    )
}

pub(crate) fn ours(status: &str) -> String {
    stack(status, &[("LambdaCodeKey", "")])
}

pub(crate) fn event(id: &str, resource: &str, status: &str, reason: &str) -> String {
    format!(
        "<member><EventId>{id}</EventId><StackId>s</StackId><StackName>{NAME}</StackName>\
         <LogicalResourceId>{resource}</LogicalResourceId><ResourceType>AWS::X</ResourceType>\
         <ResourceStatus>{status}</ResourceStatus>\
         <ResourceStatusReason>{reason}</ResourceStatusReason>\
         <Timestamp>2026-01-01T00:00:00Z</Timestamp></member>"
    )
}

pub(crate) fn events(newest_first: &[String]) -> String {
    format!("<StackEvents>{}</StackEvents>", newest_first.concat())
}

pub(crate) fn change(action: &str, resource: &str, kind: &str, replacement: &str) -> String {
    format!(
        "<member><Type>Resource</Type><ResourceChange><Action>{action}</Action>\
         <LogicalResourceId>{resource}</LogicalResourceId><ResourceType>{kind}</ResourceType>\
         <Replacement>{replacement}</Replacement></ResourceChange></member>"
    )
}

pub(crate) fn change_set(changes: &[String]) -> String {
    format!("<Status>CREATE_COMPLETE</Status><Changes>{}</Changes>", changes.concat())
}

pub(crate) const NOT_THERE: (&str, &str) =
    ("ValidationError", "Stack with id my-app does not exist");

pub(crate) fn without_function() -> StackOptions {
    StackOptions::new().enable_aggregator(false)
}

/// Deploys without a function; what was told, and what came of it.
pub(crate) async fn deploy(
    replies: &Replies,
    change: impl FnOnce(Deployment<'_>) -> Deployment<'_>,
) -> (Vec<String>, Result<Outcome, DeployError>) {
    deploy_by(&cloud(replies).await, change).await
}

pub(crate) async fn deploy_by(
    cloud: &Cloud,
    change: impl FnOnce(Deployment<'_>) -> Deployment<'_>,
) -> (Vec<String>, Result<Outcome, DeployError>) {
    let told = Mutex::new(Vec::new());
    let deployment = change(Deployment::new(NAME, &without_function(), None).expect("options"));
    let mut tell = |progress: Progress<'_>| {
        let line = match progress {
            Progress::Doing(what) => what.to_owned(),
            Progress::Change(change) => format!("{} {}", change.action, change.resource),
            Progress::Event(event) => format!("{} {}", event.status, event.resource),
            _ => String::new(),
        };
        told.lock().expect("told").push(line);
    };
    let outcome = deployment.run(cloud, &mut tell).await.map(|(outcome, _)| outcome);
    (told.into_inner().expect("told"), outcome)
}

#[tokio::test]
async fn a_stack_that_fails_tells_the_event_that_explains_it() {
    let failed = [
        event("4", NAME, "ROLLBACK_IN_PROGRESS", "The following resource(s) failed"),
        event("3", "AppRole", "CREATE_FAILED", "Resource creation cancelled"),
        event("2", "RateLimitsTable", "CREATE_FAILED", "my-app already exists"),
        event("1", NAME, "CREATE_IN_PROGRESS", "User Initiated"),
    ];
    let replies = Replies::start()
        .error("DescribeStacks", NOT_THERE.0, NOT_THERE.1)
        .on("CreateStack", "<StackId>s</StackId>")
        .on("DescribeStacks", &ours("CREATE_IN_PROGRESS"))
        .on("DescribeStacks", &ours("ROLLBACK_COMPLETE"))
        .on("DescribeStackEvents", &events(&failed[3..]))
        .on("DescribeStackEvents", &events(&failed));
    let (told, outcome) = deploy(&replies, |it| it).await;
    let error = outcome.expect_err("a failure");
    assert_eq!(
        error.to_string(),
        "stack my-app is ROLLBACK_COMPLETE: RateLimitsTable CREATE_FAILED (my-app already exists)"
    );
    assert!(error.hint().is_some_and(|hint| hint.contains("zae-limiter delete --name my-app")));
    // Each event once, oldest first.
    assert_eq!(
        told,
        [
            "making the stack",
            "CREATE_IN_PROGRESS my-app",
            "CREATE_FAILED RateLimitsTable",
            "CREATE_FAILED AppRole",
            "ROLLBACK_IN_PROGRESS my-app",
        ]
    );
}

#[tokio::test]
async fn a_stack_in_a_failed_state_is_an_error_and_nothing_is_sent_to_it() {
    for status in ["ROLLBACK_COMPLETE", "CREATE_FAILED", "DELETE_FAILED", "UPDATE_ROLLBACK_FAILED"]
    {
        let why = event("1", "RateLimitsTable", "CREATE_FAILED", "no room");
        let replies = Replies::start()
            .on("DescribeStacks", &ours(status))
            .on("DescribeStackEvents", &events(&[why]));
        let (_, outcome) = deploy(&replies, |it| it).await;
        let error = outcome.expect_err("a failure");
        assert!(matches!(&error, DeployError::StackFailed { .. }), "{error}");
        assert!(error.to_string().contains("no room"), "{error}");
        assert_eq!(replies.actions(), ["DescribeStacks", "DescribeStackEvents"], "{status}");
    }
}

#[tokio::test]
async fn a_change_that_would_replace_the_table_is_refused_and_forgotten() {
    let table = change("Modify", "RateLimitsTable", "AWS::DynamoDB::Table", "True");
    let replies = || {
        Replies::start()
            .on("DescribeStacks", &ours("UPDATE_COMPLETE"))
            .on("CreateChangeSet", "<Id>set</Id>")
            .on("DescribeChangeSet", &change_set(std::slice::from_ref(&table)))
            .on("DeleteChangeSet", "")
            .on("ExecuteChangeSet", "")
            .on("DescribeStackEvents", &events(&[event("1", NAME, "UPDATE_COMPLETE", "")]))
            .on(
                "DescribeStackEvents",
                &events(&[
                    event("2", NAME, "UPDATE_COMPLETE", ""),
                    event("1", NAME, "UPDATE_COMPLETE", ""),
                ]),
            )
    };
    let refused = replies();
    let (told, outcome) = deploy(&refused, |it| it).await;
    let error = outcome.expect_err("refused");
    assert_eq!(
        error.to_string(),
        "stack my-app stays as it is: RateLimitsTable (AWS::DynamoDB::Table) would be replaced"
    );
    assert_eq!(told.last().map(String::as_str), Some("Modify RateLimitsTable"));
    assert_eq!(refused.asked("ExecuteChangeSet").len(), 0);
    assert_eq!(refused.asked("DeleteChangeSet").len(), 1);
    let allowed = replies();
    let (_, outcome) = deploy(&allowed, |it| it.may_lose_data(true)).await;
    assert_eq!(outcome.expect("changed"), Outcome::Updated);
    assert_eq!(allowed.asked("ExecuteChangeSet").len(), 1);
}

#[tokio::test]
async fn nothing_to_change_is_no_change() {
    let nothing = "<Status>FAILED</Status><StatusReason>The submitted information didn't contain \
                   changes. Submit different information to create a change set.</StatusReason>";
    let replies = Replies::start()
        .on("DescribeStacks", &ours("CREATE_COMPLETE"))
        .on("CreateChangeSet", "<Id>set</Id>")
        .on("DescribeChangeSet", nothing)
        .on("DeleteChangeSet", "");
    let (_, outcome) = deploy(&replies, |it| it).await;
    assert_eq!(outcome.expect("unchanged"), Outcome::Unchanged);
    assert_eq!(replies.asked("DeleteChangeSet").len(), 1);
    assert_eq!(replies.asked("ExecuteChangeSet").len(), 0);
}

#[tokio::test]
async fn a_change_that_is_taken_back_is_a_failure() {
    let replies = Replies::start()
        .on("DescribeStacks", &ours("UPDATE_COMPLETE"))
        .on("DescribeStacks", &ours("UPDATE_ROLLBACK_COMPLETE"))
        .on("CreateChangeSet", "<Id>set</Id>")
        .on(
            "DescribeChangeSet",
            &change_set(&[change("Modify", "AppRole", "AWS::IAM::Role", "False")]),
        )
        .on("ExecuteChangeSet", "")
        .on("DescribeStackEvents", &events(&[event("1", NAME, "UPDATE_COMPLETE", "")]))
        .on(
            "DescribeStackEvents",
            &events(&[
                event("2", "AppRole", "UPDATE_FAILED", "not allowed"),
                event("1", NAME, "UPDATE_COMPLETE", ""),
            ]),
        );
    let (_, outcome) = deploy(&replies, |it| it).await;
    let error = outcome.expect_err("a failure");
    assert_eq!(
        error.to_string(),
        "stack my-app is UPDATE_ROLLBACK_COMPLETE: AppRole UPDATE_FAILED (not allowed)"
    );
}

#[tokio::test]
async fn a_stack_at_work_is_waited_for_and_gone_on_with() {
    let replies = Replies::start()
        .on("DescribeStacks", &ours("CREATE_IN_PROGRESS"))
        .on("DescribeStacks", &ours("CREATE_IN_PROGRESS"))
        .on("DescribeStacks", &ours("CREATE_COMPLETE"))
        .on("DescribeStackEvents", &events(&[event("1", NAME, "CREATE_IN_PROGRESS", "")]))
        .error("CreateChangeSet", "ValidationError", "No updates are to be performed.");
    let (told, outcome) = deploy(&replies, |it| it).await;
    assert_eq!(outcome.expect("unchanged"), Outcome::Unchanged);
    assert_eq!(told[0], "waiting for the stack, which is CREATE_IN_PROGRESS");
    assert_eq!(replies.asked("CreateStack").len(), 0);
}

#[tokio::test]
async fn without_waiting_the_first_step_is_begun() {
    let replies = Replies::start()
        .error("DescribeStacks", NOT_THERE.0, NOT_THERE.1)
        .on("CreateStack", "<StackId>s</StackId>");
    let (_, outcome) = deploy(&replies, |it| it.waits(false)).await;
    assert_eq!(outcome.expect("begun"), Outcome::Begun);
    assert_eq!(replies.actions(), ["DescribeStacks", "CreateStack"]);
}

#[tokio::test]
async fn a_stack_of_the_python_package_is_left_alone() {
    let python =
        stack("UPDATE_COMPLETE", &[("SchemaVersion", "0.10.0"), ("EnableProvisioner", "true")]);
    let replies = Replies::start().on("DescribeStacks", &python);
    let found = cloud(&replies).await.describe(NAME).await.expect("a stack");
    assert_eq!(found.maker(), Maker::Python);
    let (_, outcome) = deploy(&replies, |it| it).await;
    let error = outcome.expect_err("refused");
    assert_eq!(error.to_string(), "stack my-app is not ours: the Python package has deployed it");
    assert!(error.hint().is_some_and(|hint| hint.contains("aggregate --name my-app")));
    assert!(replies.actions().iter().all(|action| action == "DescribeStacks"));
}

#[tokio::test]
async fn who_was_faster_has_made_the_stack() {
    let replies = Replies::start()
        .error("DescribeStacks", NOT_THERE.0, NOT_THERE.1)
        .error("CreateStack", "AlreadyExistsException", "Stack [my-app] already exists")
        .error("DescribeStacks", NOT_THERE.0, NOT_THERE.1);
    let (_, outcome) = deploy(&replies, |it| it).await;
    let error = outcome.expect_err("a conflict");
    assert!(matches!(error, DeployError::StackExists { .. }), "{error}");
}

#[tokio::test]
async fn errors_say_what_aws_says_and_what_to_do() {
    let replies = Replies::start().error(
        "DescribeStacks",
        "AccessDenied",
        "User: arn:aws:iam::1:user/x is not authorized to perform: cloudformation:DescribeStacks",
    );
    let error = cloud(&replies).await.find(NAME).await.expect_err("denied");
    assert!(error.to_string().contains("is not authorized to perform"), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("permission")));
    let missing = Replies::start().error("DescribeStacks", NOT_THERE.0, NOT_THERE.1);
    let error = cloud(&missing).await.describe(NAME).await.expect_err("missing");
    assert_eq!(error.to_string(), "there is no stack my-app in eu-west-1");
    let nobody = Stack::builder(NAME, "eu-west-1").endpoint_url("http://127.0.0.1:9");
    let nobody = Cloud::connect(nobody.store()).await.expect("nothing is sent");
    let error = nobody.find(NAME).await.expect_err("nobody answers");
    assert!(matches!(error, DeployError::Unreachable { .. }), "{error}");
}

#[tokio::test]
async fn a_protected_stack_is_not_deleted() {
    let protected =
        stack("CREATE_COMPLETE", &[("LambdaCodeKey", ""), ("EnableDeletionProtection", "true")]);
    let replies = Replies::start().on("DescribeStacks", &protected);
    let removal = Removal { stack: NAME, kind: Kind::Limiter, waits: true };
    let error = removal.run(&cloud(&replies).await, &mut |_| {}).await.expect_err("protected");
    assert_eq!(error.to_string(), "the table of stack my-app is protected from being deleted");
    assert_eq!(replies.actions(), ["DescribeStacks"]);
}

#[tokio::test]
async fn deleting_that_fails_tells_what_stays() {
    let replies = Replies::start()
        .on("DescribeStacks", &ours("CREATE_COMPLETE"))
        .on("DeleteStack", "")
        .on("DescribeStacks", &ours("DELETE_FAILED"))
        .on("DescribeStackEvents", &events(&[event("1", NAME, "CREATE_COMPLETE", "")]))
        .on(
            "DescribeStackEvents",
            &events(&[
                event("2", "CodeBucket", "DELETE_FAILED", "The bucket is not empty"),
                event("1", NAME, "CREATE_COMPLETE", ""),
            ]),
        );
    let removal = Removal { stack: NAME, kind: Kind::Limiter, waits: true };
    let error = removal.run(&cloud(&replies).await, &mut |_| {}).await.expect_err("a failure");
    assert_eq!(
        error.to_string(),
        "stack my-app is DELETE_FAILED: CodeBucket DELETE_FAILED (The bucket is not empty)"
    );
}

/// Page two.
#[tokio::test]
async fn stacks_of_all_pages_are_listed_by_tag() {
    let other = "<Stacks><member><StackName>web</StackName><StackStatus>CREATE_COMPLETE</StackStatus>\
                 <CreationTime>2026-01-01T00:00:00Z</CreationTime></member></Stacks>";
    let replies = Replies::start()
        .on("DescribeStacks", &format!("{other}<NextToken>more</NextToken>"))
        .on("DescribeStacks", &ours("CREATE_COMPLETE"));
    let found = cloud(&replies).await.list(Kind::Limiter).await.expect("a list");
    assert_eq!(found.iter().map(|stack| stack.name.as_str()).collect::<Vec<_>>(), [NAME]);
    assert!(replies.asked("DescribeStacks")[1].contains("NextToken=more"));
}
