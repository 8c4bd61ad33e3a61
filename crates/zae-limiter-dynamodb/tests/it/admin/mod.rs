//! What the conformance suite does not see of administration: the transactions themselves, lost
//! replies, several administrators at once, and items of the Python package.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod again;
mod concurrent;
mod deletion;
mod lost;
mod migrations;
mod python;
mod seeds;
mod versions;

use std::sync::Arc;

use zae_limiter_core::{
    AuditEvent, AuditSubject, BucketState, ConfigStamp, EntityId, Flag, Milli, Take,
};
use zae_limiter_dynamodb::records::keys;
use zae_limiter_dynamodb::table::{
    BatchPage, Item, Key, Put, Query, QueryPage, Table, TableError, Update, Write,
};
use zae_limiter_dynamodb::{DynamoOptions, DynamoStore};
use zae_limiter_store::{
    Adoption, AuditQuery, BoxFuture, BucketStore, BucketView, Change, ConfigStore, ConsumeOutcome,
    ConsumeRequest, EntityUpdate, HistoryStore, Level, LimitsInForce, MemberTake, NamespaceStore,
    NewEntity, PageRequest, ResetRequest, StoreError, StoreErrorKind,
};
use zae_limiter_testkit::table::{Call, EvalOptions, EvalTable, Told};

use crate::evaluated::{Rig, limits};

/// A table on which something happens just before it is asked to write.
struct Meddled<F> {
    table: EvalTable,
    /// Told of the keys that are about to be written.
    before: F,
}

impl<F: Fn(&[Key]) + Send + Sync + 'static> Table for Meddled<F> {
    fn update<'a>(&'a self, update: &'a Update) -> BoxFuture<'a, Result<Item, TableError>> {
        (self.before)(std::slice::from_ref(&update.key));
        self.table.update(update)
    }

    fn put<'a>(&'a self, put: &'a Put) -> BoxFuture<'a, Result<(), TableError>> {
        self.table.put(put)
    }

    fn transact<'a>(
        &'a self,
        writes: &'a [Write],
        token: &'a str,
    ) -> BoxFuture<'a, Result<(), TableError>> {
        let key = |write: &Write| match write {
            Write::Update(update) => Some(update.key.clone()),
            Write::Delete(delete) => Some(delete.key.clone()),
            _ => None,
        };
        (self.before)(&writes.iter().filter_map(key).collect::<Vec<_>>());
        self.table.transact(writes, token)
    }

    fn batch_get<'a>(
        &'a self,
        keys: &'a [Key],
        consistent: bool,
    ) -> BoxFuture<'a, Result<BatchPage, TableError>> {
        self.table.batch_get(keys, consistent)
    }

    fn query<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<QueryPage, TableError>> {
        self.table.query(query)
    }

    fn scan<'a>(
        &'a self,
        prefix: &'a str,
        start: Option<Item>,
    ) -> BoxFuture<'a, Result<QueryPage, TableError>> {
        self.table.scan(prefix, start)
    }

    fn delete_batch<'a>(&'a self, keys: &'a [Key]) -> BoxFuture<'a, Result<Vec<Key>, TableError>> {
        self.table.delete_batch(keys)
    }
}

fn id(text: &str) -> EntityId {
    text.parse().unwrap()
}

fn new_entity(name: &str, parent: Option<&str>) -> NewEntity {
    NewEntity {
        id: id(name),
        name: name.to_owned(),
        parent: parent.map(id),
        cascade: parent.is_some(),
        metadata: Default::default(),
    }
}

fn renamed(name: &str) -> EntityUpdate {
    EntityUpdate { name: Some(name.to_owned()), metadata: None }
}

fn on(entity: &str, resource: &str) -> Level {
    Level::EntityResource(id(entity), resource.parse().unwrap())
}

/// Takes one token of `rpm`, so that there is a bucket.
async fn take(rig: &Rig, store: &DynamoStore, entity: &str, resource: &str) -> ConsumeOutcome {
    use zae_limiter_store::Clock as _;
    let in_force =
        LimitsInForce::new(limits("rpm:100").limits, zae_limiter_core::LimitSource::Builder);
    let (entity, resource) = (id(entity), resource.parse().unwrap());
    let takes = [Take { limit: 0, amount: Milli(1000) }];
    let members = [MemberTake {
        entity: &entity,
        resource: &resource,
        limits: &in_force,
        takes: &takes,
        absent: &[],
    }];
    store.consume(&ConsumeRequest::new(&members, rig.clock.now())).await.unwrap()
}

