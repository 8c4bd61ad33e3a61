//! `namespace delete`. The command does not ask, because `namespace recover` undoes it. It asks
//! about the namespace `default`: without that one, every command that names none fails.

use serde::Serialize;

use super::shared::namespaces;
use crate::args::namespace::NamespaceDeleteArgs;
use crate::args::shared::ConfirmArgs;
use crate::confirm::{Question, confirm};
use crate::context::Context;
use crate::exit::Exit;
use crate::settings::NAMESPACE;
use crate::table::Text;

/// What is deleted with the namespace [`NAMESPACE`].
const DEFAULT: &str = "namespace default (commands use it that name no other; it can be recovered until it is purged)";

#[derive(Serialize)]
struct Form {
    name: String,
    namespace_id: String,
    deleted: bool,
}

pub(crate) async fn run(context: &Context<'_>, args: NamespaceDeleteArgs) -> anyhow::Result<Exit> {
    if args.name == NAMESPACE {
        confirm(
            context,
            &Question { deed: "deletes", what: DEFAULT, name: NAMESPACE },
            ConfirmArgs { yes: args.yes },
        )?;
    }
    let limiter = context.open_registry().await?;
    // Its id is what recovers it, so it is told now.
    let Some(namespace) = limiter.namespace_info(args.name.clone()).await? else {
        return Err(namespaces::missing(context, &limiter, &args.name).await.into());
    };
    if !limiter.delete_namespace(args.name.clone()).await? {
        return Err(namespaces::missing(context, &limiter, &args.name).await.into());
    }
    let form =
        Form { name: args.name.to_string(), namespace_id: namespace.id.to_string(), deleted: true };
    let recover = context.command(&["namespace", "recover", &form.namespace_id]);
    let line = format!("deleted namespace {}; {recover} brings it back", form.name);
    context.printer.answer(&form, &Text::of(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_question_is_a_sentence() {
        let asked = Question { deed: "deletes", what: DEFAULT, name: NAMESPACE }.asked();
        assert!(
            asked.starts_with("This deletes namespace default (")
                && asked.ends_with("purged). Type default to go on:"),
            "{asked}"
        );
    }
}
