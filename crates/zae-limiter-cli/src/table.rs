//! Text for people: lines, fields and tables, laid out for the width there is. Pure; the printer writes it.

use std::fmt::Write as _;

use crate::chart::Chart;
use crate::escape::escaped;

/// Between two columns.
const GAP: usize = 2;

/// What a text means, as far as colours can tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Tone {
    #[default]
    Plain,
    Strong,
    Dim,
    Good,
    Warning,
    Bad,
}

/// Whether tones become colours.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paint(pub(crate) bool);

impl Paint {
    /// The text in its tone.
    pub(crate) fn apply(self, tone: Tone, text: &str) -> String {
        let code = match tone {
            Tone::Plain => "",
            Tone::Strong => "1",
            Tone::Dim => "2",
            Tone::Good => "32",
            Tone::Warning => "33",
            Tone::Bad => "1;31",
        };
        if !self.0 || code.is_empty() || text.is_empty() { text.to_owned() } else { format!("\u{1b}[{code}m{text}\u{1b}[0m") }
    }
}

/// A text in its tone, safe to print.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cell {
    text: String,
    tone: Tone,
}

impl Cell {
    /// A text in a tone.
    pub(crate) fn toned(text: impl ToString, tone: Tone) -> Cell {
        Cell { text: escaped(&text.to_string()).into_owned(), tone }
    }

    /// A text as it is.
    pub(crate) fn plain(text: impl ToString) -> Cell {
        Cell::toned(text, Tone::Plain)
    }

    /// Columns it takes. Wide letters are counted as one: they only occur in last columns, where nothing is aligned to them.
    fn width(&self) -> usize {
        self.text.chars().count()
    }
}

/// Where the cells of a column stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// Rows under titles. Too wide for the terminal, each row becomes a block of labelled lines: nothing is ever cut off.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// A table with these titles.
    pub(crate) fn new(columns: impl Into<Vec<(&'static str, Align)>>) -> Table {
        Table { columns: columns.into(), rows: Vec::new() }
    }

    /// Adds a row, one cell per column.
    pub(crate) fn row(&mut self, cells: impl Into<Vec<Cell>>) {
        let cells = cells.into();
        debug_assert_eq!(cells.len(), self.columns.len(), "one cell per column");
        self.rows.push(cells);
    }

    /// True without rows.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    fn render(&self, width: Option<usize>, paint: Paint) -> String {
        let widths: Vec<usize> = (0..self.columns.len()).map(|index| self.column_width(index)).collect();
        let total = widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1);
        if width.is_some_and(|width| total > width) { self.render_blocks(paint) } else { self.render_rows(&widths, paint) }
    }

    fn column_width(&self, index: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.get(index)).map(Cell::width);
        cells.chain([self.columns[index].0.len()]).max().unwrap_or(0)
    }

    fn render_rows(&self, widths: &[usize], paint: Paint) -> String {
        let titles: Vec<Cell> = self.columns.iter().map(|(title, _)| Cell::toned(title, Tone::Strong)).collect();
        let mut text = String::new();
        for row in std::iter::once(&titles).chain(&self.rows) {
            let mut pending = 0;
            for ((cell, width), (_, align)) in row.iter().zip(widths).zip(&self.columns) {
                let padding = width - cell.width();
                let (before, after) = if *align == Align::Right { (padding, 0) } else { (0, padding) };
                if cell.text.is_empty() {
                    pending += padding + GAP;
                    continue;
                }
                // Spaces are written only before something: no line ends with one.
                text.extend(std::iter::repeat_n(' ', pending + before));
                text.push_str(&paint.apply(cell.tone, &cell.text));
                pending = after + GAP;
            }
            text.push('\n');
        }
        text
    }

    fn render_blocks(&self, paint: Paint) -> String {
        let block = |row: &Vec<Cell>| {
            let fields = self.columns.iter().zip(row).map(|((title, _), cell)| (*title, cell.clone()));
            render_fields(&fields.collect::<Vec<_>>(), paint)
        };
        self.rows.iter().map(block).collect::<Vec<_>>().join("\n")
    }
}

