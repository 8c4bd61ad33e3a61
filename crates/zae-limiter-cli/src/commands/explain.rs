//! `explain`: which limits apply, and where they come from.

use serde::Serialize;
use zae_limiter::wire::{self, ResolvedForm};

use crate::args::acquire::ExplainArgs;
use crate::context::Context;
use crate::exit::Exit;
use crate::view;

#[derive(Serialize)]
struct Form {
    entity_id: String,
    resource: String,
    on_unavailable: &'static str,
    members: Vec<ResolvedForm>,
}

pub(crate) async fn run(context: &Context<'_>, args: ExplainArgs) -> anyhow::Result<Exit> {
    let limiter = context.open().await?;
    let resolved = limiter.resolve(args.entity.clone(), args.resource.clone()).await?;
    let form = Form {
        entity_id: args.entity.to_string(),
        resource: args.resource.to_string(),
        on_unavailable: resolved.on_unavailable.as_str(),
        members: wire::resolved(&resolved),
    };
    context.printer.answer(&form, &view::resolved(&resolved, &args.resource))?;
    if resolved.members.iter().all(|member| member.limits.is_empty()) {
        context
            .printer
            .warning("no level has limits for this call: an acquire without --limit is an error");
    }
    Ok(Exit::Ok)
}
