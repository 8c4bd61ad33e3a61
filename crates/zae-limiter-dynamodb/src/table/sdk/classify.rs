//! What a failed request proves. The only file that names errors of the SDK.
//!
//! Wherever it is not certain that nothing was applied, the answer is [`TableError::Unknown`]; so
//! is everything a newer SDK may bring.

use std::error::Error;

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_dynamodb::config::http::HttpResponse;
use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodb::operation::batch_get_item::BatchGetItemError;
use aws_sdk_dynamodb::operation::batch_write_item::BatchWriteItemError;
use aws_sdk_dynamodb::operation::create_table::CreateTableError;
use aws_sdk_dynamodb::operation::delete_table::DeleteTableError;
use aws_sdk_dynamodb::operation::describe_table::DescribeTableError;
use aws_sdk_dynamodb::operation::describe_time_to_live::DescribeTimeToLiveError;
use aws_sdk_dynamodb::operation::put_item::PutItemError;
use aws_sdk_dynamodb::operation::query::QueryError;
use aws_sdk_dynamodb::operation::scan::ScanError;
use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError;
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::operation::update_table::UpdateTableError;
use aws_sdk_dynamodb::operation::update_time_to_live::UpdateTimeToLiveError;
use aws_sdk_dynamodb::types::CancellationReason;

use crate::table::{Cancellation, Item, TableError};

/// Causes are told down to this depth.
const CAUSES_MAX: usize = 8;

/// A cause is told in at most this many characters.
const CAUSE_CHARS_MAX: usize = 300;

/// The error of one operation: some carry a decision of the table.
pub(super) trait Decision:
    ProvideErrorMetadata + Error + Send + Sync + Sized + 'static
{
    /// What the table decided, or the error again.
    fn decided(self) -> Result<TableError, Self> {
        Err(self)
    }
}

impl Decision for UpdateItemError {
    fn decided(self) -> Result<TableError, Self> {
        match self {
            UpdateItemError::ConditionalCheckFailedException(failed) => {
                Ok(TableError::Condition(image(failed.item)))
            }
            other => Err(other),
        }
    }
}

impl Decision for PutItemError {
    fn decided(self) -> Result<TableError, Self> {
        match self {
            PutItemError::ConditionalCheckFailedException(failed) => {
                Ok(TableError::Condition(image(failed.item)))
            }
            other => Err(other),
        }
    }
}

impl Decision for TransactWriteItemsError {
    fn decided(self) -> Result<TableError, Self> {
        match self {
            TransactWriteItemsError::TransactionCanceledException(canceled) => {
                Ok(match canceled.cancellation_reasons {
                    Some(reasons) => {
                        TableError::Canceled(reasons.into_iter().map(cancellation).collect())
                    }
                    None => TableError::NotApplied(
                        "the transaction was cancelled, and the table did not say why".to_owned(),
                    ),
                })
            }
            other => Err(other),
        }
    }
}

impl Decision for BatchGetItemError {}
impl Decision for BatchWriteItemError {}
impl Decision for QueryError {}
impl Decision for ScanError {}
impl Decision for CreateTableError {}
impl Decision for DeleteTableError {}
impl Decision for DescribeTableError {}
impl Decision for DescribeTimeToLiveError {}
impl Decision for UpdateTableError {}
impl Decision for UpdateTimeToLiveError {}

/// What a failed request proves.
pub(super) fn classify<E: Decision>(error: SdkError<E, HttpResponse>) -> TableError {
    match error {
        SdkError::ServiceError(context) => {
            let status = context.raw().status().as_u16();
            match context.into_err().decided() {
                Ok(decided) => decided,
                Err(error) => by_code(error.code(), error.message(), status),
            }
        }
        // The request could not even be built.
        SdkError::ConstructionFailure(_) => before_sending(&error),
        SdkError::DispatchFailure(ref failure) => match failure.as_connector_error() {
            Some(connector) if connector.is_user() => TableError::Rejected(causes(&error)),
            _ => dispatch(&error),
        },
        SdkError::TimeoutError(_) => TableError::Unknown("no answer in time".to_owned()),
        // An answer came that cannot be read: it may have been "done".
        SdkError::ResponseError(ref context) => TableError::Unknown(format!(
            "status {}, {}",
            context.raw().status().as_u16(),
            causes(&error)
        )),
        other => TableError::Unknown(causes(&other)),
    }
}

