//! Pacing: what a process with local blocks answers while a limit is scarce.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use zae_limiter_core::{EntityId, EventId, Limit, LimitSource, Milli, Reports, Take, TimeMs, Wait};
use zae_limiter_store::{
    BlockStore, BucketDelta, BucketStore as _, Change, Clock as _, ConsumeOutcome, ConsumeRequest,
    Delta, Fault, FaultStore, LimitsInForce, LocalBlocks, ManualClock, MemberTake, MemoryStore,
    ResetRequest, SeededEntropy,
};

const BEGIN: TimeMs = TimeMs(4_102_480_800_000);

/// A process on a store, whose calls are counted.
struct Process {
    blocks: BlockStore<FaultStore<MemoryStore>>,
    store: MemoryStore,
    clock: ManualClock,
    calls: Arc<AtomicU32>,
    limits: LimitsInForce,
    key: EntityId,
}

impl Process {
    fn new(limits: &str) -> Process {
        let (store, clock) = (MemoryStore::new(), ManualClock::new(BEGIN));
        let calls = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&calls);
        let inner = FaultStore::new(Arc::new(store.clone()), move |operation: &'static str| {
            if matches!(operation, "consume" | "provision" | "settle" | "adjust") {
                counted.fetch_add(1, SeqCst);
            }
            Fault::None
        });
        let blocks = BlockStore::with_clock(
            Arc::new(inner),
            LocalBlocks::default(),
            Arc::new(clock.clone()),
            Arc::new(SeededEntropy::new(1)),
        );
        let limits: Vec<Limit> =
            limits.split(' ').map(|limit| limit.parse().expect("a limit")).collect();
        Process {
            blocks: blocks.expect("memory lends"),
            store,
            clock,
            calls,
            limits: LimitsInForce::new(limits, LimitSource::System),
            key: "key".parse().expect("an id"),
        }
    }

    fn calls(&self) -> u32 {
        self.calls.load(SeqCst)
    }

    async fn ask(&self, tokens: &[i64]) -> ConsumeOutcome {
        self.ask_at(tokens, self.now(), false).await
    }

    fn now(&self) -> TimeMs {
        self.clock.now()
    }

    async fn ask_at(&self, tokens: &[i64], now: TimeMs, is_plain: bool) -> ConsumeOutcome {
        let takes: Vec<Take> = (0_u8..)
            .zip(tokens)
            .map(|(limit, tokens)| Take { limit, amount: Milli(tokens * 1_000) })
            .collect();
        let resource = "gpt-4".parse().expect("a resource");
        let members = [MemberTake {
            entity: &self.key,
            resource: &resource,
            limits: &self.limits,
            takes: &takes,
            absent: &[],
        }];
        let request = ConsumeRequest::new(&members, now);
        if is_plain {
            return self.store.peek(&request).await.expect("no outage");
        }
        match self.blocks.consume_at_once(&request) {
            Some(outcome) => outcome,
            None => self.blocks.consume(&request).await,
        }
        .expect("no outage")
    }

    /// Takes from the store, as a process without blocks does.
    async fn take_plain(&self, tokens: i64, now: TimeMs) -> bool {
        let takes = [Take { limit: 0, amount: Milli(tokens * 1_000) }];
        let resource = "gpt-4".parse().expect("a resource");
        let members = [MemberTake {
            entity: &self.key,
            resource: &resource,
            limits: &self.limits,
            takes: &takes,
            absent: &[],
        }];
        let outcome = self.store.consume(&ConsumeRequest::new(&members, now)).await;
        matches!(outcome.expect("no outage"), ConsumeOutcome::Granted(_))
    }

    /// Gives back to the store, as another process does.
    async fn give_back_plain(&self, tokens: i64, now: TimeMs) {
        let resource = "gpt-4".parse().expect("a resource");
        let deltas = [Delta { limit: 0, amount: Milli(-tokens * 1_000) }];
        let delta = BucketDelta {
            entity: &self.key,
            resource: &resource,
            limits: &self.limits,
            deltas: &deltas,
            operation: 0,
            take: 0,
            place: 0,
        };
        assert!(self.store.adjust(&[delta], now).await.iter().all(Result::is_ok));
    }

    async fn give_back(&self, tokens: i64) {
        let resource = "gpt-4".parse().expect("a resource");
        let deltas = [Delta { limit: 0, amount: Milli(-tokens * 1_000) }];
        let delta = BucketDelta {
            entity: &self.key,
            resource: &resource,
            limits: &self.limits,
            deltas: &deltas,
            operation: 0,
            take: 0,
            place: 0,
        };
        for answer in self.blocks.adjust(&[delta], self.now()).await {
            answer.expect("no outage");
        }
    }

    /// Asks once a millisecond until a refusal comes from memory; its reports and its age.
    async fn until_paced(&self, tokens: &[i64]) -> (Reports, Duration) {
        for _ in 0..5_000 {
            if let ConsumeOutcome::Paced { reports, age } = self.ask(tokens).await {
                return (reports, age);
            }
            self.clock.advance(Duration::from_millis(1));
        }
        panic!("nothing was paced");
    }
}

