//! Text broken at words, as it comes.
//!
//! Invariant: apart from blanks at the places where lines are broken, what comes out is what went in, whatever pieces it came in. A
//! word is written once its end is known or it fills a line; escape sequences take no columns.

use std::io::{self, Write};

use unicode_width::UnicodeWidthChar;

/// Columns between tabs.
const TAB: usize = 8;

/// Where in a line the text is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wrap {
    /// Columns of the line; none if lines are not broken.
    width: Option<usize>,
    column: usize,
    /// Blanks before the word, not written yet.
    blanks: String,
    blank_columns: usize,
    /// The word so far, not written yet.
    word: String,
    word_columns: usize,
}

impl Wrap {
    /// Lines have so many columns from now on.
    pub(crate) fn set_width(&mut self, width: Option<usize>) {
        // The last column stays free: some terminals go to the next line by themselves when it is used.
        self.width = width.map(|width| width.saturating_sub(1).max(1));
    }

    /// Whether nothing stands on the line yet.
    pub(crate) fn is_at_start(&self) -> bool {
        self.column == 0 && self.word.is_empty() && self.blanks.is_empty()
    }

    /// More text.
    pub(crate) fn push(&mut self, text: &str, out: &mut dyn Write) -> io::Result<()> {
        for c in text.chars() {
            match c {
                '\n' => {
                    self.end_word(out)?;
                    (self.column, self.blank_columns) = (0, 0);
                    self.blanks.clear();
                    out.write_all(b"\n")?;
                }
                ' ' | '\t' => {
                    self.end_word(out)?;
                    let at = self.column + self.blank_columns;
                    self.blank_columns += if c == '\t' { TAB - at % TAB } else { 1 };
                    self.blanks.push(c);
                }
                _ => self.push_letter(c, out)?,
            }
        }
        Ok(())
    }

    fn push_letter(&mut self, c: char, out: &mut dyn Write) -> io::Result<()> {
        let columns = c.width().unwrap_or(0);
        // Scripts without blanks between words have wide letters, and may be broken between any two.
        if columns > 1 {
            self.end_word(out)?;
        }
        let fills = |word: usize| self.width.is_some_and(|width| word > width);
        if fills(self.word_columns + columns) {
            self.end_word(out)?;
            out.write_all(b"\n")?;
            self.column = 0;
        }
        self.word.push(c);
        self.word_columns += columns;
        if columns > 1 {
            self.end_word(out)?;
        }
        Ok(())
    }

    /// An escape sequence at this place.
    pub(crate) fn style(&mut self, sequence: &str) {
        self.word.push_str(sequence);
    }

    /// Writes the word, on the next line if it does not fit into this one.
    pub(crate) fn end_word(&mut self, out: &mut dyn Write) -> io::Result<()> {
        if self.word.is_empty() {
            return Ok(());
        }
        let end = self.column + self.blank_columns + self.word_columns;
        if self.column > 0 && self.word_columns > 0 && self.width.is_some_and(|width| end > width) {
            out.write_all(b"\n")?;
            self.column = self.word_columns;
        } else {
            out.write_all(self.blanks.as_bytes())?;
            self.column = end;
        }
        out.write_all(self.word.as_bytes())?;
        self.blanks.clear();
        self.word.clear();
        (self.blank_columns, self.word_columns) = (0, 0);
        Ok(())
    }
}

/// A text that is there as a whole, in lines of a terminal with so many columns; as it is where there is no terminal.
pub(crate) fn wrapped(text: &str, width: Option<usize>) -> String {
    if width.is_none() {
        return text.to_owned();
    }
    let (mut wrap, mut out) = (Wrap::default(), Vec::with_capacity(text.len()));
    wrap.set_width(width);
    let written = wrap.push(text, &mut out).and_then(|()| wrap.end_word(&mut out));
    // Writing to memory does not fail, and what is written are pieces of the text.
    written.ok().and_then(|()| String::from_utf8(out).ok()).unwrap_or_else(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_text_is_broken_at_words() {
        assert_eq!(wrapped("oxcart: one two three", Some(12)), "oxcart: one\ntwo three");
        assert_eq!(wrapped(" one two  \n three ", None), " one two  \n three ");
    }

    fn wrapped_in_pieces(width: Option<usize>, pieces: &[&str]) -> String {
        let (mut wrap, mut out) = (Wrap::default(), Vec::new());
        wrap.set_width(width);
        for piece in pieces {
            wrap.push(piece, &mut out).unwrap();
        }
        wrap.end_word(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn lines_break_at_words() {
        assert_eq!(wrapped_in_pieces(Some(11), &["one two three four"]), "one two\nthree four");
        assert_eq!(wrapped_in_pieces(Some(11), &["one t", "wo th", "ree", " four"]), "one two\nthree four");
        assert_eq!(wrapped_in_pieces(None, &["one two three four"]), "one two three four");
        assert_eq!(wrapped_in_pieces(Some(80), &["  a\n\n\tb  c"]), "  a\n\n\tb  c");
    }

    #[test]
    fn what_cannot_be_broken_fills_lines() {
        assert_eq!(wrapped_in_pieces(Some(5), &["abcdefghij"]), "abcd\nefgh\nij");
        assert_eq!(wrapped_in_pieces(Some(6), &["日本語日本語"]), "日本\n語日\n本語");
    }

    #[test]
    fn styles_take_no_room() {
        let (mut wrap, mut out) = (Wrap::default(), Vec::new());
        wrap.set_width(Some(8));
        wrap.style("\x1b[1m");
        wrap.push("one two", &mut out).unwrap();
        wrap.style("\x1b[0m");
        wrap.push(" x", &mut out).unwrap();
        wrap.end_word(&mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "\x1b[1mone two\x1b[0m\nx");
    }
}
