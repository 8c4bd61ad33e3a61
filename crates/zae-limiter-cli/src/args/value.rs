//! Values with a form of their own. A refusal says what is accepted; clap says for which flag.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use zae_limiter::domain::{DEFAULT_RESOURCE, TOKENS_MAX, parse_rfc3339, parse_tokens};
use zae_limiter::{LimitName, NameError, ResourceName, TimeMs};

/// `NAME=AMOUNT`: a limit and whole tokens. `NAME:AMOUNT` means the same: limits are written so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Amount {
    pub(crate) limit: LimitName,
    pub(crate) tokens: u64,
}

impl FromStr for Amount {
    type Err = String;

    fn from_str(text: &str) -> Result<Amount, String> {
        let (limit, tokens) =
            text.split_once(['=', ':']).ok_or("write NAME=AMOUNT, as in rpm=1")?;
        let limit = limit.parse().map_err(|error: NameError| error.to_string())?;
        match parse_tokens(tokens) {
            Some(tokens) if tokens <= TOKENS_MAX => Ok(Amount { limit, tokens }),
            _ => Err(format!(
                "the amount must be a whole number from 0 to {TOKENS_MAX}, as in rpm=1"
            )),
        }
    }
}

/// `KEY=VALUE`: free text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) key: String,
    pub(crate) value: String,
}

impl FromStr for Pair {
    type Err = String;

    fn from_str(text: &str) -> Result<Pair, String> {
        match text.split_once('=') {
            Some((key, value)) if !key.is_empty() => {
                Ok(Pair { key: key.into(), value: value.into() })
            }
            _ => Err("write KEY=VALUE, as in tier=gold".into()),
        }
    }
}

/// One resource, or `_default_` for all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ResourceOrAll(pub(crate) Option<ResourceName>);

impl FromStr for ResourceOrAll {
    type Err = NameError;

    fn from_str(text: &str) -> Result<ResourceOrAll, NameError> {
        if text == DEFAULT_RESOURCE {
            Ok(ResourceOrAll(None))
        } else {
            text.parse().map(|name| ResourceOrAll(Some(name)))
        }
    }
}

/// A time, or a whole day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    /// The instant, or the first one of the day.
    pub(crate) first: TimeMs,
    /// The instant, or the first one after the day.
    pub(crate) end: TimeMs,
}

/// `YYYY-MM-DD` or RFC 3339.
pub(crate) fn moment(text: &str) -> Result<Moment, String> {
    const DAY_MS: i64 = 86_400_000;
    let first = parse_rfc3339(text).map_err(|error| error.to_string())?;
    let end = if text.contains('T') { first } else { first.plus_ms(DAY_MS) };
    Ok(Moment { first, end })
}

/// Where limits live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoreUrl {
    /// `sqlite:PATH`
    Sqlite(PathBuf),
    /// `memory:`
    Memory,
    /// `dynamodb:STACK[?region=REGION&endpoint=URL]`
    Dynamo(DynamoPlace),
}

impl StoreUrl {
    /// A stack, of which no more is known.
    pub(crate) fn stack(stack: String) -> StoreUrl {
        StoreUrl::Dynamo(DynamoPlace { stack, ..DynamoPlace::default() })
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreUrl::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            StoreUrl::Memory => f.write_str("memory:"),
            StoreUrl::Dynamo(DynamoPlace { stack, region, endpoint_url, .. }) => {
                write!(f, "dynamodb:{stack}")?;
                let parts = [("region", region), ("endpoint", endpoint_url)]
                    .into_iter()
                    .filter_map(|(key, value)| Some((key, value.as_ref()?)));
                parts
                    .zip(["?", "&"])
                    .try_for_each(|((key, value), before)| write!(f, "{before}{key}={value}"))
            }
        }
    }
}

/// The most shards of a bucket: a split doubles them.
pub(crate) fn shards(text: &str) -> Result<u32, String> {
    let is_count = |shards: &u32| shards.is_power_of_two() && *shards <= 32;
    let shards = text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok());
    shards.flatten().filter(is_count).ok_or_else(|| "write 1, 2, 4, 8, 16 or 32".to_owned())
}

/// A DynamoDB table, as far as it was named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DynamoPlace {
    /// The name of the stack, which is that of the table.
    pub(crate) stack: String,
    /// The region; else that of the AWS profile.
    pub(crate) region: Option<String>,
    /// Another endpoint than that of AWS.
    pub(crate) endpoint_url: Option<String>,
    /// The most shards that this process gives a bucket, if a variable says it.
    pub(crate) shards_max: Option<u32>,
}

impl DynamoPlace {
    fn parse(text: &str) -> Result<DynamoPlace, String> {
        let (stack, query) = text.split_once('?').unwrap_or((text, ""));
        if stack.is_empty() || stack.contains('/') {
            return Err("the stack is missing; write dynamodb:STACK, as in dynamodb:my-app?region=us-east-1".into());
        }
        let mut place = DynamoPlace { stack: stack.to_owned(), ..DynamoPlace::default() };
        for part in query.split('&').filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let known = match key {
                "region" => &mut place.region,
                "endpoint" | "endpoint_url" => &mut place.endpoint_url,
                _ => {
                    return Err(format!(
                        "{key:?} is not known; after the stack write ?region=REGION and &endpoint=URL"
                    ));
                }
            };
            if value.is_empty() {
                return Err(format!(
                    "the value of {key} is missing; write {key}=VALUE, or leave it out"
                ));
            }
            if known.replace(value.to_owned()).is_some() {
                return Err(format!("{key} is given twice; give it once"));
            }
        }
        Ok(place)
    }
}

