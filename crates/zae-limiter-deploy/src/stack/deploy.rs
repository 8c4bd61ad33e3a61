//! Making a stack, or making it what its options say.

use std::collections::BTreeMap;

use super::cloud::{Plan, Wanted};
use super::{Change, Cloud, Kind, Progress, StackState, Tell};
use crate::error::DeployError;
use crate::loadtest::{self, LoadTestOptions};
use crate::options::{LAMBDA_CODE_KEY, OptionError, StackOptions};
use crate::package::Package;
use crate::tags::{self, StackVersions, stack_tags};
use crate::template::TEMPLATE;
use zae_limiter_dynamodb::Versions;

/// Where the code of the function is uploaded to.
const CODE_BUCKET: &str = "CodeBucketName";

/// Whether the table refuses to be deleted.
pub(super) const PROTECTION: &str = "EnableDeletionProtection";

/// How often somebody else may be faster before that is an error.
const RACES_MAX: usize = 5;

/// A stack as it should be.
#[derive(Clone, Debug)]
pub struct Deployment<'a> {
    stack: &'a str,
    kind: Kind,
    /// The parameters of the template, but for the key of the code.
    parameters: BTreeMap<String, String>,
    /// For its tags.
    options: StackOptions,
    package: Option<&'a Package>,
    may_lose_data: bool,
    waits: bool,
    template: Option<&'static str>,
}

impl<'a> Deployment<'a> {
    /// A stack with these options; without a package it has no function.
    pub fn new(
        stack: &'a str,
        options: &StackOptions,
        package: Option<&'a Package>,
    ) -> Result<Deployment<'a>, DeployError> {
        let parameters = options.parameters(stack)?;
        Ok(Deployment {
            stack,
            kind: Kind::Limiter,
            parameters,
            options: options.clone(),
            package,
            may_lose_data: false,
            waits: true,
            template: Some(TEMPLATE),
        })
    }

    /// The workers of a load test.
    pub fn of_load_test(
        stack: &'a str,
        options: &LoadTestOptions,
        package: &'a Package,
    ) -> Result<Deployment<'a>, DeployError> {
        Ok(Deployment {
            stack,
            kind: Kind::LoadTest,
            parameters: options.parameters(stack)?,
            options: StackOptions::new(),
            package: Some(package),
            may_lose_data: false,
            waits: true,
            template: Some(loadtest::TEMPLATE),
        })
    }

    /// The same workers with other code; everything else stays.
    #[must_use]
    pub fn push(state: &'a StackState, package: &'a Package) -> Deployment<'a> {
        let mut parameters = state.parameters.clone();
        parameters.remove(LAMBDA_CODE_KEY);
        Deployment {
            stack: &state.name,
            kind: Kind::LoadTest,
            parameters,
            options: StackOptions::new(),
            package: Some(package),
            may_lose_data: false,
            waits: true,
            template: None,
        }
    }

    /// The same stack with the template and the function of this release. What it was deployed with
    /// stays; parameters that are new have their defaults. With `lambda_only` its template stays
    /// too.
    pub fn upgrade(
        state: &'a StackState,
        package: Option<&'a Package>,
        lambda_only: bool,
    ) -> Result<Deployment<'a>, DeployError> {
        let is_user = |key: &String| !tags::is_reserved(key) && !key.starts_with("aws:");
        let user = state.tags.iter().filter(|(key, _)| is_user(key));
        let options = StackOptions::new()
            .tags(user.map(|(key, value)| (key.clone(), value.clone())).collect::<Vec<_>>());
        let mut parameters = options.parameters(&state.name)?;
        for (name, value) in &mut parameters {
            if let Some(before) = state.parameters.get(name) {
                value.clone_from(before);
            }
        }
        if lambda_only {
            // The template that is there knows these and no others.
            parameters = state.parameters.clone();
            parameters.remove(LAMBDA_CODE_KEY);
        }
        Ok(Deployment {
            stack: &state.name,
            kind: Kind::Limiter,
            parameters,
            options,
            package,
            may_lose_data: false,
            waits: true,
            template: (!lambda_only).then_some(TEMPLATE),
        })
    }

    /// Whether tables, buckets and queues may be removed or replaced; they may not.
    #[must_use]
    pub fn may_lose_data(mut self, may: bool) -> Deployment<'a> {
        self.may_lose_data = may;
        self
    }

    /// Whether [`Deployment::run`] returns only when CloudFormation is done, which is so. Without,
    /// the first step is begun.
    #[must_use]
    pub fn waits(mut self, waits: bool) -> Deployment<'a> {
        self.waits = waits;
        self
    }
}

