//! What becomes of the archive of audit events when its stack is deleted. Recorded replies.

use zae_limiter_deploy::DeployError;
use zae_limiter_testkit::aws::replies::Replies;

use crate::adverse::{remove, with_outputs};
use crate::stack::{NAME, NOT_THERE, event, events};

const DELETED: &str = "<DeleteResult></DeleteResult>";
const EMPTY: &str = "<ListBucketResult></ListBucketResult>";
const MISSING: &str = "<Error><Code>NoSuchBucket</Code><Message>none</Message></Error>";

/// What S3 is asked, as [`asked`] tells it.
const LIST: &str = "GET /the-archive";
const DELETE: &str = "POST /the-archive";
const REMOVE: &str = "DELETE /the-archive";

/// A stack whose deletion comes to its end; S3 has no replies yet.
fn going(archive_on_delete: &str) -> Replies {
    let outputs =
        [("AuditArchiveBucketName", "the-archive"), ("ArchiveOnDelete", archive_on_delete)];
    Replies::start()
        .on("DescribeStacks", &with_outputs("CREATE_COMPLETE", &outputs, ""))
        .on("DescribeStackEvents", &events(&[]))
        .on("DescribeStackEvents", &events(&[event("2", NAME, "DELETE_COMPLETE", "")]))
        .on("DeleteStack", "")
        .error("DescribeStacks", NOT_THERE.0, NOT_THERE.1)
}

fn key(number: usize) -> String {
    format!("audit/2026/01/01/{number:04}.jsonl.gz")
}

fn page(keys: impl Iterator<Item = usize>, more: &str) -> String {
    let contents = |number| format!("<Contents><Key>{}</Key></Contents>", key(number));
    format!("<ListBucketResult>{}{more}</ListBucketResult>", keys.map(contents).collect::<String>())
}

/// The answer about objects of which some stay.
fn stay(which: &[(usize, &str)]) -> String {
    let error = |(number, code): &(usize, &str)| {
        let key = key(*number);
        format!("<Error><Key>{key}</Key><Code>{code}</Code><Message>said S3</Message></Error>")
    };
    format!("<DeleteResult>{}</DeleteResult>", which.iter().map(error).collect::<String>())
}

/// What S3 was asked: method and bucket.
fn asked(replies: &Replies) -> Vec<String> {
    let of_s3 = replies.paths().into_iter().filter(|path| path != "POST /");
    let bucket = |path: String| {
        let path = path.split('?').next().unwrap_or_default();
        path.trim_end_matches('/').to_owned()
    };
    of_s3.map(bucket).collect()
}

/// Page two of an archive.
#[tokio::test]
async fn an_archive_that_is_to_go_is_emptied_page_by_page_and_removed() {
    let truncated = "<IsTruncated>true</IsTruncated>\
                     <NextContinuationToken>two</NextContinuationToken>";
    let replies = going("empty")
        .whole("GET", "200 OK", &page(0..1_000, truncated))
        .whole("GET", "200 OK", &page(1_000..1_003, ""))
        .whole("GET", "200 OK", EMPTY)
        .whole("POST", "200 OK", DELETED)
        .whole("DELETE", "204 No Content", "");
    assert_eq!(remove(&replies, true).await.expect("deleted"), None, "no bucket stays");
    assert_eq!(asked(&replies), [LIST, DELETE, LIST, DELETE, LIST, REMOVE]);
    let sent = replies.asked("POST");
    let counts: Vec<usize> = sent.iter().map(|body| body.matches("<Key>").count()).collect();
    assert_eq!(counts, [1_000, 3], "every object of both pages");
    assert!(sent[0].contains(&key(0)) && sent[0].contains(&key(999)));
    assert!(sent[1].contains(&key(1_000)) && sent[1].contains(&key(1_002)));
    // The stack is gone by then: what its function archives at the last moment goes as well.
    let actions = replies.actions();
    let described = actions.iter().rposition(|action| action == "DescribeStacks");
    assert!(described < actions.iter().position(|action| action == "GET"), "{actions:?}");
}

#[tokio::test]
async fn an_archive_stays_unless_it_is_to_go_and_the_stack_is_gone() {
    let kept = going("retain");
    assert_eq!(remove(&kept, true).await.expect("deleted").as_deref(), Some("the-archive"));
    assert_eq!(asked(&kept), [""; 0]);
    // Nobody has waited until the function is gone.
    let begun = going("empty");
    assert_eq!(remove(&begun, false).await.expect("begun").as_deref(), Some("the-archive"));
    assert_eq!(asked(&begun), [""; 0]);
    // The stack is still there, and its function archives.
    let outputs = [("AuditArchiveBucketName", "the-archive"), ("ArchiveOnDelete", "empty")];
    let failed = event("2", "RateLimitsTable", "DELETE_FAILED", "deletion protection is on");
    let stuck = Replies::start()
        .on("DescribeStacks", &with_outputs("CREATE_COMPLETE", &outputs, ""))
        .on("DeleteStack", "")
        .on("DescribeStacks", &with_outputs("DELETE_FAILED", &outputs, ""))
        .on("DescribeStackEvents", &events(&[]))
        .on("DescribeStackEvents", &events(&[failed]));
    let error = remove(&stuck, true).await.expect_err("a failure");
    assert!(matches!(error, DeployError::StackFailed { .. }), "{error}");
    assert_eq!(asked(&stuck), [""; 0]);
}

