//! The CloudFormation template. The text is the YAML file beside this one; nothing is generated.

/// The template, as `zae-limiter cfn-template` prints it.
pub const TEMPLATE: &str = include_str!("template.yaml");

/// The largest template that CloudFormation takes with a request, in bytes. A larger one would have
/// to be in a bucket first.
pub const TEMPLATE_BYTES_MAX: usize = 51_200;
