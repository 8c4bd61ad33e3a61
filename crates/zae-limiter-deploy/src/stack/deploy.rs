//! Making a stack, or making it what its options say.

use std::collections::BTreeMap;

use super::cloud::Wanted;
use super::{Change, Cloud, Maker, Progress, StackState, Tell};
use crate::error::DeployError;
use crate::options::{LAMBDA_CODE_KEY, StackOptions};
use crate::package::Package;
use crate::tags::{self, StackVersions, stack_tags};
use crate::template::TEMPLATE;
use zae_limiter_dynamodb::Versions;

/// Where the code of the function is uploaded to.
const CODE_BUCKET: &str = "CodeBucketName";

/// A stack as it should be.
#[derive(Clone, Debug)]
pub struct Deployment<'a> {
    stack: &'a str,
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
            parameters,
            options: options.clone(),
            package,
            may_lose_data: false,
            waits: true,
            template: Some(TEMPLATE),
        })
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
        let parameters = &self.parameters;
        let (state, is_new) = match self.found(cloud, tell).await? {
            Some(state) => (state, false),
            None => {
                tell(Progress::Doing("making the stack"));
                match self.create(cloud, parameters).await {
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
            let updated = self.update(cloud, &state, parameters, "", tell).await?;
            match updated {
                Some(Some(next)) => (state, changed) = (next, true),
                Some(None) => return Ok((Outcome::Begun, None)),
                None => {}
            }
        }
        let key = self.uploaded(cloud, &state, tell).await?;
        match self.update(cloud, &state, parameters, &key, tell).await? {
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
        let Some(mut state) = cloud.find(self.stack).await? else { return Ok(None) };
        if state.is_at_work() {
            if !self.waits {
                let (stack, status) = (state.name, state.status);
                return Err(DeployError::StillAtWork { stack, status });
            }
            let doing = format!("waiting for the stack, which is {}", state.status);
            tell(Progress::Doing(&doing));
            let seen = cloud.newest_event(self.stack).await?;
            match cloud.settle(self.stack, (seen, false), tell).await?.0 {
                Some(settled) => state = settled,
                None => return Ok(None),
            }
        }
        let not_ours = |why| DeployError::NotOurs { stack: self.stack.to_owned(), why };
        match state.maker() {
            Maker::Ours => {}
            Maker::Python => return Err(not_ours("the Python package has deployed it")),
            Maker::Unknown => return Err(not_ours("it is a stack of something else")),
        }
        if !state.is_whole() {
            let events = cloud.events_after(self.stack, None).await?;
            return Err(cloud.broken(&state, &events));
        }
        Ok(Some(state))
    }

    async fn create(
        &self,
        cloud: &Cloud,
        parameters: &BTreeMap<String, String>,
    ) -> Result<(), DeployError> {
        let (parameters, tags) = self.wanted(parameters, "");
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
        let (Some(package), Some(bucket)) = (self.package, state.output(CODE_BUCKET)) else {
            return Ok(String::new());
        };
        let key = package.key();
        let doing = format!("uploading the function, {} KB", package.zip.len() / 1_024);
        tell(Progress::Doing(&doing));
        cloud.upload(bucket, &key, &package.zip).await?;
        Ok(key)
    }

    /// Changes the stack through a change set. `None` when nothing is to be changed, `Some(None)`
    /// when the change was only begun.
    async fn update(
        &self,
        cloud: &Cloud,
        state: &StackState,
        parameters: &BTreeMap<String, String>,
        code_key: &str,
        tell: Tell<'_>,
    ) -> Result<Option<Option<StackState>>, DeployError> {
        let (parameters, tags) = self.wanted(parameters, code_key);
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
        let Some(plan) = cloud.plan(&wanted).await? else { return Ok(None) };
        plan.changes.iter().for_each(|change| tell(Progress::Change(change)));
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

    /// Waits for the end of what was begun, which must be a whole stack.
    async fn whole(
        &self,
        cloud: &Cloud,
        seen: Option<String>,
        tell: Tell<'_>,
    ) -> Result<StackState, DeployError> {
        let (state, events) = cloud.settle(self.stack, (seen, true), tell).await?;
        let missing = || DeployError::StackNotFound {
            stack: self.stack.to_owned(),
            region: cloud.region().to_owned(),
        };
        let state = state.ok_or_else(missing)?;
        // A change that was taken back leaves a stack that serves, and is a failure all the same.
        match state.is_whole() && !state.status.contains("ROLLBACK") {
            true => Ok(state),
            false => Err(cloud.broken(&state, &events)),
        }
    }

    fn wanted(
        &self,
        parameters: &BTreeMap<String, String>,
        code_key: &str,
    ) -> (BTreeMap<String, String>, BTreeMap<String, String>) {
        let mut parameters = parameters.clone();
        parameters.insert(LAMBDA_CODE_KEY.to_owned(), code_key.to_owned());
        let program = env!("CARGO_PKG_VERSION");
        let versions = StackVersions {
            program,
            lambda: (!code_key.is_empty()).then_some(program),
            schema: Versions::SCHEMA,
        };
        (parameters, stack_tags(self.stack, &versions, &self.options))
    }
}
