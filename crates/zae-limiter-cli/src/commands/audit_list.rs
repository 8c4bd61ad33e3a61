//! `audit list`.

use zae_limiter::wire::AuditForm;
use zae_limiter::{AuditEvent, AuditQuery, AuditSubject};

use super::shared::listing::{self, Listing};
use crate::args::history::AuditListArgs;
use crate::context::Context;
use crate::exit::Exit;
use crate::table::{Align, Cell, Table};
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
    let listing = Listing { table: table(&page.items, is_one_subject), nothing: "no audit events" };
    listing::answer(context, &page, AuditForm::from, listing)
}

/// Whose events they are is said only where they may be anybody's.
fn table(events: &[AuditEvent], is_one_subject: bool) -> Table {
    let subject = |title| (!is_one_subject).then_some(title);
    let titles =
        [Some(("TIME", Align::Left)), subject(("SUBJECT", Align::Left))].into_iter().flatten();
    let rest = [
        ("ACTION", Align::Left),
        ("WHO", Align::Left),
        ("RESOURCE", Align::Left),
        ("DETAILS", Align::Left),
    ];
    let mut table = Table::new(titles.chain(rest).collect::<Vec<_>>()).may_wrap();
    for event in events.iter().map(AuditForm::from) {
        let details: Vec<String> =
            event.details.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let mut cells = vec![Cell::plain(view::second(&event.timestamp))];
        cells.extend((!is_one_subject).then(|| Cell::plain(&event.entity_id)));
        cells.extend([
            Cell::plain(event.action),
            Cell::plain(event.principal.as_deref().unwrap_or("-")),
            Cell::plain(event.resource.as_deref().unwrap_or("-")),
            Cell::plain(details.join(" ")),
        ]);
        table.row(cells);
    }
    table
}
