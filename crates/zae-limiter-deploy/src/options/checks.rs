//! Checks that several options share. Each error names the option, the value and the fix.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use super::{OptionError, TAGS_MAX};
use crate::tags::is_reserved;

/// The longest part of a value that an error shows.
const SHOWN_CHARS_MAX: usize = 50;

/// The most characters of the key and of the value of a tag.
const TAG_CHARS_MAX: (usize, usize) = (128, 256);

/// A value as an error shows it.
pub(super) fn shown(value: &str) -> String {
    let cut: String = value.chars().take(SHOWN_CHARS_MAX).collect();
    let more = if value.chars().count() > SHOWN_CHARS_MAX { "..." } else { "" };
    format!("{:?}", format!("{cut}{more}"))
}

pub(super) fn bool_text(value: bool) -> String {
    if value { "true" } else { "false" }.to_owned()
}

pub(super) fn check_range(
    field: &'static str,
    value: u32,
    range: RangeInclusive<u32>,
    unit: &str,
) -> Result<(), OptionError> {
    if range.contains(&value) {
        return Ok(());
    }
    let problem = format!("use {} to {} {unit}", range.start(), range.end());
    Err(OptionError::new(field, &value, problem))
}

/// `arn:PARTITION:SERVICE:REGION:ACCOUNT:RESOURCE`. IAM has no regions, every other service has.
pub(super) fn check_arn(
    field: &'static str,
    value: &str,
    service: &str,
    example: &str,
) -> Result<(), OptionError> {
    let parts: Vec<&str> = value.splitn(6, ':').collect();
    let is_account =
        |account: &str| account.len() == 12 && account.bytes().all(|b| b.is_ascii_digit());
    let is_right = match parts[..] {
        ["arn", "aws" | "aws-cn" | "aws-us-gov", found, region, account, resource] => {
            let named = match service {
                "iam" => {
                    region.is_empty()
                        && resource.strip_prefix("role/").is_some_and(|name| !name.is_empty())
                }
                _ => !region.is_empty() && is_resource(resource),
            };
            found == service && is_account(account) && named
        }
        _ => false,
    };
    if is_right && !has_blank(value) {
        return Ok(());
    }
    Err(OptionError::new(field, value, format!("is no such ARN; use {example}")))
}

fn is_resource(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c))
}

fn has_blank(value: &str) -> bool {
    value.chars().any(|c| c.is_whitespace() || c.is_control())
}

/// The ARN of a policy, of the account or of AWS, or the name of one of the account.
pub(super) fn check_boundary(value: &str) -> Result<(), OptionError> {
    const FIELD: &str = "permission_boundary";
    let is_word = |c: char| c.is_ascii_alphanumeric() || "+=,.@_/-".contains(c);
    let is_right = if value.starts_with("arn:") {
        let parts: Vec<&str> = value.splitn(6, ':').collect();
        match parts[..] {
            [_, "aws" | "aws-cn" | "aws-us-gov", "iam", "", account, policy] => {
                let known = account == "aws"
                    || (account.len() == 12 && account.bytes().all(|b| b.is_ascii_digit()));
                known && policy.strip_prefix("policy/").is_some_and(|name| !name.is_empty())
            }
            _ => false,
        }
    } else {
        (1..=128).contains(&value.len()) && value.chars().all(is_word)
    };
    if is_right && !has_blank(value) {
        return Ok(());
    }
    let problem =
        "is neither the name of a policy nor its ARN; use NAME or arn:aws:iam::ACCOUNT:policy/NAME";
    Err(OptionError::new(FIELD, value, problem))
}

fn is_tag_char(c: char) -> bool {
    c.is_alphanumeric() || c == ' ' || "_.:/=+-@".contains(c)
}

pub(super) fn check_tags(tags: &BTreeMap<String, String>) -> Result<(), OptionError> {
    const FIELD: &str = "tags";
    if tags.len() > TAGS_MAX {
        let problem = format!("are too many; a stack has room for {TAGS_MAX} beside its own");
        return Err(OptionError::new(FIELD, &tags.len(), problem));
    }
    let (key_max, value_max) = TAG_CHARS_MAX;
    for (key, value) in tags {
        let problem = if key.is_empty() || key.chars().count() > key_max {
            format!("has a key of {} characters; use 1 to {key_max}", key.chars().count())
        } else if value.chars().count() > value_max {
            format!("has a value of {} characters; use at most {value_max}", value.chars().count())
        } else if key.to_ascii_lowercase().starts_with("aws:") {
            "begins with aws:, which belongs to AWS; use another key".to_owned()
        } else if !format!("{key}{value}").chars().all(is_tag_char) {
            "has characters that tags cannot have; use letters, digits, spaces and _.:/=+-@"
                .to_owned()
        } else if is_reserved(key) {
            "is a tag that the stack sets itself; use another key".to_owned()
        } else {
            continue;
        };
        return Err(OptionError::new(FIELD, &format!("{key}={value}"), problem));
    }
    Ok(())
}
