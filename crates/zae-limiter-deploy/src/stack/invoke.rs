//! Running a function once.

use std::time::Duration;

use aws_sdk_lambda::config::Config;
use aws_sdk_lambda::config::timeout::TimeoutConfig;
use aws_sdk_lambda::primitives::Blob;

use super::Cloud;
use crate::error::DeployError;

impl Cloud {
    /// Runs a function once, for as long as `time` at most; its answer.
    pub async fn invoke(
        &self,
        function: &str,
        payload: Vec<u8>,
        time: Duration,
    ) -> Result<Vec<u8>, DeployError> {
        let timeouts = TimeoutConfig::builder()
            .operation_timeout(time)
            .operation_attempt_timeout(time)
            .read_timeout(time)
            .build();
        let change = Config::builder().timeout_config(timeouts);
        let request = self.lambda.invoke().function_name(function);
        let payload = Blob::new(payload);
        let answer = request.payload(payload).customize().config_override(change).send().await;
        let answer = answer.map_err(|error| self.failed("Invoke", error))?;
        let body = answer.payload.map(Blob::into_inner);
        let body = body.unwrap_or_default();
        let Some(kind) = answer.function_error else { return Ok(body) };
        let said: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
        let message = match said.get("errorMessage").and_then(|message| message.as_str()) {
            Some(message) => message.to_owned(),
            None => format!("the function failed ({kind})"),
        };
        Err(DeployError::Aws { operation: "Invoke", code: Some(kind), message })
    }
}