impl FromStr for StoreUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<StoreUrl, String> {
        match text.split_once(':') {
            Some(("memory", "")) | Some(("sqlite", ":memory:")) => Ok(StoreUrl::Memory),
            Some(("sqlite", "")) => Err("the path is missing; write sqlite:PATH, as in sqlite:limits.db".into()),
            Some(("sqlite", path)) if path.starts_with("//") => {
                Err("write the path right after the colon, as in sqlite:limits.db or sqlite:/var/lib/limits.db".into())
            }
            Some(("sqlite", path)) => Ok(StoreUrl::Sqlite(path.into())),
            Some(("dynamodb", rest)) => DynamoPlace::parse(rest).map(StoreUrl::Dynamo),
            _ => Err("use sqlite:PATH, dynamodb:STACK or memory:".into()),
        }
    }
}

/// One of the words that the library has for the values of a type.
pub(crate) fn word<T>(
    words: impl IntoIterator<Item = &'static str>,
) -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err: std::error::Error + Send + Sync + 'static> + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(words).try_map(|word| word.parse())
}

/// A duration: a whole number and `ms`, `s`, `m` or `h`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let (count, unit) = text.split_at(text.bytes().take_while(u8::is_ascii_digit).count());
    let unit_ms = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => {
            return Err("write a whole number and ms, s, m or h, as in 500ms, 30s, 2m or 1h".into());
        }
    };
    let ms = whole_number(count).and_then(|count: u64| count.checked_mul(unit_ms));
    ms.map(Duration::from_millis)
        .ok_or_else(|| "write a whole number before the unit, as in 500ms, 30s, 2m or 1h".into())
}

/// Why something is changed.
pub(crate) fn reason(text: &str) -> Result<String, String> {
    const BYTES_MAX: usize = 1024;
    match text.trim() {
        "" => Err("write why, or leave it out".into()),
        text if text.len() > BYTES_MAX => Err(format!("write at most {BYTES_MAX} bytes")),
        text => Ok(text.to_owned()),
    }
}

/// A whole number in bounds that the words of the refusal name.
pub(crate) fn count<const MAX: u32>(text: &str) -> Result<u32, String> {
    within(text, 1..=MAX)
}

/// A port of this machine.
#[cfg(feature = "dynamodb")]
pub(crate) fn port<const MIN: u16>(text: &str) -> Result<u16, String> {
    within(text, MIN..=u16::MAX)
}

fn within<T: TryFrom<u64> + PartialOrd + fmt::Display>(
    text: &str,
    bounds: RangeInclusive<T>,
) -> Result<T, String> {
    let number = whole_number(text).and_then(|number| T::try_from(number).ok());
    number
        .filter(|number| bounds.contains(number))
        .ok_or_else(|| format!("write a whole number from {} to {}", bounds.start(), bounds.end()))
}

/// The version of an entity.
pub(crate) fn version(text: &str) -> Result<u64, String> {
    whole_number(text).ok_or_else(|| "write a whole number, as `entity show` does".into())
}

