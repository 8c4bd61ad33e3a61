//! The program as AWS Lambda starts it.

use std::process::ExitCode;

use crate::again::Again;
use crate::args::{Globals, Output};
use crate::error::Failure;
use crate::printer::Printer;
use crate::settings::{Environment, Looks};

/// A function that this program can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Function {
    /// Counts usage.
    Aggregator,
    /// A worker of a load test.
    #[cfg(feature = "loadtest")]
    LoadTest,
}

impl Function {
    /// By the handler of the function.
    pub(crate) fn of(handler: &str) -> Option<Function> {
        match handler {
            "aggregator" => Some(Function::Aggregator),
            #[cfg(feature = "loadtest")]
            "loadtest" => Some(Function::LoadTest),
            _ => None,
        }
    }
}

/// Serves the function until Lambda ends the process. What goes wrong is a line of JSON on stderr,
/// which Lambda keeps.
pub(crate) fn run(function: Function, environment: &Environment) -> ExitCode {
    let failure = match serve(function, environment) {
        Ok(()) => return ExitCode::SUCCESS,
        Err(error) => Failure::of(&error, &Again::default()),
    };
    let globals = Globals { output: Some(Output::Json), ..Globals::default() };
    Printer::new(Looks::new(&globals, &Environment::default())).error(failure).into()
}

#[cfg_attr(
    not(feature = "loadtest"),
    expect(unused_variables, reason = "the aggregator reads its own variables")
)]
fn serve(function: Function, environment: &Environment) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match function {
        Function::Aggregator => Ok(runtime.block_on(zae_limiter_aggregator::run_lambda())?),
        #[cfg(feature = "loadtest")]
        Function::LoadTest => Ok(runtime.block_on(worker::run(environment))?),
    }
}

#[cfg(feature = "loadtest")]
mod worker {
    use std::sync::Arc;
    use std::time::Duration;

    use serde_json::Value;
    use zae_limiter::dynamodb::DynamoStore;
    use zae_limiter::{Clock, RateLimiter, SystemClock};
    use zae_limiter_aggregator::{Event, LambdaError, cannot_start, serve_events};
    use zae_limiter_loadtest::engine;
    use zae_limiter_loadtest::worker::{ANSWER_BYTES_MAX, Task};

    use crate::context::DEADLINE;
    use crate::settings::Environment;

    /// What connecting and answering may take, beside the run.
    const MARGIN: Duration = Duration::from_secs(5);

    /// The table to load.
    struct Target {
        table: String,
        region: String,
        endpoint_url: Option<String>,
    }

    /// Serves one task after the other.
    pub(super) async fn run(environment: &Environment) -> Result<(), LambdaError> {
        let target = target(environment).map_err(|error| cannot_start("LoadTest", error))?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let (target, shared) = (&target, &clock);
        serve_events(&*clock, |event| work(target, event, shared)).await
    }

    fn target(environment: &Environment) -> Result<Target, LambdaError> {
        let missing = |text: &str| LambdaError::new(text);
        let (table, endpoint_url) = environment.table();
        Ok(Target {
            table: table.ok_or_else(|| {
                missing("TABLE_NAME: is missing; it names the table that is loaded")
            })?,
            region: environment
                .region()
                .ok_or_else(|| missing("AWS_REGION: is missing; Lambda sets it"))?,
            endpoint_url,
        })
    }

    async fn work(
        target: &Target,
        event: Event,
        clock: &Arc<dyn Clock>,
    ) -> Result<Value, LambdaError> {
        let wrong = |error: &dyn std::fmt::Display| LambdaError::new(error.to_string());
        let task: Task = serde_json::from_value(event.payload)
            .map_err(|error| LambdaError::new(format!("the task cannot be read: {error}")))?;
        let scenarios = task.check().map_err(|error| wrong(&error))?;
        let needed = task.duration() + engine::GRACE + MARGIN;
        if let Some(left) = event.time_left.filter(|left| *left < needed) {
            return Err(LambdaError::new(format!(
                "the worker may run for {} s more, and the task needs {} s",
                left.as_secs(),
                needed.as_secs()
            )));
        }
        let mut store = DynamoStore::builder(target.table.as_str(), target.region.as_str());
        if let Some(url) = &target.endpoint_url {
            store = store.endpoint_url(url);
        }
        let store = store.namespace(task.namespace.clone()).connect().await;
        let store = store.map_err(|error| wrong(&error))?;
        let limiter = RateLimiter::builder(store).deadline(DEADLINE).build();
        let limiter = limiter.map_err(|error| wrong(&error))?;
        let answer = task.work(&limiter, &scenarios, clock).await;
        limiter.close().await;
        Ok(answer.json(ANSWER_BYTES_MAX))
    }
}
