//! Bars for the terminal: one row per label, readable at any width and in a pipe.

use std::fmt::Write as _;

use zae_limiter::usage::{CHART_WIDTH, ChartRow, Scale};

use crate::escape::escaped;
use crate::table::{Paint, Tone};

/// Between label and bar.
const GAP: usize = 2;

/// Rows of bars under a title, all drawn to one scale.
#[derive(Clone, Debug)]
pub(crate) struct Chart {
    title: String,
    rows: Vec<ChartRow>,
}

impl Chart {
    /// A chart of these rows.
    pub(crate) fn new(title: impl Into<String>, rows: Vec<ChartRow>) -> Chart {
        Chart { title: title.into(), rows }
    }

    /// The chart, no wider than `width` unless labels and values alone are.
    pub(crate) fn render(&self, width: Option<usize>, paint: Paint) -> String {
        let escape = |row: &ChartRow| match row {
            ChartRow::Bar(label, value) => ChartRow::Bar(escaped(label).into_owned(), *value),
            ChartRow::Gap(words) => ChartRow::Gap(escaped(words).into_owned()),
        };
        let rows: Vec<ChartRow> = self.rows.iter().map(escape).collect();
        let scale = Scale::of(&rows, width.unwrap_or(CHART_WIDTH));
        let mut text = format!("{}\n", paint.apply(Tone::Strong, &escaped(&self.title)));
        for row in &rows {
            // Writing to a String cannot fail.
            let _ = match row {
                ChartRow::Gap(words) => writeln!(text, "{}", paint.apply(Tone::Dim, words)),
                ChartRow::Bar(label, value) => {
                    let padding = " ".repeat(scale.label_width - label.chars().count() + GAP);
                    let bar = scale.bar(*value);
                    let gap = if bar.is_empty() { "" } else { "  " };
                    let tone = if *value < 0 { Tone::Warning } else { Tone::Plain };
                    let value = paint.apply(tone, &value.to_string());
                    writeln!(text, "{label}{padding}{}{gap}{value}", paint.apply(Tone::Good, &bar))
                }
            };
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart() -> Chart {
        let bar = |label: &str, value| ChartRow::Bar(label.into(), value);
        let rows = vec![
            bar("a", 1000),
            bar("bc", 500),
            ChartRow::Gap("… 3 empty".into()),
            bar("d", 1),
            bar("e", 0),
            bar("f\u{7}", -5),
        ];
        Chart::new("tpm", rows)
    }

    #[test]
    fn bars_are_drawn_to_one_scale() {
        insta::assert_snapshot!(chart().render(Some(30), Paint(false)), @r"
        tpm
        a       ████████████████  1000
        bc      ████████  500
        … 3 empty
        d       ▏  1
        e       0
        f\u{7}  -5
        ");
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        for width in 12..120 {
            let drawn = chart().render(Some(width), Paint(false));
            assert!(drawn.lines().all(|line| line.chars().count() <= width), "{width}\n{drawn}");
        }
    }

    #[test]
    fn a_narrow_terminal_gets_numbers_only() {
        let drawn = chart().render(Some(15), Paint(false));
        assert!(!drawn.contains('█') && drawn.contains("1000"), "{drawn}");
    }

    #[test]
    fn the_largest_numbers_there_are_fit() {
        let rows = vec![ChartRow::Bar("a".into(), i64::MAX), ChartRow::Bar("b".into(), i64::MIN)];
        let drawn = Chart::new("x", rows).render(Some(60), Paint(false));
        assert!(drawn.lines().all(|line| line.chars().count() <= 60), "{drawn}");
    }

    #[test]
    fn colours_change_nothing_but_colours() {
        let codes = ["\u{1b}[1m", "\u{1b}[2m", "\u{1b}[32m", "\u{1b}[33m", "\u{1b}[0m"];
        let painted = chart().render(None, Paint(true));
        assert!(painted.contains("\u{1b}[33m-5"), "{painted:?}");
        assert_eq!(
            codes.iter().fold(painted, |text, code| text.replace(code, "")),
            chart().render(None, Paint(false))
        );
    }
}
