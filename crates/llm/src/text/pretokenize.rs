//! Pre-tokenizers: how byte-pair vocabularies cut text into words before anything is merged.
//!
//! A pre-tokenizer is a list of stages. Each one cuts every piece that the stages before have left into its matches and
//! what lies between them; nothing looks beyond its piece.
//!
//! Invariant: the pieces, put together, are the text, and cutting takes time linear in its length.

mod cased;
mod glyph;
mod names;
mod patterns;

use std::ops::Range;

pub(crate) use glyph::Glyph;
pub(crate) use names::{DEFAULT, GEMMA4, Named, Spelling, by_name};

/// One pass over all pieces.
#[derive(Clone, Copy)]
pub(crate) enum Stage {
    /// How many glyphs match at the beginning of what is left of a piece, if any do.
    Match(fn(&[Glyph]) -> usize),
    /// Where a piece is cut, in ascending order.
    Cut(fn(&[Glyph], &mut Vec<usize>)),
}

/// Cuts texts. Kept from text to text for its memory.
#[derive(Default)]
pub(crate) struct Splitter {
    glyphs: Vec<Glyph>,
    /// Where pieces end, in glyphs.
    ends: Vec<usize>,
    next_ends: Vec<usize>,
}

impl Splitter {
    /// Hands the pieces of a text to `each`, as ranges of bytes.
    pub(crate) fn split(&mut self, text: &[u8], stages: &[Stage], mut each: impl FnMut(Range<usize>)) {
        let Splitter { glyphs, ends, next_ends } = self;
        glyph::read(text, glyphs);
        ends.clear();
        ends.push(glyphs.len());
        for stage in stages {
            next_ends.clear();
            let mut start = 0;
            for &end in ends.iter() {
                apply(*stage, glyphs.get(start..end).unwrap_or_default(), start, next_ends);
                start = end;
            }
            std::mem::swap(ends, next_ends);
        }
        let (mut glyph_start, mut byte_start) = (0, 0);
        for &glyph_end in ends.iter() {
            let piece = glyphs.get(glyph_start..glyph_end).unwrap_or_default();
            let byte_end = byte_start + piece.iter().map(|glyph| glyph.len()).sum::<usize>();
            if byte_start < byte_end {
                each(byte_start..byte_end);
            }
            (glyph_start, byte_start) = (glyph_end, byte_end);
        }
    }
}

/// Cuts one piece, which begins at `offset`, and writes down where the pieces of it end.
fn apply(stage: Stage, piece: &[Glyph], offset: usize, ends: &mut Vec<usize>) {
    let first = ends.len();
    match stage {
        Stage::Match(matches) => {
            let mut at = 0;
            // Where the gap between the matches begins.
            let mut gap = 0;
            while let Some(rest) = piece.get(at..).filter(|rest| !rest.is_empty()) {
                let count = matches(rest);
                if count == 0 {
                    at += 1;
                    continue;
                }
                if gap < at {
                    ends.push(at);
                }
                at += count;
                ends.push(at);
                gap = at;
            }
            if gap < piece.len() {
                ends.push(piece.len());
            }
        }
        Stage::Cut(cut) => {
            cut(piece, ends);
            ends.push(piece.len());
        }
    }
    for end in ends.iter_mut().skip(first) {
        *end += offset;
    }
}

/// `\s+$`: before the white space that the piece ends with.
fn cut_trailing_spaces(piece: &[Glyph], cuts: &mut Vec<usize>) {
    let end = piece.iter().rposition(|glyph| !glyph.is_space()).map_or(0, |last| last + 1);
    if 0 < end && end < piece.len() {
        cuts.push(end);
    }
}

/// Every run of numbers in groups of three, counted from its right end; what stands before a run stays with its first group.
fn cut_numbers_from_right(piece: &[Glyph], cuts: &mut Vec<usize>) {
    let mut at = 0;
    while let Some(rest) = piece.get(at..).filter(|rest| !rest.is_empty()) {
        let digits = patterns::run(rest, Glyph::is_number);
        if digits == 0 {
            let others = patterns::run(rest, |glyph| !glyph.is_number());
            at += others;
            continue;
        }
        let end = at + digits;
        let first = if digits % 3 == 0 { 3 } else { digits % 3 };
        cuts.extend((at + first..=end).step_by(3).filter(|&cut| cut < piece.len()));
        at = end;
    }
}

/// White space without newlines in pieces of 512, 256, … 4, 2 and 1 characters, the largest first.
fn cut_spaces_by_powers(piece: &[Glyph], cuts: &mut Vec<usize>) {
    if !piece.iter().all(|glyph| glyph.is_space() && !glyph.is_newline()) {
        return;
    }
    let mut at = 0;
    while let left @ 1.. = piece.len() - at {
        if at > 0 {
            cuts.push(at);
        }
        at += 1 << left.ilog2().min(9);
    }
}

/// `(?=(\d{3})+(?!\d))`: wherever a multiple of three digits follows, up to the end of a run of them.
fn cut_before_thousands(piece: &[Glyph], cuts: &mut Vec<usize>) {
    let is_digit = |glyph: Glyph| glyph.is_ascii_and(u8::is_ascii_digit);
    let mut at = 0;
    while let Some(rest) = piece.get(at..).filter(|rest| !rest.is_empty()) {
        let digits = patterns::run(rest, is_digit);
        let end = at + digits;
        cuts.extend((at + digits % 3..end).step_by(3).filter(|&cut| 0 < cut));
        at = end + patterns::run(piece.get(end..).unwrap_or_default(), |glyph| !is_digit(glyph));
    }
}

#[cfg(test)]
mod tests;
