//! The part of the fixture for buckets: requests, and answers that check themselves.

use zae_limiter_core::{
    BucketState, EntityId, Flag, LimitName, LimitParams, LimitState, Milli, Reports, ResourceName,
    Take, TimeMs, Wait,
};

use super::fixture::{Fixture, GPT, entity, limits, resource};
use super::shards::{Balances, Slack, joined};
use crate::{
    Adjusted, BucketDelta, ConsumeOutcome, ConsumeRequest, Delta, Grant, LimitsInForce, MemberKey,
    MemberTake, PageRequest, ResetRequest, Restored, StoreError,
};

/// How often a race asks again when the store says it is busy.
const ATTEMPTS_MAX: u32 = 100;

/// How often a case reads the configuration again because it was told that it is out of date, as a
/// limiter does.
const READS_MAX: u32 = 4;

/// A request to one bucket: a take, or a charge after the fact (negative: given back).
#[derive(Clone)]
pub(super) struct Ask {
    pub(super) entity: EntityId,
    pub(super) resource: ResourceName,
    pub(super) limits: LimitsInForce,
    pub(super) takes: Vec<Take>,
}

/// Asks whole tokens of the bucket of an entity for [`GPT`], as the command line writes them,
/// separated by blanks: `rpm=1 tpm=900`.
pub(super) fn ask(id: &str, limits: &LimitsInForce, tokens: &str) -> Ask {
    let take = |text: &str| {
        let (name, tokens) = text.split_once('=').expect("a limit and its tokens");
        let tokens: i64 = tokens.parse().expect("whole tokens");
        Take { limit: index_of(limits, name), amount: Milli(tokens * 1_000) }
    };
    let takes = tokens.split_whitespace().map(take).collect();
    Ask { entity: entity(id), resource: resource(GPT), limits: limits.clone(), takes }
}

/// Asks tokens of a bucket under the limit of every case that does not care which: `rpm:60/min`.
pub(super) fn rpm(id: &str, tokens: i64) -> Ask {
    ask(id, &limits("rpm:60/min"), &format!("rpm={tokens}"))
}

fn index_of(limits: &LimitsInForce, name: &str) -> u8 {
    let index = limits.limits.iter().position(|limit| *limit.name() == *name);
    u8::try_from(index.expect("the case asks for a limit it has")).expect("few limits")
}

impl Ask {
    /// The same, for another resource.
    pub(super) fn on(self, name: &str) -> Ask {
        Ask { resource: resource(name), ..self }
    }

    fn member(&self) -> MemberTake<'_> {
        MemberTake {
            entity: &self.entity,
            resource: &self.resource,
            limits: &self.limits,
            takes: &self.takes,
            absent: &[],
        }
    }

    fn delta<'a>(&'a self, place: u8, deltas: &'a [Delta]) -> BucketDelta<'a> {
        let Ask { entity, resource, limits, .. } = self;
        BucketDelta { entity, resource, limits, deltas, operation: 0, take: 0, place }
    }

    /// The same request for nothing: the limits are looked at.
    fn of_nothing(&self) -> Ask {
        let nothing = |take: &Take| Take { amount: Milli::ZERO, ..*take };
        Ask { takes: self.takes.iter().map(nothing).collect(), ..self.clone() }
    }
}

/// A decision, with methods that compare it with the expected one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) outcome: ConsumeOutcome,
    /// How far its reports may be from the expected ones, one per take.
    slack: Vec<Slack>,
}

impl Answer {
    /// Granted, and these are the balances left, in millitokens, one per take.
    #[track_caller]
    pub(super) fn granted(&self, balances: &[i64]) {
        let ConsumeOutcome::Granted(Grant { reports, .. }) = &self.outcome else {
            panic!("expected a grant that leaves {balances:?}, found {:?}", self.outcome);
        };
        let found: Vec<i64> = reports.iter().map(|report| report.balance.0).collect();
        let is_right = found.len() == balances.len()
            && self.all(&found, balances, |slack, a, b| slack.allows_balance(*a, *b));
        assert!(is_right, "a grant left {found:?}, expected {balances:?}");
    }

