//! Takes from several shards that are undone because another member of the chain is short.

use super::*;
use std::future::poll_fn;
use std::task::Poll;
use zae_limiter_testkit::table::{Change, Point};

/// Found by the simulator: the second part had the mark of the first, so the stream did not tell
/// that it undoes a take, and it was counted as a refund of another hour.
#[tokio::test]
async fn parts_that_are_given_back_to_one_shard_have_marks_of_their_own() {
    let hot = Hot::on(EvalOptions::new().journal(), &["tpm:800/hour"]).await;
    let (team, store) = ("team".parse::<EntityId>().unwrap(), hot.process().await);
    let member = |entity, takes| MemberTake {
        entity,
        resource: &hot.resource,
        limits: &hot.limits,
        takes,
        absent: &[],
    };
    let (all, most) = (takes(&[800]), takes(&[500]));
    let drained =
        store.consume(&ConsumeRequest::new(&[member(&team, all.as_slice())], hot.now())).await;
    Hot::granted(drained);
    Hot::granted(hot.ask(&store, &[0]).await);
    hot.split_into(2).await;
    let slow = |_: u32, _: Point| 1;
    let table = hot.rig.table.client(3).with_gate(Arc::new(slow));
    let store = hot.process_on(table, |_| {}).await;
    let members = [member(&hot.entity, most.as_slice()), member(&team, most.as_slice())];
    let request = ConsumeRequest::new(&members, hot.now());
    let mut asked = store.consume(&request);
    // Until the take has landed on both shards; then they are folded.
    while hot.sum("b_tpm_tc") == 0 {
        let is_done = poll_fn(|context| Poll::Ready(asked.as_mut().poll(context).is_ready())).await;
        assert!(!is_done, "the chain is not decided before it has taken");
    }
    assert_eq!(hot.sum("b_tpm_tc"), 500_000);
    assert!(hot.fold().await);
    hot.rig.table.take_journal();
    let outcome = asked.await.unwrap();
    assert!(matches!(outcome, ConsumeOutcome::Refused(_)), "{outcome:?}");
    assert_eq!(number(&hot.shard(0), "b_tpm_tk"), 800_000, "all of it is back");
    let root = hot.shard(0)["PK"].as_s().unwrap().clone();
    let calls = hot.rig.table.take_journal();
    let changes: Vec<&Change> = calls
        .iter()
        .flat_map(|call| &call.changes)
        .filter(|change| change.key.pk == root)
        .collect();
    assert_eq!(changes.len(), 2, "one part after the other");
    let mark = |item: &Option<Item>| item.as_ref().map_or(0, |item| number(item, "un"));
    for change in changes {
        assert_ne!(mark(&change.before), mark(&change.after), "each is told to be an undone take");
    }
}

/// A take that is undone is no event (U3): also one whose first leg took nothing of its limit.
#[tokio::test]
async fn a_gathered_take_that_is_undone_is_no_event() {
    let hot = Hot::new(&["rpm:1000/hour", "tpm:1000/hour"]).await;
    let store = hot.process().await;
    let parent: EntityId = "org".parse().unwrap();
    let small = limits_of(&["tpm:100/hour"]);
    let consume = |store: DynamoStore, of_child: [u64; 2], of_parent: u64| {
        let (mine, theirs) = (takes(&of_child), takes(&[of_parent]));
        let (hot, small, parent) = (&hot, &small, &parent);
        async move {
            let members = [
                MemberTake {
                    entity: &hot.entity,
                    resource: &hot.resource,
                    limits: &hot.limits,
                    takes: &mine,
                    absent: &[],
                },
                MemberTake {
                    entity: parent,
                    resource: &hot.resource,
                    limits: small,
                    takes: &theirs,
                    absent: &[],
                },
            ];
            store.consume(&ConsumeRequest::new(&members, hot.now())).await.unwrap()
        }
    };
    assert!(matches!(consume(store, [0, 1], 1).await, ConsumeOutcome::Granted(_)));
    hot.split_into(4).await;
    // Shard 0 has the most of rpm and nothing of tpm.
    let mut root = hot.shard(0);
    root.insert("b_tpm_tk".to_owned(), zae_limiter_dynamodb::table::number(0));
    hot.rig.table.insert(&root);
    hot.advance(2_000);
    let events = hot.sum("b_wcu_tc");
    // The parent has no 600. A process that does not know it asks both at once: the child is taken
    // from and given back.
    let cold = hot.process().await;
    let refused = consume(cold.clone(), [0, 600], 600).await;
    assert!(!matches!(refused, ConsumeOutcome::Granted(_)), "{refused:?}");
    assert!(cold.counters().compensations > 0, "{:?}", cold.counters());
    assert_eq!(hot.sum("b_wcu_tc"), events, "a take that was undone is still an event");
}

/// The same on one item, with amounts of nothing.
#[tokio::test]
async fn a_take_of_nothing_that_is_undone_is_no_event() {
    let hot = Hot::new(&["rpm:1000/hour"]).await;
    let store = hot.process().await;
    let parent: EntityId = "org".parse().unwrap();
    let small = limits_of(&["tpm:100/hour"]);
    let (mine, theirs) = (takes(&[0]), takes(&[101]));
    let members = [
        MemberTake {
            entity: &hot.entity,
            resource: &hot.resource,
            limits: &hot.limits,
            takes: &mine,
            absent: &[],
        },
        MemberTake {
            entity: &parent,
            resource: &hot.resource,
            limits: &small,
            takes: &theirs,
            absent: &[],
        },
    ];
    Hot::granted(hot.ask(&store, &[1]).await);
    let events = hot.sum("b_wcu_tc");
    let refused = store.consume(&ConsumeRequest::new(&members, hot.now())).await.unwrap();
    assert!(matches!(refused, ConsumeOutcome::Refused(_)), "{refused:?}");
    assert_eq!(hot.sum("b_wcu_tc"), events, "{:?}", store.counters());
}

/// The same on one of several shards: the event is taken back where it was counted.
#[tokio::test]
async fn a_take_of_nothing_from_a_shard_that_is_undone_is_no_event() {
    let hot = Hot::new(&["rpm:1000/hour"]).await;
    let parent: EntityId = "org".parse().unwrap();
    let small = limits_of(&["tpm:100/hour"]);
    let (mine, theirs) = (takes(&[0]), takes(&[101]));
    let member = |entity, limits, takes| MemberTake {
        entity,
        resource: &hot.resource,
        limits,
        takes,
        absent: &[],
    };
    let members = [
        member(&hot.entity, &hot.limits, mine.as_slice()),
        member(&parent, &small, theirs.as_slice()),
    ];
    Hot::granted(hot.ask(&hot.process().await, &[1]).await);
    hot.split_into(4).await;
    // Each process knows the shards, and not the parent: it draws one and asks both at once.
    for _ in 0..8 {
        let store = hot.process().await;
        Hot::granted(hot.ask(&store, &[0]).await);
        let events = hot.sum("b_wcu_tc");
        let refused = store.consume(&ConsumeRequest::new(&members, hot.now())).await.unwrap();
        assert!(matches!(refused, ConsumeOutcome::Refused(_)), "{refused:?}");
        assert_eq!(hot.sum("b_wcu_tc"), events, "{:?}", store.counters());
    }
    let is_undone = |item: &Item| item.contains_key("un");
    assert!(hot.shards()[1..].iter().any(is_undone), "shards beyond the first were taken from");
}