/// Digits only: the standard parser would also take a leading `+`.
fn whole_number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts() {
        let amount = |tokens| Ok(Amount { limit: "rpm".parse().unwrap(), tokens });
        assert_eq!("rpm=1".parse(), amount(1));
        assert_eq!("rpm=0".parse(), amount(0));
        assert_eq!("rpm=1000000000000000".parse(), amount(TOKENS_MAX));
        assert_eq!(
            ("rpm:1".parse(), "rpm=1k".parse(), "rpm=1_000".parse()),
            (amount(1), amount(1_000), amount(1_000))
        );
        for text in [
            "rpm",
            "rpm=",
            "rpm=-1",
            "rpm=+1",
            "rpm=1.5",
            "rpm=x",
            "rpm=1000000000000001",
            "rpm=99999999999999999999",
            "rpm=1=2",
        ] {
            let error = text.parse::<Amount>().unwrap_err();
            assert!(error.contains("as in rpm=1"), "{text}: {error}");
        }
        let error = "a#b=1".parse::<Amount>().unwrap_err();
        assert!(error.contains("limit name \"a#b\""), "{error}");
    }

    #[test]
    fn pairs() {
        let pair = |key: &str, value: &str| Ok(Pair { key: key.into(), value: value.into() });
        assert_eq!("tier=gold".parse(), pair("tier", "gold"));
        assert_eq!("empty=".parse(), pair("empty", ""));
        assert_eq!("query=a=b".parse(), pair("query", "a=b"));
        assert!("tier".parse::<Pair>().is_err() && "=gold".parse::<Pair>().is_err());
    }

    #[test]
    fn stores() {
        let file = |path: &str| Ok(StoreUrl::Sqlite(path.into()));
        assert_eq!("memory:".parse(), Ok(StoreUrl::Memory));
        assert_eq!("sqlite::memory:".parse(), Ok(StoreUrl::Memory));
        assert_eq!("sqlite:limits.db".parse(), file("limits.db"));
        assert_eq!("sqlite:/var/lib/limits.db".parse(), file("/var/lib/limits.db"));
        assert_eq!("sqlite:a:b".parse(), file("a:b"));
        for text in [
            "",
            "limits.db",
            "memory",
            "memory:x",
            "postgres:x",
            "SQLITE:x",
            "sqlite:",
            "sqlite://limits.db",
        ] {
            assert!(text.parse::<StoreUrl>().is_err(), "{text}");
        }
    }

    #[test]
    fn stacks() {
        let place = |text: &str| match text.parse() {
            Ok(StoreUrl::Dynamo(DynamoPlace { stack, region, endpoint_url, .. })) => {
                Ok((stack, region.unwrap_or_default(), endpoint_url.unwrap_or_default()))
            }
            Ok(other) => panic!("{text}: {other:?}"),
            Err(error) => Err(error),
        };
        let named =
            |region: &str, url: &str| Ok(("app".to_owned(), region.to_owned(), url.to_owned()));
        assert_eq!(place("dynamodb:app"), named("", ""));
        assert_eq!(place("dynamodb:app?"), named("", ""));
        assert_eq!(place("dynamodb:app?region=us-east-1"), named("us-east-1", ""));
        for url in ["endpoint", "endpoint_url"]
            .map(|key| format!("dynamodb:app?{key}=http://127.0.0.1:8000&region=eu-west-1"))
        {
            assert_eq!(place(&url), named("eu-west-1", "http://127.0.0.1:8000"), "{url}");
        }
        for (text, wrong) in [
            ("dynamodb:", "the stack is missing"),
            ("dynamodb://app", "the stack is missing"),
            ("dynamodb:?region=us-east-1", "the stack is missing"),
            ("dynamodb:app?regoin=us-east-1", "\"regoin\" is not known"),
            ("dynamodb:app?region", "the value of region is missing"),
            ("dynamodb:app?endpoint=", "the value of endpoint is missing"),
            ("dynamodb:app?region=a&region=b", "region is given twice"),
        ] {
            let error = place(text).unwrap_err();
            assert!(error.starts_with(wrong), "{text}: {error}");
        }
    }

    #[test]
    fn resources_or_all_of_them() {
        assert_eq!("_default_".parse(), Ok(ResourceOrAll(None)));
        assert_eq!("gpt-4".parse(), Ok(ResourceOrAll(Some("gpt-4".parse().unwrap()))));
        assert!("a#b".parse::<ResourceOrAll>().is_err());
    }

    #[test]
    fn a_day_is_counted_whole_and_a_time_exactly() {
        let at = |text| parse_rfc3339(text).unwrap();
        assert_eq!(
            moment("2026-01-31"),
            Ok(Moment { first: at("2026-01-31T00:00:00Z"), end: at("2026-02-01T00:00:00Z") })
        );
        let noon = at("2026-01-31T12:00:00Z");
        assert_eq!(moment("2026-01-31T13:00:00+01:00"), Ok(Moment { first: noon, end: noon }));
        for text in ["", "yesterday", "2026-02-30", "2026-01-31 12:00:00Z", "12:00"] {
            assert!(moment(text).unwrap_err().contains("write"), "{text}");
        }
    }

    #[test]
    fn counts_and_versions() {
        assert_eq!((count::<1000>("1"), count::<1000>("1000")), (Ok(1), Ok(1000)));
        for text in ["", "0", "1001", "-1", "+1", "1.5", "many", "99999999999999999999"] {
            assert_eq!(
                count::<1000>(text),
                Err("write a whole number from 1 to 1000".into()),
                "{text}"
            );
        }
        assert_eq!(version("7"), Ok(7));
        assert!(version("-7").is_err() && version("v7").is_err());
    }

    #[test]
    #[cfg(feature = "dynamodb")]
    fn ports() {
        assert_eq!((port::<0>("0"), port::<1>("65535")), (Ok(0), Ok(u16::MAX)));
        assert_eq!(port::<1>("0"), Err("write a whole number from 1 to 65535".into()));
        for text in ["", "65536", "-1", "+1", "http"] {
            assert!(port::<0>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations() {
        for (text, ms) in [
            ("500ms", 500),
            ("30s", 30_000),
            ("2m", 120_000),
            ("1h", 3_600_000),
            ("0s", 0),
            ("007s", 7_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in [
            "",
            "5",
            "s",
            "-1s",
            "+1s",
            "1.5s",
            "1 s",
            "1S",
            "1min",
            "1d",
            "99999999999999999999s",
            "9999999999999999h",
        ] {
            let error = duration(text).unwrap_err();
            assert!(error.contains("500ms, 30s, 2m or 1h"), "{text}: {error}");
        }
    }
}
