//! `acquire`: takes, records if asked, commits.

use std::time::Duration;

use anyhow::Context as _;
use zae_limiter::wire::Decision;
use zae_limiter::{AcquireError, Clock as _, Lease, RateLimiter, Request, SystemClock};

use super::shared::about::{Asker, Form, exit};
use super::shared::entities;
use crate::args::acquire::AcquireArgs;
use crate::args::level::check_limits;
use crate::args::value::Amount;
use crate::context::Context;
use crate::error::Failure;
use crate::exit::Exit;
use crate::table::{Cell, Text, Tone};
use crate::{patience, view};

pub(crate) async fn run(context: &Context<'_>, args: AcquireArgs) -> anyhow::Result<Exit> {
    check_recorded(&args)?;
    check_limits(&args.limits)?;
    let brings_limits = !args.limits.is_empty();
    let asker = Asker { entity: &args.entity, resource: &args.resource, brings_limits };
    let mut request = asker.request(&args.consume);
    if brings_limits {
        request = request.limits(args.limits.iter().cloned());
    }
    let limiter = context.open().await?;
    if args.must_exist {
        entities::require(context, &limiter, &args.entity).await?;
    }
    let decision = match acquire(context, &limiter, request.clone(), args.wait).await {
        Ok(lease) => {
            // It may have been deleted while this waited.
            if args.must_exist
                && let Err(error) = entities::require(context, &limiter, &args.entity).await
            {
                lease.rollback().await.ok();
                limiter.close().await;
                return Err(error);
            }
            settle(&limiter, lease, &request, &args.record).await?
        }
        Err(AcquireError::Exceeded(report)) => Decision::from(&*report),
        Err(error) => {
            // A take whose answer did not come in time is given back, if it was one.
            limiter.close().await;
            return Err(error.into());
        }
    };
    let form = Form::new(context, &limiter, &asker, decision).await;
    context.printer.answer(&form, &text(&form.decision, args.wait))?;
    Ok(exit(&form.decision))
}

/// Asks once; says what is waited for, then waits if it may.
async fn acquire(
    context: &Context<'_>,
    limiter: &RateLimiter,
    request: Request,
    wait: Option<Duration>,
) -> Result<Lease, AcquireError> {
    let clock = SystemClock::new();
    let started = clock.monotonic();
    let refused = match limiter.acquire(request.clone()).await {
        Err(AcquireError::Exceeded(report)) => report,
        decided => return decided,
    };
    let Some(wait) =
        wait.filter(|wait| refused.retry_after().duration().is_some_and(|needed| needed <= *wait))
    else {
        return Err(AcquireError::Exceeded(refused));
    };
    context.printer.note(&format!("waiting: {}", view::refusal(&Decision::from(&*refused))));
    patience::told();
    limiter
        .acquire(request.wait(wait.saturating_sub(clock.monotonic().saturating_sub(started))))
        .await
}

/// A limit that was not taken cannot be recorded.
fn check_recorded(args: &AcquireArgs) -> Result<(), Failure> {
    let taken = |record: &&Amount| args.consume.iter().any(|amount| amount.limit == record.limit);
    match args.record.iter().find(|record| !taken(record)) {
        None => Ok(()),
        Some(Amount { limit, .. }) => {
            let failure =
                Failure::usage(format!("--record names {limit}, which is not taken with -c"));
            Err(failure.hint(format!("add -c {limit}=0 to take nothing of it beforehand")))
        }
    }
}

/// Records, commits, and waits until everything is written: nobody does it once this process is
/// gone.
async fn settle(
    limiter: &RateLimiter,
    lease: Lease,
    request: &Request,
    record: &[Amount],
) -> anyhow::Result<Decision> {
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

/// Updates the balances after the use was recorded. The grant stands: a store that does not answer
/// changes nothing.
async fn look_again(limiter: &RateLimiter, request: &Request, decision: &mut Decision) {
    let Ok(now) = limiter.availability(request).await else { return };
    let now = Decision::from(&now).limits;
    for status in &mut decision.limits {
        let same = now.iter().find(|found| {
            found.entity_id == status.entity_id && found.limit_name == status.limit_name
        });
        status.available = same.map_or(status.available, |found| found.available);
    }
}

fn text(decision: &Decision, wait: Option<Duration>) -> Text {
    let heading = match decision {
        Decision { granted: true, degraded: true, .. } => {
            Cell::toned("granted without a decision: the store is down", Tone::Warning)
        }
        Decision { granted: true, .. } => Cell::toned("granted", Tone::Good),
        _ => Cell::toned(format!("refused: {}", view::refusal(decision)), Tone::Bad),
    };
    let text = match not_waited(decision, wait) {
        Some(why) => Text::new().lines(vec![heading, Cell::plain(why)]),
        None => Text::new().line(heading),
    };
    if decision.limits.is_empty() { text } else { text.table(view::statuses(&decision.limits)) }
}

/// Why the command did not wait although it was allowed to.
fn not_waited(decision: &Decision, wait: Option<Duration>) -> Option<String> {
    let allowed = u64::try_from(wait?.as_millis()).unwrap_or(u64::MAX);
    let needed = decision.retry_after_ms.filter(|_| !decision.granted)?;
    (needed > allowed).then(|| {
        format!(
            "did not wait: {} is longer than --wait {} allows",
            view::wait(needed),
            view::wait(allowed)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Paint;

    fn shown(decision: &Decision) -> String {
        text(decision, None).render(None, Paint(false))
    }

    #[test]
    fn a_grant_without_a_decision_says_so() {
        let decision = Decision {
            granted: true,
            degraded: true,
            contended: false,
            retry_after_ms: Some(0),
            limits: vec![],
        };
        assert_eq!(shown(&decision), "granted without a decision: the store is down\n");
    }

    #[test]
    fn contention_is_not_blamed_on_a_limit() {
        let decision = Decision {
            granted: false,
            degraded: false,
            contended: true,
            retry_after_ms: Some(80),
            limits: vec![],
        };
        assert_eq!(shown(&decision), "refused: others keep the store busy, try again in 80ms\n");
        assert_eq!(exit(&decision), Exit::Busy);
    }
}
