//! Cursors: ours are taken back, later and by anybody; what cannot be one is refused.

use zae_limiter_core::UsageWindow;
use zae_limiter_store::{Cursor, HistoryStore, PageRequest, StoreErrorKind, UsageQuery};
use zae_limiter_testkit::table::EvalOptions;

use super::{LISTINGS, filled, page, walk};

/// A cursor outlives the process, and what comes and goes meanwhile moves nothing else.
#[tokio::test]
async fn a_cursor_is_good_for_another_process() {
    let rig = filled(EvalOptions::new().page_max(4)).await;
    for listing in LISTINGS {
        let all = walk(&rig.store().await, listing, 1000).await;
        let first = page(&rig.store().await, listing, &PageRequest::first(10)).await.unwrap();
        let rest =
            page(&rig.store().await, listing, &PageRequest::after(1000, first.next.unwrap()))
                .await
                .unwrap();
        assert_eq!([first.items, rest.items].concat(), all, "{listing}");
    }
}

#[tokio::test]
async fn what_can_not_be_a_cursor_is_refused() {
    let rig = filled(EvalOptions::new()).await;
    let store = rig.store().await;
    let long = "x".repeat(600);
    for text in ["", "a b", "käse", "line\nbreak", "\u{0}", &long] {
        for listing in LISTINGS {
            let error = page(&store, listing, &PageRequest::after(10, Cursor(text.to_owned())))
                .await
                .unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Invalid, "{listing} after {text:?}: {error}");
            assert_eq!(
                error.message(),
                "the cursor is not one of this listing; begin without one",
                "{listing} after {text:?}"
            );
        }
    }
    // A name is no place in a history.
    let names = ["key-001", "01", "ZZZZZZZZZZZZZZZZZZZZZZZZZZ"];
    for text in names {
        let error = page(&store, "audit", &PageRequest::after(10, Cursor(text.to_owned())))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Invalid, "{text:?}: {error}");
    }
    for text in ["key-001", "12", "12 a", "x a b", "12 a#b c", "12  c", "99999999999999999999 a b"]
    {
        let (entity, page) =
            (Some("key-001".parse().unwrap()), PageRequest::after(10, Cursor(text.to_owned())));
        let query = UsageQuery {
            entity,
            resource: None,
            window: UsageWindow::Daily,
            from: None,
            until: None,
            page,
        };
        let error = store.usage(&query).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Invalid, "{text:?}: {error}");
    }
}
