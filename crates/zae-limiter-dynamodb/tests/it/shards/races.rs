//! Races with other processes and writers on the shards of a bucket, each made to happen.

use std::sync::Mutex;
use std::sync::atomic::AtomicU32;

use super::*;
use zae_limiter_dynamodb::table::{Key, number as attribute};
use zae_limiter_store::StoreErrorKind;
use zae_limiter_testkit::table::{Asked, Fate, Faults, Operation, Point};

/// Numbers of items that another writer changes.
type Changes = Vec<(Key, &'static str, i64)>;

impl Hot {
    /// The table of a process before whose call of this kind something happens, once: before the
    /// first, or as many later as `nth` says.
    fn with_event(
        &self,
        operation: Operation,
        nth: u32,
        event: impl Fn(&EvalTable) + Send + Sync + 'static,
    ) -> EvalTable {
        let (table, calls) = (self.rig.table.clone(), AtomicU32::new(0));
        let gate = move |_: u32, point: Point| {
            let is_now =
                point == Point::Before(operation) && calls.fetch_add(1, Ordering::Relaxed) == nth;
            if is_now {
                event(&table);
            }
            0
        };
        self.rig.table.client(3).with_gate(Arc::new(gate))
    }

    /// The table of a process whose calls meet fates. A call may also name numbers that another
    /// writer changes once it has met its fate.
    fn with_fates(
        &self,
        mut fate: impl FnMut(&Asked<'_>, &mut Changes) -> Fate + Send + 'static,
    ) -> EvalTable {
        let due: Arc<Mutex<Changes>> = Arc::default();
        let (named, table) = (Arc::clone(&due), self.rig.table.clone());
        let faults = Faults::by(move |asked| fate(asked, &mut named.lock().unwrap()));
        let gate = move |_: u32, point: Point| {
            if matches!(point, Point::After(_)) {
                for (key, name, value) in due.lock().unwrap().drain(..) {
                    set(&table, &key, &[(name, value)]);
                }
            }
            0
        };
        self.rig.table.client(3).with_faults(faults).with_gate(Arc::new(gate))
    }

    fn key(&self, shard: u32) -> Key {
        keys::bucket_of(&self.rig.namespace, "key", "gpt-4", shard)
    }

    /// Changes numbers of a shard, as another writer does.
    fn set(&self, shard: u32, attributes: &[(&str, i64)]) {
        set(&self.rig.table, &self.key(shard), attributes);
    }

    /// The calls about buckets since the last look, by their first words.
    fn calls(&self) -> Vec<String> {
        let calls = self.rig.table.take_journal();
        let calls = calls.iter().map(|call| format!("{:?}", call.request));
        calls
            .filter(|call| call.contains("BUCKET#"))
            .map(|call| call.chars().take_while(|letter| *letter != '(').collect())
            .collect()
    }
}

fn set(table: &EvalTable, key: &Key, attributes: &[(&str, i64)]) {
    let mut item = table.get(key).unwrap();
    for (name, value) in attributes {
        item.insert((*name).to_owned(), attribute(*value));
    }
    table.insert(&item);
}

/// What a split moves is fixed when it is planned. A take that lands before it may leave less.
#[tokio::test]
async fn a_split_beside_a_take_leads_nobody_into_debt() {
    let hot = Hot::new(&["rpm:1000/hour"]).await;
    Hot::granted(hot.ask(&hot.process().await, &[0]).await);
    let root = hot.key(0);
    let table = hot.with_event(Operation::Transact, 0, move |table| {
        set(table, &root, &[("b_rpm_tk", 100_000)]);
    });
    assert!(!hot.upkeep_on(table).split(&hot.name(), 0).await.unwrap());
    assert_eq!((hot.shards().len(), hot.sum("b_rpm_tk")), (1, 100_000));
}

/// A transaction is sent again with its token: the table knows that it has landed.
#[tokio::test]
async fn a_split_whose_answer_is_lost_is_known_to_be_made() {
    let hot = Hot::new(&["rpm:1000/hour"]).await;
    Hot::granted(hot.ask(&hot.process().await, &[0]).await);
    let sent = AtomicU32::new(0);
    let faults = Faults::by(move |asked| {
        let is_first =
            asked.operation() == Operation::Transact && sent.fetch_add(1, Ordering::Relaxed) == 0;
        if is_first { Fate::LostAfter } else { Fate::Pass }
    });
    let upkeep = hot.upkeep_on(hot.rig.table.client(3).with_faults(faults));
    assert!(upkeep.split(&hot.name(), 0).await.unwrap());
    assert_eq!((hot.shards().len(), hot.sum("b_rpm_tk")), (2, 1_000_000));
}

/// A shard lies where a child belongs, and belongs to nobody. While one process is about to look at
/// it, another removes it and splits: what the first then sees is the child.
#[tokio::test]
async fn a_child_made_meanwhile_is_not_removed_as_an_orphan() {
    let hot = Hot::new(&["rpm:1000/hour"]).await;
    Hot::granted(hot.ask(&hot.process().await, &[0]).await);
    let alone = hot.shard(0);
    hot.split_into(2).await;
    let split = hot.shards();
    hot.rig.table.insert(&alone);
    hot.set(1, &[("er", 1), ("rf", 1)]);
    let (table, sent) = (hot.rig.table.clone(), AtomicU32::new(0));
    let gate = move |_: u32, point: Point| {
        let turn = match point {
            Point::After(Operation::Transact) => sent.fetch_add(1, Ordering::Relaxed) + 1,
            _ => 0,
        };
        if turn == 1 {
            split.iter().for_each(|item| table.insert(item));
        }
        0
    };
    let upkeep = hot.upkeep_on(hot.rig.table.client(3).with_gate(Arc::new(gate)));
    assert!(!upkeep.split(&hot.name(), 0).await.unwrap());
    assert_eq!((hot.shards().len(), hot.sum("b_rpm_tk")), (2, 1_000_000));
}

/// Two processes make the shard that a foreign writer has left out. A repair leaves the count of
/// the donor as it is: the second finds the shard of the first, which is no orphan.
#[tokio::test]
async fn two_repairs_at_once_make_one_shard() {
    let hot = Hot::new(&["rpm:1000/hour"]).await;
    Hot::granted(hot.ask(&hot.process().await, &[0]).await);
    hot.split_into(2).await;
    hot.set(0, &[("shard_count", 4)]);
    let raised = hot.shard(0);
    assert!(hot.upkeep().level(&hot.name()).await.unwrap() > 0);
    let (donor, child) = (hot.shard(0), hot.shard(2));
    assert_eq!(number(&child, "b_rpm_tk"), 250_000);
    for shard in 2..4 {
        hot.rig.table.remove(&hot.key(shard));
    }
    hot.rig.table.insert(&raised);
    let made = [donor, child];
    let table = hot.with_event(Operation::Transact, 0, move |table| {
        made.iter().for_each(|item| table.insert(item));
    });
    hot.upkeep_on(table).level(&hot.name()).await.unwrap();
    assert_eq!(number(&hot.shard(2), "b_rpm_tk"), 250_000, "as the first has made it");
}

/// An attempt was not answered, and the shard is short by the time it is asked again. The attempt
/// may still land: what is asked must not be taken from another shard as well.
#[tokio::test]
async fn a_take_that_may_still_land_is_taken_from_no_other_shard() {
    let hot = Hot::new(&["rpm:1000/hour"]).await;
    let calm = hot.process().await;
    Hot::granted(hot.ask(&calm, &[0]).await);
    hot.split_into(4).await;
    let mut sent = 0;
    let table = hot.with_fates(move |asked, changes| {
        let Asked::Bucket(write) = asked else { return Fate::Pass };
        sent += 1;
        // The first one shows the shards, the second is lost on its way.
        if sent != 2 {
            return Fate::Pass;
        }
        changes.push((write.key.clone(), "b_rpm_tk", 0));
        Fate::LostBefore
    });
    let store = hot.process_on(table, |_| {}).await;
    let outcome = hot.ask(&store, &[1]).await.unwrap();
    assert!(matches!(outcome, ConsumeOutcome::Contended { .. }), "{outcome:?}");
    assert_eq!(hot.sum("b_rpm_tc"), 0, "nothing was taken elsewhere");
    assert_eq!(store.counters().debits_unknown, 1);
}

/// No shard can have it: none is asked in vain.
#[tokio::test]
async fn more_than_a_share_is_asked_of_no_shard_alone() {
    let hot = Hot::on(EvalOptions::new().journal(), &["tpm:800/hour"]).await;
    let store = hot.process().await;
    Hot::granted(hot.ask(&store, &[0]).await);
    hot.split_into(8).await;
    Hot::granted(hot.ask(&store, &[1]).await);
    hot.advance(5_000);
    hot.calls();
    Hot::granted(hot.ask(&store, &[480]).await);
    assert_eq!(hot.calls(), ["BatchGet", "Transact"]);
}

/// Three shards that are drawn first owe a lot, as all do but one. That one serves the take.
#[tokio::test]
async fn what_other_shards_owe_refuses_no_take_that_one_can_serve() {
    let hot = Hot::new(&["rpm:3200/hour"]).await;
    Hot::granted(hot.ask(&hot.process().await, &[0]).await);
    hot.split_into(32).await;
    for shard in (0..32).filter(|shard| *shard != 17) {
        hot.set(shard, &[("b_rpm_tk", -1_000_000)]);
    }
    for _ in 0..5 {
        let grant = Hot::granted(hot.ask(&hot.process().await, &[1]).await);
        assert_eq!(places(&grant), [(17, 1_000)]);
    }
}

/// The Python package has changed parameters of one shard and left its mark there.
#[tokio::test]
async fn a_mark_on_one_shard_is_dealt_with_before_a_take_from_several() {
    let hot = Hot::new(&["tpm:800/hour"]).await;
    let store = hot.process().await;
    Hot::granted(hot.ask(&store, &[0]).await);
    hot.split_into(8).await;
    hot.set(3, &[("vu", 0)]);
    Hot::granted(hot.ask(&store, &[480]).await);
    assert!(!hot.shard(3).contains_key("vu"));
}

/// Also where the shard with the feature would not be asked.
#[tokio::test]
async fn a_feature_on_one_shard_stops_a_take_from_several() {
    let hot = Hot::new(&["tpm:800/hour"]).await;
    let store = hot.process().await;
    Hot::granted(hot.ask(&store, &[0]).await);
    hot.split_into(8).await;
    hot.set(7, &[("bypass", 1)]);
    let error = hot.ask(&store, &[480]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Incompatible, "{error}");
}

/// Shard 1 was empty five seconds ago, and somebody has filled the bucket since.
#[tokio::test]
async fn old_images_of_shards_refuse_nobody() {
    let hot = Hot::new(&["rpm:1000/hour"]).await;
    let store = hot.process().await;
    Hot::granted(hot.ask(&store, &[0]).await);
    hot.split_into(2).await;
    let fill = |milli: i64| (0..2).for_each(|shard| hot.set(shard, &[("b_rpm_tk", milli)]));
    fill(0);
    hot.advance(300);
    let refused = hot.ask(&store, &[600]).await.unwrap();
    assert!(matches!(refused, ConsumeOutcome::Refused(_)), "{refused:?}");
    hot.advance(5_000);
    fill(500_000);
    // This shows shard 0 as it is, and nothing of shard 1; the parent is known as well.
    hot.adjust(&store, 0, 1).await.unwrap();
    let (org, one, most) = ("org".parse().unwrap(), takes(&[1]), takes(&[600]));
    let member = |entity, takes| MemberTake {
        entity,
        resource: &hot.resource,
        limits: &hot.limits,
        takes,
        absent: &[],
    };
    let consume = async |members: &[MemberTake<'_>]| {
        store.consume(&ConsumeRequest::new(members, hot.now())).await
    };
    Hot::granted(consume(&[member(&org, one.as_slice())]).await);
    let chain = [member(&hot.entity, most.as_slice()), member(&org, one.as_slice())];
    Hot::granted(consume(&chain).await);
}

/// While a take from both shards is on its way, one of them is split. What came back shows three
/// quarters of the bucket, which is no reason to refuse.
#[tokio::test]
async fn a_split_beside_a_take_from_several_refuses_nobody() {
    let hot = Hot::new(&["rpm:1000/hour"]).await;
    Hot::granted(hot.ask(&hot.process().await, &[0]).await);
    hot.split_into(2).await;
    let before = hot.shard(1);
    assert!(hot.upkeep().split(&hot.name(), 1).await.unwrap());
    let split = [hot.shard(1), hot.shard(3)];
    hot.rig.table.insert(&before);
    hot.rig.table.remove(&hot.key(3));
    let table = hot.with_event(Operation::Transact, 0, move |table| {
        split.iter().for_each(|item| table.insert(item));
    });
    let store = hot.process_on(table, |_| {}).await;
    let grant = Hot::granted(hot.ask(&store, &[900]).await);
    assert_eq!(places(&grant).iter().map(|(_, milli)| milli).sum::<i64>(), 900_000);
}

/// Faults of the transactions of a process, in this order.
fn with_transactions(
    hot: &Hot,
    fate: impl Fn(u32, &str) -> Fate + Send + Sync + 'static,
) -> EvalTable {
    let sent = AtomicU32::new(0);
    let faults = Faults::by(move |asked| match asked {
        Asked::Transact(_, token) => fate(sent.fetch_add(1, Ordering::Relaxed), token),
        _ => Fate::Pass,
    });
    hot.rig.table.client(3).with_faults(faults)
}

/// The transaction was not answered, and cannot land as it is any more; the first attempt may still
/// have landed before that. It is not planned for other shards.
#[tokio::test]
async fn a_take_from_several_that_may_have_landed_is_not_planned_anew() {
    let hot = Hot::new(&["tpm:800/hour"]).await;
    Hot::granted(hot.ask(&hot.process().await, &[0]).await);
    hot.split_into(8).await;
    let (root, mut sent) = (hot.key(0), 0);
    let table = hot.with_fates(move |asked, changes| {
        sent += u32::from(asked.operation() == Operation::Transact);
        if asked.operation() != Operation::Transact || sent > 1 {
            return Fate::Pass;
        }
        changes.push((root.clone(), "b_tpm_tk", 0));
        Fate::LostBefore
    });
    let store = hot.process_on(table, |_| {}).await;
    let outcome = hot.ask(&store, &[480]).await.unwrap();
    assert!(matches!(outcome, ConsumeOutcome::Contended { .. }), "{outcome:?}");
    assert_eq!((hot.sum("b_tpm_tc"), store.counters().debits_unknown), (0, 1));
}

/// A transaction in conflict is sent again as it is, but not when half of the time has passed that
/// a write may take: it is planned anew, by the time there is then.
#[tokio::test]
async fn a_take_from_several_that_was_decided_long_ago_is_planned_anew() {
    let hot = Hot::new(&["tpm:800/hour"]).await;
    Hot::granted(hot.ask(&hot.process().await, &[0]).await);
    hot.split_into(8).await;
    let (clock, tokens) = (hot.rig.clock.clone(), Arc::new(Mutex::new(Vec::new())));
    let seen = Arc::clone(&tokens);
    let store = hot
        .process_on(
            with_transactions(&hot, move |turn, token| {
                seen.lock().unwrap().push(token.to_owned());
                match turn {
                    0 => {
                        clock.advance(Duration::from_millis(500));
                        Fate::Conflict(0)
                    }
                    _ => Fate::Pass,
                }
            }),
            |_| {},
        )
        .await;
    Hot::granted(hot.ask(&store, &[480]).await);
    let tokens = tokens.lock().unwrap();
    assert_eq!(tokens.len(), 2);
    assert_ne!(tokens[0], tokens[1], "another transaction");
}

/// This process knows eight shards. Others have folded them and split once since: the shards it
/// still draws belong to nobody, and are not made.
#[tokio::test]
async fn a_process_that_knows_shards_of_before_a_fold_makes_none_of_them() {
    let hot = Hot::new(&["rpm:100000/hour"]).await;
    let store = hot.process().await;
    Hot::granted(hot.ask(&store, &[1]).await);
    hot.split_into(8).await;
    for _ in 0..60 {
        Hot::granted(hot.ask(&store, &[1]).await);
    }
    assert!(hot.fold().await);
    hot.split_into(2).await;
    for _ in 0..60 {
        Hot::granted(hot.ask(&store, &[1]).await);
    }
    assert_eq!(hot.shards().len(), 2);
    assert_eq!(store.counters().repairs, 0);
}

/// A child whose parent is the hot bucket; whoever reads all shards of the parent is heard of.
fn chain_with_parent<'a>(
    hot: &'a Hot,
    child: &'a EntityId,
    takes: &'a [Take],
) -> [MemberTake<'a>; 2] {
    [child, &hot.entity].map(|entity| MemberTake {
        entity,
        resource: &hot.resource,
        limits: &hot.limits,
        takes,
        absent: &[],
    })
}

/// A chain that is refused elsewhere holds tokens of the parent for two round trips. Whoever asks
/// meanwhile looks twice.
#[tokio::test]
async fn a_parent_of_several_shards_that_is_short_for_a_moment_refuses_nobody() {
    let hot = Hot::new(&["rpm:1000/hour"]).await;
    Hot::granted(hot.ask(&hot.process().await, &[0]).await);
    hot.split_into(2).await;
    (0..2).for_each(|shard| hot.set(shard, &[("b_rpm_tk", 1_000)]));
    let keys = [hot.key(0), hot.key(1)];
    let table = hot.with_fates(move |asked, changes| {
        // After the first read of all shards the tokens are back.
        if matches!(asked, Asked::BatchGet(keys, _) if keys.len() == 32) {
            changes.extend(keys.clone().map(|key| (key, "b_rpm_tk", 500_000)));
        }
        Fate::Pass
    });
    let store = hot.process_on(table, |_| {}).await;
    let (child, asked) = ("child".parse().unwrap(), takes(&[60]));
    let members = chain_with_parent(&hot, &child, &asked);
    Hot::granted(store.consume(&ConsumeRequest::new(&members, hot.now())).await);
}

/// One that is short at both looks is believed, and refuses from memory for a moment.
#[tokio::test]
async fn a_parent_of_several_shards_that_was_short_twice_refuses_from_memory() {
    let hot = Hot::on(EvalOptions::new().journal(), &["rpm:1000/hour"]).await;
    let store = hot.process().await;
    let (child, asked) = ("child".parse().unwrap(), takes(&[60]));
    let members = chain_with_parent(&hot, &child, &asked);
    Hot::granted(store.consume(&ConsumeRequest::new(&members, hot.now())).await);
    hot.split_into(2).await;
    (0..2).for_each(|shard| hot.set(shard, &[("b_rpm_tk", 1_000)]));
    hot.advance(2_000);
    let refused = store.consume(&ConsumeRequest::new(&members, hot.now())).await.unwrap();
    assert!(matches!(refused, ConsumeOutcome::Refused(_)), "{refused:?}");
    hot.calls();
    let again = store.consume(&ConsumeRequest::new(&members, hot.now())).await.unwrap();
    assert!(matches!(again, ConsumeOutcome::Refused(_)), "{again:?}");
    assert_eq!(hot.calls(), [""; 0]);
}

/// Upkeep adds to what is stored; whatever another writer has yet to say is left to the takes.
#[tokio::test]
async fn an_early_refill_leaves_alone_what_somebody_has_to_look_at() {
    let hot = Hot::on(EvalOptions::new().journal(), &["rpm:1000/hour"]).await;
    Hot::granted(hot.ask(&hot.process().await, &[1_000]).await);
    hot.advance(60_000);
    let (upkeep, plain) = (hot.upkeep(), hot.shard(0));
    let mut disabled = plain.clone();
    disabled.insert("disabled".to_owned(), aws_sdk_dynamodb::types::AttributeValue::Bool(true));
    let with = |name: &str, value: i64| {
        let mut item = plain.clone();
        item.insert(name.to_owned(), attribute(value));
        item
    };
    let now = hot.now().0;
    let mut retired = plain.clone();
    retired.insert(
        "ret".to_owned(),
        aws_sdk_dynamodb::types::AttributeValue::Ss(vec!["rpm".to_owned()]),
    );
    hot.calls();
    let taken = [("rpm".to_owned(), 1_000_000)].into();
    for item in [
        disabled,
        with("vu", 0),
        with("bypass", 1),
        with("b_old_tk", 5),
        with("rf", now),
        with("b_rpm_tk", 1_000_000),
        retired,
    ] {
        assert!(!upkeep.refill(&hot.name(), 0, &item, &taken).await.unwrap(), "{item:?}");
    }
    assert_eq!(hot.calls(), [""; 0], "nothing was tried");
    assert!(upkeep.refill(&hot.name(), 0, &plain, &taken).await.unwrap());
}

/// Shard 0 has the count of four, and shard 2 is missing. It is made by its donor before anything
/// else is split, or a split of shard 0 would make shard 4 and leave the hole.
#[tokio::test]
async fn levelling_makes_what_is_missing_before_it_splits() {
    let hot = Hot::on(EvalOptions::new().journal(), &["rpm:1000/hour"]).await;
    Hot::granted(hot.ask(&hot.process().await, &[0]).await);
    hot.split_into(2).await;
    hot.set(0, &[("shard_count", 4)]);
    hot.rig.table.take_journal();
    assert_eq!(hot.upkeep().level(&hot.name()).await.unwrap(), 2);
    let calls = hot.rig.table.take_journal();
    let made: Vec<u32> = (calls.iter().flat_map(|call| &call.changes))
        .filter(|change| change.before.is_none())
        .filter_map(|change| change.after.as_ref().map(shard_of))
        .collect();
    assert_eq!(made, [2, 3], "the missing one first");
}

/// A process that may not split does not, whoever asks it to.
#[tokio::test]
async fn nobody_splits_beyond_the_shards_it_may_make() {
    let hot = Hot::new(&["rpm:1000/hour"]).await;
    Hot::granted(hot.ask(&hot.process().await, &[0]).await);
    let mut options = DynamoOptions::new();
    options.clock = Arc::new(hot.rig.clock.clone());
    options.shards_max = 2;
    let upkeep = Upkeep::new(Arc::new(hot.rig.table.clone()), options);
    assert!(upkeep.split(&hot.name(), 0).await.unwrap());
    assert!(!upkeep.split(&hot.name(), 0).await.unwrap());
    assert_eq!(hot.shards().len(), 2);
}

#[tokio::test]
async fn a_take_from_several_that_was_never_answered_is_an_error() {
    let hot = Hot::new(&["tpm:800/hour"]).await;
    Hot::granted(hot.ask(&hot.process().await, &[0]).await);
    hot.split_into(8).await;
    let store = hot.process_on(with_transactions(&hot, |_, _| Fate::LostBefore), |_| {}).await;
    let error = hot.ask(&store, &[480]).await.unwrap_err();
    assert!(error.fate_unknown(), "{error}");
    assert_eq!(store.counters().debits_unknown, 1);
}

/// A look has found the parent short; whoever held its tokens has given them back since. One look
/// refuses no child.
#[tokio::test]
async fn a_parent_of_several_shards_that_was_short_at_one_look_refuses_nobody_from_memory() {
    let hot = Hot::new(&["rpm:1000/hour"]).await;
    let store = hot.process().await;
    let (child, asked) = ("child".parse().unwrap(), takes(&[60]));
    let members = chain_with_parent(&hot, &child, &asked);
    Hot::granted(store.consume(&ConsumeRequest::new(&members, hot.now())).await);
    hot.split_into(2).await;
    (0..2).for_each(|shard| hot.set(shard, &[("b_rpm_tk", 1_000)]));
    hot.peek(&store, &[60]).await;
    (0..2).for_each(|shard| hot.set(shard, &[("b_rpm_tk", 470_000)]));
    Hot::granted(store.consume(&ConsumeRequest::new(&members, hot.now())).await);
}

/// The child was short five seconds ago, its parent of two shards was looked at just now.
#[tokio::test]
async fn an_old_image_beside_shards_refuses_nobody() {
    let hot = Hot::new(&["rpm:1000/hour"]).await;
    let store = hot.process().await;
    let (child, asked) = ("child".parse().unwrap(), takes(&[60]));
    let members = chain_with_parent(&hot, &child, &asked);
    Hot::granted(store.consume(&ConsumeRequest::new(&members, hot.now())).await);
    hot.split_into(2).await;
    let own = keys::bucket_of(&hot.rig.namespace, "child", "gpt-4", 0);
    set(&hot.rig.table, &own, &[("b_rpm_tk", 0)]);
    let refused = store.consume(&ConsumeRequest::new(&members, hot.now())).await.unwrap();
    assert!(matches!(refused, ConsumeOutcome::Refused(_)), "{refused:?}");
    hot.advance(5_000);
    set(&hot.rig.table, &own, &[("b_rpm_tk", 900_000)]);
    hot.peek(&store, &[1]).await;
    Hot::granted(store.consume(&ConsumeRequest::new(&members, hot.now())).await);
}

/// The same by a process that knows all shards before it asks.
#[tokio::test]
async fn a_take_that_may_still_land_on_a_known_shard_is_taken_from_no_other() {
    let hot = Hot::new(&["rpm:1000/hour"]).await;
    Hot::granted(hot.ask(&hot.process().await, &[0]).await);
    hot.split_into(4).await;
    let left = Arc::new(AtomicU32::new(0));
    let armed = Arc::clone(&left);
    let table = hot.with_fates(move |asked, changes| match asked {
        Asked::Bucket(write) if armed.swap(0, Ordering::Relaxed) == 1 => {
            changes.push((write.key.clone(), "b_rpm_tk", 0));
            Fate::LostBefore
        }
        _ => Fate::Pass,
    });
    let store = hot.process_on(table, |_| {}).await;
    for _ in 0..20 {
        Hot::granted(hot.ask(&store, &[1]).await);
    }
    left.store(1, Ordering::Relaxed);
    let outcome = hot.ask(&store, &[1]).await.unwrap();
    assert!(matches!(outcome, ConsumeOutcome::Contended { .. }), "{outcome:?}");
    assert_eq!(hot.sum("b_rpm_tc"), 20_000, "nothing was taken elsewhere");
}
