//! The template: which resources each option makes, with which properties.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use zae_limiter_aggregator::{Settings, filters};
use zae_limiter_core::UsageWindow;
use zae_limiter_deploy::options::LOG_RETENTION_DAYS;
use zae_limiter_deploy::template::TEMPLATE_BYTES_MAX;
use zae_limiter_deploy::{
    Architecture, ArchiveOnDelete, PolicyName, ResourceIndexProjection, RoleName, StackOptions,
    TEMPLATE,
};

use crate::cfn::{CODE, STACK, Stack, object, template, text};

const POLICIES: [&str; 7] = [
    "AcquireOnlyPolicy",
    "FullAccessPolicy",
    "ReadOnlyPolicy",
    "RegistryAdminPolicy",
    "NamespaceAcquirePolicy",
    "NamespaceFullAccessPolicy",
    "NamespaceReadOnlyPolicy",
];
const PREPARED: [&str; 3] = ["CodeBucket", "AggregatorDLQ", "AggregatorLogGroup"];
const FUNCTION: [&str; 2] = ["AggregatorFunction", "AggregatorEventSourceMapping"];
const ALARMS: [&str; 3] =
    ["DynamoDBReadThrottleAlarm", "DynamoDBWriteThrottleAlarm", "DynamoDBTakeThrottleAlarm"];
const FUNCTION_ALARMS: [&str; 5] = [
    "AggregatorDLQAlarm",
    "LambdaErrorRateAlarm",
    "LambdaDurationAlarm",
    "LambdaThrottleAlarm",
    "StreamIteratorAgeAlarm",
];
const ROLES: [&str; 3] = ["AppRole", "AdminRole", "ReadOnlyRole"];

fn set(groups: &[&[&str]]) -> BTreeSet<String> {
    let all = groups.iter().flat_map(|group| group.iter());
    all.map(|name| (*name).to_owned()).chain(["RateLimitsTable".to_owned()]).collect()
}

/// A name, options, the resources of the first step, and those that the second adds.
type Case<'a> = (&'a str, StackOptions, Vec<&'a [&'a str]>, Vec<&'a [&'a str]>);

#[test]
fn each_option_makes_its_resources() {
    let new = StackOptions::new;
    let own_role = "arn:aws:iam::123456789012:role/mine";
    let (archive, role): (&[&str], &[&str]) = (&["AuditArchiveBucket"], &["AggregatorRole"]);
    let step = [&PREPARED[..], &POLICIES, &ALARMS];
    let cases: Vec<Case<'_>> = vec![
        (
            "defaults",
            new(),
            [&step[..], &[archive, role]].concat(),
            vec![&FUNCTION, &FUNCTION_ALARMS],
        ),
        (
            "no alarms",
            new().enable_alarms(false),
            vec![&PREPARED, &POLICIES, archive, role],
            vec![&FUNCTION],
        ),
        (
            "no archive",
            new().enable_audit_archival(false),
            [&step[..], &[role]].concat(),
            vec![&FUNCTION, &FUNCTION_ALARMS],
        ),
        ("no aggregator", new().enable_aggregator(false), vec![&POLICIES, &ALARMS], vec![]),
        ("no IAM", new().create_iam(false), vec![&ALARMS], vec![]),
        (
            "no IAM, own role",
            new().create_iam(false).aggregator_role_arn(own_role),
            vec![&PREPARED, &ALARMS, archive],
            vec![&FUNCTION, &FUNCTION_ALARMS],
        ),
        (
            "own role",
            new().aggregator_role_arn(own_role),
            [&step[..], &[archive]].concat(),
            vec![&FUNCTION, &FUNCTION_ALARMS],
        ),
        (
            "roles",
            new().create_iam_roles(true),
            [&step[..], &[archive, role, &ROLES]].concat(),
            vec![&FUNCTION, &FUNCTION_ALARMS],
        ),
        (
            "roles, no aggregator",
            new().create_iam_roles(true).enable_aggregator(false),
            vec![&POLICIES, &ALARMS, &ROLES],
            vec![],
        ),
        (
            "tracing",
            new().enable_tracing(true),
            [&step[..], &[archive, role]].concat(),
            vec![&FUNCTION, &FUNCTION_ALARMS],
        ),
    ];
    for (name, options, first, added) in cases {
        let (one, two) = (Stack::first(&options), Stack::whole(&options));
        assert_eq!(one.resources(), set(&first), "{name}");
        assert_eq!(two.resources(), set(&[&first[..], &added[..]].concat()), "{name}, with code");
        assert_eq!(
            options.has_aggregator(),
            two.resources().contains("AggregatorFunction"),
            "{name}"
        );
        assert_eq!(options.has_archive(), two.resources().contains("AuditArchiveBucket"), "{name}");
        // Nothing refers to what is not there, in either step.
        one.outputs();
        two.outputs();
    }
    let every: BTreeSet<String> = object(&template()["Resources"]).keys().cloned().collect();
    let all = Stack::whole(&new().create_iam_roles(true));
    assert_eq!(all.resources(), every, "no resource is without a case");
}

