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
    "deploy --name my-app --enable-deletion-protection --alarm-sns-topic arn:aws:sns:eu-west-1:123456789012:ops",
    "deploy --name my-app --no-aggregator --no-wait"
);
#[cfg(feature = "deploy")]
pub(super) const DELETE: &str = examples!("delete --name my-app --yes");
#[cfg(feature = "deploy")]
pub(super) const UPGRADE: &str =
    examples!("upgrade --name my-app --dry-run", "upgrade --name my-app --lambda-only");
#[cfg(feature = "deploy")]
pub(super) const CFN_TEMPLATE: &str =
    examples!("cfn-template", "cfn-template -o template.yaml", "cfn-template --output json");
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

    #[test]
    fn every_example_can_be_typed() {
        let mut found = Vec::new();
        lines(&super::super::definition(), &mut found);
        assert!(found.len() > 20, "{found:?}");
        for line in found {
            // The one text with a space in it.
            let line = line.replace("\"Example Ltd\"", "Example");
            let words = std::iter::once("zae-limiter").chain(line.split(' ')).map(OsString::from);
            assert!(super::super::parse(words, 100).is_ok(), "{line}");
        }
    }
}
