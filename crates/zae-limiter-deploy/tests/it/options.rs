//! Options: what each refuses, and which parameter each becomes.

use std::collections::{BTreeMap, BTreeSet};

use zae_limiter_core::UsageWindow;
use zae_limiter_deploy::options::{LOG_RETENTION_DAYS, TAGS_MAX};
use zae_limiter_deploy::{
    Architecture, ArchiveOnDelete, LAMBDA_CODE_KEY, PolicyName, ResourceIndexProjection, RoleName,
    StackOptions, StackVersions, stack_tags,
};

use crate::cfn::{STACK, Stack, object, template, text};

type Change = fn(StackOptions) -> StackOptions;

/// Every option with a value that is not its default, and the parameters that change by it.
const OPTIONS: &[(Change, &[(&str, &str)])] = &[
    (|o| o.snapshot_windows(UsageWindow::ALL), &[("SnapshotWindows", "hourly,daily,monthly")]),
    (|o| o.usage_retention_days(7), &[("SnapshotRetentionDays", "7")]),
    // Kept in the table.
    (|o| o.audit_retention_days(7), &[]),
    (|o| o.shards_max(4), &[("ShardsMax", "4")]),
    (|o| o.enable_folding(false), &[("EnableFolding", "false")]),
    (
        |o| o.resource_index_projection(ResourceIndexProjection::All),
        &[("ResourceIndexProjection", "ALL")],
    ),
    (|o| o.enable_aggregator(false), &[("EnableAggregator", "false")]),
    (|o| o.architecture(Architecture::Arm64), &[("Architecture", "arm64")]),
    (|o| o.lambda_memory(512), &[("LambdaMemorySize", "512")]),
    (|o| o.lambda_timeout(30), &[("LambdaTimeout", "30"), ("LambdaDurationThreshold", "24000")]),
    (|o| o.lambda_duration_threshold_pct(50), &[("LambdaDurationThreshold", "30000")]),
    (|o| o.log_retention_days(365), &[("LogRetentionDays", "365")]),
    (|o| o.enable_tracing(true), &[("EnableTracing", "true")]),
    (|o| o.pitr_recovery_days(7), &[("PITRRecoveryPeriodDays", "7")]),
    (|o| o.enable_deletion_protection(true), &[("EnableDeletionProtection", "true")]),
    (|o| o.contributor_insights(true), &[("EnableContributorInsights", "true")]),
    (|o| o.enable_alarms(false), &[("EnableAlarms", "false")]),
    (
        |o| o.alarm_sns_topic("arn:aws:sns:us-east-1:123456789012:alarms"),
        &[("AlarmSNSTopicArn", "arn:aws:sns:us-east-1:123456789012:alarms")],
    ),
    (|o| o.enable_audit_archival(false), &[("EnableAuditArchival", "false")]),
    (|o| o.audit_archive_glacier_days(30), &[("AuditArchiveGlacierTransitionDays", "30")]),
    (|o| o.archive_on_delete(ArchiveOnDelete::Empty), &[("ArchiveOnDelete", "empty")]),
    (|o| o.create_iam(false), &[("EnableIAM", "false")]),
    (|o| o.create_iam_roles(true), &[("EnableIAMRoles", "true")]),
    (
        |o| o.aggregator_role_arn("arn:aws:iam::123456789012:role/mine"),
        &[("AggregatorRoleArn", "arn:aws:iam::123456789012:role/mine")],
    ),
    (
        |o| o.permission_boundary("arn:aws:iam::aws:policy/PowerUserAccess"),
        &[("PermissionBoundary", "arn:aws:iam::aws:policy/PowerUserAccess")],
    ),
    (|o| o.permission_boundary("OurBoundary"), &[("PermissionBoundaryName", "OurBoundary")]),
    (
        |o| o.role_name_format("pb-{}-PowerUser"),
        &[
            ("RoleNameFormat", "pb-{}-PowerUser"),
            ("AggregatorRoleName", "pb-my-app-aggr-PowerUser"),
            ("AppRoleName", "pb-my-app-app-PowerUser"),
            ("AdminRoleName", "pb-my-app-admin-PowerUser"),
            ("ReadOnlyRoleName", "pb-my-app-read-PowerUser"),
        ],
    ),
    (
        |o| o.policy_name_format("PowerUserPB-{}"),
        &[
            ("AcquireOnlyPolicyName", "PowerUserPB-my-app-acq"),
            ("FullAccessPolicyName", "PowerUserPB-my-app-full"),
            ("ReadOnlyPolicyName", "PowerUserPB-my-app-read"),
            ("RegistryAdminPolicyName", "PowerUserPB-my-app-reg"),
            ("NamespaceAcquirePolicyName", "PowerUserPB-my-app-ns-acq"),
            ("NamespaceFullAccessPolicyName", "PowerUserPB-my-app-ns-full"),
            ("NamespaceReadOnlyPolicyName", "PowerUserPB-my-app-ns-read"),
        ],
    ),
];

