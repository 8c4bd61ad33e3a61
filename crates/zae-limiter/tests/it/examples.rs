//! Runs every example on a file of its own, and looks at what it printed and at what it left in the
//! store.
//!
//! Where time matters the clock stands still or is turned by the example itself.

#[path = "../../examples/axum_gateway.rs"]
#[expect(dead_code, reason = "its main is for `cargo run --example`")]
mod axum_gateway;
#[path = "../../examples/basic.rs"]
#[expect(dead_code, reason = "its main is for `cargo run --example`")]
mod basic;
#[path = "../../examples/blocking.rs"]
#[expect(dead_code, reason = "its main is for `cargo run --example`")]
mod blocking;
#[path = "../../examples/hierarchical.rs"]
#[expect(dead_code, reason = "its main is for `cargo run --example`")]
mod hierarchical;
#[path = "../../examples/llm_blocks.rs"]
#[expect(dead_code, reason = "its main is for `cargo run --example`")]
mod llm_blocks;
#[path = "../../examples/llm_reconciliation.rs"]
#[expect(dead_code, reason = "its main is for `cargo run --example`")]
mod llm_reconciliation;

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum_gateway::{Gateway, ask};
use tempfile::TempDir;
use zae_limiter::{ManualClock, PageRequest, RateLimiter, TimeMs};

/// 2026-01-01T10:00:00Z
const START: TimeMs = TimeMs(1_767_261_600_000);

/// A file that goes away, a clock that stands still, and what was printed.
struct Stage {
    folder: TempDir,
    clock: ManualClock,
    out: Vec<u8>,
}

