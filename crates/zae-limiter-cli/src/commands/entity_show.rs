//! `entity show`.

use std::collections::BTreeMap;

use serde::Serialize;
use zae_limiter::wire::{EntityForm, FlagForm};
use zae_limiter::{Flag, ResourceName};

use super::shared::{entities, flags};
use crate::args::entity::EntityIdArgs;
use crate::context::Context;
use crate::exit::Exit;
use crate::table::{Cell, Text};
use crate::view;

pub(crate) async fn run(context: &Context<'_>, args: EntityIdArgs) -> anyhow::Result<Exit> {
    let limiter = context.open().await?;
    let Some(entity) = limiter.entity(args.id.clone()).await? else {
        return Err(entities::missing(context, &args.id).into());
    };
    let own = flags::of_entities(&limiter, std::slice::from_ref(&args.id)).await?.pop().flatten();
    let on_resources = flags::on_resources(&limiter, &args.id).await?;
    let mut fields = view::entity_fields(&entity);
    fields.push(("disabled", view::flag(own)));
    let flag = |(resource, flag): &(ResourceName, Flag)| {
        format!("{} on {resource}", view::flag_words(*flag))
    };
    fields.extend(on_resources.iter().map(|found| ("", Cell::plain(flag(found)))));
    let form = Form {
        entity: EntityForm::from(&entity),
        disabled: own.map(FlagForm),
        disabled_on: on_resources
            .iter()
            .map(|(resource, flag)| (resource.to_string(), FlagForm(*flag)))
            .collect(),
    };
    context.printer.answer(&form, &Text::new().fields(fields))
}

/// An entity with its flags.
#[derive(Serialize)]
struct Form {
    #[serde(flatten)]
    entity: EntityForm,
    /// On every resource; null inherits.
    disabled: Option<FlagForm>,
    /// On single resources.
    disabled_on: BTreeMap<String, FlagForm>,
}