/// What a deployment came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The stack was made.
    Created,
    /// The stack was changed.
    Updated,
    /// The stack was as it should be.
    Unchanged,
    /// CloudFormation is at work; `deploy` once more goes on where it is.
    Begun,
    /// The stack was left to whoever made it, and its table was made ready.
    Ready,
}

impl Outcome {
    /// One word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Outcome::Created => "created",
            Outcome::Updated => "updated",
            Outcome::Unchanged => "unchanged",
            Outcome::Begun => "begun",
            Outcome::Ready => "ready",
        }
    }
}

impl Deployment<'_> {
    /// Makes the stack what it should be. The function's code lies in a bucket of the stack itself,
    /// so a new stack is made in two steps: without the function, and then with it. Whatever was
    /// begun before, by this process or another, is waited for and gone on with.
    pub async fn run(
        &self,
        cloud: &Cloud,
        tell: Tell<'_>,
    ) -> Result<(Outcome, Option<StackState>), DeployError> {
        let (state, is_new) = match self.found(cloud, tell).await? {
            Some(state) => (state, false),
            None => {
                tell(Progress::Doing("making the stack"));
                match self.create(cloud).await {
                    Ok(()) if !self.waits => return Ok((Outcome::Begun, None)),
                    Ok(()) => (self.whole(cloud, None, tell).await?, true),
                    // Somebody else was faster: their stack is the one to go on with.
                    Err(DeployError::StackExists { .. }) if self.waits => {
                        let found = self.found(cloud, tell).await?;
                        let missing = || DeployError::StackExists { stack: self.stack.to_owned() };
                        (found.ok_or_else(missing)?, false)
                    }
                    Err(error) => return Err(error),
                }
            }
        };
        let mut changed = is_new;
        let mut state = state;
        // A stack that had no function has no bucket for code either.
        if self.package.is_some() && state.output(CODE_BUCKET).is_none() && !is_new {
            let updated = self.update(cloud, &state, "", tell).await?;
            match updated {
                Some(Some(next)) => (state, changed) = (next, true),
                Some(None) => return Ok((Outcome::Begun, None)),
                None => {}
            }
        }
        let key = self.uploaded(cloud, &state, tell).await?;
        match self.update(cloud, &state, &key, tell).await? {
            Some(Some(next)) => (state, changed) = (next, true),
            Some(None) => return Ok((Outcome::Begun, None)),
            None => {}
        }
        let outcome = match (is_new, changed) {
            (true, _) => Outcome::Created,
            (false, true) => Outcome::Updated,
            (false, false) => Outcome::Unchanged,
        };
        Ok((outcome, Some(state)))
    }

    /// The stack that is there, once nobody is at work on it. It must be ours, and not given up.
    async fn found(
        &self,
        cloud: &Cloud,
        tell: Tell<'_>,
    ) -> Result<Option<StackState>, DeployError> {
        let Some(state) = cloud.rested(self.stack, self.waits, tell).await? else {
            return Ok(None);
        };
        if let Some(why) = state.maker().why_not() {
            return Err(DeployError::NotOurs { stack: self.stack.to_owned(), why });
        }
        if let Some(why) = state.misfit(self.kind) {
            return Err(DeployError::NotOurs { stack: self.stack.to_owned(), why });
        }
        if !state.is_whole() {
            let events = cloud.last_events(self.stack).await?;
            return Err(cloud.broken(&state, &events));
        }
        // Not given is not the same as given up.
        let is_protected =
            |of: &BTreeMap<String, String>| of.get(PROTECTION).is_some_and(|it| it == "true");
        if is_protected(&state.parameters)
            && !is_protected(&self.parameters)
            && self.options.enable_deletion_protection.is_none()
        {
            return Err(DeployError::Unprotects { stack: self.stack.to_owned() });
        }
        Ok(Some(state))
    }

    async fn create(&self, cloud: &Cloud) -> Result<(), DeployError> {
        let (parameters, tags) = self.wanted("");
        let wanted = Wanted {
            stack: self.stack,
            template: self.template,
            parameters: &parameters,
            tags: &tags,
        };
        cloud.create(&wanted).await
    }

    /// Uploads the code, if there is any; its key.
    async fn uploaded(
        &self,
        cloud: &Cloud,
        state: &StackState,
        tell: Tell<'_>,
    ) -> Result<String, DeployError> {
        let Some(package) = self.package else { return Ok(String::new()) };
        let Some(bucket) = state.output(CODE_BUCKET) else {
            let message = format!("stack {} has no bucket for code ({CODE_BUCKET})", self.stack);
            return Err(DeployError::Aws { operation: "DescribeStacks", code: None, message });
        };
        let key = package.key();
        let doing = format!("uploading the function, {} KB", package.zip.len() / 1_024);
        tell(Progress::Doing(&doing));
        cloud.upload(bucket, &key, &package.zip).await?;
        Ok(key)
    }

    /// Changes the stack through a change set. `None` when nothing is to be changed, `Some(None)`
    /// when the change was only begun. When somebody else changes the stack meanwhile, they go
    /// first.
    async fn update(
        &self,
        cloud: &Cloud,
        state: &StackState,
        code_key: &str,
        tell: Tell<'_>,
    ) -> Result<Option<Option<StackState>>, DeployError> {
        let mut found = None;
        for _ in 0..RACES_MAX {
            let state = found.as_ref().unwrap_or(state);
            match self.try_update(cloud, state, code_key, tell).await {
                Err(error) if error.is_race() => {
                    // Without waiting that is an error here.
                    let next = self.found(cloud, tell).await?;
                    found = Some(next.ok_or_else(|| self.missing(cloud))?);
                }
                updated => return updated,
            }
        }
        self.try_update(cloud, found.as_ref().unwrap_or(state), code_key, tell).await
    }

    async fn try_update(
        &self,
        cloud: &Cloud,
        state: &StackState,
        code_key: &str,
        tell: Tell<'_>,
    ) -> Result<Option<Option<StackState>>, DeployError> {
        let Some(plan) = self.plan(cloud, state, code_key, tell).await? else { return Ok(None) };
        let lost: Vec<Change> =
            plan.changes.iter().filter(|change| change.loses_data()).cloned().collect();
        if !lost.is_empty() && !self.may_lose_data {
            cloud.discard(self.stack, &plan.id).await;
            return Err(DeployError::LosesData { stack: self.stack.to_owned(), changes: lost });
        }
        let seen = cloud.newest_event(self.stack).await?;
        tell(Progress::Doing("changing the stack"));
        cloud.execute(&plan).await?;
        if !self.waits {
            return Ok(Some(None));
        }
        Ok(Some(Some(self.whole(cloud, seen, tell).await?)))
    }

    /// What an update would change, told line by line; nothing is changed, and nothing uploaded.
    /// `None` when nothing would.
    pub async fn preview(
        &self,
        cloud: &Cloud,
        tell: Tell<'_>,
    ) -> Result<Option<Vec<Change>>, DeployError> {
        let found = self.found(cloud, tell).await?;
        let state = found.ok_or_else(|| self.missing(cloud))?;
        let key = self.package.map_or(String::new(), Package::key);
        let Some(plan) = self.plan(cloud, &state, &key, tell).await? else { return Ok(None) };
        cloud.discard(self.stack, &plan.id).await;
        Ok(Some(plan.changes))
    }

    async fn plan(
        &self,
        cloud: &Cloud,
        state: &StackState,
        code_key: &str,
        tell: Tell<'_>,
    ) -> Result<Option<Plan>, DeployError> {
        let (parameters, tags) = self.wanted(code_key);
        // An index cannot change what it keeps; one that goes and comes again is empty meanwhile,
        // while clients query it.
        const PROJECTION: &str = "ResourceIndexProjection";
        if let (Some(has), Some(wanted)) =
            (state.parameters.get(PROJECTION), parameters.get(PROJECTION))
            && has != wanted
        {
            let problem = format!("cannot be changed; stack {} has {has}", self.stack);
            return Err(OptionError::new("resource_index_projection", wanted, problem).into());
        }
        let is_same = state.parameters == parameters && state.tags == tags;
        let wanted = Wanted {
            stack: self.stack,
            template: self.template,
            parameters: &parameters,
            tags: &tags,
        };
        tell(Progress::Doing(if is_same {
            "looking whether the template has changed"
        } else {
            "planning the change"
        }));
        let Some(plan) = cloud.plan(&wanted, is_same).await? else {
            // CloudFormation keeps the parameters that it had.
            let differs =
                |(name, value): &(&String, &String)| state.parameters.get(*name) != Some(*value);
            let idle: Vec<&str> =
                parameters.iter().filter(differs).map(|(name, _)| name.as_str()).collect();
            if !idle.is_empty() && !state.parameters.is_empty() {
                let idle = idle.join(", ");
                tell(Progress::Doing(&format!("no resource of the stack depends on {idle}")));
            }
            return Ok(None);
        };
        for line in differences(state, &parameters, &tags) {
            tell(Progress::Doing(&line));
        }
        plan.changes.iter().for_each(|change| tell(Progress::Change(change)));
        Ok(Some(plan))
    }

    fn missing(&self, cloud: &Cloud) -> DeployError {
        let (stack, region) = (self.stack.to_owned(), cloud.region().to_owned());
        DeployError::StackNotFound { stack, region }
    }

    /// Waits for the end of what was begun, which must be a whole stack.
    async fn whole(
        &self,
        cloud: &Cloud,
        seen: Option<String>,
        tell: Tell<'_>,
    ) -> Result<StackState, DeployError> {
        let (state, events) = cloud.settle(self.stack, (seen, true), tell).await?;
        let state = state.ok_or_else(|| self.missing(cloud))?;
        // A change that was taken back leaves a stack that serves, and is a failure all the same.
        match state.is_whole() && !state.status.contains("ROLLBACK") {
            true => Ok(state),
            false => Err(cloud.broken(&state, &events)),
        }
    }

    fn wanted(&self, code_key: &str) -> (BTreeMap<String, String>, BTreeMap<String, String>) {
        let mut parameters = self.parameters.clone();
        parameters.insert(LAMBDA_CODE_KEY.to_owned(), code_key.to_owned());
        let program = env!("CARGO_PKG_VERSION");
        let versions = StackVersions {
            program,
            lambda: (!code_key.is_empty()).then_some(program),
            schema: Versions::SCHEMA,
        };
        let mut tags = stack_tags(self.stack, &versions, &self.options);
        tags.insert(tags::TYPE.to_owned(), self.kind.as_str().to_owned());
        (parameters, tags)
    }
}

