//! A client: one simulated process with its limiters, its clock and the runtime its settler lives
//! on.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Runtime;
use zae_limiter::{OnUnavailable, RateLimiter};
use zae_limiter_store::{FaultStore, ManualClock, SeededEntropy, Store};

use super::faults::{Faults, Weather};
use super::world::{Ground, NAMESPACES};
use crate::oracle::books::Books;
use crate::oracle::journal::{CallLog, JournalStore, Party};
use crate::rng::Rng;

pub(crate) struct Client {
    /// Never used again, also not after a crash.
    pub(crate) id: usize,
    /// One limiter per namespace, in the order of [`NAMESPACES`].
    pub(crate) limiters: Vec<RateLimiter>,
    pub(crate) clock: ManualClock,
    pub(crate) deadline: Duration,
    pub(crate) on_unavailable: Option<OnUnavailable>,
    /// `None` once it has crashed. Dropping it ends the settler wherever it is.
    runtime: Option<Runtime>,
}

impl Client {
    pub(crate) fn start(
        id: usize,
        ground: &Ground,
        clock: &ManualClock,
        books: &Books,
        faults: &Faults,
        rng: &mut Rng,
    ) -> Result<Client, String> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .map_err(|error| format!("no runtime: {error}"))?;
        let ttl = Duration::from_secs(*rng.pick(&[0, 5, 60, 900, 86_400]));
        let deadline = Duration::from_millis(*rng.pick(&[200, 1_000, 2_000]));
        let on_unavailable =
            *rng.pick(&[None, None, Some(OnUnavailable::Allow), Some(OnUnavailable::Block)]);
        let default_limits = rng.chance(30).then(|| rng.limits());
        let multiplier = *rng.pick(&[0, 1, 7, 7]);
        let answers = faults.clone();
        let echo = Arc::new(move || answers.echo());
        let party = Party {
            books: books.clone(),
            client: id,
            clock: clock.clone(),
            config_age_max: ttl,
            echo,
        };
        let weather = faults.become_weather(Weather::Clear);
        let store: Arc<dyn Store> = match ground.scene() {
            Some(scene) => scene.open(id, clock, books, rng)?,
            None => {
                let journal = JournalStore::new(ground.open(clock, rng.next())?, party.clone());
                Arc::new(FaultStore::new(Arc::new(journal), faults.clone()))
            }
        };
        let mut builder = RateLimiter::builder(CallLog::new(store, party))
            .clock(clock.clone())
            .entropy(SeededEntropy::new(rng.next()))
            .config_cache_ttl(ttl)
            .bucket_ttl_multiplier(multiplier)
            .deadline(deadline)
            .settle_deadline(Duration::from_millis(*rng.pick(&[500, 5_000])));
        if let Some(limits) = default_limits {
            builder = builder.default_limits(limits);
        }
        if let Some(policy) = on_unavailable {
            builder = builder.on_unavailable(policy);
        }
        let limiters = runtime.block_on(async {
            let first = builder.build()?;
            let mut limiters = vec![first];
            for name in &NAMESPACES[1..] {
                limiters[0].register_namespace(*name).await?;
                let other = limiters[0].namespace(*name).await?;
                limiters.push(other);
            }
            Ok::<_, zae_limiter::Error>(limiters)
        });
        faults.become_weather(weather);
        let limiters = limiters.map_err(|error| format!("a client could not start: {error}"))?;
        Ok(Client {
            id,
            limiters,
            clock: clock.clone(),
            deadline,
            on_unavailable,
            runtime: Some(runtime),
        })
    }

    /// Lets the settler work for about that many polls.
    pub(crate) fn run_settler(&self, polls: u32) {
        if let Some(runtime) = &self.runtime {
            runtime.block_on(async {
                for _ in 0..polls {
                    tokio::task::yield_now().await;
                }
            });
        }
    }

    /// Crashes: the settler and everything it held are gone.
    pub(crate) fn crash(mut self) {
        self.runtime = None;
    }
}
