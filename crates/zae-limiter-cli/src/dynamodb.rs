//! The way to a DynamoDB table: the only file of the command line that knows the backend.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use zae_limiter::dynamodb::sdk::{
    Builder, StackStatus, StreamState, TableOptions, WorkerStatus, create_table,
};
use zae_limiter::dynamodb::{DynamoStore, Hottest, Operator, Versions};
use zae_limiter::{
    Clock as _, Error, StoreError, StoreErrorKind, SystemClock, TimeMs, UsageWindow,
};
use zae_limiter_aggregator::{Aggregator, SdkStreams, Settings as Counting, Table, Worker};

use crate::again::Again;
use crate::args::local::PORT;
use crate::args::value::DynamoPlace;
use crate::engine::{self, Presence};
use crate::error::Failure;
use crate::printer::Printer;
use crate::settings::{Environment, Settings, StorePlace};

/// Where a stack is when nobody says it.
const REGION: &str = "us-east-1";

/// How long connecting, and one request, may take. A service gives up sooner; a person at a
/// terminal, perhaps far from the region, would rather wait.
const PATIENCE: Duration = Duration::from_secs(3);

/// How long reaching a stack may take in all, credentials and retries included.
const REACH_MAX: Duration = Duration::from_secs(5);

/// What the address of an engine on this machine begins with.
const LOCAL: [&str; 2] = ["http://127.0.0.1:", "http://localhost:"];

/// The beginning of the message of a store that found no credentials.
const NO_CREDENTIALS: &str = "no AWS credentials found";

/// The same where there is no table.
const NO_TABLE: &str = "there is no such table";

/// Points the settings at the local engine if that has the stack and this machine has no AWS
/// credentials: nothing else can be meant then. With credentials the engine is named by
/// `--endpoint-url` or by `local env`.
pub(crate) fn prefer_local(settings: &mut Settings, environment: &Environment, printer: &Printer) {
    let StorePlace::Dynamo(place) = &mut settings.store else { return };
    if place.endpoint_url.is_some() || environment.knows_aws {
        return;
    }
    let Some(Ok(presence)) = environment.engine_folder().map(|folder| engine::look(&folder)) else {
        return;
    };
    match presence {
        Presence::Running(state, health)
            if health.tables.iter().any(|table| table.name == place.stack) =>
        {
            let endpoint = engine::endpoint(state.port);
            let stack = &place.stack;
            printer
                .note(&format!("{stack} is a stack of the local engine at {endpoint}; AWS credentials, or --endpoint-url, choose another"));
            place.endpoint_url = Some(endpoint);
            #[cfg(feature = "deploy")]
            {
                settings.services = None;
            }
        }
        // It may have the stack, and cannot say so. That is told if the stack is not found
        // elsewhere.
        Presence::Silent(state, why) => settings.silent_engine = Some(engine::silent(&state, &why)),
        Presence::Running(..) | Presence::Stopped => {}
    }
}

/// A handle on the table of a stack, bound to no namespace yet.
pub(crate) async fn registry(
    place: &DynamoPlace,
    settings: &Settings,
) -> anyhow::Result<DynamoStore> {
    reach(place, settings, builder(place).connect_registry()).await
}

/// The table of a stack as a whole.
pub(crate) async fn status(
    place: &DynamoPlace,
    settings: &Settings,
) -> anyhow::Result<StackStatus> {
    reach(place, settings, builder(place).status()).await
}

/// A handle on the namespace that was asked for.
pub(crate) async fn store(place: &DynamoPlace, settings: &Settings) -> anyhow::Result<DynamoStore> {
    let builder = builder(place).namespace(settings.namespace.as_str());
    reach(place, settings, builder.connect()).await
}

/// The table of a stack as a whole, whether this program can work on it or not.
pub(crate) async fn operator(place: &DynamoPlace, settings: &Settings) -> anyhow::Result<Operator> {
    let builder = builder(place);
    reach(place, settings, builder.operator()).await
}

