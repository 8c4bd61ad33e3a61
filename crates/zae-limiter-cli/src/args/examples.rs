//! Examples below the help of commands, and how levels combine. A test parses every line of them.

macro_rules! examples {
    ($($line:literal),+ $(,)?) => { concat!("Examples:", $("\n  zae-limiter ", $line),+) };
}

/// Below the help of the commands that set limits.
macro_rules! levels {
    () => {
        "How levels combine: limits are stored at four levels: an entity on a resource, an entity, a resource, the system. The \
         strongest level that has any limits binds alone. A level hides ALL limits of the weaker ones, also those it does not \
         name: a key with an rpm of its own is no longer held to the tpm of the system. Setting limits replaces all limits of the \
         level; --add and --remove keep the others. `zae-limiter explain ENTITY RESOURCE` shows what binds.\n\n"
    };
}

pub(super) const ACQUIRE: &str = examples!(
    "acquire key-1 gpt-4 -c rpm=1 -c tpm=500",
    "acquire key-1 gpt-4 -c rpm=1,tpm=500 --wait 30s",
    "acquire key-1 gpt-4 -c tpm=500 --record tpm=730 --output json",
    "acquire key-1 gpt-4 -c rpm=1 -l rpm:60/min --must-exist",
);
#[cfg(feature = "dynamodb")]
pub(super) const AGGREGATE: &str =
    examples!("--name demo aggregate", "--name demo aggregate --once --output json");
pub(super) const AVAILABLE: &str =
    examples!("available key-1 gpt-4", "available key-1 gpt-4 -c rpm=1");
#[cfg(feature = "dynamodb")]
pub(super) const CHECK: &str =
    examples!("check --name my-app", "check --name my-app --region eu-west-1 --output json");
#[cfg(feature = "deploy")]
pub(super) const LAMBDA_EXPORT: &str = examples!(
    "lambda-export --output lambda.zip",
    "lambda-export --info --output json",
    "lambda-export -o arm.zip --force --lambda-binary target/release/zae-limiter --architecture arm64",
);
pub(super) const VERSION: &str = examples!("version", "version --name my-app");
#[cfg(feature = "dynamodb")]
pub(super) const SYSTEM_SET_RETENTION: &str = examples!(
    "system set-retention --usage-days 365 --name my-app",
    "system set-retention --audit-days 730 --usage-days 90 --name my-app",
);
#[cfg(feature = "deploy")]
pub(super) const DEPLOY: &str = examples!(
    "deploy --name my-app --region eu-west-1",
    "deploy --name my-app --region eu-west-1 --enable-deletion-protection --alarm-sns-topic arn:aws:sns:eu-west-1:123456789012:ops",
    "deploy --name my-app --permission-boundary PowerUserBoundary --role-name-format pb-{}-PowerUser",
    "deploy --name my-app --no-aggregator --no-wait",
    "deploy --name my-app --no-stack --namespace tenant-a",
);
#[cfg(feature = "deploy")]
pub(super) const DELETE: &str =
    examples!("delete --name my-app", "delete --name my-app --yes --no-wait");
#[cfg(feature = "deploy")]
pub(super) const UPGRADE: &str =
    examples!("upgrade --name my-app --dry-run", "upgrade --name my-app --lambda-only");
#[cfg(feature = "deploy")]
pub(super) const CFN_TEMPLATE: &str =
    examples!("cfn-template", "cfn-template -o template.yaml", "cfn-template --output json");
