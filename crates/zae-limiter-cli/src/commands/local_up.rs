//! `local up`.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use serde::Serialize;
use zae_limiter::dynamodb::sdk::StreamState;
use zae_limiter::{Clock, SystemClock};

use super::shared::local::{Local, REGION};
use crate::args::local::{LocalUpArgs, PORT};
use crate::args::value::DynamoPlace;
use crate::dynamodb;
use crate::engine::{
    self, Folder, Follower, Health, Order, Presence, Started, State, Supervisor, Tie, WorkersOrder,
};
use crate::error::Failure;
use crate::escape::quoted;
use crate::exit::Exit;
use crate::progress::Progress;
use crate::table::{Cell, Text, Tone};
use crate::view;

/// How often a command in the foreground looks at what the engine says.
const TICK: Duration = Duration::from_millis(100);
/// What DynamoDB allows in the name of a table, which is that of the stack.
const STACK_LENGTHS: std::ops::RangeInclusive<usize> = 3..=255;

#[derive(Serialize)]
struct Form {
    endpoint: String,
    pid: u32,
    version: String,
    /// False if it ran already.
    started: bool,
    data: String,
    log: String,
    stack: Option<String>,
    /// The process that keeps the workers alive, which count usage; none without a stack.
    worker_pid: Option<u32>,
    next_commands: Vec<String>,
}

pub(crate) async fn run(local: &Local<'_>, args: &LocalUpArgs) -> anyhow::Result<Exit> {
    let stack = local.globals.stack.as_deref();
    stack.map_or(Ok(()), check_stack)?;
    let folder = local.folder()?;
    let lock = folder.lock()?;
    let (state, health, started) = match engine::look(&folder)? {
        Presence::Running(state, health) => {
            check_running(&state, args)?;
            local.printer.note(&format!("the engine is already running (process {})", state.pid));
            (state, health, None)
        }
        Presence::Silent(state, why) => return Err(engine::silent(&state, &why).into()),
        Presence::Stopped => {
            let started = start(local, &folder, args).await?;
            (started.state.clone(), started.health.clone(), Some(started))
        }
    };
    drop(lock);

    if let Some(stack) = stack {
        create(local, stack, &state).await?;
    }
    let attached = started.is_some() && args.foreground;
    let workers = match order(local, &folder, &state, &health)? {
        Some(order) => Workers::begin(local, &folder, &order, attached).await?,
        None => Workers { pid: None, supervisor: None },
    };
    let mut form = Form::new(local, &folder, &state, &health, started.is_some());
    form.worker_pid = workers.pid;
    let attached = started.filter(|_| args.foreground);
    local.printer.answer(&form, &form.text(attached.is_some()))?;
    match attached {
        Some(started) => attend(local, &folder, started, workers.supervisor).await,
        None => Ok(Exit::Ok),
    }
}

/// Whose usage is counted from here on; none where no stack is.
fn order(
    local: &Local<'_>,
    folder: &Folder,
    state: &State,
    health: &Health,
) -> anyhow::Result<Option<WorkersOrder>> {
    let created = local.globals.stack.as_deref();
    let mut stacks = folder.stacks_with(created)?;
    // A stack of other data, or one that was deleted, has nothing to count.
    stacks.retain(|stack| {
        created == Some(stack.as_str()) || health.tables.iter().any(|table| table.name == *stack)
    });
    let order = WorkersOrder { port: state.port, region: region(local), stacks };
    Ok((!order.stacks.is_empty()).then_some(order))
}

/// Who counts usage.
struct Workers {
    pid: Option<u32>,
    /// The supervisor, where it is this process.
    supervisor: Option<Supervisor>,
}

impl Workers {
    /// Starts what counts usage. An engine without it is still of use, so a failure is only told.
    async fn begin(
        local: &Local<'_>,
        folder: &Folder,
        order: &WorkersOrder,
        is_attached: bool,
    ) -> anyhow::Result<Workers> {
        let binary = local.environment.engine.own.clone();
        let binary = binary.context("this program does not know where it is")?;
        let _lock = folder.lock()?;
        if is_attached {
            engine::give_workers(folder, order)?;
            let supervisor = Supervisor::begin(folder, &binary)?;
            return Ok(Workers { pid: Some(std::process::id()), supervisor });
        }
        let started = engine::order_workers(folder, &binary, order);
        Ok(match Progress::during(local.printer, "starting the worker", started).await {
            Ok(report) => Workers { pid: Some(report.pid), supervisor: None },
            Err(error) => {
                local.printer.warning(&format!("usage is not counted: {error:#}"));
                Workers { pid: None, supervisor: None }
            }
        })
    }
}

