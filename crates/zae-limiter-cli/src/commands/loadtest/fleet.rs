//! Users in Lambda workers. Each invocation is one worker, which answers with its histograms when
//! its time is over.

use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::{Either, select};
use futures_util::stream::FuturesUnordered;
use zae_limiter::{Clock, SystemClock};
use zae_limiter_deploy::stack::Cloud;
use zae_limiter_deploy::{DeployError, loadtest, tags};
use zae_limiter_loadtest::engine;
use zae_limiter_loadtest::worker::{Answer, FORMAT, Task};

use crate::commands::shared::stacks;
use crate::context::Context;
use crate::error::Failure;
use crate::printer;
use crate::settings::StorePlace;

/// What starting, connecting and answering may take, beside the run.
const START_MAX: Duration = Duration::from_secs(60);

/// The least that a worker must have left after the run.
const MARGIN: Duration = Duration::from_secs(6);

/// How often people hear that nothing has gone wrong.
const TICK: Duration = Duration::from_secs(1);

/// Workers that are there.
pub(super) struct Fleet {
    cloud: Cloud,
    function: String,
}

impl Fleet {
    /// Looks for the workers of the store; they must be able to run for as long.
    pub(super) async fn find(context: &Context<'_>, duration: Duration) -> Result<Fleet, Failure> {
        let StorePlace::Dynamo(place) = &context.settings.store else {
            let failure = Failure::usage(format!(
                "--workers: {} is no stack, and Lambda cannot reach it",
                context.settings.store
            ));
            return Err(failure.hint("--processes N spreads the users over this machine"));
        };
        let cloud = stacks::cloud(place, context.settings).await.map_err(stacks::failure)?;
        let name = loadtest::stack_of(&place.stack);
        let deploy = || context.command(&["loadtest", "deploy"]);
        let state = match cloud.describe(&name).await {
            Ok(state) => state,
            Err(error @ DeployError::StackNotFound { .. }) => {
                return Err(stacks::failure(error).hint(format!("{} makes the workers", deploy())));
            }
            Err(error @ DeployError::NoCloudFormation { .. }) => {
                let failure = stacks::failure(error);
                return Err(failure.hint("--processes N spreads the users over this machine"));
            }
            Err(error) => return Err(stacks::failure(error)),
        };
        let Some(function) = state.output(loadtest::FUNCTION) else {
            let failure = Failure::stack(format!("stack {name} is {}", state.status));
            return Err(failure.hint(format!("{} finishes it", deploy())));
        };
        let timeout = state.parameters.get(loadtest::TIMEOUT).and_then(|it| it.parse().ok());
        let most = Duration::from_secs(timeout.unwrap_or(0)).saturating_sub(engine::GRACE + MARGIN);
        if duration > most {
            let failure = Failure::usage(format!(
                "--duration {} s: the workers may run for {} s at most",
                duration.as_secs(),
                most.as_secs()
            ));
            let again = context.command(&["loadtest", "deploy", "--lambda-timeout", "15"]);
            return Err(failure.hint(format!("run for a shorter time, or {again}")));
        }
        let version = state.tags.get(tags::LAMBDA_VERSION).map_or("unknown", String::as_str);
        if version != env!("CARGO_PKG_VERSION") {
            let push = context.command(&["loadtest", "push"]);
            context.printer.note(&format!(
                "the workers have the version {version}; {push} gives them this program's"
            ));
        }
        Ok(Fleet { function: function.to_owned(), cloud })
    }

    /// Runs the tasks, all at once, and tells each answer. How many workers did not answer.
    pub(super) async fn run(
        &self,
        context: &Context<'_>,
        tasks: Vec<Task>,
        stop: impl Future<Output = ()>,
        mut tell: impl FnMut(Answer),
    ) -> anyhow::Result<u32> {
        let count = u32::try_from(tasks.len()).unwrap_or(u32::MAX);
        let duration = tasks.first().map_or(Duration::ZERO, Task::duration);
        let time = duration + engine::GRACE + START_MAX;
        let mut asked = FuturesUnordered::new();
        for task in &tasks {
            let payload = serde_json::to_vec(task)?;
            asked.push(self.cloud.invoke(&self.function, payload, time));
        }
        let (clock, mut stop) = (SystemClock::new(), pin!(stop));
        let began = clock.monotonic();
        let (mut answered, mut lost, mut why) = (0, 0, None);
        while answered + lost < count {
            let next = pin!(asked.next());
            let heard = match select(next, select(stop.as_mut(), clock.sleep(TICK))).await {
                Either::Left((Some(heard), _)) => heard,
                Either::Left((None, _)) => break,
                Either::Right((Either::Left(_), _)) => {
                    context.printer.warning(&format!(
                        "stopped: what the workers have not told yet is lost; they end by themselves within {} s",
                        time.saturating_sub(clock.monotonic().saturating_sub(began)).as_secs()
                    ));
                    break;
                }
                Either::Right((Either::Right(_), _)) => {
                    let passed = clock.monotonic().saturating_sub(began).as_secs();
                    let line = format!(
                        "{passed} s of {} s: {} workers at work, {answered} have answered, {lost} lost",
                        duration.as_secs(),
                        count - answered - lost
                    );
                    match context.printer.looks().progress {
                        true => printer::progress(&line),
                        false if passed.is_multiple_of(10) => context.printer.note(&line),
                        false => {}
                    }
                    continue;
                }
            };
            match heard.map_err(|error| stacks::failure(error).message).and_then(|it| read(&it)) {
                Ok(answer) => {
                    answered += 1;
                    tell(answer);
                }
                Err(message) => {
                    lost += 1;
                    if why.is_none() {
                        context.printer.warning(&format!("a worker is lost: {message}"));
                    }
                    why = Some(message);
                }
            }
        }
        if context.printer.looks().progress {
            printer::progress("");
        }
        match why {
            Some(message) if answered == 0 => {
                let failure = Failure::stack(format!("no worker has answered: {message}"));
                Err(failure.into())
            }
            _ => Ok(count - answered),
        }
    }
}

fn read(bytes: &[u8]) -> Result<Answer, String> {
    let answer: Answer = serde_json::from_slice(bytes)
        .map_err(|error| format!("its answer cannot be read: {error}"))?;
    match answer.format == FORMAT {
        true => Ok(answer),
        false => Err(format!("its answer has the form {}, not {FORMAT}", answer.format)),
    }
}
