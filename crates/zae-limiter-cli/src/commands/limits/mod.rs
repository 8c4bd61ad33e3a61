//! `limits …`: files of limits. What a file means, how it compares with a store and how it is
//! applied is in the crate `zae-limiter-manifest`; here it is asked for and shown.

pub(crate) mod apply;
pub(crate) mod diff;
pub(crate) mod export;
pub(crate) mod plan;
mod process;
pub(crate) mod schema;

use std::io::Read as _;
use std::path::Path;

use serde::Serialize;
use zae_limiter::domain::rfc3339;
use zae_limiter::wire::FlagForm;
use zae_limiter::{LevelConfig, NamespaceName, RateLimiter};
use zae_limiter_manifest::{Change, Live, Manifest, Mark, Place, Plan, Problem, Sign};

use self::process::Fate;

use crate::context::{Access, Context};
use crate::error::Failure;
use crate::settings::NAMESPACE;
use crate::table::{Cell, Text, Tone};

/// The largest file that is read.
const BYTES_MAX: u64 = 64 * 1024 * 1024;

/// A file, held against the store.
struct Compared {
    namespace: NamespaceName,
    /// `None` for a namespace that is not there yet.
    limiter: Option<RateLimiter>,
    /// The namespace is registered first. One of its own comes with a new file.
    registers: bool,
    plan: Plan,
}

/// Reads a file and compares it with the store.
async fn compare(context: &Context<'_>, file: &Path, prune: bool) -> anyhow::Result<Compared> {
    compare_read(context, &read(context, file)?, file, prune).await
}

/// Compares what was read from a file with the store. Nothing is written, but where the command
/// may, a missing store file is created.
async fn compare_read(
    context: &Context<'_>,
    manifest: &Manifest,
    file: &Path,
    prune: bool,
) -> anyhow::Result<Compared> {
    let name = &manifest.namespace;
    let planned = |live: &Live| {
        Plan::new(manifest, live, prune)
            .map_err(|error| refused(file, "does not fit the store", &error.problems))
    };
    if context.access == Access::Looks
        && let Some(path) = context.missing_file()
    {
        let plan = planned(&Live::nothing())?;
        context
            .printer
            .note(&format!("there is no file {}; `limits apply` creates it", path.display()));
        let registers = name != NAMESPACE;
        return Ok(Compared { namespace: name.clone(), limiter: None, registers, plan });
    }
    let registry = context.open_registry().await?;
    let limiter = match registry.namespace_info(name.clone()).await? {
        Some(_) => Some(registry.namespace(name.clone()).await?),
        None => None,
    };
    let live = match &limiter {
        Some(limiter) => Live::read(limiter, manifest).await?,
        None => Live::nothing(),
    };
    let (plan, registers) = (planned(&live)?, limiter.is_none());
    Ok(Compared { namespace: name.clone(), limiter, registers, plan })
}

/// Reads a file, for the namespace that it names.
fn read(context: &Context<'_>, file: &Path) -> Result<Manifest, Failure> {
    let text = text_of(file)?;
    let read =
        Manifest::read(&text).map_err(|error| refused(file, "is refused", &error.problems))?;
    for warning in &read.warnings {
        context.printer.warning(&format!("{}: {warning}", shown(file)));
    }
    let (theirs, ours) = (&read.manifest.namespace, &context.settings.namespace);
    if context.settings.namespace_is_named && theirs != ours {
        let failure = Failure::usage(format!(
            "{} is for the namespace {theirs}, and --namespace or ZAEL_NAMESPACE names {ours}",
            shown(file)
        ));
        return Err(failure.hint("the file decides: leave the namespace out, or change the file"));
    }
    Ok(read.manifest)
}

