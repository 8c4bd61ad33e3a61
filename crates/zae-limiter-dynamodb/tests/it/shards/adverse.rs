//! Shards in adverse circumstances: late and lost answers, throttling, debt, deletions by others.

use std::sync::atomic::AtomicU32;

use super::*;
use zae_limiter_core::Wait;
use zae_limiter_testkit::table::{Asked, Fate, Faults, Operation, Point};

fn is_bucket_write(asked: &Asked<'_>) -> bool {
    matches!(asked.operation(), Operation::Update | Operation::Put)
}

/// S2: "A shard that is not there sends its caller to the shard it was split from, down to 0." A
/// bucket that is gone is full; nobody else is there. The caller hears "contended".
#[tokio::test]
async fn a_bucket_that_is_gone_with_all_its_shards_is_made_anew() {
    let hot = Hot::new(&["rpm:1000/hour"]).await;
    let store = hot.process().await;
    Hot::granted(hot.ask(&store, &[1]).await);
    hot.split_into(32).await;
    for _ in 0..300 {
        Hot::granted(hot.ask(&store, &[1]).await);
    }
    // Another administrator deletes the entity and makes it again.
    for shard in 0..32 {
        let key = keys::bucket_of(&hot.rig.namespace, "key", "gpt-4", shard);
        hot.rig.table.remove(&key);
    }
    hot.advance(5_000);
    let mut heard = Vec::new();
    for _ in 0..3 {
        heard.push(match hot.ask(&store, &[1]).await.unwrap() {
            ConsumeOutcome::Granted(_) => "granted",
            ConsumeOutcome::Contended { .. } => "contended",
            ConsumeOutcome::Refused(_) => "refused",
            _ => "other",
        });
        hot.advance(60);
    }
    assert_eq!(heard, ["granted"; 3]);
}

/// S8: "the take is refused with the wait of the whole bucket". Shard 0 is full and gains nothing;
/// the wait counts its rate all the same.
#[tokio::test]
async fn after_the_wait_that_a_refusal_tells_the_take_passes() {
    let hot = Hot::new(&["rpm:1000/hour"]).await;
    let store = hot.process().await;
    Hot::granted(hot.ask(&store, &[0]).await);
    hot.split_into(2).await;
    // Shard 1 is emptied by a charge.
    hot.adjust(&store, 1, 500).await.unwrap();
    hot.advance(300);
    let mut waits = Vec::new();
    for _ in 0..12 {
        match hot.ask(&store, &[900]).await.unwrap() {
            ConsumeOutcome::Granted(_) => break,
            ConsumeOutcome::Refused(reports) => {
                let ms = reports[0].wait.ms().unwrap();
                waits.push(ms);
                hot.advance(ms);
            }
            ConsumeOutcome::Contended { .. } => hot.advance(300),
            other => panic!("{other:?}"),
        }
    }
    assert!(
        waits.len() <= 1,
        "told to wait {waits:?} ms, one after the other, and nobody else came"
    );
}

/// The same with debt on one shard, the other way round: the wait is for the debt of a shard that
/// the others do not wait for.
#[tokio::test]
async fn a_debt_of_one_shard_is_not_the_wait_of_a_take_that_another_serves() {
    let hot = Hot::new(&["rpm:1000/hour"]).await;
    let store = hot.process().await;
    Hot::granted(hot.ask(&store, &[0]).await);
    hot.split_into(2).await;
    hot.adjust(&store, 1, 5_000).await.unwrap();
    hot.adjust(&store, 0, 495).await.unwrap();
    hot.advance(300);
    // Shard 0 has 5 and gains 500 an hour: 10 are there after 36 s.
    let refused = hot.ask(&store, &[10]).await.unwrap();
    let ConsumeOutcome::Refused(reports) = refused else { panic!("{refused:?}") };
    let told = reports[0].wait.ms().unwrap();
    hot.advance(40_000);
    Hot::granted(hot.ask(&store, &[10]).await);
    assert!(told < 60_000, "told to wait {told} ms; passed after 40000");
}

