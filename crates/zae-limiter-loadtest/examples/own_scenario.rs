//! A scenario of your own: a tenth of the calls is a batch job that takes fifty requests at once.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use zae_limiter::store::BoxFuture;
use zae_limiter::{Clock, Level, MemoryStore, RateLimiter, Request, SystemClock};
use zae_limiter_loadtest::report::{Collector, paces};
use zae_limiter_loadtest::{Options, Outcome, Pacing, Run, Scenario, ScenarioError, Session, run};

struct Batches;

impl Scenario for Batches {
    fn name(&self) -> &str {
        "batches"
    }

    fn pacing(&self) -> Pacing {
        Pacing::Every(Duration::from_millis(20))
    }

    fn prepare<'a>(
        &'a self,
        limiter: &'a RateLimiter,
        _users: u32,
    ) -> BoxFuture<'a, Result<(), ScenarioError>> {
        Box::pin(async move {
            let limit = "rpm:6000/min:200".parse().expect("a limit");
            limiter.set_limits(&Level::System, [limit]).await?;
            Ok(())
        })
    }

    fn call<'a>(&'a self, session: &'a mut Session) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let tokens = if session.call() % 10 == 9 { 50 } else { 1 };
            let request =
                Request::new(format!("user-{}", session.user()), "jobs").take("rpm", tokens);
            match session.limiter().acquire(request).await {
                Ok(lease) => match lease.commit().await {
                    Ok(_) => Outcome::Granted,
                    Err(_) => Outcome::Failed("commit".to_owned()),
                },
                Err(error) => Outcome::of(&error),
            }
        })
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limiter = RateLimiter::builder(MemoryStore::new()).build()?;
    let scenarios: Vec<Arc<dyn Scenario>> = vec![Arc::new(Batches)];
    let options = Options::new(8, Duration::from_secs(2));
    for scenario in &scenarios {
        scenario.prepare(&limiter, options.users).await?;
    }
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let mut collector = Collector::default();
    let forever = std::future::pending();
    run(&limiter, &scenarios, &options, &clock, forever, |interval| collector.add(interval)).await;
    let asked = Run { users: 8, processes: 1, duration_s: 2.0, ..Run::default() };
    let report = collector.report(asked, &paces(&scenarios), 0);
    let mut out = std::io::stdout();
    writeln!(out, "{}", serde_json::to_string_pretty(&report.total.latency_us)?)?;
    writeln!(out, "{} granted, {} refused", report.total.granted, report.total.refused)?;
    limiter.close().await;
    Ok(())
}
