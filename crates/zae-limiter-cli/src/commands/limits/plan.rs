//! `limits plan`.

use super::{PlanForm, compare, note_about_kept, note_about_resumption, text};
use crate::args::limits::LimitsPlanArgs;
use crate::context::Context;
use crate::exit::Exit;

pub(crate) async fn run(context: &Context<'_>, args: &LimitsPlanArgs) -> anyhow::Result<Exit> {
    let compared = compare(context, &args.file.file, args.prune).await?;
    note_about_resumption(context, &compared.plan);
    let exit = context.printer.answer(&PlanForm::from(&compared), &text(&compared, false))?;
    note_about_kept(context, &compared.plan);
    Ok(exit)
}