fn render_fields(fields: &[(&'static str, Cell)], paint: Paint) -> String {
    let width = fields.iter().map(|(label, _)| label.len()).max().unwrap_or(0) + GAP;
    let mut text = String::new();
    for (label, cell) in fields {
        let line = format!("{}{}", paint.apply(Tone::Strong, label), " ".repeat(width - label.len()));
        // Writing to a String can not fail.
        let _ = match cell.text.as_str() {
            "" => writeln!(text, "{}", paint.apply(Tone::Strong, label)),
            value => writeln!(text, "{line}{}", paint.apply(cell.tone, value)),
        };
    }
    text
}

/// An answer for people: parts one below the other, a blank line between.
#[derive(Clone, Debug, Default)]
pub(crate) struct Text {
    parts: Vec<Part>,
}

#[derive(Clone, Debug)]
enum Part {
    Line(Cell),
    #[cfg(feature = "sqlite")]
    Lines(Vec<Cell>),
    Fields(Vec<(&'static str, Cell)>),
    Table(Table),
    Chart(Chart),
}

impl Text {
    /// Nothing yet.
    pub(crate) fn new() -> Text {
        Text::default()
    }

    /// Adds a line.
    pub(crate) fn line(mut self, line: Cell) -> Text {
        self.parts.push(Part::Line(line));
        self
    }

    /// Adds lines that belong together.
    #[cfg(feature = "sqlite")]
    pub(crate) fn lines(mut self, lines: Vec<Cell>) -> Text {
        self.parts.push(Part::Lines(lines));
        self
    }

    /// Adds labelled lines.
    pub(crate) fn fields(mut self, fields: Vec<(&'static str, Cell)>) -> Text {
        self.parts.push(Part::Fields(fields));
        self
    }

    /// Adds a table.
    pub(crate) fn table(mut self, table: Table) -> Text {
        self.parts.push(Part::Table(table));
        self
    }

    /// Adds a chart.
    pub(crate) fn chart(mut self, chart: Chart) -> Text {
        self.parts.push(Part::Chart(chart));
        self
    }

    /// The text, laid out.
    pub(crate) fn render(&self, width: Option<usize>, paint: Paint) -> String {
        let part = |part: &Part| match part {
            Part::Line(cell) => paint.apply(cell.tone, &cell.text) + "\n",
            #[cfg(feature = "sqlite")]
            Part::Lines(lines) => lines.iter().map(|cell| paint.apply(cell.tone, &cell.text) + "\n").collect(),
            Part::Fields(fields) => render_fields(fields, paint),
            Part::Table(table) => table.render(width, paint),
            Part::Chart(chart) => chart.render(width, paint),
        };
        self.parts.iter().map(part).collect::<Vec<_>>().join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new([("NAME", Align::Left), ("LEFT", Align::Right), ("NOTE", Align::Left)]);
        table.row([Cell::plain("a-long-name"), Cell::plain(7), Cell::plain("x\ny")]);
        table.row([Cell::plain("b"), Cell::toned(-12345, Tone::Bad), Cell::plain("")]);
        table
    }

    fn rendered(width: Option<usize>, paint: bool) -> String {
        Text::new().table(table()).render(width, Paint(paint))
    }

    #[test]
    fn columns_are_aligned_and_no_line_ends_with_a_space() {
        insta::assert_snapshot!(rendered(None, false), @r"
        NAME           LEFT  NOTE
        a-long-name       7  x\ny
        b            -12345
        ");
        assert_eq!(rendered(Some(27), false), rendered(None, false));
    }

    #[test]
    fn a_narrow_terminal_gets_blocks() {
        insta::assert_snapshot!(rendered(Some(20), false), @r"
        NAME  a-long-name
        LEFT  7
        NOTE  x\ny

        NAME  b
        LEFT  -12345
        NOTE
        ");
    }

    #[test]
    fn colours_do_not_move_columns() {
        let painted = rendered(None, true);
        assert!(painted.contains("\u{1b}[1;31m-12345\u{1b}[0m"), "{painted:?}");
        let codes = ["\u{1b}[1m", "\u{1b}[1;31m", "\u{1b}[0m"];
        assert_eq!(codes.iter().fold(painted, |text, code| text.replace(code, "")), rendered(None, false));
    }

    #[test]
    fn parts_are_separated_by_a_blank_line() {
        let fields = vec![("version", Cell::plain(1)), ("on", Cell::plain(""))];
        let text = Text::new().line(Cell::plain("granted")).fields(fields).render(None, Paint(false));
        assert_eq!(text, "granted\n\nversion  1\non\n");
    }
}
