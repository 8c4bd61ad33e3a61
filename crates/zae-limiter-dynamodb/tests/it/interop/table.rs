//! A table that both products use.

use std::ffi::OsString;
use std::sync::Mutex;
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};
use zae_limiter_dynamodb::sdk::{Builder, Stream, TableOptions};
use zae_limiter_testkit::engine::Engine;
use zae_limiter_testkit::zae_limiter::{AcquireError, Level, Limit, RateLimiter, Request};

use crate::interop::python::{Python, interpreter};

pub(crate) const STACK: &str = "shared";

/// Who made the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Made {
    /// GSI2 keeps keys only, no local indexes.
    ByUs,
    /// GSI2 keeps everything, five local indexes.
    ByPython,
}

/// An engine with one table.
pub(crate) struct Shared {
    pub(crate) engine: Engine,
    pub(crate) made: Made,
    interpreter: OsString,
    /// The one that made the table, for whoever asks first: starting Python takes longer than most
    /// tests.
    idle: Mutex<Option<Python>>,
}

impl Shared {
    /// `None` when no Python is named.
    pub(crate) async fn start(made: Made) -> Option<Shared> {
        let interpreter = interpreter()?;
        let shared = Shared { engine: Engine::start(), made, interpreter, idle: Mutex::new(None) };
        match made {
            Made::ByUs => {
                shared
                    .builder()
                    .table_options(TableOptions::new().stream(Stream::On))
                    .create()
                    .await
                    .expect("a table");
            }
            Made::ByPython => {
                let mut python = shared.unconnected_python();
                python.eval("make_table()");
                *shared.idle.lock().unwrap() = Some(python);
            }
        }
        Some(shared)
    }

    /// Exact, and patient on a busy machine.
    pub(crate) fn builder(&self) -> Builder {
        self.engine.stack(STACK).fast_grace(Duration::ZERO)
    }

    /// A limiter of ours that trusts no cache.
    /// The table as a whole.
    pub(crate) async fn operator(&self) -> zae_limiter_dynamodb::Operator {
        self.builder().operator().await.expect("an operator")
    }

    pub(crate) async fn rust(&self) -> RateLimiter {
        self.rust_in("default").await
    }

    pub(crate) async fn rust_in(&self, namespace: &str) -> RateLimiter {
        let store = self
            .builder()
            .namespace(namespace)
            .rejection_cache(None)
            .connect()
            .await
            .expect("the table");
        let builder = RateLimiter::builder(store)
            .config_cache_ttl(Duration::ZERO)
            .deadline(Duration::from_secs(60));
        builder.principal("rust").build().expect("a limiter")
    }

    /// A Python client that trusts no cache.
    pub(crate) fn python(&self) -> Python {
        let mut python = self.unconnected_python();
        python.eval("connect()");
        python
    }

    pub(crate) fn unconnected_python(&self) -> Python {
        let idle = self.idle.lock().unwrap().take();
        idle.unwrap_or_else(|| Python::start(&self.interpreter, STACK, self.engine.endpoint()))
    }

    /// Every item, as the service writes them.
    pub(crate) fn items(&self) -> Vec<Value> {
        let answer =
            self.engine.call("Scan", &json!({ "TableName": STACK, "ConsistentRead": true })).ok();
        assert!(answer.get("LastEvaluatedKey").is_none(), "one page holds them all");
        answer["Items"].as_array().expect("items").clone()
    }

    /// The one item whose partition key ends like this.
    #[track_caller]
    pub(crate) fn item(&self, partition_end: &str, sort: &str) -> Value {
        let items = self.items();
        let mut found = items
            .into_iter()
            .filter(|item| text(&item["PK"]).ends_with(partition_end) && text(&item["SK"]) == sort);
        let item = found.next().unwrap_or_else(|| panic!("no item {partition_end} {sort}"));
        assert!(found.next().is_none(), "two items {partition_end} {sort}");
        item
    }

    /// The bucket of an entity on `gpt-4`.
    #[track_caller]
    pub(crate) fn bucket(&self, entity: &str) -> Value {
        self.item(&format!("/BUCKET#{entity}#gpt-4#0"), "#STATE")
    }

    /// All shards of the bucket of an entity on `gpt-4`, in order.
    pub(crate) fn shards(&self, entity: &str) -> Vec<Value> {
        let items = self.items();
        let of = |shard: u32| {
            let end = format!("/BUCKET#{entity}#gpt-4#{shard}");
            items.iter().find(|item| text(&item["PK"]).ends_with(&end)).cloned()
        };
        (0..64).filter_map(of).collect()
    }

    /// What is left of a limit as stored, in millitokens.
    #[track_caller]
    pub(crate) fn stored_milli(&self, entity: &str, limit: &str) -> i64 {
        whole(&self.bucket(entity)[format!("b_{limit}_tk")])
    }
}

/// A text attribute.
#[track_caller]
pub(crate) fn text(attribute: &Value) -> &str {
    attribute["S"].as_str().unwrap_or_else(|| panic!("not a text: {attribute}"))
}

/// A number attribute.
#[track_caller]
pub(crate) fn whole(attribute: &Value) -> i64 {
    attribute["N"]
        .as_str()
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| panic!("not a number: {attribute}"))
}

pub(crate) fn limits(text: &str) -> Vec<Limit> {
    text.split_whitespace().map(|limit| limit.parse().expect("a valid limit")).collect()
}

pub(crate) fn of_entity(entity: &str) -> Level {
    Level::EntityResource(entity.parse().unwrap(), "gpt-4".parse().unwrap())
}

pub(crate) fn request(entity: &str, limit: &str, tokens: u64) -> Request {
    Request::new(entity, "gpt-4").take(limit, tokens)
}

/// Takes for good: true when granted.
pub(crate) async fn take(limiter: &RateLimiter, entity: &str, limit: &str, tokens: u64) -> bool {
    loop {
        match limiter.acquire(request(entity, limit, tokens)).await {
            Ok(lease) => {
                lease.commit().await.expect("a commit");
                return true;
            }
            Err(AcquireError::Exceeded(report)) if report.is_contended() => {
                tokio::task::yield_now().await
            }
            Err(AcquireError::Exceeded(_)) => return false,
            Err(error) => panic!("{error:?}"),
        }
    }
}

/// Takes one token after the other in several tasks until each is refused; how many there were.
pub(crate) async fn drain(limiter: &RateLimiter, entity: &str, limit: &str, tasks: usize) -> u64 {
    let worker = || async {
        let mut granted = 0;
        while take(limiter, entity, limit, 1).await {
            granted += 1;
        }
        granted
    };
    join_all((0..tasks).map(|_| worker())).await.into_iter().sum()
}
