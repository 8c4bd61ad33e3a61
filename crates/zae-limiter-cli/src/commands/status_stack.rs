//! `status` of a stack: its table as a whole, and what is disabled in the namespace.

use serde::Serialize;
#[cfg(feature = "deploy")]
use zae_limiter::StoreErrorKind;
use zae_limiter::domain::rfc3339;
use zae_limiter::dynamodb::Hottest;
use zae_limiter::dynamodb::sdk::{StackStatus, StreamState, WorkerStatus};
use zae_limiter::{Clock, SystemClock};

use super::shared::flags::{self, Flags};
use crate::args::value::DynamoPlace;
use crate::context::Context;
#[cfg(feature = "deploy")]
use crate::error::Failure;
use crate::exit::Exit;
use crate::progress::Progress;
use crate::table::{Cell, Table, Text, Tone};
use crate::{dynamodb, view};

/// What a stream shows from which usage can be counted.
const BOTH_IMAGES: &str = "NEW_AND_OLD_IMAGES";
/// A worker that is further behind is told with a warning.
const LATE_AFTER_SECONDS: i64 = 60;
/// What the table says when it serves requests.
const ACTIVE: &str = "ACTIVE";

#[derive(Serialize)]
struct Form {
    stack: String,
    region: String,
    endpoint: Option<String>,
    state: String,
    /// What CloudFormation says; null where there is no such stack, or nobody to ask.
    stack_status: Option<String>,
    /// The state of the function that counts usage; null where there is none.
    function_status: Option<String>,
    /// How far the function is behind the stream, by CloudWatch; null where that is not known, or
    /// when the function was given nothing for a quarter of an hour.
    stream_age_ms: Option<i64>,
    schema_version: Option<String>,
    /// The release of the function; null where there is none.
    function_version: Option<String>,
    /// How long one consistent read of the table took.
    latency_ms: f64,
    /// As DynamoDB counted them some hours ago.
    items: u64,
    bytes: u64,
    on_demand: bool,
    expires: Option<bool>,
    /// True when usage can be counted from the stream.
    stream: bool,
    /// What the stream shows; null without one.
    stream_view: Option<String>,
    /// The workers that count usage from it; null when none was seen for three days.
    worker: Option<WorkerForm>,
    indexes: Vec<IndexForm>,
    /// Buckets of the namespace that have shards, the hottest first.
    hottest: Vec<HotForm>,
    /// False where not all buckets were looked at.
    hottest_complete: bool,
    namespace: String,
    #[serde(flatten)]
    flags: Flags,
    /// Null when the table serves and the state of the stack could not be found out.
    sound: Option<bool>,
}

#[derive(Serialize)]
struct WorkerForm {
    seen_at: String,
    seen_seconds_ago: i64,
    behind_ms: i64,
    stream_shards: usize,
    usage_gaps: i64,
    /// True when it gave no sign of life for two leases.
    silent: bool,
}

impl WorkerForm {
    fn new(worker: WorkerStatus) -> WorkerForm {
        WorkerForm {
            seen_at: rfc3339(worker.seen_at),
            seen_seconds_ago: dynamodb::seconds_ago(worker.seen_at),
            behind_ms: worker.behind_ms,
            stream_shards: worker.stream_shards,
            usage_gaps: worker.gaps,
            silent: worker.is_silent(SystemClock::new().now()),
        }
    }

    fn cell(&self) -> Cell {
        let (ago, behind) = (self.seen_seconds_ago, self.behind_ms / 1_000);
        let gaps = match self.usage_gaps {
            0 => String::new(),
            gaps => format!("; {gaps} gaps: records were gone before they were counted"),
        };
        let is_late = self.silent || behind > LATE_AFTER_SECONDS;
        let tone = if is_late || self.usage_gaps > 0 { Tone::Warning } else { Tone::Good };
        let down = if self.silent { ", probably down" } else { "" };
        Cell::toned(format!("seen {ago}s ago{down}, {behind}s behind{gaps}"), tone)
    }
}

#[derive(Serialize)]
struct HotForm {
    entity_id: String,
    resource: String,
    shards: usize,
    writes_per_second: f64,
}

#[derive(Serialize)]
struct IndexForm {
    name: String,
    state: String,
}

