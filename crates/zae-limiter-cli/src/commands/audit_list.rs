//! `audit list`.

use zae_limiter::wire::AuditForm;
use zae_limiter::{AuditEvent, AuditQuery, AuditSubject};

use super::shared::listing;
use crate::args::history::AuditListArgs;
use crate::context::Context;
use crate::exit::Exit;
use crate::table::{Cell, Table};
use crate::view;

pub(crate) async fn run(context: &Context<'_>, args: AuditListArgs) -> anyhow::Result<Exit> {
    let limiter = context.open().await?;
    let subject = match (args.entity_id, args.resource, args.system) {
        (Some(entity), ..) => Some(AuditSubject::Entity(entity)),
        (None, Some(resource), _) => Some(AuditSubject::Resource(resource)),
        (None, None, true) => Some(AuditSubject::System),
        (None, None, false) => None,
    };
    let (page, is_one_subject) = (args.page.request(), subject.is_some());
    let page = match subject {
        Some(subject) => limiter.audit_events(&AuditQuery { subject, page }).await?,
        None => limiter.audit_log(&page).await?,
    };
    let table = table(&page.items, is_one_subject);
    listing::answer(context, &page, AuditForm::from, table, "no audit events")
}

/// The subject of each event is said only where the page is not that of one subject.
fn table(events: &[AuditEvent], is_one_subject: bool) -> Table {
    let titles = ["TIME", "SUBJECT", "ACTION", "WHO", "RESOURCE", "DETAILS"];
    let mut table = Table::new(titles).may_wrap();
    for event in events.iter().map(AuditForm::from) {
        let details: Vec<String> =
            event.details.iter().map(|(key, value)| format!("{key}={value}")).collect();
        table.row([
            Cell::plain(view::second(&event.timestamp)),
            Cell::plain(&event.entity_id),
            Cell::plain(event.action),
            Cell::plain(event.principal.as_deref().unwrap_or("-")),
            Cell::plain(event.resource.as_deref().unwrap_or("-")),
            Cell::plain(details.join(" ")),
        ]);
    }
    if is_one_subject {
        table.remove("SUBJECT");
    }
    table
}
