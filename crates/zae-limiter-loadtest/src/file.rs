//! Scenarios of TOML files. Every value knows where it stands, so that a mistake is told with its
//! line.

use std::ops::Range;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};
use zae_limiter::domain::check_limits;
use zae_limiter::{Limit, ResourceName};

use crate::builtin::Plan;
use crate::scenario::{Pacing, ScenarioError};

/// The longest name of a scenario.
const NAME_BYTES_MAX: usize = 100;

const FIELDS: [&str; 9] = [
    "name",
    "every_ms",
    "resource",
    "limits",
    "take",
    "cost_pct",
    "hold_ms",
    "cascade",
    "users_per_entity",
];

type Found<'a> = &'a Spanned<DeValue<'a>>;

/// The scenario of a file; `stem` is its name unless the file says another.
pub fn parse(text: &str, stem: &str) -> Result<Plan, ScenarioError> {
    let file = DeTable::parse(text).map_err(|error| no_toml(text, &error))?;
    Reader { text, table: file.get_ref() }.plan(stem)
}

struct Reader<'a> {
    text: &'a str,
    table: &'a DeTable<'a>,
}

impl<'a> Reader<'a> {
    fn plan(&self, stem: &str) -> Result<Plan, ScenarioError> {
        for key in self.table.keys() {
            if !FIELDS.contains(&key.get_ref().as_ref()) {
                let fix = format!("is no field here; use one of {}", FIELDS.join(", "));
                return Err(at(self.text, key.span(), &format!("{}: {fix}", key.get_ref())));
            }
        }
        let mut plan = Plan::new(stem);
        if let Some(found) = self.found("name") {
            self.text_of("name", found)?.clone_into(&mut plan.name);
        }
        let name = plan.name.as_str();
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
            let fix = "write a word of 1 to 100 characters";
            return Err(match self.found("name") {
                Some(found) => self.wrong("name", found, fix),
                None => ScenarioError(format!("name: {name:?}: {fix}")),
            });
        }
        plan.pacing = match self.found("every_ms") {
            None => Pacing::ClosedLoop,
            Some(found) => match whole(found) {
                Some(ms @ 1..) => Pacing::Every(Duration::from_millis(ms)),
                _ => {
                    let fix = "write 1 or more, a whole number; without it: a closed loop";
                    return Err(self.wrong("every_ms", found, fix));
                }
            },
        };
        if let Some(found) = self.found("resource") {
            let resource = self.text_of("resource", found)?;
            if let Err(error) = resource.parse::<ResourceName>() {
                return Err(self.wrong("resource", found, &error.to_string()));
            }
            resource.clone_into(&mut plan.resource);
        }
        plan.limits = self.limits()?;
        plan.take = self.take(&plan.limits)?;
        plan.cost_pct = self.span("cost_pct")?;
        if let Some((from, to)) = self.span("hold_ms")? {
            plan.hold = (Duration::from_millis(from), Duration::from_millis(to));
        }
        if let Some(found) = self.found("cascade") {
            let cascade = found.get_ref().as_bool();
            plan.cascade =
                cascade.ok_or_else(|| self.wrong("cascade", found, "write true or false"))?;
        }
        if let Some(found) = self.found("users_per_entity") {
            let users = whole(found).and_then(|users| u32::try_from(users).ok());
            plan.users_per_entity = users.filter(|users| *users > 0).ok_or_else(|| {
                self.wrong("users_per_entity", found, "write 1 or more, a whole number")
            })?;
        }
        Ok(plan)
    }

    fn found(&self, field: &str) -> Option<Found<'a>> {
        self.table.iter().find(|(key, _)| key.get_ref() == field).map(|(_, found)| found)
    }

    /// A field that every file needs.
    fn needed(&self, field: &str, fix: &str) -> Result<Found<'a>, ScenarioError> {
        self.found(field).ok_or_else(|| ScenarioError(format!("{field}: is missing; {fix}")))
    }

    fn limits(&self) -> Result<Vec<Limit>, ScenarioError> {
        let fix = "write a list of texts, as in [\"rpm:100/min\"]";
        let found = self.needed("limits", fix)?;
        let list = found.get_ref().as_array();
        let list = list.ok_or_else(|| self.wrong("limits", found, fix))?;
        let limit = |one: Found<'a>| -> Result<Limit, ScenarioError> {
            let Some(text) = one.get_ref().as_str() else {
                return Err(self.wrong("limits", one, fix));
            };
            text.parse()
                .map_err(|error| at(self.text, one.span(), &format!("limits: {text}: {error}")))
        };
        let limits: Vec<Limit> = list.iter().map(limit).collect::<Result<_, _>>()?;
        match check_limits(&limits) {
            Ok(()) => Ok(limits),
            Err(error) => Err(self.wrong("limits", found, &error.to_string())),
        }
    }

    fn take(&self, limits: &[Limit]) -> Result<Vec<(String, u64)>, ScenarioError> {
        let fix = "name at least one limit, as in { rpm = 1 }";
        let found = self.needed("take", fix)?;
        let table = found.get_ref().as_table().filter(|table| !table.is_empty());
        let table = table.ok_or_else(|| self.wrong("take", found, fix))?;
        let mut take = Vec::new();
        for (name, tokens) in table {
            let name = name.get_ref().as_ref();
            let wrong = |fix: &str| at(self.text, tokens.span(), &format!("take: {name}: {fix}"));
            let Some(limit) = limits.iter().find(|limit| limit.name() == name) else {
                return Err(wrong("no line of `limits` has this name"));
            };
            let value = whole(tokens).ok_or_else(|| wrong("write a whole number of tokens"))?;
            let most = limit.capacity();
            if value > most {
                return Err(wrong(&format!(
                    "{value} is more than its limit ever holds, so every call would be refused; \
                     take at most {most}, or raise the limit"
                )));
            }
            take.push((name.to_owned(), value));
        }
        if take.iter().all(|(_, value)| *value == 0) {
            return Err(self.wrong(
                "take",
                found,
                "every call would take nothing; write 1 or more",
            ));
        }
        Ok(take)
    }

    fn span(&self, field: &str) -> Result<Option<(u64, u64)>, ScenarioError> {
        let Some(found) = self.found(field) else { return Ok(None) };
        let pair = found.get_ref().as_array().and_then(|list| match list.iter().as_slice() {
            [from, to] => Some((whole(from)?, whole(to)?)),
            _ => None,
        });
        match pair {
            Some((from, to)) if from > to => {
                Err(self.wrong(field, found, "write the smaller one first"))
            }
            Some(pair) => Ok(Some(pair)),
            None => Err(self.wrong(field, found, "write two whole numbers, as in [20, 120]")),
        }
    }

    fn text_of(&self, field: &str, found: Found<'a>) -> Result<&'a str, ScenarioError> {
        found.get_ref().as_str().ok_or_else(|| self.wrong(field, found, "put the text in quotes"))
    }

    /// A value that does not do, as it stands in the file, and what to write.
    fn wrong(&self, field: &str, found: Found<'_>, fix: &str) -> ScenarioError {
        let value = cut(self.text.get(found.span()).unwrap_or_default());
        at(self.text, found.span(), &format!("{field}: {value}: {fix}"))
    }
}

