//! Entities, namespaces, audit events, usage: written by one, read by the other.

use serde_json::json;
use zae_limiter_store::{AuditQuery, PageRequest, UsageQuery};
use zae_limiter_testkit::zae_limiter::{
    AuditAction, AuditSubject, CapacityScope, Level, NewEntity, RateLimiter, UsageWindow,
};

use crate::interop::on_both_tables;
use crate::interop::table::{Made, Shared, limits, of_entity, take, text};

async fn events(rust: &RateLimiter, subject: &str) -> Vec<(AuditAction, Option<String>)> {
    let subject: AuditSubject = subject.parse().unwrap();
    let page =
        rust.audit_events(&AuditQuery { subject, page: PageRequest::default() }).await.unwrap();
    page.items
        .into_iter()
        .map(|event| (event.action, event.principal.map(|principal| principal.to_string())))
        .collect()
}

on_both_tables! {
    async fn entities_of_either_are_entities_of_both(shared: Shared) {
        let (rust, mut python) = (shared.rust().await, shared.python());
        let metadata = [("plan".to_owned(), "gold".to_owned())];
        let new = |id: &str, parent: Option<&str>| NewEntity {
            id: id.parse().unwrap(),
            name: format!("The {id}"),
            parent: parent.map(|parent| parent.parse().unwrap()),
            cascade: parent.is_some(),
            metadata: metadata.clone().into(),
        };
        rust.create_entity(new("org", None)).await.unwrap();
        rust.create_entity(new("key-r", Some("org"))).await.unwrap();
        let theirs = "limiter.create_entity('key-p', name='The key-p', parent_id='org', cascade=True, metadata={'plan': 'gold'}, principal='python')";
        python.eval(theirs);

        for key in ["key-r", "key-p"] {
            let seen = rust.entity(key).await.unwrap().unwrap();
            let wanted = (format!("The {key}"), Some("org".to_owned()), true, metadata.clone().into());
            assert_eq!((seen.name, seen.parent.map(|parent| parent.to_string()), seen.cascade, seen.metadata), wanted);
            assert!(seen.created_at.0 > 1_700_000_000_000);
            let seen = python.eval(&format!("limiter.get_entity({key:?})"));
            let fields = ["name", "parent_id", "cascade", "metadata"].map(|field| seen[field].clone());
            assert_eq!(fields, [json!(format!("The {key}")), json!("org"), json!(true), json!({ "plan": "gold" })], "{key}");
            assert!(seen["created_at"].as_str().is_some_and(|at| at.starts_with("20")), "{seen}");
        }
        let children = rust.children("org", &PageRequest::default()).await.unwrap().items;
        assert_eq!(children.iter().map(|child| child.id.as_str()).collect::<Vec<_>>(), ["key-p", "key-r"]);
        assert_eq!(python.eval("sorted(child.id for child in limiter.get_children('org'))"), json!(["key-p", "key-r"]));

        // Neither makes what the other has made, and what one deletes is gone for both, buckets
        // included.
        assert!(rust.create_entity(new("key-p", None)).await.is_err());
        assert_eq!(python.try_eval("limiter.create_entity('key-r', principal='python')").unwrap_err().class, "EntityExistsError");
        rust.set_limits(&Level::System, limits("rpd:1000/day")).await.unwrap();
        for key in ["key-r", "key-p"] {
            assert!(take(&rust, key, "rpd", 1).await);
        }
        python.eval("limiter.delete_entity('key-r', principal='python')");
        rust.delete_entity("key-p").await.unwrap();
        for key in ["key-r", "key-p"] {
            assert_eq!(rust.entity(key).await.unwrap(), None);
            assert_eq!(python.eval(&format!("limiter.get_entity({key:?})")), json!(null));
            let left = shared.items().iter().filter(|item| !text(&item["PK"]).contains("/AUDIT#") && text(&item["PK"]).contains(key)).count();
            assert_eq!(left, 0, "{key}");
        }
    }

    /// Python can move an entity to another parent; we follow, with its buckets.
    async fn a_parent_changed_by_python_is_followed(shared: Shared) {
        let (rust, mut python) = (shared.rust().await, shared.python());
        rust.set_limits(&Level::System, limits("rpd:1000/day")).await.unwrap();
        python.eval("repo.set_version_record('0.10.0', lambda_version='0.17.0', updated_by='python')");
        for id in ["old", "new"] {
            python.eval(&format!("limiter.create_entity({id:?}, principal='python')"));
        }
        python.eval("limiter.create_entity('key', parent_id='old', cascade=True, principal='python')");
        assert!(take(&rust, "key", "rpd", 10).await);
        assert!(python.take("key", "rpd", 10));
        assert_eq!(python.eval("limiter.set_parent('key', 'new', principal='python')"), 1);
        assert!(take(&rust, "key", "rpd", 10).await);
        assert!(python.take("key", "rpd", 10));
        let spent = |id: &str| crate::interop::table::whole(&shared.bucket(id)["b_rpd_tc"]) / 1000;
        assert_eq!(["key", "old", "new"].map(spent), [40, 20, 20]);
        assert_eq!(rust.entity("key").await.unwrap().unwrap().parent.unwrap().as_str(), "new");
    }

    async fn namespaces_of_either_are_namespaces_of_both(shared: Shared) {
        let (rust, mut python) = (shared.rust().await, shared.python());
        let ours = rust.register_namespace("team-r").await.unwrap();
        let theirs = python.eval("repo.register_namespace('team-p')");
        assert_eq!(python.eval("repo.get_namespace('team-r')['namespace_id']"), ours.id.as_str());
        assert_eq!(rust.namespace_info("team-p").await.unwrap().unwrap().id.as_str(), theirs.as_str().unwrap());
        let names = json!(["default", "team-p", "team-r"]);
        assert_eq!(python.eval("sorted(namespace['name'] if 'name' in namespace else namespace['namespace_name'] for namespace in repo.list_namespaces())"), names);
        let listed = rust.namespaces(&PageRequest::default()).await.unwrap().items;
        assert_eq!(json!(listed.iter().map(|namespace| namespace.name.as_str()).collect::<Vec<_>>()), names);

        // What is in one is not in another.
        for namespace in ["team-r", "team-p"] {
            let there = shared.rust_in(namespace).await;
            there.set_limits(&Level::System, limits("rpd:10/day")).await.unwrap();
            let mut python = shared.unconnected_python();
            python.eval(&format!("connect({namespace:?})"));
            assert!(python.take("key", "rpd", 6));
            assert!(!take(&there, "key", "rpd", 5).await && take(&there, "key", "rpd", 4).await);
        }
        // Deleted by one, recovered by the other.
        python.eval("repo.delete_namespace('team-r')");
        assert_eq!(rust.namespace_info("team-r").await.unwrap(), None);
        assert_eq!(rust.recover_namespace(ours.id.clone()).await.unwrap().name.as_str(), "team-r");
        assert!(rust.delete_namespace("team-p").await.unwrap());
        assert_eq!(python.eval("repo.get_namespace('team-p')"), json!(null));
        assert_eq!(python.eval(&format!("repo.recover_namespace({})", theirs)), "team-p");
        assert!(!take(&shared.rust_in("team-p").await, "key", "rpd", 1).await, "with its buckets");
        // Purged by one, gone for both.
        rust.delete_namespace("team-p").await.unwrap();
        python.eval(&format!("repo.purge_namespace({})", theirs));
        python.eval("repo.delete_namespace('team-r')");
        rust.purge_namespace(ours.id.clone()).await.unwrap();
        for id in [ours.id.as_str(), theirs.as_str().unwrap()] {
            assert!(!shared.items().iter().any(|item| text(&item["PK"]).starts_with(&format!("{id}/"))), "{id}");
        }
    }

    async fn audit_events_of_either_are_read_by_both(shared: Shared) {
        let (rust, mut python) = (shared.rust().await, shared.python());
        rust.create_entity(NewEntity {
            id: "key".parse().unwrap(), name: "Key".to_owned(), parent: None, cascade: false, metadata: Default::default()
        }).await.unwrap();
        python.eval("limiter.set_limits('key', [Limit.per_day('rpd', 10)], resource='gpt-4', principal='python')");
        rust.set_limits(&of_entity("key"), limits("rpd:20/day")).await.unwrap();
        rust.disable(&of_entity("key")).await.unwrap();
        python.eval("repo.enable_entity('key', 'gpt-4', principal='python')");
        python.eval("limiter.delete_limits('key', resource='gpt-4', principal='python')");

        let (by_rust, by_python) = (Some("rust".to_owned()), Some("python".to_owned()));
        let wanted = [
            (AuditAction::LimitsDeleted, by_python.clone()),
            // Python has no word of its own for a flag.
            (AuditAction::LimitsSet, by_python.clone()),
            (AuditAction::FlagsSet, by_rust.clone()),
            (AuditAction::LimitsSet, by_rust.clone()),
            (AuditAction::LimitsSet, by_python),
            (AuditAction::EntityCreated, by_rust),
        ];
        let seen = events(&rust, "key").await;
        assert_eq!(seen.len(), wanted.len(), "{seen:?}");
        for (seen, wanted) in seen.iter().zip(&wanted) {
            assert!(seen == wanted || (seen.0, &seen.1) == (AuditAction::FlagsSet, &wanted.1), "{seen:?} instead of {wanted:?}");
        }
        let theirs = python.eval("[[event.action, event.principal, event.resource] for event in limiter.get_audit_events('key')]");
        let principals: Vec<_> = theirs.as_array().unwrap().iter().map(|event| event[1].as_str().unwrap()).collect();
        assert_eq!(principals, ["python", "python", "rust", "rust", "python", "rust"], "{theirs}");
        assert_eq!(theirs[3], json!(["limits_set", "rust", "gpt-4"]));
        assert_eq!(theirs[5], json!(["entity_created", "rust", null]));

        rust.set_limits(&Level::System, limits("rpd:20/day")).await.unwrap();
        python.eval("limiter.set_system_defaults([Limit.per_day('rpd', 10)], principal='python')");
        rust.set_limits(&Level::Resource("gpt-4".parse().unwrap()), limits("rpd:20/day")).await.unwrap();
        python.eval("limiter.set_resource_defaults('gpt-4', [Limit.per_day('rpd', 10)], principal='python')");
        for subject in ["$SYSTEM", "$RESOURCE:gpt-4"] {
            let theirs = python.eval(&format!("[event.principal for event in limiter.get_audit_events({subject:?})]"));
            assert_eq!(theirs.as_array().unwrap()[..2], [json!("python"), json!("rust")], "{subject}");
            let ours: Vec<_> = events(&rust, subject).await.into_iter().take(2).map(|(_, principal)| principal.unwrap()).collect();
            assert_eq!(ours, ["python", "rust"], "{subject}");
        }
    }

    /// By-resource reads. On a table of ours GSI2 keeps keys only, which is what makes a take cost
    /// one write unit instead of two; the price is that Python, which reads buckets and usage out
    /// of that index, finds nothing there.
    async fn what_a_keys_only_gsi2_costs_python(shared: Shared) {
        let (rust, mut python) = (shared.rust().await, shared.python());
        rust.set_limits(&Level::System, limits("rpd:100/day")).await.unwrap();
        for key in ["a", "b"] {
            assert!(take(&rust, key, "rpd", 25).await);
            assert!(python.take(key, "rpd", 25));
        }
        // A usage snapshot as the aggregator of the Python package writes it.
        let namespace = python.eval("repo.namespace_id").as_str().unwrap().to_owned();
        let start = "2026-01-01T10:00:00Z";
        let pk = format!("{namespace}/ENTITY#a");
        let snapshot = json!({
            "PK": { "S": pk }, "SK": { "S": format!("#USAGE#gpt-4#{start}") },
            "GSI2PK": { "S": format!("{namespace}/RESOURCE#gpt-4") }, "GSI2SK": { "S": format!("USAGE#{start}#a") },
            "GSI4PK": { "S": namespace }, "GSI4SK": { "S": pk },
            "entity_id": { "S": "a" }, "resource": { "S": "gpt-4" }, "window": { "S": "hourly" }, "window_start": { "S": start },
            "rpd": { "N": "50" }, "total_events": { "N": "2" },
        });
        shared.engine.call("PutItem", &json!({ "TableName": "shared", "Item": snapshot })).ok();

        let capacity = rust.resource_capacity("gpt-4", "rpd", CapacityScope::All).await.unwrap();
        assert_eq!((capacity.capacity, capacity.available, capacity.entities.len()), (200, 100, 2), "we see everything on either table");
        let usage = |entity: Option<&str>, resource: Option<&str>| UsageQuery {
            entity: entity.map(|entity| entity.parse().unwrap()),
            resource: resource.map(|resource| resource.parse().unwrap()),
            window: UsageWindow::Hourly,
            from: None,
            until: None,
            page: PageRequest::default(),
        };
        assert_eq!(rust.usage(&usage(None, Some("gpt-4"))).await.unwrap().items.len(), 1);
        assert_eq!(rust.usage(&usage(Some("a"), None)).await.unwrap().items.len(), 1);

        // By entity, Python sees everything on either table too.
        assert_eq!(python.eval("len(limiter.get_usage_snapshots(entity_id='a')[0])"), 1);
        assert_eq!(python.eval("[bucket.tokens_milli // 1000 for bucket in repo.get_buckets('a') if bucket.limit_name == 'rpd']"), json!([50]));
        // By resource, it finds what the index keeps: an empty answer, not an error.
        let found = [
            python.eval("len(repo.get_resource_buckets('gpt-4', 'rpd'))"),
            python.eval("limiter.get_resource_capacity('gpt-4', 'rpd').total_capacity"),
            python.eval("limiter.get_resource_capacity('gpt-4', 'rpd').total_available"),
            python.eval("len(limiter.get_usage_snapshots(resource='gpt-4')[0])"),
            python.eval("limiter.get_usage_summary(resource='gpt-4').snapshot_count"),
        ];
        let wanted = match shared.made { Made::ByUs => [0, 0, 0, 0, 0], Made::ByPython => [2, 200, 100, 1, 1] };
        assert_eq!(found.map(|found| found.as_u64().unwrap()), wanted);
        // Its fan-outs by resource need keys only, and reach every bucket.
        assert_eq!(python.eval("repo.disable_resource('gpt-4', principal='python')"), 2);
        assert_eq!(python.eval("repo.clear_resource_disabled('gpt-4', principal='python')"), 2);
    }
}
