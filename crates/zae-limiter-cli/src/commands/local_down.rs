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
    /// True when the workers that count usage were ended too.
    worker_stopped: bool,
}

pub(crate) async fn run(local: &Local<'_>) -> anyhow::Result<Exit> {
    let folder = local.folder()?;
    // Before the first start there is no folder, and none is created to say so.
    let found = folder.state()?.is_some() || folder.has_workers();
    let found = if found { Some(folder.lock()?) } else { None };
    let presence = if found.is_some() { engine::look(&folder)? } else { Presence::Stopped };
    // The workers end first: what they have read is then counted and noted in the table.
    let worker_stopped = match &found {
        Some(_) => {
            let stopping = engine::stop_workers(&folder);
            Progress::during(local.printer, "stopping the worker", stopping).await?
        }
        None => false,
    };
    let state = match presence {
        Presence::Running(state, _) | Presence::Silent(state, _) => state,
        Presence::Stopped => {
            let gone = folder.state()?;
            gone.iter().for_each(|state| folder.forget(state.pid));
            let form = Form { stopped: false, pid: None, data: None, worker_stopped };
            local.printer.answer(&form, &Text::new())?;
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
    let form = Form { stopped: true, pid: Some(pid), data: Some(data), worker_stopped };
    local.printer.answer(&form, &text)
}