fn text_of(file: &Path) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    let read = if file == Path::new("-") {
        std::io::stdin().lock().take(BYTES_MAX + 1).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(file)
            .and_then(|found| found.take(BYTES_MAX + 1).read_to_end(&mut bytes))
    };
    read.map_err(|error| Failure::usage(format!("{} cannot be read: {error}", shown(file))))?;
    if bytes.len() as u64 > BYTES_MAX {
        let message = format!("{} is larger than {BYTES_MAX} bytes", shown(file));
        return Err(Failure::usage(message).hint("divide it into namespaces"));
    }
    String::from_utf8(bytes)
        .map_err(|error| Failure::usage(format!("{} is no UTF-8 text: {error}", shown(file))))
}

fn shown(file: &Path) -> String {
    if file == Path::new("-") { "standard input".into() } else { file.display().to_string() }
}

/// A file that is refused, with every reason.
fn refused(file: &Path, why: &str, problems: &[Problem]) -> Failure {
    let count = match problems.len() {
        1 => "1 mistake".to_owned(),
        count => format!("{count} mistakes"),
    };
    let message = format!("{} {why}: {count}; nothing was changed", shown(file));
    Failure::in_file(message, problems.iter().map(ToString::to_string).collect())
}

/// One change, for programs.
#[derive(Serialize)]
struct ChangeForm {
    change: &'static str,
    what: &'static str,
    level: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    entity_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource: Option<String>,
    before: Option<String>,
    after: Option<String>,
    effect: String,
    /// What goes along with a deleted entity.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    along: Vec<AlongForm>,
}

/// What is stored for an entity that is deleted, for programs.
#[derive(Serialize)]
struct AlongForm {
    level: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource: Option<String>,
    limits: Vec<String>,
    disabled: Option<FlagForm>,
}

impl From<&(Place, LevelConfig)> for AlongForm {
    fn from((place, stored): &(Place, LevelConfig)) -> AlongForm {
        AlongForm {
            level: place.level().source().as_str(),
            resource: place.resource.as_ref().map(ToString::to_string),
            limits: stored.limits.iter().map(ToString::to_string).collect(),
            disabled: stored.flag.map(FlagForm),
        }
    }
}

impl From<&Change> for ChangeForm {
    fn from(change: &Change) -> ChangeForm {
        let (place, (before, after)) = (change.place(), change.values());
        ChangeForm {
            change: change.sign().as_str(),
            what: change.what(),
            level: place.level().source().as_str(),
            entity_id: place.entity.map(|id| id.to_string()),
            resource: place.resource.map(|name| name.to_string()),
            before,
            after,
            effect: change.effect(),
            along: match change {
                Change::Delete { along, .. } => along.iter().map(AlongForm::from).collect(),
                _ => Vec::new(),
            },
        }
    }
}

/// An apply that has begun and not ended, for programs.
#[derive(Serialize)]
struct HeldForm {
    who: String,
    since: String,
    heard: String,
    /// Whether its process runs, where that can be known from here.
    runs: Option<bool>,
}

impl From<&Mark> for HeldForm {
    fn from(mark: &Mark) -> HeldForm {
        let runs = match fate(mark) {
            Fate::Runs => Some(true),
            Fate::Gone => Some(false),
            Fate::Unknown => None,
        };
        let (since, heard) = (rfc3339(mark.since()), rfc3339(mark.heard()));
        HeldForm { who: mark.who.clone(), since, heard, runs }
    }
}

fn fate(mark: &Mark) -> Fate {
    mark.process.as_deref().map_or(Fate::Unknown, process::fate)
}

/// A plan, for programs.
#[derive(Serialize)]
struct PlanForm {
    namespace: String,
    /// The namespace is not there yet, and is registered first.
    registers: bool,
    /// An apply before has not ended.
    resumes: bool,
    /// Whose that is, unless it said that it stopped.
    held: Option<HeldForm>,
    added: usize,
    changed: usize,
    removed: usize,
    unchanged: usize,
    changes: Vec<ChangeForm>,
    /// What --prune would remove.
    kept: Vec<ChangeForm>,
}

