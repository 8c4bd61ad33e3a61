//! `resource capacity`.

use serde::Serialize;
use zae_limiter::{CapacityScope, EntityCapacity, ResourceCapacity};

use crate::args::resource::ResourceCapacityArgs;
use crate::context::Context;
use crate::exit::Exit;
use crate::progress::Progress;
use crate::table::{Cell, Table, Text, Tone};

#[derive(Serialize)]
struct Form {
    resource: String,
    limit_name: String,
    entity_count: usize,
    #[serde(flatten)]
    share: ShareForm,
    entities: Vec<EntityForm>,
}

#[derive(Serialize)]
struct EntityForm {
    entity_id: String,
    #[serde(flatten)]
    share: ShareForm,
}

/// What is left, of how much.
#[derive(Serialize)]
struct ShareForm {
    capacity: u64,
    available: i64,
    utilization_pct: f64,
}

impl ShareForm {
    fn new(capacity: u64, available: i64) -> ShareForm {
        ShareForm { capacity, available, utilization_pct: percent(capacity, available) }
    }

    fn cells(&self) -> [Cell; 3] {
        let used = format!("{:.1}%", self.utilization_pct);
        [Cell::plain(self.capacity), Cell::left(self.available), Cell::plain(used)]
    }
}

pub(crate) async fn run(context: &Context<'_>, args: ResourceCapacityArgs) -> anyhow::Result<Exit> {
    let scope = if args.parents_only { CapacityScope::ParentsOnly } else { CapacityScope::All };
    let limiter = context.open().await?;
    let capacity = limiter.resource_capacity(args.name.clone(), args.limit_name, scope);
    let capacity = Progress::during(context.printer, "reading buckets", capacity).await?;
    let form = form(&capacity, usize::try_from(args.limit).unwrap_or(usize::MAX));
    context.printer.answer(&form, &text(&form))?;
    if form.entity_count == 0 {
        let meant = super::shared::about::meant(&limiter, &args.name).await;
        let meant = meant
            .map_or_else(String::new, |meant| format!("; is {meant} meant, which has limits?"));
        let warning = format!(
            "no entity has taken from a limit {} on {} yet{meant}",
            form.limit_name, form.resource
        );
        context.printer.warning(&warning);
    }
    Ok(Exit::Ok)
}

fn form(found: &ResourceCapacity, shown_max: usize) -> Form {
    let mut entities: Vec<&EntityCapacity> = found.entities.iter().collect();
    // Those with the smallest share left first. Cross-multiplied, so that no share is rounded away.
    let cross = |left: &EntityCapacity, right: &EntityCapacity| {
        i128::from(left.available) * i128::from(right.capacity)
    };
    entities.sort_by(|a, b| cross(a, b).cmp(&cross(b, a)).then_with(|| a.entity.cmp(&b.entity)));
    let entity = |entity: &EntityCapacity| EntityForm {
        entity_id: entity.entity.to_string(),
        share: ShareForm::new(entity.capacity, entity.available),
    };
    Form {
        resource: found.resource.to_string(),
        limit_name: found.limit.to_string(),
        entity_count: entities.len(),
        share: ShareForm::new(found.capacity, found.available),
        entities: entities.into_iter().take(shown_max).map(entity).collect(),
    }
}

/// The used share to a tenth of a percent.
#[expect(clippy::cast_precision_loss, reason = "a percentage for people")]
fn percent(capacity: u64, available: i64) -> f64 {
    if capacity == 0 {
        return 0.0;
    }
    let used = capacity as f64 - available as f64;
    (used / capacity as f64 * 1000.0).round() / 10.0
}

fn text(form: &Form) -> Text {
    let mut fields = vec![
        ("resource", Cell::plain(&form.resource)),
        ("limit", Cell::plain(&form.limit_name)),
        ("entities", Cell::plain(form.entity_count)),
    ];
    fields.extend(["capacity", "available", "used"].into_iter().zip(form.share.cells()));
    let text = Text::new().fields(fields);
    if form.entities.is_empty() {
        return text;
    }
    let mut table = Table::new(["ENTITY", "CAPACITY:", "AVAILABLE:", "USED:"]);
    for entity in &form.entities {
        let [capacity, available, used] = entity.share.cells();
        table.row([Cell::plain(&entity.entity_id), capacity, available, used]);
    }
    let text = text.table(table);
    match form.entity_count - form.entities.len() {
        0 => text,
        hidden => text.line(Cell::toned(format!("and {hidden} more; --max shows them"), Tone::Dim)),
    }
}
