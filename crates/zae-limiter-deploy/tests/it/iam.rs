//! A simulator of IAM, as far as our policies go: effects, actions, resources, conditions on texts,
//! sets and missing keys, variables. What it does not know is a failure, not a guess.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::cfn::object;

/// One call as IAM judges it.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) action: String,
    pub(crate) resource: String,
    /// The context: keys of conditions and their values. A key that the call does not have is
    /// missing here.
    pub(crate) context: BTreeMap<String, Vec<String>>,
}

impl Call {
    pub(crate) fn new(action: &str, resource: &str) -> Call {
        Call { action: action.to_owned(), resource: resource.to_owned(), context: BTreeMap::new() }
    }

    pub(crate) fn with<V: Into<String>>(
        mut self,
        key: &str,
        values: impl IntoIterator<Item = V>,
    ) -> Call {
        let values = values.into_iter().map(Into::into).collect();
        self.context.insert(key.to_lowercase(), values);
        self
    }
}

/// Whether policies together allow a call: one statement allows it, and none denies it.
pub(crate) fn allows(policies: &[Value], call: &Call) -> bool {
    let statements = || policies.iter().flat_map(|policy| listed(&policy["Statement"]));
    let matching = |effect: &str| {
        statements().any(|statement| statement["Effect"] == effect && matches(statement, call))
    };
    matching("Allow") && !matching("Deny")
}

fn listed(value: &Value) -> &[Value] {
    match value {
        Value::Array(list) => list,
        one => std::slice::from_ref(one),
    }
}

fn matches(statement: &Value, call: &Call) -> bool {
    for part in object(statement).keys() {
        let known = ["Sid", "Effect", "Action", "Resource", "Condition"];
        assert!(known.contains(&part.as_str()), "{part} of a statement is not simulated");
    }
    let some = |part: &str, wanted: &str, blind: bool| {
        listed(&statement[part]).iter().any(|pattern| {
            let pattern = pattern.as_str().expect("a text");
            match blind {
                true => is_like(&pattern.to_lowercase(), &wanted.to_lowercase()),
                false => is_like(pattern, wanted),
            }
        })
    };
    let conditions = statement.get("Condition").map(object);
    some("Action", &call.action, true)
        && some("Resource", &call.resource, false)
        && conditions.is_none_or(|all| {
            all.iter().all(|(operator, keys)| {
                object(keys).iter().all(|(key, values)| holds(operator, key, values, call))
            })
        })
}

/// One operator on one key. Several values of a policy are alternatives; of a negated operator, all
/// of them must differ.
fn holds(operator: &str, key: &str, values: &Value, call: &Call) -> bool {
    let found = call.context.get(&key.to_lowercase());
    let wanted = listed(values);
    if operator == "Null" {
        return wanted.iter().any(|value| {
            let should_be_missing = match value {
                Value::Bool(missing) => *missing,
                text => text.as_str().expect("a text").parse().expect("true or false"),
            };
            should_be_missing == found.is_none_or(Vec::is_empty)
        });
    }
    let (set, operator) = match operator.split_once(':') {
        Some((set, operator)) => (Some(set), operator),
        None => (None, operator),
    };
    let negated = operator.starts_with("StringNot");
    let is_one = |value: &String| {
        let same = wanted.iter().any(|pattern| {
            let pattern = pattern.as_str().expect("a text");
            match operator {
                "StringEquals" | "StringNotEquals" => {
                    literal(pattern, call).is_some_and(|text| text == *value)
                }
                "StringLike" | "StringNotLike" => {
                    like(pattern, call).is_some_and(|pattern| pattern.matches(value))
                }
                other => panic!("the operator {other} is not simulated"),
            }
        });
        same != negated
    };
    match (set, found.filter(|values| !values.is_empty())) {
        // Every value of the request; a key that is missing has none.
        (Some("ForAllValues"), found) => found.is_none_or(|values| values.iter().all(is_one)),
        (Some("ForAnyValue"), found) => found.is_some_and(|values| values.iter().any(is_one)),
        (None, Some(values)) => {
            assert_eq!(values.len(), 1, "{key} has several values and needs a set operator");
            is_one(&values[0])
        }
        // A missing key matches nothing; a negated operator is then true.
        (None, None) => negated,
        (Some(other), _) => panic!("the set operator {other} is not simulated"),
    }
}

/// A pattern whose variables are filled in: what they stand for is taken letter by letter.
struct Pattern(Vec<Piece>);

#[derive(Clone, Copy, PartialEq)]
enum Piece {
    Any,
    One,
    Letter(char),
}

impl Pattern {
    fn matches(&self, text: &str) -> bool {
        fn rest(pieces: &[Piece], text: &[char]) -> bool {
            match pieces.split_first() {
                None => text.is_empty(),
                Some((Piece::Any, after)) => (0..=text.len()).any(|cut| rest(after, &text[cut..])),
                Some((Piece::One, after)) => !text.is_empty() && rest(after, &text[1..]),
                Some((Piece::Letter(letter), after)) => {
                    text.first() == Some(letter) && rest(after, &text[1..])
                }
            }
        }
        rest(&self.0, &text.chars().collect::<Vec<_>>())
    }
}

fn is_like(pattern: &str, text: &str) -> bool {
    Pattern(pattern.chars().map(piece).collect()).matches(text)
}

fn piece(letter: char) -> Piece {
    match letter {
        '*' => Piece::Any,
        '?' => Piece::One,
        other => Piece::Letter(other),
    }
}

/// `None` when a variable has no value: then nothing matches.
fn like(pattern: &str, call: &Call) -> Option<Pattern> {
    let mut pieces = Vec::new();
    let mut rest = pattern;
    while let Some((before, after)) = rest.split_once("${") {
        let (name, behind) = after.split_once('}').expect("a closing brace");
        pieces.extend(before.chars().map(piece));
        let value = match name {
            "*" | "?" | "$" => name.to_owned(),
            _ => call.context.get(&name.to_lowercase())?.first()?.clone(),
        };
        pieces.extend(value.chars().map(Piece::Letter));
        rest = behind;
    }
    pieces.extend(rest.chars().map(piece));
    Some(Pattern(pieces))
}

fn literal(pattern: &str, call: &Call) -> Option<String> {
    let mut made = String::new();
    let mut rest = pattern;
    while let Some((before, after)) = rest.split_once("${") {
        let (name, behind) = after.split_once('}').expect("a closing brace");
        made.push_str(before);
        made.push_str(call.context.get(&name.to_lowercase())?.first()?);
        rest = behind;
    }
    Some(made + rest)
}