impl Form {
    fn new(
        local: &Local<'_>,
        folder: &Folder,
        state: &State,
        health: &Health,
        started: bool,
    ) -> Form {
        let stack = local.globals.stack.clone();
        let program = quoted(&local.environment.program());
        let name = stack.as_deref().unwrap_or("demo");
        let (prepare, limit) = if stack.is_none() {
            (format!("local up --name {name}"), " --limit rpm:100")
        } else {
            (format!("--name {name} system set-defaults --limit rpm:100"), "")
        };
        let next_commands = vec![
            format!("eval \"$({program} local env)\""),
            format!("{program} {prepare}"),
            format!("{program} --name {name} acquire key-1 gpt-4 --consume rpm=1{limit}"),
        ];
        Form {
            endpoint: engine::endpoint(state.port),
            pid: state.pid,
            version: health.version.clone(),
            started,
            data: state.data.clone(),
            log: folder.log().display().to_string(),
            stack,
            worker_pid: None,
            next_commands,
        }
    }

    fn text(&self, attached: bool) -> Text {
        let mut fields = vec![
            ("endpoint", Cell::toned(&self.endpoint, Tone::Strong)),
            ("process", Cell::plain(self.pid)),
        ];
        if let Some(stack) = &self.stack {
            fields.push(("stack", Cell::plain(stack)));
        }
        fields.extend(self.worker_pid.map(|pid| {
            ("workers", Cell::plain(format!("count usage; supervisor: process {pid}")))
        }));
        fields.extend([("data", Cell::plain(&self.data)), ("log", Cell::plain(&self.log))]);
        let mut commands = view::next_commands(&self.next_commands);
        if attached {
            commands.push((
                "",
                Cell::toned("in another terminal; Ctrl-C here stops the engine", Tone::Dim),
            ));
        }
        Text::new().fields(fields).fields(commands)
    }
}

/// What can be known to be wrong before anything is started.
fn check_stack(stack: &str) -> Result<(), Failure> {
    let known = |character: char| character.is_ascii_alphanumeric() || "_.-".contains(character);
    if STACK_LENGTHS.contains(&stack.len()) && stack.chars().all(known) {
        return Ok(());
    }
    let failure = Failure::usage(format!(
        "invalid value '{stack}' for '--name <STACK>': it is no name of a table"
    ));
    Err(failure.hint("use 3 to 255 letters, digits and _ . -"))
}

/// One that runs elsewhere, or on other data, is not the one that was asked for.
fn check_running(state: &State, args: &LocalUpArgs) -> anyhow::Result<()> {
    let conflict = |what: String, flag: String| {
        let failure = Failure::conflict(format!(
            "the engine is already running (process {}), {what}",
            state.pid
        ));
        failure.hint(format!("pass {flag}, or stop it first with `zae-limiter local down`"))
    };
    if let Some(wanted) = args.port.filter(|wanted| *wanted != 0 && *wanted != state.port) {
        let port = state.port;
        return Err(conflict(
            format!("on port {port} and not on {wanted}"),
            format!("--port {port}"),
        )
        .into());
    }
    match &args.data {
        Some(data) if absolute(data)? != state.data => {
            Err(conflict(format!("on the data in {}", state.data), "no --data".into()).into())
        }
        _ => Ok(()),
    }
}

/// The path as the engine knows it, from wherever it is asked for.
fn absolute(data: &Path) -> anyhow::Result<String> {
    let path = std::path::absolute(data)
        .with_context(|| format!("--data {} is no path", data.display()))?;
    let text = path.to_str().map(str::to_owned);
    Ok(text
        .ok_or_else(|| Failure::usage(format!("--data {} is not valid UTF-8", path.display())))?)
}

