//! What the commands for usage share.

use zae_limiter::{PageRequest, UsageQuery};

use crate::args::history::UsageQueryArgs;
use crate::context::Context;
use crate::error::Failure;
use crate::settings::StorePlace;

/// The query as the library asks it.
pub(crate) fn query(args: UsageQueryArgs, page: PageRequest) -> Result<UsageQuery, Failure> {
    let (from, until) = (args.start.map(|start| start.first), args.end.map(|end| end.end));
    if let (Some(from), Some(until)) = (from, until)
        && until <= from
    {
        return Err(Failure::usage("--end is not after --start; there is no time in between"));
    }
    Ok(UsageQuery {
        entity: args.entity_id,
        resource: args.resource,
        window: args.window,
        from,
        until,
        page,
    })
}

/// Why there is no usage where none is found: on DynamoDB somebody else has to write it.
pub(crate) fn why_empty(context: &Context<'_>) -> Option<&'static str> {
    matches!(context.settings.store, StorePlace::Dynamo(_)).then_some(
        "on DynamoDB usage is written by an aggregator, which is not built yet: nothing is counted unless the Lambda of the Python \
         package serves this table",
    )
}

/// Says that a sum over all entities counts a call once for each member of its chain.
pub(crate) fn note_about_cascades(context: &Context<'_>, query: &UsageQuery) {
    if query.entity.is_none() {
        context.printer.note(
            "summed over all entities: with cascades a call counts for each member of its chain",
        );
    }
}
