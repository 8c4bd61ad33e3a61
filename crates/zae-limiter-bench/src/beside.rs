//! What takes notice of an administrator at work on the same large file: how many there are in a
//! second, of those there are when nobody else is at work; and whether what is asked of the whole
//! file costs in proportion to its rows.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use tokio::runtime::Runtime;
use zae_limiter::{Level, PageRequest, RateLimiter, Request, UsageQuery, UsageWindow};
use zae_limiter_sqlite::SqliteStore;

use crate::args::{Beside, Output};
use crate::cell::{all_cores, cpu_time, one_thread};
use crate::keys;
use crate::rows::sqlite;

/// Whose buckets there are many of.
const TENANT: &str = "tenant";
/// How long takes are counted that are alone.
const ALONE: Duration = Duration::from_secs(2);
/// No step of an administrator for so long: the last one is done.
const QUIET: Duration = Duration::from_millis(500);

/// What came of the takes beside one piece of work.
struct Line {
    work: String,
    lasted: Duration,
    takes_per_s: f64,
    longest: Duration,
    not_granted: u64,
}

pub(crate) fn run(args: &Beside) -> Result<()> {
    let folder = args
        .folder
        .as_ref()
        .map_or_else(tempfile::tempdir, tempfile::tempdir_in)
        .context("a folder for files")?;
    let runtime = all_cores()?;
    crate::rounds::tell("two files are filled");
    let few = File::filled(&runtime, &folder.path().join("few.db"), args.buckets / 5)?;
    let many = File::filled(&runtime, &folder.path().join("many.db"), args.buckets)?;
    let ratio =
        summary_cost(&runtime, &many)?.as_secs_f64() / summary_cost(&runtime, &few)?.as_secs_f64();
    drop(few);
    let lines = many.measure(&runtime)?;
    crate::print(&match args.output {
        Output::Table => table(args.buckets, &lines, ratio),
        Output::Json => json(args.buckets, &lines, ratio),
    })
}

/// A file with a namespace of many buckets.
struct File {
    path: PathBuf,
    store: SqliteStore,
    admin: RateLimiter,
    tenant: RateLimiter,
}

impl File {
    fn filled(runtime: &Runtime, path: &Path, buckets: u32) -> Result<File> {
        let buckets = usize::try_from(buckets).context("as many buckets")?;
        let store = SqliteStore::open(path).context("a database file")?;
        let file = runtime.block_on(async {
            let admin = RateLimiter::builder(store.clone()).build()?;
            admin.register_namespace(TENANT).await?;
            let tenant = admin.namespace(TENANT).await?;
            for limiter in [&admin, &tenant] {
                limiter.set_limits(&Level::System, keys::wide()).await?;
            }
            anyhow::Ok(File { path: path.to_owned(), store, admin, tenant })
        })?;
        // Past the limiter, which would read the configuration of every key.
        sqlite::fill(&file.store.in_namespace(&TENANT.parse()?)?, &keys::entities(buckets))?;
        Ok(file)
    }

    #[expect(clippy::disallowed_methods, reason = "a benchmark waits in real time")]
    fn measure(&self, runtime: &Runtime) -> Result<Vec<Line>> {
        let takes = Takes::begin(&self.path)?;
        let alone = || {
            std::thread::sleep(ALONE);
            Ok(())
        };
        let everything = UsageQuery { page: PageRequest::first(1_000), ..whole_namespace() };
        let resource = Level::Resource(keys::resource());
        Ok(vec![
            takes.beside("nothing", alone)?,
            takes.beside("usage summary of the namespace", || {
                Ok(runtime.block_on(self.tenant.usage_summary(&everything)).map(drop)?)
            })?,
            takes.beside("usage of the namespace, all pages", || {
                runtime.block_on(all_pages(&self.tenant, everything.clone()))
            })?,
            takes.beside("resource disable, until all buckets are reached", || {
                runtime.block_on(self.tenant.disable(&resource))?;
                self.until_quiet();
                Ok(())
            })?,
            takes.beside("namespace delete and purge", || {
                runtime.block_on(async {
                    let namespace =
                        self.admin.namespace_info(TENANT).await?.context("the namespace")?;
                    ensure!(self.admin.delete_namespace(TENANT).await?, "the namespace was there");
                    Ok(self.admin.purge_namespace(namespace.id).await.map(drop)?)
                })
            })?,
            takes.beside("nothing, afterwards", alone)?,
        ])
    }

    #[expect(clippy::disallowed_methods, reason = "a benchmark waits in real time")]
    fn until_quiet(&self) {
        let mut tasks = 0;
        while std::mem::replace(&mut tasks, self.store.writer_stats().tasks) != tasks {
            std::thread::sleep(QUIET);
        }
    }
}

fn whole_namespace() -> UsageQuery {
    UsageQuery {
        entity: None,
        resource: None,
        window: UsageWindow::Hourly,
        from: None,
        until: None,
        page: PageRequest::default(),
    }
}

