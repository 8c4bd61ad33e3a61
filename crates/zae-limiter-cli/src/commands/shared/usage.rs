//! What the commands for usage share.

use zae_limiter::{PageRequest, UsageQuery};

use crate::args::history::UsageQueryArgs;
use crate::context::Context;
use crate::error::Failure;
#[cfg(feature = "dynamodb")]
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

/// Why there is no usage where none is found: on DynamoDB somebody else has to count it.
#[cfg(feature = "dynamodb")]
pub(crate) async fn why_empty(context: &Context<'_>, is_empty: bool) -> Option<String> {
    let StorePlace::Dynamo(place) = &context.settings.store else { return None };
    if !is_empty {
        return None;
    }
    // Nobody has asked for the state of the stack: what cannot be known is not told.
    let status = crate::dynamodb::status(place, context.settings).await.ok()?;
    Some(crate::dynamodb::why_no_usage(place, context.settings, &status))
}

#[cfg(not(feature = "dynamodb"))]
pub(crate) async fn why_empty(_: &Context<'_>, _: bool) -> Option<String> {
    None
}

/// Says that a sum over all entities counts a call once for each member of its chain.
pub(crate) fn note_about_cascades(context: &Context<'_>, query: &UsageQuery) {
    if query.entity.is_none() {
        context.printer.note(
            "summed over all entities: with cascades a call counts for each member of its chain",
        );
    }
}