/// A charge lands unheard on shard 1, the shards are folded, and the settler repeats the charge.
/// The nonce went with the shard: nobody can tell whether it had landed, and the caller is charged
/// once more rather than not at all.
#[tokio::test]
async fn a_charge_whose_answer_was_lost_before_a_fold_is_charged_once_more() {
    let hot = Arc::new(Hot::new(&["rpm:1000/hour"]).await);
    let calm = hot.process().await;
    Hot::granted(hot.ask(&calm, &[0]).await);
    hot.split_into(2).await;
    let (sent, is_over) = (AtomicU32::new(0), Arc::new(AtomicU32::new(0)));
    let over = Arc::clone(&is_over);
    let faults = Faults::by(move |asked| {
        let is_charge = is_bucket_write(asked) && format!("{asked:?}").contains("#gpt-4#1");
        match is_charge && over.load(Ordering::Relaxed) == 0 {
            true if sent.fetch_add(1, Ordering::Relaxed) == 0 => Fate::LostAfter,
            true => Fate::Unreachable,
            false => Fate::Pass,
        }
    });
    let table = hot.rig.table.client(3).with_faults(faults);
    let store = hot.process_on(table, |_| {}).await;
    let deltas = [Delta { limit: 0, amount: Milli(100_000) }];
    let delta = || BucketDelta {
        entity: &hot.entity,
        resource: &hot.resource,
        limits: &hot.limits,
        deltas: &deltas,
        operation: 7,
        take: 0,
        place: 1,
    };
    let first = store.adjust(&[delta()], hot.now()).await.remove(0);
    assert!(first.is_err(), "{first:?}");
    assert_eq!(hot.sum("b_rpm_tc"), 100_000, "landed, unheard");
    let folder = hot.process().await;
    let pk = keys::bucket_of(&hot.rig.namespace, "key", "gpt-4", 0).pk;
    assert!(folder.fold_now(&pk, hot.now()).await.unwrap());
    let before = hot.sum("b_rpm_tk");
    // The settler sends the same charge again, by its number.
    is_over.store(1, Ordering::Relaxed);
    store.adjust(&[delta()], hot.now()).await.remove(0).unwrap();
    let after = hot.sum("b_rpm_tk");
    assert_eq!(before - after, 100_000, "on the safe side, and not more often");
    assert!(store.counters().debits_unknown > 0, "{:?}", store.counters());
}

/// A rest is for a bucket that nobody could serve (S9a), not for a caller whose limits were stale:
/// he reads them and comes back at once. Nobody else is there, and the tokens are.
#[tokio::test]
async fn a_caller_whose_limits_were_stale_is_served_at_once() {
    use zae_limiter_store::{ConfigStore as _, Level};
    let hot = Hot::new(&["rpm:1000/hour"]).await;
    let admin = hot.rig.store().await;
    let set = |text: &str| crate::evaluated::limits(text);
    admin.set_limits(&Level::System, &set("rpm:1000/hour"), &hot.rig.change()).await.unwrap();
    let stored = |text: &str, stamp: u64| {
        let limits: Vec<Limit> = vec![text.parse().unwrap()];
        LimitsInForce::resolved(limits, LimitSource::System, ConfigStamp(stamp), 7)
    };
    let store = hot.process().await;
    let old = stored("rpm:1000/hour", u64::try_from(hot.now().0).unwrap() * 1_000);
    Hot::granted(hot.ask_under(&store, &old, &[1]).await);
    hot.split_into(4).await;
    Hot::granted(hot.ask_under(&store, &old, &[1]).await);
    hot.advance(20_000);
    admin.set_limits(&Level::System, &set("rpm:2000/hour"), &hot.rig.change()).await.unwrap();
    hot.advance(20_000);
    let now = u64::try_from(hot.now().0).unwrap() * 1_000;
    let new = stored("rpm:2000/hour", now);
    let other = hot.process().await;
    // Another process brings the new limits to all shards.
    Hot::granted(hot.ask_under(&other, &new, &[1]).await);
    hot.advance(1_000);
    let stale = hot.ask_under(&store, &old, &[600]).await.unwrap();
    assert!(matches!(stale, ConsumeOutcome::Stale { .. }), "{stale:?}");
    let fresh = stored("rpm:2000/hour", u64::try_from(hot.now().0).unwrap() * 1_000);
    let served = hot.ask_under(&store, &fresh, &[600]).await.unwrap();
    assert!(matches!(served, ConsumeOutcome::Granted(_)), "{served:?}");
}

