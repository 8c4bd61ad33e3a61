//! `list`: the stacks of a region.

use serde::Serialize;
use zae_limiter::domain::{TimeMs, rfc3339};
use zae_limiter_deploy::stack::{Kind, Maker, StackState};
use zae_limiter_deploy::tags;

use super::shared::stacks::Stacks;
use crate::exit::Exit;
use crate::table::{Cell, Table, Text, Tone};

#[derive(Serialize)]
struct Form {
    region: String,
    stacks: Vec<StackForm>,
}

#[derive(Serialize)]
struct StackForm {
    name: String,
    status: String,
    /// True when the stack serves.
    whole: bool,
    /// `zae-limiter`, `python`, or `other` for Terraform and CDK.
    deployed_by: &'static str,
    version: Option<String>,
    lambda_version: Option<String>,
    schema_version: Option<String>,
    created_at: Option<String>,
    updated_at: Option<String>,
}

impl StackForm {
    fn of(state: &StackState) -> StackForm {
        let tag = |key: &str| state.tags.get(key).cloned();
        let at = |seconds: Option<i64>| seconds.map(|s| rfc3339(TimeMs(s.saturating_mul(1_000))));
        StackForm {
            name: state.name.clone(),
            status: state.status.clone(),
            whole: state.is_whole(),
            deployed_by: match state.maker() {
                Maker::Ours => "zae-limiter",
                Maker::Python => "python",
                Maker::OtherTool | Maker::Unknown => "other",
            },
            version: tag(tags::VERSION),
            lambda_version: tag(tags::LAMBDA_VERSION),
            schema_version: tag(tags::SCHEMA_VERSION),
            created_at: at(state.created_s),
            updated_at: at(state.updated_s),
        }
    }
}

pub(crate) async fn run(stacks: &Stacks<'_>) -> anyhow::Result<Exit> {
    let found = stacks.cloud().await?.list(Kind::Limiter).await;
    let found = found.map_err(|error| stacks.failure(error))?;
    let form =
        Form { region: stacks.region.clone(), stacks: found.iter().map(StackForm::of).collect() };
    if form.stacks.is_empty() {
        stacks.printer.note(&format!("there is no stack in {}", form.region));
    }
    stacks.printer.answer(&form, &text(&form))
}

fn text(form: &Form) -> Text {
    let mut table = Table::new(["NAME", "STATUS", "VERSION", "DEPLOYED BY", "CREATED"]);
    for stack in &form.stacks {
        let tone = if stack.whole { Tone::Good } else { Tone::Warning };
        let or_dash = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
        table.row([
            Cell::plain(stack.name.clone()),
            Cell::toned(stack.status.clone(), tone),
            Cell::plain(or_dash(&stack.version)),
            Cell::plain(stack.deployed_by.to_owned()),
            Cell::plain(or_dash(&stack.created_at)),
        ]);
    }
    if form.stacks.is_empty() { Text::new() } else { Text::new().table(table) }
}
