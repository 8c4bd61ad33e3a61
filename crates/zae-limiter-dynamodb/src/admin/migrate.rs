//! Migrations: what is stored in an older form becomes the form of today.
//!
//! A migration is made of steps, each of them one transaction that is conditional on what was read.
//! Nothing is remembered between steps but the table itself: a migration that was interrupted finds
//! what is left. Only when nothing is left does the version record say that it is done.

use std::collections::{BTreeMap, BTreeSet};

use aws_sdk_dynamodb::types::AttributeValue;
use zae_limiter_core::{EventId, Limit, LimitName};
use zae_limiter_store::{Change, Level, StoreError, StoreErrorKind};

use crate::DynamoStore;
use crate::admin::operator::Operator;
use crate::admin::version::{default_namespace, not_initialised};
use crate::config::adopt_limits;
use crate::constants::SCHEMA_VERSION;
use crate::records::attr;
use crate::records::item::{integer_of, key_of, text_of};
use crate::records::keys;
use crate::table::{Action, Comparison, Condition, Delete, Item, compare_with, exists, text};

/// A change of the form in which things are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Migration {
    /// What the version record calls it.
    pub name: &'static str,
    /// The schema whose form it brings.
    pub schema: &'static str,
    /// What it does.
    pub description: &'static str,
}

/// The migrations there are, in order.
pub const MIGRATIONS: [Migration; 1] = [Migration {
    name: "composite-config",
    schema: "0.8.0",
    description: "one row per limit becomes one configuration item per level",
}];

/// One step of a migration: the rows of one level.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Step {
    /// The migration it belongs to.
    pub migration: &'static str,
    /// The partition of the rows, which begins with the id of the namespace.
    pub partition: String,
    /// The item that they become.
    pub target: String,
    /// How many rows there are.
    pub rows: usize,
    /// Why the rows cannot be migrated; they stay, and the migration is not done.
    pub problem: Option<String>,
}

/// What became of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress {
    /// Nothing yet: it is about to be made.
    Begins(Step),
    /// The limits of the rows are the limits of the level now.
    Made(Step),
    /// The level has limits of today's form, which every client uses: the rows are gone.
    Superseded(Step),
    /// The rows stay as they are, for the reason that the step gives.
    Left(Step),
}

/// What a run of all migrations did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Migrated {
    /// Levels that got the limits of their rows.
    pub made: u64,
    /// Levels whose rows were out of date.
    pub superseded: u64,
    /// Levels whose rows stay.
    pub left: u64,
    /// Levels whose rows stay because their namespace is not registered: no client can reach them,
    /// and they do not count as left to do.
    pub orphans: u64,
    /// Whether nothing is left to do.
    pub complete: bool,
}

/// What is being done, for messages.
const OPERATION: &str = "migrate";

/// The sort key of a row begins with this.
const ROW: &str = "#LIMIT#";

/// The rows of one level, and what they say.
struct Rows {
    step: Step,
    namespace: String,
    /// The level and its limits, if all rows can be read.
    limits: Option<(Level, Vec<Limit>)>,
    items: Vec<Item>,
}

impl Operator {
    /// The migrations that the table has not been through, by its version record.
    ///
    /// Cost: one `BatchGetItem`.
    pub async fn migrations(&self) -> Result<Vec<Migration>, StoreError> {
        let versions = self.versions().await?.ok_or_else(|| not_initialised(OPERATION))?;
        let is_open =
            |migration: &Migration| !versions.migrated.iter().any(|n| n == migration.name);
        Ok(MIGRATIONS.into_iter().filter(is_open).collect())
    }

    /// The steps of the migrations that the table has not been through. Changes nothing.
    ///
    /// Cost: reads the whole table once, if there is a migration to do.
    pub async fn plan(&self) -> Result<Vec<Step>, StoreError> {
        if self.migrations().await?.is_empty() {
            return Ok(Vec::new());
        }
        Ok(self.rows().await?.into_iter().map(|rows| rows.step).collect())
    }

    /// Makes the steps, one after the other, and tells of each. May be interrupted at any time and
    /// run again; two at once do no harm.
    ///
    /// Cost: reads the whole table twice, and one transaction per level.
    pub async fn migrate(&self, mut tell: impl FnMut(&Progress)) -> Result<Migrated, StoreError> {
        let mut done = Migrated::default();
        if self.migrations().await?.is_empty() {
            done.complete = true;
            return Ok(done);
        }
        let mut orphans = BTreeSet::new();
        for rows in self.rows().await? {
            tell(&Progress::Begins(rows.step.clone()));
            let record = keys::namespace_by_id(&rows.namespace);
            let progress = if self.shared.read(OPERATION, &[record]).await? == [None] {
                orphans.insert(rows.step.partition.clone());
                done.orphans += 1;
                let problem = Some("no namespace has this id".to_owned());
                Progress::Left(Step { problem, ..rows.step })
            } else {
                let progress = self.migrate_rows(rows).await?;
                match &progress {
                    Progress::Made(_) => done.made += 1,
                    Progress::Superseded(_) => done.superseded += 1,
                    Progress::Left(_) | Progress::Begins(_) => done.left += 1,
                }
                progress
            };
            tell(&progress);
        }
        // Rows may have come meanwhile, by a client of long ago.
        let is_open = |rows: &Rows| !orphans.contains(&rows.step.partition);
        if done.left > 0 || self.rows().await?.iter().any(is_open) {
            return Ok(done);
        }
        let names = MIGRATIONS
            .iter()
            .map(|migration| Action::AddMember(attr::MIGRATED.into(), migration.name.to_owned()));
        let schema = Action::Set(attr::SCHEMA_VERSION.into(), text(SCHEMA_VERSION));
        self.write(OPERATION, names.chain([schema]).collect()).await?;
        done.complete = true;
        Ok(done)
    }