async fn audit_of(store: &DynamoStore, subject: AuditSubject) -> Vec<AuditEvent> {
    store.audit_events(&AuditQuery { subject, page: PageRequest::first(1000) }).await.unwrap().items
}

/// The administrative writes there are, in an order in which all of them do something.
const DEEDS: [&str; 17] = [
    "create",
    "create child",
    "update",
    "set system",
    "set resource",
    "set entity",
    "set entity resource",
    "disable",
    "clear",
    "delete limits",
    "reset",
    "adopt",
    "register",
    "unregister",
    "recover",
    "delete child",
    "delete",
];

/// Does one of them.
async fn perform(store: &DynamoStore, deed: &str, change: &Change) -> Result<(), StoreError> {
    let (resource, team) = (Level::Resource("gpt-4".parse().unwrap()), "team".parse().unwrap());
    match deed {
        "create" => store.create_entity(&new_entity("org", None), change).await.map(drop),
        "create child" => {
            store.create_entity(&new_entity("key", Some("org")), change).await.map(drop)
        }
        "update" => store.update_entity(&id("org"), 1, &renamed("Org"), change).await.map(drop),
        "set system" => store.set_limits(&Level::System, &limits("rpm:1"), change).await.map(drop),
        "set resource" => store.set_limits(&resource, &limits("rpm:2"), change).await.map(drop),
        "set entity" => {
            store.set_limits(&Level::Entity(id("org")), &limits("rpm:3"), change).await.map(drop)
        }
        "set entity resource" => {
            store.set_limits(&on("org", "gpt-4"), &limits("rpm:4"), change).await.map(drop)
        }
        "disable" => {
            store.set_flag(&on("org", "other"), Some(Flag::Disabled), change).await.map(drop)
        }
        "clear" => store.set_flag(&on("org", "other"), None, change).await.map(drop),
        "delete limits" => store.delete_limits(&Level::Entity(id("org")), change).await.map(drop),
        "reset" => {
            let request = ResetRequest {
                entity: &id("org"),
                resource: &"gpt-4".parse().unwrap(),
                only: None,
            };
            store.reset(&request, change).await.map(drop)
        }
        "adopt" => {
            let (limits, at) = (limits("rpm:5/day").limits, change.at);
            let state = BucketState::full(&limits, ConfigStamp::default(), at);
            let (entity, resource) = (id("mover"), "gpt-4".parse().unwrap());
            let buckets = [BucketView { entity, resource, state }];
            let adoption = Adoption { buckets: &buckets, usage: &[], details: &[] };
            store.adopt(&adoption, change).await.map(drop)
        }
        "register" => {
            store.register_namespace(&team, &"team-id".parse().unwrap(), change).await.map(drop)
        }
        "unregister" => store.delete_namespace(&team, change).await.map(drop),
        "recover" => store.recover_namespace(&"team-id".parse().unwrap(), change).await.map(drop),
        "delete child" => store.delete_entity(&id("key"), change).await.map(drop),
        "delete" => store.delete_entity(&id("org"), change).await.map(drop),
        other => panic!("{other} is no deed"),
    }
}

/// A table on which the deeds before one have been done, and something to reset.
async fn before(deed: &str) -> Rig {
    let rig = Rig::new(EvalOptions::new().journal()).await;
    let store = rig.store().await;
    for earlier in DEEDS.iter().take_while(|earlier| **earlier != deed) {
        perform(&store, earlier, &rig.change()).await.unwrap();
    }
    assert!(matches!(take(&rig, &store, "org", "gpt-4").await, ConsumeOutcome::Granted(_)));
    rig.table.take_journal();
    rig
}

/// The calls that changed something.
fn writes(rig: &Rig) -> Vec<Call> {
    rig.table.take_journal().into_iter().filter(|call| !call.changes.is_empty()).collect()
}

fn is_audit(item: Option<&Item>, change: &Change) -> bool {
    item.and_then(|item| item.get("event_id")).and_then(|event| event.as_s().ok())
        == Some(&change.event.to_string())
}

