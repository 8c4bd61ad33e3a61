//! `limits apply`.

use serde::Serialize;
use zae_limiter_manifest::{Apply, ApplyError, apply};

use super::{Compared, PlanForm, compare, note_about_kept, note_about_resumption, text};
use crate::args::limits::LimitsApplyArgs;
use crate::commands::shared::namespaces;
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

pub(crate) async fn run(context: &Context<'_>, args: &LimitsApplyArgs) -> anyhow::Result<Exit> {
    let mut compared = compare(context, &args.file.file, args.prune).await?;
    note_about_resumption(context, &compared.plan);
    let plan = PlanForm::from(&compared);
    let mut form = Form { plan, dry_run: args.dry_run, applied: 0, buckets: 0 };
    let text = text(&compared, !args.dry_run);
    if !args.dry_run {
        let limiter = match compared.limiter.take() {
            Some(limiter) => limiter,
            None => register(context, &compared).await?,
        };
        let progress = Progress::start(context.printer, "applying");
        let say = |made: usize, total: usize| progress.say(format!("{made} of {total} changes"));
        let how = Apply { reason: args.reason.clone(), progress: Some(&say) };
        let applied = apply(&limiter, &compared.plan, &how).await;
        drop(progress);
        let applied = applied.map_err(|error| failed(context, &error))?;
        (form.applied, form.buckets) = (applied.changes, applied.buckets);
    }
    let exit = context.printer.answer(&form, &text)?;
    note_about_kept(context, &compared.plan);
    if args.dry_run {
        context.printer.note("nothing was changed: this was a dry run");
    } else if form.applied > 0 {
        let is_remote = matches!(context.settings.store, StorePlace::Dynamo(_));
        let lent = if is_remote { " and 5s" } else { "" };
        context.printer.note(&format!(
            "running processes see this within their config-cache TTL (60s unless set otherwise){lent}"
        ));
    }
    Ok(exit)
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
    let again = context.command(&["limits", "apply", "-f", "FILE"]);
    failure.hint(format!("what was changed stays; {again} goes on from there"))
}
