//! `acquire`: takes, records if asked, commits.

use anyhow::Context as _;
use zae_limiter::wire::Decision;
use zae_limiter::{AcquireError, Lease, RateLimiter, Request};

use crate::args::{AcquireArgs, Amount};
use crate::context::Context;
use crate::error::Failure;
use crate::exit::Exit;
use crate::table::{Cell, Text, Tone};
use crate::view;

pub(crate) async fn run(context: &Context<'_>, args: AcquireArgs) -> anyhow::Result<Exit> {
    check_recorded(&args)?;
    super::limits::check(&args.limits)?;
    let request = request(&args);
    let limiter = context.open().await?;
    let (decision, exit) = match limiter.acquire(request.clone()).await {
        Ok(lease) => (settle(&limiter, lease, &request, &args.record).await?, Exit::Ok),
        Err(AcquireError::Exceeded(report)) => (Decision::from(&*report), Exit::Refused),
        Err(error) => {
            // A take whose answer did not come in time is given back, if it was one.
            limiter.close().await;
            return Err(error.into());
        }
    };
    context.printer.answer(&decision, &text(&decision))?;
    Ok(exit)
}

/// A limit that was not taken can not be recorded.
fn check_recorded(args: &AcquireArgs) -> Result<(), Failure> {
    let taken = |record: &&Amount| args.consume.iter().any(|amount| amount.limit == record.limit);
    match args.record.iter().find(|record| !taken(record)) {
        None => Ok(()),
        Some(Amount { limit, .. }) => {
            let failure = Failure::usage(format!("--record names {limit}, which is not taken with -c"));
            Err(failure.hint(format!("add -c {limit}=0 to take nothing of it beforehand")))
        }
    }
}

fn request(args: &AcquireArgs) -> Request {
    let request = Request::new(args.entity.clone(), args.resource.clone());
    let mut request = args.consume.iter().fold(request, |request, amount| request.take(amount.limit.clone(), amount.tokens));
    if !args.limits.is_empty() {
        request = request.limits(args.limits.iter().cloned());
    }
    match args.wait {
        Some(at_most) => request.wait(at_most),
        None => request,
    }
}

/// Records, commits, and waits until everything is written: nobody does it once this process is gone.
async fn settle(limiter: &RateLimiter, lease: Lease, request: &Request, record: &[Amount]) -> anyhow::Result<Decision> {
    let mut decision = Decision::from(&lease);
    for Amount { limit, tokens } in record {
        lease.record(limit.as_str(), *tokens)?;
    }
    let committed = lease.commit().await;
    if !record.is_empty() {
        look_again(limiter, request, &mut decision).await;
    }
    let settled = limiter.close().await;
    if settled.lost + settled.abandoned + settled.pending > 0 {
        committed.context("granted, but what was recorded could not be written")?;
    }
    Ok(decision)
}

/// What is left after what was recorded. The grant stands, so a store that can not tell changes nothing.
async fn look_again(limiter: &RateLimiter, request: &Request, decision: &mut Decision) {
    let Ok(now) = limiter.availability(request).await else { return };
    let now = Decision::from(&now).limits;
    for status in &mut decision.limits {
        let same = now.iter().find(|found| found.entity_id == status.entity_id && found.limit_name == status.limit_name);
        status.available = same.map_or(status.available, |found| found.available);
    }
}

fn text(decision: &Decision) -> Text {
    let heading = match decision {
        Decision { granted: true, degraded: true, .. } => Cell::toned("granted without a decision: the store is down", Tone::Warning),
        Decision { granted: true, .. } => Cell::toned("granted", Tone::Good),
        _ => Cell::toned(format!("refused: {}", view::refusal(decision)), Tone::Bad),
    };
    let text = Text::new().line(heading);
    if decision.limits.is_empty() { text } else { text.table(view::statuses(&decision.limits)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Paint;

    fn shown(decision: &Decision) -> String {
        text(decision).render(None, Paint(false))
    }

    #[test]
    fn a_grant_without_a_decision_says_so() {
        let decision = Decision { granted: true, degraded: true, contended: false, retry_after_ms: Some(0), limits: vec![] };
        assert_eq!(shown(&decision), "granted without a decision: the store is down\n");
    }

    #[test]
    fn contention_is_not_blamed_on_a_limit() {
        let decision = Decision { granted: false, degraded: false, contended: true, retry_after_ms: Some(80), limits: vec![] };
        assert_eq!(shown(&decision), "refused: too many writers on one bucket, try again in 80ms\n");
    }
}
