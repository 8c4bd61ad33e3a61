//! `available`: looks, takes nothing.

use zae_limiter::wire::Decision;
use zae_limiter::{AcquireError, Request};

use super::shared::about::{Asker, Form, exit};
use crate::args::acquire::AvailableArgs;
use crate::context::Context;
use crate::exit::Exit;
use crate::table::{Cell, Text, Tone};
use crate::view;

pub(crate) async fn run(context: &Context<'_>, args: AvailableArgs) -> anyhow::Result<Exit> {
    let limiter = context.open().await?;
    let asker = Asker {
        entity: args.entity.clone(),
        resource: args.resource.clone(),
        brings_limits: false,
    };
    let request = Request::new(args.entity, args.resource);
    let asks = !args.consume.is_empty();
    let request = args
        .consume
        .into_iter()
        .fold(request, |request, amount| request.take(amount.limit, amount.tokens));
    let decision = match limiter.availability(&request).await {
        Ok(availability) => Decision::from(&availability),
        Err(AcquireError::Exceeded(report)) => Decision::from(&*report),
        Err(error) => return Err(error.into()),
    };
    let form = Form::new(context, &limiter, &asker, decision).await;
    context.printer.answer(&form, &text(&form.decision, asks))?;
    // Without amounts nothing was asked that could be refused.
    Ok(if asks { exit(&form.decision) } else { Exit::Ok })
}

fn text(decision: &Decision, asks: bool) -> Text {
    let heading = match decision.granted {
        _ if !asks && !decision.contended => None,
        true => Some(Cell::toned("would be granted", Tone::Good)),
        false => {
            Some(Cell::toned(format!("would be refused: {}", view::refusal(decision)), Tone::Bad))
        }
    };
    let text = heading.map_or_else(Text::new, |heading| Text::new().line(heading));
    if decision.limits.is_empty() { text } else { text.table(view::statuses(&decision.limits)) }
}