impl Stage {
    fn new() -> Stage {
        Stage {
            folder: tempfile::tempdir().expect("a folder"),
            clock: ManualClock::new(START),
            out: Vec::new(),
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("limits.db")
    }

    /// Every line, in this order, is among what was printed.
    fn printed(&self, lines: &[&str]) {
        let out = str::from_utf8(&self.out).expect("text");
        let mut rest = out.lines();
        for line in lines {
            assert!(
                rest.any(|found| found == *line),
                "{line:?} is missing, or not in its place, in:\n{out}"
            );
        }
    }
}

/// What was used of each limit over the whole life of an entity's buckets, as a process that opens
/// the file later sees it: `rpm 2, tpm 1500`.
async fn used(path: &Path, entity: &str) -> String {
    let limiter = RateLimiter::open(path).await.expect("the file can be opened again");
    used_of(&limiter, entity).await
}

async fn used_of(limiter: &RateLimiter, entity: &str) -> String {
    let buckets = limiter.buckets(entity, &PageRequest::default()).await.expect("buckets").items;
    let limits = buckets.iter().flat_map(|bucket| bucket.state.limits());
    // In whole tokens, and everything here is whole: a fraction would be a mistake worth seeing.
    let whole = |milli: i64| {
        if milli % 1000 == 0 { (milli / 1000).to_string() } else { format!("{milli}/1000") }
    };
    limits
        .map(|limit| format!("{} {}", limit.name, whole(limit.consumed.0)))
        .collect::<Vec<_>>()
        .join(", ")
}

#[tokio::test]
async fn basic_estimates_records_and_is_refused() {
    let mut stage = Stage::new();
    basic::run(&stage.path(), stage.clock.clone(), &mut stage.out).await.expect("it runs");
    stage.printed(&[
        "granted on an estimate of 900 tokens, left: 59 of 60 rpm, 1100 of 2000 tpm",
        "granted on an estimate of 500 tokens, left: 58 of 60 rpm, 300 of 2000 tpm",
        "900 tokens refused: rate limit exceeded for key-1/gpt-4: [tpm]; retry after 12.0s",
        "  rpm: 58 left, 1 asked for: enough",
        "  tpm: 500 left, 900 asked for: too few",
        "5000 tokens refused: rate limit exceeded for key-1/gpt-4: [tpm]; it can never pass: 5000 tokens requested, the capacity is 2000",
        "closed; 0 changes lost",
    ]);
    assert_eq!(used(&stage.path(), "key-1").await, "rpm 2, tpm 1500", "refusals took nothing");
}

#[tokio::test]
async fn hierarchical_says_whose_limit_refused() {
    let mut stage = Stage::new();
    hierarchical::run(&stage.path(), stage.clock.clone(), &mut stage.out).await.expect("it runs");
    stage.printed(&[
        "key-1 takes 2000 tokens",
        "  org has 3000 tpm left",
        "key-1 is refused 2000 tokens; in 20.0s it could pass",
        "  project-a has only 1000 tpm left",
        "key-2 takes 2500 tokens",
        "key-2 is refused 1000 tokens; in 10.0s it could pass",
        "  project-b has only 500 tpm left",
        "  org has only 500 tpm left",
        "key-2 takes 500 tokens",
        "  key-2 has only 0 rpm left",
        "  project-b has only 0 tpm left",
        "  org has only 0 tpm left",
    ]);
    for (entity, expected) in [
        ("key-1", "rpm 1, tpm 2000"),
        ("key-2", "rpm 2, tpm 3000"),
        ("project-a", "tpm 2000"),
        ("project-b", "tpm 3000"),
        ("org", "tpm 5000"),
    ] {
        assert_eq!(used(&stage.path(), entity).await, expected, "{entity}");
    }
}

#[tokio::test]
async fn llm_reconciliation_charges_what_was_used() {
    let mut stage = Stage::new();
    llm_reconciliation::run(&stage.path(), &stage.clock, &mut stage.out).await.expect("it runs");
    stage.printed(&[
        "estimated 500, used 2000: -1000 tokens left",
        "the next 500 have to wait 90s: 60 s for the debt, 30 s for themselves",
        "a millisecond before: refused",
        "then: granted, 0 tokens left",
        "of these only 100 were used: 400 tokens left",
        "a minute later: 1000 tokens left, never more than the capacity",
        "a stream cut with OnDrop::Rollback is given back: the tokens were free, 1000 tokens left",
        "a stream cut with OnDrop::Commit is charged what it produced, 890 tokens left",
    ]);
    assert_eq!(
        used(&stage.path(), "key-1").await,
        "tpm 2210",
        "2000, 100 and the 110 of the stream"
    );
}

#[tokio::test]
async fn blocking_threads_get_exactly_what_there_is() {
    let mut stage = Stage::new();
    let path = stage.path();
    let run = move || {
        let mut out = Vec::new();
        blocking::run(&path, &mut out).expect("it runs");
        out
    };
    stage.out = tokio::task::spawn_blocking(run).await.expect("no panic");
    stage.printed(&[
        "4 threads asked 5 times each; 12 calls were granted, 8 refused",
        "rpd: 0 of 12 left",
        "tpd: 7600 of 10000 left",
        "closed; 0 changes lost",
    ]);
    assert_eq!(used(&stage.path(), "key-1").await, "rpd 12, tpd 2400");
}

#[tokio::test]
async fn axum_gateway_runs_by_itself() {
    let mut stage = Stage::new();
    axum_gateway::run(&stage.path(), stage.clock.clone(), &mut stage.out).await.expect("it runs");
    stage.printed(&[
        "key-1: HTTP/1.0 200 OK | x-ratelimit-remaining-rpm: 59 | x-ratelimit-remaining-tpm: 200 | 8 words",
        "key-1: HTTP/1.0 200 OK | x-ratelimit-remaining-rpm: 58 | x-ratelimit-remaining-tpm: 30 | 8 words",
        "key-1: HTTP/1.0 429 Too Many Requests | retry-after: 28 | x-ratelimit-remaining-rpm: 58 | x-ratelimit-remaining-tpm: 0 | 0 words",
        "key-2: HTTP/1.0 503 Service Unavailable | retry-after: 1 | 0 words",
        "key-3: HTTP/1.0 200 OK | x-ratelimit-remaining-rpm: 59 | x-ratelimit-remaining-tpm: 200 | 3 words",
        "key-3 hung up and is charged 1 rpm, 70 tpm",
    ]);
    assert_eq!(used(&stage.path(), "key-1").await, "rpm 2, tpm 340");
    assert_eq!(used(&stage.path(), "key-2").await, "", "the store was down: nothing was taken");
}

/// What the client of one request saw, and what it was charged in the end.
async fn one_request(words: usize, hang_up_after: Option<usize>) -> (String, String) {
    let stage = Stage::new();
    let gateway = Gateway::open(&stage.path(), stage.clock.clone()).await.expect("a gateway");
    gateway.model.add_permits(words);
    let seen = gateway
        .serve(async |server| ask(server, "key", hang_up_after).await)
        .await
        .expect("it serves");
    let settled = gateway.limiter.settled();
    assert_eq!((settled.lost, settled.abandoned, settled.pending), (0, 0, 0));
    (seen, used_of(&gateway.limiter, "key").await)
}

#[tokio::test]
async fn a_gateway_answers_200_with_what_is_left() {
    let (seen, used) = one_request(8, None).await;
    let (head, body) = seen.split_once("\r\n\r\n").expect("a head and a body");
    assert!(head.starts_with("HTTP/1.0 200 OK"), "{head}");
    for header in [
        "ratelimit-policy: \"rpm\";q=60;w=60, \"tpm\";q=300;w=60",
        "ratelimit: \"rpm\";r=59;t=1, \"tpm\";r=200;t=1",
        "x-ratelimit-limit-tpm: 300",
        "x-ratelimit-remaining-tpm: 200",
        "x-ratelimit-reset-tpm: 20s",
    ] {
        assert!(head.lines().any(|line| line == header), "{header} is missing in:\n{head}");
    }
    assert_eq!(body, "word ".repeat(8));
    assert_eq!(
        used, "rpm 1, tpm 170",
        "10 for the prompt and 20 for each word, not the estimate of 100"
    );
}

#[tokio::test]
async fn a_gateway_answers_429_with_when_to_come_back() {
    let stage = Stage::new();
    let gateway = Gateway::open(&stage.path(), stage.clock.clone()).await.expect("a gateway");
    gateway.model.add_permits(24);
    let answers = gateway.serve(async |server| {
        let (first, second) = (ask(server, "key", None).await?, ask(server, "key", None).await?);
        let refused = ask(server, "key", None).await?;
        // Exactly as long as the answer said, and not a millisecond less.
        stage.clock.advance(Duration::from_millis(27_999));
        let early = ask(server, "key", None).await?;
        stage.clock.advance(Duration::from_millis(1));
        Ok([first, second, refused, early, ask(server, "key", None).await?])
    });
    let answers = answers.await.expect("it serves");
    let statuses: Vec<&str> =
        answers.iter().map(|answer| &answer["HTTP/1.0 ".len()..][..3]).collect();
    assert_eq!(statuses, ["200", "200", "429", "429", "200"]);
    assert!(answers[2].lines().any(|line| line == "retry-after: 28"), "{}", answers[2]);
    assert!(
        answers[2].lines().any(|line| line == "x-ratelimit-remaining-tpm: 0"),
        "debt shows as nothing left: {}",
        answers[2]
    );
    assert!(
        answers[2].lines().any(|line| line == "ratelimit: \"rpm\";r=58, \"tpm\";r=0;t=28"),
        "the same time twice: {}",
        answers[2]
    );
    assert!(
        answers[2].lines().any(|line| line == "content-type: application/problem+json"),
        "{}",
        answers[2]
    );
    let body = answers[2].split_once("\r\n\r\n").expect("a head and a body").1;
    let problem: serde_json::Value = serde_json::from_str(body).expect("JSON");
    assert_eq!(
        problem,
        serde_json::json!({
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Too Many Requests",
            "status": 429,
            "detail": "rate limit exceeded for key/gpt-4: [tpm]; retry after 28.0s",
            "violated-policies": ["tpm"],
        })
    );
    assert!(answers[3].lines().any(|line| line == "retry-after: 1"), "{}", answers[3]);
}

#[tokio::test]
async fn a_gateway_answers_503_while_the_store_is_down_and_recovers() {
    let stage = Stage::new();
    let gateway = Gateway::open(&stage.path(), stage.clock.clone()).await.expect("a gateway");
    gateway.model.add_permits(8);
    let answers = gateway.serve(async |server| {
        gateway.store_down.store(true, Ordering::Release);
        let down = ask(server, "key", None).await?;
        gateway.store_down.store(false, Ordering::Release);
        Ok([down, ask(server, "key", None).await?])
    });
    let [down, up] = answers.await.expect("it serves");
    assert!(down.starts_with("HTTP/1.0 503 Service Unavailable"), "{down}");
    assert!(down.lines().any(|line| line == "retry-after: 1"), "{down}");
    assert!(
        down.ends_with(
            "{\"type\":\"about:blank\",\"title\":\"Service Unavailable\",\"status\":503}"
        ),
        "{down}"
    );
    assert!(up.starts_with("HTTP/1.0 200 OK"), "{up}");
    assert_eq!(used_of(&gateway.limiter, "key").await, "rpm 1, tpm 170");
}

#[tokio::test]
async fn a_client_that_hangs_up_mid_stream_is_charged_what_was_recorded() {
    let (seen, used) = one_request(3, Some(3)).await;
    assert!(seen.starts_with("HTTP/1.0 200 OK") && seen.ends_with("word word word "), "{seen}");
    assert_eq!(used, "rpm 1, tpm 70", "10 for the prompt and 20 for each of three words");
}

#[tokio::test]
async fn a_client_that_hangs_up_before_the_first_word_is_charged_the_prompt() {
    let (seen, used) = one_request(0, Some(0)).await;
    assert!(seen.starts_with("HTTP/1.0 200 OK") && !seen.contains("word "), "{seen}");
    assert_eq!(used, "rpm 1, tpm 10");
}

#[tokio::test]
async fn llm_blocks_serve_from_memory() {
    let mut stage = Stage::new();
    let store = zae_limiter::sqlite::SqliteStore::open(stage.path()).expect("a file");
    let limiter = llm_blocks::with_blocks(RateLimiter::builder(store)).expect("a limiter");
    llm_blocks::serve(&limiter, 3_000, &mut stage.out).await.expect("the example runs");
    let out = String::from_utf8(stage.out).expect("text");
    let numbers: Vec<u64> = out
        .lines()
        .filter_map(|line| line.split(' ').next().and_then(|word| word.parse().ok()))
        .collect();
    let [local, orders, ..] = numbers[..] else { panic!("{out}") };
    assert!(local > 2_000 && orders * 5 < local, "{out}");
    assert!(out.contains("\n0 of "), "nothing is lost: {out}");
}
