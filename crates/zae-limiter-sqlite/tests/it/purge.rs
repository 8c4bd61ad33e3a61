//! A purge that stops half way: it is in the log before anything is gone, and the next one goes on.

use crate::common::{START, Scratch, change, limits, runtime, take};
use zae_limiter_core::{AuditAction, AuditSubject, NamespaceId, NamespaceName};
use zae_limiter_store::{AuditQuery, HistoryStore, NamespaceStore, PageRequest};

#[test]
fn a_purge_is_told_before_anything_is_gone() {
    let scratch = Scratch::new();
    runtime().block_on(async {
        let store = scratch.open();
        let (name, id): (NamespaceName, NamespaceId) =
            ("team".parse().expect("a name"), "team-id".parse().expect("an id"));
        store.register_namespace(&name, &id, &change(1)).await.expect("a new name");
        let team = store.in_namespace(&name).expect("it is registered");
        assert_eq!(take(&team, "key", &limits("rpm:60/min"), 1, START).await, Some(59));
        store.delete_namespace(&name, &change(2)).await.expect("it is there");
        // Whatever stops a purge, stops it here: no bucket can be deleted.
        let stop =
            "CREATE TRIGGER stop BEFORE DELETE ON bucket BEGIN SELECT RAISE(ABORT, 'stopped'); END";
        scratch.sqlite().execute_batch(stop).expect("a trigger");
        store.purge_namespace(&id, &change(3)).await.expect_err("it is stopped");
        let told = async || {
            let query = AuditQuery { subject: AuditSubject::System, page: PageRequest::default() };
            let events = store.audit_events(&query).await.expect("a query").items;
            events.iter().filter(|event| event.action == AuditAction::NamespacePurged).count()
        };
        assert_eq!(told().await, 1, "the order is in the log");
        store.recover_namespace(&id, &change(4)).await.expect_err("it is being purged");
        scratch.sqlite().execute_batch("DROP TRIGGER stop").expect("the trigger is there");
        assert!(store.purge_namespace(&id, &change(5)).await.expect("it goes on").records > 0);
        assert_eq!(told().await, 2, "and so is the one that came to the end");
        assert!(
            store
                .orphan_namespaces(&PageRequest::default())
                .await
                .expect("a query")
                .items
                .is_empty()
        );
    });
}
