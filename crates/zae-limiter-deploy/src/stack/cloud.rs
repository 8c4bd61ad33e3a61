//! The calls to CloudFormation.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_cloudformation::Client;
use aws_sdk_cloudformation::types::{Capability, ChangeSetStatus, ChangeSetType, OnFailure};
use zae_limiter::Clock;

use super::answers::{change, code, parameters, says, state, tags_of};
use super::metrics::Metrics;
use super::{Change, Kind, Progress, StackEvent, StackState, Tell};
use crate::error::DeployError;
use crate::tags;

/// How often CloudFormation is asked what it is doing.
const PACE: Duration = Duration::from_secs(3);

/// The same on this machine, where an emulator is done at once.
const LOCAL_PACE: Duration = Duration::from_millis(200);

/// How long CloudFormation may be at work. Making the slowest resource takes minutes.
const WORK_MAX: Duration = Duration::from_secs(3_600);

/// How long the first event of what was begun may take. Before it the stack still looks as it did.
const FIRST_EVENT_MAX: Duration = Duration::from_secs(60);

/// How often in a row CloudFormation may be out of reach, or too busy to answer, while it is waited
/// for. It works on whether it is looked at or not. The same for S3, while a bucket is emptied.
pub(super) const MISSES_MAX: u32 = 10;

/// How many events explain a failure.
const EVENTS_MAX: usize = 20;

/// What CloudFormation says, in a failed change set, when there is nothing to do.
const NO_CHANGES: [&str; 2] = ["didn't contain changes", "No updates are to be performed"];

/// A way to AWS, or to something that speaks its language.
pub struct Cloud {
    pub(super) cfn: Client,
    pub(super) s3: aws_sdk_s3::Client,
    pub(super) lambda: aws_sdk_lambda::Client,
    pub(super) metrics: Metrics,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) region: String,
    /// Where CloudFormation is asked, when not at the region's own endpoint.
    pub(super) endpoint: Option<String>,
}

/// What is to be done with an event that was found.
enum Found {
    /// It is one of those that are looked for.
    Wanted,
    /// It is the first of them.
    Last,
    /// It is older than all of them.
    Older,
}

/// A change set that is ready to be executed.
pub(super) struct Plan {
    pub(super) stack: String,
    pub(super) id: String,
    pub(super) changes: Vec<Change>,
}

/// What a stack is to be.
pub(super) struct Wanted<'a> {
    pub(super) stack: &'a str,
    /// `None` keeps the one it has.
    pub(super) template: Option<&'a str>,
    pub(super) parameters: &'a BTreeMap<String, String>,
    pub(super) tags: &'a BTreeMap<String, String>,
}

impl Cloud {
    /// The region.
    #[must_use]
    pub fn region(&self) -> &str {
        &self.region
    }

    /// A stack by its name or its ARN; `None` when there is none.
    pub async fn find(&self, stack: &str) -> Result<Option<StackState>, DeployError> {
        match self.cfn.describe_stacks().stack_name(stack).send().await {
            Ok(found) => Ok(found.stacks.unwrap_or_default().first().map(state)),
            Err(error) if says(&error, "does not exist") => Ok(None),
            Err(error) => Err(self.failed("DescribeStacks", error)),
        }
    }

    /// The same for a stack that must be there.
    pub async fn describe(&self, stack: &str) -> Result<StackState, DeployError> {
        let missing =
            || DeployError::StackNotFound { stack: stack.to_owned(), region: self.region.clone() };
        self.find(stack).await?.ok_or_else(missing)
    }

    /// All stacks of the region of this kind, ours and the Python package's, by name.
    pub async fn list(&self, kind: Kind) -> Result<Vec<StackState>, DeployError> {
        let (mut stacks, mut next) = (Vec::new(), None);
        loop {
            let page = self.cfn.describe_stacks().set_next_token(next).send().await;
            let page = page.map_err(|error| self.failed("DescribeStacks", error))?;
            let ours = |state: &StackState| {
                let tag = |key: &str| state.tags.get(key).map(String::as_str);
                tag(tags::MANAGED_BY) == Some(tags::MANAGER)
                    && state.kind() == kind
                    && state.status != "DELETE_COMPLETE"
            };
            stacks.extend(page.stacks.unwrap_or_default().iter().map(state).filter(ours));
            next = page.next_token;
            if next.is_none() {
                break;
            }
        }
        stacks.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(stacks)
    }

