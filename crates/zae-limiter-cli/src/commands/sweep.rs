//! `sweep`.

use serde::Serialize;
use zae_limiter::Swept;

use crate::context::Context;
use crate::exit::Exit;
use crate::progress::Progress;
use crate::table::Text;

/// Steps between two words about how far it is.
const STEPS: u32 = 50;
/// How often those many steps are done at most: 200 million rows at 200 a step.
const ROUNDS_MAX: u32 = 20_000;

#[derive(Serialize, Default)]
struct Form {
    buckets: u64,
    usage: u64,
    audit: u64,
    complete: bool,
}

impl Form {
    fn add(&mut self, swept: Swept) {
        self.buckets += swept.buckets;
        self.usage += swept.usage;
        self.audit += swept.audit;
        self.complete = swept.complete;
    }

    fn words(&self) -> String {
        format!(
            "buckets: {}, usage rows: {}, audit events: {}",
            self.buckets, self.usage, self.audit
        )
    }
}

pub(crate) async fn run(context: &Context<'_>) -> anyhow::Result<Exit> {
    let limiter = context.open().await?;
    let progress = Progress::start(context.printer, "sweeping");
    let mut form = Form::default();
    let mut is_held_back = false;
    for _ in 0..ROUNDS_MAX {
        let swept = limiter.sweep(STEPS).await?;
        is_held_back |= swept.held_back;
        form.add(swept);
        if form.complete {
            break;
        }
        progress.say(form.words());
    }
    drop(progress);
    context.printer.answer(&form, &Text::of(format!("forgotten ({})", form.words())))?;
    if is_held_back {
        context.printer.warning(
            "no sweep has confirmed the time yet, so little was forgotten; sweep again in an hour",
        );
    }
    if !form.complete {
        context.printer.warning("there is more to look at; sweep again");
    }
    Ok(Exit::Ok)
}
