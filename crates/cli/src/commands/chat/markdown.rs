//! Markdown as a terminal can show it, as it comes: headings and strong words bold, code dim, bullets as bullets.
//!
//! Invariant: whatever pieces a text comes in, the same comes out. What is not surely a mark is text, so that nothing is lost of
//! programs and formulas; nothing is held back but what may become a mark.

/// How a piece of text looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Look {
    pub(super) bold: bool,
    pub(super) dim: bool,
    /// Lines stay as they are.
    pub(super) verbatim: bool,
}

/// Where in a text we are.
#[derive(Clone, Debug)]
pub(super) struct Markdown {
    /// What may become a mark.
    held: String,
    at_line_start: bool,
    in_fence: bool,
    /// The rest of the line is the name of a language.
    skips_line: bool,
    heading: bool,
    strong: bool,
    code: bool,
    /// The letter before.
    before: char,
}

impl Default for Markdown {
    fn default() -> Markdown {
        Markdown {
            held: String::new(),
            at_line_start: true,
            in_fence: false,
            skips_line: false,
            heading: false,
            strong: false,
            code: false,
            before: '\n',
        }
    }
}

impl Markdown {
    /// More text: what can be shown of it, and how.
    pub(super) fn push(&mut self, text: &str, show: &mut dyn FnMut(&str, Look)) {
        for c in text.chars() {
            self.held.push(c);
            self.decide(false, show);
        }
    }

    /// The end of the text.
    pub(super) fn finish(&mut self, show: &mut dyn FnMut(&str, Look)) {
        self.decide(true, show);
    }

    fn look(&self) -> Look {
        Look {
            bold: self.heading || (self.strong && !self.in_fence),
            dim: (self.code && !self.in_fence) || self.in_fence,
            verbatim: self.in_fence,
        }
    }

    /// Shows or consumes what is held, unless it needs more.
    fn decide(&mut self, is_last: bool, show: &mut dyn FnMut(&str, Look)) {
        while !self.held.is_empty() {
            let taken =
                if self.at_line_start { self.line_start(is_last, show) } else { self.inline(is_last, show) };
            match taken {
                0 => return,
                taken => {
                    self.before = self.held[..taken].chars().next_back().unwrap_or(self.before);
                    self.held.drain(..taken);
                }
            }
        }
    }

    /// Bytes that were used of what stands at the beginning of a line; 0 if it needs more.
    fn line_start(&mut self, is_last: bool, show: &mut dyn FnMut(&str, Look)) -> usize {
        let held = self.held.clone();
        let bare = held.trim_start_matches(' ');
        let indent = held.len() - bare.len();
        let needs_more = |marks: &[&str]| !is_last && marks.iter().any(|mark| mark.starts_with(bare));
        if bare.starts_with("```") {
            (self.in_fence, self.skips_line, self.at_line_start) = (!self.in_fence, true, false);
            return indent + 3;
        }
        if self.in_fence {
            if needs_more(&["```"]) {
                return 0;
            }
            self.at_line_start = false;
            show("  ", self.look());
            return self.as_text(indent, show);
        }
        let hashes = bare.len() - bare.trim_start_matches('#').len();
        let is_heading = (1..=6).contains(&hashes) && bare[hashes..].starts_with(' ');
        if is_heading {
            (self.heading, self.at_line_start) = (true, false);
            return indent + hashes + 1;
        }
        if let Some(bullet @ ("- " | "* ")) = bare.get(..2) {
            show(&held[..indent], self.look());
            show("• ", self.look());
            self.at_line_start = false;
            return indent + bullet.len();
        }
        if needs_more(&["```", "- ", "* ", "###### "]) {
            return 0;
        }
        self.at_line_start = false;
        self.as_text(indent, show)
    }

    /// Blanks before the first letter of a line.
    fn as_text(&mut self, indent: usize, show: &mut dyn FnMut(&str, Look)) -> usize {
        let blanks = self.held[..indent].to_owned();
        show(&blanks, self.look());
        if indent > 0 {
            return indent;
        }
        // Something else stands here: the usual rules are for it.
        self.inline(false, show)
    }

    /// Bytes that were used of what stands within a line; 0 if it needs more.
    fn inline(&mut self, is_last: bool, show: &mut dyn FnMut(&str, Look)) -> usize {
        let mut letters = self.held.chars();
        let Some(first) = letters.next() else { return 0 };
        let rest = letters.as_str().to_owned();
        if first == '\n' && self.skips_line {
            (self.at_line_start, self.skips_line) = (true, false);
            return 1;
        }
        if first == '\n' {
            show("\n", Look { verbatim: self.in_fence, ..Look::default() });
            (self.at_line_start, self.heading, self.strong, self.code) = (true, false, false, false);
            return 1;
        }
        if self.skips_line {
            return first.len_utf8();
        }
        if !self.in_fence && first == '`' {
            self.code = !self.code;
            return 1;
        }
        if !self.in_fence && !self.code && first == '*' {
            let mut after = rest.chars();
            match (after.next(), after.next()) {
                (None, _) | (Some('*'), None) if !is_last => return 0,
                (Some('*'), next) => {
                    let opens = !self.strong
                        && !self.before.is_alphanumeric()
                        && next.is_some_and(|next| !next.is_whitespace() && next != '*');
                    let closes = self.strong && !self.before.is_whitespace();
                    if opens || closes {
                        self.strong = opens;
                        return 2;
                    }
                    show("**", self.look());
                    return 2;
                }
                _ => {}
            }
        }
        let text = first.to_string();
        show(&text, self.look());
        first.len_utf8()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bold as [x], dim as (x).
    fn shown(text: &str, piece: usize) -> String {
        let (mut markdown, mut out) = (Markdown::default(), String::new());
        let mut last = Look::default();
        let mut show = |text: &str, look: Look| {
            let turned = |was: bool, is: bool, open: char, close: char| match (was, is) {
                (false, true) => Some(open),
                (true, false) => Some(close),
                _ => None,
            };
            out.extend(turned(last.bold, look.bold, '[', ']'));
            out.extend(turned(last.dim, look.dim, '(', ')'));
            last = look;
            out.push_str(text);
        };
        let letters: Vec<char> = text.chars().collect();
        for piece in letters.chunks(piece) {
            markdown.push(&piece.iter().collect::<String>(), &mut show);
        }
        markdown.finish(&mut show);
        out
    }

    #[test]
    fn marks_become_looks_however_they_are_cut() {
        for (text, want) in [
            ("# Title\ntext", "[Title]\ntext"),
            ("a **strong** word", "a [strong] word"),
            ("- one\n* two\n  - three", "• one\n• two\n  • three"),
            ("say `let x` now", "say (let x) now"),
            ("```rust\nlet a = 2**3;\n```\nend", "(  let a = 2**3;)\nend"),
            // What is no mark stays.
            ("2**3 and 4**5", "2**3 and 4**5"),
            ("#hash ** a * b", "#hash ** a * b"),
            ("-5 and *", "-5 and *"),
            ("", ""),
        ] {
            for piece in 1..6 {
                assert_eq!(shown(text, piece), want, "{text:?} in pieces of {piece}");
            }
        }
    }
}