/// The version record of a stack, if it has one.
pub(crate) async fn versions(
    place: &DynamoPlace,
    settings: &Settings,
) -> anyhow::Result<Option<Versions>> {
    let operator = operator(place, settings).await?;
    reach(place, settings, operator.versions()).await
}

/// How many hot buckets are shown.
const HOTTEST: usize = 10;

/// The buckets of the namespace that have shards, the hottest first.
pub(crate) async fn hottest(place: &DynamoPlace, settings: &Settings) -> anyhow::Result<Hottest> {
    Ok(store(place, settings).await?.hottest(HOTTEST).await.map_err(Error::from)?)
}

/// The windows that the worker counts.
const WINDOWS: [UsageWindow; 3] = [UsageWindow::Hourly, UsageWindow::Daily, UsageWindow::Monthly];

/// A worker that counts the usage of a stack from its stream, as `change` would have it.
pub(crate) async fn worker(
    place: &DynamoPlace,
    settings: &Settings,
    change: impl FnOnce(Counting) -> Counting,
) -> anyhow::Result<Worker> {
    let builder = builder(place);
    let connect = async { Ok((SdkStreams::connect(&builder).await?, builder.table().await?)) };
    let (streams, table) = reach(place, settings, connect).await?;
    let table: Arc<dyn Table> = Arc::new(table);
    let counting = change(Counting::new(&place.stack).windows(WINDOWS));
    let aggregator = Aggregator::new(Arc::clone(&table), counting);
    Ok(Worker::new(Arc::new(streams), table, aggregator))
}

/// Why a stack may have no usage to show, as it counts from the stream.
pub(crate) fn why_no_usage(
    place: &DynamoPlace,
    settings: &Settings,
    status: &StackStatus,
) -> String {
    let is_local = is_for_engine(place);
    let stack = &place.stack;
    match (&status.stream, status.worker) {
        (StreamState::Other(view), _) => format!(
            "usage is counted from a stream with NEW_AND_OLD_IMAGES, and that of {stack} shows {view}"
        ),
        (StreamState::Off, _) if is_local => {
            format!("usage is counted from a stream, and {stack} has none: {} adds it", up(place))
        }
        (StreamState::Off, _) => format!(
            "usage is counted from a stream, and {stack} has none: enable one with NEW_AND_OLD_IMAGES"
        ),
        (_, None) if is_local => {
            format!("no worker has counted the usage of {stack} yet: {} starts one", up(place))
        }
        (_, None) => format!(
            "no worker was seen on {stack}: unless a Lambda counts its usage, {} does",
            settings.again.command(&["aggregate"])
        ),
        (_, Some(worker)) if worker.is_silent(SystemClock::new().now()) => {
            worker_is_down(place, settings, worker)
        }
        (_, Some(worker)) => format!(
            "the worker of {stack} was seen {}s ago, {}s behind: nothing that matches was counted yet",
            seconds_ago(worker.seen_at),
            worker.behind_ms / 1_000
        ),
    }
}

/// What is said of a worker that gave no sign of life for two leases.
pub(crate) fn worker_is_down(
    place: &DynamoPlace,
    settings: &Settings,
    worker: WorkerStatus,
) -> String {
    let (stack, ago) = (&place.stack, seconds_ago(worker.seen_at));
    let down = format!("the worker of {stack} was last seen {ago}s ago and has probably ended");
    match is_for_engine(place) {
        true => format!("{down}: {} starts one", up(place)),
        false => {
            let aggregate = settings.again.command(&["aggregate"]);
            format!("{down}: unless a Lambda counts usage, {aggregate} does")
        }
    }
}

/// How long ago something was, in s.
pub(crate) fn seconds_ago(at: TimeMs) -> i64 {
    SystemClock::new().now().since(at).max(0) / 1_000
}