fn is_paced(outcome: &ConsumeOutcome) -> bool {
    matches!(outcome, ConsumeOutcome::Paced { .. })
}

#[tokio::test]
async fn a_scarce_limit_costs_a_few_visits_a_second() {
    let process = Process::new("rpm:6000/min");
    let mut granted = 0;
    for _ in 0..100 {
        if matches!(process.ask(&[60]).await, ConsumeOutcome::Granted(_)) {
            granted += 1;
        }
    }
    assert_eq!(granted, 100, "the bucket was full");
    process.until_paced(&[1]).await;
    // About a second's refill stays in the bucket while it is scarce.
    for _ in 0..3_000 {
        process.ask(&[1]).await;
        process.clock.advance(Duration::from_millis(1));
    }
    let (before, mut granted) = (process.calls(), 0);
    for _ in 0..10_000 {
        match process.ask(&[1]).await {
            ConsumeOutcome::Granted(_) => granted += 1,
            ConsumeOutcome::Paced { age, .. } => {
                assert!(age <= Duration::from_millis(1_250), "{age:?}");
            }
            ConsumeOutcome::Refused(_) => {}
            other => panic!("{other:?}"),
        }
        process.clock.advance(Duration::from_millis(1));
    }
    let calls = process.calls() - before;
    assert!((990..=1_010).contains(&granted), "{granted} of a limit of 100 a second");
    assert!(calls <= 60, "{calls} visits in 10 s");
    let stats = process.blocks.stats();
    assert!(stats.paced > 8_000 && stats.missing() == Milli::ZERO, "{stats:?}");
}

#[tokio::test]
async fn a_wait_is_not_shorter_than_the_store_would_say() {
    let process = Process::new("rpm:6000/min");
    process.until_paced(&[100]).await;
    let mut checked = 0;
    for _ in 0..3_000 {
        process.clock.advance(Duration::from_millis(1));
        let ConsumeOutcome::Paced { reports, .. } = process.ask(&[70]).await else { continue };
        let held = process.blocks.stats().held;
        let plain = process.ask_at(&[70], process.now(), true).await;
        let (ConsumeOutcome::Refused(exact), Wait::After(said)) = (plain, reports[0].wait) else {
            assert!(reports[0].wait != Wait::None, "{reports:?}");
            continue;
        };
        // The store does not count the stock of the process: that makes its wait longer.
        let stock_ms = u64::try_from(held.0 / 100).expect("stock");
        let exact_ms = exact[0].wait.ms().expect("a wait").saturating_sub(stock_ms);
        assert!(said.get() >= exact_ms, "{said:?} {exact_ms} {held:?}");
        assert!(reports[0].balance <= held, "{reports:?}: what refills is there for everybody");
        checked += 1;
    }
    assert!(checked > 100, "{checked}");
}

#[tokio::test]
async fn a_request_that_lacks_only_what_is_plentiful_is_not_paced() {
    let process = Process::new("rpm:6000/min tpm:6000000/min");
    process.until_paced(&[100, 1]).await;
    // Own stock has no 100 000 tokens, but the bucket has millions.
    for _ in 0..5 {
        let outcome = process.ask(&[0, 100_000]).await;
        assert!(!is_paced(&outcome), "{outcome:?}");
    }
    let (reports, _) = process.until_paced(&[100, 1]).await;
    assert_eq!(reports[1].wait, Wait::None, "{reports:?}");
    let mut paced = 0;
    for _ in 0..500 {
        process.clock.advance(Duration::from_millis(1));
        let ConsumeOutcome::Paced { reports, .. } = process.ask(&[100, 1]).await else { continue };
        assert!(reports[1].balance <= Milli(6_000_000_000), "no more than full: {reports:?}");
        paced += 1;
    }
    assert!(paced > 100, "{paced}");
}

#[tokio::test]
async fn what_can_never_pass_is_for_the_store_to_say() {
    let process = Process::new("rpm:6000/min");
    process.until_paced(&[100]).await;
    let outcome = process.ask(&[6_001]).await;
    let ConsumeOutcome::Refused(reports) = &outcome else { panic!("{outcome:?}") };
    assert_eq!(reports[0].wait, Wait::Never);
}