fn parameters(options: &StackOptions) -> BTreeMap<String, String> {
    options.parameters(STACK).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn each_option_changes_its_parameters_and_no_other() {
    let defaults = parameters(&StackOptions::new());
    let mut changed = BTreeSet::new();
    for (change, expected) in OPTIONS {
        let found = parameters(&change(StackOptions::new()));
        let differing: BTreeMap<&str, &str> = found
            .iter()
            .filter(|(name, value)| defaults[*name] != **value)
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        assert_eq!(differing, expected.iter().copied().collect::<BTreeMap<_, _>>());
        changed.extend(expected.iter().map(|(name, _)| (*name).to_owned()));
    }
    // No parameter of the template is without an option, and none is made up.
    changed.insert(LAMBDA_CODE_KEY.to_owned());
    let declared: BTreeSet<String> = object(&template()["Parameters"]).keys().cloned().collect();
    assert_eq!(changed, declared);
}

#[test]
fn the_defaults_of_the_template_are_those_of_the_options() {
    for (name, value) in parameters(&StackOptions::new()) {
        assert_eq!(text(&template()["Parameters"][&name]["Default"]), value, "{name}");
    }
    let logs = &template()["Parameters"]["LogRetentionDays"]["AllowedValues"];
    assert_eq!(*logs, serde_json::json!(LOG_RETENTION_DAYS));
}

#[test]
fn an_option_that_cannot_be_right_is_refused_with_its_name_its_value_and_the_fix() {
    let long = "x".repeat(56);
    let format = |prefix: usize| format!("{}{{}}", "x".repeat(prefix));
    let new = StackOptions::new;
    for (options, expected) in [
        (new().usage_retention_days(0), "usage_retention_days \"0\": use 1 to 36500 days"),
        (new().audit_retention_days(0), "audit_retention_days \"0\": use 1 to 36500 days"),
        (new().shards_max(33), "shards_max \"33\": use 1 to 32 shards"),
        (new().shards_max(0), "shards_max \"0\": use 1 to 32 shards"),
        (
            new().shards_max(3),
            "shards_max \"3\": use 1, 2, 4, 8, 16 or 32 shards: a split doubles them",
        ),
        (new().lambda_memory(127), "lambda_memory \"127\": use 128 to 3008 MB"),
        (new().lambda_memory(3_009), "lambda_memory \"3009\": use 128 to 3008 MB"),
        (new().lambda_timeout(0), "lambda_timeout \"0\": use 1 to 900 seconds"),
        (new().lambda_timeout(901), "lambda_timeout \"901\": use 1 to 900 seconds"),
        (
            new().lambda_duration_threshold_pct(0),
            "lambda_duration_threshold_pct \"0\": use 1 to 100 percent",
        ),
        (
            new().lambda_duration_threshold_pct(101),
            "lambda_duration_threshold_pct \"101\": use 1 to 100 percent",
        ),
        (
            new().log_retention_days(31),
            "log_retention_days \"31\": CloudWatch keeps logs for one of",
        ),
        (new().pitr_recovery_days(36), "pitr_recovery_days \"36\": use 1 to 35 days"),
        (new().pitr_recovery_days(0), "pitr_recovery_days \"0\": use 1 to 35 days"),
        (
            new().audit_archive_glacier_days(3_651),
            "audit_archive_glacier_days \"3651\": use 1 to 3650 days",
        ),
        (new().snapshot_windows([]), "snapshot_windows \"\": name at least one of hourly"),
        (
            new().create_iam(false).create_iam_roles(true),
            "create_iam_roles \"true\": roles need create_iam",
        ),
        (
            new().alarm_sns_topic("alarms"),
            "alarm_sns_topic \"alarms\": is no such ARN; use arn:aws:sns",
        ),
        (
            new().aggregator_role_arn("arn:aws:iam::1234:role/a"),
            "aggregator_role_arn \"arn:aws:iam::1234:role/a\": is no such ARN; use arn:aws:iam::ACC",
        ),
        (
            new().aggregator_role_arn("arn:aws:iam::123456789012:user/a"),
            "aggregator_role_arn \"arn:aws:iam::123456789012:user/a\": is no such ARN",
        ),
        (
            new().aggregator_role_arn("arn:aws:iam::123456789012:role/"),
            "aggregator_role_arn \"arn:aws:iam::123456789012:role/\": is no such ARN",
        ),
        (
            new().permission_boundary("arn:aws:iam::aws:role/x"),
            "permission_boundary \"arn:aws:iam::aws:role/x\": is neither the name of a policy nor",
        ),
        (new().permission_boundary("a b"), "permission_boundary \"a b\": is neither the name"),
        (new().permission_boundary(""), "permission_boundary \"\": is neither the name"),
        (new().role_name_format("none"), "role_name_format \"none\": has {} 0 times; use it once"),
        (new().role_name_format("{}{}"), "role_name_format \"{}{}\": has {} 2 times; use it once"),
        (new().role_name_format(format(54)), "role_name_format \"xxxxx"),
        (new().role_name_format(format(53)), "role_name_format \"xxxxx"),
        (new().role_name_format("a b{}"), "role_name_format \"a b{}\": contains ' '; use letters"),
        (new().policy_name_format(format(119)), "policy_name_format \"xxxxx"),
        (new().policy_name_format("x"), "policy_name_format \"x\": has {} 0 times"),
        (new().tag("aws:x", "y"), "tags \"aws:x=y\": begins with aws:"),
        (new().tag("AWS:x", "y"), "tags \"AWS:x=y\": begins with aws:"),
        (new().tag("", "y"), "tags \"=y\": has a key of 0 characters"),
        (new().tag("x".repeat(129), ""), "tags \"xxx"),
        (new().tag("x", "y".repeat(257)), "tags \"x=yyy"),
        (
            new().tag("ManagedBy", "me"),
            "tags \"ManagedBy=me\": is a tag that the stack sets itself",
        ),
        (
            new().tag("zae-limiter:name", "x"),
            "tags \"zae-limiter:name=x\": is a tag that the stack sets itself",
        ),
        (
            new().tags((0..=TAGS_MAX).map(|n| (format!("k{n}"), "v"))),
            "tags \"44\": are too many; a stack has room for 43",
        ),
    ] {
        let error = options.parameters(STACK).map(|_| ()).expect_err(expected).to_string();
        assert!(error.starts_with(expected), "{error}\n{expected}");
    }
    for (name, expected) in [
        ("rate_limits", "contains '_'; use letters, digits and -"),
        ("my.app", "contains '.'"),
        ("123app", "starts with '1'; start with a letter"),
        ("", "is empty"),
        (&long, "is 56 bytes long; use at most 55"),
    ] {
        let error = new().parameters(name).expect_err(expected);
        assert_eq!(error.field, "name");
        assert!(error.to_string().contains(expected), "{error}");
    }
    let error = new().snapshot_windows_text("hourly,weekly").expect_err("no such window");
    assert_eq!(
        error.to_string(),
        "snapshot_windows \"hourly,weekly\": usage window \"weekly\" is unknown; use hourly, daily or monthly"
    );
}

#[test]
fn what_is_just_allowed_is_accepted() {
    let longest_stack = "x".repeat(53);
    let options = StackOptions::new()
        .snapshot_windows_text(" monthly, hourly,hourly")
        .expect("windows")
        .lambda_memory(3_008)
        .lambda_timeout(900)
        .lambda_duration_threshold_pct(100)
        .pitr_recovery_days(35)
        .audit_archive_glacier_days(3_650)
        .usage_retention_days(36_500)
        .role_name_format("ppp-{}")
        .policy_name_format("p-{}")
        .permission_boundary("arn:aws-cn:iam::123456789012:policy/path/b")
        .aggregator_role_arn("arn:aws-us-gov:iam::123456789012:role/path/r")
        .tags((0..TAGS_MAX).map(|n| (format!("k{n}"), "")));
    let found = options.parameters(&longest_stack).expect("everything is right");
    assert_eq!(found["SnapshotWindows"], "hourly,monthly");
    // IAM takes names of 64 characters.
    assert_eq!(found["AdminRoleName"].len(), 63);
    let error = options.clone().role_name_format("ppxxx-{}").parameters(&longest_stack);
    let error = error.expect_err("one too many").to_string();
    assert!(error.contains("which has 65 characters; IAM takes 64"), "{error}");
    let mut template_takes = found;
    template_takes.insert("RoleNameFormat".to_owned(), "p-{}".to_owned());
    Stack::new(template(), &template_takes).outputs();
}

#[test]
fn names_follow_the_formats_and_stay_within_iam() {
    for role in RoleName::ALL {
        assert!(role.component().len() <= 8, "{role:?}: a longer one would not fit an old stack");
        assert_eq!(role.name("{}", "a"), format!("a-{}", role.component()));
    }
    let components: BTreeSet<_> = PolicyName::ALL.map(PolicyName::component).into();
    assert_eq!(components.len(), PolicyName::ALL.len());
    assert_eq!(PolicyName::NamespaceFullAccess.name("pb-{}-x", "app"), "pb-app-ns-full-x");
}

#[test]
fn a_stack_has_room_for_all_its_tags() {
    let versions = StackVersions { program: "1.2.3", lambda: Some("1.2.3"), schema: "0.10.0" };
    let options = StackOptions::new().tags((0..TAGS_MAX).map(|n| (format!("k{n}"), "v")));
    let tags = stack_tags(STACK, &versions, &options);
    let own = tags.len() - TAGS_MAX;
    let shown: Vec<String> = tags
        .iter()
        .filter(|(key, _)| !key.starts_with('k'))
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    assert_eq!(
        shown,
        [
            "ManagedBy=zae-limiter",
            "zae-limiter:lambda-version=1.2.3",
            "zae-limiter:name=my-app",
            "zae-limiter:schema-version=0.10.0",
            "zae-limiter:type=limiter",
            "zae-limiter:version=1.2.3",
        ]
    );
    let whole = Stack::whole(&StackOptions::new());
    let of_a_resource = whole.resources().into_iter().map(|resource| {
        let tags = &whole.properties(&resource)["Tags"];
        tags.as_array().map_or(0, Vec::len)
    });
    let most = of_a_resource.max().expect("there are resources");
    assert_eq!(most + own + TAGS_MAX, 50, "CloudFormation takes 50");
    let none = StackVersions { lambda: None, ..versions };
    assert!(
        !stack_tags(STACK, &none, &StackOptions::new()).contains_key("zae-limiter:lambda-version")
    );
}

/// Lambda takes 64 characters, and the function is called after the stack.
#[test]
fn the_name_of_a_stack_leaves_room_for_that_of_its_function() {
    let (fits, too_long) = ("a".repeat(53), "a".repeat(54));
    StackOptions::new().check(&fits).expect("the function has 64 characters");
    let error = StackOptions::new().check(&too_long).expect_err("65");
    assert_eq!(error.field, "name");
    assert!(error.problem.contains("use at most 53"), "{error}");
    StackOptions::new().enable_aggregator(false).check(&"a".repeat(55)).expect("no function");
    StackOptions::new()
        .enable_aggregator(false)
        .check(&"a".repeat(56))
        .expect_err("nobody takes it");
    let function = crate::cfn::Stack::whole(&StackOptions::new()).properties("AggregatorFunction");
    assert_eq!(function["FunctionName"], format!("{}-aggregator", crate::cfn::STACK));
}