/// What options become, one line per parameter and tag. What the program says of itself is left
/// out, and so is what is new in the template.
fn differences(
    state: &StackState,
    parameters: &BTreeMap<String, String>,
    tags: &BTreeMap<String, String>,
) -> Vec<String> {
    let or_none = |value: &str| if value.is_empty() { "none" } else { value }.to_owned();
    let changed = parameters.iter().filter_map(|(name, now)| {
        let was =
            state.parameters.get(name).filter(|was| *was != now && name != LAMBDA_CODE_KEY)?;
        Some(format!("{name} {} -> {}", or_none(was), or_none(now)))
    });
    let is_user = |key: &str| !tags::is_reserved(key) && !key.starts_with("aws:");
    let of_user = state.tags.iter().filter(|(key, _)| is_user(key));
    let gone = of_user.filter_map(|(key, was)| match tags.get(key) {
        None => Some(format!("- tag {key}={was}")),
        Some(now) if now != was => Some(format!("~ tag {key} {was} -> {now}")),
        Some(_) => None,
    });
    let is_new = |(key, _): &(&String, &String)| is_user(key) && !state.tags.contains_key(*key);
    let new = tags.iter().filter(is_new).map(|(key, now)| format!("+ tag {key}={now}"));
    changed.chain(gone).chain(new).collect()
}