/// Proven never to have been sent.
fn before_sending(error: &(dyn Error + 'static)) -> TableError {
    match find::<CredentialsError>(error) {
        Some(credentials) => by_credentials(credentials),
        None => TableError::Rejected(causes(error)),
    }
}

/// Failed somewhere between having the request and having the answer.
fn dispatch(error: &(dyn Error + 'static)) -> TableError {
    if let Some(credentials) = find::<CredentialsError>(error) {
        return by_credentials(credentials);
    }
    // Without a connection nothing was sent: refused, no route, no such host, no TLS, no connection
    // in time.
    match find::<hyper_util::client::legacy::Error>(error) {
        Some(client) if client.is_connect() => TableError::Unreachable(causes(error)),
        _ => TableError::Unknown(causes(error)),
    }
}

fn by_credentials(error: &CredentialsError) -> TableError {
    let why = causes(error);
    match error {
        // The provider of credentials is down or slow.
        CredentialsError::ProviderTimedOut(_) => {
            TableError::Unreachable(format!("the provider of credentials did not answer: {why}"))
        }
        // The last place that is asked is the metadata service of an instance, which is not there
        // on most machines.
        CredentialsError::ProviderError(_) if !why.contains("IMDS") => {
            TableError::Denied(format!("the AWS credentials cannot be loaded: {why}"))
        }
        CredentialsError::InvalidConfiguration(_) => {
            TableError::Denied(format!("the AWS credentials cannot be loaded: {why}"))
        }
        _ => TableError::Denied(format!(
            "no AWS credentials found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or run where a role is attached \
             (looked in variables, profiles, containers and instances; last: {why})"
        )),
    }
}

fn by_code(code: Option<&str>, message: Option<&str>, status: u16) -> TableError {
    let told =
        format!("{}: {}", code.unwrap_or("no code"), shortened(message.unwrap_or("no message")));
    match code.unwrap_or_default() {
        // Too much at once, or in the way of each other.
        "ProvisionedThroughputExceededException"
        | "RequestLimitExceeded"
        | "ThrottlingException"
        | "Throttling"
        | "LimitExceededException"
        | "TransactionConflictException"
        | "ReplicatedWriteConflictException"
        | "ResourceInUseException" => TableError::NotApplied(told),
        // The same transaction is at work elsewhere: a request of ours that got no answer. It may
        // still be applied.
        "TransactionInProgressException" => TableError::Unknown(told),
        "ResourceNotFoundException" | "TableNotFoundException" => TableError::NoTable(told),
        "AccessDeniedException" | "AccessDenied" | "NotAuthorized" => TableError::Denied(format!(
            "missing permission on the table: {told}; grant the action on the table and its indexes to the caller"
        )),
        "UnrecognizedClientException"
        | "InvalidClientTokenId"
        | "MissingAuthenticationToken"
        | "MissingAuthenticationTokenException" => TableError::Denied(format!(
            "the AWS credentials are not accepted: {told}; check the access key, and that it belongs to this region and endpoint"
        )),
        "ExpiredToken" | "ExpiredTokenException" | "TokenRefreshRequired" => {
            TableError::Denied(format!(
                "the AWS credentials have expired: {told}; log in again, or check what should renew the credentials"
            ))
        }
        "InvalidSignatureException"
        | "IncompleteSignatureException"
        | "IncompleteSignature"
        | "SignatureDoesNotMatch"
        | "RequestExpired" => TableError::Denied(format!(
            "the AWS credentials are not accepted: {told}; check the secret key and the clock of this machine"
        )),
        "InternalServerError"
        | "InternalFailure"
        | "InternalServerErrorException"
        | "ServiceUnavailable"
        | "ServiceUnavailableException" => TableError::Unknown(told),
        _ => match status {
            429 => TableError::NotApplied(told),
            401 | 403 => TableError::Denied(format!("missing permission on the table: {told}")),
            // The other side gave up waiting, or a proxy did.
            408 => TableError::Unknown(format!("status 408, {told}")),
            400..=499 => TableError::Rejected(told),
            status => TableError::Unknown(format!("status {status}, {told}")),
        },
    }
}

fn cancellation(reason: CancellationReason) -> Cancellation {
    match reason.code.as_deref() {
        None | Some("None") => Cancellation::Innocent,
        Some("ConditionalCheckFailed") => Cancellation::Condition(image(reason.item)),
        Some("TransactionConflict") => Cancellation::Conflict,
        Some("ProvisionedThroughputExceeded" | "ThrottlingError" | "RequestLimitExceeded") => {
            Cancellation::Throttled
        }
        Some(code) => Cancellation::Rejected(format!(
            "{code}: {}",
            reason.message.as_deref().unwrap_or("no message")
        )),
    }
}

/// Some engines answer "no item" with an empty one.
fn image(item: Option<Item>) -> Option<Item> {
    item.filter(|item| !item.is_empty())
}

fn find<'a, E: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a E> {
    let mut next = Some(error);
    for _ in 0..CAUSES_MAX {
        let error = next?;
        if let Some(found) = error.downcast_ref::<E>() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

/// The causes in a row, each told once. Only what errors say of themselves: no headers, no keys, no
/// bodies.
fn causes(error: &(dyn Error + 'static)) -> String {
    let mut out = String::new();
    let mut next = Some(error);
    for _ in 0..CAUSES_MAX {
        let Some(error) = next else { break };
        let told = shortened(&error.to_string());
        if !out.contains(&told) {
            if !out.is_empty() {
                out.push_str(": ");
            }
            out.push_str(&told);
        }
        next = error.source();
    }
    out
}

/// On one line, and at most [`CAUSE_CHARS_MAX`] long; what is cut off ends with a whole word.
fn shortened(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.chars().count() <= CAUSE_CHARS_MAX {
        return line;
    }
    let cut: String = line.chars().take(CAUSE_CHARS_MAX).collect();
    let words = cut.rsplit_once(' ').map_or(cut.as_str(), |(words, _)| words);
    format!("{words} …")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_one_line_and_end_with_a_whole_word() {
        assert_eq!(
            shortened("no providers:\n  Environment\n\tProfile"),
            "no providers: Environment Profile"
        );
        let long = "word ".repeat(100);
        let short = shortened(&long);
        assert!(
            short.ends_with("word …") && short.chars().count() <= CAUSE_CHARS_MAX + 2,
            "{short}"
        );
        assert_eq!(shortened(&"x".repeat(400)), format!("{} …", "x".repeat(CAUSE_CHARS_MAX)));
    }
}
