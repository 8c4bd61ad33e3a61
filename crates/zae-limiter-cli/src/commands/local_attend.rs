//! `local attend`, which `local up` starts and nobody types: keeps the workers alive.

use anyhow::Context as _;
use zae_limiter::{Clock, SystemClock};

use super::shared::local::Local;
use crate::engine::{Supervisor, TICK};
use crate::exit::Exit;

pub(crate) async fn run(local: &Local<'_>) -> anyhow::Result<Exit> {
    let folder = local.folder()?;
    let binary = local.environment.engine.own.clone();
    let binary = binary.context("this program does not know where it is")?;
    let Some(mut supervisor) = Supervisor::begin(&folder, &binary)? else {
        local.printer.note("the workers have a supervisor already");
        return Ok(Exit::Ok);
    };
    let clock = SystemClock::new();
    while supervisor.tick()? {
        clock.sleep(TICK).await;
    }
    Ok(Exit::Ok)
}
