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

/// Rows of equally many cells, below dimmed titles if there are some.
#[derive(Clone, Debug)]
pub(crate) struct Table<R, const N: usize> {
    pub(crate) columns: [Align; N],
    pub(crate) titles: Option<[&'static str; N]>,
    /// Gone through twice, first for the widths, so that long tables need not be in memory.
    pub(crate) rows: R,
}

impl<R: Iterator<Item = [Cell; N]> + Clone, const N: usize> Table<R, N> {
    /// Writes the rows, indented by two, with two spaces between columns and none at the end of a line.
    pub(crate) fn write(self, out: &mut dyn Write, terminal: Terminal) -> io::Result<()> {
        let rows = self.titles.map(|titles| titles.map(Cell::dim)).into_iter().chain(self.rows);
        let mut widths = [0; N];
        for row in rows.clone() {
            for (width, cell) in widths.iter_mut().zip(&row) {
                *width = cell.text.chars().count().max(*width);
            }
        }
        for row in rows {
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
        let rows = [[Cell::plain("é"), Cell::quantity("10.0 K")]].into_iter();
        let table = Table { columns: [Align::Left, Align::Right], titles: Some(["name", "n"]), rows };
        let mut out = Vec::new();
        table.write(&mut out, Terminal { colour: false }).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "  name       n\n  é     10.0 K\n");
    }
}
