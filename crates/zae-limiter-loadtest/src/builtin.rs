//! The scenarios that need no file. All of them are values of one type, which a file also makes.

use std::collections::BTreeMap;
use std::time::Duration;

use zae_limiter::store::BoxFuture;
use zae_limiter::{Level, Limit, NewEntity, RateLimiter, Request};

use crate::scenario::{Outcome, Pacing, Scenario, ScenarioError, Session};

/// The names of all, as `--scenario` takes them.
pub const NAMES: [&str; 5] = ["simple", "simple-cascade", "max-rps", "max-rps-cascade", "llm"];

/// Entities prepared at once; the rest are made by the calls that need them.
const PREPARED_MAX: u32 = 100_000;

/// A scenario as data.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// One word for reports.
    pub name: String,
    /// When a user calls.
    pub pacing: Pacing,
    /// What is called.
    pub resource: String,
    /// The limits of the resource.
    pub limits: Vec<Limit>,
    /// What a call takes: limit and tokens.
    pub take: Vec<(String, u64)>,
    /// What the call turns out to have cost, as a span in percent of what it took; `None` commits
    /// what was taken.
    pub cost_pct: Option<(u64, u64)>,
    /// How long a lease is held: from, to.
    pub hold: (Duration, Duration),
    /// Whether every user's entity is a child of one shared parent, which is charged too.
    pub cascade: bool,
    /// How many users share one entity.
    pub users_per_entity: u32,
}

impl Plan {
    /// A paced scenario of one request per call, which never refuses.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Plan {
        Plan {
            name: name.into(),
            pacing: Pacing::Every(Duration::from_millis(100)),
            resource: "loadtest".to_owned(),
            limits: vec!["rpm:1000000000".parse().expect("a limit")],
            take: vec![("rpm".to_owned(), 1)],
            cost_pct: None,
            hold: (Duration::ZERO, Duration::ZERO),
            cascade: false,
            users_per_entity: 1,
        }
    }

    /// The scenario of this name.
    #[must_use]
    pub fn builtin(name: &str) -> Option<Plan> {
        let plan = Plan::new(name);
        match name {
            "simple" => Some(plan),
            "simple-cascade" => Some(Plan { cascade: true, ..plan }),
            "max-rps" => Some(Plan { pacing: Pacing::ClosedLoop, ..plan }),
            "max-rps-cascade" => Some(Plan { pacing: Pacing::ClosedLoop, cascade: true, ..plan }),
            "llm" => Some(Plan {
                pacing: Pacing::Every(Duration::from_millis(250)),
                resource: "loadtest-llm".to_owned(),
                limits: vec![
                    "rpm:180/min:20".parse().expect("a limit"),
                    "tpm:150000/min:15000".parse().expect("a limit"),
                ],
                take: vec![("rpm".to_owned(), 1), ("tpm".to_owned(), 800)],
                cost_pct: Some((40, 160)),
                hold: (Duration::from_millis(20), Duration::from_millis(120)),
                ..plan
            }),
            _ => None,
        }
    }

    fn parent(&self) -> String {
        format!("{}-parent", self.resource)
    }

    fn entity(&self, user: u32) -> String {
        let number = user / self.users_per_entity.max(1);
        let kind = if self.cascade { "child" } else { "user" };
        format!("{}-{kind}-{number}", self.resource)
    }

    async fn make(&self, limiter: &RateLimiter, users: u32) -> Result<(), ScenarioError> {
        let wrong = |error: &dyn std::fmt::Display| ScenarioError(error.to_string());
        let resource = self.resource.parse().map_err(|error| wrong(&error))?;
        limiter.set_limits(&Level::Resource(resource), self.limits.clone()).await?;
        if !self.cascade {
            return Ok(());
        }
        let new = |id: String, parent: Option<String>| -> Result<NewEntity, ScenarioError> {
            let parent = parent.map(|id| id.parse()).transpose().map_err(|error| wrong(&error))?;
            Ok(NewEntity {
                id: id.parse().map_err(|error| wrong(&error))?,
                name: id,
                cascade: parent.is_some(),
                parent,
                metadata: BTreeMap::new(),
            })
        };
        let mut entities = vec![new(self.parent(), None)?];
        let children = users.min(PREPARED_MAX).div_ceil(self.users_per_entity.max(1));
        for number in 0..children {
            let id = self.entity(number * self.users_per_entity.max(1));
            entities.push(new(id, Some(self.parent()))?);
        }
        for entity in entities {
            // One that is there from the run before is the same.
            if limiter.entity(entity.id.clone()).await?.is_none() {
                match limiter.create_entity(entity).await {
                    Ok(_) => {}
                    Err(error) if is_there(&error) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }

    async fn run(&self, session: &mut Session) -> Outcome {
        let mut request = Request::new(self.entity(session.user), self.resource.as_str());
        for (limit, tokens) in &self.take {
            request = request.take(limit.as_str(), *tokens);
        }
        let limiter = session.limiter.clone();
        let lease = match limiter.acquire(request).await {
            Ok(lease) => lease,
            Err(error) => return Outcome::of(&error),
        };
        let dice = dice(session.user, session.call);
        if self.hold.1 > Duration::ZERO {
            let span = self.hold.1.saturating_sub(self.hold.0).as_millis();
            let more = dice % (u64::try_from(span).unwrap_or(u64::MAX) + 1);
            session.pause(self.hold.0 + Duration::from_millis(more)).await;
        }
        if let (Some((from, to)), Some((limit, estimate))) = (self.cost_pct, self.take.last()) {
            let pct = from + (dice >> 20) % (to.saturating_sub(from) + 1);
            if lease.record(limit.as_str(), estimate.saturating_mul(pct) / 100).is_err() {
                return Outcome::Failed("record".to_owned());
            }
        }
        match lease.commit().await {
            Ok(_) => Outcome::Granted,
            Err(_) => Outcome::Failed("commit".to_owned()),
        }
    }
}

fn is_there(error: &zae_limiter::Error) -> bool {
    use zae_limiter::{ErrorKind, StoreErrorKind};
    matches!(error.kind(), ErrorKind::Store(StoreErrorKind::Conflict))
}

/// The same number for the same call of the same user in every run (splitmix64).
fn dice(user: u32, call: u64) -> u64 {
    let mut x = (u64::from(user) << 40).wrapping_add(call).wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

impl Scenario for Plan {
    fn name(&self) -> &str {
        &self.name
    }

    fn pacing(&self) -> Pacing {
        self.pacing
    }

    fn prepare<'a>(
        &'a self,
        limiter: &'a RateLimiter,
        users: u32,
    ) -> BoxFuture<'a, Result<(), ScenarioError>> {
        Box::pin(self.make(limiter, users))
    }

    fn call<'a>(&'a self, session: &'a mut Session) -> BoxFuture<'a, Outcome> {
        Box::pin(self.run(session))
    }
}
