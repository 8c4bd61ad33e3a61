//! Commands of the Python package that are not built yet. They are recognised before anything is
//! parsed: their arguments are not known, and one of them may be spelled like an option of ours
//! that means something else.

use std::ffi::OsString;

use clap::Command;

use crate::error::Failure;

const PARENT: &str =
    "an entity keeps its parent and its cascade; delete it and create it again to change them";
const FLAGS: &str = "`zae-limiter resource disable` and `zae-limiter resource enable` are there";

/// The commands, each by its one or two words, and what there is instead.
const COMING: [(&str, &str); 5] = [
    ("entity set-parent", PARENT),
    ("entity set-cascade", PARENT),
    ("entity top-up", "`zae-limiter entity reset` fills a bucket"),
    ("resource bypass", FLAGS),
    ("resource set-cascade", FLAGS),
];

/// What to say about a command line that calls a command which is still to come.
pub(super) fn refusal(definition: &Command, arguments: &[OsString]) -> Option<Failure> {
    let command = called(definition, arguments)?;
    let (_, instead) = COMING.into_iter().find(|(known, _)| *known == command)?;
    let failure = Failure::usage(format!("`zae-limiter {command}` is not built yet"));
    Some(failure.hint(instead))
}

/// The command that was called, if it is one that is still to come. `definition` says which options
/// take a value.
fn called(definition: &Command, arguments: &[OsString]) -> Option<&'static str> {
    let words = words(definition, arguments);
    let pair = words.join(" ");
    let has = |flag: &str| {
        arguments
            .iter()
            .any(|word| word.to_str().is_some_and(|word| word.split('=').next() == Some(flag)))
    };
    if pair == "entity update" && (has("--parent") || has("--cascade")) {
        return Some("entity set-parent");
    }
    let mut commands = COMING.into_iter().map(|(command, _)| command);
    commands.find(|command| words.first() == Some(command) || pair == *command)
}

/// The first two words that are neither options nor their values.
pub(super) fn words<'a>(definition: &Command, arguments: &'a [OsString]) -> Vec<&'a str> {
    let takes_value = |word: &str| {
        let spelled = |argument: &clap::Arg| match word.strip_prefix("--") {
            Some(long) => argument.get_long() == Some(long),
            None => argument.get_short().is_some_and(|short| {
                word.strip_prefix('-') == Some(short.encode_utf8(&mut [0; 4]))
            }),
        };
        definition
            .get_arguments()
            .any(|argument| spelled(argument) && argument.get_action().takes_values())
    };
    let mut found = Vec::new();
    let mut rest = arguments.iter().skip(1).map(|argument| argument.to_str().unwrap_or_default());
    while let Some(word) = rest.next() {
        if takes_value(word) {
            rest.next();
        } else if !word.starts_with('-') {
            found.push(word);
        }
        if found.len() == 2 {
            break;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn called_in(line: &str) -> Option<&'static str> {
        let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        called(&super::super::definition(), &arguments)
    }

    #[test]
    fn commands_to_come_are_found_among_options() {
        for (line, expected) in [
            ("z deploy", None),
            ("z --name my-app --region=us-east-1 entity top-up", Some("entity top-up")),
            ("z -n my-app -q loadtest run -f x.py --users 20", None),
            ("z limits apply -f x.yaml", None),
            ("z entity --output json set-parent key-1 org-1", Some("entity set-parent")),
            ("z entity update key-1 --parent=org-1", Some("entity set-parent")),
            ("z entity update key-1 --display-name parent", None),
            ("z entity delete loadtest", None),
            ("z namespace list", None),
            ("z --principal limits version", None),
            ("z entity", None),
            ("z", None),
        ] {
            assert_eq!(called_in(line), expected, "{line}");
        }
    }

    #[test]
    fn no_command_is_both_there_and_to_come() {
        let definition = super::super::definition();
        for (command, _) in COMING {
            let found = command
                .split(' ')
                .try_fold(&definition, |parent, word| parent.find_subcommand(word));
            assert!(found.is_none(), "{command}");
        }
    }
}
