//! Settings from variables.

use zae_limiter_aggregator::Settings;
use zae_limiter_core::UsageWindow;

fn read(variables: &[(&str, &str)]) -> Result<Settings, String> {
    let given = |name: &str| {
        let found = variables.iter().find(|(given, _)| *given == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    Settings::from_variables(given).map_err(|error| error.to_string())
}

#[test]
fn variables_are_read() {
    let least = read(&[("TABLE_NAME", "stack"), ("SNAPSHOT_WINDOWS", " ")]).unwrap();
    assert_eq!(least, Settings::new("stack"));
    assert_eq!(least.windows, [UsageWindow::Hourly, UsageWindow::Daily]);
    let all = read(&[
        ("TABLE_NAME", "stack"),
        ("SNAPSHOT_WINDOWS", "monthly, hourly,daily,hourly"),
        ("SNAPSHOT_TTL_DAYS", "7"),
        ("ENABLE_ARCHIVAL", "True"),
        ("ARCHIVE_BUCKET_NAME", "bucket"),
        ("ENABLE_FOLDING", "no"),
    ])
    .unwrap();
    assert_eq!(all.windows, UsageWindow::ALL);
    assert_eq!((all.snapshot_ttl_days, all.archive.as_deref()), (7, Some("bucket")));
    assert!(least.folds && !all.folds);
    let off = [("TABLE_NAME", "s"), ("ENABLE_ARCHIVAL", "false"), ("ARCHIVE_BUCKET_NAME", "b")];
    assert_eq!(read(&off).unwrap().archive, None);
}

#[test]
fn bad_values_are_told() {
    let wrong = |name, value| read(&[("TABLE_NAME", "stack"), (name, value)]).unwrap_err();
    assert_eq!(
        read(&[]).unwrap_err(),
        "TABLE_NAME: is missing; it names the table whose stream is read"
    );
    assert_eq!(
        wrong("SNAPSHOT_WINDOWS", "hourly,weekly"),
        "SNAPSHOT_WINDOWS: usage window \"weekly\" is unknown; use hourly, daily or monthly"
    );
    for days in ["0", "-1", "x", "1e3", "99999999999"] {
        assert_eq!(
            wrong("SNAPSHOT_TTL_DAYS", days),
            format!("SNAPSHOT_TTL_DAYS: {days:?} is no number of days from 1 to 36500")
        );
    }
    for shards in ["0", "3", "33", "64", "x"] {
        assert_eq!(
            wrong("SHARDS_MAX", shards),
            format!("SHARDS_MAX: {shards:?} is no number of shards; use 1, 2, 4, 8, 16 or 32")
        );
    }
    assert_eq!(
        wrong("ENABLE_ARCHIVAL", "maybe"),
        "ENABLE_ARCHIVAL: \"maybe\" is neither true nor false"
    );
    assert_eq!(wrong("ENABLE_FOLDING", "off"), "ENABLE_FOLDING: \"off\" is neither true nor false");
    assert_eq!(
        wrong("ENABLE_ARCHIVAL", "true"),
        "ARCHIVE_BUCKET_NAME: is missing, and ENABLE_ARCHIVAL is true"
    );
}
