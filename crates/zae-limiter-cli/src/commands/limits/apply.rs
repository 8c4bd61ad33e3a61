//! `limits apply`.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::{Either, select};
use serde::Serialize;
use zae_limiter::SystemClock;
use zae_limiter::domain::rfc3339;
use zae_limiter_manifest::{Apply, ApplyError, GONE_AFTER, Mark, Over, Watched, apply, watch};

use super::process::{self, Fate};
use super::{Compared, PlanForm, compare, fate, note_about_kept, note_about_resumption, text};
use crate::args::limits::LimitsApplyArgs;
use crate::commands::shared::{namespaces, stop};
use crate::context::Context;
use crate::error::Failure;
use crate::exit::Exit;
use crate::progress::Progress;
use crate::settings::StorePlace;

#[derive(Serialize)]
struct Form {
    #[serde(flatten)]
    plan: PlanForm,
    dry_run: bool,
    /// How many changes were made.
    applied: usize,
    /// Existing buckets that got another flag.
    buckets: u64,
}

/// How often `--take-over` reads again what has changed since it looked.
const TAKES_MAX: u32 = 5;

pub(crate) async fn run(context: &Context<'_>, args: &LimitsApplyArgs) -> anyhow::Result<Exit> {
    let mut compared = compare(context, &args.file.file, args.prune).await?;
    if args.dry_run {
        note_about_resumption(context, &compared.plan);
        let form = form(&compared, true);
        let exit = context.printer.answer(&form, &text(&compared, false))?;
        note_about_kept(context, &compared.plan);
        context.printer.note("nothing was changed: this was a dry run");
        return Ok(exit);
    }
    if !args.take_over && cleared(context, &compared).await? {
        compared = compare(context, &args.file.file, args.prune).await?;
    }
    let mut takes = 0;
    let (form, compared) = loop {
        takes += 1;
        match applied(context, args, &mut compared).await? {
            Ok(form) => break (form, compared),
            // Signs of life of the one that is taken over come in between.
            Err(error) if args.take_over && is_refused(&error) && takes < TAKES_MAX => {
                compared = compare(context, &args.file.file, args.prune).await?;
            }
            Err(error) => return Err(failed(context, &error).into()),
        }
    };
    let exit = context.printer.answer(&form, &text(&compared, true))?;
    note_about_kept(context, &compared.plan);
    if form.applied > 0 {
        let is_remote = matches!(context.settings.store, StorePlace::Dynamo(_));
        let lent = if is_remote { " and 5s" } else { "" };
        context.printer.note(&format!(
            "running processes see this within their config-cache TTL (60s unless set otherwise){lent}"
        ));
    }
    Ok(exit)
}

fn form(compared: &Compared, dry_run: bool) -> Form {
    Form { plan: PlanForm::from(compared), dry_run, applied: 0, buckets: 0 }
}

/// One attempt at a plan.
async fn applied(
    context: &Context<'_>,
    args: &LimitsApplyArgs,
    compared: &mut Compared,
) -> anyhow::Result<Result<Form, ApplyError>> {
    match compared.plan.held() {
        None => note_about_resumption(context, &compared.plan),
        Some(mark) if args.take_over => context.printer.note(&format!(
            "takes over from {}, who has begun at {} and not ended",
            mark.who,
            rfc3339(mark.since())
        )),
        // Said already.
        Some(_) => {}
    }
    let mut form = form(compared, false);
    let limiter = match compared.limiter.clone() {
        Some(limiter) => limiter,
        None => register(context, compared).await?,
    };
    let progress = Progress::start(context.printer, "applying");
    let say = |made: usize, total: usize| progress.say(format!("{made} of {total} changes"));
    let is_stopped = AtomicBool::new(false);
    let stopped = || is_stopped.load(Ordering::Relaxed);
    let how = Apply {
        reason: args.reason.clone(),
        progress: Some(&say),
        stopped: Some(&stopped),
        who: process::who(context.settings.principal.as_ref()),
        process: process::this(),
        // Whether another one is gone is known by now.
        over: Over::Now,
        ..Apply::default()
    };
    let applied = {
        let work = pin!(apply(&limiter, &compared.plan, &how));
        match select(work, pin!(stop::wanted(false)?)).await {
            Either::Left((applied, _)) => applied,
            Either::Right(((), work)) => {
                is_stopped.store(true, Ordering::Relaxed);
                // What has begun is ended, unless somebody is in a hurry.
                match select(work, pin!(stop::wanted(false)?)).await {
                    Either::Left((applied, _)) => applied,
                    Either::Right(((), _)) => {
                        return Err(Failure::stopped(
                            "stopped at once; the next apply goes on from there",
                        )
                        .into());
                    }
                }
            }
        }
    };
    drop(progress);
    Ok(applied.map(|applied| {
        (form.applied, form.buckets) = (applied.changes, applied.buckets);
        form
    }))
}

