//! A YAML document as a tree whose every node knows its line. The reader of manifests walks the
//! tree itself, so that it can name all mistakes at once, each with its line.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Budget, Error, Spanned};

/// The largest file that is read, in bytes.
pub(crate) const BYTES_MAX: usize = 64 * 1024 * 1024;

/// Parts of a document that are read at most; a limit of a level is about ten.
const EVENTS_MAX: usize = 20_000_000;

/// So much of a line or a value is quoted.
const CHARS_MAX: usize = 50;

/// A value and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node {
    pub(crate) line: u64,
    pub(crate) value: Value,
}

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Null,
    Bool(bool),
    Whole(i128),
    Real(f64),
    Text(String),
    List(Vec<Node>),
    /// In the order of the file; no key twice.
    Map(Vec<(Key, Node)>),
}

/// The key of an entry and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Key {
    pub(crate) line: u64,
    pub(crate) text: String,
}

/// Reads one document. The error is a line, if there is one, and what is wrong there.
pub(crate) fn parse(text: &str) -> Result<Node, (Option<u64>, String)> {
    if text.len() > BYTES_MAX {
        let message = format!("the file has {} bytes; at most {BYTES_MAX} are read", text.len());
        return Err((None, message));
    }
    let mut budget = Budget::default();
    (budget.max_events, budget.max_nodes) = (EVENTS_MAX, EVENTS_MAX);
    let options = serde_saphyr::options! {
        budget: Some(budget),
        with_snippet: false,
    };
    let parsed: Result<Spanned<Value>, _> = serde_saphyr::from_str_with_options(text, options);
    parsed.map(Node::from).map_err(|error| {
        let line = error.location().map(|place| place.line()).filter(|line| *line > 0);
        let found = line.and_then(|line| text.lines().nth(usize::try_from(line).ok()? - 1));
        let found: String = found.unwrap_or_default().trim().chars().take(CHARS_MAX).collect();
        (line, in_words(&error, &found))
    })
}

/// Why a document cannot be read, and what to do: in our words, because the reader's are for those
/// who program with it.
fn in_words(error: &Error, found: &str) -> String {
    let why = match error.without_snippet() {
        Error::DuplicateMappingKey { key, .. } => {
            let key = key.as_deref().unwrap_or(found);
            return format!("{key}: is given twice; keep one of them");
        }
        Error::MultipleDocuments { .. } => {
            "a second document begins; a file has one: remove the line with --- or ... above, or \
             make two files"
                .to_owned()
        }
        Error::UnknownAnchor { .. } => {
            let name = found.split_once('*').map_or("", |(_, rest)| rest);
            let name = name.split([' ', ',', ']', '}']).next().unwrap_or_default();
            format!(
                "no value above is marked &{name}; write the value out, or put a text that begins \
                 with * in quotes"
            )
        }
        Error::NullIntoString { .. } | Error::Unexpected { .. } => {
            "a key that is no text; write a word, or put it in quotes".to_owned()
        }
        Error::RecursiveReferencesRequireWeakTypes { .. } => {
            "a value that contains itself; write it out".to_owned()
        }
        Error::NonFiniteFloat { .. } => {
            "no number that can be counted; write a whole number".to_owned()
        }
        Error::MergeValueNotMapOrSeqOfMaps { .. } | Error::MergeKeyNotAllowed { .. } => {
            "`<<` needs a mapping; write its entries out".to_owned()
        }
        Error::InvalidScalar { .. }
        | Error::UnsupportedTag { .. }
        | Error::InvalidBinaryBase64 { .. }
        | Error::BinaryNotUtf8 { .. }
        | Error::TaggedScalarCannotDeserializeIntoString { .. } => {
            "a tag that does not fit its value; leave the tag (`!...`) out".to_owned()
        }
        Error::Budget { .. }
        | Error::AliasReplayCounterOverflow { .. }
        | Error::AliasReplayLimitExceeded { .. }
        | Error::AliasExpansionLimitExceeded { .. }
        | Error::AliasReplayStackDepthExceeded { .. } => {
            "the file is too large, or repeats itself too often by `*`; write values out, or \
             divide it into namespaces"
                .to_owned()
        }
        Error::AliasError { error, .. } => return in_words(error, found),
        other => of_syntax(&other.to_string()).to_owned(),
    };
    if found.is_empty() { why } else { format!("{found}: {why}") }
}

