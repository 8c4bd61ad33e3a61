//! Many requests and many buckets at once (`docs/guards.md`).

use std::pin::{Pin, pin};
use std::sync::Mutex;

use zae_limiter_core::{NamespaceId, UsageWindow};
use zae_limiter_store::{BoxFuture, HistoryStore as _, NamespaceStore as _, UsageQuery};

use super::overlap::{eager_with, poll, tokens};
use super::*;

/// Requests that waited for an order are requests: the next order is for as many.
#[tokio::test]
async fn a_request_that_waited_is_counted() {
    let store = MemoryStore::new();
    let fault = |name: &str| if name == "provision" { Fault::Yield(1) } else { Fault::None };
    let process = Process::with(&store, "x:1/sec:100000", LocalBlocks::default(), fault);
    for ms in 0..7 {
        assert_eq!(process.take(ms * 5).await, "granted");
    }
    for (at_ms, most) in [(40, 100), (80, 3), (120, 3)] {
        let before = process.writes();
        let mut requests: Vec<Pin<Box<dyn Future<Output = &str>>>> = Vec::new();
        for _ in 0..200 {
            requests.push(Box::pin(process.take(at_ms)));
        }
        while !requests.is_empty() {
            requests.retain_mut(|request| poll(request.as_mut()).is_pending());
        }
        let writes = process.writes() - before;
        assert!(writes <= most, "{writes} writes at {at_ms} ms: {:?}", process.blocks.stats());
    }
}

/// Blocks go back side by side: 400 of them within a round trip or seven.
#[tokio::test]
async fn blocks_go_back_side_by_side() {
    for way in ["return", "report"] {
        let (_, process) = eager_with("x:1/day:1000", |name| {
            if name == "settle" { Fault::Yield(1) } else { Fault::None }
        });
        for number in 0..100 {
            for _ in 0..2 {
                let outcome = process.ask(&format!("key-{number}"), 1, 0).await;
                assert!(matches!(outcome, ConsumeOutcome::Granted(_)));
            }
        }
        let before = process.writes();
        let page = PageRequest::default();
        let mut all: Pin<Box<dyn Future<Output = ()>>> = match way {
            "return" => Box::pin(process.blocks.give_back(TimeMs(BEGIN))),
            _ => Box::pin(async { drop(process.blocks.namespace_buckets(&page).await) }),
        };
        assert!(poll(all.as_mut()).is_pending());
        assert_eq!(process.writes() - before, 64, "{way}: not more at once than that");
        all.await;
        assert_eq!(process.writes() - before, 100, "{way}");
        assert_eq!(process.blocks.stats().missing(), Milli::ZERO, "{way}");
    }
}

/// A listing of many pages is of one time.
#[tokio::test]
async fn use_is_reported_with_the_first_page_alone() {
    let resource = "gpt-4".parse().expect("a resource");
    for way in ["buckets", "resource", "namespace", "usage"] {
        let (_, process) = eager_with("x:1/day:1000", |_| Fault::None);
        for entity in ["key", "other"] {
            assert!(matches!(process.ask(entity, 1, 0).await, ConsumeOutcome::Granted(_)));
            assert!(matches!(process.ask(entity, 1, 0).await, ConsumeOutcome::Granted(_)));
        }
        let mut page = PageRequest::first(1);
        for reported in [true, false] {
            let before = process.writes();
            let key = name("key");
            let query = UsageQuery {
                entity: None,
                resource: None,
                window: UsageWindow::Hourly,
                from: None,
                until: None,
                page: page.clone(),
            };
            let next = match way {
                "buckets" => process.blocks.buckets(&key, &page).await.expect("a page").next,
                "resource" => {
                    process.blocks.resource_buckets(&resource, &page).await.expect("a page").next
                }
                "usage" => process.blocks.usage(&query).await.expect("a page").next,
                _ => process.blocks.namespace_buckets(&page).await.expect("a page").next,
            };
            assert_eq!(process.writes() > before, reported, "{way}");
            assert!(matches!(process.ask("key", 1, 0).await, ConsumeOutcome::Granted(_)));
            let Some(next) = next.filter(|_| reported) else { break };
            page = PageRequest::after(1, next);
        }
        assert!(way == "buckets" || page.cursor().is_some(), "{way} has two pages");
    }
}

/// Requests to one namespace pass by the buckets of all.
#[tokio::test]
async fn silent_buckets_of_other_namespaces_are_reported() {
    let (store, root) = eager_with("x:1/sec:1000", |_| Fault::None);
    let queue: Arc<Mutex<Vec<BoxFuture<'static, ()>>>> = Arc::default();
    let work = Arc::clone(&queue);
    root.blocks.work_behind(move |job| work.lock().expect("a queue").push(job));
    let tenant = "tenant".parse().expect("a name");
    let id: NamespaceId = "tenant-id-1".parse().expect("an id");
    root.blocks.register_namespace(&tenant, &id, &change(0)).await.expect("a namespace");
    let scoped = root.blocks.scoped(&tenant).await.expect("a namespace");
    let (key, resource, takes) = (name("key"), "gpt-4".parse().expect("a resource"), tokens(1));
    let members = [MemberTake {
        entity: &key,
        resource: &resource,
        limits: &root.limits,
        takes: &takes,
        absent: &[],
    }];
    let request = ConsumeRequest::new(&members, TimeMs(BEGIN));
    for _ in 0..2 {
        let outcome = scoped.consume(&request).await.expect("no outage");
        assert!(matches!(outcome, ConsumeOutcome::Granted(_)));
    }
    drop(scoped);
    let caller = Process {
        blocks: root.blocks.clone(),
        writes: Arc::clone(&root.writes),
        limits: LimitsInForce { source: LimitSource::Call, ..root.limits.clone() },
    };
    for part in 0..64 {
        let outcome = caller.ask("other", 1, 6_000 + part * 100).await;
        assert!(matches!(outcome, ConsumeOutcome::Granted(_)));
    }
    let jobs = std::mem::take(&mut *queue.lock().expect("a queue"));
    for job in jobs {
        pin!(job).await;
    }
    let inside = store.scoped(&tenant).await.expect("a namespace");
    let page = inside.buckets(&key, &PageRequest::default()).await.expect("a page");
    assert_eq!(page.items[0].state.limits()[0].consumed, Milli(2_000));
}