/// A bucket that is disabled says so every time, not every other time "contended".
#[tokio::test]
async fn a_disabled_bucket_of_shards_always_says_so() {
    use zae_limiter_store::{ConfigStore as _, Level};
    let hot = Hot::new(&["rpm:1000/hour"]).await;
    let store = hot.process().await;
    Hot::granted(hot.ask(&store, &[1]).await);
    hot.split_into(4).await;
    Hot::granted(hot.ask(&store, &[1]).await);
    let admin = hot.rig.store().await;
    let level = Level::Resource(hot.resource.clone());
    let flag = Some(zae_limiter_core::Flag::Disabled);
    admin.set_flag(&level, flag, &hot.rig.change()).await.unwrap();
    hot.advance(2_000);
    for turn in 0..4 {
        let heard = hot.ask(&store, &[600]).await.unwrap();
        assert!(matches!(heard, ConsumeOutcome::Blocked { .. }), "turn {turn}: {heard:?}");
        hot.advance(20);
    }
}

/// docs/accuracy.md: at most capacity, rate times 100 ms, and rate times the age of a request when
/// it lands, at most 800 ms. The transaction of a gather is sent by the client of administration,
/// which waits for 3 s, and its age is not looked at when the answer comes.
#[tokio::test]
async fn a_gather_that_lands_late_is_not_granted() {
    let hot = Hot::new(&["rps:10000/10sec:10000"]).await;
    let calm = hot.process().await;
    Hot::granted(hot.ask(&calm, &[0]).await);
    hot.split_into(2).await;
    let clock = hot.rig.clock.clone();
    let faults = Faults::by(move |asked| {
        if asked.operation() == Operation::Transact {
            clock.advance(Duration::from_millis(2_900));
        }
        Fate::Pass
    });
    let slow = hot.process_on(hot.rig.table.client(3).with_faults(faults), |_| {}).await;
    let outcome = hot.ask(&slow, &[10_000]).await.unwrap();
    let first: u64 = if matches!(outcome, ConsumeOutcome::Granted(_)) { 10_000 } else { 0 };
    let mut rest: u64 = 0;
    for amount in [1_000_u64, 100, 10] {
        while matches!(hot.ask(&calm, &[amount]).await.unwrap(), ConsumeOutcome::Granted(_)) {
            rest += amount;
        }
        hot.advance(0);
    }
    let granted = first + rest;
    assert!(granted <= 10_000 + 100 + 800, "{granted} granted at one instant ({first} + {rest})");
}

/// Two charges without a number, of a limit that is pinned by now: both count.
#[tokio::test]
async fn two_unnumbered_charges_of_a_pinned_limit_both_count() {
    let hot = Hot::new(&["img:10/hour", "rpm:100000/hour"]).await;
    let store =
        hot.process_on(hot.rig.table.clone(), |options| options.share_min_milli = 10_000).await;
    Hot::granted(hot.ask(&store, &[0, 1]).await);
    let upkeep = {
        let mut options = DynamoOptions::new();
        options.clock = Arc::new(hot.rig.clock.clone());
        Upkeep::new(Arc::new(hot.rig.table.clone()), options)
    };
    assert!(upkeep.split(&hot.name(), 0).await.unwrap());
    hot.adjust(&store, 1, 2).await.unwrap();
    hot.adjust(&store, 1, 3).await.unwrap();
    assert_eq!(hot.sum("b_img_tc"), 5_000);
}