/// The same for what is no YAML at all: what the reader says is put into classes.
fn of_syntax(said: &str) -> &'static str {
    const CLASSES: [(&[&str], &str); 9] = [
        (&["found a tab"], "a tab stands here or in the next line; indent with spaces"),
        (&["unclosed bracket"], "a bracket is opened and not closed; close it"),
        (
            &["misplaced bracket"],
            "a bracket is closed that is not open; open it, or remove this one",
        ),
        (
            &["multiline quoted scalar", "quoted scalar, found unexpected"],
            "a text in quotes is not closed before this line; close it",
        ),
        (
            &["unknown escape"],
            "a backslash that means nothing here; write two, or use single quotes",
        ),
        (
            &["flow", "illegal placement of ':'", "trailing content"],
            "between brackets, write a comma between two entries, and close what is open",
        ),
        (
            &["mapping values are not allowed"],
            "a second `: ` in the line, or a line too far to the right; put a text with `: ` in \
             quotes, or indent the line as its neighbours",
        ),
        (
            &["expected key", "simple key", "block collection"],
            "the line does not fit those around it; write `key: value`, as far to the right as its \
             neighbours",
        ),
        (&["unexpected character"], "a text cannot begin with this sign; put it in quotes"),
    ];
    if said.contains("recursion limit") {
        return "values are nested too deeply; a file of limits needs seven levels";
    }
    let found = CLASSES.iter().find(|(words, _)| words.iter().any(|word| said.contains(word)));
    found.map_or("this cannot be read as YAML; check indentation, quotes and brackets", |it| it.1)
}

impl From<Spanned<Value>> for Node {
    fn from(spanned: Spanned<Value>) -> Node {
        Node { line: spanned.referenced.line(), value: spanned.value }
    }
}