#[tokio::test]
async fn an_own_refund_ends_the_pause() {
    let process = Process::new("rpm:6000/min");
    process.until_paced(&[100]).await;
    assert!(is_paced(&process.ask(&[100]).await));
    process.give_back(3_000).await;
    let outcome = process.ask(&[100]).await;
    assert!(matches!(outcome, ConsumeOutcome::Granted(_)), "{outcome:?}");
}

#[tokio::test]
async fn a_clock_that_is_set_ends_the_pause() {
    for by_ms in [-60_000, -300, 60_000] {
        let process = Process::new("rpm:6000/min");
        process.until_paced(&[100]).await;
        let outcome = process.ask_at(&[100], process.now().plus_ms(by_ms), false).await;
        assert!(!is_paced(&outcome), "{by_ms} ms: {outcome:?}");
    }
}

#[tokio::test]
async fn a_pause_ends_by_a_clock_that_is_never_set() {
    let process = Process::new("rpm:6000/min");
    process.until_paced(&[100]).await;
    let standing = process.now();
    process.clock.advance(Duration::from_millis(1_250));
    let outcome = process.ask_at(&[100], standing, false).await;
    assert!(!is_paced(&outcome), "{outcome:?}");
}

#[tokio::test]
async fn administration_of_this_process_ends_the_pause() {
    let process = Process::new("rpm:6000/min");
    process.until_paced(&[100]).await;
    let resource = "gpt-4".parse().expect("a resource");
    let request = ResetRequest { entity: &process.key, resource: &resource, only: None };
    let change = Change {
        principal: None,
        reason: None,
        at: process.now(),
        event: EventId::new(process.now(), 1),
    };
    process.blocks.reset(&request, &change).await.expect("a reset");
    let outcome = process.ask(&[100]).await;
    assert!(matches!(outcome, ConsumeOutcome::Granted(_)), "{outcome:?}");
}

/// The wait of a bucket whose time is ahead begins when the clock has come so far.
#[tokio::test]
async fn a_wait_knows_of_a_bucket_that_is_ahead() {
    for is_refused in [false, true] {
        let process = Process::new("rpm:6000/min");
        process.until_paced(&[100]).await;
        process.clock.advance(Duration::from_millis(1_250));
        // Another process, whose clock is ten seconds ahead, takes what has refilled until then.
        let then = process.now().plus_ms(10_000);
        let mut tokens = 2_000;
        while tokens > 0 {
            if !process.take_plain(tokens, then).await {
                tokens /= 2;
            }
        }
        let (tokens, mut checked) = (60, 0);
        if !is_refused {
            // It gets what was given back meanwhile, and is told what there is.
            process.give_back_plain(50, then).await;
            assert!(matches!(process.ask(&[1]).await, ConsumeOutcome::Granted(_)));
        }
        for _ in 0..200 {
            let plain = process.ask_at(&[tokens], process.now(), true).await;
            let stock_ms = u64::try_from(process.blocks.stats().held.0 / 100).expect("stock");
            if let (ConsumeOutcome::Paced { reports, .. }, ConsumeOutcome::Refused(exact)) =
                (process.ask(&[tokens]).await, plain)
            {
                let [said, exact] = [&reports, &exact].map(|it| it[0].wait.ms().expect("a wait"));
                assert!(said >= exact.saturating_sub(stock_ms), "{said} {exact} {stock_ms}");
                checked += 1;
            }
            process.clock.advance(Duration::from_millis(10));
        }
        assert!(checked > 10, "{checked}");
    }
}

/// A request that is refused although there is more than a second's refill pauses as well.
#[tokio::test]
async fn large_requests_are_paced_at_a_balance_that_is_not_small() {
    let process = Process::new("rpm:6000/min");
    assert!(matches!(process.ask(&[4_000]).await, ConsumeOutcome::Granted(_)));
    process.until_paced(&[3_000]).await;
    let before = process.calls();
    for _ in 0..500 {
        process.clock.advance(Duration::from_millis(1));
        process.ask(&[3_000]).await;
    }
    assert!(process.calls() - before <= 5, "{} visits", process.calls() - before);
}

/// A bucket in debt is visited as rarely as an empty one.
#[tokio::test]
async fn debt_is_paced() {
    let process = Process::new("rpm:6000/min");
    process.until_paced(&[100]).await;
    process.give_back(-3_000).await;
    let before = process.calls();
    for _ in 0..2_000 {
        process.clock.advance(Duration::from_millis(1));
        process.ask(&[100]).await;
    }
    assert!(process.calls() - before <= 8, "{} visits in 2 s", process.calls() - before);
}

