//! Asking before something is destroyed.

use std::io::{self, BufRead};

use crate::args::shared::ConfirmArgs;
use crate::context::Context;
use crate::error::Failure;
use crate::printer::Printer;

/// The longest answer that is read.
const ANSWER_BYTES_MAX: u64 = 1024;

/// What is about to be destroyed, and the name that must be typed.
pub(crate) struct Question<'a> {
    /// What happens to it, as in "deletes".
    pub(crate) deed: &'static str,
    /// As in "the system defaults of namespace prod".
    pub(crate) what: &'a str,
    /// What to type.
    pub(crate) name: &'a str,
}

impl Question<'_> {
    /// What is asked.
    pub(crate) fn asked(&self) -> String {
        format!("This {} {}. Type {} to go on:", self.deed, self.what, self.name)
    }
}

/// Lets a destructive command go on: with `--yes`, or once its name was typed on a terminal.
pub(crate) fn confirm(
    context: &Context<'_>,
    question: &Question<'_>,
    args: ConfirmArgs,
) -> Result<(), Failure> {
    confirm_with(context.printer, context.settings.can_ask, question, args)
}

/// The same without a store.
pub(crate) fn confirm_with(
    printer: &Printer,
    can_ask: bool,
    question: &Question<'_>,
    args: ConfirmArgs,
) -> Result<(), Failure> {
    if args.yes {
        return Ok(());
    }
    if !can_ask {
        let failure = Failure::usage(format!(
            "this {} {} and there is no terminal to ask on",
            question.deed, question.what
        ));
        return Err(failure.hint("pass --yes if that is meant"));
    }
    // Nobody waits for anything but the answer.
    crate::patience::told();
    printer.ask(&question.asked());
    agreed(io::stdin().lock(), question)
}

fn agreed(input: impl BufRead, question: &Question<'_>) -> Result<(), Failure> {
    let mut answer = String::new();
    // An answer that cannot be read is no agreement.
    let read = input.take(ANSWER_BYTES_MAX).read_line(&mut answer);
    if read.is_ok() && answer.trim() == question.name {
        Ok(())
    } else {
        Err(Failure::aborted("not confirmed; nothing was changed"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_name_itself_is_agreement() {
        let question = Question { deed: "deletes", what: "it", name: "prod" };
        for (answer, expected) in [
            ("prod\n", true),
            ("  prod\r\n", true),
            ("prod", true),
            ("y\n", false),
            ("yes\n", false),
            ("Prod\n", false),
            ("", false),
        ] {
            assert_eq!(agreed(answer.as_bytes(), &question).is_ok(), expected, "{answer:?}");
        }
        assert!(agreed(&b"\xff\n"[..], &question).is_err());
    }
}