    /// The resources of a stack: name in the template, type, physical id, state.
    pub async fn resources(&self, stack: &str) -> Result<Vec<[String; 4]>, DeployError> {
        let found = self.cfn.describe_stack_resources().stack_name(stack).send().await;
        let found = found.map_err(|error| self.failed("DescribeStackResources", error))?;
        let text = |value: Option<&str>| value.unwrap_or_default().to_owned();
        let resources = found.stack_resources.unwrap_or_default();
        Ok(resources
            .iter()
            .map(|resource| {
                [
                    text(resource.logical_resource_id()),
                    text(resource.resource_type()),
                    text(resource.physical_resource_id()),
                    text(resource.resource_status().map(|status| status.as_str())),
                ]
            })
            .collect())
    }

    /// How old the oldest record was that a function was given last, in ms, as CloudWatch knows it;
    /// `None` when it was given none for a quarter of an hour.
    pub async fn iterator_age_ms(&self, function: &str) -> Result<Option<i64>, DeployError> {
        self.metrics.iterator_age_ms(function, self.clock.now()).await
    }

    /// A stack once nobody is at work on it; `None` when there is none. Who does not wait gets an
    /// error instead.
    pub async fn rested(
        &self,
        stack: &str,
        waits: bool,
        tell: Tell<'_>,
    ) -> Result<Option<StackState>, DeployError> {
        match self.find(stack).await? {
            Some(state) if state.is_at_work() => {
                let (stack, status) = (stack.to_owned(), state.status);
                if !waits {
                    return Err(DeployError::StillAtWork { stack, status });
                }
                tell(Progress::Doing(&format!("waiting for the stack, which is {status}")));
                let seen = self.newest_event(&stack).await?;
                Ok(self.settle(&stack, (seen, false), tell).await?.0)
            }
            found => Ok(found),
        }
    }

    /// Begins to make a stack. `StackExists` when somebody was faster.
    pub(super) async fn create(&self, wanted: &Wanted<'_>) -> Result<(), DeployError> {
        let created = self
            .cfn
            .create_stack()
            .stack_name(wanted.stack)
            .set_template_body(wanted.template.map(str::to_owned))
            .set_parameters(Some(parameters(wanted.parameters)))
            .set_tags(Some(tags_of(wanted.tags)))
            .capabilities(Capability::CapabilityNamedIam)
            // What was made before the failure goes; the events that explain it stay.
            .on_failure(OnFailure::Rollback)
            .send()
            .await;
        match created {
            Ok(_) => Ok(()),
            Err(error) if code(&error).is_some_and(|code| code.contains("AlreadyExists")) => {
                Err(DeployError::StackExists { stack: wanted.stack.to_owned() })
            }
            Err(error) => Err(self.failed("CreateStack", error)),
        }
    }

