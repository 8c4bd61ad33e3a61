//! What an aggregator is told, and how the environment tells it.

use zae_limiter_core::UsageWindow;
use zae_limiter_dynamodb::stream::SHARDS_MAX;

/// How an aggregator works.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// The name of the table, for logs and metrics.
    pub table: String,
    /// The windows that are counted, each at most once.
    pub windows: Vec<UsageWindow>,
    /// A snapshot is kept this many days after it was made, where the table does not say it.
    pub snapshot_ttl_days: u32,
    /// The bucket of the archive, if there is to be one.
    pub archive: Option<String>,
    /// How many shards upkeep may split a bucket into; 1 for none, while a fleet is upgraded.
    pub shards_max: u32,
    /// Whether the shards of quiet buckets are folded back into one item. Clients of the Python
    /// package never forget how many shards there were, and make them anew, full.
    pub folds: bool,
}

/// A snapshot is kept this long when nothing is said, as by the Python package.
const TTL_DAYS: u32 = 90;

/// A setting that cannot be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable}: {problem}")]
pub struct BadSetting {
    /// The variable of the environment.
    pub variable: &'static str,
    /// What is wrong with it.
    pub problem: String,
}

impl Settings {
    /// Hourly and daily snapshots that are kept for 90 days, no archive.
    #[must_use]
    pub fn new(table: impl Into<String>) -> Settings {
        Settings {
            table: table.into(),
            windows: vec![UsageWindow::Hourly, UsageWindow::Daily],
            snapshot_ttl_days: TTL_DAYS,
            archive: None,
            shards_max: SHARDS_MAX,
            folds: true,
        }
    }

    /// Other windows.
    #[must_use]
    pub fn windows(mut self, windows: impl IntoIterator<Item = UsageWindow>) -> Settings {
        self.windows = windows.into_iter().collect();
        self.windows.sort_unstable();
        self.windows.dedup();
        self
    }

    /// Another number of days.
    #[must_use]
    pub fn snapshot_ttl_days(mut self, days: u32) -> Settings {
        self.snapshot_ttl_days = days;
        self
    }

    /// Another number of shards.
    #[must_use]
    pub fn shards_max(mut self, shards: u32) -> Settings {
        self.shards_max = shards;
        self
    }

    /// Whether shards are folded.
    #[must_use]
    pub fn folds(mut self, folds: bool) -> Settings {
        self.folds = folds;
        self
    }

    /// Reads the variables `TABLE_NAME SNAPSHOT_WINDOWS SNAPSHOT_TTL_DAYS ENABLE_ARCHIVAL
    /// ARCHIVE_BUCKET_NAME SHARDS_MAX ENABLE_FOLDING`. One that is empty counts as missing.
    pub fn from_variables(
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Settings, BadSetting> {
        let bad = |variable, problem: String| BadSetting { variable, problem };
        let given = |name: &str| {
            let value = variable(name).map(|value| value.trim().to_owned());
            value.filter(|value| !value.is_empty())
        };
        let table = given("TABLE_NAME").ok_or_else(|| {
            bad("TABLE_NAME", "is missing; it names the table whose stream is read".to_owned())
        })?;
        let mut settings = Settings::new(table);
        if let Some(words) = given("SNAPSHOT_WINDOWS") {
            let parsed = words.split(',').map(|word| word.trim().parse::<UsageWindow>());
            let parsed = parsed.collect::<Result<Vec<_>, _>>();
            settings = settings
                .windows(parsed.map_err(|error| bad("SNAPSHOT_WINDOWS", error.to_string()))?);
        }
        if let Some(days) = given("SNAPSHOT_TTL_DAYS") {
            let parsed = days.parse().ok().filter(|days| (1..=36_500).contains(days));
            let problem = || format!("{days:?} is no number of days from 1 to 36500");
            settings.snapshot_ttl_days =
                parsed.ok_or_else(|| bad("SNAPSHOT_TTL_DAYS", problem()))?;
        }
        if let Some(shards) = given("SHARDS_MAX") {
            let parsed = shards.parse().ok().filter(|shards| (1..=SHARDS_MAX).contains(shards));
            let problem = || format!("{shards:?} is no number of shards from 1 to {SHARDS_MAX}");
            settings.shards_max = parsed.ok_or_else(|| bad("SHARDS_MAX", problem()))?;
        }
        let truth = |variable: &'static str| match given(variable).map(|word| word.to_lowercase()) {
            None => Ok(None),
            Some(word) if ["true", "1", "yes"].contains(&word.as_str()) => Ok(Some(true)),
            Some(word) if ["false", "0", "no"].contains(&word.as_str()) => Ok(Some(false)),
            Some(word) => Err(bad(variable, format!("{word:?} is neither true nor false"))),
        };
        settings.folds = truth("ENABLE_FOLDING")?.unwrap_or(true);
        let is_archiving = truth("ENABLE_ARCHIVAL")?.unwrap_or(false);
        let bucket = given("ARCHIVE_BUCKET_NAME");
        if is_archiving && bucket.is_none() {
            let problem = "is missing, and ENABLE_ARCHIVAL is true".to_owned();
            return Err(bad("ARCHIVE_BUCKET_NAME", problem));
        }
        settings.archive = bucket.filter(|_| is_archiving);
        Ok(settings)
    }
}