pub(crate) async fn run(context: &Context<'_>, place: &DynamoPlace) -> anyhow::Result<Exit> {
    let status = match dynamodb::status(place, context.settings).await {
        Ok(status) => status,
        #[cfg(feature = "deploy")]
        Err(error) => return Err(without_table(context, place, error).await),
        #[cfg(not(feature = "deploy"))]
        Err(error) => return Err(error),
    };
    // A table that was never initialised has no namespaces to look into, and its state is worth
    // knowing all the same.
    let (flags, hottest) = match status.schema_version {
        Some(_) => {
            let flags = flags::of_namespace(&context.open().await?).await?;
            (flags, hottest(context, place).await)
        }
        None => (Flags::default(), Hottest::default()),
    };
    let worker = status.worker;
    let clock = SystemClock::new();
    let began = clock.monotonic();
    let versions = dynamodb::versions(place, context.settings).await?;
    let latency = clock.monotonic().saturating_sub(began);
    let mut form = form(context, place, status, flags, hottest);
    form.function_version = versions.and_then(|versions| versions.function);
    form.latency_ms = (latency.as_secs_f64() * 10_000.0).round() / 10.0;
    #[cfg(feature = "deploy")]
    deployed(context, place, &mut form).await;
    context.printer.answer(&form, &text(&form))?;
    if let Some(worker) = worker.filter(|worker| worker.is_silent(SystemClock::new().now())) {
        context.printer.warning(&dynamodb::worker_is_down(place, context.settings, worker));
    }
    if form.schema_version.is_none() {
        context.printer.warning("the table is not initialised: it has no version record");
    }
    if form.sound.is_none() {
        context.printer.warning("nobody knows whether the stack is sound");
    }
    Ok(if form.sound == Some(true) { Exit::Ok } else { Exit::Error })
}

/// What is said of a table that is not there: where it has a stack, what has become of that.
#[cfg(feature = "deploy")]
async fn without_table(
    context: &Context<'_>,
    place: &DynamoPlace,
    error: anyhow::Error,
) -> anyhow::Error {
    let is_missing = |failure: &Failure| failure.kind == StoreErrorKind::NotFound.as_str();
    if !error.downcast_ref::<Failure>().is_some_and(is_missing) {
        return error;
    }
    let found = super::shared::stacks::look(place, context.settings).await;
    let Some((state, _)) = found.stack else { return error };
    let again = &context.settings.again;
    let hint = match state.ends_with("_IN_PROGRESS") {
        true => "CloudFormation is at work: ask again when it is done".to_owned(),
        false => format!(
            "{} removes what is left of the stack, then {} makes it anew",
            again.command(&["delete"]),
            again.command(&["deploy"])
        ),
    };
    let message = format!("stack {} is {state}, and its table is not there", place.stack);
    Failure::not_found(message).hint(hint).into()
}

/// What CloudFormation says of the stack. A stack that failed is not sound, though its table may
/// serve.
#[cfg(feature = "deploy")]
async fn deployed(context: &Context<'_>, place: &DynamoPlace, form: &mut Form) {
    use super::shared::stacks::{STATE, look};
    let found = look(place, context.settings).await;
    if let Some((status, is_whole)) = found.stack {
        form.sound = form.sound.map(|sound| sound && is_whole);
        form.stack_status = Some(status);
    }
    form.function_status = found.function;
    form.stream_age_ms = found.stream_age_ms;
    for (what, why) in found.unknown {
        // What is unsound already stays so, whatever the stack is.
        if what == STATE && form.sound == Some(true) {
            form.sound = None;
        }
        context.printer.note(&format!("the {what} is not known: {why}"));
    }
}

/// The buckets with shards. A status without them is better than none.
async fn hottest(context: &Context<'_>, place: &DynamoPlace) -> Hottest {
    let search = dynamodb::hottest(place, context.settings);
    match Progress::during(context.printer, "looking for hot buckets", search).await {
        Ok(hottest) => {
            if !hottest.is_complete {
                let note = "there may be hotter buckets: the first 100 with shards were watched, in the order of keys, among the first 100000 keys";
                context.printer.note(note);
            }
            hottest
        }
        Err(error) => {
            context.printer.warning(&format!("hot buckets could not be looked for: {error}"));
            Hottest::default()
        }
    }
}