#[tokio::test]
async fn a_pause_says_how_old_it_is_and_a_charge_does_not_end_it() {
    let process = Process::new("rpm:6000/min");
    process.until_paced(&[100]).await;
    let mut first = None;
    for _ in 0..5 {
        let ConsumeOutcome::Paced { age, .. } = process.ask(&[100]).await else { panic!("paced") };
        let since = *first.get_or_insert(age);
        assert!(age >= since);
        process.clock.advance(Duration::from_millis(10));
    }
    let ConsumeOutcome::Paced { age, .. } = process.ask(&[100]).await else { panic!("paced") };
    assert_eq!(age, first.expect("an age") + Duration::from_millis(50));
    process.give_back(-1).await;
    assert!(is_paced(&process.ask(&[100]).await));
}

#[tokio::test]
async fn requests_under_other_limits_are_not_paced() {
    let mut process = Process::new("rpm:6000/min");
    process.until_paced(&[100]).await;
    assert!(is_paced(&process.ask(&[100]).await));
    process.limits.source = LimitSource::Call;
    let outcome = process.ask(&[100]).await;
    assert!(!is_paced(&outcome), "limits of a call: {outcome:?}");
    let mut process = Process::new("rpm:6000/min");
    process.until_paced(&[100]).await;
    let others: Vec<Limit> = vec!["rpm:600000/min".parse().expect("a limit")];
    process.limits = LimitsInForce::new(others, LimitSource::System);
    for _ in 0..3 {
        let outcome = process.ask(&[100]).await;
        assert!(!is_paced(&outcome), "{outcome:?}");
    }
}

/// A chain is decided by the store, all of it at once, and orders nothing of what is scarce.
#[tokio::test]
async fn chains_are_not_paced() {
    let process = Process::new("rpm:6000/min");
    process.until_paced(&[100]).await;
    let orders = process.blocks.stats().orders;
    let resource = "gpt-4".parse().expect("a resource");
    let other: EntityId = "other".parse().expect("an id");
    for amount in [100_000, 0] {
        let takes = [Take { limit: 0, amount: Milli(amount) }];
        let members = [&process.key, &other].map(|entity| MemberTake {
            entity,
            resource: &resource,
            limits: &process.limits,
            takes: &takes,
            absent: &[],
        });
        let request = ConsumeRequest::new(&members, process.now());
        if amount > 0 {
            assert!(process.blocks.consume_at_once(&request).is_none());
        }
        let outcome = process.blocks.consume(&request).await.expect("no outage");
        assert!(!is_paced(&outcome), "{outcome:?}");
    }
    assert_eq!(process.blocks.stats().orders, orders);
}

/// A visit that finds plenty ends the pause before it is over.
#[tokio::test]
async fn a_visit_that_finds_plenty_ends_the_pause() {
    let process = Process::new("rpm:6000/min tpm:6000000/min");
    process.until_paced(&[100, 1]).await;
    process.give_back_plain(3_000, process.now()).await;
    assert!(is_paced(&process.ask(&[100, 1]).await), "what others give back is not known");
    assert!(matches!(process.ask(&[0, 1_000_000]).await, ConsumeOutcome::Granted(_)));
    let outcome = process.ask(&[2_000, 1]).await;
    assert!(matches!(outcome, ConsumeOutcome::Granted(_)), "more than its stock: {outcome:?}");
}

/// What an order has taken and lent is not in the bucket any more, so it shortens no wait.
#[tokio::test]
async fn a_wait_after_an_order_counts_no_token_twice() {
    let process = Process::new("rpm:600/min:6000");
    assert!(matches!(process.ask(&[5_000]).await, ConsumeOutcome::Granted(_)));
    let (mut asked, mut checked) = (1, 0);
    for _ in 0..3_000 {
        process.clock.advance(Duration::from_millis(5));
        let plain = process.ask_at(&[400], process.now(), true).await;
        let stock_ms = u64::try_from(process.blocks.stats().held.0 / 10).expect("stock");
        if let ConsumeOutcome::Paced { reports, .. } = process.ask(&[400]).await {
            let said = reports[0].wait.ms().expect("a wait");
            let ConsumeOutcome::Refused(exact) = plain else { continue };
            let exact = exact[0].wait.ms().expect("a wait").saturating_sub(stock_ms);
            assert!(said >= exact, "{said} {exact} {stock_ms}");
            checked += 1;
        }
        // Small requests keep the process visiting, and stock in its hands.
        process.ask(&[asked]).await;
        asked = 1 + asked % 3;
    }
    assert!(checked > 100, "{checked}");
}
