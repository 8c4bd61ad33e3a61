//! The reference page of the command line, written from its definition.

use clap::{Arg, Command};

/// The page's beginning. It tells how the page is made, because nobody should edit it.
const PREFACE: &str = "<!-- Written by `cargo run -q -p zae-limiter-cli -- reference > docs/cli.md`; a test compares it. -->";

/// The page, in Markdown.
pub(crate) fn page(mut definition: Command) -> String {
    definition.build();
    let mut page = format!("# Command line\n\n{PREFACE}\n");
    for line in [definition.get_about(), definition.get_after_help()].into_iter().flatten() {
        page.push_str(&format!("\n{line}\n"));
    }
    page.push_str(
        "\n[json.md](json.md) has what each command prints with `--output json`, field by field.\n",
    );
    let is_global = |argument: &&Arg| argument.is_global_set() && !argument.is_hide_set();
    page.push_str("\n## Global options\n\nAccepted before and after the command.\n\n");
    definition.get_arguments().filter(is_global).for_each(|argument| entry(&mut page, argument));
    for command in visible(&definition) {
        section(&mut page, command, 2);
    }
    page
}

fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command
        .get_subcommands()
        .filter(|command| !command.is_hide_set() && command.get_name() != "help")
}

fn section(page: &mut String, command: &Command, level: usize) {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    page.push_str(&format!("\n{} {name}\n\n{about}.\n", "#".repeat(level)));
    if command.has_subcommands() {
        for command in visible(command) {
            section(page, command, level + 1);
        }
        return;
    }
    let usage = command.clone().render_usage().to_string();
    page.push_str(&format!("\n```text\n{}\n```\n", usage.trim_start_matches("Usage: ")));
    let is_own = |argument: &&Arg| {
        !argument.is_global_set() && !argument.is_hide_set() && argument.get_id() != "help"
    };
    let arguments: Vec<&Arg> = command.get_arguments().filter(is_own).collect();
    if !arguments.is_empty() {
        page.push('\n');
    }
    // Positions first, as one types them.
    let (positional, options): (Vec<&Arg>, Vec<&Arg>) =
        arguments.into_iter().partition(|argument| argument.is_positional());
    positional.into_iter().chain(options).for_each(|argument| entry(page, argument));
    if let Some(after) = command.get_after_long_help() {
        below(page, &after.to_string());
    }
}

/// What stands below the help of a command: paragraphs, and examples as a block.
fn below(page: &mut String, text: &str) {
    for part in text.split("\n\n") {
        match part.strip_prefix("Examples:\n") {
            Some(lines) => {
                let lines: Vec<&str> = lines.lines().map(str::trim_start).collect();
                page.push_str(&format!("\n```sh\n{}\n```\n", lines.join("\n")));
            }
            None => page.push_str(&format!("\n{part}\n")),
        }
    }
}

fn entry(page: &mut String, argument: &Arg) {
    let short = argument.get_short().map(|short| format!("-{short}"));
    let long = argument.get_long().map(|long| format!("--{long}"));
    let takes_value = argument.get_action().takes_values();
    let names =
        argument.get_value_names().unwrap_or_default().iter().map(|name| format!("<{name}>"));
    let words: Vec<String> = short.into_iter().chain(long).collect();
    let value = if takes_value { names.collect::<Vec<_>>().join(" ") } else { String::new() };
    let form = [words.join(", "), value]
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join(" ");
    let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
    page.push_str(&format!("- `{form}`: {}", escaped(&help)));
    let defaults: Vec<String> = argument
        .get_default_values()
        .iter()
        .map(|value| value.to_string_lossy().into_owned())
        .collect();
    if takes_value && !defaults.is_empty() {
        page.push_str(&format!(" (default: `{}`)", defaults.join(" ")));
    }
    let values: Vec<String> = argument
        .get_possible_values()
        .iter()
        .map(|value| format!("`{}`", value.get_name()))
        .collect();
    if takes_value && !values.is_empty() {
        page.push_str(&format!(" (one of {})", values.join(", ")));
    }
    page.push('\n');
}

/// Markdown would read these as something else than text.
fn escaped(help: &str) -> String {
    help.replace('<', "\\<").replace("_default_", "`_default_`")
}
