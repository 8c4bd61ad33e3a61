//! `audit list`.

use zae_limiter::wire::AuditForm;
use zae_limiter::{AuditEvent, AuditQuery, AuditSubject};

use super::listing::{self, Listing};
use crate::args::AuditListArgs;
use crate::context::Context;
use crate::exit::Exit;
use crate::table::{Align, Cell, Table};

pub(crate) async fn run(context: &Context<'_>, args: AuditListArgs) -> anyhow::Result<Exit> {
    let limiter = context.open().await?;
    let subject = match (args.entity_id, args.resource) {
        (Some(entity), _) => AuditSubject::Entity(entity),
        (None, Some(resource)) => AuditSubject::Resource(resource),
        (None, None) => AuditSubject::System,
    };
    let page = limiter.audit_events(&AuditQuery { subject, page: args.page.request() }).await?;
    listing::answer(context, &page, AuditForm::from, Listing { table: table(&page.items), nothing: "no audit events" })
}

fn table(events: &[AuditEvent]) -> Table {
    let mut table = Table::new([
        ("TIME", Align::Left),
        ("ACTION", Align::Left),
        ("WHO", Align::Left),
        ("RESOURCE", Align::Left),
        ("DETAILS", Align::Left),
    ]);
    for event in events.iter().map(AuditForm::from) {
        let details: Vec<String> = event.details.iter().map(|(key, value)| format!("{key}={value}")).collect();
        table.row([
            Cell::plain(&event.timestamp),
            Cell::plain(event.action),
            Cell::plain(event.principal.as_deref().unwrap_or("-")),
            Cell::plain(event.resource.as_deref().unwrap_or("-")),
            Cell::plain(details.join(" ")),
        ]);
    }
    table
}
