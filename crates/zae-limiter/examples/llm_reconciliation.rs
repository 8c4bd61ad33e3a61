//! An estimate is wrong: the call is charged what it really used, the debt is repaid by refill, and
//! a stream that is cut is charged what it had produced.
//!
//! The clock is turned by hand, as your tests would: the example takes no time and says the same
//! every time.
//!
//! `cargo run -p zae-limiter --example llm_reconciliation`

use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use zae_limiter::sqlite::SqliteStore;
use zae_limiter::{Level, ManualClock, OnDrop, RateLimiter, Request, TimeMs};

/// What the prompt of the stream costs before a word is said.
const PROMPT: u64 = 50;
/// Tokens per chunk of the stream.
const CHUNK: u64 = 20;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    run(
        &folder.path().join("limits.db"),
        &ManualClock::new(TimeMs(1_767_261_600_000)),
        &mut std::io::stdout(),
    )
    .await
}

pub(crate) async fn run(
    path: &Path,
    clock: &ManualClock,
    out: &mut impl Write,
) -> Result<(), Box<dyn Error>> {
    let limiter = RateLimiter::builder(SqliteStore::open(path)?).clock(clock.clone()).build()?;
    limiter.set_limits(&Level::System, ["tpm:1000/min".parse()?]).await?;

    // The length of an answer is unknown before it ends, and the limiter never cuts it off: the
    // tokens it used are charged, and the next caller pays for them by waiting.
    let lease = limiter.acquire(ask(500)).await?;
    lease.record("tpm", 2000)?;
    lease.commit().await?;
    writeln!(out, "estimated 500, used 2000: {} tokens left", left(&limiter).await?)?;

    let refused = limiter.acquire(ask(500)).await.err().ok_or("nobody is served while in debt")?;
    let wait = refused.retry_after().ok_or("waiting helps")?;
    writeln!(out, "the next 500 have to wait {wait:?}: 60 s for the debt, 30 s for themselves")?;

    clock.advance(wait - Duration::from_millis(1));
    writeln!(
        out,
        "a millisecond before: {}",
        if limiter.acquire(ask(500)).await.is_err() { "refused" } else { "granted" }
    )?;
    clock.advance(Duration::from_millis(1));
    let lease = limiter.acquire(ask(500)).await?;
    writeln!(out, "then: granted, {} tokens left", left(&limiter).await?)?;

    // Used less than estimated: the rest is given back.
    lease.record("tpm", 100)?;
    lease.commit().await?;
    writeln!(out, "of these only 100 were used: {} tokens left", left(&limiter).await?)?;

    clock.advance(Duration::from_secs(60));
    writeln!(
        out,
        "a minute later: {} tokens left, never more than the capacity",
        left(&limiter).await?
    )?;

    // A stream: recording is free of I/O, so it is done for every chunk. Until the first record the
    // estimate counts as used, so the prompt is recorded before anything can be cut.
    for (on_drop, what) in [
        (OnDrop::Rollback, "given back: the tokens were free"),
        (OnDrop::Commit, "charged what it produced"),
    ] {
        let lease = limiter.acquire(ask(500).on_drop(on_drop)).await?;
        lease.record("tpm", PROMPT)?;
        for chunk in 1..=3 {
            lease.record("tpm", PROMPT + chunk * CHUNK)?;
        }
        drop(lease); // the client hangs up; the settler does the rest in the background
        limiter.drain().await;
        writeln!(
            out,
            "a stream cut with OnDrop::{on_drop:?} is {what}, {} tokens left",
            left(&limiter).await?
        )?;
    }

    limiter.close().await;
    Ok(())
}

fn ask(estimate: u64) -> Request {
    Request::new("key-1", "gpt-4").take("tpm", estimate)
}

/// Tokens left; negative is debt.
async fn left(limiter: &RateLimiter) -> Result<i64, Box<dyn Error>> {
    let availability = limiter.availability(&Request::new("key-1", "gpt-4")).await?;
    Ok(availability.available("tpm").ok_or("tpm is configured")?)
}
