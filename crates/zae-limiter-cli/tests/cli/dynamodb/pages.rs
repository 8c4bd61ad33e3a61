//! Listings longer than a page: each page says how to go on, and together they are everything,
//! once.

use insta::assert_snapshot;
use serde_json::Value;

use super::Stack;

/// Everything a listing has, page by page.
fn walk(stack: &Stack, line: &str, limit: u32) -> (Vec<Value>, usize) {
    let (mut items, mut pages, mut cursor) = (Vec::new(), 0, String::new());
    loop {
        let (exit, json) =
            stack.sandbox.raw(&format!("{line} --limit {limit} --output json {cursor}"));
        assert_eq!(exit, 0, "{line} {cursor}");
        let page: Value = serde_json::from_str(&json).expect("JSON");
        items.extend(page["items"].as_array().expect("a list").iter().cloned());
        pages += 1;
        match page["next"].as_str() {
            Some(next) => cursor = format!("--cursor={next}"),
            None => return (items, pages),
        }
    }
}

#[test]
fn entities_and_what_happened_to_them() {
    let stack = Stack::new();
    for index in 0..7 {
        assert_eq!(stack.sandbox.raw(&format!("entity create key-{index} --display-name v0")).0, 0);
    }
    for version in 1..=6 {
        assert_eq!(
            stack.sandbox.raw(&format!("entity update key-3 --display-name v{version}")).0,
            0
        );
    }
    let names = |items: &[Value], key: &str| {
        items.iter().map(|item| item[key].as_str().unwrap_or("?").to_owned()).collect::<Vec<_>>()
    };
    let all: Vec<String> = (0..7).map(|index| format!("key-{index}")).collect();
    for (limit, pages) in [(1, 7), (2, 4), (3, 3), (7, 1), (8, 1)] {
        let (items, found) = walk(&stack, "entity list", limit);
        assert_eq!((names(&items, "entity_id"), found), (all.clone(), pages), "pages of {limit}");
        let (events, found) = walk(&stack, "audit list --entity-id key-3", limit);
        assert_eq!((events.len(), found), (7, pages), "pages of {limit}");
        let mut ids = names(&events, "event_id");
        assert!(ids.is_sorted_by(|one, next| one > next), "newest first: {ids:?}");
        ids.dedup();
        assert_eq!(ids.len(), 7);
    }
    assert_snapshot!(stack.run("entity list --limit 2"), @"
    exit 0
    --- stdout
    ENTITY  PARENT  CASCADE  DISABLED  CREATED  NAME
    key-0   -       no       -         [TIME]  v0
    key-1   -       no       -         [TIME]  v0
    --- stderr
    note: there is more; go on with --cursor key-1
    ");
    assert_snapshot!(stack.run("entity list --limit 2 --cursor key-5"), @"
    exit 0
    --- stdout
    ENTITY  PARENT  CASCADE  DISABLED  CREATED  NAME
    key-6   -       no       -         [TIME]  v0
    ");
}

#[test]
fn a_cursor_of_somewhere_else_is_refused() {
    let stack = Stack::new();
    assert_snapshot!(stack.sandbox.run_words(&["entity", "list", "--cursor", "not a cursor"]), @"
    exit 2
    --- stderr
    error: invalid value 'not a cursor' for '--cursor <CURSOR>': this listing prints no such cursor
    hint: give the cursor that the page before printed, or begin without --cursor
    ");
    assert_snapshot!(stack.run("audit list --system --cursor key-1"), @"
    exit 1
    --- stderr
    error: the cursor is not one of this listing; begin without one
    ");
    assert_snapshot!(stack.run("usage list --entity-id key-1 --cursor key-1 --output json"), @r#"
    exit 1
    --- stderr
    {"error":{"kind":"invalid","message":"the cursor is not one of this listing; begin without one"}}
    "#);
}
