//! Aligned columns. Widths are counted in characters; escape sequences are added after padding.

use std::io::{self, Write};

use crate::terminal::{Terminal, Tone};

/// On which side of its column a text stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
}

/// One text of a table.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    text: String,
    tone: Tone,
}

impl Cell {
    pub(crate) fn new(text: impl Into<String>, tone: Tone) -> Cell {
        Cell { text: text.into(), tone }
    }

    pub(crate) fn plain(text: impl Into<String>) -> Cell {
        Cell::new(text, Tone::Plain)
    }

    pub(crate) fn dim(text: impl Into<String>) -> Cell {
        Cell::new(text, Tone::Dim)
    }

    pub(crate) fn quantity(text: impl Into<String>) -> Cell {
        Cell::new(text, Tone::Quantity)
    }
}

/// Rows of equally many cells.
#[derive(Debug)]
pub(crate) struct Table<const N: usize> {
    columns: [Align; N],
    rows: Vec<[Cell; N]>,
}

impl<const N: usize> Table<N> {
    pub(crate) fn new(columns: [Align; N]) -> Table<N> {
        Table { columns, rows: Vec::new() }
    }

    /// Adds dimmed column titles.
    pub(crate) fn titles(&mut self, titles: [&str; N]) {
        self.rows.push(titles.map(Cell::dim));
    }

    pub(crate) fn row(&mut self, row: [Cell; N]) {
        self.rows.push(row);
    }

    /// Writes the rows, indented by two, with two spaces between columns and none at the end of a line.
    pub(crate) fn write(&self, out: &mut dyn Write, terminal: Terminal) -> io::Result<()> {
        let mut widths = [0; N];
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = cell.text.chars().count().max(*width);
            }
        }
        for row in &self.rows {
            let mut line = String::new();
            for ((cell, align), width) in row.iter().zip(self.columns).zip(widths) {
                let padding = " ".repeat(width - cell.text.chars().count());
                let painted = terminal.paint(&cell.text, cell.tone);
                line.push_str("  ");
                match align {
                    Align::Left => line.extend([painted, padding]),
                    Align::Right => line.extend([padding, painted]),
                }
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_align() {
        let mut table = Table::new([Align::Left, Align::Right]);
        table.titles(["name", "n"]);
        table.row([Cell::plain("é"), Cell::quantity("10.0 K")]);
        let mut out = Vec::new();
        table.write(&mut out, Terminal { colour: false }).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "  name       n\n  é     10.0 K\n");
    }
}