#[test]
fn every_combination_of_switches_stands_on_its_own() {
    for bits in 0_u32..256 {
        let is = |bit: u32| bits & (1 << bit) != 0;
        let mut options = StackOptions::new()
            .enable_aggregator(is(0))
            .create_iam(is(1))
            .create_iam_roles(is(1) && is(2))
            .enable_alarms(is(3))
            .enable_audit_archival(is(4))
            .enable_tracing(is(5));
        if is(6) {
            options = options.aggregator_role_arn("arn:aws:iam::123456789012:role/mine");
        }
        if is(7) {
            options = options.permission_boundary("b").role_name_format("{}-x");
        }
        Stack::first(&options).outputs();
        Stack::whole(&options).outputs();
    }
}

/// A parameter on which only outputs depend may be no change for CloudFormation: it would say that
/// there is nothing to do, and keep the value that it had.
#[test]
fn every_parameter_shows_in_a_resource() {
    let template = template();
    let used = format!("{}{}", template["Resources"], template["Conditions"]);
    let is_used = |name: &String| {
        used.contains(&json!({"Ref": name}).to_string()) || used.contains(&format!("${{{name}}}"))
    };
    let idle: Vec<&String> =
        object(&template["Parameters"]).keys().filter(|name| !is_used(name)).collect();
    assert!(idle.is_empty(), "{idle:?}");
}

#[test]
fn the_template_goes_with_a_request_and_uses_what_every_engine_has() {
    assert!(TEMPLATE.len() <= TEMPLATE_BYTES_MAX, "{} bytes", TEMPLATE.len());
    assert!(!TEMPLATE.contains(" !"), "short forms are tags, which not every reader knows");
    assert!(!TEMPLATE.contains("Fn::Split") || TEMPLATE.contains("# No Fn::Split"));
    let used = TEMPLATE.split("\nResources:").collect::<String>();
    for condition in object(&template()["Conditions"]).keys() {
        assert!(used.matches(condition.as_str()).count() >= 2, "{condition} is not used");
    }
}

#[test]
fn the_table_is_the_one_that_clients_need() {
    let new = StackOptions::new;
    let table = |options: &StackOptions| Stack::first(options).properties("RateLimitsTable");
    let usual = table(&new());
    assert_eq!(usual["TableName"], STACK);
    assert_eq!(usual["BillingMode"], "PAY_PER_REQUEST");
    assert_eq!(usual["StreamSpecification"], json!({ "StreamViewType": "NEW_AND_OLD_IMAGES" }));
    assert_eq!(
        usual["TimeToLiveSpecification"],
        json!({ "AttributeName": "ttl", "Enabled": true })
    );
    assert_eq!(
        usual["PointInTimeRecoverySpecification"],
        json!({ "PointInTimeRecoveryEnabled": true })
    );
    assert_eq!(usual["DeletionProtectionEnabled"], false);
    assert_eq!(usual["ContributorInsightsSpecification"], json!({ "Enabled": false }));
    assert!(usual.get("LocalSecondaryIndexes").is_none());
    let key = |hash: &str, range: &str| {
        json!([
            { "AttributeName": hash, "KeyType": "HASH" },
            { "AttributeName": range, "KeyType": "RANGE" },
        ])
    };
    assert_eq!(usual["KeySchema"], key("PK", "SK"));
    let indexes = |options: &StackOptions| {
        let found = table(options)["GlobalSecondaryIndexes"].clone();
        let shown = found.as_array().expect("indexes").iter().map(|index| {
            let name = text(&index["IndexName"]);
            assert_eq!(index["KeySchema"], key(&format!("{name}PK"), &format!("{name}SK")));
            (name, text(&index["Projection"]["ProjectionType"]))
        });
        shown.map(|(name, kept)| format!("{name} {kept}")).collect::<Vec<_>>()
    };
    assert_eq!(indexes(&new()), ["GSI1 ALL", "GSI2 KEYS_ONLY", "GSI3 KEYS_ONLY", "GSI4 KEYS_ONLY"]);
    let all = new().resource_index_projection(ResourceIndexProjection::All);
    assert_eq!(indexes(&all), ["GSI1 ALL", "GSI2 ALL", "GSI3 KEYS_ONLY", "GSI4 KEYS_ONLY"]);
    let changed = table(
        &new().pitr_recovery_days(7).enable_deletion_protection(true).contributor_insights(true),
    );
    let recovery = &changed["PointInTimeRecoverySpecification"];
    assert_eq!(
        *recovery,
        json!({ "PointInTimeRecoveryEnabled": true, "RecoveryPeriodInDays": "7" })
    );
    assert_eq!(changed["DeletionProtectionEnabled"], true);
    assert_eq!(changed["ContributorInsightsSpecification"], json!({ "Enabled": true }));
    let found = &template()["Resources"]["RateLimitsTable"];
    assert_eq!(
        (&found["DeletionPolicy"], &found["UpdateReplacePolicy"]),
        (&json!("Delete"), &json!("Retain"))
    );
}