async fn start(local: &Local<'_>, folder: &Folder, args: &LocalUpArgs) -> anyhow::Result<Started> {
    let binary = local.environment.engine.find()?;
    let data = absolute(&args.data.clone().unwrap_or_else(|| folder.data()))?;
    if let Some(folder) = Path::new(&data).parent().filter(|folder| !folder.is_dir()) {
        let failure =
            Failure::not_found(format!("--data {data}: there is no folder {}", folder.display()));
        return Err(failure.hint("create it first").into());
    }
    let tie = if args.foreground { Tie::Attached } else { Tie::Detached };
    let start = async {
        engine::wait_until_free(&data).await?;
        let port = args.port.unwrap_or_else(|| usual_port(folder));
        check_port(port)?;
        engine::start(folder, &Order { binary: &binary, port, data: &data, tie }).await
    };
    Progress::during(local.printer, "starting the engine", start).await
}

/// Where the engine before was, if nobody else is there now, and else the port everybody uses: a
/// shell that was pointed at the engine before still finds it.
fn usual_port(folder: &Folder) -> u16 {
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    folder.last_port().filter(is_free).unwrap_or(PORT)
}

/// Looks before the engine does, to say in our words that the port is taken. If another program
/// takes the port in between, the engine says so.
fn check_port(port: u16) -> Result<(), Failure> {
    match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            let who = if engine::answers(port) {
                "a local engine that was not started from here"
            } else {
                "another program"
            };
            let failure = Failure::conflict(format!("--port {port} is in use by {who}"));
            Err(failure.hint("choose another port, or 0 for any free one"))
        }
        Err(error) => Err(Failure::usage(format!("--port {port} cannot be used: {error}"))
            .hint("choose another port")),
    }
}

async fn create(local: &Local<'_>, stack: &str, state: &State) -> anyhow::Result<()> {
    let endpoint = engine::endpoint(state.port);
    let place = DynamoPlace {
        stack: stack.to_owned(),
        region: Some(region(local)),
        endpoint_url: Some(endpoint.clone()),
        shards_max: crate::settings::shards_max(local.environment)?,
    };
    let created = dynamodb::create_stack(&place);
    let created = Progress::during(local.printer, "creating the stack", created).await;
    let stream = created.with_context(|| {
        format!("the engine runs at {endpoint}, but the stack {stack} could not be created in it")
    })?;
    match stream {
        StreamState::Added => local.printer.note(&format!(
            "the stack {stack} had no stream and has one now: usage is counted from here on"
        )),
        StreamState::Other(view) => local.printer.warning(&format!(
            "the stream of the stack {stack} shows {view}, and usage is counted only from one with \
             NEW_AND_OLD_IMAGES; disable it, then `local up` adds the right one"
        )),
        _ => {}
    }
    Ok(())
}

fn region(local: &Local<'_>) -> String {
    let named = local.globals.region.clone().or_else(|| local.environment.region());
    named.unwrap_or_else(|| REGION.into())
}

/// Passes on what the engine says, until it ends. It ends with us, too: it holds the other end of
/// its standard input.
async fn attend(
    local: &Local<'_>,
    folder: &Folder,
    mut started: Started,
    mut supervisor: Option<Supervisor>,
) -> anyhow::Result<Exit> {
    let log: PathBuf = folder.log();
    let mut follower = Follower::at(&log, started.log_start)
        .with_context(|| format!("{} could not be read", log.display()))?;
    let clock = SystemClock::new();
    let status = loop {
        // Asked before the log is read, so that nothing it said is missed.
        let ended = started.child.try_wait()?;
        follower.lines()?.iter().for_each(|line| local.printer.engine(line));
        let is_kept = supervisor.as_mut().map(Supervisor::tick).transpose()?;
        if is_kept == Some(false) {
            supervisor = None;
        }
        match ended {
            Some(status) => break status,
            None => clock.sleep(TICK).await,
        }
    };
    drop(supervisor);
    folder.forget(started.state.pid);
    if !status.success() {
        return Err(engine::last_words(
            folder,
            started.log_start,
            format!("the engine ended ({status})"),
        ));
    }
    local.printer.note("the engine has stopped");
    Ok(Exit::Ok)
}
