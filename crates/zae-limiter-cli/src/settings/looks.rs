//! How to print.

use super::Environment;
use crate::args::{Color, Globals, Output};

/// How to print. Nothing here can be wrong, so that errors can always be printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Looks {
    /// Table or JSON.
    pub(crate) output: Output,
    /// No notes, warnings, hints.
    pub(crate) quiet: bool,
    /// Colours for answers.
    pub(crate) stdout_colours: bool,
    /// Colours for talk.
    pub(crate) stderr_colours: bool,
    /// Columns a table may take.
    pub(crate) width: Option<usize>,
    /// Whether an answer may be drawn over again: stdout is a terminal that can.
    pub(crate) live: bool,
    /// Whether somebody watches stderr who would like to know how long work goes on.
    pub(crate) progress: bool,
}

impl Looks {
    /// The same without notes and warnings.
    #[cfg(feature = "loadtest")]
    pub(crate) fn silent(self) -> Looks {
        Looks { quiet: true, ..self }
    }

    /// How these flags look in this environment.
    pub(crate) fn new(globals: &Globals, environment: &Environment) -> Looks {
        let color = globals.color.unwrap_or_default();
        let may_redraw = !environment.is_dumb()
            && !globals.quiet
            && globals.output.unwrap_or_default() == Output::Table;
        Looks {
            output: globals.output.unwrap_or_default(),
            quiet: globals.quiet,
            stdout_colours: colours(color, environment, environment.stdout_is_terminal),
            stderr_colours: colours(color, environment, environment.stderr_is_terminal),
            width: environment.width(),
            live: may_redraw && environment.stdout_is_terminal,
            progress: may_redraw && environment.stderr_is_terminal,
        }
    }
}

/// Whether to colour what goes to a stream.
fn colours(color: Color, environment: &Environment, is_terminal: bool) -> bool {
    match color {
        Color::Always => true,
        Color::Never => false,
        Color::Auto => is_terminal && environment.no_color.is_none() && !environment.is_dumb(),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    #[test]
    fn colours_are_for_terminals_unless_told_otherwise() {
        let coloured = |color, terminal, no_color: &str, term: &str| {
            let set = |value: &str| (!value.is_empty()).then(|| OsString::from(value));
            let environment = Environment {
                stdout_is_terminal: terminal,
                no_color: set(no_color),
                term: set(term),
                ..Environment::default()
            };
            Looks::new(&Globals { color, ..Globals::default() }, &environment).stdout_colours
        };
        assert!(coloured(None, true, "", "xterm"));
        assert!(!coloured(None, false, "", "xterm"));
        assert!(!coloured(None, true, "1", "xterm"));
        assert!(!coloured(None, true, "", "dumb"));
        assert!(coloured(Some(Color::Always), false, "1", "dumb"));
        assert!(!coloured(Some(Color::Never), true, "", "xterm"));
    }

    #[test]
    fn only_a_terminal_that_can_is_drawn_over() {
        let looks = |term: &str, output, quiet| {
            let environment = Environment {
                stdout_is_terminal: true,
                term: Some(term.into()),
                ..Environment::default()
            };
            let looks = Looks::new(
                &Globals { output: Some(output), quiet, ..Globals::default() },
                &environment,
            );
            assert!(!looks.progress, "stderr is no terminal");
            looks.live
        };
        assert!(looks("xterm", Output::Table, false));
        assert!(
            !looks("dumb", Output::Table, false)
                && !looks("xterm", Output::Json, false)
                && !looks("xterm", Output::Table, true)
        );
    }

    #[test]
    fn columns_beat_the_terminal() {
        let width = |columns: &str, terminal| {
            let environment = Environment {
                columns: Some(columns.into()),
                terminal_width: terminal,
                ..Environment::default()
            };
            (Looks::new(&Globals::default(), &environment).width, environment.help_width())
        };
        assert_eq!(width("40", Some(120)), (Some(40), 40));
        assert_eq!(width("x", Some(120)), (Some(120), 100));
        assert_eq!(width("0", None), (None, 100));
    }
}
