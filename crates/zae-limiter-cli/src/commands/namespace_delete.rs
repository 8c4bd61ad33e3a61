//! `namespace delete`.

use serde::Serialize;

use super::namespace_show::missing;
use crate::args::NamespaceDeleteArgs;
use crate::confirm::{Question, confirm};
use crate::context::Context;
use crate::exit::Exit;
use crate::table::{Cell, Text};

#[derive(Serialize)]
struct Form {
    name: String,
    namespace_id: String,
    deleted: bool,
}

pub(crate) async fn run(context: &Context<'_>, args: NamespaceDeleteArgs) -> anyhow::Result<Exit> {
    let what = format!("namespace {} (it can be recovered until it is purged)", args.name);
    confirm(context, &Question { deed: "deletes", what: &what, name: args.name.as_str() }, args.confirm)?;
    let limiter = context.open_registry().await?;
    // Its id is what recovers it, so it is told now.
    let Some(namespace) = limiter.show_namespace(args.name.clone()).await? else { return Err(missing(&args.name).into()) };
    if !limiter.delete_namespace(args.name.clone()).await? {
        return Err(missing(&args.name).into());
    }
    let form = Form { name: args.name.to_string(), namespace_id: namespace.id.to_string(), deleted: true };
    let line = format!("deleted namespace {}; `zae-limiter namespace recover {}` brings it back", form.name, form.namespace_id);
    context.printer.answer(&form, &Text::new().line(Cell::plain(line)))?;
    Ok(Exit::Ok)
}
