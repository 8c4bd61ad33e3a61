//! `Stack::builder`: infrastructure, namespaces and a connected limiter in one call, on an engine
//! that speaks DynamoDB and nothing else.

use std::sync::Mutex;

use zae_limiter::{Level, PageRequest, Request, StoreErrorKind};
use zae_limiter_deploy::stack::{Outcome, Progress, StackBuilder};
use zae_limiter_deploy::{
    Architecture, ArchiveOnDelete, DeployError, ResourceIndexProjection, Stack,
};
use zae_limiter_testkit::engine::Engine;

fn builder(engine: &Engine) -> StackBuilder {
    Stack::builder("my-app", "eu-west-1").endpoint_url(engine.endpoint())
}

async fn told(builder: &StackBuilder) -> (Vec<String>, Result<Outcome, DeployError>) {
    let lines = Mutex::new(Vec::new());
    let mut tell = |progress: Progress<'_>| {
        if let Progress::Doing(what) = progress {
            lines.lock().expect("lines").push(what.to_owned());
        }
    };
    let outcome = builder.run(&mut tell).await.map(|deployed| deployed.outcome);
    (lines.into_inner().expect("lines"), outcome)
}

#[tokio::test(flavor = "multi_thread")]
async fn one_call_makes_everything_and_connects() {
    let engine = Engine::start();
    let limiter = builder(&engine).namespace("tenant-a").deploy().await.expect("deployed");
    let limits = ["rpm:10/min".parse().expect("a limit")];
    limiter.set_limits(&Level::System, limits).await.expect("stored");
    let lease = limiter.acquire(Request::new("key-1", "gpt-4").take("rpm", 1)).await;
    lease.expect("granted").commit().await.expect("kept");
    // The same once more is nothing; both namespaces are there.
    assert_eq!(
        told(&builder(&engine).namespace("tenant-a")).await.1.expect("again"),
        Outcome::Unchanged
    );
    let default = builder(&engine).deploy().await.expect("the namespace default");
    let names = default.namespaces(&PageRequest::first(100)).await.expect("a list");
    assert_eq!(names.items.len(), 2, "{names:?}");
}

/// `connect` of the library never provisions, and a builder that leaves the stack alone makes no
/// table either.
#[tokio::test(flavor = "multi_thread")]
async fn a_stack_that_is_left_alone_must_be_there() {
    let engine = Engine::start();
    let error = told(&builder(&engine).leave_stack(true)).await.1.expect_err("no table");
    assert!(
        matches!(&error, DeployError::Store(error) if error.kind() == StoreErrorKind::NotFound),
        "{error}"
    );
    let connected = builder(&engine).store().clone().connect().await;
    assert_eq!(connected.expect_err("no table").kind(), StoreErrorKind::NotFound);
}

/// As Terraform and CDK leave it: a table, and nothing in it.
#[tokio::test(flavor = "multi_thread")]
async fn the_table_of_another_tools_stack_is_made_ready() {
    use zae_limiter::dynamodb::sdk::{TableOptions, create_table};
    let engine = Engine::start();
    let this = builder(&engine).leave_stack(true).namespace("tenant-a").usage_retention_days(30);
    let table = this.store().table().await.expect("a way to the table");
    let clock = &this.store().options().clock;
    create_table(&table, &TableOptions::new(), &**clock).await.expect("a table");
    let refused = this.store().clone().connect().await.expect_err("nothing is in it");
    assert!(refused.message().contains("has not been initialised"), "{refused}");
    let (_, outcome) = told(&this).await;
    assert_eq!(outcome.expect("ready"), Outcome::Ready);
    let connected = this.store().clone().namespace("tenant-a").connect().await;
    connected.expect("the namespace is registered");
    let operator = this.store().operator().await.expect("an operator");
    let versions = operator.versions().await.expect("an answer").expect("a version record");
    assert_eq!(versions.retention.usage_days, Some(30));
    assert_eq!(versions.function, None, "nobody says that there is a function");
}

/// What was set since the last deploy is told before it is overwritten.
#[tokio::test(flavor = "multi_thread")]
async fn a_retention_that_changes_is_told() {
    let engine = Engine::start();
    let (lines, _) = told(&builder(&engine).usage_retention_days(365)).await;
    assert!(!lines.iter().any(|line| line.contains("kept for")), "{lines:?}");
    let (lines, outcome) = told(&builder(&engine)).await;
    outcome.expect("deployed");
    let said = "usage is kept for 90 days from now on, no longer 365";
    assert!(lines.iter().any(|line| line == said), "{lines:?}");
}

/// Every option of the builder has its method, and what is wrong is said before anything is sent.
#[tokio::test]
async fn every_option_has_a_method_and_wrong_ones_are_named() {
    let all = Stack::builder("my-app", "eu-west-1")
        .endpoint_url("http://127.0.0.1:9")
        .namespace("default")
        .lambda_memory(512)
        .lambda_timeout(30)
        .lambda_duration_threshold_pct(70)
        .usage_retention_days(30)
        .audit_retention_days(60)
        .log_retention_days(7)
        .enable_aggregator(true)
        .enable_alarms(true)
        .alarm_sns_topic("arn:aws:sns:eu-west-1:123456789012:ops".to_owned())
        .enable_audit_archival(true)
        .audit_archive_glacier_days(30)
        .archive_on_delete(ArchiveOnDelete::Empty)
        .enable_tracing(true)
        .create_iam(true)
        .create_iam_roles(true)
        .aggregator_role_arn("arn:aws:iam::123456789012:role/mine".to_owned())
        .permission_boundary("arn:aws:iam::aws:policy/PowerUserAccess".to_owned())
        .role_name_format("pb-{}-PowerUser".to_owned())
        .policy_name_format("pb-{}-PowerUser".to_owned())
        .enable_deletion_protection(true)
        .contributor_insights(true)
        .pitr_recovery_days(7)
        .architecture(Architecture::Arm64)
        .resource_index_projection(ResourceIndexProjection::All)
        .shards_max(8)
        .enable_folding(false)
        .tags([("team", "limits")])
        .tag("stage", "test");
    let error = all.clone().deploy().await.expect_err("nobody answers");
    assert!(matches!(error, DeployError::Unreachable { .. }), "{error}");
    for (wrong, field) in [
        (all.clone().lambda_memory(64), "lambda_memory"),
        (all.clone().role_name_format("x".to_owned()), "role_name_format"),
        (all.clone().tag("aws:x", "y"), "tags"),
        (all.clone().shards_max(3), "shards_max"),
        (all.clone().create_iam(false), "create_iam_roles"),
    ] {
        let error = wrong.deploy().await.expect_err("wrong");
        assert!(matches!(&error, DeployError::Option(error) if error.field == field), "{error}");
    }
}

#[tokio::test]
async fn a_namespace_with_a_wrong_name_is_refused_before_anything_is_sent() {
    let wrong = Stack::builder("my-app", "eu-west-1").endpoint_url("http://127.0.0.1:9");
    let error = wrong.namespace("tenant a").deploy().await.expect_err("wrong");
    assert!(matches!(&error, DeployError::Limiter(zae_limiter::Error::Invalid(_))), "{error}");
    assert!(error.to_string().contains("namespace \"tenant a\" contains ' '"), "{error}");
}