#[tokio::test]
async fn every_change_is_one_transaction_with_its_audit_event() {
    for deed in DEEDS {
        let rig = before(deed).await;
        let (store, change) = (rig.store().await, rig.change());
        perform(&store, deed, &change).await.unwrap();
        let calls = writes(&rig);
        let with_event: Vec<&Call> = calls
            .iter()
            .filter(|call| call.changes.iter().any(|made| is_audit(made.after.as_ref(), &change)))
            .collect();
        // A deletion is ordered and finished, with the same event; everything else is one
        // transaction.
        let (call, last) = match with_event[..] {
            [call] if !is_deletion(deed) => (call, call),
            [order, end] if is_deletion(deed) => (order, end),
            _ => panic!("{deed}: the event is in {} calls", with_event.len()),
        };
        let others = |call: &Call| {
            call.changes.iter().filter(|made| !is_audit(made.after.as_ref(), &change)).count()
        };
        assert!(
            others(call) > 0 && others(last) > 0,
            "{deed}: nothing was changed together with its event: {calls:#?}"
        );
        assert_eq!((call.told, last.told), (Told::Done, Told::Done));
        assert_eq!(
            calls[0].number, call.number,
            "{deed}: something was written before it was recorded: {calls:#?}"
        );
        // Buckets have a copy of limits and flags, which is written afterwards, and go after the
        // order. Nothing else is written.
        let is_of_a_bucket =
            |other: &&Call| other.changes.iter().all(|made| made.key.pk.contains("/BUCKET#"));
        let beside = calls.iter().filter(is_of_a_bucket).count();
        assert_eq!(calls.len(), with_event.len() + beside, "{deed}: {calls:#?}");
        assert!(
            !is_deletion(deed) || calls[calls.len() - 1].number == last.number,
            "{deed}: the end is not the end: {calls:#?}"
        );
    }
}

fn is_deletion(deed: &str) -> bool {
    deed == "delete" || deed == "delete child"
}

/// A namespace leaves its log behind when it goes, so its purge is told where the order was given,
/// before anything is gone.
#[tokio::test]
async fn a_purge_is_told_in_the_namespace_it_was_ordered_from() {
    let rig = Rig::new(EvalOptions::new().journal()).await;
    let store = rig.store().await;
    for deed in ["register", "unregister"] {
        perform(&store, deed, &rig.change()).await.unwrap();
    }
    rig.table.take_journal();
    let change = rig.change();
    store.purge_namespace(&"team-id".parse().unwrap(), &change).await.unwrap();
    let calls = writes(&rig);
    let (first, last) = (&calls[0], &calls[calls.len() - 1]);
    assert!(first.changes.iter().any(|made| is_audit(made.after.as_ref(), &change)), "{first:?}");
    assert!(
        last.changes
            .iter()
            .any(|made| made.key == keys::namespace_by_id("team-id") && made.after.is_none()),
        "{last:?}"
    );
    let told = audit_of(&store, AuditSubject::System).await;
    let event = told.iter().find(|event| event.id == change.event).unwrap();
    assert!(
        event.details.contains(&("records".to_owned(), "2".to_owned())),
        "two events of its own log: {event:?}"
    );
}

#[tokio::test]
async fn an_event_id_is_used_once() {
    let rig = Rig::new(EvalOptions::new()).await;
    let (store, change) = (rig.store().await, rig.change());
    store.set_limits(&Level::System, &limits("rpm:1"), &change).await.unwrap();
    let error = store.set_limits(&Level::System, &limits("rpm:2"), &change).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::AlreadyExists, "{error}");
    assert_eq!(store.level(&Level::System).await.unwrap().unwrap().limits[0].capacity(), 1);
    assert_eq!(
        audit_of(&store, AuditSubject::System).await.len(),
        1 + 1,
        "this one, and that of the namespace"
    );
}

#[tokio::test]
async fn opening_says_what_is_missing() {
    let table = EvalTable::new();
    let shared: Arc<dyn Table> = Arc::new(table.clone());
    let open = async |name: &str| {
        DynamoStore::on_table(shared.clone(), DynamoOptions::new(), &name.parse().unwrap())
            .await
            .unwrap_err()
    };
    let error = open("default").await;
    assert!(
        error.kind() == StoreErrorKind::NotFound
            && error.message().contains("not been initialised"),
        "{error}"
    );
    // Twice is once.
    for _ in 0..2 {
        DynamoStore::initialise(&shared, &DynamoOptions::new()).await.unwrap();
    }
    let error = open("nowhere").await;
    assert!(
        error.kind() == StoreErrorKind::NotFound && error.message().contains("nowhere"),
        "{error}"
    );
    for version in ["1.0.0", "x", ""] {
        let mut record = table.get(&keys::version()).unwrap();
        record.insert("schema_version".to_owned(), zae_limiter_dynamodb::table::text(version));
        table.insert(&record);
        assert_eq!(open("default").await.kind(), StoreErrorKind::Incompatible);
        let error = DynamoStore::initialise(&shared, &DynamoOptions::new()).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Incompatible, "{error}");
    }
}
