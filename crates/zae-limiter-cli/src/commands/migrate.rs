//! `migrate`.

use std::sync::Arc;

use serde::Serialize;
use zae_limiter::{Copied, Error, Migrated, Migration, NamespaceName, RateLimiter};
use zae_limiter_manifest::{Apply, Live, Managed, Place, Plan, apply, export_all};

use super::shared::namespaces;
use crate::args::migrate::MigrateArgs;
use crate::context::{Access, Context};
use crate::error::Failure;
use crate::exit::Exit;
use crate::progress::Progress;
use crate::settings::StorePlace;
use crate::table::{Cell, Text};

/// How many things the target has otherwise are named.
const NAMED_MAX: usize = 5;

#[derive(Serialize)]
struct Form {
    from: String,
    to: String,
    namespace: String,
    to_namespace: String,
    dry_run: bool,
    /// The namespace is not there yet, and is registered first.
    registers: bool,
    limits: LimitsForm,
    buckets: CopiedForm,
    usage: CopiedForm,
}

/// Limits, flags and entities.
#[derive(Serialize)]
struct LimitsForm {
    copied: usize,
    /// The target has others, and has them still.
    kept: usize,
    /// The target has the same.
    unchanged: usize,
}

#[derive(Serialize)]
struct CopiedForm {
    copied: u64,
    kept: u64,
    skipped: Vec<SkippedForm>,
}

/// Those that the target has no place for.
#[derive(Serialize)]
struct SkippedForm {
    reason: &'static str,
    count: u64,
}

impl From<Copied> for CopiedForm {
    fn from(copied: Copied) -> CopiedForm {
        let Copied { copied, kept, skipped, .. } = copied;
        let skipped = skipped.into_iter().map(|(reason, count)| SkippedForm { reason, count });
        let skipped = skipped.collect();
        CopiedForm { copied, kept, skipped }
    }
}

/// Copies a namespace from the store of `context` to that of `target`.
pub(crate) async fn run(
    context: &Context<'_>,
    target: &Context<'_>,
    args: &MigrateArgs,
) -> anyhow::Result<Exit> {
    let (from, to) = (&context.settings.store, &target.settings.store);
    let (ours, theirs) = (&context.settings.namespace, &target.settings.namespace);
    if is_same(from, to) && ours == theirs {
        let failure = Failure::usage(format!("--to names {to}, the store that is copied from"));
        return Err(failure.hint("name another store, or another --to-namespace").into());
    }
    let source = context.open().await?;
    let found = Progress::during(context.printer, "reading limits", export_all(&source)).await?;
    check_policies(from, &found.cascade_policies)?;
    let manifest = zae_limiter_manifest::Manifest { namespace: theirs.clone(), ..found.manifest };
    let managed = Managed::read(&source).await?;
    let is_missing = args.dry_run && target.require_file().is_err();
    // Of what is wrong with the target, commands are named that look there.
    let there = |error: anyhow::Error| Failure::of(&error, &target.settings.again);
    let registry =
        if is_missing { None } else { Some(target.open_registry().await.map_err(there)?) };
    let found = match &registry {
        Some(registry) => enter(registry, theirs).await?,
        None => None,
    };
    let live = match &found {
        Some(limiter) => Live::read(limiter, &manifest).await?,
        None => Live::nothing(),
    };
    let plan = Plan::new(&manifest, &live, false).map_err(|error| {
        let causes = error.problems.iter().map(ToString::to_string).collect();
        let message = format!("what {from} has does not fit {to}; nothing was changed");
        Failure::in_file(message, causes).hint(format!(
            "an entity that both have must be the same in both; a parent that is missing has to be \
             created in {from} first (`zae-limiter entity create`)"
        ))
    })?;
    let plan = plan.only_missing(&managed);
    let mut form = Form {
        from: from.to_string(),
        to: to.to_string(),
        namespace: ours.to_string(),
        to_namespace: theirs.to_string(),
        dry_run: args.dry_run,
        registers: found.is_none(),
        limits: LimitsForm {
            copied: plan.changes.len(),
            kept: plan.kept.len(),
            unchanged: plan.unchanged,
        },
        buckets: Copied::default().into(),
        usage: Copied::default().into(),
    };
    let beside = registry.clone();
    let limiter = match (found, registry) {
        (Some(limiter), _) => Some(limiter),
        (None, Some(registry)) if !args.dry_run => Some(register(target, &registry, theirs).await?),
        _ => None,
    };
    if let Some(limiter) = limiter.as_ref().filter(|_| !args.dry_run) {
        copy_limits(context, limiter, &plan, args).await?;
    }
    let into = match (&limiter, &beside) {
        (Some(limiter), _) => Target::Namespace(limiter),
        (None, Some(registry)) => Target::Nothing(Some(registry)),
        (None, None) => Target::Nothing(None),
    };
    let migrated = copy_buckets(context, &source, &into, args).await?;
    (form.buckets, form.usage) = (migrated.buckets.into(), migrated.usage.into());
    let exit = context.printer.answer(&form, &text(&form))?;
    let to = match ours == theirs {
        true => to.to_string(),
        false => format!("namespace {theirs} of {to}"),
    };
    note(context, &plan, &to, args);
    Ok(exit)
}

