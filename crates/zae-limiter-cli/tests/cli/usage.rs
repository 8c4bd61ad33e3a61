//! Help, the version, and command lines that cannot be right.

use insta::assert_snapshot;

use crate::support::Sandbox;

#[test]
fn help() {
    let sandbox = Sandbox::new();
    assert_snapshot!(sandbox.run("--help"), @"
    exit 0
    --- stdout
    A rate limiter for calls whose cost is known only afterwards

    Usage: zae-limiter [OPTIONS] <COMMAND>

    Commands:
      acquire        Take from every limit of the chain, or from none
      available      Look at what is left, and whether a request would pass; takes nothing
      explain        Show which limits apply to a call, and which level supplied them
      entity         Entities: users, API keys, projects
      resource       Limits of a resource
      system         Limits of the whole namespace
      limits         Limits as files: limits, flags and entities of a namespace under version control
      namespace      Namespaces: isolated tenants in one store; --namespace has no effect here
      audit          The audit log: who changed what
      usage          The usage history: what was used when
      aggregate      Count the usage of a DynamoDB stack from its stream, until it is stopped
      status         Check the file (sizes, schema, integrity, buckets, debts, last sweep) or the stack
                     (state, schema, indexes, stream, worker, hottest buckets), and list what is
                     disabled; exit code 1 if it is damaged
      check          Check whether this program can work on a DynamoDB stack; exit code 1 if not
      backup         Copy the file while it is in use; `restore` brings the copy back
      restore        Put a backup in the place of the file, which nobody may have open; the old file is
                     kept
      sweep          Delete idle full buckets and expired history (also happens automatically)
      migrate        Copy a namespace to another store: limits, flags, entities, buckets and usage
      loadtest       Measure the limiter on this store
      demo           Watch a simulated LLM gateway at work, on a fresh file
      local          A DynamoDB-compatible engine on this machine, for development and tests
      deploy         Make a stack on AWS, or make it what its options say
      delete         Delete a stack with its table and everything in it
      list           List the stacks of a region
      upgrade        Bring template, function and table of a stack to this release
      cfn-template   Print the CloudFormation template of a stack
      completions    Print a completion script for a shell
      lambda-export  Write the package that a Lambda function runs: this program, as a zip
      version        Print the version; with --name also what the stack has and asks of its clients
      man            Print the manual page of a command; with --dir write the pages of all
      help           Print this message or the help of the given subcommand(s)

    Options:
      -h, --help
              Print help (see a summary with '-h')

      -V, --version
              Print version

    Global options:
          --store <URL>
              Where limits live: sqlite:PATH, dynamodb:STACK or memory: [env: ZAEL_STORE] [default: a
              file in your data directory]

      -n, --name <STACK>
              Short for --store dynamodb:STACK [env: ZAEL_STACK]

          --region <REGION>
              The AWS region of the stack [env: AWS_REGION] [default: us-east-1]

          --endpoint-url <URL>
              Custom DynamoDB endpoint, e.g. http://127.0.0.1:8000 [env: AWS_ENDPOINT_URL]

      -N, --namespace <NAME>
              The tenant to work in [env: ZAEL_NAMESPACE] [default: default]

          --output <FORM>
              How answers are printed [default: table]

              [possible values: table, json]

      -q, --quiet
              Print answers and errors only: no notes, warnings or hints

          --color <WHEN>
              When to use colours [env: NO_COLOR] [default: auto]

              [possible values: auto, always, never]

          --principal <NAME>
              Who changes something, for the audit log [default: the user of the operating system]

    Exit codes: 0 done or granted, 1 error, 2 wrong usage, 3 refused by a limit, 4 disabled by an
    administrator, 5 busy: nothing was decided, try again, 6 differs (`limits diff`).

    Variables: ZAEL_STORE, ZAEL_STACK and ZAEL_NAMESPACE stand for --store, --name and --namespace;
    ZAEL_FILE_MAX_MB is how many megabytes (of 1024 KiB, 1 to 65535) the file of an SQLite store may
    grow to, without it as many as there are; ZAEL_SHARDS_MAX is how many shards this process gives a
    hot bucket of a stack at most, 1 while processes of a version before shards run; ZAEL_LOCAL_ENGINE
    names the program that `local up` starts.

    -h is short, --help also shows the global options and examples.
    ");
    assert_snapshot!(sandbox.help("acquire"), @"
    exit 0
    --- stdout
    Take from every limit of the chain, or from none

    Usage: zae-limiter acquire [OPTIONS] --consume <NAME=AMOUNT> <ENTITY> <RESOURCE>

    Arguments:
      <ENTITY>
              Who calls

      <RESOURCE>
              What is called

    Options:
      -c, --consume <NAME=AMOUNT>
              What to take: a limit and whole tokens, as in rpm=1; may be repeated, amounts for one
              limit add up

      -l, --limit <LIMIT>
              A limit for this call instead of the stored ones, as in tpm:10000/min:15000; may be
              repeated

          --record <NAME=TOTAL>
              What was really used in total of a limit taken with -c, settled at once; may lead to debt;
              may be repeated

          --wait <DURATION>
              Wait for the limits at most this long instead of being refused: 500ms, 30s, 2m, 1h

          --must-exist
              Refuse an entity that was not created, instead of granting by the limits of its resource
              or the system

      -h, --help
              Print help (see a summary with '-h')

    [GLOBAL OPTIONS]

    Examples:
      zae-limiter acquire key-1 gpt-4 -c rpm=1 -c tpm=500
      zae-limiter acquire key-1 gpt-4 -c rpm=1,tpm=500 --wait 30s
      zae-limiter acquire key-1 gpt-4 -c tpm=500 --record tpm=730 --output json
      zae-limiter acquire key-1 gpt-4 -c rpm=1 -l rpm:60/min --must-exist
    ");
    assert_snapshot!(sandbox.help("system"), @"
    exit 0
    --- stdout
    Limits of the whole namespace

    Usage: zae-limiter system [OPTIONS] <COMMAND>

    Commands:
      set-defaults     Store limits for everyone without stronger ones, replacing those there were
      get-defaults     Show the limits stored for everyone
      delete-defaults  Delete the limits and the outage policy stored for everyone
      set-retention    Set for how many days a DynamoDB stack keeps usage and audit events, in all
                       namespaces
      help             Print this message or the help of the given subcommand(s)

    Options:
      -h, --help
              Print help (see a summary with '-h')

    [GLOBAL OPTIONS]
    ");
}

#[test]
fn help_for_a_narrow_terminal() {
    let sandbox = Sandbox::new().variable("COLUMNS", "50");
    let (_, text) = sandbox.raw("acquire --help");
    // clap does not wrap the line that shows the usage.
    assert!(
        text.lines().all(|line| line.starts_with("Usage:") || line.chars().count() <= 50),
        "{text}"
    );
}

#[test]
fn version() {
    let sandbox = Sandbox::new();
    assert_snapshot!(sandbox.run("version"), @"
    exit 0
    --- stdout
    zae-limiter [VERSION]
    ");
    assert_snapshot!(sandbox.run("version --output json"), @r#"
    exit 0
    --- stdout
    {"name":"zae-limiter","version":"[VERSION]"}
    "#);
    assert_snapshot!(sandbox.run("--version"), @"
    exit 0
    --- stdout
    zae-limiter [VERSION]
    ");
    assert!(!sandbox.path("limits.db").exists());
}

#[test]
fn the_version_needs_no_settings() {
    let sandbox =
        Sandbox::new().variable("ZAEL_STORE", "postgres:x").variable("ZAEL_NAMESPACE", "a b");
    assert_eq!(sandbox.raw("version").0, 0);
}

#[test]
fn no_command_or_an_unknown_one() {
    let sandbox = Sandbox::new();
    let output = sandbox.command::<&str>(&[]).output().unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));
    assert!(String::from_utf8(output.stderr).unwrap().contains("Usage: zae-limiter"));
    assert_snapshot!(sandbox.run("aquire key-1 gpt-4"), @"
    exit 2
    --- stderr
    error: unrecognized subcommand 'aquire'

      tip: some similar subcommands exist: 'audit', 'acquire'

    Usage: zae-limiter [OPTIONS] <COMMAND>

    For more information, try '--help'.
    ");
    assert_snapshot!(sandbox.run("acquire key-1"), @"
    exit 2
    --- stderr
    error: the following required arguments were not provided:
      --consume <NAME=AMOUNT>
      <RESOURCE>

    Usage: zae-limiter acquire --consume <NAME=AMOUNT> <ENTITY> <RESOURCE>

    For more information, try '--help'.
    ");
    assert_snapshot!(sandbox.run("acquire key-1 gpt-4 --sure"), @"
    exit 2
    --- stderr
    error: unexpected argument '--sure' found

      tip: a similar argument exists: '--store'

    Usage: zae-limiter acquire --consume <NAME=AMOUNT> --store <URL> <ENTITY> <RESOURCE>

    For more information, try '--help'.
    ");
}

#[test]
fn names_that_are_none() {
    let sandbox = Sandbox::new();
    assert_snapshot!(sandbox.run("acquire key#1 gpt-4 -c rpm=1"), @r#"
    exit 2
    --- stderr
    error: invalid value 'key#1' for '<ENTITY>': entity id "key#1" contains '#', which separates key parts; use letters, digits and _ . - : @

    For more information, try '--help'.
    "#);
    assert_snapshot!(sandbox.run("acquire key-1 _default_ -c rpm=1"), @r#"
    exit 2
    --- stderr
    error: invalid value '_default_' for '<RESOURCE>': resource "_default_" is reserved for limits on every resource of an entity; choose another name

    For more information, try '--help'.
    "#);
    assert_snapshot!(sandbox.run("acquire key-1 gpt-4 -c wcu=1"), @r#"
    exit 2
    --- stderr
    error: invalid value 'wcu=1' for '--consume <NAME=AMOUNT>': limit name "wcu" is reserved for the hidden limit that measures write pressure; choose another name

    For more information, try '--help'.
    "#);
    assert_snapshot!(sandbox.run("explain key-1 4gpt"), @r#"
    exit 2
    --- stderr
    error: invalid value '4gpt' for '<RESOURCE>': resource "4gpt" starts with '4'; start with a letter

    For more information, try '--help'.
    "#);
    assert_snapshot!(sandbox.run("-N a/b system get-defaults"), @r#"
    exit 2
    --- stderr
    error: invalid value 'a/b' for '--namespace <NAME>': namespace "a/b" contains '/'; use letters, digits and _ . -

    For more information, try '--help'.
    "#);
    assert_snapshot!(sandbox.run_words(&["system", "get-defaults", "--principal", "me too"]), @r#"
    exit 2
    --- stderr
    error: invalid value 'me too' for '--principal <NAME>': principal "me too" contains ' '; use letters, digits and _ . - : @ / + = ,

    For more information, try '--help'.
    "#);
}

#[test]
fn limits_that_are_none() {
    let sandbox = Sandbox::new();
    assert_snapshot!(sandbox.run("system set-defaults -l rpm"), @r#"
    exit 2
    --- stderr
    error: invalid value 'rpm' for '--limit <LIMIT>': limit "rpm": the rate is missing; write name:rate[/period][:burst], as in tpm:10000/min:15000 or x:5/30sec

    For more information, try '--help'.
    "#);
    assert_snapshot!(sandbox.run("system set-defaults -l rpm:many"), @r#"
    exit 2
    --- stderr
    error: invalid value 'rpm:many' for '--limit <LIMIT>': limit "rpm:many": the rate is not a whole number up to 1000000000000000; write name:rate[/period][:burst], as in tpm:10000/min:15000 or x:5/30sec

    For more information, try '--help'.
    "#);
    assert_snapshot!(sandbox.run("system set-defaults -l rpm:1/week"), @r#"
    exit 2
    --- stderr
    error: invalid value 'rpm:1/week' for '--limit <LIMIT>': limit "rpm:1/week": the period is not sec, min, hour or day with an optional whole number before it; write name:rate[/period][:burst], as in tpm:10000/min:15000 or x:5/30sec

    For more information, try '--help'.
    "#);
    assert_snapshot!(sandbox.run("system set-defaults -l rpm:0"), @r#"
    exit 2
    --- stderr
    error: invalid value 'rpm:0' for '--limit <LIMIT>': limit "rpm": refill amount 0 is out of range; use a whole number from 1 to 1000000000000000

    For more information, try '--help'.
    "#);
    assert_snapshot!(sandbox.run("system set-defaults"), @"
    exit 2
    --- stderr
    error: the following required arguments were not provided:
      <--limit <LIMIT>|--remove <NAME>|--on-unavailable <POLICY>>

    Usage: zae-limiter system set-defaults <--limit <LIMIT>|--remove <NAME>|--on-unavailable <POLICY>>

    For more information, try '--help'.
    ");
    assert_snapshot!(sandbox.run("system set-defaults -l rpm:1 --on-unavailable maybe"), @"
    exit 2
    --- stderr
    error: invalid value 'maybe' for '--on-unavailable <POLICY>'
      [possible values: allow, block]

    For more information, try '--help'.
    ");
}

#[test]
fn amounts_and_durations_that_are_none() {
    let sandbox = Sandbox::new();
    assert_snapshot!(sandbox.run("acquire key-1 gpt-4 -c rpm"), @"
    exit 2
    --- stderr
    error: invalid value 'rpm' for '--consume <NAME=AMOUNT>': write NAME=AMOUNT, as in rpm=1

    For more information, try '--help'.
    ");
    assert_snapshot!(sandbox.run("acquire key-1 gpt-4 -c rpm=-1"), @"
    exit 2
    --- stderr
    error: invalid value 'rpm=-1' for '--consume <NAME=AMOUNT>': the amount must be a whole number from 0 to 1000000000000000, as in rpm=1

    For more information, try '--help'.
    ");
    assert_snapshot!(sandbox.run("acquire key-1 gpt-4 -c rpm=1 --record rpm=1.5"), @"
    exit 2
    --- stderr
    error: invalid value 'rpm=1.5' for '--record <NAME=TOTAL>': the amount must be a whole number from 0 to 1000000000000000, as in rpm=1

    For more information, try '--help'.
    ");
    assert_snapshot!(sandbox.run("acquire key-1 gpt-4 -c rpm=1 --wait 5"), @"
    exit 2
    --- stderr
    error: invalid value '5' for '--wait <DURATION>': write a whole number and ms, s, m or h, as in 500ms, 30s, 2m or 1h

    For more information, try '--help'.
    ");
    assert_snapshot!(sandbox.run("acquire key-1 gpt-4"), @"
    exit 2
    --- stderr
    error: the following required arguments were not provided:
      --consume <NAME=AMOUNT>

    Usage: zae-limiter acquire --consume <NAME=AMOUNT> <ENTITY> <RESOURCE>

    For more information, try '--help'.
    ");
}

#[test]
fn stores_and_looks_that_are_none() {
    let sandbox = Sandbox::new();
    assert_snapshot!(sandbox.run("--store postgres:x version"), @"
    exit 2
    --- stderr
    error: invalid value 'postgres:x' for '--store <URL>': use sqlite:PATH, dynamodb:STACK or memory:

    For more information, try '--help'.
    ");
    assert_snapshot!(sandbox.run("--store sqlite://x.db version"), @"
    exit 2
    --- stderr
    error: invalid value 'sqlite://x.db' for '--store <URL>': write the path right after the colon, as in sqlite:limits.db or sqlite:/var/lib/limits.db

    For more information, try '--help'.
    ");
    assert_snapshot!(sandbox.run("--output xml version"), @"
    exit 2
    --- stderr
    error: invalid value 'xml' for '--output <FORM>'
      [possible values: table, json]

    For more information, try '--help'.
    ");
    assert_snapshot!(sandbox.run("--color blue version"), @"
    exit 2
    --- stderr
    error: invalid value 'blue' for '--color <WHEN>'
      [possible values: auto, always, never]

    For more information, try '--help'.
    ");
}

#[test]
fn wrong_usage_touches_nothing() {
    let sandbox = Sandbox::new();
    for line in [
        "acquire key-1 gpt-4 -c rpm=1 --record tpm=1",
        "system set-defaults -l rpm:1 -l rpm:2",
        "entity create key-1 --metadata a=1 --metadata a=2",
    ] {
        assert_eq!(sandbox.raw(line).0, 2, "{line}");
    }
    assert!(!sandbox.path("limits.db").exists());
}

/// A program that asks for JSON reads every error the same way.
#[test]
fn wrong_usage_in_json() {
    let sandbox = Sandbox::new();
    assert_snapshot!(sandbox.run("acquire d1 --output json"), @r#"
    exit 2
    --- stderr
    {"error":{"kind":"usage","message":"the following required arguments were not provided: --consume <NAME=AMOUNT> <RESOURCE>","hint":"Usage: zae-limiter acquire --consume <NAME=AMOUNT> --output <FORM> <ENTITY> <RESOURCE>"}}
    "#);
    for line in [
        "--output=json nothing",
        "--output json entity",
        "entity create --output json --parent",
        "--output json system set-defaults -l x",
    ] {
        let output =
            sandbox.command(&line.split_whitespace().collect::<Vec<_>>()).output().unwrap();
        let told: serde_json::Value = serde_json::from_slice(&output.stderr)
            .unwrap_or_else(|error| panic!("{line}: {error}: {output:?}"));
        assert_eq!(
            (output.status.code(), told["error"]["kind"].as_str()),
            (Some(2), Some("usage")),
            "{line}"
        );
        assert!(output.stdout.is_empty(), "{line}");
    }
}