    /// Refused, and these are the balances there are and the waits, one pair per take.
    #[track_caller]
    pub(super) fn refused(&self, limits: &[(i64, Wait)]) {
        let ConsumeOutcome::Refused(reports) = &self.outcome else {
            panic!("expected a refusal with {limits:?}, found {:?}", self.outcome);
        };
        let found: Vec<(i64, Wait)> =
            reports.iter().map(|report| (report.balance.0, report.wait)).collect();
        let is_right = found.len() == limits.len()
            && self.all(&found, limits, |slack, a, b| {
                slack.allows_balance(a.0, b.0) && slack.allows_wait(a.1, b.1)
            });
        assert!(is_right, "a refusal with {found:?}, expected {limits:?}");
    }

    fn all<T>(&self, found: &[T], expected: &[T], alike: impl Fn(Slack, &T, &T) -> bool) -> bool {
        let mut pairs = found.iter().zip(expected).enumerate();
        let slack = |place: usize| self.slack.get(place).copied().unwrap_or_default();
        pairs.all(|(place, (a, b))| alike(slack(place), a, b))
    }

    /// Member `member` must read the configuration again.
    #[track_caller]
    pub(super) fn stale(&self, member: usize) {
        assert_eq!(
            self.outcome,
            ConsumeOutcome::Stale { member },
            "member {member} must read again"
        );
    }

    /// Member `member` is disabled.
    #[track_caller]
    pub(super) fn disabled(&self, member: usize) {
        self.blocked(member, Flag::Disabled);
    }

    /// Member `member` has this flag.
    #[track_caller]
    pub(super) fn blocked(&self, member: usize, flag: Flag) {
        let expected = ConsumeOutcome::Blocked { member, flag };
        assert_eq!(self.outcome, expected, "member {member} is {flag}");
    }

    pub(super) fn is_granted(&self) -> bool {
        matches!(self.outcome, ConsumeOutcome::Granted(_))
    }

    pub(super) fn reports(&self) -> &Reports {
        match &self.outcome {
            ConsumeOutcome::Granted(Grant { reports, .. }) | ConsumeOutcome::Refused(reports) => {
                reports
            }
            other => panic!("expected a grant or a refusal, found {other:?}"),
        }
    }
}

impl Fixture {
    /// Takes, and looks at what was left if a grant only estimates it.
    pub(super) async fn try_chain(&self, asks: &[Ask], now: TimeMs) -> Result<Answer, StoreError> {
        let mut answer = self.unseen_chain(asks, now).await?;
        if let (ConsumeOutcome::Granted(grant), false) = (&mut answer.outcome, self.is_whole()) {
            let asks: Vec<Ask> = asks.iter().map(Ask::of_nothing).collect();
            let members: Vec<_> = asks.iter().map(Ask::member).collect();
            let peeked = self.observer.peek(&ConsumeRequest::new(&members, now)).await?;
            let left = self.answer(&asks, peeked);
            for (report, left) in grant.reports.iter_mut().zip(left.reports()) {
                report.balance = left.balance;
            }
        }
        Ok(answer)
    }

    /// Takes, and does not look at what was left.
    async fn unseen_chain(&self, asks: &[Ask], now: TimeMs) -> Result<Answer, StoreError> {
        let members: Vec<_> = asks.iter().map(Ask::member).collect();
        let outcome = self.store.consume(&ConsumeRequest::new(&members, now)).await?;
        if let ConsumeOutcome::Granted(grant) = &outcome {
            self.spots.remember(asks, grant);
        }
        Ok(self.answer(asks, outcome))
    }

    /// A decision, and how exact it is.
    fn answer(&self, asks: &[Ask], outcome: ConsumeOutcome) -> Answer {
        let of = |ask: &Ask, take: &Take| {
            let limit = ask.limits.limits.get(usize::from(take.limit));
            limit.map(|limit| Slack::of_shards(limit.params())).unwrap_or_default()
        };
        let slack = asks.iter().flat_map(|ask| ask.takes.iter().map(|take| of(ask, take)));
        let slack = if self.is_whole() { Vec::new() } else { slack.collect() };
        Answer { outcome, slack }
    }

    pub(super) async fn chain(&self, asks: &[Ask], now: TimeMs) -> Answer {
        self.try_chain(asks, now).await.expect("a valid request is decided")
    }

    pub(super) async fn take(&self, ask: &Ask, now: TimeMs) -> Answer {
        self.chain(std::slice::from_ref(ask), now).await
    }