/// Calls would go another way in the target, past limits of parents.
fn check_policies(from: &StorePlace, places: &[Place]) -> Result<(), Failure> {
    if places.is_empty() {
        return Ok(());
    }
    let message =
        format!("{from} has cascade policies of the Python package, which cannot be copied");
    let causes = places.iter().take(NAMED_MAX).map(ToString::to_string).collect();
    Err(Failure::in_file(message, causes).hint(
        "give the entities `cascade` themselves, and remove the policies with the Python package; \
         nothing was changed",
    ))
}

/// Whether both name the same file or stack.
fn is_same(one: &StorePlace, other: &StorePlace) -> bool {
    let path = |place: &StorePlace| match place {
        StorePlace::Named(path) | StorePlace::Usual(path) => {
            Some(path.canonicalize().unwrap_or_else(|_| path.clone()))
        }
        StorePlace::Memory | StorePlace::Dynamo(_) => None,
    };
    match (one, other) {
        (StorePlace::Memory, StorePlace::Memory) => false,
        (StorePlace::Dynamo(_), _) | (_, StorePlace::Dynamo(_)) => one == other,
        _ => path(one) == path(other),
    }
}

/// The namespace, if it is there.
async fn enter(registry: &RateLimiter, name: &NamespaceName) -> Result<Option<RateLimiter>, Error> {
    match registry.namespace_info(name.clone()).await? {
        Some(_) => registry.namespace(name.clone()).await.map(Some),
        None => Ok(None),
    }
}

/// Registers the namespace, and enters it.
async fn register(
    target: &Context<'_>,
    registry: &RateLimiter,
    name: &NamespaceName,
) -> anyhow::Result<RateLimiter> {
    let orphans = namespaces::orphans(registry).await.unwrap_or_default();
    if let Some(orphan) = orphans.iter().find(|orphan| orphan.name == *name) {
        target.printer.note(&format!(
            "another namespace {name} was {} in {}, and its data is kept",
            namespaces::deleted(orphan),
            target.settings.store
        ));
    }
    registry.register_namespace(name.clone()).await?;
    Ok(registry.namespace(name.clone()).await?)
}

async fn copy_limits(
    context: &Context<'_>,
    limiter: &RateLimiter,
    plan: &Plan,
    args: &MigrateArgs,
) -> anyhow::Result<()> {
    let progress = Progress::start(context.printer, "copying limits");
    let say = |made: usize, total: usize| progress.say(format!("{made} of {total}"));
    let how = Apply {
        reason: args.reason.clone(),
        progress: Some(&say),
        who: "a migration".to_owned(),
        ..Apply::default()
    };
    let applied = apply(limiter, plan, &how).await;
    drop(progress);
    applied.map_err(|error| failed(&error.source, error.to_string()))?;
    Ok(())
}