impl From<&Compared> for PlanForm {
    fn from(compared: &Compared) -> PlanForm {
        let plan = &compared.plan;
        PlanForm {
            namespace: compared.namespace.to_string(),
            registers: compared.registers,
            resumes: plan.is_resumed(),
            held: plan.held().map(HeldForm::from),
            added: plan.count(Sign::Add),
            changed: plan.count(Sign::Change),
            removed: plan.count(Sign::Remove),
            unchanged: plan.unchanged,
            changes: plan.changes.iter().map(ChangeForm::from).collect(),
            kept: plan.kept.iter().map(ChangeForm::from).collect(),
        }
    }
}

fn tone(sign: Sign) -> Tone {
    match sign {
        Sign::Add => Tone::Good,
        Sign::Change => Tone::Warning,
        Sign::Remove => Tone::Bad,
    }
}

/// Below this many changes each is told with its effect; above, effects would hide the changes.
const EFFECTS_MAX: usize = 200;

/// The changes of a plan, one by one, and their number.
fn text(compared: &Compared, is_done: bool) -> Text {
    let plan = &compared.plan;
    let mut lines = Vec::new();
    if compared.registers {
        lines.push(Cell::toned(format!("+ namespace {}", compared.namespace), Tone::Good));
    }
    let has_effects = plan.changes.len() <= EFFECTS_MAX;
    for change in &plan.changes {
        lines.push(Cell::toned(change, tone(change.sign())));
        lines.extend(along(change));
        if has_effects {
            lines.push(Cell::toned(format!("    {}", change.effect()), Tone::Dim));
        }
    }
    let (add, change, remove) =
        (plan.count(Sign::Add), plan.count(Sign::Change), plan.count(Sign::Remove));
    let numbers = match is_done {
        true => format!("{add} added, {change} changed, {remove} removed"),
        false => format!("{add} to add, {change} to change, {remove} to remove"),
    };
    lines.push(Cell::plain(format!("{numbers}, {} as in the file", plan.unchanged)));
    Text::new().lines(lines)
}

/// What goes along with a deleted entity, each on a line of its own.
fn along(change: &Change) -> impl Iterator<Item = Cell> {
    change.along().into_iter().map(|line| Cell::toned(format!("    with it - {line}"), Tone::Bad))
}

/// What was managed, is no longer in the file, and stays.
fn note_about_kept(context: &Context<'_>, plan: &Plan) {
    const NAMED_MAX: usize = 5;
    if plan.kept.is_empty() {
        return;
    }
    let named: Vec<String> =
        plan.kept.iter().take(NAMED_MAX).map(|change| change.place().to_string()).collect();
    let more = match plan.kept.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    context.printer.note(&format!(
        "no longer in the file, and kept without --prune: {}{more}",
        named.join(", ")
    ));
}

/// An apply before that has not ended: what is known of it.
fn note_about_resumption(context: &Context<'_>, plan: &Plan) {
    if !plan.is_resumed() {
        return;
    }
    let note = match plan.held().map(|mark| (mark, fate(mark))) {
        Some((mark, Fate::Runs)) => {
            let (who, since) = (&mark.who, rfc3339(mark.since()));
            format!("an apply of {who} is at work since {since}; this is what it has not made yet")
        }
        Some((mark, Fate::Unknown)) => format!(
            "an apply of {} has begun at {} and not ended, and was last heard of at {}: it is at \
             work, or was cut off; `limits apply` finds out, and goes on where it stopped",
            mark.who,
            rfc3339(mark.since()),
            rfc3339(mark.heard())
        ),
        Some((_, Fate::Gone)) | None => {
            let goes_on = match context.access {
                Access::SetsUp => "this one goes on where it stopped",
                Access::Looks | Access::Changes => "`limits apply` goes on where it stopped",
            };
            format!("the last apply was cut off; {goes_on}")
        }
    };
    context.printer.note(&note);
}