    pub(super) async fn try_take(&self, ask: &Ask, now: TimeMs) -> Result<Answer, StoreError> {
        self.try_chain(std::slice::from_ref(ask), now).await
    }

    /// Takes if the store can say at once.
    pub(super) fn take_at_once(&self, ask: &Ask, now: TimeMs) -> Option<Answer> {
        let asks = std::slice::from_ref(ask);
        let members = [ask.member()];
        let taken = self.store.consume_at_once(&ConsumeRequest::new(&members, now))?;
        Some(self.answer(asks, taken.expect("a valid request is decided")))
    }

    pub(super) async fn try_peek(&self, asks: &[Ask], now: TimeMs) -> Result<Answer, StoreError> {
        let members: Vec<_> = asks.iter().map(Ask::member).collect();
        let peeked = self.store.peek(&ConsumeRequest::new(&members, now)).await?;
        Ok(self.answer(asks, peeked))
    }

    pub(super) async fn peek(&self, asks: &[Ask], now: TimeMs) -> Answer {
        self.try_peek(asks, now).await.expect("a valid request can be peeked")
    }

    /// Takes, and asks again for as long as the store is too busy to decide: what a race does.
    pub(super) async fn insist(&self, asks: &[Ask], now: TimeMs) -> Answer {
        for _ in 0..ATTEMPTS_MAX {
            match self.unseen_chain(asks, now).await {
                Ok(Answer { outcome: ConsumeOutcome::Contended { .. }, .. }) => {
                    tokio::task::yield_now().await;
                }
                Err(error) if error.is_retryable() => tokio::task::yield_now().await,
                answer => return answer.expect("a valid request is decided"),
            }
        }
        panic!(
            "expected a decision within {ATTEMPTS_MAX} attempts; the store is starving its callers"
        );
    }

    /// Takes; told that it is out of date, it reads the configuration again and asks again, as a
    /// limiter does. For cases in which the store may not be able to tell which of two reads is the
    /// later.
    pub(super) async fn take_fresh(&self, ask: &Ask, now: TimeMs) -> Answer {
        self.fresh(ask, async |ask| self.take(ask, now).await).await
    }

    /// Peeks as [`Fixture::take_fresh`] takes.
    pub(super) async fn peek_fresh(&self, ask: &Ask, now: TimeMs) -> Answer {
        self.fresh(ask, async |ask| self.peek(std::slice::from_ref(ask), now).await).await
    }

    async fn fresh(&self, ask: &Ask, attempt: impl AsyncFn(&Ask) -> Answer) -> Answer {
        let mut ask = ask.clone();
        for _ in 0..READS_MAX {
            let answer = attempt(&ask).await;
            if !matches!(answer.outcome, ConsumeOutcome::Stale { .. }) {
                return answer;
            }
            ask.limits = self.read_again(&ask).await;
        }
        panic!("expected to be up to date after {READS_MAX} reads");
    }

    /// The limits of a caller that has read the configuration once more, and found nothing new in
    /// it.
    async fn read_again(&self, ask: &Ask) -> LimitsInForce {
        let keys = [MemberKey { entity: &ask.entity, resource: &ask.resource }];
        let resolution = self.store.resolve(&keys).await.expect("configuration can be resolved");
        if let Some((limits, source)) = &resolution.members[0].limits {
            let asked = (&ask.limits.limits, ask.limits.source);
            assert_eq!((limits, *source), asked, "the case asks with what is stored");
        }
        LimitsInForce { stamp: resolution.stamp, ..ask.limits.clone() }
    }

    /// Charges after the fact what each asks for; a negative amount is given back.
    pub(super) async fn adjust_all(
        &self,
        asks: &[Ask],
        now: TimeMs,
    ) -> Vec<Result<Adjusted, StoreError>> {
        let parts: Vec<_> = asks.iter().map(|ask| self.spots.spread(ask)).collect();
        let all = || {
            let pairs = asks.iter().zip(&parts);
            pairs.flat_map(|(ask, parts)| parts.iter().map(move |part| (ask, part)))
        };
        let deltas: Vec<_> =
            all().map(|(ask, (place, deltas))| ask.delta(*place, deltas)).collect();
        let results = self.store.adjust(&deltas, now).await;
        assert_eq!(results.len(), deltas.len(), "one result per delta");
        for ((ask, part), result) in all().zip(&results) {
            if result.is_ok() && !self.is_whole() {
                self.spots.charged(ask, part);
            }
        }
        let mut results = results.into_iter();
        parts.iter().map(|parts| joined(results.by_ref().take(parts.len()))).collect()
    }