/// S9: "A shard that is short, contended or throttled is left for another." A process that has just
/// started knows one shard, and is told that the table is busy.
#[tokio::test]
async fn a_cold_process_goes_around_a_throttled_shard_zero() {
    let hot = Hot::new(&["rpm:1000/hour"]).await;
    Hot::granted(hot.ask(&hot.process().await, &[0]).await);
    hot.split_into(4).await;
    let faults = Faults::by(move |asked| {
        let is_root = format!("{asked:?}").contains("#gpt-4#0");
        if is_bucket_write(asked) && is_root { Fate::NotApplied } else { Fate::Pass }
    });
    let cold = hot.process_on(hot.rig.table.client(3).with_faults(faults), |_| {}).await;
    let outcome = hot.ask(&cold, &[1]).await;
    assert!(matches!(outcome, Ok(ConsumeOutcome::Granted(_))), "{outcome:?}");
}

/// The same when the first write still shows the shards and the second one is turned away.
#[tokio::test]
async fn a_process_that_learns_the_shards_goes_around_a_throttled_shard_zero() {
    let hot = Hot::new(&["rpm:1000/hour"]).await;
    Hot::granted(hot.ask(&hot.process().await, &[0]).await);
    hot.split_into(4).await;
    let turns = AtomicU32::new(0);
    let faults = Faults::by(move |asked| {
        let is_root = is_bucket_write(asked) && format!("{asked:?}").contains("#gpt-4#0");
        if is_root && turns.fetch_add(1, Ordering::Relaxed) > 0 {
            Fate::NotApplied
        } else {
            Fate::Pass
        }
    });
    let cold = hot.process_on(hot.rig.table.client(3).with_faults(faults), |_| {}).await;
    let outcome = hot.ask(&cold, &[1]).await;
    assert!(matches!(outcome, Ok(ConsumeOutcome::Granted(_))), "{outcome:?}");
}

