//! Data never reaches the terminal raw: what could move the cursor, change colours or reorder the
//! line is made visible. And what is to be typed is quoted.

use std::borrow::Cow;

use anyhow::Context as _;
use serde::Serialize;

/// The text with everything visible that could move the cursor, change colours or reorder what
/// follows.
pub(crate) fn escaped(text: &str) -> Cow<'_, str> {
    replaced(text, |character| character.escape_default().to_string())
}

fn replaced(text: &str, escape: impl Fn(char) -> String) -> Cow<'_, str> {
    if !text.contains(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if is_unsafe(character) {
            safe.push_str(&escape(character));
        } else {
            safe.push(character);
        }
    }
    Cow::Owned(safe)
}

/// Control characters, line separators, and the marks that turn the direction of writing.
fn is_unsafe(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// One line of JSON that is safe to look at.
pub(crate) fn json_line(value: &impl Serialize) -> anyhow::Result<String> {
    let json = serde_json::to_string(value).context("the answer has no JSON form")?;
    // Outside of strings JSON is ASCII, so whatever is found here is inside of one, where this is
    // how to escape it.
    let mut line =
        replaced(&json, |character| format!("\\u{:04x}", u32::from(character))).into_owned();
    line.push('\n');
    Ok(line)
}

/// A word as a shell takes it.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |character: char| character.is_alphanumeric() || "/\\:._-".contains(character);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_with_spaces_are_quoted() {
        assert_eq!(quoted("sqlite:/tmp/a-1/limits.db"), "sqlite:/tmp/a-1/limits.db");
        assert_eq!(quoted(""), "''");
        assert_eq!(quoted("/my files/it's"), "'/my files/it'\\''s'");
    }

    #[test]
    fn nothing_moves_the_cursor() {
        for (text, expected) in [
            ("plain ünïcode 漢字 🦀", "plain ünïcode 漢字 🦀"),
            ("a\nb\tc\r", "a\\nb\\tc\\r"),
            ("\u{1b}[31mred\u{7f}\u{9b}", "\\u{1b}[31mred\\u{7f}\\u{9b}"),
            ("abc\u{202e}txt\u{2066}", "abc\\u{202e}txt\\u{2066}"),
        ] {
            assert_eq!(escaped(text), expected);
        }
    }

    #[test]
    fn json_is_one_safe_line_that_still_means_the_same() {
        let text = "a\nb\u{1b}\u{7f}\u{9b}\u{202e}\u{2028}é";
        let line = json_line(&[text]).unwrap();
        assert_eq!(line, "[\"a\\nb\\u001b\\u007f\\u009b\\u202e\\u2028é\"]\n");
        assert_eq!(serde_json::from_str::<Vec<String>>(&line).unwrap(), [text]);
    }
}
