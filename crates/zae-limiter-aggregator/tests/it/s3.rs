//! The archive in S3, by its own client, against a server that keeps what it is sent.

use std::sync::Arc;

use zae_limiter_aggregator::{Aggregator, S3Archive};
use zae_limiter_dynamodb::DynamoStore;
use zae_limiter_testkit::aws::objects::Objects;

use crate::archive::{lines, log};
use crate::rig::Rig;

const DAY_ONE: &str = "kept/audit/year=2026/month=01/day=01/shardId-1-93-105.jsonl.gz";
const DAY_TWO: &str = "kept/audit/year=2026/month=01/day=02/shardId-1-99-111.jsonl.gz";

async fn archiving(rig: &Rig, server: &Objects) -> Aggregator {
    // An endpoint of the table on this machine brings credentials, and connections without TLS.
    let stack = DynamoStore::builder("stack", "us-east-1").endpoint_url("http://127.0.0.1:1");
    let config = stack.client_config().await.unwrap();
    let archive = S3Archive::new(config, "kept", Some(server.endpoint()));
    rig.aggregator(rig.table.client(1)).archive(Arc::new(archive))
}

#[tokio::test]
async fn expired_events_are_objects_that_a_repeated_batch_overwrites() {
    let (rig, server) = (Rig::new().await, Objects::start());
    let aggregator = archiving(&rig, &server).await;
    let records = log(&rig.namespace);
    let report = aggregator.process(&records).await;
    assert!(report.is_complete(), "{report:?}");
    assert_eq!((report.expired, report.archived, report.objects), (4, 4, 2));
    let objects = server.all();
    let names: Vec<&str> = objects.keys().map(String::as_str).collect();
    assert_eq!(names, [DAY_ONE, DAY_TWO]);
    for stored in objects.values() {
        assert_eq!(stored.headers["content-type"], "application/x-ndjson");
        assert_eq!(stored.headers["content-encoding"], "gzip");
        // Whoever owns the bucket decides how it is encrypted and who may read.
        let asked = |name: &&String| name.contains("encryption") || name.contains("acl");
        assert_eq!(stored.headers.keys().find(asked), None);
    }
    let ids = |name: &str| -> Vec<String> {
        let line = |line: &serde_json::Value| line["event_id"].as_str().unwrap().to_owned();
        lines(&objects[name].bytes).iter().map(line).collect()
    };
    assert_eq!(
        (ids(DAY_ONE), ids(DAY_TWO)),
        (vec!["01A".to_owned(), "01C".to_owned()], vec!["01B".to_owned(), "01D".to_owned()])
    );

    let again = aggregator.process(&records).await;
    assert_eq!((again.archived, again.counted, server.counts().0), (4, 0, 4));
    let bytes = |of: &std::collections::BTreeMap<String, _>| -> Vec<Vec<u8>> {
        of.values()
            .map(|stored: &zae_limiter_testkit::aws::objects::Stored| stored.bytes.clone())
            .collect()
    };
    assert_eq!(bytes(&server.all()), bytes(&objects), "the same objects, and no more");
}

#[tokio::test]
async fn a_refusal_of_s3_is_a_partial_failure_and_no_loss() {
    for status in ["503 Slow Down", "500 Internal Server Error", "403 Forbidden"] {
        let (rig, server) = (Rig::new().await, Objects::start());
        let aggregator = archiving(&rig, &server).await;
        let records = log(&rig.namespace);
        server.refuse(Some(status));
        let report = aggregator.process(&records).await;
        assert_eq!(report.failures["shardId-1"], records[0].sequence, "{status}");
        assert_eq!((report.archived, report.counted, report.error_count), (0, 12, 2), "{status}");
        assert!(report.errors[0].contains("was not archived"), "{report:?}");
        assert!(server.all().is_empty() && server.counts().1 >= 2);

        server.refuse(None);
        let report = aggregator.process(&records).await;
        assert!(report.is_complete(), "{report:?}");
        assert_eq!((report.archived, report.counted, report.repeated), (4, 0, 12), "{status}");
        assert_eq!(server.all().len(), 2);
    }
}

/// A record that cannot be read is kept as a letter; a letter that cannot be kept stops nothing.
#[tokio::test]
async fn a_record_that_cannot_be_read_is_a_letter_in_s3() {
    let (rig, server) = (Rig::new().await, Objects::start());
    let aggregator = archiving(&rig, &server).await;
    let mut records = log(&rig.namespace)[1..2].to_vec();
    records[0].new = None;
    let report = aggregator.process(&records).await;
    assert_eq!((report.poison, report.letters, report.is_complete()), (1, 1, true), "{report:?}");
    let (name, stored) = server.all().into_iter().next().unwrap();
    assert_eq!(name, format!("kept/dead-letter/shardId-1/{}.json", records[0].sequence));
    assert_eq!(stored.headers["content-type"], "application/json");
    assert!(!stored.headers.contains_key("content-encoding"));
    let letter: serde_json::Value = serde_json::from_slice(&stored.bytes).unwrap();
    assert_eq!(letter["record"]["sequence"], records[0].sequence);

    server.refuse(Some("503 Slow Down"));
    let report = aggregator.process(&records).await;
    assert_eq!((report.poison, report.letters, report.is_complete()), (1, 0, true), "{report:?}");
}
