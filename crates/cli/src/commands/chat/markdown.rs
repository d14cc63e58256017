//! Markdown as a terminal can show it, as it comes: headings and strong words bold, code dim, bullets as bullets.
//!
//! Invariant: whatever pieces a text comes in, the same comes out. What is not surely a mark is text, so that nothing is lost of
//! programs and formulas: a mark that opens something is held until the one that closes it, or the end of the line.

/// Bytes that are held at most.
const MAX_HELD: usize = 4096;

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
    /// Backticks that the code of several lines began with; 0 outside of it.
    fence: usize,
    heading: bool,
    strong: bool,
    /// The letter before.
    before: char,
}

impl Default for Markdown {
    fn default() -> Markdown {
        Markdown {
            held: String::new(),
            at_line_start: true,
            fence: 0,
            heading: false,
            strong: false,
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

    fn is_in_fence(&self) -> bool {
        self.fence > 0
    }

    fn look(&self) -> Look {
        let is_in_fence = self.is_in_fence();
        Look { bold: self.heading || self.strong, dim: is_in_fence, verbatim: is_in_fence }
    }

    /// Shows or consumes what is held, unless it needs more.
    fn decide(&mut self, is_last: bool, show: &mut dyn FnMut(&str, Look)) {
        while !self.held.is_empty() {
            let is_last = is_last || self.held.len() > MAX_HELD;
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
            let end = bare.find('\n');
            let line = &bare[..end.unwrap_or(bare.len())];
            let marks = leading_backticks(line);
            let about = line[marks..].trim();
            // Behind one that opens a fence may be a language, behind one that closes it nothing.
            let may_be_one = match self.is_in_fence() {
                true => marks >= self.fence && about.is_empty(),
                false => !about.contains('`'),
            };
            if may_be_one && end.is_none() && !is_last {
                return 0;
            }
            if may_be_one {
                (self.fence, self.heading, self.strong) =
                    (if self.is_in_fence() { 0 } else { marks }, false, false);
                return end.map_or(held.len(), |end| indent + end + 1);
            }
            if self.is_in_fence() && end.is_none() && !is_last && about.is_empty() {
                return 0;
            }
        }
        if self.is_in_fence() {
            if needs_more(&["```"]) {
                return 0;
            }
            self.at_line_start = false;
            show("  ", self.look());
            return self.as_text(indent, is_last, show);
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
        self.as_text(indent, is_last, show)
    }

    /// Blanks before the first letter of a line.
    fn as_text(&mut self, indent: usize, is_last: bool, show: &mut dyn FnMut(&str, Look)) -> usize {
        let blanks = self.held[..indent].to_owned();
        show(&blanks, self.look());
        if indent > 0 {
            return indent;
        }
        // Something else stands here: the usual rules are for it.
        self.inline(is_last, show)
    }

    /// Bytes that were used of what stands within a line; 0 if it needs more.
    fn inline(&mut self, is_last: bool, show: &mut dyn FnMut(&str, Look)) -> usize {
        let mut letters = self.held.chars();
        let Some(first) = letters.next() else { return 0 };
        let rest = letters.as_str().to_owned();
        if first == '\n' {
            show("\n", Look { verbatim: self.is_in_fence(), ..Look::default() });
            (self.at_line_start, self.heading, self.strong) = (true, false, false);
            return 1;
        }
        if !self.is_in_fence() && first == '`' {
            let (line, is_whole) = line_of(&self.held, is_last);
            let marks = leading_backticks(line);
            return match code(line, is_whole) {
                None => 0,
                Some(0) => {
                    show(&line[..marks], self.look());
                    marks
                }
                Some(length) => {
                    show(&line[marks..length - marks], Look { dim: true, ..self.look() });
                    length
                }
            };
        }
        if !self.is_in_fence() && first == '*' {
            let mut after = rest.chars();
            match (after.next(), after.next()) {
                (None, _) | (Some('*'), None) if !is_last => return 0,
                (Some('*'), next) => {
                    let opens = !self.strong
                        && !self.before.is_alphanumeric()
                        && next.is_some_and(|next| !next.is_whitespace() && next != '*');
                    let closes = self.strong && !self.before.is_whitespace();
                    let opens = match opens.then(|| is_closed(&rest[1..], is_last)) {
                        Some(None) => return 0,
                        Some(Some(is_closed)) => is_closed,
                        None => false,
                    };
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

/// The rest of a line, and whether all of it is there.
fn line_of(text: &str, is_last: bool) -> (&str, bool) {
    text.split_once('\n').map_or((text, is_last), |(line, _)| (line, true))
}

fn leading_backticks(text: &str) -> usize {
    text.len() - text.trim_start_matches('`').len()
}

/// Bytes of the code that begins with these backticks, up to as many others; 0 if there are none. `None` if more is needed to tell.
fn code(line: &str, is_whole: bool) -> Option<usize> {
    let marks = leading_backticks(line);
    let mut at = marks;
    while let Some(found) = line[at..].find('`') {
        let length = leading_backticks(&line[at + found..]);
        at += found + length;
        if at == line.len() && !is_whole {
            return None;
        }
        if length == marks {
            return Some(at);
        }
    }
    is_whole.then_some(0)
}

/// Whether the mark of strong text that stands before this is closed on its line. `None` if more is needed to tell.
fn is_closed(text: &str, is_last: bool) -> Option<bool> {
    let (line, is_whole) = line_of(text, is_last);
    let (mut at, mut before) = (0, ' ');
    while let Some(c) = line[at..].chars().next() {
        let here = &line[at..];
        if here.starts_with("**") && !before.is_whitespace() {
            return Some(true);
        }
        at += match c {
            '`' => code(here, is_whole)?.max(leading_backticks(here)),
            _ => c.len_utf8(),
        };
        before = c;
    }
    is_whole.then_some(false)
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
            ("*", "*"),
            ("a\n**", "a\n**"),
            ("*args and **kwargs\n**", "*args and **kwargs\n**"),
            ("a ` b\nc ``", "a ` b\nc ``"),
            ("```ls -la``` lists", "(ls -la) lists"),
            ("````\na\n```x\n```\n````\nb", "(  a)\n(  ```x)\n(  ```)\nb"),
            ("``a`b`` and **a `b**` c** d", "(a`b) and [a (b**) c] d"),
            ("", ""),
        ] {
            for piece in 1..6 {
                assert_eq!(shown(text, piece), want, "{text:?} in pieces of {piece}");
            }
        }
    }

    #[test]
    fn what_is_held_is_bounded() {
        let long = format!("`{}", "x".repeat(2 * MAX_HELD));
        assert_eq!(shown(&long, 5), long);
        let (mut markdown, mut seen) = (Markdown::default(), 0);
        markdown.push(&long, &mut |text, _| seen += text.len());
        assert!(seen > MAX_HELD, "{seen}");
    }
}
