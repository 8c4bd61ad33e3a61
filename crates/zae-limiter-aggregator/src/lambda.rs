//! The shell for AWS Lambda.

/// Why the function cannot start.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct LambdaError(String);

/// Runs the function until Lambda ends it. The settings come from the environment
/// ([`Settings::from_variables`](crate::Settings::from_variables)).
pub async fn run_lambda() -> Result<(), LambdaError> {
    Err(LambdaError("not built yet".to_owned()))
}
