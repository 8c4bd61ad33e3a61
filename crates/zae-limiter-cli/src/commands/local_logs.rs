//! `local logs`.

use std::io::ErrorKind;
use std::time::Duration;

use anyhow::Context as _;
use serde::Serialize;
use zae_limiter::{Clock, SystemClock};

use super::shared::local::Local;
use crate::args::Output;
use crate::args::local::LocalLogsArgs;
use crate::engine::{self, Folder, Follower, Presence};
use crate::error::Failure;
use crate::exit::Exit;
use crate::table::Text;

/// How often is looked at what was added.
const TICK: Duration = Duration::from_millis(200);
/// How many of those pass between two looks at whether the engine still runs.
const TICKS: u32 = 5;

#[derive(Serialize)]
struct Form {
    log: String,
    lines: Vec<String>,
}

pub(crate) async fn run(local: &Local<'_>, args: LocalLogsArgs) -> anyhow::Result<Exit> {
    let folder = local.folder()?;
    let log = if args.worker { folder.worker_log() } else { folder.log() };
    let (mut lines, follower) = match engine::tail(&log, args.tail.try_into().unwrap_or(usize::MAX))
    {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let failure = Failure::not_found(format!("there is no log {}", log.display()));
            let first = match args.worker {
                true => "the first `zae-limiter local up --name STACK` begins it",
                false => "the first `zae-limiter local up` begins it",
            };
            return Err(failure.hint(first).into());
        }
        result => result.with_context(|| format!("{} could not be read", log.display()))?,
    };
    if args.follow {
        if local.printer.lines(&lines)? {
            follow(local, &folder, follower).await?;
        }
        return Ok(Exit::Ok);
    }
    lines.extend(follower.rest());
    if local.printer.looks().output == Output::Json {
        local.printer.answer(&Form { log: log.display().to_string(), lines }, &Text::new())?;
    } else {
        local.printer.lines(&lines)?;
    }
    Ok(Exit::Ok)
}

/// Goes on until the engine stops, or until nobody reads any more.
async fn follow(local: &Local<'_>, folder: &Folder, mut follower: Follower) -> anyhow::Result<()> {
    let clock = SystemClock::new();
    let mut running = true;
    while running {
        // Asked before the log is read, so that its last words are not missed.
        running = !matches!(engine::look(folder)?, Presence::Stopped);
        for _ in 0..TICKS {
            let lines = follower.lines().context("the log could not be read")?;
            if !local.printer.lines(&lines)? {
                return Ok(());
            }
            if !running {
                break;
            }
            clock.sleep(TICK).await;
        }
    }
    local.printer.note("the engine is not running");
    Ok(())
}
