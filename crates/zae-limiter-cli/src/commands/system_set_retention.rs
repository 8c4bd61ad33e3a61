//! `system set-retention`: how long a stack keeps its history.

use serde::Serialize;
use zae_limiter::dynamodb::Retention;

use super::check::stack;
use crate::args::system::SetRetentionArgs;
use crate::context::Context;
use crate::dynamodb;
use crate::exit::Exit;
use crate::table::Text;

#[derive(Serialize)]
struct Form {
    stack: String,
    usage_retention_days: Option<u32>,
    audit_retention_days: Option<u32>,
}

pub(crate) async fn run(context: &Context<'_>, args: SetRetentionArgs) -> anyhow::Result<Exit> {
    let place = stack(context)?;
    let operator = dynamodb::operator(place, context.settings).await?;
    let wanted = Retention { usage_days: args.usage_days, audit_days: args.audit_days };
    let set = operator.set_retention(wanted);
    let stored = dynamodb::reach(place, context.settings, set).await?.retention;
    let form = Form {
        stack: place.stack.clone(),
        usage_retention_days: stored.usage_days,
        audit_retention_days: stored.audit_days,
    };
    let days = |days: Option<u32>| days.unwrap_or(90);
    let line = format!(
        "usage is kept for {} days, audit events for {}",
        days(stored.usage_days),
        days(stored.audit_days)
    );
    context.printer.answer(&form, &Text::of(line))?;
    context.printer.note("what was written before keeps its own time");
    Ok(Exit::Ok)
}