#[test]
fn the_function_is_told_what_the_aggregator_reads() {
    let settings = |options: &StackOptions| {
        let function = Stack::whole(options).properties("AggregatorFunction");
        let variables = object(&function["Environment"]["Variables"]).clone();
        let mut asked = BTreeSet::new();
        let asked = std::sync::Mutex::new(&mut asked);
        let settings = Settings::from_variables(|name| {
            asked.lock().unwrap().insert(name.to_owned());
            variables.get(name).map(text)
        });
        let given: BTreeSet<String> = variables.keys().cloned().collect();
        assert_eq!(given, **asked.lock().unwrap(), "as many variables as are read");
        settings.unwrap_or_else(|error| panic!("{error}"))
    };
    let usual = settings(&StackOptions::new());
    let mut expected = Settings::new(STACK);
    expected.archive = Some("my-app-auditarchivebucket-made-up".to_owned());
    assert_eq!(usual, expected);
    let other = settings(
        &StackOptions::new()
            .snapshot_windows([UsageWindow::Monthly, UsageWindow::Hourly])
            .usage_retention_days(7)
            .shards_max(1)
            .enable_folding(false)
            .enable_audit_archival(false),
    );
    let expected = Settings::new(STACK)
        .windows([UsageWindow::Hourly, UsageWindow::Monthly])
        .snapshot_ttl_days(7)
        .shards_max(1)
        .folds(false);
    assert_eq!(other, expected);
}

#[test]
fn the_function_is_built_as_asked() {
    let function = |options: &StackOptions| Stack::whole(options).properties("AggregatorFunction");
    let usual = function(&StackOptions::new());
    assert_eq!(usual["FunctionName"], "my-app-aggregator");
    assert_eq!(
        (&usual["Runtime"], &usual["Handler"]),
        (&json!("provided.al2023"), &json!("aggregator"))
    );
    assert_eq!(usual["Architectures"], json!(["x86_64"]));
    assert_eq!(usual["Code"], json!({ "S3Bucket": "my-app-codebucket-made-up", "S3Key": CODE }));
    assert_eq!(usual["Role"], "arn:aws:iam::123456789012:role/my-app-aggr");
    assert_eq!((text(&usual["MemorySize"]), text(&usual["Timeout"])), ("256".into(), "60".into()));
    assert_eq!(usual["TracingConfig"], json!({ "Mode": "PassThrough" }));
    let changed = function(
        &StackOptions::new()
            .architecture(Architecture::Arm64)
            .lambda_memory(512)
            .lambda_timeout(30)
            .enable_tracing(true)
            .aggregator_role_arn("arn:aws:iam::123456789012:role/mine"),
    );
    assert_eq!(changed["Architectures"], json!(["arm64"]));
    assert_eq!(
        (text(&changed["MemorySize"]), text(&changed["Timeout"])),
        ("512".into(), "30".into())
    );
    assert_eq!(changed["TracingConfig"], json!({ "Mode": "Active" }));
    assert_eq!(changed["Role"], "arn:aws:iam::123456789012:role/mine");
    // A change set sees that the code came, also one that does not look at conditions.
    let tag = |stack: &Stack| stack.properties("CodeBucket")["Tags"][0]["Value"].clone();
    assert_eq!(tag(&Stack::first(&StackOptions::new())), "none");
    assert_eq!(tag(&Stack::whole(&StackOptions::new())), CODE);
}