#[cfg(feature = "loadtest")]
pub(super) const LOADTEST_RUN: &str = examples!(
    "loadtest run --scenario max-rps --users 20 --duration 30s --html report.html",
    "loadtest run --name my-app --scenario llm.toml --processes 4 --json-file a.json",
    "loadtest run -n my-app -f locustfiles/max_rps.py MaxRpsCascadeUser",
    "loadtest run -n my-app --scenario max-rps --workers 10 --users 100",
);
#[cfg(feature = "loadtest")]
pub(super) const LOADTEST_TUNE: &str = examples!(
    "loadtest tune --scenario max-rps --max-users 64",
    "loadtest tune -n my-app -f locustfiles/max_rps.py"
);
#[cfg(feature = "loadtest")]
pub(super) const LOADTEST_UI: &str = examples!("loadtest ui -n my-app -f locustfiles/simple.py");
#[cfg(all(feature = "deploy", feature = "loadtest"))]
pub(super) const LOADTEST_DEPLOY: &str = examples!(
    "loadtest deploy --name my-app",
    "loadtest deploy -n my-app --lambda-timeout 15 --lambda-memory 3538",
    "loadtest run -n my-app --scenario max-rps --workers 10 --users 100",
);
#[cfg(all(feature = "deploy", feature = "loadtest"))]
pub(super) const LOADTEST_PUSH: &str = examples!("loadtest push --name my-app");
#[cfg(all(feature = "deploy", feature = "loadtest"))]
pub(super) const LOADTEST_DELETE: &str = examples!("loadtest delete --name my-app --yes");
#[cfg(feature = "loadtest")]
pub(super) const LOADTEST_COMPARE: &str = examples!("loadtest compare before.json after.json");
pub(super) const EXPLAIN: &str = examples!("explain key-1 gpt-4");
pub(super) const SYSTEM_SET_DEFAULTS: &str = concat!(
    levels!(),
    examples!(
        "system set-defaults -l rpm:1k/min -l tpm:100k/min:150k",
        "system set-defaults --add -l rpd:10000/day",
        "system set-defaults -l rpm:1000 --on-unavailable allow",
        "system set-defaults --on-unavailable block",
    )
);
pub(super) const RESOURCE_SET_DEFAULTS: &str = concat!(
    levels!(),
    examples!(
        "resource set-defaults gpt-4 -l rpm:500 -l tpm:50000",
        "resource set-defaults gpt-4 --remove tpm"
    )
);
pub(super) const ENTITY_SET_LIMITS: &str = concat!(
    levels!(),
    examples!(
        "entity set-limits key-1 -l rpm:100/min",
        "entity set-limits key-1 -r gpt-4 -l rpm:5/min --add",
        "entity set-limits key-1 -r gpt-4 --remove rpm --must-exist",
    )
);
pub(super) const ENTITY_CREATE: &str = examples!(
    "entity create org-1 --display-name \"Example Ltd\"",
    "entity create key-1 --parent org-1 --cascade --metadata tier=gold",
);
pub(super) const ENTITY_LIST: &str =
    examples!("entity list --max 20", "entity list --with-custom-limits gpt-4");
pub(super) const ENTITY_DISABLE: &str =
    examples!("entity disable key-1", "entity disable key-1 -r gpt-4");
pub(super) const ENTITY_RESET: &str =
    examples!("entity reset key-1 -r gpt-4 --yes", "entity reset key-1 -l tpm");
pub(super) const AUDIT_LIST: &str =
    examples!("audit list", "audit list -e key-1", "audit list --system -N tenant-a --output json");
pub(super) const USAGE_LIST: &str = examples!(
    "usage list",
    "usage list -e key-1 -w daily --start 2026-01-01 --end 2026-01-31",
    "usage list -r gpt-4 --plot",
);
pub(super) const NAMESPACE_RECOVER: &str =
    examples!("namespace recover tenant-a", "namespace orphans");
#[cfg(feature = "dynamodb")]
pub(super) const LOCAL_UP: &str =
    examples!("local up", "local up --name demo", "local up --port 8001 --foreground");

pub(super) const LIMITS_PLAN: &str =
    examples!("limits plan -f limits.yaml", "limits plan -f limits.yaml --prune --output json");
pub(super) const LIMITS_APPLY: &str = examples!(
    "limits apply -f limits.yaml --reason OPS-1234",
    "limits apply -f limits.yaml --prune --dry-run",
    "limits apply -f - --name my-app",
);
pub(super) const LIMITS_DIFF: &str =
    examples!("limits diff -f limits.yaml", "limits diff -f limits.yaml --name my-app");
pub(super) const LIMITS_EXPORT: &str =
    examples!("limits export", "limits export --output json --store sqlite:limits.db");
#[cfg(all(feature = "deploy", feature = "loadtest"))]
pub(super) const LOADTEST_LIST: &str =
    examples!("loadtest list", "loadtest list --region eu-west-1 --output json");
pub(super) const MIGRATE: &str = examples!(
    "migrate --store sqlite:limits.db --to dynamodb:my-app --dry-run",
    "migrate --store sqlite:limits.db --to 'dynamodb:my-app?region=eu-west-1' --reason OPS-1234",
    "migrate --name my-app --namespace prod --to sqlite:prod.db --to-namespace default",
);
pub(super) const LIMITS_SCHEMA: &str = examples!("limits schema");
pub(super) const ENTITY_SHOW: &str =
    examples!("entity show key-1", "entity show key-1 --output json");
pub(super) const ENTITY_UPDATE: &str = examples!(
    "entity update key-1 --display-name Key",
    "entity update key-1 --metadata tier=gold --remove-metadata trial"
);
pub(super) const ENTITY_DELETE: &str = examples!("entity delete key-1 --yes");
pub(super) const ENTITY_CHILDREN: &str = examples!("entity children org-1 --max 20");
pub(super) const ENTITY_GET_LIMITS: &str =
    examples!("entity get-limits key-1", "entity get-limits key-1 -r gpt-4");
pub(super) const ENTITY_DELETE_LIMITS: &str =
    examples!("entity delete-limits key-1 -r gpt-4 --yes");
pub(super) const ENTITY_LIST_RESOURCES: &str = examples!("entity list-resources");
pub(super) const ENTITY_BUCKETS: &str =
    examples!("entity buckets key-1", "entity buckets key-1 --shards --name my-app");
