//! The local engine, `zae-limiter-local`: found, started, asked and stopped. It is a program of its
//! own, so all that passes between us is a command line, a folder with its files, and its control
//! endpoint. There is one per user: the folder says where it is, and only its own answer says that
//! it runs.

mod binary;
mod control;
mod folder;
mod log;
mod process;
mod workers;

pub(crate) use binary::Search;
pub(crate) use control::{Health, TableForm};
pub(crate) use folder::{Folder, State};
pub(crate) use log::{Follower, tail};
pub(crate) use process::{Order, Started, Tie, last_words, start, stop, wait_until_free};
pub(crate) use workers::{
    Order as WorkersOrder, Report, Supervisor, TICK, WorkerForm, give as give_workers,
    order as order_workers, stop as stop_workers, worker_lock,
};

use crate::error::Failure;

/// What the program is called.
pub(crate) const NAME: &str = "zae-limiter-local";

/// Whether the engine of this user runs.
#[derive(Debug)]
pub(crate) enum Presence {
    /// It answers.
    Running(State, Health),
    /// It holds its data and does not answer, or not as it should: why.
    Silent(State, String),
    /// It does not run, or was never started.
    Stopped,
}

/// Asks the engine that the folder knows of.
pub(crate) fn look(folder: &Folder) -> anyhow::Result<Presence> {
    let Some(state) = folder.state()? else { return Ok(Presence::Stopped) };
    Ok(match control::health(state.port) {
        Ok(health) if health.pid == state.pid => Presence::Running(state, health),
        Err(control::Silence::Odd(why)) if folder::in_use(state.data.as_ref()) => {
            Presence::Silent(state, why)
        }
        // Nobody is there, or somebody else by now.
        Ok(_) | Err(_) => Presence::Stopped,
    })
}

/// What to say about an engine that holds its data and does not answer.
pub(crate) fn silent(state: &State, why: &str) -> Failure {
    let failure = Failure::engine(format!(
        "the engine (process {}) does not answer at {}: {why}",
        state.pid,
        endpoint(state.port)
    ));
    failure.hint(format!(
        "try again, or end process {}; what it has answered is on the disk",
        state.pid
    ))
}

/// Whether anything of ours answers there.
pub(crate) fn answers(port: u16) -> bool {
    control::health(port).is_ok()
}

/// Whether somebody listens there who is none of ours.
pub(crate) fn is_other(port: u16) -> bool {
    matches!(control::health(port), Err(control::Silence::Odd(_)))
}

/// Where an engine on this port is reached.
pub(crate) fn endpoint(port: u16) -> String {
    format!("http://127.0.0.1:{port}")
}
