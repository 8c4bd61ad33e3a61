//! `entity clear-disabled`.

use crate::args::EntityFlagArgs;
use crate::context::Context;
use crate::exit::Exit;

pub(crate) async fn run(context: &Context<'_>, args: EntityFlagArgs) -> anyhow::Result<Exit> {
    super::flags::set(
        context,
        super::limits::of_entity(args.id, args.resource),
        None,
        args.must_exist,
    )
    .await
}