fn form(
    context: &Context<'_>,
    place: &DynamoPlace,
    status: StackStatus,
    flags: Flags,
    hottest: Hottest,
) -> Form {
    let is_active = |state: &str| state == ACTIVE;
    let sound = is_active(&status.state)
        && status.schema_version.is_some()
        // Not every engine tells.
        && status.indexes.iter().all(|(_, state)| is_active(state) || state == "unknown");
    Form {
        stack: place.stack.clone(),
        region: dynamodb::region(place).to_owned(),
        endpoint: place.endpoint_url.clone(),
        state: status.state,
        stack_status: None,
        function_status: None,
        stream_age_ms: None,
        function_version: None,
        latency_ms: 0.0,
        schema_version: status.schema_version,
        items: status.items,
        bytes: status.bytes,
        on_demand: status.on_demand,
        expires: status.expires,
        stream: matches!(status.stream, StreamState::On | StreamState::Added),
        stream_view: match status.stream {
            StreamState::On | StreamState::Added => Some(BOTH_IMAGES.to_owned()),
            StreamState::Other(view) => Some(view),
            _ => None,
        },
        worker: status.worker.map(WorkerForm::new),
        indexes: status
            .indexes
            .into_iter()
            .map(|(name, state)| IndexForm { name, state })
            .collect(),
        hottest_complete: hottest.is_complete,
        hottest: hottest
            .buckets
            .into_iter()
            .map(|bucket| HotForm {
                entity_id: bucket.entity.to_string(),
                resource: bucket.resource.to_string(),
                shards: bucket.shards,
                writes_per_second: (bucket.writes_per_second * 10.0).round() / 10.0,
            })
            .collect(),
        namespace: context.settings.namespace.to_string(),
        flags,
        sound: Some(sound),
    }
}

fn stream_age(ms: i64) -> Cell {
    let is_late = ms > LATE_AFTER_SECONDS * 1_000;
    let tone = if is_late { Tone::Warning } else { Tone::Good };
    Cell::toned(format!("the function is {:.1}s behind", ms as f64 / 1_000.0), tone)
}

fn stream(form: &Form) -> Cell {
    match (&form.stream_view, form.stream) {
        (None, _) => Cell::toned("no: usage is not counted", Tone::Warning),
        (Some(_), true) => Cell::plain("yes"),
        (Some(view), false) => {
            Cell::toned(format!("{view}: usage is counted from {BOTH_IMAGES} only"), Tone::Warning)
        }
    }
}

fn text(form: &Form) -> Text {
    let toned =
        |state: &str| Cell::toned(state, if state == ACTIVE { Tone::Good } else { Tone::Warning });
    let yes = |yes: bool| if yes { "yes" } else { "no" };
    let mut fields =
        vec![("stack", Cell::plain(&form.stack)), ("region", Cell::plain(&form.region))];
    fields.extend(form.endpoint.as_ref().map(|endpoint| ("endpoint", Cell::plain(endpoint))));
    fields.extend([
        ("state", toned(&form.state)),
        ("latency", Cell::plain(format!("{} ms", form.latency_ms))),
    ]);
    let complete = |state: &str| {
        let is_good = state.ends_with("_COMPLETE") && !state.starts_with("ROLLBACK");
        Cell::toned(state, if is_good { Tone::Good } else { Tone::Warning })
    };
    fields.extend(form.stack_status.as_deref().map(|state| ("deployment", complete(state))));
    fields.extend(form.function_status.as_deref().map(|state| ("function", complete(state))));
    fields.extend(
        form.function_version.as_ref().map(|version| ("function version", Cell::plain(version))),
    );
    fields.extend([
        ("schema", Cell::plain(form.schema_version.as_deref().unwrap_or("none"))),
        ("items", Cell::plain(format!("{} (counted by DynamoDB every few hours)", form.items))),
        ("size", Cell::plain(view::bytes(form.bytes))),
        ("billing", Cell::plain(if form.on_demand { "on demand" } else { "provisioned" })),
        ("expiry", Cell::plain(form.expires.map_or("not known: no permission to ask", yes))),
        ("stream", stream(form)),
    ]);
    fields.extend(form.stream_age_ms.map(|age| ("stream age", stream_age(age))));
    fields.extend([
        (
            "worker",
            match (&form.worker, &form.function_status) {
                (Some(worker), _) => worker.cell(),
                (None, Some(_)) => Cell::plain("none, the function counts usage"),
                (None, None) => Cell::plain("none was seen"),
            },
        ),
        ("namespace", Cell::plain(&form.namespace)),
    ]);
    fields.extend(form.flags.fields());
    let mut table = Table::new(["INDEX", "STATE"]);
    form.indexes
        .iter()
        .for_each(|index| table.row([Cell::plain(&index.name), toned(&index.state)]));
    let text = Text::new().fields(fields).table(table);
    if form.hottest.is_empty() {
        return text;
    }
    let mut hottest = Table::new(["HOT BUCKET OF", "RESOURCE", "SHARDS:", "TAKES+FAILED/S:"]);
    for bucket in &form.hottest {
        hottest.row([
            Cell::plain(&bucket.entity_id),
            Cell::plain(&bucket.resource),
            Cell::plain(bucket.shards),
            Cell::plain(format!("{:.1}", bucket.writes_per_second)),
        ]);
    }
    text.table(hottest)
}
