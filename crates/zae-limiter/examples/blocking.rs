//! Without async: plain threads share one limiter, and together they get exactly what the limit
//! holds.
//!
//! `cargo run -p zae-limiter --example blocking`

use std::error::Error;
use std::io::Write;
use std::path::Path;

use zae_limiter::blocking::RateLimiter;
use zae_limiter::{AcquireError, Level, Request};

const THREADS: usize = 4;
const CALLS: usize = 5;

type Failure = Box<dyn Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    run(&folder.path().join("limits.db"), &mut std::io::stdout())
}

pub(crate) fn run(path: &Path, out: &mut impl Write) -> Result<(), Failure> {
    let limiter = RateLimiter::open(path)?;
    // So slow that nothing comes back while the example runs.
    limiter.set_limits(&Level::System, ["rpd:12/day".parse()?, "tpd:10000/day".parse()?])?;

    let granted: Vec<Result<usize, Failure>> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS).map(|_| scope.spawn(|| work(&limiter))).collect();
        workers.into_iter().map(|worker| worker.join().map_err(|_| "a worker panicked")?).collect()
    });
    let granted = granted.into_iter().sum::<Result<usize, Failure>>()?;
    writeln!(
        out,
        "{THREADS} threads asked {CALLS} times each; {granted} calls were granted, {} refused",
        THREADS * CALLS - granted
    )?;

    let availability = limiter.availability(&Request::new("key-1", "gpt-4"))?;
    for status in availability.statuses() {
        writeln!(
            out,
            "{}: {} of {} left",
            status.limit.name(),
            status.available,
            status.limit.capacity()
        )?;
    }

    // Settles what dropped leases left behind; without it a program that ends at once may lose
    // that.
    let settled = limiter.close();
    writeln!(out, "closed; {} changes lost", settled.lost)?;
    Ok(())
}

/// Calls until it has asked often enough; returns how many calls were granted.
fn work(limiter: &RateLimiter) -> Result<usize, Failure> {
    let mut granted = 0;
    for _ in 0..CALLS {
        let request = Request::new("key-1", "gpt-4").take("rpd", 1).take("tpd", 500);
        let outcome: Result<(), Failure> = limiter.with_lease(request, |lease| {
            lease.record("tpd", 200)?; // less than was estimated: the rest is given back
            Ok(())
        });
        match outcome {
            Ok(()) => granted += 1,
            // `with_lease` has one error type for the work and for the refusal: yours.
            Err(error)
                if error
                    .downcast_ref::<AcquireError>()
                    .is_some_and(|error| error.exceeded().is_some()) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(granted)
}