    pub(super) async fn try_adjust(&self, ask: &Ask, now: TimeMs) -> Result<Adjusted, StoreError> {
        let mut results = self.adjust_all(std::slice::from_ref(ask), now).await;
        assert_eq!(results.len(), 1, "one result per delta");
        results.remove(0)
    }

    pub(super) async fn adjust(&self, ask: &Ask, now: TimeMs) -> Adjusted {
        self.try_adjust(ask, now).await.expect("an adjustment is never refused")
    }

    /// Fills the bucket of an entity for [`GPT`].
    pub(super) async fn reset(
        &self,
        id: &str,
        only: Option<&[LimitName]>,
        now: TimeMs,
    ) -> Option<Restored> {
        let request = ResetRequest { entity: &entity(id), resource: &resource(GPT), only };
        self.store.reset(&request, &self.change(now)).await.expect("a bucket can be reset")
    }

    /// The bucket of an entity for [`GPT`], as stored.
    pub(super) async fn bucket(&self, id: &str) -> Option<BucketState> {
        let listed = self.store.buckets(&entity(id), &PageRequest::default()).await;
        let page = listed.expect("buckets can be listed");
        page.items.into_iter().find(|view| view.resource == *GPT).map(|view| view.state)
    }

    /// Balances of all limits, in millitokens, as they are at `now`; by name, in whichever order
    /// the store keeps them.
    pub(super) async fn balances(&self, id: &str, now: TimeMs) -> Balances {
        let mut state = self.bucket(id).await.expect("the bucket is there");
        state.refill(now);
        let found = by_name(&state).iter().map(|limit| limit.balance.0).collect();
        Balances { found, is_of_shards: !self.is_whole() }
    }

    /// Net consumption of all limits, in millitokens, by name.
    pub(super) async fn consumed(&self, id: &str) -> Vec<i64> {
        let state = self.bucket(id).await.expect("the bucket is there");
        by_name(&state).iter().map(|limit| limit.consumed.0).collect()
    }

    /// The bucket of an entity whose request was refused is as it was. A store that takes from a
    /// chain one by one gives its takes back: it may have written or even made the bucket, whose
    /// balance, counters and limits are the same as before.
    pub(super) async fn is_as_it_was(&self, id: &str, before: Option<&BucketState>, now: TimeMs) {
        let bucket = self.bucket(id).await;
        if self.store.capabilities().atomic_chains {
            assert_eq!(
                bucket.as_ref(),
                before,
                "the bucket of {id} is as it was, to the last field"
            );
        } else {
            let found = bucket.as_ref().and_then(|state| as_decided_at(state, now));
            let expected = before.and_then(|state| as_decided_at(state, now));
            assert_eq!(found, expected, "the bucket of {id} behaves as it did");
        }
    }
}

/// The limits of a bucket by name.
fn by_name(state: &BucketState) -> Vec<&LimitState> {
    let mut limits: Vec<_> = state.all_limits().iter().collect();
    limits.sort_by(|a, b| a.name.cmp(&b.name));
    limits
}

/// Whether a bucket is disabled, and name, parameters, balance and consumption of its limits.
type Decided = (bool, Vec<(LimitName, LimitParams, Milli, Milli)>);

/// The parts of a bucket that decisions at `now` depend on, and its counters; `None` for a bucket
/// that is as good as none: full, unused, and open.
fn as_decided_at(state: &BucketState, now: TimeMs) -> Option<Decided> {
    let mut state = state.clone();
    state.refill(now);
    let limits = by_name(&state);
    let unused = limits.iter().all(|limit| {
        limit.balance.0 == limit.params.capacity_milli && limit.consumed == Milli::ZERO
    });
    let told = limits
        .into_iter()
        .map(|limit| (limit.name.clone(), limit.params, limit.balance, limit.consumed))
        .collect();
    (state.flag.blocks() || !unused).then_some((state.flag.blocks(), told))
}
