//! Applying what a batch comes to: usage first, then the archive, then upkeep.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use serde_json::json;
use zae_limiter_dynamodb::DynamoOptions;
use zae_limiter_dynamodb::stream::{Table, TableError, Upkeep};
use zae_limiter_store::{Clock, Entropy, SystemClock, SystemEntropy};

use crate::archive::{Archive, letter, packs};
use crate::fold::{Batch, Counted, Poison, Use, fold};
use crate::namespaces::Namespaces;
use crate::record::Record;
use crate::report::Report;
use crate::settings::Settings;
use crate::snapshots::{Left, Written};
use crate::upkeep::SpreadBuckets;

/// Snapshots written at once.
const WRITES_AT_ONCE: usize = 16;

/// Times a request is sent before its records are reported as not complete: then they are delivered
/// again, so this only spares a delivery.
const ATTEMPTS_MAX: u32 = 8;

/// First pause before a repeated request; doubles, full jitter.
const BACKOFF_FIRST: Duration = Duration::from_millis(25);

/// Longest pause before a repeated request.
const BACKOFF_MAX: Duration = Duration::from_millis(400);

/// Upkeep ends when this part of the time is left, in per cent.
const SPARED_PER_CENT: u32 = 20;

/// Processes batches of stream records. One may process several batches at once.
pub struct Aggregator {
    pub(crate) table: Arc<dyn Table>,
    pub(crate) settings: Settings,
    archive: Option<Arc<dyn Archive>>,
    pub(crate) clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    pub(crate) namespaces: Namespaces,
    /// Days that the table says a snapshot is kept; 0 where it says nothing.
    stored_days: AtomicU32,
    pub(crate) attempts_max: u32,
    keeper: OnceLock<Upkeep>,
    pub(crate) spread: SpreadBuckets,
}

impl Aggregator {
    /// An aggregator without an archive, with the clock and the randomness of the system.
    #[must_use]
    pub fn new(table: Arc<dyn Table>, settings: Settings) -> Aggregator {
        Aggregator {
            table,
            settings,
            archive: None,
            clock: Arc::new(SystemClock::new()),
            entropy: Arc::new(SystemEntropy),
            namespaces: Namespaces::default(),
            stored_days: AtomicU32::new(0),
            attempts_max: ATTEMPTS_MAX,
            keeper: OnceLock::new(),
            spread: SpreadBuckets::default(),
        }
    }

    /// Who looks after buckets, with the clock and the randomness of this aggregator.
    pub(crate) fn keeper(&self) -> &Upkeep {
        self.keeper.get_or_init(|| {
            let mut options = DynamoOptions::new();
            options.clock = Arc::clone(&self.clock);
            options.entropy = Arc::clone(&self.entropy);
            options.shards_max = self.settings.shards_max;
            Upkeep::new(Arc::clone(&self.table), options)
        })
    }

    /// Archives what has expired, and what cannot be read.
    #[must_use]
    pub fn archive(mut self, archive: Arc<dyn Archive>) -> Aggregator {
        self.archive = Some(archive);
        self
    }