    /// What would change; `None` when nothing would. A change of outputs alone is one, though
    /// CloudFormation names no resource: only for what `is_same` does an empty list mean nothing.
    pub(super) async fn plan(
        &self,
        wanted: &Wanted<'_>,
        is_same: bool,
    ) -> Result<Option<Plan>, DeployError> {
        let name = format!("zae-limiter-{}", self.clock.now().0);
        let created = self
            .cfn
            .create_change_set()
            .stack_name(wanted.stack)
            .change_set_name(&name)
            .change_set_type(ChangeSetType::Update)
            .set_template_body(wanted.template.map(str::to_owned))
            .use_previous_template(wanted.template.is_none())
            .set_parameters(Some(parameters(wanted.parameters)))
            .set_tags(Some(tags_of(wanted.tags)))
            .capabilities(Capability::CapabilityNamedIam)
            .send()
            .await;
        let created = match created {
            Ok(created) => created,
            Err(error) if NO_CHANGES.iter().any(|words| says(&error, words)) => return Ok(None),
            Err(error) => return Err(self.failed("CreateChangeSet", error)),
        };
        let id = created.id.unwrap_or(name);
        let began = self.clock.monotonic();
        loop {
            let (mut changes, mut next) = (Vec::new(), None);
            let (status, reason) = loop {
                let page = self
                    .cfn
                    .describe_change_set()
                    .stack_name(wanted.stack)
                    .change_set_name(&id)
                    .set_next_token(next)
                    .send()
                    .await
                    .map_err(|error| self.failed("DescribeChangeSet", error))?;
                changes.extend(page.changes().iter().filter_map(change));
                next = page.next_token.clone();
                if next.is_none() {
                    break (page.status, page.status_reason);
                }
            };
            match status {
                Some(ChangeSetStatus::CreateComplete) if changes.is_empty() && is_same => {
                    self.discard(wanted.stack, &id).await;
                    return Ok(None);
                }
                Some(ChangeSetStatus::CreateComplete) => {
                    return Ok(Some(Plan { stack: wanted.stack.to_owned(), id, changes }));
                }
                Some(ChangeSetStatus::Failed) => {
                    self.discard(wanted.stack, &id).await;
                    let reason = reason.unwrap_or_default();
                    if NO_CHANGES.iter().any(|words| reason.contains(words)) {
                        return Ok(None);
                    }
                    let message = format!("the change cannot be planned: {reason}");
                    return Err(DeployError::Aws {
                        operation: "CreateChangeSet",
                        code: None,
                        message,
                    });
                }
                _ if self.clock.monotonic().saturating_sub(began) > WORK_MAX => {
                    let status = status.map_or_else(String::new, |status| status.to_string());
                    return Err(DeployError::StillAtWork {
                        stack: wanted.stack.to_owned(),
                        status,
                    });
                }
                _ => self.clock.sleep(self.pace()).await,
            }
        }
    }

    /// Begins to do what was planned.
    pub(super) async fn execute(&self, plan: &Plan) -> Result<(), DeployError> {
        let request = self.cfn.execute_change_set().stack_name(&plan.stack);
        let executed = request.change_set_name(&plan.id).send().await;
        executed.map(drop).map_err(|error| self.failed("ExecuteChangeSet", error))
    }

    /// Forgets a plan. One that stays is no harm.
    pub(super) async fn discard(&self, stack: &str, id: &str) {
        let _ = self.cfn.delete_change_set().stack_name(stack).change_set_name(id).send().await;
    }

    /// Begins to delete a stack.
    pub(super) async fn delete(&self, stack: &str) -> Result<(), DeployError> {
        let deleted = self.cfn.delete_stack().stack_name(stack).send().await;
        deleted.map(drop).map_err(|error| self.failed("DeleteStack", error))
    }

    /// The number of the newest event of a stack.
    pub(super) async fn newest_event(&self, stack: &str) -> Result<Option<String>, DeployError> {
        let found = self.cfn.describe_stack_events().stack_name(stack).send().await;
        match found {
            Ok(page) => Ok(page
                .stack_events
                .unwrap_or_default()
                .first()
                .and_then(|event| event.event_id.clone())),
            Err(error) if says(&error, "does not exist") => Ok(None),
            Err(error) => Err(self.failed("DescribeStackEvents", error)),
        }
    }

    /// The events of a stack after one, oldest first.
    async fn events_after(
        &self,
        stack: &str,
        seen: Option<&str>,
    ) -> Result<Vec<StackEvent>, DeployError> {
        self.events(stack, |event| match Some(event.id.as_str()) == seen {
            true => Found::Older,
            false => Found::Wanted,
        })
        .await
    }

    /// The events of what was done to a stack last, oldest first. What failed a year ago explains
    /// nothing.
    pub(super) async fn last_events(&self, stack: &str) -> Result<Vec<StackEvent>, DeployError> {
        self.events(stack, |event| match event.begins(stack) {
            true => Found::Last,
            false => Found::Wanted,
        })
        .await
    }

