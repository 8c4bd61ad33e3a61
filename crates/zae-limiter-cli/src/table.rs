//! Text for people: lines, fields and tables, laid out for the width there is. Pure; the printer
//! writes it.

use std::fmt::Write as _;

use crate::chart::Chart;
use crate::escape::escaped;

/// Between two columns.
const GAP: usize = 2;

/// The least that a column is wrapped to: narrower ones are read less easily than blocks.
const WRAP_MIN: usize = 30;

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
        if !self.0 || code.is_empty() || text.is_empty() {
            text.to_owned()
        } else {
            format!("\u{1b}[{code}m{text}\u{1b}[0m")
        }
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

    /// Whole tokens that are left; fewer than none is debt.
    pub(crate) fn left(tokens: i64) -> Cell {
        Cell::toned(tokens, if tokens < 0 { Tone::Warning } else { Tone::Plain })
    }

    /// Columns it takes. Wide letters are counted as one: they only occur in last columns, where
    /// nothing is aligned to them.
    fn width(&self) -> usize {
        self.text.chars().count()
    }
}

/// Labelled values, one per line.
pub(crate) type Fields = Vec<(&'static str, Cell)>;

/// Where the cells of a column stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// Rows under titles. Too wide for the terminal, each row becomes a block of labelled lines:
/// nothing is ever cut off.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<Cell>>,
    /// Columns that may be left out where there is no room, the first one first.
    optional: &'static [&'static str],
    /// Whether the last column may go on in the next line.
    wraps: bool,
}

impl Table {
    /// A table with these titles. A title that ends with a colon is that of a column of numbers,
    /// which stand on the right, as in Markdown; the colon is not printed.
    pub(crate) fn new<const COLUMNS: usize>(titles: [&'static str; COLUMNS]) -> Table {
        let columns = titles.map(|title| match title.strip_suffix(':') {
            Some(title) => (title, Align::Right),
            None => (title, Align::Left),
        });
        Table { columns: columns.into(), rows: Vec::new(), optional: &[], wraps: false }
    }

    /// The same, with columns that a narrow terminal does without: a table of the others is read
    /// more easily than blocks of all.
    pub(crate) fn may_lack(mut self, titles: &'static [&'static str]) -> Table {
        self.optional = titles;
        self
    }

    /// The same, with a last column that goes on in the next line where there is no room.
    pub(crate) fn may_wrap(mut self) -> Table {
        self.wraps = true;
        self
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
        let fits = |table: &Table| width.is_none_or(|width| table.total_width() <= width);
        if fits(self) {
            return self.render_rows(paint);
        }
        let mut narrow = self.clone();
        for title in self.optional {
            narrow.remove(title);
            if fits(&narrow) {
                return narrow.render_rows(paint);
            }
        }
        let wrapped = width.filter(|_| self.wraps).and_then(|width| narrow.wrapped(width));
        wrapped.map_or_else(|| self.render_blocks(paint), |table| table.render_rows(paint))
    }

    /// The same table in so many columns, the cells of the last one cut at spaces. `None` where
    /// little room is left for them.
    fn wrapped(&self, width: usize) -> Option<Table> {
        let last = self.columns.len().checked_sub(1)?;
        let room = width
            .checked_sub(self.total_width() - self.column_width(last))
            .filter(|room| *room >= WRAP_MIN)?;
        let mut table = Table { rows: Vec::new(), ..self.clone() };
        for row in &self.rows {
            let (before, cell) = (row.get(..last)?, row.get(last)?);
            for (number, text) in lines(&cell.text, room).into_iter().enumerate() {
                let mut cells =
                    if number == 0 { before.to_vec() } else { vec![Cell::default(); last] };
                cells.push(Cell { text, tone: cell.tone });
                table.rows.push(cells);
            }
        }
        Some(table)
    }

    /// Leaves a column out.
    pub(crate) fn remove(&mut self, title: &str) {
        if let Some(index) = self.columns.iter().position(|(known, _)| *known == title) {
            self.columns.remove(index);
            self.rows.iter_mut().for_each(|row| drop(row.remove(index)));
        }
    }

    fn total_width(&self) -> usize {
        let columns = self.columns.len();
        (0..columns).map(|index| self.column_width(index)).sum::<usize>()
            + GAP * columns.saturating_sub(1)
    }

    fn column_width(&self, index: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.get(index)).map(Cell::width);
        cells.chain([self.columns[index].0.len()]).max().unwrap_or(0)
    }

    fn render_rows(&self, paint: Paint) -> String {
        let widths: Vec<usize> =
            (0..self.columns.len()).map(|index| self.column_width(index)).collect();
        let titles: Vec<Cell> =
            self.columns.iter().map(|(title, _)| Cell::toned(title, Tone::Strong)).collect();
        let mut text = String::new();
        for row in std::iter::once(&titles).chain(&self.rows) {
            let mut pending = 0;
            for ((cell, width), (_, align)) in row.iter().zip(&widths).zip(&self.columns) {
                let padding = width - cell.width();
                let (before, after) =
                    if *align == Align::Right { (padding, 0) } else { (0, padding) };
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
            let fields =
                self.columns.iter().zip(row).map(|((title, _), cell)| (*title, cell.clone()));
            render_fields(&fields.collect::<Fields>(), paint)
        };
        self.rows.iter().map(block).collect::<Vec<_>>().join("\n")
    }
}