/// What comes of asking a stack, or what stands in the way.
pub(crate) async fn reach<T>(
    place: &DynamoPlace,
    settings: &Settings,
    work: impl Future<Output = Result<T, StoreError>>,
) -> anyhow::Result<T> {
    let failure = match within(work).await {
        Some(Ok(found)) => return Ok(found),
        Some(Err(error)) => told(place, settings, &error),
        None => silent(place, settings),
    };
    Err(or_local(place, settings, failure).into())
}

/// Makes the table of a stack with its stream, its version record and its first namespace, where
/// they are missing. Returns what stream the table has.
pub(crate) async fn create_stack(place: &DynamoPlace) -> anyhow::Result<StreamState> {
    let builder = builder(place);
    let table = builder.table().await.map_err(Error::from)?;
    let stream = create_table(&table, &TableOptions::new(), &SystemClock::new()).await;
    let stream = stream.map_err(Error::from)?;
    builder.create().await.map_err(Error::from)?;
    Ok(stream)
}

/// Where a stack is, in words.
pub(crate) fn region(place: &DynamoPlace) -> &str {
    place.region.as_deref().unwrap_or(REGION)
}

/// Which stack was asked, and where.
pub(crate) fn place(place: &DynamoPlace) -> String {
    match &place.endpoint_url {
        Some(url) => format!("stack {} at {url}", place.stack),
        None => format!("stack {} at dynamodb.{}.amazonaws.com", place.stack, region(place)),
    }
}

/// What to try when a stack does not answer.
pub(crate) fn hint(place: &DynamoPlace) -> String {
    match &place.endpoint_url {
        Some(url) if is_local(url) => {
            format!("{} starts the local engine with this stack", up(place))
        }
        Some(_) => "check the network and --endpoint-url".to_owned(),
        None => "check the network and --region".to_owned(),
    }
}

/// The command that starts the local engine where the stack is looked for.
fn up(place: &DynamoPlace) -> String {
    let port = place.endpoint_url.as_deref().and_then(port);
    let port = port.filter(|port| *port != PORT).map(|port| port.to_string());
    let words = ["local", "up", "--name", &place.stack]
        .into_iter()
        .chain(port.iter().flat_map(|port| ["--port", port]));
    Again::default().command(&words.collect::<Vec<_>>())
}

pub(crate) fn is_local(url: &str) -> bool {
    LOCAL.iter().any(|host| url.starts_with(host))
}

fn port(url: &str) -> Option<u16> {
    url.trim_end_matches('/').rsplit(':').next()?.parse().ok()
}

/// Whether the local engine is what answers there, or could be started there: an emulator of AWS is
/// on this machine, too.
fn is_for_engine(place: &DynamoPlace) -> bool {
    let is_other = |url: &str| port(url).is_some_and(engine::is_other);
    place.endpoint_url.as_deref().is_some_and(|url| is_local(url) && !is_other(url))
}

fn builder(place: &DynamoPlace) -> Builder {
    let mut builder =
        DynamoStore::builder(&place.stack, region(place)).timeouts(PATIENCE, PATIENCE);
    if let Some(shards) = place.shards_max {
        builder = builder.shards_max(shards);
    }
    match &place.endpoint_url {
        Some(url) => builder.endpoint_url(url),
        None => builder,
    }
}

/// What comes of it within [`REACH_MAX`].
pub(crate) async fn within<T>(work: impl Future<Output = T>) -> Option<T> {
    let clock = SystemClock::new();
    match select(pin!(work), clock.sleep(REACH_MAX)).await {
        Either::Left((answer, _)) => Some(answer),
        Either::Right(_) => None,
    }
}

/// The same failure with a hint at the local engine, where that has a stack of this name. AWS was
/// asked because this machine has credentials; a typical machine has both.
fn or_local(place: &DynamoPlace, settings: &Settings, failure: Failure) -> Failure {
    // The hint at missing credentials names `local env` already.
    if place.endpoint_url.is_some()
        || !settings.knows_aws
        || failure.to_string().starts_with(NO_CREDENTIALS)
    {
        return failure;
    }
    match settings.engine_folder.as_ref().map(engine::look) {
        Some(Ok(Presence::Running(state, health)))
            if health.tables.iter().any(|table| table.name == place.stack) =>
        {
            let (stack, endpoint) = (&place.stack, engine::endpoint(state.port));
            failure.hint(format!(
                "AWS was asked, because this machine has AWS credentials or profiles. The local engine has a stack {stack}: add \
                 --endpoint-url {endpoint}, or run `eval \"$(zae-limiter local env)\"`"
            ))
        }
        _ => failure,
    }
}

