//! Checking what a table is named by: stack, region, endpoint. Each error names the field, the
//! value and the fix.

use zae_limiter_store::{StoreError, StoreErrorKind};

/// The longest region there is has 14 characters.
const REGION_CHARS_MAX: usize = 32;

/// Labels of a host name, and so most endpoints, are shorter; this keeps errors readable.
const URL_CHARS_MAX: usize = 2048;

/// A table name may be longer, but the roles and functions of a deployed stack are named after the
/// stack.
const STACK_CHARS_MAX: usize = 55;

/// DynamoDB knows no shorter table name.
const STACK_CHARS_MIN: usize = 3;

/// A stack is an installation on AWS, named like its CloudFormation stack: a letter, then letters,
/// digits and dashes.
pub fn stack(name: &str) -> Result<(), StoreError> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let why = match name.chars().next() {
        None => "is empty; use letters, digits and -".to_owned(),
        Some(_) if name.len() > STACK_CHARS_MAX => {
            format!("is {} bytes long; use at most {STACK_CHARS_MAX}", name.len())
        }
        Some(first) if !first.is_ascii_alphabetic() => {
            format!("starts with '{}'; start with a letter", first.escape_debug())
        }
        Some(_) => match name.chars().find(|c| !is_part(*c)) {
            Some(found) => {
                format!("contains '{}'; use letters, digits and -", found.escape_debug())
            }
            None if name.len() < STACK_CHARS_MIN => {
                format!("is {} bytes long; use at least {STACK_CHARS_MIN}", name.len())
            }
            None => return Ok(()),
        },
    };
    Err(invalid("stack name", name, &why))
}

/// Lower-case letters, digits and dashes. The check does not look whether the region exists: local
/// engines take any.
pub(super) fn region(region: &str) -> Result<(), StoreError> {
    let well_formed = region.len() <= REGION_CHARS_MAX
        && region.starts_with(|c: char| c.is_ascii_lowercase())
        && region.ends_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        && region.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    if well_formed {
        Ok(())
    } else {
        Err(invalid(
            "region",
            region,
            "is no region; expected lower-case letters, digits and '-', such as us-east-1",
        ))
    }
}

/// An endpoint: `http://` or `https://`, a host, perhaps a port and a path.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    /// The host is this machine.
    pub(super) loopback: bool,
    /// `https`.
    pub(super) tls: bool,
}

pub(super) fn endpoint(url: &str) -> Result<Endpoint, StoreError> {
    let wrong = |why| Err(invalid("endpoint_url", url, why));
    let lower = url.to_ascii_lowercase();
    let (tls, rest) = match (lower.strip_prefix("http://"), lower.strip_prefix("https://")) {
        (Some(rest), _) => (false, rest),
        (_, Some(rest)) => (true, rest),
        (None, None) => {
            return wrong("has to begin with http:// or https://, such as http://localhost:8000");
        }
    };
    if rest.contains('@') {
        // The value is not repeated: what stands before the @ may be a secret.
        let message = "endpoint_url: contains '@'; credentials do not go into the URL, use the environment or a profile";
        return Err(StoreError::new(StoreErrorKind::Invalid, "connect", message));
    }
    if url.len() > URL_CHARS_MAX || !url.chars().all(|c| c.is_ascii_graphic()) {
        return wrong("is too long, or contains spaces or characters that have to be encoded");
    }
    if rest.contains(['?', '#']) {
        return wrong("has a query or a fragment; leave out everything from '?' or '#' on");
    }
    let authority = rest.split('/').next().unwrap_or_default();
    let (host, port) = match authority.strip_prefix('[') {
        Some(v6) => match v6.split_once(']') {
            Some((host, port)) => (host, port.strip_prefix(':')),
            None => {
                return wrong("has a '[' without ']'; an IPv6 host is written http://[::1]:8000");
            }
        },
        None => {
            authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port)))
        }
    };
    if host.is_empty() {
        return wrong("names no host; expected such as http://localhost:8000");
    }
    if port.is_some_and(|port| !port.parse::<u16>().is_ok_and(|port| port > 0)) {
        return wrong("has no valid port; expected a number from 1 to 65535 after the ':'");
    }
    let address: Option<std::net::IpAddr> = host.parse().ok();
    let loopback = host == "localhost"
        || host.ends_with(".localhost")
        || address.is_some_and(|address| address.is_loopback());
    Ok(Endpoint { loopback, tls })
}

fn invalid(field: &str, value: &str, why: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Invalid, "connect", format!("{field} {value:?} {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T: std::fmt::Debug>(result: Result<T, StoreError>, wanted: &str) {
        let error = result.expect_err("not accepted");
        assert_eq!(error.kind(), StoreErrorKind::Invalid);
        assert!(error.message().contains(wanted), "{wanted:?} is not in {:?}", error.message());
    }

    #[test]
    fn stacks() {
        assert!(stack("prod").is_ok());
        assert!(stack("A-1").is_ok());
        assert!(stack(&"a".repeat(55)).is_ok());
        for wrong in
            ["", "a", "ab", "1st", "my_stack", "my stack", "stäck", "stack\n", &"a".repeat(56)]
        {
            check(stack(wrong), "stack");
        }
        check(stack("my_app"), "stack name \"my_app\" contains '_'; use letters, digits and -");
        check(stack("my-app\n"), "stack name \"my-app\\n\" contains '\\n'");
        for byte in 0..=u8::MAX {
            let c = char::from(byte);
            let letter = c.is_ascii_alphabetic();
            assert_eq!(stack(&format!("{c}bc")).is_ok(), letter, "{c:?} first");
            for text in [format!("a{c}c"), format!("ab{c}")] {
                let is_part = letter || c.is_ascii_digit() || c == '-';
                assert_eq!(stack(&text).is_ok(), is_part, "{text:?}");
            }
        }
    }

    #[test]
    fn regions() {
        assert!(region("us-east-1").is_ok());
        assert!(region("eu-isoe-west-1").is_ok());
        assert!(region("local").is_ok());
        for wrong in
            ["", "US-EAST-1", "us_east_1", "us-east-1 ", "-us", "us-", "1us", &"a".repeat(33)]
        {
            check(region(wrong), "such as us-east-1");
        }
    }

    #[test]
    fn endpoints() {
        let local = Endpoint { loopback: true, tls: false };
        for url in [
            "http://localhost:8000",
            "http://127.0.0.1:1",
            "HTTP://LOCALHOST",
            "http://[::1]:8000/",
            "http://dynamo.localhost:80/x",
        ] {
            assert_eq!(endpoint(url).unwrap(), local, "{url}");
        }
        assert_eq!(
            endpoint("https://dynamodb.eu-west-1.amazonaws.com").unwrap(),
            Endpoint { loopback: false, tls: true }
        );
        assert_eq!(
            endpoint("http://10.0.0.1:8000").unwrap(),
            Endpoint { loopback: false, tls: false }
        );
        check(endpoint("localhost:8000"), "begin with http://");
        check(endpoint("ftp://localhost"), "begin with http://");
        check(endpoint("http://"), "names no host");
        check(endpoint("http://:8000"), "names no host");
        check(endpoint("http://localhost:port"), "no valid port");
        check(endpoint("http://localhost:0"), "no valid port");
        check(endpoint("http://localhost:99999"), "no valid port");
        check(endpoint("http://[::1:8000"), "without ']'");
        check(endpoint("http://local host"), "spaces");
        check(endpoint("http://localhost?x=1"), "query");
    }

    #[test]
    fn a_secret_in_the_endpoint_is_not_repeated() {
        let error = endpoint("http://user:hunter2@localhost").unwrap_err();
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
}