/// A capacity of one token a day over 32 shards: granted once, then after the wait that was told.
#[tokio::test]
async fn one_a_day_over_thirty_two_shards() {
    let hot = Hot::new(&["rpm:1000/day"]).await;
    let store = hot.process().await;
    Hot::granted(hot.ask(&store, &[0]).await);
    hot.split_into(32).await;
    let one = LimitsInForce::new(vec!["rpm:1/day".parse::<Limit>().unwrap()], LimitSource::Call);
    hot.advance(300);
    Hot::granted(hot.ask_under(&store, &one, &[1]).await);
    let began = hot.now();
    let mut waits = Vec::new();
    for _ in 0..40 {
        hot.advance(300);
        match hot.ask_under(&store, &one, &[1]).await.unwrap() {
            ConsumeOutcome::Granted(_) => break,
            ConsumeOutcome::Refused(reports) => {
                let ms = reports[0].wait.ms().unwrap();
                waits.push(ms);
                hot.advance(ms);
            }
            ConsumeOutcome::Contended { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    let took = hot.now().since(began);
    // Shard 0 has 32 of the 1 000 millitokens and a 32nd of the rate: the last to be full.
    assert!(took <= 88_500_000 && waits.len() <= 1, "{took} ms, told {waits:?}");
}

/// More than the capacity never passes, and says so.
#[tokio::test]
async fn more_than_the_capacity_of_all_shards_never_passes() {
    let hot = Hot::new(&["rpm:1000/hour"]).await;
    let store = hot.process().await;
    Hot::granted(hot.ask(&store, &[0]).await);
    hot.split_into(8).await;
    for turn in 0..4 {
        let refused = hot.ask(&store, &[1_001]).await.unwrap();
        let ConsumeOutcome::Refused(reports) = &refused else { panic!("turn {turn}: {refused:?}") };
        assert_eq!(reports[0].wait, Wait::Never, "turn {turn}");
        hot.advance(30);
    }
}

/// A limit of the largest numbers, split, folded and asked.
#[tokio::test]
async fn the_largest_numbers_split_and_fold() {
    let hot = Hot::new(&["rpm:1000000000/day:9000000000000", "tpm:9000000000000/sec"]).await;
    let store = hot.process().await;
    Hot::granted(hot.ask(&store, &[1, 1]).await);
    hot.split_into(32).await;
    let grant = Hot::granted(hot.ask(&store, &[8_999_999_999_000, 8_999_999_999_000]).await);
    assert!(grant.places.len() > 30);
    for place in &grant.places {
        let deltas: Vec<Delta> = place
            .taken
            .iter()
            .map(|take| Delta { limit: take.limit, amount: Milli(-take.amount.0) })
            .collect();
        let delta = BucketDelta {
            entity: &hot.entity,
            resource: &hot.resource,
            limits: &hot.limits,
            deltas: &deltas,
            operation: 0,
            take: 0,
            place: place.shard,
        };
        store.adjust(&[delta], hot.now()).await.remove(0).unwrap();
    }
    assert_eq!(hot.sum("b_rpm_tk"), 9_000_000_000_000_000 - 1_000);
    assert!(hot.fold().await);
    assert_eq!(hot.sum("b_tpm_tk"), 9_000_000_000_000_000);
}

/// A listing says what a bucket has, also when its shards are folded between the two reads of it.
#[tokio::test]
async fn a_listing_beside_a_fold_shows_the_whole_bucket() {
    use zae_limiter_store::PageRequest;
    let hot = Hot::new(&["rpm:1000/hour"]).await;
    Hot::granted(hot.ask(&hot.process().await, &[0]).await);
    hot.split_into(2).await;
    let (table, namespace) = (hot.rig.table.clone(), hot.rig.namespace.clone());
    let reads = AtomicU32::new(0);
    let is_listing = Arc::new(AtomicU32::new(0));
    let listing = Arc::clone(&is_listing);
    let gate = move |_: u32, point: Point| {
        let is_read = point == Point::Before(Operation::BatchGet);
        if is_read
            && listing.load(Ordering::Relaxed) == 1
            && reads.fetch_add(1, Ordering::Relaxed) == 1
        {
            // What a fold leaves.
            let key = |shard| keys::bucket_of(&namespace, "key", "gpt-4", shard);
            let mut root = table.get(&key(0)).unwrap();
            let number = zae_limiter_dynamodb::table::number;
            root.insert("b_rpm_tk".to_owned(), number(1_000_000));
            root.insert("shard_count".to_owned(), number(1));
            root.insert("er".to_owned(), number(1));
            table.insert(&root);
            table.remove(&key(1));
        }
        0
    };
    let store = hot.process_on(hot.rig.table.client(3).with_gate(Arc::new(gate)), |_| {}).await;
    is_listing.store(1, Ordering::Relaxed);
    let views = store.buckets(&hot.entity, &PageRequest::first(10)).await.unwrap();
    assert_eq!(views.items[0].state.limits()[0].balance, Milli(1_000_000));
}

/// Page two of a listing of sharded buckets.
#[tokio::test]
async fn every_page_of_sharded_buckets_is_listed_once() {
    use zae_limiter_store::PageRequest;
    let hot = Hot::on(EvalOptions::new().page_max(3), &["rpm:1000/hour"]).await;
    let store = hot.process_on(hot.rig.table.clone(), |options| options.born_split = 8).await;
    for resource in ["a", "b", "c", "d", "e"] {
        let resource: ResourceName = resource.parse().unwrap();
        let takes = takes(&[1]);
        let member = MemberTake {
            entity: &hot.entity,
            resource: &resource,
            limits: &hot.limits,
            takes: &takes,
            absent: &[],
        };
        Hot::granted(store.consume(&ConsumeRequest::new(&[member], hot.now())).await);
    }
    for size in [1, 2, 3, 10] {
        let (mut page, mut seen) = (PageRequest::first(size), Vec::new());
        loop {
            let answer = store.buckets(&hot.entity, &page).await.unwrap();
            seen.extend(answer.items.iter().map(|view| view.resource.to_string()));
            match answer.next {
                Some(next) => page = PageRequest::after(size, next),
                None => break,
            }
        }
        assert_eq!(seen, ["a", "b", "c", "d", "e"], "pages of {size}");
    }
}

/// S4a: an era tells apart shares that look alike. A bucket that is deleted and made again begins
/// with no era, as the one before it did.
#[tokio::test]
async fn an_image_of_a_bucket_that_was_deleted_takes_nothing_for_granted() {
    let hot = Hot::new(&["rpm:100000/hour", "x:100/day"]).await;
    let plain = || async {
        hot.process_on(hot.rig.table.clone(), |options| options.share_min_milli = 10_000).await
    };
    let splitter = || {
        let mut options = DynamoOptions::new();
        options.clock = Arc::new(hot.rig.clock.clone());
        Upkeep::new(Arc::new(hot.rig.table.clone()), options)
    };
    let raised = LimitsInForce::new(
        vec!["rpm:100000/hour".parse().unwrap(), "x:1000/day:1000".parse().unwrap()],
        LimitSource::Call,
    );
    let old = plain().await;
    Hot::granted(hot.ask(&old, &[1, 1]).await);
    assert!(splitter().split(&hot.name(), 0).await.unwrap());
    // x is pinned with 100, then raised to 1 000: all of it is on shard 0.
    hot.advance(1_000);
    Hot::granted(hot.ask_under(&old, &raised, &[0, 1]).await);
    assert_eq!(hot.shard(0)["pin"].as_s().unwrap(), "x");
    // Another administrator deletes the entity and makes it again: now x is divided.
    for shard in 0..2 {
        hot.rig.table.remove(&keys::bucket_of(&hot.rig.namespace, "key", "gpt-4", shard));
    }
    hot.advance(1_000);
    let new = plain().await;
    Hot::granted(hot.ask_under(&new, &raised, &[0, 0]).await);
    assert!(splitter().split(&hot.name(), 0).await.unwrap());
    assert!(!hot.shard(0).contains_key("pin"));
    assert_eq!(number(&hot.shard(0), "b_x_tk"), 500_000);
    // Three hours later the old process still has its image; shard 0 is full and gains nothing.
    hot.advance(3 * 3_600_000);
    Hot::granted(hot.ask_under(&old, &raised, &[0, 50]).await);
    // 1 000 less 50: nobody may take 951 now, or 1 001 were granted at one instant.
    let others = hot.ask_under(&plain().await, &raised, &[0, 951]).await.unwrap();
    assert!(!matches!(others, ConsumeOutcome::Granted(_)), "more than the capacity: {others:?}");
}

/// A chain whose two members have shards, refused by the upper one: everything comes back.
#[tokio::test]
async fn a_chain_of_shards_on_two_levels_gives_everything_back() {
    let hot = Hot::new(&["tpm:1000/hour"]).await;
    let small = limits_of(&["tpm:500/hour"]);
    let org: EntityId = "org".parse().unwrap();
    let consume = |store: DynamoStore, tokens: u64| {
        let takes = takes(&[tokens]);
        let (hot, small, org) = (&hot, &small, &org);
        async move {
            let members = [(&hot.entity, &hot.limits), (org, small)].map(|(entity, limits)| {
                MemberTake { entity, resource: &hot.resource, limits, takes: &takes, absent: &[] }
            });
            store.consume(&ConsumeRequest::new(&members, hot.now())).await.unwrap()
        }
    };
    let born = hot.process_on(hot.rig.table.clone(), |options| options.born_split = 8).await;
    let first = consume(born.clone(), 10).await;
    assert!(matches!(first, ConsumeOutcome::Granted(_)), "{first:?}");
    hot.advance(1_000);
    let before = (hot.sum("b_tpm_tc"), hot.sum("b_wcu_tc"));
    for amount in [600_u64, 495, 700] {
        let cold = hot.process().await;
        let refused = consume(cold, amount).await;
        assert!(!matches!(refused, ConsumeOutcome::Granted(_)), "{refused:?}");
        assert_eq!((hot.sum("b_tpm_tc"), hot.sum("b_wcu_tc")), before, "after {amount}");
        hot.advance(500);
    }
}