    /// All rows of the table, by level.
    async fn rows(&self) -> Result<Vec<Rows>, StoreError> {
        let (mut found, mut start) = (BTreeMap::<(String, String), Vec<Item>>::new(), None);
        loop {
            let page = self.shared.scan(OPERATION, ROW, start).await?;
            for item in page.items {
                let Some(key) = key_of(&item) else { continue };
                // `#LIMIT#{limit}`, and `#LIMIT#{resource}#{limit}` of an entity.
                let rest = key.sk.strip_prefix(ROW).unwrap_or_default();
                let resource = match key.pk.contains("/ENTITY#") {
                    true => rest.rsplit_once('#').map_or(rest, |(resource, _)| resource),
                    false => "",
                };
                found.entry((key.pk.clone(), resource.to_owned())).or_default().push(item);
            }
            start = page.last;
            if start.is_none() {
                break;
            }
        }
        let rows = found.into_iter();
        Ok(rows
            .map(|((partition, resource), items)| Rows::of(partition, &resource, items))
            .collect())
    }

    async fn migrate_rows(&self, rows: Rows) -> Result<Progress, StoreError> {
        let Rows { mut step, namespace, limits, items } = rows;
        let Some((level, limits)) = limits else { return Ok(Progress::Left(step)) };
        let store = DynamoStore {
            shared: std::sync::Arc::clone(&self.shared),
            name: default_namespace(),
            id: namespace.as_str().into(),
        };
        let gone = items.iter().filter_map(removed).collect::<Vec<_>>();
        let options = &self.shared.options;
        let entropy =
            u128::from(options.entropy.next_u64()) << 64 | u128::from(options.entropy.next_u64());
        let at = options.clock.now();
        let change = Change { principal: None, reason: None, at, event: EventId::new(at, entropy) };
        match adopt_limits(&store, &level, &limits, &gone, &change).await {
            Ok(true) => Ok(Progress::Made(step)),
            Ok(false) => Ok(Progress::Superseded(step)),
            // A namespace that is gone, an entity that is being deleted, rows that change: the rows
            // wait for another run.
            Err(error)
                if matches!(
                    error.kind(),
                    StoreErrorKind::NotFound | StoreErrorKind::State | StoreErrorKind::Busy
                ) =>
            {
                step.problem = Some(error.message().to_owned());
                Ok(Progress::Left(step))
            }
            Err(error) => Err(error.during(OPERATION)),
        }
    }
}

impl Rows {
    fn of(partition: String, resource: &str, items: Vec<Item>) -> Rows {
        let (namespace, place) = partition.split_once('/').unwrap_or_default();
        let namespace = namespace.to_owned();
        let read = level(place, resource).and_then(|level| {
            let limits = items.iter().map(limit).collect::<Result<Vec<_>, _>>()?;
            Ok((level, limits))
        });
        let (limits, problem) = match read {
            Ok(read) => (Some(read), None),
            Err(why) => (None, Some(why)),
        };
        let target = match &limits {
            Some((level, _)) => {
                crate::records::item::config::key(&namespace, level).sk.into_owned()
            }
            None => String::new(),
        };
        let step =
            Step { migration: MIGRATIONS[0].name, partition, target, rows: items.len(), problem };
        Rows { step, namespace, limits, items }
    }
}

/// The level that the rows of a partition belong to.
fn level(place: &str, resource: &str) -> Result<Level, String> {
    let wrong = |error: zae_limiter_core::NameError| error.to_string();
    if place == "SYSTEM#" {
        return Ok(Level::System);
    }
    if let Some(resource) = place.strip_prefix("RESOURCE#") {
        return Ok(Level::Resource(resource.parse().map_err(wrong)?));
    }
    let Some(entity) = place.strip_prefix("ENTITY#") else {
        return Err(format!("{place:?} is no place for limits"));
    };
    let entity = entity.parse().map_err(wrong)?;
    Ok(match resource {
        keys::ALL_RESOURCES => Level::Entity(entity),
        resource => Level::EntityResource(entity, resource.parse().map_err(wrong)?),
    })
}

/// What one row says. `burst` was the capacity, `capacity` the rate.
fn limit(row: &Item) -> Result<Limit, String> {
    let missing = |name: &str| format!("{name} is missing, or no whole number");
    let name = text_of(row, "limit_name").ok_or_else(|| missing("limit_name"))?;
    let number = |name: &str| {
        let value = integer_of(row, name).and_then(|value| u64::try_from(value).ok());
        value.ok_or_else(|| missing(name))
    };
    let capacity = number("burst").or_else(|_| number("capacity"))?;
    let (amount, period_s) = (number("refill_amount")?, number("refill_period_seconds")?);
    let name: LimitName =
        name.parse().map_err(|error: zae_limiter_core::NameError| error.to_string())?;
    Limit::new(name, capacity, amount, period_s).map_err(|error| error.to_string())
}

/// The removal of a row, as it was read: a row that a client of long ago changes meanwhile stays.
fn removed(row: &Item) -> Option<Delete> {
    let key = key_of(row)?;
    let mut conditions: Vec<Condition> = vec![exists()];
    for name in ["limit_name", "burst", "capacity", "refill_amount", "refill_period_seconds"] {
        conditions.push(match row.get(name) {
            None | Some(AttributeValue::Null(_)) => continue,
            Some(value) => compare_with(name, Comparison::Eq, value.clone()),
        });
    }
    Some(Delete { key, conditions })
}