    /// Where time comes from.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Aggregator {
        self.clock = clock;
        self
    }

    /// Where jitter comes from.
    #[must_use]
    pub fn entropy(mut self, entropy: Arc<dyn Entropy>) -> Aggregator {
        self.entropy = entropy;
        self
    }

    /// How often a request is sent before its records are reported as not complete.
    #[must_use]
    pub fn attempts_max(mut self, attempts: u32) -> Aggregator {
        self.attempts_max = attempts.max(1);
        self
    }

    /// What it was told.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Processes a batch: the records of each stream shard in the order of the stream, those of a
    /// child only after all of its parents. The batch may be acknowledged as far as
    /// [`Report::failures`] says, and not before this returns.
    pub async fn process(&self, records: &[Record]) -> Report {
        self.process_within(records, Vec::new(), None).await
    }

    /// The same with records that the shell could not read, and the time there is.
    pub async fn process_within(
        &self,
        records: &[Record],
        unreadable: Vec<Poison>,
        time: Option<Duration>,
    ) -> Report {
        let began = self.clock.monotonic();
        let mut batch = fold(records, &self.settings.windows);
        let broken = u64::try_from(unreadable.len()).unwrap_or(u64::MAX);
        let read = u64::try_from(records.len()).unwrap_or(u64::MAX);
        batch.poisoned += broken;
        batch.poison.extend(unreadable);
        let mut report = Report::of(&batch, read.saturating_add(broken));
        let lost = self.write_usage(&batch, &mut report).await;
        batch.poison.extend(lost);
        self.archive_removed(&batch, &mut report).await;
        self.keep_poison(&batch.poison, &mut report).await;
        let until =
            time.map(|time| began.saturating_add(time.saturating_mul(100 - SPARED_PER_CENT) / 100));
        report.kept = self.upkeep(&batch.leaves, until).await;
        report.took = self.clock.monotonic().saturating_sub(began);
        report
    }

    /// Counts. Returns what the table will never take.
    async fn write_usage(&self, batch: &Batch, report: &mut Report) -> Vec<Poison> {
        let mut lost = Vec::new();
        let ids: BTreeSet<&str> =
            batch.snapshots.iter().map(|counted| counted.snapshot.namespace.as_str()).collect();
        let there = match self.are_there(ids).await {
            Ok(there) => there,
            Err(error) => {
                report.error(format!("the registry of namespaces cannot be read: {error}"));
                batch.snapshots.iter().for_each(|counted| fail(report, &counted.uses));
                return lost;
            }
        };
        let is_there =
            |counted: &&Counted| there.get(&counted.snapshot.namespace).copied().unwrap_or(false);
        let wanted: Vec<&Counted> = batch.snapshots.iter().filter(is_there).collect();
        report.skipped = u64::try_from(batch.snapshots.len() - wanted.len()).unwrap_or(u64::MAX);
        let expires_s = self.expires_s();
        let writes = wanted
            .into_iter()
            .map(|counted| async move { (counted, self.count(counted, expires_s).await) });
        let mut writes = stream::iter(writes).buffer_unordered(WRITES_AT_ONCE);
        while let Some((counted, written)) = writes.next().await {
            let Written { counted: added, repeated, left } = written;
            report.counted += u64::try_from(added).unwrap_or(u64::MAX);
            report.repeated += u64::try_from(repeated).unwrap_or(u64::MAX);
            report.snapshots += u64::from(added > 0);
            let Some(left) = left else { continue };
            if let TableError::Rejected(_) = left.error {
                // A snapshot that the table will never take must not stop the stream.
                report.lost += u64::try_from(left.uses.len()).unwrap_or(u64::MAX);
                lost.extend(rejected(counted, &left));
            } else {
                let key = counted.snapshot.key();
                report.error(format!("{} {}: {}", key.pk, key.sk, left.error));
                fail(report, left.uses);
            }
        }
        lost
    }

    /// When a snapshot that is made now may be forgotten, in s.
    fn expires_s(&self) -> i64 {
        let days = match self.stored_days.load(Ordering::Relaxed) {
            0 => self.settings.snapshot_ttl_days,
            stored => stored,
        };
        let days = i64::from(days);
        self.clock.now().0.div_euclid(1_000).saturating_add(days.saturating_mul(86_400))
    }

    /// Keeps what the table says about how long snapshots are kept.
    pub(crate) fn keep_days(&self, days: Option<u32>) {
        self.stored_days.store(days.unwrap_or(0), Ordering::Relaxed);
    }

    async fn archive_removed(&self, batch: &Batch, report: &mut Report) {
        let Some(archive) = &self.archive else { return };
        let packs = match packs(&batch.removed) {
            Ok(packs) => packs,
            Err(error) => {
                report.error(format!("events cannot be packed: {error}"));
                for event in &batch.removed {
                    report.failed(&event.stream_shard, &event.sequence);
                }
                return;
            }
        };
        for pack in packs {
            match archive.put(&pack.object).await {
                Ok(()) => {
                    report.objects += 1;
                    report.archived += u64::try_from(pack.events.len()).unwrap_or(u64::MAX);
                }
                Err(error) => {
                    report.error(error.to_string());
                    for event in pack.events {
                        report.failed(&event.stream_shard, &event.sequence);
                    }
                }
            }
        }
    }

    /// Keeps records that cannot be read. Never a failure: one damaged item that is written often
    /// would stop the stream for a day.
    async fn keep_poison(&self, poison: &[Poison], report: &mut Report) {
        for one in poison {
            let Poison { stream_shard, sequence, key, why, .. } = one;
            report.error(format!("{key}, record {stream_shard} {sequence}: {why}"));
            let Some(archive) = &self.archive else { continue };
            match archive.put(&letter(one)).await {
                Ok(()) => report.letters += 1,
                Err(error) => report.error(error.to_string()),
            }
        }
    }

    /// Waits before attempt number `attempt` (1 is the first repetition): exponential, full jitter.
    pub(crate) async fn back_off(&self, attempt: u32) {
        let ceiling = BACKOFF_FIRST.saturating_mul(1 << attempt.saturating_sub(1).min(10));
        let ceiling_us = ceiling.min(BACKOFF_MAX).as_micros();
        let ceiling_us = u64::try_from(ceiling_us).unwrap_or(u64::MAX).max(1);
        self.clock.sleep(Duration::from_micros(self.entropy.next_u64() % ceiling_us)).await;
    }
}

fn fail<'a>(report: &mut Report, uses: impl IntoIterator<Item = &'a Arc<Use>>) {
    for one in uses {
        report.failed(&one.stream_shard, &one.sequence);
    }
}

/// What a snapshot did not take, to be kept elsewhere.
fn rejected(counted: &Counted, left: &Left<'_>) -> Option<Poison> {
    let first = left.uses.first()?;
    let key = counted.snapshot.key();
    let told = |one: &&Arc<Use>| {
        json!({
            "shard": one.shard,
            "sequence": one.sequence,
            "used": one.used.iter().cloned().collect::<BTreeMap<String, i64>>(),
            "takes": one.takes,
        })
    };
    Some(Poison {
        stream_shard: first.stream_shard.clone(),
        sequence: format!("{}-{}", first.sequence, counted.snapshot.window),
        key: format!("{} {}", key.pk, key.sk),
        why: left.error.to_string(),
        body: left.uses.iter().map(told).collect(),
    })
}

/// True for a failure that may pass.
pub(crate) fn is_passing(error: &TableError) -> bool {
    matches!(
        error,
        TableError::Canceled(_)
            | TableError::NotApplied(_)
            | TableError::Unreachable(_)
            | TableError::Unknown(_)
    )
}

impl fmt::Debug for Aggregator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Aggregator").field("settings", &self.settings).finish_non_exhaustive()
    }
}