/// Makes sure that no other apply is at work; true when what was read may be old by now.
async fn cleared(context: &Context<'_>, compared: &Compared) -> anyhow::Result<bool> {
    let (Some(limiter), Some(mark)) = (&compared.limiter, compared.plan.held()) else {
        return Ok(false);
    };
    let watched = match fate(mark) {
        Fate::Runs => Watched::AtWork(mark.clone()),
        Fate::Gone => {
            note_about_resumption(context, &compared.plan);
            return Ok(false);
        }
        Fate::Unknown => {
            context.printer.note(&format!(
                "an apply of {} has begun at {} and not ended; watching for up to {} s whether it is \
                 still at work (--take-over does not)",
                mark.who,
                rfc3339(mark.since()),
                GONE_AFTER.as_secs()
            ));
            let clock = SystemClock::new();
            let watching = watch(limiter, &compared.plan, &clock);
            Progress::during(context.printer, "watching", watching).await?
        }
    };
    match watched {
        Watched::AtWork(mark) => Err(at_work(context, &mark).into()),
        Watched::Gone => {
            context.printer.note("nothing was heard of it; this one goes on where it stopped");
            Ok(true)
        }
        Watched::Ended => Ok(true),
    }
}

fn at_work(context: &Context<'_>, mark: &Mark) -> Failure {
    let message = format!(
        "another apply is at work: {}, since {}, last heard of at {}; nothing was changed",
        mark.who,
        rfc3339(mark.since()),
        rfc3339(mark.heard())
    );
    Failure::conflict(message).hint(what_to_do(context))
}

fn what_to_do(context: &Context<'_>) -> String {
    let again = context.command(&["limits", "plan", "-f", "FILE"]);
    format!(
        "wait until it has ended, and look with {again} what is left; `limits apply --take-over` \
         stops it and goes on from there"
    )
}

fn is_refused(error: &ApplyError) -> bool {
    error.overlaps && error.made == 0 && error.at.is_none()
}

/// Registers the namespace of the file, and enters it.
async fn register(
    context: &Context<'_>,
    compared: &Compared,
) -> anyhow::Result<zae_limiter::RateLimiter> {
    let (registry, name) = (context.open_registry().await?, &compared.namespace);
    let orphans = namespaces::orphans(&registry).await.unwrap_or_default();
    if let Some(orphan) = orphans.iter().find(|orphan| orphan.name == *name) {
        context.printer.note(&format!(
            "another namespace {name} was {}, and its data is kept",
            namespaces::deleted(orphan)
        ));
    }
    registry.register_namespace(name.clone()).await?;
    Ok(registry.namespace(name.clone()).await?)
}

fn failed(context: &Context<'_>, error: &ApplyError) -> Failure {
    let failure = Failure::of_error(&error.source, error.to_string());
    if error.stopped {
        let again = context.command(&["limits", "apply", "-f", "FILE"]);
        return Failure::stopped(error.to_string()).hint(format!("{again} goes on from there"));
    }
    if is_refused(error) {
        return failure.hint(what_to_do(context));
    }
    if error.overlaps {
        let again = context.command(&["limits", "plan", "-f", "FILE"]);
        return failure.hint(format!("what was changed stays; {again} shows what is left"));
    }
    let again = context.command(&["limits", "apply", "-f", "FILE"]);
    match error.made {
        0 => failure.hint(format!("{again} compares and tries again")),
        _ => failure.hint(format!("what was changed stays; {again} goes on from there")),
    }
}
