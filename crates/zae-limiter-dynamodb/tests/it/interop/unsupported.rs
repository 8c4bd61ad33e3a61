//! What only Python can do: we say so, and let nobody through on a guess.

use zae_limiter_dynamodb::Retention;
use zae_limiter_testkit::zae_limiter::{AcquireError, Level};

use crate::interop::on_both_tables;
use crate::interop::table::{Made, Shared, limits, of_entity, request, take};

/// Checks that a take of ours fails with a message that has these words.
#[track_caller]
fn says(result: Result<impl Sized, AcquireError>, words: &[&str]) {
    match result.map(|_| "granted") {
        Err(AcquireError::Incompatible(error)) => {
            let message = error.message();
            assert!(
                words.iter().all(|word| message.contains(word)),
                "{message:?} does not say {words:?}"
            );
        }
        other => panic!("{other:?}, not incompatible"),
    }
}

on_both_tables! {
    /// Limits of a kind we do not have, first as stored and then as they are on a bucket of theirs.
    async fn limits_of_other_kinds_are_refused_with_their_name(shared: Shared) {
        let (rust, mut python) = (shared.rust().await, shared.python());
        python.eval("repo.set_version_record('0.10.0', lambda_version='0.17.0', updated_by='python')");
        for (kind, limit, words) in [
            ("schedule", "Limit.per_day('rpd', 100).with_schedule([ScheduleEntry(cron='* 9-17 * * *', scale=0.5)])", ["schedule", "rpd"]),
            ("quota", "Limit.quota('rpd', 100, cron='0 0 * * *')", ["quota", "rpd"]),
            ("session", "Limit.quota('rpd', 100, reset_after=datetime.timedelta(hours=1))", ["session", "rpd"]),
            ("soft", "Limit.per_day('rpd', 100, soft=True)", ["soft", "rpd"]),
        ] {
            let key = format!("key-{kind}");
            python.eval(&format!("limiter.set_limits({key:?}, [{limit}], resource='gpt-4', principal='python')"));
            says(rust.acquire(request(&key, "rpd", 1)).await, &words);
            assert!(python.take(&key, "rpd", 1), "{key}: Python goes on");
            // Even with limits of the caller's own: the bucket says what it is.
            says(rust.acquire(request(&key, "rpd", 1).limits(limits("rpd:100/day"))).await, &["which this version does not support"]);
            // What nobody supports can still be replaced by what both do.
            rust.set_limits(&of_entity(&key), limits("rpd:50/day")).await.unwrap();
            assert_eq!(rust.level(&of_entity(&key)).await.unwrap().unwrap().limits[..], limits("rpd:50/day")[..]);
        }
        // A level that another one outweighs may be of any kind.
        python.eval("limiter.set_system_defaults([Limit.quota('rpd', 100, cron='0 0 * * *')], principal='python')");
        rust.set_limits(&of_entity("fine"), limits("rpd:10/day")).await.unwrap();
        assert!(take(&rust, "fine", "rpd", 10).await);
        says(rust.acquire(request("not-fine", "rpd", 1)).await, &["quota"]);
    }

    async fn a_bypass_is_refused_with_its_name(shared: Shared) {
        let (rust, mut python) = (shared.rust().await, shared.python());
        python.eval("repo.set_version_record('0.10.0', lambda_version='0.17.0', updated_by='python')");
        rust.set_limits(&Level::System, limits("rpd:100/day")).await.unwrap();
        assert!(take(&rust, "key", "rpd", 1).await);
        python.eval("repo.bypass_entity('key', 'gpt-4', principal='python')");
        says(rust.acquire(request("key", "rpd", 1)).await, &["bypass"]);
        // Ours to end: enabled again, it is a bucket like any other.
        python.eval("repo.clear_entity_disabled('key', 'gpt-4', principal='python')");
        assert!(take(&rust, "key", "rpd", 1).await);
    }

    /// What is ours in the version record outlives every write of it by Python, and without a
    /// `lambda_version` Python sees no code to push.
    async fn python_keeps_our_versions_and_pushes_nothing(shared: Shared) {
        let mut python = shared.python();
        let operator = shared.operator().await;
        operator.stamp_function(Some("0.1.0")).await.unwrap();
        operator.require_shard_readers().await.unwrap();
        let retention = Retention { usage_days: Some(400), audit_days: Some(30) };
        operator.set_retention(retention).await.unwrap();
        let check = "(lambda found: (found.is_compatible, found.requires_lambda_update))(zae_limiter.version.check_compatibility(version(), zae_limiter.version.InfrastructureVersion.from_record(repo.get_version_record())))";
        assert_eq!(python.eval(check), serde_json::json!([true, false]));
        python.eval("connect()");
        python.eval("repo.set_version_record('0.10.0', lambda_version='0.17.0', updated_by='python')");
        let versions = operator.versions().await.unwrap().unwrap();
        assert_eq!((versions.min_reader, versions.retention), (2, retention));
        assert_eq!((versions.client_min.as_str(), versions.function.as_deref()), ("0.17.0", Some("0.1.0")));
    }

    /// Without a `lambda_version`, as on a table of ours, Python keeps such features to itself: the
    /// table has no Lambda that could honour them.
    async fn python_writes_new_kinds_only_beside_its_own_lambda(shared: Shared) {
        let mut python = shared.python();
        for call in [
            "limiter.set_limits('key', [Limit.quota('rpd', 100, reset_after=datetime.timedelta(hours=1))], principal='python')",
            "limiter.set_limits('key', [Limit.per_day('rpd', 100, soft=True)], principal='python')",
            "repo.bypass_entity('key', principal='python')",
            "repo.set_resource_cascade('gpt-4', False, principal='python')",
        ] {
            match (shared.made, python.try_eval(call)) {
                (Made::ByUs, Err(raised)) => assert_eq!(raised.class, "VersionMismatchError", "{call}: {}", raised.message),
                (Made::ByPython, Ok(_)) => {}
                (made, other) => panic!("{made:?} {call}: {other:?}"),
            }
        }
    }
}
