//! `available`: looks, takes nothing.

use zae_limiter::AcquireError;
use zae_limiter::wire::Decision;

use super::shared::about::{Asker, Form, exit};
use crate::args::acquire::AvailableArgs;
use crate::context::Context;
use crate::exit::Exit;
use crate::table::{Cell, Text, Tone};
use crate::view;

pub(crate) async fn run(context: &Context<'_>, args: AvailableArgs) -> anyhow::Result<Exit> {
    let limiter = context.open().await?;
    let asker = Asker { entity: &args.entity, resource: &args.resource, brings_limits: false };
    let asks = !args.consume.is_empty();
    let decision = match limiter.availability(&asker.request(&args.consume)).await {
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
    let refused = || format!("would be refused: {}", view::refusal(decision));
    let text = match decision.granted {
        _ if !asks && !decision.contended => Text::new(),
        true => Text::new().line(Cell::toned("would be granted", Tone::Good)),
        false => Text::new().line(Cell::toned(refused(), Tone::Bad)),
    };
    if decision.limits.is_empty() { text } else { text.table(view::statuses(&decision.limits)) }
}