#[test]
fn the_event_source_delivers_what_the_aggregator_reads() {
    let source = Stack::whole(&StackOptions::new()).properties("AggregatorEventSourceMapping");
    let patterns = source["FilterCriteria"]["Filters"].as_array().expect("filters").iter();
    let patterns: Vec<Value> = patterns
        .map(|filter| {
            serde_json::from_str(filter["Pattern"].as_str().expect("JSON")).expect("JSON")
        })
        .collect();
    assert_eq!(patterns, filters());
    assert_eq!(source["FunctionResponseTypes"], json!(["ReportBatchItemFailures"]));
    assert_eq!(source["BisectBatchOnFunctionError"], true);
    assert_eq!(source["MaximumRetryAttempts"], 3);
    assert_eq!(source["StartingPosition"], "TRIM_HORIZON");
    let queue = "arn:aws:sqs:us-east-1:123456789012:my-app-aggregator-dlq";
    assert_eq!(source["DestinationConfig"], json!({ "OnFailure": { "Destination": queue } }));
}

#[test]
fn buckets_queue_and_logs_are_private_and_kept_as_long_as_asked() {
    let options = StackOptions::new()
        .log_retention_days(LOG_RETENTION_DAYS[2])
        .audit_archive_glacier_days(30)
        .archive_on_delete(ArchiveOnDelete::Empty);
    let stack = Stack::whole(&options);
    for bucket in ["CodeBucket", "AuditArchiveBucket"] {
        let found = stack.properties(bucket);
        let access = object(&found["PublicAccessBlockConfiguration"]);
        assert!(access.len() == 4 && access.values().all(|blocked| *blocked == true), "{bucket}");
        let encryption = &found["BucketEncryption"]["ServerSideEncryptionConfiguration"][0];
        assert_eq!(
            *encryption,
            json!({ "ServerSideEncryptionByDefault": { "SSEAlgorithm": "AES256" } })
        );
        assert!(found.get("BucketName").is_none(), "a made-up name cannot clash");
    }
    let rule = &stack.properties("AuditArchiveBucket")["LifecycleConfiguration"]["Rules"][0];
    let transition = &rule["Transitions"][0];
    assert_eq!(transition["StorageClass"], "GLACIER_IR");
    assert_eq!(text(&transition["TransitionInDays"]), "30");
    let archive = &template()["Resources"]["AuditArchiveBucket"];
    assert_eq!(archive["DeletionPolicy"], "RetainExceptOnCreate");
    assert_eq!(stack.outputs()["ArchiveOnDelete"]["Value"], "empty");
    let queue = stack.properties("AggregatorDLQ");
    assert_eq!(queue["QueueName"], "my-app-aggregator-dlq");
    assert_eq!(
        (&queue["SqsManagedSseEnabled"], &queue["MessageRetentionPeriod"]),
        (&json!(true), &json!(1_209_600))
    );
    let logs = stack.properties("AggregatorLogGroup");
    assert_eq!(logs["LogGroupName"], "/aws/lambda/my-app-aggregator");
    assert_eq!(text(&logs["RetentionInDays"]), LOG_RETENTION_DAYS[2].to_string());
}

#[test]
fn alarms_tell_whoever_is_named() {
    let topic = "arn:aws:sns:us-east-1:123456789012:alarms";
    let options = StackOptions::new().alarm_sns_topic(topic).lambda_timeout(100);
    let (quiet, loud) = (Stack::whole(&StackOptions::new()), Stack::whole(&options));
    let all: Vec<&str> = ALARMS.into_iter().chain(FUNCTION_ALARMS).collect();
    let mut watched = BTreeSet::new();
    for alarm in &all {
        assert!(quiet.properties(alarm).get("AlarmActions").is_none(), "{alarm}");
        let found = loud.properties(alarm);
        assert_eq!(found["AlarmActions"], json!([topic]), "{alarm}");
        assert_eq!(found["TreatMissingData"], "notBreaching", "{alarm}");
        watched.insert(text(&found["MetricName"]));
    }
    let expected = [
        "ApproximateNumberOfMessagesVisible",
        "Duration",
        "Errors",
        "IteratorAge",
        "ReadThrottleEvents",
        "ThrottledRequests",
        "Throttles",
        "WriteThrottleEvents",
    ];
    assert_eq!(watched, expected.map(String::from).into());
    assert_eq!(text(&loud.properties("LambdaDurationAlarm")["Threshold"]), "80000");
}

