//! `local down`.

use serde::Serialize;

use super::shared::local::Local;
use crate::engine::{self, Presence, State};
use crate::exit::Exit;
use crate::progress::Progress;
use crate::table::Text;

#[derive(Serialize)]
struct Form {
    /// False if it did not run.
    stopped: bool,
    pid: Option<u32>,
    data: Option<String>,
}

pub(crate) async fn run(local: &Local<'_>) -> anyhow::Result<Exit> {
    let folder = local.folder()?;
    // Before the first start there is no folder, and none is created to say so.
    let found = if folder.state()?.is_some() { Some(folder.lock()?) } else { None };
    let presence = if found.is_some() { engine::look(&folder)? } else { Presence::Stopped };
    let state = match presence {
        Presence::Running(state, _) | Presence::Silent(state, _) => state,
        Presence::Stopped => {
            let gone = folder.state()?;
            gone.iter().for_each(|state| folder.forget(state.pid));
            local.printer.answer(&Form { stopped: false, pid: None, data: None }, &Text::new())?;
            local.printer.note(&gone.map_or_else(
                || "the engine is not running".to_owned(),
                |State { pid, data, .. }| {
                    format!("the engine (process {pid}) had already gone; its data stays in {data}")
                },
            ));
            return Ok(Exit::Ok);
        }
    };
    Progress::during(local.printer, "stopping the engine", engine::stop(&folder, &state)).await?;
    let State { pid, data, .. } = state;
    let text = Text::of(format!("stopped (process {pid}); its data stays in {data}"));
    local.printer.answer(&Form { stopped: true, pid: Some(pid), data: Some(data) }, &text)
}