impl Value {
    /// The value as a message quotes it, cut.
    pub(crate) fn shown(&self) -> String {
        match self {
            Value::Null => "null".to_owned(),
            Value::Bool(flag) => flag.to_string(),
            Value::Whole(number) => number.to_string(),
            Value::Real(number) => number.to_string(),
            Value::Text(text) => {
                let cut: String = text.chars().take(CHARS_MAX).collect();
                format!("{cut:?}")
            }
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "a mapping".to_owned(),
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        Value::deserialize(deserializer)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Value, E> {
        Ok(Value::Bool(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Whole(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(Value::Whole(number.into()))
    }

    fn visit_i128<E>(self, number: i128) -> Result<Value, E> {
        Ok(Value::Whole(number))
    }

    fn visit_u128<E>(self, number: u128) -> Result<Value, E> {
        Ok(Value::Whole(i128::try_from(number).unwrap_or(i128::MAX)))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(Value::Real(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(Value::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut found = Vec::new();
        while let Some(item) = list.next_element::<Spanned<Value>>()? {
            found.push(item.into());
        }
        Ok(Value::List(found))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut found = Vec::new();
        while let Some(key) = map.next_key::<Spanned<String>>()? {
            let value = map.next_value::<Spanned<Value>>()?;
            let key = Key { line: key.referenced.line(), text: key.value };
            found.push((key, value.into()));
        }
        Ok(Value::Map(found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(node: &Node) -> &[(Key, Node)] {
        match &node.value {
            Value::Map(entries) => entries,
            other => panic!("expected a mapping, found {other:?}"),
        }
    }

    #[test]
    fn every_node_knows_its_line() {
        let node = parse("a: 1\nb:\n  c: [x, '2', 2.5, ~, yes]\n  007: {d: true}\n").unwrap();
        let outer = map(&node);
        let place = |(key, node): &(Key, Node)| (key.text.clone(), key.line, node.line);
        assert_eq!(place(&outer[0]), ("a".into(), 1, 1));
        assert_eq!(place(&outer[1]), ("b".into(), 2, 3));
        let inner = map(&outer[1].1);
        assert_eq!(place(&inner[0]), ("c".into(), 3, 3));
        assert_eq!(place(&inner[1]), ("007".into(), 4, 4));
        let Value::List(list) = &inner[0].1.value else { panic!("{inner:?}") };
        let values: Vec<_> = list.iter().map(|node| node.value.shown()).collect();
        assert_eq!(values[..4], ["\"x\"", "\"2\"", "2.5", "null"]);
    }

    #[test]
    fn what_is_no_document_is_told_with_its_line() {
        for (text, line) in [
            ("a: 1\nb: [\n", None),
            ("a: 1\na: 2\n", Some(2)),
            ("a: 1\nb: 2\n\tc: 3\n", Some(2)),
            ("a: *nobody\n", Some(1)),
        ] {
            let (found, message) = parse(text).unwrap_err();
            assert!(!message.is_empty());
            assert!(line.is_none() || found == line, "{text:?}: {found:?} {message}");
        }
    }

    /// No words of the reader's reader, which nobody outside knows, and always a way out.
    #[test]
    fn what_cannot_be_read_is_told_in_our_words() {
        let deep = "[".repeat(5_000);
        for (text, line, words) in [
            ("a: 1\nb: [\n", 2, "b: [: a bracket is opened and not closed; close it"),
            ("a: 1\na: 2\n", 2, "a: is given twice; keep one of them"),
            ("a: 1\nb: 2\n\tc: 3\n", 2, "b: 2: a tab stands here or in the next line; indent"),
            ("a: *nobody\n", 1, "a: *nobody: no value above is marked &nobody"),
            ("a: 'x\nb: 2\n", 2, "b: 2: a text in quotes is not closed before this line"),
            ("a: \"x\\q\"\n", 1, "a: \"x\\q\": a backslash that means nothing here; write two"),
            ("a: b: c\n", 1, "a: b: c: a second `: ` in the line, or a line too far to the right"),
            ("- a\nb: 1\n", 2, "b: 1: the line does not fit those around it"),
            ("a: }\n", 1, "a: }: a bracket is closed that is not open"),
            ("a: {b: 1\nc: 2\n", 2, "c: 2: between brackets, write a comma"),
            ("{\"a\": 1,, }\n", 1, "between brackets, write a comma"),
            ("a: 1\n---\nb: 1\n", 3, "b: 1: a second document begins; a file has one"),
            ("? [a, b]\n: 1\n", 1, "? [a, b]: a key that is no text; write a word"),
            ("~: 1\n", 1, "~: 1: a key that is no text; write a word"),
            ("a: !!int x\n", 1, "a: !!int x: a tag that does not fit its value"),
            ("<<: 1\na: 2\n", 1, "<<: 1: `<<` needs a mapping; write its entries out"),
            ("a: @x\n", 1, "a: @x: a text cannot begin with this sign; put it in quotes"),
            ("a: &x [*x]\n", 1, "a: &x [*x]: a value that contains itself; write it out"),
            ("a: .inf\n", 1, "a: .inf: no number that can be counted; write a whole number"),
            ("a: 1\nb 2\n", 2, "b 2: the line does not fit those around it"),
            ("%FOO\n", 2, "this cannot be read as YAML; check"),
            (&deep, 1, "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[: values are nested too"),
        ] {
            let (found, message) = parse(text).expect_err(text);
            assert!(
                found == Some(line) && message.contains(words),
                "{text:?}: {found:?} {message}"
            );
            for inner in ["scalar", "mapping values", "Option", "policy", "indicator", "at line"] {
                assert!(!message.contains(inner), "{text:?}: {inner}: {message}");
            }
        }
    }

    #[test]
    fn a_file_that_multiplies_itself_is_refused() {
        let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for n in 1..12 {
            let before = format!("*a{}", n - 1);
            text += &format!("a{n}: &a{n} [{}]\n", [before.as_str(); 10].join(", "));
        }
        let (_, message) = parse(&text).expect_err("too much");
        assert!(message.contains("is too large, or repeats itself too often"), "{message}");
    }
}