async fn all_pages(tenant: &RateLimiter, mut query: UsageQuery) -> Result<()> {
    loop {
        let page = tenant.usage(&query).await?;
        let Some(next) = page.next else { return Ok(()) };
        query.page = PageRequest::after(query.page.limit(), next);
    }
}

async fn take(limiter: &RateLimiter, key: &str) -> Result<()> {
    let request =
        Request::new(key, keys::RESOURCE).take("rpm", keys::REQUESTS).take("tpm", keys::TOKENS);
    Ok(limiter.acquire(request).await?.commit().await?)
}

/// CPU of one summary, the cheapest of three.
fn summary_cost(runtime: &Runtime, file: &File) -> Result<Duration> {
    let mut costs = [Duration::ZERO; 3];
    for cost in &mut costs {
        let before = cpu_time();
        runtime.block_on(file.tenant.usage_summary(&whole_namespace()))?;
        *cost = cpu_time().saturating_sub(before);
    }
    costs.into_iter().min().context("three of them")
}

/// Takes one after the other by another handle of the file, with the usual options.
struct Takes {
    seen: Arc<Seen>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Seen {
    granted: AtomicU64,
    not_granted: AtomicU64,
    longest_us: AtomicU64,
    is_over: AtomicBool,
}

impl Takes {
    #[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
    fn begin(path: &Path) -> Result<Takes> {
        let (runtime, seen) = (one_thread()?, Arc::new(Seen::default()));
        let store = SqliteStore::open(path)?;
        let limiter = runtime.block_on(async { RateLimiter::builder(store).build() })?;
        let noted = Arc::clone(&seen);
        let takes = move || {
            runtime.block_on(async {
                while !noted.is_over.load(Ordering::Relaxed) {
                    let began = Instant::now();
                    let counter = if take(&limiter, "caller").await.is_ok() {
                        &noted.granted
                    } else {
                        &noted.not_granted
                    };
                    counter.fetch_add(1, Ordering::Relaxed);
                    noted.longest_us.fetch_max(
                        u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX),
                        Ordering::Relaxed,
                    );
                }
            });
        };
        let thread = std::thread::Builder::new()
            .name("takes".to_owned())
            .spawn(takes)
            .context("a thread")?;
        Ok(Takes { seen, thread: Some(thread) })
    }

    #[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
    fn beside(&self, work: &str, run: impl FnOnce() -> Result<()>) -> Result<Line> {
        let counted = || {
            (
                self.seen.granted.load(Ordering::Relaxed),
                self.seen.not_granted.load(Ordering::Relaxed),
            )
        };
        crate::rounds::tell(&format!("takes beside: {work}"));
        let (before, began) = (counted(), Instant::now());
        self.seen.longest_us.store(0, Ordering::Relaxed);
        run().with_context(|| work.to_owned())?;
        let (after, lasted) = (counted(), began.elapsed());
        Ok(Line {
            work: work.to_owned(),
            lasted,
            takes_per_s: (after.0 - before.0) as f64 / lasted.as_secs_f64(),
            longest: Duration::from_micros(self.seen.longest_us.load(Ordering::Relaxed)),
            not_granted: after.1 - before.1,
        })
    }
}

impl Drop for Takes {
    fn drop(&mut self) {
        self.seen.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// The takes of a line, of those there are when nothing else is done: between the first line and
/// the last.
fn of_alone(lines: &[Line], line: &Line) -> f64 {
    let alone = [lines.first(), lines.last()]
        .into_iter()
        .flatten()
        .map(|line| line.takes_per_s)
        .sum::<f64>()
        / 2.0;
    line.takes_per_s / alone
}

fn table(buckets: u32, lines: &[Line], ratio: f64) -> String {
    let mut text =
        format!("{buckets} buckets in one namespace; takes in another, of the same file\n\n");
    text.push_str("| beside | lasted | takes/s | of alone | longest take | not granted |\n|---|---|---|---|---|---|\n");
    for line in lines {
        let Line { work, lasted, takes_per_s, longest, not_granted } = line;
        let share = 100.0 * of_alone(lines, line);
        let _ = writeln!(
            text,
            "| {work} | {:.1} s | {takes_per_s:.0} | {share:.0} % | {longest:.1?} | {not_granted} |",
            lasted.as_secs_f64()
        );
    }
    let _ = writeln!(
        text,
        "\nusage summary: {ratio:.1} times the CPU of that over {} buckets",
        buckets / 5
    );
    text
}

fn json(buckets: u32, lines: &[Line], ratio: f64) -> String {
    let rows: Vec<_> = lines
        .iter()
        .map(|line| {
            json!({
                "beside": line.work, "seconds": line.lasted.as_secs_f64(), "takes_per_s": line.takes_per_s,
                "of_alone": of_alone(lines, line), "longest_us": line.longest.as_micros(), "not_granted": line.not_granted,
            })
        })
        .collect();
    format!("{}\n", json!({ "buckets": buckets, "rows": rows, "summary_cpu_of_a_fifth": ratio }))
}
