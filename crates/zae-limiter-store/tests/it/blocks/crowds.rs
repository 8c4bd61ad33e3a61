//! Many requests and many buckets at once (`docs/guards.md`).

use std::pin::Pin;

use super::overlap::poll;
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
