//! The smallest useful limiter: two limits per call, an estimate before it, what was really used
//! after it, and a refusal that says how long to wait.
//!
//! `cargo run -p zae-limiter --example basic`

use std::error::Error;
use std::io::Write;
use std::path::Path;

use zae_limiter::sqlite::SqliteStore;
use zae_limiter::{AcquireError, Clock, Level, RateLimiter, Request, SystemClock};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    run(&folder.path().join("limits.db"), SystemClock::new(), &mut std::io::stdout()).await
}

/// Its test passes a clock that stands still.
pub(crate) async fn run(
    path: &Path,
    clock: impl Clock + 'static,
    out: &mut impl Write,
) -> Result<(), Box<dyn Error>> {
    // In a program of yours: `RateLimiter::open(path).await?`.
    let limiter = RateLimiter::builder(SqliteStore::open(path)?).clock(clock).build()?;
    limiter.set_limits(&Level::System, ["rpm:60/min".parse()?, "tpm:2000/min".parse()?]).await?;

    // The form to prefer: `Ok` commits what was recorded, `Err`, a panic and a cancelled future
    // give everything back.
    let request = Request::new("key-1", "gpt-4").take("rpm", 1).take("tpm", 900);
    let answer = limiter
        .with_lease(request, async |lease| {
            writeln!(out, "granted on an estimate of 900 tokens, {}", left(lease.statuses()))?;
            let (answer, tokens_used) = call_the_model("Tell me a long story", 1200);
            lease.record("tpm", tokens_used)?;
            Ok::<_, Box<dyn Error>>(answer)
        })
        .await?;
    writeln!(out, "the model said {answer:?} and used 1200 tokens")?;

    // The same by hand, for code that does not fit into a closure.
    let lease =
        limiter.acquire(Request::new("key-1", "gpt-4").take("rpm", 1).take("tpm", 500)).await?;
    writeln!(out, "granted on an estimate of 500 tokens, {}", left(lease.statuses()))?;
    lease.record("tpm", 300)?;
    lease.commit().await?;
    writeln!(out, "only 300 were used: the other 200 are given back")?;

    // A refusal is a value. Nothing was taken, not even the request.
    for tokens in [900, 5000] {
        match limiter
            .acquire(Request::new("key-1", "gpt-4").take("rpm", 1).take("tpm", tokens))
            .await
        {
            Err(AcquireError::Exceeded(report)) => {
                writeln!(out, "{tokens} tokens refused: {report}")?;
                for status in report.statuses() {
                    let verdict = if status.exceeded() { "too few" } else { "enough" };
                    writeln!(
                        out,
                        "  {}: {} left, {} asked for: {verdict}",
                        status.limit.name(),
                        status.available,
                        status.requested
                    )?;
                }
            }
            Err(other) => return Err(other.into()),
            Ok(lease) => lease.rollback().await?,
        }
    }

    let settled = limiter.close().await;
    writeln!(out, "closed; {} changes lost", settled.lost)?;
    Ok(())
}

/// What is left of each limit, after this call's take.
fn left(statuses: &[zae_limiter::LimitStatus]) -> String {
    let one = |status: &zae_limiter::LimitStatus| {
        format!("{} of {} {}", status.available, status.limit.capacity(), status.limit.name())
    };
    format!("left: {}", statuses.iter().map(one).collect::<Vec<_>>().join(", "))
}

/// Stands for a call whose cost is known only afterwards.
fn call_the_model(_prompt: &str, tokens_used: u64) -> (&'static str, u64) {
    ("Once upon a time", tokens_used)
}