#[test]
fn roles_and_policies_have_their_names_and_boundaries() {
    let usual = Stack::whole(&StackOptions::new().create_iam_roles(true));
    for policy in PolicyName::ALL {
        let found = usual.properties(policy.logical_id());
        assert_eq!(found["ManagedPolicyName"], policy.name("{}", STACK), "{policy:?}");
        let letters = found["PolicyDocument"].to_string().len();
        assert!(letters < 6_144, "{policy:?} has {letters} characters");
    }
    for role in RoleName::ALL {
        let found = usual.properties(role.logical_id());
        assert_eq!(found["RoleName"], role.name("{}", STACK), "{role:?}");
        assert!(found.get("PermissionsBoundary").is_none(), "{role:?}");
    }
    let attached = |role: &str| usual.properties(role)["ManagedPolicyArns"].clone();
    let arn = |policy: PolicyName| {
        format!("arn:aws:iam::123456789012:policy/{}", policy.name("{}", STACK))
    };
    assert_eq!(attached("AppRole"), json!([arn(PolicyName::AcquireOnly)]));
    assert_eq!(
        attached("AdminRole"),
        json!([arn(PolicyName::FullAccess), arn(PolicyName::RegistryAdmin)])
    );
    assert_eq!(attached("ReadOnlyRole"), json!([arn(PolicyName::ReadOnly)]));
    for (boundary, expected) in [
        ("arn:aws:iam::aws:policy/PowerUserAccess", "arn:aws:iam::aws:policy/PowerUserAccess"),
        ("Ours", "arn:aws:iam::123456789012:policy/Ours"),
    ] {
        let options = StackOptions::new()
            .create_iam_roles(true)
            .permission_boundary(boundary)
            .role_name_format("pb-{}-PowerUser")
            .policy_name_format("pb-{}");
        let stack = Stack::whole(&options);
        for role in RoleName::ALL {
            let found = stack.properties(role.logical_id());
            assert_eq!(found["PermissionsBoundary"], expected, "{role:?}");
            assert_eq!(found["RoleName"], role.name("pb-{}-PowerUser", STACK));
        }
        for policy in PolicyName::ALL {
            let found = stack.properties(policy.logical_id());
            assert_eq!(found["ManagedPolicyName"], policy.name("pb-{}", STACK));
        }
        assert_eq!(stack.outputs()["PermissionBoundaryArn"]["Value"], expected);
        assert_eq!(stack.outputs()["RoleNameFormat"]["Value"], "pb-{}-PowerUser");
    }
}

#[test]
fn exports_have_the_names_of_the_python_package() {
    let options =
        StackOptions::new().create_iam_roles(true).permission_boundary("b").role_name_format("{}");
    let exports: BTreeMap<String, Value> = Stack::whole(&options)
        .outputs()
        .into_values()
        .map(|output| (text(&output["Export"]["Name"]), output["Value"].clone()))
        .collect();
    for name in [
        "TableName",
        "TableArn",
        "StreamArn",
        "AggregatorArn",
        "AggregatorName",
        "DLQUrl",
        "DLQArn",
        "DLQAlarmName",
        "LambdaErrorRateAlarmName",
        "LambdaDurationAlarmName",
        "ReadThrottleAlarmName",
        "WriteThrottleAlarmName",
        "StreamIteratorAgeAlarmName",
        "AuditArchiveBucketName",
        "AuditArchiveBucketArn",
        "CodeBucketName",
        "AcquireOnlyPolicyArn",
        "FullAccessPolicyArn",
        "ReadOnlyPolicyArn",
        "NamespaceAcquirePolicyArn",
        "NamespaceFullAccessPolicyArn",
        "NamespaceReadOnlyPolicyArn",
        "AppRoleArn",
        "AppRoleName",
        "AdminRoleArn",
        "AdminRoleName",
        "ReadOnlyRoleArn",
        "ReadOnlyRoleName",
        "PermissionBoundaryArn",
        "RoleNameFormat",
    ] {
        assert!(exports.contains_key(&format!("{STACK}-{name}")), "{name}");
    }
    assert_eq!(exports["my-app-TableName"], "my-app");
}