/// A text in lines of at most `room` letters, cut at spaces, and within words only where one is
/// longer than a line.
fn lines(text: &str, room: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let letters: Vec<char> = word.chars().collect();
        for (number, piece) in letters.chunks(room).enumerate() {
            let line = lines.last_mut().expect("there is always a line");
            let gap = usize::from(number == 0 && !line.is_empty());
            if line.chars().count() + gap + piece.len() <= room {
                line.extend(std::iter::repeat_n(' ', gap).chain(piece.iter().copied()));
            } else {
                lines.push(piece.iter().collect());
            }
        }
    }
    lines
}

fn render_fields(fields: &[(&'static str, Cell)], paint: Paint) -> String {
    let width = fields.iter().map(|(label, _)| label.len()).max().unwrap_or(0) + GAP;
    let mut text = String::new();
    for (label, cell) in fields {
        let line =
            format!("{}{}", paint.apply(Tone::Strong, label), " ".repeat(width - label.len()));
        // Writing to a String cannot fail.
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
    Lines(Vec<Cell>),
    Fields(Fields),
    Table(Table),
    Chart(Chart),
}

impl Text {
    /// Nothing yet.
    pub(crate) fn new() -> Text {
        Text::default()
    }

    /// One plain line.
    pub(crate) fn of(line: impl ToString) -> Text {
        Text::new().line(Cell::plain(line))
    }

    /// Adds a line.
    pub(crate) fn line(self, line: Cell) -> Text {
        self.lines(vec![line])
    }

    /// Adds lines that belong together.
    pub(crate) fn lines(self, lines: Vec<Cell>) -> Text {
        self.with(Part::Lines(lines))
    }

    /// Adds labelled lines.
    pub(crate) fn fields(self, fields: Fields) -> Text {
        self.with(Part::Fields(fields))
    }

    /// Adds a table.
    pub(crate) fn table(self, table: Table) -> Text {
        self.with(Part::Table(table))
    }

    /// Adds a table, or a line that says that it has no rows.
    pub(crate) fn table_or(self, table: Table, nothing: &str) -> Text {
        if table.is_empty() { self.line(Cell::plain(nothing)) } else { self.table(table) }
    }

    /// Adds a chart.
    pub(crate) fn chart(self, chart: Chart) -> Text {
        self.with(Part::Chart(chart))
    }

    fn with(mut self, part: Part) -> Text {
        self.parts.push(part);
        self
    }

    /// The text, laid out.
    pub(crate) fn render(&self, width: Option<usize>, paint: Paint) -> String {
        let part = |part: &Part| match part {
            Part::Lines(lines) => {
                lines.iter().map(|cell| paint.apply(cell.tone, &cell.text) + "\n").collect()
            }
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
        let mut table = Table::new(["NAME", "LEFT:", "NOTE"]);
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
    fn a_narrow_terminal_does_without_some_columns_first() {
        let narrow = |width| {
            Text::new().table(table().may_lack(&["NOTE", "LEFT"])).render(Some(width), Paint(false))
        };
        insta::assert_snapshot!(narrow(20), @"
        NAME           LEFT
        a-long-name       7
        b            -12345
        ");
        assert_eq!(narrow(12), "NAME\na-long-name\nb\n");
        assert_eq!(narrow(5), rendered(Some(5), false), "nothing is left out in vain");
    }

    #[test]
    fn a_long_last_column_goes_on_in_the_next_line() {
        let mut table = Table::new(["NAME", "NOTE"]).may_wrap();
        table.row([Cell::plain("a"), Cell::plain("one two three four five six seven eight nine")]);
        table.row([Cell::plain("b"), Cell::plain("x".repeat(40))]);
        table.row([Cell::plain("c"), Cell::plain("")]);
        let text = Text::new().table(table);
        insta::assert_snapshot!(text.render(Some(36), Paint(false)), @"
        NAME  NOTE
        a     one two three four five six
              seven eight nine
        b     xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx
              xxxxxxxxxx
        c
        ");
        assert!(
            text.render(Some(35), Paint(false)).starts_with("NAME  a\nNOTE  one"),
            "too narrow for anything but blocks"
        );
        assert!(
            text.render(None, Paint(false))
                .contains("a     one two three four five six seven eight nine\n")
        );
    }

    #[test]
    fn colours_do_not_move_columns() {
        let painted = rendered(None, true);
        assert!(painted.contains("\u{1b}[1;31m-12345\u{1b}[0m"), "{painted:?}");
        let codes = ["\u{1b}[1m", "\u{1b}[1;31m", "\u{1b}[0m"];
        assert_eq!(
            codes.iter().fold(painted, |text, code| text.replace(code, "")),
            rendered(None, false)
        );
    }

    #[test]
    fn parts_are_separated_by_a_blank_line() {
        let fields = vec![("version", Cell::plain(1)), ("on", Cell::plain(""))];
        let text =
            Text::new().line(Cell::plain("granted")).fields(fields).render(None, Paint(false));
        assert_eq!(text, "granted\n\nversion  1\non\n");
    }
}