    /// Events of a stack, from the newest back to where `is_wanted` ends; oldest first.
    async fn events(
        &self,
        stack: &str,
        is_wanted: impl Fn(&StackEvent) -> Found,
    ) -> Result<Vec<StackEvent>, DeployError> {
        let (mut events, mut next) = (Vec::new(), None);
        'pages: loop {
            let request = self.cfn.describe_stack_events().stack_name(stack);
            let page = match request.set_next_token(next).send().await {
                Ok(page) => page,
                Err(error) if says(&error, "does not exist") => break,
                Err(error) => return Err(self.failed("DescribeStackEvents", error)),
            };
            for event in page.stack_events.unwrap_or_default() {
                let text = |value: Option<String>| value.unwrap_or_default();
                let event = StackEvent {
                    id: text(event.event_id),
                    resource: text(event.logical_resource_id),
                    kind: text(event.resource_type),
                    status: event
                        .resource_status
                        .map_or_else(String::new, |status| status.as_str().to_owned()),
                    reason: event.resource_status_reason.filter(|why| !why.is_empty()),
                    at_s: event.timestamp.map_or(0, |at| at.secs()),
                };
                let found = is_wanted(&event);
                if !matches!(found, Found::Older) {
                    events.push(event);
                }
                if !matches!(found, Found::Wanted) {
                    break 'pages;
                }
            }
            next = page.next_token;
            if next.is_none() {
                break;
            }
        }
        events.reverse();
        Ok(events)
    }

    /// Waits until CloudFormation rests, and tells what it does meanwhile. `None` when the stack is
    /// gone. The events that were told come with it: there is at least one of what was just
    /// `begun`.
    pub(super) async fn settle(
        &self,
        stack: &str,
        (seen, begun): (Option<String>, bool),
        tell: Tell<'_>,
    ) -> Result<(Option<StackState>, Vec<StackEvent>), DeployError> {
        let (began, mut seen, mut told) = (self.clock.monotonic(), seen, Vec::new());
        let mut misses = 0;
        loop {
            // What is read of the stack before the first event may be what was before.
            let is_begun = !begun || !told.is_empty();
            let (found, events) = match self.look(stack, seen.as_deref()).await {
                Ok(looked) => looked,
                Err(error) if error.is_passing() && misses < MISSES_MAX => {
                    misses += 1;
                    self.clock.sleep(self.pace() * misses).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            misses = 0;
            let passed = self.clock.monotonic().saturating_sub(began);
            for event in events {
                tell(Progress::Event(&event));
                seen = Some(event.id.clone());
                told.push(event);
            }
            match found {
                Some(_) if !is_begun && passed < FIRST_EVENT_MAX => {}
                Some(state) if state.is_at_work() => {
                    if passed > WORK_MAX {
                        let (stack, status) = (stack.to_owned(), state.status);
                        return Err(DeployError::StillAtWork { stack, status });
                    }
                }
                Some(state) if state.status == "DELETE_COMPLETE" => return Ok((None, told)),
                state => return Ok((state, told)),
            }
            self.clock.sleep(self.pace()).await;
        }
    }

    /// A stack, and its events after one.
    async fn look(
        &self,
        stack: &str,
        seen: Option<&str>,
    ) -> Result<(Option<StackState>, Vec<StackEvent>), DeployError> {
        let found = self.find(stack).await?;
        Ok((found, self.events_after(stack, seen).await?))
    }

    /// The error of a stack that is not what it should be.
    pub(super) fn broken(&self, state: &StackState, events: &[StackEvent]) -> DeployError {
        let failures: Vec<StackEvent> =
            events.iter().filter(|event| event.is_failure()).take(EVENTS_MAX).cloned().collect();
        DeployError::StackFailed {
            stack: state.name.clone(),
            status: state.status.clone(),
            reason: state.reason.clone(),
            events: failures,
        }
    }

    pub(super) fn pace(&self) -> Duration {
        if self.endpoint.is_some() { LOCAL_PACE } else { PACE }
    }
}
