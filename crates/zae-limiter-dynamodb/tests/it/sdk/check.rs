//! What DynamoDB would refuse, found without asking it.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;

use zae_limiter_dynamodb::sdk::expression::{EXPRESSION_BYTES_MAX, Rendered, is_plain};

const SECTIONS: [&str; 4] = ["SET", "ADD", "DELETE", "REMOVE"];

/// Checks what DynamoDB would refuse: a name that needs an alias and has none, an alias used but
/// not declared or declared but not used, the same name or value declared twice, a section that is
/// empty or comes twice, an expression that is too long. Says what is wrong.
pub(crate) fn check(rendered: &Rendered) -> Result<(), String> {
    let texts: Vec<&str> =
        [&rendered.update, &rendered.condition].into_iter().flatten().map(String::as_str).collect();
    for text in &texts {
        if text.trim().is_empty() {
            return Err("an expression is empty".to_owned());
        }
        if text.len() > EXPRESSION_BYTES_MAX {
            return Err(format!(
                "an expression has {} bytes, more than {EXPRESSION_BYTES_MAX}",
                text.len()
            ));
        }
        if text.contains(",,")
            || text.contains("()")
            || text.contains("  ")
            || is_wrapped_twice(text)
        {
            return Err(format!("an empty clause or redundant parentheses: {text}"));
        }
    }
    if let Some(update) = &rendered.update {
        check_sections(update)?;
    }
    check_plain(&texts)?;
    let declared_names = rendered
        .names
        .as_ref()
        .map(|names| names.keys().map(String::as_str).collect())
        .unwrap_or_default();
    let declared_values = rendered
        .values
        .as_ref()
        .map(|values| values.keys().map(String::as_str).collect())
        .unwrap_or_default();
    check_aliases(&texts, '#', declared_names)?;
    check_aliases(&texts, ':', declared_values)?;
    if rendered.names.as_ref().is_some_and(HashMap::is_empty)
        || rendered.values.as_ref().is_some_and(HashMap::is_empty)
    {
        return Err("an empty map of aliases".to_owned());
    }
    let names: Vec<&String> = rendered.names.iter().flat_map(HashMap::values).collect();
    if let Some(twice) =
        names.iter().enumerate().find(|(index, name)| names[..*index].contains(name))
    {
        return Err(format!("the name {} has two aliases", twice.1));
    }
    let values: Vec<&AttributeValue> = rendered.values.iter().flat_map(HashMap::values).collect();
    if let Some(twice) =
        values.iter().enumerate().find(|(index, value)| values[..*index].contains(value))
    {
        return Err(format!("the value {:?} has two aliases", twice.1));
    }
    Ok(())
}

/// True for `((a))`, not for `((a) AND b)`.
fn is_wrapped_twice(text: &str) -> bool {
    let (mut open, mut inner) = (Vec::new(), None);
    for (at, letter) in text.char_indices() {
        match letter {
            '(' => open.push(at),
            ')' => {
                let Some(from) = open.pop() else { continue };
                if inner == Some((from + 1, at)) {
                    return true;
                }
                inner = Some((from, at + 1));
            }
            _ => {}
        }
    }
    false
}

fn check_sections(update: &str) -> Result<(), String> {
    let words: Vec<&str> = update.split(' ').collect();
    for keyword in SECTIONS {
        let at: Vec<usize> = words
            .iter()
            .enumerate()
            .filter(|(_, word)| **word == keyword)
            .map(|(index, _)| index)
            .collect();
        if at.len() > 1 {
            return Err(format!("{keyword} comes twice: {update}"));
        }
        if at
            .first()
            .is_some_and(|index| words.get(index + 1).is_none_or(|next| !begins_with_name(next)))
        {
            return Err(format!("{keyword} has no clause: {update}"));
        }
    }
    if words.first().is_some_and(|first| SECTIONS.contains(first)) {
        Ok(())
    } else {
        Err(format!("no section: {update}"))
    }
}

fn begins_with_name(clause: &str) -> bool {
    clause.starts_with('#')
        || is_plain(&clause[..clause.find(is_no_letter).unwrap_or(clause.len())])
}

fn is_no_letter(c: char) -> bool {
    !(c.is_ascii_alphanumeric() || c == '_')
}

/// Every word is a part of the language or a name that needs no alias.
fn check_plain(texts: &[&str]) -> Result<(), String> {
    const LANGUAGE: [&str; 5] =
        ["AND", "OR", "attribute_exists", "attribute_not_exists", "if_not_exists"];
    let is_known =
        |word: &str| LANGUAGE.contains(&word) || SECTIONS.contains(&word) || is_plain(word);
    let words =
        texts.iter().flat_map(|text| text.split(|c: char| is_no_letter(c) && c != '#' && c != ':'));
    let mut words = words.filter(|word| !word.is_empty() && !word.starts_with(['#', ':']));
    match words.find(|word| !is_known(word)) {
        Some(word) => Err(format!("{word} has no alias and may need one")),
        None => Ok(()),
    }
}

fn check_aliases(texts: &[&str], sigil: char, declared: Vec<&str>) -> Result<(), String> {
    let mut used: Vec<&str> = Vec::new();
    for text in texts {
        for (at, _) in text.match_indices(sigil) {
            let rest = &text[at..];
            let end = rest[1..].find(is_no_letter).map_or(rest.len(), |end| end + 1);
            if end < 2 {
                return Err(format!("a bare {sigil} in: {text}"));
            }
            used.push(&rest[..end]);
        }
    }
    if let Some(missing) = used.iter().find(|alias| !declared.contains(alias)) {
        return Err(format!("{missing} is used but not declared"));
    }
    match declared.iter().find(|alias| !used.contains(alias)) {
        Some(idle) => Err(format!("{idle} is declared but not used")),
        None => Ok(()),
    }
}
