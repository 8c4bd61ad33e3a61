//! The stream of a table: made with it, or given to one that has none.

use aws_sdk_dynamodb::types::{StreamSpecification, StreamViewType};
use zae_limiter_core::TimeMs;
use zae_limiter_dynamodb::records::checkpoint::Checkpoint;
use zae_limiter_dynamodb::sdk::{SdkTable, Stream, StreamState, TableOptions, create_table};
use zae_limiter_dynamodb::table::Table as _;
use zae_limiter_store::{Clock as _, SystemClock};
use zae_limiter_testkit::engine::Engine;

use crate::sdk::builder;

async fn table(engine: &Engine) -> SdkTable {
    builder(engine.endpoint()).table().await.unwrap()
}

async fn create(table: &SdkTable, stream: Stream) -> StreamState {
    let options = TableOptions::new().stream(stream);
    create_table(table, &options, &SystemClock::new()).await.unwrap()
}

/// What the table says itself.
async fn view(table: &SdkTable) -> Option<String> {
    let described = table.client().describe_table().table_name(table.name()).send().await.unwrap();
    let stream = described.table?.stream_specification?;
    stream.stream_enabled.then(|| stream.stream_view_type.unwrap().as_str().to_owned())
}

#[tokio::test]
async fn a_new_table_has_a_stream_with_both_images() {
    let engine = Engine::start();
    let table = table(&engine).await;
    assert_eq!(
        create_table(&table, &TableOptions::new(), &SystemClock::new()).await.unwrap(),
        StreamState::On
    );
    assert_eq!(view(&table).await.as_deref(), Some("NEW_AND_OLD_IMAGES"));
    let status = builder(engine.endpoint()).status().await.unwrap();
    assert_eq!((status.stream, status.worker), (StreamState::On, None));
    assert!(status.stream_arn.unwrap().contains("/stream/"));
}

#[tokio::test]
async fn a_table_without_a_stream_gets_one_when_it_is_created_again() {
    let engine = Engine::start();
    let table = table(&engine).await;
    assert_eq!(create(&table, Stream::Off).await, StreamState::Off);
    assert_eq!(create(&table, Stream::Off).await, StreamState::Off);
    assert_eq!(view(&table).await, None);
    assert_eq!(create(&table, Stream::On).await, StreamState::Added);
    assert_eq!(view(&table).await.as_deref(), Some("NEW_AND_OLD_IMAGES"));
    // It stays, with what is in it.
    let arn = || async { builder(engine.endpoint()).status().await.unwrap().stream_arn };
    let first = arn().await;
    assert_eq!(create(&table, Stream::On).await, StreamState::On);
    assert_eq!(create(&table, Stream::Off).await, StreamState::On);
    assert_eq!(arn().await, first);
}

#[tokio::test]
async fn a_stream_that_shows_something_else_is_left_alone() {
    let engine = Engine::start();
    let table = table(&engine).await;
    create(&table, Stream::Off).await;
    let keys = StreamSpecification::builder()
        .stream_enabled(true)
        .stream_view_type(StreamViewType::KeysOnly)
        .build()
        .unwrap();
    let update = table.client().update_table().table_name(table.name()).stream_specification(keys);
    update.send().await.unwrap();
    let found = StreamState::Other("KEYS_ONLY".to_owned());
    assert_eq!(create(&table, Stream::On).await, found);
    assert_eq!(view(&table).await.as_deref(), Some("KEYS_ONLY"));
    assert_eq!(builder(engine.endpoint()).status().await.unwrap().stream, found);
}

#[tokio::test]
async fn the_status_sums_up_what_workers_left() {
    let engine = Engine::start();
    builder(engine.endpoint()).create().await.unwrap();
    let table = table(&engine).await;
    let now = SystemClock::new().now();
    let write = async |checkpoint: Checkpoint| {
        table.update(&checkpoint.update(None, now)).await.unwrap();
    };
    let first = Checkpoint { seen_ms: 25_000, late_ms: 9, gaps: 1, ..Checkpoint::new("a") };
    write(Checkpoint { is_done: true, late_ms: 99, ..first.clone() }).await;
    write(Checkpoint { seen_ms: 35_000, shard: "b".to_owned(), ..first }).await;
    write(Checkpoint { gaps: 2, ..Checkpoint::new("c") }).await;
    let worker = builder(engine.endpoint()).status().await.unwrap().worker.unwrap();
    let found = (worker.seen_at.0, worker.behind_ms, worker.gaps, worker.stream_shards);
    assert_eq!(found, (35_000, 9, 4, 2));
    // Two leases without a sign of life.
    assert!(!worker.is_silent(TimeMs(65_000)) && worker.is_silent(TimeMs(65_001)));
}

#[tokio::test]
async fn a_checkpoint_is_not_written_over_one_that_was_not_seen() {
    let engine = Engine::start();
    builder(engine.endpoint()).create().await.unwrap();
    let table = table(&engine).await;
    let now = SystemClock::new().now();
    let first = Checkpoint { owner: Some("a".to_owned()), ..Checkpoint::new("s") };
    table.update(&first.update(None, now)).await.unwrap();
    table.update(&first.update(None, now)).await.unwrap_err();
    let second = Checkpoint { sequence: Some("7".to_owned()), until_ms: 5, ..first.clone() };
    table.update(&second.update(Some(&first), now)).await.unwrap();
    // Whoever has not seen the second cannot set it back.
    table.update(&second.update(Some(&first), now)).await.unwrap_err();
    let other = Checkpoint { owner: Some("b".to_owned()), ..first.clone() };
    table.update(&other.update(Some(&first), now)).await.unwrap_err();
    let image = table.update(&other.update(Some(&second), now)).await.unwrap();
    assert_eq!(Checkpoint::of(&image), Some(other));
}
