//! What the commands that switch something off and on share.

use serde::Serialize;
use zae_limiter::Level;

use crate::context::Context;
use crate::exit::Exit;
use crate::table::{Cell, Text};

#[derive(Serialize)]
struct Form {
    level: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    entity_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource: Option<String>,
    disabled: Option<bool>,
    buckets: u64,
}

/// Disables (`Some(true)`), enables (`Some(false)`) or lets a level inherit (`None`).
///
/// Nobody is asked: it can be undone, and whoever stops a runaway client is in a hurry.
pub(super) async fn set(context: &Context<'_>, level: Level, disabled: Option<bool>) -> anyhow::Result<Exit> {
    let limiter = context.open().await?;
    let buckets = match disabled {
        Some(true) => limiter.disable(&level).await?,
        Some(false) => limiter.enable(&level).await?,
        None => limiter.clear_disabled(&level).await?,
    };
    let form = Form {
        level: level.source().as_str(),
        entity_id: level.entity_id().map(ToString::to_string),
        resource: level.resource_name().map(ToString::to_string),
        disabled,
        buckets,
    };
    let done = match disabled {
        Some(true) => "disabled",
        Some(false) => "enabled",
        None => "cleared the flag of",
    };
    let line = format!("{done} {level} ({buckets} existing {})", if buckets == 1 { "bucket" } else { "buckets" });
    context.printer.answer(&form, &Text::new().line(Cell::plain(line)))?;
    Ok(Exit::Ok)
}
