//! `local up`.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use serde::Serialize;
use zae_limiter::{Clock, SystemClock};

use super::shared::local::{Local, REGION};
use crate::args::local::{LocalUpArgs, PORT};
use crate::args::value::DynamoPlace;
use crate::dynamodb;
use crate::engine::{self, Folder, Follower, Health, Order, Presence, Started, State, Tie};
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
    let form = Form::new(local, &folder, &state, &health, started.is_some());
    let attached = started.filter(|_| args.foreground);
    local.printer.answer(&form, &form.text(attached.is_some()))?;
    match attached {
        Some(started) => attend(local, &folder, started).await,
        None => Ok(Exit::Ok),
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
    let region = local.globals.region.clone().or_else(|| local.environment.region());
    let place = DynamoPlace {
        stack: stack.to_owned(),
        region: Some(region.unwrap_or_else(|| REGION.into())),
        endpoint_url: Some(endpoint.clone()),
    };
    let created = dynamodb::create_stack(&place);
    Progress::during(local.printer, "creating the stack", created).await.with_context(|| {
        format!("the engine runs at {endpoint}, but the stack {stack} could not be created in it")
    })
}

/// Passes on what the engine says, until it ends. It ends with us, too: it holds the other end of
/// its standard input.
async fn attend(local: &Local<'_>, folder: &Folder, mut started: Started) -> anyhow::Result<Exit> {
    let log: PathBuf = folder.log();
    let mut follower = Follower::at(&log, started.log_start)
        .with_context(|| format!("{} could not be read", log.display()))?;
    let clock = SystemClock::new();
    let status = loop {
        // Asked before the log is read, so that nothing it said is missed.
        let ended = started.child.try_wait()?;
        follower.lines()?.iter().for_each(|line| local.printer.engine(line));
        match ended {
            Some(status) => break status,
            None => clock.sleep(TICK).await,
        }
    };
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