/// What is copied into.
enum Target<'a> {
    Namespace(&'a RateLimiter),
    /// A namespace that is not there, of this store; `None` for a file that is not there. Only for
    /// a dry run.
    Nothing(Option<&'a RateLimiter>),
}

async fn copy_buckets(
    context: &Context<'_>,
    source: &RateLimiter,
    target: &Target<'_>,
    args: &MigrateArgs,
) -> anyhow::Result<Migrated> {
    let progress = Arc::new(Progress::start(context.printer, "copying buckets and usage"));
    let teller = Arc::clone(&progress);
    let say = move |so_far: &Migrated| {
        let (buckets, usage) = (so_far.buckets.total(), so_far.usage.total());
        teller.say(format!("{buckets} buckets, {usage} windows of usage"));
    };
    let how = Migration {
        reason: args.reason.clone(),
        dry_run: args.dry_run,
        into_nothing: matches!(target, Target::Nothing(_)),
        progress: Some(Arc::new(say)),
    };
    // A file that is not there will count usage as a store in memory does.
    let nothing = RateLimiter::builder(zae_limiter::MemoryStore::new()).build()?;
    let target = match target {
        Target::Namespace(limiter) => limiter,
        Target::Nothing(registry) => registry.unwrap_or(&nothing),
    };
    let migrated = source.migrate_to(target, &how).await;
    drop(how);
    drop(progress);
    Ok(migrated.map_err(|error| failed(&error, error.to_string()))?)
}

/// What was copied stays, and the same command goes on from there.
fn failed(error: &Error, message: String) -> Failure {
    Failure::of_error(error, message)
        .hint("what was copied stays; the same command goes on from there")
}

fn text(form: &Form) -> Text {
    let verb = if form.dry_run { "to copy" } else { "copied" };
    let LimitsForm { copied, kept, unchanged } = form.limits;
    let mut lines = Vec::new();
    if form.registers {
        let done = if form.dry_run { "to register" } else { "registered" };
        lines.push(Cell::plain(format!("namespace {}: {done}", form.to_namespace)));
    }
    lines.push(Cell::plain(format!(
        "limits, flags and entities: {copied} {verb}, {kept} kept, {unchanged} the same"
    )));
    for (what, counted) in [("buckets", &form.buckets), ("windows of usage", &form.usage)] {
        let CopiedForm { copied, kept, skipped } = counted;
        let left_out: u64 = skipped.iter().map(|skipped| skipped.count).sum();
        let left_out = match left_out {
            0 => String::new(),
            count => format!(", {count} skipped"),
        };
        lines.push(Cell::plain(format!("{what}: {copied} {verb}, {kept} kept{left_out}")));
        for SkippedForm { reason, count } in skipped {
            lines.push(Cell::plain(format!("    {count}: {reason}")));
        }
    }
    Text::new().lines(lines)
}

fn note(context: &Context<'_>, plan: &Plan, to: &str, args: &MigrateArgs) {
    if !plan.kept.is_empty() {
        let named: Vec<String> =
            plan.kept.iter().take(NAMED_MAX).map(|change| change.place().to_string()).collect();
        let more = match plan.kept.len().saturating_sub(NAMED_MAX) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let named = named.join(", ");
        context
            .printer
            .note(&format!("{to} has these otherwise, and keeps its own: {named}{more}"));
    }
    if matches!(context.settings.store, StorePlace::Dynamo(_)) {
        context.printer.note(&format!(
            "usage of {} is what its aggregator had counted; once that has caught up (`status` says \
             how far), a repeated migrate carries windows that {to} does not have yet, and no \
             others: wait for it before you move",
            context.settings.store
        ));
    }
    if args.dry_run {
        context.printer.note("nothing was changed: this was a dry run");
    } else {
        context.printer.note(&format!(
            "calls on {} since its buckets were read are not carried; let callers use {to} only",
            context.settings.store
        ));
    }
}

/// What the command does to the target.
pub(crate) fn access_to_target(args: &MigrateArgs) -> Access {
    if args.dry_run { Access::Looks } else { Access::SetsUp }
}
