//! `migrate` between a file and a stack.

use super::rig::{STACK, Stack};
use crate::migrate::{Shown, copied, crowd, killed, worked};

fn url(stack: &Stack) -> String {
    format!("dynamodb:{STACK}?region=us-east-1&endpoint={}", stack.engine.endpoint())
}

#[test]
fn a_namespace_moves_to_a_stack_and_back() {
    let (file, stack) = (worked(), Stack::new());
    let url = url(&stack);
    let before = Shown::of(&file, "sqlite:limits.db");
    assert_eq!(file.raw(&format!("migrate --to {url} --quiet")).0, 0);
    let there = Shown::of(&file, &url);
    there.is_later(&before);
    assert_eq!(file.raw(&format!("--store {url} migrate --to sqlite:back.db --quiet")).0, 0);
    Shown::of(&file, "sqlite:back.db").is_later(&there);
    assert_eq!(copied(&file, &url), (0, 4), "once more");
}

#[test]
fn a_stack_moves_to_another_stack() {
    let (file, one, other) = (worked(), Stack::new(), Stack::new());
    let (one, other) = (url(&one), url(&other));
    assert_eq!(file.raw(&format!("migrate --to {one} --quiet")).0, 0);
    assert_eq!(file.raw(&format!("--store {one} migrate --to {other} --quiet")).0, 0);
    let before = Shown::of(&file, "sqlite:limits.db");
    Shown::of(&file, &other).is_later(&before);
}

#[test]
fn a_copy_to_a_stack_survives_kill_9() {
    const COUNT: u64 = 1_000;
    let (file, stack) = (crowd(COUNT), Stack::new());
    let url = url(&stack);
    let there = || {
        let (_, json) = file
            .raw(&format!("--store {url} resource capacity gpt-4 rpm --limit 1000 --output json"));
        json.matches("\"entity_id\"").count()
    };
    let made = killed(&file, &url, there);
    assert!(made > 0 && made < 1_000, "killed too early or too late: {made}");
    let (rest, kept) = copied(&file, &url);
    assert!(rest + kept == COUNT && kept >= made as u64, "{rest} and {kept} after {made}");
    assert_eq!(there(), 1_000);
    let usage = |store: &str| file.raw(&format!("--store {store} usage summary")).1;
    assert_eq!(usage(&url), usage("sqlite:limits.db"));
}
