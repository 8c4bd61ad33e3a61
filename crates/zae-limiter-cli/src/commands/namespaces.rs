//! What the commands for namespaces share.

use zae_limiter::Namespace;
use zae_limiter::wire::NamespaceForm;

use crate::table::{Align, Cell, Table, Text};

/// Namespaces, one per row.
pub(super) fn table(namespaces: &[Namespace]) -> Table {
    let mut table = Table::new([
        ("NAMESPACE", Align::Left),
        ("ID", Align::Left),
        ("STATUS", Align::Left),
        ("CREATED", Align::Left),
        ("DELETED", Align::Left),
    ]);
    for namespace in namespaces.iter().map(NamespaceForm::from) {
        table.row([
            Cell::plain(&namespace.name),
            Cell::plain(&namespace.namespace_id),
            Cell::plain(namespace.status),
            Cell::plain(&namespace.created_at),
            Cell::plain(namespace.deleted_at.as_deref().unwrap_or("-")),
        ]);
    }
    table
}

/// One namespace.
pub(super) fn text(form: &NamespaceForm) -> Text {
    Text::new().fields(vec![
        ("namespace", Cell::plain(&form.name)),
        ("id", Cell::plain(&form.namespace_id)),
        ("status", Cell::plain(form.status)),
        ("created", Cell::plain(&form.created_at)),
    ])
}
