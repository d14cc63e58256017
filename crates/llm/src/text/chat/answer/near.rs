//! Searches for the end of something short: of a name, of a header.
//!
//! Invariant: no byte is looked at twice in searches for the same, however an answer is cut and however often such a search begins
//! anew further on because the one before found nothing.

use super::text::{Found, find_from};
use crate::text::limits::MAX_CALL_HEADER;

/// What is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Search {
    /// The end of a header of a message.
    Message,
    /// The end of the header of a call in tags, of these of the syntax.
    Header(usize),
    /// The end of a line with a name.
    Line,
    /// The end of the key of an argument in these tags.
    Key(usize),
    /// The beginning of the value of an argument in these tags.
    Value(usize),
}

/// What a search came to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Near {
    /// Where the first marker begins, and which one it is.
    Marker(usize, usize),
    /// More has to come.
    NotYet,
    /// None begins soon enough: this is something else.
    TooFar,
}

/// For each search, bytes from here on in which none of its markers begins.
#[derive(Clone, Debug, Default)]
pub(super) struct Nearby {
    barren: Vec<(Search, usize)>,
}

impl Nearby {
    /// Looks for the first of some markers, always the same ones for a search.
    pub(super) fn find(&mut self, search: Search, text: &str, markers: &[&str]) -> Near {
        let known = self.barren.iter().position(|(other, _)| *other == search);
        let from = known.map_or(0, |at| self.barren.swap_remove(at).1).min(text.len());
        let longest = markers.iter().map(|marker| marker.len()).max().unwrap_or(0);
        // A marker that begins in time is whole in this much of the text.
        let end = (MAX_CALL_HEADER + longest).min(text.len());
        let end = (end..=text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(text.len());
        let (near, looked) = match find_from(text.get(..end).unwrap_or(text), from, markers) {
            Found::Marker(at, which) if at <= MAX_CALL_HEADER => return Near::Marker(at, which),
            Found::Nothing(at) if at <= MAX_CALL_HEADER => (Near::NotYet, at),
            Found::Marker(at, _) | Found::Nothing(at) => (Near::TooFar, at),
        };
        self.barren.push((search, looked));
        near
    }

    /// So many bytes are done with.
    pub(super) fn advance(&mut self, read: usize) {
        for (_, barren) in &mut self.barren {
            *barren = barren.saturating_sub(read);
        }
        self.barren.retain(|(_, barren)| *barren > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_found_if_they_are_near() {
        let (markers, search) = (["|>", "!"], Search::Line);
        let mut nearby = Nearby::default();
        assert_eq!(nearby.find(search, "ab|>", &markers), Near::Marker(2, 0));
        assert_eq!(nearby.find(search, "ab|", &markers), Near::NotYet);
        assert_eq!(nearby.find(search, "ab|>", &markers), Near::Marker(2, 0));
        for (before, expected) in [
            (MAX_CALL_HEADER, Near::Marker(MAX_CALL_HEADER, 1)),
            (MAX_CALL_HEADER + 1, Near::TooFar),
            (3 * MAX_CALL_HEADER, Near::TooFar),
        ] {
            let text = "é".repeat(before / 2 - 1) + &"x".repeat(before % 2 + 2) + "!";
            let mut nearby = Nearby::default();
            assert_eq!(nearby.find(search, &text, &markers), expected);
            // Further on it may be near.
            if expected == Near::TooFar {
                let rest = &text[text.len() - 3..];
                nearby.advance(text.len() - 3);
                assert_eq!(nearby.find(search, rest, &markers), Near::Marker(2, 1));
            }
        }
    }
}
