//! A stack of workers that load the table of another stack. The function is this very program,
//! as it is for the aggregator; `loadtest.yaml` is the template.

use std::collections::BTreeMap;

use crate::options::{Architecture, OptionError};

/// The template of the workers.
pub const TEMPLATE: &str = include_str!("loadtest.yaml");

/// The output that names the function.
pub const FUNCTION: &str = "WorkerFunctionName";

/// The parameter that says how long the function may run.
pub const TIMEOUT: &str = "LambdaTimeout";

/// What the name of the stack ends with, after that of the table.
const SUFFIX: &str = "-loadtest";

/// The longest name of a function.
const NAME_CHARS_MAX: usize = 64;

/// The stack that has the workers for a table.
#[must_use]
pub fn stack_of(table: &str) -> String {
    format!("{table}{SUFFIX}")
}

/// The table that a stack of workers is for, by the name of the stack.
#[must_use]
pub fn table_of(stack: &str) -> &str {
    stack.strip_suffix(SUFFIX).unwrap_or(stack)
}

/// What workers can be asked to be.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoadTestOptions {
    table: String,
    /// The processor.
    pub architecture: Architecture,
    /// Memory of a worker in MB, and with it its share of a processor; 1769 is a whole one.
    pub memory_mb: u32,
    /// A worker is stopped after so many minutes.
    pub timeout_min: u32,
    /// A role of yours for the workers; without, the stack makes one.
    pub role_arn: Option<String>,
    /// The permission boundary of the role that the stack makes: an ARN.
    pub permission_boundary: Option<String>,
}

impl LoadTestOptions {
    /// Workers that load this table, with the defaults of everything.
    #[must_use]
    pub fn new(table: impl Into<String>) -> LoadTestOptions {
        LoadTestOptions {
            table: table.into(),
            architecture: Architecture::X86_64,
            memory_mb: 1_769,
            timeout_min: 5,
            role_arn: None,
            permission_boundary: None,
        }
    }

    /// Looks for a wrong option before anything is sent.
    pub fn check(&self, stack: &str) -> Result<(), OptionError> {
        self.parameters(stack).map(drop)
    }

    /// The parameters of the template, but for the key of the code. A wrong option is named.
    pub fn parameters(&self, stack: &str) -> Result<BTreeMap<String, String>, OptionError> {
        for (field, value, from, to) in [
            ("lambda_memory", self.memory_mb, 128, 10_240),
            ("lambda_timeout", self.timeout_min, 1, 15),
        ] {
            if !(from..=to).contains(&value) {
                return Err(OptionError::new(field, &value, format!("use {from} to {to}")));
            }
        }
        if stack.len() > NAME_CHARS_MAX {
            let problem = format!(
                "the workers would be called {stack}, which has {} characters; Lambda takes {NAME_CHARS_MAX}",
                stack.len()
            );
            return Err(OptionError::new("name", &self.table, problem));
        }
        let arn = |field: &'static str, value: &Option<String>| match value {
            Some(arn) if !arn.starts_with("arn:") => {
                Err(OptionError::new(field, arn, "use an ARN, arn:…".to_owned()))
            }
            value => Ok(value.clone().unwrap_or_default()),
        };
        let parameters = [
            ("TableName", self.table.clone()),
            ("Architecture", self.architecture.to_string()),
            ("LambdaMemorySize", self.memory_mb.to_string()),
            (TIMEOUT, (self.timeout_min * 60).to_string()),
            ("RoleArn", arn("role_arn", &self.role_arn)?),
            ("PermissionBoundary", arn("permission_boundary", &self.permission_boundary)?),
        ];
        Ok(parameters.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    }
}
