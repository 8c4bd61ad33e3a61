//! What AWS answers, in our words.

use std::collections::BTreeMap;

use aws_sdk_cloudformation::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_cloudformation::types::{Parameter, Stack, Tag};

use super::{Change, Cloud, StackState};
use crate::error::DeployError;

impl Cloud {
    pub(super) fn failed<E>(&self, operation: &'static str, error: SdkError<E>) -> DeployError
    where
        E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
    {
        if let (Some(endpoint), Some(raw)) = (&self.endpoint, error.raw_response()) {
            // CloudFormation answers in XML; an engine that knows only DynamoDB answers in JSON, or
            // does not know the path.
            let is_xml = raw.headers().get("content-type").is_some_and(|kind| kind.contains("xml"));
            let is_unknown = code(&error).is_none_or(|code| code.contains("UnknownOperation"));
            // A server that is starting or overloaded says nothing about what it knows.
            let is_told = matches!(raw.status().as_u16(), 400 | 404 | 405 | 501);
            if !is_xml && is_unknown && is_told {
                return DeployError::NoCloudFormation { endpoint: endpoint.clone() };
            }
        }
        let code = code(&error).map(str::to_owned);
        if error.raw_response().is_none() {
            return DeployError::Unreachable { operation, message: chain(&error) };
        }
        let said = error.message().map(str::to_owned);
        // What stands before AWS, as a gateway, answers in words of its own.
        if let (None, None, Some(raw)) = (&code, &said, error.raw_response())
            && raw.status().as_u16() >= 500
        {
            let at = self.endpoint.as_deref().unwrap_or("AWS");
            let message = format!("HTTP status {} from {at}", raw.status().as_u16());
            return DeployError::Unreachable { operation, message };
        }
        DeployError::Aws { operation, code, message: said.unwrap_or_else(|| chain(&error)) }
    }
}

/// What went wrong and why, each cause once.
fn chain(error: &dyn std::error::Error) -> String {
    let mut said = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let why = error.to_string();
        if !said.contains(&why) {
            said = format!("{said}: {why}");
        }
        cause = error.source();
    }
    said
}

pub(super) fn code<E: ProvideErrorMetadata>(error: &SdkError<E>) -> Option<&str> {
    error.code()
}

pub(super) fn says<E: ProvideErrorMetadata>(error: &SdkError<E>, words: &str) -> bool {
    error.message().is_some_and(|message| message.contains(words))
}

pub(super) fn parameters(wanted: &BTreeMap<String, String>) -> Vec<Parameter> {
    let parameter = |(key, value): (&String, &String)| {
        Parameter::builder().parameter_key(key).parameter_value(value).build()
    };
    wanted.iter().map(parameter).collect()
}

pub(super) fn tags_of(wanted: &BTreeMap<String, String>) -> Vec<Tag> {
    wanted.iter().map(|(key, value)| Tag::builder().key(key).value(value).build()).collect()
}

pub(super) fn change(found: &aws_sdk_cloudformation::types::Change) -> Option<Change> {
    let resource = found.resource_change()?;
    let text = |value: Option<&str>| value.unwrap_or_default().to_owned();
    Some(Change {
        action: text(resource.action().map(|action| action.as_str())),
        resource: text(resource.logical_resource_id()),
        kind: text(resource.resource_type()),
        replacement: resource.replacement().map(|replacement| replacement.as_str().to_owned()),
    })
}

pub(super) fn state(stack: &Stack) -> StackState {
    let pairs = |pairs: Vec<(Option<&str>, Option<&str>)>| -> BTreeMap<String, String> {
        pairs
            .into_iter()
            .filter_map(|(key, value)| {
                Some((key?.to_owned(), value.unwrap_or_default().to_owned()))
            })
            .collect()
    };
    let of_parameters = stack.parameters().iter();
    let of_outputs = stack.outputs().iter();
    StackState {
        name: stack.stack_name().unwrap_or_default().to_owned(),
        id: stack.stack_id().unwrap_or_default().to_owned(),
        status: stack.stack_status().map_or_else(String::new, |status| status.as_str().to_owned()),
        reason: stack.stack_status_reason().filter(|why| !why.is_empty()).map(str::to_owned),
        parameters: pairs(
            of_parameters.map(|it| (it.parameter_key(), it.parameter_value())).collect(),
        ),
        outputs: pairs(of_outputs.map(|it| (it.output_key(), it.output_value())).collect()),
        tags: pairs(stack.tags().iter().map(|it| (it.key(), it.value())).collect()),
        is_kept: stack.enable_termination_protection().unwrap_or(false),
        created_s: stack.creation_time().map(|at| at.secs()),
        updated_s: stack.last_updated_time().map(|at| at.secs()),
    }
}