fn silent(place: &DynamoPlace, settings: &Settings) -> Failure {
    let message = format!("the table did not answer within {}s", REACH_MAX.as_secs());
    let failure = Failure::of_kind(StoreErrorKind::Unavailable, message);
    let engine = settings.engine_folder.as_ref().and_then(|folder| folder.state().ok().flatten());
    let is_engine = |url: &str| {
        let port = engine.as_ref().map(|state| format!(":{}", state.port));
        port.is_some_and(|port| url.trim_end_matches('/').ends_with(&port))
    };
    match &place.endpoint_url {
        Some(url) if is_local(url) && is_engine(url) => {
            failure.hint("`zae-limiter local status` says whether the local engine hangs")
        }
        Some(url) if is_local(url) => failure.hint(
            "check --endpoint-url: the engine that `zae-limiter local status` shows is not there",
        ),
        _ => failure.hint(hint(place)),
    }
}

/// What stands in the way of reaching a stack, with what to try. An invalid place is a usage error;
/// for a local one that does not answer or lacks the stack, the hint is to start it.
fn told(place: &DynamoPlace, settings: &Settings, error: &StoreError) -> Failure {
    let is_local = place.endpoint_url.as_deref().is_some_and(is_local);
    let is_without_credentials =
        error.kind() == StoreErrorKind::Denied && error.message().starts_with(NO_CREDENTIALS);
    match (&settings.silent_engine, error.kind()) {
        (Some(silent), kind) if is_without_credentials || kind == StoreErrorKind::NotFound => {
            return silent.clone();
        }
        _ => {}
    }
    match error.kind() {
        StoreErrorKind::Invalid => Failure::usage(error.message()),
        StoreErrorKind::Unavailable => Failure::store(error).hint(hint(place)),
        StoreErrorKind::NotFound if is_local && is_for_engine(place) => {
            Failure::store(error).hint(hint(place))
        }
        // An emulator of AWS, which has stacks.
        StoreErrorKind::NotFound
            if is_local && cfg!(feature = "deploy") && error.message().starts_with(NO_TABLE) =>
        {
            let deploy = settings.again.command(&["deploy"]);
            Failure::store(error).hint(format!("{deploy} makes the stack"))
        }
        StoreErrorKind::Internal if let Some(url) = &place.endpoint_url => Failure::store(error)
            .hint(format!("check --endpoint-url: is it DynamoDB that answers at {url}?")),
        _ if is_without_credentials => no_credentials(place, settings),
        _ => Failure::store(error),
    }
}

pub(crate) fn no_credentials(place: &DynamoPlace, settings: &Settings) -> Failure {
    let local = match settings.knows_aws {
        true => "for the local engine, `eval \"$(zae-limiter local env)\"` sets what is needed"
            .to_owned(),
        // Without credentials a running local stack would have been found: the engine or the stack
        // is missing.
        false => format!("or start the local engine with this stack: {}", up(place)),
    };
    let (why, remedy) = match &settings.profile {
        Some(profile) => (
            format!("the profile {profile}, which AWS_PROFILE names, has none or is not there"),
            "check ~/.aws/config and ~/.aws/credentials, or unset AWS_PROFILE",
        ),
        None => (
            "not in variables, not in profiles, and no role is attached to this machine".to_owned(),
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
        ),
    };
    Failure::of_kind(StoreErrorKind::Denied, format!("{NO_CREDENTIALS}: {why}"))
        .hint(format!("{remedy}; {local}"))
}
