//! `local status`.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::shared::local::Local;
use crate::engine::{self, Folder, Health, Presence, Report, State, TableForm, WorkerForm};
use crate::exit::Exit;
use crate::table::{Cell, Table, Text, Tone};
use crate::view;

#[derive(Serialize)]
struct Form {
    running: bool,
    endpoint: Option<String>,
    pid: Option<u32>,
    version: Option<String>,
    engine: Option<String>,
    tables: Vec<TableForm>,
    data: String,
    /// With what is still in its log; none before the first start.
    data_bytes: Option<u64>,
    log: String,
    /// None when no supervisor lives.
    worker: Option<Report>,
    /// True when `local up` has ordered workers.
    #[serde(skip)]
    wants_workers: bool,
    worker_log: String,
}

pub(crate) fn run(local: &Local<'_>) -> anyhow::Result<Exit> {
    let folder = local.folder()?;
    let form = match engine::look(&folder)? {
        Presence::Running(state, health) => Form::new(&folder, Some((state, health))),
        Presence::Silent(state, why) => return Err(engine::silent(&state, &why).into()),
        Presence::Stopped => Form::new(&folder, None),
    };
    local.printer.answer(&form, &form.text())?;
    if !form.running {
        local.printer.note("start it with `zae-limiter local up`");
    }
    Ok(if form.running { Exit::Ok } else { Exit::Error })
}

impl Form {
    /// What an engine that runs says, and what is known of one that does not.
    fn new(folder: &Folder, running: Option<(State, Health)>) -> Form {
        let (state, health) = running.unzip();
        let health = health.as_ref();
        let data = state.as_ref().map_or_else(|| folder.data(), |state| PathBuf::from(&state.data));
        Form {
            running: health.is_some(),
            endpoint: state.map(|state| engine::endpoint(state.port)),
            pid: health.map(|health| health.pid),
            version: health.map(|health| health.version.clone()),
            engine: health.map(|health| health.engine.clone()),
            tables: health.map_or_else(Vec::new, |health| health.tables.clone()),
            data: data.display().to_string(),
            data_bytes: data_bytes(&data),
            log: folder.log().display().to_string(),
            worker: folder.workers(),
            wants_workers: folder.wants_workers(),
            worker_log: folder.worker_log().display().to_string(),
        }
    }

    fn text(&self) -> Text {
        let (running, tone) =
            if self.running { ("yes", Tone::Good) } else { ("no", Tone::Warning) };
        let mut fields = vec![("running", Cell::toned(running, tone))];
        let said =
            [("endpoint", &self.endpoint), ("version", &self.version), ("engine", &self.engine)];
        fields.extend(
            said.into_iter()
                .filter_map(|(label, value)| Some((label, Cell::plain(value.as_ref()?)))),
        );
        fields.extend(self.pid.map(|pid| ("process", Cell::plain(pid))));
        if self.running || self.worker.is_some() {
            let none = || no_worker(self.wants_workers);
            fields.push(("workers", self.worker.as_ref().map_or_else(none, workers)));
        }
        let size = self.data_bytes.map_or_else(|| "no data yet".to_owned(), view::bytes);
        fields.extend([
            ("data", Cell::plain(&self.data)),
            ("size", Cell::plain(size)),
            ("log", Cell::plain(&self.log)),
        ]);
        let text = Text::new().fields(fields);
        if !self.running {
            return text;
        }
        let mut table = Table::new(["TABLE", "ITEMS:"]);
        for found in &self.tables {
            table.row([Cell::plain(&found.name), Cell::plain(found.items)]);
        }
        text.table_or(table, "no tables")
    }
}

fn no_worker(is_wanted: bool) -> Cell {
    match is_wanted {
        true => {
            Cell::toned("none: their supervisor has ended; `local up` starts it", Tone::Warning)
        }
        false => Cell::plain("none: `local up --name STACK` starts one, which counts usage"),
    }
}

fn workers(report: &Report) -> Cell {
    let one = |worker: &WorkerForm| {
        let pid = worker.pid.map(|pid| format!("process {pid}"));
        let pid = pid.unwrap_or_else(|| "about to start".to_owned());
        let restarts = match worker.restarts {
            0 => String::new(),
            1 => ", started again once".to_owned(),
            count => format!(", started again {count} times"),
        };
        format!("{} ({pid}{restarts})", worker.stack)
    };
    let workers: Vec<String> = report.workers.iter().map(one).collect();
    let tone = match report.workers.iter().all(|worker| worker.pid.is_some()) {
        true => Tone::Good,
        false => Tone::Warning,
    };
    let list = if workers.is_empty() { "none".to_owned() } else { workers.join(", ") };
    Cell::toned(format!("{list}; supervisor: process {}", report.pid), tone)
}

/// What the data take on the disk: the file, and what SQLite has yet to write back to it.
fn data_bytes(data: &Path) -> Option<u64> {
    let mut log = data.as_os_str().to_owned();
    log.push("-wal");
    let size = |path: &Path| fs::metadata(path).ok().map(|found| found.len());
    size(data).map(|bytes| bytes + size(log.as_ref()).unwrap_or(0))
}