/// The stack is gone: without the name nobody would find what is left.
#[tokio::test]
async fn an_object_that_stays_is_an_error_that_names_the_bucket() {
    let replies = going("empty")
        .whole("GET", "200 OK", &page(0..3, ""))
        .whole("GET", "200 OK", EMPTY)
        .whole("POST", "200 OK", &stay(&[(0, "InternalError"), (1, "AccessDenied")]))
        .whole("DELETE", "204 No Content", "");
    let error = remove(&replies, true).await.expect_err("an object stays");
    assert_eq!(
        error.to_string(),
        format!(
            "stack my-app is deleted, and its archive stays in the bucket the-archive: \
             DeleteObjects: {}: said S3",
            key(1)
        )
    );
    assert!(matches!(error, DeployError::ArchiveStays { .. }) && error.is_denied());
    let hint = error.hint().unwrap_or_default();
    assert!(hint.contains("`aws s3 rb s3://the-archive --force`"), "{hint}");
    assert_eq!(asked(&replies), [LIST, DELETE], "it is not asked again, and the bucket stays");
}

#[tokio::test]
async fn objects_that_s3_was_too_busy_for_are_deleted_by_the_next_request() {
    let replies = going("empty")
        .whole("GET", "200 OK", &page(0..3, ""))
        .whole("GET", "200 OK", &page(1..2, ""))
        .whole("GET", "200 OK", EMPTY)
        .whole("POST", "200 OK", &stay(&[(1, "SlowDown")]))
        .whole("POST", "200 OK", DELETED)
        .whole("DELETE", "204 No Content", "");
    assert_eq!(remove(&replies, true).await.expect("deleted"), None);
    assert_eq!(asked(&replies), [LIST, DELETE, LIST, DELETE, LIST, REMOVE]);
    // Not for ever.
    let mut replies = going("empty").whole("POST", "200 OK", &stay(&[(1, "InternalError")]));
    for _ in 0..20 {
        replies = replies.whole("GET", "200 OK", &page(0..3, ""));
    }
    let replies = replies.whole("GET", "200 OK", EMPTY).whole("DELETE", "204 No Content", "");
    let error = remove(&replies, true).await.expect_err("busy for ever");
    assert!(matches!(error, DeployError::ArchiveStays { .. }) && error.is_passing(), "{error}");
    assert_eq!(replies.asked("POST").len(), 11);
}

#[tokio::test]
async fn an_archive_that_is_gone_already_is_removed() {
    let gone = going("empty").whole("GET", "404 Not Found", MISSING).whole(
        "DELETE",
        "404 Not Found",
        MISSING,
    );
    assert_eq!(remove(&gone, true).await.expect("deleted"), None);
    // Somebody removes it at the same moment.
    let going = going("empty")
        .whole("GET", "200 OK", &page(0..3, ""))
        .whole("GET", "404 Not Found", MISSING)
        .whole("POST", "404 Not Found", MISSING)
        .whole("DELETE", "404 Not Found", MISSING);
    assert_eq!(remove(&going, true).await.expect("deleted"), None);
    assert_eq!(asked(&going), [LIST, DELETE, LIST, REMOVE]);
}

/// Without its latest versions a bucket looks empty, and is not.
#[tokio::test]
async fn an_archive_with_versions_is_emptied_of_them_too() {
    let not_empty = "<Error><Code>BucketNotEmpty</Code><Message>not empty</Message></Error>";
    let version = |kind: &str, number: usize, version: &str| {
        format!("<{kind}><Key>{}</Key><VersionId>{version}</VersionId></{kind}>", key(number))
    };
    let page = |of: &str| format!("<ListVersionsResult>{of}</ListVersionsResult>");
    let first = page(&(version("Version", 1, "v1") + &version("DeleteMarker", 1, "v2")));
    let second = page(&version("Version", 2, "null"));
    let replies = going("empty")
        .whole("GET", "200 OK", EMPTY)
        .whole("DELETE", "409 Conflict", not_empty)
        .whole("GET", "200 OK", &first)
        .whole("GET", "200 OK", &second)
        .whole("GET", "200 OK", &page(""))
        .whole("POST", "200 OK", DELETED)
        .whole("DELETE", "204 No Content", "");
    assert_eq!(remove(&replies, true).await.expect("deleted"), None);
    let sent = replies.asked("POST").join("\n");
    for version in ["v1", "v2", "null"] {
        assert!(sent.contains(&format!("<VersionId>{version}</VersionId>")), "{version}: {sent}");
    }
    assert_eq!(asked(&replies).last().map(String::as_str), Some(REMOVE));
    // Who fills it as fast as it is emptied wins in the end.
    let mut replies =
        going("empty").whole("GET", "200 OK", EMPTY).whole("GET", "200 OK", &page(""));
    for _ in 0..20 {
        replies = replies.whole("DELETE", "409 Conflict", not_empty);
    }
    let replies = replies.whole("DELETE", "204 No Content", "");
    let error = remove(&replies, true).await.expect_err("never empty");
    assert!(matches!(&error, DeployError::ArchiveStays { .. }), "{error}");
    assert_eq!(replies.asked("DELETE").len(), 4);
}