/// A whole number, zero or more.
fn whole(found: Found<'_>) -> Option<u64> {
    let number = found.get_ref().as_integer()?;
    u64::from_str_radix(number.as_str(), number.radix()).ok()
}

fn at(text: &str, span: Range<usize>, message: &str) -> ScenarioError {
    let line = text.get(..span.start).unwrap_or(text).matches('\n').count() + 1;
    ScenarioError(format!("line {line}: {message}"))
}

/// The first line of a value, cut.
fn cut(value: &str) -> String {
    const CHARS_MAX: usize = 50;
    value.lines().next().unwrap_or_default().chars().take(CHARS_MAX).collect()
}

/// A file that is no TOML, in our words: what its reader says is for those who read its sources.
fn no_toml(text: &str, error: &toml::de::Error) -> ScenarioError {
    let span = error.span().unwrap_or(0..0);
    let before = text.get(..span.start).unwrap_or(text);
    let found = text.lines().nth(before.matches('\n').count()).unwrap_or_default();
    let found = cut(found.trim());
    if error.message().contains("duplicate key") {
        let field = cut(text.get(span.clone()).unwrap_or_default());
        return at(text, span, &format!("{field}: is given twice; keep one of them"));
    }
    let fix = "write a line as FIELD = VALUE, texts in double quotes, lists as [1, 2], and close \
               each quote and bracket";
    at(text, span, &format!("{found}: this cannot be read as TOML; {fix}"))
}