pub(super) const ENTITY_ENABLE: &str = examples!("entity enable key-1 -r gpt-4");
pub(super) const ENTITY_CLEAR_DISABLED: &str = examples!("entity clear-disabled key-1");
pub(super) const RESOURCE_GET_DEFAULTS: &str = examples!("resource get-defaults gpt-4");
pub(super) const RESOURCE_DELETE_DEFAULTS: &str = examples!("resource delete-defaults gpt-4 --yes");
pub(super) const RESOURCE_LIST: &str = examples!("resource list");
pub(super) const RESOURCE_CAPACITY: &str =
    examples!("resource capacity gpt-4 tpm", "resource capacity gpt-4 tpm --output json");
pub(super) const RESOURCE_DISABLE: &str = examples!("resource disable gpt-4");
pub(super) const RESOURCE_ENABLE: &str = examples!("resource enable gpt-4");
pub(super) const RESOURCE_CLEAR_DISABLED: &str = examples!("resource clear-disabled gpt-4");
pub(super) const SYSTEM_GET_DEFAULTS: &str = examples!("system get-defaults");
pub(super) const SYSTEM_DELETE_DEFAULTS: &str = examples!("system delete-defaults --yes");
pub(super) const NAMESPACE_REGISTER: &str =
    examples!("namespace register tenant-a tenant-b --name my-app");
pub(super) const NAMESPACE_LIST: &str = examples!("namespace list");
pub(super) const NAMESPACE_SHOW: &str = examples!("namespace show tenant-a --name my-app");
pub(super) const NAMESPACE_DELETE: &str = examples!("namespace delete tenant-a");
pub(super) const NAMESPACE_ORPHANS: &str = examples!("namespace orphans");
pub(super) const NAMESPACE_PURGE: &str = examples!("namespace purge 5mUVXm2DzaK --yes");
pub(super) const USAGE_SUMMARY: &str =
    examples!("usage summary -e key-1", "usage summary -r gpt-4 -w daily --start 2026-01-01");
#[cfg(feature = "dynamodb")]
pub(super) const LOCAL_STATUS: &str = examples!("local status");
#[cfg(feature = "dynamodb")]
pub(super) const LOCAL_LOGS: &str = examples!("local logs --follow", "local logs --worker");
#[cfg(feature = "dynamodb")]
pub(super) const LOCAL_DOWN: &str = examples!("local down");
#[cfg(feature = "dynamodb")]
pub(super) const LOCAL_ENV: &str = examples!("local env", "local env --format direnv");
#[cfg(feature = "sqlite")]
pub(super) const DEMO: &str = examples!("demo --seconds 5");
#[cfg(feature = "deploy")]
pub(super) const LIST: &str = examples!("list --region eu-west-1", "list --output json");
pub(super) const COMPLETIONS: &str = examples!("completions bash");
pub(super) const STATUS: &str =
    examples!("status", "status --name my-app --region eu-west-1", "status --output json");
#[cfg(feature = "sqlite")]
pub(super) const BACKUP: &str = examples!("backup /backups/limits-monday.db");
#[cfg(feature = "sqlite")]
pub(super) const RESTORE: &str = examples!("restore /backups/limits-monday.db --yes");
pub(super) const SWEEP: &str = examples!("sweep");
#[cfg(feature = "man")]
pub(super) const MAN: &str = examples!("man", "man entity create", "man --dir man1");

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    fn lines(command: &clap::Command, found: &mut Vec<String>) {
        let help = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
        found.extend(
            help.lines().filter_map(|line| line.strip_prefix("  zae-limiter ")).map(str::to_owned),
        );
        command.get_subcommands().for_each(|command| lines(command, found));
    }

    fn without_examples(command: &clap::Command, found: &mut Vec<String>) {
        let visible =
            |command: &&clap::Command| !command.is_hide_set() && command.get_name() != "help";
        let has = |text: Option<&clap::builder::StyledStr>| {
            text.is_some_and(|text| text.to_string().contains("Examples:\n  zae-limiter "))
        };
        if !command.has_subcommands() && !has(command.get_after_long_help()) {
            found.push(command.get_name().to_owned());
        }
        command.get_subcommands().filter(visible).for_each(|it| without_examples(it, found));
    }

    #[test]
    fn every_command_has_examples() {
        let mut found = Vec::new();
        without_examples(&super::super::definition(), &mut found);
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn every_example_can_be_typed() {
        let mut found = Vec::new();
        lines(&super::super::definition(), &mut found);
        assert!(found.len() > 20, "{found:?}");
        for line in found {
            // The one text with a space in it, and quotes for the shell.
            let line = line.replace("\"Example Ltd\"", "Example").replace('\'', "");
            let words = std::iter::once("zae-limiter").chain(line.split(' ')).map(OsString::from);
            assert!(super::super::parse(words, 100).is_ok(), "{line}");
        }
    }
}
